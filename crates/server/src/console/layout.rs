//! The frame around every page, and the headers that keep it harmless.
//!
//! Style and script are in the page itself and named in the policy by their digest: nothing else runs, whatever
//! a job's data looks like, and nothing is fetched from anywhere.

use super::cache::Glance;
use crate::{Caller, keys::Scope};
use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{Html, IntoResponse, Response},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use std::sync::OnceLock;
use tenure_kernel::{stream::Hash, time::Timestamp};

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("live.js");
const ICON: &str = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Crect width='16' height='16' rx='4' fill='%232456c4'/%3E%3Cpath d='M4 5h8M8 5v7' stroke='white' stroke-width='2'/%3E%3C/svg%3E";

/// Where a page belongs in the navigation. Files and rules get their line with their pages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Jobs,
    Agents,
    Tasks,
    Lines,
    Workers,
    Flows,
    Audit,
    Nowhere,
}

const PLACES: &[(Place, &str, &str)] = &[
    (Place::Jobs, "/jobs", "Jobs"),
    (Place::Agents, "/agents", "Agents"),
    (Place::Tasks, "/tasks", "Tasks"),
    (Place::Lines, "/lines", "Lines"),
    (Place::Workers, "/workers", "Workers"),
    (Place::Flows, "/flows", "Flows"),
];

/// One page.
pub(super) struct Page<'a> {
    pub title: String,
    pub place: Place,
    /// Where its changes come from.
    pub live: Option<String>,
    pub now: Timestamp,
    pub glance: Option<&'a Glance>,
    pub caller: Option<&'a Caller>,
    pub body: Markup,
}

impl Page<'_> {
    pub(super) fn respond(self, status: StatusCode) -> Response {
        (status, Html(self.render().into_string())).into_response()
    }

    fn render(self) -> Markup {
        let millis = self.now.as_micros() / 1_000;
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    title { (self.title) " · Tenure" }
                    link rel="icon" href=(ICON);
                    style { (PreEscaped(STYLE)) }
                }
                body data-live=[self.live.as_deref()] data-now=(millis) {
                    a.skip href="#main" { "Skip to content" }
                    header.site {
                        a.brand href="/" { "Tenure" }
                        nav aria-label="Main" {
                            @for (place, path, name) in PLACES {
                                a href=(path) aria-current=[(*place == self.place).then_some("page")] { (name) }
                            }
                            @if self.caller.is_some_and(|c| c.may(Scope::Admin)) {
                                a href="/audit" aria-current=[(self.place == Place::Audit).then_some("page")] { "Audit" }
                            }
                        }
                        div.state { (self.state()) }
                    }
                    main id="main" { (self.body) }
                    script { (PreEscaped(SCRIPT)) }
                }
            }
        }
    }

    fn state(&self) -> Markup {
        html! {
            @if let Some(glance) = self.glance { span id="glance" { (workers(glance)) } }
            @if self.live.is_some() { span id="live" role="status" { "as of loading" } }
            @if self.caller.is_some_and(|c| c.key.is_some()) {
                form method="post" action="/console/sign-out" { button { "Sign out" } }
            }
        }
    }
}

/// How many work, for the corner of every page.
pub(super) fn workers(glance: &Glance) -> Markup {
    let alive = glance.sessions.iter().filter(|s| s.role == "worker").count();
    html! {
        a href="/workers" { (alive) @if alive == 1 { " worker" } @else { " workers" } }
        @if alive == 0 { " " span.pill.attention { "nobody works" } }
    }
}

/// A page that only says something.
pub(super) fn said(status: StatusCode, title: &str, detail: &str, fix: Option<&str>) -> Response {
    let body = html! {
        div.box.bad role="alert" {
            strong { (title) } p { (detail) }
            @if let Some(fix) = fix { p { "What to do: " (fix) } }
        }
        p { a href="/jobs" { "All jobs" } }
    };
    let (place, now) = (Place::Nowhere, Timestamp::ZERO);
    Page { title: title.to_owned(), place, live: None, now, glance: None, caller: None, body }
        .respond(status)
}

fn policy() -> &'static HeaderValue {
    static POLICY: OnceLock<HeaderValue> = OnceLock::new();
    POLICY.get_or_init(|| {
        let digest = |text: &str| STANDARD.encode(Hash::of(text.as_bytes()).0);
        let text = format!(
            "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; img-src data:; connect-src 'self'; \
             form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
            digest(SCRIPT),
            digest(STYLE)
        );
        // Words and base64 only: always a valid header. Should it not be, nothing at all is allowed.
        HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("default-src 'none'"))
    })
}

/// Headers of everything the console answers.
pub(super) async fn harmless(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, policy().clone());
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A digest in the policy is of the text between the tags: nothing in it may end the element early.
    #[test]
    fn style_and_script_can_stand_in_a_page() {
        assert!(!STYLE.contains("</") && !SCRIPT.contains("</") && !SCRIPT.contains("<!--"));
        let policy = policy().to_str().unwrap();
        assert!(policy.contains("script-src 'sha256-") && !policy.contains("unsafe"), "{policy}");
    }
}
