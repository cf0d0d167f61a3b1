//! Three hostile machines on whole servers and real databases: a thousand-way fan-out under a storm of
//! signals, a mailbox that never stops, and a family cancelled at every point.

use crate::support::{fast, own_database};
use futures_util::future::join_all;
use std::{sync::Arc, time::Duration};
use tenure::{
    config::Settings,
    engine::{
        birth::create,
        lanes::Discard,
        node::{Node, Parts},
    },
    kernel::{
        head::Head,
        ids::{EntityId, MailId},
        machine::decode_state,
        mail::{MailAnswer, NewMail, kinds},
        runtime::{Rt, Runtime as _},
        store::{HeadFilter, Store},
        stream::Body,
        table::Class,
    },
    open::open,
};
use tenure_edge::TokioRuntime;
use tenure_lab::{judge, machines, problems};
use tenure_proving::machines::{family, fanout, mailbox};

/// How long something may take that takes less than a second on a machine that runs: machines have been seen to stand still
/// for three quarters of a minute ("workqueue lockup" in the log of the kernel).
const PATIENCE: Duration = Duration::from_secs(300);

/// Servers on one store, with short ticks. The embedded store has one.
struct Cluster {
    nodes: Vec<Node>,
    store: Arc<dyn Store>,
}

impl Cluster {
    async fn start(url: &str, servers: usize) -> Cluster {
        let flags: Vec<String> = [
            format!("store.url={url}"),
            "worker.lease_seconds=3".into(),
            "worker.renewal_seconds=0.5".into(),
            "server.tick_seconds=0.2".into(),
            "server.pulse_gap_seconds=2".into(),
        ]
        .into();
        let settings = Settings::load(None, [], &flags).unwrap();
        let rt: Rt = Arc::new(TokioRuntime::current());
        let mut nodes = Vec::new();
        let mut store = None;
        for n in 0..servers {
            let opened = open(&settings, judge()).await.unwrap();
            let mut config = settings.engine();
            config.flights = opened.flights;
            config.segment_events = 500;
            store = Some(opened.store.clone());
            let parts = Parts {
                store: opened.store,
                bell: opened.bell,
                rt: rt.clone(),
                machines: machines(),
                config,
                name: format!("hostile-{n}"),
                executor: None,
                wire: Arc::new(Discard),
                protect_outage: true,
            };
            nodes.push(Node::start(parts).await.unwrap());
        }
        Cluster { nodes, store: store.unwrap() }
    }

    fn node(&self, n: usize) -> &Node {
        &self.nodes[n % self.nodes.len()]
    }

    async fn create(&self, kind: &str, body: &Body) -> EntityId {
        create(&self.node(0).pipeline, &machines(), kind, "t", body).await.unwrap()
    }

    async fn mail(&self, n: usize, to: EntityId, id: String, kind: &'static str) -> MailAnswer {
        let mail = NewMail { to, id: MailId(id), kind: kind.into(), body: Body::json(&n) };
        self.node(n).pipeline.mail(mail).await.unwrap()
    }

    async fn head(&self, id: EntityId) -> Head {
        self.store.head(id).await.unwrap().unwrap()
    }

    async fn wait_for(&self, what: &str, id: EntityId, done: impl Fn(&Head) -> bool) -> Head {
        let rt = TokioRuntime::current();
        let end = rt.mono() + PATIENCE;
        loop {
            let head = self.head(id).await;
            if done(&head) {
                return head;
            }
            assert!(rt.mono() < end, "waited in vain for {what}; it stands at {head:?}");
            rt.sleep(Duration::from_millis(5)).await;
        }
    }

    async fn all(&self, kind: &str) -> Vec<Head> {
        let filter = |after| HeadFilter { kind: Some(kind.into()), after, ..HeadFilter::default() };
        let mut heads: Vec<Head> = Vec::new();
        loop {
            let page = self.store.heads(filter(heads.last().map(|h| h.id)), 500).await.unwrap();
            if page.is_empty() {
                return heads;
            }
            heads.extend(page);
        }
    }

    async fn stop(mut self) {
        for node in &mut self.nodes {
            node.stop().await;
        }
        assert_eq!(problems(&*self.store).await, Vec::<String>::new());
    }
}

/// A thousand parts are created by messages; every part and the parent get signals, each twice, from
/// all sides, while they are born, work, and end.
async fn a_thousand_parts_end_under_a_storm_of_signals(cluster: Cluster) {
    let parts = if fast() { 100 } else { 1_000 };
    let parent = cluster.create("fanout", &Body::json(&fanout::Order { parts, need: 3 })).await;
    let born = decode_state::<fanout::Fanout>(&cluster.head(parent).await.state).unwrap().born;
    let storm = (0..parts as usize).map(|n| {
        let cluster = &cluster;
        async move {
            let part = fanout::part_id(parent, n as u32, born);
            // Until it exists it is unknown, which is an answer: the signal is sent again.
            for signal in 0..3 {
                for _twice in 0..2 {
                    while cluster.mail(n, part, format!("s{signal}"), "signal").await
                        == MailAnswer::Unknown
                    {
                        TokioRuntime::current().sleep(Duration::from_millis(20)).await;
                    }
                }
            }
            cluster.mail(n, parent, format!("p{n}"), "signal").await;
        }
    });
    join_all(storm).await;
    let head = cluster.wait_for("the fan-out", parent, |h| h.class() == Class::Final).await;
    assert_eq!(head.status.name(), "done");
    let all = cluster.all("part").await;
    assert_eq!(all.len(), parts as usize, "each part was born once");
    assert!(all.iter().all(|h| h.class() == Class::Final));
    cluster.stop().await;
}

/// A resting entity that hears message after message from many senders, some twice, and stays small.
async fn a_mailbox_hears_every_message_once(cluster: Cluster, messages: usize) {
    let id = cluster.create("mailbox", &Body::json(&())).await;
    let senders = 64;
    let sending = (0..senders).map(|sender| {
        let cluster = &cluster;
        async move {
            for n in (sender..messages).step_by(senders) {
                let accepted = cluster.mail(n, id, format!("m{n}"), "note").await;
                assert!(matches!(accepted, MailAnswer::Accepted { .. }), "{accepted:?}");
                if n % 1_000 == 0 {
                    assert_eq!(
                        cluster.mail(n, id, format!("m{n}"), "note").await,
                        MailAnswer::Duplicate
                    );
                }
            }
        }
    });
    join_all(sending).await;
    let head = cluster.wait_for("the mailbox", id, |h| h.mail_read == messages as u64).await;
    let state = decode_state::<mailbox::Mailbox>(&head.state).unwrap();
    assert_eq!(state.count, messages as u64);
    assert!(messages < 200_000 || head.sealed > 0, "its segments were sealed");
    let now = cluster.store.now().await.unwrap();
    let before = cluster.store.stream(id, 1, usize::MAX >> 1).await.unwrap().len();
    cluster.store.retire(now, 10).await.unwrap();
    let after = cluster.store.stream(id, 1, usize::MAX >> 1).await.unwrap();
    assert!(head.sealed == 0 || after.len() < before, "{} records of {before}", after.len());
    cluster.stop().await;
}

/// The cancel is sent as soon as the feed shows the n-th record of a family, for every n.
async fn a_family_cancelled_at_any_point_ends_whole(cluster: Cluster) {
    let points = if fast() { 10 } else { 60 };
    let mut cancelled = 0;
    for point in 1..=points {
        let before = cluster.store.feed(last(&*cluster.store).await, 1).await.unwrap().next;
        let seed = family::Seed { parent: None, number: 0, depth: 2, children: 3, ripens_ms: 30 };
        let head_of_family = cluster.create("family", &Body::json(&seed)).await;
        let rt = TokioRuntime::current();
        let mut seen = 0;
        let mut cursor = before;
        let end = rt.mono() + PATIENCE;
        while seen < point && cluster.head(head_of_family).await.class() != Class::Final {
            let page = cluster.store.feed(cursor, 100).await.unwrap();
            seen += page.items.len();
            cursor = page.next;
            assert!(rt.mono() < end, "the feed stands still at {cursor}");
        }
        let answer =
            cluster.mail(point, head_of_family, format!("cancel-{point}"), kinds::CANCEL).await;
        cancelled += usize::from(matches!(answer, MailAnswer::Accepted { .. }));
        cluster.wait_for("the family", head_of_family, |h| h.class() == Class::Final).await;
    }
    // A family has about forty records: later points find it over, which is a point too.
    assert!(
        cancelled >= points / 4,
        "{cancelled} of {points} were still open when the cancel came"
    );
    for member in cluster.all("family").await {
        cluster.wait_for("a member", member.id, |h| h.class() == Class::Final).await;
    }
    cluster.stop().await;
}

/// The end of the feed.
async fn last(store: &dyn Store) -> tenure::kernel::feed::Cursor {
    let mut cursor = tenure::kernel::feed::Cursor::START;
    loop {
        let page = store.feed(cursor, 1_000).await.unwrap();
        if page.items.is_empty() {
            return page.next;
        }
        cursor = page.next;
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap()
}

fn on_sqlite(test: impl AsyncFnOnce(Cluster)) {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", dir.path().display());
    runtime().block_on(async { test(Cluster::start(&url, 1).await).await });
}

fn on_postgres(name: &str, test: impl AsyncFnOnce(Cluster)) {
    let database = own_database(name);
    runtime().block_on(async { test(Cluster::start(&database.url, 2).await).await });
}

#[test]
fn fan_out_on_sqlite() {
    on_sqlite(a_thousand_parts_end_under_a_storm_of_signals);
}

#[test]
fn fan_out_on_postgres() {
    on_postgres("fan_out", a_thousand_parts_end_under_a_storm_of_signals);
}

#[test]
fn a_million_messages_on_sqlite() {
    let messages = if fast() { 20_000 } else { 1_000_000 };
    on_sqlite(async |cluster| a_mailbox_hears_every_message_once(cluster, messages).await);
}

#[test]
fn many_messages_on_postgres() {
    let messages = if fast() { 5_000 } else { 200_000 };
    on_postgres("mailbox", async |cluster| {
        a_mailbox_hears_every_message_once(cluster, messages).await
    });
}

#[test]
fn a_cancelled_family_on_sqlite() {
    on_sqlite(a_family_cancelled_at_any_point_ends_whole);
}

#[test]
fn a_cancelled_family_on_postgres() {
    on_postgres("family", a_family_cancelled_at_any_point_ends_whole);
}
