//! Postgres NOTIFY, for servers that share a database and nothing else.
//!
//! A NOTIFY inside a batch would serialise all commits on one lock of Postgres (measured: two thirds of
//! the speed at fifty writers), so rings travel outside of any batch, on a connection of their own: the
//! first one at once, those of the next few milliseconds together, each topic once. The same connection
//! listens. A ring reaches this process's own ears directly and is not taken back from the wire.
//!
//! While the connection is down rings are kept (each topic once, up to a bound) and sent afterwards; what
//! others rang in the meantime is lost, so every local ear is rung once when the connection is back.

use crate::InProcess;
use futures_util::{
    StreamExt as _,
    future::{AbortHandle, abortable},
    stream,
};
use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tenure_kernel::{
    bell::{Bell, Ear, Others, Topic},
    runtime::first,
};
use tenure_postgres::{Connector, TlsStream};
use tokio::sync::{Notify, watch};
use tokio_postgres::{AsyncMessage, Client, Connection, Socket, types::ToSql};

/// Pause between two NOTIFY statements.
pub const PAUSE: Duration = Duration::from_millis(3);
/// Topics that wait to be sent; more than these are lost, which only makes things slower.
pub const PENDING_MAX: usize = 4_096;
const BACKOFF_FIRST: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(5);
/// A connection on which nothing is acknowledged for so long is given up.
const UNHEARD: Duration = Duration::from_secs(15);

/// Rings in every process that has the same channel of the same database. Clones are the same bell.
#[derive(Clone)]
pub struct PgNotify {
    shared: Arc<Shared>,
    _task: Arc<Task>,
}

/// Ends the task when the last clone of the bell is dropped.
struct Task(AbortHandle);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Shared {
    channel: String,
    local: InProcess,
    pending: Mutex<BTreeSet<Topic>>,
    wake: Notify,
    connected: watch::Sender<bool>,
    heard: AtomicU64,
}

/// The bell can not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadBell(pub String);

impl std::fmt::Display for BadBell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "no bell: {}", self.0)
    }
}

impl std::error::Error for BadBell {}

impl PgNotify {
    /// Starts the bell, in the Tokio runtime of the caller. It connects when it can; until then, and
    /// whenever the connection is lost, it rings in this process only. A store's schema is a good name
    /// for its channel: a-z, 0-9 and _.
    pub fn start(url: &str, channel: &str) -> Result<Self, BadBell> {
        PgNotify::start_for(url, channel, InProcess::new())
    }

    /// The same for ears that another bell rings too.
    pub fn start_for(url: &str, channel: &str, local: InProcess) -> Result<Self, BadBell> {
        let bad = |e: &dyn std::fmt::Display| BadBell(format!("Postgres: {e}"));
        let mut connector = Connector::parse(url).map_err(|e| bad(&e))?;
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if channel.is_empty() || channel.len() > 63 || !channel.chars().all(plain) {
            return Err(bad(&format!("{channel:?} is not a name of a-z, 0-9 and _")));
        }
        let config = connector.config();
        config.application_name(format!("tenure bell {channel}"));
        config.connect_timeout(PATIENCE);
        config.keepalives_idle(Duration::from_secs(5));
        config.keepalives_interval(Duration::from_secs(2));
        config.keepalives_retries(3);
        // Keepalives are not sent while something waits to be acknowledged.
        config.tcp_user_timeout(UNHEARD);
        let shared = Arc::new(Shared {
            channel: channel.to_owned(),
            local,
            pending: Mutex::default(),
            wake: Notify::new(),
            connected: watch::Sender::new(false),
            heard: AtomicU64::new(0),
        });
        let (running, handle) = abortable(run(connector, shared.clone()));
        #[expect(
            clippy::disallowed_methods,
            reason = "a driver's socket lives at the process edge"
        )]
        tokio::spawn(running);
        Ok(PgNotify { shared, _task: Arc::new(Task(handle)) })
    }

    /// Waits until the bell is connected and hears others.
    pub async fn connected(&self) {
        let mut connected = self.shared.connected.subscribe();
        // The sender lives in `self`.
        let _ = connected.wait_for(|c| *c).await;
    }
}

impl Bell for PgNotify {
    fn ring(&self, topic: Topic) {
        self.shared.local.ring(topic.clone());
        let mut pending = self.shared.pending();
        if pending.len() < PENDING_MAX {
            pending.insert(topic);
            self.shared.wake.notify_one();
        }
    }

    fn listen(&self, topic: Topic) -> Box<dyn Ear> {
        self.shared.local.listen(topic)
    }

    fn others(&self) -> Option<Others> {
        let connected = *self.shared.connected.borrow();
        Some(Others { connected, heard: self.shared.heard.load(Ordering::Relaxed) })
    }
}

impl Shared {
    fn pending(&self) -> MutexGuard<'_, BTreeSet<Topic>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Connects for ever.
async fn run(connector: Connector, shared: Arc<Shared>) {
    let mut pause = BACKOFF_FIRST;
    loop {
        let connecting = tokio::time::timeout(PATIENCE, connector.connect()).await;
        match connecting.map_err(|e| e.to_string()).and_then(|c| c.map_err(|e| e.to_string())) {
            Ok((client, connection)) => {
                let served =
                    first(hear(connection, &client, &shared), send(&client, &shared)).await;
                if shared.connected.send_replace(false) {
                    pause = BACKOFF_FIRST;
                }
                tracing::debug!(?served, "the bell lost its connection");
            }
            Err(e) => tracing::debug!(error = %e, "the bell can not connect"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(BACKOFF_MAX);
    }
}

/// Drives the connection and rings what it brings, until it ends.
async fn hear(connection: Connection<Socket, TlsStream>, client: &Client, shared: &Shared) {
    let mut connection = connection;
    let mut messages = stream::poll_fn(move |cx| connection.poll_message(cx));
    let mut own = None;
    let listen = format!("LISTEN {}; SELECT pg_backend_pid()", shared.channel);
    let listening = async {
        let answer = client.simple_query(&listen).await.ok()?;
        answer.iter().find_map(|m| match m {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0)?.parse::<i32>().ok(),
            _ => None,
        })
    };
    let mut listening = Box::pin(listening);
    loop {
        let message = if own.is_none() {
            match first(&mut listening, messages.next()).await {
                tenure_kernel::runtime::First::Left(Some(pid)) => {
                    own = Some(pid);
                    // Others may have rung while nobody heard it here.
                    shared.local.ring_all();
                    shared.connected.send_replace(true);
                    continue;
                }
                tenure_kernel::runtime::First::Left(None) => return,
                tenure_kernel::runtime::First::Right(message) => message,
            }
        } else {
            messages.next().await
        };
        match message {
            Some(Ok(AsyncMessage::Notification(n))) if Some(n.process_id()) != own => {
                shared.heard.fetch_add(1, Ordering::Relaxed);
                if let Some(topic) = Topic::parse(n.payload()) {
                    shared.local.ring(topic);
                }
            }
            Some(Ok(_)) => {}
            Some(Err(_)) | None => return,
        }
    }
}

/// Topics on their way to Postgres. They are pending again when this goes, also with a connection that ends meanwhile.
struct Unsent<'a> {
    shared: &'a Shared,
    topics: BTreeSet<Topic>,
}

impl Unsent<'_> {
    fn are_sent(mut self) {
        self.topics.clear();
    }
}

impl Drop for Unsent<'_> {
    fn drop(&mut self) {
        self.shared.pending().extend(std::mem::take(&mut self.topics));
    }
}

/// Sends what was rung, everything in one statement, never two within a pause.
async fn send(client: &Client, shared: &Shared) {
    let sql = "SELECT pg_notify($1, t) FROM unnest($2::text[]) AS t";
    let Ok(statement) = client.prepare(sql).await else { return };
    loop {
        let topics = Unsent { shared, topics: std::mem::take(&mut *shared.pending()) };
        if topics.topics.is_empty() {
            shared.wake.notified().await;
            continue;
        }
        let texts: Vec<String> = topics.topics.iter().map(Topic::to_string).collect();
        let values: [&(dyn ToSql + Sync); 2] = [&shared.channel, &texts];
        match tokio::time::timeout(UNHEARD, client.execute(&statement, &values)).await {
            Ok(Ok(_)) => topics.are_sent(),
            // Once more on the next connection; a ring twice is a ring.
            _ => return,
        }
        tokio::time::sleep(PAUSE).await;
    }
}
