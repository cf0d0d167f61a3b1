//! The other parts of a cluster, as far as a pod feels them: scheduler, kubelets, eviction, taints, garbage
//! collection. They do what the test says, in the words and in the order in which the real ones do it.

use crate::{
    cluster::{Cluster, Shared},
    life::Life,
    object::{Key, Object},
    resource::{EVENTS, NODES, PODS},
    security::PodSecurity,
    status::Refusal,
    store::{DeleteOptions, Store},
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// What a kubelet does when a pod of its node is to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDelete {
    /// It stops the containers at once; they end with this code. Then the pod is gone.
    EndAtOnce {
        /// 143 for a program that does not handle SIGTERM, 0 for one that does.
        exit_code: i32,
    },
    /// It waits for `Cluster::finish_delete`.
    WhenTold,
}

pub(crate) struct Manner {
    pub(crate) on_delete: OnDelete,
    pub(crate) dead_nodes: BTreeSet<String>,
    pub(crate) evictions_blocked: bool,
    /// By namespace.
    pub(crate) security: BTreeMap<String, PodSecurity>,
}

impl Default for Manner {
    fn default() -> Self {
        Manner {
            on_delete: OnDelete::EndAtOnce { exit_code: 143 },
            dead_nodes: BTreeSet::new(),
            evictions_blocked: false,
            security: BTreeMap::new(),
        }
    }
}

impl Store {
    pub(crate) fn live(&mut self, key: &Key, life: &Life) -> Result<Arc<Object>, Refusal> {
        let now = self.clock.now_text();
        self.set_status(&PODS, key, |pod, status| life.write(pod, status, &now))
    }

    pub(crate) fn bind(&mut self, key: &Key, node: &str) -> Result<Arc<Object>, Refusal> {
        let now = self.clock.now_text();
        let pod = self.find(&PODS, key)?;
        if pod.at("/metadata/deletionTimestamp").is_some() {
            let why = format!("pod {} is being deleted, cannot be assigned to a host", key.1);
            return Err(Refusal::conflict(&PODS, &key.1, &why));
        }
        if !pod.text("/spec/nodeName").is_empty() {
            let why = format!(
                "pod {} is already assigned to node {:?}",
                key.1,
                pod.text("/spec/nodeName")
            );
            return Err(Refusal::conflict(&PODS, &key.1, &why));
        }
        self.overwrite(&PODS, key, |pod| {
            pod["spec"]["nodeName"] = json!(node);
            let scheduled = json!({
                "type": "PodScheduled", "status": "True", "lastProbeTime": null,
                "lastTransitionTime": now,
            });
            pod["status"]["conditions"] = json!([scheduled]);
        })
    }

    /// As the eviction endpoint does it: first it says why, then it deletes.
    pub(crate) fn evict(&mut self, key: &Key, options: &DeleteOptions) -> Result<(), Refusal> {
        let pod = self.find(&PODS, key)?;
        let free = matches!(pod.text("/status/phase"), "Succeeded" | "Failed" | "Pending")
            || pod.at("/metadata/deletionTimestamp").is_some();
        if self.manner.evictions_blocked && !free {
            let words = "Cannot evict pod as it would violate the pod's disruption budget.";
            let mut refusal = Refusal::new(429, "TooManyRequests", words);
            refusal.details = Some(json!({"causes": [{
                "reason": "DisruptionBudget",
                "message": "The disruption budget budget needs 1 healthy pods and has 1 currently",
            }]}));
            return Err(refusal);
        }
        self.live(
            key,
            &Life::Disrupted {
                reason: "EvictionByEvictionAPI".to_owned(),
                message: "Eviction API: evicting".to_owned(),
            },
        )?;
        self.delete(&PODS, key, options).map(drop)
    }

    /// The kubelet ends a pod that is to go, and takes it away.
    fn finish(&mut self, key: &Key, exit_code: i32) -> Result<(), Refusal> {
        let pod = self.find(&PODS, key)?;
        if !matches!(pod.text("/status/phase"), "Succeeded" | "Failed") {
            self.live(key, &Life::Stopped { exit_code })?;
        }
        let uid = Some(pod.text("/metadata/uid").to_owned());
        let options = DeleteOptions { grace_seconds: Some(0), uid, ..DeleteOptions::default() };
        self.delete(&PODS, key, &options).map(drop)
    }

    fn pods_on(&self, node: &str) -> Vec<Key> {
        self.all(&PODS).filter(|p| p.text("/spec/nodeName") == node).map(|p| p.key()).collect()
    }

    fn node_condition(&mut self, node: &str, ready: &str, reason: &str, message: &str) {
        let now = self.clock.now_text();
        let key = (String::new(), node.to_owned());
        let done = self.set_status(&NODES, &key, |_, status| {
            for condition in status["conditions"].as_array_mut().into_iter().flatten() {
                if condition["type"] == "Ready" {
                    if condition["status"] != ready {
                        condition["lastTransitionTime"] = json!(now);
                    }
                    condition["status"] = json!(ready);
                    condition["reason"] = json!(reason);
                    condition["message"] = json!(message);
                }
            }
        });
        done.unwrap_or_else(|r| panic!("{}", r.message));
    }

    fn taint(&mut self, node: &str, taints: Value) {
        let key = (String::new(), node.to_owned());
        let done = self.overwrite(&NODES, &key, |node| {
            let has = taints.as_array().is_some_and(|t| !t.is_empty());
            if has {
                node["spec"]["taints"] = taints;
            } else if let Some(spec) = node["spec"].as_object_mut() {
                spec.remove("taints");
            }
        });
        done.unwrap_or_else(|r| panic!("{}", r.message));
    }

    fn add_node(&mut self, name: &str) {
        if self.get(&NODES, &(String::new(), name.to_owned())).is_some() {
            return;
        }
        let now = self.clock.now_text();
        let condition = |kind: &str, status: &str, reason: &str| {
            json!({
                "type": kind, "status": status, "reason": reason, "message": reason,
                "lastHeartbeatTime": now, "lastTransitionTime": now,
            })
        };
        let room =
            json!({"cpu": "8", "memory": "32Gi", "pods": "110", "ephemeral-storage": "100Gi"});
        let node = json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}},
            "spec": {"podCIDR": "10.244.0.0/24"},
            "status": {
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": name}],
                "capacity": room, "allocatable": room,
                "conditions": [
                    condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
                    condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
                    condition("PIDPressure", "False", "KubeletHasSufficientPID"),
                    condition("Ready", "True", "KubeletReady"),
                ],
            },
        });
        self.create(&NODES, "", node).unwrap_or_else(|r| panic!("{}", r.message));
    }
}

impl Shared {
    /// What happens after a delete was taken, if the kubelet is alive and prompt.
    pub(crate) fn kubelet_hears_of_delete(&self, key: &Key) {
        let mut store = self.store();
        let OnDelete::EndAtOnce { exit_code } = store.manner.on_delete else { return };
        let Some(pod) = store.get(&PODS, key) else { return };
        let begun = pod.at("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64);
        if begun.unwrap_or(0) == 0 || store.manner.dead_nodes.contains(pod.text("/spec/nodeName")) {
            return;
        }
        // It was found under the same lock.
        let _ = store.finish(key, exit_code);
        drop(store);
        self.beat();
    }
}

/// What happens to pods. A pod is `name` (namespace `default`) or `namespace/name`. Each returns the
/// resource version of the cluster after it. They panic when there is no such pod: the test is wrong.
impl Cluster {
    /// Something happens to a pod. The others below are this one, with the right words.
    pub fn live(&self, pod: &str, life: &Life) -> u64 {
        self.must(|store| store.live(&key(pod), life).map(drop))
    }

    /// The scheduler gives it a node, which is added if it is not there.
    pub fn bind(&self, pod: &str, node: &str) -> u64 {
        self.must(|store| {
            store.add_node(node);
            store.bind(&key(pod), node).map(drop)
        })
    }

    /// The scheduler finds no node for it.
    pub fn unschedulable(&self, pod: &str, message: &str) -> u64 {
        self.live(pod, &Life::Unschedulable { message: message.to_owned() })
    }

    /// The kubelet has it: `ContainerCreating`.
    pub fn creating(&self, pod: &str) -> u64 {
        self.live(pod, &Life::Creating)
    }

    /// Its first container waits.
    pub fn waiting(&self, pod: &str, reason: &str, message: &str) -> u64 {
        self.waiting_in(pod, "", reason, message)
    }

    /// A container of it waits.
    pub fn waiting_in(&self, pod: &str, container: &str, reason: &str, message: &str) -> u64 {
        let (container, reason) = (container.to_owned(), reason.to_owned());
        self.live(pod, &Life::Waiting { container, reason, message: message.to_owned() })
    }

    /// All its containers run.
    pub fn running(&self, pod: &str) -> u64 {
        self.live(pod, &Life::Running)
    }

    /// Its first container ends; the reason is made from the code if it is empty.
    pub fn terminate(&self, pod: &str, exit_code: i32, reason: &str, message: &str) -> u64 {
        self.terminate_in(pod, "", exit_code, reason, message)
    }

    /// A container of it ends.
    pub fn terminate_in(
        &self,
        pod: &str,
        container: &str,
        exit_code: i32,
        reason: &str,
        message: &str,
    ) -> u64 {
        let (container, reason) = (container.to_owned(), reason.to_owned());
        self.live(
            pod,
            &Life::Terminated { container, exit_code, reason, message: message.to_owned() },
        )
    }

    /// It ends well.
    pub fn succeed(&self, pod: &str) -> u64 {
        self.terminate(pod, 0, "", "")
    }

    /// An init container of it ends.
    pub fn init_ended(&self, pod: &str, container: &str, exit_code: i32) -> u64 {
        let (container, reason) = (container.to_owned(), String::new());
        self.live(pod, &Life::InitEnded { container, exit_code, reason })
    }

    /// Its first container used more memory than it may.
    pub fn oom(&self, pod: &str) -> u64 {
        self.terminate(pod, 137, "OOMKilled", "")
    }

    /// Its first container ended and will be started again.
    pub fn back_off(&self, pod: &str, exit_code: i32) -> u64 {
        let key = key(pod);
        let version = self.live(pod, &Life::BackOff { container: String::new(), exit_code });
        self.must(|store| {
            let pod = store.find(&PODS, &key)?;
            let name = pod.text("/spec/containers/0/name").to_owned();
            store.logs.rotate(&key, &name);
            Ok(())
        });
        version
    }

    /// Its first container is started again.
    pub fn restarted(&self, pod: &str) -> u64 {
        self.live(pod, &Life::Restarted { container: String::new() })
    }

    /// The node runs out of something (`memory`, `ephemeral-storage`, `inodes`, `pids`) and throws it out.
    pub fn evict_pressure(&self, pod: &str, resource: &str) -> u64 {
        let message = format!(
            "The node was low on resource: {resource}. Threshold quantity: 100Mi, available: 50Mi. Container main was using 300Mi, request is 0, has larger consumption of {resource}. "
        );
        self.ended_by_kubelet(pod, "Evicted", &message, true)
    }

    /// It used more local storage than its own limit.
    pub fn evict_own_limit(&self, pod: &str) -> u64 {
        let message =
            "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ";
        self.ended_by_kubelet(pod, "Evicted", message, false)
    }

    /// The node is shut down, in order.
    pub fn node_shutdown(&self, pod: &str) -> u64 {
        let message = "Pod was terminated in response to imminent node shutdown.";
        self.ended_by_kubelet(pod, "Terminated", message, true)
    }

    /// The kubelet makes room for a critical pod.
    pub fn preempted_by_kubelet(&self, pod: &str) -> u64 {
        let message = "Preempted in order to admit critical pod";
        self.ended_by_kubelet(pod, "Preempting", message, true)
    }

    /// Its own deadline has passed.
    pub fn deadline_exceeded(&self, pod: &str) -> u64 {
        let message = "Pod was active on the node longer than the specified deadline";
        self.ended_by_kubelet(pod, "DeadlineExceeded", message, false)
    }

    /// The kubelet ends it, in your words.
    pub fn ended_by_kubelet(
        &self,
        pod: &str,
        reason: &str,
        message: &str,
        disruption: bool,
    ) -> u64 {
        let (reason, message) = (reason.to_owned(), message.to_owned());
        self.live(pod, &Life::EndedByKubelet { reason, message, disruption, exit_code: 137 })
    }

    /// The kubelet does not take it: `OutOfcpu`, `UnexpectedAdmissionError`, `NodeAffinity`, `Evicted`, …
    pub fn rejected(&self, pod: &str, reason: &str, message: &str) -> u64 {
        self.live(pod, &Life::Rejected { reason: reason.to_owned(), message: message.to_owned() })
    }

    /// A merge patch of its status, past every rule.
    pub fn patch_status(&self, pod: &str, patch: Value) -> u64 {
        self.live(pod, &Life::Raw(patch))
    }

    /// A merge patch of the whole pod, past every rule: labels, annotations, finalizers.
    pub fn patch(&self, pod: &str, patch: &Value) -> u64 {
        self.must(|store| {
            store.overwrite(&PODS, &key(pod), |pod| crate::http::merge(pod, patch)).map(drop)
        })
    }

    /// Somebody deletes it with its own grace, as `kubectl delete`.
    pub fn delete(&self, pod: &str) -> u64 {
        self.delete_with(pod, &DeleteOptions::default())
    }

    /// Somebody deletes it without grace.
    pub fn force_delete(&self, pod: &str) -> u64 {
        self.delete_with(pod, &DeleteOptions { grace_seconds: Some(0), ..DeleteOptions::default() })
    }

    fn delete_with(&self, pod: &str, options: &DeleteOptions) -> u64 {
        self.must(|store| store.delete(&PODS, &key(pod), options).map(drop));
        self.shared().kubelet_hears_of_delete(&key(pod));
        self.version()
    }

    /// The kubelet ends a pod that is being deleted: its containers end with this code, then it is gone.
    pub fn finish_delete(&self, pod: &str, exit_code: i32) -> u64 {
        self.must(|store| store.finish(&key(pod), exit_code))
    }

    /// Somebody drains its node: an eviction through the API.
    pub fn api_evict(&self, pod: &str) -> u64 {
        self.must(|store| store.evict(&key(pod), &DeleteOptions::default()));
        self.shared().kubelet_hears_of_delete(&key(pod));
        self.version()
    }

    /// The scheduler takes its place for a more important pod.
    pub fn preempted_by_scheduler(&self, pod: &str) -> u64 {
        let (reason, message) = (
            "PreemptionByScheduler",
            "default-scheduler: preempting to accommodate a higher priority pod",
        );
        self.live(pod, &Life::Disrupted { reason: reason.to_owned(), message: message.to_owned() });
        self.delete(pod)
    }

    /// The taint manager removes it from a node that is not well.
    pub fn taint_evict(&self, pod: &str) -> u64 {
        let (reason, message) =
            ("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint");
        self.live(pod, &Life::Disrupted { reason: reason.to_owned(), message: message.to_owned() });
        self.delete(pod)
    }

    /// A core event about it: `FailedMount`, `Killing`, `Evicted`.
    pub fn event(&self, pod: &str, kind: &str, reason: &str, message: &str) -> u64 {
        self.must(|store| {
            let key = key(pod);
            let pod = store.find(&PODS, &key)?;
            let now = store.clock.now_text();
            let event = json!({
                "metadata": {"generateName": format!("{}.", key.1)},
                "involvedObject": {
                    "kind": "Pod", "apiVersion": "v1", "namespace": key.0, "name": key.1,
                    "uid": pod.text("/metadata/uid"),
                    "resourceVersion": pod.version().to_string(),
                },
                "type": kind, "reason": reason, "message": message, "count": 1,
                "firstTimestamp": now, "lastTimestamp": now,
                "source": {"component": "kubelet", "host": pod.text("/spec/nodeName")},
                "reportingComponent": "kubelet", "reportingInstance": pod.text("/spec/nodeName"),
            });
            store.create(&EVENTS, &key.0, event).map(drop)
        })
    }
}

/// What happens to nodes.
impl Cluster {
    /// A node that is ready.
    pub fn add_node(&self, node: &str) -> u64 {
        self.must(|store| {
            store.add_node(node);
            Ok(())
        })
    }

    /// The node says nothing any more: it is `Unknown`, its pods are not ready, its kubelet does nothing.
    /// That is all that happens where too many nodes are silent, or only one exists.
    pub fn node_silent(&self, node: &str) -> u64 {
        self.must(|store| {
            store.manner.dead_nodes.insert(node.to_owned());
            store.node_condition(
                node,
                "Unknown",
                "NodeStatusUnknown",
                "Kubelet stopped posting node status.",
            );
            let now = store.clock.now_text();
            for key in store.pods_on(node) {
                store.set_status(&PODS, &key, |_, status| {
                    for condition in status["conditions"].as_array_mut().into_iter().flatten() {
                        if condition["type"] == "Ready" && condition["status"] == "True" {
                            condition["status"] = json!("False");
                            condition["reason"] = json!("NodeNotReady");
                            condition["lastTransitionTime"] = json!(now);
                        }
                    }
                })?;
            }
            Ok(())
        })
    }

    /// The node is silent, and the taint manager deletes its pods; nobody is there to end them, so they stay
    /// `Running` with a deletionTimestamp.
    pub fn node_lost(&self, node: &str) -> u64 {
        self.node_silent(node);
        let pods = self.must_get(|store| {
            let now = store.clock.now_text();
            let key = "node.kubernetes.io/unreachable";
            store.taint(
                node,
                json!([
                    {"key": key, "effect": "NoSchedule", "timeAdded": now},
                    {"key": key, "effect": "NoExecute", "timeAdded": now},
                ]),
            );
            Ok(store.pods_on(node))
        });
        for (namespace, name) in pods {
            self.taint_evict(&format!("{namespace}/{name}"));
        }
        self.version()
    }

    /// The node comes back: it is ready, and its kubelet ends what was deleted in the meantime.
    pub fn node_back(&self, node: &str) -> u64 {
        let pods = self.must_get(|store| {
            store.manner.dead_nodes.remove(node);
            store.node_condition(node, "True", "KubeletReady", "kubelet is posting ready status");
            store.taint(node, json!([]));
            Ok(store.pods_on(node))
        });
        for key in pods {
            self.shared().kubelet_hears_of_delete(&key);
        }
        self.version()
    }

    /// Somebody says that the node is off for good: what is being deleted there is gone.
    pub fn node_out_of_service(&self, node: &str) -> u64 {
        self.must(|store| {
            let key = "node.kubernetes.io/out-of-service";
            store
                .taint(node, json!([{"key": key, "value": "nodeshutdown", "effect": "NoExecute"}]));
            for key in store.pods_on(node) {
                let pod = store.find(&PODS, &key)?;
                if pod.at("/metadata/deletionTimestamp").is_some() {
                    store.garbage_collect(&key, None)?;
                }
            }
            Ok(())
        })
    }

    /// The node object is gone, and garbage collection has found its pods.
    pub fn node_gone(&self, node: &str) -> u64 {
        self.must(|store| {
            store.manner.dead_nodes.insert(node.to_owned());
            let key = (String::new(), node.to_owned());
            store.delete(&NODES, &key, &DeleteOptions::default())?;
            for key in store.pods_on(node) {
                store.garbage_collect(&key, Some("PodGC: node no longer exists"))?;
            }
            Ok(())
        })
    }
}

impl Store {
    /// Says that the pod has failed, if nobody else has, and takes it away.
    fn garbage_collect(&mut self, key: &Key, why: Option<&str>) -> Result<(), Refusal> {
        let now = self.clock.now_text();
        self.set_status(&PODS, key, |pod, status| {
            if matches!(status["phase"].as_str(), Some("Succeeded" | "Failed")) {
                return;
            }
            status["phase"] = json!("Failed");
            if let Some(why) = why {
                let reason = "DeletionByPodGC".to_owned();
                Life::Disrupted { reason, message: why.to_owned() }.write(pod, status, &now);
            }
        })?;
        let options = DeleteOptions { grace_seconds: Some(0), ..DeleteOptions::default() };
        self.delete(&PODS, key, &options).map(drop)
    }
}

/// `name` or `namespace/name`.
pub(crate) fn key(pod: &str) -> Key {
    match pod.split_once('/') {
        Some((namespace, name)) => (namespace.to_owned(), name.to_owned()),
        None => ("default".to_owned(), pod.to_owned()),
    }
}
