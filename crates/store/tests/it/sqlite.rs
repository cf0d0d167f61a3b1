//! What only SQLite can get wrong: files, locks, disks, and the constraints in its schema.

use rusqlite::Connection;
use std::{path::Path, sync::Arc, time::Duration};
use tenure_edge::SystemClock;
use tenure_kernel::{
    commit::{Birth, Commit, CommitAnswer, Expect, MailStance, TenureChange},
    error::StoreError,
    ids::{CommitId, EntityId},
    judge::Judge,
    runtime::Clock as _,
    store::{Answer, Op, Store},
    stream::{Body, NewEvent},
    table::{BIRTH, Claimable, Class, Move, SAME, StatusRow, Table, Tables},
    verify::verify,
};
use tenure_store::sqlite::{SqliteStore, database_file};

static TASK: Table = Table {
    kind: "task",
    doc: "Open, then over.",
    statuses: &[
        StatusRow { name: "open", class: Class::Open, claimable: Claimable::No, doc: "Open." },
        StatusRow { name: "over", class: Class::Final, claimable: Claimable::No, doc: "Over." },
    ],
    moves: &[
        Move { from: BIRTH, event: "made", to: "open" },
        Move { from: &["open"], event: "noted", to: SAME },
        Move { from: &["open"], event: "ended", to: "over" },
    ],
    forced: "over",
};

fn judge() -> Judge {
    let mut tables = Tables::default();
    tables.insert(&TASK);
    Judge::new(tables)
}

fn open(dir: &Path) -> Result<SqliteStore, StoreError> {
    SqliteStore::open(dir, judge(), Arc::new(SystemClock), 7)
}

fn id(n: u8) -> EntityId {
    EntityId::new(SystemClock.now(), [n; 10])
}

fn birth(entity: EntityId) -> Commit {
    let birth = Birth { kind: "task", tenant: "t".into(), queue: String::new(), priority: 0 };
    let made = NewEvent::new("made", Body::Inline(b"{}".to_vec()));
    let mut commit = Commit::new(commit_id(entity, 0), entity, Expect::Absent(birth), vec![made]);
    commit.must_end_in = Some(Duration::from_secs(60));
    commit
}

fn commit_id(entity: EntityId, n: u64) -> CommitId {
    CommitId(*entity.as_bytes()).nth(n)
}

fn note(entity: EntityId, version: u64, bytes: usize) -> Commit {
    let noted = NewEvent::new("noted", Body::Inline(vec![b'n'; bytes]));
    Commit::new(
        commit_id(entity, version),
        entity,
        Expect::Nobody { epoch: 0, version },
        vec![noted],
    )
}

async fn apply(store: &SqliteStore, commit: Commit) -> Result<CommitAnswer, StoreError> {
    match store.apply(vec![Op::Commit(Box::new(commit))]).await?.remove(0) {
        Answer::Commit(answer) => Ok(answer),
        other => panic!("{other:?}"),
    }
}

async fn committed(store: &SqliteStore, commit: Commit) -> u64 {
    match apply(store, commit).await.unwrap() {
        CommitAnswer::Committed(c) => c.version,
        other => panic!("{other:?}"),
    }
}

async fn intact(store: &SqliteStore, entity: EntityId) -> u64 {
    let head = store.head(entity).await.unwrap().unwrap();
    let records = store.stream(entity, 1, 1_000_000).await.unwrap();
    verify(&head, &records, &judge().tables).unwrap();
    head.version
}

#[tokio::test]
async fn a_second_writer_of_the_same_directory_is_refused_with_the_pid_of_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path()).unwrap();
    let Err(second) = open(dir.path()) else { panic!("two writers") };
    assert_eq!(second.code().as_str(), "data_directory_in_use");
    assert!(second.to_string().contains(&format!("pid {}", std::process::id())), "{second}");
    drop(first);
    open(dir.path()).unwrap();
}

#[tokio::test]
async fn a_reader_opens_beside_the_writer_and_can_not_write() {
    let dir = tempfile::tempdir().unwrap();
    let writer = open(dir.path()).unwrap();
    let entity = id(1);
    committed(&writer, birth(entity)).await;
    let reader =
        SqliteStore::open_read_only(dir.path(), judge().tables, Arc::new(SystemClock)).unwrap();
    assert_eq!(reader.head(entity).await.unwrap().unwrap().version, 1);
    let refused = reader.apply(vec![Op::Commit(Box::new(note(entity, 1, 1)))]).await.unwrap_err();
    assert_eq!(refused.code().as_str(), "read_only");
}

#[tokio::test]
async fn a_store_that_is_not_there_is_not_created_by_reading() {
    let dir = tempfile::tempdir().unwrap();
    let missing = SqliteStore::open_read_only(dir.path(), judge().tables, Arc::new(SystemClock))
        .err()
        .unwrap();
    assert!(missing.to_string().contains("there is no store"), "{missing}");
    assert!(!database_file(dir.path()).exists());
}

#[tokio::test]
async fn a_newer_schema_is_refused_with_both_numbers() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()).unwrap());
    let raw = Connection::open(database_file(dir.path())).unwrap();
    raw.pragma_update(None, "user_version", 999).unwrap();
    drop(raw);
    let newer = open(dir.path()).err().unwrap();
    assert!(matches!(newer, StoreError::NewerSchema { found: 999, .. }), "{newer}");
    let reader = SqliteStore::open_read_only(dir.path(), judge().tables, Arc::new(SystemClock))
        .err()
        .unwrap();
    assert!(matches!(reader, StoreError::NewerSchema { found: 999, .. }), "{reader}");
}

#[tokio::test]
async fn the_incarnation_and_everything_else_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let entity = id(2);
    let cursor = {
        let store = open(dir.path()).unwrap();
        committed(&store, birth(entity)).await;
        store.feed(tenure_kernel::feed::Cursor::START, 10).await.unwrap().next
    };
    let store = SqliteStore::open(dir.path(), judge(), Arc::new(SystemClock), 12345).unwrap();
    assert_eq!(store.feed(cursor, 10).await.unwrap().next, cursor);
    assert_eq!(committed(&store, note(entity, 1, 10)).await, 2);
    assert_eq!(store.feed(cursor, 10).await.unwrap().items.len(), 1);
    assert_eq!(intact(&store, entity).await, 2);
}

/// The judge refuses all of these before they reach the file; here the file itself is asked.
#[tokio::test]
async fn the_database_itself_refuses_what_breaks_a_law() {
    let dir = tempfile::tempdir().unwrap();
    let (open_one, over) = (id(3), id(4));
    {
        let store = open(dir.path()).unwrap();
        committed(&store, birth(open_one)).await;
        committed(&store, birth(over)).await;
        let ended = NewEvent::new("ended", Body::Inline(Vec::new()));
        let mut end = Commit::new(
            commit_id(over, 9),
            over,
            Expect::Nobody { epoch: 0, version: 1 },
            vec![ended],
        );
        end.mail = MailStance::ReadAll(0);
        committed(&store, end).await;
    }
    let raw = Connection::open(database_file(dir.path())).unwrap();
    let refuses = |sql: &str, entity: EntityId| {
        let e = raw
            .execute(sql, [entity.as_bytes()])
            .err()
            .unwrap_or_else(|| panic!("accepted: {sql}"));
        assert_eq!(
            e.sqlite_error_code(),
            Some(rusqlite::ErrorCode::ConstraintViolation),
            "{sql}: {e}"
        );
    };
    refuses("UPDATE heads SET due = NULL WHERE id = ?1", open_one);
    refuses("UPDATE heads SET must_end_by = NULL WHERE id = ?1", open_one);
    refuses("UPDATE heads SET due = must_end_by + 1 WHERE id = ?1", open_one);
    refuses("UPDATE heads SET version = version - 1 WHERE id = ?1", open_one);
    refuses("UPDATE heads SET epoch = -1 WHERE id = ?1", open_one);
    refuses("UPDATE heads SET class = 1 WHERE id = ?1", open_one);
    refuses("UPDATE heads SET class = 2 WHERE id = ?1", open_one);
    refuses("UPDATE heads SET attention = 'x' WHERE id = ?1", over);
    refuses("UPDATE heads SET class = 0, due = 1, must_end_by = 2 WHERE id = ?1", over);
}

/// A page limit is SQLite's own way to be out of space.
#[tokio::test]
async fn a_full_disk_is_a_typed_error_and_the_store_goes_on_when_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let entity = id(5);
    let mut version = committed(&store, birth(entity)).await;
    store.limit_pages(120).await.unwrap();
    let full = loop {
        match apply(&store, note(entity, version, 20_000)).await {
            Ok(CommitAnswer::Committed(c)) => version = c.version,
            Ok(other) => panic!("{other:?}"),
            Err(e) => break e,
        }
    };
    assert_eq!(full.code().as_str(), "disk_full");
    assert!(full.is_transient());
    assert_eq!(intact(&store, entity).await, version, "nothing of the refused commit is there");
    store.limit_pages(1_000_000).await.unwrap();
    assert_eq!(committed(&store, note(entity, version, 20_000)).await, version + 1);
    assert_eq!(intact(&store, entity).await, version + 1);
}

#[tokio::test]
async fn the_log_starts_over_under_constant_load() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let entity = id(6);
    let mut version = committed(&store, birth(entity)).await;
    for _ in 0..6_000 {
        version = committed(&store, note(entity, version, 8_000)).await;
    }
    // 6,000 commits of three pages each would be 70 MB; the log is started over at about 16.
    let log = std::fs::metadata(dir.path().join("tenure.db-wal")).unwrap().len();
    assert!(log < 60_000_000, "the log has {log} bytes");
}

#[tokio::test]
async fn a_damaged_record_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let entity = id(8);
    {
        let store = open(dir.path()).unwrap();
        committed(&store, birth(entity)).await;
        committed(&store, note(entity, 1, 100)).await;
    }
    let raw = Connection::open(database_file(dir.path())).unwrap();
    raw.execute("UPDATE records SET at = at + 1 WHERE first = 2", []).unwrap();
    drop(raw);
    let store = open(dir.path()).unwrap();
    let head = store.head(entity).await.unwrap().unwrap();
    let records = store.stream(entity, 1, 10).await.unwrap();
    let fault = verify(&head, &records, &judge().tables).unwrap_err();
    assert!(fault.to_string().contains("the chain is broken"), "{fault}");
}

#[tokio::test]
async fn a_wrong_cache_is_refused_by_the_statement_that_would_have_written() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let entity = id(9);
    committed(&store, birth(entity)).await;
    // Somebody with the file open changes a head behind the writer's back.
    let raw = Connection::open(database_file(dir.path())).unwrap();
    raw.execute("UPDATE heads SET epoch = 5 WHERE id = ?1", [entity.as_bytes()]).unwrap();
    let first = apply(&store, note(entity, 1, 1)).await;
    assert!(matches!(first, Err(StoreError::Unavailable(_))), "{first:?}");
    let second = apply(&store, note(entity, 1, 1)).await.unwrap();
    assert_eq!(second, CommitAnswer::StaleEpoch { current: 5 });
}

#[tokio::test]
async fn tenure_can_not_be_taken_without_a_lease_that_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let (entity, session) = (id(10), id(11));
    let mut commit = birth(entity);
    commit.tenure = TenureChange::Take { session, lease: Duration::from_secs(15) };
    committed(&store, commit).await;
    let head = store.head(entity).await.unwrap().unwrap();
    assert_eq!(head.holder, Some(session));
    assert_eq!(head.check_at, Some(head.created_at + Duration::from_secs(15)));
    assert_eq!(head.due, head.check_at);
}

/// The suite that every store passes.
mod conformance {
    use std::sync::Arc;
    use tenure_edge::{SystemClock, TokioRuntime};
    use tenure_kernel::store::Store;
    use tenure_proving::conformance::{World, judge};
    use tenure_store::sqlite::SqliteStore;

    /// One process has the directory open for writing, so all handles are the same one.
    async fn fresh() -> World {
        let rt = Arc::new(TokioRuntime::current());
        let dir = tempfile::tempdir().expect("a directory");
        let store =
            SqliteStore::open(dir.path(), judge(), Arc::new(SystemClock), 7).expect("opens");
        let store: Arc<dyn Store> = Arc::new(store);
        World::new(vec![store; 4], rt, dir).await
    }

    tenure_proving::conformance!(fresh);
}
