//! The yard: a cluster in simulated time, and what is really true of it.
//!
//! Objects, versions and words are those of the double (`kubedouble`), asked without HTTP. What the double does not know is here:
//! containers. One is alive from the moment its kubelet starts it until it ends, is stopped, or its machine loses power, whatever
//! the API server says meanwhile. A node that is cut off keeps running its containers and can not tell of their ends; one without power
//! runs nothing and looks the same. That difference is what a task must not guess about, and what the checkers compare with.

mod kubelet;
mod nodes;

use super::{Terms, reach::Levels};
use crate::{
    executor::WallClock,
    world::{Env, World},
};
use kubelet::Being;
use nodes::Node;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tenure_kernel::runtime::Clock as _;
use tenure_kubedouble::{Cluster, OnDelete, Refusal};
use tokio::sync::watch;

/// The nodes of the yard.
pub(super) const NODES: [&str; 3] = ["node-a", "node-b", "node-c"];

/// The label of tasks on pods, and the annotation by which a template says that its task may run twice.
pub(super) const TASK: &str = "flowforge.io/task-id";
pub(super) const MAY_RUN_TWICE: &str = "sim/may-run-twice";
/// The annotation of a pod that was made by a request which nobody waited for any more. It may run beside another: that is what it is.
pub(super) const STRAY: &str = "sim/stray";

const fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// A container of a task that is really there.
#[derive(Clone, Debug)]
pub(super) struct Alive {
    pub task: String,
    pub pod: String,
    pub node: String,
    pub stray: bool,
}

#[derive(Default)]
struct Truth {
    alive: BTreeMap<String, Alive>,
    /// Every pod whose main container ever ran.
    ran: BTreeSet<String>,
    nodes: BTreeMap<String, Node>,
    /// Deletions that a kubelet carries out.
    ending: BTreeSet<String>,
    counts: BTreeMap<&'static str, u64>,
    levels: Levels,
    terms: Terms,
    /// Pods whose main container ended with 0.
    well: BTreeSet<String>,
}

/// See the module.
pub struct Yard {
    kube: Cluster,
    truth: Mutex<Truth>,
    /// Beats when something has changed.
    pulse: watch::Sender<u64>,
    /// Where kubelets live.
    env: Mutex<Option<Env>>,
}

impl Default for Yard {
    fn default() -> Self {
        let kube = Cluster::unserved();
        kube.on_delete(OnDelete::WhenTold);
        Yard { kube, truth: Mutex::default(), pulse: watch::Sender::new(0), env: Mutex::default() }
    }
}

impl Yard {
    fn truth(&self) -> MutexGuard<'_, Truth> {
        self.truth.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens it.
    pub(super) fn open(&self, world: &Arc<World>) {
        *self.env.lock().unwrap_or_else(PoisonError::into_inner) = Some(world.outsider("kubelets"));
        self.at(world);
        for node in NODES {
            self.kube.add_node(node);
            self.truth().nodes.insert(node.to_owned(), Node::default());
        }
    }

    /// Forgets its world, which holds it.
    pub(crate) fn close(&self) {
        let env = self.env.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(env);
    }

    fn spawn(&self, life: impl Future<Output = ()> + Send + 'static) {
        let env = self.env.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(env) = env {
            env.rt.spawn(Box::pin(life));
        }
    }

    /// The double, with its clock set.
    pub(super) fn at(&self, world: &World) -> &Cluster {
        let now = WallClock(world.sim.clone()).now();
        self.kube.stop_clock_at(now.as_micros() / 1_000_000);
        &self.kube
    }

    pub(super) fn listen(&self) -> watch::Receiver<u64> {
        self.pulse.subscribe()
    }

    pub(super) fn beat(&self) {
        self.pulse.send_modify(|n| *n += 1);
    }

    pub(super) fn count(&self, what: &'static str) {
        *self.truth().counts.entry(what).or_default() += 1;
    }

    /// What happened here, and how often.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.truth().counts.clone()
    }

    pub(super) fn levels<T>(&self, look: impl FnOnce(&mut Levels) -> T) -> T {
        look(&mut self.truth().levels)
    }

    /// The containers that are really there.
    pub(super) fn alive(&self) -> Vec<Alive> {
        self.truth().alive.values().cloned().collect()
    }

    /// Whether anything of a pod is really there.
    pub(super) fn is_alive(&self, uid: &str) -> bool {
        self.truth().alive.contains_key(uid)
    }

    /// Whether it ran and does not any more, nor ever will.
    pub(super) fn is_over(&self, uid: &str) -> bool {
        let truth = self.truth();
        truth.ran.contains(uid) && !truth.alive.contains_key(uid)
    }

    /// Whether its main container ended with 0.
    pub(super) fn ended_well(&self, uid: &str) -> bool {
        self.truth().well.contains(uid)
    }

    pub(super) fn set_terms(&self, terms: Terms) {
        self.truth().terms = terms;
    }

    pub(super) fn terms(&self) -> Terms {
        self.truth().terms
    }

    /// All pods, as the API server has them.
    pub(super) fn pods(&self) -> Vec<Value> {
        self.kube.objects("pods")
    }

    // ---- requests ----

    pub(super) fn create(&self, world: &Arc<World>, pod: Value) -> Result<Value, Refusal> {
        let made = self.at(world).ask_create(pod)?;
        self.count("made");
        let name = format!("{}/{}", text(&made, "namespace"), text(&made, "name"));
        world.sim.trace(format!("made {name}"));
        let pod = Being { world: world.clone(), name, uid: text(&made, "uid") };
        self.spawn(pod.live());
        self.beat();
        Ok(made)
    }

    pub(super) fn patch(
        &self,
        world: &Arc<World>,
        name: &str,
        patch: &Value,
    ) -> Result<(), Refusal> {
        self.at(world).ask_patch(name, patch)?;
        self.beat();
        Ok(())
    }

    pub(super) fn delete(
        &self,
        world: &Arc<World>,
        name: &str,
        uid: Option<&str>,
        grace: Option<i64>,
    ) -> Result<(), Refusal> {
        self.at(world).ask_delete(name, uid, grace)?;
        world.sim.trace(format!("deletion of {name}"));
        self.after_deletions(world);
        Ok(())
    }

    /// Kubelets hear of what is to go.
    fn after_deletions(&self, world: &Arc<World>) {
        for pod in self.pods() {
            let uid = text(&pod, "uid");
            if pod["metadata"]["deletionTimestamp"].is_null()
                || !self.truth().ending.insert(uid.clone())
            {
                continue;
            }
            let name = format!("{}/{}", text(&pod, "namespace"), text(&pod, "name"));
            let being = Being { world: world.clone(), name, uid };
            self.spawn(being.end());
        }
        self.beat();
    }

    // ---- containers ----

    fn starts(&self, world: &World, being: &Being, pod: &Value) {
        let task = pod["metadata"]["labels"][TASK].as_str().unwrap_or_default().to_owned();
        let ours = pod["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "tenure";
        let stray = pod["metadata"]["annotations"][STRAY] == "true";
        let may_run_twice =
            pod["metadata"]["annotations"][MAY_RUN_TWICE] == "true" || !ours || stray;
        let node = pod["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
        let mut truth = self.truth();
        if let Some(other) = truth.alive.values().find(|a| a.task == task && !a.stray)
            && !may_run_twice
        {
            let both = format!("{} and {}", other.pod, being.name);
            world.fail(format!("task {task} runs twice at once: {both}"));
        }
        truth.ran.insert(being.uid.clone());
        let alive = Alive { task, pod: being.name.clone(), node, stray };
        truth.alive.insert(being.uid.clone(), alive);
    }

    /// Whether the kubelet of a container that is there reaches nobody.
    fn is_cut_off(&self, uid: &str) -> bool {
        let truth = self.truth();
        let node = truth.alive.get(uid).and_then(|a| truth.nodes.get(&a.node));
        node.is_some_and(|n| n.silent)
    }

    fn ends(&self, uid: &str) -> bool {
        self.truth().alive.remove(uid).is_some()
    }
}

fn text(object: &Value, field: &str) -> String {
    object["metadata"][field].as_str().unwrap_or_default().to_owned()
}

/// A pod that somebody else makes for a task: no executor of ours.
pub(super) fn foreign_pod(task: &str, attempt: u64, name: &str) -> Value {
    json!({
        "metadata": { "name": name, "namespace": "default", "labels": {
            "flowforge.io/workload": "true", TASK: task, "flowforge.io/workflow-id": "wf",
            "flowforge.io/tenant-id": "t", "flowforge.io/attempt": attempt.to_string(),
        } },
        "spec": { "restartPolicy": "Never", "containers": [{ "name": "main", "image": "work:1" }] },
    })
}
