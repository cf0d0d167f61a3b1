//! One sentence: what a job waits for, who holds it, since when, and what happens next. Where a person can
//! move it, the sentence has the command to type.

use super::{CancelView, HolderView, JobView, TimerView, WaitView};
use crate::model::{Attention, Failure};
use std::time::Duration;
use tenure_kernel::time::Timestamp;
use tenure_steps::{
    events::{TimerWhy, WaitKind},
    flow::queue_of,
};

/// Why a job is where it is, and what moves it.
pub fn why(job: &JobView, now: Timestamp) -> String {
    match job.status.as_str() {
        "completed" => format!("Completed {} after {}.", at(job.changed_at), took(job)),
        "failed" => failed(job),
        "cancelled" => format!("Cancelled{} {}.", by(job.cancel.as_ref()), at(job.changed_at)),
        _ => {
            let says = match (&job.fault, overdue(job, now)) {
                (_, Some(late)) => late,
                (Some(fault), None) => {
                    format!("Nobody can decide about it: {}", fault.trim_end_matches('.'))
                }
                (None, None) => open(job, now),
            };
            format!("{says}{}.", ends_by(job, now))
        }
    }
}

fn open(job: &JobView, now: Timestamp) -> String {
    match job.status.as_str() {
        "queued" => queued(job, now),
        "running" => held(job, now),
        "attention" => match &job.attention {
            Some(attention) => asks_a_person(job, attention, now),
            None => "A person has to look, and nobody has said why".to_owned(),
        },
        "cancelling" => cancelling(job),
        _ if job.paused => {
            let by = job.paused_by.as_ref().map(|b| format!(" by {b}")).unwrap_or_default();
            let since = since(job.changed_at, now);
            format!("Paused{by} {since}: `tenure job resume {}` lets it go on", job.id)
        }
        "retrying" => retrying(job, now),
        _ => waits(job, now),
    }
}

fn queued(job: &JobView, now: Timestamp) -> String {
    let queue = queue_of(&job.flow, job.version);
    let since = since(job.changed_at, now);
    let again = match job.takeovers {
        0 => String::new(),
        n => format!(" after {n} of {} lost workers", job.takeovers_max + 1),
    };
    match job.workers {
        Some(0) => format!(
            "Queued{again} {since}, and no live worker runs {queue}: it starts when one comes (`tenure worker`)"
        ),
        _ => format!("Queued{again} {since}: the next worker with room for {queue} takes it"),
    }
}

fn held(job: &JobView, now: Timestamp) -> String {
    let Some(HolderView { name, expires_at, .. }) = &job.holder else {
        return "Between two workers: the next one takes it at once".to_owned();
    };
    if let Some(expired) = expires_at.filter(|e| *e <= now) {
        return format!(
            "Worker {name} (attempt {}) has not been heard since its lease ended {}: its tenure ends with the next \
             look at it, and another worker goes on",
            job.attempt,
            at(expired)
        );
    }
    let attempt = job.attempt;
    let unknown = job.running.iter().find_map(|c| c.unknown.as_ref().map(|why| (c, why)));
    if let Some((call, why)) = unknown {
        return format!(
            "Worker {name} (attempt {attempt}) settles step {}, of which nobody knows whether {} happened ({why})",
            call.step, call.tool
        );
    }
    match job.running.as_slice() {
        [] => format!("Worker {name} (attempt {attempt}) drives its flow"),
        [call] => format!(
            "Worker {name} (attempt {attempt}) runs step {}, tool {}, {}",
            call.step,
            call.tool,
            since(job.changed_at, now)
        ),
        [call, rest @ ..] => format!(
            "Worker {name} (attempt {attempt}) runs step {}, tool {}, and {} more",
            call.step,
            call.tool,
            rest.len()
        ),
    }
}

fn waits(job: &JobView, now: Timestamp) -> String {
    let sleeps: Vec<&TimerView> = job.timers.iter().collect();
    let more = |shown: usize| match job.waits.len() + sleeps.len() + job.children.len() - shown {
        0 => String::new(),
        n => format!(" (and {n} more)"),
    };
    if let Some(wait) = job.waits.first() {
        return format!("{}{}", wait_text(job, wait, now), more(1));
    }
    if let Some(timer) = sleeps.iter().min_by_key(|t| t.at) {
        let until = timer.at.map_or("a time that a pause took away".into(), |t| when(t, now));
        return format!("Step {} sleeps until {until}{}", timer.step, more(1));
    }
    match job.children.as_slice() {
        [] => format!("Woken {} and about to be queued", since(job.changed_at, now)),
        [child] => format!(
            "Waits {} for its child {} (step {})",
            since(job.changed_at, now),
            child.job,
            child.step
        ),
        [child, ..] => format!(
            "Waits {} for {} children, the first of them {}",
            since(job.changed_at, now),
            job.children.len(),
            child.job
        ),
    }
}

fn wait_text(job: &JobView, wait: &WaitView, now: Timestamp) -> String {
    let WaitView { step, kind, key, deadline, note } = wait;
    let since = since(job.changed_at, now);
    let note = note.as_ref().map(|n| format!(" ({n:?})")).unwrap_or_default();
    let (id, key) = (job.id, shell(key));
    let (what, command) = match kind {
        WaitKind::Human => (
            "a person's decision on",
            format!("`tenure job approve {id} {key}` or `tenure job reject {id} {key}`"),
        ),
        WaitKind::Webhook => ("the webhook", format!("`tenure job signal {id} {key}`")),
        WaitKind::Signal => ("the signal", format!("`tenure job signal {id} {key}`")),
        WaitKind::Timer => ("the time", String::new()),
    };
    let how = if command.is_empty() { command } else { format!(": {command}") };
    let until = deadline.map(|d| format!(", which expires {}", when(d, now))).unwrap_or_default();
    format!("Step {step} waits {since} for {what} {key}{note}{until}{how}")
}

fn retrying(job: &JobView, now: Timestamp) -> String {
    let retry = job.timers.iter().find(|t| t.why == TimerWhy::Retry);
    let Some(TimerView { step, at, attempts, attempts_max, error, .. }) = retry else {
        return "A failed call is about to be tried again".to_owned();
    };
    let error = error.as_ref().map(|e| format!(" ({e})")).unwrap_or_default();
    let next = attempts.map_or(String::new(), |n| match attempts_max {
        Some(max) => format!(", attempt {} of {max}", n + 1),
        None => format!(", attempt {}", n + 1),
    });
    let when = at.map_or("once it is resumed".into(), |t| when(t, now));
    format!("Step {step} failed{error} and is tried again {when}{next}")
}

fn asks_a_person(job: &JobView, attention: &Attention, now: Timestamp) -> String {
    let Attention { reason, step, why, again_in_ms } = attention;
    let id = job.id;
    let why = why.trim_end_matches('.');
    let again = again_in_ms.map(|ms| {
        let at = job.changed_at + Duration::from_millis(ms);
        format!("; it looks again by itself {}", when(at, now))
    });
    let again = again.unwrap_or_default();
    match (reason.as_str(), step) {
        ("unknown_outcome", Some(step)) => {
            let call = job.running.iter().find(|c| c.step == *step);
            let tool = call.map_or(String::new(), |c| format!(" ({})", c.tool));
            format!(
                "Nobody knows whether step {step}{tool} happened ({why}): say so with `tenure job resolve {id} --step \
                 {step} --happened '{{…}}'`, `--did-not-happen` or `--abandon`{again}"
            )
        }
        ("diverged", Some(step)) => format!(
            "The flow's code does not fit the job's history ({why}): run code that does and type `tenure job resume \
             {id}`, or go on with other code from `tenure job fork {id} --step {step} --version …`"
        ),
        _ => format!("{why}: repair the flow and type `tenure job resume {id}`{again}"),
    }
}

fn cancelling(job: &JobView) -> String {
    let mut left = Vec::new();
    match job.running.len() {
        0 => {}
        1 => left.push(format!("step {} to stop", job.running[0].step)),
        n => left.push(format!("{n} running steps to stop")),
    }
    match job.children.as_slice() {
        [] => {}
        [child] => left.push(format!("its child {} to end", child.job)),
        children => left.push(format!("{} children to end", children.len())),
    }
    let by = by(job.cancel.as_ref());
    match left.is_empty() {
        true => format!("Being cancelled{by}, and about to end"),
        false => format!("Being cancelled{by}: waits for {}", left.join(" and ")),
    }
}

fn failed(job: &JobView) -> String {
    let at = at(job.changed_at);
    let Some(Failure { reason, error, step, unknown, .. }) = &job.failure else {
        return format!("Failed {at}: the kernel ended it when its time was up.");
    };
    let step = step.as_ref().map(|s| format!(" at step {s}")).unwrap_or_default();
    let unknown = match unknown.first() {
        None => String::new(),
        Some(first) => format!(
            "; nobody knows whether step {first} happened: `tenure job resolve {} --step {first} …` records what you \
             find out",
            job.id
        ),
    };
    let error = error.trim_end_matches('.');
    format!(
        "Failed {at}{step} ({reason}): {error}{unknown}; `tenure job retry {}` goes on from there in a new job.",
        job.id
    )
}

fn overdue(job: &JobView, now: Timestamp) -> Option<String> {
    let end = job.must_end_by.filter(|end| *end <= now)?;
    Some(format!("Its time was up {}, and it ends with the next look at it", at(end)))
}

fn ends_by(job: &JobView, now: Timestamp) -> String {
    match job.must_end_by {
        Some(end) if end > now => format!("; it ends {} at the latest", when(end, now)),
        _ => String::new(),
    }
}

fn by(cancel: Option<&CancelView>) -> String {
    let Some(CancelView { by, why }) = cancel else { return String::new() };
    let by = by.as_ref().map(|b| format!(" by {b}")).unwrap_or_default();
    let why = why.as_ref().map(|w| format!(" ({w})")).unwrap_or_default();
    format!("{by}{why}")
}

/// A key as a shell takes it.
fn shell(key: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    match !key.is_empty() && key.chars().all(plain) {
        true => key.to_owned(),
        false => format!("'{}'", key.replace('\'', "'\\''")),
    }
}

fn took(job: &JobView) -> String {
    span(job.changed_at.since(job.created_at))
}

fn since(then: Timestamp, now: Timestamp) -> String {
    format!("for {}", span(now.since(then)))
}

/// A moment to come: when, and how long that is from now.
fn when(then: Timestamp, now: Timestamp) -> String {
    match then <= now {
        true => "now".to_owned(),
        false => format!("{} (in {})", at(then), span(then.since(now))),
    }
}

fn at(moment: Timestamp) -> String {
    let text = moment.to_string();
    // The format is our own: date, `T`, time to the second, fraction.
    format!("{} {}Z", text.get(..10).unwrap_or(&text), text.get(11..19).unwrap_or_default())
}

/// A length of time in its largest unit, as people say it.
pub(super) fn span(d: Duration) -> String {
    let s = d.as_secs();
    match s {
        0 if d.as_millis() < 1 => "0 ms".to_owned(),
        0 => format!("{} ms", d.as_millis()),
        1..100 => format!("{s} s"),
        100..5_400 => format!("{} min", (s + 30) / 60),
        5_400..172_800 => format!("{} h", (s + 1_800) / 3_600),
        _ => format!("{} days", (s + 43_200) / 86_400),
    }
}
