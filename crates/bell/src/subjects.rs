//! The names under which a bus carries things: subjects of NATS, channels of Redis. The same on both, so that whoever
//! rings a target from outside need not know more than the address.

use crate::event_subjects::EventSubjects;
use tenure_kernel::{bell::Topic, wakeup};

/// Whether this can stand before subjects; else why not.
pub fn check_prefix(prefix: &str) -> Result<(), String> {
    let good = prefix.is_empty() || prefix.len() <= 128 && prefix.split('.').all(wakeup::is_target);
    let rule =
        "is no prefix: tokens of a-z, A-Z, 0-9, _ and - with dots between them, such as acme.prod";
    if good { Ok(()) } else { Err(rule.to_owned()) }
}

/// The subjects of one bus.
#[derive(Clone, Debug)]
pub(crate) struct Subjects {
    before: String,
    store: String,
    pub(crate) events: EventSubjects,
}

impl Subjects {
    /// Of the bus of a store, after a prefix that may be empty.
    pub(crate) fn new(prefix: &str, store: &str) -> Result<Self, String> {
        check_prefix(prefix)?;
        if !wakeup::is_target(store) {
            return Err(format!("the store's name {store:?} is not one token of a subject"));
        }
        let before = if prefix.is_empty() { String::new() } else { format!("{prefix}.") };
        Ok(Subjects { before, store: store.to_owned(), events: EventSubjects::default() })
    }

    /// Where rings of all topics travel that have no subject of their own.
    pub(crate) fn bell(&self) -> String {
        format!("{}tenure.bell.{}", self.before, self.store)
    }

    /// Wake-ups of every target, also from others than us. A wildcard of NATS, and a pattern of Redis (a target and a
    /// prefix have no characters that mean something there).
    pub(crate) fn wakeups(&self) -> String {
        format!("{}cmd.agent.*.wakeup", self.before)
    }

    /// With the prefix.
    pub(crate) fn full(&self, subject: &str) -> String {
        format!("{}{subject}", self.before)
    }

    /// Where a message of this tenant goes that is recorded under this subject.
    pub(crate) fn of_message(&self, tenant: &str, subject: &str) -> String {
        self.full(&self.events.of(tenant, subject))
    }

    /// The subject of a topic that has its own.
    pub(crate) fn of_topic(&self, topic: &Topic) -> Option<String> {
        let subject = wakeup::target_of_topic(topic).and_then(wakeup::subject)?;
        Some(self.full(&subject))
    }

    /// The topic that a message on this subject rings.
    pub(crate) fn topic_of(&self, subject: &str) -> Option<Topic> {
        wakeup::topic_of(subject.strip_prefix(&self.before)?)
    }

    /// What events are published to, and the name of the stream that keeps them. The prefix is part of the name: two deployments
    /// on one server have two streams.
    pub(crate) fn stream(&self) -> (String, String) {
        let name = format!(
            "tenure_evt{}{}",
            if self.before.is_empty() { "" } else { "_" },
            self.before.trim_end_matches('.').replace('.', "_")
        );
        (name, self.full("evt.>"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subjects(prefix: &str) -> Result<Subjects, String> {
        Subjects::new(prefix, "s1")
    }

    #[test]
    fn a_target_has_a_subject_of_its_own_and_back() {
        for (prefix, expected) in
            [("", "cmd.agent.t-1.wakeup"), ("a.b", "a.b.cmd.agent.t-1.wakeup")]
        {
            let subjects = subjects(prefix).unwrap();
            let topic = Topic::Queue("agent:t-1".into());
            assert_eq!(subjects.of_topic(&topic).as_deref(), Some(expected));
            assert_eq!(subjects.topic_of(expected), Some(topic));
        }
        let plain = subjects("").unwrap();
        for other in [Topic::Due, Topic::Queue("order@1".into()), Topic::Queue("agent:a.b".into())]
        {
            assert_eq!(plain.of_topic(&other), None);
        }
        assert_eq!(subjects("x").unwrap().topic_of("cmd.agent.t.wakeup"), None);
        assert_eq!(plain.bell(), "tenure.bell.s1");
    }

    #[test]
    fn the_stream_of_another_prefix_is_another_stream() {
        assert_eq!(subjects("").unwrap().stream(), ("tenure_evt".into(), "evt.>".into()));
        assert_eq!(
            subjects("a.b").unwrap().stream(),
            ("tenure_evt_a_b".into(), "a.b.evt.>".into())
        );
    }

    #[test]
    fn a_prefix_is_tokens_with_dots_between_them() {
        for bad in [".", "a.", "a..b", "a b", "*", "a.>", "a?", "[ab]"] {
            assert!(check_prefix(bad).is_err() && subjects(bad).is_err(), "{bad}");
        }
    }
}
