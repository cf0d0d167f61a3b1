//! The audit trail: who did which administrative act, to what, when, and whether it was carried out.
//!
//! A record is mail to a *segment*, an entity of the kind `audit`, whose stream is hash-chained as every stream is. A segment has
//! a bounded number of records and belongs to one day; it never ends, so retention does not remove it. Its first event
//! repeats the chain value of the segment before.
//!
//! **Order.** The record of an act is durable before the act begins, and the act is refused if the record cannot be written. A
//! second record, the *outcome*, follows when the act has ended. So there is no act without a record. A record without an
//! outcome means that the process ended between the two; the history of the entity that was acted on says what became of it.
//!
//! Most acts are recorded by `record_acts`, for every route that is not a named exception. Code that acts without a request
//! uses [`AuditTrail::carry_out`], or [`AuditTrail::note`] for what has no outcome of its own.

mod acts;
mod links;
mod machine;
mod read;
mod refused;

pub(crate) use acts::{LookedUp, record_acts};
pub use links::broken_links;
pub use machine::{ActRecord, AuditSegment, Event, OutcomeRecord, Previous, State, TABLE};
pub use read::{AuditEntry, AuditFilter, AuditPage, page};
pub(crate) use read::{Query, read, routes};
pub(crate) use refused::RefusedActs;

use serde_json::{Value, json};
use std::fmt;
use tenure_engine::{birth::random, pipeline::Pipeline};
use tenure_kernel::{
    commit::{Birth, Commit, CommitAnswer, Expect, MailStance, UniqueKey},
    error::StoreError,
    head::Head,
    ids::{EntityId, MailId},
    limits::clip,
    machine::{Machine as _, Machines, decode_state, encode_state},
    mail::{MailAnswer, NewMail},
    store::HeadFilter,
    stream::{Body, Hash, NewEvent},
    time::Timestamp,
};

/// The kind of the segments.
pub const KIND: &str = "audit";
const ACT: &str = "act";
const OUTCOME: &str = "outcome";
/// Records of one segment, after which the next one is begun. Less than the events after which the kernel seals a segment, which
/// would let retention remove the first ones.
const SEGMENT_RECORDS_MAX: u64 = 2_000;
/// Bytes that are kept of a text.
const TEXT_BYTES_MAX: usize = 256;
/// Bytes that are kept of the details.
const DETAILS_BYTES_MAX: usize = 8 * 1024;
/// How often a segment is looked for when others open one at the same time.
const TRIES: usize = 5;
const DAY_MICROS: i64 = 86_400_000_000;

/// An act to be recorded. Long texts are cut.
#[derive(Clone, Debug, Default)]
pub struct Act {
    /// What is done, as `things.verb`.
    pub act: String,
    /// Who does it.
    pub by: String,
    /// The key that was shown.
    pub key: Option<EntityId>,
    /// Whose entities it concerns; `None` for the whole server.
    pub tenant: Option<String>,
    /// What it is done to: an id or a name.
    pub target: Option<String>,
    /// The address that the request came from.
    pub from: Option<String>,
    /// More; no secrets.
    pub details: Value,
}

impl Act {
    /// An act by somebody.
    pub fn new(act: impl Into<String>, by: impl Into<String>) -> Self {
        Act { act: act.into(), by: by.into(), ..Act::default() }
    }

    /// See [`Act::target`].
    pub fn target(mut self, target: impl fmt::Display) -> Self {
        self.target = Some(target.to_string());
        self
    }

    /// See [`Act::tenant`].
    pub fn tenant(mut self, tenant: Option<String>) -> Self {
        self.tenant = tenant;
        self
    }

    /// See [`Act::details`].
    pub fn details(mut self, details: Value) -> Self {
        self.details = details;
        self
    }

    fn record(self, expects_outcome: bool) -> ActRecord {
        let cut = |text: String| clip(&text, TEXT_BYTES_MAX).to_owned();
        let details = match self.details.to_string() {
            long if long.len() > DETAILS_BYTES_MAX => {
                json!({ "cut": clip(&long, DETAILS_BYTES_MAX / 2) })
            }
            _ => self.details,
        };
        ActRecord {
            act: cut(self.act),
            by: cut(self.by),
            key: self.key,
            tenant: self.tenant.map(cut),
            target: self.target.map(cut),
            from: self.from.map(cut),
            details,
            expects_outcome,
        }
    }
}

/// An act that is on record and not over.
#[derive(Debug)]
#[must_use = "the outcome of an act is recorded too"]
pub struct BegunAct {
    segment: EntityId,
    id: String,
}

/// Writes the audit trail of a store. Cheap to clone.
#[derive(Clone)]
pub struct AuditTrail {
    pipeline: Pipeline,
    is_kept: bool,
}

impl AuditTrail {
    /// The trail of the store behind a pipeline. Where the machines do not include segments nothing is recorded: tests of single parts.
    pub fn new(pipeline: Pipeline, machines: &Machines) -> Self {
        AuditTrail { pipeline, is_kept: machines.get(KIND).is_some() }
    }

    /// Records an act, carries it out, and records its outcome. If the act cannot be recorded it is not carried out.
    pub async fn carry_out<T, E>(
        &self,
        act: Act,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E>
    where
        E: From<StoreError> + fmt::Display,
    {
        let begun = self.begin(act).await?;
        let result = work.await;
        let note = result.as_ref().err().map(ToString::to_string);
        self.end(begun, result.is_ok(), note).await;
        result
    }

    /// Records that an act begins.
    pub async fn begin(&self, act: Act) -> Result<Option<BegunAct>, StoreError> {
        self.write(act.record(true)).await
    }

    /// Records how an act ended. A failure to write is logged and nothing more: the act is over.
    pub async fn end(&self, begun: Option<BegunAct>, done: bool, note: Option<String>) {
        let Some(BegunAct { segment, id }) = begun else { return };
        let note = note.map(|note| clip(&note, TEXT_BYTES_MAX).to_owned());
        let record = OutcomeRecord { of: id.clone(), done, note };
        let mail = NewMail {
            to: segment,
            id: MailId(format!("{id}/outcome")),
            kind: OUTCOME.into(),
            body: Body::json(&record),
        };
        match self.pipeline.mail(mail).await {
            Ok(MailAnswer::Accepted { .. } | MailAnswer::Duplicate) => {}
            Ok(other) => {
                tracing::error!(record = id, ?other, "the outcome of an act is not on record")
            }
            Err(e) => {
                tracing::error!(record = id, error = %e, "the outcome of an act is not on record")
            }
        }
    }

    /// Records something that has happened, or that has no outcome of its own.
    pub async fn note(&self, act: Act) -> Result<(), StoreError> {
        self.write(act.record(false)).await.map(drop)
    }

    async fn write(&self, record: ActRecord) -> Result<Option<BegunAct>, StoreError> {
        if !self.is_kept {
            return Ok(None);
        }
        let id =
            format!("{:016x}{:016x}", self.pipeline.rt().random(), self.pipeline.rt().random());
        let segment = self.segment().await?;
        let (kind, body) = (ACT.into(), Body::json(&record));
        let mail = NewMail { to: segment, id: MailId(id.clone()), kind, body };
        match self.pipeline.mail(mail).await? {
            MailAnswer::Accepted { .. } | MailAnswer::Duplicate => {
                Ok(Some(BegunAct { segment, id }))
            }
            other => Err(StoreError::Refused(format!("the audit trail answers {other:?}"))),
        }
    }

    /// The segment of this moment: the newest one if it is of today and has room, else a new one. It is looked up for every record,
    /// so that all servers of a store write to the same one.
    async fn segment(&self) -> Result<EntityId, StoreError> {
        for _ in 0..TRIES {
            let now = self.pipeline.store().now().await?;
            let day = now.as_micros().div_euclid(DAY_MICROS);
            let newest = newest(&self.pipeline).await?;
            let part = match &newest {
                Some((head, state)) if state.day >= day => {
                    if head.mail_count < SEGMENT_RECORDS_MAX {
                        return Ok(head.id);
                    }
                    state.part + 1
                }
                _ => 0,
            };
            // A clock that was set back does not reopen a day that is over.
            let day = newest.as_ref().map_or(day, |(_, state)| state.day.max(day));
            if let Some(opened) = self.open(now, day, part, newest.map(|(head, _)| head)).await? {
                return Ok(opened);
            }
        }
        Err(StoreError::Unavailable("no segment of the audit trail could be opened".into()))
    }

    /// `None`: another server opened it first.
    async fn open(
        &self,
        now: Timestamp,
        day: i64,
        part: u32,
        before: Option<Head>,
    ) -> Result<Option<EntityId>, StoreError> {
        // The newest segment is found by its id, so a later one has a later id, whatever the clock says.
        let after = before
            .as_ref()
            .map_or(now, |head| head.id.moment() + std::time::Duration::from_millis(1));
        let id = EntityId::new(now.max(after), random(&self.pipeline));
        let previous = before.map(|head| Previous {
            segment: head.id,
            version: head.version,
            chain: head.chain.to_string(),
        });
        let event = Event::AuditSegmentOpened { day, part, previous };
        let birth = Birth { kind: KIND, tenant: String::new(), queue: String::new(), priority: 0 };
        let events = vec![NewEvent::new(AuditSegment::name(&event), Body::json(&event))];
        let mut commit = Commit::new(self.pipeline.commit_id(), id, Expect::Absent(birth), events);
        let mut state = State::default();
        AuditSegment::apply(&mut state, &event);
        commit.state = Some(encode_state::<AuditSegment>(&state));
        commit.mail = MailStance::Regardless;
        let key = format!("{KIND}//{day}/{part}");
        commit.keys = vec![UniqueKey { digest: Hash::of(key.as_bytes()), key }];
        match self.pipeline.commit(commit).await? {
            CommitAnswer::Committed(_) => Ok(Some(id)),
            CommitAnswer::Exists { .. } => Ok(None),
            other => Err(StoreError::Refused(format!("the audit trail was not opened: {other:?}"))),
        }
    }
}

async fn newest(pipeline: &Pipeline) -> Result<Option<(Head, State)>, StoreError> {
    let filter =
        HeadFilter { kind: Some(KIND.into()), newest_first: true, ..HeadFilter::default() };
    let head = pipeline.store().heads(filter, 1).await?.pop();
    head.map(|head| state(&head).map(|state| (head, state))).transpose()
}

fn state(head: &Head) -> Result<State, StoreError> {
    decode_state::<AuditSegment>(&head.state).map_err(|e| StoreError::Corrupt(e.to_string()))
}
