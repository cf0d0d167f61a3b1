//! Redis: a bell for processes that share more than a database, and the channel in which collectors tell what they saw.
//!
//! Both are hints. Redis gives a message to whoever listens at that moment and forgets it, so nothing that must arrive goes
//! this way alone: [`EventChannel`] says what was acknowledged, [`Heard::Connected`] when something may have been missed.
//!
//! The bell has two connections: one that publishes and one that listens, which can do nothing else in the protocol that
//! every server speaks. It counts as connected when both stand. Channels are named as the subjects of NATS are, and
//! messages look the same: whoever rings a target from outside publishes to `cmd.agent.<target>.wakeup`.
//!
//! **Several addresses** are tried in turn. In a cluster `PUBLISH` reaches the listeners of every node; a replica outside of a cluster
//! tells its own listeners only, and is passed over.

mod address;
pub mod events;
mod link;
mod listen;

pub use address::{RedisOptions, check_addresses, check_url, is_redis};
pub use events::{EventChannel, Heard, PATIENCE, Probe, Published, Subscription, Unpublished};

use crate::{
    BusOptions, BusState, InProcess,
    notify::BadBell,
    rings::{About, PAUSE, Rings},
    subjects::Subjects,
};
use bytes::Bytes;
use futures_util::{
    FutureExt as _,
    future::{AbortHandle, abortable, join3},
};
use std::sync::Arc;
use tenure_kernel::{
    bell::{Bell, Ear, Others, Topic},
    runtime::{Clock, Rt},
};
use tokio::sync::watch;

/// Ends a task when whoever needs it is dropped.
struct Task(AbortHandle);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Rings in every process that has the same Redis, prefix and store. Clones are the same bell.
#[derive(Clone)]
pub struct RedisBell {
    shared: Arc<Shared>,
    _task: Arc<Task>,
}

struct Shared {
    events: EventChannel,
    subjects: Subjects,
    /// What we call ourselves in what we ring: unique to this bell.
    own: String,
    rings: Rings,
    standing: watch::Sender<Standing>,
    clock: Arc<dyn Clock>,
    rt: Rt,
}

/// Which of the two connections stand.
#[derive(Clone, Copy, Debug, Default)]
struct Standing {
    hears: bool,
    speaks: bool,
    /// How often both did.
    connections: u64,
}

impl Standing {
    fn is_ready(self) -> bool {
        self.hears && self.speaks
    }

    fn set(&mut self, change: impl FnOnce(&mut Self)) {
        let was = self.is_ready();
        change(self);
        self.connections += u64::from(self.is_ready() && !was);
    }
}

impl RedisBell {
    /// Starts the bell, in the runtime of the caller, to ring these ears. It connects when it can; until then, and whenever
    /// the connection is lost, it rings in this process only. Only settings that can never work are an error.
    pub fn start(
        options: BusOptions,
        local: InProcess,
        clock: Arc<dyn Clock>,
        rt: Rt,
    ) -> Result<Self, BadBell> {
        let bad = |e: String| BadBell(format!("Redis: {e}"));
        check_url(options.url.expose()).map_err(bad)?;
        let subjects = Subjects::new(&options.prefix, &options.store).map_err(bad)?;
        if options.jetstream {
            return Err(bad("it has no JetStream".to_owned()));
        }
        let (addresses, credentials, name) = (options.url, options.credentials, options.name);
        let redis = RedisOptions { addresses, credentials, name };
        let events = EventChannel::start(&redis, rt.clone())?;
        let listening = events.subscribe_to(vec![subjects.bell()], vec![subjects.wakeups()]);
        let shared = Arc::new(Shared {
            events,
            subjects,
            own: format!("{:016x}{:016x}", rt.random(), rt.random()),
            rings: Rings::new(local),
            standing: watch::Sender::new(Standing::default()),
            clock,
            rt: rt.clone(),
        });
        let (running, handle) = abortable(run(shared.clone(), listening));
        rt.spawn(Box::pin(running.map(|_| ())));
        Ok(RedisBell { shared, _task: Arc::new(Task(handle)) })
    }

    /// Waits until the bell is connected and hears others.
    pub async fn connected(&self) {
        let mut standing = self.shared.standing.subscribe();
        // The sender lives in `self`.
        let _ = standing.wait_for(|s| s.is_ready()).await;
    }

    /// How it is.
    pub fn state(&self) -> BusState {
        let standing = *self.shared.standing.borrow();
        BusState {
            connected: standing.is_ready(),
            connections: standing.connections,
            trouble: self.shared.events.state().trouble,
        }
    }

    /// Messages that carried rings so far: fewer than rings, because those of a millisecond travel together.
    pub fn ring_messages_sent(&self) -> u64 {
        self.shared.rings.sent()
    }
}

impl Bell for RedisBell {
    fn ring(&self, topic: Topic) {
        self.shared.rings.ring(topic, About::default());
    }

    fn ring_about(&self, topic: Topic, about: &[u8]) {
        self.shared.rings.ring(topic, About::of(about));
    }

    fn listen(&self, topic: Topic) -> Box<dyn Ear> {
        self.shared.rings.local.listen(topic)
    }

    fn others(&self) -> Option<Others> {
        let connected = self.shared.standing.borrow().is_ready();
        Some(Others { connected, heard: self.shared.rings.heard() })
    }
}

/// Everything the bell does by itself.
async fn run(shared: Arc<Shared>, listening: Subscription) {
    join3(shared.hear(listening), shared.send_rings(), shared.follow_publisher()).await;
}

impl Shared {
    async fn hear(&self, mut listening: Subscription) {
        loop {
            match listening.heard().await {
                // Others may have rung while nobody heard it here. Within the change: whoever is woken by the ring finds
                // the bell ready, whoever waits for that has the ring behind it.
                Heard::Connected { .. } | Heard::Missed(_) => self.standing.send_modify(|s| {
                    s.set(|s| s.hears = true);
                    self.rings.local.ring_all();
                }),
                Heard::Lost { why } => {
                    let heard = self.standing.borrow().hears;
                    self.standing.send_modify(|s| s.set(|s| s.hears = false));
                    // The other connection goes the same way, and would find out only when it is used.
                    if heard {
                        self.events.doubt(&why);
                    }
                    self.events.complain(&why);
                }
                Heard::Message { channel, payload } => {
                    self.rings.hear(&self.subjects, &self.own, &channel, &payload);
                }
            }
        }
    }

    async fn follow_publisher(&self) {
        loop {
            self.events.wait_for(true).await;
            self.standing.send_modify(|s| s.set(|s| s.speaks = true));
            self.events.wait_for(false).await;
            self.standing.send_modify(|s| s.set(|s| s.speaks = false));
        }
    }

    /// Sends what was rung, whenever Redis is there.
    async fn send_rings(&self) {
        loop {
            let topics = self.rings.next().await;
            self.events.connected().await;
            let at = self.clock.now().to_string();
            let messages = match self.rings.messages(&topics, &self.subjects, &self.own, &at) {
                Ok(messages) => messages,
                // A list of words is always JSON; were it not, the tick would do.
                Err(_) => continue,
            };
            let messages: Vec<(&str, Bytes)> =
                messages.iter().map(|(c, m)| (c.as_str(), Bytes::copy_from_slice(m))).collect();
            let became = self.events.publish_each(&messages).await;
            let trouble = became.iter().find_map(|b| b.as_ref().err());
            if let Some(trouble) = trouble {
                tracing::debug!(%trouble, "rings were not sent");
            }
            // What is refused is refused again: those rings are lost, as rings may be.
            if became.iter().any(|b| matches!(b, Err(Unpublished::Away(_)))) {
                self.rings.keep(topics);
            }
            self.rt.sleep(PAUSE).await;
        }
    }
}
