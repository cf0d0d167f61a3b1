//! What a request made that nobody waited for any more is found and deleted, and nothing else is.

use crate::support::{Mortal, World, new_task};
use serde_json::{Value, json};
use std::time::Duration;
use tenure_kernel::ids::EntityId;
use tenure_kubedouble::OnDelete;
use tenure_pods::task::{
    NewTask,
    model::{Cleanup, CleanupWhen},
};

async fn sweeping(world: &World) -> Mortal {
    let short = Duration::from_millis(60);
    world
        .executor_with(move |mut shop| {
            shop.patience.sweep = Some(short);
            shop
        })
        .await
}

/// The object that a late copy of the request for this pod would make.
fn copy_of(pod: &Value, name: &str, owner: &str) -> Value {
    let mut copy = json!({ "metadata": pod["metadata"].clone(), "spec": pod["spec"].clone() });
    for field in
        ["uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "managedFields"]
    {
        copy["metadata"].as_object_mut().unwrap().remove(field);
    }
    copy["spec"].as_object_mut().unwrap().remove("nodeName");
    copy["metadata"]["name"] = name.into();
    copy["metadata"]["annotations"]["flowforge.io/owner"] = owner.into();
    copy
}

/// A task that has ended well, whose pod is gone; and that pod as it was.
async fn over(world: &World) -> (EntityId, String, Value) {
    let nth = world.made().len() + 1;
    let task = world.task(new_task()).await;
    let pod = world.pod(nth).await;
    world.cluster.bind(&pod, "node-1");
    world.cluster.running(&pod);
    world.status(task, "RUNNING").await;
    let was = world.cluster.pod(&pod).unwrap();
    world.cluster.terminate(&pod, 0, "Completed", "");
    world.status(task, "SUCCEEDED").await;
    world.status(world.tended(task, 1), "cleared").await;
    (task, pod, was)
}

fn text<'a>(pod: &'a Value, field: &str) -> &'a str {
    pod["metadata"][field].as_str().unwrap_or_default()
}

/// Waits for so many more looks at all pods.
async fn rounds(world: &World, n: usize) {
    let lists = || {
        let all = world.cluster.requests().into_iter();
        all.filter(|r| r.verb == "list" && r.resource == "pods" && r.namespace.is_none()).count()
    };
    let before = lists();
    world.until("more rounds", || lists() >= before + n).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_a_late_request_made_is_marked_deleted_and_on_record() {
    let world = World::new().await;
    let executor = sweeping(&world).await;
    let (task, pod, was) = over(&world).await;
    world.cluster.on_delete(OnDelete::WhenTold);
    let owner = was["metadata"]["annotations"]["flowforge.io/owner"].as_str().unwrap().to_owned();
    world.cluster.add_pod(copy_of(&was, text(&was, "name"), &owner));
    world.cluster.bind(&pod, "node-1");
    world.cluster.running(&pod);
    let stray = world.deleted(&pod).await;
    assert_eq!(stray["metadata"]["annotations"]["flowforge.io/stopped"], "stray");
    assert_ne!(text(&stray, "uid"), text(&was, "uid"));
    // With the time that it asks for: its containers are told to end.
    assert_eq!(stray["metadata"]["deletionGracePeriodSeconds"], 30);
    world.until("it is counted", || executor.shop().counts.strays.get() == 1).await;
    let evidence = world.store.evidence(task).await.unwrap();
    let key = format!("stray/{}", text(&stray, "uid"));
    assert!(evidence.iter().any(|e| e.said.key == key), "{evidence:?}");
    world.cluster.finish_delete(&pod, 143);
    rounds(&world, 3).await;
    assert_eq!(executor.shop().counts.strays.get(), 1, "once");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_elses_pod_and_no_pod_of_a_live_attempt_is_touched() {
    let world = World::new().await;
    let executor = sweeping(&world).await;
    let (_, _, was) = over(&world).await;
    let owner = was["metadata"]["annotations"]["flowforge.io/owner"].as_str().unwrap().to_owned();
    // A live one, and one that was left on purpose.
    let never = Cleanup { when: CleanupWhen::Never, delay_ms: 0 };
    let left = world.task(NewTask { cleanup: never, ..new_task() }).await;
    let left_pod = world.pod(2).await;
    world.cluster.bind(&left_pod, "node-1");
    world.cluster.running(&left_pod);
    world.cluster.terminate(&left_pod, 0, "Completed", "");
    world.status(world.tended(left, 1), "left").await;
    let live = world.task(new_task()).await;
    let live_pod = world.pod(3).await;
    world.cluster.bind(&live_pod, "node-1");
    world.cluster.running(&live_pod);
    world.status(live, "RUNNING").await;
    // Our marks on a pod of another name; an owner of another installation; one that says nothing of an owner.
    let unknown = EntityId::fixed(77, 1).to_string();
    world.cluster.add_pod(copy_of(&was, "copied-by-hand", &owner));
    world.cluster.add_pod(copy_of(&was, "of-another-installation", &unknown));
    world.cluster.add_pod(copy_of(&was, "unmarked", ""));
    rounds(&world, 6).await;
    for name in ["copied-by-hand", "of-another-installation", "unmarked"] {
        let pod = world.cluster.pod(name).unwrap_or_else(|| panic!("{name} is gone"));
        assert!(pod["metadata"]["deletionTimestamp"].is_null(), "{name}");
        assert!(pod["metadata"]["annotations"]["flowforge.io/stopped"].is_null(), "{name}");
    }
    assert!(world.cluster.pod(&left_pod).is_some() && world.cluster.pod(&live_pod).is_some());
    assert_eq!(executor.shop().counts.strays.get(), 0);
    world.until("the unknown one is counted", || executor.shop().counts.unknown.get() == 1).await;
    world.cluster.terminate(&live_pod, 0, "Completed", "");
    world.status(live, "SUCCEEDED").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_look_everywhere_looks_where_it_makes_pods() {
    let world = World::new().await;
    let executor = sweeping(&world).await;
    let (_, pod, was) = over(&world).await;
    let owner = was["metadata"]["annotations"]["flowforge.io/owner"].as_str().unwrap().to_owned();
    // No list of all namespaces: a Role, and no ClusterRole.
    world.cluster.forbid_everywhere("list", "pods");
    world.cluster.add_pod(copy_of(&was, text(&was, "name"), &owner));
    world.cluster.until("it is gone", |cluster| cluster.pod(&pod).is_none()).await;
    world.until("it is counted", || executor.shop().counts.strays.get() == 1).await;
}

/// Its owner was retired, or is of a store that is no more: the pod itself says that nobody can be responsible for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_has_outlived_its_own_word_is_deleted_whoever_its_owner_was() {
    let world = World::new().await;
    let executor = sweeping(&world).await;
    let (_, pod, was) = over(&world).await;
    let word = &was["metadata"]["annotations"]["flowforge.io/over-by"];
    assert!(word.as_str().is_some_and(|w| w.ends_with(&format!("Z {pod}"))), "{word}");
    let unknown = EntityId::fixed(77, 1).to_string();
    let add = |name: &str, by: &str| {
        let mut copy = copy_of(&was, name, &unknown);
        let word = format!("{by} default/{name}");
        copy["metadata"]["annotations"]["flowforge.io/over-by"] = word.into();
        world.cluster.add_pod(copy);
    };
    add("not-yet", "2090-01-01T00:00:00Z");
    add("left-to-be-looked-at", "2020-01-01T00:00:00Z");
    world.cluster.bind("left-to-be-looked-at", "node-1");
    world.cluster.running("left-to-be-looked-at");
    world.cluster.terminate("left-to-be-looked-at", 1, "Error", "");
    add("outlived", "2020-01-01T00:00:00Z");
    world.cluster.until("it is gone", |cluster| cluster.pod("outlived").is_none()).await;
    world.until("it is counted", || executor.shop().counts.strays.get() == 1).await;
    rounds(&world, 3).await;
    for name in ["not-yet", "left-to-be-looked-at"] {
        let pod = world.cluster.pod(name).unwrap_or_else(|| panic!("{name} is gone"));
        assert!(pod["metadata"]["deletionTimestamp"].is_null(), "{name}");
    }
    assert_eq!(executor.shop().counts.strays.get(), 1);
    world.until("the others are counted", || executor.shop().counts.unknown.get() == 2).await;
    let marks = world.asked("patch");
    assert_eq!(marks.iter().filter(|name| *name == "outlived").count(), 1, "{marks:?}");
}
