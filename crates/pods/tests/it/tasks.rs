//! What a task does: attempts, fences, pauses, cancels, and what whoever asked for it is told.

use crate::world::{Seen, World, secs};
use serde_json::json;
use tenure_kernel::{ids::EntityId, mail::MailAnswer};
use tenure_pods::{
    pod::{PodStop, StopWhy},
    task::{
        NewTask, RetryPolicy,
        decide::{RETRY_NOW, RetryNow},
        model::{Cleanup, CleanupWhen, OnLost, tended_id},
        policy::NoRetry,
    },
    verdict::{Cause, CauseClass, TaskStatus},
};

/// A world with one task, which is as the test says.
fn ordered(says: impl FnOnce(&mut NewTask)) -> (World, EntityId) {
    let mut w = World::new();
    let mut new = w.new_task();
    says(&mut new);
    let task = w.order(new);
    (w, task)
}

/// Its pod runs, on a node that is lost: nobody knows whether it still does.
fn lose_its_node(w: &mut World, task: EntityId) {
    w.make(tended_id(task, 1), "u1");
    w.saw(Seen::running(task, 1, "u1"));
    w.saw(Seen::failed(task, 1, "u1", Cause::NodeLost, CauseClass::Lost).alive());
}

#[test]
fn a_task_runs_as_one_pod_and_its_result_is_told() {
    let mut w = World::new();
    let task = w.task();
    assert_eq!(w.status(task), "QUEUED");
    let pod = tended_id(task, 1);
    w.make(pod, "u1");
    assert_eq!(w.state(task).pod.as_ref().map(|p| p.uid.as_str()), Some("u1"));
    w.saw(Seen::running(task, 1, "u1"));
    assert_eq!(w.status(task), "RUNNING");
    let mut seen = Seen::succeeded(task, 1, "u1");
    seen.0.result = Some("{\"rows\": 3}".into());
    w.saw(seen);
    assert_eq!(w.status(task), "SUCCEEDED");
    let [told] = &w.outside.answers[..] else { panic!("{:?}", w.outside.answers) };
    assert_eq!(told["end"], "completed");
    assert_eq!(told["step"], "1");
    assert_eq!(told["result"]["result"], json!({"rows": 3}));
    assert_eq!(told["result"]["exit_code"], 0);
    // By default a pod that ended well is deleted at once; the executor holds it and is told.
    let [mail] = &w.unread(pod)[..] else { panic!() };
    let stop: PodStop = serde_json::from_slice(mail.body.inline().expect("small")).expect("a stop");
    assert_eq!(stop, PodStop { why: StopWhy::Over, delete_after_ms: Some(0) });
    w.check();
}

#[test]
fn what_the_end_says_without_a_running_before_is_enough() {
    let mut w = World::new();
    let task = w.task();
    w.saw(Seen::succeeded(task, 1, "u1"));
    assert_eq!(w.status(task), "SUCCEEDED");
    w.check();
}

#[test]
fn a_failed_attempt_is_tried_again_after_a_pause_with_another_pod() {
    let mut w = World::new();
    let task = w.task();
    w.saw(Seen::running(task, 1, "u1"));
    w.saw(Seen::app_error(task, 1, "u1"));
    assert_eq!(w.status(task), "RETRYING");
    assert_eq!(w.state(task).tally.classes[&CauseClass::App], 1);
    w.until_attempt(task, 2);
    assert_eq!(w.status(task), "QUEUED");
    assert!(w.state(task).in_budget && w.budget().holds(task));
    w.saw(Seen::succeeded(task, 2, "u2"));
    assert_eq!(w.status(task), "SUCCEEDED");
    assert!(!w.budget().holds(task), "its place is given back");
    w.check();
}

#[test]
fn retries_of_one_class_do_not_use_up_those_of_another() {
    let (mut w, task) =
        ordered(|new| new.retry = RetryPolicy { app: 1, infra: 5, ..RetryPolicy::default() });
    for attempt in 1..=4 {
        let uid = format!("u{attempt}");
        w.saw(Seen::failed(task, attempt, &uid, Cause::Preempted, CauseClass::Infra));
        w.until_attempt(task, attempt + 1);
    }
    w.saw(Seen::app_error(task, 5, "u5"));
    w.until_attempt(task, 6);
    w.saw(Seen::app_error(task, 6, "u6"));
    assert_eq!(w.status(task), "FAILED");
    assert_eq!(w.state(task).no_retry, Some(NoRetry::ClassSpent));
    let told = w.outside.answers.last().expect("told");
    assert_eq!(told["end"], "permanent");
    let error = told["error"].as_str().expect("words");
    assert!(error.contains("app_error (exit code 1)") && error.contains("are spent"), "{error}");
    w.check();
}

#[test]
fn want_of_room_past_the_threshold_is_a_dead_letter() {
    let (mut w, task) =
        ordered(|new| new.retry = RetryPolicy { rejected_capacity: 2, ..RetryPolicy::default() });
    for attempt in 1..=3 {
        let uid = format!("u{attempt}");
        let cause = Cause::RejectedCapacity;
        w.saw(Seen::failed(task, attempt, &uid, cause, CauseClass::Infra));
        if attempt < 3 {
            w.until_attempt(task, attempt + 1);
        }
    }
    assert_eq!(w.status(task), "FAILED");
    assert_eq!(w.state(task).no_retry, Some(NoRetry::CapacityThreshold));
    w.check();
}

#[test]
fn what_is_not_retryable_fails_at_once() {
    let mut w = World::new();
    let task = w.task();
    let mut seen = Seen::failed(task, 1, "u1", Cause::ImageInvalid, CauseClass::Image).alive();
    seen.0.verdict.retryable = false;
    w.saw(seen);
    assert_eq!(w.status(task), "FAILED");
    assert_eq!(w.state(task).no_retry, Some(NoRetry::NotRetryable));
    // The pod is there and waits for its image: it has to go.
    let pod = w.pod(tended_id(task, 1));
    assert_eq!(pod.stop.map(|s| (s.why, s.delete_after_ms)), Some((StopWhy::Replaced, Some(0))));
    w.check();
}

#[test]
fn no_second_pod_before_the_first_is_over() {
    let mut w = World::new();
    let task = w.task();
    let held = w.make(tended_id(task, 1), "u1");
    w.saw(Seen::failed(task, 1, "u1", Cause::ImagePull, CauseClass::Image).alive());
    assert_eq!(w.status(task), "RETRYING");
    w.pass(secs(600));
    assert_eq!(w.state(task).attempt, 1, "the pod may still find its image");
    assert!(w.state(task).pause_over && w.state(task).unfenced);
    w.clear(&held);
    w.until_attempt(task, 2);
    w.check();
}

#[test]
fn a_pod_that_is_seen_gone_frees_the_next_attempt_too() {
    let mut w = World::new();
    let task = w.task();
    w.make(tended_id(task, 1), "u1");
    w.saw(Seen::running(task, 1, "u1"));
    let lost = || Seen::failed(task, 1, "u1", Cause::NodeLost, CauseClass::Lost);
    w.saw(lost().alive());
    w.pass(secs(60));
    assert_eq!(w.state(task).attempt, 1);
    // The same verdict under another key: now it is over.
    w.saw(lost());
    w.until_attempt(task, 2);
    w.check();
}

#[test]
fn a_lost_pod_that_never_comes_back_fails_the_task_as_unknown() {
    let mut w = World::new();
    let task = w.task();
    lose_its_node(&mut w, task);
    w.pass(secs(31 * 60));
    assert_eq!(w.status(task), "FAILED");
    assert_eq!(w.state(task).no_retry, Some(NoRetry::NotFenced));
    assert_eq!(w.outside.answers[0]["end"], "unknown");
    w.check();
}

#[test]
fn a_lost_pod_is_replaced_where_running_twice_does_no_harm() {
    let (mut w, task) = ordered(|new| new.on_lost = OnLost::Replace);
    lose_its_node(&mut w, task);
    w.pass(secs(29 * 60));
    assert_eq!(w.state(task).attempt, 1);
    w.pass(secs(120));
    assert_eq!(w.state(task).attempt, 2);
    w.check();
}

#[test]
fn a_person_can_vouch_for_it_that_a_lost_pod_is_over() {
    let mut w = World::new();
    let task = w.task();
    w.make(tended_id(task, 1), "u1");
    w.saw(Seen::failed(task, 1, "u1", Cause::NodeLost, CauseClass::Lost).alive());
    w.mail(task, "r1", RETRY_NOW, &RetryNow { by: Some("ada".into()), fenced: false });
    w.settle();
    assert!(w.noted(task).contains("may still run"));
    w.mail(task, "r2", RETRY_NOW, &RetryNow { by: Some("ada".into()), fenced: true });
    w.settle();
    assert_eq!(w.state(task).attempt, 2);
    assert!(w.events(task).iter().any(|e| format!("{e:?}").contains("ada vouches")));
    w.check();
}

#[test]
fn a_lost_pod_that_comes_back_with_its_work_done_is_a_success() {
    let mut w = World::new();
    let task = w.task();
    lose_its_node(&mut w, task);
    w.saw(Seen::succeeded(task, 1, "u1"));
    assert_eq!(w.status(task), "SUCCEEDED");
    assert_eq!(w.count(task, "pod_wanted"), 1);
    w.check();
}

#[test]
fn a_cancel_ends_the_task_when_its_pod_is_over() {
    let mut w = World::new();
    let task = w.task();
    let pod = tended_id(task, 1);
    let held = w.make(pod, "u1");
    w.saw(Seen::running(task, 1, "u1"));
    w.cancel(task);
    assert_eq!(w.status(task), "RUNNING");
    w.cancel(task);
    assert!(w.noted(task).contains("being stopped"));
    let [mail] = &w.unread(pod)[..] else { panic!() };
    let stop: PodStop = serde_json::from_slice(mail.body.inline().expect("small")).expect("a stop");
    assert_eq!(stop.why, StopWhy::Cancel);
    w.clear(&held);
    assert_eq!(w.status(task), "CANCELED");
    assert_eq!(w.outside.answers[0]["end"], "cancelled");
    assert!(!w.state(task).unfenced);
    w.check();
}

#[test]
fn a_cancelled_task_that_had_ended_well_is_a_success() {
    let mut w = World::new();
    let task = w.task();
    w.make(tended_id(task, 1), "u1");
    w.saw(Seen::running(task, 1, "u1"));
    w.cancel(task);
    w.saw(Seen::succeeded(task, 1, "u1"));
    assert_eq!(w.status(task), "SUCCEEDED");
    w.check();
}

#[test]
fn a_cancelled_task_ends_although_nobody_answers() {
    let mut w = World::new();
    let task = w.task();
    w.make(tended_id(task, 1), "u1");
    w.cancel(task);
    w.pass(secs(301));
    assert_eq!(w.status(task), "CANCELED");
    assert!(w.state(task).unfenced, "and says that the pod may still run");
    w.check();
}

#[test]
fn a_cancel_before_any_executor_came_makes_no_pod() {
    let mut w = World::new();
    let task = w.task();
    w.cancel(task);
    assert_eq!(w.status(task), "CANCELED");
    assert_eq!(w.status(tended_id(task, 1)), "not_made");
    w.check();
}

#[test]
fn a_marker_on_the_pod_cancels_the_task() {
    let mut w = World::new();
    let task = w.task();
    let verdict = crate::world::verdict(
        TaskStatus::Canceled,
        Some(Cause::QueueCancel),
        Some(CauseClass::Cancelled),
    );
    w.make(tended_id(task, 1), "u1");
    w.saw(Seen::new(task, 1, "u1", verdict.clone()).alive());
    assert_eq!(w.status(task), "QUEUED", "it has to be over first");
    w.saw(Seen::new(task, 1, "u1", verdict));
    assert_eq!(w.status(task), "CANCELED");
    assert_eq!(w.state(task).cancel.and_then(|c| c.by).as_deref(), Some("queue_cancel"));
    w.check();
}

#[test]
fn an_attempt_that_runs_too_long_is_stopped_and_fails_as_timeout() {
    let (mut w, task) = ordered(|new| new.timeout_ms = Some(60_000));
    w.saw(Seen::running(task, 1, "u1"));
    w.pass(secs(61));
    assert_eq!(w.status(task), "FAILED");
    let state = w.state(task);
    assert_eq!(state.ended.and_then(|e| e.cause), Some(Cause::Timeout));
    assert_eq!(w.pod(tended_id(task, 1)).stop.map(|s| s.why), Some(StopWhy::Timeout));
    w.check();
}

#[test]
fn a_pod_that_nobody_makes_and_nobody_sees_does_not_hang_the_task() {
    let mut w = World::new();
    let task = w.task();
    w.pass(secs(2 * 3_600 + 1));
    let ended = w.state(task).ended.expect("the first attempt ended");
    assert_eq!(ended.cause, Some(Cause::StartTimeout));
    w.pass(secs(24 * 3_600));
    assert_eq!(w.status(task), "FAILED");
    w.check();
}

#[test]
fn details_that_come_late_are_filled_in_once() {
    let mut w = World::new();
    let task = w.task();
    let failed = || Seen::failed(task, 1, "u1", Cause::AppError, CauseClass::App);
    w.saw(failed());
    assert_eq!(w.state(task).ended.and_then(|e| e.exit_code), None);
    let mut late = failed();
    late.0.verdict.exit_code = Some(3);
    late.0.verdict.message = "no such table".into();
    w.saw(late);
    let mut later = failed();
    later.0.verdict.exit_code = Some(4);
    w.saw(later);
    let ended = w.state(task).ended.expect("ended");
    assert_eq!((ended.exit_code, ended.message.as_str()), (Some(3), "no such table"));
    assert_eq!(w.count(task, "attempt_failed"), 1);
    w.check();
}

#[test]
fn the_api_server_says_no_once_and_the_task_says_why() {
    use tenure_pods::{
        pod::{POD_WORD, PodWord, Says},
        task::model::Ended,
    };
    let mut w = World::new();
    let task = w.task();
    let ended = Ended {
        status: Some(TaskStatus::Failed),
        cause: Some(Cause::RejectedSpec),
        class: Some(CauseClass::Config),
        message: "violates PodSecurity".into(),
        ..Ended::default()
    };
    let word = PodWord { attempt: 1, says: Says::Refused { ended, retryable: false } };
    w.mail(task, "x", POD_WORD, &word);
    w.settle();
    assert_eq!(w.status(task), "FAILED");
    assert!(w.outside.answers[0]["error"].as_str().is_some_and(|e| e.contains("PodSecurity")));
    w.check();
}

#[test]
fn pods_that_are_over_are_kept_or_deleted_as_the_policy_says() {
    let cases = [
        (CleanupWhen::OnSuccess, true, Some(0)),
        (CleanupWhen::OnSuccess, false, None),
        (CleanupWhen::Always, false, Some(0)),
        (CleanupWhen::Never, true, None),
    ];
    for (when, well, deleted) in cases {
        let mut w = World::new();
        let mut new = w.new_task();
        new.retry = RetryPolicy::never();
        new.cleanup = Cleanup { when, delay_ms: 0 };
        let task = w.order(new);
        let pod = tended_id(task, 1);
        w.make(pod, "u1");
        let seen = if well { Seen::succeeded } else { Seen::app_error };
        w.saw(seen(task, 1, "u1"));
        let [mail] = &w.unread(pod)[..] else { panic!() };
        let stop: PodStop =
            serde_json::from_slice(mail.body.inline().expect("small")).expect("a stop");
        assert_eq!(stop.delete_after_ms, deleted, "{when:?} {well}");
    }
}

#[test]
fn pods_that_others_make_are_watched_and_their_attempts_counted() {
    let (mut w, task) = ordered(|new| {
        new.template = serde_json::Value::Null;
        new.retry = RetryPolicy { app: 1, ..RetryPolicy::default() };
    });
    assert_eq!(w.status(task), "PENDING");
    w.saw(Seen::running(task, 1, "u1"));
    w.saw(Seen::app_error(task, 1, "u1"));
    assert_eq!(w.status(task), "RETRYING");
    // Without a number on the pod, another pod is another attempt.
    let mut seen = Seen::running(task, 1, "u2");
    seen.0.attempt = None;
    w.saw(seen);
    assert_eq!((w.status(task), w.state(task).attempt), ("RUNNING", 2));
    w.saw(Seen::succeeded(task, 2, "u2"));
    assert_eq!(w.status(task), "SUCCEEDED");
    w.check();
}

#[test]
fn nobody_makes_another_pod_and_the_task_ends() {
    let (mut w, task) = ordered(|new| new.template = serde_json::Value::Null);
    w.saw(Seen::app_error(task, 1, "u1"));
    w.pass(secs(2 * 3_600));
    assert_eq!(w.status(task), "FAILED");
    assert_eq!(w.state(task).no_retry, Some(NoRetry::NoPodCame));
    w.check();
}

#[test]
fn the_same_report_is_told_once() {
    let mut w = World::new();
    let task = w.task();
    assert!(matches!(w.saw(Seen::running(task, 1, "u1")), MailAnswer::Accepted { .. }));
    assert_eq!(w.saw(Seen::running(task, 1, "u1")), MailAnswer::Duplicate);
    w.saw(Seen::succeeded(task, 1, "u1"));
    let again = w.saw(Seen::app_error(task, 1, "u1"));
    assert_eq!(again, MailAnswer::Final { status: "SUCCEEDED" });
}

/// A cancelled task ends as cancelled, by the clock of the cancel alone; every other clock would call it something else.
#[test]
fn a_cancel_stops_the_fence_that_would_fail_the_task() {
    let mut w = World::new();
    let task = w.task();
    lose_its_node(&mut w, task);
    w.pass(secs(1_600));
    w.cancel(task);
    w.pass(secs(250));
    assert_eq!(w.status(task), "RETRYING", "the fence is over, and says nothing");
    w.pass(secs(60));
    assert_eq!(w.status(task), "CANCELED");
    assert!(w.state(task).unfenced);
    w.check();
}

#[test]
fn a_cancel_never_says_that_a_lost_pod_is_over() {
    let (mut w, task) = ordered(|new| new.on_lost = OnLost::Replace);
    lose_its_node(&mut w, task);
    w.pass(secs(1_600));
    w.cancel(task);
    w.pass(secs(310));
    assert_eq!(w.status(task), "CANCELED");
    assert!(w.state(task).unfenced, "nobody knows whether it runs");
    w.check();
}

#[test]
fn a_pod_that_runs_after_the_cancel_has_no_clock_of_its_own() {
    let (mut w, task) = ordered(|new| new.timeout_ms = Some(60_000));
    w.make(tended_id(task, 1), "u1");
    w.cancel(task);
    w.saw(Seen::running(task, 1, "u1"));
    w.pass(secs(100));
    assert_eq!(w.status(task), "RUNNING");
    w.pass(secs(300));
    assert_eq!(w.status(task), "CANCELED");
    assert!(w.state(task).unfenced);
    w.check();
}

#[test]
fn a_watched_task_waits_for_the_next_pod_and_not_for_the_end_of_the_last() {
    let (mut w, task) = ordered(|new| new.template = serde_json::Value::Null);
    w.saw(Seen::running(task, 1, "u1"));
    w.saw(Seen::failed(task, 1, "u1", Cause::NodeLost, CauseClass::Lost).alive());
    w.pass(secs(50 * 60));
    assert_eq!(w.status(task), "RETRYING", "others may still make one");
    w.saw(Seen::running(task, 2, "u2"));
    assert_eq!((w.status(task), w.state(task).attempt), ("RUNNING", 2));
    w.saw(Seen::failed(task, 2, "u2", Cause::NodeLost, CauseClass::Lost).alive());
    w.pass(secs(2 * 3_600));
    assert_eq!(w.status(task), "FAILED");
    assert_eq!(w.state(task).no_retry, Some(NoRetry::NoPodCame));
    w.check();
}

#[test]
fn a_pod_behind_a_scheduling_gate_is_not_late() {
    use tenure_pods::pod::{POD_WORD, PodWord, Says};
    let mut w = World::new();
    let task = w.task();
    w.make(tended_id(task, 1), "u1");
    for n in 0..6 {
        w.pass(secs(1_800));
        let word = PodWord { attempt: 1, says: Says::Gated {} };
        w.mail(task, &format!("g{n}"), POD_WORD, &word);
        w.settle();
    }
    assert_eq!((w.status(task), w.state(task).attempt), ("QUEUED", 1), "after three hours");
    w.pass(secs(7_201));
    assert_eq!(w.state(task).ended.and_then(|e| e.cause), Some(Cause::StartTimeout));
    w.check();
}

#[test]
fn the_time_of_an_attempt_counts_from_its_start_and_not_from_the_news_of_it() {
    let mut w = World::new();
    let mut new = w.new_task();
    new.timeout_ms = Some(600_000);
    let task = w.order(new.clone());
    let since = w.store.now + secs(10);
    w.pass(secs(310));
    let mut seen = Seen::running(task, 1, "u1");
    seen.0.verdict.since = Some(since);
    w.saw(seen);
    w.pass(secs(301));
    assert_eq!(w.status(task), "FAILED");
    assert_eq!(w.state(task).ended.and_then(|e| e.cause), Some(Cause::Timeout));
    // The clock of a node that is a day behind costs nothing.
    let task = w.order(new);
    let mut seen = Seen::running(task, 1, "u2");
    seen.0.verdict.since = Some(w.store.now - secs(86_400));
    w.saw(seen);
    w.pass(secs(590));
    assert_eq!(w.status(task), "RUNNING");
    w.check();
}

/// Its pod is missing, and whoever says so has not seen it end.
fn missing(task: EntityId, uid: &str) -> Seen {
    let mut seen = Seen::failed(task, 1, uid, Cause::DeletedExternally, CauseClass::Deleted);
    (seen.0.gone, seen.0.inferred) = (true, true);
    seen
}

#[test]
fn an_end_that_nobody_saw_waits_for_a_witness() {
    for oom in [false, true] {
        let (mut w, task) = ordered(|_| {});
        w.make(tended_id(task, 1), "u1");
        w.saw(Seen::running(task, 1, "u1"));
        w.saw(missing(task, "u1"));
        assert_eq!(w.status(task), "RUNNING", "it may have ended well");
        assert!(w.state(task).inferred.is_some());
        w.pass(secs(29));
        assert_eq!(w.status(task), "RUNNING");
        match oom {
            true => w.saw(Seen::failed(task, 1, "u1", Cause::Oom, CauseClass::Oom)),
            false => w.saw(Seen::succeeded(task, 1, "u1")),
        };
        let ended = w.state(task).ended.expect("ended");
        assert!(!ended.inferred && w.state(task).inferred.is_none());
        assert_eq!(w.status(task), if oom { "RETRYING" } else { "SUCCEEDED" });
        assert_eq!(ended.cause, oom.then_some(Cause::Oom));
        w.check();
    }
}

#[test]
fn without_a_witness_its_absence_is_its_end() {
    let (mut w, task) = ordered(|new| new.retry = RetryPolicy::never());
    let held = w.make(tended_id(task, 1), "u1");
    w.saw(Seen::running(task, 1, "u1"));
    w.saw(missing(task, "u1"));
    // The executor misses it too: that adds nothing.
    w.clear(&held);
    assert_eq!(w.status(task), "RUNNING");
    w.pass(secs(31));
    assert_eq!(w.status(task), "FAILED");
    let ended = w.state(task).ended.expect("ended");
    assert_eq!((ended.cause, ended.inferred), (Some(Cause::DeletedExternally), true));
    assert!(!w.state(task).unfenced, "it is gone");
    w.check();
}

#[test]
fn an_executor_that_finds_its_pod_gone_has_not_seen_it_end() {
    let mut w = World::new();
    let task = w.task();
    let held = w.make(tended_id(task, 1), "u1");
    w.saw(Seen::running(task, 1, "u1"));
    w.clear(&held);
    assert_eq!(w.status(task), "RUNNING");
    w.saw(Seen::succeeded(task, 1, "u1"));
    assert_eq!(w.status(task), "SUCCEEDED");
    w.check();
}

fn slow_to_retry(new: &mut NewTask) {
    (new.retry.backoff_ms, new.retry.backoff_cap_ms) = (80_000_000, 80_000_000);
}

#[test]
fn a_witness_that_comes_after_the_time_is_believed_while_no_other_pod_was_made() {
    let (mut w, task) = ordered(slow_to_retry);
    w.make(tended_id(task, 1), "u1");
    w.saw(Seen::running(task, 1, "u1"));
    w.saw(missing(task, "u1"));
    w.pass(secs(31));
    assert_eq!(w.status(task), "RETRYING");
    let oom = Seen::failed(task, 1, "u1", Cause::Oom, CauseClass::Oom);
    w.saw(oom);
    let ended = w.state(task).ended.expect("ended");
    assert_eq!((ended.cause, ended.inferred), (Some(Cause::Oom), false));
    w.check();
    let (mut w, task) = ordered(slow_to_retry);
    w.make(tended_id(task, 1), "u1");
    w.saw(missing(task, "u1"));
    w.pass(secs(31));
    w.saw(Seen::succeeded(task, 1, "u1"));
    assert_eq!(w.status(task), "SUCCEEDED");
    w.check();
}

#[test]
fn a_cancel_does_not_wait_for_a_witness() {
    for first in [true, false] {
        let mut w = World::new();
        let task = w.task();
        w.make(tended_id(task, 1), "u1");
        w.saw(Seen::running(task, 1, "u1"));
        if first {
            w.cancel(task);
        }
        w.saw(missing(task, "u1"));
        if !first {
            w.cancel(task);
        }
        assert_eq!(w.status(task), "CANCELED");
        assert!(!w.state(task).unfenced);
        w.check();
    }
}

#[test]
fn a_clock_of_the_attempt_does_not_blame_a_pod_that_is_missing() {
    let (mut w, task) = ordered(|new| {
        new.timeout_ms = Some(10_000);
        new.retry = RetryPolicy::never();
    });
    w.make(tended_id(task, 1), "u1");
    w.saw(Seen::running(task, 1, "u1"));
    w.saw(missing(task, "u1"));
    w.pass(secs(11));
    let ended = w.state(task).ended.expect("ended");
    assert_eq!((ended.cause, ended.inferred), (Some(Cause::DeletedExternally), true));
    w.check();
}

#[test]
fn what_a_collector_reports_takes_the_place_of_what_was_only_heard() {
    let mut w = World::new();
    let new = NewTask { template: json!(null), asker: None, ..w.new_task() };
    let new = NewTask { retry: RetryPolicy::never(), ..new };
    let task = w.order(new);
    let hint = |mut seen: Seen| {
        seen.0.verdict.rule = "channel".into();
        seen.0.verdict.exit_code = None;
        seen.0.over = false;
        seen.0.pod.name = String::new();
        seen.0.pod.namespace = String::new();
        seen
    };
    w.saw(hint(Seen::running(task, 1, "u1")));
    assert_eq!(w.state(task).pod.map(|p| p.name), Some(String::new()));
    let mut seen = Seen::running(task, 1, "u1");
    seen.0.verdict.since = Some(tenure_kernel::time::Timestamp::from_micros(1));
    w.saw(seen);
    assert!(w.state(task).pod.is_some_and(|p| !p.name.is_empty()), "now it is known which pod");
    w.saw(hint(Seen::app_error(task, 1, "u1")));
    assert_eq!(w.status(task), "RUNNING", "the report is waited for");
    w.saw(Seen::app_error(task, 1, "u1"));
    let state = w.state(task);
    assert_eq!(w.status(task), "FAILED");
    assert_eq!((state.ended.unwrap().rule.as_str(), state.unfenced), ("test", false));
    w.check();
}
