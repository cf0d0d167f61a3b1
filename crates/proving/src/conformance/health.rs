//! What a store says about how it is agrees with what it has.

use super::world::{LONG, World};
use std::time::Duration;
use tenure_kernel::{
    head::lane_of,
    health::OutboxCount,
    housekeeping::PulseRequest,
    outbox::{Message, Target},
    rules::Tallies,
    stream::Body,
    table::Class,
};

/// Open entities by status, queues, lanes, sessions and the pulse, as the rows have them; and a look changes
/// nothing.
pub async fn health_says_what_the_rows_say(world: &World) {
    let empty = world.store().health().await.expect("health");
    assert_eq!(empty.pulse_at, None, "nobody has left a pulse");
    assert!(empty.outbox.is_empty() && empty.ready.is_empty() && empty.open_is_all);
    let source = world.specimen("made_blocked").await;
    let waiting = [world.specimen("made_queued").await, world.specimen("made_queued").await];
    let mut commit = world.note(source).await;
    let wire =
        Message { to: Target::Wire("w".into()), kind: "k".into(), body: Body::Inline(vec![]) };
    commit.messages = vec![Message::mail(waiting[0], "m", Body::Inline(vec![])), wire];
    world.commit_ok(commit).await;
    let session = world.session(LONG).await;
    let pulse = PulseRequest { gap: LONG, lease: LONG, tallies: Tallies::new() };
    let pulse = world.store().pulse(pulse).await.expect("pulse");

    let health = world.store().health().await.expect("health");
    assert_eq!(health.pulse_at, Some(pulse.now));
    assert!(health.now >= pulse.now && health.open_is_all);
    let mut expected = std::collections::BTreeMap::<(String, String), u64>::new();
    for id in [source, waiting[0], waiting[1], session] {
        let head = world.head(id).await;
        if head.class() == Class::Open {
            *expected
                .entry((head.kind().to_owned(), head.status.name().to_owned()))
                .or_default() += 1;
        }
    }
    let counted: std::collections::BTreeMap<_, _> =
        health.open.iter().map(|o| ((o.kind.clone(), o.status.clone()), o.count)).collect();
    assert_eq!(counted, expected);
    let first = world.head(waiting[0]).await;
    let ready: Vec<_> =
        health.ready.iter().map(|r| (r.queue.as_str(), r.count, r.oldest)).collect();
    assert_eq!(ready, [(first.queue.as_str(), 2, first.ready_at.expect("ready"))]);
    let at = world.head(source).await.changed_at;
    let lane = |wire| OutboxCount { lane: lane_of(source), wire, count: 1, oldest: at };
    assert_eq!(health.outbox, [lane(false), lane(true)]);
    assert_eq!(health.oldest_message(true), Some(&lane(true)));
    assert_eq!(health.sessions.iter().map(|s| s.1).sum::<u64>(), 1);
    assert!(health.now.since(at) < Duration::from_secs(3_600));
    let again = world.store().health().await.expect("health");
    assert_eq!(
        (again.pulse_at, &again.open, &again.outbox),
        (health.pulse_at, &health.open, &health.outbox)
    );
}
