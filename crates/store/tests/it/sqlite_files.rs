//! The files of an embedded store: what a clean end leaves, what is not opened, and copies.

use crate::sqlite::{birth, committed, id, intact, judge, note, open};
use std::{fs, path::Path};
use tempfile::{TempDir, tempdir};
use tenure_edge::SystemClock;
use tenure_kernel::{
    error::StoreError,
    feed::{Cursor, Lost},
    ids::EntityId,
    store::Store,
};
use tenure_store::sqlite::{Missing, MissingKind, SqliteStore, back_up, database_file, restore};

/// A directory with a copy of the database of another one, alone.
fn copied(dir: &Path) -> TempDir {
    let copy = tempdir().unwrap();
    fs::copy(database_file(dir), database_file(copy.path())).unwrap();
    copy
}

/// A store with this many entities, each of two versions.
async fn filled(dir: &Path, entities: u8) -> (SqliteStore, Vec<EntityId>) {
    let store = open(dir).unwrap();
    let ids: Vec<EntityId> = (1..=entities).map(id).collect();
    for entity in &ids {
        let version = committed(&store, birth(*entity)).await;
        committed(&store, note(*entity, version, 100)).await;
    }
    (store, ids)
}

async fn incarnation(store: &SqliteStore) -> u64 {
    match store.feed(Cursor { incarnation: u64::MAX, ..Cursor::START }, 1).await {
        Err(StoreError::FeedLost(Lost::OtherIncarnation { restart })) => restart.incarnation,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_closed_store_is_one_file_that_can_be_copied() {
    let dir = tempdir().unwrap();
    let (store, ids) = filled(dir.path(), 20).await;
    let before = incarnation(&store).await;
    store.close().await.unwrap();
    // The process still runs, and its reads go on. Nothing is written any more.
    let refused =
        store.apply(vec![tenure_kernel::store::Op::Commit(Box::new(birth(id(99))))]).await;
    assert!(
        matches!(&refused, Err(StoreError::Unavailable(why)) if why.contains("closed")),
        "{refused:?}"
    );
    let copy = copied(dir.path());
    let opened = open(copy.path()).unwrap();
    for entity in &ids {
        assert_eq!(intact(&opened, *entity).await, 2);
        assert_eq!(intact(&store, *entity).await, 2);
    }
    assert_eq!(incarnation(&opened).await, before);
    drop((store, opened));
    // And so is one that was dropped.
    let opened = open(copied(copy.path()).path()).unwrap();
    assert_eq!((intact(&opened, ids[0]).await, incarnation(&opened).await), (2, before));
}

#[tokio::test]
async fn a_file_that_was_copied_without_its_log_begins_a_new_incarnation() {
    let dir = tempdir().unwrap();
    let (store, ids) = filled(dir.path(), 3).await;
    let before = incarnation(&store).await;
    let copy = copied(dir.path());
    let opened = SqliteStore::open(copy.path(), judge(), std::sync::Arc::new(SystemClock), 4_000);
    let opened = opened.unwrap();
    assert_eq!(opened.head(ids[0]).await.unwrap(), None, "it was only in the log");
    assert_ne!(incarnation(&opened).await, before);
    // With its log it is complete, as after a crash.
    let whole = copied(dir.path());
    fs::copy(dir.path().join("tenure.db-wal"), whole.path().join("tenure.db-wal")).unwrap();
    let opened = open(whole.path()).unwrap();
    assert_eq!((intact(&opened, ids[0]).await, incarnation(&opened).await), (2, before));
}

#[tokio::test]
async fn an_empty_file_is_not_taken_for_a_new_store() {
    let full = tempdir().unwrap();
    let (store, _) = filled(full.path(), 3).await;
    let log = fs::read(full.path().join("tenure.db-wal")).unwrap();
    drop(store);
    for (file, log, says) in [
        (Some(""), None, "remove the empty file"),
        (Some(""), Some(&log), "keep both"),
        (None, Some(&log), "is missing beside its log"),
    ] {
        let dir = tempdir().unwrap();
        let wal = dir.path().join("tenure.db-wal");
        if let Some(text) = file {
            fs::write(database_file(dir.path()), text).unwrap();
        }
        if let Some(log) = log {
            fs::write(&wal, log).unwrap();
        }
        let reader = SqliteStore::open_read_only(
            dir.path(),
            judge().tables,
            std::sync::Arc::new(SystemClock),
        );
        for refused in [open(dir.path()).err().unwrap(), reader.err().unwrap()] {
            assert_eq!(refused.code().as_str(), "corrupt");
            assert!(refused.to_string().contains(says), "{refused}");
            assert!(refused.to_string().contains("tenure restore"), "{refused}");
        }
        assert_eq!(fs::read(&wal).ok().as_ref(), log, "nothing is touched");
    }
    // A start that was interrupted before there was a store leaves nothing in the way.
    let dir = tempdir().unwrap();
    fs::write(dir.path().join("tenure.db.new"), "half a store").unwrap();
    committed(&open(dir.path()).unwrap(), birth(id(1))).await;
}

/// Between the moment at which the store was moved aside and the one at which the backup got its name.
#[tokio::test]
async fn a_restore_that_was_interrupted_is_not_taken_for_a_directory_without_a_store() {
    let (dir, place) = (tempdir().unwrap(), tempdir().unwrap());
    let (store, ids) = filled(dir.path(), 2).await;
    let backup = place.path().join("backup.db");
    back_up(dir.path(), &backup).unwrap();
    drop(store);
    let new = dir.path().join("tenure.db.new");
    fs::copy(&backup, &new).unwrap();
    let aside = dir.path().join("before-restore-2");
    fs::create_dir(&aside).unwrap();
    for entry in fs::read_dir(dir.path()).unwrap() {
        let name = entry.unwrap().file_name();
        if ["tenure.db", "tenure.db-wal", "tenure.db-shm"].iter().any(|n| *n == name) {
            fs::rename(dir.path().join(&name), aside.join(&name)).unwrap();
        }
    }
    let tables = judge().tables;
    let reader = SqliteStore::open_read_only(dir.path(), tables, std::sync::Arc::new(SystemClock));
    let copy = back_up(dir.path(), &place.path().join("other.db"));
    for refused in [open(dir.path()).err().unwrap(), reader.err().unwrap(), copy.err().unwrap()] {
        assert_eq!(refused.code().as_str(), "corrupt");
        assert!(refused.to_string().contains("before-restore"), "{refused}");
        assert!(refused.to_string().contains("tenure restore"), "{refused}");
    }
    assert!(new.exists() && !database_file(dir.path()).exists(), "nothing is touched");
    // As it says: again.
    let restored = restore(&backup, dir.path(), 4_000, false).unwrap();
    assert_eq!(restored.backup.entities, 2);
    assert_eq!(intact(&open(dir.path()).unwrap(), ids[0]).await, 2);
    // What a restore leaves that came to its end is in nobody's way.
    fs::remove_file(database_file(dir.path())).unwrap();
    let _ = fs::remove_file(dir.path().join("tenure.db-wal"));
    committed(&open(dir.path()).unwrap(), birth(id(1))).await;
}

#[tokio::test]
async fn a_backup_is_made_beside_the_writer_and_brought_back_with_what_it_lacks() {
    let (dir, place) = (tempdir().unwrap(), tempdir().unwrap());
    let (store, ids) = filled(dir.path(), 3).await;
    let before = incarnation(&store).await;
    let file = place.path().join("backup.db");
    let made = back_up(dir.path(), &file).unwrap();
    assert_eq!(made.entities, 3);
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1, "one file");
    assert!(back_up(dir.path(), &file).is_err(), "an older backup is not overwritten");
    committed(&store, note(ids[0], 2, 100)).await;
    for n in 10..15 {
        committed(&store, birth(id(n))).await;
    }
    let busy = restore(&file, dir.path(), 9, true).unwrap_err();
    assert_eq!(busy.code().as_str(), "data_directory_in_use");
    drop(store);
    let kept = restore(&file, dir.path(), 4_000, false).unwrap_err();
    assert!(kept.to_string().contains("--replace"), "{kept}");
    let restored = restore(&file, dir.path(), 4_000, true).unwrap();
    assert_eq!(restored.backup, made);
    let Missing::Since(kinds, Some(_)) = &restored.missing else { panic!("{restored:?}") };
    let lacks = MissingKind { kind: "task".into(), created: 5, changed: 1 };
    assert_eq!(kinds, &[lacks]);
    let store = open(dir.path()).unwrap();
    for entity in &ids {
        assert_eq!(intact(&store, *entity).await, 2);
    }
    assert_ne!(incarnation(&store).await, before);
    drop(store);
    // What it replaced can be brought back in turn; the backup is not of that incarnation.
    let aside = restored.aside.unwrap();
    let back = restore(&database_file(&aside), dir.path(), 5_000, true).unwrap();
    assert!(matches!(back.missing, Missing::Unknown(_)), "{back:?}");
    assert_eq!(intact(&open(dir.path()).unwrap(), ids[0]).await, 3);
    // Into a new directory, and from something that is no backup.
    let new = tempdir().unwrap();
    let restored = restore(&file, &new.path().join("store"), 6_000, false).unwrap();
    assert_eq!((restored.missing, restored.aside), (Missing::NoStoreBefore, None));
    fs::write(place.path().join("text"), "no backup").unwrap();
    for wrong in ["text", "absent"] {
        let refused = restore(&place.path().join(wrong), &new.path().join(wrong), 7, false);
        assert_eq!(refused.unwrap_err().code().as_str(), "corrupt", "{wrong}");
    }
}
