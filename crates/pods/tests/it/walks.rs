//! Random walks: whatever collectors, executors and people say, in whatever order, twice, or never: no task ends twice, no
//! end changes, no attempt has two pods at once unless its task allows it, and with everybody silent every task is over within
//! a bound that follows from its times.

use crate::world::{Seen, World, secs};
use std::collections::BTreeMap;
use tenure_kernel::{head::Head, ids::EntityId};
use tenure_pods::{
    task::{
        RetryPolicy,
        decide::{RETRY_NOW, RetryNow},
        model::{OnLost, Times},
    },
    verdict::{Cause, CauseClass},
};

struct Walk {
    w: World,
    tasks: Vec<EntityId>,
    /// Pods that executors hold.
    held: Vec<Head>,
    /// Everything a collector ever said, to be said again.
    said: Vec<tenure_pods::report::Report>,
    ended: BTreeMap<EntityId, &'static str>,
}

const CAUSES: [(Cause, CauseClass); 6] = [
    (Cause::AppError, CauseClass::App),
    (Cause::Oom, CauseClass::Oom),
    (Cause::EvictedNodePressure, CauseClass::Infra),
    (Cause::RejectedCapacity, CauseClass::Infra),
    (Cause::NodeLost, CauseClass::Lost),
    (Cause::DeletedExternally, CauseClass::Deleted),
];

impl Walk {
    fn uid(&mut self, task: EntityId) -> (u32, String) {
        let state = self.w.state(task);
        let attempt = match self.w.below(8) {
            0 => state.attempt.saturating_sub(1),
            1 => state.attempt + 1,
            _ => state.attempt,
        };
        let known = state.pod.map(|p| p.uid);
        let stranger = self.w.below(12) == 0;
        let uid = match known {
            Some(uid) if attempt == state.attempt && !stranger => uid,
            _ => format!("{task}-{attempt}-{}", u8::from(stranger)),
        };
        (attempt, uid)
    }

    fn step(&mut self) {
        let Some(task) = self.w.pick(&self.tasks.clone()) else { return };
        match self.w.below(20) {
            0..=2 => {
                let (attempt, uid) = self.uid(task);
                self.say(Seen::running(task, attempt, &uid));
            }
            3 => {
                let (attempt, uid) = self.uid(task);
                self.say(Seen::succeeded(task, attempt, &uid));
            }
            4..=8 => {
                let (attempt, uid) = self.uid(task);
                let (cause, class) = self.w.pick(&CAUSES).expect("some");
                let mut seen = Seen::failed(task, attempt, &uid, cause, class);
                if self.w.below(3) == 0 {
                    seen = seen.alive();
                }
                if self.w.below(4) == 0 {
                    seen.0.verdict.retryable = false;
                }
                if self.w.below(2) == 0 {
                    seen.0.verdict.exit_code = Some(1);
                }
                self.say(seen);
            }
            9..=11 => {
                // Old news.
                if let Some(report) = self.w.pick(&self.said.clone()) {
                    self.w.saw(Seen(report));
                }
            }
            12 if self.w.below(6) == 0 => self.w.cancel(task),
            13 => {
                let now = RetryNow { by: None, fenced: self.w.below(2) == 0 };
                let id = format!("now-{}", self.w.random());
                self.w.mail(task, &id, RETRY_NOW, &now);
                self.w.settle();
            }
            14 | 15 => {
                let state = self.w.state(task);
                let Some(pod) = state.tended else { return };
                if self.w.status(pod) == "wanted" && self.w.pod(pod).begun.is_none() {
                    let uid = format!("{task}-{}-0", state.attempt);
                    let held = self.w.make(pod, &uid);
                    self.held.push(held);
                }
            }
            16 => {
                if self.held.is_empty() {
                    return;
                }
                let at = usize::try_from(self.w.below(self.held.len() as u64)).expect("small");
                let held = self.held.swap_remove(at);
                if self.w.is_final(held.id) || self.w.head(held.id).epoch != held.epoch {
                    return;
                }
                match self.w.below(2) {
                    0 => self.w.lose(held.id),
                    _ => self.w.clear(&held),
                }
            }
            _ => {
                let time = self.w.below(600);
                self.w.pass(secs(time));
            }
        }
        self.watch();
    }

    fn say(&mut self, mut seen: Seen) {
        seen.0.verdict.since = (self.w.below(3) == 0).then_some(self.w.store.now);
        self.said.push(seen.0.clone());
        self.w.saw(seen);
    }

    /// An end never changes.
    fn watch(&mut self) {
        for task in &self.tasks {
            if self.w.is_final(*task) {
                let status = self.w.status(*task);
                let was = self.ended.entry(*task).or_insert(status);
                assert_eq!(*was, status);
            }
        }
    }
}

fn walk(seed: u64) {
    let mut w = World::seeded(seed);
    let tasks = (0..4)
        .map(|n| {
            let mut new = w.new_task();
            if n == 3 {
                new.template = serde_json::Value::Null;
            }
            if n == 2 {
                new.on_lost = OnLost::Replace;
            }
            new.timeout_ms = (n == 1).then_some(1_800_000);
            new.retry = RetryPolicy { app: 2, attempts: 6, ..RetryPolicy::default() };
            new.times = Times { queued_ms: 1_200_000, ..Times::default() };
            new.must_end_in_ms = 12 * 3_600_000;
            w.order(new)
        })
        .collect();
    let mut walk = Walk { w, tasks, held: Vec::new(), said: Vec::new(), ended: BTreeMap::new() };
    for _ in 0..120 {
        walk.step();
    }
    // Executors are gone, collectors are silent.
    for held in std::mem::take(&mut walk.held) {
        if !walk.w.is_final(held.id) && walk.w.head(held.id).epoch == held.epoch {
            walk.w.lose(held.id);
        }
    }
    walk.w.pass(secs(13 * 3_600));
    walk.watch();
    for task in &walk.tasks {
        assert!(walk.w.is_final(*task), "{:?}", walk.w.state(*task));
        let names = walk.w.names(*task);
        let ends = ["task_succeeded", "task_failed", "task_canceled"];
        assert_eq!(names.iter().filter(|n| ends.contains(n)).count(), 1, "{names:?}");
        let state = walk.w.state(*task);
        // One failure per attempt, whoever reports it how often.
        assert!(state.tally.all() <= state.attempt.max(1), "{state:?}");
        let cancelled = names.contains(&"cancel_asked");
        assert!(
            !(cancelled && names.contains(&"task_failed")),
            "a cancel is no failure: {names:?}"
        );
        // A new pod is wanted only when the one before is over, or may run beside it.
        let mut unfenced = false;
        for event in walk.w.events(*task) {
            use tenure_pods::task::TaskEvent as E;
            match event {
                E::AttemptFailed { fenced, .. } => unfenced = !fenced,
                E::AttemptFenced { .. } => unfenced = false,
                E::PodWanted { .. } => assert!(!unfenced, "two pods at once"),
                _ => {}
            }
        }
    }
    walk.w.check();
}

#[test]
fn whatever_is_said_every_task_ends_once() {
    let walks = std::env::var("TENURE_WALKS").ok().and_then(|n| n.parse().ok()).unwrap_or(300);
    for seed in 0..walks {
        let caught = std::panic::catch_unwind(|| walk(seed));
        assert!(caught.is_ok(), "seed {seed}");
    }
}
