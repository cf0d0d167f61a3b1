//! Which requests are acts, and their records: one layer around all routes, so that no handler has to remember it.
//!
//! Every request that is not a `GET` is an act, unless its name is in [`NOT_ACTS`]: what programs do all day. A new route is
//! therefore recorded without being listed anywhere. Of the `GET`s, exports are acts.

use super::Act;
use crate::{ApiCode, App, Caller, Problem, auth::Origin, console, jobs::find::who, keys::Scope};
use axum::{
    RequestPartsExt as _,
    extract::{MatchedPath, RawPathParams, Request, State},
    http::{Method, StatusCode, header, request::Parts},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use serde_json::{Map, Value};
use tenure_kernel::{error::StoreError, ids::EntityId};

/// Requests that change something and are no administrative acts: submissions, signals, what workers and collectors send,
/// and checks that change nothing. What ends in a dot is a prefix.
const NOT_ACTS: &[&str] = &[
    "agents.turns",
    "api.jobs.signal",
    "calendars.preview",
    "calls.",
    "jobs",
    "jobs.signal",
    "plans.check",
    "tasks",
    "tasks.reports",
    "turns.fail",
    "turns.finish",
    "turns.progress",
    "turns.release",
    "turns.results",
    "turns.sessions",
    "turns.sessions.",
    "turns.step",
    "webhooks",
    "worker.",
    // These record themselves, with more than a path says.
    "console.",
    "keys.",
    "keys",
];

/// The name of the act that a request to a route is; `None` if it is none. `action` is what the path says where the template has
/// the action as a parameter, as the console's forms do.
fn name_of(method: &Method, template: &str, action: Option<&str>) -> Option<String> {
    let is_export = *method == Method::GET && template.ends_with("/export");
    if !is_export && [Method::GET, Method::HEAD, Method::OPTIONS].contains(method) {
        return None;
    }
    let template = template.strip_prefix("/v1").unwrap_or(template);
    let parts = template.split('/').filter_map(|part| match part {
        "" => None,
        "{action}" => action,
        part if part.starts_with('{') => None,
        part => Some(part),
    });
    let mut name = parts.collect::<Vec<_>>().join(".");
    match *method {
        Method::PUT => name.push_str(".set"),
        Method::DELETE => name.push_str(".remove"),
        _ => {}
    }
    let is_exempt = |exempt: &&'static str| match exempt.strip_suffix('.') {
        Some(prefix) => name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('.')),
        None => name == **exempt,
    };
    (!NOT_ACTS.iter().any(is_exempt)).then_some(name)
}

/// What the path names, as the handler reads it.
struct Named {
    /// The parameter `{action}`.
    action: Option<String>,
    /// The first of the others.
    target: Option<String>,
    /// The rest, by name; null if there is none.
    details: Value,
}

impl Named {
    async fn in_path(parts: &mut Parts) -> Result<Self, Problem> {
        let params = parts.extract::<RawPathParams>().await.map_err(|e| {
            Problem::new(StatusCode::BAD_REQUEST, ApiCode::BadField, e.body_text())
                .field("path")
                .fix("encode the path as UTF-8 with percent signs")
        })?;
        let action = params.iter().find(|(name, _)| *name == "action");
        let mut others = params.iter().filter(|(name, _)| *name != "action");
        let target = others.next().map(|(_, said)| said.to_owned());
        let rest: Map<_, _> = others.map(|(name, said)| (name.to_owned(), said.into())).collect();
        let details = if rest.is_empty() { Value::Null } else { rest.into() };
        Ok(Named { action: action.map(|(_, said)| said.to_owned()), target, details })
    }
}

/// Who sends a request, as found out when it was looked whether it is an act: a caller who is not known is counted once.
#[derive(Clone)]
pub(crate) struct LookedUp(Result<Caller, Problem>);

impl LookedUp {
    /// What was found out, for the handler.
    pub(crate) fn of(parts: &Parts) -> Option<Result<Caller, Problem>> {
        parts.extensions.get::<LookedUp>().map(|looked_up| looked_up.0.clone())
    }
}

/// Records acts around their handlers. A request of somebody who is not known, or whose key has not the scope that such a request
/// needs, is left to its handler, which refuses it: else anybody could fill the trail. A key whose acts are refused too often is
/// answered 429.
pub(crate) async fn record_acts(State(app): State<App>, request: Request, next: Next) -> Response {
    let template = request.extensions().get::<MatchedPath>().map(|m| m.as_str().to_owned());
    // Whatever the action is called: most requests are no acts, and the path of those is not looked at.
    let template = template.filter(|at| name_of(request.method(), at, Some("any")).is_some());
    let Some(template) = template else { return next.run(request).await };
    let (mut parts, body) = request.into_parts();
    let named = match Named::in_path(&mut parts).await {
        Ok(named) => named,
        Err(problem) => return problem.into_response(),
    };
    let Some(name) = name_of(&parts.method, &template, named.action.as_deref()) else {
        return next.run(Request::from_parts(parts, body)).await;
    };
    let caller = match is_api(&template) {
        true => app.caller(&parts.headers, Origin::of(&parts)).await,
        false => console::caller(&parts, &app).await,
    };
    parts.extensions.insert(LookedUp(caller.clone()));
    let scope = if parts.method == Method::GET { Scope::Read } else { Scope::Write };
    let Some(caller) = caller.ok().filter(|caller| caller.may(scope)) else {
        return next.run(Request::from_parts(parts, body)).await;
    };
    if let Err(problem) = app.may_act(&caller) {
        return problem.into_response();
    }
    let target = named.target;
    let by = match parts.headers.contains_key(header::AUTHORIZATION) || is_api(&template) {
        true => who(&caller, None),
        false => format!("{} (console)", who(&caller, None)),
    };
    let mut act = Act {
        key: caller.key,
        target: target.clone(),
        from: Origin::of(&parts).address().map(|address| address.to_string()),
        ..Act::new(name, by).details(named.details)
    };
    act.tenant = match &caller.tenant {
        Some(tenant) => Some(tenant.clone()),
        None => match tenant_of(&app, target.as_deref(), &parts).await {
            Ok(tenant) => tenant,
            Err(e) => return Problem::from(e).into_response(),
        },
    };
    // An act runs to its end, and its outcome is recorded, also if the client does not wait.
    let (acting, request) = (app.clone(), Request::from_parts(parts, body));
    let work = async move {
        let begun = match acting.audit().begin(act).await {
            Ok(begun) => begun,
            Err(e) => return Problem::from(e).into_response(),
        };
        let response = next.run(request).await;
        let status = response.status();
        let is_done = status.is_success() || status.is_redirection();
        let note = (!is_done).then(|| format!("answered {}", status.as_u16()));
        acting.audit().end(begun, is_done, note).await;
        // A job that has just ended, or that somebody else holds, is nobody's fault.
        let is_nobodys_fault = matches!(
            status,
            StatusCode::CONFLICT | StatusCode::LOCKED | StatusCode::TOO_MANY_REQUESTS
        );
        if status.is_client_error() && !is_nobodys_fault {
            acting.act_was_refused(&caller).await;
        }
        response
    };
    app.to_the_end(work).await.unwrap_or_else(|e| Problem::from(e).into_response())
}

fn is_api(template: &str) -> bool {
    template.starts_with("/v1/") || template.starts_with("/api/")
}

/// The tenant that an act of a caller without one concerns: that of the entity that the path names, or the one that the query
/// names.
async fn tenant_of(
    app: &App,
    target: Option<&str>,
    parts: &Parts,
) -> Result<Option<String>, StoreError> {
    if let Some(id) = target.and_then(|target| target.parse::<EntityId>().ok()) {
        let head = app.pipeline().store().head(id).await?;
        return Ok(head.map(|head| head.tenant));
    }
    let mut query = form_urlencoded::parse(parts.uri.query().unwrap_or("").as_bytes());
    Ok(query.find(|(name, _)| name == "tenant").map(|(_, tenant)| tenant.into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acts_have_the_names_of_their_routes_and_what_programs_do_all_day_is_none() {
        let name = |method, template, action| name_of(&method, template, action);
        for (method, template, action, expected) in [
            (Method::POST, "/v1/jobs/{id}/approve", None, "jobs.approve"),
            (Method::POST, "/v1/jobs/bulk", None, "jobs.bulk"),
            (Method::GET, "/v1/jobs/{id}/export", None, "jobs.export"),
            (Method::PUT, "/v1/limits/{tool}", None, "limits.set"),
            (Method::DELETE, "/v1/limits/{tool}", None, "limits.remove"),
            (Method::POST, "/jobs/{id}/{action}", Some("cancel"), "jobs.cancel"),
            (Method::POST, "/v1/blocks", None, "blocks"),
            (Method::POST, "/v1/callsign", None, "callsign"),
        ] {
            assert_eq!(name(method, template, action).as_deref(), Some(expected), "{template}");
        }
        for (method, template) in [
            (Method::GET, "/v1/jobs"),
            (Method::POST, "/v1/jobs"),
            (Method::POST, "/v1/worker/apply"),
            (Method::DELETE, "/v1/calls/sessions/{session}"),
            (Method::POST, "/v1/turns/sessions"),
            (Method::POST, "/v1/turns/{id}/step"),
            (Method::POST, "/v1/keys/{id}/revoke"),
            (Method::POST, "/console/sign-in"),
            (Method::PUT, "/v1/worker/blobs"),
        ] {
            assert_eq!(name(method, template, None), None, "{template}");
        }
        assert_eq!(name(Method::POST, "/jobs/{id}/{action}", Some("signal")), None);
    }
}
