//! One job: why it is where it is, what moves it, what happened when.

use super::{
    cache::Console,
    guard::{Viewer, said},
    layout::Place,
    moves,
    one::{Entity, Frame, Look, One, Parts, WHY_CHARS_MAX, bad, did, fact, respond},
    svg, tables,
    text::{age, job_link, moment, pill, sentence, short, span, value},
};
use crate::{
    App, Caller, Problem,
    extract::{Named, Params},
};
use axum::{Extension, extract::State, http::StatusCode, response::Response};
use maud::{Markup, html};
use serde::Deserialize;
use std::sync::Arc;
use tenure_jobs::view::{self, JobDetail, JobView, Verification};
use tenure_kernel::{ids::EntityId, time::Timestamp};

/// Steps that run as pods, and are named.
const TASKS_MAX: usize = 6;

/// Everything a page about a job shows.
pub(super) struct Shown {
    detail: JobDetail,
    look: Look,
    /// What waits for it is a turn of an agent, not a job.
    of_a_turn: bool,
    /// What tools return of which a person may say that they were called.
    outputs: moves::Outputs,
}

/// What a page shows beside the job itself.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Asked {
    /// Check its history.
    verify: Option<String>,
    /// A button was pressed: what came of it, a word of [`super::actions`].
    did: Option<String>,
}

impl One for Shown {
    fn look(&self) -> &Look {
        &self.look
    }

    fn frame(&self) -> Frame {
        let JobView { id, flow, is_final, .. } = &self.detail.job;
        Frame {
            title: format!("{flow} {}", short(*id)),
            place: Place::Jobs,
            crumbs: html! { a href="/jobs" { "Jobs" } " / " span.mono { (id) } },
            // A job that has ended does not change; its evidence may, and a reload shows it.
            live: (!is_final).then(|| format!("/console/live/jobs/{id}")),
        }
    }

    /// Those that time alone changes come from [`Entity::moving`].
    fn parts(&self) -> Parts {
        let detail = &self.detail;
        let mut parts = drawn(self);
        let moves = moves::all(detail, &self.outputs, self.look.may_press).into_string();
        parts.insert(1, ("moves", moves));
        parts.push(("steps", tables::steps(detail, self.look.now).into_string()));
        parts.push(("values", values(&detail.job).into_string()));
        parts.push(("events", tables::events(detail).into_string()));
        parts
    }
}

impl Entity for Shown {
    async fn read(
        app: &App,
        console: &Console,
        caller: &Caller,
        id: EntityId,
    ) -> Result<Self, Problem> {
        let store = app.pipeline().store();
        let detail = view::detail(store, id).await?;
        let detail = detail.filter(|d| caller.sees(&d.job.tenant));
        let detail = detail.ok_or_else(|| Problem::not_found(format!("job {id}")))?;
        let parent = match &detail.job.parent {
            Some(parent) => store.head(parent.job).await?,
            None => None,
        };
        let of_a_turn = parent.is_some_and(|h| h.kind() == tenure_agents::turn::table::TABLE.kind);
        let mut outputs = moves::Outputs::new();
        for tool in moves::doubtful(&detail) {
            let tenant = &detail.job.tenant;
            let schema = tenure_jobs::catalogue::output_schema(store, tenant, &tool, false).await?;
            outputs.insert(tool, schema);
        }
        let look = Look::at(app, console, caller).await?;
        Ok(Shown { detail, look, of_a_turn, outputs })
    }

    fn look_again(&mut self, look: Look) {
        self.look = look;
    }

    fn moving(&self) -> Parts {
        if self.detail.job.is_final { Vec::new() } else { drawn(self) }
    }
}

/// `GET /jobs/{id}`.
pub(super) async fn page(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Extension(console): Extension<Arc<Console>>,
    id: Result<Named<EntityId>, Problem>,
    asked: Result<Params<Asked>, Problem>,
) -> Response {
    let id = match id {
        Ok(Named(id)) => id,
        Err(problem) => return said(&problem),
    };
    let asked = asked.map(|Params(asked)| asked).unwrap_or_default();
    let shown = match Shown::read(&app, &console, &caller, id).await {
        Ok(shown) => shown,
        Err(problem) => return said(&problem),
    };
    let mut notice = html! {};
    if asked.verify.is_some() {
        let tables = app.machines().tables();
        let effects = app.jobs().and_then(|desk| desk.effects());
        notice = match view::verify(app.pipeline().store(), &tables, id, effects).await {
            Ok(Some(found)) => verified(&found),
            Ok(None) => html! {},
            Err(e) => bad("The history can not be read", Problem::from(e).detail()),
        };
    } else {
        notice = did(asked.did.as_deref().and_then(super::actions::said_of));
    }
    respond(&shown, &caller, notice, StatusCode::OK)
}

/// What changes while nothing happens: ages, and bars that grow.
fn drawn(shown: &Shown) -> Parts {
    let (detail, now) = (&shown.detail, shown.look.now);
    let timeline = view::timeline(detail, now);
    vec![
        ("top", top(&detail.job, now, shown.of_a_turn).into_string()),
        ("timeline", svg::card(&timeline).into_string()),
    ]
}

fn top(job: &JobView, now: Timestamp, of_a_turn: bool) -> Markup {
    let stuck = job.status == "attention" || job.fault.is_some();
    let handed = job.running.iter().filter_map(|call| call.handed.as_ref());
    let tasks =
        handed.filter(|h| h.kind.as_deref() == Some("task")).map(|h| h.call).take(TASKS_MAX);
    html! {
        div.head {
            (pill(&job.status, true))
            @if job.paused && job.status != "parked" { span.pill.parked { "‖ paused" } }
            h1 { (job.flow) span.dim { "@" (job.version) } }
            @if !job.tenant.is_empty() { span.tag { (job.tenant) } }
        }
        p.why role=[stuck.then_some("alert")] { (sentence(job, now, WHY_CHARS_MAX)) }
        @if let Some(fault) = &job.fault { (bad("A rule fails on this job:", fault)) }
        dl.facts.small {
            (fact("created", html! { (age(job.created_at, now)) " ago" }))
            @if job.is_final { (fact("took", html! { (span(job.changed_at.since(job.created_at))) })) }
            @if let Some(holder) = &job.holder { (fact("held by", html! { (holder.name) })) }
            (fact("attempt", html! { (job.attempt) @if job.takeovers > 0 { " · " (job.takeovers) " of " (job.takeovers_max) " workers lost" } }))
            (fact("steps", html! { (job.steps_done) " done · " (job.events) " events" @if job.run > 1 { " · run " (job.run) } }))
            @for task in tasks { (fact("runs as", html! { "task " (super::task::task_link(task)) })) }
            @if let Some(by) = job.must_end_by { @if !job.is_final { (fact("ends by", html! { (moment(by)) })) } }
            @if job.mail_unread > 0 { (fact("mail", html! { (job.mail_unread) " unread" })) }
            @if job.priority != 0 { (fact("priority", html! { (job.priority) })) }
            @if let Some(parent) = &job.parent {
                @if of_a_turn { (fact("tool of turn", super::turn::turn_link(parent.job))) }
                @else { (fact("parent", job_link(parent.job))) }
            }
            @if let Some(origin) = job.retry_of { (fact("retry of", job_link(origin))) }
            @if let Some(fork) = &job.forked_from { @if job.retry_of.is_none() { (fact("fork of", html! { (job_link(fork.job)) " before step " code { (fork.step) } })) } }
        }
    }
}

fn values(job: &JobView) -> Markup {
    let api = format!("/v1/jobs/{}", job.id);
    html! {
        div.two {
            div.card { div.cap { h2 { "Input" } } div.in {
                @match &job.input { Some(v) => (value(v, &api)), None => span.dim { "none" } }
            } }
            div.card { div.cap { h2 { @if job.failure.is_some() { "Failure" } @else { "Output" } } } div.in {
                @if let Some(v) = &job.output { (value(v, &api)) }
                @else if let Some(f) = &job.failure {
                    p { strong { (f.reason) } @if let Some(step) = &f.step { " at step " code { (step) } } }
                    (super::text::fold("failure", &f.error))
                } @else if job.is_final { span.dim { "none" } } @else { span.dim { "not yet" } }
            } }
        }
    }
}

fn verified(found: &Verification) -> Markup {
    html! {
        div.card {
            div.cap {
                h2 { "Verification" }
                @if found.ok { span.pill.good { "✓ intact" } } @else { span.pill.bad { "✕ " (found.problems.len()) " problems" } }
                span.small.dim { (found.events) " events, recomputed from the stored bytes" }
            }
            @if !found.problems.is_empty() { div.in { @for problem in &found.problems { p { (problem) } } } }
            div.scroll { table { tbody {
                @for check in &found.checks {
                    tr { td { @if check.ok { span.pill.good { "✓ kept" } } @else { span.pill.bad { "✕ broken" } } } td { code { (check.rule) } } td { (check.says) } }
                }
            } } }
            div.in.small.dim {
                "chain " code { (found.chain_root) } br; "execution " code { (found.execution_hash) }
                @if !found.evidence.is_empty() { br; (found.evidence.len()) " pieces of evidence beside the stream" }
            }
        }
    }
}
