//! Collectors that die: between seeing and telling, and while pods go.

use super::rig::{Rig, state};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tenure_pods::collect::{Area, points};
use tokio::sync::Notify;

/// Stops for ever at a point, the next time it comes by.
struct Trap {
    armed: Arc<AtomicBool>,
    sprung: Arc<Notify>,
}

fn trap(rig: &mut Rig, point: &'static str) -> Trap {
    let trap = Trap { armed: Arc::new(AtomicBool::new(false)), sprung: Arc::new(Notify::new()) };
    let (armed, sprung) = (trap.armed.clone(), trap.sprung.clone());
    rig.probe = Some(Arc::new(move |at| {
        let stop = at == point && armed.swap(false, Ordering::Relaxed);
        let sprung = sprung.clone();
        Box::pin(async move {
            if stop {
                sprung.notify_one();
                std::future::pending::<()>().await;
            }
        })
    }));
    trap
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_anywhere_between_seeing_and_marking_nothing_is_lost_and_order_is_kept() {
    for point in points::ALL {
        let directory = tempfile::tempdir().unwrap();
        let mut rig = Rig::new().in_directory(directory.path());
        let trap = trap(&mut rig, point);
        rig.runs("t-1");
        let collector = rig.synced().await;
        rig.channel.says("t-1", &["RUNNING"]).await;
        rig.server.says("t-1", &["RUNNING"]).await;
        trap.armed.store(true, Ordering::Relaxed);
        rig.runs("t-2");
        rig.cluster.terminate("t-1", 2, "Error", "no");
        trap.sprung.notified().await;
        drop(collector);
        let collector = rig.start_again().await;
        for told in [&rig.channel, &rig.server] {
            told.says("t-1", &["RUNNING", "FAILED:app_error over"]).await;
            told.says("t-2", &["RUNNING"]).await;
            let firsts = told.once("t-1");
            assert_eq!(firsts, ["RUNNING", "FAILED:app_error over"], "killed at {point}");
        }
        state(&collector, "empty", |s| s.spool.depth == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_told_is_not_told_again_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let rig = Rig::new().in_directory(directory.path());
    rig.runs("t-1");
    rig.runs("t-2");
    rig.cluster.succeed("t-2");
    let collector = rig.synced().await;
    rig.server.says("t-2", &["SUCCEEDED over"]).await;
    rig.server.says("t-1", &["RUNNING"]).await;
    state(&collector, "empty", |s| s.spool.depth == 0).await;
    let before = rig.server.all().len();
    assert_eq!(collector.stop().await, 0);
    let collector = rig.start_again().await;
    state(&collector, "synced", |s| s.synced && s.pods == 2 && s.tally.repeats >= 2).await;
    rig.cluster.succeed("t-1");
    rig.server.says("t-1", &["RUNNING", "SUCCEEDED over"]).await;
    assert_eq!(rig.server.all().len(), before + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_goes_while_no_collector_runs_is_missed_after_the_restart() {
    for clean in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let rig = Rig::new().in_directory(directory.path());
        rig.runs("t-1");
        rig.runs("t-2");
        let collector = rig.synced().await;
        rig.server.says("t-1", &["RUNNING"]).await;
        rig.server.says("t-2", &["RUNNING"]).await;
        match clean {
            true => drop(collector.stop().await),
            false => drop(collector),
        }
        rig.cluster.force_delete("t-1");
        let _collector = rig.start_again().await;
        rig.server
            .says("t-1", &["RUNNING", "FAILED:deleted_externally gone external_delete"])
            .await;
        assert_eq!(rig.server.once("t-2"), ["RUNNING"]);
    }
}

/// How long a step of time is given before the next.
const STEP: Duration = Duration::from_millis(100);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_sweeper_held_back_is_told_after_the_restart() {
    for clean in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let mut rig = Rig::new().in_directory(directory.path());
        rig.area = Area::sweeper(Duration::from_secs(60));
        rig.nodes = true;
        rig.runs("t-1");
        rig.runs("t-2");
        rig.cluster.succeed("t-1");
        let collector = rig.synced().await;
        state(&collector, "aware of both", |s| s.pods == 2).await;
        match clean {
            true => drop(collector.stop().await),
            false => drop(collector),
        }
        assert!(rig.server.all().is_empty(), "it was left to the collector of the node");
        let collector = rig.start_again().await;
        state(&collector, "aware of both", |s| s.synced && s.pods == 2).await;
        // It is aware of them by what it had written down; the wait counts from when it sees them, which may be after a step.
        let told = || rig.server.all().len() >= 2;
        for _ in 0..300 {
            rig.later(Duration::from_secs(120));
            if tokio::time::timeout(STEP, rig.server.until("both are told", |_| told()))
                .await
                .is_ok()
            {
                break;
            }
        }
        rig.server.says("t-1", &["SUCCEEDED over"]).await;
        rig.server.says("t-2", &["RUNNING"]).await;
        rig.channel.says("t-1", &["SUCCEEDED over"]).await;
        assert!(rig.channel.of("t-2").is_empty(), "only an end is told to the channel after all");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_could_not_be_told_before_the_end_is_told_after_the_restart() {
    let directory = tempfile::tempdir().unwrap();
    let rig = Rig::new().in_directory(directory.path());
    rig.runs("t-1");
    let collector = rig.synced().await;
    rig.server.says("t-1", &["RUNNING"]).await;
    rig.channel.says("t-1", &["RUNNING"]).await;
    rig.channel.away(true);
    rig.cluster.terminate("t-1", 1, "Error", "no");
    rig.server.says("t-1", &["RUNNING", "FAILED:app_error over"]).await;
    let options = rig.options();
    let left = {
        let stopping = collector.stop();
        assert!(options.drain.as_secs() <= 5);
        stopping.await
    };
    assert_eq!(left, 1);
    rig.cluster.force_delete("t-1");
    rig.channel.away(false);
    let _collector = rig.start_again().await;
    rig.channel.says("t-1", &["RUNNING", "FAILED:app_error over"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_directory_the_list_is_told_again_under_the_same_keys() {
    let rig = Rig::new();
    rig.runs("t-1");
    let collector = rig.synced().await;
    rig.server.says("t-1", &["RUNNING"]).await;
    drop(collector);
    let _collector = rig.start();
    rig.server.until("twice", |t| t.of("t-1").len() == 2).await;
    assert_eq!(rig.server.once("t-1"), ["RUNNING"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_collectors_tell_the_same_under_the_same_keys() {
    let rig = Rig::new();
    let (one, two) = (rig.synced().await, rig.synced().await);
    rig.runs("t-1");
    rig.cluster.evict_pressure("t-1", "memory");
    let ended = |t: &super::rig::Told| t.of("t-1").iter().filter(|s| s.contains("FAILED")).count();
    rig.server.until("told by both", |t| ended(t) == 2).await;
    assert_eq!(rig.server.once("t-1").iter().filter(|s| s.contains("FAILED")).count(), 1);
    drop((one, two));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_has_one_collector() {
    let directory = tempfile::tempdir().unwrap();
    let rig = Rig::new().in_directory(directory.path());
    let _collector = rig.start();
    let second = tenure_pods::collect::Collector::start(rig.options(), rig.parts());
    assert!(second.is_err_and(|e| e.to_string().contains("another collector")));
}

/// The collector of a node dies, the pod ends and is gone before the next one comes. Whoever saw the end says it at once; whoever only misses the
/// pod says that it has seen nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sweeper_is_the_witness_of_what_ended_while_no_collector_ran() {
    let directory = tempfile::tempdir().unwrap();
    let mut rig = Rig::new().in_directory(directory.path());
    rig.area = Area::node("node-1");
    rig.runs("t-1");
    let collector = rig.synced().await;
    rig.server.says("t-1", &["RUNNING"]).await;
    rig.channel.says("t-1", &["RUNNING"]).await;
    let spool = rig.spool.directory.take();
    (rig.area, rig.nodes) = (Area::sweeper(Duration::from_secs(60)), true);
    let sweeper = rig.synced().await;
    state(&sweeper, "aware of it", |s| s.pods == 1).await;
    drop(collector);
    rig.cluster.oom("t-1");
    rig.cluster.force_delete("t-1");
    // Not after the minute for which a sweeper leaves pods to others.
    rig.server.says("t-1", &["RUNNING", "FAILED:oom over"]).await;
    assert_eq!(rig.channel.once("t-1"), ["RUNNING"]);
    (rig.area, rig.nodes, rig.spool.directory) = (Area::node("node-1"), false, spool);
    let _collector = rig.start_again().await;
    rig.server.until("the collector misses it", |t| t.once("t-1").len() == 3).await;
    let last = rig.server.all().pop().unwrap();
    assert!(last.inferred && last.gone && !last.is_proof(), "{last:?}");
    // The channel hears of the end once, when nobody else has told it.
    rig.later(Duration::from_secs(61));
    rig.channel.says("t-1", &["RUNNING", "FAILED:oom over"]).await;
    assert_eq!(rig.server.once("t-1").len(), 3, "the server is not told again");
}
