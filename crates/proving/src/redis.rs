//! A Redis of a test's own: it can be killed, stopped in the middle of everything, and started again where it was.

use std::{
    io::{BufRead as _, BufReader},
    net::TcpListener,
    process::{Child, Command, Stdio},
};

/// A server on a free port of this machine, which keeps nothing. Killed when dropped.
pub struct RedisServer {
    port: u16,
    more: Vec<String>,
    child: Option<Child>,
}

impl RedisServer {
    /// A server that lets everybody in.
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// A server with further arguments, such as `["--requirepass", "secret"]`.
    pub fn with(more: &[&str]) -> Self {
        let mut server = Self::not_yet();
        server.more = more.iter().map(|m| (*m).to_owned()).collect();
        server.start_again();
        server
    }

    /// An address at which nobody listens yet.
    pub fn not_yet() -> Self {
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = free.local_addr().expect("its address").port();
        RedisServer { port, more: Vec::new(), child: None }
    }

    /// Where it is.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Where it is, as settings write it: `HOST:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Starts it, where it was before. Returns when it answers.
    pub fn start_again(&mut self) {
        assert!(self.child.is_none(), "it runs");
        let port = self.port.to_string();
        let mut command = Command::new("redis-server");
        // No file is written, so the directory is never used.
        command.args(["--bind", "127.0.0.1", "--port", &port, "--save", "", "--appendonly", "no"]);
        command.args(&self.more).stdout(Stdio::piped()).stderr(Stdio::null()).stdin(Stdio::null());
        let mut child = command.spawn().expect("redis-server: ./check installs it");
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let mut said = Vec::new();
        loop {
            let line = lines.next().and_then(Result::ok);
            let line = line.unwrap_or_else(|| panic!("redis-server ended: {said:#?}"));
            if line.contains("eady to accept connections") {
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

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}
