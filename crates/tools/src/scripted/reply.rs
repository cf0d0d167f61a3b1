//! One reply, and how it goes wrong.

use serde_json::{Value, json};
use std::time::Duration;
use tokio::sync::watch;

/// Holds replies back until it is opened.
#[derive(Clone, Debug)]
pub struct Gate(watch::Sender<bool>);

impl Default for Gate {
    fn default() -> Self {
        Gate(watch::Sender::new(false))
    }
}

impl Gate {
    /// A closed one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets through whatever waits, and whatever comes.
    pub fn open(&self) {
        self.0.send_replace(true);
    }

    pub(super) async fn passed(&self) {
        // The sender is ours: waiting can not fail while we wait.
        let _ = self.0.subscribe().wait_for(|open| *open).await;
    }
}

/// What the server does with one request.
#[derive(Clone, Debug)]
pub struct Reply {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) content: Option<String>,
    pub(super) tool_calls: Vec<Value>,
    /// Instead of one with `content` and `tool_calls`.
    message: Option<Value>,
    /// Instead of the one that follows from the message.
    finish_reason: Option<String>,
    /// Instead of a completion.
    pub(super) raw: Option<String>,
    pub(super) delay: Duration,
    pub(super) gate: Option<Gate>,
    /// How many pieces of a stream come before delay and gate.
    pub(super) held_after: usize,
    pub(super) breaks: Option<Breaks>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Breaks {
    BeforeAnswer,
    Midway,
}

impl Reply {
    fn new(status: u16) -> Self {
        Reply {
            status,
            headers: Vec::new(),
            content: None,
            tool_calls: Vec::new(),
            message: None,
            finish_reason: None,
            raw: None,
            delay: Duration::ZERO,
            gate: None,
            held_after: 0,
            breaks: None,
        }
    }

    /// A text. Asked to stream, it comes word by word.
    pub fn text(text: &str) -> Self {
        Reply { content: Some(text.to_owned()), ..Reply::new(200) }
    }

    /// The wish to call a tool.
    pub fn tool_call(id: &str, name: &str, arguments: &Value) -> Self {
        Reply::new(200).and_tool_call(id, name, arguments)
    }

    /// And this one.
    pub fn and_tool_call(mut self, id: &str, name: &str, arguments: &Value) -> Self {
        let function = json!({"name": name, "arguments": arguments.to_string()});
        self.tool_calls.push(json!({"id": id, "type": "function", "function": function}));
        self
    }

    /// This message, whatever it is. Asked to stream, it comes in one piece.
    pub fn message(message: Value) -> Self {
        Reply { message: Some(message), ..Reply::new(200) }
    }

    /// Ends for this reason.
    pub fn finished_by(mut self, reason: &str) -> Self {
        self.finish_reason = Some(reason.to_owned());
        self
    }

    /// A refusal.
    pub fn status(status: u16, message: &str) -> Self {
        Reply { content: Some(message.to_owned()), ..Reply::new(status) }
    }

    /// Status 200 with this body, whatever it is.
    pub fn raw(body: &str) -> Self {
        Reply { raw: Some(body.to_owned()), ..Reply::new(200) }
    }

    /// Also this header.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Not before this time has passed.
    pub fn after(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Not before the gate is open.
    pub fn held(mut self, gate: &Gate) -> Self {
        self.gate = Some(gate.clone());
        self
    }

    /// Delay and gate come after so many pieces of a stream instead of before the answer.
    pub fn midway_after(mut self, pieces: usize) -> Self {
        self.held_after = pieces;
        self
    }

    /// Closes the connection instead of answering.
    pub fn broken(mut self) -> Self {
        self.breaks = Some(Breaks::BeforeAnswer);
        self
    }

    /// Closes the connection in the middle of the answer.
    pub fn broken_midway(mut self) -> Self {
        self.breaks = Some(Breaks::Midway);
        self
    }

    pub(super) fn is_completion(&self) -> bool {
        self.status == 200 && self.raw.is_none()
    }

    fn finish_reason(&self) -> &str {
        if let Some(reason) = &self.finish_reason {
            return reason;
        }
        if self.tool_calls.is_empty() { "stop" } else { "tool_calls" }
    }

    /// Words stand for tokens: what is counted is the same on every run, and looks right.
    fn usage(&self, request: &Value) -> Value {
        let words = |text: &str| text.split_whitespace().count();
        let prompt = words(&request["messages"].to_string());
        let completion = words(self.content.as_deref().unwrap_or_default()) + self.tool_calls.len();
        json!({"prompt_tokens": prompt, "completion_tokens": completion,
            "total_tokens": prompt + completion})
    }

    /// The answer in one piece.
    pub(super) fn whole(&self, request: &Value, nth: usize) -> String {
        if let Some(raw) = &self.raw {
            return raw.clone();
        }
        if self.status != 200 {
            return json!({"error": {"message": self.content, "code": self.status}}).to_string();
        }
        let mut message = json!({"role": "assistant", "content": self.content});
        if !self.tool_calls.is_empty() {
            message["tool_calls"] = self.tool_calls.clone().into();
        }
        let message = self.message.clone().unwrap_or(message);
        let choice = json!({"index": 0, "message": message, "finish_reason": self.finish_reason()});
        json!({"id": format!("scripted-{nth}"), "object": "chat.completion", "created": 0,
            "model": request["model"], "choices": [choice], "usage": self.usage(request)})
        .to_string()
    }

    /// The answer as the events of a stream.
    pub(super) fn pieces(&self, request: &Value, nth: usize) -> Vec<String> {
        let chunk = |choices: Value, usage: Value| {
            json!({"id": format!("scripted-{nth}"), "object": "chat.completion.chunk", "created": 0,
                "model": request["model"], "choices": choices, "usage": usage})
        };
        let delta = |delta: Value, finish: Value| {
            chunk(json!([{"index": 0, "delta": delta, "finish_reason": finish}]), Value::Null)
        };
        let mut chunks = vec![delta(json!({"role": "assistant"}), Value::Null)];
        chunks.extend(self.message.iter().map(|m| delta(m.clone(), Value::Null)));
        for word in self.content.as_deref().unwrap_or_default().split_inclusive(' ') {
            chunks.push(delta(json!({"content": word}), Value::Null));
        }
        for (index, call) in self.tool_calls.iter().enumerate() {
            let mut call = call.clone();
            call["index"] = index.into();
            chunks.push(delta(json!({"tool_calls": [call]}), Value::Null));
        }
        chunks.push(delta(json!({}), self.finish_reason().into()));
        if request["stream_options"]["include_usage"] == true {
            chunks.push(chunk(json!([]), self.usage(request)));
        }
        let mut events: Vec<_> = chunks.iter().map(|c| format!("data: {c}\n\n")).collect();
        events.push("data: [DONE]\n\n".to_owned());
        events
    }
}
