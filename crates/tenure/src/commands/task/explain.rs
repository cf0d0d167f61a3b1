//! `tenure task explain`: the verdict for any pod object, with the rule that gave it and what it was read from.
//!
//! The object may come from anywhere: `kubectl get pod -o yaml`, a bug report, an editor. So nothing is asked of it but that it is
//! a pod, and what is not one is passed over by its kind rather than explained as an empty pod; if nothing is left, it is refused.

use crate::{
    commands::{Failure, files},
    config::Settings,
    terminal,
};
use clap::Args;
use serde::Deserialize as _;
use serde_json::{Map, Value, json};
use std::{fmt::Write as _, path::PathBuf};
use tenure_edge::SystemClock;
use tenure_kernel::{runtime::Clock as _, time::Timestamp};
use tenure_pods::{
    k8s_openapi::{api::core::v1::Pod, jiff},
    verdict::{Policy, Verdict, evidence, main_container, say, verdict},
};

/// The largest file of pods that is read: a list of a large cluster.
const PODS_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Options of `task explain`.
#[derive(Args, Clone, Debug)]
pub struct Explain {
    /// A pod, several of them, or a list, as YAML or JSON; - reads standard input
    #[arg(long, short, value_name = "FILE")]
    pub file: PathBuf,
    /// The moment to answer for, such as 2026-08-01T10:15:00Z [default: now]
    #[arg(long, value_name = "TIME")]
    pub now: Option<String>,
}

/// One answer for each pod.
pub fn run(settings: &Settings, options: &Explain, as_json: bool) -> Result<String, Failure> {
    let now = match &options.now {
        None => SystemClock.now(),
        Some(text) => moment(text)?,
    };
    let policy = settings.pod_policy();
    let file = options.file.display().to_string();
    let Found { pods, passed } = pods(&files::read_up_to(&options.file, PODS_BYTES_MAX)?, &file)?;
    for note in passed {
        terminal::error_line(&format_args!("tenure: {file}: {note}; it is passed over"));
    }
    let mut out = String::new();
    for (i, pod) in pods.iter().enumerate() {
        let said = verdict(pod, None, now, &policy);
        // Writing to a String can not fail.
        let _ = match as_json {
            true => writeln!(out, "{}", machine_form(pod, &said, &policy)),
            false if i > 0 => write!(out, "\n{}", human_form(pod, &said, &policy)),
            false => write!(out, "{}", human_form(pod, &said, &policy)),
        };
    }
    Ok(out)
}

fn moment(text: &str) -> Result<Timestamp, Failure> {
    let read: Result<jiff::Timestamp, _> = text.trim().parse();
    read.map(|at| Timestamp::from_micros(at.as_microsecond())).map_err(|_| {
        Failure::System(format!(
            "--now {text:?} is no time: give one as 2026-08-01T10:15:00Z or 2026-08-01T12:15:00+02:00"
        ))
    })
}

/// Seconds where there are only seconds, as Kubernetes writes them.
fn written(at: Timestamp) -> String {
    match jiff::Timestamp::from_microsecond(at.as_micros()) {
        Ok(time) => time.to_string(),
        // Beyond the calendar: a grace of thousands of years.
        Err(_) => at.to_string(),
    }
}

#[derive(Default)]
struct Found {
    pods: Vec<Pod>,
    /// What was passed over, and why.
    passed: Vec<String>,
}

/// Every pod in a text: JSON documents one after the other, or YAML documents, each a pod or a list with pods in it.
fn pods(text: &str, file: &str) -> Result<Found, Failure> {
    let bad = |what: String| Failure::System(format!("{file}: {what}"));
    let mut found = Found::default();
    for (i, value) in documents(text).map_err(bad)?.into_iter().enumerate() {
        let at = if i == 0 { String::new() } else { format!("document {}: ", i + 1) };
        if !value.is_null() {
            found.take(value, &at).map_err(bad)?;
        }
    }
    match (found.pods.is_empty(), found.passed.first()) {
        (false, _) => Ok(found),
        (true, Some(other)) => {
            Err(bad(format!("{other}: give pods, as kubectl get pods -o yaml prints them")))
        }
        (true, None) => Err(bad("there is no pod in it".to_owned())),
    }
}

fn documents(text: &str) -> Result<Vec<Value>, String> {
    // JSON documents that follow each other are no YAML; YAML that only looks like JSON is read below.
    let json = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    if let Ok(documents) = json.collect::<Result<Vec<Value>, _>>() {
        return Ok(documents);
    }
    let mut documents = Vec::new();
    for (i, document) in serde_yaml_ng::Deserializer::from_str(text).enumerate() {
        let at = if i == 0 { String::new() } else { format!("document {}: ", i + 1) };
        let value = serde_yaml_ng::Value::deserialize(document)
            .map_err(|e| format!("{at}neither YAML nor JSON: {e}"))?;
        let value =
            serde_json::to_value(value).map_err(|e| format!("{at}no object of Kubernetes: {e}"))?;
        documents.push(value);
    }
    Ok(documents)
}

impl Found {
    fn take(&mut self, value: Value, at: &str) -> Result<(), String> {
        let mut fields = match value {
            Value::Object(fields) => fields,
            Value::Array(items) => return self.take_all(items, at),
            _ => {
                return Err(format!(
                    "{at}this is no object of Kubernetes: a pod has apiVersion, kind, …"
                ));
            }
        };
        let kind = fields.get("kind").and_then(Value::as_str).unwrap_or("").to_owned();
        let is_list = fields.get("items").is_some_and(Value::is_array);
        match kind.as_str() {
            "Pod" => self.read(fields, at)?,
            // What is cut out of a list, or written by hand, often has none.
            "" if is_pod(&fields) => self.read(fields, at)?,
            "List" | "PodList" | "" if is_list || !kind.is_empty() => {
                match fields.remove("items") {
                    Some(Value::Array(items)) => self.take_all(items, at)?,
                    Some(Value::Null) | None => {}
                    Some(_) => return Err(format!("{at}items of the {kind} is no list")),
                }
            }
            "" => self.passed.push(format!("{at}the object has no kind, and reads as no pod")),
            other => self.passed.push(format!("{at}this is a {other}, not a Pod")),
        }
        Ok(())
    }

    fn take_all(&mut self, items: Vec<Value>, at: &str) -> Result<(), String> {
        let mut items = items.into_iter().enumerate();
        items.try_for_each(|(i, item)| self.take(item, &format!("{at}items[{i}]: ")))
    }

    fn read(&mut self, fields: Map<String, Value>, at: &str) -> Result<(), String> {
        let pod: Result<Pod, _> = serde_path_to_error::deserialize(Value::Object(fields));
        self.pods.push(pod.map_err(|e| format!("{at}{}: {}", e.path(), e.inner()))?);
        Ok(())
    }
}

/// Whether an object that does not say what it is reads as a pod. A controller's spec has a template in it.
fn is_pod(fields: &Map<String, Value>) -> bool {
    let part = |name: &str| fields.get(name).and_then(Value::as_object);
    let (spec, status) = (part("spec"), part("status"));
    spec.is_none_or(|s| !s.contains_key("template")) && (spec.is_some() || status.is_some())
}

fn name_of(pod: &Pod) -> String {
    let name = pod.metadata.name.as_deref().unwrap_or("(no name)");
    match pod.metadata.namespace.as_deref() {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    }
}

fn machine_form(pod: &Pod, said: &Verdict, policy: &Policy) -> Value {
    let evidence: Vec<Value> = evidence(pod, policy)
        .into_iter()
        .map(|(field, value)| json!({"field": field, "value": value}))
        .collect();
    json!({
        "pod": name_of(pod),
        "uid": pod.metadata.uid,
        "status": said.status,
        "cause": said.cause,
        "class": said.class,
        "retryable": said.retryable,
        "container": said.container,
        "exit_code": said.exit_code,
        "signal": said.signal,
        "started": said.started,
        "disrupted": said.disrupted,
        "reason": said.reason,
        "message": said.message,
        "detail": said.detail,
        "terminated_reason": said.terminated_reason(),
        "since": said.since.map(written),
        "next_check_at": said.next_check_at.map(written),
        "next_cause": said.next_cause,
        "rule": said.rule,
        "main_container": main_container(pod, policy),
        "says": say(said),
        "evidence": evidence,
    })
}

fn human_form(pod: &Pod, said: &Verdict, policy: &Policy) -> String {
    let status = said.status.map_or("nothing to report", |s| s.name());
    let mut head = format!("{}: {status}", name_of(pod));
    if let (Some(cause), Some(class)) = (said.cause, said.class) {
        let again = if said.retryable { "may be tried again" } else { "not to be tried again" };
        let _ = write!(head, ", {} (class {}, {again})", cause.name(), class.name());
    }
    let mut out = format!("{head}\n  {}\n", say(said));
    let mut line = |title: &str, text: &str| {
        let _ = writeln!(out, "  {title:<10}{text}");
    };
    if let (Some(container), Some(code)) = (&said.container, said.exit_code) {
        let signal = said.signal.map(|s| format!(", signal {s}")).unwrap_or_default();
        line("container", &format!("{container}, exit code {code}{signal}"));
    } else if let Some(container) = &said.container {
        line("container", container);
    }
    if said.is_final() && !said.started {
        line("started", "never");
    }
    if let Some(detail) = &said.detail {
        line("detail", detail);
    }
    if let Some(since) = said.since {
        line("since", &written(since));
    }
    line("rule", &said.rule);
    for (i, (field, value)) in evidence(pod, policy).into_iter().enumerate() {
        line(if i == 0 { "evidence" } else { "" }, &format!("{field} = {value}"));
    }
    match (said.next_check_at, said.next_cause) {
        (Some(at), Some(cause)) => {
            line("next", &format!("{}: FAILED, {}, if nothing changes", written(at), cause.name()));
        }
        (Some(at), None) => line("next", &written(at)),
        (None, _) if said.is_final() => line("next", "nothing: this is final for this pod"),
        (None, _) => line("next", "no clock runs"),
    }
    out
}
