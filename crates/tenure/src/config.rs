//! Settings: one file, overridden by the environment, overridden by flags. Every value knows who set
//! it, and a bad one is refused at start with the key, the value and the fix.

mod outside;
mod parts;

pub use outside::{Kubernetes, other_variable};

use serde::Serialize;
use std::{collections::BTreeMap, fmt, path::Path, time::Duration};
use tenure_pods::{namespaces::Namespaces, verdict::Override};

/// What a key holds.
#[derive(Clone, Copy, Debug)]
enum Form {
    /// Seconds, may have a fraction; the smallest and largest allowed.
    Seconds(f64, f64),
    /// Seconds of a rule, up to this many; zero and less switch it off.
    Rule(f64),
    /// A whole number; the smallest and largest allowed.
    Number(u64, u64),
    /// One of these words.
    Word(&'static [&'static str]),
    /// Where the store is.
    StoreUrl,
    /// An address to listen at.
    Address,
    /// `true` or `false`.
    Switch,
    /// Where a bus is; may be empty.
    BusUrl,
    /// What stands before the subjects of a bus; may be empty.
    BusPrefix,
    /// Rows for the reason table of pods, as TOML.
    Reasons,
    /// Where Redis is.
    RedisAddresses,
    /// The name of a namespace; may be empty.
    Namespace,
    /// Tenants and their namespaces.
    Namespaces,
    /// The name of a node; may be empty.
    NodeName,
    /// May be empty.
    Anything,
    /// A filter for log lines.
    Text,
}

/// One setting.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Its name in the file; in the environment `TENURE_` and upper case with underscores.
    pub name: &'static str,
    default: &'static str,
    form: Form,
    /// What it does.
    pub doc: &'static str,
}

const DAY: f64 = 86_400.0;

/// Every setting there is.
pub static KEYS: &[Key] = &[
    Key {
        name: "agents.default_channel",
        default: "public",
        form: Form::Anything,
        doc: "the channel of turns that bring none and whose agent has none; empty: no bell is rung for them",
    },
    Key {
        name: "agents.must_end_by_seconds",
        default: "86400",
        form: Form::Seconds(1.0, 3_650.0 * DAY),
        doc: "a turn ends by then, whatever happens, unless its sender says otherwise",
    },
    Key {
        name: "agents.takeovers_max",
        default: "5",
        form: Form::Number(0, 1_000),
        doc: "lost workers after which a turn is given up",
    },
    Key {
        name: "bus.credentials_file",
        default: "",
        form: Form::Anything,
        doc: "a file that proves to the bus who we are: a .creds file of NATS, or one line with USER:PASSWORD or a token",
    },
    Key {
        name: "bus.jetstream",
        default: "false",
        form: Form::Switch,
        doc: "whether events go to a JetStream of NATS, which keeps them and knows repetitions; the stream tenure_evt is made if none takes evt.>",
    },
    Key {
        name: "bus.prefix",
        default: "",
        form: Form::BusPrefix,
        doc: "stands before every subject on the bus, for several deployments on one NATS or Redis: acme.prod makes acme.prod.evt.agent.ID.task",
    },
    Key {
        name: "bus.url",
        default: "",
        form: Form::BusUrl,
        doc: "NATS servers that carry bells and agents' events, nats://HOST:PORT or tls://HOST:PORT, or Redis servers that carry bells, redis:// or rediss://USER:PASSWORD@HOST:PORT, several with commas; without NATS events are in the feed only",
    },
    Key {
        name: "collector.drain_seconds",
        default: "20",
        form: Form::Seconds(0.0, 3_600.0),
        doc: "how long a collector that was asked to end tells what it has seen; the rest stays in its spool",
    },
    Key {
        name: "collector.lease",
        default: "tenure",
        form: Form::Anything,
        doc: "the Lease by which several collectors of one cluster agree on who speaks (by default with the mode behind it); none: all of them speak, and say the same",
    },
    Key {
        name: "collector.lease_namespace",
        default: "",
        form: Form::Anything,
        doc: "where that Lease is; empty: in the namespace of the collector's account",
    },
    Key {
        name: "collector.lease_seconds",
        default: "15",
        form: Form::Seconds(1.0, 3_600.0),
        doc: "how long a collector that speaks may be silent before another one does",
    },
    Key {
        name: "collector.listen",
        default: "127.0.0.1:9091",
        form: Form::Address,
        doc: "where a collector answers /healthz, /readyz and /metrics; in a pod 0.0.0.0:9091",
    },
    Key {
        name: "collector.mode",
        default: "auto",
        form: Form::Word(&["auto", "node", "cluster", "sweeper"]),
        doc: "which pods a collector looks at: of its node, of the cluster, or those that no collector on a node can see; auto: node if a node is named, else cluster",
    },
    Key {
        name: "collector.relist_seconds",
        default: "600",
        form: Form::Seconds(1.0, DAY),
        doc: "how often a collector lists all its pods although its watch seems well; a fifth more or less",
    },
    Key {
        name: "collector.server",
        default: "",
        form: Form::Anything,
        doc: "the server that a collector tells what it saw, durably: http://HOST:PORT; empty: Redis alone is told",
    },
    Key {
        name: "collector.silence_seconds",
        default: "90",
        form: Form::Seconds(0.1, 3_600.0),
        doc: "a watch that has said nothing for so long, not even a bookmark, is opened anew; API servers send a bookmark a minute",
    },
    Key {
        name: "collector.spool",
        default: ".tenure/collector",
        form: Form::Anything,
        doc: "the directory in which reports wait that nobody has taken yet; none: in memory, and a restart forgets them",
    },
    Key {
        name: "collector.spool_age_max_seconds",
        default: "86400",
        form: Form::Seconds(1.0, 3_650.0 * DAY),
        doc: "states that are not final, and hints that the server has taken, are dropped when they are older than this",
    },
    Key {
        name: "collector.spool_bytes_max",
        default: "67108864",
        form: Form::Number(tenure_pods::collect::SPOOL_BYTES_MIN, 1 << 40),
        doc: "the most that may wait; when it is full a collector stops reading rather than lose an end",
    },
    Key {
        name: "collector.spool_sync",
        default: "final",
        form: Form::Word(&["always", "final", "never"]),
        doc: "after which writes of the spool the disk is waited for: all, those with a final state, none; the death of the process alone loses nothing in any case",
    },
    Key {
        name: "collector.sweep_after_seconds",
        default: "60",
        form: Form::Seconds(0.0, DAY),
        doc: "how long a sweeper leaves a pod to the collector of its node before it tells the server itself",
    },
    Key {
        name: "effects.directory",
        default: "",
        form: Form::Anything,
        doc: "a directory in which results of tools lie before they count; empty keeps them in the store, in one commit with their events",
    },
    Key {
        name: "evidence.key_file",
        default: "",
        form: Form::Anything,
        doc: "the Ed25519 private key (PEM, from `tenure evidence key`) that signs exports; empty: exports are chained, not signed",
    },
    Key {
        name: "executor.backoff",
        default: "1",
        form: Form::Seconds(0.0, DAY),
        doc: "the pause before the first retry of a failed call; it doubles, with jitter",
    },
    Key {
        name: "executor.backoff_max",
        default: "300",
        form: Form::Seconds(0.0, DAY),
        doc: "the longest pause between two tries",
    },
    Key {
        name: "executor.retry_max",
        default: "3",
        form: Form::Number(0, 1_000),
        doc: "tries of a failed call after the first",
    },
    Key {
        name: "executor.step_timeout",
        default: "300",
        form: Form::Seconds(0.01, 30.0 * DAY),
        doc: "how long one call of a tool may take; a worker that shows no progress for longer loses the job",
    },
    Key {
        name: "executor.stop_grace",
        default: "2",
        form: Form::Seconds(0.0, 600.0),
        doc: "how long a tool may take to stop once it was asked to",
    },
    Key {
        name: "job.must_end_by_seconds",
        default: "604800",
        form: Form::Seconds(1.0, 3_650.0 * DAY),
        doc: "a job ends by then, whatever happens, unless its submission says otherwise",
    },
    Key {
        name: "job.park_after_seconds",
        default: "60",
        form: Form::Seconds(0.0, 3_650.0 * DAY),
        doc: "a job that waits for longer than this is parked, not waiting",
    },
    Key {
        name: "job.takeovers_max",
        default: "5",
        form: Form::Number(0, 1_000),
        doc: "lost workers after which a job is given up",
    },
    Key {
        name: "kubernetes.in_cluster",
        default: "false",
        form: Form::Switch,
        doc: "whether the collector and the executor run in the cluster, as the service account of their pod",
    },
    Key {
        name: "kubernetes.kubeconfig",
        default: "",
        form: Form::Anything,
        doc: "the kubeconfig of the collector and the executor; empty, and not in the cluster: where kubectl looks",
    },
    Key {
        name: "kubernetes.namespace",
        default: "",
        form: Form::Namespace,
        doc: "the namespace whose pods the collector follows; empty: all of them. And the one in which the executor makes pods whose task names none; empty: that of its account",
    },
    Key {
        name: "kubernetes.node_name",
        default: "",
        form: Form::NodeName,
        doc: "the node whose pods the collector follows; empty: those of the whole cluster",
    },
    Key {
        name: "kubernetes.service_account",
        default: tenure_pods::follow::SERVICE_ACCOUNT,
        form: Form::Anything,
        doc: "in the cluster: the directory with the files token, ca.crt and namespace of the pod's service account; the token is read again for every request",
    },
    Key {
        name: "llm.api_key_env",
        default: "OPENAI_API_KEY",
        form: Form::Anything,
        doc: "the variable that holds the key of the language model's endpoint; the key itself is never recorded",
    },
    Key {
        name: "llm.base_url",
        default: "",
        form: Form::Anything,
        doc: "an OpenAI-compatible endpoint, for example https://HOST/v1; empty: the tool llm says that none is set",
    },
    Key {
        name: "llm.model",
        default: "",
        form: Form::Anything,
        doc: "the model, where a request names none",
    },
    Key {
        name: "log.filter",
        default: "info,async_nats=off,tokio_postgres=warn",
        form: Form::Text,
        doc: "which log lines are written, for example info,tenure_engine=debug",
    },
    Key {
        name: "log.format",
        default: "text",
        form: Form::Word(&["text", "json"]),
        doc: "how log lines are written",
    },
    Key {
        name: "pmo.active_reap_seconds",
        default: "300",
        form: Form::Seconds(0.1, 30.0 * DAY),
        doc: "a running turn without progress ends after so long; this rule can not be switched off",
    },
    Key {
        name: "pmo.dispatched_retry_seconds",
        default: "10",
        form: Form::Rule(30.0 * DAY),
        doc: "a dispatched turn that no worker takes is rung for again so often; 0: never",
    },
    Key {
        name: "pmo.dispatched_timeout_seconds",
        default: "30",
        form: Form::Rule(30.0 * DAY),
        doc: "a dispatched turn that no worker takes ends after so long; 0: never",
    },
    Key {
        name: "pmo.pending_wakeup_seconds",
        default: "5",
        form: Form::Rule(30.0 * DAY),
        doc: "a turn that waits for a worker is rung for after so long, then with backoff; 0: never",
    },
    Key {
        name: "pmo.pending_wakeup_skip_seconds",
        default: "300",
        form: Form::Rule(30.0 * DAY),
        doc: "a turn that waits for a worker and has no channel is set aside after so long; 0: never",
    },
    Key {
        name: "pmo.watchdog_interval_seconds",
        default: "5",
        form: Form::Seconds(0.05, 300.0),
        doc: "the longest the rules of agents sleep; the due loop takes the smallest of this, worker.watchdog_interval_seconds and server.tick_seconds",
    },
    Key {
        name: "pods.adopt_unknown",
        default: "true",
        form: Form::Switch,
        doc: "whether pods of tasks that nobody ordered here are taken in as tasks: watched, never retried",
    },
    Key {
        name: "pods.attempts_max",
        default: "25",
        form: Form::Number(1, 10_000),
        doc: "attempts of a task in all, whatever the retries of its classes allow",
    },
    Key {
        name: "pods.backoff_factor_percent",
        default: "200",
        form: Form::Number(100, 10_000),
        doc: "by how much the pause before a retry grows each time: 200 doubles it",
    },
    Key {
        name: "pods.backoff_max_seconds",
        default: "300",
        form: Form::Seconds(0.0, DAY),
        doc: "the longest pause before a retry of a task",
    },
    Key {
        name: "pods.backoff_seconds",
        default: "10",
        form: Form::Seconds(0.0, DAY),
        doc: "the longest pause before the first retry of a task; the pause is anywhere between nothing and that",
    },
    Key {
        name: "pods.budget_burst",
        default: "20",
        form: Form::Number(1, 600_000),
        doc: "retries of a tenant's tasks that may start at once, after a quiet time",
    },
    Key {
        name: "pods.budget_in_flight",
        default: "50",
        form: Form::Number(1, 200),
        doc: "retried attempts of a tenant's tasks that may be under way at once",
    },
    Key {
        name: "pods.budget_per_minute",
        default: "120",
        form: Form::Number(1, 600_000),
        doc: "retries of a tenant's tasks that may start in a minute; what is put off is asked for again, and shown",
    },
    Key {
        name: "pods.cancel_annotation",
        default: "flowforge.io/cancel",
        form: Form::Text,
        doc: "the annotation that marks a pod which is deleted because its task was cancelled",
    },
    Key {
        name: "pods.cleanup",
        default: "on_success",
        form: Form::Word(&["on_success", "always", "never"]),
        doc: "which pods are deleted when they are over; one that is not over when its attempt ends is stopped in any case",
    },
    Key {
        name: "pods.cleanup_delay_seconds",
        default: "0",
        form: Form::Seconds(0.0, 30.0 * DAY),
        doc: "how long a pod that is over is left before it is deleted",
    },
    Key {
        name: "pods.cluster",
        default: "",
        form: Form::Anything,
        doc: "the name of the cluster whose pods an executor makes, and of the one for pod steps that name none",
    },
    Key {
        name: "pods.config_grace_seconds",
        default: "60",
        form: Form::Number(0, 31_536_000),
        doc: "how long a missing Secret, ConfigMap or key is waited for",
    },
    Key {
        name: "pods.crash_loop_restarts",
        default: "3",
        form: Form::Number(0, 1_000_000),
        doc: "restarts within one pod after which its next end is final",
    },
    Key {
        name: "pods.create_grace_seconds",
        default: "300",
        form: Form::Number(0, 31_536_000),
        doc: "how long a container that can not be created is waited for",
    },
    Key {
        name: "pods.executor",
        default: "false",
        form: Form::Switch,
        doc: "whether the server makes and tends pods itself, in the cluster of kubernetes.*; else `tenure executor` does",
    },
    Key {
        name: "pods.executor_listen",
        default: "127.0.0.1:9092",
        form: Form::Address,
        doc: "where `tenure executor` answers /healthz, /readyz and /metrics; in a pod 0.0.0.0:9092. One inside a server answers with that server's",
    },
    Key {
        name: "pods.executor_slots",
        default: "500",
        form: Form::Number(1, 10_000),
        doc: "pods that one executor tends at once",
    },
    Key {
        name: "pods.fence_seconds",
        default: "1800",
        form: Form::Seconds(1.0, 30.0 * DAY),
        doc: "how long a pod that may still run is waited for before its task fails, or is replaced where that does no harm",
    },
    Key {
        name: "pods.image_pull_grace_seconds",
        default: "300",
        form: Form::Number(0, 31_536_000),
        doc: "how long an image that does not come is waited for; 0 fails at the first error",
    },
    Key {
        name: "pods.image_pull_long_grace_seconds",
        default: "900",
        form: Form::Number(0, 31_536_000),
        doc: "the same, where the registry is overloaded or away",
    },
    Key {
        name: "pods.listen",
        default: "auto",
        form: Form::Word(&["auto", "true", "false"]),
        doc: "whether a server hears hints of other collectors on ff:events:task; auto: where redis.addresses was set",
    },
    Key {
        name: "pods.main",
        default: "main",
        form: Form::Text,
        doc: "the container whose end is the task's end; without it the only one that is no sidecar",
    },
    Key {
        name: "pods.must_end_by_seconds",
        default: "86400",
        form: Form::Seconds(1.0, 3_650.0 * DAY),
        doc: "a task ends by then, with all its attempts, unless its order says otherwise",
    },
    Key {
        name: "pods.namespaces",
        default: "",
        form: Form::Namespaces,
        doc: "the namespaces in which tenants may have pods, such as acme=ml+ml-dev, beta=*; a tenant without any has kubernetes.namespace",
    },
    Key {
        name: "pods.next_pod_seconds",
        default: "3600",
        form: Form::Seconds(1.0, 30.0 * DAY),
        doc: "where pods are made elsewhere: how long after a failure and its pause the next one is waited for",
    },
    Key {
        name: "pods.node_lost_grace_seconds",
        default: "600",
        form: Form::Number(0, 31_536_000),
        doc: "how long a node may be silent while nobody deletes its pods",
    },
    Key {
        name: "pods.own_init",
        default: "flowforge-sdk-init",
        form: Form::Anything,
        doc: "init containers that are ours, with commas: their failure is not the task's",
    },
    Key {
        name: "pods.queued_seconds",
        default: "7200",
        form: Form::Seconds(1.0, 30.0 * DAY),
        doc: "a pod that was asked for and does not run for so long fails its attempt",
    },
    Key {
        name: "pods.reasons",
        default: "",
        form: Form::Reasons,
        doc: "rows that go before the reason table, as an array of tables: see docs/pods/explain.md",
    },
    Key {
        name: "pods.rejected_capacity_max",
        default: "5",
        form: Form::Number(0, 1_000),
        doc: "OutOfcpu, OutOfmemory and their kin: a task that was turned away more often than this goes to the dead letters",
    },
    Key {
        name: "pods.request_late_seconds",
        default: "90",
        form: Form::Seconds(0.1, 3_600.0),
        doc: "for how long a request to make a pod may still be carried out after nobody waits for it: the API server's request timeout, \
              and what it takes to give up a dead connection. While one may be under way no second one is sent",
    },
    Key {
        name: "pods.restart_timeout_seconds",
        default: "900",
        form: Form::Number(0, 31_536_000),
        doc: "how long a container that is to be started again may wait for it",
    },
    Key {
        name: "pods.retry_app",
        default: "3",
        form: Form::Number(0, 1_000),
        doc: "retries of a task after failures of its own program",
    },
    Key {
        name: "pods.retry_config",
        default: "0",
        form: Form::Number(0, 1_000),
        doc: "retries after a Secret, ConfigMap or key was missing",
    },
    Key {
        name: "pods.retry_deleted",
        default: "3",
        form: Form::Number(0, 1_000),
        doc: "retries after its pod was deleted from outside",
    },
    Key {
        name: "pods.retry_image",
        default: "2",
        form: Form::Number(0, 1_000),
        doc: "retries after its image could not be pulled",
    },
    Key {
        name: "pods.retry_infra",
        default: "10",
        form: Form::Number(0, 1_000),
        doc: "retries after evictions, rejections, preemption, shutdowns, and starts that took too long",
    },
    Key {
        name: "pods.retry_lost",
        default: "3",
        form: Form::Number(0, 1_000),
        doc: "retries after its node or container was lost",
    },
    Key {
        name: "pods.retry_oom",
        default: "1",
        form: Form::Number(0, 1_000),
        doc: "retries after it was killed for want of memory",
    },
    Key {
        name: "pods.retry_timeout",
        default: "0",
        form: Form::Number(0, 1_000),
        doc: "retries after its own deadline",
    },
    Key {
        name: "pods.schedule_timeout_seconds",
        default: "1800",
        form: Form::Number(0, 31_536_000),
        doc: "how long a pod may be without a node",
    },
    Key {
        name: "pods.sidecars",
        default: "",
        form: Form::Anything,
        doc: "containers beside the main one, with commas, besides the names that are known",
    },
    Key {
        name: "pods.start_timeout_seconds",
        default: "900",
        form: Form::Number(0, 31_536_000),
        doc: "how long a pod with a node may take until its main container runs",
    },
    Key {
        name: "pods.stop_seconds",
        default: "300",
        form: Form::Seconds(1.0, 30.0 * DAY),
        doc: "a cancelled task whose pod is not known to be over ends all the same after so long",
    },
    Key {
        name: "pods.success_under_disruption",
        default: "succeeded",
        form: Form::Word(&["succeeded", "failed"]),
        doc: "what exit code 0 counts as while somebody was ending the pod",
    },
    Key {
        name: "pods.success_without_proof",
        default: "succeeded",
        form: Form::Word(&["lost", "succeeded"]),
        doc: "what phase Succeeded counts as where no container status proves it",
    },
    Key {
        name: "pods.terminating_grace_seconds",
        default: "300",
        form: Form::Number(0, 31_536_000),
        doc: "how long after its time to end a pod may still be there before its node counts as lost",
    },
    Key {
        name: "redis.addresses",
        default: "127.0.0.1:6379",
        form: Form::RedisAddresses,
        doc: "where the collector tells what it saw (channel ff:events:task): HOST:PORT or redis://USER:PASSWORD@HOST:PORT, several with commas",
    },
    Key {
        name: "server.faults_before_attention",
        default: "5",
        form: Form::Number(1, 1_000),
        doc: "failed decisions in a row after which an entity is marked for a person",
    },
    Key {
        name: "server.listen",
        default: "127.0.0.1:7777",
        form: Form::Address,
        doc: "where the server listens; anything but a loopback address needs API keys (`tenure key create`)",
    },
    Key {
        name: "server.patience_seconds",
        default: "10",
        form: Form::Seconds(0.0, 3_600.0),
        doc: "how long a write is tried again while the store is away",
    },
    Key {
        name: "server.payload_bytes_max",
        default: "1048576",
        form: Form::Number(1_024, 16 * 1024 * 1024),
        doc: "the largest body of a request, and so the largest input of a job",
    },
    Key {
        name: "server.pulse_gap_seconds",
        default: "8",
        form: Form::Seconds(0.2, DAY),
        doc: "a longer silence of the store is an outage: reclaim then waits one lease",
    },
    Key {
        name: "server.retention_days",
        default: "30",
        form: Form::Number(1, 36_500),
        doc: "how long final entities are kept",
    },
    Key {
        name: "server.tick_seconds",
        default: "5",
        form: Form::Seconds(0.05, 300.0),
        doc: "the longest the due loop sleeps with every bell silent",
    },
    Key {
        name: "store.url",
        default: "sqlite:.tenure",
        form: Form::StoreUrl,
        doc: "where everything is kept: sqlite:DIRECTORY or postgres://USER@HOST/DATABASE",
    },
    Key {
        name: "worker.capabilities",
        default: "",
        form: Form::Anything,
        doc: "what this worker has, for jobs that need it: at most 4 labels with commas between them",
    },
    Key {
        name: "worker.drain_seconds",
        default: "30",
        form: Form::Seconds(0.0, DAY),
        doc: "how long a worker that was asked to stop waits for running tools",
    },
    Key {
        name: "worker.inbox_processing_timeout_seconds",
        default: "300",
        form: Form::Rule(30.0 * DAY),
        doc: "a worker that has claimed a turn and commits nothing for so long loses it; 0: never",
    },
    Key {
        name: "worker.lease_seconds",
        default: "15",
        form: Form::Seconds(0.1, 3_600.0),
        doc: "how long a session is believed alive after a renewal",
    },
    Key {
        name: "worker.queues",
        default: "default",
        form: Form::Anything,
        doc: "the queues this worker serves, with commas between them; `default` is the unnamed one",
    },
    Key {
        name: "worker.renewal_seconds",
        default: "5",
        form: Form::Seconds(0.02, 1_200.0),
        doc: "how often a session is renewed",
    },
    Key {
        name: "worker.resume_attempts_max",
        default: "3",
        form: Form::Number(0, 1_000),
        doc: "workers that take a resumed turn up and do not go on with it, after which it fails",
    },
    Key {
        name: "worker.slots",
        default: "256",
        form: Form::Number(1, 16_384),
        doc: "jobs that one worker runs at once",
    },
    Key {
        name: "worker.suspend_timeout_seconds",
        default: "30",
        form: Form::Rule(30.0 * DAY),
        doc: "how long a suspended turn waits for a tool that has no longer time of its own; 0: as long as the turn lasts",
    },
    Key {
        name: "worker.targets",
        default: "default",
        form: Form::Anything,
        doc: "the targets of agents whose turns this worker runs, with commas between them; empty: none",
    },
    Key {
        name: "worker.watchdog_interval_seconds",
        default: "5",
        form: Form::Seconds(0.05, 300.0),
        doc: "twice this, and at least 5 s, is how long a worker may take to go on with a resumed turn",
    },
];

/// Who set a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "from", content = "where")]
pub enum Origin {
    /// Nobody.
    Default,
    /// A file.
    File(String),
    /// A variable.
    Environment(String),
    /// The command line.
    Flag,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File(path) => write!(f, "file {path}"),
            Origin::Environment(name) => write!(f, "environment {name}"),
            Origin::Flag => f.write_str("command line"),
        }
    }
}

/// A setting that can not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadConfig {
    /// No such key.
    #[error("{origin}: there is no setting {key:?}{hint}")]
    UnknownKey {
        /// Who said it.
        origin: Origin,
        /// What they said.
        key: String,
        /// What they may have meant.
        hint: String,
    },
    /// The value does not fit.
    #[error("{origin}: {key} = {value:?} {problem}")]
    BadValue {
        /// Who said it.
        origin: Origin,
        /// Which setting.
        key: &'static str,
        /// What they said.
        value: String,
        /// What is wrong with it and what would do.
        problem: String,
    },
    /// Two values do not fit together.
    #[error("{0}")]
    Together(String),
    /// The file can not be read.
    #[error("the configuration file {path}: {problem}")]
    File {
        /// Which.
        path: String,
        /// Why.
        problem: String,
    },
    /// `--set` without `=`.
    #[error("--set takes KEY=VALUE, for example --set worker.lease_seconds=30; this was {0:?}")]
    NotAPair(String),
}

/// What `bus.url` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusKind {
    /// Carries bells and events.
    Nats,
    /// Carries bells.
    Redis,
}

/// What is in force.
#[derive(Clone, Debug)]
pub struct Settings(BTreeMap<&'static str, (String, Origin)>);

impl Settings {
    /// File, environment and flags, in rising order of say; checked.
    pub fn load(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (String, String)>,
        flags: &[String],
    ) -> Result<Self, BadConfig> {
        let defaults = KEYS.iter().map(|k| (k.name, (k.default.to_owned(), Origin::Default)));
        let mut settings = Settings(defaults.collect());
        if let Some(path) = file {
            settings.read_file(path)?;
        }
        let environment: Vec<(String, String)> = environment.into_iter().collect();
        outside::from_the_seed(&mut settings, &environment);
        for (name, value) in environment {
            let key = KEYS.iter().find(|k| variable(k.name) == name);
            if let Some(key) = key {
                settings.set(key.name, value, Origin::Environment(name))?;
            }
        }
        for pair in flags {
            let (key, value) =
                pair.split_once('=').ok_or_else(|| BadConfig::NotAPair(pair.clone()))?;
            settings.set(key.trim(), value.trim().to_owned(), Origin::Flag)?;
        }
        settings.check_together()?;
        Ok(settings)
    }

    fn read_file(&mut self, path: &Path) -> Result<(), BadConfig> {
        let shown = path.display().to_string();
        let bad = |problem: String| BadConfig::File { path: shown.clone(), problem };
        let text = std::fs::read_to_string(path).map_err(|e| bad(e.to_string()))?;
        let table: toml::Table = text.parse().map_err(|e: toml::de::Error| bad(e.to_string()))?;
        let mut flat = Vec::new();
        flatten("", &table, &mut flat);
        for (key, value) in flat {
            self.set(&key, value, Origin::File(shown.clone()))?;
        }
        Ok(())
    }

    fn set(&mut self, name: &str, value: String, origin: Origin) -> Result<(), BadConfig> {
        let Some(key) = KEYS.iter().find(|k| k.name == name) else {
            let hint = nearest(name).map_or_else(
                || "; `tenure config` lists all".to_owned(),
                |near| format!("; did you mean {near}?"),
            );
            return Err(BadConfig::UnknownKey { origin, key: name.to_owned(), hint });
        };
        let problem = problem_of(key.form, &value).filter(|_| !outside::is_of_few(key.name));
        if let Some(problem) = problem {
            let value = without_secrets(&value);
            return Err(BadConfig::BadValue { origin, key: key.name, value, problem });
        }
        self.0.insert(key.name, (value, origin));
        Ok(())
    }

    fn check_together(&self) -> Result<(), BadConfig> {
        let (lease, renewal) =
            (self.seconds("worker.lease_seconds"), self.seconds("worker.renewal_seconds"));
        if renewal * 2 > lease {
            let text = format!(
                "worker.renewal_seconds = {} is more than half of worker.lease_seconds = {}: one late renewal would \
                 cost everything the worker holds; renew at least twice per lease",
                self.text("worker.renewal_seconds"),
                self.text("worker.lease_seconds")
            );
            return Err(BadConfig::Together(text));
        }
        let (tick, gap) =
            (self.seconds("server.tick_seconds"), self.seconds("server.pulse_gap_seconds"));
        if gap * 2 < tick * 3 || gap + renewal > lease {
            let text = format!(
                "server.pulse_gap_seconds = {} must be at least one and a half ticks (server.tick_seconds = {}), or every \
                 slow round would look like an outage, and at most worker.lease_seconds - worker.renewal_seconds = {}, \
                 or a shorter outage would cost leases unseen",
                self.text("server.pulse_gap_seconds"),
                self.text("server.tick_seconds"),
                (lease - renewal).as_secs_f64()
            );
            return Err(BadConfig::Together(text));
        }
        if self.is_on("bus.jetstream") && self.bus() == Some(BusKind::Redis) {
            let text = "bus.jetstream = \"true\" keeps events in NATS, and bus.url names a Redis, which carries bells only: \
                        give nats://HOST:PORT, or leave bus.jetstream out";
            return Err(BadConfig::Together(text.to_owned()));
        }
        let (first, cap) =
            (self.seconds("pods.backoff_seconds"), self.seconds("pods.backoff_max_seconds"));
        if first > cap {
            let text = format!(
                "pods.backoff_max_seconds = {} is less than pods.backoff_seconds = {}: the longest pause can not be shorter \
                 than the first",
                self.text("pods.backoff_max_seconds"),
                self.text("pods.backoff_seconds")
            );
            return Err(BadConfig::Together(text));
        }
        match self.pods().problem() {
            Some(problem) => Err(BadConfig::Together(format!("pods.*: {problem}"))),
            None => Ok(()),
        }
    }

    /// Which bus there is, if any.
    pub fn bus(&self) -> Option<BusKind> {
        match self.text("bus.url") {
            "" => None,
            url if tenure_bell::redis::is_redis(url) => Some(BusKind::Redis),
            _ => Some(BusKind::Nats),
        }
    }

    /// Who set a value.
    pub fn origin(&self, name: &str) -> Origin {
        self.0.get(name).map_or(Origin::Default, |(_, origin)| origin.clone())
    }

    /// A value as text. Empty for a key that does not exist.
    pub fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", |(value, _)| value)
    }

    /// A value in seconds.
    pub fn seconds(&self, name: &str) -> Duration {
        Duration::from_secs_f64(self.text(name).parse().unwrap_or(0.0))
    }

    /// The milliseconds of a rule; `0` where it is switched off.
    fn rule_ms(&self, name: &str) -> u64 {
        let seconds: f64 = self.text(name).parse().unwrap_or(0.0);
        let on = Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default();
        u64::try_from(on.as_millis()).unwrap_or(u64::MAX)
    }

    /// A whole number.
    pub fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or(0)
    }

    /// Whether a switch is on.
    pub fn is_on(&self, name: &str) -> bool {
        self.text(name) == "true"
    }

    /// Every key with its value and who set it.
    pub fn iter(&self) -> impl Iterator<Item = (&'static Key, &str, &Origin)> {
        KEYS.iter()
            .filter_map(|k| self.0.get(k.name).map(|(value, origin)| (k, value.as_str(), origin)))
    }
}

/// The environment variable of a key.
pub fn variable(key: &str) -> String {
    format!("TENURE_{}", key.replace('.', "_").to_uppercase())
}

/// A value without the passwords in its addresses, for people.
pub fn without_secrets(value: &str) -> String {
    let one = |address: &str| -> String {
        let Some((scheme, rest)) = address.split_once("://") else { return address.to_owned() };
        match rest.rsplit_once('@') {
            Some((login, rest)) if login.contains(':') => {
                let user = login.split(':').next().unwrap_or_default();
                format!("{scheme}://{user}:***@{rest}")
            }
            _ => address.to_owned(),
        }
    };
    value.split(',').map(one).collect::<Vec<_>>().join(",")
}

fn flatten(prefix: &str, table: &toml::Table, out: &mut Vec<(String, String)>) {
    for (name, value) in table {
        let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        match value {
            toml::Value::Table(inner) => flatten(&key, inner, out),
            toml::Value::String(text) => out.push((key, text.clone())),
            other => out.push((key, other.to_string())),
        }
    }
}

/// Rows for the reason table. From a file they come as `[[pods.reasons]]`, from elsewhere as an inline array.
fn reasons(text: &str) -> Result<Vec<Override>, String> {
    #[derive(serde::Deserialize)]
    struct Rows {
        reasons: Vec<Override>,
    }
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let read: Result<Rows, toml::de::Error> = toml::from_str(&format!("reasons = {text}"));
    read.map(|rows| rows.reasons).map_err(|e| {
        let what = e.message();
        format!("is no list of rows such as [{{where=\"waiting\", reason=\"ErrImagePull\", cause=\"image_invalid\"}}]: {what}")
    })
}

fn problem_of(form: Form, value: &str) -> Option<String> {
    match form {
        Form::Seconds(min, max) => match value.parse::<f64>() {
            Ok(v) if (min..=max).contains(&v) => None,
            Ok(_) => Some(format!("is out of range: give {min} to {max} seconds")),
            Err(_) => Some("is not a number of seconds, such as 15 or 0.5".to_owned()),
        },
        Form::Rule(max) => match value.parse::<f64>() {
            Ok(v) if v.is_finite() && v <= max => None,
            Ok(_) => Some(format!("is out of range: give at most {max} seconds, 0 for never")),
            Err(_) => Some("is not a number of seconds, such as 15 or 0.5; 0 for never".to_owned()),
        },
        Form::Number(min, max) => match value.parse::<u64>() {
            Ok(v) if (min..=max).contains(&v) => None,
            _ => Some(format!("is not a whole number from {min} to {max}")),
        },
        Form::Word(words) => {
            (!words.contains(&value)).then(|| format!("is not one of: {}", words.join(", ")))
        }
        Form::StoreUrl => {
            let good = value.strip_prefix("sqlite:").is_some_and(|dir| !dir.is_empty())
                || value.starts_with("postgres://")
                || value.starts_with("postgresql://");
            (!good).then(|| {
                "is not a store: use sqlite:DIRECTORY or postgres://USER@HOST/DATABASE".to_owned()
            })
        }
        Form::Address => value.parse::<std::net::SocketAddr>().is_err().then(|| {
            "is not an address with a port, such as 127.0.0.1:7777 or [::1]:7777".to_owned()
        }),
        Form::Switch => match value {
            "true" | "false" => None,
            _ => Some("is neither true nor false".to_owned()),
        },
        Form::BusUrl if value.is_empty() => None,
        Form::BusUrl if tenure_bell::redis::is_redis(value) => {
            tenure_bell::redis::check_url(value).err()
        }
        Form::BusUrl => tenure_bell::nats::check_url(value).err(),
        Form::RedisAddresses => tenure_bell::redis::check_addresses(value).err(),
        Form::Namespace => outside::problem_of_name(value, 63, "the name of a namespace"),
        Form::Namespaces => Namespaces::read("", value).err(),
        Form::NodeName => outside::problem_of_name(value, 253, "the name of a node"),
        Form::BusPrefix => tenure_bell::nats::check_prefix(value).err(),
        Form::Anything => None,
        Form::Reasons => reasons(value).err(),
        Form::Text => value.is_empty().then(|| "is empty".to_owned()),
    }
}

/// The key with the fewest edits to `name`, if that is few.
fn nearest(name: &str) -> Option<&'static str> {
    let scored = KEYS.iter().map(|k| (edits(name, k.name), k.name));
    scored.min().filter(|(n, _)| *n <= 4).map(|(_, key)| key)
}

fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let change = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests;
