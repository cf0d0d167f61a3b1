//! The main container runs, or waits, and how long it may wait depends on the reason.

use super::{Judge, MESSAGE_MAX, REASON_MAX, cut, is_own, text};
use crate::verdict::{
    look,
    policy::Said,
    table::{Place, Row, TABLE, id, rule},
    words::{Cause, CauseClass, Clock, TaskStatus, Verdict},
};
use k8s_openapi::api::core::v1::ContainerStatus;
use std::time::Duration;
use tenure_kernel::time::Timestamp;

impl<'a> Judge<'a> {
    pub(super) fn running(&self) -> Option<Verdict> {
        let main = self.look.main_status();
        if let Some(main) = main.filter(|m| look::is_running(m)) {
            return Some(self.live(rule(id::RUNNING), main.name.as_str()));
        }
        if main.is_none() && self.look.phase() == "Running" {
            let name = self.look.main.unwrap_or("");
            return Some(self.live(rule(id::PHASE_RUNNING), name));
        }
        None
    }

    fn live(&self, row: &Row, container: &str) -> Verdict {
        Verdict {
            status: Some(TaskStatus::Running),
            container: (!container.is_empty()).then(|| container.to_owned()),
            started: true,
            disrupted: self.is_disrupted(),
            rule: row.rule().into_owned(),
            since: self.ran_since(),
            ..Verdict::default()
        }
    }

    /// Since when the task runs: what is reported under, so the same object must always give the same.
    fn ran_since(&self) -> Option<Timestamp> {
        let main = self.look.main_status();
        let said = self.last.filter(|l| l.status == Some(TaskStatus::Running));
        let ended = main.and_then(|m| look::terminated(m).or_else(|| look::last_end(m)));
        main.and_then(look::running_since)
            .or_else(|| said.and_then(|l| l.since))
            .or_else(|| look::started(ended?))
            .or_else(|| self.look.began())
    }

    pub(super) fn waiting(&self) -> Verdict {
        let main = self.look.main_status();
        let seen = self.look.has_run();
        // Before all others, also before a gate: an object from before the start is an old one.
        if self.last.is_some_and(|l| l.started) && !self.look.was_tried() {
            return self.held();
        }
        if self.look.is_gated() && !self.look.has_node() {
            let rule = rule(id::GATED).rule().into_owned();
            let reason = "SchedulingGated".to_owned();
            return Verdict { rule, reason, started: seen, ..Verdict::default() };
        }
        if !self.look.has_node() {
            return self.unscheduled();
        }
        // What holds up the pod is the first init container that is in trouble, if there is one.
        let blocked = if seen { None } else { self.blocked_init() };
        match blocked.or(main) {
            Some(status) => self.container_waits(status),
            None => self.container_is_not_there(),
        }
    }

    /// It ran, and now it reads as if it never had: an event out of order, or an old kubelet.
    fn held(&self) -> Verdict {
        let row = rule(id::REGRESSION);
        let since = self.since_last(Clock::Hold);
        let deadline = since + self.policy.grace(row);
        if self.now >= deadline {
            return self.ended(row, self.look.reason(), self.look.message(), Some(deadline));
        }
        let mut verdict = self.live(row, self.look.main.unwrap_or(""));
        verdict.clock = Some(Clock::Hold);
        verdict.clock_since = Some(since);
        verdict.next_check_at = Some(deadline);
        verdict.next_cause = row.cause;
        verdict
    }

    fn unscheduled(&self) -> Verdict {
        let said = self.look.condition("PodScheduled");
        let reason = said.map_or("", |c| text(&c.reason));
        let row = rule(match reason {
            "Unschedulable" => id::UNSCHEDULABLE,
            "SchedulerError" => id::SCHEDULER_ERROR,
            _ => id::NOT_SCHEDULED,
        });
        let was_gated = self.last.is_some_and(|l| l.rule == id::GATED);
        let same =
            self.last.filter(|l| l.clock == Some(Clock::Schedule)).and_then(|l| l.clock_since);
        // The condition keeps the time of the gate when the gate is gone: False was False before.
        let since = if was_gated { Some(self.now) } else { same }
            .or_else(|| said.and_then(|c| look::moment(c.last_transition_time.as_ref()?)))
            .or_else(|| self.look.created());
        let message = said.map_or("", |c| text(&c.message));
        self.waits(row, None, reason, message, since.unwrap_or(self.now), None)
    }

    fn blocked_init(&self) -> Option<&'a ContainerStatus> {
        self.look.init_statuses().iter().find(|s| {
            let waits = look::waiting(s).filter(|(reason, _)| {
                !["", "PodInitializing", "ContainerCreating"].contains(reason)
            });
            let again = look::terminated(s).is_some_and(|end| {
                end.exit_code != 0 && self.look.restarts(&s.name, true, end.exit_code)
            });
            waits.is_some() || again
        })
    }

    fn container_waits(&self, status: &'a ContainerStatus) -> Verdict {
        // Not waiting is having ended with a restart to come; everything else was heard before.
        let Some((reason, message)) = look::waiting(status) else {
            return self.restarts(status, rule(id::RESTARTING), "", "");
        };
        let said = Said { place: Place::Waiting, reason, message, exit_code: None };
        let Some(mut row) = self.policy.row(&said) else {
            return self.container_is_not_there();
        };
        if row.cause == Some(Cause::CrashLoop) {
            return self.restarts(status, row, reason, message);
        }
        let clock = row.clock();
        if clock == Clock::Start {
            let since = match look::last_end(status).and_then(look::finished) {
                Some(ended) => ended,
                None => self.look.start_origin().unwrap_or_else(|| self.since_last(clock)),
            };
            return self.waits(row, Some(status), reason, message, since, None);
        }
        let last = self.last.filter(|l| l.clock == Some(clock));
        // An older kubelet forgets in its second sentence what it said in the first.
        if last.is_some_and(|l| l.detail.as_deref() == Some("transient"))
            && reason == "ImagePullBackOff"
            && (message.is_empty() || message.trim_end().ends_with('"'))
            && let Some(long) = TABLE
                .iter()
                .find(|r| r.reason == reason && r.detail.as_deref() == Some("transient"))
            && !is_own(row)
        {
            row = long;
        }
        let origin = self.look.container_origin(Some(status));
        let since = match (last, self.last) {
            (Some(same), _) => same.clock_since.unwrap_or(self.now),
            (None, Some(_)) => self.now,
            (None, None) => origin.unwrap_or(self.now),
        };
        // Troubles that take turns, each with a clock of its own, would never end.
        let whole = Duration::from_secs(self.policy.start_timeout_seconds);
        let outer = origin.map(|o| o + whole + self.policy.grace(row));
        self.waits(row, Some(status), reason, message, since, outer)
    }

    fn container_is_not_there(&self) -> Verdict {
        let said = Said { place: Place::Waiting, reason: "", message: "", exit_code: None };
        let row = self.policy.row(&said).unwrap_or_else(|| rule("waiting/none"));
        let since = self.look.start_origin().unwrap_or_else(|| self.since_last(row.clock()));
        self.waits(row, None, self.look.reason(), self.look.message(), since, None)
    }

    /// Ended, and will be started again, unless it has been too often.
    fn restarts(
        &self,
        status: &'a ContainerStatus,
        row: &Row,
        reason: &'a str,
        message: &'a str,
    ) -> Verdict {
        let end = look::terminated(status).or_else(|| look::last_end(status));
        let too_often =
            u32::try_from(status.restart_count).unwrap_or(0) >= self.policy.crash_loop_restarts;
        let since = end.and_then(look::finished).unwrap_or_else(|| self.since_last(Clock::Restart));
        let since = if too_often { since.min(self.now) } else { since };
        let grace = if too_often { Duration::ZERO } else { self.policy.grace(row) };
        let mut verdict = self.waits_for(row, Some(status), reason, message, since, since + grace);
        if let Some(end) = end {
            self.tell_end(&mut verdict, status, end);
            if verdict.is_final() && text(&end.reason) == "OOMKilled" && row.class.is_none() {
                verdict.class = Some(CauseClass::Oom);
            }
            if verdict.message.is_empty() {
                verdict.message = cut(text(&end.message), MESSAGE_MAX);
            }
            if verdict.reason.is_empty() {
                verdict.reason = cut(text(&end.reason), REASON_MAX);
            }
        }
        verdict
    }

    fn waits(
        &self,
        row: &Row,
        status: Option<&ContainerStatus>,
        reason: &str,
        message: &str,
        since: Timestamp,
        outer: Option<Timestamp>,
    ) -> Verdict {
        let deadline = since + self.policy.grace(row);
        let deadline = outer.map_or(deadline, |o| o.min(deadline));
        self.waits_for(row, status, reason, message, since, deadline)
    }

    fn waits_for(
        &self,
        row: &Row,
        status: Option<&ContainerStatus>,
        reason: &str,
        message: &str,
        since: Timestamp,
        deadline: Timestamp,
    ) -> Verdict {
        let container = status.map(|s| s.name.clone());
        if self.now >= deadline {
            let mut verdict = self.ended(row, reason, message, Some(deadline));
            verdict.container = container;
            verdict.exit_code = None;
            verdict.signal = None;
            return verdict;
        }
        let started = self.started();
        Verdict {
            // Whoever ran once is not told to be waiting again: its task runs.
            status: started.then_some(TaskStatus::Running),
            container,
            started,
            disrupted: self.is_disrupted(),
            reason: cut(reason, REASON_MAX),
            message: cut(message, MESSAGE_MAX),
            detail: row.detail.clone(),
            rule: row.rule().into_owned(),
            since: if started { self.ran_since() } else { None },
            clock: Some(row.clock()),
            clock_since: Some(since),
            next_check_at: Some(deadline),
            next_cause: row.cause,
            ..Verdict::default()
        }
    }
}
