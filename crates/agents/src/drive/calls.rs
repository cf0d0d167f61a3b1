//! What becomes of the tool calls of a step. Pure: who is asked, by which message, until when; and what is answered at
//! once, because nobody could be asked. A model can read every such answer, and try something else.

use super::{
    conversation::{Conversation, INBOX_NOT_EMPTY},
    profile::{
        DELEGATE, DELEGATE_TIMEOUT, Described, FORK_JOIN, Profile, Run, SUBMIT, ToolDef,
        delegate_parameters, fork_join_parameters, submit_parameters,
    },
};
use crate::{
    agent::{Spec, agent_id},
    clip_encoded,
    join::{NewJoin, Task},
    limits,
    turn::{
        act::{self, How, NewWait},
        model::{Asker, NewTurn, Sort, TurnState, WaitFor},
    },
    words::{After, EndStatus, Fault, ToolStatus},
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tenure_kernel::{
    depth,
    ids::EntityId,
    limits::clip,
    outbox::{Message, Target},
    runtime::{BoxFuture, Rt},
    store::Store,
    stream::Body,
};
use tenure_schema::{NotChecked, Schema, Violation};

/// How long a person is waited for, where the tool has no time of its own. The turn's own end may come sooner.
pub const PERSON_TIMEOUT: Duration = Duration::from_secs(24 * 3_600);
/// Violations of a schema that a model is told.
const VIOLATIONS_MAX: usize = 5;

/// A tool that the model wants called.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// The id of the call.
    pub call: String,
    /// The tool.
    pub tool: String,
    /// The arguments, or why they can not be read.
    pub arguments: Result<Value, String>,
}

/// A call as a job is made of it.
#[derive(Clone, Debug)]
pub struct Order<'a> {
    /// A flow or a tool.
    pub run: &'a Run,
    /// What it gets.
    pub arguments: Value,
    /// Who waits for it.
    pub turn: EntityId,
    /// Under which number it answers.
    pub ordinal: u32,
    /// It ends by then.
    pub must_end_in_ms: u64,
}

/// Makes jobs of calls. Jobs are somebody else's: this crate knows only that they answer under their number.
pub trait Jobs: Send + Sync {
    /// The id of the job, and the message that creates it.
    fn job(&self, order: &Order<'_>) -> (EntityId, Message);

    /// Whether a person answers it, who takes longer than a program: it is waited for [`PERSON_TIMEOUT`] unless the tool
    /// has a time of its own.
    fn asks_a_person(&self, _run: &Run) -> bool {
        false
    }

    /// What is known about the flow or tool of this name.
    fn described<'a>(
        &'a self,
        _store: &'a Arc<dyn Store>,
        _tenant: &'a str,
        _run: &'a Run,
    ) -> BoxFuture<'a, Option<Described>> {
        Box::pin(std::future::ready(None))
    }

    /// What is wrong where nobody ever had the flow or tool of this name: a job of it would wait for its end.
    fn unknown<'a>(
        &'a self,
        _store: &'a Arc<dyn Store>,
        _tenant: &'a str,
        _run: &'a Run,
    ) -> BoxFuture<'a, Option<Fault>> {
        Box::pin(std::future::ready(None))
    }
}

/// Reads what a message wants called. Ids that are missing, too long or there twice are given anew, also in the message:
/// what is recorded is what results refer to.
pub fn read(message: &mut Value, step: u32) -> Vec<Asked> {
    let Some(calls) = message.get_mut("tool_calls").and_then(Value::as_array_mut) else {
        return Vec::new();
    };
    let mut seen = BTreeSet::new();
    let mut asked = Vec::with_capacity(calls.len());
    for (n, call) in calls.iter_mut().enumerate() {
        let given = call["id"].as_str().unwrap_or_default().to_owned();
        // As JSON, because it lies in the head: a control character takes six bytes there.
        let fits = !given.is_empty() && clip_encoded(&given, limits::CALL_BYTES_MAX + 2) == given;
        let id = match fits && seen.insert(given.clone()) {
            true => given,
            false => {
                // The model may have made up the same.
                let mut id = format!("call_{step}_{}", n + 1);
                while !seen.insert(id.clone()) {
                    id.push('_');
                }
                if call.is_object() {
                    call["id"] = json!(id);
                }
                id
            }
        };
        let function = &call["function"];
        let name = function["name"].as_str().unwrap_or_default();
        let tool = clip_encoded(name, limits::TOOL_BYTES_MAX + 2);
        let arguments = match &function["arguments"] {
            Value::String(text) if text.trim().is_empty() => Ok(json!({})),
            Value::String(text) => depth::read_input(text.as_bytes())
                .map_err(|e| format!("the arguments cannot be read as JSON: {e}")),
            Value::Null => Ok(json!({})),
            other => Ok(other.clone()),
        };
        asked.push(Asked { call: id, tool: tool.to_owned(), arguments });
    }
    asked
}

/// The agents that have to be known before the calls can be made sense of.
pub fn agents_named(asked: &[Asked], profile: &Profile) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for one in asked {
        let Ok(arguments) = &one.arguments else { continue };
        match (one.tool.as_str(), profile.tool(&one.tool).map(|t| &t.run)) {
            (DELEGATE, _) => names.extend(arguments["agent"].as_str().map(str::to_owned)),
            (FORK_JOIN, _) => {
                let tasks = arguments["tasks"].as_array().map_or(&[][..], Vec::as_slice);
                names.extend(tasks.iter().filter_map(|t| t["agent"].as_str()).map(str::to_owned));
            }
            (_, Some(Run::Agent(agent))) => {
                names.insert(agent.clone());
            }
            _ => {}
        }
    }
    names
}

/// What the calls are made with.
pub struct Ground<'a> {
    /// The turn.
    pub turn: EntityId,
    /// Whose it is.
    pub tenant: &'a str,
    /// Its state.
    pub state: &'a TurnState,
    /// The step that calls.
    pub step: u32,
    /// What is left until it must end.
    pub left: Duration,
    /// What its agent may do.
    pub profile: &'a Profile,
    /// The agents that were named, as far as they are there.
    pub agents: &'a BTreeMap<String, Spec>,
    /// Makes jobs.
    pub jobs: &'a dyn Jobs,
    /// What [`misfits`] found.
    pub misfits: &'a BTreeMap<String, Fault>,
    /// It is the last step: only what ends the turn is called.
    pub last_step: bool,
}

/// What a step comes to.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The turn delivers.
    Submit(EndStatus, Value),
    /// These are called.
    Calls(Vec<NewWait>),
}

type Answer = (ToolStatus, Value, Option<Fault>);

fn refused(code: &str, message: impl Into<String>) -> Answer {
    let message = clip(&message.into(), limits::ERROR_BYTES_MAX).to_owned();
    (ToolStatus::Failed, Value::Null, Some(Fault { code: code.to_owned(), message }))
}

/// What becomes of the calls of a step.
pub fn outcome(ground: &Ground<'_>, asked: Vec<Asked>, talk: &Conversation) -> Outcome {
    if let [only] = asked.as_slice()
        && only.tool == SUBMIT
        && ground.profile.last_tool() == SUBMIT
        && let Ok((status, result)) = submitted(only)
        // In the last step there is nobody left to read it.
        && (ground.last_step || talk.unseen().is_empty())
    {
        return Outcome::Submit(status, result);
    }
    let alone = asked.len() == 1;
    let mut waits: Vec<NewWait> = Vec::with_capacity(asked.len());
    let mut ordinal = act::next_ordinal(ground.state);
    for (place, one) in asked.into_iter().enumerate() {
        let open = waits.iter().filter(|w| !matches!(w.how, How::Answered(..))).count();
        let made = match open < limits::WAITS_MAX {
            true => make(ground, &one, place, ordinal, alone, talk),
            false => Err(refused(
                "too_many_calls",
                format!("a step can wait for {} calls", limits::WAITS_MAX),
            )),
        };
        let (how, timeout_ms, after) = made.unwrap_or_else(|(status, result, fault)| {
            (How::Answered(status, result, fault), None, After::Suspend)
        });
        ordinal += u32::from(!matches!(how, How::Answered(..)));
        waits.push(NewWait { call: one.call, tool: one.tool, how, timeout_ms, after });
    }
    Outcome::Calls(waits)
}

type Made = (How, Option<u64>, After);

fn make(
    ground: &Ground<'_>,
    one: &Asked,
    place: usize,
    ordinal: u32,
    alone: bool,
    talk: &Conversation,
) -> Result<Made, Answer> {
    let last = ground.profile.last_tool();
    if ground.last_step && one.tool != last {
        return Err(refused("last_step", format!("only {last} could be called in this step")));
    }
    match (one.tool.as_str(), ground.profile.tool(&one.tool)) {
        (SUBMIT, _) => Err(not_submitted(one, last, alone, talk)),
        (DELEGATE, _) if !ground.profile.delegates.is_empty() => delegate(ground, one, ordinal),
        (FORK_JOIN, _) if !ground.profile.delegates.is_empty() => fork_join(ground, one, ordinal),
        // What ends the turn waits for what the model has not seen, as a submission does.
        (name, Some(_)) if name == last && !ground.last_step && !talk.unseen().is_empty() => {
            Err(not_yet(talk))
        }
        (_, Some(tool)) => call(ground, one, tool, place, ordinal),
        (name, None) => Err(refused("unknown_tool", format!("there is no tool {name:?}"))),
    }
}

/// What a submission says.
fn submitted(one: &Asked) -> Result<(EndStatus, Value), Answer> {
    let arguments = checked(one, &submit_parameters())?;
    let status = match arguments["status"].as_str() {
        Some("partial") => EndStatus::Partial,
        Some("failed") => EndStatus::Failed,
        _ => EndStatus::Success,
    };
    Ok((status, arguments["result"].clone()))
}

/// Why a submission does not end the turn.
fn not_submitted(one: &Asked, last: &str, alone: bool, talk: &Conversation) -> Answer {
    if last != SUBMIT {
        return refused("must_end_with", format!("this turn ends with {last}"));
    }
    if !alone {
        return refused("not_alone", format!("{SUBMIT} has to be the only call of its step"));
    }
    if let Err(answer) = submitted(one) {
        return answer;
    }
    not_yet(talk)
}

/// The answer to whatever would end the turn while results are there that the model has not seen.
fn not_yet(talk: &Conversation) -> Answer {
    let items: Vec<Value> = talk
        .unseen()
        .into_iter()
        .map(|(call, r)| json!({ "tool_call_id": call, "status": r.status, "result": r.result, "error": r.error }))
        .collect();
    let message =
        "results are there that you have not seen; look at them, then end your turn again";
    let fault = Fault { code: INBOX_NOT_EMPTY.into(), message: message.into() };
    (ToolStatus::Failed, Value::Array(items), Some(fault))
}

/// What stands behind a plain text that would have ended the turn, in the place of its first call: the results that the
/// model has not seen. None where there are none, or nobody is left to read them.
pub fn held_back(ground: &Ground<'_>, talk: &Conversation) -> Option<NewWait> {
    if ground.last_step || talk.unseen().is_empty() {
        return None;
    }
    let (status, result, fault) = not_yet(talk);
    Some(NewWait {
        call: format!("call_{}_1", ground.step),
        tool: String::new(),
        how: How::Answered(status, result, fault),
        timeout_ms: None,
        after: After::Suspend,
    })
}

/// Arguments of a built-in tool that fit its schema, which is ours.
fn checked(one: &Asked, schema: &Value) -> Result<Value, Answer> {
    let arguments = one.arguments.clone().map_err(|why| refused("bad_request", why))?;
    let schema = Schema::stored(schema).map_err(|e| refused("bad_request", e.to_string()))?;
    match misfit(schema.check(&arguments, VIOLATIONS_MAX)) {
        None => Ok(arguments),
        Some(why) => Err(refused("bad_request", why)),
    }
}

fn misfit(found: Result<Vec<Violation>, NotChecked>) -> Option<String> {
    match found {
        Ok(none) if none.is_empty() => None,
        Ok(some) => Some(some.iter().map(Violation::to_string).collect::<Vec<_>>().join("; ")),
        Err(why) => Some(why.to_string()),
    }
}

/// What is wrong with calls to the profile's own tools, by the id of the call: nobody has what runs them, or the arguments do
/// not fit. The schemas are a tenant's, so they are checked on another thread where it takes long, and by a deadline for all
/// calls of the step.
pub async fn misfits(
    (rt, store): (&Rt, &Arc<dyn Store>),
    tenant: &str,
    jobs: &dyn Jobs,
    profile: &Profile,
    asked: &[Asked],
) -> BTreeMap<String, Fault> {
    let mut schemas: BTreeMap<&str, Result<Schema, String>> = BTreeMap::new();
    let mut found = BTreeMap::new();
    let end = rt.mono() + tenure_schema::DEADLINE;
    for one in asked {
        let (Ok(arguments), Some(tool)) = (&one.arguments, profile.tool(&one.tool)) else {
            continue;
        };
        if let Some(fault) = jobs.unknown(store, tenant, &tool.run).await {
            found.insert(one.call.clone(), fault);
            continue;
        }
        let bad = |message| Fault { code: "bad_request".to_owned(), message };
        if rt.mono() >= end {
            found.insert(one.call.clone(), bad(NotChecked::Late.to_string()));
            continue;
        }
        let compile = || Schema::stored(&tool.parameters).map_err(|e| e.to_string());
        let wrong = match schemas.entry(tool.name.as_str()).or_insert_with(compile) {
            Ok(schema) => misfit(schema.check_beside(rt, tenant, arguments, VIOLATIONS_MAX).await),
            // What an older version accepted and this one cannot follow refuses nothing: the tool checks for itself.
            Err(why) => {
                tracing::warn!(tool = tool.name, why, "arguments are not checked");
                None
            }
        };
        found.extend(wrong.map(|why| (one.call.clone(), bad(why))));
    }
    found
}

/// The time of a wait, and by when whoever is asked has to end. A turn without a rule for it waits as long as it can.
fn times(ground: &Ground<'_>, own: Option<u64>) -> (u64, u64) {
    let left = u64::try_from(ground.left.as_millis()).unwrap_or(u64::MAX);
    let wait = act::wait_ms(ground.state, own, ground.left).unwrap_or(left);
    (wait, act::answer_ms(ground.state, wait))
}

fn call(
    ground: &Ground<'_>,
    one: &Asked,
    tool: &ToolDef,
    place: usize,
    ordinal: u32,
) -> Result<Made, Answer> {
    let arguments = one.arguments.clone().map_err(|why| refused("bad_request", why))?;
    if let Some(fault) = ground.misfits.get(&one.call) {
        return Err(refused(&fault.code, &fault.message));
    }
    let own = tool.timeout_ms.or_else(|| {
        let person = ground.jobs.asks_a_person(&tool.run);
        person.then(|| u64::try_from(PERSON_TIMEOUT.as_millis()).unwrap_or(u64::MAX))
    });
    let (_, must_end_in_ms) = times(ground, own);
    let how = match &tool.run {
        run @ (Run::Flow { .. } | Run::Tool(_)) => {
            let order = Order { run, arguments, turn: ground.turn, ordinal, must_end_in_ms };
            let (id, message) = ground.jobs.job(&order);
            How::Ask(WaitFor::Job(id), message)
        }
        Run::Agent(agent) => {
            let text = match &arguments {
                Value::Object(map) => match map.get("instruction").and_then(Value::as_str) {
                    Some(text) if map.len() == 1 => text.to_owned(),
                    _ => arguments.to_string(),
                },
                other => other.to_string(),
            };
            ask_agent(ground, agent, &text, ordinal, must_end_in_ms)?
        }
        Run::External { subject: Some(_) } if too_large(&arguments) => {
            let why = format!("the arguments are larger than {ARGUMENTS_BYTES_MAX} bytes");
            return Err(refused("bad_request", why));
        }
        Run::External { subject } => How::Outside(subject.as_ref().map(|subject| {
            let body = json!({
                "agent_id": ground.state.agent_name,
                "agent_turn_id": ground.turn,
                "turn_epoch": ground.state.turn_epoch,
                "wait": format!("{}.{}", ground.step, place + 1),
                "tool_call_id": one.call,
                "tool": one.tool,
                "arguments": arguments,
                "answer_within_ms": must_end_in_ms,
                "channel_id": ground.state.channel,
                "trace": ground.state.trace,
            });
            let to = Target::Wire(subject.clone());
            Message { to, kind: "tool_call".into(), body: Body::json(&body) }
        })),
    };
    Ok((how, own, tool.after))
}

/// What a bus carries whole, less what stands around the arguments.
const ARGUMENTS_BYTES_MAX: usize = limits::RESULT_BYTES_MAX - 2 * 1024;

/// What is told on a bus goes there whole.
fn too_large(arguments: &Value) -> bool {
    serde_json::to_vec(arguments).is_ok_and(|b| b.len() > ARGUMENTS_BYTES_MAX)
}

fn seconds_or(value: &Value, otherwise: Duration) -> u64 {
    value.as_u64().map_or(u64::try_from(otherwise.as_millis()).unwrap_or(u64::MAX), |s| {
        s.saturating_mul(1_000)
    })
}

fn delegate(ground: &Ground<'_>, one: &Asked, ordinal: u32) -> Result<Made, Answer> {
    let arguments = checked(one, &delegate_parameters())?;
    let own = Some(seconds_or(&arguments["timeout_seconds"], DELEGATE_TIMEOUT));
    let (_, must_end_in_ms) = times(ground, own);
    let agent = arguments["agent"].as_str().unwrap_or_default();
    may_ask(ground, agent)?;
    let text = arguments["instruction"].as_str().unwrap_or_default();
    let how = ask_agent(ground, agent, text, ordinal, must_end_in_ms)?;
    Ok((how, own, After::Suspend))
}

fn may_ask(ground: &Ground<'_>, agent: &str) -> Result<(), Answer> {
    match ground.profile.may_ask(agent) {
        true => Ok(()),
        false => Err(refused("delegate_not_allowed", format!("this agent may not ask {agent:?}"))),
    }
}

/// The id of what a turn asks for under a number. It follows from both, as a child job's does.
pub fn child_of(turn: EntityId, ordinal: u32) -> EntityId {
    EntityId::derived(turn, &format!("turn/{ordinal}"), turn.moment())
}

fn ask_agent(
    ground: &Ground<'_>,
    agent: &str,
    text: &str,
    ordinal: u32,
    must_end_in_ms: u64,
) -> Result<How, Answer> {
    let new = new_turn(ground, agent, text, Asker { id: ground.turn, ordinal }, must_end_in_ms)?;
    let id = child_of(ground.turn, ordinal);
    let to = Target::Create { id, kind: "turn".into() };
    Ok(How::Ask(WaitFor::Turn(id), Message { to, kind: "create".into(), body: Body::json(&new) }))
}

fn new_turn(
    ground: &Ground<'_>,
    agent: &str,
    text: &str,
    asker: Asker,
    must_end_in_ms: u64,
) -> Result<NewTurn, Answer> {
    let state = ground.state;
    if state.depth >= limits::DEPTH_MAX {
        return Err(refused(
            "depth_limit",
            format!("turns delegate at most {} deep", limits::DEPTH_MAX),
        ));
    }
    if agent == state.agent_name || state.above.iter().any(|a| a == agent) {
        return Err(refused(
            "asks_itself",
            "an agent has one turn at a time, and one of it waits for this turn already",
        ));
    }
    let Some(spec) = ground.agents.get(agent) else {
        return Err(refused("unknown_agent", format!("there is no agent {agent:?}")));
    };
    Ok(NewTurn {
        agent: agent_id(ground.tenant, agent),
        agent_name: agent.to_owned(),
        target: spec.target.clone(),
        sort: Sort::Turn,
        channel: spec.channel.clone().or_else(|| state.channel.clone()),
        // Without a box there would be no deliverable, and nothing to answer with.
        output_box: spec.output_box.clone().or_else(|| Some(format!("turn:{}", ground.turn))),
        messages: vec![json!({ "role": "user", "content": text })],
        correlation_id: state.correlation_id.clone(),
        asker: Some(asker),
        depth: state.depth + 1,
        above: state.above.iter().chain([&state.agent_name]).cloned().collect(),
        trace: state.trace.clone(),
        must_end_in_ms,
        rules: state.rules,
        priority: 0,
        by: Some(format!("agent:{}", state.agent_name)),
    })
}

fn fork_join(ground: &Ground<'_>, one: &Asked, ordinal: u32) -> Result<Made, Answer> {
    let arguments = checked(one, &fork_join_parameters())?;
    let own = Some(seconds_or(&arguments["deadline_seconds"], DELEGATE_TIMEOUT));
    let (_, must_end_in_ms) = times(ground, own);
    // The turns end before the join, as the join ends before the wait.
    let task_ms = act::answer_ms(ground.state, must_end_in_ms);
    let join = child_of(ground.turn, ordinal);
    let wanted = arguments["tasks"].as_array().map_or(&[][..], Vec::as_slice);
    let mut tasks = Vec::with_capacity(wanted.len());
    let mut wrong = Vec::new();
    for (n, task) in wanted.iter().enumerate() {
        let agent = task["agent"].as_str().unwrap_or_default();
        let text = task["instruction"].as_str().unwrap_or_default();
        let number = u32::try_from(n).unwrap_or(u32::MAX);
        let asker = Asker { id: join, ordinal: number };
        let new =
            may_ask(ground, agent).and_then(|()| new_turn(ground, agent, text, asker, task_ms));
        match new {
            Ok(new) => tasks.push(Task { turn: child_of(join, number), new }),
            Err((_, _, fault)) => {
                let fault = fault.unwrap_or_default();
                wrong.push(format!("tasks[{n}]: {}: {}", fault.code, fault.message));
            }
        }
    }
    if !wrong.is_empty() {
        return Err(refused("bad_request", wrong.join("; ")));
    }
    let asker = Asker { id: ground.turn, ordinal };
    let fail_fast = arguments["fail_fast"].as_bool().unwrap_or(false);
    let new = NewJoin { asker, tasks, fail_fast, must_end_in_ms };
    let to = Target::Create { id: join, kind: "join".into() };
    let message = Message { to, kind: "create".into(), body: Body::json(&new) };
    Ok((How::Ask(WaitFor::Join(join), message), own, After::Suspend))
}
