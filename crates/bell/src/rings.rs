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
use serde_json::{Map, Value};
use std::{
    collections::BTreeMap,
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
    pending: Mutex<BTreeMap<Topic, About>>,
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

/// What is said with a wake-up: whom it is about, and by which rule. Only a hint to people: what counts is the subject.
/// Rings of one topic travel together; the first has the word, and the others are counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct About {
    said: Option<Map<String, Value>>,
    more: u64,
}

impl About {
    /// Words that are no object are none.
    pub(crate) fn of(words: &[u8]) -> Self {
        About { said: serde_json::from_slice(words).ok(), more: 0 }
    }

    fn join(&mut self, other: About) {
        match &self.said {
            None => self.said = other.said,
            Some(_) => self.more += u64::from(other.said.is_some()),
        }
        self.more += other.more;
    }

    /// As it goes over the wire. The sender's name and the time are ours.
    fn message(&self, from: &str, at: &str) -> Value {
        let mut all = self.said.clone().unwrap_or_default();
        all.entry("reason").or_insert_with(|| "ring".into());
        all.insert("from".to_owned(), from.into());
        all.insert("at".to_owned(), at.into());
        if self.more > 0 {
            all.insert("more".to_owned(), self.more.into());
        }
        Value::Object(all)
    }
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
    pub(crate) fn ring(&self, topic: Topic, about: About) {
        self.local.ring_topic(&topic);
        self.keep([(topic, about)]);
        self.wake.notify_one();
    }

    /// Keeps what was not sent. Once more on the next connection; a ring twice is a ring.
    pub(crate) fn keep(&self, topics: impl IntoIterator<Item = (Topic, About)>) {
        let mut pending = self.pending();
        for (topic, about) in topics {
            if pending.len() < PENDING_MAX || pending.contains_key(&topic) {
                pending.entry(topic).or_default().join(about);
            }
        }
    }

    /// What waits to be sent; returns when there is something.
    pub(crate) async fn next(&self) -> BTreeMap<Topic, About> {
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
        topics: &BTreeMap<Topic, About>,
        subjects: &Subjects,
        from: &str,
        at: &str,
    ) -> Result<Vec<(String, Vec<u8>)>, serde_json::Error> {
        let (mut messages, mut others) = (Vec::new(), Vec::new());
        for (topic, about) in topics {
            match subjects.of_topic(topic) {
                Some(subject) => {
                    messages.push((subject, serde_json::to_vec(&about.message(from, at))?));
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
    fn pending(&self) -> MutexGuard<'_, BTreeMap<Topic, About>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[tokio::test]
    async fn a_wake_up_says_whom_it_is_about_and_why() {
        let rings = Rings::new(InProcess::new());
        let subjects = Subjects::new("", "s1").unwrap();
        let topic = || Topic::Queue("agent:t".into());
        let about = |turn: &str| {
            let said = json!({ "agent_id": "ada", "agent_turn_id": turn, "reason": "pending_wakeup", "from": "eve" });
            About::of(&serde_json::to_vec(&said).unwrap())
        };
        rings.ring(topic(), About::default());
        rings.ring(topic(), about("1"));
        rings.ring(topic(), about("2"));
        let waiting = rings.next().await;
        // It was not sent, and one more comes.
        rings.ring(topic(), about("3"));
        rings.keep(waiting);
        let waiting = rings.next().await;
        let messages = rings.messages(&waiting, &subjects, "me", "now").unwrap();
        let [(subject, payload)] = messages.as_slice() else { panic!("{messages:?}") };
        assert_eq!(subject, "cmd.agent.t.wakeup");
        let said: Value = serde_json::from_slice(payload).unwrap();
        assert_eq!(
            said,
            json!({ "agent_id": "ada", "agent_turn_id": "3", "reason": "pending_wakeup", "more": 2, "from": "me", "at": "now" })
        );
        // Words that are no object are none.
        assert_eq!(About::of(b"[1]"), About::default());
        let plain = BTreeMap::from([(topic(), About::default())]);
        let messages = rings.messages(&plain, &subjects, "me", "now").unwrap();
        let said: Value = serde_json::from_slice(&messages[0].1).unwrap();
        assert_eq!(said, json!({ "reason": "ring", "from": "me", "at": "now" }));
    }
}
