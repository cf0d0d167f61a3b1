//! Tools of every class over an [`outside`](super::outside), and the flow `drill.script`, which does what its
//! input says.

use super::outside::ask;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::time::Duration;
use tenure_steps::{
    Approval, Ctx, Either, FlowError, Probe, ToolCtx, ToolError,
    ctx::{Calls, Step},
    flow::{FlowSpec, Flows},
    tool::{ToolSpec, Tools},
};

/// What a tool of the outside is told.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Act {
    /// Where the outside listens.
    pub outside: String,
    /// What is counted.
    pub name: String,
    /// How long the tool itself takes after the outside has answered.
    #[serde(default)]
    pub then_ms: u64,
}

/// What came of it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct Acted {
    /// What was counted.
    pub name: String,
    /// Under which key.
    pub key: String,
    /// The how-manieth act under that key it was: two calls of one key have two results.
    #[serde(default)]
    pub count: u32,
}

async fn act(ctx: ToolCtx, act: Act) -> Result<Acted, ToolError> {
    ctx.progress(format!("asking {}", act.outside));
    let answer = ask(&act.outside, &format!("ACT {} {}", ctx.key, act.name)).await;
    let count = match answer {
        Ok(words) if words.first().is_some_and(|w| w == "OK") => {
            words.get(1).and_then(|n| n.parse().ok()).unwrap_or_default()
        }
        Ok(words) => return Err(ToolError::unknown(format!("the outside answered {words:?}"))),
        Err(None) => return Err(ToolError::retryable("the outside can not be reached")),
        Err(Some(e)) => return Err(ToolError::unknown(format!("no answer: {e}"))),
    };
    if act.then_ms > 0 {
        tokio::time::sleep(Duration::from_millis(act.then_ms)).await;
    }
    Ok(Acted { name: act.name, key: ctx.key, count })
}

async fn probe(ctx: ToolCtx, act: Act) -> Result<Probe<Acted>, ToolError> {
    match ask(&act.outside, &format!("PROBE {}", ctx.key)).await {
        Ok(words) if words.first().is_some_and(|w| w == "YES") => {
            let count = words.get(1).and_then(|n| n.parse().ok()).unwrap_or_default();
            Ok(Probe::Happened(Acted { name: act.name, key: ctx.key, count }))
        }
        Ok(_) => Ok(Probe::NotHappened),
        Err(_) => Ok(Probe::Unclear("the outside does not answer".into())),
    }
}

async fn undo(ctx: ToolCtx, act: Act) -> Result<(), ToolError> {
    let undone = ask(&act.outside, &format!("UNDO {}", ctx.key)).await;
    undone.map(|_| ()).map_err(|_| ToolError::unknown("the outside does not answer"))
}

/// One tool per class, and one that does nothing.
pub fn tools() -> Tools {
    let doc = "Raises a count in the outside world of a drill.";
    Tools::default()
        .with(ToolSpec::new("outside.idempotent", act).doc(doc).idempotent())
        .with(ToolSpec::new("outside.verifiable", act).doc(doc).verifiable(probe))
        .with(ToolSpec::new("outside.compensatable", act).doc(doc).compensatable(undo))
        .with(ToolSpec::new("outside.irreversible", act).doc(doc).irreversible())
        .with(
            ToolSpec::new("noop", |_: ToolCtx, input: Value| async move { Ok(input) })
                .doc("Gives back what it is given.")
                .idempotent(),
        )
}

/// One step of a script.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// Acts on the outside by the tool of this class.
    Act {
        /// `idempotent`, `verifiable`, `compensatable` or `irreversible`.
        class: String,
        /// What is counted.
        name: String,
        /// See [`Act::then_ms`].
        #[serde(default)]
        then_ms: u64,
        /// How long it may take.
        #[serde(default)]
        timeout_ms: Option<u64>,
    },
    /// Asks the language model.
    Llm {
        /// What is asked.
        prompt: String,
        /// How long it may take.
        #[serde(default)]
        timeout_ms: Option<u64>,
    },
    /// Waits for a signal.
    Signal(String),
    /// Waits for a person; a no fails the job.
    Approval(String),
    /// Sleeps.
    SleepMs(u64),
    /// Runs these beside each other.
    Together(Vec<Line>),
    /// Runs these as another job.
    Child(Vec<Line>),
    /// Fails the job.
    Fail(String),
}

/// The input of `drill.script`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Script {
    /// The flow of its children; the same as its own in a drill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub children: Option<String>,
    /// Where the outside listens.
    #[serde(default)]
    pub outside: String,
    /// What to do, in order.
    pub lines: Vec<Line>,
}

fn within(call: Step<Value, Calls>, timeout_ms: Option<u64>) -> Step<Value, Calls> {
    match timeout_ms {
        Some(ms) => call.timeout(Duration::from_millis(ms)),
        None => call,
    }
}

async fn line(ctx: &Ctx, script: &Script, line: &Line) -> Result<Value, FlowError> {
    Ok(match line {
        Line::Act { class, name, then_ms, timeout_ms } => {
            let (outside, name, then_ms) = (script.outside.clone(), name.clone(), *then_ms);
            let call = ctx.tool(&format!("outside.{class}"), Act { outside, name, then_ms });
            within(call, *timeout_ms).await?
        }
        Line::Llm { prompt, timeout_ms } => {
            let question = json!({ "messages": [{ "role": "user", "content": prompt }] });
            within(ctx.tool("llm", question), *timeout_ms).await?
        }
        Line::Signal(key) => ctx.wait_signal(key).await?,
        Line::Approval(key) => {
            let answer: Approval = ctx.approval(key).await?;
            if !answer.approved {
                return Err(FlowError::failed(format!("{key} was rejected")));
            }
            json!(answer)
        }
        Line::SleepMs(ms) => {
            ctx.sleep(Duration::from_millis(*ms)).await?;
            Value::Null
        }
        Line::Together(lines) => {
            let run = |ctx: Ctx, one: &Line| {
                let (script, one) = (script.clone(), one.clone());
                Box::pin(async move { self::line(&ctx, &script, &one).await })
            };
            let all = ctx.parallel(lines.iter(), run).await;
            Value::Array(all.into_iter().collect::<Result<_, _>>()?)
        }
        Line::Child(lines) => {
            let flow = script.children.as_deref().unwrap_or("drill.script");
            ctx.child(flow, Script { lines: lines.clone(), ..script.clone() }).await?
        }
        Line::Fail(why) => return Err(FlowError::failed(why)),
    })
}

async fn script(ctx: Ctx, script: Script) -> Result<Vec<Value>, FlowError> {
    let mut results = Vec::new();
    for one in &script.lines {
        results.push(line(&ctx, &script, one).await?);
    }
    Ok(results)
}

/// The input of `drill.noops`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Noops {
    /// How many steps.
    pub steps: u32,
    /// Bytes of each step's argument and result.
    #[serde(default)]
    pub bytes: usize,
    /// Waits for this signal first.
    #[serde(default)]
    pub signal: Option<String>,
}

/// The most bytes of a step's argument: what a payload may have by default.
const BALLAST_BYTES_MAX: usize = 1 << 20;

async fn noops(ctx: Ctx, order: Noops) -> Result<u32, FlowError> {
    if let Some(key) = &order.signal {
        let _: Value = ctx.wait_signal(key).await?;
    }
    if order.bytes > BALLAST_BYTES_MAX {
        return Err(FlowError::failed(format!(
            "bytes: {} is over the limit of {BALLAST_BYTES_MAX}",
            order.bytes
        )));
    }
    let ballast = "x".repeat(order.bytes);
    for i in 0..order.steps {
        let _: Value = ctx.tool("noop", json!({ "i": i, "ballast": ballast })).await?;
    }
    Ok(order.steps)
}

/// Waits for the first of a signal and a time: shows a race in the demo's page and in tests.
async fn either(ctx: Ctx, key: String) -> Result<bool, FlowError> {
    let signal = ctx.wait_signal::<Value>(&key);
    let nap = ctx.sleep(Duration::from_secs(60));
    Ok(matches!(ctx.race(signal, nap).await, Either::Left(_)))
}

/// `drill.script` under another name.
pub fn script_as(name: &str, version: u32) -> FlowSpec {
    FlowSpec::new(name, script).version(version).doc("Does what its input says.")
}

/// The flows of drills.
pub fn flows() -> Flows {
    Flows::default()
        .with(script_as("drill.script", 1))
        .with(FlowSpec::new("drill.noops", noops).doc("Calls a tool that does nothing, so often."))
        .with(
            FlowSpec::new("drill.either", either).doc("A signal, or a minute, whichever is first."),
        )
}
