//! The world outside the store: where effects happen that no transaction can take back. It counts
//! them by idempotency key. Law 6 in one line: a key counts at most once, or its entity says that
//! it does not know.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// One effect that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// Who did it.
    pub by: String,
    /// Under which epoch.
    pub epoch: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Outside(Mutex<BTreeMap<String, Vec<Effect>>>);

impl Outside {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Vec<Effect>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The effect happens. It can not be taken back.
    pub fn act(&self, key: &str, by: &str, epoch: u64) {
        let effect = Effect { by: by.to_owned(), epoch };
        self.lock().entry(key.to_owned()).or_default().push(effect);
    }

    /// How often it happened.
    pub fn count(&self, key: &str) -> usize {
        self.lock().get(key).map_or(0, Vec::len)
    }

    /// Everything that happened.
    pub fn all(&self) -> BTreeMap<String, Vec<Effect>> {
        self.lock().clone()
    }
}
