//! Each fault, as a client meets it.

use crate::support::{Tape, client, pods};
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{ListParams, ObjectMeta, PostParams, WatchParams},
};
use std::time::Duration;
use tenure_kubedouble::{Cluster, Distortion, Fault, On, Times};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

fn code(error: &kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        _ => 0,
    }
}

fn pod(name: &str) -> Pod {
    let spec = serde_json::json!({"containers": [{"name": "main", "image": "work"}]});
    Pod {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        spec: serde_json::from_value(spec).unwrap(),
        status: None,
    }
}

#[tokio::test]
async fn a_fault_meets_so_many_requests_and_no_others() {
    let cluster = Cluster::start();
    let api = pods(&cluster);
    cluster.fault(On::list("pods"), Fault::internal_error(), Times::Next(2));
    assert_eq!(code(&api.get("p").await.unwrap_err()), 404, "a get is no list");
    for _ in 0..2 {
        assert_eq!(code(&api.list(&ListParams::default()).await.unwrap_err()), 500);
    }
    api.list(&ListParams::default()).await.unwrap();
    let always = cluster.fault(On::any(), Fault::unavailable(), Times::Always);
    for _ in 0..3 {
        assert_eq!(code(&api.get("p").await.unwrap_err()), 503);
    }
    cluster.clear_fault(always);
    assert_eq!(code(&api.get("p").await.unwrap_err()), 404);
    cluster.fault(On::verb("get", "pods").named("q"), Fault::forbidden(), Times::Always);
    assert_eq!(code(&api.get("p").await.unwrap_err()), 404);
    assert_eq!(code(&api.get("q").await.unwrap_err()), 403);
    cluster.clear_faults();
    assert_eq!(code(&api.get("q").await.unwrap_err()), 404);
}

#[tokio::test]
async fn too_many_requests_says_when_to_come_again() {
    let cluster = Cluster::start();
    cluster.fault(On::any(), Fault::too_many_requests(7), Times::Next(1));
    let answer = raw(&cluster, "GET /api/v1/pods HTTP/1.1").await;
    assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
    assert!(answer.contains("retry-after: 7"), "{answer}");
    assert!(answer.contains(r#""retryAfterSeconds":7"#), "{answer}");
}

/// One request without a client in between.
async fn raw(cluster: &Cluster, line: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", cluster.port())).await.unwrap();
    let request = format!("{line}\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // The end may be a reset.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn a_list_can_be_gone() {
    let cluster = Cluster::start();
    cluster.fault(On::list("pods"), Fault::gone(), Times::Next(1));
    let error = pods(&cluster).list(&ListParams::default()).await.unwrap_err();
    assert_eq!(code(&error), 410);
}

#[tokio::test]
async fn a_proxy_answers_in_its_own_words() {
    let cluster = Cluster::start();
    let body = "<html>bad gateway</html>".to_owned();
    cluster.fault(On::any(), Fault::Proxy { code: 502, body }, Times::Next(1));
    let error = pods(&cluster).get("p").await.unwrap_err();
    assert_eq!(code(&error), 502);
    assert!(error.to_string().contains("bad gateway"), "{error}");
}

#[tokio::test]
async fn a_cut_request_has_done_nothing() {
    let cluster = Cluster::start();
    cluster.fault(On::create("pods"), Fault::Cut, Times::Next(1));
    let error = pods(&cluster).create(&PostParams::default(), &pod("p")).await.unwrap_err();
    assert_eq!(code(&error), 0, "{error}");
    assert_eq!(cluster.pod("p"), None);
    assert_eq!(cluster.requests()[0].code, None);
}

#[tokio::test]
async fn a_lost_answer_leaves_what_was_done() {
    let cluster = Cluster::start();
    cluster.fault(On::create("pods"), Fault::AnswerLost, Times::Next(1));
    let error = pods(&cluster).create(&PostParams::default(), &pod("p")).await.unwrap_err();
    assert_eq!(code(&error), 0, "{error}");
    assert!(cluster.pod("p").is_some());
    let error = pods(&cluster).create(&PostParams::default(), &pod("p")).await.unwrap_err();
    assert_eq!(code(&error), 409);
}

#[tokio::test]
async fn a_slow_answer_comes_and_a_hanging_one_does_not() {
    let cluster = Cluster::start();
    let (api, all) = (pods(&cluster), ListParams::default());
    cluster.fault(On::list("pods"), Fault::Slow(Duration::from_millis(150)), Times::Next(1));
    let quick = tokio::time::timeout(Duration::from_millis(50), api.list(&all));
    assert!(quick.await.is_err());
    cluster.fault(On::list("pods"), Fault::Slow(Duration::from_millis(10)), Times::Next(1));
    cluster.fault(On::list("pods"), Fault::internal_error(), Times::Next(1));
    assert_eq!(code(&api.list(&all).await.unwrap_err()), 500, "slow, then no");
    cluster.fault(On::list("pods"), Fault::Hang, Times::Next(1));
    let hung = tokio::time::timeout(Duration::from_millis(200), api.list(&all));
    assert!(hung.await.is_err());
    api.list(&all).await.unwrap();
}

#[tokio::test]
async fn a_frozen_server_takes_requests_and_answers_when_it_thaws() {
    let cluster = Cluster::start();
    cluster.freeze(true);
    let api = pods(&cluster);
    let meanwhile = async {
        cluster.until("the request is there", |c| c.requests().len() == 1).await;
        assert_eq!(cluster.requests()[0].code, None);
        cluster.freeze(false);
    };
    let all = ListParams::default();
    let (answer, ()) = tokio::join!(api.list(&all), meanwhile);
    answer.unwrap();
}

#[tokio::test]
async fn a_server_that_is_away_comes_back_on_its_port_with_what_it_had() {
    let cluster = Cluster::start();
    cluster.add_task("p", &[]);
    let mut tape = Tape::all(&cluster).await;
    let (url, version) = (cluster.url(), cluster.version());
    cluster.stop_server();
    assert!(std::net::TcpStream::connect(("127.0.0.1", cluster.port())).is_err());
    let last = tape.next().await;
    assert!(last == "end" || last.starts_with("broken"), "{last}");
    assert!(pods(&cluster).get("p").await.is_err());
    cluster.running("p");
    cluster.start_server();
    assert_eq!(cluster.url(), url);
    pods(&cluster).get("p").await.unwrap();
    let mut tape = Tape::from(&cluster, &WatchParams::default(), version).await;
    tape.is(&["MODIFIED p Running ready"]).await;
}

#[tokio::test]
async fn cut_connections_end_watches_and_the_server_goes_on() {
    let cluster = Cluster::start();
    let mut tape = Tape::all(&cluster).await;
    cluster.cut_connections();
    let last = tape.next().await;
    assert!(last == "end" || last.starts_with("broken"), "{last}");
    cluster.until("the watch is gone", |c| c.watches().is_empty()).await;
    pods(&cluster).list(&ListParams::default()).await.unwrap();
}

#[tokio::test]
async fn a_silent_watch_hears_that_its_connection_breaks() {
    let cluster = Cluster::start();
    let mut tape = Tape::all(&cluster).await;
    cluster.silence_watches(true);
    cluster.add_task("p", &[]);
    cluster.cut_watches();
    let last = tape.next().await;
    assert!(last == "end" || last.starts_with("broken"), "{last}");
}

#[tokio::test]
async fn a_silent_watch_does_not_end_when_its_time_is_over() {
    let cluster = Cluster::start();
    cluster.silence_watches(true);
    let params = WatchParams::default().timeout(1);
    let mut tape = Tape::from(&cluster, &params, cluster.version()).await;
    assert!(tape.is_silent_for(Duration::from_millis(1300)).await);
    cluster.silence_watches(false);
    tape.is(&["end"]).await;
}

#[tokio::test]
async fn expired_watches_and_a_storm() {
    let cluster = Cluster::start();
    let mut tape = Tape::all(&cluster).await;
    cluster.add_task("p", &[]);
    cluster.expire_watches();
    tape.is(&["ADDED p Pending", "ERROR 410 Expired", "end"]).await;
    Tape::all(&cluster).await;
    cluster.storm_of_410(true);
    for _ in 0..3 {
        let mut tape = Tape::all(&cluster).await;
        tape.is(&["ERROR 410 Expired", "end"]).await;
    }
    cluster.storm_of_410(false);
    let mut tape = Tape::all(&cluster).await;
    cluster.add_task("q", &[]);
    tape.is(&["ADDED q Pending"]).await;
}

#[tokio::test]
async fn watches_end_break_off_and_break_off_within_a_line() {
    let cluster = Cluster::start();
    let mut tape = Tape::all(&cluster).await;
    cluster.end_watches();
    tape.is(&["end"]).await;
    let mut tape = Tape::all(&cluster).await;
    cluster.cut_watches_in_line();
    cluster.add_task("p", &[]);
    let first = tape.next().await;
    assert!(first == "end" || first.starts_with("broken"), "half a line is no event: {first}");
    let mut tape = Tape::all(&cluster).await;
    cluster.say_on_watches("{\"type\":\"ADDED\",\"object\":nonsense}");
    assert!(tape.next().await.starts_with("broken"));
}

#[tokio::test]
async fn half_a_line_is_really_sent() {
    let cluster = Cluster::start();
    let version = cluster.version();
    let line = format!("GET /api/v1/pods?watch=true&resourceVersion={version} HTTP/1.1");
    let meanwhile = async {
        cluster.until("the watch is open", |c| c.watches().len() == 1).await;
        cluster.cut_watches_in_line();
        cluster.add_task("p", &[]);
    };
    let (answer, ()) = tokio::join!(raw(&cluster, &line), meanwhile);
    assert!(answer.contains(r#"{"type":"ADDED","object":{"kind":"Pod""#), "{answer}");
    assert!(!answer.contains("}}\n"), "{answer}");
    assert!(!answer.ends_with("0\r\n\r\n"), "no end in order: {answer}");
}

#[tokio::test]
async fn events_come_twice_and_turned_around() {
    let cluster = Cluster::start();
    cluster.distort_watches(Distortion { duplicates: 1, reverse: 0 });
    let mut tape = Tape::all(&cluster).await;
    cluster.add_task("p", &[]);
    cluster.running("p");
    tape.is(&[
        "ADDED p Pending",
        "ADDED p Pending",
        "MODIFIED p Running ready",
        "MODIFIED p Running ready",
    ])
    .await;
    cluster.distort_watches(Distortion { duplicates: 0, reverse: 2 });
    cluster.terminate("p", 0, "", "");
    cluster.force_delete("p");
    cluster.add_task("q", &[]);
    let lines = tape.take(4).await;
    assert_eq!(
        lines,
        [
            "MODIFIED p Succeeded deleting=0 exit=0",
            "MODIFIED p Succeeded exit=0",
            "ADDED q Pending",
            "DELETED p Succeeded deleting=0 exit=0",
        ]
    );
    cluster.add_task("r", &[]);
    cluster.distort_watches(Distortion::default());
    tape.is(&["ADDED r Pending"]).await;
}

#[tokio::test]
async fn a_watch_that_the_history_has_passed_by_ends() {
    let cluster = Cluster::start();
    cluster.remember(10);
    let mut tape = Tape::all(&cluster).await;
    cluster.silence_watches(true);
    for number in 0..20 {
        cluster.add_task(&format!("p{number}"), &[]);
    }
    cluster.silence_watches(false);
    tape.is(&["end"]).await;
}

#[tokio::test]
async fn bookmarks_come_by_the_clock_and_tell_the_newest_version() {
    let cluster = Cluster::start();
    cluster.bookmarks_every(Duration::from_millis(20));
    let mut tape = Tape::labels(&cluster, "a=b").await;
    cluster.add_task("p", &[]);
    let version = cluster.version();
    loop {
        let line = tape.next().await;
        assert!(line.starts_with("BOOKMARK"), "{line}");
        if line == format!("BOOKMARK {version}") {
            break;
        }
    }
    let params = WatchParams::default().disable_bookmarks();
    let mut tape = Tape::from(&cluster, &params, version).await;
    assert!(tape.is_silent_for(Duration::from_millis(100)).await, "nobody asked for them");
}

#[tokio::test]
async fn logs_break_off() {
    let cluster = Cluster::start();
    cluster.add_task("p", &[]);
    cluster.bind("p", "node-1");
    cluster.running("p");
    cluster.log("p", "main", "one");
    let api: Api<Pod> = Api::default_namespaced(client(&cluster));
    let params = kube::api::LogParams { follow: true, ..Default::default() };
    let mut lines = {
        use futures_util::AsyncBufReadExt as _;
        api.log_stream("p", &params).await.unwrap().lines()
    };
    assert_eq!(lines.next().await.unwrap().unwrap(), "one");
    cluster.cut_logs();
    let next = lines.next().await;
    assert!(matches!(next, None | Some(Err(_))), "{next:?}");
}
