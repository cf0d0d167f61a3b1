//! Which nominal times become jobs. Pure: the tables of time zones are data of the program, and the moment is an
//! argument.
//!
//! A nominal time is *fresh* while it is at most a minute late, and *missed* after that (`limits::LATE_AFTER`). Fresh
//! ones become jobs whatever the policy; the policy is about those that were missed. A fresh one that comes with
//! missed ones stands for them too (`once`).

use super::{
    calendar::Calendar,
    model::{Event, Fire, Missed, OpenJob, Overlap, Spec, State, limits},
};
use crate::model::{Job, NewJob, Scheduled};
use serde_json::Value;
use std::time::Duration;
use tenure_kernel::{
    ids::EntityId,
    machine::{Cx, Decision, Input, Machine as _, Undecided},
    mail::{Mail, kinds},
    outbox::{Message, Target},
    stream::{Body, Hash},
    time::Timestamp,
    timers::TimerChange,
};

/// The one timer.
pub const FIRE: &str = "fire";
pub use crate::decide::mail::ENDED as JOB_ENDED;

/// See [`tenure_kernel::machine::Machine::decide`].
pub fn decide(
    state: Option<&State>,
    input: &Input<'_>,
    cx: &Cx,
) -> Result<Decision<Event>, Undecided> {
    let state = state.ok_or_else(|| Undecided("a schedule is not made by a message".into()))?;
    match input {
        Input::Mail(mail) => Ok(on_mail(mail)),
        Input::Timer(FIRE) => come_due(state, cx),
        other => Err(Undecided(format!("a schedule does not know {}", other.rule()))),
    }
}

fn on_mail(mail: &[Mail]) -> Decision<Event> {
    let mut decision = Decision::default();
    for mail in mail {
        let body: Value = mail
            .body
            .inline()
            .and_then(|b| tenure_kernel::stored::from_slice(b).ok())
            .unwrap_or_default();
        // The id of mail from an entity begins with its source.
        let source = mail.id.0.split('/').next().unwrap_or_default();
        let id = |text: Option<&str>| text.and_then(|t| t.parse::<EntityId>().ok());
        let status = body["status"].as_str().unwrap_or("ended").to_owned();
        let event = match mail.kind.as_str() {
            JOB_ENDED => id(body["job"].as_str().or(Some(source)))
                .map(|job| Event::ScheduledJobEnded { job, status, why: None }),
            kinds::RETURNED => id(body["to"].as_str()).map(|job| {
                let why = body["why"].as_str().map(str::to_owned);
                Event::ScheduledJobEnded { job, status: "not_created".into(), why }
            }),
            _ => None,
        };
        let noted = || Event::ScheduleMailNoted {
            what: format!("no schedule understands this mail of kind {:?}", mail.kind),
        };
        decision.events.push(event.unwrap_or_else(noted));
    }
    decision
}

/// What a change of a schedule leads to: the times that have come under the old calendar become jobs under the old
/// rules, and from now on the new one counts. So no time is lost to a change and none is counted twice.
pub fn set(
    state: Option<&State>,
    name: &str,
    spec: Spec,
    by: Option<String>,
    cx: &Cx,
) -> Result<Decision<Event>, Undecided> {
    let paused = state.is_some_and(|s| s.paused);
    if state.is_some_and(|s| s.spec.as_ref() == Some(&spec)) {
        return Ok(Decision::default());
    }
    let mut decision = Decision::default();
    if let Some(state) = state
        && !paused
        && state.next.is_some_and(|next| next <= cx.now)
    {
        decision = due(state, cx, When::NominalTime)?;
        // What one decision does not reach is over with the calendar that had it.
        decision.timers.clear();
    }
    let anchor = state.map(|s| s.anchor).filter(|a| *a != Timestamp::ZERO).unwrap_or(cx.now);
    let calendar = calendar(&spec, anchor)?;
    let next = if paused { None } else { calendar.after(cx.now) };
    decision = decision.timer(timer(cx.id, &spec, next, cx.now));
    let (name, spec, at) = (name.to_owned(), Box::new(spec), cx.now);
    Ok(decision.and(Event::ScheduleSet { name, spec, at, next, by, keeps_open: true }))
}

/// It creates nothing until it is resumed. What has come by now is served first.
pub fn pause(state: &State, by: Option<String>, cx: &Cx) -> Result<Decision<Event>, Undecided> {
    if state.paused || state.spec.is_none() {
        return Ok(Decision::default());
    }
    let mut decision = match state.next {
        Some(next) if next <= cx.now => due(state, cx, When::NominalTime)?,
        _ => Decision::default(),
    };
    decision.timers = vec![TimerChange::clear(FIRE)];
    Ok(decision.and(Event::SchedulePaused { by }))
}

/// It goes on from now.
pub fn resume(state: &State, by: Option<String>, cx: &Cx) -> Result<Decision<Event>, Undecided> {
    let Some(spec) = state.spec.as_ref().filter(|_| state.paused) else {
        return Ok(Decision::default());
    };
    let next = calendar(spec, state.anchor)?.after(cx.now);
    let event = Event::ScheduleResumed { at: cx.now, next, by };
    Ok(Decision::event(event).timer(timer(cx.id, spec, next, cx.now)))
}

/// It is gone.
pub fn remove(state: &State, by: Option<String>) -> Decision<Event> {
    if state.spec.is_none() {
        return Decision::default();
    }
    let removals = state.removals + 1;
    Decision::event(Event::ScheduleRemoved { by, removals }).timer(TimerChange::clear(FIRE))
}

/// Why nothing is fired by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotFired {
    /// There is no such schedule any more.
    Removed,
    /// So many jobs are open whose end is awaited: one more could not be remembered, and the calendar would run beside it.
    TooManyOpen,
}

/// A job now, whatever the calendar says. The same key names the same job.
pub fn fire_by_hand(
    state: &State,
    key: Option<&str>,
    by: Option<String>,
    cx: &Cx,
) -> Result<(EntityId, Decision<Event>), NotFired> {
    let spec = state.spec.as_ref().ok_or(NotFired::Removed)?;
    let (name, at) = match key {
        // The moment is part of an id: one that a repetition knows as well.
        Some(key) if state.removals == 0 => (format!("hand/{key}"), state.anchor),
        Some(key) => (format!("hand after removal {}/{key}", state.removals), state.anchor),
        None => (format!("hand/at version {}", cx.version), cx.now),
    };
    let job = EntityId::derived(cx.id, &name, at);
    if state.fires.iter().any(|f| f.job == job) {
        return Ok((job, Decision::default()));
    }
    if spec.overlap == Overlap::Skip && state.open_at(cx.now).count() >= limits::OPEN_MAX {
        return Err(NotFired::TooManyOpen);
    }
    let fire = Fire { nominal: cx.now, at: cx.now, job, by_hand: true };
    let event = Event::ScheduleFiredByHand { fire, until: until(spec, cx.now), by };
    Ok((job, Decision::event(event).send(creation(&state.name, spec, &fire, cx.id))))
}

fn calendar(spec: &Spec, anchor: Timestamp) -> Result<Calendar, Undecided> {
    Calendar::of(spec, anchor).map_err(|e| Undecided(e.to_string()))
}

/// When a nominal time counts as come.
#[derive(Clone, Copy, PartialEq)]
enum When {
    /// With its jitter.
    Jittered,
    /// At once: the calendar ends with this decision.
    NominalTime,
}

fn come_due(state: &State, cx: &Cx) -> Result<Decision<Event>, Undecided> {
    due(state, cx, When::Jittered)
}

fn due(state: &State, cx: &Cx, when: When) -> Result<Decision<Event>, Undecided> {
    let none = || Undecided("the schedule has no calendar".into());
    let spec = state.spec.as_ref().filter(|_| !state.paused).ok_or_else(none)?;
    let calendar = calendar(spec, state.anchor)?;
    let moment = |nominal: Timestamp| match when {
        When::Jittered => nominal + jitter(cx.id, nominal, spec),
        When::NominalTime => nominal,
    };
    let mut come = Vec::new();
    let mut through = state.through;
    let mut next = calendar.after(through);
    while let Some(nominal) = next.filter(|n| moment(*n) <= cx.now)
        && come.len() < limits::WALK_MAX
    {
        come.push(nominal);
        through = nominal;
        next = calendar.after(nominal);
    }
    let behind = next.is_some_and(|n| moment(n) <= cx.now);
    // One whose jitter is small waits for those before it: it is late only after the latest moment so far. Always with
    // the jitter: a change in between makes a time come sooner, never late.
    let late_after = come.iter().scan(Timestamp::ZERO, |last, nominal| {
        *last = (*last).max(*nominal + jitter(cx.id, *nominal, spec));
        Some(*last + limits::LATE_AFTER)
    });
    let fresh = late_after.take_while(|late| *late < cx.now).count();
    let (late, on_time) = come.split_at(fresh);
    let made_up: &[Timestamp] = match spec.missed {
        // Else the latest is on time, or among those that the next decision reaches. Where the calendar ends with this one,
        // there is no next: the latest that it looked at stands for all.
        Missed::Once if on_time.is_empty() && (!behind || when == When::NominalTime) => {
            &late[late.len().saturating_sub(1)..]
        }
        Missed::Skip | Missed::Once => &[],
        Missed::All if state.behind => &[],
        Missed::All => &late[..late.len().min(limits::CATCH_UP_MAX)],
    };
    let chosen: Vec<Timestamp> =
        made_up.iter().chain(&on_time[..on_time.len().min(limits::FRESH_MAX)]).copied().collect();
    let missed = (come.len() - chosen.len()) as u64;
    let until = until(spec, cx.now);
    let mut open: Vec<OpenJob> = state.open.clone();
    let mut fires = Vec::new();
    let mut overlapped = 0;
    for nominal in &chosen {
        if spec.overlap == Overlap::Skip && open.iter().any(|o| o.until > cx.now) {
            overlapped += 1;
            continue;
        }
        let job = job_of(cx.id, *nominal);
        open.extend(until.map(|until| OpenJob { job, until }));
        fires.push(Fire { nominal: *nominal, at: cx.now, job, by_hand: false });
    }
    let messages = fires.iter().map(|fire| creation(&state.name, spec, fire, cx.id)).collect();
    let event = Event::ScheduleFired { fires, missed, overlapped, through, next, behind, until };
    let timers = vec![timer(cx.id, spec, next, cx.now)];
    Ok(Decision { events: vec![event], messages, timers, ..Decision::default() })
}

/// The job of a nominal time: decided twice, it is the same.
pub fn job_of(schedule: EntityId, nominal: Timestamp) -> EntityId {
    EntityId::derived(schedule, &format!("at/{}", nominal.as_micros()), nominal)
}

/// By when a job of this schedule is over, where somebody has to know.
fn until(spec: &Spec, now: Timestamp) -> Option<Timestamp> {
    /// Between a fire and the birth of its job, and between its end and the word of it.
    const SLACK: Duration = Duration::from_secs(600);
    let wait = Duration::from_millis(spec.terms.start_in_ms.unwrap_or(0));
    let runs = Duration::from_millis(spec.must_end_in_ms);
    (spec.overlap == Overlap::Skip).then(|| now + wait + runs + SLACK)
}

/// How much later than its nominal time a fire is served. It follows from both, so that it is the same whoever asks.
fn jitter(schedule: EntityId, nominal: Timestamp, spec: &Spec) -> Duration {
    if spec.jitter_ms == 0 {
        return Duration::ZERO;
    }
    let hash = Hash::of(format!("jitter/{schedule}/{}", nominal.as_micros()).as_bytes());
    let word = hash.0.iter().take(8).fold(0u64, |word, byte| word << 8 | u64::from(*byte));
    Duration::from_millis(word % (spec.jitter_ms + 1))
}

fn timer(id: EntityId, spec: &Spec, next: Option<Timestamp>, now: Timestamp) -> TimerChange {
    match next {
        Some(next) => TimerChange::set(FIRE, (next + jitter(id, next, spec)).since(now)),
        None => TimerChange::clear(FIRE),
    }
}

fn creation(name: &str, spec: &Spec, fire: &Fire, schedule: EntityId) -> Message {
    let mut terms = spec.terms.clone();
    if spec.overlap == Overlap::Skip {
        terms.tell = Some(schedule);
    }
    let new = NewJob {
        flow: spec.flow.clone(),
        version: spec.version,
        input: spec.input.clone(),
        priority: spec.priority,
        must_end_in_ms: spec.must_end_in_ms,
        takeovers_max: spec.takeovers_max,
        terms,
        scheduled: Some(Scheduled { schedule: name.to_owned(), nominal: fire.nominal }),
        by: Some(format!("schedule {name}")),
        ..NewJob::default()
    };
    let to = Target::Create { id: fire.job, kind: Job::TABLE.kind.into() };
    Message { to, kind: "create".into(), body: Body::json(&new) }
}
