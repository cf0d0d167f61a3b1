//! Where a turn stands, from its head and one session row.

use super::inbox::dead_items;
use crate::{
    agent::Agent,
    desk::state_of,
    join::Join,
    rules::timer,
    turn::{
        Turn, TurnState, WaitFor,
        model::{Asker, Sort},
        table::{DISPATCHED, READY},
    },
    words::Fault,
};
use serde::{Deserialize, Serialize};
use std::{sync::Arc, time::Duration};
use tenure_kernel::{
    error::StoreError,
    head::Head,
    ids::{EntityId, SessionId},
    store::Store,
    table::Class,
    time::Timestamp,
};

/// Where a turn stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnView {
    /// Which turn.
    pub id: EntityId,
    /// Its agent's name.
    pub agent: String,
    /// Its agent's id.
    #[serde(skip, default = "nobody")]
    pub agent_id: EntityId,
    /// Where it stands in its agent's line.
    pub line: Option<LineView>,
    /// Which workers run it.
    pub target: String,
    /// Whose it is.
    pub tenant: String,
    /// `queued`, `dispatched`, `running`, `suspended`, or how it ended.
    pub status: String,
    /// It has ended.
    pub is_final: bool,
    /// `turn` or `ui_action`.
    pub sort: Sort,
    /// Its channel.
    pub channel: Option<String>,
    /// Where its deliverable goes.
    pub output_box: Option<String>,
    /// The sender's own name for it.
    pub correlation_id: Option<String>,
    /// Who waits for it: a turn or a join.
    pub asker: Option<Asker>,
    /// The turn that waits for it in the end: its asker, or whoever asked for the join.
    pub parent: Option<EntityId>,
    /// How many turns lie above it.
    pub depth: u32,
    /// When it was sent.
    pub created_at: Timestamp,
    /// When it changed last.
    pub changed_at: Timestamp,
    /// When it ends, whatever happens.
    pub must_end_by: Option<Timestamp>,
    /// The counter; `0` before its dispatch.
    pub turn_epoch: u64,
    /// The step that runs or ran last.
    pub step: u32,
    /// How often that step was begun.
    pub attempt: u32,
    /// The model is being asked.
    pub asking: bool,
    /// What it waits for.
    pub waits: Vec<WaitView>,
    /// The earliest deadline of these.
    pub resume_deadline: Option<Timestamp>,
    /// It was resumed, and no worker has gone on with it yet.
    pub resumed: bool,
    /// Workers that took it up after a resume and did not go on.
    pub resume_attempts: u32,
    /// How many may.
    pub resume_attempts_max: u32,
    /// Workers that were lost while they held it.
    pub takeovers: u32,
    /// How many may be lost.
    pub takeovers_max: u32,
    /// Dead letters that nobody has dealt with.
    pub dead_letters: u32,
    /// Mail that nobody has read yet.
    pub mail_unread: u64,
    /// Who holds it.
    pub holder: Option<HolderView>,
    /// Rules whose clocks run, the next first. Clocks that count from a claim are not among them before there is one.
    pub next_rules: Vec<NextRule>,
    /// The last words of the model.
    pub said: String,
    /// What went wrong.
    pub error: Option<Fault>,
    /// The name of its deliverable.
    pub deliverable_card_id: Option<String>,
    /// A rule or a person ended it.
    pub forced: bool,
    /// It was set aside by a rule.
    pub skipped: bool,
    /// Why the kernel wants a person to look: decisions about it fail.
    pub fault: Option<String>,
}

fn nobody() -> EntityId {
    EntityId::fixed(0, 0)
}

/// Where a turn stands in its agent's line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LineView {
    /// Turns before it, the active one among them.
    pub before: usize,
    /// The agent is paused: nothing is dispatched.
    pub paused: bool,
}

/// A tool that has been called and has not answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WaitView {
    /// Its name within the turn.
    pub wait: String,
    /// The id that the model gave the call.
    pub tool_call_id: String,
    /// The tool.
    pub tool: String,
    /// Who answers: `job`, `turn`, `join` or `message`.
    pub by: String,
    /// Its id, where it is somebody of this store.
    pub of: Option<EntityId>,
    /// When it is over.
    pub deadline: Option<Timestamp>,
    /// Of a join: its turns, in order.
    #[serde(default)]
    pub turns: Vec<JoinedView>,
}

/// A turn of a join.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JoinedView {
    /// Which.
    pub turn: EntityId,
    /// Its agent; empty where it is not there yet.
    pub agent: String,
    /// Where it stands, or how it ended.
    pub status: String,
}

/// Who holds a turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HolderView {
    /// The session.
    pub session: SessionId,
    /// Its name for people; the id where the row is gone.
    pub name: String,
    /// Until when it is believed alive.
    pub expires_at: Option<Timestamp>,
}

/// A rule whose clock runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NextRule {
    /// Its name.
    pub rule: String,
    /// Of a wait: which.
    pub wait: Option<String>,
    /// When it is looked at.
    pub at: Timestamp,
}

/// The status as people read it: nobody cares whether a worker has a running turn at this moment.
pub fn shown(status: &str) -> &str {
    if status == READY { "running" } else { status }
}

/// Who answers a wait.
pub(crate) fn answers(waits_for: WaitFor) -> (&'static str, Option<EntityId>) {
    match waits_for {
        WaitFor::Job(id) => ("job", Some(id)),
        WaitFor::Turn(id) => ("turn", Some(id)),
        WaitFor::Join(id) => ("join", Some(id)),
        WaitFor::Message => ("message", None),
    }
}

/// A timer as the rule that it is.
pub(crate) fn rule_of(name: &str) -> (String, Option<String>) {
    match name.strip_prefix(timer::WAIT) {
        Some(wait) => ("tool_timeout".to_owned(), Some(wait.to_owned())),
        None => (name.to_owned(), None),
    }
}

/// From the head alone.
pub fn from_head(head: &Head, state: TurnState) -> TurnView {
    let waits = state.waits.iter().map(|w| {
        let (by, of) = answers(w.waits_for);
        WaitView {
            wait: w.id.clone(),
            tool_call_id: w.call.clone(),
            tool: w.tool.clone(),
            by: by.to_owned(),
            of,
            deadline: w.deadline,
            turns: Vec::new(),
        }
    });
    let is_final = head.class() == Class::Final;
    let mut next_rules: Vec<NextRule> = head
        .timers
        .iter()
        .filter_map(|t| {
            let (rule, wait) = rule_of(&t.name);
            Some(NextRule { rule, wait, at: fires_at(head, &state, &t.name, t.at)? })
        })
        .collect();
    let own = [
        ("holder_check", head.check_at.filter(|_| head.holder.is_some())),
        ("must_end_by", head.must_end_by),
    ];
    for (rule, at) in own {
        let rule = |at| NextRule { rule: rule.to_owned(), wait: None, at };
        next_rules.extend(at.filter(|_| !is_final).map(rule));
    }
    next_rules.sort_by_key(|r| r.at);
    let outcome = state.outcome.clone();
    TurnView {
        id: head.id,
        agent_id: state.agent,
        line: None,
        target: state.target.clone(),
        tenant: head.tenant.clone(),
        status: shown(head.status.name()).to_owned(),
        is_final,
        sort: state.sort,
        created_at: head.created_at,
        changed_at: head.changed_at,
        must_end_by: head.must_end_by,
        turn_epoch: state.turn_epoch,
        step: state.step,
        attempt: state.attempt,
        asking: state.asking_ms > 0,
        waits: waits.collect(),
        resume_deadline: state.resume_deadline(),
        resumed: state.resumed,
        resume_attempts: state.resume_attempts,
        resume_attempts_max: state.rules.resume_attempts_max,
        takeovers: state.takeovers,
        takeovers_max: state.rules.takeovers_max,
        dead_letters: state.dead,
        mail_unread: head.mail_count.saturating_sub(head.mail_read),
        holder: head.holder.map(|session| HolderView {
            session,
            name: session.to_string(),
            expires_at: None,
        }),
        next_rules,
        error: outcome.as_ref().and_then(|o| o.error.clone()),
        deliverable_card_id: outcome.as_ref().and_then(|o| o.deliverable_card_id.clone()),
        forced: outcome.as_ref().is_some_and(|o| o.forced),
        skipped: outcome.is_some_and(|o| o.skipped),
        fault: head.attention.clone(),
        agent: state.agent_name,
        channel: state.channel,
        output_box: state.output_box,
        correlation_id: state.correlation_id,
        parent: state.asker.map(|a| a.id),
        asker: state.asker,
        depth: state.depth,
        said: state.said,
    }
}

/// When a timer does something: some count from a claim, whatever moment they were set for, and have not begun while
/// nobody has the turn. As the machine decides it.
fn fires_at(head: &Head, state: &TurnState, name: &str, at: Timestamp) -> Option<Timestamp> {
    let held = head.holder.is_some();
    let from_claim = |ms: u64| at.max(head.changed_at + Duration::from_millis(ms));
    match name {
        timer::PROCESSING | timer::RESUME if !held => None,
        timer::REAP if head.status.name() == DISPATCHED => None,
        timer::PROCESSING => {
            let patience = from_claim(state.rules.inbox_processing_ms);
            Some(state.asking_until.map_or(patience, |asking| asking.max(patience)))
        }
        timer::RESUME => Some(from_claim(state.rules.resume_lease_ms)),
        timer::REAP if held && (state.step == 0 || state.resumed) => {
            Some(from_claim(state.rules.active_reap_ms))
        }
        _ => Some(at),
    }
}

/// The turns of a join.
async fn joined(
    store: &Arc<dyn Store>,
    join: Option<EntityId>,
) -> Result<Vec<JoinedView>, StoreError> {
    let mut turns = Vec::new();
    let head = match join {
        Some(join) => store.head(join).await?,
        None => None,
    };
    let Some(head) = head else { return Ok(turns) };
    for task in state_of::<Join>(&head)?.tasks {
        let child = store.head(task.turn).await?;
        let agent = child.as_ref().map(state_of::<Turn>).transpose()?.map(|s| s.agent_name);
        let status = match (task.status, &child) {
            (Some(ended), _) => ended.name().to_owned(),
            (None, Some(child)) => shown(child.status.name()).to_owned(),
            (None, None) => "sent".to_owned(),
        };
        turns.push(JoinedView { turn: task.turn, agent: agent.unwrap_or_default(), status });
    }
    Ok(turns)
}

/// Where a turn stands in the line of its agent; `None` where the agent does not know it (yet).
async fn line(
    store: &Arc<dyn Store>,
    turn: EntityId,
    agent: EntityId,
) -> Result<Option<LineView>, StoreError> {
    let Some(head) = store.head(agent).await? else { return Ok(None) };
    let state = state_of::<Agent>(&head)?;
    let place = state.queue.iter().position(|t| *t == turn);
    let active = usize::from(state.active.is_some());
    Ok(place.map(|before| LineView { before: before + active, paused: state.paused }))
}

/// Where a turn stands, and the name of who holds it.
pub async fn turn_view(store: &Arc<dyn Store>, head: &Head) -> Result<TurnView, StoreError> {
    let mut view = from_head(head, state_of::<Turn>(head)?);
    if view.is_final && view.dead_letters > 0 {
        // What a person says about a letter after the end changes no head.
        let left = dead_items(store, head.id).await?.len();
        view.dead_letters = u32::try_from(left).unwrap_or(u32::MAX);
    }
    for wait in view.waits.iter_mut().filter(|w| w.by == "join") {
        wait.turns = joined(store, wait.of).await?;
    }
    if let Some(asker) = view.asker
        && let Some(head) = store.head(asker.id).await?.filter(|h| h.kind() == "join")
    {
        view.parent = state_of::<Join>(&head)?.asker.map(|a| a.id);
    }
    if view.status == "queued" {
        view.line = line(store, head.id, view.agent_id).await?;
    }
    if let Some(holder) = &mut view.holder
        && let Some(session) = store.session(holder.session).await?
    {
        holder.name = session.name;
        holder.expires_at = Some(session.expires_at);
    }
    Ok(view)
}
