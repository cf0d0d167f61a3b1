//! A client for a cluster, and watches as transcripts.

use futures_util::{StreamExt as _, stream::BoxStream};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, Config,
    api::{WatchEvent, WatchParams},
};
use std::time::Duration;
use tenure_kubedouble::{Cluster, PATIENCE};

pub fn client(cluster: &Cluster) -> Client {
    let mut config = Config::new(cluster.url().parse().unwrap());
    config.default_retry = false;
    Client::try_from(config).unwrap()
}

pub fn pods(cluster: &Cluster) -> Api<Pod> {
    Api::default_namespaced(client(cluster))
}

/// A watch whose events are told as short lines.
pub struct Tape(BoxStream<'static, kube::Result<WatchEvent<Pod>>>);

impl Tape {
    /// From now on, for these fields.
    pub async fn fields(cluster: &Cluster, fields: &str) -> Self {
        Self::from(cluster, &WatchParams::default().fields(fields), cluster.version()).await
    }

    /// From now on, for these labels.
    pub async fn labels(cluster: &Cluster, labels: &str) -> Self {
        Self::from(cluster, &WatchParams::default().labels(labels), cluster.version()).await
    }

    pub async fn all(cluster: &Cluster) -> Self {
        Self::from(cluster, &WatchParams::default(), cluster.version()).await
    }

    pub async fn from(cluster: &Cluster, params: &WatchParams, version: u64) -> Self {
        let stream = pods(cluster).watch(params, &version.to_string()).await.unwrap();
        Tape(stream.boxed())
    }

    /// The next event, or how the stream ended.
    pub async fn next(&mut self) -> String {
        match tokio::time::timeout(PATIENCE, self.0.next()).await.expect("an event in time") {
            None => "end".to_owned(),
            Some(Ok(event)) => tell(&event),
            Some(Err(error)) => format!("broken: {error}"),
        }
    }

    pub async fn next_raw(&mut self) -> Option<kube::Result<WatchEvent<Pod>>> {
        tokio::time::timeout(PATIENCE, self.0.next()).await.expect("an event in time")
    }

    pub async fn take(&mut self, count: usize) -> Vec<String> {
        let mut lines = Vec::new();
        for _ in 0..count {
            lines.push(self.next().await);
        }
        lines
    }

    /// The next events are these, and then there is nothing more: an event of a marker pod comes right after.
    pub async fn is(&mut self, lines: &[&str]) {
        assert_eq!(self.take(lines.len()).await, lines);
    }

    /// Whether nothing is there now. Only where no event can be under way.
    pub async fn is_silent_for(&mut self, time: Duration) -> bool {
        tokio::time::timeout(time, self.0.next()).await.is_err()
    }
}

/// `MODIFIED p Running on=node-1 deleting reason=… conditions`
pub fn tell(event: &WatchEvent<Pod>) -> String {
    let (word, pod) = match event {
        WatchEvent::Added(pod) => ("ADDED", pod),
        WatchEvent::Modified(pod) => ("MODIFIED", pod),
        WatchEvent::Deleted(pod) => ("DELETED", pod),
        WatchEvent::Bookmark(mark) => {
            return format!("BOOKMARK {}", mark.metadata.resource_version);
        }
        WatchEvent::Error(status) => {
            return format!("ERROR {} {}", status.code, status.reason);
        }
    };
    let mut line = format!("{word} {}", pod.metadata.name.as_deref().unwrap_or_default());
    let status = pod.status.clone().unwrap_or_default();
    line.push_str(&format!(" {}", status.phase.unwrap_or_default()));
    if let Some(node) = pod.spec.as_ref().and_then(|s| s.node_name.as_ref()) {
        line.push_str(&format!(" on={node}"));
    }
    if pod.metadata.deletion_timestamp.is_some() {
        let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(-1);
        line.push_str(&format!(" deleting={grace}"));
    }
    if let Some(reason) = status.reason {
        line.push_str(&format!(" reason={reason}"));
    }
    for condition in status.conditions.unwrap_or_default() {
        match (condition.type_.as_str(), condition.status.as_str()) {
            ("DisruptionTarget", state) => {
                let reason = condition.reason.unwrap_or_default();
                line.push_str(&format!(" disruption={state}/{reason}"));
            }
            ("Ready", "True") => line.push_str(" ready"),
            _ => {}
        }
    }
    for container in status.container_statuses.unwrap_or_default() {
        let state = container.state.unwrap_or_default();
        if let Some(ended) = state.terminated {
            line.push_str(&format!(" exit={}", ended.exit_code));
        }
        if let Some(waiting) = state.waiting {
            line.push_str(&format!(" waiting={}", waiting.reason.unwrap_or_default()));
        }
    }
    line
}
