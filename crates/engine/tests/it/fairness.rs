//! A tenant with a long queue does not delay another one's few: claims go by deficit, not by who came first.

use crate::support::{Clock, Event, Order, machines, quiet_node, session, store, until};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};
use tenure_edge::SystemClock;
use tenure_engine::{
    birth::create,
    node::Node,
    stop::stopper,
    worker::{Handler, Held, Worker},
};
use tenure_kernel::{
    head::Head,
    judge::Judge,
    limits,
    machine::Decision,
    runtime::BoxFuture,
    store::{HeadFilter, Store},
    stream::Body,
};
use tenure_store::sqlite::SqliteStore;
use tokio::sync::{Semaphore, watch};

/// How many jobs the tenant with the long queue has.
const JOBS: &str = "TENURE_TEST_FAIR_JOBS";
/// Jobs of the other one.
const FEW: usize = 10;
/// Slots of the one worker.
const SLOTS: usize = 4;
/// Creations that are under way at once.
const AT_ONCE: usize = 256;

/// Ends what it gets, and keeps count. Nothing runs unless it is let.
struct Counts {
    pass: Semaphore,
    ran: watch::Sender<Ran>,
}

#[derive(Clone, Default)]
struct Ran {
    by_tenant: BTreeMap<String, usize>,
    /// How many of `many` had run when the last of `few` began.
    before_last: usize,
}

struct Counting(Arc<Counts>);

impl Handler for Counting {
    fn run(&self, mut held: Held) -> BoxFuture<'static, Held> {
        let counts = self.0.clone();
        Box::pin(async move {
            counts.pass.acquire().await.unwrap().forget();
            let stopped = Event::Stopped { ballast: String::new() };
            held.record::<Clock>(Decision::event(stopped).regardless(), &[]).await.unwrap();
            counts.ran.send_modify(|ran| {
                *ran.by_tenant.entry(held.head.tenant.clone()).or_default() += 1;
                if held.head.tenant == "few" {
                    ran.before_last = ran.of("many");
                }
            });
            held
        })
    }
}

impl Ran {
    fn of(&self, tenant: &str) -> usize {
        self.by_tenant.get(tenant).copied().unwrap_or(0)
    }
}

/// What the worker serves, and where the jobs stand.
struct Ground {
    queues: Vec<String>,
    many: &'static str,
    few: &'static str,
    slots: usize,
}

impl Ground {
    fn one_queue() -> Self {
        Ground { queues: vec!["clocks".into()], many: "clocks", few: "clocks", slots: SLOTS }
    }
}

async fn wind(node: &Node, tenant: &str, queue: &str, count: usize) {
    let rt = node.pipeline.rt();
    let room = Arc::new(Semaphore::new(AT_ONCE));
    let failed = Arc::new(Mutex::new(None));
    for _ in 0..count {
        let one = room.clone().acquire_owned().await.unwrap();
        let (pipeline, tenant, failed) = (node.pipeline.clone(), tenant.to_owned(), failed.clone());
        let order = Body::json(&Order { queue: Some(queue.to_owned()), ..Order::default() });
        rt.spawn(Box::pin(async move {
            let made = create(&pipeline, &machines(), "clock", &tenant, &order).await;
            if let Err(e) = made {
                *failed.lock().unwrap() = Some(e.to_string());
            }
            drop(one);
        }));
    }
    drop(room.acquire_many(AT_ONCE as u32).await.unwrap());
    assert_eq!(*failed.lock().unwrap(), None);
}

/// How many of a long queue run before the last of the few that come behind it, and how long those take.
async fn overtaken(store: Arc<dyn Store>, many: usize, ground: Ground) -> (usize, Duration) {
    let mut node = quiet_node(store).await;
    wind(&node, "many", ground.many, many).await;
    let (keeper, _session) = session(&node).await;
    let counts = Arc::new(Counts { pass: Semaphore::new(0), ran: watch::Sender::default() });
    let handler = Arc::new(Counting(counts.clone()));
    let worker = Worker::new(keeper.clone(), ground.queues, ground.slots, handler);
    let (stopper, stop) = stopper();
    let (end, mut ended) = watch::channel(false);
    let rt = node.pipeline.rt().clone();
    rt.spawn(Box::pin(async move {
        worker.run(stop).await;
        end.send_replace(true);
    }));
    let mut ran = counts.ran.subscribe();
    let until = async |ran: &mut watch::Receiver<Ran>, tenant: &str, n: usize| {
        let waiting = ran.wait_for(|ran| ran.of(tenant) >= n);
        let waited = tokio::time::timeout(Duration::from_secs(60), waiting).await;
        waited.expect("in time").unwrap().clone()
    };
    // It works at the long queue already, and has all that it can hold.
    let first = many.min(50);
    counts.pass.add_permits(first);
    let before = until(&mut ran, "many", first).await.of("many");
    let begin = rt.mono();
    wind(&node, "few", ground.few, FEW).await;
    counts.pass.add_permits(many - first + FEW);
    let after = until(&mut ran, "few", FEW).await;
    let took = rt.mono() - begin;
    stopper.stop();
    ended.wait_for(|ended| *ended).await.unwrap();
    node.stop().await;
    (after.before_last - before, took)
}

/// Each of the few takes turns with one of the many; what the worker held before they came is on top.
const BOUND: usize = 2 * FEW + 2 * SLOTS;

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_with_many_thousand_does_not_delay_the_ten_of_another() {
    let (overtook, _) = overtaken(store(), 2_000, Ground::one_queue()).await;
    assert!(overtook <= BOUND, "memory: {overtook} of the many before the ten");
    let asked = std::env::var(JOBS).ok().map(|n| n.parse().expect("a number of jobs"));
    let many = asked.unwrap_or(5_000);
    let open = |dir: &tempfile::TempDir| {
        let judge = Judge::new(machines().tables());
        Arc::new(SqliteStore::open(dir.path(), judge, Arc::new(SystemClock), 1).unwrap())
    };
    let (alone, crowded) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (_, alone) = overtaken(open(&alone), 0, Ground::one_queue()).await;
    let (overtook, took) = overtaken(open(&crowded), many, Ground::one_queue()).await;
    println!(
        "the ten took {took:?} behind {many} others, {alone:?} alone; {overtook} others went first"
    );
    assert!(overtook <= BOUND, "SQLite: {overtook} of the many before the ten");
}

/// A worker listens to a queue for every flow, name and set of labels that it has; most of them are empty.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_queue_takes_turns_with_the_first_however_many_names_are_listened_to() {
    let queues = (0..32).map(|i| format!("q{i:02}")).collect();
    let ground = Ground { queues, many: "q00", few: "q01", slots: 1 };
    let (overtook, _) = overtaken(store(), 1_000, ground).await;
    assert!(overtook <= BOUND, "{overtook} of the many before the ten");
}

/// Nobody serves while a tenant's many timers come due, and then one of another. A signal to a blocked job, or a schedule,
/// stands there as this one does.
#[tokio::test(flavor = "multi_thread")]
async fn what_comes_due_behind_a_long_backlog_does_not_wait_for_its_end() {
    let store = store();
    let mut node = quiet_node(store.clone()).await;
    node.stop().await;
    let order = Body::json(&Order { timers: vec![("t".into(), false)], ..Order::default() });
    let due = async |tenant| create(&node.pipeline, &machines(), "clock", tenant, &order).await;
    for _ in 0..5_000 {
        due("many").await.unwrap();
    }
    let few = due("few").await.unwrap();
    let struck = |head: &Head| head.version > 1;
    assert!(!struck(&store.head(few).await.unwrap().unwrap()), "nobody serves");
    let mut node = quiet_node(store.clone()).await;
    let served = until(&*store, few, "it is served", struck).await.changed_at;
    node.stop().await;
    let filter = HeadFilter { tenant: Some("many".into()), ..HeadFilter::default() };
    let heads = store.heads(filter, 5_000).await.unwrap();
    let before = heads.iter().filter(|h| struck(h) && h.changed_at < served).count();
    // A server that holds no lane yet serves what is overdue by two ticks, a round each tick: so it may have begun.
    let bound = 5 * (limits::DUE_BATCH_MAX + limits::DUE_LATEST_MAX);
    assert!(before <= bound, "{before} of the many before it");
}
