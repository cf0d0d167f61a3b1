//! What a bus is told, and the subjects that follow from it. Everything that can never work is refused here, in words.

use crate::{event_subjects::EventSubjects, subjects::Subjects};
use async_nats::{ConnectOptions, ServerAddr};
use std::{path::Path, time::Duration};
use tenure_kernel::address::Address;

/// What a bus is told.
#[derive(Clone, Debug)]
pub struct BusOptions {
    /// Where the servers are: `nats://HOST:PORT` or `tls://HOST:PORT`, several with commas between them.
    pub url: Address,
    /// Stands before every subject, with a dot after it; may be empty.
    pub prefix: String,
    /// Whether a JetStream is made where none takes events. One that is there is used in any case.
    pub jetstream: bool,
    /// Where agents' events go.
    pub event_subjects: EventSubjects,
    /// How long nothing is published after a reconnect. A server that forgets what it has delivered delivers to those who have
    /// subscribed again by then.
    pub reconnect_pause: Duration,
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
    pub fn new(url: impl Into<Address>, store: &str) -> Self {
        BusOptions {
            url: url.into(),
            prefix: String::new(),
            jetstream: false,
            event_subjects: EventSubjects::default(),
            reconnect_pause: Duration::ZERO,
            credentials: None,
            store: store.to_owned(),
            name: "tenure".to_owned(),
        }
    }

    pub(super) fn subjects(&self) -> Result<Subjects, String> {
        let mut subjects = Subjects::new(&self.prefix, &self.store)?;
        subjects.events = self.event_subjects.clone();
        Ok(subjects)
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

/// The subject that the server complains it may not take from us. Names of subjects keep their case.
pub(super) fn denied_subject(complaint: &str) -> Option<&str> {
    let before = "violation for publish to \"";
    let at = complaint.to_ascii_lowercase().find(before)? + before.len();
    complaint[at..].split('"').next()
}

/// Whether this is the subject of an event. One that is not permitted holds all of them back, until somebody permits
/// them; of anything else only the one message is refused, or a tool that nobody may speak to would stop the events of
/// everybody. Rings that are not permitted are lost, as rings may be.
pub(super) fn is_event(subjects: &Subjects, subject: &str) -> bool {
    subject.starts_with(&subjects.full("evt."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subjects(prefix: &str) -> Result<Subjects, String> {
        BusOptions { prefix: prefix.into(), ..BusOptions::new("nats://h", "s1") }.subjects()
    }

    #[test]
    fn only_events_that_are_denied_hold_events_back() {
        let subjects = subjects("p").unwrap();
        let said =
            |subject: &str| format!("nats: Permissions Violation for Publish to \"{subject}\"");
        for (subject, event) in [
            ("p.evt.agent.A.task", true),
            ("p.tools.Approve", false),
            ("evt.of.others", false),
            ("p.tenure.bell.s1", false),
            ("p.cmd.agent.t.wakeup", false),
            ("_INBOX.x", false),
            ("$JS.API.STREAM.NAMES", false),
        ] {
            let complaint = said(subject);
            assert_eq!(denied_subject(&complaint), Some(subject));
            assert_eq!(is_event(&subjects, subject), event, "{subject}");
        }
        assert_eq!(denied_subject("Authorization Violation"), None);
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
