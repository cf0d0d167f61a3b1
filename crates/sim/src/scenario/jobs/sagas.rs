//! Sagas: steps that are undone together, in jobs that fail, are cancelled, or are taken over in the middle of it. Three
//! who do not ask each other say what must hold: the plan, walked over what was recorded (in `read`); the histories,
//! in which what undoes runs in reverse, once, and to its end; and the town, which knows what was really taken back.
//!
//! | what | must hold |
//! |---|---|
//! | a step of a saga that happened | is registered to be undone, or its job says that nobody knows what became of it |
//! | what is registered, and whose saga failed or was cancelled | is tried: the last first, the next when that one is over |
//! | what is undone | was taken back once, whoever did it: the flow, the list of a cancelled job, or both |
//! | what belongs to a saga that is complete | is never taken back |
//! | what belongs to one that lost a race | is undone before its job ends by itself |
//! | a job that ends before it is undone | says how many steps are left |

use super::{
    Off,
    clients::{self, Wish},
    read::{self, Entry},
    town::{Craft, Town},
};
use crate::{rng::Rng, scenario::Clients, world::World};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{collections::BTreeMap, time::Duration};
use tenure_jobs::{
    JobEvent,
    model::{OwnEvent, UndoReport},
};
use tenure_kernel::ids::EntityId;
use tenure_steps::{
    Ctx, FlowError, StepError,
    events::{CallOutcome, StepEvent, StepId, ValueKind, Verdict},
    saga::{Saga, Undo},
};
use tenure_store::memory::Contents;

use super::plan::{Draw, Luck, Node, Plan};

/// One part of a saga.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Part {
    One(Bound),
    Beside(Vec<Bound>),
    /// Something that nobody undoes.
    Other(Node),
}

/// A call, and what undoes it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Bound {
    pub tool: String,
    pub luck: Luck,
    pub timeout_ms: u64,
    pub retries: u32,
    pub undo: String,
    pub undo_luck: Luck,
}

impl Bound {
    fn back(&self, output: &Value) -> Value {
        let Luck { n, fails, slow } = self.undo_luck;
        json!({ "n": n, "fails": fails, "slow": slow, "of": output["receipt"] })
    }
}

/// Walks a saga of a plan.
pub(super) async fn walk(ctx: Ctx, parts: Vec<Part>, off: Option<Off>) -> Result<Value, StepError> {
    let done = match off {
        Some(Off::UndoStep) => by_hand(&ctx, parts).await,
        _ => {
            ctx.saga(move |saga: Saga| async move {
                let mut out = Vec::new();
                for part in parts {
                    out.push(walk_part(&saga, part).await?);
                }
                Ok(Value::from(out))
            })
            .await
        }
    };
    done.map_err(|e| match e {
        FlowError::Step(e) => e,
        // No part of a plan says anything else.
        other => StepError {
            step: StepId(String::new()),
            kind: tenure_steps::flow::Failed::Permanent,
            why: other.to_string(),
        },
    })
}

async fn walk_part(saga: &Saga, part: Part) -> Result<Value, FlowError> {
    match part {
        Part::One(bound) => Ok(call(saga.clone(), bound).await?),
        Part::Beside(all) => {
            let calls = all.into_iter().map(|bound| call(saga.beside(), bound));
            let all = futures_util::future::join_all(calls).await;
            Ok(all.into_iter().collect::<Result<Vec<Value>, StepError>>().map(Value::from)?)
        }
        Part::Other(node) => Ok(super::plan::walk((**saga).clone(), node, None).await?),
    }
}

async fn call(saga: Saga, bound: Bound) -> Result<Value, StepError> {
    let ms = Duration::from_millis;
    let step = saga.tool::<Value>(&bound.tool, bound.luck);
    let (timeout_ms, retries, by) = (bound.timeout_ms, bound.retries, bound.undo.clone());
    let step = step.undo(&by, move |output: &Value| bound.back(output));
    step.timeout(ms(timeout_ms)).retries(retries, ms(500)).await
}

/// What somebody would write who knows nothing of sagas: calls, and calls that take them back where something fails.
/// What undoes is on record for a cancel, and the flow runs it as a step like any other.
async fn by_hand(ctx: &Ctx, parts: Vec<Part>) -> Result<Value, FlowError> {
    let mut done: Vec<(Bound, Value)> = Vec::new();
    let mut out = Vec::new();
    for part in parts {
        let all = match part {
            Part::One(bound) => vec![bound],
            Part::Beside(all) => all,
            Part::Other(_) => continue,
        };
        for bound in all {
            let call = ctx
                .tool::<Value>(&bound.tool, bound.luck)
                .retries(bound.retries, Duration::from_millis(500));
            let of = call.id().clone();
            match call.await {
                Ok(output) => {
                    ctx.register_undo(&of, &bound.undo, bound.back(&output));
                    done.push((bound, output.clone()));
                    out.push(output);
                }
                Err(e) => {
                    for (bound, output) in done.iter().rev() {
                        // One that fails is left.
                        let _ = ctx.tool::<Value>(&bound.undo, bound.back(output)).await;
                    }
                    return Err(e.into());
                }
            }
        }
    }
    Ok(Value::from(out))
}

impl Draw<'_> {
    /// A saga, often with something before and behind it.
    pub(super) fn saga(&mut self) -> Plan {
        let mut nodes = Vec::new();
        if self.rng.permille(300) {
            nodes.push(self.node(0));
        }
        let mut saga = Node::Saga(self.parts());
        if self.rng.permille(350) {
            // Against the clock: often it loses, in the middle of a call or of what undoes one.
            let clock = Node::Sleep(self.rng.below(15_000));
            saga = Node::Race(Box::new(saga), Box::new(clock));
        }
        nodes.push(if self.rng.permille(400) { Node::Try(Box::new(saga)) } else { saga });
        if self.rng.permille(400) {
            nodes.push(self.node(0));
        }
        if self.rng.permille(150) {
            nodes.push(Node::Try(Box::new(Node::Saga(self.parts()))));
        }
        let then = self.rng.permille(100).then(|| {
            let body = Node::Saga(self.parts());
            Box::new(Plan { body, then: None, so_far: Vec::new() })
        });
        Plan { body: Node::Seq(nodes), then, so_far: Vec::new() }
    }

    fn parts(&mut self) -> Vec<Part> {
        let mut parts: Vec<Part> = (0..1 + self.rng.below(4)).map(|_| self.part()).collect();
        if self.rng.permille(500) {
            // What makes it fail, most of the time.
            let mut last = self.bound();
            last.luck.fails = 800;
            parts.push(Part::One(last));
        }
        parts
    }

    fn part(&mut self) -> Part {
        match self.rng.below(10) {
            0..=5 => Part::One(self.bound()),
            6 | 7 => Part::Beside((0..2 + self.rng.below(2)).map(|_| self.bound()).collect()),
            8 => Part::Other(Node::Sleep(self.rng.below(20_000))),
            _ => Part::Other(Node::Try(Box::new(self.tool()))),
        }
    }

    fn bound(&mut self) -> Bound {
        let (fails, slow) = (self.fails / 2, self.slow);
        let Draw { rng, .. } = self;
        let luck = |rng: &mut Rng, fails| Luck { n: rng.below(1_000) as u32, fails, slow };
        let undo_fails = [0, 0, 200][rng.index(3)];
        Bound {
            tool: Craft::ALL[rng.index(Craft::ALL.len())].name().to_owned(),
            luck: luck(rng, fails),
            timeout_ms: [2_000, 10_000, 40_000][rng.index(3)],
            retries: rng.below(4) as u32,
            undo: Craft::BACK[rng.index(Craft::BACK.len())].name().to_owned(),
            undo_luck: luck(rng, undo_fails),
        }
    }
}

pub(crate) fn play(clients: &Clients, width: Option<u64>) {
    for i in 0..width.unwrap_or_else(|| 2 + clients.below(3)) {
        let wish = Wish::draw(&clients.env.world, |draw| draw.saga());
        Wish { cancelled: 2, ..wish }.spawn(clients, i);
    }
    clients::staff(clients);
}

/// What a history says about one undo.
#[derive(Default)]
struct Story {
    of: String,
    receipt: Value,
    /// Where in the history it was registered, begun, and settled.
    registered: usize,
    begun: Option<usize>,
    settled: Option<usize>,
    well: bool,
    kept: bool,
    /// Of an earlier run of the flow.
    past: bool,
}

/// What a history says about sagas.
#[derive(Default)]
struct Sagas {
    /// By where they are registered; `order` is how.
    undos: BTreeMap<String, Story>,
    order: Vec<String>,
    /// Steps that would have to be undone, by what became of their calls.
    steps: BTreeMap<String, Became>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Became {
    Open,
    Happened,
    /// It did not, or was taken back by its own compensation, or somebody gave it up.
    Other,
}

impl Sagas {
    fn read(events: &[Entry]) -> Self {
        let mut sagas = Sagas::default();
        for (at, entry) in events.iter().enumerate() {
            match &entry.event {
                JobEvent::Step(event) => sagas.take(at, event),
                JobEvent::Own(OwnEvent::JobContinued { .. }) => {
                    sagas.undos.values_mut().for_each(|u| u.past = true);
                }
                JobEvent::Own(_) => {}
            }
        }
        sagas
    }

    fn take(&mut self, at: usize, event: &StepEvent) {
        match event {
            StepEvent::ValueRecorded { step, kind: ValueKind::Undo, value, .. } => {
                let Some(undo) = Undo::read(step, value) else { return };
                let (of, receipt) = (undo.of.0, undo.input["of"].clone());
                self.undos.insert(
                    step.0.clone(),
                    Story { of, receipt, registered: at, ..Story::default() },
                );
                self.order.push(step.0.clone());
            }
            StepEvent::ValueRecorded { kind: ValueKind::Kept, value, .. } => {
                for kept in value.as_array().into_iter().flatten().filter_map(Value::as_str) {
                    self.undos.entry(kept.to_owned()).and_modify(|u| u.kept = true);
                }
            }
            StepEvent::ToolInvocationStarted { step, undoable, .. } => {
                if let Some(undo) = self.undo_of(step) {
                    undo.begun.get_or_insert(at);
                } else if *undoable {
                    self.steps.insert(step.0.clone(), Became::Open);
                }
            }
            StepEvent::ToolInvocationFinished { step, outcome, .. } => {
                let well = *outcome == CallOutcome::Success;
                self.became(step, if well { Became::Happened } else { Became::Other });
            }
            StepEvent::EffectSettled { step, verdict, .. } => match verdict {
                Verdict::Happened => self.became(step, Became::Happened),
                Verdict::CalledAgain => {}
                Verdict::DidNotHappen | Verdict::Compensated | Verdict::Abandoned => {
                    self.became(step, Became::Other);
                }
            },
            StepEvent::NodeFinished { step, result_type, .. } if result_type.settles() => {
                if let Some(undo) = self.undo_of(step) {
                    undo.settled.get_or_insert(at);
                    undo.begun.get_or_insert(at);
                }
            }
            _ => {}
        }
    }

    fn undo_of(&mut self, step: &StepId) -> Option<&mut Story> {
        let at = Undo::is_undo(step).then(|| step.0.trim_end_matches('u'))?;
        self.undos.get_mut(at)
    }

    fn became(&mut self, step: &StepId, became: Became) {
        if let Some(undo) = self.undo_of(step) {
            undo.well |= became == Became::Happened;
        } else if let Some(step) = self.steps.get_mut(&step.0) {
            *step = became;
        }
    }
}

/// How a job ended, as far as its sagas are concerned.
enum End<'a> {
    /// By itself: everything was tried.
    Itself,
    Cancelled(&'a UndoReport),
    /// Nobody was asked: it says what is left.
    Forced(&'a str),
}

pub(crate) fn check(world: &World, contents: &Contents) -> Result<(), String> {
    for head in contents.rows.heads.values().filter(|h| h.kind() == "job") {
        let events = read::events(contents, head.id)?;
        let sagas = Sagas::read(&events);
        let end = match events.last().map(|e| &e.event) {
            Some(JobEvent::Own(OwnEvent::JobCancelled { undone, .. })) => End::Cancelled(undone),
            Some(JobEvent::Own(OwnEvent::JobFailed(f))) if f.reason != "step_failed" => {
                End::Forced(&f.error)
            }
            _ => End::Itself,
        };
        if world.town.setup().off == Some(Off::UndoStep) {
            // Whoever undoes by hand keeps no account: only what really happened counts.
            taken_back(head.id, &sagas, &world.town)?;
            continue;
        }
        in_reverse(head.id, &sagas)?;
        accounted(head.id, &sagas, &end)?;
        registered(head.id, &sagas, &end)?;
        taken_back(head.id, &sagas, &world.town)?;
    }
    Ok(())
}

/// What undoes runs in reverse, one at a time.
fn in_reverse(job: EntityId, sagas: &Sagas) -> Result<(), String> {
    for (n, at) in sagas.order.iter().enumerate() {
        let earlier = &sagas.undos[at];
        if earlier.kept && earlier.begun.is_some() {
            return Err(format!(
                "{job}: step {} belongs to a saga that is complete, and it is undone",
                earlier.of
            ));
        }
        let Some(begun) = earlier.begun else { continue };
        // A saga that begins when another has failed is none of its business.
        let others = sagas.order[n + 1..].iter().map(|at| &sagas.undos[at]);
        for later in others.filter(|u| !u.kept && u.registered < begun) {
            if later.settled.is_none_or(|settled| settled > begun) {
                return Err(format!(
                    "{job}: the undo of step {} began before that of step {}, which came later, was over",
                    earlier.of, later.of
                ));
            }
        }
    }
    Ok(())
}

/// Whatever is not undone is said. Who has cancelled a job without a worker knows how many are left, and no names.
fn accounted(job: EntityId, sagas: &Sagas, end: &End<'_>) -> Result<(), String> {
    let open: Vec<&Story> = sagas.undos.values().filter(|u| !u.kept && !u.past).collect();
    let untried = open.iter().filter(|u| u.settled.is_none()).count();
    match end {
        End::Itself if untried > 0 => {
            Err(format!("{job}: ended by itself, and {untried} steps were not undone"))
        }
        End::Cancelled(report) if report.undone.is_empty() && report.left.is_empty() => {
            match report.untried as usize >= untried {
                true => Ok(()),
                false => Err(format!("{job}: {untried} are left, and it says {report:?}")),
            }
        }
        End::Cancelled(report) => {
            let named = |u: &Story| match u.settled.is_some() && u.well {
                true => report.undone.iter().any(|s| s.0 == u.of),
                false => report.left.iter().any(|(s, _)| s.0 == u.of),
            };
            match open.iter().find(|u| !named(u)) {
                Some(u) => Err(format!("{job}: what became of step {} is not in {report:?}", u.of)),
                None => Ok(()),
            }
        }
        End::Forced(error) if untried > 0 && !error.contains("not undone") => {
            Err(format!("{job}: {untried} steps were not undone, and all it says is: {error}"))
        }
        End::Itself | End::Forced(_) => Ok(()),
    }
}

/// What happened is registered: else nobody could undo it.
fn registered(job: EntityId, sagas: &Sagas, end: &End<'_>) -> Result<(), String> {
    let is = |step: &String| sagas.undos.values().any(|u| u.of == *step);
    let missing = sagas.steps.iter().find(|(step, b)| **b == Became::Happened && !is(step));
    match (missing, end) {
        // Nobody was there any more who could have asked the flow.
        (Some(_), End::Forced(error)) if error.contains("not undone") => Ok(()),
        (Some((step, _)), _) => Err(format!("{job}: step {step} happened and is not undone")),
        (None, _) => Ok(()),
    }
}

/// What the town knows.
fn taken_back(job: EntityId, sagas: &Sagas, town: &Town) -> Result<(), String> {
    for undo in sagas.undos.values() {
        let by = town.taken_back(&undo.receipt);
        if by.len() > 1 {
            return Err(format!("{job}: step {} was undone {} times: {by:?}", undo.of, by.len()));
        }
        if undo.kept && !by.is_empty() {
            return Err(format!("{job}: step {} is complete and was undone: {by:?}", undo.of));
        }
        if undo.well && by.is_empty() {
            return Err(format!("{job}: step {} is on record as undone, and was not", undo.of));
        }
    }
    Ok(())
}
