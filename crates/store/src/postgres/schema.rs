//! Migrations: forwards only, under an advisory lock, so that many servers can start at once.
//!
//! Postgres keeps everything that this module decides in one row of `meta`. The *cluster* in it is the
//! system identifier and the timeline. If it is not the one we are connected to, the data came here by
//! a dump, a restored base backup or a failover that no running server has looked at (`continuity`): rows that a
//! reader of the feed has seen may be missing, so the store gets a new incarnation and every cursor a typed answer.
//! A dump also brings transaction numbers of another cluster, which may lie above our own horizon for ever; records
//! are renumbered in their order.

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

/// The cluster we are connected to; `NULL` on a standby. The timeline stands in the name of the current file of the
/// write-ahead log. `pg_control_checkpoint()` says it only after the first checkpoint of a promoted server.
macro_rules! cluster {
    () => {
        "SELECT CASE WHEN NOT pg_is_in_recovery() THEN
            (SELECT system_identifier::text FROM pg_control_system()) || '/' ||
            ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer::text END"
    };
}
pub(super) use cluster;

const CLUSTER: &str = cluster!();
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

/// Brings the schema up to date, and says on which cluster the store is and which life of it this is. Changes nothing if
/// all is as it should be.
pub(super) async fn migrate(
    conn: &Conn,
    schema: &str,
    incarnation: u64,
) -> Result<(String, i64), Fault> {
    let cluster: Option<String> = get(&conn.client.query_one(CLUSTER, &[]).await?, 0)?;
    let Some(cluster) = cluster else {
        return Err(Fault::Disconnected("the database is a standby, which takes no writes".into()));
    };
    if look(conn, schema, &cluster).await? != Found::Current {
        change(conn, schema, &cluster, incarnation).await?;
    }
    let row = conn.client.query_one("SELECT incarnation FROM meta", &[]).await?;
    Ok((cluster, get(&row, 0)?))
}

async fn change(conn: &Conn, schema: &str, cluster: &str, incarnation: u64) -> Result<(), Fault> {
    // The whole of it has a deadline (`MIGRATION_MAX`); a single statement may well need more than a read.
    conn.client.batch_execute("BEGIN; SET LOCAL statement_timeout = 0").await?;
    let lock = "SELECT pg_advisory_xact_lock(hashtextextended('tenure/' || $1, 0))";
    conn.client.query(lock, &[&schema]).await?;
    match look(conn, schema, cluster).await? {
        // Somebody else was faster.
        Found::Current => {}
        Found::Nothing => create(conn, schema, cluster, incarnation).await?,
        Found::Stale { version, cluster: before } => {
            advance(conn, version).await?;
            if before != cluster {
                resettle(conn, &before, cluster, incarnation).await?;
            }
        }
    }
    Ok(conn.client.batch_execute("COMMIT").await?)
}

/// Only looks; for a store that is opened read-only.
pub(super) async fn check(conn: &Conn, schema: &str) -> Result<(), Fault> {
    // A reader may read on any server, also on a standby.
    match look(conn, schema, "").await? {
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

/// The part of a cluster's name that a promotion does not change.
pub(super) fn system(cluster: &str) -> &str {
    cluster.split('/').next().unwrap_or_default()
}

/// Begins a new life of the store on this cluster, in the open transaction; says which.
pub(super) async fn resettle(
    conn: &Conn,
    before: &str,
    cluster: &str,
    incarnation: u64,
) -> Result<i64, Fault> {
    tracing::warn!(before, cluster, "the database is on another cluster: new incarnation");
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
    Ok(stored(incarnation))
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
