//! What follows from mail, timers and lost holders, from the head alone. The due loop decides this for a
//! job without a holder; the holder asks the same functions about its mail.
//!
//! | room | what it holds |
//! |---|---|
//! | `bodies` | kinds of mail, and what each brings |
//! | `read` | what one mail leads to |
//! | `correct` | what follows when a person takes back what a person said |
//! | `ends` | cancelled, out of time, its worker lost; what an end says to others |

mod bodies;
mod correct;
mod ends;
mod read;

pub use bodies::{AskMail, ChildMail, EndedMail, ResolveMail, SignalMail, mail};
pub use correct::{Correction, correct};
pub use ends::{
    TAKEOVERS_SPENT, cancel_call, cancel_children, cancel_others, finish, lost_too_many, stopped,
    takes_back,
};
pub(crate) use read::given_up;
pub use read::{MailSays, finished, read_mail};

use crate::{
    gate,
    model::{
        EVIDENCE, Failure, GATE_GIVEN_BACK, HeldBack, JobEvent, JobState, NewJob, OwnEvent,
        RECHECK, UndoReport,
    },
};
use ends::{cancel, cancelled, lost_holder, must_end, undo_or_end};
use read::came_back;
use serde_json::Value;
use std::time::Duration;
use tenure_kernel::{
    ids::EntityId,
    limits as kernel_limits,
    machine::{Cx, Decision, Input, Machine, Placement, Undecided},
    mail::Mail,
    outbox::{Message, Target},
    stream::Body,
    timers::TimerChange,
};
use tenure_steps::events::{StepEvent, WaitOutcome};

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
        Input::Timer(name) => on_timer(state, name, cx),
        Input::MustEnd => Ok(must_end(state, cx.id)),
        Input::TenureEnded(why) => Ok(lost_holder(state, why, cx.id, cx.now)),
    }
}

fn born(input: &Input<'_>, cx: &Cx) -> Result<Decision<JobEvent>, Undecided> {
    match input {
        Input::Create(body) => {
            let bytes = body
                .inline()
                .ok_or_else(|| Undecided("load the body of the new job first".into()))?;
            let new: NewJob = tenure_kernel::stored::from_slice(bytes)
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
        (HeldBack::Gate | HeldBack::Resume, Some(gate)) => vec![format!("gate:{}", gate.name)],
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

fn give_gate_back(state: &JobState, id: EntityId) -> Option<Message> {
    let gate = state.terms.gate.as_ref()?.id?;
    let said = gate::decide::Said::Release { job: id, paused: true };
    Some(Message::mail(gate, gate::mail::RELEASE, Body::json(&said)))
}

/// Its time has come. With a gate it stands in the line from now on.
fn start(state: &mut JobState, decision: &mut Decision<JobEvent>, id: EntityId) {
    push(state, decision, OwnEvent::JobReady { why: "start".into() }.into());
    if state.held_back == HeldBack::Gate {
        decision.messages.extend(ask_gate(state, id));
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
            MailSays::GateNotNow => {
                let park = OwnEvent::JobParked { why: GATE_GIVEN_BACK.into(), by: None };
                push(&mut state, &mut decision, park.into());
                decision.messages.extend(give_gate_back(&state, id));
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
                    let gave_back = state.held_back == HeldBack::Resume;
                    push(&mut state, &mut decision, event);
                    if gave_back && state.held_back == HeldBack::Gate {
                        decision.messages.extend(ask_gate(&state, id));
                    }
                }
            }
        }
    }
    if state.cancel.is_some() && nothing_out(&state) {
        return Ok(undo_or_end(&mut state, decision, None, id));
    }
    repark(&mut state, &mut decision);
    Ok(if regardless { decision.regardless() } else { decision })
}

/// Who said something, and in which words.
fn note_of(by: Option<String>, note: Option<String>) -> Option<String> {
    match (by, note) {
        (Some(by), Some(note)) => Some(format!("{by}: {note}")),
        (by, note) => note.or(by),
    }
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

fn on_timer(state: &JobState, name: &str, cx: &Cx) -> Result<Decision<JobEvent>, Undecided> {
    let id = cx.id;
    let mut state = state.clone();
    let mut decision = Decision::default();
    match timer_events(&state, name) {
        Some(event) => push(&mut state, &mut decision, event),
        None if name == timers::START && state.held_back == HeldBack::Start => {
            start(&mut state, &mut decision, id);
        }
        None if name == timers::PROGRESS => {
            // A guard: the holder renews, and does not move. Its tenure ends with this commit.
            return Ok(lost_holder(&state, "no progress past the step timeout", id, cx.now));
        }
        None if name == timers::RECHECK && state.attention.is_some() => {
            push(&mut state, &mut decision, OwnEvent::JobResumed { by: RECHECK.into() }.into());
        }
        // An undo that only time can settle is looked at again.
        None if name == timers::RECHECK && state.cancel.is_some() => {}
        None => note(&mut state, &mut decision, &format!("timer {name}: nobody waits for it")),
    }
    if state.cancel.is_some() && nothing_out(&state) && state.has_to_undo() {
        return Ok(undo_or_end(&mut state, decision, None, id));
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
