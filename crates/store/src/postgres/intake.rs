//! Wishes that applications left in their own transactions, taken by one server at a time.
//!
//! The rows stay locked while their jobs are made, so that servers share them (`SKIP LOCKED`) and a server that dies
//! lets go of them. That is for the sake of work done once; what makes it *right* is that a job is made under the
//! row's id: made twice, it is made once.

use super::{
    PostgresOptions, configure,
    error::Fault,
    pool::{Loan, Pool},
    rows::get,
    schema,
};
use tenure_kernel::{error::StoreError, ids::EntityId};
use uuid::Uuid;

/// A wish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntakeRow {
    /// The id that the job gets.
    pub id: EntityId,
    /// The tenant that the asking role is bound to.
    pub bound: Option<String>,
    /// The role that asked.
    pub asked_by: String,
    /// The flow; `None` where it was NULL.
    pub flow: Option<String>,
    /// The input as JSON; `None` where it is larger than was asked for.
    pub input: Option<String>,
    /// The options as JSON.
    pub options: String,
}

/// The longest that a server may keep rows to itself. Its jobs are made well within this.
const KEEP_SECONDS: u64 = 30;

// The size is looked at first: what is too large stays where it is.
const TAKE: &str = "SELECT id, bound, asked_by, flow,
        CASE WHEN octet_length(input::text) <= $2 THEN input::text END, left(options::text, 65536)
    FROM intake WHERE not_before <= moment() ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED";
const DONE: &str = "DELETE FROM intake WHERE id = ANY($1)";
// A second, then twice as long each time, up to ten minutes.
const LATER: &str = "UPDATE intake SET tries = tries + 1,
        not_before = moment() + 1000000 * least(600, power(2, least(tries, 10)))::bigint
    WHERE id = ANY($1)";

/// Takes wishes out of a store.
pub struct Intake {
    pool: Pool,
}

impl Intake {
    /// On a connection of its own, made when it is first needed.
    pub fn new(url: &str, options: &PostgresOptions) -> Result<Self, StoreError> {
        schema::check_name(&options.schema)?;
        let setup = format!(
            "{}; SET idle_in_transaction_session_timeout = {}",
            options.setup(),
            KEEP_SECONDS * 1_000
        );
        let config = configure(url, options)?;
        Ok(Intake { pool: Pool::new(config, setup, 1, options.patience) })
    }

    /// Takes up to so many, the oldest first. They are this server's until [`Taken::settle`], or until it dies.
    pub async fn take(
        &self,
        limit: usize,
        input_bytes_max: usize,
    ) -> Result<Taken<'_>, StoreError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let most = i32::try_from(input_bytes_max).unwrap_or(i32::MAX);
        let mut tries = 0;
        loop {
            tries += 1;
            let loan = self.pool.lend().await?;
            let read = async {
                let statement = loan.conn.prepare(TAKE).await?;
                loan.conn.client.batch_execute("BEGIN").await?;
                loan.conn.client.query(&statement, &[&limit, &most]).await
            };
            match read.await.map_err(Fault::from) {
                Ok(found) => {
                    let row = |r: &tokio_postgres::Row| {
                        Ok(IntakeRow {
                            id: EntityId::from_uuid(get::<Uuid>(r, 0)?),
                            bound: get(r, 1)?,
                            asked_by: get(r, 2)?,
                            flow: get(r, 3)?,
                            input: get(r, 4)?,
                            options: get(r, 5)?,
                        })
                    };
                    let rows = found.iter().map(row).collect::<Result<Vec<_>, StoreError>>()?;
                    return Ok(Taken { loan, rows });
                }
                // The connection was idle for long, and died of it.
                Err(Fault::Disconnected(_)) if tries == 1 => {}
                Err(fault) => return Err(fault.into_store()),
            }
        }
    }
}

/// Rows that are this server's for now. Dropped, they are anybody's again.
pub struct Taken<'a> {
    loan: Loan<'a>,
    /// The wishes.
    pub rows: Vec<IntakeRow>,
}

impl Taken<'_> {
    /// Removes those whose jobs are there, and leaves others for later.
    pub async fn settle(self, done: &[EntityId], later: &[EntityId]) -> Result<(), StoreError> {
        let ids = |all: &[EntityId]| all.iter().map(|id| id.uuid()).collect::<Vec<_>>();
        let conn = &self.loan.conn;
        let write = async {
            if !done.is_empty() {
                let statement = conn.prepare(DONE).await?;
                conn.client.execute(&statement, &[&ids(done)]).await?;
            }
            if !later.is_empty() {
                let statement = conn.prepare(LATER).await?;
                conn.client.execute(&statement, &[&ids(later)]).await?;
            }
            conn.client.batch_execute("COMMIT").await
        };
        let written = write.await.map_err(|e| Fault::from(e).into_store());
        if written.is_ok() {
            self.loan.give_back();
        }
        written
    }
}
