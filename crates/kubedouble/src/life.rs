//! What a kubelet, a scheduler and the controllers write into a pod's status, moment by moment.
//!
//! Pure: the pod, its status, the time, and what happens. The words are theirs, because verdicts read them.

use crate::object::Object;
use serde_json::{Value, json};

/// Something that happens to a pod and shows in its status.
#[derive(Clone, Debug, PartialEq)]
pub enum Life {
    /// The scheduler finds no node.
    Unschedulable {
        /// Why: `0/3 nodes are available: 3 Insufficient cpu.`
        message: String,
    },
    /// The kubelet has seen the pod and makes its containers.
    Creating,
    /// A container waits.
    Waiting {
        /// Which; the first if empty.
        container: String,
        /// `ImagePullBackOff`, `CreateContainerConfigError`, …
        reason: String,
        /// More words.
        message: String,
    },
    /// An init container ends. With another code than 0 the pod has failed, if it may not restart.
    InitEnded {
        /// Which; the first if empty.
        container: String,
        /// How it ended.
        exit_code: i32,
        /// `Error`, `OOMKilled`; made from the code if empty.
        reason: String,
    },
    /// All containers run, and are ready.
    Running,
    /// Ready, or not any more.
    Ready(bool),
    /// A container ends. When the last has ended, the pod has.
    Terminated {
        /// Which; the first if empty.
        container: String,
        /// How it ended.
        exit_code: i32,
        /// `Error`, `OOMKilled`, `StartError`; made from the code if empty.
        reason: String,
        /// What the container wrote into its termination message.
        message: String,
    },
    /// A container ended, and will be started again (`CrashLoopBackOff`).
    BackOff {
        /// Which; the first if empty.
        container: String,
        /// How it ended.
        exit_code: i32,
    },
    /// A container that ended is started again.
    Restarted {
        /// Which; the first if empty.
        container: String,
    },
    /// The kubelet ends the pod: all containers are stopped, and the pod says why. With `disruption` there is a
    /// condition `DisruptionTarget`/`TerminationByKubelet`.
    EndedByKubelet {
        /// `Evicted`, `Preempting`, `Terminated`, `DeadlineExceeded`.
        reason: String,
        /// More words.
        message: String,
        /// Whether it was not the pod's fault.
        disruption: bool,
        /// How the containers that ran ended.
        exit_code: i32,
    },
    /// The kubelet does not take the pod: the whole status is this.
    Rejected {
        /// `OutOfcpu`, `UnexpectedAdmissionError`, `NodeAffinity`, …
        reason: String,
        /// Without `Pod was rejected: `, which is put before it.
        message: String,
    },
    /// Somebody wants the pod gone, and says so first.
    Disrupted {
        /// `PreemptionByScheduler`, `EvictionByEvictionAPI`, `DeletionByTaintManager`, …
        reason: String,
        /// More words.
        message: String,
    },
    /// All containers that run are stopped, as after a delete.
    Stopped {
        /// How they ended.
        exit_code: i32,
    },
    /// A merge patch of the status, whatever it says.
    Raw(Value),
}

impl Life {
    /// Writes it into the status.
    pub(crate) fn write(&self, pod: &Object, status: &mut Value, now: &str) {
        let page = &mut Page { pod, status, now };
        match self {
            Life::Unschedulable { message } => {
                page.condition("PodScheduled", "False", "Unschedulable", message);
            }
            Life::Creating => page.creating(),
            Life::Waiting { container, reason, message } => {
                page.begin();
                let name = page.pick(container, "containers");
                page.state(&name, json!({"waiting": waiting(reason, message)}));
                page.readiness();
            }
            Life::InitEnded { container, exit_code, reason } => {
                page.begin();
                let name = page.pick(container, "initContainers");
                page.terminate(&name, *exit_code, reason, "");
                page.initialized();
                page.settle();
            }
            Life::Running => page.running(),
            Life::Ready(ready) => page.ready(*ready),
            Life::Terminated { container, exit_code, reason, message } => {
                page.begin();
                let name = page.pick(container, "containers");
                page.terminate(&name, *exit_code, reason, message);
                page.settle();
            }
            Life::BackOff { container, exit_code } => page.back_off(container, *exit_code),
            Life::Restarted { container } => {
                let name = page.pick(container, "containers");
                page.state(&name, json!({"running": {"startedAt": now}}));
                page.readiness();
            }
            Life::EndedByKubelet { reason, message, disruption, exit_code } => {
                page.begin();
                page.stop_all(*exit_code);
                page.status["phase"] = json!("Failed");
                page.status["reason"] = json!(reason);
                page.status["message"] = json!(message);
                if *disruption {
                    page.condition("DisruptionTarget", "True", "TerminationByKubelet", message);
                }
                page.ended_conditions();
            }
            Life::Rejected { reason, message } => {
                let quality = page.status["qosClass"].clone();
                *page.status = json!({
                    "phase": "Failed", "reason": reason,
                    "message": format!("Pod was rejected: {message}"), "startTime": now,
                    "qosClass": quality,
                });
            }
            Life::Disrupted { reason, message } => {
                page.condition("DisruptionTarget", "True", reason, message);
            }
            Life::Stopped { exit_code } => {
                page.begin();
                page.stop_all(*exit_code);
                page.settle();
            }
            Life::Raw(patch) => crate::http::merge(page.status, patch),
        }
    }
}

fn waiting(reason: &str, message: &str) -> Value {
    let mut waiting = json!({"reason": reason});
    if !message.is_empty() {
        waiting["message"] = json!(message);
    }
    waiting
}

struct Page<'a, 'b> {
    pod: &'a Object,
    status: &'b mut Value,
    now: &'a str,
}

impl<'a> Page<'a, '_> {
    fn containers(&self, list: &str) -> &'a [Value] {
        let list = self.pod.at("/spec").and_then(|s| s.get(list)?.as_array());
        list.map_or(&[], Vec::as_slice)
    }

    fn names(&self, list: &str) -> impl Iterator<Item = &'a str> + use<'a> {
        self.containers(list).iter().map(|c| c["name"].as_str().unwrap_or_default())
    }

    /// The container that was named, or the first of its list.
    fn pick(&self, name: &str, list: &str) -> String {
        if name.is_empty() {
            self.names(list).next().unwrap_or_default().to_owned()
        } else {
            name.to_owned()
        }
    }

    /// Init containers that are to run as long as the pod.
    fn sidecars(&self) -> Vec<&'a str> {
        let list = self.containers("initContainers");
        let always = list.iter().filter(|c| c["restartPolicy"] == "Always");
        always.filter_map(|c| c["name"].as_str()).collect()
    }

    fn condition(&mut self, kind: &str, state: &str, reason: &str, message: &str) {
        if !self.status["conditions"].is_array() {
            self.status["conditions"] = json!([]);
        }
        let Some(list) = self.status["conditions"].as_array_mut() else { return };
        let mut new = json!({
            "type": kind, "status": state, "lastProbeTime": null, "lastTransitionTime": self.now,
        });
        if !reason.is_empty() {
            new["reason"] = json!(reason);
        }
        if !message.is_empty() {
            new["message"] = json!(message);
        }
        match list.iter_mut().find(|c| c["type"] == kind) {
            Some(old) => {
                if old["status"] == state {
                    new["lastTransitionTime"] = old["lastTransitionTime"].clone();
                }
                *old = new;
            }
            None => list.push(new),
        }
    }

    /// What is there from the moment when the kubelet has seen the pod.
    fn begin(&mut self) {
        if self.status["containerStatuses"].is_array() {
            return;
        }
        self.creating();
    }

    fn creating(&mut self) {
        let init = self.containers("initContainers");
        self.status["phase"] = json!("Pending");
        self.status["startTime"] = json!(self.now);
        self.status["hostIP"] = json!("10.0.0.1");
        self.status["hostIPs"] = json!([{"ip": "10.0.0.1"}]);
        let reason = if init.is_empty() { "ContainerCreating" } else { "PodInitializing" };
        for (list, statuses) in
            [("initContainers", "initContainerStatuses"), ("containers", "containerStatuses")]
        {
            let made: Vec<Value> = self
                .containers(list)
                .iter()
                .map(|c| {
                    json!({
                        "name": c["name"], "image": c["image"], "imageID": "", "ready": false,
                        "restartCount": 0, "started": false, "lastState": {},
                        "state": {"waiting": {"reason": reason}},
                    })
                })
                .collect();
            if !made.is_empty() {
                self.status[statuses] = json!(made);
            }
        }
        self.condition("PodReadyToStartContainers", "False", "", "");
        self.initialized();
        self.readiness();
        self.condition("PodScheduled", "True", "", "");
    }

    fn status_of(&mut self, name: &str) -> Option<&mut Value> {
        let map = self.status.as_object_mut()?;
        map.iter_mut()
            .filter(|(field, _)| field.ends_with("ontainerStatuses"))
            .filter_map(|(_, list)| list.as_array_mut())
            .flatten()
            .find(|s| s["name"] == name)
    }

    fn state(&mut self, name: &str, state: Value) {
        let uid = self.pod.text("/metadata/uid").replace('-', "");
        let Some(status) = self.status_of(name) else {
            panic!("the pod has no container {name:?} to give a status to");
        };
        let running = state["running"].is_object();
        if running {
            let count = status["restartCount"].as_i64().unwrap_or(0);
            let image = status["image"].as_str().unwrap_or_default();
            status["imageID"] = json!(format!("{image}@sha256:{uid}{uid}"));
            status["containerID"] = json!(format!("containerd://{uid}{count:032x}"));
        }
        status["ready"] = json!(running);
        status["started"] = json!(running);
        status["state"] = state;
    }

    fn terminate(&mut self, name: &str, exit_code: i32, reason: &str, message: &str) {
        let now = self.now.to_owned();
        let Some(status) = self.status_of(name) else {
            panic!("the pod has no container {name:?} that could end");
        };
        let reason = match (reason, exit_code) {
            ("", 0) => "Completed",
            ("", _) => "Error",
            (reason, _) => reason,
        };
        let mut ended = json!({"exitCode": exit_code, "reason": reason, "finishedAt": now});
        ended["startedAt"] = match status["state"]["running"]["startedAt"].clone() {
            Value::Null => json!(now),
            at => at,
        };
        if let Some(id) = status["containerID"].as_str() {
            ended["containerID"] = json!(id);
        }
        if !message.is_empty() {
            ended["message"] = json!(message);
        }
        self.state(name, json!({"terminated": ended}));
    }

    fn running(&mut self) {
        self.begin();
        let now = self.now.to_owned();
        let sidecars = self.sidecars();
        for name in self.names("initContainers") {
            if sidecars.contains(&name) {
                self.state(name, json!({"running": {"startedAt": now}}));
            } else if !self.has_ended(name) {
                self.terminate(name, 0, "", "");
                if let Some(status) = self.status_of(name) {
                    status["ready"] = json!(true);
                }
            }
        }
        for name in self.names("containers") {
            self.state(name, json!({"running": {"startedAt": now}}));
        }
        self.status["phase"] = json!("Running");
        self.status["podIP"] = json!("10.244.0.5");
        self.status["podIPs"] = json!([{"ip": "10.244.0.5"}]);
        self.condition("PodReadyToStartContainers", "True", "", "");
        self.condition("Initialized", "True", "", "");
        self.ready(true);
    }

    fn ready(&mut self, ready: bool) {
        for name in self.names("containers") {
            if let Some(status) = self.status_of(name) {
                let running = status["state"]["running"].is_object();
                status["ready"] = json!(ready && running);
            }
        }
        self.readiness();
    }

    fn has_ended(&mut self, name: &str) -> bool {
        self.status_of(name).is_some_and(|s| s["state"]["terminated"].is_object())
    }

    /// The conditions that follow from the containers.
    fn readiness(&mut self) {
        let mut unready = Vec::new();
        for name in self.names("containers") {
            if self.status_of(name).is_none_or(|s| s["ready"] != true) {
                unready.push(name);
            }
        }
        for kind in ["Ready", "ContainersReady"] {
            if unready.is_empty() {
                self.condition(kind, "True", "", "");
            } else {
                let words = format!("containers with unready status: [{}]", unready.join(" "));
                self.condition(kind, "False", "ContainersNotReady", &words);
            }
        }
    }

    fn initialized(&mut self) {
        let mut open = Vec::new();
        for name in self.names("initContainers") {
            let done = self.status_of(name).is_some_and(|s| {
                s["state"]["terminated"]["exitCode"] == 0 || s["state"]["running"].is_object()
            });
            if !done {
                open.push(name);
            }
        }
        if open.is_empty() {
            self.condition("Initialized", "True", "", "");
        } else {
            let words = format!("containers with incomplete status: [{}]", open.join(" "));
            self.condition("Initialized", "False", "ContainersNotInitialized", &words);
        }
    }

    /// The phase that follows from the containers, and the conditions that follow from the phase.
    fn settle(&mut self) {
        let policy = self.pod.text("/spec/restartPolicy").to_owned();
        let sidecars = self.sidecars();
        let mut codes = Vec::new();
        let mut failed_at_start = false;
        for name in self.names("initContainers") {
            if let Some(code) = self.code_of(name)
                && code != 0
                && !sidecars.contains(&name)
            {
                failed_at_start = true;
            }
        }
        for name in self.names("containers") {
            codes.extend(self.code_of(name));
        }
        let all_ended = codes.len() == self.containers("containers").len();
        let good = codes.iter().all(|c| *c == 0);
        let ended = match policy.as_str() {
            "Never" => failed_at_start || all_ended,
            "OnFailure" => all_ended && good,
            _ => false,
        };
        // A pod that is being deleted is not started again, whatever its policy.
        let leaving = self.pod.at("/metadata/deletionTimestamp").is_some();
        if !(ended || leaving && all_ended) {
            self.readiness();
            return;
        }
        for name in sidecars {
            if !self.has_ended(name) {
                self.terminate(name, 0, "", "");
            }
        }
        let phase = if good && !failed_at_start { "Succeeded" } else { "Failed" };
        self.status["phase"] = json!(phase);
        self.ended_conditions();
    }

    fn code_of(&mut self, name: &str) -> Option<i64> {
        self.status_of(name)?["state"]["terminated"]["exitCode"].as_i64()
    }

    fn ended_conditions(&mut self) {
        let succeeded = self.status["phase"] == "Succeeded";
        let reason = if succeeded { "PodCompleted" } else { "PodFailed" };
        self.condition("PodReadyToStartContainers", "False", "", "");
        if succeeded {
            self.condition("Initialized", "True", reason, "");
        }
        self.condition("Ready", "False", reason, "");
        self.condition("ContainersReady", "False", reason, "");
    }

    /// What runs ends with this code; what never ran could not be found.
    fn stop_all(&mut self, exit_code: i32) {
        for list in ["initContainers", "containers"] {
            for name in self.names(list) {
                let Some(status) = self.status_of(name) else { continue };
                if status["state"]["running"].is_object() {
                    self.terminate(name, exit_code, "", "");
                } else if list == "containers" && !status["state"]["terminated"].is_object() {
                    let words = "The container could not be located when the pod was terminated";
                    self.state(
                        name,
                        json!({"terminated": {
                            "exitCode": 137, "reason": "ContainerStatusUnknown", "message": words,
                            "startedAt": null, "finishedAt": null,
                        }}),
                    );
                }
            }
        }
    }

    fn back_off(&mut self, container: &str, exit_code: i32) {
        self.begin();
        let name = self.pick(container, "containers");
        if self.code_of(&name).is_none() {
            self.terminate(&name, exit_code, "", "");
        }
        let (pod, uid) = (self.pod.key(), self.pod.text("/metadata/uid").to_owned());
        let Some(status) = self.status_of(&name) else { return };
        let count = status["restartCount"].as_i64().unwrap_or(0);
        let seconds = 10 * (1 << count.min(5));
        status["lastState"] = status["state"].clone();
        status["restartCount"] = json!(count + 1);
        let words = format!(
            "back-off {} restarting failed container={name} pod={}_{}({uid})",
            if seconds < 60 {
                format!("{seconds}s")
            } else {
                format!("{}m{}s", seconds / 60, seconds % 60)
            },
            pod.1,
            pod.0,
        );
        self.state(&name, json!({"waiting": waiting("CrashLoopBackOff", &words)}));
        self.status["phase"] = json!("Running");
        self.readiness();
    }
}
