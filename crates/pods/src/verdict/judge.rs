//! The decision. In this order, and the first that has something to say is heard:
//!
//! 1. a cancel marker, ours or a queueing system's. (Our other mark, `flowforge.io/stopped`, is no proof of anything: it only says who
//!    it was where a deletion is all that explains an end);
//! 2. the end of the main container. Exit code 0 and OOM are proof. Any other code is proof only if nobody was ending the pod
//!    by then: a container killed in an eviction ends with 137 too;
//! 3. what the pod says of itself: `status.reason`, then the condition `DisruptionTarget`, then init containers;
//! 4. silence: being deleted for too long, a node that does not answer;
//! 5. the main container runs;
//! 6. it waits, and how long it may depends on the reason.
//!
//! Times are the pod's own wherever it has them. Only where Kubernetes keeps none (since when does this image not come?) the
//! last verdict's clock is read, so that words which alternate do not start it over; without a last verdict (a
//! collector that just began) the clock starts where the container could have been started. That is early rather than
//! late: a restart of ours shortens a grace at worst, and never gives a hopeless pod a new one.

use super::{
    look::{self, Look},
    node::{NodeReady, NodeView},
    policy::{Policy, Said, UnderDisruption, WithoutProof},
    table::{Place, Row, id, rule},
    words::{Cause, CauseClass, Clock, TaskStatus, Verdict},
};
use crate::report::{TerminatedReason, labels};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodCondition};
use std::time::Duration;
use tenure_kernel::time::Timestamp;

/// The longest message of a verdict, in bytes. Containers may write 4 KiB, and there are many pods.
pub const MESSAGE_MAX: usize = 1_024;
/// The longest reason.
pub const REASON_MAX: usize = 128;
/// How far the clocks of two machines of a cluster may be apart. Kubernetes writes whole seconds, so even clocks that agree differ by one.
const CLOCKS_APART: Duration = Duration::from_secs(3);
/// The same for a container that ended as one that is told to stop does: it takes a bad clock, not chance, to explain it otherwise.
const CLOCKS_FAR_APART: Duration = Duration::from_secs(30);
const SIGKILLED: i32 = 137;
const SIGTERMED: i32 = 143;

pub(super) struct Judge<'a> {
    pub look: Look<'a>,
    last: Option<&'a Verdict>,
    now: Timestamp,
    policy: &'a Policy,
    node: Option<&'a NodeView>,
}

/// What ended a pod from outside its containers.
struct Outside<'a> {
    row: &'a Row,
    reason: &'a str,
    message: &'a str,
    since: Option<Timestamp>,
    /// Who says so.
    by: By,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    /// `status.reason`
    Reason,
    /// The condition `DisruptionTarget`.
    Condition,
    /// Nobody: it is being deleted.
    Deletion,
}

impl<'a> Judge<'a> {
    pub fn new(
        pod: &'a Pod,
        last: Option<&'a Verdict>,
        now: Timestamp,
        policy: &'a Policy,
        node: Option<&'a NodeView>,
    ) -> Judge<'a> {
        Judge { look: Look::new(pod, policy), last, now, policy, node }
    }

    pub fn decide(&self) -> Verdict {
        let mut verdict = self
            .cancelled()
            .or_else(|| self.main_ended())
            .or_else(|| self.pod_ended())
            .or_else(|| self.silence())
            .or_else(|| self.running())
            .unwrap_or_else(|| self.waiting());
        if verdict.container.is_none() {
            verdict.container = self.look.main.map(str::to_owned);
        }
        verdict
    }

    // --- 1. markers ------------------------------------------------------------------------------

    fn cancelled(&self) -> Option<Verdict> {
        let (row, reason, message, since) =
            if let Some(why) = self.look.annotation(&self.policy.cancel_annotation) {
                // The marker has no time of its own. It was not written when the pod started.
                let since = self.look.deletion().map(|d| d.began);
                let since = since.or_else(|| look::finished(self.look.main_end()?));
                (rule(id::CANCEL), why, "", since.or(Some(self.now)))
            } else {
                let c = self.look.holds("TerminationTarget")?;
                let since = self.look.holds_since("TerminationTarget");
                (rule(id::QUEUE_CANCEL), text(&c.reason), text(&c.message), since)
            };
        let mut verdict = self.ended(row, reason, message, since);
        verdict.status = Some(TaskStatus::Canceled);
        Some(verdict)
    }

    // --- 2. the main container -------------------------------------------------------------------

    fn main_ended(&self) -> Option<Verdict> {
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

    fn row_of(&self, end: &ContainerStateTerminated) -> Option<&'a Row> {
        self.policy.row(&Said {
            place: Place::Terminated,
            reason: text(&end.reason),
            message: text(&end.message),
            exit_code: Some(end.exit_code),
        })
    }

    /// What the container wrote, else what the pod says.
    fn words_of(&self, end: &'a ContainerStateTerminated) -> &'a str {
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
    fn succeeded_by_phase(&self) -> Verdict {
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

    /// What ended the pod from outside, unless the container had ended before that. The two times come from the clocks of two
    /// machines, so a container that was told to stop may read as having stopped a little before.
    fn outside(&self, end: &ContainerStateTerminated) -> Option<Outside<'a>> {
        let told_to = [SIGKILLED, SIGTERMED].contains(&end.exit_code);
        let slack = if told_to { CLOCKS_FAR_APART } else { CLOCKS_APART };
        let in_time = |since: Option<Timestamp>| match (look::finished(end), since) {
            (Some(finished), Some(since)) => finished + slack >= since,
            _ => true,
        };
        let said = self.pod_reason().or_else(|| self.disruption());
        said.or_else(|| self.deleted()).filter(|outside| in_time(outside.since))
    }

    fn pod_reason(&self) -> Option<Outside<'a>> {
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

    fn disruption(&self) -> Option<Outside<'a>> {
        let c: &PodCondition = self.look.holds("DisruptionTarget")?;
        let (reason, message) = (text(&c.reason), text(&c.message));
        let said = Said { place: Place::Condition, reason, message, exit_code: None };
        let row = self.policy.row(&said)?;
        let since = self.look.holds_since("DisruptionTarget");
        Some(Outside { row, reason, message, since, by: By::Condition })
    }

    /// Whether no container of the task runs in this pod any more, and none will.
    pub fn is_over(&self) -> bool {
        let ended = |main: &ContainerStatus| {
            let end = self.look.main_end();
            end.is_some_and(|end| !self.look.restarts(&main.name, false, end.exit_code))
        };
        ["Failed", "Succeeded"].contains(&self.look.phase())
            || self.look.main_status().is_some_and(ended)
            || self.look.deletion().is_some() && !self.look.has_node()
    }

    /// What the pod itself says about why it is being ended.
    pub fn told(&self) -> Option<Verdict> {
        self.pod_reason().or_else(|| self.disruption()).map(|outside| self.by(&outside))
    }

    fn deleted(&self) -> Option<Outside<'a>> {
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

    // --- 3. the pod ------------------------------------------------------------------------------

    fn pod_ended(&self) -> Option<Verdict> {
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
    fn closed(&self, row: &Row) -> Verdict {
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

    // --- 4. silence ------------------------------------------------------------------------------

    /// Being deleted and still there, or on a node that does not answer. Whichever is over first.
    fn silence(&self) -> Option<Verdict> {
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

    // --- 5. running ------------------------------------------------------------------------------

    fn running(&self) -> Option<Verdict> {
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

    // --- 6. waiting ------------------------------------------------------------------------------

    fn waiting(&self) -> Verdict {
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
            && let Some(long) = super::table::TABLE
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

    // --- what all of them need -------------------------------------------------------------------

    /// The start of a clock for which the pod has no time: the last verdict's, or now.
    fn since_last(&self, clock: Clock) -> Timestamp {
        let same = self.last.filter(|l| l.clock == Some(clock));
        same.and_then(|l| l.clock_since).unwrap_or(self.now)
    }

    fn started(&self) -> bool {
        self.look.has_run() || self.last.is_some_and(|l| l.started)
    }

    fn is_disrupted(&self) -> bool {
        self.look.deletion().is_some() || self.look.holds("DisruptionTarget").is_some()
    }

    fn by(&self, outside: &Outside<'_>) -> Verdict {
        let mut verdict = self.ended(outside.row, outside.reason, outside.message, outside.since);
        verdict.disrupted = outside.disrupts();
        if outside.since.is_none()
            && let Some(finished) = self.look.main_end().and_then(look::finished)
        {
            verdict.since = Some(finished);
        }
        verdict
    }

    /// A failure by this row, with the end of the main container if there is one.
    pub fn ended(
        &self,
        row: &Row,
        reason: &str,
        message: &str,
        since: Option<Timestamp>,
    ) -> Verdict {
        // What we stopped ourselves did not fail.
        let ours = row.id == id::STOPPED;
        let mut verdict = Verdict {
            status: Some(if ours { TaskStatus::Canceled } else { TaskStatus::Failed }),
            cause: row.cause,
            class: row.class(),
            retryable: row.retryable(),
            container: self.look.main.map(str::to_owned),
            started: self.started(),
            disrupted: self.is_disrupted(),
            reason: cut(reason, REASON_MAX),
            message: cut(message, MESSAGE_MAX),
            detail: row.detail.clone().or_else(|| pressure(row.cause, message)),
            rule: row.rule().into_owned(),
            since: since.or_else(|| self.look.some_time()).or(Some(self.now)),
            ..Verdict::default()
        };
        if let (Some(main), Some(end)) = (self.look.main_status(), self.look.main_end()) {
            self.tell_end(&mut verdict, main, end);
        }
        verdict
    }

    fn tell_end(
        &self,
        verdict: &mut Verdict,
        status: &ContainerStatus,
        end: &ContainerStateTerminated,
    ) {
        verdict.container = Some(status.name.clone());
        verdict.exit_code = Some(end.exit_code);
        let by_code = end.exit_code.checked_sub(128).filter(|s| (1..=64).contains(s));
        verdict.signal = end.signal.filter(|s| *s != 0).or(by_code);
    }
}

impl Outside<'_> {
    /// Whether it came from outside: a limit or a deadline of the pod's own, and a node that never took it, disrupt nothing.
    fn disrupts(&self) -> bool {
        let not_its_own = matches!(
            self.row.cause.and_then(Cause::terminated_reason),
            Some(TerminatedReason::SystemEviction | TerminatedReason::NodeLost)
        );
        let own = [Some(Cause::EvictedOwnLimit), Some(Cause::RejectedPressure)];
        self.by != By::Reason || not_its_own && !own.contains(&self.row.cause)
    }
}

/// An operator's row says what it says, whoever was ending the pod.
fn is_own(row: &Row) -> bool {
    row.id.is_empty() || !super::table::TABLE.iter().any(|r| r.id == row.id)
}

fn text(field: &Option<String>) -> &str {
    field.as_deref().unwrap_or("")
}

/// Which resource the node ran short of, from the kubelet's sentence.
fn pressure(cause: Option<Cause>, message: &str) -> Option<String> {
    if !matches!(cause, Some(Cause::EvictedNodePressure | Cause::RejectedPressure)) {
        return None;
    }
    // What comes after the first sentence names the containers and what they used.
    let after = message.find("resource:").or_else(|| message.find("condition:"));
    let words = message.get(after.unwrap_or(0)..).unwrap_or("").to_lowercase();
    let first = words.split(". ").next().unwrap_or("");
    let kinds = [
        ("memory", "memory"),
        ("pid", "pid"),
        ("storage", "disk"),
        ("disk", "disk"),
        ("inode", "disk"),
        ("fs", "disk"),
    ];
    let found = kinds.iter().find(|(word, _)| first.contains(word));
    found.map(|(_, kind)| (*kind).to_owned())
}

/// The beginning of a text, at a boundary of letters.
pub(super) fn cut(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    const MARK: &str = "…";
    let mut end = most.saturating_sub(MARK.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{MARK}", text.get(..end).unwrap_or(""))
}
