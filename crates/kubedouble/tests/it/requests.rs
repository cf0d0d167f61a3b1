//! Objects, through the real client: what is set, what is refused, what is listed, and what it takes to be allowed.

use crate::support::{client, pods};
use k8s_openapi::api::{
    authorization::v1::SelfSubjectAccessReview,
    coordination::v1::Lease,
    core::v1::{Event, Node, Pod},
};
use kube::{
    Api, ResourceExt as _,
    api::{
        DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams, Preconditions,
        PropagationPolicy,
    },
};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use tenure_kubedouble::Cluster;

fn pod(value: Value) -> Pod {
    serde_json::from_value(value).unwrap()
}

fn task(name: &str) -> Pod {
    pod(json!({"metadata": {"name": name, "labels": {"n": name}}, "spec": {
        "restartPolicy": "Never", "containers": [{"name": "main", "image": "work:1"}]}}))
}

fn status(error: kube::Error) -> (u16, String, String) {
    match error {
        kube::Error::Api(status) => (status.code, status.reason.clone(), status.message.clone()),
        other => panic!("{other:?}"),
    }
}

async fn refused(cluster: &Cluster, body: Value) -> (u16, String, String) {
    status(pods(cluster).create(&PostParams::default(), &pod(body)).await.unwrap_err())
}

#[tokio::test]
async fn a_new_pod_gets_what_a_server_sets() {
    let cluster = Cluster::start();
    cluster.stop_clock_at(1_800_000_000);
    let made = pods(&cluster).create(&PostParams::default(), &task("p")).await.unwrap();
    assert_eq!(made.uid().unwrap().len(), 36);
    assert_eq!(made.resource_version(), Some(cluster.version().to_string()));
    assert_eq!(made.creation_timestamp().unwrap().0.to_string(), "2027-01-15T08:00:00Z");
    let (spec, status) = (made.spec.unwrap(), made.status.unwrap());
    assert_eq!(status.phase.as_deref(), Some("Pending"));
    assert_eq!(status.qos_class.as_deref(), Some("BestEffort"));
    assert_eq!(spec.termination_grace_period_seconds, Some(30));
    assert_eq!(spec.scheduler_name.as_deref(), Some("default-scheduler"));
    assert_eq!(spec.containers[0].image_pull_policy.as_deref(), Some("IfNotPresent"));
    assert_eq!(spec.tolerations.unwrap().len(), 2);
    let named = pod(json!({"metadata": {"generateName": "run-"}, "spec": {"containers": [
        {"name": "main", "image": "work", "resources": {"requests": {"cpu": "1"}}}]}}));
    let made = pods(&cluster).create(&PostParams::default(), &named).await.unwrap();
    assert!(made.name_any().starts_with("run-") && made.name_any().len() == 9);
    let (spec, status) = (made.spec.unwrap(), made.status.unwrap());
    assert_eq!(status.qos_class.as_deref(), Some("Burstable"));
    assert_eq!(spec.restart_policy.as_deref(), Some("Always"));
    assert_eq!(spec.containers[0].image_pull_policy.as_deref(), Some("Always"));
}

#[tokio::test]
async fn a_gated_pod_says_so_at_once() {
    let cluster = Cluster::start();
    cluster.add_pod(json!({"metadata": {"name": "p"}, "spec": {
        "schedulingGates": [{"name": "example.com/wait"}],
        "containers": [{"name": "main", "image": "a"}]}}));
    let now = cluster.pod("p").unwrap();
    assert_eq!(now["status"]["conditions"][0]["reason"], "SchedulingGated");
}

#[tokio::test]
async fn a_name_that_is_taken_is_a_conflict() {
    let cluster = Cluster::start();
    pods(&cluster).create(&PostParams::default(), &task("p")).await.unwrap();
    let error = pods(&cluster).create(&PostParams::default(), &task("p")).await.unwrap_err();
    let words = "pods \"p\" already exists".to_owned();
    assert_eq!(status(error), (409, "AlreadyExists".to_owned(), words));
}

#[tokio::test]
async fn what_is_wrong_is_said_with_its_field() {
    let cluster = Cluster::start();
    let containers = json!([{"name": "main", "image": "a"}]);
    for (body, field) in [
        (
            json!({"metadata": {}, "spec": {"containers": containers}}),
            "metadata.name: Required value",
        ),
        (
            json!({"metadata": {"name": "A_b"}, "spec": {"containers": containers}}),
            "metadata.name: Invalid value: \"A_b\"",
        ),
        (
            json!({"metadata": {"name": "p"}, "spec": {"containers": []}}),
            "spec.containers: Required value",
        ),
        (
            json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main"}]}}),
            "spec.containers[0].image: Required value",
        ),
        (
            json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "Main", "image": "a"}]}}),
            "spec.containers[0].name: Invalid value",
        ),
        (
            json!({"metadata": {"name": "p", "labels": {"a": "b c"}}, "spec": {"containers": containers}}),
            "metadata.labels: Invalid value: \"b c\"",
        ),
        (
            json!({"metadata": {"name": "p", "labels": {"a": "x".repeat(64)}}, "spec": {"containers": containers}}),
            "metadata.labels: Invalid value",
        ),
        (
            json!({"metadata": {"name": "p"}, "spec": {"containers": containers, "restartPolicy": "No"}}),
            "spec.restartPolicy: Unsupported value: \"No\"",
        ),
        (
            json!({"metadata": {"name": "p", "finalizers": ["track"]}, "spec": {"containers": containers}}),
            "metadata.finalizers[0]: Invalid value",
        ),
    ] {
        let (code, reason, message) = refused(&cluster, body).await;
        assert_eq!((code, reason.as_str()), (422, "Invalid"), "{message}");
        assert!(message.contains(field), "{message} should say {field}");
    }
    let elsewhere = json!({"metadata": {"name": "p", "namespace": "other"}, "spec": {"containers": containers}});
    assert_eq!(refused(&cluster, elsewhere).await.0, 400);
    assert!(cluster.objects("pods").is_empty());
}

#[tokio::test]
async fn a_body_of_the_wrong_type_is_refused_and_unknown_fields_are_dropped() {
    let cluster = Cluster::start();
    let client = client(&cluster);
    let send = async |body: Value| {
        let request = hyper::Request::post("/api/v1/namespaces/default/pods")
            .header("content-type", "application/json")
            .body(body.to_string().into_bytes())
            .unwrap();
        client.request::<Value>(request).await
    };
    let bad = json!({"metadata": {"name": "p"}, "spec": {"containers": "none"}});
    assert_eq!(status(send(bad).await.unwrap_err()).0, 400);
    let node = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "p"}});
    assert_eq!(status(send(node).await.unwrap_err()).0, 400);
    let more = json!({"metadata": {"name": "p"}, "spec": {
        "surprise": 1, "containers": [{"name": "main", "image": "a"}]}});
    send(more).await.unwrap();
    assert_eq!(cluster.pod("p").unwrap()["spec"]["surprise"], json!(null));
}

#[tokio::test]
async fn lists_select_by_namespace_labels_and_fields() {
    let cluster = Cluster::start();
    for name in ["one/a", "one/b", "two/c"] {
        cluster.add_task(name, &[("app", &name[..3]), ("x", "y")]);
    }
    cluster.bind("one/b", "node-1");
    let all: Api<Pod> = Api::all(client(&cluster));
    let one: Api<Pod> = Api::namespaced(client(&cluster), "one");
    let names = async |api: &Api<Pod>, params: ListParams| {
        let list = api.list(&params).await.unwrap();
        list.items.iter().map(|p| p.name_any()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names(&all, ListParams::default()).await, "a b c");
    assert_eq!(names(&one, ListParams::default()).await, "a b");
    assert_eq!(names(&all, ListParams::default().labels("app in (one)")).await, "a b");
    assert_eq!(names(&all, ListParams::default().labels("app!=one,x")).await, "c");
    assert_eq!(names(&all, ListParams::default().fields("spec.nodeName=node-1")).await, "b");
    assert_eq!(
        names(&all, ListParams::default().fields("spec.nodeName=,metadata.namespace!=two")).await,
        "a"
    );
    let error = all.list(&ListParams::default().fields("spec.image=a")).await.unwrap_err();
    assert_eq!(status(error).0, 400);
}

#[tokio::test]
async fn pages_belong_to_one_moment_until_it_has_expired() {
    let cluster = Cluster::start();
    for number in 0..5 {
        cluster.add_task(&format!("p{number}"), &[]);
    }
    let api = pods(&cluster);
    let first = api.list(&ListParams::default().limit(2)).await.unwrap();
    assert_eq!(first.metadata.remaining_item_count, Some(3));
    let token = first.metadata.continue_.clone().unwrap();
    cluster.force_delete("p3");
    cluster.add_task("p31", &[]);
    cluster.running("p4");
    let second = api.list(&ListParams::default().limit(2).continue_token(&token)).await.unwrap();
    let names: Vec<String> = second.items.iter().map(|p| p.name_any()).collect();
    assert_eq!(names, ["p2", "p3"], "as it was when the first page was made");
    assert_eq!(second.metadata.resource_version, first.metadata.resource_version);
    let token = second.metadata.continue_.clone().unwrap();
    let third = api.list(&ListParams::default().limit(2).continue_token(&token)).await.unwrap();
    assert_eq!(third.items[0].status.as_ref().unwrap().phase.as_deref(), Some("Pending"));
    assert_eq!(third.metadata.continue_, None);
    cluster.expire_before(cluster.version());
    let error = api.list(&ListParams::default().limit(2).continue_token(&token)).await.unwrap_err();
    let kube::Error::Api(refusal) = error else { panic!("{error:?}") };
    assert_eq!((refusal.code, refusal.reason.as_str()), (410, "Expired"));
    let raw = async |query: String| {
        let path = format!("/api/v1/namespaces/default/pods?{query}");
        let request = hyper::Request::get(path).body(Vec::new()).unwrap();
        client(&cluster).request::<Value>(request).await
    };
    let from_cache = raw("limit=2&resourceVersion=0".to_owned()).await.unwrap();
    assert_eq!(from_cache["items"].as_array().unwrap().len(), 5, "version 0 knows no pages");
    assert_eq!(from_cache["items"][0]["kind"], json!(null), "in a list only the list has a kind");
    let nonsense = ListParams::default().limit(2).continue_token("nonsense");
    assert_eq!(status(api.list(&nonsense).await.unwrap_err()).0, 400);
}

#[tokio::test]
async fn a_list_from_the_future_is_a_timeout() {
    let cluster = Cluster::start();
    let at = ListParams::default().at("100000").matching(kube::api::VersionMatch::NotOlderThan);
    assert_eq!(status(pods(&cluster).list(&at).await.unwrap_err()).0, 504);
}

#[tokio::test]
async fn a_patch_changes_one_half_and_spends_no_version_on_nothing() {
    let cluster = Cluster::start();
    cluster.add_task("p", &[]);
    let api = pods(&cluster);
    let both = json!({"metadata": {"annotations": {"flowforge.io/cancel": "user"}}, "status": {"phase": "Failed"}});
    let merge = Patch::Merge(&both);
    let done = api.patch("p", &PatchParams::default(), &merge).await.unwrap();
    assert_eq!(done.annotations()["flowforge.io/cancel"], "user");
    assert_eq!(
        done.status.unwrap().phase.as_deref(),
        Some("Pending"),
        "the status is not its half"
    );
    let version = cluster.version();
    let strategic = Patch::Strategic(&both);
    api.patch("p", &PatchParams::default(), &strategic).await.unwrap();
    assert_eq!(cluster.version(), version, "nothing changed");
    let done = api.patch_status("p", &PatchParams::default(), &merge).await.unwrap();
    assert_eq!(done.status.unwrap().phase.as_deref(), Some("Failed"));
    let stale = json!({"metadata": {"resourceVersion": version.to_string(), "labels": {"a": "b"}}});
    let error = api.patch("p", &PatchParams::default(), &Patch::Merge(&stale)).await.unwrap_err();
    assert_eq!(status(error).1, "Conflict");
    let spec = json!({"spec": {"nodeName": "node-1"}});
    let error = api.patch("p", &PatchParams::default(), &Patch::Merge(&spec)).await.unwrap_err();
    assert_eq!(status(error).0, 422);
    let other = json!({"metadata": {"uid": "another"}});
    let error = api.patch("p", &PatchParams::default(), &Patch::Merge(&other)).await.unwrap_err();
    assert_eq!(status(error).0, 409);
}

#[tokio::test]
async fn a_lease_is_taken_by_whoever_has_the_newest_version() {
    let cluster = Cluster::start();
    let api: Api<Lease> = Api::default_namespaced(client(&cluster));
    let lease: Lease = serde_json::from_value(json!({"metadata": {"name": "leader"}, "spec": {
        "holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.123456Z"}}))
    .unwrap();
    let first = api.create(&PostParams::default(), &lease).await.unwrap();
    let mut mine = first.clone();
    mine.spec.as_mut().unwrap().holder_identity = Some("b".to_owned());
    let taken = api.replace("leader", &PostParams::default(), &mine).await.unwrap();
    assert_ne!(taken.resource_version(), first.resource_version());
    let error = api.replace("leader", &PostParams::default(), &mine).await.unwrap_err();
    assert_eq!(status(error).1, "Conflict");
    assert_eq!(cluster.object("leases", "leader").unwrap()["spec"]["holderIdentity"], "b");
}

#[tokio::test]
async fn deletes_have_preconditions_policies_and_finalizers() {
    let cluster = Cluster::start();
    cluster.add_task("p", &[]);
    cluster.bind("p", "node-1");
    cluster.running("p");
    let api = pods(&cluster);
    let wrong = Preconditions { uid: Some("another".to_owned()), resource_version: None };
    let params = DeleteParams::default().preconditions(wrong);
    assert_eq!(status(api.delete("p", &params).await.unwrap_err()).1, "Conflict");
    let uid = api.get("p").await.unwrap().uid();
    let params = DeleteParams {
        preconditions: Some(Preconditions { uid, resource_version: None }),
        propagation_policy: Some(PropagationPolicy::Foreground),
        grace_period_seconds: Some(0),
        ..DeleteParams::default()
    };
    api.delete("p", &params).await.unwrap();
    assert_eq!(cluster.pod("p"), None);
    assert_eq!(status(api.delete("p", &params).await.unwrap_err()).0, 404);
    let nodes: Api<Node> = Api::all(client(&cluster));
    let answer = nodes.delete("node-1", &DeleteParams::default()).await.unwrap();
    assert!(answer.is_right(), "what goes at once is answered with a status");
}

#[tokio::test]
async fn no_finalizer_can_be_added_to_what_is_being_deleted() {
    let cluster = Cluster::start();
    cluster.add_task("p", &[]);
    cluster.patch("p", &json!({"metadata": {"finalizers": ["a.io/x"]}}));
    cluster.force_delete("p");
    let more = json!({"metadata": {"finalizers": ["a.io/x", "a.io/y"]}});
    let error = pods(&cluster).patch("p", &PatchParams::default(), &Patch::Merge(&more)).await;
    assert_eq!(status(error.unwrap_err()).0, 422);
}

#[tokio::test]
async fn a_collection_is_deleted_by_its_labels() {
    let cluster = Cluster::start();
    cluster.add_task("p", &[("a", "b")]);
    cluster.add_task("q", &[]);
    let params = ListParams::default().labels("a=b");
    pods(&cluster).delete_collection(&DeleteParams::default(), &params).await.unwrap();
    assert_eq!(cluster.pod("p"), None);
    assert!(cluster.pod("q").is_some());
}

#[tokio::test]
async fn a_disruption_budget_stands_in_the_way_of_evictions() {
    let cluster = Cluster::start();
    cluster.add_task("p", &[]);
    cluster.bind("p", "node-1");
    cluster.running("p");
    cluster.block_evictions(true);
    let error = pods(&cluster).evict("p", &EvictParams::default()).await.unwrap_err();
    assert_eq!(status(error).0, 429);
    assert!(cluster.pod("p").is_some());
    cluster.block_evictions(false);
    cluster.on_delete(tenure_kubedouble::OnDelete::WhenTold);
    let at_once = EvictParams {
        delete_options: Some(DeleteParams::default().grace_period(0)),
        ..EvictParams::default()
    };
    pods(&cluster).evict("p", &at_once).await.unwrap();
    let now =
        cluster.pod("p").expect("the client misspells its options, and the server drops them");
    assert_eq!(now["metadata"]["deletionGracePeriodSeconds"], 30);
    cluster.on_delete(tenure_kubedouble::OnDelete::EndAtOnce { exit_code: 143 });
    pods(&cluster).evict("p", &EvictParams::default()).await.unwrap();
    assert_eq!(cluster.pod("p"), None);
}

#[tokio::test]
async fn events_are_found_by_what_they_are_about() {
    let cluster = Cluster::start();
    cluster.add_task("p", &[]);
    cluster.add_task("q", &[]);
    cluster.event("p", "Warning", "FailedMount", "no such secret");
    cluster.event("q", "Normal", "Pulled", "there");
    let events: Api<Event> = Api::default_namespaced(client(&cluster));
    let params = ListParams::default().fields("involvedObject.name=p,type=Warning");
    let found = events.list(&params).await.unwrap();
    assert_eq!(found.items.len(), 1);
    assert_eq!(found.items[0].message.as_deref(), Some("no such secret"));
}

#[tokio::test]
async fn what_was_asked_is_known_and_what_is_not_allowed_is_refused() {
    let cluster = Cluster::start();
    cluster.add_task("p", &[]);
    let api = pods(&cluster);
    api.list(&ListParams::default().labels("a=b")).await.unwrap();
    let _ = api.logs("p", &Default::default()).await;
    api.evict("p", &EvictParams::default()).await.unwrap();
    let used = cluster.permissions_used();
    let right = |resource: &str, verb: &str| (String::new(), resource.to_owned(), verb.to_owned());
    let expected = BTreeSet::from([
        right("pods", "list"),
        right("pods/log", "get"),
        right("pods/eviction", "create"),
    ]);
    assert_eq!(used, expected);
    assert_eq!(cluster.requests()[0].param("labelSelector"), Some("a=b"));
    cluster.forget_requests();
    cluster.allow_only([right("pods", "get"), right("pods", "list")]);
    api.list(&ListParams::default()).await.unwrap();
    let (code, _, message) =
        status(api.create(&PostParams::default(), &task("q")).await.unwrap_err());
    assert_eq!(code, 403);
    assert_eq!(
        message,
        "pods is forbidden: User \"system:serviceaccount:default:tenure\" cannot create resource \"pods\" in API group \"\" in the namespace \"default\""
    );
    cluster.forbid("list", "pods");
    assert_eq!(status(api.list(&ListParams::default()).await.unwrap_err()).0, 403);
    cluster.allow("list", "pods");
    api.list(&ListParams::default()).await.unwrap();
}

#[tokio::test]
async fn a_review_of_own_access_tells_the_rules() {
    let cluster = Cluster::start();
    cluster.forbid("delete", "pods");
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client(&cluster));
    let ask = async |verb: &str| {
        let review = serde_json::from_value(json!({"spec": {"resourceAttributes": {
            "verb": verb, "resource": "pods", "group": ""}}}))
        .unwrap();
        let answer = reviews.create(&PostParams::default(), &review).await.unwrap();
        answer.status.unwrap().allowed
    };
    assert!(ask("list").await);
    assert!(!ask("delete").await);
}

#[tokio::test]
async fn a_hook_runs_pods_by_itself() {
    let cluster = Cluster::start();
    cluster.on_create(|cluster, pod| {
        cluster.bind(pod, "node-1");
        cluster.running(pod);
        cluster.log(pod, "main", "done");
        cluster.succeed(pod);
    });
    let api = pods(&cluster);
    let made = api.create(&PostParams::default(), &task("p")).await.unwrap();
    assert_eq!(made.status.unwrap().phase.as_deref(), Some("Pending"));
    let now = api.get("p").await.unwrap();
    assert_eq!(now.status.unwrap().phase.as_deref(), Some("Succeeded"));
}
