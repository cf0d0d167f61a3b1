//! Seasons: what jobs share is left alone until it is vacant and retention takes it, or is about to; then everybody comes back
//! under the same names, in another storm. So gates and batches leave and come again while servers die and see the past,
//! and mail meets retention. What was removed is kept aside for the checkers ([`crate::oracle`]).

use crate::{scenario::Clients, world::World};
use std::time::Duration;
use tenure_engine::config::EngineConfig;
use tenure_jobs::gate::Gate;
use tenure_kernel::{head::Head, machine::decode_state, runtime::Clock as _, time::Timestamp};

/// What is final or vacant is kept for so long. Longer than any job of a season lasts.
const RETENTION: Duration = Duration::from_secs(20 * 60);
/// Polls of a season that are no livelock: most of it is waiting.
const POLLS: u64 = 1_500_000;

/// How a server runs here.
pub(crate) fn config(world: &World, usual: EngineConfig) -> EngineConfig {
    match world.town.setup().seasons {
        0 => usual,
        // Nothing is sealed: checkers read whole histories.
        _ => EngineConfig { retention: RETENTION, ..EngineConfig::default() },
    }
}

/// Runs the seasons after the first one.
pub(super) fn play(
    clients: &Clients,
    kind: &'static str,
    come: impl Fn(&Clients, u64) + Send + Sync + 'static,
) {
    let seasons = clients.env.world.town.setup().seasons;
    if seasons == 0 {
        return;
    }
    clients.env.world.sim.allow(seasons * POLLS);
    let c = clients.clone();
    clients.spawn(Box::pin(async move {
        for season in 1..=seasons {
            let since = vacant(&c, kind).await;
            // A while before retention may take it, until a while after it did.
            let patience = RETENTION.saturating_sub(Duration::from_secs(20));
            let comes = since + patience + c.some(Duration::from_secs(120));
            while now(&c) < comes {
                c.wait(Duration::from_secs(1)).await;
            }
            c.env.world.sim.trace(format!("season {season}"));
            come(&c, season);
            c.env.world.town.begin_season();
        }
    }));
}

fn now(c: &Clients) -> Timestamp {
    crate::executor::WallClock(c.env.world.sim.clone()).now()
}

/// Since when all of a kind are vacant, or gone.
async fn vacant(c: &Clients, kind: &'static str) -> Timestamp {
    loop {
        c.wait(Duration::from_secs(5)).await;
        // Others are still at it.
        let busy = c.left() > 2;
        let last = c.env.world.store.inspect(|contents| {
            let heads = contents.rows.heads.values().filter(|h| h.kind() == kind && !stays(h));
            let since = heads.map(|h| h.is_vacant().then_some(h.changed_at));
            since.collect::<Option<Vec<_>>>().map(|all| all.into_iter().max())
        });
        if let (false, Some(since)) = (busy, last) {
            return since.unwrap_or_else(|| now(c));
        }
    }
}

/// A gate whose limit a person set never leaves.
fn stays(head: &Head) -> bool {
    let gate = (head.kind() == "gate").then(|| decode_state::<Gate>(&head.state).ok()).flatten();
    gate.is_some_and(|g| g.set_by.is_some())
}
