//! The rows of the memory store, and the second guard behind the judge: the constraints that the
//! schemas of the databases declare, checked here before anything is written.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use tenure_kernel::{
    batch::{EvidenceKey, Writes, evidence_key},
    error::StoreError,
    evidence::Evidence,
    head::Head,
    housekeeping::may_leave,
    ids::{EntityId, MailId, MessageId, SessionId},
    mail::Mail,
    outbox::Posted,
    quota::EntitySize,
    rules::Tallies,
    sessions::Session,
    stream::{Body, Hash, Record},
    table::Class,
    time::Timestamp,
};

/// What changes in place. Streams and mail only grow, so a past moment of them is a length, which the
/// heads of that moment say: a stale read costs the store no second copy of history.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    /// Heads by id.
    pub heads: BTreeMap<EntityId, Arc<Head>>,
    /// The outbox, each row with its place in line.
    pub outbox: BTreeMap<MessageId, (u64, Arc<Posted>)>,
    /// Soft rows of sessions.
    pub sessions: BTreeMap<SessionId, Arc<Session>>,
}

/// Everything the store has.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    /// What changes in place.
    pub rows: Rows,
    /// Records per entity, in order.
    pub streams: BTreeMap<EntityId, Vec<Arc<Record>>>,
    /// Mail per entity, in order.
    pub mail: BTreeMap<EntityId, Vec<Mail>>,
    /// Evidence per entity, in order.
    pub evidence: BTreeMap<EntityId, Vec<Evidence>>,
    /// Unique keys.
    pub keys: HashMap<String, (EntityId, Hash)>,
    /// Every record in the order of its commit; `None` where retention removed it.
    pub feed: Vec<Option<Arc<Record>>>,
    /// Feed rows up to this one may be gone.
    pub feed_floor: u64,
    /// Blobs and when they came.
    pub blobs: BTreeMap<Hash, (Vec<u8>, Timestamp)>,
    /// Who names which blob.
    pub blob_names: BTreeSet<(EntityId, Hash)>,
    /// The last pulse.
    pub pulse_at: Option<Timestamp>,
    /// Until when that pulse says that holders are judged.
    pub judges_until: Timestamp,
    /// See [`tenure_kernel::housekeeping::Pulse::judge_after`].
    pub judge_after: Timestamp,
    /// What the rules did.
    pub tallies: Tallies,
    posted: u64,
    pub(super) mail_ids: HashSet<(EntityId, MailId)>,
    pub(super) evidence_keys: HashSet<EvidenceKey>,
}

/// An entity that retention has removed.
#[derive(Clone, Debug)]
pub struct Former {
    /// As it was.
    pub head: Arc<Head>,
    /// Its stream.
    pub records: Vec<Arc<Record>>,
    /// Its box.
    pub mail: Vec<Mail>,
    /// What was known about it.
    pub evidence: Vec<Evidence>,
    /// Blobs that it named.
    pub blobs: Vec<(Hash, (Vec<u8>, Timestamp))>,
    /// Something of it lay in the outbox.
    pub sends: bool,
}

impl Contents {
    /// Carries out a transaction, or refuses it whole.
    pub(super) fn write(&mut self, writes: &Writes, now: Timestamp) -> Result<(), StoreError> {
        self.guard(writes)?;
        for (id, write) in &writes.heads {
            self.rows.heads.insert(*id, Arc::new(write.after.clone()));
        }
        for record in &writes.records {
            let record = Arc::new(record.clone());
            self.streams.entry(record.entity).or_default().push(record.clone());
            self.feed.push(Some(record));
        }
        for (to, mail) in &writes.mail {
            self.mail_ids.insert((*to, mail.id.clone()));
            self.mail.entry(*to).or_default().push(mail.clone());
        }
        for said in &writes.evidence {
            self.evidence_keys.insert(evidence_key(said));
            let row = Evidence { said: said.clone(), at: now };
            self.evidence.entry(said.entity).or_default().push(row);
        }
        for posted in &writes.posted {
            self.posted += 1;
            self.rows.outbox.insert(posted.id, (self.posted, Arc::new(posted.clone())));
        }
        for id in &writes.delivered {
            self.rows.outbox.remove(id);
        }
        for (key, entity) in &writes.keys {
            self.keys.insert(key.key.clone(), (*entity, key.digest));
        }
        for session in &writes.opened {
            self.rows.sessions.insert(session.id, Arc::new(session.clone()));
        }
        for (id, expires_at, holds) in &writes.renewed {
            if let Some(row) = self.rows.sessions.get_mut(id) {
                let row = Arc::make_mut(row);
                (row.renewed_at, row.expires_at) = (now, *expires_at);
                row.holds.clone_from(holds);
            }
        }
        for id in &writes.ended {
            if let Some(row) = self.rows.sessions.get_mut(id) {
                Arc::make_mut(row).ended = true;
            }
        }
        self.blob_names.extend(writes.blobs.iter().copied());
        Ok(())
    }

    /// The constraints of the schema.
    fn guard(&self, writes: &Writes) -> Result<(), StoreError> {
        for (id, write) in &writes.heads {
            let stored = self.rows.heads.get(id);
            let cas = |h: &Head| (h.version, h.epoch);
            if stored.map(|h| cas(h)) != write.before.as_ref().map(cas) {
                return refuse(*id, "the head is not as it was locked");
            }
            if stored.is_some_and(|h| h.class() == Class::Final) {
                return refuse(*id, "a final head is never updated");
            }
            if stored.is_some_and(|h| h.version > write.after.version) {
                return refuse(*id, "a version never falls");
            }
            if stored.is_some_and(|h| h.epoch > write.after.epoch) {
                return refuse(*id, "an epoch never falls");
            }
            guard_head(&write.after)?;
        }
        let mut ends: HashMap<EntityId, u64> = HashMap::new();
        for record in &writes.records {
            let last = || self.streams.get(&record.entity).and_then(|s| s.last());
            let end = ends.entry(record.entity).or_insert_with(|| last().map_or(0, |r| r.last()));
            if record.first != *end + 1 {
                return refuse(record.entity, "versions are dense");
            }
            *end = record.last();
        }
        let mut counts: HashMap<EntityId, u64> = HashMap::new();
        for (to, mail) in &writes.mail {
            let len = || self.rows.heads.get(to).map_or(0, |h| h.mail_count);
            let count = counts.entry(*to).or_insert_with(len);
            if mail.seq != *count + 1 {
                return refuse(*to, "mail is numbered densely");
            }
            *count += 1;
            if self.mail_ids.contains(&(*to, mail.id.clone())) {
                return refuse(*to, "a mail id is there once");
            }
        }
        for (key, entity) in &writes.keys {
            if self.keys.contains_key(&key.key) {
                return refuse(*entity, "a unique key is there once");
            }
        }
        match writes.posted.iter().find(|p| self.rows.outbox.contains_key(&p.id)) {
            Some(p) => refuse(p.id.source, "a message id is there once"),
            None => Ok(()),
        }
    }

    /// Removes what is over, as [`tenure_kernel::store::Store::retire`] says.
    /// How much an entity takes.
    pub(super) fn size_of(&self, head: &Head) -> EntitySize {
        let id = head.id;
        let body = |body: &Body| body.inline().map_or(0, <[u8]>::len);
        let records = self.streams.get(&id).into_iter().flatten().map(|r| r.bytes.len());
        let mail = self.mail.get(&id).into_iter().flatten().map(|m| body(&m.body));
        let evidence = self.evidence.get(&id).into_iter().flatten().map(|e| body(&e.said.body));
        let named = self.blob_names.range((id, Hash([0; 32]))..=(id, Hash([255; 32])));
        let named = named.filter_map(|(_, b)| Some(self.blobs.get(b)?.0.len()));
        let bytes: usize = records.chain(mail).chain(evidence).chain(named).sum();
        EntitySize { id, tenant: head.tenant.clone(), bytes: (bytes + head.state.len()) as u64 }
    }

    pub(super) fn retire(
        &mut self,
        before: Timestamp,
        limit: usize,
        vacancy: bool,
        blobs_before: Timestamp,
    ) -> (tenure_kernel::housekeeping::Retired, Vec<Former>) {
        let mut retired = tenure_kernel::housekeeping::Retired::default();
        let sends: BTreeSet<EntityId> = self.rows.outbox.keys().map(|m| m.source).collect();
        let over = |h: &&Arc<Head>| may_leave(h, before, sends.contains(&h.id), vacancy);
        let gone: BTreeSet<EntityId> =
            self.rows.heads.values().filter(over).map(|h| h.id).take(limit).collect();
        retired.entities = gone.len() as u64;
        let mut former = Vec::new();
        for id in &gone {
            let head = self.rows.heads.remove(id);
            self.rows.sessions.remove(id);
            let records = self.streams.remove(id).unwrap_or_default();
            let mail = self.mail.remove(id).unwrap_or_default();
            let evidence = self.evidence.remove(id).unwrap_or_default();
            let named = self.blob_names.range((*id, Hash([0; 32]))..=(*id, Hash([255; 32])));
            let named = named.filter_map(|(_, b)| Some((*b, self.blobs.get(b)?.clone())));
            let (blobs, sends) = (named.collect(), sends.contains(id));
            let life = |head| Former { head, records, mail, evidence, blobs, sends };
            former.extend(head.map(life));
        }
        if !gone.is_empty() {
            self.keys.retain(|_, (e, _)| !gone.contains(e));
            self.mail_ids.retain(|(e, _)| !gone.contains(e));
            self.evidence_keys.retain(|k| !gone.contains(&k.0));
            self.blob_names.retain(|(e, _)| !gone.contains(e));
        }
        let mut kept: BTreeSet<(EntityId, u64)> = BTreeSet::new();
        for (id, head) in &self.rows.heads {
            let Some(stream) = self.streams.get_mut(id) else { continue };
            if head.sealed > 0 && head.class() != Class::Final {
                // From the oldest on, up to the first that stays: a stream is cut at one place only.
                let stays = stream.iter().position(|r| r.last() >= head.sealed || r.at >= before);
                retired.records += stream.drain(..stays.unwrap_or(0)).count() as u64;
                if let Some(mail) = self.mail.get_mut(id) {
                    let old = |m: &Mail| m.seq <= head.mail_read && m.at < before;
                    let gone = mail.iter().filter(|m| old(m)).map(|m| (*id, m.id.clone()));
                    for key in gone {
                        self.mail_ids.remove(&key);
                    }
                    mail.retain(|m| !old(m));
                }
            }
            kept.extend(stream.iter().map(|r| (*id, r.first)));
        }
        for (i, slot) in self.feed.iter_mut().enumerate() {
            if slot.as_ref().is_some_and(|r| !kept.contains(&(r.entity, r.first))) {
                *slot = None;
                self.feed_floor = self.feed_floor.max(i as u64 + 1);
            }
        }
        let named: BTreeSet<Hash> = self.blob_names.iter().map(|(_, b)| *b).collect();
        let blobs = self.blobs.len();
        // A blob is durable before the commit that names it: a young one may still be waiting.
        self.blobs.retain(|digest, (_, at)| named.contains(digest) || *at >= blobs_before);
        retired.blobs = (blobs - self.blobs.len()) as u64;
        (retired, former)
    }
}

fn guard_head(head: &Head) -> Result<(), StoreError> {
    match head.class() {
        Class::Open => match (head.due, head.must_end_by) {
            (Some(due), Some(end)) if due <= end => {}
            _ => return refuse(head.id, "open means due <= must_end_by, both set"),
        },
        Class::Resting if head.must_end_by.is_some() => {
            return refuse(head.id, "a resting entity has no must_end_by");
        }
        Class::Resting => {}
        Class::Final => {
            if head.due.is_some() || head.must_end_by.is_some() || head.holder.is_some() {
                return refuse(head.id, "a final entity has no due, no must_end_by and no holder");
            }
        }
    }
    if head.mail_read > head.mail_count {
        return refuse(head.id, "no more mail is read than has come");
    }
    if head.holder.is_some() && head.ready_at.is_some() {
        return refuse(head.id, "a held entity stands in no queue");
    }
    Ok(())
}

fn refuse(entity: EntityId, why: &str) -> Result<(), StoreError> {
    Err(StoreError::Refused(format!("{entity}: {why}")))
}
