//! What happened when, as data: whoever draws it, as SVG or in a terminal, draws from this.

mod types;

pub use types::{Bar, BarKind, BarState, Lane, Lease, LeaseEnd, Mark, MarkKind, Timeline};

use super::{CallView, EventView, JobDetail, StepView};
use crate::model::GATE_GIVEN_BACK;
use tenure_kernel::{table::kernel_events as ke, time::Timestamp};
use tenure_steps::{events::StepId, flow::queue_of};

/// A job over time. `now` ends what is open.
pub fn timeline(detail: &JobDetail, now: Timestamp) -> Timeline {
    let job = &detail.job;
    let last = detail.events.last().map_or(job.changed_at, |e| e.at);
    Timeline {
        id: job.id,
        flow: queue_of(&job.flow, job.version),
        status: job.status.clone(),
        from: job.created_at,
        to: if job.is_final { last } else { now.max(last) },
        open: !job.is_final,
        leases: leases(detail),
        lanes: detail.steps.iter().map(|s| lane(s, job.is_final.then_some(last))).collect(),
        marks: detail.events.iter().filter_map(mark).collect(),
    }
}

/// Tenures: each begins with a claim, or with the birth of a job that started in it, and ends in the record
/// that says so, or with the job.
fn leases(detail: &JobDetail) -> Vec<Lease> {
    let mut leases: Vec<Lease> = Vec::new();
    for (i, event) in detail.events.iter().enumerate() {
        if let Some(session) = event.took {
            let name = detail.sessions.iter().find(|(id, _)| *id == session);
            leases.push(Lease {
                epoch: event.epoch,
                session: Some(session),
                name: name.map_or_else(|| session.to_string(), |(_, name)| name.clone()),
                from: event.at,
                to: None,
                end: LeaseEnd::Open,
                why: String::new(),
            });
        }
        let Some(lease) = leases.last_mut().filter(|l| l.to.is_none()) else { continue };
        if is_end(&event.name) {
            (lease.to, lease.end) = (Some(event.at), LeaseEnd::Final);
        } else if event.name == ke::TENURE_ENDED {
            lease.to = Some(event.at);
            lease.why = event.body["why"].as_str().unwrap_or_default().to_owned();
            // What the same commit says after it tells why it ended.
            let after = detail.events[i + 1..].iter().take_while(|e| e.at == event.at);
            lease.end = after.into_iter().find_map(how_it_ended).unwrap_or(LeaseEnd::Released);
        }
    }
    leases
}

fn how_it_ended(after: &EventView) -> Option<LeaseEnd> {
    match after.name.as_str() {
        "job_requeued" => Some(LeaseEnd::Lost),
        "job_waiting" | "job_parked" | "job_retrying" | "job_attention" => Some(LeaseEnd::Parked),
        // A lost worker may have been one too many.
        "job_failed" | "job_failing" if after.body["reason"] == "takeovers_spent" => {
            Some(LeaseEnd::Lost)
        }
        name if is_end(name) => Some(LeaseEnd::Final),
        ke::CLAIMED => Some(LeaseEnd::Released),
        _ => None,
    }
}

fn is_end(name: &str) -> bool {
    matches!(name, "job_completed" | "job_failed" | "job_cancelled" | ke::FORCE_ENDED)
}

fn lane(step: &StepView, ended: Option<Timestamp>) -> Lane {
    let mut bars: Vec<Bar> = step.calls.iter().map(|c| call_bar(c, ended)).collect();
    let bar = |kind, state, label: &str| Bar {
        kind,
        from: step.started,
        to: step.finished.or(ended),
        state,
        label: label.to_owned(),
        epoch: None,
    };
    let state = match step.outcome.as_str() {
        "ok" | "undone" => BarState::Ok,
        "failed" => BarState::Failed,
        "unknown" => BarState::Unknown,
        _ => BarState::Open,
    };
    let said = step.error.as_deref().or(step.result.as_deref()).unwrap_or_default();
    match step.kind.as_str() {
        "wait" => bars.push(bar(BarKind::Wait, state, step.note.as_deref().unwrap_or(said))),
        "child" => bars.push(bar(BarKind::Child, state, said)),
        "value" => bars.push(bar(BarKind::Value, state, said)),
        "tool" if bars.is_empty() => bars.push(bar(BarKind::Call, state, said)),
        _ => {}
    }
    let kind = if step.kind == "sleep" { BarKind::Sleep } else { BarKind::Backoff };
    bars.extend(step.pauses.iter().map(|(from, until, fired)| Bar {
        kind,
        from: *from,
        to: if *fired { Some(*until) } else { ended },
        state: if *fired { BarState::Ok } else { BarState::Open },
        label: String::new(),
        epoch: None,
    }));
    bars.sort_by_key(|b| b.from);
    let label = match step.kind.as_str() {
        "tool" => step.of.clone(),
        "sleep" => "sleep".to_owned(),
        kind => format!("{kind} {}", step.of),
    };
    Lane { step: step.step.clone(), label, copied: step.copied, bars }
}

fn call_bar(call: &CallView, ended: Option<Timestamp>) -> Bar {
    let state = match call.state.as_str() {
        "success" | "happened" => BarState::Ok,
        "started" if ended.is_none() => BarState::Open,
        "started" | "unknown" | "abandoned" | "called_again" => BarState::Unknown,
        _ => BarState::Failed,
    };
    let note = call.note.as_ref().map(|n| format!(" ({n})")).unwrap_or_default();
    Bar {
        kind: BarKind::Call,
        from: call.started,
        to: call.ended.or(ended),
        state,
        label: format!("{}{note}", call.state),
        epoch: Some(call.epoch),
    }
}

fn mark(event: &EventView) -> Option<Mark> {
    let text = |field: &str| event.body[field].as_str().unwrap_or_default().to_owned();
    let by = || match text("by") {
        by if by.is_empty() => String::new(),
        by => format!(" by {by}"),
    };
    let (kind, label) = match event.name.as_str() {
        "job_requeued" => (MarkKind::Kill, format!("worker lost: {}", text("why"))),
        "job_failed" | "job_failing" if text("reason") == "takeovers_spent" => {
            (MarkKind::Kill, format!("worker lost: {}", text("error")))
        }
        "wait_completed" if text("outcome") == "expired" => {
            (MarkKind::Signal, format!("{} expired", text("key")))
        }
        "wait_completed" => {
            (MarkKind::Signal, format!("{} {}{}", text("key"), text("outcome"), by()))
        }
        "signal_kept" => (MarkKind::Signal, format!("{} kept{}", text("key"), by())),
        "effect_unknown" => (MarkKind::Unknown, text("why")),
        "effect_settled" => {
            (MarkKind::Settled, format!("{}, says {}", text("verdict"), text("by")))
        }
        "job_attention" if text("reason") == "unknown_outcome" => {
            (MarkKind::Attention, text("why"))
        }
        "job_attention" => (MarkKind::Divergence, text("why")),
        "job_parked" if text("why") == "pause" => (MarkKind::Pause, format!("paused{}", by())),
        "job_parked" if text("why") == GATE_GIVEN_BACK => {
            (MarkKind::Pause, "gave its turn at the gate back: it is paused".to_owned())
        }
        "job_resumed" => (MarkKind::Pause, format!("resumed{}", by())),
        "job_cancelling" => (MarkKind::Cancel, format!("cancel{}", by())),
        "job_failing" => (MarkKind::Cancel, format!("fails: {}", text("error"))),
        "job_continued" => (MarkKind::Continued, "started afresh".to_owned()),
        "history_copied" => (MarkKind::Copied, format!("history of {}", text("from"))),
        "job_completed" => (MarkKind::End, "completed".to_owned()),
        "job_failed" => (MarkKind::End, format!("failed: {}", text("error"))),
        "job_cancelled" => (MarkKind::End, format!("cancelled{}", by())),
        ke::FORCE_ENDED => (MarkKind::End, format!("ended by the kernel: {}", text("why"))),
        _ => return None,
    };
    let step = event.body["step"].as_str().map(|s| StepId(s.to_owned()));
    Some(Mark { at: event.at, kind, label, step })
}
