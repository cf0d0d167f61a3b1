//! The rules of tasks, their pods and budgets: what happens when nobody says anything. `tenure rules` prints them, and they
//! are counted by these names.

use crate::{budget, pod, task::decide::timers};
use tenure_engine::config::TimerRule;
use tenure_kernel::rules::Rule;

/// The names of the rules.
pub mod names {
    /// A pod was asked for and does not run.
    pub const QUEUED: &str = "task_queued";
    /// An attempt runs too long.
    pub const RUN: &str = "task_run";
    /// The pause before a retry is over, or the budget is asked again.
    pub const RETRY: &str = "task_retry";
    /// A pod that may still run.
    pub const FENCE: &str = "task_fence";
    /// A cancelled task whose pod is not known to be over.
    pub const STOP: &str = "task_stop";
    /// No other pod was made elsewhere.
    pub const NEXT_POD: &str = "task_next_pod";
    /// A pod is missing, and nobody has said how it ended.
    pub const WITNESS: &str = "task_witness";
    /// A budget asks whether its places are used.
    pub const BUDGET: &str = "budget_check";
    /// A pod that was kept is deleted.
    pub const CLEAN: &str = "pod_clean";
}

const fn of(kind: &'static str, timer: &'static str, rule: &'static str) -> TimerRule {
    TimerRule { kind, timer, rule }
}

/// What the timers are counted as.
pub static TIMERS: &[TimerRule] = &[
    of("task", timers::QUEUED, names::QUEUED),
    of("task", timers::RUN, names::RUN),
    of("task", timers::RETRY, names::RETRY),
    of("task", timers::FENCE, names::FENCE),
    of("task", timers::STOP, names::STOP),
    of("task", timers::NEXT_POD, names::NEXT_POD),
    of("task", timers::WITNESS, names::WITNESS),
    of("budget", budget::decide::CHECK, names::BUDGET),
    of("pod", pod::decide::CLEAN, names::CLEAN),
];

/// The rule behind a timer of a task; the timer itself where it is none.
pub fn rule_of(timer: &str) -> &str {
    TIMERS.iter().find(|r| r.kind == "task" && r.timer == timer).map_or(timer, |r| r.rule)
}

/// Whose rule it is.
pub fn kind_of(rule: &str) -> &'static str {
    TIMERS.iter().find(|r| r.rule == rule).map_or("task", |r| r.kind)
}

/// The rows of `tenure rules`.
pub static TABLE: &[Rule] = &[
    Rule {
        name: names::QUEUED,
        state: "QUEUED: a pod was asked for, or exists, and its main container does not run",
        key: Some("pods.queued_seconds"),
        default_ms: Some(2 * 3_600_000),
        action: "the attempt fails (start_timeout), and its pod is stopped",
    },
    Rule {
        name: names::RUN,
        state: "RUNNING for longer than its order allows (timeout_seconds)",
        key: None,
        default_ms: None,
        action: "the attempt fails (timeout), and its pod is stopped",
    },
    Rule {
        name: names::RETRY,
        state: "RETRYING: its pause, or the time after which the budget is asked again",
        key: Some("pods.backoff_seconds"),
        default_ms: Some(10_000),
        action: "ask the tenant's budget; with a place, the next attempt",
    },
    Rule {
        name: names::FENCE,
        state: "RETRYING, and the old pod may still run",
        key: Some("pods.fence_seconds"),
        default_ms: Some(30 * 60_000),
        action: "fail (nobody knows whether it runs), or replace it where the task says that this does no harm",
    },
    Rule {
        name: names::STOP,
        state: "being cancelled, its pod not known to be over",
        key: Some("pods.stop_seconds"),
        default_ms: Some(5 * 60_000),
        action: "end: CANCELED, on record that the pod may still run",
    },
    Rule {
        name: names::NEXT_POD,
        state: "RETRYING, and its pods are made elsewhere",
        key: Some("pods.next_pod_seconds"),
        default_ms: Some(3_600_000),
        action: "fail: no other pod came",
    },
    Rule {
        name: names::WITNESS,
        state: "QUEUED or RUNNING, its pod is missing, and nobody has said how it ended",
        key: Some("pods.witness_seconds"),
        default_ms: Some(30_000),
        action: "the attempt ends as its absence suggests, and that is on record; until then whoever saw the pod end is believed",
    },
    Rule {
        name: names::BUDGET,
        state: "a place in a budget that was given long ago",
        key: None,
        default_ms: Some(300_000),
        action: "ask its task whether it is still used; one that is over gives it back",
    },
    Rule {
        name: names::CLEAN,
        state: "a pod that is over and was kept for a while",
        key: Some("pods.cleanup_delay_seconds"),
        default_ms: Some(0),
        action: "delete it",
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::{RetryPolicy, model::Times};

    #[test]
    fn every_timer_has_a_row_and_the_rows_name_the_defaults() {
        for timer in TIMERS {
            assert!(TABLE.iter().any(|r| r.name == timer.rule), "{}", timer.rule);
        }
        let row = |name| TABLE.iter().find(|r| r.name == name).unwrap().default_ms;
        let times = Times::default();
        assert_eq!(row(names::QUEUED), Some(times.queued_ms));
        assert_eq!(row(names::FENCE), Some(times.fence_ms));
        assert_eq!(row(names::STOP), Some(times.stop_ms));
        assert_eq!(row(names::NEXT_POD), Some(times.next_pod_ms));
        assert_eq!(row(names::WITNESS), Some(times.witness_ms));
        assert_eq!(row(names::RETRY), Some(RetryPolicy::default().backoff_ms));
        assert_eq!(row(names::BUDGET), Some(300_000));
    }
}
