//! What is said about a task on FlowForge's channel: an envelope of type `task_status` around a task event.
//!
//! FlowForge's five fields mean what they meant, and everything else was added, so whoever reads the old ones only goes
//! on reading. We read leniently what others write: fields that we do not know are passed over, a moment may be a
//! number with a fraction or a text, and words are open (a newer collector may know causes that we do not). The
//! channel is a hint: it forgets, repeats and is heard late. Nothing is decided by it that the store does not decide too.

use crate::{
    report::Report,
    verdict::{TaskStatus, Verdict, meaning},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::Value;
use std::fmt;

/// The channel.
pub const CHANNEL: &str = "ff:events:task";
/// The type of what we publish there, and read.
pub const TASK_STATUS: &str = "task_status";

/// A message on the channel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Envelope {
    /// What `data` is: [`TASK_STATUS`].
    #[serde(rename = "type")]
    pub kind: String,
    /// When it was published: whole seconds since 1970, as consumers that know nothing else expect it. The moment of the
    /// change itself is [`TaskEvent::transition_time`].
    pub timestamp: i64,
    /// What happened.
    pub data: TaskEvent,
}

/// What happened to a task. The first five fields are FlowForge's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskEvent {
    /// The task.
    pub task_id: String,
    /// The workflow that it belongs to.
    pub workflow_id: String,
    /// RUNNING, SUCCEEDED, FAILED or CANCELED; others may say more. See [`TaskEvent::known_status`].
    pub status: String,
    /// Why it failed or was cancelled, for people: always there then, and only then.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub message: Option<String>,
    /// The exit code of the main container, once it ended.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub exit_code: Option<i32>,

    /// The same whenever the same change is told again. Deduplicate by it. A pod has one end, under one id.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub event_id: Option<String>,
    /// The pod: one of one attempt.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pod_uid: Option<String>,
    /// Which attempt of the task it is, by the pod's label.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub attempt: Option<u32>,
    /// Why, by the reason table: `oom`, `image_pull`, …
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cause: Option<String>,
    /// Who answers for it: `app`, `infra`, …
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub class: Option<String>,
    /// Whether another attempt could end differently.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub retryable: Option<bool>,
    /// Whether the main container ever ran.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub started: Option<bool>,
    /// The signal behind an exit code above 128.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub signal: Option<i32>,
    /// The container whose end it is.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub container: Option<String>,
    /// Kubernetes' own word for it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
    /// Whose task it is.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tenant_id: Option<String>,
    /// Why a pod was ended from outside: `user_cancel`, `system_eviction`, `external_delete`, `node_lost`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub terminated_reason: Option<String>,
    /// When it became so, by the pod's own times: RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub transition_time: Option<String>,
    /// Who saw it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub collector: Option<String>,
    /// Whoever saw it also reports it to a server, which says more and is not lost: a server need not follow this message.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reported: Option<bool>,
}

impl TaskEvent {
    /// What a report says; `None` where there is nothing to tell yet.
    pub fn of_report(report: &Report) -> Option<Self> {
        let verdict = &report.verdict;
        let text = |t: &str| Some(t.to_owned()).filter(|t| !t.is_empty());
        Some(TaskEvent {
            task_id: report.task_id.clone(),
            workflow_id: report.workflow_id.clone(),
            status: verdict.status?.name().to_owned(),
            message: why(verdict),
            // One that runs has not ended, though an earlier start of it may have.
            exit_code: verdict.exit_code.filter(|_| verdict.is_final()),
            event_id: Some(report.event_id()),
            pod_uid: text(&report.pod.uid),
            attempt: report.attempt,
            cause: verdict.cause.map(|c| c.name().to_owned()),
            class: verdict.class.and_then(word),
            // Of what goes on or went well nothing is to be tried again.
            retryable: verdict.cause.map(|_| verdict.retryable),
            started: Some(verdict.started),
            signal: verdict.signal,
            container: verdict.container.clone(),
            reason: text(&verdict.reason),
            tenant_id: text(&report.tenant_id),
            terminated_reason: report
                .terminated_reason
                .or_else(|| verdict.terminated_reason())
                .and_then(word),
            transition_time: verdict.since.map(|at| at.to_string()),
            collector: text(&report.collector),
            reported: None,
        })
    }

    /// The status, if it is one that a collector may say; both spellings of CANCELED are read.
    pub fn known_status(&self) -> Option<TaskStatus> {
        let status = self.status.trim().to_uppercase();
        let status = if status == "CANCELLED" { "CANCELED".to_owned() } else { status };
        serde_json::from_value(Value::String(status)).ok()
    }
}

/// Why it failed or was cancelled. Whoever reads FlowForge's fields only has no other place to learn it from, so it is never empty;
/// and what a container leaves when it ends well is no failure message.
fn why(verdict: &Verdict) -> Option<String> {
    if !matches!(verdict.status, Some(TaskStatus::Failed | TaskStatus::Canceled)) {
        return None;
    }
    let said = [&verdict.message, &verdict.reason].into_iter().find(|t| !t.trim().is_empty());
    said.cloned().or_else(|| verdict.cause.map(|cause| meaning(cause).to_owned()))
}

/// The word for something on the wire.
fn word(of: impl Serialize) -> Option<String> {
    match serde_json::to_value(of).ok()? {
        Value::String(word) => Some(word),
        _ => None,
    }
}

impl Envelope {
    /// Around an event, published now: seconds since 1970.
    pub fn of(data: TaskEvent, timestamp: i64) -> Self {
        Envelope { kind: TASK_STATUS.to_owned(), timestamp, data }
    }

    /// Its bytes on the channel.
    pub fn to_bytes(&self) -> Vec<u8> {
        // Texts, numbers and switches under names: always JSON.
        serde_json::to_vec(self).expect("an envelope is JSON")
    }

    /// Reads a message of the channel.
    pub fn read(bytes: &[u8]) -> Result<Self, Unreadable> {
        let whole: Foreign = serde_json::from_slice(bytes).map_err(Unreadable::no_envelope)?;
        if whole.kind != TASK_STATUS {
            return Err(Unreadable::OtherType(whole.kind));
        }
        let data = serde_json::from_value(whole.data).map_err(Unreadable::no_event)?;
        Ok(Envelope { kind: whole.kind, timestamp: whole.timestamp, data })
    }
}

/// An envelope of which only the outside was looked at.
#[derive(Deserialize)]
struct Foreign {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default, deserialize_with = "seconds")]
    timestamp: i64,
    #[serde(default)]
    data: Value,
}

/// A message on the channel that says nothing about a task's status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// It is about something else.
    OtherType(String),
    /// It is no envelope.
    NoEnvelope(String),
    /// It should be about a task's status, and is not.
    NoEvent(String),
}

impl Unreadable {
    #[expect(clippy::needless_pass_by_value, reason = "for map_err")]
    fn no_envelope(e: serde_json::Error) -> Self {
        Unreadable::NoEnvelope(e.to_string())
    }

    #[expect(clippy::needless_pass_by_value, reason = "for map_err")]
    fn no_event(e: serde_json::Error) -> Self {
        Unreadable::NoEvent(e.to_string())
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unreadable::OtherType(kind) => write!(f, "of type {kind:?}, not {TASK_STATUS:?}"),
            Unreadable::NoEnvelope(why) => {
                write!(f, "not an envelope {{type, timestamp, data}}: {why}")
            }
            Unreadable::NoEvent(why) => write!(f, "a {TASK_STATUS} without what it needs: {why}"),
        }
    }
}

impl std::error::Error for Unreadable {}

/// Seconds since 1970, from a number with or without a fraction, or from a text with one or with a date.
fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    let value = Value::deserialize(deserializer)?;
    let bad =
        || de::Error::custom(format!("{value} is no moment: seconds since 1970, or RFC 3339"));
    match &value {
        Value::Null => Ok(0),
        Value::Number(n) => n.as_i64().or_else(|| n.as_f64().and_then(whole)).ok_or_else(bad),
        Value::String(text) => {
            let number = text.trim().parse::<i64>().ok();
            let number = number.or_else(|| text.trim().parse::<f64>().ok().and_then(whole));
            let date = || serde_json::from_value::<Time>(value.clone()).ok();
            number.or_else(|| date().map(|t| t.0.as_second())).ok_or_else(bad)
        }
        _ => Err(bad()),
    }
}

#[expect(clippy::cast_possible_truncation, reason = "its bounds are checked")]
fn whole(seconds: f64) -> Option<i64> {
    // As far as doubles are exact, which is 285 million years.
    (seconds.abs() <= 9_007_199_254_740_992.0).then(|| seconds.floor() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn event() -> TaskEvent {
        TaskEvent {
            task_id: "t-1".into(),
            workflow_id: "w-1".into(),
            status: "FAILED".into(),
            message: Some("out of memory".into()),
            exit_code: Some(137),
            event_id: Some("uid/1/FAILED/2026".into()),
            pod_uid: Some("uid".into()),
            attempt: Some(2),
            cause: Some("oom".into()),
            class: Some("oom".into()),
            retryable: Some(true),
            started: Some(true),
            signal: Some(9),
            container: Some("main".into()),
            reason: Some("OOMKilled".into()),
            tenant_id: Some("acme".into()),
            terminated_reason: Some("system_eviction".into()),
            transition_time: Some("2026-11-16T02:40:00Z".into()),
            collector: Some("node-7".into()),
            reported: Some(true),
        }
    }

    #[test]
    fn an_envelope_comes_back_as_it_was_and_looks_as_the_seed_says() {
        let envelope = Envelope::of(event(), 1_700_000_000);
        assert_eq!(Envelope::read(&envelope.to_bytes()), Ok(envelope.clone()));
        let seen: Value = serde_json::from_slice(&envelope.to_bytes()).unwrap();
        assert_eq!(
            (&seen["type"], &seen["timestamp"]),
            (&json!("task_status"), &json!(1_700_000_000))
        );
        let names = [
            "task_id",
            "workflow_id",
            "status",
            "message",
            "exit_code",
            "event_id",
            "pod_uid",
            "attempt",
            "cause",
            "class",
            "retryable",
            "started",
            "signal",
            "container",
            "reason",
            "tenant_id",
            "terminated_reason",
            "transition_time",
            "collector",
            "reported",
        ];
        let data = seen["data"].as_object().unwrap();
        assert!(
            names.iter().all(|n| data.contains_key(*n)) && data.len() == names.len(),
            "{data:?}"
        );
    }

    #[test]
    fn a_report_is_told_with_its_id_and_one_without_a_status_is_not() {
        let report = json!({
            "task_id": "t-1", "workflow_id": "w-1", "tenant_id": "acme", "attempt": 2,
            "pod": { "namespace": "ns", "name": "p", "uid": "u-1" }, "collector": "node-7",
            "terminated_reason": "node_lost", "seen_at": 5, "verdict": {
                "status": "FAILED", "cause": "oom", "class": "oom", "retryable": true, "exit_code": 137,
                "signal": 9, "container": "main", "started": true, "reason": "OOMKilled",
                "message": "", "rule": "x", "since": 1_700_000_000_000_000i64
            }
        });
        let mut report: Report = serde_json::from_value(report).unwrap();
        let told = TaskEvent::of_report(&report).unwrap();
        let expected = TaskEvent {
            message: Some("OOMKilled".into()),
            event_id: Some(report.event_id()),
            pod_uid: Some("u-1".into()),
            terminated_reason: Some("node_lost".into()),
            transition_time: Some("2023-11-14T22:13:20.000000Z".into()),
            reported: None,
            ..event()
        };
        assert_eq!(told, expected);
        // Another observer of the same end publishes it under the same id.
        let id = report.event_id();
        (report.over, report.verdict.since) = (true, None);
        assert_eq!(TaskEvent::of_report(&report).unwrap().event_id, Some(id));
        report.verdict.status = None;
        assert_eq!(TaskEvent::of_report(&report), None);
    }

    #[test]
    fn a_failure_is_told_with_its_reason_and_what_ended_it_from_outside() {
        let told = |verdict: Value| {
            let report = json!({ "task_id": "t", "pod": { "namespace": "n", "name": "p", "uid": "u" },
                "seen_at": 5, "verdict": verdict });
            TaskEvent::of_report(&serde_json::from_value(report).unwrap()).unwrap()
        };
        let evicted = told(
            json!({ "status": "FAILED", "cause": "evicted_api", "rule": "x", "message": "evicting" }),
        );
        assert_eq!(evicted.message.as_deref(), Some("evicting"));
        assert_eq!(evicted.terminated_reason.as_deref(), Some("system_eviction"));
        let evicted = told(
            json!({ "status": "FAILED", "cause": "evicted_api", "rule": "x", "reason": "EvictionByEvictionAPI" }),
        );
        assert_eq!(evicted.message.as_deref(), Some("EvictionByEvictionAPI"));
        let cancelled = told(json!({ "status": "CANCELED", "cause": "user_cancel", "rule": "x" }));
        assert_eq!(cancelled.message.as_deref(), Some("a cancel marker is on its pod"));
        assert_eq!(cancelled.terminated_reason.as_deref(), Some("user_cancel"));
        let well = told(
            json!({ "status": "SUCCEEDED", "rule": "x", "message": "42", "reason": "Completed", "exit_code": 0 }),
        );
        assert_eq!((well.message, well.exit_code, well.terminated_reason), (None, Some(0), None));
        let again = told(
            json!({ "status": "RUNNING", "rule": "x", "exit_code": 1, "reason": "Error", "message": "x" }),
        );
        assert_eq!((again.message, again.exit_code), (None, None));
    }

    #[test]
    fn what_is_not_known_is_not_there() {
        let short = TaskEvent {
            task_id: "t".into(),
            workflow_id: "w".into(),
            status: "RUNNING".into(),
            ..TaskEvent::default()
        };
        let seen = serde_json::to_value(Envelope::of(short, 7)).unwrap();
        let data = json!({ "task_id": "t", "workflow_id": "w", "status": "RUNNING" });
        assert_eq!(seen, json!({ "type": "task_status", "timestamp": 7, "data": data }));
    }

    /// As strict as a consumer in a language with types is about what it knows.
    #[test]
    fn old_consumers_see_what_they_know() {
        #[derive(Deserialize)]
        struct OldEnvelope {
            #[serde(rename = "type")]
            kind: String,
            timestamp: i64,
            data: OldEvent,
        }
        #[derive(Deserialize)]
        struct OldEvent {
            task_id: String,
            workflow_id: String,
            status: String,
            message: Option<String>,
            exit_code: Option<i64>,
        }
        let bytes = Envelope::of(event(), 9).to_bytes();
        let old: OldEnvelope = serde_json::from_slice(&bytes).unwrap();
        assert_eq!((old.kind.as_str(), old.timestamp), ("task_status", 9));
        let data = old.data;
        assert_eq!([data.task_id, data.workflow_id, data.status], ["t-1", "w-1", "FAILED"]);
        assert_eq!((data.message.as_deref(), data.exit_code), (Some("out of memory"), Some(137)));
    }

    #[test]
    fn what_others_add_is_passed_over_and_their_nulls_are_nothing() {
        let theirs = json!({
            "type": "task_status", "timestamp": 5, "trace": {"a": 1}, "data": {
                "task_id": "t", "workflow_id": "w", "status": "SUCCEEDED", "message": null,
                "exit_code": 0, "cause": "from_the_future", "attempt": null, "node": {"name": "n"}
            }
        });
        let read = Envelope::read(theirs.to_string().as_bytes()).unwrap();
        assert_eq!(read.data.known_status(), Some(TaskStatus::Succeeded));
        assert_eq!((read.data.exit_code, read.data.message), (Some(0), None));
        assert_eq!(read.data.cause.as_deref(), Some("from_the_future"));
    }

    #[test]
    fn a_moment_is_a_number_or_a_text() {
        let read = |timestamp: Value| {
            let data = json!({ "task_id": "t", "workflow_id": "w", "status": "RUNNING" });
            let theirs = json!({ "type": "task_status", "timestamp": timestamp, "data": data });
            Envelope::read(theirs.to_string().as_bytes()).map(|e| e.timestamp)
        };
        for same in [
            json!(1_700_000_000),
            json!(1_700_000_000.0),
            json!(1_700_000_000.75),
            json!("1700000000"),
            json!(" 1700000000.2 "),
            json!("2023-11-14T22:13:20Z"),
            json!("2023-11-15T00:13:20.5+02:00"),
        ] {
            assert_eq!(read(same.clone()), Ok(1_700_000_000), "{same}");
        }
        assert_eq!(read(Value::Null), Ok(0));
        for bad in [json!("soon"), json!(true), json!([1]), json!(1e300), json!("NaN"), json!("")] {
            assert!(matches!(read(bad.clone()), Err(Unreadable::NoEnvelope(_))), "{bad}");
        }
    }

    #[test]
    fn other_messages_are_told_apart() {
        let read = |text: &str| Envelope::read(text.as_bytes()).unwrap_err();
        let other = read(r#"{"type": "task_created", "data": {"task_id": 7}}"#);
        assert_eq!(other, Unreadable::OtherType("task_created".into()));
        assert!(matches!(read(""), Unreadable::NoEnvelope(_)));
        assert!(matches!(read("[1]"), Unreadable::NoEnvelope(_)));
        assert!(matches!(read(r#"{"data": {}}"#), Unreadable::NoEnvelope(_)));
        let short = read(r#"{"type": "task_status", "data": {"task_id": "t"}}"#);
        assert!(
            matches!(&short, Unreadable::NoEvent(_)) && short.to_string().contains("workflow_id")
        );
        assert!(matches!(read(r#"{"type": "task_status"}"#), Unreadable::NoEvent(_)));
    }

    #[test]
    fn a_status_is_read_in_either_spelling_and_others_are_unknown() {
        let known = |status: &str| {
            TaskEvent { status: status.into(), ..TaskEvent::default() }.known_status()
        };
        assert_eq!(known("CANCELED"), Some(TaskStatus::Canceled));
        assert_eq!(known("Cancelled"), Some(TaskStatus::Canceled));
        assert_eq!(known("failed"), Some(TaskStatus::Failed));
        assert_eq!((known("PENDING"), known("")), (None, None));
    }

    proptest! {
        #[test]
        fn whatever_is_said_comes_back(
            texts in proptest::array::uniform4(".*"), code: i32, attempt: u32, at: i64, some: bool,
        ) {
            let [task_id, workflow_id, status, other] = texts;
            let data = TaskEvent {
                task_id, workflow_id, status,
                message: Some(other.clone()).filter(|_| some),
                exit_code: Some(code).filter(|_| some),
                attempt: Some(attempt).filter(|_| !some),
                reason: Some(other).filter(|_| !some),
                ..event()
            };
            let envelope = Envelope::of(data, at);
            prop_assert_eq!(Envelope::read(&envelope.to_bytes()), Ok(envelope));
        }

        #[test]
        fn no_bytes_make_a_reader_fall(bytes: Vec<u8>) {
            let _ = Envelope::read(&bytes);
        }
    }
}
