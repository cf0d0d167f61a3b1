//! What the pod says of itself, where its main container says nothing.

use super::{Judge, is_own, text};
use crate::verdict::{
    look,
    policy::Said,
    table::{Place, Row, id, rule},
    words::{Cause, Verdict},
};
use k8s_openapi::api::core::v1::ContainerStatus;

impl Judge<'_> {
    pub(super) fn pod_ended(&self) -> Option<Verdict> {
        let over = ["Failed", "Succeeded"].contains(&self.look.phase());
        let runs = self.look.main_status().is_some_and(look::is_running);
        if let Some(outside) = self.pod_reason()
            && (over || !runs && outside.row.cause != Some(Cause::NodeLost))
        {
            return Some(self.by(&outside));
        }
        if !over {
            return self.init_failed();
        }
        if self.look.phase() == "Succeeded" && self.look.main_status().is_none() {
            return Some(self.init_failed().unwrap_or_else(|| self.succeeded_by_phase()));
        }
        if let Some(outside) = self.disruption() {
            return Some(self.by(&outside));
        }
        if let Some(verdict) = self.init_failed() {
            return Some(verdict);
        }
        if self.look.phase() == "Succeeded" {
            return Some(self.succeeded_by_phase());
        }
        if let Some(deleted) = self.deleted() {
            return Some(self.by(&deleted));
        }
        // Over without an end of its main container: what it waited for is the best that is known.
        let main = self.look.main_status();
        if let Some((reason, message)) = main.and_then(look::waiting) {
            let said = Said { place: Place::Waiting, reason, message, exit_code: None };
            let row = self.policy.row(&said);
            if let Some(row) = row.filter(|r| r.cause != Some(Cause::StartTimeout)) {
                return Some(self.ended(row, reason, message, self.look.began()));
            }
        }
        Some(self.closed(rule(id::UNEXPLAINED)))
    }

    /// An end of which only the pod itself says that it is one.
    pub(super) fn closed(&self, row: &Row) -> Verdict {
        let since = self.look.began().or_else(|| self.look.created());
        self.ended(row, self.look.reason(), self.look.message(), since)
    }

    fn init_failed(&self) -> Option<Verdict> {
        if self.look.has_run() {
            return None;
        }
        let failed = |s: &&ContainerStatus| {
            look::terminated(s).is_some_and(|end| {
                (end.exit_code != 0 || self.row_of(end).is_some_and(|r| r.cause.is_some()))
                    && !self.look.restarts(&s.name, true, end.exit_code)
            })
        };
        let mut all = self.look.init_statuses().iter().filter(failed);
        let beside = |s: &&ContainerStatus| self.look.is_native_sidecar(&s.name);
        let first = all.clone().find(|s| !beside(s));
        // A sidecar's end says nothing, unless main never came to start and nothing else says why.
        let status = match first {
            None if self.look.phase() == "Failed" => all.find(beside)?,
            first => first?,
        };
        let end = look::terminated(status)?;
        if let Some(outside) = self.outside(end) {
            return Some(self.by(&outside));
        }
        // A reason of its own (no memory, no start, lost) says more than that it was an init container.
        let row = self.row_of(end).filter(|r| is_own(r) || r.cause != Some(Cause::AppError));
        let row = row.unwrap_or_else(|| {
            let ours = self.policy.own_init.contains(&status.name);
            rule(if ours { id::OWN_INIT_FAILED } else { id::INIT_FAILED })
        });
        let mut verdict =
            self.ended(row, text(&end.reason), self.words_of(end), look::finished(end));
        verdict.disrupted = false;
        self.tell_end(&mut verdict, status, end);
        Some(verdict)
    }
}
