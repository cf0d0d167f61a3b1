//! A NATS server of a test's own: it can be killed, stopped in the middle of everything, and started again where it was.

use std::{
    io::{BufRead as _, BufReader},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

/// A server on a free port of this machine. Killed when dropped.
pub struct NatsServer {
    port: u16,
    jetstream: Option<PathBuf>,
    more: Vec<String>,
    child: Option<Child>,
}

impl NatsServer {
    /// A server that keeps nothing.
    pub fn start() -> Self {
        Self::with(None, &[])
    }

    /// A server with a JetStream in this directory.
    pub fn with_jetstream(directory: &Path) -> Self {
        Self::with(Some(directory), &[])
    }

    /// A server with further arguments.
    pub fn with(jetstream: Option<&Path>, more: &[&str]) -> Self {
        let mut server = Self::not_yet();
        server.jetstream = jetstream.map(Path::to_owned);
        server.more = more.iter().map(|m| (*m).to_owned()).collect();
        server.start_again();
        server
    }

    /// An address at which nobody listens yet.
    pub fn not_yet() -> Self {
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = free.local_addr().expect("its address").port();
        NatsServer { port, jetstream: None, more: Vec::new(), child: None }
    }

    /// Where it is.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Starts it, where it was before. Returns when it answers.
    pub fn start_again(&mut self) {
        assert!(self.child.is_none(), "it runs");
        // Debian keeps it outside of an ordinary user's PATH.
        let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new("nats-server");
        command.env("PATH", path).args(["--addr", "127.0.0.1", "--port", &self.port.to_string()]);
        if let Some(directory) = &self.jetstream {
            command.arg("--jetstream").arg("--store_dir").arg(directory);
        }
        command.args(&self.more).stderr(Stdio::piped()).stdout(Stdio::null()).stdin(Stdio::null());
        let mut child = command.spawn().expect("nats-server: ./check installs it");
        let mut lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
        let mut said = Vec::new();
        loop {
            let line = lines.next().and_then(Result::ok);
            let line = line.unwrap_or_else(|| panic!("nats-server ended: {said:#?}"));
            if line.contains("Server is ready") {
                break;
            }
            said.push(line);
        }
        // Somebody has to read on, or a full pipe would stop it.
        std::thread::spawn(move || lines.count());
        self.child = Some(child);
    }

    /// Kills it at once, as a power cut would (`SIGKILL`).
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stops it without ending anything: connections stand, and nobody answers (`SIGSTOP`).
    pub fn freeze(&self) {
        self.signal("-STOP");
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let child = self.child.as_ref().expect("it runs");
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status();
        assert!(sent.is_ok_and(|s| s.success()), "kill {signal}");
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.kill();
    }
}
