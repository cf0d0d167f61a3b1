//! The errand: the thinnest slice of real work. A worker claims it and performs an outside effect in
//! two steps. Each call is recorded as *started* before it is made and as *done* after, under an
//! idempotency key that belongs to the step (never the epoch: it is a fence, not an address).
//!
//! After a takeover a step that was started and not done may or may not have happened. The outside
//! promises to be idempotent, so the step is called again with the same key, and that second call is
//! on record too. Five takeovers and it fails: something about it kills its workers.

use super::read;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tenure_kernel::{
    ids::EntityId,
    machine::{Cx, Decision, Input, Machine, Placement, Undecided},
    mail::kinds,
    stream::Body,
    table::{BIRTH, Claimable, Class, Move, SAME, StatusRow, Table, kernel_events as ke},
};

/// Steps of an errand.
pub const STEPS: usize = 2;
/// Takeovers after which it fails.
pub const TAKEOVERS_MAX: u32 = 5;
const DEADLINE: Duration = Duration::from_secs(7 * 24 * 3_600);

/// Asks for an errand.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Order {
    /// The queue it stands in.
    pub queue: String,
    /// Higher is sooner.
    pub priority: i16,
}

/// What is known about one step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Calls that were started.
    pub calls: u32,
    /// Whether one of them is known to have succeeded.
    pub done: bool,
}

/// What it keeps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Its steps, in order.
    pub steps: [Step; STEPS],
    /// How often a holder was lost.
    pub takeovers: u32,
    /// Mail it read.
    pub mail: u64,
}

/// What happens to it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// It was asked for.
    ErrandMade,
    /// A call is about to be made.
    StepStarted {
        /// Which step.
        step: usize,
        /// Which call of it, from 1.
        call: u32,
        /// The idempotency key; the same for every call of a step.
        key: String,
    },
    /// A call is known to have succeeded.
    StepDone {
        /// Which step.
        step: usize,
        /// Which call of it.
        call: u32,
    },
    /// A holder was lost.
    ErrandTakenOver {
        /// How often so far.
        takeovers: u32,
    },
    /// Mail was read.
    ErrandHeard {
        /// How much.
        count: u64,
    },
    /// Both steps are done.
    ErrandDone,
    /// It can not be done.
    ErrandFailed {
        /// Why.
        why: String,
    },
    /// It was cancelled.
    ErrandCancelled,
}

/// What a holder has to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Record that the call starts, then make it.
    Call {
        /// Which step.
        step: usize,
        /// Which call of it.
        call: u32,
        /// Under which key.
        key: String,
    },
    /// Record the end.
    Finish,
}

/// The idempotency key of a step.
pub fn key(errand: EntityId, step: usize) -> String {
    format!("errand/{errand}/{step}")
}

/// What a holder has to do next. A step that was started and not done is called again: nobody can know
/// whether it happened, and the outside is idempotent by key.
pub fn next(state: &State, errand: EntityId) -> Next {
    match state.steps.iter().position(|s| !s.done) {
        Some(step) => {
            Next::Call { step, call: state.steps[step].calls + 1, key: key(errand, step) }
        }
        None => Next::Finish,
    }
}

/// What a holder records for [`Next`], before it makes the call.
pub fn begin(next: &Next) -> Event {
    match next {
        Next::Call { step, call, key } => {
            Event::StepStarted { step: *step, call: *call, key: key.clone() }
        }
        Next::Finish => Event::ErrandDone,
    }
}

/// The machine.
pub struct Errand;

impl Machine for Errand {
    type State = State;
    type Event = Event;
    const TABLE: &'static Table = &TABLE;
    const CREATED_BY: &'static [&'static str] = &["worker"];

    fn name(event: &Event) -> &'static str {
        match event {
            Event::ErrandMade => "errand_made",
            Event::StepStarted { .. } => "step_started",
            Event::StepDone { .. } => "step_done",
            Event::ErrandTakenOver { .. } => "errand_taken_over",
            Event::ErrandHeard { .. } => "errand_heard",
            Event::ErrandDone => "errand_done",
            Event::ErrandFailed { .. } => "errand_failed",
            Event::ErrandCancelled => "errand_cancelled",
        }
    }

    fn apply(state: &mut State, event: &Event) {
        match event {
            Event::StepStarted { step, call, .. } => {
                if let Some(s) = state.steps.get_mut(*step) {
                    s.calls = *call;
                }
            }
            Event::StepDone { step, .. } => {
                if let Some(s) = state.steps.get_mut(*step) {
                    s.done = true;
                }
            }
            Event::ErrandTakenOver { takeovers } => state.takeovers = *takeovers,
            Event::ErrandHeard { count } => state.mail += count,
            Event::ErrandMade
            | Event::ErrandDone
            | Event::ErrandFailed { .. }
            | Event::ErrandCancelled => {}
        }
    }

    fn decide(
        state: Option<&State>,
        input: &Input<'_>,
        _cx: &Cx,
    ) -> Result<Decision<Event>, Undecided> {
        let fresh = State::default();
        let state = state.unwrap_or(&fresh);
        Ok(match input {
            Input::Create(body) => {
                let Order { queue, priority } = read(body).unwrap_or_default();
                let mut made = Decision::event(Event::ErrandMade).must_end_in(DEADLINE);
                made.placement = Some(Placement { queue, priority });
                made
            }
            Input::CancelUnborn => Decision::event(Event::ErrandCancelled),
            // Queued: the loop reads its mail. Held: the holder does, with the same words.
            Input::Mail(mail) => {
                let heard = Decision::event(Event::ErrandHeard { count: mail.len() as u64 });
                if mail.iter().any(|m| m.kind == kinds::CANCEL) {
                    heard.and(Event::ErrandCancelled).regardless()
                } else {
                    heard
                }
            }
            Input::TenureEnded(why) => {
                let takeovers = state.takeovers + 1;
                let over = Decision::event(Event::ErrandTakenOver { takeovers });
                if takeovers >= TAKEOVERS_MAX {
                    let why = format!("{takeovers} holders were lost, the last one: {why}");
                    over.and(Event::ErrandFailed { why })
                } else {
                    over
                }
            }
            Input::MustEnd => Decision::event(Event::ErrandFailed { why: "time was up".into() }),
            Input::Timer(name) => {
                return Err(Undecided(format!("an errand sets no timer {name}")));
            }
        })
    }
}

const fn row(
    name: &'static str,
    class: Class,
    claimable: Claimable,
    doc: &'static str,
) -> StatusRow {
    StatusRow { name, class, claimable, doc }
}

/// Its table.
pub static TABLE: Table = Table {
    kind: "errand",
    doc: "An outside effect in two steps, performed by whoever holds it.",
    statuses: &[
        row("queued", Class::Open, Claimable::Queued, "Waits for a worker."),
        row("running", Class::Open, Claimable::No, "A worker holds it."),
        row("done", Class::Final, Claimable::No, "Both steps are done."),
        row("failed", Class::Final, Claimable::No, "Time was up, or it lost too many holders."),
        row("cancelled", Class::Final, Claimable::No, "Cancelled, perhaps before it was made."),
    ],
    moves: &[
        Move { from: BIRTH, event: "errand_made", to: "queued" },
        Move { from: BIRTH, event: "errand_cancelled", to: "cancelled" },
        Move { from: &["queued"], event: ke::CLAIMED, to: "running" },
        Move { from: &["running"], event: ke::TENURE_ENDED, to: "queued" },
        Move { from: &["running"], event: "step_started", to: SAME },
        Move { from: &["running"], event: "step_done", to: SAME },
        Move { from: &["queued"], event: "errand_taken_over", to: SAME },
        Move { from: &["queued", "running"], event: "errand_heard", to: SAME },
        Move { from: &["running"], event: "errand_done", to: "done" },
        Move { from: &["queued", "running"], event: "errand_failed", to: "failed" },
        Move { from: &["queued", "running"], event: "errand_cancelled", to: "cancelled" },
    ],
    forced: "failed",
};

/// The body of an order.
pub fn order(queue: &str, priority: i16) -> Body {
    Body::json(&Order { queue: queue.to_owned(), priority })
}

#[cfg(test)]
mod tests {
    use super::{super::pocket::Pocket, *};
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use tenure_kernel::{
        commit::{CommitAnswer, Expect},
        head::Head,
        machine::{decode_event, decode_state, draft},
    };

    /// A worker: its head as it last knew it, and what it is about to do.
    struct Worker {
        head: Head,
    }

    impl Worker {
        fn commit(&mut self, pocket: &mut Pocket, event: Event) -> CommitAnswer {
            let state = decode_state::<Errand>(&self.head.state).unwrap();
            let read = Input::Mail(&[]);
            let drafted = draft::<Errand>(Some(&self.head), state, Decision::event(event), &read);
            let (epoch, version) = (self.head.epoch, self.head.version);
            let id = pocket.commit_id();
            let expect = Expect::Holder { epoch, version };
            let commit = drafted.unwrap().unwrap().into_commit(id, self.head.id, expect);
            let answer = pocket.store.commit(&commit);
            if let CommitAnswer::Committed(_) = answer {
                self.head = pocket.store.heads[&self.head.id].clone();
            }
            answer
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// Workers pause anywhere, lose their tenure anywhere and come back. The outside sees each
        /// step's effect once, whoever calls, and every call is on record before it is made.
        #[test]
        fn the_effect_happens_once_under_any_pauses_and_takeovers(choices in prop::collection::vec(0u8..12, 10..120)) {
            let mut pocket = Pocket::seeded(11);
            let id = pocket.create("errand", &order("q", 0));
            let mut outside: BTreeMap<String, u32> = BTreeMap::new();
            let mut workers: Vec<(Worker, Option<Next>)> = Vec::new();
            let mut calls = 0u32;
            for choice in choices {
                if pocket.is_final(id) { break; }
                match choice {
                    0 if pocket.store.heads[&id].holder.is_none() => {
                        let head = pocket.claim(id);
                        workers.push((Worker { head }, None));
                    }
                    1 if pocket.store.heads[&id].holder.is_some() => pocket.reclaim(id),
                    _ => {
                        // Any worker, the stale ones included, takes its next step.
                        let at = choice as usize % workers.len().max(1);
                        let Some((worker, doing)) = workers.get_mut(at) else { continue };
                        let state = decode_state::<Errand>(&worker.head.state).unwrap();
                        match doing.take() {
                            None => {
                                let todo = next(&state, id);
                                let ok = worker.commit(&mut pocket, begin(&todo));
                                if matches!(ok, CommitAnswer::Committed(_)) { *doing = Some(todo); }
                            }
                            Some(Next::Call { step, call, key }) => {
                                // The effect happens even if its caller has lost the tenure meanwhile.
                                *outside.entry(key).or_default() += 1;
                                calls += 1;
                                worker.commit(&mut pocket, Event::StepDone { step, call });
                            }
                            Some(Next::Finish) => {}
                        }
                    }
                }
            }
            pocket.check();
            let head = &pocket.store.heads[&id];
            let state = decode_state::<Errand>(&head.state).unwrap();
            prop_assert!(outside.len() <= STEPS, "one key per step: {outside:?}");
            let started: u32 = state.steps.iter().map(|s| s.calls).sum();
            prop_assert!(calls <= started, "every call was on record before it was made");
            if head.status.name() == "done" {
                prop_assert_eq!(outside.len(), STEPS, "done means that both happened");
            }
            prop_assert!(state.takeovers <= TAKEOVERS_MAX);
        }
    }

    #[test]
    fn a_step_that_was_started_and_not_done_is_called_again_under_the_same_key() {
        let mut pocket = Pocket::seeded(12);
        let id = pocket.create("errand", &order("q", 3));
        let mut first = Worker { head: pocket.claim(id) };
        let todo = next(&State::default(), id);
        assert!(matches!(first.commit(&mut pocket, begin(&todo)), CommitAnswer::Committed(_)));
        pocket.reclaim(id);
        let mut second = Worker { head: pocket.claim(id) };
        let state = decode_state::<Errand>(&second.head.state).unwrap();
        let again = next(&state, id);
        assert_eq!(again, Next::Call { step: 0, call: 2, key: key(id, 0) });
        assert!(matches!(second.commit(&mut pocket, begin(&again)), CommitAnswer::Committed(_)));
        let late = first.commit(&mut pocket, Event::StepDone { step: 0, call: 1 });
        assert!(matches!(late, CommitAnswer::StaleEpoch { .. }), "{late:?}");
        let calls: Vec<_> = pocket.store.streams[&id]
            .iter()
            .flat_map(|r| r.events().unwrap())
            .filter_map(|e| decode_event::<Errand>(&e.name, &e.body).unwrap())
            .filter_map(|e| match e {
                Event::StepStarted { call, key, .. } => Some((call, key)),
                _ => None,
            })
            .collect();
        assert_eq!(calls, [(1, key(id, 0)), (2, key(id, 0))], "both calls are on record");
        pocket.check();
    }

    #[test]
    fn the_fifth_takeover_fails_it() {
        let mut pocket = Pocket::seeded(13);
        let id = pocket.create("errand", &order("q", 0));
        for takeover in 1..=TAKEOVERS_MAX {
            pocket.claim(id);
            pocket.reclaim(id);
            assert_eq!(pocket.is_final(id), takeover == TAKEOVERS_MAX);
        }
        assert_eq!(pocket.store.heads[&id].status.name(), "failed");
        pocket.check();
    }

    #[test]
    fn a_cancel_ends_it_queued_and_before_it_was_made() {
        let mut pocket = Pocket::seeded(14);
        let id = pocket.create("errand", &order("q", 0));
        pocket.mail(id, "stop", kinds::CANCEL, Body::Inline(vec![]));
        pocket.serve(id);
        assert_eq!(pocket.store.heads[&id].status.name(), "cancelled");
        let unborn = pocket.new_id();
        pocket.cancel_unborn(unborn, "errand");
        assert_eq!(pocket.store.heads[&unborn].status.name(), "cancelled");
        pocket.check();
    }
}
