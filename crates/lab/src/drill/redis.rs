//! A Redis of a case's own, and somebody who listens on `ff:events:task`. Between it and the collectors stands a line that can be
//! cut; the listener has a way of its own, so it hears whatever was published and nothing else.
//!
//! Like the listener on a [`bus`](super::bus) it speaks the few words of the protocol itself: the witness of what is told must not
//! share the code that tells it.

use super::{
    processes::{Hand, PATIENCE, find_program},
    proxy::{Proxy, Weather},
};
use serde_json::Value;
use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tenure::commands::Failure;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
    process::Command,
    task::AbortHandle,
};

const PROGRAM: &str = "redis-server";
const CHANNEL: &str = "ff:events:task";

/// A Redis, the line to it, and its listener. Gone when dropped.
pub struct Redis {
    server: Hand,
    port: u16,
    dir: PathBuf,
    line: Proxy,
    heard: Arc<Mutex<Vec<Value>>>,
    listening: AbortHandle,
}

impl Redis {
    /// Whether one can be started here.
    pub fn is_here() -> bool {
        find_program(PROGRAM).is_some()
    }

    /// Starts one; `dir` is for its log.
    pub async fn start(dir: &Path) -> Result<Self, Failure> {
        let port = super::cluster::free_port()?;
        let server = serve(dir, port).await?;
        let line = Proxy::open(format!("127.0.0.1:{port}")).await?;
        let heard = Arc::<Mutex<Vec<Value>>>::default();
        let listening = listen(port, heard.clone()).await?;
        Ok(Redis { server, port, dir: dir.to_owned(), line, heard, listening })
    }

    /// Where collectors find it: behind the line.
    pub fn address(&self) -> String {
        self.line.address()
    }

    /// From now on the line is so.
    pub fn turn(&self, weather: Weather) {
        self.line.turn(weather);
    }

    /// SIGKILL.
    pub async fn kill(&mut self) -> Result<(), Failure> {
        self.server.kill().await
    }

    /// Starts it again, where it was, and listens before anybody else can reach it: what is published while nobody listens is
    /// heard by nobody, and is no loss of a collector's.
    pub async fn start_again(&mut self) -> Result<(), Failure> {
        self.line.turn(Weather::Cut);
        self.server = serve(&self.dir, self.port).await?;
        self.listening.abort();
        self.listening = listen(self.port, self.heard.clone()).await?;
        self.line.turn(Weather::Clear);
        Ok(())
    }

    /// The messages so far, in order.
    pub fn heard(&self) -> Vec<Value> {
        lock(&self.heard).clone()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

fn lock(heard: &Mutex<Vec<Value>>) -> MutexGuard<'_, Vec<Value>> {
    // Nothing panics under this lock.
    heard.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(dir: &Path, port: u16) -> Result<Hand, Failure> {
    let missing = || Failure::System(format!("there is no {PROGRAM}"));
    let mut command = Command::new(find_program(PROGRAM).ok_or_else(missing)?);
    let port_text = port.to_string();
    command.args(["--bind", "127.0.0.1", "--port", &port_text, "--save", "", "--appendonly", "no"]);
    let server = Hand::start(command, dir, PROGRAM)?;
    // Its log may be that of an earlier start, so its word is not enough.
    let answering = async {
        while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            tokio::time::sleep(super::processes::LOOK).await;
        }
    };
    match tokio::time::timeout(PATIENCE, answering).await {
        Ok(()) => Ok(server),
        Err(_) => Err(Failure::System(format!("{PROGRAM}: {}", server.last_words()))),
    }
}

/// Listens from now on: it has subscribed when this returns.
async fn listen(port: u16, tray: Arc<Mutex<Vec<Value>>>) -> Result<AbortHandle, Failure> {
    let (reads, mut says) = TcpStream::connect(("127.0.0.1", port)).await?.into_split();
    let mut reads = BufReader::new(reads);
    says.write_all(format!("SUBSCRIBE {CHANNEL}\r\n").as_bytes()).await?;
    let subscribed = tokio::time::timeout(PATIENCE, words(&mut reads)).await;
    if !matches!(&subscribed, Ok(Ok(words)) if words.first().is_some_and(|w| w == "subscribe")) {
        return Err(Failure::System(format!("{PROGRAM} does not speak with the drill")));
    }
    #[expect(clippy::disallowed_methods, reason = "the listener is process edge")]
    let listening = tokio::spawn(async move {
        // Who listens must not hang up.
        let _says = says;
        while let Ok(words) = words(&mut reads).await {
            if let [kind, _, payload] = words.as_slice()
                && kind == "message"
            {
                lock(&tray).push(serde_json::from_str(payload).unwrap_or(Value::Null));
            }
        }
    });
    Ok(listening.abort_handle())
}

/// One answer: an array of texts and numbers.
async fn words(reads: &mut (impl tokio::io::AsyncBufRead + Unpin)) -> io::Result<Vec<String>> {
    let bad = || io::Error::new(io::ErrorKind::InvalidData, "no array of texts");
    let count = header(reads, '*').await?;
    let mut words = Vec::new();
    for _ in 0..count {
        let line = line(reads).await?;
        let word = match line.split_at_checked(1).ok_or_else(bad)? {
            (":", number) => number.to_owned(),
            ("$", length) => {
                let length: usize = length.parse().map_err(|_| bad())?;
                let mut bytes = vec![0; length + 2];
                reads.read_exact(&mut bytes).await?;
                bytes.truncate(length);
                String::from_utf8_lossy(&bytes).into_owned()
            }
            _ => return Err(bad()),
        };
        words.push(word);
    }
    Ok(words)
}

async fn header(
    reads: &mut (impl tokio::io::AsyncBufRead + Unpin),
    sign: char,
) -> io::Result<usize> {
    let line = line(reads).await?;
    let number = line.strip_prefix(sign).and_then(|n| n.parse().ok());
    number.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, line))
}

async fn line(reads: &mut (impl tokio::io::AsyncBufRead + Unpin)) -> io::Result<String> {
    let mut line = String::new();
    match reads.read_line(&mut line).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(line.trim_end().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answers_are_read_as_arrays_of_words() {
        let wire: &[u8] = b"*3\r\n$9\r\nsubscribe\r\n$2\r\nab\r\n:1\r\n*3\r\n$7\r\nmessage\r\n$2\r\nab\r\n$7\r\n{\"a\"\r\n}\r\n+PONG\r\n";
        let mut reads = BufReader::new(wire);
        assert_eq!(words(&mut reads).await.unwrap(), ["subscribe", "ab", "1"]);
        assert_eq!(words(&mut reads).await.unwrap(), ["message", "ab", "{\"a\"\r\n}"]);
        assert!(words(&mut reads).await.is_err());
    }
}
