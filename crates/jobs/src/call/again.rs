//! An answer that got lost: a worker asked for calls, some were claimed for it, and it never heard of them. Left alone they
//! lapse, and then nobody knows whether they were begun, which costs an irreversible call a person.
//!
//! The worker can say which calls it has. What its session holds and it does not name was claimed for an answer that did
//! not arrive, and no code of it has run: it is handed out again, under the same epoch. That is an event of the call, for
//! two reasons. Its time counts from here. And the server that had claimed it may notice only now that its own answer
//! went nowhere and want to give the call back, unbegun: it names the handing that it speaks of, and finds another one.

use super::{
    decide::clock,
    desk::{Heard, Taken, commit, holds, input, release_of, state_of},
    model::{Call, CallEvent},
};
use std::time::Duration;
use tenure_engine::pipeline::Pipeline;
use tenure_kernel::{
    commit::CommitAnswer,
    error::StoreError,
    head::Head,
    ids::{EntityId, SessionId},
    machine::{Decision, Input, Machine as _},
    store::{HeadFilter, HeldBy, Touch},
};

/// Heads read at once.
const PAGE: usize = 500;

/// Hands out again what this session holds and its worker does not have. What is more than `n`, of other tools than these,
/// or not wanted any more, goes back to the queue.
pub async fn hand_out_again(
    pipeline: &Pipeline,
    (session, lease): (SessionId, Duration),
    has: &[(EntityId, u64)],
    tools: &[String],
    n: usize,
) -> Result<Vec<Taken>, StoreError> {
    let mut taken = Vec::new();
    for head in held_by(pipeline, session, lease).await? {
        if has.contains(&(head.id, head.epoch)) {
            continue;
        }
        let state = state_of(&head)?;
        if taken.len() >= n || head.has_mail() || !tools.contains(&state.tool) {
            let why = "an answer with it got lost, and it is not wanted again".to_owned();
            release_of(pipeline, head.id, (session, head.epoch), Some(state.handed), Some(why))
                .await?;
            continue;
        }
        let (call, at) = (head.id, head.version);
        match again(pipeline, head, (session, lease)).await? {
            Some(again) => taken.push(again),
            None => tracing::debug!(%call, at, "changed while it was handed out again"),
        }
    }
    Ok(taken)
}

/// Every claim is looked after within a lease of it or of a renewal, so all that the session holds is due by then. Workers
/// ask for this all at once, when a server is back: it must not cost a walk over everything that waits.
async fn held_by(
    pipeline: &Pipeline,
    session: SessionId,
    lease: Duration,
) -> Result<Vec<Head>, StoreError> {
    let due_by = pipeline.store().now().await? + lease;
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let kind = Some(Call::TABLE.kind.to_owned());
        let status = Some("running".to_owned());
        let held = Some(HeldBy { session, due_by });
        let filter = HeadFilter { kind, status, held, after, ..HeadFilter::default() };
        let page = pipeline.store().heads(filter, PAGE).await?;
        after = page.last().map(|h| h.id);
        let full = page.len() == PAGE;
        found.extend(page);
        if !full {
            return Ok(found);
        }
    }
}

/// `None`: somebody was faster.
async fn again(
    pipeline: &Pipeline,
    head: Head,
    (session, lease): (SessionId, Duration),
) -> Result<Option<Taken>, StoreError> {
    let state = state_of(&head)?;
    let decision =
        Decision::event(CallEvent::HandedAgain {}).timer(clock(state.timeout_ms, state.grace_ms));
    let committed = commit(pipeline, &head, state, decision, &Input::Mail(&[])).await?;
    let CommitAnswer::Committed(committed) = committed else { return Ok(None) };
    // From here on the claim vouches for it once more, as long as after any other.
    let Some(head) = pipeline.store().head(head.id).await? else { return Ok(None) };
    if !holds(&head, session, head.epoch) || head.version != committed.version {
        return Ok(None);
    }
    let check_at = committed.at + lease;
    let due = head.timers.earliest().map_or(check_at, |t| t.min(check_at));
    let touch = Touch {
        entity: head.id,
        epoch: head.epoch,
        version: head.version,
        due: Some(due),
        check_at: Some(check_at),
        faults: head.faults,
        ring_only: false,
    };
    if !pipeline.touch(touch).await? {
        return Ok(None);
    }
    let state = state_of(&head)?;
    let input = input(pipeline, &head, &state).await?;
    Ok(Some(Taken { head, state, input }))
}

/// Gives a call back that was claimed for an answer which did not leave. Not if it was handed out again meanwhile.
pub async fn take_back(
    pipeline: &Pipeline,
    call: EntityId,
    held: (SessionId, u64),
    handed: u32,
    why: &str,
) -> Result<Heard, StoreError> {
    release_of(pipeline, call, held, Some(handed), Some(why.to_owned())).await
}
