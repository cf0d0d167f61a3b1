//! The embedded store: one SQLite file, written by one thread of one process.
//!
//! * A batch is one transaction with one sync (`synchronous=FULL`, write-ahead log). It runs on the
//!   calling thread when nobody else is writing, and on the writer thread otherwise. Handing every
//!   batch to a thread costs two wake-ups, which at one caller is twice the time of the sync itself.
//!   The price is that one thread of the runtime waits for the disk; the process edge starts one more
//!   than there are cores.
//! * Reads run on a few threads with connections of their own and see the last committed state.
//! * Checkpoints have two halves: a passive pass on a thread of its own copies the bulk beside the
//!   writer; then whoever writes next copies what little was added since and starts the log over. (A
//!   restarting pass on the other thread would wait for the write lock for ever under constant load.)
//! * The data directory is locked for as long as the store is open for writing.

mod claim;
mod error;
mod file;
mod health;
mod private;
mod read;
mod retire;
mod rows;
mod schema;
mod usage;
mod writer;

use error::Trouble;
pub use file::{Backup, Missing, MissingKind, Restored, back_up, restore};
use rusqlite::Connection;
use std::{
    fs::{File, TryLockError},
    io::{Read as _, Write as _},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, TryLockError as Contended,
        atomic::{AtomicI64, AtomicU8, Ordering},
        mpsc,
    },
    thread,
};
use tenure_kernel::{
    claims::{ClaimAnswer, ClaimRequest},
    error::StoreError,
    evidence::Evidence,
    feed::{Cursor, FeedPage},
    head::Head,
    health::Health,
    housekeeping::{Pulse, PulseRequest, Retired},
    ids::{EntityId, MessageId, SessionId},
    judge::Judge,
    limits,
    mail::Mail,
    outbox::Posted,
    quota::{EntitySize, TenantCount},
    rules::Tallies,
    runtime::{BoxFuture, Clock},
    sessions::Session,
    store::{Answer, HeadFilter, KeyRange, Op, Store},
    stream::{Hash, Record},
    table::Tables,
    time::Timestamp,
};
use tokio::sync::oneshot;
use writer::Writer;

/// Threads that read.
const READERS: usize = 2;

type WriteJob = Box<dyn FnOnce(&mut Writer) + Send>;
type ReadJob = Box<dyn FnOnce(&Connection) + Send>;

/// The embedded store. Cheap to clone through an `Arc`; the threads end when it is dropped.
pub struct SqliteStore {
    writer: Option<Arc<Shared>>,
    writes: Option<mpsc::Sender<WriteJob>>,
    reads: mpsc::Sender<ReadJob>,
    /// For whoever reads a few rows and finds it free.
    near: Mutex<Connection>,
    tables: Tables,
    clock: Arc<dyn Clock>,
    thread: Option<thread::JoinHandle<()>>,
    _lock: Option<File>,
}

/// The store's time, which never runs backwards while the store is open: one for reads and writes, so
/// that what a write has set by it is due by it as well.
struct Forward {
    clock: Arc<dyn Clock>,
    last: AtomicI64,
}

impl Forward {
    fn of(clock: Arc<dyn Clock>) -> Arc<dyn Clock> {
        Arc::new(Forward { clock, last: AtomicI64::new(0) })
    }
}

impl Clock for Forward {
    fn now(&self) -> Timestamp {
        let now = self.clock.now().as_micros();
        Timestamp::from_micros(self.last.fetch_max(now, Ordering::AcqRel).max(now))
    }
}

/// Nobody copies the log.
const IDLE: u8 = 0;
/// The checkpointer has been told, once: its pass would keep the writer from starting the log over.
const TOLD: u8 = 1;
/// The bulk of the log has been copied: the next writer starts it over.
const COPIED: u8 = 2;

/// The writer, for whoever writes next.
struct Shared {
    writer: Mutex<Writer>,
    tell: mpsc::Sender<()>,
    /// Where the checkpoint stands: [`IDLE`], [`TOLD`] or [`COPIED`].
    checkpoint: Arc<AtomicU8>,
}

impl Shared {
    fn run<T>(&self, mut writer: MutexGuard<'_, Writer>, work: impl FnOnce(&mut Writer) -> T) -> T {
        let result = work(&mut writer);
        if writer.log_is_long() {
            match self.checkpoint.load(Ordering::Acquire) {
                IDLE => {
                    self.checkpoint.store(TOLD, Ordering::Release);
                    // It listens for as long as this sender is there.
                    let _ = self.tell.send(());
                }
                COPIED => {
                    writer.restart_log();
                    self.checkpoint.store(IDLE, Ordering::Release);
                }
                _ => {}
            }
        }
        result
    }

    fn wait(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(|poisoned| self.heal(poisoned))
    }

    /// Nobody else is writing: the guard, at once.
    fn free(&self) -> Option<MutexGuard<'_, Writer>> {
        match self.writer.try_lock() {
            Ok(guard) => Some(guard),
            Err(Contended::WouldBlock) => None,
            Err(Contended::Poisoned(poisoned)) => Some(self.heal(poisoned)),
        }
    }

    /// A write panicked half-way: its transaction goes with its connection.
    fn heal<'a>(&self, poisoned: PoisonError<MutexGuard<'a, Writer>>) -> MutexGuard<'a, Writer> {
        self.writer.clear_poison();
        let mut guard = poisoned.into_inner();
        guard.distrust();
        guard
    }
}

impl SqliteStore {
    /// Opens the store in a directory, creating both if needed.
    pub fn open(
        dir: &Path,
        judge: Judge,
        clock: Arc<dyn Clock>,
        incarnation: u64,
    ) -> Result<Self, StoreError> {
        private::prepare(dir).map_err(|e| unusable(dir, &e))?;
        let lock = lock(dir)?;
        if !file::is_there(dir)? {
            file::create(dir, incarnation)?;
        }
        let file = file::database(dir);
        let tables = judge.tables.clone();
        let clock = Forward::of(clock);
        let writer = Writer::open(file.clone(), judge, clock.clone(), incarnation)?;
        let (writes, jobs) = mpsc::channel::<WriteJob>();
        let (tell, told) = mpsc::channel::<()>();
        let name = || thread::Builder::new().name("tenure-sqlite".into());
        let checkpointed = file.clone();
        let checkpoint = Arc::new(AtomicU8::new(IDLE));
        let done = checkpoint.clone();
        spawn(name(), move || checkpoint_when_told(&checkpointed, &told, &done))?;
        let writer = Arc::new(Shared { writer: Mutex::new(writer), tell, checkpoint });
        let behind = writer.clone();
        let thread = Some(spawn(name(), move || write_until_dropped(&behind, &jobs))?);
        let (reads, near) = (start_readers(&file)?, Mutex::new(schema::open_reader(&file)?));
        let (writer, writes, lock) = (Some(writer), Some(writes), Some(lock));
        Ok(SqliteStore { writer, writes, reads, near, tables, clock, thread, _lock: lock })
    }

    /// Opens an existing store for reading only, beside whoever writes it.
    pub fn open_read_only(
        dir: &Path,
        tables: Tables,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, StoreError> {
        let file = file::database(dir);
        if !file::is_there(dir)? {
            let why = format!("there is no store in {}; `tenure up` creates one", dir.display());
            return Err(StoreError::Unavailable(why));
        }
        let (reads, near) = (start_readers(&file)?, Mutex::new(schema::open_reader(&file)?));
        let clock = Forward::of(clock);
        Ok(SqliteStore {
            writer: None,
            writes: None,
            reads,
            near,
            tables,
            clock,
            thread: None,
            _lock: None,
        })
    }

    /// Limits the database to so many pages, as a quota would: for tests of a full disk.
    pub async fn limit_pages(&self, pages: u32) -> Result<(), StoreError> {
        self.write(move |w| w.limit_pages(pages)).await
    }

    /// Limits the heads kept in memory: for tests of what happens without them.
    pub async fn limit_cache(&self, heads: usize) -> Result<(), StoreError> {
        let limit = move |w: &mut Writer| {
            w.limit_cache(heads);
            Ok(())
        };
        self.write(limit).await
    }

    fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Writer) -> Result<T, StoreError> + Send + 'static,
    ) -> BoxFuture<'_, Result<T, StoreError>> {
        Box::pin(async move {
            let (Some(writer), Some(writes)) = (&self.writer, &self.writes) else {
                return Err(StoreError::ReadOnly("the store was opened for reading".into()));
            };
            if let Some(guard) = writer.free() {
                // As on the thread: a panic poisons the lock, and the next writer starts afresh.
                let run = AssertUnwindSafe(|| writer.run(guard, work));
                return catch_unwind(run).unwrap_or_else(|_| Err(panicked()));
            }
            let (reply, answer) = oneshot::channel();
            let job: WriteJob = Box::new(move |w| drop(reply.send(work(w))));
            writes.send(job).map_err(|_| closed())?;
            // The thread drops an answer only when the work panicked.
            answer.await.unwrap_or_else(|_| Err(panicked()))
        })
    }

    fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Trouble> + Send + 'static,
    ) -> BoxFuture<'_, Result<T, StoreError>> {
        let (reply, answer) = oneshot::channel();
        let sent = self
            .reads
            .send(Box::new(move |c| drop(reply.send(work(c).map_err(Trouble::into_error)))));
        Box::pin(async move {
            sent.map_err(|_| closed())?;
            answer.await.unwrap_or_else(|_| Err(closed()))
        })
    }
}

impl SqliteStore {
    /// A read of a few rows by their key, on the thread that asks: handing it to another one and back takes several times
    /// as long as the read. Where somebody else does the same, it goes to a thread after all.
    fn read_near<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Trouble> + Send + 'static,
    ) -> BoxFuture<'_, Result<T, StoreError>> {
        match self.near.try_lock() {
            Ok(conn) => {
                let read = catch_unwind(AssertUnwindSafe(|| work(&conn)));
                let answer =
                    read.map_or_else(|_| Err(closed()), |r| r.map_err(Trouble::into_error));
                Box::pin(std::future::ready(answer))
            }
            // A panic in there is caught, so this is somebody who reads.
            Err(_) => self.read(work),
        }
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        // Ends the writer, which finishes what it was given; then the lock may go.
        self.writes = None;
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has been reported where its answer was awaited.
            let _ = thread.join();
        }
        if let Some(writer) = &self.writer
            && let Err(error) = writer.wait().close()
        {
            tracing::warn!(%error, "what was written last is only in the database's log (-wal)");
        }
    }
}

/// What a write had begun when it panicked is unknown.
fn panicked() -> StoreError {
    StoreError::Indeterminate("a write panicked".into())
}

fn closed() -> StoreError {
    StoreError::Unavailable("the store is closed".into())
}

fn unusable(dir: &Path, e: &std::io::Error) -> StoreError {
    StoreError::Unavailable(format!("the data directory {} can not be used: {e}", dir.display()))
}

fn lock(dir: &Path) -> Result<File, StoreError> {
    let mut file = private::lock_file(dir).map_err(|e| unusable(dir, &e))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            // The number is only for the message.
            let _ = file.read_to_string(&mut pid);
            let pid = if pid.trim().is_empty() { "unknown".into() } else { pid.trim().to_owned() };
            return Err(StoreError::InUse { path: dir.display().to_string(), pid });
        }
        Err(TryLockError::Error(e)) => return Err(unusable(dir, &e)),
    }
    let note =
        file.set_len(0).and_then(|()| file.write_all(std::process::id().to_string().as_bytes()));
    note.map_err(|e| unusable(dir, &e))?;
    Ok(file)
}

fn spawn(
    builder: thread::Builder,
    work: impl FnOnce() + Send + 'static,
) -> Result<thread::JoinHandle<()>, StoreError> {
    builder
        .spawn(work)
        .map_err(|e| StoreError::Unavailable(format!("no thread for the store: {e}")))
}

fn write_until_dropped(shared: &Shared, jobs: &mpsc::Receiver<WriteJob>) {
    while let Ok(job) = jobs.recv() {
        // A panic drops the job's reply, poisons the lock, and the next writer starts afresh.
        let _ = catch_unwind(AssertUnwindSafe(|| shared.run(shared.wait(), job)));
    }
}

fn checkpoint_when_told(file: &Path, told: &mpsc::Receiver<()>, state: &AtomicU8) {
    let mut conn = None;
    while told.recv().is_ok() {
        let checkpoint = |c: Connection| {
            c.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).map(|()| c)
        };
        match conn.take().map_or_else(|| Connection::open(file), Ok).and_then(checkpoint) {
            Ok(c) => {
                conn = Some(c);
                state.store(COPIED, Ordering::Release);
            }
            // The log grows until the next time; nothing is lost.
            Err(e) => {
                tracing::warn!(error = %e, "a checkpoint did not finish");
                state.store(IDLE, Ordering::Release);
            }
        }
    }
}

fn start_readers(file: &Path) -> Result<mpsc::Sender<ReadJob>, StoreError> {
    let (reads, jobs) = mpsc::channel::<ReadJob>();
    let jobs = Arc::new(Mutex::new(jobs));
    for _ in 0..READERS {
        let conn = schema::open_reader(file)?;
        let jobs = jobs.clone();
        spawn(thread::Builder::new().name("tenure-read".into()), move || {
            loop {
                // A poisoned lock means that a read panicked while it waited, which it does not.
                let job = match jobs.lock() {
                    Ok(jobs) => jobs.recv(),
                    Err(_) => break,
                };
                match job {
                    // A panic drops the job's answer; the thread is there for the next one.
                    Ok(job) => drop(catch_unwind(AssertUnwindSafe(|| job(&conn)))),
                    Err(_) => break,
                }
            }
        })?;
    }
    Ok(reads)
}

impl Store for SqliteStore {
    fn apply_shared(&self, ops: Arc<Vec<Op>>) -> BoxFuture<'_, Result<Vec<Answer>, StoreError>> {
        self.write(move |w| w.apply(&ops))
    }

    fn claim(&self, request: ClaimRequest) -> BoxFuture<'_, Result<ClaimAnswer, StoreError>> {
        self.write(move |w| w.claim(&request))
    }

    fn ready_groups(
        &self,
        queue: &str,
        below: Option<i16>,
    ) -> BoxFuture<'_, Result<Vec<(i16, String)>, StoreError>> {
        let queue = queue.to_owned();
        self.read_near(move |c| read::ready_groups(c, &queue, below))
    }

    fn ready_queues(
        &self,
        after: &str,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<String>, StoreError>> {
        let after = after.to_owned();
        self.read(move |c| read::ready_queues(c, after, limit))
    }

    fn now(&self) -> BoxFuture<'_, Result<Timestamp, StoreError>> {
        let now = self.clock.now();
        Box::pin(async move { Ok(now) })
    }

    fn head(&self, id: EntityId) -> BoxFuture<'_, Result<Option<Head>, StoreError>> {
        let tables = self.tables.clone();
        self.read_near(move |c| Ok(rows::load_head(c, &tables, id)?.map(|p| p.head)))
    }

    fn heads(
        &self,
        filter: HeadFilter,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Head>, StoreError>> {
        let tables = self.tables.clone();
        self.read(move |c| read::heads(c, &tables, &filter, limit))
    }

    fn keys(
        &self,
        range: KeyRange,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<(String, EntityId)>, StoreError>> {
        self.read(move |c| read::keys(c, &range, limit))
    }

    fn due(
        &self,
        lanes: Vec<u16>,
        overdue: std::time::Duration,
        limit: usize,
    ) -> BoxFuture<'_, Result<(Timestamp, Vec<Head>), StoreError>> {
        let (tables, now) = (self.tables.clone(), self.clock.now());
        self.read(move |c| Ok((now, read::due(c, &tables, &lanes, now - overdue, limit)?)))
    }

    fn latest_due(
        &self,
        lanes: Vec<u16>,
        by: Timestamp,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Head>, StoreError>> {
        let tables = self.tables.clone();
        self.read(move |c| read::latest_due(c, &tables, &lanes, by, limit))
    }

    fn next_due(
        &self,
        lanes: Vec<u16>,
    ) -> BoxFuture<'_, Result<(Timestamp, Option<Timestamp>), StoreError>> {
        let (tables, now) = (self.tables.clone(), self.clock.now());
        self.read(move |c| Ok((now, read::next_due(c, &tables, &lanes)?)))
    }

    fn mail(
        &self,
        entity: EntityId,
        after: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Mail>, StoreError>> {
        self.read_near(move |c| rows::load_mail(c, entity, after, limit))
    }

    fn stream(
        &self,
        entity: EntityId,
        from: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Record>, StoreError>> {
        let tables = self.tables.clone();
        self.read(move |c| read::stream(c, &tables, entity, from, limit))
    }

    fn outbox(
        &self,
        lanes: Vec<u16>,
        wire: bool,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Posted>, StoreError>> {
        self.read(move |c| read::outbox(c, &lanes, wire, limit))
    }

    fn outbox_has(&self, id: MessageId) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.read(move |c| writer::outbox_has(c, id))
    }

    fn feed(&self, after: Cursor, limit: usize) -> BoxFuture<'_, Result<FeedPage, StoreError>> {
        self.read(move |c| read::feed(c, after, limit))
    }

    fn session(&self, id: SessionId) -> BoxFuture<'_, Result<Option<Session>, StoreError>> {
        self.read_near(move |c| read::session(c, id))
    }

    fn live_sessions(&self) -> BoxFuture<'_, Result<Vec<Session>, StoreError>> {
        let now = self.clock.now();
        self.read(move |c| read::live_sessions(c, now))
    }

    fn evidence(&self, entity: EntityId) -> BoxFuture<'_, Result<Vec<Evidence>, StoreError>> {
        self.read(move |c| read::evidence(c, entity))
    }

    fn put_blob(&self, bytes: Vec<u8>) -> BoxFuture<'_, Result<Hash, StoreError>> {
        let (actual, limit) = (bytes.len(), limits::BLOB_BYTES_MAX);
        if actual > limit {
            return Box::pin(async move {
                Err(StoreError::Limit { what: "blob in bytes", actual, limit })
            });
        }
        self.write(move |w| w.put_blob(&bytes))
    }

    fn blob(&self, digest: Hash) -> BoxFuture<'_, Result<Option<Vec<u8>>, StoreError>> {
        self.read(move |c| read::blob(c, digest))
    }

    fn pulse(&self, request: PulseRequest) -> BoxFuture<'_, Result<Pulse, StoreError>> {
        self.write(move |w| {
            w.transaction(|w| read::pulse(w, &request)).map_err(Trouble::into_error)
        })
    }

    fn tallies(&self) -> BoxFuture<'_, Result<Tallies, StoreError>> {
        self.read(read::tallies)
    }

    fn health(&self) -> BoxFuture<'_, Result<Health, StoreError>> {
        let now = self.clock.now();
        self.read(move |c| health::health(c, now))
    }

    fn open_by_tenant(&self) -> BoxFuture<'_, Result<Vec<TenantCount>, StoreError>> {
        self.read(usage::open_by_tenant)
    }

    fn sizes(
        &self,
        after: Option<EntityId>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<EntitySize>, StoreError>> {
        self.read(move |c| usage::sizes(c, after, limit))
    }

    fn retire(
        &self,
        ended_before: Timestamp,
        limit: usize,
    ) -> BoxFuture<'_, Result<Retired, StoreError>> {
        self.write(move |w| {
            w.transaction(|w| retire::retire(w, ended_before, limit)).map_err(Trouble::into_error)
        })
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        if self.writer.is_none() {
            return Box::pin(async { Ok(()) });
        }
        self.write(Writer::close)
    }
}

/// Where the database file of a data directory is.
pub fn database_file(dir: &Path) -> PathBuf {
    file::database(dir)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_kernel::store::HeldBy;

    struct Still;

    impl Clock for Still {
        fn now(&self) -> Timestamp {
            Timestamp::from_micros(1)
        }
    }

    /// What SQLite says it will do.
    fn plan(conn: &Connection, sql: &str) -> String {
        let mut q = conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let parameters = vec![0; q.parameter_count()];
        let steps = q.query_map(rusqlite::params_from_iter(parameters), |r| r.get::<_, String>(3));
        steps.unwrap().map(Result::unwrap).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn what_is_looked_for_is_found_by_an_index() {
        let dir = tempfile::tempdir().unwrap();
        let log = Arc::default();
        let conn = schema::open_writer(&dir.path().join("db"), 7, &log).unwrap();
        let lanes = [0, 1, 2];
        let all_lanes: Vec<u16> = (0..limits::LANES).collect();
        let mut kinds = Tables::default();
        kinds.insert(&tenure_kernel::sessions::WORKER);
        kinds.insert(&tenure_kernel::sessions::LANE);
        let looks = [
            (read::outbox_sql(&lanes, false), "outbox_inside"),
            (read::outbox_sql(&lanes, true), "outbox_wire"),
            (read::due_sql(&lanes, &kinds, "ASC"), "heads_due"),
            (read::due_sql(&all_lanes, &kinds, "ASC"), "heads_due"),
            (read::due_sql(&lanes, &kinds, "DESC"), "heads_due"),
            (read::due_sql(&all_lanes, &kinds, "DESC"), "heads_due"),
            (health::OPEN.to_owned(), "heads_due"),
            (health::outbox_sql(false), "outbox_inside"),
            (health::outbox_sql(true), "outbox_wire"),
            (writer::WAITING.to_owned(), "sqlite_autoindex_outbox_1 (source=?)"),
            (retire::OVER.to_owned(), "heads_ended"),
            (retire::VACANT.to_owned(), "heads_vacant"),
            (retire::SEALED.to_owned(), "heads_sealed"),
            (retire::DELETE_ORPHANS.to_owned(), "sqlite_autoindex_blobs_1 (digest>? AND digest<?)"),
            (retire::DELETE_UNREFERENCED.to_owned(), "sqlite_autoindex_blobs_1 (digest=?)"),
        ];
        for (sql, index) in looks {
            let plan = plan(&conn, &sql);
            assert!(plan.contains(index), "{sql}: {plan}");
            assert!(!plan.contains("TEMP B-TREE"), "{sql}: {plan}");
        }
        // What a session holds is a range of what is due: all that waits for later is not walked over.
        let by = HeldBy { session: EntityId::fixed(1, 1), due_by: Timestamp::ZERO };
        let held =
            HeadFilter { held: Some(by), kind: Some("worker".into()), ..HeadFilter::default() };
        for part in crate::listing::parts(&held, &kinds) {
            let sql = read::part_sql(&kinds, &held, &part, None).0;
            let plan = plan(&conn, &sql);
            assert!(plan.contains("heads_due (due>? AND due<?)"), "{sql}: {plan}");
        }
    }

    #[tokio::test]
    async fn a_write_that_panics_is_indeterminate_and_the_next_one_starts_afresh() {
        let dir = tempfile::tempdir().unwrap();
        let judge = Judge::new(Tables::default());
        let store = SqliteStore::open(dir.path(), judge, Arc::new(Still), 7).unwrap();
        let sql = "INSERT INTO tallies (rule, fired, failed, lag_us) VALUES ('r', 1, 0, 0)";
        let halfway = |w: &mut Writer| -> Result<(), Trouble> {
            rows::run(&w.conn, sql, &[])?;
            panic!("deliberate");
        };
        let work = move |w: &mut Writer| w.transaction(halfway).map_err(Trouble::into_error);
        let panicked = store.write(work).await;
        assert!(matches!(panicked, Err(StoreError::Indeterminate(_))), "{panicked:?}");
        assert!(store.tallies().await.unwrap().is_empty());
        store.put_blob(vec![1]).await.unwrap();
        assert!(store.tallies().await.unwrap().is_empty(), "nothing of it was committed");
    }
}
