//! Who is told of an end, and in which words.

use super::Desk;
use crate::{
    report::PodName,
    task::model::{Asker, Ended, TaskState},
    verdict::Cause,
};
use serde_json::{Value, json};
use tenure_kernel::{
    ids::EntityId,
    outbox::{Message, Target},
    stream::Body,
};

impl Desk<'_> {
    /// Which pod nobody has seen end, where that is so.
    fn unfenced(&self, fenced: bool) -> Option<Value> {
        let pod = self.state.pod.clone().unwrap_or_default();
        (!fenced).then(|| {
            json!({
                "namespace": pod.namespace, "pod": pod.name, "uid": pod.uid, "node": pod.node,
                "forced": self.state.forced,
            })
        })
    }

    /// The same in words, behind those of an end.
    pub(super) fn in_doubt(&self, fenced: bool) -> String {
        let Some(PodName { namespace, name, uid, node }) = &self.state.pod else {
            let none = "; nobody has seen its pod, which may have been made, and may still run";
            return if fenced { String::new() } else { none.to_owned() };
        };
        if fenced {
            return String::new();
        }
        let on = node.as_ref().map(|n| format!(", on {n}")).unwrap_or_default();
        let taken = if self.state.forced { "; its object was taken away by force" } else { "" };
        format!(
            "; nobody has seen pod {namespace}/{name} (uid {uid}{on}) end: it may still run{taken}"
        )
    }

    /// Tells whoever asked for the task, and the outside.
    pub(super) fn tell(
        &mut self,
        end: &str,
        ended: Option<&Ended>,
        result: Option<&str>,
        error: Option<&str>,
        fenced: bool,
    ) {
        let unfenced = self.unfenced(fenced);
        let state = &self.state;
        if let Some(Asker { to, kind, call }) = state.asker.clone() {
            let mut body = call;
            body.insert("end".into(), end.into());
            if end == "completed" {
                body.insert("result".into(), outcome(state, ended, result));
            }
            if let Some(error) = error {
                body.insert("error".into(), error.into());
            }
            if let Some(unfenced) = &unfenced {
                body.insert("unfenced".into(), unfenced.clone());
            }
            let message = Message::mail(to, kind, Body::json(&Value::Object(body)));
            self.out.messages.push(message);
        }
        let status = match end {
            "completed" => "SUCCEEDED",
            "cancelled" => "CANCELED",
            _ if state.cancel.is_some() => "CANCELED",
            _ => "FAILED",
        };
        let mut said = json!({
            "task_id": label_of(self.cx.id, state),
            "workflow_id": state.workflow_id,
            "status": status,
            "attempt": state.attempt,
            "cause": ended.and_then(|e| e.cause),
            "exit_code": ended.and_then(|e| e.exit_code),
            "message": error,
        });
        if let Some(unfenced) = unfenced {
            said["unfenced"] = unfenced;
        }
        let to = Target::Wire(format!("evt.task.{}.status", self.cx.id));
        self.out.messages.push(Message { to, kind: "task_status".into(), body: Body::json(&said) });
    }
}

/// The text by which others know a task.
pub fn label_of(id: EntityId, state: &TaskState) -> String {
    state.label.clone().unwrap_or_else(|| id.to_string())
}

/// What a step that was a pod returns.
fn outcome(state: &TaskState, ended: Option<&Ended>, result: Option<&str>) -> Value {
    // What looks like JSON is JSON; everything else is a text.
    let result = result.map_or(Value::Null, |text| {
        serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
    });
    json!({
        "exit_code": ended.and_then(|e| e.exit_code),
        "result": result,
        "attempt": state.attempt,
        "disrupted": ended.is_some_and(|e| e.disrupted),
        "pod": state.pod.as_ref().map(|p| format!("{}/{}", p.namespace, p.name)),
    })
}

/// How an attempt ended, as a sentence.
pub fn in_words(ended: &Ended) -> String {
    let cause = ended.cause.map_or("it failed", Cause::name);
    let exit = match (ended.exit_code, ended.signal) {
        (Some(code), Some(signal)) => format!(" (exit code {code}, signal {signal})"),
        (Some(code), None) => format!(" (exit code {code})"),
        _ => String::new(),
    };
    let said = match (ended.message.as_str(), ended.reason.as_str()) {
        ("", "") => String::new(),
        ("", reason) => format!(": {reason}"),
        (message, _) => format!(": {message}"),
    };
    format!("{cause}{exit}{said}")
}
