//! Where a look for what is due begins.
//!
//! While somebody holds an old snapshot open (a backup, say), Postgres can not clean up what has ended since: each job
//! leaves an entry in the index of `due` that every look walks over before it finds anything alive. After ten minutes
//! of that there are millions. So a look that took long remembers where the living began, and the next ones begin
//! there.
//!
//! A floor is a hint. What is set to be due is nearly always due now or later, so it lies above; a little room is left
//! below for transactions under way. What lies lower all the same (a bound that had passed already, say) is found when the whole index is looked
//! through again: soon if that is cheap, and never more than a minute later. As long as looks are quick there is no
//! floor at all.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tenure_kernel::time::Timestamp;
use tokio::time::Instant;

/// A look that takes less needs no floor.
const QUICK: Duration = Duration::from_millis(20);
/// Room below a floor.
const ROOM_US: i64 = 3_000_000;
/// A whole look may take this part of the time, within these bounds.
const SHARE: u32 = 50;
const ANEW: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(60));

/// Looks are told apart by their lanes and by how long overdue they ask for.
type Look = (Vec<u16>, i64);

/// The floors of a process.
#[derive(Default)]
pub(super) struct Floors(Mutex<HashMap<Look, Floor>>);

#[derive(Clone, Copy)]
struct Floor {
    at: i64,
    until: Instant,
}

impl Floors {
    fn lock(&self) -> MutexGuard<'_, HashMap<Look, Floor>> {
        // Nothing panics while it holds this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where to begin; `None` is the very beginning.
    pub(super) fn of(&self, look: &Look, now: Instant) -> Option<i64> {
        self.lock().get(look).filter(|f| now < f.until).map(|f| f.at)
    }

    /// A look that began at `floor` is over: when it was, how long it took, and what it found first.
    pub(super) fn saw(
        &self,
        look: Look,
        floor: Option<i64>,
        (ended, took): (Instant, Duration),
        now: Timestamp,
        first: Option<Timestamp>,
    ) {
        let now = now.as_micros();
        // Nothing alive was found up to where it looked, which is not beyond now for a floor.
        let looked = if look.1 > 0 { now.saturating_sub(look.1) } else { now };
        let at = first.map_or(looked, |f| f.as_micros().min(looked)) - ROOM_US;
        let mut floors = self.lock();
        match floor {
            None if took < QUICK => {
                floors.remove(&look);
            }
            None => {
                let until = ended + (took * SHARE).clamp(ANEW.0, ANEW.1);
                floors.insert(look, Floor { at, until });
            }
            Some(_) => {
                if let Some(known) = floors.get_mut(&look) {
                    known.at = known.at.max(at);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: Duration = Duration::from_millis(400);

    fn micros(n: i64) -> Timestamp {
        Timestamp::from_micros(n)
    }

    #[test]
    fn quick_looks_have_no_floor() {
        let (floors, look, now) = (Floors::default(), (vec![1], 0), Instant::now());
        let quick = Duration::from_millis(1);
        floors.saw(look.clone(), None, (now, quick), micros(50_000_000), None);
        assert_eq!(floors.of(&look, now), None);
    }

    #[test]
    fn a_slow_look_leaves_a_floor_that_rises_and_is_given_up() {
        let (floors, look, now) = (Floors::default(), (vec![1], 0), Instant::now());
        floors.saw(look.clone(), None, (now, SLOW), micros(50_000_000), None);
        assert_eq!(floors.of(&look, now), Some(47_000_000));
        floors.saw(look.clone(), Some(47_000_000), (now, SLOW), micros(60_000_000), None);
        assert_eq!(floors.of(&look, now), Some(57_000_000));
        assert_eq!(floors.of(&(vec![2], 0), now), None, "other lanes, other floor");
        assert_eq!(floors.of(&look, now + SLOW * SHARE), None, "looks anew");
    }

    #[test]
    fn what_is_alive_stays_above_the_floor() {
        let (floors, look, now) = (Floors::default(), (vec![1], 0), Instant::now());
        let first = Some(micros(20_000_000));
        floors.saw(look.clone(), None, (now, SLOW), micros(50_000_000), first);
        assert_eq!(floors.of(&look, now), Some(17_000_000));
        // Also what is not due yet: a look ahead does not raise the floor beyond now.
        let ahead = (vec![1], i64::MIN / 2);
        let first = Some(micros(90_000_000));
        floors.saw(ahead.clone(), None, (now, SLOW), micros(50_000_000), first);
        assert_eq!(floors.of(&ahead, now), Some(47_000_000));
        // And what is only looked for when long overdue.
        let overdue = (vec![1], 2_000_000);
        floors.saw(overdue.clone(), None, (now, SLOW), micros(50_000_000), None);
        assert_eq!(floors.of(&overdue, now), Some(45_000_000));
    }
}
