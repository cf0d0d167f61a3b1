//! `bench retention`: how fast finished jobs are removed, and whether that depends on how many there are.
//!
//! The rows are written by SQL: running millions of jobs would take hours and leave the same rows. Each job has as many
//! records as one of three steps and names one value of its own. Beside them lie values that are old and still in use.

use crate::{
    place::Place,
    report::{Case, percentile},
};
use std::time::Duration;
use tenure_edge::TokioRuntime;
use tenure_kernel::{error::StoreError, limits, runtime::Runtime as _};

/// How much lies there, and how much is removed.
#[derive(Clone, Debug)]
pub struct Options {
    /// Finished jobs in the store, one case each, growing.
    pub jobs: Vec<usize>,
    /// Values beside them that are old and in use.
    pub values: usize,
    /// Measured calls per case, each of [`limits::DUE_BATCH_MAX`] jobs.
    pub calls: usize,
}

/// The calls at one size.
#[derive(Clone, Debug)]
pub struct Point {
    /// Finished jobs that lay there.
    pub jobs: usize,
    /// A call, in milliseconds.
    pub call_p50_ms: f64,
    /// The longest.
    pub call_max_ms: f64,
    /// Jobs removed per second, without the pauses that a server makes.
    pub per_second: f64,
}

/// What came of it. Every call removed as many jobs and values as it should.
#[derive(Clone, Debug)]
pub struct Retention {
    /// The engine.
    pub store: &'static str,
    /// Values that are in use.
    pub values: usize,
    /// By size.
    pub points: Vec<Point>,
}

/// The part of the first rate that the last one must have to be called the same.
const FLAT: f64 = 0.6;

impl Retention {
    /// For the report: a case each, and what they say together.
    pub fn cases(&self) -> Vec<Case> {
        let case = || Case::of("retention").with("store", self.store).with("values", self.values);
        let told = |p: &Point| {
            case()
                .with("jobs", p.jobs)
                .measured("call_p50_ms", p.call_p50_ms)
                .measured("call_max_ms", p.call_max_ms)
                .measured("jobs_per_second", p.per_second)
        };
        let verdict = match &self.points[..] {
            [first, .., last] => {
                // By the usual call: the longest is a checkpoint or another process.
                let ratio = first.call_p50_ms / last.call_p50_ms;
                let word = if ratio >= FLAT { "flat" } else { "not flat" };
                Some(case().measured("first_to_last", ratio).with("verdict", word))
            }
            _ => None,
        };
        self.points.iter().map(told).chain(verdict).collect()
    }
}

/// Records of a job of three steps.
const RECORDS: usize = 8;
/// Bytes of each.
const RECORD_BYTES: usize = 300;

/// Runs the suite.
pub async fn run(place: &Place, options: &Options) -> Result<Retention, StoreError> {
    let rt = TokioRuntime::current();
    let filler = Filler::of(place).await?;
    filler.values(options.values).await?;
    let (mut made, mut removed) = (0, 0);
    let mut points = Vec::new();
    for target in &options.jobs {
        let missing = (target + removed).saturating_sub(made);
        filler.jobs(made, missing).await?;
        made += missing;
        let mut took: Vec<f64> = Vec::new();
        for _ in 0..options.calls.min(target / limits::DUE_BATCH_MAX) {
            let (now, since) = (place.store.now().await?, rt.mono());
            let gone = place.store.retire(now, limits::DUE_BATCH_MAX).await?;
            took.push((rt.mono() - since).as_secs_f64() * 1_000.0);
            let should = limits::DUE_BATCH_MAX as u64;
            if (gone.entities, gone.blobs) != (should, should) {
                return Err(StoreError::Refused(format!("not {should} of each: {gone:?}")));
            }
            removed += limits::DUE_BATCH_MAX;
        }
        let seconds = took.iter().sum::<f64>() / 1_000.0;
        took.sort_by(f64::total_cmp);
        points.push(Point {
            jobs: *target,
            call_p50_ms: percentile(&took, 0.5),
            call_max_ms: percentile(&took, 1.0),
            per_second: (took.len() * limits::DUE_BATCH_MAX) as f64 / seconds,
        });
    }
    Ok(Retention { store: place.engine(), values: options.values, points })
}

/// Writes rows beside the store.
enum Filler {
    Sqlite(rusqlite::Connection),
    Postgres(tokio_postgres::Client),
}

fn refused(e: impl std::fmt::Display) -> StoreError {
    StoreError::Refused(e.to_string())
}

impl Filler {
    async fn of(place: &Place) -> Result<Self, StoreError> {
        if let Some(dir) = place.directory() {
            let file = tenure_store::sqlite::database_file(dir);
            let conn = rusqlite::Connection::open(file).map_err(refused)?;
            conn.busy_timeout(Duration::from_secs(30)).map_err(refused)?;
            return Ok(Filler::Sqlite(conn));
        }
        let client = place.client().await?.ok_or_else(|| refused("no connection"))?;
        client.batch_execute("SET synchronous_commit = off").await.map_err(refused)?;
        Ok(Filler::Postgres(client))
    }

    async fn run(&self, sqlite: &str, postgres: &str) -> Result<(), StoreError> {
        match self {
            Filler::Sqlite(conn) => conn.execute_batch(sqlite).map_err(refused),
            Filler::Postgres(client) => client.batch_execute(postgres).await.map_err(refused),
        }
    }

    /// Values that entities name which are not over.
    async fn values(&self, count: usize) -> Result<(), StoreError> {
        let sqlite = format!(
            "BEGIN;
            CREATE TEMP TABLE g AS WITH RECURSIVE g(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM g WHERE n < {count})
                SELECT n, randomblob(32) AS digest FROM g WHERE n <= {count};
            INSERT INTO blobs (digest, put_at, bytes) SELECT digest, 0, zeroblob(200) FROM g;
            INSERT INTO blob_refs (entity, digest) SELECT unhex(printf('ff%030x', n)), digest FROM g;
            DROP TABLE g; COMMIT"
        );
        let postgres = format!(
            "WITH g AS MATERIALIZED (SELECT n, sha256(int8send(-n)) AS digest FROM generate_series(1::bigint, {count}) n),
            b AS (INSERT INTO blobs (digest, at, bytes) SELECT digest, 0, decode(repeat('00', 200), 'hex') FROM g)
            INSERT INTO blob_refs (entity, digest)
                SELECT ('ff' || lpad(to_hex(n), 30, '0'))::uuid, digest FROM g"
        );
        self.run(&sqlite, &postgres).await
    }

    /// Finished jobs, numbered from `from` on.
    async fn jobs(&self, from: usize, count: usize) -> Result<(), StoreError> {
        // In pieces: a transaction of millions of rows needs as much memory, or disk, once more.
        for first in (from..from + count).step_by(100_000) {
            let last = (first + 100_000).min(from + count) - 1;
            let sqlite = format!(
                "BEGIN;
                CREATE TEMP TABLE g AS WITH RECURSIVE g(n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM g WHERE n < {last})
                    SELECT n, unhex(printf('%032x', n + 1)) AS id, randomblob(32) AS digest FROM g;
                CREATE TEMP TABLE s AS WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {RECORDS})
                    SELECT n FROM s;
                INSERT INTO records (seq, prev, entity, first, count, commit_id, at, epoch, hash, bytes)
                    SELECT g.n * {RECORDS} + s.n, CASE s.n WHEN 1 THEN 0 ELSE g.n * {RECORDS} + s.n - 1 END, g.id, s.n, 1, g.id,
                        g.n, 0, g.digest, zeroblob({RECORD_BYTES}) FROM g, s ORDER BY 1;
                INSERT INTO heads (id, kind, tenant, queue, priority, lane, status, class, version, epoch, chain, created_at,
                        changed_at, mail_count, mail_read, faults, sealed, tail, timers, state)
                    SELECT id, 'job', 'bench', '', 0, 0, 'completed', 2, {RECORDS}, 0, digest, n, n, 0, 0, 0, 0,
                        n * {RECORDS} + {RECORDS}, x'', x'' FROM g;
                INSERT INTO blobs (digest, put_at, bytes) SELECT digest, 0, zeroblob(200) FROM g;
                INSERT INTO blob_refs (entity, digest) SELECT id, digest FROM g;
                DROP TABLE g; DROP TABLE s; COMMIT"
            );
            let postgres = format!(
                "CREATE TEMP TABLE g AS SELECT n, lpad(to_hex(n + 1), 32, '0')::uuid AS id, sha256(int8send(n)) AS digest
                    FROM generate_series({first}::bigint, {last}) n;
                INSERT INTO records (tx, first, at, epoch, ord, count, entity, commit_id, hash, bytes)
                    SELECT 0, s, n, 0, s, 1, id, id, digest, decode(repeat('00', {RECORD_BYTES}), 'hex')
                    FROM g, generate_series(1, {RECORDS}) s;
                INSERT INTO heads (id, kind, tenant, queue, priority, lane, status, class, version, epoch, chain, created_at,
                        changed_at, mail_count, mail_read, ended_at, faults, sealed, timers, state)
                    SELECT id, 'job', 'bench', '', 0, 0, 'completed', 2, {RECORDS}, 0, digest, n, n, 0, 0, n, 0, 0, '', '' FROM g;
                INSERT INTO blobs (digest, at, bytes) SELECT digest, 0, decode(repeat('00', 200), 'hex') FROM g;
                INSERT INTO blob_refs (entity, digest) SELECT id, digest FROM g;
                DROP TABLE g"
            );
            self.run(&sqlite, &postgres).await?;
        }
        self.run("PRAGMA wal_checkpoint(PASSIVE)", "ANALYZE; CHECKPOINT").await
    }
}
