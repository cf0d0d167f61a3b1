//! What a bus is told, and the subjects that follow from it. Everything that can never work is refused here, in words.

use async_nats::{ConnectOptions, ServerAddr};
use std::path::Path;
use tenure_kernel::{bell::Topic, wakeup};

/// What a bus is told.
#[derive(Clone, Debug)]
pub struct BusOptions {
    /// Where the servers are: `nats://HOST:PORT` or `tls://HOST:PORT`, several with commas between them.
    pub url: String,
    /// Stands before every subject, with a dot after it; may be empty.
    pub prefix: String,
    /// Whether events go to a JetStream.
    pub jetstream: bool,
    /// What proves who we are.
    pub credentials: Option<Credentials>,
    /// What all processes of one store call it, and others do not: one token of a subject.
    pub store: String,
    /// Who we are, for people who look at the server.
    pub name: String,
}

/// What proves who we are.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    /// The text of a `.creds` file: a JWT and the seed of a key.
    Jwt(String),
    /// A name and a password.
    Password(String, String),
    /// A token.
    Token(String),
}

impl std::fmt::Debug for Credentials {
    /// Never the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Credentials::Jwt(_) => "a JWT",
            Credentials::Password(..) => "a password",
            Credentials::Token(_) => "a token",
        })
    }
}

impl Credentials {
    /// From the text of a file: that of NATS itself, or one line `USER:PASSWORD`, or one line with a token.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.contains("BEGIN NATS USER JWT") {
            return match ConnectOptions::new().credentials(text) {
                Ok(_) => Ok(Credentials::Jwt(text.to_owned())),
                Err(e) => Err(format!("it looks like a .creds file and can not be read: {e}")),
            };
        }
        let mut lines = text.lines().map(str::trim).filter(|l| !l.is_empty());
        match (lines.next(), lines.next()) {
            (Some(line), None) => Ok(match line.split_once(':') {
                Some((user, password)) => Credentials::Password(user.into(), password.into()),
                None => Credentials::Token(line.to_owned()),
            }),
            _ => {
                Err("it is neither a .creds file nor one line with USER:PASSWORD or a token".into())
            }
        }
    }

    /// From a file.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|e| e.to_string())?;
        Credentials::parse(&text)
    }
}

impl BusOptions {
    /// The usual ones for these servers and this store.
    pub fn new(url: &str, store: &str) -> Self {
        BusOptions {
            url: url.to_owned(),
            prefix: String::new(),
            jetstream: false,
            credentials: None,
            store: store.to_owned(),
            name: "tenure".to_owned(),
        }
    }

    pub(super) fn subjects(&self) -> Result<Subjects, String> {
        check_prefix(&self.prefix)?;
        if !wakeup::is_target(&self.store) {
            return Err(format!("the store's name {:?} is not one token of a subject", self.store));
        }
        let before =
            if self.prefix.is_empty() { String::new() } else { format!("{}.", self.prefix) };
        Ok(Subjects { before, store: self.store.clone() })
    }

    pub(super) fn authenticated(&self, options: ConnectOptions) -> Result<ConnectOptions, String> {
        Ok(match &self.credentials {
            None => options,
            Some(Credentials::Jwt(text)) => options.credentials(text).map_err(|e| e.to_string())?,
            Some(Credentials::Password(user, password)) => {
                options.user_and_password(user.clone(), password.clone())
            }
            Some(Credentials::Token(token)) => options.token(token.clone()),
        })
    }
}

/// Whether these can be servers; else why not.
pub fn check_url(url: &str) -> Result<(), String> {
    servers(url).map(|_| ())
}

/// Whether this can stand before subjects; else why not.
pub fn check_prefix(prefix: &str) -> Result<(), String> {
    let good = prefix.is_empty() || prefix.len() <= 128 && prefix.split('.').all(wakeup::is_target);
    let rule =
        "is no prefix: tokens of a-z, A-Z, 0-9, _ and - with dots between them, such as acme.prod";
    if good { Ok(()) } else { Err(rule.to_owned()) }
}

pub(super) fn servers(url: &str) -> Result<Vec<ServerAddr>, String> {
    let one = |address: &str| {
        let has_scheme = ["nats://", "tls://"].iter().any(|s| address.starts_with(s));
        if !has_scheme {
            return Err("is no address of a bus: give nats://HOST:PORT or tls://HOST:PORT, several with commas between them".to_owned());
        }
        let server: ServerAddr =
            address.parse().map_err(|e| format!("is no address of a bus: {e}"))?;
        let inner = server.clone().into_inner();
        if inner.host_str().is_none_or(str::is_empty) {
            return Err("is no address of a bus: it names no host".to_owned());
        }
        if !inner.username().is_empty() || inner.password().is_some() {
            return Err("has a secret in it, which every list of settings would show: put USER:PASSWORD, or a token, into a file and name it in bus.credentials_file".to_owned());
        }
        Ok(server)
    };
    url.split(',').map(str::trim).map(one).collect()
}

/// The subjects of one bus.
#[derive(Clone, Debug)]
pub(super) struct Subjects {
    before: String,
    store: String,
}

impl Subjects {
    /// Where rings of all topics travel that have no subject of their own.
    pub(super) fn bell(&self) -> String {
        format!("{}tenure.bell.{}", self.before, self.store)
    }

    /// Wake-ups of every target, also from others than us.
    pub(super) fn wakeups(&self) -> String {
        format!("{}cmd.agent.*.wakeup", self.before)
    }

    /// With the prefix.
    pub(super) fn full(&self, subject: &str) -> String {
        format!("{}{subject}", self.before)
    }

    /// The subject of a topic that has its own.
    pub(super) fn of_topic(&self, topic: &Topic) -> Option<String> {
        let subject = wakeup::target_of_topic(topic).and_then(wakeup::subject)?;
        Some(self.full(&subject))
    }

    /// The topic that a message on this subject rings.
    pub(super) fn topic_of(&self, subject: &str) -> Option<Topic> {
        wakeup::topic_of(subject.strip_prefix(&self.before)?)
    }

    /// Whether the server complains that it may not take an event. Rings that it may not take are lost, as rings may be.
    pub(super) fn is_event_denied(&self, complaint: &str) -> bool {
        let complaint = complaint.to_lowercase();
        let subject = complaint.split_once("violation for publish to \"").map(|(_, rest)| rest);
        let is_ours = |s: &&str| {
            let bells = [self.bell(), self.full("cmd.agent."), "$js.".into(), "_inbox.".into()];
            !bells.iter().any(|b| s.starts_with(&b.to_lowercase()))
        };
        subject.as_ref().is_some_and(is_ours)
    }

    /// What events are published to, and the name of the stream that keeps them. The prefix is part of the name: two deployments
    /// on one server have two streams.
    pub(super) fn stream(&self) -> (String, String) {
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
        BusOptions { prefix: prefix.into(), ..BusOptions::new("nats://h", "s1") }.subjects()
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
    fn only_events_that_are_denied_hold_events_back() {
        let subjects = subjects("p").unwrap();
        let said =
            |subject: &str| format!("nats: Permissions Violation for Publish to \"{subject}\"");
        assert!(subjects.is_event_denied(&said("p.evt.agent.A.task")));
        for other in
            ["p.tenure.bell.s1", "p.cmd.agent.t.wakeup", "_INBOX.x", "$JS.API.STREAM.NAMES"]
        {
            assert!(!subjects.is_event_denied(&said(other)), "{other}");
        }
        assert!(!subjects.is_event_denied("Authorization Violation"));
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
    fn addresses_that_can_not_work_are_refused_with_what_to_do() {
        for good in ["nats://h", "nats://h:4222", "tls://h:4222,tls://g:4222", "nats://[::1]:4222"]
        {
            assert_eq!(check_url(good), Ok(()), "{good}");
        }
        let cases = [
            ("", "give nats://"),
            ("h:4222", "give nats://"),
            ("http://h", "give nats://"),
            ("nats://h,", "give nats://"),
            ("nats://h:99999", "is no address"),
            ("nats://u:p@h", "bus.credentials_file"),
            ("nats://token@h", "bus.credentials_file"),
        ];
        for (bad, why) in cases {
            let said = check_url(bad).unwrap_err();
            assert!(said.contains(why), "{bad}: {said}");
        }
        for bad in [".", "a.", "a..b", "a b", "*", "a.>"] {
            assert!(check_prefix(bad).is_err() && subjects(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn credentials_are_a_file_of_nats_or_one_line() {
        let password = Credentials::Password("u".into(), "p:w".into());
        assert_eq!(Credentials::parse("u:p:w\n"), Ok(password.clone()));
        assert_eq!(Credentials::parse("\n s3cret \n"), Ok(Credentials::Token("s3cret".into())));
        for bad in ["", "a\nb", "-----BEGIN NATS USER JWT-----\nx"] {
            assert!(Credentials::parse(bad).is_err(), "{bad:?}");
        }
        assert!(!format!("{password:?}").contains("p:w"));
    }
}
