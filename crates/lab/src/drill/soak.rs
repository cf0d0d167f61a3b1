//! Load on a small cluster while things are killed, and the accounting in the end: nothing lost, nothing done
//! twice, nothing hanging, memory flat.

use super::{
    cluster::{Cluster, Engine, Plan, Scratch},
    ground::{Base, Ground, Layout, flow_of, until},
    outside::Done,
    processes::{Hand, PATIENCE},
    run::sets,
};
use rustix::process::Signal;
use serde::Serialize;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tenure::{
    commands::{Failure, judge, problems},
    config::Settings,
    open::open_read_only,
};
use tenure_edge::TokioRuntime;
use tenure_kernel::{
    runtime::Runtime as _,
    store::{HeadFilter, Store},
    table::Class,
};
use tenure_proving::dice::Dice;
use tokio::task::JoinSet;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Wish {
    /// The store.
    pub engine: Engine,
    /// How long there is load.
    pub time: Duration,
    /// How often something is killed.
    pub kill_every: Duration,
    /// Clients that each wait for their job before they submit the next.
    pub clients: usize,
    /// Worker processes.
    pub workers: usize,
    /// What is killed when, and what the jobs do.
    pub seed: u64,
}

/// The accounting.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Accounting {
    /// Everything is as it should be.
    pub clean: bool,
    /// On which store.
    pub store: &'static str,
    /// Which seed.
    pub seed: u64,
    /// How long there was load.
    pub seconds: f64,
    /// Jobs whose submission was answered, and the children that histories ask for.
    pub submitted: u64,
    /// Of these, the children.
    pub children: u64,
    /// Jobs in the store that are over.
    pub ended: u64,
    /// By status.
    pub statuses: BTreeMap<String, u64>,
    /// Answered submissions that are not in the store, or not over.
    pub lost: Vec<String>,
    /// Effects that are there in the outside world, by idempotency key.
    pub effects_outside: u64,
    /// Effects that histories call committed.
    pub effects_committed: u64,
    /// Effects that are there, and that histories list as unknown and never settled.
    pub effects_unknown: u64,
    /// Calls that nobody could know about and a person was asked about.
    pub asked: u64,
    /// What is wrong about effects.
    pub wrong_effects: Vec<String>,
    /// What was done to it.
    pub kills: BTreeMap<&'static str, u64>,
    /// Calls that were unknown for a while: their worker was lost, or they took too long.
    pub unknown: u64,
    /// What the check of the whole store found.
    pub problems: Vec<String>,
    /// The server's memory.
    pub memory: Memory,
}

/// Memory of the server, in megabytes, in its longest life.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Memory {
    /// In the second fifth of that life: the first is for warming up.
    pub early: f64,
    /// In its last fifth.
    pub late: f64,
    /// The highest ever.
    pub peak: f64,
    /// How long that life was, in seconds.
    pub seconds: usize,
}

/// How long the server is asked to wait for the end of a job at a time.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A job that is not over after so long hangs, whoever does not answer.
const HANGS: Duration = Duration::from_secs(90);

/// What a megabyte or two of noise may be.
const FLAT_MB: f64 = 24.0;

impl Memory {
    fn of(lives: &[Vec<u64>]) -> Self {
        let mb = |bytes: u64| bytes as f64 / 1_048_576.0;
        let peak = lives.iter().flatten().copied().max().map_or(0.0, mb);
        let longest = lives.iter().max_by_key(|l| l.len()).map(Vec::as_slice).unwrap_or_default();
        let fifth = longest.len() / 5;
        let median = |part: &[u64]| {
            let mut part = part.to_vec();
            part.sort_unstable();
            part.get(part.len() / 2).copied().map_or(0.0, mb)
        };
        let early = median(longest.get(fifth..2 * fifth.max(1)).unwrap_or_default());
        let late = median(longest.get(4 * fifth..).unwrap_or_default());
        Memory { early, late, peak, seconds: longest.len() }
    }

    /// It does not grow.
    pub fn is_flat(&self) -> bool {
        self.late <= self.early * 1.25 + FLAT_MB
    }
}

/// What clients know.
#[derive(Default)]
struct Book {
    /// Jobs whose submission was answered.
    answered: Vec<String>,
    /// Keys of calls that a person was asked about, and whether they said that it happened.
    unknown: BTreeMap<String, bool>,
    /// What went wrong for a client.
    wrong: Vec<String>,
}

struct Load {
    ground: Ground,
    book: Mutex<Book>,
    stop: AtomicBool,
    next: AtomicU64,
    seed: u64,
}

/// Runs it. `tell` hears a line now and then.
pub async fn run(
    wish: &Wish,
    settings: &Settings,
    mut tell: impl FnMut(String),
) -> Result<Accounting, Failure> {
    let rt = TokioRuntime::current();
    let sets = sets(settings);
    let in_force = Settings::load(None, [], &sets)?;
    let lease = in_force.seconds("worker.lease_seconds");
    let plan =
        Plan { engine: wish.engine.clone(), sets: sets.clone(), broken: None, proxied: false };
    let mut cluster = Cluster::start(&plan).await?;
    let scratch = Scratch::make("soak")?;
    let base = Base {
        url: format!("http://{}", cluster.listen()),
        key: Some(cluster.key().to_owned()),
        tenant: None,
        sets,
        lease,
        broken: None,
        patience: PATIENCE,
        submitted: Arc::default(),
        agents: Arc::default(),
    };
    let ground = Ground::make(base, scratch.path(), Layout::Same, flow_of(0), wish.seed).await?;
    let load = Arc::new(Load {
        ground,
        book: Mutex::default(),
        stop: AtomicBool::new(false),
        next: AtomicU64::new(0),
        seed: wish.seed,
    });
    let mut workers = Vec::new();
    for _ in 0..wish.workers {
        workers.push(load.ground.ready_worker(None).await?);
    }
    let mut clients = JoinSet::new();
    for _ in 0..wish.clients {
        clients.spawn(load.clone().client());
    }
    let mut killer =
        Killer { dice: Dice(wish.seed), kills: BTreeMap::new(), lives: vec![Vec::new()], lease };
    let (from, mut struck) = (rt.mono(), rt.mono());
    while rt.mono() - from < wish.time {
        rt.sleep(Duration::from_secs(1).min(wish.kill_every)).await;
        killer.weigh(&cluster);
        if rt.mono() - struck >= wish.kill_every {
            struck = rt.mono();
            let what = killer.strike(&mut cluster, &mut workers, &load.ground).await?;
            let sent = load.next.load(Ordering::SeqCst);
            tell(format!("{:.0} s: {what}; {sent} jobs so far", (rt.mono() - from).as_secs_f64()));
        }
    }
    load.stop.store(true, Ordering::SeqCst);
    tell("no more kills; waiting for the last jobs".into());
    while clients.join_next().await.is_some() {}
    let seconds = (rt.mono() - from).as_secs_f64();
    let settings = cluster.settings()?;
    drop(workers);
    cluster.kill_server().await?;
    tell("checking every history".into());
    let mut accounting = account(wish, &settings, &load).await?;
    accounting.seconds = seconds;
    accounting.kills = killer.kills;
    accounting.memory = Memory::of(&killer.lives);
    accounting.clean = accounting.clean && accounting.memory.is_flat();
    cluster.end().await?;
    Ok(accounting)
}

/// Kills.
struct Killer {
    dice: Dice,
    kills: BTreeMap<&'static str, u64>,
    /// The server's memory, each second of each of its lives.
    lives: Vec<Vec<u64>>,
    lease: Duration,
}

impl Killer {
    fn weigh(&mut self, cluster: &Cluster) {
        let memory = cluster.server().and_then(Hand::memory);
        if let (Some(life), Some(memory)) = (self.lives.last_mut(), memory) {
            life.push(memory);
        }
    }

    async fn strike(
        &mut self,
        cluster: &mut Cluster,
        workers: &mut [Hand],
        ground: &Ground,
    ) -> Result<&'static str, Failure> {
        let pick = usize::try_from(self.dice.below(workers.len() as u64)).unwrap_or(0);
        let what = match self.dice.below(10) {
            0..=6 => {
                if let Some(worker) = workers.get_mut(pick) {
                    worker.kill().await?;
                    *worker = ground.worker(None)?;
                }
                "a worker was killed"
            }
            7..=8 => {
                if let Some(worker) = workers.get_mut(pick) {
                    worker.send(Signal::STOP);
                    tokio::time::sleep(self.lease * 2).await;
                    worker.send(Signal::CONT);
                }
                "a worker was stopped for two leases"
            }
            _ => match cluster.postgres() {
                Some(postgres) if self.dice.below(2) == 0 => {
                    postgres.kill().await?;
                    postgres.start_again().await?;
                    "PostgreSQL was killed"
                }
                _ => {
                    cluster.kill_server().await?;
                    cluster.start_server().await?;
                    self.lives.push(Vec::new());
                    "the server was killed"
                }
            },
        };
        *self.kills.entry(what).or_default() += 1;
        Ok(what)
    }
}

impl Load {
    fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        // Nothing panics under this lock.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn client(self: Arc<Self>) {
        while !self.stop.load(Ordering::SeqCst) {
            let number = self.next.fetch_add(1, Ordering::SeqCst);
            if let Err(e) = self.job(number).await {
                self.book().wrong.push(format!("job {number}: {e}"));
            }
        }
    }

    /// One job, as a careful caller has it done: whatever gets no answer is asked again.
    async fn job(&self, number: u64) -> Result<(), Failure> {
        let (lines, signal) = script(number, &mut Dice(self.seed ^ number));
        let id = self.ground.submit(lines).await?;
        self.book().answered.push(id.clone());
        if signal {
            let payload = json!(number);
            let sent =
                until(PATIENCE, || async { self.ground.signal(&id, "go", &payload).await.ok() });
            sent.await.ok_or_else(|| Failure::System("its signal was never accepted".into()))?;
        }
        let rt = TokioRuntime::current();
        let from = rt.mono();
        loop {
            let hangs = rt.mono() - from > HANGS;
            // The server says when it is over: looking again and again would be most of the load.
            let answer = self.ground.api().wait(&["jobs", &id], LOOK_EVERY).await;
            match answer {
                Ok(job) if job["is_final"] == true => return Ok(()),
                Ok(job) if asks(&job) => self.settle(&id, &job).await,
                Ok(job) if hangs => {
                    return Err(Failure::System(format!("{id} hangs: {}", job["why"])));
                }
                Err(e) if hangs => return Err(e),
                Ok(_) => {}
                Err(_) => tokio::time::sleep(LOOK_EVERY / 4).await,
            }
        }
    }

    /// A person looks outside and says what is true.
    async fn settle(&self, id: &str, job: &Value) {
        let step = &job["attention"]["step"];
        let started =
            |e: &&Value| e["name"] == "tool_invocation_started" && e["body"]["step"] == *step;
        let events = self.ground.events(id).await;
        let Some(call) = events.iter().rfind(started).map(|e| e["body"].clone()) else { return };
        let key = call["key"].as_str().unwrap_or_default().to_owned();
        let happened = || self.ground.outside.done().get(&key).is_some_and(|d| d.acts > d.undone);
        if !happened() {
            // A worker that was stopped in the middle of a call goes on with it when it wakes up: nobody can say "did not
            // happen" before that. No stop of a soak is longer than two leases.
            tokio::time::sleep(self.ground.base.lease * 3).await;
            if !self.ground.job(id).await.is_some_and(|j| asks(&j)) {
                return;
            }
        }
        let done = happened();
        let mut body = json!({ "step": step, "by": "soak",
            "verdict": if done { "happened" } else { "did_not_happen" } });
        if done {
            body["result"] = json!({ "name": "it", "key": key });
        }
        self.book().unknown.insert(key, done);
        // It may have settled itself meanwhile; then it goes on, and so does whoever waits for it.
        drop(self.ground.api().post(&["jobs", id, "resolve"], &body).await);
    }
}

fn asks(job: &Value) -> bool {
    job["status"] == "attention" && job["attention"]["again_in_ms"].is_null()
}

/// What a job does, and whether it waits for a signal.
fn script(number: u64, dice: &mut Dice) -> (Value, bool) {
    let mut lines = Vec::new();
    for i in 0..=dice.below(4) {
        let class = match dice.below(10) {
            0..=3 => "idempotent",
            4..=6 => "verifiable",
            7..=8 => "compensatable",
            _ => "irreversible",
        };
        let name = format!("j{number}.{i}.{class}");
        lines.push(json!({ "act": { "class": class, "name": name, "then_ms": dice.below(30) } }));
    }
    let signal = dice.below(5) == 0;
    if signal {
        lines.push(json!({ "signal": "go" }));
    }
    if dice.below(10) == 0 {
        let name = format!("j{number}.child.verifiable");
        let act = json!({ "act": { "class": "verifiable", "name": name } });
        lines.push(json!({ "child": [act] }));
    }
    let last = format!("j{number}.last.idempotent");
    lines.push(json!({ "act": { "class": "idempotent", "name": last } }));
    (json!(lines), signal)
}

/// What the store and the outside world say, with nobody running.
async fn account(wish: &Wish, settings: &Settings, load: &Load) -> Result<Accounting, Failure> {
    let store = open_read_only(settings, judge()).await?;
    let mut accounting =
        Accounting { store: wish.engine.name(), seed: wish.seed, ..Accounting::default() };
    accounting.problems = problems(&*store).await;
    accounting.problems.extend(load.book().wrong.iter().cloned());
    let mut over = BTreeSet::new();
    let mut committed = BTreeSet::new();
    let mut after = None;
    loop {
        let filter = HeadFilter { kind: Some("job".into()), after, ..HeadFilter::default() };
        let page = store.heads(filter, 500).await?;
        let Some(last) = page.last() else { break };
        after = Some(last.id);
        for head in &page {
            let status = head.status.name();
            *accounting.statuses.entry(status.to_owned()).or_default() += 1;
            if head.class() == Class::Final {
                over.insert(head.id.to_string());
            }
            // A step that was struck more often than it may be tried fails its job, in words: that is no loss.
            let job = tenure_jobs::view::of_head(head)?;
            let reason = job.failure.as_ref().map_or("", |f| f.reason.as_str());
            if status != "completed" && reason != "step_failed" {
                accounting.problems.push(format!("job {} is {status} {reason}", head.id));
            }
            committed_keys(&store, head.id, &mut committed, &mut accounting).await?;
        }
    }
    let book = load.book();
    let answered: BTreeSet<&String> = book.answered.iter().collect();
    accounting.lost =
        answered.iter().filter(|id| !over.contains(**id)).map(|id| (*id).clone()).collect();
    accounting.ended = over.len() as u64;
    // Children are asked for by parents, in their histories, not by clients.
    accounting.submitted = answered.len() as u64 + accounting.children;
    let outside: BTreeSet<String> = load
        .ground
        .outside
        .done()
        .into_iter()
        .filter(|(_, done)| done.acts > done.undone)
        .map(|(key, _)| key)
        .collect();
    accounting.effects_outside = outside.len() as u64;
    accounting.effects_committed = committed.len() as u64;
    // One that was said not to have happened, and stands there all the same, happened late: that is wrong.
    let listed = |key: &String| book.unknown.get(key) == Some(&true) && !committed.contains(key);
    accounting.effects_unknown = outside.iter().filter(|key| listed(key)).count() as u64;
    accounting.asked = book.unknown.len() as u64;
    let nobody_knows = outside.iter().filter(|k| !committed.contains(*k) && !listed(k));
    accounting.wrong_effects.extend(nobody_knows.map(|k| match book.unknown.contains_key(k) {
        true => format!("{k} happened after a person had said that it did not"),
        false => format!("{k} happened, and no history says so"),
    }));
    let never = committed.difference(&outside);
    accounting.wrong_effects.extend(never.map(|k| format!("{k} is committed, and never happened")));
    accounting.wrong_effects.extend(twice(load.ground.outside.done().into_values()));
    accounting.clean = accounting.lost.is_empty()
        && accounting.wrong_effects.is_empty()
        && accounting.problems.is_empty()
        && accounting.ended == accounting.submitted
        && accounting.effects_outside == accounting.effects_committed + accounting.effects_unknown;
    Ok(accounting)
}

/// Every act has a name of its own, which ends with its class: it may stand under one key only, and once there
/// unless its class allows more.
fn twice(done: impl Iterator<Item = Done>) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut standing = BTreeMap::<String, u32>::new();
    for Done { name, acts, undone, .. } in done.filter(|d| d.acts > d.undone) {
        if acts - undone > 1 && !name.ends_with(".idempotent") {
            wrong.push(format!("{name} happened {} times under one key", acts - undone));
        }
        *standing.entry(name).or_default() += 1;
    }
    let more = standing.into_iter().filter(|(_, n)| *n > 1);
    wrong.extend(more.map(|(name, n)| format!("{name} happened under {n} keys")));
    wrong
}

async fn committed_keys(
    store: &Arc<dyn Store>,
    job: tenure_kernel::ids::EntityId,
    committed: &mut BTreeSet<String>,
    accounting: &mut Accounting,
) -> Result<(), Failure> {
    let unreadable = |e: tenure_jobs::drive::LoadError| Failure::Found(format!("job {job}: {e}"));
    let mut from = 1;
    loop {
        let page = store.stream(job, from, 500).await?;
        let Some(last) = page.last() else { return Ok(()) };
        from = last.last() + 1;
        for record in &page {
            let (_, events) =
                tenure_jobs::drive::read_events(store, record).await.map_err(unreadable)?;
            for event in events {
                let body = || -> Value {
                    event
                        .body
                        .inline()
                        .and_then(|b| serde_json::from_slice(b).ok())
                        .unwrap_or_default()
                };
                match &*event.name {
                    "command_committed" => {
                        let body = body();
                        committed.insert(body["key"].as_str().unwrap_or_default().to_owned());
                    }
                    "effect_unknown" => accounting.unknown += 1,
                    "child_started" => accounting.children += 1,
                    _ => {}
                }
            }
        }
    }
}

impl Accounting {
    /// For a terminal.
    pub fn text(&self) -> String {
        let Accounting { store, seed, seconds, submitted, ended, .. } = self;
        let kills: Vec<String> =
            self.kills.iter().map(|(what, n)| format!("{what} {n} ×")).collect();
        let statuses: Vec<String> = self.statuses.iter().map(|(s, n)| format!("{n} {s}")).collect();
        let m = &self.memory;
        let mut lines = vec![
            format!(
                "Soak on {store}, seed {seed}, {seconds:.0} s under load: {}.",
                kills.join(", ")
            ),
            format!(
                "  jobs       {submitted} submitted (children included), {ended} over: {}",
                statuses.join(", ")
            ),
            format!("  lost       {}", self.lost.len()),
            format!(
                "  effects    {} outside = {} committed + {} listed as unknown",
                self.effects_outside, self.effects_committed, self.effects_unknown
            ),
            format!(
                "  unknown    {} calls lost their worker or their answer; a person was asked about {}",
                self.unknown, self.asked
            ),
            format!(
                "  memory     server {:.0} MB early, {:.0} MB late in a life of {} s; peak {:.0} MB: {}",
                m.early,
                m.late,
                m.seconds,
                m.peak,
                if m.is_flat() { "flat" } else { "GROWING" }
            ),
        ];
        for (what, list) in
            [("LOST", &self.lost), ("EFFECT", &self.wrong_effects), ("PROBLEM", &self.problems)]
        {
            lines.extend(list.iter().take(10).map(|l| format!("  {what} {l}")));
        }
        lines.push(if self.clean {
            "Nothing lost, nothing twice, nothing hanging.".into()
        } else {
            "SOMETHING IS WRONG.".to_owned()
        });
        lines.join("\n") + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_judged_in_the_longest_life() {
        let mb = 1_048_576;
        let flat = Memory::of(&[vec![10 * mb], vec![50 * mb; 100]]);
        assert!(flat.is_flat() && flat.seconds == 100);
        let growing: Vec<u64> = (0..100).map(|i| (50 + i * 2) * mb).collect();
        let growing = Memory::of(&[growing]);
        assert!(!growing.is_flat(), "{growing:?}");
        assert!(growing.peak > growing.early);
    }

    #[test]
    fn twice_is_noticed_under_one_key_and_under_two() {
        let done = |name: &str, acts, undone| Done { name: name.into(), acts, undone, probes: 0 };
        let good =
            [done("a.verifiable", 1, 0), done("b.idempotent", 3, 0), done("c.compensatable", 2, 1)];
        assert_eq!(twice(good.into_iter()), [""; 0]);
        assert_eq!(twice([done("a.irreversible", 2, 0)].into_iter()).len(), 1);
        assert_eq!(twice([done("a.x", 1, 0), done("a.x", 1, 0)].into_iter()).len(), 1);
    }

    #[test]
    fn the_same_seed_writes_the_same_scripts() {
        assert_eq!(script(7, &mut Dice(3)), script(7, &mut Dice(3)));
        let signals = (0..200).filter(|n| script(*n, &mut Dice(*n)).1).count();
        assert!((10..100).contains(&signals), "{signals}");
    }
}
