//! How often a task is tried again, and when. One place for all classes of failure, each with a counter of its own, so
//! that a bad night of the cluster does not use up what the program was allowed.

use crate::verdict::{Cause, CauseClass};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::time::Duration;
use tenure_kernel::ids::EntityId;

/// The longest pause that a policy may ask for.
pub const BACKOFF_MS_MAX: u64 = 30 * 24 * 3_600_000;

/// What a task allows. Every field has a default, and a server's settings may name others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetryPolicy {
    /// Retries after failures of its own program.
    pub app: u32,
    /// After it was killed for want of memory. Little: an undersized task stays undersized.
    pub oom: u32,
    /// After evictions, rejections, preemption, shutdowns, and starts that took too long.
    pub infra: u32,
    /// After its node or container was lost.
    pub lost: u32,
    /// After its image could not be pulled.
    pub image: u32,
    /// After a Secret, ConfigMap or key was missing.
    pub config: u32,
    /// After its own deadline.
    pub timeout: u32,
    /// After its pod was deleted from outside.
    pub deleted: u32,
    /// `OutOfcpu`, `OutOfmemory` and their kin: a task that was turned away more often than this goes to the dead letters.
    pub rejected_capacity: u32,
    /// Attempts in all, whatever the classes say.
    pub attempts: u32,
    /// The longest pause before the first retry.
    pub backoff_ms: u64,
    /// By how much it grows: in hundredths, so that 200 doubles.
    pub factor_percent: u32,
    /// The longest pause of all.
    pub backoff_cap_ms: u64,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        RetryPolicy {
            app: 3,
            oom: 1,
            infra: 10,
            lost: 3,
            image: 2,
            config: 0,
            timeout: 0,
            deleted: 3,
            rejected_capacity: 5,
            attempts: 25,
            backoff_ms: 10_000,
            factor_percent: 200,
            backoff_cap_ms: 300_000,
        }
    }
}

impl RetryPolicy {
    /// Never again.
    pub fn never() -> Self {
        RetryPolicy {
            app: 0,
            oom: 0,
            infra: 0,
            lost: 0,
            image: 0,
            config: 0,
            timeout: 0,
            deleted: 0,
            rejected_capacity: 0,
            attempts: 1,
            ..RetryPolicy::default()
        }
    }

    /// Retries that failures of a class may cause.
    pub fn limit(&self, class: CauseClass) -> u32 {
        match class {
            CauseClass::App => self.app,
            CauseClass::Oom => self.oom,
            CauseClass::Infra => self.infra,
            CauseClass::Lost => self.lost,
            CauseClass::Image => self.image,
            CauseClass::Config => self.config,
            CauseClass::Timeout => self.timeout,
            CauseClass::Deleted => self.deleted,
            CauseClass::Cancelled => 0,
        }
    }

    /// What is wrong with it, in words.
    pub fn problem(&self) -> Option<String> {
        if self.factor_percent < 100 {
            return Some(format!(
                "factor_percent is {}: a pause can not shrink; 100 keeps it, 200 doubles it",
                self.factor_percent
            ));
        }
        if self.backoff_cap_ms > BACKOFF_MS_MAX {
            return Some(format!(
                "backoff_cap_ms is {}: no pause is longer than {BACKOFF_MS_MAX} (30 days)",
                self.backoff_cap_ms
            ));
        }
        if self.backoff_cap_ms < self.backoff_ms {
            return Some(format!(
                "backoff_cap_ms ({}) is less than backoff_ms ({})",
                self.backoff_cap_ms, self.backoff_ms
            ));
        }
        (self.attempts == 0).then(|| "attempts is 0: there would be no first one".into())
    }

    /// The pause before retry number `n` (from 1): anywhere between nothing and the whole, so that what failed together
    /// does not come back together. Which point it is follows from the task and the number alone.
    pub fn pause(&self, task: EntityId, n: u32) -> Duration {
        let whole = self.whole_pause_ms(n);
        let hash = Sha256::new()
            .chain_update(task.as_bytes())
            .chain_update(n.to_be_bytes())
            .chain_update("pause")
            .finalize();
        let mut word = [0u8; 8];
        word.copy_from_slice(&hash[..8]);
        let part = (u128::from(u64::from_be_bytes(word)) * (u128::from(whole) + 1)) >> 64;
        // The part is at most the whole, which is a u64.
        Duration::from_millis(u64::try_from(part).unwrap_or(whole))
    }

    /// The pause without jitter.
    pub fn whole_pause_ms(&self, n: u32) -> u64 {
        let mut pause = self.backoff_ms;
        for _ in 1..n {
            if pause >= self.backoff_cap_ms {
                break;
            }
            pause = pause.saturating_mul(u64::from(self.factor_percent)) / 100;
        }
        pause.min(self.backoff_cap_ms)
    }
}

/// Why there is no further attempt, in words that `why` and the dead letters show.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoRetry {
    /// Another attempt would end the same way.
    NotRetryable,
    /// The retries of its class are spent.
    ClassSpent,
    /// Turned away for want of room more often than allowed.
    CapacityThreshold,
    /// The attempts in all are spent.
    AttemptsSpent,
    /// It must not run twice, and nobody knows whether the lost pod still runs.
    NotFenced,
    /// Its time is up.
    Deadline,
    /// Whoever makes its pods made no other in time.
    NoPodCame,
}

impl NoRetry {
    /// As a sentence.
    pub const fn words(self) -> &'static str {
        match self {
            NoRetry::NotRetryable => "another attempt would end the same way",
            NoRetry::ClassSpent => "the retries for failures of this class are spent",
            NoRetry::CapacityThreshold => {
                "nodes turned it away for want of room more often than allowed"
            }
            NoRetry::AttemptsSpent => "its attempts are spent",
            NoRetry::NotFenced => {
                "nobody knows whether the lost pod still runs, and the task must not run twice"
            }
            NoRetry::Deadline => "its time was up",
            NoRetry::NoPodCame => "no other pod was made for it in time",
        }
    }
}

/// What is counted of a task's failures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tally {
    /// Failed attempts by class.
    pub classes: std::collections::BTreeMap<CauseClass, u32>,
    /// Of those, turned away for want of room.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub rejected_capacity: u32,
}

impl Tally {
    /// Counts a failed attempt.
    pub fn count(&mut self, class: CauseClass, cause: Option<Cause>) {
        *self.classes.entry(class).or_default() += 1;
        if cause == Some(Cause::RejectedCapacity) {
            self.rejected_capacity += 1;
        }
    }

    /// Failed attempts of all classes.
    pub fn all(&self) -> u32 {
        self.classes.values().sum()
    }

    /// Whether there is another attempt after the last failure that was counted.
    pub fn judge(
        &self,
        policy: &RetryPolicy,
        class: CauseClass,
        cause: Option<Cause>,
        retryable: bool,
        attempt: u32,
    ) -> Result<(), NoRetry> {
        let failed = self.classes.get(&class).copied().unwrap_or(0);
        // A config error is retryable only where the policy asks for it in so many words.
        let asked_for = class == CauseClass::Config && policy.config > 0;
        if !(retryable || asked_for) {
            return Err(NoRetry::NotRetryable);
        }
        if cause == Some(Cause::RejectedCapacity)
            && self.rejected_capacity > policy.rejected_capacity
        {
            return Err(NoRetry::CapacityThreshold);
        }
        if failed > policy.limit(class) {
            return Err(NoRetry::ClassSpent);
        }
        if attempt >= policy.attempts { Err(NoRetry::AttemptsSpent) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_kernel::time::Timestamp;

    fn task(n: u8) -> EntityId {
        EntityId::new(Timestamp::from_micros(1_000_000), [n; 10])
    }

    #[test]
    fn pauses_grow_to_the_cap_and_are_spread_over_all_of_it() {
        let policy = RetryPolicy::default();
        let whole: Vec<u64> = (1..9).map(|n| policy.whole_pause_ms(n) / 1_000).collect();
        assert_eq!(whole, [10, 20, 40, 80, 160, 300, 300, 300]);
        assert_eq!(policy.whole_pause_ms(u32::MAX), 300_000);
        let pauses: Vec<u128> = (0..200).map(|n| policy.pause(task(n), 3).as_millis()).collect();
        assert!(pauses.iter().all(|p| *p <= 40_000));
        assert!(pauses.iter().filter(|p| **p < 10_000).count() > 20);
        assert!(pauses.iter().filter(|p| **p > 30_000).count() > 20);
        assert_eq!(policy.pause(task(1), 3), policy.pause(task(1), 3));
    }

    #[test]
    fn classes_have_counters_of_their_own() {
        let policy = RetryPolicy { app: 1, infra: 2, ..RetryPolicy::default() };
        let mut tally = Tally::default();
        let mut fail = |class, cause| {
            tally.count(class, Some(cause));
            tally.judge(&policy, class, Some(cause), true, 1)
        };
        assert_eq!(fail(CauseClass::Infra, Cause::Preempted), Ok(()));
        assert_eq!(fail(CauseClass::App, Cause::AppError), Ok(()));
        assert_eq!(fail(CauseClass::Infra, Cause::Preempted), Ok(()));
        assert_eq!(fail(CauseClass::App, Cause::AppError), Err(NoRetry::ClassSpent));
        assert_eq!(fail(CauseClass::Infra, Cause::Preempted), Err(NoRetry::ClassSpent));
    }

    #[test]
    fn want_of_room_has_a_threshold() {
        let policy = RetryPolicy { rejected_capacity: 2, ..RetryPolicy::default() };
        let mut tally = Tally::default();
        let mut fail = || {
            tally.count(CauseClass::Infra, Some(Cause::RejectedCapacity));
            let cause = Some(Cause::RejectedCapacity);
            tally.judge(&policy, CauseClass::Infra, cause, true, 1)
        };
        assert_eq!([fail(), fail(), fail()], [Ok(()), Ok(()), Err(NoRetry::CapacityThreshold)]);
    }

    #[test]
    fn a_policy_that_can_not_be_is_refused_in_words() {
        let bad = RetryPolicy { factor_percent: 50, ..RetryPolicy::default() };
        assert!(bad.problem().is_some_and(|p| p.contains("200 doubles")));
        let bad = RetryPolicy { backoff_cap_ms: u64::MAX, ..RetryPolicy::default() };
        assert!(bad.problem().is_some_and(|p| p.contains("30 days")));
        let most = RetryPolicy { backoff_cap_ms: BACKOFF_MS_MAX, ..RetryPolicy::default() };
        assert_eq!(most.problem(), None);
        // Also one that came from an older store is no reason to panic.
        assert!(bad.pause(task(1), 200) > Duration::ZERO);
        let bad = RetryPolicy { backoff_cap_ms: 1, ..RetryPolicy::default() };
        assert!(bad.problem().is_some_and(|p| p.contains("backoff_cap_ms")));
        assert_eq!(RetryPolicy::default().problem(), None);
        assert_eq!(RetryPolicy::never().problem(), None);
    }
}
