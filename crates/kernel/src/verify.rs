//! From records back to heads: the fold that makes history the truth, and the check that nobody
//! touched it. The judge uses the same fold, so a head is a fold of its records by construction.

use crate::{
    codec::{Damaged, Reader, Writer},
    commit::{Birth, Refusal},
    head::Head,
    ids::{EntityId, SessionId},
    stream::{Body, Hash, Record, rehash},
    table::{Status, Tables, kernel_events as ke},
    time::Timestamp,
    timers::Timers,
};

/// What a commit changed besides its events. Stored in front of them and covered by the chain.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Meta {
    /// Fixed facts, with the first record.
    pub birth: Option<Birth>,
    /// All timers after it, if they changed.
    pub timers: Option<Timers>,
    /// `must_end_by`, if it changed.
    pub must_end_by: Option<Option<Timestamp>>,
    /// Who took tenure.
    pub take: Option<SessionId>,
    /// Whether a tenure ended.
    pub ended: bool,
    /// `attention`, if it changed.
    pub attention: Option<Option<String>>,
    /// Mail covered, if more was read.
    pub mail_read: Option<u64>,
}

impl Meta {
    const BIRTH: u8 = 1;
    const TIMERS: u8 = 2;
    const MUST_END: u8 = 4;
    const TAKE: u8 = 8;
    const ENDED: u8 = 16;
    const ATTENTION: u8 = 32;
    const MAIL: u8 = 64;

    /// The stored form: a byte of flags and the fields that are there.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut w = Writer(Vec::with_capacity(64));
        let flag = |on: bool, bit: u8| if on { bit } else { 0 };
        w.u8(flag(self.birth.is_some(), Self::BIRTH)
            | flag(self.timers.is_some(), Self::TIMERS)
            | flag(self.must_end_by.is_some(), Self::MUST_END)
            | flag(self.take.is_some(), Self::TAKE)
            | flag(self.ended, Self::ENDED)
            | flag(self.attention.is_some(), Self::ATTENTION)
            | flag(self.mail_read.is_some(), Self::MAIL));
        if let Some(b) = &self.birth {
            w.bytes(b.kind.as_bytes());
            w.bytes(b.tenant.as_bytes());
            w.bytes(b.queue.as_bytes());
            w.0.extend_from_slice(&b.priority.to_be_bytes());
        }
        if let Some(t) = &self.timers {
            t.write(&mut w);
        }
        if let Some(end) = self.must_end_by {
            w.u8(u8::from(end.is_some()));
            w.time(end.unwrap_or(Timestamp::ZERO));
        }
        if let Some(s) = self.take {
            w.id(s);
        }
        if let Some(a) = &self.attention {
            w.u8(u8::from(a.is_some()));
            w.bytes(a.as_deref().unwrap_or("").as_bytes());
        }
        if let Some(n) = self.mail_read {
            w.uint(n);
        }
        w.0
    }

    /// Whether an encoded block says that a tenure ended.
    pub fn says_ended(bytes: &[u8]) -> bool {
        bytes.first().is_some_and(|flags| flags & Self::ENDED != 0)
    }

    /// Reads the stored form. `tables` gives the kind its static name.
    pub fn from_bytes(bytes: &[u8], tables: &Tables) -> Result<Self, Fault> {
        let mut r = Reader::new(bytes);
        let flags = r.u8()?;
        let mut meta = Meta { ended: flags & Self::ENDED != 0, ..Meta::default() };
        if flags & Self::BIRTH != 0 {
            let kind = r.text()?;
            let table = tables.get(kind).ok_or_else(|| Fault::UnknownKind(kind.to_owned()))?;
            let (tenant, queue) = (r.text()?.to_owned(), r.text()?.to_owned());
            let priority = r.take(2)?;
            let priority = i16::from_be_bytes([priority[0], priority[1]]);
            meta.birth = Some(Birth { kind: table.kind, tenant, queue, priority });
        }
        if flags & Self::TIMERS != 0 {
            meta.timers = Some(Timers::read(&mut r)?);
        }
        if flags & Self::MUST_END != 0 {
            let there = r.u8()? == 1;
            let end = r.time()?;
            meta.must_end_by = Some(there.then_some(end));
        }
        if flags & Self::TAKE != 0 {
            meta.take = Some(r.id()?);
        }
        if flags & Self::ATTENTION != 0 {
            let there = r.u8()? == 1;
            let why = r.text()?;
            meta.attention = Some(there.then(|| why.to_owned()));
        }
        if flags & Self::MAIL != 0 {
            meta.mail_read = Some(r.uint()?);
        }
        if r.is_done() { Ok(meta) } else { Err(Fault::Damaged(Damaged { at: bytes.len() })) }
    }

    /// The head after a record. `status` is where its events lead. Soft fields are carried over
    /// (`due`, `check_at`, `mail_count`); the judge sets them, a rebuild expires them.
    pub fn fold<'a>(
        &self,
        head: Option<&Head>,
        record: &Record,
        events: impl Iterator<Item = &'a str>,
        status: Status,
    ) -> Result<Head, Refusal> {
        let mut after = match (head, &self.birth) {
            (Some(head), None) => head.clone(),
            (None, Some(birth)) => born(record, birth, status),
            _ => return Err(Refusal::Unknown(record.entity)),
        };
        after.status = status;
        after.version = record.last();
        after.chain = record.hash;
        after.changed_at = record.at;
        after.faults = 0;
        if head.is_none() {
            // Not always zero: see `housekeeping::first_epoch`. The chain covers it.
            after.epoch = record.epoch.saturating_sub(u64::from(self.take.is_some()));
        }
        if let Some(session) = self.take {
            after.holder = Some(session);
            after.epoch += 1;
        }
        if self.ended {
            after.holder = None;
            after.epoch += 1;
        }
        if let Some(timers) = &self.timers {
            after.timers = timers.clone();
        }
        if let Some(end) = self.must_end_by {
            after.must_end_by = end;
        }
        if let Some(why) = &self.attention {
            after.attention.clone_from(why);
        }
        if let Some(n) = self.mail_read {
            after.mail_read = after.mail_read.max(n);
            after.mail_count = after.mail_count.max(after.mail_read);
        }
        for (i, name) in events.enumerate() {
            if name == ke::SEALED {
                after.sealed = record.first + i as u64;
            }
        }
        after.ready_at = match (after.belongs_in_queue(), head.and_then(|h| h.ready_at)) {
            (false, _) => None,
            (true, Some(since)) => Some(since),
            (true, None) => Some(record.at),
        };
        Ok(after)
    }
}

fn born(record: &Record, birth: &Birth, status: Status) -> Head {
    Head {
        id: record.entity,
        status,
        tenant: birth.tenant.clone(),
        queue: birth.queue.clone(),
        priority: birth.priority,
        version: 0,
        epoch: 0,
        holder: None,
        chain: Hash::ZERO,
        created_at: record.at,
        changed_at: record.at,
        mail_count: 0,
        mail_read: 0,
        due: None,
        must_end_by: None,
        check_at: None,
        faults: 0,
        ready_at: None,
        attention: None,
        sealed: 0,
        timers: Timers::default(),
        state: Vec::new(),
    }
}

/// What is wrong with a stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Bytes that can not be read.
    #[error(transparent)]
    Damaged(#[from] Damaged),
    /// The stored chain value is not the one the bytes give.
    #[error(
        "version {version} of {entity}: the chain is broken (stored {stored}, computed {computed})"
    )]
    Broken {
        /// Whose stream.
        entity: EntityId,
        /// Last version of the record.
        version: u64,
        /// What the database says.
        stored: Hash,
        /// What the bytes say.
        computed: Hash,
    },
    /// Versions are not dense.
    #[error("{entity}: expected version {expected}, found {found}")]
    Gap {
        /// Whose stream.
        entity: EntityId,
        /// The next version in order.
        expected: u64,
        /// What stands there.
        found: u64,
    },
    /// Time ran backwards.
    #[error("{entity}: version {version} is older than the one before it")]
    Backwards {
        /// Whose stream.
        entity: EntityId,
        /// The first version of the record.
        version: u64,
    },
    /// The head says something that the records do not.
    #[error("{entity}: the head says {field} is {head}, its history says {history}")]
    HeadDiffers {
        /// Whose head.
        entity: EntityId,
        /// Which field.
        field: &'static str,
        /// In the head.
        head: String,
        /// In the fold.
        history: String,
    },
    /// An illegal transition stands in the stream.
    #[error("{0}")]
    Illegal(String),
    /// No machine of that kind.
    #[error("no machine of kind {0:?} is known here")]
    UnknownKind(String),
}

/// Checks a stream and folds it into a head. A sealed stream starts at its seal, with the head's
/// facts at that moment unknown; then only the chain from the seal on is checked and `None` returned.
pub fn fold_stream(records: &[Record], tables: &Tables) -> Result<Option<Head>, Fault> {
    let mut head: Option<Head> = None;
    let mut previous: Option<(Hash, u64, Timestamp)> = None;
    let complete = records.first().is_some_and(|r| r.first == 1);
    for record in records {
        let before = match previous {
            Some((hash, last, at)) => {
                if record.first != last + 1 {
                    return Err(Fault::Gap {
                        entity: record.entity,
                        expected: last + 1,
                        found: record.first,
                    });
                }
                if record.at < at {
                    return Err(Fault::Backwards { entity: record.entity, version: record.first });
                }
                hash
            }
            None if complete => Hash::ZERO,
            None => seal_root(record)?,
        };
        let computed = rehash(before, record)?;
        if computed != record.hash {
            return Err(Fault::Broken {
                entity: record.entity,
                version: record.last(),
                stored: record.hash,
                computed,
            });
        }
        previous = Some((record.hash, record.last(), record.at));
        if complete {
            head = Some(fold_record(head.as_ref(), record, tables)?);
        }
    }
    Ok(head)
}

fn fold_record(head: Option<&Head>, record: &Record, tables: &Tables) -> Result<Head, Fault> {
    let meta = Meta::from_bytes(record.meta()?, tables)?;
    let table = match (head, &meta.birth) {
        (Some(h), _) => h.status.table,
        (None, Some(b)) => {
            tables.get(b.kind).ok_or_else(|| Fault::UnknownKind(b.kind.to_owned()))?
        }
        (None, None) => {
            return Err(Fault::Gap { entity: record.entity, expected: 1, found: record.first });
        }
    };
    let events = record.events()?;
    let mut status = head.map(|h| h.status);
    for event in &events {
        status = Some(table.step(status, &event.name).map_err(|e| Fault::Illegal(e.to_string()))?);
    }
    let status = status.ok_or_else(|| Fault::Illegal("a record without events".into()))?;
    let names = events.iter().map(|e| e.name.as_str());
    meta.fold(head, record, names, status).map_err(|e| Fault::Illegal(e.to_string()))
}

/// The chain value before a seal, which the seal's own body repeats.
fn seal_root(record: &Record) -> Result<Hash, Fault> {
    let events = record.events()?;
    let seal = events.first().filter(|e| e.name == ke::SEALED);
    seal.and_then(|e| sealed_chain(&e.body)).ok_or(Fault::Gap {
        entity: record.entity,
        expected: 1,
        found: record.first,
    })
}

/// The chain value that the body of a seal repeats.
pub fn sealed_chain(body: &Body) -> Option<Hash> {
    #[derive(serde::Deserialize)]
    struct Seal {
        previous: String,
    }
    let seal: Seal = crate::stored::from_slice(body.inline()?).ok()?;
    let mut hash = [0; 32];
    for (i, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(seal.previous.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    Some(Hash(hash))
}

/// Compares a head with its history. Soft fields are not compared.
pub fn verify(head: &Head, records: &[Record], tables: &Tables) -> Result<(), Fault> {
    let folded = fold_stream(records, tables)?;
    let last = records.last();
    let differs = |field, head_says: &dyn std::fmt::Debug, history: &dyn std::fmt::Debug| {
        Err(Fault::HeadDiffers {
            entity: head.id,
            field,
            head: format!("{head_says:?}"),
            history: format!("{history:?}"),
        })
    };
    let (version, chain) = last.map_or((0, Hash::ZERO), |r| (r.last(), r.hash));
    if head.version != version {
        return differs("version", &head.version, &version);
    }
    if head.chain != chain {
        return differs("chain", &head.chain, &chain);
    }
    let Some(fold) = folded else { return Ok(()) };
    if head.status != fold.status {
        return differs("status", &head.status, &fold.status);
    }
    if head.epoch != fold.epoch {
        return differs("epoch", &head.epoch, &fold.epoch);
    }
    if head.holder != fold.holder {
        return differs("holder", &head.holder, &fold.holder);
    }
    if head.must_end_by != fold.must_end_by {
        return differs("must_end_by", &head.must_end_by, &fold.must_end_by);
    }
    if head.timers != fold.timers {
        return differs("timers", &head.timers, &fold.timers);
    }
    if head.mail_read != fold.mail_read {
        return differs("mail_read", &head.mail_read, &fold.mail_read);
    }
    if head.attention != fold.attention {
        return differs("attention", &head.attention, &fold.attention);
    }
    if (&head.tenant, &head.queue, head.priority) != (&fold.tenant, &fold.queue, fold.priority) {
        let of = |h: &Head| (h.tenant.clone(), h.queue.clone(), h.priority);
        return differs("tenant, queue and priority", &of(head), &of(&fold));
    }
    if (head.created_at, head.sealed) != (fold.created_at, fold.sealed) {
        return differs(
            "birth and seal",
            &(head.created_at, head.sealed),
            &(fold.created_at, fold.sealed),
        );
    }
    if head.ready_at != fold.ready_at {
        return differs("ready_at", &head.ready_at, &fold.ready_at);
    }
    Ok(())
}
