//! Actions on many jobs: somebody looks at what an action would do, and then has it done by a job, whose workers die
//! like all others, while the jobs that are meant go on, others are submitted, and others ask for other things.
//!
//! What must hold is told from the boxes of the jobs, where every ask lies:
//!
//! - nothing is asked of a job that the preview could not have named: of another tenant, of another flow, or newer;
//! - each is asked once, however often the step that asks was repeated, and tried again once;
//! - who was shown, fits, and is still there afterwards has been asked;
//! - the account adds up: what was found is done, skipped or failed.

use super::{
    Off,
    clients::{self, Wish},
    judge,
    plan::FLOW,
    read::{self, Entry},
};
use crate::{scenario::Clients, world::World};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tenure_jobs::{
    JobEvent,
    bulk::{self, Action, Filter, Order},
    model::OwnEvent,
    submit::{Submission, SubmitError, Submitter},
};
use tenure_kernel::{ids::EntityId, mail::Mail, time::Timestamp};
use tenure_steps::events::{CallOutcome, StepEvent, Verdict, WaitOutcome};
use tenure_store::memory::Contents;

const TENANT: &str = "t";
const OTHERS: &str = "others";

/// An action that was shown, and then done.
#[derive(Clone, Debug)]
pub(super) struct Done {
    job: EntityId,
    order: Order,
    shown: Vec<EntityId>,
}

pub(crate) fn play(clients: &Clients, width: Option<u64>) {
    for i in 0..width.unwrap_or_else(|| 3 + clients.below(5)) {
        Wish::draw(&clients.env.world, |draw| draw.plan(1)).spawn(clients, i);
    }
    let c = clients.clone();
    clients.spawn(Box::pin(async move { somebody_else(c).await }));
    for i in 0..1 + clients.below(3) {
        let c = clients.clone();
        clients.spawn(Box::pin(async move { look_and_act(c, i).await }));
    }
    clients::staff(clients);
}

/// Asks until there is an answer.
macro_rules! insist {
    ($c:expr, $ask:expr) => {
        loop {
            match $ask.await {
                Ok(answer) => break answer,
                Err(e) if e.is_transient() => $c.wait(Duration::from_secs(1)).await,
                Err(e) => return $c.env.world.fail(format!("an action on many failed: {e}")),
            }
        }
    };
}

/// A job of another tenant, that waits until its time is up: nobody here may touch it.
async fn somebody_else(c: Clients) {
    let submission = Submission {
        flow: FLOW.into(),
        input: json!({ "body": { "sleep": 100_000 }, "then": null, "so_far": [] }),
        tenant: OTHERS.into(),
        key: Some("others".into()),
        ..Submission::default()
    };
    submit(&c, submission).await;
}

async fn submit(c: &Clients, submission: Submission) -> Option<EntityId> {
    let submitter = Submitter::new(c.pipeline.clone(), judge(), Duration::from_secs(900), 50);
    loop {
        match submitter.submit(submission.clone()).await {
            Ok(done) => return Some(done.id),
            Err(SubmitError::UnknownFlow { .. }) => {}
            Err(SubmitError::Store(e)) if e.is_transient() => {}
            Err(e) => {
                c.env.world.fail(format!("it can not be submitted: {e}"));
                return None;
            }
        }
        c.wait(Duration::from_secs(1)).await;
    }
}

async fn look_and_act(c: Clients, i: u64) {
    for n in 0..1 + c.below(3) {
        c.wait(c.some(Duration::from_secs(60))).await;
        let store = c.env.store.clone();
        let horizon: Timestamp = insist!(c, store.now());
        let order =
            Order { action: action(&c), filter: filter(&c), horizon, by: Some("ada".into()) };
        let preview = insist!(c, bulk::preview(&store, &order, TENANT));
        // A person reads it.
        c.wait(c.some(Duration::from_secs(20))).await;
        let mut sent = order.clone();
        if c.env.world.town.setup().off == Some(Off::BulkHorizon) {
            sent.horizon = sent.horizon + Duration::from_secs(3_600);
        }
        let submission = Submission {
            flow: bulk::FLOW.into(),
            input: json!({ "order": sent }),
            tenant: TENANT.into(),
            key: Some(format!("bulk/{i}/{n}")),
            ..Submission::default()
        };
        // Sent twice, it is one job.
        for _ in 0..1 + c.below(2) {
            let Some(job) = submit(&c, submission.clone()).await else { return };
            let shown = preview.first.iter().map(|v| v.id).collect();
            c.env.world.sim.trace(format!("{job} does {:?} to {shown:?}", order.action));
            c.env.world.town.note_bulk(Done { job, order: order.clone(), shown });
        }
    }
}

fn action(c: &Clients) -> Action {
    match c.below(8) {
        0 | 1 => Action::Cancel { why: None },
        2 => Action::Pause { why: None },
        3 => Action::Resume { why: None },
        4 | 5 => Action::Retry { version: None },
        _ => Action::Signal {
            key: format!("s{}", 1 + c.below(2)),
            outcome: WaitOutcome::Signalled,
            payload: json!(c.below(1_000)),
            early: c.below(2) == 0,
        },
    }
}

fn filter(c: &Clients) -> Filter {
    let status = match c.below(4) {
        0 => vec!["waiting".to_owned(), "parked".to_owned(), "retrying".to_owned()],
        _ => Vec::new(),
    };
    // Not the actions themselves.
    Filter { flow: Some(FLOW.into()), status, ..Filter::default() }
}

pub(crate) fn check(world: &World, contents: &Contents) -> Result<(), String> {
    let bulks: BTreeMap<EntityId, Done> =
        world.town.bulks().into_iter().map(|d| (d.job, d)).collect();
    let mut retries: BTreeSet<EntityId> = BTreeSet::new();
    let mut asked: BTreeMap<EntityId, BTreeSet<EntityId>> = BTreeMap::new();
    for head in contents.rows.heads.values().filter(|h| h.kind() == "job") {
        let events = read::events(contents, head.id)?;
        let Some(JobEvent::Own(OwnEvent::JobCreated(new))) = events.first().map(|e| &e.event)
        else {
            continue;
        };
        let mail = contents.mail.get(&head.id).map_or(&[][..], Vec::as_slice);
        for done in bulks.values() {
            let here = mail.iter().filter(|m| is_of(m, done.job)).count();
            if here > 1 {
                return Err(format!("{}: asked {here} times by {}", head.id, done.job));
            }
            if here == 1 {
                asked.entry(done.job).or_default().insert(head.id);
            }
        }
        if let Some(origin) = new.retry_of {
            if !retries.insert(origin) {
                return Err(format!("{origin}: tried again twice"));
            }
            let by = new.by.clone().unwrap_or_default();
            if let Some(done) = bulks.values().find(|d| by.contains(&d.job.to_string())) {
                asked.entry(done.job).or_default().insert(origin);
            }
        }
    }
    for done in bulks.values() {
        let none = BTreeSet::new();
        named(done, asked.get(&done.job).unwrap_or(&none), contents)?;
    }
    Ok(())
}

/// Whether a mail is an ask of this action.
fn is_of(mail: &Mail, bulk: EntityId) -> bool {
    let body = mail.body.inline().unwrap_or_default();
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    body["by"].as_str().is_some_and(|by| by.contains(&format!("(bulk {bulk})")))
}

fn named(done: &Done, asked: &BTreeSet<EntityId>, contents: &Contents) -> Result<(), String> {
    let bulk = done.job;
    for id in asked {
        let Some(head) = contents.rows.heads.get(id) else { continue };
        if head.tenant != TENANT || head.created_at > done.order.horizon {
            return Err(format!("{bulk}: asks {id}, which it could not have named: {head:?}"));
        }
    }
    let events = read::events(contents, bulk)?;
    let Some(output) = read::output(&events) else {
        // Its own time was up, or somebody gave up a step of it: nothing is promised then.
        return Ok(());
    };
    let count = |reasons: &Value| -> u64 {
        reasons.as_object().into_iter().flatten().filter_map(|(_, n)| n.as_u64()).sum()
    };
    let told =
        output["done"].as_u64().unwrap_or(0) + count(&output["skipped"]) + count(&output["failed"]);
    let found = found(&events);
    if told != found {
        return Err(format!("{bulk}: found {found}, and accounts for {told}: {output}"));
    }
    let Some(over) = events.last().map(|e| e.at) else { return Ok(()) };
    if !matches!(done.order.action, Action::Cancel { .. }) || !done.order.filter.status.is_empty() {
        return Ok(());
    }
    for id in &done.shown {
        let events = read::events(contents, *id)?;
        let ended = events.last().map(|e| e.at);
        let cancelling = events.iter().any(|e| {
            matches!(
                e.event,
                JobEvent::Own(OwnEvent::JobCancelling { .. } | OwnEvent::JobCancelled { .. })
            ) && e.at <= over
        });
        let told = contents.mail.get(id).is_some_and(|m| m.iter().any(|m| m.id.0 == "cancel"));
        if !asked.contains(id) && !told && !cancelling && ended.is_some_and(|at| at > over) {
            return Err(format!("{bulk}: {id} was shown, was there, and was not asked"));
        }
    }
    Ok(())
}

/// How many jobs its steps have found, fit or not.
fn found(events: &[Entry]) -> u64 {
    let results = events.iter().filter_map(|e| match &e.event {
        JobEvent::Step(StepEvent::ToolInvocationFinished {
            outcome: CallOutcome::Success,
            result: Some(result),
            ..
        })
        | JobEvent::Step(StepEvent::EffectSettled {
            verdict: Verdict::Happened,
            result: Some(result),
            ..
        }) => Some(result),
        _ => None,
    });
    let pages = results.filter(|r| r.get("looked").is_some());
    pages
        .map(|page| {
            let skipped = page["skipped"].as_object().into_iter().flatten();
            let skipped: u64 = skipped.filter_map(|(_, n)| n.as_u64()).sum();
            page["jobs"].as_array().map_or(0, |jobs| jobs.len() as u64) + skipped
        })
        .sum()
}

/// Whether this is the job of an action.
pub(super) fn is_bulk(flow: &str) -> bool {
    flow == bulk::FLOW
}
