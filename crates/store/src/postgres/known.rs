//! A batch in one round trip, where this process knows the heads.
//!
//! Most commits are a holder's next step: this process wrote the head a moment ago, and nobody else has touched it
//! since. Such a batch is judged from what was written then. The statement that writes it locks each head and takes it
//! only if its row is still the one which that very transaction wrote (`xmin`, and version and epoch as always). Any
//! change by anybody, mail too, is another transaction. So what the judge saw is what was locked, or nothing is
//! written at all: then the batch takes the long way, which locks first and looks.
//!
//! Only yes is said here. What this process believes can accept a commit, because the database then checks that
//! belief; a refusal has nothing to be checked by, so it is never given from here.
//!
//! **Time** is guessed: the server's moment of an earlier answer and what has passed here since. The statement refuses a
//! guess that is not within 50 ms of its own clock.

use super::{
    Inner,
    error::Fault,
    write::{Ground, Stamp, write_and_commit},
};
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tenure_kernel::{
    batch::{Facts, Needs, Writes, needs, plan},
    commit::{CommitAnswer, Expect},
    error::StoreError,
    head::Head,
    ids::EntityId,
    store::{Answer, Op},
    time::Timestamp,
};
use tokio::time::Instant;

/// Heads that are remembered. Past this all are forgotten: simple, and costs each one round trip.
const HEADS_MAX: usize = 8_192;
/// Of larger heads nothing is remembered: together they stay within tens of megabytes.
const HEAD_BYTES_MAX: usize = 4_096;
/// Numbers of transactions come round after four billion of them. Nothing this old is compared by them.
const GOOD_FOR: Duration = Duration::from_secs(60);
/// The guess is made anew after this long: clocks drift.
const CLOCK_GOOD_FOR: Duration = Duration::from_secs(5);

/// What this process remembers.
pub(super) struct Known {
    began: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// In which life of the store it was written (see `continuity`).
    life: u64,
    heads: HashMap<EntityId, Remembered>,
    clock: Option<Clock>,
}

struct Remembered {
    head: Head,
    xmin: i32,
    since: Duration,
}

/// The server's clock, seen from here.
#[derive(Clone, Copy)]
struct Clock {
    /// Its microseconds less ours. An answer is on its way for a while, so the largest seen is the closest.
    ahead: i64,
    since: Duration,
}

impl Known {
    pub(super) fn nothing() -> Self {
        Known { began: Instant::now(), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server has just said what time it is.
    pub(super) fn heard(&self, moment: Timestamp) {
        let here = self.began.elapsed();
        let ahead = moment.as_micros() - micros(here);
        let mut state = self.state();
        match &mut state.clock {
            // Whoever waited for the lock may come with an earlier `here` than what it finds.
            Some(clock) if here.saturating_sub(clock.since) < CLOCK_GOOD_FOR => {
                clock.ahead = clock.ahead.max(ahead);
            }
            stale => *stale = Some(Clock { ahead, since: here }),
        }
    }

    /// What a committed batch has written, in this life of the store.
    pub(super) fn wrote(&self, life: u64, writes: &Writes, stamp: Stamp) {
        let since = self.began.elapsed();
        let mut state = self.state();
        if life < state.life {
            return;
        }
        if life > state.life {
            // Numbers of transactions that were lost are given out again.
            *state = State { life, ..State::default() };
        }
        if state.heads.len() + writes.heads.len() > HEADS_MAX {
            state.heads.clear();
        }
        for (id, write) in &writes.heads {
            let head = &write.after;
            // Only a holder goes on where it was; everybody else looks first.
            if head.holder.is_some() && head.state.len() <= HEAD_BYTES_MAX {
                let head = head.clone();
                state.heads.insert(*id, Remembered { head, xmin: stamp.xmin, since });
            } else {
                state.heads.remove(id);
            }
        }
        drop(state);
        self.heard(stamp.at);
    }

    /// Something was not as remembered.
    fn forget(&self, needs: &Needs) {
        let mut state = self.state();
        state.clock = None;
        for id in &needs.heads {
            state.heads.remove(id);
        }
    }

    /// What a batch would load, and which transaction wrote each head; `None` if anything of it is not known here.
    fn recall(&self, life: u64, ops: &[Op]) -> Option<(Facts, HashMap<EntityId, i32>)> {
        let here = self.began.elapsed();
        let state = self.state();
        if life != state.life {
            return None;
        }
        let clock = state.clock.filter(|c| here.saturating_sub(c.since) < CLOCK_GOOD_FOR)?;
        let now = Timestamp::from_micros(clock.ahead + micros(here));
        let mut facts = Facts { now, ..Facts::default() };
        let mut xmins = HashMap::with_capacity(ops.len());
        for op in ops {
            let Op::Commit(commit) = op else { return None };
            let remembered = state.heads.get(&commit.entity);
            match (&commit.expect, remembered) {
                // A birth gets the server's own time, not a guess: what is born after a look at the clock is younger than that.
                (Expect::Holder { .. }, Some(r)) if here.saturating_sub(r.since) < GOOD_FOR => {
                    xmins.insert(commit.entity, r.xmin);
                    facts.heads.insert(commit.entity, r.head.clone());
                }
                _ => return None,
            }
        }
        Some((facts, xmins))
    }
}

fn micros(d: Duration) -> i64 {
    i64::try_from(d.as_micros()).unwrap_or(i64::MAX)
}

/// Whether a batch looks at nothing but heads.
fn only_heads(n: &Needs) -> bool {
    n.peeks.is_empty()
        && n.mail.is_empty()
        && n.evidence.is_empty()
        && n.keys.is_empty()
        && n.outbox.is_empty()
        && n.sources.is_empty()
        && n.sessions.is_empty()
}

/// Runs a batch on what is known. `None` if it has to go the long way; nothing was written then.
pub(super) async fn apply(store: &Inner, ops: &[Op]) -> Result<Option<Vec<Answer>>, StoreError> {
    let needs = needs(ops);
    if !only_heads(&needs) {
        return Ok(None);
    }
    let life = store.life();
    let Some((mut facts, xmins)) = store.known.recall(life, ops) else { return Ok(None) };
    let now = facts.now;
    let (answers, writes) = plan(&store.judge, &mut facts, ops);
    let accepted = |a: &Answer| matches!(a, Answer::Commit(CommitAnswer::Committed(_)));
    if !answers.iter().all(accepted) || writes.is_empty() {
        return Ok(None);
    }
    let loan = store.writers()?.lend().await?;
    if loan.conn.life != life {
        loan.give_back();
        return Ok(None);
    }
    let ground = Ground::Known { xmins: &xmins, now };
    let write = Box::pin(write_and_commit(&loan.conn, &writes, now, ground));
    match loan.conn.in_time(write, Fault::indeterminate).await {
        Ok(stamp) => {
            store.acknowledged(&loan.conn, &writes, stamp);
            loan.give_back();
            Ok(Some(answers))
        }
        Err(fault) => {
            store.known.forget(&needs);
            loan.roll_back().await;
            match fault {
                // Nothing was written. The long way finds out why.
                Fault::Raced(_) | Fault::Constraint(_) | Fault::Disconnected(_) => Ok(None),
                Fault::Store(e) => Err(e),
            }
        }
    }
}
