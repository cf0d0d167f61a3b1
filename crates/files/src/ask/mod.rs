//! Questions about a tree. Every answer says when something was observed, when it was verified, and what was covered:
//! the tree is what is known of the storage, not the storage.

pub mod lists;
pub mod page;
pub mod search;
pub mod stats;
pub mod tree;
mod walk;

use crate::{
    time::Tick,
    tree::{Entry, Tree, flag, slab::DirectoryId},
    wire::name,
};

/// How well the content of a directory is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Coverage {
    /// A scout watches it.
    pub watched: bool,
    /// When its names were last known to be complete.
    pub listed_at: Option<Tick>,
    /// Changes may have been missed since.
    pub dirty: bool,
    /// It is known only because something below it was seen.
    pub implied: bool,
}

impl Coverage {
    /// The word that answers use.
    pub fn word(&self) -> &'static str {
        match self {
            Coverage { implied: true, .. } => "implied",
            Coverage { listed_at: None, .. } => "unlisted",
            Coverage { dirty: true, .. } => "dirty",
            Coverage { watched: true, .. } => "watched",
            _ => "listed",
        }
    }
}

/// One entry of an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The path below the root.
    pub path: Vec<u8>,
    /// What is known; `seen` is when it was last observed.
    pub entry: Entry,
    /// Of a directory.
    pub coverage: Option<Coverage>,
}

/// Why there is no answer about a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotFound {
    /// A complete listing says so, or a look at the path.
    #[error("no such file or directory")]
    Absent,
    /// Nobody listed the directory completely, or changes there may have been missed.
    #[error(
        "not known yet: no scout has listed the directory since changes may have been missed; ask again, or ask for a scan"
    )]
    NotKnownYet,
}

/// What is known of a path. It is absent only if somebody looked; otherwise it is not known.
pub fn find(tree: &Tree, path: &[u8]) -> Result<Answer, NotFound> {
    if path.is_empty() {
        return Ok(answer(tree, Vec::new(), tree.root()));
    }
    let mut directory = DirectoryId::ROOT;
    let mut names = name::names(path).peekable();
    while let Some(own) = names.next() {
        let Some(entry) = tree.entry(directory, own) else {
            let is_gone = tree.sides.tombstones.get(directory, own).is_some();
            return Err(match is_gone || is_complete(tree, directory) {
                true => NotFound::Absent,
                false => NotFound::NotKnownYet,
            });
        };
        if names.peek().is_none() {
            return Ok(answer(tree, path.to_vec(), entry));
        }
        directory = entry.directory.ok_or(NotFound::Absent)?;
    }
    Err(NotFound::NotKnownYet)
}

fn answer(tree: &Tree, path: Vec<u8>, entry: Entry) -> Answer {
    let coverage = entry.directory.map(|id| coverage(tree, id, &entry));
    Answer { path, entry, coverage }
}

fn coverage(tree: &Tree, id: DirectoryId, entry: &Entry) -> Coverage {
    let directory = tree.directory(id);
    let certificate = directory.and_then(|directory| directory.certificate());
    Coverage {
        watched: directory.is_some_and(|directory| directory.watched > 0),
        listed_at: certificate.map(|certificate| tree.absolute(certificate.end)),
        dirty: is_dirty(tree, id),
        implied: entry.has(flag::IMPLIED),
    }
}

/// Whether a name that is not known in a directory is known not to be there.
pub fn is_complete(tree: &Tree, id: DirectoryId) -> bool {
    tree.directory(id).is_some_and(|d| d.certificate().is_some()) && !is_dirty(tree, id)
}

/// Whether changes in a directory may have been missed since it was listed.
pub fn is_dirty(tree: &Tree, id: DirectoryId) -> bool {
    let dirty = &tree.sides.dirty;
    if dirty.is_empty() {
        return false;
    }
    let certificate = tree.directory(id).and_then(|directory| directory.certificate());
    let listed = certificate.map_or(Tick::ZERO, |certificate| tree.absolute(certificate.begin));
    let path = tree.path_of(id);
    let mut top: Option<&[u8]> = Some(&path);
    while let Some(at) = top {
        let covers = |region: &crate::tree::sides::DirtyRegion| {
            (region.subtree || at == path) && region.since >= listed
        };
        if dirty.get(at).is_some_and(covers) {
            return true;
        }
        top = name::split(at).map(|(parent, _)| parent);
    }
    false
}
