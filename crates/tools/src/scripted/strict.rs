//! What the public schema of chat completions says about a request. Written from that schema and from nothing of ours: it
//! is what a strict server checks before it answers.

use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// What a request may have.
const REQUEST: &[&str] = &[
    "messages",
    "model",
    "audio",
    "frequency_penalty",
    "function_call",
    "functions",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "metadata",
    "modalities",
    "n",
    "parallel_tool_calls",
    "prediction",
    "presence_penalty",
    "prompt_cache_key",
    "reasoning_effort",
    "response_format",
    "safety_identifier",
    "seed",
    "service_tier",
    "stop",
    "store",
    "stream",
    "stream_options",
    "temperature",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "user",
    "verbosity",
    "web_search_options",
];

/// Tools of one request.
const TOOLS_MAX: usize = 128;

/// Everything that a strict server refuses a request for, each with its place.
pub fn violations(request: &Value) -> Vec<String> {
    let mut check = Check::default();
    check.request(request);
    check.found
}

#[derive(Default)]
struct Check {
    found: Vec<String>,
}

impl Check {
    fn bad(&mut self, at: &str, why: &str) {
        self.found.push(format!("{at}: {why}"));
    }

    /// The members of an object that has no others than these.
    fn object<'v>(
        &mut self,
        at: &str,
        value: &'v Value,
        known: &[&str],
    ) -> Option<&'v Map<String, Value>> {
        let Some(map) = value.as_object() else {
            self.bad(at, "is not an object");
            return None;
        };
        for name in map.keys().filter(|n| !known.contains(&n.as_str())) {
            self.bad(at, &format!("unknown field {name:?}"));
        }
        Some(map)
    }

    fn request(&mut self, request: &Value) {
        let Some(map) = self.object("request", request, REQUEST) else { return };
        if !map.get("model").is_some_and(Value::is_string) {
            self.bad("model", "is not a text");
        }
        if map.contains_key("stream_options") && map.get("stream") != Some(&Value::Bool(true)) {
            self.bad("stream_options", "only with stream");
        }
        match map.get("messages").and_then(Value::as_array) {
            Some(messages) if !messages.is_empty() => self.messages(messages),
            _ => self.bad("messages", "is not a list of at least one"),
        }
        match map.get("tools") {
            None => {}
            Some(Value::Array(tools)) if (1..=TOOLS_MAX).contains(&tools.len()) => {
                tools.iter().enumerate().for_each(|(n, t)| self.tool(&format!("tools[{n}]"), t));
            }
            Some(_) => self.bad("tools", "is not a list of 1 to 128"),
        }
    }

    fn tool(&mut self, at: &str, tool: &Value) {
        let Some(map) = self.object(at, tool, &["type", "function"]) else { return };
        self.is_function(at, map);
        let known = ["name", "description", "parameters", "strict"];
        let of = format!("{at}.function");
        let function = map.get("function").unwrap_or(&Value::Null);
        let Some(function) = self.object(&of, function, &known) else { return };
        self.name(&of, function);
        if function.get("description").is_some_and(|d| !d.is_string()) {
            self.bad(&of, "description is not a text");
        }
        if function.get("parameters").is_some_and(|p| !p.is_object()) {
            self.bad(&of, "parameters is not a schema");
        }
    }

    fn is_function(&mut self, at: &str, map: &Map<String, Value>) {
        if map.get("type").and_then(Value::as_str) != Some("function") {
            self.bad(at, "type is not \"function\"");
        }
    }

    fn name(&mut self, at: &str, function: &Map<String, Value>) {
        let fits = |name: &str| {
            let may = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
            (1..=64).contains(&name.len()) && name.chars().all(may)
        };
        if !function.get("name").and_then(Value::as_str).is_some_and(fits) {
            self.bad(at, "name does not match ^[a-zA-Z0-9_-]{1,64}$");
        }
    }

    fn messages(&mut self, messages: &[Value]) {
        // Calls that the tool messages which follow have to answer.
        let mut open: BTreeSet<&str> = BTreeSet::new();
        for (n, message) in messages.iter().enumerate() {
            let at = format!("messages[{n}]");
            let role = message["role"].as_str().unwrap_or_default();
            if role != "tool" && !open.is_empty() {
                self.bad(&at, &format!("the calls {open:?} before it have no tool message"));
                open.clear();
            }
            match role {
                "developer" | "system" => {
                    self.object(&at, message, &["role", "content", "name"]);
                    self.content(&at, &message["content"], &["text"]);
                }
                "user" => {
                    self.object(&at, message, &["role", "content", "name"]);
                    let parts = ["text", "image_url", "input_audio", "file"];
                    self.content(&at, &message["content"], &parts);
                }
                "assistant" => open = self.assistant(&at, message),
                "tool" => {
                    self.object(&at, message, &["role", "content", "tool_call_id"]);
                    self.content(&at, &message["content"], &["text"]);
                    if !message["tool_call_id"].as_str().is_some_and(|id| open.remove(id)) {
                        self.bad(&at, "tool_call_id answers no call of the message before");
                    }
                }
                _ => self.bad(&at, "role is none of developer, system, user, assistant and tool"),
            }
        }
        if !open.is_empty() {
            self.bad("messages", &format!("the calls {open:?} have no tool message"));
        }
    }

    fn content(&mut self, at: &str, content: &Value, parts: &[&str]) {
        match content {
            Value::String(_) => {}
            Value::Array(list) if !list.is_empty() => {
                for part in list {
                    let kind = part["type"].as_str().unwrap_or_default();
                    if !parts.contains(&kind) {
                        self.bad(at, &format!("a part of content has type {kind:?}"));
                    } else if let Some(map) = self.object(at, part, &["type", kind])
                        && !map.contains_key(kind)
                    {
                        self.bad(at, &format!("a part of content has no {kind}"));
                    }
                }
            }
            _ => self.bad(at, "content is neither a text nor a list of parts"),
        }
    }

    /// The ids of its calls.
    fn assistant<'v>(&mut self, at: &str, message: &'v Value) -> BTreeSet<&'v str> {
        let known = ["role", "content", "refusal", "name", "audio", "tool_calls", "function_call"];
        self.object(at, message, &known);
        let calls = message.get("tool_calls");
        if !(calls.is_some() && message["content"].is_null()) {
            self.content(at, &message["content"], &["text", "refusal"]);
        }
        let mut ids = BTreeSet::new();
        match calls {
            None => {}
            Some(Value::Array(calls)) if !calls.is_empty() => {
                for (n, call) in calls.iter().enumerate() {
                    let at = format!("{at}.tool_calls[{n}]");
                    let id = self.call(&at, call);
                    if !id.is_some_and(|id| ids.insert(id)) {
                        self.bad(&at, "id is missing, or there twice");
                    }
                }
            }
            Some(_) => self.bad(at, "tool_calls is not a list of at least one"),
        }
        ids
    }

    fn call<'v>(&mut self, at: &str, call: &'v Value) -> Option<&'v str> {
        let map = self.object(at, call, &["id", "type", "function"])?;
        self.is_function(at, map);
        let function = map.get("function").unwrap_or(&Value::Null);
        if let Some(function) = self.object(at, function, &["name", "arguments"]) {
            self.name(at, function);
            if !function.get("arguments").is_some_and(Value::is_string) {
                self.bad(at, "arguments is not a text");
            }
        }
        map.get("id").and_then(Value::as_str).filter(|id| !id.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn call(id: &str) -> Value {
        json!({ "id": id, "type": "function", "function": { "name": "look", "arguments": "{}" } })
    }

    #[test]
    fn a_whole_conversation_passes() {
        let request = json!({
            "model": "m", "temperature": 0, "stream": true, "stream_options": { "include_usage": true },
            "tools": [{ "type": "function", "function": { "name": "look", "description": "", "parameters": {} } }],
            "messages": [
                { "role": "system", "content": "Be brief." },
                { "role": "user", "content": [{ "type": "text", "text": "go" }] },
                { "role": "assistant", "content": null, "tool_calls": [call("a"), call("b")] },
                { "role": "tool", "tool_call_id": "b", "content": "1" },
                { "role": "tool", "tool_call_id": "a", "content": "" },
                { "role": "assistant", "content": "done" },
            ],
        });
        assert_eq!(violations(&request), [""; 0]);
    }

    #[test]
    fn each_violation_is_found() {
        let with = |messages: Value| json!({ "model": "m", "messages": messages });
        let assistant = |calls: Value| {
            let id = calls[0]["id"].clone();
            with(json!([
                { "role": "assistant", "content": null, "tool_calls": calls },
                { "role": "tool", "tool_call_id": id, "content": "" },
            ]))
        };
        let altered = |change: fn(&mut Value)| {
            let mut call = call("a");
            change(&mut call);
            assistant(json!([call]))
        };
        let user = json!({ "role": "user", "content": "go" });
        for (request, part) in [
            (json!({ "messages": [user] }), "model"),
            (with(json!([])), "messages"),
            (json!({ "model": "m", "messages": [user], "x": 1 }), "unknown field \"x\""),
            (json!({ "model": "m", "messages": [user], "stream_options": {} }), "stream_options"),
            (json!({ "model": "m", "messages": [user], "tools": [] }), "tools"),
            (with(json!([{ "role": "model", "content": "x" }])), "role"),
            (with(json!([{ "role": "user", "content": null }])), "content"),
            (with(json!([{ "role": "user", "content": "x", "a": 1 }])), "unknown field \"a\""),
            (with(json!([{ "role": "assistant", "content": null }])), "content"),
            (
                with(json!([{ "role": "assistant", "content": "x", "reasoning_content": "" }])),
                "unknown",
            ),
            (
                with(json!([{ "role": "assistant", "content": "x", "tool_calls": null }])),
                "tool_calls",
            ),
            (
                with(json!([{ "role": "assistant", "content": "x", "tool_calls": [] }])),
                "tool_calls",
            ),
            (with(json!([{ "role": "assistant", "content": [{ "type": "thinking" }] }])), "part"),
            (with(json!([{ "role": "tool", "tool_call_id": "a", "content": "" }])), "no call"),
            (
                with(
                    json!([{ "role": "assistant", "content": "", "tool_calls": [call("a")] }, user]),
                ),
                "no tool message",
            ),
            (
                with(json!([{ "role": "assistant", "content": "", "tool_calls": [call("a")] }])),
                "no tool message",
            ),
            (altered(|c| c["type"] = json!("tool")), "type"),
            (altered(|c| c["index"] = json!(0)), "unknown field \"index\""),
            (altered(|c| c["function"]["name"] = json!("look up")), "name"),
            (altered(|c| c["function"]["arguments"] = json!({})), "arguments"),
            (altered(|c| c["id"] = json!("")), "id"),
        ] {
            let found = violations(&request);
            assert!(found.iter().any(|f| f.contains(part)), "{part:?} is not in {found:?}");
        }
    }
}
