//! The raw limit of an engine: batched inserts of the same bytes with the same durability, by one
//! writer in a tight loop, into a table with nothing but its key.

use crate::{commit::STEP_BYTES, report::percentile};
use rusqlite::Connection;
use std::{path::Path, time::Duration};
use tenure_kernel::{error::StoreError, runtime::Runtime as _};

/// What the loop reached.
pub struct Limit {
    /// Rows per second.
    pub rows_per_second: f64,
    /// Median time of one transaction.
    pub p50_ms: f64,
}

/// An engine to measure.
pub enum Raw {
    /// A file of its own beside the store's.
    Sqlite(Connection),
    /// A table of its own in the same database.
    Postgres {
        /// Its connection.
        client: tokio_postgres::Client,
        /// The statement, prepared.
        insert: tokio_postgres::Statement,
    },
}

fn sqlite_error(e: rusqlite::Error) -> StoreError {
    StoreError::Refused(e.to_string())
}

fn postgres_error(e: tokio_postgres::Error) -> StoreError {
    StoreError::Refused(e.to_string())
}

impl Raw {
    /// SQLite with the settings of the embedded store.
    pub fn sqlite(dir: &Path) -> Result<Self, StoreError> {
        let open = || {
            let conn = Connection::open(dir.join("raw.db"))?;
            conn.pragma_update(None, "journal_mode", "wal")?;
            conn.pragma_update(None, "synchronous", "full")?;
            conn.execute_batch(
                "CREATE TABLE raw (seq INTEGER PRIMARY KEY, entity BLOB, bytes BLOB)",
            )?;
            Ok(conn)
        };
        open().map(Raw::Sqlite).map_err(sqlite_error)
    }

    /// A table in the schema that the client's connection has first in its path.
    pub async fn postgres(client: tokio_postgres::Client) -> Result<Self, StoreError> {
        client
            .batch_execute("SET synchronous_commit = on; CREATE TABLE raw (seq bigserial PRIMARY KEY, entity uuid, bytes bytea)")
            .await
            .map_err(postgres_error)?;
        let sql = "INSERT INTO raw (entity, bytes) SELECT * FROM unnest($1::uuid[], $2::bytea[])";
        let insert = client.prepare(sql).await.map_err(postgres_error)?;
        Ok(Raw::Postgres { client, insert })
    }

    /// Inserts batches of `rows` for a while.
    pub async fn measure(&mut self, rows: usize, time: Duration) -> Result<Limit, StoreError> {
        let clock = tenure_edge::TokioRuntime::current();
        let end = clock.mono() + time;
        let (mut took, mut total) = (Vec::new(), Duration::ZERO);
        let batch = Batch::of(rows);
        while clock.mono() < end {
            let done = self.insert(&batch).await?;
            total += done;
            took.push(done.as_secs_f64() * 1000.0);
        }
        took.sort_by(f64::total_cmp);
        let rows_per_second = (took.len() * rows) as f64 / total.as_secs_f64();
        Ok(Limit { rows_per_second, p50_ms: percentile(&took, 0.5) })
    }

    /// One durable write: a transaction of one row. How long it took.
    pub async fn one_row(&mut self) -> Result<Duration, StoreError> {
        self.insert(&Batch::of(1)).await
    }

    async fn insert(&mut self, batch: &Batch) -> Result<Duration, StoreError> {
        let clock = tenure_edge::TokioRuntime::current();
        match self {
            Raw::Sqlite(conn) => {
                let sent = clock.mono();
                insert_here(conn, batch).map_err(sqlite_error)?;
                Ok(clock.mono() - sent)
            }
            Raw::Postgres { client, insert } => {
                let bodies = vec![&batch.payload[..]; batch.entities.len()];
                let sent = clock.mono();
                client
                    .execute(&*insert, &[&batch.entities, &bodies])
                    .await
                    .map_err(postgres_error)?;
                Ok(clock.mono() - sent)
            }
        }
    }
}

/// Rows to insert.
struct Batch {
    entities: Vec<uuid::Uuid>,
    payload: Vec<u8>,
}

impl Batch {
    fn of(rows: usize) -> Self {
        let entities = vec![tenure_kernel::ids::EntityId::fixed(7, 7).uuid(); rows];
        Batch { entities, payload: vec![b'x'; STEP_BYTES] }
    }
}

fn insert_here(conn: &mut Connection, batch: &Batch) -> Result<(), rusqlite::Error> {
    let tx = conn.transaction()?;
    {
        let mut q = tx.prepare_cached("INSERT INTO raw (entity, bytes) VALUES (?1, ?2)")?;
        for entity in &batch.entities {
            q.execute((entity.as_bytes(), &batch.payload))?;
        }
    }
    tx.commit()
}
