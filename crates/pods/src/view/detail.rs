//! A task with everything that its history says: every attempt with its pod and its verdict, and what happened in between.

use super::{
    stream::{EventView, first_event, lines},
    task::{PodLook, Proof, TaskView, pod_look, proof_in, task_view},
    why::proven,
};
use crate::{
    desk::{
        asks::FORCE,
        letters::{DISCARDED, REPLAYED},
        reports::{LATE, PROOF},
    },
    execute::STRAY,
    report::PodName,
    rules::names,
    task::{NewTask, Task, TaskEvent, decide::in_words, model::Ended, policy::NoRetry},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;
use tenure_kernel::{
    error::StoreError, evidence::Evidence, head::Head, ids::EntityId, store::Store, time::Timestamp,
};

/// Everything about a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskDetail {
    /// Where it stands.
    #[serde(flatten)]
    pub task: TaskView,
    /// What was ordered: template, retry policy, budget, times. `None` of one that was cancelled before it came.
    pub order: Option<NewTask>,
    /// Its attempts, in order.
    pub attempts: Vec<AttemptView>,
    /// It failed, and nobody has dealt with it.
    pub dead_letter: bool,
    /// Who put it aside.
    pub discarded_by: Option<String>,
    /// The task that repeats it.
    pub replayed_as: Option<EntityId>,
    /// What happened, in order.
    pub timeline: Vec<TimelineEntry>,
}

/// One attempt: one pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AttemptView {
    /// From 1.
    pub attempt: u32,
    /// The pod.
    pub pod: Option<PodName>,
    /// The executor's part, where an executor of ours makes it.
    pub tended: Option<EntityId>,
    /// How that stands.
    pub executor: Option<PodLook>,
    /// When the pod was asked for, or first seen.
    pub begun_at: Option<Timestamp>,
    /// When its main container was seen to run.
    pub running_at: Option<Timestamp>,
    /// When its end was recorded.
    pub ended_at: Option<Timestamp>,
    /// Its verdict: status, cause, class, exit code, signal, reason, message, and the rule that gave it.
    pub ended: Option<Ended>,
    /// Details of it came after the end.
    pub filled_in: bool,
    /// What somebody who saw the pod said about its end when another end was on record already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<Proof>,
    /// Whether the pod is known to be over.
    pub pod_over: bool,
    /// How that became known, where it was not with the end.
    pub fenced: Option<String>,
    /// The pause before the next attempt.
    pub pause_ms: Option<u64>,
    /// How often the tenant's budget put the next attempt off.
    pub deferred: u32,
    /// Why there was no next one.
    pub no_retry: Option<NoRetry>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimelineEntry {
    /// Its place in the history; `None` of what was said beside it.
    pub version: Option<u64>,
    /// When.
    pub at: Timestamp,
    /// The event.
    pub event: String,
    /// Who brought it about: `order`, `task`, `executor`, `collector`, `budget`, `rule`, `person` or `kernel`.
    pub by: String,
    /// The rule, where one fired; of a verdict, the row of the reason table.
    pub rule: Option<String>,
    /// In words.
    pub text: String,
}

/// Everything about a task, from its head, history, evidence and pods.
pub async fn detail(store: &Arc<dyn Store>, head: &Head) -> Result<TaskDetail, StoreError> {
    let mut detail = TaskDetail {
        task: task_view(store, head).await?,
        order: first_event(store, head.id).await?,
        attempts: Vec::new(),
        dead_letter: false,
        discarded_by: None,
        replayed_as: None,
        timeline: Vec::new(),
    };
    for (event, read) in lines::<Task>(store, head.id).await? {
        detail.timeline.push(entry(&event, read.as_ref()));
        if let Some(read) = read {
            detail.take(event.at, read);
        }
    }
    for said in store.evidence(head.id).await? {
        detail.hear(&said);
    }
    detail.dead_letter = detail.task.status == crate::task::table::FAILED
        && detail.discarded_by.is_none()
        && detail.replayed_as.is_none();
    for attempt in &mut detail.attempts {
        if let Some(id) = attempt.tended {
            attempt.executor = pod_look(store, id).await?;
        }
    }
    Ok(detail)
}

impl TaskDetail {
    fn begin(&mut self, attempt: u32, at: Timestamp) -> &mut AttemptView {
        self.attempts.push(AttemptView { attempt, begun_at: Some(at), ..AttemptView::default() });
        let last = self.attempts.len() - 1;
        &mut self.attempts[last]
    }

    fn take(&mut self, at: Timestamp, event: TaskEvent) {
        match event {
            TaskEvent::PodWanted { attempt, pod } => {
                self.begin(attempt, at).tended = Some(pod);
                return;
            }
            TaskEvent::PodSeen { attempt, pod } => {
                self.begin(attempt, at).pod = Some(pod);
                return;
            }
            _ => {}
        }
        let Some(last) = self.attempts.last_mut() else { return };
        match event {
            TaskEvent::PodCreated { pod } => last.pod = Some(pod),
            TaskEvent::TaskRunning { node, .. } => {
                last.running_at = Some(at);
                if let (Some(pod), Some(node)) = (&mut last.pod, node) {
                    pod.node = Some(node);
                }
            }
            TaskEvent::AttemptFailed { ended, fenced, pause_ms } => {
                last.end(at, ended, fenced);
                last.pause_ms = Some(pause_ms);
            }
            TaskEvent::AttemptFenced { how } => {
                last.pod_over = true;
                last.fenced = Some(how);
            }
            TaskEvent::DetailsFilled { late } => last.fill(&late),
            TaskEvent::RetryDeferred { .. } => last.deferred += 1,
            TaskEvent::TaskSucceeded { ended, .. } => last.end(at, ended, true),
            TaskEvent::TaskFailed { ended, why, fenced } => {
                last.end(at, ended, fenced);
                last.no_retry = Some(why);
            }
            TaskEvent::TaskCanceled { ended, fenced, .. } => {
                last.pod_over |= fenced;
                if let Some(ended) = ended {
                    last.end(at, ended, fenced);
                }
            }
            _ => {}
        }
    }

    /// What was said beside the history, after the end.
    fn hear(&mut self, evidence: &Evidence) {
        let said: Value = evidence
            .said
            .body
            .inline()
            .and_then(|bytes| tenure_kernel::stored::from_slice(bytes).ok())
            .unwrap_or_default();
        let who = evidence.said.who.clone();
        let (by, text) = match evidence.said.key.as_str() {
            DISCARDED => {
                let why = said["why"].as_str().map(|w| format!(": {w}")).unwrap_or_default();
                self.discarded_by.get_or_insert_with(|| who.clone());
                ("person", format!("put aside by {who}{why}"))
            }
            REPLAYED => {
                let id: Option<EntityId> = said["as"].as_str().and_then(|id| id.parse().ok());
                self.replayed_as = self.replayed_as.or(id);
                let id = said["as"].as_str().unwrap_or("?");
                ("person", format!("replayed as task {id} by {who}"))
            }
            key if key.starts_with(FORCE) => {
                ("person", forced(Some(&who), said["why"].as_str().unwrap_or_default()))
            }
            key if key.starts_with(STRAY) => {
                let text = |name: &str| said[name].as_str().unwrap_or("?").to_owned();
                let pod = format!("{}/{} ({})", text("namespace"), text("pod"), text("uid"));
                let attempt = said["attempt"].as_u64().unwrap_or(0);
                (
                    "executor",
                    format!(
                        "a stray was found and deleted: pod {pod}, from attempt {attempt}, which nobody waited for any more"
                    ),
                )
            }
            key if key.starts_with(LATE) && key.ends_with(PROOF) => {
                let Some(proof) = proof_in(evidence) else { return };
                let text = format!("{}; the status stays", proven(&proof));
                if let Some(last) = self.attempts.last_mut() {
                    last.proof = Some(proof);
                }
                ("collector", text)
            }
            key if key.starts_with(LATE) => {
                let late = Ended {
                    exit_code: said["exit_code"].as_i64().and_then(|c| i32::try_from(c).ok()),
                    signal: said["signal"].as_i64().and_then(|c| i32::try_from(c).ok()),
                    message: said["message"].as_str().unwrap_or("").to_owned(),
                    reason: said["reason"].as_str().unwrap_or("").to_owned(),
                    ..Ended::default()
                };
                if let Some(last) = self.attempts.last_mut() {
                    last.fill(&late);
                }
                if let Some(ended) = &mut self.task.ended {
                    ended.fill(&late);
                }
                ("collector", format!("more about its end came late: {said}"))
            }
            key => ("kernel", format!("{key}: {said}")),
        };
        self.timeline.push(TimelineEntry {
            version: None,
            at: evidence.at,
            event: evidence.said.key.clone(),
            by: by.to_owned(),
            rule: None,
            text,
        });
    }
}

impl AttemptView {
    fn end(&mut self, at: Timestamp, ended: Ended, fenced: bool) {
        // The end of an attempt that was recorded when it failed is not recorded again with the task's.
        self.ended_at = self.ended_at.or(Some(at));
        self.ended = Some(ended);
        self.pod_over |= fenced;
    }

    fn fill(&mut self, late: &Ended) {
        if let Some(ended) = &mut self.ended {
            self.filled_in |= ended.missing(late);
            ended.fill(late);
        }
    }
}

fn entry(event: &EventView, read: Option<&TaskEvent>) -> TimelineEntry {
    let (by, rule, text) = match read {
        Some(read) => told(read),
        None => ("kernel", None, event.name.replace('_', " ")),
    };
    TimelineEntry {
        version: Some(event.version),
        at: event.at,
        event: event.name.clone(),
        by: by.to_owned(),
        rule,
        text,
    }
}

/// A deletion by force in words.
fn forced(by: Option<&str>, why: &str) -> String {
    let by = by.map(|by| format!(", for {by}")).unwrap_or_default();
    format!("taken away by force: {why}{by}; its containers may run on")
}

/// The pod in words.
fn named(pod: &PodName) -> String {
    let on = pod.node.as_ref().map(|n| format!(" on {n}")).unwrap_or_default();
    format!("{}/{}{on}", pod.namespace, pod.name)
}

/// By whom an end is known, and the row or rule that said it.
fn verdict_of(ended: &Ended) -> (&'static str, Option<String>) {
    match ended.rule.as_str() {
        "" => ("executor", None),
        "task:queued" => ("rule", Some(names::QUEUED.to_owned())),
        "task:run" => ("rule", Some(names::RUN.to_owned())),
        "task:must_end_by" => ("rule", Some("must_end_by".to_owned())),
        row => ("collector", Some(row.to_owned())),
    }
}

fn told(event: &TaskEvent) -> (&'static str, Option<String>, String) {
    let plain = |by, text: String| (by, None, text);
    let secs = |ms: u64| super::why::span(std::time::Duration::from_millis(ms));
    match event {
        TaskEvent::TaskCreated(new) => {
            let pods = match new.template.is_null() {
                true => "; its pods are made elsewhere",
                false => "",
            };
            plain("order", format!("ordered{pods}"))
        }
        TaskEvent::PodWanted { attempt, .. } => {
            plain("task", format!("attempt {attempt}: an executor is asked for a pod"))
        }
        TaskEvent::PodSeen { attempt, pod } => {
            plain("collector", format!("attempt {attempt}: pod {} was seen", named(pod)))
        }
        TaskEvent::PodCreated { pod } => plain("executor", format!("pod {} exists", named(pod))),
        TaskEvent::EndInferred { ended, .. } => {
            let words = in_words(ended);
            let text = format!("its pod ended without a witness ({words}); one is waited for");
            plain("collector", text)
        }
        TaskEvent::TaskRunning { node, .. } => {
            let on = node.as_ref().map(|n| format!(" on {n}")).unwrap_or_default();
            plain("collector", format!("its main container runs{on}"))
        }
        TaskEvent::AttemptFailed { ended, fenced, pause_ms } => {
            let (by, rule) = verdict_of(ended);
            let pod = if *fenced { "" } else { "; its pod may still run" };
            let text = format!(
                "the attempt failed: {}{pod}; next in {}",
                in_words(ended),
                secs(*pause_ms)
            );
            (by, rule, text)
        }
        TaskEvent::AttemptFenced { how } => plain("task", format!("the old pod is over: {how}")),
        TaskEvent::PodForced(ask) => plain("executor", forced(ask.by.as_deref(), &ask.why)),
        TaskEvent::DetailsFilled { late } => {
            plain("collector", format!("more about the end came late: {}", in_words(late)))
        }
        TaskEvent::PauseOver {} => {
            ("rule", Some(names::RETRY.to_owned()), "the pause is over".to_owned())
        }
        TaskEvent::RetryAsked {} => plain("task", "the tenant's budget is asked".to_owned()),
        TaskEvent::RetryDeferred { after_ms } => {
            plain("budget", format!("no room: asked again in {}", secs(*after_ms)))
        }
        TaskEvent::RetryGranted { after_ms } => {
            plain("budget", format!("a place, from {} on", secs(*after_ms)))
        }
        TaskEvent::CancelAsked(ask) => {
            let by = ask.by.as_deref().unwrap_or("somebody");
            let why = ask.why.as_ref().map(|w| format!(": {w}")).unwrap_or_default();
            plain("person", format!("{by} wants it to end{why}"))
        }
        TaskEvent::TaskNoted { what } => plain("task", what.clone()),
        TaskEvent::TaskSucceeded { ended, .. } => {
            let (by, rule) = verdict_of(ended);
            (by, rule, "ends: SUCCEEDED".to_owned())
        }
        TaskEvent::TaskFailed { ended, why, .. } => {
            let (by, rule) = verdict_of(ended);
            let rule = match why {
                NoRetry::NotFenced => Some(names::FENCE.to_owned()),
                NoRetry::NoPodCame => Some(names::NEXT_POD.to_owned()),
                NoRetry::Deadline => Some("must_end_by".to_owned()),
                _ => rule,
            };
            (by, rule, format!("ends: FAILED, {}; {}", in_words(ended), why.words()))
        }
        TaskEvent::TaskCanceled { ask, fenced, .. } => {
            let by = ask.by.as_deref().unwrap_or("somebody");
            let pod = if *fenced { "" } else { "; its pod may still run" };
            plain("task", format!("ends: CANCELED, by {by}{pod}"))
        }
    }
}
