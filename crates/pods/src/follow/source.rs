//! Where objects come from, without HTTP: what the shell needs, and what a test can play.

use super::Trouble;
use tenure_kernel::runtime::BoxFuture;

/// Something that can be followed.
pub trait Object: Send + 'static {
    /// Its `resourceVersion`.
    fn version(&self) -> Option<&str>;
}

/// One page of a list.
#[derive(Debug)]
pub struct Page<K> {
    /// What is on it.
    pub items: Vec<K>,
    /// The version of the whole list.
    pub version: String,
    /// How to ask for the next page, if there is one.
    pub more: Option<String>,
    /// Objects on it that could not be read.
    pub unreadable: usize,
}

/// What a watch says.
#[derive(Debug)]
pub enum Told<K> {
    /// It is there, or is like this now.
    Changed(K),
    /// It is gone, or no longer fits the selector.
    Deleted(K),
    /// Nothing happened up to this version.
    Bookmark(String),
    /// Something happened, and we could not read what.
    Unreadable {
        /// The version, if that much could be read.
        version: Option<String>,
        /// What was wrong with it.
        why: String,
    },
}

/// A watch that stands.
pub trait Watch<K>: Send {
    /// The next thing it says; `None` when it ended, as every watch does.
    fn next(&mut self) -> BoxFuture<'_, Option<Result<Told<K>, Trouble>>>;
}

/// A kind of objects, all that fit a selector.
pub trait Source<K>: Send + Sync {
    /// A page: the first, or the one behind a token. `limit` 0 is all of them on one page.
    fn list(&self, limit: u32, token: Option<&str>) -> BoxFuture<'_, Result<Page<K>, Trouble>>;

    /// What changes after a version, for at most so many seconds.
    fn watch(&self, from: &str, seconds: u32) -> BoxFuture<'_, Result<Box<dyn Watch<K>>, Trouble>>;
}
