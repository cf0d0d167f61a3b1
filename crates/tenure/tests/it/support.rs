//! Starting the binary, waiting for conditions with a bound, and the private services of `./check`.

use std::{
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

/// The binary under test.
pub fn tenure() -> Command {
    clean(Command::new(crate::BINARY))
}

/// Without standard input and without the settings of the shell that runs the tests.
pub fn clean(mut command: Command) -> Command {
    command.stdin(Stdio::null());
    // Settings of whoever runs the tests must not reach the binary.
    let is_one = |name: &str| {
        name.starts_with("TENURE_") && !name.starts_with("TENURE_TEST_")
            || name.starts_with("FLOWFORGE_")
            || name.starts_with("KUBERNETES_SERVICE_")
            || name.starts_with("PGSSL")
            || name == "NODE_NAME"
    };
    for (name, _) in std::env::vars().filter(|(name, _)| is_one(name)) {
        command.env_remove(name);
    }
    command
}

/// Runs it to its end.
pub fn run(args: &[&str], dir: &Path) -> Output {
    tenure().args(args).current_dir(dir).output().expect("the binary starts")
}

/// What it said on standard output.
pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What it said on standard error.
pub fn complained(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A child that does not outlive the test.
pub struct Guarded(pub Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An address of the private services, or a clear word about how to get one.
pub fn service(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set: run the tests with ./check, or ./check with -- cargo test")
    })
}

/// Waits for a condition, no longer than the bound.
#[expect(clippy::disallowed_methods, reason = "a test waits for other processes on the real clock")]
pub fn wait_until(what: &str, bound: Duration, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < bound, "waited {bound:?} for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether `./check fast` runs the tests: the same promises with smaller numbers.
pub fn fast() -> bool {
    std::env::var_os("TENURE_CHECK_FAST").is_some()
}

/// A database of its own on the private Postgres, dropped with this value.
pub struct Database {
    /// Where it is.
    pub url: String,
    server: String,
    name: String,
}

/// Creates one.
pub fn own_database(purpose: &str) -> Database {
    let server = service("TENURE_TEST_POSTGRES");
    let name = format!("{purpose}_{}", std::process::id());
    admin(&server, &format!("CREATE DATABASE {name}"));
    let (base, _) = server.rsplit_once('/').expect("a URL with a database");
    Database { url: format!("{base}/{name}"), server, name }
}

impl Drop for Database {
    fn drop(&mut self) {
        admin(&self.server, &format!("DROP DATABASE {} WITH (FORCE)", self.name));
    }
}

fn admin(server: &str, sql: &str) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let (client, connection) =
            tokio_postgres::connect(server, tokio_postgres::NoTls).await.expect("connects");
        let statement = async {
            client.batch_execute(sql).await.expect("the statement runs");
            drop(client);
        };
        let (connected, ()) = futures_util::future::join(connection, statement).await;
        connected.expect("the connection ends well");
    });
}

/// The administrator's key of the server on this store: the one that it keeps in its directory, or a new one of a database.
pub fn administrators_key_of(dir: &std::path::Path, store: &str) -> String {
    let (text, member) = match store.strip_prefix("sqlite:") {
        Some(data) => {
            (std::fs::read_to_string(dir.join(data).join("admin.key")).expect("it is kept"), "key")
        }
        None => {
            let made = run(
                &["key", "create", "test", "--scope", "admin", "--json", "--store", store],
                dir,
            );
            (said(&made), "secret")
        }
    };
    let file: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    file[member].as_str().expect("a key").to_owned()
}
