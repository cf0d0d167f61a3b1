//! The pages behind `type` of a problem. The kernel's codes have theirs in `docs/errors/`, which are built
//! into the program, so that the address in an error leads somewhere wherever the server runs.

use crate::{App, Caller, Problem, extract::Named, problem::ApiCode};
use axum::{http::header, response::IntoResponse};
use std::convert::Infallible;
use utoipa_axum::{router::OpenApiRouter, routes};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(page))
}

macro_rules! kernel_pages {
    ($($code:literal),* $(,)?) => {
        &[$(($code, include_str!(concat!("../../../docs/errors/", $code, ".md")))),*]
    };
}

/// The kernel's pages. A test says which is missing.
const KERNEL: &[(&str, &str)] = kernel_pages![
    "bad_config",
    "bad_schema",
    "corrupt",
    "data_directory_in_use",
    "disk_full",
    "feed_lost",
    "indeterminate",
    "limit_passed",
    "newer_schema",
    "not_found",
    "quota_bytes",
    "quota_open",
    "quota_rate",
    "read_only",
    "refused",
    "stale_attempt",
    "store_unavailable",
    "version_conflict",
];

/// What happened, and what to do, for the codes of requests.
const fn about(code: ApiCode) -> (&'static str, &'static str) {
    match code {
        ApiCode::BadField => (
            "A value of the request was understood and can not be used; `field` names it.",
            "Change it as `fix` says. Nothing was carried out.",
        ),
        ApiCode::BadJson => (
            "The body is not JSON (400), or not of the form that this path takes (422). `field`, `line` and `column` say where reading stopped.",
            "Compare the body with the path's schema in `/v1/openapi.json`. Nothing was carried out.",
        ),
        ApiCode::BadSignature => (
            "A webhook has no signature and needs one, or its signature does not fit: it was made for another job, key or body, with another secret, or too long ago.",
            "Sign the lines SECONDS, JOB, KEY and BODY by HMAC-SHA256 with the secret of the job's tenant and send `Tenure-Signature: t=SECONDS,v1=HEX`; docs/security.md has an example. Nothing was carried out.",
        ),
        ApiCode::Blocked => (
            "An operator has blocked the flow or the tenant; `detail` says since when and why. Nothing was submitted.",
            "Ask the operator of the server. `tenure block list` shows all blocks to an administrator, `tenure block remove` ends one.",
        ),
        ApiCode::Forbidden => (
            "The key is valid and does not allow this; or a request without a key did not name this machine in its Host header.",
            "Use a key with the scope that `detail` names; or call `127.0.0.1` or `localhost`.",
        ),
        ApiCode::MethodNotAllowed => (
            "The path exists and takes other methods.",
            "The `Allow` header of the answer says which.",
        ),
        ApiCode::NoRoute => (
            "There is nothing at this path.",
            "`/v1/openapi.json` lists all paths. Behind a proxy, check that it does not cut a prefix.",
        ),
        ApiCode::PayloadTooLarge => (
            "The body is larger than this server takes at this path.",
            "Put large content into blobs and name them, or send less at once. `setting` of the problem, where there is one, is the setting to raise: `server.payload_bytes_max` in general.",
        ),
        ApiCode::SessionEnded => (
            "The session of a worker was ended, or was not renewed within its lease. What it held is taken from it.",
            "Stop the tools that ran for it, open a new session, and hold nothing from the old one. What those tools still return is sent all the same: it is kept as evidence.",
        ),
        ApiCode::Unauthenticated => (
            "The server is reachable from outside and no key was sent, or the key is unknown, mistyped, expired or revoked; or it ended while the request was under way.",
            "Send `Authorization: Bearer tnr_…`; `tenure key create` makes a key and shows it once.",
        ),
        ApiCode::TooManyFailures => (
            "Too many keys, or sessions of the console, that came from this address were not valid (`server.failed_sign_ins_per_minute`). Keys that were valid a moment ago are still taken from it.",
            "Wait for as long as `Retry-After` says, and send a key that is valid. Behind a proxy all clients have one address: find the client that sends a wrong key in the log and in the audit trail (`sign_ins.failed`).",
        ),
        ApiCode::TooManyConnections => (
            "Every connection that the server allows one tenant (`server.connections_per_tenant_max`) is in use. Connections of the tenant that wait for a request were closed before.",
            "Use fewer connections, each for more requests; follow several jobs with one stream; or raise the setting.",
        ),
        ApiCode::TooManyRefusals => (
            "Too many administrative acts of this key were refused (`server.refused_acts_per_minute`). Each refusal is on the audit trail, and one key must not fill it.",
            "Wait for as long as `Retry-After` says. The answers before say why the acts were refused; the audit trail lists them, and `acts.left_out` how many were not recorded.",
        ),
        ApiCode::TooManyStreams => (
            "The tenant has as many live pages of the console open as the server allows one tenant.",
            "Close some, or reload the page now and then: it is served all the same, and not live.",
        ),
        ApiCode::UnsupportedMediaType => (
            "The body has another content type than this path takes.",
            "Send `Content-Type: application/json`.",
        ),
        ApiCode::EffectKnown => (
            "Somebody wanted to say what became of a call whose outcome is on record, or that is still running, or that does not exist; `detail` says which.",
            "Look at the step: `tenure job show ID`. Only a step whose effect is unknown can be resolved. What a person has said about a step is corrected with `tenure job resolve ID --step N --correct …`, as long as `detail` does not say why that is too late. Nothing was written.",
        ),
        ApiCode::JobFinished => (
            "The job has ended (completed, failed or cancelled). Final is final: it takes no signal and no request any more.",
            "To run it again, use `tenure job retry ID` if it failed or was cancelled, or `tenure job fork ID --step N`; both make a new job. Nothing was written.",
        ),
        ApiCode::LaterVersion => (
            "The request uses something that has a name in this API and is not built yet; `field` names it.",
            "Leave it out. It is refused by name rather than ignored, so that nobody believes that it works.",
        ),
        ApiCode::NobodyWaits => (
            "The job is blocked, and none of its open or completed waits has this key. `open_keys` lists the keys it waits for.",
            "Check the key. For a wait that the flow will open later, send `early: true`: then the signal is kept. Nothing was written.",
        ),
        ApiCode::NotNow => (
            "The job does not stand where this could be done; `detail` names its status.",
            "`GET /v1/jobs/{id}/why` says what it waits for and what moves it. Nothing was written.",
        ),
        ApiCode::OtherInput => (
            "The idempotency key was used before, with another flow or other input; `job` is the job that has it.",
            "Use another key for other input; or look at the job that `job` names. Nothing was created.",
        ),
        ApiCode::PlanInvalid => (
            "A plan was submitted that can not be run. `problems` lists everything that is wrong with it: `at` is a JSON \
             pointer into the plan.",
            "Correct what `problems` lists, each says how; `tenure plan check` finds the same without a submission, and \
             docs/plans.md says what a plan is. Nothing was written.",
        ),
        ApiCode::SchemaViolation => (
            "The input does not fit the schema that the flow's worker registered. `violations` lists each place as a JSON pointer, with what was expected.",
            "Correct the input. `GET /v1/flows/{name}` shows the schema. Nothing was created.",
        ),
        ApiCode::UnknownFlow => (
            "No worker has ever registered a flow of this name, or not in this version. `known` lists what there is, `nearest` what was probably meant.",
            "Check the spelling; or start a worker that has the flow, which registers it. Nothing was created.",
        ),
        ApiCode::UnknownTool => (
            "No worker has ever registered a tool of this name. `known` lists what there is, `nearest` what was probably meant.",
            "Check the spelling; or start a worker that has the tool, which registers it.",
        ),
        ApiCode::AgentBusy => (
            "A `ui_action` was sent to an agent that has a turn, or others in line, or is paused. Such an action is wanted now or never.",
            "Send it again when the agent is idle (`tenure agent show NAME`), or send it as a `turn`, which waits in line. Nothing was written.",
        ),
        ApiCode::AgentRemoved => (
            "Somebody removed the agent. It keeps its history and takes no turns.",
            "Set it again (`tenure agent set`), or send to another agent. Nothing was written.",
        ),
        ApiCode::AmbiguousCall => (
            "The result names a `tool_call_id` that several open calls have: such ids come from models and repeat.",
            "Name the `wait` instead, as the turn shows it. `open_waits` lists those that are open. Nothing was written.",
        ),
        ApiCode::EpochFromTheFuture => (
            "The message names a `turn_epoch` higher than the turn has ever had, so it can not be about this turn.",
            "Check for which turn it was meant. Nothing was written.",
        ),
        ApiCode::NotByMessage => (
            "The wait that the result names is answered by a job, another turn or a join, and by nobody else: a result from outside would be forged.",
            "Let the job or turn end, or stop it; or `tenure turn resume` to wait no longer. Nothing was written.",
        ),
        ApiCode::QueueFull => (
            "The line of the agent is as long as it may be.",
            "Send again when some of its turns are over, or use several agents. Nothing was written.",
        ),
        ApiCode::StaleEpoch => (
            "The result was called for under an earlier `turn_epoch`: the turn was resumed since, and does not wait for it any more.",
            "Nothing has to be done: whoever called has gone on without it. To hand it in all the same, send it without `turn_epoch` and with the `wait` that it answers now. Nothing was written.",
        ),
        ApiCode::TaskOver => (
            "The task has ended. Final is final: nothing ends it again, and nothing runs for it any more.",
            "`POST /v1/tasks/{id}/replay` orders a failed or cancelled task once more, as a new one; `discard` puts a failed one aside.",
        ),
        ApiCode::TooLate => (
            "The wait expired, or the job ended, before the job read this signal or decision. It is in the history of the job and had no effect.",
            "`tenure job show ID` shows what the job did instead. To run the work again, use `tenure job fork ID --step N` from before the wait.",
        ),
        ApiCode::TooManyEarly => (
            "Results came before the turn was suspended, and as many are kept as can be.",
            "Send it again once the turn is suspended. Nothing was written.",
        ),
        ApiCode::TurnOver => (
            "The turn has ended. Final is final. A result that comes after the end is kept beside the history, as evidence, and changes nothing.",
            "Send the agent a new turn if there is more to do. `GET /v1/turns/{id}` says how it ended.",
        ),
        ApiCode::UnknownCall => (
            "The result or the ask names no call that the turn waits for. `open_waits` lists those that are open.",
            "Check the turn and the name of the wait; ids of tool calls come from models and repeat, names of waits do not. Nothing was written.",
        ),
        ApiCode::Kernel(_) => ("See its own page.", "See its own page."),
    }
}

/// All codes that have a page, in alphabetical order.
pub fn error_codes() -> Vec<&'static str> {
    let kernel = KERNEL.iter().map(|(code, _)| *code);
    let mut codes: Vec<_> = kernel.chain(ApiCode::ALL.map(ApiCode::as_str)).collect();
    codes.sort_unstable();
    codes
}

/// The page about an error code, in Markdown.
pub fn error_page(code: &str) -> Option<String> {
    if let Some((_, page)) = KERNEL.iter().find(|(name, _)| *name == code) {
        return Some((*page).to_owned());
    }
    let code = ApiCode::ALL.into_iter().find(|c| c.as_str() == code)?;
    let (happened, todo) = about(code);
    Some(format!(
        "# `{}`\n\n**What happened.** {happened}\n\n**What to do.** {todo}\n",
        code.as_str()
    ))
}

/// Any text names a page, if only one that is not there.
struct Slug(String);

impl std::str::FromStr for Slug {
    type Err = Infallible;
    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Slug(text.to_owned()))
    }
}

/// What an error code means, and what to do.
#[utoipa::path(
    get, path = "/errors/{code}",
    params(("code" = String, Path, description = "The code of a problem.")),
    responses((status = 200, body = String, content_type = "text/markdown"), (status = 404))
)]
async fn page(
    _caller: Caller,
    Named(Slug(code)): Named<Slug>,
) -> Result<impl IntoResponse, Problem> {
    let page =
        error_page(&code).ok_or_else(|| Problem::not_found(format!("error code {code:?}")))?;
    Ok(([(header::CONTENT_TYPE, "text/markdown; charset=utf-8")], page))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_kernel::error::Code;

    #[test]
    fn every_code_has_a_page() {
        let codes = Code::ALL.iter().map(|c| c.as_str()).chain(ApiCode::ALL.map(ApiCode::as_str));
        for code in codes {
            let page = error_page(code)
                .unwrap_or_else(|| panic!("{code} is not in crates/server/src/pages.rs"));
            assert!(
                page.contains("**What happened.**") && page.contains("**What to do.**"),
                "{code}"
            );
        }
        assert_eq!(error_page("banana"), None);
        let pages: Vec<bool> = error_codes().iter().map(|c| error_page(c).is_some()).collect();
        assert_eq!(pages, vec![true; Code::ALL.len() + ApiCode::ALL.len()]);
    }
}
