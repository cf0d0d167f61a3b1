//! What a fork takes over from its origin.
//!
//! A flow sees nothing but outcomes, one at a time in the order of the stream, and recorded values. A fork that
//! gets some of the outcomes, in the same order, is led to where its origin stood without the others, as long as
//! nothing is taken over that the flow asked for because of an outcome that is not. So a step that has happened
//! is taken over wherever its outcome stands in the stream, also behind the failure of another branch; it must not
//! happen again. What is left out is asked for anew, under another key, because the key names the job. Hence two
//! things are refused: to leave out a call of which nobody knows whether it happened, and to try a job again whose
//! flow went on after the failure and did more; somebody has to say that this may be done again, by naming a step. Where
//! the class of what would be done again is irreversible, in this job or in a child of it, naming a step is not enough: it has to
//! be asked for ([`Repeat`]).
//!
//! With a step that is to be undone if its job does not complete, a fork takes over that duty. One effect has one job that
//! undoes it, so only a job that has ended without undoing hands it on, and only to one other: its retry. Everybody else
//! forks before the first such step, and does it anew.

mod order;
mod settled;

pub(crate) use self::settled::{CORRECTS, settlement};

use self::{
    order::Order,
    settled::{said_about, with_corrections, with_settled},
};
use super::stream::{self, Line};
use crate::{
    drive::LoadError,
    model::{Job, JobEvent, JobState, OwnEvent},
    submit::{AFTER_ALL, SubmitError, copy},
};
use serde_json::Value;
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};
use tenure_kernel::{ids::EntityId, machine::Machine as _, store::Store, time::Timestamp};
use tenure_steps::{
    events::{CallEnd, CallOutcome, ResultType, StepEvent, StepId, ValueKind, Verdict, What},
    history::{Call, CallState, History, Shape, StepRecord},
    saga::Undo,
    tool::Class,
};

/// Children, and children of children, whose histories are read to find what would be done again.
const CHILDREN_LOOKED_AT_MAX: usize = 1_000;

/// Where a fork leaves its origin.
#[derive(Clone, Debug)]
pub enum Cut {
    /// Before this step: it and all that began after it is left out.
    Before(StepId),
    /// What failed or is not over is left out: the step that ended the job, where one is named, and failures
    /// that the flow has not gone on from.
    Failures(Option<StepId>),
    /// The same, for a retry of a flow that diverged at this step.
    Divergence(StepId),
}

/// Whether a fork may do something again that has happened and cannot be undone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Repeat {
    /// No: it is refused.
    #[default]
    No,
    /// Somebody has asked for it.
    Irreversible,
}

/// What a fork gets.
#[derive(Clone, Debug)]
pub struct TakenOver {
    /// Step events, in order.
    pub events: Vec<Value>,
    /// The first step that is left out; [`AFTER_ALL`] if none is.
    pub step: StepId,
    /// A call was open at the end of which it is known what became of it: by its answer, or somebody has said so later.
    pub settled: bool,
    /// The first step that the new job would have to undo if it did not complete.
    pub undoes: Option<StepId>,
}

/// The step events that a fork takes over.
pub async fn taken_over(
    store: &Arc<dyn Store>,
    job: EntityId,
    cut: &Cut,
    repeat: Repeat,
) -> Result<TakenOver, SubmitError> {
    let lines = stream::read(store, job).await?;
    let (run, events) = run_events(&lines)?;
    let recorded = events.clone();
    let events = with_answers(store, job, events).await?;
    let said = said_about(store, job).await?;
    let events = with_settled(events, &said);
    let (events, corrected) = with_corrections(events, &said);
    let settled = events != recorded;
    let order = Order::of(&events);
    let left = left_out(&order, cut);
    for (step, users) in &corrected {
        if let Some(user) = users.iter().find(|user| !left.contains(*user)) {
            return Err(SubmitError::WouldRepeat(format!(
                "step {user} of job {job} used what was said about step {step}, and that was corrected: fork the job \
                 before step {user}, with `tenure job fork {job} --step {user}`"
            )));
        }
    }
    may_be_taken(&events, &order, &left, job)?;
    may_be_left_out(&order, &left, cut, job)?;
    if repeat == Repeat::No {
        may_be_repeated(store, &events, &order, &left, job).await?;
    }
    let mut taken = take(&events, &left, cut, &order);
    fetch_outputs(store, &mut taken).await?;
    let named = match cut {
        Cut::Failures(named) => named.as_ref().filter(|s| left.contains(*s)),
        Cut::Before(step) | Cut::Divergence(step) => Some(step),
    };
    let first = named.or_else(|| order.steps().into_iter().find(|s| left.contains(*s))).cloned();
    Ok(TakenOver {
        events: taken.iter().map(|e| copy(&first_run(e, run))).collect(),
        step: first.unwrap_or_else(|| StepId(AFTER_ALL.into())),
        settled,
        undoes: to_undo(&taken, &order),
    })
}

/// The first of the steps that whoever has these events would have to undo: what undoes it is registered and it belongs to
/// nothing that is complete, or the flow registers it when it hears of the step again.
fn to_undo(taken: &[StepEvent], order: &Order) -> Option<StepId> {
    let (mut state, mut history) = (JobState::default(), History::default());
    for event in taken {
        Job::apply(&mut state, &event.clone().into());
        history.apply(event, Timestamp::ZERO, 0);
    }
    let registered = history.undos.into_iter().map(|undo| undo.of);
    registered.chain(state.unheard).min_by_key(|step| order.began(step))
}

fn left_out(order: &Order, cut: &Cut) -> HashSet<StepId> {
    let steps = order.steps();
    let named = match cut {
        Cut::Before(step) | Cut::Divergence(step) => {
            let at = order.began(step).unwrap_or(usize::MAX);
            let later = |s: &StepId| order.began(s).is_some_and(|began| began >= at);
            let out = steps.into_iter().filter(|s| later(s) || !order.is_over(s));
            return out.cloned().collect();
        }
        Cut::Failures(named) => named.as_ref(),
    };
    let gone_on = |from: &StepId| steps.iter().any(|s| order.knew(s, from));
    let failed = |s: &StepId| !order.succeeded(s) && (named == Some(s) || !gone_on(s));
    let mut open: Vec<&StepId> =
        steps.iter().copied().filter(|s| !order.is_over(s) || failed(s)).collect();
    let mut left: HashSet<StepId> = open.iter().map(|s| (*s).clone()).collect();
    // What the flow asked for because of an outcome that it does not get is not asked for.
    while let Some(out) = open.pop() {
        for step in &steps {
            if order.knew(step, out) && left.insert((*step).clone()) {
                open.push(step);
            }
        }
    }
    left
}

/// What was undone, or may have been, has not happened as far as a fork goes: it can not be taken over, and to do it
/// again is a decision that nobody has made.
fn may_be_taken(
    events: &[StepEvent],
    order: &Order,
    left: &HashSet<StepId>,
    job: EntityId,
) -> Result<(), SubmitError> {
    let registered = events.iter().filter_map(|event| match event {
        StepEvent::ValueRecorded { step, kind: ValueKind::Undo, value, .. } => {
            Undo::read(step, value)
        }
        _ => None,
    });
    for undo in registered.filter(|u| !left.contains(&u.of)) {
        if order.record(&undo.step()).is_some_and(|r| !r.calls.is_empty()) {
            return Err(SubmitError::BadOrigin(format!(
                "step {} of job {job} was undone (by {}): submit it anew, or fork it before that step",
                undo.of, undo.tool
            )));
        }
    }
    Ok(())
}

fn may_be_left_out(
    order: &Order,
    left: &HashSet<StepId>,
    cut: &Cut,
    job: EntityId,
) -> Result<(), SubmitError> {
    for step in order.steps().into_iter().filter(|s| left.contains(*s)) {
        let Some(record) = order.record(step) else { continue };
        let repeatable = |c: &Call| c.class == Class::Idempotent;
        if let Some(call) = record.calls.iter().find(|c| c.is_open() && !repeatable(c)) {
            return Err(SubmitError::WouldRepeat(format!(
                "the new job would call {} of step {step} again, which is {}, and nobody knows whether it has \
                 happened: settle it first with `tenure job resolve {job} --step {step}` and --happened RESULT, \
                 --did-not-happen or --abandon",
                record.shape,
                call.class.as_str(),
            )));
        }
        let effect = match record.shape {
            Shape::Tool { .. } => !record.calls.last().is_some_and(repeatable),
            Shape::Child { .. } => true,
            Shape::Value { .. } | Shape::Wait { .. } | Shape::Sleep => false,
        };
        if effect && order.succeeded(step) && !matches!(cut, Cut::Before(_)) {
            return Err(SubmitError::WouldRepeat(format!(
                "the flow went on after the failure, and a retry would do step {step} ({}) again: say from \
                 which step, with `tenure job fork {job} --step N`",
                record.shape,
            )));
        }
    }
    Ok(())
}

/// What has happened and cannot be undone is done again only if somebody asks for it.
async fn may_be_repeated(
    store: &Arc<dyn Store>,
    events: &[StepEvent],
    order: &Order,
    left: &HashSet<StepId>,
    job: EntityId,
) -> Result<(), SubmitError> {
    let refused = |step: &StepId, what: String| {
        Err(SubmitError::WouldRepeat(format!(
            "the new job would do step {step} of job {job} again, {what}, which has happened, or may have happened, and is irreversible: fork the \
             job before a later step, or ask for the repetition (`--repeat`; `repeat: true` over HTTP)"
        )))
    };
    for step in order.steps().into_iter().filter(|s| left.contains(*s)) {
        let Some(record) = order.record(step) else { continue };
        if record.calls.iter().any(has_happened_for_good) {
            return refused(step, record.shape.to_string());
        }
    }
    let children = events.iter().filter_map(|event| match event {
        StepEvent::ChildStarted { step, child, flow, .. } if left.contains(step) => {
            Some((step, *child, flow))
        }
        _ => None,
    });
    let mut looked_at = 0;
    for (step, child, flow) in children {
        if let Some(inner) = irreversible_in(store, child, &mut looked_at).await? {
            return refused(step, format!("child {flow:?} with {inner}"));
        }
    }
    Ok(())
}

fn has_happened_for_good(call: &Call) -> bool {
    let happened = matches!(
        call.state,
        CallState::Finished(CallOutcome::Success) | CallState::Settled(Verdict::Happened)
    );
    happened && call.class == Class::Irreversible
}

/// A call of a child that must not be made again: it has happened, or nobody knows whether it has.
fn is_for_good(call: &Call) -> bool {
    has_happened_for_good(call) || (call.is_open() && call.class != Class::Idempotent)
}

/// What keeps a child from being run again: a step of it, or of its children, that may have happened and is irreversible; or
/// that its history cannot be looked at. `looked_at` counts the jobs that were read for one fork.
async fn irreversible_in(
    store: &Arc<dyn Store>,
    child: EntityId,
    looked_at: &mut usize,
) -> Result<Option<String>, LoadError> {
    let mut open = vec![child];
    while let Some(job) = open.pop() {
        *looked_at += 1;
        if *looked_at > CHILDREN_LOOKED_AT_MAX {
            return Ok(Some(format!(
                "more than {CHILDREN_LOOKED_AT_MAX} children, which were not all looked at"
            )));
        }
        let lines = stream::read(store, job).await?;
        if lines.is_empty() {
            return Ok(Some(format!("job {job}, whose history was removed")));
        }
        let mut history = History::default();
        for line in lines {
            let Some(JobEvent::Step(event)) = &line.read else { continue };
            if let StepEvent::ChildStarted { child, .. } = event {
                open.push(*child);
            }
            history.apply(event, Timestamp::ZERO, 0);
        }
        let done = |(_, record): &(&StepId, &StepRecord)| record.calls.iter().any(is_for_good);
        if let Some((step, _)) = history.steps.iter().find(done) {
            return Ok(Some(format!("step {step}")));
        }
    }
    Ok(None)
}

/// The events of steps that are not left out, and signals that nobody else has used.
fn take(events: &[StepEvent], left: &HashSet<StepId>, cut: &Cut, order: &Order) -> Vec<StepEvent> {
    let until = match cut {
        Cut::Before(step) | Cut::Divergence(step) => order.began(step),
        Cut::Failures(_) => None,
    };
    let mine = |at: usize, event: &StepEvent| match event {
        // A signal that a step which is not taken over has used is that step's, and not the fork's.
        StepEvent::SignalKept { key: kept, .. } => {
            let user = events[at..].iter().find_map(|e| match e {
                StepEvent::WaitCompleted { key, step, .. } if key == kept => Some(step),
                _ => None,
            });
            until.is_none_or(|until| at < until) && user.is_none_or(|step| !left.contains(step))
        }
        event => event.step().is_some_and(|step| !left.contains(step)),
    };
    let taken = events.iter().enumerate().filter(|(at, e)| mine(*at, e));
    taken.map(|(_, e)| e.clone()).collect()
}

/// The events, and those that close calls whose answer came when nobody was there to act on it: the job ended first. A
/// result that was too large for mail is read from the call.
async fn with_answers(
    store: &Arc<dyn Store>,
    job: EntityId,
    mut events: Vec<StepEvent>,
) -> Result<Vec<StepEvent>, LoadError> {
    let order = Order::of(&events);
    for step in order.steps() {
        let Some(open) = order.record(step).and_then(|r| r.calls.last()) else { continue };
        let Some((What::Call, answer)) = open.hand.answer.as_ref().filter(|_| open.is_open())
        else {
            continue;
        };
        if !answer.end.is_certain() {
            continue;
        }
        let (step, key, call) = (step.clone(), open.key.clone(), open.call);
        let mut result = answer.result.clone();
        let (outcome, error) = match answer.end {
            CallEnd::Completed => (CallOutcome::Success, None),
            _ => (CallOutcome::Failure, answer.error.clone()),
        };
        if outcome == CallOutcome::Success && result.is_none() {
            let id = JobState::call_id(job, &key, call, (What::Call, 0));
            let gone = || LoadError::Unreadable(format!("the result of call {id} is gone"));
            let content = crate::call::view::content(store, id).await?;
            result = Some(content.and_then(|c| c.result).ok_or_else(gone)?);
        }
        events.push(StepEvent::ToolInvocationFinished {
            step: step.clone(),
            key: key.clone(),
            call,
            outcome,
            result,
            error,
        });
        if outcome == CallOutcome::Success {
            events.push(StepEvent::CommandCommitted { step: step.clone(), key, call });
            events.push(done_well(&events, &step));
        }
    }
    Ok(events)
}

fn done_well(events: &[StepEvent], step: &StepId) -> StepEvent {
    let of_it =
        |e: &&StepEvent| matches!(e, StepEvent::NodeFinished { step: of, .. } if of == step);
    let attempts = events.iter().filter(of_it).count();
    StepEvent::NodeFinished {
        step: step.clone(),
        result_type: ResultType::SideEffectCommitted,
        reason: None,
        attempt: u32::try_from(attempts + 1).unwrap_or(u32::MAX),
        error: None,
        failed_early: None,
    }
}

/// The step events of the last run, copied ones among them, and its number. Signals that an earlier run kept
/// stand in front: they are still kept.
fn run_events(lines: &[Line]) -> Result<(u32, Vec<StepEvent>), LoadError> {
    let (mut run, mut events) = (1, Vec::new());
    for line in lines {
        match &line.read {
            Some(JobEvent::Step(event)) => events.push(event.clone()),
            Some(JobEvent::Own(OwnEvent::HistoryCopied { events: copied, .. })) => {
                for event in copied {
                    events.push(serde_json::from_value(event.clone()).map_err(|e| {
                        LoadError::Unreadable(format!("a copied event can not be read: {e}"))
                    })?);
                }
            }
            Some(JobEvent::Own(OwnEvent::JobContinued { .. })) => {
                run += 1;
                events = still_kept(&events);
            }
            _ => {}
        }
    }
    Ok((run, events))
}

fn still_kept(events: &[StepEvent]) -> Vec<StepEvent> {
    let mut kept: Vec<StepEvent> = Vec::new();
    for event in events {
        match event {
            StepEvent::SignalKept { .. } => kept.push(event.clone()),
            StepEvent::WaitCompleted { key: heard, .. } => {
                kept.retain(|k| !matches!(k, StepEvent::SignalKept { key, .. } if key == heard));
            }
            _ => {}
        }
    }
    kept
}

/// A child's output that was too large for an event is read from the child. The fork has no such child, so
/// it gets the output itself.
async fn fetch_outputs(store: &Arc<dyn Store>, events: &mut [StepEvent]) -> Result<(), LoadError> {
    let mut children: HashMap<u32, EntityId> = HashMap::new();
    for event in events {
        match event {
            StepEvent::ChildStarted { ordinal, child, .. } => {
                children.insert(*ordinal, *child);
            }
            StepEvent::ChildEnded { ordinal, status, output: output @ None, .. }
                if status == "completed" =>
            {
                let gone =
                    || LoadError::Unreadable(format!("the output of child {ordinal} is gone"));
                let child = *children.get(ordinal).ok_or_else(gone)?;
                let lines = stream::read(store, child).await?;
                *output = Some(stream::output(&lines).ok_or_else(gone)?.clone());
            }
            _ => {}
        }
    }
    Ok(())
}

/// A fork begins with its first run, in which steps have no run in front of their names.
fn first_run(event: &StepEvent, run: u32) -> StepEvent {
    let prefix = format!("{run}:");
    let Some(bare) = event.step().and_then(|s| s.0.strip_prefix(&prefix)).map(str::to_owned) else {
        return event.clone();
    };
    let mut event = event.clone();
    if let Some(step) = event.step_mut() {
        step.0 = bare;
    }
    event
}

#[cfg(test)]
mod tests {
    use super::settled::{Said, Speaker};
    use super::*;
    use serde_json::json;
    use tenure_steps::events::{WaitKind, WaitOutcome};

    fn id(step: &str) -> StepId {
        StepId(step.into())
    }

    fn value(step: &str) -> StepEvent {
        StepEvent::ValueRecorded {
            step: id(step),
            kind: ValueKind::Pure,
            name: "v".into(),
            value: json!(1),
            place: String::new(),
        }
    }

    fn opened(step: &str, key: &str) -> StepEvent {
        StepEvent::WaitOpened {
            step: id(step),
            kind: WaitKind::Signal,
            key: key.into(),
            within_ms: None,
            note: None,
            place: String::new(),
        }
    }

    fn completed(step: &str, key: &str) -> StepEvent {
        StepEvent::WaitCompleted {
            step: id(step),
            key: key.into(),
            outcome: WaitOutcome::Signalled,
            payload: json!(1),
            by: None,
        }
    }

    fn kept(key: &str) -> StepEvent {
        StepEvent::SignalKept {
            key: key.into(),
            outcome: WaitOutcome::Signalled,
            payload: json!(1),
            by: None,
        }
    }

    fn before(events: &[StepEvent], step: &StepId) -> Vec<StepEvent> {
        kept_by(events, &Cut::Before(step.clone()))
    }

    fn kept_by(events: &[StepEvent], cut: &Cut) -> Vec<StepEvent> {
        let order = Order::of(events);
        take(events, &left_out(&order, cut), cut, &order)
    }

    fn started(step: &str) -> StepEvent {
        StepEvent::ToolInvocationStarted {
            step: id(step),
            tool: "pay".into(),
            key: format!("key of {step}"),
            ordinal: 0,
            call: 1,
            class: Class::Irreversible,
            arguments_hash: String::new(),
            arguments: None,
            timeout_ms: 1,
            place: String::new(),
            undoable: false,
        }
    }

    fn ended(step: &str, outcome: CallOutcome) -> StepEvent {
        StepEvent::ToolInvocationFinished {
            step: id(step),
            key: format!("key of {step}"),
            call: 1,
            outcome,
            result: None,
            error: None,
        }
    }

    fn paid(step: &str) -> StepEvent {
        ended(step, CallOutcome::Success)
    }

    fn failed(step: &str) -> StepEvent {
        StepEvent::NodeFinished {
            step: id(step),
            result_type: ResultType::PermanentFailure,
            reason: None,
            attempt: 1,
            error: None,
            failed_early: None,
        }
    }

    /// With the failure of the call in front of each failure of a step.
    fn over(events: &[StepEvent]) -> Vec<StepEvent> {
        let with = |e: &StepEvent| match e {
            StepEvent::NodeFinished { result_type: ResultType::PermanentFailure, step, .. } => {
                vec![ended(&step.0, CallOutcome::Failure), e.clone()]
            }
            e => vec![e.clone()],
        };
        events.iter().flat_map(with).collect()
    }

    fn left(events: &[StepEvent], named: Option<&str>) -> Vec<String> {
        let left = left_out(&Order::of(events), &Cut::Failures(named.map(id)));
        let mut left: Vec<String> = left.into_iter().map(|s| s.0).collect();
        left.sort();
        left
    }

    fn refused(events: &[StepEvent], cut: &Cut) -> bool {
        let order = Order::of(events);
        may_be_left_out(&order, &left_out(&order, cut), cut, EntityId::fixed(1, 1)).is_err()
    }

    #[test]
    fn steps_that_are_not_over_are_left_out() {
        let events =
            [value("1"), opened("2", "a"), opened("3", "b"), completed("3", "b"), value("4")];
        let taken = before(&events, &id("4"));
        assert_eq!(taken, [value("1"), opened("3", "b"), completed("3", "b")]);
        assert_eq!(before(&events, &id("1")), []);
        assert_eq!(before(&events, &id("9")).len(), 4);
    }

    #[test]
    fn a_step_that_began_before_the_cut_is_taken_over_wherever_it_ended() {
        let events = [started("1.1"), started("2.1"), started("3.1"), paid("3.1"), paid("1.1")];
        assert_eq!(before(&events, &id("2.1")), [started("1.1"), paid("1.1")]);
    }

    #[test]
    fn a_retry_leaves_out_failures_and_nothing_that_happened_beside_them() {
        // The first branch goes on after the second has failed, and another one begins its next step.
        let events = [
            started("1.1"),
            started("2.1"),
            started("3.1"),
            failed("2.1"),
            paid("1.1"),
            started("1.2"),
            failed("3.1"),
            paid("1.2"),
        ];
        assert_eq!(left(&events, Some("3.1")), ["2.1", "3.1"]);
        assert_eq!(left(&events, None), ["2.1", "3.1"]);
        let taken = kept_by(&events, &Cut::Failures(Some(id("2.1"))));
        assert_eq!(taken, [started("1.1"), paid("1.1"), started("1.2"), paid("1.2")]);
        assert!(!refused(&over(&events), &Cut::Failures(Some(id("2.1")))));
    }

    #[test]
    fn a_branch_that_waited_for_its_turn_runs_beside() {
        let events = [
            started("1.1"),
            started("2.1"),
            failed("1.1"),
            started("3.1"),
            paid("2.1"),
            paid("3.1"),
        ];
        assert_eq!(left(&events, Some("1.1")), ["1.1"]);
    }

    #[test]
    fn a_failure_that_the_flow_went_on_from_is_taken_over() {
        let events =
            [started("1"), failed("1"), started("2"), paid("2"), started("3"), failed("3")];
        assert_eq!(left(&events, Some("3")), ["3"]);
        assert_eq!(left(&events, None), ["3"]);
    }

    #[test]
    fn a_retry_does_not_do_again_what_the_flow_did_after_the_failure() {
        let one = [started("1"), failed("1"), started("2"), paid("2")];
        let batches = [started("1.1"), failed("1.1"), started("2.1"), paid("2.1")];
        for (events, named) in [(one, "1"), (batches, "1.1")] {
            assert_eq!(left(&events, Some(named)).len(), 2);
            let events = over(&events);
            assert!(refused(&events, &Cut::Failures(Some(id(named)))));
            assert!(!refused(&events, &Cut::Before(id(named))));
        }
    }

    #[test]
    fn an_unknown_call_is_not_left_out_before_somebody_has_settled_it() {
        // The last event is what the end of a job says about a call that is open.
        let events = vec![started("1"), paid("1"), started("2"), failed("2")];
        let cuts = [Cut::Failures(None), Cut::Before(id("2")), Cut::Before(id("1"))];
        assert!(cuts.iter().all(|cut| refused(&events, cut)));
        let said = |verdict| {
            let (key, result) = ("key of 2".into(), json!({"paid": 1}));
            [Said { key, call: 1, verdict, result, by: Speaker::Person }]
        };
        let happened = with_settled(events.clone(), &said(Verdict::Happened));
        assert_eq!(left(&happened, Some("2")), Vec::<String>::new());
        assert!(!refused(&happened, &cuts[0]));
        let events = with_settled(events, &said(Verdict::DidNotHappen));
        assert_eq!(left(&events, Some("2")), ["2"]);
        assert!(cuts.iter().all(|cut| !refused(&events, cut)));
    }

    #[test]
    fn a_kept_signal_goes_along_unless_a_later_step_has_used_it() {
        let events = [
            kept("a"),
            kept("b"),
            kept("c"),
            opened("1", "a"),
            completed("1", "a"),
            value("2"),
            opened("3", "b"),
            completed("3", "b"),
        ];
        let taken = before(&events, &id("2"));
        assert_eq!(taken, [kept("a"), kept("c"), opened("1", "a"), completed("1", "a")]);
    }

    #[test]
    fn a_later_run_becomes_the_first() {
        assert_eq!(first_run(&value("3:2.1"), 3), value("2.1"));
        assert_eq!(first_run(&value("2.1"), 1), value("2.1"));
        assert_eq!(first_run(&kept("3:a"), 3), kept("3:a"));
    }
}
