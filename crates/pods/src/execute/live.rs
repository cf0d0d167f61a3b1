//! The real cluster, through the `kube` client. What concerns one pod is asked by hand: the client's own `Api` keeps the header
//! `Retry-After` to itself, which an overloaded API server sends beside a page that is no `Status`.

use super::cluster::{
    Cluster, Delete, LogAsk, LogBytes, PodEvents, Trouble, trouble, trouble_of_answer,
};
use crate::{pod::Begun, report::labels};
use bytes::Bytes;
use futures_util::{AsyncReadExt as _, StreamExt as _, TryStreamExt as _, stream};
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, Resource as _,
    api::{
        DeleteParams, GetParams, ListParams, LogParams, Patch, PatchParams, PostParams, WatchParams,
    },
    client::Body,
    core::{Request, WatchEvent, params::Preconditions, request::Error as Unbuilt},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::time::Duration;
use tenure_kernel::{runtime::BoxFuture, time::Timestamp};

/// The value of [`labels::MANAGED_BY`] on every pod that an executor of ours made.
pub const MANAGED_BY: &str = "tenure";

/// Pods of one page of a list.
const PAGE: u32 = 500;
/// A watch is opened anew after so long, whatever happens: load balancers forget connections.
const WATCH_SECONDS: u32 = 290;
/// What is read of a log at once.
const LOG_READ_BYTES: usize = 8 * 1024;

/// A cluster behind a client.
pub struct LiveCluster {
    client: Client,
    namespace: String,
}

impl LiveCluster {
    /// With this namespace for pods whose task names none; empty: the client's own.
    pub fn new(client: Client, namespace: &str) -> Self {
        let namespace = match namespace {
            "" => client.default_namespace().to_owned(),
            named => named.to_owned(),
        };
        LiveCluster { client, namespace }
    }

    fn pods(&self, namespace: &str) -> Api<Pod> {
        match namespace {
            "" => Api::all(self.client.clone()),
            named => Api::namespaced(self.client.clone(), named),
        }
    }

    /// One request and its answer.
    async fn call<T: DeserializeOwned>(
        &self,
        request: Result<http::Request<Vec<u8>>, Unbuilt>,
    ) -> Result<T, Trouble> {
        let request = request.map_err(|e| trouble(&kube::Error::BuildRequest(e)))?;
        let answer = self.client.send(request.map(Body::from)).await.map_err(|e| trouble(&e))?;
        let (head, body) = answer.into_parts();
        // It may have been carried out: whoever asked looks.
        let open = |why: String| Trouble::again("unreachable", why);
        let bytes = body.collect().await.map_err(|e| open(e.to_string()))?.to_bytes();
        if head.status.is_success() {
            return serde_json::from_slice(&bytes)
                .map_err(|e| open(format!("an answer that can not be read: {e}")));
        }
        let after = head.headers.get(http::header::RETRY_AFTER).and_then(|v| v.to_str().ok());
        let after = after.and_then(|v| v.trim().parse().ok()).map(Duration::from_secs);
        Err(trouble_of_answer(head.status.as_u16(), after, &bytes))
    }
}

fn at(namespace: &str) -> Request {
    Request::new(Pod::url_path(&(), Some(namespace)))
}

fn selector() -> String {
    format!("{}={MANAGED_BY}", labels::MANAGED_BY)
}

impl Cluster for LiveCluster {
    fn default_namespace(&self) -> &str {
        &self.namespace
    }

    fn get<'a>(&'a self, at: &'a Begun) -> BoxFuture<'a, Result<Option<Pod>, Trouble>> {
        Box::pin(async move {
            let request = self::at(&at.namespace).get(&at.name, &GetParams::default());
            match self.call(request).await {
                Ok(pod) => Ok(Some(pod)),
                Err(Trouble::Missing) => Ok(None),
                Err(e) => Err(e),
            }
        })
    }

    fn create(&self, pod: Pod) -> BoxFuture<'_, Result<Pod, Trouble>> {
        Box::pin(async move {
            let namespace = pod.metadata.namespace.clone().unwrap_or_default();
            let params = PostParams { field_manager: Some(MANAGED_BY.into()), dry_run: false };
            let bytes = serde_json::to_vec(&pod).map_err(Unbuilt::SerializeBody);
            self.call(bytes.and_then(|bytes| at(&namespace).create(&params, bytes))).await
        })
    }

    fn annotate<'a>(
        &'a self,
        at: &'a Begun,
        uid: &'a str,
        name: &'a str,
        value: &'a str,
    ) -> BoxFuture<'a, Result<(), Trouble>> {
        Box::pin(async move {
            // A uid in a patch can not change the pod's, so the API server refuses the patch where it is another one: as
            // invalid, not as a conflict.
            let patch = json!({ "metadata": { "uid": uid, "annotations": { name: value } } });
            let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
            let request = self::at(&at.namespace).patch(&at.name, &params, &patch);
            match self.call::<Value>(request).await {
                Ok(_) => Ok(()),
                Err(Trouble::Refused(why)) => Err(Trouble::Conflict(why)),
                Err(other) => Err(other),
            }
        })
    }

    fn delete<'a>(
        &'a self,
        at: &'a Begun,
        uid: &'a str,
        how: Delete,
    ) -> BoxFuture<'a, Result<(), Trouble>> {
        Box::pin(async move {
            let only = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
            let params = DeleteParams {
                preconditions: Some(only),
                grace_period_seconds: (how == Delete::ByForce).then_some(0),
                ..DeleteParams::background()
            };
            let request = self::at(&at.namespace).delete(&at.name, &params);
            self.call::<Value>(request).await.map(|_| ())
        })
    }

    fn log<'a>(&'a self, at: &'a Begun, ask: LogAsk) -> BoxFuture<'a, Result<LogBytes, Trouble>> {
        Box::pin(async move {
            let params = LogParams {
                container: ask.container,
                follow: ask.follow,
                since_time: ask.since.and_then(whole_second),
                tail_lines: ask.tail_lines,
                timestamps: true,
                ..LogParams::default()
            };
            let opened = self.pods(&at.namespace).log_stream(&at.name, &params).await;
            let reader = Box::pin(opened.map_err(|e| trouble(&e))?);
            let pieces = stream::try_unfold(reader, |mut reader| async move {
                let mut piece = vec![0; LOG_READ_BYTES];
                match reader.read(&mut piece).await {
                    Ok(0) => Ok(None),
                    Ok(n) => {
                        piece.truncate(n);
                        Ok(Some((Bytes::from(piece), reader)))
                    }
                    Err(e) => Err(Trouble::again("unreachable", e.to_string())),
                }
            });
            Ok(pieces.boxed())
        })
    }

    fn list<'a>(
        &'a self,
        namespace: &'a str,
    ) -> BoxFuture<'a, Result<(Vec<Pod>, String), Trouble>> {
        Box::pin(async move {
            let pods = self.pods(namespace);
            let mut params = ListParams::default().labels(&selector()).limit(PAGE);
            let mut all = Vec::new();
            loop {
                let page = pods.list(&params).await.map_err(|e| trouble(&e))?;
                let version = page.metadata.resource_version.clone().unwrap_or_default();
                all.extend(page.items);
                match page.metadata.continue_.filter(|next| !next.is_empty()) {
                    Some(next) => params = params.continue_token(&next),
                    None => return Ok((all, version)),
                }
            }
        })
    }

    fn watch<'a>(
        &'a self,
        namespace: &'a str,
        version: &'a str,
    ) -> BoxFuture<'a, Result<PodEvents, Trouble>> {
        Box::pin(async move {
            let params = WatchParams::default().labels(&selector()).timeout(WATCH_SECONDS);
            let events = self.pods(namespace).watch(&params, version).await;
            let events = events.map_err(|e| trouble(&e))?.map_err(|e| trouble(&e));
            Ok(events.map(told).boxed())
        })
    }
}

/// An error in the stream is an error.
fn told(event: Result<WatchEvent<Pod>, Trouble>) -> Result<WatchEvent<Pod>, Trouble> {
    match event {
        Ok(WatchEvent::Error(status)) => Err(super::cluster::trouble_of(&status)),
        other => other,
    }
}

/// The second in which a moment lies. The client rounds to the nearest one, which would skip up to half a second.
fn whole_second(at: Timestamp) -> Option<k8s_openapi::jiff::Timestamp> {
    k8s_openapi::jiff::Timestamp::from_second(at.as_micros().div_euclid(1_000_000)).ok()
}
