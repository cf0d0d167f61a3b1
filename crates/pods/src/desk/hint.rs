//! What was heard on the channel `ff:events:task`. A hint, so that a collector that is not ours works: it says which task
//! and which status, and perhaps nothing more.
//!
//! The channel forgets, repeats, and is heard late; whoever may publish there may say anything. So a hint is weaker than a
//! report. A task whose pods an executor of ours makes learns nothing from it but that the pod it knows runs: how such a
//! pod ended is said by the executor, with what a hint can not say (whether it may be replaced). Of a task that is only watched a
//! hint counts like a report if it names the pod. One that does not could be about any pod of the task, also about one
//! that failed days ago and is told again after a restart: it counts only while there has been one attempt and it has
//! not ended. What is told again is the same mail.
//!
//! A collector that reports to a server says so in its messages (`reported`): they are passed over, because the report says more and
//! waits until it is taken. Were the message taken, whichever came first would decide what is on record. From a collector that does not say
//! so, an end of a pod that somebody also reports about waits for the report, and the report takes its place (`task::decide::reports`).

use super::{Desk, DeskError, ReportAnswer, Reporter, state_of};
use crate::{
    envelope::TaskEvent,
    report::{PodName, Report},
    task::{Task, TaskState},
    verdict::{Cause, TaskStatus, Verdict},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tenure_kernel::{table::Class, time::Timestamp};

/// What became of a hint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hinted {
    /// It was said to the task.
    Told(ReportAnswer),
    /// It says nothing that could be used; why.
    Ignored(&'static str),
}

/// What stands in the place of a row of the reason table.
pub(crate) const RULE: &str = "channel";

impl Desk {
    /// Takes a hint.
    pub async fn hint(&self, event: &TaskEvent) -> Result<Hinted, DeskError> {
        let Some(status) = event.known_status() else {
            return Ok(Hinted::Ignored("its status is none that a collector says"));
        };
        if event.reported == Some(true) {
            return Ok(Hinted::Ignored("whoever says it also reports it"));
        }
        if event.task_id.is_empty() {
            return Ok(Hinted::Ignored("it names no task"));
        }
        let tenant = event.tenant_id.as_deref().filter(|t| !t.is_empty());
        let mut named = match tenant {
            Some(tenant) => self.find(tenant, &event.task_id).await?.into_iter().collect(),
            None => self.find_anywhere(&event.task_id).await?,
        };
        let known = !named.is_empty();
        named.retain(|head| head.class() != Class::Final);
        let about = match named.len() {
            0 if known => return Ok(Hinted::Ignored("the task is over")),
            0 | 1 => named.pop(),
            // Tenants choose their own task_ids, and nobody vouches for what is said on the channel.
            _ => {
                return Ok(Hinted::Ignored(
                    "open tasks of several tenants have this task_id, and it names no tenant",
                ));
            }
        };
        let state = about.as_ref().map(state_of::<Task>).transpose()?;
        let pod = match which(event, status, state.as_ref()) {
            Ok(pod) => pod,
            Err(why) => return Ok(Hinted::Ignored(why)),
        };
        let report = report_of(event, status, pod, self.pipeline.store().now().await?);
        let from = Reporter::default();
        Ok(Hinted::Told(self.report_unnamed(about.as_ref(), &report, &from).await?))
    }
}

/// Which pod a hint is about, as far as it may count.
fn which(
    event: &TaskEvent,
    status: TaskStatus,
    state: Option<&TaskState>,
) -> Result<PodName, &'static str> {
    let uid = event.pod_uid.as_deref().filter(|uid| !uid.is_empty());
    let named = |uid: &str| PodName { uid: uid.to_owned(), ..PodName::default() };
    let Some(state) = state else { return Ok(uid.map_or_else(PodName::default, named)) };
    let known = state.pod.as_ref();
    let is_known = |uid: &str| known.is_some_and(|p| p.uid == uid);
    if !state.external {
        let counts = status == TaskStatus::Running && uid.is_some_and(is_known);
        return match (known, counts) {
            (Some(pod), true) => Ok(pod.clone()),
            _ => Err("an executor of ours makes its pods, and says how they are"),
        };
    }
    match uid {
        Some(uid) if is_known(uid) => Ok(known.cloned().unwrap_or_default()),
        Some(uid) => Ok(named(uid)),
        None if state.attempt > 1 || state.ended.is_some() => {
            Err("it does not say which pod it is about, and there was more than one")
        }
        None => Ok(known.cloned().unwrap_or_default()),
    }
}

/// A word that may be newer than this program.
fn known<T: DeserializeOwned>(word: Option<&String>) -> Option<T> {
    word.and_then(|w| serde_json::from_value(Value::String(w.clone())).ok())
}

fn report_of(event: &TaskEvent, status: TaskStatus, pod: PodName, now: Timestamp) -> Report {
    let moment = |text: &String| {
        let time: Time = serde_json::from_value(Value::String(text.clone())).ok()?;
        Some(Timestamp::from_micros(time.0.as_microsecond()))
    };
    let text = |t: &Option<String>| t.clone().unwrap_or_default();
    let cause: Option<Cause> = known(event.cause.as_ref());
    let verdict = Verdict {
        status: Some(status),
        cause,
        class: known(event.class.as_ref()),
        retryable: event.retryable.unwrap_or(cause.is_some_and(Cause::retryable)),
        container: event.container.clone(),
        exit_code: event.exit_code,
        signal: event.signal,
        started: event.started.unwrap_or(status == TaskStatus::Running),
        reason: text(&event.reason),
        message: text(&event.message),
        since: event.transition_time.as_ref().and_then(moment),
        rule: RULE.to_owned(),
        ..Verdict::default()
    };
    Report {
        task_id: event.task_id.clone(),
        workflow_id: event.workflow_id.clone(),
        tenant_id: text(&event.tenant_id),
        pod,
        attempt: event.attempt,
        verdict,
        // Nobody said so, and a pod that may still run is not replaced on a guess.
        over: false,
        gone: false,
        inferred: false,
        terminated_reason: known(event.terminated_reason.as_ref()),
        result: None,
        seen_at: now,
        collector: event.collector.clone().unwrap_or_else(|| crate::envelope::CHANNEL.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(status: &str, uid: Option<&str>) -> TaskEvent {
        TaskEvent {
            task_id: "t".into(),
            status: status.into(),
            pod_uid: uid.map(str::to_owned),
            ..TaskEvent::default()
        }
    }

    fn watched(attempt: u32, uid: Option<&str>) -> TaskState {
        let pod = uid.map(|uid| PodName { uid: uid.into(), ..PodName::default() });
        TaskState { external: true, attempt, pod, ..TaskState::default() }
    }

    #[test]
    fn a_hint_that_names_no_pod_counts_only_while_there_was_one_attempt() {
        let (failed, anon) = (TaskStatus::Failed, heard("FAILED", None));
        assert_eq!(which(&anon, failed, None).unwrap().uid, "");
        assert_eq!(which(&anon, failed, Some(&watched(0, None))).unwrap().uid, "");
        assert_eq!(which(&anon, failed, Some(&watched(1, Some("a")))).unwrap().uid, "a");
        assert!(which(&anon, failed, Some(&watched(2, Some("b")))).is_err());
        let ended = TaskState { ended: Some(Default::default()), ..watched(1, Some("a")) };
        assert!(which(&anon, failed, Some(&ended)).is_err());
        let named = heard("FAILED", Some("b"));
        assert_eq!(which(&named, failed, Some(&ended)).unwrap().uid, "b");
    }

    #[test]
    fn a_hint_never_ends_a_pod_that_an_executor_of_ours_made() {
        let ours = TaskState { external: false, ..watched(1, Some("a")) };
        let by = |status: TaskStatus, uid| which(&heard(status.name(), uid), status, Some(&ours));
        assert!(by(TaskStatus::Failed, Some("a")).is_err());
        assert!(by(TaskStatus::Running, None).is_err());
        assert!(by(TaskStatus::Running, Some("b")).is_err());
        assert_eq!(by(TaskStatus::Running, Some("a")).unwrap().uid, "a");
    }

    #[test]
    fn what_is_told_again_is_the_same_mail_and_unknown_words_are_passed_over() {
        let mut event = heard("FAILED", Some("a"));
        (event.cause, event.class) = (Some("oom".into()), Some("from_the_future".into()));
        event.transition_time = Some("2026-08-01T10:15:00Z".into());
        let pod = || PodName { uid: "a".into(), ..PodName::default() };
        let at = |n| report_of(&event, TaskStatus::Failed, pod(), Timestamp::from_micros(n));
        assert_eq!(at(1).mail_id(), at(2).mail_id());
        assert_eq!(at(1).verdict.cause.map(|c| c.name()), Some("oom"));
        assert_eq!((at(1).verdict.class, at(1).over), (None, false));
        assert!(at(1).verdict.retryable, "as its cause is, where nobody says");
        assert!(at(1).key().contains("1785579300000000"), "{}", at(1).key());
        // An evicted pod is there to be seen; that it was evicted does not make it gone.
        event.terminated_reason = Some("system_eviction".into());
        let told = report_of(&event, TaskStatus::Failed, pod(), Timestamp::from_micros(1));
        assert!(told.terminated_reason.is_some() && !told.gone && !told.key().ends_with("gone"));
    }
}
