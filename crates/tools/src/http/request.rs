//! From arguments to a request, and from there to where it is redirected.

use super::{Body, HttpInput, Method};
use crate::{
    secrets::{Redactor, Secrets},
    wire,
};
use reqwest::{
    Request, Url,
    header::{AUTHORIZATION, CONTENT_TYPE, COOKIE, HeaderMap, HeaderName, HeaderValue, LOCATION},
};
use tenure_steps::tool::{ToolCtx, ToolError};

/// The key under which the target may recognise a repeated request.
pub const KEY_HEADER: HeaderName = HeaderName::from_static("idempotency-key");
/// The job's attempt: a target that remembers the largest can refuse those of lost workers.
pub const ATTEMPT_HEADER: HeaderName = HeaderName::from_static("tenure-attempt");
/// After this time the request should have no effect any more (RFC 3339).
pub const NOT_AFTER_HEADER: HeaderName = HeaderName::from_static("tenure-not-after");

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const PROXY_AUTHORIZATION: HeaderName = HeaderName::from_static("proxy-authorization");

/// Headers that only we set: the first three are the contract with the target, the others would let
/// arguments smuggle a second request into the first.
const RESERVED: [&str; 6] = [
    "idempotency-key",
    "tenure-attempt",
    "tenure-not-after",
    "content-length",
    "transfer-encoding",
    "connection",
];

/// What is sent, kept in parts so that a redirect can be made from it.
pub(crate) struct Outgoing {
    pub(crate) method: Method,
    pub(crate) url: Url,
    headers: HeaderMap,
    /// Headers that must not reach another origin.
    private: Vec<HeaderName>,
    body: Option<Vec<u8>>,
}

impl Outgoing {
    /// Checks the arguments and looks up secrets. Every error is one of the arguments.
    pub(crate) fn new(
        ctx: &ToolCtx,
        input: &HttpInput,
        secrets: &Secrets,
        redactor: &mut Redactor,
    ) -> Result<Self, ToolError> {
        let mut out = Outgoing {
            method: input.method,
            url: address(input)?,
            headers: HeaderMap::new(),
            private: vec![KEY_HEADER, ATTEMPT_HEADER, NOT_AFTER_HEADER],
            body: None,
        };
        for (name, value) in &input.headers {
            let secret = value.is_secret();
            let value = value.resolve(secrets, &ctx.tenant, redactor)?;
            out.header(name, &value, secret, redactor)?;
        }
        out.headers.insert(KEY_HEADER, plain(&ctx.key)?);
        out.headers.insert(ATTEMPT_HEADER, HeaderValue::from(ctx.epoch));
        out.headers.insert(NOT_AFTER_HEADER, plain(&ctx.not_after.to_string())?);
        if let Some(password) = out.url.password() {
            redactor.hide(password, "in the address");
        }
        out.fill(input)?;
        Ok(out)
    }

    fn header(
        &mut self,
        name: &str,
        value: &str,
        secret: bool,
        redactor: &mut Redactor,
    ) -> Result<(), ToolError> {
        let wrong = |why: &str| ToolError::Permanent(format!("the header {name:?} {why}"));
        let name: HeaderName =
            name.parse().map_err(|_| wrong("has a name that no header can have"))?;
        if RESERVED.contains(&name.as_str()) {
            return Err(wrong("is set by Tenure and can not be given"));
        }
        // The value is not part of the error: it may be a secret.
        let mut sent = HeaderValue::from_str(value)
            .map_err(|_| wrong("has a value with characters that no header can have"))?;
        if secret || [AUTHORIZATION, COOKIE, API_KEY, PROXY_AUTHORIZATION].contains(&name) {
            sent.set_sensitive(true);
            redactor.hide(value, name.as_str());
            // A server that echoes `Bearer X` may echo X alone as well.
            if let Some((_, credentials)) = value.split_once(' ') {
                redactor.hide(credentials, name.as_str());
            }
            self.private.push(name.clone());
        }
        self.headers.insert(name, sent);
        Ok(())
    }

    fn fill(&mut self, input: &HttpInput) -> Result<(), ToolError> {
        let (body, kind) = match &input.body {
            None => return Ok(()),
            Some(Body(serde_json::Value::String(text))) => {
                (text.clone().into_bytes(), "text/plain; charset=utf-8")
            }
            Some(Body(value)) => (value.to_string().into_bytes(), "application/json"),
        };
        self.headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static(kind));
        self.body = Some(body);
        Ok(())
    }

    /// To be sent now.
    pub(crate) fn request(&self) -> Request {
        let mut request = Request::new(self.method.as_reqwest(), self.url.clone());
        *request.headers_mut() = self.headers.clone();
        *request.body_mut() = self.body.clone().map(Into::into);
        request
    }

    /// For errors.
    pub(crate) fn what(&self) -> String {
        format!("{} {}", self.method.as_str(), wire::shown(&self.url))
    }

    /// Moves on to where an answer points, if this request may follow it: only what asks for nothing to be
    /// changed is repeated elsewhere. The key and everything secret stay with the origin they were meant for, and
    /// do not come back when the way does: whoever sent us around has seen where we go.
    pub(crate) fn redirect(&mut self, status: u16, headers: &HeaderMap) -> bool {
        if !matches!(self.method, Method::Get | Method::Head)
            || !matches!(status, 301 | 302 | 303 | 307 | 308)
        {
            return false;
        }
        let target = headers.get(LOCATION).and_then(|to| to.to_str().ok());
        let Some(target) = target.and_then(|to| self.url.join(to).ok()) else {
            return false;
        };
        if !matches!(target.scheme(), "http" | "https") || !target.has_host() {
            return false;
        }
        if target.origin() != self.url.origin() {
            for name in self.private.drain(..) {
                self.headers.remove(name);
            }
        }
        self.url = target;
        true
    }
}

fn address(input: &HttpInput) -> Result<Url, ToolError> {
    let wrong = |why: &str| ToolError::Permanent(format!("the address can not be used: {why}"));
    let mut url: Url = input.url.parse().map_err(|e: <Url as std::str::FromStr>::Err| {
        // Without the address itself: it may hold a password.
        wrong(&e.to_string())
    })?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(wrong(&format!("its scheme is {:?}, not http or https", url.scheme())));
    }
    if !input.query.is_empty() {
        let mut pairs = url.query_pairs_mut();
        for (name, value) in &input.query {
            pairs.append_pair(name, &value.to_string());
        }
    }
    Ok(url)
}

fn plain(value: &str) -> Result<HeaderValue, ToolError> {
    HeaderValue::from_str(value)
        .map_err(|_| ToolError::permanent(format!("{value:?} can not stand in a header")))
}
