//! Migrations, and opening what is there.

use super::db::{TestDb, birth, entity, judge, must, note, op};
use futures_util::future::join_all;
use std::time::Duration;
use tenure_kernel::{
    claims::{ClaimRequest, Probe},
    error::StoreError,
    feed::{Cursor, Lost},
    limits,
    store::{HeadFilter, Store},
    timers::TimerChange,
};
use tenure_proving::patience;
use tenure_store::postgres::PostgresStore;

#[tokio::test]
async fn migrating_twice_changes_nothing() {
    let db = TestDb::new().await;
    let id = entity();
    must(&db.store().await, birth(id, None)).await;
    let again = db.store().await;
    assert_eq!(again.head(id).await.unwrap().unwrap().version, 1);
    assert_eq!(db.ask("SELECT count(*) FROM meta").await, 1);
}

#[tokio::test]
async fn many_servers_can_start_at_once() {
    let db = TestDb::new().await;
    let open = || PostgresStore::connect(&db.url, judge(), db.options());
    for opened in join_all((0..8).map(|_| open())).await {
        opened.unwrap();
    }
    assert_eq!(db.ask("SELECT schema_version FROM meta").await, 6);
}

#[tokio::test]
async fn a_newer_schema_is_refused() {
    let db = TestDb::new().await;
    drop(db.store().await);
    db.plain.execute("UPDATE meta SET schema_version = 99", &[]).await.unwrap();
    for opened in [
        PostgresStore::connect(&db.url, judge(), db.options()).await,
        PostgresStore::connect_read_only(&db.url, judge(), db.options()).await,
    ] {
        let refused = opened.err().unwrap();
        assert_eq!(refused, StoreError::NewerSchema { found: 99, known: 6 });
    }
}

#[tokio::test]
async fn a_restored_store_gets_a_new_incarnation_and_keeps_its_records() {
    let db = TestDb::new().await;
    let store = db.store().await;
    for _ in 0..3 {
        must(&store, birth(entity(), None)).await;
    }
    // Other tests of this run hold transactions open for a while.
    patience::until("all is below the horizon", async || {
        store.feed(Cursor::START, 10).await.unwrap().items.len() == 3
    })
    .await;
    let before = store.feed(Cursor::START, 10).await.unwrap();
    // As a dump brings them: from another cluster, with transactions far above this one's.
    let moved = "UPDATE meta SET cluster = 'elsewhere/1'; UPDATE records SET tx = tx + 1000000000";
    db.plain.batch_execute(moved).await.unwrap();
    let mut options = db.options();
    options.incarnation = 8;
    let restored = PostgresStore::connect(&db.url, judge(), options).await.unwrap();
    let lost = restored.feed(before.next, 10).await.err().unwrap();
    let restart = Cursor { incarnation: 8, transaction: 0, row: 0 };
    assert_eq!(lost, StoreError::FeedLost(Lost::OtherIncarnation { restart }));
    let after = restored.feed(restart, 10).await.unwrap();
    let records = |page: tenure_kernel::feed::FeedPage| {
        page.items.into_iter().map(|(_, r)| r).collect::<Vec<_>>()
    };
    assert_eq!(records(after), records(before));
}

#[tokio::test]
async fn a_store_that_is_opened_for_reading_reads_and_changes_nothing() {
    let db = TestDb::new().await;
    let missing = PostgresStore::connect_read_only(&db.url, judge(), db.options()).await;
    assert!(matches!(missing.err(), Some(StoreError::Unavailable(_))));
    let id = entity();
    must(&db.store().await, birth(id, None)).await;
    let reader = PostgresStore::connect_read_only(&db.url, judge(), db.options()).await.unwrap();
    assert!(reader.head(id).await.unwrap().is_some());
    let refused = reader.apply(vec![op(birth(entity(), None))]).await;
    assert!(matches!(refused, Err(StoreError::ReadOnly(_))), "{refused:?}");
}

#[tokio::test]
async fn a_database_that_takes_no_writes_says_so() {
    let db = TestDb::new().await;
    drop(db.store().await);
    // As on a standby: every transaction of this user starts read-only.
    let url = format!("{}?options=-c%20default_transaction_read_only%3Don", db.url);
    let store = PostgresStore::connect(&url, judge(), db.options()).await.unwrap();
    let refused = store.apply(vec![op(birth(entity(), None))]).await;
    assert!(matches!(refused, Err(StoreError::ReadOnly(_))), "{refused:?}");
    assert!(store.now().await.is_ok());
}

#[tokio::test]
async fn a_head_that_can_not_be_read_keeps_nobody_from_the_others() {
    let db = TestDb::new().await;
    let store = db.store().await;
    let ids: Vec<_> = (0..5).map(|_| entity()).collect();
    for id in &ids {
        let mut timed = birth(*id, None);
        timed.timers = vec![TimerChange::set("t", Duration::ZERO)];
        must(&store, timed).await;
    }
    // Two of the last kind, so that one more look than the first is needed.
    let spoils =
        ["kind = 'alien'", "status = 'odd'", "timers = '\\xffffff'", "timers = '\\xffffff'"];
    for (spoil, id) in spoils.iter().zip(&ids) {
        let sql = format!("UPDATE heads SET {spoil}, due = 1 WHERE id = $1");
        assert_eq!(db.plain.execute(&sql, &[&id.uuid()]).await.unwrap(), 1);
    }
    let lanes: Vec<u16> = (0..limits::LANES).collect();
    let good = store.head(ids[4]).await.unwrap().unwrap();
    let (_, due) = store.due(lanes.clone(), Duration::ZERO, 1).await.unwrap();
    assert_eq!(due, std::slice::from_ref(&good));
    assert_eq!(store.next_due(lanes).await.unwrap().1, good.due);
    assert_eq!(store.heads(HeadFilter::default(), 1).await.unwrap(), [good]);
    for id in &ids[..4] {
        assert!(store.head(*id).await.is_err(), "asked for, it is an error");
    }
}

#[tokio::test]
async fn what_can_not_be_read_does_not_block_its_queue() {
    let db = TestDb::new().await;
    let store = db.store().await;
    let ids: Vec<_> = (0..6).map(|_| entity()).collect();
    for id in &ids {
        must(&store, birth(*id, None)).await;
    }
    let spoils =
        ["kind = 'alien'", "status = 'odd'", "timers = '\\xffffff'", "timers = '\\xffffff'"];
    for (spoil, id) in spoils.iter().zip(&ids) {
        let sql = format!("UPDATE heads SET {spoil} WHERE id = $1");
        assert_eq!(db.plain.execute(&sql, &[&id.uuid()]).await.unwrap(), 1);
    }
    for good in &ids[4..] {
        let probe = Probe {
            priority: 0,
            tenant: "acme".into(),
            floor: tenure_kernel::time::Timestamp::ZERO,
            want: 1,
        };
        let request = ClaimRequest {
            id: super::db::commit_id(),
            session: entity(),
            lease: Duration::from_secs(15),
            queue: "main".into(),
            probes: vec![probe],
            limit: 1,
        };
        let answer = store.claim(request).await.unwrap();
        let claimed: Vec<_> = answer.claimed.iter().map(|c| c.head.id).collect();
        assert_eq!((claimed, answer.found), (vec![*good], vec![1]));
    }
    assert_eq!(db.ask("SELECT count(*) FROM ready").await, 4, "they stay where they are");
}

#[tokio::test]
async fn a_sealed_stream_is_cut_at_one_place_even_if_a_clock_stepped_back() {
    let db = TestDb::new().await;
    let store = db.store().await;
    let id = entity();
    let mut at = must(&store, birth(id, Some(entity()))).await;
    while at.version < 5 {
        at = must(&store, note(id, &at, "x")).await;
    }
    let spoil = "UPDATE heads SET sealed = 4;
        UPDATE records SET at = at + 3600000000 WHERE first = 2";
    db.plain.batch_execute(spoil).await.unwrap();
    let soon = store.now().await.unwrap() + Duration::from_secs(1);
    assert_eq!(store.retire(soon, 10).await.unwrap().records, 1);
    let firsts = |records: Vec<tenure_kernel::stream::Record>| {
        records.into_iter().map(|r| r.first).collect::<Vec<_>>()
    };
    assert_eq!(firsts(store.stream(id, 1, 10).await.unwrap()), [2, 3, 4, 5]);
    let later = soon + Duration::from_secs(7_200);
    assert_eq!(store.retire(later, 10).await.unwrap().records, 2);
    assert_eq!(firsts(store.stream(id, 1, 10).await.unwrap()), [4, 5]);
}
