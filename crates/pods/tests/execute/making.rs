//! A pod is made once per attempt, whatever the API server says.

use crate::support::{World, new_task};
use serde_json::json;
use tenure_engine::birth::create;
use tenure_kernel::{machine::Decision, stream::Body};
use tenure_kubedouble::{Fault, On, PodSecurity, Refusal, Times};
use tenure_pods::{
    pod::{Begun, NewPod, Pod, PodEvent, pod_name},
    task::{NewTask, TaskEvent, model::Times as TaskTimes, policy::RetryPolicy},
    verdict::Cause,
    view::{detail, task_view, why},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_task_runs_as_a_pod_and_its_result_comes_back() {
    let world = World::new().await;
    let executor = world.executor().await;
    let task = world.task(new_task()).await;
    let pod = world.pod(1).await;
    let made = world.cluster.pod(&pod).unwrap();
    let labels = &made["metadata"]["labels"];
    assert_eq!(labels["flowforge.io/task-id"], task.to_string());
    assert_eq!(labels["flowforge.io/workload"], "true");
    assert_eq!(labels["flowforge.io/attempt"], "1");
    assert_eq!(labels["app.kubernetes.io/managed-by"], "tenure");
    assert_eq!(made["spec"]["restartPolicy"], "Never");
    assert_eq!(made["spec"]["containers"][0]["name"], "main");
    world.status(task, "QUEUED").await;
    world.cluster.bind(&pod, "node-1");
    world.cluster.running(&pod);
    world.status(task, "RUNNING").await;
    world.cluster.terminate(&pod, 0, "Completed", "{\"sum\": 42}");
    world.status(task, "SUCCEEDED").await;
    let state = world.task_state(task).await;
    assert_eq!(state.result.as_deref(), Some("{\"sum\": 42}"));
    assert_eq!(state.ended.unwrap().exit_code, Some(0));
    // What ended well is cleaned up.
    world.status(world.tended(task, 1), "cleared").await;
    assert!(world.cluster.pod(&pod).is_none());
    assert_eq!(executor.shop().counts.created.get(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_attempt_gets_a_pod_of_its_own() {
    let world = World::new().await;
    let _executor = world.executor().await;
    let task = world.task(new_task()).await;
    let first = world.started(1).await;
    world.cluster.terminate(&first, 3, "Error", "no luck");
    let second = world.pod(2).await;
    assert_ne!(first, second);
    assert_eq!(
        world.cluster.pod(&second).unwrap()["metadata"]["labels"]["flowforge.io/attempt"],
        "2"
    );
    world.cluster.bind(&second, "node-1");
    world.cluster.running(&second);
    world.cluster.terminate(&second, 0, "Completed", "");
    world.status(task, "SUCCEEDED").await;
    // The failed one is left to be looked at.
    world.status(world.tended(task, 1), "left").await;
    assert!(world.cluster.pod(&first).is_some());
    world.status(world.tended(task, 2), "cleared").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_that_is_used_up_is_waited_for_and_said() {
    let world = World::new().await;
    let executor = world.executor().await;
    let full = world.cluster.fault(On::create("pods"), Fault::quota_exceeded(), Times::Always);
    let task = world.task(new_task()).await;
    let tended = world.tended(task, 1);
    world.until_pod(tended, "begun", |s| s.begun.is_some()).await;
    world
        .until("it waits", || executor.shop().counts.waits().get("quota").is_some_and(|n| *n > 2))
        .await;
    assert!(world.made().is_empty());
    world.cluster.clear_fault(full);
    world.running(task, 1).await;
    let notes: Vec<_> = world.pod_events(tended).await;
    let notes: Vec<_> = notes
        .iter()
        .filter(|e| matches!(e, PodEvent::PodWaits { what, why } if what == "quota" && why.contains("exceeded quota")))
        .collect();
    assert_eq!(notes.len(), 1, "said once, however often it was tried");
    assert_eq!(world.pod_state(tended).await.waits, None, "and it does not wait any more");
}

/// What a person is told, and not only the pod's own stream.
#[tokio::test(flavor = "multi_thread")]
async fn why_a_pod_is_not_made_is_said_with_what_to_do() {
    let cases = [
        (Fault::quota_exceeded(), "exceeded quota: compute", "its quota is raised"),
        (
            refused(
                403,
                "pods is forbidden: User \"x\" cannot create resource \"pods\" in API group \"\"",
            ),
            "User \"x\" cannot create resource",
            "the account of the executor has that right",
        ),
        (
            refused(
                403,
                "pods \"a\" is forbidden: error looking up service account a/b: serviceaccount \"b\" not found",
            ),
            "serviceaccount \"b\" not found",
            "the namespace has that service account",
        ),
        (
            refused(
                500,
                "Internal error occurred: failed calling webhook \"p.example\": connection refused",
            ),
            "failed calling webhook \"p.example\"",
            "that webhook answers",
        ),
    ];
    let world = World::new().await;
    let _executor = world.executor().await;
    for (fault, says, fix) in cases {
        let fault = world.cluster.fault(On::create("pods"), fault, Times::Always);
        let task = world.task(new_task()).await;
        let tended = world.tended(task, 1);
        world.until_pod(tended, "waits", |s| s.waits.is_some()).await;
        let view = task_view(&world.store, &world.head(task).await.unwrap()).await.unwrap();
        let words = why(&view, world.store.now().await.unwrap());
        assert!(words.contains(says) && words.contains(fix), "{words}");
        world.cluster.clear_fault(fault);
    }
}

fn refused(code: u16, words: &str) -> Fault {
    let reason = if code == 403 { "Forbidden" } else { "InternalError" };
    Fault::Refuse(Refusal::new(code, reason, words))
}

/// A webhook is asked before anything is stored: there is no request that could still arrive.
#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_is_down_is_asked_again_at_once() {
    let world = World::new().await;
    let down = "Internal error occurred: failed calling webhook \"p.example\": connection refused";
    world.cluster.fault(On::create("pods"), refused(500, down), Times::Next(2));
    let _executor = world
        .executor_with(|mut shop| {
            shop.patience.late = std::time::Duration::from_secs(3_600);
            shop
        })
        .await;
    let task = world.task(new_task()).await;
    world.running(task, 1).await;
    assert_eq!(world.made().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_api_server_warns_of_is_shown() {
    let world = World::new().await;
    world.cluster.pod_security("default", PodSecurity::Warn);
    let _executor = world.executor().await;
    let task = world.task(new_task()).await;
    world.running(task, 1).await;
    let whole = detail(&world.store, &world.head(task).await.unwrap()).await.unwrap();
    let warnings = whole.attempts[0].executor.as_ref().unwrap().warnings.clone();
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(warning.starts_with("would violate PodSecurity \"restricted:latest\""), "{warning}");
    assert!(warning.contains("runAsNonRoot != true (container \"main\" must"), "{warning}");
}

/// What an executor takes over is a record in the store. One that says more than its task is not believed.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_names_another_place_than_its_task_makes_no_pod() {
    for begun in [("kube-system", None), ("default", Some("stolen"))] {
        let world = World::new().await;
        let task = world.task(new_task()).await;
        let tended = world.tended(task, 1);
        let mut held = world.hold(tended).await;
        let new = world.pod_state(tended).await.new.unwrap();
        let (namespace, name) = begun;
        let name = name.map_or_else(|| pod_name(&new), str::to_owned);
        let forged = PodEvent::PodBegun(Begun { namespace: namespace.into(), name });
        held.record::<Pod>(Decision::event(forged), &[]).await.unwrap();
        held.release("done").await.unwrap();
        let executor = world.executor().await;
        world.status(task, "FAILED").await;
        let ended = world.task_state(task).await.ended.unwrap();
        assert_eq!(ended.cause, Some(Cause::Config));
        assert!(ended.message.contains("another place than its task"), "{}", ended.message);
        assert_eq!((world.made().len(), executor.shop().counts.created.get()), (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_borrows_the_task_of_another_tenant_is_not_made() {
    let world = World::new().await;
    let task = world.task(new_task()).await;
    let new = NewPod {
        task,
        attempt: 1,
        name: "work".into(),
        workflow_id: "wf".into(),
        tenant_id: "evil".into(),
        label: None,
        namespace: None,
        cluster: "elsewhere".into(),
        priority: 0,
        must_end_in_ms: 60_000,
    };
    let body = Body::json(&new);
    let forged = create(&world.node.pipeline, &world.machines, "pod", "evil", &body).await.unwrap();
    let _executor = world.executor_of("elsewhere").await;
    world.status(forged, "not_made").await;
    assert!(world.made().is_empty());
    let events = world.pod_events(forged).await;
    let refused = events.iter().any(
        |e| matches!(e, PodEvent::PodNotMade { why } if why.contains("belongs to another tenant")),
    );
    assert!(refused, "{events:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn trouble_that_passes_is_waited_out() {
    let world = World::new().await;
    for fault in
        [Fault::too_many_requests(0), Fault::internal_error(), Fault::unavailable(), Fault::Cut]
    {
        world.cluster.fault(On::create("pods"), fault, Times::Next(1));
    }
    let _executor = world.executor().await;
    let task = world.task(new_task()).await;
    world.running(task, 1).await;
    assert_eq!(world.made().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_was_lost_makes_no_second_pod() {
    let world = World::new().await;
    world.cluster.fault(On::create("pods"), Fault::AnswerLost, Times::Next(1));
    let executor = world.executor().await;
    let task = world.task(new_task()).await;
    let pod = world.running(task, 1).await;
    assert_eq!(world.made().len(), 1);
    assert_eq!(executor.shop().counts.adopted.get(), 1);
    let uid = world.cluster.pod(&pod).unwrap()["metadata"]["uid"].clone();
    assert_eq!(world.task_state(task).await.pod.unwrap().uid, uid.as_str().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_of_the_same_name_that_is_not_ours_is_not_taken_for_ours() {
    let world = World::new().await;
    // The name is taken while the executor asks for it.
    let foreign = world.cluster.clone();
    world.cluster.fault(On::create("pods"), Fault::unavailable(), Times::Next(1));
    let executor = world.executor().await;
    let task = world.task(new_task()).await;
    let tended = world.tended(task, 1);
    world.until_pod(tended, "begun", |s| s.begun.is_some()).await;
    let name = world.pod_state(tended).await.begun.unwrap().name;
    // Deleted and made anew by somebody else, if ours was faster.
    if foreign.pod(&format!("default/{name}")).is_some() {
        foreign.force_delete(&format!("default/{name}"));
    }
    drop(executor);
    let _ = foreign.add_task(&format!("default/{name}"), &[("flowforge.io/workload", "true")]);
    let _executor = world.executor().await;
    world.status(task, "FAILED").await;
    let ended = world.task_state(task).await.ended.unwrap();
    assert_eq!(ended.cause, Some(Cause::Config));
    assert!(ended.message.contains("not ours"), "{}", ended.message);
    assert!(foreign.pod(&format!("default/{name}")).is_some(), "and it is left alone");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_will_never_be_accepted_fails_the_task_at_once() {
    let forbidden =
        "pods \"x\" is forbidden: violates PodSecurity \"restricted:latest\": privileged";
    let cases = [
        Fault::Refuse(Refusal::new(403, "Forbidden", forbidden)),
        Fault::Refuse(Refusal::new(
            422,
            "Invalid",
            "Pod \"x\" is invalid: spec.containers[0].image: Required value",
        )),
        Fault::Refuse(Refusal::new(404, "NotFound", "namespaces \"nowhere\" not found")),
    ];
    for fault in cases {
        let world = World::new().await;
        let said = match &fault {
            Fault::Refuse(refusal) => refusal.message.clone(),
            _ => String::new(),
        };
        world.cluster.fault(On::create("pods"), fault, Times::Always);
        let executor = world.executor().await;
        let task = world.task(new_task()).await;
        world.status(task, "FAILED").await;
        let ended = world.task_state(task).await.ended.unwrap();
        assert_eq!(ended.cause, Some(Cause::Config));
        assert_eq!(ended.message, said);
        world.status(world.tended(task, 1), "not_made").await;
        assert_eq!(executor.shop().counts.refused.get(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_is_wrong_is_refused_before_the_api_server_is_asked() {
    let world = World::new().await;
    let _executor = world.executor().await;
    let template = json!({ "spec": { "containers": [{ "image": "i", "comand": ["x"] }] } });
    let task = world.task(NewTask { template, ..new_task() }).await;
    world.status(task, "FAILED").await;
    let ended = world.task_state(task).await.ended.unwrap();
    assert_eq!(ended.message, "template.spec.containers[0].comand: Kubernetes knows no such field");
    assert!(world.asked("create").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_is_the_operators_to_give_and_no_fault_of_the_task() {
    let world = World::new().await;
    world.cluster.forbid("create", "pods");
    let executor = world.executor().await;
    let task = world.task(new_task()).await;
    world.until("it waits", || executor.shop().counts.waits().contains_key("forbidden")).await;
    world.cluster.allow("create", "pods");
    world.running(task, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_deleted_by_others_is_replaced() {
    let world = World::new().await;
    let _executor = world.executor().await;
    let retry = RetryPolicy { deleted: 1, ..new_task().retry };
    let task = world.task(NewTask { retry, ..new_task() }).await;
    let first = world.running(task, 1).await;
    world.cluster.force_delete(&first);
    let second = world.started(2).await;
    world.cluster.terminate(&second, 0, "Completed", "");
    world.status(task, "SUCCEEDED").await;
    let failed = world.task_events(task).await;
    let causes: Vec<_> = failed
        .iter()
        .filter_map(|e| match e {
            TaskEvent::AttemptFailed { ended, .. } => ended.cause,
            _ => None,
        })
        .collect();
    assert_eq!(causes, [Cause::DeletedExternally]);
    world.status(world.tended(task, 1), "cleared").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_label_that_is_taken_away_does_not_end_a_pod() {
    let world = World::new().await;
    let _executor = world.executor().await;
    let task = world.task(new_task()).await;
    let pod = world.running(task, 1).await;
    let gone = json!({ "metadata": { "labels": { "app.kubernetes.io/managed-by": null } } });
    world.cluster.patch(&pod, &gone);
    // It is asked for by name from now on.
    world.until("it is looked for", || world.asked("get").len() > 1).await;
    world.cluster.terminate(&pod, 0, "Completed", "");
    world.status(task, "SUCCEEDED").await;
    assert_eq!(world.made().len(), 1);
}

/// The pod that was made unheard fills the last place of a quota: it is found, not asked for again.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_was_made_unheard_is_found_although_the_quota_is_full() {
    let world = World::new().await;
    world.cluster.fault(On::create("pods"), Fault::AnswerLost, Times::Next(1));
    world.cluster.fault(On::create("pods"), Fault::quota_exceeded(), Times::Always);
    let executor = world.executor().await;
    let task = world.task(new_task()).await;
    world.running(task, 1).await;
    assert_eq!(executor.shop().counts.adopted.get(), 1);
    assert_eq!(world.made().len(), 1);
}

/// The same where a webhook says no the second time: the pod that is there is not left behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_not_believed_while_an_earlier_request_is_open() {
    let world = World::new().await;
    let denied = "admission webhook \"policy.example\" denied the request: no";
    let denied = Fault::Refuse(Refusal::new(403, "Forbidden", denied));
    world.cluster.fault(On::create("pods"), Fault::AnswerLost, Times::Next(1));
    world.cluster.fault(On::create("pods"), denied, Times::Always);
    let executor = world.executor().await;
    let task = world.task(new_task()).await;
    world.running(task, 1).await;
    assert_eq!(executor.shop().counts.adopted.get(), 1);
    assert_eq!(executor.shop().counts.refused.get(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_is_read_by_the_container_that_its_order_names_and_ends_on_its_node_at_last() {
    let world = World::new().await;
    let _executor = world.executor().await;
    let template = json!({ "spec": { "containers": [
        { "name": "main", "image": "busybox" }, { "name": "train", "image": "busybox" }
    ] } });
    let container = Some("train".to_owned());
    let task = world.task(NewTask { template, container, ..new_task() }).await;
    let pod = world.pod(1).await;
    let made = world.cluster.pod(&pod).unwrap();
    assert_eq!(made["metadata"]["annotations"]["flowforge.io/container"], "train");
    let deadline = made["spec"]["activeDeadlineSeconds"].as_i64().unwrap();
    assert!(
        (900..=960).contains(&deadline),
        "what is left of a minute, and a quarter of an hour: {deadline}"
    );
    world.cluster.bind(&pod, "node-1");
    world.cluster.running(&pod);
    world.status(task, "RUNNING").await;
    world.cluster.terminate_in(&pod, "train", 0, "Completed", "");
    world.status(task, "SUCCEEDED").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_behind_a_scheduling_gate_keeps_its_task_waiting() {
    let world = World::new().await;
    let _executor = world.executor().await;
    let template = json!({ "spec": {
        "schedulingGates": [{ "name": "example/queue" }], "containers": [{ "image": "busybox" }]
    } });
    let times = TaskTimes { queued_ms: 4_000, ..TaskTimes::default() };
    let task = world.task(NewTask { template, times, ..new_task() }).await;
    world.pod(1).await;
    // It is said, and said again: what the task makes of it is tested with the task.
    let twice = async || {
        let events = world.task_events(task).await;
        events.iter().filter(|e| format!("{e:?}").contains("scheduling gate")).count() > 1
    };
    world.place.until("it is said twice", twice).await;
}
