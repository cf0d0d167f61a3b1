//! Agents: all of them, and one with its inbox, its line and its last turns.

use super::{
    api::{Fields, at_once},
    cache::{Console, Glance},
    guard::{Presser, Viewer, said},
    layout::{Page, Place, workers},
    one::{Frame, Look, One, Parts, bad, did, fact, pressed, respond},
    text::{age, excerpt, pill, value},
    turn::turn_link,
};
use crate::{
    App, Caller, Problem,
    agents::{
        roster::{self, Whose as ApiWhose},
        send, some,
    },
    extract::{Named, Params},
    jobs::{
        body::{Json, Maybe},
        catalogue::Name,
        submit::TENANT,
    },
};
use axum::{
    Extension,
    body::Bytes,
    extract::{Path, State},
    http::{HeaderMap, StatusCode},
    response::Response,
};
use maud::{Markup, html};
use serde::Deserialize;
use std::sync::Arc;
use tenure_agents::{
    desk::{Desk, agents::listing},
    view::{AgentView, Item, ItemStatus, agent_view, inbox::whole},
};
use tenure_kernel::time::Timestamp;

/// Agents of one page.
const SHOWN_MAX: usize = 200;
/// Turns whose inbox an agent's page reads.
const TURNS_MAX: usize = 12;
/// Items that it shows, the newest.
const ITEMS_MAX: usize = 60;

/// Whose agent, for callers who see all tenants.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Whose {
    pub tenant: String,
    did: Option<String>,
}

fn desk(app: &App) -> Result<&Desk, Problem> {
    app.agents().ok_or_else(|| Problem::not_found("page of agents on this server"))
}

/// All agents that somebody may see.
pub(super) struct Listing {
    agents: Vec<AgentView>,
    more: bool,
    now: Timestamp,
    pub glance: Arc<Glance>,
}

pub(super) async fn read_all(
    app: &App,
    console: &Console,
    caller: &Caller,
) -> Result<Listing, Problem> {
    desk(app)?;
    let store = app.pipeline().store();
    let (agents, next) = some(app, listing(caller.tenant.clone(), false, None), SHOWN_MAX).await?;
    let more = next.is_some();
    let glance = console.glance(app, caller).await?;
    Ok(Listing { agents, more, now: store.now().await?, glance })
}

/// What [`super::live`] watches.
pub(super) fn all_parts(listing: &Listing) -> Vec<(&'static str, String)> {
    vec![("glance", workers(&listing.glance).into_string()), ("rows", rows(listing).into_string())]
}

/// `GET /agents`.
pub(super) async fn list(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Extension(console): Extension<Arc<Console>>,
) -> Response {
    let listing = match read_all(&app, &console, &caller).await {
        Ok(listing) => listing,
        Err(problem) => return said(&problem),
    };
    let body = html! {
        div.head { h1 { "Agents" } }
        div.card id="rows" { (rows(&listing)) }
    };
    Page {
        title: "Agents".into(),
        place: Place::Agents,
        live: Some("/console/live/agents".into()),
        now: listing.now,
        glance: Some(&listing.glance),
        caller: Some(&caller),
        body,
    }
    .respond(StatusCode::OK)
}

pub(super) fn agent_path(tenant: &str, name: &str) -> String {
    let query = serde_urlencoded::to_string([("tenant", tenant)]).unwrap_or_default();
    format!("/agents/{name}?{query}")
}

fn rows(listing: &Listing) -> Markup {
    if listing.agents.is_empty() {
        return html! {
            div.empty {
                p { strong { "No agent yet." } " Set one, and send it work:" }
                pre { "tenure agent set ada --box results '{\"instructions\": \"Be brief.\"}'\ntenure agent send ada 'What is the time?'" }
            }
        };
    }
    html! {
        table.jobs {
            thead { tr { th { "Status" } th { "Agent" } th { "Active turn" } th.right { "In line" } th { "Last end" } th.right { "Turns" } } }
            tbody { @for agent in &listing.agents { (row(agent, listing.now)) } }
        }
        @if listing.more { div.in.dim { "The first " (SHOWN_MAX) " are shown; the API has all." } }
    }
}

fn row(agent: &AgentView, now: Timestamp) -> Markup {
    html! {
        tr {
            td { (pill(&agent.status, false)) @if agent.paused { " " span.pill.parked { "‖ paused" } } }
            td.job {
                a href=(agent_path(&agent.tenant, &agent.name)) { (agent.name) }
                br; span.small.dim { "target " (agent.target) }
                @if !agent.tenant.is_empty() { " " span.tag { (agent.tenant) } }
            }
            td {
                @if let Some(turn) = &agent.active {
                    (turn_link(turn.id)) " " span.dim { "step " (turn.step) }
                    @if let Some(wait) = turn.waits.first() { br; span.small.dim { "waits for " (wait.tool) @if turn.waits.len() > 1 { " +" (turn.waits.len() - 1) } } }
                    @if turn.dead_letters > 0 { " " span.pill.bad { (turn.dead_letters) " dead" } }
                } @else { span.dim { "–" } }
            }
            td.right { (agent.queue.len()) }
            td { @if let Some(last) = agent.recent.first() { (pill(&last.status, false)) " " (turn_link(last.turn)) } @else { span.dim { "–" } } }
            td.right.nowrap { (agent.turns) div.small.dim { (age(agent.changed_at, now)) " ago" } }
        }
    }
}

/// One agent.
pub(super) struct Shown {
    agent: AgentView,
    items: Vec<Item>,
    look: Look,
}

impl One for Shown {
    fn look(&self) -> &Look {
        &self.look
    }

    fn frame(&self) -> Frame {
        let AgentView { name, tenant, .. } = &self.agent;
        let query = serde_urlencoded::to_string([("tenant", tenant)]).unwrap_or_default();
        Frame {
            title: format!("Agent {name}"),
            place: Place::Agents,
            crumbs: html! { a href="/agents" { "Agents" } " / " span.mono { (name) } },
            live: Some(format!("/console/live/agents/{name}?{query}")),
        }
    }

    fn parts(&self) -> Parts {
        vec![
            ("top", top(self).into_string()),
            ("moves", moves(self).into_string()),
            ("line", line(&self.agent).into_string()),
            ("inbox", inbox(self).into_string()),
            ("profile", profile(&self.agent).into_string()),
        ]
    }
}

/// Whose it is: the caller's own, or the one that was named.
fn tenant_of(caller: &Caller, whose: &str) -> String {
    match &caller.tenant {
        Some(mine) => mine.clone(),
        None if whose.is_empty() => TENANT.to_owned(),
        None => whose.to_owned(),
    }
}

pub(super) async fn read(
    app: &App,
    console: &Console,
    caller: &Caller,
    tenant: &str,
    name: &str,
) -> Result<Shown, Problem> {
    let store = app.pipeline().store();
    let (head, state) = desk(app)?.agent(&tenant_of(caller, tenant), name).await?;
    let agent = agent_view(store, &head, state).await?;
    let turns = agent.active.iter().map(|t| t.id);
    let turns = turns.chain(agent.queue.iter().map(|q| q.turn));
    let turns = turns.chain(agent.recent.iter().map(|p| p.turn)).take(TURNS_MAX);
    let mut found = Vec::new();
    for turn in turns {
        if let Some(head) = store.head(turn).await? {
            found.extend(whole(store, &head).await?);
        }
    }
    found.sort_by_key(|i| std::cmp::Reverse(i.at));
    Ok(Shown { agent, items: found, look: Look::at(app, console, caller).await? })
}

/// `GET /agents/{name}`.
pub(super) async fn page(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Extension(console): Extension<Arc<Console>>,
    Path(name): Path<String>,
    whose: Result<Params<Whose>, Problem>,
) -> Response {
    let whose = whose.map(|Params(w)| w).unwrap_or_default();
    let shown = match read(&app, &console, &caller, &whose.tenant, &name).await {
        Ok(shown) => shown,
        Err(problem) => return said(&problem),
    };
    let words = match whose.did.as_deref() {
        Some("pause") => Some("Nothing is dispatched until the agent is resumed."),
        Some("resume") => Some("The agent goes on."),
        Some("send") => Some("Sent: the turn is in line."),
        Some("remove") => Some("The agent takes no turns any more."),
        _ => None,
    };
    respond(&shown, &caller, did(words), StatusCode::OK)
}

fn top(shown: &Shown) -> Markup {
    let agent = &shown.agent;
    html! {
        div.head {
            (pill(&agent.status, true))
            @if agent.paused { span.pill.parked { "‖ paused" } }
            h1 { (agent.name) }
            @if !agent.tenant.is_empty() { span.tag { (agent.tenant) } }
        }
        @if let Some(turn) = &agent.active {
            p.why { "Turn " (turn_link(turn.id)) ": " (excerpt(&tenure_agents::view::why(turn, shown.look.now), 400).0) }
        } @else if agent.status == "removed" { p.why { "Removed: it takes no turns until it is set again." } }
        @else if agent.paused { p.why { "Paused: nothing is dispatched until it is resumed." } }
        @else { p.why { "Idle: the next turn that is sent is dispatched at once." } }
        @if let Some(fault) = &agent.fault { (bad("A rule fails on this agent:", fault)) }
        dl.facts.small {
            (fact("target", html! { code { (agent.target) } }))
            @if let Some(channel) = &agent.channel { (fact("channel", html! { (channel) })) }
            (fact("output box", html! { @match &agent.output_box { Some(b) => (b), None => span.dim { "none" } } }))
            (fact("turn epoch", html! { (agent.turn_epoch) }))
            (fact("turns", html! { (agent.turns) " ended" }))
            (fact("changed", html! { (age(agent.changed_at, shown.look.now)) " ago" }))
        }
    }
}

fn moves(shown: &Shown) -> Markup {
    let agent = &shown.agent;
    if !shown.look.may_press {
        return html! { p.small.dim { "This key may look and not touch: the buttons need the scope write." } };
    }
    let to = |action: &str| format!("/agents/{}/{action}", agent.name);
    let whose = html! { input type="hidden" name="tenant" value=(agent.tenant); };
    html! {
        @if agent.status != "removed" {
            div.card {
                div.moves { section.move {
                    h3 { "Send it work" }
                    form method="post" action=(to("send")) {
                        (whose)
                        textarea id="message" name="message" rows="2" placeholder="What should it do?" {}
                        button.go { "Send" }
                    }
                } }
                div.quiet {
                    @if agent.paused { form method="post" action=(to("resume")) { (whose) button { "Resume" } } }
                    @else { form method="post" action=(to("pause")) { (whose) button { "Pause" } } }
                    form method="post" action=(to("remove")) { (whose) button.no { "Remove" } }
                }
            }
        }
    }
}

fn line(agent: &AgentView) -> Markup {
    html! {
        div.two {
            div.card { div.cap { h2 { "In line" } span.small.dim { (agent.queue.len()) } }
                @if agent.queue.is_empty() { div.in.dim { "Nobody waits." } }
                @else { table { tbody { @for q in agent.queue.iter().take(20) { tr { td { (q.position) } td { (turn_link(q.turn)) } } } } } }
                @if agent.queue.len() > 20 { div.in.dim { "and " (agent.queue.len() - 20) " more" } }
            }
            div.card { div.cap { h2 { "Last turns" } }
                @if agent.recent.is_empty() { div.in.dim { "None has ended." } }
                @else { table { tbody { @for p in &agent.recent { tr { td { (pill(&p.status, false)) } td { (turn_link(p.turn)) } } } } } }
            }
        }
    }
}

/// An item's status as a pill.
pub(super) fn item_pill(status: ItemStatus) -> Markup {
    let class = match status {
        ItemStatus::Queued | ItemStatus::Skipped => "queued",
        ItemStatus::Pending => "waiting",
        ItemStatus::Processing => "running",
        ItemStatus::Consumed => "good",
        ItemStatus::Error => "bad",
        ItemStatus::Requeued => "retrying",
    };
    html! { span.pill.(class) { (status.name()) } }
}

fn inbox(shown: &Shown) -> Markup {
    html! {
        div.card {
            div.cap { h2 { "Inbox" } span.small.dim { "of its active turn, its line and its last turns" } }
            @if shown.items.is_empty() { div.in.dim { "Nothing came yet." } }
            @else { div.scroll { table {
                thead { tr { th { "Status" } th { "Type" } th { "Turn" } th { "About" } th { "What" } th.right { "Age" } } }
                tbody { @for item in shown.items.iter().take(ITEMS_MAX) { (item_row(item, shown.look.now, true)) } }
            } } }
        }
    }
}

/// One item, as a row.
pub(super) fn item_row(item: &Item, now: Timestamp, with_turn: bool) -> Markup {
    html! {
        tr {
            td { (item_pill(item.status)) }
            td { (item.kind) }
            @if with_turn { td { (turn_link(item.turn)) } }
            td { @if let Some(wait) = &item.wait { code { (excerpt(wait, 40).0) } } @else if let Some(call) = &item.tool_call_id { code { (excerpt(call, 40).0) } } }
            td {
                @if let Some(code) = &item.code { span.tag { (excerpt(code, 60).0) } " " }
                @if let Some(why) = &item.why { span.small { (excerpt(why, 200).0) } }
                @if item.id != item.turn.to_string() { div.small.dim.mono { (excerpt(&item.id, 80).0) } }
            }
            td.right.nowrap { (age(item.at, now)) }
        }
    }
}

fn profile(agent: &AgentView) -> Markup {
    html! {
        @if let Some(profile) = agent.profile.as_ref().filter(|p| !p.is_null()) {
            div.card { div.cap { h2 { "Profile" } } div.in { (value(profile, &format!("/v1/agents/{}", agent.name))) } }
        }
    }
}

/// `POST /agents/{name}/{action}`.
pub(super) async fn act(
    State(app): State<App>,
    Presser(caller): Presser,
    Extension(console): Extension<Arc<Console>>,
    Path((name, action)): Path<(String, String)>,
    body: Bytes,
) -> Response {
    let fields = Fields::read(&body);
    let tenant = tenant_of(&caller, fields.text("tenant").unwrap_or_default());
    let done = carry_out(&app, &caller, &tenant, &name, &action, &fields).await;
    let to = done.map(|()| format!("{}&did={action}", agent_path(&tenant, &name)));
    pressed(&caller, to, read(&app, &console, &caller, &tenant, &name)).await
}

async fn carry_out(
    app: &App,
    caller: &Caller,
    tenant: &str,
    name: &str,
    action: &str,
    fields: &Fields,
) -> Result<(), Problem> {
    let (state, named) = (State(app.clone()), Named(Name(name.to_owned())));
    // A caller of one tenant may not name any.
    let tenant = caller.tenant.is_none().then_some(tenant);
    let caller = caller.clone();
    let ask = || Ok::<_, Problem>(Maybe(fields.body(&[]).with_some("tenant", tenant).read()?));
    match action {
        "pause" => drop(roster::pause(state, caller, named, ask()?).await?),
        "resume" => drop(roster::resume(state, caller, named, ask()?).await?),
        "remove" => {
            let whose = Params(ApiWhose { tenant: tenant.map(str::to_owned) });
            roster::remove(state, caller, named, whose).await?;
        }
        "send" => {
            if fields.text("message").is_none() {
                return Err(Problem::bad_field("message", "there is nothing to say"));
            }
            let turn = fields.body(&["message"]).with_some("tenant", tenant);
            let (headers, turn) = (HeaderMap::new(), Json(turn.read()?));
            send::send(state, caller, named, at_once(), headers, turn).await?;
        }
        other => return Err(Problem::not_found(format!("action {other:?}"))),
    }
    Ok(())
}
