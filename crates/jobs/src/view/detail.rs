//! A job with its steps and events, from its stream.

use super::{
    EventView, JobView,
    steps::steps,
    stream::{self, Line},
};
use crate::{
    drive::LoadError,
    model::{Job, JobEvent, OwnEvent},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;
use tenure_kernel::{
    blocks::{self, BlockBook, BlockKind},
    ids::{EntityId, SessionId},
    machine::{Machine as _, decode_state},
    store::Store,
    time::Timestamp,
};
use tenure_steps::{
    events::{ResultType, StepId, WaitOutcome},
    tool::Class as ToolClass,
};

/// A job with its steps and events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobDetail {
    /// Where it stands.
    pub job: JobView,
    /// In the order in which they began, of all runs.
    pub steps: Vec<StepView>,
    /// The stream.
    pub events: Vec<EventView>,
    /// Names of the sessions that held it.
    pub sessions: Vec<(SessionId, String)>,
}

/// A step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepView {
    /// Its id.
    pub step: StepId,
    /// `tool`, `value`, `wait`, `sleep` or `child`.
    pub kind: String,
    /// What it is, in words: the tool and a digest of its arguments, say.
    pub shape: String,
    /// The tool, the flow of a child, the key of a wait, or the name of a value.
    pub of: String,
    /// Where the flow asked for it.
    pub place: String,
    /// When it began.
    pub started: Timestamp,
    /// When its outcome was recorded.
    pub finished: Option<Timestamp>,
    /// Attempts that are over.
    pub attempts: u32,
    /// Calls of its tool.
    pub calls: Vec<CallView>,
    /// `open`, `ok`, `failed` or `unknown`.
    pub outcome: String,
    /// The result type of its last attempt, for tools.
    pub result_type: Option<ResultType>,
    /// How a wait ended.
    pub answered: Option<WaitOutcome>,
    /// Arguments of a tool, the beginning of them.
    pub arguments: Option<String>,
    /// The beginning of its result.
    pub result: Option<String>,
    /// Why it failed.
    pub error: Option<String>,
    /// Pauses of a sleep or between attempts: from, until when, and whether it fired.
    pub pauses: Vec<(Timestamp, Timestamp, bool)>,
    /// Until when a wait waits.
    pub deadline: Option<Timestamp>,
    /// What a person should know about a wait.
    pub note: Option<String>,
    /// The child.
    pub child: Option<EntityId>,
    /// Taken over from another job.
    pub copied: bool,
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallView {
    /// Its key.
    pub key: String,
    /// Rises after a recorded "not applied".
    pub ordinal: u32,
    /// Its number under the key.
    pub call: u32,
    /// Who made it.
    pub epoch: u64,
    /// What settles it.
    pub class: ToolClass,
    /// When it was recorded.
    pub started: Timestamp,
    /// When its outcome was recorded.
    pub ended: Option<Timestamp>,
    /// `started`, `unknown`, `success`, `failure`, `cancelled`, `happened`, `did_not_happen`,
    /// `compensated`, `abandoned` or `called_again`.
    pub state: String,
    /// Why it is unknown, who settled it and what they said, or the tool's error.
    pub note: Option<String>,
}

/// Sessions whose names are looked up; a job that changed hands more often shows ids for the rest.
const SESSIONS_MAX: usize = 64;

/// A job with its steps and events; `None` if there is no such job.
pub async fn detail(store: &Arc<dyn Store>, id: EntityId) -> Result<Option<JobDetail>, LoadError> {
    let head = store.head(id).await?.filter(|h| h.kind() == Job::TABLE.kind);
    let Some(head) = head else { return Ok(None) };
    let mut job = super::view(store, &head).await?;
    let mut lines = stream::read(store, id).await?;
    // The stream may have grown since the head was read: what is shown together fits together.
    lines.retain(|l| l.event.version <= head.version);
    if job.status == "queued" {
        let hands = crate::serving::hands(store).await?;
        let workers = hands.count(|h| h.takes(&head.queue, &head.tenant));
        job.workers = workers.map(|n| u32::try_from(n).unwrap_or(u32::MAX));
    }
    if !job.is_final {
        job.blocked = blocked(store, &job).await?;
    }
    let mut sessions: Vec<(SessionId, String)> = Vec::new();
    for session in lines.iter().filter_map(|l| l.took) {
        if sessions.len() < SESSIONS_MAX && !sessions.iter().any(|(id, _)| *id == session) {
            let name = store.session(session).await?.map(|s| s.name);
            sessions.push((session, name.unwrap_or_else(|| session.to_string())));
        }
    }
    Ok(Some(of_lines(job, &lines, sessions)))
}

/// What an operator has blocked of what a job needs to go on.
async fn blocked(store: &Arc<dyn Store>, job: &JobView) -> Result<Option<String>, LoadError> {
    let Some(head) = store.head(blocks::book_id()).await? else { return Ok(None) };
    let list =
        decode_state::<BlockBook>(&head.state).map_err(|e| LoadError::Unreadable(e.to_string()))?;
    let tools = job.timers.iter().filter_map(|t| t.tool.as_deref());
    let tools = tools.chain(job.running.iter().map(|c| c.tool.as_str()));
    let of_tool = |tool| list.get(BlockKind::Tool, tool);
    let block = list.of_job(&job.flow, &job.tenant).or_else(|| tools.into_iter().find_map(of_tool));
    Ok(block.map(ToString::to_string))
}

/// The same from what was read.
pub(crate) fn of_lines(
    mut job: JobView,
    lines: &[Line],
    sessions: Vec<(SessionId, String)>,
) -> JobDetail {
    let steps = steps(lines);
    job.output = stream::output(lines).cloned();
    for line in lines {
        match &line.read {
            Some(JobEvent::Own(OwnEvent::JobCreated(new))) => job.input = Some(new.input.clone()),
            Some(JobEvent::Own(OwnEvent::JobContinued { input })) => {
                job.input = Some(input.clone());
            }
            Some(JobEvent::Own(OwnEvent::JobParked { why, by: Some(by) })) if why == "pause" => {
                job.paused_by = Some(by.clone()).filter(|_| job.paused);
            }
            _ => {}
        }
    }
    for wait in &mut job.waits {
        if let Some(step) = steps.iter().find(|s| s.step == wait.step) {
            wait.note.clone_from(&step.note);
            wait.deadline = wait.deadline.or(step.deadline);
        }
    }
    for timer in &mut job.timers {
        if let Some(step) = steps.iter().find(|s| s.step == timer.step) {
            timer.attempts = Some(step.attempts);
            timer.error.clone_from(&step.error);
            timer.at = timer.at.or_else(|| step.pauses.last().map(|p| p.1));
        }
    }
    let events = lines.iter().map(event_view).collect();
    JobDetail { job, steps, events, sessions }
}

fn event_view(line: &Line) -> EventView {
    let Line { event, took, record, .. } = line;
    EventView {
        version: event.version,
        at: event.at,
        epoch: event.epoch,
        name: event.name.clone(),
        body: event
            .body
            .inline()
            .and_then(|b| tenure_kernel::stored::from_slice(b).ok())
            .unwrap_or(Value::Null),
        took: took.filter(|_| event.version == *record),
    }
}
