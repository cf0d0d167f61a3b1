//! A NATS of a case's own, and somebody who listens on it. Between it and the server stands a line that can be cut;
//! the listener has a way of its own, so it hears whatever reached the bus and nothing else.
//!
//! The listener speaks the few words of the protocol itself. It is the witness of what is told outside, and must not
//! share the code that tells it.

use super::{
    processes::{Hand, PATIENCE, find_program},
    proxy::{Proxy, Weather},
};
use serde_json::Value;
use std::{
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tenure::commands::Failure;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    process::Command,
    task::AbortHandle,
};

const PROGRAM: &str = "nats-server";

/// A message as it was heard.
#[derive(Clone, Debug, PartialEq)]
pub struct Heard {
    /// Where.
    pub subject: String,
    /// The id by which a repetition is known.
    pub id: String,
    /// What it says.
    pub body: Value,
}

/// A bus, the line to it, and its listener. Gone when dropped.
pub struct Bus {
    _server: Hand,
    line: Proxy,
    heard: Arc<Mutex<Vec<Heard>>>,
    says: Arc<tokio::sync::Mutex<OwnedWriteHalf>>,
    listening: AbortHandle,
}

impl Bus {
    /// Whether one can be started here.
    pub fn is_here() -> bool {
        find_program(PROGRAM).is_some()
    }

    /// Starts one; `dir` is for its log.
    pub async fn start(dir: &Path) -> Result<Self, Failure> {
        std::fs::create_dir_all(dir)?;
        let program = find_program(PROGRAM)
            .ok_or_else(|| Failure::System(format!("there is no {PROGRAM}")))?;
        let port = super::cluster::free_port()?;
        let mut command = Command::new(program);
        command.args(["--addr", "127.0.0.1", "--port", &port.to_string()]);
        let mut server = Hand::start(command, dir, "nats")?;
        server.until_said("Server is ready").await?;
        let address = format!("127.0.0.1:{port}");
        let line = Proxy::open(address.clone()).await?;
        let (reads, mut says) = TcpStream::connect(address).await?.into_split();
        let mut reads = BufReader::new(reads);
        says.write_all(
            b"CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true,\"lang\":\"drill\",\"version\":\"1\"}\r\n\
              SUB evt.> 1\r\nSUB cmd.agent.> 2\r\nPING\r\n",
        )
        .await?;
        let subscribed = async {
            let mut line = String::new();
            while reads.read_line(&mut line).await? > 0 && !line.starts_with("PONG") {
                line.clear();
            }
            Ok::<bool, std::io::Error>(line.starts_with("PONG"))
        };
        let ready = tokio::time::timeout(PATIENCE, subscribed).await;
        if !matches!(ready, Ok(Ok(true))) {
            return Err(Failure::System(format!("{PROGRAM} does not speak with the drill")));
        }
        let (heard, says) =
            (Arc::<Mutex<Vec<Heard>>>::default(), Arc::new(tokio::sync::Mutex::new(says)));
        let (tray, answers) = (heard.clone(), says.clone());
        #[expect(clippy::disallowed_methods, reason = "the listener is process edge")]
        let listening = tokio::spawn(async move {
            if let Err(e) = listen(reads, &answers, &tray).await {
                tracing::debug!(error = %e, "the listener of a drill has ended");
            }
        });
        Ok(Bus { _server: server, line, heard, says, listening: listening.abort_handle() })
    }

    /// Where the server finds it: behind the line.
    pub fn url(&self) -> String {
        format!("nats://{}", self.line.address())
    }

    /// From now on the line is so.
    pub fn turn(&self, weather: Weather) {
        self.line.turn(weather);
    }

    /// Everything that was heard, in order.
    pub fn heard(&self) -> Vec<Heard> {
        lock(&self.heard).clone()
    }

    /// Says something itself.
    pub async fn publish(&self, subject: &str, body: &str) -> Result<(), Failure> {
        let words = format!("PUB {subject} {}\r\n{body}\r\n", body.len());
        Ok(self.says.lock().await.write_all(words.as_bytes()).await?)
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

fn lock(heard: &Mutex<Vec<Heard>>) -> MutexGuard<'_, Vec<Heard>> {
    // Nothing panics under this lock.
    heard.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn listen(
    mut reads: BufReader<OwnedReadHalf>,
    answers: &tokio::sync::Mutex<OwnedWriteHalf>,
    tray: &Mutex<Vec<Heard>>,
) -> std::io::Result<()> {
    let mut line = String::new();
    while reads.read_line(&mut line).await? > 0 {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["PING"] => answers.lock().await.write_all(b"PONG\r\n").await?,
            ["MSG", subject, .., bytes] => {
                let (subject, bytes) = ((*subject).to_owned(), number(bytes));
                let payload = payload(&mut reads, bytes).await?;
                lock(tray).push(read(subject, "", &payload));
            }
            ["HMSG", subject, .., headers, bytes] => {
                let (subject, headers, bytes) =
                    ((*subject).to_owned(), number(headers), number(bytes));
                let payload = payload(&mut reads, bytes).await?;
                let (head, body) = payload.split_at(headers.min(payload.len()));
                lock(tray).push(read(subject, &String::from_utf8_lossy(head), body));
            }
            _ => {}
        }
        line.clear();
    }
    Ok(())
}

fn number(word: &str) -> usize {
    word.parse().unwrap_or_default()
}

async fn payload(reads: &mut BufReader<OwnedReadHalf>, bytes: usize) -> std::io::Result<Vec<u8>> {
    let mut payload = vec![0; bytes + 2];
    reads.read_exact(&mut payload).await?;
    payload.truncate(bytes);
    Ok(payload)
}

fn read(subject: String, head: &str, body: &[u8]) -> Heard {
    let id = head.lines().find_map(|l| l.strip_prefix("Nats-Msg-Id:")).unwrap_or_default();
    let body = serde_json::from_slice(body).unwrap_or(Value::Null);
    Heard { subject, id: id.trim().to_owned(), body }
}
