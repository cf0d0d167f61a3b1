//! Nobody can tell: how a doubt arises, and which look settles it.

use super::{apply::Apply, order::Observation};
use crate::{
    facts::Facts,
    time::Tick,
    tree::{Entry, flag, sides::Doubt, slab::DirectoryId},
    wire::name,
};

impl Apply<'_> {
    /// Nobody can tell: what is shown stays, and a look is asked for that can tell.
    pub(super) fn doubt(
        &mut self,
        path: &[u8],
        other: Option<Facts>,
        observation: &Observation,
        known: Option<&Entry>,
    ) {
        let (seen, slack) = known.map_or((Tick::ZERO, 0), |k| (k.seen, self.slack_of(k.scout)));
        let latest = seen.max(observation.during.end);
        let not_before = latest.plus(slack + observation.slack + 1);
        let doubt = self.state.tree.sides_mut().doubts.entry(path.to_vec()).or_insert(Doubt {
            since: observation.during.end,
            not_before,
            other,
        });
        doubt.not_before = doubt.not_before.max(not_before);
        doubt.other = other;
        let not_before = doubt.not_before;
        self.out.look.insert(path.to_vec(), not_before);
        self.set_flag(path, flag::DOUBT, true);
    }

    pub(super) fn set_flag(&mut self, path: &[u8], flag: u8, on: bool) {
        let Some((directory, own)) = name::split(path) else { return };
        let Some(directory) = self.state.tree.find_directory(directory) else { return };
        if let Some(mut entry) = self.state.tree.entry(directory, own) {
            entry.flags = if on { entry.flags | flag } else { entry.flags & !flag };
            self.state.tree.put(directory, own, &entry);
        }
    }

    /// Ends a doubt if the observation was made late enough to tell.
    pub(super) fn settle_doubt(
        &mut self,
        path: &[u8],
        directory: DirectoryId,
        observation: &Observation,
    ) {
        let Some(doubt) = self.state.tree.sides.doubts.get(path) else { return };
        if observation.was_true().begin < doubt.not_before {
            return;
        }
        self.state.tree.sides_mut().doubts.remove(path);
        if self.state.tree.directory(directory).is_some() {
            self.set_flag(path, flag::DOUBT, false);
        }
    }
}
