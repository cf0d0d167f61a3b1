//! What is counted is what happened.

use crate::support::{Order, clock, quiet_node, state, store, until};
use tenure_kernel::{
    commit::{Commit, Expect},
    ids::MailId,
    mail::NewMail,
    store::Op,
    stream::{Body, NewEvent},
};
use tenure_proving::patience;

fn mail(to: tenure_kernel::ids::EntityId, id: &str) -> NewMail {
    NewMail { to, id: MailId(id.into()), kind: "k".into(), body: Body::Inline(vec![]) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bell_that_was_not_rung_is_missed_and_one_that_was_is_heard() {
    let store = store();
    let mut node = quiet_node(store.clone()).await;
    let meter = node.pipeline.meter();
    let id = clock(&node, &Order::default()).await;
    // The loop has lain down and knows of nothing that is due soon.
    let slept = meter.woken_by_time.get();
    patience::until("the loop sleeps", async || meter.woken_by_time.get() > slept + 1).await;
    let missed = meter.bells_missed.get();
    store.apply(vec![Op::Mail(mail(id, "silent"))]).await.unwrap();
    until(&*store, id, "heard", |h| state(h).heard.len() == 1).await;
    patience::until("a missed bell", async || meter.bells_missed.get() > missed).await;

    let heard = meter.woken_by_bell.get();
    node.pipeline.mail(mail(id, "rung")).await.unwrap();
    until(&*store, id, "heard", |h| state(h).heard.len() == 2).await;
    patience::until("a bell", async || meter.woken_by_bell.get() > heard).await;
    let fired = meter
        .rules()
        .into_iter()
        .find(|(rule, kind, _)| (*rule, *kind) == ("mail_waiting", "clock"));
    assert_eq!(fired.map(|(_, _, f)| (f.fired, f.failed)), Some((2, 0)));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_of_a_tenure_that_is_over_is_counted() {
    let store = store();
    let mut node = quiet_node(store.clone()).await;
    let meter = node.pipeline.meter();
    let id = clock(&node, &Order::default()).await;
    let before = (meter.commits.committed.get(), meter.commits.stale_epoch.get());
    let stale = Expect::Holder { epoch: 99, version: 1 };
    let event = NewEvent::new("stopped", Body::json(&serde_json::json!({ "ballast": "" })));
    let stale = Commit::new(node.pipeline.commit_id(), id, stale, vec![event]);
    node.pipeline.commit(stale).await.unwrap();
    assert_eq!(meter.commits.stale_epoch.get(), before.1 + 1);
    assert!(meter.batch_ops.read().1 > 0 && meter.batch_micros.read().1 > 0);
    node.stop().await;
}
