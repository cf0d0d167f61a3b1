//! A store in memory, for tests and simulation. It behaves as the databases do: one transaction at a
//! time decided by the kernel, constraints as a second guard, reads that see a moment, and (where a
//! [`Chaos`] is set) delays, locks, outages, ambiguous commits and stale reads.
//!
//! A `MemoryStore` is a *handle*, as a connection pool is: clones see the same rows, and each process
//! of a simulation gets one with a chaos of its own. What a handle has been told was written it also
//! sees; what others wrote it may see late. Two reads of one handle may see two moments, as two
//! statements under read committed do, and the answer of a read is old by the time it arrives.

mod chaos;
mod contents;
mod health;

pub use chaos::{Call, Calm, Chaos, Fate, Witness};
pub use contents::{Contents, Former, Rows};

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tenure_kernel::{
    batch::{self, Facts, HeadWrite, Needs, Peek, Writes},
    claims::{ClaimAnswer, ClaimRequest, Claimed, Probe, cut_page},
    error::StoreError,
    evidence::Evidence,
    feed::{Cursor, FeedPage, Lost},
    head::{Head, lane_of},
    health::Health,
    housekeeping::{Pulse, PulseRequest, Retired, blobs_before},
    ids::{EntityId, MessageId, SessionId},
    judge::Judge,
    limits,
    mail::Mail,
    outbox::Posted,
    quota::{EntitySize, TenantCount},
    rules::{self, Tallies},
    runtime::{BoxFuture, Clock},
    sessions::Session,
    store::{Answer, HeadFilter, KeyRange, Op, Store},
    stream::{Hash, Record},
    table::Class,
    time::Timestamp,
};

/// Past moments that stale reads may see.
const MOMENTS_MAX: usize = 16;

/// See the module.
#[derive(Clone)]
pub struct MemoryStore {
    shared: Arc<Shared>,
    chaos: Arc<dyn Chaos>,
    /// The last write that this handle was told of.
    told: Arc<AtomicU64>,
}

struct Shared {
    judge: Judge,
    clock: Arc<dyn Clock>,
    incarnation: u64,
    witness: Option<Arc<dyn Witness>>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    contents: Contents,
    /// Counts writes.
    moment: u64,
    /// Kept moments, oldest first.
    past: VecDeque<(u64, Timestamp, Rows)>,
}

impl MemoryStore {
    /// An empty store.
    pub fn new(judge: Judge, clock: Arc<dyn Clock>, incarnation: u64) -> Self {
        Self::witnessed(judge, clock, incarnation, None)
    }

    /// An empty store whose transactions somebody sees.
    pub fn witnessed(
        judge: Judge,
        clock: Arc<dyn Clock>,
        incarnation: u64,
        witness: Option<Arc<dyn Witness>>,
    ) -> Self {
        let inner = Mutex::new(Inner::default());
        let shared = Arc::new(Shared { judge, clock, incarnation, witness, inner });
        MemoryStore { shared, chaos: Arc::new(Calm), told: Arc::default() }
    }

    /// Another handle on the same rows.
    pub fn handle(&self, chaos: Arc<dyn Chaos>) -> Self {
        MemoryStore { shared: self.shared.clone(), chaos, told: Arc::default() }
    }

    /// Looks at everything, as no client can.
    pub fn inspect<T>(&self, look: impl FnOnce(&Contents) -> T) -> T {
        look(&self.lock().contents)
    }

    /// The judge in force.
    pub fn judge(&self) -> &Judge {
        &self.shared.judge
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic under the lock is a failed test already; others may still look at the rows.
        self.shared.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn time(&self) -> Timestamp {
        self.shared.clock.now()
    }

    /// Runs one call as the chaos says.
    fn call<'a, T: Send + 'a>(
        &'a self,
        name: &'static str,
        writes: bool,
        run: impl FnOnce(&Self) -> Result<T, StoreError> + Send + 'a,
    ) -> BoxFuture<'a, Result<T, StoreError>> {
        let call = Call { name, writes };
        Box::pin(async move {
            let lost = || StoreError::Indeterminate(format!("{name}: no answer"));
            match self.chaos.before(call).await {
                Fate::Done => {
                    let answer = run(self);
                    let told = self.lock().moment;
                    self.chaos.after(call).await;
                    if writes {
                        self.told.fetch_max(told, Ordering::Relaxed);
                    }
                    answer
                }
                Fate::AnswerLost if writes => {
                    run(self)?;
                    self.chaos.after(call).await;
                    Err(lost())
                }
                Fate::RequestLost if writes => Err(lost()),
                _ => Err(StoreError::Unavailable(format!("{name}: no connection"))),
            }
        })
    }

    fn read<'a, T: Send + 'a>(
        &'a self,
        name: &'static str,
        run: impl FnOnce(&Rows, &Contents, Timestamp) -> Result<T, StoreError> + Send + 'a,
    ) -> BoxFuture<'a, Result<T, StoreError>> {
        self.call(name, false, move |store| {
            let (back, now) = (store.chaos.looks_back(Call { name, writes: false }), store.time());
            let told = store.told.load(Ordering::Relaxed);
            let inner = store.lock();
            let past = inner.past.iter();
            let stale = (!back.is_zero())
                .then(|| past.rev().find(|(m, at, _)| *m >= told && now.since(*at) >= back))
                .flatten();
            let rows = stale.map_or(&inner.contents.rows, |(_, _, rows)| rows);
            run(rows, &inner.contents, now)
        })
    }

    fn run_batch(&self, ops: &[Op]) -> Result<Vec<Answer>, StoreError> {
        let now = self.time();
        let mut inner = self.lock();
        let mut facts = self.load(&inner.contents, batch::needs(ops), now);
        let (mut answers, writes) = batch::plan(&self.shared.judge, &mut facts, ops);
        for (i, entity, version) in batch::suspected_repeats(ops, &answers) {
            let stream = inner.contents.streams.get(&entity);
            let record = stream.and_then(|s| s.iter().find(|r| r.first == version));
            if let Some(record) = record {
                let head = inner.contents.rows.heads.get(&entity).map(|h| &**h);
                batch::settle_repeat(&self.shared.judge, &ops[i], &mut answers[i], record, head);
            }
        }
        self.write(&mut inner, now, ops, &answers, &writes)?;
        Ok(answers)
    }

    fn write(
        &self,
        inner: &mut Inner,
        now: Timestamp,
        ops: &[Op],
        answers: &[Answer],
        writes: &Writes,
    ) -> Result<(), StoreError> {
        if let Some(witness) = &self.shared.witness {
            witness.batch(now, ops, answers, writes);
        }
        if writes.is_empty() {
            return Ok(());
        }
        if self.chaos.keeps_moment() {
            let (moment, rows) = (inner.moment, inner.contents.rows.clone());
            inner.past.push_back((moment, now, rows));
            if inner.past.len() > MOMENTS_MAX {
                inner.past.pop_front();
            }
        }
        inner.contents.write(writes, now)?;
        inner.moment += 1;
        Ok(())
    }

    fn load(&self, contents: &Contents, needs: Needs, now: Timestamp) -> Facts {
        let mut facts = Facts { now, ..Facts::default() };
        for id in needs.heads {
            if self.chaos.is_locked(id) {
                facts.busy.insert(id);
            } else if let Some(head) = contents.rows.heads.get(&id) {
                facts.heads.insert(id, Head::clone(head));
            }
        }
        for id in needs.peeks {
            if let Some(h) = contents.rows.heads.get(&id) {
                let peek = Peek { epoch: h.epoch, holder: h.holder, has_mail: h.has_mail() };
                facts.peeks.insert(id, peek);
            }
        }
        facts.mail.extend(needs.mail.into_iter().filter(|m| contents.mail_ids.contains(m)));
        for (entity, ..) in &needs.evidence {
            let count = contents.evidence.get(entity).map_or(0, Vec::len);
            facts.evidence_counts.insert(*entity, count);
        }
        let seen = |k: &batch::EvidenceKey| contents.evidence_keys.contains(k);
        facts.evidence.extend(needs.evidence.into_iter().filter(seen));
        let keys = needs.keys.into_iter();
        facts.keys.extend(keys.filter_map(|k| contents.keys.get(&k).map(|v| (k, *v))));
        let first = |source| MessageId { source, version: 0, ordinal: 0 };
        let waits = |source: &EntityId| {
            let rows = contents.rows.outbox.range(first(*source)..);
            let mut own = rows.take_while(|(id, _)| id.source == *source);
            own.any(|(_, (_, posted))| !posted.message.to.leaves())
        };
        facts.waiting.extend(needs.sources.into_iter().filter(waits));
        let outbox = needs.outbox.into_iter();
        facts.outbox.extend(outbox.filter(|id| contents.rows.outbox.contains_key(id)));
        let row = |id: SessionId| contents.rows.sessions.get(&id).map(|s| (id, Session::clone(s)));
        facts.sessions.extend(needs.sessions.into_iter().filter_map(row));
        facts.judging = contents.pulse_at.map(|_| (contents.judge_after, contents.judges_until));
        facts
    }

    /// Candidates come from an index, possibly of a moment ago; each is judged on its head of now, as
    /// a database locks and re-checks what its index scan found.
    fn run_claim(&self, request: &ClaimRequest) -> Result<ClaimAnswer, StoreError> {
        let now = self.time();
        let back = self.chaos.looks_back(Call { name: "claim", writes: true });
        let limit = request.limit.min(limits::CLAIM_MAX);
        let mut inner = self.lock();
        let inner = &mut *inner;
        let (mut answer, mut writes) = (ClaimAnswer::default(), Writes::default());
        let (mut ops, mut answers) = (Vec::new(), Vec::new());
        let mut room_for_mail = limits::MAIL_PER_CLAIM_MAX;
        for probe in &request.probes {
            let wanted = probe.want.min(limit - answer.claimed.len());
            let mut found = 0;
            let old_enough = |(_, at, _): &&(u64, Timestamp, Rows)| now.since(*at) >= back;
            let stale = (!back.is_zero()).then(|| inner.past.iter().rev().find(old_enough));
            let stale = stale.flatten();
            let index = stale.map_or(&inner.contents.rows, |(_, _, rows)| rows);
            for (ready_at, id) in ready(index, &request.queue, probe) {
                if found == wanted {
                    break;
                }
                let Some(head) = inner.contents.rows.heads.get(&id) else { continue };
                if self.chaos.is_locked(id) || writes.heads.contains_key(&id) {
                    continue;
                }
                let (session, lease) = (request.session, request.lease);
                let commit = request.id.nth(answer.claimed.len() as u64);
                let judged = self.shared.judge.claim(head, session, lease, false, commit, now);
                let Ok(written) = judged else { continue };
                found += 1;
                let mail = inner.contents.mail.get(&id).map_or(&[][..], Vec::as_slice);
                let unread = mail.iter().filter(|m| m.seq > head.mail_read);
                let mail: Vec<_> = unread.take(room_for_mail).cloned().collect();
                room_for_mail -= mail.len();
                let after = written.head;
                ops.push(Op::Claim { id: commit, entity: id, session, lease });
                answers.push(Answer::Claim(Ok(Box::new(after.clone()))));
                answer.claimed.push(Claimed { head: after.clone(), mail, ready_at });
                writes.records.push(written.record);
                writes.heads.insert(id, HeadWrite { before: Some(Head::clone(head)), after });
            }
            answer.found.push(found);
            if answer.claimed.len() == limit {
                break;
            }
        }
        self.write(inner, now, &ops, &answers, &writes)?;
        Ok(answer)
    }
}

/// What stands in a group, oldest first.
fn ready(rows: &Rows, queue: &str, probe: &Probe) -> Vec<(Timestamp, EntityId)> {
    let stands = |h: &&Arc<Head>| {
        h.queue == queue && h.priority == probe.priority && h.tenant == probe.tenant
    };
    let since = |h: &Arc<Head>| h.ready_at.filter(|at| *at >= probe.floor).map(|at| (at, h.id));
    let mut found: Vec<_> = rows.heads.values().filter(stands).filter_map(since).collect();
    found.sort_unstable();
    found
}

impl Store for MemoryStore {
    fn apply_shared(&self, ops: Arc<Vec<Op>>) -> BoxFuture<'_, Result<Vec<Answer>, StoreError>> {
        self.call("apply", true, move |s| s.run_batch(&ops))
    }

    fn claim(&self, request: ClaimRequest) -> BoxFuture<'_, Result<ClaimAnswer, StoreError>> {
        self.call("claim", true, move |s| s.run_claim(&request))
    }

    fn ready_groups(
        &self,
        queue: &str,
        below: Option<i16>,
    ) -> BoxFuture<'_, Result<Vec<(i16, String)>, StoreError>> {
        let queue = queue.to_owned();
        self.read("ready_groups", move |rows, _, _| {
            let ready = rows.heads.values().filter(|h| h.ready_at.is_some() && h.queue == queue);
            let ready = ready.filter(|h| below.is_none_or(|below| h.priority < below));
            let mut groups: Vec<_> = ready.map(|h| (h.priority, h.tenant.clone())).collect();
            groups.sort_unstable_by(|a, b| (b.0, &a.1).cmp(&(a.0, &b.1)));
            groups.dedup();
            cut_page(&mut groups);
            Ok(groups)
        })
    }

    fn ready_queues(
        &self,
        after: &str,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<String>, StoreError>> {
        let after = after.to_owned();
        self.read("ready_queues", move |rows, _, _| {
            let ready = rows.heads.values().filter(|h| h.ready_at.is_some() && h.queue > after);
            let names: BTreeSet<&String> = ready.map(|h| &h.queue).collect();
            Ok(names.into_iter().take(limit).cloned().collect())
        })
    }

    fn now(&self) -> BoxFuture<'_, Result<Timestamp, StoreError>> {
        self.read("now", |_, _, now| Ok(now))
    }

    fn head(&self, id: EntityId) -> BoxFuture<'_, Result<Option<Head>, StoreError>> {
        self.read("head", move |rows, _, _| Ok(rows.heads.get(&id).map(|h| Head::clone(h))))
    }

    fn heads(
        &self,
        filter: HeadFilter,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Head>, StoreError>> {
        self.read("heads", move |rows, _, _| {
            let statuses = filter.wanted_statuses();
            let wanted = |h: &&Arc<Head>| {
                filter.kind.as_deref().is_none_or(|k| h.kind() == k)
                    && (statuses.is_empty() || statuses.contains(&h.status.name()))
                    && filter.tenant.as_deref().is_none_or(|t| h.tenant == t)
                    && (!filter.attention || h.attention.is_some())
                    && filter.held.is_none_or(|by| by.is_it(h))
                    && filter.after.is_none_or(|a| h.id > a)
                    && filter.before.is_none_or(|b| h.id < b)
            };
            let found = rows.heads.values().filter(wanted);
            Ok(match filter.newest_first {
                true => found.rev().take(limit).map(|h| Head::clone(h)).collect(),
                false => found.take(limit).map(|h| Head::clone(h)).collect(),
            })
        })
    }

    fn keys(
        &self,
        range: KeyRange,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<(String, EntityId)>, StoreError>> {
        self.read("keys", move |_, contents, _| {
            let within = |key: &&String| **key >= range.from && **key < range.to;
            let found = contents.keys.keys().filter(within);
            let mut found: Vec<_> = found.map(|k| (k.clone(), contents.keys[k].0)).collect();
            found.sort();
            if range.highest_first {
                found.reverse();
            }
            found.truncate(limit);
            Ok(found)
        })
    }

    fn due(
        &self,
        lanes: Vec<u16>,
        overdue: Duration,
        limit: usize,
    ) -> BoxFuture<'_, Result<(Timestamp, Vec<Head>), StoreError>> {
        self.read("due", move |rows, _, now| {
            let late = |h: &&Arc<Head>| h.due.is_some_and(|d| d <= now - overdue);
            let mut found: Vec<_> =
                rows.heads.values().filter(late).filter(|h| lanes.contains(&h.lane())).collect();
            found.sort_by_key(|h| (h.due, h.id));
            Ok((now, found.into_iter().take(limit).map(|h| Head::clone(h)).collect()))
        })
    }

    fn latest_due(
        &self,
        lanes: Vec<u16>,
        by: Timestamp,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Head>, StoreError>> {
        self.read("latest_due", move |rows, _, _| {
            let late = |h: &&Arc<Head>| h.due.is_some_and(|d| d <= by);
            let mut found: Vec<_> =
                rows.heads.values().filter(late).filter(|h| lanes.contains(&h.lane())).collect();
            found.sort_by_key(|h| std::cmp::Reverse((h.due, h.id)));
            Ok(found.into_iter().take(limit).map(|h| Head::clone(h)).collect())
        })
    }

    fn next_due(
        &self,
        lanes: Vec<u16>,
    ) -> BoxFuture<'_, Result<(Timestamp, Option<Timestamp>), StoreError>> {
        self.read("next_due", move |rows, _, now| {
            let mine = rows.heads.values().filter(|h| lanes.contains(&h.lane()));
            Ok((now, mine.filter_map(|h| h.due).min()))
        })
    }

    fn mail(
        &self,
        entity: EntityId,
        after: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Mail>, StoreError>> {
        self.read("mail", move |rows, all, _| {
            let until = rows.heads.get(&entity).map_or(0, |h| h.mail_count);
            let mail = all.mail.get(&entity).map_or(&[][..], Vec::as_slice);
            // Numbered densely; retention may have removed the beginning.
            let from = mail.partition_point(|m| m.seq <= after);
            let visible = mail[from..].iter().take_while(|m| m.seq <= until);
            Ok(visible.take(limit).cloned().collect())
        })
    }

    fn stream(
        &self,
        entity: EntityId,
        from: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Record>, StoreError>> {
        self.read("stream", move |rows, all, _| {
            let until = rows.heads.get(&entity).map_or(0, |h| h.version);
            let records = all.streams.get(&entity).map_or(&[][..], Vec::as_slice);
            let visible = records.iter().filter(|r| r.last() >= from && r.last() <= until);
            Ok(visible.take(limit).map(|r| Record::clone(r)).collect())
        })
    }

    fn outbox(
        &self,
        lanes: Vec<u16>,
        wire: bool,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Posted>, StoreError>> {
        self.read("outbox", move |rows, _, _| {
            let mine = |p: &&(u64, Arc<Posted>)| {
                lanes.contains(&lane_of(p.1.id.source)) && p.1.message.to.leaves() == wire
            };
            let mut found: Vec<_> = rows.outbox.values().filter(mine).collect();
            found.sort_by_key(|(position, _)| *position);
            Ok(found.into_iter().take(limit).map(|(_, p)| Posted::clone(p)).collect())
        })
    }

    fn outbox_has(&self, id: MessageId) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.read("outbox_has", move |rows, _, _| Ok(rows.outbox.contains_key(&id)))
    }

    fn feed(&self, after: Cursor, limit: usize) -> BoxFuture<'_, Result<FeedPage, StoreError>> {
        let incarnation = self.shared.incarnation;
        self.read("feed", move |_, all, _| {
            let cursor = |row| Cursor { incarnation, transaction: 0, row };
            let restart = cursor(all.feed_floor);
            let from = if after.incarnation == 0 {
                all.feed_floor
            } else if after.incarnation != incarnation {
                return Err(Lost::OtherIncarnation { restart }.into());
            } else if after.row < all.feed_floor {
                return Err(Lost::BelowFloor { restart }.into());
            } else {
                after.row
            };
            let rows = all.feed.iter().enumerate().skip(usize::try_from(from).unwrap_or(0));
            let items: Vec<_> = rows
                .filter_map(|(i, r)| Some((cursor(i as u64 + 1), Record::clone(r.as_ref()?))))
                .take(limit)
                .collect();
            let next = items.last().map_or(cursor(from), |(c, _)| *c);
            Ok(FeedPage { items, next })
        })
    }

    fn session(&self, id: SessionId) -> BoxFuture<'_, Result<Option<Session>, StoreError>> {
        self.read("session", move |rows, _, _| {
            Ok(rows.sessions.get(&id).map(|s| Session::clone(s)))
        })
    }

    fn live_sessions(&self) -> BoxFuture<'_, Result<Vec<Session>, StoreError>> {
        self.read("live_sessions", move |rows, _, now| {
            let alive = |s: &&Arc<Session>| !s.ended && now < s.expires_at;
            Ok(rows.sessions.values().filter(alive).map(|s| Session::clone(s)).collect())
        })
    }

    fn evidence(&self, entity: EntityId) -> BoxFuture<'_, Result<Vec<Evidence>, StoreError>> {
        self.read("evidence", move |_, all, _| {
            Ok(all.evidence.get(&entity).cloned().unwrap_or_default())
        })
    }

    fn put_blob(&self, bytes: Vec<u8>) -> BoxFuture<'_, Result<Hash, StoreError>> {
        self.call("put_blob", true, move |s| {
            let (what, limit) = ("blob in bytes", limits::BLOB_BYTES_MAX);
            if bytes.len() > limit {
                return Err(StoreError::Limit { what, actual: bytes.len(), limit });
            }
            let (digest, now) = (Hash::of(&bytes), s.time());
            s.lock().contents.blobs.insert(digest, (bytes, now));
            Ok(digest)
        })
    }

    fn blob(&self, digest: Hash) -> BoxFuture<'_, Result<Option<Vec<u8>>, StoreError>> {
        self.read("blob", move |_, all, _| Ok(all.blobs.get(&digest).map(|(b, _)| b.clone())))
    }

    fn pulse(&self, request: PulseRequest) -> BoxFuture<'_, Result<Pulse, StoreError>> {
        self.call("pulse", true, move |s| {
            let now = s.time();
            let mut inner = s.lock();
            let all = &mut inner.contents;
            let pulse = Pulse::next(all.pulse_at, all.judge_after, now, &request);
            (all.pulse_at, all.judge_after) = (Some(now), pulse.judge_after);
            all.judges_until = now + request.gap;
            rules::add(&mut all.tallies, &request.tallies);
            Ok(pulse)
        })
    }

    fn tallies(&self) -> BoxFuture<'_, Result<Tallies, StoreError>> {
        self.read("tallies", |_, all, _| Ok(all.tallies.clone()))
    }

    fn health(&self) -> BoxFuture<'_, Result<Health, StoreError>> {
        self.read("health", |rows, all, now| Ok(health::health(rows, all, now)))
    }

    fn open_by_tenant(&self) -> BoxFuture<'_, Result<Vec<TenantCount>, StoreError>> {
        self.read("open_by_tenant", |rows, _, _| {
            let mut counts = BTreeMap::new();
            for head in rows.heads.values().filter(|h| h.class() == Class::Open) {
                *counts.entry((head.tenant.clone(), head.kind().to_owned())).or_insert(0) += 1;
            }
            let count = |((tenant, kind), count)| TenantCount { tenant, kind, count };
            Ok(counts.into_iter().map(count).collect())
        })
    }

    fn sizes(
        &self,
        after: Option<EntityId>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<EntitySize>, StoreError>> {
        self.read("sizes", move |rows, all, _| {
            let mut heads: Vec<_> =
                rows.heads.values().filter(|h| after.is_none_or(|a| h.id > a)).collect();
            heads.sort_by_key(|h| h.id);
            Ok(heads.into_iter().take(limit).map(|h| all.size_of(h)).collect())
        })
    }

    fn retire(
        &self,
        ended_before: Timestamp,
        limit: usize,
    ) -> BoxFuture<'_, Result<Retired, StoreError>> {
        self.call("retire", true, move |s| {
            let blobs_before = blobs_before(ended_before, s.time());
            let mut inner = s.lock();
            // No read may see a moment whose history is gone.
            inner.past.clear();
            let vacancy = s.shared.judge.protections.vacancy;
            let (retired, former) =
                inner.contents.retire(ended_before, limit, vacancy, blobs_before);
            if let Some(witness) = &s.shared.witness {
                witness.retired(former);
            }
            Ok(retired)
        })
    }
}

/// What is open, for tests that wait until nothing is.
pub fn open_entities(contents: &Contents) -> HashMap<EntityId, &'static str> {
    let open = contents.rows.heads.values().filter(|h| h.class() == Class::Open);
    open.map(|h| (h.id, h.status.name())).collect()
}
