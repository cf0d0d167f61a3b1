//! What the settings mean to each part: jobs, agents, pods, the engine.

use super::{BusKind, Origin, Settings, form::reasons};
use std::time::Duration;
use tenure_agents::{desk::Defaults, rules::Rules};
use tenure_engine::config::{EngineConfig, TimerRule};
use tenure_jobs::drive::JobOptions;
use tenure_kernel::{admission::Admissions, quota::Quotas};
use tenure_pods::{
    admission::{PodBounds, TemplatePolicy},
    budget::BudgetTerms,
    namespaces::Namespaces,
    task::{
        Cleanup, RetryPolicy,
        model::{CleanupWhen, Times},
    },
    verdict::{Policy, UnderDisruption, WithoutProof},
};

/// The timers of all kinds of work that are rules of their own.
static TIMERS: std::sync::LazyLock<Vec<TimerRule>> = std::sync::LazyLock::new(|| {
    let (agents, pods) = (tenure_agents::rules::TIMERS, tenure_pods::rules::TIMERS);
    agents.iter().chain(pods).copied().collect()
});

/// What counts as an open entity of a tenant: what it submits, and what that creates. Calls, pods and joins belong to one of these.
const QUOTA_KINDS: [&str; 3] = ["job", "task", "turn"];

impl Settings {
    /// How pods are judged.
    pub fn pod_policy(&self) -> Policy {
        let seconds = |name: &str| self.number(name);
        let names = |name: &str| {
            let words = self.text(name).split(',').map(str::trim).filter(|w| !w.is_empty());
            words.map(str::to_owned).collect::<Vec<_>>()
        };
        let known = Policy::default();
        Policy {
            main: self.text("pods.main").to_owned(),
            sidecars: known.sidecars.into_iter().chain(names("pods.sidecars")).collect(),
            own_init: names("pods.own_init"),
            cancel_annotation: self.text("pods.cancel_annotation").to_owned(),
            success_under_disruption: match self.text("pods.success_under_disruption") {
                "failed" => UnderDisruption::Failed,
                _ => UnderDisruption::Succeeded,
            },
            success_without_proof: match self.text("pods.success_without_proof") {
                "succeeded" => WithoutProof::Succeeded,
                _ => WithoutProof::Lost,
            },
            schedule_timeout_seconds: seconds("pods.schedule_timeout_seconds"),
            start_timeout_seconds: seconds("pods.start_timeout_seconds"),
            image_pull_grace_seconds: seconds("pods.image_pull_grace_seconds"),
            image_pull_long_grace_seconds: seconds("pods.image_pull_long_grace_seconds"),
            config_grace_seconds: seconds("pods.config_grace_seconds"),
            create_grace_seconds: seconds("pods.create_grace_seconds"),
            crash_loop_restarts: u32::try_from(seconds("pods.crash_loop_restarts"))
                .unwrap_or(u32::MAX),
            restart_timeout_seconds: seconds("pods.restart_timeout_seconds"),
            terminating_grace_seconds: seconds("pods.terminating_grace_seconds"),
            node_lost_grace_seconds: seconds("pods.node_lost_grace_seconds"),
            // Checked when it was set.
            reasons: reasons(self.text("pods.reasons")).unwrap_or_default(),
        }
    }

    /// The numbers of jobs.
    pub fn jobs(&self) -> JobOptions {
        JobOptions {
            step_timeout: self.seconds("executor.step_timeout"),
            retry_max: u32::try_from(self.number("executor.retry_max")).unwrap_or(u32::MAX),
            backoff: self.seconds("executor.backoff"),
            backoff_max: self.seconds("executor.backoff_max"),
            stop_grace: self.seconds("executor.stop_grace"),
            park_after: self.seconds("job.park_after_seconds"),
            must_end_in: self.seconds("job.must_end_by_seconds"),
            takeovers_max: u32::try_from(self.number("job.takeovers_max")).unwrap_or(u32::MAX),
            ..JobOptions::default()
        }
    }

    /// What turns of agents get that say nothing, the times of their rules among it.
    pub fn agents(&self) -> Defaults {
        let lease = (2 * self.rule_ms("worker.watchdog_interval_seconds")).max(5_000);
        let count = |name: &str| u32::try_from(self.number(name)).unwrap_or(u32::MAX);
        let rules = Rules {
            inbox_processing_ms: self.rule_ms("worker.inbox_processing_timeout_seconds"),
            suspend_ms: self.rule_ms("worker.suspend_timeout_seconds"),
            resume_lease_ms: lease,
            resume_attempts_max: count("worker.resume_attempts_max"),
            dispatched_retry_ms: self.rule_ms("pmo.dispatched_retry_seconds"),
            dispatched_timeout_ms: self.rule_ms("pmo.dispatched_timeout_seconds"),
            active_reap_ms: self.rule_ms("pmo.active_reap_seconds"),
            pending_wakeup_ms: self.rule_ms("pmo.pending_wakeup_seconds"),
            pending_skip_ms: self.rule_ms("pmo.pending_wakeup_skip_seconds"),
            takeovers_max: count("agents.takeovers_max"),
            tick_ms: u64::try_from(self.tick().as_millis()).unwrap_or(u64::MAX),
        };
        let channel = Some(self.text("agents.default_channel").to_owned());
        let subjects = self.text("agents.tool_subjects").split(',').map(str::trim);
        let subjects = subjects.filter(|s| !s.is_empty());
        Defaults {
            rules,
            must_end_in: self.seconds("agents.must_end_by_seconds"),
            channel: channel.filter(|c| !c.is_empty()),
            tool_subjects: subjects.map(str::to_owned).collect(),
        }
    }

    /// Whether a server listens for hints of collectors that are not ours.
    pub fn listens(&self) -> bool {
        match self.text("pods.listen") {
            "auto" => {
                let named = self.text("redis.addresses").trim() != "none";
                named && self.origin("redis.addresses") != Origin::Default
            }
            word => word == "true",
        }
    }

    /// What tasks get that say nothing.
    pub fn pods(&self) -> tenure_pods::desk::Defaults {
        let count = |name: &str| u32::try_from(self.number(name)).unwrap_or(u32::MAX);
        let ms = |name: &str| u64::try_from(self.seconds(name).as_millis()).unwrap_or(u64::MAX);
        let retry = RetryPolicy {
            app: count("pods.retry_app"),
            oom: count("pods.retry_oom"),
            infra: count("pods.retry_infra"),
            lost: count("pods.retry_lost"),
            image: count("pods.retry_image"),
            config: count("pods.retry_config"),
            timeout: count("pods.retry_timeout"),
            deleted: count("pods.retry_deleted"),
            rejected_capacity: count("pods.rejected_capacity_max"),
            attempts: count("pods.attempts_max"),
            backoff_ms: ms("pods.backoff_seconds"),
            factor_percent: count("pods.backoff_factor_percent"),
            backoff_cap_ms: ms("pods.backoff_max_seconds"),
        };
        let budget = BudgetTerms {
            per_minute: count("pods.budget_per_minute"),
            burst: count("pods.budget_burst"),
            in_flight: count("pods.budget_in_flight"),
        };
        let times = Times {
            queued_ms: ms("pods.queued_seconds"),
            fence_ms: ms("pods.fence_seconds"),
            stop_ms: ms("pods.stop_seconds"),
            next_pod_ms: ms("pods.next_pod_seconds"),
            witness_ms: ms("pods.witness_seconds"),
        };
        let when = match self.text("pods.cleanup") {
            "always" => CleanupWhen::Always,
            "never" => CleanupWhen::Never,
            _ => CleanupWhen::OnSuccess,
        };
        tenure_pods::desk::Defaults {
            retry,
            budget,
            times,
            cleanup: Cleanup { when, delay_ms: ms("pods.cleanup_delay_seconds") },
            must_end_in: self.seconds("pods.must_end_by_seconds"),
            adopt_unknown: self.is_on("pods.adopt_unknown"),
            bounds: self.pod_bounds(),
            kept_for: Some(Duration::from_secs(self.number("server.retention_days") * 86_400)),
        }
    }

    /// What the pods of each tenant may be, and where.
    pub fn pod_bounds(&self) -> PodBounds {
        // Both were read when they were set.
        let own = self.text("kubernetes.namespace");
        PodBounds {
            namespaces: Namespaces::read(own, self.text("pods.namespaces")).unwrap_or_default(),
            templates: TemplatePolicy::read(self.text("pods.grants")).unwrap_or_default(),
        }
    }

    /// Which entities may be created here, by kind.
    pub fn admissions(&self) -> Admissions {
        let jobs = tenure_jobs::admission::admissions(Admissions::default());
        let agents = tenure_agents::admission::admissions(jobs);
        tenure_pods::admission::admissions(agents, self.pod_bounds())
    }

    /// How long the due loop sleeps at most: whoever wants it shortest.
    fn tick(&self) -> Duration {
        let wants = ["pmo.watchdog_interval_seconds", "worker.watchdog_interval_seconds"];
        let wants = wants.map(|key| self.seconds(key));
        wants.into_iter().fold(self.seconds("server.tick_seconds"), Duration::min)
    }

    /// The engine's numbers.
    pub fn engine(&self) -> EngineConfig {
        EngineConfig {
            lease: self.seconds("worker.lease_seconds"),
            renewal: self.seconds("worker.renewal_seconds"),
            tick: self.tick(),
            pulse_gap: self.seconds("server.pulse_gap_seconds"),
            faults_before_attention: u16::try_from(self.number("server.faults_before_attention"))
                .unwrap_or(u16::MAX),
            patience: self.seconds("server.patience_seconds"),
            retention: Duration::from_secs(self.number("server.retention_days") * 86_400),
            counted_events: tenure_server::metrics::COUNTED_EVENTS,
            labelled_events: tenure_server::metrics::LABELLED_EVENTS,
            // Redis forgets what it carries: what would leave the store stays in the feed.
            mute: self.bus() != Some(BusKind::Nats),
            timer_rules: &TIMERS,
            // What cannot be read was refused at start.
            quotas: Quotas::read(self.text("server.quotas")).unwrap_or_default(),
            quota_kinds: &QUOTA_KINDS,
            ..EngineConfig::default()
        }
    }
}
