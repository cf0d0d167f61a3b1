//! What ended a pod from outside its containers, and who says so.

use super::{Judge, text};
use crate::{
    report::{TerminatedReason, labels},
    verdict::{
        look,
        policy::Said,
        table::{Place, Row, id, rule},
        words::{Cause, Verdict},
    },
};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, PodCondition};
use std::time::Duration;
use tenure_kernel::time::Timestamp;

/// How far the clocks of two machines of a cluster may be apart. Kubernetes writes whole seconds, so even clocks that agree differ by one.
const CLOCKS_APART: Duration = Duration::from_secs(3);
/// The same for a container that ended as one that is told to stop does: it takes a bad clock, not chance, to explain it otherwise.
const CLOCKS_FAR_APART: Duration = Duration::from_secs(30);
const SIGKILLED: i32 = 137;
const SIGTERMED: i32 = 143;

/// What ended a pod from outside its containers.
pub(super) struct Outside<'a> {
    pub row: &'a Row,
    pub reason: &'a str,
    pub message: &'a str,
    pub since: Option<Timestamp>,
    /// Who says so.
    pub by: By,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// `status.reason`
    Reason,
    /// The condition `DisruptionTarget`.
    Condition,
    /// Nobody: it is being deleted.
    Deletion,
}

impl Outside<'_> {
    /// Whether it came from outside: a limit or a deadline of the pod's own, and a node that never took it, disrupt nothing.
    pub(super) fn disrupts(&self) -> bool {
        let not_its_own = matches!(
            self.row.cause.and_then(Cause::terminated_reason),
            Some(TerminatedReason::SystemEviction | TerminatedReason::NodeLost)
        );
        let own = [Some(Cause::EvictedOwnLimit), Some(Cause::RejectedPressure)];
        self.by != By::Reason || not_its_own && !own.contains(&self.row.cause)
    }
}

impl<'a> Judge<'a> {
    /// What ended the pod from outside, unless the container had ended before that. The two times come from the clocks of two
    /// machines, so a container that was told to stop may read as having stopped a little before.
    pub(super) fn outside(&self, end: &ContainerStateTerminated) -> Option<Outside<'a>> {
        let told_to = [SIGKILLED, SIGTERMED].contains(&end.exit_code);
        let slack = if told_to { CLOCKS_FAR_APART } else { CLOCKS_APART };
        let in_time = |since: Option<Timestamp>| match (look::finished(end), since) {
            (Some(finished), Some(since)) => finished + slack >= since,
            _ => true,
        };
        let said = self.pod_reason().or_else(|| self.disruption());
        said.or_else(|| self.deleted()).filter(|outside| in_time(outside.since))
    }

    pub(super) fn pod_reason(&self) -> Option<Outside<'a>> {
        let (reason, message) = (self.look.reason(), self.look.message());
        // The table's last row takes any word with a certain text, also none.
        let said = Said { place: Place::Status, reason, message, exit_code: None };
        let row = self.policy.row(&said)?;
        let since = match row.cause {
            Some(Cause::Timeout) => self.look.active_deadline(),
            _ => self.look.holds_since("DisruptionTarget"),
        };
        Some(Outside { row, reason, message, since, by: By::Reason })
    }

    pub(super) fn disruption(&self) -> Option<Outside<'a>> {
        let c: &PodCondition = self.look.holds("DisruptionTarget")?;
        let (reason, message) = (text(&c.reason), text(&c.message));
        let said = Said { place: Place::Condition, reason, message, exit_code: None };
        let row = self.policy.row(&said)?;
        let since = self.look.holds_since("DisruptionTarget");
        Some(Outside { row, reason, message, since, by: By::Condition })
    }

    /// What the pod itself says about why it is being ended.
    pub fn told(&self) -> Option<Verdict> {
        self.pod_reason().or_else(|| self.disruption()).map(|outside| self.by(&outside))
    }

    pub(super) fn deleted(&self) -> Option<Outside<'a>> {
        let deletion = self.look.deletion()?;
        let (row, reason) = self.deleted_by(id::DELETED);
        let (message, since) = (self.look.message(), Some(deletion.began));
        Some(Outside { row, reason, message, since, by: By::Deletion })
    }

    /// The row of a deletion: ours, if we wrote that on the pod before; else this one.
    pub fn deleted_by(&self, other: &str) -> (&'static Row, &'a str) {
        match self.look.annotation(labels::STOPPED) {
            Some(why @ "timeout") => (rule(id::STOPPED_TIMEOUT), why),
            Some(why) => (rule(id::STOPPED), why),
            None => (rule(other), ""),
        }
    }
}
