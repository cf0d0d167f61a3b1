//! What the model reads: worked out from a turn's history, so that a worker that takes a turn over asks the same
//! question as the one before it would have.

use super::profile::Profile;
use crate::{
    limits,
    turn::model::{Applied, Dead, TurnEvent},
    words::{After, EndStatus, ToolResult, ToolStatus, kinds},
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use tenure_kernel::ids::EntityId;
use tenure_tools::llm::message;

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
    /// About how many bytes all of it has.
    pub bytes: usize,
}

/// Why a turn fails whose conversation is too large.
pub const TOO_LARGE: &str = "conversation_too_large";

/// About how many bytes a value has as JSON.
fn weight(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
        Value::String(text) => text.len() + 8,
        Value::Array(items) => items.iter().map(weight).sum::<usize>() + 8,
        Value::Object(members) => {
            members.iter().map(|(name, value)| name.len() + weight(value) + 8).sum::<usize>() + 8
        }
    }
}

/// The code of an answer to [`SUBMIT`](super::profile::SUBMIT) while results were there that the model had not seen.
pub const INBOX_NOT_EMPTY: &str = "inbox_not_empty";

impl Conversation {
    /// Takes one event in.
    pub fn take(&mut self, event: &TurnEvent) {
        self.bytes += match event {
            TurnEvent::TurnCreated(new) => new.messages.iter().map(weight).sum(),
            TurnEvent::StepFinished(done) => weight(&done.message),
            TurnEvent::ResultApplied(applied) | TurnEvent::WaitTimedOut(applied) => {
                weight(&applied.result)
            }
            TurnEvent::ResultKept { result, .. } => weight(&result.result),
            _ => 0,
        };
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

    /// Where the first result lies that was not read yet.
    pub fn unread(&self) -> Option<EntityId> {
        self.steps.iter().flat_map(|s| &s.results).find_map(|r| r.read_from)
    }

    /// Puts in place what lay there.
    pub fn put(&mut self, from: EntityId, content: Value) {
        let mut results = self.steps.iter_mut().flat_map(|s| s.results.iter_mut());
        if let Some(result) = results.find(|r| r.read_from == Some(from)) {
            self.bytes += weight(&content);
            result.result = content;
            result.read_from = None;
        }
    }

    /// Whether it has more than [`limits::CONVERSATION_BYTES_MAX`]: then there is no next step, and the turn fails with
    /// [`TOO_LARGE`]. What is read of it may be only the beginning.
    pub fn is_too_large(&self) -> bool {
        self.bytes > limits::CONVERSATION_BYTES_MAX
    }

    /// The same in words.
    pub fn too_large(&self) -> String {
        let (max, steps) = (limits::CONVERSATION_BYTES_MAX, self.steps.len());
        format!(
            "what was said in {steps} steps has more than {max} bytes (CONVERSATION_BYTES_MAX): let tools give shorter results, \
             or take fewer steps (max_steps)"
        )
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
            let mut said = message::sent_back(&step.message);
            let mut answers = Vec::new();
            let made = said.get_mut("tool_calls").and_then(Value::as_array_mut);
            for (n, call) in made.into_iter().flatten().enumerate() {
                let wait = format!("{}.{}", step.number, n + 1);
                let result = step.results.iter().find(|r| r.wait == wait);
                if let Some(result) = result {
                    // What cannot hold an id has one all the same.
                    call["id"] = json!(result.call);
                }
                let content = result.map_or_else(String::new, told);
                let id = &call["id"];
                answers.push(json!({ "role": "tool", "tool_call_id": id, "content": content }));
            }
            all.push(said);
            if answers.is_empty() {
                let what = match step.results.first() {
                    Some(shown) => told(shown),
                    None => format!("End it by calling {}.", profile.last_tool()),
                };
                answers.push(note(&format!("This did not end your turn. {what}")));
            }
            all.append(&mut answers);
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
    fn what_is_said_is_counted_and_has_a_limit() {
        let mut talk = Conversation::default();
        let message = |bytes: usize| json!("x".repeat(bytes));
        let said = |step, message| TurnEvent::StepFinished(StepDone::new(step, message));
        // A text counts for its bytes and eight more, and so does a result. This result has four bytes and is then read.
        talk.take(&said(1, message(limits::CONVERSATION_BYTES_MAX - 8 - 12 - 10)));
        let from = EntityId::fixed(7, 7);
        let elsewhere =
            Applied { read_from: Some(from), ..applied("1.1", "a", ToolStatus::Success) };
        talk.take(&TurnEvent::ResultApplied(elsewhere));
        assert_eq!(talk.unread(), Some(from));
        talk.put(from, message(2));
        assert_eq!((talk.unread(), talk.bytes), (None, limits::CONVERSATION_BYTES_MAX));
        assert!(!talk.is_too_large());
        talk.put(from, message(2));
        assert_eq!(talk.bytes, limits::CONVERSATION_BYTES_MAX, "it was read once");
        let mut over = talk.clone();
        over.bytes += 1;
        assert!(over.is_too_large());
        talk.take(&said(2, Value::Null));
        assert!(talk.is_too_large() && talk.too_large().contains("2 steps"));
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
            talk.take(&TurnEvent::StepFinished(StepDone::new(step, message)));
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
    fn what_a_model_said_is_sent_back_in_the_form_of_the_protocol() {
        let mut talk = Conversation {
            said: vec![json!({"role": "user", "content": "go"})],
            ..Conversation::default()
        };
        let mut message = json!({ "role": "assistant", "reasoning_content": "hm", "content": [{ "type": "text", "text": "a" }],
            "tool_calls": [{ "function": { "name": "look up!", "arguments": { "a": 1 } } }, "nonsense"] });
        let asked = super::super::calls::read(&mut message, 1);
        talk.take(&TurnEvent::StepFinished(StepDone::new(1, message)));
        for (n, one) in asked.iter().enumerate() {
            let applied = applied(&format!("1.{}", n + 1), &one.call, ToolStatus::Failed);
            talk.take(&TurnEvent::ResultApplied(applied));
        }
        let messages = talk.messages(&Profile::default());
        let request = json!({ "model": "m", "messages": messages });
        assert_eq!(tenure_tools::scripted::violations(&request), [""; 0]);
        let ids: Vec<&str> = messages.iter().filter_map(|m| m["tool_call_id"].as_str()).collect();
        assert_eq!(ids, ["call_1_1", "call_1_2"]);
        assert_eq!(messages[1]["tool_calls"][1]["id"], "call_1_2");
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
            talk.take(&TurnEvent::StepFinished(StepDone::new(step, message)));
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
