//! Bells: hints that something is worth a look. A bell says *where*, never *what*, and may be lost,
//! repeated or late. Everything is correct, only slower, with every bell silent.

use crate::{ids::SessionId, runtime::BoxFuture};
use std::fmt;

/// Where a look is worth while.
#[derive(Clone, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Topic {
    /// Something became due for the loop.
    Due,
    /// Something lies in the outbox.
    Outbox,
    /// Somebody left a wish in the intake.
    Intake,
    /// Something became ready in a queue.
    Queue(String),
    /// Mail came for something that this session holds.
    Session(SessionId),
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Topic::Due => f.write_str("due"),
            Topic::Intake => f.write_str("intake"),
            Topic::Outbox => f.write_str("outbox"),
            Topic::Queue(q) => write!(f, "queue/{q}"),
            Topic::Session(s) => write!(f, "session/{s}"),
        }
    }
}

impl Topic {
    /// From its text form; `None` for words of another version, which are ignored.
    pub fn parse(text: &str) -> Option<Self> {
        match text.split_once('/') {
            None if text == "due" => Some(Topic::Due),
            None if text == "intake" => Some(Topic::Intake),
            None if text == "outbox" => Some(Topic::Outbox),
            Some(("queue", q)) => Some(Topic::Queue(q.to_owned())),
            Some(("session", s)) => s.parse().ok().map(Topic::Session),
            _ => None,
        }
    }
}

/// Rings, and lets others listen.
pub trait Bell: Send + Sync {
    /// Rings. Never blocks, never fails: a lost ring is a late one.
    fn ring(&self, topic: Topic);

    /// The same, with text for readers on a bus: a JSON object that says whom it is about and why. They are a hint, as
    /// the ring is, and whoever hears it here does not get them.
    fn ring_about(&self, topic: Topic, _about: &[u8]) {
        self.ring(topic);
    }

    /// Somebody who waits for this topic. Rings from before the call are not heard.
    fn listen(&self, topic: Topic) -> Box<dyn Ear>;

    /// What it hears of other processes; `None` for a bell that rings in one process only.
    fn others(&self) -> Option<Others> {
        None
    }
}

/// What a bell hears of other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Others {
    /// It would hear a ring now.
    pub connected: bool,
    /// Rings heard so far.
    pub heard: u64,
}

/// Hears one topic.
pub trait Ear: Send {
    /// Returns after a ring that came since the last return. Many rings may be one.
    fn heard(&mut self) -> BoxFuture<'_, ()>;
}

/// A bell that never rings: everything then runs on its period.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Bell for Silent {
    fn ring(&self, _topic: Topic) {}

    fn listen(&self, _topic: Topic) -> Box<dyn Ear> {
        Box::new(Silent)
    }
}

impl Ear for Silent {
    fn heard(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_round_trip_as_text() {
        let all = [
            Topic::Due,
            Topic::Intake,
            Topic::Outbox,
            Topic::Queue("a/b c".into()),
            Topic::Session(SessionId::fixed(9, 1)),
        ];
        for topic in all {
            assert_eq!(Topic::parse(&topic.to_string()), Some(topic));
        }
        assert_eq!(Topic::parse("from/the/future"), None);
    }
}
