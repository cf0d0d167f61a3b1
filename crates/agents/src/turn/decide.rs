//! What follows from mail, timers and lost workers, from the head alone. The due loop asks; a worker that holds the
//! turn asks the same of its mail ([`on_mail`]), so that a result or a stop means the same whoever reads it.

use super::{
    end::{Ending, end, state_event},
    model::{Applied, Dead, NewTurn, Turn, TurnEvent, TurnState, Wait, WaitFor},
    table::{DISPATCHED, QUEUED, READY, RUNNING, SUSPENDED},
    waits::{self, Match},
};
use crate::{
    limits, queue_of,
    rules::{RING_PAUSE_MAX, on, timer},
    wakeup_subject,
    words::{
        Dispatch, EndStatus, Enqueue, Fault, ForceFinish, JobEnded, Progress, Refused, ResumeNow,
        Returned, SettleItem, Stop, ToolResult, TurnResult, kinds,
    },
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::time::Duration;
use tenure_kernel::{
    ids::{EntityId, MailId},
    limits::{KEY_BYTES_MAX, clip},
    machine::{Cx, Decision, Input, Machine, Placement, Undecided},
    mail::{Mail, kinds as kernel},
    outbox::{Message, Target},
    stream::Body,
    time::Timestamp,
    timers::TimerChange,
};

/// The code of a result that came before its call, as another one of the same call had.
pub const ALREADY_KEPT: &str = "already_kept";

/// What follows from an input.
pub fn decide(
    state: Option<&TurnState>,
    input: &Input<'_>,
    cx: &Cx,
) -> Result<Decision<TurnEvent>, Undecided> {
    let Some(state) = state else { return birth(input, cx) };
    match input {
        Input::Mail(mail) => Ok(on_mail(state, mail, cx)),
        Input::Timer(name) => Ok(on_timer(state, name, cx)),
        Input::TenureEnded(why) => Ok(left(state, why, cx)),
        Input::MustEnd => {
            let why = "its time was up, whatever it waited for";
            Ok(end(state, cx, Ending::forced(EndStatus::Timeout, "must_end_by", why)))
        }
        Input::Create(_) | Input::CancelUnborn => {
            Err(Undecided("a turn is created once".to_owned()))
        }
    }
}

fn birth(input: &Input<'_>, cx: &Cx) -> Result<Decision<TurnEvent>, Undecided> {
    // A stop that overtook the creation is answered by the turn once it is there: a turn is not born over, because its
    // agent would never hear of it.
    let Input::Create(body) = input else { return Ok(Decision::default()) };
    let bytes =
        body.inline().ok_or_else(|| Undecided("the wish is a blob: load it first".into()))?;
    let new: NewTurn = tenure_kernel::stored::from_slice(bytes)
        .map_err(|e| Undecided(format!("this is no new turn: {e}")))?;
    Ok(create(new, cx.id, false))
}

/// The birth of a turn: in line, and its agent is told. `by_age`: see [`Enqueue`].
pub fn create(new: NewTurn, id: EntityId, by_age: bool) -> Decision<TurnEvent> {
    let only_if_idle = new.sort == super::model::Sort::UiAction;
    let asks = Enqueue { turn: id, only_if_idle, by_age };
    let placement = Placement { queue: queue_of(&new.target), priority: new.priority };
    let must_end_in = Duration::from_millis(new.must_end_in_ms);
    let message = Message::mail(new.agent, kinds::ENQUEUE, Body::json(&asks));
    let mut decision = Decision::event(TurnEvent::TurnCreated(Box::new(new)))
        .send(message)
        .must_end_in(must_end_in);
    decision.placement = Some(placement);
    decision
}

fn read<T: DeserializeOwned>(mail: &Mail) -> Result<T, String> {
    let bytes = mail.body.inline().ok_or("it is too large to be read here")?;
    tenure_kernel::stored::from_slice(bytes).map_err(|e| e.to_string())
}

/// What follows from mail, in order. All of it is read, whatever it says.
pub fn on_mail(state: &TurnState, mail: &[Mail], cx: &Cx) -> Decision<TurnEvent> {
    let status = cx.status.map_or(QUEUED, |s| s.name());
    let mut desk =
        Desk { state: state.clone(), status, cx, out: Decision::default(), ends_at: None };
    for one in mail {
        match desk.ends_at {
            Some(_) => desk.too_late(one),
            None => desk.read(one),
        }
    }
    desk.resume_if_answered();
    desk.out
}

/// Goes on in the same commit where a suspend finds everything answered. `state` is the turn after the decision so far.
pub(super) fn resume_if_answered(
    state: TurnState,
    cx: &Cx,
    out: Decision<TurnEvent>,
) -> Decision<TurnEvent> {
    let mut desk = Desk { state, status: SUSPENDED, cx, out, ends_at: None };
    desk.resume_if_answered();
    desk.out
}

fn dead(mail: &Mail, code: &str, why: &str) -> Dead {
    let body = mail.body.inline().and_then(|b| tenure_kernel::stored::from_slice(b).ok());
    Dead {
        item: mail.id.0.clone(),
        kind: mail.kind.clone(),
        code: code.to_owned(),
        why: clip(why, limits::ERROR_BYTES_MAX).to_owned(),
        body: body.unwrap_or(Value::Null),
        kept: false,
    }
}

/// A decision in the making: what has happened so far is applied at once, so that the next mail finds it.
struct Desk<'a> {
    state: TurnState,
    status: &'static str,
    cx: &'a Cx,
    out: Decision<TurnEvent>,
    /// Where the end stands among the events, once there is one.
    ends_at: Option<usize>,
}

impl Desk<'_> {
    fn say(&mut self, event: TurnEvent) {
        Turn::apply(&mut self.state, &event);
        self.out.events.push(event);
    }

    fn note(&mut self, mail: &Mail, why: &str) {
        self.note_of(mail, why, None);
    }

    /// Mail of somebody who was asked under this number, and is over.
    fn note_of(&mut self, mail: &Mail, why: &str, ordinal: Option<u32>) {
        // Nothing is said after the end.
        if self.ends_at.is_none() {
            let (item, kind) = (mail.id.0.clone(), mail.kind.clone());
            self.say(TurnEvent::ItemNoted { item, kind, why: why.to_owned(), ordinal });
        }
    }

    fn bury(&mut self, mail: &Mail, code: &str, why: &str) {
        self.say(TurnEvent::ItemDead(dead(mail, code, why)));
    }

    /// Mail behind an end, in the same commit. It is read with the rest, and must not be gone without a trace: what it was
    /// stands before the end, because nothing does after it.
    fn too_late(&mut self, mail: &Mail) {
        let Some(at) = self.ends_at else { return };
        let why = "the turn was over before it was read";
        let event = match mail.kind.as_str() {
            kinds::TOOL_RESULT | kinds::FORCE_FINISH => {
                TurnEvent::ItemDead(dead(mail, "turn_over", why))
            }
            _ => {
                let (item, kind) = (mail.id.0.clone(), mail.kind.clone());
                TurnEvent::ItemNoted { item, kind, why: why.to_owned(), ordinal: None }
            }
        };
        self.out.events.insert(at, event);
        self.ends_at = Some(at + 1);
    }

    fn end(&mut self, ending: Ending) {
        let mut last = end(&self.state, self.cx, ending);
        self.ends_at = Some(self.out.events.len());
        self.out.events.append(&mut last.events);
        self.out.messages.append(&mut last.messages);
        self.out.timers = last.timers;
        self.out.regardless = true;
    }

    fn read(&mut self, mail: &Mail) {
        match mail.kind.as_str() {
            kinds::DISPATCH => self.with::<Dispatch>(mail, |desk, d| desk.dispatch(mail, d)),
            kinds::REFUSED => self.with::<Refused>(mail, |desk, r| {
                desk.end(Ending {
                    forced: None,
                    ..Ending::forced(EndStatus::Failed, &r.code, &r.why)
                });
            }),
            kinds::TOOL_RESULT => self.with::<ToolResult>(mail, |desk, r| desk.result(mail, r)),
            kinds::PROGRESS => self.with::<Progress>(mail, |desk, p| desk.progress(mail, p)),
            kinds::TURN_RESULT => self.with::<TurnResult>(mail, |desk, r| {
                let ordinal = r.ordinal;
                desk.answer(mail, ordinal, |wait| match wait.waits_for {
                    WaitFor::Turn(_) | WaitFor::Join(_) => Some(waits::by_turn(wait, r)),
                    WaitFor::Job(_) | WaitFor::Message => None,
                });
            }),
            kernel::CHILD_ENDED => self.with::<JobEnded>(mail, |desk, r| {
                let ordinal = r.ordinal;
                desk.answer(mail, ordinal, |wait| match wait.waits_for {
                    WaitFor::Job(_) => Some(waits::by_job(wait, r)),
                    _ => None,
                });
            }),
            kernel::RETURNED => self.with::<Returned>(mail, |desk, r| desk.returned(mail, &r)),
            kinds::STOP | kernel::CANCEL => self.with::<Stop>(mail, |desk, s| desk.stop(mail, s)),
            kinds::FORCE_FINISH => self.with::<ForceFinish>(mail, |desk, f| desk.force_finish(f)),
            kinds::RESUME_NOW => self.with::<ResumeNow>(mail, |desk, r| desk.resume_now(mail, &r)),
            kinds::SETTLE => self.with::<SettleItem>(mail, |desk, s| desk.settle(mail, s)),
            kinds::STILL => self.note(mail, "it is there"),
            kernel::TIMER_DUE => self.note(mail, "a timer that is no longer its own"),
            kernel::EVIDENCE => self.note(mail, "evidence is kept beside the turn"),
            other => self.bury(mail, "unknown_type", &format!("a turn has no use for {other:?}")),
        }
    }

    fn with<T: DeserializeOwned>(&mut self, mail: &Mail, act: impl FnOnce(&mut Self, T)) {
        match read::<T>(mail) {
            Ok(said) => act(self, said),
            Err(why) => self.bury(mail, "unreadable", &why),
        }
    }

    fn dispatch(&mut self, mail: &Mail, dispatch: Dispatch) {
        if self.status != QUEUED {
            return self.note(mail, "it was dispatched before");
        }
        let turn_epoch = dispatch.turn_epoch;
        self.say(TurnEvent::TurnDispatched { turn_epoch });
        self.status = DISPATCHED;
        let rules = self.state.rules;
        let mut timers = wanted(&self.state);
        timers.extend(on(rules.dispatched_retry_ms).map(|d| TimerChange::set(timer::RETRY, d)));
        timers.extend(
            on(rules.dispatched_timeout_ms).map(|d| TimerChange::set(timer::DISPATCHED, d)),
        );
        // A claim is a commit of the kernel's and sets no timer. These count from it once there is one.
        let longest = rules.dispatched_timeout_ms + rules.active_reap_ms;
        timers.push(TimerChange::guard(timer::REAP, Duration::from_millis(longest)));
        // Behind the reaper, who is first where both come at once.
        timers.extend(
            on(rules.inbox_processing_ms).map(|d| TimerChange::guard(timer::PROCESSING, d)),
        );
        self.out.timers.append(&mut timers);
        let event = state_event(&self.state, self.cx, "dispatched", turn_epoch, &json!({}));
        self.out.messages.push(event);
    }

    fn result(&mut self, mail: &Mail, said: ToolResult) {
        let (wait, call) = (said.wait.as_deref(), said.tool_call_id.as_deref());
        match waits::find(&self.state, self.status == SUSPENDED, wait, call, said.turn_epoch) {
            Match::Open(wait) => {
                let applied = waits::by_message(wait, &said);
                self.apply(applied);
            }
            Match::Over(why) => self.note(mail, why),
            Match::Early if self.status == QUEUED => {
                self.bury(mail, "unknown_call", "the turn has not begun");
            }
            Match::Early if self.state.early.len() >= limits::EARLY_MAX => {
                self.bury(mail, "too_many_early", "too many results came before their calls");
            }
            Match::Early if call.is_some_and(|c| self.state.early.iter().any(|e| e == c)) => {
                let why = "another result of this call is kept already, and the first counts";
                self.bury(mail, ALREADY_KEPT, why);
            }
            Match::Early => {
                let item = mail.id.0.clone();
                self.say(TurnEvent::ResultKept { item, result: Box::new(said) });
            }
            Match::Dead(code, why) => self.bury(mail, code, &why),
        }
    }

    /// An answer of somebody whom the turn itself has asked, under a number.
    fn answer(&mut self, mail: &Mail, ordinal: u32, by: impl FnOnce(&Wait) -> Option<Applied>) {
        let open = self.state.waits.iter().find(|w| w.ordinal == ordinal);
        match open.map(by) {
            Some(Some(applied)) => self.apply(applied),
            Some(None) => self.bury(mail, "not_by_message", "somebody else answers this wait"),
            None => self.note_of(mail, "the wait is over", Some(ordinal)),
        }
    }

    fn apply(&mut self, applied: Applied) {
        self.out.timers.push(TimerChange::clear(format!("{}{}", timer::WAIT, applied.wait)));
        self.say(TurnEvent::ResultApplied(applied));
    }

    fn progress(&mut self, mail: &Mail, said: Progress) {
        let (wait, call) = (said.wait.as_deref(), said.tool_call_id.as_deref());
        match waits::find(&self.state, self.status == SUSPENDED, wait, call, said.turn_epoch) {
            Match::Open(wait) => {
                let (id, after) = (wait.id.clone(), on(wait.timeout_ms));
                let deadline = after.map(|d| self.cx.now + d);
                let note = clip(&said.note, limits::ERROR_BYTES_MAX).to_owned();
                let name = format!("{}{id}", timer::WAIT);
                self.out.timers.extend(after.map(|d| TimerChange::set(name, d)));
                self.say(TurnEvent::WaitProgress { wait: id, deadline, note });
            }
            Match::Over(why) => self.note(mail, why),
            Match::Early => self.note(mail, "the turn is not suspended"),
            Match::Dead(code, why) => self.bury(mail, code, &why),
        }
    }

    fn returned(&mut self, mail: &Mail, said: &Returned) {
        if said.kind == kinds::ENQUEUE {
            let why = format!("there is no agent {:?}", self.state.agent_name);
            return self.end(Ending::failed("unknown_agent", &why));
        }
        let lost = self.state.waits.iter().find(|w| match w.waits_for {
            WaitFor::Job(id) | WaitFor::Turn(id) | WaitFor::Join(id) => Some(id) == said.to,
            WaitFor::Message => said.to.is_none() && said.wait.as_deref() == Some(&w.id),
        });
        match lost.map(|wait| waits::undelivered(wait, &said.why)) {
            Some(applied) => self.apply(applied),
            None => self.note(mail, "what came back is no longer waited for"),
        }
    }

    fn stop(&mut self, mail: &Mail, said: Stop) {
        if let Some(told) = said.turn_epoch.filter(|told| *told > self.state.turn_epoch) {
            let why =
                format!("it names turn_epoch {told}, and the turn is at {}", self.state.turn_epoch);
            return self.bury(mail, "epoch_from_the_future", &why);
        }
        let why = said.why.unwrap_or_else(|| "somebody stopped it".to_owned());
        let (status, code) = match self.status {
            QUEUED => (EndStatus::Canceled, "canceled"),
            _ => (EndStatus::Failed, "stopped"),
        };
        self.end(Ending {
            forced: Some((code.to_owned(), said.by)),
            ..Ending::forced(status, code, &why)
        });
    }

    fn force_finish(&mut self, said: ForceFinish) {
        let why = said.why.unwrap_or_else(|| "a person ended it".to_owned());
        // Before it began there is nothing to have succeeded.
        let status = match (self.status, said.status) {
            (QUEUED, EndStatus::Success | EndStatus::Partial) => EndStatus::Failed,
            (status, EndStatus::Canceled) if status != QUEUED => EndStatus::Failed,
            (_, asked) => asked,
        };
        let failed = !matches!(status, EndStatus::Success | EndStatus::Partial);
        self.end(Ending {
            status,
            error: failed.then(|| Fault { code: "forced".into(), message: why }),
            content: Some(said.deliverable).filter(|d| !d.is_null()),
            forced: Some(("force_finish".into(), said.by)),
            raises_epoch: true,
            skipped: None,
        });
    }

    fn resume_now(&mut self, mail: &Mail, said: &ResumeNow) {
        let asked = |w: &&Wait| said.wait.as_ref().is_none_or(|id| *id == w.id);
        let open: Vec<Wait> = self.state.waits.iter().filter(asked).cloned().collect();
        if open.is_empty() {
            return self.note(mail, "nothing of the kind is waited for");
        }
        let nobody = json!({ "by": "turn", "why": "nobody waits for it any more" });
        for wait in open {
            self.out.messages.extend(super::end::take_back(wait.waits_for, &nobody));
            self.apply(waits::skipped(&wait, said.why.as_deref(), said.by.as_deref()));
        }
    }

    /// A dead letter is dealt with; sent again, it is read in its place, under an id of its own.
    fn settle(&mut self, mail: &Mail, said: SettleItem) {
        let SettleItem { item, again, by } = said;
        let how = if again.is_some() { "requeued" } else { "skipped" }.to_owned();
        self.say(TurnEvent::ItemSettled { item: item.clone(), how, by });
        let Some(again) = again else { return };
        if again.kind == kinds::SETTLE {
            return self.bury(mail, "unknown_type", "a dead letter is sent again once at a time");
        }
        let id = MailId(clip(&format!("{item}/again"), KEY_BYTES_MAX).to_owned());
        let body = Body::json(&again.body);
        self.read(&Mail { id, kind: again.kind, body, seq: mail.seq, at: mail.at });
    }

    /// A suspended turn that waits for nothing goes on, in the same commit.
    fn resume_if_answered(&mut self) {
        if self.ends_at.is_some() || self.status != SUSPENDED || !self.state.waits.is_empty() {
            return;
        }
        match self.state.terminates.clone() {
            Some(super::model::Ending { status, content: Some(content) }) => {
                let error = (status != EndStatus::Success)
                    .then(|| Fault { code: "tool_ended_turn".into(), message: String::new() });
                self.end(Ending { status, error, content: Some(content), ..Ending::default() });
            }
            // Too large for a head: a worker reads it, and ends the turn with it.
            Some(_) | None => self.resume(),
        }
    }

    fn resume(&mut self) {
        let turn_epoch = self.state.turn_epoch + 1;
        self.say(TurnEvent::TurnResumed { turn_epoch });
        self.status = READY;
        let rules = self.state.rules;
        let mut timers = wanted(&self.state);
        timers.extend(on(rules.resume_lease_ms).map(|d| TimerChange::guard(timer::RESUME, d)));
        timers.push(TimerChange::guard(timer::REAP, Duration::from_millis(rules.active_reap_ms)));
        timers.extend(
            on(rules.inbox_processing_ms).map(|d| TimerChange::guard(timer::PROCESSING, d)),
        );
        self.out.timers.append(&mut timers);
        let event = state_event(&self.state, self.cx, "running", turn_epoch, &json!({}));
        self.out.messages.push(event);
    }
}

/// Timers of a turn that wants a worker.
pub(super) fn wanted(state: &TurnState) -> Vec<TimerChange> {
    let mut timers = Vec::new();
    timers.extend(on(state.rules.pending_wakeup_ms).map(|d| TimerChange::set(timer::WAKEUP, d)));
    if state.channel.is_none() {
        timers.extend(on(state.rules.pending_skip_ms).map(|d| TimerChange::set(timer::SKIP, d)));
    }
    timers
}

/// Timers of a turn whose worker is gone: it wants another, and whatever time the old one had for its model is
/// over. Rule `active_reap` goes on from where it was; only where it counted from a claim, or for a call that nobody waits for
/// any more, it begins anew, once per lost worker.
pub(super) fn left_alone(state: &TurnState) -> Vec<TimerChange> {
    let mut timers = wanted(state);
    if state.step == 0 || state.asking_ms > state.rules.active_reap_ms {
        let reap = Duration::from_millis(state.rules.active_reap_ms);
        timers.push(TimerChange::guard(timer::REAP, reap));
    }
    timers
}

/// Rings for the workers of the target.
fn ring(state: &TurnState, cx: &Cx, reason: &str) -> Option<Message> {
    state.channel.as_ref()?;
    let body = json!({
        "agent_id": state.agent_name,
        "agent_turn_id": cx.id,
        "channel_id": state.channel,
        "turn_epoch": state.turn_epoch,
        "reason": reason,
    });
    let to = Target::Wire(wakeup_subject(&state.target));
    Some(Message { to, kind: "wakeup".into(), body: Body::json(&body) })
}

/// Its worker is gone.
fn left(state: &TurnState, why: &str, cx: &Cx) -> Decision<TurnEvent> {
    if let Some(spent) = takeovers_spent(state, cx) {
        return spent;
    }
    if let Some(spent) = resume_spent(state, cx) {
        return spent;
    }
    let mut decision = Decision::default();
    if state.resumed {
        decision.events.push(TurnEvent::ResumeRequeued { attempts: state.resume_attempts + 1 });
        let lease = on(state.rules.resume_lease_ms);
        decision.timers.extend(lease.map(|d| TimerChange::guard(timer::RESUME, d)));
    }
    let event = TurnEvent::TurnLeftByWorker { why: why.to_owned(), released: false };
    decision.events.push(event);
    decision.timers.append(&mut left_alone(state));
    decision
}

/// The end that comes with one lost worker too many; also with workers that hang, claim after claim: each of them puts off
/// `active_reap` by what it does, so that something has to count them.
fn takeovers_spent(state: &TurnState, cx: &Cx) -> Option<Decision<TurnEvent>> {
    if state.takeovers < state.rules.takeovers_max {
        return None;
    }
    let message = format!("{} workers were lost with it", state.takeovers + 1);
    Some(end(state, cx, Ending::failed("takeovers_exhausted", &message)))
}

/// The end that comes when a resumed turn was taken up too often and never gone on with.
fn resume_spent(state: &TurnState, cx: &Cx) -> Option<Decision<TurnEvent>> {
    if !state.resumed || state.resume_attempts < state.rules.resume_attempts_max {
        return None;
    }
    let message = format!("{} workers took it up and did not go on", state.resume_attempts + 1);
    Some(end(state, cx, Ending::failed("resume_retry_exhausted", &message)))
}

fn on_timer(state: &TurnState, name: &str, cx: &Cx) -> Decision<TurnEvent> {
    let status = cx.status.map_or(QUEUED, |s| s.name());
    let held = status == RUNNING;
    let since = cx.changed_at.unwrap_or(cx.now);
    let millis = Duration::from_millis;
    let reap = millis(state.rules.active_reap_ms);
    let fresh = state.step == 0 || state.resumed;
    match name {
        timer::PROCESSING if held => {
            let patience = since + millis(state.rules.inbox_processing_ms);
            let until = state.asking_until.map_or(patience, |asking| asking.max(patience));
            not_yet(cx, until).or_else(|| takeovers_spent(state, cx)).unwrap_or_else(|| {
                let mut decision = Decision::event(TurnEvent::ItemsRequeued {});
                decision.timers = left_alone(state);
                let again = on(state.rules.inbox_processing_ms);
                decision.timers.extend(again.map(|d| TimerChange::guard(timer::PROCESSING, d)));
                decision.messages.extend(ring(state, cx, timer::PROCESSING));
                decision
            })
        }
        timer::RESUME if held && state.resumed => {
            not_yet(cx, since + millis(state.rules.resume_lease_ms)).unwrap_or_else(|| {
                resume_spent(state, cx).unwrap_or_else(|| {
                    let attempts = state.resume_attempts + 1;
                    let mut decision = Decision::event(TurnEvent::ResumeRequeued { attempts });
                    decision.timers = wanted(state);
                    let lease = millis(state.rules.resume_lease_ms);
                    decision.timers.push(TimerChange::guard(timer::RESUME, lease));
                    decision.messages.extend(ring(state, cx, timer::RESUME));
                    decision
                })
            })
        }
        // Nobody has it: the lease begins with the claim.
        timer::RESUME if status == READY && state.resumed => {
            Decision::not_before(cx.now + millis(state.rules.resume_lease_ms))
        }
        timer::PROCESSING if status == READY || status == DISPATCHED => {
            Decision::not_before(cx.now + millis(state.rules.inbox_processing_ms))
        }
        timer::RETRY if status == DISPATCHED => {
            let times = state.retried + 1;
            let mut decision = Decision::event(TurnEvent::DispatchRetried { times });
            let again = on(state.rules.dispatched_retry_ms);
            decision.timers.extend(again.map(|d| TimerChange::set(timer::RETRY, d)));
            decision.messages.extend(ring(state, cx, timer::RETRY));
            decision
        }
        timer::DISPATCHED if status == DISPATCHED => {
            let why = "no worker took it in time";
            end(state, cx, Ending::forced(EndStatus::Timeout, "dispatch_timeout", why))
        }
        // Before a claim nothing can progress: `dispatched_timeout` is the rule there, and where it is off, none is.
        timer::REAP if status == DISPATCHED => Decision::not_before(cx.now + reap),
        // Nothing but the claim has happened: it counts from there.
        timer::REAP if held && fresh && cx.now < since + reap => Decision::not_before(since + reap),
        timer::REAP if held || status == READY => {
            let why = "it made no progress";
            end(state, cx, Ending::forced(EndStatus::Failed, "timeout_reaped_by_watchdog", why))
        }
        timer::WAKEUP if status == READY || status == DISPATCHED => {
            let times = state.rung + 1;
            let message = ring(state, cx, timer::WAKEUP);
            let silent = message.is_none();
            let mut decision = Decision::event(TurnEvent::BellRung { times, silent });
            decision.messages.extend(message);
            let pause = millis(state.rules.pending_wakeup_ms) * 2u32.saturating_pow(times.min(8));
            decision.timers.push(TimerChange::set(timer::WAKEUP, pause.min(RING_PAUSE_MAX)));
            decision
        }
        timer::SKIP if status == READY || status == DISPATCHED => {
            let why = "it waits for a worker, and has no channel on which one could be rung";
            let ending = Ending::forced(EndStatus::Failed, "missing_channel", why);
            end(state, cx, Ending { skipped: Some("missing_channel"), ..ending })
        }
        _ => match name.strip_prefix(timer::WAIT) {
            Some(id) if status == SUSPENDED => timed_out(state, id, cx),
            _ => stray(name, cx.now),
        },
    }
}

/// A timer of a state that the turn has left.
fn stray(name: &str, now: Timestamp) -> Decision<TurnEvent> {
    let item = format!("timer/{name}/{}", now.as_micros());
    let why = "the turn has left the state that it watches".to_owned();
    Decision::event(TurnEvent::ItemNoted { item, kind: "timer".into(), why, ordinal: None })
}

fn not_yet(cx: &Cx, at: Timestamp) -> Option<Decision<TurnEvent>> {
    (cx.now < at).then(|| Decision::not_before(at))
}

/// Rule `tool_timeout`: the report is written and read in one, and the last one resumes the turn.
fn timed_out(state: &TurnState, id: &str, cx: &Cx) -> Decision<TurnEvent> {
    let Some(wait) = state.waits.iter().find(|w| w.id == id) else {
        return stray(id, cx.now);
    };
    let mut desk = Desk {
        state: state.clone(),
        status: SUSPENDED,
        cx,
        out: Decision::default(),
        ends_at: None,
    };
    let why = json!({ "by": "turn", "why": "it did not answer in time" });
    desk.out.messages.extend(super::end::take_back(wait.waits_for, &why));
    desk.say(TurnEvent::WaitTimedOut(waits::timeout_report(wait)));
    desk.resume_if_answered();
    desk.out
}
