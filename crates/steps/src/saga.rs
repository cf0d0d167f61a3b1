//! Sagas: steps that belong together. If the last of them can not be done, those before it are undone, the last
//! first, each by an ordinary recorded tool step.
//!
//! What undoes a step is worked out by the flow when the step has happened, and is recorded in the commit that
//! records its result: tool and input, not code. So it needs nobody who remembers the flow: a job that is
//! *cancelled* is undone from the list alone (`jobs/drive/undoing.rs`). The step that undoes has an id that follows
//! from the registration, so the flow and that list mean the same step, with the same idempotency key, and it
//! happens once whoever gets to it.
//!
//! Before a result is known nobody can say what undoes it: the input of an undo follows from what the step gave, in a plan
//! as in code. So a call is on record as *undoable* when it starts, and no more. If its job is cancelled and its worker is
//! lost, the next worker first finds out what became of it, by its class, and the flow then says what undoes it.
//!
//! An undo that fails for good is listed and the others still run: one seat that can not be given back is no reason
//! to keep the hotel.

use crate::{
    ctx::{Calls, Ctx, Step},
    events::StepId,
    flow::{FlowError, StepError},
    tool::Class,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::{
    future::{Future, IntoFuture},
    ops::Deref,
    panic::Location,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tenure_kernel::runtime::BoxFuture;

/// What undoes a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Undo {
    /// Under which step it is recorded.
    pub at: StepId,
    /// What it undoes.
    pub of: StepId,
    /// The tool.
    pub tool: String,
    /// Its input.
    pub input: Value,
}

/// How ids of undoing steps end.
const MARK: char = 'u';

impl Undo {
    /// The step that undoes.
    pub fn step(&self) -> StepId {
        StepId(format!("{}{MARK}", self.at))
    }

    /// Whether a step undoes another.
    pub fn is_undo(step: &StepId) -> bool {
        step.0.ends_with(MARK)
    }

    pub(crate) fn recorded(&self) -> Value {
        json!({"of": self.of, "tool": self.tool, "input": self.input})
    }

    /// From what was recorded.
    pub fn read(at: &StepId, value: &Value) -> Option<Undo> {
        let text = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
        Some(Undo {
            at: at.clone(),
            of: StepId(text("of")?),
            tool: text("tool")?,
            input: value.get("input").cloned().unwrap_or(Value::Null),
        })
    }
}

/// A flow's way to steps that are undone together. It is a [`Ctx`] too: waits, sleeps and children are as usual.
#[derive(Clone)]
pub struct Saga {
    ctx: Ctx,
    done: Arc<Mutex<Vec<Undo>>>,
}

impl Deref for Saga {
    type Target = Ctx;
    fn deref(&self) -> &Ctx {
        &self.ctx
    }
}

impl Saga {
    /// Calls a tool; [`SagaStep::undo`] says what undoes it.
    #[track_caller]
    pub fn tool<O: DeserializeOwned>(&self, tool: &str, input: impl Serialize) -> SagaStep<O> {
        SagaStep { saga: self.clone(), step: self.ctx.tool(tool, input), undo: None }
    }

    /// The same saga in a branch of its own, for steps beside each other.
    pub fn beside(&self) -> Saga {
        Saga { ctx: self.ctx.branch(), done: self.done.clone() }
    }

    fn done(&self) -> Vec<Undo> {
        // Nothing panics under this lock.
        self.done.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

type Inverse<O> = Box<dyn FnOnce(&O) -> Value + Send>;

/// A step of a saga.
#[must_use = "a step that is not awaited is not asked for"]
pub struct SagaStep<O> {
    saga: Saga,
    step: Step<O, Calls>,
    undo: Option<(StepId, String, Inverse<O>, &'static Location<'static>)>,
}

impl<O: DeserializeOwned + Send + 'static> SagaStep<O> {
    /// The tool that undoes it, and what it is given, from what the step gave.
    #[track_caller]
    pub fn undo(
        mut self,
        tool: &str,
        input: impl FnOnce(&O) -> Value + Send + 'static,
    ) -> SagaStep<O> {
        let at = self.saga.ctx.next();
        self.undo = Some((at, tool.to_owned(), Box::new(input), Location::caller()));
        self.step = self.step.undoable();
        self
    }

    /// See [`Step::timeout`].
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.step = self.step.timeout(timeout);
        self
    }

    /// See [`Step::retries`].
    pub fn retries(mut self, retry_max: u32, backoff: Duration) -> Self {
        self.step = self.step.retries(retry_max, backoff);
        self
    }

    /// See [`Step::class`].
    pub fn class(mut self, class: Class) -> Self {
        self.step = self.step.class(class);
        self
    }
}

impl<O: DeserializeOwned + Send + 'static> IntoFuture for SagaStep<O> {
    type Output = Result<O, StepError>;
    type IntoFuture = BoxFuture<'static, Result<O, StepError>>;

    fn into_future(self) -> Self::IntoFuture {
        let SagaStep { saga, step, undo } = self;
        let of = step.id().clone();
        Box::pin(async move {
            // A result that does not fit its type fails the step, and nobody can say what would undo it.
            let output = step.await?;
            if let Some((at, tool, inverse, caller)) = undo {
                let (place, input) = (saga.ctx.place_of(caller), inverse(&output));
                let undo = saga.ctx.register_undo_at(at, &of, &tool, input, &place);
                saga.done.lock().unwrap_or_else(PoisonError::into_inner).push(undo);
            }
            Ok(output)
        })
    }
}

/// What became of undos: those that happened, and those that did not, with the reason.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Undone {
    /// Undone.
    pub undone: Vec<Undo>,
    /// Not undone.
    pub left: Vec<(Undo, String)>,
}

impl Undone {
    /// In words, behind the reason for it.
    pub fn words(&self) -> String {
        let name = |u: &Undo| format!("step {} (by {})", u.of, u.tool);
        let mut said = String::new();
        if !self.undone.is_empty() {
            let names: Vec<String> = self.undone.iter().map(name).collect();
            said.push_str(&format!("; undone: {}", names.join(", ")));
        }
        if !self.left.is_empty() {
            let names: Vec<String> =
                self.left.iter().map(|(u, why)| format!("{}: {why}", name(u))).collect();
            said.push_str(&format!("; could not be undone: {}", names.join(", ")));
        }
        said
    }
}

impl Ctx {
    /// Undoes all of these, the last first, one after the other.
    pub async fn undo_all(&self, undos: &[Undo]) -> Undone {
        let mut became = Undone::default();
        for undo in undos.iter().rev() {
            match self.undo(undo).await {
                Ok(_) => became.undone.push(undo.clone()),
                Err(e) => became.left.push((undo.clone(), e.why)),
            }
        }
        became
    }

    /// Runs steps that belong together. If it fails, what was done is undone, the last first; the error says what
    /// failed first and what could not be undone. Once it has returned well nothing of it is undone any more.
    #[track_caller]
    pub fn saga<T, F, Fut>(
        &self,
        run: F,
    ) -> impl Future<Output = Result<T, FlowError>> + use<T, F, Fut>
    where
        F: FnOnce(Saga) -> Fut,
        Fut: Future<Output = Result<T, FlowError>>,
    {
        let (kept, place) = (self.next(), self.place_of(Location::caller()));
        let saga = Saga { ctx: self.clone(), done: Arc::default() };
        let running = run(saga.clone());
        async move {
            match running.await {
                Err(error) if !matches!(error, FlowError::Continue(_)) => {
                    let became = saga.ctx.undo_all(&saga.done()).await;
                    Err(error.and_then(&became.words()))
                }
                well => {
                    let undos = saga.done();
                    if !undos.is_empty() {
                        saga.ctx.keep_at(&kept, &undos, &place);
                    }
                    well
                }
            }
        }
    }
}

impl FlowError {
    /// The same error with more words behind it.
    pub fn and_then(self, words: &str) -> FlowError {
        match self {
            FlowError::Step(e) => FlowError::Step(StepError { why: e.why + words, ..e }),
            FlowError::Failed(why) => FlowError::Failed(why + words),
            FlowError::Continue(input) => FlowError::Continue(input),
        }
    }
}
