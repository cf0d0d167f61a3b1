//! Time, tasks and nodes.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use std::time::Duration;
use tenure_kernel::runtime::Runtime;
use tenure_sim::executor::{NodeId, Sim, Stuck};

fn counter(sim: &Sim, node: NodeId) -> Arc<AtomicU64> {
    let (count, rt) = (Arc::new(AtomicU64::new(0)), sim.start(node, Duration::ZERO, 1_000_000));
    let (seen, clock) = (count.clone(), rt.clone());
    rt.spawn(Box::pin(async move {
        loop {
            clock.sleep(Duration::from_secs(1)).await;
            seen.fetch_add(1, Ordering::Relaxed);
        }
    }));
    count
}

fn run_for(sim: &Sim, secs: u64) {
    let end = sim.now() + Duration::from_secs(secs);
    sim.after(Duration::from_secs(secs), || {});
    assert_eq!(sim.run_until(|| sim.now() >= end), Ok(()));
}

#[test]
fn a_killed_node_stops_a_paused_one_is_late_and_time_is_free() {
    let sim = Sim::new(1);
    let (a, b) = (sim.node("a"), sim.node("b"));
    let (in_a, in_b) = (counter(&sim, a), counter(&sim, b));
    run_for(&sim, 10);
    sim.kill(a);
    sim.pause(b);
    run_for(&sim, 86_400);
    assert!(in_a.load(Ordering::Relaxed) <= 10 && in_b.load(Ordering::Relaxed) <= 10);
    sim.resume(b);
    run_for(&sim, 5);
    assert!((13..=16).contains(&in_b.load(Ordering::Relaxed)), "{in_b:?}");
    assert!(sim.steps() < 100, "a day of silence costs nothing: {}", sim.steps());
}

#[test]
fn an_earlier_life_can_not_spawn_into_the_next() {
    let sim = Sim::new(1);
    let node = sim.node("a");
    let old = sim.start(node, Duration::ZERO, 1_000_000);
    let _new = sim.start(node, Duration::ZERO, 1_000_000);
    let ran = Arc::new(AtomicU64::new(0));
    let seen = ran.clone();
    old.spawn(Box::pin(async move {
        seen.store(1, Ordering::Relaxed);
    }));
    run_for(&sim, 1);
    assert_eq!(ran.load(Ordering::Relaxed), 0);
}

#[test]
fn a_panic_and_a_deadlock_are_failures() {
    let sim = Sim::new(1);
    let rt = sim.start(sim.node("a"), Duration::ZERO, 1_000_000);
    assert_eq!(sim.run_until(|| false), Err(Stuck::Deadlock));
    rt.spawn(Box::pin(async { panic!("on purpose") }));
    let stuck = sim.run_until(|| false);
    assert!(matches!(stuck, Err(Stuck::Panic { .. })), "{stuck:?}");
}

#[test]
fn a_fast_clock_wakes_early() {
    let sim = Sim::new(1);
    let rt = sim.start(sim.node("a"), Duration::from_secs(100), 2_000_000);
    let clock = rt.clone();
    let woke = Arc::new(AtomicU64::new(0));
    let seen = woke.clone();
    rt.spawn(Box::pin(async move {
        let begin = clock.mono();
        clock.sleep(Duration::from_secs(10)).await;
        assert!(clock.mono() - begin >= Duration::from_secs(10));
        seen.store(1, Ordering::Relaxed);
    }));
    assert_eq!(sim.run_until(|| woke.load(Ordering::Relaxed) == 1), Ok(()));
    assert_eq!(sim.now().as_secs(), 5);
}
