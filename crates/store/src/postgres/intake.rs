//! Wishes that applications left in their own transactions, taken by one server at a time.
//!
//! The rows stay locked while their jobs are made, so that servers share them (`SKIP LOCKED`) and a server that dies
//! lets go of them. That is for the sake of work done once; what makes it *right* is that a job is made under the
//! row's id: made twice, it is made once.

use super::{
    PostgresOptions, configure,
    error::Fault,
    pool::{Conn, Loan, Pool},
    rows::get,
    schema,
};
use tenure_kernel::{error::StoreError, ids::EntityId};
use tokio_postgres::Row;
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
    /// The options as JSON; `None` where they are larger than any can be.
    pub options: Option<String>,
}

/// The longest that a server may keep rows to itself. Its jobs are made well within this.
const KEEP_SECONDS: u64 = 30;
/// Bytes of inputs that are read at once: they are all in memory until their jobs are there. One row is read in any case.
pub const TAKE_BYTES_MAX: u64 = 32 * 1024 * 1024;

// In two steps: whose turn it is, and how much that is, is known before anything large is touched.
const NEXT: &str = "SELECT id, CASE WHEN input_bytes <= $2 THEN input_bytes ELSE 0 END
    FROM intake WHERE not_before <= moment() ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED";
// Sizes were measured when the row came: what is too large stays where it is.
const READ: &str = "SELECT id, bound, asked_by, flow,
        CASE WHEN input_bytes <= $2 THEN input::text END, options::text
    FROM intake WHERE id = ANY($1) ORDER BY id";
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
        let connector = configure(url, options)?;
        Ok(Intake {
            pool: Pool::new(connector, setup, 1, options.patience, options.answer_timeout),
        })
    }

    /// Takes up to so many, the oldest first. They are this server's until [`Taken::settle`], or until it dies.
    ///
    /// A row that can not be read does not hold up the others: they are then read one by one, and it is left for later.
    pub async fn take(
        &self,
        limit: usize,
        input_bytes_max: usize,
    ) -> Result<Taken<'_>, StoreError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let most = i32::try_from(input_bytes_max).unwrap_or(i32::MAX);
        let (mut disconnected, mut singly) = (false, false);
        loop {
            let loan = self.pool.lend().await?;
            let read = read(&loan.conn, limit, most, singly);
            match loan.conn.in_time(read, Fault::unavailable).await {
                Ok(Found { rows, unreadable, more }) => {
                    return Ok(Taken { loan, rows, unreadable, more });
                }
                // The connection was idle for long, and died of it.
                Err(Fault::Disconnected(_)) if !disconnected => disconnected = true,
                Err(fault @ Fault::Disconnected(_)) => return Err(fault.into_store()),
                Err(fault) if singly => return Err(fault.into_store()),
                Err(fault) => {
                    let error = fault.into_store();
                    tracing::warn!(%error, "the intake can not be read at once; row by row, then");
                    singly = true;
                    loan.roll_back().await;
                }
            }
        }
    }
}

#[derive(Default)]
struct Found {
    rows: Vec<IntakeRow>,
    unreadable: Vec<EntityId>,
    more: bool,
}

/// Locks the next rows and reads them, all at once or one by one.
async fn read(conn: &Conn, limit: i64, most: i32, singly: bool) -> Result<Found, Fault> {
    let statement = conn.prepare(NEXT).await?;
    conn.client.batch_execute("BEGIN").await?;
    let next = conn.client.query(&statement, &[&limit, &most]).await?;
    let sized = |r: &Row| Ok((get::<Uuid>(r, 0)?, get::<i32>(r, 1)?));
    let next = next.iter().map(sized).collect::<Result<Vec<_>, StoreError>>()?;
    let count = at_once(next.iter().map(|(_, bytes)| u64::try_from(*bytes).unwrap_or(0)));
    let ids: Vec<Uuid> = next.iter().take(count).map(|(id, _)| *id).collect();
    // Those that were locked and not read are anybody's again with the others' end.
    let full = i64::try_from(next.len()).is_ok_and(|n| n == limit);
    let mut found = Found { more: full || count < next.len(), ..Found::default() };
    if ids.is_empty() {
        return Ok(found);
    }
    if !singly {
        found.rows = rows(conn, &ids, most).await?;
        return Ok(found);
    }
    for id in ids {
        conn.client.batch_execute("SAVEPOINT one").await?;
        match rows(conn, &[id], most).await {
            Ok(read) => found.rows.extend(read),
            Err(gone @ Fault::Disconnected(_)) => return Err(gone),
            Err(fault) => {
                let (id, error) = (EntityId::from_uuid(id), fault.into_store());
                tracing::warn!(job = %id, %error, "a row of the intake can not be read; it waits");
                found.unreadable.push(id);
                conn.client.batch_execute("ROLLBACK TO SAVEPOINT one").await?;
            }
        }
        conn.client.batch_execute("RELEASE SAVEPOINT one").await?;
    }
    Ok(found)
}

async fn rows(conn: &Conn, ids: &[Uuid], most: i32) -> Result<Vec<IntakeRow>, Fault> {
    let statement = conn.prepare(READ).await?;
    let row = |r: &Row| {
        Ok(IntakeRow {
            id: EntityId::from_uuid(get::<Uuid>(r, 0)?),
            bound: get(r, 1)?,
            asked_by: get(r, 2)?,
            flow: get(r, 3)?,
            input: get(r, 4)?,
            options: get(r, 5)?,
        })
    };
    let found = conn.client.query(&statement, &[&ids, &most]).await?;
    Ok(found.iter().map(row).collect::<Result<Vec<_>, StoreError>>()?)
}

/// How many of these sizes, from the first, are read at once.
fn at_once(sizes: impl Iterator<Item = u64>) -> usize {
    let mut sum = 0u64;
    let fits = sizes.enumerate().take_while(|(i, bytes)| {
        sum = sum.saturating_add(*bytes);
        *i == 0 || sum <= TAKE_BYTES_MAX
    });
    fits.count()
}

/// Rows that are this server's for now. Dropped, they are anybody's again.
pub struct Taken<'a> {
    loan: Loan<'a>,
    /// The wishes.
    pub rows: Vec<IntakeRow>,
    /// Rows that could not be read: they are left for later.
    unreadable: Vec<EntityId>,
    /// There may be others whose turn it is.
    pub more: bool,
}

impl Taken<'_> {
    /// Removes those whose jobs are there, and leaves others for later.
    pub async fn settle(self, done: &[EntityId], later: &[EntityId]) -> Result<(), StoreError> {
        let ids = |all: &[EntityId]| all.iter().map(|id| id.uuid()).collect::<Vec<_>>();
        let later = [later, &self.unreadable].concat();
        let conn = &self.loan.conn;
        let write = async {
            if !done.is_empty() {
                let statement = conn.prepare(DONE).await?;
                conn.client.execute(&statement, &[&ids(done)]).await?;
            }
            if !later.is_empty() {
                let statement = conn.prepare(LATER).await?;
                conn.client.execute(&statement, &[&ids(&later)]).await?;
            }
            Ok(conn.client.batch_execute("COMMIT").await?)
        };
        let written = conn.in_time(write, Fault::indeterminate).await.map_err(Fault::into_store);
        if written.is_ok() {
            self.loan.give_back();
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_read_together_up_to_a_size_and_one_in_any_case() {
        let half = TAKE_BYTES_MAX / 2;
        for (sizes, count) in [
            (vec![], 0),
            (vec![0; 200], 200),
            (vec![half, half, 0], 3),
            (vec![half, half, 1], 2),
            (vec![TAKE_BYTES_MAX + 1, 0], 1),
            (vec![1, u64::MAX, u64::MAX], 1),
        ] {
            assert_eq!(at_once(sizes.iter().copied()), count, "{sizes:?}");
        }
    }
}
