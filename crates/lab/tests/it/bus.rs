//! `tenure up` with a bus that is there, that is not, and that can not be.

use crate::support::{
    Guarded, administrators_key_of, complained, own_database, run, said, tenure, wait_until,
};
use serde_json::Value;
use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::Stdio,
    time::Duration,
};
use tenure_proving::{nats::NatsServer, redis::RedisServer};

const PATIENCE: Duration = Duration::from_secs(60);

/// A server, and where it is.
fn server(command: &str, dir: &Path, store: &str, bus: &str) -> (Guarded, At) {
    let mut up = tenure();
    let (bus, listen) = (format!("bus.url={bus}"), "server.listen=127.0.0.1:0");
    up.args([command, "--json", "--store", store, "--set", &bus, "--set", listen]);
    up.args(["--set", "log.filter=error"]);
    let mut child = Guarded(up.current_dir(dir).stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let said: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"));
    let url = said["url"].as_str().unwrap().to_owned();
    (child, At { url, key: administrators_key_of(dir, store) })
}

/// Where a server is, and its administrator's key.
struct At {
    url: String,
    key: String,
}

/// A number that a server says about itself.
fn metric(at: &At, name: &str) -> f64 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let text = runtime.block_on(async {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let request = client.get(format!("{}/metrics", at.url)).bearer_auth(&at.key);
        request.send().await.unwrap().text().await.unwrap()
    });
    let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

fn connected(at: &At, is_so: bool) {
    let expected = f64::from(u8::from(is_so));
    wait_until("the bus", PATIENCE, || metric(at, "tenure_bus_connected") == expected);
}

fn submit(dir: &Path, at: &At) {
    let mut command = tenure();
    command.args([
        "job",
        "submit",
        "drill.noops",
        r#"{"steps": 2}"#,
        "--wait",
        "--server",
        &at.url,
    ]);
    let output = command.current_dir(dir).output().unwrap();
    assert!(output.status.success(), "{}", complained(&output));
}

/// What doctor says about the bus.
fn doctor(dir: &Path, store: &str, bus: &str, at: &At) -> Value {
    let bus = format!("bus.url={bus}");
    let mut command = tenure();
    command.args(["doctor", "--json", "--store", store, "--server", &at.url, "--set", &bus]);
    let output = command.env("TENURE_API_KEY", &at.key).current_dir(dir).output().unwrap();
    let report: Value = serde_json::from_str(&said(&output))
        .unwrap_or_else(|e| panic!("{e}: {} {}", said(&output), complained(&output)));
    let all = report["diagnoses"].as_array().unwrap();
    all.iter().find(|d| d["check"] == "bus").unwrap_or_else(|| panic!("{report:#}")).clone()
}

#[test]
fn work_goes_on_without_the_bus_and_doctor_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let mut nats = NatsServer::not_yet();
    let (server, url) = server("up", dir.path(), "sqlite:data", &nats.url());
    submit(dir.path(), &url);
    connected(&url, false);
    let ill = doctor(dir.path(), "sqlite:data", &nats.url(), &url);
    assert_eq!(ill["verdict"], "warning", "{ill:#}");
    nats.start_again();
    connected(&url, true);
    let well = doctor(dir.path(), "sqlite:data", &nats.url(), &url);
    assert_eq!(well["verdict"], "ok", "{well:#}");
    submit(dir.path(), &url);
    nats.kill();
    connected(&url, false);
    submit(dir.path(), &url);
    nats.start_again();
    connected(&url, true);
    assert_eq!(metric(&url, "tenure_bus_connections_total"), 2.0);
    drop(server);
}

#[test]
fn servers_on_one_database_hear_each_other_over_the_bus() {
    let (db, dir) = (own_database("bus_two"), tempfile::tempdir().unwrap());
    let mut nats = NatsServer::start();
    let (first, here) = server("server", dir.path(), &db.url, &nats.url());
    let (second, there) = server("up", dir.path(), &db.url, &nats.url());
    for url in [&here, &there] {
        connected(url, true);
    }
    // The job is made by one server, and the only worker is at the other.
    submit(dir.path(), &here);
    wait_until("a ring of the other", PATIENCE, || metric(&there, "tenure_bell_heard_total") > 0.0);
    nats.kill();
    connected(&here, false);
    submit(dir.path(), &here);
    drop((first, second));
}

#[test]
fn work_goes_on_without_redis_and_doctor_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let mut redis = RedisServer::not_yet();
    let (server, url) = server("up", dir.path(), "sqlite:data", &redis.url());
    submit(dir.path(), &url);
    connected(&url, false);
    let ill = doctor(dir.path(), "sqlite:data", &redis.url(), &url);
    assert_eq!(ill["verdict"], "warning", "{ill:#}");
    redis.start_again();
    connected(&url, true);
    let well = doctor(dir.path(), "sqlite:data", &redis.url(), &url);
    assert_eq!(well["verdict"], "ok", "{well:#}");
    submit(dir.path(), &url);
    redis.kill();
    connected(&url, false);
    submit(dir.path(), &url);
    redis.start_again();
    connected(&url, true);
    assert_eq!(metric(&url, "tenure_bus_connections_total"), 2.0);
    drop(server);
}

#[test]
fn servers_on_one_database_hear_each_other_over_redis() {
    let (db, dir) = (own_database("redis_two"), tempfile::tempdir().unwrap());
    let mut redis = RedisServer::with(&["--requirepass", "s3cret"]);
    let bus = format!("redis://:s3cret@{}", redis.address());
    let (first, here) = server("server", dir.path(), &db.url, &bus);
    let (second, there) = server("up", dir.path(), &db.url, &bus);
    for url in [&here, &there] {
        connected(url, true);
    }
    // The job is made by one server, and the only worker is at the other.
    submit(dir.path(), &here);
    wait_until("a ring of the other", PATIENCE, || metric(&there, "tenure_bell_heard_total") > 0.0);
    let well = doctor(dir.path(), &db.url, &bus, &here);
    assert_eq!(well["verdict"], "ok", "{well:#}");
    assert!(!well.to_string().contains("s3cret"), "{well:#}");
    redis.kill();
    connected(&here, false);
    submit(dir.path(), &here);
    drop((first, second));
}

/// The certificate is for 127.0.0.1, signed by itself, and good until 2126.
#[test]
fn redis_over_tls_is_believed_by_its_certificate_alone() {
    let dir = tempfile::tempdir().unwrap();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tls");
    let file = |name: &str| fixtures.join(name).display().to_string();
    let (cert, key) = (file("redis.crt"), file("redis.key"));
    let port = RedisServer::not_yet().port().to_string();
    let tls = ["--tls-port", &port, "--tls-cert-file", &cert, "--tls-key-file", &key];
    let _redis = RedisServer::with(&[&tls[..], &["--tls-auth-clients", "no"]].concat());
    let bus = format!("bus.url=rediss://127.0.0.1:{port}");
    let look = |believed: &str| {
        let mut command = tenure();
        command.args(["doctor", "--json", "--store", "sqlite:data", "--set", &bus]);
        let output =
            command.env("SSL_CERT_FILE", believed).current_dir(dir.path()).output().unwrap();
        let report: Value = serde_json::from_str(&said(&output))
            .unwrap_or_else(|e| panic!("{e}: {} {}", said(&output), complained(&output)));
        let all = report["diagnoses"].as_array().unwrap();
        all.iter().find(|d| d["check"] == "bus").unwrap_or_else(|| panic!("{report:#}")).clone()
    };
    // Doctor looks at a store that is there.
    let (up, url) = server("up", dir.path(), "sqlite:data", &RedisServer::not_yet().url());
    submit(dir.path(), &url);
    drop(up);
    let believed = look(&cert);
    assert_eq!(believed["verdict"], "ok", "{believed:#}");
    let stranger = look(&file("other.crt"));
    assert_eq!(stranger["verdict"], "warning", "{stranger:#}");
    assert!(stranger.to_string().to_lowercase().contains("certificate"), "{stranger:#}");
}

#[test]
fn a_bus_that_can_not_be_is_refused_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let cases = [
        ("bus.url=localhost:4222", "nats://HOST:PORT"),
        ("bus.url=nats://me:secret@localhost", "bus.credentials_file"),
        ("bus.url=redis://localhost:0", "port 0"),
        ("bus.url=redis://a,nats://b", "redis://HOST:PORT"),
        ("bus.prefix=a..b", "is no prefix"),
        ("bus.jetstream=maybe", "neither true nor false"),
    ];
    for (setting, why) in cases {
        let output = run(&["up", "--store", "sqlite:data", "--set", setting], dir.path());
        let said = complained(&output);
        assert!(!output.status.success() && said.contains(why), "{setting}: {said}");
        assert!(!dir.path().join("data").exists(), "{setting}: nothing was begun");
    }
    let sets = ["--set", "bus.url=nats://localhost:1", "--set", "bus.credentials_file=missing"];
    let args: Vec<&str> = ["up", "--store", "sqlite:data"].into_iter().chain(sets).collect();
    let output = run(&args, dir.path());
    assert!(complained(&output).contains("bus.credentials_file"), "{}", complained(&output));
}
