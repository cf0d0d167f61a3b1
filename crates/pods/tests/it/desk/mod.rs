//! What outsiders may ask of tasks, and what becomes of it: a server on a real store, without a cluster. What an executor
//! and a collector would say is said by hand.

mod town;

use serde_json::{Value, json};
use std::time::Duration;
use tenure_engine::birth::{Wish, birth};
use tenure_kernel::{commit::CommitAnswer, machine::Input, stream::Body, time::Timestamp};
use tenure_pods::{
    budget::BudgetTerms,
    desk::{
        Defaults, Desk, DeskError, Hinted, Order, Outcome, ReportOutcome, Reporter,
        letters::dead_letters,
    },
    envelope::TaskEvent,
    pod::Says,
    report::{PodName, Report, TerminatedReason, task_of, task_of_label},
    task::{NewTask, decide::RetryNow, model::CancelAsk},
    verdict::{Cause, CauseClass, TaskStatus, Verdict},
    view::{detail, logs, task_view, why},
};
use tenure_proving::stores::Scene as _;
use town::{TENANT, Town, failed, order, pod, report, verdict};

const MINE: Option<&str> = Some(TENANT);

tenure_proving::on_every_store! {
    a_task_is_ordered_once_under_a_key_and_seen_through_to_its_end,
    a_task_may_bring_its_own_id_and_pods_name_it_by_that,
    task_ids_belong_to_their_tenant,
    tasks_that_were_stored_before_keep_their_id,
    a_channel_event_without_a_tenant_counts_where_one_open_task_is_meant,
    pods_of_tasks_that_nobody_ordered_are_taken_in_and_their_end_is_told_once,
    what_ended_before_anything_that_is_kept_is_not_taken_in_again,
    a_report_says_nothing_about_what_is_not_its_tenants,
    late_details_fill_in_what_was_missing_and_change_nothing_else,
    a_retry_waits_for_its_pause_and_a_person_may_end_that,
    a_task_whose_pod_may_still_run_is_not_run_twice_unless_a_person_vouches,
    cancel_is_asked_once_and_ends_when_the_pod_is_over,
    dead_letters_are_listed_until_they_are_replayed_or_put_aside,
    a_budget_is_set_by_a_person_and_given_back_to_the_settings,
    a_foreign_collector_is_heard_and_never_taken_for_more_than_it_says,
    a_collector_that_reports_is_not_heard_on_the_channel,
    proof_that_comes_after_the_end_is_shown_and_the_status_stays,
}

async fn a_task_is_ordered_once_under_a_key_and_seen_through_to_its_end(town: Town) {
    let desk = &town.desk;
    let keyed = Order { key: Some("k1".into()), ..order() };
    let first = desk.order(keyed.clone()).await.unwrap();
    let again = desk.order(keyed.clone()).await.unwrap();
    assert_eq!((again.task, again.existed, first.existed), (first.task, true, false));
    let other = desk.order(Order { name: "other".into(), ..keyed }).await.unwrap_err();
    assert!(matches!(other, DeskError::OtherInput(id) if id == first.task), "{other}");
    let task = first.task;
    town.until_status(task, "QUEUED").await;
    assert!(matches!(desk.task(Some("them"), task).await, Err(DeskError::NoTask(_))));
    let pod = pod("u1");
    town.word(task, 1, Says::Created { pod: pod.clone() }).await;
    let runs = report(task, &pod, 1, verdict(TaskStatus::Running));
    assert_eq!(town.report(runs.clone()).await, ReportOutcome::Accepted);
    assert_eq!(town.report(runs).await, ReportOutcome::Duplicate);
    town.until_status(task, "RUNNING").await;
    let view = task_view(&town.store, &town.head(task).await).await.unwrap();
    let now = town.store.now().await.unwrap();
    let says = why(&view, now);
    assert!(says.starts_with("Pod ml/ff-train-u1 runs on node-1"), "{says}");
    let mut done = verdict(TaskStatus::Succeeded);
    done.exit_code = Some(0);
    let mut done = report(task, &pod, 1, done);
    done.result = Some("{\"rows\": 3}".into());
    town.report(done.clone()).await;
    town.until_status(task, "SUCCEEDED").await;
    done.over = false;
    done.gone = true;
    done.terminated_reason = Some(TerminatedReason::ExternalDelete);
    assert_eq!(town.report(done).await, ReportOutcome::Final);
    let whole = detail(&town.store, &town.head(task).await).await.unwrap();
    assert_eq!(whole.attempts.len(), 1);
    let attempt = &whole.attempts[0];
    assert_eq!(attempt.ended.as_ref().unwrap().exit_code, Some(0));
    assert_eq!(attempt.pod.as_ref().unwrap().node.as_deref(), Some("node-1"));
    assert!(attempt.running_at.is_some() && attempt.pod_over && !whole.dead_letter);
    assert_eq!(whole.task.result.as_deref(), Some("{\"rows\": 3}"));
    assert!(why(&whole.task, now).starts_with("Ended well after"), "{}", why(&whole.task, now));
    let over = desk.cancel(MINE, task, CancelAsk::default()).await.unwrap_err();
    assert!(matches!(over, DeskError::TaskOver { .. }), "{over}");
    let replay = desk.replay(MINE, task, None, None).await.unwrap_err();
    assert!(replay.to_string().contains("it ended well"), "{replay}");
    assert!(desk.discard(MINE, task, None, None).await.is_err());
}

async fn a_task_may_bring_its_own_id_and_pods_name_it_by_that(town: Town) {
    let desk = &town.desk;
    let own = Order { task_id: Some("wf-7.train".into()), ..order() };
    let task = desk.order(own.clone()).await.unwrap().task;
    assert_eq!(task, task_of(TENANT, "wf-7.train"));
    assert!(desk.order(own.clone()).await.unwrap().existed);
    let other = desk.order(Order { name: "x".into(), ..own.clone() }).await.unwrap_err();
    assert!(matches!(other, DeskError::OtherInput(_)), "{other}");
    town.until_status(task, "QUEUED").await;
    let view = task_view(&town.store, &town.head(task).await).await.unwrap();
    assert_eq!(view.task_id, "wf-7.train");
    let mut seen = report(task, &pod("u1"), 1, verdict(TaskStatus::Running));
    seen.task_id = "wf-7.train".into();
    assert_eq!(town.report(seen).await, ReportOutcome::Accepted);
    town.until_status(task, "RUNNING").await;
}

async fn task_ids_belong_to_their_tenant(town: Town) {
    let desk = &town.desk;
    let named = |tenant: &str, label: &str| Order {
        tenant: tenant.into(),
        task_id: Some(label.into()),
        ..order()
    };
    let uuid = "0190b5e0-1234-7abc-8def-001122334455";
    for label in ["train", uuid] {
        let tenants = ["acme", "them", "default"];
        let mut ids = Vec::new();
        for tenant in tenants {
            let ordered = desk.order(named(tenant, label)).await.unwrap();
            assert!(!ordered.existed, "{tenant}: the id is free, whatever others have");
            assert!(desk.order(named(tenant, label)).await.unwrap().existed, "{tenant}");
            ids.push(ordered.task);
        }
        assert_eq!(ids[2], task_of_label(label), "the tenant default keeps ids that it chose");
        for (tenant, id) in tenants.into_iter().zip(&ids) {
            assert_eq!(desk.named(Some(tenant), label).await.unwrap(), *id);
            assert_eq!(desk.named(Some(tenant), &id.to_string()).await.unwrap(), *id);
            assert!(desk.task(Some(tenant), *id).await.is_ok());
            let view = task_view(&town.store, &town.head(*id).await).await.unwrap();
            assert_eq!((view.task_id.as_str(), view.tenant.as_str()), (label, tenant));
        }
        assert!(desk.named(Some("nobody"), label).await.is_err());
        // An operator names it by its id, which is never ambiguous.
        assert_eq!(desk.named(None, &ids[0].to_string()).await.unwrap(), ids[0]);
        match label == uuid {
            true => assert_eq!(desk.named(None, label).await.unwrap(), ids[2]),
            false => {
                let several = desk.named(None, label).await.unwrap_err().to_string();
                assert!(several.contains("several tenants"), "{several}");
            }
        }
    }
    // Reports reach the task of the tenant that they name.
    let (theirs, ours) = (task_of("them", "train"), task_of("acme", "train"));
    town.until_status(theirs, "QUEUED").await;
    town.until_status(ours, "QUEUED").await;
    let mut seen = report(theirs, &pod("u1"), 1, verdict(TaskStatus::Running));
    (seen.task_id, seen.tenant_id) = ("train".into(), "them".into());
    assert_eq!(town.report(seen).await, ReportOutcome::Accepted);
    town.until_status(theirs, "RUNNING").await;
    assert_eq!(town.head(ours).await.status.name(), "QUEUED");
}

/// Up to version 0.1 an id was derived from the label alone, whatever the tenant.
async fn tasks_that_were_stored_before_keep_their_id(town: Town) {
    let (desk, label) = (&town.desk, "of-old");
    let old = NewTask { tenant_id: TENANT.into(), label: Some(label.into()), ..NewTask::default() };
    let old = NewTask { must_end_in_ms: 86_400_000, ..old };
    let (id, at) = (task_of_label(label), town.store.now().await.unwrap());
    let wish = Wish { id, kind: "task", tenant: TENANT, at };
    let body = Body::json(&old);
    let commit = town.node.pipeline.commit_id();
    let birth = birth(&Town::machines(), wish, &Input::Create(&body), commit).unwrap();
    let made = town.node.pipeline.commit(birth).await.unwrap();
    assert!(matches!(made, CommitAnswer::Committed(_)), "{made:?}");
    assert_eq!(desk.named(MINE, label).await.unwrap(), id);
    assert_eq!(desk.named(None, label).await.unwrap(), id);
    let again = Order { task_id: Some(label.into()), ..order() };
    let again = desk.order(again).await.unwrap_err();
    assert!(matches!(again, DeskError::OtherInput(task) if task == id), "{again}");
    let mut seen = report(id, &pod("u1"), 1, verdict(TaskStatus::Running));
    seen.task_id = label.into();
    assert_eq!(town.report(seen).await, ReportOutcome::Accepted);
    town.until_status(id, "RUNNING").await;
    // Another tenant neither finds it nor is kept from using the same label.
    let theirs = Order { tenant: "them".into(), task_id: Some(label.into()), ..order() };
    assert_eq!(desk.order(theirs).await.unwrap().task, task_of("them", label));
    let first = Order { tenant: "default".into(), task_id: Some(label.into()), ..order() };
    assert_eq!(desk.order(first).await.unwrap().task, task_of("default", label));
}

async fn a_channel_event_without_a_tenant_counts_where_one_open_task_is_meant(town: Town) {
    let watched = |tenant: &str| Order {
        tenant: tenant.into(),
        task_id: Some("shared".into()),
        template: Value::Null,
        ..order()
    };
    let heard = |status: &str| TaskEvent {
        task_id: "shared".into(),
        status: status.into(),
        ..TaskEvent::default()
    };
    let ours = town.desk.order(watched(TENANT)).await.unwrap().task;
    let told = town.desk.hint(&heard("RUNNING")).await.unwrap();
    assert!(matches!(&told, Hinted::Told(a) if a.outcome == ReportOutcome::Accepted), "{told:?}");
    town.until_status(ours, "RUNNING").await;
    let theirs = town.desk.order(watched("them")).await.unwrap().task;
    let told = town.desk.hint(&heard("FAILED")).await.unwrap();
    assert!(matches!(told, Hinted::Ignored(why) if why.contains("several tenants")), "{told:?}");
    let named = TaskEvent { tenant_id: Some("them".into()), ..heard("FAILED") };
    assert!(matches!(town.desk.hint(&named).await.unwrap(), Hinted::Told(_)));
    town.until_status(theirs, "FAILED").await;
    assert_eq!(town.head(ours).await.status.name(), "RUNNING");
    // Theirs is over: only one open task can be meant.
    let told = town.desk.hint(&heard("SUCCEEDED")).await.unwrap();
    assert!(matches!(told, Hinted::Told(_)), "{told:?}");
    town.until_status(ours, "SUCCEEDED").await;
    assert_eq!(
        town.desk.hint(&heard("RUNNING")).await.unwrap(),
        Hinted::Ignored("the task is over")
    );
}

async fn pods_of_tasks_that_nobody_ordered_are_taken_in_and_their_end_is_told_once(town: Town) {
    let label = "their-task";
    let task = task_of(TENANT, label);
    let said = |verdict, uid: &str| Report {
        task_id: label.into(),
        workflow_id: "wf".into(),
        attempt: None,
        ..report(task, &pod(uid), 1, verdict)
    };
    let end = failed(Cause::Oom, CauseClass::Oom, Some(137), true);
    let batch = [said(verdict(TaskStatus::Running), "a"), said(end.clone(), "a")];
    let answers = town.desk.report(&batch, &Reporter::default()).await.unwrap();
    let outcomes: Vec<_> = answers.iter().map(|a| a.outcome).collect();
    assert_eq!(outcomes, [ReportOutcome::Adopted, ReportOutcome::Accepted]);
    town.until_status(task, "FAILED").await;
    let whole = detail(&town.store, &town.head(task).await).await.unwrap();
    assert_eq!((whole.task.workflow_id.as_str(), whole.task.external), ("wf", true));
    assert_eq!(whole.attempts.len(), 1, "in order: it ran, then it ended");
    assert!(whole.attempts[0].running_at.is_some(), "{whole:?}");
    assert_eq!(whole.attempts[0].ended.as_ref().unwrap().cause, Some(Cause::Oom));
    assert_eq!(town.report(said(end, "b")).await, ReportOutcome::Final);
    let replay = town.desk.replay(MINE, task, None, None).await.unwrap_err();
    assert!(replay.to_string().contains("made elsewhere"), "{replay}");
    let none = logs(&town.store, task, 1, 1).await.unwrap();
    assert_eq!(none, None, "no executor of ours had it");
}

/// A collector that lost its spool tells of pods whose tasks were over, and retired, long ago.
async fn what_ended_before_anything_that_is_kept_is_not_taken_in_again(town: Town) {
    let kept_for = Some(Duration::from_secs(30 * 86_400));
    let defaults = Defaults { kept_for, ..Defaults::default() };
    let desk = Desk::new(town.node.pipeline.clone(), defaults);
    let now = town.store.now().await.unwrap();
    let ended = |label: &str, days: u64| {
        let mut verdict = failed(Cause::Oom, CauseClass::Oom, Some(137), true);
        verdict.since = Some(now - Duration::from_secs(days * 86_400));
        let mut seen = report(task_of(TENANT, label), &pod("u"), 1, verdict);
        seen.task_id = label.into();
        seen
    };
    let from = Reporter::default();
    let answers = desk.report(&[ended("retired", 31), ended("young", 1)], &from).await.unwrap();
    assert_eq!(answers[0].outcome, ReportOutcome::Refused);
    assert!(answers[0].why.as_ref().unwrap().contains("retention"), "{answers:?}");
    assert_eq!(answers[1].outcome, ReportOutcome::Adopted);
    assert!(town.store.head(task_of(TENANT, "retired")).await.unwrap().is_none());
}

async fn a_report_says_nothing_about_what_is_not_its_tenants(town: Town) {
    let (task, pod) = town.running(|_| {}).await;
    let end = report(task, &pod, 1, failed(Cause::AppError, CauseClass::App, Some(1), false));
    let them = Reporter { tenant: Some("them".into()) };
    let answers = town.desk.report(std::slice::from_ref(&end), &them).await.unwrap();
    assert_eq!(answers[0].outcome, ReportOutcome::Refused, "{answers:?}");
    // A pod that claims to be another tenant's, by a collector that may speak for all.
    let stolen = Report { tenant_id: "them".into(), ..end.clone() };
    assert_eq!(town.report(stolen).await, ReportOutcome::Refused);
    // A pod of ours says whose it is; one that does not is somebody else's.
    let unsaid = Report { tenant_id: String::new(), ..end.clone() };
    assert_eq!(town.report(unsaid).await, ReportOutcome::Refused);
    // What is no task gets no mail: this is the entity of its pod.
    let tended = town.state(task).await.tended.unwrap();
    let astray = Report { task_id: tended.to_string(), ..end.clone() };
    let answers = town.desk.report(&[astray], &Reporter::default()).await.unwrap();
    assert!(answers[0].why.as_ref().unwrap().contains("is no task"), "{answers:?}");
    let bad = [
        Report { task_id: String::new(), ..end.clone() },
        Report { pod: PodName::default(), ..end.clone() },
        Report { verdict: Verdict { status: None, ..end.verdict.clone() }, ..end.clone() },
        Report { attempt: Some(u32::MAX), ..end },
    ];
    let answers = town.desk.report(&bad, &Reporter::default()).await.unwrap();
    assert!(answers.iter().all(|a| a.outcome == ReportOutcome::Refused), "{answers:?}");
    assert!(answers.iter().all(|a| a.why.is_some()), "{answers:?}");
    assert_eq!(town.head(task).await.status.name(), "RUNNING");
    let strict = Desk::new(
        town.node.pipeline.clone(),
        Defaults { adopt_unknown: false, ..Defaults::default() },
    );
    let unknown =
        Report { task_id: "nobody".into(), ..report(task, &pod, 1, verdict(TaskStatus::Running)) };
    let answers = strict.report(&[unknown], &Reporter::default()).await.unwrap();
    assert!(answers[0].why.as_ref().unwrap().contains("no task \"nobody\""), "{answers:?}");
}

async fn late_details_fill_in_what_was_missing_and_change_nothing_else(town: Town) {
    let (task, pod) = town.running(|o| o.retry = json!({ "app": 0, "lost": 0 })).await;
    let blind =
        Verdict { message: String::new(), ..failed(Cause::AppError, CauseClass::App, None, false) };
    town.report(report(task, &pod, 1, blind)).await;
    town.until_status(task, "FAILED").await;
    let version = town.head(task).await.version;
    let told = Verdict {
        message: "disk full".into(),
        ..failed(Cause::AppError, CauseClass::App, Some(3), false)
    };
    assert_eq!(town.report(report(task, &pod, 1, told.clone())).await, ReportOutcome::Final);
    let other = Verdict { exit_code: Some(4), message: "other".into(), ..told };
    assert_eq!(town.report(report(task, &pod, 1, other)).await, ReportOutcome::Final);
    let whole = detail(&town.store, &town.head(task).await).await.unwrap();
    let ended = whole.attempts[0].ended.clone().unwrap();
    assert_eq!((ended.exit_code, ended.message.as_str()), (Some(3), "disk full"));
    assert!(whole.attempts[0].filled_in && whole.dead_letter);
    assert_eq!(town.head(task).await.version, version, "the history is what it was");
}

async fn a_retry_waits_for_its_pause_and_a_person_may_end_that(town: Town) {
    let long = json!({ "backoff_ms": 80_000_000, "backoff_cap_ms": 80_000_000 });
    let (task, pod) = town.running(|o| o.retry = long).await;
    let desk = &town.desk;
    let early = desk.retry_now(MINE, task, RetryNow::default()).await.unwrap_err();
    assert!(early.to_string().contains("does not wait"), "{early}");
    let end = failed(Cause::Preempted, CauseClass::Infra, None, true);
    town.report(report(task, &pod, 1, end)).await;
    town.until_status(task, "RETRYING").await;
    let view = task_view(&town.store, &town.head(task).await).await.unwrap();
    assert_eq!(view.waits_for.as_deref(), Some("pause"));
    let now = town.store.now().await.unwrap();
    let says = why(&view, now);
    assert!(says.contains("Attempt 1 failed (preempted"), "{says}");
    assert!(says.contains("waits for its pause") && says.contains("the pause is over"), "{says}");
    let asked = desk.retry_now(MINE, task, RetryNow::default()).await.unwrap();
    assert_eq!(asked.outcome, Outcome::Accepted);
    town.until("the second attempt", async || town.state(task).await.attempt == 2).await;
    let whole = detail(&town.store, &town.head(task).await).await.unwrap();
    assert_eq!(whole.attempts.len(), 2);
    assert_eq!(whole.attempts[0].ended.as_ref().unwrap().cause, Some(Cause::Preempted));
    assert!(whole.attempts[0].pod_over);
    let budget = desk.budget(TENANT).await.unwrap();
    assert_eq!((budget.in_flight, budget.granted, budget.tasks[..].first()), (1, 1, Some(&task)));
}

async fn a_task_whose_pod_may_still_run_is_not_run_twice_unless_a_person_vouches(town: Town) {
    let quick = json!({ "backoff_ms": 0, "backoff_cap_ms": 0 });
    let (task, pod) = town.running(|o| o.retry = quick).await;
    let mut lost = report(task, &pod, 1, failed(Cause::NodeLost, CauseClass::Lost, None, true));
    lost.over = false;
    town.report(lost).await;
    town.until("waiting for the old pod", async || {
        let view = task_view(&town.store, &town.head(task).await).await.unwrap();
        view.waits_for.as_deref() == Some("old_pod")
    })
    .await;
    let view = task_view(&town.store, &town.head(task).await).await.unwrap();
    let says = why(&view, town.store.now().await.unwrap());
    assert!(says.contains("is known to be over") && says.contains("--fenced"), "{says}");
    let desk = &town.desk;
    let not = desk.retry_now(MINE, task, RetryNow::default()).await.unwrap_err();
    assert!(not.to_string().contains("must not run twice"), "{not}");
    let vouched = RetryNow { by: Some("ada".into()), fenced: true };
    desk.retry_now(MINE, task, vouched).await.unwrap();
    town.until("the second attempt", async || town.state(task).await.attempt == 2).await;
    let whole = detail(&town.store, &town.head(task).await).await.unwrap();
    assert_eq!(whole.attempts[0].fenced.as_deref(), Some("ada vouches for it"));
}

async fn cancel_is_asked_once_and_ends_when_the_pod_is_over(town: Town) {
    let (task, pod) = town.running(|_| {}).await;
    let ask = CancelAsk { by: Some("ada".into()), why: Some("wrong data".into()) };
    let first = town.desk.cancel(MINE, task, ask.clone()).await.unwrap();
    assert_eq!(first.outcome, Outcome::Accepted);
    town.until("asked", async || town.state(task).await.cancel.is_some()).await;
    let again = town.desk.cancel(MINE, task, ask).await.unwrap();
    assert_eq!(again.outcome, Outcome::Already);
    let view = task_view(&town.store, &town.head(task).await).await.unwrap();
    let says = why(&view, town.store.now().await.unwrap());
    assert!(says.contains("Being cancelled by ada: waits until pod ml/ff-train-u1"), "{says}");
    let end = failed(Cause::AppError, CauseClass::App, Some(143), true);
    town.report(report(task, &pod, 1, end)).await;
    town.until_status(task, "CANCELED").await;
    let whole = detail(&town.store, &town.head(task).await).await.unwrap();
    assert!(why(&whole.task, Timestamp::ZERO).contains("Cancelled by ada"));
    let long = CancelAsk { why: Some("x".repeat(2_000)), by: None };
    let bad = town.desk.cancel(MINE, task, long).await.unwrap_err();
    assert!(matches!(bad, DeskError::TooLarge { field: "why", .. }), "{bad}");
}

async fn dead_letters_are_listed_until_they_are_replayed_or_put_aside(town: Town) {
    let (mut all, desk) = (Vec::new(), &town.desk);
    for n in 0..3 {
        let (task, pod) = town.running(|o| o.workflow_id = format!("wf-{n}")).await;
        let end = failed(Cause::Config, CauseClass::Config, None, false);
        town.report(report(task, &pod, 1, end)).await;
        town.until_status(task, "FAILED").await;
        all.push(task);
    }
    // Ids of one millisecond are in no order.
    all.sort_unstable();
    let listed = async |tenant: Option<&str>| {
        let page = dead_letters(&town.store, tenant, None, 50, |_| true).await.unwrap();
        page.tasks.iter().map(|(h, _)| h.id).collect::<Vec<_>>()
    };
    assert_eq!(listed(MINE).await, [all[2], all[1], all[0]]);
    assert!(listed(Some("them")).await.is_empty());
    let first = dead_letters(&town.store, MINE, None, 1, |_| true).await.unwrap();
    let second = dead_letters(&town.store, MINE, first.next, 1, |_| true).await.unwrap();
    assert_eq!(second.tasks[0].0.id, all[1], "pages go on");
    let one = dead_letters(&town.store, None, None, 9, |s| s.workflow_id == "wf-0").await.unwrap();
    assert_eq!(one.tasks.len(), 1);
    assert!(matches!(
        desk.discard(Some("them"), all[0], None, None).await,
        Err(DeskError::NoTask(_))
    ));
    let put = desk.discard(MINE, all[0], Some("known"), Some("ada")).await.unwrap();
    assert_eq!(put.outcome, Outcome::Accepted);
    assert_eq!(
        desk.discard(MINE, all[0], None, Some("eve")).await.unwrap().outcome,
        Outcome::Already
    );
    let new = desk.replay(MINE, all[1], None, Some("ada")).await.unwrap();
    let again = desk.replay(MINE, all[1], None, Some("ada")).await.unwrap();
    assert_eq!((again.task, again.existed), (new.task, true), "replayed once");
    let other = desk.replay(MINE, all[1], Some("k"), Some("ada")).await.unwrap();
    assert_ne!(other.task, new.task, "under a key of its own it is another one");
    assert_eq!(listed(MINE).await, [all[2]]);
    assert_eq!(town.state(new.task).await.retry_of, Some(all[1]));
    let was = town.state(all[1]).await.workflow_id;
    assert_eq!(town.state(new.task).await.workflow_id, was);
    town.until_status(new.task, "QUEUED").await;
    let aside = detail(&town.store, &town.head(all[0]).await).await.unwrap();
    assert_eq!((aside.discarded_by.as_deref(), aside.dead_letter), (Some("ada"), false));
    let repeated = detail(&town.store, &town.head(all[1]).await).await.unwrap();
    assert_eq!((repeated.replayed_as, repeated.dead_letter), (Some(new.task), false));
}

async fn a_budget_is_set_by_a_person_and_given_back_to_the_settings(town: Town) {
    let desk = &town.desk;
    let before = desk.budget(TENANT).await.unwrap();
    assert_eq!((before.per_minute, before.set_by), (BudgetTerms::default().per_minute, None));
    let bad = BudgetTerms { in_flight: 0, ..BudgetTerms::default() };
    let bad = desk.set_budget(TENANT, bad, "ada".into()).await.unwrap_err();
    assert!(bad.to_string().contains("in_flight"), "{bad}");
    let terms = BudgetTerms { per_minute: 60, burst: 1, in_flight: 1 };
    let set = desk.set_budget(TENANT, terms, "ada".into()).await.unwrap();
    assert_eq!((set.burst, set.set_by.as_deref()), (1, Some("ada")));
    let quick = json!({ "backoff_ms": 0, "backoff_cap_ms": 0 });
    let mut tasks = Vec::new();
    for uid in ["a", "b"] {
        let task = town.order(|o| o.retry = quick.clone()).await;
        town.until_status(task, "QUEUED").await;
        let pod = pod(uid);
        town.word(task, 1, Says::Created { pod: pod.clone() }).await;
        town.report(report(task, &pod, 1, failed(Cause::Preempted, CauseClass::Infra, None, true)))
            .await;
        tasks.push(task);
    }
    town.until("one is put off", async || desk.budget(TENANT).await.unwrap().deferred > 0).await;
    let budget = desk.budget(TENANT).await.unwrap();
    assert_eq!((budget.in_flight, budget.granted), (1, 1), "{budget:?}");
    let waits = tasks.iter().find(|t| !budget.tasks.contains(t)).copied().unwrap();
    town.until("it says so", async || {
        let view = task_view(&town.store, &town.head(waits).await).await.unwrap();
        why(&view, view.changed_at).contains("had no room")
    })
    .await;
    let back = desk.clear_budget(TENANT).await.unwrap();
    assert_eq!((back.per_minute, back.set_by), (BudgetTerms::default().per_minute, None));
    assert_eq!(desk.budgets(None).await.unwrap().len(), 1);
    assert!(desk.budgets(Some("them")).await.unwrap().is_empty());
}

#[test]
fn views_are_read_back_as_they_were_written() {
    let view: Value = json!({ "attempt": 1, "text": "x", "next": 2, "more": false, "cut": false, "tail": null, "over": true });
    let page: tenure_pods::view::LogPage = serde_json::from_value(view.clone()).unwrap();
    assert_eq!(serde_json::to_value(page).unwrap(), view);
}

async fn a_foreign_collector_is_heard_and_never_taken_for_more_than_it_says(town: Town) {
    let heard = |task: &str, status: &str| TaskEvent {
        task_id: task.into(),
        workflow_id: "wf".into(),
        status: status.into(),
        tenant_id: Some(TENANT.into()),
        ..TaskEvent::default()
    };
    let told = async |event: TaskEvent| match town.desk.hint(&event).await.unwrap() {
        Hinted::Told(answer) => answer.outcome,
        Hinted::Ignored(why) => panic!("{why}"),
    };
    let task = task_of(TENANT, "foreign");
    assert_eq!(told(heard("foreign", "RUNNING")).await, ReportOutcome::Adopted);
    assert_eq!(told(heard("foreign", "RUNNING")).await, ReportOutcome::Duplicate);
    town.until_status(task, "RUNNING").await;
    // A collector that knows which pod it is says so, and is believed from then on.
    let known = pod("real");
    let mut seen = report(task, &known, 1, verdict(TaskStatus::Running));
    (seen.task_id, seen.attempt) = ("foreign".into(), None);
    assert_eq!(town.report(seen.clone()).await, ReportOutcome::Accepted);
    town.until("its pod", async || town.state(task).await.pod.is_some_and(|p| p.uid == "real"))
        .await;
    assert_eq!(town.state(task).await.attempt, 1, "it is the same attempt");
    let mut end = heard("foreign", "FAILED");
    end.exit_code = Some(3);
    assert_eq!(told(end).await, ReportOutcome::Accepted);
    // Somebody reports about this pod: the report is waited for, and would say more.
    town.until("the end to be inferred", async || town.state(task).await.inferred.is_some()).await;
    assert_eq!(town.head(task).await.status.name(), "RUNNING");
    let mut end = report(task, &known, 1, failed(Cause::AppError, CauseClass::App, Some(3), false));
    (end.task_id, end.attempt) = ("foreign".into(), None);
    assert_eq!(town.report(end).await, ReportOutcome::Accepted);
    town.until_status(task, "FAILED").await;
    let state = town.state(task).await;
    assert_eq!((state.ended.unwrap().exit_code, state.unfenced), (Some(3), false));
    let late = town.desk.hint(&heard("foreign", "SUCCEEDED")).await.unwrap();
    assert_eq!(late, Hinted::Ignored("the task is over"));

    let (ours, _) = town.running(|_| {}).await;
    let end = town.desk.hint(&heard(&ours.to_string(), "FAILED")).await.unwrap();
    assert!(matches!(end, Hinted::Ignored(why) if why.contains("executor")), "{end:?}");
    let odd = town.desk.hint(&heard("foreign", "PAUSED")).await.unwrap();
    assert!(matches!(odd, Hinted::Ignored(_)), "{odd:?}");
    assert_eq!(town.head(ours).await.status.name(), "RUNNING");
}

async fn a_collector_that_reports_is_not_heard_on_the_channel(town: Town) {
    let task = task_of(TENANT, "ours");
    let known = pod("u-1");
    let mut end = report(task, &known, 1, failed(Cause::Oom, CauseClass::Oom, Some(137), false));
    (end.task_id, end.attempt) = ("ours".into(), Some(1));
    // The message is the faster one, as it may be. Also where it is the first that is heard of the task.
    let mut message = TaskEvent::of_report(&end).unwrap();
    message.reported = Some(true);
    let heard = town.desk.hint(&message).await.unwrap();
    assert!(matches!(heard, Hinted::Ignored(why) if why.contains("reports")), "{heard:?}");
    assert_eq!(town.report(end).await, ReportOutcome::Adopted);
    town.until_status(task, "FAILED").await;
    let state = town.state(task).await;
    let ended = state.ended.unwrap();
    assert_eq!((ended.cause, ended.exit_code), (Some(Cause::Oom), Some(137)));
    assert!(ended.rule != "channel" && !state.unfenced);
}

async fn proof_that_comes_after_the_end_is_shown_and_the_status_stays(town: Town) {
    let (task, pod) = town
        .running(|o| {
            o.retry = json!({ "attempts": 1 });
            o.times = json!({ "witness_ms": 1 });
        })
        .await;
    let mut missing =
        report(task, &pod, 1, failed(Cause::DeletedExternally, CauseClass::Deleted, None, true));
    (missing.gone, missing.inferred) = (true, true);
    assert_eq!(town.report(missing).await, ReportOutcome::Accepted);
    town.until_status(task, "FAILED").await;
    let head = town.head(task).await;
    let now = town.store.now().await.unwrap();
    let before = task_view(&town.store, &head).await.unwrap();
    assert!(why(&before, now).contains("inferred from its absence"), "{}", why(&before, now));
    let mut seen = report(task, &pod, 1, verdict(TaskStatus::Succeeded));
    (seen.verdict.exit_code, seen.collector) = (Some(0), "sweeper-1".into());
    assert_eq!(town.report(seen.clone()).await, ReportOutcome::Final);
    assert_eq!(town.report(seen).await, ReportOutcome::Final, "told again, it is kept once");
    let after = task_view(&town.store, &head).await.unwrap();
    assert_eq!(after.status, "FAILED", "final is final");
    let proof = after.proof.clone().expect("a proof");
    assert_eq!((proof.ended.status, proof.by.as_str()), (Some(TaskStatus::Succeeded), "sweeper-1"));
    let words = why(&after, now);
    assert!(words.contains("later sweeper-1 proved that its pod was SUCCEEDED"), "{words}");
    let whole = detail(&town.store, &head).await.unwrap();
    assert_eq!(whole.attempts[0].proof, after.proof);
    let told = whole.timeline.iter().filter(|e| e.text.contains("proved")).count();
    assert_eq!((told, town.head(task).await.version), (1, head.version));
}
