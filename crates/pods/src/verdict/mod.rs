//! What a pod says about its task: a pure function of the pod, the last verdict for it, and the time.
//!
//! The phase is evidence, not verdict. A pod that was evicted may end `Succeeded`, a pod whose node is gone stays
//! `Running` for ever, and one that can not pull its image is `Pending` and says nothing more. So every verdict names its
//! cause, and the moment at which silence itself changes the answer.
//!
//! `table` has what the words mean, `judge` the order in which they are heard, `latch` what is kept of what was said before,
//! `gone` what it means that a pod is not there any more, `policy` what an operator decides. `look` only reads.

mod evidence;
mod gone;
mod judge;
mod latch;
mod look;
mod node;
mod page;
mod policy;
mod say;
mod table;
mod words;

pub use evidence::evidence;
pub use gone::{Departure, Gone, verdict_of_deleted};
pub use judge::{MESSAGE_MAX, REASON_MAX};
pub(crate) use look::moment;
pub use node::{NodeReady, NodeView};
pub use page::page;
pub use policy::{Override, Policy, SIDECARS, UnderDisruption, WithoutProof};
pub(crate) use say::meaning;
pub use say::say;
pub use table::{Grace, Place, Row, TABLE, TRANSIENT};
pub use words::{Cause, CauseClass, Clock, TaskStatus, Verdict};

use k8s_openapi::api::core::v1::Pod;
use tenure_kernel::time::Timestamp;

/// What this pod says about its task, now. `last` is the last verdict for the same UID, if one was given.
///
/// It has an answer for every object. A final answer stays: of a later one only what was not known is added.
pub fn verdict(pod: &Pod, last: Option<&Verdict>, now: Timestamp, policy: &Policy) -> Verdict {
    verdict_on(pod, last, now, policy, None)
}

/// The same, for those who can also see the pod's node: it is lost when nobody says anything about it.
pub fn verdict_on(
    pod: &Pod,
    last: Option<&Verdict>,
    now: Timestamp,
    policy: &Policy,
    node: Option<&NodeView>,
) -> Verdict {
    match last.filter(|l| l.is_final()) {
        None => judge::Judge::new(pod, last, now, policy, node).decide(),
        // Judged for itself: what was said before is no evidence for what is seen now.
        Some(last) => latch::latch(last, judge::Judge::new(pod, None, now, policy, node).decide()),
    }
}

/// Whether no container of the task runs in this pod any more, and none will: only then may it be replaced without a fence.
/// A sidecar that still runs does not count.
pub fn is_over(pod: &Pod, policy: &Policy) -> bool {
    judge::Judge::new(pod, None, Timestamp::ZERO, policy, None).is_over()
}

/// When a pod that is being deleted should be gone: it has had the time that it asked for.
pub fn deletion_due(pod: &Pod) -> Option<Timestamp> {
    pod.metadata.deletion_timestamp.as_ref().and_then(look::moment)
}

/// Whether a queueing system holds the pod back: nothing is late then.
pub fn is_gated(verdict: &Verdict) -> bool {
    verdict.rule == table::id::GATED
}

/// The name of the container whose end is the task's end.
pub fn main_container(pod: &Pod, policy: &Policy) -> Option<String> {
    look::Look::new(pod, policy).main.map(str::to_owned)
}
