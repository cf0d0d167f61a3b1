//! A real nginx in front of the server, as docs/security.md sets it up, and as people do who have not read it.

use crate::support::{Guarded, administrators_key_of, tenure, wait_until};
use std::{
    io::{BufRead as _, BufReader},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(30);

fn up(dir: &Path, more: &[&str]) -> (Guarded, String) {
    let mut command = tenure();
    command.args(["up", "--json", "--store", "sqlite:data", "--set", "server.listen=127.0.0.1:0"]);
    command.args(["--set", "log.filter=error"]).args(more).current_dir(dir);
    let mut child = Guarded(command.stdout(Stdio::piped()).spawn().expect("it starts"));
    let mut line = String::new();
    let out = child.0.stdout.take().expect("it is piped");
    BufReader::new(out).read_line(&mut line).expect("its first line");
    let said: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    (child, said["url"].as_str().expect("its address").trim_start_matches("http://").to_owned())
}

/// Debian keeps servers outside of an ordinary user's PATH.
fn nginx_binary() -> PathBuf {
    let path = format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default());
    let found = std::env::split_paths(&path).map(|dir| dir.join("nginx")).find(|f| f.is_file());
    found.expect("nginx, which ./check installs")
}

/// nginx with this `location`, at a free port of this machine. The port is free when it is looked for.
fn nginx(dir: &Path, name: &str, location: &str) -> (Guarded, u16) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let home = dir.join(name);
    std::fs::create_dir_all(&home).unwrap();
    let at = home.display();
    let paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let paths: String = paths.iter().map(|p| format!("{p}_temp_path {at}/{p};\n")).collect();
    let config = format!(
        "daemon off; master_process off; pid {at}/pid; error_log {at}/error.log;\nevents {{}}\n\
         http {{ access_log off;\n{paths}server {{ listen 127.0.0.1:{port};\n{location}\n}} }}\n"
    );
    let file = home.join("nginx.conf");
    std::fs::write(&file, config).unwrap();
    let mut command = Command::new(nginx_binary());
    command.arg("-p").arg(&home).arg("-c").arg(&file).arg("-e").arg(home.join("start.log"));
    let child = Guarded(command.stdin(Stdio::null()).spawn().expect("nginx starts"));
    wait_until("nginx", PATIENCE, || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    (child, port)
}

/// The `location` of the documentation, with the server of this test.
fn documented(server: &str) -> String {
    let page = include_str!("../../../../docs/security.md");
    let block = page.split("```nginx\n").nth(1).expect("a block for nginx");
    let block = block.split("```").next().expect("its end");
    let location = &block[block.find("location").expect("a location")..];
    let location = &location[..=location.find('}').expect("its end")];
    assert!(location.contains("proxy_pass http://127.0.0.1:7777;"), "{location}");
    location.replace("127.0.0.1:7777", server)
}

async fn status(port: u16, host: Option<&str>, key: Option<&str>) -> u16 {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let mut request = client.get(format!("http://127.0.0.1:{port}/v1/jobs"));
    if let Some(host) = host {
        request = request.header("host", host);
    }
    if let Some(key) = key {
        request = request.bearer_auth(key);
    }
    request.send().await.unwrap().status().as_u16()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_comes_through_a_proxy_needs_a_key() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, server) = up(dir.path(), &[]);
    let key = administrators_key_of(dir.path(), "sqlite:data");
    let direct = server.rsplit(':').next().unwrap().parse().unwrap();
    assert_eq!(status(direct, None, None).await, 200, "a caller on this machine");
    let bare = format!("location / {{ proxy_pass http://{server}; }}");
    let forwards = format!(
        "location / {{ proxy_pass http://{server}; proxy_http_version 1.1; proxy_set_header X-Real-IP $remote_addr; }}"
    );
    for (name, location) in
        [("documented", documented(&server)), ("bare", bare), ("forwards", forwards)]
    {
        let (_nginx, port) = nginx(dir.path(), name, &location);
        for host in [None, Some("tenure.example"), Some("localhost")] {
            assert_eq!(status(port, host, None).await, 401, "{name} {host:?}");
            assert_eq!(status(port, host, Some(&key)).await, 200, "{name} {host:?}");
        }
    }
}

/// This proxy cannot be recognised; the documentation says to require keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_requires_keys_takes_nobody_without_one() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, server) = up(dir.path(), &["--set", "server.require_keys=true"]);
    let key = administrators_key_of(dir.path(), "sqlite:data");
    let silent = format!("location / {{ proxy_pass http://{server}; proxy_http_version 1.1; }}");
    let (_nginx, port) = nginx(dir.path(), "silent", &silent);
    let direct = server.rsplit(':').next().unwrap().parse().unwrap();
    for port in [port, direct] {
        assert_eq!(status(port, None, None).await, 401);
        assert_eq!(status(port, None, Some(&key)).await, 200);
    }
}
