//! `llm`: one question to a model, over the chat-completions protocol that nearly every server speaks.
//!
//! A model has no effect but its answer, and its cost. So an answer of unknown fate is asked for again
//! (`idempotent`), and the first one that is recorded is *the* answer: replay never asks twice. Result and request are
//! recorded whole, because what a model was asked and what it said is what people want to see afterwards.
//!
//! The address is the operator's and not an argument: the key goes where it points. Who asks for an agent may name
//! another ([`Endpoint`]), which gets the secret that is named with it, and never the operator's key.
//!
//! With `stream: true` the text shows while it comes. The result is the same as without; a stream that
//! breaks is no half answer but `Unknown`.

mod answer;
mod assembly;
pub mod message;
mod sse;

pub use answer::retry_after;

use crate::{
    egress::Egress,
    http::KEY_HEADER,
    secrets::{Redactor, Secrets},
    tenants::Tenants,
    wire::{self, Flight},
};
use answer::{refusal, streamed, understand, whole};
use reqwest::{
    Client, Request,
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::{fmt, time::Duration};
use tenure_kernel::address::Address;
use tenure_steps::tool::{ToolCtx, ToolError, ToolSpec};
use tokio::time::Instant;

/// How long an answer may take, unless step or configuration say otherwise.
pub const TIMEOUT: Duration = Duration::from_secs(120);
/// Tries after the first: rate limits are the rule with models.
pub const RETRY_MAX: u32 = 5;
/// Before the first of them.
pub const BACKOFF: Duration = Duration::from_secs(1);
/// A larger answer is refused: half an answer is none.
pub const RESPONSE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Where the model is.
#[derive(Clone)]
pub struct LlmOptions {
    /// Up to, and without, `/chat/completions`.
    pub base_url: String,
    /// The environment variable that holds the key; none for servers that want none.
    pub api_key_env: Option<String>,
    /// Asked unless the arguments name another.
    pub model: Option<String>,
    /// Whether `HTTP_PROXY` and its relatives are used for `base_url`.
    pub system_proxy: bool,
    /// Tenants that may ask this model with this key.
    pub tenants: Tenants,
    /// Where the requests of agents that name a model server of their own may go.
    pub egress: Egress,
}

impl fmt::Debug for LlmOptions {
    /// Without the secrets of the address.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LlmOptions")
            .field("base_url", &Address::from(&self.base_url))
            .field("model", &self.model)
            .field("tenants", &self.tenants)
            .field("egress", &self.egress)
            .finish_non_exhaustive()
    }
}

impl Default for LlmOptions {
    fn default() -> Self {
        LlmOptions {
            base_url: "https://api.openai.com/v1".into(),
            api_key_env: Some("OPENAI_API_KEY".into()),
            model: None,
            system_proxy: true,
            tenants: Tenants::default(),
            egress: Egress::default(),
        }
    }
}

/// A question.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct LlmInput {
    /// The conversation so far.
    pub messages: Vec<Value>,
    /// Which model; the configured one unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// How daring.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// How long at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// What the model may call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<Value>>,
    /// In which form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_format: Option<Value>,
    /// Where to end: a text or several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<Value>,
    /// Whether to show the text while it comes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stream: bool,
    /// Whatever else the server understands, as it is.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// An answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LlmOutput {
    /// Its text, if it has one. Of a content in parts, the texts.
    pub content: Option<String>,
    /// Why the model declines to answer, where it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    /// What the model wants called, in the form in which it may be sent back.
    pub tool_calls: Vec<Value>,
    /// Who answered: the server's word, which may be more exact than what was asked for.
    pub model: String,
    /// Why it ended: `stop`, `tool_calls`; `length` where the text was cut, `content_filter` where it was held back, …
    pub finish_reason: Option<String>,
    /// What it cost, if the server says so.
    pub usage: Option<Usage>,
    /// The answer as it came; a stream put together.
    pub response: Value,
    /// What was sent, without the key.
    pub request: Value,
    /// How long it took.
    pub latency_ms: u64,
}

/// Tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Usage {
    /// Of the question.
    pub prompt_tokens: u64,
    /// Of the answer.
    pub completion_tokens: u64,
    /// Of both.
    pub total_tokens: u64,
}

/// The tool `llm`.
pub fn llm(options: LlmOptions, secrets: Secrets) -> ToolSpec {
    let llm = std::sync::Arc::new(Llm::new(options, secrets));
    ToolSpec::new("llm", move |ctx: ToolCtx, input: LlmInput| {
        let llm = llm.clone();
        async move { llm.ask(&ctx, &input, None).await }
    })
    .doc("Asks a model over the chat-completions protocol; request and answer are recorded.")
    .idempotent()
    .timeout(TIMEOUT)
    .retries(RETRY_MAX, BACKOFF)
}

/// Another server than the operator's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// See [`LlmOptions::base_url`].
    pub base_url: String,
    /// The secret that is sent as the key; arguments may name it.
    pub secret: Option<String>,
}

/// Asks models.
pub struct Llm {
    /// For the operator's server.
    client: Result<Client, ToolError>,
    /// For servers that agents name.
    tenant_client: Result<Client, ToolError>,
    options: LlmOptions,
    secrets: Secrets,
}

impl Llm {
    /// One that asks the operator's server, unless told otherwise.
    pub fn new(options: LlmOptions, secrets: Secrets) -> Self {
        let client = wire::operator_client(options.system_proxy);
        let tenant_client = wire::tenant_client(&options.egress);
        Llm { client, tenant_client, options, secrets }
    }

    /// One question.
    pub async fn ask(
        &self,
        ctx: &ToolCtx,
        input: &LlmInput,
        elsewhere: Option<&Endpoint>,
    ) -> Result<LlmOutput, ToolError> {
        if elsewhere.is_none() && !self.options.tenants.contain(&ctx.tenant) {
            return Err(ToolError::Permanent(format!(
                "tenant {:?} may not use the operator's model; the operator can allow it with the setting llm.tenants",
                ctx.tenant
            )));
        }
        let body = self.body(input)?;
        let mut redactor = Redactor::default();
        let request = self.request(ctx, &body, &mut redactor, elsewhere)?;
        let client = if elsewhere.is_none() { &self.client } else { &self.tenant_client };
        let client = client.as_ref().map_err(Clone::clone)?;
        let begun = Instant::now();
        let what = format!("POST {}", wire::shown(request.url()));
        let mut flight = Flight::new(ctx, what.clone());
        if elsewhere.is_some() {
            flight = flight.guarded(&self.options.egress);
        }
        ctx.progress(format!("asking {}", body["model"].as_str().unwrap_or_default()));
        let response = flight.send(client, request).await?;
        let status = response.status().as_u16();
        let answer = if status != 200 {
            return Err(refusal(&what, &flight, response, &redactor).await);
        } else if input.stream {
            streamed(ctx, &what, &flight, response, &redactor).await?
        } else {
            whole(&what, &flight, response, &redactor).await?
        };
        let latency_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        understand(&what, body, answer, latency_ms)
    }

    /// What is sent.
    fn body(&self, input: &LlmInput) -> Result<Value, ToolError> {
        if input.messages.is_empty() {
            return Err(ToolError::permanent("there are no messages to answer"));
        }
        let model = input.model.as_ref().or(self.options.model.as_ref()).ok_or_else(|| {
            ToolError::permanent("no model: neither the arguments nor the configuration name one")
        })?;
        let mut body = serde_json::to_value(input)
            .map_err(|e| ToolError::Permanent(format!("the question is no JSON: {e}")))?;
        body["model"] = model.as_str().into();
        if input.stream && body.get("stream_options").is_none() {
            // Otherwise a stream does not say what it cost.
            body["stream_options"] = json!({"include_usage": true});
        }
        Ok(body)
    }

    fn request(
        &self,
        ctx: &ToolCtx,
        body: &Value,
        redactor: &mut Redactor,
        elsewhere: Option<&Endpoint>,
    ) -> Result<Request, ToolError> {
        let wrong = |why: &dyn std::fmt::Display| {
            ToolError::Permanent(format!("the model server's address can not be used: {why}"))
        };
        let base_url = elsewhere.map_or(&self.options.base_url, |e| &e.base_url);
        let address = format!("{}/chat/completions", base_url.trim_end_matches('/'));
        let url = reqwest::Url::parse(&address).map_err(|e| wrong(&e))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(wrong(&"it is neither http nor https"));
        }
        let mut request = Request::new(reqwest::Method::POST, url);
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let key = HeaderValue::from_str(&ctx.key)
            .map_err(|_| ToolError::permanent("the idempotency key can not stand in a header"))?;
        headers.insert(KEY_HEADER, key);
        let key = match elsewhere {
            None => self.options.api_key_env.as_ref().map(|n| (n, self.secrets.configured(n))),
            Some(there) => there.secret.as_ref().map(|n| (n, self.secrets.named(&ctx.tenant, n))),
        };
        if let Some((name, secret)) = key {
            let secret = secret?;
            redactor.hide(&secret, name);
            let mut value = HeaderValue::from_str(&format!("Bearer {secret}")).map_err(|_| {
                ToolError::Permanent(format!("the key in {name} can not stand in a header"))
            })?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        *request.body_mut() = Some(body.to_string().into());
        Ok(request)
    }
}
