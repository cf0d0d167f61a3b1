//! How an entity comes into being: its machine decides the first events, wherever the wish came from.

use crate::{pipeline::Pipeline, serve::ask, session::Keeper, worker::Held};
use tenure_kernel::{
    commit::{Commit, CommitAnswer, Committed, Expect, TenureChange},
    error::StoreError,
    head::Head,
    ids::{CommitId, EntityId},
    judge::Judge,
    machine::{Cx, Input, Machines, Undecided},
    store::{Answer, Op},
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
    let cx = Cx { id: wish.id, now: wish.at, version: 0, status: None, changed_at: None };
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

/// What was born into somebody's hands.
pub struct Born {
    /// The answer to its first commit.
    pub committed: Committed,
    /// The tenure; none if it ended in its first commit, or if the session ended meanwhile. In the second case
    /// nobody works on it, and the check ends the tenure like that of any holder who is gone.
    pub held: Option<Held>,
}

/// Why nothing was born.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum NotBorn {
    /// The session has lapsed on this process's clock: it may not begin anything. Create it without a holder.
    #[error("this worker's session has lapsed")]
    Lapsed,
    /// The store said no; `Exists` is the usual answer to a repeated submission.
    #[error("the birth was answered with {0:?}")]
    Answered(CommitAnswer),
    /// The store is away.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Commits a birth, and says what the head is then without reading it: what the judge makes of the commit at the
/// time the store gave it. The store made the same one: the judge is pure, and the chain is compared. The birth is
/// durable also where the second part is an error.
pub async fn give_birth(
    pipeline: &Pipeline,
    judge: &Judge,
    mut commit: Commit,
) -> Result<(Committed, Result<Head, StoreError>), NotBorn> {
    pipeline.store_bodies(&mut commit).await?;
    let op = Op::Commit(Box::new(commit.clone()));
    let committed = match pipeline.submit(op).await? {
        Answer::Commit(CommitAnswer::Committed(c)) => c,
        Answer::Commit(other) => return Err(NotBorn::Answered(other)),
        other => {
            let why = format!("the store answered {other:?} to a birth");
            return Err(StoreError::Refused(why).into());
        }
    };
    let disagree = || {
        let why = format!("{}: this program and the store disagree about a birth", commit.entity);
        StoreError::Corrupt(why)
    };
    let head = judge.commit(None, &commit, committed.at).map(|w| w.head).map_err(|_| disagree());
    let head = head.and_then(|h| if h.chain == committed.chain { Ok(h) } else { Err(disagree()) });
    Ok((committed, head))
}

/// Commits a birth that this session takes in the same commit: no queue, no claim. The commit's events lead to
/// a status that can be held; its tenure is set here.
pub async fn take_at_birth(
    keeper: &Keeper,
    judge: &Judge,
    mut commit: Commit,
) -> Result<Born, NotBorn> {
    let pipeline = keeper.pipeline();
    let session = keeper.id();
    if !keeper.live() {
        return Err(NotBorn::Lapsed);
    }
    commit.tenure = TenureChange::Take { session, lease: keeper.config().lease };
    // The lease counts from here: an answer that comes late is worth that much less.
    let sent = pipeline.rt().mono();
    let (committed, head) = give_birth(pipeline, judge, commit).await?;
    let mut head = head?;
    head.mail_count = committed.mail_waiting;
    // Also where the session was replaced meanwhile: the new one does not vouch for what the old one took.
    let mine = head.holder == Some(session) && keeper.id() == session;
    let held = mine.then(|| Held::born(keeper.clone(), head, sent));
    Ok(Born { committed, held })
}

/// The random part of a new id. Its last bytes choose the lane.
pub fn random(pipeline: &Pipeline) -> [u8; 10] {
    let mut bytes = [0; 10];
    bytes[..8].copy_from_slice(&pipeline.rt().random().to_be_bytes());
    bytes[8..].copy_from_slice(&pipeline.rt().random().to_be_bytes()[..2]);
    bytes
}
