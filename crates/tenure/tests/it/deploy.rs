//! The manifests in `deploy` against the code: every variable is one that the process reads, every port one that it
//! listens at, every verb one that it needs, and nothing runs as root.

use serde_yaml_ng::Value;
use std::{collections::BTreeSet, path::PathBuf, process::Command};
use tenure_pods::access::{self, Access};

fn deploy() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

fn read(name: &str) -> String {
    let path = deploy().join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn documents(name: &str) -> Vec<Value> {
    use serde::Deserialize as _;
    let text = read(&format!("kubernetes/{name}"));
    let all = serde_yaml_ng::Deserializer::from_str(&text);
    all.map(|d| Value::deserialize(d).unwrap_or_else(|e| panic!("{name}: {e}"))).collect()
}

fn applied() -> Vec<String> {
    let [kustomization] = &documents("kustomization.yaml")[..] else { panic!("one document") };
    let listed = kustomization["resources"].as_sequence().expect("a list");
    listed.iter().map(|r| r.as_str().expect("a name").to_owned()).collect()
}

fn all() -> Vec<Value> {
    applied().iter().flat_map(|name| documents(name)).collect()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("{key} in {value:?}"))
}

fn strings(value: &Value) -> Vec<String> {
    let list = value.as_sequence().unwrap_or_else(|| panic!("{value:?} is no list"));
    list.iter().map(|v| v.as_str().expect("text").to_owned()).collect()
}

fn named(kind: &str, name: &str) -> Value {
    let found =
        all().into_iter().find(|d| text(d, "kind") == kind && text(&d["metadata"], "name") == name);
    found.unwrap_or_else(|| panic!("no {kind} {name}"))
}

fn workloads() -> Vec<Value> {
    let has_pods = |d: &Value| ["Deployment", "DaemonSet"].contains(&text(d, "kind"));
    all().into_iter().filter(has_pods).collect()
}

fn container(workload: &Value) -> Value {
    workload["spec"]["template"]["spec"]["containers"][0].clone()
}

fn tenure(args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    let done = command.args(args).env_clear().output().expect("it runs");
    assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).expect("text")
}

#[test]
fn every_manifest_is_applied_and_can_be_read() {
    let listed: BTreeSet<String> = applied().into_iter().collect();
    for entry in std::fs::read_dir(deploy().join("kubernetes")).expect("a directory") {
        let name = entry.expect("a file").file_name().into_string().expect("text");
        assert!(!documents(&name).is_empty(), "{name}");
        let aside = ["kustomization.yaml", "secret.example.yaml"].contains(&name.as_str());
        assert!(aside || listed.contains(&name), "{name} is not in the kustomization");
    }
}

#[test]
fn the_verbs_are_those_that_the_code_asks_for() {
    let rules = |kind: &str, name: &str| -> BTreeSet<(String, String, Vec<String>)> {
        let role = named(kind, name);
        let rules = role["rules"].as_sequence().expect("rules").clone();
        let mut all = BTreeSet::new();
        for rule in rules {
            for group in strings(&rule["apiGroups"]) {
                for resource in strings(&rule["resources"]) {
                    let mut verbs = strings(&rule["verbs"]);
                    verbs.sort();
                    assert!(!verbs.iter().any(|v| v == "*") && resource != "*" && group != "*");
                    all.insert((group.clone(), resource, verbs));
                }
            }
        }
        all
    };
    let of = |list: &[Access]| -> BTreeSet<(String, String, Vec<String>)> {
        let row = |a: &Access| {
            let mut verbs: Vec<String> = a.verbs.iter().map(|v| (*v).to_owned()).collect();
            verbs.sort();
            (a.group.to_owned(), a.resource.to_owned(), verbs)
        };
        list.iter().map(row).collect()
    };
    assert_eq!(rules("ClusterRole", "tenure-collector"), of(access::COLLECTOR));
    assert_eq!(rules("ClusterRole", "tenure-executor"), of(access::EXECUTOR));
    let mut sweeper = rules("ClusterRole", "tenure-sweeper");
    sweeper.extend(rules("Role", "tenure-sweeper"));
    assert_eq!(sweeper, of(access::SWEEPER));
}

#[test]
fn every_role_is_bound_to_an_account_that_a_workload_uses() {
    let accounts: BTreeSet<String> = all()
        .iter()
        .filter(|d| text(d, "kind") == "ServiceAccount")
        .map(|d| text(&d["metadata"], "name").to_owned())
        .collect();
    let used: BTreeSet<String> = workloads()
        .iter()
        .map(|w| text(&w["spec"]["template"]["spec"], "serviceAccountName").to_owned())
        .collect();
    assert_eq!(accounts, used);
    let is_binding = |d: &&Value| text(d, "kind").ends_with("RoleBinding");
    let documents = all();
    let bindings: Vec<&Value> = documents.iter().filter(is_binding).collect();
    assert_eq!(bindings.len(), 4);
    for binding in bindings {
        let role = &binding["roleRef"];
        named(text(role, "kind"), text(role, "name"));
        let subject = &binding["subjects"][0];
        assert!(accounts.contains(text(subject, "name")));
        assert_eq!(text(subject, "namespace"), "tenure");
    }
}

#[test]
fn every_variable_is_one_that_the_process_reads() {
    let settings = tenure(&["config", "--json"]);
    let keys: Vec<serde_json::Value> = match serde_json::from_str(&settings).expect("json") {
        serde_json::Value::Array(list) => list,
        serde_json::Value::Object(map) => {
            map.into_values().flat_map(|v| v.as_array().cloned().unwrap_or_default()).collect()
        }
        other => panic!("{other}"),
    };
    let known: BTreeSet<String> = keys
        .iter()
        .map(|k| k["key"].as_str().or(k["name"].as_str()).expect("a name"))
        .map(|k| format!("TENURE_{}", k.replace('.', "_").to_uppercase()))
        .collect();
    let outside: BTreeSet<&str> = BTreeSet::from([
        "FLOWFORGE_REDIS_ADDRESSES",
        "FLOWFORGE_KUBERNETES_IN_CLUSTER",
        "FLOWFORGE_KUBERNETES_KUBECONFIG",
        "FLOWFORGE_KUBERNETES_NAMESPACE",
        "NODE_NAME",
    ]);
    let config = named("ConfigMap", "tenure");
    let shared: Vec<String> = config["data"]
        .as_mapping()
        .expect("data")
        .keys()
        .map(|k| k.as_str().expect("text").to_owned())
        .collect();
    for workload in workloads() {
        let container = container(&workload);
        let command = strings(&container["args"])[0].clone();
        let help = tenure(&[&command, "--help"]);
        let own = container["env"].as_sequence().expect("env").clone();
        let own = own.iter().map(|e| text(e, "name").to_owned());
        for name in own.chain(shared.clone()) {
            let read = known.contains(&name)
                || outside.contains(name.as_str())
                || help.contains(&format!("[env: {name}"));
            assert!(read, "tenure {command} does not read {name}");
        }
    }
    // FlowForge's own names, all of them somewhere.
    for name in [
        "FLOWFORGE_REDIS_ADDRESSES",
        "FLOWFORGE_KUBERNETES_IN_CLUSTER",
        "FLOWFORGE_KUBERNETES_NAMESPACE",
    ] {
        assert!(shared.iter().any(|s| s == name), "{name}");
    }
    assert_eq!(config["data"]["FLOWFORGE_KUBERNETES_IN_CLUSTER"].as_str(), Some("true"));
    let collector = container(&named("DaemonSet", "tenure-collector"));
    let env = collector["env"].as_sequence().expect("env").clone();
    let node = env.iter().find(|e| text(e, "name") == "NODE_NAME").expect("NODE_NAME");
    assert_eq!(text(&node["valueFrom"]["fieldRef"], "fieldPath"), "spec.nodeName");
    // The Lease of the sweepers is where their role lets them have it.
    let sweeper = container(&named("Deployment", "tenure-sweeper"));
    let env = sweeper["env"].as_sequence().expect("env").clone();
    let lease = env.iter().find(|e| text(e, "name") == "TENURE_COLLECTOR_LEASE_NAMESPACE");
    let from = &lease.expect("where the Lease is")["valueFrom"]["fieldRef"];
    assert_eq!(text(from, "fieldPath"), "metadata.namespace");
}

#[test]
fn ports_probes_and_policies_agree() {
    let policies: Vec<Value> =
        all().into_iter().filter(|d| text(d, "kind") == "NetworkPolicy").collect();
    for workload in workloads() {
        let container = container(&workload);
        let port = &container["ports"][0];
        let number = port["containerPort"].as_u64().expect("a port");
        let env = container["env"].as_sequence().expect("env").clone();
        let listens = env.iter().find(|e| text(e, "name").ends_with("_LISTEN")).expect("listens");
        assert_eq!(text(listens, "value"), format!("0.0.0.0:{number}"));
        for (probe, path) in [("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")] {
            assert_eq!(text(&container[probe]["httpGet"], "path"), path);
            assert_eq!(container[probe]["httpGet"]["port"], port["name"]);
        }
        let lets_in = |p: &Value| {
            p["spec"]["ingress"][0]["ports"]
                .as_sequence()
                .is_some_and(|ports| ports.iter().any(|p| p["port"].as_u64() == Some(number)))
        };
        assert!(policies.iter().any(lets_in), "nobody may reach {number}");
    }
    let service = named("Service", "tenure-server");
    assert_eq!(service["spec"]["ports"][0]["port"].as_u64(), Some(7777));
}

#[test]
fn nothing_runs_as_root_or_can_become_it() {
    for workload in workloads() {
        let pod = &workload["spec"]["template"]["spec"];
        assert_eq!(pod["securityContext"]["runAsNonRoot"].as_bool(), Some(true));
        assert_ne!(pod["securityContext"]["runAsUser"].as_u64(), Some(0));
        let inside = &container(&workload)["securityContext"];
        assert_eq!(inside["allowPrivilegeEscalation"].as_bool(), Some(false));
        assert_eq!(inside["readOnlyRootFilesystem"].as_bool(), Some(true));
        assert_eq!(strings(&inside["capabilities"]["drop"]), ["ALL"]);
        assert!(!container(&workload)["resources"]["limits"]["memory"].is_null());
    }
    let dockerfile = read("Dockerfile");
    let last = dockerfile.rsplit("FROM ").next().expect("a stage");
    assert!(last.starts_with("gcr.io/distroless/") && last.contains(":nonroot"), "{last}");
    assert!(last.contains("USER 65532:65532") && last.contains("ENTRYPOINT"), "{last}");
    let mounts_root = dockerfile.contains("--privileged");
    assert!(!mounts_root);
}
