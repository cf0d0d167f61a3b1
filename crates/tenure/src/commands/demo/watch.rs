//! The events of a job, in words, as they come.

use super::{
    super::Failure,
    stage::{LEASE_SECONDS, PATIENCE, Stage},
    voice::Voice,
};
use serde_json::Value;
use std::{collections::HashMap, time::Duration};
use tenure_jobs::{Job, JobEvent, JobState, drive::read_events, model::OwnEvent};
use tenure_kernel::{
    head::Head,
    ids::{EntityId, SessionId},
    machine::{decode_event, decode_state},
    sessions::Opening,
    stream::Event,
    table::kernel_events as ke,
    time::Timestamp,
};
use tenure_steps::events::{CallOutcome, SettledBy, StepEvent, StepId, Verdict, WaitOutcome};

/// Pauses between two looks at a stream that has nothing new.
const LOOK: Duration = Duration::from_millis(10);

/// Somebody who reads a job's stream and tells.
pub(super) struct Watch {
    /// Which job.
    pub job: EntityId,
    next: u64,
    holder: String,
    lost: bool,
    tools: HashMap<StepId, String>,
    /// Every event so far: its name, the tool of its step, and when.
    pub events: Vec<(String, String, Timestamp)>,
}

impl Watch {
    pub fn new(job: EntityId) -> Self {
        let (holder, tools, events) = (String::new(), HashMap::new(), Vec::new());
        Watch { job, next: 1, holder, lost: false, tools, events }
    }

    /// Tells what is new, and where the job stands then.
    pub async fn look(&mut self, stage: &Stage, voice: &Voice) -> Result<Head, Failure> {
        let head = stage.store().head(self.job).await?;
        let head = head.ok_or_else(|| Failure::Found(format!("job {} is gone", self.job)))?;
        for record in stage.store().stream(self.job, self.next, 1_000).await? {
            let read = read_events(stage.store(), &record).await;
            let (meta, events) = read.map_err(|e| Failure::Found(e.to_string()))?;
            if let Some(session) = meta.take {
                self.holder = name_of(stage, session).await?;
            }
            for event in events {
                self.next = event.version + 1;
                let words = self.words(&event)?;
                let step = body(&event)["step"].as_str().map(|s| StepId(s.to_owned()));
                let tool = step.and_then(|s| self.tools.get(&s).cloned()).unwrap_or_default();
                self.events.push((event.name.clone(), tool, event.at));
                if let Some(words) = words {
                    voice.quote(event.at, &words);
                }
            }
        }
        Ok(head)
    }

    /// Tells what comes until the job stands where it is wanted.
    pub async fn until(
        &mut self,
        stage: &Stage,
        voice: &Voice,
        what: &str,
        done: impl Fn(&Head) -> bool,
    ) -> Result<JobState, Failure> {
        let since = voice.elapsed();
        loop {
            let head = self.look(stage, voice).await?;
            // What was looked at may be older than what was told: both must have been seen.
            if done(&head) && self.next > head.version {
                return decode_state::<Job>(&head.state).map_err(|e| Failure::Found(e.to_string()));
            }
            if voice.elapsed().saturating_sub(since) > PATIENCE {
                let status = head.status.name();
                return Err(stage.failed(&format!(
                    "after {} s the job is still {status}, and not {what}",
                    PATIENCE.as_secs()
                )));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// When the last event of this name was written, for a step of this tool (or whatever step).
    pub fn last(&self, event: &str, tool: &str) -> Option<Timestamp> {
        let found =
            |e: &&(String, String, Timestamp)| e.0 == event && (tool.is_empty() || e.1 == tool);
        self.events.iter().rev().find(found).map(|e| e.2)
    }

    /// An event in words; `None` for those that only matter to machines.
    fn words(&mut self, event: &Event) -> Result<Option<String>, Failure> {
        let read = decode_event::<Job>(&event.name, &event.body)
            .map_err(|e| Failure::Found(e.to_string()))?;
        Ok(match read {
            Some(JobEvent::Step(step)) => self.step_words(step),
            Some(JobEvent::Own(own)) => own_words(own),
            None if event.name == ke::CLAIMED => {
                let takes = match (std::mem::take(&mut self.lost), event.epoch) {
                    (true, _) => "takes over",
                    (false, 1) => "takes the order",
                    (false, _) => "goes on",
                };
                Some(format!("{} {takes}, epoch {}", self.holder, event.epoch))
            }
            None if event.name == ke::TENURE_ENDED && body(event)["why"] == "holder_check" => {
                self.lost = true;
                Some(format!(
                    "{} was not heard for {LEASE_SECONDS} s: it has lost the order",
                    self.holder
                ))
            }
            None => None,
        })
    }

    fn step_words(&mut self, event: StepEvent) -> Option<String> {
        let tool = event.step().and_then(|s| self.tools.get(s)).cloned().unwrap_or_default();
        match event {
            StepEvent::ToolInvocationStarted { step, tool, class, .. } => {
                let tool = tool.trim_start_matches("demo.").to_owned();
                let words = format!("{tool} ({}): about to be called", class.as_str());
                self.tools.insert(step, tool);
                Some(words)
            }
            StepEvent::ToolInvocationFinished { outcome: CallOutcome::Success, .. } => {
                Some(format!("{tool}: done"))
            }
            StepEvent::ToolInvocationFinished { error, .. } => {
                Some(format!("{tool}: failed, {}", error.unwrap_or_default()))
            }
            StepEvent::EffectUnknown { .. } => Some(format!(
                "{tool}: was about to be called, and nobody knows whether it happened"
            )),
            StepEvent::EffectSettled { verdict, by, .. } => {
                Some(format!("{tool}: {}", settled_words(verdict, by)))
            }
            StepEvent::WaitOpened { note, .. } => {
                Some(format!("asks a person: {}", note.unwrap_or_default()))
            }
            StepEvent::WaitCompleted { outcome, by, .. } => {
                let outcome = match outcome {
                    WaitOutcome::Approved => "yes",
                    WaitOutcome::Rejected => "no",
                    WaitOutcome::Signalled => "heard",
                    WaitOutcome::Expired => "nobody answered in time",
                };
                Some(format!("the answer is {outcome} ({})", by.unwrap_or_default()))
            }
            _ => None,
        }
    }
}

fn settled_words(verdict: Verdict, by: SettledBy) -> &'static str {
    match (verdict, by) {
        (Verdict::Happened, SettledBy::Probe) => {
            "the bank was asked by the call's key, and says it happened. Not called again"
        }
        (Verdict::Happened, _) => "a person says it happened. Not called again",
        (Verdict::DidNotHappen, _) => "it did not happen. Called again",
        (Verdict::Abandoned, _) => "given up",
        (Verdict::CalledAgain, _) => "called again under the same key",
        (Verdict::Compensated, _) => "undone",
    }
}

fn own_words(event: OwnEvent) -> Option<String> {
    match event {
        OwnEvent::JobParked { .. } | OwnEvent::JobWaiting { .. } => {
            Some("and nobody holds it meanwhile: it is a row in the store".to_owned())
        }
        OwnEvent::JobAttention(_) => Some("stops, and asks a person: it never guesses".to_owned()),
        OwnEvent::JobCompleted { .. } => Some("completed".to_owned()),
        OwnEvent::JobFailed(failure) => Some(format!("failed: {}", failure.error)),
        _ => None,
    }
}

fn body(event: &Event) -> Value {
    event.body.inline().and_then(|b| tenure_kernel::stored::from_slice(b).ok()).unwrap_or_default()
}

/// `worker 4711`, as it called itself when it came.
async fn name_of(stage: &Stage, session: SessionId) -> Result<String, Failure> {
    let records = stage.store().stream(session, 1, 1).await?;
    let name = records.first().and_then(Opening::of).map(|o| o.name);
    Ok(name.unwrap_or_else(|| "somebody".to_owned()).replace(", pid", ""))
}
