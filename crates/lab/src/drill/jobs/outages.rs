//! The store, or the server on it, goes away in the middle of everything and comes back: all kinds of jobs at once.

use super::{act, acts, row, signal, signals::restart};
use crate::drill::{
    case::{Case, Where},
    ground::Ground,
    matrix::Witnessed,
    outage::Outage,
    witness::Expected,
};
use serde_json::{Value, json};
use tenure::commands::Failure;

/// All of them.
pub fn cases(place: &Where) -> Vec<Case> {
    let of = |outage: Outage| {
        let case = Case::new(row::STORE, outage.name(), move |g| everything_at_once(g, outage));
        outage.can_happen_in(case)
    };
    let mut cases = vec![of(Outage::Server)];
    // On a deployment the first is left out, with that reason, and speaks for the others.
    if place.engine.is_some() {
        cases.push(Case::new(row::STORE, "killed with a message on its way", handed_over).alone());
    }
    cases.extend(Outage::of_store(place.engine.as_ref()).iter().map(|outage| of(*outage)));
    cases
}

/// A job in a tool, one that waits and was signalled, one that waits and was not, and one in the queue.
async fn everything_at_once(mut ground: Ground, outage: Outage) -> Result<Witnessed, Failure> {
    let mut seen = Witnessed::default();
    let rt = tenure_edge::TokioRuntime::current();
    let mono = || tenure_kernel::runtime::Runtime::mono(&rt);
    let clock = || tenure_kernel::runtime::Clock::now(&tenure_edge::SystemClock).as_micros();
    ground.outside.hold_answers_to("called");
    let _worker = ground.worker(None)?;
    let in_tool =
        ground.submit(json!([act("verifiable", "called"), act("verifiable", "next")])).await?;
    let waits = |name: &str| {
        json!([act("verifiable", name), signal("go"), act("verifiable", &format!("{name}2"))])
    };
    let signalled = ground.submit(waits("s")).await?;
    let silent = ground.submit(waits("w")).await?;
    ground.outside.until("called", 1).await;
    ground.outside.until("w", 1).await;
    ground.signal(&signalled, "go", &json!(7)).await?;
    let queued = ground.submit(json!([act("verifiable", "q")])).await?;
    outage.begin(&mut ground).await?;
    let (from, away) = (mono(), clock());
    // The tool returns while nothing can be written.
    ground.outside.answer_all();
    tokio::time::sleep(ground.base.lease * 2).await;
    let returns = clock();
    outage.end(&mut ground).await?;
    let back = mono();
    let answers = super::super::ground::until(super::super::processes::PATIENCE, || async {
        ground.signal(&silent, "go", &json!(8)).await.ok()
    });
    answers.await;
    let jobs = [
        (&in_tool, acts(&[("called", "verifiable"), ("next", "verifiable")]), None),
        (&signalled, acts(&[("s", "verifiable"), ("s2", "verifiable")]), Some(7)),
        (&silent, acts(&[("w", "verifiable"), ("w2", "verifiable")]), Some(8)),
        (&queued, acts(&[("q", "verifiable")]), None),
    ];
    for (job, known, payload) in jobs {
        let name = known.first().map(|(n, _)| n.clone()).unwrap_or_default();
        let signal = payload.map(|p| ("go".to_owned(), json!(p)));
        let settled = known.iter().map(|(n, _)| n.clone()).collect();
        let mut expected = Expected { acts: known, settled, signal, ..Expected::default() };
        ground.finish(job, &name, &mut expected).await?;
        seen.and(ground.judged(job, &expected).await);
        let meanwhile = |e: &&Value| e["at"].as_i64().is_some_and(|at| away < at && at < returns);
        let moved = ground.events(job).await.iter().filter(meanwhile).count();
        let against = (moved > 0).then(|| format!("{moved} events while the store was away"));
        seen.judged(super::column::STREAM_CLEAN, against.into_iter().collect());
    }
    seen.stalls.push(back.saturating_sub(from));
    seen.recoveries.push(mono().saturating_sub(back));
    Ok(seen)
}

/// A parent has asked for a child, and the server dies before the child is there.
async fn handed_over(mut ground: Ground) -> Result<Witnessed, Failure> {
    let mut seen = Witnessed::default();
    let _worker = ground.worker(None)?;
    let lines = json!([
        act("verifiable", "before"),
        { "child": [act("verifiable", "inside")] },
        act("verifiable", "after")
    ]);
    let job = ground.submit(lines).await?;
    ground.until_event(&job, "child_started", 1).await?;
    restart(&mut ground).await?;
    let known = ["before", "inside", "after"].map(|n| (n, "verifiable"));
    let mut expected = Expected {
        acts: acts(&known),
        settled: known.map(|(n, _)| n.to_owned()).to_vec(),
        ..Expected::default()
    };
    ground.finish(&job, "before", &mut expected).await?;
    seen.and(ground.judged(&job, &expected).await);
    Ok(seen)
}
