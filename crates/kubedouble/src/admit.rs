//! What happens to an object between a request and the store: it is completed, checked, or refused.
//!
//! The defaults are those that a server with the usual admission plugins sets, because programs read
//! them back (`restartPolicy`, tolerations, the token's volume). They also give a pod the size that
//! pods have in a cluster.

use crate::{
    names,
    resource::Resource,
    status::{Cause, Refusal, Wrong},
};
use serde_json::{Value, json};

/// Completes and checks a new object. The name is there already.
pub(crate) fn new_object(
    resource: &'static Resource,
    value: &mut Value,
    now: &str,
) -> Result<(), Refusal> {
    let mut causes = metadata_problems(value);
    match resource.kind {
        "Pod" => {
            causes.extend(pod_problems(value));
            if causes.is_empty() {
                pod_defaults(value, now);
            }
        }
        "Lease" => causes.extend(lease_problems(value)),
        "Namespace" => {
            value["status"] = json!({"phase": "Active"});
            value["spec"] = json!({"finalizers": ["kubernetes"]});
        }
        _ => {}
    }
    refuse(resource, value, &causes)
}

fn refuse(resource: &Resource, value: &Value, causes: &[Cause]) -> Result<(), Refusal> {
    if causes.is_empty() {
        return Ok(());
    }
    let name = value.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    Err(Refusal::invalid(resource, name, causes))
}

/// Checks that one version may follow another.
pub(crate) fn next_version(
    resource: &'static Resource,
    old: &Value,
    new: &Value,
    status_only: bool,
) -> Result<(), Refusal> {
    let mut causes = metadata_problems(new);
    if resource.kind == "Pod" {
        if status_only {
            causes.extend(terminated_stays_terminated(old, new));
        } else {
            causes.extend(spec_stays(old, new));
        }
    }
    if resource.kind == "Lease" {
        causes.extend(lease_problems(new));
    }
    if !old["metadata"]["deletionTimestamp"].is_null() {
        let had = old["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
        let has = new["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
        if let Some(more) = has.iter().find(|f| !had.contains(f)) {
            let words = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{more}}}"
            );
            causes.push(Cause::forbidden("metadata.finalizers", &words));
        }
    }
    refuse(resource, new, &causes)
}

fn metadata_problems(value: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let metadata = &value["metadata"];
    let name = &metadata["name"];
    if let Some(problem) = name.as_str().and_then(names::subdomain_problem) {
        causes.push(Cause::invalid("metadata.name", name, problem));
    }
    for (key, label) in metadata["labels"].as_object().into_iter().flatten() {
        if let Some(problem) = names::key_problem(key) {
            causes.push(Cause::invalid("metadata.labels", &json!(key), problem));
        }
        if let Some(problem) = label.as_str().and_then(names::label_value_problem) {
            causes.push(Cause::invalid("metadata.labels", label, problem));
        }
    }
    let mut size = 0;
    for (key, text) in metadata["annotations"].as_object().into_iter().flatten() {
        if let Some(problem) = names::key_problem(&key.to_lowercase()) {
            causes.push(Cause::invalid("metadata.annotations", &json!(key), problem));
        }
        size += key.len() + text.as_str().map_or(0, str::len);
    }
    if size > ANNOTATIONS_MAX_BYTES {
        let words = format!("may not be more than {ANNOTATIONS_MAX_BYTES} bytes");
        let field = "metadata.annotations";
        causes.push(Cause { field: field.to_owned(), kind: Wrong::Forbidden, detail: words });
    }
    for (at, finalizer) in metadata["finalizers"].as_array().into_iter().flatten().enumerate() {
        let text = finalizer.as_str().unwrap_or_default();
        // Names without a slash are the server's own.
        let known = ["foregroundDeletion", "orphan", "kubernetes"].contains(&text);
        if names::key_problem(text).is_some() || (!text.contains('/') && !known) {
            let field = format!("metadata.finalizers[{at}]");
            let words = "name is neither a standard finalizer name nor is it fully qualified";
            causes.push(Cause::invalid(field, finalizer, words));
        }
    }
    causes
}

/// All annotations of an object together.
const ANNOTATIONS_MAX_BYTES: usize = 256 * 1024;

fn pod_problems(pod: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let containers = pod["spec"]["containers"].as_array().cloned().unwrap_or_default();
    if containers.is_empty() {
        causes.push(Cause::required("spec.containers", ""));
    }
    let mut seen = Vec::new();
    for (list, containers) in [
        ("initContainers", pod["spec"]["initContainers"].as_array().cloned().unwrap_or_default()),
        ("containers", containers),
    ] {
        for (at, container) in containers.iter().enumerate() {
            let field = format!("spec.{list}[{at}]");
            match container["name"].as_str().unwrap_or_default() {
                "" => causes.push(Cause::required(format!("{field}.name"), "")),
                name => {
                    if let Some(problem) = names::label_problem(name) {
                        causes.push(Cause::invalid(format!("{field}.name"), &json!(name), problem));
                    }
                    if seen.contains(&name.to_owned()) {
                        let kind = Wrong::Invalid(json!(name));
                        let field = format!("{field}.name");
                        causes.push(Cause { field, kind, detail: "Duplicate value".to_owned() });
                    }
                    seen.push(name.to_owned());
                }
            }
            if container["image"].as_str().unwrap_or_default().trim().is_empty() {
                causes.push(Cause::required(format!("{field}.image"), ""));
            }
        }
    }
    if let Some(policy) = pod["spec"]["restartPolicy"].as_str()
        && !["Always", "OnFailure", "Never"].contains(&policy)
    {
        causes.push(Cause {
            field: "spec.restartPolicy".to_owned(),
            kind: Wrong::NotSupported(policy.to_owned()),
            detail: r#"supported values: "Always", "OnFailure", "Never""#.to_owned(),
        });
    }
    if let Some(seconds) = pod["spec"]["activeDeadlineSeconds"].as_i64()
        && seconds < 1
    {
        let field = "spec.activeDeadlineSeconds";
        let words = "must be between 1 and 2147483647, inclusive";
        causes.push(Cause::invalid(field, &json!(seconds), words));
    }
    causes
}

fn lease_problems(lease: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    if let Some(seconds) = lease["spec"]["leaseDurationSeconds"].as_i64()
        && seconds <= 0
    {
        let field = "spec.leaseDurationSeconds";
        causes.push(Cause::invalid(field, &json!(seconds), "must be greater than 0"));
    }
    causes
}

fn default(object: &mut Value, field: &str, value: Value) {
    if object[field].is_null() {
        object[field] = value;
    }
}

fn pod_defaults(pod: &mut Value, now: &str) {
    let quality = quality_of_service(&pod["spec"]);
    let mut status = json!({"phase": "Pending", "qosClass": quality});
    let gates = pod["spec"]["schedulingGates"].as_array().map_or(0, Vec::len);
    if gates > 0 {
        status["conditions"] = json!([{
            "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
            "lastProbeTime": null, "lastTransitionTime": now,
        }]);
    }
    pod["status"] = status;
    pod["metadata"]["generation"] = json!(1);
    let token = token_volume(pod);
    let spec = &mut pod["spec"];
    for list in ["initContainers", "containers"] {
        for container in spec[list].as_array_mut().into_iter().flatten() {
            let image = container["image"].as_str().unwrap_or_default();
            let last = image.rsplit('/').next().unwrap_or_default();
            let floating =
                !image.contains('@') && (!last.contains(':') || last.ends_with(":latest"));
            let pull = if floating { "Always" } else { "IfNotPresent" };
            default(container, "imagePullPolicy", json!(pull));
            default(container, "resources", json!({}));
            default(container, "terminationMessagePath", json!("/dev/termination-log"));
            default(container, "terminationMessagePolicy", json!("File"));
            if let Some(volume) = &token {
                default(container, "volumeMounts", json!([]));
                if let Some(mounts) = container["volumeMounts"].as_array_mut() {
                    mounts.push(json!({
                        "name": volume, "readOnly": true,
                        "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
                    }));
                }
            }
        }
    }
    default(spec, "restartPolicy", json!("Always"));
    default(spec, "terminationGracePeriodSeconds", json!(30));
    default(spec, "dnsPolicy", json!("ClusterFirst"));
    default(spec, "schedulerName", json!("default-scheduler"));
    default(spec, "securityContext", json!({}));
    default(spec, "enableServiceLinks", json!(true));
    default(spec, "preemptionPolicy", json!("PreemptLowerPriority"));
    default(spec, "priority", json!(0));
    default(spec, "serviceAccountName", json!("default"));
    let account = spec["serviceAccountName"].clone();
    default(spec, "serviceAccount", account);
    default(spec, "tolerations", json!([]));
    if let Some(tolerations) = spec["tolerations"].as_array_mut() {
        for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
            if !tolerations.iter().any(|t| t["key"] == key) {
                tolerations.push(json!({
                    "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300,
                }));
            }
        }
    }
    if let Some(volume) = token {
        default(spec, "volumes", json!([]));
        if let Some(volumes) = spec["volumes"].as_array_mut() {
            volumes.push(json!({"name": volume, "projected": {"defaultMode": 420, "sources": [
                {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [{"path": "namespace",
                    "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
            ]}}));
        }
    }
}

/// The name of the volume with the account's token, unless the pod wants none.
fn token_volume(pod: &Value) -> Option<String> {
    if pod["spec"]["automountServiceAccountToken"] == json!(false) {
        return None;
    }
    let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
    Some(format!("kube-api-access-{}", uid.get(..5).unwrap_or("aaaaa")))
}

fn quality_of_service(spec: &Value) -> &'static str {
    let (mut any, mut all) = (false, true);
    for list in ["initContainers", "containers"] {
        for container in spec[list].as_array().into_iter().flatten() {
            let resources = &container["resources"];
            for resource in ["cpu", "memory"] {
                let limit = &resources["limits"][resource];
                let request = &resources["requests"][resource];
                any |= !limit.is_null() || !request.is_null();
                // A request that is not given is the limit.
                all &= !limit.is_null() && (request.is_null() || request == limit);
            }
        }
    }
    match (any, all) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// For what may not start again, a container that has ended stays so. Only for containers: the server
/// lets the *phase* go anywhere, also backwards.
fn terminated_stays_terminated(old: &Value, new: &Value) -> Vec<Cause> {
    let policy = old["spec"]["restartPolicy"].as_str().unwrap_or_default();
    let mut causes = Vec::new();
    for list in ["containerStatuses", "initContainerStatuses"] {
        let old_list = old["status"][list].as_array().cloned().unwrap_or_default();
        for (at, before) in old_list.iter().enumerate() {
            let terminated = &before["state"]["terminated"];
            if terminated.is_null() || policy == "Always" {
                continue;
            }
            if policy == "OnFailure" && terminated["exitCode"].as_i64().unwrap_or(0) != 0 {
                continue;
            }
            if list == "initContainerStatuses" && restarts_always(old, &before["name"]) {
                continue;
            }
            let after = new["status"][list]
                .as_array()
                .and_then(|l| l.iter().find(|s| s["name"] == before["name"]));
            if after.is_some_and(|s| s["state"]["terminated"].is_null()) {
                let field = format!("status.{list}[{at}].state");
                causes.push(Cause::forbidden(
                    field,
                    "may not be transitioned to non-terminated state",
                ));
            }
        }
    }
    causes
}

fn restarts_always(pod: &Value, container: &Value) -> bool {
    let list = pod["spec"]["initContainers"].as_array();
    list.is_some_and(|l| {
        l.iter().any(|c| &c["name"] == container && c["restartPolicy"] == "Always")
    })
}

/// Little of a pod's spec may change.
fn spec_stays(old: &Value, new: &Value) -> Vec<Cause> {
    let fixed = |pod: &Value| {
        let mut spec = pod["spec"].clone();
        for list in ["containers", "initContainers"] {
            for container in spec[list].as_array_mut().into_iter().flatten() {
                container["image"] = Value::Null;
            }
        }
        for field in ["activeDeadlineSeconds", "tolerations", "schedulingGates"] {
            if let Some(map) = spec.as_object_mut() {
                map.remove(field);
            }
        }
        spec
    };
    if fixed(old) == fixed(new) {
        return Vec::new();
    }
    vec![Cause::forbidden(
        "spec",
        "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
    )]
}
