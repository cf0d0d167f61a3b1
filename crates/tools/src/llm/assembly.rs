//! A streamed answer put together again, into what the same server would have sent in one piece.

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// What has come so far.
#[derive(Default)]
pub(crate) struct Assembly {
    /// `id`, `model`, `created`, `usage`, …: the last value of each.
    top: Map<String, Value>,
    choices: BTreeMap<u64, Choice>,
}

#[derive(Default)]
struct Choice {
    message: Map<String, Value>,
    calls: BTreeMap<u64, Map<String, Value>>,
    finish_reason: Value,
}

impl Assembly {
    /// Takes one chunk in.
    pub(crate) fn take_in(&mut self, chunk: Value) {
        let Value::Object(chunk) = chunk else { return };
        for (name, value) in chunk {
            match (name.as_str(), value) {
                ("choices", Value::Array(choices)) => {
                    choices.into_iter().for_each(|c| self.choice(c));
                }
                // Some servers send `usage: null` with every chunk.
                (_, Value::Null) => {}
                (_, value) => {
                    self.top.insert(name, value);
                }
            }
        }
    }

    fn choice(&mut self, mut from: Value) {
        let choice = self.choices.entry(from["index"].as_u64().unwrap_or(0)).or_default();
        if !from["finish_reason"].is_null() {
            choice.finish_reason = from["finish_reason"].take();
        }
        let Value::Object(delta) = from["delta"].take() else { return };
        for (name, value) in delta {
            match (name.as_str(), value) {
                ("tool_calls", Value::Array(calls)) => {
                    for (position, call) in calls.into_iter().enumerate() {
                        let index = call["index"].as_u64().unwrap_or(position as u64);
                        let known = choice.calls.entry(index).or_default();
                        let Value::Object(call) = call else { continue };
                        call.into_iter()
                            .filter(|(name, _)| name != "index")
                            .for_each(|(name, value)| append(known, name, value));
                    }
                }
                (_, value) => append(&mut choice.message, name, value),
            }
        }
    }

    /// The text so far.
    pub(crate) fn content(&self) -> &str {
        let first = self.choices.values().next();
        first.and_then(|c| c.message.get("content")?.as_str()).unwrap_or_default()
    }

    /// Whether every choice has said why it ended.
    pub(crate) fn is_complete(&self) -> bool {
        !self.choices.is_empty() && self.choices.values().all(|c| !c.finish_reason.is_null())
    }

    /// As if it had come in one piece.
    pub(crate) fn into_response(self) -> Value {
        let mut response = self.top;
        response.insert("object".into(), "chat.completion".into());
        let choices = self.choices.into_iter().map(|(index, mut choice)| {
            choice.message.entry("content").or_insert(Value::Null);
            if !choice.calls.is_empty() {
                let calls = choice.calls.into_values().map(Value::Object).collect();
                choice.message.insert("tool_calls".into(), calls);
            }
            json!({"index": index, "message": choice.message, "finish_reason": choice.finish_reason})
        });
        response.insert("choices".into(), choices.collect());
        Value::Object(response)
    }
}

/// Texts grow, objects are merged; what is a name and not a text (`role`, `id`, `type`) is only set.
fn append(to: &mut Map<String, Value>, name: String, value: Value) {
    let only_set = matches!(name.as_str(), "role" | "id" | "type");
    match (to.get_mut(&name), value) {
        (_, Value::Null) => {}
        (Some(Value::String(_)), Value::String(more)) if only_set && more.is_empty() => {}
        (Some(Value::String(text)), Value::String(more)) if !only_set => text.push_str(&more),
        (Some(Value::Array(parts)), Value::Array(mut more)) => parts.append(&mut more),
        (Some(Value::Object(known)), Value::Object(more)) => {
            more.into_iter().for_each(|(name, value)| append(known, name, value));
        }
        (_, value) => {
            to.insert(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_tool_calls_grow_together() {
        let mut all = Assembly::default();
        for delta in [
            json!({"role": "assistant", "content": "", "tool_calls": null}),
            json!({"content": "Hel"}),
            json!({"content": "lo"}),
            json!({"tool_calls": [{"index": 1, "id": "b", "function": {"name": "g", "arguments": ""}}]}),
            json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{\"x\""}}]}),
            json!({"tool_calls": [{"index": 0, "id": "", "function": {"arguments": ":1}"}}]}),
        ] {
            all.take_in(json!({"id": "c1", "model": "m", "usage": null,
                "choices": [{"index": 0, "delta": delta, "finish_reason": null}]}));
        }
        assert_eq!(all.content(), "Hello");
        assert!(!all.is_complete());
        all.take_in(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}));
        assert!(all.is_complete());
        all.take_in(json!({"choices": [], "usage": {"total_tokens": 3}}));
        let whole = all.into_response();
        assert_eq!(
            whole,
            json!({"id": "c1", "model": "m", "object": "chat.completion", "usage": {"total_tokens": 3},
                "choices": [{"index": 0, "finish_reason": "tool_calls", "message": {
                    "role": "assistant", "content": "Hello", "tool_calls": [
                        {"id": "a", "function": {"name": "f", "arguments": "{\"x\":1}"}},
                        {"id": "b", "function": {"name": "g", "arguments": ""}}]}}]})
        );
    }
}
