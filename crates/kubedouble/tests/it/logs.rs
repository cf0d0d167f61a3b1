//! `/log`, through the real client.

use crate::support::pods;
use futures_util::{AsyncBufReadExt as _, StreamExt as _};
use kube::api::LogParams;
use serde_json::json;
use std::time::Duration;
use tenure_kubedouble::Cluster;

fn speaking() -> Cluster {
    let cluster = Cluster::start();
    cluster.stop_clock_at(1_800_000_000);
    cluster.add_task("p", &[]);
    cluster.bind("p", "node-1");
    cluster.running("p");
    for line in ["one", "two", "three"] {
        cluster.log("p", "main", line);
        cluster.advance_clock(Duration::from_secs(1));
    }
    cluster
}

async fn refusal(cluster: &Cluster, params: &LogParams) -> (u16, String) {
    match pods(cluster).logs("p", params).await {
        Err(kube::Error::Api(status)) => (status.code, status.message.clone()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_log_is_read_whole_in_part_and_with_times() {
    let cluster = speaking();
    let api = pods(&cluster);
    let read = async |params: LogParams| api.logs("p", &params).await.unwrap();
    assert_eq!(read(LogParams::default()).await, "one\ntwo\nthree\n");
    assert_eq!(read(LogParams { tail_lines: Some(1), ..Default::default() }).await, "three\n");
    assert_eq!(read(LogParams { tail_lines: Some(0), ..Default::default() }).await, "");
    assert_eq!(read(LogParams { limit_bytes: Some(6), ..Default::default() }).await, "one\ntw");
    let since = "2027-01-15T08:00:01Z".parse().unwrap();
    assert_eq!(
        read(LogParams { since_time: Some(since), ..Default::default() }).await,
        "two\nthree\n"
    );
    assert_eq!(read(LogParams { since_seconds: Some(1), ..Default::default() }).await, "three\n");
    let timed = LogParams { timestamps: true, tail_lines: Some(2), ..Default::default() };
    assert_eq!(
        read(timed).await,
        "2027-01-15T08:00:01.000000000Z two\n2027-01-15T08:00:02.000000000Z three\n"
    );
}

#[tokio::test]
async fn a_followed_log_ends_with_its_container() {
    let cluster = speaking();
    let params = LogParams { follow: true, ..Default::default() };
    let mut lines = pods(&cluster).log_stream("p", &params).await.unwrap().lines();
    for word in ["one", "two", "three"] {
        assert_eq!(lines.next().await.unwrap().unwrap(), word);
    }
    cluster.log("p", "main", "four");
    assert_eq!(lines.next().await.unwrap().unwrap(), "four");
    cluster.log_bytes("p", "main", b"half ");
    cluster.log_bytes("p", "main", b"and half\n");
    assert_eq!(lines.next().await.unwrap().unwrap(), "half and half");
    cluster.log("p", "main", "last words");
    cluster.succeed("p");
    assert_eq!(lines.next().await.unwrap().unwrap(), "last words");
    assert!(lines.next().await.is_none());
    let after = pods(&cluster).logs("p", &LogParams::default()).await.unwrap();
    assert!(after.ends_with("last words\n"), "an ended container still has its log");
}

#[tokio::test]
async fn a_followed_log_ends_with_its_pod() {
    let cluster = speaking();
    let params = LogParams { follow: true, tail_lines: Some(0), ..Default::default() };
    let mut lines = pods(&cluster).log_stream("p", &params).await.unwrap().lines();
    cluster.force_delete("p");
    assert!(lines.next().await.is_none());
    assert_eq!(refusal(&cluster, &LogParams::default()).await.0, 404);
}

#[tokio::test]
async fn a_log_that_can_not_be_read_says_why() {
    let cluster = Cluster::start();
    cluster.add_task("p", &[]);
    let plain = LogParams::default();
    assert_eq!(refusal(&cluster, &plain).await.1, "pod p does not have a host assigned");
    cluster.bind("p", "node-1");
    cluster.waiting("p", "ImagePullBackOff", "");
    let waiting = "container \"main\" in pod \"p\" is waiting to start: ImagePullBackOff";
    assert_eq!(refusal(&cluster, &plain).await, (400, waiting.to_owned()));
    cluster.running("p");
    let other = LogParams { container: Some("other".to_owned()), ..Default::default() };
    assert_eq!(
        refusal(&cluster, &other).await,
        (400, "container other is not valid for pod p".to_owned())
    );
    let previous = LogParams { previous: true, ..Default::default() };
    assert_eq!(
        refusal(&cluster, &previous).await.1,
        "previous terminated container \"main\" in pod \"p\" not found"
    );
    cluster.node_silent("node-1");
    assert_eq!(refusal(&cluster, &plain).await.0, 500);
}

#[tokio::test]
async fn of_two_containers_one_has_to_be_named() {
    let cluster = Cluster::start();
    cluster.add_pod(json!({"metadata": {"name": "p"}, "spec": {
        "containers": [{"name": "a", "image": "a"}, {"name": "b", "image": "b"}]}}));
    cluster.bind("p", "node-1");
    cluster.running("p");
    let words = "a container name must be specified for pod p, choose one of: [a b]";
    assert_eq!(refusal(&cluster, &LogParams::default()).await, (400, words.to_owned()));
    cluster.log("p", "b", "hello");
    let of_b = LogParams { container: Some("b".to_owned()), ..Default::default() };
    assert_eq!(pods(&cluster).logs("p", &of_b).await.unwrap(), "hello\n");
}

#[tokio::test]
async fn a_restarted_container_has_a_previous_log() {
    let cluster = Cluster::start();
    cluster.add_pod(json!({"metadata": {"name": "p"}, "spec": {
        "containers": [{"name": "main", "image": "a"}]}}));
    cluster.bind("p", "node-1");
    cluster.running("p");
    cluster.log("p", "main", "first life");
    cluster.back_off("p", 1);
    cluster.restarted("p");
    cluster.log("p", "main", "second life");
    let previous = LogParams { previous: true, ..Default::default() };
    assert_eq!(pods(&cluster).logs("p", &previous).await.unwrap(), "first life\n");
    assert_eq!(pods(&cluster).logs("p", &LogParams::default()).await.unwrap(), "second life\n");
}
