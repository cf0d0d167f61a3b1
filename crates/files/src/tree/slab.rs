//! Directories by number, in chunks that frozen copies share.

use super::dir::Directory;
use std::sync::Arc;

/// Directories of one chunk. A write after a freeze copies one chunk.
const CHUNK: usize = 256;

/// The number of a directory in its tree. Numbers of removed directories are used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct DirectoryId(pub u32);

impl DirectoryId {
    /// The root of every tree.
    pub const ROOT: DirectoryId = DirectoryId(0);
}

/// See the head of this module. Its clone is the frozen copy.
#[derive(Clone, Debug, Default)]
pub struct Slab {
    chunks: Vec<Arc<Vec<Option<Directory>>>>,
    free: Vec<u32>,
}

impl Slab {
    fn place(id: DirectoryId) -> (usize, usize) {
        (id.0 as usize / CHUNK, id.0 as usize % CHUNK)
    }

    /// The directory, if the number is in use.
    pub fn get(&self, id: DirectoryId) -> Option<&Directory> {
        let (chunk, at) = Self::place(id);
        self.chunks.get(chunk)?.get(at)?.as_ref()
    }

    /// The directory to write to.
    pub fn get_mut(&mut self, id: DirectoryId) -> Option<&mut Directory> {
        let (chunk, at) = Self::place(id);
        Arc::make_mut(self.chunks.get_mut(chunk)?).get_mut(at)?.as_mut()
    }

    /// A new directory.
    pub fn insert(&mut self, directory: Directory) -> DirectoryId {
        let id = match self.free.pop() {
            Some(id) => id,
            None => {
                if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
                    self.chunks.push(Arc::new(Vec::new()));
                }
                let last = self.chunks.len() - 1;
                let chunk = Arc::make_mut(&mut self.chunks[last]);
                chunk.push(None);
                (last * CHUNK + chunk.len() - 1) as u32
            }
        };
        let (chunk, at) = Self::place(DirectoryId(id));
        Arc::make_mut(&mut self.chunks[chunk])[at] = Some(directory);
        DirectoryId(id)
    }

    /// Puts a directory where a snapshot had it. [`Slab::collect_free`] must follow the last one.
    pub(super) fn insert_at(&mut self, id: DirectoryId, directory: Directory) {
        let (chunk, at) = Self::place(id);
        while self.chunks.len() <= chunk {
            self.chunks.push(Arc::new(Vec::new()));
        }
        let directories = Arc::make_mut(&mut self.chunks[chunk]);
        if directories.len() <= at {
            directories.resize_with(at + 1, || None);
        }
        directories[at] = Some(directory);
    }

    /// Finds the numbers that are free.
    pub(super) fn collect_free(&mut self) {
        self.free.clear();
        let last = self.chunks.len().saturating_sub(1);
        for (number, chunk) in self.chunks.iter_mut().enumerate() {
            if chunk.len() < CHUNK && number < last {
                Arc::make_mut(chunk).resize_with(CHUNK, || None);
            }
            let free = chunk.iter().enumerate().filter(|(_, directory)| directory.is_none());
            self.free.extend(free.map(|(at, _)| (number * CHUNK + at) as u32));
        }
    }

    /// How many directories there are.
    pub(super) fn len(&self) -> usize {
        self.iter().count()
    }

    /// Takes a directory out; its number is free.
    pub fn remove(&mut self, id: DirectoryId) -> Option<Directory> {
        let (chunk, at) = Self::place(id);
        let taken = Arc::make_mut(self.chunks.get_mut(chunk)?).get_mut(at)?.take()?;
        self.free.push(id.0);
        Some(taken)
    }

    /// All directories with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (DirectoryId, &Directory)> {
        self.chunks.iter().enumerate().flat_map(|(chunk, directories)| {
            directories.iter().enumerate().filter_map(move |(at, directory)| {
                Some((DirectoryId((chunk * CHUNK + at) as u32), directory.as_ref()?))
            })
        })
    }

    /// Bytes of the chunks themselves, without what directories point to.
    pub fn bytes(&self) -> usize {
        self.chunks.iter().map(|c| c.capacity() * size_of::<Option<Directory>>()).sum()
    }
}
