//! Silence: being deleted for too long, a node that does not answer.

use super::{Judge, outside::Outside};
use crate::verdict::{
    look,
    node::{NodeReady, NodeView},
    table::{Row, id, rule},
    words::{Cause, Verdict},
};
use tenure_kernel::time::Timestamp;

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
        let first = found.into_iter().flatten().min_by_key(|(_, _, deadline)| *deadline)?;
        let (row, since, deadline) = first;
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
            verdict.since = Some(deadline);
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

    fn leaving(&self) -> Option<(&'static Row, Timestamp, Timestamp)> {
        let due = self.look.deletion()?.due;
        let row = rule(id::TERMINATING);
        Some((row, due, due + self.policy.grace(row)))
    }

    fn node_lost(&self) -> Option<(&'static Row, Timestamp, Timestamp)> {
        let counted = |name, since: Option<Timestamp>| {
            let row = rule(name);
            let since = since.unwrap_or_else(|| self.since_last(row.clock()));
            (row, since, since + self.policy.grace(row))
        };
        match self.node {
            Some(node) if node.out_of_service => {
                let row = rule(id::OUT_OF_SERVICE);
                Some((row, self.now, self.now))
            }
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

    fn reason_node_lost(&self) -> Option<(&'a Row, Timestamp, Timestamp)> {
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
            Some(since) => (row, since, since + self.policy.grace(row)),
            None => (row, self.now, self.now),
        })
    }

    fn unknown(&self) -> Option<(&'static Row, Timestamp, Timestamp)> {
        if self.look.phase() != "Unknown" {
            return None;
        }
        let row = rule(id::PHASE_UNKNOWN);
        let ready = self.look.condition("Ready").filter(|c| c.status != "True");
        let since = ready.and_then(|c| look::moment(c.last_transition_time.as_ref()?));
        let since = since.unwrap_or_else(|| self.since_last(row.clock()));
        Some((row, since, since + self.policy.grace(row)))
    }
}
