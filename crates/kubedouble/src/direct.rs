//! The same answers without HTTP, port, thread or clock of the machine: for worlds that bring a time of their own.
//!
//! What is asked here is what a request would ask, under the same checks; how long that takes, and what gets lost on
//! the way, is the business of whoever asks.

use crate::{
    cluster::Cluster,
    http::{merge, typed},
    kubelet::key,
    resource::{NODES, PODS, Resource},
    select::Selector,
    status::Refusal,
    store::{DeleteOptions, Half},
};
use bytes::Bytes;
use serde_json::Value;

/// What can be asked for directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Pods.
    Pods,
    /// Nodes.
    Nodes,
}

impl Kind {
    fn resource(self) -> &'static Resource {
        match self {
            Kind::Pods => &PODS,
            Kind::Nodes => &NODES,
        }
    }

    fn selector(self, labels: &str) -> Result<Selector, Refusal> {
        Selector::parse(self.resource(), labels, "")
    }
}

impl Cluster {
    /// Creates a pod as a request does. The hook of [`Cluster::on_create`] is not called.
    pub fn ask_create(&self, pod: Value) -> Result<Value, Refusal> {
        let namespace = pod["metadata"]["namespace"].as_str().unwrap_or("default").to_owned();
        let pod = typed(&PODS, pod)?;
        self.shared().write(|store| store.create(&PODS, &namespace, pod)).map(|made| made.value())
    }

    /// A merge patch of a pod as a request does it: a uid that is another one is refused.
    pub fn ask_patch(&self, pod: &str, patch: &Value) -> Result<Value, Refusal> {
        let patched = self.shared().write(|store| {
            store.update(&PODS, &key(pod), Half::Main, |value| {
                merge(value, patch);
                *value = typed(&PODS, std::mem::take(value))?;
                Ok(())
            })
        });
        patched.map(|pod| pod.value())
    }

    /// Deletes a pod, of this uid only where one is named, with its own grace or another. What the kubelet does then is for
    /// [`Cluster::on_delete`] to say.
    pub fn ask_delete(
        &self,
        pod: &str,
        uid: Option<&str>,
        grace_seconds: Option<i64>,
    ) -> Result<(), Refusal> {
        let uid = uid.map(str::to_owned);
        let options = DeleteOptions { grace_seconds, uid, ..DeleteOptions::default() };
        self.shared().write(|store| store.delete(&PODS, &key(pod), &options))?;
        self.shared().kubelet_hears_of_delete(&key(pod));
        Ok(())
    }

    /// Objects with these labels, and the version of that answer.
    pub fn ask_list(&self, kind: Kind, labels: &str) -> Result<(Vec<Value>, u64), Refusal> {
        let selector = kind.selector(labels)?;
        let store = self.shared().store();
        let all = store.all(kind.resource()).filter(|o| selector.matches(o));
        Ok((all.map(|o| o.value()).collect(), store.version()))
    }

    /// The lines that a watch from a version says by now, each with its version; refused with 410 where some are forgotten.
    pub fn ask_changes(
        &self,
        kind: Kind,
        labels: &str,
        since: u64,
    ) -> Result<Vec<(u64, Bytes)>, Refusal> {
        let selector = kind.selector(labels)?;
        let store = self.shared().store();
        let Some(changes) = store.since(since) else {
            return Err(Refusal::too_old(since, store.expired));
        };
        let mine = changes.filter(|c| c.resource == kind.resource());
        Ok(mine.filter_map(|c| Some((c.version, c.line(&selector)?))).collect())
    }
}
