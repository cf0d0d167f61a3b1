//! How outsiders change an entity that nobody holds: they commit on the version that they have seen. The road not
//! taken is mail for every change: the caller would then have to wait for the due loop to learn what became of it.

use crate::pipeline::Pipeline;
use tenure_kernel::{
    commit::{Birth, CommitAnswer, Expect},
    error::StoreError,
    head::Head,
    ids::EntityId,
    machine::{Cx, Decision, Input, Machine, decode_state, draft},
    stream::Body,
    time::Timestamp,
};

/// How often a change is tried again when somebody else was faster.
const TRIES: usize = 32;

/// What became of a change.
#[derive(Clone, Debug, PartialEq)]
pub struct Amended<S> {
    /// The state after it.
    pub state: S,
    /// The store's time on which it was decided.
    pub now: Timestamp,
    /// Whether something was written.
    pub changed: bool,
}

/// Changes an entity that nobody holds: reads, decides, and commits on what was read; again if somebody was faster.
/// A decision without events changes nothing.
pub async fn amend<M, E>(
    pipeline: &Pipeline,
    id: EntityId,
    tenant: &str,
    decide: impl Fn(Option<&M::State>, &Cx) -> Result<Decision<M::Event>, E>,
) -> Result<Amended<M::State>, E>
where
    M: Machine,
    E: From<StoreError>,
{
    let corrupt = |e: tenure_kernel::machine::Undecided| StoreError::Corrupt(e.to_string());
    for _ in 0..TRIES {
        let now = pipeline.store().now().await?;
        let head: Option<Head> = pipeline.store().head(id).await?;
        let state = head.as_ref().map(|h| decode_state::<M>(&h.state)).transpose();
        let state = state.map_err(corrupt)?;
        let cx = Cx {
            id,
            now,
            version: head.as_ref().map_or(0, |h| h.version),
            status: head.as_ref().map(|h| h.status),
            changed_at: head.as_ref().map(|h| h.changed_at),
        };
        let decision = decide(state.as_ref(), &cx)?;
        let mut after = state.unwrap_or_default();
        if decision.events.is_empty() {
            return Ok(Amended { state: after, now, changed: false });
        }
        let events = decision.events.iter();
        let before = after.clone();
        events.for_each(|e| M::apply(&mut after, e));
        // Nothing of it is mail or a timer: to the draft it is like a birth.
        let nothing = Body::Inline(Vec::new());
        let drafted = draft::<M>(head.as_ref(), before, decision, &Input::Create(&nothing));
        let drafted = drafted.map_err(|e| StoreError::Refused(e.to_string()))?;
        let Some(drafted) = drafted else {
            return Ok(Amended { state: after, now, changed: false });
        };
        let expect = match &head {
            Some(h) => Expect::Nobody { epoch: h.epoch, version: h.version },
            None => Expect::Absent(Birth {
                kind: M::TABLE.kind,
                tenant: tenant.to_owned(),
                queue: String::new(),
                priority: 0,
            }),
        };
        let commit = drafted.into_commit(pipeline.commit_id(), id, expect);
        match pipeline.commit(commit).await? {
            CommitAnswer::Committed(_) => return Ok(Amended { state: after, now, changed: true }),
            CommitAnswer::Refused(why) => return Err(StoreError::Refused(why.to_string()).into()),
            _ => {}
        }
    }
    let kind = M::TABLE.kind;
    Err(StoreError::Unavailable(format!("the {kind} {id} is changed by too many at once")).into())
}
