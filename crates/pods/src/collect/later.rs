//! What a sweeper leaves to others for a while: of each pod the last that is to be said, when the first was due.
//!
//! One of each pod, so that it is no larger than what is known of pods. What is replaced was said by the one that is closer, or
//! is said by what replaced it: a later state says more.

use super::saying::Saying;
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    time::Duration,
};
use tenure_kernel::time::Timestamp;

/// See the module.
#[derive(Default)]
pub(super) struct Later {
    sayings: HashMap<Box<str>, Box<Saying>>,
    /// With the order in which they came.
    due: BinaryHeap<Reverse<(Timestamp, u64, Box<str>)>>,
    came: u64,
}

impl Later {
    pub fn put(&mut self, mut saying: Saying, now: Timestamp, wait: Duration) {
        let uid: Box<str> = saying.report.pod.uid.as_str().into();
        match self.sayings.remove(&uid) {
            // The channel has not heard of the end yet, in whichever words.
            Some(held) => saying.channel |= held.channel,
            None => {
                self.came += 1;
                self.due.push(Reverse((now + wait, self.came, uid.clone())));
            }
        }
        self.sayings.insert(uid, Box::new(saying));
    }

    /// The pod is gone: nobody who comes later sees how it ended, so what the server is to know of that is said at once. What the
    /// channel is to know is left to whoever is closer as before.
    pub fn hasten(&mut self, uid: &str) -> Option<Saying> {
        let held = self.sayings.get_mut(uid).filter(|saying| saying.is_final() && saying.server)?;
        let now = Saying { channel: false, ..(**held).clone() };
        held.server = false;
        if !held.channel {
            self.sayings.remove(uid);
        }
        Some(now)
    }

    /// Something newer about this pod is said at once.
    pub fn forget(&mut self, uid: &str) -> Option<Box<Saying>> {
        self.sayings.remove(uid)
    }

    /// Something about this pod is put off.
    pub fn has(&self, uid: &str) -> bool {
        self.sayings.contains_key(uid)
    }

    pub fn next_due(&self) -> Option<Timestamp> {
        self.due.peek().map(|Reverse((at, ..))| *at)
    }

    /// The next that is due by now.
    pub fn take(&mut self, now: Timestamp) -> Option<Box<Saying>> {
        while self.next_due().is_some_and(|at| at <= now) {
            let Reverse((_, _, uid)) = self.due.pop()?;
            if let Some(saying) = self.sayings.remove(&uid) {
                return Some(saying);
            }
        }
        None
    }

    /// All of them, due or not, in the order in which they came.
    pub fn take_all(&mut self) -> impl Iterator<Item = Box<Saying>> {
        // Sorted, with what is due first at the end.
        let due = std::mem::take(&mut self.due).into_sorted_vec().into_iter().rev();
        due.filter_map(|Reverse((_, _, uid))| self.sayings.remove(&uid))
    }

    pub fn all(&self) -> impl Iterator<Item = &Saying> {
        self.sayings.values().map(|saying| &**saying)
    }
}
