//! A handful of connections. A connection is lent to one caller at a time and comes back only when the
//! caller says that it is clean; whoever is dropped in the middle (a cancelled future, an early return)
//! takes its connection along, and Postgres rolls back what was open on it. A broken connection is
//! replaced, never repaired. Everything has a deadline: waiting for a connection, making one, and every exchange on it.
//! A line that takes requests and brings no answers would otherwise hold its callers for as long as it likes.
//!
//! Road not taken: a pool crate. What we need is a semaphore and a vector; what we must have (prepared
//! statements that live with their connection, dropping on doubt) is what pools differ in.

use super::{continuity::Continuity, error::Fault};
use std::{
    collections::HashMap,
    future::Future,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tenure_kernel::error::StoreError;
use tenure_postgres::Connector;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_postgres::{Client, Statement};

const BACKOFF_FIRST: Duration = Duration::from_millis(20);
/// Of a connection that belongs to no pool.
const ANSWER_DEFAULT: Duration = Duration::from_secs(30);
const BACKOFF_MAX: Duration = Duration::from_millis(500);

/// One connection with its prepared statements.
pub(super) struct Conn {
    pub(super) client: Client,
    /// In which life of the store it was opened (see `continuity`); 0 where nobody asks.
    pub(super) life: u64,
    /// How long an exchange may take.
    answer: Duration,
    /// An exchange took longer: nobody knows what is still on its way.
    silent: AtomicBool,
    /// By their text. Not by its address: a constant may lie at several.
    statements: Mutex<HashMap<&'static str, Statement>>,
}

impl Conn {
    /// Opens a connection and runs `setup` on it.
    pub(super) async fn open(connector: &Connector, setup: &str) -> Result<Self, Fault> {
        let (client, connection) = connector.connect().await?;
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
        let (silent, statements) = (AtomicBool::new(false), Mutex::default());
        Ok(Conn { client, life: 0, answer: ANSWER_DEFAULT, silent, statements })
    }

    /// Runs an exchange until its deadline. `late` says what it means to the caller that no answer came.
    pub(super) async fn in_time<T>(
        &self,
        exchange: impl Future<Output = Result<T, Fault>>,
        late: fn(String) -> Fault,
    ) -> Result<T, Fault> {
        let Ok(done) = tokio::time::timeout(self.answer, exchange).await else {
            self.silent.store(true, Ordering::Relaxed);
            return Err(late(format!("the database did not answer within {:?}", self.answer)));
        };
        done
    }

    fn is_usable(&self) -> bool {
        !self.client.is_closed() && !self.silent.load(Ordering::Relaxed)
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
    connector: Connector,
    setup: String,
    patience: Duration,
    answer: Duration,
    /// Compared with what is behind every new connection, before it is lent.
    continuity: Option<Arc<Continuity>>,
    permits: Semaphore,
    idle: Mutex<Vec<Conn>>,
}

impl Pool {
    pub(super) fn new(
        connector: Connector,
        setup: String,
        size: usize,
        patience: Duration,
        answer: Duration,
    ) -> Self {
        let permits = Semaphore::new(size.max(1));
        Pool {
            connector,
            setup,
            patience,
            answer,
            continuity: None,
            permits,
            idle: Mutex::default(),
        }
    }

    /// The same, lending only connections to the history that this process knows.
    pub(super) fn watched(mut self, continuity: Arc<Continuity>) -> Self {
        self.continuity = Some(continuity);
        self
    }

    /// Whether a connection is of the current life of the store.
    fn is_current(&self, conn: &Conn) -> bool {
        self.continuity.as_ref().is_none_or(|c| c.life() == conn.life)
    }

    /// Lends a connection: the one used last, as its caches are warm, or a new one.
    pub(super) async fn lend(&self) -> Result<Loan<'_>, StoreError> {
        let closed = |_| StoreError::Unavailable("the store is closed".into());
        let Ok(permit) = tokio::time::timeout(self.answer, self.permits.acquire()).await else {
            let why = format!("no connection of the pool became free within {:?}", self.answer);
            return Err(StoreError::Unavailable(why));
        };
        let permit = permit.map_err(closed)?;
        loop {
            let Some(conn) = locked(&self.idle).pop() else { break };
            if conn.is_usable() && self.is_current(&conn) {
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
            let attempt = async {
                let mut conn = Conn::open(&self.connector, &self.setup).await?;
                conn.answer = self.answer;
                if let Some(continuity) = &self.continuity {
                    conn.life = continuity.compare(&conn).await?;
                }
                Ok(conn)
            };
            let why = match tokio::time::timeout(self.patience, Box::pin(attempt)).await {
                Ok(Ok(conn)) => return Ok(conn),
                Ok(Err(Fault::Disconnected(why))) => why,
                Ok(Err(other)) => return Err(other.into_store()),
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
        if self.conn.is_usable() {
            locked(&self.pool.idle).push(self.conn);
        }
    }

    /// Ends whatever is open and returns the connection, if it still answers.
    pub(super) async fn roll_back(self) {
        if !self.conn.is_usable() {
            return;
        }
        let end = async { Ok(self.conn.client.batch_execute("ROLLBACK").await?) };
        if self.conn.in_time(end, Fault::Disconnected).await.is_ok() {
            self.give_back();
        }
    }
}

/// A panic while one of these short locks was held leaves nothing half-done behind it.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
