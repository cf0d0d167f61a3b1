//! What leaves the store: messages for a wire are published first and removed after the acknowledgement. So they go
//! out at least once, under one stable id, and in order per source.
//!
//! This is a loop beside the one that delivers mail, and not a part of it: a bus that does not answer takes its whole
//! patience for every try, and mail must not wait for that. The loop is bounded however much waits: one batch of rows is
//! read per try, the pause between two tries that failed doubles, and nothing is read while the wire itself says
//! that it is down.

use crate::{
    lanes::{Lanes, awaited, returned},
    pipeline::Pipeline,
    session::Keeper,
    stop::Stop,
};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tenure_kernel::{
    bell::Topic,
    error::StoreError,
    head::lane_of,
    limits,
    outbox::{Carrier, Delivery, DeliveryAnswer, Handover, Posted, Wire},
    runtime::{BoxFuture, First, first},
    store::{Answer, Op},
};

/// How long a wire may take for a batch.
const PATIENCE: Duration = Duration::from_secs(5);
/// The pause after the first try that failed; it doubles.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
/// The longest pause: soon enough after a bus that came back without saying so.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How often the same complaint is written into the log.
const SAID_AGAIN: Duration = Duration::from_secs(60);

/// Publishes what lies in the lanes of this server for others to hear.
pub struct Outside {
    keeper: Keeper,
    lanes: Lanes,
    wire: Arc<dyn Wire>,
    /// What was said last about a wire that does not work, and when.
    said: Mutex<Option<(String, Duration)>>,
}

/// The wire of a deployment without a bus: nobody outside listens, and whoever waits for an answer of somebody out there
/// hears that at once. Everything else goes nowhere, as its operator chose.
#[derive(Clone, Copy, Debug)]
pub struct NoBus;

impl Wire for NoBus {
    fn publish(&self, subject: &str, posted: &Posted) -> BoxFuture<'_, Result<(), StoreError>> {
        let refused = awaited(posted).map(|_| {
            StoreError::Refused(format!(
                "no bus is configured (bus.url), so nobody was told on {subject}: answer by POST /v1/turns/{{id}}/results, and \
                 leave the subject out of the profile"
            ))
        });
        Box::pin(std::future::ready(refused.map_or(Ok(()), Err)))
    }
}

/// What a round came to.
enum Round {
    /// There was nothing to do, or nobody to tell.
    Idle,
    /// Something went out, so that there may be more.
    Moved,
    /// Something is there and none of it went out.
    Stuck,
}

impl Outside {
    /// For this server's session and lanes.
    pub fn new(keeper: Keeper, lanes: Lanes, wire: Arc<dyn Wire>) -> Self {
        Outside { keeper, lanes, wire, said: Mutex::default() }
    }

    fn pipeline(&self) -> &Pipeline {
        self.keeper.pipeline()
    }

    /// Publishes until asked to stop.
    pub async fn run(&self, mut stop: Stop) {
        let rt = self.pipeline().rt().clone();
        let mut ear = self.pipeline().bell().listen(Topic::Outbox);
        let mut pause = PAUSE_FIRST;
        while !stop.asked() {
            let round = self.round(&mut stop).await.unwrap_or_else(|e| {
                tracing::warn!(error = %e, "what leaves the store waits");
                Round::Stuck
            });
            match round {
                Round::Moved => pause = PAUSE_FIRST,
                Round::Idle => {
                    pause = PAUSE_FIRST;
                    let config = self.keeper.config();
                    let heard = async {
                        // Nothing is written for outside: what rings is mail.
                        match config.mute {
                            true => std::future::pending().await,
                            false => ear.heard().await,
                        }
                    };
                    stop.unless(first(heard, rt.sleep(config.tick))).await;
                }
                // Not with the ear: every message that comes would be another try.
                Round::Stuck => {
                    stop.unless(rt.sleep(pause)).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }

    /// Publishes one batch. Being asked to stop ends the wait for the wire, not the removal of what it took.
    async fn round(&self, stop: &mut Stop) -> Result<Round, StoreError> {
        let held = self.lanes.held();
        if !self.wire.is_up() || !self.keeper.live() || held.is_empty() {
            return Ok(Round::Idle);
        }
        let store = self.pipeline().store();
        let rows = store.outbox(held, true, limits::OUTBOX_BATCH_MAX).await?;
        // Only while the lane is ours: a successor's newer messages must not be overtaken.
        let is_ours = |p: &Posted| self.lanes.epoch(lane_of(p.id.source)).is_some();
        let rows: Vec<Posted> = rows.into_iter().filter(is_ours).collect();
        if rows.is_empty() || !self.keeper.live() {
            return Ok(Round::Idle);
        }
        let gone = stop.unless(self.publish(&rows)).await.unwrap_or_default();
        let ops: Vec<Op> = gone.into_iter().filter_map(|(p, why)| self.removal(p, why)).collect();
        if ops.is_empty() {
            return Ok(Round::Stuck);
        }
        let mut removed = false;
        let answers = store.apply(ops.clone()).await?;
        for (op, answer) in ops.iter().zip(&answers) {
            match (op, answer) {
                (Op::Deliver(d), Answer::Deliver(DeliveryAnswer::StaleLane)) => {
                    self.lanes.forget(lane_of(d.id.source));
                }
                (_, Answer::Deliver(answer)) => {
                    // Where the row is still there, at once once more would be the same once more.
                    removed |= matches!(
                        answer,
                        DeliveryAnswer::Delivered { .. }
                            | DeliveryAnswer::TargetFinal
                            | DeliveryAnswer::Gone
                    );
                    // Somebody has heard that nobody heard it.
                    if let (Op::Deliver(d), DeliveryAnswer::Delivered { holder, .. }) = (op, answer)
                        && matches!(d.with, Handover::Mail { .. })
                    {
                        let bell = self.pipeline().bell();
                        bell.ring(holder.map_or(Topic::Due, Topic::Session));
                    }
                }
                _ => {}
            }
        }
        Ok(if removed { Round::Moved } else { Round::Stuck })
    }

    /// Those that need not be published again: acknowledged, or refused for good, with why.
    async fn publish<'a>(&self, rows: &'a [Posted]) -> Vec<(&'a Posted, Option<String>)> {
        let meter = self.pipeline().meter();
        let patience = self.pipeline().rt().sleep(PATIENCE);
        let answers = match first(self.wire.publish_all(rows), patience).await {
            First::Left(answers) => answers,
            First::Right(()) => {
                meter.publish_failed.add(rows.len() as u64);
                self.complain("the wire does not answer".to_owned());
                return Vec::new();
            }
        };
        let (mut gone, mut failed, mut why) = (Vec::with_capacity(rows.len()), 0, None);
        for (posted, answer) in rows.iter().zip(answers) {
            match answer {
                Ok(()) => {
                    meter.published.one();
                    gone.push((posted, None));
                }
                Err(e @ StoreError::Refused(_)) => {
                    meter.publish_refused.one();
                    tracing::error!(message = %posted.id, to = ?posted.message.to, error = %e, "can never be published; dropped");
                    gone.push((posted, Some(e.to_string())));
                }
                Err(e) => {
                    failed += 1;
                    why.get_or_insert(e);
                }
            }
        }
        if let Some(e) = why {
            meter.publish_failed.add(failed);
            self.complain(e.to_string());
        }
        gone
    }

    /// In the log: what is new, and now and then what is not.
    fn complain(&self, error: String) {
        let now = self.pipeline().rt().mono();
        // Nothing panics while it holds this lock.
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let is_old = |(last, at): &(String, Duration)| *last == error && now < *at + SAID_AGAIN;
        if !said.as_ref().is_some_and(is_old) {
            tracing::warn!(%error, "not published; messages stay in the outbox");
            *said = Some((error, now));
        }
    }

    /// The row goes. What was refused, and is waited for by its sender, comes back to it: a call that nobody was told
    /// of is not waited for until its time is up.
    fn removal(&self, posted: &Posted, refused: Option<String>) -> Option<Op> {
        let lane_epoch = self.lanes.epoch(lane_of(posted.id.source))?;
        let with = match refused {
            Some(why) if awaited(posted).is_some() => returned(posted, &why),
            _ => Handover::Nothing,
        };
        let by = Carrier::Lane(lane_epoch);
        Some(Op::Deliver(Box::new(Delivery { id: posted.id, by, with })))
    }
}
