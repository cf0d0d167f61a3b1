//! A cancelled job whose steps are undone. What undoes them stands in the history, so the flow is put away and a
//! small one takes its place, which calls those tools, the last first. Its steps have the ids that the flow would
//! have given them: whatever the flow, or an earlier holder, had begun to undo goes on and is not done again.
//!
//! The status stays `cancelling` while a worker is at it. Between two workers it is `undoing`, which workers claim.
//!
//! A cancel waits for no person, and not for ever (`finding_out`). An undo of which nobody knows whether it happened, and
//! which neither its class nor a probe settles, is listed as unknown, and the next one begins; so does one that fails for
//! good.

use super::run::{Next, Run};
use crate::{
    decide::timers,
    model::{OwnEvent, UndoReport},
};
use serde_json::Value;
use std::time::Duration;
use tenure_engine::worker::{Held, HoldError};
use tenure_kernel::{limits as kernel_limits, machine::Decision, timers::TimerChange};
use tenure_steps::{
    Ctx, FlowError,
    driver::{Driver, World},
    flow::FlowSpec,
    history::History,
    saga::Undo,
};

/// Why a step that happened is not undone.
const NOBODY_SAID: &str = "it happened, and the flow did not say what undoes it";

impl Run {
    /// The job is cancelled and nothing is undone yet: what runs is awaited, nothing begins.
    pub(crate) fn only_stops(&self) -> bool {
        self.is_stopping() && !self.undoing
    }

    /// What is left to undo of a cancelled job of which nothing runs; `None` when that is nothing.
    pub(super) async fn undo(&mut self, held: &mut Held) -> Result<Option<Next>, HoldError> {
        if !self.undoing {
            if self.core.loaded.history.open_undos().next().is_none() {
                return Ok(None);
            }
            self.begin_undoing().await?;
            return Ok(Some(Next::Again));
        }
        if !self.pending.events.is_empty() || !self.starts.is_empty() {
            self.commit(held).await?;
            return Ok(Some(Next::Again));
        }
        if self.core.end.is_some() {
            return Ok(None);
        }
        let decision = Decision::default();
        if let Some(again) = self.stuck.first().and_then(|s| self.again_in(&s.step)) {
            let decision = decision.timer(TimerChange::set(timers::RECHECK, again));
            return self.give_up(held, decision, "undoing").await.map(Some);
        }
        if let Some(stuck) = self.stuck.pop() {
            let why = format!("nobody knows whether it was undone: {}", stuck.why);
            self.fail(&stuck.step, "unknown_outcome", kernel_limits::clip(&why, 1_024).to_owned());
            return Ok(Some(Next::Again));
        }
        if self.draining {
            let decision = decision.and(OwnEvent::JobUndoing { lost: false, losses: None }.into());
            return self.give_up(held, decision, "the worker stops").await.map(Some);
        }
        if self.core.queue.is_empty() {
            // A try that comes later: its timer brings the job back.
            return self.give_up(held, decision, "undoing").await.map(Some);
        }
        self.wait(held).await?;
        Ok(Some(Next::Again))
    }

    async fn begin_undoing(&mut self) -> Result<(), HoldError> {
        let mut undos: Vec<Undo> = self.core.loaded.history.open_undos().cloned().collect();
        undos.reverse();
        let now = self.now();
        for undo in &undos {
            // The cancel took all timers away; a pause before another try goes on.
            let record = self.core.loaded.history.steps.get(&undo.step());
            if let Some((_, at)) = record.and_then(|r| r.timer) {
                let left = at.since(now).max(Duration::from_millis(1));
                self.pending.timers.push(TimerChange::set(timers::step(&undo.step()), left));
            }
        }
        let flow = FlowSpec::new("undo", move |ctx: Ctx, _: Value| {
            let undos = undos.clone();
            async move {
                ctx.undo_all(&undos).await;
                Ok::<_, FlowError>(Value::Null)
            }
        });
        let (job, tenant, run) = (self.id, self.tenant.clone(), self.state().run);
        let entropy = self.reach.pipeline.rt().random();
        let world = World { job, tenant, run, now, entropy };
        // Without history: what stands there about these steps the drive knows when they are asked for.
        let (driver, turn) = Driver::start(&flow, Value::Null, &History::default(), world);
        self.undoing = true;
        self.core.driver = driver;
        self.core.asks.clear();
        self.core.queue.clear();
        self.core.end = None;
        self.core.delivered = self.core.loaded.history.order.len();
        self.stuck.clear();
        self.dropped.clear();
        self.absorb(turn).await
    }

    /// What became of what was to be undone, for the last event. A step of which the flow did not say what undoes it stays
    /// as it is, and is named too: the input of the undo could not be worked out, or the flow is not what it was.
    pub(super) fn undone(&self) -> UndoReport {
        let became = self.core.loaded.history.undone();
        let clip = |why: &str| kernel_limits::clip(why, 256).to_owned();
        let unsaid = self.state().unheard.iter().map(|of| (of.clone(), NOBODY_SAID.to_owned()));
        UndoReport {
            undone: became.undone.into_iter().map(|u| u.of).collect(),
            left: became
                .left
                .into_iter()
                .map(|(u, why)| (u.of, clip(&why)))
                .chain(unsaid)
                .collect(),
            untried: 0,
        }
    }
}
