//! What the container of an attempt wrote, as far as it is kept: the beginning, and the last lines.

use super::stream::lines_from;
use crate::{
    desk::state_of,
    pod::{Pod, PodEvent, PodState},
    task::model::tended_id,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tenure_kernel::{
    error::StoreError, ids::EntityId, machine::Machine as _, store::Store, table::Class,
};

/// Bytes of one page.
pub const PAGE_BYTES: usize = 256 * 1024;
/// Events that are read at once.
const PAGE: usize = 64;

/// A stretch of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPage {
    /// Which attempt.
    pub attempt: u32,
    /// What was written.
    pub text: String,
    /// Where the next stretch begins: `from` of the next page.
    pub next: u64,
    /// There is more to be read at once.
    pub more: bool,
    /// Lines are missing after this: the log is longer than what is kept.
    pub cut: bool,
    /// The last lines of a log that is longer than what is kept.
    pub tail: Option<String>,
    /// Nothing more will come.
    pub over: bool,
    /// Why the log cannot be read, or could not to its end. An empty text is not an empty log then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// The log of an attempt from a place on; `None` where no executor of ours has anything to do with it.
pub async fn logs(
    store: &Arc<dyn Store>,
    task: EntityId,
    attempt: u32,
    from: u64,
) -> Result<Option<LogPage>, StoreError> {
    let id = tended_id(task, attempt);
    let Some(head) = store.head(id).await?.filter(|h| h.kind() == Pod::TABLE.kind) else {
        return Ok(None);
    };
    let state: PodState = state_of::<Pod>(&head)?;
    let mut page = LogPage { attempt, next: from.max(1), ..LogPage::default() };
    loop {
        let events = lines_from::<Pod>(store, id, page.next, PAGE).await?;
        let last = events.len() < PAGE;
        for (event, read) in events {
            page.next = event.version + 1;
            match read {
                Some(PodEvent::LogAppended { text, cut, .. }) => {
                    page.text.push_str(&text);
                    page.cut |= cut;
                }
                Some(PodEvent::PodOver { tail }) if !tail.is_empty() => page.tail = Some(tail),
                _ => {}
            }
            if page.text.len() >= PAGE_BYTES {
                page.more = true;
                return Ok(Some(page));
            }
        }
        if last {
            break;
        }
    }
    page.trouble = state.log_trouble;
    page.over = state.over || head.class() == Class::Final;
    Ok(Some(page))
}
