//! What only SQLite can get wrong: files, locks, disks, and the constraints in its schema.

use rusqlite::Connection;
use std::{path::Path, sync::Arc, time::Duration};
use tenure_edge::SystemClock;
use tenure_kernel::{
    claims::{ClaimRequest, Probe},
    commit::{Birth, Commit, CommitAnswer, Expect, MailStance, TenureChange},
    error::StoreError,
    ids::{CommitId, EntityId},
    judge::Judge,
    runtime::Clock as _,
    store::{Answer, HeadFilter, Op, Store},
    stream::{Body, NewEvent},
    table::{BIRTH, Claimable, Class, Move, SAME, StatusRow, Table, Tables},
    time::Timestamp,
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

pub fn judge() -> Judge {
    let mut tables = Tables::default();
    tables.insert(&TASK);
    Judge::new(tables)
}

pub fn open(dir: &Path) -> Result<SqliteStore, StoreError> {
    SqliteStore::open(dir, judge(), Arc::new(SystemClock), 7)
}

pub fn id(n: u8) -> EntityId {
    EntityId::new(SystemClock.now(), [n; 10])
}

pub fn birth(entity: EntityId) -> Commit {
    let birth = Birth { kind: "task", tenant: "t".into(), queue: String::new(), priority: 0 };
    let made = NewEvent::new("made", Body::Inline(b"{}".to_vec()));
    let mut commit = Commit::new(commit_id(entity, 0), entity, Expect::Absent(birth), vec![made]);
    commit.must_end_in = Some(Duration::from_secs(60));
    commit
}

fn commit_id(entity: EntityId, n: u64) -> CommitId {
    CommitId(*entity.as_bytes()).nth(n)
}

pub fn note(entity: EntityId, version: u64, bytes: usize) -> Commit {
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

pub async fn committed(store: &SqliteStore, commit: Commit) -> u64 {
    match apply(store, commit).await.unwrap() {
        CommitAnswer::Committed(c) => c.version,
        other => panic!("{other:?}"),
    }
}

pub async fn intact(store: &SqliteStore, entity: EntityId) -> u64 {
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
    let orphan = "INSERT INTO records (prev, entity, first, count, commit_id, at, epoch, hash, bytes)
        SELECT 0, entity, 2, 1, commit_id, at, epoch, hash, bytes FROM records WHERE entity = ?1 LIMIT 1";
    refuses(orphan, open_one);
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

/// Every write to a cache that is full leaves the streams of all others whole.
#[tokio::test]
async fn a_full_cache_breaks_no_stream() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    store.limit_cache(2).await.unwrap();
    let ids: Vec<EntityId> = (20..30).map(id).collect();
    let op = |c| Op::Commit(Box::new(c));
    store.apply(ids.iter().map(|e| op(birth(*e))).collect()).await.unwrap();
    for version in 1..4 {
        store.apply(ids.iter().map(|e| op(note(*e, version, 10))).collect()).await.unwrap();
    }
    for entity in ids {
        assert_eq!(intact(&store, entity).await, 4);
        assert_eq!(store.stream(entity, 1, 10).await.unwrap().len(), 4);
    }
}

#[tokio::test]
async fn a_long_read_neither_stops_writes_nor_the_log_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let entity = id(30);
    let mut version = committed(&store, birth(entity)).await;
    let log = || std::fs::metadata(dir.path().join("tenure.db-wal")).unwrap().len();
    // A backup, say: it keeps the moment it began with.
    let backup = Connection::open(database_file(dir.path())).unwrap();
    backup.execute_batch("BEGIN").unwrap();
    backup.query_row("SELECT count(*) FROM records", [], |_| Ok(())).unwrap();
    let mut slowest = Duration::ZERO;
    // Three times as long as the log becomes before it is started over.
    while log() < 50_000_000 {
        let start = SystemClock.now();
        version = committed(&store, note(entity, version, 30_000)).await;
        slowest = slowest.max(SystemClock.now().since(start));
    }
    assert!(slowest < Duration::from_secs(10), "a write took {slowest:?}");
    backup.execute_batch("COMMIT").unwrap();
    for _ in 0..4_000 {
        version = committed(&store, note(entity, version, 30_000)).await;
    }
    // 4,000 commits of nine pages each are 140 MB; the log is started over at the next try.
    assert!(log() < 100_000_000, "the log has {} bytes", log());
    assert_eq!(intact(&store, entity).await, version);
}

/// A clock that somebody sets.
struct SetClock(std::sync::atomic::AtomicI64);

impl tenure_kernel::runtime::Clock for SetClock {
    fn now(&self) -> tenure_kernel::time::Timestamp {
        tenure_kernel::time::Timestamp::from_micros(
            self.0.load(std::sync::atomic::Ordering::SeqCst),
        )
    }
}

#[tokio::test]
async fn a_clock_that_steps_back_stops_for_reads_and_writes_alike() {
    const HOUR: i64 = 3_600_000_000;
    let dir = tempfile::tempdir().unwrap();
    let start = SystemClock.now().as_micros();
    let clock = Arc::new(SetClock(start.into()));
    let store = SqliteStore::open(dir.path(), judge(), clock.clone(), 7).unwrap();
    let entity = id(31);
    let mut timed = birth(entity);
    timed.timers = vec![tenure_kernel::timers::TimerChange::set("t", Duration::ZERO)];
    committed(&store, timed).await;
    clock.0.store(start - HOUR, std::sync::atomic::Ordering::SeqCst);
    let lanes: Vec<u16> = (0..tenure_kernel::limits::LANES).collect();
    let (now, due) = store.due(lanes.clone(), Duration::ZERO, 10).await.unwrap();
    assert_eq!(due.len(), 1, "it was due before the step and still is");
    assert_eq!(now.as_micros(), start);
    let (next_now, next) = store.next_due(lanes).await.unwrap();
    assert!(next.is_some_and(|at| at <= next_now));
    assert_eq!(store.now().await.unwrap().as_micros(), start);
    // A read that saw a later time binds the writes as well.
    clock.0.store(start + HOUR, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(store.now().await.unwrap().as_micros(), start + HOUR);
    clock.0.store(start, std::sync::atomic::Ordering::SeqCst);
    committed(&store, note(entity, 1, 1)).await;
    let head = store.head(entity).await.unwrap().unwrap();
    assert_eq!(head.changed_at.as_micros(), start + HOUR);
}

#[tokio::test]
async fn a_cursor_of_a_newer_file_than_the_one_put_back_is_lost() {
    use tenure_kernel::feed::{Cursor, Lost};
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    committed(&store, birth(id(32))).await;
    let copy = dir.path().join("copy");
    let raw = Connection::open(database_file(dir.path())).unwrap();
    raw.execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
    drop(raw);
    committed(&store, birth(id(33))).await;
    let cursor = store.feed(Cursor::START, 10).await.unwrap().next;
    drop(store);
    for file in ["tenure.db-wal", "tenure.db-shm"] {
        // Removed by the last one to close, or not.
        let _ = std::fs::remove_file(dir.path().join(file));
    }
    std::fs::rename(copy, database_file(dir.path())).unwrap();
    let store = open(dir.path()).unwrap();
    let lost = store.feed(cursor, 10).await.err().unwrap();
    let StoreError::FeedLost(Lost::OtherIncarnation { restart }) = lost else { panic!("{lost:?}") };
    let page = store.feed(restart, 10).await.unwrap();
    assert_eq!(page.items.len(), 1);
    assert!(store.feed(page.next, 10).await.unwrap().items.is_empty());
}

#[tokio::test]
async fn a_head_that_can_not_be_read_keeps_nobody_from_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let ids: Vec<EntityId> = (40..44).map(id).collect();
    for entity in &ids {
        let mut timed = birth(*entity);
        timed.timers = vec![tenure_kernel::timers::TimerChange::set("t", Duration::ZERO)];
        committed(&store, timed).await;
    }
    let raw = Connection::open(database_file(dir.path())).unwrap();
    let spoils = ["kind = 'alien'", "status = 'odd'", "timers = x'ffffff'"];
    for (spoil, entity) in spoils.iter().zip(&ids) {
        let sql = format!("UPDATE heads SET {spoil}, due = 1 WHERE id = ?1");
        assert_eq!(raw.execute(&sql, [entity.as_bytes()]).unwrap(), 1);
    }
    let lanes: Vec<u16> = (0..tenure_kernel::limits::LANES).collect();
    let good = store.head(ids[3]).await.unwrap().unwrap();
    let (_, due) = store.due(lanes.clone(), Duration::ZERO, 1).await.unwrap();
    assert_eq!(due, std::slice::from_ref(&good));
    assert_eq!(store.next_due(lanes).await.unwrap().1, good.due);
    let filter = tenure_kernel::store::HeadFilter::default();
    assert_eq!(store.heads(filter, 1).await.unwrap(), [good]);
    for entity in &ids[..3] {
        assert!(store.head(*entity).await.is_err(), "asked for, it is an error");
    }
}

#[tokio::test]
async fn what_can_not_be_read_does_not_block_its_queue() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let judge = tenure_proving::conformance::judge();
        SqliteStore::open(dir.path(), judge, Arc::new(SystemClock), 7).unwrap()
    };
    let store = open();
    let ids: Vec<EntityId> = (60..66).map(id).collect();
    for entity in &ids {
        let queue = "q".to_owned();
        let place = Birth { kind: "specimen", tenant: "t".into(), queue, priority: 0 };
        let made = NewEvent::new("made_queued", Body::Inline(b"{}".to_vec()));
        let expect = Expect::Absent(place);
        let mut queued = Commit::new(commit_id(*entity, 0), *entity, expect, vec![made]);
        queued.must_end_in = Some(Duration::from_secs(60));
        committed(&store, queued).await;
    }
    // Read anew: the writer remembers heads that it wrote.
    drop(store);
    let raw = Connection::open(database_file(dir.path())).unwrap();
    let spoils = ["kind = 'alien'", "status = 'odd'", "timers = x'ffffff'", "timers = x'ffffff'"];
    for (spoil, entity) in spoils.iter().zip(&ids) {
        let sql = format!("UPDATE heads SET {spoil} WHERE id = ?1");
        assert_eq!(raw.execute(&sql, [entity.as_bytes()]).unwrap(), 1);
    }
    let store = open();
    for good in &ids[4..] {
        let probe = Probe { priority: 0, tenant: "t".into(), floor: Timestamp::ZERO, want: 1 };
        let request = ClaimRequest {
            id: commit_id(*good, 9),
            session: id(1),
            lease: Duration::from_secs(15),
            queue: "q".into(),
            probes: vec![probe],
            limit: 1,
        };
        let answer = store.claim(request).await.unwrap();
        let claimed: Vec<_> = answer.claimed.iter().map(|c| c.head.id).collect();
        assert_eq!((claimed, answer.found), (vec![*good], vec![1]));
    }
    let left: i64 = raw.query_row("SELECT count(*) FROM ready", [], |r| r.get(0)).unwrap();
    assert_eq!(left, 4, "they stay where they are");
}

#[tokio::test]
async fn a_file_of_the_first_schema_is_brought_up_to_date_by_a_writer_only() {
    let dir = tempfile::tempdir().unwrap();
    let entity = id(70);
    committed(&open(dir.path()).unwrap(), birth(entity)).await;
    let raw = Connection::open(database_file(dir.path())).unwrap();
    let indexes =
        ["heads_kind", "heads_tenant", "heads_ended_as", "heads_attention", "heads_vacant"];
    for index in indexes {
        raw.execute(&format!("DROP INDEX {index}"), []).unwrap();
    }
    raw.pragma_update(None, "user_version", 1).unwrap();
    let reader = SqliteStore::open_read_only(dir.path(), judge().tables, Arc::new(SystemClock));
    assert!(matches!(reader.err(), Some(StoreError::ReadOnly(_))));
    let store = open(dir.path()).unwrap();
    let filter = HeadFilter { statuses: vec!["open".into()], ..HeadFilter::default() };
    assert_eq!(store.heads(filter, 9).await.unwrap().len(), 1);
    for index in indexes {
        let there = "SELECT count(*) FROM sqlite_schema WHERE name = ?1";
        assert_eq!(raw.query_row(there, [index], |r| r.get::<_, i64>(0)).unwrap(), 1);
    }
}

#[tokio::test]
async fn a_sealed_stream_is_cut_at_one_place_even_if_a_clock_stepped_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let entity = id(45);
    let mut version = committed(&store, birth(entity)).await;
    while version < 5 {
        version = committed(&store, note(entity, version, 1)).await;
    }
    let raw = Connection::open(database_file(dir.path())).unwrap();
    raw.execute("UPDATE heads SET sealed = 4", []).unwrap();
    raw.execute("UPDATE records SET at = at + 3600000000 WHERE first = 2", []).unwrap();
    let soon = SystemClock.now() + Duration::from_secs(1);
    assert_eq!(store.retire(soon, 10).await.unwrap().records, 1);
    let firsts = |records: Vec<tenure_kernel::stream::Record>| {
        records.into_iter().map(|r| r.first).collect::<Vec<_>>()
    };
    assert_eq!(firsts(store.stream(entity, 1, 10).await.unwrap()), [2, 3, 4, 5]);
    let later = soon + Duration::from_secs(7_200);
    assert_eq!(store.retire(later, 10).await.unwrap().records, 2);
    assert_eq!(firsts(store.stream(entity, 1, 10).await.unwrap()), [4, 5]);
}

/// A note with a text in it, for triggers to find.
fn text(entity: EntityId, version: u64, text: &str) -> Op {
    let mut commit = note(entity, version, 0);
    commit.events = vec![NewEvent::new("noted", Body::Inline(text.as_bytes().to_vec()))];
    Op::Commit(Box::new(commit))
}

#[tokio::test]
async fn a_row_that_the_database_refuses_leaves_its_neighbours_alone() {
    use tenure_kernel::{
        commit::Refusal,
        evidence::{EvidenceAnswer, NewEvidence},
        ids::MailId,
        mail::{MailAnswer, NewMail},
    };
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let raw = Connection::open(database_file(dir.path())).unwrap();
    raw.execute_batch(
        "CREATE TRIGGER planted BEFORE INSERT ON records WHEN instr(NEW.bytes, CAST('bad' AS BLOB)) > 0
         BEGIN SELECT RAISE(ABORT, 'planted'); END;
         CREATE TRIGGER planted_mail BEFORE INSERT ON mail WHEN NEW.kind = 'bad'
         BEGIN SELECT RAISE(ABORT, 'planted'); END;
         CREATE TRIGGER planted_evidence BEFORE INSERT ON evidence WHEN NEW.key = 'bad'
         BEGIN SELECT RAISE(ABORT, 'planted'); END;
         CREATE TRIGGER broken BEFORE INSERT ON records WHEN instr(NEW.bytes, CAST('broken' AS BLOB)) > 0
         BEGIN SELECT abs(-9223372036854775807 - 1); END;",
    )
    .unwrap();
    let ids: Vec<EntityId> = (34..37).map(id).collect();
    for entity in &ids {
        committed(&store, birth(*entity)).await;
    }
    let mail = |kind: &'static str| {
        let body = Body::Inline(Vec::new());
        Op::Mail(NewMail { to: ids[0], id: MailId(kind.into()), kind: kind.into(), body })
    };
    let evidence = Op::Evidence(NewEvidence {
        entity: ids[1],
        key: "bad".into(),
        epoch: 0,
        call: 0,
        who: "w".into(),
        body: Body::Inline(vec![1]),
    });
    let all = vec![text(ids[2], 1, "bad"), mail("good"), mail("bad"), evidence];
    let answers = store.apply(all).await.unwrap();
    let planted = |r: &Refusal| matches!(r, Refusal::Constraint(why) if why.contains("planted"));
    let Answer::Commit(CommitAnswer::Refused(why)) = &answers[0] else { panic!("{answers:?}") };
    assert!(planted(why));
    assert!(matches!(answers[1], Answer::Mail(MailAnswer::Accepted { .. })), "{answers:?}");
    let Answer::Mail(MailAnswer::Refused(why)) = &answers[2] else { panic!("{answers:?}") };
    assert!(planted(why));
    let Answer::Evidence(EvidenceAnswer::Refused(why)) = &answers[3] else { panic!("{answers:?}") };
    assert!(planted(why));
    // What fails behind one that is committed leaves the call as a whole undecided.
    let all = vec![text(ids[1], 1, "fine"), text(ids[2], 1, "bad"), text(ids[0], 1, "broken")];
    let undecided = store.apply(all).await;
    assert!(matches!(undecided, Err(StoreError::Indeterminate(_))), "{undecided:?}");
    assert_eq!(intact(&store, ids[1]).await, 2, "the first is committed");
    assert_eq!((intact(&store, ids[0]).await, intact(&store, ids[2]).await), (1, 1));
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

/// The same with a cache that is full all the time.
mod conformance_without_cache {
    use std::sync::Arc;
    use tenure_edge::{SystemClock, TokioRuntime};
    use tenure_kernel::store::Store;
    use tenure_proving::conformance::{World, judge};
    use tenure_store::sqlite::SqliteStore;

    async fn fresh() -> World {
        let rt = Arc::new(TokioRuntime::current());
        let dir = tempfile::tempdir().expect("a directory");
        let store =
            SqliteStore::open(dir.path(), judge(), Arc::new(SystemClock), 7).expect("opens");
        store.limit_cache(2).await.expect("limits");
        let store: Arc<dyn Store> = Arc::new(store);
        World::new(vec![store; 4], rt, dir).await
    }

    tenure_proving::conformance!(fresh);
}

/// The mode of a file or directory.
fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::metadata(path)
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        .permissions()
        .mode()
        & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

const STORE_FILES: [&str; 4] = ["tenure.db", "tenure.db-wal", "tenure.db-shm", "lock"];

#[tokio::test]
async fn nobody_else_reads_a_store_whatever_made_its_files() {
    let outside = tempfile::tempdir().unwrap();
    let dir = outside.path().join("new").join("store");
    let open = |dir: &Path| SqliteStore::open(dir, judge(), Arc::new(SystemClock), 7).unwrap();
    let check = |dir: &Path, of_dir: u32| {
        assert_eq!(mode(dir), of_dir);
        for file in STORE_FILES {
            assert_eq!(mode(&dir.join(file)), 0o600, "{file}");
        }
    };
    // The umask of the test is the usual 022, by which SQLite makes files that everybody reads.
    let plain = outside.path().join("plain");
    std::fs::write(&plain, "").unwrap();
    assert_ne!(mode(&plain) & 0o077, 0, "this test needs a umask such as 022");
    let store = open(&dir);
    store.now().await.unwrap();
    check(&dir, 0o700);
    // As an earlier version left it, with its log still there.
    set_mode(&dir, 0o755);
    std::fs::write(dir.join("admin.key"), "{}").unwrap();
    for file in STORE_FILES {
        set_mode(&dir.join(file), 0o644);
    }
    drop(store);
    let store = open(&dir);
    store.now().await.unwrap();
    check(&dir, 0o700);
    assert_eq!(mode(&dir.join("admin.key")), 0o600);
    drop(store);
    // A directory in which somebody else keeps files is not closed to them.
    std::fs::write(dir.join("of-somebody-else"), "").unwrap();
    set_mode(&dir, 0o755);
    set_mode(&dir.join("tenure.db"), 0o644);
    let store = open(&dir);
    store.now().await.unwrap();
    check(&dir, 0o755);
}
