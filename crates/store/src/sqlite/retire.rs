//! Retention: whole entities that are final or vacant, what lies below seals, and blobs that nothing names.

use super::{
    error::Trouble,
    rows::{self, run},
    schema,
    writer::Writer,
};
use rusqlite::OptionalExtension as _;
use std::collections::BTreeSet;
use tenure_kernel::{
    housekeeping::{Retired, blobs_before},
    ids::EntityId,
    limits::BLOBS_PER_RETIRED,
    time::Timestamp,
};

/// Final entities, longest over first.
pub(super) const OVER: &str = "SELECT row, id, tail FROM heads WHERE class = 2 AND changed_at < ?1
    AND NOT EXISTS (SELECT 1 FROM outbox WHERE source = heads.id) ORDER BY changed_at LIMIT ?2";
/// Vacant entities, longest first: the same words as `tenure_kernel::housekeeping::may_leave`. There is one writer, so
/// what this finds stays true until it is removed.
pub(super) const VACANT: &str =
    "SELECT row, id, tail FROM heads WHERE class = 1 AND status = 'vacant' AND changed_at < ?1
    AND mail_read = mail_count AND attention IS NULL AND holder IS NULL
    AND NOT EXISTS (SELECT 1 FROM outbox WHERE source = heads.id) ORDER BY changed_at LIMIT ?2";
/// Entities that are not over and have been sealed.
pub(super) const SEALED: &str =
    "SELECT id, tail, sealed, mail_read FROM heads WHERE sealed > 0 AND class <> 2";
/// What an entity names.
const DELETE_BLOB_REFS: &str = "DELETE FROM blob_refs WHERE entity = ?1 RETURNING digest";
/// A blob is durable before the commit that names it: a young one may still be waiting for that.
pub(super) const DELETE_UNREFERENCED: &str = "DELETE FROM blobs WHERE digest = ?1 AND +put_at < ?2
    AND NOT EXISTS (SELECT 1 FROM blob_refs WHERE blob_refs.digest = blobs.digest)";
/// What nothing ever named, and what was too young when its last name went.
pub(super) const DELETE_ORPHANS: &str =
    "DELETE FROM blobs WHERE digest > ?1 AND digest <= ?2 AND +put_at < ?3
    AND NOT EXISTS (SELECT 1 FROM blob_refs WHERE blob_refs.digest = blobs.digest)";
/// The last of the blobs that one round looks at.
pub(super) const LAST_BLOB: &str =
    "SELECT digest FROM blobs WHERE digest > ?1 ORDER BY digest LIMIT 1 OFFSET ?2";

/// Removes what retention may remove; see `Store::retire`.
pub(super) fn retire(
    w: &mut Writer,
    ended_before: Timestamp,
    limit: usize,
) -> Result<Retired, Trouble> {
    let mut retired = Retired::default();
    let blobs_before = blobs_before(ended_before, w.now());
    let mut named: BTreeSet<[u8; 32]> = BTreeSet::new();
    let mut floor = schema::meta(&w.conn, "feed_floor")?;
    let mut found: Vec<(i64, EntityId, i64)> = Vec::new();
    for sql in [OVER, VACANT] {
        let mut q = w.conn.prepare_cached(sql)?;
        let left = limit.saturating_sub(found.len()) as i64;
        let rows = q.query_map((ended_before.as_micros(), left), |r| {
            Ok((r.get(0)?, rows::entity(r, 1)?, r.get(2)?))
        })?;
        found.extend(rows.collect::<Result<Vec<_>, _>>()?);
    }
    for (row, id, tail) in found {
        for span in rows::spans(&w.conn, tail)? {
            run(&w.conn, "DELETE FROM records WHERE seq = ?1", &[&span.seq])?;
            floor = floor.max(span.seq);
        }
        let key = id.as_bytes();
        run(&w.conn, "DELETE FROM mail WHERE entity = ?1", &[key])?;
        run(&w.conn, "DELETE FROM evidence WHERE entity = ?1", &[key])?;
        run(&w.conn, "DELETE FROM keys WHERE entity = ?1", &[key])?;
        let mut q = w.conn.prepare_cached(DELETE_BLOB_REFS)?;
        for digest in q.query_map([key], |r| r.get::<_, [u8; 32]>(0))? {
            named.insert(digest?);
        }
        drop(q);
        run(&w.conn, "DELETE FROM sessions WHERE id = ?1", &[key])?;
        run(&w.conn, "DELETE FROM heads WHERE row = ?1", &[&row])?;
        w.forget(id);
        retired.entities += 1;
    }
    for digest in named {
        let gone = run(&w.conn, DELETE_UNREFERENCED, &[&digest, &blobs_before.as_micros()])?;
        retired.blobs += gone as u64;
    }
    // Sealed streams: the records below the seal, and the mail that was read.
    let mut q = w.conn.prepare_cached(SEALED)?;
    let sealed: Vec<(EntityId, i64, i64, i64)> = q
        .query_map([], |r| Ok((rows::entity(r, 0)?, r.get(1)?, r.get(2)?, r.get(3)?)))?
        .collect::<Result<_, _>>()?;
    drop(q);
    for (id, tail, seal, mail_read) in sealed {
        // From the oldest on, up to the first that stays: a stream is cut at one place only, even
        // where a clock once stepped back.
        let spans = rows::spans(&w.conn, tail)?;
        let mut oldest_first = spans.iter().rev();
        let stays = oldest_first.position(|s| s.last >= seal || s.at >= ended_before);
        // The seal itself stays; a stream without one is not ours to cut.
        let gone = stays.unwrap_or(0);
        for span in spans.iter().rev().take(gone) {
            run(&w.conn, "DELETE FROM records WHERE seq = ?1", &[&span.seq])?;
            floor = floor.max(span.seq);
            retired.records += 1;
        }
        if let (1.., Some(first)) = (gone, spans.iter().rev().nth(gone)) {
            run(&w.conn, "UPDATE records SET prev = -1 WHERE seq = ?1", &[&first.seq])?;
        }
        run(
            &w.conn,
            "DELETE FROM mail WHERE entity = ?1 AND seq <= ?2 AND at < ?3",
            &[id.as_bytes(), &mail_read, &ended_before.as_micros()],
        )?;
    }
    retired.blobs += delete_orphans(w, blobs_before, limit)?;
    run(&w.conn, "UPDATE meta SET value = ?1 WHERE name = 'feed_floor'", &[&floor])?;
    Ok(retired)
}

/// Removes blobs that nothing names, out of the next ones in the order of their digests; behind the last it starts over.
fn delete_orphans(w: &mut Writer, before: Timestamp, limit: usize) -> Result<u64, Trouble> {
    let page = limit.saturating_mul(BLOBS_PER_RETIRED).saturating_sub(1) as i64;
    let after = w.blobs_after;
    let last: Option<[u8; 32]> =
        w.conn.prepare_cached(LAST_BLOB)?.query_row((after, page), |r| r.get(0)).optional()?;
    let until = last.unwrap_or([255; 32]);
    let gone = run(&w.conn, DELETE_ORPHANS, &[&after, &until, &before.as_micros()])?;
    w.blobs_after = last.unwrap_or_default();
    Ok(gone as u64)
}
