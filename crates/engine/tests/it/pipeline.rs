//! The pipeline beside a store that fails in its own way.

use crate::support::{machines, store};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use tenure_edge::TokioRuntime;
use tenure_engine::{birth::create, config::EngineConfig, pipeline::Pipeline};
use tenure_kernel::{bell::Silent, stream::Body};
use tenure_proving::patience::PATIENCE;

/// Answers `random` like any runtime, and panics once when told: a panic on the way to the store.
struct Trap(TokioRuntime, Arc<AtomicBool>);

impl tenure_kernel::runtime::Runtime for Trap {
    fn mono(&self) -> std::time::Duration {
        assert!(!self.1.swap(false, Ordering::SeqCst), "a trap");
        self.0.mono()
    }
    fn sleep(&self, d: std::time::Duration) -> tenure_kernel::runtime::BoxFuture<'static, ()> {
        self.0.sleep(d)
    }
    fn spawn(&self, future: tenure_kernel::runtime::BoxFuture<'static, ()>) {
        self.0.spawn(future);
    }
    fn random(&self) -> u64 {
        self.0.random()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_under_way_does_not_close_the_pipeline() {
    let set = Arc::new(AtomicBool::new(false));
    let rt = Arc::new(Trap(TokioRuntime::current(), set.clone()));
    let pipeline = Pipeline::new(store(), Arc::new(Silent), rt, &EngineConfig::default());
    let body = Body::json(&crate::support::Order::default());
    create(&pipeline, &machines(), "clock", "t", &body).await.unwrap();
    set.store(true, Ordering::SeqCst);
    let (caught, again) = (pipeline.clone(), body.clone());
    let panicked = tokio::task::spawn_blocking(move || {
        tokio::runtime::Handle::current().block_on(async {
            create(&caught, &machines(), "clock", "t", &again).await.map(|_| ())
        })
    });
    assert!(panicked.await.is_err(), "the caller who flew it panics");
    create(&pipeline, &machines(), "clock", "t", &body).await.unwrap();
}

/// A caller that has begun a flight and panics in something else takes the flight along.
#[tokio::test(flavor = "multi_thread")]
async fn a_panic_beside_a_flight_does_not_close_the_pipeline() {
    let config = EngineConfig { flights: 1, ..EngineConfig::default() };
    let rt = Arc::new(TokioRuntime::current());
    let pipeline = Pipeline::new(store(), Arc::new(Silent), rt, &config);
    let body = Body::json(&crate::support::Order::default());
    let (gathering, again) = (pipeline.gathering(), body.clone());
    let panicked = tokio::task::spawn_blocking(move || {
        let machines = machines();
        let begun = create(&gathering, &machines, "clock", "t", &again);
        // It waits for others who might come along when this is looked at.
        let both = futures_util::future::join(begun, async { panic!("a trap") });
        tokio::runtime::Handle::current().block_on(both).0.map(|_| ())
    });
    assert!(panicked.await.is_err());
    let machines = machines();
    let next = create(&pipeline, &machines, "clock", "t", &body);
    tokio::time::timeout(PATIENCE, next).await.expect("nobody flies any more").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn where_nobody_listens_nothing_is_written_for_outside() {
    use crate::support::Order;
    let announced = |subject: &str| {
        Body::json(&Order { announce: Some(subject.to_owned()), ..Order::default() })
    };
    for mute in [false, true] {
        let (store, config) = (store(), EngineConfig { mute, ..EngineConfig::default() });
        let rt = Arc::new(TokioRuntime::current());
        let pipeline = Pipeline::new(store.clone(), Arc::new(Silent), rt, &config);
        let (event, wakeup) = (announced("evt.agent.a.task"), announced("cmd.agent.pool.wakeup"));
        for body in [event, wakeup] {
            create(&pipeline, &machines(), "clock", "t", &body).await.unwrap();
        }
        let lanes: Vec<u16> = (0..tenure_kernel::limits::LANES).collect();
        let outside = store.outbox(lanes.clone(), true, 10).await.unwrap();
        assert_eq!(outside.len(), usize::from(!mute));
        let inside = store.outbox(lanes, false, 10).await.unwrap();
        assert_eq!(inside.len(), 1, "a wake-up is a ring, and is kept");
    }
}
