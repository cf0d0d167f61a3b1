//! What is wrong with the pod of a new task. Everything that the API server would refuse for ever, and everything that
//! Tenure sets itself, is said here, by its field, before anything is written. What only a cluster can know (quotas,
//! policies, whether an image exists) is said by the cluster.

use super::DeskError;
use crate::{
    execute::make::{self, is_dns_label},
    report::labels,
    task::model::limits,
};
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;
use std::collections::BTreeSet;

/// Length of a label.
const LABEL_MAX: usize = 63;

/// What a template says besides the pod itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// `metadata.name`: the name of the task, where the order has none. Pods are named by attempt.
    pub name: Option<String>,
    /// `metadata.namespace`.
    pub namespace: Option<String>,
}

/// Checks a template; which container is the task's may be named.
pub fn check(template: &Value, container: Option<&str>) -> Result<Said, DeskError> {
    let found = serde_json::to_vec(template).map_or(usize::MAX, |b| b.len());
    if found > limits::TEMPLATE_BYTES_MAX {
        return Err(DeskError::TooLarge {
            what: "the template",
            field: "template",
            name: "TEMPLATE_BYTES_MAX",
            found,
            max: limits::TEMPLATE_BYTES_MAX,
        });
    }
    let bad = |at: &str, why: String, fix| {
        let field = if at.is_empty() { "template".to_owned() } else { format!("template.{at}") };
        DeskError::bad(field, why, fix)
    };
    let Value::Object(top) = template else {
        let why = "the template is no object".to_owned();
        return Err(bad("", why, "give a pod: {\"spec\": {\"containers\": […]}}"));
    };
    for (key, value) in top {
        match (key.as_str(), value.as_str()) {
            ("metadata" | "spec", _) | ("apiVersion", Some("v1")) | ("kind", Some("Pod")) => {}
            ("apiVersion" | "kind", _) => {
                let why = format!("{key} is {value}: a task runs as a v1 Pod");
                return Err(bad(key, why, "give a pod, or only its metadata and spec"));
            }
            _ => {
                let why = format!("a pod to be made has no {key:?}");
                return Err(bad(key, why, "give metadata and spec only"));
            }
        }
    }
    containers(template, container)?;
    let pod: Pod = serde_json::from_value(template.clone()).map_err(|e| {
        bad("", format!("Kubernetes would not read it: {e}"), "give a pod as Kubernetes takes it")
    })?;
    let spec = pod.spec.unwrap_or_default();
    if let Some(policy) = spec.restart_policy.filter(|p| p != "Never") {
        let why = format!("restartPolicy is {policy:?}, and an attempt is one run of one pod");
        let fix = "leave it out; how often the task is tried again is said by retry";
        return Err(bad("spec.restartPolicy", why, fix));
    }
    let meta = pod.metadata;
    let ours = [labels::WORKLOAD, labels::TASK_ID, labels::WORKFLOW_ID, labels::TENANT_ID];
    for (place, kept) in [("labels", meta.labels), ("annotations", meta.annotations)] {
        let kept = kept.unwrap_or_default();
        let all = ours.iter().chain([
            &labels::ATTEMPT,
            &labels::CANCEL,
            &labels::STOPPED,
            &labels::CONTAINER,
        ]);
        if let Some(key) = all.into_iter().find(|k| kept.contains_key(**k)) {
            let why = format!("{key} is set by whoever makes the pod, and says which task it is");
            let fix = "leave it out; workflow_id and task_id of the order are written there";
            return Err(bad(&format!("metadata.{place}"), why, fix));
        }
    }
    // Words that Kubernetes does not know would be dropped in silence by it.
    make::check(template).map_err(|why| match why.split_once(": ") {
        Some((field, why)) if field.starts_with("template") => {
            DeskError::bad(field, why, "give a pod as Kubernetes takes it")
        }
        _ => bad("", why, "give a pod as Kubernetes takes it"),
    })?;
    Ok(Said { name: meta.name.or(meta.generate_name), namespace: meta.namespace })
}

fn containers(template: &Value, main: Option<&str>) -> Result<(), DeskError> {
    let spec = &template["spec"];
    let all = spec["containers"].as_array().filter(|c| !c.is_empty());
    let Some(all) = all else {
        let fix = "give at least one: {\"name\": \"main\", \"image\": \"…\"}";
        return Err(DeskError::bad("template.spec.containers", "the pod has no containers", fix));
    };
    let init = spec["initContainers"].as_array().into_iter().flatten();
    let named = all.iter().map(|c| ("containers", c)).chain(init.map(|c| ("initContainers", c)));
    let (mut seen, mut at) = (BTreeSet::new(), std::collections::BTreeMap::new());
    for (list, container) in named {
        let n: &mut usize = at.entry(list).or_default();
        let here = format!("template.spec.{list}[{n}]");
        *n += 1;
        let Some(name) = container["name"].as_str().filter(|n| is_dns_label(n)) else {
            let why = format!("the name of a container is {}", container["name"]);
            let fix = "give 1 to 63 small letters, digits and -, no - at either end";
            return Err(DeskError::bad(format!("{here}.name"), why, fix));
        };
        if !seen.insert(name) {
            let why = format!("two containers have the name {name:?}");
            return Err(DeskError::bad(format!("{here}.name"), why, "give each its own"));
        }
        if container["image"].as_str().is_none_or(|i| i.trim().is_empty()) {
            let why = format!("container {name:?} has no image");
            return Err(DeskError::bad(format!("{here}.image"), why, "give it one"));
        }
    }
    match main.filter(|main| !all.iter().any(|c| c["name"] == **main)) {
        None => Ok(()),
        Some(main) => {
            let why = format!("the template has no container {main:?}");
            let fix = "name one of its containers, or leave the field out: `main` counts, or the only one";
            Err(DeskError::bad("container", why, fix))
        }
    }
}

/// Whether Kubernetes takes it as the value of a label.
pub fn is_label_value(text: &str) -> bool {
    let edge = |b: Option<&u8>| b.is_none_or(u8::is_ascii_alphanumeric);
    let fine = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    let bytes = text.as_bytes();
    bytes.len() <= LABEL_MAX
        && bytes.iter().all(|b| fine(*b))
        && edge(bytes.first())
        && edge(bytes.last())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refused(template: Value) -> (String, String) {
        match check(&template, None).unwrap_err() {
            DeskError::Bad { field, why, .. } => (field, why),
            other => (other.to_string(), String::new()),
        }
    }

    #[test]
    fn a_pod_is_taken_and_may_name_the_task() {
        let plain = json!({ "spec": { "containers": [{ "name": "main", "image": "busybox" }] } });
        assert_eq!(check(&plain, None).unwrap(), Said::default());
        let whole = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "train", "namespace": "ml", "labels": { "team": "a" } },
            "spec": { "restartPolicy": "Never", "containers": [{ "name": "main", "image": "busybox" }] },
        });
        let said = check(&whole, Some("main")).unwrap();
        assert_eq!((said.name.as_deref(), said.namespace.as_deref()), (Some("train"), Some("ml")));
    }

    #[test]
    fn what_a_cluster_would_refuse_is_refused_with_its_field() {
        let with = |spec: Value| json!({ "spec": spec });
        let c = |name: &str| json!({ "name": name, "image": "i" });
        let cases = [
            (json!([]), "template"),
            (json!({}), "template.spec.containers"),
            (with(json!({ "containers": [] })), "template.spec.containers"),
            (with(json!({ "containers": [{ "image": "i" }] })), "template.spec.containers[0].name"),
            (with(json!({ "containers": [c("Main")] })), "template.spec.containers[0].name"),
            (with(json!({ "containers": [c("a"), c("a")] })), "template.spec.containers[1].name"),
            (
                with(json!({ "containers": [c("a")], "initContainers": [c("a")] })),
                "template.spec.initContainers[0].name",
            ),
            (
                with(json!({ "containers": [{ "name": "a", "image": " " }] })),
                "template.spec.containers[0].image",
            ),
            (
                with(json!({ "containers": [c("a")], "restartPolicy": "Always" })),
                "template.spec.restartPolicy",
            ),
            (with(json!({ "containers": [c("a")], "hostNetwork": "yes" })), "template"),
            (
                with(json!({ "containers": [{ "name": "a", "image": "i", "comand": ["x"] }] })),
                "template.spec.containers[0].comand",
            ),
            (
                json!({ "metadata": { "namespace": "a/b" }, "spec": { "containers": [c("a")] } }),
                "template.metadata.namespace",
            ),
            (json!({ "kind": "Job", "spec": { "containers": [c("a")] } }), "template.kind"),
            (json!({ "status": {}, "spec": { "containers": [c("a")] } }), "template.status"),
            (
                json!({
                    "metadata": { "labels": { "flowforge.io/task-id": "x" } },
                    "spec": { "containers": [c("a")] },
                }),
                "template.metadata.labels",
            ),
        ];
        for (template, field) in cases {
            assert_eq!(refused(template.clone()).0, field, "{template}");
        }
        let large = with(json!({ "containers": [c(&"a".repeat(limits::TEMPLATE_BYTES_MAX))] }));
        assert!(matches!(check(&large, None), Err(DeskError::TooLarge { .. })));
        let unknown = check(&with(json!({ "containers": [c("a")] })), Some("b")).unwrap_err();
        assert!(unknown.to_string().contains("no container \"b\""), "{unknown}");
    }

    #[test]
    fn label_values_are_those_of_kubernetes() {
        for fine in ["", "a", "A.b_c-9", &"x".repeat(63)] {
            assert!(is_label_value(fine), "{fine:?}");
        }
        for bad in ["-a", "a.", "a b", "ä", &"x".repeat(64), "a/b"] {
            assert!(!is_label_value(bad), "{bad:?}");
        }
    }
}
