//! Rate limits in front of a call: everything here happens before `started` is recorded, so a job that waits for a
//! limit has begun nothing that anybody could wonder about.
//!
//! A short wait stays in memory with the job held. A longer one is recorded with its tokens, the job gives up its
//! holder, and a timer wakes it a little early. Who comes back too late finds its tokens void and takes others; it then
//! stays for them, or a busy worker could be too late for ever.
//!
//! A call may have to pass two limits, its tenant's and everybody's. It takes the token that is farthest away first and
//! the other when that is near: taken at once, the nearer one would be void before the farther is good, and its place lost.
//! A token stays good while its step waits for one of another limit ([`still_good`]), or two busy limits
//! might never have good tokens at the same moment.

use super::{limits, run::Run};
use crate::{decide::timers, model::limits as job_limits, shared::limit::Spec};
use std::time::Duration;
use tenure_engine::worker::HoldError;
use tenure_kernel::{error::StoreError, ids::EntityId, time::Timestamp, timers::TimerChange};
use tenure_steps::{
    desk::{Ask, Asked},
    events::{LimitWait, StepEvent, StepId, TimerWhy, Token},
};

/// A wait for a limit that is not longer stays in memory.
pub const HELD_MAX: Duration = Duration::from_secs(2);
/// The same for a step that came back too late for its token once.
pub const HELD_AFTER_LATE_MAX: Duration = Duration::from_secs(30);
/// A wait on record is looked at again after a tenth of it, within these bounds: somebody may have changed the limit.
pub const LOOK_AGAIN: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(600));
/// So much before its token is good a waiting job is woken.
pub const LEAD: Duration = Duration::from_secs(1);
/// Steps of one job that wait for limits with a timer of their own; the rest comes after them.
pub const WAITS_MAX: usize = 16;
/// When to ask again where a limit could not be asked.
const AGAIN: Duration = Duration::from_millis(500);

impl Run {
    /// Whether a call of this step may begin now. If not, the step comes back by itself.
    pub(crate) async fn admitted(&mut self, asked: &Asked) -> Result<bool, HoldError> {
        let Ask::Tool { tool, .. } = &asked.ask else { return Ok(true) };
        let limits::Wanted { limits: wanted, each } =
            match limits::of(&self.reach, &self.tenant, tool).await {
                Ok(wanted) if wanted.limits.is_empty() => return Ok(true),
                Ok(wanted) => wanted,
                Err(e) => return self.ask_later(asked, e),
            };
        let each = each.as_ref();
        if self.unborn {
            // A limit is asked by a worker that has the job, not by whoever creates it.
            return Err(HoldError::Lost);
        }
        let step = &asked.step;
        let now = self.now();
        let mut tokens = self.reserved(step);
        let before = tokens.len();
        tokens = still_good(tokens, &wanted, now);
        let was_late = tokens.len() < before;
        // Far away: the limit may have been changed or removed since the token was taken.
        if let Some(far) = tokens.iter().max_by_key(|t| t.from).filter(|t| is_far(t, now)).copied()
        {
            match self.reach.shop.limits.free_at(&self.reach.pipeline, far.limit, each).await {
                Ok(Some(at)) if at >= far.from => {}
                Ok(_) => tokens.retain(|t| t.limit != far.limit),
                Err(e) => {
                    self.tokens.insert(step.clone(), tokens);
                    return self.ask_later(asked, e);
                }
            }
        }
        if tokens.is_empty() && !was_late && !self.room_for_a_limit() {
            self.aside.insert(step.clone());
            return Ok(false);
        }
        let missing = |tokens: &[Token]| {
            let has = |limit: &EntityId| tokens.iter().any(|t| t.limit == *limit);
            wanted.iter().filter(|l| !has(l)).copied().collect::<Vec<_>>()
        };
        let mut wanted = missing(&tokens);
        if wanted.len() > 1 {
            wanted = match self.farthest_first(wanted, each).await {
                Ok(wanted) => wanted,
                Err(e) => {
                    self.tokens.insert(step.clone(), tokens);
                    return self.ask_later(asked, e);
                }
            };
        }
        for limit in wanted {
            if tokens.iter().any(|t| is_far(t, now)) {
                break;
            }
            match self.reach.shop.limits.take(&self.reach.pipeline, limit, each).await {
                Ok(token) => tokens.extend(token),
                Err(e) => {
                    self.tokens.insert(step.clone(), tokens);
                    return self.ask_later(asked, e);
                }
            }
        }
        let now = self.now();
        let from = tokens.iter().map(|t| t.from).max().unwrap_or(now);
        let wait = from.since(now);
        if wait.is_zero() {
            return Ok(true);
        }
        let held_max = if was_late { HELD_AFTER_LATE_MAX } else { HELD_MAX };
        if wait <= held_max {
            self.tokens.insert(step.clone(), tokens);
            self.limited.insert(step.clone(), from);
        } else {
            let (least, most) = LOOK_AGAIN;
            let look = (wait / 10).clamp(least, most);
            self.wait_for_limit(asked, tokens, wait.saturating_sub(LEAD).min(look));
        }
        Ok(false)
    }

    /// These limits, the one whose next token is good last before the others.
    async fn farthest_first(
        &self,
        wanted: Vec<EntityId>,
        each: Option<&Spec>,
    ) -> Result<Vec<EntityId>, StoreError> {
        let (limits, pipeline) = (&self.reach.shop.limits, &self.reach.pipeline);
        let mut known = Vec::new();
        for limit in wanted {
            known.push((limits.free_at(pipeline, limit, each).await?, limit));
        }
        known.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        Ok(known.into_iter().map(|(_, limit)| limit).collect())
    }

    /// Tokens that this step has already: in memory, or on record from before it waited.
    fn reserved(&mut self, step: &StepId) -> Vec<Token> {
        let recorded = || {
            self.core.loaded.history.steps.get(step).map(|r| r.tokens.clone()).unwrap_or_default()
        };
        self.tokens.remove(step).unwrap_or_else(recorded)
    }

    /// More than a few timers are of no use: what waits behind them waits longer anyway.
    fn room_for_a_limit(&self) -> bool {
        let state = &self.core.loaded.state;
        let mine = state.timers.iter().filter(|t| t.why == TimerWhy::Limit).count();
        let full = state.waits.len() + state.timers.len() >= job_limits::WAITS_MAX;
        // Without a timer of its own kind nothing would bring it back.
        mine < WAITS_MAX && !(full && mine > 0)
    }

    fn ask_later(&mut self, asked: &Asked, e: StoreError) -> Result<bool, HoldError> {
        if self.unborn {
            return Err(HoldError::Lost);
        }
        tracing::debug!(job = %self.id, step = %asked.step, error = %e, "a limit can not be asked now");
        let at = self.now() + AGAIN;
        self.limited.insert(asked.step.clone(), at);
        Ok(false)
    }

    fn wait_for_limit(&mut self, asked: &Asked, tokens: Vec<Token>, after: Duration) {
        let Ask::Tool { tool, arguments_hash, .. } = &asked.ask else { return };
        let state = &self.core.loaded.state;
        if state.waits.len() + state.timers.len() >= job_limits::WAITS_MAX {
            // No room for a timer: the job stays here, and looks again.
            let at = self.now() + HELD_MAX;
            self.tokens.insert(asked.step.clone(), tokens);
            self.limited.insert(asked.step.clone(), at);
            return;
        }
        let (step, after_ms) = (asked.step.clone(), super::asks::millis(after));
        self.pending.timers.push(TimerChange::set(timers::step(&step), after));
        let (tool, arguments_hash) = (tool.clone(), arguments_hash.clone());
        let limit = Some(Box::new(LimitWait { tool, arguments_hash, tokens }));
        let place = asked.place.clone();
        self.record(StepEvent::TimerSet { step, why: TimerWhy::Limit, after_ms, place, limit });
    }

    /// Steps whose token is good by now go on; all of them where the job is to stop.
    pub(super) fn wake_limited(&mut self) {
        if self.limited.is_empty() {
            return;
        }
        let now = self.now();
        let stops = self.only_stops() && self.finding.is_empty();
        let back = self.pause.is_some() || self.draining || stops;
        let due = |at: &Timestamp| back || *at <= now;
        let awake: Vec<StepId> =
            self.limited.iter().filter(|(_, at)| due(at)).map(|(step, _)| step.clone()).collect();
        for step in awake {
            self.limited.remove(&step);
            self.requeue(step);
        }
    }

    /// A limit's timer fired: who stood behind it may try as well.
    pub(super) fn wake_aside(&mut self) {
        for step in std::mem::take(&mut self.aside) {
            self.requeue(step);
        }
    }

    /// Timers go in other ways too: a step that the flow no longer waits for takes its own with it. Whoever stands
    /// behind has then nobody to wake it, so it tries as soon as there is room. Whether there was.
    pub(super) fn wake_aside_if_room(&mut self) -> bool {
        let wakes = !self.aside.is_empty() && self.room_for_a_limit();
        if wakes {
            self.wake_aside();
        }
        wakes
    }

    fn requeue(&mut self, step: StepId) {
        if !self.core.queue.contains(&step) {
            self.core.queue.push_back(step);
        }
    }

    /// How long until the first of them goes on.
    pub(super) fn next_limited(&self) -> Option<Duration> {
        let now = self.now();
        self.limited.values().min().map(|at| at.since(now))
    }
}

/// Whether nobody stays in memory for this token.
fn is_far(token: &Token, now: Timestamp) -> bool {
    token.from.since(now) > HELD_MAX
}

/// The tokens that a step can still use: all that are wanted while the last of them is good, else those that are.
pub fn still_good(mut tokens: Vec<Token>, wanted: &[EntityId], now: Timestamp) -> Vec<Token> {
    tokens.retain(|t| wanted.contains(&t.limit));
    let last = tokens.iter().max_by_key(|t| t.from).map(|t| t.until);
    if last.is_none_or(|until| until < now) {
        tokens.retain(|t| t.until >= now);
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(limit: u8, from: i64, until: i64) -> Token {
        let at = |s: i64| Timestamp::from_micros(s * 1_000_000);
        Token { limit: EntityId::fixed(limit, 0), from: at(from), until: at(until) }
    }

    #[test]
    fn a_token_stays_good_while_its_step_waits_for_another_limit() {
        let (a, b) = (token(1, 10, 11), token(2, 12, 13));
        let wanted = [a.limit, b.limit];
        let good =
            |now: i64| still_good(vec![a, b], &wanted, Timestamp::from_micros(now * 1_000_000));
        assert_eq!(good(12), [a, b], "the first is over, and the step has waited for the second");
        assert_eq!(good(14), [], "too late for both");
        assert_eq!(still_good(vec![a, b], &[b.limit], b.from), [b], "a limit that is gone");
        assert_eq!(still_good(vec![a], &wanted, b.from), [], "alone it is void");
    }
}
