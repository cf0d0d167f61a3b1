//! What a process knows of blocks ([`tenure_kernel::blocks`]), and how they are changed. Every claim of a process goes
//! through [`Pipeline::claim`](crate::pipeline::Pipeline::claim), which leaves out what is blocked; a server does the same for
//! the workers that claim over HTTP.

use crate::{amend::amend, pipeline::Pipeline};
use std::{
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tenure_kernel::{
    blocks::{
        BLOCKS_MAX, BY_BYTES_MAX, Block, BlockBook, BlockEvent, BlockKind, BlockList, EVERYBODY,
        TABLE, WHY_BYTES_MAX, book_id,
    },
    error::StoreError,
    limits::{HEAD_STATE_BYTES_MAX, NAME_BYTES_MAX, clip},
    machine::{Decision, decode_state},
    store::Store,
};

/// How old the knowledge of blocks may get: a block that another process sets counts this much later.
pub const GOOD_FOR: Duration = Duration::from_secs(2);
/// The most bytes of all blocks together; the rest of the head is the kernel's.
const BYTES_MAX: usize = HEAD_STATE_BYTES_MAX - 2 * 1024;

/// The blocks that a process knows of.
#[derive(Default)]
pub struct Blocks {
    known: RwLock<Arc<BlockList>>,
    /// When to look again, in microseconds of this process's clock.
    look_at: AtomicU64,
}

impl Blocks {
    /// As they were within [`GOOD_FOR`].
    pub async fn current(&self, pipeline: &Pipeline) -> Result<Arc<BlockList>, StoreError> {
        let now = micros(pipeline.rt().mono()).max(1);
        if now >= self.look_at.load(Relaxed) {
            let list = read(pipeline).await?;
            *self.known.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(list);
            self.look_at.store(now + micros(GOOD_FOR), Relaxed);
        }
        Ok(self.known.read().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Looks anew with the next question.
    pub fn forget(&self) {
        self.look_at.store(0, Relaxed);
    }
}

fn micros(d: Duration) -> u64 {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX)
}

/// The blocks as they are now.
pub async fn read(pipeline: &Pipeline) -> Result<BlockList, StoreError> {
    read_from(&**pipeline.store()).await
}

/// The same from a store that is only read.
pub async fn read_from(store: &dyn Store) -> Result<BlockList, StoreError> {
    // Something of another kind under this id is not the book.
    let head = store.head(book_id()).await?;
    let Some(head) = head.filter(|head| head.kind() == TABLE.kind) else {
        return Ok(BlockList::default());
    };
    decode_state::<BlockBook>(&head.state).map_err(|e| StoreError::Corrupt(e.to_string()))
}

/// Why the blocks were not changed.
#[derive(Debug, thiserror::Error)]
pub enum BlockError {
    /// It cannot be used.
    #[error("{field}: {why}")]
    Bad {
        /// The field.
        field: &'static str,
        /// In words.
        why: String,
        /// What to do.
        fix: &'static str,
    },
    /// It is not blocked.
    #[error("the {0} {1} is not blocked")]
    Absent(BlockKind, String),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Blocks something, or gives another reason.
pub async fn set(
    pipeline: &Pipeline,
    kind: BlockKind,
    name: &str,
    why: &str,
    by: &str,
) -> Result<Block, BlockError> {
    let bad = |field, why: String, fix| Err(BlockError::Bad { field, why, fix });
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        let why = format!("{name:?} is no name of a {kind}");
        return bad("name", why, "give 1 to 128 bytes without control characters");
    }
    if why.trim().is_empty() {
        let fix = "say why: who meets the block reads it";
        return bad("why", "a block needs a reason".into(), fix);
    }
    if why.len() > WHY_BYTES_MAX {
        let why = format!("{} bytes; {WHY_BYTES_MAX} are the most", why.len());
        return bad("why", why, "say it in fewer words");
    }
    let by = clip(by, BY_BYTES_MAX);
    let amended = amend::<BlockBook, BlockError>(pipeline, book_id(), EVERYBODY, |state, cx| {
        let none = BlockList::default();
        let list = state.unwrap_or(&none);
        let known = list.get(kind, name);
        let (name, why, by) = (name.to_owned(), why.to_owned(), by.to_owned());
        let since = known.map_or(cx.now, |b| b.since);
        let block = Block { kind, name, why, by, since };
        if known == Some(&block) {
            return Ok(Decision::default());
        }
        let bytes = serde_json::to_vec(list).map_or(0, |b| b.len())
            + serde_json::to_vec(&block).map_or(0, |b| b.len());
        if known.is_none() && (list.all().len() >= BLOCKS_MAX || bytes > BYTES_MAX) {
            let why = format!("there are {} blocks, which is all there can be", list.all().len());
            return Err(BlockError::Bad { field: "name", why, fix: "remove one first" });
        }
        Ok(Decision::event(BlockEvent::BlockSet { block }))
    });
    let list = amended.await?.state;
    pipeline.blocks().forget();
    let absent = || BlockError::Absent(kind, name.to_owned());
    list.get(kind, name).cloned().ok_or_else(absent)
}

/// Removes a block.
pub async fn remove(
    pipeline: &Pipeline,
    kind: BlockKind,
    name: &str,
    by: &str,
) -> Result<(), BlockError> {
    amend::<BlockBook, BlockError>(pipeline, book_id(), EVERYBODY, |state, _| {
        if state.and_then(|list| list.get(kind, name)).is_none() {
            return Err(BlockError::Absent(kind, name.to_owned()));
        }
        let (name, by) = (name.to_owned(), clip(by, BY_BYTES_MAX).to_owned());
        Ok(Decision::event(BlockEvent::BlockRemoved { kind, name, by }))
    })
    .await?;
    pipeline.blocks().forget();
    Ok(())
}
