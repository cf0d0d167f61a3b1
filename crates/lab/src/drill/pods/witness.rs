//! What a task's history, the cluster's own memory of its pods, and the channel say about the guarantees. Pure: it is given
//! everything.

use super::column;
use crate::drill::matrix::{Seen, Witnessed};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tenure_kubedouble::Past;

/// What a case knows about its task beforehand. Words that end with `?` may be missing.
#[derive(Clone, Debug)]
pub struct Expected {
    /// How it ends.
    pub status: &'static str,
    /// Why the last attempt failed, where it did.
    pub cause: Option<&'static str>,
    /// The exit code of the last attempt, where there is one.
    pub exit_code: Option<i64>,
    /// How many attempts there are.
    pub attempts: u64,
    /// What of its history matters, in order: see [`STORY`].
    pub history: &'static [&'static str],
    /// What is told on the channel, in order: attempt and status. `None` where no collector looks.
    pub channel: Option<&'static [&'static str]>,
    /// Somebody cancels it.
    pub cancelled: bool,
    /// How long it may take from the fault, or its end, to the end of the task.
    pub within: Duration,
}

/// Everything that can be read about it afterwards.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// The task as the API shows it; `None` if it is not known.
    pub task: Option<Value>,
    /// Its events.
    pub events: Vec<Value>,
    /// What became of pods, by the cluster's own memory.
    pub past: Vec<Past>,
    /// What was heard on the channel; `None` without a Redis.
    pub heard: Option<Vec<Value>>,
    /// From the fault, or its end, to the end of the task.
    pub took: Duration,
}

/// Names of the events with which a task ends.
pub const ENDS: [&str; 4] = ["task_succeeded", "task_failed", "task_canceled", "force_ended"];

/// Names of the events that are held to what is expected.
pub const STORY: [&str; 7] = [
    "pod_wanted",
    "pod_seen",
    "task_running",
    "attempt_failed",
    "task_succeeded",
    "task_failed",
    "task_canceled",
];

/// How the executor's part of an attempt may end.
const LET_GO: [&str; 3] = ["cleared", "left", "not_made"];

/// The life of one pod, in versions of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Life {
    /// Its name.
    pub name: String,
    /// The task on its label.
    pub task: String,
    /// When it was made.
    pub born: u64,
    /// When somebody wrote on it that its task is cancelled.
    pub marked: Option<u64>,
    /// When somebody asked for its end.
    pub deleted: Option<u64>,
    /// When nothing of it ran any more: it was terminal, or gone.
    pub over: Option<u64>,
}

/// The lives of all pods, by uid.
pub fn lives(past: &[Past]) -> BTreeMap<String, Life> {
    let mut lives = BTreeMap::<String, Life>::new();
    for change in past {
        let Some(pod) = change.after.as_ref().or(change.before.as_ref()) else { continue };
        let meta = &pod["metadata"];
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        let life = lives.entry(text(&meta["uid"])).or_insert_with(|| Life {
            name: text(&meta["name"]),
            task: text(&meta["labels"]["flowforge.io/task-id"]),
            born: change.version,
            ..Life::default()
        });
        let at = |when: &mut Option<u64>, so: bool| {
            if so && when.is_none() {
                *when = Some(change.version);
            }
        };
        let terminal = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        at(&mut life.marked, !meta["annotations"]["flowforge.io/cancel"].is_null());
        at(&mut life.deleted, change.after.is_none() || !meta["deletionTimestamp"].is_null());
        at(&mut life.over, change.after.is_none() || terminal);
    }
    lives
}

/// Judges a task in every column.
pub fn judge(expected: &Expected, account: &Account) -> Witnessed {
    let mut seen = Witnessed::default();
    let Some(task) = &account.task else {
        seen.saw(column::ENDS, Seen::Broken("nobody knows the task".into()));
        return seen;
    };
    seen.jobs.extend(task["task_id"].as_str().map(str::to_owned));
    let label = task["task_id"].as_str().unwrap_or_default();
    let lives = lives(&account.past);
    let lives: Vec<&Life> = lives.values().filter(|l| l.task == label).collect();
    let heard = account.heard.as_ref().map(|all| told_once(all, label));
    let is_final = task["is_final"] == true;
    let why = || format!("it is {}: {}", task["status"], task["why"].as_str().unwrap_or_default());
    seen.judged(column::ENDS, (!is_final).then(why).into_iter().collect());
    let mut twice = one_end(account, is_final, heard.as_deref());
    twice.extend(ids_of_ends(account.heard.as_deref().unwrap_or_default(), label));
    seen.judged(column::ONE_END, twice);
    seen.judged(column::VERDICT, verdict(expected, task));
    seen.judged(column::ONE_POD, one_pod(&lives));
    seen.judged(column::HISTORY, history(expected, account));
    if let (Some(channel), Some(heard)) = (expected.channel, &heard) {
        seen.judged(column::CHANNEL, fits("told", channel, heard));
    }
    seen.judged(column::CANCEL, cancel(expected, &lives));
    seen.judged(column::NOTHING_LEFT, nothing_left(task, &lives));
    let late = is_final && account.took > expected.within;
    let late = late.then(|| format!("it took {:.1} s", account.took.as_secs_f64()));
    seen.judged(column::IN_TIME, late.or((!is_final).then(why)).into_iter().collect());
    seen
}

/// What the channel said of a task, as who knows repetitions by their ids reads it: attempt and status.
pub fn told_once(heard: &[Value], task: &str) -> Vec<String> {
    let (mut ids, mut told) = (Vec::new(), Vec::<String>::new());
    for data in heard.iter().map(|h| &h["data"]).filter(|d| d["task_id"] == task) {
        let id = data["event_id"].as_str().unwrap_or_default();
        if ids.contains(&id) {
            continue;
        }
        ids.push(id);
        let attempt = data["attempt"].as_u64().unwrap_or_default();
        let word = format!("{attempt} {}", data["status"].as_str().unwrap_or_default());
        // That a pod which has ended is now over, or gone, is no other status.
        if told.last() != Some(&word) {
            told.push(word);
        }
    }
    told
}

/// One end on record, and one on the channel for each attempt.
fn one_end(account: &Account, is_final: bool, heard: Option<&[String]>) -> Vec<String> {
    let mut wrong = Vec::new();
    let ends = account.events.iter().filter(|e| ENDS.iter().any(|n| e["name"] == *n)).count();
    if ends != usize::from(is_final) {
        wrong.push(format!("it has {ends} final events"));
    }
    let mut ended = BTreeMap::<&str, u32>::new();
    for word in heard.unwrap_or_default() {
        let (attempt, status) = word.split_once(' ').unwrap_or_default();
        if status != "RUNNING" {
            *ended.entry(attempt).or_default() += 1;
        }
    }
    let twice = ended.into_iter().filter(|(_, n)| *n > 1);
    wrong.extend(twice.map(|(a, n)| format!("attempt {a} was told to have ended in {n} ways")));
    wrong
}

/// The end of a pod is told under one id, however often and by whomever.
fn ids_of_ends(heard: &[Value], task: &str) -> Vec<String> {
    let mut ids = BTreeMap::<u64, BTreeSet<&str>>::new();
    let data = heard.iter().map(|h| &h["data"]).filter(|d| d["task_id"] == task);
    for end in data.filter(|d| d["status"] != "RUNNING") {
        let attempt = end["attempt"].as_u64().unwrap_or_default();
        ids.entry(attempt).or_default().insert(end["event_id"].as_str().unwrap_or_default());
    }
    let twice = ids.into_iter().filter(|(_, ids)| ids.len() > 1);
    twice.map(|(a, ids)| format!("the end of attempt {a} has the ids {ids:?}")).collect()
}

fn verdict(expected: &Expected, task: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    if task["status"] != expected.status {
        wrong.push(format!("it is {} instead of {}", task["status"], expected.status));
    }
    let ended = &task["ended"];
    // What a cancelled one says of itself depends on who was faster.
    if !expected.cancelled && ended["cause"].as_str() != expected.cause {
        wrong.push(format!("its cause is {} instead of {:?}", ended["cause"], expected.cause));
    }
    if expected.exit_code.is_some() && ended["exit_code"].as_i64() != expected.exit_code {
        wrong.push(format!("its exit code is {}", ended["exit_code"]));
    }
    if task["attempt"].as_u64() != Some(expected.attempts) {
        wrong.push(format!("it had {} attempts instead of {}", task["attempt"], expected.attempts));
    }
    wrong
}

/// No two lives of pods of one task overlap.
fn one_pod(lives: &[&Life]) -> Vec<String> {
    let mut sorted = lives.to_vec();
    sorted.sort_by_key(|l| l.born);
    let mut wrong = Vec::new();
    for (n, first) in sorted.iter().enumerate() {
        let until = first.over.unwrap_or(u64::MAX);
        for second in sorted.iter().skip(n + 1).filter(|s| s.born < until) {
            wrong.push(format!("{} was made while {} was there", second.name, first.name));
        }
    }
    wrong
}

/// Everything that matters is on record in its order, and nothing behind the end.
fn history(expected: &Expected, account: &Account) -> Vec<String> {
    let names = account.events.iter().filter_map(|e| e["name"].as_str());
    let story: Vec<String> = names.filter(|n| STORY.contains(n)).map(str::to_owned).collect();
    let mut wrong = fits("recorded", expected.history, &story);
    for (n, event) in (1u64..).zip(&account.events) {
        if event["version"].as_u64() != Some(n) {
            wrong.push(format!("event {n} has version {}", event["version"]));
        }
    }
    for pair in account.events.windows(2) {
        if pair[1]["at"].as_i64() < pair[0]["at"].as_i64() {
            wrong.push(format!("event {} is older than the one before it", pair[1]["version"]));
        }
    }
    let end = account.events.iter().position(|e| ENDS.iter().any(|n| e["name"] == *n));
    if end.is_some_and(|at| at + 1 != account.events.len()) {
        wrong.push("something was written after the end".into());
    }
    wrong
}

/// A cancel stands on the pod before its deletion, and nobody else's pod carries one.
fn cancel(expected: &Expected, lives: &[&Life]) -> Vec<String> {
    let mut wrong = Vec::new();
    for life in lives {
        match (expected.cancelled, life.marked, life.deleted) {
            (false, Some(_), _) => wrong.push(format!("{} was marked as cancelled", life.name)),
            (true, Some(marked), Some(deleted)) if marked < deleted => {}
            (true, None, None) => wrong.push(format!("{} never heard of it", life.name)),
            (true, Some(_), None) => wrong.push(format!("{} was never deleted", life.name)),
            (true, _, _) => wrong.push(format!("{} was not marked before its deletion", life.name)),
            (false, None, _) => {}
        }
    }
    wrong
}

/// No pod of the task is alive, and no executor has one to tend.
fn nothing_left(task: &Value, lives: &[&Life]) -> Vec<String> {
    let alive = lives.iter().filter(|l| l.over.is_none());
    let mut wrong: Vec<String> = alive.map(|l| format!("{} is still there", l.name)).collect();
    for attempt in task["attempts"].as_array().into_iter().flatten() {
        let Some(status) = attempt["executor"]["status"].as_str() else { continue };
        if !LET_GO.contains(&status) {
            wrong.push(format!("the pod of attempt {} is {status}", attempt["attempt"]));
        }
    }
    wrong
}

/// Whether these are the words that were expected, in that order.
fn fits(what: &str, expected: &[&str], found: &[String]) -> Vec<String> {
    fn same(expected: &[&str], found: &[String]) -> bool {
        match (expected.split_first(), found.split_first()) {
            (None, None) => true,
            (None, Some(_)) => false,
            (Some((word, rest)), next) => {
                let must = word.strip_suffix('?').unwrap_or(word);
                let taken = next.is_some_and(|(n, left)| n == must && same(rest, left));
                taken || (word.ends_with('?') && same(rest, found))
            }
        }
    }
    match same(expected, found) {
        true => vec![],
        false => vec![format!("{what}: {}; expected: {}", found.join(", "), expected.join(", "))],
    }
}

/// Whether the channel has said what is expected, with its last word.
pub fn is_told(expected: &[&str], heard: &[Value], task: &str) -> bool {
    fits("", expected, &told_once(heard, task)).is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn expected() -> Expected {
        Expected {
            status: "SUCCEEDED",
            cause: None,
            exit_code: Some(0),
            attempts: 2,
            history: &[
                "pod_wanted",
                "task_running?",
                "attempt_failed",
                "pod_wanted",
                "task_running",
                "task_succeeded",
            ],
            channel: Some(&["1 RUNNING", "1 FAILED", "2 RUNNING", "2 SUCCEEDED"]),
            cancelled: false,
            within: Duration::from_secs(5),
        }
    }

    fn pod(uid: &str, phase: &str) -> Value {
        json!({
            "metadata": { "uid": uid, "name": format!("pod-{uid}"), "labels": { "flowforge.io/task-id": "t" } },
            "status": { "phase": phase },
        })
    }

    fn account() -> Account {
        let names = ["task_created", "pod_wanted", "attempt_failed", "pod_wanted", "task_running"];
        let names = names.into_iter().chain(["task_noted", "task_succeeded"]);
        let event = |(n, name): (usize, &str)| json!({ "version": n + 1, "at": n, "name": name });
        let change = |version, uid: &str, before: Option<&str>, after: Option<&str>| Past {
            version,
            before: before.map(|phase| pod(uid, phase)),
            after: after.map(|phase| pod(uid, phase)),
        };
        let said = |id: &str, attempt: u32, status: &str| json!({ "data": { "task_id": "t", "event_id": id, "attempt": attempt, "status": status } });
        Account {
            task: Some(json!({
                "task_id": "t", "status": "SUCCEEDED", "is_final": true, "attempt": 2,
                "ended": { "exit_code": 0 },
                "attempts": [{ "attempt": 1, "executor": { "status": "left" } }, { "attempt": 2, "executor": { "status": "cleared" } }],
            })),
            events: names.enumerate().map(event).collect(),
            past: vec![
                change(1, "a", None, Some("Pending")),
                change(2, "a", Some("Pending"), Some("Failed")),
                change(3, "b", None, Some("Pending")),
                change(4, "b", Some("Pending"), Some("Succeeded")),
                change(5, "b", Some("Succeeded"), None),
            ],
            heard: Some(vec![
                said("1", 1, "RUNNING"),
                said("2", 1, "FAILED"),
                said("2", 1, "FAILED"),
                said("1", 1, "RUNNING"),
                said("4", 2, "RUNNING"),
                said("5", 2, "SUCCEEDED"),
            ]),
            took: Duration::from_secs(1),
        }
    }

    fn broken(change: impl FnOnce(&mut Account)) -> Vec<&'static str> {
        broken_of(&expected(), change)
    }

    fn broken_of(expected: &Expected, change: impl FnOnce(&mut Account)) -> Vec<&'static str> {
        let mut account = account();
        change(&mut account);
        let seen = judge(expected, &account);
        let wrong = seen.sightings.iter().filter(|s| matches!(s.seen, Seen::Broken(_)));
        wrong.map(|s| s.column).collect()
    }

    fn task(account: &mut Account) -> &mut Value {
        account.task.get_or_insert_default()
    }

    #[test]
    fn a_good_task_holds_everywhere() {
        let seen = judge(&expected(), &account());
        assert!(seen.sightings.iter().all(|s| s.seen == Seen::Held), "{seen:?}");
        assert_eq!(seen.sightings.len(), super::super::BOARD.columns.len());
    }

    #[test]
    fn each_guarantee_can_be_seen_broken() {
        assert_eq!(broken(|a| a.task = None), [column::ENDS]);
        let hangs = |a: &mut Account| {
            task(a)["is_final"] = json!(false);
            a.events.pop();
        };
        assert_eq!(broken(hangs), [column::ENDS, column::HISTORY, column::IN_TIME]);
        let again = |a: &mut Account| {
            let mut end = a.events[6].clone();
            end["version"] = json!(8);
            a.events.push(end);
        };
        assert_eq!(broken(again), [column::ONE_END, column::HISTORY]);
        assert_eq!(broken(|a| task(a)["status"] = json!("FAILED")), [column::VERDICT]);
        assert_eq!(broken(|a| task(a)["ended"]["cause"] = json!("oom")), [column::VERDICT]);
        assert_eq!(broken(|a| task(a)["ended"]["exit_code"] = json!(1)), [column::VERDICT]);
        assert_eq!(broken(|a| task(a)["attempt"] = json!(3)), [column::VERDICT]);
        assert_eq!(broken(|a| drop(a.past.remove(1))), [column::ONE_POD, column::NOTHING_LEFT]);
        assert_eq!(broken(|a| a.past.swap(1, 2)), [""; 0], "the order is that of the versions");
        assert_eq!(broken(|a| a.past[2].version = 1), [column::ONE_POD]);
        let left = |a: &mut Account| task(a)["attempts"][1]["executor"]["status"] = json!("tended");
        assert_eq!(broken(left), [column::NOTHING_LEFT]);
        let lost = |a: &mut Account| drop(a.heard.get_or_insert_default().pop());
        assert_eq!(broken(lost), [column::CHANNEL]);
        let renamed = |a: &mut Account| {
            a.heard.get_or_insert_default()[2]["data"]["event_id"] = json!("3");
        };
        assert_eq!(broken(renamed), [column::ONE_END]);
        let back = |a: &mut Account| a.heard.get_or_insert_default().swap(0, 1);
        assert_eq!(broken(back), [column::CHANNEL]);
        assert_eq!(broken(|a| a.events[4]["name"] = json!("task_noted")), [column::HISTORY]);
        assert_eq!(broken(|a| a.events[4]["version"] = json!(4)), [column::HISTORY]);
        assert_eq!(broken(|a| a.took = Duration::from_secs(6)), [column::IN_TIME]);
    }

    #[test]
    fn a_cancel_has_to_stand_on_the_pod_before_it_goes() {
        let mark = |pod: &mut Value| {
            pod["metadata"]["annotations"] = json!({ "flowforge.io/cancel": "cancel" });
        };
        let marked =
            |at: usize| move |a: &mut Account| a.past[at].after.as_mut().into_iter().for_each(mark);
        assert_eq!(broken(marked(3)), [column::CANCEL], "nobody had asked for it");
        let mut wanted = expected();
        wanted.cancelled = true;
        assert_eq!(broken_of(&wanted, |_| {}), [column::CANCEL]);
        let both = |a: &mut Account| {
            marked(1)(a);
            marked(3)(a);
            a.past[1].after.as_mut().into_iter().for_each(|pod| {
                pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            });
        };
        assert_eq!(broken_of(&wanted, both), [column::CANCEL], "marked with its deletion");
        let only_second = |a: &mut Account| {
            a.past.drain(..2);
            marked(1)(a);
        };
        assert_eq!(broken_of(&wanted, only_second), [""; 0]);
    }
}
