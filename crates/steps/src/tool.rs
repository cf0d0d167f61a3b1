//! Tools: how a flow touches the world. A tool declares its *class*, which is what decides when nobody
//! can know whether a call happened.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    future::Future,
    io,
    marker::PhantomData,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tenure_kernel::{
    depth, ids::EntityId, limits::BLOB_BYTES_MAX, runtime::BoxFuture, time::Timestamp,
};
use tokio::sync::watch;

/// What settles a call of unknown outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, PartialOrd, Ord)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Called again with the same key.
    Idempotent,
    /// A probe says whether it happened.
    Verifiable,
    /// Compensated; then it counts as not happened.
    Compensatable,
    /// A person decides. The default: a tool that declares nothing is not called twice.
    #[default]
    Irreversible,
}

impl Class {
    /// As text.
    pub fn as_str(self) -> &'static str {
        match self {
            Class::Idempotent => "idempotent",
            Class::Verifiable => "verifiable",
            Class::Compensatable => "compensatable",
            Class::Irreversible => "irreversible",
        }
    }
}

/// Why a tool did not return a result.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ToolError {
    /// Nothing was applied, and another try may help.
    #[error("{0}")]
    Retryable(String),
    /// Nothing was applied, and another try would not help.
    #[error("{0}")]
    Permanent(String),
    /// It may have been applied: the connection broke after the request had left, say.
    #[error("{0}")]
    Unknown(String),
    /// Half of it was applied: it is compensated, then counts as not applied and is tried again if it may be. Of a
    /// tool that is not compensatable it is the same as [`ToolError::Unknown`].
    #[error("{0}")]
    Compensatable(String),
    /// It noticed the request to stop before it applied anything.
    #[error("stopped on request")]
    Cancelled,
}

impl ToolError {
    /// See [`ToolError::Retryable`].
    pub fn retryable(why: impl ToString) -> Self {
        ToolError::Retryable(why.to_string())
    }

    /// See [`ToolError::Permanent`].
    pub fn permanent(why: impl ToString) -> Self {
        ToolError::Permanent(why.to_string())
    }

    /// See [`ToolError::Unknown`].
    pub fn unknown(why: impl ToString) -> Self {
        ToolError::Unknown(why.to_string())
    }
}

/// What a probe found out about an earlier call.
#[derive(Clone, PartialEq, Debug)]
pub enum Probe<O = Value> {
    /// It happened, with this result.
    Happened(O),
    /// There is no trace of it. Counts only when its executor is known dead, or fenced off.
    NotHappened,
    /// The probe can not tell now.
    Unclear(String),
}

/// What a call may know about itself.
#[derive(Clone)]
pub struct ToolCtx {
    /// The job.
    pub job: EntityId,
    /// The step.
    pub step: String,
    /// The idempotency key to pass downstream. The same for every call that must have one effect.
    pub key: String,
    /// The job's attempt: a target that refuses smaller numbers is *fenced*.
    pub epoch: u64,
    /// Which call under this key, from 1.
    pub call: u32,
    /// A tool that *honours not-after* does nothing that takes effect after this time.
    pub not_after: Timestamp,
    /// How long it may take.
    pub timeout: Duration,
    /// Whose job it is.
    pub tenant: String,
    stop: watch::Receiver<bool>,
    progress: Arc<Progress>,
}

/// What a running call shows of itself.
#[derive(Default)]
pub struct Progress {
    mark: AtomicU64,
    note: std::sync::Mutex<String>,
}

impl Progress {
    /// How often it moved.
    pub fn mark(&self) -> u64 {
        self.mark.load(Ordering::Relaxed)
    }

    /// What it said last.
    pub fn note(&self) -> String {
        self.note.lock().map(|n| n.clone()).unwrap_or_default()
    }
}

/// What a [`ToolCtx`] is made of.
pub struct CallParts {
    /// See [`ToolCtx::job`].
    pub job: EntityId,
    /// See [`ToolCtx::step`].
    pub step: String,
    /// See [`ToolCtx::key`].
    pub key: String,
    /// See [`ToolCtx::epoch`].
    pub epoch: u64,
    /// See [`ToolCtx::call`].
    pub call: u32,
    /// See [`ToolCtx::not_after`].
    pub not_after: Timestamp,
    /// See [`ToolCtx::timeout`].
    pub timeout: Duration,
    /// See [`ToolCtx::tenant`].
    pub tenant: String,
    /// Turns true when the call should stop.
    pub stop: watch::Receiver<bool>,
}

impl ToolCtx {
    /// For whoever calls tools.
    pub fn new(parts: CallParts) -> Self {
        let CallParts { job, step, key, epoch, call, not_after, timeout, tenant, stop } = parts;
        let progress = Arc::new(Progress::default());
        ToolCtx { job, step, key, epoch, call, not_after, timeout, tenant, stop, progress }
    }

    /// Whether it should stop: the job was cancelled, timed out, or lost.
    pub fn is_cancelled(&self) -> bool {
        *self.stop.borrow()
    }

    /// Completes when it should stop. A tool that stops in time and knows that nothing was applied
    /// returns [`ToolError::Cancelled`].
    pub async fn cancelled(&self) {
        let mut stop = self.stop.clone();
        if stop.wait_for(|s| *s).await.is_err() {
            // Whoever could ask is gone, and nobody will: the call ends with its worker.
            std::future::pending::<()>().await;
        }
    }

    /// Shows that it moves; what it says is visible while it runs.
    pub fn progress(&self, note: impl Into<String>) {
        self.progress.mark.fetch_add(1, Ordering::Relaxed);
        if let Ok(mut current) = self.progress.note.lock() {
            *current = note.into();
        }
    }

    /// What it has shown.
    pub fn shown(&self) -> Arc<Progress> {
        self.progress.clone()
    }
}

/// How often and how long a call is tried. A step's own value wins over the tool's, the tool's over the
/// configuration (`executor.step_timeout`, `executor.retry_max`, `executor.backoff`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallOptions {
    /// How long one call may take.
    pub timeout: Option<Duration>,
    /// Tries after the first.
    pub retry_max: Option<u32>,
    /// Before the first of them; doubles, with jitter.
    pub backoff: Option<Duration>,
    /// What settles an unknown outcome.
    pub class: Option<Class>,
    /// Whether a timeout that was settled as not applied is tried again.
    pub timeout_is_permanent: Option<bool>,
}

impl CallOptions {
    /// These, and where they are silent, those.
    pub fn or(&self, other: &CallOptions) -> CallOptions {
        CallOptions {
            timeout: self.timeout.or(other.timeout),
            retry_max: self.retry_max.or(other.retry_max),
            backoff: self.backoff.or(other.backoff),
            class: self.class.or(other.class),
            timeout_is_permanent: self.timeout_is_permanent.or(other.timeout_is_permanent),
        }
    }
}

/// A tool as the engine sees it: JSON in, JSON out.
pub trait Tool: Send + Sync + 'static {
    /// Calls it.
    fn call(&self, ctx: ToolCtx, input: Value) -> BoxFuture<'static, Result<Value, ToolError>>;

    /// Asks whether an earlier call under this key happened. Only for `verifiable` tools.
    fn probe(&self, _ctx: ToolCtx, _input: Value) -> BoxFuture<'static, Result<Probe, ToolError>> {
        Box::pin(async { Ok(Probe::Unclear("this tool has no probe".into())) })
    }

    /// Undoes an earlier call under this key, whether or not it happened, and may be called twice.
    /// Only for `compensatable` tools.
    fn compensate(
        &self,
        _ctx: ToolCtx,
        _input: Value,
    ) -> BoxFuture<'static, Result<(), ToolError>> {
        Box::pin(async { Err(ToolError::permanent("this tool has no compensation")) })
    }

    /// The class of this very call, where it depends on the arguments (a GET and a POST of one tool).
    fn class_of(&self, _input: &Value) -> Option<Class> {
        None
    }
}

/// A registered tool.
#[derive(Clone)]
pub struct ToolSpec {
    /// Its name in flows.
    pub name: String,
    /// One line for people.
    pub doc: String,
    /// Changes when its behaviour does.
    pub version: u32,
    /// Class, timeout, retries.
    pub options: CallOptions,
    /// It does nothing that takes effect after `not_after`: then an unknown call is over at that time.
    pub honours_not_after: bool,
    /// Its target refuses the epochs of earlier holders.
    pub fenced: bool,
    /// JSON schema of the input, if it is known.
    pub input_schema: Option<Value>,
    /// JSON schema of the output.
    pub output_schema: Option<Value>,
    /// What is called.
    pub tool: Arc<dyn Tool>,
}

impl std::fmt::Debug for ToolSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ToolSpec")
            .field("name", &self.name)
            .field("version", &self.version)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl ToolSpec {
    /// A tool from an async function of typed input and output.
    pub fn new<I, O, F, Fut>(name: &str, call: F) -> Self
    where
        I: DeserializeOwned + JsonSchema + Send + 'static,
        O: Serialize + JsonSchema + Send + 'static,
        F: Fn(ToolCtx, I) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, ToolError>> + Send + 'static,
    {
        let tool = Arc::new(Function { call: Arc::new(call), types: PhantomData });
        let mut spec = Self::of(name, tool);
        spec.input_schema = Some(schemars::schema_for!(I).to_value());
        spec.output_schema = Some(schemars::schema_for!(O).to_value());
        spec
    }

    /// A tool of any kind, without schemas.
    pub fn of(name: &str, tool: Arc<dyn Tool>) -> Self {
        ToolSpec {
            name: name.to_owned(),
            doc: String::new(),
            version: 1,
            options: CallOptions::default(),
            honours_not_after: false,
            fenced: false,
            input_schema: None,
            output_schema: None,
            tool,
        }
    }

    /// One line for people.
    pub fn doc(mut self, doc: &str) -> Self {
        doc.clone_into(&mut self.doc);
        self
    }

    /// See [`Class::Idempotent`].
    pub fn idempotent(mut self) -> Self {
        self.options.class = Some(Class::Idempotent);
        self
    }

    /// See [`Class::Irreversible`].
    pub fn irreversible(mut self) -> Self {
        self.options.class = Some(Class::Irreversible);
        self
    }

    /// See [`CallOptions::timeout`].
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.timeout = Some(timeout);
        self
    }

    /// See [`CallOptions::retry_max`] and [`CallOptions::backoff`].
    pub fn retries(mut self, retry_max: u32, backoff: Duration) -> Self {
        self.options.retry_max = Some(retry_max);
        self.options.backoff = Some(backoff);
        self
    }

    /// See [`ToolSpec::honours_not_after`].
    pub fn honours_not_after(mut self) -> Self {
        self.honours_not_after = true;
        self
    }

    /// See [`ToolSpec::fenced`].
    pub fn fenced(mut self) -> Self {
        self.fenced = true;
        self
    }

    /// Makes it verifiable: the probe says whether an earlier call happened.
    pub fn verifiable<I, O, F, Fut>(mut self, probe: F) -> Self
    where
        I: DeserializeOwned + Send + 'static,
        O: Serialize + Send + 'static,
        F: Fn(ToolCtx, I) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Probe<O>, ToolError>> + Send + 'static,
    {
        self.options.class = Some(Class::Verifiable);
        let probe: ProbeFn = Arc::new(move |ctx, input| {
            let asked = decode::<I>(input).map(|input| probe(ctx, input));
            Box::pin(async move {
                Ok(match asked?.await? {
                    Probe::Happened(o) => Probe::Happened(encode(&o)?),
                    Probe::NotHappened => Probe::NotHappened,
                    Probe::Unclear(why) => Probe::Unclear(why),
                })
            })
        });
        let inner = self.tool.clone();
        self.tool = Arc::new(With { inner, probe: Some(probe), compensate: None });
        self
    }

    /// Makes it compensatable: this undoes a call, whether or not it happened.
    pub fn compensatable<I, F, Fut>(mut self, compensate: F) -> Self
    where
        I: DeserializeOwned + Send + 'static,
        F: Fn(ToolCtx, I) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), ToolError>> + Send + 'static,
    {
        self.options.class = Some(Class::Compensatable);
        let compensate: CompensateFn = Arc::new(move |ctx, input| {
            let asked = decode::<I>(input).map(|input| compensate(ctx, input));
            Box::pin(async move { asked?.await })
        });
        let inner = self.tool.clone();
        self.tool = Arc::new(With { inner, probe: None, compensate: Some(compensate) });
        self
    }
}

type ProbeFn =
    Arc<dyn Fn(ToolCtx, Value) -> BoxFuture<'static, Result<Probe, ToolError>> + Send + Sync>;
type CompensateFn =
    Arc<dyn Fn(ToolCtx, Value) -> BoxFuture<'static, Result<(), ToolError>> + Send + Sync>;

struct Function<I, O, F> {
    call: Arc<F>,
    types: PhantomData<fn(I) -> O>,
}

impl<I, O, F, Fut> Tool for Function<I, O, F>
where
    I: DeserializeOwned + Send + 'static,
    O: Serialize + Send + 'static,
    F: Fn(ToolCtx, I) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<O, ToolError>> + Send + 'static,
{
    fn call(&self, ctx: ToolCtx, input: Value) -> BoxFuture<'static, Result<Value, ToolError>> {
        let call = self.call.clone();
        Box::pin(async move {
            let output = call(ctx, decode(input)?).await?;
            // It happened: an output that can not be written down must not make it look otherwise.
            encode(&output).map_err(|e| ToolError::Unknown(e.to_string()))
        })
    }
}

/// A tool with a probe or a compensation beside it.
struct With {
    inner: Arc<dyn Tool>,
    probe: Option<ProbeFn>,
    compensate: Option<CompensateFn>,
}

impl Tool for With {
    fn call(&self, ctx: ToolCtx, input: Value) -> BoxFuture<'static, Result<Value, ToolError>> {
        self.inner.call(ctx, input)
    }

    fn probe(&self, ctx: ToolCtx, input: Value) -> BoxFuture<'static, Result<Probe, ToolError>> {
        match &self.probe {
            Some(probe) => probe(ctx, input),
            None => self.inner.probe(ctx, input),
        }
    }

    fn compensate(&self, ctx: ToolCtx, input: Value) -> BoxFuture<'static, Result<(), ToolError>> {
        match &self.compensate {
            Some(compensate) => compensate(ctx, input),
            None => self.inner.compensate(ctx, input),
        }
    }

    fn class_of(&self, input: &Value) -> Option<Class> {
        self.inner.class_of(input)
    }
}

fn decode<I: DeserializeOwned>(input: Value) -> Result<I, ToolError> {
    serde_json::from_value(input)
        .map_err(|e| ToolError::Permanent(format!("the input does not fit the tool: {e}")))
}

fn encode<O: Serialize>(output: &O) -> Result<Value, ToolError> {
    serde_json::to_value(output)
        .map_err(|e| ToolError::Permanent(format!("the output cannot be written as JSON: {e}")))
}

/// Bytes of JSON that a result may have: an event holds it, and the largest value of a store holds the event.
pub const RESULT_BYTES_MAX: usize = BLOB_BYTES_MAX - 64 * 1024;

/// The result of a call, if it can be recorded. A call whose result is too large or nested too deeply has run all the same: an
/// idempotent one fails for good, and of another one nobody knows the result, so that nothing calls it again.
pub fn recordable(class: Class, result: Result<Value, ToolError>) -> Result<Value, ToolError> {
    let result = result?;
    let Some(why) = unrecordable(&result) else { return Ok(result) };
    let why = format!("the result of the tool cannot be recorded: {why}");
    Err(match class {
        Class::Idempotent => ToolError::Permanent(why),
        Class::Verifiable | Class::Compensatable | Class::Irreversible => ToolError::Unknown(why),
    })
}

/// Why a result cannot be recorded.
fn unrecordable(result: &Value) -> Option<String> {
    if let Err(e) = depth::check_input(result) {
        return Some(e.to_string());
    }
    let mut count = Count(0);
    // Values of JSON have names of text, so writing one can only be refused by the count.
    match serde_json::to_writer(&mut count, result) {
        Ok(()) => None,
        Err(_) => Some(format!(
            "it has more than {RESULT_BYTES_MAX} bytes of JSON (RESULT_BYTES_MAX); return a reference to the content"
        )),
    }
}

/// Counts what is written, up to the limit.
struct Count(usize);

impl io::Write for Count {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        match self.0 <= RESULT_BYTES_MAX {
            true => Ok(bytes.len()),
            false => Err(io::ErrorKind::FileTooLarge.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The answer of a probe, likewise.
pub fn recordable_probe(answer: Probe) -> Probe {
    match &answer {
        Probe::Happened(result) => match unrecordable(result) {
            None => answer,
            Some(why) => {
                Probe::Unclear(format!("the result that the probe found cannot be recorded: {why}"))
            }
        },
        Probe::NotHappened | Probe::Unclear(_) => answer,
    }
}

/// All tools of a process, by name.
#[derive(Clone, Default, Debug)]
pub struct Tools(BTreeMap<String, Arc<ToolSpec>>);

impl Tools {
    /// Adds a tool; a second one of the same name replaces the first.
    pub fn with(mut self, spec: ToolSpec) -> Self {
        self.0.insert(spec.name.clone(), Arc::new(spec));
        self
    }

    /// A tool by name.
    pub fn get(&self, name: &str) -> Option<&Arc<ToolSpec>> {
        self.0.get(name)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &ToolSpec> {
        self.0.values().map(AsRef::as_ref)
    }

    /// Their names, for an error.
    pub fn names(&self) -> String {
        self.0.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
    }
}
