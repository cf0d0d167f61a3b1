//! What follows from mail, timers and lost holders, from the head alone. The due loop decides this for a
//! job without a holder; the holder asks the same functions about its mail.

use crate::{
    call::decide::{CALL_ENDED, CallMail},
    gate,
    model::{
        EVIDENCE, Failure, HeldBack, JobEvent, JobState, NewJob, OpenCall, OwnEvent, Parent,
        RECHECK, UndoReport, limits, small,
    },
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::time::Duration;
use tenure_kernel::{
    ids::EntityId,
    limits as kernel_limits,
    machine::{Cx, Decision, Input, Machine, Placement, Undecided},
    mail::{Mail, kinds},
    outbox::{Message, Target},
    stream::Body,
    timers::TimerChange,
};
use tenure_steps::{
    events::{
        CallAnswer, CallEnd, CallOutcome, ResultType, SettledBy, StepEvent, StepId, Verdict,
        WaitKind, WaitOutcome, What,
    },
    saga::Undo,
};

/// Kinds of mail that a job understands, beside the kernel's.
pub mod mail {
    /// Completes a wait, or is kept; body [`super::SignalMail`].
    pub const SIGNAL: &str = "signal";
    /// Stops it until it is resumed; body [`super::AskMail`].
    pub const PAUSE: &str = "pause";
    /// Lets it go on; body [`super::AskMail`].
    pub const RESUME: &str = "resume";
    /// Says what became of an unknown effect; body [`super::ResolveMail`].
    pub const RESOLVE: &str = "resolve";
    /// From a job to whom its terms name: how it ended; body [`super::EndedMail`].
    pub const ENDED: &str = "job_ended";
}

/// The body of a signal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SignalMail {
    /// The correlation key.
    pub key: String,
    /// Signalled, approved or rejected.
    pub outcome: WaitOutcome,
    /// What comes with it.
    #[serde(default)]
    pub payload: Value,
    /// From whom.
    #[serde(default)]
    pub by: Option<String>,
}

/// The body of a cancel, a pause or a resume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskMail {
    /// From whom.
    #[serde(default)]
    pub by: Option<String>,
    /// Why.
    #[serde(default)]
    pub why: Option<String>,
}

/// The body of a settlement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResolveMail {
    /// Which step.
    pub step: StepId,
    /// Which call of it, by key and number: what is said of one call must not settle a later one.
    #[serde(default)]
    pub of: Option<(String, u32)>,
    /// Happened, did not happen, or abandoned.
    pub verdict: Verdict,
    /// The result, where it happened.
    #[serde(default)]
    pub result: Value,
    /// From whom.
    #[serde(default)]
    pub by: Option<String>,
    /// In words.
    #[serde(default)]
    pub note: Option<String>,
}

/// The body of `child_ended`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChildMail {
    /// Its number among the parent's children.
    pub ordinal: u32,
    /// Its final status.
    pub status: String,
    /// Its output, where it is small.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "tenure_steps::canonical::present"
    )]
    pub output: Option<Value>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The body of `job_ended`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedMail {
    /// Which job.
    pub job: EntityId,
    /// Its final status.
    pub status: String,
}

/// Names of timers.
pub mod timers {
    use tenure_steps::events::StepId;

    /// The guard over a holder that does not move.
    pub const PROGRESS: &str = "progress";
    /// The time before which it does not begin.
    pub const START: &str = "start";
    /// A look again at something that may have cleared up.
    pub const RECHECK: &str = "recheck";

    /// A sleep or a retry of a step.
    pub fn step(step: &StepId) -> String {
        format!("t:{step}")
    }

    /// The deadline of a wait.
    pub fn wait(step: &StepId) -> String {
        format!("w:{step}")
    }
}

/// See [`tenure_kernel::machine::Machine::decide`].
pub fn decide(
    state: Option<&JobState>,
    input: &Input<'_>,
    cx: &Cx,
) -> Result<Decision<JobEvent>, Undecided> {
    let Some(state) = state else { return born(input, cx) };
    match input {
        Input::Create(_) | Input::CancelUnborn => Err(Undecided("the job exists".into())),
        Input::Mail(mail) => on_mail(state, mail, cx.id),
        Input::Timer(name) => on_timer(state, name, cx.id),
        Input::MustEnd => Ok(must_end(state, cx.id)),
        Input::TenureEnded(why) => Ok(lost_holder(state, why, cx.id)),
    }
}

fn born(input: &Input<'_>, cx: &Cx) -> Result<Decision<JobEvent>, Undecided> {
    match input {
        Input::Create(body) => {
            let bytes = body
                .inline()
                .ok_or_else(|| Undecided("load the body of the new job first".into()))?;
            let new: NewJob = serde_json::from_slice(bytes)
                .map_err(|e| Undecided(format!("a job can not be made from this: {e}")))?;
            if let Some(gate) = new.terms.gate.as_ref().filter(|g| g.id.is_none()) {
                let why = format!("terms.gate {:?} has no id: see Terms::of_tenant", gate.name);
                return Err(Undecided(why));
            }
            Ok(create(new, cx.id))
        }
        Input::CancelUnborn => {
            let (by, why) = (None, Some("cancelled before it was created".to_owned()));
            let (unknown, undone) = (Vec::new(), UndoReport::default());
            let event = OwnEvent::JobCancelled { by, why, unknown, abandoned: 0, undone };
            Ok(Decision::event(event.into()))
        }
        _ => Err(Undecided("there is no such job".into())),
    }
}

/// A start that is further away than this is told as `parked`.
const LONG_DELAY: Duration = Duration::from_secs(60);

/// The first events of a job: it is queued, or held back until its time and its gate let it through.
/// The time it is given counts from its start: a job for tomorrow that may take an hour ends tomorrow.
pub fn create(new: NewJob, id: EntityId) -> Decision<JobEvent> {
    let held_back = new.terms.start_in_ms.unwrap_or(0);
    let must_end_in = Duration::from_millis(new.must_end_in_ms.saturating_add(held_back));
    let queue = new.terms.queue_of(&new.flow, new.version);
    let placement = Placement { queue, priority: new.priority };
    let mut state = JobState::default();
    let mut decision = Decision::default().must_end_in(must_end_in);
    let delay = new.terms.start_in_ms.map(Duration::from_millis);
    push(&mut state, &mut decision, OwnEvent::JobCreated(Box::new(new)).into());
    if let (HeldBack::Start, Some(delay)) = (state.held_back, delay) {
        decision.timers.push(TimerChange::set(timers::START, delay));
        let event = match delay > LONG_DELAY {
            true => OwnEvent::JobParked { why: "start".into(), by: None },
            false => OwnEvent::JobWaiting { keys: held_back_by(&state) },
        };
        push(&mut state, &mut decision, event.into());
    }
    if state.held_back == HeldBack::Gate {
        decision.messages.extend(ask_gate(&state, id));
        let waits = OwnEvent::JobWaiting { keys: held_back_by(&state) };
        push(&mut state, &mut decision, waits.into());
    }
    decision.placement = Some(placement);
    decision
}

/// What a job that is held back waits for, as its `job_waiting` names it.
fn held_back_by(state: &JobState) -> Vec<String> {
    match (state.held_back, &state.terms.gate) {
        (HeldBack::Start, _) => vec!["start".to_owned()],
        (HeldBack::Gate, Some(gate)) => vec![format!("gate:{}", gate.name)],
        _ => Vec::new(),
    }
}

fn ask_gate(state: &JobState, id: EntityId) -> Option<Message> {
    let gate = state.terms.gate.as_ref()?;
    let said = gate::decide::Said::Ask {
        name: gate.name.clone(),
        job: id,
        priority: state.priority,
        limit: gate.limit,
    };
    let to = Target::Create { id: gate.id?, kind: gate::Gate::TABLE.kind.into() };
    Some(Message { to, kind: gate::mail::ASK.into(), body: Body::json(&said) })
}

/// Its time has come. With a gate it stands in the line from now on.
fn start(state: &mut JobState, decision: &mut Decision<JobEvent>, id: EntityId) {
    push(state, decision, OwnEvent::JobReady { why: "start".into() }.into());
    if state.held_back == HeldBack::Gate {
        decision.messages.extend(ask_gate(state, id));
    }
}

/// The gate has let it through. Mail comes at least once, and a job may be over its gate already: then it is nothing.
fn granted(state: &JobState) -> MailSays {
    match state.held_back {
        HeldBack::Gate => MailSays::Events(vec![OwnEvent::JobReady { why: "gate".into() }.into()]),
        _ => MailSays::Nothing("gate_granted: it does not wait for a gate".into()),
    }
}

/// What a mail leads to.
#[derive(Debug, PartialEq)]
pub enum MailSays {
    /// These events.
    Events(Vec<JobEvent>),
    /// Somebody wants it to end.
    Cancel(AskMail),
    /// Somebody wants it to pause.
    Pause(AskMail),
    /// Evidence came for this key: whoever settles should look.
    Evidence(String),
    /// A call that was handed over came back.
    CallEnded(Box<CallMail>),
    /// A timer of this name fired while the job was held.
    Timer(String),
    /// Its gate will never let it through, for this reason.
    GateClosed(String),
    /// Nothing, for this reason.
    Nothing(String),
}

/// Reads one mail.
pub fn read_mail(state: &JobState, mail: &Mail, id: EntityId) -> MailSays {
    fn parse<T: serde::de::DeserializeOwned>(mail: &Mail) -> Result<T, String> {
        let bytes = mail.body.inline().ok_or("its body is too large")?;
        serde_json::from_slice(bytes).map_err(|e| e.to_string())
    }
    let read = match mail.kind.as_str() {
        kinds::CANCEL => Ok(MailSays::Cancel(parse(mail).unwrap_or_default())),
        mail::PAUSE => Ok(MailSays::Pause(parse(mail).unwrap_or_default())),
        mail::RESUME => Ok(resume(state, parse(mail).unwrap_or_default())),
        mail::SIGNAL => parse(mail).map(|s| signal(state, s)),
        mail::RESOLVE => parse(mail).map(|r| resolve(state, r)),
        kinds::CHILD_ENDED => parse(mail).map(|c| child_ended(state, c)),
        kinds::EVIDENCE => parse::<Value>(mail)
            .map(|v| MailSays::Evidence(v["key"].as_str().unwrap_or_default().to_owned())),
        kinds::TIMER_DUE => parse::<Value>(mail)
            .map(|v| MailSays::Timer(v["timer"].as_str().unwrap_or_default().to_owned())),
        CALL_ENDED => parse(mail).map(|c| call_ended(state, c)),
        kinds::RETURNED => Ok(returned(state, mail, id)),
        gate::mail::GRANTED => Ok(granted(state)),
        // Mail that finds it over comes back; that it did not is what the gate wants to know.
        gate::mail::HOLDS => Ok(MailSays::Nothing("gate_holds: it is still there".into())),
        other => Err(format!("no job understands mail of kind {other:?}")),
    };
    read.unwrap_or_else(|why| MailSays::Nothing(format!("{}: {why}", mail.kind)))
}

fn resume(state: &JobState, ask: AskMail) -> MailSays {
    if !state.paused && !state.pausing && state.attention.is_none() {
        return MailSays::Nothing("resume: it is neither paused nor in attention".into());
    }
    let by = ask.by.unwrap_or_else(|| "somebody".into());
    MailSays::Events(vec![OwnEvent::JobResumed { by }.into()])
}

fn signal(state: &JobState, signal: SignalMail) -> MailSays {
    let SignalMail { key, outcome, payload, by } = signal;
    if let Some(wait) = state.waits_for(&key) {
        let step = wait.step.clone();
        // A plain signal to a person's wait is a yes; a yes or no to a plain wait is its payload.
        let outcome = match (wait.kind, outcome) {
            (WaitKind::Human, WaitOutcome::Signalled) => WaitOutcome::Approved,
            (WaitKind::Human, other) => other,
            (_, _) => WaitOutcome::Signalled,
        };
        let done = StepEvent::WaitCompleted { step, key, outcome, payload, by };
        return MailSays::Events(vec![done.into()]);
    }
    if state.heard.contains(&key) || state.kept.contains(&key) {
        return MailSays::Nothing(format!("signal: {key:?} was heard before"));
    }
    let bytes = state.kept.iter().map(String::len).sum::<usize>() + key.len();
    if state.kept.len() >= limits::KEPT_MAX || bytes > limits::KEYS_BYTES_MAX {
        return MailSays::Nothing(format!("signal: {key:?} is one too many to keep"));
    }
    MailSays::Events(vec![StepEvent::SignalKept { key, outcome, payload, by }.into()])
}

fn resolve(state: &JobState, resolve: ResolveMail) -> MailSays {
    let ResolveMail { step, of, verdict, result, by, note } = resolve;
    let meant = |c: &&OpenCall| {
        c.step == step
            && c.unknown.is_some()
            && of.as_ref().is_none_or(|(k, n)| *k == c.key && *n == c.call)
    };
    let Some(call) = state.calls.iter().find(meant) else {
        return MailSays::Nothing(format!("resolve: step {step} has no such unknown effect"));
    };
    // While it is being undone, what a person saw is no longer what is true.
    if call.undoing && state.attention.is_none() {
        return MailSays::Nothing(format!("resolve: step {step} is being undone"));
    }
    let note = match (by, note) {
        (Some(by), Some(note)) => Some(format!("{by}: {note}")),
        (by, note) => note.or(by),
    };
    let happened = verdict == Verdict::Happened;
    let (key, call) = (call.key.clone(), call.call);
    let mut events = vec![
        StepEvent::EffectSettled {
            step: step.clone(),
            key: key.clone(),
            call,
            verdict,
            by: SettledBy::Person,
            note,
            result: happened.then_some(result),
        }
        .into(),
    ];
    match verdict {
        Verdict::Happened => {
            events.push(StepEvent::CommandCommitted { step: step.clone(), key, call }.into());
            events.push(finished(step, ResultType::SideEffectCommitted, None, None));
        }
        Verdict::Abandoned => {
            let error = Some("a person gave this step up".to_owned());
            events.push(finished(step, ResultType::PermanentFailure, Some("abandoned"), error));
        }
        Verdict::DidNotHappen | Verdict::Compensated | Verdict::CalledAgain => {}
    }
    MailSays::Events(events)
}

/// A `node_finished`.
pub fn finished(
    step: StepId,
    result_type: ResultType,
    reason: Option<&str>,
    error: Option<String>,
) -> JobEvent {
    let reason = reason.map(str::to_owned);
    StepEvent::NodeFinished { step, result_type, reason, attempt: 0, error, failed_early: None }
        .into()
}

fn child_ended(state: &JobState, child: ChildMail) -> MailSays {
    let ChildMail { ordinal, status, output, error } = child;
    match state.children.iter().find(|c| c.0 == ordinal) {
        Some(open) => {
            let step = open.1.clone();
            let ended = StepEvent::ChildEnded { step, ordinal, status, output, error };
            MailSays::Events(vec![ended.into()])
        }
        None => MailSays::Nothing(format!("child_ended: child {ordinal} is not waited for")),
    }
}

fn call_ended(state: &JobState, mail: CallMail) -> MailSays {
    let waited_for = state
        .calls
        .iter()
        .any(|c| c.key == mail.key && c.call == mail.call && c.out == Some((mail.what, mail.nth)));
    match waited_for {
        true => MailSays::CallEnded(Box::new(mail)),
        false => {
            let (what, key, call) = (mail.what.as_str(), &mail.key, mail.call);
            MailSays::Nothing(format!("call_ended: {what} {call} of {key} is not waited for"))
        }
    }
}

/// What a call that came back leads to while nobody holds the job. The next holder goes on from there; a job that is
/// being cancelled has none, so what is certain is written down here.
fn came_back(state: &JobState, mail: CallMail) -> Vec<JobEvent> {
    let CallMail { step, key, call, what, answer, .. } = mail;
    // A result that is too large for mail is still in the call: it is read from there by whoever goes on from here, a
    // retry of the job say. A success without it would be one with another result.
    let in_call = answer.end == CallEnd::Completed && answer.result.is_none();
    let certain = answer.end.is_certain() && !in_call;
    // What undoes a step goes on: whether it is tried again is for the worker that undoes. And what undoes a call that
    // has just happened, only the flow can say: the worker that undoes tells it the result.
    let of_it = |c: &&OpenCall| c.key == key && c.call == call;
    let undoable = state.calls.iter().find(of_it).is_some_and(|c| c.undoable);
    let for_worker = Undo::is_undo(&step) || (undoable && answer.end == CallEnd::Completed);
    if state.cancel.is_none() || what != What::Call || !certain || for_worker {
        return vec![StepEvent::CallAnswered { step, key, call, what, answer }.into()];
    }
    if answer.end != CallEnd::Completed {
        let (outcome, result) = (CallOutcome::Cancelled, None);
        let over = StepEvent::ToolInvocationFinished {
            step: step.clone(),
            key,
            call,
            outcome,
            result,
            error: answer.error,
        };
        let error = Some("the job was cancelled".to_owned());
        let done = finished(step, ResultType::PermanentFailure, Some("cancelled"), error);
        return vec![over.into(), done];
    }
    let (outcome, result, error) = (CallOutcome::Success, answer.result, None);
    vec![
        StepEvent::ToolInvocationFinished {
            step: step.clone(),
            key: key.clone(),
            call,
            outcome,
            result,
            error,
        }
        .into(),
        StepEvent::CommandCommitted { step: step.clone(), key, call }.into(),
        finished(step, ResultType::SideEffectCommitted, None, None),
    ]
}

/// A message came back: a child or a call that could not be created. A cancel that found nobody is of no interest.
fn returned(state: &JobState, mail: &Mail, id: EntityId) -> MailSays {
    let body: Value =
        mail.body.inline().and_then(|b| serde_json::from_slice(b).ok()).unwrap_or_default();
    let why = body["why"].as_str().unwrap_or("it could not be delivered").to_owned();
    let to: Option<EntityId> = body["to"].as_str().and_then(|t| t.parse().ok());
    if body["kind"] == gate::mail::ASK && state.held_back == HeldBack::Gate {
        return MailSays::GateClosed(why);
    }
    let child = state.children.iter().find(|c| to == Some(JobState::child_id(id, c.0)));
    if body["kind"] == kinds::CANCEL {
        return MailSays::Nothing(format!("returned: {why}"));
    }
    if let Some(child) = child {
        let error = Some(format!("the child could not be created: {why}"));
        let (ordinal, status) = (child.0, "failed".to_owned());
        return child_ended(state, ChildMail { ordinal, status, output: None, error });
    }
    match state.calls_out(id).find(|(call, _)| to == Some(*call)) {
        Some((_, open)) => {
            // It never was: nobody can have begun it.
            let (what, nth) = open.out.unwrap_or_default();
            let error = Some(format!("the call could not be created: {why}"));
            let end = CallEnd::NotCalled;
            let answer = CallAnswer { end, result: None, error, session: None };
            let (step, key, call) = (open.step.clone(), open.key.clone(), open.call);
            MailSays::CallEnded(Box::new(CallMail { step, key, call, what, nth, answer }))
        }
        None => MailSays::Nothing(format!("returned: {why}")),
    }
}

fn on_mail(state: &JobState, mail: &[Mail], id: EntityId) -> Result<Decision<JobEvent>, Undecided> {
    let mut state = state.clone();
    let (mut decision, mut regardless) = (Decision::default(), false);
    for mail in mail {
        match read_mail(&state, mail, id) {
            MailSays::Cancel(ask)
                if state.cancel.is_none() && nothing_out(&state) && !state.has_to_undo() =>
            {
                state.cancel = Some((ask.by, ask.why));
                return Ok(cancelled(&state, decision, id));
            }
            // What lies behind it in the box is read too, now or never: maybe the end of the last child, without
            // which it would wait until its time is up.
            MailSays::Cancel(ask) if state.cancel.is_none() => {
                cancel(&mut state, &mut decision, ask, id);
                regardless = true;
            }
            MailSays::Cancel(_) => note(&mut state, &mut decision, "cancel: it is being cancelled"),
            MailSays::Pause(_)
                if state.paused || state.attention.is_some() || state.cancel.is_some() =>
            {
                note(&mut state, &mut decision, "pause: it does not run");
            }
            MailSays::Pause(ask) => {
                let park = OwnEvent::JobParked { why: "pause".into(), by: ask.by };
                push(&mut state, &mut decision, park.into());
                // Whoever resumes it sets them again from what is recorded. Not the start: that is what it waits for
                // while nobody has ever held it, and a pause does not stop its clock.
                if state.held_back == HeldBack::No {
                    decision.timers.push(TimerChange::ClearAll);
                }
            }
            MailSays::GateClosed(why) => {
                let gate = state.terms.gate.as_ref().map_or("", |g| g.name.as_str());
                let failure = Failure {
                    reason: "gate_closed".into(),
                    error: format!("the gate {gate:?} can not let it through: {why}"),
                    ..Failure::default()
                };
                let end = OwnEvent::JobFailed(failure);
                return Ok(finish(&state, decision, end, id).regardless());
            }
            MailSays::Evidence(_) if state.attention.is_some() => {
                let event = OwnEvent::JobResumed { by: EVIDENCE.into() };
                push(&mut state, &mut decision, event.into());
                decision.timers.push(TimerChange::clear(timers::RECHECK));
            }
            MailSays::Evidence(key) => {
                note(&mut state, &mut decision, &format!("evidence: {key} is settled"));
            }
            // It fired while the job was held, and nobody holds it any more: the timer is still set.
            MailSays::Timer(name) => {
                note(
                    &mut state,
                    &mut decision,
                    &format!("timer_due: {name} is served by the loop"),
                );
            }
            MailSays::Nothing(why) => note(&mut state, &mut decision, &why),
            MailSays::CallEnded(mail) => {
                for event in came_back(&state, *mail) {
                    push(&mut state, &mut decision, event);
                }
            }
            MailSays::Events(events) => {
                for event in events {
                    if let JobEvent::Step(StepEvent::WaitCompleted { step, .. }) = &event {
                        decision.timers.push(TimerChange::clear(timers::wait(step)));
                    }
                    if let JobEvent::Own(OwnEvent::JobResumed { .. }) = &event {
                        decision.timers.push(TimerChange::clear(timers::RECHECK));
                    }
                    push(&mut state, &mut decision, event);
                }
            }
        }
    }
    if state.cancel.is_some() && nothing_out(&state) {
        return Ok(undo_or_end(&mut state, decision, false, id));
    }
    repark(&mut state, &mut decision);
    Ok(if regardless { decision.regardless() } else { decision })
}

/// Whether a job that is being cancelled waits for nobody any more.
fn nothing_out(state: &JobState) -> bool {
    state.children.is_empty() && !state.is_out()
}

/// A paused job takes in what comes, and stays where it is. So does one that is held back before its first step.
fn repark(state: &mut JobState, decision: &mut Decision<JobEvent>) {
    let woke = |e: &JobEvent| {
        matches!(
            e,
            JobEvent::Step(
                StepEvent::WaitCompleted { .. }
                    | StepEvent::TimerFired { .. }
                    | StepEvent::ChildEnded { .. }
                    | StepEvent::CallAnswered { .. }
                    | StepEvent::EffectSettled { .. }
            ) | JobEvent::Own(OwnEvent::JobReady { .. } | OwnEvent::JobResumed { .. })
        )
    };
    let parked = |e: &JobEvent| matches!(e, JobEvent::Own(OwnEvent::JobParked { .. }));
    let last = |is: &dyn Fn(&JobEvent) -> bool| decision.events.iter().rposition(is);
    if state.paused && state.attention.is_none() && last(&woke) > last(&parked) {
        let park = OwnEvent::JobParked { why: "pause".into(), by: None };
        push(state, decision, park.into());
    } else if state.held_back != HeldBack::No && last(&woke) > last(&parked) {
        let waits = OwnEvent::JobWaiting { keys: held_back_by(state) };
        push(state, decision, waits.into());
    }
}

fn push(state: &mut JobState, decision: &mut Decision<JobEvent>, event: JobEvent) {
    <crate::model::Job as tenure_kernel::machine::Machine>::apply(state, &event);
    decision.events.push(event);
}

fn note(state: &mut JobState, decision: &mut Decision<JobEvent>, what: &str) {
    let what = kernel_limits::clip(what, 256).to_owned();
    push(state, decision, OwnEvent::MailNoted { what }.into());
}

/// Somebody wants it to end, nobody holds it, and there is something to stop or to undo first.
fn cancel(state: &mut JobState, decision: &mut Decision<JobEvent>, ask: AskMail, id: EntityId) {
    decision.messages.extend(cancel_others(state, id));
    push(state, decision, OwnEvent::JobCancelling { by: ask.by, why: ask.why }.into());
    decision.timers.push(TimerChange::ClearAll);
}

/// It is cancelled and waits for nobody: a worker undoes what is to be undone, which needs its tools, and finds out before
/// that what became of calls that would have to be undone as well; else it ends.
/// Workers that are lost over it are counted as always.
fn undo_or_end(
    state: &mut JobState,
    mut decision: Decision<JobEvent>,
    lost: bool,
    id: EntityId,
) -> Decision<JobEvent> {
    if !state.has_to_undo() || (lost && state.takeovers >= state.takeovers_max) {
        return cancelled(state, decision, id);
    }
    push(state, &mut decision, OwnEvent::JobUndoing { lost }.into());
    decision.regardless()
}

fn cancelled(state: &JobState, decision: Decision<JobEvent>, id: EntityId) -> Decision<JobEvent> {
    let (by, why) = state.cancel.clone().unwrap_or_default();
    let abandoned = u32::try_from(state.children.len()).unwrap_or(u32::MAX);
    let unknown = state.open_steps();
    let undone = UndoReport { untried: state.undos, ..UndoReport::default() };
    let end = OwnEvent::JobCancelled { by, why, unknown, abandoned, undone };
    finish(state, decision, end, id).regardless()
}

/// The final event, and what is said with it: to the parent how it ended, to open children and calls to stop.
pub fn finish(
    state: &JobState,
    mut decision: Decision<JobEvent>,
    end: OwnEvent,
    id: EntityId,
) -> Decision<JobEvent> {
    decision.messages.extend(cancel_others(state, id));
    if let Some(parent) = state.parent {
        decision.messages.push(report(parent, &end));
    }
    // Whoever has asked a gate has a permit, or a place in its line, or one on the way.
    let asked = state.held_back != HeldBack::Start;
    if let Some(gate) = state.terms.gate.as_ref().and_then(|g| g.id).filter(|_| asked) {
        let said = gate::decide::Said::Release { job: id };
        decision.messages.push(Message::mail(gate, gate::mail::RELEASE, Body::json(&said)));
    }
    if let Some(to) = state.terms.tell {
        let status = match &end {
            OwnEvent::JobCompleted { .. } => "completed",
            OwnEvent::JobFailed(_) => "failed",
            _ => "cancelled",
        };
        let told = EndedMail { job: id, status: status.to_owned() };
        decision.messages.push(Message::mail(to, mail::ENDED, Body::json(&told)));
    }
    decision.events.push(end.into());
    decision
}

fn report(parent: Parent, end: &OwnEvent) -> Message {
    let ordinal = parent.ordinal;
    let told = match end {
        OwnEvent::JobCompleted { output, .. } => {
            let output = small(output, limits::OUTPUT_IN_HEAD_BYTES_MAX);
            ChildMail { ordinal, status: "completed".into(), output, error: None }
        }
        OwnEvent::JobFailed(f) => {
            let error = Some(kernel_limits::clip(&f.error, 2_048).to_owned());
            ChildMail { ordinal, status: "failed".into(), output: None, error }
        }
        _ => ChildMail { ordinal, status: "cancelled".into(), output: None, error: None },
    };
    Message::mail(parent.job, kinds::CHILD_ENDED, Body::json(&told))
}

/// Tells all open children to stop.
pub fn cancel_children(state: &JobState, id: EntityId) -> Vec<Message> {
    let ask = AskMail { by: Some("parent".into()), why: Some("its parent ends".into()) };
    let tell = |c: &crate::model::OpenChild| {
        Message::mail(JobState::child_id(id, c.0), kinds::CANCEL, Body::json(&ask))
    };
    state.children.iter().map(tell).collect()
}

/// Tells one call that its job does not want it any more.
pub fn cancel_call(call: EntityId, why: &str) -> Message {
    let ask = AskMail { by: Some("job".into()), why: Some(why.into()) };
    Message::mail(call, kinds::CANCEL, Body::json(&ask))
}

/// Whether a call that is out takes something back. Nobody stops that half way: an end of the job wants it too.
pub fn takes_back(call: &OpenCall) -> bool {
    Undo::is_undo(&call.step) || call.out.is_some_and(|(what, _)| what == What::Compensate)
}

/// Tells all open children to stop, and all calls that other workers have.
pub fn cancel_others(state: &JobState, id: EntityId) -> Vec<Message> {
    let out = state.calls_out(id).filter(|(_, call)| !takes_back(call));
    let calls = out.map(|(call, _)| cancel_call(call, "its job ends"));
    cancel_children(state, id).into_iter().chain(calls).collect()
}

fn on_timer(state: &JobState, name: &str, id: EntityId) -> Result<Decision<JobEvent>, Undecided> {
    let mut state = state.clone();
    let mut decision = Decision::default();
    match timer_events(&state, name) {
        Some(event) => push(&mut state, &mut decision, event),
        None if name == timers::START && state.held_back == HeldBack::Start => {
            start(&mut state, &mut decision, id);
        }
        None if name == timers::PROGRESS => {
            // A guard: the holder renews, and does not move. Its tenure ends with this commit.
            return Ok(lost_holder(&state, "no progress past the step timeout", id));
        }
        None if name == timers::RECHECK && state.attention.is_some() => {
            push(&mut state, &mut decision, OwnEvent::JobResumed { by: RECHECK.into() }.into());
        }
        // An undo that only time can settle is looked at again.
        None if name == timers::RECHECK && state.cancel.is_some() => {}
        None => note(&mut state, &mut decision, &format!("timer {name}: nobody waits for it")),
    }
    if state.cancel.is_some() && nothing_out(&state) && state.has_to_undo() {
        return Ok(undo_or_end(&mut state, decision, false, id));
    }
    repark(&mut state, &mut decision);
    Ok(decision)
}

/// What a timer of a step leads to.
pub fn timer_events(state: &JobState, name: &str) -> Option<JobEvent> {
    if let Some(step) = name.strip_prefix("t:") {
        let open = state.timers.iter().find(|t| t.step.0 == step)?;
        return Some(StepEvent::TimerFired { step: open.step.clone() }.into());
    }
    let step = name.strip_prefix("w:")?;
    let open = state.waits.iter().find(|w| w.step.0 == step)?;
    let (step, key) = (open.step.clone(), open.key.clone());
    let outcome = WaitOutcome::Expired;
    Some(StepEvent::WaitCompleted { step, key, outcome, payload: Value::Null, by: None }.into())
}

fn must_end(state: &JobState, id: EntityId) -> Decision<JobEvent> {
    let unknown = state.open_steps();
    let mut decision = Decision::default();
    for step in &unknown {
        let error =
            Some("the job's time was up before anybody knew what became of this call".into());
        let done =
            finished(step.clone(), ResultType::PermanentFailure, Some("unknown_outcome"), error);
        decision.events.push(done);
    }
    let attention = state.attention.as_ref();
    let (reason, error) = match (unknown.first(), attention) {
        (Some(step), _) => (
            "unknown_outcome",
            format!("must_end_by passed, and nobody knows what became of step {step}"),
        ),
        (None, Some(a)) => {
            (a.reason.as_str(), format!("must_end_by passed in attention: {}", a.why))
        }
        (None, None) if state.undos > 0 && state.cancel.is_some() => (
            "deadline_passed",
            format!(
                "must_end_by passed while it was cancelled; {} steps were not undone",
                state.undos
            ),
        ),
        (None, None) => ("deadline_passed", "must_end_by passed".to_owned()),
    };
    let failure = Failure {
        reason: reason.to_owned(),
        error,
        step: unknown.first().cloned().or_else(|| attention.and_then(|a| a.step.clone())),
        unknown,
        abandoned: u32::try_from(state.children.len()).unwrap_or(u32::MAX),
    };
    finish(state, decision, OwnEvent::JobFailed(failure), id)
}

/// The holder is gone, or was overruled; `tenure_ended` is written in front of this.
fn lost_holder(state: &JobState, why: &str, id: EntityId) -> Decision<JobEvent> {
    let decision = Decision::default().timer(TimerChange::clear(timers::PROGRESS));
    if state.cancel.is_some() {
        return match nothing_out(state) {
            true => undo_or_end(&mut state.clone(), decision, true, id),
            false => decision,
        };
    }
    if state.takeovers >= state.takeovers_max {
        let failure = Failure {
            reason: "takeovers_spent".into(),
            error: format!("{} workers were lost while they ran it", state.takeovers + 1),
            step: state.calls.first().map(|c| c.step.clone()),
            unknown: state.open_steps(),
            abandoned: u32::try_from(state.children.len()).unwrap_or(u32::MAX),
        };
        return finish(state, decision, OwnEvent::JobFailed(failure), id);
    }
    decision.and(OwnEvent::JobRequeued { why: why.to_owned() }.into())
}
