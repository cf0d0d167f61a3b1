//! The oracle stands inside the store and sees every transaction before it is visible. It knows the
//! laws on its own and does not ask the judge, so that a judge with a protection switched off (or a
//! bug) is caught at the write that breaks the law, not hours later in a wrong sum.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
};
use tenure_kernel::{
    batch::{HeadWrite, Writes},
    commit::{Commit, CommitAnswer, Expect, MailStance},
    head::Head,
    ids::{EntityId, MailId, MessageId},
    mail::MailAnswer,
    outbox::{DeliveryAnswer, Posted},
    store::{Answer, Op},
    stream::NewEvent,
    table::{Claimable, Class, kernel_events::TENURE_ENDED},
    time::Timestamp,
};
use tenure_store::memory::{Contents, Former, Witness};

/// What the oracle has seen.
#[derive(Debug, Default)]
pub struct Seen {
    /// Laws that were broken, in words.
    pub broken: Vec<String>,
    /// Every message that was ever posted.
    pub posted: BTreeMap<MessageId, Posted>,
    /// How often each was taken from the outbox.
    pub taken: BTreeMap<MessageId, u32>,
    /// Mail that somebody was told is accepted.
    pub accepted: BTreeSet<(EntityId, MailId)>,
    /// Accepted commits, claims among them.
    pub commits: u64,
    /// Commits that were refused as stale or late: the faults reached the fences.
    pub fenced: u64,
    /// Commits that were answered a second time.
    pub repeated: u64,
    /// What retention removed, in that order.
    pub former: Vec<Former>,
    /// Entities that came again after that.
    pub reborn: u64,
    /// Tenures that were ended because the holder's session had lapsed.
    pub reclaimed: Vec<String>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Oracle(Mutex<Seen>);

impl Oracle {
    /// Looks at what it has seen.
    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Witness for Oracle {
    fn batch(&self, _now: Timestamp, ops: &[Op], answers: &[Answer], writes: &Writes) {
        let mut seen = self.seen();
        if ops.len() != answers.len() {
            seen.broken.push(format!("{} operations got {} answers", ops.len(), answers.len()));
        }
        for (op, answer) in ops.iter().zip(answers) {
            seen.operation(op, answer, writes);
        }
        for write in writes.heads.values() {
            seen.head(write);
        }
        let carried = writes.carried.iter().map(|p| &p.id);
        for id in writes.delivered.iter().chain(carried) {
            let times = seen.taken.entry(*id).or_default();
            *times += 1;
            if *times > 1 {
                seen.broken.push(format!("message {id} was taken from the outbox twice"));
            }
        }
        for posted in writes.posted.iter().chain(&writes.carried) {
            seen.posted.insert(posted.id, posted.clone());
        }
    }

    fn retired(&self, former: Vec<Former>) {
        let mut seen = self.seen();
        former.into_iter().for_each(|f| seen.left(f));
    }
}

impl Seen {
    fn operation(&mut self, op: &Op, answer: &Answer, writes: &Writes) {
        match (op, answer) {
            (Op::Commit(c), Answer::Commit(CommitAnswer::Committed(done))) => {
                if done.repeated {
                    self.repeated += 1;
                } else {
                    self.commits += 1;
                    self.commit(c, writes.heads.get(&c.entity));
                }
            }
            (
                Op::Commit(_),
                Answer::Commit(
                    CommitAnswer::StaleEpoch { .. }
                    | CommitAnswer::VersionConflict { .. }
                    | CommitAnswer::Final { .. }
                    | CommitAnswer::MoreMail { .. },
                ),
            ) => self.fenced += 1,
            (Op::Commit(c), Answer::Commit(CommitAnswer::Refused(why))) => {
                self.broken.push(format!("a commit of {} can never be accepted: {why}", c.entity));
            }
            (Op::Claim { entity, .. }, Answer::Claim(Ok(_))) => {
                self.commits += 1;
                // Under the same epoch it is a claim asked again.
                if let Some(HeadWrite { before: Some(before), after }) = writes.heads.get(entity)
                    && before.epoch != after.epoch
                {
                    self.claim(before);
                }
            }
            (Op::Mail(m), Answer::Mail(MailAnswer::Accepted { .. })) => {
                self.accepted.insert((m.to, m.id.clone()));
            }
            (Op::Deliver(d), Answer::Deliver(DeliveryAnswer::Refused(why))) => {
                self.broken.push(format!("message {} was refused: {why}", d.id));
            }
            _ => {}
        }
    }

    fn commit(&mut self, commit: &Commit, write: Option<&HeadWrite>) {
        let id = commit.entity;
        let Some(write) = write else {
            return self.broken.push(format!("{id}: committed without a write"));
        };
        let Some(before) = &write.before else {
            if !matches!(commit.expect, Expect::Absent(_)) {
                self.broken.push(format!("{id}: born by a commit that believed it was there"));
            }
            return;
        };
        let (epoch, version, held) = match commit.expect {
            Expect::Absent(_) => {
                return self.broken.push(format!("{id}: created a second time"));
            }
            Expect::Holder { epoch, version } => (epoch, Some(version), Some(true)),
            Expect::Nobody { epoch, version } => (epoch, Some(version), Some(false)),
            Expect::Overrule { epoch, version } => (epoch, Some(version), None),
            Expect::EndTenure { epoch } => (epoch, None, Some(true)),
        };
        let lapsed = |e: &NewEvent| {
            let why = e.body.inline().unwrap_or(b"");
            e.name == TENURE_ENDED && String::from_utf8_lossy(why).contains("holder_check")
        };
        if commit.events.iter().any(lapsed) {
            let (kind, epoch, checked) = (before.kind(), before.epoch, before.check_at);
            self.reclaimed.push(format!("{kind} {id} in {epoch}, checked {checked:?}"));
        }
        if epoch != before.epoch || held.is_some_and(|h| h != before.holder.is_some()) {
            let now = before.epoch;
            self.broken.push(format!("{id}: a write under epoch {epoch} was accepted in {now}"));
        }
        if version.is_some_and(|v| v != before.version) {
            self.broken.push(format!("{id}: a write over version {version:?} was accepted"));
        }
        if let MailStance::ReadAll(n) = commit.mail
            && n < before.mail_count
        {
            let count = before.mail_count;
            self.broken.push(format!("{id}: ended or parked having read {n} of {count} mails"));
        }
    }

    /// Nothing leaves that somebody waits for, or that still has something to say.
    fn left(&mut self, former: Former) {
        let (id, head) = (former.head.id, &former.head);
        let over = head.class() == Class::Final;
        if !over && !head.is_vacant() {
            self.broken.push(format!("{id}: removed while {}", head.status.name()));
        }
        if !over && head.has_mail() {
            let (read, count) = (head.mail_read, head.mail_count);
            self.broken.push(format!("{id}: removed having read {read} of {count} mails"));
        }
        if former.sends {
            self.broken.push(format!("{id}: removed with messages on their way"));
        }
        let there: BTreeSet<&MailId> = former.mail.iter().map(|m| &m.id).collect();
        let mut lost = Vec::new();
        self.accepted.retain(|(to, mail)| {
            if *to == id && !there.contains(mail) {
                lost.push(format!("{to}: mail {mail:?} was accepted and is not there"));
            }
            *to != id
        });
        self.broken.extend(lost);
        // A new life counts its versions, and with them its messages, from the beginning.
        self.posted.retain(|m, _| m.source != id);
        self.taken.retain(|m, _| m.source != id);
        self.former.push(former);
    }

    /// What there is and what there was: lives of one entity stand one behind the other.
    pub fn with_former<'a>(&self, contents: &'a Contents) -> Cow<'a, Contents> {
        if self.former.is_empty() {
            return Cow::Borrowed(contents);
        }
        let mut all = contents.clone();
        for f in self.former.iter().rev() {
            let id = f.head.id;
            all.rows.heads.entry(id).or_insert_with(|| f.head.clone());
            all.streams.entry(id).or_default().splice(0..0, f.records.iter().cloned());
            all.mail.entry(id).or_default().splice(0..0, f.mail.iter().cloned());
            all.evidence.entry(id).or_default().splice(0..0, f.evidence.iter().cloned());
            for (digest, blob) in &f.blobs {
                all.blobs.entry(*digest).or_insert_with(|| blob.clone());
            }
        }
        Cow::Owned(all)
    }

    /// Whether mail lay in a box that is gone.
    pub fn had(&self, to: EntityId, mail: &str) -> bool {
        let boxes = self.former.iter().filter(|f| f.head.id == to);
        boxes.flat_map(|f| &f.mail).any(|m| m.id.0 == mail)
    }

    fn claim(&mut self, before: &Head) {
        let id = before.id;
        if before.holder.is_some() {
            self.broken.push(format!("{id}: claimed while somebody holds it"));
        }
        if before.status.row().claimable == Claimable::No {
            self.broken.push(format!("{id}: claimed while {}", before.status.name()));
        }
    }

    fn head(&mut self, write: &HeadWrite) {
        let id = write.after.id;
        let (Some(before), after) = (&write.before, &write.after) else {
            self.reborn += u64::from(self.former.iter().any(|f| f.head.id == id));
            return;
        };
        if before.class() == Class::Final {
            self.broken.push(format!("{id}: final and changed"));
        }
        if before.holder != after.holder && after.epoch <= before.epoch {
            self.broken.push(format!("{id}: another holder under the same epoch"));
        }
        if before.holder.is_some() && after.holder.is_some() && before.holder != after.holder {
            self.broken.push(format!("{id}: two holders, one after the other in one commit"));
        }
    }
}
