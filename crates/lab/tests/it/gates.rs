//! Gates under SIGKILL: of the jobs that name a gate no more are at work at once than its limit, whoever dies, as an
//! outside world sees it; and all of them end.

use crate::lab::{Hand, Lab, bounded};
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tenure::jobs::{
    gate::desk::Gates,
    submit::Submission,
    terms::{GateTerm, Terms},
};

/// How many jobs stand at the gate of limit 1.
const JOBS: &str = "TENURE_TEST_GATE_JOBS";
/// Workers that live at once.
const HANDS: usize = 2;
/// How often all workers are killed.
const KILLS: usize = 4;

/// The most jobs that were between their begin and their end at once, by gate. A job that goes on with another worker
/// begins again and is one job.
fn most_at_once(order: &[String]) -> BTreeMap<String, usize> {
    let mut inside: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut most = BTreeMap::new();
    for act in order {
        let [gate, job, what] = act.split('.').collect::<Vec<_>>()[..] else {
            panic!("{act:?} is no act of this test");
        };
        let now = inside.entry(gate).or_default();
        match what {
            "begin" => now.insert(job),
            _ => now.remove(job),
        };
        let seen = most.entry(gate.to_owned()).or_default();
        *seen = now.len().max(*seen);
    }
    most
}

#[test]
fn the_witness_can_see_a_gate_that_lets_too_many_pass() {
    let order = |acts: &[&str]| acts.iter().map(|a| (*a).to_owned()).collect::<Vec<_>>();
    let good = ["one.1.begin", "one.1.begin", "one.1.end", "one.1.end", "one.2.begin", "one.2.end"];
    assert_eq!(most_at_once(&order(&good)), [("one".to_owned(), 1)].into());
    let bad = ["one.1.begin", "one.2.begin", "one.1.end", "one.2.end"];
    assert_eq!(most_at_once(&order(&bad)), [("one".to_owned(), 2)].into());
}

fn submission(lab: &Lab, gate: &str, limit: u32, number: usize) -> Submission {
    let act = |what: &str| {
        let name = format!("{gate}.{number}.{what}");
        json!({ "act": { "class": "idempotent", "name": name } })
    };
    let lines = json!([act("begin"), act("end")]);
    let gate = GateTerm { name: gate.to_owned(), limit: Some(limit), id: None };
    Submission {
        flow: "drill.script".into(),
        input: json!({ "outside": lab.outside.address(), "lines": lines }),
        tenant: "acme".into(),
        terms: Terms { gate: Some(Box::new(gate)), ..Terms::default() },
        ..Submission::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gate_lets_no_more_pass_than_its_limit_whoever_is_killed() {
    let asked = std::env::var(JOBS).ok().map(|n| n.parse().expect("a number of jobs"));
    let narrow: usize = asked.unwrap_or(if crate::support::fast() { 60 } else { 200 });
    let wide = narrow / 5;
    let patience = Duration::from_secs(90) + Duration::from_millis(100) * (narrow as u32);
    let lab = Lab::open(None, &[]).await;
    let mut hands: Vec<Hand> = (0..HANDS).map(|_| lab.mortal_worker()).collect();
    // The first one waits until a worker has registered the flow.
    let mut jobs = vec![lab.script(json!([])).await];
    // Each kill falls into a step of a job at the gate: the outside has seen it begin, and its worker does not hear of
    // it. And three stand at the wide gate at once, so the witness is known to count further than one.
    let every = narrow / (KILLS + 1);
    let struck: Vec<String> = (1..=KILLS).map(|k| format!("one.{}.begin", k * every)).collect();
    let together: Vec<String> = (0..3).map(|n| format!("three.{n}.begin")).collect();
    struck.iter().chain(&together).for_each(|name| lab.outside.hold_answers_to(name));
    for number in 0..narrow {
        let mut submit = async |gate, limit| {
            let new = submission(&lab, gate, limit, number);
            jobs.push(lab.service.submitter.submit(new).await.unwrap().id);
        };
        submit("one", 1).await;
        if number < wide {
            submit("three", 3).await;
        }
    }
    let work = async {
        for name in &together {
            lab.outside.until(name, 1).await;
        }
        together.iter().for_each(|name| lab.outside.answer_to(name));
        for name in &struck {
            lab.outside.until(name, 1).await;
            hands.iter_mut().for_each(Hand::kill);
            hands = (0..HANDS).map(|_| lab.mortal_worker()).collect();
            lab.outside.answer_to(name);
        }
        for job in &jobs {
            lab.until(*job, "completed").await;
        }
    };
    let done = tokio::time::timeout(patience, work).await;
    let most = most_at_once(&lab.outside.order());
    let gates = Gates(lab.service.node.pipeline.clone());
    assert!(
        done.is_ok(),
        "not done in {patience:?}: {most:?} {:?}",
        gates.page(None, None, 9).await
    );
    assert_eq!(most, [("one".to_owned(), 1), ("three".to_owned(), 3)].into());
    let mut again = 0;
    for job in &jobs {
        again += lab.state(*job).await.takeovers;
    }
    assert!(again >= KILLS as u32, "every kill takes a job from its worker: {again}");
    for (gate, passed) in [("one", narrow), ("three", wide)] {
        // A job that has ended leaves its gate by a message, which comes after the end.
        let left = || async {
            let seen = gates.show("acme", gate).await.unwrap();
            (seen.holders.is_empty() && seen.waiting == 0).then_some(seen)
        };
        let seen = bounded(&format!("the gate {gate} without holders"), left).await;
        assert_eq!(seen.granted, passed as u64, "one permit per job");
    }
    let killed = KILLS * HANDS;
    println!("{narrow} at limit 1, {wide} at limit 3, {killed} workers killed, {again} takeovers");
    lab.close().await;
}
