//! A store with something laid over it. A layer answers the calls that it is about; all others go through to the store
//! under it.

use std::{sync::Arc, time::Duration};
use tenure_kernel::{
    claims::{ClaimAnswer, ClaimRequest},
    error::StoreError,
    evidence::Evidence,
    feed::{Cursor, FeedPage},
    head::Head,
    health::Health,
    housekeeping::{Pulse, PulseRequest, Retired},
    ids::{EntityId, MessageId, SessionId},
    mail::Mail,
    outbox::Posted,
    quota::{EntitySize, TenantCount},
    rules::Tallies,
    runtime::BoxFuture,
    sessions::Session,
    store::{Answer, HeadFilter, KeyRange, Op, Store},
    stream::{Hash, Record},
    time::Timestamp,
};

/// What lies over a store. The calls that layers were needed for are here; another one is added when it is.
pub trait Layer: Send + Sync {
    /// The store under it.
    fn under(&self) -> &dyn Store;

    /// See [`Store::apply_shared`].
    fn apply_shared(&self, ops: Arc<Vec<Op>>) -> BoxFuture<'_, Result<Vec<Answer>, StoreError>> {
        self.under().apply_shared(ops)
    }

    /// See [`Store::claim`].
    fn claim(&self, request: ClaimRequest) -> BoxFuture<'_, Result<ClaimAnswer, StoreError>> {
        self.under().claim(request)
    }

    /// See [`Store::ready_groups`].
    fn ready_groups(
        &self,
        queue: &str,
        below: Option<i16>,
    ) -> BoxFuture<'_, Result<Vec<(i16, String)>, StoreError>> {
        self.under().ready_groups(queue, below)
    }

    /// See [`Store::head`].
    fn head(&self, id: EntityId) -> BoxFuture<'_, Result<Option<Head>, StoreError>> {
        self.under().head(id)
    }

    /// See [`Store::stream`].
    fn stream(
        &self,
        entity: EntityId,
        from: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Record>, StoreError>> {
        self.under().stream(entity, from, limit)
    }

    /// See [`Store::outbox`].
    fn outbox(
        &self,
        lanes: Vec<u16>,
        wire: bool,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Posted>, StoreError>> {
        self.under().outbox(lanes, wire, limit)
    }

    /// See [`Store::pulse`].
    fn pulse(&self, request: PulseRequest) -> BoxFuture<'_, Result<Pulse, StoreError>> {
        self.under().pulse(request)
    }

    /// See [`Store::retire`].
    fn retire(
        &self,
        ended_before: Timestamp,
        limit: usize,
    ) -> BoxFuture<'_, Result<Retired, StoreError>> {
        self.under().retire(ended_before, limit)
    }
}

/// A store under a layer.
pub struct Layered<L>(pub L);

impl<L: Layer> Store for Layered<L> {
    fn apply_shared(&self, ops: Arc<Vec<Op>>) -> BoxFuture<'_, Result<Vec<Answer>, StoreError>> {
        self.0.apply_shared(ops)
    }

    fn claim(&self, request: ClaimRequest) -> BoxFuture<'_, Result<ClaimAnswer, StoreError>> {
        self.0.claim(request)
    }

    fn outbox(
        &self,
        lanes: Vec<u16>,
        wire: bool,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Posted>, StoreError>> {
        self.0.outbox(lanes, wire, limit)
    }

    fn pulse(&self, request: PulseRequest) -> BoxFuture<'_, Result<Pulse, StoreError>> {
        self.0.pulse(request)
    }

    fn ready_groups(
        &self,
        queue: &str,
        below: Option<i16>,
    ) -> BoxFuture<'_, Result<Vec<(i16, String)>, StoreError>> {
        self.0.ready_groups(queue, below)
    }

    fn ready_queues(
        &self,
        after: &str,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<String>, StoreError>> {
        self.0.under().ready_queues(after, limit)
    }

    fn now(&self) -> BoxFuture<'_, Result<Timestamp, StoreError>> {
        self.0.under().now()
    }

    fn head(&self, id: EntityId) -> BoxFuture<'_, Result<Option<Head>, StoreError>> {
        self.0.head(id)
    }

    fn heads(
        &self,
        filter: HeadFilter,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Head>, StoreError>> {
        self.0.under().heads(filter, limit)
    }

    fn keys(
        &self,
        range: KeyRange,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<(String, EntityId)>, StoreError>> {
        self.0.under().keys(range, limit)
    }

    fn due(
        &self,
        lanes: Vec<u16>,
        overdue: Duration,
        limit: usize,
    ) -> BoxFuture<'_, Result<(Timestamp, Vec<Head>), StoreError>> {
        self.0.under().due(lanes, overdue, limit)
    }

    fn latest_due(
        &self,
        lanes: Vec<u16>,
        by: Timestamp,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Head>, StoreError>> {
        self.0.under().latest_due(lanes, by, limit)
    }

    fn next_due(
        &self,
        lanes: Vec<u16>,
    ) -> BoxFuture<'_, Result<(Timestamp, Option<Timestamp>), StoreError>> {
        self.0.under().next_due(lanes)
    }

    fn mail(
        &self,
        entity: EntityId,
        after: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Mail>, StoreError>> {
        self.0.under().mail(entity, after, limit)
    }

    fn stream(
        &self,
        entity: EntityId,
        from: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Record>, StoreError>> {
        self.0.stream(entity, from, limit)
    }

    fn outbox_has(&self, id: MessageId) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.0.under().outbox_has(id)
    }

    fn feed(&self, after: Cursor, limit: usize) -> BoxFuture<'_, Result<FeedPage, StoreError>> {
        self.0.under().feed(after, limit)
    }

    fn session(&self, id: SessionId) -> BoxFuture<'_, Result<Option<Session>, StoreError>> {
        self.0.under().session(id)
    }

    fn live_sessions(&self) -> BoxFuture<'_, Result<Vec<Session>, StoreError>> {
        self.0.under().live_sessions()
    }

    fn evidence(&self, entity: EntityId) -> BoxFuture<'_, Result<Vec<Evidence>, StoreError>> {
        self.0.under().evidence(entity)
    }

    fn put_blob(&self, bytes: Vec<u8>) -> BoxFuture<'_, Result<Hash, StoreError>> {
        self.0.under().put_blob(bytes)
    }

    fn blob(&self, digest: Hash) -> BoxFuture<'_, Result<Option<Vec<u8>>, StoreError>> {
        self.0.under().blob(digest)
    }

    fn tallies(&self) -> BoxFuture<'_, Result<Tallies, StoreError>> {
        self.0.under().tallies()
    }

    fn health(&self) -> BoxFuture<'_, Result<Health, StoreError>> {
        self.0.under().health()
    }

    fn open_by_tenant(&self) -> BoxFuture<'_, Result<Vec<TenantCount>, StoreError>> {
        self.0.under().open_by_tenant()
    }

    fn sizes(
        &self,
        after: Option<EntityId>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<EntitySize>, StoreError>> {
        self.0.under().sizes(after, limit)
    }

    fn retire(
        &self,
        ended_before: Timestamp,
        limit: usize,
    ) -> BoxFuture<'_, Result<Retired, StoreError>> {
        self.0.retire(ended_before, limit)
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.0.under().close()
    }
}
