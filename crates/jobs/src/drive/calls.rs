//! Calls of tools. Each runs in a task of its own, beside the flow: the flow can be dropped, replayed or
//! finished while a tool still runs, and the tool's outcome is recorded all the same.

use super::{Reach, points};
use futures_util::FutureExt as _;
use serde_json::Value;
use std::{
    collections::HashMap,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tenure_engine::{pipeline::Pipeline, session::Keeper};
use tenure_kernel::{
    error::StoreError,
    evidence::NewEvidence,
    ids::EntityId,
    runtime::{First, first},
    stream::Body,
    time::Timestamp,
};
use tenure_steps::{
    effects::EffectName,
    events::{StepId, What},
    tool::{CallParts, Probe, ToolCtx, ToolError, ToolSpec, recordable, recordable_probe},
};
use tokio::sync::{mpsc, watch};

/// A call that is committed as started, or a question about one.
#[derive(Clone)]
pub(crate) struct Start {
    pub step: StepId,
    pub spec: Arc<ToolSpec>,
    pub input: Value,
    pub key: String,
    pub call: u32,
    pub timeout: Duration,
    pub what: What,
}

/// Something that a task has to say.
pub(crate) struct Finished {
    pub step: StepId,
    pub key: String,
    pub call: u32,
    pub how: How,
}

pub(crate) enum How {
    /// The tool returned.
    Returned(Result<Value, ToolError>),
    /// Its time is up; it was asked to stop. `Gone` follows.
    TimedOut,
    /// It was stopped, and no code of it runs any more.
    Gone,
    /// This process may not act any more: the tool was not called.
    NotCalled,
    /// What the probe said.
    Probed(Result<Probe, ToolError>),
    /// What the compensation said.
    Compensated(Result<(), ToolError>),
}

/// Where a task belongs.
pub(crate) struct Desk {
    pub reach: Reach,
    pub keeper: Keeper,
    pub job: EntityId,
    pub tenant: String,
    pub epoch: u64,
    pub at: Timestamp,
    pub done: mpsc::UnboundedSender<Finished>,
    pub stop: watch::Receiver<bool>,
    pub stopper: watch::Sender<bool>,
    /// Dropped with the task: then no code of the call runs any more.
    pub runs: Option<Runs>,
}

/// Makes a call, in a task.
pub(crate) async fn run(mut desk: Desk, mut start: Start) {
    let _runs = desk.runs.take();
    let input = std::mem::take(&mut start.input);
    let ctx = ToolCtx::new(CallParts {
        job: desk.job,
        step: start.step.0.clone(),
        key: start.key.clone(),
        epoch: desk.epoch,
        call: start.call,
        not_after: desk.at + start.timeout,
        timeout: start.timeout,
        tenant: desk.tenant.clone(),
        stop: desk.stop.clone(),
    });
    let tool = start.spec.tool.clone();
    match start.what {
        What::Call => {
            desk.reach.shop.at(points::BEFORE_CALL).await;
            // The lease, on this process's own clock, right before anything outside is touched.
            if !desk.keeper.may_act(desk.job, desk.epoch) {
                desk.say(&start, How::NotCalled);
                desk.testify(&start, Testimony::NeverCalled).await;
                return;
            }
            let work = AssertUnwindSafe(tool.call(ctx, input)).catch_unwind();
            let work = work.map(|r| r.unwrap_or_else(|p| Err(ToolError::Unknown(panicked(&*p)))));
            let class = start.spec.options.class.unwrap_or_default();
            let work = work.map(|result| recordable(class, result));
            desk.call(&start, work).await;
        }
        What::Probe => {
            let work = AssertUnwindSafe(tool.probe(ctx, input)).catch_unwind();
            let said = desk.bounded(&start, work).await;
            desk.say(&start, How::Probed(said.map(recordable_probe)));
        }
        // Undoing is an effect like any other: a stale holder does not do it.
        What::Compensate if !desk.keeper.may_act(desk.job, desk.epoch) => {
            desk.say(&start, How::NotCalled);
        }
        What::Compensate => {
            let work = AssertUnwindSafe(tool.compensate(ctx, input)).catch_unwind();
            let said = desk.bounded(&start, work).await;
            desk.say(&start, How::Compensated(said));
        }
    }
}

pub(crate) fn panicked(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("the tool panicked: {}", text.unwrap_or_else(|| "no message".into()))
}

pub(crate) type Caught<T> = Result<Result<T, ToolError>, Box<dyn std::any::Any + Send>>;

impl Desk {
    /// Says it to the drive. It comes back if nobody was there.
    fn say(&self, start: &Start, how: How) -> Option<How> {
        let (step, key, call) = (start.step.clone(), start.key.clone(), start.call);
        self.done.send(Finished { step, key, call, how }).err().map(|unheard| unheard.0.how)
    }

    async fn bounded<T>(
        &self,
        start: &Start,
        work: impl Future<Output = Caught<T>>,
    ) -> Result<T, ToolError> {
        let rt = self.reach.pipeline.rt();
        match first(work, rt.sleep(start.timeout)).await {
            First::Left(Ok(result)) => result,
            First::Left(Err(panic)) => Err(ToolError::Unknown(panicked(&*panic))),
            First::Right(()) => Err(ToolError::Unknown("it took too long".into())),
        }
    }

    async fn call(&self, start: &Start, work: impl Future<Output = Result<Value, ToolError>>) {
        let rt = self.reach.pipeline.rt().clone();
        // Owned, so that it is gone, and not only no longer polled, before anybody is told so.
        let mut work = Box::pin(work);
        let mut stop = self.stop.clone();
        let asked_to_stop = async {
            // An error means that the drive is gone with everything else; the timeout still bounds it.
            if stop.wait_for(|s| *s).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let ended = first(&mut work, first(rt.sleep(start.timeout), asked_to_stop)).await;
        match ended {
            First::Left(result) => self.returned(start, result).await,
            First::Right(First::Left(())) => {
                self.say(start, How::TimedOut);
                self.stopper.send_replace(true);
                // What comes now comes late: it is evidence, and whoever holds the job may settle by it.
                if let First::Left(Ok(result)) = first(work, rt.sleep(self.grace())).await {
                    self.testify(start, Testimony::Result(result)).await;
                    self.say(start, How::Gone);
                } else {
                    self.gone(start).await;
                }
            }
            First::Right(First::Right(())) => match first(work, rt.sleep(self.grace())).await {
                First::Left(result) => self.returned(start, result).await,
                First::Right(()) => self.gone(start).await,
            },
        }
    }

    /// It was stopped. If nobody here is left to hear it, whoever has the job by now should.
    async fn gone(&self, start: &Start) {
        if self.say(start, How::Gone).is_some() {
            self.testify(start, Testimony::Over).await;
        }
    }

    fn grace(&self) -> Duration {
        self.reach.shop.options.stop_grace
    }

    async fn returned(&self, start: &Start, result: Result<Value, ToolError>) {
        self.reach.shop.at(points::AFTER_CALL).await;
        let mut result = result;
        if let (Ok(value), Some(effects)) = (&result, &self.reach.shop.effects) {
            let name = EffectName { key: &start.key, epoch: self.epoch, call: start.call };
            if let Err(e) = effects.put(name, value) {
                // It happened and can not be written down there: not something to call again for.
                result = Err(ToolError::Unknown(format!("its effect could not be recorded: {e}")));
            }
            self.reach.shop.at(points::AFTER_EFFECT).await;
        }
        if let Some(How::Returned(late)) = self.say(start, How::Returned(result)) {
            self.testify(start, Testimony::of(late)).await;
        }
    }

    async fn testify(&self, start: &Start, says: Testimony) {
        let late = Late {
            job: self.job,
            epoch: self.epoch,
            key: start.key.clone(),
            call: start.call,
            step: start.step.clone(),
            says,
        };
        testify(&self.reach, &self.keeper, late).await;
    }
}

/// What a worker that has lost a job can still say about a call that it had started.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Testimony {
    /// The tool returned this.
    Result(Value),
    /// No code of it runs any more in this process; whether it was applied is not known.
    Over,
    /// This process never made the call, and never will.
    NeverCalled,
}

impl Testimony {
    /// Of a tool that returned.
    pub fn of(result: Result<Value, ToolError>) -> Self {
        result.map_or(Testimony::Over, Testimony::Result)
    }

    pub fn to_json(&self, step: &StepId) -> Value {
        match self {
            Testimony::Result(result) => serde_json::json!({ "step": step, "result": result }),
            Testimony::Over => serde_json::json!({ "step": step, "over": true }),
            Testimony::NeverCalled => {
                serde_json::json!({ "step": step, "over": true, "called": false })
            }
        }
    }

    /// What evidence says, if it is about a call.
    pub fn from_json(said: &Value) -> Option<Self> {
        match (said.get("result"), said["over"] == true, said["called"] == false) {
            (Some(result), _, _) => Some(Testimony::Result(result.clone())),
            (None, true, true) => Some(Testimony::NeverCalled),
            (None, true, false) => Some(Testimony::Over),
            (None, false, _) => None,
        }
    }
}

/// Something about a call that can not be committed any more.
pub(crate) struct Late {
    pub job: EntityId,
    pub epoch: u64,
    pub key: String,
    pub call: u32,
    pub step: StepId,
    pub says: Testimony,
}

/// How long a worker goes on trying to say what became of a call. It may be cut off, and nobody else can say it.
const TESTIFY_FOR: Duration = Duration::from_secs(600);
/// The first and the longest pause between two tries.
const TESTIFY_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Records it as evidence: whoever holds the job may settle by it. Where the store cannot be reached, that goes on beside what
/// the worker does: who has lost a job to the network is often still without one when the call returns.
pub(crate) async fn testify(reach: &Reach, keeper: &Keeper, late: Late) {
    let Late { job, epoch, key, call, step, says } = late;
    let body = Body::json(&says.to_json(&step));
    let who = format!("session {}", keeper.id());
    let said = NewEvidence { entity: job, key, epoch, call, who, body };
    match reach.pipeline.evidence(said.clone()).await {
        Ok(_) => {}
        Err(e) if e.is_transient() => {
            tracing::warn!(%job, %step, error = %e, "what became of a call is recorded later");
            let pipeline = reach.pipeline.clone();
            let rt = pipeline.rt().clone();
            rt.spawn(Box::pin(async move { testify_later(&pipeline, step, said).await }));
        }
        Err(e) => unrecorded(job, &step, &e),
    }
}

async fn testify_later(pipeline: &Pipeline, step: StepId, said: NewEvidence) {
    let rt = pipeline.rt();
    let until = rt.mono() + TESTIFY_FOR;
    let (mut pause, longest) = TESTIFY_PAUSES;
    loop {
        rt.sleep(pause).await;
        match pipeline.evidence(said.clone()).await {
            Ok(_) => return,
            Err(e) if e.is_transient() && rt.mono() < until => pause = (pause * 2).min(longest),
            Err(e) => return unrecorded(said.entity, &step, &e),
        }
    }
}

fn unrecorded(job: EntityId, step: &StepId, e: &StoreError) {
    tracing::error!(%job, %step, error = %e, "what became of a call could not be recorded");
}

/// The calls that run in this process, whoever started them. A job that is lost and claimed again by the same
/// process finds its earlier call here while that still runs.
#[derive(Clone, Default)]
pub struct Calls(Arc<Mutex<HashMap<Name, usize>>>);

/// Job, key, epoch and call number.
type Name = (EntityId, String, u64, u32);

/// A call that runs. Dropped, it does not.
pub(crate) struct Runs(Calls, Name);

impl Calls {
    pub(crate) fn begin(&self, job: EntityId, key: &str, epoch: u64, call: u32) -> Runs {
        let name = (job, key.to_owned(), epoch, call);
        *self.lock().entry(name.clone()).or_insert(0) += 1;
        Runs(self.clone(), name)
    }

    pub(crate) fn runs(&self, job: EntityId, key: &str, epoch: u64, call: u32) -> bool {
        self.lock().contains_key(&(job, key.to_owned(), epoch, call))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Name, usize>> {
        // Nothing panics while it holds this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        let mut calls = self.0.lock();
        if let Some(n) = calls.get_mut(&self.1) {
            *n -= 1;
            if *n == 0 {
                calls.remove(&self.1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn testimony_reads_what_it_wrote() {
        let step = StepId("2".into());
        for says in [Testimony::Result(json!(null)), Testimony::Over, Testimony::NeverCalled] {
            assert_eq!(Testimony::from_json(&says.to_json(&step)), Some(says));
        }
        assert_eq!(Testimony::from_json(&json!({ "step": "2" })), None);
    }
}
