//! A job's step runs as a pod.

use crate::support::World;
use serde_json::{Value, json};
use tenure_jobs::{Job, JobState, drive::read_events};
use tenure_kernel::{ids::EntityId, machine::decode_state};
use tenure_kubedouble::OnDelete;

impl World {
    /// The task behind the step of a job.
    async fn task_of(&self, pod: &str) -> EntityId {
        let made = self.cluster.pod(pod).unwrap();
        made["metadata"]["labels"]["flowforge.io/task-id"].as_str().unwrap().parse().unwrap()
    }

    async fn output(&self, job: EntityId) -> Value {
        self.status(job, "completed").await;
        let mut output = Value::Null;
        for record in self.store.stream(job, 1, 1_000).await.unwrap() {
            let (_, events) = read_events(&self.store, &record).await.unwrap();
            for event in events {
                if event.name == "job_completed" {
                    let body: Value = serde_json::from_slice(event.body.inline().unwrap()).unwrap();
                    output = body["output"].clone();
                }
            }
        }
        output
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_runs_as_a_pod_fails_once_and_returns_what_the_container_wrote() {
    let world = World::new().await;
    let _executor = world.executor().await;
    let input = json!({
        "image": "busybox", "command": ["sh", "-c", "echo"], "env": { "N": 1 }, "result_file": "/tmp/result",
    });
    let job = world.job(input).await;
    let first = world.pod(1).await;
    let made = world.cluster.pod(&first).unwrap();
    assert_eq!(made["metadata"]["labels"]["flowforge.io/workflow-id"], job.to_string());
    assert_eq!(made["spec"]["containers"][0]["terminationMessagePath"], "/tmp/result");
    world.cluster.bind(&first, "node-1");
    world.cluster.running(&first);
    world.cluster.terminate(&first, 1, "Error", "");
    let second = world.started(2).await;
    world.cluster.terminate(&second, 0, "Completed", "{\"rows\": 7}");
    let output = world.output(job).await;
    assert_eq!(output["exit_code"], 0);
    assert_eq!(output["result"], json!({ "rows": 7 }));
    assert_eq!(output["attempt"], 2);
    assert_eq!(output["pod"], second);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_waits_for_a_pod_says_so_and_is_held_by_nobody() {
    let world = World::new().await;
    let _executor = world.executor().await;
    let job = world.job(json!({ "image": "busybox" })).await;
    let pod = world.started(1).await;
    let task = world.task_of(&pod).await;
    world.status(task, "RUNNING").await;
    world.status(job, "waiting").await;
    assert!(world.head(job).await.unwrap().holder.is_none());
    let head = world.head(job).await.unwrap();
    let view = tenure_jobs::view::view(&world.store, &head).await.unwrap();
    let now = world.store.now().await.unwrap();
    let why = tenure_jobs::view::why(&view, now);
    assert!(why.contains(&format!("its task {task} is RUNNING")), "{why}");
    assert!(why.contains(&format!("tenure task why {task}")), "{why}");
    world.cluster.terminate(&pod, 0, "Completed", "");
    assert_eq!(world.output(job).await["result"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_job_is_the_end_of_its_pod() {
    let world = World::new().await;
    world.cluster.on_delete(OnDelete::WhenTold);
    let _executor = world.executor().await;
    let job = world.job(json!({ "image": "busybox" })).await;
    let pod = world.started(1).await;
    let task = world.task_of(&pod).await;
    world.status(task, "RUNNING").await;
    world.cancel(job).await;
    let marked = world.deleted(&pod).await;
    assert_eq!(marked["metadata"]["annotations"]["flowforge.io/cancel"], "cancel");
    world.cluster.finish_delete(&pod, 143);
    world.status(task, "CANCELED").await;
    world.status(job, "cancelled").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_fails_for_good_fails_the_step_in_its_own_words() {
    let world = World::new().await;
    let _executor = world.executor().await;
    let job = world.job(json!({ "image": "busybox", "retry": 0 })).await;
    let pod = world.started(1).await;
    world.cluster.terminate(&pod, 3, "Error", "no such table");
    world.status(job, "failed").await;
    let state: JobState = decode_state::<Job>(&world.head(job).await.unwrap().state).unwrap();
    let said = format!("{state:?}");
    assert!(said.contains("app_error (exit code 3)") && said.contains("no such table"), "{said}");
    assert_eq!(world.made().len(), 1, "its own retries are the task's, and there are none");
}

/// A job in the hands of a node that does not answer.
async fn lost(
    world: &World,
) -> (tenure_kernel::ids::EntityId, tenure_kernel::ids::EntityId, String) {
    let template = json!({ "spec": { "terminationGracePeriodSeconds": 1, "containers": [{ "image": "busybox" }] } });
    let job = world.job(json!({ "template": template })).await;
    let pod = world.pod(1).await;
    world.cluster.bind(&pod, "node-1");
    world.cluster.running(&pod);
    let task = world.task_of(&pod).await;
    world.status(task, "RUNNING").await;
    world.cluster.node_lost("node-1");
    world.status(task, "RETRYING").await;
    (job, task, pod)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_whose_pod_nobody_has_seen_end_says_which_and_where() {
    let world = World::new().await;
    let _executor = world
        .executor_with(|mut shop| {
            shop.policy.terminating_grace_seconds = 0;
            shop.policy.node_lost_grace_seconds = 0;
            shop
        })
        .await;
    let (job, task, pod) = lost(&world).await;
    let uid = world.pod_state(world.tended(task, 1)).await.uid.unwrap();
    // Its object is taken away, and whoever wanted it does not want it any more: nobody knows whether it still runs.
    world.cancel(job).await;
    world.until_pod(world.tended(task, 1), "told to go", |s| s.stop.is_some()).await;
    let desk = tenure_pods::desk::Desk::new(world.node.pipeline.clone(), Default::default());
    let ask =
        tenure_pods::pod::ForceAsk { by: Some("ann".into()), why: "node-1 burnt down".into() };
    desk.force_delete(None, task, None, ask).await.unwrap();
    world.status(task, "CANCELED").await;
    let words = format!("nobody has seen pod {pod} (uid {uid}, on node-1) end: it may still run");
    world.place.until("its job is told", async || world.story(job).await.contains(&words)).await;
    let story = world.story(job).await;
    assert!(story.contains(&words) && story.contains("taken away by force"), "{story}");
    assert!(story.contains("\"end\":\"unknown\""), "not as if it had been stopped: {story}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_input_that_is_wrong_fails_the_step_before_anything_is_asked_for() {
    let world = World::new().await;
    let _executor = world.executor().await;
    let job = world.job(json!({ "image": "busybox", "comand": ["x"] })).await;
    world.status(job, "failed").await;
    let story = world.story(job).await;
    assert!(story.contains("unknown field `comand`"), "{story}");
    assert!(!story.contains("tool_invocation_started"), "{story}");
    assert!(world.made().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_whose_time_is_up_stops_its_pod() {
    let world = World::new().await;
    let _executor = world.executor().await;
    let job = world.job(json!({ "image": "busybox", "timeout": 0.2 })).await;
    let pod = world.started(1).await;
    world.status(job, "failed").await;
    world.cluster.until("its pod is gone", |cluster| cluster.pod(&pod).is_none()).await;
}

/// Whatever a flow writes, the worker that runs it lives, and the job says what was wrong.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_no_pod_can_be_made_from_fails_its_job_and_not_the_worker() {
    let world = World::new().await;
    let inputs = [
        json!({ "template": { "spec": "x" } }),
        json!({ "template": { "spec": [] } }),
        json!({ "template": "x", "labels": { "a": "b" } }),
        json!({ "template": [], "result_file": "/r" }),
        json!({ "image": "a check that panics" }),
    ];
    for input in inputs {
        let job = world.job(input.clone()).await;
        world.status(job, "failed").await;
        let story = world.story(job).await;
        assert!(story.contains("bad_input"), "{input}: {story}");
        assert!(!story.contains("tenure_ended {\"why\":\"holder"), "{input}: {story}");
    }
    assert!(world.made().is_empty());
}
