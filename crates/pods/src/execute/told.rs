//! What an executor says of a pod it sees: the same report that a collector would send, under the same key.

use super::make::label_of;
use crate::{
    pod::NewPod,
    report::{PodName, Report},
    verdict::{Policy, TaskStatus, Verdict, is_over, main_container},
};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod};
use tenure_kernel::{limits::clip, time::Timestamp};

/// Whether the pod itself is terminal: no container of it runs, and none will.
pub fn is_terminal(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default();
    ["Succeeded", "Failed"].contains(&phase)
}

/// How the main container ended, if it has.
fn main_end<'a>(pod: &'a Pod, policy: &Policy) -> Option<&'a ContainerStateTerminated> {
    let main = main_container(pod, policy)?;
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    let status = statuses.iter().find(|s| s.name == main)?;
    status.state.as_ref()?.terminated.as_ref()
}

/// Which pod.
pub fn name_of(pod: &Pod) -> PodName {
    let text = |t: &Option<String>| t.clone().unwrap_or_default();
    PodName {
        namespace: text(&pod.metadata.namespace),
        name: text(&pod.metadata.name),
        uid: text(&pod.metadata.uid),
        node: pod.spec.as_ref().and_then(|s| s.node_name.clone()),
    }
}

/// The report of a verdict that has a status.
pub fn report_of(
    new: &NewPod,
    pod: &Pod,
    verdict: &Verdict,
    policy: &Policy,
    gone: bool,
    seen_at: Timestamp,
    who: &str,
) -> Report {
    let well = verdict.status == Some(TaskStatus::Succeeded);
    let wrote = main_end(pod, policy).filter(|_| well).and_then(|end| end.message.as_deref());
    let over = gone || is_over(pod, policy);
    // A pod that had ended before it went says how by itself; one that is over and never ended is as good as gone.
    let departed = over && !is_terminal(pod) && main_end(pod, policy).is_none();
    Report {
        task_id: label_of(new),
        workflow_id: new.workflow_id.clone(),
        tenant_id: new.tenant_id.clone(),
        pod: name_of(pod),
        attempt: Some(new.attempt),
        verdict: verdict.clone(),
        over,
        gone: departed,
        inferred: false,
        terminated_reason: verdict.terminated_reason(),
        result: wrote.map(|w| clip(w, crate::task::model::limits::RESULT_BYTES_MAX).to_owned()),
        seen_at,
        collector: who.to_owned(),
    }
}
