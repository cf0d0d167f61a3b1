//! The defects of the system before (F1 to F14), as far as they are about tasks. What is about collectors,
//! pods in a cluster and keys is tested where those are: F4 with the collector, F11 with the verdict (a missing Secret is a
//! `config` failure), F12 with the executor, F13 with the API's keys. F6, F7, F10 are about gangs, unique names and
//! quotas, which tasks do not have; a task is named by its id. F14 is about another client.

use crate::world::{Seen, World, secs};
use tenure_kernel::mail::MailAnswer;
use tenure_pods::{
    pod::{NewPod, pod_name},
    task::model::tended_id,
    verdict::{Cause, CauseClass},
};

/// F1: a retry made the same pod name, found the failed pod there, and failed at once.
#[test]
fn f1_every_attempt_has_a_pod_name_of_its_own() {
    let mut w = World::new();
    let task = w.task();
    w.saw(Seen::app_error(task, 1, "u1"));
    w.until_attempt(task, 2);
    let named = |attempt| {
        let new: NewPod = w.pod(tended_id(task, attempt)).new.expect("ordered");
        pod_name(&new)
    };
    assert_ne!(named(1), named(2));
    for name in [named(1), named(2)] {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        assert!(name.len() <= 63 && name.chars().all(fits), "{name}");
        assert!(!name.starts_with('-') && !name.ends_with('-'), "{name}");
    }
}

#[test]
fn f1_names_are_valid_whatever_the_task_is_called() {
    let w = World::new();
    let task = tended_id(w.outside.id, 0);
    for (name, workflow) in
        [("", ""), ("Ünï cödé", "--"), ("a_b.c", "WF_1"), (&"x".repeat(300), "1")]
    {
        let new = NewPod {
            task,
            attempt: u32::MAX,
            name: name.into(),
            workflow_id: workflow.into(),
            tenant_id: String::new(),
            label: None,
            namespace: None,
            cluster: String::new(),
            priority: 0,
            must_end_in_ms: 1,
        };
        let name = pod_name(&new);
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        assert!(name.len() <= 63 && name.chars().all(fits), "{name}");
        assert!(name.starts_with("ff-") && !name.ends_with('-'), "{name}");
    }
}

/// F2: the executor set RETRYING, the collector then reported FAILED for the same pod, and a second retry was burned.
#[test]
fn f2_one_failure_that_two_observers_report_costs_one_retry() {
    let mut w = World::new();
    let task = w.task();
    w.saw(Seen::app_error(task, 1, "u1"));
    // Another observer words it differently, so it is not the same mail.
    w.saw(Seen::failed(task, 1, "u1", Cause::Lost, CauseClass::Lost));
    w.saw(Seen::failed(task, 1, "u1", Cause::DeletedExternally, CauseClass::Deleted));
    assert_eq!(w.status(task), "RETRYING");
    assert_eq!(w.state(task).tally.all(), 1);
    w.until_attempt(task, 2);
    w.saw(Seen::failed(task, 1, "u1", Cause::EvictedApi, CauseClass::Infra));
    assert_eq!((w.status(task), w.state(task).tally.all()), ("QUEUED", 1));
    assert!(w.noted(task).contains("attempt 1 is over"));
    w.check();
}

/// F3: a collector that starts again says everything again: an old failed pod failed a task that ran anew.
#[test]
fn f3_what_a_restarted_collector_says_about_old_pods_moves_nothing() {
    let mut w = World::new();
    let task = w.task();
    w.saw(Seen::app_error(task, 1, "u1"));
    w.until_attempt(task, 2);
    w.saw(Seen::running(task, 2, "u2"));
    assert_eq!(w.saw(Seen::app_error(task, 1, "u1")), MailAnswer::Duplicate);
    // Also with another transition time, so that it is news to the mailbox.
    let mut again = Seen::app_error(task, 1, "u1");
    again.0.verdict.since = Some(w.store.now);
    w.saw(again);
    assert_eq!((w.status(task), w.state(task).attempt), ("RUNNING", 2));
    w.check();
}

/// A pod that has the number of the attempt and is another one: somebody else made it.
#[test]
fn f3_another_pod_under_the_same_number_does_not_speak_for_the_attempt() {
    let mut w = World::new();
    let task = w.task();
    w.make(tended_id(task, 1), "u1");
    w.saw(Seen::app_error(task, 1, "stranger"));
    assert_eq!(w.status(task), "QUEUED");
    assert!(w.noted(task).contains("not the pod of attempt 1"));
    w.saw(Seen::running(task, 9, "u9"));
    assert!(w.noted(task).contains("never asked for"));
    w.check();
}

/// Also before the executor has said which pod it made: a pod speaks for the attempt only under the attempt's own name.
#[test]
fn f3_labels_alone_do_not_speak_for_an_attempt() {
    let mut w = World::new();
    let mut new = w.new_task();
    new.namespace = Some("work".into());
    let task = w.order(new);
    let mut other = Seen::app_error(task, 1, "stranger");
    other.0.pod.name = "somebody-elses".into();
    other.0.pod.namespace = "work".into();
    w.saw(other);
    assert!(w.noted(task).contains("not the pod of attempt 1"));
    // The right name in the wrong place.
    w.saw(Seen::app_error(task, 1, "elsewhere"));
    assert_eq!((w.status(task), w.state(task).pod), ("QUEUED", None));
    // A pod that took the name is forgotten when the executor says which it made.
    let mut early = Seen::running(task, 1, "impostor");
    early.0.pod.namespace = "work".into();
    w.saw(early);
    assert_eq!(w.state(task).pod.map(|p| p.uid).as_deref(), Some("impostor"));
    w.make(tended_id(task, 1), "u1");
    assert_eq!(w.state(task).pod.map(|p| p.uid).as_deref(), Some("u1"));
    w.saw(Seen::succeeded(task, 1, "u1"));
    assert_eq!(w.status(task), "SUCCEEDED");
    w.check();
}

/// The same where others make the pods and write no attempt on them.
#[test]
fn f3_old_pods_of_a_watched_task_are_no_new_attempts() {
    let mut w = World::new();
    let mut new = w.new_task();
    new.template = serde_json::Value::Null;
    let task = w.order(new);
    let unnumbered = |mut seen: Seen| {
        seen.0.attempt = None;
        seen
    };
    w.saw(unnumbered(Seen::running(task, 1, "a")));
    w.saw(unnumbered(Seen::running(task, 1, "b")));
    assert_eq!((w.status(task), w.state(task).attempt), ("RUNNING", 2));
    let evicted = Seen::failed(task, 1, "a", Cause::EvictedNodePressure, CauseClass::Infra);
    w.saw(unnumbered(evicted));
    assert_eq!((w.status(task), w.state(task).attempt), ("RUNNING", 2));
    assert!(w.noted(task).contains("of an earlier attempt"));
    w.saw(unnumbered(Seen::succeeded(task, 1, "b")));
    assert_eq!(w.status(task), "SUCCEEDED");
    w.check();
}

/// F8: a later completion overwrote CANCELLED.
#[test]
fn f8_what_comes_after_the_end_changes_nothing() {
    let mut w = World::new();
    let task = w.task();
    w.cancel(task);
    assert_eq!(w.status(task), "CANCELED");
    let answer = w.saw(Seen::succeeded(task, 1, "u1"));
    assert_eq!(answer, MailAnswer::Final { status: "CANCELED" });
    w.pass(secs(24 * 3_600));
    assert_eq!(w.status(task), "CANCELED");
    w.check();
}

/// F9: regressions were written because writes were unconditional.
#[test]
fn f9_a_running_after_the_end_of_an_attempt_is_no_running() {
    let mut w = World::new();
    let task = w.task();
    w.saw(Seen::running(task, 1, "u1"));
    w.saw(Seen::app_error(task, 1, "u1"));
    let mut regressed = Seen::running(task, 1, "u1");
    regressed.0.verdict.since = Some(w.store.now);
    w.saw(regressed);
    assert_eq!(w.status(task), "RETRYING");
    w.check();
}
