//! What a pod means, at a terminal, without a server and without a cluster.

use crate::support::{complained, run, said, tenure};
use serde_json::{Value, json};
use std::{io::Write as _, path::Path, process::Stdio};

fn evicted() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "ff-1-train-1", "namespace": "team-a", "uid": "u-1", "creationTimestamp": "2026-08-01T10:00:00Z"},
        "spec": {"nodeName": "n1", "restartPolicy": "Never", "containers": [{"name": "main"}]},
        "status": {
            "phase": "Failed", "reason": "Evicted",
            "message": "The node was low on resource: memory. Container main was using 900Mi, request is 0. ",
            "containerStatuses": [{"name": "main", "state": {"terminated": {
                "exitCode": 137, "reason": "Error", "startedAt": "2026-08-01T10:00:05Z", "finishedAt": "2026-08-01T10:20:00Z"
            }}}]
        }
    })
}

fn pulling() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "ff-1-train-2", "creationTimestamp": "2026-08-01T10:00:00Z"},
        "spec": {"nodeName": "n1", "containers": [{"name": "main"}]},
        "status": {
            "phase": "Pending", "startTime": "2026-08-01T10:00:01Z",
            "containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image \"x\": ErrImagePull: not found"}}}]
        }
    })
}

fn explain(dir: &Path, name: &str, text: &str, more: &[&str]) -> std::process::Output {
    std::fs::write(dir.join(name), text).unwrap();
    let mut args = vec!["task", "explain", "-f", name];
    args.extend(more);
    run(&args, dir)
}

fn answer(output: &std::process::Output) -> Value {
    assert!(output.status.success(), "{}", complained(output));
    serde_json::from_str(said(output).trim()).unwrap()
}

#[test]
fn a_pod_is_explained_in_json_and_in_words() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    let found = answer(&explain(dir, "pod.json", &evicted().to_string(), &["--json"]));
    for (key, value) in [
        ("status", json!("FAILED")),
        ("cause", json!("evicted_node_pressure")),
        ("class", json!("infra")),
        ("retryable", json!(true)),
        ("container", json!("main")),
        ("exit_code", json!(137)),
        ("signal", json!(9)),
        ("started", json!(true)),
        ("disrupted", json!(true)),
        ("reason", json!("Evicted")),
        ("detail", json!("memory")),
        ("next_check_at", Value::Null),
        ("rule", json!("status/Evicted:low-on-resource")),
    ] {
        assert_eq!(found[key], value, "{key} in {found}");
    }
    assert!(found["message"].as_str().unwrap().starts_with("The node was low"));
    let text = said(&explain(dir, "pod.json", &evicted().to_string(), &[]));
    for words in [
        "team-a/ff-1-train-1: FAILED, evicted_node_pressure",
        "ran short",
        "status/Evicted:low-on-resource",
        "status.reason = Evicted",
        "final",
    ] {
        assert!(text.contains(words), "{words:?} in {text}");
    }
}

#[test]
fn the_answer_is_for_the_moment_that_was_asked_about() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    let pod = pulling().to_string();
    let early = answer(&explain(dir, "p", &pod, &["--json", "--now", "2026-08-01T10:01:00Z"]));
    for key in ["status", "cause", "class", "exit_code", "signal"] {
        assert_eq!(early.get(key), Some(&Value::Null), "{key} in {early}");
    }
    assert_eq!(early["container"], "main");
    assert_eq!(early["next_check_at"], "2026-08-01T10:05:01Z");
    let shown = explain(dir, "p", &pod, &["--now", "2026-08-01T12:01:00+02:00"]);
    let text = said(&shown);
    for words in ["nothing to report", "2026-08-01T10:05:01Z: FAILED, image_pull", "no namespace"] {
        assert_eq!(text.contains(words), words != "no namespace", "{words:?} in {text}");
    }
    let late = answer(&explain(dir, "p", &pod, &["--json", "--now", "2026-08-01T10:05:01Z"]));
    assert_eq!((&late["status"], &late["cause"]), (&json!("FAILED"), &json!("image_pull")));
    // Without a moment it is now, which is later than all of this, or earlier by years.
    let now = answer(&explain(dir, "p", &pod, &["--json"]));
    assert!(now["status"] == "FAILED" || now["next_check_at"] == "2026-08-01T10:05:01Z", "{now}");
    let set =
        ["--json", "--now", "2026-08-01T10:00:02Z", "--set", "pods.image_pull_grace_seconds=0"];
    assert_eq!(answer(&explain(dir, "p", &pod, &set))["status"], "FAILED");
    let bad = explain(dir, "p", &pod, &["--now", "yesterday"]);
    assert!(
        !bad.status.success() && complained(&bad).contains("yesterday"),
        "{}",
        complained(&bad)
    );
}

#[test]
fn documents_and_lists_have_an_answer_for_each_pod() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    let yaml = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {nodeName: n, containers: [{name: main}]}\nstatus:\n  phase: Running\n  containerStatuses:\n    - name: main\n      state: {running: {startedAt: 2026-08-01T10:00:00Z}}\n---\n# nothing\n---\nkind: Pod\nmetadata: {name: b}\nstatus: {phase: Failed, reason: OutOfcpu}\n";
    let several = explain(dir, "several.yaml", yaml, &["--json"]);
    let lines: Vec<Value> =
        said(&several).lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines.len(), 2, "{}", complained(&several));
    assert_eq!(lines[0]["status"], "RUNNING");
    assert_eq!(lines[1]["cause"], "rejected_capacity");
    for kind in ["List", "PodList"] {
        let mut first = evicted();
        if kind == "PodList" {
            first.as_object_mut().unwrap().remove("kind");
        }
        let list = json!({"apiVersion": "v1", "kind": kind, "items": [first, pulling()]});
        let found = explain(dir, "list.json", &list.to_string(), &["--json"]);
        assert_eq!(said(&found).lines().count(), 2, "{kind}: {}", complained(&found));
    }
    let mut piped = tenure();
    piped.args(["task", "explain", "-f", "-", "--json"]).current_dir(dir);
    let mut child =
        piped.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(evicted().to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(answer(&output)["cause"], "evicted_node_pressure");
}

#[test]
fn what_is_no_pod_among_pods_is_passed_over_and_said() {
    let scratch = tempfile::tempdir().unwrap();
    let list = json!({"kind": "List", "items": [{"kind": "Node", "metadata": {}}, evicted()]});
    let found = explain(scratch.path(), "list.json", &list.to_string(), &["--json"]);
    assert_eq!(answer(&found)["cause"], "evicted_node_pressure");
    let note = complained(&found);
    assert!(note.contains("items[0]: this is a Node, not a Pod"), "{note}");
}

#[test]
fn pods_are_read_however_they_were_cut_out() {
    let scratch = tempfile::tempdir().unwrap();
    let causes = |text: String| -> Vec<Value> {
        let late = ["--json", "--now", "2026-08-02T10:00:00Z"];
        let found = explain(scratch.path(), "it", &text, &late);
        assert!(found.status.success(), "{text}: {}", complained(&found));
        let lines: Vec<Value> =
            said(&found).lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        lines.into_iter().map(|l| l["cause"].clone()).collect()
    };
    let mut kindless = evicted();
    kindless.as_object_mut().unwrap().retain(|k, _| !["kind", "apiVersion"].contains(&k.as_str()));
    let evicted = json!("evicted_node_pressure");
    assert_eq!(causes(kindless.to_string()), std::slice::from_ref(&evicted));
    let list = json!({"kind": "List", "items": [kindless, pulling()]});
    assert_eq!(causes(list.to_string()), [evicted.clone(), json!("image_pull")]);
    let bare = json!({"items": [kindless]});
    assert_eq!(causes(bare.to_string()), std::slice::from_ref(&evicted));
    let twice =
        format!("{}\n{}", self::evicted(), serde_json::to_string_pretty(&kindless).unwrap());
    assert_eq!(causes(twice), [evicted.clone(), evicted.clone()]);
    assert_eq!(causes(format!("[{kindless}]")), [evicted]);
    assert_eq!(
        causes("{status: {phase: Failed, reason: OutOfcpu}}\n".to_owned()),
        ["rejected_capacity"]
    );
}

#[test]
fn what_is_no_pod_is_refused_with_what_it_is() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    let mut broken = evicted();
    broken["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] = json!("many");
    for (text, words) in [
        ("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n".to_owned(), "Deployment"),
        (
            json!({"kind": "List", "items": [{"kind": "Node"}, {"kind": "Job"}]}).to_string(),
            "items[0]: this is a Node",
        ),
        ("spec: {template: {spec: {containers: []}}}\n".to_owned(), "no kind"),
        ("metadata: {name: x}\n".to_owned(), "no kind"),
        ("just words\n".to_owned(), "no object"),
        ("a: [\n".to_owned(), "neither YAML nor JSON"),
        (String::new(), "no pod in it"),
        (broken.to_string(), "status.containerStatuses[0].state.terminated.exitCode"),
    ] {
        let refused = explain(dir, "it.yaml", &text, &["--json"]);
        assert!(!refused.status.success(), "{text}");
        let complaint = complained(&refused);
        assert!(
            complaint.contains(words) && complaint.contains("it.yaml"),
            "{words:?} in {complaint}"
        );
        assert!(said(&refused).is_empty());
    }
    let missing = run(&["task", "explain", "-f", "nix.yaml"], dir);
    assert!(complained(&missing).contains("nix.yaml can not be read"), "{}", complained(&missing));
}
