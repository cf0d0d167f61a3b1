//! Cascades: jobs with children that have children, cancelled at any point. What must hold beside everything that
//! holds of jobs: whoever has read that it should stop is cancelled, down to the last grandchild, unless its own time
//! ran out first; every open child of a job that is cancelled or ends was told; and nobody holds anything.

use super::{
    check::PROMPT,
    clients::{self, Wish},
    read::{self, Entry},
};
use crate::{scenario::Clients, world::World};
use std::collections::BTreeSet;
use tenure_jobs::{JobEvent, JobState, model::OwnEvent};
use tenure_kernel::{head::Head, ids::EntityId, mail::kinds, outbox::Target, time::Timestamp};
use tenure_steps::events::StepEvent;
use tenure_store::memory::Contents;

/// Why one that was told to stop may have failed instead: its time was up.
const TIME_UP: [&str; 2] = ["deadline_passed", "unknown_outcome"];

pub(crate) fn play(clients: &Clients, width: Option<u64>) {
    for i in 0..width.unwrap_or_else(|| 1 + clients.below(3)) {
        let depth = 1 + u32::try_from(clients.below(2)).unwrap_or(0);
        let wish = Wish::draw(&clients.env.world, |draw| draw.family(depth));
        Wish { cancelled: 2, ..wish }.spawn(clients, i);
    }
    clients::staff(clients);
}

pub(crate) fn check(world: &World, contents: &Contents, calm_at: Timestamp) -> Result<(), String> {
    // Who told whom to stop.
    let seen = world.oracle.seen();
    let told = seen.posted.iter().filter(|(_, p)| p.message.kind == kinds::CANCEL);
    let told: BTreeSet<(EntityId, EntityId)> = told
        .filter_map(|(id, p)| match p.message.to {
            Target::Mail(to) => Some((id.source, to)),
            _ => None,
        })
        .collect();
    for head in contents.rows.heads.values().filter(|h| h.kind() == "job") {
        let events = read::events(contents, head.id)?;
        if head.holder.is_some() {
            return Err(format!("{}: over and held", head.id));
        }
        stopped(head, &events, contents)?;
        let (left, unheard) = left(head.id, &events);
        if let Some(child) =
            unheard.into_iter().find(|c| is_overdue(&events, *c, contents, calm_at))
        {
            return Err(format!("{}: cancelled, and never heard that {child} ended", head.id));
        }
        for child in left {
            if !told.contains(&(head.id, child)) {
                return Err(format!("{}: its child {child} was never told to stop", head.id));
            }
        }
    }
    Ok(())
}

/// Who has read that it should stop did so.
fn stopped(head: &Head, events: &[Entry], contents: &Contents) -> Result<(), String> {
    let mail = contents.mail.get(&head.id).map_or(&[][..], Vec::as_slice);
    // What came after the last look is not covered: it had ended by then.
    let read = mail.iter().any(|m| m.kind == kinds::CANCEL && m.seq <= head.mail_read);
    match events.last().map(|e| &e.event) {
        Some(JobEvent::Own(OwnEvent::JobCancelled { .. })) => Ok(()),
        Some(JobEvent::Own(OwnEvent::JobFailed(f))) if TIME_UP.contains(&f.reason.as_str()) => {
            Ok(())
        }
        // It could not go on, and stopped for that.
        Some(JobEvent::Own(OwnEvent::JobFailed(f))) if f.reason == "takeovers_spent" => Ok(()),
        other if read => Err(format!("{}: told to stop, and it ended {other:?}", head.id)),
        _ => Ok(()),
    }
}

/// Whether a job that is being cancelled went on for long after this child had ended: that was all it waited for.
fn is_overdue(events: &[Entry], child: EntityId, contents: &Contents, calm_at: Timestamp) -> bool {
    let cancelling = |e: &Entry| matches!(e.event, JobEvent::Own(OwnEvent::JobCancelling { .. }));
    let told = read::events(contents, child).unwrap_or_default();
    match (told.last(), events.last(), events.iter().any(cancelling)) {
        (Some(child), Some(job), true) => job.at > child.at.max(calm_at) + PROMPT,
        _ => false,
    }
}

/// Children that were open when the job was cancelled or ended, and those of whose end it never heard.
fn left(job: EntityId, events: &[Entry]) -> (BTreeSet<EntityId>, BTreeSet<EntityId>) {
    let (mut open, mut left) = (BTreeSet::new(), BTreeSet::new());
    for entry in events {
        match &entry.event {
            JobEvent::Step(StepEvent::ChildStarted { child, .. }) => {
                open.insert(*child);
            }
            JobEvent::Step(StepEvent::ChildEnded { ordinal, .. }) => {
                open.remove(&JobState::child_id(job, *ordinal));
            }
            JobEvent::Own(OwnEvent::JobCancelling { .. }) => left.extend(open.iter().copied()),
            _ => {}
        }
    }
    left.extend(open.iter().copied());
    (left, open)
}
