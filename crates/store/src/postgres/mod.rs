//! The Postgres store: for more than one server, or more than one disk.
//!
//! **A batch** is one transaction of two round trips, or of one where this process wrote its heads last (see
//! `known`). The first locks the heads (in id order, skipping
//! those that are locked) and reads what the planner needs; the second writes one statement per table and
//! commits. Nothing waits for a lock that another batch holds, so a slow or stopped server costs others
//! nothing but its own heads, and those only until `idle_in_transaction_session_timeout`.
//!
//! **Speed** rests on four things. Few statements, each prepared once per connection and planned once for
//! ever (`plan_cache_mode`; all of them are index look-ups driven by arrays, so there is nothing to choose,
//! and `enable_seqscan` and its kin are off for writers so that a young, empty table does not teach the
//! planner otherwise). Few dirty pages: the events of a commit are one row, a head's update is HOT. Few
//! indexes. No statement per row.
//!
//! **The feed** is ordered by transaction and read below the horizon of running ones. A transaction that
//! stays open anywhere in the cluster holds it back; it never shows a gap, and goes on when that one ends.
//!
//! **Time** is `clock_timestamp()` of the server, in microseconds.
//!
//! Road not taken: serialisable isolation. The locked head decides alone (rule 7 of the kernel), so read
//! committed is enough, and there is nothing to retry for the sake of the database's bookkeeping.
//! Road not taken: a stored procedure that decides. The judge is Rust, once, for all stores.

mod batch;
mod claim;
mod compose;
mod continuity;
mod error;
mod floors;
mod health;
mod intake;
mod keep;
mod known;
mod load;
mod pool;
mod read;
mod rows;
mod schema;
mod usage;
mod write;

pub use intake::{Intake, IntakeRow, Taken};

use continuity::Continuity;
use error::Fault;
use floors::Floors;
use known::Known;
use pool::{Conn, Pool};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tenure_kernel::{
    batch::Writes,
    claims::{ClaimAnswer, ClaimRequest},
    error::StoreError,
    evidence::Evidence,
    feed::{Cursor, FeedPage},
    head::Head,
    health::Health,
    housekeeping::{Pulse, PulseRequest, Retired},
    ids::{EntityId, MessageId, SessionId},
    judge::Judge,
    mail::Mail,
    outbox::Posted,
    quota::{EntitySize, TenantCount},
    rules::Tallies,
    runtime::BoxFuture,
    sessions::Session,
    store::{Answer, HeadFilter, KeyRange, Op, Store},
    stream::{Hash, Record},
    time::Timestamp,
};
use tenure_postgres::Connector;
use tokio_postgres::{Row, types::ToSql};
use write::Stamp;

/// How long a migration may take: an index over a large store takes minutes.
const MIGRATION_MAX: Duration = Duration::from_secs(3_600);

/// How a Postgres store is opened.
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    /// The schema that holds the tables. Several stores can share a database.
    pub schema: String,
    /// Names this life of the store, should it turn out to be a new one. Random; not zero.
    pub incarnation: u64,
    /// Connections for batches, claims and housekeeping.
    pub writers: usize,
    /// Connections for reads.
    pub readers: usize,
    /// How long a call waits for a connection to be made before it gives up.
    pub patience: Duration,
    /// The longest that a caller waits for the answer to one exchange: a batch has two, a read has one. The database ends
    /// statements that take longer, except while a schema is migrated.
    pub answer_timeout: Duration,
    /// The longest a transaction may stand idle: a stopped server loses its locks after this.
    pub idle_timeout: Duration,
}

impl PostgresOptions {
    /// The defaults, with an incarnation that the caller drew at random.
    pub fn new(incarnation: u64) -> Self {
        PostgresOptions {
            schema: "tenure".into(),
            incarnation,
            writers: 4,
            readers: 4,
            patience: Duration::from_secs(2),
            answer_timeout: Duration::from_secs(8),
            idle_timeout: Duration::from_secs(5),
        }
    }

    /// The same, in another schema.
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// What every connection is told first.
    fn setup(&self) -> String {
        format!(
            "SET search_path = {}; SET application_name = 'tenure'; SET client_min_messages = warning; \
             SET statement_timeout = {}; SET idle_in_transaction_session_timeout = {}; \
             SET jit = off; SET plan_cache_mode = force_generic_plan",
            self.schema,
            self.answer_timeout.as_millis(),
            self.idle_timeout.as_millis(),
        )
    }

    fn writer_setup(&self) -> String {
        let own = "; SET synchronous_commit = on; SET enable_seqscan = off; \
                   SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_bitmapscan = off";
        self.setup() + own
    }

    fn reader_setup(&self) -> String {
        self.setup() + "; SET default_transaction_read_only = on; SET enable_seqscan = off"
    }
}

/// A store in a Postgres database.
pub struct PostgresStore {
    inner: Inner,
}

struct Inner {
    judge: Judge,
    /// `None` for a store that was opened read-only.
    writers: Option<Pool>,
    readers: Pool,
    known: Known,
    /// `None` for a store that was opened read-only.
    continuity: Option<Arc<Continuity>>,
    floors: Floors,
    /// Up to which digest retention has looked at blobs.
    blobs_after: Mutex<Vec<u8>>,
}

impl Inner {
    fn new(judge: Judge, writers: Option<Pool>, readers: Pool) -> Self {
        let (known, floors) = (Known::nothing(), Floors::default());
        let (continuity, blobs_after) = (None, Mutex::default());
        Inner { judge, writers, readers, known, continuity, floors, blobs_after }
    }

    /// Which life of the store is the current one, as far as this process knows.
    fn life(&self) -> u64 {
        self.continuity.as_ref().map_or(0, |c| c.life())
    }

    /// A batch was acknowledged on a connection.
    fn acknowledged(&self, conn: &Conn, writes: &Writes, stamp: Option<Stamp>) {
        let Some(stamp) = stamp else { return };
        self.known.wrote(conn.life, writes, stamp);
        if let Some(continuity) = &self.continuity {
            continuity.acknowledged(conn.life, writes, stamp);
        }
    }

    fn blobs_after(&self) -> Vec<u8> {
        // Nothing panics under this lock.
        self.blobs_after.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn look_at_blobs_after(&self, digest: Vec<u8>) {
        *self.blobs_after.lock().unwrap_or_else(PoisonError::into_inner) = digest;
    }

    fn writers(&self) -> Result<&Pool, StoreError> {
        let why = || StoreError::ReadOnly("this store was opened for reading".into());
        self.writers.as_ref().ok_or_else(why)
    }

    /// The kinds this process has machines for.
    fn kinds(&self) -> Vec<&'static str> {
        self.judge.tables.iter().map(|t| t.kind).collect()
    }

    /// One read. A connection that turns out to be dead is replaced once.
    async fn query(
        &self,
        sql: &'static str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, StoreError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let loan = self.readers.lend().await?;
            let read = async {
                let statement = loan.conn.prepare(sql).await?;
                Ok(loan.conn.client.query(&statement, values).await?)
            };
            match loan.conn.in_time(read, Fault::unavailable).await {
                Ok(found) => {
                    loan.give_back();
                    return Ok(found);
                }
                Err(Fault::Disconnected(_)) if tries == 1 => {}
                Err(fault) => {
                    loan.give_back();
                    return Err(fault.into_store());
                }
            }
        }
    }
}

impl PostgresStore {
    /// Connects, brings the schema up to date, and opens the store. The address says whether by TLS (see `tenure_postgres`).
    pub async fn connect(
        url: &str,
        judge: Judge,
        options: PostgresOptions,
    ) -> Result<Self, StoreError> {
        schema::check_name(&options.schema)?;
        let connector = configure(url, &options)?;
        let conn = Self::first(&connector, &options.setup(), &options).await?;
        let migrated = schema::migrate(&conn, &options.schema, options.incarnation);
        let Ok(migrated) = tokio::time::timeout(MIGRATION_MAX, Box::pin(migrated)).await else {
            let why = format!("the schema was not brought up to date within {MIGRATION_MAX:?}");
            return Err(StoreError::Unavailable(why));
        };
        let (cluster, life) = migrated.map_err(Fault::into_store)?;
        let continuity = Arc::new(Continuity::new(options.incarnation, cluster, life));
        let (patience, answer) = (options.patience, options.answer_timeout);
        let pool = |setup, size| Pool::new(connector.clone(), setup, size, patience, answer);
        let writers = pool(options.writer_setup(), options.writers).watched(continuity.clone());
        let readers = pool(options.reader_setup(), options.readers);
        let continuity = Some(continuity);
        let inner = Inner { continuity, ..Inner::new(judge, Some(writers), readers) };
        Ok(PostgresStore { inner })
    }

    /// Opens a store to look at it: changes nothing, and every call that would answers `ReadOnly`.
    pub async fn connect_read_only(
        url: &str,
        judge: Judge,
        options: PostgresOptions,
    ) -> Result<Self, StoreError> {
        schema::check_name(&options.schema)?;
        let connector = configure(url, &options)?;
        let conn = Self::first(&connector, &options.reader_setup(), &options).await?;
        let checked = conn.in_time(schema::check(&conn, &options.schema), Fault::unavailable);
        Box::pin(checked).await.map_err(Fault::into_store)?;
        let (patience, answer) = (options.patience, options.answer_timeout);
        let readers =
            Pool::new(connector, options.reader_setup(), options.readers, patience, answer);
        Ok(PostgresStore { inner: Inner::new(judge, None, readers) })
    }

    async fn first(
        connector: &Connector,
        setup: &str,
        options: &PostgresOptions,
    ) -> Result<Conn, StoreError> {
        let opened = tokio::time::timeout(options.patience, Box::pin(Conn::open(connector, setup)));
        match opened.await {
            Ok(opened) => opened.map_err(Fault::into_store),
            Err(_) => Err(StoreError::Unavailable("connecting took too long".into())),
        }
    }
}

fn configure(url: &str, options: &PostgresOptions) -> Result<Connector, StoreError> {
    let bad =
        |e| StoreError::Unavailable(format!("the address of the database is not usable: {e}"));
    let mut connector = Connector::parse(url).map_err(bad)?;
    let config = connector.config();
    config.connect_timeout(options.patience);
    // A host that is gone without a word is noticed in seconds, not in hours.
    config.keepalives_idle(Duration::from_secs(5));
    config.keepalives_interval(Duration::from_secs(2));
    config.keepalives_retries(3);
    config.tcp_user_timeout(Duration::from_secs(15));
    Ok(connector)
}

impl Store for PostgresStore {
    fn apply_shared(&self, ops: Arc<Vec<Op>>) -> BoxFuture<'_, Result<Vec<Answer>, StoreError>> {
        Box::pin(batch::apply(&self.inner, ops))
    }

    fn claim(&self, request: ClaimRequest) -> BoxFuture<'_, Result<ClaimAnswer, StoreError>> {
        Box::pin(claim::claim(&self.inner, request))
    }

    fn ready_groups(
        &self,
        queue: &str,
        below: Option<i16>,
    ) -> BoxFuture<'_, Result<Vec<(i16, String)>, StoreError>> {
        let queue = queue.to_owned();
        Box::pin(async move { claim::ready_groups(&self.inner, &queue, below).await })
    }

    fn ready_queues(
        &self,
        after: &str,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<String>, StoreError>> {
        let after = after.to_owned();
        Box::pin(async move { claim::ready_queues(&self.inner, &after, limit).await })
    }

    fn now(&self) -> BoxFuture<'_, Result<Timestamp, StoreError>> {
        Box::pin(read::now(&self.inner))
    }

    fn head(&self, id: EntityId) -> BoxFuture<'_, Result<Option<Head>, StoreError>> {
        Box::pin(read::head(&self.inner, id))
    }

    fn heads(
        &self,
        filter: HeadFilter,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Head>, StoreError>> {
        Box::pin(read::heads(&self.inner, filter, limit))
    }

    fn keys(
        &self,
        range: KeyRange,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<(String, EntityId)>, StoreError>> {
        Box::pin(read::keys(&self.inner, range, limit))
    }

    fn due(
        &self,
        lanes: Vec<u16>,
        overdue: Duration,
        limit: usize,
    ) -> BoxFuture<'_, Result<(Timestamp, Vec<Head>), StoreError>> {
        Box::pin(read::due(&self.inner, lanes, overdue, limit))
    }

    fn latest_due(
        &self,
        lanes: Vec<u16>,
        by: Timestamp,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Head>, StoreError>> {
        Box::pin(read::latest_due(&self.inner, lanes, by, limit))
    }

    fn next_due(
        &self,
        lanes: Vec<u16>,
    ) -> BoxFuture<'_, Result<(Timestamp, Option<Timestamp>), StoreError>> {
        Box::pin(read::next_due(&self.inner, lanes))
    }

    fn mail(
        &self,
        entity: EntityId,
        after: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Mail>, StoreError>> {
        Box::pin(read::mail(&self.inner, entity, after, limit))
    }

    fn stream(
        &self,
        entity: EntityId,
        from: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Record>, StoreError>> {
        Box::pin(read::stream(&self.inner, entity, from, limit))
    }

    fn outbox(
        &self,
        lanes: Vec<u16>,
        wire: bool,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Posted>, StoreError>> {
        Box::pin(read::outbox(&self.inner, lanes, wire, limit))
    }

    fn outbox_has(&self, id: MessageId) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(read::outbox_has(&self.inner, id))
    }

    fn feed(&self, after: Cursor, limit: usize) -> BoxFuture<'_, Result<FeedPage, StoreError>> {
        Box::pin(read::feed(&self.inner, after, limit))
    }

    fn session(&self, id: SessionId) -> BoxFuture<'_, Result<Option<Session>, StoreError>> {
        Box::pin(read::session(&self.inner, id))
    }

    fn live_sessions(&self) -> BoxFuture<'_, Result<Vec<Session>, StoreError>> {
        Box::pin(read::live_sessions(&self.inner))
    }

    fn evidence(&self, entity: EntityId) -> BoxFuture<'_, Result<Vec<Evidence>, StoreError>> {
        Box::pin(read::evidence(&self.inner, entity))
    }

    fn put_blob(&self, bytes: Vec<u8>) -> BoxFuture<'_, Result<Hash, StoreError>> {
        Box::pin(keep::put_blob(&self.inner, bytes))
    }

    fn blob(&self, digest: Hash) -> BoxFuture<'_, Result<Option<Vec<u8>>, StoreError>> {
        Box::pin(read::blob(&self.inner, digest))
    }

    fn pulse(&self, request: PulseRequest) -> BoxFuture<'_, Result<Pulse, StoreError>> {
        Box::pin(keep::pulse(&self.inner, request))
    }

    fn tallies(&self) -> BoxFuture<'_, Result<Tallies, StoreError>> {
        Box::pin(read::tallies(&self.inner))
    }

    fn health(&self) -> BoxFuture<'_, Result<Health, StoreError>> {
        Box::pin(health::health(&self.inner))
    }

    fn open_by_tenant(&self) -> BoxFuture<'_, Result<Vec<TenantCount>, StoreError>> {
        Box::pin(usage::open_by_tenant(&self.inner))
    }

    fn sizes(
        &self,
        after: Option<EntityId>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<EntitySize>, StoreError>> {
        Box::pin(usage::sizes(&self.inner, after, limit))
    }

    fn retire(
        &self,
        ended_before: Timestamp,
        limit: usize,
    ) -> BoxFuture<'_, Result<Retired, StoreError>> {
        Box::pin(keep::retire(&self.inner, ended_before, limit))
    }
}
