//! `bench agents`: turns of agents, with a model in this process that answers at once.
//!
//! *Turns per second*: every client has an agent of its own, sends it a turn, waits for the final event at the wire, and
//! sends the next. One turn is five commits: sent, dispatched, claimed, begun, finished; and three of its agent.
//! *Send to first step*: from the call that sends until the model is asked; by then the step is durably begun. *Result to
//! resume*: from the mail with the result of a tool outside until the model is asked again. Both with one client,
//! so that nothing but the way itself is measured, and under the load of all clients.
//!
//! With a bus, bells travel over it and a turn has ended when the bus has acknowledged its final event.

use crate::{
    place::Place,
    report::{Case, percentile},
};
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tenure_agents::{
    agent::Spec,
    desk::{Defaults, Desk, send::Sending},
    drive::{
        TurnCrew, TurnCrewOptions, TurnShop,
        model::{Model, NoReply, Question, Reply},
    },
    words::kinds,
};
use tenure_bell::{Bus, BusOptions, InProcess};
use tenure_edge::{SystemClock, TokioRuntime, executor_of_this_process};
use tenure_engine::{
    config::EngineConfig,
    lanes::Wire,
    node::{Node, Parts},
};
use tenure_jobs::{
    crew::{Crew, CrewOptions},
    drive::{JobOptions, Shop},
};
use tenure_kernel::{
    bell::Bell,
    error::StoreError,
    ids::{EntityId, MailId},
    machine::Machines,
    mail::NewMail,
    outbox::{Posted, Target},
    runtime::{BoxFuture, Rt},
    stream::Body,
};
use tenure_server::turns::tools::AsJobs;
use tenure_steps::{
    Ctx, FlowError,
    flow::{FlowSpec, Flows},
    tool::{ToolCtx, Tools},
};
use tokio::sync::oneshot;

/// How much.
#[derive(Clone, Debug)]
pub struct Options {
    /// Clients that each wait for their turn before they send the next.
    pub clients: usize,
    /// Seconds per case.
    pub time: Duration,
    /// A NATS for bells and events.
    pub bus: Option<String>,
}

const TARGET: &str = "bench";

/// What turns have come to, as the model and the wire see it.
#[derive(Default)]
struct Seen {
    /// When the model was asked, and who wants to know.
    asked: Mutex<HashMap<EntityId, Vec<Duration>>>,
    ended: Mutex<HashMap<String, oneshot::Sender<()>>>,
    resumed: Mutex<HashMap<EntityId, oneshot::Sender<()>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds one of these.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Hears final events, once the bus behind it has them, if there is one.
struct Hears(Arc<Seen>, Option<Bus>);

impl Hears {
    fn heard(&self, posted: &Posted) {
        if let Target::Wire(subject) = &posted.message.to
            && subject.ends_with(".task")
            && let Some(body) = posted.message.body.inline()
            && let Ok(said) = serde_json::from_slice::<Value>(body)
            && let Some(turn) = said["agent_turn_id"].as_str()
            && let Some(waits) = lock(&self.0.ended).remove(turn)
        {
            // Nobody waits any more: the case is over.
            let _ = waits.send(());
        }
    }
}

impl Wire for Hears {
    fn publish(&self, subject: &str, posted: &Posted) -> BoxFuture<'_, Result<(), StoreError>> {
        let (subject, posted) = (subject.to_owned(), posted.clone());
        Box::pin(async move {
            if let Some(bus) = &self.1 {
                bus.publish(&subject, &posted).await?;
            }
            self.heard(&posted);
            Ok(())
        })
    }

    fn publish_all<'a>(&'a self, rows: &'a [Posted]) -> BoxFuture<'a, Vec<Result<(), StoreError>>> {
        Box::pin(async move {
            let answers = match &self.1 {
                Some(bus) => bus.publish_all(rows).await,
                None => rows.iter().map(|_| Ok(())).collect(),
            };
            for (posted, _) in rows.iter().zip(&answers).filter(|(_, answer)| answer.is_ok()) {
                self.heard(posted);
            }
            answers
        })
    }

    fn is_up(&self) -> bool {
        self.1.as_ref().is_none_or(Wire::is_up)
    }
}

/// Answers at once: with a call of the agent's tool first, if it has one.
struct Instant(Arc<Seen>, Rt);

impl Model for Instant {
    fn ask(&self, ctx: ToolCtx, question: Question) -> BoxFuture<'static, Result<Reply, NoReply>> {
        let times = {
            let mut asked = lock(&self.0.asked);
            let times = asked.entry(ctx.job).or_default();
            times.push(self.1.mono());
            times.len()
        };
        if times == 2
            && let Some(waits) = lock(&self.0.resumed).remove(&ctx.job)
        {
            let _ = waits.send(());
        }
        let tool = question.tools.iter().filter_map(|t| t["function"]["name"].as_str());
        let own = tool.into_iter().find(|t| *t == "work").filter(|_| times == 1);
        let message = match own {
            Some(name) => json!({ "role": "assistant", "tool_calls": [
                { "id": "c", "type": "function", "function": { "name": name, "arguments": "{}" } },
            ]}),
            None => json!({ "role": "assistant", "content": "done" }),
        };
        Box::pin(std::future::ready(Ok(Reply { message, ..Reply::default() })))
    }
}

async fn nothing(_: Ctx, _: Value) -> Result<Value, FlowError> {
    Ok(json!("ok"))
}

/// A server, workers and agents.
struct Bench {
    desk: Desk,
    seen: Arc<Seen>,
    rt: Rt,
    _node: Node,
    _jobs: Crew,
    _turns: TurnCrew,
}

fn wrong(e: impl ToString) -> StoreError {
    StoreError::Refused(e.to_string())
}

impl Bench {
    async fn open(
        place: &Place,
        machines: Machines,
        flights: usize,
        clients: usize,
        bus: Option<&str>,
    ) -> Result<Self, StoreError> {
        let rt: Rt = Arc::new(TokioRuntime::current());
        let bus = match bus {
            Some(url) => {
                let options = BusOptions::new(url, "bench");
                let bus = Bus::start(options, InProcess::new(), Arc::new(SystemClock)).await;
                let bus = bus.map_err(wrong)?;
                bus.connected().await;
                Some(bus)
            }
            None => None,
        };
        let bell: Arc<dyn Bell> = match &bus {
            Some(bus) => Arc::new(bus.clone()),
            None => Arc::new(InProcess::new()),
        };
        let seen = Arc::new(Seen::default());
        let config = EngineConfig { flights: place.flights(flights), ..EngineConfig::default() };
        let parts = Parts {
            store: place.store.clone(),
            bell,
            rt: rt.clone(),
            machines,
            config: config.clone(),
            name: "bench".into(),
            executor: executor_of_this_process(),
            wire: Arc::new(Hears(seen.clone(), bus)),
            protect_outage: true,
        };
        let node = Node::start(parts).await?;
        let config = Arc::new(config);
        let flows = Flows::default().with(FlowSpec::new("nothing", nothing));
        let shop = Arc::new(Shop::new(flows, Tools::default(), JobOptions::default()));
        let slots = clients * 2 + 8;
        let options = CrewOptions {
            name: "jobs".into(),
            executor: executor_of_this_process(),
            slots,
            drain: Duration::ZERO,
        };
        let pipeline = node.pipeline.clone();
        let jobs = Crew::start(pipeline.clone(), config.clone(), shop, options).await?;
        let model = Arc::new(Instant(seen.clone(), rt.clone()));
        let shop = Arc::new(TurnShop::new(model, Arc::new(AsJobs::default())));
        let options = TurnCrewOptions {
            name: "turns".into(),
            executor: executor_of_this_process(),
            targets: vec![TARGET.into()],
            slots,
            drain: Duration::ZERO,
        };
        let turns = TurnCrew::start(pipeline.clone(), config, shop, options).await?;
        let desk = Desk::new(pipeline, Defaults::default());
        let bench = Bench { desk, seen, rt, _node: node, _jobs: jobs, _turns: turns };
        for (sort, run) in [
            ("plain", Value::Null),
            ("job", json!({ "flow": "nothing@1" })),
            ("outside", json!({ "external": {} })),
        ] {
            let tools = match run {
                Value::Null => json!([]),
                run => json!([{ "name": "work", "run": run }]),
            };
            for client in 0..clients {
                let spec = Spec {
                    name: format!("{sort}-{client}"),
                    target: TARGET.into(),
                    channel: Some("bench".into()),
                    output_box: Some("bench".into()),
                    profile: json!({ "tools": tools }),
                };
                bench.desk.set_agent("bench", spec, None).await.map_err(wrong)?;
            }
        }
        Ok(bench)
    }

    fn sending(agent: String) -> Sending {
        let messages = vec![json!({ "role": "user", "content": "go" })];
        Sending { tenant: "bench".into(), agent, messages, ..Sending::default() }
    }

    /// One turn to its end, and how long it took until its first step.
    async fn turn(&self, agent: String) -> Result<f64, StoreError> {
        let sent = self.rt.mono();
        let turn = self.desk.send(Self::sending(agent)).await.map_err(wrong)?.turn;
        let (tell, told) = oneshot::channel();
        lock(&self.seen.ended).insert(turn.to_string(), tell);
        // It may have ended before anybody listened; then its head says so.
        let over = async {
            let head = self.desk.pipeline().store().head(turn).await?;
            Ok::<_, StoreError>(
                head.is_none_or(|h| h.class() == tenure_kernel::table::Class::Final),
            )
        };
        if !over.await? {
            told.await.map_err(wrong)?;
        }
        let asked = lock(&self.seen.asked).remove(&turn).unwrap_or_default();
        let first = asked.first().ok_or_else(|| wrong("a turn ended without a step"))?;
        Ok(millis(first.saturating_sub(sent)))
    }

    /// One turn with a tool outside, and how long it took from the result to the next step.
    async fn resumed(&self, agent: String) -> Result<f64, StoreError> {
        let turn = self.desk.send(Self::sending(agent)).await.map_err(wrong)?.turn;
        let store = self.desk.pipeline().store();
        loop {
            let head = store.head(turn).await?;
            if head.is_some_and(|h| h.status.name() == "suspended") {
                break;
            }
            self.rt.sleep(Duration::from_millis(1)).await;
        }
        let (tell, told) = oneshot::channel();
        lock(&self.seen.resumed).insert(turn, tell);
        let body = Body::json(&json!({ "wait": "1.1", "result": 1 }));
        let id = MailId("result".into());
        let mail = NewMail { to: turn, id, kind: kinds::TOOL_RESULT.into(), body };
        let sent = self.rt.mono();
        self.desk.pipeline().mail(mail).await?;
        told.await.map_err(wrong)?;
        let asked = lock(&self.seen.asked).remove(&turn).unwrap_or_default();
        let second = asked.get(1).ok_or_else(|| wrong("a turn was not resumed"))?;
        Ok(millis(second.saturating_sub(sent)))
    }
}

fn millis(d: Duration) -> f64 {
    d.as_secs_f64() * 1_000.0
}

/// Runs the suite.
pub async fn run(
    place: &Place,
    machines: Machines,
    flights: usize,
    options: &Options,
) -> Result<Vec<Case>, StoreError> {
    let bus = options.bus.as_deref();
    let bench = Arc::new(Bench::open(place, machines, flights, options.clients, bus).await?);
    let mut cases = Vec::new();
    for (sort, clients) in
        [("plain", 1), ("plain", options.clients), ("job", options.clients), ("outside", 1)]
    {
        let case = case(&bench, place, sort, clients, options.time).await?;
        cases.push(case.with("bus", if bus.is_some() { "nats" } else { "none" }));
    }
    Ok(cases)
}

async fn case(
    bench: &Arc<Bench>,
    place: &Place,
    sort: &'static str,
    clients: usize,
    time: Duration,
) -> Result<Case, StoreError> {
    let over = Arc::new(AtomicBool::new(false));
    let begun = bench.rt.mono();
    let mut running = Vec::with_capacity(clients);
    for client in 0..clients {
        let (bench, over) = (bench.clone(), over.clone());
        #[expect(clippy::disallowed_methods, reason = "a benchmark is process edge")]
        running.push(tokio::spawn(async move {
            let mut took = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let agent = format!("{sort}-{client}");
                took.push(match sort {
                    "outside" => bench.resumed(agent).await?,
                    _ => bench.turn(agent).await?,
                });
            }
            Ok::<_, StoreError>(took)
        }));
    }
    bench.rt.sleep(time).await;
    over.store(true, Ordering::Relaxed);
    let mut samples = Vec::new();
    for client in running {
        samples.extend(client.await.map_err(wrong)??);
    }
    let seconds = (bench.rt.mono() - begun).as_secs_f64();
    samples.sort_by(f64::total_cmp);
    let (p50, p99) = match sort {
        "outside" => ("result_to_resume_p50_ms", "result_to_resume_p99_ms"),
        _ => ("send_to_step_p50_ms", "send_to_step_p99_ms"),
    };
    Ok(Case::of("agents")
        .with("store", place.engine())
        .with(
            "tool",
            match sort {
                "plain" => "none",
                other => other,
            },
        )
        .with("clients", clients)
        .with("turns", samples.len())
        .measured("turns_per_second", samples.len() as f64 / seconds)
        .measured(p50, percentile(&samples, 0.5))
        .measured(p99, percentile(&samples, 0.99)))
}
