//! Silence: being deleted for too long, a node that does not answer.

use super::{Judge, outside::Outside};
use crate::verdict::{
    look,
    node::{NodeReady, NodeView},
    table::{Row, id, rule},
    words::{Cause, Verdict},
};
use tenure_kernel::time::Timestamp;

/// How long something is waited for.
struct Wait<'r> {
    row: &'r Row,
    since: Timestamp,
    deadline: Timestamp,
    /// Nothing in the cluster says since when: it is counted from when it was first seen.
    by_us: bool,
}

impl<'a> Judge<'a> {
    /// Being deleted and still there, or on a node that does not answer. Whichever is over first.
    pub(super) fn silence(&self) -> Option<Verdict> {
        if !self.look.has_node() {
            self.look.deletion()?;
            let (row, reason) = self.deleted_by(id::DELETED_UNSCHEDULED);
            return Some(match self.disruption() {
                Some(outside) => self.by(&outside),
                None => {
                    let since = self.look.deletion().map(|d| d.began);
                    self.ended(row, reason, self.look.message(), since)
                }
            });
        }
        let found = [self.leaving(), self.node_lost(), self.reason_node_lost(), self.unknown()];
        let first = found.into_iter().flatten().min_by_key(|wait| wait.deadline)?;
        let Wait { row, since, deadline, by_us } = first;
        let told = if row.id == id::TERMINATING { self.stuck() } else { None };
        if self.now >= deadline {
            let (reason, message) = match self.disruption() {
                Some(outside) => (outside.reason, outside.message),
                None => (self.look.reason(), self.look.message()),
            };
            let mut verdict = match &told {
                Some(outside) => self.by(outside),
                None => self.ended(row, reason, message, None),
            };
            // A moment of our own clock would be another one for whoever looks next.
            verdict.since =
                if by_us { self.look.last_time().or(Some(deadline)) } else { Some(deadline) };
            verdict.exit_code = None;
            verdict.signal = None;
            return Some(verdict);
        }
        let before = self.running().unwrap_or_else(|| self.waiting());
        // A wait that is over first is not postponed by a deletion.
        if before.is_final() || before.next_check_at.is_some_and(|at| at <= deadline) {
            return Some(before);
        }
        let held = self.look.phase() == "Unknown";
        let status = if held { self.last.and_then(|l| l.status) } else { before.status };
        Some(Verdict {
            status,
            disrupted: self.is_disrupted(),
            rule: row.rule().into_owned(),
            clock: Some(row.clock()),
            clock_since: Some(since),
            next_check_at: Some(deadline),
            next_cause: told.map_or(row, |outside| outside.row).cause,
            ..before
        })
    }

    /// Why a pod is told to go that does not, where nothing says that its node is lost: somebody deleted it, and a finalizer,
    /// a volume or a slow end holds it. It may still run all the same.
    fn stuck(&self) -> Option<Outside<'a>> {
        let lost = self.look.driven_from_dead_node() || self.node_lost().is_some();
        if lost || self.look.phase() == "Unknown" {
            return None;
        }
        self.pod_reason().or_else(|| self.disruption()).or_else(|| self.deleted())
    }

    /// A wait from this moment on, or, where the cluster knows none, from when this was first seen.
    fn wait<'r>(&self, row: &'r Row, since: Option<Timestamp>) -> Wait<'r> {
        let by_us = since.is_none();
        let since = since.unwrap_or_else(|| self.since_last(row.clock()));
        Wait { row, since, deadline: since + self.policy.grace(row), by_us }
    }

    /// No wait: it is so.
    fn at_once<'r>(&self, row: &'r Row) -> Wait<'r> {
        Wait { row, since: self.now, deadline: self.now, by_us: true }
    }

    fn leaving(&self) -> Option<Wait<'static>> {
        let due = self.look.deletion()?.due;
        Some(self.wait(rule(id::TERMINATING), Some(due)))
    }

    fn node_lost(&self) -> Option<Wait<'static>> {
        let counted = |name, since: Option<Timestamp>| self.wait(rule(name), since);
        match self.node {
            Some(node) if node.out_of_service => Some(self.at_once(rule(id::OUT_OF_SERVICE))),
            Some(node) if !node.exists => Some(counted(id::NODE_MISSING, None)),
            Some(NodeView { ready: NodeReady::Silent(since), .. }) => {
                Some(counted(id::NODE_SILENT, *since))
            }
            Some(NodeView { ready: NodeReady::Yes, .. }) => None,
            // A node that says that it is not well still speaks for its pods, unless the node controller has given them up.
            Some(NodeView { ready: NodeReady::No, .. }) | None => {
                let since = self.look.unready_by_controller()?;
                Some(counted(id::NODE_SILENT, since))
            }
        }
    }

    fn reason_node_lost(&self) -> Option<Wait<'a>> {
        let row = self.pod_reason()?.row;
        if row.cause != Some(Cause::NodeLost) {
            return None;
        }
        let unready = self.look.condition("Ready").filter(|c| c.status != "True");
        let since = self
            .look
            .deletion()
            .map(|d| d.due)
            .or_else(|| look::moment(unready?.last_transition_time.as_ref()?));
        Some(match since {
            Some(_) => self.wait(row, since),
            None => self.at_once(row),
        })
    }

    fn unknown(&self) -> Option<Wait<'static>> {
        if self.look.phase() != "Unknown" {
            return None;
        }
        let row = rule(id::PHASE_UNKNOWN);
        let ready = self.look.condition("Ready").filter(|c| c.status != "True");
        let since = ready.and_then(|c| look::moment(c.last_transition_time.as_ref()?));
        Some(self.wait(row, since))
    }
}
