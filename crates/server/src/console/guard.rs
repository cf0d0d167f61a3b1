//! Who looks, and whether a press of a button came from our own page.
//!
//! Pages take the key that the API takes. A browser can not send it in a header, so signing in puts it into a
//! cookie: `HttpOnly`, so no script reads it; `SameSite=Strict`, so no other site makes a browser send it; until
//! the browser closes. Only the console reads this cookie. The API does not, so a page elsewhere can never use it
//! there.
//!
//! A form is accepted only from our own pages: the browser says where it was (`Sec-Fetch-Site`, or `Origin`), and
//! no page can forge that. This holds without a key too: on a loopback address everybody on the machine may
//! press, and every web page open on it may try.

use super::layout::{self, Page, Place};
use crate::{App, Caller, Problem, keys::Scope, problem::ApiCode};
use axum::{
    body::Bytes,
    extract::{FromRequestParts, State},
    http::{HeaderMap, HeaderValue, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use maud::html;
use tenure_kernel::time::Timestamp;

const COOKIE: &str = "tenure_key";

/// Somebody who may look.
pub(super) struct Viewer(pub Caller);

/// Somebody who may look and press, and pressed on our own page.
pub(super) struct Presser(pub Caller);

impl FromRequestParts<App> for Viewer {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Response> {
        let caller = caller(&parts.headers, app).await.map_err(refused)?;
        caller.need(Scope::Read).map_err(refused)?;
        Ok(Viewer(caller))
    }
}

impl FromRequestParts<App> for Presser {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Response> {
        own_page(&parts.headers).map_err(refused)?;
        let caller = caller(&parts.headers, app).await.map_err(refused)?;
        caller.need(Scope::Read).and_then(|()| caller.need(Scope::Write)).map_err(refused)?;
        Ok(Presser(caller))
    }
}

/// By header, by cookie, or as somebody on this machine. A cookie that is not valid counts for nothing: browsers
/// send it to every port of a host.
async fn caller(headers: &HeaderMap, app: &App) -> Result<Caller, Problem> {
    let plain =
        |headers: HeaderMap| async move { app.auth().caller(&headers, app.pipeline()).await };
    if !headers.contains_key(header::AUTHORIZATION)
        && let Some(key) = cookie(headers)
        && let Ok(value) = HeaderValue::from_str(&format!("Bearer {key}"))
    {
        let mut with_key = headers.clone();
        with_key.insert(header::AUTHORIZATION, value);
        if let Ok(caller) = plain(with_key).await {
            return Ok(caller);
        }
    }
    plain(headers.clone()).await
}

fn cookie(headers: &HeaderMap) -> Option<&str> {
    let all = headers.get_all(header::COOKIE).into_iter().filter_map(|v| v.to_str().ok());
    all.flat_map(|v| v.split(';'))
        .find_map(|pair| pair.trim().strip_prefix(COOKIE)?.strip_prefix('='))
}

/// Refuses what another site made a browser send.
fn own_page(headers: &HeaderMap) -> Result<(), Problem> {
    let text = |name| headers.get(name).and_then(|v: &HeaderValue| v.to_str().ok());
    let own = match text(header::HeaderName::from_static("sec-fetch-site")) {
        Some(site) => site == "same-origin",
        None => match (text(header::ORIGIN), text(header::HOST)) {
            (Some(origin), Some(host)) => {
                origin.split_once("://").is_some_and(|(_, at)| at.eq_ignore_ascii_case(host))
            }
            _ => false,
        },
    };
    if own {
        return Ok(());
    }
    let why = "this was not sent from a page of this console: press the button there; programs use the API under /v1";
    Err(Problem::new(StatusCode::FORBIDDEN, ApiCode::Forbidden, why))
}

fn refused(problem: Problem) -> Response {
    if problem.status() == StatusCode::UNAUTHORIZED {
        return sign_in_with(StatusCode::UNAUTHORIZED, Some(problem.detail()));
    }
    said(&problem)
}

/// A problem as a page.
pub(super) fn said(problem: &Problem) -> Response {
    layout::said(problem.status(), problem.code().title(), problem.detail(), None)
}

/// `GET /console/sign-in`.
pub(super) async fn sign_in_page() -> Response {
    sign_in_with(StatusCode::OK, None)
}

fn sign_in_with(status: StatusCode, why: Option<&str>) -> Response {
    let body = html! {
        div.card {
            div.cap { h1 { "Sign in" } }
            div.in {
                @if let Some(why) = why { p { (why) } }
                form method="post" action="/console/sign-in" {
                    p { label for="key" { "API key" } br; input id="key" name="key" type="password" autocomplete="current-password" required size="48" placeholder="tnr_…"; }
                    button.go { "Sign in" }
                }
                p.small.dim { "The key stays in this browser until it closes, in a cookie that scripts can not read. `tenure key create` makes one." }
            }
        }
    };
    let (place, now) = (Place::Nowhere, Timestamp::ZERO);
    Page { title: "Sign in".into(), place, live: None, now, glance: None, caller: None, body }
        .respond(status)
}

/// `POST /console/sign-in`.
pub(super) async fn sign_in(State(app): State<App>, headers: HeaderMap, body: Bytes) -> Response {
    if let Err(problem) = own_page(&headers) {
        return said(&problem);
    }
    let mut fields = form_urlencoded::parse(&body);
    let key = fields.find(|(name, _)| name == "key").map(|(_, key)| key.trim().to_owned());
    let key = key.unwrap_or_default();
    let mut with_key = HeaderMap::new();
    let value = HeaderValue::from_str(&format!("Bearer {key}"));
    let Ok(value) = value else {
        return sign_in_with(StatusCode::UNAUTHORIZED, Some("this is not a key"));
    };
    with_key.insert(header::AUTHORIZATION, value);
    // A valid key has no character that could end a cookie: what is set here was just found valid.
    match app.auth().caller(&with_key, app.pipeline()).await {
        Ok(_) => set_cookie(&format!("{COOKIE}={key}; Path=/; HttpOnly; SameSite=Strict")),
        Err(problem) => sign_in_with(problem.status(), Some(problem.detail())),
    }
}

/// `POST /console/sign-out`.
pub(super) async fn sign_out(headers: HeaderMap) -> Response {
    match own_page(&headers) {
        Ok(()) => set_cookie(&format!("{COOKIE}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0")),
        Err(problem) => said(&problem),
    }
}

fn set_cookie(cookie: &str) -> Response {
    let mut response = see_other("/jobs");
    if let Ok(value) = HeaderValue::from_str(cookie) {
        response.headers_mut().insert(header::SET_COOKIE, value);
    }
    response
}

/// Back to a page, by GET.
pub(super) fn see_other(path: &str) -> Response {
    let at = HeaderValue::from_str(path).unwrap_or(HeaderValue::from_static("/jobs"));
    (StatusCode::SEE_OTHER, [(header::LOCATION, at)]).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.insert(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn only_our_own_pages_press_buttons() {
        let own = |pairs: &[_]| own_page(&with(pairs)).is_ok();
        let host = ("host", "127.0.0.1:7777");
        assert!(own(&[host, ("sec-fetch-site", "same-origin")]));
        assert!(own(&[host, ("origin", "http://127.0.0.1:7777")]));
        for site in ["cross-site", "same-site", "none"] {
            assert!(!own(&[host, ("sec-fetch-site", site), ("origin", "http://127.0.0.1:7777")]));
        }
        for origin in ["null", "http://127.0.0.1:8888", "http://evil.example", "127.0.0.1:7777"] {
            assert!(!own(&[host, ("origin", origin)]), "{origin}");
        }
        assert!(!own(&[host]), "a browser always says where it was");
    }

    #[test]
    fn the_key_is_found_among_other_cookies() {
        let headers = with(&[("cookie", "a=b; tenure_key=tnr_1_2; tenure_keyx=3")]);
        assert_eq!(cookie(&headers), Some("tnr_1_2"));
        assert_eq!(cookie(&with(&[("cookie", "xtenure_key=1")])), None);
    }
}
