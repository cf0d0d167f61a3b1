//! What the pages about one thing have in common: a job, a turn, a task, an agent. Each says what it consists of ([`One`]);
//! the frame around it, what a press comes back with, and the cards that look the same everywhere are here.

use super::{
    cache::{Console, Glance},
    guard::{said, see_other},
    layout::{Page, Place, workers},
    text::{clock, excerpt, moment, span},
};
use crate::{App, Caller, Problem, keys::Scope};
use axum::{http::StatusCode, response::Response};
use maud::{Markup, PreEscaped, html};
use std::sync::Arc;
use tenure_kernel::{ids::EntityId, time::Timestamp};

/// How much of the sentence about a thing its page shows: an error may be long.
pub(super) const WHY_CHARS_MAX: usize = 600;
/// Lines of a history that a page shows, the newest.
const LINES_MAX: usize = 300;
/// Rules that a page names, the next.
const RULES_MAX: usize = 6;

/// Elements of a page by their ids.
pub(super) type Parts = Vec<(&'static str, String)>;

/// What a page knows beside the thing itself.
pub(super) struct Look {
    pub now: Timestamp,
    pub glance: Arc<Glance>,
    /// Whether the buttons are of use to whoever looks.
    pub may_press: bool,
}

impl Look {
    pub(super) async fn at(app: &App, console: &Console, caller: &Caller) -> Result<Self, Problem> {
        let glance = console.glance(app, caller).await?;
        let now = app.pipeline().store().now().await?;
        Ok(Look { now, glance, may_press: caller.may(Scope::Write) })
    }
}

/// Where a page stands.
pub(super) struct Frame {
    pub title: String,
    pub place: Place,
    pub crumbs: Markup,
    /// Where its changes come from; none of a thing that does not change any more.
    pub live: Option<String>,
}

/// A page about one thing.
pub(super) trait One {
    fn look(&self) -> &Look;
    fn frame(&self) -> Frame;
    /// All parts, in order.
    fn parts(&self) -> Parts;
}

/// One that has an id, and is watched by it.
pub(super) trait Entity: One + Sized + Send + Sync + 'static {
    /// Something beside its stream grows, so it has to be read anew each time.
    const ALWAYS_READ: bool = false;

    /// Reads it, if it is theirs to see.
    fn read(
        app: &App,
        console: &Console,
        caller: &Caller,
        id: EntityId,
    ) -> impl Future<Output = Result<Self, Problem>> + Send;

    /// Only time has passed.
    fn look_again(&mut self, look: Look);

    /// The parts that time alone changes.
    fn moving(&self) -> Parts;
}

/// For the corner of the page.
pub(super) fn corner(look: &Look) -> (&'static str, String) {
    ("glance", workers(&look.glance).into_string())
}

/// The page, with what came of the last press on top.
pub(super) fn respond(
    one: &impl One,
    caller: &Caller,
    notice: Markup,
    status: StatusCode,
) -> Response {
    let (look, frame) = (one.look(), one.frame());
    let body = html! {
        div.crumb { (frame.crumbs) }
        div id="notice" { (notice) }
        @for (id, part) in one.parts() { div id=(id) { (PreEscaped(part)) } }
    };
    Page {
        title: frame.title,
        place: frame.place,
        live: frame.live,
        now: look.now,
        glance: Some(&look.glance),
        caller: Some(caller),
        body,
    }
    .respond(status)
}

/// The answer to a press: the page to go to, or the one that was pressed on, with what was refused. A page that was
/// posted would be posted again by a reload.
pub(super) async fn pressed<O: One>(
    caller: &Caller,
    done: Result<String, Problem>,
    read: impl Future<Output = Result<O, Problem>>,
) -> Response {
    let no = match done {
        Ok(to) => return see_other(&to),
        Err(no) => no,
    };
    match read.await {
        Ok(one) => {
            let notice = bad(&format!("Nothing was done. {}:", no.code().title()), no.detail());
            respond(&one, caller, notice, no.status())
        }
        Err(problem) => said(&problem),
    }
}

/// What came of a press that was a success.
pub(super) fn did(words: Option<&str>) -> Markup {
    html! { @if let Some(words) = words { div.box.good role="status" { (words) } } }
}

/// A readable box.
pub(super) fn bad(title: &str, detail: &str) -> Markup {
    html! { div.box.bad role="alert" { strong { (title) } " " (detail) } }
}

/// In place of buttons.
pub(super) fn may_only_look() -> Markup {
    html! { p.small.dim { "This key may look and not touch: the buttons need the scope write." } }
}

/// One of the facts below the sentence.
pub(super) fn fact(name: &str, what: Markup) -> Markup {
    html! { div { dt { (name) } dd { (what) } } }
}

/// The time until something; the script counts it down.
pub(super) fn until(at: Timestamp, now: Timestamp) -> Markup {
    let words = if at > now { span(at.since(now)) } else { "now".to_owned() };
    html! { time datetime=(at) title=(moment(at)) data-until=(at.as_micros() / 1_000) { (words) } }
}

/// A rule whose clock runs.
pub(super) struct Rule<'a> {
    pub name: &'a str,
    /// About which wait.
    pub wait: Option<&'a str>,
    pub at: Timestamp,
}

/// The rules that look at a thing next; nothing if there are none.
pub(super) fn rules<'a>(rules: impl Iterator<Item = Rule<'a>>, now: Timestamp) -> Markup {
    let mut rules = rules.take(RULES_MAX).peekable();
    html! {
        @if rules.peek().is_some() {
            div.card { div.cap { h2 { "Rules that look at it next" } } table { tbody {
                @for rule in rules { tr {
                    td { code { (rule.name) } @if let Some(wait) = rule.wait { " " span.dim { (wait) } } }
                    td.right.nowrap { (until(rule.at, now)) }
                } }
            } } }
        }
    }
}

/// Something that happened.
pub(super) struct Line<'a> {
    /// Its place in the stream; none of what comes from beside it.
    pub version: Option<u64>,
    pub at: Timestamp,
    pub by: &'a str,
    pub text: &'a str,
    pub event: &'a str,
    pub rule: Option<&'a str>,
}

/// What happened, in order; `events` is where the API has all of it.
pub(super) fn history<'a>(events: &str, lines: impl ExactSizeIterator<Item = Line<'a>>) -> Markup {
    let hidden = lines.len().saturating_sub(LINES_MAX);
    html! {
        div.card {
            div.cap { h2 { "What happened" } span.small { a href=(events) { "events, from the API" } } }
            @if hidden > 0 { div.in.dim { (hidden) " older lines are not shown." } }
            div.scroll { table {
                thead { tr { th { "#" } th { "Time" } th { "By" } th { "What" } th { "Rule" } } }
                tbody { @for line in lines.skip(hidden) { tr {
                    td.dim { @if let Some(version) = line.version { (version) } }
                    td.nowrap.mono title=(line.at) { (clock(line.at)) }
                    td { span.tag { (line.by) } }
                    td { (excerpt(line.text, 300).0) div.small.dim { (excerpt(line.event, 80).0) } }
                    td { @if let Some(rule) = line.rule { span.pill.retrying { (excerpt(rule, 60).0) } } }
                } } }
            } }
        }
    }
}
