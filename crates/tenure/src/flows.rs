//! The built-in flows: plans, one call each of the built-in tools or of any other, a person's answer.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::time::Duration;
use tenure_steps::{
    Approval, Ctx, FlowError,
    flow::{FlowSpec, Flows},
};

/// The input of `ask`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Question {
    /// What the person should know.
    question: String,
    /// For how many seconds the answer is waited for.
    #[serde(default)]
    within_seconds: Option<u64>,
}

/// The output of `ask`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Answer {
    approved: bool,
    by: Option<String>,
    said: Value,
}

async fn ask(ctx: Ctx, question: Question) -> Result<Answer, FlowError> {
    let mut wait = ctx.approval("answer").note(question.question);
    if let Some(seconds) = question.within_seconds {
        wait = wait.within(Duration::from_secs(seconds));
    }
    let Approval { approved, by, payload } = wait.await?;
    Ok(Answer { approved, by, said: payload })
}

async fn one_call(ctx: Ctx, tool: &'static str, input: Value) -> Result<Value, FlowError> {
    Ok(ctx.tool(tool, input).await?)
}

/// The input of `call`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OneCall {
    /// The tool: one of this worker's, or one that a worker in another language has registered.
    tool: String,
    /// What it gets.
    #[serde(default)]
    input: Value,
}

async fn call(ctx: Ctx, wanted: OneCall) -> Result<Value, FlowError> {
    Ok(ctx.tool(&wanted.tool, wanted.input).await?)
}

/// All of them.
pub fn builtin() -> Flows {
    let mut flows = Flows::default()
        .with(tenure_jobs::plan::flow())
        .with(FlowSpec::new("ask", ask).doc("Asks a person a question and returns the answer."))
        .with(
            FlowSpec::new("http", |ctx: Ctx, input: Value| one_call(ctx, "http", input))
                .doc("One HTTP request, by the tool http."),
        );
    flows = flows.with(
        FlowSpec::new("command", |ctx: Ctx, input: Value| one_call(ctx, "command", input))
            .doc("One program, by the tool command."),
    );
    flows = flows.with(
        FlowSpec::new("pod", |ctx: Ctx, input: Value| one_call(ctx, "pod", input))
            .doc("One pod in a Kubernetes cluster, by the tool pod."),
    );
    flows = flows.with(
        FlowSpec::new("call", call)
            .doc("One call of any tool, whoever has it; returns its result."),
    );
    flows.with(
        FlowSpec::new("llm", |ctx: Ctx, input: Value| one_call(ctx, "llm", input))
            .doc("One request to a language model, by the tool llm."),
    )
}
