//! A worker that runs no flows: it takes calls, in the process of a crew, so that it dies and stops with it. It keeps
//! its own books, as a program in another language would: a session that it renews, calls that it holds, and a clock by
//! which it stops itself. What it can not say in time it says late.

use super::{Setup, process, tools, town::Craft};
use crate::{scenario::Scenario, world::Env};
use futures_util::FutureExt as _;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tenure_engine::pipeline::Pipeline;
use tenure_jobs::{
    call::{
        FailKind,
        desk::{self, Counter, Said, Taken},
    },
    catalogue::{CallTerms, CallTool, register_calls},
};
use tenure_kernel::{
    error::StoreError,
    ids::{EntityId, SessionId},
    sessions::{Hold, Opening, Renewal, RenewalAnswer},
    store::{Answer, Op},
};
use tenure_steps::{
    events::What,
    tool::{CallParts, Class, Probe, ToolCtx, ToolError, ToolSpec},
};
use tokio::sync::watch;

const LEASE: Duration = Duration::from_secs(15);
const RENEWAL: Duration = Duration::from_secs(4);
const LOOK: Duration = Duration::from_millis(300);
/// Calls at once.
const ROOM: usize = 3;
/// How long what runs may take when the worker is asked to leave.
const DRAIN: Duration = Duration::from_secs(90);

/// What only such workers have. The others depend on what their own worker can show: an epoch, a time.
const CRAFTS: [Craft; 4] = [Craft::Send, Craft::Ship, Craft::Book, Craft::Burn];

/// The same in this run: where there are sagas, also a part of what undoes.
pub(super) fn crafts(setup: Setup) -> Vec<Craft> {
    let back = if setup.is(Scenario::Sagas) { &Craft::BACK[1..] } else { &[] };
    CRAFTS.iter().chain(back).copied().collect()
}

struct Held {
    epoch: u64,
    /// Until when it may act for it, on its own clock.
    valid_until: Duration,
    stop: watch::Sender<bool>,
}

struct Far {
    env: Env,
    pipeline: Pipeline,
    counter: Counter,
    session: SessionId,
    held: Mutex<BTreeMap<EntityId, Held>>,
}

/// Works until the process is asked to leave.
pub(super) async fn work(env: Env, pipeline: Pipeline) {
    let setup = env.world.town.setup();
    let names: Vec<String> = crafts(setup).iter().map(|c| c.name().to_owned()).collect();
    while !env.stop.is_asked() {
        match open(&env, &pipeline, &names).await {
            Ok((session, sent)) => {
                let (counter, held) = (Counter::default(), Mutex::default());
                let (env, pipeline) = (env.clone(), pipeline.clone());
                let far = Arc::new(Far { env, pipeline, counter, session, held });
                far.serve(&names, sent).await;
            }
            Err(e) => env.world.sim.trace(format!("{}: takes no calls: {e}", env.name)),
        }
        env.rt.sleep(Duration::from_secs(1)).await;
    }
}

async fn open(
    env: &Env,
    pipeline: &Pipeline,
    names: &[String],
) -> Result<(SessionId, Duration), StoreError> {
    let offer = |craft: &Craft| {
        let class = craft.class();
        let (probe, compensate) = (class == Class::Verifiable, class == Class::Compensatable);
        let terms = CallTerms { probe, compensate, ..CallTerms::default() };
        CallTool { name: craft.name().to_owned(), class: Some(class), terms, ..CallTool::default() }
    };
    let offers: Vec<CallTool> = crafts(env.world.town.setup()).iter().map(offer).collect();
    register_calls(pipeline, "", &offers).await?;
    let opening = Opening {
        name: format!("{} far", env.name),
        role: "worker".into(),
        lease_ms: 15_000,
        executor: Some(process::executor(env)),
    };
    let sent = env.rt.mono();
    Ok((desk::open_session(pipeline, "", opening, names).await?, sent))
}

impl Far {
    fn held(&self) -> MutexGuard<'_, BTreeMap<EntityId, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes calls and renews, until the session is over or the process leaves.
    async fn serve(self: &Arc<Self>, names: &[String], opened: Duration) {
        let lifetime = LEASE - LEASE / 10;
        let (mut renewed, mut live_until) = (opened, opened + lifetime);
        let mut leave_by = None;
        loop {
            let now = self.env.rt.mono();
            if self.env.stop.is_asked() {
                let by = *leave_by.get_or_insert(now + DRAIN);
                if self.held().is_empty() || now > by {
                    // What still runs is said late, or never.
                    let _ = desk::end_session(&self.pipeline, self.session).await;
                    return;
                }
            }
            if now.saturating_sub(renewed) >= RENEWAL {
                match self.renew(lifetime).await {
                    Some(true) => (renewed, live_until) = (now, now + lifetime),
                    Some(false) => return,
                    None => {}
                }
            }
            let room = ROOM.saturating_sub(self.held().len());
            let sent = self.env.rt.mono();
            if room > 0 && sent < live_until && !self.env.stop.is_asked() {
                let held = (self.session, LEASE);
                let taken = self.counter.take(&self.pipeline, held, names, room, |_| true).await;
                for taken in taken.unwrap_or_default() {
                    self.begin(taken, sent + lifetime);
                }
            }
            self.env.rt.sleep(LOOK).await;
        }
    }

    /// One renewal: whether the session goes on; nothing if nobody answered.
    async fn renew(&self, lifetime: Duration) -> Option<bool> {
        let hold = |(id, h): (&EntityId, &Held)| Hold { entity: *id, epoch: h.epoch, mark: 0 };
        let holds: Vec<Hold> = self.held().iter().map(hold).collect();
        let named = holds.clone();
        let sent = self.env.rt.mono();
        let renewal = Op::Renew(Renewal { session: self.session, holds });
        match self.pipeline.submit(renewal).await {
            Ok(Answer::Renew(RenewalAnswer::Renewed { lost, mail, .. })) => {
                let mut held = self.held();
                for hold in named {
                    let Some(mine) = held.get_mut(&hold.entity) else { continue };
                    if mail.contains(&hold.entity) || lost.contains(&hold.entity) {
                        mine.stop.send_replace(true);
                    }
                    match lost.contains(&hold.entity) {
                        true => mine.valid_until = Duration::ZERO,
                        false => mine.valid_until = sent + lifetime,
                    }
                }
                Some(true)
            }
            Ok(_) => {
                for held in self.held().values_mut() {
                    held.valid_until = Duration::ZERO;
                    held.stop.send_replace(true);
                }
                Some(false)
            }
            Err(_) => None,
        }
    }

    fn begin(self: &Arc<Self>, taken: Taken, valid_until: Duration) {
        let (stop, stopped) = watch::channel(false);
        let held = Held { epoch: taken.head.epoch, valid_until, stop };
        self.held().insert(taken.head.id, held);
        let far = self.clone();
        self.env.rt.spawn(Box::pin(async move {
            let id = taken.head.id;
            far.run(taken, stopped).await;
            far.held().remove(&id);
        }));
    }

    async fn run(&self, taken: Taken, stopped: watch::Receiver<bool>) {
        let (id, epoch) = (taken.head.id, taken.head.epoch);
        let luck = self.env.world.sim.draw(|rng| rng.below(40));
        if luck == 0 {
            let why = Some("not today".to_owned());
            // One that does not get through is taken away by its lease, and said to be unbegun then.
            let _ = desk::release(&self.pipeline, id, (self.session, epoch), why).await;
            return;
        }
        self.env.rt.sleep(Duration::from_millis(luck * 5)).await;
        // Right before anything outside is touched.
        let may_act = {
            let held = self.held();
            held.get(&id).is_some_and(|h| self.env.rt.mono() < h.valid_until)
        };
        let said = match may_act {
            false => Said::Failed(FailKind::NotCalled, "its lease had lapsed".into()),
            true => self.act(&taken, stopped).await,
        };
        // However long it takes: what it knows is worth something also when it comes late.
        loop {
            match desk::say(&self.pipeline, id, (self.session, epoch), &said).await {
                Ok(heard) => {
                    let (name, tool) = (&self.env.name, &taken.state.tool);
                    self.env.world.sim.trace(format!("{name} far: {tool}: {heard:?}"));
                    return;
                }
                Err(_) => self.env.rt.sleep(Duration::from_secs(1)).await,
            }
        }
    }

    async fn act(&self, taken: &Taken, stop: watch::Receiver<bool>) -> Said {
        let Some(spec) = tools::far(&self.env).get(&taken.state.tool).cloned() else {
            return Said::Failed(FailKind::NotCalled, "no such tool".into());
        };
        let state = &taken.state;
        let ctx = ToolCtx::new(CallParts {
            job: state.job,
            step: state.step.0.clone(),
            key: state.key.clone(),
            epoch: state.job_epoch,
            call: state.call,
            not_after: taken.not_after(),
            timeout: Duration::from_millis(state.timeout_ms),
            tenant: taken.head.tenant.clone(),
            stop,
        });
        let done = AssertUnwindSafe(asked(&spec, state.what, ctx, taken.input.clone()));
        match done.catch_unwind().await {
            Ok(Ok(value)) => Said::Completed(value),
            Ok(Err(e)) => failed(e),
            Err(_) => Said::Failed(FailKind::Unknown, "it panicked".into()),
        }
    }
}

async fn asked(
    spec: &ToolSpec,
    what: What,
    ctx: ToolCtx,
    input: Value,
) -> Result<Value, ToolError> {
    match what {
        What::Call => spec.tool.call(ctx, input).await,
        What::Probe => Ok(match spec.tool.probe(ctx, input).await? {
            Probe::Happened(result) => json!({ "happened": true, "result": result }),
            Probe::NotHappened => json!({ "happened": false }),
            Probe::Unclear(why) => json!({ "happened": null, "why": why }),
        }),
        What::Compensate => spec.tool.compensate(ctx, input).await.map(|()| Value::Null),
    }
}

fn failed(e: ToolError) -> Said {
    let (kind, why) = match e {
        ToolError::Retryable(why) => (FailKind::Retryable, why),
        ToolError::Permanent(why) => (FailKind::Permanent, why),
        ToolError::Unknown(why) => (FailKind::Unknown, why),
        ToolError::Compensatable(why) => (FailKind::Compensatable, why),
        ToolError::Cancelled => (FailKind::Cancelled, "stopped".into()),
    };
    Said::Failed(kind, why)
}
