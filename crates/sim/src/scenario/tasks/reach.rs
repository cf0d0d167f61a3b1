//! How the processes of a world reach the yard, and what gets lost on the way.
//!
//! The API server is away, or one process is cut off from it; an answer is lost after the deed; a request arrives when nobody
//! waits for it any more; a watch is dead and does not say so, says everything twice, or what was long ago.

use super::yard::{STRAY, Yard};
use crate::{executor::NodeId, world::Env};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};
use tenure_kernel::runtime::{BoxFuture, first};
use tenure_kubedouble::{Kind, Refusal};
use tenure_pods::{
    collect::{Asker, PodRef},
    execute::cluster::{
        Cluster, Created, Delete, LogAsk, LogBytes, PodEvents, Trouble, trouble_of,
    },
    follow::{self, LeanNode, LeanPod, Page, Source, Told, Watch},
    k8s_openapi::api::core::v1::Pod,
    pod::Begun,
};

/// How bad it is at this moment, in a thousand.
#[derive(Clone, Debug, Default)]
pub(super) struct Levels {
    /// Nobody reaches the API server.
    pub away: bool,
    /// These do not.
    pub cut: BTreeSet<NodeId>,
    /// It has too much to do.
    pub busy: u32,
    /// Carried out, and not answered.
    pub answer_lost: u32,
    /// Carried out when nobody waits any more.
    pub late: u32,
    /// Events twice, and old ones again.
    pub twisted: u32,
    /// Watches that were opened before are dead.
    pub dead_before: Duration,
}

/// The longest that a request is under way. An executor takes a longer one for possible (`Patience::late`).
pub(super) const LATE_MAX: Duration = Duration::from_secs(50);

/// When a copy of a request comes through that nobody waits for any more (`Patience::late`).
const COPIES: std::ops::Range<Duration> = Duration::from_secs(100)..COPIES_MAX;
/// The latest of them.
pub(in crate::scenario) const COPIES_MAX: Duration = Duration::from_secs(300);

/// What pods of ours are found by, and what all pods of tasks are.
const OURS: &str = "app.kubernetes.io/managed-by=tenure";
const ALL: &str = "flowforge.io/workload=true";

enum Fate {
    Done,
    Unreachable,
    Busy,
    AnswerLost,
    Late(Duration),
}

/// One process's way to the yard.
#[derive(Clone)]
pub(super) struct Reach(pub Env);

impl Reach {
    fn yard(&self) -> &Yard {
        &self.0.world.yard
    }

    fn is_cut(&self) -> bool {
        let node = self.0.life.0;
        self.yard().levels(|l| l.away || l.cut.contains(&node))
    }

    fn fate(&self, writes: bool) -> (Duration, Fate) {
        let levels = self.yard().levels(|l| l.clone());
        let cut = self.is_cut();
        self.0.world.sim.draw(|rng| {
            let travel = rng.between(Duration::from_micros(300)..Duration::from_millis(20));
            let fate = match () {
                () if cut => Fate::Unreachable,
                () if rng.permille(levels.busy) => Fate::Busy,
                () if writes && rng.permille(levels.answer_lost) => Fate::AnswerLost,
                () if writes && rng.permille(levels.late) => {
                    Fate::Late(rng.between(Duration::from_millis(1)..LATE_MAX))
                }
                () => Fate::Done,
            };
            (travel, fate)
        })
    }

    /// Somebody on the way keeps a copy of a request to make a pod, and lets it go when nobody waits for it any more. What it makes
    /// then is a stray, unless the pod is still there, or still wanted.
    fn keep_a_copy(&self, pod: &Value) {
        let late = self.yard().levels(|l| l.late);
        if late == 0 || !self.0.world.sim.draw(|rng| rng.permille(250)) {
            return;
        }
        let mut copy = pod.clone();
        copy["metadata"]["annotations"][STRAY] = "true".into();
        let (env, by) = (self.0.clone(), self.0.world.sim.draw(|rng| rng.between(COPIES)));
        self.yard().count("copy kept");
        self.0.world.sim.after(by, move || {
            if env.world.yard.create(&env.world, copy).is_ok() {
                env.world.yard.count("stray made");
            }
        });
    }

    /// One request.
    async fn ask<T: Send + 'static>(
        &self,
        writes: bool,
        act: impl FnOnce(&Env) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Trouble> {
        let (travel, fate) = self.fate(writes);
        let lost = || Trouble::again("unreachable", "the connection was lost");
        self.0.rt.sleep(travel).await;
        match fate {
            Fate::Done => {
                let answer = act(&self.0);
                self.0.rt.sleep(travel).await;
                answer.map_err(|refusal| trouble(&refusal))
            }
            Fate::Unreachable => {
                self.yard().count("unreachable");
                Err(lost())
            }
            Fate::Busy => {
                self.yard().count("throttled");
                Err(Trouble::again("throttled", "too many requests"))
            }
            Fate::AnswerLost => {
                self.yard().count("answer lost");
                let _ = act(&self.0);
                // Refused at once, or waited for in vain.
                if self.0.world.sim.draw(|rng| rng.permille(500)) {
                    std::future::pending::<()>().await;
                }
                Err(lost())
            }
            Fate::Late(by) => {
                self.yard().count("late request");
                let env = self.0.clone();
                self.0.world.sim.after(by, move || {
                    let _ = act(&env);
                });
                if self.0.world.sim.draw(|rng| rng.permille(500)) {
                    std::future::pending::<()>().await;
                }
                Err(lost())
            }
        }
    }

    fn watch(&self, kind: Kind, labels: &'static str, from: u64, length: Duration) -> Line {
        let now = self.0.world.sim.now();
        Line {
            reach: self.clone(),
            kind,
            labels,
            version: from,
            born: now,
            until: now + length,
            mark_at: now + MARK,
            waits: VecDeque::new(),
            past: VecDeque::new(),
        }
    }
}

fn trouble(refusal: &Refusal) -> Trouble {
    // What the double says no with is what an API server would send.
    let status = serde_json::from_value(refusal.body()).unwrap_or_default();
    trouble_of(&status)
}

fn away(trouble: &Trouble) -> follow::Trouble {
    match trouble {
        Trouble::Expired => follow::Trouble::Expired(trouble.to_string()),
        Trouble::Again { what: "throttled", .. } => {
            follow::Trouble::Throttled { after: None, why: trouble.to_string() }
        }
        other => follow::Trouble::Away(other.to_string()),
    }
}

fn name(at: &Begun) -> String {
    format!("{}/{}", at.namespace, at.name)
}

fn read<T: DeserializeOwned>(value: Value) -> Result<T, Refusal> {
    serde_json::from_value(value).map_err(|e| Refusal::bad_request(e.to_string()))
}

const MARK: Duration = Duration::from_secs(60);

/// A watch as the API server keeps it.
struct Line {
    reach: Reach,
    kind: Kind,
    labels: &'static str,
    version: u64,
    born: Duration,
    until: Duration,
    mark_at: Duration,
    waits: VecDeque<Bytes>,
    past: VecDeque<Bytes>,
}

impl Line {
    async fn next(&mut self) -> Option<Result<Bytes, Trouble>> {
        let Env { world, rt, .. } = self.reach.0.clone();
        let mut pulse = world.yard.listen();
        loop {
            pulse.mark_unchanged();
            if world.yard.levels(|l| l.dead_before) > self.born {
                std::future::pending::<()>().await;
            }
            if self.reach.is_cut() {
                return Some(Err(Trouble::again("unreachable", "the watch broke off")));
            }
            if let Some(line) = self.waits.pop_front() {
                return Some(Ok(line));
            }
            let kube = world.yard.at(&world);
            match kube.ask_changes(self.kind, self.labels, self.version) {
                Err(refusal) => return Some(Err(trouble(&refusal))),
                Ok(lines) if !lines.is_empty() => {
                    self.take(lines);
                    continue;
                }
                Ok(_) => {}
            }
            let now = world.sim.now();
            if now >= self.until {
                return None;
            }
            if now >= self.mark_at {
                self.mark_at = now + MARK;
                self.version = kube.version();
                let mark = json!({ "type": "BOOKMARK", "object": { "kind": "Pod", "apiVersion": "v1",
                    "metadata": { "resourceVersion": self.version.to_string(), "annotations": {} }, "spec": null, "status": {} } });
                return Some(Ok(Bytes::from(mark.to_string())));
            }
            let nap = self.until.min(self.mark_at) - now;
            let _ = first(pulse.changed(), rt.sleep(nap)).await;
        }
    }

    fn take(&mut self, lines: Vec<(u64, Bytes)>) {
        let world = self.reach.0.world.clone();
        let twisted = world.yard.levels(|l| l.twisted);
        for (version, line) in lines {
            self.version = version;
            if twisted > 0 && world.sim.draw(|rng| rng.permille(twisted)) {
                world.yard.count("event twice");
                self.waits.push_back(line.clone());
            }
            if twisted > 0 && !self.past.is_empty() && world.sim.draw(|rng| rng.permille(twisted)) {
                world.yard.count("old event again");
                let old = world.sim.draw(|rng| rng.index(self.past.len()));
                self.waits.push_back(self.past[old].clone());
            }
            if self.past.len() > 20 {
                self.past.pop_front();
            }
            self.past.push_back(line.clone());
            self.waits.push_back(line);
        }
    }
}

impl Cluster for Reach {
    fn default_namespace(&self) -> &str {
        "default"
    }

    fn get<'a>(&'a self, at: &'a Begun) -> BoxFuture<'a, Result<Option<Pod>, Trouble>> {
        let name = name(at);
        Box::pin(
            self.ask(false, move |env| {
                env.world.yard.at(&env.world).pod(&name).map(read).transpose()
            }),
        )
    }

    fn create(&self, pod: Pod) -> BoxFuture<'_, Result<Created, Trouble>> {
        let pod = serde_json::to_value(&pod).unwrap_or_default();
        self.keep_a_copy(&pod);
        Box::pin(self.ask(true, move |env| {
            let pod = read(env.world.yard.create(&env.world, pod)?)?;
            Ok(Created { pod, warnings: Vec::new() })
        }))
    }

    fn annotate<'a>(
        &'a self,
        at: &'a Begun,
        uid: &'a str,
        annotation: &'a str,
        value: &'a str,
    ) -> BoxFuture<'a, Result<(), Trouble>> {
        let name = name(at);
        let patch = json!({ "metadata": { "uid": uid, "annotations": { annotation: value } } });
        Box::pin(self.ask(true, move |env| env.world.yard.patch(&env.world, &name, &patch)))
    }

    fn delete<'a>(
        &'a self,
        at: &'a Begun,
        uid: &'a str,
        how: Delete,
    ) -> BoxFuture<'a, Result<(), Trouble>> {
        let (name, uid) = (name(at), uid.to_owned());
        let grace = (how == Delete::ByForce).then_some(0);
        Box::pin(self.ask(true, move |env| {
            let yard = &env.world.yard;
            yard.delete(&env.world, &name, Some(&uid), grace)?;
            if how == Delete::ByForce {
                yard.count("taken away by force");
            }
            Ok(())
        }))
    }

    fn log<'a>(&'a self, _at: &'a Begun, _ask: LogAsk) -> BoxFuture<'a, Result<LogBytes, Trouble>> {
        Box::pin(async move {
            self.ask(false, |_| Ok(())).await?;
            let (rt, line) = (self.0.rt.clone(), "2030-01-01T00:00:01.000000001Z a line\n");
            let lines = stream::once(async move {
                rt.sleep(Duration::from_millis(300)).await;
                Ok(Bytes::from(line))
            });
            Ok(lines.boxed())
        })
    }

    fn list<'a>(
        &'a self,
        _namespace: &'a str,
    ) -> BoxFuture<'a, Result<(Vec<Pod>, String), Trouble>> {
        Box::pin(self.ask(false, |env| {
            let (pods, version) = env.world.yard.at(&env.world).ask_list(Kind::Pods, OURS)?;
            let pods: Result<Vec<Pod>, Refusal> = pods.into_iter().map(read).collect();
            Ok((pods?, version.to_string()))
        }))
    }

    fn watch<'a>(
        &'a self,
        _namespace: &'a str,
        version: &'a str,
    ) -> BoxFuture<'a, Result<PodEvents, Trouble>> {
        let from = version.parse().unwrap_or(0);
        Box::pin(async move {
            self.ask(false, |_| Ok(())).await?;
            let line = self.watch(Kind::Pods, OURS, from, Duration::from_secs(290));
            let events = stream::unfold(line, |mut line| async move {
                let event = line.next().await?.and_then(|bytes| {
                    serde_json::from_slice(&bytes)
                        .map_err(|e| Trouble::again("unreachable", e.to_string()))
                });
                Some((event, line))
            });
            Ok(events.boxed())
        })
    }
}

/// What a collector follows.
pub(super) struct Followed<K> {
    reach: Reach,
    kind: Kind,
    labels: &'static str,
    _of: std::marker::PhantomData<fn() -> K>,
}

impl Reach {
    pub fn pods(&self) -> Followed<LeanPod> {
        Followed { reach: self.clone(), kind: Kind::Pods, labels: ALL, _of: Default::default() }
    }

    pub fn nodes(&self) -> Followed<LeanNode> {
        Followed { reach: self.clone(), kind: Kind::Nodes, labels: "", _of: Default::default() }
    }
}

impl<K: follow::Decode> Source<K> for Followed<K> {
    fn list(
        &self,
        _limit: u32,
        _token: Option<&str>,
    ) -> BoxFuture<'_, Result<Page<K>, follow::Trouble>> {
        let (kind, labels) = (self.kind, self.labels);
        Box::pin(async move {
            let listed = self.reach.ask(false, move |env| {
                let (items, version) = env.world.yard.at(&env.world).ask_list(kind, labels)?;
                let items: Result<Vec<K>, Refusal> = items.into_iter().map(read).collect();
                Ok(Page { items: items?, version: version.to_string(), more: None, unreadable: 0 })
            });
            listed.await.map_err(|t| away(&t))
        })
    }

    fn watch(
        &self,
        from: &str,
        seconds: u32,
    ) -> BoxFuture<'_, Result<Box<dyn Watch<K>>, follow::Trouble>> {
        let from = from.parse().unwrap_or(0);
        Box::pin(async move {
            self.reach.ask(false, |_| Ok(())).await.map_err(|t| away(&t))?;
            let length = Duration::from_secs(u64::from(seconds));
            let line = self.reach.watch(self.kind, self.labels, from, length);
            Ok(Box::new(Listening(line)) as Box<dyn Watch<K>>)
        })
    }
}

struct Listening(Line);

impl<K: follow::Decode> Watch<K> for Listening {
    fn next(&mut self) -> BoxFuture<'_, Option<Result<Told<K>, follow::Trouble>>> {
        Box::pin(async move {
            Some(match self.0.next().await? {
                Ok(line) => follow::read_line(&line, "pods"),
                Err(trouble) => Err(away(&trouble)),
            })
        })
    }
}

impl Asker for Reach {
    fn ask<'a>(
        &'a self,
        pod: &'a PodRef,
    ) -> BoxFuture<'a, Result<Option<LeanPod>, follow::Trouble>> {
        let name = format!("{}/{}", pod.namespace, pod.name);
        Box::pin(async move {
            let asked = Reach::ask(self, false, move |env| {
                env.world.yard.at(&env.world).pod(&name).map(read).transpose()
            });
            asked.await.map_err(|t| away(&t))
        })
    }
}
