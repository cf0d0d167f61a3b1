//! `tenure backup` and `tenure restore`: an embedded store as one file. A Postgres store is copied by the tools of its database.

use super::Failure;
use crate::{cli, config::Settings, open::sqlite_directory, service::random};
use serde_json::json;
use std::{fmt::Write as _, path::PathBuf};
use tenure_kernel::sessions::{LANE, WORKER};
use tenure_store::sqlite::{self, Missing, MissingKind, Restored};

/// Copies the store into a file.
pub fn back_up(settings: &Settings, options: &cli::Backup, json: bool) -> Result<String, Failure> {
    let dir = directory(settings, BACK_UP_POSTGRES)?;
    let made = sqlite::back_up(&dir, &options.file)?;
    let (file, newest) = (options.file.display(), made.newest.map(|at| at.to_string()));
    if json {
        let said = json!({ "file": file.to_string(), "entities": made.entities, "newest_record_at": newest });
        return Ok(format!("{said}\n"));
    }
    let until =
        newest.map_or("it is empty".to_owned(), |at| format!("everything up to {at} is in it"));
    Ok(format!("{file}: {} entities; {until}\n", made.entities))
}

/// Puts a backup in the place of the store.
pub fn restore(settings: &Settings, options: &cli::Restore, json: bool) -> Result<String, Failure> {
    let dir = directory(settings, RESTORE_POSTGRES)?;
    let restored = sqlite::restore(&options.file, &dir, random(), options.replace)?;
    Ok(match json {
        true => format!("{}\n", as_json(&restored)),
        false => in_words(&restored),
    })
}

const BACK_UP_POSTGRES: &str = "the store is in a PostgreSQL database, which its own tools copy while servers run: \
    `pg_dump --format=custom --schema=tenure --file=tenure.dump URL`, or a base backup with an archive of the write-ahead log \
    (see docs/operations.md)";
const RESTORE_POSTGRES: &str = "the store is in a PostgreSQL database: stop all servers, restore it into an empty database with \
    `pg_restore --dbname=URL tenure.dump`, and start a server. In a database of another cluster it begins a new incarnation by \
    itself (see docs/operations.md)";

fn directory(settings: &Settings, otherwise: &str) -> Result<PathBuf, Failure> {
    let url = settings.address("store.url");
    sqlite_directory(url.expose()).ok_or_else(|| Failure::System(otherwise.to_owned()))
}

/// Sessions and lanes are the servers' own.
fn of_users(kinds: &[MissingKind]) -> impl Iterator<Item = &MissingKind> {
    kinds.iter().filter(|k| ![WORKER.kind, LANE.kind].contains(&k.kind.as_str()))
}

fn as_json(restored: &Restored) -> serde_json::Value {
    let missing = match &restored.missing {
        Missing::NoStoreBefore => json!({ "known": false, "why": "there was no store before" }),
        Missing::Unknown(why) => json!({ "known": false, "why": why }),
        Missing::Since(kinds, until) => {
            let kinds: Vec<_> = of_users(kinds)
                .map(|k| json!({ "kind": k.kind, "created": k.created, "changed": k.changed }))
                .collect();
            json!({ "known": true, "kinds": kinds, "until": until.map(|at| at.to_string()) })
        }
    };
    json!({
        "entities": restored.backup.entities,
        "newest_record_at": restored.backup.newest.map(|at| at.to_string()),
        "missing": missing,
        "replaced_store": restored.aside.as_ref().map(|dir| dir.display().to_string()),
    })
}

fn in_words(restored: &Restored) -> String {
    let mut said = String::new();
    let since = restored.backup.newest.map_or("the beginning".to_owned(), |at| at.to_string());
    // Writing into a text does not fail.
    let _ = writeln!(said, "restored: {} entities, as of {since}", restored.backup.entities);
    let _ = match &restored.missing {
        Missing::NoStoreBefore => {
            writeln!(
                said,
                "missing: whatever was written after {since}; there is no store to compare with"
            )
        }
        Missing::Unknown(why) => {
            writeln!(
                said,
                "missing: whatever was written after {since}; the store before cannot say: {why}"
            )
        }
        Missing::Since(kinds, until) => match (of_users(kinds).next(), until) {
            (Some(_), Some(until)) => {
                let each = of_users(kinds)
                    .map(|k| format!("{}: {} created, {} changed", k.kind, k.created, k.changed));
                let each = each.collect::<Vec<_>>().join("; ");
                writeln!(said, "missing: what was written after {since}, until {until} ({each})")
            }
            _ => writeln!(said, "missing: nothing; the backup was up to date"),
        },
    };
    if let Some(dir) = &restored.aside {
        let _ = writeln!(said, "the store before is in {}", dir.display());
    }
    said.push_str(
        "the store has a new incarnation: feeds answer `lost`. Steps that ran after the backup run again; their tools get the same \
         idempotency keys\n",
    );
    said
}
