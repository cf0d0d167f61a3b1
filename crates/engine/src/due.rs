//! The due loop: one loop that serves what is due, for every kind of entity. It *is* the watchdog.
//!
//! Safe with any number of servers: every commit it makes says which version and epoch it decided on,
//! so two servers that serve the same entity can not both win. Fast with many, because each serves the
//! lanes it holds at once and those of others only when they are overdue by two ticks.
//!
//! Fair: a round is bounded, longest due first, and a failing entity pushes itself back with backoff,
//! so dead items can not starve live ones. A round that is full has a backlog before it, maybe a million starts that
//! one tenant wanted at nine. Then those that came due last are served beside it: a signal, or a schedule of somebody
//! else a second later, does not wait for its end.

use crate::{
    config::EngineConfig,
    lanes::Lanes,
    pipeline::Pipeline,
    serve::{Judging, Served, Server},
    stop::Stop,
};
use futures_util::future::join_all;
use std::{
    collections::HashSet,
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tenure_kernel::{
    bell::Topic,
    error::StoreError,
    head::Head,
    housekeeping::PulseRequest,
    ids::{EntityId, SessionId},
    limits,
    rules::{self, Tallies, Tally},
    runtime::{First, first},
    sessions::lane_id,
    store::{Op, Touch},
    time::Timestamp,
};

/// Serves what is due.
pub struct DueLoop {
    server: Server,
    lanes: Lanes,
    tallies: Mutex<Tallies>,
    protect_outage: bool,
    /// Until when holders are not judged because the store had never had a pulse. Its rules have nobody to wait for.
    new_until: Mutex<Option<Timestamp>>,
}

impl DueLoop {
    /// A loop for the lanes that this server holds.
    pub fn new(server: Server, lanes: Lanes) -> Self {
        let (tallies, new_until) = (Mutex::default(), Mutex::default());
        DueLoop { server, lanes, tallies, protect_outage: true, new_until }
    }

    /// Drills only: judge holders at once after an outage.
    pub fn without_outage_protection(mut self) -> Self {
        self.protect_outage = false;
        self
    }

    fn config(&self) -> &EngineConfig {
        &self.server.config
    }

    /// Serves until asked to stop. A store that is away is waited for, with a pause.
    pub async fn run(&self, mut stop: Stop) {
        let pipeline = &self.server.pipeline;
        let rt = pipeline.rt().clone();
        let mut ear = pipeline.bell().listen(Topic::Due);
        let mut next_pulse = Duration::ZERO;
        let mut judge = Judgement::NEVER;
        // What was known to be due next when the loop lay down, if no bell woke it.
        let mut expected = None;
        let meter = pipeline.meter();
        while !stop.asked() {
            if rt.mono() >= next_pulse {
                match self.pulse().await {
                    Ok(known) => {
                        judge = known;
                        next_pulse = rt.mono() + self.config().tick;
                        meter.pulses.one();
                    }
                    Err(e) => {
                        tracing::warn!(error = %e, "no pulse; holders are not judged without one");
                        meter.pulses_failed.one();
                        judge = Judgement::NEVER;
                        stop.unless(rt.sleep(self.config().tick / 5)).await;
                        continue;
                    }
                }
                self.free_lanes(judge).await;
                // What other servers hold and do not serve.
                self.round(limits_all(), self.config().tick * 2, judge, None).await;
            }
            let unrung = expected.take();
            let more = self.round(self.lanes.held(), Duration::ZERO, judge, unrung).await;
            if more {
                continue;
            }
            let (nap, next) = self.nap().await;
            let nap = nap.min(next_pulse.saturating_sub(rt.mono()));
            match stop.unless(first(ear.heard(), rt.sleep(nap))).await {
                Some(First::Left(())) => meter.woken_by_bell.one(),
                Some(First::Right(())) => {
                    meter.woken_by_time.one();
                    expected = next;
                }
                None => {}
            }
        }
        // What the rules did since the last pulse must not go with the process.
        if let Err(e) = self.pulse().await {
            tracing::debug!(error = %e, "no last pulse");
        }
    }

    /// Leaves a pulse with what the rules did, and learns from when on silence is judged.
    async fn pulse(&self) -> Result<Judgement, StoreError> {
        let tallies = std::mem::take(&mut *self.tallies());
        let config = self.config();
        let request =
            PulseRequest { gap: config.pulse_gap, lease: config.lease, tallies: tallies.clone() };
        match self.server.pipeline.store().pulse(request).await {
            Ok(pulse) => {
                if let Some(silence) = pulse.outage {
                    tracing::warn!(
                        ?silence,
                        "the store was silent; nobody is judged for one lease"
                    );
                    self.count("outage", Duration::ZERO, false, pulse.now);
                }
                // Nothing panics while it holds this lock.
                let mut new_until = self.new_until.lock().unwrap_or_else(PoisonError::into_inner);
                // Only the first pulse ever puts off without an outage.
                if pulse.outage.is_none() && pulse.judge_after == pulse.now + config.lease {
                    *new_until = Some(pulse.judge_after);
                }
                let rules = match *new_until == Some(pulse.judge_after) {
                    true => Timestamp::ZERO,
                    false => pulse.judge_after,
                };
                let after = Judging { holders: pulse.judge_after, rules };
                Ok(match self.protect_outage {
                    true => Judgement { after, until: pulse.now + config.pulse_gap },
                    false => Judgement { after: Timestamp::ZERO.into(), until: Timestamp::MAX },
                })
            }
            Err(e) => {
                rules::add(&mut self.tallies(), &tallies);
                Err(e)
            }
        }
    }

    /// Lanes are looked after by every server: a lane of a dead server can not wait for whoever serves it.
    async fn free_lanes(&self, judge: Judgement) {
        let store = self.server.pipeline.store();
        let held = self.lanes.held();
        for lane in (0..limits::LANES).filter(|lane| !held.contains(lane)) {
            let (Ok(now), Ok(Some(head))) = (store.now().await, store.head(lane_id(lane)).await)
            else {
                return;
            };
            if head.due.is_some_and(|due| due <= now) && self.visit(&head, now, judge).await {
                self.server.pipeline.bell().ring(Topic::Outbox);
            }
        }
    }

    /// Serves one bounded batch. Whether there may be more at once. `unrung`: nothing was to be due before it, as far
    /// as anybody had rung; what is due earlier all the same came without a bell.
    async fn round(
        &self,
        lanes: Vec<u16>,
        overdue: Duration,
        judge: Judgement,
        unrung: Option<Timestamp>,
    ) -> bool {
        if lanes.is_empty() {
            return false;
        }
        let store = self.server.pipeline.store();
        let (now, mut heads) = match store.due(lanes.clone(), overdue, limits::DUE_BATCH_MAX).await
        {
            Ok(found) => found,
            Err(e) => {
                tracing::warn!(error = %e, "what is due could not be read");
                return false;
            }
        };
        let early = |h: &&Head| h.due.zip(unrung).is_some_and(|(due, next)| due < next);
        self.server.pipeline.meter().bells_missed.add(heads.iter().filter(early).count() as u64);
        let full = heads.len() == limits::DUE_BATCH_MAX;
        if full {
            self.add_latest(&mut heads, lanes, now - overdue).await;
        }
        let served = join_all(heads.iter().map(|head| self.visit(head, now, judge))).await;
        // A round that moved nothing must not spin.
        let moved = served.iter().any(|moved| *moved);
        moved && (full || !served.is_empty())
    }

    async fn add_latest(&self, heads: &mut Vec<Head>, lanes: Vec<u16>, by: Timestamp) {
        let store = self.server.pipeline.store();
        match store.latest_due(lanes, by, limits::DUE_LATEST_MAX).await {
            Ok(mut latest) => {
                // Twice in one round it would lose to itself.
                let known: HashSet<EntityId> = heads.iter().map(|h| h.id).collect();
                latest.retain(|h| !known.contains(&h.id));
                heads.extend(latest);
            }
            Err(e) => tracing::warn!(error = %e, "what came due last could not be read"),
        }
    }

    async fn visit(&self, head: &Head, now: Timestamp, judge: Judgement) -> bool {
        // The next pulse says what is true now.
        if now > judge.until {
            return false;
        }
        let served = self.server.serve(head, now, judge.after).await;
        tracing::trace!(entity = %head.id, kind = head.kind(), status = head.status.name(), ?served, "visited");
        match served {
            Ok(Served::Fired { rule, lag, timer }) => {
                for rule in [Some(rule), timer].into_iter().flatten() {
                    self.server.pipeline.meter().rule(rule, head.kind(), false);
                    self.count(rule, lag, false, now);
                }
                true
            }
            Ok(Served::Failed { rule, marked }) => {
                self.server.pipeline.meter().rule(rule, head.kind(), true);
                self.count(rule, Duration::ZERO, true, now);
                if marked {
                    self.count("attention", Duration::ZERO, false, now);
                }
                false
            }
            Ok(Served::Nothing) => false,
            // Read again after a pause: what was read may be older than what it lost to.
            Ok(Served::Overtaken) => false,
            Err(e) => {
                tracing::warn!(entity = %head.id, error = %e, "not served; the next round tries again");
                false
            }
        }
    }

    fn tallies(&self) -> std::sync::MutexGuard<'_, Tallies> {
        // Nothing panics while it holds this lock.
        self.tallies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, rule: &str, lag: Duration, failed: bool, now: Timestamp) {
        let tally = Tally {
            fired: u64::from(!failed),
            failed: u64::from(failed),
            lag_max: lag,
            last_at: Some(now),
        };
        rules::add(&mut self.tallies(), &Tallies::from([(rule.to_owned(), tally)]));
    }

    /// How long nothing will be due, at most one tick, and what is due next.
    async fn nap(&self) -> (Duration, Option<Timestamp>) {
        let tick = self.config().tick;
        let lanes = self.lanes.held();
        if lanes.is_empty() {
            return (tick.min(Duration::from_millis(100).max(tick / 10)), None);
        }
        match self.server.pipeline.store().next_due(lanes).await {
            // Past ones were just served or pushed back; a short pause keeps a lost race from spinning.
            Ok((now, Some(due))) => {
                (due.since(now).clamp(Duration::from_millis(2), tick), Some(due))
            }
            Ok((_, None)) => (tick, Some(Timestamp::MAX)),
            Err(_) => (tick, None),
        }
    }
}

/// What a pulse says about judging. A loop that was stopped between its pulse and its look may look after an outage of
/// which that pulse knew nothing: so a pulse counts for as long as the store would call no outage.
#[derive(Clone, Copy, Debug)]
struct Judgement {
    after: Judging,
    until: Timestamp,
}

impl Judgement {
    const NEVER: Self = Judgement {
        after: Judging { holders: Timestamp::MAX, rules: Timestamp::MAX },
        until: Timestamp::ZERO,
    };
}

fn limits_all() -> Vec<u16> {
    (0..limits::LANES).collect()
}

/// Moves the checks of everything that a session held to now. Fences nothing: each check decides.
pub async fn ring_checks_of(pipeline: &Pipeline, session: SessionId) {
    let holds = match pipeline.store().session(session).await {
        Ok(Some(session)) => session.holds,
        Ok(None) => return,
        Err(e) => {
            tracing::debug!(error = %e, "checks are not rung; they come by themselves");
            return;
        }
    };
    let touch = |entity, epoch| Touch {
        entity,
        epoch,
        version: 0,
        due: None,
        check_at: None,
        faults: 0,
        ring_only: true,
    };
    let rings = holds.iter().map(|h| pipeline.submit(Op::Touch(touch(h.entity, h.epoch))));
    for result in join_all(rings).await {
        if let Err(e) = result {
            tracing::debug!(error = %e, "a check is not rung; it comes by itself");
        }
    }
}
