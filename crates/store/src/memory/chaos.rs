//! What a simulation may do to a call, and what it may see of it. A real database is late, gone,
//! locked and ambiguous; this hook makes the memory store so, at the points where a real one is.

use super::Former;
use std::time::Duration;
use tenure_kernel::{
    batch::Writes,
    ids::EntityId,
    runtime::BoxFuture,
    store::{Answer, Op},
    time::Timestamp,
};

/// Which call is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    /// The method's name.
    pub name: &'static str,
    /// Whether it changes something: only then can its fate be unknown.
    pub writes: bool,
}

/// What becomes of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It is carried out and answered.
    Done,
    /// Nothing happens; the answer is `Unavailable`.
    Unavailable,
    /// It is carried out; the answer is `Indeterminate`.
    AnswerLost,
    /// Nothing happens; the answer is `Indeterminate`.
    RequestLost,
}

/// Asked around each call of one handle.
pub trait Chaos: Send + Sync {
    /// Before the call: may wait, and decides its fate.
    fn before(&self, call: Call) -> BoxFuture<'static, Fate>;

    /// After the call was carried out and before its answer is seen: may wait.
    fn after(&self, call: Call) -> BoxFuture<'static, ()>;

    /// Whether another batch is taken to have this head locked.
    fn is_locked(&self, entity: EntityId) -> bool;

    /// Whether to keep the moment after this write, for later stale reads.
    fn keeps_moment(&self) -> bool;

    /// How old a moment this call may see. Zero is now. A handle always sees its own answered writes,
    /// as every client of a real primary does; only the candidates of a claim may be older, because
    /// each is locked and judged anew.
    fn looks_back(&self, call: Call) -> Duration;
}

/// The quiet default.
#[derive(Clone, Copy, Debug, Default)]
pub struct Calm;

impl Chaos for Calm {
    fn before(&self, _call: Call) -> BoxFuture<'static, Fate> {
        Box::pin(std::future::ready(Fate::Done))
    }

    fn after(&self, _call: Call) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    fn is_locked(&self, _entity: EntityId) -> bool {
        false
    }

    fn keeps_moment(&self) -> bool {
        false
    }

    fn looks_back(&self, _call: Call) -> Duration {
        Duration::ZERO
    }
}

/// Sees every transaction from inside, before it is visible: for checkers that know the laws on their
/// own and do not believe the judge.
pub trait Witness: Send + Sync {
    /// A batch was decided and is about to be written. A claim from a queue shows as a batch of claims
    /// that were all accepted.
    fn batch(&self, now: Timestamp, ops: &[Op], answers: &[Answer], writes: &Writes);

    /// Retention has removed these.
    fn retired(&self, former: Vec<Former>);
}
