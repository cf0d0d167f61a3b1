//! How a good worker holds on: a store that is away, or a lease that has lapsed on its own clock, is no
//! reason to give up. It does not act meanwhile; it goes on when it may, and stops when it is told
//! that the tenure is over.

use crate::world::Env;
use std::time::Duration;
use tenure_engine::worker::{Held, HoldError};
use tenure_kernel::{commit::Commit, mail::Mail};

const PAUSE: Duration = Duration::from_millis(500);

/// Waits until this worker may act.
pub(super) async fn stand(env: &Env, held: &Held) -> Result<(), HoldError> {
    while !held.may_act() {
        if held.is_over() || env.stop.is_asked() {
            return Err(HoldError::Lost);
        }
        env.rt.sleep(PAUSE).await;
    }
    Ok(())
}

/// Commits, asking again with the same commit id for as long as nobody answers.
pub(super) async fn commit(env: &Env, held: &mut Held, commit: Commit) -> Result<(), HoldError> {
    loop {
        stand(env, held).await?;
        match held.commit(commit.clone()).await {
            Err(HoldError::Store(e)) if e.is_transient() => env.rt.sleep(PAUSE).await,
            // It lapsed between the look and the act.
            Err(HoldError::Lost) if !held.is_over() => {}
            other => return other.map(|_| ()),
        }
    }
}

/// Reads mail, however long it takes.
pub(super) async fn unread(env: &Env, held: &mut Held) -> Result<Vec<Mail>, HoldError> {
    loop {
        stand(env, held).await?;
        match held.unread().await {
            Err(HoldError::Store(e)) if e.is_transient() => env.rt.sleep(PAUSE).await,
            other => return other,
        }
    }
}
