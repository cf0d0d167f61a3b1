//! NATS: a bell for processes that share more than a database, and the wire on which agents' events leave.
//!
//! One connection carries both. Nothing waits for it: rings are noted and sent by a task, events stay in the outbox until
//! they are acknowledged, and with the bus away everything is as correct as before, only later ([`Bus`] rings in this
//! process whatever happens).
//!
//! **What counts as acknowledged.** The client's own `flush` says that bytes were given to the kernel of this machine, and after
//! a reconnect the client goes on as if nothing had been lost. So we ask for more: after a batch we publish a number to an
//! inbox of our own. A server handles one connection in order, so the number comes back only after everything before it was
//! taken; and if the connection was another one by then, the batch counts as lost and goes out again, under the same
//! ids (`confirm`). What a core server has taken it forgets: where events must survive the bus, or reach
//! subscribers that were away, they go to a JetStream (`jetstream.rs`).
//!
//! **A silent server** (stopped, or behind a dead link) is noticed by a number that does not come back, or by pings: the
//! connection is given up and built anew. After every new connection all ears of this process are rung once, when the
//! subscriptions stand, because others may have rung meanwhile.

mod address;
mod jetstream;
mod message;
mod ring;
mod wire;

pub use crate::event_subjects::{BY_TENANT, EventSubjects, PLAIN, Template};
pub use crate::{state::BusState, subjects::check_prefix};
pub use address::{BusOptions, Credentials, check_url};

use crate::{InProcess, notify::BadBell, rings::Rings, subjects::Subjects};
use async_nats::{Client, ConnectOptions, Event, Subscriber};
use futures_util::{
    StreamExt as _,
    future::{AbortHandle, abortable, join5},
};
use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tenure_kernel::{error::StoreError, runtime::Clock};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};

/// How long the server may take to answer. A longer silence costs the connection.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// How often an idle connection is asked whether it is alive; it is given up after two questions without an answer.
const PING: Duration = Duration::from_secs(2);
const BACKOFF_FIRST: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(3);
/// Subjects that are remembered as not permitted.
const UNWELCOME_MAX: usize = 1_024;

/// A connection to a NATS server or cluster, and what is done over it. Clones are the same bus.
#[derive(Clone)]
pub struct Bus {
    shared: Arc<Shared>,
    _task: Arc<Task>,
}

/// Ends the task when the last clone of the bus is dropped.
struct Task(AbortHandle);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Shared {
    client: Client,
    subjects: Subjects,
    /// Where our own numbers come back, and what we call ourselves: unique to this bus.
    inbox: String,
    link: Arc<Link>,
    /// Rings of others would be heard, and events be taken.
    ready: watch::Sender<bool>,
    next: AtomicU64,
    back: watch::Sender<u64>,
    rings: Rings,
    clock: Arc<dyn Clock>,
    jetstream: bool,
    /// The stream was found or made over this bus.
    stream_is_there: AtomicBool,
    /// Subjects of streams that were found over a connection, where none is to be made.
    found_streams: Mutex<Option<(u64, Arc<[String]>)>>,
    reconnect_pause: Duration,
    /// Before this nothing is published that the server would forget.
    settled_at: Mutex<Option<Instant>>,
}

/// What the client says about its connection.
struct Link {
    subjects: Subjects,
    state: watch::Sender<LinkState>,
    /// The connection on which the server would not have an event.
    denied: AtomicU64,
    /// The connection on which it would not have a question to JetStream, where streams are looked for and not needed.
    api_denied: AtomicU64,
    /// Other subjects that it would not have, until the message is found that went there.
    unwelcome: Mutex<HashSet<String>>,
    trouble: Mutex<Option<String>>,
    /// Streams are looked for and not needed: that nobody may ask for them is no trouble.
    looks: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LinkState {
    is_up: bool,
    connections: u64,
}

impl Bus {
    /// Starts the bus, in the Tokio runtime of the caller, to ring these ears. It connects when it can; until then, and
    /// whenever the connection is lost, it rings in this process only. Only settings that can never work are an error.
    pub async fn start(
        options: BusOptions,
        local: InProcess,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, BadBell> {
        let bad = |e: &dyn std::fmt::Display| BadBell(format!("NATS: {e}"));
        let subjects = options.subjects().map_err(|e| bad(&e))?;
        let servers = address::servers(options.url.expose()).map_err(|e| bad(&e))?;
        let link = Arc::new(Link {
            subjects: subjects.clone(),
            state: watch::Sender::new(LinkState::default()),
            denied: AtomicU64::new(0),
            api_denied: AtomicU64::new(0),
            unwelcome: Mutex::default(),
            trouble: Mutex::default(),
            looks: !options.jetstream,
        });
        let noted = link.clone();
        let connect = options
            .authenticated(ConnectOptions::new())
            .map_err(|e| bad(&e))?
            .name(&options.name)
            .retry_on_initial_connect()
            .connection_timeout(PATIENCE)
            .ping_interval(PING)
            .reconnect_delay_callback(backoff)
            .event_callback(move |event| {
                noted.note(&event);
                std::future::ready(())
            });
        let client = connect.connect(servers).await.map_err(|e| bad(&e))?;
        let inbox = client.new_inbox();
        let hear = async |subject: String| client.subscribe(subject).await.map_err(|e| bad(&e));
        let numbers = hear(inbox.clone()).await?;
        let (rings, wakeups) = (hear(subjects.bell()).await?, hear(subjects.wakeups()).await?);
        let shared = Arc::new(Shared {
            client: client.clone(),
            subjects,
            inbox,
            link,
            ready: watch::Sender::new(false),
            next: AtomicU64::new(0),
            back: watch::Sender::new(0),
            rings: Rings::new(local),
            clock,
            jetstream: options.jetstream,
            stream_is_there: AtomicBool::new(false),
            found_streams: Mutex::default(),
            reconnect_pause: options.reconnect_pause,
            settled_at: Mutex::default(),
        });
        let (running, handle) = abortable(run(shared.clone(), numbers, rings, wakeups));
        #[expect(
            clippy::disallowed_methods,
            reason = "a driver's socket lives at the process edge"
        )]
        tokio::spawn(running);
        Ok(Bus { shared, _task: Arc::new(Task(handle)) })
    }

    /// Waits until the bus is connected and hears others.
    pub async fn connected(&self) {
        let mut ready = self.shared.ready.subscribe();
        // The sender lives in `self`.
        let _ = ready.wait_for(|r| *r).await;
    }

    /// How it is.
    pub fn state(&self) -> BusState {
        BusState {
            connected: *self.shared.ready.borrow(),
            connections: self.shared.link.state.borrow().connections,
            trouble: self.shared.link.trouble(),
        }
    }
}

/// Everything the bus does by itself.
async fn run(shared: Arc<Shared>, numbers: Subscriber, rings: Subscriber, wakeups: Subscriber) {
    join5(
        shared.hear_numbers(numbers),
        shared.hear_rings(rings),
        shared.hear_rings(wakeups),
        shared.send_rings(),
        shared.follow_link(),
    )
    .await;
}

/// Whether the server complains about a question to JetStream.
fn denied_api(complaint: &str) -> bool {
    address::denied_subject(complaint).is_some_and(|s| s.starts_with("$JS.API."))
}

/// The pause before a try to connect. The first one follows at once.
fn backoff(attempt: usize) -> Duration {
    let doublings = u32::try_from(attempt.saturating_sub(2)).unwrap_or(u32::MAX).min(10);
    if attempt <= 1 {
        Duration::ZERO
    } else {
        (BACKOFF_FIRST * 2u32.pow(doublings)).min(BACKOFF_MAX)
    }
}

impl Link {
    fn note(&self, event: &Event) {
        match event {
            Event::Connected => self.state.send_modify(|s| {
                *s = LinkState { is_up: true, connections: s.connections + 1 };
            }),
            Event::Disconnected | Event::Closed => self.state.send_modify(|s| s.is_up = false),
            Event::ServerError(e) => {
                let said = e.to_string();
                if self.looks && denied_api(&said) {
                    self.api_denied.store(self.state.borrow().connections, Ordering::Relaxed);
                    return;
                }
                match address::denied_subject(&said) {
                    Some(subject) if address::is_event(&self.subjects, subject) => {
                        self.denied.store(self.state.borrow().connections, Ordering::Relaxed);
                    }
                    Some(subject) => self.note_unwelcome(subject),
                    None => {}
                }
                self.complain(said);
            }
            Event::ClientError(e) => self.complain(e.to_string()),
            Event::LameDuckMode | Event::Draining | Event::SlowConsumer(_) => {}
        }
    }

    fn is_api_denied(&self) -> bool {
        let connections = self.state.borrow().connections;
        connections > 0 && self.api_denied.load(Ordering::Relaxed) == connections
    }

    fn unwelcome(&self) -> MutexGuard<'_, HashSet<String>> {
        // Nothing panics while it holds this lock.
        self.unwelcome.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_unwelcome(&self, subject: &str) {
        let mut unwelcome = self.unwelcome();
        // Complaints for which no message is found are those about rings: few.
        if unwelcome.len() >= UNWELCOME_MAX {
            unwelcome.clear();
        }
        unwelcome.insert(subject.to_owned());
    }

    /// Every complaint once, until another one comes: a bus that is away would fill the log with it.
    fn complain(&self, trouble: String) {
        let mut last = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_deref() != Some(trouble.as_str()) {
            tracing::warn!(%trouble, "the bus does not work; everything goes on, only later");
            *last = Some(trouble);
        }
    }

    fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Shared {
    /// Which connection this is. Raised before anything can go over a new one.
    fn connection(&self) -> u64 {
        self.client.statistics().connects.load(Ordering::Relaxed)
    }

    /// Waits until the server has taken everything that was published since `connection` was asked for. A server that
    /// does not answer loses the connection.
    async fn confirm(&self, connection: u64) -> Result<(), StoreError> {
        // Taken after what it stands for was handed over, so a later number of somebody else stands for it as well.
        let number = self.next.fetch_add(1, Ordering::SeqCst) + 1;
        let text = number.to_string();
        self.client.publish(self.inbox.clone(), text.into()).await.map_err(away)?;
        let mut back = self.back.subscribe();
        let answered = timeout(PATIENCE, back.wait_for(|n| *n >= number)).await.is_ok();
        if self.connection() != connection {
            return Err(away("the connection was lost meanwhile"));
        }
        if !answered {
            // Not awaited for long: the way to the client may be full.
            let _ = timeout(PATIENCE, self.client.force_reconnect()).await;
            return Err(away("the server does not answer"));
        }
        Ok(())
    }

    fn settles_at(&self) -> MutexGuard<'_, Option<Instant>> {
        // Nothing panics while it holds this lock.
        self.settled_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns once others have had time to come back to a server that was away. A core server forgets what nobody is subscribed to.
    async fn settled(&self) {
        let at = *self.settles_at();
        if let Some(at) = at {
            sleep_until(at).await;
        }
    }

    /// Whether events published over this connection are dropped by the server. It says so beside them, before the number
    /// that follows them comes back.
    async fn is_denied(&self) -> bool {
        tokio::task::yield_now().await;
        let connections = self.link.state.borrow().connections;
        connections > 0 && self.link.denied.load(Ordering::Relaxed) == connections
    }

    async fn hear_numbers(&self, mut numbers: Subscriber) {
        while let Some(message) = numbers.next().await {
            let number =
                std::str::from_utf8(&message.payload).ok().and_then(|t| t.parse::<u64>().ok());
            if let Some(number) = number {
                self.back.send_if_modified(|n| {
                    let is_later = number > *n;
                    *n = number.max(*n);
                    is_later
                });
            }
        }
    }

    /// Says when the bus can be used. Subscriptions are renewed by the client, before anything else goes out, so what
    /// comes back over a new connection proves that they stand.
    async fn follow_link(&self) {
        let mut states = self.link.state.subscribe();
        let mut served = 0;
        loop {
            let state = *states.borrow_and_update();
            if !state.is_up || state.connections != served {
                self.ready.send_replace(false);
            }
            if state.is_up && state.connections != served {
                match self.confirm(self.connection()).await {
                    Ok(()) => {
                        if served > 0 {
                            *self.settles_at() = Some(Instant::now() + self.reconnect_pause);
                        }
                        served = state.connections;
                        tracing::info!(connections = served, "the bus is connected");
                        // Others may have rung while nobody heard it here; and what waits for the wire can go. Within the
                        // change: whoever is woken by the ring finds the bus ready, whoever waits for that has the ring behind it.
                        self.ready.send_modify(|ready| {
                            *ready = true;
                            self.rings.local.ring_all();
                        });
                    }
                    Err(e) => {
                        tracing::debug!(error = %e, "the bus is connected and does not answer");
                        sleep(BACKOFF_FIRST).await;
                    }
                }
                continue;
            }
            if states.changed().await.is_err() {
                return;
            }
            if !states.borrow().is_up {
                tracing::warn!("the bus is away; everything goes on, only later");
            }
        }
    }
}

fn away(why: impl std::fmt::Display) -> StoreError {
    StoreError::Unavailable(format!("NATS: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_try_is_at_once_and_later_ones_wait_longer_up_to_a_bound() {
        assert_eq!(
            (backoff(0), backoff(1), backoff(2)),
            (Duration::ZERO, Duration::ZERO, BACKOFF_FIRST)
        );
        assert!((2..1_000).all(|n| backoff(n) <= backoff(n + 1)));
        assert_eq!(backoff(usize::MAX), BACKOFF_MAX);
    }
}
