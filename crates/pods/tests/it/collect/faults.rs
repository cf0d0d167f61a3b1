//! What goes wrong between a collector and its API server.

use super::rig::{Rig, state};
use std::{sync::atomic::Ordering, time::Duration};
use tenure_kubedouble::{Fault, On, Times};

fn access_of(rig: &Rig) -> Vec<String> {
    let used = rig.cluster.permissions_used();
    used.into_iter().map(|(_, resource, verb)| format!("{verb} {resource}")).collect()
}

const MS: Duration = Duration::from_millis(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_server_that_restarts_loses_nothing() {
    let rig = Rig::new();
    rig.runs("t-1");
    rig.runs("t-2");
    let collector = rig.synced().await;
    rig.server.says("t-2", &["RUNNING"]).await;
    rig.cluster.stop_server();
    rig.cluster.terminate("t-1", 1, "Error", "bad");
    state(&collector, "in trouble", |s| s.trouble.is_some()).await;
    rig.cluster.start_server();
    rig.server.says("t-1", &["RUNNING", "FAILED:app_error over"]).await;
    state(&collector, "well", |s| s.trouble.is_none() && s.ready).await;
    assert_eq!(rig.server.of("t-2"), ["RUNNING"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_gone_when_the_watch_comes_back_is_missed_and_asked_for() {
    let rig = Rig::new();
    for task in ["t-1", "t-2", "t-3"] {
        rig.runs(task);
    }
    let collector = rig.synced().await;
    rig.server.says("t-3", &["RUNNING"]).await;
    rig.cluster.stop_server();
    rig.cluster.force_delete("t-1");
    let unlabel =
        serde_json::json!({ "metadata": { "labels": { "flowforge.io/workload": null } } });
    rig.cluster.patch("t-2", &unlabel);
    // A new pod of the same name is another pod.
    rig.cluster.force_delete("t-3");
    rig.task("t-3");
    let now = rig.cluster.version();
    rig.cluster.expire_before(now);
    rig.cluster.start_server();
    rig.server.says("t-1", &["RUNNING", "FAILED:deleted_externally gone external_delete"]).await;
    rig.server.says("t-3", &["RUNNING", "FAILED:deleted_externally gone external_delete"]).await;
    state(&collector, "of one pod", |s| s.pods == 1).await;
    assert_eq!(rig.server.of("t-2"), ["RUNNING"], "it left the selector, and may run on");
    let by_name = |r: &&tenure_kubedouble::Request| {
        r.param("fieldSelector").is_some_and(|f| f.starts_with("metadata.name="))
    };
    let asked = rig.cluster.requests().iter().filter(by_name).count();
    assert!(asked >= 3, "{asked}");
    assert_eq!(access_of(&rig), ["list pods", "watch pods"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_that_is_too_old_lists_again_and_a_storm_of_them_is_outlived() {
    let rig = Rig::new();
    rig.runs("t-1");
    let collector = rig.synced().await;
    rig.cluster.until("a watch is open", |c| !c.watches().is_empty()).await;
    rig.cluster.expire_watches();
    state(&collector, "listed again", |s| s.relists >= 2 && s.expired >= 1).await;
    rig.cluster.storm_of_410(true);
    rig.cluster.cut_watches();
    state(&collector, "in a storm", |s| s.expired >= 5).await;
    // Lists still tell the truth.
    rig.cluster.succeed("t-1");
    rig.server.says("t-1", &["RUNNING", "SUCCEEDED over"]).await;
    rig.cluster.storm_of_410(false);
    let lists = collector.state().relists;
    rig.runs("t-2");
    rig.server.says("t-2", &["RUNNING"]).await;
    assert!(collector.state().relists <= lists + 3, "it watches again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_watch_is_noticed() {
    let rig = Rig::new();
    rig.runs("t-1");
    let collector = rig.synced().await;
    rig.server.says("t-1", &["RUNNING"]).await;
    rig.cluster.silence_watches(true);
    rig.cluster.succeed("t-1");
    // The first silence opens another watch, which is silent too; the second lists.
    rig.server.says("t-1", &["RUNNING", "SUCCEEDED over"]).await;
    let silent = collector.state();
    assert!(silent.silences >= 2, "{silent:?}");
    rig.cluster.silence_watches(false);
    rig.runs("t-2");
    rig.server.says("t-2", &["RUNNING"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bookmarks_keep_a_quiet_watch_alive() {
    let mut rig = Rig::new();
    rig.follow.silence = 600 * MS;
    let collector = rig.synced().await;
    // A machine that stands still for a while is silent too: then the next watch has to live as long.
    let opened = std::cell::Cell::new((0, rig.rt().mono()));
    state(&collector, "a watch that is older than the silence that ends one", |s| {
        let (watch, since) = opened.get();
        if watch != s.watches {
            opened.set((s.watches, rig.rt().mono()));
        }
        watch == s.watches && watch > 0 && rig.rt().mono() - since > 2 * rig.follow.silence
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_asks_for_a_pause_gets_it() {
    let rig = Rig::new();
    rig.runs("t-1");
    rig.cluster.fault(On::list("pods"), Fault::too_many_requests(1), Times::Next(2));
    let began = rig.rt().mono();
    let collector = rig.start();
    state(&collector, "told to wait", |s| s.trouble.as_ref().is_some_and(|t| t.contains("pause")))
        .await;
    assert!(!collector.state().ready);
    rig.server.says("t-1", &["RUNNING"]).await;
    assert!(rig.rt().mono() - began >= Duration::from_secs(2), "two pauses of a second");
    assert_eq!(rig.cluster.requests().iter().filter(|r| r.verb == "list").count(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_of_all_kinds_pass() {
    let rig = Rig::new();
    rig.runs("t-1");
    for fault in [
        Fault::internal_error(),
        Fault::unavailable(),
        Fault::timeout(),
        Fault::Cut,
        Fault::Proxy { code: 502, body: "<html>bad gateway</html>".into() },
        Fault::gone(),
        Fault::AnswerLost,
    ] {
        rig.cluster.fault(On::list("pods"), fault.clone(), Times::Next(1));
        rig.cluster.fault(On::watch("pods"), fault, Times::Next(1));
    }
    let collector = rig.start();
    rig.server.says("t-1", &["RUNNING"]).await;
    rig.cluster.until("watched", |c| !c.watches().is_empty()).await;
    rig.cluster.cut_watches_in_line();
    rig.cluster.succeed("t-1");
    rig.server.says("t-1", &["RUNNING", "SUCCEEDED over"]).await;
    rig.cluster.say_on_watches("{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":7}}}");
    rig.cluster.say_on_watches("no JSON at all");
    rig.runs("t-2");
    rig.server.says("t-2", &["RUNNING"]).await;
    assert!(collector.state().troubles >= 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_watch_says_so_and_goes_on_trying() {
    let rig = Rig::new();
    rig.runs("t-1");
    rig.cluster.forbid("watch", "pods");
    let collector = rig.start();
    state(&collector, "refused", |s| {
        s.trouble.as_ref().is_some_and(|t| t.contains("`watch` on `pods`"))
    })
    .await;
    rig.cluster.allow("watch", "pods");
    rig.cluster.succeed("t-1");
    rig.server.says("t-1", &["RUNNING", "SUCCEEDED over"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_no_watch_can_be_had_lists_tell() {
    let rig = Rig::new();
    rig.runs("t-1");
    rig.cluster.forbid("watch", "pods");
    let _collector = rig.synced().await;
    rig.server.says("t-1", &["RUNNING"]).await;
    rig.cluster.succeed("t-1");
    rig.server.says("t-1", &["RUNNING", "SUCCEEDED over"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_see_nodes_is_ready_and_says_what_it_does_without() {
    let mut rig = Rig::new();
    rig.nodes = true;
    rig.runs("t-1");
    rig.cluster.forbid("*", "nodes");
    let collector = rig.synced().await;
    state(&collector, "ready", |s| s.ready).await;
    let without = collector.state().degraded.unwrap_or_default();
    assert!(without.contains("`list` on `nodes` (403)"), "{without}");
    rig.server.says("t-1", &["RUNNING"]).await;
    rig.cluster.allow("*", "nodes");
    state(&collector, "whole", |s| s.ready && s.degraded.is_none()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_that_expire_begin_the_list_anew() {
    let mut rig = Rig::new();
    rig.follow.page = 2;
    for n in 1..=7 {
        rig.runs(&format!("t-{n}"));
    }
    let collector = rig.synced().await;
    state(&collector, "full", |s| s.pods == 7).await;
    let pages = rig.cluster.requests().iter().filter(|r| r.verb == "list").count();
    assert_eq!(pages, 4);
    rig.server.until("all run", |t| t.all().len() == 7).await;
    rig.cluster.fault(On::list("pods"), Fault::Slow(MS), Times::Next(1));
    rig.cluster.fault(On::list("pods"), Fault::gone(), Times::Next(1));
    rig.cluster.expire_watches();
    state(&collector, "listed again", |s| s.relists >= 2).await;
    assert_eq!(collector.state().pods, 7);
    assert_eq!(rig.server.all().len(), 7, "nobody was missed, nobody told twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sink_that_is_away_finds_everything_in_order_when_it_is_back() {
    let rig = Rig::new();
    rig.channel.away(true);
    let collector = rig.synced().await;
    for n in 0..20 {
        rig.runs(&format!("t-{n}"));
    }
    for n in 0..20 {
        rig.cluster.succeed(&format!("t-{n}"));
    }
    rig.server.until("all ended", |t| t.all().len() == 40).await;
    let waiting = collector.state();
    assert!(waiting.ready && waiting.spool.depth == 40, "{waiting:?}");
    assert!(waiting.sinks.iter().any(|s| s.trouble.as_deref() == Some("away")));
    assert!(rig.channel.sends.load(Ordering::Relaxed) > 0 && rig.channel.all().is_empty());
    rig.channel.away(false);
    rig.channel.until("all heard", |t| t.all().len() == 40).await;
    for n in 0..20 {
        assert_eq!(rig.channel.of(&format!("t-{n}")), ["RUNNING", "SUCCEEDED over"]);
    }
    state(&collector, "empty", |s| {
        s.spool.depth == 0 && s.sinks.iter().all(|s| s.trouble.is_none())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_spool_stops_the_watch_and_loses_no_end() {
    let mut rig = Rig::new();
    rig.with_server = false;
    rig.spool.bytes_max = 16 * 1024;
    rig.channel.away(true);
    let collector = rig.synced().await;
    for n in 0..100 {
        let task = format!("t-{n}");
        rig.runs(&task);
        rig.cluster.terminate(&task, 1, "Error", "no");
    }
    state(&collector, "full", |s| s.spool.full && !s.ready).await;
    let text = collector.metrics();
    assert!(text.contains("tenure_collector_backpressure 1"), "{text}");
    rig.channel.away(false);
    rig.channel
        .until("all ended", |t| {
            (0..100).all(|n| t.of(&format!("t-{n}")).iter().any(|s| s == "FAILED:app_error over"))
        })
        .await;
    state(&collector, "ready", |s| s.ready && s.spool.depth == 0).await;
}
