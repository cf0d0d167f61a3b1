//! Wake-ups: the one message on a wire that is no fact but a ring. `cmd.agent.<target>.wakeup` says that there is
//! something in the queue of a worker *target*. Whatever rule sends it, it is a bell: it rings the queue's topic
//! where it is found and never waits for a wire ([`crate::outbox::Target::leaves`]), and whoever rings the topic
//! rings, on a bus, that subject. So both spellings live here and nowhere else.
//!
//! A target is one token of a subject. A dot in it would be another subject, a `*` would be every target.

use crate::{bell::Topic, limits::TARGET_BYTES_MAX};

/// The queue of a target is this and the target.
pub const QUEUE: &str = "agent:";
const BEFORE: &str = "cmd.agent.";
const AFTER: &str = ".wakeup";

/// Why a word can not name a target.
pub const TARGET_RULE: &str = "a target is 1 to 64 of a-z, A-Z, 0-9, _ and -";

/// Whether this can name a worker target. Refuse the others where they come in, with [`TARGET_RULE`].
pub fn is_target(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    !name.is_empty() && name.len() <= TARGET_BYTES_MAX && name.chars().all(plain)
}

/// The subject that wakes a target up; `None` for what is no target.
pub fn subject(target: &str) -> Option<String> {
    is_target(target).then(|| format!("{BEFORE}{target}{AFTER}"))
}

/// The queue of a target; `None` for what is no target.
pub fn queue(target: &str) -> Option<String> {
    is_target(target).then(|| format!("{QUEUE}{target}"))
}

/// The target that a message on this subject wakes up; `None` for every other subject.
pub fn target_of(subject: &str) -> Option<&str> {
    subject.strip_prefix(BEFORE)?.strip_suffix(AFTER).filter(|t| is_target(t))
}

/// The topic that a message on this subject rings; `None` for every other subject.
pub fn topic_of(subject: &str) -> Option<Topic> {
    target_of(subject).and_then(queue).map(Topic::Queue)
}

/// The target whose queue this topic is; `None` for every other topic.
pub fn target_of_topic(topic: &Topic) -> Option<&str> {
    match topic {
        Topic::Queue(queue) => queue.strip_prefix(QUEUE).filter(|t| is_target(t)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subject_queue_and_topic_are_of_the_same_target() {
        let subject = subject("gpu_2-A").unwrap();
        assert_eq!(subject, "cmd.agent.gpu_2-A.wakeup");
        assert_eq!(target_of(&subject), Some("gpu_2-A"));
        let topic = topic_of(&subject).unwrap();
        assert_eq!(topic, Topic::Queue("agent:gpu_2-A".into()));
        assert_eq!(target_of_topic(&topic), Some("gpu_2-A"));
    }

    #[test]
    fn a_target_is_one_token() {
        let longest = "t".repeat(TARGET_BYTES_MAX);
        assert!(is_target(&longest));
        for bad in ["", "a.b", "*", ">", "a b", "ä", "a:b", "a/b", &format!("{longest}t")] {
            assert!(!is_target(bad) && queue(bad).is_none() && super::subject(bad).is_none());
            assert_eq!(target_of(&format!("cmd.agent.{bad}.wakeup")), None, "{bad}");
            assert_eq!(target_of_topic(&Topic::Queue(format!("agent:{bad}"))), None, "{bad}");
        }
        for other in ["evt.agent.a.task", "cmd.agent.a", "cmd.agent.wakeup", "x.cmd.agent.a.wakeup"]
        {
            assert_eq!(target_of(other), None, "{other}");
        }
        assert_eq!(target_of_topic(&Topic::Due), None);
    }
}
