//! The real cluster, through the `kube` client. What concerns one pod is asked by hand: the client's own `Api` keeps the header
//! `Retry-After` to itself, which an overloaded API server sends beside a page that is no `Status`.

use super::cluster::{
    Cluster, Created, Delete, LogAsk, LogBytes, PodEvents, Trouble, trouble, trouble_of_answer,
};
use crate::{
    answer::{Lines, whole},
    pod::{Begun, model::limits},
    report::labels,
};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Client, Resource as _,
    api::{
        DeleteParams, GetParams, ListParams, LogParams, Patch, PatchParams, PostParams, WatchParams,
    },
    client::Body,
    core::{ObjectList, Request, WatchEvent, params::Preconditions, request::Error as Unbuilt},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::time::Duration;
use tenure_kernel::{limits::clip, runtime::BoxFuture, time::Timestamp};

/// The value of [`labels::MANAGED_BY`] on every pod that an executor of ours made.
pub const MANAGED_BY: &str = "tenure";

/// Pods of one page of a list.
const PAGE: u32 = 500;
/// A watch is opened anew after so long, whatever happens: load balancers forget connections.
const WATCH_SECONDS: u32 = 290;
/// The largest answer that is read: a page of [`PAGE`] pods, each of which has at most a megabyte and a half in etcd and mostly a
/// few kilobytes.
const ANSWER_BYTES_MAX: usize = 256 * 1024 * 1024;
/// The longest line of a watch, as in `follow`.
const LINE_BYTES_MAX: usize = 16 * 1024 * 1024;

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

    /// One request and its answer.
    async fn call<T: DeserializeOwned>(
        &self,
        request: Result<http::Request<Vec<u8>>, Unbuilt>,
    ) -> Result<T, Trouble> {
        Ok(self.call_warned(request).await?.0)
    }

    /// The same, with the warnings beside the answer.
    async fn call_warned<T: DeserializeOwned>(
        &self,
        request: Result<http::Request<Vec<u8>>, Unbuilt>,
    ) -> Result<(T, Vec<String>), Trouble> {
        // It may have been carried out: whoever asked looks.
        let open = |why: String| Trouble::again("unreachable", why);
        let (headers, body) = self.send(request).await?;
        let bytes = whole(body, ANSWER_BYTES_MAX).await.map_err(|e| open(e.to_string()))?;
        let read = serde_json::from_slice(&bytes)
            .map_err(|e| open(format!("an answer that cannot be read: {e}")))?;
        Ok((read, warnings_in(&headers)))
    }

    /// One request, and the headers and the body of its answer if that is a success.
    async fn send(
        &self,
        request: Result<http::Request<Vec<u8>>, Unbuilt>,
    ) -> Result<(http::HeaderMap, Body), Trouble> {
        let request = request.map_err(|e| trouble(&kube::Error::BuildRequest(e)))?;
        let answer = self.client.send(request.map(Body::from)).await.map_err(|e| trouble(&e))?;
        let (head, body) = answer.into_parts();
        if head.status.is_success() {
            return Ok((head.headers, body));
        }
        let read = whole(body, LINE_BYTES_MAX).await;
        let bytes = read.map_err(|e| Trouble::again("unreachable", e.to_string()))?;
        let after = head.headers.get(http::header::RETRY_AFTER).and_then(|v| v.to_str().ok());
        let after = after.and_then(|v| v.trim().parse().ok()).map(Duration::from_secs);
        Err(trouble_of_answer(head.status.as_u16(), after, &bytes))
    }
}

fn at(namespace: &str) -> Request {
    Request::new(Pod::url_path(&(), Some(namespace)))
}

/// Those of a namespace; of all where it is empty.
fn among(namespace: &str) -> Request {
    Request::new(Pod::url_path(&(), Some(namespace).filter(|n| !n.is_empty())))
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

    fn create(&self, pod: Pod) -> BoxFuture<'_, Result<Created, Trouble>> {
        Box::pin(async move {
            let namespace = pod.metadata.namespace.clone().unwrap_or_default();
            let params = PostParams { field_manager: Some(MANAGED_BY.into()), dry_run: false };
            let bytes = serde_json::to_vec(&pod).map_err(Unbuilt::SerializeBody);
            let request = bytes.and_then(|bytes| at(&namespace).create(&params, bytes));
            let (pod, warnings) = self.call_warned(request).await?;
            Ok(Created { pod, warnings })
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
            let (_, body) = self.send(self::at(&at.namespace).logs(&at.name, &params)).await?;
            let broke = |e: kube::Error| Trouble::again("unreachable", e.to_string());
            Ok(body.into_data_stream().map_err(broke).boxed())
        })
    }

    fn list<'a>(
        &'a self,
        namespace: &'a str,
    ) -> BoxFuture<'a, Result<(Vec<Pod>, String), Trouble>> {
        Box::pin(async move {
            let mut params = ListParams::default().labels(&selector()).limit(PAGE);
            let mut all = Vec::new();
            loop {
                let page: ObjectList<Pod> = self.call(among(namespace).list(&params)).await?;
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
            let (_, body) = self.send(among(namespace).watch(&params, version)).await?;
            let lines = Lines::new(body, LINE_BYTES_MAX);
            let events = stream::unfold(lines, |mut lines| async move {
                let line = lines.next().await?;
                let event = line.map_err(|e| Trouble::again("unreachable", e.to_string()));
                Some((event.and_then(|line| told(&line)), lines))
            });
            Ok(events.boxed())
        })
    }
}

/// The texts of the headers `Warning: 299 - "text"`, as admission and policies write them.
fn warnings_in(headers: &http::HeaderMap) -> Vec<String> {
    let all = headers.get_all(http::header::WARNING).iter().filter_map(|v| v.to_str().ok());
    let texts = all.filter_map(|v| {
        let (_, quoted) = v.split_once('"')?;
        let text = quoted.rsplit_once('"').map_or(quoted, |(text, _)| text);
        Some(clip(&text.replace("\\\"", "\""), limits::WORDS_BYTES_MAX).to_owned())
    });
    texts.filter(|t| !t.is_empty()).take(limits::WARNINGS_MAX).collect()
}

/// What a line of a watch says. An error in the stream is an error.
fn told(line: &[u8]) -> Result<WatchEvent<Pod>, Trouble> {
    match serde_json::from_slice(line) {
        Ok(WatchEvent::Error(status)) => Err(super::cluster::trouble_of(&status)),
        Ok(event) => Ok(event),
        Err(e) => Err(Trouble::again(
            "unreachable",
            format!("a line of a watch that can not be read: {e}"),
        )),
    }
}

/// The second in which a moment lies. The client rounds to the nearest one, which would skip up to half a second.
fn whole_second(at: Timestamp) -> Option<k8s_openapi::jiff::Timestamp> {
    k8s_openapi::jiff::Timestamp::from_second(at.as_micros().div_euclid(1_000_000)).ok()
}
