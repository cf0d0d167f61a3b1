//! The machine of a key: it is made, its secret may be replaced, and it ends by revocation or by its expiry.

use super::{KIND, Scope};
use serde::{Deserialize, Serialize};
use tenure_kernel::{
    ids::EntityId,
    machine::{Cx, Decision, Input, Machine, Undecided},
    table::{BIRTH, Claimable, Class, Move, SAME, StatusRow, Table},
    time::Timestamp,
    timers::TimerChange,
};

/// Sessions of the console that one key has open at once.
pub const SESSIONS_MAX: usize = 64;
/// The timer that ends a key.
pub(super) const EXPIRES: &str = "expires";

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
    // Fields that 0.1 did not have are left out while they are empty, so that the state of its keys is the same bytes as before.
    /// When it ends by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// Who made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_by: Option<String>,
    /// The secret before the last rotation, while it is still taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<PreviousSecret>,
    /// When its secret was replaced last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotated_at: Option<Timestamp>,
    /// About when it was used last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used_at: Option<Timestamp>,
    /// Who revoked it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_by: Option<String>,
    /// The sessions of the console that were opened with it, the oldest first, up to [`SESSIONS_MAX`]. Some may have ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sessions: Vec<EntityId>,
}

/// A secret that was replaced and is taken for a while longer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PreviousSecret {
    /// Of the secret, in hexadecimal.
    pub sha256: String,
    /// Until when it is taken.
    pub until: Timestamp,
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
        /// See [`State::expires_at`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expires_at: Option<Timestamp>,
        /// See [`State::created_by`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    /// Its secret was replaced.
    KeyRotated {
        /// Of the new secret.
        sha256: String,
        /// The replaced secret, if it is taken for a while longer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        previous: Option<PreviousSecret>,
        /// When.
        at: Timestamp,
        /// Who did it.
        by: String,
    },
    /// It was used. Written at most once in a while.
    KeyUsed {
        /// When.
        at: Timestamp,
    },
    /// Somebody signs in to the console with it.
    KeySignedIn {
        /// The session that is about to be opened.
        session: EntityId,
        /// Sessions that have ended, or end now to make room.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        instead_of: Vec<EntityId>,
    },
    /// Its time is over.
    KeyExpired,
    /// It can not be used any more.
    KeyRevoked {
        /// Who did it; not known of keys that 0.1 revoked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
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
            Event::KeyRotated { .. } => "key_rotated",
            Event::KeyUsed { .. } => "key_used",
            Event::KeySignedIn { .. } => "key_signed_in",
            Event::KeyExpired => "key_expired",
            Event::KeyRevoked { .. } => "key_revoked",
            Event::KeyIgnoredMail { .. } => "key_ignored_mail",
        }
    }

    fn apply(state: &mut State, event: &Event) {
        match event.clone() {
            Event::KeyCreated { name, tenant, scopes, sha256, expires_at, by } => {
                let created_by = by;
                let new = State {
                    name,
                    tenant,
                    scopes,
                    sha256,
                    expires_at,
                    created_by,
                    ..State::default()
                };
                *state = new;
            }
            Event::KeyRotated { sha256, previous, at, .. } => {
                (state.sha256, state.previous, state.rotated_at) = (sha256, previous, Some(at));
            }
            Event::KeyUsed { at } => state.last_used_at = Some(at),
            Event::KeySignedIn { session, instead_of } => {
                state.sessions.retain(|known| !instead_of.contains(known));
                state.sessions.push(session);
            }
            Event::KeyRevoked { by } => state.revoked_by = by,
            Event::KeyExpired | Event::KeyIgnoredMail { .. } => {}
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
            Input::Timer(EXPIRES) => Ok(Decision::event(Event::KeyExpired)
                .timer(TimerChange::Clear { name: EXPIRES.into() })),
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
            name: "expired",
            class: Class::Final,
            claimable: Claimable::No,
            doc: "Its time is over.",
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
        Move { from: &["active"], event: "key_rotated", to: SAME },
        Move { from: &["active"], event: "key_signed_in", to: SAME },
        Move { from: &["active"], event: "key_used", to: SAME },
        Move { from: &["active"], event: "key_expired", to: "expired" },
        Move { from: &["active"], event: "key_revoked", to: "revoked" },
    ],
    forced: "revoked",
};

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_kernel::stream::Body;

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
        let ends = Key::decide(None, &Input::Timer(EXPIRES), &cx).unwrap();
        assert!(matches!(ends.events[..], [Event::KeyExpired]));
    }

    /// `tenure verify` compares the state in the head with what the events make of it, byte by byte.
    #[test]
    fn a_key_of_version_0_1_keeps_its_bytes() {
        let created =
            r#"{"event":"key_created","name":"ci","tenant":null,"scopes":["read"],"sha256":"00"}"#;
        let event: Event = serde_json::from_str(created).unwrap();
        assert_eq!(serde_json::to_string(&event).unwrap(), created);
        let mut state = State::default();
        Key::apply(&mut state, &event);
        let kept = r#"{"name":"ci","tenant":null,"scopes":["read"],"sha256":"00"}"#;
        assert_eq!(serde_json::to_string(&state).unwrap(), kept);
        let revoked = r#"{"event":"key_revoked"}"#;
        let event: Event = serde_json::from_str(revoked).unwrap();
        assert_eq!(serde_json::to_string(&event).unwrap(), revoked);
        Key::apply(&mut state, &event);
        assert_eq!(serde_json::to_string(&state).unwrap(), kept);
    }
}
