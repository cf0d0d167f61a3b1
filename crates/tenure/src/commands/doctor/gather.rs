//! Looks. Everything is read through a store that was opened for reading: SQLite read-only, Postgres in read-only
//! transactions, so a mistake here could not write either.

use super::{
    Failure,
    chains::{self, Extent},
    findings::{Alive, Asking, Findings, Jobs, Late, Marked, Tasks, Turns, Unknown},
    places, server,
};
use crate::{
    cli::Doctor,
    commands::{judge, machines},
    config::Settings,
    open::{open_read_only, sqlite_directory, try_bus},
};
use std::{fs, path::Path, sync::Arc, time::Duration};
use tenure_agents::turn::Turn;
use tenure_edge::{SystemClock, TokioRuntime};
use tenure_jobs::{Job, ask, view};
use tenure_kernel::{
    error::StoreError,
    head::Head,
    limits,
    machine::{Machine as _, decode_state},
    runtime::{Clock as _, Runtime as _},
    sessions::Opening,
    store::{HeadFilter, Store},
    table::Class,
    time::Timestamp,
};
use tenure_server::keys;

/// How long the bus may take to answer.
const BUS_PATIENCE: Duration = Duration::from_secs(5);
/// Overdue entities that are read.
const LATE_MAX: usize = 500;
/// Jobs and marked entities that are read.
const LISTED_MAX: usize = 200;
/// Sessions whose first record is read, for the machine they run on.
const SESSIONS_MAX: usize = 200;

/// One look at a deployment.
pub(super) async fn gather(settings: &Settings, options: &Doctor) -> Result<Findings, Failure> {
    let server = match &options.server {
        Some(url) => Some(server::ask(url, options.api_key.as_deref()).await?),
        None => None,
    };
    let url = settings.text("store.url");
    let store = open_read_only(settings, judge()).await?;
    // The first statement opens the connection: what it takes is not the clock's fault.
    store.now().await?;
    let skew_us = match sqlite_directory(url) {
        Some(_) => None,
        None => Some(skew(&*store).await?),
    };
    let health = store.health().await?;
    let all_lanes: Vec<u16> = (0..limits::LANES).collect();
    let (_, overdue) = store.due(all_lanes, Duration::from_secs(1), LATE_MAX).await?;
    let late: Vec<Late> = overdue.iter().filter_map(late).collect();
    let due: Vec<_> = overdue.iter().map(|h| h.id).collect();
    let extent = if options.all { Extent::All } else { Extent::Sample(options.sample) };
    let rt = TokioRuntime::current();
    let chains =
        chains::check(&store, &machines(), &judge().tables, extent, &due, || rt.random()).await?;
    let keys = active_keys(&*store).await?;
    Ok(Findings {
        store: url.to_owned(),
        settings: settings.clone(),
        stuck_after: Duration::from_secs_f64(options.stuck_after),
        skew_us,
        tallies: store.tallies().await?,
        sessions: sessions(&*store, health.now).await?,
        late_is_all: overdue.len() < LATE_MAX,
        late,
        chains,
        marked: marked(&*store).await?,
        blocks: tenure_engine::blocks::read_from(&*store).await?.all().to_vec(),
        jobs: jobs(&store).await?,
        turns: turns(&store).await?,
        tasks: tasks(&store).await?,
        keys: keys.len(),
        key_tenants: keys.into_iter().filter(|tenant| !tenant.is_empty()).collect(),
        accounts: places::accounts(&fs::read_to_string("/etc/passwd").unwrap_or_default()),
        confines_files: tenure_tools::command::confines_files(),
        server,
        bus: try_bus(settings, BUS_PATIENCE).await,
        places: all_places(settings),
        health,
    })
}

/// The clock of this machine less the store's: the middle of a round trip is when the store looked at its clock.
async fn skew(store: &dyn Store) -> Result<i64, StoreError> {
    let (before, there) = (SystemClock.now(), store.now().await?);
    let after = SystemClock.now();
    let middle = before.as_micros() + (after.as_micros() - before.as_micros()) / 2;
    Ok(middle - there.as_micros())
}

fn late(head: &Head) -> Option<Late> {
    Some(Late {
        id: head.id,
        kind: head.kind().to_owned(),
        status: head.status.name().to_owned(),
        due: head.due?,
        must_end_by: head.must_end_by,
        faults: head.faults,
    })
}

async fn sessions(store: &dyn Store, now: Timestamp) -> Result<Vec<Alive>, StoreError> {
    let mut alive = Vec::new();
    for session in store.live_sessions().await? {
        let machine = match alive.len() < SESSIONS_MAX {
            true => store.stream(session.id, 1, 1).await?.first().and_then(Opening::of),
            false => None,
        };
        alive.push(Alive {
            machine: machine.and_then(|o| o.executor).map(|e| e.machine),
            lease: session.lease,
            renewed_ago: now.since(session.renewed_at),
            holds: session.holds.len(),
            name: session.name,
            role: session.role,
        });
    }
    Ok(alive)
}

async fn marked(store: &dyn Store) -> Result<Vec<Marked>, StoreError> {
    let filter = HeadFilter { attention: true, ..HeadFilter::default() };
    let heads = store.heads(filter, LISTED_MAX).await?;
    let marked =
        |h: Head| Some(Marked { id: h.id, kind: h.kind().to_owned(), why: h.attention.clone()? });
    Ok(heads.into_iter().filter_map(marked).collect())
}

async fn jobs(store: &Arc<dyn Store>) -> Result<Jobs, StoreError> {
    let of_jobs = HeadFilter { kind: Some(Job::TABLE.kind.into()), ..HeadFilter::default() };
    let mut jobs = Jobs::default();
    let asking = HeadFilter { status: Some("attention".into()), ..of_jobs.clone() };
    for head in store.heads(asking, LISTED_MAX).await? {
        let Ok(job) = view::of_head(&head) else { continue };
        let reason = job.attention.map_or_else(|| "unknown".to_owned(), |a| a.reason);
        let (id, since) = (head.id, head.changed_at);
        jobs.attention.push(Asking { id, reason, since, must_end_by: head.must_end_by });
        for call in job.running.iter().filter(|c| c.unknown.is_some()) {
            let step = call.step.to_string();
            jobs.unknown.push(Unknown { job: id, step, since, ended: false });
        }
    }
    let letters = ask::dead_letters(store, None, None, LISTED_MAX).await?;
    jobs.more_dead_letters = letters.next.is_some();
    jobs.dead_letters = letters.jobs.len();
    jobs.newest_dead_letter = letters.jobs.iter().map(|j| j.changed_at).max();
    for left in ask::left_unknown(store, &letters.jobs).await? {
        let (job, step, since) = (left.job, left.step.to_string(), left.since);
        jobs.unknown.push(Unknown { job, step, since, ended: true });
    }
    let open = ["queued", "running", "retrying"].map(str::to_owned).to_vec();
    let open = HeadFilter { statuses: open, newest_first: true, ..of_jobs };
    for head in store.heads(open, LISTED_MAX).await? {
        if let Ok(job) = view::of_head(&head)
            && job.takeovers > 0
        {
            jobs.taken_over.push((job.id, job.takeovers, job.takeovers_max));
        }
    }
    Ok(jobs)
}

async fn turns(store: &Arc<dyn Store>) -> Result<Turns, StoreError> {
    let of_turns = HeadFilter { kind: Some(Turn::TABLE.kind.into()), ..HeadFilter::default() };
    let mut turns = Turns::default();
    let newest = HeadFilter { newest_first: true, ..of_turns.clone() };
    for head in store.heads(newest, LISTED_MAX).await? {
        let Ok(state) = decode_state::<Turn>(&head.state) else { continue };
        // What a person says about a letter after the end changes no head.
        let dead = match head.class() == Class::Final && state.dead > 0 {
            true => tenure_agents::view::inbox::dead_items(store, head.id).await?.len() as u64,
            false => u64::from(state.dead),
        };
        if dead > 0 {
            turns.dead_letters += dead;
            turns.with_letters = Some(head.id);
        }
    }
    let waiting = ["dispatched", "ready"].map(str::to_owned).to_vec();
    for head in store.heads(HeadFilter { statuses: waiting, ..of_turns }, LISTED_MAX).await? {
        let Ok(state) = decode_state::<Turn>(&head.state) else { continue };
        turns.waiting += 1;
        let since = head.ready_at.unwrap_or(head.changed_at);
        if turns.longest.as_ref().is_none_or(|(_, _, at)| since < *at) {
            turns.longest = Some((state.target, head.id, since));
        }
    }
    Ok(turns)
}

async fn tasks(store: &Arc<dyn Store>) -> Result<Tasks, StoreError> {
    let letters =
        tenure_pods::desk::letters::dead_letters(store, None, None, LISTED_MAX, |_| true).await?;
    let mut tasks = Tasks {
        dead_letters: letters.tasks.len(),
        newest_dead: letters.tasks.first().map(|(head, _)| head.id),
        ..Tasks::default()
    };
    let wanted = HeadFilter {
        kind: Some(tenure_pods::pod::Pod::TABLE.kind.into()),
        status: Some(tenure_pods::pod::table::WANTED.into()),
        ..HeadFilter::default()
    };
    for head in store.heads(wanted, LISTED_MAX).await? {
        tasks.unclaimed += 1;
        let since = head.ready_at.unwrap_or(head.changed_at);
        if tasks.longest.as_ref().is_none_or(|(_, _, at)| since < *at) {
            tasks.longest = Some((head.queue.clone(), head.id, since));
        }
    }
    Ok(tasks)
}

/// The tenants of the keys that are valid; empty for a key without one.
async fn active_keys(store: &dyn Store) -> Result<Vec<String>, StoreError> {
    let filter = HeadFilter { kind: Some(keys::KIND.into()), ..HeadFilter::default() };
    let heads = store.heads(filter, LISTED_MAX).await?;
    let active = heads.into_iter().filter(|h| h.class() != tenure_kernel::table::Class::Final);
    Ok(active.map(|h| h.tenant).collect())
}

fn all_places(settings: &Settings) -> Vec<places::Place> {
    let mut all = Vec::new();
    if let Some(dir) = sqlite_directory(settings.address("store.url").expose()) {
        all.push(places::look("store.url", &dir));
    }
    let effects = settings.text("effects.directory");
    if !effects.is_empty() {
        all.push(places::look("effects.directory", Path::new(effects)));
    }
    all
}
