//! Tools whose calls are entities of another kind than `call`.
//!
//! Some work outside is not done by a worker that polls for calls: a pod runs in a cluster, with a machine of its own over it.
//! What a job needs of it is the same, though: an entity that is created by the message which the commit of
//! `tool_invocation_started` carries, that takes a `cancel`, and that says how it ended in the words of
//! [`CallMail`](crate::call::decide::CallMail). This crate does not know those machines; whoever composes the program
//! brings them here.

use super::hand::Elsewhere;
use crate::call::NewCall;
use serde_json::Value;
use std::{borrow::Cow, sync::Arc};
use tenure_kernel::stream::Body;
use tenure_steps::tool::ToolSpec;

/// What stands for a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    /// Its kind. Its id is that of the call.
    pub kind: Cow<'static, str>,
    /// What it is created from.
    pub body: Body,
}

/// Takes calls of some tools.
pub trait Hands: Send + Sync {
    /// Which. Their own functions are never called: see [`spec`].
    fn tools(&self) -> &[ToolSpec];

    /// What is wrong with an input. Asked before anything is on record, so that nobody has to wonder whether it ran.
    fn check(&self, tool: &str, input: &Value) -> Result<(), String>;

    /// What stands for a call, of a job of this tenant.
    fn order(&self, call: &NewCall, tenant: &str) -> Order;
}

/// A tool that is not in this process.
pub fn spec(name: &str) -> ToolSpec {
    ToolSpec::of(name, Arc::new(Elsewhere))
}
