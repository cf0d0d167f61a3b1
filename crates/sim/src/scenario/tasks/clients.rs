//! Who wants pods: jobs, people who order tasks, and somebody who makes the pods of a task by himself. And who is a nuisance about
//! it: cancels, asks for retries, and has pods taken away by force.

use super::{
    super::Clients,
    process::{FLOW, retry, times},
    yard::{MAY_RUN_TWICE, foreign_pod},
};
use serde_json::{Value, json};
use std::time::Duration;
use tenure_jobs::model::NewJob;
use tenure_kernel::{ids::EntityId, machine::decode_state, stream::Body, table::Class};
use tenure_pods::{
    desk::{Defaults, Desk},
    pod::ForceAsk,
    task::{
        NewTask, Task, TaskState,
        decide::RETRY_NOW,
        model::{Cleanup, CleanupWhen, OnLost, Times},
    },
};

const fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// The longest a task may take, with all its attempts.
pub(super) const MUST_END_MS: u64 = 2_400_000;

pub(crate) fn play(clients: &Clients, width: Option<u64>) {
    let c = clients.clone();
    clients.spawn(Box::pin(async move {
        let n = width.unwrap_or_else(|| 4 + c.below(8));
        for i in 0..n {
            let one = c.clone();
            c.spawn(match i % 5 {
                0 | 1 => Box::pin(job(one)),
                4 => Box::pin(elsewhere(one)),
                _ => Box::pin(task(one)),
            });
        }
    }));
}

/// The pod of a task: sometimes with a proxy beside it that does not end by itself.
fn template(c: &Clients, on_lost: OnLost) -> Value {
    let twice = if on_lost == OnLost::Replace { "true" } else { "false" };
    let mut containers = vec![json!({ "name": "main", "image": "work:1" })];
    if c.below(10) == 0 {
        containers.push(json!({ "name": "istio-proxy", "image": "proxy:1" }));
    }
    json!({
        "metadata": { "annotations": { MAY_RUN_TWICE: twice } },
        "spec": { "containers": containers, "terminationGracePeriodSeconds": 20 },
    })
}

fn on_lost(c: &Clients) -> OnLost {
    if c.below(4) == 0 { OnLost::Replace } else { OnLost::Wait }
}

fn cleanup(c: &Clients) -> Cleanup {
    let when = [CleanupWhen::OnSuccess, CleanupWhen::Always, CleanupWhen::Never];
    let when = when[usize::try_from(c.below(3)).unwrap_or(0)];
    Cleanup { when, delay_ms: [0, 30_000][usize::from(c.below(3) == 0)] }
}

async fn job(c: Clients) {
    c.wait(c.some(s(80))).await;
    let id = c.id();
    let lost = on_lost(&c);
    let input = json!({
        "template": template(&c, lost),
        "on_lost": lost,
        "timeout": 30 + c.below(200),
        "cleanup": cleanup(&c),
        "retry": c.below(3),
    });
    let new = NewJob {
        flow: FLOW.into(),
        version: 1,
        input,
        must_end_in_ms: MUST_END_MS + 600_000,
        takeovers_max: 10_000,
        ..NewJob::default()
    };
    c.create("job", id, &Body::json(&new)).await;
    nuisance(&c, id, 12).await;
}

async fn task(c: Clients) {
    c.wait(c.some(s(80))).await;
    let id = c.id();
    let lost = on_lost(&c);
    let new = NewTask {
        name: "work".into(),
        workflow_id: "wf".into(),
        tenant_id: "t".into(),
        template: template(&c, lost),
        on_lost: lost,
        retry: retry(),
        budget: c.env.world.yard.terms().budget,
        cleanup: cleanup(&c),
        times: Times { queued_ms: 30_000 + c.below(400_000), ..times() },
        timeout_ms: (c.below(5) > 0).then(|| 20_000 + c.below(100_000)),
        must_end_in_ms: 60_000 + c.below(MUST_END_MS - 60_000),
        ..NewTask::default()
    };
    c.create("task", id, &Body::json(&new)).await;
    nuisance(&c, id, 6).await;
}

/// Looks at it now and then; sometimes cancels, sometimes wants a retry now.
async fn nuisance(c: &Clients, id: EntityId, cancels_in: u64) {
    let cancels = c.below(cancels_in) == 0;
    for n in 0..8u32 {
        c.wait(c.some(s(40))).await;
        let Ok(Some(head)) = c.pipeline.store().head(id).await else { continue };
        if head.class() == Class::Final {
            return;
        }
        if cancels && n >= 2 {
            let body = Body::json(&json!({ "why": "not needed" }));
            c.mail(id, format!("cancel/{n}"), "cancel", body).await;
        } else if head.kind() == "task" && c.below(6) == 0 {
            let fenced = vouches(c, &head.state);
            let body = Body::json(&json!({ "by": "somebody", "fenced": fenced }));
            c.mail(id, format!("now/{n}"), RETRY_NOW, body).await;
        } else if waits_for_a_pod(head.kind(), &head.state) && c.below(2) == 0 {
            // Whoever has no patience with a pod that does not go. Some are refused: it was not told to.
            let desk = Desk::new(c.pipeline.clone(), Defaults::default());
            let ask = ForceAsk { by: Some("somebody".into()), why: "no patience".into() };
            let _ = desk.force_delete(None, id, None, ask).await;
        }
    }
}

/// Whether a task waits for the end of a pod.
fn waits_for_a_pod(kind: &str, state: &[u8]) -> bool {
    let state: TaskState = decode_state::<Task>(state).unwrap_or_default();
    kind == "task" && (state.unfenced || state.cancel.is_some())
}

/// A person who says that a pod does not run has looked.
fn vouches(c: &Clients, state: &[u8]) -> bool {
    let state: TaskState = decode_state::<Task>(state).unwrap_or_default();
    let pod = state.pod.filter(|_| state.unfenced);
    pod.is_some_and(|p| !p.uid.is_empty() && c.env.world.yard.is_over(&p.uid))
}

/// A task whose pods somebody else makes, one after another, whatever becomes of them.
async fn elsewhere(c: Clients) {
    c.wait(c.some(s(60))).await;
    let id = c.id();
    let new = NewTask {
        name: "elsewhere".into(),
        workflow_id: "wf".into(),
        tenant_id: "t".into(),
        retry: retry(),
        times: times(),
        must_end_in_ms: MUST_END_MS,
        ..NewTask::default()
    };
    c.create("task", id, &Body::json(&new)).await;
    let world = c.env.world.clone();
    for attempt in 1..=1 + c.below(3) {
        c.wait(c.some(s(60))).await;
        let pod = foreign_pod(&id.to_string(), attempt, &format!("theirs-{id}-{attempt}"));
        let _ = world.yard.create(&world, pod);
    }
}
