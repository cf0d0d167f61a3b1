//! The smallest store: maps, one thread, no I/O. It loads what a batch needs, lets the kernel plan,
//! and writes what it says; so these tests see exactly what every real store sees.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use tenure_kernel::{
    batch::{Facts, Peek, evidence_key, needs, plan, settle_repeat, suspected_repeats},
    commit::{Commit, CommitAnswer, UniqueKey},
    evidence::NewEvidence,
    head::Head,
    ids::{EntityId, MailId, MessageId},
    judge::Judge,
    mail::Mail,
    outbox::Posted,
    sessions::Session,
    store::{Answer, Op},
    stream::{Hash, Record},
    time::Timestamp,
};

/// A store in a pocket.
#[derive(Clone)]
pub struct Model {
    /// Decides.
    pub judge: Judge,
    /// Its time, which stands still.
    pub now: Timestamp,
    /// Heads.
    pub heads: BTreeMap<EntityId, Head>,
    /// Records, by entity.
    pub streams: BTreeMap<EntityId, Vec<Record>>,
    /// Mail, by receiver.
    pub mail: BTreeMap<EntityId, Vec<Mail>>,
    /// Evidence, as it came.
    pub evidence: Vec<NewEvidence>,
    /// Keys that are taken.
    pub keys: BTreeMap<String, (EntityId, Hash)>,
    /// Messages that have not been delivered.
    pub outbox: BTreeMap<MessageId, Posted>,
    /// Sessions.
    pub sessions: BTreeMap<EntityId, Session>,
    /// Heads that another batch has locked.
    pub busy: HashSet<EntityId>,
}

impl Model {
    /// An empty one.
    pub fn new(judge: Judge) -> Self {
        Model {
            judge,
            now: Timestamp::from_micros(1_790_000_000_000_000),
            heads: BTreeMap::new(),
            streams: BTreeMap::new(),
            mail: BTreeMap::new(),
            evidence: Vec::new(),
            keys: BTreeMap::new(),
            outbox: BTreeMap::new(),
            sessions: BTreeMap::new(),
            busy: HashSet::new(),
        }
    }

    /// Runs a batch.
    pub fn apply(&mut self, ops: &[Op]) -> Vec<Answer> {
        let mut facts = self.facts(ops);
        let (mut answers, writes) = plan(&self.judge, &mut facts, ops);
        for (id, write) in &writes.heads {
            assert_eq!(self.heads.get(id), write.before.as_ref(), "planned on the head there is");
        }
        for (id, write) in writes.heads {
            self.heads.insert(id, write.after);
        }
        for record in writes.records {
            self.streams.entry(record.entity).or_default().push(record);
        }
        for (to, mail) in writes.mail {
            self.mail.entry(to).or_default().push(mail);
        }
        self.evidence.extend(writes.evidence);
        self.outbox.extend(writes.posted.into_iter().map(|p| (p.id, p)));
        writes.delivered.iter().for_each(|id| assert!(self.outbox.remove(id).is_some()));
        for (UniqueKey { key, digest }, entity) in writes.keys {
            assert!(self.keys.insert(key, (entity, digest)).is_none(), "a key is taken once");
        }
        self.sessions.extend(writes.opened.into_iter().map(|s| (s.id, s)));
        for (id, expires_at, holds) in writes.renewed {
            if let Some(row) = self.sessions.get_mut(&id) {
                (row.renewed_at, row.expires_at, row.holds) = (self.now, expires_at, holds);
            }
        }
        for id in writes.ended {
            if let Some(row) = self.sessions.get_mut(&id) {
                row.ended = true;
            }
        }
        for (i, entity, version) in suspected_repeats(ops, &answers) {
            let record = self
                .streams
                .get(&entity)
                .and_then(|records| records.iter().find(|r| r.first == version));
            if let Some(record) = record {
                let head = self.heads.get(&entity);
                settle_repeat(&self.judge, &ops[i], &mut answers[i], record, head);
            }
        }
        answers
    }

    /// Runs one commit.
    pub fn commit(&mut self, commit: &Commit) -> CommitAnswer {
        match self.apply(&[Op::Commit(Box::new(commit.clone()))]).remove(0) {
            Answer::Commit(answer) => answer,
            other => panic!("a commit was answered {other:?}"),
        }
    }

    fn facts(&self, ops: &[Op]) -> Facts {
        let needs = needs(ops);
        let lies = |(to, id): &(EntityId, MailId)| {
            self.mail.get(to).is_some_and(|b| b.iter().any(|m| m.id == *id))
        };
        let known: BTreeSet<_> = self.evidence.iter().map(evidence_key).collect();
        let free = |id: &&EntityId| !self.busy.contains(*id);
        let heads: HashMap<_, _> = needs
            .heads
            .iter()
            .filter(free)
            .filter_map(|id| Some((*id, self.heads.get(id)?.clone())))
            .collect();
        let peek = |id: &EntityId| {
            let h = self.heads.get(id)?;
            Some((*id, Peek { epoch: h.epoch, holder: h.holder, has_mail: h.has_mail() }))
        };
        Facts {
            now: self.now,
            heads,
            busy: self.busy.intersection(&needs.heads.iter().copied().collect()).copied().collect(),
            peeks: needs.peeks.iter().filter_map(peek).collect(),
            mail: needs.mail.into_iter().filter(lies).collect(),
            evidence_counts: {
                let about = |e: EntityId| self.evidence.iter().filter(|k| k.entity == e).count();
                needs.evidence.iter().map(|(entity, ..)| (*entity, about(*entity))).collect()
            },
            evidence: needs.evidence.into_iter().filter(|k| known.contains(k)).collect(),
            keys: needs
                .keys
                .into_iter()
                .filter_map(|k| self.keys.get(&k).map(|v| (k, *v)))
                .collect(),
            waiting: {
                let inside = self.outbox.values().filter(|p| !p.message.to.leaves());
                let sources = inside.map(|p| p.id.source);
                sources.filter(|source| needs.sources.contains(source)).collect()
            },
            outbox: needs.outbox.into_iter().filter(|m| self.outbox.contains_key(m)).collect(),
            sessions: needs
                .sessions
                .iter()
                .filter_map(|id| Some((*id, self.sessions.get(id)?.clone())))
                .collect(),
            judging: None,
        }
    }
}
