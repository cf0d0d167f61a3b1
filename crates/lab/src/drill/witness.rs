//! What a job's history and the outside world say about the guarantees. Pure: it is given everything.

use super::{
    jobs::column,
    matrix::{Seen, Witnessed},
    outside::Done,
};
use serde_json::Value;
use std::collections::BTreeMap;

/// What a case knows about its job beforehand.
#[derive(Clone, Debug, Default)]
pub struct Expected {
    /// What it does outside: names, and classes of their tools.
    pub acts: Vec<(String, String)>,
    /// Of these, those that were committed before the fault: replay must not call them again.
    pub settled: Vec<String>,
    /// A signal that was accepted, and what it brought.
    pub signal: Option<(String, Value)>,
    /// A person had to say what happened.
    pub asked: Option<String>,
}

/// Everything that can be read about it afterwards.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// The job as the API shows it; `None` if it is gone.
    pub job: Option<Value>,
    /// Its events.
    pub events: Vec<Value>,
    /// What its verification says.
    pub verification: Value,
    /// What happened outside, by idempotency key.
    pub done: BTreeMap<String, Done>,
}

/// Rules of the verification that are about calls, not about the stream.
const RULES_OF_CALLS: [&str; 3] = [
    "at_most_one_effective_success_per_key",
    "one_call_per_key_unless_idempotent",
    "a_success_is_committed_exactly_once",
];

/// Judges a job in every column.
pub fn judge(expected: &Expected, account: &Account) -> Witnessed {
    let mut seen = Witnessed::default();
    let Some(job) = &account.job else {
        let gone = "the job is gone".to_owned();
        for column in [column::STEP_RUNS, column::JOB_KEPT] {
            seen.saw(column, Seen::Broken(gone.clone()));
        }
        return seen;
    };
    let text = |name: &str| job[name].as_str().unwrap_or("").to_owned();
    let status = text("status");
    seen.jobs.push(text("id"));
    let stands = || format!("the job is {status}: {}", text("why"));
    seen.saw(
        column::STEP_RUNS,
        match (&*status, &expected.asked) {
            ("completed", None) => Seen::Held,
            ("completed", Some(asked)) => Seen::AfterRetry(asked.clone()),
            _ => Seen::Broken(stands()),
        },
    );
    let kept = job["is_final"] == true || status == "attention";
    seen.judged(column::JOB_KEPT, if kept { vec![] } else { vec![stands()] });
    seen.judged(column::EFFECT_ONCE, effects(expected, account));
    let mut again = replayed(expected, account);
    again.extend(other_results(job, account));
    seen.judged(column::NOT_REPLAYED, again);
    if let Some((key, payload)) = &expected.signal {
        seen.judged(column::SIGNAL_KEPT, signals(key, payload, account));
    }
    let problems = |of_calls: bool| {
        let all = account.verification["problems"].as_array().into_iter().flatten();
        let is_of_calls = |p: &&str| RULES_OF_CALLS.iter().any(|r| p.starts_with(r)) == of_calls;
        all.filter_map(Value::as_str).filter(is_of_calls).map(str::to_owned).collect::<Vec<_>>()
    };
    seen.judged(column::STREAM_CLEAN, problems(false));
    let mut calls = problems(true);
    calls.extend(commits(account));
    seen.judged(column::TOOL_ONCE, calls);
    seen
}

/// Each effect is there at most once: under one key, and asked for once unless its class allows more.
fn effects(expected: &Expected, account: &Account) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, class) in &expected.acts {
        let of_name = || account.done.values().filter(|d| d.name == *name);
        let standing = of_name().filter(|d| d.acts > d.undone).count();
        if standing > 1 {
            wrong.push(format!("{name} happened under {standing} keys"));
        }
        let most = of_name().map(|d| d.acts - d.undone).max().unwrap_or(0);
        if class != "idempotent" && most > 1 {
            wrong.push(format!("{name} ({class}) happened {most} times"));
        }
    }
    wrong
}

/// What was committed before the fault was called once and never again.
fn replayed(expected: &Expected, account: &Account) -> Vec<String> {
    let acts = |name: &str| -> u32 {
        account.done.values().filter(|d| d.name == name).map(|d| d.acts).sum()
    };
    let again = expected.settled.iter().filter(|name| acts(name) != 1);
    again.map(|name| format!("{name} was called {} times", acts(name))).collect()
}

/// What the flow was given is what is recorded, byte for byte, whoever gave it when.
fn other_results(job: &Value, account: &Account) -> Vec<String> {
    let recorded = |key: &str| {
        let of_key = |e: &&Value| e["body"]["key"] == key && !e["body"]["result"].is_null();
        account.events.iter().filter(of_key).map(|e| &e["body"]["result"]).collect::<Vec<_>>()
    };
    let mut wrong = Vec::new();
    for given in job["output"].as_array().into_iter().flatten() {
        let Some(key) = given["key"].as_str() else { continue };
        if !recorded(key).contains(&given) {
            wrong.push(format!("the flow was given {given}, and that is not recorded"));
        }
    }
    wrong
}

fn named<'a>(events: &'a [Value], name: &'a str) -> impl Iterator<Item = &'a Value> {
    events.iter().filter(move |e| e["name"] == name).map(|e| &e["body"])
}

/// The signal was applied once, as it was sent.
fn signals(key: &str, payload: &Value, account: &Account) -> Vec<String> {
    let heard: Vec<_> =
        named(&account.events, "wait_completed").filter(|b| b["key"] == key).collect();
    match heard.as_slice() {
        [one] if one["payload"] == *payload => vec![],
        [one] => vec![format!("signal {key} brought {} instead of {payload}", one["payload"])],
        more => vec![format!("signal {key} was applied {} times", more.len())],
    }
}

/// One commit per key.
fn commits(account: &Account) -> Vec<String> {
    let mut per_key = BTreeMap::<&str, u32>::new();
    for body in named(&account.events, "command_committed") {
        *per_key.entry(body["key"].as_str().unwrap_or("")).or_default() += 1;
    }
    let twice = per_key.iter().filter(|(_, n)| **n > 1);
    twice.map(|(key, n)| format!("key {key} was committed {n} times")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn expected() -> Expected {
        Expected {
            acts: vec![("it".into(), "irreversible".into()), ("first".into(), "idempotent".into())],
            settled: vec!["first".into()],
            signal: Some(("go".into(), json!(7))),
            asked: None,
        }
    }

    fn account() -> Account {
        let event = |name: &str, body: Value| json!({ "name": name, "body": body });
        let done = |name: &str, acts| Done { name: name.into(), acts, ..Done::default() };
        Account {
            job: Some(json!({ "id": "j", "status": "completed", "is_final": true, "why": "" })),
            events: vec![
                event("wait_completed", json!({ "key": "go", "payload": 7 })),
                event("command_committed", json!({ "key": "k1" })),
                event("command_committed", json!({ "key": "k2" })),
            ],
            verification: json!({ "problems": [] }),
            done: [("k1".into(), done("it", 1)), ("k2".into(), done("first", 1))].into(),
        }
    }

    fn broken(expected: &Expected, account: &Account) -> Vec<&'static str> {
        let seen = judge(expected, account);
        let wrong = seen.sightings.iter().filter(|s| matches!(s.seen, Seen::Broken(_)));
        wrong.map(|s| s.column).collect()
    }

    #[test]
    fn a_good_run_holds_everywhere() {
        let seen = judge(&expected(), &account());
        assert!(seen.sightings.iter().all(|s| s.seen == Seen::Held), "{seen:?}");
        assert_eq!(seen.sightings.len(), 7);
    }

    #[test]
    fn each_guarantee_can_be_seen_broken() {
        let with = |change: fn(&mut Account)| {
            let mut account = account();
            change(&mut account);
            broken(&expected(), &account)
        };
        assert_eq!(with(|a| a.job = None), [column::STEP_RUNS, column::JOB_KEPT]);
        assert_eq!(
            with(|a| a.job = Some(json!({ "status": "waiting", "is_final": false }))),
            [column::STEP_RUNS, column::JOB_KEPT]
        );
        let acts = |a: &mut Account, key: &str, n| {
            if let Some(done) = a.done.get_mut(key) {
                done.acts = n;
            }
        };
        let mut twice = account();
        acts(&mut twice, "k1", 2);
        assert_eq!(broken(&expected(), &twice), [column::EFFECT_ONCE]);
        let mut again = account();
        acts(&mut again, "k2", 2);
        assert_eq!(broken(&expected(), &again), [column::NOT_REPLAYED]);
        assert_eq!(with(|a| drop(a.events.remove(0))), [column::SIGNAL_KEPT]);
        let output = json!([{ "key": "k1", "count": 2 }]);
        let mut other = account();
        other.job = other.job.map(|mut j| {
            j["output"] = output.clone();
            j
        });
        assert_eq!(broken(&expected(), &other), [column::NOT_REPLAYED]);
        other.events.push(json!({ "name": "tool_invocation_finished", "body": { "key": "k1", "result": output[0] } }));
        assert_eq!(broken(&expected(), &other), [""; 0]);
        assert_eq!(
            with(|a| a.verification = json!({ "problems": ["no_event_of_an_old_epoch: 5"] })),
            [column::STREAM_CLEAN]
        );
        assert_eq!(with(|a| a.events.push(a.events[1].clone())), [column::TOOL_ONCE]);
    }

    #[test]
    fn a_person_who_was_asked_is_a_retry_and_an_undone_effect_none() {
        let asked = Expected { asked: Some("asked".into()), ..expected() };
        let seen = judge(&asked, &account());
        assert!(matches!(seen.sightings[0].seen, Seen::AfterRetry(_)));
        let mut undone = account();
        let done = Done { name: "it".into(), acts: 1, undone: 1, ..Done::default() };
        undone.done.insert("k0".into(), done);
        assert_eq!(broken(&expected(), &undone), [""; 0]);
    }
}
