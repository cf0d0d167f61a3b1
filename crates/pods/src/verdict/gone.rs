//! A pod that is not there any more.
//!
//! `DELETED` in a watch has two meanings: the object is gone, or it no longer fits the selector (bound to a node while we
//! watch the unscheduled, a label taken away). Only the first has a `deletionTimestamp`. A pod that is missing after a new list may be
//! either, and then the object that we saw last can be too old to tell: somebody has to ask for it by name.

use super::{
    judge::Judge,
    latch::latch,
    node::{NodeReady, NodeView},
    policy::Policy,
    table::{id, rule},
    words::{Cause, Verdict},
};
use k8s_openapi::api::core::v1::Pod;
use tenure_kernel::time::Timestamp;

/// How it was noticed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gone {
    /// A `DELETED` event, with this object.
    Event,
    /// It was not in a new list. The object is the last that was seen.
    Absent,
    /// Asked for by name, the API server answered 404, or another UID. The object is the last that was seen.
    Missing,
}

/// What its absence means.
#[derive(Clone, PartialEq, Debug)]
pub enum Departure {
    /// It is over; the verdict is final.
    Ended(Verdict),
    /// It is there, and no longer ours to look at: nothing to say.
    LeftSelector,
    /// Ask for it by name: found, go on with that object; not found, come back with [`Gone::Missing`].
    Ask,
}

/// What to say of a pod that is not there any more. `pod` is what was last seen of it.
pub fn verdict_of_deleted(
    pod: &Pod,
    gone: Gone,
    last: Option<&Verdict>,
    now: Timestamp,
    policy: &Policy,
    node: Option<&NodeView>,
) -> Departure {
    if let Some(last) = last.filter(|l| l.is_final()) {
        let fresh = Judge::new(pod, None, now, policy, node).decide();
        return Departure::Ended(latch(last, fresh));
    }
    let judge = Judge::new(pod, last, now, policy, node);
    let seen = judge.decide();
    // Silence is no longer what there is to go by: the pod is known to be gone. All other ends are proof.
    if seen.is_final() && !is_by_silence(&seen) {
        return Departure::Ended(seen);
    }
    match (gone, judge.look.deletion().is_some()) {
        (Gone::Event, false) => Departure::LeftSelector,
        (Gone::Absent, false) => Departure::Ask,
        _ => Departure::Ended(ended(&judge, node)),
    }
}

fn is_by_silence(verdict: &Verdict) -> bool {
    // Only clocks end a pod that has not ended; their rows are the ones that are waited for.
    verdict.rule.starts_with("silence/")
        || verdict.rule.starts_with("scheduling/")
        || verdict.rule.starts_with("hold/")
        || verdict.rule.starts_with("phase/Unknown")
        || matches!(verdict.cause, Some(Cause::StartTimeout | Cause::ScheduleTimeout))
}

fn ended(judge: &Judge<'_>, node: Option<&NodeView>) -> Verdict {
    let silent = node
        .is_some_and(|n| !n.exists || n.out_of_service || matches!(n.ready, NodeReady::Silent(_)))
        || node.is_none() && judge.look.unready_by_controller().is_some();
    let since = judge.look.deletion().map(|d| d.began);
    let told = judge.told().filter(|v| !(silent && v.cause == Some(Cause::EvictedTaint)));
    let mut verdict = told.unwrap_or_else(|| {
        let (row, mark) = match silent {
            true => (rule(id::NODE_SILENT), ""),
            false => judge.deleted_by(id::DELETED),
        };
        let reason = if mark.is_empty() { judge.look.reason() } else { mark };
        let mut verdict = judge.ended(row, reason, judge.look.message(), since);
        // Nobody knows when it went; whoever misses it next would say another moment.
        verdict.since = since;
        verdict
    });
    verdict.disrupted = true;
    verdict
}
