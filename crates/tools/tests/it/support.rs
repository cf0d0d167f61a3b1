//! A call to make, and somebody to talk to.

use serde_json::Value;
use std::{fmt::Debug, future::Future, sync::Arc, time::Duration};
use tenure_kernel::{ids::EntityId, time::Timestamp};
use tenure_steps::tool::{CallParts, Progress, ToolCtx, ToolError, ToolSpec};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// Longer than anything here takes; only a test that fails waits for it.
pub const LONG: Duration = Duration::from_secs(20);

/// One call and what its caller holds.
pub struct Call {
    pub ctx: ToolCtx,
    pub stop: watch::Sender<bool>,
    pub progress: Arc<Progress>,
}

impl Call {
    pub fn new() -> Self {
        Self::nth(1, LONG)
    }

    pub fn within(timeout: Duration) -> Self {
        Self::nth(1, timeout)
    }

    pub fn nth(call: u32, timeout: Duration) -> Self {
        let (stop, stopped) = watch::channel(false);
        let ctx = ToolCtx::new(CallParts {
            job: EntityId::fixed(1, 7),
            step: "3".into(),
            key: "key-of-this-call".into(),
            epoch: 5,
            call,
            not_after: Timestamp::from_micros(1_700_000_000_000_000),
            timeout,
            tenant: "t".into(),
            stop: stopped,
        });
        let progress = ctx.shown();
        Call { ctx, stop, progress }
    }

    pub async fn of(&self, tool: &ToolSpec, input: Value) -> Result<Value, ToolError> {
        in_time("the call", tool.tool.call(self.ctx.clone(), input)).await
    }

    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Returns when the call has shown this.
    pub async fn shows(&self, text: &str) {
        until(&format!("the call to show {text:?}"), || self.progress.note().contains(text)).await;
    }
}

/// Fails a test that hangs, by name.
pub async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(LONG * 2, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what} hangs"),
    }
}

/// Waits for a condition that nobody signals.
pub async fn until(what: &str, condition: impl Fn() -> bool) {
    in_time(what, async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

#[track_caller]
pub fn retryable(result: Result<impl Debug, ToolError>) -> String {
    match result {
        Err(ToolError::Retryable(why)) => why,
        other => panic!("not retryable: {other:?}"),
    }
}

#[track_caller]
pub fn permanent(result: Result<impl Debug, ToolError>) -> String {
    match result {
        Err(ToolError::Permanent(why)) => why,
        other => panic!("not permanent: {other:?}"),
    }
}

#[track_caller]
pub fn unknown(result: Result<impl Debug, ToolError>) -> String {
    match result {
        Err(ToolError::Unknown(why)) => why,
        other => panic!("not unknown: {other:?}"),
    }
}

/// A listener that does what a test does by hand.
pub struct Peer(TcpListener);

impl Peer {
    pub async fn new() -> Self {
        Peer(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.0.local_addr().unwrap())
    }

    pub async fn accept(&self) -> Conn {
        Conn(in_time("a connection", self.0.accept()).await.unwrap().0)
    }

    /// Answers one request; returns what it was.
    pub async fn once(&self, answer: &str) -> String {
        let mut conn = self.accept().await;
        let request = conn.request().await;
        conn.say(answer).await;
        request
    }
}

pub struct Conn(pub TcpStream);

impl Conn {
    /// Reads one request, head and body, as text.
    pub async fn request(&mut self) -> String {
        let mut bytes = Vec::new();
        loop {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let length =
                    header(head, "content-length").and_then(|v| v.parse().ok()).unwrap_or(0);
                if body.len() >= length {
                    return text;
                }
            }
            let mut piece = [0; 4096];
            let n = in_time("a request", self.0.read(&mut piece)).await.unwrap();
            assert!(n > 0, "the connection closed after {text:?}");
            bytes.extend_from_slice(&piece[..n]);
        }
    }

    pub async fn say(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
        self.0.flush().await.unwrap();
    }

    /// Returns when the other side has closed.
    pub async fn closed(&mut self) {
        let mut rest = Vec::new();
        // A reset is an end as well.
        let _ = in_time("the end of a connection", self.0.read_to_end(&mut rest)).await;
    }
}

/// A header of a request in text.
pub fn header<'a>(request: &'a str, name: &str) -> Option<&'a str> {
    let head = request.split("\r\n\r\n").next()?;
    head.lines().skip(1).find_map(|line| {
        let (n, value) = line.split_once(':')?;
        n.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

/// An answer in text.
pub fn answer(status: &str, headers: &[&str], body: &str) -> String {
    let headers: String = headers.iter().map(|h| format!("{h}\r\n")).collect();
    format!(
        "HTTP/1.1 {status}\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}

/// Allows the servers of these tests.
pub fn loopback() -> tenure_tools::Egress {
    tenure_tools::Egress::read("*=127.0.0.0/8+::1").unwrap()
}
