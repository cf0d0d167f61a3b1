//! A verdict in sentences.

use super::words::{Cause, TaskStatus, Verdict};

/// What it says, in one or two sentences.
pub fn say(verdict: &Verdict) -> String {
    let first = match verdict.status {
        None => match verdict.rule.as_str() {
            super::table::id::GATED => {
                "Nothing to report: a queueing system holds the pod at a scheduling gate."
                    .to_owned()
            }
            _ => format!("Nothing to report yet: {}.", waiting(verdict)),
        },
        Some(TaskStatus::Running) => match (verdict.disrupted, verdict.clock) {
            (true, _) => "The task is running, and its pod is being ended.".to_owned(),
            (false, None) => "The task is running.".to_owned(),
            (false, Some(_)) => format!("The task counts as running: {}.", waiting(verdict)),
        },
        Some(TaskStatus::Succeeded) => match verdict.disrupted {
            true => "The task succeeded, while its pod was being ended.".to_owned(),
            false => "The task succeeded.".to_owned(),
        },
        Some(TaskStatus::Canceled) => "The task was cancelled.".to_owned(),
        Some(TaskStatus::Failed) => {
            format!("The task failed: {}.", verdict.cause.map_or("nobody knows why", meaning))
        }
    };
    let words = match (verdict.reason.as_str(), verdict.message.trim()) {
        ("", "") => String::new(),
        (reason, "") => format!(" Kubernetes says {reason}."),
        ("", message) => format!(" It says: {}", end(message)),
        (reason, message) => format!(" Kubernetes says {reason}: {}", end(message)),
    };
    format!("{first}{words}")
}

fn end(text: &str) -> String {
    if text.ends_with(['.', '!', '?', '…']) { text.to_owned() } else { format!("{text}.") }
}

fn waiting(verdict: &Verdict) -> String {
    let who =
        verdict.container.as_deref().map_or("the pod".to_owned(), |c| format!("container {c}"));
    match verdict.next_cause {
        Some(Cause::ScheduleTimeout) => "the pod has no node".to_owned(),
        Some(Cause::ImagePull) => format!("the image of {who} does not come"),
        Some(Cause::CrashLoop) => format!("{who} ended and will be started again"),
        Some(Cause::NodeLost) => "its node does not answer".to_owned(),
        Some(Cause::Lost) => "what is seen contradicts what was seen before".to_owned(),
        Some(Cause::Config) => format!("something that {who} refers to is missing"),
        Some(Cause::CreateContainer) => format!("{who} can not be created"),
        _ => format!("{who} is being started"),
    }
}

/// A cause in words that end a sentence.
pub(crate) fn meaning(cause: Cause) -> &'static str {
    match cause {
        Cause::ScheduleTimeout => "no node was found for its pod in time",
        Cause::StartTimeout => "its pod had a node, and its container was not started in time",
        Cause::ImagePull => "its image can not be pulled",
        Cause::ImageInvalid => "its image has no valid name, or may not be pulled",
        Cause::Config => "a Secret, ConfigMap or key that it needs is missing",
        Cause::CreateContainer => "its container can not be created",
        Cause::StartError => "its container can not be started",
        Cause::CrashLoop => "it was restarted too often",
        Cause::Oom => "a process of it was killed for want of memory",
        Cause::AppError => "it ended with an exit code of its own",
        Cause::Lost => "nobody knows how its container ended",
        Cause::EvictedNodePressure => "it was evicted because its node ran short",
        Cause::EvictedOwnLimit => "it was evicted because it used more storage than it may",
        Cause::EvictedApi => "it was evicted through the API, as a drain does",
        Cause::EvictedTaint => "a taint of its node drove it out",
        Cause::RejectedPressure => {
            "its node takes no new pods because it runs short; it never started"
        }
        Cause::Preempted => "something more important needed its place",
        Cause::RejectedCapacity => "its node had no room when it came; it never started",
        Cause::RejectedDevice => "its node had no device for it; it never started",
        Cause::RejectedNode => "its node did not take it; it never started",
        Cause::RejectedTopology => "its node could not align its resources; it never started",
        Cause::RejectedSpec => "its node refuses what it asks for; it never started",
        Cause::NodeShutdown => "its node was shut down",
        Cause::NodeLost => "its node does not answer, and its pod may still run there",
        Cause::NodeGone => "its node is gone",
        Cause::Timeout => "its deadline passed",
        Cause::Provider => "the provider of a virtual node failed",
        Cause::DeletedExternally => "its pod was deleted before its end, and not by us",
        Cause::Interrupted => {
            "it was told to stop and ended well, which the policy counts as a failure"
        }
        Cause::InitFailed => "an init container failed",
        Cause::UserCancel => "a cancel marker is on its pod",
        Cause::QueueCancel => "a queueing system stopped it",
    }
}
