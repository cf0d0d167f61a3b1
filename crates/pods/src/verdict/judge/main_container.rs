//! The end of the main container: what it proves, and when it proves nothing.

use super::{Judge, is_own, outside::By, text};
use crate::verdict::{
    look,
    policy::{Said, UnderDisruption, WithoutProof},
    table::{Place, Row, id, rule},
    words::{Cause, TaskStatus, Verdict},
};
use k8s_openapi::api::core::v1::ContainerStateTerminated;

impl<'a> Judge<'a> {
    pub(super) fn main_ended(&self) -> Option<Verdict> {
        let main = self.look.main_status()?;
        let end = self.look.main_end()?;
        if self.look.restarts(&main.name, false, end.exit_code) {
            return None;
        }
        let row = self.row_of(end)?;
        if row.cause.is_none() {
            return Some(self.succeeded(row, end));
        }
        let own = row.cause == Some(Cause::Oom) || is_own(row);
        let outside = self.outside(end);
        if !own && let Some(outside) = &outside {
            return Some(self.by(outside));
        }
        let mut verdict =
            self.ended(row, text(&end.reason), self.words_of(end), look::finished(end));
        verdict.disrupted = outside.is_some_and(|o| o.disrupts());
        Some(verdict)
    }

    pub(super) fn row_of(&self, end: &ContainerStateTerminated) -> Option<&'a Row> {
        self.policy.row(&Said {
            place: Place::Terminated,
            reason: text(&end.reason),
            message: text(&end.message),
            exit_code: Some(end.exit_code),
        })
    }

    /// What the container wrote, else what the pod says.
    pub(super) fn words_of(&self, end: &'a ContainerStateTerminated) -> &'a str {
        match text(&end.message) {
            "" => self.look.message(),
            message => message,
        }
    }

    fn succeeded(&self, row: &Row, end: &ContainerStateTerminated) -> Verdict {
        let outside = self.outside(end);
        if let Some(o) = &outside {
            // Ended well, but only when its time was up, and the pod itself says that it was.
            let timeout = o.row.cause == Some(Cause::Timeout) && o.since.is_some();
            // A success under disruption is a pod that succeeded. This one was ended, and the kubelet calls that a failure.
            let ended = o.by == By::Reason && self.look.phase() == "Failed";
            let distrusted = self.policy.success_under_disruption == UnderDisruption::Failed;
            let own_fault = o.row.cause == Some(Cause::EvictedOwnLimit);
            if timeout || ended || distrusted && own_fault {
                return self.by(o);
            }
            if distrusted {
                let row = rule(id::INTERRUPTED);
                return self.ended(row, o.reason, o.message, look::finished(end));
            }
        }
        let mut verdict =
            self.ended(row, text(&end.reason), text(&end.message), look::finished(end));
        verdict.status = Some(TaskStatus::Succeeded);
        verdict.disrupted = outside.is_some_and(|o| o.disrupts());
        verdict
    }

    /// Nothing but the phase says that it ended well.
    pub(super) fn succeeded_by_phase(&self) -> Verdict {
        let contradicted = self.look.main_status().is_some();
        if contradicted || self.policy.success_without_proof == WithoutProof::Lost {
            return self.closed(rule(id::UNPROVEN));
        }
        let outside = self.disruption().or_else(|| self.deleted());
        if let Some(o) = &outside
            && self.policy.success_under_disruption == UnderDisruption::Failed
        {
            return self.ended(rule(id::INTERRUPTED), o.reason, o.message, o.since);
        }
        let mut verdict = self.closed(rule(id::TRUSTED));
        verdict.status = Some(TaskStatus::Succeeded);
        verdict.started = true;
        verdict
    }
}
