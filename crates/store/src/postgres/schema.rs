//! Migrations: forwards only, under an advisory lock, so that many servers can start at once.
//!
//! Postgres keeps everything that this module decides in one row of `meta`. The *cluster* in it is the
//! system identifier and the timeline. If it is not the one we are connected to, the data came here by
//! a dump, a restored base backup or a failover: rows that a reader of the feed has seen may be missing,
//! so the store gets a new incarnation and every cursor a typed answer. A dump also brings transaction
//! numbers of another cluster, which may lie above our own horizon for ever; records are renumbered in
//! their order.

use super::{
    error::Fault,
    pool::Conn,
    rows::{self, get},
};
use tenure_kernel::error::StoreError;

const MIGRATIONS: &[&str] = &[
    include_str!("schema.sql"),
    include_str!("listings.sql"),
    include_str!("intake.sql"),
    include_str!("intake_roles.sql"),
    include_str!("vacant.sql"),
    include_str!("intake_sizes.sql"),
];
/// The schema this program knows.
pub(super) const KNOWN: i64 = MIGRATIONS.len() as i64;

const CLUSTER: &str = "SELECT system_identifier::text || '/' || timeline_id::text
    FROM pg_control_system(), pg_control_checkpoint()";
// Not `to_regclass`: it trusts the session's idea of the search path, which another server's CREATE
// SCHEMA does not change until this session next locks a table.
const FIND_META: &str = "SELECT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n
    ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = 'meta')";
const READ_META: &str = "SELECT schema_version, cluster FROM meta";

/// What is there before anything is changed.
#[derive(Debug, PartialEq)]
enum Found {
    Nothing,
    /// Usable as it is.
    Current,
    /// Another cluster, or an older schema.
    Stale {
        version: i64,
        cluster: String,
    },
}

/// Whether a schema name can stand in SQL without quotes or surprises.
pub(super) fn check_name(schema: &str) -> Result<(), StoreError> {
    let fits = !schema.is_empty() && schema.len() <= 63;
    let mut chars = schema.chars();
    let starts = chars.next().is_some_and(|c| c.is_ascii_lowercase() || c == '_');
    let goes_on = chars.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if fits && starts && goes_on && !schema.starts_with("pg_") {
        return Ok(());
    }
    Err(StoreError::Refused(format!(
        "{schema:?} can not be the name of the store's schema: use up to 63 of a-z, 0-9 and _, not pg_"
    )))
}

/// Brings the schema up to date. Changes nothing if it already is.
pub(super) async fn migrate(conn: &Conn, schema: &str, incarnation: u64) -> Result<(), Fault> {
    let cluster: String = get(&conn.client.query_one(CLUSTER, &[]).await?, 0)?;
    if look(conn, schema, &cluster).await? == Found::Current {
        return Ok(());
    }
    conn.client.batch_execute("BEGIN").await?;
    let lock = "SELECT pg_advisory_xact_lock(hashtextextended('tenure/' || $1, 0))";
    conn.client.query(lock, &[&schema]).await?;
    match look(conn, schema, &cluster).await? {
        // Somebody else was faster.
        Found::Current => {}
        Found::Nothing => create(conn, schema, &cluster, incarnation).await?,
        Found::Stale { version, cluster: before } => {
            advance(conn, version).await?;
            if before != cluster {
                resettle(conn, &before, &cluster, incarnation).await?;
            }
        }
    }
    Ok(conn.client.batch_execute("COMMIT").await?)
}

/// Only looks; for a store that is opened read-only.
pub(super) async fn check(conn: &Conn, schema: &str) -> Result<(), Fault> {
    let cluster: String = get(&conn.client.query_one(CLUSTER, &[]).await?, 0)?;
    match look(conn, schema, &cluster).await? {
        Found::Stale { version, .. } if version < KNOWN => {
            let why = format!("the schema is {version}, older than {KNOWN}: start a server first");
            Err(StoreError::ReadOnly(why).into())
        }
        Found::Nothing => {
            let why = format!("there is no store in the schema {schema:?} of this database");
            Err(StoreError::Unavailable(why).into())
        }
        Found::Current | Found::Stale { .. } => Ok(()),
    }
}

async fn look(conn: &Conn, schema: &str, cluster: &str) -> Result<Found, Fault> {
    let there: bool = get(&conn.client.query_one(FIND_META, &[&schema]).await?, 0)?;
    if !there {
        return Ok(Found::Nothing);
    }
    let row = conn.client.query_one(READ_META, &[]).await?;
    let (version, stored): (i64, String) = (get(&row, 0)?, get(&row, 1)?);
    if version > KNOWN {
        return Err(StoreError::NewerSchema { found: version, known: KNOWN }.into());
    }
    if version == KNOWN && stored == cluster {
        return Ok(Found::Current);
    }
    Ok(Found::Stale { version, cluster: stored })
}

async fn create(conn: &Conn, schema: &str, cluster: &str, incarnation: u64) -> Result<(), Fault> {
    conn.client.batch_execute(&format!("CREATE SCHEMA IF NOT EXISTS {schema}")).await?;
    conn.client.batch_execute(MIGRATIONS[0]).await?;
    let insert = "INSERT INTO meta (schema_version, incarnation, cluster) VALUES (1, $1, $2)";
    conn.client.execute(insert, &[&stored(incarnation), &cluster]).await?;
    advance(conn, 1).await
}

async fn advance(conn: &Conn, version: i64) -> Result<(), Fault> {
    let done = usize::try_from(version).map_err(rows::corrupt)?;
    for migration in MIGRATIONS.iter().skip(done) {
        conn.client.batch_execute(migration).await?;
    }
    conn.client.execute("UPDATE meta SET schema_version = $1", &[&KNOWN]).await?;
    Ok(())
}

async fn resettle(conn: &Conn, before: &str, cluster: &str, incarnation: u64) -> Result<(), Fault> {
    tracing::warn!(before, cluster, "the database is on another cluster: new incarnation");
    let system = |c: &str| c.split('/').next().map(str::to_owned);
    if system(before) != system(cluster) {
        // A million to a transaction number: whatever was restored stays far below the horizon.
        let renumber = "UPDATE records r SET tx = o.n / 1000000, ord = (o.n % 1000000)::integer
            FROM (SELECT entity, first, row_number() OVER (ORDER BY tx, ord) AS n FROM records) o
            WHERE r.entity = o.entity AND r.first = o.first";
        conn.client.execute(renumber, &[]).await?;
        conn.client.execute("UPDATE meta SET floor_tx = 0, floor_ord = 0", &[]).await?;
    }
    let update = "UPDATE meta SET incarnation = $1, cluster = $2";
    conn.client.execute(update, &[&stored(incarnation), &cluster]).await?;
    Ok(())
}

/// As `bigint`, bit by bit. Zero names no incarnation: [`tenure_kernel::feed::Cursor::START`] has it.
fn stored(incarnation: u64) -> i64 {
    incarnation.max(1).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_name_is_plain() {
        for good in ["tenure", "t", "_x9", &"a".repeat(63)] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in ["", "Tenure", "9a", "a-b", "a\"b", "a;b", "pg_x", "ü", &"a".repeat(64)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }
}
