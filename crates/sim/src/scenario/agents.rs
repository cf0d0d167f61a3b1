//! Agents: turns that call tools, delegate and wait, run by real shells, with a model that is slow, fails and hangs,
//! and people who answer late, twice and to the wrong question. Whatever happens, every turn ends, and its end is
//! announced under one name.

use super::{Clients, config, jobs};
use crate::{
    faults::Fault,
    storm,
    world::{Boot, Env, World},
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tenure_agents::{
    agent::{Agent, AgentState, Spec, agent_id},
    drive::{
        TurnCrew, TurnCrewOptions, TurnShop,
        calls::{Jobs, Order},
        model::{Model, NoReply, Question, Reply},
        profile::Run,
    },
    join::Join,
    rules::Rules,
    turn::{NewTurn, Turn, TurnEvent, TurnState, WaitFor, model::Sort},
    words::{Change, Stop, ToolResult},
};
use tenure_engine::lanes::Wire;
use tenure_jobs::{
    crew::{Crew, CrewOptions},
    drive::{JobOptions, Shop},
    model::{NewJob, Parent},
};
use tenure_kernel::{
    error::StoreError,
    ids::EntityId,
    machine::{Machines, decode_event, decode_state},
    outbox::{Message, Posted, Target},
    runtime::BoxFuture,
    stream::{Body, Record},
    table::Class,
    time::Timestamp,
};
use tenure_steps::{
    ctx::Ctx,
    flow::{FlowError, FlowSpec, Flows},
    tool::{ToolCtx, Tools},
};
use tenure_store::memory::Contents;

const NAMES: [&str; 4] = ["boss", "ann", "bob", "cyd"];
const TARGET: &str = "pool";
const FLOW: &str = "lookup";

/// Machines of agents, and of the jobs that are their tools.
pub(super) fn machines() -> Machines {
    jobs::machines().with::<Agent>().with::<Turn>().with::<Join>()
}

/// What was announced outside: the names under which each turn's end was told.
#[derive(Debug, Default)]
pub struct Heard(Mutex<BTreeMap<String, BTreeSet<String>>>);

impl Heard {
    fn tell(&self, turn: &str, message: String) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(turn.to_owned()).or_default().insert(message);
    }

    fn names(&self, turn: EntityId) -> usize {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&turn.to_string()).map_or(0, BTreeSet::len)
    }
}

/// A bus that is slow and loses its answer now and then: then everything is published again.
pub(super) struct Bus(pub Env);

impl Wire for Bus {
    fn publish(&self, subject: &str, posted: &Posted) -> BoxFuture<'_, Result<(), StoreError>> {
        let world = self.0.world.clone();
        if subject.ends_with(".task") {
            let body: Value = posted
                .message
                .body
                .inline()
                .and_then(|b| serde_json::from_slice(b).ok())
                .unwrap_or_default();
            let turn = body["agent_turn_id"].as_str().unwrap_or_default();
            world.heard.tell(turn, posted.id.to_string());
        }
        let lost = !world.weather.is_over() && world.sim.draw(|rng| rng.permille(150));
        Box::pin(async move {
            match lost {
                true => Err(StoreError::Unavailable("the bus does not answer".into())),
                false => Ok(()),
            }
        })
    }
}

async fn lookup(ctx: Ctx, input: Value) -> Result<Value, FlowError> {
    let seconds = input["seconds"].as_u64().unwrap_or(1);
    ctx.sleep(Duration::from_secs(seconds)).await?;
    Ok(json!({ "found": seconds }))
}

struct Tooling;

impl Jobs for Tooling {
    fn job(&self, order: &Order<'_>) -> (EntityId, Message) {
        let Run::Flow { name, version } = order.run else {
            unreachable!("these agents have flows only")
        };
        let id = EntityId::derived(order.turn, &format!("job/{}", order.ordinal), Timestamp::ZERO);
        let new = NewJob {
            flow: name.clone(),
            version: *version,
            input: order.arguments.clone(),
            must_end_in_ms: order.must_end_in_ms,
            takeovers_max: 5,
            parent: Some(Parent { job: order.turn, ordinal: order.ordinal, depth: 0 }),
            ..NewJob::default()
        };
        let to = Target::Create { id, kind: "job".into() };
        (id, Message { to, kind: "create".into(), body: Body::json(&new) })
    }
}

/// Says something else every time, after a while, or not at all.
struct Muse(Env);

fn call(id: &str, name: &str, arguments: &Value) -> Value {
    json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments.to_string() } })
}

impl Model for Muse {
    fn ask(&self, _ctx: ToolCtx, question: Question) -> BoxFuture<'static, Result<Reply, NoReply>> {
        let (world, rt) = (self.0.world.clone(), self.0.rt.clone());
        let (mood, nap, seconds, who, other) = world.sim.draw(|rng| {
            (
                rng.below(20),
                rng.between(Duration::ZERO..Duration::from_secs(8)),
                rng.below(50),
                rng.index(3),
                rng.index(3),
            )
        });
        let may_delegate = question.tools.iter().any(|t| t["function"]["name"] == "delegate");
        let calm = world.weather.is_over();
        Box::pin(async move {
            rt.sleep(nap).await;
            let others = &NAMES[1..];
            let calls = match mood {
                0 if !calm => return Err(NoReply::Transient("busy".into(), None)),
                1 if !calm => {
                    rt.sleep(Duration::from_secs(500)).await;
                    vec![]
                }
                2 if !calm => return Err(NoReply::Refused("no".into())),
                3..=6 => vec![call("c", "look", &json!({ "seconds": seconds }))],
                7 | 8 => vec![
                    call("c", "look", &json!({ "seconds": seconds })),
                    call("d", "look", &json!({ "seconds": 1 })),
                    call("p", "person", &json!({})),
                ],
                9 => vec![call("p", "person", &json!({})), call("x", "no_such_tool", &json!({}))],
                10 | 11 if may_delegate => {
                    vec![call(
                        "g",
                        "delegate",
                        &json!({ "agent": others[who], "instruction": "help" }),
                    )]
                }
                12 if may_delegate => {
                    let task = |n: usize| json!({ "agent": others[n], "instruction": "help" });
                    let tasks =
                        json!({ "tasks": [task(who), task(other)], "fail_fast": seconds % 2 == 0 });
                    vec![call("f", "fork_join", &tasks)]
                }
                13..=15 => vec![call("s", "submit_result", &json!({ "result": "done" }))],
                _ => vec![],
            };
            let mut message = json!({ "role": "assistant", "content": "so be it" });
            if !calls.is_empty() {
                message["tool_calls"] = calls.into();
            }
            Ok(Reply { message, ..Reply::default() })
        })
    }
}

/// The `main` of a worker: it runs turns, and the jobs that are their tools.
pub(super) fn worker() -> Boot {
    Arc::new(|env: Env| {
        Box::pin(async move {
            let config = Arc::new(config());
            let pipeline = env.pipeline(env.rt.clone(), &config, machines());
            let flows = Flows::default().with(FlowSpec::new(FLOW, lookup));
            let shop = Arc::new(Shop::new(flows, Tools::default(), JobOptions::default()));
            let turns = TurnShop::new(Arc::new(Muse(env.clone())), Arc::new(Tooling));
            let turns = Arc::new(turns.with_probe(probe(env.clone())));
            let mut stop = env.stop.clone();
            loop {
                let options = CrewOptions {
                    name: env.name.clone(),
                    executor: None,
                    slots: 4,
                    drain: Duration::from_secs(20),
                };
                let jobs =
                    Crew::start(pipeline.clone(), config.clone(), shop.clone(), options).await;
                let options = TurnCrewOptions {
                    name: env.name.clone(),
                    executor: None,
                    targets: vec![TARGET.to_owned()],
                    slots: 3,
                    drain: Duration::from_secs(20),
                };
                let crew =
                    TurnCrew::start(pipeline.clone(), config.clone(), turns.clone(), options).await;
                match (jobs, crew) {
                    (Ok(mut jobs), Ok(mut crew)) => {
                        stop.asked().await;
                        crew.stop().await;
                        jobs.stop().await;
                        return;
                    }
                    _ => env.world.sim.trace(format!("{}: no crew", env.name)),
                }
                if stop.is_asked() {
                    return;
                }
                env.rt.sleep(Duration::from_secs(1)).await;
            }
        })
    })
}

/// Kills its own process at points of the drive.
fn probe(env: Env) -> tenure_agents::drive::worker::Probe {
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

fn profile(name: &str) -> Value {
    let delegates: &[&str] = if name == "boss" { &["*"] } else { &[] };
    json!({
        "instructions": "Help.",
        "max_steps": 6,
        "step_timeout_seconds": 60,
        "delegates": delegates,
        "tools": [
            { "name": "look", "description": "Looks.", "parameters": { "type": "object" }, "run": { "flow": "lookup@1" } },
            { "name": "person", "description": "Asks a person.", "parameters": { "type": "object" },
              "run": { "external": {} }, "options": { "suspend_timeout_seconds": 45 } },
        ],
    })
}

fn new_turn(name: &str) -> NewTurn {
    NewTurn {
        agent: agent_id("t", name),
        agent_name: name.into(),
        target: TARGET.into(),
        sort: Sort::Turn,
        channel: Some("public".into()),
        output_box: Some("out".into()),
        messages: vec![json!({ "role": "user", "content": "go" })],
        correlation_id: None,
        asker: None,
        depth: 0,
        above: Vec::new(),
        trace: None,
        must_end_in_ms: 3_600_000,
        rules: Rules::default(),
        priority: 0,
        by: None,
    }
}

pub(super) fn play(clients: &Clients) {
    let c = clients.clone();
    clients.spawn(Box::pin(async move {
        for name in NAMES {
            let spec = Box::new(Spec {
                name: name.into(),
                target: TARGET.into(),
                channel: Some("public".into()),
                output_box: Some("out".into()),
                profile: profile(name),
            });
            let body = Body::json(&Change::Set { spec, by: None });
            c.create("agent", agent_id("t", name), &body).await;
        }
        for _ in 0..3 + c.below(10) {
            let sender = c.clone();
            c.spawn(Box::pin(send(sender)));
        }
    }));
}

/// Sends a turn and is a nuisance about it.
async fn send(c: Clients) {
    c.wait(c.some(Duration::from_secs(80))).await;
    let name = NAMES[usize::try_from(c.below(4)).unwrap_or(0)];
    let id = c.id();
    c.create("turn", id, &Body::json(&new_turn(name))).await;
    for n in 0..40u32 {
        c.wait(c.some(Duration::from_secs(20))).await;
        let Ok(Some(head)) = c.pipeline.store().head(id).await else { continue };
        if head.class() == Class::Final {
            return;
        }
        let Ok(state) = decode_state::<Turn>(&head.state) else { continue };
        match c.below(12) {
            0 => {
                let body = Body::json(&Stop::default());
                c.mail(id, format!("stop/{n}"), "stop", body).await;
            }
            1 => {
                // To the wrong question, or out of time.
                let wait = Some(format!("{}.{}", c.below(4), c.below(4)));
                let turn_epoch = Some(c.below(6));
                let body = ToolResult { wait, turn_epoch, ..ToolResult::default() };
                c.mail(id, format!("wrong/{n}"), "tool_result", Body::json(&body)).await;
            }
            _ => answer(&c, id, &state, n).await,
        }
    }
}

async fn answer(c: &Clients, id: EntityId, state: &TurnState, n: u32) {
    for wait in state.waits.iter().filter(|w| w.waits_for == WaitFor::Message) {
        let body = ToolResult {
            wait: Some(wait.id.clone()),
            turn_epoch: Some(state.turn_epoch),
            result: json!("yes"),
            ..ToolResult::default()
        };
        // Some say it twice.
        for again in 0..1 + c.below(2) {
            let mail = format!("answer/{}/{n}/{again}", wait.id);
            c.mail(id, mail, "tool_result", Body::json(&body)).await;
        }
    }
}

/// Outages that are longer than this were noticed by every server: nobody goes on with what was decided before.
const NOTICED: Duration = Duration::from_secs(30);

/// Nobody is judged within one lease after an outage by a rule whose moment came while nobody could speak.
fn nobody_was_judged_too_soon(
    outages: &[(Timestamp, Timestamp)],
    turn: EntityId,
    records: &[Arc<Record>],
) -> Result<(), String> {
    let mut dispatched = None;
    let mut deadlines = BTreeMap::new();
    for record in records {
        for event in record.events().map_err(|e| e.to_string())? {
            let read = decode_event::<Turn>(&event.name, &event.body).map_err(|e| e.0)?;
            let (moment, rule) = match read {
                Some(TurnEvent::TurnDispatched { .. }) => {
                    dispatched = Some(record.at);
                    continue;
                }
                Some(TurnEvent::TurnSuspended { waits, .. }) => {
                    deadlines.extend(waits.into_iter().map(|w| (w.id, w.deadline)));
                    continue;
                }
                Some(TurnEvent::WaitProgress { wait, deadline, .. }) => {
                    deadlines.insert(wait, deadline);
                    continue;
                }
                Some(TurnEvent::WaitTimedOut(applied)) => {
                    (deadlines.get(&applied.wait).copied().flatten(), "tool_timeout")
                }
                Some(TurnEvent::TurnTimedOut(end))
                    if end.error.as_ref().is_some_and(|e| e.code == "dispatch_timeout") =>
                {
                    let after = Duration::from_millis(Rules::default().dispatched_timeout_ms);
                    (dispatched.map(|at| at + after), "dispatch_timeout")
                }
                _ => continue,
            };
            let lease = config().lease;
            let too_soon = |(from, to): &&(Timestamp, Timestamp)| {
                to.since(*from) > NOTICED
                    && moment.is_some_and(|m| m > *from)
                    && (*to..*to + lease).contains(&record.at)
            };
            if let Some((_, to)) = outages.iter().find(too_soon) {
                let after = record.at.since(*to);
                return Err(format!("turn {turn}: {rule} came {after:?} after an outage"));
            }
        }
    }
    Ok(())
}

/// Every turn is over and was announced under one name; every agent is idle.
pub(super) fn check(world: &World, contents: &Contents) -> Result<(), String> {
    for head in contents.rows.heads.values() {
        let id = head.id;
        match head.kind() {
            "turn" | "join" | "job" if head.class() != Class::Final => {
                return Err(format!("{} {id} is {}", head.kind(), head.status.name()));
            }
            "turn" => {
                let names = world.heard.names(id);
                if names != 1 {
                    return Err(format!("the end of turn {id} was announced under {names} names"));
                }
                let records = contents.streams.get(&id).map_or(&[][..], Vec::as_slice);
                nobody_was_judged_too_soon(&world.weather.outages(), id, records)?;
            }
            "agent" => {
                let state: AgentState = decode_state::<Agent>(&head.state).map_err(|e| e.0)?;
                if state.active.is_some() || !state.queue.is_empty() {
                    return Err(format!("agent {} is not idle: {state:?}", state.spec.name));
                }
            }
            _ => {}
        }
    }
    Ok(())
}
