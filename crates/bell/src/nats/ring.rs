//! Rings over the bus. They reach the ears of this process at once. On the wire the first goes at once, those of the
//! next millisecond together, each topic once: a *target*'s queue on the subject that the rest of the world uses for it,
//! everything else in one message per store. While the bus is away they are kept, each topic once, up to a bound.
//!
//! What we rang comes back, because our own numbers have to ([`super`]): messages name who sent them. One that names
//! nobody we know, or is no JSON at all, on a wake-up's subject rings: it may come from anybody.

use super::{Bus, PATIENCE, Shared, away};
use crate::InProcess;
use async_nats::Subscriber;
use futures_util::StreamExt as _;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tenure_kernel::{
    bell::{Bell, Ear, Others, Topic},
    error::StoreError,
};
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

/// Pause between two sendings.
pub const PAUSE: Duration = Duration::from_millis(1);
/// Topics that wait to be sent; more than these are lost, which only makes things slower.
pub const PENDING_MAX: usize = 4_096;
/// Topics in one message: well below the smallest payload that servers are set to.
const TOPICS_PER_MESSAGE: usize = 128;

/// What this process rings and hears.
pub(super) struct Rings {
    local: InProcess,
    pending: Mutex<BTreeSet<Topic>>,
    wake: Notify,
    heard: AtomicU64,
    sent: AtomicU64,
}

/// Rings of topics that have no subject of their own.
#[derive(Serialize, Deserialize)]
struct RingMessage {
    from: String,
    topics: Vec<String>,
}

/// A wake-up. Only a hint to people: what counts is the subject.
#[derive(Serialize)]
struct Wakeup<'a> {
    from: &'a str,
    reason: &'static str,
    at: String,
}

#[derive(Deserialize)]
struct Sender {
    from: String,
}

impl Rings {
    pub(super) fn new(local: InProcess) -> Self {
        let (heard, sent) = (AtomicU64::new(0), AtomicU64::new(0));
        Rings { local, pending: Mutex::default(), wake: Notify::new(), heard, sent }
    }

    pub(super) fn ring_all(&self) {
        self.local.ring_all();
    }

    /// A panic under this lock leaves at worst a ring unsent, and rings may be lost.
    fn pending(&self) -> MutexGuard<'_, BTreeSet<Topic>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, topics: impl IntoIterator<Item = Topic>) {
        let mut pending = self.pending();
        for topic in topics {
            if pending.len() < PENDING_MAX {
                pending.insert(topic);
            }
        }
    }
}

impl Bus {
    /// Messages that carried rings so far: fewer than rings, because those of a millisecond travel together.
    pub fn ring_messages_sent(&self) -> u64 {
        self.shared.rings.sent.load(Ordering::Relaxed)
    }
}

impl Bell for Bus {
    fn ring(&self, topic: Topic) {
        let rings = &self.shared.rings;
        rings.local.ring(topic.clone());
        rings.keep([topic]);
        rings.wake.notify_one();
    }

    fn listen(&self, topic: Topic) -> Box<dyn Ear> {
        self.shared.rings.local.listen(topic)
    }

    fn others(&self) -> Option<Others> {
        let connected = *self.shared.ready.borrow();
        Some(Others { connected, heard: self.shared.rings.heard.load(Ordering::Relaxed) })
    }
}

impl Shared {
    /// Sends what was rung, whenever the bus is there.
    pub(super) async fn send_rings(&self) {
        let mut ready = self.ready.subscribe();
        loop {
            if ready.wait_for(|r| *r).await.is_err() {
                return;
            }
            let topics = std::mem::take(&mut *self.rings.pending());
            if topics.is_empty() {
                self.rings.wake.notified().await;
                continue;
            }
            let sent = timeout(2 * PATIENCE, self.send(&topics)).await;
            if let Err(e) = sent.unwrap_or_else(|_| Err(away("the way to the server is full"))) {
                tracing::debug!(error = %e, "rings wait for the bus");
                // Once more on the next connection; a ring twice is a ring.
                self.rings.keep(topics);
            }
            sleep(PAUSE).await;
        }
    }

    async fn send(&self, topics: &BTreeSet<Topic>) -> Result<(), StoreError> {
        let connection = self.connection();
        let mut others = Vec::new();
        for topic in topics {
            let Some(subject) = self.subjects.of_topic(topic) else {
                others.push(topic.to_string());
                continue;
            };
            let at = self.clock.now().to_string();
            self.publish_json(subject, &Wakeup { from: &self.inbox, reason: "ring", at }).await?;
        }
        for topics in others.chunks(TOPICS_PER_MESSAGE) {
            let message = RingMessage { from: self.inbox.clone(), topics: topics.to_vec() };
            self.publish_json(self.subjects.bell(), &message).await?;
        }
        self.confirm(connection).await
    }

    async fn publish_json(
        &self,
        subject: String,
        message: &impl Serialize,
    ) -> Result<(), StoreError> {
        let bytes = serde_json::to_vec(message).map_err(away)?;
        self.rings.sent.fetch_add(1, Ordering::Relaxed);
        self.client.publish(subject, bytes.into()).await.map_err(away)
    }

    pub(super) async fn hear_rings(&self, mut messages: Subscriber) {
        while let Some(message) = messages.next().await {
            // Words of another version are ignored.
            let Ok(said) = serde_json::from_slice::<RingMessage>(&message.payload) else {
                continue;
            };
            if said.from == self.inbox {
                continue;
            }
            for topic in said.topics.iter().filter_map(|t| Topic::parse(t)) {
                self.rings.heard.fetch_add(1, Ordering::Relaxed);
                self.rings.local.ring(topic);
            }
        }
    }

    pub(super) async fn hear_wakeups(&self, mut messages: Subscriber) {
        while let Some(message) = messages.next().await {
            let sender = serde_json::from_slice::<Sender>(&message.payload);
            if sender.is_ok_and(|s| s.from == self.inbox) {
                continue;
            }
            if let Some(topic) = self.subjects.topic_of(&message.subject) {
                self.rings.heard.fetch_add(1, Ordering::Relaxed);
                self.rings.local.ring(topic);
            }
        }
    }
}
