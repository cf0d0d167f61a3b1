//! The metrics of tasks: how attempts end, by class, cause and tenant; what the budgets do; what waits for a person.

use super::text::Page;
use crate::App;
use std::collections::BTreeMap;
use tenure_engine::{config::Labelled, meter::Meter};
use tenure_kernel::{commit::Commit, error::StoreError, machine::decode_state, stream::NewEvent};
use tenure_pods::{
    desk::{BudgetView, letters::dead_letters},
    task::{Task, TaskEvent, TaskState, model::Ended, policy::NoRetry},
};

/// Events that are counted by labels.
pub(super) const LABELLED: &[Labelled] = &[
    Labelled { event: "attempt_failed", labels: of_attempt },
    Labelled { event: "task_failed", labels: of_task },
];

/// Dead letters that are counted.
const LETTERS_MAX: usize = 200;
/// Tenants whose budgets are shown.
const BUDGETS_MAX: usize = 100;

fn parts(commit: &Commit, event: &NewEvent) -> Option<(TaskState, TaskEvent)> {
    let state = decode_state::<Task>(commit.state.as_deref()?).ok()?;
    let event = tenure_kernel::stored::from_slice(event.body.inline()?).ok()?;
    Some((state, event))
}

/// Class and cause as words.
fn words(ended: &Ended) -> [String; 2] {
    let class = serde_json::to_value(ended.class).ok();
    let class = class.and_then(|c| c.as_str().map(str::to_owned));
    let cause = ended.cause.map(|c| c.name().to_owned());
    [class, cause].map(|word| word.unwrap_or_else(|| "unknown".to_owned()))
}

/// Class, cause, tenant.
fn of_attempt(commit: &Commit, event: &NewEvent) -> Option<Vec<String>> {
    let (state, TaskEvent::AttemptFailed { ended, .. }) = parts(commit, event)? else {
        return None;
    };
    let [class, cause] = words(&ended);
    Some(vec![class, cause, state.tenant_id])
}

/// Why there is no other attempt, class, cause, tenant.
fn of_task(commit: &Commit, event: &NewEvent) -> Option<Vec<String>> {
    let (state, TaskEvent::TaskFailed { ended, why, .. }) = parts(commit, event)? else {
        return None;
    };
    let [class, cause] = words(&ended);
    Some(vec![word(why), class, cause, state.tenant_id])
}

fn word(why: NoRetry) -> String {
    let word = serde_json::to_value(why).ok().and_then(|w| w.as_str().map(str::to_owned));
    word.unwrap_or_default()
}

/// The end of an attempt that was counted when it failed, before the task did.
fn counted_before(why: &str) -> bool {
    [NoRetry::NotFenced, NoRetry::NoPodCame].into_iter().any(|n| word(n) == why)
}

/// What this process did.
pub(super) fn counted(page: &mut Page, meter: &Meter) {
    page.counter("tenure_tasks_ordered_total", "Tasks created, ordered or taken in.")
        .is(meter.events("task_created"));
    page.counter("tenure_tasks_ended_total", "Tasks that ended, by how.")
        .with(&[("status", "SUCCEEDED")], meter.events("task_succeeded"))
        .with(&[("status", "FAILED")], meter.events("task_failed"))
        .with(&[("status", "CANCELED")], meter.events("task_canceled"));
    page.counter("tenure_task_pods_wanted_total", "Attempts for which an executor was asked.")
        .is(meter.events("pod_wanted"));
    page.counter(
        "tenure_task_retries_total",
        "What the tenants' budgets said to retries; deferred: no room now, it asks again.",
    )
    .with(&[("result", "granted")], meter.events("retry_granted"))
    .with(&[("result", "deferred")], meter.events("retry_deferred"));
    let failed = meter.labelled("task_failed");
    let mut attempts: BTreeMap<Vec<String>, u64> = BTreeMap::new();
    for (labels, count) in meter.labelled("attempt_failed") {
        *attempts.entry(labels).or_default() += count;
    }
    for (labels, count) in failed.iter().filter(|(l, _)| !counted_before(&l[0])) {
        *attempts.entry(labels[1..].to_vec()).or_default() += count;
    }
    page.counter(
        "tenure_task_attempts_failed_total",
        "Attempts that failed, by class, cause and tenant; beyond a hundred tenants they are other.",
    );
    for (labels, count) in &attempts {
        if let [class, cause, tenant] = &labels[..] {
            page.with(&[("class", class), ("cause", cause), ("tenant", tenant)], count);
        }
    }
    page.counter(
        "tenure_task_dead_letters_total",
        "Tasks that failed for good, by why there was no further attempt.",
    );
    let mut why: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for (labels, count) in &failed {
        if let [reason, _, _, tenant] = &labels[..] {
            *why.entry((reason, tenant)).or_default() += count;
        }
    }
    for ((reason, tenant), count) in &why {
        page.with(&[("why", reason), ("tenant", tenant)], count);
    }
    // Also while there is none: an alert about a metric that is not there never fires.
    let crossed = word(NoRetry::CapacityThreshold);
    let crossed =
        why.iter().filter(|((reason, _), _)| *reason == crossed).map(|(_, n)| n).sum::<u64>();
    page.counter(
        "tenure_task_capacity_crossed_total",
        "Tasks that nodes turned away for want of room (OutOfcpu, OutOfmemory, …) more often than pods.rejected_capacity_max.",
    )
    .is(crossed);
}

/// What one look saw.
pub(super) struct Seen {
    pub(super) dead_letters: usize,
    budgets: Vec<BudgetView>,
}

/// Looks at the store. Dead letters are looked for rarely: each costs a read.
pub(super) async fn look(app: &App, letters: Option<usize>) -> Result<Seen, StoreError> {
    let Some(desk) = app.tasks() else {
        return Ok(Seen { dead_letters: 0, budgets: Vec::new() });
    };
    let dead_letters = match letters {
        Some(letters) => letters,
        None => {
            let store = app.pipeline().store();
            dead_letters(store, None, None, LETTERS_MAX, |_| true).await?.tasks.len()
        }
    };
    let mut budgets = desk.budgets(None).await?;
    budgets.sort_by_key(|b| std::cmp::Reverse(b.granted));
    budgets.truncate(BUDGETS_MAX);
    Ok(Seen { dead_letters, budgets })
}

/// How the store is.
pub(super) fn stored(page: &mut Page, seen: &Seen) {
    page.gauge(
        "tenure_task_dead_letters",
        "Failed tasks that nobody has replayed or put aside; counting stops at 200.",
    )
    .is(seen.dead_letters);
    page.gauge("tenure_task_budget_tokens", "Retries of a tenant's tasks that could start now.");
    for b in &seen.budgets {
        page.with(&[("tenant", &b.tenant)], b.tokens);
    }
    page.gauge("tenure_task_budget_in_flight", "Retried attempts of a tenant that are under way.");
    for b in &seen.budgets {
        page.with(&[("tenant", &b.tenant)], b.in_flight);
    }
    page.gauge("tenure_task_budget_in_flight_max", "How many of them may be.");
    for b in &seen.budgets {
        page.with(&[("tenant", &b.tenant)], b.in_flight_max);
    }
}
