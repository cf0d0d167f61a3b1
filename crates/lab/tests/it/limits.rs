//! One limit and eight worker processes: exact on the store's clock, on both databases; and one of them killed in the
//! middle takes nothing with it but its own tokens.

use crate::{
    lab::{Hand, Lab},
    support::own_database,
};
use serde_json::json;
use tenure_jobs::shared::limit::{Spec, desk::Limits, model::EVERYBODY};
use tenure_kernel::time::Timestamp;

const JOBS: usize = 32;
const STEPS: usize = 5;

async fn eight(lab: Lab) {
    let limits = Limits(lab.service.node.pipeline.clone());
    let spec = Spec {
        tool: "noop".into(),
        tenant: EVERYBODY.into(),
        count: 40,
        per_ms: 1_000,
        burst: 5,
        block: 20,
        by_operator: false,
        from_each: None,
    };
    limits.set(spec.clone(), None).await.unwrap();
    let mut hands: Vec<Hand> = (0..8).map(|_| lab.mortal_worker()).collect();
    let mut jobs = Vec::new();
    for _ in 0..JOBS {
        jobs.push(lab.submit("drill.noops", json!({ "steps": STEPS })).await);
    }
    hands[0].kill();
    let mut moments: Vec<Timestamp> = Vec::new();
    for job in jobs {
        lab.until(job, "completed").await;
        let events = lab.events(job).await;
        let starts = events.iter().filter(|e| e.name == "tool_invocation_started");
        moments.extend(starts.map(|e| e.at));
    }
    moments.sort();
    // The killed one's calls are made again.
    assert!(moments.len() >= JOBS * STEPS, "{}", moments.len());
    let taken = limits.show(EVERYBODY, "noop").await.unwrap().taken;
    assert!(taken >= moments.len() as u64, "{} calls with {taken} tokens", moments.len());
    let interval = spec.interval().as_nanos();
    for (n, moment) in moments.iter().enumerate() {
        let allowed =
            moment.since(moments[0]).as_nanos() / interval + u128::from(spec.burst + spec.block);
        assert!((n as u128) < allowed, "call {n} after {:?}", moment.since(moments[0]));
    }
    drop(hands);
    lab.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_worker_processes_keep_to_one_limit_on_sqlite() {
    eight(Lab::open(None, &[]).await).await;
}

/// The database is made and dropped outside of the runtime: it has one of its own.
#[test]
fn eight_worker_processes_keep_to_one_limit_on_postgres() {
    let database = own_database("limits");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async { eight(Lab::open(Some(&database.url), &[]).await).await });
    drop(runtime);
}
