//! Events in a channel of Redis: hints for whoever listens now. Redis keeps none of them.
//!
//! **What counts as acknowledged** is the answer to `PUBLISH`: the server has given the message to everybody who listened
//! to it then, and says how many that were. Nobody may have listened; who must not miss anything reads the store.
//!
//! **Order.** Messages of a batch go out one after the other over one connection, and batches one after the other. What is
//! not acknowledged is [`Unpublished::Away`], with everything behind it: the caller sends all of it again, in the same order, so that
//! whatever is heard for the first time is heard in order. Some may be heard twice, because a server that was stopped
//! in the middle reads what was sent to it after all when it goes on.
//!
//! Nothing here waits for longer than a few times [`PATIENCE`]. A server that stops answering without closing its connections is
//! found out by the next message, or by pings, and its connection is given up.

pub use super::{
    link::PATIENCE,
    listen::{Heard, Subscription},
};

use super::{
    Task,
    address::RedisOptions,
    link::{Servers, pause, ping},
};
use crate::{notify::BadBell, state::BusState};
use bytes::Bytes;
use futures_util::{FutureExt as _, future::abortable};
use redis::{Pipeline, ServerError, Value, aio::MultiplexedConnection};
use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tenure_kernel::runtime::{First, Rt, first};
use tokio::{sync::watch, time::timeout};

/// The largest message: listeners whose buffer at the server overflows are thrown out by it.
pub const MESSAGE_BYTES_MAX: usize = 1024 * 1024;
/// Messages that are on their way together; acknowledged together, or not.
const FLIGHT: usize = 256;
/// Their bytes.
const FLIGHT_BYTES: usize = 1024 * 1024;

/// Why a message was not published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unpublished {
    /// Nobody knows whether it was heard: there is no connection, or it was lost, or the server is not ready. Later.
    Away(String),
    /// It will never be taken like this: it is too large, or this user may not publish there.
    Refused(String),
}

impl std::fmt::Display for Unpublished {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unpublished::Away(why) => write!(f, "Redis is away: {why}"),
            Unpublished::Refused(why) => write!(f, "Redis does not take it: {why}"),
        }
    }
}

impl std::error::Error for Unpublished {}

/// What became of one message: how many heard it at the server that took it.
pub type Published = Result<u64, Unpublished>;

/// An answer to a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Who answered: `HOST:PORT`.
    pub at: String,
    /// How long it took.
    pub took: Duration,
}

/// Publishes and listens. Clones are the same connection.
#[derive(Clone)]
pub struct EventChannel {
    shared: Arc<Shared>,
    _task: Arc<Task>,
}

struct Shared {
    servers: Servers,
    rt: Rt,
    link: watch::Sender<Option<Link>>,
    connections: AtomicU64,
    trouble: Mutex<Option<String>>,
    /// One batch after the other.
    turn: tokio::sync::Mutex<()>,
}

/// A connection that stands, as far as anybody knows.
#[derive(Clone)]
struct Link {
    connection: MultiplexedConnection,
    number: u64,
    at: String,
}

impl EventChannel {
    /// Starts to connect, in the runtime of the caller, and keeps at it for ever. Only addresses that can never work are
    /// an error.
    pub fn start(options: &RedisOptions, rt: Rt) -> Result<Self, BadBell> {
        let servers = Servers::new(options).map_err(|e| BadBell(format!("Redis: {e}")))?;
        let shared = Arc::new(Shared {
            servers,
            rt: rt.clone(),
            link: watch::Sender::new(None),
            connections: AtomicU64::new(0),
            trouble: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
        });
        let keeping = shared.clone();
        let (running, handle) = abortable(async move { keeping.keep_connected().await });
        rt.spawn(Box::pin(running.map(|_| ())));
        Ok(EventChannel { shared, _task: Arc::new(Task(handle)) })
    }

    /// Publishes one message; the number of those who heard it.
    pub async fn publish(&self, channel: &str, message: impl Into<Bytes>) -> Published {
        let mut became = self.publish_each(&[(channel, message.into())]).await;
        became.pop().unwrap_or_else(|| Err(Unpublished::Away("no answer".to_owned())))
    }

    /// Publishes a batch, in order. One answer for each message; after the first [`Unpublished::Away`] all are.
    pub async fn publish_all(&self, channel: &str, messages: &[Bytes]) -> Vec<Published> {
        let messages: Vec<(&str, Bytes)> = messages.iter().map(|m| (channel, m.clone())).collect();
        self.publish_each(&messages).await
    }

    pub(super) async fn publish_each(&self, messages: &[(&str, Bytes)]) -> Vec<Published> {
        let _turn = self.shared.turn.lock().await;
        let mut became: Vec<Published> = Vec::with_capacity(messages.len());
        while became.len() < messages.len() {
            if let Some(Err(Unpublished::Away(_))) = became.last() {
                became.push(Err(Unpublished::Away("an earlier one waits".to_owned())));
                continue;
            }
            let rest = &messages[became.len()..];
            match problem(rest[0].0, &rest[0].1) {
                Some(problem) => became.push(Err(Unpublished::Refused(problem))),
                None => became.extend(self.shared.fly(flight(rest)).await),
            }
        }
        became
    }

    /// Listens to a channel, on a connection of its own. Says when it is connected, each time: what was published before is
    /// lost, and who must know it reads it elsewhere.
    pub fn subscribe(&self, channel: &str) -> Subscription {
        self.subscribe_to(vec![channel.to_owned()], Vec::new())
    }

    pub(super) fn subscribe_to(
        &self,
        channels: Vec<String>,
        patterns: Vec<String>,
    ) -> Subscription {
        let servers = self.shared.servers.again();
        Subscription::start(servers, channels, patterns, self.shared.rt.clone())
    }

    /// Asks the server whether it is there: within [`PATIENCE`], whatever happens.
    pub async fn probe(&self) -> Result<Probe, Unpublished> {
        let Some(mut link) = self.shared.current() else { return Err(self.shared.away()) };
        let began = self.shared.rt.mono();
        match ping(&mut link.connection).await {
            Ok(()) => Ok(Probe { at: link.at, took: self.shared.rt.mono().saturating_sub(began) }),
            Err(why) => {
                self.shared.give_up(link.number, &why);
                Err(Unpublished::Away(why))
            }
        }
    }

    /// Waits until it is connected.
    pub async fn connected(&self) {
        self.wait_for(true).await;
    }

    /// Waits until it is connected, or is not.
    pub(super) async fn wait_for(&self, connected: bool) {
        let mut link = self.shared.link.subscribe();
        // The sender lives in `self`.
        let _ = link.wait_for(|l| l.is_some() == connected).await;
    }

    /// How it is.
    pub fn state(&self) -> BusState {
        BusState {
            connected: self.shared.link.borrow().is_some(),
            connections: self.shared.connections.load(Ordering::Relaxed),
            trouble: self.shared.trouble(),
        }
    }

    pub(super) fn complain(&self, why: &str) {
        self.shared.complain(why);
    }

    /// Builds the connection anew, because somebody who should know says that it is lost.
    pub(super) fn doubt(&self, why: &str) {
        if let Some(link) = self.shared.current() {
            self.shared.give_up(link.number, why);
        }
    }
}

/// The messages that go together, up to one that is refused.
fn flight<'a>(messages: &'a [(&'a str, Bytes)]) -> &'a [(&'a str, Bytes)] {
    let mut bytes = 0;
    let fits = |(channel, message): &&(&str, Bytes)| {
        bytes += message.len();
        bytes <= FLIGHT_BYTES.max(MESSAGE_BYTES_MAX) && problem(channel, message).is_none()
    };
    &messages[..messages.iter().take(FLIGHT).take_while(fits).count()]
}

fn problem(channel: &str, message: &[u8]) -> Option<String> {
    if channel.is_empty() {
        return Some("a channel has a name".to_owned());
    }
    let bytes = message.len();
    (bytes > MESSAGE_BYTES_MAX)
        .then(|| format!("it has {bytes} bytes, and at most {MESSAGE_BYTES_MAX} are published"))
}

impl Shared {
    fn current(&self) -> Option<Link> {
        self.link.borrow().clone()
    }

    /// Connects for ever.
    async fn keep_connected(&self) {
        let mut attempt = 0;
        loop {
            match self.servers.connect().await {
                Ok(answering) => {
                    attempt = 0;
                    let number = self.connections.fetch_add(1, Ordering::Relaxed) + 1;
                    let (connection, at) = (answering.connection, answering.at);
                    tracing::info!(%at, connections = number, "Redis is connected");
                    self.link.send_replace(Some(Link { connection, number, at }));
                    self.watch_over(number).await;
                }
                Err(why) => self.complain(&why),
            }
            self.rt.sleep(pause(attempt, self.rt.random())).await;
            attempt = attempt.saturating_add(1);
        }
    }

    /// Returns when this connection is given up: by pings, or by whoever used it.
    async fn watch_over(&self, number: u64) {
        let mut links = self.link.subscribe();
        loop {
            let gone = links.wait_for(|l| l.as_ref().is_none_or(|l| l.number != number));
            if let First::Left(_) = first(gone, self.rt.sleep(super::link::PING)).await {
                return;
            }
            let Some(mut link) = self.current() else { return };
            if let Err(why) = ping(&mut link.connection).await {
                self.give_up(number, &why);
                return;
            }
        }
    }

    fn give_up(&self, number: u64, why: &str) {
        let given_up = self.link.send_if_modified(|link| {
            let is_it = link.as_ref().is_some_and(|l| l.number == number);
            if is_it {
                *link = None;
            }
            is_it
        });
        if given_up {
            self.complain(why);
        }
    }

    /// Every complaint once, until another one comes: a server that is away would fill the log with it.
    fn complain(&self, why: &str) {
        let mut last = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_deref() != Some(why) {
            tracing::warn!(trouble = %why, "Redis does not work; everything goes on, only later");
            *last = Some(why.to_owned());
        }
    }

    fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn away(&self) -> Unpublished {
        Unpublished::Away(self.trouble().unwrap_or_else(|| "not connected yet".to_owned()))
    }

    /// Sends messages together and waits for all answers.
    async fn fly(&self, messages: &[(&str, Bytes)]) -> Vec<Published> {
        let lost = |why: Unpublished| messages.iter().map(|_| Err(why.clone())).collect();
        let Some(mut link) = self.current() else { return lost(self.away()) };
        let mut pipeline = Pipeline::with_capacity(messages.len());
        for (channel, message) in messages {
            pipeline.cmd("PUBLISH").arg(*channel).arg(&message[..]);
        }
        let flying = link.connection.send_packed_commands(&pipeline, 0, messages.len());
        // The client's own patience ends with the answer; ours also with a way to the server that is full.
        let why = match timeout(PATIENCE, flying).await {
            Ok(Ok(answers)) if answers.len() == messages.len() => {
                return in_order(answers.iter().map(outcome));
            }
            Ok(Ok(_)) => "it answers strangely".to_owned(),
            Ok(Err(e)) if !e.is_timeout() => e.to_string(),
            Ok(Err(_)) | Err(_) => "the server does not answer".to_owned(),
        };
        self.give_up(link.number, &why);
        lost(Unpublished::Away(why))
    }
}

/// What an answer to `PUBLISH` says.
fn outcome(answer: &Value) -> Published {
    match answer {
        Value::Int(heard) => Ok(u64::try_from(*heard).unwrap_or(0)),
        Value::ServerError(e) if is_passing(e) => Err(Unpublished::Away(e.to_string())),
        Value::ServerError(e) => Err(Unpublished::Refused(e.to_string())),
        other => Err(Unpublished::Away(format!("it answers strangely: {other:?}"))),
    }
}

/// Whether the server's complaint is about itself and now, not about the message.
fn is_passing(e: &ServerError) -> bool {
    let codes =
        ["LOADING", "BUSY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "NOAUTH", "OOM"];
    codes.contains(&e.code())
}

/// After one that has to be sent again nothing counts, or it would be overtaken.
fn in_order(answers: impl Iterator<Item = Published>) -> Vec<Published> {
    let mut waits = false;
    let one = |answer: Published| {
        if waits && answer.is_ok() {
            return Err(Unpublished::Away("an earlier one waits".to_owned()));
        }
        waits |= matches!(answer, Err(Unpublished::Away(_)));
        answer
    };
    answers.map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str) -> Published {
        outcome(&redis::parse_redis_value(text.as_bytes()).unwrap())
    }

    #[test]
    fn an_answer_says_how_many_heard_it_or_whether_to_come_again() {
        assert_eq!(answer(":3\r\n"), Ok(3));
        for passing in ["-LOADING x\r\n", "-CLUSTERDOWN x\r\n", "-BUSY x\r\n", "-NOAUTH x\r\n"] {
            assert!(matches!(answer(passing), Err(Unpublished::Away(_))), "{passing}");
        }
        for never in ["-NOPERM x\r\n", "-ERR unknown command\r\n"] {
            assert!(matches!(answer(never), Err(Unpublished::Refused(_))), "{never}");
        }
    }

    #[test]
    fn nothing_overtakes_what_has_to_be_sent_again_and_refusals_hold_nothing_back() {
        let away = || Err(Unpublished::Away("x".into()));
        let refused = || Err(Unpublished::Refused("x".into()));
        let counts = |answers: Vec<Published>| -> Vec<bool> {
            in_order(answers.into_iter()).iter().map(Result::is_ok).collect()
        };
        assert_eq!(counts(vec![Ok(1), refused(), Ok(1)]), [true, false, true]);
        assert_eq!(
            counts(vec![Ok(1), away(), Ok(1), refused(), Ok(1)]),
            [true, false, false, false, false]
        );
    }

    #[test]
    fn a_flight_ends_at_its_bounds_and_before_what_is_refused() {
        let message = |bytes: usize| ("c", Bytes::from(vec![b'x'; bytes]));
        assert_eq!(flight(&vec![message(1); FLIGHT]).len(), FLIGHT);
        assert_eq!(flight(&vec![message(1); FLIGHT + 1]).len(), FLIGHT);
        assert_eq!(flight(&[message(MESSAGE_BYTES_MAX), message(1)]).len(), 1);
        assert_eq!(flight(&[message(1), message(MESSAGE_BYTES_MAX + 1), message(1)]).len(), 1);
        assert!(problem("c", &[0; MESSAGE_BYTES_MAX]).is_none());
        assert!(problem("c", &[0; MESSAGE_BYTES_MAX + 1]).is_some() && problem("", b"x").is_some());
    }
}
