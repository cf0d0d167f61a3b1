//! The processes: executors, collectors, and the crew whose jobs want pods.

use super::{super::config, policy, reach::Reach};
use crate::{
    executor::WallClock,
    faults::Fault,
    scenario::Off,
    storm,
    world::{Boot, Env},
};
use serde_json::Value;
use std::{sync::Arc, time::Duration};
use tenure_engine::pipeline::Pipeline;
use tenure_jobs::{
    call::NewCall,
    crew::{Crew, CrewOptions},
    drive::{
        JobOptions, Shop,
        hands::{self, Hands, Order},
    },
};
use tenure_kernel::{runtime::BoxFuture, stream::Body};
use tenure_pods::{
    collect::{Area, CollectOptions, Collector, Owed, Parts, Sent, Sink, SinkId, SpoolOptions},
    desk::{Defaults, Desk, ReportOutcome, Reporter},
    envelope::TaskEvent,
    execute::{Executor, ExecutorOptions, Patience, PodShop},
    follow::FollowPolicy,
    report::Report,
    step::StepDefaults,
    task::{model::Times, policy::RetryPolicy},
    verdict::CauseClass,
};
use tenure_steps::{
    ctx::Ctx,
    flow::{FlowError, FlowSpec, Flows},
    tool::{ToolSpec, Tools},
};

/// The flow whose only step is a pod.
pub(super) const FLOW: &str = "pod";

/// How often executors look for strays.
const SWEEP: Duration = Duration::from_secs(60);
const DRAIN: Duration = Duration::from_secs(20);
const RETRY: Duration = Duration::from_secs(1);

fn pipeline(env: &Env) -> Pipeline {
    env.pipeline(env.rt.clone(), &config(), super::machines())
}

/// How often a task is tried, and after which pauses.
pub(super) fn retry() -> RetryPolicy {
    RetryPolicy {
        backoff_ms: 2_000,
        backoff_cap_ms: 20_000,
        config: 1,
        timeout: 1,
        ..RetryPolicy::default()
    }
}

/// What a task waits for, in the minutes of this world.
pub(super) fn times() -> Times {
    Times {
        queued_ms: 300_000,
        fence_ms: 120_000,
        stop_ms: 90_000,
        next_pod_ms: 120_000,
        witness_ms: 30_000,
    }
}

/// The `main` of an executor.
pub(crate) fn executor() -> Boot {
    Arc::new(|env: Env| {
        Box::pin(async move {
            let config = Arc::new(config());
            let mut stop = env.stop.clone();
            let cluster = Arc::new(Reach(env.clone()));
            let mut shop = PodShop::new(cluster, env.rt.clone(), policy());
            let sweeps = env.world.yard.terms().off != Some(Off::Sweep);
            shop.patience.sweep = sweeps.then_some(SWEEP);
            if env.world.yard.terms().off == Some(Off::LateRequests) {
                shop.patience = Patience { late: Duration::ZERO, ..shop.patience };
            }
            let shop = Arc::new(shop.with_probe(dies(&env)));
            loop {
                let options = ExecutorOptions {
                    name: env.name.clone(),
                    process: None,
                    cluster: String::new(),
                    slots: 20,
                    drain: DRAIN,
                };
                let started =
                    Executor::start(pipeline(&env), config.clone(), shop.clone(), options).await;
                match started {
                    Ok(mut executor) => {
                        stop.asked().await;
                        executor.stop().await;
                        return;
                    }
                    Err(e) => env.world.sim.trace(format!("{}: no start: {e}", env.name)),
                }
                if stop.is_asked() {
                    return;
                }
                env.rt.sleep(RETRY).await;
            }
        })
    })
}

/// Kills its own process at named points.
fn dies(env: &Env) -> Arc<dyn Fn(&'static str) -> BoxFuture<'static, ()> + Send + Sync> {
    let env = env.clone();
    Arc::new(move |point| {
        let env = env.clone();
        Box::pin(async move {
            let world = &env.world;
            let kills = world.town.setup().kills;
            if world.weather.is_over() || !world.sim.draw(|rng| rng.permille(kills)) {
                return;
            }
            let Some(index) = world.index_of(&env.name) else { return };
            world.sim.trace(format!("{} dies at {point}", env.name));
            world.weather.count(Fault::Crash);
            world.kill(index);
            storm::restart_later(world, index, Duration::ZERO..Duration::from_secs(30));
            std::future::pending::<()>().await;
        })
    })
}

/// The `main` of a collector. It remembers nothing when it dies: what it had seen and not told is seen again, under the same
/// keys, or was gone meanwhile.
pub(super) fn collector() -> Boot {
    Arc::new(|env: Env| {
        Box::pin(async move {
            let reach = Reach(env.clone());
            let desk =
                Desk::new(pipeline(&env), Defaults { adopt_unknown: false, ..Defaults::default() });
            let server: Arc<dyn Sink> = Arc::new(Server(env.clone(), desk.clone()));
            let mut sinks = vec![server];
            if env.world.yard.terms().channel {
                sinks.push(Arc::new(Channel(env.clone(), desk)));
            }
            let options = CollectOptions {
                name: env.name.clone(),
                area: Area::cluster(),
                policy: policy(),
                follow: FollowPolicy::default(),
                spool: SpoolOptions::default(),
                drain: DRAIN,
            };
            let parts = Parts {
                pods: Arc::new(reach.pods()),
                nodes: Some(Arc::new(reach.nodes())),
                asker: Arc::new(reach),
                sinks,
                election: None,
                heard: None,
                rt: env.rt.clone(),
                clock: Arc::new(WallClock(env.world.sim.clone())),
                probe: Some(dies(&env)),
            };
            let collector = match Collector::start(options, parts) {
                Ok(collector) => collector,
                Err(e) => return env.world.fail(format!("a collector can not start: {e}")),
            };
            let mut stop = env.stop.clone();
            stop.asked().await;
            collector.stop().await;
        })
    })
}

/// The durable path: as a server takes reports, with requests and answers that get lost.
struct Server(Env, Desk);

impl Sink for Server {
    fn id(&self) -> SinkId {
        SinkId::Server
    }

    fn send<'a>(&'a self, batch: &'a [Owed]) -> BoxFuture<'a, Sent> {
        Box::pin(async move {
            let Server(env, desk) = self;
            let off = env.world.yard.terms().off;
            let mut reports: Vec<Report> = batch.iter().map(|o| o.saying.report.clone()).collect();
            if off == Some(Off::Fence) {
                // Whoever takes silence for death.
                let lost = reports.iter_mut().filter(|r| r.verdict.class == Some(CauseClass::Lost));
                lost.for_each(|r| r.over = true);
            }
            let answers = match desk.report(&reports, &Reporter::default()).await {
                Ok(answers) => answers,
                Err(e) => return Sent::none(e.to_string()),
            };
            if !env.world.weather.is_over() && env.world.sim.draw(|rng| rng.permille(50)) {
                return Sent::none("the answer was lost".to_owned());
            }
            let refused = answers.into_iter().enumerate();
            let refused = refused.filter(|(_, a)| a.outcome == ReportOutcome::Refused);
            let refused = refused.map(|(i, a)| (i, a.why.unwrap_or_default())).collect();
            Sent { refused, ..Sent::all(batch) }
        })
    }
}

/// The channel: whoever listens may not be there, and hears late.
struct Channel(Env, Desk);

impl Sink for Channel {
    fn id(&self) -> SinkId {
        SinkId::Channel
    }

    fn send<'a>(&'a self, batch: &'a [Owed]) -> BoxFuture<'a, Sent> {
        Box::pin(async move {
            let Channel(env, desk) = self;
            for owed in batch {
                let Some(event) = TaskEvent::of_report(&owed.saying.report) else { continue };
                let (lost, nap) = env.world.sim.draw(|rng| {
                    (rng.permille(200), rng.between(Duration::ZERO..Duration::from_secs(3)))
                });
                let (env, desk) = (env.clone(), desk.clone());
                if !lost {
                    env.rt.clone().spawn(Box::pin(async move {
                        env.rt.sleep(nap).await;
                        // A hint: whether it was heard changes nothing.
                        let _ = desk.hint(&event).await;
                    }));
                }
            }
            Sent::all(batch)
        })
    }
}

async fn pod(ctx: Ctx, input: Value) -> Result<Value, FlowError> {
    Ok(ctx.tool("pod", input).await?)
}

/// Calls as tasks, as the program composes it.
struct PodHands(StepDefaults, Vec<ToolSpec>);

impl Hands for PodHands {
    fn tools(&self) -> &[ToolSpec] {
        &self.1
    }

    fn check(&self, _tool: &str, input: &Value) -> Result<(), String> {
        self.0.check(input)
    }

    fn order(&self, call: &NewCall, tenant: &str) -> Order {
        let call = serde_json::to_value(call).unwrap_or_default();
        let task = self.0.order(&call, tenant).unwrap_or_default();
        Order { kind: "task".into(), body: Body::json(&task) }
    }
}

/// The `main` of the crew that runs jobs.
pub(super) fn crew() -> Boot {
    Arc::new(|env: Env| {
        Box::pin(async move {
            let config = Arc::new(config());
            let mut spec = hands::spec("pod");
            spec.options.timeout = Some(Duration::from_secs(2_400));
            let defaults = StepDefaults {
                retry: retry(),
                budget: env.world.yard.terms().budget,
                times: times(),
                ..StepDefaults::default()
            };
            let flows = Flows::default().with(FlowSpec::new(FLOW, pod));
            let shop = Shop::new(flows, Tools::default(), JobOptions::default())
                .with_hands(Arc::new(PodHands(defaults, vec![spec])));
            let shop = Arc::new(shop);
            let mut stop = env.stop.clone();
            loop {
                let options =
                    CrewOptions { name: env.name.clone(), executor: None, slots: 20, drain: DRAIN };
                let crew = Crew::start(pipeline(&env), config.clone(), shop.clone(), options).await;
                match crew {
                    Ok(mut crew) => {
                        stop.asked().await;
                        crew.stop().await;
                        return;
                    }
                    Err(e) => env.world.sim.trace(format!("{}: no start: {e}", env.name)),
                }
                if stop.is_asked() {
                    return;
                }
                env.rt.sleep(RETRY).await;
            }
        })
    })
}
