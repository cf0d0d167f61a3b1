//! Which flags an entry has after an observation.

use super::order::Observation;
use crate::{
    facts::{EntryType, Facts},
    tree::{Entry, flag},
    wire::{Cause, Tier},
};

/// What the flags depend on besides the observation.
#[derive(Clone, Copy, Debug)]
pub struct Circumstances {
    /// The entry is new, or its state is another one.
    pub changed: bool,
    /// The tree is being filled for the first time: nothing in it was missed.
    pub first_snapshot: bool,
    /// The last change is so recent that the file may still be written to.
    pub hot: bool,
}

/// The flags after a state was taken or confirmed. Doubts, the brake and the sentinel are not its business.
pub fn after(
    known: Option<&Entry>,
    facts: &Facts,
    observation: &Observation,
    cause: Cause,
    circumstances: Circumstances,
) -> u8 {
    let kept =
        known.filter(|known| known.facts.is_same_object(facts)).map_or(0, |known| known.flags);
    let mut flags = kept & (flag::DOUBT | flag::SET_BACK | flag::BLIND | flag::SUSPECT);
    let Circumstances { changed, first_snapshot, hot } = circumstances;
    match observation.tier {
        Tier::Realtime => {
            if observation.live {
                flags |= flag::LIVE;
            }
            // An event led to this look: somebody saw it happen. An answer to a question says nothing about that.
            match cause {
                Cause::Asked if changed => flags |= flag::BLIND,
                Cause::Asked => {}
                _ => flags &= !flag::BLIND,
            }
            match cause {
                Cause::Written => flags |= flag::SUSPECT,
                Cause::Closed => flags &= !flag::SUSPECT,
                // A change of attributes or a new name is no write.
                Cause::Event | Cause::Asked => {}
            }
        }
        tier => {
            if tier == Tier::Snapshot {
                flags |= flag::SNAPSHOT;
            }
            if changed {
                flags &= !flag::SUSPECT;
                if hot && facts.entry_type == EntryType::File {
                    flags |= flag::SUSPECT;
                }
                if !(first_snapshot && tier == Tier::Snapshot) {
                    flags |= flag::BLIND;
                }
            }
        }
    }
    flags
}
