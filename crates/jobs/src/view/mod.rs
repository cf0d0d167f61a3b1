//! What people read of a job. Nothing here writes.
//!
//! | room | what it answers |
//! |---|---|
//! | here | [`view()`]: where a job stands, from its head and one session row |
//! | [`detail()`] | the same with steps and events, from the stream |
//! | [`why()`] | what it waits for and what happens next, in one sentence |
//! | [`timeline()`] | leases, bars and marks to draw; [`render_text`] draws them for a terminal |
//! | [`verify()`] | whether anybody touched the history, and whether it keeps the rules |
//! | [`replay()`] | whether the flow's code still leads through the history |
//! | [`taken_over`] | what a fork takes over |
//! | [`as_of`] | where a job stood at a moment |

pub(crate) mod detail;
mod fork;
mod handed;
mod past;
pub mod queues;
mod replay;
mod rules;
pub(crate) mod steps;
pub(crate) mod stream;
mod text;
mod timeline;
pub(crate) mod verify;
mod why;

pub use detail::{CallView, JobDetail, StepView, detail};
pub(crate) use fork::{CORRECTS, settlement};
pub use fork::{Cut, Repeat, TakenOver, taken_over};
pub use past::as_of;
pub use queues::{GroupView, QueueView, ServedBy, queues};
pub use replay::{Replayed, replay};
pub use rules::{Fact, rules};
pub use steps::EXCERPT_BYTES_MAX;
pub use tenure_engine::events::EventView;
pub use text::render_text;
pub use timeline::{
    Bar, BarKind, BarState, Lane, Lease, LeaseEnd, Mark, MarkKind, Timeline, timeline,
};
pub use verify::{Check, EvidenceView, Verification, verify};
pub use why::why;

use crate::{
    decide::timers,
    model::{Attention, Failure, Fork, HeldBack, Job, JobState, Parent},
    shared::limit::waiting::whose,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{collections::BTreeMap, sync::Arc};
use tenure_kernel::{
    error::StoreError,
    head::Head,
    ids::{EntityId, SessionId},
    machine::decode_state,
    store::Store,
    time::Timestamp,
};
use tenure_steps::{
    events::{StepId, TimerWhy, WaitKind, What},
    tool::Class as ToolClass,
};

/// Where a job stands. What the head does not say is `None` until somebody who knows fills it in:
/// [`detail()`] does so from the stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobView {
    /// Which job.
    pub id: EntityId,
    /// Its flow.
    pub flow: String,
    /// The flow's version.
    pub version: u32,
    /// The key under which it was submitted.
    #[serde(default)]
    pub key: Option<String>,
    /// Names with values, by which people find it.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Its status.
    pub status: String,
    /// It has ended.
    pub is_final: bool,
    /// Whose it is.
    pub tenant: String,
    /// Higher is sooner.
    pub priority: i16,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it changed last.
    pub changed_at: Timestamp,
    /// When it ends, whatever happens.
    pub must_end_by: Option<Timestamp>,
    /// When somebody looks at it next, at the latest.
    pub due: Option<Timestamp>,
    /// Its input, where that is small; [`detail()`] has it always.
    pub input: Option<Value>,
    /// What it returned, where that is small; [`detail()`] has it always.
    pub output: Option<Value>,
    /// Why it failed.
    pub failure: Option<Failure>,
    /// It failed, and what it had done was undone before, as far as possible.
    #[serde(default)]
    pub undid: bool,
    /// Why a person has to look.
    pub attention: Option<Attention>,
    /// Why the kernel wants a person to look: decisions about it fail.
    pub fault: Option<String>,
    /// Who wanted it to end, and why.
    pub cancel: Option<CancelView>,
    /// Who holds it.
    pub holder: Option<HolderView>,
    /// Live workers that may claim it, as far as anybody can tell. Only [`detail()`] of a queued job looks.
    pub workers: Option<u32>,
    /// What keeps it from going on, where an operator has blocked its flow, its tenant or a tool that it waits for. Only
    /// [`detail()`] looks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked: Option<String>,
    /// Its epoch.
    pub attempt: u64,
    /// Workers that were lost while they held it, since the last step that ended.
    pub takeovers: u32,
    /// How many may be lost.
    pub takeovers_max: u32,
    /// When it starts, where its time has not come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts_at: Option<Timestamp>,
    /// The gate it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<GateWait>,
    /// Its ready queue, where that is not the flow's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Somebody paused it.
    pub paused: bool,
    /// Who; from the stream.
    pub paused_by: Option<String>,
    /// Steps that run now, or ran when somebody last knew.
    pub running: Vec<RunningView>,
    /// What it waits for from outside.
    pub waits: Vec<WaitView>,
    /// Sleeps and retries.
    pub timers: Vec<TimerView>,
    /// Children that have not ended.
    pub children: Vec<ChildView>,
    /// Mail that nobody has read yet.
    pub mail_unread: u64,
    /// The finished job that this one tries again.
    pub retry_of: Option<EntityId>,
    /// The job whose history it goes on from.
    pub forked_from: Option<Fork>,
    /// Who waits for it.
    pub parent: Option<Parent>,
    /// How often its flow was started afresh, from 1.
    pub run: u32,
    /// Steps that are over.
    pub steps_done: u32,
    /// Events of this run.
    pub events: u32,
    /// Version of its last event.
    pub head_version: u64,
}

/// Who wanted a job to end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelView {
    /// Who.
    pub by: Option<String>,
    /// Why.
    pub why: Option<String>,
}

/// Who holds a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderView {
    /// The session.
    pub session: SessionId,
    /// Its name for people; the id where the row is gone.
    pub name: String,
    /// Until when it is believed alive.
    pub expires_at: Option<Timestamp>,
}

/// A call that was started and is not over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningView {
    /// The step.
    pub step: StepId,
    /// Its tool.
    pub tool: String,
    /// What settles it when its outcome is unknown.
    pub class: ToolClass,
    /// The call's number under its key.
    pub call: u32,
    /// What the tool passes downstream.
    pub key: String,
    /// Why nobody knows how it ended, if nobody does.
    pub unknown: Option<String>,
    /// The call that another worker has, or will have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handed: Option<HandedView>,
}

/// A call that was handed to a worker that does not run the flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandedView {
    /// Its entity.
    pub call: EntityId,
    /// What is asked of the tool.
    pub what: What,
    /// Where it stands, where somebody looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// Since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// The worker that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_by: Option<String>,
    /// Live workers that have the tool, while it is queued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<usize>,
    /// Calls of the tool that wait longer, while it is queued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ahead: Option<usize>,
    /// Whose limit holds it back, while it is queued: a tenant, or `*` for the one for all together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_of: Option<String>,
    /// When that limit lets the next call begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limited_until: Option<Timestamp>,
    /// What stands for it, where that is no `call`: `task` for a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

/// An open wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitView {
    /// The step.
    pub step: StepId,
    /// What for.
    pub kind: WaitKind,
    /// The correlation key.
    pub key: String,
    /// Until when.
    pub deadline: Option<Timestamp>,
    /// What a person should know; from the stream.
    pub note: Option<String>,
}

/// A sleep or a retry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimerView {
    /// The step.
    pub step: StepId,
    /// Sleep, retry or limit.
    pub why: TimerWhy,
    /// The tool whose limit it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Whose limit that is: a tenant, or `*` for the one for all together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_of: Option<String>,
    /// About when its turn at the limit comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<Timestamp>,
    /// When it goes on, or asks the limit again; a pause takes the timer away.
    pub at: Option<Timestamp>,
    /// Attempts that failed so far; from the stream.
    pub attempts: Option<u32>,
    /// How many attempts there may be, where somebody knows the worker's settings.
    pub attempts_max: Option<u32>,
    /// Why the last one failed; from the stream.
    pub error: Option<String>,
}

/// An open child.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildView {
    /// Its number among the children.
    pub ordinal: u32,
    /// The child.
    pub job: EntityId,
    /// The step that waits for it.
    pub step: StepId,
}

/// A job from its head and the row of its holder.
pub async fn view(store: &Arc<dyn Store>, head: &Head) -> Result<JobView, StoreError> {
    let mut view = listed(head);
    if let Some(holder) = &mut view.holder
        && let Some(session) = store.session(holder.session).await?
    {
        holder.name = session.name;
        holder.expires_at = Some(session.expires_at);
    }
    for running in &mut view.running {
        if let Some(handed) = &mut running.handed {
            handed::look(store, &running.tool, handed).await?;
        }
    }
    if let Some(wait) = &mut view.gate
        && let Some(gate) = store.head(crate::gate::gate_id(&head.tenant, &wait.name)).await?
    {
        let gate: crate::gate::GateState = decode_state::<crate::gate::Gate>(&gate.state)
            .map_err(|e| StoreError::Corrupt(e.to_string()))?;
        wait.before = gate.before(head.id).map(|n| n as u64);
        wait.held_by = gate.holders.iter().take(3).map(|h| h.0).collect();
        wait.limit = Some(gate.limit);
    }
    Ok(view)
}

/// A gate that a job waits for.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct GateWait {
    /// Its name.
    pub name: String,
    /// How many pass before it, where that is known: not for those far back in the line.
    pub before: Option<u64>,
    /// Some of the jobs that have a permit.
    pub held_by: Vec<EntityId>,
    /// Jobs at once.
    pub limit: Option<u32>,
}

/// A job from its head alone; a holder has no name then.
pub fn of_head(head: &Head) -> Result<JobView, StoreError> {
    let state = decode_state::<Job>(&head.state);
    state.map(|state| of_state(head, state)).map_err(|e| StoreError::Corrupt(e.to_string()))
}

impl JobView {
    /// The name of its plan, where it runs one that has a name; known where its input is.
    pub fn plan_name(&self) -> Option<&str> {
        let plan = self.input.as_ref().filter(|_| self.flow == crate::plan::FLOW)?.get("plan")?;
        plan.get("name")?.as_str().filter(|name| !name.is_empty())
    }
}

/// The same for listings, in which one job that cannot be read must not hide the others: it is shown with what its row says, and
/// `fault` says why the rest is missing.
pub fn listed(head: &Head) -> JobView {
    decode_state::<Job>(&head.state).map_or_else(
        |e| JobView { fault: Some(e.to_string()), ..of_state(head, JobState::default()) },
        |state| of_state(head, state),
    )
}

fn of_state(head: &Head, state: JobState) -> JobView {
    let fires = |name: String| head.timers.get(&name).map(|t| t.at);
    let wait = |w: &crate::model::OpenWait| WaitView {
        step: w.step.clone(),
        kind: w.kind,
        key: w.key.clone(),
        deadline: fires(timers::wait(&w.step)),
        note: None,
    };
    let timer = |t: &crate::model::OpenTimer| TimerView {
        step: t.step.clone(),
        why: t.why,
        tool: t.tool.clone(),
        limit_of: t.place.and_then(|p| whose(p.limit, &head.tenant, t.tool.as_deref()?)),
        about: t.place.map(|p| p.at),
        at: fires(timers::step(&t.step)),
        attempts: None,
        attempts_max: None,
        error: None,
    };
    let child = |c: &crate::model::OpenChild| ChildView {
        ordinal: c.0,
        job: JobState::child_id(head.id, c.0),
        step: c.1.clone(),
    };
    let running = |c: &crate::model::OpenCall| RunningView {
        step: c.step.clone(),
        tool: c.tool.clone(),
        class: c.class,
        call: c.call,
        key: c.key.clone(),
        unknown: c.unknown.clone(),
        handed: c.out.map(|out| HandedView {
            call: JobState::call_id(head.id, &c.key, c.call, out),
            what: out.0,
            status: None,
            since: None,
            held_by: None,
            workers: None,
            ahead: None,
            limit_of: None,
            limited_until: None,
            kind: None,
        }),
    };
    let holder =
        |session: SessionId| HolderView { session, name: session.to_string(), expires_at: None };
    JobView {
        id: head.id,
        version: state.version,
        key: state.terms.key.clone(),
        labels: state.terms.labels.clone(),
        status: head.status.name().to_owned(),
        is_final: head.class() == tenure_kernel::table::Class::Final,
        tenant: head.tenant.clone(),
        priority: head.priority,
        created_at: head.created_at,
        changed_at: head.changed_at,
        must_end_by: head.must_end_by,
        due: head.due,
        fault: head.attention.clone(),
        holder: head.holder.map(holder),
        workers: None,
        blocked: None,
        attempt: head.epoch,
        takeovers: state.takeovers,
        takeovers_max: state.takeovers_max,
        starts_at: (state.held_back == HeldBack::Start)
            .then(|| fires(timers::START.to_owned()))
            .flatten(),
        gate: state.terms.gate.as_ref().filter(|_| state.held_back == HeldBack::Gate).map(|g| {
            GateWait { name: g.name.clone(), before: None, held_by: Vec::new(), limit: None }
        }),
        queue: Some(head.queue.clone())
            .filter(|q| *q != tenure_steps::flow::queue_of(&state.flow, state.version)),
        paused: state.paused,
        paused_by: None,
        running: state.calls.iter().map(running).collect(),
        waits: state.waits.iter().map(wait).collect(),
        timers: state.timers.iter().map(timer).collect(),
        children: state.children.iter().map(child).collect(),
        mail_unread: head.mail_count.saturating_sub(head.mail_read),
        run: state.run,
        steps_done: state.steps,
        events: state.events,
        head_version: head.version,
        flow: state.flow,
        input: state.input,
        output: state.output,
        undid: state.failing.is_some() && state.undos == 0,
        failure: state.failure,
        attention: state.attention,
        cancel: state.cancel.map(|(by, why)| CancelView { by, why }),
        retry_of: state.retry_of,
        forked_from: state.forked_from,
        parent: state.parent,
    }
}
