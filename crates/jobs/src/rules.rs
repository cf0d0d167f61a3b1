//! What silence leads to for jobs and what belongs to them: the rows that this crate adds to the rules of the kernel.
//! `tenure rules` prints them. Each names the kernel's rule that fires it, whose tally counts it. A limit owes nobody
//! anything and has no timer: what waits for one of its tokens is a step of a job.

use tenure_kernel::rules::{KindRule, Rule};

const fn row(
    kind: &'static str,
    by: &'static str,
    name: &'static str,
    state: &'static str,
    time: (Option<&'static str>, Option<u64>),
    action: &'static str,
) -> KindRule {
    let (key, default_ms) = time;
    KindRule { kind, by, rule: Rule { name, state, key, default_ms, action } }
}

/// The rows.
pub static JOBS: &[KindRule] = &[
    row(
        "job",
        "holder_check",
        "worker_lost",
        "`running`",
        (Some("worker.lease_seconds"), Some(15_000)),
        "queued again for the next worker, as often as it allows takeovers; then failed, when what it had done is undone",
    ),
    row(
        "job",
        "guard",
        "progress",
        "`running`, nothing committed for longer than all that runs may take",
        (Some("executor.step_timeout"), None),
        "the tenure ends however punctually its worker renews",
    ),
    row(
        "job",
        "timer",
        "start",
        "`waiting` or `parked` before its first step",
        (None, None),
        "its time has come: it is queued, or asks its gate",
    ),
    row(
        "job",
        "timer",
        "step",
        "`waiting`, `parked` or `retrying`: a sleep, a pause before a try, a token of a limit",
        (Some("executor.backoff"), None),
        "queued: a worker goes on with that step",
    ),
    row(
        "job",
        "timer",
        "wait",
        "a wait with a deadline",
        (None, None),
        "the wait ends as expired, and the flow is told",
    ),
    row(
        "job",
        "timer",
        "recheck",
        "`attention` that may clear up by itself, or a cancelled job that finds out or undoes",
        (None, Some(15_000)),
        "a worker looks again, less and less often",
    ),
    row(
        "job",
        "holder_check",
        "undoer_lost",
        "`cancelling` with something to find out or to undo",
        (Some("worker.lease_seconds"), Some(15_000)),
        "`undoing`: the next worker goes on; when takeovers are spent it ends and says what was not undone",
    ),
    row(
        "job",
        "must_end_by",
        "deadline",
        "open",
        (None, None),
        "failed, with every effect that nobody knows about and the number of steps that were not undone",
    ),
    row(
        "call",
        "holder_check",
        "worker_lost",
        "`running` and not named by its worker",
        (Some("worker.lease_seconds"), Some(15_000)),
        "lost: nobody knows whether it happened, and its job settles it by the class",
    ),
    row(
        "call",
        "guard",
        "clock",
        "`running` for longer than its tool may take",
        (None, None),
        "lost, however punctually its worker renews",
    ),
    row(
        "call",
        "must_end_by",
        "deadline",
        "open",
        (None, None),
        "nobody had it: expired, it was not called; else lost",
    ),
    row(
        "gate",
        "timer",
        "check",
        "jobs that have a permit",
        (None, Some(60_000)),
        "each is asked whether it is still there; the permit of one that is over is free",
    ),
    row(
        "gate",
        "timer",
        "idle",
        "nobody has a permit or waits, and nobody set its limit",
        (None, Some(600_000)),
        "`vacant`: it wakes with the next job, or leaves with retention",
    ),
    row(
        "gate",
        "mail_waiting",
        "line",
        "a job asks or is over",
        (None, None),
        "permits that are free go to the next in the line",
    ),
    row(
        "schedule",
        "timer",
        "fire",
        "`active`",
        (None, None),
        "the jobs of the nominal times that have come are created, and the next time is set",
    ),
    row(
        "batch",
        "timer",
        "close",
        "items are collected",
        (None, None),
        "one job is created with all of them",
    ),
    row(
        "batch",
        "timer",
        "idle",
        "nothing is collected",
        (None, Some(600_000)),
        "`vacant`: it wakes with the next submission, or leaves with retention",
    ),
    row(
        "limit",
        "seal",
        "takes",
        "many blocks of tokens were taken",
        (None, None),
        "the segment is sealed; nothing else happens to a limit by itself",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        call::Call,
        gate::{Gate, limits},
        model::Job,
        shared::{batch::Batch, limit::Limit, schedule::Schedule},
    };
    use std::collections::BTreeSet;
    use tenure_kernel::{machine::Machine, rules::KERNEL};
    use tenure_steps::settle::LOOK_AGAIN;

    #[test]
    fn every_row_has_a_kind_a_rule_of_the_kernel_and_a_name_of_its_own() {
        let kinds = [
            Job::TABLE.kind,
            Call::TABLE.kind,
            Gate::TABLE.kind,
            Schedule::TABLE.kind,
            Batch::TABLE.kind,
            Limit::TABLE.kind,
        ];
        let named: BTreeSet<&str> = JOBS.iter().map(|r| r.kind).collect();
        assert_eq!(named, kinds.into_iter().collect());
        let mut seen = BTreeSet::new();
        for row in JOBS {
            assert!(KERNEL.iter().any(|r| r.name == row.by), "{row:?}");
            assert!(seen.insert((row.kind, row.rule.name)), "{row:?} is there twice");
        }
    }

    #[test]
    fn the_times_are_those_of_the_code() {
        let time = |kind: &str, name: &str| {
            let row = JOBS.iter().find(|r| (r.kind, r.rule.name) == (kind, name)).unwrap();
            row.rule.default_ms.map(u128::from)
        };
        assert_eq!(time("job", "recheck"), Some(LOOK_AGAIN.as_millis()));
        assert_eq!(time("gate", "check"), Some(u128::from(limits::CHECK_FIRST_MS)));
        assert_eq!(time("gate", "idle"), Some(limits::IDLE.as_millis()));
        let idle = crate::shared::batch::model::limits::IDLE;
        assert_eq!(time("batch", "idle"), Some(idle.as_millis()));
    }
}
