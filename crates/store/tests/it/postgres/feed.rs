//! The feed never shows a gap.

use super::db::{TestDb, birth, committed, connect, done, entity, must, op};
use futures_util::future::join_all;
use std::collections::HashSet;
use tenure_kernel::{
    error::StoreError,
    feed::{Cursor, Lost},
    ids::CommitId,
    runtime::{First, first},
    store::Store,
    time::Timestamp,
};
use tenure_proving::patience;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_beside_writers_sees_every_record_once_and_in_order() {
    let db = TestDb::new().await;
    let (store, reader) = (db.store().await, db.store().await);
    let write = async {
        let writer = |_| async {
            let mut mine = Vec::new();
            for _ in 0..40 {
                let births: Vec<_> = (0..5).map(|_| birth(entity(), None)).collect();
                mine.extend(births.iter().map(|c| c.id));
                committed(store.apply(births.into_iter().map(op).collect()).await.unwrap());
            }
            mine
        };
        join_all((0..4).map(writer)).await.concat()
    };
    let (mut cursor, mut seen) = (Cursor::START, Vec::<CommitId>::new());
    let mut write = Box::pin(write);
    let mut written: Option<Vec<CommitId>> = None;
    let reading = async {
        while written.as_ref().is_none_or(|w| seen.len() < w.len()) {
            let read = reader.feed(cursor, 17);
            let page = if written.is_some() {
                read.await.unwrap()
            } else {
                match first(&mut write, read).await {
                    First::Left(all) => {
                        written = Some(all);
                        continue;
                    }
                    First::Right(page) => page.unwrap(),
                }
            };
            assert!(page.items.iter().all(|(c, _)| *c > cursor));
            assert!(page.items.is_sorted_by(|a, b| a.0 < b.0));
            seen.extend(page.items.iter().map(|(_, r)| r.commit));
            cursor = page.next;
        }
    };
    // Transactions of other tests in the same PostgreSQL hold the feed back until they end.
    let in_time = tokio::time::timeout(patience::PATIENCE, reading).await;
    assert!(in_time.is_ok(), "the feed stands at {cursor} after {} records", seen.len());
    let distinct: HashSet<_> = seen.iter().collect();
    assert_eq!((seen.len(), distinct.len()), (800, 800));
    assert_eq!(distinct, written.unwrap().iter().collect::<HashSet<_>>());
}

#[tokio::test]
async fn a_foreign_transaction_holds_the_feed_back_and_it_goes_on_afterwards() {
    let db = TestDb::new().await;
    let store = db.store().await;
    let foreign = connect(&db.url).await;
    foreign.batch_execute("BEGIN; SELECT pg_current_xact_id()").await.unwrap();
    must(&store, birth(entity(), None)).await;
    let held = store.feed(Cursor::START, 10).await.unwrap();
    assert!(held.items.is_empty());
    assert_eq!(held.next, Cursor::START);
    foreign.batch_execute("ROLLBACK").await.unwrap();
    patience::until("the feed goes on", async || {
        store.feed(held.next, 10).await.unwrap().items.len() == 1
    })
    .await;
}

#[tokio::test]
async fn retention_moves_the_floor_and_a_cursor_below_it_is_lost() {
    let db = TestDb::new().await;
    let store = db.store().await;
    let old = entity();
    let at = must(&store, birth(old, Some(entity()))).await;
    patience::until("the first record is below the horizon", async || {
        store.feed(Cursor::START, 1).await.unwrap().items.len() == 1
    })
    .await;
    let early = store.feed(Cursor::START, 1).await.unwrap().next;
    must(&store, done(old, &at)).await;
    let kept = entity();
    must(&store, birth(kept, None)).await;
    let now = store.now().await.unwrap();
    let retired = store.retire(now, 10).await.unwrap();
    assert_eq!(retired.entities, 1);
    assert!(store.head(old).await.unwrap().is_none());
    assert!(store.stream(old, 1, 10).await.unwrap().is_empty());
    let lost = store.feed(early, 10).await.err().unwrap();
    let StoreError::FeedLost(Lost::BelowFloor { restart }) = lost else { panic!("{lost:?}") };
    patience::until("what is left comes from the floor", async || {
        let from_floor = store.feed(restart, 10).await.unwrap().items;
        let from_start = store.feed(Cursor::START, 10).await.unwrap().items;
        let is_kept = |items: &[(Cursor, tenure_kernel::stream::Record)]| {
            items.iter().map(|(_, r)| r.entity).eq([kept])
        };
        is_kept(&from_floor) && is_kept(&from_start)
    })
    .await;
    assert_eq!(store.retire(Timestamp::MAX, 10).await.unwrap().entities, 0);
}
