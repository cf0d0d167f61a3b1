//! What happens to the pods of this executor: one list and watch per namespace in which it has any, however many pods.
//!
//! A hint, like every bell: whoever follows a pod here asks the API server itself before it believes that the pod is gone. A
//! pod may leave a watch because somebody took its label away.

use super::cluster::{Cluster, Trouble};
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::core::WatchEvent;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
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
    /// A watch showed it go, as it was then.
    Gone(Arc<Pod>),
    /// It is not among them any more; how it was when it was last seen, where that is known.
    Missing(Option<Arc<Pod>>),
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

impl Sight {
    /// Where somebody follows pods.
    pub fn namespaces(&self) -> BTreeSet<String> {
        self.0.places().keys().cloned().collect()
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
        let (mut pause, mut listed_for_expiry) = (PAUSE, false);
        while self.wanted(namespace) {
            let mut told = false;
            let looked = self.look_once(namespace, &mut told).await;
            if told {
                (pause, listed_for_expiry) = (PAUSE, false);
            }
            match looked {
                // Not to be asked again here: somebody else may look by now.
                Ok(false) => return,
                Ok(true) => {}
                // A list helps at once; if it did not, another one would not either.
                Err(Trouble::Expired) if !listed_for_expiry => listed_for_expiry = true,
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

    /// One list and the watches from it. Returns when it is time for another list, or with `false` when nobody follows a pod
    /// there any more. `told`: a watch has said something.
    async fn look_once(&self, namespace: &str, told: &mut bool) -> Result<bool, Trouble> {
        // Who is followed only after the list has begun may be too young for it.
        let known = self.names(namespace);
        let (pods, mut version) = self.within(self.cluster.list(namespace)).await??;
        let listed: HashSet<String> = pods.iter().filter_map(|p| p.metadata.name.clone()).collect();
        pods.into_iter().for_each(|pod| self.here(namespace, pod));
        for gone in known.difference(&listed) {
            self.say(namespace, gone, |last| match last {
                Seen::Here(pod) => Seen::Missing(Some(pod.clone())),
                Seen::NotYet => Seen::Missing(None),
                known => known.clone(),
            });
        }
        let until = self.rt.mono() + RELIST;
        while self.rt.mono() < until {
            if !self.wanted(namespace) {
                return Ok(false);
            }
            let mut events = self.within(self.cluster.watch(namespace, &version)).await??;
            let begun = self.rt.mono();
            let mut heard = false;
            loop {
                match first(events.next(), self.rt.sleep(SILENCE)).await {
                    First::Left(Some(event)) => {
                        self.take(namespace, event?, &mut version);
                        (*told, heard) = (true, true);
                    }
                    First::Left(None) => break,
                    First::Right(()) => {
                        tracing::info!(%namespace, "a watch was silent; it is opened anew");
                        break;
                    }
                }
                if !self.wanted(namespace) {
                    return Ok(false);
                }
            }
            // One that ends as soon as it is opened is not opened in a circle.
            if !heard && self.rt.mono().saturating_sub(begun) < PAUSE {
                self.rt.sleep(PAUSE).await;
            }
        }
        Ok(true)
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
                self.say(namespace, &name, |_| Seen::Gone(Arc::new(slim(pod))));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        execute::cluster::{Created, Delete, LogAsk, LogBytes, PodEvents},
        pod::Begun,
    };
    use futures_util::{FutureExt as _, stream};
    use std::sync::atomic::{AtomicU64, Ordering};
    use tenure_kernel::runtime::{BoxFuture, Runtime};

    /// A world that stands still wherever somebody waits for time.
    struct Still;

    impl Runtime for Still {
        fn mono(&self) -> Duration {
            Duration::ZERO
        }

        fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
            Box::pin(std::future::pending())
        }

        fn spawn(&self, _: BoxFuture<'static, ()>) {}

        fn random(&self) -> u64 {
            0
        }
    }

    /// A cluster in which every version is too old.
    #[derive(Default)]
    struct Storm {
        lists: AtomicU64,
    }

    impl Cluster for Storm {
        fn default_namespace(&self) -> &str {
            "default"
        }

        fn get<'a>(&'a self, _: &'a Begun) -> BoxFuture<'a, Result<Option<Pod>, Trouble>> {
            Box::pin(async { Ok(None) })
        }

        fn create(&self, _: Pod) -> BoxFuture<'_, Result<Created, Trouble>> {
            Box::pin(async { Err(Trouble::Missing) })
        }

        fn annotate<'a>(
            &'a self,
            _: &'a Begun,
            _: &'a str,
            _: &'a str,
            _: &'a str,
        ) -> BoxFuture<'a, Result<(), Trouble>> {
            Box::pin(async { Err(Trouble::Missing) })
        }

        fn delete<'a>(
            &'a self,
            _: &'a Begun,
            _: &'a str,
            _: Delete,
        ) -> BoxFuture<'a, Result<(), Trouble>> {
            Box::pin(async { Err(Trouble::Missing) })
        }

        fn log<'a>(&'a self, _: &'a Begun, _: LogAsk) -> BoxFuture<'a, Result<LogBytes, Trouble>> {
            Box::pin(async { Err(Trouble::Missing) })
        }

        fn list<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<(Vec<Pod>, String), Trouble>> {
            self.lists.fetch_add(1, Ordering::Relaxed);
            Box::pin(async { Ok((Vec::new(), "7".to_owned())) })
        }

        fn watch<'a>(
            &'a self,
            _: &'a str,
            _: &'a str,
        ) -> BoxFuture<'a, Result<PodEvents, Trouble>> {
            Box::pin(async { Ok(stream::iter([Err(Trouble::Expired)]).boxed()) })
        }
    }

    #[test]
    fn a_version_that_expires_again_and_again_is_not_listed_for_in_a_circle() {
        let storm = Arc::new(Storm::default());
        let sight = Sight::new(storm.clone(), Arc::new(Still));
        let _seen = sight.follow("work", "a");
        // It stands still at its first pause: after two lists, not after a thousand.
        assert!(sight.0.look("work").now_or_never().is_none());
        assert_eq!(storm.lists.load(Ordering::Relaxed), 2);
    }
}
