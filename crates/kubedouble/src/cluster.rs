//! The handle that a test holds, and the thread that serves.
//!
//! The server has a thread and a runtime of its own, so that every call here is an ordinary function, good
//! in tests with any runtime and with none, and so that what a benchmark measures is not the double.

use crate::{
    access::{Access, Tls},
    faults::{Distortion, Fault, FaultId, On, Times},
    http,
    kubelet::{OnDelete, key},
    object::Object,
    requests::{Permission, Request},
    resource::{ALL, PODS, Resource},
    security::PodSecurity,
    status::Refusal,
    store::Store,
    watch::{OpenWatch, Order},
};
use bytes::Bytes;
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::Duration,
};
use tokio::{net::TcpListener, sync::watch};

type Hook = Arc<dyn Fn(&Cluster, &str) + Send + Sync>;

/// What the server's tasks and the test share.
pub(crate) struct Shared {
    store: Mutex<Store>,
    access: Mutex<Access>,
    hook: Mutex<Option<Hook>>,
    /// Beats after every change of anything.
    pub(crate) pulse: watch::Sender<u64>,
    /// The same, for those who wait without a runtime.
    beaten: (Mutex<u64>, Condvar),
    gate: watch::Sender<Gate>,
    address: SocketAddr,
    tls: Option<Tls>,
}

/// What the accepting task is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gate {
    open: bool,
    /// Whether a listener is there; the task's own word.
    listening: bool,
    /// Changes when all connections are to be cut.
    cuts: u64,
    over: bool,
}

impl Shared {
    fn at(address: SocketAddr, tls: Option<Tls>) -> Self {
        let gate = Gate { open: true, listening: true, cuts: 0, over: false };
        Shared {
            store: Mutex::new(Store::new()),
            access: Mutex::new(Access::default()),
            hook: Mutex::new(None),
            pulse: watch::Sender::new(0),
            beaten: (Mutex::new(0), Condvar::new()),
            gate: watch::Sender::new(gate),
            address,
            tls,
        }
    }

    pub(crate) fn store(&self) -> MutexGuard<'_, Store> {
        // A test that panics must not hide its message behind another one.
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn access(&self) -> MutexGuard<'_, Access> {
        self.access.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn on_create(&self) -> Option<Hook> {
        self.hook.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn beat(&self) {
        self.pulse.send_modify(|n| *n += 1);
        *self.beaten.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.beaten.1.notify_all();
    }

    pub(crate) fn write<T>(&self, change: impl FnOnce(&mut Store) -> T) -> T {
        let done = change(&mut self.store());
        self.beat();
        done
    }

    fn tell_gate(&self, change: impl FnOnce(&mut Gate)) {
        self.gate.send_modify(change);
        self.beat();
    }
}

/// A cluster. Clones are handles of the same one; when the last is dropped the server ends.
#[derive(Clone)]
pub struct Cluster {
    shared: Arc<Shared>,
    /// Nobody's in a hook, which runs on the server's own thread.
    _owner: Option<Arc<Owner>>,
}

struct Owner {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.tell_gate(|g| g.over = true);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // What it panicked with, it printed.
            let _ = thread.join();
        }
    }
}

/// One change of an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Past {
    /// The version that it made.
    pub version: u64,
    /// What the object was; nothing if it is new.
    pub before: Option<Value>,
    /// What it became; nothing if it is gone.
    pub after: Option<Value>,
}

/// How long the functions that wait will wait. Nothing takes a tenth of it on a machine that works.
pub const PATIENCE: Duration = Duration::from_secs(30);

impl Cluster {
    /// Starts an empty cluster on a free loopback port, in plain HTTP.
    pub fn start() -> Self {
        Self::start_with(None)
    }

    /// Starts one that speaks TLS, with a certificate authority of its own.
    pub fn start_tls() -> Self {
        Self::start_with(Some(Tls::make()))
    }

    /// One without a server: no port and no thread, only what can be asked by calling functions. Its clock stands at
    /// 1970 until it is set.
    pub fn unserved() -> Self {
        let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let cluster = Cluster { shared: Arc::new(Shared::at(nowhere, None)), _owner: None };
        cluster.stop_clock_at(0);
        cluster
    }

    fn start_with(tls: Option<Tls>) -> Self {
        let first = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = first.local_addr().expect("the address of a listener");
        let shared = Arc::new(Shared::at(address, tls));
        let serving = shared.clone();
        let thread = std::thread::Builder::new()
            .name("kubedouble".to_owned())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .expect("a runtime");
                runtime.block_on(accept(serving, first));
            })
            .expect("a thread");
        let owner = Owner { shared: shared.clone(), thread: Mutex::new(Some(thread)) };
        Cluster { shared, _owner: Some(Arc::new(owner)) }
    }

    /// A handle that does not keep the server alive.
    pub(crate) fn guest(shared: &Arc<Shared>) -> Self {
        Cluster { shared: shared.clone(), _owner: None }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// `http://127.0.0.1:PORT`, or `https`.
    pub fn url(&self) -> String {
        let scheme = if self.shared.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.shared.address)
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.shared.address.port()
    }

    /// The certificate authority, if it speaks TLS.
    pub fn authority_pem(&self) -> Option<&str> {
        self.shared.tls.as_ref().map(|t| t.authority_pem.as_str())
    }

    pub(crate) fn must_get<T>(&self, change: impl FnOnce(&mut Store) -> Result<T, Refusal>) -> T {
        self.shared.write(change).unwrap_or_else(|refusal| panic!("{}", refusal.message))
    }

    pub(crate) fn must(&self, change: impl FnOnce(&mut Store) -> Result<(), Refusal>) -> u64 {
        self.must_get(change);
        self.version()
    }
}

/// Objects, past HTTP.
impl Cluster {
    /// The resource version of the cluster.
    pub fn version(&self) -> u64 {
        self.shared.store().version()
    }

    /// Creates a pod, with the defaults and checks of a request; returns `namespace/name`.
    ///
    /// # Panics
    /// If the server would refuse it.
    pub fn add_pod(&self, pod: Value) -> String {
        let namespace = pod["metadata"]["namespace"].as_str().unwrap_or("default").to_owned();
        let made = self.must_get(|store| store.create(&PODS, &namespace, pod));
        format!("{namespace}/{}", made.text("/metadata/name"))
    }

    /// Creates a pod with one container `main` that is not restarted, and these labels; returns `namespace/name`.
    pub fn add_task(&self, name: &str, labels: &[(&str, &str)]) -> String {
        let (namespace, name) = key(name);
        let labels: serde_json::Map<String, Value> =
            labels.iter().map(|(k, v)| ((*k).to_owned(), json!(v))).collect();
        self.add_pod(json!({
            "metadata": {"name": name, "namespace": namespace, "labels": labels},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "work:1"}]},
        }))
    }

    /// The pod as it is; nothing if there is none.
    pub fn pod(&self, pod: &str) -> Option<Value> {
        self.object("pods", pod)
    }

    /// Any object as it is: `object("leases", "default/leader")`, `object("nodes", "/node-1")`.
    ///
    /// # Panics
    /// If such a resource is not served.
    pub fn object(&self, resource: &str, name: &str) -> Option<Value> {
        let resource = resource_named(resource);
        let mut key = key(name);
        if !resource.namespaced {
            key.0.clear();
        }
        self.shared.store().get(resource, &key).map(|o| o.value())
    }

    /// All objects of a kind as they are.
    ///
    /// # Panics
    /// If such a resource is not served.
    pub fn objects(&self, resource: &str) -> Vec<Value> {
        self.shared.store().all(resource_named(resource)).map(|o: &Arc<Object>| o.value()).collect()
    }

    /// What became of the objects of a kind, oldest first, as far as it is remembered: the double's own word, whatever its clients
    /// were told.
    ///
    /// # Panics
    /// If such a resource is not served.
    pub fn past(&self, resource: &str) -> Vec<Past> {
        let resource = resource_named(resource);
        let store = self.shared.store();
        let value = |o: &Option<Arc<Object>>| o.as_ref().map(|o| o.value());
        let changes = store.since(store.expired).into_iter().flatten();
        let past = changes.filter(|c| c.resource == resource).map(|c| Past {
            version: c.version,
            before: value(&c.before),
            after: value(&c.after),
        });
        past.collect()
    }

    /// Runs after each pod that is created by a request, with `namespace/name`, before the answer is sent: a scheduler
    /// and kubelet of the test's own.
    pub fn on_create(&self, hook: impl Fn(&Cluster, &str) + Send + Sync + 'static) {
        *self.shared.hook.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(hook));
    }

    /// What kubelets do when a pod is deleted. At first they end it at once, with code 143.
    pub fn on_delete(&self, manner: OnDelete) {
        self.shared.write(|store| store.manner.on_delete = manner);
    }

    /// Holds pods that are created by a request in this namespace to the level `restricted` of the Pod Security Standards.
    pub fn pod_security(&self, namespace: &str, mode: PodSecurity) {
        self.shared.write(|store| store.manner.security.insert(namespace.to_owned(), mode));
    }

    /// A line of a container's log.
    pub fn log(&self, pod: &str, container: &str, line: &str) {
        self.shared.write(|store| {
            let now = store.clock.now();
            store.logs.feed(&key(pod), container, now, Bytes::from(format!("{line}\n")));
        });
    }

    /// Bytes of a container's log that are no line, or not yet.
    pub fn log_bytes(&self, pod: &str, container: &str, bytes: &[u8]) {
        self.shared.write(|store| {
            let now = store.clock.now();
            store.logs.feed(&key(pod), container, now, Bytes::copy_from_slice(bytes));
        });
    }

    /// Stops the cluster's clock at these seconds since 1970.
    pub fn stop_clock_at(&self, seconds: i64) {
        let at = jiff::Timestamp::from_second(seconds).expect("a time of this age");
        self.shared.write(|store| store.clock.stop_at(at));
    }

    /// Sets the cluster's clock forward.
    pub fn advance_clock(&self, by: Duration) {
        self.shared.write(|store| store.clock.advance(by));
    }

    /// How many changes are remembered (50,000 at first). Older versions have expired.
    pub fn remember(&self, changes: usize) {
        self.shared.write(|store| store.history_limit = changes);
    }
}

fn resource_named(name: &str) -> &'static Resource {
    let found = ALL.into_iter().find(|r| r.plural == name);
    found.unwrap_or_else(|| panic!("{name} are not served"))
}

/// What was asked, and who listens.
impl Cluster {
    /// All requests since the start, or since they were forgotten.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.store().requests.all().to_vec()
    }

    /// Forgets the requests so far.
    pub fn forget_requests(&self) {
        self.shared.write(|store| store.requests.forget());
    }

    /// The permissions that these requests needed: (API group, resource, verb).
    pub fn permissions_used(&self) -> BTreeSet<Permission> {
        self.shared.store().requests.permissions()
    }

    /// The watches that are open.
    pub fn watches(&self) -> Vec<OpenWatch> {
        self.shared.store().watches.open()
    }

    /// Waits until something is so.
    ///
    /// # Panics
    /// If it is not within [`PATIENCE`].
    pub async fn until(&self, what: &str, mut so: impl FnMut(&Cluster) -> bool) {
        let mut pulse = self.shared.pulse.subscribe();
        let waiting = async {
            loop {
                pulse.mark_unchanged();
                if so(self) {
                    return;
                }
                if pulse.changed().await.is_err() {
                    return;
                }
            }
        };
        if tokio::time::timeout(PATIENCE, waiting).await.is_err() {
            panic!("waited in vain until {what}; requests: {:#?}", self.last_requests());
        }
    }

    /// The same, for tests without a runtime.
    ///
    /// # Panics
    /// If it is not within [`PATIENCE`].
    pub fn until_blocking(&self, what: &str, mut so: impl FnMut(&Cluster) -> bool) {
        let (count, beaten) = &self.shared.beaten;
        let mut seen = *count.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if so(self) {
                return;
            }
            let guard = count.lock().unwrap_or_else(PoisonError::into_inner);
            let (guard, late) = beaten
                .wait_timeout_while(guard, PATIENCE, |now| *now == seen)
                .unwrap_or_else(PoisonError::into_inner);
            seen = *guard;
            drop(guard);
            if late.timed_out() {
                panic!("waited in vain until {what}; requests: {:#?}", self.last_requests());
            }
        }
    }

    fn last_requests(&self) -> Vec<String> {
        let all = self.requests();
        let last = all.iter().rev().take(20).rev();
        last.map(|r| format!("{} {} {:?} -> {:?}", r.verb, r.path, r.query, r.code)).collect()
    }
}

/// Rules.
impl Cluster {
    /// From now on a request needs this bearer token, or another one that was required.
    pub fn require_token(&self, token: &str) {
        self.shared.access().tokens.get_or_insert_default().insert(token.to_owned());
    }

    /// A token is not good any more.
    pub fn revoke_token(&self, token: &str) {
        self.shared.access().tokens.get_or_insert_default().remove(token);
    }

    /// Takes away a right: verb and resource (`pods/log`), each may be `*`.
    pub fn forbid(&self, verb: &str, resource: &str) {
        self.shared.access().forbidden.insert((verb.to_owned(), resource.to_owned()));
    }

    /// Takes away the right to do so in all namespaces at once, as who has a Role and no ClusterRole.
    pub fn forbid_everywhere(&self, verb: &str, resource: &str) {
        let taken = (verb.to_owned(), resource.to_owned());
        self.shared.access().forbidden_everywhere.insert(taken);
    }

    /// Gives it back.
    pub fn allow(&self, verb: &str, resource: &str) {
        self.shared.access().forbidden.remove(&(verb.to_owned(), resource.to_owned()));
    }

    /// Nothing but these permissions: (API group, resource, verb), as in a role. `*` for any.
    pub fn allow_only(&self, permissions: impl IntoIterator<Item = Permission>) {
        self.shared.access().only = Some(permissions.into_iter().collect());
    }

    /// Whether a disruption budget stands in the way of evictions through the API.
    pub fn block_evictions(&self, blocked: bool) {
        self.shared.write(|store| store.manner.evictions_blocked = blocked);
    }

    /// How often watches that asked for bookmarks get one: every minute at first.
    pub fn bookmarks_every(&self, period: Duration) {
        self.shared.write(|store| store.watches.bookmark_period = period);
    }

    /// Whether a watch may begin with a list (`sendInitialEvents`). At first it may not, as with an old etcd.
    pub fn streaming_lists(&self, on: bool) {
        self.shared.write(|store| store.watches.streaming_lists = on);
    }
}

/// Faults.
impl Cluster {
    /// A fault for requests to come.
    pub fn fault(&self, on: On, fault: Fault, times: Times) -> FaultId {
        self.shared.write(|store| store.faults.add(on, fault, times))
    }

    /// Ends a fault.
    pub fn clear_fault(&self, id: FaultId) {
        self.shared.write(|store| store.faults.clear(id));
    }

    /// Ends all faults, also silence, storm, frost and distortion. A server that is away stays away.
    pub fn clear_faults(&self) {
        self.shared.write(|store| store.faults.clear_all());
    }

    /// The server goes away: the port is closed and all connections are cut. Returns when it is so.
    pub fn stop_server(&self) {
        self.shared.tell_gate(|g| {
            g.open = false;
            g.cuts += 1;
        });
        self.until_blocking("the port is closed", |c| !c.shared.gate.borrow().listening);
    }

    /// The server comes back, on the same port, with the same objects. Returns when it listens.
    pub fn start_server(&self) {
        self.shared.tell_gate(|g| g.open = true);
        self.until_blocking("the port is open", |c| c.shared.gate.borrow().listening);
    }

    /// All connections are cut, as by a load balancer.
    pub fn cut_connections(&self) {
        self.shared.tell_gate(|g| g.cuts += 1);
    }

    /// While it is frozen, the server takes connections and requests, and answers nothing. Open watches are not
    /// touched: see [`Cluster::silence_watches`].
    pub fn freeze(&self, frozen: bool) {
        self.shared.write(|store| store.faults.frozen = frozen);
    }

    /// While they are silent, all watches stay open and say nothing: no events, no bookmarks, no end. Afterwards
    /// they go on where they were.
    pub fn silence_watches(&self, silent: bool) {
        self.shared.write(|store| store.faults.silent = silent);
    }

    /// Every open watch says that its version has expired, and ends.
    pub fn expire_watches(&self) {
        let version = self.version();
        self.fail_watches(Refusal::too_old(version.saturating_sub(1), version));
    }

    /// Every open watch says this, and ends.
    pub fn fail_watches(&self, refusal: Refusal) {
        self.order(&Order::Error(refusal));
    }

    /// While there is a storm, every watch, also each new one, says that its version has expired.
    pub fn storm_of_410(&self, on: bool) {
        self.shared.write(|store| {
            let version = store.version();
            store.faults.storm = on.then(|| Refusal::too_old(version.saturating_sub(1), version));
        });
    }

    /// All watches end, in order, as if their time were over.
    pub fn end_watches(&self) {
        self.order(&Order::End);
    }

    /// All watches break off.
    pub fn cut_watches(&self) {
        self.order(&Order::Cut);
    }

    /// All watches break off in the middle of their next line.
    pub fn cut_watches_in_line(&self) {
        self.order(&Order::CutInLine);
    }

    /// All watches that asked for bookmarks get one now.
    pub fn bookmark_now(&self) {
        self.order(&Order::Bookmark);
    }

    /// All watches say this line, whatever it is. The line break is added.
    pub fn say_on_watches(&self, line: &str) {
        self.order(&Order::Raw(Bytes::from(format!("{line}\n"))));
    }

    fn order(&self, order: &Order) {
        self.shared.write(|store| store.watches.order_all(order));
    }

    /// Doubles and turns around the events of all watches.
    pub fn distort_watches(&self, distortion: Distortion) {
        self.shared.write(|store| store.faults.distortion = distortion);
    }

    /// All open log streams break off.
    pub fn cut_logs(&self) {
        self.shared.write(|store| store.logs.cuts += 1);
    }

    /// Versions before this one have expired.
    pub fn expire_before(&self, version: u64) {
        self.shared.write(|store| store.expire_before(version));
    }

    /// Versions go by without a change of an object: something else was written.
    pub fn skip_versions(&self, by: u64) {
        self.shared.write(|store| store.skip_versions(by));
    }
}

async fn accept(shared: Arc<Shared>, first: std::net::TcpListener) {
    first.set_nonblocking(true).expect("a listener of our own");
    let mut listener = Some(TcpListener::from_std(first).expect("a listener of our own"));
    let mut gate = shared.gate.subscribe();
    loop {
        let now = *gate.borrow_and_update();
        if now.over {
            return;
        }
        match (now.open, listener.is_some()) {
            (false, true) => {
                listener = None;
                shared.tell_gate(|g| g.listening = false);
                continue;
            }
            (true, false) => {
                match TcpListener::bind(shared.address).await {
                    Ok(new) => {
                        listener = Some(new);
                        shared.tell_gate(|g| g.listening = true);
                    }
                    // Somebody else has the port for a moment, as the end of an outgoing connection.
                    Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                }
                continue;
            }
            _ => {}
        }
        let Some(open) = &listener else {
            if gate.changed().await.is_err() {
                return;
            }
            continue;
        };
        tokio::select! {
            _ = gate.changed() => {}
            accepted = open.accept() => if let Ok((stream, _)) = accepted {
                // Small lines, each wanted at once.
                let _ = stream.set_nodelay(true);
                tokio::runtime::Handle::current().spawn(serve(shared.clone(), stream));
            },
        }
    }
}

async fn serve(shared: Arc<Shared>, stream: tokio::net::TcpStream) {
    let mut gate = shared.gate.subscribe();
    let cuts = gate.borrow_and_update().cuts;
    let service = {
        let shared = shared.clone();
        service_fn(move |request| http::answer(shared.clone(), request))
    };
    let connection = async {
        let mut server = http1::Builder::new();
        server.header_read_timeout(None);
        match &shared.tls {
            Some(tls) => {
                let Ok(stream) = tls.acceptor.accept(stream).await else { return };
                let _ = server.serve_connection(TokioIo::new(stream), service).await;
            }
            None => {
                let _ = server.serve_connection(TokioIo::new(stream), service).await;
            }
        }
    };
    let cut = async {
        while gate.changed().await.is_ok() {
            if gate.borrow().cuts != cuts {
                return;
            }
        }
    };
    // Dropping the connection closes it, whatever it is in the middle of.
    tokio::select! { () = connection => {}, () = cut => {} }
}
