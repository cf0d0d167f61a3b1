//! A collector that runs: followers, the core, the spool and the sinks, put together.

use super::{
    area::Area,
    core::{Act, Core, PodRef, Tally},
    lease::Election,
    meter::Meter,
    saying::{Saying, SinkId},
    send::deliver,
    sink::Sink,
    spool::{Spool, SpoolOptions, SpoolState},
};
use crate::{
    follow::{self, FollowPolicy, LeanNode, LeanPod, Pulse, Scope, Seen, Source, Trouble, ask},
    verdict::{NodeView, Policy},
};
use futures_util::{
    FutureExt as _, StreamExt as _,
    future::{AbortHandle, abortable},
    stream::{self, BoxStream},
};
use kube::Client;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tenure_kernel::{
    runtime::{BoxFuture, Clock, First, Rt, first},
    time::Timestamp,
};
use tokio::sync::{mpsc, watch};

/// Events that lie between the follower and the core: each is a pod that was read, several kilobytes of it.
const INBOX: usize = 256;
/// Events that become one write of the spool.
const BATCH: usize = 256;
/// The longest the core sleeps.
const TICK: Duration = Duration::from_secs(1);
/// Pods that are asked for by name at once.
const ASKS: usize = 8;
/// One that is not answered by then is not answered: the client itself waits for ever.
const ASK_PATIENCE: Duration = Duration::from_secs(30);
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// How often what is known of pods is written down while nothing else makes it worth while.
const MARKS_EVERY: Duration = Duration::from_secs(60);
/// So many of them at once: what was seen meanwhile waits, and so does whoever is to be told.
const MARKS_AT_ONCE: usize = 32;
/// How soon the next ones follow while nothing is seen.
const MARKS_PAUSE: Duration = Duration::from_millis(1);

/// Points at which a drill or a test can interfere.
pub mod points {
    /// Something new was seen, and is nowhere written.
    pub const SEEN: &str = "report_seen";
    /// It lies in the spool.
    pub const SPOOLED: &str = "report_spooled";
    /// A sink is about to be told.
    pub const PUBLISH: &str = "report_publish";
    /// It was told, or not, and that is not written down.
    pub const PUBLISHED: &str = "report_published";
    /// It is written down that it was told.
    pub const MARKED: &str = "report_marked";
    /// All of them.
    pub const ALL: [&str; 5] = [SEEN, SPOOLED, PUBLISH, PUBLISHED, MARKED];
}

/// Called at named points (see [`points`]), so that a test can end the process there.
pub type Probe = Arc<dyn Fn(&'static str) -> BoxFuture<'static, ()> + Send + Sync>;

/// Asks for pods by name.
pub trait Asker: Send + Sync {
    /// The pod of that name, if there is one.
    fn ask<'a>(&'a self, pod: &'a PodRef) -> BoxFuture<'a, Result<Option<LeanPod>, Trouble>>;
}

/// Asks the API server.
pub struct KubeAsker(pub Client);

impl Asker for KubeAsker {
    fn ask<'a>(&'a self, pod: &'a PodRef) -> BoxFuture<'a, Result<Option<LeanPod>, Trouble>> {
        Box::pin(async move {
            let scope = Scope::core("pods", &pod.namespace);
            ask(&self.0, &scope, &pod.name).await
        })
    }
}

/// What a collector is made of.
pub struct Parts {
    /// Its pods.
    pub pods: Arc<dyn Source<LeanPod>>,
    /// The nodes, if it sees them.
    pub nodes: Option<Arc<dyn Source<LeanNode>>>,
    /// For pods that are not there any more.
    pub asker: Arc<dyn Asker>,
    /// Whom it tells.
    pub sinks: Vec<Arc<dyn Sink>>,
    /// Who speaks, if there are several.
    pub election: Option<Arc<dyn Election>>,
    /// Uids of pods whose end is heard on the channel: who comes later does not tell it there again.
    pub heard: Option<BoxStream<'static, String>>,
    /// The world.
    pub rt: Rt,
    /// The time of day, as pods write it.
    pub clock: Arc<dyn Clock>,
    /// For tests.
    pub probe: Option<Probe>,
}

/// How it works.
#[derive(Clone, Debug)]
pub struct CollectOptions {
    /// Who saw it, in reports.
    pub name: String,
    /// Which pods.
    pub area: Area,
    /// What pods mean.
    pub policy: Policy,
    /// How they are followed.
    pub follow: FollowPolicy,
    /// What waits.
    pub spool: SpoolOptions,
    /// How long it may take to tell the rest when it is asked to end.
    pub drain: Duration,
}

/// How a sink is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SinkState {
    /// Which one.
    pub id: SinkId,
    /// What is wrong with it, while something is.
    pub trouble: Option<String>,
}

/// How a collector is.
#[derive(Clone, PartialEq, Debug)]
pub struct CollectorState {
    /// It has seen everything once, and there is room for more.
    pub ready: bool,
    /// Why it is not.
    pub not_ready: Option<String>,
    /// What it does without, though it is ready.
    pub degraded: Option<String>,
    /// A list was finished.
    pub synced: bool,
    /// It is the one that speaks.
    pub active: bool,
    /// Pods that it knows.
    pub pods: usize,
    /// Since something was heard of the pods.
    pub watch_age: Option<Duration>,
    /// Lists.
    pub relists: u64,
    /// Watches.
    pub watches: u64,
    /// Silent ones.
    pub silences: u64,
    /// Answers of 410.
    pub expired: u64,
    /// Requests that came to nothing.
    pub troubles: u64,
    /// Objects that could not be read.
    pub unreadable: u64,
    /// What is wrong with the API server, while something is.
    pub trouble: Option<String>,
    /// What the core counted.
    pub tally: Tally,
    /// What waits.
    pub spool: SpoolState,
    /// The age of the oldest that waits.
    pub spool_age: Duration,
    /// The sinks.
    pub sinks: Vec<SinkState>,
}

pub(super) struct Shared {
    spool: Mutex<Spool>,
    pub meter: Meter,
    pub rt: Rt,
    pub clock: Arc<dyn Clock>,
    pub changed: watch::Sender<u64>,
    draining: AtomicBool,
    stop: watch::Sender<bool>,
    active: AtomicBool,
    probe: Option<Probe>,
    pods: Pulse,
    nodes: Option<Pulse>,
    silence: Duration,
    seen: Mutex<(usize, Tally)>,
    sinks: Mutex<BTreeMap<SinkId, Option<String>>>,
}

impl Shared {
    pub fn spool(&self) -> MutexGuard<'_, Spool> {
        self.spool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub async fn at(&self, point: &'static str) {
        if let Some(probe) = &self.probe {
            probe(point).await;
        }
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    pub fn tell_change(&self) {
        self.changed.send_modify(|n| *n += 1);
    }

    pub fn sink_failed(&self, id: SinkId, why: String) {
        let mut sinks = self.sinks.lock().unwrap_or_else(PoisonError::into_inner);
        let before = sinks.insert(id, Some(why.clone()));
        if before != Some(Some(why.clone())) {
            tracing::warn!(sink = id.name(), %why, "reports wait in the spool");
        }
    }

    pub fn sink_answered(&self, id: SinkId) {
        let mut sinks = self.sinks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Some(_)) = sinks.insert(id, None) {
            tracing::info!(sink = id.name(), "reports are taken again");
        }
    }

    fn state(&self) -> CollectorState {
        let (pods, tally) = *self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let spool = self.spool().state();
        let sinks = self.sinks.lock().unwrap_or_else(PoisonError::into_inner);
        let sinks: Vec<SinkState> =
            sinks.iter().map(|(id, t)| SinkState { id: *id, trouble: t.clone() }).collect();
        // Without the right to see nodes it does what can be done without them, and says so.
        let denied = self.nodes.as_ref().filter(|n| n.is_denied()).and_then(Pulse::trouble);
        let nodes = denied.is_some() || self.nodes.as_ref().is_none_or(Pulse::is_synced);
        let synced = self.pods.is_synced() && nodes;
        let degraded =
            denied.map(|why| format!("a node that dies is not noticed by its silence: {why}"));
        let watch_age = self.pods.heard_at().map(|at| self.rt.mono().saturating_sub(at));
        let stale = watch_age.is_none_or(|age| age > self.silence * 3);
        let not_ready = if spool.full {
            Some("the spool is full: nothing more is read until a sink takes something".to_owned())
        } else if !synced {
            let of_nodes = || self.nodes.as_ref().and_then(Pulse::trouble);
            let why = self.pods.trouble().or_else(of_nodes);
            let why = why.unwrap_or_else(|| "the first list is not done".to_owned());
            Some(format!("not synced: {why}"))
        } else if stale {
            let why = self.pods.trouble().unwrap_or_else(|| "the watch is silent".to_owned());
            Some(format!("nothing heard of pods for too long: {why}"))
        } else {
            None
        };
        CollectorState {
            ready: not_ready.is_none(),
            not_ready,
            degraded,
            synced,
            active: self.active.load(Ordering::Relaxed),
            pods,
            watch_age,
            relists: self.pods.lists(),
            watches: self.pods.watches(),
            silences: self.pods.silences(),
            expired: self.pods.expired(),
            troubles: self.pods.troubles(),
            unreadable: self.pods.unreadable(),
            trouble: self.pods.trouble(),
            tally,
            spool_age: spool.oldest.map_or(Duration::ZERO, |at| self.clock.now().since(at)),
            spool,
            sinks,
        }
    }
}

/// A collector that runs. Dropping it ends it at once, as a crash would; [`Collector::stop`] lets it tell the rest.
pub struct Collector {
    shared: Arc<Shared>,
    tasks: Vec<AbortHandle>,
    done: Vec<watch::Receiver<bool>>,
    drain: Duration,
    election: Option<Arc<dyn Election>>,
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl Collector {
    /// Opens the spool and begins. Fails only where the spool can not be opened.
    pub fn start(options: CollectOptions, parts: Parts) -> io::Result<Collector> {
        let ids: Vec<SinkId> = parts.sinks.iter().map(|s| s.id()).collect();
        let (spool, marks) = Spool::open(options.spool.clone(), &ids)?;
        let state = spool.state();
        if state.lost_bytes > 0 {
            tracing::warn!(bytes = state.lost_bytes, "a torn end of the spool was cut off");
        }
        if state.depth > 0 {
            tracing::info!(reports = state.depth, "the spool has reports of an earlier run");
        }
        let shared = Arc::new(Shared {
            spool: Mutex::new(spool),
            meter: Meter::default(),
            rt: parts.rt.clone(),
            clock: parts.clock.clone(),
            changed: watch::Sender::new(0),
            draining: AtomicBool::new(false),
            stop: watch::Sender::new(false),
            active: AtomicBool::new(parts.election.is_none()),
            probe: parts.probe.clone(),
            pods: Pulse::default(),
            nodes: parts.nodes.as_ref().map(|_| Pulse::default()),
            silence: options.follow.silence,
            seen: Mutex::default(),
            sinks: Mutex::new(ids.iter().map(|id| (*id, None)).collect()),
        });
        let mut collector = Collector {
            shared,
            tasks: Vec::new(),
            done: Vec::new(),
            drain: options.drain,
            election: parts.election.clone(),
        };
        let mut core = Core::new(options.policy, options.area, &options.name);
        // The server remembers what it was told; whoever listens to the channel may not have been there.
        core.load(marks, ids.contains(&SinkId::Server));
        if parts.election.is_some() {
            core.set_active(false, parts.clock.now());
        }
        collector.begin(core, &options.follow, parts);
        Ok(collector)
    }

    fn begin(&mut self, core: Core, policy: &FollowPolicy, parts: Parts) {
        let shared = self.shared.clone();
        let (pods_to, pods) = mpsc::channel(INBOX);
        let (nodes_to, nodes) = mpsc::channel(INBOX);
        let (rest_to, rest) = mpsc::channel(INBOX);
        for sink in parts.sinks {
            let future = deliver(shared.clone(), sink);
            self.run(future, true);
        }
        let (rt, source, at) = (parts.rt.clone(), parts.pods, shared.clone());
        let own = policy.clone();
        self.run(async move { follow::run(&*source, own, rt, pods_to, &at.pods).await }, false);
        if let Some(source) = parts.nodes {
            let (rt, at, own) = (parts.rt.clone(), shared.clone(), policy.clone());
            let following = async move {
                if let Some(pulse) = &at.nodes {
                    follow::run(&*source, own, rt, nodes_to, pulse).await;
                }
            };
            self.run(following, false);
        } else {
            drop(nodes_to);
        }
        if let Some(election) = parts.election {
            self.run(stand(shared.clone(), election, rest_to.clone()), false);
        }
        if let Some(heard) = parts.heard {
            self.run(listen(heard, rest_to.clone()), false);
        }
        let (asks_to, asks) = mpsc::unbounded_channel();
        self.run(answer(parts.asker, self.shared.rt.clone(), asks, rest_to), false);
        let seeing = Seeing {
            shared,
            core,
            pods,
            nodes: Some(nodes).filter(|n| !n.is_closed()),
            rest,
            asks: asks_to,
            again: VecDeque::new(),
            marked: Duration::ZERO,
            marking: None,
        };
        self.run(seeing.run(), true);
    }

    fn run(&mut self, future: impl Future<Output = ()> + Send + 'static, awaited: bool) {
        let (done, is_done) = watch::channel(false);
        let (running, handle) = abortable(future);
        self.tasks.push(handle);
        if awaited {
            self.done.push(is_done);
        }
        self.shared.rt.spawn(Box::pin(running.map(move |_| {
            let _ = done.send(true);
        })));
    }

    /// How it is.
    pub fn state(&self) -> CollectorState {
        self.shared.state()
    }

    /// Its metrics, for Prometheus.
    pub fn metrics(&self) -> String {
        self.shared.meter.text(&self.shared.state())
    }

    /// Asks for its state from elsewhere, for as long as it runs.
    pub fn watcher(&self) -> impl Fn() -> (CollectorState, String) + Send + Sync + 'static {
        let shared = self.shared.clone();
        move || {
            let state = shared.state();
            let text = shared.meter.text(&state);
            (state, text)
        }
    }

    /// Waits until something changed: something was seen, or taken.
    pub async fn changed(&self) {
        let mut changed = self.shared.changed.subscribe();
        // Its sender lives in `self`.
        let _ = changed.changed().await;
    }

    /// Sees nothing more, tells what it can within its time, and leaves the rest in the spool. How many reports that is.
    pub async fn stop(mut self) -> usize {
        self.shared.stop.send_replace(true);
        let mut done = std::mem::take(&mut self.done);
        // The core first: what it has seen is to be told.
        if let Some(mut seeing) = done.pop() {
            let _ = first(seeing.wait_for(|d| *d), self.shared.rt.sleep(self.drain)).await;
        }
        self.shared.draining.store(true, Ordering::Relaxed);
        self.shared.tell_change();
        let all = async {
            for mut sink in done {
                let _ = sink.wait_for(|d| *d).await;
            }
        };
        let _ = first(all, self.shared.rt.sleep(self.drain)).await;
        if let Some(election) = self.election.take() {
            let leaving = election.leave(self.shared.clock.now());
            let _ = first(leaving, self.shared.rt.sleep(TICK)).await;
        }
        self.shared.spool().state().depth
    }
}

/// What else the core is told.
enum Rest {
    Answer(PodRef, Option<LeanPod>),
    NoAnswer(PodRef),
    Active(bool),
    Heard(String),
}

async fn listen(mut heard: BoxStream<'static, String>, to: mpsc::Sender<Rest>) {
    while let Some(uid) = heard.next().await {
        if to.send(Rest::Heard(uid)).await.is_err() {
            return;
        }
    }
}

async fn stand(shared: Arc<Shared>, election: Arc<dyn Election>, to: mpsc::Sender<Rest>) {
    loop {
        let speaks = election.stand(shared.clock.now()).await;
        shared.active.store(speaks, Ordering::Relaxed);
        if to.send(Rest::Active(speaks)).await.is_err() {
            return;
        }
        shared.rt.sleep(election.every()).await;
    }
}

/// Asks for pods by name. Who gets no answer asks again later: one that can not be read must not hold up the others.
async fn answer(
    asker: Arc<dyn Asker>,
    rt: Rt,
    asks: mpsc::UnboundedReceiver<PodRef>,
    to: mpsc::Sender<Rest>,
) {
    let asks = stream::unfold(asks, |mut asks| async { Some((asks.recv().await?, asks)) });
    let one = |pod: PodRef| async {
        let answer = match first(asker.ask(&pod), rt.sleep(ASK_PATIENCE)).await {
            First::Left(Ok(found)) => Rest::Answer(pod, found),
            First::Left(Err(trouble)) => {
                tracing::debug!(%trouble, name = pod.name, "a pod can not be asked for");
                Rest::NoAnswer(pod)
            }
            First::Right(()) => {
                tracing::debug!(name = pod.name, "nobody answers about a pod");
                Rest::NoAnswer(pod)
            }
        };
        to.send(answer).await.is_ok()
    };
    let answers = asks.map(one).buffer_unordered(ASKS);
    answers.take_while(|told| std::future::ready(*told)).for_each(|_| async {}).await;
}

struct Seeing {
    shared: Arc<Shared>,
    core: Core,
    pods: mpsc::Receiver<Seen<LeanPod>>,
    nodes: Option<mpsc::Receiver<Seen<LeanNode>>>,
    rest: mpsc::Receiver<Rest>,
    asks: mpsc::UnboundedSender<PodRef>,
    /// Asked for in vain, and when to ask again.
    again: VecDeque<(Duration, PodRef)>,
    /// When what is known was last written down, or could not be.
    marked: Duration,
    /// It is being written down, and this was the last one.
    marking: Option<String>,
}

enum Heard {
    Pod(Option<Seen<LeanPod>>),
    Node(Option<Seen<LeanNode>>),
    Rest(Option<Rest>),
    Time,
    Stop,
}

impl Seeing {
    async fn run(mut self) {
        let mut asked: BTreeSet<String> = BTreeSet::new();
        let mut stop = self.shared.stop.subscribe();
        loop {
            let heard = self.hear(&mut stop).await;
            let now = self.shared.clock.now();
            let mut acts = match heard {
                Heard::Stop | Heard::Pod(None) => break,
                Heard::Pod(Some(seen)) => self.see_all(seen, now),
                Heard::Node(Some(seen)) => self.see_node(seen, now),
                Heard::Node(None) => {
                    self.nodes = None;
                    Vec::new()
                }
                Heard::Rest(Some(Rest::Answer(pod, found))) => {
                    asked.remove(&pod.uid);
                    self.core.answered(&pod, found.as_ref(), now)
                }
                Heard::Rest(Some(Rest::NoAnswer(pod))) => {
                    self.again.push_back((self.shared.rt.mono() + ASK_AGAIN, pod));
                    Vec::new()
                }
                Heard::Rest(Some(Rest::Active(active))) => self.core.set_active(active, now),
                Heard::Rest(Some(Rest::Heard(uid))) => {
                    self.core.heard(&uid, now);
                    Vec::new()
                }
                Heard::Rest(None) | Heard::Time => Vec::new(),
            };
            acts.extend(self.core.tick(now));
            while self.again.front().is_some_and(|(at, _)| *at <= self.shared.rt.mono())
                && let Some((_, pod)) = self.again.pop_front()
            {
                // Whoever asks lives as long as this does.
                let _ = self.asks.send(pod);
            }
            let mut sayings = Vec::new();
            for act in acts {
                match act {
                    Act::Say(saying) => {
                        self.shared.meter.saw(&saying);
                        sayings.push(*saying);
                    }
                    Act::Ask(pod) => {
                        if asked.insert(pod.uid.clone()) {
                            let _ = self.asks.send(pod);
                        }
                    }
                }
            }
            if !sayings.is_empty() {
                self.shared.at(points::SEEN).await;
            }
            // The counts in the state include a report before a sink can deliver it.
            self.show_counts();
            if !self.push(&sayings, now, &mut stop).await {
                // Told to stop with no room: what was not written down is seen again after the restart, because the marks of
                // before are kept.
                return;
            }
            if !sayings.is_empty() {
                self.shared.at(points::SPOOLED).await;
            }
            self.keep(now, false);
        }
        let now = self.shared.clock.now();
        self.keep(now, true);
    }

    async fn hear(&mut self, stop: &mut watch::Receiver<bool>) -> Heard {
        let now = self.shared.clock.now();
        let due = self.core.next_due().map_or(TICK, |at| at.since(now)).min(TICK);
        let due = if self.marking.is_some() { due.min(MARKS_PAUSE) } else { due };
        let pause = async {
            self.shared.rt.sleep(due).await;
            Heard::Time
        };
        let nodes = async {
            match &mut self.nodes {
                Some(nodes) => Heard::Node(nodes.recv().await),
                None => std::future::pending().await,
            }
        };
        let rest = async {
            match self.rest.recv().await {
                Some(rest) => Heard::Rest(Some(rest)),
                None => std::future::pending().await,
            }
        };
        let pods = async { Heard::Pod(self.pods.recv().await) };
        let stopped = async {
            let _ = stop.wait_for(|s| *s).await;
            Heard::Stop
        };
        let others = first(first(nodes, rest), pause);
        match first(stopped, first(pods, others)).await {
            First::Left(heard) => heard,
            First::Right(First::Left(heard)) => heard,
            First::Right(First::Right(First::Left(First::Left(heard) | First::Right(heard)))) => {
                heard
            }
            First::Right(First::Right(First::Right(heard))) => heard,
        }
    }

    /// This one, and what else has come by now: one write for all of them.
    fn see_all(&mut self, seen: Seen<LeanPod>, now: Timestamp) -> Vec<Act> {
        let mut acts = self.see(seen, now);
        let mut more = 1;
        while more < BATCH
            && acts.len() < BATCH
            && let Ok(seen) = self.pods.try_recv()
        {
            acts.extend(self.see(seen, now));
            more += 1;
        }
        acts
    }

    fn see(&mut self, seen: Seen<LeanPod>, now: Timestamp) -> Vec<Act> {
        match seen {
            Seen::ListBegan => {
                self.core.list_began();
                Vec::new()
            }
            Seen::Listed(pods) => pods.iter().flat_map(|p| self.core.seen(p, now)).collect(),
            Seen::ListComplete => self.core.list_complete(now),
            Seen::Changed(pod) => self.core.seen(&pod, now),
            Seen::Deleted(pod) => self.core.deleted(&pod, now),
        }
    }

    fn see_node(&mut self, seen: Seen<LeanNode>, now: Timestamp) -> Vec<Act> {
        let name = |node: &LeanNode| node.0.metadata.name.clone().unwrap_or_default();
        match seen {
            Seen::ListBegan => {
                self.core.nodes_began();
                Vec::new()
            }
            Seen::Listed(nodes) => nodes
                .iter()
                .flat_map(|n| self.core.node(&name(n), NodeView::of(&n.0), now))
                .collect(),
            Seen::ListComplete => self.core.nodes_complete(now),
            Seen::Changed(n) => self.core.node(&name(&n), NodeView::of(&n.0), now),
            Seen::Deleted(n) => self.core.node_deleted(&name(&n), now),
        }
    }

    /// Puts it into the spool, and waits for room as long as it takes. `false`: told to stop before there was any.
    async fn push(
        &mut self,
        sayings: &[Saying],
        now: Timestamp,
        stop: &mut watch::Receiver<bool>,
    ) -> bool {
        if sayings.is_empty() {
            return true;
        }
        let mut changed = self.shared.changed.subscribe();
        loop {
            let mut dropped = Vec::new();
            let pushed = {
                let mut spool = self.shared.spool();
                let mut pushed = spool.push(sayings, now);
                if pushed.is_err() {
                    // As long as these are not in the spool they are still to be said after a restart.
                    dropped = spool.relieve(&mut self.core.marks_before(sayings));
                    pushed = spool.push(sayings, now);
                }
                pushed
            };
            self.core.forget(&dropped);
            if pushed.is_ok() {
                self.shared.tell_change();
                return true;
            }
            let room = changed.changed();
            let stopped = stop.wait_for(|s| *s);
            if let First::Left(_) = first(stopped, room).await {
                return false;
            }
        }
    }

    fn show_counts(&self) {
        *self.shared.seen.lock().unwrap_or_else(PoisonError::into_inner) =
            (self.core.pods(), self.core.tally());
    }

    fn keep(&mut self, now: Timestamp, last: bool) {
        self.show_counts();
        let mono = self.shared.rt.mono();
        let old = mono.saturating_sub(self.marked) >= MARKS_EVERY;
        let mut spool = self.shared.spool();
        let dropped = spool.expire(now);
        self.core.forget(&dropped);
        if last {
            spool.keep(&mut self.core.marks());
            return;
        }
        // What was marked as said may have been among what was dropped.
        let anew = self.marking.is_none() || !dropped.is_empty();
        if anew && (self.marking.is_some() || old || spool.wants_marks()) {
            self.marking = spool.begin_marks().then(String::new);
            self.marked = mono;
        }
        if let Some(behind) = self.marking.take() {
            let marks = self.core.marks_after(&behind, MARKS_AT_ONCE);
            let more = marks.len() == MARKS_AT_ONCE;
            let next = marks.last().map(|mark| mark.uid.clone());
            let written = spool.add_marks(&mut marks.into_iter());
            self.marking = next.filter(|_| more && written);
            if written && !more {
                let gone = spool.add_marks(&mut self.core.marks_of_gone().into_iter());
                if gone && spool.end_marks() {
                    self.marked = mono;
                }
            }
        }
    }
}
