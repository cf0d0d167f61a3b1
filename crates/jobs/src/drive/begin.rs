//! How a worker comes to a run: it has claimed a job, finds its flow in memory or replays it from history, and lets it go.

use super::{
    Reach, Shop,
    load::{LoadError, Loaded},
    points,
    run::{Core, Run, Still},
};
use crate::{
    decide::timers,
    model::{Attention, Job, JobEvent, JobState, OwnEvent},
};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};
use tenure_engine::worker::{Held, HoldError};
use tenure_kernel::{
    commit::MailStance,
    ids::EntityId,
    machine::{Decision, Input, draft},
    table::Class,
    time::Timestamp,
    timers::TimerChange,
};
use tenure_steps::driver::{Driver, Turn, World};

/// Drives a job until it ends, waits, or is lost.
pub(crate) async fn drive(shop: Arc<Shop>, mut held: Held) -> Held {
    let pipeline = held.keeper().pipeline().clone();
    let reach = Reach { shop: shop.clone(), pipeline };
    reach.shop.at(points::CLAIMED).await;
    let job = held.id();
    match prepare(&reach, &held).await {
        Ok(still) => {
            let mut run = Run::new(reach, held.keeper().clone(), &held.head, still.core);
            run.launch(still.starts, held.head.changed_at);
            let went = match run.begin(&mut held, still.turn).await {
                Ok(()) => run.go(&mut held).await,
                Err(e) => Err(e),
            };
            match went {
                Ok(()) => run.starts.clear(),
                Err(HoldError::Lost) => tracing::info!(%job, "lost to another worker"),
                Err(e) => tracing::warn!(%job, error = %e, "given back"),
            }
            run.stop_everything().await;
        }
        Err(LoadError::Store(e)) => {
            tracing::warn!(%job, error = %e, "the history can not be read now");
        }
        Err(LoadError::Unreadable(why)) => unreadable(&mut held, why).await,
    }
    if held.head.class() == Class::Final {
        shop.ends.tell(job, held.head.status.name());
    }
    held
}

/// A history that nobody can read stops the job in `attention`, with the reason.
async fn unreadable(held: &mut Held, why: String) {
    let attention = Attention { reason: "broken".into(), step: None, why, again_in_ms: None };
    let decision = Decision::event(OwnEvent::JobAttention(attention).into())
        .timer(TimerChange::clear(timers::PROGRESS));
    if let Err(e) = commit_park(held, decision, "broken", None).await {
        tracing::warn!(job = %held.id(), error = %e, "a job with an unreadable history");
    }
}

/// A commit that gives up tenure. `read` says up to where mail was read: more refuses it.
pub(crate) async fn commit_park(
    held: &mut Held,
    decision: Decision<JobEvent>,
    why: &str,
    read: Option<u64>,
) -> Result<u64, HoldError> {
    let refused = |e: tenure_kernel::machine::Undecided| HoldError::Refused(e.to_string());
    let state = held.state::<Job>()?;
    let drafted = draft::<Job>(Some(&held.head), state, decision, &Input::TenureEnded(why));
    let Some(drafted) = drafted.map_err(refused)? else { return Ok(held.head.version) };
    let id = held.keeper().pipeline().commit_id();
    let mut commit = drafted.into_commit(id, held.id(), held.expect());
    commit.mail = read.map_or(MailStance::Regardless, MailStance::ReadAll);
    held.commit(commit).await.map(|c| c.version)
}

async fn prepare(reach: &Reach, held: &Held) -> Result<Still, LoadError> {
    let store = reach.pipeline.store();
    let (job, head) = (held.id(), &held.head);
    if let Some(mut still) = reach.shop.memory.take(job) {
        if still.version == head.version {
            return Ok(still);
        }
        // Let go and claimed again, and nobody in between: what is new was decided without a holder. A flow that
        // somebody else has driven meanwhile is replayed.
        if head.epoch == still.epoch + 2 && !reach.shop.options.replay_always {
            let corrections = still.core.loaded.corrections;
            still.core.loaded.read(store, job, still.version + 1).await?;
            still.core.loaded.fetch_children(store, job).await?;
            let same_past = still.core.loaded.corrections == corrections;
            if still.core.loaded.version == head.version && still.core.end.is_none() && same_past {
                return Ok(still);
            }
        }
    }
    let state: JobState = held.state::<Job>().map_err(|e| LoadError::Unreadable(e.to_string()))?;
    // Created and claimed, or created and started by its birth, and nothing else: the head says it all. A flow
    // that was started afresh counts its events anew: there one event more may be a call.
    let untouched = state.run == 1
        && (state.events == 1 || (state.events, head.version, head.epoch) == (2, 2, 1));
    let mut loaded = match (&state.input, untouched) {
        (Some(input), true) => Loaded {
            input: input.clone(),
            state: state.clone(),
            version: head.version,
            ..Loaded::default()
        },
        _ => super::load(store, job).await?,
    };
    if let Some(session) = head.holder {
        loaded.holders.insert(head.epoch, session);
    }
    loaded.history.forget(reach.shop.options.forget);
    let entropy = reach.pipeline.rt().random();
    let (core, turn) =
        Core::start(&reach.shop, job, &head.tenant, loaded, head.changed_at, entropy)?;
    reach.shop.at(points::REPLAYED).await;
    let (version, epoch) = (head.version, head.epoch);
    Ok(Still { core, version, epoch, bytes: 0, starts: Vec::new(), turn })
}

impl Core {
    /// Replays a flow.
    pub fn start(
        shop: &Shop,
        job: EntityId,
        tenant: &str,
        loaded: Loaded,
        now: Timestamp,
        entropy: u64,
    ) -> Result<(Self, Turn), LoadError> {
        let (name, version) = (&loaded.state.flow, loaded.state.version);
        let flow = shop.flows.get(name, version).ok_or_else(|| {
            LoadError::Unreadable(format!("this worker does not know the flow {name}@{version}"))
        })?;
        let run = loaded.state.run;
        let world = World { job, tenant: tenant.to_owned(), run, now, entropy };
        // A cancelled job is undone without its flow, which knows nothing of those steps.
        let cut = loaded.state.cancel.is_some().then(|| loaded.history.without_undos());
        let seen = cut.as_ref().unwrap_or(&loaded.history);
        let (driver, turn) = match loaded.state.failing {
            // Maybe it was the flow over which workers were lost: it is not run again.
            Some(_) => (Driver::none(), Turn::default()),
            None => Driver::start(flow, loaded.input.clone(), seen, world),
        };
        let delivered = loaded.history.order.len();
        let (asks, queue) = (BTreeMap::new(), VecDeque::new());
        Ok((Core { loaded, driver, asks, delivered, end: None, queue, first: None }, turn))
    }
}
