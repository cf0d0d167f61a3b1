//! Machines: the pure core of a kind of work. A machine says what an event does to its state
//! ([`Machine::apply`]) and which events follow from an input ([`Machine::decide`]); its table says
//! which are allowed. Shells bring the input and carry out the decision.
//!
//! The due loop decides for entities without a holder, from the head alone. A holder decides from
//! memory with functions of its own domain and commits the same way.

use crate::{
    commit::{Birth, Commit, Expect, MailStance, TenureChange, UniqueKey},
    head::Head,
    ids::{CommitId, EntityId},
    mail::Mail,
    outbox::Message,
    stream::{Body, Hash, NewEvent, Record},
    table::{Class, Status, Table, Tables, kernel_events as ke},
    time::Timestamp,
    timers::TimerChange,
};
use serde::{Serialize, de::DeserializeOwned};
use std::{collections::BTreeMap, marker::PhantomData, sync::Arc, time::Duration};

/// Something happened that a machine may answer with events.
#[derive(Clone, Debug)]
pub enum Input<'a> {
    /// A message asks for a new entity.
    Create(&'a Body),
    /// A cancel came for an id that does not exist: create it cancelled, so that a creation that
    /// arrives later finds it so. A machine that can not answers with no events.
    CancelUnborn,
    /// Mail, in order. The decision covers all of it.
    Mail(&'a [Mail]),
    /// A timer fired. A machine that keeps it set is asked again at once.
    Timer(&'a str),
    /// `must_end_by` passed. The answer must be final; else the kernel forces it.
    MustEnd,
    /// The holder is gone; the kernel has just written `tenure_ended`, for this reason.
    TenureEnded(&'a str),
}

impl Input<'_> {
    /// The rule under which the due loop counts it.
    pub fn rule(&self) -> &'static str {
        match self {
            Input::Create(_) | Input::CancelUnborn => "create",
            Input::Mail(_) => "mail_waiting",
            Input::Timer(_) => "timer",
            Input::MustEnd => "must_end_by",
            Input::TenureEnded(_) => "holder_check",
        }
    }
}

/// What a decision may know about its surroundings.
#[derive(Clone, Copy, Debug)]
pub struct Cx {
    /// Which entity.
    pub id: EntityId,
    /// The store's time when the input was read. Deadlines are given as durations all the same: the
    /// commit that carries them is stamped later.
    pub now: Timestamp,
    /// Version before the decision.
    pub version: u64,
    /// Where it stands; `None` before it is born. A claim and the end of a tenure are events of the kernel, which a
    /// machine does not apply, so this is how it sees them.
    pub status: Option<Status>,
    /// When its last event was written, also one of the kernel's: with the status it says since when somebody holds it.
    pub changed_at: Option<Timestamp>,
}

/// The events that follow from an input, and what goes with them.
#[derive(Clone, Debug)]
pub struct Decision<E> {
    /// In order. At least one for every input that has to be ticked off: mail is covered and a timer
    /// cleared by a commit, and a commit has events. No answer counts as a failed decision.
    pub events: Vec<E>,
    /// Timers to set or clear.
    pub timers: Vec<TimerChange>,
    /// Messages to send.
    pub messages: Vec<Message>,
    /// `must_end_by` from now, where the entity becomes open.
    pub must_end_in: Option<Duration>,
    /// An end that mail does not stop: cancel or reap.
    pub regardless: bool,
    /// Marks the entity for a person, or clears the mark.
    pub attention: Option<Option<String>>,
    /// For `Create`: what is fixed. `None` takes tenant and queue from the message.
    pub placement: Option<Placement>,
    /// For `Create`: unique rows.
    pub keys: Vec<UniqueKey>,
    /// For a timer, without events: its moment has not come after all (it counts from a claim, say, which is no
    /// commit of the machine's). It is asked again then, and nothing is written.
    pub not_before: Option<Timestamp>,
}

/// Queue and priority of a new entity.
#[derive(Clone, Debug, Default)]
pub struct Placement {
    /// The queue.
    pub queue: String,
    /// Higher is sooner.
    pub priority: i16,
}

impl<E> Default for Decision<E> {
    fn default() -> Self {
        Decision {
            events: Vec::new(),
            timers: Vec::new(),
            messages: Vec::new(),
            must_end_in: None,
            regardless: false,
            attention: None,
            placement: None,
            keys: Vec::new(),
            not_before: None,
        }
    }
}

impl<E> Decision<E> {
    /// See [`Decision::not_before`].
    pub fn not_before(at: Timestamp) -> Self {
        Decision { not_before: Some(at), ..Self::default() }
    }

    /// One event.
    pub fn event(event: E) -> Self {
        Decision { events: vec![event], ..Self::default() }
    }

    /// Another event.
    pub fn and(mut self, event: E) -> Self {
        self.events.push(event);
        self
    }

    /// A timer change.
    pub fn timer(mut self, change: TimerChange) -> Self {
        self.timers.push(change);
        self
    }

    /// A message.
    pub fn send(mut self, message: Message) -> Self {
        self.messages.push(message);
        self
    }

    /// See [`Decision::must_end_in`].
    pub fn must_end_in(mut self, d: Duration) -> Self {
        self.must_end_in = Some(d);
        self
    }

    /// See [`Decision::regardless`].
    pub fn regardless(mut self) -> Self {
        self.regardless = true;
        self
    }
}

/// A decision that could not be made. Retried with backoff, then the entity is marked `attention`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Undecided(pub String);

/// A pure core.
pub trait Machine: Send + Sync + 'static {
    /// What the head keeps.
    type State: Serialize
        + DeserializeOwned
        + Default
        + Clone
        + PartialEq
        + std::fmt::Debug
        + Send
        + Sync
        + 'static;
    /// What can happen. Serialises to an object that names itself (`#[serde(tag = "event")]`).
    type Event: Serialize + DeserializeOwned + std::fmt::Debug;

    /// The transition table.
    const TABLE: &'static Table;

    /// The event's name in the table.
    fn name(event: &Self::Event) -> &'static str;

    /// What an event does to the state. Total: an event that is in the stream has happened.
    fn apply(state: &mut Self::State, event: &Self::Event);

    /// Which events follow. `state` is `None` before birth.
    fn decide(
        state: Option<&Self::State>,
        input: &Input<'_>,
        cx: &Cx,
    ) -> Result<Decision<Self::Event>, Undecided>;

    /// The kinds whose commits may create one of this kind by a message, and [`crate::sessions::WORKER`]'s kind where a
    /// worker may commit one directly. The server holds commits of workers to it; commits of the server's own code are
    /// not looked at.
    const CREATED_BY: &'static [&'static str] = &[];

    /// Where the body that creates one, and its first event, name the entity that is told how it ended: a JSON pointer.
    /// Of what a worker's commit creates that entity is the creator.
    const REPORTS_TO: Option<&'static str> = None;

    /// Where the state names the same entity. It never changes.
    const REPORTS_TO_IN_STATE: Option<&'static str> = Self::REPORTS_TO;

    /// Whether this timer judges: somebody was silent for too long, and something ends, or is taken from them. Such a
    /// timer waits, as the check of a holder does, for one lease after an outage: while nobody could say anything,
    /// nobody was silent. One that is a moment (a schedule, a pause before the next try, a sleep) or only rings must
    /// not wait, so a machine names those that do.
    fn judges(timer: &str) -> bool {
        let _ = timer;
        false
    }
}

/// A decision with its types erased: what a commit of it will carry.
#[derive(Clone, Debug, Default)]
pub struct Draft {
    /// In order; kernel events included.
    pub events: Vec<NewEvent>,
    /// The machine's new state.
    pub state: Option<Vec<u8>>,
    /// See [`Decision::timers`].
    pub timers: Vec<TimerChange>,
    /// See [`Decision::messages`].
    pub messages: Vec<Message>,
    /// See [`Decision::must_end_in`].
    pub must_end_in: Option<Duration>,
    /// What the commit says about mail.
    pub mail: Option<MailStance>,
    /// Whether a tenure ends.
    pub ends_tenure: bool,
    /// See [`Decision::attention`].
    pub attention: Option<Option<String>>,
    /// See [`Decision::placement`].
    pub placement: Placement,
    /// See [`Decision::keys`].
    pub keys: Vec<UniqueKey>,
    /// See [`Decision::not_before`]. There are no events then.
    pub not_before: Option<Timestamp>,
}

impl Draft {
    /// The commit that carries the draft.
    pub fn into_commit(self, id: CommitId, entity: EntityId, expect: Expect) -> Commit {
        let mut commit = Commit::new(id, entity, expect, self.events);
        commit.state = self.state;
        commit.timers = self.timers;
        commit.messages = self.messages;
        commit.must_end_in = self.must_end_in;
        commit.mail = self.mail.unwrap_or(MailStance::Unread);
        commit.attention = self.attention;
        commit.keys = self.keys;
        if self.ends_tenure {
            commit.tenure = TenureChange::End;
        }
        commit
    }
}

/// Bodies that lie beside a stream, by digest.
pub type Blobs = BTreeMap<Hash, Vec<u8>>;

/// A machine with its types erased, as the loops use it.
pub trait Core: Send + Sync {
    /// Its table.
    fn table(&self) -> &'static Table;
    /// Decides, applies the events, and encodes the result. `None`: nothing to commit.
    fn decide(
        &self,
        head: Option<&Head>,
        input: &Input<'_>,
        cx: &Cx,
    ) -> Result<Option<Draft>, Undecided>;
    /// See [`Machine::judges`].
    fn judges(&self, timer: &str) -> bool {
        let _ = timer;
        false
    }
    /// See [`Machine::CREATED_BY`].
    fn created_by(&self) -> &'static [&'static str] {
        &[]
    }
    /// See [`Machine::REPORTS_TO`].
    fn reports_to(&self) -> Option<&'static str> {
        None
    }
    /// See [`Machine::REPORTS_TO_IN_STATE`].
    fn reports_to_in_state(&self) -> Option<&'static str> {
        None
    }
    /// The state that a complete stream gives. Bodies that are blobs are looked up.
    fn replay(&self, records: &[Record], blobs: &Blobs) -> Result<Vec<u8>, Undecided>;
}

struct Typed<M>(PhantomData<fn() -> M>);

impl<M: Machine> Core for Typed<M> {
    fn table(&self) -> &'static Table {
        M::TABLE
    }

    fn decide(
        &self,
        head: Option<&Head>,
        input: &Input<'_>,
        cx: &Cx,
    ) -> Result<Option<Draft>, Undecided> {
        let state: Option<M::State> = head.map(|h| decode_state::<M>(&h.state)).transpose()?;
        let decision = M::decide(state.as_ref(), input, cx)?;
        draft::<M>(head, state.unwrap_or_default(), decision, input)
    }

    fn judges(&self, timer: &str) -> bool {
        M::judges(timer)
    }

    fn created_by(&self) -> &'static [&'static str] {
        M::CREATED_BY
    }

    fn reports_to(&self) -> Option<&'static str> {
        M::REPORTS_TO
    }

    fn reports_to_in_state(&self) -> Option<&'static str> {
        M::REPORTS_TO_IN_STATE
    }

    fn replay(&self, records: &[Record], blobs: &Blobs) -> Result<Vec<u8>, Undecided> {
        let mut state = M::State::default();
        for record in records {
            for mut event in record.events().map_err(|e| Undecided(e.to_string()))? {
                if let Body::Blob { digest, .. } = &event.body
                    && let Some(bytes) = blobs.get(digest)
                {
                    event.body = Body::Inline(bytes.clone());
                }
                if let Some(event) = decode_event::<M>(&event.name, &event.body)? {
                    M::apply(&mut state, &event);
                }
            }
        }
        Ok(encode_state::<M>(&state))
    }
}

/// The kernel's own events carry nothing a machine's state depends on.
fn is_kernel_event(name: &str) -> bool {
    ke::UNIVERSAL.contains(&name)
        || [ke::CLAIMED, ke::TENURE_ENDED, ke::FORCE_ENDED].contains(&name)
}

/// Reads an event of a stream; `None` for the kernel's own.
pub fn decode_event<M: Machine>(name: &str, body: &Body) -> Result<Option<M::Event>, Undecided> {
    if is_kernel_event(name) {
        return Ok(None);
    }
    let bytes = body
        .inline()
        .ok_or_else(|| Undecided(format!("the body of {name} is a blob: load it first")))?;
    let event = crate::stored::from_slice(bytes);
    event
        .map(Some)
        .map_err(|e| Undecided(format!("event {name} of a {} can not be read: {e}", M::TABLE.kind)))
}

/// Reads the state kept in a head.
pub fn decode_state<M: Machine>(bytes: &[u8]) -> Result<M::State, Undecided> {
    if bytes.is_empty() {
        return Ok(M::State::default());
    }
    crate::stored::from_slice(bytes)
        .map_err(|e| Undecided(format!("the state of a {} can not be read: {e}", M::TABLE.kind)))
}

/// The bytes a head keeps.
pub fn encode_state<M: Machine>(state: &M::State) -> Vec<u8> {
    match Body::json(state) {
        Body::Inline(bytes) => bytes,
        Body::Blob { .. } => Vec::new(),
    }
}

/// Applies a decision to a state and encodes both. Also used by holders.
pub fn draft<M: Machine>(
    head: Option<&Head>,
    mut state: M::State,
    decision: Decision<M::Event>,
    input: &Input<'_>,
) -> Result<Option<Draft>, Undecided> {
    draft_on::<M>(head, &mut state, decision, input)
}

/// The same, for somebody who goes on with the state.
pub fn draft_on<M: Machine>(
    head: Option<&Head>,
    state: &mut M::State,
    decision: Decision<M::Event>,
    input: &Input<'_>,
) -> Result<Option<Draft>, Undecided> {
    let held = head.is_some_and(|h| h.holder.is_some());
    let mut events = Vec::with_capacity(decision.events.len() + 1);
    if let Input::TenureEnded(why) = input {
        events
            .push(NewEvent::new(ke::TENURE_ENDED, Body::json(&serde_json::json!({ "why": why }))));
    }
    for event in &decision.events {
        M::apply(state, event);
        events.push(NewEvent::new(M::name(event), Body::json(event)));
    }
    if events.is_empty() {
        let asks_later = matches!(input, Input::Timer(_)) && decision.not_before.is_some();
        let later = Draft { not_before: decision.not_before, ..Draft::default() };
        return Ok(asks_later.then_some(later));
    }
    // A guard over a holder's head ends the tenure: by ending the entity, or else as an event in front.
    let overrules = held && matches!(input, Input::Timer(_));
    let mut status = path::<M>(head, &events);
    if overrules && !matches!(&status, Ok(s) if s.class() == Class::Final) {
        let body = Body::json(&serde_json::json!({ "why": input.rule() }));
        events.insert(0, NewEvent::new(ke::TENURE_ENDED, body));
        status = path::<M>(head, &events);
    }
    let status = Some(status?);
    let is_final = status.is_some_and(|s| s.class() == Class::Final);
    let read = match input {
        Input::Mail(mail) => mail.last().map(|m| m.seq),
        _ => None,
    };
    let so_far = head.map_or(0, |h| h.mail_read);
    let forced =
        decision.regardless || overrules || matches!(input, Input::MustEnd | Input::TenureEnded(_));
    let mail = match (is_final, forced, read) {
        (_, true, None) | (true, true, _) => Some(MailStance::Regardless),
        (true, false, n) => Some(MailStance::ReadAll(n.unwrap_or(so_far))),
        (false, _, Some(n)) => Some(MailStance::Read(n)),
        (false, false, None) => None,
    };
    let ends_tenure = held && (is_final || overrules || matches!(input, Input::TenureEnded(_)));
    Ok(Some(Draft {
        events,
        state: Some(encode_state::<M>(state)),
        timers: decision.timers,
        messages: decision.messages,
        must_end_in: decision.must_end_in,
        mail,
        ends_tenure,
        attention: decision.attention,
        placement: decision.placement.unwrap_or_default(),
        keys: decision.keys,
        not_before: None,
    }))
}

/// Where events lead from a head.
fn path<M: Machine>(head: Option<&Head>, events: &[NewEvent]) -> Result<Status, Undecided> {
    let mut status = head.map(|h| h.status);
    for event in events {
        status = Some(M::TABLE.step(status, &event.name).map_err(|e| Undecided(e.to_string()))?);
    }
    status.ok_or_else(|| Undecided("no events".into()))
}

/// All machines of a process.
#[derive(Clone, Default)]
pub struct Machines(BTreeMap<&'static str, Arc<dyn Core>>);

impl Machines {
    /// The kernel's own machines: worker sessions, lanes, and the block book.
    pub fn kernel() -> Self {
        let mut machines = Machines::default();
        for table in [&crate::sessions::WORKER, &crate::sessions::LANE] {
            machines.0.insert(table.kind, Arc::new(Plain(table)));
        }
        machines.with::<crate::blocks::BlockBook>()
    }

    /// Adds a machine. A table with problems is a programmer's error and stops the program at start.
    pub fn with<M: Machine>(mut self) -> Self {
        let problems = M::TABLE.problems();
        assert!(problems.is_empty(), "the table of {}: {}", M::TABLE.kind, problems.join("; "));
        self.0.insert(M::TABLE.kind, Arc::new(Typed::<M>(PhantomData)));
        self
    }

    /// A machine by kind.
    pub fn get(&self, kind: &str) -> Option<&Arc<dyn Core>> {
        self.0.get(kind)
    }

    /// Whether a commit of one kind, made by a worker, may create one of another. A worker that commits one directly
    /// is [`crate::sessions::WORKER`].
    pub fn may_create(&self, by: &str, kind: &str) -> bool {
        self.0.get(kind).is_some_and(|core| core.created_by().contains(&by))
    }

    /// The tables, for the judge.
    pub fn tables(&self) -> Tables {
        let mut tables = Tables::default();
        self.0.values().for_each(|core| tables.insert(core.table()));
        tables
    }

    /// A birth for an entity that a message creates.
    pub fn birth(&self, kind: &str, tenant: &str, placement: &Placement) -> Option<Birth> {
        let table = self.0.get(kind)?.table();
        let (queue, priority) = (placement.queue.clone(), placement.priority);
        Some(Birth { kind: table.kind, tenant: tenant.to_owned(), queue, priority })
    }
}

/// A machine without state: the table says everything.
struct Plain(&'static Table);

impl Core for Plain {
    fn table(&self) -> &'static Table {
        self.0
    }

    /// A worker opens its own session. Lanes are made by servers.
    fn created_by(&self) -> &'static [&'static str] {
        const BY_WORKERS: &[&str] = &["worker"];
        if BY_WORKERS.contains(&self.0.kind) { BY_WORKERS } else { &[] }
    }

    fn decide(
        &self,
        head: Option<&Head>,
        input: &Input<'_>,
        _cx: &Cx,
    ) -> Result<Option<Draft>, Undecided> {
        let Input::TenureEnded(why) = input else { return Ok(None) };
        let held = head.is_some_and(|h| h.holder.is_some());
        let body = Body::json(&serde_json::json!({ "why": why }));
        let events = vec![NewEvent::new(ke::TENURE_ENDED, body)];
        let mail = Some(MailStance::Regardless);
        Ok(Some(Draft { events, mail, ends_tenure: held, ..Draft::default() }))
    }

    fn replay(&self, _records: &[Record], _blobs: &Blobs) -> Result<Vec<u8>, Undecided> {
        Ok(Vec::new())
    }
}
