//! Where a turn stands, from its head and one session row.

use crate::{
    desk::state_of,
    rules::timer,
    turn::{
        Turn, TurnState, WaitFor,
        model::{Asker, Sort},
        table::READY,
    },
    words::Fault,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
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
    /// Rules whose clocks run, the next first. A clock that is looked at may turn out to count from later.
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
        }
    });
    let is_final = head.class() == Class::Final;
    let mut next_rules: Vec<NextRule> = head
        .timers
        .iter()
        .map(|t| {
            let (rule, wait) = rule_of(&t.name);
            NextRule { rule, wait, at: t.at }
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
        asker: state.asker,
        depth: state.depth,
        said: state.said,
    }
}

/// Where a turn stands, and the name of who holds it.
pub async fn turn_view(store: &Arc<dyn Store>, head: &Head) -> Result<TurnView, StoreError> {
    let mut view = from_head(head, state_of::<Turn>(head)?);
    if let Some(holder) = &mut view.holder
        && let Some(session) = store.session(holder.session).await?
    {
        holder.name = session.name;
        holder.expires_at = Some(session.expires_at);
    }
    Ok(view)
}
