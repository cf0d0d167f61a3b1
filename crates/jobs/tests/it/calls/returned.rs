//! Calls that are given back, and calls that are handed out again.

use super::{Far, LEASE, kept, quick, world};
use serde_json::json;
use tenure_jobs::call::{
    FailKind,
    again::{hand_out_again, take_back},
    desk::{self, Heard},
};
use tenure_steps::Class;

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_given_back_unbegun_is_the_same_call_for_the_next_worker() {
    let world = world(Class::Irreversible, quick()).await;
    let far = Far::open(&world).await;
    let job = world.submit("far", json!(1)).await;
    let call = far.take().await;
    let held = (far.session, call.head.epoch);
    let pipeline = &world.node.pipeline;
    let released = desk::release(pipeline, call.head.id, held, Some("busy".into())).await;
    assert_eq!(released.unwrap(), Heard::Accepted);
    let again = Far::open(&world).await;
    let taken = again.take().await;
    assert_eq!((taken.head.id, taken.state.call), (call.head.id, 1));
    assert!(taken.head.epoch > call.head.epoch);
    // Whoever gave it back has no say any more.
    assert!(matches!(far.complete(&call, json!(0)).await, Heard::Stale { .. }));
    again.complete(&taken, json!(1)).await;
    assert_eq!(world.until(job, "completed").await.output, Some(json!(1)));
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_release_says_nothing_about_the_worker_that_has_the_call_by_then() {
    let world = world(Class::Irreversible, quick()).await;
    let far = Far::open(&world).await;
    let job = world.submit("far", json!(1)).await;
    let call = far.take().await;
    let pipeline = &world.node.pipeline;
    let release = || desk::release(pipeline, call.head.id, (far.session, call.head.epoch), None);
    assert_eq!(release().await.unwrap(), Heard::Accepted);
    let other = Far::open(&world).await;
    let theirs = other.take().await;
    // The answer to the first was lost on its way.
    assert_eq!(release().await.unwrap(), Heard::Accepted, "the same again");
    // Nor can it say anything else about what it gave back, nor anybody about what they never had.
    let stranger = Far::open(&world).await;
    for far in [&far, &stranger] {
        for said in [&call, &theirs] {
            for kind in [FailKind::NotCalled, FailKind::Unknown] {
                assert!(!kept(&far.fail(said, kind).await));
            }
        }
    }
    assert!(!kept(&stranger.complete(&theirs, json!(9)).await));
    world.until_head(theirs.head.id, "lost").await;
    world.until(job, "attention").await;
    for far in [&far, &stranger] {
        assert!(!kept(&far.fail(&call, FailKind::NotCalled).await));
        assert!(!kept(&far.fail(&theirs, FailKind::NotCalled).await));
    }
    let stale = desk::release(pipeline, call.head.id, (other.session, theirs.head.epoch), None);
    assert!(!kept(&stale.await.unwrap()), "a stale release is no evidence");
    assert!(world.store.evidence(job).await.unwrap().is_empty());
    // The one who had it last may say so.
    assert!(kept(&other.fail(&theirs, FailKind::NotCalled).await));
    let again = Far::open(&world).await.take().await;
    assert_ne!(again.state.key, call.state.key);
    world.check().await;
}

/// The server that claimed for an answer notices late that nobody was there for it. By then the worker has the call.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_handed_out_again_is_not_taken_back_for_the_answer_that_got_lost() {
    let world = world(Class::Irreversible, quick()).await;
    let far = Far::open(&world).await;
    let job = world.submit("far", json!(1)).await;
    let lost = far.take().await;
    let tools = ["far".to_owned()];
    let pipeline = &world.node.pipeline;
    let asked = (far.session, LEASE);
    let again = hand_out_again(pipeline, asked, &[], &tools, 8).await.unwrap();
    assert_eq!((again.len(), again[0].head.epoch), (1, lost.head.epoch));
    let (call, held) = (lost.head.id, (far.session, lost.head.epoch));
    let late = take_back(pipeline, call, held, lost.state.handed, "gone").await.unwrap();
    assert!(matches!(late, Heard::Stale { kept: false, .. }), "{late:?}");
    assert_eq!(world.head(call).await.holder, Some(far.session));
    // What it has it gets no second time.
    let has = [(call, lost.head.epoch)];
    assert!(hand_out_again(pipeline, asked, &has, &tools, 8).await.unwrap().is_empty());
    far.complete(&again[0], json!("done")).await;
    assert_eq!(world.until(job, "completed").await.output, Some(json!("done")));
    // The other way round: taken back first, it is not there to be handed out again.
    let job = world.submit("far", json!(2)).await;
    let lost = far.take().await;
    let (call, held) = (lost.head.id, (far.session, lost.head.epoch));
    let back = take_back(pipeline, call, held, lost.state.handed, "gone").await.unwrap();
    assert_eq!(back, Heard::Accepted);
    assert!(hand_out_again(pipeline, asked, &[], &tools, 8).await.unwrap().is_empty());
    let next = far.take().await;
    assert_eq!((next.head.id, next.head.epoch > lost.head.epoch), (call, true));
    far.complete(&next, json!("done")).await;
    world.until(job, "completed").await;
    world.check().await;
}

/// From then on the lease of the claim counts anew: who has just got it has as long as anybody to name it.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_handed_out_again_is_vouched_for_as_if_it_were_just_claimed() {
    let world = world(Class::Irreversible, quick()).await;
    let far = Far::open(&world).await;
    world.submit("far", json!(1)).await;
    let lost = far.take().await;
    let before = world.head(lost.head.id).await.check_at.unwrap();
    let asked = (far.session, LEASE);
    let tools = ["far".to_owned()];
    let again = hand_out_again(&world.node.pipeline, asked, &[], &tools, 8).await.unwrap();
    let after = world.head(lost.head.id).await;
    assert!(after.check_at.unwrap() > before);
    assert_eq!(after.check_at.unwrap(), again[0].head.changed_at + LEASE);
    world.check().await;
}
