//! The real binary under a flood of connections, and with TLS.

use crate::support::{Guarded, administrators_key_of, clean, complained, said, tenure, wait_until};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    date_time_ymd,
};
use reqwest::Client;
use serde_json::{Value, json};
use std::{
    fs::File,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::{Command, Output, Stdio},
    time::Duration,
};
use tenure_proving::patience;

const PATIENCE: Duration = Duration::from_secs(60);

/// A server, and its address.
struct Server {
    process: Guarded,
    url: String,
    port: u16,
}

/// `tenure up` after this command of a shell, with what it logs in `server.log`.
fn up(dir: &Path, shell: &str, more: &[&str]) -> Server {
    let mut command = clean(Command::new("sh"));
    command.arg("-c").arg(format!("{shell}; exec \"$0\" \"$@\"")).arg(crate::BINARY);
    command.args(["up", "--json", "--store", "sqlite:data", "--set", "server.listen=127.0.0.1:0"]);
    command.args(["--set", "log.filter=info"]).args(more).current_dir(dir);
    command.stdout(Stdio::piped()).stderr(File::create(dir.join("server.log")).unwrap());
    let mut process = Guarded(command.spawn().expect("it starts"));
    let mut line = String::new();
    let out = process.0.stdout.take().expect("it is piped");
    BufReader::new(out).read_line(&mut line).expect("its first line");
    let first: Value =
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?} {}", logged(dir)));
    let url = first["url"].as_str().expect("its address").to_owned();
    let port = url.rsplit(':').next().and_then(|p| p.parse().ok()).expect("a port");
    Server { process, url, port }
}

fn logged(dir: &Path) -> String {
    std::fs::read_to_string(dir.join("server.log")).unwrap_or_default()
}

fn resident_kib(server: &Server) -> u64 {
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", server.process.0.id())).unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS")).expect("its memory");
    line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number")
}

/// A connection that says this, and nothing more.
fn say(port: u16, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // The server may have closed it already.
    let _ = stream.write_all(text.as_bytes());
    stream
}

fn health(port: u16) -> String {
    let text = "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let mut answer = String::new();
    let _ = say(port, text).read_to_string(&mut answer);
    answer.lines().next().unwrap_or_default().to_owned()
}

/// Unauthenticated, and as many as took a server down: with 1,024 files, 1,100 connections used all of them up.
const ATTACK: usize = 1_100;

#[test]
fn more_connections_than_files_do_not_keep_health_checks_out() {
    tenure_edge::raise_file_limit(4_096);
    let dir = tempfile::tempdir().unwrap();
    // Nothing times out by itself: room is made.
    let hour = |key: &str| format!("server.{key}_timeout_seconds=3600");
    let (header, body, idle) = (hour("header"), hour("body"), hour("idle"));
    let settings = ["--set", &header, "--set", &body, "--set", &idle];
    let server = up(dir.path(), "ulimit -n 1024", &settings);
    let halves = [
        "",
        "GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-half: ",
        "POST /console/sign-in HTTP/1.1\r\nhost: localhost\r\nsec-fetch-site: same-origin\r\ncontent-length: 900\r\n\r\nkey=",
        "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ];
    let mut attack = Vec::new();
    for i in 0..ATTACK {
        attack.push(say(server.port, halves[i % halves.len()]));
        if i % 50 == 0 {
            assert_eq!(health(server.port), "HTTP/1.1 200 OK", "after {i}");
        }
    }
    for _ in 0..20 {
        assert_eq!(health(server.port), "HTTP/1.1 200 OK", "with all of them");
    }
    let files = format!("/proc/{}/fd", server.process.0.id());
    let files = std::fs::read_dir(files).unwrap().count();
    assert!(files < 700, "{files} open files");
    let log = logged(dir.path());
    assert!(log.contains("the limit of open files") && log.contains("1024"), "{log}");
    wait_until("the log says it", PATIENCE, || {
        logged(dir.path()).contains("connections were closed by a limit or a timeout")
    });
    drop(attack);
    assert_eq!(health(server.port), "HTTP/1.1 200 OK");
}

#[test]
fn the_soft_limit_of_files_is_raised_and_said() {
    let dir = tempfile::tempdir().unwrap();
    let server = up(dir.path(), "ulimit -S -n 256", &["--set", "server.connections_max=1000"]);
    assert_eq!(health(server.port), "HTTP/1.1 200 OK");
    let limits =
        std::fs::read_to_string(format!("/proc/{}/limits", server.process.0.id())).unwrap();
    let files = limits.lines().find(|l| l.starts_with("Max open files")).unwrap();
    assert!(files.split_whitespace().nth(3).unwrap().parse::<u64>().unwrap() > 1_000, "{files}");
    let log = logged(dir.path());
    assert!(log.contains("raised the limit of open files"), "{log}");
}

#[test]
fn what_is_sent_by_halves_is_closed_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let short = ["header", "body", "idle"].map(|k| format!("server.{k}_timeout_seconds=0.3"));
    let settings: Vec<&str> = short.iter().flat_map(|s| ["--set", s]).collect();
    let server = up(dir.path(), ":", &settings);
    let rest = |mut stream: TcpStream| {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let post = "POST /v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{";
    assert_eq!(rest(say(server.port, "")), "");
    assert_eq!(rest(say(server.port, "GET /healthz HTTP/1.1\r\nhost: loc")), "");
    let idle = rest(say(server.port, "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"));
    assert!(idle.starts_with("HTTP/1.1 200"), "{idle}");
    let half = rest(say(server.port, post));
    assert!(
        half.starts_with("HTTP/1.1 408") && half.contains("server.body_timeout_seconds"),
        "{half}"
    );
    // A live stream that is quiet for longer than any of the timeouts goes on, and so does a long poll.
    let asked =
        run(dir.path(), &server, &["job", "submit", "ask", "{\"question\": \"?\"}", "--json"], &[]);
    let job: Value =
        serde_json::from_str(&said(&asked)).unwrap_or_else(|e| panic!("{e}: {asked:?}"));
    let id = job["id"].as_str().expect("an id");
    let live = format!(
        "GET /v1/jobs/{id}/events HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n"
    );
    let live = say(server.port, &live);
    let poll = format!(
        "GET /v1/jobs/{id}?wait=2 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    );
    let poll = rest(say(server.port, &poll));
    assert!(poll.starts_with("HTTP/1.1 200"), "{poll}");
    let signal = run(dir.path(), &server, &["job", "cancel", id], &[]);
    assert!(signal.status.success(), "{}", complained(&signal));
    let mut lines = BufReader::new(live).lines().map_while(Result::ok);
    assert!(lines.any(|line| line == "event: end"), "the stream is alive");
}

/// A command against a server, with these variables.
fn run(dir: &Path, server: &Server, words: &[&str], variables: &[(&str, &Path)]) -> Output {
    let mut command = tenure();
    command.args(words).args(["--store", "sqlite:data"]).current_dir(dir);
    command.env("TENURE_SERVER", &server.url);
    for (name, value) in variables {
        command.env(name, value);
    }
    command.output().expect("it runs")
}

/// Signs certificates.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { pem, issuer: Issuer::new(params, key) }
    }

    /// Writes a certificate and its key as `NAME.crt` and `NAME.key`.
    fn sign(&self, dir: &Path, name: &str, host: &str, expired: bool) {
        let mut params = CertificateParams::new([host.to_owned()]).unwrap();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        if expired {
            params.not_before = date_time_ymd(2020, 1, 1);
            params.not_after = date_time_ymd(2021, 1, 1);
        }
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        std::fs::write(dir.join(format!("{name}.key")), key.serialize_pem()).unwrap();
        std::fs::write(dir.join(format!("{name}.crt")), certificate).unwrap();
    }
}

const TLS: [&str; 6] = [
    "--set",
    "server.tls_certificate_file=server.crt",
    "--set",
    "server.tls_key_file=server.key",
    "--set",
    "server.tls_reload_seconds=0.1",
];

#[test]
fn commands_say_what_is_wrong_with_a_certificate_and_new_ones_are_taken() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    std::fs::write(at.join("ca.crt"), &ours.pem).unwrap();
    ours.sign(at, "server", "127.0.0.1", false);
    let server = up(at, ":", &TLS);
    assert!(server.url.starts_with("https://127.0.0.1:"), "{}", server.url);
    let ca = at.join("ca.crt");
    let trusts = [("TENURE_CLIENT_CA_FILE", &*ca)];
    let list = |trusts: &[(&str, &Path)]| run(at, &server, &["job", "list"], trusts);
    let good = list(&trusts);
    assert!(good.status.success(), "{}", complained(&good));
    let stranger = complained(&list(&[]));
    assert!(stranger.contains("TENURE_CLIENT_CA_FILE"), "{stranger}");
    // The server reads each of them without a restart; the last one is good again.
    let bad = [
        (&ours, "elsewhere.example", false, "a name that is in its certificate"),
        (&ours, "127.0.0.1", true, "has expired"),
        (&theirs, "127.0.0.1", false, "does not trust"),
    ];
    for (authority, host, expired, expected) in bad {
        authority.sign(at, "server", host, expired);
        wait_until(expected, PATIENCE, || complained(&list(&trusts)).contains(expected));
    }
    std::fs::write(at.join("server.crt"), "no certificate").unwrap();
    wait_until("the log names the bad file", PATIENCE, || {
        logged(at).contains("the old ones stay in use")
    });
    assert!(complained(&list(&trusts)).contains("does not trust"), "the last good pair is served");
    ours.sign(at, "server", "127.0.0.1", false);
    wait_until("the good one", PATIENCE, || list(&trusts).status.success());
    let doctor = run(at, &server, &["doctor", "--server", &server.url], &trusts);
    assert!(!complained(&doctor).contains("TENURE_CLIENT"), "{}", complained(&doctor));
}

#[test]
fn the_documented_commands_make_a_certificate() {
    let page = include_str!("../../../../docs/security.md");
    let block = page.split("```sh\n").nth(1).expect("a block for the shell");
    let block = block.split("```").next().expect("its end");
    let dir = tempfile::tempdir().unwrap();
    let made =
        Command::new("sh").args(["-e", "-c", block]).current_dir(dir.path()).output().unwrap();
    assert!(made.status.success(), "{}", complained(&made));
    let files = ["server.tls_certificate_file=tls.crt", "server.tls_key_file=tls.key"];
    let server = up(dir.path(), ":", &["--set", files[0], "--set", files[1]]);
    let ca = dir.path().join("ca.crt");
    let list = run(dir.path(), &server, &["job", "list"], &[("TENURE_CLIENT_CA_FILE", &*ca)]);
    assert!(list.status.success(), "{}", complained(&list));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_and_browsers_use_tls_and_show_certificates() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let ours = Authority::new("ours");
    std::fs::write(at.join("ca.crt"), &ours.pem).unwrap();
    ours.sign(at, "server", "127.0.0.1", false);
    ours.sign(at, "client", "worker", false);
    let mut settings = TLS.to_vec();
    settings.extend(["--set", "server.tls_client_ca_file=ca.crt"]);
    let server = up(at, ":", &settings);
    let (ca, certificate, key) = (at.join("ca.crt"), at.join("client.crt"), at.join("client.key"));
    let trusts = [("TENURE_CLIENT_CA_FILE", &*ca)];
    let nobody = run(at, &server, &["job", "list"], &trusts);
    assert!(
        complained(&nobody).contains("TENURE_CLIENT_CERTIFICATE_FILE"),
        "{}",
        complained(&nobody)
    );
    let shows = [
        trusts[0],
        ("TENURE_CLIENT_CERTIFICATE_FILE", &*certificate),
        ("TENURE_CLIENT_KEY_FILE", &*key),
    ];
    assert!(run(at, &server, &["job", "list"], &shows).status.success());

    // A worker of its own serves a queue that the server does not.
    let mut worker = tenure();
    worker.args(["worker", "--queue", "elsewhere", "--json"]).current_dir(at);
    worker
        .env("TENURE_SERVER", &server.url)
        .env("TENURE_API_KEY", administrators_key_of(at, "sqlite:data"));
    worker.envs(shows);
    let _worker = Guarded(worker.stdout(Stdio::null()).spawn().expect("it starts"));
    let plan = json!({ "version": 1, "steps": { "a": { "value": 7 } } }).to_string();
    std::fs::write(at.join("plan.json"), plan).unwrap();
    let words =
        ["job", "submit", "--plan", "plan.json", "--queue", "elsewhere", "--wait", "--json"];
    let done = run(at, &server, &words, &shows);
    assert!(said(&done).contains("\"completed\""), "{} {}", said(&done), complained(&done));

    let root = reqwest::Certificate::from_pem(ours.pem.as_bytes()).unwrap();
    let both = [std::fs::read(&key).unwrap(), std::fs::read(&certificate).unwrap()].concat();
    let browser = Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .tls_built_in_root_certs(false)
        .add_root_certificate(root)
        .identity(reqwest::Identity::from_pem(&both).unwrap())
        .build()
        .unwrap();
    let key = administrators_key_of(at, "sqlite:data");
    let sign_in = browser
        .post(format!("{}/console/sign-in", server.url))
        .header("sec-fetch-site", "same-origin")
        .body(format!("key={key}"));
    let answer = sign_in.send().await.unwrap();
    assert_eq!(answer.headers()["strict-transport-security"], "max-age=31536000");
    let cookie = answer.headers()["set-cookie"].to_str().unwrap();
    assert!(cookie.contains("; Secure") && cookie.contains("; HttpOnly"), "{cookie}");
}

#[test]
fn plain_http_for_other_machines_stops_at_start_with_the_fix() {
    let dir = tempfile::tempdir().unwrap();
    for (words, key) in [
        (
            vec!["server", "--store", "sqlite:data", "--set", "server.listen=0.0.0.0:0"],
            "server.listen",
        ),
        (
            vec![
                "collector",
                "--redis",
                "none",
                "--server",
                "http://127.0.0.1:1",
                "--listen",
                "0.0.0.0:0",
            ],
            "collector.listen",
        ),
    ] {
        let stopped = tenure().args(words).current_dir(dir.path()).output().unwrap();
        let why = complained(&stopped);
        assert!(!stopped.status.success(), "{key}");
        for part in [key, "server.tls_certificate_file", "server.plain_http"] {
            assert!(why.contains(part), "{part} in {why}");
        }
    }
}

/// Streams at once.
const STREAMS: usize = 1_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_of_a_thousand_live_streams_comes_back() {
    tenure_edge::raise_file_limit(8_192);
    let dir = tempfile::tempdir().unwrap();
    let server = up(dir.path(), ":", &[]);
    let asked =
        run(dir.path(), &server, &["job", "submit", "ask", "{\"question\": \"?\"}", "--json"], &[]);
    let job: Value = serde_json::from_str(&said(&asked)).unwrap();
    let id = job["id"].as_str().expect("an id");
    let live = format!(
        "GET /v1/jobs/{id}/events HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n"
    );
    let round = || {
        let streams: Vec<TcpStream> = (0..STREAMS).map(|_| say(server.port, &live)).collect();
        for mut stream in &streams {
            let mut beginning = [0; 12];
            stream.read_exact(&mut beginning).unwrap();
            assert_eq!(&beginning, b"HTTP/1.1 200");
        }
        let during = resident_kib(&server);
        drop(streams);
        during
    };
    let before = resident_kib(&server);
    let during = round();
    let again = round();
    println!("before {before} KiB, with {STREAMS} streams {during} KiB, again {again} KiB");
    // What is not given back is used again, and most is given back.
    assert!(again < during + 4_096, "before {before}, first {during}, second {again} KiB");
    patience::until("memory comes back", async || {
        resident_kib(&server) < before + (during - before) / 2 + 4_096
    })
    .await;
    println!("after {} KiB", resident_kib(&server));
}
