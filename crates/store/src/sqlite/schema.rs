//! Opening a database file: settings, migrations, and the refusal of what is newer than we are.

use super::error::Trouble;
use rusqlite::{Connection, OpenFlags, OptionalExtension};
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};
use tenure_kernel::error::StoreError;

/// One entry per schema version, forwards only. Add yours at the end; never change one.
const MIGRATIONS: &[&str] =
    &[include_str!("schema.sql"), include_str!("listings.sql"), include_str!("vacant.sql")];

/// The schema version this program writes.
pub(super) const VERSION: i64 = MIGRATIONS.len() as i64;

/// The number of the meta table that says whether a process has the database open for writing. It stands in the file itself
/// from then on: a file that says so and has no log beside it was copied without it.
pub(super) const OPEN: &str = "open";

/// How long the writer waits for a lock that another process has.
pub(super) const WRITER_PATIENCE: Duration = Duration::from_secs(30);

/// Opens for writing and migrates.
pub(super) fn open_writer(
    file: &Path,
    incarnation: u64,
    log: &Arc<AtomicU32>,
) -> Result<Connection, StoreError> {
    let open = || -> Result<Connection, Trouble> {
        let mut conn = Connection::open(file)?;
        conn.busy_timeout(WRITER_PATIENCE)?;
        conn.pragma_update(None, "journal_mode", "wal")?;
        conn.pragma_update(None, "synchronous", "full")?;
        // Checkpoints run on a thread of their own; the writer never pays for one.
        let log = log.clone();
        conn.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, pages: i32| {
            log.store(u32::try_from(pages).unwrap_or(0), Ordering::Relaxed);
            Ok(())
        }))?;
        conn.pragma_update(None, "cache_size", -65_536)?;
        conn.pragma_update(None, "temp_store", "memory")?;
        conn.set_prepared_statement_cache_capacity(64);
        migrate(&mut conn, incarnation)?;
        Ok(conn)
    };
    open().map_err(Trouble::into_error)
}

/// Opens for reading: the reader threads, and `tenure rules` beside a running server.
pub(super) fn open_reader(file: &Path) -> Result<Connection, StoreError> {
    let open = || -> Result<Connection, Trouble> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let conn = Connection::open_with_flags(file, flags)?;
        conn.busy_timeout(Duration::from_secs(5))?;
        conn.pragma_update(None, "cache_size", -16_384)?;
        conn.set_prepared_statement_cache_capacity(32);
        let found = check_version(&conn)?;
        if found < VERSION {
            let why = format!("the schema is {found}, older than {VERSION}: start a server first");
            return Err(Trouble::Clean(StoreError::ReadOnly(why)));
        }
        Ok(conn)
    };
    open().map_err(Trouble::into_error)
}

fn stored_version(conn: &Connection) -> Result<i64, Trouble> {
    Ok(conn.pragma_query_value(None, "user_version", |r| r.get(0))?)
}

pub(super) fn check_version(conn: &Connection) -> Result<i64, Trouble> {
    let found = stored_version(conn)?;
    if found > VERSION {
        return Err(Trouble::Clean(StoreError::NewerSchema { found, known: VERSION }));
    }
    Ok(found)
}

fn migrate(conn: &mut Connection, incarnation: u64) -> Result<(), Trouble> {
    let found = check_version(conn)?;
    if found < VERSION {
        let tx = conn.transaction()?;
        for sql in &MIGRATIONS[usize::try_from(found).unwrap_or(0)..] {
            tx.execute_batch(sql)?;
        }
        tx.pragma_update(None, "user_version", VERSION)?;
        let value = stored(incarnation);
        tx.execute("INSERT OR IGNORE INTO meta (name, value) VALUES ('incarnation', ?1), ('feed_floor', 0)", [value])?;
        tx.commit()?;
    }
    Ok(())
}

/// Non-negative, so that it reads the same as the unsigned number in a cursor; never zero, which in a cursor means "from
/// the start".
fn stored(incarnation: u64) -> i64 {
    i64::try_from(incarnation >> 1).unwrap_or(0).max(1)
}

/// Begins another life of the store: cursors of the one before are answered `lost`.
pub(super) fn begin_incarnation(conn: &Connection, incarnation: u64) -> Result<(), Trouble> {
    let sql = "UPDATE meta SET value = CASE name WHEN ?1 THEN 0 ELSE ?2 END WHERE name IN (?1, 'incarnation')";
    conn.execute(sql, (OPEN, stored(incarnation)))?;
    Ok(())
}

/// Notes in the file that a process has it open, and says whether it had been noted and not been taken back.
pub(super) fn note_open(conn: &Connection) -> Result<bool, Trouble> {
    let was_open = meta(conn, OPEN)? != 0;
    if !was_open {
        conn.execute("INSERT OR REPLACE INTO meta (name, value) VALUES (?1, 1)", [OPEN])?;
        // Not only in the log. Somebody who reads just now may keep it from being copied; then it is with the next one.
        conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
    }
    Ok(was_open)
}

/// A number of the meta table.
pub(super) fn meta(conn: &Connection, name: &str) -> Result<i64, Trouble> {
    let mut q = conn.prepare_cached("SELECT value FROM meta WHERE name = ?1")?;
    Ok(q.query_row([name], |r| r.get(0)).optional()?.unwrap_or(0))
}
