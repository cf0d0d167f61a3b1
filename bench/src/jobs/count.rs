//! What a run costs the store, counted without asking it: a store in front of the store that counts batches and
//! reads of history and sees calls being recorded, and the database's own words about statements and syncs.
//!
//! * **SQLite, statements:** a trace on every connection of the process; each start of a statement counts one,
//!   `BEGIN` and `COMMIT` included, statements of triggers not.
//! * **SQLite, syncs:** one per `COMMIT` (write-ahead log with `synchronous=FULL`), two per checkpoint (the log,
//!   then the file). There is no counter of system calls in reach; the settings say that this is what happens.
//! * **Postgres, syncs:** `pg_stat_wal.wal_sync`. **Statements:** `pg_stat_statements`, where it is installed.
//!   Both count the whole server: nobody else should use it meanwhile.

use crate::place::Place;
use rusqlite::ffi;
use std::{
    collections::HashMap,
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    sync::{
        Arc, Mutex, MutexGuard, Once, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tenure_kernel::{
    claims::{ClaimAnswer, ClaimRequest},
    commit::CommitAnswer,
    error::StoreError,
    evidence::Evidence,
    feed::{Cursor, FeedPage},
    head::Head,
    housekeeping::{Pulse, PulseRequest, Retired},
    ids::{EntityId, MessageId, SessionId},
    mail::{Mail, MailAnswer},
    outbox::{Handover, Posted},
    rules::Tallies,
    runtime::{BoxFuture, Rt},
    sessions::Session,
    store::{Answer, HeadFilter, KeyRange, Op, Store},
    stream::{Hash, Record},
    time::Timestamp,
};

static STATEMENTS: AtomicU64 = AtomicU64::new(0);
static SYNCS: AtomicU64 = AtomicU64::new(0);

/// Counts statements of every SQLite connection that this process opens from now on.
pub fn trace_sqlite() {
    static ONCE: Once = Once::new();
    #[expect(
        unsafe_code,
        reason = "SQLite's trace has no other way in from outside of a connection's owner"
    )]
    // SAFETY: `begin_trace` opens and closes nothing and leaves the list of extensions alone.
    ONCE.call_once(|| unsafe {
        // Without memory there is no benchmark either.
        let _ = rusqlite::auto_extension::register_auto_extension(begin_trace);
    });
}

#[expect(unsafe_code, reason = "see trace_sqlite")]
unsafe extern "C" fn begin_trace(
    db: *mut ffi::sqlite3,
    _error: *mut *mut c_char,
    _api: *const ffi::sqlite3_api_routines,
) -> c_int {
    let mask = ffi::SQLITE_TRACE_STMT as c_uint;
    // SAFETY: `db` is the connection that is being opened; `heard` keeps nothing of it.
    unsafe { ffi::sqlite3_trace_v2(db, mask, Some(heard), std::ptr::null_mut()) }
}

#[expect(unsafe_code, reason = "see trace_sqlite")]
unsafe extern "C" fn heard(
    _what: c_uint,
    _context: *mut c_void,
    _statement: *mut c_void,
    text: *mut c_void,
) -> c_int {
    // SAFETY: SQLite gives the statement's text, which ends in a zero and outlives this call.
    let text = unsafe { CStr::from_ptr(text.cast::<c_char>()) }.to_bytes();
    // A comment is what a trigger runs.
    if text.starts_with(b"--") {
        return 0;
    }
    STATEMENTS.fetch_add(1, Relaxed);
    if text == b"COMMIT" {
        SYNCS.fetch_add(1, Relaxed);
    } else if text.starts_with(b"PRAGMA wal_checkpoint") {
        SYNCS.fetch_add(2, Relaxed);
    }
    0
}

/// What the database has said so far; `None` where it can not say.
#[derive(Clone, Copy, Debug)]
pub struct Said {
    /// Statements.
    pub statements: Option<u64>,
    /// Syncs.
    pub syncs: Option<u64>,
}

impl Said {
    /// Asks. See the module for what is counted how.
    pub async fn by(place: &Place) -> Result<Self, StoreError> {
        let Some(client) = place.client().await? else {
            let (statements, syncs) = (STATEMENTS.load(Relaxed), SYNCS.load(Relaxed));
            return Ok(Said { statements: Some(statements), syncs: Some(syncs) });
        };
        let one = async |sql: &str| {
            let row = client.query_one(sql, &[]).await.ok()?;
            row.try_get::<_, i64>(0).ok().and_then(|n| u64::try_from(n).ok())
        };
        // Absent extension, absent view, no right to see it: all of them are "it can not say".
        let statements = one("SELECT sum(calls)::bigint FROM pg_stat_statements").await;
        let syncs = one("SELECT wal_sync FROM pg_stat_wal").await;
        Ok(Said { statements, syncs })
    }
}

/// Counts on the way to a store.
pub struct Counting {
    store: Arc<dyn Store>,
    rt: Rt,
    /// Batches that were applied.
    pub batches: AtomicU64,
    /// Commits that were accepted.
    pub commits: AtomicU64,
    /// Reads of history.
    pub history_reads: AtomicU64,
    /// Jobs that were durably completed.
    pub completed: AtomicU64,
    /// When the first call after a signal was durably started, of the jobs in here.
    started: Mutex<HashMap<EntityId, Option<Duration>>>,
    /// When commits were durable, and whether they started a call; `None` while nobody wants to know.
    log: Mutex<Option<Vec<(Duration, bool)>>>,
    /// Everything that was asked of the store; `None` while nobody wants to know.
    journal: Mutex<Option<Vec<Asked>>>,
    /// Told of every operation that is durable, and when; `None` while nobody wants to know.
    witness: Mutex<Option<Witness>>,
}

/// Told of an operation that is durable, and when.
pub type Witness = Box<dyn FnMut(&Op, Duration) + Send>;

/// One thing that the store was asked for.
#[derive(Clone, Debug)]
pub struct Asked {
    /// What.
    pub what: String,
    /// When, on this process's clock.
    pub began: Duration,
    /// When it was answered.
    pub ended: Duration,
}

impl Asked {
    /// Whether it was to write.
    pub fn is_write(&self) -> bool {
        self.what == "claim" || self.what.starts_with(APPLY)
    }
}

/// The first word of a batch in the journal.
const APPLY: &str = "APPLY";

impl Counting {
    /// In front of this store.
    pub fn new(store: Arc<dyn Store>, rt: Rt) -> Arc<Self> {
        let (batches, commits, history_reads, completed) = Default::default();
        let started = Mutex::default();
        let (log, journal, witness) = Default::default();
        Arc::new(Counting {
            store,
            rt,
            batches,
            commits,
            history_reads,
            completed,
            started,
            log,
            journal,
            witness,
        })
    }

    /// From now on this is told of every commit and every mail that was accepted, when it is durable.
    pub fn tell(&self, witness: Witness) {
        *self.witness() = Some(witness);
    }

    fn witness(&self) -> MutexGuard<'_, Option<Witness>> {
        // A witness only notes; if one panicked, what it noted is still what happened.
        self.witness.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to keep a journal.
    pub fn keep_journal(&self) {
        *self.journal() = Some(Vec::new());
    }

    /// What was asked since the last look.
    pub fn take_journal(&self) -> Vec<Asked> {
        self.journal().as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn journal(&self) -> MutexGuard<'_, Option<Vec<Asked>>> {
        // Nothing panics while it holds this lock.
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the store answers, with a line in the journal.
    fn told<'a, T: 'a>(&'a self, what: &str, asking: BoxFuture<'a, T>) -> BoxFuture<'a, T> {
        if self.journal().is_none() {
            return asking;
        }
        let (what, began) = (what.to_owned(), self.rt.mono());
        Box::pin(async move {
            let answer = asking.await;
            let asked = Asked { what, began, ended: self.rt.mono() };
            if let Some(journal) = &mut *self.journal() {
                journal.push(asked);
            }
            answer
        })
    }

    /// Begins to note when commits are durable, and forgets what was noted before.
    pub fn note(&self) {
        *self.log() = Some(Vec::new());
    }

    /// What was noted: when each commit was answered, on this process's clock, and whether it started a call.
    pub fn noted(&self) -> Vec<(Duration, bool)> {
        self.log().clone().unwrap_or_default()
    }

    fn log(&self) -> MutexGuard<'_, Option<Vec<(Duration, bool)>>> {
        // Nothing panics while it holds this lock.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn started(&self) -> MutexGuard<'_, HashMap<EntityId, Option<Duration>>> {
        // Nothing panics while it holds this lock.
        self.started.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes when the next call of this job is durably started.
    pub fn watch(&self, job: EntityId) {
        self.started().insert(job, None);
    }

    /// When that was, on this process's clock.
    pub fn started_at(&self, job: EntityId) -> Option<Duration> {
        self.started().get(&job).copied().flatten()
    }

    fn see(&self, ops: &[Op], answers: &[Answer]) {
        self.batches.fetch_add(1, Relaxed);
        let accepted = |a: &&Answer| matches!(a, Answer::Commit(CommitAnswer::Committed(_)));
        self.commits.fetch_add(answers.iter().filter(accepted).count() as u64, Relaxed);
        let done = |(op, answer): &(&Op, &Answer)| accepted(answer) && has(op, "job_completed");
        let done = ops.iter().zip(answers).filter(done).count() as u64;
        self.completed.fetch_add(done, Relaxed);
        if let Some(log) = &mut *self.log() {
            let now = self.rt.mono();
            let commits = ops.iter().zip(answers).filter(|(_, a)| accepted(a));
            log.extend(commits.map(|(op, _)| (now, has(op, CALL_STARTED))));
        }
        if let Some(witness) = &mut *self.witness() {
            let now = self.rt.mono();
            let mailed = |a: &Answer| matches!(a, Answer::Mail(MailAnswer::Accepted { .. }));
            let taken = ops.iter().zip(answers).filter(|(_, a)| accepted(a) || mailed(a));
            taken.for_each(|(op, _)| witness(op, now));
        }
        let mut started = self.started();
        if started.is_empty() {
            return;
        }
        let now = self.rt.mono();
        for (op, answer) in ops.iter().zip(answers) {
            if let (Op::Commit(c), true) = (op, accepted(&answer))
                && let Some(at) = started.get_mut(&c.entity)
                && has(op, CALL_STARTED)
            {
                at.get_or_insert(now);
            }
        }
    }
}

/// The event that makes the start of a call durable.
const CALL_STARTED: &str = "tool_invocation_started";

fn has(op: &Op, event: &str) -> bool {
    matches!(op, Op::Commit(c) if c.events.iter().any(|e| e.name == event))
}

/// A batch in words.
fn words(ops: &[Op]) -> String {
    let one = |op: &Op| match op {
        Op::Commit(c) => c.events.iter().map(|e| e.name.as_ref()).collect::<Vec<_>>().join("+"),
        Op::Claim { .. } => "claim".into(),
        Op::Mail(mail) => format!("mail {}", mail.kind),
        Op::Evidence(_) => "evidence".into(),
        Op::Touch(_) => "touch".into(),
        Op::Deliver(delivery) => match &delivery.with {
            Handover::Create(c) => format!("create {}", c.entity),
            Handover::Mail { kind, .. } => format!("deliver {kind}"),
            Handover::Nothing => "deliver".into(),
        },
        Op::Renew(_) => "renew".into(),
    };
    format!("{APPLY} {}", ops.iter().map(one).collect::<Vec<_>>().join(", "))
}

impl Store for Counting {
    fn apply_shared(&self, ops: Arc<Vec<Op>>) -> BoxFuture<'_, Result<Vec<Answer>, StoreError>> {
        Box::pin(async move {
            let answers = self.told(&words(&ops), self.store.apply_shared(ops.clone())).await?;
            self.see(&ops, &answers);
            Ok(answers)
        })
    }

    fn stream(
        &self,
        entity: EntityId,
        from: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Record>, StoreError>> {
        self.history_reads.fetch_add(1, Relaxed);
        self.told("stream", self.store.stream(entity, from, limit))
    }

    fn claim(&self, request: ClaimRequest) -> BoxFuture<'_, Result<ClaimAnswer, StoreError>> {
        self.told("claim", self.store.claim(request))
    }

    fn ready_groups(
        &self,
        queue: &str,
        below: Option<i16>,
    ) -> BoxFuture<'_, Result<Vec<(i16, String)>, StoreError>> {
        self.told("ready_groups", self.store.ready_groups(queue, below))
    }

    fn ready_queues(
        &self,
        after: &str,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<String>, StoreError>> {
        self.told("ready_queues", self.store.ready_queues(after, limit))
    }

    fn now(&self) -> BoxFuture<'_, Result<Timestamp, StoreError>> {
        self.told("now", self.store.now())
    }

    fn head(&self, id: EntityId) -> BoxFuture<'_, Result<Option<Head>, StoreError>> {
        self.told("head", self.store.head(id))
    }

    fn heads(
        &self,
        filter: HeadFilter,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Head>, StoreError>> {
        self.told("heads", self.store.heads(filter, limit))
    }

    fn keys(
        &self,
        range: KeyRange,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<(String, EntityId)>, StoreError>> {
        self.told("keys", self.store.keys(range, limit))
    }

    fn due(
        &self,
        lanes: Vec<u16>,
        overdue: Duration,
        limit: usize,
    ) -> BoxFuture<'_, Result<(Timestamp, Vec<Head>), StoreError>> {
        self.told("due", self.store.due(lanes, overdue, limit))
    }

    fn latest_due(
        &self,
        lanes: Vec<u16>,
        by: Timestamp,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Head>, StoreError>> {
        self.told("latest_due", self.store.latest_due(lanes, by, limit))
    }

    fn next_due(
        &self,
        lanes: Vec<u16>,
    ) -> BoxFuture<'_, Result<(Timestamp, Option<Timestamp>), StoreError>> {
        self.told("next_due", self.store.next_due(lanes))
    }

    fn mail(
        &self,
        entity: EntityId,
        after: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Mail>, StoreError>> {
        self.told("mail", self.store.mail(entity, after, limit))
    }

    fn outbox(
        &self,
        lanes: Vec<u16>,
        wire: bool,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Posted>, StoreError>> {
        self.told("outbox", self.store.outbox(lanes, wire, limit))
    }

    fn outbox_has(&self, id: MessageId) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.told("outbox_has", self.store.outbox_has(id))
    }

    fn feed(&self, after: Cursor, limit: usize) -> BoxFuture<'_, Result<FeedPage, StoreError>> {
        self.told("feed", self.store.feed(after, limit))
    }

    fn session(&self, id: SessionId) -> BoxFuture<'_, Result<Option<Session>, StoreError>> {
        self.told("session", self.store.session(id))
    }

    fn live_sessions(&self) -> BoxFuture<'_, Result<Vec<Session>, StoreError>> {
        self.told("live_sessions", self.store.live_sessions())
    }

    fn evidence(&self, entity: EntityId) -> BoxFuture<'_, Result<Vec<Evidence>, StoreError>> {
        self.told("evidence", self.store.evidence(entity))
    }

    fn put_blob(&self, bytes: Vec<u8>) -> BoxFuture<'_, Result<Hash, StoreError>> {
        self.told("put_blob", self.store.put_blob(bytes))
    }

    fn blob(&self, digest: Hash) -> BoxFuture<'_, Result<Option<Vec<u8>>, StoreError>> {
        self.told("blob", self.store.blob(digest))
    }

    fn pulse(&self, request: PulseRequest) -> BoxFuture<'_, Result<Pulse, StoreError>> {
        self.told("pulse", self.store.pulse(request))
    }

    fn tallies(&self) -> BoxFuture<'_, Result<Tallies, StoreError>> {
        self.told("tallies", self.store.tallies())
    }

    fn retire(
        &self,
        ended_before: Timestamp,
        limit: usize,
    ) -> BoxFuture<'_, Result<Retired, StoreError>> {
        self.told("retire", self.store.retire(ended_before, limit))
    }
}
