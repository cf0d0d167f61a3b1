//! The judge: decides every commit from the locked head alone. All stores call it and none has rules
//! of its own, so memory, SQLite and Postgres cannot disagree about what is allowed.
//!
//! The order of the questions matters: existence, end, tenure, version, mail, admission, transition, deadline,
//! limits. A stale holder is told that it is stale before it is told that it is late.
//!
//! A verdict never looks at another entity (rule 7), which is what lets entities be spread over many
//! databases and lets a refused commit leave its neighbours in the batch alone.

use crate::{
    admission::{Admissions, Newborn},
    commit::{Commit, CommitAnswer, Committed, Expect, MailStance, Refusal, TenureChange},
    head::Head,
    housekeeping::{first_epoch, wants_seal},
    ids::{CommitId, EntityId, MessageId, SessionId},
    limits,
    outbox::{Message, Posted, Target},
    sessions::WORKER,
    stream::{Body, Hash, Joint, NewEvent, Record, pack},
    table::{Class, Status, Tables, kernel_events as ke},
    time::Timestamp,
    timers::{TimerChange, Timers},
    verify::Meta,
};
use std::time::Duration;

/// What a drill or a test may switch off, to show that something then breaks. Always all on in a
/// server; a protection that nothing misses is not one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protections {
    /// Epoch and holder are compared.
    pub fencing: bool,
    /// The version is compared.
    pub versions: bool,
    /// A commit that parks or ends is refused when more mail has come.
    pub mail: bool,
    /// Blocked, resting and held entities can not be claimed.
    pub blocked: bool,
    /// Final entities do not change.
    pub finality: bool,
    /// An outbox row is delivered under the lane's tenure, and only while it is there.
    pub outbox: bool,
    /// A commit id that is already there is recognised.
    pub repetition: bool,
    /// After an outage reclaim waits one lease.
    pub pulse: bool,
    /// Retention leaves what is vacant alone while mail waits for it, or something of it is on its way.
    pub vacancy: bool,
}

impl Default for Protections {
    fn default() -> Self {
        Protections {
            fencing: true,
            versions: true,
            mail: true,
            blocked: true,
            finality: true,
            outbox: true,
            repetition: true,
            pulse: true,
            vacancy: true,
        }
    }
}

/// Decides commits. Holds the tables of the machines that this process knows.
#[derive(Clone, Debug, Default)]
pub struct Judge {
    /// One per kind.
    pub tables: Tables,
    /// Everything on, except in drills.
    pub protections: Protections,
    /// Which entities may be created.
    pub admissions: Admissions,
}

/// Everything an accepted commit writes.
#[derive(Clone, PartialEq, Debug)]
pub struct Written {
    /// The head after it.
    pub head: Head,
    /// The stream's new row.
    pub record: Record,
    /// The outbox's new rows.
    pub posted: Vec<Posted>,
    /// Mail that waits after it.
    pub mail_waiting: u64,
    /// See [`Committed::ready_in`].
    pub ready_in: Option<String>,
    /// See [`Committed::due_soon`].
    pub due_soon: bool,
}

impl Written {
    /// The answer for the committer.
    pub fn answer(&self) -> CommitAnswer {
        CommitAnswer::Committed(Committed {
            version: self.head.version,
            epoch: self.head.epoch,
            chain: self.head.chain,
            at: self.record.at,
            mail_waiting: self.mail_waiting,
            repeated: false,
            ready_in: self.ready_in.clone(),
            due_soon: self.due_soon,
        })
    }

    /// Digests of the blobs that the record names.
    pub fn blobs(commit: &Commit) -> impl Iterator<Item = Hash> + '_ {
        let of = |b: &Body| match b {
            Body::Blob { digest, .. } => Some(*digest),
            Body::Inline(_) => None,
        };
        commit
            .events
            .iter()
            .filter_map(move |e| of(&e.body))
            .chain(commit.messages.iter().filter_map(move |m| of(&m.body)))
    }
}

impl Judge {
    /// A judge for these tables, with every protection on.
    pub fn new(tables: Tables) -> Self {
        Judge { tables, ..Judge::default() }
    }

    /// The same judge with these rules for new entities.
    pub fn admitting(self, admissions: Admissions) -> Self {
        Judge { admissions, ..self }
    }

    /// Judges a commit on the locked head. `now` is the store's time of the batch.
    pub fn commit(
        &self,
        head: Option<&Head>,
        commit: &Commit,
        now: Timestamp,
    ) -> Result<Written, CommitAnswer> {
        self.commit_of(None, head, commit, now)
    }

    /// The same of a commit that a message of `creator` asked for.
    pub fn commit_of(
        &self,
        creator: Option<EntityId>,
        head: Option<&Head>,
        commit: &Commit,
        now: Timestamp,
    ) -> Result<Written, CommitAnswer> {
        self.admit(head, commit)?;
        if let Expect::Absent(birth) = &commit.expect {
            let newborn = Newborn {
                id: commit.entity,
                tenant: &birth.tenant,
                creator,
                state: commit.state.as_deref().unwrap_or_default(),
                events: &commit.events,
            };
            let admitted = self.admissions.admit(birth.kind, &newborn);
            admitted.map_err(|why| CommitAnswer::Refused(Refusal::NotAdmitted(why)))?;
        }
        check_limits(commit).map_err(CommitAnswer::Refused)?;
        self.write(head, commit, now).map_err(CommitAnswer::Refused)
    }

    /// Judges a claim: the same commit, made here because it depends on no machine's state.
    pub fn claim(
        &self,
        head: &Head,
        session: SessionId,
        lease: Duration,
        by_name: bool,
        id: CommitId,
        now: Timestamp,
    ) -> Result<Written, CommitAnswer> {
        if self.protections.blocked && !head.can_be_claimed(by_name) {
            return Err(match (head.class(), head.holder) {
                (Class::Final, _) => CommitAnswer::Final { status: head.status.name() },
                (_, Some(_)) => CommitAnswer::StaleEpoch { current: head.epoch },
                _ => CommitAnswer::Refused(Refusal::Tenure(
                    "blocked and resting entities are never claimed",
                )),
            });
        }
        let body = Body::json(&serde_json::json!({ "session": session, "epoch": head.epoch + 1 }));
        let expect = Expect::Nobody { epoch: head.epoch, version: head.version };
        let mut commit = Commit::new(id, head.id, expect, vec![NewEvent::new(ke::CLAIMED, body)]);
        commit.tenure = TenureChange::Take { session, lease };
        self.commit(Some(head), &commit, now)
    }

    /// Whether the committer's beliefs still hold.
    fn admit(&self, head: Option<&Head>, commit: &Commit) -> Result<(), CommitAnswer> {
        let p = &self.protections;
        let head = match (head, &commit.expect) {
            (None, Expect::Absent(_)) => return Ok(()),
            (Some(head), Expect::Absent(_)) => {
                return Err(CommitAnswer::Exists { entity: head.id, same: false });
            }
            (None, _) => return Err(CommitAnswer::Refused(Refusal::Unknown(commit.entity))),
            (Some(head), _) => head,
        };
        if p.finality && head.class() == Class::Final {
            return Err(CommitAnswer::Final { status: head.status.name() });
        }
        let (epoch, version, held) = match commit.expect {
            Expect::Holder { epoch, version } => (epoch, Some(version), Some(true)),
            Expect::Nobody { epoch, version } => (epoch, Some(version), Some(false)),
            Expect::Overrule { epoch, version } => (epoch, Some(version), None),
            Expect::EndTenure { epoch } => (epoch, None, Some(true)),
            Expect::Absent(_) => return Ok(()),
        };
        if p.fencing && (head.epoch != epoch || held.is_some_and(|h| h != head.holder.is_some())) {
            return Err(CommitAnswer::StaleEpoch { current: head.epoch });
        }
        if p.versions && version.is_some_and(|v| v != head.version) {
            return Err(CommitAnswer::VersionConflict { current: head.version });
        }
        match commit.mail {
            MailStance::ReadAll(n) if p.mail && n < head.mail_count => {
                Err(CommitAnswer::MoreMail { count: head.mail_count })
            }
            _ => Ok(()),
        }
    }

    /// Works out everything the commit writes.
    fn write(
        &self,
        head: Option<&Head>,
        commit: &Commit,
        now: Timestamp,
    ) -> Result<Written, Refusal> {
        let table = match (head, &commit.expect) {
            (Some(h), _) => h.status.table,
            (None, Expect::Absent(b)) => {
                self.tables.get(b.kind).ok_or_else(|| Refusal::UnknownKind(b.kind.to_owned()))?
            }
            (None, _) => return Err(Refusal::Unknown(commit.entity)),
        };
        let mut status = head.map(|h| h.status);
        for event in &commit.events {
            status = Some(match table.step(status, &event.name) {
                // The table says the same as the protection that is off.
                Err(illegal) if !self.protections.blocked && event.name == ke::CLAIMED => {
                    table.where_claims_lead().ok_or(illegal)?
                }
                stepped => stepped?,
            });
        }
        let Some(status) = status else {
            return Err(Refusal::Limit { what: "number of events", actual: 0, limit: 1 });
        };
        check_tenure(head, commit, status)?;
        check_seal(head, commit)?;
        self.check_mail(head, commit, status)?;

        let at = head.map_or(now, |h| h.changed_at.max(now));
        let meta = resolve(head, commit, status, at)?;
        let (epoch_before, first) = match head {
            Some(h) => (h.epoch, h.version + 1),
            None => (first_epoch(table.comes_again(), at), 1),
        };
        let takes = matches!(commit.tenure, TenureChange::Take { .. } | TenureChange::Open(_));
        let joint = Joint {
            previous: head.map_or(Hash::ZERO, |h| h.chain),
            first,
            at,
            epoch: epoch_before + u64::from(takes),
        };
        let record = pack(commit.entity, commit.id, joint, &meta.to_bytes(), &commit.events);
        let names = commit.events.iter().map(|e| &*e.name);
        let mut after = meta.fold(head, &record, names, status)?;
        after.check_at = match &commit.tenure {
            _ if after.holder.is_none() => None,
            TenureChange::Take { lease, .. } => Some(at + *lease),
            TenureChange::Open(o) => Some(at + Duration::from_millis(o.lease_ms)),
            TenureChange::Keep | TenureChange::End => head.and_then(|h| h.check_at),
        };
        if let Some(state) = &commit.state {
            after.state.clone_from(state);
        }
        let size = after.state.len() + after.timers.len() * 24;
        within("machine state in bytes", size, limits::HEAD_STATE_BYTES_MAX)?;
        within("number of timers", after.timers.len(), limits::TIMERS_MAX)?;
        // A holder that lets go takes its check with it. Left as a lower bound, a hundred thousand jobs that were
        // parked in one minute would all be due one lease later, in front of every signal.
        let let_go = head.is_some_and(|h| h.holder.is_some()) && after.holder.is_none();
        let before = head.and_then(|h| h.due).filter(|_| !let_go);
        after.due = next_due(&after, before, now);
        let posted = post(&after, &record, &commit.messages);
        let mail_waiting = after.mail_count - after.mail_read;
        let newly_ready = after.ready_at.is_some() && head.is_none_or(|h| h.ready_at.is_none());
        let ready_in = newly_ready.then(|| after.queue.clone());
        let sooner =
            head.and_then(|h| h.due).is_none_or(|before| after.due.is_some_and(|d| d < before));
        let due_soon = sooner && after.due.is_some_and(|d| d < now + limits::TICK);
        Ok(Written { head: after, record, posted, mail_waiting, ready_in, due_soon })
    }

    fn check_mail(
        &self,
        head: Option<&Head>,
        commit: &Commit,
        status: Status,
    ) -> Result<(), Refusal> {
        let Some(head) = head else { return Ok(()) };
        let gives_up = matches!(commit.tenure, TenureChange::End) && head.holder.is_some();
        let waits = status.row().claimable == crate::table::Claimable::No;
        let must_have_read = status.class() == Class::Final || (gives_up && waits);
        let has_said = matches!(commit.mail, MailStance::ReadAll(_) | MailStance::Regardless);
        if self.protections.mail && must_have_read && !has_said {
            return Err(Refusal::MailNotRead(status.name()));
        }
        Ok(())
    }
}

/// `due` is a lower bound: it moves earlier at once, and later only when it has fired or a holder lets go. An
/// index that moves with every step would double the write-ahead log. Unread mail without a holder is due now.
fn next_due(head: &Head, before: Option<Timestamp>, now: Timestamp) -> Option<Timestamp> {
    if head.class() == Class::Final {
        return None;
    }
    // What rests may have neither timer nor mail, a limit say: grown long, it is visited to be sealed.
    let long = head.class() == Class::Resting && wants_seal(head, limits::SEGMENT_EVENTS);
    let wanted = head.holder.is_none() && (head.has_mail() || long);
    let earliest = if wanted { Some(now) } else { head.earliest() };
    let due = match before {
        Some(b) if b > now => Some(earliest.map_or(b, |e| e.min(b))),
        _ => earliest,
    };
    match head.must_end_by {
        Some(end) => Some(due.map_or(end, |d| d.min(end))),
        None => due,
    }
}

/// Turns the commit's durations and changes into what the record keeps.
fn resolve(
    head: Option<&Head>,
    commit: &Commit,
    status: Status,
    at: Timestamp,
) -> Result<Meta, Refusal> {
    let mut meta = Meta::default();
    if let Expect::Absent(birth) = &commit.expect {
        meta.birth = Some(birth.clone());
    }
    let is_final = status.class() == Class::Final;
    let held = head.is_some_and(|h| h.holder.is_some());
    if !commit.timers.is_empty() || (is_final && head.is_some_and(|h| !h.timers.is_empty())) {
        let mut timers = head.map(|h| h.timers.clone()).unwrap_or_default();
        commit.timers.iter().for_each(|c| timers.change(c, at));
        meta.timers = Some(if is_final { Timers::default() } else { timers });
    }
    meta.take = match &commit.tenure {
        TenureChange::Take { session, .. } => Some(*session),
        TenureChange::Open(_) => Some(commit.entity),
        TenureChange::Keep | TenureChange::End => None,
    };
    // Taken and over in one commit: a flow that never waits, or the claim of something that ends.
    meta.ended = (held || meta.take.is_some()) && (is_final || commit.tenure == TenureChange::End);
    meta.mail_read = match commit.mail {
        MailStance::Read(n) | MailStance::ReadAll(n) => Some(n),
        MailStance::Unread | MailStance::Regardless => None,
    };
    if meta.mail_read.is_some_and(|n| n > head.map_or(0, |h| h.mail_count)) {
        return Err(Refusal::Tenure("a commit can not have read mail that has not come"));
    }
    meta.attention.clone_from(&commit.attention);
    let was_open = head.is_some_and(|h| h.class() == Class::Open);
    let moved = commit.events.iter().any(|e| e.name == ke::DEADLINE_MOVED);
    meta.must_end_by = match (status.class(), commit.must_end_in) {
        (Class::Open, Some(d)) if !was_open || moved => Some(Some(at + d)),
        (Class::Open, Some(_)) => {
            return Err(Refusal::Deadline(
                "must_end_by is moved only by a person, with the event deadline_moved",
            ));
        }
        (Class::Open, None) if !was_open => {
            return Err(Refusal::Deadline(
                "an entity that becomes open needs must_end_in: open means due",
            ));
        }
        (Class::Open, None) => None,
        (_, Some(_)) => return Err(Refusal::Deadline("only open entities have must_end_by")),
        (_, None) if was_open => Some(None),
        (_, None) => None,
    };
    Ok(meta)
}

fn check_tenure(head: Option<&Head>, commit: &Commit, status: Status) -> Result<(), Refusal> {
    let has = |name: &str| commit.events.iter().any(|e| e.name == name);
    let held = head.is_some_and(|h| h.holder.is_some());
    let fail = |why| Err(Refusal::Tenure(why));
    let stays_held = match (&commit.expect, &commit.tenure) {
        (Expect::Absent(birth), TenureChange::Open(_)) if birth.kind != WORKER.kind => {
            return fail("only a worker session opens a session row");
        }
        (Expect::Absent(_), TenureChange::Take { .. } | TenureChange::Open(_)) => true,
        (_, TenureChange::Take { .. }) if held => return fail("it is held already"),
        (Expect::Nobody { .. }, TenureChange::Take { .. }) if has(ke::CLAIMED) => true,
        (_, TenureChange::Take { .. } | TenureChange::Open(_)) => {
            return fail("tenure is taken at birth, or by a claim with the event tenure_claimed");
        }
        (_, TenureChange::End) if !held => return fail("there is no tenure to end"),
        (_, TenureChange::End) if has(ke::TENURE_ENDED) || status.class() == Class::Final => false,
        (_, TenureChange::End) => return fail("the end of a tenure is an event: tenure_ended"),
        (Expect::Overrule { .. }, TenureChange::Keep) if held && status.class() != Class::Final => {
            return fail("a guard that overrules a holder ends its tenure");
        }
        (_, TenureChange::Keep) => held,
    };
    if has(ke::CLAIMED)
        != matches!(
            (&commit.expect, &commit.tenure),
            (Expect::Nobody { .. }, TenureChange::Take { .. })
        )
    {
        return fail("the event tenure_claimed and the taking of tenure belong together");
    }
    if has(ke::TENURE_ENDED) && commit.tenure != TenureChange::End {
        return fail("the event tenure_ended and the end of a tenure belong together");
    }
    if let Expect::EndTenure { .. } = commit.expect {
        let lone = commit.events.len() == 1 && has(ke::TENURE_ENDED) && commit.state.is_none();
        if !(lone && commit.timers.is_empty() && commit.messages.is_empty()) {
            return fail("a tenure is ended at any version only by a lone tenure_ended");
        }
    }
    if stays_held && status.row().claimable != crate::table::Claimable::No {
        return fail("a held entity can not stand in a claimable status");
    }
    if !commit.keys.is_empty() && !matches!(commit.expect, Expect::Absent(_)) {
        return fail("unique keys are inserted with a birth only");
    }
    Ok(())
}

/// Records below a seal go, so a seal opens its record and repeats the chain before it; else the rest
/// could never be checked.
fn check_seal(head: Option<&Head>, commit: &Commit) -> Result<(), Refusal> {
    let is_seal = |e: &NewEvent| e.name == ke::SEALED;
    if commit.events.iter().skip(1).any(is_seal) {
        return Err(Refusal::Seal("a seal is the first event of its commit"));
    }
    match (commit.events.first().filter(|e| is_seal(e)), head) {
        (Some(seal), Some(head)) if crate::verify::sealed_chain(&seal.body) != Some(head.chain) => {
            Err(Refusal::Seal("a seal repeats the chain value before it"))
        }
        _ => Ok(()),
    }
}

pub(crate) fn within(what: &'static str, actual: usize, limit: usize) -> Result<(), Refusal> {
    if actual <= limit { Ok(()) } else { Err(Refusal::Limit { what, actual, limit }) }
}

pub(crate) fn within_body(what: &'static str, body: &Body) -> Result<(), Refusal> {
    match body {
        Body::Inline(bytes) => within(what, bytes.len(), limits::BODY_INLINE_BYTES_MAX),
        Body::Blob { len, .. } => {
            within(what, usize::try_from(*len).unwrap_or(usize::MAX), limits::BLOB_BYTES_MAX)
        }
    }
}

/// No store keeps a NUL in text: Postgres cannot, so no other does. Bodies are bytes, and may have one.
pub(crate) fn without_nul(what: &str, text: &str) -> Result<(), Refusal> {
    match text.contains('\0') {
        false => Ok(()),
        true => Err(Refusal::NotAdmitted(format!("the {what} has a NUL character: leave it out"))),
    }
}

fn check_limits(commit: &Commit) -> Result<(), Refusal> {
    within("number of events", commit.events.len(), limits::EVENTS_PER_COMMIT_MAX)?;
    within("number of messages", commit.messages.len(), limits::MESSAGES_PER_COMMIT_MAX)?;
    for event in &commit.events {
        within("event name in bytes", event.name.len(), limits::NAME_BYTES_MAX)?;
        within_body("event body in bytes", &event.body)?;
    }
    for timer in &commit.timers {
        if let TimerChange::Set { name, .. } = timer {
            within("timer name in bytes", name.len(), limits::NAME_BYTES_MAX)?;
            without_nul("timer name", name)?;
        }
    }
    if let Some(Some(why)) = &commit.attention {
        within("attention in bytes", why.len(), limits::KEY_BYTES_MAX)?;
    }
    for message in &commit.messages {
        within("message kind in bytes", message.kind.len(), limits::NAME_BYTES_MAX)?;
        within_body("message body in bytes", &message.body)?;
        if let Target::Wire(subject) = &message.to {
            within("wire subject in bytes", subject.len(), limits::KEY_BYTES_MAX)?;
            without_nul("wire subject", subject)?;
        }
    }
    for key in &commit.keys {
        within("unique key in bytes", key.key.len(), limits::KEY_BYTES_MAX)?;
        without_nul("unique key", &key.key)?;
    }
    if let Expect::Absent(birth) = &commit.expect {
        within("tenant in bytes", birth.tenant.len(), limits::NAME_BYTES_MAX)?;
        within("queue in bytes", birth.queue.len(), limits::NAME_BYTES_MAX)?;
        without_nul("tenant", &birth.tenant)?;
        without_nul("queue", &birth.queue)?;
    }
    Ok(())
}

fn post(head: &Head, record: &Record, messages: &[Message]) -> Vec<Posted> {
    let version = record.last();
    let name = |i: usize| MessageId { source: head.id, version, ordinal: i as u32 };
    let tenant = &head.tenant;
    messages
        .iter()
        .enumerate()
        .map(|(i, m)| Posted {
            id: name(i),
            tenant: tenant.clone(),
            message: m.clone(),
            at: record.at,
        })
        .collect()
}
