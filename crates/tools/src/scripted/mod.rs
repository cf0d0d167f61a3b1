//! A model server that says what it was told to: for tests of flows and agents, and for trying Tenure out
//! without an account.
//!
//! ```no_run
//! # async fn example() -> std::io::Result<()> {
//! use tenure_tools::scripted::{Reply, Script, Server};
//! let script = Script::new()
//!     .then(Reply::tool_call("call-1", "weather", &serde_json::json!({"city": "Oslo"})))
//!     .when("Oslo", Reply::text("Take a coat."))
//!     .otherwise(Reply::text("I do not know."));
//! let server = Server::start(script).await?;
//! println!("{}", server.base_url());
//! # Ok(()) }
//! ```
//!
//! It can also misbehave as real ones do: refuse, be slow, close the connection before the answer or in the middle of it. A
//! reply may be held back until a test opens a [`Gate`], so that no test has to sleep in order to be in the middle of
//! something.
//!
//! It is strict: a request that the public schema of chat completions does not allow is answered with 400 and with what is
//! wrong ([`violations`]).

mod reply;
mod server;
mod strict;

pub use reply::{Gate, Reply};
pub use server::{Seen, Server};
pub use strict::violations;

use serde_json::Value;
use std::collections::VecDeque;

/// What to answer. Who asks gets the reply whose `when` fits the last message; otherwise the next one in order;
/// otherwise the default; otherwise a 500 that says that the script is over.
#[derive(Clone, Debug, Default)]
pub struct Script {
    matched: Vec<(String, Reply)>,
    in_order: VecDeque<Reply>,
    otherwise: Option<Reply>,
}

impl Script {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whenever the last message contains this. The first that fits counts.
    pub fn when(mut self, contains: &str, reply: Reply) -> Self {
        self.matched.push((contains.to_owned(), reply));
        self
    }

    /// Once, after those before it.
    pub fn then(mut self, reply: Reply) -> Self {
        self.in_order.push_back(reply);
        self
    }

    /// When nothing else fits.
    pub fn otherwise(mut self, reply: Reply) -> Self {
        self.otherwise = Some(reply);
        self
    }

    /// The reply to this request.
    fn next(&mut self, request: &Value) -> Reply {
        let last = last_message(request);
        if let Some((_, reply)) = self.matched.iter().find(|(part, _)| last.contains(part)) {
            return reply.clone();
        }
        self.in_order
            .pop_front()
            .or_else(|| self.otherwise.clone())
            .unwrap_or_else(|| Reply::status(500, &format!("the script has no reply to {last:?}")))
    }
}

/// The text of the last message; of one in several parts, all of it as JSON.
fn last_message(request: &Value) -> String {
    let last = request["messages"].as_array().and_then(|m| m.last());
    match last.map(|m| &m["content"]) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_fits_comes_before_what_is_next() {
        let ask = |text: &str| json!({"messages": [{"role": "user", "content": text}]});
        let mut script = Script::new()
            .when("weather", Reply::text("rain"))
            .then(Reply::text("one"))
            .then(Reply::text("two"));
        let mut said = |text: &str| script.next(&ask(text)).content.unwrap_or_default();
        assert_eq!(said("hello"), "one");
        assert_eq!(said("the weather?"), "rain");
        assert_eq!(said("hello"), "two");
        assert_eq!(said("the weather?"), "rain");
        assert_eq!(script.next(&ask("hello")).status, 500);
        script = script.otherwise(Reply::text("else"));
        assert_eq!(script.next(&ask("hello")).content.as_deref(), Some("else"));
    }
}
