//! What happens to the pods of this executor: one list and watch per namespace in which it has any, however many pods.
//!
//! A hint, like every bell: whoever follows a pod here asks the API server itself before it believes that the pod is gone. A
//! pod may leave a watch because somebody took its label away.

use super::cluster::{Cluster, Trouble};
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::core::WatchEvent;
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tenure_kernel::runtime::{First, Rt, first};
use tokio::sync::watch;

/// What was seen of a pod last.
#[derive(Clone, Debug, Default)]
pub enum Seen {
    /// Nothing yet.
    #[default]
    NotYet,
    /// This.
    Here(Arc<Pod>),
    /// It is not among them any more; how it was then, where that is known.
    Gone(Option<Arc<Pod>>),
}

/// How long a watch may say nothing, not even a bookmark, before it counts as dead. Servers send one a minute.
const SILENCE: Duration = Duration::from_secs(150);
/// Everything is listed afresh after so long.
const RELIST: Duration = Duration::from_secs(600);
/// The first pause after trouble; doubles.
const PAUSE: Duration = Duration::from_millis(500);
/// The longest.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Sees pods. Cheap to clone.
#[derive(Clone)]
pub struct Sight(Arc<Inner>);

struct Inner {
    cluster: Arc<dyn Cluster>,
    rt: Rt,
    places: Mutex<BTreeMap<String, Followed>>,
}

/// The pods of a namespace that somebody follows, by name.
type Followed = HashMap<String, watch::Sender<Seen>>;

impl Sight {
    /// Into this cluster.
    pub fn new(cluster: Arc<dyn Cluster>, rt: Rt) -> Self {
        Sight(Arc::new(Inner { cluster, rt, places: Mutex::default() }))
    }

    /// Follows a pod for as long as the receiver lives.
    pub fn follow(&self, namespace: &str, name: &str) -> watch::Receiver<Seen> {
        let mut places = self.0.places();
        let begin = !places.contains_key(namespace);
        let followed = places.entry(namespace.to_owned()).or_default();
        let seen = match followed.get(name) {
            Some(sender) => sender.subscribe(),
            None => {
                let (sender, seen) = watch::channel(Seen::NotYet);
                followed.insert(name.to_owned(), sender);
                seen
            }
        };
        drop(places);
        if begin {
            let (inner, namespace) = (self.0.clone(), namespace.to_owned());
            self.0.rt.spawn(Box::pin(async move { inner.look(&namespace).await }));
        }
        seen
    }
}

impl Inner {
    fn places(&self) -> MutexGuard<'_, BTreeMap<String, Followed>> {
        // Nothing panics while it holds this lock.
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anybody still follows anything there; if not, the place is given up.
    fn wanted(&self, namespace: &str) -> bool {
        let mut places = self.places();
        let Some(followed) = places.get_mut(namespace) else { return false };
        followed.retain(|_, sender| sender.receiver_count() > 0);
        let wanted = !followed.is_empty();
        if !wanted {
            places.remove(namespace);
        }
        wanted
    }

    fn names(&self, namespace: &str) -> HashSet<String> {
        self.places().get(namespace).map(|f| f.keys().cloned().collect()).unwrap_or_default()
    }

    /// Says what was seen of a pod, if anybody follows it.
    fn say(&self, namespace: &str, name: &str, seen: impl FnOnce(&Seen) -> Seen) {
        if let Some(sender) = self.places().get(namespace).and_then(|f| f.get(name)) {
            sender.send_modify(|last| *last = seen(last));
        }
    }

    fn here(&self, namespace: &str, pod: Pod) {
        let name = pod.metadata.name.clone().unwrap_or_default();
        self.say(namespace, &name, |_| Seen::Here(Arc::new(slim(pod))));
    }

    /// Lists and watches until nobody follows anything there.
    async fn look(&self, namespace: &str) {
        let mut pause = PAUSE;
        while self.wanted(namespace) {
            match self.look_once(namespace, &mut pause).await {
                Ok(()) | Err(Trouble::Expired) => {}
                Err(trouble) => {
                    tracing::warn!(%namespace, error = %trouble, "pods can not be watched");
                    let share = f64::from(u32::try_from(self.rt.random() >> 32).unwrap_or(0));
                    let jittered = pause.mul_f64(0.5 + share / f64::from(u32::MAX) / 2.0);
                    let after = match trouble {
                        Trouble::Again { after: Some(after), .. } => after.max(jittered),
                        _ => jittered,
                    };
                    self.rt.sleep(after).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }

    /// One list and the watches from it. Returns when it is time for another list.
    async fn look_once(&self, namespace: &str, pause: &mut Duration) -> Result<(), Trouble> {
        // Who is followed only after the list has begun may be too young for it.
        let known = self.names(namespace);
        let (pods, mut version) = self.within(self.cluster.list(namespace)).await??;
        let listed: HashSet<String> = pods.iter().filter_map(|p| p.metadata.name.clone()).collect();
        pods.into_iter().for_each(|pod| self.here(namespace, pod));
        for gone in known.difference(&listed) {
            self.say(namespace, gone, |last| match last {
                Seen::Here(pod) => Seen::Gone(Some(pod.clone())),
                Seen::Gone(pod) => Seen::Gone(pod.clone()),
                Seen::NotYet => Seen::Gone(None),
            });
        }
        let until = self.rt.mono() + RELIST;
        while self.rt.mono() < until && self.wanted(namespace) {
            let mut events = self.within(self.cluster.watch(namespace, &version)).await??;
            *pause = PAUSE;
            let begun = self.rt.mono();
            let mut told = false;
            loop {
                match first(events.next(), self.rt.sleep(SILENCE)).await {
                    First::Left(Some(event)) => {
                        told = true;
                        self.take(namespace, event?, &mut version);
                    }
                    First::Left(None) => break,
                    First::Right(()) => {
                        tracing::info!(%namespace, "a watch was silent; it is opened anew");
                        break;
                    }
                }
                if !self.wanted(namespace) {
                    return Ok(());
                }
            }
            // One that ends as soon as it is opened is not opened in a circle.
            if !told && self.rt.mono().saturating_sub(begun) < PAUSE {
                self.rt.sleep(PAUSE).await;
            }
        }
        Ok(())
    }

    fn take(&self, namespace: &str, event: WatchEvent<Pod>, version: &mut String) {
        let mut at = |pod: &Pod| {
            if let Some(seen) = &pod.metadata.resource_version {
                version.clone_from(seen);
            }
        };
        match event {
            WatchEvent::Added(pod) | WatchEvent::Modified(pod) => {
                at(&pod);
                self.here(namespace, pod);
            }
            WatchEvent::Deleted(pod) => {
                at(&pod);
                let name = pod.metadata.name.clone().unwrap_or_default();
                // How it ended may be in this object and nowhere else.
                self.say(namespace, &name, |_| Seen::Gone(Some(Arc::new(slim(pod)))));
            }
            WatchEvent::Bookmark(mark) => version.clone_from(&mark.metadata.resource_version),
            WatchEvent::Error(_) => {}
        }
    }

    async fn within<T>(&self, work: impl Future<Output = T>) -> Result<T, Trouble> {
        match first(work, self.rt.sleep(Duration::from_secs(60))).await {
            First::Left(done) => Ok(done),
            First::Right(()) => Err(Trouble::again("timeout", "no answer within a minute")),
        }
    }
}

/// Without the half of the object that nobody reads.
fn slim(mut pod: Pod) -> Pod {
    pod.metadata.managed_fields = None;
    pod
}
