//! The flow that runs plans. It is a flow like any other: it awaits nothing but its context, and which steps it
//! starts follows from outcomes alone, in the order of the stream.
//!
//! Every step has a branch of its own, numbered in the order of the plan before anything runs, so that the ids of
//! steps do not depend on what finished first. What can start is looked for after every completion; what runs is
//! polled in the order of the plan.
//!
//! A value is there as soon as it is asked for, so a plan of values runs from its first step to its last without a
//! pause: the limits of a job, which are looked at between two commits, would come too late. Therefore what is worked out
//! and recorded is counted here (`Spent`), from what the flow itself has seen, and so the same in every replay.

use super::{
    check::{self, check_input},
    expr::{Empty, Name, Scope},
    limits,
    model::{OnFailure, Plan, Step, Wait, What},
    strict::Strict,
    template::at_least,
};
use futures_util::future::poll_fn;
use serde_json::{Map, Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};
use tenure_kernel::runtime::BoxFuture;
use tenure_steps::{
    Approval, Ctx, FlowError, StepError,
    events::{StepId, WaitKind},
    flow::{FlowResult, FlowSpec},
    saga::Undo,
};

/// The name of the flow that runs plans.
pub const FLOW: &str = "plan";

/// The flow. A change of what a plan means needs a new version.
pub fn flow() -> FlowSpec {
    let mut spec = FlowSpec::new(FLOW, run).doc("Runs a plan: a graph of steps in JSON.");
    spec.input_schema = json!({
        "type": "object",
        "properties": {"plan": {"type": "object"}, "input": {}},
        "required": ["plan"],
        "additionalProperties": false
    });
    spec.output_schema = Value::Bool(true);
    spec
}

async fn run(ctx: Ctx, given: Value) -> FlowResult {
    let written = given.get("plan").cloned().unwrap_or(Value::Null);
    let input = given.get("input").cloned().unwrap_or(Value::Null);
    let (digest, strict) = (Plan::digest(&written), Strict::from(written));
    // Judged once: a later program may know more problems, and a plan that was good enough to begin goes on.
    let judged: Value = ctx.pure("plan", || judge(&strict, &input, &digest)).await?;
    match judged.as_str() {
        Some(known) if known == digest => {}
        Some(_) => return Err(FlowError::failed("this is not the plan that the job began with")),
        None => {
            let said = judged["problems"].as_str().unwrap_or("nobody wrote down why");
            return Err(FlowError::failed(format!("the plan can not be run: {said}")));
        }
    }
    let plan = Plan::read_judged(&strict);
    let plan = plan.ok_or_else(|| FlowError::failed("the plan can not be read"))?;
    Runner::new(ctx, plan, input).run().await
}

/// The digest of a plan that can run; else what is wrong.
fn judge(plan: &Strict, input: &Value, digest: &str) -> Value {
    let problems = match check::check(plan, None) {
        Ok(plan) => check_input(&plan, input),
        Err(problems) => problems,
    };
    let Some(first) = problems.first() else { return Value::from(digest) };
    let more = match problems.len() {
        1 => String::new(),
        n => format!(" (and {} more)", n - 1),
    };
    json!({"problems": format!("{first}{more}")})
}

/// What a step takes room of, while it is open.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Room {
    Tools,
    Waits,
    Jobs,
}

impl Room {
    fn of(what: &What) -> Option<Room> {
        match what {
            What::Tool { .. } => Some(Room::Tools),
            What::Wait(_) | What::Sleep(_) => Some(Room::Waits),
            What::Job { .. } => Some(Room::Jobs),
            What::Value(_) => None,
        }
    }

    fn max(self) -> usize {
        match self {
            Room::Tools => limits::TOOLS_AT_ONCE,
            Room::Waits => limits::WAITS_AT_ONCE,
            Room::Jobs => limits::JOBS_AT_ONCE,
        }
    }
}

/// Why something did not give its output.
struct Trouble {
    /// The step of the engine, where there was one.
    step: Option<StepError>,
    why: String,
    /// A person who says no has said something.
    output: Option<Value>,
}

impl Trouble {
    fn new(why: impl Into<String>) -> Self {
        Trouble { step: None, why: why.into(), output: None }
    }
}

impl From<StepError> for Trouble {
    fn from(e: StepError) -> Self {
        Trouble { why: e.why.clone(), step: Some(e), output: None }
    }
}

impl From<Empty> for Trouble {
    fn from(e: Empty) -> Self {
        Trouble::new(e.to_string())
    }
}

type Running = BoxFuture<'static, Result<Value, Trouble>>;

/// What a plan has used so far of what it may.
#[derive(Default)]
struct Spent {
    /// By expressions and templates, in bytes.
    work: usize,
    /// Recorded, in bytes and in records. Counted a little too low, never too high: what is refused here would be refused by
    /// the job's own limits a little later, without a word about the step.
    bytes: u64,
    records: u32,
}

impl Spent {
    fn record(&mut self, value: &Value) {
        self.bytes = self.bytes.saturating_add(at_least(value) as u64);
        self.records = self.records.saturating_add(1);
    }

    /// The same of a value that can still be left out.
    fn record_value(&mut self, value: &Value) -> Result<(), Empty> {
        let (bytes, records) = (limits::RECORDED_BYTES_MAX, limits::RECORDED_MAX);
        if self.bytes + at_least(value) as u64 > bytes || self.records >= records {
            return Err(Empty::Failed(format!(
                "with this value the plan would record more than {bytes} bytes, or {records} values and outcomes: hand \
                 references from step to step, or split it in jobs"
            )));
        }
        self.record(value);
        Ok(())
    }
}

/// Something that runs: a step, or one item of it.
struct Unit {
    step: usize,
    index: Option<usize>,
    /// The item of a `for_each`: what undoes it may need it when the list is gone.
    item: Option<Arc<Value>>,
    ctx: Ctx,
    id: Option<StepId>,
    room: Option<Room>,
    /// Of its input, where it is a job: that is not written before the next commit.
    bytes: usize,
    future: Running,
}

/// A step of the engine that was asked for.
struct Opened {
    id: Option<StepId>,
    bytes: usize,
    future: Running,
}

/// Items of a `for_each`.
struct Items {
    list: Vec<Arc<Value>>,
    branches: Vec<Ctx>,
    next: usize,
    open: usize,
    outputs: Vec<Value>,
    failed: BTreeMap<usize, String>,
}

enum State {
    /// What it needs is not over, or there is no room.
    Waiting,
    Running,
    Each(Items),
    /// Over: an object with `status`, and `output` and `error` where there are some.
    Over(Arc<Value>),
}

struct Runner {
    ctx: Ctx,
    plan: Plan,
    input: Arc<Value>,
    needs: Vec<BTreeSet<usize>>,
    branches: Vec<Ctx>,
    states: Vec<State>,
    units: Vec<Unit>,
    undos: Vec<Undo>,
    /// What happened and nobody knows how to undo.
    lost: Vec<(Undo, String)>,
    failed: Option<FlowError>,
    spent: Spent,
}

impl Runner {
    fn new(ctx: Ctx, plan: Plan, input: Value) -> Self {
        let needs = plan.needs();
        let branches = plan.steps.iter().map(|s| ctx.branch_named(&s.id)).collect();
        let states = plan.steps.iter().map(|_| State::Waiting).collect();
        let (units, undos, lost, failed) = (Vec::new(), Vec::new(), Vec::new(), None);
        let (input, spent) = (Arc::new(input), Spent::default());
        Runner { ctx, plan, input, needs, branches, states, units, undos, lost, failed, spent }
    }

    async fn run(mut self) -> FlowResult {
        loop {
            while (0..self.states.len()).fold(false, |moved, step| self.look(step) | moved) {}
            if self.failed.is_some() {
                self.let_go().await;
            }
            if self.units.is_empty() {
                break;
            }
            let (at, result) = first(&mut self.units).await;
            let unit = self.units.remove(at);
            self.finished(unit, result);
        }
        let ended = match self.failed.take() {
            Some(failed) => Err(failed),
            None => self.output(),
        };
        match ended {
            Err(failed) if !self.undos.is_empty() || !self.lost.is_empty() => {
                let mut became = self.ctx.undo_all(&self.undos).await;
                became.left.append(&mut self.lost);
                Err(failed.and_then(&became.words()))
            }
            other => other,
        }
    }

    /// After a failure calls and jobs are awaited, because what they do has to be undone; waits and sleeps are not: nothing
    /// follows from them any more, and an answer that never comes would keep everything from being undone. What began in
    /// this very moment is asked for before it is dropped, as it always was, so that histories stay what they are.
    async fn let_go(&mut self) {
        let (waits, others) = std::mem::take(&mut self.units)
            .into_iter()
            .partition(|unit| unit.room == Some(Room::Waits));
        self.units = others;
        for mut unit in waits {
            let polled = poll_fn(|cx| Poll::Ready(Pin::new(&mut unit.future).poll(cx))).await;
            if let Poll::Ready(result) = polled {
                self.finished(unit, result);
            }
        }
    }

    /// Lets a step go as far as it can; whether that was anywhere.
    fn look(&mut self, at: usize) -> bool {
        match &self.states[at] {
            State::Running | State::Over(_) => false,
            // What runs is finished, nothing new starts.
            State::Waiting if self.failed.is_some() => false,
            State::Waiting => {
                let over = |n: &usize| matches!(self.states[*n], State::Over(_));
                if !self.needs[at].iter().all(over) {
                    return false;
                }
                let scope = self.scope(at);
                let moved = self.begin(at, &scope);
                self.spent.work += scope.spent.get();
                moved
            }
            State::Each(_) => self.next_items(at),
        }
    }

    /// A step whose needs are over.
    fn begin(&mut self, at: usize, scope: &Scope) -> bool {
        let step = self.plan.steps[at].clone();
        if Room::of(&step.what).is_some_and(|room| !self.has(room)) {
            return false;
        }
        if let Some(when) = &step.when {
            match when.holds(scope) {
                Ok(true) => {}
                Ok(false) => {
                    self.skip(at, format!("`{}` does not hold", when.source));
                    return true;
                }
                Err(e) => return self.could_not(at, e),
            }
        }
        let Some(each) = &step.for_each else { return self.start(at, &step, None, scope) };
        match each.items.value(scope) {
            Ok(Value::Array(list)) if list.len() > each.at_most => {
                let why = format!("for_each: {} items; {} are the most", list.len(), each.at_most);
                self.fail(at, Trouble::new(why));
            }
            Ok(Value::Array(list)) if list.is_empty() => self.done(at, Value::Array(list)),
            Ok(Value::Array(list)) => {
                if let Some(without) = self.lacks(&step, scope) {
                    return self.could_not(at, Empty::Without(without));
                }
                let branch =
                    |i: usize| self.branches[at].branch_named(&format!("{}[{i}]", step.id));
                self.states[at] = State::Each(Items {
                    branches: (0..list.len()).map(branch).collect(),
                    outputs: vec![Value::Null; list.len()],
                    list: list.into_iter().map(Arc::new).collect(),
                    next: 0,
                    open: 0,
                    failed: BTreeMap::new(),
                });
            }
            Ok(other) => {
                let kind = super::problem::kind_of(&other);
                self.fail(at, Trouble::new(format!("for_each needs a list, this is {kind}")));
            }
            Err(e) => return self.could_not(at, e),
        }
        true
    }

    /// Something in its expressions has no value: because of a step that gave none, or because it is wrong.
    fn could_not(&mut self, at: usize, e: Empty) -> bool {
        match e {
            Empty::Without(id) => self.skip(at, self.without(&id)),
            e => self.fail(at, e.into()),
        }
        true
    }

    fn without(&self, id: &str) -> String {
        let status = self.status_without_output(id).unwrap_or("gave none");
        format!("it needs the output of `{id}`, which {status}")
    }

    /// The step without an output, if no item of this one can do without it: then it is skipped as a whole, as it would be
    /// without `for_each`. What only some items need fails those.
    fn lacks(&self, step: &Step, scope: &Scope) -> Option<String> {
        let mut without = None;
        for (_, template) in step.templates() {
            template.each("", &mut |expr, _| {
                let empty = |n: &Name| matches!(n, Name::Step(id) if self.status_without_output(id).is_some());
                let of_item = |n: &Name| matches!(n, Name::Item | Name::Index);
                if without.is_none()
                    && expr.names.iter().any(empty)
                    && !expr.names.iter().any(of_item)
                    && let Err(Empty::Without(id)) = expr.value(scope)
                {
                    without = Some(id);
                }
            });
        }
        without
    }

    /// What became of a step that is over and gave nothing.
    fn status_without_output(&self, id: &str) -> Option<&'static str> {
        let State::Over(over) = &self.states[self.plan.step(id)?] else { return None };
        match (over["status"].as_str(), over.get("output")) {
            (Some("skipped"), _) => Some("was skipped"),
            (Some("failed"), None) => Some("failed"),
            _ => None,
        }
    }

    fn next_items(&mut self, at: usize) -> bool {
        let step = self.plan.steps[at].clone();
        let parallel = step.for_each.as_ref().map_or(1, |e| e.parallel);
        let mut moved = false;
        loop {
            let room = Room::of(&step.what).is_none_or(|room| self.has(room));
            let State::Each(items) = &mut self.states[at] else { return moved };
            if self.failed.is_some()
                || items.next == items.list.len()
                || items.open >= parallel
                || !room
            {
                return moved;
            }
            let index = items.next;
            (items.next, items.open) = (index + 1, items.open + 1);
            let item = items.list[index].clone();
            let mut scope = self.scope(at);
            scope.names.insert("item", item);
            scope.names.insert("index", Arc::new(Value::from(index)));
            self.start(at, &step, Some(index), &scope);
            self.spent.work += scope.spent.get();
            moved = true;
        }
    }

    fn has(&self, room: Room) -> bool {
        let open = self.units.iter().filter(|u| u.room == Some(room));
        let (count, bytes) = open.fold((0, 0), |(n, bytes), unit| (n + 1, bytes + unit.bytes));
        count < room.max() && bytes < limits::JOBS_BYTES_AT_ONCE
    }

    fn branch(&self, at: usize, index: Option<usize>) -> Ctx {
        match (&self.states[at], index) {
            (State::Each(items), Some(index)) => items.branches[index].clone(),
            _ => self.branches[at].clone(),
        }
    }

    /// Starts a step, or an item of it.
    fn start(&mut self, at: usize, step: &Step, index: Option<usize>, scope: &Scope) -> bool {
        let ctx = self.branch(at, index);
        let undoable = step.undo.is_some() && self.plan.on_failure == OnFailure::Undo;
        match open(&ctx, step, index, scope, undoable, &mut self.spent) {
            Ok(Opened { id, bytes, future }) => {
                if index.is_none() {
                    self.states[at] = State::Running;
                }
                let (room, item) = (Room::of(&step.what), scope.names.get("item").cloned());
                let unit = Unit { step: at, index, item, ctx, id, room, bytes, future };
                let place = self.units.partition_point(|u| (u.step, u.index) < (at, index));
                self.units.insert(place, unit);
            }
            Err(e) if index.is_none() => return self.could_not(at, e),
            Err(Empty::Without(id)) => {
                let trouble = Trouble::new(self.without(&id));
                self.item_over(at, index, Err(trouble));
            }
            Err(e) => self.item_over(at, index, Err(e.into())),
        }
        true
    }

    fn finished(&mut self, unit: Unit, result: Result<Value, Trouble>) {
        if let (Ok(output), Some(_)) = (&result, unit.room) {
            self.spent.record(output);
        }
        let result = result.and_then(|output| {
            self.register(&unit, &output)?;
            Ok(output)
        });
        match (unit.index, result) {
            (Some(_), result) => self.item_over(unit.step, unit.index, result),
            (None, Ok(output)) => self.done(unit.step, output),
            (None, Err(trouble)) => self.fail(unit.step, trouble),
        }
    }

    /// What undoes a step is recorded with its result.
    fn register(&mut self, unit: &Unit, output: &Value) -> Result<(), Trouble> {
        let step = &self.plan.steps[unit.step];
        let (Some(undo), Some(of), OnFailure::Undo) = (&step.undo, &unit.id, self.plan.on_failure)
        else {
            return Ok(());
        };
        let mut scope = self.scope(unit.step);
        // Whatever else was worked out: what undoes a call must be found.
        scope.most = None;
        scope.names.insert("output", Arc::new(output.clone()));
        // Not from the list: a sibling that failed has ended the step, and this item happened all the same.
        if let (Some(index), Some(item)) = (unit.index, &unit.item) {
            scope.names.insert("item", item.clone());
            scope.names.insert("index", Arc::new(Value::from(index)));
        }
        match undo.input.value(&scope) {
            Ok(input) => self.undos.push(unit.ctx.register_undo(of, &undo.tool, input)),
            Err(e) => {
                let why = format!("what undoes it can not be worked out: {e}");
                let (at, of, tool) = (of.clone(), of.clone(), undo.tool.clone());
                self.lost.push((Undo { at, of, tool, input: Value::Null }, why.clone()));
                return Err(Trouble::new(format!("it happened, and {why}")));
            }
        }
        Ok(())
    }

    fn item_over(&mut self, at: usize, index: Option<usize>, result: Result<Value, Trouble>) {
        let goes_on = self.plan.steps[at].goes_on;
        let State::Each(items) = &mut self.states[at] else { return };
        let index = index.unwrap_or_default();
        items.open -= 1;
        match result {
            Ok(output) => items.outputs[index] = output,
            Err(mut trouble) => {
                items.outputs[index] = trouble.output.take().unwrap_or(Value::Null);
                items.failed.insert(index, trouble.why.clone());
                if !goes_on {
                    trouble.why = format!("item {index}: {}", trouble.why);
                    self.fail(at, trouble);
                    return;
                }
            }
        }
        if items.open == 0 && items.next == items.list.len() {
            let outputs = Value::Array(std::mem::take(&mut items.outputs));
            let error = items.failed.first_key_value().map(|(i, why)| {
                format!(
                    "{} of {} items failed; item {i}: {why}",
                    items.failed.len(),
                    items.list.len()
                )
            });
            match error {
                None => self.done(at, outputs),
                Some(error) => {
                    let over = json!({"status": "failed", "error": error, "output": outputs});
                    self.states[at] = State::Over(Arc::new(over));
                }
            }
        }
    }

    fn done(&mut self, at: usize, output: Value) {
        self.states[at] = State::Over(Arc::new(json!({"status": "done", "output": output})));
    }

    /// Recorded, so that people see it among the steps. The words are those of the history: another program may choose
    /// others, and expressions can see them.
    fn skip(&mut self, at: usize, why: String) {
        let told = self.branches[at].pure("skipped", || why.clone()).into_inner();
        let why = told.unwrap_or(why);
        self.states[at] = State::Over(Arc::new(json!({"status": "skipped", "error": why})));
    }

    fn fail(&mut self, at: usize, trouble: Trouble) {
        let Trouble { step, why, output } = trouble;
        let mut over = Map::from_iter([
            ("status".to_owned(), Value::from("failed")),
            ("error".to_owned(), Value::from(why.clone())),
        ]);
        over.extend(output.map(|o| ("output".to_owned(), o)));
        self.states[at] = State::Over(Arc::new(Value::Object(over)));
        let plan_step = &self.plan.steps[at];
        if !plan_step.goes_on && self.failed.is_none() {
            let why = format!("step `{}` of the plan: {why}", plan_step.id);
            self.failed = Some(match step {
                Some(e) => FlowError::Step(StepError { why, ..e }),
                None => FlowError::Failed(why),
            });
        }
    }

    /// What the expressions of a step see.
    fn scope(&self, at: usize) -> Scope {
        self.scope_of(self.needs[at].iter().copied())
    }

    fn scope_of(&self, steps: impl Iterator<Item = usize>) -> Scope {
        let over = |n: usize| match &self.states[n] {
            State::Over(over) => Some((self.plan.steps[n].id.clone(), over.clone())),
            _ => None,
        };
        Scope {
            names: BTreeMap::from([("input", self.input.clone())]),
            steps: steps.filter_map(over).collect(),
            most: Some(limits::PLAN_WORK_BYTES_MAX.saturating_sub(self.spent.work)),
            ..Scope::default()
        }
    }

    /// What the plan gives: its template; without one, what those steps gave that nothing came after.
    fn output(&self) -> FlowResult {
        let scope = self.scope_of(0..self.states.len());
        if let Some(output) = &self.plan.output {
            return output
                .value_or_null(&scope)
                .map_err(|e| FlowError::failed(format!("the output of the plan: {e}")));
        }
        let needed: BTreeSet<usize> = self.needs.iter().flatten().copied().collect();
        let last = (0..self.states.len()).filter(|n| !needed.contains(n));
        let output = |n: usize| {
            let id = self.plan.steps[n].id.clone();
            let output = scope.steps.get(&id).and_then(|s| s.get("output")).cloned();
            (id, output.unwrap_or(Value::Null))
        };
        Ok(Value::Object(last.map(output).collect()))
    }
}

/// The first that is over, looked for in the order of the plan.
async fn first(units: &mut [Unit]) -> (usize, Result<Value, Trouble>) {
    poll_fn(|cx| {
        for (at, unit) in units.iter_mut().enumerate() {
            if let Poll::Ready(result) = Pin::new(&mut unit.future).poll(cx) {
                return Poll::Ready((at, result));
            }
        }
        Poll::Pending
    })
    .await
}

/// What a step asks its context for.
fn open(
    ctx: &Ctx,
    step: &Step,
    index: Option<usize>,
    scope: &Scope,
    undoable: bool,
    spent: &mut Spent,
) -> Result<Opened, Empty> {
    let (id, bytes, future): (_, _, Running) = match &step.what {
        What::Tool { tool, input, .. } => {
            let input = input.value(scope)?;
            spent.record(&input);
            let mut call = ctx.tool::<Value>(tool, input).with(&step.options);
            if undoable {
                call = call.undoable();
            }
            (Some(call.id().clone()), 0, Box::pin(async move { Ok(call.await?) }))
        }
        What::Job { flow, version, input } => {
            let input = input.value(scope)?;
            let bytes = at_least(&input);
            let mut child = ctx.child::<Value>(flow, input);
            if let Some(version) = version {
                child = child.version(*version);
            }
            if undoable {
                child = child.undoable();
            }
            (Some(child.id().clone()), bytes, Box::pin(async move { Ok(child.await?) }))
        }
        What::Sleep(seconds) => {
            let given = seconds.value(scope)?;
            let seconds = given.as_f64().filter(|s| (0.0..=limits::SECONDS_MAX).contains(s));
            let seconds = seconds.ok_or_else(|| {
                let max = limits::SECONDS_MAX;
                Empty::Failed(format!("sleep: {given} is not 0 to {max} seconds"))
            })?;
            let sleep = ctx.sleep(Duration::from_secs_f64(seconds));
            (None, 0, Box::pin(async move { Ok(sleep.await.map(|()| Value::Null)?) }))
        }
        What::Value(value) => {
            let value = value.value(scope)?;
            spent.record_value(&value)?;
            let made = ctx.pure("value", || value);
            (None, 0, Box::pin(async move { Ok(made.await?) }))
        }
        What::Wait(wait) => {
            let (id, future) = wait_for(ctx, step, wait, index, scope)?;
            (id, 0, future)
        }
    };
    Ok(Opened { id, bytes, future })
}

fn wait_for(
    ctx: &Ctx,
    step: &Step,
    wait: &Wait,
    index: Option<usize>,
    scope: &Scope,
) -> Result<(Option<StepId>, Running), Empty> {
    let text = |value: Value| match value {
        Value::String(text) => text,
        other => other.to_string(),
    };
    let name = match (&wait.name, index) {
        (Some(name), _) => text(name.value(scope)?),
        (None, Some(index)) => format!("{}[{index}]", step.id),
        (None, None) => step.id.clone(),
    };
    if !(1..=limits::WAIT_NAME_BYTES_MAX).contains(&name.len()) {
        let max = limits::WAIT_NAME_BYTES_MAX;
        return Err(Empty::Failed(format!("the name of a wait has 1 to {max} bytes: {name:?}")));
    }
    let note = wait.note.as_ref().map(|n| n.value(scope)).transpose()?.map(text);
    macro_rules! dressed {
        ($step:expr) => {{
            let mut step = $step;
            if let Some(within) = wait.within {
                step = step.within(within);
            }
            match note {
                Some(note) => step.note(note),
                None => step,
            }
        }};
    }
    Ok(match wait.kind {
        WaitKind::Human => {
            let wait = dressed!(ctx.approval(&name));
            let id = wait.id().clone();
            let answered = async move { wait.await.map_err(Trouble::from).and_then(decided) };
            (Some(id), Box::pin(answered))
        }
        WaitKind::Webhook => {
            let wait = dressed!(ctx.webhook::<Value>(&name));
            (Some(wait.id().clone()), Box::pin(async move { Ok(wait.await?) }))
        }
        WaitKind::Signal | WaitKind::Timer => {
            let wait = dressed!(ctx.wait_signal::<Value>(&name));
            (Some(wait.id().clone()), Box::pin(async move { Ok(wait.await?) }))
        }
    })
}

/// A no is a failure: a plan that asks for approval means that it is needed. One that wants to go on says so
/// with `on_error`, and finds the answer in the output.
fn decided(answer: Approval) -> Result<Value, Trouble> {
    let output = json!({"approved": answer.approved, "by": answer.by, "payload": answer.payload});
    if answer.approved {
        return Ok(output);
    }
    let by = answer.by.as_deref().unwrap_or("somebody");
    Err(Trouble { step: None, why: format!("rejected by {by}"), output: Some(output) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_recorded_up_to_the_limits_and_not_past_them() {
        let mut spent = Spent { bytes: limits::RECORDED_BYTES_MAX - 12, ..Spent::default() };
        assert!(
            spent.record_value(&json!("01234567890")).is_err(),
            "thirteen bytes with its quotes"
        );
        assert!(spent.record_value(&json!("0123456789")).is_ok());
        assert!(spent.record_value(&json!(1)).is_err());
        let mut spent = Spent { records: limits::RECORDED_MAX - 1, ..Spent::default() };
        assert!(spent.record_value(&json!(1)).is_ok());
        assert!(spent.record_value(&json!(1)).is_err());
    }
}
