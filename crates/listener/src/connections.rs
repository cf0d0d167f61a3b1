//! The connections of a process, and what each waits for.

use crate::limits::{self, Counts, Limits, Met, Overdue, Stage, Standing};
use std::{
    borrow::Borrow,
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    hash::Hash,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tenure_kernel::runtime::Rt;
use tokio::sync::Notify;

/// One connection. It is an extension of every request that comes over it.
pub struct Connection {
    id: u64,
    peer: SocketAddr,
    tls: bool,
    stage: AtomicU8,
    /// Microseconds of the runtime's clock.
    since: AtomicU64,
    /// The same; zero while nothing is blocked.
    blocked: AtomicU64,
    authenticated: AtomicBool,
    /// The tenant that it counts for.
    tenant: Mutex<Option<Arc<str>>>,
    /// Asks the task of the connection to end.
    pub(crate) end: Notify,
    all: Connections,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("id", &self.id).field("peer", &self.peer).finish()
    }
}

impl Connection {
    /// The other end.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Whether it is encrypted.
    pub fn is_tls(&self) -> bool {
        self.tls
    }

    /// Notes that a request on it had a valid key, or needed none: the connection no longer counts as a stranger's, but for this
    /// tenant, or for none. Where the tenant has too many, one of its connections that waits for a request is closed. Whether
    /// there is room.
    #[must_use]
    pub fn authenticated(&self, tenant: Option<&str>) -> bool {
        if self.authenticated.load(Relaxed) && self.tenant().as_deref() == tenant {
            return true;
        }
        self.all.belongs_to(self, tenant)
    }

    fn tenant(&self) -> MutexGuard<'_, Option<Arc<str>>> {
        // Nothing panics under this lock.
        self.tenant.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn stage(&self) -> Stage {
        Stage::from_u8(self.stage.load(Relaxed))
    }

    pub(crate) fn enter(&self, stage: Stage) {
        self.since.store(self.all.now_micros(), Relaxed);
        self.stage.store(stage as u8, Relaxed);
    }

    /// Whether the peer takes what is sent to it.
    pub(crate) fn set_blocked(&self, blocked: bool) {
        if (self.blocked.load(Relaxed) != 0) != blocked {
            let since = if blocked { self.all.now_micros().max(1) } else { 0 };
            self.blocked.store(since, Relaxed);
        }
    }

    fn standing(&self) -> Standing {
        let blocked = self.blocked.load(Relaxed);
        Standing {
            id: self.id,
            address: limits::address(self.peer.ip()),
            stage: self.stage(),
            since: Duration::from_micros(self.since.load(Relaxed)),
            blocked: (blocked != 0).then(|| Duration::from_micros(blocked)),
            authenticated: self.authenticated.load(Relaxed),
        }
    }
}

/// Every connection of a process. Cheap to clone.
#[derive(Clone)]
pub struct Connections(Arc<Inner>);

struct Inner {
    limits: Limits,
    rt: Rt,
    state: Mutex<State>,
    counters: Counters,
}

#[derive(Default)]
struct State {
    next: u64,
    all: BTreeMap<u64, Arc<Connection>>,
    /// Those of `all` on which nobody has shown a key.
    strangers: BTreeMap<u64, Arc<Connection>>,
    of_address: HashMap<IpAddr, usize>,
    of_tenant: HashMap<Arc<str>, usize>,
}

/// One less of a count by name.
fn less<S: Borrow<K> + Hash + Eq, K: Hash + Eq + ?Sized>(counts: &mut HashMap<S, usize>, of: &K) {
    if let Some(count) = counts.get_mut(of) {
        *count -= 1;
        if *count == 0 {
            counts.remove(of);
        }
    }
}

impl State {
    fn remove(&mut self, id: u64) -> Option<Arc<Connection>> {
        let gone = self.all.remove(&id)?;
        self.strangers.remove(&id);
        less(&mut self.of_address, &limits::address(gone.peer.ip()));
        if let Some(tenant) = gone.tenant().take() {
            less(&mut self.of_tenant, &*tenant);
        }
        Some(gone)
    }
}

/// What happened to connections since the start.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    accepted: AtomicU64,
    refused: AtomicU64,
    replaced: AtomicU64,
    header: AtomicU64,
    idle: AtomicU64,
    blocked: AtomicU64,
    pub(crate) accept_errors: AtomicU64,
    pub(crate) handshake_errors: AtomicU64,
}

/// The counters that show an attack or a lack of resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Losses {
    pub(crate) refused: u64,
    pub(crate) replaced: u64,
    pub(crate) timed_out: u64,
}

impl Connections {
    /// No connections yet.
    pub fn new(limits: Limits, rt: Rt) -> Self {
        let (state, counters) = (Mutex::default(), Counters::default());
        Connections(Arc::new(Inner { limits, rt, state, counters }))
    }

    /// What is permitted.
    pub fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.state().all.len()
    }

    pub(crate) fn rt(&self) -> &Rt {
        &self.0.rt
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.0.counters
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics under this lock.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_micros(&self) -> u64 {
        u64::try_from(self.0.rt.mono().as_micros()).unwrap_or(u64::MAX)
    }

    /// Takes a new connection in, and closes another for it where a limit is met. `None`: there is no room.
    pub(crate) fn admit(&self, peer: SocketAddr, tls: bool) -> Option<Arc<Connection>> {
        let address = limits::address(peer.ip());
        let mut state = self.state();
        loop {
            let counts = Counts {
                total: state.all.len(),
                same_address: state.of_address.get(&address).copied().unwrap_or(0),
                unauthenticated: state.strangers.len(),
            };
            let Some(met) = self.0.limits.met(counts) else { break };
            let standing = |c: &Arc<Connection>| c.standing();
            let victim = match met {
                Met::Total => limits::victim(state.all.values().map(standing)),
                Met::Unauthenticated => limits::victim(state.strangers.values().map(standing)),
                Met::Address => {
                    let all = state.all.values().map(standing);
                    limits::victim(all.filter(|c| c.address == address))
                }
            };
            let Some(gone) = victim.and_then(|id| state.remove(id)) else {
                self.0.counters.refused.fetch_add(1, Relaxed);
                return None;
            };
            self.0.counters.replaced.fetch_add(1, Relaxed);
            gone.end.notify_one();
        }
        state.next += 1;
        let connection = Arc::new(Connection {
            id: state.next,
            peer,
            tls,
            stage: AtomicU8::new(Stage::Fresh as u8),
            since: AtomicU64::new(self.now_micros()),
            blocked: AtomicU64::new(0),
            authenticated: AtomicBool::new(false),
            tenant: Mutex::default(),
            end: Notify::new(),
            all: self.clone(),
        });
        state.all.insert(connection.id, connection.clone());
        state.strangers.insert(connection.id, connection.clone());
        *state.of_address.entry(address).or_default() += 1;
        self.0.counters.accepted.fetch_add(1, Relaxed);
        Some(connection)
    }

    fn belongs_to(&self, connection: &Connection, tenant: Option<&str>) -> bool {
        let mut state = self.state();
        // One that was closed meanwhile counts for nobody.
        if !state.all.contains_key(&connection.id) {
            return true;
        }
        let has = tenant.and_then(|tenant| state.of_tenant.get(tenant)).copied().unwrap_or(0);
        if tenant.is_some() && has >= self.0.limits.per_tenant_max {
            let theirs =
                |c: &&Arc<Connection>| c.id != connection.id && c.tenant().as_deref() == tenant;
            let victim = limits::victim(state.all.values().filter(theirs).map(|c| c.standing()));
            let Some(gone) = victim.and_then(|id| state.remove(id)) else {
                self.0.counters.refused.fetch_add(1, Relaxed);
                return false;
            };
            self.0.counters.replaced.fetch_add(1, Relaxed);
            gone.end.notify_one();
        }
        state.strangers.remove(&connection.id);
        connection.authenticated.store(true, Relaxed);
        let tenant: Option<Arc<str>> = tenant.map(Into::into);
        let before = std::mem::replace(&mut *connection.tenant(), tenant.clone());
        if let Some(before) = before {
            less(&mut state.of_tenant, &*before);
        }
        if let Some(tenant) = tenant {
            *state.of_tenant.entry(tenant).or_default() += 1;
        }
        true
    }

    pub(crate) fn remove(&self, connection: &Connection) {
        self.state().remove(connection.id);
    }

    /// Closes a connection that waits for its peer, whatever the limits say. Whether there was one.
    pub(crate) fn make_room(&self) -> bool {
        let mut state = self.state();
        let victim = limits::victim(state.all.values().map(|c| c.standing()));
        let Some(gone) = victim.and_then(|id| state.remove(id)) else { return false };
        self.0.counters.replaced.fetch_add(1, Relaxed);
        gone.end.notify_one();
        true
    }

    /// Closes the connections whose deadline has passed.
    pub(crate) fn sweep(&self) {
        let now = self.0.rt.mono();
        let overdue: Vec<(Arc<Connection>, Overdue)> = {
            let state = self.state();
            let late = |c: &Arc<Connection>| c.standing().overdue(&self.0.limits, now);
            state.all.values().filter_map(|c| Some((c.clone(), late(c)?))).collect()
        };
        for (connection, why) in overdue {
            let counter = match why {
                Overdue::Header => &self.0.counters.header,
                Overdue::Idle => &self.0.counters.idle,
                Overdue::Blocked => &self.0.counters.blocked,
            };
            counter.fetch_add(1, Relaxed);
            self.remove(&connection);
            connection.end.notify_one();
        }
    }

    pub(crate) fn losses(&self) -> Losses {
        let c = &self.0.counters;
        Losses {
            refused: c.refused.load(Relaxed),
            replaced: c.replaced.load(Relaxed),
            // Idle connections end by this all the time.
            timed_out: c.header.load(Relaxed) + c.blocked.load(Relaxed),
        }
    }

    /// The numbers, as Prometheus reads them.
    pub fn numbers(&self) -> String {
        let (all, strangers) = {
            let state = self.state();
            (state.all.len(), state.strangers.len())
        };
        let (c, limits) = (&self.0.counters, &self.0.limits);
        let mut text = String::new();
        let mut write = |name: &str, kind: &str, help: &str, samples: &[(&str, u64)]| {
            // Writing to a string does not fail.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (labels, value) in samples {
                let _ = writeln!(text, "{name}{labels} {value}");
            }
        };
        let wide = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        write(
            "tenure_connections",
            "gauge",
            "Open connections, by whether a request on them had a valid key.",
            &[
                ("{authenticated=\"yes\"}", wide(all - strangers)),
                ("{authenticated=\"no\"}", wide(strangers)),
            ],
        );
        write(
            "tenure_connections_max",
            "gauge",
            "Connections that this process takes at once.",
            &[("", wide(limits.connections_max))],
        );
        write(
            "tenure_connections_accepted_total",
            "counter",
            "Connections that were taken.",
            &[("", c.accepted.load(Relaxed))],
        );
        write(
            "tenure_connections_closed_total",
            "counter",
            "Connections that were closed or refused by a limit or a timeout.",
            &[
                ("{reason=\"refused\"}", c.refused.load(Relaxed)),
                ("{reason=\"replaced\"}", c.replaced.load(Relaxed)),
                ("{reason=\"header_timeout\"}", c.header.load(Relaxed)),
                ("{reason=\"idle_timeout\"}", c.idle.load(Relaxed)),
                ("{reason=\"not_read\"}", c.blocked.load(Relaxed)),
                ("{reason=\"handshake\"}", c.handshake_errors.load(Relaxed)),
            ],
        );
        write(
            "tenure_accept_errors_total",
            "counter",
            "Errors of accept, such as a lack of file descriptors.",
            &[("", c.accept_errors.load(Relaxed))],
        );
        text
    }
}

impl std::fmt::Debug for Connections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connections").field("count", &self.count()).finish()
    }
}
