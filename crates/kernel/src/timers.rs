//! Named timers of an entity.
//!
//! A *guard* is served by the due loop even while the entity is held (that is its point: the holder
//! may be the problem). Any other timer of a held entity belongs to the holder, to whom the loop only
//! mails `timer_due`. Two clocks are not here because every entity has them: `must_end_by`, and
//! `holder_check`, which is soft state (a rebuild sets it expired).

use crate::{
    codec::{Damaged, Reader, Writer},
    time::Timestamp,
};
use std::{borrow::Cow, time::Duration};

/// One timer that is set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Timer {
    /// Unique within the entity.
    pub name: Cow<'static, str>,
    /// When it fires.
    pub at: Timestamp,
    /// Served by the loop even while the entity is held.
    pub guard: bool,
}

/// All timers of an entity, at most one per name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Timers(Vec<Timer>);

/// What a commit does to the timers. Durations count from the commit's own store time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TimerChange {
    /// Sets or replaces.
    Set {
        /// Which.
        name: Cow<'static, str>,
        /// From the commit's time.
        after: Duration,
        /// See [`Timer::guard`].
        guard: bool,
    },
    /// Removes, if set.
    Clear {
        /// Which.
        name: Cow<'static, str>,
    },
    /// Removes all.
    ClearAll,
}

impl TimerChange {
    /// A timer of the holder.
    pub fn set(name: impl Into<Cow<'static, str>>, after: Duration) -> Self {
        TimerChange::Set { name: name.into(), after, guard: false }
    }

    /// A timer of the loop.
    pub fn guard(name: impl Into<Cow<'static, str>>, after: Duration) -> Self {
        TimerChange::Set { name: name.into(), after, guard: true }
    }

    /// No such timer any more.
    pub fn clear(name: impl Into<Cow<'static, str>>) -> Self {
        TimerChange::Clear { name: name.into() }
    }
}

impl Timers {
    /// The earliest, whoever serves it.
    pub fn earliest(&self) -> Option<Timestamp> {
        self.0.iter().map(|t| t.at).min()
    }

    /// Those that have fired by `now`, earliest first.
    pub fn fired(&self, now: Timestamp) -> Vec<&Timer> {
        let mut due: Vec<_> = self.0.iter().filter(|t| t.at <= now).collect();
        due.sort_by_key(|t| t.at);
        due
    }

    /// A timer by name.
    pub fn get(&self, name: &str) -> Option<&Timer> {
        self.0.iter().find(|t| t.name == name)
    }

    /// How many are set.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none is set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Timer> {
        self.0.iter()
    }

    /// Applies one change at the commit's time.
    pub fn change(&mut self, change: &TimerChange, now: Timestamp) {
        match change {
            TimerChange::Set { name, after, guard } => {
                self.put(Timer { name: name.clone(), at: now + *after, guard: *guard });
            }
            TimerChange::Clear { name } => self.0.retain(|t| t.name != *name),
            TimerChange::ClearAll => self.0.clear(),
        }
    }

    fn put(&mut self, timer: Timer) {
        match self.0.iter_mut().find(|t| t.name == timer.name) {
            Some(existing) => *existing = timer,
            None => self.0.push(timer),
        }
    }

    /// The stored form.
    pub fn write(&self, w: &mut Writer) {
        w.uint(self.0.len() as u64);
        for t in &self.0 {
            w.bytes(t.name.as_bytes());
            w.time(t.at);
            w.u8(u8::from(t.guard));
        }
    }

    /// Reads the stored form.
    pub fn read(r: &mut Reader<'_>) -> Result<Self, Damaged> {
        let n = r.uint()?;
        let mut timers = Vec::new();
        for _ in 0..n {
            let name = Cow::Owned(r.text()?.to_owned());
            timers.push(Timer { name, at: r.time()?, guard: r.u8()? == 1 });
        }
        Ok(Timers(timers))
    }

    /// The stored form as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut w = Writer::default();
        self.write(&mut w);
        w.0
    }

    /// From [`Timers::to_bytes`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Damaged> {
        Self::read(&mut Reader::new(bytes))
    }
}
