//! What tenants use.

use super::{
    Inner,
    rows::{self, get},
};
use tenure_kernel::{
    error::StoreError,
    ids::EntityId,
    quota::{EntitySize, TenantCount},
};

// Every open head is due (law 4), and the index over `due` knows no history.
const OPEN: &str = "SELECT tenant, kind, count(*) FROM heads WHERE due IS NOT NULL AND class = 0
    GROUP BY tenant, kind ORDER BY tenant, kind";
const SIZES: &str = "SELECT h.id, h.tenant, (length(h.state)
        + (SELECT coalesce(sum(length(r.bytes)), 0) FROM records r WHERE r.entity = h.id)
        + (SELECT coalesce(sum(length(m.body)), 0) FROM mail m WHERE m.entity = h.id)
        + (SELECT coalesce(sum(length(e.body)), 0) FROM evidence e WHERE e.entity = h.id)
        + (SELECT coalesce(sum(length(b.bytes)), 0) FROM blob_refs n JOIN blobs b ON b.digest = n.digest
            WHERE n.entity = h.id))::bigint
    FROM heads h WHERE h.id > $1 ORDER BY h.id LIMIT $2";

pub(super) async fn open_by_tenant(store: &Inner) -> Result<Vec<TenantCount>, StoreError> {
    let found = store.query(OPEN, &[]).await?;
    let read = |row| {
        Ok(TenantCount { tenant: get(row, 0)?, kind: get(row, 1)?, count: rows::count(row, 2)? })
    };
    found.iter().map(read).collect()
}

pub(super) async fn sizes(
    store: &Inner,
    after: Option<EntityId>,
    limit: usize,
) -> Result<Vec<EntitySize>, StoreError> {
    // The nil id is nobody's.
    let after = after.map_or(uuid::Uuid::nil(), |id| id.uuid());
    let found = store.query(SIZES, &[&after, &rows::limit(limit)]).await?;
    let read = |row| {
        Ok(EntitySize { id: rows::id(row, 0)?, tenant: get(row, 1)?, bytes: rows::count(row, 2)? })
    };
    found.iter().map(read).collect()
}
