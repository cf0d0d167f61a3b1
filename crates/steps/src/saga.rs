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
//! A saga that the flow lets go of before its end, because its branch has lost a race, is undone too: its running step is
//! asked to stop and awaited, because it may have happened all the same; then everything is undone, before the
//! winner's result is there (`Left`). A flow that lets go of one by other means ends when it is undone. A single step that
//! its own saga lets go of is asked to stop and awaited in the same way, and stays a part of the saga if it happened.
//!
//! An undo that fails for good is listed and the others still run: one seat that can not be given back is no reason
//! to keep the hotel.

use crate::{
    ctx::{Calls, Ctx, Step},
    desk::Desk,
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
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
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
    done: Done,
}

/// What a saga has registered, with the order over all sagas of the flow.
type Done = Arc<Mutex<Vec<(u64, Undo)>>>;

/// A copy of what is registered by now.
fn registered(done: &Done) -> Vec<(u64, Undo)> {
    // Nothing panics under this lock.
    done.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// What a flow has let go of and that does not stay as it is.
#[derive(Default)]
pub(crate) struct Left {
    /// What has begun: it goes on to its end.
    running: Vec<GoesOn>,
    /// What is undone then.
    sagas: Vec<Done>,
}

/// Something that has begun, and whose it is: a saga that ends waits for what is its own and for nothing else. What undoes
/// several sagas is nobody's.
struct GoesOn {
    of: Option<Done>,
    work: BoxFuture<'static, ()>,
}

impl GoesOn {
    fn is_of(&self, saga: &Done) -> bool {
        self.of.as_ref().is_some_and(|of| Arc::ptr_eq(of, saga))
    }
}

impl Left {
    pub(crate) fn is_empty(&self) -> bool {
        self.running.is_empty() && self.sagas.is_empty()
    }

    /// Takes what has begun of these sagas out of what was let go of before, in its order.
    fn take_begun(&mut self, of: &[Done]) -> Vec<GoesOn> {
        let is_theirs = |goes_on: &mut GoesOn| of.iter().any(|saga| goes_on.is_of(saga));
        self.running.extract_if(.., is_theirs).collect()
    }

    fn add(&mut self, mut more: Left) {
        self.running.append(&mut more.running);
        self.sagas.append(&mut more.sagas);
    }

    /// Adds what its sagas had let go of before they were let go of themselves.
    pub(crate) fn with_begun(mut self, earlier: &mut Left) -> Left {
        self.running.splice(0..0, earlier.take_begun(&self.sagas));
        self
    }
}

/// Brings what was let go of to its end: waits for what has begun, then undoes everything, the last first. Let go of
/// itself, also before its first poll, it leaves what it had to do, each piece to its owner.
pub(crate) struct ToEnd {
    ctx: Ctx,
    left: Left,
    undoing: Option<BoxFuture<'static, ()>>,
}

pub(crate) fn undo_left(ctx: Ctx, left: Left) -> ToEnd {
    ToEnd { ctx, left, undoing: None }
}

impl Future for ToEnd {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        this.left.running.retain_mut(|begun| begun.work.as_mut().poll(cx).is_pending());
        if !this.left.running.is_empty() {
            return Poll::Pending;
        }
        let undoing = this.undoing.get_or_insert_with(|| {
            let sagas = std::mem::take(&mut this.left.sagas);
            let mut undos: Vec<(u64, Undo)> = sagas.iter().flat_map(registered).collect();
            undos.sort_by_key(|(n, _)| *n);
            let undos: Vec<Undo> = undos.into_iter().map(|(_, undo)| undo).collect();
            let ctx = this.ctx.clone();
            // One that fails is on record as a step that failed.
            Box::pin(async move { drop(ctx.undo_all(&undos).await) })
        });
        let polled = undoing.as_mut().poll(cx);
        if polled.is_ready() {
            this.undoing = None;
        }
        polled
    }
}

impl Drop for ToEnd {
    fn drop(&mut self) {
        let mut left = std::mem::take(&mut self.left);
        left.running.extend(self.undoing.take().map(|work| GoesOn { of: None, work }));
        // Where the flow is over it is dropped here, and not under the desk's lock.
        let mut left = Some(left);
        self.ctx.desk.leave(|to| left.take().into_iter().for_each(|left| to.add(left)));
    }
}

/// Something that, once it has begun, goes on when the flow lets go of it: see `Left`.
pub(crate) struct Unbroken<T: Send + 'static> {
    desk: Arc<Desk>,
    of: Done,
    work: Option<BoxFuture<'static, T>>,
    begun: bool,
    /// The step that is asked to stop then.
    stops: Option<StepId>,
}

impl<T: Send + 'static> Unbroken<T> {
    fn new(saga: &Saga, work: BoxFuture<'static, T>, stops: Option<StepId>) -> Self {
        let (desk, of) = (saga.ctx.desk.clone(), saga.done.clone());
        Unbroken { desk, of, work: Some(work), begun: false, stops }
    }
}

impl<T: Send + 'static> Future for Unbroken<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        self.begun = true;
        let Some(work) = &mut self.work else { return Poll::Pending };
        let polled = work.as_mut().poll(cx);
        if polled.is_ready() {
            self.work = None;
        }
        polled
    }
}

impl<T: Send + 'static> Drop for Unbroken<T> {
    fn drop(&mut self) {
        let Some(work) = self.work.take().filter(|_| self.begun) else { return };
        if let Some(step) = &self.stops {
            self.desk.stop_step(step);
        }
        let work: BoxFuture<'static, ()> = Box::pin(async move {
            work.await;
        });
        let goes_on = GoesOn { of: Some(self.of.clone()), work };
        // Where the flow is over it is dropped here, and not under the desk's lock.
        let mut goes_on = Some(goes_on);
        self.desk.leave(|left| left.running.extend(goes_on.take()));
    }
}

/// Notes what a saga has registered when the flow lets go of it.
struct Unfinished(Option<Saga>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(saga) = self.0.take() {
            saga.ctx.desk.leave(|left| left.sagas.push(saga.done.clone()));
        }
    }
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
        registered(&self.done).into_iter().map(|(_, undo)| undo).collect()
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
        let (whose, stops) = (saga.clone(), undo.is_some().then(|| of.clone()));
        let work: BoxFuture<'static, Self::Output> = Box::pin(async move {
            // A result that does not fit its type fails the step, and nobody can say what would undo it.
            let output = step.await?;
            if let Some((at, tool, inverse, caller)) = undo {
                let (place, input) = (saga.ctx.place_of(caller), inverse(&output));
                let undo = saga.ctx.register_undo_at(at, &of, &tool, input, &place);
                let entry = (saga.ctx.desk.registers(), undo);
                saga.done.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
            }
            Ok(output)
        });
        match stops {
            None => work,
            stops => Box::pin(Unbroken::new(&whose, work, stops)),
        }
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
    /// failed first and what could not be undone. Once it has returned well nothing of it is undone any more. One that the
    /// flow lets go of before that, in a lost race say, is undone as if it had failed.
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
            let mut unfinished = Unfinished(Some(saga.clone()));
            let said = running.await;
            // Steps that its own code let go of belong to it all the same.
            let mut begun = Left::default();
            let mine = std::slice::from_ref(&saga.done);
            saga.ctx.desk.leave(|left| begun.running = left.take_begun(mine));
            if !begun.is_empty() {
                undo_left(saga.ctx.clone(), begun).await;
            }
            match said {
                Err(error) if !matches!(error, FlowError::Continue(_)) => {
                    unfinished.0 = None;
                    let (ctx, undos) = (saga.ctx.clone(), saga.done());
                    let undoing = Box::pin(async move { ctx.undo_all(&undos).await });
                    let became = Unbroken::new(&saga, undoing, None).await;
                    Err(error.and_then(&became.words()))
                }
                well => {
                    unfinished.0 = None;
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
