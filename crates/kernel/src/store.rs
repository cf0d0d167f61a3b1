//! What the kernel asks of a database. Three implementations, one conformance suite.
//!
//! A store locks the heads a batch names (in id order, skipping those that are locked), asks the
//! [`Judge`](crate::judge::Judge) about each, and writes what it says, all in one transaction. It has
//! no rules of its own.

use crate::{
    claims::{ClaimAnswer, ClaimRequest},
    commit::{Commit, CommitAnswer},
    error::StoreError,
    evidence::{Evidence, EvidenceAnswer, NewEvidence},
    feed::{Cursor, FeedPage},
    head::Head,
    health::Health,
    housekeeping::{Pulse, PulseRequest, Retired},
    ids::{CommitId, EntityId, MessageId, SessionId},
    mail::{Mail, MailAnswer, NewMail},
    outbox::{Delivery, DeliveryAnswer, Posted},
    quota::{EntitySize, TenantCount},
    rules::Tallies,
    runtime::BoxFuture,
    sessions::{Renewal, RenewalAnswer, Session},
    stream::{Hash, Record},
    time::Timestamp,
};
use std::{sync::Arc, time::Duration};

/// One operation of a batch.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// Changes an entity. At most one per entity and batch; a second one is answered `Busy`.
    Commit(Box<Commit>),
    /// Claims one entity by name.
    Claim {
        /// Names the claim's commit.
        id: CommitId,
        /// Which entity.
        entity: EntityId,
        /// Who claims.
        session: SessionId,
        /// See [`ClaimRequest::lease`].
        lease: Duration,
    },
    /// Sends mail. Judged after the entity's own commit.
    Mail(NewMail),
    /// Records evidence.
    Evidence(NewEvidence),
    /// Moves soft state of a head.
    Touch(Touch),
    /// Hands an outbox row over.
    Deliver(Box<Delivery>),
    /// Renews a worker session.
    Renew(Renewal),
}

/// Moves soft state: no event, no version. Ignored unless epoch and version are the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touch {
    /// Which entity.
    pub entity: EntityId,
    /// As the toucher saw it.
    pub epoch: u64,
    /// As the toucher saw it.
    pub version: u64,
    /// When to look next. Never after `must_end_by`, and now if unread mail waits without a holder.
    pub due: Option<Timestamp>,
    /// When to look at the holder's session next; `None` leaves it.
    pub check_at: Option<Timestamp>,
    /// Failed decisions in a row.
    pub faults: u16,
    /// Ring the check of this epoch at whatever version: the session that held it then has ended.
    pub ring_only: bool,
}

/// The answer to one operation.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// To `Commit`.
    Commit(CommitAnswer),
    /// To `Claim`: the head after it.
    Claim(Result<Box<Head>, CommitAnswer>),
    /// To `Mail`.
    Mail(MailAnswer),
    /// To `Evidence`.
    Evidence(EvidenceAnswer),
    /// To `Touch`: whether it was done.
    Touch(bool),
    /// To `Deliver`.
    Deliver(DeliveryAnswer),
    /// To `Renew`.
    Renew(RenewalAnswer),
    /// The head was locked by another batch: nothing happened, try in the next one.
    Busy,
}

/// What a listing of heads shows, and in which order. By id, which is by time of birth.
#[derive(Clone, Debug, Default)]
pub struct HeadFilter {
    /// Only this kind.
    pub kind: Option<String>,
    /// Only this status.
    pub status: Option<String>,
    /// Only these statuses, together with `status`; with neither, any.
    pub statuses: Vec<String>,
    /// Only this tenant.
    pub tenant: Option<String>,
    /// Only those marked for a person.
    pub attention: bool,
    /// Only those that somebody holds, and that are due soon.
    pub held: Option<HeldBy>,
    /// Only ids after this one: where a page that goes forwards continues.
    pub after: Option<EntityId>,
    /// Only ids before this one: where a page that goes backwards continues.
    pub before: Option<EntityId>,
    /// The highest id first. A limit then keeps the newest.
    pub newest_first: bool,
}

/// What a session holds, looked up by when it is due: no index knows the holders, which change with every claim. Whatever
/// is held is due when its holder has to be looked after, so a lease ahead all that a live session holds is found. What is
/// due later is not walked over, however much it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldBy {
    /// By whom.
    pub session: SessionId,
    /// Only what is due by then.
    pub due_by: Timestamp,
}

impl HeldBy {
    /// Whether this one is.
    pub fn is_it(&self, head: &Head) -> bool {
        head.holder == Some(self.session) && head.due.is_some_and(|due| due <= self.due_by)
    }
}

/// Unique keys from one text up to another, by their bytes. The index that keeps them unique answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// The first that belongs to it.
    pub from: String,
    /// The first behind it that does not.
    pub to: String,
    /// The highest key first. A limit then keeps those.
    pub highest_first: bool,
}

impl HeadFilter {
    /// The statuses it asks for; empty for any.
    pub fn wanted_statuses(&self) -> Vec<&str> {
        let mut wanted: Vec<_> =
            self.status.iter().chain(&self.statuses).map(String::as_str).collect();
        wanted.sort_unstable();
        wanted.dedup();
        wanted
    }
}

/// A database.
pub trait Store: Send + Sync {
    /// Runs a batch in one transaction and answers each operation, in order. On an error nothing is
    /// known to be written; [`StoreError::Indeterminate`] says that it may be.
    /// Shared, because a pipeline that has to ask again asks with the same operations.
    fn apply_shared(&self, ops: Arc<Vec<Op>>) -> BoxFuture<'_, Result<Vec<Answer>, StoreError>>;

    /// [`Store::apply_shared`] for a caller who asks once.
    fn apply(&self, ops: Vec<Op>) -> BoxFuture<'_, Result<Vec<Answer>, StoreError>> {
        self.apply_shared(Arc::new(ops))
    }

    /// Claims from a queue.
    fn claim(&self, request: ClaimRequest) -> BoxFuture<'_, Result<ClaimAnswer, StoreError>>;

    /// The (priority, tenant) groups with ready work, the highest priorities first: all tenants of a priority, and no
    /// further priority once there are [`crate::limits::READY_GROUPS_MAX`]. With `below` only priorities below it: what comes
    /// behind (see [`crate::claims::next_page`]).
    fn ready_groups(
        &self,
        queue: &str,
        below: Option<i16>,
    ) -> BoxFuture<'_, Result<Vec<(i16, String)>, StoreError>>;

    /// The names of queues with ready work, in order of their bytes, behind `after`. Costs as many steps in an index as
    /// there are names, however much waits in each.
    fn ready_queues(
        &self,
        after: &str,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<String>, StoreError>>;

    /// The store's time.
    fn now(&self) -> BoxFuture<'_, Result<Timestamp, StoreError>>;

    /// One head.
    fn head(&self, id: EntityId) -> BoxFuture<'_, Result<Option<Head>, StoreError>>;

    /// Heads in the order of their ids, as the filter says.
    fn heads(
        &self,
        filter: HeadFilter,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Head>, StoreError>>;

    /// Unique keys in order, with the entities that they belong to.
    fn keys(
        &self,
        range: KeyRange,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<(String, EntityId)>, StoreError>>;

    /// Heads in these lanes that were due by (now − `overdue`), longest due first, with the store's time.
    fn due(
        &self,
        lanes: Vec<u16>,
        overdue: Duration,
        limit: usize,
    ) -> BoxFuture<'_, Result<(Timestamp, Vec<Head>), StoreError>>;

    /// Heads in these lanes that were due by then, those first that came due last: what stands at the other end of a
    /// long backlog.
    fn latest_due(
        &self,
        lanes: Vec<u16>,
        by: Timestamp,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Head>, StoreError>>;

    /// The earliest `due` in these lanes, with the store's time: how long the loop may sleep.
    fn next_due(
        &self,
        lanes: Vec<u16>,
    ) -> BoxFuture<'_, Result<(Timestamp, Option<Timestamp>), StoreError>>;

    /// Mail of an entity after a place, in order.
    fn mail(
        &self,
        entity: EntityId,
        after: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Mail>, StoreError>>;

    /// Records of a stream from a version on, in order.
    fn stream(
        &self,
        entity: EntityId,
        from: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Record>, StoreError>>;

    /// Outbox rows of these lanes, in order per source: those for a wire, or those for entities. Apart,
    /// so that a wire that is down holds nothing back but itself.
    fn outbox(
        &self,
        lanes: Vec<u16>,
        wire: bool,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Posted>, StoreError>>;

    /// Whether an outbox row is still there (for `doctor` and tests).
    fn outbox_has(&self, id: MessageId) -> BoxFuture<'_, Result<bool, StoreError>>;

    /// The global feed after a cursor.
    fn feed(&self, after: Cursor, limit: usize) -> BoxFuture<'_, Result<FeedPage, StoreError>>;

    /// A session's soft row.
    fn session(&self, id: SessionId) -> BoxFuture<'_, Result<Option<Session>, StoreError>>;

    /// Sessions that are alive now.
    fn live_sessions(&self) -> BoxFuture<'_, Result<Vec<Session>, StoreError>>;

    /// Evidence about an entity, in the order it came.
    fn evidence(&self, entity: EntityId) -> BoxFuture<'_, Result<Vec<Evidence>, StoreError>>;

    /// Makes a blob durable and names it. The same bytes twice are one blob.
    fn put_blob(&self, bytes: Vec<u8>) -> BoxFuture<'_, Result<Hash, StoreError>>;

    /// A blob's bytes.
    fn blob(&self, digest: Hash) -> BoxFuture<'_, Result<Option<Vec<u8>>, StoreError>>;

    /// Leaves a pulse.
    fn pulse(&self, request: PulseRequest) -> BoxFuture<'_, Result<Pulse, StoreError>>;

    /// What the rules did since the store was created.
    fn tallies(&self) -> BoxFuture<'_, Result<Tallies, StoreError>>;

    /// How the store is: bounded, whatever the history. A store that is only a way to another one does not say.
    fn health(&self) -> BoxFuture<'_, Result<Health, StoreError>> {
        Box::pin(async { Err(StoreError::Refused("this store does not say how it is".into())) })
    }

    /// Open entities by tenant and kind. Costs as much as there are open entities, whatever the history.
    fn open_by_tenant(&self) -> BoxFuture<'_, Result<Vec<TenantCount>, StoreError>> {
        Box::pin(async { Err(StoreError::Refused("this store does not count tenants".into())) })
    }

    /// How much entities take, in the order of their ids: the next ones after this.
    fn sizes(
        &self,
        _after: Option<EntityId>,
        _limit: usize,
    ) -> BoxFuture<'_, Result<Vec<EntitySize>, StoreError>> {
        Box::pin(async { Err(StoreError::Refused("this store does not count tenants".into())) })
    }

    /// Removes entities that ended, or became vacant, before a moment ([`crate::housekeeping::may_leave`]), records
    /// below seals, and blobs that only removed entities named; at most `limit` entities. A blob that nothing has named
    /// yet is kept for [`crate::limits::UNNAMED_BLOB_AGE_MAX`]. Blobs that nothing ever named are looked for slowly: one
    /// call looks at [`crate::limits::BLOBS_PER_RETIRED`] blobs per entity of the limit and the next call goes on behind them. Whether one may leave is looked at
    /// under the lock of its head, in the transaction that removes it.
    fn retire(
        &self,
        ended_before: Timestamp,
        limit: usize,
    ) -> BoxFuture<'_, Result<Retired, StoreError>>;

    /// Writes nothing from then on, and leaves what is stored in a state that can be copied: the last call of a process
    /// that ends in order.
    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async { Ok(()) })
    }
}
