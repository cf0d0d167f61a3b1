//! What is due, and the soft state that says when to look.

use super::world::{LONG, World};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tenure_kernel::{
    head::{Head, lane_of},
    ids::EntityId,
    limits,
    store::{Answer, HeadFilter, HeldBy, Op, Touch},
    time::Timestamp,
    timers::TimerChange,
};

fn all_lanes() -> Vec<u16> {
    (0..limits::LANES).collect()
}

async fn timed(world: &World, after: Duration) -> EntityId {
    let mut birth = world.birth("made_idle");
    birth.timers = vec![TimerChange::set("t", after)];
    let id = birth.entity;
    world.commit_ok(birth).await;
    id
}

async fn due(
    world: &World,
    lanes: Vec<u16>,
    overdue: Duration,
    limit: usize,
) -> (Timestamp, Vec<EntityId>) {
    let (now, heads) = world.store().due(lanes, overdue, limit).await.expect("due");
    (now, heads.iter().map(|h| h.id).collect())
}

fn touch(head: &Head) -> Touch {
    Touch {
        entity: head.id,
        epoch: head.epoch,
        version: head.version,
        due: head.due,
        check_at: None,
        faults: 0,
        ring_only: false,
    }
}

/// Longest due first, whole heads, no more than asked, only the lanes asked for, only what is due.
pub async fn due_gives_the_longest_due_first_within_lanes_and_limit(world: &World) {
    let mut ids = Vec::new();
    for micros in [3_000, 1_000, 2_000, 4_000] {
        ids.push(timed(world, Duration::from_micros(micros)).await);
    }
    let later = timed(world, LONG).await;
    let mut by_due = Vec::new();
    for id in &ids {
        by_due.push((world.head(*id).await.due.expect("a timer is due"), *id));
    }
    by_due.sort();
    world.until_after(by_due[3].0).await;
    let expected: Vec<_> = by_due.iter().map(|(_, id)| *id).collect();
    let (now, got) = due(world, all_lanes(), Duration::ZERO, 100).await;
    assert_eq!(got, expected);
    assert!(now >= by_due[3].0 && !got.contains(&later));
    assert_eq!(due(world, all_lanes(), Duration::ZERO, 2).await.1, expected[..2]);
    let (_, heads) = world.store().due(all_lanes(), Duration::ZERO, 1).await.expect("due");
    assert_eq!(heads[0], world.head(expected[0]).await, "due gives whole heads");
    let mut seen = BTreeSet::new();
    for lane in 0..limits::LANES {
        let (_, part) = due(world, vec![lane], Duration::ZERO, 100).await;
        assert!(part.iter().all(|id| lane_of(*id) == lane));
        seen.extend(part);
    }
    assert_eq!(seen, expected.iter().copied().collect());
    assert!(due(world, vec![], Duration::ZERO, 100).await.1.is_empty());
    assert!(due(world, all_lanes(), LONG, 100).await.1.is_empty(), "nothing is that late");
    let just = now.since(by_due[0].0);
    let (_, late) = due(world, all_lanes(), just, 100).await;
    assert_eq!(late.first(), Some(&expected[0]), "the one that was due that long ago");
}

/// From the other end of a backlog: what came due last first, within the same bounds.
pub async fn what_came_due_last_is_found_from_the_other_end(world: &World) {
    let mut ids = Vec::new();
    for micros in [2_000, 3_000, 1_000] {
        ids.push(timed(world, Duration::from_micros(micros)).await);
    }
    let blocked = world.specimen("made_blocked").await;
    let later = timed(world, LONG).await;
    let mut by_due = Vec::new();
    for id in ids {
        by_due.push((world.head(id).await.due.expect("a timer is due"), id));
    }
    by_due.sort();
    let expected: Vec<_> = by_due.iter().rev().map(|(_, id)| *id).collect();
    let latest = async |lanes: Vec<u16>, by: Timestamp, limit: usize| -> Vec<EntityId> {
        let heads = world.store().latest_due(lanes, by, limit).await.expect("latest");
        heads.iter().map(|h| h.id).collect()
    };
    let by = by_due[2].0;
    assert_eq!(latest(all_lanes(), by, 100).await, expected);
    assert_eq!(latest(all_lanes(), by, 2).await, expected[..2]);
    assert_eq!(latest(all_lanes(), by_due[0].0, 9).await, expected[2..], "a moment counts itself");
    assert!(latest(all_lanes(), by, 0).await.is_empty() && latest(vec![], by, 9).await.is_empty());
    let lane = lane_of(expected[0]);
    assert!(latest(vec![lane], by, 9).await.iter().all(|id| lane_of(*id) == lane));
    let heads = world.store().latest_due(all_lanes(), by, 1).await.expect("latest");
    assert_eq!(heads[0], world.head(expected[0]).await, "whole heads");
    let all = latest(all_lanes(), Timestamp::MAX, 100).await;
    assert!(all.contains(&blocked) && all.contains(&later), "also what rests, and what must end");
}

/// The loop may sleep until the earliest due of its lanes.
pub async fn next_due_is_the_earliest_of_the_lanes(world: &World) {
    let (now, none) = world.store().next_due(all_lanes()).await.expect("next");
    assert!(none.is_none() && now > Timestamp::ZERO, "nothing is due in an empty store");
    let far = timed(world, LONG).await;
    let near = timed(world, Duration::from_secs(100)).await;
    let due_of = |id| async move { world.head(id).await.due };
    assert_eq!(world.store().next_due(all_lanes()).await.expect("next").1, due_of(near).await);
    let other: Vec<u16> = all_lanes().into_iter().filter(|l| *l != lane_of(near)).collect();
    let expected = if lane_of(far) == lane_of(near) { None } else { due_of(far).await };
    assert_eq!(world.store().next_due(other).await.expect("next").1, expected);
    world.end(near).await;
    assert_eq!(world.store().next_due(all_lanes()).await.expect("next").1, due_of(far).await);
    world.end(far).await;
    assert_eq!(world.store().next_due(all_lanes()).await.expect("next").1, None);
}

/// A touch moves soft state of the head it saw, and no version; one that saw another head does nothing.
pub async fn a_touch_counts_only_for_the_head_it_saw(world: &World) {
    let id = timed(world, Duration::from_millis(1)).await;
    let seen = world.head(id).await;
    let later = seen.changed_at + LONG;
    let moved = Touch { due: Some(later), faults: 3, ..touch(&seen) };
    assert_eq!(world.one(Op::Touch(moved.clone())).await, Answer::Touch(true));
    let head = world.head(id).await;
    assert_eq!((head.due, head.faults, head.version), (Some(later), 3, seen.version));
    assert_eq!(head.chain, seen.chain);
    world.verify(id).await;
    world.commit_ok(world.note(id).await).await;
    let after = world.head(id).await;
    assert_eq!(after.faults, 0, "a commit that succeeds ends the row of faults");
    assert_eq!(world.one(Op::Touch(moved.clone())).await, Answer::Touch(false));
    let ghost = Touch { entity: world.id(), ..moved };
    assert_eq!(world.one(Op::Touch(ghost)).await, Answer::Touch(false));
    let ring = Touch { ring_only: true, ..touch(&after) };
    assert_eq!(world.one(Op::Touch(ring)).await, Answer::Touch(false), "nobody holds it");
    assert_eq!(world.head(id).await, after);
    world.end(id).await;
    let ended = world.head(id).await;
    assert_eq!(world.one(Op::Touch(touch(&ended))).await, Answer::Touch(false));
    assert_eq!(world.head(id).await, ended);
}

/// No touch moves `due` past the deadline, or past mail that waits without a holder.
pub async fn no_touch_postpones_the_deadline_or_unread_mail(world: &World) {
    let open = world.specimen("made_blocked").await;
    let seen = world.head(open).await;
    let end = seen.must_end_by.expect("open means due");
    for due in [None, Some(end + LONG)] {
        assert_eq!(world.one(Op::Touch(Touch { due, ..touch(&seen) })).await, Answer::Touch(true));
        assert_eq!(world.head(open).await.due, Some(end));
    }
    // Mail came after the loop looked: its touch must not put the entity to sleep.
    let seen = world.head(open).await;
    world.send(world.mail(open, "m")).await;
    let sleep = Touch { due: Some(end), ..touch(&seen) };
    assert_eq!(world.one(Op::Touch(sleep.clone())).await, Answer::Touch(true));
    let now = world.now().await;
    assert!(world.head(open).await.due.is_some_and(|due| due <= now));
    // A decision that failed is tried again later, mail or not.
    let backoff = Touch { due: Some(now + Duration::from_secs(9)), faults: 1, ..sleep };
    assert_eq!(world.one(Op::Touch(backoff)).await, Answer::Touch(true));
    assert_eq!(world.head(open).await.due, Some(now + Duration::from_secs(9)));
    assert_eq!(world.head(open).await.must_end_by, Some(end));
}

/// `due` moves earlier at once and later only when it has fired.
pub async fn due_is_a_lower_bound_that_moves_earlier_at_once(world: &World) {
    let id = timed(world, Duration::from_secs(100)).await;
    let first = world.head(id).await.due;
    let set = |after| async move {
        let mut commit = world.note(id).await;
        commit.timers = vec![TimerChange::set("t", after)];
        world.commit_ok(commit).await;
        world.head(id).await
    };
    let later = set(Duration::from_secs(500)).await;
    assert_eq!(later.due, first, "later only when it fires");
    let earlier = set(Duration::from_millis(1)).await;
    assert_eq!(earlier.due, earlier.timers.earliest(), "earlier at once");
    world.until_after(earlier.due.expect("due")).await;
    let fired = set(Duration::from_secs(500)).await;
    assert_eq!(fired.due, fired.timers.earliest(), "fired: it moves on");
}

/// Filters narrow a listing, pages continue after an id, and every head is listed once.
pub async fn heads_are_listed_by_filter_and_page(world: &World) {
    let mut mine = BTreeSet::new();
    for i in 0..7 {
        let event = if i % 2 == 0 { "made_idle" } else { "made_queued" };
        mine.insert(world.specimen_in(event, "lister", "q", 0).await);
    }
    let mut marked = world.birth_in("made_idle", "lister", "q", 0);
    marked.attention = Some(Some("look".into()));
    mine.insert(marked.entity);
    world.commit_ok(marked.clone()).await;
    let filter = HeadFilter { tenant: Some("lister".into()), ..HeadFilter::default() };
    let mut seen = Vec::new();
    loop {
        let after = seen.last().copied();
        let page =
            world.store().heads(HeadFilter { after, ..filter.clone() }, 3).await.expect("heads");
        assert!(page.len() <= 3);
        if page.is_empty() {
            break;
        }
        seen.extend(page.iter().map(|h| h.id));
    }
    assert_eq!(seen, mine.iter().copied().collect::<Vec<_>>(), "in id order, each once");
    let count = |filter: HeadFilter| async move {
        world.store().heads(filter, 100).await.expect("heads").len()
    };
    let status = HeadFilter { status: Some("queued".into()), ..filter.clone() };
    assert_eq!(count(status).await, 3);
    let kind = HeadFilter { kind: Some("specimen".into()), ..filter.clone() };
    assert_eq!(count(kind).await, 8);
    assert_eq!(count(HeadFilter { kind: Some("worker".into()), ..filter.clone() }).await, 0);
    let attention =
        world.store().heads(HeadFilter { attention: true, ..filter }, 9).await.expect("heads");
    assert_eq!(attention, [world.head(marked.entity).await]);
    let lanes = HeadFilter { kind: Some("lane".into()), ..HeadFilter::default() };
    assert_eq!(count(lanes).await, usize::from(limits::LANES));
}

/// Newest first, pages go backwards; several statuses of all classes come together in one order.
pub async fn heads_are_listed_newest_first_and_by_several_statuses(world: &World) {
    let mut mine = BTreeMap::new();
    for i in 0..12 {
        let made = ["made_idle", "made_queued", "made_blocked", "made_queued"][i % 4];
        let id = world.specimen_in(made, "pager", "q", 0).await;
        if i % 4 == 3 {
            world.end(id).await;
        }
        mine.insert(id, world.head(id).await.status.name());
    }
    let all: BTreeSet<_> = mine.values().copied().collect();
    let mut wishes = vec![all.iter().copied().collect::<Vec<_>>()];
    wishes.extend(all.iter().map(|s| vec![*s]));
    wishes.push(all.iter().copied().skip(1).collect());
    wishes.push(vec!["no_such_status", all.first().copied().expect("some")]);
    listed_as_wished(world, &mine, &[Vec::new()]).await;
    listed_as_wished(world, &mine, &wishes).await;
    let mine_only = HeadFilter { tenant: Some("pager".into()), ..HeadFilter::default() };
    let between: Vec<_> = mine.keys().copied().collect();
    let filter = HeadFilter { after: Some(between[2]), before: Some(between[6]), ..mine_only };
    assert_eq!(pages(world, filter.clone()).await, between[3..6]);
    let backwards = pages(world, HeadFilter { newest_first: true, ..filter }).await;
    assert_eq!(backwards, between[3..6].iter().rev().copied().collect::<Vec<_>>());
    // So many of another status that nobody looks through all of them.
    for _ in 0..10 {
        let birth = |_| Op::Commit(Box::new(world.birth_in("made_named", "pager", "q", 0)));
        world.store().apply((0..250).map(birth).collect()).await.expect("births");
    }
    listed_as_wished(world, &mine, &wishes).await;
}

/// What a session holds and is due by a moment, and nothing of others, of nobody, or due later.
pub async fn what_a_session_holds_is_listed_by_when_it_is_due(world: &World) {
    let (session, other) = (world.session(LONG).await, world.session(LONG).await);
    let (soon, later) = (Duration::from_secs(10), Duration::from_secs(300));
    let mut mine = Vec::new();
    for lease in [soon, later, soon, later, soon] {
        let id = world.specimen_in("made_queued", "holder", "q", 0).await;
        mine.push((id, world.claim(id, session, lease).await));
        let theirs = world.specimen_in("made_queued", "holder", "q", 0).await;
        world.claim(theirs, other, lease).await;
        world.specimen_in("made_queued", "holder", "q", 0).await;
    }
    let now = world.now().await;
    let held_by = |session, ahead| HeadFilter {
        held: Some(HeldBy { session, due_by: now + ahead }),
        ..HeadFilter::default()
    };
    let held = |ahead| held_by(session, ahead);
    let all: BTreeSet<_> = mine.iter().map(|(id, _)| *id).collect();
    let near: BTreeSet<_> = mine.iter().step_by(2).map(|(id, _)| *id).collect();
    let in_order = |ids: &BTreeSet<EntityId>| ids.iter().copied().collect::<Vec<_>>();
    assert_eq!(pages(world, held(soon)).await, in_order(&near));
    assert_eq!(pages(world, held(later)).await, in_order(&all));
    assert_eq!(pages(world, held(Duration::ZERO)).await, []);
    assert_eq!(pages(world, held_by(other, soon)).await.len(), 3);
    let newest = HeadFilter { newest_first: true, ..held(later) };
    let backwards: Vec<_> = all.iter().rev().copied().collect();
    assert_eq!(pages(world, newest).await, backwards);
    let whole = world.store().heads(held(later), 1).await.expect("heads");
    assert_eq!(whole, [world.head(in_order(&all)[0]).await]);
    // The other filters narrow it as any listing.
    let status = Some(whole[0].status.name().to_owned());
    let narrowed = |filter: HeadFilter| async move { pages(world, filter).await.len() };
    assert_eq!(narrowed(HeadFilter { status, ..held(later) }).await, 5);
    assert_eq!(narrowed(HeadFilter { status: Some("queued".into()), ..held(later) }).await, 0);
    assert_eq!(narrowed(HeadFilter { kind: Some("specimen".into()), ..held(later) }).await, 5);
    assert_eq!(narrowed(HeadFilter { kind: Some("worker".into()), ..held(later) }).await, 0);
    assert_eq!(narrowed(HeadFilter { tenant: Some("holder".into()), ..held(later) }).await, 5);
    assert_eq!(narrowed(HeadFilter { tenant: Some("nobody".into()), ..held(later) }).await, 0);
    assert_eq!(narrowed(HeadFilter { attention: true, ..held(later) }).await, 0);
    world.end(mine[0].0).await;
    assert_eq!(narrowed(held(later)).await, 4, "what has ended is held by nobody");
}

async fn listed_as_wished(world: &World, mine: &BTreeMap<EntityId, &str>, wishes: &[Vec<&str>]) {
    let tenant = || HeadFilter { tenant: Some("pager".into()), ..HeadFilter::default() };
    let kind = || HeadFilter { kind: Some("specimen".into()), ..tenant() };
    for wish in wishes {
        let statuses: Vec<String> = wish.iter().map(|s| (*s).to_owned()).collect();
        let wanted = |s: &str| wish.is_empty() || wish.contains(&s);
        let mut expected: Vec<_> =
            mine.iter().filter(|(_, s)| wanted(s)).map(|(id, _)| *id).collect();
        for newest_first in [false, true] {
            for filter in [tenant(), kind()] {
                let filter = HeadFilter { newest_first, statuses: statuses.clone(), ..filter };
                assert_eq!(pages(world, filter).await, expected, "{wish:?}");
            }
            expected.reverse();
        }
    }
}

/// All ids of a listing, in pages of two.
async fn pages(world: &World, mut filter: HeadFilter) -> Vec<EntityId> {
    let mut seen = Vec::new();
    loop {
        let page = world.store().heads(filter.clone(), 2).await.expect("heads");
        assert!(page.len() <= 2);
        let Some(last) = page.last() else { return seen };
        match filter.newest_first {
            true => filter.before = Some(last.id),
            false => filter.after = Some(last.id),
        }
        seen.extend(page.iter().map(|h| h.id));
    }
}
