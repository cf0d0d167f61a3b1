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

/// What all processes share, as kustomize reads the file.
fn shared() -> Vec<(String, String)> {
    let [kustomization] = &documents("kustomization.yaml")[..] else { panic!("one document") };
    // A generated name changes with the content, and with it every template that refers to it: that is what rolls a change out.
    assert!(kustomization["generatorOptions"]["disableNameSuffixHash"].is_null());
    let made = &kustomization["configMapGenerator"][0];
    assert_eq!((text(made, "name"), text(made, "namespace")), (OURS, OURS));
    let [file] = &strings(&made["envs"])[..] else { panic!("one file") };
    let content = read(&format!("kubernetes/{file}"));
    let lines = content.lines().filter(|l| !l.is_empty() && !l.starts_with('#'));
    let pairs = lines.map(|l| l.split_once('=').unwrap_or_else(|| panic!("{l:?} is no pair")));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
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

/// Where our processes and our Secret are.
const OURS: &str = "tenure";

/// Where the pods of tasks are.
const TASKS: &str = "tenure-tasks";

/// The namespace of an object; empty for one that is in none.
fn namespace(object: &Value) -> &str {
    object["metadata"]["namespace"].as_str().unwrap_or("")
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
        if !name.ends_with(".yaml") {
            assert!(!shared().is_empty(), "{name}");
            continue;
        }
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
        .filter(|d| text(d, "kind") == "ServiceAccount" && namespace(d) == OURS)
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
        // Who may make pods beside our own can read our Secret and use our accounts.
        let makes_pods = text(role, "name") == "tenure-executor";
        assert_eq!(makes_pods, namespace(binding) == TASKS, "{binding:?}");
        let subject = &binding["subjects"][0];
        assert!(accounts.contains(text(subject, "name")));
        assert_eq!(text(subject, "namespace"), "tenure");
    }
}

#[test]
fn tasks_have_a_namespace_of_their_own_in_which_nothing_of_ours_is() {
    let [kustomization] = &documents("kustomization.yaml")[..] else { panic!("one document") };
    assert!(kustomization["namespace"].is_null(), "it would move everything into one namespace");
    for object in all() {
        let (kind, place) = (text(&object, "kind"), namespace(&object));
        let in_none = ["Namespace", "ClusterRole", "ClusterRoleBinding"].contains(&kind);
        assert!(
            if in_none { place.is_empty() } else { [OURS, TASKS].contains(&place) },
            "{object:?}"
        );
        let holds_ours =
            ["Secret", "ConfigMap", "Deployment", "DaemonSet", "Service"].contains(&kind);
        assert!(!holds_ours || place == OURS, "{object:?}");
    }
    for secret in documents("secret.example.yaml") {
        assert_eq!(namespace(&secret), OURS);
    }
    // Both who checks the namespace of a task and who makes its pod take it for the default.
    for name in ["tenure-server", "tenure-executor"] {
        let env = container(&named("Deployment", name))["env"].as_sequence().expect("env").clone();
        let own = env.iter().find(|e| text(e, "name") == "TENURE_KUBERNETES_NAMESPACE");
        assert_eq!(text(own.unwrap_or_else(|| panic!("{name}")), "value"), TASKS);
    }
    let is_account = |d: &Value| text(d, "kind") == "ServiceAccount" && namespace(d) == TASKS;
    let documents = all();
    let accounts: Vec<&Value> = documents.iter().filter(|d| is_account(d)).collect();
    let [account] = accounts[..] else { panic!("{accounts:?}") };
    assert_eq!(text(&account["metadata"], "name"), "default");
    assert_eq!(account["automountServiceAccountToken"].as_bool(), Some(false));
    let labels = &named("Namespace", TASKS)["metadata"]["labels"];
    assert_eq!(text(labels, "pod-security.kubernetes.io/enforce"), "baseline");
    let policy = named("NetworkPolicy", TASKS);
    assert_eq!(strings(&policy["spec"]["policyTypes"]), ["Ingress", "Egress"]);
    assert!(policy["spec"]["ingress"].is_null(), "nothing comes in");
    let closed = strings(&policy["spec"]["egress"][1]["to"][0]["ipBlock"]["except"]);
    assert!(
        closed.iter().any(|c| c == "169.254.0.0/16") && closed.iter().any(|c| c == "10.0.0.0/8")
    );
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
    let config = shared();
    let shared: Vec<String> = config.iter().map(|(name, _)| name.clone()).collect();
    for workload in workloads() {
        let container = container(&workload);
        assert_eq!(text(&container["envFrom"][0]["configMapRef"], "name"), "tenure");
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
    let inside = ("FLOWFORGE_KUBERNETES_IN_CLUSTER".to_owned(), "true".to_owned());
    assert!(config.contains(&inside));
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
            assert_eq!(text(&container[probe]["httpGet"], "scheme"), "HTTPS");
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

#[test]
fn what_has_replicas_keeps_one_while_nodes_are_drained_and_they_are_apart() {
    for workload in workloads().iter().filter(|w| text(w, "kind") == "Deployment") {
        let name = text(&workload["metadata"], "name");
        let labels = &workload["spec"]["selector"]["matchLabels"];
        assert!(workload["spec"]["replicas"].as_u64() >= Some(2), "{name}");
        let budget = named("PodDisruptionBudget", name);
        assert_eq!(namespace(&budget), OURS);
        assert_eq!(budget["spec"]["minAvailable"].as_u64(), Some(1), "{name}");
        assert_eq!(&budget["spec"]["selector"]["matchLabels"], labels, "{name}");
        let apart = &workload["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"];
        let term = &apart["preferredDuringSchedulingIgnoredDuringExecution"][0]["podAffinityTerm"];
        assert_eq!(&term["labelSelector"]["matchLabels"], labels, "{name}");
        assert_eq!(text(term, "topologyKey"), "kubernetes.io/hostname");
    }
    // Nobody else is evicted for us unless somebody chose that.
    for workload in workloads() {
        assert!(workload["spec"]["template"]["spec"]["priorityClassName"].is_null());
    }
}

#[test]
fn our_pods_pass_what_their_namespace_demands_and_others_are_warned_about() {
    for (name, enforced) in [(OURS, "restricted"), (TASKS, "baseline")] {
        let labels = named("Namespace", name)["metadata"]["labels"].clone();
        let level =
            |mode: &str| text(&labels, &format!("pod-security.kubernetes.io/{mode}")).to_owned();
        assert_eq!(level("enforce"), enforced, "{name}");
        assert_eq!([level("warn"), level("audit")], ["restricted", "restricted"], "{name}");
    }
    for workload in workloads() {
        let pod = serde_json::to_value(&workload["spec"]["template"]).expect("JSON");
        assert_eq!(tenure_kubedouble::restricted(&pod), [""; 0], "{workload:?}");
    }
}

/// The first task that a reader runs is one that every namespace takes.
#[test]
fn the_task_of_the_documentation_passes_the_level_restricted() {
    let page = std::fs::read_to_string(deploy().join("../docs/tasks.md")).expect("docs/tasks.md");
    let (_, rest) = page.split_once("<<'END'\n").expect("a file is written");
    let (yaml, _) = rest.split_once("\nEND\n").expect("it ends");
    let template: serde_json::Value = serde_yaml_ng::from_str(yaml).expect("YAML");
    tenure_pods::execute::make::check(&template).expect("a pod");
    assert_eq!(tenure_kubedouble::restricted(&template), [""; 0]);
}

#[test]
fn only_who_is_named_reaches_the_server() {
    let policy = named("NetworkPolicy", "tenure-server");
    let rules = policy["spec"]["ingress"].as_sequence().expect("rules").clone();
    for rule in rules {
        let from = rule["from"].as_sequence().expect("from whom").clone();
        assert!(!from.is_empty() && from.iter().all(|f| f["ipBlock"].is_null()), "{rule:?}");
        for who in from {
            let chosen =
                |s: &str| who[s]["matchLabels"].as_mapping().is_some_and(|m| !m.is_empty());
            assert!(chosen("podSelector") || chosen("namespaceSelector"), "{who:?}");
        }
    }
}
