//! What all pods of an executor share.

use super::{
    cluster::{Cluster, Trouble},
    sight::Sight,
};
use crate::verdict::Policy;
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tenure_kernel::runtime::{BoxFuture, Rt};

/// Points at which a drill or a test can interfere.
pub mod points {
    /// Claimed, nothing done yet.
    pub const CLAIMED: &str = "pod_claimed";
    /// The name is on record, the API server is not asked yet.
    pub const BEGUN: &str = "pod_begun";
    /// The pod exists, and that is not on record.
    pub const CREATED: &str = "pod_created";
    /// It is on record that the pod exists.
    pub const MADE: &str = "pod_made";
    /// The reason stands on the pod, which is not deleted yet.
    pub const MARKED: &str = "pod_marked";
    /// The API server has taken the deletion, and nothing is on record about it.
    pub const DELETED: &str = "pod_deleted";
    /// It is on record that the object is taken away by force, and the API server is not asked yet.
    pub const FORCING: &str = "pod_forcing";
    /// All of them.
    pub const ALL: [&str; 7] = [CLAIMED, BEGUN, CREATED, MADE, MARKED, DELETED, FORCING];
}

/// Called with the name of a point; returns when the executor may go on.
pub type Probe = Arc<dyn Fn(&'static str) -> BoxFuture<'static, ()> + Send + Sync>;

/// How long an executor waits for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// An answer of the API server.
    pub request: Duration,
    /// The first pause after trouble; doubles.
    pub pause: Duration,
    /// The longest pause.
    pub pause_max: Duration,
    /// The rest of a log, once the container has ended.
    pub log_end: Duration,
    /// Containers beside the main one, once that has ended, before a pod that should be left is stopped all the same.
    pub linger: Duration,
    /// A request of an executor that died, which may still be on its way to the API server: as long as a request may
    /// take there, and the time in which a dead connection is given up.
    pub late: Duration,
    /// The API server is asked about a pod that no watch shows.
    pub poll: Duration,
    /// Between two looks for pods that nobody knows any more; `None`: nobody looks.
    pub sweep: Option<Duration>,
    /// Between two looks whether the API server is there, where somebody wants to know.
    pub greet: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Patience {
            request: Duration::from_secs(30),
            pause: Duration::from_secs(1),
            pause_max: Duration::from_secs(60),
            log_end: Duration::from_secs(5),
            linger: Duration::from_secs(30),
            late: Duration::from_secs(90),
            poll: Duration::from_secs(15),
            sweep: Some(super::strays::EVERY),
            greet: Duration::from_secs(5),
        }
    }
}

/// What all pods of an executor share.
pub struct PodShop {
    /// Where.
    pub cluster: Arc<dyn Cluster>,
    /// What is seen there.
    pub sight: Sight,
    /// How pods are read.
    pub policy: Policy,
    /// See [`Patience`].
    pub patience: Patience,
    /// What it has done.
    pub counts: Counts,
    /// See [`points`].
    pub probe: Option<Probe>,
}

impl PodShop {
    /// For this cluster.
    pub fn new(cluster: Arc<dyn Cluster>, rt: Rt, policy: Policy) -> Self {
        let sight = Sight::new(cluster.clone(), rt);
        let (patience, counts) = (Patience::default(), Counts::default());
        PodShop { cluster, sight, policy, patience, counts, probe: None }
    }

    /// See [`points`].
    pub fn with_probe(mut self, probe: Probe) -> Self {
        self.probe = Some(probe);
        self
    }

    pub(super) async fn at(&self, point: &'static str) {
        if let Some(probe) = &self.probe {
            probe(point).await;
        }
    }
}

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// More.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// So far.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that goes up and down.
#[derive(Debug, Default)]
pub struct Level(AtomicU64);

impl Level {
    /// It is this now.
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// Now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What an executor has done since it started.
#[derive(Debug, Default)]
pub struct Counts {
    /// Pods made.
    pub created: Count,
    /// Pods found that an earlier executor had made.
    pub adopted: Count,
    /// Pods that the API server, or we, would not have.
    pub refused: Count,
    /// Reports sent to tasks.
    pub reports: Count,
    /// Deletions that the API server took.
    pub deleted: Count,
    /// Objects that were taken away by force.
    pub forced: Count,
    /// Strays that were deleted.
    pub strays: Count,
    /// Pods with our marks whose owner the store does not know, in the last round.
    pub unknown: Level,
    /// Bytes of logs kept.
    pub log_bytes: Count,
    /// Requests that had to be put off, by reason.
    waits: Mutex<BTreeMap<&'static str, u64>>,
    /// Requests that the API server did not do, by class.
    troubles: Mutex<BTreeMap<&'static str, u64>>,
}

impl Counts {
    /// One more request was put off.
    pub fn waited(&self, what: &'static str) {
        // Nothing panics while it holds this lock.
        let mut waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        *waits.entry(what).or_default() += 1;
    }

    /// One more request was answered badly, or not at all.
    pub fn troubled(&self, trouble: &Trouble) {
        let mut troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        *troubles.entry(trouble.class()).or_default() += 1;
    }

    /// How often, by [`Trouble::class`].
    pub fn troubles(&self) -> BTreeMap<&'static str, u64> {
        self.troubles.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How often, by reason: `quota`, `throttled`, `unavailable`, `unconnected`, `unreachable`, `timeout`, `forbidden`,
    /// `unauthorized`, `service_account`, `mark_refused`, `conflict`, `late`.
    pub fn waits(&self) -> BTreeMap<&'static str, u64> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
