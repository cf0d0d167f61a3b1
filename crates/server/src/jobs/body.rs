//! How bodies of requests about jobs are read: as everywhere, and with three things more. A body that is too
//! large names the limit and its setting; requests whose fields are all optional may come without a body;
//! and whatever a web page could send unasked is refused when it comes from another page.

use crate::{
    App, Caller, Problem,
    extract::{self, Body},
    problem::ApiCode,
    webhooks::SIGNATURE,
};
use axum::{
    body::Bytes,
    extract::{FromRequest, FromRequestParts, Path, Request},
    http::{HeaderMap, StatusCode, header, request::Parts},
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tenure_kernel::ids::EntityId;

/// The setting behind the largest body.
const SETTING: &str = "server.payload_bytes_max";

/// A JSON body.
pub(crate) struct Json<T>(pub T);

impl<T: DeserializeOwned> FromRequest<App> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let Body(value) = Body::from_request(request, app).await.map_err(|p| with_limit(p, app))?;
        Ok(Json(value))
    }
}

/// A JSON body, or none.
pub(crate) struct Maybe<T>(pub T);

impl<T: DeserializeOwned + Default> FromRequest<App> for Maybe<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        match request.headers().contains_key(header::CONTENT_TYPE) {
            true => extract::need_json(request.headers())?,
            false => from_this_site(request.headers())?,
        }
        let bytes = extract::raw(request, app).await.map_err(|p| with_limit(p, app))?;
        match bytes.is_empty() {
            true => Ok(Maybe(T::default())),
            false => extract::parse(&bytes).map(Maybe),
        }
    }
}

/// Whatever somebody else's program sends: JSON as it is, other text as a string, nothing as `null`.
pub(crate) struct Foreign {
    /// What it means.
    pub(crate) payload: Value,
    /// As it came.
    pub(crate) bytes: Bytes,
    /// The header with which its sender proves that it is from them.
    pub(crate) signature: Option<String>,
    /// Who sends it, by their key.
    pub(crate) caller: Result<Caller, Problem>,
}

impl FromRequest<App> for Foreign {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        from_this_site(request.headers())?;
        let (mut parts, body) = request.into_parts();
        let caller = Caller::from_request_parts(&mut parts, app).await;
        let request = Request::from_parts(parts, body);
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok());
        let json = kind.is_some_and(|k| k.to_ascii_lowercase().contains("json"));
        let signature = request.headers().get(SIGNATURE).and_then(|v| v.to_str().ok());
        let signature = signature.map(str::to_owned);
        // The body of somebody unknown is read only if it may be signed.
        if signature.is_none() || !app.options().webhooks.any() {
            caller.as_ref().map_err(Problem::clone)?;
        }
        let bytes = extract::raw(request, app).await.map_err(|p| with_limit(p, app))?;
        let payload = match bytes.is_empty() {
            true => Value::Null,
            false => meaning(&bytes, json)?,
        };
        Ok(Foreign { payload, bytes, signature, caller })
    }
}

fn meaning(bytes: &[u8], json: bool) -> Result<Value, Problem> {
    if json {
        return extract::parse(bytes);
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(Value::String(text.to_owned())),
        Err(e) => Err(Problem::bad_field("body", format!("the body is not text: {e}"))
            .fix("send JSON or UTF-8 text")),
    }
}

/// Browsers send requests of these forms without asking first, and they say from which page. Programs do not.
fn from_this_site(headers: &HeaderMap) -> Result<(), Problem> {
    let text = |name| headers.get(name).and_then(|v| v.to_str().ok());
    let Some(origin) = text(header::ORIGIN) else { return Ok(()) };
    let site = origin.split_once("://").map_or(origin, |(_, site)| site);
    if text(header::HOST) == Some(site) {
        return Ok(());
    }
    let detail = format!("a page of {origin} may not send this");
    Err(Problem::new(StatusCode::FORBIDDEN, ApiCode::Forbidden, detail)
        .field("Origin")
        .fix("send it from a program, or with the content type application/json"))
}

fn with_limit(problem: Problem, app: &App) -> Problem {
    if problem.code() != ApiCode::PayloadTooLarge {
        return problem;
    }
    let max = app.options().payload_bytes_max;
    let detail = format!("the body is larger than {max} bytes, which is {SETTING} of this server");
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, ApiCode::PayloadTooLarge, detail)
        .field("body")
        .with("limit", max)
        .with("setting", SETTING)
        .fix(format!("send less, or a reference to it; or raise {SETTING} at the server"))
}

/// A job and one more part of the path.
pub(crate) struct JobAnd(pub EntityId, pub String);

impl FromRequestParts<App> for JobAnd {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let bad = |detail: String| {
            Problem::new(StatusCode::BAD_REQUEST, ApiCode::BadField, detail)
                .field("id")
                .fix("use the id exactly as this API gave it")
        };
        let read = Path::<(String, String)>::from_request_parts(parts, app).await;
        let Path((id, rest)) = read.map_err(|e| bad(e.body_text()))?;
        let id = id.parse().map_err(|e| bad(format!("{id:?} can not be read: {e}")))?;
        Ok(JobAnd(id, rest))
    }
}

/// A field that has to be there.
pub(crate) fn required<T>(field: &'static str, value: Option<T>) -> Result<T, Problem> {
    value.ok_or_else(|| {
        Problem::bad_field(field, format!("the field {field} is missing"))
            .fix("see /v1/openapi.json for the form")
    })
}
