//! One sentence about a task: what it waits for, who has to act, and what happens if nobody does.

use super::task::{NextRule, PodLook, Proof, TaskView};
use crate::{
    pod::table::{TENDED, WANTED},
    task::{
        decide::in_words,
        policy::NoRetry,
        table::{CANCELED, PENDING, QUEUED, RUNNING, SUCCEEDED},
    },
    verdict::TaskStatus,
};
use std::time::Duration;
use tenure_kernel::time::Timestamp;

/// Why a task is where it is, and what moves it.
pub fn why(task: &TaskView, now: Timestamp) -> String {
    if task.is_final {
        return ended(task);
    }
    let says = match &task.fault {
        Some(fault) => format!("Nobody can decide about it: {}", fault.trim_end_matches('.')),
        None => open(task, now),
    };
    capital(&format!("{says}{}.", next(task, now)))
}

/// A sentence begins with a capital letter, also where a pod is its subject.
fn capital(sentence: &str) -> String {
    let mut rest = sentence.chars();
    rest.next().map_or_else(String::new, |c| c.to_uppercase().chain(rest).collect())
}

fn ended(task: &TaskView) -> String {
    let took = span(task.changed_at.since(task.created_at));
    let attempts = match task.attempt {
        0 | 1 => String::new(),
        n => format!(" in attempt {n}"),
    };
    let how = task.ended.as_ref().map(in_words).unwrap_or_default();
    let unseen = match task.ended.as_ref().is_some_and(|e| e.inferred) {
        true => "; nobody saw its pod end: that was inferred from its absence",
        false => "",
    };
    let proof = task.proof.as_ref().map(|p| format!("; {}, the status stays", proven(p)));
    let later = format!("{unseen}{}", proof.unwrap_or_default());
    match task.status.as_str() {
        SUCCEEDED => format!("Ended well after {took}{attempts}{later}."),
        CANCELED => {
            let ask = task.cancel.clone().unwrap_or_default();
            let by = ask.by.map(|by| format!(" by {by}")).unwrap_or_default();
            let why = ask.why.map(|w| format!(": {w}")).unwrap_or_default();
            let left = match task.pod_may_run {
                true => "; its pod was asked to stop, and is not known to be over",
                false => "",
            };
            format!("Cancelled{by} after {took}{why}{left}{later}.")
        }
        _ => {
            let no = task.no_retry.map(|n| format!("; {}", n.words())).unwrap_or_default();
            let do_next = match (task.no_retry, task.external) {
                (_, true) => "",
                (Some(NoRetry::NotFenced), _) => {
                    "; see what became of the pod, then `tenure task replay` or `discard` it"
                }
                _ => "; `tenure task replay` orders it once more, `discard` puts it aside",
            };
            let how = how.trim_end_matches('.');
            format!("Failed after {took}{attempts}: {how}{no}{later}{do_next}.")
        }
    }
}

/// What somebody proved after the end.
pub(super) fn proven(proof: &Proof) -> String {
    let Proof { ended, by, .. } = proof;
    let status = ended.status.map_or("ended", TaskStatus::name);
    let how = match (ended.cause, ended.exit_code) {
        (Some(_), _) => format!(", {}", in_words(ended)),
        (None, Some(code)) => format!(" (exit code {code})"),
        (None, None) => String::new(),
    };
    format!("later {by} proved that its pod was {status}{how}")
}

fn open(task: &TaskView, now: Timestamp) -> String {
    let since = format!("for {}", span(now.since(task.changed_at)));
    if let Some(ask) = &task.cancel {
        let by = ask.by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
        let pod = pod_name(task);
        let held_up = task.tended.as_ref().map(held_up).unwrap_or_default();
        return format!("Being cancelled{by}: waits until {pod} is over{held_up}");
    }
    if task.inferred.is_some() {
        let pod = pod_name(task);
        return format!(
            "{pod} is missing, and nobody has said how it ended: whoever saw it is waited for"
        );
    }
    match task.status.as_str() {
        PENDING => format!(
            "No pod of it was seen {since}; its pods are made elsewhere, with the label flowforge.io/task-id={}",
            task.task_id
        ),
        QUEUED => queued(task, &since),
        RUNNING => {
            let (pod, on) = (pod_name(task), node(task));
            let runs = task.running_since.unwrap_or(task.changed_at);
            let runs = span(now.since(runs));
            format!("{pod} runs{on} for {runs}, attempt {}", task.attempt)
        }
        _ => retrying(task),
    }
}

fn queued(task: &TaskView, since: &str) -> String {
    let attempt = task.attempt;
    match &task.tended {
        None if task.external => format!(
            "{} exists and its main container does not run yet: it waits for a node, its image or its volumes",
            pod_name(task)
        ),
        None => format!("A pod for attempt {attempt} is being ordered"),
        Some(pod) if pod.status == WANTED && !pod.made => format!(
            "Waits {since} for an executor{} to make its pod (attempt {attempt}): start `tenure executor`, or look why it \
             does not take work from queue {:?}",
            match task.cluster.as_str() {
                "" => String::new(),
                cluster => format!(" of cluster {cluster:?}"),
            },
            pod.queue
        ),
        Some(pod) if pod.status == TENDED && !pod.made => format!(
            "Executor {} is making pod {} (attempt {attempt}) {since}{}",
            pod.executor.as_deref().unwrap_or("?"),
            pod.name.as_deref().unwrap_or("of it"),
            held_up(pod)
        ),
        Some(pod) if pod.status == WANTED => format!(
            "Its pod {} exists, and the executor that followed it is gone: another takes over; the collector's word counts \
             meanwhile",
            pod.name.as_deref().unwrap_or("of this attempt")
        ),
        Some(_) => format!(
            "{} exists and its main container does not run yet: it waits for a node, its image or its volumes (`kubectl \
             describe pod` says which)",
            pod_name(task)
        ),
    }
}

/// Why the cluster does not do what an executor asks of it, and what to do about that.
fn held_up(pod: &PodLook) -> String {
    let (Some(what), Some(why)) = (&pod.waits_for, &pod.waits_why) else { return String::new() };
    let fix = match what.as_str() {
        "quota" => "it goes on when the namespace has room, or its quota is raised",
        "forbidden" => {
            "it goes on when the account of the executor has that right (docs/kubernetes.md)"
        }
        "unauthorized" => "it goes on when the API server knows the account of the executor",
        "service_account" => "it goes on when the namespace has that service account",
        "webhook" => "it goes on when that webhook answers",
        "throttled" => "it goes on when the API server has time",
        "late" => "it goes on when an earlier request can no longer arrive",
        _ => "it goes on when the API server answers",
    };
    format!("; not done yet: {}; {fix}", why.trim_end_matches('.'))
}

fn retrying(task: &TaskView) -> String {
    let how = task.ended.as_ref().map(in_words).unwrap_or_else(|| "it failed".to_owned());
    let how = format!("Attempt {} failed ({})", task.attempt, how.trim_end_matches('.'));
    let waits = match task.waits_for.as_deref() {
        Some("pause") if task.pod_may_run => {
            format!("the next one waits for its pause, and until {} is over", pod_name(task))
        }
        Some("pause") => {
            "the next one waits for its pause; `tenure task retry` does not".to_owned()
        }
        Some("old_pod") => format!(
            "the next one waits until {} is known to be over: it may still run, and must not run twice (`tenure task retry \
             --fenced` if you have seen that it is gone)",
            pod_name(task)
        ),
        Some("start") => "the tenant's budget has a place for the next one".to_owned(),
        Some("other_pod") => "the next pod is made elsewhere".to_owned(),
        _ => match task.deferred {
            0 => "the tenant's budget for retries is being asked".to_owned(),
            n => format!(
                "the tenant's budget for retries had no room, {n} times so far: it asks again (`tenure task budget`)"
            ),
        },
    };
    format!("{how}; {waits}")
}

/// Its pod, as a subject.
fn pod_name(task: &TaskView) -> String {
    let known = task.pod.as_ref().filter(|p| !p.name.is_empty());
    let known = known.map(|p| format!("{}/{}", p.namespace, p.name));
    let begun = task.tended.as_ref().and_then(|t| t.name.clone());
    known.or(begun).map_or_else(|| "its pod".to_owned(), |name| format!("pod {name}"))
}

fn node(task: &TaskView) -> String {
    let node = task.pod.as_ref().and_then(|p| p.node.clone());
    node.map(|n| format!(" on {n}")).unwrap_or_default()
}

/// The next rule that does something about it.
fn next(task: &TaskView, now: Timestamp) -> String {
    let Some(rule) = task.next_rules.first() else { return String::new() };
    let when = match rule.at > now {
        true => format!("in {}", span(rule.at.since(now))),
        false => "now".to_owned(),
    };
    format!("; {when} {}", consequence(task, rule))
}

/// What a rule does, in half a sentence.
fn consequence(task: &TaskView, rule: &NextRule) -> String {
    use crate::rules::names;
    match rule.rule.as_str() {
        names::QUEUED => "the attempt fails (start_timeout)".to_owned(),
        names::RUN => "the attempt fails (timeout), and its pod is stopped".to_owned(),
        names::RETRY => match task.waits_for.as_deref() {
            Some("start") => "it starts".to_owned(),
            Some("pause") => "the pause is over".to_owned(),
            _ => "the budget is asked again".to_owned(),
        },
        names::FENCE => {
            "it is decided what becomes of it if its pod is still not known to be over".to_owned()
        }
        names::STOP => "it ends as CANCELED, whether or not its pod is over".to_owned(),
        names::WITNESS => "its end is taken from its absence".to_owned(),
        names::NEXT_POD => "it fails if no other pod came".to_owned(),
        "must_end_by" => "it ends, whatever it waits for".to_owned(),
        other => format!("rule {other} looks at it"),
    }
}

/// How long, in two figures that matter.
pub fn span(d: Duration) -> String {
    match d.as_secs() {
        0 => format!("{} ms", d.as_millis()),
        s @ 1..60 => format!("{s} s"),
        s @ 60..3_600 => format!("{} min {:02} s", s / 60, s % 60),
        s @ 3_600..86_400 => format!("{} h {:02} min", s / 3_600, s / 60 % 60),
        s => format!("{} d {:02} h", s / 86_400, s / 3_600 % 24),
    }
}
