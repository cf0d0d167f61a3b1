//! The yard: a cluster in simulated time, and what is really true of it.
//!
//! Objects, versions and words are those of the double (`kubedouble`), asked without HTTP. What the double does not know is here:
//! containers. One is alive from the moment its kubelet starts it until it ends, is stopped, or its machine loses power, whatever
//! the API server says meanwhile. A node that is cut off keeps running its containers and can not tell of their ends; one without power
//! runs nothing and looks the same. That difference is what a task must not guess about, and what the checkers compare with.

use super::{Terms, reach::Levels};
use crate::{
    executor::WallClock,
    world::{Env, World},
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tenure_kernel::runtime::Clock as _;
use tenure_kubedouble::{Cluster, Life, OnDelete, Refusal};
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

/// How long a dark node is away. A pod on it is called lost, waited for (`fence_ms`), and taken away by force where its task
/// bears that, before the node is back.
const DARK: std::ops::Range<Duration> = s(300)..s(500);

/// A container of a task that is really there.
#[derive(Clone, Debug)]
pub(super) struct Alive {
    pub task: String,
    pub pod: String,
    pub node: String,
    pub stray: bool,
}

/// How a node is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Node {
    /// Nothing of it reaches the API server, nor the other way round.
    silent: bool,
    /// It has no power.
    off: bool,
    gone: bool,
    /// The end of the storm does not bring it back: it has a time of its own, longer than anybody waits for a lost pod.
    dark: bool,
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

    // ---- nodes ----

    fn node(&self, name: &str) -> Node {
        self.truth().nodes.get(name).copied().unwrap_or_default()
    }

    fn pick(&self, world: &World) -> Option<String> {
        let well: Vec<String> = self
            .truth()
            .nodes
            .iter()
            .filter(|(_, n)| **n == Node::default())
            .map(|(name, _)| name.clone())
            .collect();
        if well.is_empty() {
            return None;
        }
        Some(well[world.sim.draw(|rng| rng.index(well.len()))].clone())
    }

    /// A node falls silent: cut off, or without power. It may be declared lost, come back, or be removed. One at a time stays dark.
    pub(super) fn lose_node(&self, world: &Arc<World>) {
        let Some(node) = self.pick(world) else { return };
        let may_be_dark = !self.is_dark();
        let (off, lost_in, fate, (dark, after)) = world.sim.draw(|rng| {
            (
                rng.permille(500),
                rng.permille(700).then(|| rng.between(s(5)..s(120))),
                rng.below(10),
                match may_be_dark && rng.permille(250) {
                    true => (true, rng.between(DARK)),
                    false => (false, rng.between(s(5)..s(400))),
                },
            )
        });
        self.count(if off { "node without power" } else { "node cut off" });
        world.sim.trace(format!("{node} is silent, off {off}, dark {dark}"));
        self.truth().nodes.insert(node.clone(), Node { silent: true, off, gone: false, dark });
        if off {
            self.truth().alive.retain(|_, a| a.node != node);
        }
        self.at(world).node_silent(&node);
        self.beat();
        if let Some(d) = lost_in {
            let (world, node) = (world.clone(), node.clone());
            world.sim.clone().after(d, move || {
                let yard = &world.yard;
                if yard.node(&node).silent && !yard.node(&node).gone {
                    yard.count("node lost");
                    world.sim.trace(format!("{node} is lost"));
                    yard.at(&world).node_lost(&node);
                    yard.after_deletions(&world);
                }
            });
        }
        let later = world.clone();
        world.sim.after(after, move || match fate {
            0..=2 => later.yard.remove_node(&later, &node),
            _ => later.yard.node_back(&later, &node),
        });
    }

    fn node_back(&self, world: &Arc<World>, node: &str) {
        let was = self.node(node);
        if !was.silent || was.gone {
            return;
        }
        world.sim.trace(format!("{node} is back"));
        self.truth().nodes.insert(node.to_owned(), Node::default());
        self.at(world).node_back(node);
        self.beat();
    }

    /// Somebody takes the machine away for good, and another one gets its name.
    fn remove_node(&self, world: &Arc<World>, node: &str) {
        if self.node(node).gone || !self.node(node).silent {
            return;
        }
        self.count("node gone");
        world.sim.trace(format!("{node} is gone"));
        let gone = Node { silent: true, off: true, gone: true, dark: false };
        self.truth().nodes.insert(node.to_owned(), gone);
        self.truth().alive.retain(|_, a| a.node != node);
        self.at(world).node_gone(node);
        self.beat();
        let (later, node) = (world.clone(), node.to_owned());
        world.sim.after(s(30), move || {
            later.yard.at(&later).add_node(&node);
            later.yard.truth().nodes.insert(node, Node::default());
            later.yard.beat();
        });
    }

    /// Whether a node stays away although the storm is over.
    pub(crate) fn is_dark(&self) -> bool {
        self.truth().nodes.values().any(|n| n.dark)
    }

    /// The storm is over: every node is there, except one that is dark.
    pub(super) fn calm(&self, world: &Arc<World>) {
        self.truth().levels = Levels::default();
        for node in NODES {
            if !self.node(node).dark {
                self.node_back(world, node);
            }
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

/// One pod, as its kubelet sees it.
struct Being {
    world: Arc<World>,
    name: String,
    uid: String,
}

/// What becomes of a container that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Succeeds,
    Fails(i32),
    Oom,
    Pressure,
    OwnLimit,
    Shutdown,
    Preempted,
    Deadline,
    ApiEvicted,
    SchedulerPreempts,
    DeletedBySomebody,
    Hangs,
}

impl Outcome {
    fn draw(world: &World) -> Self {
        let n = world.sim.draw(|rng| rng.below(100));
        match n {
            _ if world.weather.is_over() && n >= 10 => Outcome::Succeeds,
            0..=3 => Outcome::Hangs,
            4..=15 => Outcome::Fails(i32::try_from(n).unwrap_or(1)),
            16..=19 => Outcome::Oom,
            20..=25 => Outcome::Pressure,
            26..=27 => Outcome::OwnLimit,
            28..=31 => Outcome::Shutdown,
            32..=34 => Outcome::Preempted,
            35..=36 => Outcome::Deadline,
            37..=41 => Outcome::ApiEvicted,
            42..=44 => Outcome::SchedulerPreempts,
            45..=48 => Outcome::DeletedBySomebody,
            _ => Outcome::Succeeds,
        }
    }
}

impl Being {
    fn yard(&self) -> &Yard {
        &self.world.yard
    }

    fn draw(&self, range: std::ops::Range<Duration>) -> Duration {
        self.world.sim.draw(|rng| rng.between(range))
    }

    async fn wait(&self, d: Duration) {
        self.world.sim.sleep(d).await;
    }

    /// The object, if it is there and not terminal.
    fn here(&self) -> Option<Value> {
        let pod = self.yard().at(&self.world).pod(&self.name)?;
        let phase = pod["status"]["phase"].as_str().unwrap_or_default();
        let same = text(&pod, "uid") == self.uid;
        (same && !["Succeeded", "Failed"].contains(&phase)).then_some(pod)
    }

    fn is_leaving(&self) -> bool {
        self.here().is_none_or(|p| !p["metadata"]["deletionTimestamp"].is_null())
    }

    fn node_of(&self) -> String {
        let pod = self.here().unwrap_or_default();
        pod["spec"]["nodeName"].as_str().unwrap_or_default().to_owned()
    }

    /// Waits until its kubelet reaches the API server. `false`: there is nothing left to tell.
    async fn reach(&self) -> bool {
        while self.here().is_some() {
            if !self.yard().node(&self.node_of()).silent {
                return true;
            }
            self.wait(s(1)).await;
        }
        false
    }

    fn tell(&self, life: &Life) {
        if self.here().is_some() {
            self.yard().at(&self.world).live(&self.name, life);
            self.yard().beat();
        }
    }

    async fn live(self) {
        self.wait(self.draw(Duration::from_millis(10)..s(4))).await;
        let mood = self.world.sim.draw(|rng| rng.below(100));
        if mood < 4 {
            let message = "0/3 nodes are available: 3 Insufficient cpu.".to_owned();
            self.tell(&Life::Unschedulable { message });
            self.wait(self.draw(s(1)..s(400))).await;
        }
        if !self.bind().await {
            return;
        }
        self.wait(self.draw(Duration::from_millis(10)..s(3))).await;
        if !self.reach().await || self.is_leaving() {
            return;
        }
        self.tell(&Life::Creating);
        if !self.begin(mood).await {
            return;
        }
        // A kubelet that is cut off starts what it has heard of; one without power does not.
        while self.yard().node(&self.node_of()).off {
            self.wait(s(1)).await;
            if self.here().is_none() {
                return;
            }
        }
        let Some(pod) = self.here().filter(|_| !self.is_leaving()) else { return };
        self.yard().starts(&self.world, &self, &pod);
        if self.reach().await && self.yard().is_alive(&self.uid) {
            self.tell(&Life::Running);
        }
        self.run().await;
    }

    /// Gets a node.
    async fn bind(&self) -> bool {
        loop {
            if self.is_leaving() {
                return false;
            }
            if let Some(node) = self.yard().pick(&self.world) {
                self.yard().at(&self.world).bind(&self.name, &node);
                self.yard().beat();
                return true;
            }
            self.wait(s(2)).await;
        }
    }

    /// What can go wrong before a container runs. `false`: none will.
    async fn begin(&self, mood: u64) -> bool {
        let waiting = |reason: &str, message: &str| Life::Waiting {
            container: String::new(),
            reason: reason.to_owned(),
            message: message.to_owned(),
        };
        let (stays, nap) = (self.draw(s(0)..s(10)) < s(5), self.draw(s(5)..s(60)));
        match mood {
            4..=7 => {
                self.yard().count("rejected");
                let (reason, message) =
                    ("OutOfcpu".to_owned(), "Node didn't have enough resource: cpu".to_owned());
                self.tell(&Life::Rejected { reason, message });
                return false;
            }
            8..=11 => {
                self.yard().count("image does not come");
                for n in 0..if stays { 60 } else { 4 } {
                    let word = if n % 2 == 0 { "ErrImagePull" } else { "ImagePullBackOff" };
                    self.tell(&waiting(word, "Back-off pulling image \"work:1\""));
                    self.wait(nap / 2).await;
                    if !self.reach().await || self.is_leaving() {
                        return false;
                    }
                }
            }
            12..=13 => {
                self.yard().count("config is missing");
                self.tell(&waiting("CreateContainerConfigError", "secret \"s\" not found"));
                self.wait(if stays { s(4_000) } else { nap }).await;
            }
            _ => self.wait(self.draw(Duration::from_millis(10)..s(3))).await,
        }
        self.reach().await && !self.is_leaving()
    }

    /// Runs, ends, and says so when it can.
    async fn run(&self) {
        let outcome = Outcome::draw(&self.world);
        let length = match outcome {
            Outcome::Hangs => s(100_000),
            _ => self.draw(Duration::from_millis(100)..s(60)),
        };
        let until = self.world.sim.now() + length;
        while self.world.sim.now() < until {
            let step = (until - self.world.sim.now()).min(s(5));
            self.wait(step).await;
            if !self.yard().is_alive(&self.uid) {
                break;
            }
            // An object that is gone, or terminal over its head: its kubelet stops it as soon as it sees that.
            if self.here().is_none() && !self.yard().is_cut_off(&self.uid) {
                self.yard().ends(&self.uid);
                return;
            }
        }
        let killed = !self.yard().is_alive(&self.uid);
        let by_others = matches!(
            outcome,
            Outcome::ApiEvicted | Outcome::SchedulerPreempts | Outcome::DeletedBySomebody
        );
        if killed || !by_others {
            self.yard().ends(&self.uid);
        }
        if !killed && [Outcome::Succeeds, Outcome::Hangs].contains(&outcome) {
            self.yard().truth().well.insert(self.uid.clone());
        }
        if !self.reach().await {
            return self.vanish().await;
        }
        match killed {
            // Its machine went off under it, and is back.
            true => {
                self.end_with(137, "ContainerStatusUnknown", "The container could not be located")
            }
            false => self.end_by(outcome),
        }
        self.yard().beat();
    }

    fn end_with(&self, exit_code: i32, reason: &str, message: &str) {
        self.tell(&Life::Terminated {
            container: "main".to_owned(),
            exit_code,
            reason: reason.to_owned(),
            message: message.to_owned(),
        });
    }

    fn end_by(&self, outcome: Outcome) {
        let yard = self.yard();
        if self.here().is_none() {
            return;
        }
        let kube = yard.at(&self.world);
        let leaving = self.is_leaving();
        match outcome {
            Outcome::Succeeds => self.end_with(0, "", r#"{"n": 1}"#),
            Outcome::Hangs => self.end_with(0, "", ""),
            Outcome::Fails(code) => {
                yard.count("failed");
                self.end_with(code, "Error", "it went wrong");
            }
            Outcome::Oom => {
                yard.count("out of memory");
                self.end_with(137, "OOMKilled", "");
            }
            Outcome::Pressure => {
                yard.count("evicted by pressure");
                kube.evict_pressure(&self.name, "memory");
            }
            Outcome::OwnLimit => {
                yard.count("evicted by its own limit");
                kube.evict_own_limit(&self.name);
            }
            Outcome::Shutdown => {
                yard.count("node shutdown");
                kube.node_shutdown(&self.name);
            }
            Outcome::Preempted => {
                yard.count("preempted by the kubelet");
                kube.preempted_by_kubelet(&self.name);
            }
            Outcome::Deadline => {
                yard.count("deadline");
                kube.deadline_exceeded(&self.name);
            }
            _ if leaving => {}
            Outcome::ApiEvicted => {
                yard.count("evicted through the API");
                kube.api_evict(&self.name);
            }
            Outcome::SchedulerPreempts => {
                yard.count("preempted by the scheduler");
                kube.preempted_by_scheduler(&self.name);
            }
            Outcome::DeletedBySomebody => {
                yard.count("deleted by somebody");
                kube.delete(&self.name);
            }
        }
        yard.after_deletions(&self.world);
    }

    /// Its object is gone, by force perhaps: its kubelet ends what is left as soon as it sees that.
    async fn vanish(&self) {
        while self.yard().is_cut_off(&self.uid) {
            self.wait(s(1)).await;
        }
        self.yard().ends(&self.uid);
    }

    /// Its kubelet carries a deletion out, once it hears of it.
    async fn end(self) {
        self.wait(self.draw(Duration::from_millis(10)..s(20))).await;
        let there = || {
            let pod = self.yard().at(&self.world).pod(&self.name);
            pod.filter(|p| text(p, "uid") == self.uid)
        };
        while let Some(pod) = there() {
            let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
            if !self.yard().node(node).silent {
                break;
            }
            self.wait(s(1)).await;
        }
        if there().is_none() {
            return self.vanish().await;
        }
        let ran = self.yard().truth().ran.contains(&self.uid);
        let stopped = self.yard().ends(&self.uid);
        // One that had ended before says how it ended; that is told by its own life, a moment later at most.
        if ran && !stopped {
            self.wait(s(2)).await;
        }
        let code = match self.world.sim.draw(|rng| [143, 0, 137][rng.index(3)]) {
            // What its machine's end had ended before does not end well now.
            0 if ran && !stopped => 137,
            code => code,
        };
        if code == 0 && stopped {
            self.yard().truth().well.insert(self.uid.clone());
        }
        if there().is_some() {
            self.yard().at(&self.world).finish_delete(&self.name, code);
            self.world.sim.trace(format!("{} is gone", self.name));
            self.yard().beat();
        }
    }
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
