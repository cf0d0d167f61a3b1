//! Nobody but the user of the process reads the store: its directory has mode 0700 and its files 0600, whatever the umask is, also where an
//! earlier version made them with other modes.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, ErrorKind},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

/// The database.
pub(super) const DATABASE: &str = "tenure.db";
/// A database that is not complete yet.
pub(super) const NEW: &str = "tenure.db.new";
/// Where a store lies that a restored one has replaced.
const ASIDE: &str = "before-restore";
/// Held by the process that writes.
pub(super) const LOCK: &str = "lock";

/// Files of a store. SQLite gives the last three the mode of the database when it makes them.
const FILES: [&str; 6] =
    [DATABASE, LOCK, "admin.key", "tenure.db-wal", "tenure.db-shm", "tenure.db-journal"];
/// What else may lie in a directory that holds a store and nothing else.
const BESIDE: [&str; 4] = ["admin.key.new", "collector", "effects", NEW];
/// The database and what SQLite keeps beside it.
const DATABASE_FILES: [&str; 4] = [DATABASE, "tenure.db-wal", "tenure.db-shm", "tenure.db-journal"];

/// Makes the directory of a store if it is missing, and takes the rights of others away from what is there.
pub(super) fn prepare(dir: &Path) -> io::Result<()> {
    if let Some(parent) = dir.parent() {
        fs::create_dir_all(parent)?;
    }
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::AlreadyExists && dir.is_dir() => withdraw_all(dir)?,
        Err(e) => return Err(e),
    }
    Ok(())
}

/// An empty file of this name that only we can read, whatever was there: SQLite would make it with the rights that the
/// umask leaves.
pub(super) fn fresh(dir: &Path, name: &str) -> io::Result<PathBuf> {
    for end in ["", "-wal", "-shm", "-journal"] {
        match fs::remove_file(dir.join(format!("{name}{end}"))) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    let file = dir.join(name);
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file)?;
    Ok(file)
}

/// Moves the files of a database into a directory beside them, and says which.
pub(super) fn move_aside(dir: &Path) -> io::Result<PathBuf> {
    let mut place = dir.join(ASIDE);
    let mut number = 1;
    while place.exists() {
        number += 1;
        place = dir.join(format!("{ASIDE}-{number}"));
    }
    fs::DirBuilder::new().mode(0o700).create(&place)?;
    for name in DATABASE_FILES {
        match fs::rename(dir.join(name), place.join(name)) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    Ok(place)
}

/// Whether a store was moved aside and the one that was to replace it has not got its name.
pub(super) fn was_left_by_restore(dir: &Path) -> io::Result<bool> {
    if !dir.join(NEW).exists() {
        return Ok(false);
    }
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(ASIDE) && entry.path().is_dir() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Opens the file of the lock.
pub(super) fn lock_file(dir: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).read(true).write(true).mode(0o600).open(dir.join(LOCK))
}

fn withdraw_all(dir: &Path) -> io::Result<()> {
    for name in FILES {
        withdraw(&dir.join(name));
    }
    // A directory that somebody else uses too, such as /tmp, is left as it is.
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let replaced = name.to_string_lossy().starts_with(ASIDE);
        if !replaced && !FILES.iter().chain(&BESIDE).any(|known| *known == name) {
            if is_open(dir) {
                tracing::warn!(
                    directory = %dir.display(), beside = %name.display(),
                    "the directory of the store holds other files too and is left open to other users; the store's files are not"
                );
            }
            return Ok(());
        }
    }
    withdraw(dir);
    Ok(())
}

fn is_open(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o077 != 0)
}

/// Takes the rights of the group and of others away. A file of another user stays as it is, with a warning: the store may be on a volume whose
/// modes are not ours to change.
fn withdraw(path: &Path) {
    let Ok(found) = fs::metadata(path) else { return };
    let mode = found.permissions().mode() & 0o7777;
    if mode & 0o077 == 0 {
        return;
    }
    if let Err(e) = fs::set_permissions(path, Permissions::from_mode(mode & !0o077)) {
        tracing::warn!(
            path = %path.display(), mode = format!("{mode:o}"), error = %e,
            "other users of this machine can read a file of the store, and its mode cannot be changed"
        );
    }
}
