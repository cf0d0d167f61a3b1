//! The virtual schedule. If all calls came evenly, one would be due every `interval`; `next_ns` is when the next one
//! would be. A burst may run ahead of that by `burst - 1` intervals. So the moments from which tokens are good are spaced
//! by what the head says alone:
//!
//! for tokens i < j, with `from ≤ next ≤ from + (burst - 1) × interval` of each, and `next` rising by an interval per
//! token, `(j - i) × interval ≤ from(j) - from(i) + (burst - 1) × interval`.
//!
//! That is: at most `window / interval + burst` tokens become good in a window, whatever `now` was given. A wrong clock
//! makes tokens that are void or that are good later; it never makes more.

use super::model::{Event, Spec, State, Token, limits};
use std::time::Duration;
use tenure_kernel::time::Timestamp;

fn nanos(d: Duration) -> i64 {
    i64::try_from(d.as_nanos()).unwrap_or(i64::MAX)
}

/// A limit is set. Whoever slipped (one a day for one a second) has given out tokens for the next months: under the new
/// rate nobody waits for those. At most a burst of the new rate counts as taken, so what was given out a moment ago is not
/// given again.
pub fn set(state: Option<&State>, spec: Spec, by: Option<String>, now: Timestamp) -> Event {
    let now_ns = now.as_micros().saturating_mul(1_000);
    let burst = nanos(spec.interval()).saturating_mul(i64::from(spec.burst.max(1)));
    let latest = now_ns.saturating_add(burst);
    let next_ns = state.map(|s| s.next_ns).filter(|next| *next > latest).map(|_| latest);
    Event::LimitSet { spec, by, next_ns }
}

/// Takes up to so many tokens. The first is given whenever it is good; more only if they are good soon, so that
/// a slow limit is not hoarded. `None`: there is no limit.
pub fn take(state: &State, count: u32, now: Timestamp) -> Option<(Event, Vec<Token>)> {
    let spec = state.spec.as_ref()?;
    let interval = nanos(spec.interval());
    let ahead = interval.saturating_mul(i64::from(spec.burst.max(1)) - 1);
    let now_ns = now.as_micros().saturating_mul(1_000);
    let soon = now_ns.saturating_add(nanos(limits::AHEAD_MAX));
    let mut next = state.next_ns;
    let mut tokens = Vec::new();
    for n in 0..count.clamp(1, spec.block.max(1)) {
        let due = next.max(now_ns);
        let from = due.saturating_sub(ahead).max(now_ns);
        if n > 0 && from > soon {
            break;
        }
        tokens.push(token(spec, from));
        next = due.saturating_add(interval);
    }
    let count = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
    Some((Event::TokensTaken { count, next_ns: next }, tokens))
}

/// How far from the store's clock a worker's `now` may have been.
const CLOCK_SLACK: Duration = Duration::from_secs(60);

/// Whether this is what [`set`] says of a limit that follows another one, for some moment up to now: nobody forgets
/// more than may be forgotten of what was given out.
pub fn forgets_as_set(state: Option<&State>, spec: &Spec, next_ns: i64, now: Timestamp) -> bool {
    let burst = nanos(spec.interval()).saturating_mul(i64::from(spec.burst.max(1)));
    let earliest = now.as_micros().saturating_mul(1_000).saturating_sub(nanos(CLOCK_SLACK));
    state.is_some_and(|s| next_ns < s.next_ns) && next_ns >= earliest.saturating_add(burst)
}

/// Whether this is what [`take`] says, for some moment up to now: no token is given twice, and nobody takes more than a
/// block, or makes others wait longer than a block lasts.
pub fn is_a_take(state: &State, event: &Event, now: Timestamp) -> bool {
    let (Some(spec), Event::TokensTaken { count, next_ns }) = (&state.spec, event) else {
        return false;
    };
    let took = nanos(spec.interval()).saturating_mul(i64::from(*count));
    let latest = now.as_micros().saturating_mul(1_000).saturating_add(nanos(CLOCK_SLACK));
    (1..=spec.block.max(1)).contains(count)
        && *next_ns >= state.next_ns.saturating_add(took)
        && *next_ns <= state.next_ns.max(latest).saturating_add(took)
}

fn token(spec: &Spec, from_ns: i64) -> Token {
    // To the next microsecond: never too early.
    let from = Timestamp::from_micros(from_ns.saturating_add(999) / 1_000);
    Token { limit: spec.id(), from, until: from + spec.good_for() }
}
