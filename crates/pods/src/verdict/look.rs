//! Reading a pod object: what it says where, without an opinion. Nothing here takes a field for granted: pods are read as they
//! were written by kubelets of all ages, virtual ones, and people with an editor.

use super::policy::Policy;
use crate::report::labels;
use k8s_openapi::{
    api::core::v1::{
        Container, ContainerStateTerminated, ContainerStatus, Pod, PodCondition, PodSpec, PodStatus,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use std::time::Duration;
use tenure_kernel::time::Timestamp;

/// How long a pod has to end where nobody said; Kubernetes' own default.
const GRACE_DEFAULT_SECONDS: i64 = 30;

/// One pod, and which of its containers is the main one.
pub(super) struct Look<'a> {
    pub pod: &'a Pod,
    spec: Option<&'a PodSpec>,
    status: Option<&'a PodStatus>,
    /// The main container's name; a pod without containers has none.
    pub main: Option<&'a str>,
    /// The task's containers, where nothing says which of them is the main one.
    guessed_of: Vec<&'a str>,
}

/// A deletion that was asked for.
#[derive(Clone, Copy)]
pub(super) struct Deletion {
    /// When.
    pub began: Timestamp,
    /// When it should be over.
    pub due: Timestamp,
}

/// Kubernetes' time as ours. Year one, as Go writes an unset time, and 1970, as runtimes do, are no times.
pub(crate) fn moment(time: &Time) -> Option<Timestamp> {
    let micros = time.0.as_microsecond();
    (micros > 0).then(|| Timestamp::from_micros(micros))
}

fn at(time: &Option<Time>) -> Option<Timestamp> {
    time.as_ref().and_then(moment)
}

impl<'a> Look<'a> {
    pub fn new(pod: &'a Pod, policy: &Policy) -> Look<'a> {
        let (spec, status) = (pod.spec.as_ref(), pod.status.as_ref());
        let mut look = Look { pod, spec, status, main: None, guessed_of: Vec::new() };
        look.find_main(policy);
        look
    }

    /// See [`Policy::main`] for the order.
    fn find_main(&mut self, policy: &Policy) {
        let declared: Vec<&'a str> = match self.spec {
            Some(spec) if !spec.containers.is_empty() => {
                spec.containers.iter().map(|c| c.name.as_str()).collect()
            }
            _ => self.statuses().iter().map(|c| c.name.as_str()).collect(),
        };
        let has = |name: &str| declared.iter().copied().find(|n| *n == name);
        let own = declared.iter().filter(|n| !policy.sidecars.iter().any(|s| s == *n));
        let own: Vec<&'a str> = own.copied().collect();
        let named = self.annotation(labels::CONTAINER).and_then(has);
        self.main = named
            .or_else(|| has(&policy.main))
            .or(if let [only] = own[..] { Some(only) } else { None })
            .or_else(|| has(self.annotation("kubectl.kubernetes.io/default-container")?));
        if self.main.is_none() {
            self.guessed_of = if own.is_empty() { declared } else { own };
            self.main = self.guess();
        }
    }

    /// Several containers, and nothing says whose end is the task's. None of them may end it while another still
    /// works, and one that failed is not outvoted by one that did not.
    fn guess(&self) -> Option<&'a str> {
        let of = |name: &str| self.statuses().iter().find(|s| s.name == name);
        let works = |name: &str| match of(name).map(|s| (s, terminated(s))) {
            Some((s, Some(end))) => self.restarts(&s.name, false, end.exit_code),
            _ => true,
        };
        let failed = |name: &str| {
            let end = of(name).and_then(terminated);
            end.is_some_and(|e| e.exit_code != 0 || e.reason.as_deref() == Some("OOMKilled"))
        };
        let over = ["Failed", "Succeeded"].contains(&self.phase());
        let mut names = self.guessed_of.iter().copied();
        (if over { None } else { names.clone().find(|n| works(n)) })
            .or_else(|| names.clone().find(|n| failed(n)))
            .or_else(|| names.next())
    }

    /// Whether the task ever ran.
    pub fn has_run(&self) -> bool {
        self.any_of_main(has_run)
    }

    /// Whether the kubelet has had the task's container in hand, also if it never came to run.
    pub fn was_tried(&self) -> bool {
        self.any_of_main(|s| has_run(s) || s.restart_count > 0)
    }

    fn any_of_main(&self, is_so: impl Fn(&ContainerStatus) -> bool) -> bool {
        let is_main = |name: &str| Some(name) == self.main || self.guessed_of.contains(&name);
        self.statuses().iter().any(|s| is_main(&s.name) && is_so(s))
    }

    /// The end of the main container, if it says anything. Zero is also what a field reads as that nobody wrote: in a pod
    /// that failed, an end without a reason and without a time is no end that anybody saw.
    pub fn main_end(&self) -> Option<&'a ContainerStateTerminated> {
        let end = terminated(self.main_status()?)?;
        let blank = end.exit_code == 0
            && end.reason.as_deref().unwrap_or("").is_empty()
            && started(end).is_none()
            && finished(end).is_none();
        (!blank || self.phase() != "Failed").then_some(end)
    }

    pub fn annotation(&self, key: &str) -> Option<&'a str> {
        self.pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    pub fn phase(&self) -> &'a str {
        self.status.and_then(|s| s.phase.as_deref()).unwrap_or("")
    }

    pub fn reason(&self) -> &'a str {
        self.status.and_then(|s| s.reason.as_deref()).unwrap_or("")
    }

    pub fn message(&self) -> &'a str {
        self.status.and_then(|s| s.message.as_deref()).unwrap_or("")
    }

    fn statuses(&self) -> &'a [ContainerStatus] {
        self.status.and_then(|s| s.container_statuses.as_deref()).unwrap_or(&[])
    }

    /// The main container's status.
    pub fn main_status(&self) -> Option<&'a ContainerStatus> {
        self.statuses().iter().find(|c| Some(c.name.as_str()) == self.main)
    }

    /// Init containers as they are declared (all, native sidecars too), each with its status.
    pub fn init_statuses(&self) -> &'a [ContainerStatus] {
        self.status.and_then(|s| s.init_container_statuses.as_deref()).unwrap_or(&[])
    }

    fn declared(&self, name: &str) -> Option<&'a Container> {
        let spec = self.spec?;
        let init = spec.init_containers.iter().flatten();
        spec.containers.iter().chain(init).find(|c| c.name == name)
    }

    /// An init container that is always restarted and runs beside the main one.
    pub fn is_native_sidecar(&self, name: &str) -> bool {
        let init = self.spec.and_then(|s| s.init_containers.as_deref()).unwrap_or(&[]);
        init.iter().any(|c| c.name == name && c.restart_policy.as_deref() == Some("Always"))
    }

    pub fn condition(&self, kind: &str) -> Option<&'a PodCondition> {
        self.status?.conditions.as_ref()?.iter().find(|c| c.type_ == kind)
    }

    /// A condition, if it is so. A stale `DisruptionTarget` is set back to False after minutes.
    pub fn holds(&self, kind: &str) -> Option<&'a PodCondition> {
        self.condition(kind).filter(|c| c.status == "True")
    }

    pub fn holds_since(&self, kind: &str) -> Option<Timestamp> {
        at(&self.holds(kind)?.last_transition_time)
    }

    /// Whether it has a node. Only kubelets write container statuses and start times, so an object that was cut down to
    /// those had one too.
    pub fn has_node(&self) -> bool {
        if self.spec.and_then(|s| s.node_name.as_deref()).is_some_and(|n| !n.is_empty()) {
            return true;
        }
        match self.condition("PodScheduled").map(|c| c.status.as_str()) {
            Some("True") => true,
            Some(_) => false,
            None => {
                !self.statuses().is_empty()
                    || !self.init_statuses().is_empty()
                    || self.began().is_some()
                    || ["Running", "Unknown"].contains(&self.phase())
            }
        }
    }

    pub fn is_gated(&self) -> bool {
        let gates = self.spec.and_then(|s| s.scheduling_gates.as_ref());
        let said = self.condition("PodScheduled");
        let told = said.filter(|c| c.status == "False").and_then(|c| c.reason.as_deref());
        gates.is_some_and(|g| !g.is_empty()) || told == Some("SchedulingGated")
    }

    pub fn created(&self) -> Option<Timestamp> {
        at(&self.pod.metadata.creation_timestamp)
    }

    pub fn began(&self) -> Option<Timestamp> {
        at(&self.status?.start_time)
    }

    /// When the kubelet's own deadline strikes.
    pub fn active_deadline(&self) -> Option<Timestamp> {
        let seconds = u64::try_from(self.spec?.active_deadline_seconds?).ok()?;
        Some(self.began()? + Duration::from_secs(seconds))
    }

    pub fn deletion(&self) -> Option<Deletion> {
        let meta = &self.pod.metadata;
        let due = meta.deletion_timestamp.as_ref()?;
        // One that can not be read is still a deletion.
        let due = moment(due).unwrap_or(Timestamp::ZERO);
        let grace = meta
            .deletion_grace_period_seconds
            .or_else(|| self.spec.and_then(|s| s.termination_grace_period_seconds))
            .unwrap_or(GRACE_DEFAULT_SECONDS);
        let grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
        Some(Deletion { began: due - grace, due })
    }

    /// A time that the object has for its end, where the end itself has none: the same for whoever looks.
    pub fn some_time(&self) -> Option<Timestamp> {
        let unready = self.condition("Ready").filter(|c| c.status != "True");
        unready
            .and_then(|c| at(&c.last_transition_time))
            .or_else(|| self.deletion().map(|d| d.began))
            .or_else(|| self.began())
            .or_else(|| self.created())
    }

    /// The last moment of which the object tells: what happens to it without a time of its own happened after that.
    pub fn last_time(&self) -> Option<Timestamp> {
        let conditions = self.status.and_then(|s| s.conditions.as_deref()).unwrap_or_default();
        let changed = conditions.iter().filter_map(|c| at(&c.last_transition_time));
        let ran = self.main_status().and_then(running_since);
        changed.chain(ran).chain(self.began()).chain(self.created()).max()
    }

    /// Since when a pod that has a node is being started.
    pub fn start_origin(&self) -> Option<Timestamp> {
        self.holds_since("PodScheduled").or_else(|| self.began()).or_else(|| self.created())
    }

    /// Since when this container could be started.
    pub fn container_origin(&self, status: Option<&ContainerStatus>) -> Option<Timestamp> {
        if let Some(ended) = status.and_then(last_end).and_then(|t| at(&t.finished_at)) {
            return Some(ended);
        }
        let ready = self.holds_since("PodReadyToStartContainers");
        let is_main = status.is_none_or(|s| Some(s.name.as_str()) == self.main);
        let initialized = if is_main { self.holds_since("Initialized") } else { None };
        ready.max(initialized).or_else(|| self.start_origin())
    }

    /// Whether the kubelet starts a container again that ended with this code. A pod without a restart policy is one
    /// that no API server has seen; a task's pod is written with Never.
    pub fn restarts(&self, name: &str, is_init: bool, exit_code: i32) -> bool {
        if self.deletion().is_some() || ["Failed", "Succeeded"].contains(&self.phase()) {
            return false;
        }
        let declared = self.declared(name);
        for rule in declared.iter().flat_map(|c| c.restart_policy_rules.iter().flatten()) {
            let Some(codes) = &rule.exit_codes else { continue };
            let listed = codes.values.iter().flatten().any(|v| *v == exit_code);
            if listed == (codes.operator == "In") && rule.action.starts_with("Restart") {
                return true;
            }
        }
        let own = declared.and_then(|c| c.restart_policy.as_deref());
        match own.or(self.spec.and_then(|s| s.restart_policy.as_deref())).unwrap_or("Never") {
            // An init container that ended well is done, unless it is a sidecar.
            "Always" => !is_init || own.is_some() || exit_code != 0,
            "OnFailure" => exit_code != 0,
            _ => false,
        }
    }

    /// Since when the pod is unready in the way that only the node controller writes: without a reason, while a kubelet
    /// always gives one.
    pub fn unready_by_controller(&self) -> Option<Option<Timestamp>> {
        let ready = self.condition("Ready").filter(|c| c.status != "True")?;
        let reason = ready.reason.as_deref().unwrap_or("");
        ["", "NodeNotReady"].contains(&reason).then(|| at(&ready.last_transition_time))
    }

    /// What is left on a pod whose node died: driven out by the node's taint, and unready ever since.
    pub fn driven_from_dead_node(&self) -> bool {
        let why = self.holds("DisruptionTarget").and_then(|c| c.reason.as_deref());
        why == Some("DeletionByTaintManager")
            && self.condition("Ready").is_none_or(|c| c.status != "True")
    }
}

pub(super) fn terminated(status: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    status.state.as_ref()?.terminated.as_ref()
}

pub(super) fn is_running(status: &ContainerStatus) -> bool {
    status.state.as_ref().is_some_and(|s| s.running.is_some())
}

/// The end before the one that `state` may tell of.
pub(super) fn last_end(status: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    status.last_state.as_ref()?.terminated.as_ref()
}

pub(super) fn running_since(status: &ContainerStatus) -> Option<Timestamp> {
    at(&status.state.as_ref()?.running.as_ref()?.started_at)
}

pub(super) fn started(end: &ContainerStateTerminated) -> Option<Timestamp> {
    at(&end.started_at)
}

pub(super) fn finished(end: &ContainerStateTerminated) -> Option<Timestamp> {
    at(&end.finished_at)
}

/// Whether this container ever ran: it runs, or ended after a start, or was started again. A restart is counted for starts that
/// failed too, so the end before it is asked first; only a container that the kubelet lost sight of has no time and ran.
pub(super) fn has_run(status: &ContainerStatus) -> bool {
    let ran = |end: Option<&ContainerStateTerminated>| end.is_some_and(|t| started(t).is_some());
    let never = last_end(status).is_some_and(|end| {
        started(end).is_none() && end.reason.as_deref() != Some("ContainerStatusUnknown")
    });
    is_running(status)
        || ran(terminated(status))
        || ran(last_end(status))
        || status.restart_count > 0 && !never
}

/// Why it waits, and what is said about it.
pub(super) fn waiting(status: &ContainerStatus) -> Option<(&str, &str)> {
    let state = status.state.as_ref();
    match state.and_then(|s| s.waiting.as_ref()) {
        Some(w) => Some((w.reason.as_deref().unwrap_or(""), w.message.as_deref().unwrap_or(""))),
        // No state at all is, by Kubernetes' own words, waiting.
        None if state.is_none_or(|s| s.running.is_none() && s.terminated.is_none()) => {
            Some(("", ""))
        }
        None => None,
    }
}
