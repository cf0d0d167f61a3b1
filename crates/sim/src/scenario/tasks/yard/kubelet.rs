//! The life of a pod, as its kubelet sees it: what becomes of its containers, and what of that the API server hears.

use super::{Yard, s, text};
use crate::world::World;
use serde_json::Value;
use std::{sync::Arc, time::Duration};
use tenure_kubedouble::Life;

/// One pod, as its kubelet sees it.
pub(super) struct Being {
    pub world: Arc<World>,
    pub name: String,
    pub uid: String,
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
            42..=46 => Outcome::SchedulerPreempts,
            47..=50 => Outcome::DeletedBySomebody,
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

    pub(super) async fn live(self) {
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
    pub(super) async fn end(self) {
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
