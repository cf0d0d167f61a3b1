//! The machine of a key: made, and some day revoked. Everything else leaves it as it is.

use super::{KIND, Scope};
use serde::{Deserialize, Serialize};
use tenure_kernel::{
    machine::{Cx, Decision, Input, Machine, Undecided},
    table::{BIRTH, Claimable, Class, Move, SAME, StatusRow, Table},
};

/// The machine of a key.
pub struct Key;

/// What a key keeps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// See [`super::NewKey::name`].
    pub name: String,
    /// See [`super::NewKey::tenant`].
    pub tenant: Option<String>,
    /// See [`super::NewKey::scopes`].
    pub scopes: Vec<Scope>,
    /// Of the secret, in hexadecimal.
    pub sha256: String,
}

/// What happens to a key.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// It was made.
    KeyCreated {
        /// See [`State::name`].
        name: String,
        /// See [`State::tenant`].
        tenant: Option<String>,
        /// See [`State::scopes`].
        scopes: Vec<Scope>,
        /// See [`State::sha256`].
        sha256: String,
    },
    /// It can not be used any more.
    KeyRevoked,
    /// Somebody wrote to it. It has nothing to say to that, but mail has to be ticked off.
    KeyIgnoredMail {
        /// How much.
        count: u64,
    },
}

impl Machine for Key {
    type State = State;
    type Event = Event;
    const TABLE: &'static Table = &TABLE;

    fn name(event: &Event) -> &'static str {
        match event {
            Event::KeyCreated { .. } => "key_created",
            Event::KeyRevoked => "key_revoked",
            Event::KeyIgnoredMail { .. } => "key_ignored_mail",
        }
    }

    fn apply(state: &mut State, event: &Event) {
        if let Event::KeyCreated { name, tenant, scopes, sha256 } = event.clone() {
            *state = State { name, tenant, scopes, sha256 };
        }
    }

    fn decide(
        _state: Option<&State>,
        input: &Input<'_>,
        _cx: &Cx,
    ) -> Result<Decision<Event>, Undecided> {
        match input {
            Input::Mail(mail) => {
                Ok(Decision::event(Event::KeyIgnoredMail { count: mail.len() as u64 }))
            }
            Input::Create(_) => Err(Undecided("a key is not made by a message".into())),
            _ => Ok(Decision::default()),
        }
    }
}

/// Its table.
pub static TABLE: Table = Table {
    kind: KIND,
    doc: "An API key: who may call, for which tenant, and what.",
    statuses: &[
        StatusRow {
            name: "active",
            class: Class::Resting,
            claimable: Claimable::No,
            doc: "Can be used.",
        },
        StatusRow {
            name: "revoked",
            class: Class::Final,
            claimable: Claimable::No,
            doc: "Can not be used any more.",
        },
    ],
    moves: &[
        Move { from: BIRTH, event: "key_created", to: "active" },
        Move { from: &["active"], event: "key_ignored_mail", to: SAME },
        Move { from: &["active"], event: "key_revoked", to: "revoked" },
    ],
    forced: "revoked",
};

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_kernel::{ids::EntityId, stream::Body, time::Timestamp};

    #[test]
    fn the_table_is_sound_and_no_message_makes_a_key() {
        assert_eq!(TABLE.problems(), Vec::<String>::new());
        let cx = Cx {
            id: EntityId::fixed(7, 7),
            now: Timestamp::ZERO,
            version: 0,
            status: None,
            changed_at: None,
        };
        assert!(Key::decide(None, &Input::Create(&Body::Inline(vec![])), &cx).is_err());
    }
}
