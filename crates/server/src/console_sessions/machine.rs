//! The machine of a session of the console: it is opened with a key, and ends by signing out, by its expiry, or with its key.

use super::KIND;
use serde::{Deserialize, Serialize};
use tenure_kernel::{
    ids::EntityId,
    machine::{Cx, Decision, Input, Machine, Undecided},
    table::{BIRTH, Claimable, Class, Move, SAME, StatusRow, Table},
    time::Timestamp,
    timers::TimerChange,
};

/// The timer that ends a session.
pub(super) const EXPIRES: &str = "expires";

/// The machine of a session.
pub struct ConsoleSession;

/// What a session keeps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The key that it was opened with; `None` only before it is opened.
    pub key: Option<EntityId>,
    /// Of the secret in the cookie, in hexadecimal.
    pub sha256: String,
    /// Of the secret of the key that was shown, in hexadecimal.
    pub opened_with: String,
    /// When it ends by itself.
    pub expires_at: Timestamp,
}

/// What happens to a session.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// Somebody signed in.
    ConsoleSessionOpened {
        /// See [`State::key`].
        key: EntityId,
        /// See [`State::sha256`].
        sha256: String,
        /// See [`State::opened_with`].
        opened_with: String,
        /// See [`State::expires_at`].
        expires_at: Timestamp,
    },
    /// It can not be used any more.
    ConsoleSessionEnded {
        /// Why.
        why: String,
    },
    /// Somebody wrote to it. It has nothing to say to that, but mail has to be ticked off.
    ConsoleSessionIgnoredMail {
        /// How much.
        count: u64,
    },
}

impl Machine for ConsoleSession {
    type State = State;
    type Event = Event;
    const TABLE: &'static Table = &TABLE;

    fn name(event: &Event) -> &'static str {
        match event {
            Event::ConsoleSessionOpened { .. } => "console_session_opened",
            Event::ConsoleSessionEnded { .. } => "console_session_ended",
            Event::ConsoleSessionIgnoredMail { .. } => "console_session_ignored_mail",
        }
    }

    fn apply(state: &mut State, event: &Event) {
        if let Event::ConsoleSessionOpened { key, sha256, opened_with, expires_at } = event.clone()
        {
            *state = State { key: Some(key), sha256, opened_with, expires_at };
        }
    }

    fn decide(
        _state: Option<&State>,
        input: &Input<'_>,
        _cx: &Cx,
    ) -> Result<Decision<Event>, Undecided> {
        match input {
            Input::Mail(mail) => {
                let count = mail.len() as u64;
                Ok(Decision::event(Event::ConsoleSessionIgnoredMail { count }))
            }
            Input::Timer(EXPIRES) => {
                let why = "its time is over".to_owned();
                let ended = Decision::event(Event::ConsoleSessionEnded { why });
                Ok(ended.timer(TimerChange::clear(EXPIRES)))
            }
            Input::Create(_) => Err(Undecided("a session is not made by a message".into())),
            _ => Ok(Decision::default()),
        }
    }
}

/// Its table.
pub static TABLE: Table = Table {
    kind: KIND,
    doc: "A session of the console: a browser that is signed in with a key.",
    statuses: &[
        StatusRow {
            name: "active",
            class: Class::Resting,
            claimable: Claimable::No,
            doc: "The browser is signed in.",
        },
        StatusRow {
            name: "ended",
            class: Class::Final,
            claimable: Claimable::No,
            doc: "The browser is signed out.",
        },
    ],
    moves: &[
        Move { from: BIRTH, event: "console_session_opened", to: "active" },
        Move { from: &["active"], event: "console_session_ignored_mail", to: SAME },
        Move { from: &["active"], event: "console_session_ended", to: "ended" },
    ],
    forced: "ended",
};

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_kernel::stream::Body;

    #[test]
    fn the_table_is_sound_and_no_message_makes_a_session() {
        assert_eq!(TABLE.problems(), Vec::<String>::new());
        let cx = Cx {
            id: EntityId::fixed(7, 7),
            now: Timestamp::ZERO,
            version: 0,
            status: None,
            changed_at: None,
        };
        let decide = |input: &Input<'_>| ConsoleSession::decide(None, input, &cx);
        assert!(decide(&Input::Create(&Body::Inline(vec![]))).is_err());
        let ended = decide(&Input::Timer(EXPIRES)).unwrap();
        assert!(matches!(ended.events[..], [Event::ConsoleSessionEnded { .. }]));
    }
}
