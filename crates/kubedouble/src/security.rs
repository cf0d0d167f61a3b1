//! The level `restricted` of Kubernetes' Pod Security Standards, as the admission plugin `PodSecurity` judges it: what of a pod it names, and in
//! which words. Pure. Left out are fields that no pod here has: `procMount`, sysctls, SELinux and AppArmor options, Windows.

use serde_json::Value;

/// What a namespace says about pods that the level does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodSecurity {
    /// They are refused: `pod-security.kubernetes.io/enforce`.
    Enforce,
    /// They are taken, and whoever asked is warned: `pod-security.kubernetes.io/warn`.
    Warn,
}

/// Volumes that the level allows.
const VOLUMES: [&str; 8] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

/// What the level does not allow in a pod, in the plugin's words; empty where it allows everything.
pub fn restricted(pod: &Value) -> Vec<String> {
    let spec = &pod["spec"];
    let containers: Vec<&Value> = ["initContainers", "containers", "ephemeralContainers"]
        .iter()
        .filter_map(|list| spec[*list].as_array())
        .flatten()
        .collect();
    let names = |wrong: &dyn Fn(&Value) -> bool| -> Option<String> {
        let found = containers.iter().filter(|c| wrong(c));
        let found: Vec<String> = found.map(|c| c["name"].to_string()).collect();
        let plural = if found.len() > 1 { "containers" } else { "container" };
        (!found.is_empty()).then(|| format!("{plural} {}", found.join(", ")))
    };
    // What a container does not say its pod says for it.
    let of_pod = |field: &str| &spec["securityContext"][field];
    let mut problems = Vec::new();
    let mut says = |what: &str, who: Option<String>, must: &str| {
        problems.extend(who.map(|who| format!("{what} ({who} must {must})")));
    };
    let shared = ["hostNetwork", "hostPID", "hostIPC"].iter().filter(|f| spec[**f] == true);
    let shared: Vec<String> = shared.map(|f| format!("{f}=true")).collect();
    says(
        "host namespaces",
        (!shared.is_empty()).then(|| "pod".to_owned()),
        &format!("not set {}", shared.join(", ")),
    );
    says(
        "privileged",
        names(&|c| c["securityContext"]["privileged"] == true),
        "not set securityContext.privileged=true",
    );
    says(
        "hostPort",
        names(&|c| c["ports"].as_array().is_some_and(|p| p.iter().any(|p| p["hostPort"].is_u64()))),
        "not use hostPorts",
    );
    let volumes = spec["volumes"].as_array().into_iter().flatten();
    let barred = volumes.filter(|v| {
        v.as_object()
            .is_some_and(|v| v.keys().any(|k| k != "name" && !VOLUMES.contains(&k.as_str())))
    });
    let barred: Vec<String> = barred.map(|v| v["name"].to_string()).collect();
    says(
        "restricted volume types",
        (!barred.is_empty()).then(|| format!("volumes {}", barred.join(", "))),
        "be of an allowed type",
    );
    says(
        "allowPrivilegeEscalation != false",
        names(&|c| c["securityContext"]["allowPrivilegeEscalation"] != false),
        "set securityContext.allowPrivilegeEscalation=false",
    );
    says(
        "unrestricted capabilities",
        names(&|c| {
            let of = |list: &str| c["securityContext"]["capabilities"][list].as_array().cloned();
            let drops = of("drop").is_some_and(|all| all.iter().any(|d| d == "ALL"));
            let adds = of("add").is_some_and(|all| all.iter().any(|a| a != "NET_BIND_SERVICE"));
            !drops || adds
        }),
        "set securityContext.capabilities.drop=[\"ALL\"]",
    );
    says(
        "runAsNonRoot != true",
        names(&|c| match &c["securityContext"]["runAsNonRoot"] {
            Value::Null => *of_pod("runAsNonRoot") != true,
            own => *own != true,
        }),
        "set securityContext.runAsNonRoot=true, in the pod or itself",
    );
    says(
        "runAsUser=0",
        names(&|c| match &c["securityContext"]["runAsUser"] {
            Value::Null => *of_pod("runAsUser") == 0,
            own => *own == 0,
        }),
        "not set runAsUser=0",
    );
    says(
        "seccompProfile",
        names(&|c| {
            let own = &c["securityContext"]["seccompProfile"]["type"];
            let kind = if own.is_null() { &of_pod("seccompProfile")["type"] } else { own };
            *kind != "RuntimeDefault" && *kind != "Localhost"
        }),
        "set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\", in the pod or itself",
    );
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn good() -> Value {
        json!({ "spec": {
            "securityContext": { "runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": { "type": "RuntimeDefault" } },
            "volumes": [{ "name": "v", "emptyDir": {} }],
            "containers": [{ "name": "main", "securityContext": {
                "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"], "add": ["NET_BIND_SERVICE"] } } }],
        } })
    }

    #[test]
    fn every_rule_names_what_it_does_not_allow() {
        assert_eq!(restricted(&good()), [""; 0]);
        let with = |path: &str, value: Value| {
            let mut pod = good();
            let (parent, field) = path.rsplit_once('/').unwrap();
            pod.pointer_mut(parent).unwrap()[field] = value;
            let found = restricted(&pod);
            assert_eq!(found.len(), 1, "{path}: {found:?}");
            found[0].split(" (").next().unwrap().to_owned()
        };
        let c = "/spec/containers/0";
        assert_eq!(with("/spec/hostPID", json!(true)), "host namespaces");
        assert_eq!(with(&format!("{c}/securityContext/privileged"), json!(true)), "privileged");
        assert_eq!(with(&format!("{c}/ports"), json!([{ "hostPort": 80 }])), "hostPort");
        let host = json!([{ "name": "v", "hostPath": { "path": "/" } }]);
        assert_eq!(with("/spec/volumes", host), "restricted volume types");
        assert_eq!(
            with(&format!("{c}/securityContext/allowPrivilegeEscalation"), Value::Null),
            "allowPrivilegeEscalation != false"
        );
        let adds = json!({ "drop": ["ALL"], "add": ["SYS_ADMIN"] });
        for capabilities in [json!({}), adds] {
            let path = format!("{c}/securityContext/capabilities");
            assert_eq!(with(&path, capabilities), "unrestricted capabilities");
        }
        assert_eq!(with("/spec/securityContext/runAsNonRoot", Value::Null), "runAsNonRoot != true");
        assert_eq!(with(&format!("{c}/securityContext/runAsUser"), json!(0)), "runAsUser=0");
        let open = json!({ "type": "Unconfined" });
        assert_eq!(with("/spec/securityContext/seccompProfile", open), "seccompProfile");
    }
}
