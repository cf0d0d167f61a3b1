//! What the model reads: worked out from a turn's history, so that a worker that takes a turn over asks the same
//! question as the one before it would have.

use super::profile::Profile;
use crate::{
    turn::model::{Applied, Dead, TurnEvent},
    words::{After, EndStatus, ToolResult, ToolStatus, kinds},
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use tenure_kernel::ids::EntityId;

/// A finished step.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Its number.
    pub number: u32,
    /// What the model said.
    pub message: Value,
    /// What its tools said, in the order in which it came.
    pub results: Vec<Applied>,
}

/// How a result ends the turn.
#[derive(Clone, Debug, PartialEq)]
pub struct Ends {
    /// How.
    pub status: EndStatus,
    /// What is delivered.
    pub content: Value,
}

/// A turn's history as far as the model is concerned.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    /// What was said to the agent.
    pub said: Vec<Value>,
    /// The profile as the first step took it.
    pub profile: Option<Value>,
    /// Finished steps.
    pub steps: Vec<Step>,
    /// Results that came before their calls, by tool call id.
    pub early: BTreeMap<String, ToolResult>,
    /// Under which ids they lie in the inbox.
    pub early_items: BTreeMap<String, String>,
}

/// The code of an answer to [`SUBMIT`](super::profile::SUBMIT) while results were there that the model had not seen.
pub const INBOX_NOT_EMPTY: &str = "inbox_not_empty";

impl Conversation {
    /// Takes one event in.
    pub fn take(&mut self, event: &TurnEvent) {
        match event {
            TurnEvent::TurnCreated(new) => self.said.clone_from(&new.messages),
            TurnEvent::StepStarted { profile, .. } if !profile.is_null() => {
                self.profile = Some(profile.clone());
            }
            TurnEvent::StepFinished(done) => self.steps.push(Step {
                number: done.step,
                message: done.message.clone(),
                results: Vec::new(),
            }),
            TurnEvent::ResultApplied(applied) | TurnEvent::WaitTimedOut(applied) => {
                self.early.remove(&applied.call);
                let step = applied.wait.split('.').next().and_then(|n| n.parse().ok());
                if let Some(step) = self.steps.iter_mut().find(|s| Some(s.number) == step) {
                    step.results.push(applied.clone());
                }
            }
            TurnEvent::ItemDead(dead) if dead.kept => {
                if let Some(call) = dead.body["tool_call_id"].as_str() {
                    self.early.remove(call);
                }
            }
            TurnEvent::ResultKept { item, result } => {
                if let Some(call) = &result.tool_call_id {
                    if !self.early.contains_key(call) {
                        self.early_items.insert(call.clone(), item.clone());
                    }
                    self.early.entry(call.clone()).or_insert_with(|| (**result).clone());
                }
            }
            _ => {}
        }
    }

    /// Results that were kept under a counter that is over: they answer nothing any more.
    pub fn outlived(&self, turn_epoch: u64) -> Vec<TurnEvent> {
        let old = self.early.iter().filter(|(_, r)| r.turn_epoch.is_some_and(|e| e != turn_epoch));
        let letters = old.map(|(call, result)| {
            TurnEvent::ItemDead(Dead {
                item: self.early_items.get(call).cloned().unwrap_or_else(|| call.clone()),
                kind: kinds::TOOL_RESULT.to_owned(),
                code: "stale_epoch".to_owned(),
                why: "it was kept, and no call under its turn_epoch asked for it".to_owned(),
                body: json!(result),
                kept: true,
            })
        });
        letters.collect()
    }

    /// Results that lie elsewhere and were not read yet.
    pub fn unread(&mut self) -> impl Iterator<Item = (&mut Applied, EntityId)> {
        let results = self.steps.iter_mut().flat_map(|s| s.results.iter_mut());
        results.filter_map(|r| r.read_from.map(|from| (r, from)))
    }

    /// The end, where the results of the last step are one that the machine could not bring about: it was too large for
    /// a head. The first that is no success says how.
    pub fn ends(&self) -> Option<Ends> {
        let last = self.steps.last()?;
        let mut ends: Option<Ends> = None;
        for result in last.results.iter().filter(|r| r.after == After::Terminate) {
            let status = match result.status {
                ToolStatus::Success => EndStatus::Success,
                ToolStatus::Partial => EndStatus::Partial,
                ToolStatus::Timeout => EndStatus::Timeout,
                ToolStatus::Failed | ToolStatus::Canceled | ToolStatus::Skipped => {
                    EndStatus::Failed
                }
            };
            if ends.as_ref().is_none_or(|e| e.status == EndStatus::Success) {
                ends = Some(Ends { status, content: result.result.clone() });
            }
        }
        ends
    }

    /// Early results that the model has not been shown.
    pub fn unseen(&self) -> Vec<(&String, &ToolResult)> {
        let results = self.steps.iter().flat_map(|s| &s.results);
        let guarded =
            results.filter(|r| r.error.as_ref().is_some_and(|e| e.code == INBOX_NOT_EMPTY));
        let shown: BTreeSet<&str> = guarded
            .filter_map(|r| r.result.as_array())
            .flatten()
            .filter_map(|item| item["tool_call_id"].as_str())
            .collect();
        self.early.iter().filter(|(call, _)| !shown.contains(call.as_str())).collect()
    }

    /// Steps that are left, the next one included.
    pub fn steps_left(&self, profile: &Profile) -> u32 {
        profile.max_steps.saturating_sub(u32::try_from(self.steps.len()).unwrap_or(u32::MAX))
    }

    /// The question.
    pub fn messages(&self, profile: &Profile) -> Vec<Value> {
        let mut all = Vec::with_capacity(self.said.len() + 2 * self.steps.len() + 2);
        if !profile.instructions.is_empty() {
            all.push(json!({ "role": "system", "content": profile.instructions }));
        }
        all.extend(self.said.iter().cloned());
        for step in &self.steps {
            all.push(step.message.clone());
            let calls = step.message["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
            for (n, call) in calls.iter().enumerate() {
                let wait = format!("{}.{}", step.number, n + 1);
                let content =
                    step.results.iter().find(|r| r.wait == wait).map_or_else(String::new, told);
                all.push(json!({ "role": "tool", "tool_call_id": call["id"], "content": content }));
            }
            if let (true, Some(shown)) = (calls.is_empty(), step.results.first()) {
                all.push(note(&format!("This did not end your turn. {}", told(shown))));
            } else if calls.is_empty() {
                let last = profile.last_tool();
                all.push(note(&format!("This did not end your turn. End it by calling {last}.")));
            }
        }
        let last = profile.last_tool();
        match self.steps_left(profile) {
            1 if profile.max_steps > 1 => {
                all.push(note(&format!(
                    "This is your last step. Call {last} now, with what you have."
                )));
            }
            2 if profile.max_steps > 2 => {
                all.push(note(&format!("You have 2 steps left. Come to an end and call {last}.")));
            }
            _ => {}
        }
        all
    }
}

/// What we say ourselves. Many servers take a system message only as the first one.
fn note(text: &str) -> Value {
    json!({ "role": "user", "content": format!("[system] {text}") })
}

/// A result in the words that a model reads.
fn told(result: &Applied) -> String {
    if result.error.is_none() && matches!(result.status, ToolStatus::Success) {
        return match &result.result {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
    }
    let mut said = json!({ "status": result.status, "error": result.error });
    if !result.result.is_null() {
        said["result"] = result.result.clone();
    }
    said.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::turn::model::StepDone;

    fn applied(wait: &str, call: &str, status: ToolStatus) -> Applied {
        Applied {
            wait: wait.into(),
            call: call.into(),
            tool: "t".into(),
            status,
            result: json!("said"),
            error: None,
            read_from: None,
            after: After::Suspend,
        }
    }

    #[test]
    fn results_stand_behind_the_step_that_asked_in_its_order() {
        let mut talk = Conversation {
            said: vec![json!({"role": "user", "content": "go"})],
            ..Conversation::default()
        };
        let calls = json!([{ "id": "a" }, { "id": "b" }]);
        for step in [1, 2] {
            let message = json!({ "role": "assistant", "tool_calls": calls });
            talk.take(&TurnEvent::StepFinished(StepDone { step, message, usage: Value::Null }));
            talk.take(&TurnEvent::ResultApplied(applied(
                &format!("{step}.2"),
                "b",
                ToolStatus::Success,
            )));
            talk.take(&TurnEvent::WaitTimedOut(applied(
                &format!("{step}.1"),
                "a",
                ToolStatus::Timeout,
            )));
        }
        let said = talk.messages(&Profile::default());
        let ids: Vec<&str> = said.iter().filter_map(|m| m["tool_call_id"].as_str()).collect();
        assert_eq!(ids, ["a", "b", "a", "b"]);
        assert!(said[2]["content"].as_str().unwrap().contains("timeout"));
        assert_eq!(said[3]["content"], "said");
    }

    #[test]
    fn the_last_steps_are_told() {
        let mut talk = Conversation::default();
        let profile = Profile { max_steps: 3, ..Profile::default() };
        let mut notes = Vec::new();
        for step in 1..=3 {
            notes.push(
                talk.messages(&profile)
                    .last()
                    .map(|m| m["content"].to_string())
                    .unwrap_or_default(),
            );
            let message = json!({ "role": "assistant", "content": "hm" });
            talk.take(&TurnEvent::StepFinished(StepDone { step, message, usage: Value::Null }));
        }
        assert!(
            notes[0].is_empty()
                && notes[1].contains("2 steps left")
                && notes[2].contains("last step"),
            "{notes:?}"
        );
        assert_eq!(talk.steps_left(&profile), 0);
    }
}
