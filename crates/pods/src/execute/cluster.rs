//! What an executor asks of a cluster, and what may go wrong there.
//!
//! A trait, so that what decides can be tested without HTTP; [`super::live`] is the real one. Everything that it answers
//! badly is a [`Trouble`], and which one decides what becomes of the pod: whether to wait and ask again, or to tell
//! the task that this pod will never be.

use crate::pod::Begun;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use k8s_openapi::api::core::v1::Pod;
use kube::core::{Status, WatchEvent};
use std::time::Duration;
use tenure_kernel::{limits::clip, runtime::BoxFuture, time::Timestamp};

/// Why the API server did not do as it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// Something of this name is there.
    #[error("a pod of this name exists")]
    Exists,
    /// There is no such pod.
    #[error("there is no such pod")]
    Missing,
    /// It is another one than was meant: a precondition did not hold.
    #[error("{0}")]
    Conflict(String),
    /// The version is too old to watch from.
    #[error("the version is too old")]
    Expired,
    /// It will never be accepted as it is.
    #[error("{0}")]
    Refused(String),
    /// Not now.
    #[error("{why}")]
    Again {
        /// In one word, for metrics.
        what: &'static str,
        /// In its own words.
        why: String,
        /// When the server wants to be asked again.
        after: Option<Duration>,
    },
}

impl Trouble {
    /// In one word, for metrics.
    pub const fn class(&self) -> &'static str {
        match self {
            Trouble::Exists => "exists",
            Trouble::Missing => "missing",
            Trouble::Conflict(_) => "conflict",
            Trouble::Expired => "expired",
            Trouble::Refused(_) => "refused",
            Trouble::Again { what, .. } => what,
        }
    }

    /// Not now, in these words.
    pub fn again(what: &'static str, why: impl Into<String>) -> Self {
        Trouble::Again { what, why: why.into(), after: None }
    }
}

/// Length of what is kept of the API server's words.
const WORDS_BYTES_MAX: usize = 512;

/// What an answer of the API server means. Words, not only codes: a quota that is used up and a pod that a policy
/// forbids are both 403, and only the first one passes by waiting.
pub fn trouble_of(status: &Status) -> Trouble {
    let said = status.message.as_str();
    let words = || clip(said, WORDS_BYTES_MAX).to_owned();
    let again = |what| {
        let after = status.details.as_ref().map(|d| d.retry_after_seconds).filter(|s| *s > 0);
        let after = after.map(|s| Duration::from_secs(u64::from(s)));
        Trouble::Again { what, why: words(), after }
    };
    let about = status.details.as_ref().map_or("", |d| d.kind.as_str());
    match status.code {
        409 if status.reason == "AlreadyExists" => Trouble::Exists,
        // The counter of a quota was written by somebody else at the same moment.
        409 if about == "resourcequotas" || said.contains("resourcequotas") => again("quota"),
        409 => Trouble::Conflict(words()),
        410 => Trouble::Expired,
        404 if about == "namespaces" || said.starts_with("namespaces ") => {
            Trouble::Refused(words())
        }
        404 => Trouble::Missing,
        401 => again("unauthorized"),
        403 if said.contains("exceeded quota") => again("quota"),
        // Controllers that come after their namespace: both are there in a moment.
        403 if said.contains("status unknown for quota") => again("quota"),
        403 if said.contains("error looking up service account") => again("service_account"),
        // Not the task's fault: somebody has to give the executor a right, and then it goes on.
        403 if is_missing_right(said) => again("forbidden"),
        429 => again("throttled"),
        // Asked before anything is stored: that it did not answer, or answered so, means that there is no pod.
        500..=599 if is_of_webhook(said) => again("webhook"),
        408 | 500..=599 => again("unavailable"),
        400..=499 => Trouble::Refused(words()),
        _ => again("unavailable"),
    }
}

/// `pods is forbidden: User "x" cannot create resource "pods" in API group "" in the namespace "y"`.
/// What a webhook says is about the pod, whatever words it chooses.
fn is_missing_right(said: &str) -> bool {
    !said.starts_with("admission webhook") && said.contains("User \"") && said.contains(" cannot ")
}

/// `Internal error occurred: failed calling webhook "x": …`, or a webhook that denies a request with a code of its own.
fn is_of_webhook(said: &str) -> bool {
    said.contains("failed calling webhook") || said.starts_with("admission webhook")
}

/// The longest that a server's wish to be left alone is believed.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);

/// What an answer means that is no success: a `Status`, or the page of somebody before the API server.
pub fn trouble_of_answer(code: u16, after: Option<Duration>, page: &[u8]) -> Trouble {
    let status = serde_json::from_slice::<Status>(page).ok().filter(|s| s.code == code);
    let words = String::from_utf8_lossy(page);
    let status = status.unwrap_or_else(|| Status::failure(words.trim(), "").with_code(code));
    match trouble_of(&status) {
        Trouble::Again { what, why, after: said } => {
            let after = said.max(after).map(|after| after.min(RETRY_AFTER_MAX));
            Trouble::Again { what, why, after }
        }
        other => other,
    }
}

/// What any error of the client means.
pub fn trouble(error: &kube::Error) -> Trouble {
    match error {
        kube::Error::Api(status) => trouble_of(status),
        // It never left: asked again it would be the same.
        kube::Error::BuildRequest(e) => {
            Trouble::Refused(clip(&chain(e), WORDS_BYTES_MAX).to_owned())
        }
        other => {
            let words = chain(other);
            let what = if is_unconnected(&words) { "unconnected" } else { "unreachable" };
            Trouble::again(what, clip(&words, WORDS_BYTES_MAX))
        }
    }
}

/// Whether there never was a connection, so that nothing of the request can have arrived. By the client's words: its types for it are
/// those of a library below.
fn is_unconnected(words: &str) -> bool {
    words.contains("(Connect)") || words.contains("Connection refused")
}

/// An error with all its causes: the outermost often says no more than that there was one.
fn chain(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_words = cause.to_string();
        if !words.contains(&cause_words) {
            words = format!("{words}: {cause_words}");
        }
        next = cause.source();
    }
    words
}

/// Which part of a log is wanted. Lines come with their time stamps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogAsk {
    /// Of which container.
    pub container: Option<String>,
    /// Not before the whole second of this moment.
    pub since: Option<Timestamp>,
    /// Go on until the container ends.
    pub follow: bool,
    /// Only so many lines from the end.
    pub tail_lines: Option<i64>,
}

/// Pieces of a log as they arrive.
pub type LogBytes = BoxStream<'static, Result<Bytes, Trouble>>;
/// What a watch tells.
pub type PodEvents = BoxStream<'static, Result<WatchEvent<Pod>, Trouble>>;

/// How a pod is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delete {
    /// Its containers are told to end, have the time that the pod asks for, and are waited for.
    Gently,
    /// The object goes at once, and nobody waits for the containers.
    ByForce,
}

/// A pod that the API server took.
#[derive(Clone, Debug, Default)]
pub struct Created {
    /// As it is there.
    pub pod: Pod,
    /// What the API server, or a policy behind it, warned of.
    pub warnings: Vec<String>,
}

/// A cluster.
pub trait Cluster: Send + Sync + 'static {
    /// Where pods are made whose task says nothing.
    fn default_namespace(&self) -> &str;
    /// A pod by name, as the API server has it now.
    fn get<'a>(&'a self, at: &'a Begun) -> BoxFuture<'a, Result<Option<Pod>, Trouble>>;
    /// Makes a pod.
    fn create(&self, pod: Pod) -> BoxFuture<'_, Result<Created, Trouble>>;
    /// Writes an annotation on the pod of this uid, and no other.
    fn annotate<'a>(
        &'a self,
        at: &'a Begun,
        uid: &'a str,
        name: &'a str,
        value: &'a str,
    ) -> BoxFuture<'a, Result<(), Trouble>>;
    /// Deletes the pod of this uid, and no other: with the grace that it asks for itself, or as an object, at once, also where its
    /// node does not answer.
    fn delete<'a>(
        &'a self,
        at: &'a Begun,
        uid: &'a str,
        how: Delete,
    ) -> BoxFuture<'a, Result<(), Trouble>>;
    /// Reads a log.
    fn log<'a>(&'a self, at: &'a Begun, ask: LogAsk) -> BoxFuture<'a, Result<LogBytes, Trouble>>;
    /// All pods of ours in a namespace, or in all of them where it is empty, and the version of that answer.
    fn list<'a>(&'a self, namespace: &'a str)
    -> BoxFuture<'a, Result<(Vec<Pod>, String), Trouble>>;
    /// What happens to them from a version on.
    fn watch<'a>(
        &'a self,
        namespace: &'a str,
        version: &'a str,
    ) -> BoxFuture<'a, Result<PodEvents, Trouble>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: u16, reason: &str, message: &str) -> Status {
        Status::failure(message, reason).with_code(code)
    }

    #[test]
    fn a_server_that_asks_for_a_pause_is_heard_in_the_header_too() {
        let after = |page: &[u8], header: Option<u64>| match trouble_of_answer(
            429,
            header.map(Duration::from_secs),
            page,
        ) {
            Trouble::Again { what: "throttled", after, .. } => after.map(|a| a.as_secs()),
            other => panic!("{other:?}"),
        };
        assert_eq!(after(b"Too many requests, please try again later.", Some(7)), Some(7));
        assert_eq!(after(b"<html>", None), None);
        assert_eq!(after(b"", Some(100_000)), Some(300), "not for ever");
        let status =
            br#"{"code": 429, "reason": "TooManyRequests", "details": {"retryAfterSeconds": 9}}"#;
        assert_eq!(after(status, Some(7)), Some(9));
    }

    #[test]
    fn what_passes_by_waiting_is_waited_for_and_what_does_not_is_refused() {
        let cases = [
            (
                403,
                "Forbidden",
                "pods \"a\" is forbidden: exceeded quota: team, requested: pods=1",
                "quota",
            ),
            (
                403,
                "Forbidden",
                "pods \"a\" is forbidden: failed quota: team: must specify limits.cpu",
                "refused",
            ),
            (
                403,
                "Forbidden",
                "pods \"a\" is forbidden: violates PodSecurity \"restricted:latest\"",
                "refused",
            ),
            (
                403,
                "Forbidden",
                "pods is forbidden: User \"x\" cannot create resource \"pods\" in API group \"\"",
                "forbidden",
            ),
            (403, "Forbidden", "pods \"a\" is forbidden: status unknown for quota: team", "quota"),
            (
                403,
                "Forbidden",
                "pods \"a\" is forbidden: error looking up service account x/y: serviceaccount \"y\" not found",
                "service_account",
            ),
            (
                403,
                "Forbidden",
                "admission webhook \"policy.example\" denied the request: User \"x\" cannot use resource \"gpu\"",
                "refused",
            ),
            (
                403,
                "Forbidden",
                "unable to create new content in namespace x because it is being terminated",
                "refused",
            ),
            (404, "NotFound", "namespaces \"nowhere\" not found", "refused"),
            (404, "NotFound", "pods \"a\" not found", "missing"),
            (409, "AlreadyExists", "pods \"a\" already exists", "exists"),
            (
                409,
                "Conflict",
                "Precondition failed: UID in precondition: x, UID in object meta: y",
                "conflict",
            ),
            (409, "Conflict", "Operation cannot be fulfilled on resourcequotas \"q\"", "quota"),
            (410, "Expired", "too old resource version", "expired"),
            (422, "Invalid", "Pod \"a\" is invalid: spec.containers: Required value", "refused"),
            (401, "Unauthorized", "Unauthorized", "unauthorized"),
            (429, "TooManyRequests", "too many requests", "throttled"),
            (
                500,
                "InternalError",
                "Internal error occurred: failed calling webhook \"policy.example\": connection refused",
                "webhook",
            ),
            (
                503,
                "",
                "admission webhook \"policy.example\" denied the request: not now",
                "webhook",
            ),
            (500, "InternalError", "etcdserver: request timed out", "unavailable"),
            (503, "ServiceUnavailable", "apiserver is shutting down", "unavailable"),
            (504, "Timeout", "timed out", "unavailable"),
        ];
        for (code, reason, message, expected) in cases {
            assert_eq!(trouble_of(&status(code, reason, message)).class(), expected, "{message}");
        }
    }
}
