//! What a pod has that needs a grant. Every structure is taken apart without `..` where a field of it could matter, so
//! that a field of a later version of Kubernetes does not compile before somebody decided about it.

use super::Grant;
use k8s_openapi::api::core::v1::{
    AppArmorProfile, Container, ContainerPort, EnvFromSource, EnvVar, EnvVarSource,
    EphemeralContainer, HTTPGetAction, Lifecycle, LifecycleHandler, Pod, PodSecurityContext,
    PodSpec, Probe, ProjectedVolumeSource, SELinuxOptions, SeccompProfile, SecurityContext, Sysctl,
    TCPSocketAction, Toleration, Volume, VolumeProjection, WindowsSecurityContextOptions,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Something that needs a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Which grant.
    pub grant: Grant,
    /// The field, as Kubernetes writes it.
    pub field: String,
    /// What it is, for people.
    pub what: String,
}

/// Capabilities that baseline lets a container add.
const CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// Sysctls that baseline allows: they hold for the pod alone.
const SYSCTLS: [&str; 10] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_syncookies",
];

/// SELinux types that baseline allows.
const SELINUX: [&str; 4] =
    ["container_t", "container_init_t", "container_kvm_t", "container_engine_t"];

/// Annotations by which agents of a cluster give a pod rights, credentials or networks.
const ANNOTATIONS: [&str; 5] = [
    "container.apparmor.security.beta.kubernetes.io/",
    "seccomp.security.alpha.kubernetes.io/",
    "iam.amazonaws.com/",
    "vault.hashicorp.com/",
    "k8s.v1.cni.cncf.io/",
];

/// By this label the shipped Services and network policies know Tenure's own pods.
const NAME_LABEL: (&str, &str) = ("app.kubernetes.io/name", "tenure");

#[derive(Default)]
struct Finder(Vec<Found>);

/// Everything of a pod that needs a grant, in the order of its fields.
pub(super) fn inspect(pod: &Pod) -> Vec<Found> {
    let mut finder = Finder::default();
    let Pod { metadata, spec, status: _ } = pod;
    finder.metadata(metadata);
    if let Some(spec) = spec {
        finder.spec(spec);
    }
    finder.0
}

impl Finder {
    /// Notes a field if it is as it may not be.
    fn note(&mut self, found: bool, grant: Grant, field: impl Into<String>) {
        if found {
            let field = field.into();
            let what = format!("`{}`", field.rsplit('.').next().unwrap_or(&field));
            self.0.push(Found { grant, field, what });
        }
    }

    fn metadata(&mut self, metadata: &ObjectMeta) {
        // The rest is set by whoever makes the pod, or means nothing before it is made.
        let ObjectMeta { finalizers, owner_references, labels, annotations, .. } = metadata;
        self.note(some(finalizers), Grant::Metadata, "metadata.finalizers");
        self.note(some(owner_references), Grant::Metadata, "metadata.ownerReferences");
        let (name, ours) = NAME_LABEL;
        let is_ours = labels.iter().flatten().any(|(k, v)| k == name && v == ours);
        self.note(is_ours, Grant::Metadata, format!("metadata.labels[{name}]"));
        for key in annotations.iter().flatten().map(|(key, _)| key) {
            let acts = ANNOTATIONS.iter().any(|prefix| key.starts_with(prefix));
            self.note(acts, Grant::Metadata, format!("metadata.annotations[{key}]"));
        }
    }

    fn spec(&mut self, spec: &PodSpec) {
        let PodSpec {
            automount_service_account_token,
            containers,
            ephemeral_containers,
            host_ipc,
            host_network,
            host_pid,
            image_pull_secrets,
            init_containers,
            preemption_policy,
            priority,
            priority_class_name,
            runtime_class_name,
            scheduler_name,
            security_context,
            service_account,
            service_account_name,
            tolerations,
            volumes,
            // The executor removes it.
            node_name: _,
            // Without a user namespace of its own is how every pod runs that says nothing.
            host_users: _,
            // These concern the pod itself, or choose among what the cluster offers to everybody.
            active_deadline_seconds: _,
            affinity: _,
            dns_config: _,
            dns_policy: _,
            enable_service_links: _,
            eviction_responders: _,
            host_aliases: _,
            hostname: _,
            hostname_override: _,
            node_selector: _,
            os: _,
            overhead: _,
            readiness_gates: _,
            resource_claims: _,
            resources: _,
            restart_policy: _,
            scheduling_gates: _,
            scheduling_group: _,
            set_hostname_as_fqdn: _,
            share_process_namespace: _,
            subdomain: _,
            termination_grace_period_seconds: _,
            topology_spread_constraints: _,
        } = spec;
        use Grant::{Host, Scheduling, Secrets, ServiceAccounts};
        let foreign = |name: &Option<String>| {
            name.as_deref().is_some_and(|n| !n.is_empty() && n != "default")
        };
        self.note(foreign(service_account_name), ServiceAccounts, "spec.serviceAccountName");
        self.note(foreign(service_account), ServiceAccounts, "spec.serviceAccount");
        let token = *automount_service_account_token == Some(true);
        self.note(token, ServiceAccounts, "spec.automountServiceAccountToken");
        self.note(some(image_pull_secrets), Secrets, "spec.imagePullSecrets");
        self.note(*host_network == Some(true), Host, "spec.hostNetwork");
        self.note(*host_pid == Some(true), Host, "spec.hostPID");
        self.note(*host_ipc == Some(true), Host, "spec.hostIPC");
        let named = |name: &Option<String>| name.as_deref().is_some_and(|n| !n.is_empty());
        self.note(named(priority_class_name), Scheduling, "spec.priorityClassName");
        self.note(priority.is_some_and(|p| p != 0), Scheduling, "spec.priority");
        self.note(named(preemption_policy), Scheduling, "spec.preemptionPolicy");
        self.note(named(runtime_class_name), Scheduling, "spec.runtimeClassName");
        let scheduler = scheduler_name.as_deref().unwrap_or_default();
        let other = !["", "default-scheduler"].contains(&scheduler);
        self.note(other, Scheduling, "spec.schedulerName");
        for (n, toleration) in tolerations.iter().flatten().enumerate() {
            let wide = tolerates_too_much(toleration);
            self.note(wide, Scheduling, format!("spec.tolerations[{n}]"));
        }
        if let Some(context) = security_context {
            self.pod_security(context);
        }
        for (n, volume) in volumes.iter().flatten().enumerate() {
            self.volume(volume, &format!("spec.volumes[{n}]"));
        }
        for (n, container) in containers.iter().enumerate() {
            self.container(&Walls::of(container), &format!("spec.containers[{n}]"));
        }
        for (n, container) in init_containers.iter().flatten().enumerate() {
            self.container(&Walls::of(container), &format!("spec.initContainers[{n}]"));
        }
        for (n, container) in ephemeral_containers.iter().flatten().enumerate() {
            let at = format!("spec.ephemeralContainers[{n}]");
            self.container(&Walls::of_ephemeral(container), &at);
        }
    }

    fn pod_security(&mut self, context: &PodSecurityContext) {
        let PodSecurityContext {
            app_armor_profile,
            se_linux_options,
            seccomp_profile,
            sysctls,
            windows_options,
            // Which user a container is inside; baseline leaves that free.
            fs_group: _,
            fs_group_change_policy: _,
            run_as_group: _,
            run_as_non_root: _,
            run_as_user: _,
            se_linux_change_policy: _,
            supplemental_groups: _,
            supplemental_groups_policy: _,
        } = context;
        let at = "spec.securityContext";
        self.profiles(app_armor_profile, seccomp_profile, se_linux_options, at);
        let unsafe_one = |s: &Sysctl| !SYSCTLS.contains(&s.name.as_str());
        let unsafe_one = sysctls.iter().flatten().any(unsafe_one);
        self.note(unsafe_one, Grant::Privileged, format!("{at}.sysctls"));
        self.windows(windows_options, at);
    }

    fn profiles(
        &mut self,
        app_armor: &Option<AppArmorProfile>,
        seccomp: &Option<SeccompProfile>,
        se_linux: &Option<SELinuxOptions>,
        at: &str,
    ) {
        let plain = |kind: &str| kind == "RuntimeDefault";
        let armor = app_armor.as_ref().is_some_and(|p| !plain(&p.type_));
        self.note(armor, Grant::Privileged, format!("{at}.appArmorProfile"));
        let filter = seccomp.as_ref().is_some_and(|p| !plain(&p.type_));
        self.note(filter, Grant::Privileged, format!("{at}.seccompProfile"));
        let labels = se_linux.as_ref().is_some_and(|options| {
            let SELinuxOptions { level: _, role, type_, user } = options;
            let said = |t: &Option<String>| t.as_deref().is_some_and(|t| !t.is_empty());
            let kind = type_.as_deref().unwrap_or_default();
            said(role) || said(user) || !(kind.is_empty() || SELINUX.contains(&kind))
        });
        self.note(labels, Grant::Privileged, format!("{at}.seLinuxOptions"));
    }

    fn windows(&mut self, options: &Option<WindowsSecurityContextOptions>, at: &str) {
        let Some(options) = options else { return };
        let WindowsSecurityContextOptions {
            gmsa_credential_spec,
            gmsa_credential_spec_name,
            host_process,
            run_as_user_name: _,
        } = options;
        let at = format!("{at}.windowsOptions");
        self.note(*host_process == Some(true), Grant::Host, format!("{at}.hostProcess"));
        let spec = gmsa_credential_spec.is_some();
        self.note(spec, Grant::Privileged, format!("{at}.gmsaCredentialSpec"));
        let named = gmsa_credential_spec_name.is_some();
        self.note(named, Grant::Privileged, format!("{at}.gmsaCredentialSpecName"));
    }

    fn volume(&mut self, volume: &Volume, at: &str) {
        let Volume {
            aws_elastic_block_store,
            azure_disk,
            azure_file,
            cephfs,
            cinder,
            csi,
            fc,
            flex_volume,
            flocker,
            gce_persistent_disk,
            git_repo,
            glusterfs,
            host_path,
            iscsi,
            nfs,
            photon_persistent_disk,
            portworx_volume,
            projected,
            quobyte,
            rbd,
            scale_io,
            secret,
            storageos,
            vsphere_volume,
            // What is the pod's own, or what the namespace offers to every pod in it.
            config_map: _,
            downward_api: _,
            empty_dir: _,
            ephemeral: _,
            image: _,
            name: _,
            persistent_volume_claim: _,
        } = volume;
        self.note(secret.is_some(), Grant::Secrets, format!("{at}.secret"));
        self.note(host_path.is_some(), Grant::Host, format!("{at}.hostPath"));
        for (named, source) in [
            (aws_elastic_block_store.is_some(), "awsElasticBlockStore"),
            (azure_disk.is_some(), "azureDisk"),
            (azure_file.is_some(), "azureFile"),
            (cephfs.is_some(), "cephfs"),
            (cinder.is_some(), "cinder"),
            (csi.is_some(), "csi"),
            (fc.is_some(), "fc"),
            (flex_volume.is_some(), "flexVolume"),
            (flocker.is_some(), "flocker"),
            (gce_persistent_disk.is_some(), "gcePersistentDisk"),
            (git_repo.is_some(), "gitRepo"),
            (glusterfs.is_some(), "glusterfs"),
            (iscsi.is_some(), "iscsi"),
            (nfs.is_some(), "nfs"),
            (photon_persistent_disk.is_some(), "photonPersistentDisk"),
            (portworx_volume.is_some(), "portworxVolume"),
            (quobyte.is_some(), "quobyte"),
            (rbd.is_some(), "rbd"),
            (scale_io.is_some(), "scaleIO"),
            (storageos.is_some(), "storageos"),
            (vsphere_volume.is_some(), "vsphereVolume"),
        ] {
            self.note(named, Grant::Volumes, format!("{at}.{source}"));
        }
        let sources = projected.iter().flat_map(|ProjectedVolumeSource { sources, .. }| sources);
        for (n, source) in sources.flatten().enumerate() {
            let VolumeProjection {
                pod_certificate,
                secret,
                service_account_token,
                // Public certificates of the cluster.
                cluster_trust_bundle: _,
                config_map: _,
                downward_api: _,
            } = source;
            let at = format!("{at}.projected.sources[{n}]");
            self.note(secret.is_some(), Grant::Secrets, format!("{at}.secret"));
            let token = service_account_token.is_some();
            self.note(token, Grant::ServiceAccounts, format!("{at}.serviceAccountToken"));
            let certificate = pod_certificate.is_some();
            self.note(certificate, Grant::ServiceAccounts, format!("{at}.podCertificate"));
        }
    }

    fn container(&mut self, walls: &Walls<'_>, at: &str) {
        let Walls { env, env_from, lifecycle, probes, ports, security } = *walls;
        for (n, EnvVar { value_from, .. }) in env.iter().flatten().enumerate() {
            let Some(EnvVarSource {
                secret_key_ref,
                config_map_key_ref: _,
                field_ref: _,
                file_key_ref: _,
                resource_field_ref: _,
            }) = value_from
            else {
                continue;
            };
            let field = format!("{at}.env[{n}].valueFrom.secretKeyRef");
            self.note(secret_key_ref.is_some(), Grant::Secrets, field);
        }
        for (n, source) in env_from.iter().flatten().enumerate() {
            let EnvFromSource { secret_ref, config_map_ref: _, prefix: _ } = source;
            let field = format!("{at}.envFrom[{n}].secretRef");
            self.note(secret_ref.is_some(), Grant::Secrets, field);
        }
        for (n, ContainerPort { host_port, .. }) in ports.iter().flatten().enumerate() {
            let taken = host_port.is_some_and(|p| p != 0);
            self.note(taken, Grant::Host, format!("{at}.ports[{n}].hostPort"));
        }
        // The kubelet makes these calls, from the node's own network.
        for (name, probe) in probes {
            let Some(Probe { http_get, tcp_socket, .. }) = probe else { continue };
            self.calls(http_get, tcp_socket, &format!("{at}.{name}"));
        }
        if let Some(Lifecycle { post_start, pre_stop, stop_signal: _ }) = lifecycle {
            for (name, handler) in [("postStart", post_start), ("preStop", pre_stop)] {
                let Some(LifecycleHandler { http_get, tcp_socket, exec: _, sleep: _ }) = handler
                else {
                    continue;
                };
                self.calls(http_get, tcp_socket, &format!("{at}.lifecycle.{name}"));
            }
        }
        if let Some(context) = security {
            self.security(context, &format!("{at}.securityContext"));
        }
    }

    fn calls(&mut self, http: &Option<HTTPGetAction>, tcp: &Option<TCPSocketAction>, at: &str) {
        let named = |host: &Option<String>| host.as_deref().is_some_and(|h| !h.is_empty());
        let by_http = http.as_ref().is_some_and(|get| named(&get.host));
        self.note(by_http, Grant::Host, format!("{at}.httpGet.host"));
        let by_tcp = tcp.as_ref().is_some_and(|socket| named(&socket.host));
        self.note(by_tcp, Grant::Host, format!("{at}.tcpSocket.host"));
    }

    fn security(&mut self, context: &SecurityContext, at: &str) {
        let SecurityContext {
            allow_privilege_escalation,
            app_armor_profile,
            capabilities,
            privileged,
            proc_mount,
            se_linux_options,
            seccomp_profile,
            windows_options,
            // Which user a container is inside; baseline leaves that free.
            read_only_root_filesystem: _,
            run_as_group: _,
            run_as_non_root: _,
            run_as_user: _,
        } = context;
        let more = Grant::Privileged;
        self.note(*privileged == Some(true), more, format!("{at}.privileged"));
        let rises = *allow_privilege_escalation == Some(true);
        self.note(rises, more, format!("{at}.allowPrivilegeEscalation"));
        let added = capabilities.iter().flat_map(|c| c.add.iter().flatten());
        let beyond =
            added.map(|c| c.strip_prefix("CAP_").unwrap_or(c)).any(|c| !CAPABILITIES.contains(&c));
        self.note(beyond, more, format!("{at}.capabilities.add"));
        let unmasked = proc_mount.as_deref().is_some_and(|m| !["", "Default"].contains(&m));
        self.note(unmasked, more, format!("{at}.procMount"));
        self.profiles(app_armor_profile, seccomp_profile, se_linux_options, at);
        self.windows(windows_options, at);
    }
}

fn some<T>(list: &Option<Vec<T>>) -> bool {
    list.as_ref().is_some_and(|l| !l.is_empty())
}

/// Whether it reaches nodes that are kept for the cluster itself.
fn tolerates_too_much(toleration: &Toleration) -> bool {
    let key = toleration.key.as_deref().unwrap_or_default();
    key.is_empty() || key.starts_with("node-role.kubernetes.io/")
}

/// What of a container could lead out of it. Containers and ephemeral containers are two types with the same fields.
#[derive(Clone, Copy)]
struct Walls<'a> {
    env: &'a Option<Vec<EnvVar>>,
    env_from: &'a Option<Vec<EnvFromSource>>,
    lifecycle: &'a Option<Lifecycle>,
    probes: [(&'static str, &'a Option<Probe>); 3],
    ports: &'a Option<Vec<ContainerPort>>,
    security: &'a Option<SecurityContext>,
}

impl<'a> Walls<'a> {
    fn of(container: &'a Container) -> Self {
        let Container {
            env,
            env_from,
            lifecycle,
            liveness_probe,
            ports,
            readiness_probe,
            security_context,
            startup_probe,
            // What runs inside, and with how much.
            args: _,
            command: _,
            image: _,
            image_pull_policy: _,
            name: _,
            resize_policy: _,
            resources: _,
            restart_policy: _,
            restart_policy_rules: _,
            stdin: _,
            stdin_once: _,
            termination_message_path: _,
            termination_message_policy: _,
            tty: _,
            volume_devices: _,
            volume_mounts: _,
            working_dir: _,
        } = container;
        let probes = [
            ("livenessProbe", liveness_probe),
            ("readinessProbe", readiness_probe),
            ("startupProbe", startup_probe),
        ];
        Walls { env, env_from, lifecycle, probes, ports, security: security_context }
    }

    fn of_ephemeral(container: &'a EphemeralContainer) -> Self {
        let EphemeralContainer {
            env,
            env_from,
            lifecycle,
            liveness_probe,
            ports,
            readiness_probe,
            security_context,
            startup_probe,
            // What runs inside, and with how much.
            args: _,
            command: _,
            image: _,
            image_pull_policy: _,
            name: _,
            resize_policy: _,
            resources: _,
            restart_policy: _,
            restart_policy_rules: _,
            stdin: _,
            stdin_once: _,
            target_container_name: _,
            termination_message_path: _,
            termination_message_policy: _,
            tty: _,
            volume_devices: _,
            volume_mounts: _,
            working_dir: _,
        } = container;
        let probes = [
            ("livenessProbe", liveness_probe),
            ("readinessProbe", readiness_probe),
            ("startupProbe", startup_probe),
        ];
        Walls { env, env_from, lifecycle, probes, ports, security: security_context }
    }
}
