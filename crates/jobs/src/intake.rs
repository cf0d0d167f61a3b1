//! Jobs that were promised before anybody looked at them: their ids were given away in a transaction that has committed
//! (docs/transactional-submission.md). Whoever was given one has gone on, so nothing is refused here: what can not run
//! becomes a failed job under that id, with the reason. Only a store that is away is an error, and then the wish waits.
//!
//! Two servers may serve the same wish, one after the other or at the same time: the first was stopped, or its answer was
//! lost. What makes that right is the id alone. So a wish is forgotten after its job is there, never before.

use crate::{
    model::Failure,
    submit::{Submission, SubmitError, Submitter},
};
use futures_util::{FutureExt as _, future::join_all};
use serde_json::Value;
use std::panic::AssertUnwindSafe;
use tenure_kernel::{error::StoreError, ids::EntityId, limits::clip};

/// What became of a wish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// A job that runs.
    Created,
    /// It was there: this wish was served before.
    Existed,
    /// A job that has failed, for this reason.
    Failed(String),
}

/// Why a wish can not run: a word, and the whole sentence.
#[derive(Debug, PartialEq, Eq)]
pub struct Wrong(pub &'static str, pub String);

/// What is kept of a reason.
const ERROR_BYTES_MAX: usize = 2_000;

/// Makes the job that was asked for, under the id that was given, or the failed job that says why not. `bare` is what
/// can be kept of the wish whatever is wrong with it.
pub async fn take_in(
    submitter: &Submitter,
    id: EntityId,
    wanted: Result<Submission, Wrong>,
    bare: Submission,
) -> Result<Taken, StoreError> {
    let wrong = match wanted {
        Err(wrong) => wrong,
        Ok(submission) => match submitter.submit_under(id, submission).await {
            Ok(done) if done.id == id && done.existed => return Ok(Taken::Existed),
            Ok(done) if done.id == id => return Ok(Taken::Created),
            // Somebody asked for the same in another way, between the look at the key and now.
            Ok(done) => {
                let says = format!(
                    "the key belongs to job {}, which has the same input: that one counts",
                    done.id
                );
                Wrong("same_key", says)
            }
            Err(SubmitError::Store(e)) if e.is_transient() => return Err(e),
            Err(e @ SubmitError::OtherInput(_)) => Wrong("other_input", e.to_string()),
            Err(e @ SubmitError::UnknownFlow { .. }) => Wrong("unknown_flow", e.to_string()),
            Err(e) => Wrong("refused", e.to_string()),
        },
    };
    fail(submitter, id, bare, wrong).await
}

/// A job that has failed. Everything of the wish that fits is in it.
async fn fail(
    submitter: &Submitter,
    id: EntityId,
    bare: Submission,
    Wrong(reason, error): Wrong,
) -> Result<Taken, StoreError> {
    let failure = Failure {
        reason: reason.to_owned(),
        error: clip(&error, ERROR_BYTES_MAX).to_owned(),
        ..Failure::default()
    };
    let failed = match submitter.submit_failed(id, bare.clone(), failure.clone()).await {
        // Its input can not be kept either: then without it.
        Err(e) if !matches!(&e, SubmitError::Store(s) if s.is_transient()) => {
            let bare = Submission { input: Value::Null, ..bare };
            submitter.submit_failed(id, bare, failure).await
        }
        other => other,
    };
    match failed {
        Ok(done) if done.existed => Ok(Taken::Existed),
        Ok(_) => Ok(Taken::Failed(reason.to_owned())),
        Err(SubmitError::Store(e)) => Err(e),
        Err(e) => Err(StoreError::Refused(e.to_string())),
    }
}

/// Which wishes can be forgotten, and which are left for later.
#[derive(Debug, Default)]
pub struct Served {
    /// Their jobs are there.
    pub done: Vec<EntityId>,
    /// The store could not say.
    pub later: Vec<EntityId>,
}

/// Serves all of these wishes at once: they share batches. One that panics is left for later, and takes nobody along.
pub async fn serve<F>(wishes: impl IntoIterator<Item = (EntityId, F)>) -> Served
where
    F: Future<Output = Result<Taken, StoreError>>,
{
    let mut served = Served::default();
    let alone = wishes.into_iter().map(|(id, wish)| async move {
        let taken = AssertUnwindSafe(wish).catch_unwind().await;
        (id, taken.unwrap_or_else(|_| Err(StoreError::Refused("serving it panicked".into()))))
    });
    for (id, taken) in join_all(alone).await {
        match taken {
            Ok(Taken::Failed(reason)) => {
                tracing::info!(job = %id, reason, "a job of the intake can not run, and says so");
                served.done.push(id);
            }
            Ok(Taken::Created | Taken::Existed) => served.done.push(id),
            Err(e) => {
                tracing::warn!(job = %id, error = %e, "a job of the intake can not be made now");
                served.later.push(id);
            }
        }
    }
    served
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_kernel::ids::EntityId;

    #[tokio::test]
    async fn a_wish_that_panics_is_left_for_later_and_the_others_are_served() {
        let id = |n| EntityId::fixed(1, n);
        let served = serve((0..3).map(|n| {
            (id(n), async move {
                assert!(n != 1, "this one can not be served");
                Ok(Taken::Created)
            })
        }));
        let served = served.await;
        assert_eq!((served.done, served.later), (vec![id(0), id(2)], vec![id(1)]));
    }
}
