//! Rate limits in front of a call: everything here happens before `started` is recorded, so a job that waits for a
//! limit has begun nothing that anybody could wonder about.
//!
//! A step either has its tokens, which are good within the horizon, and stays in memory for them; or it has none, stands in
//! the line of a limit (`shared/limit/decide.rs`), and comes back when its turn is near. Only a wait in the line is long,
//! so only that is recorded: a place and a timer, and the job gives up its holder. Nothing is reserved for it meanwhile, so
//! nobody can be too late for what was: who is claimed late because all slots are busy takes the next token.
//!
//! A wait on record costs events, and a look that finds nothing costs two more. So there are few of both. Of one job only
//! the first step stands in a line, the others of the same tool behind it in memory (*aside*), unless its turn is
//! so far away that they could as well stand in the line themselves. Who stands far back looks after a quarter of its wait,
//! within bounds: the limit may have been changed, or those before it be gone. Who was overtaken in its turn asks
//! again after as long as it is overdue.
//!
//! A call may have to pass two limits, its tenant's and everybody's. It stands in the line of the one that is
//! farther away, and takes tokens when both have some: that one's first. A token stays good while its step waits for one of
//! another limit ([`still_good`]), or two busy limits might never have good tokens at the same moment.
//!
//! Calls that other workers take begin when one of them does, so they pass their limits there (`call/desk.rs`); a line of
//! them is their queue.

use super::{
    asks::{jitter, millis},
    limits::{Got, Wanted},
    run::Run,
};
use crate::{
    decide::timers,
    model::limits as job_limits,
    shared::limit::{Spec, model::limits},
};
use std::time::Duration;
use tenure_engine::worker::HoldError;
use tenure_kernel::{
    blocks::BlockKind, error::StoreError, ids::EntityId, time::Timestamp, timers::TimerChange,
};
use tenure_steps::{
    desk::{Ask, Asked},
    events::{InLine, LimitWait, StepEvent, StepId, TimerWhy, Token},
};

/// A wait for a limit that is not longer stays in memory.
pub const HELD_MAX: Duration = limits::HORIZON;
/// A wait in the line is looked at again after a quarter of it, within these bounds.
pub const LOOK_AGAIN: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(600));
/// When a step whose tool is blocked looks again: after a quarter of the time for which the block has lasted, within these
/// bounds.
pub const BLOCKED_AGAIN: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(600));
/// Steps of one job that stand in lines with a timer of their own; the rest comes after them.
pub const WAITS_MAX: usize = 16;
/// When to ask again where a limit could not be asked, or who is in turn found no room.
const AGAIN: Duration = Duration::from_millis(500);

impl Run {
    /// Whether a call of this step may begin now. If not, the step comes back by itself.
    pub(crate) async fn admitted(&mut self, asked: &Asked) -> Result<bool, HoldError> {
        let Ask::Tool { tool, .. } = &asked.ask else { return Ok(true) };
        let blocks = match self.reach.pipeline.blocks().current(&self.reach.pipeline).await {
            Ok(blocks) => blocks,
            Err(e) if self.unborn => return Err(e.into()),
            Err(e) => return Ok(self.ask_later(asked, &e)),
        };
        if blocks.of_job(&self.state().flow, &self.tenant).is_some() && !self.is_stopping() {
            // The job goes back to its queue, where nobody claims it while the block lasts.
            if self.unborn {
                return Err(HoldError::Lost);
            }
            self.draining = true;
            self.requeue(asked.step.clone());
            return Ok(false);
        }
        if self.reach.shop.tools.get(tool).is_none() && self.hands_of(tool).is_none() {
            // Another worker takes the call, and passes blocks and limits then.
            return Ok(true);
        }
        if let Some(block) = blocks.get(BlockKind::Tool, tool) {
            return match self.unborn {
                true => Err(HoldError::Lost),
                false => Ok(self.wait_for_block(asked, block.since)),
            };
        }
        let (known, pipeline) = (&self.reach.shop.limits, &self.reach.pipeline);
        match known.of(pipeline, &self.tenant, tool).await {
            Ok(wanted) if wanted.limits.is_empty() => Ok(true),
            // A limit is asked by a worker that has the job, not by whoever creates it.
            _ if self.unborn => Err(HoldError::Lost),
            Ok(wanted) => match self.pass(asked, &wanted).await {
                Ok(passes) => Ok(passes),
                Err(e) => Ok(self.ask_later(asked, &e)),
            },
            Err(e) => Ok(self.ask_later(asked, &e)),
        }
    }

    /// The tool is blocked: the step looks again, the more rarely the longer the block lasts.
    fn wait_for_block(&mut self, asked: &Asked, since: Timestamp) -> bool {
        let (least, most) = BLOCKED_AGAIN;
        let wait = (self.now().since(since) / 4).clamp(least, most);
        if self.is_room_for_a_timer() {
            self.wait_for_turn(asked, Vec::new(), wait);
        } else {
            self.limited.insert(asked.step.clone(), self.now() + HELD_MAX);
        }
        false
    }

    async fn pass(&mut self, asked: &Asked, wanted: &Wanted) -> Result<bool, StoreError> {
        let (step, each) = (&asked.step, wanted.each.as_ref());
        let mut tokens = self.tokens.remove(step).unwrap_or_default();
        let had = tokens.len();
        tokens = still_good(tokens, &wanted.limits, self.now());
        // Who comes too late for a token that it had was in turn before.
        let was_late = tokens.len() < had;
        let line = self.line_of(step);
        let mut missing = wanted.limits.clone();
        missing.retain(|limit| !tokens.iter().any(|t| t.limit == *limit));
        if missing.len() > 1 {
            missing = match self.farthest_first(missing, each, &line).await {
                Ok((missing, None)) => missing,
                Ok((_, Some((full, free_in)))) => {
                    return self.stand_in_line(asked, (full, each, free_in), line, tokens).await;
                }
                Err(e) => return Err(self.keep(step, line, tokens, e)),
            };
        }
        for limit in missing {
            let in_turn = was_late || is_in_turn(&line, limit, self.now());
            let (known, pipeline) = (&self.reach.shop.limits, &self.reach.pipeline);
            match known.take(pipeline, limit, each, (&self.tenant, in_turn)).await {
                Ok(Got::Token { token, .. }) => tokens.push(token),
                Ok(Got::Gone) => {}
                Ok(Got::Full { free_in }) => {
                    return self.stand_in_line(asked, (limit, each, free_in), line, tokens).await;
                }
                Err(e) => return Err(self.keep(step, line, tokens, e)),
            }
        }
        let now = self.now();
        let from = tokens.iter().map(|t| t.from).max().unwrap_or(now);
        if from <= now {
            return Ok(true);
        }
        self.tokens.insert(step.clone(), tokens);
        self.limited.insert(step.clone(), from);
        Ok(false)
    }

    /// Nothing that a step has is lost because a limit could not be asked.
    fn keep(
        &mut self,
        step: &StepId,
        line: Vec<InLine>,
        tokens: Vec<Token>,
        e: StoreError,
    ) -> StoreError {
        self.tokens.insert(step.clone(), tokens);
        self.lines.insert(step.clone(), line);
        e
    }

    /// These limits, the one whose next token is good last before the others; and the first of them that has none for this
    /// step.
    async fn farthest_first(
        &self,
        wanted: Vec<EntityId>,
        each: Option<&Spec>,
        line: &[InLine],
    ) -> Result<(Vec<EntityId>, Option<(EntityId, Duration)>), StoreError> {
        let (limits, pipeline) = (&self.reach.shop.limits, &self.reach.pipeline);
        let mut known = Vec::new();
        for limit in wanted {
            let who = (self.tenant.as_str(), is_in_turn(line, limit, self.now()));
            if let Some((room, at)) = limits.look(pipeline, limit, each, who).await? {
                known.push((at, room, limit));
            }
        }
        known.sort_by_key(|(at, _, _)| std::cmp::Reverse(*at));
        let full = known.iter().find(|(_, room, _)| !room);
        let full = full.map(|(at, _, limit)| (*limit, at.since(self.now())));
        Ok((known.into_iter().map(|(_, _, limit)| limit).collect(), full))
    }

    /// Where this step stands: in memory, or on record from before it waited.
    fn line_of(&mut self, step: &StepId) -> Vec<InLine> {
        let recorded =
            || self.core.loaded.history.steps.get(step).map(|r| r.line.clone()).unwrap_or_default();
        self.lines.remove(step).unwrap_or_else(recorded)
    }

    /// There is no token for this step yet.
    async fn stand_in_line(
        &mut self,
        asked: &Asked,
        (limit, each, free_in): (EntityId, Option<&Spec>, Duration),
        mut line: Vec<InLine>,
        tokens: Vec<Token>,
    ) -> Result<bool, StoreError> {
        let Ask::Tool { tool, .. } = &asked.ask else { return Ok(true) };
        let step = &asked.step;
        let here = match line.iter().position(|p| p.limit == limit) {
            Some(at) => line.remove(at),
            None if !self.may_join(step, tool) => {
                self.aside.insert(step.clone());
                return Ok(false);
            }
            None => {
                let (known, pipeline) = (&self.reach.shop.limits, &self.reach.pipeline);
                match known.join(pipeline, limit, each, &self.tenant).await {
                    Ok(Some(at)) => InLine { limit, at },
                    // It is gone: the step looks again at once.
                    Ok(None) => InLine { limit, at: self.now() },
                    Err(e) => return Err(self.keep(step, line, tokens, e)),
                }
            }
        };
        // What it waits for stands last.
        line.push(here);
        let now = self.now();
        let wait = match here.at.since(now) {
            left if left > limits::LEAD => {
                let (least, most) = LOOK_AGAIN;
                (left - limits::LEAD).min((left / 4).clamp(least, most))
            }
            // In turn, and overtaken: by another tenant, or because it is late.
            _ => {
                let overdue = now.since(here.at).clamp(AGAIN, LOOK_AGAIN.1);
                let pause = jitter(overdue, self.reach.pipeline.rt().random());
                pause.max(free_in.saturating_sub(limits::LEAD)).min(LOOK_AGAIN.1)
            }
        };
        let full = !self.is_room_for_a_timer();
        if wait <= HELD_MAX || full {
            // Without room for a timer the job stays here, and looks again.
            self.limited.insert(step.clone(), now + wait.min(HELD_MAX));
            self.tokens.insert(step.clone(), tokens);
            self.lines.insert(step.clone(), line);
        } else {
            self.wait_for_turn(asked, line, wait);
        }
        Ok(false)
    }

    /// Whether a step may stand in a line: the first of its job and tool, and more where that one's turn is far away.
    fn may_join(&self, step: &StepId, tool: &str) -> bool {
        let in_memory = self.lines.keys().any(|s| s != step && self.tool_asked(s) == Some(tool));
        let timers = self.core.loaded.state.timers.iter();
        let mut others =
            timers.filter(|t| t.why == TimerWhy::Limit && t.tool.as_deref() == Some(tool));
        let far = self.now() + LOOK_AGAIN.1;
        let room = others.clone().count() < WAITS_MAX && self.is_room_for_a_timer();
        !in_memory
            && (others.clone().next().is_none()
                || room && others.all(|t| t.place.is_some_and(|p| p.at > far)))
    }

    fn tool_asked(&self, step: &StepId) -> Option<&str> {
        match &self.core.asks.get(step)?.ask {
            Ask::Tool { tool, .. } => Some(tool),
            _ => None,
        }
    }

    fn is_room_for_a_timer(&self) -> bool {
        let state = &self.core.loaded.state;
        state.waits.len() + state.timers.len() < job_limits::WAITS_MAX
    }

    fn ask_later(&mut self, asked: &Asked, e: &StoreError) -> bool {
        tracing::debug!(job = %self.id, step = %asked.step, error = %e, "a limit can not be asked now");
        let at = self.now() + AGAIN;
        self.limited.insert(asked.step.clone(), at);
        false
    }

    fn wait_for_turn(&mut self, asked: &Asked, line: Vec<InLine>, after: Duration) {
        let Ask::Tool { tool, arguments_hash, .. } = &asked.ask else { return };
        let (step, after_ms) = (asked.step.clone(), millis(after));
        self.pending.timers.push(TimerChange::set(timers::step(&step), after));
        let (tool, arguments_hash) = (tool.clone(), arguments_hash.clone());
        let limit = Some(Box::new(LimitWait { tool, arguments_hash, tokens: Vec::new(), line }));
        let place = asked.place.clone();
        self.record(StepEvent::TimerSet { step, why: TimerWhy::Limit, after_ms, place, limit });
    }

    /// Steps whose token is good by now, or whose turn has come, go on; all of them where the job is to stop.
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

    /// Whoever stands behind another step of its tool tries as soon as that one is out of the line: it has its token, or
    /// the flow no longer waits for it. Whether there was one.
    pub(super) fn wake_aside(&mut self) -> bool {
        let may =
            |step: &StepId| self.tool_asked(step).is_none_or(|tool| self.may_join(step, tool));
        let awake: Vec<StepId> = self.aside.iter().filter(|step| may(step)).cloned().collect();
        for step in &awake {
            self.aside.remove(step);
            self.requeue(step.clone());
        }
        !awake.is_empty()
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

/// Whether the turn of a step at this limit has come.
fn is_in_turn(line: &[InLine], limit: EntityId, now: Timestamp) -> bool {
    line.iter().any(|p| p.limit == limit && p.at <= now + limits::LEAD)
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
