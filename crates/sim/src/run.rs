//! One run: build the world, let it storm, let it rest, and check.

use crate::{
    check,
    executor::{Sim, Stuck, WallClock},
    faults::{Fault, Faults},
    rng::Rng,
    scenario::{self, Off, Scenario, Strike},
    storm,
    world::World,
};
use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};
use tenure_engine::checkers::check_everything;
use tenure_kernel::{
    judge::{Judge, Protections},
    rules::Tallies,
    runtime::Clock as _,
    time::Timestamp,
};

/// How a run is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// What is played.
    pub scenario: Scenario,
    /// What may go wrong.
    pub faults: Faults,
    /// Every allowed fault happens, instead of some that the seed picks.
    pub all_faults: bool,
    /// All on, except to show that something then breaks.
    pub protections: Protections,
    /// How long the storm lasts.
    pub storm: Duration,
    /// How long everything may take to come to rest after it.
    pub quiet: Duration,
    /// Server processes.
    pub servers: usize,
    /// Worker processes.
    pub workers: usize,
    /// How many parts a fan has, or how many jobs there are, instead of what the seed says.
    pub width: Option<u64>,
    /// What jobs do without, to show that something then breaks.
    pub off: Option<Off>,
    /// How often gates and batches are left alone until retention takes them, instead of what the seed says.
    pub seasons: Option<u64>,
    /// The first worker of jobs is struck right before this poll; the flow is a short one.
    pub strike: Option<(u64, Strike)>,
}

impl Options {
    /// The usual run of a scenario.
    pub fn new(scenario: Scenario) -> Self {
        Options {
            scenario,
            faults: Faults::all(),
            all_faults: false,
            protections: Protections::default(),
            storm: Duration::from_secs(100),
            quiet: Duration::from_secs(3 * 3_600),
            servers: 2,
            workers: 2,
            width: None,
            off: None,
            seasons: None,
            strike: None,
        }
    }

    /// Only these faults, all of them.
    pub fn with_only(mut self, faults: &[Fault]) -> Self {
        (self.faults, self.all_faults) = (Faults::only(faults), true);
        self
    }

    /// With other protections.
    pub fn protected(mut self, protections: Protections) -> Self {
        self.protections = protections;
        self
    }
}

/// What happened.
#[derive(Clone, Debug)]
pub struct Report {
    /// From which seed.
    pub seed: u64,
    /// What was played.
    pub scenario: Scenario,
    /// How much virtual time went by.
    pub lasted: Duration,
    /// Polls.
    pub steps: u64,
    /// What each fault did.
    pub faults: BTreeMap<Fault, u64>,
    /// What the rules did.
    pub rules: Tallies,
    /// Entities at the end.
    pub entities: usize,
    /// The same by kind.
    pub kinds: BTreeMap<&'static str, usize>,
    /// Accepted commits.
    pub commits: u64,
    /// Commits refused because something else came first.
    pub fenced: u64,
    /// Entities that retention removed.
    pub retired: usize,
    /// Entities that came again after that.
    pub reborn: u64,
    /// Commits that were recognised as repetitions.
    pub repeated: u64,
    /// Tenures ended because the holder's session had lapsed.
    pub reclaimed: usize,
    /// Effects outside.
    pub effects: usize,
    /// What happened in the cluster, and how often.
    pub cluster: BTreeMap<&'static str, u64>,
    /// The last trace lines.
    pub trace: Vec<String>,
    /// Equal for equal runs.
    pub hash: u64,
}

/// A law was broken.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Replays it.
    pub seed: u64,
    /// What was played.
    pub scenario: Scenario,
    /// Which law, in words.
    pub broken: String,
    /// When.
    pub at: Duration,
    /// What went on before.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scenario, seed) = (self.scenario.name(), self.seed);
        writeln!(f, "{scenario} {seed} failed after {:?}: {}", self.at, self.broken)?;
        self.trace.iter().try_for_each(|line| writeln!(f, "  {line}"))?;
        write!(f, "  add to crates/sim/regressions.txt: {scenario} {seed} # {}", self.broken)
    }
}

/// Runs one seed.
pub fn run(seed: u64, options: &Options) -> Result<Report, Box<Failure>> {
    let scenario = options.scenario;
    let mut rng = Rng::new(seed ^ 0x5eed);
    let faults = storm::draw(&mut rng, &options.faults, options.all_faults);
    let skewed = faults.iter().any(|(f, _)| *f == Fault::ClockSkew);
    let judge =
        Judge { protections: options.protections, ..Judge::new(scenario.machines().tables()) };
    let world = World::new(seed, judge, skewed);
    let names: Vec<_> = faults.iter().map(|(f, w)| format!("{f}*{w}")).collect();
    world.sim.trace(format!("{} {seed}: {}", scenario.name(), names.join(" ")));

    let outcome = play(&world, options, faults);
    if let Err(broken) = &outcome {
        scenario::jobs::check::tell(&world, broken);
    }
    let (trace, hash) = world.sim.traced();
    let at = world.sim.now();
    let result = match outcome {
        Ok(()) => {
            let seen = world.oracle.seen();
            let (rules, kinds) = world.store.inspect(|c| {
                let mut kinds: BTreeMap<&'static str, usize> = BTreeMap::new();
                c.rows.heads.values().for_each(|h| *kinds.entry(h.kind()).or_default() += 1);
                (c.tallies.clone(), kinds)
            });
            Ok(Report {
                seed,
                scenario,
                lasted: at,
                steps: world.sim.steps(),
                faults: world.weather.counts(),
                rules,
                entities: kinds.values().sum(),
                kinds,
                commits: seen.commits,
                fenced: seen.fenced,
                repeated: seen.repeated,
                retired: seen.former.len(),
                reborn: seen.reborn,
                reclaimed: seen.reclaimed.len(),
                effects: world.outside.all().len() + world.town.count(),
                cluster: world.yard.counts(),
                trace,
                hash,
            })
        }
        Err(broken) => Err(Box::new(Failure { seed, scenario, broken, at, trace })),
    };
    world.end();
    result
}

fn play(world: &Arc<World>, options: &Options, faults: Vec<(Fault, u64)>) -> Result<(), String> {
    let scenario = options.scenario;
    // A worker of jobs lets go at a missed renewal, whoever is to blame for it; others wait and go on.
    let lets_go = scenario.is_jobs() || matches!(scenario, Scenario::Agents | Scenario::Tasks);
    let costs = |f: Fault| f.costs_tenures() || (lets_go && f == Fault::Outage);
    let keeps_tenures = !faults.iter().any(|(f, _)| costs(*f)) && options.strike.is_none();
    for i in 0..options.servers {
        world.add(&format!("server-{i}"), scenario.server(options.protections.pulse));
    }
    for i in 0..options.workers {
        world.add(&format!("worker-{i}"), scenario.worker());
    }
    if lets_go {
        scenario::jobs::prepare(world, options, &faults);
    }
    if scenario == Scenario::Tasks {
        scenario::tasks::prepare(world, options, &faults);
    }
    let clients = scenario.play(world, options.width);
    let director = world.outsider("director");
    let over = Arc::new(AtomicBool::new(false));
    let (stage, flag) = (world.clone(), over.clone());
    let calm_at = Arc::new(Mutex::new(Timestamp::ZERO));
    let ends = calm_at.clone();
    let (storm, quiet) = (options.storm, options.quiet);
    director.rt.spawn(Box::pin(async move {
        for storms in 1.. {
            storm::rage(stage.clone(), faults.clone(), storm).await;
            let calm = WallClock(stage.sim.clone()).now();
            *ends.lock().unwrap_or_else(PoisonError::into_inner) = calm;
            if storms > stage.town.setup().seasons {
                break;
            }
            // Until everybody comes back, if anybody will.
            while stage.town.seasons() < storms && clients.left() > 0 {
                stage.sim.sleep(Duration::from_secs(1)).await;
            }
        }
        let machines = scenario.machines();
        if let Err(broken) = stage.store.inspect(|c| check::always(c, &machines)) {
            stage.fail(broken);
        }
        let end = stage.sim.now() + quiet;
        while stage.sim.now() < end {
            stage.sim.sleep(Duration::from_secs(2)).await;
            let rests = stage.store.inspect(|c| check::at_rest(c, &stage.oracle.seen()).is_ok());
            if clients.left() == 0 && rests {
                break;
            }
        }
        if scenario == Scenario::Tasks {
            // What runs on a dark node ends when that is back.
            while stage.yard.is_dark() {
                stage.sim.sleep(Duration::from_secs(1)).await;
            }
            // What is under way in the cluster arrives, if anything is.
            stage.sim.sleep(Duration::from_secs(200)).await;
            // And what somebody on the way kept back is made, found and deleted.
            if stage.yard.counts().contains_key("copy kept") {
                stage.sim.sleep(scenario::tasks::CLEANED).await;
            }
        }
        if clients.left() > 0 {
            stage.fail(format!("{} clients were never answered", clients.left()));
        }
        flag.store(true, Ordering::Relaxed);
    }));
    let broken = || world.oracle.seen().broken.first().cloned();
    let done = || over.load(Ordering::Relaxed) || !world.oracle.seen().broken.is_empty();
    world.sim.run_until(done).map_err(|stuck: Stuck| {
        let rests = world.store.inspect(|c| check::at_rest(c, &world.oracle.seen()));
        format!("{stuck} ({})", rests.err().unwrap_or_else(|| "all at rest".into()))
    })?;
    if let Some(broken) = broken() {
        return Err(broken);
    }
    let reclaimed = world.oracle.seen().reclaimed.clone();
    if let (true, Some(one)) = (keeps_tenures, reclaimed.first()) {
        let n = reclaimed.len();
        return Err(format!("{n} tenures of living processes were taken away, one of {one}"));
    }
    world.store.inspect(|contents| {
        check::always(contents, &scenario.machines())?;
        check::at_rest(contents, &world.oracle.seen())?;
        let everything = world.oracle.seen().with_former(contents);
        scenario.check(world, &everything, *calm_at.lock().unwrap_or_else(PoisonError::into_inner))
    })?;
    now(check::feed(&world.store))?;
    if scenario.is_jobs() || scenario == Scenario::Tasks {
        let (machines, tables) = (scenario.machines(), scenario.machines().tables());
        let found = now(check_everything(&world.store, &machines, &tables));
        return found.first().map_or(Ok(()), |wrong| Err(wrong.clone()));
    }
    Ok(())
}

/// Runs a future that never waits: a calm store answers at once.
fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut cx) {
            return value;
        }
    }
}

impl World {
    /// Takes everything apart: tasks hold the world and the world holds tasks.
    fn end(&self) {
        self.forget_processes();
        self.yard.close();
        Sim::end(&self.sim);
    }
}
