//! A worker dies: before the tool, after it, after the commit; and again and again.

use super::{CLASSES, act, acts, column, five_acts, five_lines, row, signal};
use crate::drill::{
    case::{Case, Where},
    ground::{Ground, Layout},
    matrix::{Seen, Witnessed},
    witness::Expected,
};
use serde_json::{Value, json};
use tenure::commands::Failure;

/// All of them.
pub fn cases(place: &Where) -> Vec<Case> {
    let mut cases = vec![
        crash(row::BEFORE_TOOL, "after claim", "claimed:1", "irreversible", Layout::Same),
        crash(row::BEFORE_TOOL, "after plan", "replayed:1", "irreversible", Layout::Same),
        after_a_model(Layout::Same),
        after_a_model(Layout::Separate),
    ];
    for class in CLASSES {
        let of = |row, name, point, layout| crash(row, name, point, class, layout);
        for layout in [Layout::Same, Layout::Separate] {
            cases.extend([
                of(row::BEFORE_TOOL, "after started", "before_call:2", layout),
                of(row::AFTER_TOOL, "after the tool", "after_call:2", layout),
                of(row::AFTER_COMMIT, "after the commit", "after_commit:3", layout),
            ]);
        }
        // In the store the effect is in the commit: there is nothing between them.
        cases.push(caught_up(class));
    }
    cases.push(reclaims(place.rounds_of_reclaim, "verifiable"));
    cases
}

/// The first worker dies at a point, a signal comes while nobody is there, another worker goes on.
fn crash(
    row: &'static str,
    name: &str,
    point: &'static str,
    class: &'static str,
    layout: Layout,
) -> Case {
    let name = format!("killed {name}, {class}");
    Case::new(row, name, move |ground| strike(ground, point, class)).layout(layout)
}

async fn strike(ground: Ground, point: &str, class: &str) -> Result<Witnessed, Failure> {
    let mut expected = Expected { acts: five_acts(class), ..Expected::default() };
    // What is recorded before each point: see the passages in `five_lines`.
    expected.settled = match point {
        "claimed:1" | "replayed:1" => vec![],
        "after_commit:3" => vec!["first".into(), "it".into()],
        _ => vec!["first".into()],
    };
    let (job, mut seen, _second) = struck(&ground, point, five_lines(class), &mut expected).await?;
    ground.finish(&job, "it", &mut expected).await?;
    seen.and(ground.judged(&job, &expected).await);
    Ok(seen)
}

/// Up to the moment at which another worker has the job.
async fn struck(
    ground: &Ground,
    point: &str,
    lines: Value,
    expected: &mut Expected,
) -> Result<(String, Witnessed, crate::drill::processes::Hand), Failure> {
    let mut seen = Witnessed::default();
    let mut first = ground.worker(Some(point))?;
    let job = ground.submit(lines).await?;
    first.struck_at(point).await?;
    in_the_window(ground, &job, point).await?;
    let before = ground.attempt(&job).await;
    let payload = json!({ "seed": ground.seed });
    ground.signal(&job, "go", &payload).await?;
    expected.signal = Some(("go".into(), payload));
    let second = ground.worker(None)?;
    seen.recoveries.extend(ground.taken_over(&job, before).await);
    Ok((job, seen, second))
}

/// The worker died where the case says: what is recorded, and what has happened, is that and no other moment.
async fn in_the_window(ground: &Ground, job: &str, point: &str) -> Result<(), Failure> {
    // On a busy machine the worker may have lost its lease before, and begun the step anew under its last claim.
    let events = ground.events(job).await;
    let last = events.iter().rposition(|e| e["name"] == "tenure_claimed").unwrap_or(0);
    let of_it = |name: &str| {
        let of_step = |e: &&Value| e["name"] == name && e["body"]["step"] == "2";
        events[last..].iter().filter(of_step).count()
    };
    let (started, ended) = (of_it("tool_invocation_started"), of_it("tool_invocation_finished"));
    let acts = ground.outside.count("it");
    let as_named = match point {
        "claimed:1" | "replayed:1" => (started, ended, acts) == (0, 0, 0),
        "before_call:2" | "after_commit:2" => (started, ended, acts) == (1, 0, 0),
        "after_call:2" | "after_effect:2" => (started, ended, acts) == (1, 0, 1),
        "after_commit:3" => (started, ended, acts) == (1, 1, 1) && of_it("command_committed") == 1,
        _ => false,
    };
    match as_named {
        true => Ok(()),
        false => Err(Failure::System(format!(
            "the worker was killed at {point}, and the step was started {started}, ended {ended} and done {acts} times"
        ))),
    }
}

/// The effect lies in its own store and no event names it: nobody is asked, nothing is called.
fn caught_up(class: &'static str) -> Case {
    let name = format!("killed after the effect, {class}");
    Case::new(row::AFTER_TOOL, name, move |ground| async move {
        let mut expected = Expected { acts: five_acts(class), ..Expected::default() };
        expected.settled = vec!["first".into(), "it".into()];
        let (job, mut seen, _second) =
            struck(&ground, "after_effect:2", five_lines(class), &mut expected).await?;
        ground.finish(&job, "it", &mut expected).await?;
        seen.and(ground.judged(&job, &expected).await);
        let mut against = Vec::new();
        against.extend(expected.asked.map(|_| "a person was asked about a recorded effect".into()));
        let probes: u32 = ground.outside.done().values().map(|d| d.probes + d.undone).sum();
        if probes > 0 {
            against.push("the outside world was asked about a recorded effect".into());
        }
        seen.judged(column::NOT_REPLAYED, against);
        Ok(seen)
    })
    .layout(Layout::Separate)
}

/// A language model has answered and that is recorded; then the worker dies.
fn after_a_model(layout: Layout) -> Case {
    Case::new(row::BEFORE_TOOL, "killed after an llm step", move |ground| async move {
        let lines = json!([
            { "llm": { "prompt": "go on?" } },
            act("irreversible", "it"),
            act("idempotent", "mid"),
            signal("go"),
            act("idempotent", "last")
        ]);
        let known = acts(&[("it", "irreversible"), ("mid", "idempotent"), ("last", "idempotent")]);
        let mut expected = Expected { acts: known, ..Expected::default() };
        let (job, mut seen, _second) =
            struck(&ground, "after_commit:2", lines, &mut expected).await?;
        ground.finish(&job, "it", &mut expected).await?;
        seen.and(ground.judged(&job, &expected).await);
        let asked = ground.model.requests().len();
        let against = (asked != 1).then(|| format!("the model was asked {asked} times"));
        seen.judged(column::NOT_REPLAYED, against.into_iter().collect());
        Ok(seen)
    })
    .layout(layout)
}

/// One job loses its worker so many times, each a step further.
fn reclaims(times: u32, class: &'static str) -> Case {
    Case::new(row::RECLAIM, format!("{times} workers lost, {class}"), move |ground| async move {
        let names: Vec<String> = (0..times + 3).map(|i| format!("step{i}")).collect();
        let mut lines: Vec<Value> = names.iter().map(|n| act(class, n)).collect();
        // Signalled in the middle of it, waited for at the end.
        lines.push(signal("go"));
        let mut seen = Witnessed::default();
        let mut expected = Expected {
            acts: names.iter().map(|n| (n.clone(), class.to_owned())).collect(),
            settled: names.clone(),
            ..Expected::default()
        };
        // A worker that takes over writes down that a call is unknown, then what became of it, then its end: each
        // gets one step further.
        let point = Some("after_commit:3");
        let mut hand = ground.worker(point)?;
        let job = ground.submit(json!(lines)).await?;
        for round in 1..times {
            hand.struck_at("after_commit:3").await?;
            if round == times / 2 {
                let payload = json!(round);
                ground.signal(&job, "go", &payload).await?;
                expected.signal = Some(("go".into(), payload));
            }
            let before = ground.attempt(&job).await;
            hand = ground.worker(point)?;
            seen.recoveries.extend(ground.taken_over(&job, before).await);
        }
        hand.struck_at("after_commit:3").await?;
        let _last = ground.worker(None)?;
        ground.finish(&job, "step0", &mut expected).await?;
        let takeovers = ground.job(&job).await.and_then(|j| j["takeovers"].as_u64());
        if takeovers < Some(u64::from(times)) {
            let says = format!("{takeovers:?} takeovers instead of {times}");
            seen.saw(column::JOB_KEPT, Seen::Broken(says));
        }
        // A call that was started and not made is settled by asking: the outside world sees one act each.
        seen.and(ground.judged(&job, &expected).await);
        Ok(seen)
    })
}
