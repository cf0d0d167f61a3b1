//! Who is asked in a step: any server that speaks the chat-completions protocol, or a function of the program.

use super::profile::ModelSettings;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tenure_kernel::runtime::BoxFuture;
use tenure_steps::tool::{ToolCtx, ToolError};
use tenure_tools::llm::{Endpoint, Llm, LlmInput, retry_after};

/// A question.
#[derive(Clone, Debug)]
pub struct Question {
    /// Where and how.
    pub settings: ModelSettings,
    /// The conversation so far.
    pub messages: Vec<Value>,
    /// What the model may call.
    pub tools: Vec<Value>,
}

/// An answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reply {
    /// The message as the model gave it: `role`, `content`, `tool_calls`.
    pub message: Value,
    /// Tokens and the like.
    pub usage: Value,
    /// Why the answer ended, in the words of the protocol: `stop`, `tool_calls`, `length`, `content_filter`, …
    pub finish_reason: Option<String>,
}

/// Why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoReply {
    /// Asking again may help, and not sooner than after this time, where whoever refused says so.
    Transient(String, Option<Duration>),
    /// It would not.
    Refused(String),
}

/// Answers questions.
pub trait Model: Send + Sync + 'static {
    /// Asks. The context says how long it may take, and takes progress; dropped, the question is withdrawn.
    fn ask(&self, ctx: ToolCtx, question: Question) -> BoxFuture<'static, Result<Reply, NoReply>>;
}

/// Models behind the chat-completions protocol.
pub struct ChatModel(Arc<Llm>);

impl ChatModel {
    /// Asks through this client.
    pub fn new(llm: Llm) -> Self {
        ChatModel(Arc::new(llm))
    }
}

impl Model for ChatModel {
    fn ask(&self, ctx: ToolCtx, question: Question) -> BoxFuture<'static, Result<Reply, NoReply>> {
        let llm = self.0.clone();
        Box::pin(async move {
            let Question { settings, messages, tools } = question;
            let input = LlmInput {
                messages,
                model: settings.name,
                tools: Some(tools).filter(|t| !t.is_empty()),
                stream: settings.stream,
                extra: settings.extra,
                ..LlmInput::default()
            };
            let elsewhere = settings
                .base_url
                .map(|base_url| Endpoint { base_url, secret: settings.api_key_secret });
            let said = llm.ask(&ctx, &input, elsewhere.as_ref()).await.map_err(|e| match e {
                ToolError::Permanent(why) | ToolError::Compensatable(why) => NoReply::Refused(why),
                ToolError::Cancelled => NoReply::Refused(e.to_string()),
                ToolError::Retryable(why) | ToolError::Unknown(why) => {
                    let after = retry_after(&why);
                    NoReply::Transient(why, after)
                }
            })?;
            if said.finish_reason.as_deref() == Some("error") {
                let why = "the model server broke its answer off (finish_reason error)";
                return Err(NoReply::Transient(why.to_owned(), None));
            }
            let mut message = said.response["choices"][0]["message"].clone();
            message["role"] = json!("assistant");
            let (usage, finish_reason) = (said.response["usage"].clone(), said.finish_reason);
            Ok(Reply { message, usage, finish_reason })
        })
    }
}

/// A function as a model: for tests, benches and programs that bring their own.
pub struct FnModel<F>(pub F);

impl<F> Model for FnModel<F>
where
    F: Fn(ToolCtx, Question) -> BoxFuture<'static, Result<Reply, NoReply>> + Send + Sync + 'static,
{
    fn ask(&self, ctx: ToolCtx, question: Question) -> BoxFuture<'static, Result<Reply, NoReply>> {
        (self.0)(ctx, question)
    }
}
