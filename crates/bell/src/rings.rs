//! Rings on a wire: what waits to be sent, and what it looks like. Everything that a bus of NATS and one of Redis do alike.
//!
//! Rings reach the ears of this process at once. On the wire the first goes at once, those of the next millisecond
//! together, each topic once: a *target*'s queue on the subject that the rest of the world uses for it, everything else
//! in one message per store. While the bus is away they are kept, each topic once, up to a bound.
//!
//! What we rang may come back: messages name who sent them. One that names nobody we know, or is no JSON at all, on a
//! wake-up's subject rings: it may come from anybody.

use crate::{InProcess, subjects::Subjects};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tenure_kernel::bell::Topic;
use tokio::sync::Notify;

/// Pause between two sendings.
pub const PAUSE: Duration = Duration::from_millis(1);
/// Topics that wait to be sent; more than these are lost, which only makes things slower.
pub const PENDING_MAX: usize = 4_096;
/// Topics in one message: well below the smallest payload that servers are set to.
const TOPICS_PER_MESSAGE: usize = 128;

/// What this process rings and hears.
pub(crate) struct Rings {
    /// The ears of this process.
    pub(crate) local: InProcess,
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
    at: &'a str,
}

#[derive(Deserialize)]
struct Sender {
    from: String,
}

impl Rings {
    pub(crate) fn new(local: InProcess) -> Self {
        let (heard, sent) = (AtomicU64::new(0), AtomicU64::new(0));
        Rings { local, pending: Mutex::default(), wake: Notify::new(), heard, sent }
    }

    /// Here at once, elsewhere soon.
    pub(crate) fn ring(&self, topic: Topic) {
        self.local.ring_topic(&topic);
        self.keep([topic]);
        self.wake.notify_one();
    }

    /// Keeps what was not sent. Once more on the next connection; a ring twice is a ring.
    pub(crate) fn keep(&self, topics: impl IntoIterator<Item = Topic>) {
        let mut pending = self.pending();
        for topic in topics {
            if pending.len() < PENDING_MAX {
                pending.insert(topic);
            }
        }
    }

    /// What waits to be sent; returns when there is something.
    pub(crate) async fn next(&self) -> BTreeSet<Topic> {
        loop {
            let topics = std::mem::take(&mut *self.pending());
            if !topics.is_empty() {
                return topics;
            }
            self.wake.notified().await;
        }
    }

    /// Rings of others that were heard.
    pub(crate) fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    /// Messages that carried rings so far.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// The messages for these topics, each with where it goes.
    pub(crate) fn messages(
        &self,
        topics: &BTreeSet<Topic>,
        subjects: &Subjects,
        from: &str,
        at: &str,
    ) -> Result<Vec<(String, Vec<u8>)>, serde_json::Error> {
        let (mut messages, mut others) = (Vec::new(), Vec::new());
        for topic in topics {
            match subjects.of_topic(topic) {
                Some(subject) => {
                    let wakeup = Wakeup { from, reason: "ring", at };
                    messages.push((subject, serde_json::to_vec(&wakeup)?));
                }
                None => others.push(topic.to_string()),
            }
        }
        for topics in others.chunks(TOPICS_PER_MESSAGE) {
            let message = RingMessage { from: from.to_owned(), topics: topics.to_vec() };
            messages.push((subjects.bell(), serde_json::to_vec(&message)?));
        }
        self.sent.fetch_add(u64::try_from(messages.len()).unwrap_or(0), Ordering::Relaxed);
        Ok(messages)
    }

    /// Rings what a message on this subject says, unless it is our own.
    pub(crate) fn hear(&self, subjects: &Subjects, own: &str, subject: &str, payload: &[u8]) {
        if subject == subjects.bell() {
            // Words of another version are ignored.
            let Ok(said) = serde_json::from_slice::<RingMessage>(payload) else { return };
            if said.from != own {
                said.topics.iter().filter_map(|t| Topic::parse(t)).for_each(|t| self.heard_one(&t));
            }
            return;
        }
        let sender = serde_json::from_slice::<Sender>(payload);
        if sender.is_ok_and(|s| s.from == own) {
            return;
        }
        if let Some(topic) = subjects.topic_of(subject) {
            self.heard_one(&topic);
        }
    }

    fn heard_one(&self, topic: &Topic) {
        self.heard.fetch_add(1, Ordering::Relaxed);
        self.local.ring_topic(topic);
    }

    /// A panic under this lock leaves at worst a ring unsent, and rings may be lost.
    fn pending(&self) -> MutexGuard<'_, BTreeSet<Topic>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
