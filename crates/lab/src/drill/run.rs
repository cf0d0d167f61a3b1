//! Holds a drill: cases side by side, each in a world of its own, and the matrix in the end.

use super::{
    agents,
    breaks::Break,
    bus::Bus,
    case::{Case, Where},
    cluster::{Cluster, Engine, Plan, Scratch},
    ground::{Base, Ground, api, flow_of},
    jobs,
    matrix::{Board, Finished, RowSeen, Told, is_clean, is_whole},
    pods,
    processes::PATIENCE,
    redis::Redis,
};
use serde::Serialize;
use serde_json::json;
use std::{
    path::PathBuf,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tenure::{
    commands::Failure,
    config::{KEYS, Origin, Settings},
};
use tokio::{sync::Semaphore, task::JoinSet};

/// Cases at once. Most of a case is waiting for leases.
const AT_ONCE: usize = 6;

/// Cases of pods at once: their processes wait for a cluster that does nothing by itself.
const AT_ONCE_OF_PODS: usize = 10;

/// How long a job is waited for where a protection is off: what hangs then hangs for ever.
const PATIENCE_WHEN_BROKEN: Duration = Duration::from_secs(12);

/// Settings of a drill's processes, where whoever runs it has not set them: short leases, so that takeovers
/// take seconds; and enough of them for the row of reclaims.
const QUICK: &[(&str, &str)] = &[
    ("worker.lease_seconds", "1.5"),
    ("worker.renewal_seconds", "0.3"),
    ("server.tick_seconds", "0.25"),
    ("server.pulse_gap_seconds", "1"),
    ("executor.backoff", "0.05"),
    ("executor.stop_grace", "0.5"),
    ("job.takeovers_max", "64"),
    // What the API server of a drill was asked for it does at once.
    ("pods.request_late_seconds", "1"),
    ("pods.backoff_seconds", "0.05"),
    ("pods.witness_seconds", "2"),
    ("pods.backoff_max_seconds", "0.2"),
    ("collector.silence_seconds", "1"),
    ("collector.lease_seconds", "1"),
    // The models of its agents are scripts in its own process.
    ("egress.allow", "*=127.0.0.1"),
];

/// Settings that say where something is: a drill has its own.
const PLACES: &[&str] = &[
    "store.url",
    "server.listen",
    "effects.directory",
    "log.filter",
    "log.format",
    "pods.cluster",
    "pods.executor",
    "pods.executor_listen",
    "pods.listen",
    "redis.addresses",
    "kubernetes.in_cluster",
    "kubernetes.kubeconfig",
    "kubernetes.namespace",
    "kubernetes.node_name",
    "kubernetes.service_account",
    "collector.lease",
    "collector.lease_namespace",
    "collector.listen",
    "collector.mode",
    "collector.server",
    "collector.spool",
];

/// The log lines that cases wait for.
const LOG: &str = "log.filter=warn,tenure=info,tenure_jobs=info";

/// Somebody's own deployment.
#[derive(Clone, Debug)]
pub struct Against {
    /// Its server.
    pub url: String,
    /// A key that is bound to a scratch tenant, with the scopes read, write and worker.
    pub key: Option<String>,
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Wish {
    /// On processes of its own, with this store.
    pub engine: Engine,
    /// Or on somebody's own deployment.
    pub against: Option<Against>,
    /// Which matrix; without it the one that the rows are of, or that of jobs.
    pub kind: Option<String>,
    /// Only these rows; all of them if empty.
    pub faults: Vec<String>,
    /// Only cases whose name has this.
    pub only: Option<String>,
    /// How often each case is played.
    pub rounds: u32,
    /// Orders the cases, and goes into what they send.
    pub seed: u64,
    /// A protection that is switched off.
    pub broken: Option<Break>,
}

/// What came out.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// Which matrix.
    pub kind: &'static str,
    /// Nothing is broken.
    pub clean: bool,
    /// On which store, or which deployment.
    pub place: String,
    /// Who was drilled.
    pub version: &'static str,
    /// When it began, in seconds since 1970.
    pub at: i64,
    /// How long it took.
    pub seconds: f64,
    /// Which seed.
    pub seed: u64,
    /// How often each case was played.
    pub rounds: u32,
    /// Which protection was off.
    pub broken: Option<&'static str>,
    /// The columns.
    pub columns: &'static [super::matrix::Column],
    /// The rows.
    pub rows: Vec<RowSeen>,
}

/// What is known while it goes on.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Cases that are over.
    pub done: usize,
    /// All of them.
    pub all: usize,
    /// The one that has just ended.
    pub case: String,
    /// It saw nothing broken.
    pub good: bool,
}

/// The matrices there are. Later kinds of work add theirs.
pub static BOARDS: &[&Board] = &[&jobs::BOARD, &agents::BOARD, &pods::BOARD];

/// The cases of a matrix.
fn cases_of(board: &Board, place: &Where) -> Vec<Case> {
    match board.kind {
        "agents" => agents::cases(),
        "pods" => pods::cases(place),
        _ => jobs::cases(place),
    }
}

/// Where cases are played.
struct Field {
    base: Base,
    plan: Plan,
    dir: PathBuf,
    against: bool,
    places: Mutex<Vec<usize>>,
    free: Semaphore,
    seed: u64,
}

/// Holds it, unless `end` comes first: then whatever it had started is ended.
pub async fn run<E: Future>(
    wish: &Wish,
    settings: &Settings,
    mut end: Pin<&mut E>,
    mut tell: impl FnMut(&Progress),
) -> Result<Outcome, Failure> {
    let board = check(wish)?;
    let rt = tenure_edge::TokioRuntime::current();
    let mono = || tenure_kernel::runtime::Runtime::mono(&rt);
    let clock = || tenure_kernel::runtime::Clock::now(&tenure_edge::SystemClock);
    let (from, at) = (mono(), clock().as_micros() / 1_000_000);
    let sets = sets(settings);
    let in_force = Settings::load(None, [], &sets)?;
    let plan = Plan {
        engine: wish.engine.clone(),
        sets: sets.clone(),
        broken: wish.broken,
        proxied: false,
    };
    let scratch = Scratch::make("cases")?;
    let place = Where {
        engine: wish.against.is_none().then(|| wish.engine.clone()),
        // A deployment gives up a job after as many lost workers as its own settings say: five, by default.
        rounds_of_reclaim: if wish.against.is_some() { 4 } else { 20 },
    };
    let cases = chosen(cases_of(board, &place), wish);
    let shared = match &wish.against {
        Some(_) => None,
        None if cases.iter().all(|c| c.alone) => None,
        // The first poll of `end` is what makes Ctrl-C its business.
        None => tokio::select! {
            biased;
            _ = end.as_mut() => return Err(interrupted()),
            started = Cluster::start(&plan) => Some(started?),
        },
    };
    let tenant = match &wish.against {
        Some(against) => Some(scratch_tenant(against).await?),
        None => None,
    };
    let base = base(wish, &in_force, sets, shared.as_ref(), tenant);
    let at_once = if board.kind == pods::BOARD.kind { AT_ONCE_OF_PODS } else { AT_ONCE };
    let field = Arc::new(Field {
        base,
        plan,
        dir: scratch.path().to_owned(),
        against: wish.against.is_some(),
        places: Mutex::new((0..at_once).collect()),
        free: Semaphore::new(at_once),
        seed: wish.seed,
    });
    let mut finished = Vec::new();
    let (mut running, all) = (JoinSet::new(), cases.len());
    for (number, case) in cases.into_iter().enumerate() {
        running.spawn(field.clone().play(number, case));
    }
    let mut given_up = None;
    loop {
        let next = tokio::select! {
            biased;
            _ = end.as_mut() => {
                given_up = Some(interrupted());
                None
            }
            next = running.join_next() => next,
        };
        let one = match next {
            Some(Ok(one)) => one,
            Some(Err(e)) => {
                given_up = Some(Failure::System(format!("a case of the drill: {e}")));
                break;
            }
            None => break,
        };
        let rows = board.fill(std::slice::from_ref(&one), |_| String::new());
        let (case, good) = (format!("{}: {}", one.row, one.case), is_clean(&rows));
        finished.push(one);
        tell(&Progress { done: finished.len(), all, case, good });
    }
    // Everything of the cases is dropped here, and with it their processes.
    running.shutdown().await;
    if field.against {
        field.leave_nothing_open().await;
    }
    if let Some(why) = given_up {
        return Err(why);
    }
    if board.kind == pods::BOARD.kind && !Redis::is_here() {
        finished.extend(unheard(&finished));
    }
    finished.sort_by(|a, b| a.case.cmp(&b.case));
    if let Some(cluster) = shared {
        cluster.end().await?;
    }
    let value = |key: &str| match key {
        "store.url" => wish.place(),
        "effects.directory" => {
            "empty (in the store), and a directory in the cases that say so".into()
        }
        "bus.url" => "a NATS of the drill's own, in the cases that say so".into(),
        "redis.addresses" => "a Redis of the drill's own".into(),
        "collector.spool" => "a directory, and none in the case that says so".into(),
        "collector.lease" => "none, and the default in the case of two".into(),
        key => in_force.text(key).to_owned(),
    };
    let rows = board.fill(&finished, value);
    let all_asked = wish.faults.is_empty() && wish.only.is_none() && wish.against.is_none();
    Ok(Outcome {
        kind: board.kind,
        clean: is_clean(&rows) && (!all_asked || is_whole(&rows)),
        place: wish.place(),
        version: env!("CARGO_PKG_VERSION"),
        at,
        seconds: mono().saturating_sub(from).as_secs_f64(),
        seed: wish.seed,
        rounds: wish.rounds,
        broken: wish.broken.map(Break::name),
        columns: board.columns,
        rows,
    })
}

/// That nobody listened to the channel, in every row that was played.
fn unheard(finished: &[Finished]) -> Vec<Finished> {
    let played = finished.iter().filter(|f| matches!(f.told, Told::Saw(_))).map(|f| f.row);
    let rows: std::collections::BTreeSet<&'static str> = played.collect();
    let one = |row| {
        let told = Told::LeftOut(NO_REDIS.into());
        Finished { case: "what the channel is told".into(), row, told }
    };
    rows.into_iter().map(one).collect()
}

const NO_REDIS: &str = "not drilled here: there is no redis-server in the PATH";

fn interrupted() -> Failure {
    Failure::System("interrupted; what the drill had started is ended".into())
}

impl Wish {
    fn place(&self) -> String {
        match &self.against {
            Some(against) => against.url.clone(),
            None => self.engine.name().to_owned(),
        }
    }
}

/// The matrix that is asked for.
fn check(wish: &Wish) -> Result<&'static Board, Failure> {
    let has = |board: &Board, fault: &str| board.rows.iter().any(|r| r.key == fault);
    let board = match &wish.kind {
        Some(kind) => BOARDS.iter().find(|b| b.kind == kind).ok_or_else(|| {
            let kinds: Vec<&str> = BOARDS.iter().map(|b| b.kind).collect();
            Failure::System(format!(
                "there is no matrix of {kind:?}; there are: {}",
                kinds.join(", ")
            ))
        })?,
        None => {
            let of_the_first = |b: &&&Board| wish.faults.first().is_some_and(|f| has(b, f));
            BOARDS.iter().find(of_the_first).unwrap_or(&BOARDS[0])
        }
    };
    if let Some(unknown) = wish.faults.iter().find(|f| !has(board, f)) {
        let known = |b: &&Board| b.rows.iter().map(|r| r.key).collect::<Vec<_>>().join(", ");
        let words = match BOARDS.iter().find(|b| has(b, unknown)) {
            Some(other) => format!(
                "{unknown:?} is a fault of {}, and this is a drill of {}: hold two",
                other.kind, board.kind
            ),
            None => {
                let of: Vec<String> =
                    BOARDS.iter().map(|b| format!("{} (of {})", known(b), b.kind)).collect();
                format!("there is no fault {unknown:?}; there are: {}", of.join("; "))
            }
        };
        return Err(Failure::System(words));
    }
    if wish.against.is_some() && wish.broken.is_some() {
        return Err(Failure::System(
            "--break switches off a protection and is never used on a deployment: leave out --against".into(),
        ));
    }
    if wish.against.is_some() && board.kind == pods::BOARD.kind {
        return Err(Failure::System(
            "pods are drilled in a cluster that can be broken, on processes of the drill's own: leave out --against".into(),
        ));
    }
    Ok(board)
}

/// The settings of all processes: what was set, and quick ones for the rest.
pub fn sets(settings: &Settings) -> Vec<String> {
    let mut sets = vec![LOG.to_owned()];
    for key in KEYS.iter().filter(|k| !PLACES.contains(&k.name)) {
        if settings.origin(key.name) != Origin::Default {
            sets.push(format!("{}={}", key.name, settings.text(key.name)));
        } else if let Some((_, quick)) = QUICK.iter().find(|(name, _)| *name == key.name) {
            sets.push(format!("{}={quick}", key.name));
        }
    }
    sets
}

fn base(
    wish: &Wish,
    in_force: &Settings,
    sets: Vec<String>,
    shared: Option<&Cluster>,
    tenant: Option<String>,
) -> Base {
    let own = shared.map(|c| format!("http://{}", c.listen())).unwrap_or_default();
    let (url, key) = match &wish.against {
        Some(against) => (against.url.trim_end_matches('/').to_owned(), against.key.clone()),
        None => (own, shared.map(|cluster| cluster.key().to_owned())),
    };
    Base {
        url,
        key,
        tenant,
        sets,
        lease: in_force.seconds("worker.lease_seconds"),
        broken: wish.broken,
        patience: if wish.broken.is_some() { PATIENCE_WHEN_BROKEN } else { PATIENCE },
        submitted: Arc::default(),
        agents: Arc::default(),
    }
}

/// Which cases, how often, in which order.
fn chosen(cases: Vec<Case>, wish: &Wish) -> Vec<Case> {
    let wanted = |case: &Case| {
        (wish.faults.is_empty() || wish.faults.iter().any(|f| f == case.row))
            && wish.only.as_ref().is_none_or(|only| case.name.contains(only.as_str()))
    };
    let once: Vec<Arc<Case>> = cases.into_iter().filter(wanted).map(Arc::new).collect();
    let mut all = Vec::new();
    for round in 1..=wish.rounds {
        for case in &once {
            let play = case.clone();
            let name = match wish.rounds {
                1 => case.name.clone(),
                _ => format!("{} (round {round})", case.name),
            };
            all.push(Case {
                name,
                row: case.row,
                layout: case.layout,
                alone: case.alone,
                proxied: case.proxied,
                sets: case.sets.clone(),
                bus: case.bus,
                redis: case.redis,
                play: Box::new(move |ground| (play.play)(ground)),
            });
        }
    }
    // The long ones first, then as the seed says.
    let order = |case: &Case| {
        let long = case.row != jobs::row::RECLAIM && case.row != jobs::row::BLOCKED;
        (long, mixed(wish.seed, &case.name))
    };
    all.sort_by_cached_key(order);
    all
}

fn mixed(seed: u64, name: &str) -> u64 {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    let mut hasher = DefaultHasher::new();
    (seed, name).hash(&mut hasher);
    hasher.finish()
}

/// The tenant of the key. A key without one registers flows for every tenant of the deployment, and is refused.
async fn scratch_tenant(against: &Against) -> Result<String, Failure> {
    let caller = api(&against.url, against.key.clone())?.get(&["whoami"], &[]).await?;
    let scopes: Vec<&str> =
        caller["scopes"].as_array().into_iter().flatten().filter_map(|s| s.as_str()).collect();
    let missing: Vec<&str> =
        ["read", "write", "worker"].into_iter().filter(|s| !scopes.contains(s)).collect();
    match caller["tenant"].as_str() {
        Some(tenant) if missing.is_empty() => Ok(tenant.to_owned()),
        Some(_) => Err(Failure::System(format!(
            "the key for --against lacks the scopes {}: {MAKE_A_KEY}",
            missing.join(", ")
        ))),
        None => Err(Failure::System(format!(
            "the key for --against is bound to no tenant, and a drill registers flows only for a scratch tenant: {MAKE_A_KEY}"
        ))),
    }
}

const MAKE_A_KEY: &str = "tenure key create drill --tenant drill-scratch --scope read,write,worker";

impl Field {
    async fn play(self: Arc<Self>, number: usize, case: Case) -> Finished {
        let (name, row) = (case.name.clone(), case.row);
        let told = match case.alone && self.against {
            true => Told::LeftOut(
                "it kills servers or stores, or sets them otherwise, and those of a deployment are not the drill's to kill"
                    .into(),
            ),
            // The semaphore lives as long as the field.
            false if case.bus && !Bus::is_here() => Told::LeftOut(
                "not drilled here: there is no nats-server in the PATH".into(),
            ),
            false if case.redis && !Redis::is_here() => Told::LeftOut(NO_REDIS.into()),
            false => match self.free.acquire().await {
                Ok(_turn) => self.take_place(number, &case).await,
                Err(e) => Told::Failed(e.to_string()),
            },
        };
        Finished { case: name, row, told }
    }

    async fn take_place(&self, number: usize, case: &Case) -> Told {
        let place = self.places().pop().unwrap_or(AT_ONCE_OF_PODS);
        let told = match self.in_its_world(number, place, case).await {
            Ok(witnessed) => Told::Saw(witnessed),
            Err(e) => Told::Failed(e.to_string()),
        };
        self.places().push(place);
        told
    }

    fn places(&self) -> std::sync::MutexGuard<'_, Vec<usize>> {
        // Nothing panics under this lock.
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn in_its_world(
        &self,
        number: usize,
        place: usize,
        case: &Case,
    ) -> Result<super::matrix::Witnessed, Failure> {
        let mut base = self.base.clone();
        let dir = self.dir.join(format!("case-{number}"));
        let bus = match case.bus {
            true => Some(Bus::start(&dir).await?),
            false => None,
        };
        let cluster = match case.alone {
            true => {
                let mut plan = Plan { proxied: case.proxied, ..self.plan.clone() };
                plan.sets.extend(case.sets.iter().cloned());
                plan.sets.extend(bus.as_ref().map(|b| format!("bus.url={}", b.url())));
                let cluster = Cluster::start(&plan).await?;
                base.url = format!("http://{}", cluster.listen());
                base.key = Some(cluster.key().to_owned());
                Some(cluster)
            }
            false => None,
        };
        let seed = mixed(self.seed, &case.name);
        let mut ground = Ground::make(base, &dir, case.layout, flow_of(place), seed).await?;
        (ground.cluster, ground.bus) = (cluster, bus);
        // With the ground go its workers, its server, its store and its scratch database.
        (case.play)(ground).await
    }

    /// Whatever a case could not bring to its end is cancelled.
    async fn leave_nothing_open(&self) {
        let Ok(api) = api(&self.base.url, self.base.key.clone()) else { return };
        for job in self.base.submitted() {
            let path = ["jobs", job.as_str()];
            let over = api.get(&path, &[]).await.is_ok_and(|j| j["is_final"] == true);
            if !over {
                let body = json!({ "why": "the drill that made it is over" });
                if let Err(e) = api.post(&["jobs", &job, "cancel"], &body).await {
                    tracing::warn!(job, error = %e, "a job of the drill is left");
                }
            }
        }
        let agents = self.base.agents().clone();
        for agent in agents {
            if let Err(e) = agents::leave(&api, self.base.tenant.as_deref(), &agent).await {
                tracing::warn!(agent, error = %e, "an agent of the drill is left");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn rows() -> impl Iterator<Item = (&'static Board, &'static super::super::matrix::Row)> {
        BOARDS.iter().flat_map(|board| board.rows.iter().map(move |row| (*board, row)))
    }

    #[test]
    fn every_row_promises_something_in_every_column_and_names_real_settings() {
        let sizes: Vec<_> =
            BOARDS.iter().map(|b| (b.kind, b.rows.len(), b.columns.len())).collect();
        assert_eq!(sizes, [("jobs", 11, 7), ("agents", 12, 8), ("pods", 15, 9)]);
        for (board, row) in rows() {
            assert_eq!(row.promises.len(), board.columns.len(), "{}", row.key);
            for setting in row.settings {
                assert!(KEYS.iter().any(|k| k.name == *setting), "{setting}");
            }
        }
    }

    #[test]
    fn every_row_has_cases_on_every_store_and_their_names_are_unique() {
        let own = Engine::Postgres("postgres://somewhere".into());
        for engine in [Engine::Sqlite, Engine::PrivatePostgres, own] {
            let place = Where { engine: Some(engine), rounds_of_reclaim: 20 };
            for board in BOARDS {
                let cases = cases_of(board, &place);
                for row in board.rows {
                    assert!(cases.iter().any(|c| c.row == row.key), "{}", row.key);
                }
                let names: BTreeSet<&str> = cases.iter().map(|c| c.name.as_str()).collect();
                assert_eq!(names.len(), cases.len(), "{}", board.kind);
            }
        }
    }

    #[test]
    fn no_two_faults_have_the_same_name() {
        let keys: BTreeSet<&str> = rows().map(|(_, row)| row.key).collect();
        assert_eq!(keys.len(), rows().count());
    }
}
