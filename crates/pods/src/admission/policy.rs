//! What the pods of a tenant may be.
//!
//! Without a grant a template stays within what Kubernetes calls *baseline*, names no secret and has no token of a service
//! account. Each [`Grant`] lifts one group of rules for one tenant (`pods.grants`). The groups are one table,
//! [`Grant::ALL`]; `docs/security.md` shows the same table, and a test compares them. `inspect` holds
//! the rules themselves: it takes every field of a pod apart, so that a field of a later version of Kubernetes does not
//! compile before somebody decided about it.

use super::{Forbidden, inspect::inspect};
use crate::execute::make;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// A group of rules that a tenant may be freed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grant {
    /// Secrets of the namespace.
    Secrets,
    /// Service accounts and their tokens.
    ServiceAccounts,
    /// Kinds of volumes beyond those of baseline that need no rights.
    Volumes,
    /// The node: its network, processes, files and ports.
    Host,
    /// What weakens the walls of a container.
    Privileged,
    /// Where and before whom a pod runs.
    Scheduling,
    /// Metadata by which controllers, services and agents of a cluster act.
    Metadata,
}

impl Grant {
    /// All of them, in the order of the documentation.
    pub const ALL: [Grant; 7] = [
        Grant::Secrets,
        Grant::ServiceAccounts,
        Grant::Volumes,
        Grant::Host,
        Grant::Privileged,
        Grant::Scheduling,
        Grant::Metadata,
    ];

    /// Its name in `pods.grants`.
    pub const fn name(self) -> &'static str {
        match self {
            Grant::Secrets => "secrets",
            Grant::ServiceAccounts => "service-accounts",
            Grant::Volumes => "volumes",
            Grant::Host => "host",
            Grant::Privileged => "privileged",
            Grant::Scheduling => "scheduling",
            Grant::Metadata => "metadata",
        }
    }

    /// What is refused without it.
    pub const fn refuses(self) -> &'static str {
        match self {
            Grant::Secrets => {
                "`secret` volumes and projections, `secretKeyRef`, `secretRef`, `imagePullSecrets`"
            }
            Grant::ServiceAccounts => {
                "a `serviceAccountName` other than `default`, `automountServiceAccountToken: true`, projected tokens and certificates"
            }
            Grant::Volumes => {
                "volumes other than `configMap`, `downwardAPI`, `emptyDir`, `ephemeral`, `image`, `persistentVolumeClaim`, `projected`; `hostPath` needs `host`, `secret` needs `secrets`"
            }
            Grant::Host => {
                "`hostNetwork`, `hostPID`, `hostIPC`, `hostPort`, `hostPath`, `host` of a probe or lifecycle hook, Windows `hostProcess`"
            }
            Grant::Privileged => {
                "`privileged`, `allowPrivilegeEscalation: true`, capabilities beyond baseline, `procMount`, `Unconfined` seccomp and AppArmor, `localhost` profiles, SELinux types beyond baseline, unsafe sysctls, Windows credential specs"
            }
            Grant::Scheduling => {
                "`priorityClassName`, `priority`, `preemptionPolicy`, `runtimeClassName`, `schedulerName`, tolerations of every taint and of `node-role.kubernetes.io/…`"
            }
            Grant::Metadata => {
                "`finalizers`, `ownerReferences`, the label `app.kubernetes.io/name: tenure`, annotations `container.apparmor.security.beta.kubernetes.io/…`, `seccomp.security.alpha.kubernetes.io/…`, `iam.amazonaws.com/…`, `vault.hashicorp.com/…`, `k8s.v1.cni.cncf.io/…`"
            }
        }
    }

    fn read(name: &str) -> Option<Grant> {
        Grant::ALL.into_iter().find(|g| g.name() == name)
    }

    /// The table of the documentation.
    pub fn table() -> String {
        let mut table = "| grant | refused without it |\n|---|---|\n".to_owned();
        for grant in Grant::ALL {
            table += &format!("| `{}` | {} |\n", grant.name(), grant.refuses());
        }
        table
    }
}

/// Which tenant has which grants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TemplatePolicy(BTreeMap<String, BTreeSet<Grant>>);

impl TemplatePolicy {
    /// `acme=secrets+service-accounts, beta=*`.
    pub fn read(text: &str) -> Result<Self, String> {
        let mut of = BTreeMap::new();
        for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            let Some((tenant, names)) = part.split_once('=').filter(|(t, _)| !t.trim().is_empty())
            else {
                return Err(format!(
                    "{part:?} is no tenant with its grants, such as acme=secrets+volumes or beta=*"
                ));
            };
            let mut grants = BTreeSet::new();
            for name in names.split('+').map(str::trim) {
                match (name, Grant::read(name)) {
                    ("*", _) => grants.extend(Grant::ALL),
                    (_, Some(grant)) => grants.extend([grant]),
                    (_, None) => {
                        let all = Grant::ALL.map(Grant::name).join(", ");
                        return Err(format!("{name:?} is no grant: give some of {all}, or *"));
                    }
                }
            }
            if of.insert(tenant.trim().to_owned(), grants).is_some() {
                return Err(format!("{part:?}: this tenant is there twice"));
            }
        }
        Ok(TemplatePolicy(of))
    }

    /// What a template of this tenant has that the tenant may not.
    pub fn problem(&self, tenant: &str, template: &Value) -> Option<Forbidden> {
        // It stands for a pod that is never made.
        if template.get(make::REFUSED).is_some_and(Value::is_string) {
            return None;
        }
        let pod = match make::check(template) {
            Ok(pod) => pod,
            Err(why) => {
                let (field, setting) = ("template".to_owned(), "pods.grants");
                return Some(Forbidden { field, why, setting });
            }
        };
        let granted = self.0.get(tenant);
        let mut found = inspect(&pod).into_iter();
        let found = found.find(|f| granted.is_none_or(|all| !all.contains(&f.grant)))?;
        let grant = found.grant.name();
        let why = format!(
            "tenant {tenant:?} may not have a pod with {}; it needs the grant `{grant}`",
            found.what
        );
        Some(Forbidden { field: format!("template.{}", found.field), why, setting: "pods.grants" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A template that has this under `spec`, and nothing else that is refused.
    fn pod(spec: &Value) -> Value {
        let mut template =
            json!({ "spec": { "containers": [{ "name": "main", "image": "busybox" }] } });
        for (name, value) in spec.as_object().unwrap() {
            template["spec"][name] = value.clone();
        }
        template
    }

    /// The same within its container.
    fn container(fields: &Value) -> Value {
        let mut all = json!({ "name": "main", "image": "busybox" });
        all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        pod(&json!({ "containers": [all] }))
    }

    fn volume(source: &Value) -> Value {
        let mut all = json!({ "name": "v" });
        all.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        pod(&json!({ "volumes": [all] }))
    }

    fn security(fields: &Value) -> Value {
        container(&json!({ "securityContext": fields }))
    }

    /// Every way to a secret, a token, the node or other tenants' pods, with the grant that allows it and its field.
    fn attacks() -> Vec<(Grant, &'static str, Value)> {
        use Grant::*;
        let secret = json!({ "name": "tenure", "key": "database-url" });
        let with_metadata = |metadata: Value| {
            let mut template = pod(&json!({}));
            template["metadata"] = metadata;
            template
        };
        let other = |list: &str, fields: Value| {
            let mut all = json!({ "name": "other", "image": "busybox" });
            all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            let mut template = pod(&json!({}));
            template["spec"][list] = json!([all]);
            template
        };
        let probe = json!({ "httpGet": { "host": "169.254.169.254", "port": 80 } });
        let selinux = json!({ "seLinuxOptions": { "type": "spc_t" } });
        vec![
            (
                Secrets,
                "spec.volumes[0].secret",
                volume(&json!({ "secret": { "secretName": "tenure" } })),
            ),
            (
                Secrets,
                "spec.volumes[0].projected.sources[0].secret",
                volume(
                    &json!({ "projected": { "sources": [{ "secret": { "name": "tenure" } }] } }),
                ),
            ),
            (
                Secrets,
                "spec.containers[0].env[0].valueFrom.secretKeyRef",
                container(
                    &json!({ "env": [{ "name": "A", "valueFrom": { "secretKeyRef": secret } }] }),
                ),
            ),
            (
                Secrets,
                "spec.containers[0].envFrom[0].secretRef",
                container(&json!({ "envFrom": [{ "secretRef": { "name": "tenure" } }] })),
            ),
            (
                Secrets,
                "spec.initContainers[0].envFrom[0].secretRef",
                other(
                    "initContainers",
                    json!({ "envFrom": [{ "secretRef": { "name": "tenure" } }] }),
                ),
            ),
            (
                Secrets,
                "spec.ephemeralContainers[0].envFrom[0].secretRef",
                other(
                    "ephemeralContainers",
                    json!({ "envFrom": [{ "secretRef": { "name": "tenure" } }] }),
                ),
            ),
            (
                Secrets,
                "spec.imagePullSecrets",
                pod(&json!({ "imagePullSecrets": [{ "name": "tenure" }] })),
            ),
            (
                ServiceAccounts,
                "spec.serviceAccountName",
                pod(&json!({ "serviceAccountName": "tenure-executor" })),
            ),
            (
                ServiceAccounts,
                "spec.serviceAccount",
                pod(&json!({ "serviceAccount": "tenure-executor" })),
            ),
            (
                ServiceAccounts,
                "spec.automountServiceAccountToken",
                pod(&json!({ "automountServiceAccountToken": true })),
            ),
            (
                ServiceAccounts,
                "spec.volumes[0].projected.sources[0].serviceAccountToken",
                volume(
                    &json!({ "projected": { "sources": [{ "serviceAccountToken": { "path": "token" } }] } }),
                ),
            ),
            (
                ServiceAccounts,
                "spec.volumes[0].projected.sources[0].podCertificate",
                volume(&json!({ "projected": { "sources": [
                    { "podCertificate": { "signerName": "a/b", "keyType": "ED25519" } }] } })),
            ),
            (Host, "spec.volumes[0].hostPath", volume(&json!({ "hostPath": { "path": "/" } }))),
            (
                Volumes,
                "spec.volumes[0].nfs",
                volume(&json!({ "nfs": { "server": "10.0.0.1", "path": "/" } })),
            ),
            (
                Volumes,
                "spec.volumes[0].csi",
                volume(&json!({ "csi": { "driver": "secrets-store.csi.k8s.io" } })),
            ),
            (
                Volumes,
                "spec.volumes[0].gitRepo",
                volume(&json!({ "gitRepo": { "repository": "https://e.com/r" } })),
            ),
            (
                Volumes,
                "spec.volumes[0].flexVolume",
                volume(&json!({ "flexVolume": { "driver": "a/b" } })),
            ),
            (Host, "spec.hostNetwork", pod(&json!({ "hostNetwork": true }))),
            (Host, "spec.hostPID", pod(&json!({ "hostPID": true }))),
            (Host, "spec.hostIPC", pod(&json!({ "hostIPC": true }))),
            (
                Host,
                "spec.containers[0].ports[0].hostPort",
                container(&json!({ "ports": [{ "containerPort": 80, "hostPort": 80 }] })),
            ),
            (
                Host,
                "spec.containers[0].livenessProbe.httpGet.host",
                container(&json!({ "livenessProbe": probe })),
            ),
            (
                Host,
                "spec.containers[0].lifecycle.postStart.httpGet.host",
                container(&json!({ "lifecycle": { "postStart": probe } })),
            ),
            (
                Host,
                "spec.containers[0].readinessProbe.tcpSocket.host",
                container(
                    &json!({ "readinessProbe": { "tcpSocket": { "host": "127.0.0.1", "port": 1 } } }),
                ),
            ),
            (
                Host,
                "spec.containers[0].securityContext.windowsOptions.hostProcess",
                security(&json!({ "windowsOptions": { "hostProcess": true } })),
            ),
            (
                Host,
                "spec.securityContext.windowsOptions.hostProcess",
                pod(&json!({ "securityContext": { "windowsOptions": { "hostProcess": true } } })),
            ),
            (
                Privileged,
                "spec.containers[0].securityContext.privileged",
                security(&json!({ "privileged": true })),
            ),
            (
                Privileged,
                "spec.initContainers[0].securityContext.privileged",
                other("initContainers", json!({ "securityContext": { "privileged": true } })),
            ),
            (
                Privileged,
                "spec.ephemeralContainers[0].securityContext.privileged",
                other("ephemeralContainers", json!({ "securityContext": { "privileged": true } })),
            ),
            (
                Privileged,
                "spec.containers[0].securityContext.allowPrivilegeEscalation",
                security(&json!({ "allowPrivilegeEscalation": true })),
            ),
            (
                Privileged,
                "spec.containers[0].securityContext.capabilities.add",
                security(&json!({ "capabilities": { "add": ["CHOWN", "SYS_ADMIN"] } })),
            ),
            (
                Privileged,
                "spec.containers[0].securityContext.capabilities.add",
                security(&json!({ "capabilities": { "add": ["ALL"] } })),
            ),
            (
                Privileged,
                "spec.containers[0].securityContext.procMount",
                security(&json!({ "procMount": "Unmasked" })),
            ),
            (
                Privileged,
                "spec.containers[0].securityContext.seccompProfile",
                security(&json!({ "seccompProfile": { "type": "Unconfined" } })),
            ),
            (
                Privileged,
                "spec.securityContext.seccompProfile",
                pod(&json!({ "securityContext": { "seccompProfile": { "type": "Unconfined" } } })),
            ),
            (
                Privileged,
                "spec.securityContext.appArmorProfile",
                pod(&json!({ "securityContext": { "appArmorProfile": { "type": "Unconfined" } } })),
            ),
            (
                Privileged,
                "spec.securityContext.seLinuxOptions",
                pod(&json!({ "securityContext": selinux })),
            ),
            (Privileged, "spec.containers[0].securityContext.seLinuxOptions", security(&selinux)),
            (
                Privileged,
                "spec.securityContext.sysctls",
                pod(
                    &json!({ "securityContext": { "sysctls": [{ "name": "kernel.msgmax", "value": "1" }] } }),
                ),
            ),
            (
                Privileged,
                "spec.securityContext.windowsOptions.gmsaCredentialSpecName",
                pod(
                    &json!({ "securityContext": { "windowsOptions": { "gmsaCredentialSpecName": "x" } } }),
                ),
            ),
            (
                Scheduling,
                "spec.priorityClassName",
                pod(&json!({ "priorityClassName": "system-node-critical" })),
            ),
            (Scheduling, "spec.runtimeClassName", pod(&json!({ "runtimeClassName": "weak" }))),
            (Scheduling, "spec.schedulerName", pod(&json!({ "schedulerName": "mine" }))),
            (
                Scheduling,
                "spec.tolerations[0]",
                pod(&json!({ "tolerations": [{ "operator": "Exists" }] })),
            ),
            (
                Scheduling,
                "spec.tolerations[0]",
                pod(
                    &json!({ "tolerations": [{ "key": "node-role.kubernetes.io/control-plane", "operator": "Exists" }] }),
                ),
            ),
            (Metadata, "metadata.finalizers", with_metadata(json!({ "finalizers": ["a/b"] }))),
            (
                Metadata,
                "metadata.ownerReferences",
                with_metadata(json!({ "ownerReferences": [
                { "apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "y" }] })),
            ),
            (
                Metadata,
                "metadata.labels[app.kubernetes.io/name]",
                with_metadata(json!({ "labels": { "app.kubernetes.io/name": "tenure" } })),
            ),
            (
                Metadata,
                "metadata.annotations[iam.amazonaws.com/role]",
                with_metadata(json!({ "annotations": { "iam.amazonaws.com/role": "admin" } })),
            ),
        ]
    }

    #[test]
    fn every_way_to_a_secret_or_the_node_is_refused_unless_it_is_granted() {
        let strict = TemplatePolicy::default();
        for (grant, field, template) in attacks() {
            let refused = strict.problem("acme", &template);
            let refused = refused.unwrap_or_else(|| panic!("{field} is allowed: {template}"));
            assert_eq!(refused.field, format!("template.{field}"), "{template}");
            assert!(refused.why.contains(&format!("`{}`", grant.name())), "{}", refused.why);
            let granting =
                |tenant: &str| TemplatePolicy::read(&format!("{tenant}={}", grant.name())).unwrap();
            assert_eq!(granting("acme").problem("acme", &template), None, "{field}");
            assert!(granting("beta").problem("acme", &template).is_some(), "{field}");
            let others = Grant::ALL.into_iter().filter(|g| *g != grant).map(Grant::name);
            let others = format!("acme={}", others.collect::<Vec<_>>().join("+"));
            let others = TemplatePolicy::read(&others).unwrap();
            assert!(others.problem("acme", &template).is_some(), "{field} by another grant");
        }
    }

    #[test]
    fn an_ordinary_pod_needs_no_grant() {
        let ordinary = json!({
            "metadata": { "labels": { "team": "a" }, "annotations": { "note": "x" } },
            "spec": {
                "containers": [{
                    "name": "main", "image": "busybox", "ports": [{ "containerPort": 80 }],
                    "env": [
                        { "name": "A", "value": "b" },
                        { "name": "B", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } },
                        { "name": "C", "valueFrom": { "configMapKeyRef": { "name": "c", "key": "k" } } },
                    ],
                    "livenessProbe": { "httpGet": { "path": "/", "port": 80 } },
                    "securityContext": {
                        "allowPrivilegeEscalation": false, "privileged": false, "procMount": "Default", "runAsUser": 0,
                        "capabilities": { "drop": ["ALL"], "add": ["NET_BIND_SERVICE"] },
                        "seccompProfile": { "type": "RuntimeDefault" },
                    },
                    "resources": { "limits": { "nvidia.com/gpu": "1" } },
                    "volumeMounts": [{ "name": "scratch", "mountPath": "/s" }],
                }],
                "initContainers": [{ "name": "before", "image": "busybox" }],
                "serviceAccountName": "default", "automountServiceAccountToken": false, "hostNetwork": false,
                "nodeSelector": { "gpu": "true" },
                "tolerations": [{ "key": "nvidia.com/gpu", "operator": "Exists" }],
                "securityContext": { "runAsNonRoot": true, "sysctls": [{ "name": "net.ipv4.tcp_syncookies", "value": "1" }] },
                "volumes": [
                    { "name": "scratch", "emptyDir": {} },
                    { "name": "data", "persistentVolumeClaim": { "claimName": "data" } },
                    { "name": "c", "configMap": { "name": "c" } },
                    { "name": "p", "projected": { "sources": [{ "configMap": { "name": "c" } }, { "downwardAPI": {} }] } },
                ],
            },
        });
        assert_eq!(TemplatePolicy::default().problem("acme", &ordinary), None);
    }

    #[test]
    fn grants_that_cannot_be_read_say_so() {
        for bad in ["acme", "=secrets", "acme=", "acme=secret", "acme=host, acme=volumes"] {
            assert!(TemplatePolicy::read(bad).is_err(), "{bad}");
        }
        assert!(TemplatePolicy::read("acme = secrets + host, beta = *").is_ok());
        let unreadable =
            json!({ "spec": { "containers": [{ "image": "i", "fromTheFuture": 1 }] } });
        let all = TemplatePolicy::read("acme=*").unwrap();
        assert!(all.problem("acme", &unreadable).is_some(), "what cannot be read is not let in");
        assert_eq!(all.problem("acme", &json!({ make::REFUSED: "why" })), None);
    }

    #[test]
    fn the_documentation_has_the_same_table() {
        let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/security.md");
        let docs = std::fs::read_to_string(docs).unwrap();
        assert!(docs.contains(&Grant::table()), "docs/security.md needs:\n{}", Grant::table());
    }
}
