//! A handful of connections. A connection is lent to one caller at a time and comes back only when the
//! caller says that it is clean; whoever is dropped in the middle (a cancelled future, an early return)
//! takes its connection along, and Postgres rolls back what was open on it. A broken connection is
//! replaced, never repaired.
//!
//! Road not taken: a pool crate. What we need is a semaphore and a vector; what we must have (prepared
//! statements that live with their connection, dropping on doubt) is what pools differ in.

use super::error::Fault;
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tenure_kernel::error::StoreError;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_postgres::{Client, Config, NoTls, Statement};

const BACKOFF_FIRST: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_millis(500);

/// One connection with its prepared statements.
pub(super) struct Conn {
    pub(super) client: Client,
    /// By their text. Not by its address: a constant may lie at several.
    statements: Mutex<HashMap<&'static str, Statement>>,
}

impl Conn {
    /// Opens a connection and runs `setup` on it.
    pub(super) async fn open(config: &Config, setup: &str) -> Result<Self, tokio_postgres::Error> {
        let (client, connection) = config.connect(NoTls).await?;
        #[expect(
            clippy::disallowed_methods,
            reason = "a driver's socket lives at the process edge"
        )]
        tokio::spawn(async move {
            if let Err(e) = connection.await {
                tracing::debug!(error = %e, "a connection to Postgres ended");
            }
        });
        client.batch_execute(setup).await?;
        Ok(Conn { client, statements: Mutex::default() })
    }

    /// The statement, prepared on this connection once.
    pub(super) async fn prepare(
        &self,
        sql: &'static str,
    ) -> Result<Statement, tokio_postgres::Error> {
        if let Some(statement) = self.prepared(sql) {
            return Ok(statement);
        }
        let statement = self.client.prepare(sql).await?;
        locked(&self.statements).insert(sql, statement.clone());
        Ok(statement)
    }

    /// The statement, if it is prepared.
    pub(super) fn prepared(&self, sql: &'static str) -> Option<Statement> {
        locked(&self.statements).get(sql).cloned()
    }
}

/// Lends connections.
pub(super) struct Pool {
    config: Config,
    setup: String,
    patience: Duration,
    permits: Semaphore,
    idle: Mutex<Vec<Conn>>,
}

impl Pool {
    pub(super) fn new(config: Config, setup: String, size: usize, patience: Duration) -> Self {
        let permits = Semaphore::new(size.max(1));
        Pool { config, setup, patience, permits, idle: Mutex::default() }
    }

    /// Lends a connection: the one used last, as its caches are warm, or a new one.
    pub(super) async fn lend(&self) -> Result<Loan<'_>, StoreError> {
        let closed = |_| StoreError::Unavailable("the store is closed".into());
        let permit = self.permits.acquire().await.map_err(closed)?;
        loop {
            let Some(conn) = locked(&self.idle).pop() else { break };
            if !conn.client.is_closed() {
                return Ok(Loan { pool: self, conn, _permit: permit });
            }
        }
        let conn = self.open().await?;
        Ok(Loan { pool: self, conn, _permit: permit })
    }

    /// Opens a connection, trying again with growing pauses as long as patience lasts.
    async fn open(&self) -> Result<Conn, StoreError> {
        let mut pause = BACKOFF_FIRST;
        let mut waited = Duration::ZERO;
        loop {
            let attempt = Conn::open(&self.config, &self.setup);
            let why = match tokio::time::timeout(self.patience, Box::pin(attempt)).await {
                Ok(Ok(conn)) => return Ok(conn),
                Ok(Err(e)) => match Fault::from(e) {
                    Fault::Disconnected(why) => why,
                    other => return Err(other.into_store()),
                },
                Err(_) => return Err(StoreError::Unavailable("connecting took too long".into())),
            };
            if waited >= self.patience {
                return Err(StoreError::Unavailable(why));
            }
            tokio::time::sleep(pause).await;
            waited += pause;
            pause = (pause * 2).min(BACKOFF_MAX);
        }
    }
}

/// A lent connection. Dropped without [`Loan::give_back`], it is closed.
pub(super) struct Loan<'a> {
    pool: &'a Pool,
    pub(super) conn: Conn,
    _permit: SemaphorePermit<'a>,
}

impl Loan<'_> {
    /// Returns a connection on which nothing is open.
    pub(super) fn give_back(self) {
        if !self.conn.client.is_closed() {
            locked(&self.pool.idle).push(self.conn);
        }
    }

    /// Ends whatever is open and returns the connection, if it still answers.
    pub(super) async fn roll_back(self) {
        if self.conn.client.batch_execute("ROLLBACK").await.is_ok() {
            self.give_back();
        }
    }
}

/// A panic while one of these short locks was held leaves nothing half-done behind it.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
