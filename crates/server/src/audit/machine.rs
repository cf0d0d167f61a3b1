//! The machine of one segment of the audit trail: it is opened, and takes records as mail. It has no other move, so nothing
//! in it is ever changed or removed.

use super::{ACT, KIND, OUTCOME};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_kernel::{
    ids::EntityId,
    machine::{Cx, Decision, Input, Machine, Undecided},
    mail::Mail,
    table::{BIRTH, Claimable, Class, Move, SAME, StatusRow, Table},
    time::Timestamp,
};

/// The machine of a segment.
pub struct AuditSegment;

/// What a segment keeps in its head.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The day that it is of, in days since 1970.
    pub day: i64,
    /// Its number within the day, from 0.
    pub part: u32,
    /// Records in it so far, outcomes included.
    pub records: u64,
}

/// The segment before, as it stood when the next one was opened: a segment that is removed or replaced as a whole no longer fits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Previous {
    /// The segment.
    pub segment: EntityId,
    /// Its version.
    pub version: u64,
    /// Its chain value at that version.
    pub chain: String,
}

/// What is recorded of an act.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ActRecord {
    /// What was done, such as `keys.create`.
    pub act: String,
    /// Who did it.
    pub by: String,
    /// The id of the key that was shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<EntityId>,
    /// Whose entities it concerned; nothing for acts on the whole server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// What it was done to: an id or a name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The address that the request came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// More, depending on the act.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub details: Value,
    /// An outcome follows, which says whether it was carried out. Without one nobody knows.
    #[serde(default)]
    pub expects_outcome: bool,
}

/// How an act ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OutcomeRecord {
    /// The record of the act.
    pub of: String,
    /// It was carried out.
    pub done: bool,
    /// Why not, or what came of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// What happens to a segment.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// It was begun.
    AuditSegmentOpened {
        /// See [`State::day`].
        day: i64,
        /// See [`State::part`].
        part: u32,
        /// Nothing for the first segment of a store.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        previous: Option<Previous>,
    },
    /// Somebody is about to do something, or has done it.
    ActRecorded {
        /// The id of the record.
        id: String,
        /// When it was recorded.
        at: Timestamp,
        /// The act.
        record: ActRecord,
    },
    /// How an act ended.
    OutcomeRecorded {
        /// When it was recorded.
        at: Timestamp,
        /// The outcome.
        record: OutcomeRecord,
    },
    /// Mail that is no record.
    AuditMailIgnored {
        /// The id of the mail.
        id: String,
    },
}

/// The event of one mail. A reader uses it for mail that no commit has covered yet.
pub(super) fn event_of(mail: &Mail) -> Event {
    let read = |kind: &str| mail.body.inline().filter(|_| mail.kind == kind);
    let (id, at) = (mail.id.0.clone(), mail.at);
    let act = read(ACT).and_then(|bytes| tenure_kernel::stored::from_slice(bytes).ok());
    let outcome = read(OUTCOME).and_then(|bytes| tenure_kernel::stored::from_slice(bytes).ok());
    match (act, outcome) {
        (Some(record), _) => Event::ActRecorded { id, at, record },
        (None, Some(record)) => Event::OutcomeRecorded { at, record },
        (None, None) => Event::AuditMailIgnored { id },
    }
}

impl Machine for AuditSegment {
    type State = State;
    type Event = Event;
    const TABLE: &'static Table = &TABLE;

    fn name(event: &Event) -> &'static str {
        match event {
            Event::AuditSegmentOpened { .. } => "audit_segment_opened",
            Event::ActRecorded { .. } => "act_recorded",
            Event::OutcomeRecorded { .. } => "outcome_recorded",
            Event::AuditMailIgnored { .. } => "audit_mail_ignored",
        }
    }

    fn apply(state: &mut State, event: &Event) {
        match event {
            Event::AuditSegmentOpened { day, part, .. } => {
                *state = State { day: *day, part: *part, records: 0 };
            }
            Event::ActRecorded { .. } | Event::OutcomeRecorded { .. } => state.records += 1,
            Event::AuditMailIgnored { .. } => {}
        }
    }

    fn decide(
        _state: Option<&State>,
        input: &Input<'_>,
        _cx: &Cx,
    ) -> Result<Decision<Event>, Undecided> {
        match input {
            Input::Mail(mail) => {
                let events = mail.iter().map(event_of).collect();
                Ok(Decision { events, ..Decision::default() })
            }
            Input::Create(_) => Err(Undecided("the audit trail is not made by a message".into())),
            _ => Ok(Decision::default()),
        }
    }
}

/// Its table.
pub static TABLE: Table = Table {
    kind: KIND,
    doc: "A segment of the audit trail: administrative acts, in the order in which they were recorded.",
    statuses: &[StatusRow {
        name: "kept",
        class: Class::Resting,
        claimable: Claimable::No,
        doc: "Takes records. Never ends, so retention never removes it.",
    }],
    moves: &[
        Move { from: BIRTH, event: "audit_segment_opened", to: "kept" },
        Move { from: &["kept"], event: "act_recorded", to: SAME },
        Move { from: &["kept"], event: "outcome_recorded", to: SAME },
        Move { from: &["kept"], event: "audit_mail_ignored", to: SAME },
    ],
    forced: "",
};

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_kernel::{ids::MailId, stream::Body};

    #[test]
    fn the_table_is_sound_and_every_mail_is_ticked_off() {
        assert_eq!(TABLE.problems(), Vec::<String>::new());
        let cx = Cx {
            id: EntityId::fixed(7, 7),
            now: Timestamp::ZERO,
            version: 1,
            status: None,
            changed_at: None,
        };
        assert!(AuditSegment::decide(None, &Input::Create(&Body::Inline(vec![])), &cx).is_err());
        let mail = |kind: &str, body: Body| Mail {
            seq: 1,
            id: MailId("m".into()),
            kind: kind.into(),
            body,
            at: Timestamp::ZERO,
        };
        let act = ActRecord { act: "keys.create".into(), ..ActRecord::default() };
        let outcome = OutcomeRecord { of: "m".into(), done: true, note: None };
        let mails = [
            mail(ACT, Body::json(&act)),
            mail(OUTCOME, Body::json(&outcome)),
            mail(ACT, Body::Inline(b"no record".to_vec())),
            mail("cancel", Body::json(&act)),
        ];
        let decided =
            AuditSegment::decide(Some(&State::default()), &Input::Mail(&mails), &cx).unwrap();
        let names: Vec<_> = decided.events.iter().map(AuditSegment::name).collect();
        let ignored = "audit_mail_ignored";
        assert_eq!(names, ["act_recorded", "outcome_recorded", ignored, ignored]);
        let mut state = State::default();
        decided.events.iter().for_each(|event| AuditSegment::apply(&mut state, event));
        assert_eq!(state.records, 2);
    }
}
