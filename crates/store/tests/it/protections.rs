//! A protection that nothing misses is not one: with each switched off, the case that proves it fails.

use std::sync::Arc;
use tenure_edge::{SystemClock, TokioRuntime};
use tenure_kernel::{judge::Protections, store::Store};
use tenure_proving::conformance::{CASES, World, judge};
use tenure_store::memory::{Calm, MemoryStore};

/// Runs one case on a store whose judge lacks something. Whether it passed.
async fn passes(case: &'static str, change: fn(&mut Protections)) -> bool {
    let (_, run) = CASES.iter().find(|(name, _)| *name == case).expect("a case of that name");
    let mut judge = judge();
    change(&mut judge.protections);
    let store = MemoryStore::new(judge, Arc::new(SystemClock), 7);
    let handles = (0..4).map(|_| Arc::new(store.handle(Arc::new(Calm))) as Arc<dyn Store>);
    let world = World::new(handles.collect(), Arc::new(TokioRuntime::current()), ()).await;
    let task = tokio::runtime::Handle::current().spawn(async move { run(&world).await });
    task.await.is_ok()
}

macro_rules! missed {
    ($($test:ident: $field:ident by $case:literal;)*) => {
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                assert!(passes($case, |_| ()).await, "with everything on it passes");
                assert!(!passes($case, |p| p.$field = false).await, "nothing misses it");
            }
        )*
    };
}

missed! {
    fencing_is_missed: fencing by "a_paused_writer_is_refused_in_every_way_after_a_takeover";
    versions_are_missed: versions by "a_version_gap_or_overlap_is_refused";
    the_mail_check_is_missed: mail by "mail_between_the_last_look_and_the_park_refuses_the_park";
    the_claim_check_is_missed: blocked by "blocked_resting_final_and_held_are_never_claimed";
    finality_is_missed: finality by "a_final_entity_never_changes";
    the_lane_check_is_missed: outbox by "a_delivery_under_a_lost_lane_is_refused";
    repetition_is_missed: repetition by "a_repeated_commit_id_gets_the_first_answer";
    the_look_before_what_is_vacant_leaves_is_missed:
        vacancy by "what_is_vacant_stays_while_something_is_open";
}
