//! An outside world: a process-local TCP server that counts what is done to it, one line per request.
//!
//! | request | answer |
//! |---|---|
//! | `ACT key name` | `OK n`: how often this key has acted |
//! | `PROBE key` | `YES n` or `NO` |
//! | `UNDO key` | `OK n` |
//!
//! It is the judge of "at most once": whatever the history says, this is what happened.

use serde::Serialize;
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// What was done under one key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Done {
    /// What it was called.
    pub name: String,
    /// How often it was asked to act.
    pub acts: u32,
    /// How often it was undone.
    pub undone: u32,
    /// How often it was asked about.
    pub probes: u32,
}

/// An outside world. Cheap to clone.
#[derive(Clone)]
pub struct Outside {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    done: Mutex<BTreeMap<String, Done>>,
    /// Names of acts, in the order in which they happened.
    order: Mutex<Vec<String>>,
    /// Names whose answer is held back until they are let go: the act has happened, nobody hears of it.
    held: watch::Sender<Vec<String>>,
    /// Names whose callers are hung up on after the act.
    cut: Mutex<Vec<String>>,
    /// Acts so far.
    acts: watch::Sender<u32>,
}

impl Outside {
    /// Listens on a free loopback port until dropped with its runtime.
    pub async fn open() -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            done: Mutex::default(),
            order: Mutex::default(),
            held: watch::Sender::new(Vec::new()),
            cut: Mutex::default(),
            acts: watch::Sender::new(0),
        });
        let serving = shared.clone();
        #[expect(clippy::disallowed_methods, reason = "the outside is process edge")]
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let shared = serving.clone();
                tokio::spawn(async move {
                    if let Err(e) = shared.answer(stream).await {
                        tracing::debug!(error = %e, "a caller of the outside went away");
                    }
                });
            }
        });
        Ok(Outside { address, shared })
    }

    /// Where it listens.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Everything that was done, by key.
    pub fn done(&self) -> BTreeMap<String, Done> {
        self.shared.done().clone()
    }

    /// The names of all acts, in the order in which they happened.
    pub fn order(&self) -> Vec<String> {
        lock(&self.shared.order).clone()
    }

    /// How often something of this name happened and was not undone.
    pub fn count(&self, name: &str) -> u32 {
        let done = self.shared.done();
        done.values().filter(|d| d.name == name).map(|d| d.acts.saturating_sub(d.undone)).sum()
    }

    /// Acts of this name happen, and their callers hear nothing until [`Outside::answer_all`].
    pub fn hold_answers_to(&self, name: &str) {
        self.shared.held.send_modify(|held| held.push(name.to_owned()));
    }

    /// Acts of this name happen, and the line breaks before their callers hear of it.
    pub fn hang_up_after(&self, name: &str) {
        lock(&self.shared.cut).push(name.to_owned());
    }

    /// Lets the callers of this name hear again.
    pub fn answer_to(&self, name: &str) {
        self.shared.held.send_modify(|held| held.retain(|n| n != name));
    }

    /// Lets everybody hear again.
    pub fn answer_all(&self) {
        self.shared.held.send_replace(Vec::new());
    }

    /// Returns when something of this name has happened so often.
    pub async fn until(&self, name: &str, count: u32) {
        let mut acts = self.shared.acts.subscribe();
        while self.count(name) < count {
            // The sender lives in `self`.
            let _ = acts.changed().await;
        }
    }
}

impl Shared {
    fn done(&self) -> MutexGuard<'_, BTreeMap<String, Done>> {
        lock(&self.done)
    }

    async fn answer(&self, stream: TcpStream) -> std::io::Result<()> {
        let (read, mut write) = stream.into_split();
        let mut lines = BufReader::new(read).lines();
        while let Some(line) = lines.next_line().await? {
            let mut words = line.split(' ');
            let (verb, key) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
            let name = words.next().unwrap_or("").to_owned();
            let answer = self.act(verb, key, &name);
            if verb == "ACT" {
                self.acts.send_modify(|n| *n += 1);
                let mut held = self.held.subscribe();
                let _ = held.wait_for(|names| !names.contains(&name)).await;
                if lock(&self.cut).contains(&name) {
                    return Ok(());
                }
            }
            write.write_all(format!("{answer}\n").as_bytes()).await?;
        }
        Ok(())
    }

    fn act(&self, verb: &str, key: &str, name: &str) -> String {
        let mut done = self.done();
        match verb {
            "ACT" => {
                let entry = done.entry(key.to_owned()).or_default();
                name.clone_into(&mut entry.name);
                entry.acts += 1;
                lock(&self.order).push(name.to_owned());
                format!("OK {}", entry.acts)
            }
            "UNDO" => match done.get_mut(key) {
                Some(entry) => {
                    // One undoing undoes one act: a second act under the key stays to be seen.
                    entry.undone = (entry.undone + 1).min(entry.acts);
                    format!("OK {}", entry.undone)
                }
                None => "OK 0".to_owned(),
            },
            "PROBE" => match done.get_mut(key) {
                Some(entry) => {
                    entry.probes += 1;
                    format!("YES {}", entry.acts)
                }
                None => "NO".to_owned(),
            },
            other => format!("WHAT {other:?}"),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds one of these.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One request, and the words of the answer. An error of the connection itself is `Err(None)`: nothing left.
pub async fn ask(address: &str, request: &str) -> Result<Vec<String>, Option<std::io::Error>> {
    // A line break in a name would be a second request.
    if request.contains(char::is_control) {
        return Err(None);
    }
    let mut stream = TcpStream::connect(address).await.map_err(|_| None)?;
    stream.write_all(format!("{request}\n").as_bytes()).await.map_err(Some)?;
    let mut line = String::new();
    let read = BufReader::new(stream).read_line(&mut line).await.map_err(Some)?;
    if read == 0 {
        return Err(Some(std::io::ErrorKind::UnexpectedEof.into()));
    }
    Ok(line.split_whitespace().map(str::to_owned).collect())
}
