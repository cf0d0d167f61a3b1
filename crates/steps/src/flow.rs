//! Flows: ordinary async functions with a [`Ctx`], registered by name and version. Versions of a flow
//! live side by side; a job goes on with the version that it began with.

use crate::{ctx::Ctx, events::StepId};
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::{any::Any, collections::BTreeMap, fmt, future::Future, sync::Arc};
use tenure_kernel::runtime::BoxFuture;

/// Why a step did not give its result to the flow.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("step {step}: {why}")]
pub struct StepError {
    /// Which step.
    pub step: StepId,
    /// What kind of failure.
    pub kind: Failed,
    /// In words.
    pub why: String,
}

/// What kind of failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failed {
    /// It was tried as often as allowed, or is not to be tried again.
    Permanent,
    /// It was undone.
    Compensated,
    /// A person gave it up without knowing whether it happened.
    Abandoned,
    /// The wait's deadline passed.
    Expired,
    /// The child failed or was cancelled.
    Child,
    /// What was recorded does not fit the type that the flow expects.
    Shape,
}

/// Why a flow ended without a result.
#[derive(Debug)]
pub enum FlowError {
    /// A step failed and the flow let it.
    Step(StepError),
    /// The flow says so.
    Failed(String),
    /// Not an error: the flow starts afresh with this input. Made by [`Ctx::continue_with`].
    Continue(Value),
}

impl FlowError {
    /// The flow fails, for this reason.
    pub fn failed(why: impl Into<String>) -> Self {
        FlowError::Failed(why.into())
    }
}

impl fmt::Display for FlowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FlowError::Step(e) => e.fmt(f),
            FlowError::Failed(why) => f.write_str(why),
            FlowError::Continue(_) => f.write_str("continues afresh"),
        }
    }
}

// `FlowError` is no `std::error::Error` itself, which is what lets `?` take any error.
impl<E: std::error::Error + 'static> From<E> for FlowError {
    fn from(error: E) -> Self {
        match (&error as &dyn Any).downcast_ref::<StepError>() {
            Some(step) => FlowError::Step(step.clone()),
            None => FlowError::Failed(error.to_string()),
        }
    }
}

/// What a flow gives back, as JSON.
pub type FlowResult = Result<Value, FlowError>;

type Run = dyn Fn(Ctx, Value) -> BoxFuture<'static, FlowResult> + Send + Sync;

/// A registered flow.
#[derive(Clone)]
pub struct FlowSpec {
    /// Its name.
    pub name: String,
    /// Its version. A change that asks for other steps needs a new one.
    pub version: u32,
    /// One line for people.
    pub doc: String,
    /// JSON schema of the input.
    pub input_schema: Value,
    /// JSON schema of the output.
    pub output_schema: Value,
    run: Arc<Run>,
}

impl fmt::Debug for FlowSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.name, self.version)
    }
}

impl FlowSpec {
    /// A flow from an async function.
    pub fn new<I, O, F, Fut>(name: &str, flow: F) -> Self
    where
        I: DeserializeOwned + JsonSchema + Send + 'static,
        O: Serialize + JsonSchema + 'static,
        F: Fn(Ctx, I) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, FlowError>> + Send + 'static,
    {
        let flow = Arc::new(flow);
        let run = move |ctx: Ctx, input: Value| -> BoxFuture<'static, FlowResult> {
            let flow = flow.clone();
            Box::pin(async move {
                let input = serde_json::from_value(input).map_err(|e| {
                    FlowError::Failed(format!("the input does not fit the flow: {e}"))
                })?;
                let output = flow(ctx, input).await?;
                serde_json::to_value(&output).map_err(|e| {
                    FlowError::Failed(format!("the output can not be written as JSON: {e}"))
                })
            })
        };
        FlowSpec {
            name: name.to_owned(),
            version: 1,
            doc: String::new(),
            input_schema: schemars::schema_for!(I).to_value(),
            output_schema: schemars::schema_for!(O).to_value(),
            run: Arc::new(run),
        }
    }

    /// Another version.
    pub fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// One line for people.
    pub fn doc(mut self, doc: &str) -> Self {
        doc.clone_into(&mut self.doc);
        self
    }

    /// Starts it. Nothing happens until it is polled.
    pub fn start(&self, ctx: Ctx, input: Value) -> BoxFuture<'static, FlowResult> {
        (self.run)(ctx, input)
    }

    /// The queue in which its jobs wait: only workers that know this version look there.
    pub fn queue(&self) -> String {
        queue_of(&self.name, self.version)
    }
}

/// The queue of a flow's version.
pub fn queue_of(flow: &str, version: u32) -> String {
    format!("{flow}@{version}")
}

/// All flows of a process.
#[derive(Clone, Default, Debug)]
pub struct Flows(BTreeMap<(String, u32), FlowSpec>);

impl Flows {
    /// Adds a flow; the same name and version replaces.
    pub fn with(mut self, spec: FlowSpec) -> Self {
        self.0.insert((spec.name.clone(), spec.version), spec);
        self
    }

    /// A flow by name and version.
    pub fn get(&self, name: &str, version: u32) -> Option<&FlowSpec> {
        self.0.get(&(name.to_owned(), version))
    }

    /// The newest version of a flow.
    pub fn newest(&self, name: &str) -> Option<&FlowSpec> {
        self.0.range((name.to_owned(), 0)..=(name.to_owned(), u32::MAX)).next_back().map(|(_, f)| f)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &FlowSpec> {
        self.0.values()
    }
}
