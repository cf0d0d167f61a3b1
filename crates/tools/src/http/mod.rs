//! `http`: one request.
//!
//! Every request carries `Idempotency-Key`, `Tenure-Attempt` and `Tenure-Not-After`, so that a target can
//! recognise a repetition, refuse a lost worker, and refuse what comes too late. We can not know
//! whether it does; that is why a POST is `irreversible` unless the step says otherwise. PUT and DELETE are idempotent
//! by the standard, but only if nobody else writes in between: a PUT that is repeated an hour later undoes what
//! happened since. They, too, need the step's word.
//!
//! What an answer means is in `verdict`; what its absence means, in `wire`.

mod model;
mod request;
mod verdict;

pub use model::{Body, HttpInput, HttpOutput, Method, Scalar, Statuses};
pub use request::{ATTEMPT_HEADER, KEY_HEADER, NOT_AFTER_HEADER};

use crate::{
    egress::Egress,
    secrets::{Redactor, Secrets},
    standing::standing,
    text::{self, Encoding},
    wire::{self, Flight},
};
use request::Outgoing;
use reqwest::{
    Client, Response,
    header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER},
};
use serde_json::Value;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tenure_kernel::{depth, runtime::BoxFuture};
use tenure_steps::tool::{Class, Tool, ToolCtx, ToolError, ToolSpec};
use verdict::{Verdict, judge};

/// Larger answers are cut, unless the options say otherwise. An answer becomes part of a job's history, which is
/// bounded; what is larger belongs into a file.
pub const RESPONSE_BYTES_MAX: usize = 1024 * 1024;
/// A request is not sent around more often than this.
pub const REDIRECTS_MAX: usize = 10;
/// How long a call may take, unless step or configuration say otherwise.
pub const TIMEOUT: Duration = Duration::from_secs(30);
/// How much of an answer an error shows.
const EXCERPT_CHARS_MAX: usize = 500;

/// What the operator decides.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// See [`RESPONSE_BYTES_MAX`].
    pub response_bytes_max: usize,
    /// Where requests may go.
    pub egress: Egress,
}

impl Default for HttpOptions {
    fn default() -> Self {
        HttpOptions { response_bytes_max: RESPONSE_BYTES_MAX, egress: Egress::default() }
    }
}

/// The tool `http`.
pub fn http(options: HttpOptions, secrets: Secrets) -> ToolSpec {
    let client = wire::tenant_client(&options.egress);
    let mut spec = ToolSpec::of("http", Arc::new(Http { client, options, secrets }))
        .doc("One HTTP request; GET, HEAD and OPTIONS may be repeated, the others only if the step says so.")
        .irreversible()
        .timeout(TIMEOUT);
    spec.input_schema = Some(schemars::schema_for!(HttpInput).to_value());
    spec.output_schema = Some(schemars::schema_for!(HttpOutput).to_value());
    spec
}

#[derive(Clone)]
struct Http {
    /// An error is told to every call: a worker without TLS roots, say, still runs other tools.
    client: Result<Client, ToolError>,
    options: HttpOptions,
    secrets: Secrets,
}

impl Tool for Http {
    fn call(&self, ctx: ToolCtx, input: Value) -> BoxFuture<'static, Result<Value, ToolError>> {
        let http = self.clone();
        Box::pin(async move {
            let input: HttpInput = serde_json::from_value(input).map_err(|e| {
                ToolError::Permanent(format!("the input does not fit the tool: {e}"))
            })?;
            let output =
                http.run(&ctx, &input).await.map_err(|e| match input.method.is_safe() {
                    true => e,
                    false => standing(&ctx, e),
                })?;
            // It happened: an output that can not be written down must not make it look otherwise.
            serde_json::to_value(output).map_err(ToolError::unknown)
        })
    }

    fn class_of(&self, input: &Value) -> Option<Class> {
        let method = match input.get("method") {
            None => Method::default(),
            // What is no method is refused before anything is sent.
            Some(method) => serde_json::from_value(method.clone()).ok()?,
        };
        Some(if method.is_safe() { Class::Idempotent } else { Class::Irreversible })
    }
}

impl Http {
    async fn run(&self, ctx: &ToolCtx, input: &HttpInput) -> Result<HttpOutput, ToolError> {
        let mut redactor = Redactor::default();
        let mut out = Outgoing::new(ctx, input, &self.secrets, &mut redactor)?;
        let client = self.client.as_ref().map_err(Clone::clone)?;
        let what = out.what();
        let flight = Flight::new(ctx, what.clone()).guarded(&self.options.egress);
        ctx.progress(format!("{what}: connecting"));
        let mut response = flight.send(client, out.request()).await?;
        let mut redirects = 0;
        while redirects < REDIRECTS_MAX
            && out.redirect(response.status().as_u16(), response.headers())
        {
            redirects += 1;
            ctx.progress(format!("redirected to {}", wire::shown(&out.url)));
            response = flight.send(client, out.request()).await?;
        }
        ctx.progress(format!("{what}: answered {}", response.status()));
        let expected = input.expect_status.as_ref().map(Statuses::as_slice).unwrap_or_default();
        match judge(response.status().as_u16(), input.method.is_safe(), expected) {
            Verdict::Result => self.output(&flight, response, &redactor).await,
            failed => {
                let why = complaint(&what, &flight, response, &redactor).await;
                Err(match failed {
                    Verdict::Retryable => ToolError::Retryable(why),
                    Verdict::Permanent => ToolError::Permanent(why),
                    Verdict::Unknown | Verdict::Result => ToolError::Unknown(why),
                })
            }
        }
    }

    async fn output(
        &self,
        flight: &Flight<'_>,
        mut response: Response,
        redactor: &Redactor,
    ) -> Result<HttpOutput, ToolError> {
        let (bytes, truncated) =
            flight.body(&mut response, self.options.response_bytes_max).await?;
        let (text, mut body_encoding) = text::text_or_base64(&bytes, truncated);
        let text = redactor.clean(&text);
        let mut body = None;
        if body_encoding == Encoding::Text && !truncated && says_json(response.headers()) {
            // JSON that is nested too deeply to be recorded stays text.
            body = depth::read_input(text.as_bytes()).ok();
            if body.is_some() {
                body_encoding = Encoding::Json;
            }
        }
        Ok(HttpOutput {
            status: response.status().as_u16(),
            headers: headers(response.headers(), redactor),
            body: body.unwrap_or(Value::String(text)),
            body_encoding,
            truncated,
        })
    }
}

/// What an answer that is no result says. The status has decided already: a body that breaks off changes
/// nothing.
async fn complaint(
    what: &str,
    flight: &Flight<'_>,
    mut response: Response,
    redactor: &Redactor,
) -> String {
    let mut said = format!("{what} answered {}", response.status());
    for name in [RETRY_AFTER, reqwest::header::LOCATION] {
        if let Some(value) = response.headers().get(&name).and_then(|v| v.to_str().ok()) {
            said = format!("{said}, {name}: {value}");
        }
    }
    if let Ok((bytes, _)) = flight.body(&mut response, EXCERPT_CHARS_MAX * 4).await
        && !bytes.is_empty()
    {
        said = format!("{said}: {}", String::from_utf8_lossy(&bytes));
    }
    // First the secrets, then the cut: half a secret would not be recognised.
    text::excerpt(&redactor.clean(&said), EXCERPT_CHARS_MAX)
}

fn says_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind == "application/json" || kind == "text/json" || kind.ends_with("+json")
}

fn headers(headers: &HeaderMap, redactor: &Redactor) -> BTreeMap<String, String> {
    let mut joined = BTreeMap::<String, String>::new();
    for (name, value) in headers {
        let value = redactor.clean(&String::from_utf8_lossy(value.as_bytes()));
        joined
            .entry(name.as_str().to_owned())
            .and_modify(|all| *all = format!("{all}, {value}"))
            .or_insert(value);
    }
    joined
}
