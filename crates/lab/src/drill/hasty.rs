//! Parts of collectors, executors and servers with a protection off, for drills: a sink that says too early that it has told, a cluster in
//! which nothing is found that this process has not made, and a store that takes every report for one about the pod of now.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tenure_kernel::{
    error::StoreError,
    machine::decode_state,
    runtime::{BoxFuture, Rt},
    store::{Answer, Op, Store},
    stream::Body,
};
use tenure_pods::{
    collect::{Owed, Sent, Sink, SinkId},
    execute::cluster::{Cluster, Created, Delete, LogAsk, LogBytes, PodEvents, Trouble},
    k8s_openapi::api::core::v1::Pod,
    pod::Begun,
    report::{POD_REPORT, Report},
    task::Task,
};
use tenure_proving::layer::Layer;

/// How long something is said to be told and is not. Long enough for a drill to kill the process meanwhile.
const LATER: Duration = Duration::from_secs(1);

/// Says that everything is told, and tells it a little later.
pub struct Hasty {
    inner: Arc<dyn Sink>,
    rt: Rt,
}

impl Hasty {
    /// Over this sink.
    pub fn over(inner: Arc<dyn Sink>, rt: Rt) -> Self {
        Hasty { inner, rt }
    }
}

impl Sink for Hasty {
    fn id(&self) -> SinkId {
        self.inner.id()
    }

    fn batch(&self) -> usize {
        self.inner.batch()
    }

    fn send<'a>(&'a self, batch: &'a [Owed]) -> BoxFuture<'a, Sent> {
        let (inner, rt, late) = (self.inner.clone(), self.rt.clone(), batch.to_vec());
        self.rt.spawn(Box::pin(async move {
            rt.sleep(LATER).await;
            // Nobody was told that this may fail.
            drop(inner.send(&late).await);
        }));
        Box::pin(std::future::ready(Sent::all(batch)))
    }
}

/// Finds nothing that this process has not made; and what it can not make under a name, it makes under another.
pub struct Unadopting {
    inner: Arc<dyn Cluster>,
    made: Mutex<HashMap<String, String>>,
}

impl Unadopting {
    /// Over this cluster.
    pub fn over(inner: Arc<dyn Cluster>) -> Self {
        Unadopting { inner, made: Mutex::default() }
    }

    fn made(&self) -> MutexGuard<'_, HashMap<String, String>> {
        // Nothing panics under this lock.
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where this process made it.
    fn own(&self, at: &Begun) -> Option<Begun> {
        let name = self.made().get(&at.name).cloned()?;
        Some(Begun { name, namespace: at.namespace.clone() })
    }

    fn own_or(&self, at: &Begun) -> Begun {
        self.own(at).unwrap_or_else(|| at.clone())
    }
}

impl Cluster for Unadopting {
    fn default_namespace(&self) -> &str {
        self.inner.default_namespace()
    }

    fn get<'a>(&'a self, at: &'a Begun) -> BoxFuture<'a, Result<Option<Pod>, Trouble>> {
        Box::pin(async move {
            match self.own(at) {
                Some(own) => self.inner.get(&own).await,
                None => Ok(None),
            }
        })
    }

    fn create(&self, mut pod: Pod) -> BoxFuture<'_, Result<Created, Trouble>> {
        Box::pin(async move {
            let wanted = pod.metadata.name.clone().unwrap_or_default();
            let mut name = wanted.clone();
            let mut made = self.inner.create(pod.clone()).await;
            if let Err(Trouble::Exists) = made {
                name += "-again";
                pod.metadata.name = Some(name.clone());
                made = self.inner.create(pod).await;
            }
            let made = made?;
            self.made().insert(wanted, name);
            Ok(made)
        })
    }

    fn annotate<'a>(
        &'a self,
        at: &'a Begun,
        uid: &'a str,
        name: &'a str,
        value: &'a str,
    ) -> BoxFuture<'a, Result<(), Trouble>> {
        Box::pin(async move { self.inner.annotate(&self.own_or(at), uid, name, value).await })
    }

    fn delete<'a>(
        &'a self,
        at: &'a Begun,
        uid: &'a str,
        how: Delete,
    ) -> BoxFuture<'a, Result<(), Trouble>> {
        Box::pin(async move { self.inner.delete(&self.own_or(at), uid, how).await })
    }

    fn log<'a>(&'a self, at: &'a Begun, ask: LogAsk) -> BoxFuture<'a, Result<LogBytes, Trouble>> {
        Box::pin(async move { self.inner.log(&self.own_or(at), ask).await })
    }

    fn list<'a>(
        &'a self,
        namespace: &'a str,
    ) -> BoxFuture<'a, Result<(Vec<Pod>, String), Trouble>> {
        self.inner.list(namespace)
    }

    fn watch<'a>(
        &'a self,
        namespace: &'a str,
        version: &'a str,
    ) -> BoxFuture<'a, Result<PodEvents, Trouble>> {
        self.inner.watch(namespace, version)
    }
}

/// Takes every report about a pod for one about the pod that its task is at.
pub struct AnyPod(pub Arc<dyn Store>);

impl Layer for AnyPod {
    fn under(&self) -> &dyn Store {
        &*self.0
    }

    fn apply_shared(&self, ops: Arc<Vec<Op>>) -> BoxFuture<'_, Result<Vec<Answer>, StoreError>> {
        Box::pin(async move {
            let mut ops = ops.to_vec();
            for op in &mut ops {
                let Op::Mail(mail) = op else { continue };
                if mail.kind != POD_REPORT {
                    continue;
                }
                let Some(head) = self.0.head(mail.to).await? else { continue };
                let bytes = mail.body.inline().unwrap_or_default();
                let (Ok(state), Ok(mut report)) =
                    (decode_state::<Task>(&head.state), serde_json::from_slice::<Report>(bytes))
                else {
                    continue;
                };
                if let Some(pod) = state.pod {
                    (report.attempt, report.pod) = (Some(state.attempt), pod);
                    mail.body = Body::json(&report);
                }
            }
            self.0.apply(ops).await
        })
    }
}
