//! The step of a job that runs as a pod: what a flow writes, and the task that it becomes.
//!
//! ```json
//! { "image": "python:3.14", "command": ["python", "train.py"], "env": { "EPOCHS": 3 },
//!   "resources": { "limits": { "memory": "2Gi" } }, "timeout": 3600, "result_file": "/work/result.json" }
//! ```
//!
//! Or a whole pod under `template`. It is read strictly: a word that means nothing is an error that names it. What comes back is
//! `{"exit_code", "result", "attempt", "disrupted", "pod"}`, where `result` is what the container wrote to `result_file`
//! (its termination message, at most 4 KiB), as JSON where it is that.

use crate::{
    admission::PodBounds,
    budget::BudgetTerms,
    execute::make,
    task::{
        NewTask,
        model::{Asker, Cleanup, CleanupWhen, OnLost, Times, limits},
        policy::RetryPolicy,
    },
};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tenure_kernel::ids::EntityId;

/// The name of the tool in flows and plans.
pub const TOOL: &str = "pod";

/// What a step that says nothing about it gets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepDefaults {
    /// See [`NewTask::retry`].
    pub retry: RetryPolicy,
    /// See [`NewTask::budget`].
    pub budget: BudgetTerms,
    /// See [`NewTask::cleanup`].
    pub cleanup: Cleanup,
    /// See [`NewTask::times`].
    pub times: Times,
    /// See [`NewTask::cluster`].
    pub cluster: String,
    /// See [`NewTask::namespace`]; the executor's own where this is empty.
    pub namespace: String,
    /// What the pods of each tenant may be, and where.
    pub bounds: PodBounds,
}

/// What a job says about a call that it hands over, as far as a task needs it. The same words as those of a `call`, by which
/// the two crates meet and do not know each other.
#[derive(Clone, Debug, Deserialize)]
struct HandedCall {
    job: EntityId,
    step: String,
    key: String,
    call: u32,
    what: Value,
    #[serde(default)]
    nth: u32,
    timeout_ms: u64,
    must_end_in_ms: u64,
    #[serde(default)]
    priority: i16,
    #[serde(default)]
    place: String,
    #[serde(default)]
    input: Value,
}

/// The name of a step in a plan. A line of code is none.
fn named_in_plan(place: &str) -> Option<&str> {
    Some(place).filter(|p| !p.is_empty() && !p.contains([':', '/', ' ']))
}

/// The kind of the mail with which a job is told how a call ended.
const CALL_ENDED: &str = "call_ended";

/// What a flow writes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Written {
    name: Option<String>,
    image: Option<String>,
    command: Option<Vec<String>>,
    args: Option<Vec<String>>,
    env: Value,
    resources: Value,
    template: Value,
    container: Option<String>,
    namespace: Option<String>,
    cluster: Option<String>,
    #[serde(alias = "timeout_seconds")]
    timeout: Value,
    retry: Value,
    cleanup: Value,
    result_file: Option<String>,
    on_lost: Option<OnLost>,
    labels: Map<String, Value>,
}

impl StepDefaults {
    /// What is wrong with an input.
    pub fn check(&self, input: &Value) -> Result<(), String> {
        self.read(input).map(|_| ())
    }

    /// The task of a call that a job of this tenant hands over.
    pub fn order(&self, call: &Value, tenant: &str) -> Result<NewTask, String> {
        let call: HandedCall = serde_json::from_value(call.clone())
            .map_err(|e| format!("no task can be made of this call: {e}"))?;
        // It was checked before it was handed over. Should it be wrong all the same, an executor says so to the job; a task
        // without a template would wait for somebody else's pod.
        let read = self.read(&call.input).and_then(|task| self.within_bounds(task, tenant));
        let mut task = read.unwrap_or_else(|why| NewTask {
            template: json!({ make::REFUSED: why }),
            ..NewTask::default()
        });
        if task.name.is_empty() {
            let own = named_in_plan(&call.place).map(str::to_owned);
            task.name = own.unwrap_or_else(|| format!("step-{}", call.step));
        }
        let words = json!({
            "step": call.step, "key": call.key, "call": call.call, "what": call.what, "nth": call.nth,
        });
        let call_words = words.as_object().cloned().unwrap_or_default();
        task.workflow_id = call.job.to_string();
        task.tenant_id = tenant.to_owned();
        // What the step may take, and what the job can wait: with all attempts.
        task.must_end_in_ms = call.timeout_ms.min(call.must_end_in_ms).max(1);
        task.priority = call.priority;
        task.asker = Some(Asker { to: call.job, kind: CALL_ENDED.into(), call: call_words });
        Ok(task)
    }

    /// The same rule that the server asks when the task is created. Asked here too, the step fails with the reason.
    fn within_bounds(&self, mut task: NewTask, tenant: &str) -> Result<NewTask, String> {
        if !make::is_label(tenant) {
            return Err(format!("the tenant {tenant:?} can not stand on a pod as a label"));
        }
        if make::namespace_asked(&task).is_none() {
            task.namespace = self.bounds.default_namespace(tenant).map(str::to_owned);
        }
        match self.bounds.problem(tenant, &task) {
            Some(forbidden) => Err(forbidden.to_string()),
            None => Ok(task),
        }
    }

    fn read(&self, input: &Value) -> Result<NewTask, String> {
        if !input.is_object() {
            return Err("a pod is asked for by an object, with `image` or `template` in it".into());
        }
        let written: Written = serde_json::from_value(input.clone())
            .map_err(|e| format!("a pod can not be made from this: {e}"))?;
        let own = |value: &Option<String>, default: &str| {
            Some(value.clone().unwrap_or_else(|| default.to_owned())).filter(|v| !v.is_empty())
        };
        if let Some(named) = written.namespace.as_deref().filter(|n| !make::is_dns_label(n)) {
            return Err(format!("namespace: {}", make::no_namespace(named)));
        }
        let template = template(&written)?;
        make::check(&template)?;
        let bytes = template.to_string().len();
        if bytes > limits::TEMPLATE_BYTES_MAX {
            let most = limits::TEMPLATE_BYTES_MAX;
            return Err(format!(
                "the pod is {bytes} bytes as JSON, and may be {most}: give it a ConfigMap, or its input in a file"
            ));
        }
        let retry = self.retry_of(&written.retry)?;
        if let Some(problem) = retry.problem() {
            return Err(format!("retry: {problem}"));
        }
        Ok(NewTask {
            name: written.name.clone().unwrap_or_default(),
            template,
            namespace: own(&written.namespace, &self.namespace),
            cluster: own(&written.cluster, &self.cluster).unwrap_or_default(),
            container: written.container.clone(),
            retry,
            budget: self.budget,
            cleanup: self.cleanup_of(&written.cleanup)?,
            on_lost: written.on_lost.unwrap_or_default(),
            times: self.times,
            timeout_ms: seconds("timeout", &written.timeout)?,
            ..NewTask::default()
        })
    }

    /// A number says how often its own failures are tried again; an object changes what it names.
    fn retry_of(&self, written: &Value) -> Result<RetryPolicy, String> {
        match written {
            Value::Null => Ok(self.retry.clone()),
            Value::Number(n) => {
                let app = n.as_u64().and_then(|n| u32::try_from(n).ok());
                let app = app.ok_or_else(|| format!("retry: {n} is no number of retries"))?;
                Ok(RetryPolicy { app, ..self.retry.clone() })
            }
            Value::Object(changes) => {
                let mut whole = serde_json::to_value(&self.retry).unwrap_or_default();
                changes.iter().for_each(|(name, value)| whole[name] = value.clone());
                serde_json::from_value(whole).map_err(|e| format!("retry: {e}"))
            }
            other => Err(format!("retry: {other} is neither a number nor an object")),
        }
    }

    fn cleanup_of(&self, written: &Value) -> Result<Cleanup, String> {
        let bad = |e: serde_json::Error| format!("cleanup: {e}");
        match written {
            Value::Null => Ok(self.cleanup),
            Value::String(_) => {
                let when: CleanupWhen = serde_json::from_value(written.clone()).map_err(bad)?;
                Ok(Cleanup { when, ..self.cleanup })
            }
            other => serde_json::from_value(other.clone()).map_err(bad),
        }
    }
}

/// `90`, or `"90s"`, `"15m"`, `"2h"`.
fn seconds(field: &str, written: &Value) -> Result<Option<u64>, String> {
    let bad = || {
        format!(
            "{field}: {written} is no time; it has to be a number of seconds, or a text like \"90s\", \"15m\" or \"2h\""
        )
    };
    let seconds = match written {
        Value::Null => return Ok(None),
        Value::Number(n) => n.as_f64().ok_or_else(bad)?,
        Value::String(text) => {
            let (number, unit) = match text.char_indices().next_back() {
                Some((at, 's')) => (&text[..at], 1.0),
                Some((at, 'm')) => (&text[..at], 60.0),
                Some((at, 'h')) => (&text[..at], 3_600.0),
                _ => return Err(bad()),
            };
            number.trim().parse::<f64>().map_err(|_| bad())? * unit
        }
        _ => return Err(bad()),
    };
    // A year: what is longer is a mistake of units.
    if !(seconds > 0.0 && seconds <= 31_536_000.0) {
        return Err(bad());
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded above")]
    let ms = (seconds * 1_000.0) as u64;
    Ok(Some(ms.max(1)))
}

/// The pod that was written, in short or whole.
fn template(written: &Written) -> Result<Value, String> {
    let mut template = if written.template.is_null() {
        if written.image.as_deref().unwrap_or_default().is_empty() {
            return Err("image: it is missing; or give a whole pod under `template`".into());
        }
        let name = written.container.clone().unwrap_or_else(|| make::MAIN.to_owned());
        let mut container = json!({ "name": name, "image": written.image });
        if let Some(command) = &written.command {
            container["command"] = json!(command);
        }
        if let Some(args) = &written.args {
            container["args"] = json!(args);
        }
        let env = env(&written.env)?;
        if !env.is_empty() {
            container["env"] = Value::Array(env);
        }
        if !written.resources.is_null() {
            container["resources"] = written.resources.clone();
        }
        json!({ "spec": { "containers": [container], "restartPolicy": "Never" } })
    } else {
        let short = [
            ("image", written.image.is_some()),
            ("command", written.command.is_some()),
            ("args", written.args.is_some()),
            ("env", !written.env.is_null()),
            ("resources", !written.resources.is_null()),
        ];
        if let Some((field, _)) = short.iter().find(|(_, given)| *given) {
            return Err(format!("{field}: it belongs into the template, where there is one"));
        }
        if !written.template.is_object() {
            return Err("template: it has to be a pod: an object with `spec`".into());
        }
        written.template.clone()
    };
    if !written.labels.is_empty() {
        let metadata = member(&mut template, "metadata", "template")?;
        let labels = member(metadata, "labels", "template.metadata")?;
        for (name, value) in &written.labels {
            if !value.is_string() {
                return Err(format!("labels.{name}: it has to be a text"));
            }
            *member(labels, name, "template.metadata.labels")? = value.clone();
        }
    }
    if let Some(file) = &written.result_file {
        if !file.starts_with('/') || file.ends_with('/') {
            return Err(format!(
                "result_file: {file:?} has to be the full path of a file in the container"
            ));
        }
        let main = main_of(&mut template, written.container.as_deref());
        let main = main.ok_or("result_file: it is not clear which container writes it; name it `main`, or say `container`")?;
        main.insert("terminationMessagePath".into(), file.as_str().into());
    }
    Ok(template)
}

/// A member of what has to be an object; an empty object where there is none.
fn member<'a>(of: &'a mut Value, name: &str, path: &str) -> Result<&'a mut Value, String> {
    let members = of.as_object_mut().ok_or_else(|| format!("{path}: it has to be an object"))?;
    let member = members.entry(name).or_insert(Value::Null);
    if member.is_null() {
        *member = Value::Object(Map::new());
    }
    Ok(member)
}

fn main_of<'a>(template: &'a mut Value, named: Option<&str>) -> Option<&'a mut Map<String, Value>> {
    let containers = make::containers_of(template)?;
    let wanted = named.unwrap_or(make::MAIN);
    let at = match containers.iter().position(|c| c["name"] == wanted) {
        Some(at) => at,
        None if named.is_none() && containers.len() == 1 => 0,
        None => return None,
    };
    containers.get_mut(at)?.as_object_mut()
}

/// `{"NAME": "value"}`, or as Kubernetes has it.
fn env(written: &Value) -> Result<Vec<Value>, String> {
    match written {
        Value::Null => Ok(Vec::new()),
        Value::Array(list) => Ok(list.clone()),
        Value::Object(members) => members
            .iter()
            .map(|(name, value)| {
                let value = match value {
                    Value::String(text) => text.clone(),
                    Value::Number(n) => n.to_string(),
                    Value::Bool(b) => b.to_string(),
                    other => {
                        return Err(format!(
                            "env.{name}: {other} has to be a text, a number, true or false"
                        ));
                    }
                };
                Ok(json!({ "name": name, "value": value }))
            })
            .collect(),
        other => Err(format!("env: {other} has to be an object, or a list as Kubernetes has it")),
    }
}

/// JSON schema of what a flow writes.
pub fn input_schema() -> Value {
    let text = json!({ "type": "string" });
    let texts = json!({ "type": "array", "items": { "type": "string" } });
    json!({
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "name": text, "image": text, "command": texts, "args": texts, "container": text,
            "namespace": text, "cluster": text, "result_file": text,
            "env": {}, "resources": { "type": "object" }, "template": { "type": "object" },
            "labels": { "type": "object" },
            "timeout": {}, "timeout_seconds": {}, "retry": {}, "cleanup": {},
            "on_lost": { "type": "string", "enum": ["wait", "replace"] },
        },
    })
}

/// JSON schema of what comes back.
pub fn output_schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "exit_code": { "type": ["integer", "null"] },
            "result": {},
            "attempt": { "type": "integer" },
            "disrupted": { "type": "boolean" },
            "pod": { "type": ["string", "null"] },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(input: Value) -> Result<NewTask, String> {
        StepDefaults::default().read(&input)
    }

    #[test]
    fn whatever_is_written_the_worker_lives() {
        let fine = json!({ "spec": { "containers": [{ "image": "i" }] } });
        let bad = [
            (json!({ "template": { "spec": "x" } }), "template"),
            (json!({ "template": { "spec": [] } }), "template"),
            (json!({ "template": "x", "labels": { "a": "b" } }), "template"),
            (json!({ "template": [], "result_file": "/r" }), "template"),
            (json!({ "template": { "metadata": 7 }, "labels": { "a": "b" } }), "template.metadata"),
            (
                json!({ "template": { "metadata": { "labels": "x" } }, "labels": { "a": "b" } }),
                "template.metadata.labels",
            ),
            (
                json!({ "template": { "spec": { "containers": 3 } }, "result_file": "/r" }),
                "result_file",
            ),
            (json!({ "image": "i", "namespace": "my team" }), "namespace"),
            (json!({ "template": fine, "namespace": "a/b" }), "namespace"),
        ];
        for (input, field) in bad {
            let said = read(input.clone()).unwrap_err();
            assert!(said.starts_with(&format!("{field}: ")), "{input}: {said}");
        }
    }

    #[test]
    fn a_step_has_its_tenants_namespaces_and_says_so_where_it_has_not() {
        let namespaces = crate::namespaces::Namespaces::read("jobs", "acme=ml, ops=*").unwrap();
        let bounds = PodBounds { namespaces, ..PodBounds::default() };
        let defaults = StepDefaults { bounds, ..StepDefaults::default() };
        let call = json!({
            "job": EntityId::fixed(7, 1), "step": "1", "key": "k", "call": 1, "what": "call",
            "timeout_ms": 1, "must_end_in_ms": 1, "input": { "image": "i", "namespace": "kube-system" },
        });
        let said = |tenant: &str| make::check(&defaults.order(&call, tenant).unwrap().template);
        let why = said("acme").unwrap_err();
        assert!(why.contains("may not have pods in namespace \"kube-system\""), "{why}");
        assert!(said("other").is_err() && said("default").is_err() && said("ops").is_ok());
        let why = said("a/b").unwrap_err();
        assert!(why.contains("as a label"), "{why}");
    }

    #[test]
    fn a_step_of_a_plan_is_known_by_its_name() {
        let named = |place: &str, input: Value| {
            let call = json!({
                "job": EntityId::fixed(7, 1), "step": "3.1", "key": "k", "call": 1, "what": "call",
                "timeout_ms": 1, "must_end_in_ms": 1, "place": place, "input": input,
            });
            StepDefaults::default().order(&call, "acme").unwrap().name
        };
        assert_eq!(named("train", json!({ "image": "i" })), "train");
        assert_eq!(named("train", json!({ "image": "i", "name": "own" })), "own");
        for code in ["src/flow.rs:12", "", "undo of step 3"] {
            assert_eq!(named(code, json!({ "image": "i" })), "step-3.1", "{code:?}");
        }
    }

    #[test]
    fn a_short_pod_becomes_a_whole_one() {
        let task = read(json!({
            "image": "busybox", "command": ["sh"], "args": ["-c", "true"], "env": { "A": 1, "B": "x" },
            "resources": { "limits": { "memory": "64Mi" } }, "timeout": "15m", "retry": { "app": 1 },
            "cleanup": "always", "result_file": "/tmp/r", "on_lost": "replace", "namespace": "work", "cluster": "east"
        }))
        .unwrap();
        let main = &task.template["spec"]["containers"][0];
        assert_eq!(main["name"], "main");
        assert_eq!(
            main["env"],
            json!([{ "name": "A", "value": "1" }, { "name": "B", "value": "x" }])
        );
        assert_eq!(main["terminationMessagePath"], "/tmp/r");
        assert_eq!(task.timeout_ms, Some(900_000));
        assert_eq!((task.retry.app, task.retry.infra), (1, RetryPolicy::default().infra));
        assert_eq!(task.cleanup.when, CleanupWhen::Always);
        assert_eq!(task.on_lost, OnLost::Replace);
        assert_eq!((task.namespace.as_deref(), task.cluster.as_str()), (Some("work"), "east"));
    }

    #[test]
    fn a_whole_pod_is_taken_as_it_is_and_its_only_container_writes_the_result() {
        let template = json!({ "spec": { "containers": [{ "name": "job", "image": "i" }] } });
        let task = read(json!({ "template": template, "result_file": "/r" })).unwrap();
        let container = &task.template["spec"]["containers"][0];
        assert_eq!(container["terminationMessagePath"], "/r");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let whole = json!({ "spec": { "containers": [{ "name": "a", "image": "i" }, { "name": "b", "image": "i" }] } });
        let cases = [
            (json!("busybox"), "by an object"),
            (json!({}), "image: it is missing"),
            (json!({ "image": "a", "imgae": "b" }), "unknown field `imgae`"),
            (json!({ "image": "a", "timeout": "soon" }), "timeout: \"soon\" is no time"),
            (json!({ "image": "a", "timeout": 0 }), "timeout: 0 is no time"),
            (json!({ "image": "a", "retry": { "apps": 1 } }), "retry: unknown field `apps`"),
            (json!({ "image": "a", "retry": { "attempts": 0 } }), "retry: attempts is 0"),
            (json!({ "image": "a", "retry": "often" }), "retry: \"often\" is neither"),
            (json!({ "image": "a", "cleanup": "sometimes" }), "cleanup: unknown variant"),
            (json!({ "image": "a", "on_lost": "panic" }), "unknown variant `panic`"),
            (json!({ "image": "a", "env": { "A": [] } }), "env.A: []"),
            (json!({ "image": "a", "result_file": "r.json" }), "result_file: \"r.json\""),
            (json!({ "image": "a", "template": whole }), "image: it belongs into the template"),
            (json!({ "template": whole, "result_file": "/r" }), "result_file: it is not clear"),
            (
                json!({ "image": "a", "resources": { "limit": { "cpu": "1" } } }),
                "resources.limit: Kubernetes knows no such field",
            ),
            (json!({ "image": "a", "command": "sh" }), "invalid type"),
            (json!({ "image": "x".repeat(30_000) }), "bytes as JSON"),
        ];
        for (input, expected) in cases {
            let said = read(input.clone()).unwrap_err();
            assert!(said.contains(expected), "{input}: {said}");
        }
    }
}
