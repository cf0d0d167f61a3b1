//! How answers look, for the OpenAPI document. They are made by `tenure-agents`, which knows nothing of HTTP, so their
//! form is said here once more; a test compares the names of the fields with what is really sent. Moments are
//! microseconds since 1970 of the store's clock.

use serde_json::Value;
use utoipa::ToSchema;

/// Where an agent stands: what a list says of it, and its profile.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct AgentDocument {
    #[serde(flatten)]
    row: AgentRowDocument,
    /// What its worker needs to know: model, instructions, tools.
    profile: Value,
}

/// An agent as it was set.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct SetAgentDocument {
    #[serde(flatten)]
    agent: AgentDocument,
    /// What the profile names that is not there: flows and tools that no worker ever registered, and agents. Missing where
    /// there is nothing of the kind.
    warnings: Option<Vec<String>>,
}

/// A turn in line.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct QueuedTurnDocument {
    /// From 1.
    position: usize,
    /// Which.
    turn: String,
}

/// A turn that ended.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct PastTurnDocument {
    /// Which.
    turn: String,
    /// success, partial, failed, timeout or canceled.
    status: String,
}

/// An agent in a list: without its profile.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct AgentRowDocument {
    /// Its name.
    name: String,
    /// Its id.
    id: String,
    /// Whose it is.
    tenant: String,
    /// idle, dispatched, running, suspended or removed.
    status: String,
    /// Nothing is dispatched.
    paused: bool,
    /// Rises with every dispatch, resume and forced end of its turns.
    turn_epoch: u64,
    /// Which workers run its turns.
    target: String,
    /// The channel of turns that bring none.
    channel: Option<String>,
    /// Where its deliverables go.
    output_box: Option<String>,
    /// The turn whose turn it is.
    active: Option<TurnDocument>,
    /// Turns in line: who is next, in order.
    queue: Vec<QueuedTurnDocument>,
    /// The last that ended, the newest first.
    recent: Vec<PastTurnDocument>,
    /// Turns that ended so far.
    turns: u64,
    /// When it was first set.
    created_at: i64,
    /// When it changed last.
    changed_at: i64,
    /// Why the engine can not decide about it.
    fault: Option<String>,
}

/// Agents.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct AgentsDocument {
    /// By name within the page.
    agents: Vec<AgentRowDocument>,
    /// Where the next page begins; none after the last.
    next: Option<String>,
}

/// Where a turn stands in its agent's line.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct TurnLineDocument {
    /// Turns before it, the active one among them.
    before: usize,
    /// The agent is paused: nothing is dispatched.
    paused: bool,
}

/// Where a turn stands.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct TurnDocument {
    /// Which turn.
    id: String,
    /// Its agent's name.
    agent: String,
    /// Where it stands in its agent's line; of a turn that is queued.
    line: Option<TurnLineDocument>,
    /// Which workers run it.
    target: String,
    /// Whose it is.
    tenant: String,
    /// queued, dispatched, running, suspended, success, partial, failed, timeout or canceled.
    status: String,
    /// It has ended.
    is_final: bool,
    /// turn or ui_action.
    sort: String,
    /// Its channel.
    channel: Option<String>,
    /// Where its deliverable goes.
    output_box: Option<String>,
    /// The sender's own name for it.
    correlation_id: Option<String>,
    /// Who waits for it.
    asker: Option<TurnAskerDocument>,
    /// The turn that waits for it in the end: its asker, or whoever asked for the join.
    parent: Option<String>,
    /// How many turns lie above it.
    depth: u32,
    /// When it was sent.
    created_at: i64,
    /// When it changed last.
    changed_at: i64,
    /// When it ends, whatever happens.
    must_end_by: Option<i64>,
    /// The counter; 0 before its dispatch.
    turn_epoch: u64,
    /// The step that runs or ran last.
    step: u32,
    /// How often that step was begun.
    attempt: u32,
    /// The model is being asked.
    asking: bool,
    /// What it waits for.
    waits: Vec<TurnWaitDocument>,
    /// The earliest deadline of these.
    resume_deadline: Option<i64>,
    /// It was resumed, and no worker has gone on with it yet.
    resumed: bool,
    /// Workers that took it up after a resume and did not go on.
    resume_attempts: u32,
    /// How many may.
    resume_attempts_max: u32,
    /// Workers that were lost while they held it.
    takeovers: u32,
    /// How many may be lost.
    takeovers_max: u32,
    /// Dead letters that nobody has dealt with.
    dead_letters: u32,
    /// Mail that nobody has read yet.
    mail_unread: u64,
    /// Who holds it.
    holder: Option<TurnHolderDocument>,
    /// Rules whose clocks run, the next first.
    next_rules: Vec<TurnRuleDocument>,
    /// The last words of the model.
    said: String,
    /// What went wrong.
    error: Option<TurnFaultDocument>,
    /// The name of its deliverable.
    deliverable_card_id: Option<String>,
    /// A rule or a person ended it.
    forced: bool,
    /// It was set aside by a rule.
    skipped: bool,
    /// Why the engine can not decide about it.
    fault: Option<String>,
}

/// Who waits for a turn: another turn, or a join.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct TurnAskerDocument {
    /// Who.
    id: String,
    /// The number under which it was asked for.
    ordinal: u32,
}

/// A tool that has been called and has not answered.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct TurnWaitDocument {
    /// Its name within the turn.
    wait: String,
    /// The id that the model gave the call.
    tool_call_id: String,
    /// The tool.
    tool: String,
    /// Who answers: job, turn, join or message.
    by: String,
    /// Its id, where it is somebody of this store.
    of: Option<String>,
    /// When it is over.
    deadline: Option<i64>,
    /// Of a join: its turns, in order.
    turns: Vec<JoinedTurnDocument>,
}

/// A turn of a join.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct JoinedTurnDocument {
    /// Which.
    turn: String,
    /// Its agent; empty where it is not there yet.
    agent: String,
    /// Where it stands, or how it ended.
    status: String,
}

/// Who holds a turn.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct TurnHolderDocument {
    /// The session.
    session: String,
    /// Its name for people.
    name: String,
    /// Until when it is believed alive.
    expires_at: Option<i64>,
}

/// A rule whose clock runs.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct TurnRuleDocument {
    /// Its name.
    rule: String,
    /// Of a wait: which.
    wait: Option<String>,
    /// When it is looked at.
    at: i64,
}

/// What went wrong.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct TurnFaultDocument {
    /// A word for programs: tool_timeout, bad_request, internal_error, …
    code: String,
    /// A sentence for people.
    message: Option<String>,
}

/// How a turn ended.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct TurnEndDocument {
    /// success, partial, failed, timeout or canceled.
    status: String,
    /// The counter after it.
    turn_epoch: u64,
    /// What went wrong.
    error: Option<TurnFaultDocument>,
    /// What is delivered.
    deliverable: Option<DeliverableDocument>,
    /// Why nothing is.
    no_deliverable: Option<String>,
    /// Where a rule or a person ended it: `reason`, `status`, `by`.
    forced: Option<Value>,
    /// Whom it does not wait for any longer: `wait`, `ordinal`, `tool`, `for`.
    abandoned: Option<Vec<Value>>,
    /// The rule that set it aside.
    watchdog_error: Option<String>,
    /// When that was.
    watchdog_at: Option<i64>,
}

/// What a turn delivered.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct DeliverableDocument {
    /// Its name: one per turn.
    card_id: String,
    /// Where it lies.
    output_box: String,
    /// Made up by a rule, of what there was.
    fallback: Option<bool>,
    /// What it says.
    content: Value,
}

/// A turn with the sentence about it. Has the fields of a turn, and more.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct TurnAnswerDocument {
    #[schema(inline)]
    #[serde(flatten)]
    turn: TurnDocument,
    /// Why it is where it is, and what moves it.
    why: String,
    /// Only of a turn that is over.
    end: Option<TurnEndDocument>,
    /// Of a turn that was just sent: it was there already, under the same correlation id and with the same content.
    existed: Option<bool>,
}

/// A page of turns.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct TurnPageDocument {
    /// The newest first.
    turns: Vec<TurnAnswerDocument>,
    /// `before` of the next page; `null` on the last.
    next: Option<String>,
}

/// One sentence.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct TurnWhyDocument {
    /// Which turn.
    id: String,
    /// Its status.
    status: String,
    /// Why it is where it is, and what moves it.
    why: String,
}

/// A step: the model was asked, and tools were called.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct TurnStepDocument {
    /// From 1.
    step: u32,
    /// How often it was begun.
    attempts: u32,
    /// When it was first begun.
    started_at: Option<i64>,
    /// When the model had answered.
    finished_at: Option<i64>,
    /// What the model said.
    message: Option<Value>,
    /// Tokens and the like.
    usage: Option<Value>,
    /// The tools that it called.
    calls: Vec<TurnCallDocument>,
}

/// A tool call of a turn.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct TurnCallDocument {
    /// Its name within the turn.
    wait: String,
    /// The id that the model gave it.
    tool_call_id: String,
    /// The tool.
    tool: String,
    /// Who answers: job, turn, join, message; worker if it was answered at once.
    by: String,
    /// Its id.
    of: Option<String>,
    /// When it was called.
    called_at: i64,
    /// When it was answered.
    answered_at: Option<i64>,
    /// How long it is waited for.
    deadline: Option<i64>,
    /// How it ended.
    status: Option<String>,
    /// What it returned.
    result: Option<Value>,
    /// What went wrong.
    error: Option<String>,
}

/// Something that happened to a turn.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct TurnEntryDocument {
    /// Its place in the stream.
    version: u64,
    /// When.
    at: i64,
    /// The event.
    event: String,
    /// Who brought it about: sender, agent, worker, tool, rule, person or kernel.
    by: String,
    /// The rule, where one fired.
    rule: Option<String>,
    /// In words.
    text: String,
}

/// Everything about a turn. Has the fields of a turn, and more.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct TurnTimelineDocument {
    #[schema(inline)]
    #[serde(flatten)]
    turn: TurnDocument,
    /// What was said to the agent: `role`, `content`.
    messages: Vec<Value>,
    /// What its worker was told about the agent.
    profile: Option<Value>,
    /// Its steps, in order.
    steps: Vec<TurnStepDocument>,
    /// How it ended.
    end: Option<TurnEndDocument>,
    /// What happened, in order.
    timeline: Vec<TurnEntryDocument>,
    /// Why it is where it is, and what moves it.
    why: String,
}

/// What became of something that was said to a turn.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct TurnAskDocument {
    /// The turn.
    turn: String,
    /// accepted, kept (for a suspend that has not come), too_late (noted) or already.
    outcome: String,
    /// The id under which it lies in the inbox.
    item: String,
}

/// An item of an inbox.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct InboxItemDocument {
    /// Its id within the turn.
    id: String,
    /// The turn it is for.
    turn: String,
    /// The agent.
    agent: String,
    /// turn, ui_action, tool_result, timeout, stop, progress, or another kind of mail.
    r#type: String,
    /// The kind of mail that it came as.
    mail_kind: String,
    /// queued, pending, processing, consumed, error, requeued or skipped.
    status: String,
    /// When it came, or was last dealt with.
    at: i64,
    /// When a worker took it, or it was read; `null` again once nobody has it.
    processed_at: Option<i64>,
    /// When nothing was left to be done with it.
    archived_at: Option<i64>,
    /// The sender's own name for it.
    correlation_id: Option<String>,
    /// The wait that it answers.
    wait: Option<String>,
    /// The id that the model gave the call.
    tool_call_id: Option<String>,
    /// A word for programs: why it is dead.
    code: Option<String>,
    /// A sentence for people.
    why: Option<String>,
    /// What it says, where it is dead.
    body: Option<Value>,
}

/// The inbox of an agent.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct AgentInboxDocument {
    /// The agent's name.
    agent: String,
    /// Of its active turn, those in line, and the last that ended.
    items: Vec<InboxItemDocument>,
}

/// A page of the inbox of everybody.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct InboxPageDocument {
    /// The newest turn first.
    items: Vec<InboxItemDocument>,
    /// `before` of the next page; `null` on the last.
    next: Option<String>,
}

/// The inbox of a turn.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct TurnInboxDocument {
    /// The turn.
    turn: String,
    /// Everything that came for it.
    items: Vec<InboxItemDocument>,
}

/// What one rule would do.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct ForecastDocument {
    /// Which turn or agent.
    id: String,
    /// turn or agent.
    kind: String,
    /// Where it stands.
    status: String,
    /// The rule.
    rule: String,
    /// Of a wait: which.
    wait: Option<String>,
    /// When it fires; `null` while its clock has not begun.
    at: Option<i64>,
    /// It would fire now.
    now: bool,
    /// The events that it would write.
    events: Vec<String>,
    /// How the turn would end by it.
    ends: Option<String>,
    /// In words.
    does: String,
}

/// The dry run of the watchdog.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct DryRunDocument {
    /// The moment it was asked for.
    now: i64,
    /// How many turns and agents were looked at.
    looked_at: usize,
    /// There are more open turns than were looked at.
    more: bool,
    /// What the rules would do, the next first.
    would: Vec<ForecastDocument>,
}
