//! What a turn's history, the model, the bus and the outside world say about the guarantees. Pure: it is given everything.

use super::column;
use crate::drill::{
    bus::Heard,
    matrix::{Seen, Witnessed},
    outside::Done,
};
use serde_json::Value;
use std::{collections::BTreeMap, ops::RangeInclusive};

/// What a case knows about its turn beforehand.
#[derive(Clone, Debug)]
pub struct Expected {
    /// How it may end.
    pub status: &'static [&'static str],
    /// The code of its error, where it has one.
    pub error: Option<&'static str>,
    /// What is delivered; a fallback without it.
    pub content: Option<Value>,
    /// What its tools do outside: names, and classes.
    pub acts: Vec<(String, String)>,
    /// How often the model may have been asked.
    pub asked: RangeInclusive<usize>,
    /// What is applied as the result of each wait; waits that are not named may have any.
    pub results: Vec<(&'static str, Value)>,
    /// A wait may be open when the turn ends.
    pub may_leave_waits: bool,
    /// Events of rules that must be on record.
    pub rules: &'static [&'static str],
}

/// Everything that can be read about it afterwards.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// The turn as the API shows it; `None` if it is gone.
    pub turn: Option<Value>,
    /// Its events.
    pub events: Vec<Value>,
    /// How often the model was asked for it.
    pub asked: usize,
    /// What happened outside, by idempotency key.
    pub done: BTreeMap<String, Done>,
    /// The agent's next turn, as the API shows it.
    pub next: Option<Value>,
    /// The agent.
    pub agent: Value,
    /// What was heard on the bus; `None` without one.
    pub heard: Option<Vec<Heard>>,
}

/// Names of the events with which a turn ends.
pub const ENDS: [&str; 6] = [
    "turn_succeeded",
    "turn_partly_succeeded",
    "turn_failed",
    "turn_timed_out",
    "turn_canceled",
    "force_ended",
];

fn named<'a>(events: &'a [Value], name: &'a str) -> impl Iterator<Item = &'a Value> {
    events.iter().filter(move |e| e["name"] == name).map(|e| &e["body"])
}

fn ends(events: &[Value]) -> impl Iterator<Item = &Value> {
    events.iter().filter(|e| ENDS.iter().any(|n| e["name"] == *n))
}

/// Judges a turn in every column.
pub fn judge(expected: &Expected, account: &Account) -> Witnessed {
    let mut seen = Witnessed::default();
    let Some(turn) = &account.turn else {
        seen.saw(column::ONE_END, Seen::Broken("the turn is gone".into()));
        return seen;
    };
    seen.jobs.extend(turn["id"].as_str().map(str::to_owned));
    let mut end = one_end(expected, turn, account);
    end.extend(told(turn, account));
    seen.judged(column::ONE_END, end);
    seen.judged(column::DELIVERED, delivered(expected, turn, account));
    seen.judged(column::EFFECT_ONCE, effects(expected, account));
    seen.judged(column::NOT_ASKED_AGAIN, asked(expected, account));
    seen.judged(column::RESULT_ONCE, results(expected, account));
    seen.judged(column::LINE_MOVES, line(account));
    seen.judged(column::STREAM_CLEAN, stream(account));
    seen.judged(column::RULES, rules(expected, account));
    seen
}

fn one_end(expected: &Expected, turn: &Value, account: &Account) -> Vec<String> {
    let mut wrong = Vec::new();
    let status = turn["status"].as_str().unwrap_or_default();
    if !expected.status.contains(&status) {
        wrong.push(format!("the turn is {status}: {}", turn["why"].as_str().unwrap_or_default()));
    }
    let code = turn["error"]["code"].as_str();
    if expected.status.len() == 1 && code != expected.error {
        wrong.push(format!("its error is {code:?} instead of {:?}", expected.error));
    }
    match ends(&account.events).count() {
        1 => {}
        n => wrong.push(format!("it has {n} final events")),
    }
    wrong
}

/// One announcement, under one id, after the agent was said to be idle.
fn told(turn: &Value, account: &Account) -> Vec<String> {
    let Some(heard) = &account.heard else { return vec![] };
    let mine = |end: &str| {
        let of = |h: &&Heard| h.subject.ends_with(end) && h.body["agent_turn_id"] == turn["id"];
        heard.iter().filter(of).collect::<Vec<_>>()
    };
    let tasks = mine(".task");
    let mut ids: Vec<&str> = tasks.iter().map(|h| h.id.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    let mut wrong = Vec::new();
    match (ids.as_slice(), tasks.first()) {
        ([id], Some(task)) if !id.is_empty() => {
            if task.body["status"] != turn["status"] {
                wrong.push(format!("it was told to be {}", task.body["status"]));
            }
            if task.body["deliverable_card_id"] != turn["deliverable_card_id"] {
                wrong.push("another deliverable was told".into());
            }
        }
        (ids, _) => wrong.push(format!("its end was told under {} ids", ids.len())),
    }
    let place = |h: &Heard| heard.iter().position(|other| other == h);
    let idle = mine(".state").into_iter().find(|h| h.body["status"] == "idle").and_then(place);
    let task = tasks.first().and_then(|h| place(h));
    if idle.is_none() || task.is_none() || idle > task {
        wrong.push("the state event does not come before the task event".into());
    }
    wrong
}

fn delivered(expected: &Expected, turn: &Value, account: &Account) -> Vec<String> {
    let mut wrong = Vec::new();
    for end in ends(&account.events) {
        let given = &end["body"]["deliverable"];
        let card = format!("{}.deliverable", turn["id"].as_str().unwrap_or_default());
        if given["card_id"] != card.as_str() || turn["deliverable_card_id"] != card.as_str() {
            wrong.push(format!("the deliverable is {}", given["card_id"]));
        }
        let fell_back = given["fallback"] == true;
        match &expected.content {
            Some(content) if given["content"] != *content && expected.status.len() == 1 => {
                wrong.push(format!("{} was delivered", given["content"]));
            }
            None if !fell_back => wrong.push("there is no fallback".into()),
            _ => {}
        }
    }
    if ends(&account.events).count() == 0 {
        wrong.push("nothing was delivered".into());
    }
    wrong
}

/// Each effect is there at most once: under one key, and asked for once unless its class allows more.
fn effects(expected: &Expected, account: &Account) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, class) in &expected.acts {
        let of_name = || account.done.values().filter(|d| d.name == *name);
        let keys = of_name().filter(|d| d.acts > d.undone).count();
        let most = of_name().map(|d| d.acts - d.undone).max().unwrap_or(0);
        if keys > 1 {
            wrong.push(format!("{name} happened under {keys} keys"));
        }
        if class != "idempotent" && most > 1 {
            wrong.push(format!("{name} ({class}) happened {most} times"));
        }
    }
    let unknown = |d: &&Done| expected.acts.iter().all(|(name, _)| *name != d.name);
    wrong.extend(account.done.values().filter(unknown).map(|d| format!("{} happened", d.name)));
    wrong
}

/// A step that is finished is not asked again.
fn asked(expected: &Expected, account: &Account) -> Vec<String> {
    let mut wrong = Vec::new();
    // On a busy machine a worker can lose its lease in the middle of a step, and another asks for the same step again.
    let most = (*expected.asked.end()).max(asked_at_most(&account.events));
    if !(*expected.asked.start()..=most).contains(&account.asked) {
        wrong.push(format!("the model was asked {} times", account.asked));
    }
    let mut finished = BTreeMap::<u64, u32>::new();
    for body in named(&account.events, "step_finished") {
        *finished.entry(body["step"].as_u64().unwrap_or_default()).or_default() += 1;
    }
    let twice = finished.iter().filter(|(_, n)| **n > 1);
    wrong.extend(twice.map(|(step, n)| format!("step {step} was finished {n} times")));
    wrong
}

/// How often the model can have been asked: once for every step that was begun, and again for every worker that was lost between the
/// beginning and the end of a step.
fn asked_at_most(events: &[Value]) -> usize {
    let (mut most, mut open) = (0, None);
    for event in events {
        match event["name"].as_str() {
            Some("step_started") => {
                most += usize::from(open != Some(&event["body"]["step"]));
                open = Some(&event["body"]["step"]);
            }
            Some("step_finished") => open = None,
            Some("tenure_ended") => most += usize::from(open.is_some()),
            _ => {}
        }
    }
    most
}

/// Every wait is answered once, and by what was meant for it.
fn results(expected: &Expected, account: &Account) -> Vec<String> {
    let mut wrong = Vec::new();
    let answers = |wait: &str| {
        let of = |b: &&Value| b["wait"] == wait;
        let by = |name| named(&account.events, name).filter(of).collect::<Vec<_>>();
        let mut all = by("result_applied");
        all.extend(by("wait_timed_out"));
        all
    };
    let suspended = named(&account.events, "turn_suspended");
    let waits: Vec<&str> = suspended
        .flat_map(|b| b["waits"].as_array().into_iter().flatten())
        .filter_map(|w| w["id"].as_str())
        .collect();
    for wait in waits {
        let given = answers(wait);
        match given.as_slice() {
            [one] => {
                let meant = expected.results.iter().find(|(w, _)| *w == wait);
                if let Some((_, meant)) = meant.filter(|(_, meant)| one["result"] != *meant) {
                    wrong.push(format!("wait {wait} got {} instead of {meant}", one["result"]));
                }
            }
            [] if expected.may_leave_waits => {}
            more => wrong.push(format!("wait {wait} was answered {} times", more.len())),
        }
    }
    wrong
}

/// The agent is free, and the turn behind this one came to its end.
fn line(account: &Account) -> Vec<String> {
    let mut wrong = Vec::new();
    match &account.next {
        Some(next) if next["status"] == "success" => {}
        Some(next) => wrong.push(format!("the next turn is {}: {}", next["status"], next["why"])),
        None => wrong.push("the next turn can not be read".into()),
    }
    if account.agent["status"] != "idle" {
        wrong.push(format!("the agent is {}", account.agent["status"]));
    }
    wrong
}

/// Versions are dense, epochs never fall, time never runs back, and nothing stands behind the end.
fn stream(account: &Account) -> Vec<String> {
    let mut wrong = Vec::new();
    let number = |e: &Value, name: &str| e[name].as_u64().unwrap_or_default();
    for (n, event) in (1..).zip(&account.events) {
        if number(event, "version") != n {
            wrong.push(format!("event {n} has version {}", event["version"]));
        }
    }
    for pair in account.events.windows(2) {
        if number(&pair[1], "epoch") < number(&pair[0], "epoch") {
            wrong.push(format!("event {} was written under an old epoch", pair[1]["version"]));
        }
        if pair[1]["at"].as_i64() < pair[0]["at"].as_i64() {
            wrong.push(format!("event {} is older than the one before it", pair[1]["version"]));
        }
    }
    let last = account.events.last();
    let after_end = ends(&account.events).next().is_some_and(|end| Some(end) != last);
    if after_end {
        wrong.push("something was written after the end".into());
    }
    wrong
}

/// The rules that were to act have, and no other has forced anything.
fn rules(expected: &Expected, account: &Account) -> Vec<String> {
    let mut wrong = Vec::new();
    for rule in expected.rules {
        if named(&account.events, rule).next().is_none() {
            wrong.push(format!("{rule} is not on record"));
        }
    }
    for end in ends(&account.events) {
        let forced = end["body"]["forced"]["reason"].as_str();
        match (forced, expected.error) {
            (Some(reason), Some(error)) if reason == error => {}
            (Some(reason), _) if expected.status.len() == 1 => {
                wrong.push(format!("it was ended by force: {reason}"));
            }
            _ => {}
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn expected() -> Expected {
        Expected {
            status: &["success"],
            error: None,
            content: Some(json!("done")),
            acts: vec![("it".into(), "verifiable".into())],
            asked: 2..=2,
            results: vec![("1.1", json!(7))],
            may_leave_waits: false,
            rules: &[],
        }
    }

    fn account() -> Account {
        let bodies = [
            ("turn_created", json!({})),
            ("step_finished", json!({ "step": 1 })),
            ("turn_suspended", json!({ "waits": [{ "id": "1.1" }] })),
            ("result_applied", json!({ "wait": "1.1", "result": 7 })),
            ("step_finished", json!({ "step": 2 })),
            (
                "turn_succeeded",
                json!({ "deliverable": { "card_id": "t.deliverable", "content": "done" } }),
            ),
        ];
        let event = |(n, (name, body)): (usize, (&str, Value))| json!({ "version": n + 1, "epoch": 1, "at": n, "name": name, "body": body });
        let of = |subject: &str, id: &str, status: &str| Heard {
            subject: format!("evt.agent.a.{subject}"),
            id: id.into(),
            body: json!({ "agent_turn_id": "t", "status": status, "deliverable_card_id": "t.deliverable" }),
        };
        Account {
            turn: Some(
                json!({ "id": "t", "status": "success", "deliverable_card_id": "t.deliverable", "error": null }),
            ),
            events: bodies.into_iter().enumerate().map(event).collect(),
            asked: 2,
            done: [("k".into(), Done { name: "it".into(), acts: 1, ..Done::default() })].into(),
            next: Some(json!({ "status": "success" })),
            agent: json!({ "status": "idle" }),
            heard: Some(vec![of("state", "1", "idle"), of("task", "2", "success")]),
        }
    }

    fn broken(change: impl FnOnce(&mut Account)) -> Vec<&'static str> {
        let mut account = account();
        change(&mut account);
        let seen = judge(&expected(), &account);
        let wrong = seen.sightings.iter().filter(|s| matches!(s.seen, Seen::Broken(_)));
        wrong.map(|s| s.column).collect()
    }

    #[test]
    fn a_good_turn_holds_everywhere() {
        let seen = judge(&expected(), &account());
        assert!(seen.sightings.iter().all(|s| s.seen == Seen::Held), "{seen:?}");
        assert_eq!(seen.sightings.len(), super::super::BOARD.columns.len());
    }

    #[test]
    fn each_guarantee_can_be_seen_broken() {
        assert_eq!(broken(|a| a.turn = None), [column::ONE_END]);
        let again = |a: &mut Account| {
            let mut end = a.events[5].clone();
            end["version"] = json!(7);
            a.events.push(end);
        };
        assert_eq!(broken(again), [column::ONE_END, column::STREAM_CLEAN]);
        assert_eq!(broken(|a| drop(a.events.pop())), [column::ONE_END, column::DELIVERED]);
        assert_eq!(broken(|a| a.heard = Some(vec![])), [column::ONE_END]);
        let twice = |a: &mut Account| {
            let heard = a.heard.get_or_insert_default();
            let again = Heard { id: "3".into(), ..heard[1].clone() };
            heard.push(again);
        };
        assert_eq!(broken(twice), [column::ONE_END]);
        let same_id = |a: &mut Account| {
            let heard = a.heard.get_or_insert_default();
            heard.push(heard[1].clone());
        };
        assert_eq!(broken(same_id), [""; 0], "a repetition under its id is none");
        assert_eq!(broken(|a| a.heard.get_or_insert_default().reverse()), [column::ONE_END]);
        assert_eq!(
            broken(|a| a.events[5]["body"]["deliverable"]["content"] = json!("else")),
            [column::DELIVERED]
        );
        let acts = |a: &mut Account| a.done.values_mut().for_each(|d| d.acts = 2);
        assert_eq!(broken(acts), [column::EFFECT_ONCE]);
        let other = |a: &mut Account| a.done.values_mut().for_each(|d| d.name = "else".into());
        assert_eq!(broken(other), [column::EFFECT_ONCE]);
        assert_eq!(broken(|a| a.asked = 3), [column::NOT_ASKED_AGAIN]);
        assert_eq!(broken(|a| a.events[4]["body"]["step"] = json!(1)), [column::NOT_ASKED_AGAIN]);
        assert_eq!(broken(|a| a.events[3]["body"]["result"] = json!(8)), [column::RESULT_ONCE]);
        assert_eq!(
            broken(
                |a| a.events[4] = json!({ "version": 5, "epoch": 1, "at": 4, "name": "wait_timed_out", "body": { "wait": "1.1" } })
            ),
            [column::RESULT_ONCE]
        );
        assert_eq!(broken(|a| a.next = Some(json!({ "status": "queued" }))), [column::LINE_MOVES]);
        assert_eq!(broken(|a| a.agent["status"] = json!("running")), [column::LINE_MOVES]);
        assert_eq!(broken(|a| a.events[3]["epoch"] = json!(2)), [column::STREAM_CLEAN]);
        assert_eq!(broken(|a| a.events[3]["at"] = json!(9)), [column::STREAM_CLEAN]);
        assert_eq!(broken(|a| a.events[3]["version"] = json!(9)), [column::STREAM_CLEAN]);
        assert_eq!(
            broken(|a| a.events[5]["body"]["forced"] = json!({ "reason": "must_end_by" })),
            [column::RULES]
        );
    }

    #[test]
    fn a_rule_that_was_to_act_is_missed() {
        let silent = Expected { rules: &["wait_timed_out"], ..expected() };
        let seen = judge(&silent, &account());
        assert!(matches!(seen.of(column::RULES), Some(Seen::Broken(_))));
    }
}
