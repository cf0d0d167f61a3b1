//! The built-in tools: [`http()`], [`command()`] and [`llm()`].
//!
//! What a tool owes the engine is less a result than an honest account of a failure. A caller can do
//! the right thing only if it knows which of three things is true:
//!
//! | the tool says | it means | when, here |
//! |---|---|---|
//! | `Retryable`, `Permanent`, `Cancelled` | nothing was applied | no connection came about; the program was not found; the target says so |
//! | `Unknown` | it may have been applied | the connection broke after the request could have left; the program was killed |
//! | a result | it was applied, and this is what came of it | the target answered; the program ended as agreed |
//!
//! "Nothing was applied" is said only on evidence. Doubt is `Unknown`, and the class of the call decides
//! (see [`tenure_steps::settle`]).
//!
//! **A second call under one key** is made only because nobody knows what the first one did. Such a call may
//! say of itself that it did nothing; about the first one it knows nothing, and "not applied" would give the
//! next call a new key, under which the target could do it again. Tools with effects therefore answer `Unknown` where
//! a first call would have answered "not applied" (`standing`).
//!
//! **A tool speaks before its caller stops listening.** Each gives up a little before its timeout
//! (`wire::patience`), because what it knows (nothing had left yet) is better than what its caller would have to
//! assume.
//!
//! Read first: `http::verdict` for what an answer means, `wire` for how it is known whether a request
//! left, `egress` for where a request may go, `command::group` for how a program ends. Nothing here decides whether a call is made again.

pub mod command;
mod egress;
pub mod http;
pub mod llm;
pub mod scripted;
pub mod secrets;
mod standing;
mod tenants;
mod text;
mod wire;

pub use command::{CommandOptions, command};
pub use egress::{Egress, OwnListeners};
pub use http::{HttpOptions, http};
pub use llm::{LlmOptions, llm};
pub use secrets::Secrets;
pub use tenants::{Grants, Tenants};
pub use text::Encoding;

use tenure_steps::tool::Tools;

/// Which built-in tools there are, and what they may do. `None` leaves a tool out. A server that takes jobs from
/// strangers says whose jobs may run programs ([`CommandOptions::tenants`]) and name secrets ([`Secrets::given`]).
#[derive(Clone, Debug)]
pub struct BuiltinOptions {
    /// For [`http()`].
    pub http: Option<HttpOptions>,
    /// For [`command()`].
    pub command: Option<CommandOptions>,
    /// For [`llm()`].
    pub llm: Option<LlmOptions>,
    /// Where `{"secret": "NAME"}` in arguments is looked up.
    pub secrets: Secrets,
}

impl Default for BuiltinOptions {
    fn default() -> Self {
        BuiltinOptions {
            http: Some(HttpOptions::default()),
            command: Some(CommandOptions::default()),
            llm: Some(LlmOptions::default()),
            secrets: Secrets::default(),
        }
    }
}

/// The built-in tools, as far as the options ask for them.
pub fn builtin(options: &BuiltinOptions) -> Tools {
    let mut tools = Tools::default();
    if let Some(o) = &options.http {
        tools = tools.with(http(o.clone(), options.secrets.clone()));
    }
    if let Some(o) = &options.command {
        tools = tools.with(command(o.clone(), options.secrets.clone()));
    }
    if let Some(o) = &options.llm {
        tools = tools.with(llm(o.clone(), options.secrets.clone()));
    }
    tools
}
