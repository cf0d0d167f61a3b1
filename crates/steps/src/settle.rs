//! What becomes of a call whose outcome nobody knows: its worker was lost, it timed out, or it said so
//! itself. Never a guess. In this order: a result that is recorded somewhere settles it; then the class.
//!
//! "Did not happen" may be concluded only when nobody can act any more under that call: the executor is
//! known dead, the target refuses its epoch, or the tool honours not-after and that time has passed. A
//! lapsed lease is not death: a stopped process can wake up and act late.

use crate::{history::Call, tool::Class};
use serde_json::Value;
use std::time::Duration;
use tenure_kernel::time::Timestamp;

/// Clocks of two machines may differ by this much.
pub const SKEW_MAX: Duration = Duration::from_secs(5);

/// What is known about the call.
#[derive(Clone, Debug, PartialEq)]
pub struct Known {
    /// The call.
    pub call: Call,
    /// A result that lies in a separate effect store.
    pub effect: Option<Value>,
    /// A result that came late.
    pub evidence: Option<Value>,
    /// The process that ran it is known to be gone, or to have nothing of it running any more.
    pub executor_dead: bool,
    /// The process that was to make it has said that it did not, and will not.
    pub never_called: bool,
    /// The tool honours not-after.
    pub honours_not_after: bool,
    /// The target refuses old epochs, and has seen ours.
    pub fenced: bool,
    /// The store's time.
    pub now: Timestamp,
    /// What a probe has just said.
    pub probed: Option<Probed>,
    /// A compensation was begun: whatever was applied may be undone by now, or soon.
    pub compensating: bool,
    /// A compensation has just succeeded.
    pub compensated: bool,
}

/// What a probe said.
#[derive(Clone, Debug, PartialEq)]
pub enum Probed {
    /// It happened.
    Happened(Value),
    /// No trace of it.
    NotHappened,
    /// It could not tell.
    Unclear(String),
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// It happened, with this result: from the effect store.
    CatchUp(Value),
    /// It happened, with this result: a late report.
    FromEvidence(Value),
    /// The probe has the result.
    FromProbe(Value),
    /// Call again, under the same key.
    CallAgain,
    /// Ask the probe.
    Probe,
    /// Undo it.
    Compensate,
    /// It did not happen.
    DidNotHappen,
    /// It was never called: by the word of the worker that was to.
    NeverCalled,
    /// It was undone.
    Compensated,
    /// A person has to look; if there is a time, look again by then.
    Attention {
        /// In words.
        why: String,
        /// When the answer may be another.
        again_in: Option<Duration>,
    },
}

/// Pauses between looks at something that may clear up by itself.
pub const LOOK_AGAIN: Duration = Duration::from_secs(15);

impl Known {
    /// The time after which a tool that honours it does nothing.
    pub fn not_after(&self) -> Timestamp {
        self.call.started_at + self.call.timeout
    }

    /// Whether nobody can act under this call any more.
    pub fn over(&self) -> bool {
        self.executor_dead
            || self.fenced
            || (self.honours_not_after && self.now > self.not_after() + SKEW_MAX)
    }

    fn until_over(&self) -> Duration {
        if self.honours_not_after {
            (self.not_after() + SKEW_MAX).since(self.now) + Duration::from_millis(100)
        } else {
            LOOK_AGAIN
        }
    }

    /// What to do about it.
    pub fn action(&self) -> Action {
        // A result from before the compensation says nothing about after it: only its end settles the call.
        if !self.compensating {
            if let Some(result) = &self.effect {
                return Action::CatchUp(result.clone());
            }
            if let Some(result) = &self.evidence {
                return Action::FromEvidence(result.clone());
            }
        }
        match self.call.class {
            // An earlier call under the same key may have been applied: the key stays.
            Class::Idempotent => Action::CallAgain,
            _ if self.never_called && self.call.call == 1 && !self.compensating => {
                Action::NeverCalled
            }
            Class::Irreversible => Action::Attention {
                why: "an irreversible tool was called and nobody knows whether it happened: say what is \
                      true (happened, did-not-happen) or abandon the step"
                    .into(),
                again_in: None,
            },
            Class::Verifiable => self.by_probe(),
            Class::Compensatable if self.compensated => Action::Compensated,
            Class::Compensatable if self.over() => Action::Compensate,
            Class::Compensatable => Action::Attention {
                why: "a call is unknown and its worker is not known to be dead: it is compensated when nobody can act \
                      under it any more"
                    .into(),
                again_in: Some(self.until_over()),
            },
        }
    }

    fn by_probe(&self) -> Action {
        match &self.probed {
            None => Action::Probe,
            Some(Probed::Happened(result)) => Action::FromProbe(result.clone()),
            Some(Probed::NotHappened) if self.over() => Action::DidNotHappen,
            Some(Probed::NotHappened) => Action::Attention {
                why: "the probe finds no trace of the call, but its worker is not known to be dead and may still act"
                    .into(),
                again_in: Some(self.until_over()),
            },
            Some(Probed::Unclear(why)) => Action::Attention {
                why: format!("the probe can not tell: {why}"),
                again_in: Some(LOOK_AGAIN),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::CallState;
    use proptest::prelude::*;

    fn known(class: Class) -> Known {
        let call = Call {
            key: "k".into(),
            ordinal: 0,
            call: 1,
            epoch: 1,
            class,
            started_at: Timestamp::from_micros(1_000_000),
            timeout: Duration::from_secs(10),
            state: CallState::Started,
            hand: crate::history::Hand::default(),
        };
        Known {
            call,
            effect: None,
            evidence: None,
            executor_dead: false,
            never_called: false,
            honours_not_after: false,
            fenced: false,
            now: Timestamp::from_micros(2_000_000),
            probed: None,
            compensating: false,
            compensated: false,
        }
    }

    #[test]
    fn a_result_that_comes_after_a_compensation_was_begun_does_not_settle_the_call() {
        let result = Some(Value::from(1));
        let mut k = Known { evidence: result.clone(), ..known(Class::Compensatable) };
        assert_eq!(k.action(), Action::FromEvidence(Value::from(1)));
        k.compensating = true;
        assert!(matches!(k.action(), Action::Attention { .. }));
        (k.effect, k.executor_dead) = (result, true);
        assert_eq!(k.action(), Action::Compensate);
        k.compensated = true;
        assert_eq!(k.action(), Action::Compensated);
    }

    #[test]
    fn what_was_never_called_did_not_happen_unless_somebody_has_a_result() {
        for class in [Class::Verifiable, Class::Compensatable, Class::Irreversible] {
            let mut k = Known { never_called: true, executor_dead: true, ..known(class) };
            assert_eq!(k.action(), Action::NeverCalled);
            k.evidence = Some(Value::from(1));
            assert_eq!(k.action(), Action::FromEvidence(Value::from(1)));
        }
        let k = Known { never_called: true, ..known(Class::Idempotent) };
        assert_eq!(k.action(), Action::CallAgain);
        // The first call under the key was made under another class, and may have been applied.
        let mut k = Known { never_called: true, ..known(Class::Irreversible) };
        k.call.call = 2;
        assert!(matches!(k.action(), Action::Attention { .. }));
    }

    #[test]
    fn only_an_idempotent_tool_is_called_again() {
        assert_eq!(known(Class::Idempotent).action(), Action::CallAgain);
        assert!(matches!(known(Class::Irreversible).action(), Action::Attention { .. }));
        assert_eq!(known(Class::Verifiable).action(), Action::Probe);
    }

    #[test]
    fn no_trace_means_not_happened_only_when_nobody_can_act_any_more() {
        let mut k = Known { probed: Some(Probed::NotHappened), ..known(Class::Verifiable) };
        assert!(matches!(k.action(), Action::Attention { again_in: Some(_), .. }));
        k.executor_dead = true;
        assert_eq!(k.action(), Action::DidNotHappen);
        k.executor_dead = false;
        k.honours_not_after = true;
        assert!(matches!(k.action(), Action::Attention { .. }));
        k.now = k.not_after() + SKEW_MAX + Duration::from_millis(1);
        assert_eq!(k.action(), Action::DidNotHappen);
    }

    proptest! {
        /// Law 6: whatever is known, a tool that is not idempotent is neither called again nor written off
        /// while somebody might still act under the earlier call.
        #[test]
        fn nothing_is_guessed(
            class in prop::sample::select(vec![Class::Verifiable, Class::Compensatable, Class::Irreversible]),
            honours in any::<bool>(),
            probed in prop::sample::select(vec![None, Some(Probed::NotHappened), Some(Probed::Unclear("?".into()))]),
            now in 0i64..100_000_000,
        ) {
            let mut k = known(class);
            k.honours_not_after = honours;
            k.probed = probed;
            k.now = Timestamp::from_micros(now);
            let action = k.action();
            prop_assert_ne!(&action, &Action::CallAgain);
            if !k.over() {
                prop_assert_ne!(&action, &Action::DidNotHappen);
                prop_assert_ne!(&action, &Action::Compensate);
            }
        }
    }
}
