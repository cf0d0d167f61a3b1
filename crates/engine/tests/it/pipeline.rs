//! The pipeline beside a store that fails in its own way.

use crate::support::{machines, store};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tenure_edge::TokioRuntime;
use tenure_engine::{birth::create, config::EngineConfig, pipeline::Pipeline};
use tenure_kernel::{
    bell::Silent,
    error::StoreError,
    ids::{EntityId, MailId},
    mail::NewMail,
    runtime::{BoxFuture, Runtime as _},
    store::{Answer, Op, Store},
    stream::Body,
};
use tenure_proving::{
    layer::{Layer, Layered},
    patience::PATIENCE,
};

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

/// Time that passes only while somebody sleeps.
#[derive(Default)]
struct Virtual(AtomicU64);

impl tenure_kernel::runtime::Runtime for Virtual {
    fn mono(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::SeqCst))
    }
    fn sleep(&self, d: Duration) -> BoxFuture<'static, ()> {
        self.0.fetch_add(u64::try_from(d.as_micros()).unwrap(), Ordering::SeqCst);
        Box::pin(tokio::task::yield_now())
    }
    fn spawn(&self, future: BoxFuture<'static, ()>) {
        TokioRuntime::current().spawn(future);
    }
    fn random(&self) -> u64 {
        7
    }
}

/// A store on a full disk.
struct Full(Arc<dyn Store>);

impl Layer for Full {
    fn under(&self) -> &dyn Store {
        &*self.0
    }
    fn apply_shared(&self, _: Arc<Vec<Op>>) -> BoxFuture<'_, Result<Vec<Answer>, StoreError>> {
        Box::pin(async { Err(StoreError::DiskFull("no space left".into())) })
    }
}

/// A caller that arrives while an earlier batch is tried again does not wait for both.
#[tokio::test]
async fn each_caller_is_refused_when_its_own_patience_is_over() {
    let rt = Arc::new(Virtual::default());
    let config =
        EngineConfig { patience: Duration::from_secs(10), flights: 1, ..EngineConfig::default() };
    let full: Arc<dyn Store> = Arc::new(Layered(Full(store())));
    let pipeline = Pipeline::new(full, Arc::new(Silent), rt.clone(), &config);
    let refused_after = |seconds: u16| {
        let (rt, pipeline) = (rt.clone(), pipeline.clone());
        async move {
            while rt.mono() < Duration::from_secs(seconds.into()) {
                tokio::task::yield_now().await;
            }
            let came = rt.mono();
            let (to, id) = (EntityId::fixed(9, seconds), MailId(seconds.to_string()));
            let mail = NewMail { to, id, kind: "hello".into(), body: Body::Inline(Vec::new()) };
            let refused = pipeline.mail(mail).await;
            assert!(matches!(refused, Err(StoreError::DiskFull(_))), "{refused:?}");
            rt.mono() - came
        }
    };
    let all = [0, 0, 1, 5, 9].map(refused_after);
    for waited in futures_util::future::join_all(all).await {
        assert!(waited >= config.patience, "{waited:?} is less than was promised");
        assert!(
            waited < config.patience + Duration::from_secs(1),
            "{waited:?} is more than was promised"
        );
    }
}
