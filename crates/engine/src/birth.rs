//! How an entity comes into being: its machine decides the first events, wherever the wish came from.

use crate::{pipeline::Pipeline, serve::ask};
use tenure_kernel::{
    commit::{Commit, CommitAnswer, Expect},
    error::StoreError,
    ids::{CommitId, EntityId},
    machine::{Cx, Input, Machines, Undecided},
    stream::Body,
    time::Timestamp,
};

/// What is to be born.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// Its id, chosen by whoever wishes, so that a repetition names the same one.
    pub id: EntityId,
    /// Its kind.
    pub kind: &'a str,
    /// Whose it will be.
    pub tenant: &'a str,
    /// When it was wished for.
    pub at: Timestamp,
}

/// The commit that creates an entity, as its machine decides.
pub fn birth(
    machines: &Machines,
    wish: Wish<'_>,
    input: &Input<'_>,
    commit: CommitId,
) -> Result<Commit, Undecided> {
    let unknown = || Undecided(format!("no machine of kind {:?} is known here", wish.kind));
    let core = machines.get(wish.kind).ok_or_else(unknown)?;
    let cx = Cx { id: wish.id, now: wish.at, version: 0 };
    let draft = ask(&**core, None, input, &cx)?
        .ok_or_else(|| Undecided(format!("a {} can not be created by this message", wish.kind)))?;
    let birth = machines.birth(wish.kind, wish.tenant, &draft.placement).ok_or_else(unknown)?;
    Ok(draft.into_commit(commit, wish.id, Expect::Absent(birth)))
}

/// Creates an entity under a fresh id.
pub async fn create(
    pipeline: &Pipeline,
    machines: &Machines,
    kind: &str,
    tenant: &str,
    body: &Body,
) -> Result<EntityId, StoreError> {
    let at = pipeline.store().now().await?;
    let id = EntityId::new(at, random(pipeline));
    let wish = Wish { id, kind, tenant, at };
    let commit = birth(machines, wish, &Input::Create(body), pipeline.commit_id())
        .map_err(|e| StoreError::Refused(e.to_string()))?;
    match pipeline.commit(commit).await? {
        CommitAnswer::Committed(_) => Ok(id),
        other => Err(StoreError::Refused(format!("a {kind} could not be created: {other:?}"))),
    }
}

/// The random part of a new id. Its last bytes choose the lane.
pub fn random(pipeline: &Pipeline) -> [u8; 10] {
    let mut bytes = [0; 10];
    bytes[..8].copy_from_slice(&pipeline.rt().random().to_be_bytes());
    bytes[8..].copy_from_slice(&pipeline.rt().random().to_be_bytes()[..2]);
    bytes
}
