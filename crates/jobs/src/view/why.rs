//! One sentence: what a job waits for, who holds it, since when, and what happens next. Where a person can
//! move it, the sentence has the command to type.

use super::{CancelView, HolderView, JobView, TimerView, WaitView};
use crate::{
    model::{Attention, Failure},
    serving::{Parts, flow_of, parts},
    shared::limit::model::EVERYBODY,
    terms::UNNAMED,
};
use std::time::Duration;
use tenure_kernel::time::Timestamp;
use tenure_steps::{
    events::{TimerWhy, WaitKind, What},
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
    if let Some(block) = &job.blocked {
        let held = job.holder.is_some();
        let then = if held {
            "it stops after the step that runs"
        } else {
            "it goes on when that is removed"
        };
        return format!("Blocked: {block}; {then}");
    }
    match job.status.as_str() {
        "queued" => queued(job, now),
        "running" => held(job, now),
        "attention" => match &job.attention {
            Some(attention) => asks_a_person(job, attention, now),
            None => "A person has to look, and nobody has said why".to_owned(),
        },
        "cancelling" => cancelling(job),
        "undoing" => format!(
            "Being cancelled{}: the next worker with room for {}@{} undoes what it had done",
            by(job.cancel.as_ref()),
            job.flow,
            job.version
        ),
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
    let queue = job.queue.clone().unwrap_or_else(|| queue_of(&job.flow, job.version));
    let since = since(job.changed_at, now);
    let again = match job.takeovers {
        0 => String::new(),
        n => format!(" after {n} of {} lost workers", job.takeovers_max + 1),
    };
    let serves = job.queue.as_deref().and_then(|q| parts(q, flow_of(q)));
    match (job.workers, serves) {
        (Some(0), Some(Parts { queue: named, needs })) => {
            let name = named.unwrap_or(UNNAMED);
            let lacks = match needs.as_slice() {
                [] => String::new(),
                needs => format!(" (needs {})", needs.join(", ")),
            };
            let can: String = needs.iter().map(|n| format!(" --can {n}")).collect();
            format!(
                "Queued{again} {since}, and no live worker serves queue {name}{lacks} of {}: it starts when one comes \
                 (`tenure worker --queue {name}{can}`)",
                flow_of(&queue)
            )
        }
        (Some(0), None) => format!(
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
    if let Some(handed) = handed(job, now)
        && job.running.iter().all(|c| c.handed.is_some())
    {
        return handed;
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

/// A call that is with others.
fn handed(job: &JobView, now: Timestamp) -> Option<String> {
    let (call, handed) = job.running.iter().find_map(|c| Some((c, c.handed.as_ref()?)))?;
    let (step, tool, id) = (&call.step, &call.tool, handed.call);
    let what = match handed.what {
        What::Call => "",
        What::Probe => "the probe of ",
        What::Compensate => "the compensation of ",
    };
    let since = since(handed.since.unwrap_or(job.changed_at), now);
    let more = match job.running.iter().filter(|c| c.handed.is_some()).count() - 1 {
        0 => String::new(),
        n => format!(" (and {n} more)"),
    };
    if let (Some(kind), Some(status)) = (&handed.kind, &handed.status) {
        return Some(format!(
            "Step {step} waits for {what}{tool}: its {kind} {id} is {status} {since}; `tenure {kind} why {id}` says what that waits for{more}"
        ));
    }
    Some(match (handed.status.as_deref(), &handed.held_by) {
        (Some("running"), Some(worker)) => {
            format!(
                "Step {step} waits for {what}{tool}, which worker {worker} has {since} (call {id}){more}"
            )
        }
        (Some("queued"), _) => {
            let whose = limit_of(handed.limit_of.as_deref());
            let limited = handed.limited_until.filter(|at| *at > now);
            let ahead = match (handed.workers, handed.ahead) {
                (Some(0), _) => "no live worker has it".to_owned(),
                (_, Some(n)) if n > 0 => format!("{n} ahead of it"),
                _ => "the next one with room takes it".to_owned(),
            };
            let limited = limited.map_or_else(String::new, |at| {
                format!(", and the rate limit{whose} lets the next call begin {}", when(at, now))
            });
            format!(
                "Step {step} waits {since} for a worker with the tool {what}{tool}: {ahead}{limited} (call {id}){more}"
            )
        }
        (status, _) => {
            let status = status.unwrap_or("on its way to the queue");
            format!("Step {step} waits for {what}{tool}, which is {status} (call {id}){more}")
        }
    })
}

/// Whose limit it is.
fn limit_of(whose: Option<&str>) -> String {
    match whose {
        Some(EVERYBODY) => " (everybody's together)".to_owned(),
        Some(tenant) => format!(" (of tenant {tenant})"),
        None => String::new(),
    }
}

fn waits(job: &JobView, now: Timestamp) -> String {
    if let Some(at) = job.starts_at {
        return format!("Starts {}", when(at, now));
    }
    if let Some(gate) = &job.gate {
        let before = gate.before.map_or(String::new(), |n| format!(": {n} before it"));
        let held = match gate.held_by.as_slice() {
            [] => String::new(),
            [one] => format!(", held by job {one}"),
            [one, ..] => format!(", held by job {one} and others"),
        };
        let since = since(job.changed_at, now);
        return format!("Waits {since} for gate {}{before}{held}", gate.name);
    }
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
        let step = &timer.step;
        if let (TimerWhy::Limit, Some(tool)) = (timer.why, &timer.tool) {
            let whose = limit_of(timer.limit_of.as_deref());
            // A place in the line is an estimate. Behind it stand those who could not say so.
            let turn = match timer.about {
                Some(about) if about > now => format!("its turn comes about {}", when(about, now)),
                Some(about) => format!("it is its turn since {}", at(about)),
                None => "it stands in the line".to_owned(),
            };
            return format!(
                "Step {step} waits for the rate limit of {tool}{whose}: {turn}, and it asks next {until}{}",
                more(1)
            );
        }
        return format!("Step {step} sleeps until {until}{}", more(1));
    }
    if let (Some(handed), true) = (handed(job, now), job.children.is_empty()) {
        return handed;
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
             {id}`, or go on with other code from `tenure job fork {id} --step {step} --flow-version …`"
        ),
        _ => format!(
            "Its flow can not go on ({why}): repair it and type `tenure job resume {id}`{again}"
        ),
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
    let id = job.id;
    // Nothing is advised that would be refused.
    let then = match unknown.first() {
        _ if job.undid => {
            "what it had done was undone as far as possible: submit it anew".to_owned()
        }
        None => format!("`tenure job retry {id}` goes on from there in a new job"),
        Some(first) => format!(
            "nobody knows whether step {first} happened: first record what you find out with `tenure job resolve {id} \
             --step {first} …`, then `tenure job retry {id}` goes on from there in a new job"
        ),
    };
    let error = error.trim_end_matches('.');
    format!("Failed {at}{step} ({reason}): {error}; {then}.")
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::ChildView;
    use serde_json::json;
    use tenure_kernel::ids::EntityId;

    const NOW: Timestamp = Timestamp::from_micros(1_709_210_096_000_000);

    /// A job that became this three minutes ago, with some fields of its own.
    fn job(status: &str, more: serde_json::Value) -> JobView {
        let minute = 60_000_000;
        let is_final = ["completed", "failed", "cancelled"].contains(&status);
        let mut view = json!({
            "id": EntityId::fixed(7, 1), "flow": "pay", "version": 2, "status": status, "is_final": is_final,
            "tenant": "", "priority": 0, "created_at": NOW.as_micros() - 10 * minute,
            "changed_at": NOW.as_micros() - 3 * minute, "attempt": 3, "takeovers": 0, "takeovers_max": 5,
            "paused": false, "running": [], "waits": [], "timers": [], "children": [], "mail_unread": 0, "run": 1,
            "steps_done": 0, "events": 1, "head_version": 1,
        });
        for (field, value) in more.as_object().unwrap() {
            view[field] = value.clone();
        }
        serde_json::from_value(view).unwrap()
    }

    fn says(status: &str, more: serde_json::Value) -> String {
        let said = why(&job(status, more), NOW);
        assert!(said.ends_with('.') && !said.ends_with(".."), "{said}");
        said.replace("00000000-0000-7000-8000-000000070001", "ID")
    }

    #[test]
    fn a_call_that_others_have_is_told_with_who_has_it_or_why_nobody_does() {
        let call = |more: serde_json::Value| {
            let mut handed = json!({ "call": EntityId::fixed(7, 1), "what": "call", "since": NOW.as_micros() - 60_000_000 });
            for (field, value) in more.as_object().unwrap() {
                handed[field] = value.clone();
            }
            json!({ "running": [{ "step": "1", "tool": "pay", "class": "irreversible", "call": 1, "key": "k", "handed": handed }] })
        };
        let said = says("waiting", call(json!({ "status": "queued", "workers": 0, "ahead": 0 })));
        assert_eq!(
            said,
            "Step 1 waits for 60 s for a worker with the tool pay: no live worker has it (call ID)."
        );
        let said = says("waiting", call(json!({ "status": "queued", "workers": 2, "ahead": 3 })));
        assert!(said.contains("3 ahead of it"), "{said}");
        let said = says("waiting", call(json!({ "status": "running", "held_by": "py/7" })));
        assert_eq!(said, "Step 1 waits for pay, which worker py/7 has for 60 s (call ID).");
        let said = says("waiting", call(json!({})));
        assert!(said.contains("on its way to the queue"), "{said}");
    }

    fn in_secs(secs: i64) -> i64 {
        NOW.as_micros() + secs * 1_000_000
    }

    fn call(step: &str, unknown: Option<&str>) -> serde_json::Value {
        json!({ "step": step, "tool": "charge", "class": "irreversible", "call": 1, "key": "k", "unknown": unknown })
    }

    #[test]
    fn queued() {
        assert_eq!(
            says("queued", json!({ "workers": 2, "must_end_by": in_secs(7_200) })),
            "Queued for 3 min: the next worker with room for pay@2 takes it; it ends 2024-02-29 14:34:56Z (in 2 h) at \
             the latest."
        );
        assert_eq!(
            says("queued", json!({ "workers": 0 })),
            "Queued for 3 min, and no live worker runs pay@2: it starts when one comes (`tenure worker`)."
        );
        assert_eq!(
            says("queued", json!({ "takeovers": 2 })),
            "Queued after 2 of 6 lost workers for 3 min: the next worker with room for pay@2 takes it."
        );
    }

    #[test]
    fn running() {
        let holder =
            json!({ "session": EntityId::fixed(8, 1), "name": "w1", "expires_at": in_secs(9) });
        assert_eq!(
            says("running", json!({ "holder": holder })),
            "Worker w1 (attempt 3) drives its flow."
        );
        assert_eq!(
            says("running", json!({ "holder": holder, "running": [call("4", None)] })),
            "Worker w1 (attempt 3) runs step 4, tool charge, for 3 min."
        );
        let two = json!([call("4", None), call("5", None)]);
        assert_eq!(
            says("running", json!({ "holder": holder, "running": two })),
            "Worker w1 (attempt 3) runs step 4, tool charge, and 1 more."
        );
        assert_eq!(
            says(
                "running",
                json!({ "holder": holder, "running": [call("4", Some("it timed out"))] })
            ),
            "Worker w1 (attempt 3) settles step 4, of which nobody knows whether charge happened (it timed out)."
        );
        let silent =
            json!({ "session": EntityId::fixed(8, 1), "name": "w1", "expires_at": in_secs(-5) });
        assert_eq!(
            says("running", json!({ "holder": silent })),
            "Worker w1 (attempt 3) has not been heard since its lease ended 2024-02-29 12:34:51Z: its tenure ends with \
             the next look at it, and another worker goes on."
        );
    }

    #[test]
    fn waiting() {
        let wait = |kind: &str, key: &str, deadline: Option<i64>, note: Option<&str>| json!([{ "step": "2", "kind": kind, "key": key, "deadline": deadline, "note": note }]);
        assert_eq!(
            says("parked", json!({ "waits": wait("signal", "order 7", Some(in_secs(60)), None) })),
            "Step 2 waits for 3 min for the signal 'order 7', which expires 2024-02-29 12:35:56Z (in 60 s): `tenure job \
             signal ID 'order 7'`."
        );
        assert_eq!(
            says("waiting", json!({ "waits": wait("human", "boss", None, Some("is it fine?")) })),
            "Step 2 waits for 3 min for a person's decision on boss (\"is it fine?\"): `tenure job approve ID boss` or \
             `tenure job reject ID boss`."
        );
        let sleep = json!([{ "step": "5", "why": "sleep", "at": in_secs(90) }]);
        assert_eq!(
            says("waiting", json!({ "waits": wait("webhook", "w", None, None), "timers": sleep })),
            "Step 2 waits for 3 min for the webhook w: `tenure job signal ID w` (and 1 more)."
        );
        assert_eq!(
            says("waiting", json!({ "timers": sleep })),
            "Step 5 sleeps until 2024-02-29 12:36:26Z (in 90 s)."
        );
        let child =
            |n: u32| ChildView { ordinal: n, job: EntityId::fixed(7, 1), step: "1".into_step() };
        assert_eq!(
            says("waiting", json!({ "children": [child(0)] })),
            "Waits for 3 min for its child ID (step 1)."
        );
        assert_eq!(
            says("waiting", json!({ "children": [child(0), child(1)] })),
            "Waits for 3 min for 2 children, the first of them ID."
        );
        assert_eq!(
            says(
                "parked",
                json!({ "paused": true, "paused_by": "ann", "waits": wait("signal", "a", None, None) })
            ),
            "Paused by ann for 3 min: `tenure job resume ID` lets it go on."
        );
    }

    trait IntoStep {
        fn into_step(self) -> tenure_steps::events::StepId;
    }
    impl IntoStep for &str {
        fn into_step(self) -> tenure_steps::events::StepId {
            tenure_steps::events::StepId(self.to_owned())
        }
    }

    #[test]
    fn retrying() {
        let retry = |more: serde_json::Value| {
            let mut timer = json!({ "step": "3", "why": "retry", "at": in_secs(5) });
            timer.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            says("retrying", json!({ "timers": [timer] }))
        };
        assert_eq!(
            retry(json!({ "attempts": 1, "attempts_max": 4, "error": "503" })),
            "Step 3 failed (503) and is tried again 2024-02-29 12:35:01Z (in 5 s), attempt 2 of 4."
        );
        assert_eq!(
            retry(json!({})),
            "Step 3 failed and is tried again 2024-02-29 12:35:01Z (in 5 s)."
        );
    }

    #[test]
    fn attention() {
        let of = |reason: &str, why: &str, again: Option<u64>| json!({ "reason": reason, "step": "3", "why": why, "again_in_ms": again });
        let unknown = of("unknown_outcome", "step 3: the line went dead", Some(190_000));
        assert_eq!(
            says(
                "attention",
                json!({ "attention": unknown, "running": [call("3", Some("dead"))] })
            ),
            "Nobody knows whether step 3 (charge) happened (step 3: the line went dead): say so with `tenure job resolve \
             ID --step 3 --happened '{…}'`, `--did-not-happen` or `--abandon`; it looks again by itself 2024-02-29 \
             12:35:06Z (in 10 s)."
        );
        assert_eq!(
            says(
                "attention",
                json!({ "attention": of("diverged", "recorded is a, the code asks for b", None) })
            ),
            "The flow's code does not fit the job's history (recorded is a, the code asks for b): run code that does and \
             type `tenure job resume ID`, or go on with other code from `tenure job fork ID --step 3 --flow-version …`."
        );
        assert_eq!(
            says(
                "attention",
                json!({ "attention": of("broken", "the flow panicked after it.rs:3", None) })
            ),
            "Its flow can not go on (the flow panicked after it.rs:3): repair it and type `tenure job resume ID`."
        );
    }

    #[test]
    fn cancelling_and_out_of_time() {
        let cancel = json!({ "by": "ann", "why": "wrong order" });
        let child = ChildView { ordinal: 0, job: EntityId::fixed(7, 1), step: "1".into_step() };
        assert_eq!(
            says(
                "cancelling",
                json!({ "cancel": cancel, "children": [child], "running": [call("4", None)] })
            ),
            "Being cancelled by ann (wrong order): waits for step 4 to stop and its child ID to end."
        );
        assert_eq!(
            says("waiting", json!({ "must_end_by": in_secs(-60) })),
            "Its time was up 2024-02-29 12:33:56Z, and it ends with the next look at it."
        );
        assert_eq!(
            says("waiting", json!({ "fault": "mail 3 can not be read." })),
            "Nobody can decide about it: mail 3 can not be read."
        );
    }

    #[test]
    fn ended() {
        assert_eq!(says("completed", json!({})), "Completed 2024-02-29 12:31:56Z after 7 min.");
        assert_eq!(
            says("cancelled", json!({ "cancel": { "by": "ann" } })),
            "Cancelled by ann 2024-02-29 12:31:56Z."
        );
        let failure = json!({ "reason": "unknown_outcome", "error": "must_end_by passed.", "step": "3", "unknown": ["3"] });
        assert_eq!(
            says("failed", json!({ "failure": failure })),
            "Failed 2024-02-29 12:31:56Z at step 3 (unknown_outcome): must_end_by passed; nobody knows whether step 3 \
             happened: first record what you find out with `tenure job resolve ID --step 3 …`, then `tenure job retry ID` goes \
             on from there in a new job."
        );
        let failure = json!({ "reason": "flow_failed", "error": "no", "step": "3" });
        assert_eq!(
            says("failed", json!({ "failure": failure })),
            "Failed 2024-02-29 12:31:56Z at step 3 (flow_failed): no; `tenure job retry ID` goes on from there in a new job."
        );
        assert_eq!(
            says("failed", json!({ "failure": failure, "undid": true })),
            "Failed 2024-02-29 12:31:56Z at step 3 (flow_failed): no; what it had done was undone as far as possible: submit \
             it anew."
        );
        assert_eq!(
            says("failed", json!({})),
            "Failed 2024-02-29 12:31:56Z: the kernel ended it when its time was up."
        );
    }
}
