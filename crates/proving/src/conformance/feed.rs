//! The feed: every record once, in an order without gaps, however many write.

use super::world::{World, commit_on, expect_now};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use tenure_kernel::{
    commit::{Commit, CommitAnswer},
    error::StoreError,
    feed::{Cursor, Lost},
    ids::CommitId,
    stream::{Body, NewEvent, Record},
};

/// Reads from a cursor to the end, and returns the cursor there. A marker says where the end is: the
/// feed of a busy database shows a record only when everything before it is settled.
async fn read(world: &World, mut after: Cursor, page: usize) -> (Cursor, Vec<Record>) {
    let marker = world.specimen_in("made_idle", "marker", "", 0).await;
    let mut records = Vec::new();
    let begun = world.rt.mono();
    loop {
        let waited = world.rt.mono().saturating_sub(begun);
        assert!(waited.as_secs() < 20, "the feed never shows a record that is committed");
        let got = world.store().feed(after, page).await.expect("feed");
        assert!(got.items.len() <= page);
        assert!(got.items.windows(2).all(|w| w[0].0 < w[1].0), "cursors rise");
        match got.items.last() {
            Some((last, _)) => assert_eq!(got.next, *last),
            None => world.rt.sleep(Duration::from_millis(1)).await,
        }
        after = got.next;
        let found = got.items.iter().any(|(_, r)| r.entity == marker);
        records.extend(got.items.into_iter().map(|(_, r)| r));
        if found {
            let at = records.iter().position(|r| r.entity == marker).expect("the marker");
            assert_eq!(at + 1, records.len(), "nothing else is written");
            records.pop();
            return (after, records);
        }
    }
}

/// Eight write while one follows: the follower sees every record once, in each entity's order.
pub async fn a_follower_misses_nothing_that_others_write(world: &World) {
    const WRITERS: usize = 8;
    const EACH: usize = 25;
    let (start, _) = read(world, Cursor::START, 100).await;
    let mut ids = Vec::new();
    for _ in 0..WRITERS {
        ids.push(world.specimen("made_idle").await);
    }
    let running = Arc::new(AtomicUsize::new(WRITERS));
    let seen = world
        .together(WRITERS + 1, |i, store, rt| {
            let (ids, running) = (ids.clone(), running.clone());
            async move {
                if i < WRITERS {
                    for _ in 0..EACH {
                        let head = store.head(ids[i]).await.expect("head").expect("exists");
                        let commit = Commit::new(
                            CommitId::new(rt.random(), rt.random()),
                            ids[i],
                            expect_now(&head),
                            vec![NewEvent::new("noted", Body::Inline(Vec::new()))],
                        );
                        let answer = commit_on(store.as_ref(), &rt, commit).await;
                        assert!(matches!(answer, CommitAnswer::Committed(_)), "{answer:?}");
                    }
                    running.fetch_sub(1, SeqCst);
                    return Vec::new();
                }
                // The follower: never goes back, never looks twice.
                let (mut after, mut seen): (_, Vec<Record>) = (start, Vec::new());
                let begun = rt.mono();
                while seen.len() < WRITERS * (EACH + 1) {
                    let waited = rt.mono().saturating_sub(begun);
                    assert!(waited.as_secs() < 20, "the follower misses records: {}", seen.len());
                    let page = store.feed(after, 7).await.expect("feed");
                    if page.items.is_empty() {
                        rt.sleep(Duration::from_millis(1)).await;
                    }
                    after = page.next;
                    seen.extend(page.items.into_iter().map(|(_, r)| r));
                }
                seen
            }
        })
        .await
        .pop()
        .expect("the follower");
    assert_eq!(running.load(SeqCst), 0);
    let mut versions: BTreeMap<_, Vec<u64>> = BTreeMap::new();
    for record in &seen {
        versions.entry(record.entity).or_default().push(record.first);
    }
    assert_eq!(versions.len(), WRITERS);
    let dense: Vec<u64> = (1..=EACH as u64 + 1).collect();
    assert!(versions.values().all(|v| *v == dense), "{versions:?}");
    let (_, again) = read(world, start, 13).await;
    assert_eq!(again, seen, "a second reader sees the same order");
}

/// A cursor survives its text form, and a feed read in pages is the feed.
pub async fn a_cursor_continues_from_its_text_form(world: &World) {
    let id = world.specimen("made_idle").await;
    let (before, _) = read(world, Cursor::START, 100).await;
    for _ in 0..5 {
        world.commit_ok(world.note(id).await).await;
    }
    let written = world.records(id).await;
    let (end, all) = read(world, before, 2).await;
    assert_eq!(all, written[1..]);
    let page = world.store().feed(before, 2).await.expect("feed");
    assert_eq!(page.items.iter().map(|(_, r)| r).collect::<Vec<_>>(), [&written[1], &written[2]]);
    let text = page.next.to_string();
    let rest = world.store().feed(text.parse().expect("a cursor"), 3).await.expect("feed");
    assert_eq!(rest.items.iter().map(|(_, r)| r.clone()).collect::<Vec<_>>(), written[3..]);
    let nothing = world.store().feed(end, 10).await.expect("feed");
    assert!(nothing.items.is_empty());
    assert_eq!(nothing.next, end);
}

/// A cursor of another store is told so, with the place to start anew.
pub async fn a_cursor_of_another_store_is_lost(world: &World) {
    world.specimen("made_idle").await;
    let (here, _) = read(world, Cursor::START, 100).await;
    assert_ne!(here.incarnation, 0, "a store names itself");
    let foreign = Cursor { incarnation: here.incarnation ^ 1, ..here };
    match world.store().feed(foreign, 10).await {
        Err(StoreError::FeedLost(Lost::OtherIncarnation { restart })) => {
            assert_eq!(restart.incarnation, here.incarnation);
            let (_, all) = read(world, restart, 1_000).await;
            assert!(!all.is_empty(), "it can be continued");
        }
        other => panic!("{other:?}"),
    }
}

/// A cursor from before what retention removed is told so; the new start works.
pub async fn a_cursor_below_the_floor_is_lost_after_retirement(world: &World) {
    let (old, _) = read(world, Cursor::START, 100).await;
    let gone = world.specimen("made_done").await;
    let stays = world.specimen("made_idle").await;
    let (end, _) = read(world, old, 100).await;
    let ended = world.head(gone).await.changed_at;
    world.until_after(ended).await;
    let retired = world.store().retire(world.now().await, 10).await.expect("retire");
    assert_eq!(retired.entities, 1);
    match world.store().feed(old, 10).await {
        Err(StoreError::FeedLost(Lost::BelowFloor { restart })) => {
            assert!(restart > old);
            let (_, rest) = read(world, restart, 10).await;
            assert!(rest.iter().all(|r| r.entity != gone));
        }
        other => panic!("a gap must be told: {other:?}"),
    }
    world.commit_ok(world.note(stays).await).await;
    let (_, news) = read(world, end, 10).await;
    let news = news.iter().filter(|r| r.entity == stays).count();
    assert_eq!(news, 1, "a reader that was up to date goes on");
    // From the start means: from whatever there still is.
    let (_, all) = read(world, Cursor::START, 10).await;
    assert!(all.iter().any(|r| r.entity == stays) && all.iter().all(|r| r.entity != gone));
}
