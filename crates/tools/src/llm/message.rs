//! What a model said, read without trust, and in the form in which it may be sent back.
//!
//! Model servers answer with more than they accept: fields of their own (`reasoning_content`, `annotations`), calls without a
//! type, arguments as an object, names that no tool can have. A strict server refuses a conversation that repeats any
//! of them. What is sent back therefore follows the public schema of chat completions, whatever was received.

use serde_json::{Value, json};

/// Length of a function's name in the public schema, in characters.
const NAME_CHARS_MAX: usize = 64;
/// The name of a tool whose own name has no permitted character.
const UNNAMED: &str = "unnamed";

/// The text of a message, whether its content is one text or a list of parts. `None` without a text.
pub fn text(message: &Value) -> Option<String> {
    joined(&message["content"], "text")
}

/// Why the model declines to answer, where it says so in the field or in a part that the protocol has for it.
pub fn refusal(message: &Value) -> Option<String> {
    let field = message["refusal"].as_str().map(str::to_owned);
    field.or_else(|| joined(&message["content"], "refusal")).filter(|r| !r.trim().is_empty())
}

/// The parts of one type, put together.
fn joined(content: &Value, of: &str) -> Option<String> {
    match content {
        Value::String(text) if of == "text" => Some(text.clone()),
        Value::Array(parts) => {
            let texts: Vec<&str> = parts
                .iter()
                // Some servers give a text where the schema has an object.
                .filter_map(|p| p[of].as_str().or_else(|| p.as_str().filter(|_| of == "text")))
                .collect();
            (!texts.is_empty()).then(|| texts.concat())
        }
        _ => None,
    }
}

/// The calls of a message as the public schema has them: `id`, `type`, and a function with a name that fits the pattern
/// `^[a-zA-Z0-9_-]{1,64}$` and with arguments as a text. There are as many as in the message, in its order.
pub fn tool_calls(message: &Value) -> Vec<Value> {
    let calls = message["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
    let call = |(n, call): (usize, &Value)| {
        let id = call["id"].as_str().filter(|id| !id.is_empty());
        let id = id.map_or_else(|| format!("call_{}", n + 1), str::to_owned);
        let name = name(call["function"]["name"].as_str().unwrap_or_default());
        let arguments = match &call["function"]["arguments"] {
            Value::Null => "{}".to_owned(),
            Value::String(text) if text.trim().is_empty() => "{}".to_owned(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
    };
    calls.iter().enumerate().map(call).collect()
}

/// A name as the public schema allows it.
fn name(said: &str) -> String {
    let fits = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    let name: String = said.chars().take(NAME_CHARS_MAX).map(fits).collect();
    if name.is_empty() { UNNAMED.to_owned() } else { name }
}

/// A message of the model as it may be sent back: role, text and calls, and nothing else.
pub fn sent_back(message: &Value) -> Value {
    let calls = tool_calls(message);
    let text = text(message).or_else(|| refusal(message)).filter(|t| !t.is_empty());
    if calls.is_empty() {
        return json!({ "role": "assistant", "content": text.unwrap_or_default() });
    }
    json!({ "role": "assistant", "content": text, "tool_calls": calls })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_back_follows_the_schema_whatever_was_said() {
        let long = "n".repeat(70);
        let said = json!({
            "role": "model", "content": null, "refusal": null, "reasoning_content": "hm", "annotations": [],
            "function_call": null, "tool_calls": [
                { "function": { "name": "look up!", "arguments": { "a": 1 } }, "index": 0 },
                { "id": "b", "type": "tool", "function": { "name": long, "arguments": "" } },
                { "id": 7, "function": { "name": "", "arguments": "{not json" } },
                "nonsense",
            ],
        });
        let call = |id: &str, name: &str, arguments: &str| json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
        assert_eq!(
            sent_back(&said),
            json!({ "role": "assistant", "content": null, "tool_calls": [
                call("call_1", "look_up_", "{\"a\":1}"), call("b", &long[..64], "{}"),
                call("call_3", UNNAMED, "{not json"), call("call_4", UNNAMED, "{}"),
            ]})
        );
        // An empty list of calls is none, and a message without calls has a text.
        for nothing in [json!({ "tool_calls": [] }), json!({ "content": null }), json!("nonsense")]
        {
            assert_eq!(sent_back(&nothing), json!({ "role": "assistant", "content": "" }));
        }
    }

    #[test]
    fn content_in_parts_is_read() {
        let parts = json!({ "content": [
            { "type": "thinking", "thinking": "hm" }, { "type": "text", "text": "Hello " }, "you",
        ]});
        assert_eq!(text(&parts).as_deref(), Some("Hello you"));
        assert_eq!(refusal(&parts), None);
        let declined = json!({ "content": [{ "type": "refusal", "refusal": "no" }] });
        assert_eq!((text(&declined), refusal(&declined).as_deref()), (None, Some("no")));
        assert_eq!(refusal(&json!({ "refusal": "never" })).as_deref(), Some("never"));
        assert_eq!(refusal(&json!({ "refusal": "" })), None);
    }
}
