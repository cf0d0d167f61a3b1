//! The database file itself: what may be opened as a store, how a new one comes into being, and how one is copied.
//!
//! SQLite takes an empty file for a new database and removes the log beside it. So nothing that is empty is opened here:
//! a new store is made under another name and gets its own when it is complete.

use super::{error::Trouble, private, schema};
use rusqlite::Connection;
use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};
use tenure_kernel::{error::StoreError, time::Timestamp};

/// The database of a directory.
pub(super) fn database(dir: &Path) -> PathBuf {
    dir.join(private::DATABASE)
}

/// The log beside a database.
pub(super) fn log_of(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

/// How many bytes there are; `None` where there is no such file.
fn length(file: &Path) -> Result<Option<u64>, StoreError> {
    match fs::metadata(file) {
        Ok(found) => Ok(Some(found.len())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(unusable(file, &e)),
    }
}

fn unusable(file: &Path, e: &io::Error) -> StoreError {
    StoreError::Unavailable(format!("{} cannot be used: {e}", file.display()))
}

/// Whether there is a store in a directory. What only looks like one is refused, and left as it is.
pub(super) fn is_there(dir: &Path) -> Result<bool, StoreError> {
    let file = database(dir);
    let log = length(&log_of(&file))?.unwrap_or(0);
    let why = match (length(&file)?, log) {
        (Some(1..), _) => return Ok(true),
        (None, 0) if private::was_left_by_restore(dir).map_err(|e| unusable(dir, &e))? => format!(
            "{} is missing, and a restore was interrupted before it put the backup there. Run `tenure restore` again, or put the \
             files of the store before it back: they are in the newest directory before-restore* of {}. To begin a new store, \
             remove {}",
            file.display(),
            dir.display(),
            private::NEW
        ),
        (None, 0) => return Ok(false),
        (None, log) => format!(
            "{} is missing beside its log of {log} bytes: put the file of the same store there, or restore a backup with \
             `tenure restore`",
            file.display()
        ),
        (Some(0), 0) => format!(
            "{} is empty: it is the file of a store that was cut off. Restore a backup with `tenure restore`, or put the \
             right file there. To begin a new store, remove the empty file",
            file.display()
        ),
        (Some(0), log) => format!(
            "{} is empty and has a log of {log} bytes beside it: keep both, and put the file of the same store there, or \
             restore a backup with `tenure restore`",
            file.display()
        ),
    };
    Err(StoreError::Corrupt(why))
}

/// Makes a new store. It gets its name when it is complete and on the disk.
pub(super) fn create(dir: &Path, incarnation: u64) -> Result<(), StoreError> {
    let new = private::fresh(dir, private::NEW).map_err(|e| unusable(dir, &e))?;
    drop(schema::open_writer(&new, incarnation, &Arc::default())?);
    put_in_place(&new, &database(dir)).map_err(|e| unusable(dir, &e))
}

/// Gives a complete file its name, durably.
fn put_in_place(file: &Path, name: &Path) -> io::Result<()> {
    File::open(file)?.sync_all()?;
    fs::rename(file, name)?;
    match name.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => File::open(dir)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}

/// What a backup holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backup {
    /// When its newest record was written; `None` if it has no records.
    pub newest: Option<Timestamp>,
    /// Its entities.
    pub entities: u64,
    /// Its newest record.
    seq: i64,
    incarnation: i64,
}

/// Copies the store of a directory into one new file, as it is at one moment, while another process may write to it.
pub fn back_up(dir: &Path, to: &Path) -> Result<Backup, StoreError> {
    if !is_there(dir)? {
        return Err(StoreError::Unavailable(format!("there is no store in {}", dir.display())));
    }
    if length(to)?.is_some() {
        let why = format!("{} is there already: a backup is a new file", to.display());
        return Err(StoreError::Unavailable(why));
    }
    let mut partial = to.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let parent = partial.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = partial.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // The rights of the copy are those of the store. SQLite fills an empty file.
    private::fresh(parent, &name).map_err(|e| unusable(&partial, &e))?;
    let copy = || -> Result<Backup, Trouble> {
        let source = schema::open_reader(&database(dir)).map_err(Trouble::Clean)?;
        source.execute("VACUUM INTO ?1", [partial.to_string_lossy()])?;
        drop(source);
        let made = Connection::open(&partial)?;
        // Nobody has it open, and nothing lies beside it.
        made.execute("UPDATE meta SET value = 0 WHERE name = ?1", [schema::OPEN])?;
        contents(&made)
    };
    let made = copy().map_err(Trouble::into_error).and_then(|made| {
        put_in_place(&partial, to).map_err(|e| unusable(to, &e))?;
        Ok(made)
    });
    if made.is_err() {
        // Half a copy helps nobody.
        let _ = fs::remove_file(&partial);
    }
    made
}

fn contents(conn: &Connection) -> Result<Backup, Trouble> {
    let newest = "SELECT max(seq), (SELECT at FROM records ORDER BY seq DESC LIMIT 1) FROM records";
    let (seq, at): (Option<i64>, Option<i64>) =
        conn.query_row(newest, [], |r| Ok((r.get(0)?, r.get(1)?)))?;
    let entities: i64 = conn.query_row("SELECT count(*) FROM heads", [], |r| r.get(0))?;
    Ok(Backup {
        newest: at.map(Timestamp::from_micros),
        entities: entities.cast_unsigned(),
        seq: seq.unwrap_or(0),
        incarnation: schema::meta(conn, "incarnation")?,
    })
}

/// What a restored store lacks that the store before it had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// There was no store before.
    NoStoreBefore,
    /// The store before can be read. What it has of each kind that the backup has not, and when the last of that was written.
    Since(Vec<MissingKind>, Option<Timestamp>),
    /// The store before cannot be read, and why.
    Unknown(String),
}

/// What a restored store lacks of one kind of entity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingKind {
    /// The kind.
    pub kind: String,
    /// Created after the backup.
    pub created: u64,
    /// In the backup, and changed after it.
    pub changed: u64,
}

/// What was restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// What the backup holds.
    pub backup: Backup,
    /// What it does not.
    pub missing: Missing,
    /// Where the files of the store before it are now.
    pub aside: Option<PathBuf>,
}

/// Puts a backup in the place of the store of a directory, as a new incarnation. A store that is there is moved into a
/// directory beside it, if `replace` says so, and otherwise kept. Nobody may have it open.
pub fn restore(
    from: &Path,
    dir: &Path,
    incarnation: u64,
    replace: bool,
) -> Result<Restored, StoreError> {
    private::prepare(dir).map_err(|e| unusable(dir, &e))?;
    let _lock = super::lock(dir)?;
    let file = database(dir);
    let occupied = length(&file)?.is_some() || length(&log_of(&file))?.is_some();
    if occupied && !replace {
        return Err(StoreError::Unavailable(format!(
            "there is a store in {}: `--replace` moves it into a directory beside it",
            dir.display()
        )));
    }
    if length(from)?.unwrap_or(0) == 0 {
        let why = format!("{} is missing or empty: it is no backup", from.display());
        return Err(StoreError::Corrupt(why));
    }
    let new = private::fresh(dir, private::NEW).map_err(|e| unusable(dir, &e))?;
    // A file that SQLite left with its log is complete only with it.
    for (from, to) in [(from.to_owned(), new.clone()), (log_of(from), log_of(&new))] {
        if length(&from)?.is_some() {
            fs::copy(&from, &to).map_err(|e| unusable(&from, &e))?;
        }
    }
    let backup = begin_anew(&new, incarnation).map_err(|e| match e {
        StoreError::Corrupt(why) => {
            StoreError::Corrupt(format!("{} is no backup of a store: {why}", from.display()))
        }
        other => other,
    })?;
    let missing = match occupied {
        true => compare(&file, backup),
        false => Missing::NoStoreBefore,
    };
    let aside = occupied.then(|| private::move_aside(dir)).transpose();
    let aside = aside.map_err(|e| unusable(dir, &e))?;
    put_in_place(&new, &file).map_err(|e| unusable(&file, &e))?;
    Ok(Restored { backup, missing, aside })
}

/// Checks a copy, and gives it another incarnation.
fn begin_anew(copy: &Path, incarnation: u64) -> Result<Backup, StoreError> {
    let begin = || -> Result<Backup, Trouble> {
        let conn = Connection::open(copy)?;
        let sound: String = conn.query_row("PRAGMA quick_check(1)", [], |r| r.get(0))?;
        if sound != "ok" {
            return Err(Trouble::Clean(StoreError::Corrupt(sound)));
        }
        schema::check_version(&conn)?;
        let backup = contents(&conn)?;
        schema::begin_incarnation(&conn, incarnation)?;
        Ok(backup)
    };
    begin().map_err(Trouble::into_error)
}

/// What the store of a file has beyond a backup of it.
fn compare(file: &Path, backup: Backup) -> Missing {
    let look = || -> Result<Missing, Trouble> {
        let conn = schema::open_reader(file).map_err(Trouble::Clean)?;
        let now = contents(&conn)?;
        if now.incarnation != backup.incarnation {
            let why = "the backup is of another store, or of another incarnation of it";
            return Ok(Missing::Unknown(why.to_owned()));
        }
        let sql = "SELECT coalesce(h.kind, 'removed since'), sum(r.first = 1), sum(r.first <> 1)
            FROM (SELECT entity, min(first) AS first FROM records WHERE seq > ?1 GROUP BY entity) r
            LEFT JOIN heads h ON h.id = r.entity GROUP BY 1 ORDER BY 1";
        let mut q = conn.prepare(sql)?;
        let kind = |r: &rusqlite::Row<'_>| {
            let (created, changed): (i64, i64) = (r.get(1)?, r.get(2)?);
            let (created, changed) = (created.cast_unsigned(), changed.cast_unsigned());
            Ok(MissingKind { kind: r.get(0)?, created, changed })
        };
        let kinds = q.query_map([backup.seq], kind)?.collect::<Result<Vec<_>, _>>()?;
        let until = now.newest.filter(|_| !kinds.is_empty());
        Ok(Missing::Since(kinds, until))
    };
    match is_readable(file).and_then(|()| look().map_err(Trouble::into_error)) {
        Ok(missing) => missing,
        Err(e) => Missing::Unknown(e.to_string()),
    }
}

fn is_readable(file: &Path) -> Result<(), StoreError> {
    let dir = file.parent().unwrap_or(Path::new("."));
    is_there(dir).map(|_| ())
}
