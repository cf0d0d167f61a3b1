//! Calls in the hands of a worker that runs no flows: scripted, so that it dies, sleeps and speaks late on purpose.

use crate::support::World;
use serde_json::{Value, json};
use std::time::Duration;
use tenure_jobs::{
    call::{
        FailKind,
        desk::{self, Counter, Heard, Said, Taken},
    },
    catalogue::{CallTerms, CallTool, register_calls},
    drive::JobOptions,
};
use tenure_kernel::{
    ids::{EntityId, SessionId},
    sessions::{Hold, Opening, Renewal, RenewalAnswer},
    store::{Answer, Op},
};
use tenure_steps::{
    Class, Ctx, FlowError,
    flow::{FlowSpec, Flows},
    tool::Tools,
};

mod answers;
mod cancels;
mod lost;
mod returned;

const LEASE: Duration = Duration::from_millis(600);

fn quick() -> JobOptions {
    JobOptions {
        backoff: Duration::from_millis(5),
        stop_grace: Duration::from_millis(200),
        call_patience: Duration::from_millis(50),
        ..JobOptions::default()
    }
}

fn flows() -> Flows {
    Flows::default()
        .with(FlowSpec::new("far", |ctx: Ctx, input: Value| async move {
            Ok(ctx.tool::<Value>("far", input).await?)
        }))
        .with(FlowSpec::new("nobody", |ctx: Ctx, input: Value| async move {
            Ok(ctx.tool::<Value>("nobody", input).await?)
        }))
        .with(FlowSpec::new("back", |ctx: Ctx, fails: bool| async move {
            ctx.saga(|s: tenure_steps::Saga| async move {
                let near = s.tool::<Value>("near", json!(1)).undo("far", |_| json!("back"));
                near.retries(3, Duration::from_millis(5)).await?;
                if fails {
                    return Err(FlowError::failed("no"));
                }
                Ok(s.wait_signal::<Value>("go").await?)
            })
            .await
        }))
        .with(FlowSpec::new("either", |ctx: Ctx, input: Value| async move {
            let one = ctx.tool::<Value>("far", input);
            let other = ctx.wait_signal::<Value>("enough");
            match ctx.race(one, other).await {
                tenure_steps::Either::Left(value) => Ok::<_, FlowError>(value?),
                tenure_steps::Either::Right(_) => Ok(json!("enough")),
            }
        }))
}

/// A worker in another language.
struct Far<'a> {
    world: &'a World,
    session: SessionId,
    counter: Counter,
}

fn tool(class: Class) -> CallTool {
    let (probe, compensate) = (class == Class::Verifiable, class == Class::Compensatable);
    let terms = CallTerms { probe, compensate, ..CallTerms::default() };
    CallTool { name: "far".into(), class: Some(class), terms, ..CallTool::default() }
}

async fn world(class: Class, options: JobOptions) -> World {
    let world = World::start(flows(), Tools::default(), options).await;
    register_calls(&world.node.pipeline, "", &[tool(class)]).await.unwrap();
    world
}

impl<'a> Far<'a> {
    async fn open(world: &'a World) -> Far<'a> {
        let lease_ms = u64::try_from(LEASE.as_millis()).unwrap();
        let (name, role, executor) = ("far".into(), "worker".into(), None);
        let opening = Opening { name, role, lease_ms, executor };
        let tools = ["far".to_owned()];
        let opened = desk::open_session(&world.node.pipeline, "", opening, &tools).await;
        Far { world, session: opened.unwrap(), counter: Counter::default() }
    }

    /// The next call that comes.
    async fn take(&self) -> Taken {
        let tools = ["far".to_owned()];
        let pipeline = &self.world.node.pipeline;
        let take = async || {
            let asked = (self.session, LEASE);
            self.counter.take(pipeline, asked, &tools, 1, |_| true).await.unwrap().pop()
        };
        self.world.place.find(take).await.expect("a call comes")
    }

    async fn say(&self, call: &Taken, said: Said) -> Heard {
        let held = (self.session, call.head.epoch);
        desk::say(&self.world.node.pipeline, call.head.id, held, &said).await.unwrap()
    }

    async fn complete(&self, call: &Taken, result: Value) -> Heard {
        self.say(call, Said::Completed(result)).await
    }

    async fn fail(&self, call: &Taken, kind: FailKind) -> Heard {
        self.say(call, Said::Failed(kind, format!("{kind:?}"))).await
    }

    /// Renews, naming these calls. What is lost, and what should stop.
    async fn renew(&self, calls: &[&Taken]) -> (Vec<EntityId>, Vec<EntityId>) {
        let hold = |c: &&Taken| Hold { entity: c.head.id, epoch: c.head.epoch, mark: 0 };
        let holds = calls.iter().map(hold).collect();
        let renewal = Op::Renew(Renewal { session: self.session, holds });
        match self.world.node.pipeline.submit(renewal).await.unwrap() {
            Answer::Renew(RenewalAnswer::Renewed { lost, mail, .. }) => (lost, mail),
            other => panic!("{other:?}"),
        }
    }

    /// Renews as a living worker does, until the call is taken away all the same.
    async fn renew_until_lost(&self, call: &Taken) {
        let lost = async || {
            self.renew(&[call]).await;
            self.world.head(call.head.id).await.status.name() == "lost"
        };
        self.world.place.until("it is lost", lost).await;
    }

    /// Renews until it hears that it should stop.
    async fn renew_until_stopped(&self, call: &Taken) -> Vec<EntityId> {
        let stop = async || Some(self.renew(&[call]).await.1).filter(|stop| !stop.is_empty());
        self.world.place.find(stop).await.expect("it is told to stop")
    }
}

fn kept(heard: &Heard) -> bool {
    matches!(heard, Heard::Stale { kept: true, .. })
}
