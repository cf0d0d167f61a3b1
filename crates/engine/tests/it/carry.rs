//! What commits take along: no lane is served in any of these, so what arrives came with its commit.

use crate::support::{Order, machines, state, store};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};
use tenure_edge::TokioRuntime;
use tenure_engine::{birth::create, config::EngineConfig, pipeline::Pipeline};
use tenure_kernel::{
    bell::{Bell, Ear, Topic},
    commit::{Commit, CommitAnswer, Expect},
    ids::EntityId,
    limits,
    outbox::Message,
    store::{HeadFilter, Store},
    stream::{Body, NewEvent},
};

/// Remembers what was rung.
#[derive(Default)]
struct Log(Mutex<Vec<Topic>>);

impl Bell for Log {
    fn ring(&self, topic: Topic) {
        self.0.lock().unwrap().push(topic);
    }
    fn listen(&self, topic: Topic) -> Box<dyn Ear> {
        tenure_kernel::bell::Silent.listen(topic)
    }
}

impl Log {
    fn take(&self) -> Vec<Topic> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

fn carrying(store: Arc<dyn Store>, bell: Arc<Log>, config: &EngineConfig) -> Pipeline {
    Pipeline::carrying(store, bell, Arc::new(TokioRuntime::current()), config, machines())
}

async fn waiting(store: &dyn Store) -> usize {
    let lanes: Vec<u16> = (0..limits::LANES).collect();
    store.outbox(lanes, false, 1_000).await.unwrap().len()
}

fn parent(key: &str) -> Body {
    Body::json(&Order { child_key: Some(key.into()), ..Order::default() })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_is_born_in_the_commit_that_asks_for_it() {
    let (store, bell) = (store(), Arc::new(Log::default()));
    let pipeline = carrying(store.clone(), bell.clone(), &EngineConfig::default());
    let id = create(&pipeline, &machines(), "clock", "acme", &parent("k")).await.unwrap();
    let all = store.heads(HeadFilter::default(), 10).await.unwrap();
    let child = all.iter().find(|h| h.id != id).expect("a child");
    assert_eq!((child.tenant.as_str(), child.queue.as_str()), ("acme", "clocks"));
    assert_eq!(waiting(&*store).await, 0);
    let rung = bell.take();
    assert_eq!(rung.iter().filter(|t| **t == Topic::Queue("clocks".into())).count(), 2, "{rung:?}");
    assert!(!rung.contains(&Topic::Outbox), "nothing waits: {rung:?}");

    // One that can not be born here is left for whoever serves the lane, and rung for.
    create(&pipeline, &machines(), "clock", "acme", &parent("k")).await.unwrap();
    assert_eq!(waiting(&*store).await, 1, "its key is taken");
    assert!(bell.take().contains(&Topic::Outbox));

    // And all of it, where nothing is carried.
    let config = EngineConfig { carry: false, ..EngineConfig::default() };
    let pipeline = carrying(store.clone(), bell.clone(), &config);
    create(&pipeline, &machines(), "clock", "acme", &parent("another")).await.unwrap();
    assert_eq!(waiting(&*store).await, 2);
}

async fn tell(pipeline: &Pipeline, from: EntityId, to: EntityId, n: usize) {
    let head = pipeline.store().head(from).await.unwrap().unwrap();
    let expect = Expect::Nobody { epoch: head.epoch, version: head.version };
    let heard = NewEvent::new(
        "heard",
        Body::json(&serde_json::json!({ "event": "heard", "kind": "said", "body": "" })),
    );
    let mut commit = Commit::new(pipeline.commit_id(), from, expect, vec![heard]);
    commit.state = Some(head.state);
    commit.messages = vec![Message::mail(to, "told", Body::json(&n))];
    let answer = pipeline.commit(commit).await.unwrap();
    assert!(matches!(answer, CommitAnswer::Committed(_)), "{answer:?}");
}

/// Two that write to each other through batches which are under way at once: nobody waits for ever, nothing is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_who_write_to_each_other_in_several_flights_both_hear_everything() {
    const EACH: usize = 100;
    let (store, bell) = (store(), Arc::new(Log::default()));
    let config = EngineConfig { flights: 4, ..EngineConfig::default() };
    let pipeline = carrying(store.clone(), bell, &config);
    let order = Body::json(&Order::default());
    let a = create(&pipeline, &machines(), "clock", "t", &order).await.unwrap();
    let b = create(&pipeline, &machines(), "clock", "t", &order).await.unwrap();
    let one = async {
        for n in 0..EACH {
            tell(&pipeline, a, b, n).await;
        }
    };
    let other = async {
        for n in 0..EACH {
            tell(&pipeline, b, a, n).await;
        }
    };
    tokio::join!(one, other);
    let lanes: Vec<u16> = (0..limits::LANES).collect();
    let posted = store.outbox(lanes, false, 1_000).await.unwrap();
    for (from, to) in [(a, b), (b, a)] {
        let mail = store.mail(to, 0, 1_000).await.unwrap();
        let arrived = mail.iter().map(|m| m.id.0.clone());
        let waits = posted.iter().filter(|p| p.id.source == from).map(|p| p.id.to_string());
        let all: BTreeSet<String> = arrived.chain(waits).collect();
        assert_eq!(all.len(), EACH);
        let head = store.head(from).await.unwrap().unwrap();
        assert_eq!(state(&head).heard.len(), 0, "its own state was kept");
    }
}
