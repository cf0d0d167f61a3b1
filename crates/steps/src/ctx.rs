//! What a flow sees. Every call takes the next step number at once (not when it is polled), so that the
//! order in which futures are polled can not change what a step is called.

use crate::{
    canonical,
    desk::{Ask, Desk, Place},
    events::{StepId, ValueKind, WaitKind},
    flow::{Failed, FlowError, StepError},
    history::Outcome,
    saga::{Left, Undo, undo_left},
    tool::{CallOptions, Class},
};
use futures_util::future::{join_all, poll_fn};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::{
    future::Future,
    marker::PhantomData,
    panic::Location,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};
use tenure_kernel::{ids::EntityId, time::Timestamp};
use uuid::Uuid;

/// A flow's way to everything outside of it. A clone counts steps together with the original; a
/// [`branch`](Ctx::branch) has a counter of its own.
#[derive(Clone)]
pub struct Ctx {
    pub(crate) desk: Arc<Desk>,
    branch: Arc<Branch>,
}

struct Branch {
    prefix: String,
    count: AtomicU32,
    /// What its steps are called, where a line of code says nothing.
    name: Option<Arc<str>>,
}

/// A person's answer.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Approval {
    /// Yes or no.
    pub approved: bool,
    /// Whose.
    pub by: Option<String>,
    /// What they said with it.
    #[serde(default)]
    pub payload: Value,
}

/// Any JSON that a signal brought.
pub type Signal = Value;

/// The winner of a race.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Either<A, B> {
    /// The first argument.
    Left(A),
    /// The second argument.
    Right(B),
}

/// Marks a step that calls a tool.
pub struct Calls;
/// Marks a step that waits for somebody.
pub struct Waits;
/// Marks a step without options.
pub struct Plain;
/// Marks a step that is another job.
pub struct Runs;

/// A step that has its number and is asked for when it is first polled. Dropping it before it is done
/// asks for its cancellation.
#[must_use = "a step that is not awaited is not asked for"]
pub struct Step<O, K = Plain> {
    desk: Arc<Desk>,
    id: StepId,
    ask: Option<Ask>,
    place: Place,
    done: bool,
    types: PhantomData<fn() -> (O, K)>,
}

impl<O, K> Step<O, K> {
    /// Its id.
    pub fn id(&self) -> &StepId {
        &self.id
    }

    fn fail(&self, kind: Failed, why: impl Into<String>) -> StepError {
        StepError { step: self.id.clone(), kind, why: why.into() }
    }
}

impl<O> Step<O, Calls> {
    fn options(mut self, set: impl FnOnce(&mut CallOptions)) -> Self {
        if let Some(Ask::Tool { options, .. }) = &mut self.ask {
            set(options);
        }
        self
    }

    /// How long one call may take.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.options(|o| o.timeout = Some(timeout))
    }

    /// Tries after the first, and the pause before the first of them.
    pub fn retries(self, retry_max: u32, backoff: Duration) -> Self {
        self.options(|o| (o.retry_max, o.backoff) = (Some(retry_max), Some(backoff)))
    }

    /// All of these at once; what they are silent about stays.
    pub fn with(self, options: &CallOptions) -> Self {
        self.options(|o| *o = options.or(o))
    }

    /// Says that [`Ctx::register_undo`] follows if it happens. A job that is cancelled meanwhile then finds out whether it did,
    /// also if the worker that called is lost.
    pub fn undoable(mut self) -> Self {
        if let Some(Ask::Tool { undoable, .. }) = &mut self.ask {
            *undoable = true;
        }
        self
    }

    /// What settles an unknown outcome of this very step.
    pub fn class(self, class: Class) -> Self {
        self.options(|o| o.class = Some(class))
    }
}

impl<O> Step<O, Waits> {
    /// For how long. Then the step fails with [`Failed::Expired`].
    pub fn within(mut self, limit: Duration) -> Self {
        if let Some(Ask::Wait { within, .. }) = &mut self.ask {
            *within = Some(limit);
        }
        self
    }

    /// What the person who answers should know.
    pub fn note(mut self, text: impl Into<String>) -> Self {
        if let Some(Ask::Wait { note, .. }) = &mut self.ask {
            *note = Some(text.into());
        }
        self
    }
}

impl<O> Step<O, Runs> {
    /// A certain version of the flow instead of the newest.
    pub fn version(mut self, number: u32) -> Self {
        if let Some(Ask::Child { version, .. }) = &mut self.ask {
            *version = Some(number);
        }
        self
    }

    /// Says that [`Ctx::register_undo`] follows if it completes. A job that is cancelled meanwhile then waits for what undoes
    /// it, also if the child ends while nobody is there who could tell the flow.
    pub fn undoable(mut self) -> Self {
        if let Some(Ask::Child { undoable, .. }) = &mut self.ask {
            *undoable = true;
        }
        self
    }
}

impl<O: DeserializeOwned, K> Future for Step<O, K> {
    type Output = Result<O, StepError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let Poll::Ready(outcome) = this.desk.poll_step(&this.id, &mut this.ask, &this.place, cx)
        else {
            return Poll::Pending;
        };
        this.done = true;
        Poll::Ready(match outcome {
            Outcome::Ok(value) => serde_json::from_value(value).map_err(|e| {
                this.fail(Failed::Shape, format!("what is recorded does not fit the type: {e}"))
            }),
            Outcome::Err(kind, why) => Err(this.fail(kind, why)),
            Outcome::InChild(_) => {
                Err(this.fail(Failed::Child, "the child's output could not be read"))
            }
        })
    }
}

impl<O, K> Drop for Step<O, K> {
    fn drop(&mut self) {
        if !self.done && self.ask.is_none() {
            self.desk.drop_step(&self.id);
        }
    }
}

impl Ctx {
    pub(crate) fn root(desk: Arc<Desk>) -> Self {
        let run = desk.board().run;
        let prefix = if run > 1 { format!("{run}:") } else { String::new() };
        Ctx { desk, branch: Arc::new(Branch { prefix, count: AtomicU32::new(0), name: None }) }
    }

    /// The name of the branch, or else the line of the code.
    fn place(&self, caller: &'static Location<'static>) -> Place {
        self.branch.name.clone().map_or(Place::Code(caller), Place::Named)
    }

    pub(crate) fn next(&self) -> StepId {
        let n = self.branch.count.fetch_add(1, Ordering::Relaxed) + 1;
        StepId(format!("{}{n}", self.branch.prefix))
    }

    fn step<O, K>(&self, ask: Ask, place: Place) -> Step<O, K> {
        let (desk, id) = (self.desk.clone(), self.next());
        Step { desk, id, ask: Some(ask), place, done: false, types: PhantomData }
    }

    /// The job that runs this flow.
    pub fn job(&self) -> EntityId {
        self.desk.board().job
    }

    /// Whose job it is.
    pub fn tenant(&self) -> String {
        self.desk.board().tenant.clone()
    }

    /// Calls a tool.
    #[track_caller]
    pub fn tool<O: DeserializeOwned>(&self, tool: &str, input: impl Serialize) -> Step<O, Calls> {
        // What can not be written as JSON reaches the tool as null, whose schema then says what is missing.
        let input = serde_json::to_value(input).unwrap_or(Value::Null);
        let arguments_hash = canonical::short_digest(&input);
        let options = CallOptions::default();
        let (tool, undoable) = (tool.to_owned(), false);
        let ask = Ask::Tool { tool, input, arguments_hash, options, undoable };
        self.step(ask, self.place(Location::caller()))
    }

    /// Asks a language model, by the tool `llm`.
    #[track_caller]
    pub fn llm<O: DeserializeOwned>(&self, request: impl Serialize) -> Step<O, Calls> {
        self.tool("llm", request)
    }

    /// Computes something that must not be computed differently the next time.
    #[track_caller]
    pub fn pure<T: Serialize + DeserializeOwned>(
        &self,
        name: &str,
        compute: impl FnOnce() -> T,
    ) -> std::future::Ready<Result<T, StepError>> {
        let (id, place) = (self.next(), self.place(Location::caller()));
        let made = self.desk.value(&id, ValueKind::Pure, name, &place, |_| {
            serde_json::to_value(compute()).unwrap_or(Value::Null)
        });
        let shape = |why: String| StepError { step: id.clone(), kind: Failed::Shape, why };
        let answer = match made {
            Some(value) => serde_json::from_value(value).map_err(|e| shape(e.to_string())),
            None => Err(shape("the flow diverges here".into())),
        };
        std::future::ready(answer)
    }

    /// Waits for a signal. A signal goes to the oldest open wait of its name, so one name can be waited for again and again. The
    /// key of the second such wait is `name#2`.
    #[track_caller]
    pub fn wait_signal<O: DeserializeOwned>(&self, name: &str) -> Step<O, Waits> {
        self.wait(WaitKind::Signal, name, self.place(Location::caller()))
    }

    /// Waits for a call from another system.
    #[track_caller]
    pub fn webhook<O: DeserializeOwned>(&self, name: &str) -> Step<O, Waits> {
        self.wait(WaitKind::Webhook, name, self.place(Location::caller()))
    }

    /// Waits for a person's yes or no.
    #[track_caller]
    pub fn approval(&self, name: &str) -> Step<Approval, Waits> {
        self.wait(WaitKind::Human, name, self.place(Location::caller()))
    }

    fn wait<O>(&self, kind: WaitKind, name: &str, place: Place) -> Step<O, Waits> {
        let key = self.desk.key(name);
        self.step(Ask::Wait { kind, key, within: None, note: None }, place)
    }

    /// Sleeps. Costs a row, not a task.
    #[track_caller]
    pub fn sleep(&self, time: Duration) -> Step<()> {
        self.step(Ask::Sleep(time), self.place(Location::caller()))
    }

    /// Runs another job and waits for its output.
    #[track_caller]
    pub fn child<O: DeserializeOwned>(&self, flow: &str, input: impl Serialize) -> Step<O, Runs> {
        let input = serde_json::to_value(input).unwrap_or(Value::Null);
        let arguments_hash = canonical::short_digest(&input);
        let (flow, version, undoable) = (flow.to_owned(), None, false);
        let ask = Ask::Child { flow, version, input, arguments_hash, undoable };
        self.step(ask, self.place(Location::caller()))
    }

    /// The time, recorded.
    #[track_caller]
    pub fn now(&self) -> Timestamp {
        let made = self.value(ValueKind::Now, self.place(Location::caller()), |b| {
            Value::from(b.now.as_micros())
        });
        Timestamp::from_micros(made.as_i64().unwrap_or(0))
    }

    /// A random number, recorded.
    #[track_caller]
    pub fn random(&self) -> u64 {
        self.value(ValueKind::Random, self.place(Location::caller()), |b| {
            Value::from(b.next_random())
        })
        .as_u64()
        .unwrap_or(0)
    }

    /// A random UUID, recorded.
    #[track_caller]
    pub fn uuid(&self) -> Uuid {
        let made = self.value(ValueKind::Uuid, self.place(Location::caller()), |b| {
            let bits = u128::from(b.next_random()) << 64 | u128::from(b.next_random());
            let uuid = uuid::Builder::from_random_bytes(bits.to_be_bytes()).into_uuid();
            Value::from(uuid.to_string())
        });
        made.as_str().and_then(|s| s.parse().ok()).unwrap_or(Uuid::nil())
    }

    fn value(
        &self,
        kind: ValueKind,
        place: Place,
        make: impl FnOnce(&mut crate::desk::Board) -> Value,
    ) -> Value {
        // Nothing comes back only where the flow diverges, and then it is not polled again.
        self.desk.value(&self.next(), kind, "", &place, make).unwrap_or(Value::Null)
    }

    /// A context with a counter of its own, for code that runs beside other code of this flow.
    pub fn branch(&self) -> Ctx {
        let prefix = format!("{}.", self.next());
        let branch = Branch { prefix, count: AtomicU32::new(0), name: self.branch.name.clone() };
        Ctx { desk: self.desk.clone(), branch: Arc::new(branch) }
    }

    /// The same, and its steps are shown under this name instead of the line of the code that asks for them.
    pub fn branch_named(&self, name: &str) -> Ctx {
        let prefix = format!("{}.", self.next());
        let branch = Branch { prefix, count: AtomicU32::new(0), name: Some(name.into()) };
        Ctx { desk: self.desk.clone(), branch: Arc::new(branch) }
    }

    /// Records that this undoes a step that has just happened. From here on it is known without the flow's code,
    /// so that a job that is cancelled can be undone by any worker that has the tool.
    #[track_caller]
    pub fn register_undo(&self, of: &StepId, tool: &str, input: Value) -> Undo {
        let (at, place) = (self.next(), self.place(Location::caller()));
        self.register_undo_at(at, of, tool, input, &place)
    }

    pub(crate) fn register_undo_at(
        &self,
        at: StepId,
        of: &StepId,
        tool: &str,
        input: Value,
        place: &Place,
    ) -> Undo {
        let undo = Undo { at: at.clone(), of: of.clone(), tool: tool.to_owned(), input };
        // Nothing comes back only where the flow diverges, and then it is not polled again.
        self.desk.value(&at, ValueKind::Undo, tool, place, |_| undo.recorded());
        undo
    }

    /// Undoes: an ordinary tool step, under an id that follows from the registration, so that it is the same step
    /// whoever runs it.
    pub fn undo(&self, undo: &Undo) -> Step<Value, Calls> {
        let arguments_hash = canonical::short_digest(&undo.input);
        let (tool, input) = (undo.tool.clone(), undo.input.clone());
        let (options, undoable) = (CallOptions::default(), false);
        let ask = Ask::Tool { tool, input, arguments_hash, options, undoable };
        let place = Place::Named(format!("undo of step {}", undo.of).into());
        let (desk, id) = (self.desk.clone(), undo.step());
        Step { desk, id, ask: Some(ask), place, done: false, types: PhantomData }
    }

    /// What was registered is not to be undone any more: it belongs to something that is complete.
    pub(crate) fn keep_at(&self, at: &StepId, undos: &[Undo], place: &Place) {
        let ids: Vec<&StepId> = undos.iter().map(|u| &u.at).collect();
        self.desk.value(at, ValueKind::Kept, "", place, |_| serde_json::json!(ids));
    }

    /// The place of a caller, for what is built on top of this.
    pub(crate) fn place_of(&self, caller: &'static Location<'static>) -> Place {
        self.place(caller)
    }

    /// Runs the same code for every item, beside each other; outputs in the order of the items.
    pub async fn parallel<T, O, F, Fut>(&self, items: impl IntoIterator<Item = T>, run: F) -> Vec<O>
    where
        F: Fn(Ctx, T) -> Fut,
        Fut: Future<Output = O>,
    {
        join_all(items.into_iter().map(|item| run(self.branch(), item))).await
    }

    /// Waits for both.
    pub async fn join<A: Future, B: Future>(&self, a: A, b: B) -> (A::Output, B::Output) {
        futures_util::future::join(a, b).await
    }

    /// Waits for the first, and records which it was. The other one is asked to stop; what a saga in it has done is
    /// undone, the last first, before the winner's result is there.
    #[track_caller]
    pub fn race<A: Future, B: Future>(
        &self,
        a: A,
        b: B,
    ) -> impl Future<Output = Either<A::Output, B::Output>> {
        let (id, desk) = (self.next(), self.desk.clone());
        let (place, ctx) = (self.place(Location::caller()), self.clone());
        async move {
            let (won, mut others) = {
                let (mut a, mut b) = (pin!(a), pin!(b));
                let won = poll_fn(|cx| {
                    if let Poll::Ready(x) = a.as_mut().poll(cx) {
                        return Poll::Ready(Either::Left(x));
                    }
                    b.as_mut().poll(cx).map(Either::Right)
                })
                .await;
                (won, desk.swap_left(Left::default()))
            };
            // Both are dropped by now: this is what the loser could not leave as it was, and what its sagas had let go of
            // before.
            let behind = desk.swap_left(Left::default()).with_begun(&mut others);
            desk.swap_left(others);
            let left = matches!(won, Either::Left(_));
            let winner = if left { 0 } else { 1 };
            let recorded = desk.value(&id, ValueKind::Race, "", &place, |_| Value::from(winner));
            if recorded.as_ref().and_then(Value::as_u64) != Some(winner) {
                desk.diverged(&id, "another winner of the race", &place);
                std::future::pending::<()>().await;
            }
            if !behind.is_empty() {
                undo_left(ctx, behind).await;
            }
            won
        }
    }

    /// Starts the flow afresh with this input: `return Err(ctx.continue_with(&state))`. A long loop
    /// stays short in history that way.
    pub fn continue_with(&self, input: impl Serialize) -> FlowError {
        FlowError::Continue(serde_json::to_value(input).unwrap_or(Value::Null))
    }
}

impl Desk {
    pub(crate) fn diverged(&self, id: &StepId, expected: &str, place: &Place) {
        let divergence = crate::desk::Divergence {
            step: id.clone(),
            recorded: "the winner of a race".into(),
            expected: format!("{expected} (at {})", crate::desk::place_text(place)),
        };
        self.board().trouble.get_or_insert(divergence);
    }
}
