//! Which step was asked for by a flow that knew another one's outcome, from the order of the stream alone.
//!
//! A step whose first event comes before an outcome was asked for without it. One whose first event comes
//! later may have been asked for because of it, unless it belongs to a branch of its own that runs beside: one
//! that had begun by then, or that only waited for its turn (`CALLS_MAX`) while its siblings were busy without a
//! pause. Branches that talk to each other behind the engine's back are misjudged here; their fork then stops as
//! diverged instead of doing anything twice.

use std::collections::HashMap;
use tenure_kernel::time::Timestamp;
use tenure_steps::{
    events::{StepEvent, StepId},
    history::{History, Outcome, Shape, StepRecord},
};

/// The steps of a run and where in its stream they began and were over.
#[derive(Default)]
pub(super) struct Order {
    history: History,
    first: HashMap<StepId, usize>,
    over: HashMap<StepId, usize>,
    /// Where each branch began.
    branches: HashMap<String, usize>,
    /// For each place that has branches: how many of their steps were open, whenever that changed.
    busy: HashMap<String, Vec<(usize, usize)>>,
}

impl Order {
    pub(super) fn of(events: &[StepEvent]) -> Self {
        let mut order = Order::default();
        for (at, event) in events.iter().enumerate() {
            order.history.apply(event, Timestamp::ZERO, 0);
            let Some(step) = event.step() else { continue };
            let Some(record) = order.history.steps.get(step) else { continue };
            let instant = matches!(record.shape, Shape::Value { .. });
            if !order.first.contains_key(step) {
                order.first.insert(step.clone(), at);
                for branch in branches_of(step) {
                    order.branches.entry(branch.to_owned()).or_insert(at);
                }
                order.count(step, at, |n| n + usize::from(!instant));
            }
            // What was corrected ended with its correction: nobody had used it.
            if matches!(event, StepEvent::EffectCorrected { .. })
                && order.over.remove(step).is_some()
            {
                order.count(step, at, |n| n + 1);
            }
            let is_over = order.history.steps.get(step).is_some_and(|r| r.outcome.is_some());
            if is_over && !order.over.contains_key(step) {
                order.over.insert(step.clone(), at);
                order.count(step, at, |n| n.saturating_sub(usize::from(!instant)));
            }
        }
        order
    }

    fn count(&mut self, step: &StepId, at: usize, change: impl Fn(usize) -> usize) {
        for branch in branches_of(step) {
            let changes = self.busy.entry(parent_of(branch).to_owned()).or_default();
            let now = changes.last().map_or(0, |(_, n)| *n);
            if change(now) != now {
                changes.push((at, change(now)));
            }
        }
    }

    /// All steps, in the order in which they began.
    pub(super) fn steps(&self) -> Vec<&StepId> {
        let mut steps: Vec<_> = self.first.iter().collect();
        steps.sort_by_key(|(_, at)| **at);
        steps.into_iter().map(|(step, _)| step).collect()
    }

    pub(super) fn record(&self, step: &StepId) -> Option<&StepRecord> {
        self.history.steps.get(step)
    }

    pub(super) fn is_over(&self, step: &StepId) -> bool {
        self.over.contains_key(step)
    }

    pub(super) fn succeeded(&self, step: &StepId) -> bool {
        let outcome = self.record(step).and_then(|r| r.outcome.as_ref());
        matches!(outcome, Some(Outcome::Ok(_) | Outcome::InChild(_)))
    }

    /// Where its first event stands.
    pub(super) fn began(&self, step: &StepId) -> Option<usize> {
        self.first.get(step).copied()
    }

    /// Whether the flow may have asked for `step` because of the outcome of `other`.
    pub(super) fn knew(&self, step: &StepId, other: &StepId) -> bool {
        let (Some(&first), Some(&over)) = (self.first.get(step), self.over.get(other)) else {
            return false;
        };
        let beside = |branch: &str| {
            let began = self.branches.get(branch).copied().unwrap_or(usize::MAX);
            !within(other, branch) && (began < over || self.busy(parent_of(branch), over, began))
        };
        first > over && !branches_of(step).any(beside)
    }

    /// Whether some step in a branch of this place was open all the time.
    fn busy(&self, place: &str, from: usize, to: usize) -> bool {
        let Some(changes) = self.busy.get(place) else { return false };
        let later = changes.partition_point(|(at, _)| *at <= from);
        let then = later.checked_sub(1).map_or(0, |i| changes[i].1);
        then > 0 && changes[later..].iter().take_while(|(at, _)| *at < to).all(|(_, n)| *n > 0)
    }
}

/// `2` and `2.3` for the step `2.3.1`.
fn branches_of(step: &StepId) -> impl Iterator<Item = &str> {
    step.0.match_indices('.').map(|(dot, _)| &step.0[..dot])
}

fn parent_of(branch: &str) -> &str {
    branch.rfind('.').map_or("", |dot| &branch[..dot])
}

fn within(step: &StepId, branch: &str) -> bool {
    step.0.strip_prefix(branch).is_some_and(|rest| rest.starts_with('.'))
}
