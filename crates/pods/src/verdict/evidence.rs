//! What a verdict was read from: the fields of the pod that say something, as a person would look for them.

use super::{
    look::{self, Look},
    policy::Policy,
};
use k8s_openapi::{
    api::core::v1::{ContainerStatus, Pod},
    apimachinery::pkg::apis::meta::v1::Time,
};

/// Fields and their values, in the order in which the judge hears them. Fields that are not there are left out.
pub fn evidence(pod: &Pod, policy: &Policy) -> Vec<(String, String)> {
    let look = Look::new(pod, policy);
    let mut found = Vec::new();
    let mut add = |field: String, value: String| {
        if !value.is_empty() {
            found.push((field, value));
        }
    };
    if let Some(why) = look.annotation(&policy.cancel_annotation) {
        add(format!("metadata.annotations[{}]", policy.cancel_annotation), format!("{why:?}"));
    }
    add("metadata.deletionTimestamp".to_owned(), time(&pod.metadata.deletion_timestamp));
    add("status.phase".to_owned(), look.phase().to_owned());
    add("status.reason".to_owned(), look.reason().to_owned());
    add("status.message".to_owned(), short(look.message()));
    let telling = ["TerminationTarget", "DisruptionTarget", "PodScheduled", "Ready"];
    for c in telling.iter().filter_map(|kind| look.condition(kind)) {
        // That all is well says nothing.
        if (c.status == "True") == c.type_.ends_with("Target") {
            let reason = c.reason.as_deref().map(|r| format!(" {r}")).unwrap_or_default();
            let since = time(&c.last_transition_time);
            let since = if since.is_empty() { since } else { format!(" since {since}") };
            add(format!("status.conditions[{}]", c.type_), format!("{}{reason}{since}", c.status));
        }
    }
    for status in look.init_statuses() {
        let ended_well = look::terminated(status).is_some_and(|t| t.exit_code == 0);
        if !ended_well {
            add(format!("status.initContainerStatuses[{}].state", status.name), state(status));
        }
    }
    match (look.main_status(), look.main) {
        (Some(main), _) => {
            add(format!("status.containerStatuses[{}].state", main.name), state(main));
            if main.restart_count > 0 {
                let field = format!("status.containerStatuses[{}].restartCount", main.name);
                add(field, main.restart_count.to_string());
            }
        }
        (None, Some(name)) => {
            add(format!("status.containerStatuses[{name}]"), "not there".to_owned());
        }
        (None, None) => {}
    }
    found
}

fn time(time: &Option<Time>) -> String {
    time.as_ref().map(|t| t.0.to_string()).unwrap_or_default()
}

fn short(text: &str) -> String {
    super::judge::cut(text.lines().next().unwrap_or(""), 200)
}

fn state(status: &ContainerStatus) -> String {
    if let Some((reason, message)) = look::waiting(status) {
        let message = short(message);
        let message = if message.is_empty() { message } else { format!(": {message}") };
        return format!("waiting {reason}{message}").trim_end().to_owned();
    }
    if let Some(end) = look::terminated(status) {
        let at = time(&end.finished_at);
        let at = if at.is_empty() { at } else { format!(" at {at}") };
        let reason = end.reason.as_deref().unwrap_or("");
        return format!("terminated {reason} with exit code {}{at}", end.exit_code)
            .replace("  ", " ");
    }
    let running = status.state.as_ref().and_then(|s| s.running.as_ref());
    match running.map(|r| time(&r.started_at)).filter(|at| !at.is_empty()) {
        Some(since) => format!("running since {since}"),
        None => "running".to_owned(),
    }
}
