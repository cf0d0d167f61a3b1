//! The virtual schedule, and the line behind it.
//!
//! **Tokens.** If all calls came evenly, one would be due every `interval`; `next_ns` is when the next one would be. A burst
//! may run ahead of that by `burst - 1` intervals. So the moments from which tokens are good are spaced by what the head
//! says alone:
//!
//! for tokens i < j, with `from ≤ next ≤ from + (burst - 1) × interval` of each, and `next` rising by an interval per
//! token, `(j - i) × interval ≤ from(j) - from(i) + (burst - 1) × interval`.
//!
//! That is: at most `window / interval + burst` tokens become good in a window, whatever `now` was given. A wrong clock
//! makes tokens that are void or that are good later; it never makes more. Everything below decides who takes tokens and
//! when, and none of it can make more of them.
//!
//! **The horizon.** Nobody takes a token that is good later than a few seconds from now. A token that was taken is gone,
//! whether its job still wants it or not: were they given out for hours ahead, one tenant with many jobs would keep all
//! others away for hours, and a cancel of those jobs would leave the tool idle for as long. So what is lost is at most the
//! horizon.
//!
//! **The line.** Who finds no token within the horizon takes a *place*: the moment at which its token would be due if all
//! before it came in their turn. That is an estimate and no right. It spreads those who wait over time, each looks once, in
//! its turn, and takes then what is near. A place costs nothing if nobody comes to it. Whoever comes too late for its
//! place still has it, and is in turn. Each tenant has a line of its own (`lines` says where its next place would be), and
//! while there are several their places are so much farther apart.
//!
//! **Tenants.** A token is taken if what is promised ahead and what of it is the taker's tenant's come to the horizon at
//! most. So one tenant alone fills half of the horizon, two of them two thirds, and never is there no room for one that
//! comes new; and of two who want all of it neither gets more than the other for long.
//!
//! **Turns.** They are within a tenant: who comes while its own line waits is out of turn, and takes a token only if next to
//! nothing is promised to its tenant. A line that comes in time, a little before each turn, leaves nothing for it.
//!
//! **Ghosts.** Jobs that are cancelled leave their places behind. Whoever takes a token out of turn while next to nothing
//! is promised to anybody has seen that no line comes: they are forgotten. Those who stand far back look now and then
//! before their turn (`drive/admission.rs`), and take what is there.
//!
//! Roads not taken. *Tokens for whoever waits*, however far ahead: see the horizon; and who came late for such a token had to
//! take one behind all others. *Pauses that grow with each look*, and no line: at the end of a rush few are left
//! and look rarely, and the limit stands idle between them; in a long rush everybody looks too often. *The line as an entity
//! with its waiters in it*, like a gate's: two commits and two messages for each wait, and nobody needs the order to be
//! exact.

use super::model::{EVERYBODY, Event, Spec, State, Taker, Token, limits};
use std::{collections::BTreeMap, time::Duration};
use tenure_kernel::time::Timestamp;

fn nanos(d: Duration) -> i64 {
    i64::try_from(d.as_nanos()).unwrap_or(i64::MAX)
}

fn nanos_of(t: Timestamp) -> i64 {
    t.as_micros().saturating_mul(1_000)
}

/// To the next microsecond: never too early.
fn moment(ns: i64) -> Timestamp {
    Timestamp::from_micros(ns.saturating_add(999) / 1_000)
}

/// How far a burst may run ahead.
fn burst(spec: &Spec) -> i64 {
    nanos(spec.interval()).saturating_mul(i64::from(spec.burst.max(1)) - 1)
}

/// How far ahead the next token is good: what is promised.
fn promised(state: &State, spec: &Spec, now_ns: i64) -> i64 {
    state.next_ns.saturating_sub(burst(spec)).saturating_sub(now_ns).max(0)
}

/// What of it is promised to each tenant. What has passed since it was noted has passed of all of them alike.
fn held_now(state: &State, promised: i64) -> BTreeMap<String, i64> {
    let noted: i128 = state.held.values().map(|held| i128::from(*held)).sum();
    let now = |held: &i64| match noted > i128::from(promised) {
        true => i64::try_from(i128::from(*held) * i128::from(promised) / noted).unwrap_or(0),
        false => *held,
    };
    let held = state.held.iter().map(|(tenant, held)| (tenant.clone(), now(held)));
    held.filter(|(_, held)| *held > 0).collect()
}

/// A limit is set. Whoever slipped (one a day for one a second) has promised the next token for tomorrow: under the new
/// rate nobody waits for that. At most a burst of the new rate counts as taken, so what was given out a moment ago is not
/// given again.
pub fn set(state: Option<&State>, spec: Spec, by: Option<String>, now: Timestamp) -> Event {
    let latest = latest_of(&spec, now);
    let next_ns = state.map(|s| s.next_ns).filter(|next| *next > latest).map(|_| latest);
    Event::LimitSet { spec, by, next_ns }
}

fn latest_of(spec: &Spec, now: Timestamp) -> i64 {
    let burst = nanos(spec.interval()).saturating_mul(i64::from(spec.burst.max(1)));
    nanos_of(now).saturating_add(burst)
}

/// Whether more is promised than anybody may promise: a clock was wrong for a while, or an older program gave tokens out
/// for hours ahead. Then to set the limit anew as it is forgets that. Else it changes nothing, or whoever sets it every
/// second would lift it.
pub fn is_beyond_all(state: &State, spec: &Spec, now: Timestamp) -> bool {
    let most = nanos(limits::HORIZON).saturating_add(nanos(spec.good_for()));
    state.next_ns > latest_of(spec, now).saturating_add(most)
}

/// What became of a wish for tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Take {
    /// These, good now or within the horizon.
    Given(Event, Vec<Token>),
    /// None yet.
    Full,
}

/// Takes up to so many tokens for a tenant. More than one only if they are good soon, so that a slow limit is
/// not hoarded. `None`: there is no limit.
pub fn take(
    state: &State,
    count: u32,
    (tenant, in_turn): (&str, bool),
    now: Timestamp,
) -> Option<Take> {
    let spec = state.spec.as_ref()?;
    let (interval, now_ns) = (nanos(spec.interval()), nanos_of(now));
    let in_turn = in_turn || !is_line(state, spec, tenant, now_ns);
    if !is_room(state, spec, (tenant, in_turn), now_ns) {
        return Some(Take::Full);
    }
    let soon = now_ns.saturating_add(nanos(limits::AHEAD_MAX));
    let mut next = state.next_ns;
    let mut tokens = Vec::new();
    for n in 0..count.clamp(1, spec.block.max(1)) {
        let due = next.max(now_ns);
        let from = due.saturating_sub(burst(spec)).max(now_ns);
        if n > 0 && from > soon {
            break;
        }
        tokens.push(token(spec, from));
        next = due.saturating_add(interval);
    }
    let count = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
    let taker = Some(Taker { tenant: tenant.to_owned(), at_ns: now_ns, in_turn });
    Some(Take::Given(Event::TokensTaken { count, next_ns: next, taker }, tokens))
}

fn is_room(state: &State, spec: &Spec, (tenant, in_turn): (&str, bool), now_ns: i64) -> bool {
    let promised = promised(state, spec, now_ns);
    let own = match spec.tenant == EVERYBODY {
        true => held_now(state, promised).get(tenant).copied().unwrap_or(0),
        false => promised,
    };
    promised.saturating_add(own) <= nanos(limits::HORIZON)
        && (in_turn || own <= nanos(limits::OWN_AHEAD_MAX))
}

/// Tokens were taken: where the schedule stands, what of it is whose, and what that means for the line.
pub(super) fn promise(state: &mut State, next_ns: i64, taker: Option<&Taker>) {
    let before = state.next_ns;
    state.next_ns = next_ns;
    let (Some(Taker { tenant, at_ns, in_turn }), Some(spec)) = (taker, state.spec.clone()) else {
        return;
    };
    let now_ns = *at_ns;
    let old = State { next_ns: before, ..State::default() };
    let was = promised(&old, &spec, now_ns);
    let is = promised(state, &spec, now_ns);
    if spec.tenant == EVERYBODY {
        let mut held = held_now(state, was);
        if is > was {
            *held.entry(tenant.clone()).or_default() += is - was;
        }
        while held.len() > limits::TENANTS_MAX {
            let least = held.iter().min_by_key(|(_, held)| **held).map(|(t, _)| t.clone());
            least.and_then(|tenant| held.remove(&tenant));
        }
        state.held = held;
    }
    state.lines.retain(|_, end| *end > next_ns);
    if !in_turn && was <= nanos(limits::OWN_AHEAD_MAX) {
        // No line comes.
        state.lines.clear();
    }
}

/// Lines in which somebody may stand, and where a line begins.
fn lines_now(state: &State, now_ns: i64) -> (BTreeMap<&str, i64>, i64) {
    let begin = state.next_ns.max(now_ns);
    let lines = state.lines.iter().filter(|(_, end)| **end > begin);
    (lines.map(|(whose, end)| (whose.as_str(), *end)).collect(), begin)
}

/// Whose line a tenant stands in: where there are too many, those who come later share one.
fn line_of<'a>(spec: &'a Spec, lines: &BTreeMap<&str, i64>, tenant: &'a str) -> &'a str {
    let many = lines.len() >= limits::TENANTS_MAX && !lines.contains_key(tenant);
    if spec.tenant == EVERYBODY && !many { tenant } else { &spec.tenant }
}

fn is_line(state: &State, spec: &Spec, tenant: &str, now_ns: i64) -> bool {
    let (lines, begin) = lines_now(state, now_ns);
    let end = lines.get(line_of(spec, &lines, tenant)).copied().unwrap_or(begin);
    end.saturating_sub(begin) >= nanos(spec.interval())
}

/// Somebody stands at the end of its line.
pub(super) fn lengthen(state: &mut State, tenant: &str, at_ns: i64) {
    let Some(spec) = state.spec.clone() else { return };
    let (lines, begin) = lines_now(state, at_ns);
    let whose = line_of(&spec, &lines, tenant);
    let place = lines.get(whose).copied().unwrap_or(begin);
    let abreast = lines.len() + usize::from(!lines.contains_key(whose));
    let apart = nanos(spec.interval()).saturating_mul(i64::try_from(abreast).unwrap_or(1));
    state.lines.retain(|_, end| *end > begin);
    state.lines.insert(whose.to_owned(), place.saturating_add(apart));
}

/// Takes a place: the event, and about when its turn comes. `None`: there is no limit.
pub fn join(state: &State, tenant: &str, now: Timestamp) -> Option<(Event, Timestamp)> {
    let spec = state.spec.as_ref()?;
    let now_ns = nanos_of(now);
    let (lines, begin) = lines_now(state, now_ns);
    let place = lines.get(line_of(spec, &lines, tenant)).copied().unwrap_or(begin);
    let at = moment(place.saturating_sub(burst(spec)).max(now_ns));
    Some((Event::PlaceTaken { tenant: tenant.to_owned(), at_ns: now_ns }, at))
}

/// When the turn of somebody would come, at the latest, who stands at the end of a line from now on: the longest there is.
pub fn last_place(state: &State, now: Timestamp) -> Option<Timestamp> {
    let spec = state.spec.as_ref()?;
    let (lines, begin) = lines_now(state, nanos_of(now));
    let place = lines.into_values().max().unwrap_or(begin);
    Some(moment(place.saturating_sub(burst(spec)).max(nanos_of(now))))
}

/// Places in lines to which nobody has come yet, about. Some of those who took them may be gone.
pub fn waiting(state: &State, now: Timestamp) -> u64 {
    let Some(spec) = &state.spec else { return 0 };
    let (lines, begin) = lines_now(state, nanos_of(now));
    let apart = i128::from(nanos(spec.interval()).max(1)) * lines.len().max(1) as i128;
    let ahead: i128 = lines.values().map(|end| i128::from(end.saturating_sub(begin))).sum();
    u64::try_from(ahead / apart).unwrap_or(0)
}

/// From when on the next token is good. `None`: there is no limit.
pub fn free_at(state: &State, now: Timestamp) -> Option<Timestamp> {
    let spec = state.spec.as_ref()?;
    let now_ns = nanos_of(now);
    Some(moment(now_ns.saturating_add(promised(state, spec, now_ns))))
}

/// How far from the store's clock a worker's `now` may have been.
const CLOCK_SLACK: Duration = Duration::from_secs(60);

/// Whether this is what [`set`] says of a limit that follows another one, for some moment up to now: nobody forgets
/// more than may be forgotten of what was given out.
pub fn forgets_as_set(state: Option<&State>, spec: &Spec, next_ns: i64, now: Timestamp) -> bool {
    let burst = nanos(spec.interval()).saturating_mul(i64::from(spec.burst.max(1)));
    let earliest = nanos_of(now).saturating_sub(nanos(CLOCK_SLACK));
    state.is_some_and(|s| next_ns < s.next_ns) && next_ns >= earliest.saturating_add(burst)
}

/// Whether this is what [`take`] or [`join`] says, for some moment up to now: no token is given twice, and nobody takes
/// more than a block or beyond the horizon, or makes others wait longer than that.
pub fn is_a_take(state: &State, event: &Event, now: Timestamp) -> bool {
    let Some(spec) = &state.spec else { return false };
    let latest = nanos_of(now).saturating_add(nanos(CLOCK_SLACK));
    let (count, next_ns, taker) = match event {
        Event::TokensTaken { count, next_ns, taker } => (count, next_ns, taker),
        Event::PlaceTaken { at_ns, .. } => return *at_ns <= latest,
        _ => return false,
    };
    let took = nanos(spec.interval()).saturating_mul(i64::from(*count));
    (1..=spec.block.max(1)).contains(count)
        && *next_ns >= state.next_ns.saturating_add(took)
        && *next_ns <= state.next_ns.max(latest).saturating_add(took)
        && promised(state, spec, latest) <= nanos(limits::HORIZON)
        && taker.as_ref().is_none_or(|taker| taker.at_ns <= latest)
}

fn token(spec: &Spec, from_ns: i64) -> Token {
    let from = moment(from_ns);
    Token { limit: spec.id(), from, until: from + spec.good_for() }
}
