//! Workers that die: their whole runtime is dropped in the middle of something, without a goodbye.

use crate::support::{AsJobs, LEASE, World, chat};
use serde_json::{Value, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tenure_agents::{
    drive::{
        TurnCrew, TurnCrewOptions, TurnShop,
        model::{FnModel, Model, NoReply, Question, Reply as Said},
        worker::{Probe, points},
    },
    rules::Rules,
    turn::TurnEvent,
};
use tenure_edge::TokioRuntime;
use tenure_engine::{config::EngineConfig, pipeline::Pipeline};
use tenure_kernel::runtime::BoxFuture;
use tenure_steps::tool::ToolCtx;
use tenure_tools::scripted::{Reply, Script, Server};
use tokio::sync::mpsc;

tenure_proving::on_every_store! {
    a_worker_dies_at_every_point_of_a_step,
    half_of_the_workers_die_and_every_turn_ends_once,
}

/// A worker in a runtime of its own, which is dropped with it: as a process that is killed.
struct Mortal {
    runtime: Option<tokio::runtime::Runtime>,
    _crew: TurnCrew,
}

impl Mortal {
    async fn start(world: &World, shop: TurnShop, slots: usize) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (place, bell) = (world.place.clone(), world.bell.clone());
        let options = TurnCrewOptions {
            name: "mortal".into(),
            executor: None,
            targets: vec!["t".into()],
            slots,
            drain: Duration::from_secs(5),
        };
        let crew = runtime.spawn(async move {
            // With connections of its own, which die with it.
            let store = place.another().await;
            let rt = Arc::new(TokioRuntime::current());
            let config = EngineConfig::with_lease(LEASE);
            let pipeline = Pipeline::new(store, bell, rt, &config);
            TurnCrew::start(pipeline, Arc::new(config), Arc::new(shop), options).await.unwrap()
        });
        Mortal { _crew: crew.await.unwrap(), runtime: Some(runtime) }
    }

    fn kill(mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Mortal {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Stands still at a point for ever, and says so.
fn stands_at(point: &'static str, told: mpsc::UnboundedSender<()>) -> Probe {
    Arc::new(move |at| {
        let told = told.clone();
        Box::pin(async move {
            if at == point {
                let _ = told.send(());
                std::future::pending::<()>().await;
            }
        })
    })
}

async fn a_worker_dies_at_every_point_of_a_step(world: World) {
    for (nth, point) in (1..).zip(points::ALL) {
        let script = Script::new()
            .when("go", Reply::tool_call("c", "add", &json!({ "a": 20, "b": 22 })))
            .when("42", Reply::text("it is 42"));
        let server = Server::start(script).await.unwrap();
        let tools = json!({ "tools": [{ "name": "add", "run": { "flow": "add@1" } }] });
        world.agent(point, tools).await;
        let (told, mut heard) = mpsc::unbounded_channel();
        let shop =
            TurnShop::new(chat(&server), Arc::new(AsJobs)).with_probe(stands_at(point, told));
        let mortal = Mortal::start(&world, shop, 4).await;
        let turn = world.send(point, "go").await;
        heard.recv().await.unwrap();
        mortal.kill();
        let mut crew = world.crew(chat(&server)).await;
        assert_eq!(world.delivered(turn).await, "it is 42", "{point}");
        let finished =
            |n: u32| move |e: &TurnEvent| matches!(e, TurnEvent::StepFinished(d) if d.step == n);
        assert_eq!(world.count(turn, finished(1)).await, 1, "{point}");
        assert_eq!(world.count(turn, finished(2)).await, 1, "{point}");
        // One worker was killed. On a busy machine others lose their leases, each at most in the middle of one step.
        let lost = usize::from(point == points::MODEL_ANSWERED);
        let others = world.state(turn).await.takeovers.saturating_sub(1) as usize;
        assert!(
            (2 + lost..=2 + lost + others).contains(&server.requests().len()),
            "{point}: a finished step is not asked again: {}",
            server.requests().len()
        );
        let jobs = world.state(turn).await.waited;
        assert_eq!(jobs, 1, "{point}: one job");
        world.tasks(nth).await;
        crew.stop().await;
    }
}

fn instant() -> Arc<dyn Model> {
    let answer = |_: ToolCtx, _: Question| -> BoxFuture<'static, Result<Said, NoReply>> {
        let message = json!({ "role": "assistant", "content": "ok" });
        Box::pin(std::future::ready(Ok(Said { message, ..Said::default() })))
    };
    Arc::new(FnModel(answer))
}

/// Many agents with one turn each, and half of the workers killed meanwhile: every turn ends once.
/// `TENURE_AGENTS` sets the number.
async fn half_of_the_workers_die_and_every_turn_ends_once(mut world: World) {
    let count: usize =
        std::env::var("TENURE_AGENTS").ok().and_then(|n| n.parse().ok()).unwrap_or(300);
    // These turns wait longer than a rule would, on a machine that has two cores.
    world.rules = Rules {
        dispatched_timeout_ms: 0,
        dispatched_retry_ms: 0,
        takeovers_max: 50,
        ..world.rules
    };
    let answered = Arc::new(AtomicUsize::new(0));
    let mut workers = Vec::new();
    for _ in 0..4 {
        let answered = answered.clone();
        let probe: Probe = Arc::new(move |_| {
            answered.fetch_add(1, Ordering::Relaxed);
            Box::pin(std::future::ready(()))
        });
        let shop = TurnShop::new(instant(), Arc::new(AsJobs)).with_probe(probe);
        workers.push(Mortal::start(&world, shop, 64).await);
    }
    let mut turns = Vec::with_capacity(count);
    for n in 0..count {
        let name = format!("agent-{n}");
        world.agent(&name, Value::Null).await;
        turns.push(world.send(&name, "go").await);
        if n == count / 2 {
            workers.drain(..2).for_each(Mortal::kill);
        }
    }
    for turn in turns {
        world.ended(turn).await;
    }
    let tasks = world.tasks(count).await;
    assert!(
        tasks.iter().all(|t| t["status"] == "success"),
        "{:?}",
        tasks.iter().find(|t| t["status"] != "success")
    );
    drop(workers);
}
