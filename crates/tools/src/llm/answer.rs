//! Reading an answer: in one piece, in many, or one that is none.

use super::{LlmOutput, RESPONSE_BYTES_MAX, assembly::Assembly, message, sse::Events};
use crate::{secrets::Redactor, text, wire::Flight};
use reqwest::{
    Response,
    header::{CONTENT_TYPE, RETRY_AFTER},
};
use serde_json::Value;
use std::time::Duration;
use tenure_kernel::depth;
use tenure_steps::tool::{ToolCtx, ToolError};

/// How much of an answer an error shows.
const EXCERPT_CHARS_MAX: usize = 500;
/// How much of the text shows while it comes.
const PROGRESS_CHARS_MAX: usize = 160;

/// An answer in one piece.
pub(super) async fn whole(
    what: &str,
    flight: &Flight<'_>,
    mut response: Response,
    redactor: &Redactor,
) -> Result<Value, ToolError> {
    let (bytes, truncated) = flight.body(&mut response, RESPONSE_BYTES_MAX).await?;
    if truncated {
        return Err(too_large(what));
    }
    let said = redactor.clean(&String::from_utf8_lossy(&bytes));
    depth::read_input(said.as_bytes()).map_err(|e| {
        let said = text::excerpt(&said, EXCERPT_CHARS_MAX);
        ToolError::Retryable(format!(
            "{what} answered something that cannot be read as JSON ({e}): {said}"
        ))
    })
}

/// An answer in pieces.
pub(super) async fn streamed(
    ctx: &ToolCtx,
    what: &str,
    flight: &Flight<'_>,
    mut response: Response,
    redactor: &Redactor,
) -> Result<Value, ToolError> {
    let is_stream = response
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    if !is_stream {
        // Servers that can not stream answer in one piece.
        return whole(what, flight, response, redactor).await;
    }
    let (mut events, mut answer, mut bytes) = (Events::default(), Assembly::default(), 0);
    while let Some(piece) = flight.chunk(&mut response).await? {
        bytes += piece.len();
        if bytes > RESPONSE_BYTES_MAX {
            return Err(too_large(what));
        }
        for event in events.take_in(&piece) {
            if event == "[DONE]" {
                return Ok(answer.into_response());
            }
            let chunk: Value =
                depth::read_input(redactor.clean(&event).as_bytes()).map_err(|e| {
                    ToolError::Unknown(format!(
                        "{what} sent a piece that cannot be read as JSON: {e}"
                    ))
                })?;
            if chunk.get("error").is_some_and(|e| !e.is_null()) {
                // After the fact: the status was 200. Told like any other refusal.
                return Ok(chunk);
            }
            answer.take_in(chunk);
            ctx.progress(text::tail(answer.content(), PROGRESS_CHARS_MAX));
        }
    }
    if answer.is_complete() {
        return Ok(answer.into_response());
    }
    Err(ToolError::Unknown(format!("{what}: the stream ended before the answer did")))
}

/// Reads a raw answer.
pub(super) fn understand(
    what: &str,
    request: Value,
    response: Value,
    latency_ms: u64,
) -> Result<LlmOutput, ToolError> {
    if let Some(error) = response.get("error").filter(|e| !e.is_null()) {
        // Gateways answer 200 and put the status of whoever they asked into the body.
        let status = error["code"].as_u64().and_then(|c| u16::try_from(c).ok()).unwrap_or(502);
        let said = text::excerpt(&error.to_string(), EXCERPT_CHARS_MAX);
        return Err(refused(status, error, format!("{what} answered with an error: {said}")));
    }
    let Some(said) = response.pointer("/choices/0/message").filter(|m| m.is_object()) else {
        let said = text::excerpt(&response.to_string(), EXCERPT_CHARS_MAX);
        return Err(ToolError::Retryable(format!("{what} answered no chat completion: {said}")));
    };
    let words = |value: &Value| value.as_str().map(str::to_owned);
    Ok(LlmOutput {
        content: message::text(said),
        refusal: message::refusal(said),
        tool_calls: message::tool_calls(said),
        model: words(&response["model"]).or_else(|| words(&request["model"])).unwrap_or_default(),
        finish_reason: words(&response["choices"][0]["finish_reason"]),
        usage: serde_json::from_value(response["usage"].clone()).ok(),
        response,
        request,
        latency_ms,
    })
}

/// Stands before the seconds of a `Retry-After` in the words about a refusal.
const RETRY_AFTER_SAID: &str = ", retry-after: ";

/// The longest that a `Retry-After` is believed. An endpoint may say any number, and a moment that far away cannot be computed.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 3_600);

/// How long the endpoint that refused asks us to wait, as its message says, at most `RETRY_AFTER_MAX`. Seconds only: dates are of
/// no use to somebody whose clock is not theirs.
pub fn retry_after(why: &str) -> Option<Duration> {
    let (_, after) = why.split_once(RETRY_AFTER_SAID)?;
    let digits = after.bytes().take_while(u8::is_ascii_digit).count();
    let whole = after[digits..].is_empty() || after[digits..].starts_with(':');
    let seconds: u64 = after[..digits].parse().ok().filter(|_| whole)?;
    Some(Duration::from_secs(seconds).min(RETRY_AFTER_MAX))
}

/// An answer that is none.
pub(super) async fn refusal(
    what: &str,
    flight: &Flight<'_>,
    mut response: Response,
    redactor: &Redactor,
) -> ToolError {
    let status = response.status();
    let mut why = format!("{what} answered {status}");
    if let Some(after) = response.headers().get(RETRY_AFTER).and_then(|v| v.to_str().ok()) {
        why = format!("{why}{RETRY_AFTER_SAID}{after}");
    }
    // The status has decided: a body that breaks off changes nothing.
    let (bytes, _) = flight.body(&mut response, EXCERPT_CHARS_MAX * 4).await.unwrap_or_default();
    let said = redactor.clean(&String::from_utf8_lossy(&bytes));
    if !said.is_empty() {
        why = format!("{why}: {}", text::excerpt(&said, EXCERPT_CHARS_MAX));
    }
    let body: Value = serde_json::from_str(&said).unwrap_or_default();
    refused(status.as_u16(), &body["error"], why)
}

/// Asking a model changes nothing, so a refusal is never unknown; the question is whether to ask again.
fn refused(status: u16, error: &Value, why: String) -> ToolError {
    // A 429 that no waiting helps against: the account is empty.
    let spent = ["code", "type"].iter().any(|f| error[*f] == "insufficient_quota");
    match status {
        408 | 409 | 425 | 429 | 500.. if !spent && status != 501 => ToolError::Retryable(why),
        _ => ToolError::Permanent(why),
    }
}

fn too_large(what: &str) -> ToolError {
    ToolError::Permanent(format!("{what} answered more than {RESPONSE_BYTES_MAX} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_that_is_asked_for_has_a_limit() {
        let said =
            |after: &str| retry_after(&format!("m answered 429{RETRY_AFTER_SAID}{after}: later"));
        assert_eq!(said("7"), Some(Duration::from_secs(7)));
        assert_eq!(said("86400"), Some(RETRY_AFTER_MAX));
        assert_eq!(said("86401"), Some(RETRY_AFTER_MAX));
        assert_eq!(said(&u64::MAX.to_string()), Some(RETRY_AFTER_MAX));
        assert_eq!(said("99999999999999999999"), None, "no number that anybody means");
        assert_eq!(said("soon"), None);
    }
}
