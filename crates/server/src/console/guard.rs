//! Who looks, and whether a press of a button came from our own page.
//!
//! Pages take the key that the API takes. A browser can not send it in a header, so signing in with a key opens a session
//! ([`crate::console_sessions`]), whose secret is in a cookie: `HttpOnly`, so no script reads it; `SameSite=Strict`, so no other site makes a
//! browser send it; `Secure` over TLS; until the browser closes. Only the console reads this cookie. The API does not, so a
//! page elsewhere can never use it there.
//!
//! A form is accepted only from our own pages: the browser says where it was (`Sec-Fetch-Site`, or `Origin`), and
//! no page can forge that. This holds without a key too: on a loopback address everybody on the machine may
//! press, and every web page open on it may try.

use super::layout::{self, Page, Place};
use crate::{
    App, Caller, Problem,
    audit::{Act, LookedUp},
    auth::{self, Origin},
    console_sessions::{self, Opener},
    keys::{self, Scope},
    problem::ApiCode,
};
use axum::{
    body::Bytes,
    extract::{FromRequest as _, FromRequestParts, Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use maud::html;
use tenure_kernel::time::Timestamp;

/// The largest form of a sign-in: it comes from somebody who is not known yet.
pub(super) const SIGN_IN_BYTES_MAX: usize = 8 * 1024;
const COOKIE: &str = "tenure_session";
/// The cookie of 0.1, which held the key itself. It is removed wherever it is seen.
const OLD_COOKIE: &str = "tenure_key";

/// Somebody who may look.
pub(super) struct Viewer(pub Caller);

/// Somebody who may look and press, and pressed on our own page.
pub(super) struct Presser(pub Caller);

impl FromRequestParts<App> for Viewer {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Response> {
        let caller = caller(parts, app).await.map_err(refused)?;
        caller.need(Scope::Read).map_err(refused)?;
        Ok(Viewer(caller))
    }
}

impl FromRequestParts<App> for Presser {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Response> {
        own_page(&parts.headers).map_err(refused)?;
        let caller = caller(parts, app).await.map_err(refused)?;
        caller.need(Scope::Read).and_then(|()| caller.need(Scope::Write)).map_err(refused)?;
        Ok(Presser(caller))
    }
}

/// By header, by cookie, or as somebody on this machine. A cookie that is not valid counts for nothing where nobody has to
/// sign in: browsers send it to every port of a host.
pub(crate) async fn caller(parts: &Parts, app: &App) -> Result<Caller, Problem> {
    let caller = match LookedUp::of(parts) {
        Some(caller) => caller?,
        None => caller_of(parts, app).await?,
    };
    auth::note_authenticated(parts, &caller)?;
    Ok(caller)
}

async fn caller_of(parts: &Parts, app: &App) -> Result<Caller, Problem> {
    let (headers, origin) = (&parts.headers, Origin::of(parts));
    if !headers.contains_key(header::AUTHORIZATION)
        && let Some(cookie) = cookie(headers)
        && let Ok(caller) = app.signed_in(cookie, origin).await
    {
        return Ok(caller);
    }
    app.caller(headers, origin).await
}

/// What the cookie of the console holds.
pub(crate) fn cookie(headers: &HeaderMap) -> Option<&str> {
    cookie_of(headers, COOKIE)
}

fn cookie_of<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let all = headers.get_all(header::COOKIE).into_iter().filter_map(|v| v.to_str().ok());
    all.flat_map(|v| v.split(';'))
        .find_map(|pair| pair.trim().strip_prefix(name)?.strip_prefix('='))
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
                p.small.dim { "The key is not kept in the browser: it gets a session that ends when the browser closes, with the key, or after twelve hours. `tenure key create` makes a key." }
            }
        }
    };
    let (place, now) = (Place::Nowhere, Timestamp::ZERO);
    Page { title: "Sign in".into(), place, live: None, now, glance: None, caller: None, body }
        .respond(status)
}

/// `POST /console/sign-in`.
pub(super) async fn sign_in(State(app): State<App>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    if let Err(problem) = own_page(&parts.headers) {
        return said(&problem);
    }
    let (origin, secure) = (Origin::of(&parts), auth::is_encrypted(&parts));
    let body = match Bytes::from_request(Request::from_parts(parts, body), &app).await {
        Ok(body) => body,
        Err(rejection) => return rejection.into_response(),
    };
    let mut fields = form_urlencoded::parse(&body);
    let key = fields.find(|(name, _)| name == "key").map(|(_, key)| key.trim().to_owned());
    match open(&app, &key.unwrap_or_default(), origin).await {
        Ok(session) => set_cookie(&cookie_with(&session, secure)),
        Err(problem) => sign_in_with(problem.status(), Some(problem.detail())),
    }
}

/// Opens a session for a key that is valid. The sign-in is on record before the session can be used.
async fn open(app: &App, key: &str, origin: Origin) -> Result<String, Problem> {
    let mut headers = HeaderMap::new();
    let not_a_key =
        || Problem::new(StatusCode::UNAUTHORIZED, ApiCode::Unauthenticated, "this is not a key");
    let value = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| not_a_key())?;
    headers.insert(header::AUTHORIZATION, value);
    let caller = app.caller(&headers, origin).await?;
    let secret = keys::split(key).ok_or_else(not_a_key)?.1.to_owned();
    let key = caller.key.ok_or_else(not_a_key)?;
    let act = Act {
        key: Some(key),
        from: origin.address().map(|address| address.to_string()),
        ..Act::new("console.sign_in", format!("key {key}")).tenant(caller.tenant.clone())
    };
    let acting = app.clone();
    let session = app.to_the_end(async move {
        let Caller { tenant, expires_at, .. } = caller;
        let by = Opener { key, secret: &secret, tenant, expires_at };
        acting.audit().carry_out(act, console_sessions::open(acting.pipeline(), by)).await
    });
    Ok(session.await??)
}

/// `POST /console/sign-out`.
pub(super) async fn sign_out(State(app): State<App>, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    if let Err(problem) = own_page(&parts.headers) {
        return said(&problem);
    }
    let (origin, cookie) = (Origin::of(&parts), cookie(&parts.headers));
    if let Some(cookie) = cookie
        && let Some((session, _)) = console_sessions::split(cookie)
        && let Ok(caller) = app.signed_in(cookie, origin).await
    {
        let by = caller.key.map_or_else(String::new, |key| format!("key {key}"));
        let act = Act { key: caller.key, ..Act::new("console.sign_out", by) };
        let acting = app.clone();
        let ended = app.to_the_end(async move {
            let end = console_sessions::end(acting.pipeline(), session, "signed out");
            let ended = acting.audit().carry_out(act.tenant(caller.tenant), end).await;
            acting.end_refused_requests(session).await;
            ended
        });
        if let Err(e) = ended.await.flatten() {
            return said(&e.into());
        }
    }
    set_cookie(&format!("{}; Max-Age=0", cookie_with("", auth::is_encrypted(&parts))))
}

fn cookie_with(session: &str, secure: bool) -> String {
    let secure = if secure { "; Secure" } else { "" };
    format!("{COOKIE}={session}; Path=/; HttpOnly; SameSite=Strict{secure}")
}

/// Sets the cookie, and removes the one of 0.1, which held a key.
fn set_cookie(cookie: &str) -> Response {
    let mut response = see_other("/jobs");
    let old = format!("{OLD_COOKIE}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0");
    for cookie in [cookie, &old] {
        if let Ok(value) = HeaderValue::from_str(cookie) {
            response.headers_mut().append(header::SET_COOKIE, value);
        }
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
    fn the_session_is_found_among_other_cookies() {
        let headers = with(&[("cookie", "a=b; tenure_session=tns_1_2; tenure_sessionx=3")]);
        assert_eq!(cookie(&headers), Some("tns_1_2"));
        for other in ["xtenure_session=1", "tenure_key=tnr_1_2"] {
            assert_eq!(cookie(&with(&[("cookie", other)])), None);
        }
    }

    #[test]
    fn the_cookie_is_secure_where_a_proxy_says_that_the_browser_came_over_tls() {
        let parts = |proto: Option<&str>| {
            let mut request = Request::new(axum::body::Body::empty());
            if let Some(proto) = proto {
                let value = HeaderValue::from_str(proto).unwrap();
                request.headers_mut().insert("x-forwarded-proto", value);
            }
            request.into_parts().0
        };
        assert!(auth::is_encrypted(&parts(Some("https"))));
        assert!(!auth::is_encrypted(&parts(None)) && !auth::is_encrypted(&parts(Some("http"))));
        assert!(cookie_with("x", true).ends_with("; HttpOnly; SameSite=Strict; Secure"));
        assert!(!cookie_with("x", false).contains("Secure"));
    }
}
