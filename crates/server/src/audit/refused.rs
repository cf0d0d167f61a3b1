//! Refused acts, by key. Each of them is on the audit trail, because an act is recorded before it is known whether it is
//! refused. So that no key fills the trail with them, a key whose acts were refused too often is answered 429 before another
//! one is recorded. How many were left out so is recorded once in a while.

use super::Act;
use crate::{
    App, Caller, Problem,
    problem::ApiCode,
    sign_ins::{Forgiven, WINDOW},
};
use axum::http::StatusCode;
use serde_json::json;
use std::{
    collections::HashMap,
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tenure_kernel::{ids::EntityId, runtime::first};

/// Keys whose refused acts are counted apart. All others share one count.
const KEYS_MAX: usize = 4_096;

/// Whose acts are counted together: a key, callers without one, or all keys beyond [`KEYS_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Whose {
    Key(EntityId),
    Keyless,
    Others,
}

/// Acts that were left out of the trail.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct LeftOut {
    count: u64,
    tenant: Option<String>,
}

#[derive(Debug, Default)]
struct Counted {
    keys: HashMap<Whose, Forgiven>,
    /// Since the last record of them.
    left_out: HashMap<Whose, LeftOut>,
}

/// Counts refused acts.
#[derive(Debug, Default)]
pub(crate) struct RefusedActs {
    /// Refused acts of one key in a minute; 0 for no limit.
    per_minute: u32,
    counted: Mutex<Counted>,
}

impl RefusedActs {
    pub(crate) fn new(per_minute: u32) -> Self {
        RefusedActs { per_minute, ..RefusedActs::default() }
    }

    fn counted(&self) -> MutexGuard<'_, Counted> {
        // Nothing panics under this lock; the counts are right as far as they go.
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long this caller has to wait before its next act, and whether it is the first that is left out for a while.
    fn leave_out(&self, caller: &Caller, now: Duration) -> Option<(Duration, bool)> {
        let per_minute = Some(self.per_minute).filter(|n| *n > 0)?;
        let mut counted = self.counted();
        let whose = counted.whose(caller.key);
        let wait = counted.keys.get(&whose)?.wait(now, per_minute)?;
        let is_first = counted.left_out.is_empty();
        let left_out = counted.left_out.entry(whose).or_default();
        left_out.count += 1;
        left_out.tenant.clone_from(&caller.tenant);
        Some((wait, is_first))
    }

    /// One more act of this caller was refused.
    fn refused(&self, caller: &Caller, now: Duration) {
        if self.per_minute == 0 {
            return;
        }
        let mut counted = self.counted();
        if counted.keys.len() >= KEYS_MAX {
            counted.keys.retain(|_, forgiven| !forgiven.is_past(now));
        }
        let whose = counted.whose(caller.key);
        counted.keys.entry(whose).or_default().failed(now, self.per_minute);
    }

    fn take_left_out(&self) -> HashMap<Whose, LeftOut> {
        mem::take(&mut self.counted().left_out)
    }
}

impl Counted {
    fn whose(&self, key: Option<EntityId>) -> Whose {
        let whose = key.map_or(Whose::Keyless, Whose::Key);
        match self.keys.contains_key(&whose) || self.keys.len() < KEYS_MAX {
            true => whose,
            false => Whose::Others,
        }
    }
}

impl App {
    /// Refuses an act of a caller whose acts were refused too often.
    pub(crate) fn may_act(&self, caller: &Caller) -> Result<(), Problem> {
        let now = self.pipeline().rt().mono();
        let Some((wait, is_first)) = self.refused_acts().leave_out(caller, now) else {
            return Ok(());
        };
        if is_first {
            let app = self.clone();
            let rt = self.pipeline().rt();
            rt.spawn(Box::pin(async move { app.record_left_out().await }));
        }
        let detail = "too many acts of this key were refused";
        Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, ApiCode::TooManyRefusals, detail)
            .field("Authorization")
            .fix("wait for as long as Retry-After says, and look at the answers before")
            .retry_after_s(wait.as_secs() + 1))
    }

    /// Counts an act that was refused: for its key, and against the submissions per second of its tenant, where it has a quota.
    pub(crate) async fn act_was_refused(&self, caller: &Caller) {
        self.refused_acts().refused(caller, self.pipeline().rt().mono());
        if let (Some(quotas), Some(tenant)) = (self.pipeline().quotas(), &caller.tenant) {
            // It is over: beyond the quota the next submission is refused.
            let _ = quotas.admit_rate(tenant).await;
        }
    }

    /// Records how many acts were left out in the next minute.
    async fn record_left_out(&self) {
        let left_out = async {
            first(self.pipeline().rt().sleep(WINDOW), self.closing()).await;
            self.refused_acts().take_left_out()
        };
        for (whose, LeftOut { count, tenant }) in left_out.await {
            let (by, key) = match whose {
                Whose::Key(key) => (format!("key {key}"), Some(key)),
                Whose::Keyless => ("callers without a key".to_owned(), None),
                Whose::Others => ("several keys".to_owned(), None),
            };
            let tenant = tenant.filter(|_| whose != Whose::Others);
            tracing::warn!(
                count,
                by,
                "acts were refused unseen: too many of this key were refused"
            );
            let act = Act::new("acts.left_out", by).tenant(tenant);
            self.note(Act { key, ..act.details(json!({ "count": count })) }).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_kernel::time::Timestamp;

    #[test]
    fn a_key_whose_acts_are_refused_too_often_waits_and_is_counted() {
        let acts = RefusedActs::new(5);
        let caller = |n| Caller { key: Some(EntityId::fixed(1, n)), ..Caller::local() };
        let (mallory, alice, now) = (caller(1), caller(2), Duration::from_secs(1_000));
        for n in 0..5 {
            assert_eq!(acts.leave_out(&mallory, now), None, "{n}");
            acts.refused(&mallory, now);
        }
        let (wait, is_first) = acts.leave_out(&mallory, now).expect("too many");
        assert!(is_first && wait <= Duration::from_secs(12), "{wait:?}");
        assert_eq!(acts.leave_out(&mallory, now), Some((wait, false)));
        assert_eq!(acts.leave_out(&alice, now), None, "another key");
        assert_eq!(acts.leave_out(&mallory, now + wait), None, "after the wait");
        let left_out = acts.take_left_out();
        let expected = LeftOut { count: 2, tenant: Some("default".into()) };
        assert_eq!(left_out, HashMap::from([(Whose::Key(EntityId::fixed(1, 1)), expected)]));
        assert!(acts.take_left_out().is_empty());
    }

    #[test]
    fn memory_is_bounded_and_without_a_limit_nothing_is_counted() {
        let (acts, free) = (RefusedActs::new(1), RefusedActs::new(0));
        let now = Duration::from_secs(5);
        for n in 0..2 * KEYS_MAX as i64 {
            let key = EntityId::new(Timestamp::from_micros((n + 1) * 1_000), [7; 10]);
            let caller = Caller { key: Some(key), ..Caller::local() };
            acts.refused(&caller, now);
            acts.refused(&caller, now);
            free.refused(&caller, now);
            assert!(acts.leave_out(&caller, now).is_some());
            assert_eq!(free.leave_out(&caller, now), None);
        }
        assert!(acts.counted().keys.len() <= KEYS_MAX + 1);
        assert!(acts.counted().left_out.len() <= KEYS_MAX + 1);
    }
}
