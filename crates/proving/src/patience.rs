//! Waiting for what nobody tells of: another process, a page, what somebody else writes into a store.
//!
//! The one place where tests look, pause and look again. A test whose store can tell of every write waits with
//! `stores::Place` and needs no pause.

use std::{fmt::Debug, time::Duration};

/// What has not come by then does not come: far more than a busy machine takes.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// Looks until there is something to be seen. An `Err` is what was seen instead.
///
/// # Panics
/// If it is not there within [`PATIENCE`]: with what was seen last.
pub async fn found<T, E: Debug>(what: &str, mut look: impl AsyncFnMut() -> Result<T, E>) -> T {
    let mut instead = None;
    let looking = async {
        loop {
            match look().await {
                Ok(found) => return found,
                Err(seen) => instead = Some(seen),
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    match tokio::time::timeout(PATIENCE, looking).await {
        Ok(found) => found,
        Err(_) => panic!("waited in vain: {what}; seen last: {instead:#?}"),
    }
}

/// Looks until something is so.
///
/// # Panics
/// If it is not within [`PATIENCE`].
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    found(what, async || if holds().await { Ok(()) } else { Err("that it is not so") }).await;
}
