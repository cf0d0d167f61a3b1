//! What tenants use.

use super::{error::Trouble, rows};
use rusqlite::{Connection, OptionalExtension as _};
use tenure_kernel::{
    ids::EntityId,
    quota::{EntitySize, TenantCount},
};

/// Every open head is due (law 4), and the index over `due` knows no history.
const OPEN: &str = "SELECT tenant, kind, count(*) FROM heads WHERE due IS NOT NULL AND class = 0
    GROUP BY tenant, kind ORDER BY tenant, kind";
const HEADS: &str =
    "SELECT id, tenant, tail, length(state) FROM heads WHERE id > ?1 ORDER BY id LIMIT ?2";
const RECORD: &str = "SELECT prev, length(bytes) FROM records WHERE seq = ?1";
const BESIDE: &str = "SELECT (SELECT coalesce(sum(length(body)), 0) FROM mail WHERE entity = ?1)
    + (SELECT coalesce(sum(length(body)), 0) FROM evidence WHERE entity = ?1)
    + (SELECT coalesce(sum(length(b.bytes)), 0) FROM blob_refs r JOIN blobs b ON b.digest = r.digest
        WHERE r.entity = ?1)";

pub(super) fn open_by_tenant(conn: &Connection) -> Result<Vec<TenantCount>, Trouble> {
    let mut q = conn.prepare_cached(OPEN)?;
    let count = |n: i64| u64::try_from(n).unwrap_or(0);
    let rows = q.query_map([], |r| {
        Ok(TenantCount { tenant: r.get(0)?, kind: r.get(1)?, count: count(r.get(2)?) })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

pub(super) fn sizes(
    conn: &Connection,
    after: Option<EntityId>,
    limit: usize,
) -> Result<Vec<EntitySize>, Trouble> {
    let tx = conn.unchecked_transaction()?;
    let after = after.map_or_else(Vec::new, |id| id.as_bytes().to_vec());
    let mut heads = tx.prepare_cached(HEADS)?;
    let (mut record, mut beside) = (tx.prepare_cached(RECORD)?, tx.prepare_cached(BESIDE)?);
    let mut found = heads.query((after, i64::try_from(limit).unwrap_or(i64::MAX)))?;
    let mut sizes = Vec::new();
    while let Some(row) = found.next()? {
        let (id, tenant) = (rows::entity(row, 0)?, row.get(1)?);
        let mut bytes: i64 = row.get(3)?;
        // There is no index over the records of an entity: its stream is a list.
        let mut seq: i64 = row.get(2)?;
        while seq > 0 {
            let read = |r: &rusqlite::Row<'_>| Ok((r.get(0)?, r.get::<_, i64>(1)?));
            let Some((prev, length)) = record.query_row([seq], read).optional()? else { break };
            (seq, bytes) = (prev, bytes + length);
        }
        bytes += beside.query_row([id.as_bytes()], |r| r.get::<_, i64>(0))?;
        sizes.push(EntitySize { id, tenant, bytes: u64::try_from(bytes).unwrap_or(0) });
    }
    Ok(sizes)
}
