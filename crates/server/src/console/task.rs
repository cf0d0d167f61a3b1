//! One task: why it is where it is, every attempt with its pod and its verdict, what its container wrote.

use super::{
    api::{Fields, at_once, made},
    cache::Console,
    guard::{Presser, Viewer, said},
    layout::Place,
    one::{
        Entity, Frame, Line, Look, One, Parts, Rule, WHY_CHARS_MAX, bad, did, fact, history,
        may_only_look, pressed, respond, rules,
    },
    text::{age, excerpt, for_a_page, job_link, moment, pill, short, span, value},
};
use crate::{
    App, Caller, Problem,
    extract::{Named, Params},
    jobs::body::Maybe,
    tasks::{TaskName, asks, desk},
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
use tenure_kernel::{ids::EntityId, time::Timestamp};
use tenure_pods::{
    task::{
        model::Ended,
        table::{CANCELED, FAILED, QUEUED, RETRYING, RUNNING},
    },
    verdict::Cause,
    view::{self, AttemptView, TaskDetail, TaskView, TimelineEntry},
};

/// Attempts that it shows, the newest.
const ATTEMPTS_MAX: usize = 50;
/// Pods that can be taken away by force from one page: those of the newest attempts.
const FORCES_MAX: usize = 3;
/// Characters of the log that it shows, the last.
const LOG_CHARS_MAX: usize = 16_000;

/// A link to a task.
pub(super) fn task_link(id: EntityId) -> Markup {
    html! { a href={ "/tasks/" (id) } title=(id) { code { (short(id)) } } }
}

/// A cause as a tag, with its class.
pub(super) fn cause(ended: &Ended) -> Markup {
    let class = serde_json::to_value(ended.class).unwrap_or_default();
    // Some causes are the only ones of their class.
    let class = class.as_str().filter(|c| ended.cause.map(Cause::name) != Some(*c));
    html! {
        @if let Some(cause) = ended.cause { span.tag { (Cause::name(cause)) } }
        @if let Some(class) = class { " " span.small.dim { (class) } }
        @if let Some(code) = ended.exit_code { " " span.small { "exit " (code) } }
    }
}

/// Everything a page about a task shows.
pub(super) struct Shown {
    detail: TaskDetail,
    log: Option<(u32, String, bool)>,
    look: Look,
}

/// What came of the last press.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Asked {
    did: Option<String>,
}

impl One for Shown {
    fn look(&self) -> &Look {
        &self.look
    }

    fn frame(&self) -> Frame {
        let TaskView { id, name, is_final, .. } = &self.detail.task;
        Frame {
            title: format!("Task {} {}", excerpt(name, 40).0, short(*id)),
            place: Place::Tasks,
            crumbs: html! { a href="/tasks" { "Tasks" } " / " span.mono { (id) } },
            live: (!is_final).then(|| format!("/console/live/tasks/{id}")),
        }
    }

    fn parts(&self) -> Parts {
        let (detail, now) = (&self.detail, self.look.now);
        vec![
            ("top", top(detail, now).into_string()),
            ("moves", moves(self).into_string()),
            ("attempts", attempts(detail, now).into_string()),
            ("log", written(self).into_string()),
            ("order", order(detail).into_string()),
            ("timeline", timeline(detail).into_string()),
        ]
    }
}

impl Entity for Shown {
    /// Its log grows without the task itself. Its history is short.
    const ALWAYS_READ: bool = true;

    async fn read(
        app: &App,
        console: &Console,
        caller: &Caller,
        id: EntityId,
    ) -> Result<Self, Problem> {
        let (head, state) = desk(app)?.task(caller.tenant.as_deref(), id).await?;
        let detail = view::detail(app.pipeline().store(), &head).await?;
        let log = log(app, id, state.attempt).await?;
        Ok(Shown { detail, log, look: Look::at(app, console, caller).await? })
    }

    fn look_again(&mut self, look: Look) {
        self.look = look;
    }

    fn moving(&self) -> Parts {
        self.parts()
    }
}

/// The end of what the container of the last attempt wrote, and whether more will come.
async fn log(
    app: &App,
    id: EntityId,
    attempt: u32,
) -> Result<Option<(u32, String, bool)>, Problem> {
    let (store, mut from, mut text) = (app.pipeline().store(), 1, String::new());
    loop {
        let Some(page) = view::logs(store, id, attempt.max(1), from).await? else {
            return Ok(None);
        };
        text.push_str(&page.text);
        if page.cut {
            text.push_str("\n… more was written than is kept …\n");
        }
        text.extend(page.tail);
        // Only the end is shown: what lies before it need not be kept.
        let chars = text.chars().count();
        if chars > LOG_CHARS_MAX {
            text = text.chars().skip(chars - LOG_CHARS_MAX).collect();
        }
        if !page.more {
            return Ok(Some((page.attempt, text, page.over)));
        }
        from = page.next;
    }
}

/// `GET /tasks/{id}`.
pub(super) async fn page(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Extension(console): Extension<Arc<Console>>,
    id: Result<Named<TaskName>, Problem>,
    asked: Result<Params<Asked>, Problem>,
) -> Response {
    let id = match id {
        Ok(Named(name)) => name.of(&app, &caller).await,
        Err(problem) => Err(problem),
    };
    let id = match id {
        Ok(id) => id,
        Err(problem) => return said(&problem),
    };
    let shown = match Shown::read(&app, &console, &caller, id).await {
        Ok(shown) => shown,
        Err(problem) => return said(&problem),
    };
    let asked = asked.ok().and_then(|Params(asked)| asked.did);
    let words = match asked.as_deref() {
        Some("cancel") => Some("The task was asked to end; its pod is stopped first."),
        Some("retry") => Some("The next attempt does not wait for its pause any more."),
        Some("replay") => Some("This is the new task; the old one stays as it ended."),
        Some("discard") => Some("It is no dead letter any more."),
        Some("force-delete") => Some(
            "The object of its pod is taken away by force, once the pod has had the time that it asked for. That proves nothing about its containers.",
        ),
        _ => None,
    };
    respond(&shown, &caller, did(words), StatusCode::OK)
}

fn top(detail: &TaskDetail, now: Timestamp) -> Markup {
    let task = &detail.task;
    let name = if task.name.is_empty() { "Task" } else { &task.name };
    let asker = detail.order.as_ref().and_then(|order| order.asker.as_ref()).map(|asker| asker.to);
    html! {
        div.head {
            (pill(&task.status, true))
            @if task.cancel.is_some() && !task.is_final { span.pill.retrying { "being cancelled" } }
            @if detail.dead_letter { span.pill.bad { "dead letter" } }
            h1 { (excerpt(name, 100).0) }
            @if !task.tenant.is_empty() { span.tag { (excerpt(&task.tenant, 60).0) } }
        }
        p.why { (for_a_page(&view::why(task, now), WHY_CHARS_MAX)) }
        @if let Some(fault) = &task.fault { (bad("A rule fails on this task:", fault)) }
        dl.facts.small {
            (fact("ordered", html! { (age(task.created_at, now)) " ago" }))
            @if task.is_final { (fact("took", html! { (span(task.changed_at.since(task.created_at))) })) }
            @if task.task_id != task.id.to_string() { (fact("task id", html! { code { (excerpt(&task.task_id, 80).0) } })) }
            @if let Some(job) = asker { (fact("step of job", job_link(job))) }
            @if !task.workflow_id.is_empty() && asker.is_none_or(|job| task.workflow_id != job.to_string()) { (fact("workflow", html! { (excerpt(&task.workflow_id, 80).0) })) }
            (fact("attempt", html! { (task.attempt) @if !task.external { " of at most " (task.attempts_max) } }))
            @if task.external { (fact("pods", html! { "made elsewhere, and watched" })) }
            @if !task.cluster.is_empty() { (fact("cluster", html! { (excerpt(&task.cluster, 60).0) })) }
            @if let Some(look) = task.tended.as_ref().filter(|_| [QUEUED, RUNNING].contains(&task.status.as_str())) {
                (fact("executor", html! { @match &look.executor { Some(name) => (excerpt(name, 60).0), None => span.dim { "none has it" } } }))
            }
            @if task.deferred > 0 { (fact("put off by the budget", html! { (task.deferred) " times" })) }
            @if let Some(of) = task.retry_of { (fact("replays", task_link(of))) }
            @if let Some(new) = detail.replayed_as { (fact("replayed as", task_link(new))) }
            @if let Some(by) = &detail.discarded_by { (fact("put aside by", html! { (excerpt(by, 80).0) })) }
            @if let Some(by) = task.must_end_by { @if !task.is_final { (fact("ends by", html! { (moment(by)) })) } }
        }
        @if let Some(result) = &task.result { div.card { div.cap { h2 { "Result" } } div.in { pre { (excerpt(result, 4_000).0) } } } }
        (rules(task.next_rules.iter().map(|r| Rule { name: &r.rule, wait: None, at: r.at }), now))
    }
}

/// What a person may do where the task stands, and nothing else.
fn moves(shown: &Shown) -> Markup {
    let task = &shown.detail.task;
    let replays = [FAILED, CANCELED].contains(&task.status.as_str()) && !task.external;
    let retries = task.status == RETRYING
        && task.cancel.is_none()
        && !task.external
        && task.waits_for.as_deref() != Some("start");
    let cancels = !task.is_final && task.cancel.is_none();
    let stuck: Vec<&AttemptView> = shown.detail.attempts.iter().filter(|a| is_stuck(a)).collect();
    if !(replays || retries || cancels || shown.detail.dead_letter || !stuck.is_empty()) {
        return html! {};
    }
    if !shown.look.may_press {
        return may_only_look();
    }
    let to = |action: &str| format!("/tasks/{}/{action}", task.id);
    html! {
        div.card {
            @if retries || replays {
                div.cap { h2 { "What moves it" } }
                div.moves {
                    @if retries && task.pod_may_run { section.move {
                        h3 { "Is the old pod gone?" }
                        p { "Look first: if it still runs, the task runs twice." }
                        form method="post" action=(to("retry")) {
                            input type="hidden" name="fenced" value="true";
                            div.row { button.no { "I have seen that it is gone" } }
                        }
                    } }
                    @else if retries { section.move {
                        h3 { "Try again" }
                        p { "The next attempt does not wait for the rest of its pause. It still needs a place in the tenant's budget." }
                        form method="post" action=(to("retry")) { div.row { button.go { "Retry now" } } }
                    } }
                    @if replays { section.move {
                        h3 { "Order it once more" }
                        p { "A new task does the same from its first attempt. This one stays as it is." }
                        form method="post" action=(to("replay")) { div.row { button.go { "Replay as a new task" } } }
                    } }
                }
            }
            @if shown.detail.dead_letter || cancels || !stuck.is_empty() { div.quiet {
                @if shown.detail.dead_letter { form method="post" action=(to("discard")) { button { "Discard" } } }
                @for attempt in stuck.iter().rev().take(FORCES_MAX) { (force(attempt, &to("force-delete"))) }
                @if cancels { details id="cancel" {
                    summary { "Cancel…" }
                    form method="post" action=(to("cancel")) {
                        label for="cancel-why" { "Why? It is kept in the history, and written on the pod." }
                        input id="cancel-why" name="why" autocomplete="off";
                        div { button.no { "Cancel this task" } }
                    }
                } }
            } }
        }
    }
}

/// Its pod was told to go and is still there, and nobody has asked for more.
fn is_stuck(attempt: &AttemptView) -> bool {
    let Some(pod) = &attempt.executor else { return false };
    pod.told_to_go && pod.made && !pod.over && !pod.force_asked
}

/// The one button after which something may run that nobody sees: it says so, and wants a reason.
fn force(attempt: &AttemptView, to: &str) -> Markup {
    let (n, pod) = (attempt.attempt, attempt.executor.as_ref().and_then(|e| e.name.as_deref()));
    let why = format!("force-why-{n}");
    html! {
        details id={ "force-" (n) } {
            summary { "Take its pod away by force…" }
            form method="post" action=(to) {
                p {
                    "The pod of attempt " (n) " " @if let Some(pod) = pod { "(" code { (excerpt(pod, 160).0) } ") " }
                    "was told to go and is still there. Usually it needs a little more time, or its node does not answer. "
                    "Force takes its object out of the cluster and stops nothing: "
                    strong { "its containers may run on where nobody sees them" }
                    ". The task does not take that for their end: no other pod is made because of it."
                }
                input type="hidden" name="attempt" value=(n);
                label for=(why) { "How do you know that it may go? It is kept in the history." }
                input id=(why) name="why" autocomplete="off" required;
                div { button.no { "Take it away by force" } }
            }
        }
    }
}

fn attempts(detail: &TaskDetail, now: Timestamp) -> Markup {
    let hidden = detail.attempts.len().saturating_sub(ATTEMPTS_MAX);
    html! {
        div.card {
            div.cap { h2 { "Attempts" } span.small.dim { (detail.attempts.len()) } }
            @if detail.attempts.is_empty() { div.in.dim { "No pod was asked for or seen yet." } }
            @else {
                @if hidden > 0 { div.in.dim { (hidden) " older attempts are not shown." } }
                div.scroll { table {
                    thead { tr { th { "#" } th { "Verdict" } th { "Pod" } th { "Rule" } th { "What was said" } th.right { "Took" } } }
                    tbody { @for attempt in detail.attempts.iter().skip(hidden) { (self::attempt(&detail.task, attempt, now)) } }
                } }
            }
        }
    }
}

fn attempt(task: &TaskView, attempt: &AttemptView, now: Timestamp) -> Markup {
    let status = attempt.ended.as_ref().and_then(|e| e.status).map(|s| s.name());
    let running = if attempt.running_at.is_some() { "RUNNING" } else { "QUEUED" };
    let status = status.unwrap_or(running);
    let from = attempt.running_at.or(attempt.begun_at);
    let took = from.map(|from| span(attempt.ended_at.unwrap_or(now).since(from)));
    let name = attempt.pod.as_ref().filter(|p| !p.name.is_empty());
    let begun = attempt.executor.as_ref().and_then(|e| e.name.clone());
    let last = attempt.attempt == task.attempt;
    html! {
        tr {
            td { (attempt.attempt) }
            td {
                (pill(status, false))
                @if let Some(ended) = &attempt.ended { " " (cause(ended)) }
                @if attempt.ended.as_ref().is_some_and(|e| e.disrupted) { " " span.pill.retrying { "disrupted" } }
                @if let Some(signal) = attempt.ended.as_ref().and_then(|e| e.signal) { " " span.small { "signal " (signal) } }
            }
            td {
                @match (name, begun) {
                    (Some(pod), _) => { code { (excerpt(&pod.namespace, 63).0) "/" (excerpt(&pod.name, 100).0) } @if let Some(node) = &pod.node { div.small.dim { "on " (excerpt(node, 80).0) } } }
                    (None, Some(name)) => { code { (excerpt(&name, 160).0) } }
                    (None, None) => { span.dim { "none yet" } }
                }
                @if attempt.ended.is_some() && !attempt.pod_over { div { span.pill.attention { "may still run" } } }
                @if let Some(how) = &attempt.fenced { div.small.dim { "over: " (excerpt(how, 120).0) } }
            }
            td { @if let Some(ended) = &attempt.ended { @if !ended.rule.is_empty() { code { (excerpt(&ended.rule, 60).0) } } } }
            td {
                @if let Some(ended) = &attempt.ended {
                    @if !ended.reason.is_empty() { span.tag { (excerpt(&ended.reason, 60).0) } " " }
                    (excerpt(&ended.message, 300).0)
                    @if attempt.filled_in { div.small.dim { "details came late" } }
                } @else if last { span.dim { "under way" } }
                @if attempt.deferred > 0 { div.small { "the budget put the next one off " (attempt.deferred) " times" } }
                @if let Some(why) = attempt.no_retry { div.small { "no further attempt: " (why.words()) } }
            }
            td.right.nowrap { @if let Some(took) = took { (took) @if attempt.ended_at.is_none() { " so far" } } }
        }
    }
}

fn written(shown: &Shown) -> Markup {
    html! {
        @if let Some((attempt, text, over)) = &shown.log {
            @if !text.is_empty() {
                div.card {
                    div.cap { h2 { "Log of attempt " (attempt) } @if !over { span.pill.running { "▶ being followed" } } span.small { a href={ "/v1/tasks/" (shown.detail.task.id) "/logs" } { "all of it, from the API" } } }
                    div.in.scroll { pre { (text) } }
                }
            }
        }
    }
}

fn order(detail: &TaskDetail) -> Markup {
    let api = format!("/v1/tasks/{}", detail.task.id);
    html! {
        @if let Some(order) = &detail.order {
            div.card {
                div.cap { h2 { "What was ordered" } }
                div.in {
                    @if order.template.is_null() { p.dim { "No pod: its pods are made elsewhere." } }
                    @else { (value(&order.template, &api)) }
                    details id="policy" { summary { "Retry policy" } (value(&serde_json::to_value(&order.retry).unwrap_or_default(), &api)) }
                }
            }
        }
    }
}

fn timeline(detail: &TaskDetail) -> Markup {
    history(&format!("/v1/tasks/{}/events", detail.task.id), detail.timeline.iter().map(line))
}

fn line(entry: &TimelineEntry) -> Line<'_> {
    Line {
        version: entry.version,
        at: entry.at,
        by: &entry.by,
        text: &entry.text,
        event: &entry.event,
        rule: entry.rule.as_deref(),
    }
}

/// `POST /tasks/{id}/{action}`.
pub(super) async fn act(
    State(app): State<App>,
    Presser(caller): Presser,
    Extension(console): Extension<Arc<Console>>,
    Path((id, action)): Path<(String, String)>,
    body: Bytes,
) -> Response {
    let Ok(id) = id.parse::<EntityId>() else {
        return said(&Problem::not_found(format!("task {id:?}")));
    };
    let done = carry_out(&app, &caller, id, &action, &Fields::read(&body)).await;
    let to = done.map(|answer| format!("/tasks/{}?did={action}", made(&answer).unwrap_or(id)));
    pressed(&caller, to, Shown::read(&app, &console, &caller, id)).await
}

async fn carry_out(
    app: &App,
    caller: &Caller,
    id: EntityId,
    action: &str,
    fields: &Fields,
) -> Result<Response, Problem> {
    let (state, caller, named) = (State(app.clone()), caller.clone(), Named(TaskName::of_id(id)));
    let why = || fields.body(&["why"]);
    match action {
        "cancel" => asks::cancel(state, caller, named, Maybe(why().read()?)).await,
        "retry" => {
            let retry = fields.body(&[]).with("fenced", fields.is_ticked("fenced"));
            asks::retry(state, caller, named, Maybe(retry.read()?)).await
        }
        "force-delete" => {
            let ask = why().with_some("attempt", fields.number("attempt")?);
            asks::force_delete(state, caller, named, Maybe(ask.read()?)).await
        }
        "replay" => {
            let (headers, replay) = (HeaderMap::new(), Maybe(fields.body(&[]).read()?));
            asks::replay(state, caller, named, at_once(), headers, replay).await
        }
        "discard" => asks::discard(state, caller, named, Maybe(why().read()?)).await,
        other => Err(Problem::not_found(format!("action {other:?}"))),
    }
}
