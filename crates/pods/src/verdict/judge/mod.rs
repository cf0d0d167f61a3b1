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
//!
//! | room | which of them |
//! |---|---|
//! | `main_container` | 2 |
//! | `outside` | what ends a pod from outside, for 2 to 4 |
//! | `whole_pod` | 3 |
//! | `silence` | 4 |
//! | `waiting` | 5 and 6 |

mod main_container;
mod outside;
mod silence;
mod waiting;
mod whole_pod;

use super::{
    look::{self, Look},
    node::NodeView,
    policy::Policy,
    table::{Row, TABLE, id, rule},
    words::{Cause, Clock, TaskStatus, Verdict},
};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};
use outside::Outside;
use tenure_kernel::time::Timestamp;

/// The longest message of a verdict, in bytes. Containers may write 4 KiB, and there are many pods.
pub const MESSAGE_MAX: usize = 1_024;
/// The longest reason.
pub const REASON_MAX: usize = 128;

pub(super) struct Judge<'a> {
    pub look: Look<'a>,
    last: Option<&'a Verdict>,
    now: Timestamp,
    policy: &'a Policy,
    node: Option<&'a NodeView>,
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

    fn cancelled(&self) -> Option<Verdict> {
        let (row, reason, message, since) =
            if let Some(why) = self.look.annotation(&self.policy.cancel_annotation) {
                // The marker has no time of its own, and who sees it later must not give it another: it is from after the last moment of
                // which the pod tells.
                let since = self.look.deletion().map(|d| d.began);
                let since = since.or_else(|| look::finished(self.look.main_end()?));
                (rule(id::CANCEL), why, "", since.or_else(|| self.look.last_time()))
            } else {
                let c = self.look.holds("TerminationTarget")?;
                let since = self.look.holds_since("TerminationTarget");
                (rule(id::QUEUE_CANCEL), text(&c.reason), text(&c.message), since)
            };
        let mut verdict = self.ended(row, reason, message, since);
        verdict.status = Some(TaskStatus::Canceled);
        Some(verdict)
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

/// An operator's row says what it says, whoever was ending the pod.
fn is_own(row: &Row) -> bool {
    row.id.is_empty() || !TABLE.iter().any(|r| r.id == row.id)
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
