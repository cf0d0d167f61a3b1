//! One database transaction, decided as a pure function. A store loads the [`Facts`] that a batch
//! [`needs`], calls [`plan`], and carries out the [`Writes`]. So all stores give the same answers, and
//! a refused commit can not fail its neighbours: it simply contributes no writes.
//!
//! Within a batch, commits are judged first and mail after them, whatever their order: mail that
//! arrives with a commit that parks does not refuse it, it wakes the parked entity. What commits carry comes last, in
//! the order of the operations.

use crate::{
    commit::{Birth, Commit, CommitAnswer, Committed, Expect, Refusal, UniqueKey},
    evidence::{EvidenceAnswer, NewEvidence},
    head::{Head, lane_of},
    ids::{CommitId, EntityId, MailId, MessageId, SessionId},
    judge::{Judge, Written, within},
    limits,
    mail::{Mail, MailAnswer, NewMail, expects_answer, judge_mail, kinds},
    outbox::{Carrier, Delivery, DeliveryAnswer, Handover, Posted},
    sessions::{Hold, Opening, Renewal, RenewalAnswer, Session, lane_id},
    store::{Answer, Op, Touch},
    stream::{Hash, Record},
    table::Class,
    time::Timestamp,
};
use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    time::Duration,
};

/// What has to be loaded before a batch can be decided.
#[derive(Debug, Default)]
pub struct Needs {
    /// Heads to lock, in this order.
    pub heads: BTreeSet<EntityId>,
    /// Heads to read without a lock: what a renewal names.
    pub peeks: BTreeSet<EntityId>,
    /// Mail ids to look for.
    pub mail: Vec<(EntityId, MailId)>,
    /// Evidence to look for.
    pub evidence: Vec<EvidenceKey>,
    /// Unique keys to look for, in this order.
    pub keys: BTreeSet<String>,
    /// Outbox rows to look for.
    pub outbox: Vec<MessageId>,
    /// Sources of which to look whether something waits in the outbox that does not leave the store.
    pub sources: BTreeSet<EntityId>,
    /// Session rows to read.
    pub sessions: BTreeSet<SessionId>,
}

/// What makes evidence the same evidence.
pub type EvidenceKey = (EntityId, String, u64, u32, Hash);

/// The key of a piece of evidence.
pub fn evidence_key(e: &NewEvidence) -> EvidenceKey {
    (e.entity, e.key.clone(), e.epoch, e.call, e.digest())
}

/// What was loaded. Everything is as of after the heads were locked.
#[derive(Debug, Default)]
pub struct Facts {
    /// The store's time of this batch.
    pub now: Timestamp,
    /// Locked heads that exist.
    pub heads: HashMap<EntityId, Head>,
    /// Heads that another batch has locked.
    pub busy: HashSet<EntityId>,
    /// Heads that were only read: epoch, holder, unread mail.
    pub peeks: HashMap<EntityId, Peek>,
    /// Mail ids that are there.
    pub mail: HashSet<(EntityId, MailId)>,
    /// Evidence that is there.
    pub evidence: HashSet<EvidenceKey>,
    /// How many pieces of evidence there are about each entity that [`Needs::evidence`] names.
    pub evidence_counts: HashMap<EntityId, usize>,
    /// Unique keys that are there.
    pub keys: HashMap<String, (EntityId, Hash)>,
    /// Outbox rows that are there.
    pub outbox: HashSet<MessageId>,
    /// Sources of which something waits.
    pub waiting: HashSet<EntityId>,
    /// Session rows.
    pub sessions: HashMap<SessionId, Session>,
    /// From when until when holders are judged, as the last pulse said: loaded with sessions.
    pub judging: Option<(Timestamp, Timestamp)>,
}

/// What a renewal has to know of an entity it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peek {
    /// Its epoch.
    pub epoch: u64,
    /// Who holds it.
    pub holder: Option<SessionId>,
    /// Whether mail waits.
    pub has_mail: bool,
}

/// What the transaction writes. Nothing in it depends on the order it is written in.
#[derive(Debug, Default)]
pub struct Writes {
    /// Heads to insert, or to update by compare-and-set on the version and epoch before.
    pub heads: HashMap<EntityId, HeadWrite>,
    /// Rows of streams.
    pub records: Vec<Record>,
    /// Mail rows.
    pub mail: Vec<(EntityId, Mail)>,
    /// Evidence rows.
    pub evidence: Vec<NewEvidence>,
    /// Outbox rows to add.
    pub posted: Vec<Posted>,
    /// Outbox rows to remove.
    pub delivered: Vec<MessageId>,
    /// Messages that were handed over with the commit that sent them. Nothing to write: for whoever watches.
    pub carried: Vec<Posted>,
    /// Unique keys to add.
    pub keys: Vec<(UniqueKey, EntityId)>,
    /// Session rows to add.
    pub opened: Vec<Session>,
    /// Session rows whose entity is final.
    pub ended: Vec<SessionId>,
    /// Session rows to renew: new expiry and holds.
    pub renewed: Vec<(SessionId, Timestamp, Vec<Hold>)>,
    /// Blobs that an entity names.
    pub blobs: Vec<(EntityId, Hash)>,
}

/// A head before and after.
#[derive(Debug)]
pub struct HeadWrite {
    /// As it was locked; `None` for a new one.
    pub before: Option<Head>,
    /// As it shall be.
    pub after: Head,
}

impl Writes {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
            && self.evidence.is_empty()
            && self.delivered.is_empty()
            && self.renewed.is_empty()
    }
}

/// What a batch needs loaded.
pub fn needs(ops: &[Op]) -> Needs {
    let mut n = Needs::default();
    for op in ops {
        match op {
            Op::Commit(c) => need_commit(&mut n, c),
            Op::Claim { entity, .. } => {
                n.heads.insert(*entity);
            }
            Op::Mail(m) => {
                n.heads.insert(m.to);
                n.mail.push((m.to, m.id.clone()));
            }
            Op::Evidence(e) => {
                n.heads.insert(e.entity);
                n.evidence.push(evidence_key(e));
                n.mail.push((e.entity, e.mail_id()));
            }
            Op::Touch(t) => {
                n.heads.insert(t.entity);
            }
            Op::Deliver(d) => {
                match d.by {
                    Carrier::Lane(_) => {
                        n.heads.insert(lane_id(lane_of(d.id.source)));
                        n.outbox.push(d.id);
                    }
                    Carrier::Commit => drop(n.sources.insert(d.id.source)),
                }
                match &d.with {
                    Handover::Mail { to, .. } => {
                        n.heads.insert(*to);
                        n.mail.push((*to, d.id.into()));
                    }
                    Handover::Create(c) => need_commit(&mut n, c),
                    Handover::Nothing => {}
                }
            }
            Op::Renew(r) => {
                n.heads.insert(r.session);
                n.sessions.insert(r.session);
                n.peeks.extend(r.holds.iter().map(|h| h.entity));
            }
        }
    }
    n
}

fn need_commit(n: &mut Needs, commit: &Commit) {
    n.heads.insert(commit.entity);
    n.keys.extend(commit.keys.iter().map(|k| k.key.clone()));
}

/// Decides a batch.
pub fn plan(judge: &Judge, facts: &mut Facts, ops: &[Op]) -> (Vec<Answer>, Writes) {
    let carries = |op: &Op| matches!(op, Op::Deliver(d) if d.by == Carrier::Commit);
    // Heads are large: a table that grows copies all of them each time.
    let heads = HashMap::with_capacity(ops.len());
    let mut batch = Batch {
        judge,
        facts,
        writes: Writes { heads, ..Writes::default() },
        committed: HashSet::with_capacity(ops.len()),
        sent: ops.iter().any(carries).then(HashMap::new),
        carried: HashSet::new(),
    };
    let mut answers: Vec<Option<Answer>> = ops.iter().map(|op| batch.first_pass(op)).collect();
    for (op, answer) in ops.iter().zip(&mut answers) {
        if answer.is_none() {
            *answer = Some(batch.second_pass(op));
        }
    }
    // The second pass answers everything the first did not.
    (answers.into_iter().flatten().collect(), batch.written())
}

struct Batch<'a> {
    judge: &'a Judge,
    facts: &'a mut Facts,
    writes: Writes,
    committed: HashSet<EntityId>,
    /// What commits of this batch have sent inside the store and nobody has carried, in order, with its place in `posted`;
    /// if any is to be carried.
    sent: Option<HashMap<EntityId, VecDeque<(MessageId, usize)>>>,
    /// What of it was handed over.
    carried: HashSet<MessageId>,
}

impl Batch<'_> {
    /// What was carried is no row.
    fn written(mut self) -> Writes {
        if !self.carried.is_empty() {
            let posted = std::mem::take(&mut self.writes.posted);
            (self.writes.carried, self.writes.posted) =
                posted.into_iter().partition(|p| self.carried.contains(&p.id));
        }
        self.writes
    }

    /// Commits and claims.
    fn first_pass(&mut self, op: &Op) -> Option<Answer> {
        match op {
            Op::Commit(c) => Some(Answer::Commit(self.commit(c, None))),
            Op::Claim { id, entity, session, lease } => {
                Some(self.claim(*id, *entity, *session, *lease))
            }
            _ => None,
        }
    }

    /// Everything that is judged after them.
    fn second_pass(&mut self, op: &Op) -> Answer {
        match op {
            Op::Mail(m) if self.facts.busy.contains(&m.to) => Answer::Busy,
            Op::Mail(m) => Answer::Mail(self.mail(m)),
            Op::Evidence(e) if self.facts.busy.contains(&e.entity) => Answer::Busy,
            Op::Evidence(e) => Answer::Evidence(self.evidence(e)),
            Op::Touch(t) if self.facts.busy.contains(&t.entity) => Answer::Busy,
            Op::Touch(t) => Answer::Touch(self.touch(t)),
            Op::Deliver(d) => Answer::Deliver(self.deliver(d)),
            Op::Renew(r) if self.facts.busy.contains(&r.session) => Answer::Busy,
            Op::Renew(r) => Answer::Renew(self.renew(r)),
            Op::Commit(_) | Op::Claim { .. } => Answer::Busy,
        }
    }

    fn commit(&mut self, commit: &Commit, creator: Option<EntityId>) -> CommitAnswer {
        let entity = commit.entity;
        if self.facts.busy.contains(&entity) || self.committed.contains(&entity) {
            return CommitAnswer::Busy;
        }
        if let Some(taken) = self.taken_key(commit) {
            return taken;
        }
        let head = self.facts.heads.get(&entity);
        match self.judge.commit_of(creator, head, commit, self.facts.now) {
            Ok(written) => {
                let answer = written.answer();
                self.writes.blobs.extend(Written::blobs(commit).map(|b| (entity, b)));
                for key in &commit.keys {
                    self.facts.keys.insert(key.key.clone(), (entity, key.digest));
                    self.writes.keys.push((key.clone(), entity));
                }
                if let crate::commit::TenureChange::Open(opening) = &commit.tenure {
                    self.writes.opened.push(session_row(entity, opening, written.record.at));
                }
                self.write(written);
                answer
            }
            Err(answer) => answer,
        }
    }

    fn taken_key(&self, commit: &Commit) -> Option<CommitAnswer> {
        // A repetition finds its own keys: then the judge's `Exists` leads to the look-up by commit id.
        let theirs =
            |k: &&UniqueKey| self.facts.keys.get(&k.key).is_some_and(|(e, _)| *e != commit.entity);
        let key = commit.keys.iter().find(theirs)?;
        let (entity, digest) = self.facts.keys[&key.key];
        Some(CommitAnswer::Exists { entity, same: digest == key.digest })
    }

    fn claim(
        &mut self,
        id: CommitId,
        entity: EntityId,
        session: SessionId,
        lease: Duration,
    ) -> Answer {
        if self.facts.busy.contains(&entity) || self.committed.contains(&entity) {
            return Answer::Busy;
        }
        let Some(head) = self.facts.heads.get(&entity) else {
            return Answer::Claim(Err(CommitAnswer::Refused(Refusal::Unknown(entity))));
        };
        // Asking again after a lost answer: it is mine already.
        if head.holder == Some(session) && self.judge.protections.repetition {
            return Answer::Claim(Ok(Box::new(head.clone())));
        }
        match self.judge.claim(head, session, lease, true, id, self.facts.now) {
            Ok(written) => {
                let after = Box::new(written.head.clone());
                self.write(written);
                Answer::Claim(Ok(after))
            }
            Err(answer) => Answer::Claim(Err(answer)),
        }
    }

    fn write(&mut self, written: Written) {
        let Written { head, record, posted, .. } = written;
        self.committed.insert(head.id);
        if head.kind() == crate::sessions::WORKER.kind && head.class() == Class::Final {
            self.writes.ended.push(head.id);
        }
        self.writes.records.push(record);
        if let Some(sent) = &mut self.sent {
            let places = self.writes.posted.len()..;
            let inside = posted.iter().zip(places).filter(|(p, _)| !p.message.to.leaves());
            let inside = inside.map(|(p, place)| (p.id, place));
            sent.insert(head.id, inside.collect());
        }
        self.writes.posted.extend(posted);
        self.put(head);
    }

    /// Notes a head's new value, remembering how it was locked.
    fn put(&mut self, head: Head) {
        let before = self.facts.heads.insert(head.id, head.clone());
        match self.writes.heads.entry(head.id) {
            std::collections::hash_map::Entry::Occupied(mut e) => e.get_mut().after = head,
            std::collections::hash_map::Entry::Vacant(e) => {
                e.insert(HeadWrite { before, after: head });
            }
        }
    }

    fn mail(&mut self, mail: &NewMail) -> MailAnswer {
        if let Err(refusal) = mail.within_limits() {
            return MailAnswer::Refused(refusal);
        }
        let key = (mail.to, mail.id.clone());
        let duplicate = self.facts.mail.contains(&key);
        let mut head = self.facts.heads.get(&mail.to).cloned();
        let answer =
            judge_mail(head.as_mut(), duplicate, self.judge.protections.finality, self.facts.now);
        if let (MailAnswer::Accepted { seq, .. }, Some(head)) = (&answer, head) {
            let (kind, body, at) =
                (mail.kind.clone().into_owned(), mail.body.clone(), self.facts.now);
            self.writes
                .mail
                .push((mail.to, Mail { seq: *seq, id: mail.id.clone(), kind, body, at }));
            if let crate::stream::Body::Blob { digest, .. } = &mail.body {
                self.writes.blobs.push((mail.to, *digest));
            }
            self.facts.mail.insert(key);
            self.put(head);
        }
        answer
    }

    fn evidence(&mut self, e: &NewEvidence) -> EvidenceAnswer {
        if let Err(refusal) = e.within_limits() {
            return EvidenceAnswer::Refused(refusal);
        }
        let key = evidence_key(e);
        if self.facts.evidence.contains(&key) {
            return EvidenceAnswer::Duplicate;
        }
        let Some(head) = self.facts.heads.get(&e.entity) else { return EvidenceAnswer::Unknown };
        let count = self.facts.evidence_counts.get(&e.entity).map_or(1, |n| n + 1);
        if let Err(refusal) = within("pieces of evidence", count, limits::EVIDENCE_MAX) {
            return EvidenceAnswer::Refused(refusal);
        }
        let open = head.class() == Class::Open;
        let mailed = open && {
            let body = crate::stream::Body::json(&serde_json::json!({
                "key": e.key, "epoch": e.epoch, "call": e.call, "who": e.who, "digest": e.digest(),
            }));
            let mail =
                NewMail { to: e.entity, id: e.mail_id(), kind: kinds::EVIDENCE.into(), body };
            matches!(self.mail(&mail), MailAnswer::Accepted { .. })
        };
        if let crate::stream::Body::Blob { digest, .. } = &e.body {
            self.writes.blobs.push((e.entity, *digest));
        }
        self.facts.evidence.insert(key);
        self.facts.evidence_counts.insert(e.entity, count);
        self.writes.evidence.push(e.clone());
        EvidenceAnswer::Recorded { mailed }
    }

    fn touch(&mut self, touch: &Touch) -> bool {
        let Some(head) = self.facts.heads.get(&touch.entity) else { return false };
        let tenure = head.epoch == touch.epoch;
        let same = tenure && head.version == touch.version;
        if head.class() == Class::Final || !(same || touch.ring_only && tenure) {
            return false;
        }
        let mut head = head.clone();
        let now = self.facts.now;
        if touch.ring_only {
            // One that is rung twice only looks once more. One for a holder that has come since would look too early:
            // a claim that is younger than its session's last renewal is named by nobody yet.
            if head.holder.is_none() {
                return false;
            }
            head.check_at = head.check_at.map(|c| c.min(now));
            head.due = Some(head.due.map_or(now, |d| d.min(now)));
        } else {
            head.check_at = touch.check_at.or(head.check_at);
            head.faults = touch.faults;
            let waits = head.holder.is_none() && head.has_mail() && touch.faults == 0;
            let due = if waits { Some(now) } else { touch.due };
            head.due = [due, head.must_end_by].into_iter().flatten().min();
        }
        self.put(head);
        true
    }

    fn deliver(&mut self, d: &Delivery) -> DeliveryAnswer {
        let no = match d.by {
            Carrier::Lane(epoch) => self.not_by_lane(d.id, epoch),
            Carrier::Commit => self.not_by_commit(d),
        };
        let answer = no.unwrap_or_else(|| self.hand_over(d));
        let taken =
            matches!(answer, DeliveryAnswer::Delivered { .. } | DeliveryAnswer::TargetFinal);
        match (d.by, taken) {
            (Carrier::Lane(_), true) => {
                self.facts.outbox.remove(&d.id);
                self.writes.delivered.push(d.id);
            }
            (Carrier::Commit, true) => {
                let sent = self.sent.as_mut().and_then(|sent| sent.get_mut(&d.id.source));
                sent.into_iter().for_each(|sent| sent.retain(|(id, _)| *id != d.id));
                self.carried.insert(d.id);
            }
            (_, false) => {}
        }
        answer
    }

    /// Why a lane may not deliver this.
    fn not_by_lane(&self, id: MessageId, lane_epoch: u64) -> Option<DeliveryAnswer> {
        let lane = lane_id(lane_of(id.source));
        let guarded = self.judge.protections.outbox;
        if self.facts.busy.contains(&lane) {
            return Some(DeliveryAnswer::Busy);
        }
        // The epoch of a lane that nobody holds is nobody's tenure.
        let held = self.facts.heads.get(&lane).filter(|h| h.holder.is_some());
        if guarded && held.map(|h| h.epoch) != Some(lane_epoch) {
            return Some(DeliveryAnswer::StaleLane);
        }
        (guarded && !self.facts.outbox.contains(&id)).then_some(DeliveryAnswer::Gone)
    }

    /// Why a commit of this batch may not carry this. That nothing like it was sent here says that the commit was refused,
    /// or is an earlier one that is asked again.
    fn not_by_commit(&self, d: &Delivery) -> Option<DeliveryAnswer> {
        let sent = self.sent.as_ref().and_then(|sent| sent.get(&d.id.source));
        let place = sent.and_then(|sent| sent.iter().position(|(id, _)| *id == d.id));
        let posted = |(_, at): &(MessageId, usize)| self.writes.posted.get(*at);
        let message = place.and_then(|i| sent?.get(i)).and_then(posted).map(|p| &p.message);
        if !message.is_some_and(|message| d.with.stands_for(message)) {
            return Some(DeliveryAnswer::Gone);
        }
        let in_turn = place == Some(0) && !self.facts.waiting.contains(&d.id.source);
        (self.judge.protections.outbox && !in_turn).then_some(DeliveryAnswer::Behind)
    }

    fn hand_over(&mut self, d: &Delivery) -> DeliveryAnswer {
        match &d.with {
            Handover::Nothing => DeliveryAnswer::Delivered { holder: None, due: false },
            Handover::Mail { to, .. } if self.facts.busy.contains(to) => DeliveryAnswer::Busy,
            Handover::Mail { to, kind, body } => {
                let mail =
                    NewMail { to: *to, id: d.id.into(), kind: kind.clone(), body: body.clone() };
                match self.mail(&mail) {
                    MailAnswer::Accepted { holder, .. } => {
                        DeliveryAnswer::Delivered { holder, due: holder.is_none() }
                    }
                    MailAnswer::Duplicate => DeliveryAnswer::Delivered { holder: None, due: false },
                    MailAnswer::Final { .. } if expects_answer(kind) => DeliveryAnswer::Unanswered,
                    MailAnswer::Final { .. } => DeliveryAnswer::TargetFinal,
                    MailAnswer::Unknown => DeliveryAnswer::UnknownTarget,
                    MailAnswer::Refused(refusal) => DeliveryAnswer::Refused(refusal.to_string()),
                }
            }
            Handover::Create(commit) => {
                let commit = self.in_its_tenant(d, commit);
                match self.commit(&commit, Some(d.id.source)) {
                    CommitAnswer::Busy => DeliveryAnswer::Busy,
                    // Not `Delivered`: a cancel that would have created its target cancelled, and finds it
                    // alive, must still reach it.
                    CommitAnswer::Exists { entity, .. } if entity == commit.entity => {
                        DeliveryAnswer::TargetExists
                    }
                    CommitAnswer::Committed(c) => {
                        DeliveryAnswer::Delivered { holder: None, due: c.due_soon }
                    }
                    // Its creator waits for an id that will never exist, and has to hear of the other one.
                    CommitAnswer::Exists { entity, same } => {
                        let input = if same { "the same" } else { "another" };
                        DeliveryAnswer::Refused(format!(
                            "its key belongs to {entity}, for {input} input"
                        ))
                    }
                    CommitAnswer::Refused(why) => DeliveryAnswer::Refused(why.to_string()),
                    other => DeliveryAnswer::Refused(format!("{other:?}")),
                }
            }
        }
    }

    /// A created entity belongs to its creator's tenant. Whoever reads the outbox is told which that is; a commit that
    /// carries a creation does not have to know.
    fn in_its_tenant<'c>(&self, d: &Delivery, commit: &'c Commit) -> Cow<'c, Commit> {
        let tenant = self.facts.heads.get(&d.id.source).map(|h| &h.tenant);
        match (&commit.expect, tenant) {
            (Expect::Absent(birth), Some(tenant))
                if d.by == Carrier::Commit && birth.tenant != *tenant =>
            {
                let birth = Birth { tenant: tenant.clone(), ..birth.clone() };
                Cow::Owned(Commit { expect: Expect::Absent(birth), ..commit.clone() })
            }
            _ => Cow::Borrowed(commit),
        }
    }

    fn renew(&mut self, r: &Renewal) -> RenewalAnswer {
        let alive = self.facts.heads.get(&r.session).is_some_and(|h| h.class() != Class::Final);
        let Some(session) = self.facts.sessions.get(&r.session).filter(|s| alive && !s.ended)
        else {
            return RenewalAnswer::Ended;
        };
        // A lapsed session is not revived: a loop may have read it as lapsed and be about to end its
        // tenures, which a renewal does not stop. While nobody judges, in an outage and for one lease
        // after it, everybody may come back.
        let now = self.facts.now;
        let judged = self.facts.judging.is_some_and(|(from, until)| from <= now && now <= until);
        if session.expires_at <= now && judged && self.judge.protections.fencing {
            return RenewalAnswer::Ended;
        }
        let expires_at = now + session.lease;
        let mine = |h: &Hold| {
            let peek = self.facts.peeks.get(&h.entity);
            peek.is_some_and(|p| p.holder == Some(r.session) && p.epoch == h.epoch)
        };
        let (kept, lost): (Vec<Hold>, Vec<Hold>) = r.holds.iter().copied().partition(mine);
        let mail = kept
            .iter()
            .filter(|h| self.facts.peeks[&h.entity].has_mail)
            .map(|h| h.entity)
            .collect();
        self.writes.renewed.push((r.session, expires_at, kept));
        RenewalAnswer::Renewed { expires_at, lost: lost.iter().map(|h| h.entity).collect(), mail }
    }
}

fn session_row(id: SessionId, opening: &Opening, at: Timestamp) -> Session {
    let lease = Duration::from_millis(opening.lease_ms);
    Session {
        id,
        name: opening.name.clone(),
        role: opening.role.clone(),
        lease,
        renewed_at: at,
        expires_at: at + lease,
        holds: Vec::new(),
        ended: false,
    }
}

/// The commits that may have been refused only because they are already there: where to look them up.
pub fn suspected_repeats(ops: &[Op], answers: &[Answer]) -> Vec<(usize, EntityId, u64)> {
    let pairs = ops.iter().zip(answers).enumerate();
    pairs
        .filter_map(|(i, (op, answer))| {
            let Op::Commit(c) = op else { return None };
            let Answer::Commit(a) = answer else { return None };
            let refused = matches!(
                a,
                CommitAnswer::StaleEpoch { .. }
                    | CommitAnswer::VersionConflict { .. }
                    | CommitAnswer::Final { .. }
                    | CommitAnswer::Exists { .. }
                    | CommitAnswer::MoreMail { .. }
            );
            refused.then_some((i, c.entity, c.first_version()?))
        })
        .collect()
}

/// Turns a refusal into the answer of the first time, if the record that stands there is the commit's
/// own.
pub fn settle_repeat(
    judge: &Judge,
    op: &Op,
    answer: &mut Answer,
    record: &Record,
    head: Option<&Head>,
) {
    let Op::Commit(c) = op else { return };
    if judge.protections.repetition && record.commit == c.id && record.entity == c.entity {
        // The epoch after that commit, not the one now: a holder that lost its tenure meanwhile must
        // not be handed the epoch of the next one.
        let ended = record.meta().is_ok_and(crate::verify::Meta::says_ended);
        let mail_waiting = head.map_or(0, |h| h.mail_count - h.mail_read);
        *answer = Answer::Commit(CommitAnswer::Committed(Committed {
            version: record.last(),
            epoch: record.epoch + u64::from(ended),
            chain: record.hash,
            at: record.at,
            mail_waiting,
            repeated: true,
            ready_in: None,
            due_soon: false,
        }));
    }
}

/// The answer to an operation whose row the database itself refused, though the judge had allowed it. A
/// renewal has no word for that.
pub fn refused_by_the_database(op: &Op, why: &str) -> Option<Answer> {
    let refusal = || Refusal::Constraint(why.to_owned());
    match op {
        Op::Commit(_) => Some(Answer::Commit(CommitAnswer::Refused(refusal()))),
        Op::Claim { .. } => Some(Answer::Claim(Err(CommitAnswer::Refused(refusal())))),
        Op::Touch(_) => Some(Answer::Touch(false)),
        Op::Mail(_) => Some(Answer::Mail(MailAnswer::Refused(refusal()))),
        Op::Evidence(_) => Some(Answer::Evidence(EvidenceAnswer::Refused(refusal()))),
        Op::Deliver(_) => Some(Answer::Deliver(DeliveryAnswer::Refused(why.to_owned()))),
        Op::Renew(_) => None,
    }
}
