//! A server over SQLite, a worker over HTTP, and an outside that counts.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};
use tenure_bell::InProcess;
use tenure_edge::{SystemClock, TokioRuntime};
use tenure_engine::checkers::check_everything;
use tenure_engine::{
    birth::create,
    config::EngineConfig,
    lanes::Discard,
    node::{Node, Parts},
    pipeline::Pipeline,
    session::Keeper,
    stop::{Stopper, stopper},
    worker::{Handler, Held, HoldError, Worker},
};
use tenure_kernel::{
    bell::{Bell, Ear, Topic},
    error::StoreError,
    head::Head,
    ids::EntityId,
    judge::Judge,
    machine::{Decision, Machines},
    runtime::{BoxFuture, Rt},
    store::{HeadFilter, Store},
};
use tenure_proving::{
    machines::errand::{self, Errand, Next},
    patience::{self, PATIENCE},
};
use tenure_remote::{RemoteBell, RemoteStore};
use tenure_server::{
    App, ServerOptions,
    keys::{self, NewKey, Scope},
    serve,
};
use tenure_store::sqlite::SqliteStore;
use tokio::{net::TcpListener, sync::watch};

/// The queue of all errands here.
pub const QUEUE: &str = "errands";
/// Errands, the kernel's machines, and keys.
pub fn machines() -> Machines {
    tenure_server::machines(tenure_proving::machines::machines())
}

/// The real runtime.
pub fn rt() -> Rt {
    Arc::new(TokioRuntime::current())
}

/// Long enough that nothing lapses, unless a test wants it to.
pub fn config() -> EngineConfig {
    let counted_events = tenure_server::metrics::COUNTED_EVENTS;
    EngineConfig { counted_events, ..EngineConfig::with_lease(Duration::from_secs(30)) }
}

/// Errands are for workers out there.
pub fn options() -> ServerOptions {
    ServerOptions {
        worker_kinds: vec!["worker".into(), "job".into(), "errand".into()],
        ..ServerOptions::default()
    }
}

/// A server that runs.
pub struct Running {
    /// Where it is.
    pub at: SocketAddr,
    /// The same as a URL.
    pub base: String,
    /// What its handlers share.
    pub app: App,
    /// A key that may do everything for every tenant.
    pub operator: String,
    node: Node,
    stopper: Stopper,
    ended: watch::Receiver<bool>,
}

/// Starts a server over a directory, on a free port.
pub async fn start(dir: &Path) -> Running {
    start_at(dir, SocketAddr::from(([127, 0, 0, 1], 0)), options()).await
}

/// Starts a server that says what is listened to.
pub async fn start_telling(dir: &Path) -> (Running, Listened) {
    let (bell, listened) = Telling::bell();
    let node = node_with(dir, bell, true).await;
    let at = SocketAddr::from(([127, 0, 0, 1], 0));
    (serving(node, at, options()).await, listened)
}

/// Starts a server that judges holders from the start. Others wait for one lease on a new store, because of
/// the time before it nothing is known.
pub async fn start_judging(dir: &Path) -> Running {
    let node = node_with(dir, Arc::new(InProcess::new()), false).await;
    serving(node, SocketAddr::from(([127, 0, 0, 1], 0)), options()).await
}

/// Starts a server.
pub async fn start_at(dir: &Path, at: SocketAddr, options: ServerOptions) -> Running {
    serving(node(dir).await, at, options).await
}

/// Serves over a node.
pub async fn serving(node: Node, at: SocketAddr, options: ServerOptions) -> Running {
    let listener = TcpListener::bind(at).await.unwrap();
    let at = listener.local_addr().unwrap();
    let app = App::new(node.pipeline.clone(), machines(), options);
    let operator = operator_key(&app).await;
    let (stopper, stop) = stopper();
    let (end, ended) = watch::channel(false);
    let serving = app.clone();
    rt().spawn(Box::pin(async move {
        serve(serving, listener, stop).await.unwrap();
        end.send_replace(true);
    }));
    Running { at, base: format!("http://{at}"), app, operator, node, stopper, ended }
}

/// Makes a key that may do everything for every tenant.
pub async fn operator_key(app: &App) -> String {
    let key = NewKey { name: "operator".into(), tenant: None, scopes: Scope::ALL.to_vec() };
    keys::create(app.pipeline(), key).await.unwrap().secret
}

/// The engine below a server.
pub async fn node(dir: &Path) -> Node {
    node_with(dir, Arc::new(InProcess::new()), true).await
}

async fn node_with(dir: &Path, bell: Arc<dyn Bell>, protect_outage: bool) -> Node {
    let parts = Parts {
        store: open(dir).await,
        bell,
        rt: rt(),
        machines: machines(),
        config: config(),
        name: "test".into(),
        executor: None,
        wire: Arc::new(Discard),
        protect_outage,
    };
    Node::start(parts).await.unwrap()
}

/// A server's bell, which says what is listened to: for workers out there the server does that, from their first question on.
pub struct Telling {
    under: InProcess,
    listened: watch::Sender<Vec<Topic>>,
}

/// What has been listened to so far.
pub struct Listened(watch::Receiver<Vec<Topic>>);

impl Telling {
    /// A bell, and what it says.
    pub fn bell() -> (Arc<dyn Bell>, Listened) {
        let (listened, said) = watch::channel(Vec::new());
        (Arc::new(Telling { under: InProcess::new(), listened }), Listened(said))
    }
}

impl Bell for Telling {
    fn ring(&self, topic: Topic) {
        self.under.ring(topic);
    }

    fn listen(&self, topic: Topic) -> Box<dyn Ear> {
        let ear = self.under.listen(topic.clone());
        self.listened.send_modify(|all| all.push(topic));
        ear
    }
}

impl Listened {
    /// Waits until enough is listened to.
    pub async fn until(&self, enough: impl Fn(&[Topic]) -> bool) {
        let mut said = self.0.clone();
        let heard = tokio::time::timeout(PATIENCE, said.wait_for(|all| enough(all))).await;
        heard.expect("somebody who listens").expect("a bell");
    }
}

/// A server that has just stopped may still have the directory.
async fn open(dir: &Path) -> Arc<dyn Store> {
    patience::found("the directory of a server that has stopped", async || {
        let judge = Judge::new(machines().tables());
        match SqliteStore::open(dir, judge, Arc::new(SystemClock), 1) {
            Ok(store) => Ok(Arc::new(store) as Arc<dyn Store>),
            Err(e @ StoreError::InUse { .. }) => Err(e),
            Err(e) => panic!("{e}"),
        }
    })
    .await
}

impl Running {
    /// Stops it, with everything it has.
    pub async fn stop(mut self) {
        self.close().await;
        self.node.stop().await;
    }

    /// Takes no more requests. The engine goes on.
    pub async fn close(&mut self) {
        self.stopper.stop();
        self.ended.wait_for(|ended| *ended).await.unwrap();
    }

    /// What is behind it.
    pub fn store(&self) -> &Arc<dyn Store> {
        self.app.pipeline().store()
    }

    /// Makes an errand.
    pub async fn errand(&self, tenant: &str) -> EntityId {
        self.urgent_errand(tenant, 0).await
    }

    /// One of this priority.
    pub async fn urgent_errand(&self, tenant: &str, priority: i16) -> EntityId {
        let order = errand::order(QUEUE, priority);
        create(self.app.pipeline(), &machines(), "errand", tenant, &order).await.unwrap()
    }

    /// Makes a key.
    pub async fn key(&self, tenant: Option<&str>, scopes: &[Scope]) -> String {
        let (name, tenant, scopes) = ("test".into(), tenant.map(str::to_owned), scopes.to_vec());
        let key = NewKey { name, tenant, scopes };
        keys::create(self.app.pipeline(), key).await.unwrap().secret
    }

    /// A store that knows only the address and a key: the operator's if none is given.
    pub fn remote(&self, key: Option<&str>) -> RemoteStore {
        let key = key.unwrap_or(&self.operator);
        RemoteStore::new(&self.base, Some(key), machines().tables()).unwrap()
    }

    /// A pipeline of another process, with the operator's key if none is given.
    pub fn remote_pipeline(&self, key: Option<&str>) -> Pipeline {
        pipeline_to(&self.base, key.unwrap_or(&self.operator))
    }

    /// Waits until a head is as it should be.
    pub async fn until(&self, id: EntityId, what: &str, done: impl Fn(&Head) -> bool) -> Head {
        patience::found(what, async || {
            let head = self.store().head(id).await.unwrap();
            head.clone().filter(|h| done(h)).ok_or(head)
        })
        .await
    }

    /// Waits until every errand is done.
    pub async fn until_all_done(&self) {
        let filter = HeadFilter { kind: Some("errand".into()), ..HeadFilter::default() };
        for head in self.store().heads(filter, 1_000).await.unwrap() {
            self.until(head.id, "done", |h| h.status.name() == "done").await;
        }
    }
}

/// A pipeline to an address.
pub fn pipeline_to(base: &str, key: &str) -> Pipeline {
    let store = RemoteStore::new(base, Some(key), machines().tables()).unwrap();
    let bell = RemoteBell::new(base, Some(key), rt()).unwrap();
    Pipeline::new(Arc::new(store), Arc::new(bell), rt(), &config())
}

/// Counts calls by key.
#[derive(Clone, Default)]
pub struct Outside(Arc<Mutex<BTreeMap<String, u32>>>, Duration);

impl Outside {
    /// One whose calls take a while.
    pub fn slow(pause: Duration) -> Self {
        Outside(Arc::default(), pause)
    }

    async fn call(&self, key: &str) {
        *self.0.lock().unwrap().entry(key.to_owned()).or_default() += 1;
        rt().sleep(self.1).await;
    }

    /// How often each key was called.
    pub fn calls(&self) -> BTreeMap<String, u32> {
        self.0.lock().unwrap().clone()
    }
}

impl Handler for Outside {
    fn run(&self, mut held: Held) -> BoxFuture<'static, Held> {
        let outside = self.clone();
        Box::pin(async move {
            if let Err(e) = work(&mut held, &outside).await {
                tracing::info!(error = %e, "gave up an errand");
            }
            held
        })
    }
}

async fn work(held: &mut Held, outside: &Outside) -> Result<(), HoldError> {
    loop {
        let next = errand::next(&held.state::<Errand>()?, held.id());
        match &next {
            Next::Call { step, call, key } => {
                held.record::<Errand>(Decision::event(errand::begin(&next)), &[]).await?;
                if !held.may_act() {
                    return Err(HoldError::Lost);
                }
                outside.call(key).await;
                let done = errand::Event::StepDone { step: *step, call: *call };
                held.record::<Errand>(Decision::event(done), &[]).await?;
            }
            Next::Finish => {
                let mail = match held.unread().await {
                    // Reads are not tried again below: a server that restarts is the worker's to sit out.
                    Err(HoldError::Store(e)) if e.is_transient() && held.may_act() => {
                        rt().sleep(Duration::from_millis(50)).await;
                        continue;
                    }
                    mail => mail?,
                };
                match held.record::<Errand>(Decision::event(errand::begin(&next)), &mail).await {
                    Err(HoldError::MoreMail) => {}
                    result => return result.map(|_| ()),
                }
            }
        }
    }
}

/// A worker that runs.
pub struct Working {
    /// Its session.
    pub keeper: Keeper,
    worker: Stopper,
    session: Stopper,
    left: watch::Receiver<usize>,
}

/// Starts a worker over a pipeline, as its own process would.
pub async fn work_over(pipeline: Pipeline, slots: usize, outside: &Outside) -> Working {
    work_with(config(), pipeline, slots, outside).await
}

/// The same, with another lease.
pub async fn work_with(
    config: EngineConfig,
    pipeline: Pipeline,
    slots: usize,
    outside: &Outside,
) -> Working {
    let config = Arc::new(config);
    let keeper = Keeper::open(pipeline, config, "elsewhere", "worker", None).await.unwrap();
    let running = Worker::new(keeper.clone(), vec![QUEUE.into()], slots, Arc::new(outside.clone()));
    let (worker, worker_stop) = stopper();
    let (session, session_stop) = stopper();
    let (count, left) = watch::channel(2);
    let (renewing, count) = (keeper.clone(), Arc::new(count));
    let done = count.clone();
    rt().spawn(Box::pin(async move {
        renewing.run(session_stop).await;
        done.send_modify(|n| *n -= 1);
    }));
    rt().spawn(Box::pin(async move {
        running.run(worker_stop).await;
        count.send_modify(|n| *n -= 1);
    }));
    Working { keeper, worker, session, left }
}

impl Working {
    /// Lets it end.
    pub async fn stop(mut self) {
        self.worker.stop();
        self.left.wait_for(|n| *n <= 1).await.unwrap();
        self.session.stop();
        self.left.wait_for(|n| *n == 0).await.unwrap();
    }
}

/// Every chain, head and rule of the store. A server that still writes (the audit trail, say) can do so between the look at a head
/// and the look at its history: what is wrong stays wrong.
pub async fn sound(server: &Running) {
    patience::found("a sound store", async || {
        let found = check_everything(&**server.store(), &machines(), &machines().tables()).await;
        if found.is_empty() { Ok(()) } else { Err(found) }
    })
    .await;
}
