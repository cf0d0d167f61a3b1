//! One thing to be told, and to whom.

use super::spool::Mark;
use crate::{follow::LeanPod, report::Report};
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodSpec, PodStatus,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Who has to be told.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum SinkId {
    /// FlowForge's channel. A hint.
    Channel = 0,
    /// The server's API. Durable.
    Server = 1,
}

impl SinkId {
    /// As it is called in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            SinkId::Channel => "channel",
            SinkId::Server => "server",
        }
    }
}

/// One thing to be told.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Saying {
    /// What.
    pub report: Report,
    /// On the channel.
    pub channel: bool,
    /// To the server.
    #[serde(default = "yes", skip_serializing_if = "Clone::clone")]
    pub server: bool,
}

fn yes() -> bool {
    true
}

impl Saying {
    /// The bits of those who have to be told.
    pub(super) fn wants(&self) -> u8 {
        let bit = |sink: SinkId| 1 << (sink as u8);
        let server = if self.server { bit(SinkId::Server) } else { 0 };
        server | if self.channel { bit(SinkId::Channel) } else { 0 }
    }

    /// Nothing follows it, for this pod.
    pub fn is_final(&self) -> bool {
        self.report.over || self.report.verdict.is_final()
    }

    /// The pod as if it were there and nobody had been told of it. It is gone, so it is missed after a restart.
    pub(super) fn unsaid_mark(&self) -> Mark {
        Mark { last: Some(self.report.verdict.clone()), ..mark_of(&self.report) }
    }

    /// What is known of the pod, once this was told.
    pub(super) fn mark_in(&self, marks: &mut BTreeMap<String, Mark>) {
        let report = &self.report;
        let uid = &report.pod.uid;
        if report.gone {
            marks.remove(uid);
            return;
        }
        let mark = marks.entry(uid.clone()).or_insert_with(|| mark_of(report));
        mark.said = report.key();
        mark.over = report.over;
        mark.last = Some(report.verdict.clone());
    }
}

/// As much of a pod as a report tells of it, and nothing said.
fn mark_of(report: &Report) -> Mark {
    let mut pod = Pod::default();
    let text = |t: &str| Some(t.to_owned()).filter(|t| !t.is_empty());
    pod.metadata.name = text(&report.pod.name);
    pod.metadata.namespace = text(&report.pod.namespace);
    pod.spec = Some(PodSpec { node_name: report.pod.node.clone(), ..PodSpec::default() });
    // What it left is nowhere else any more.
    pod.status = report.result.as_ref().map(|left| {
        let end = ContainerStateTerminated { message: Some(left.clone()), ..Default::default() };
        let state = ContainerState { terminated: Some(end), ..Default::default() };
        let name = report.verdict.container.clone().unwrap_or_default();
        let status = ContainerStatus { name, state: Some(state), ..Default::default() };
        PodStatus { container_statuses: Some(vec![status]), ..Default::default() }
    });
    Mark {
        uid: report.pod.uid.clone(),
        task: report.task_id.clone(),
        workflow: report.workflow_id.clone(),
        tenant: report.tenant_id.clone(),
        attempt: report.attempt,
        said: String::new(),
        over: false,
        facts: String::from_utf8(LeanPod(Box::new(pod)).remember("")).unwrap_or_default(),
        last: None,
    }
}
