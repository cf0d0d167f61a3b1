//! What keeps a store healthy: the pulse, blobs, and retention.

use super::{Inner, error::Fault, pool::Conn, rows, rows::get};
use tenure_kernel::{
    error::StoreError,
    housekeeping::{Pulse, PulseRequest, Retired},
    limits,
    stream::Hash,
    time::Timestamp,
};
use tokio_postgres::types::ToSql;
use uuid::Uuid;

const PUT_BLOB: &str = "INSERT INTO blobs (digest, at, bytes) VALUES ($1, moment(), $2)
    ON CONFLICT (digest) DO UPDATE SET at = excluded.at";
const LAST_PULSE: &str = "SELECT last_at, judge_after, moment() FROM pulse FOR UPDATE";
const NEXT_PULSE: &str = "UPDATE pulse SET last_at = $1, judge_after = $2, judges_until = $3";
const ADD_TALLIES: &str = "INSERT INTO tallies AS t (rule, fired, failed, lag_max_us, last_at)
    SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[])
    ON CONFLICT (rule) DO UPDATE SET fired = t.fired + excluded.fired,
        failed = t.failed + excluded.failed,
        lag_max_us = greatest(t.lag_max_us, excluded.lag_max_us),
        last_at = greatest(t.last_at, excluded.last_at)";

const OVER: &str = "SELECT h.id FROM heads h
    WHERE h.ended_at IS NOT NULL AND h.ended_at < $1
        AND NOT EXISTS (SELECT FROM outbox o WHERE o.source = h.id)
    ORDER BY h.ended_at LIMIT $2 FOR UPDATE OF h SKIP LOCKED";
// Two statements: what is locked is looked at again, on a snapshot that is younger than the lock. The first sees the head as
// it is locked, but the outbox as it was before.
const LOCK_VACANT: &str = "SELECT h.id FROM heads h WHERE h.vacant_since < $1
        AND h.mail_read = h.mail_count AND h.attention IS NULL AND h.holder IS NULL
    ORDER BY h.vacant_since LIMIT $2 FOR UPDATE OF h SKIP LOCKED";
const STILL_VACANT: &str = "SELECT h.id FROM heads h WHERE h.id = ANY($1::uuid[])
        AND h.vacant_since < $2 AND h.mail_read = h.mail_count AND h.attention IS NULL
        AND h.holder IS NULL AND NOT EXISTS (SELECT FROM outbox o WHERE o.source = h.id)";
// What is removed from the feed moves its floor, in the same transaction.
const DELETE_RECORDS: &str = "WITH gone AS (
        DELETE FROM records WHERE entity = ANY($1::uuid[]) RETURNING tx, ord)
    SELECT tx, ord FROM gone ORDER BY tx DESC, ord DESC LIMIT 1";
// From the oldest on, up to the first that stays: a stream is cut at one place only, even where a clock
// once stepped back.
const DELETE_SEALED: &str = "WITH gone AS (
        DELETE FROM records r USING heads h, LATERAL (
            SELECT coalesce(min(k.first), h.sealed) AS first FROM records k
            WHERE k.entity = h.id AND k.first < h.sealed
                AND (k.first + k.count - 1 >= h.sealed OR k.at >= $1)) stays
        WHERE h.sealed > 0 AND h.class <> 2 AND r.entity = h.id AND r.first < stays.first
        RETURNING r.tx, r.ord)
    SELECT tx, ord, count(*) OVER () FROM gone ORDER BY tx DESC, ord DESC LIMIT 1";
// `mail_read` only rises: what was read at the snapshot stays read.
const DELETE_READ_MAIL: &str = "DELETE FROM mail m USING heads h
    WHERE h.sealed > 0 AND h.class <> 2 AND m.entity = h.id AND m.seq <= h.mail_read AND m.at < $1";
const RAISE_FLOOR: &str = "UPDATE meta SET floor_tx = $1, floor_ord = $2
    WHERE (floor_tx, floor_ord) < ($1, $2)";
const DELETE_REST: [&str; 5] = [
    "DELETE FROM mail WHERE entity = ANY($1::uuid[])",
    "DELETE FROM evidence WHERE entity = ANY($1::uuid[])",
    "DELETE FROM keys WHERE entity = ANY($1::uuid[])",
    "DELETE FROM sessions WHERE id = ANY($1::uuid[])",
    "DELETE FROM heads WHERE id = ANY($1::uuid[])",
];
const DELETE_BLOB_REFS: &str =
    "DELETE FROM blob_refs WHERE entity = ANY($1::uuid[]) RETURNING digest";
// A blob is durable before the commit that names it: a young one may still be waiting for that.
const DELETE_UNREFERENCED: &str = "DELETE FROM blobs b WHERE b.digest = ANY($1::bytea[])
    AND b.at < greatest($2, moment() - $3)
    AND NOT EXISTS (SELECT FROM blob_refs r WHERE r.digest = b.digest)";
// What nothing ever named, and what was too young when its last name went.
const DELETE_ORPHANS: &str = "DELETE FROM blobs b WHERE b.digest > $1 AND b.digest <= $2
    AND b.at < greatest($3, moment() - $4)
    AND NOT EXISTS (SELECT FROM blob_refs r WHERE r.digest = b.digest)";
// The last of the blobs that one round looks at.
const LAST_BLOB: &str =
    "SELECT digest FROM blobs WHERE digest > $1 ORDER BY digest OFFSET $2 LIMIT 1";
// There are none, or there is a bug; either way a claim must not step over them for ever.
const DELETE_STRAY: &str = "DELETE FROM ready r WHERE r.ready_at < moment() - 60000000
    AND NOT EXISTS (SELECT FROM heads h WHERE h.id = r.entity AND h.ready_at = r.ready_at)";

pub(super) async fn put_blob(store: &Inner, bytes: Vec<u8>) -> Result<Hash, StoreError> {
    if bytes.len() > limits::BLOB_BYTES_MAX {
        let (what, actual, limit) = ("blob in bytes", bytes.len(), limits::BLOB_BYTES_MAX);
        return Err(StoreError::Limit { what, actual, limit });
    }
    let digest = Hash::of(&bytes);
    let loan = store.writers()?.lend().await?;
    let put = async {
        let statement = loan.conn.prepare(PUT_BLOB).await?;
        Ok(loan.conn.client.execute(&statement, &[&&digest.0[..], &bytes]).await?)
    };
    // Alone in its transaction and idempotent: a lost answer is a failure that can be repeated.
    loan.conn.in_time(put, Fault::unavailable).await.map_err(Fault::into_store)?;
    loan.give_back();
    Ok(digest)
}

pub(super) async fn pulse(store: &Inner, request: PulseRequest) -> Result<Pulse, StoreError> {
    let loan = store.writers()?.lend().await?;
    match loan.conn.in_time(beat(&loan.conn, &request), Fault::unavailable).await {
        Ok(pulse) => {
            let looked = match &store.continuity {
                Some(continuity) => {
                    let look = continuity.look_at_newest(&loan.conn);
                    loan.conn.in_time(look, Fault::unavailable).await
                }
                None => Ok(()),
            };
            // The pulse is left in any case; a connection that fails here is not used again.
            match looked {
                Ok(()) => loan.give_back(),
                Err(fault) => tracing::debug!(?fault, "the newest record was not looked at"),
            }
            Ok(pulse)
        }
        Err(fault) => {
            loan.roll_back().await;
            Err(fault.into_store())
        }
    }
}

async fn beat(conn: &Conn, request: &PulseRequest) -> Result<Pulse, Fault> {
    let (last, next) = (conn.prepare(LAST_PULSE).await?, conn.prepare(NEXT_PULSE).await?);
    let add = conn.prepare(ADD_TALLIES).await?;
    conn.client.batch_execute("BEGIN").await?;
    let row = conn.client.query_one(&last, &[]).await?;
    let last_at = get::<Option<i64>>(&row, 0)?.map(Timestamp::from_micros);
    let pulse = Pulse::next(last_at, rows::time(&row, 1)?, rows::time(&row, 2)?, request);
    let until = (pulse.now + request.gap).as_micros();
    let values = (pulse.now.as_micros(), pulse.judge_after.as_micros());
    conn.client.execute(&next, &[&values.0, &values.1, &until]).await?;
    if !request.tallies.is_empty() {
        let t = &request.tallies;
        let micros = |d: std::time::Duration| i64::try_from(d.as_micros()).unwrap_or(i64::MAX);
        let names: Vec<&str> = t.keys().map(String::as_str).collect();
        let fired: Vec<i64> = t.values().map(|t| rows::big(t.fired)).collect();
        let failed: Vec<i64> = t.values().map(|t| rows::big(t.failed)).collect();
        let lags: Vec<i64> = t.values().map(|t| micros(t.lag_max)).collect();
        let lasts: Vec<Option<i64>> =
            t.values().map(|t| t.last_at.map(Timestamp::as_micros)).collect();
        conn.client.execute(&add, &[&names, &fired, &failed, &lags, &lasts]).await?;
    }
    // A pulse whose answer was lost has been left or not; the next one sees which.
    conn.client.batch_execute("COMMIT").await?;
    Ok(pulse)
}

pub(super) async fn retire(
    store: &Inner,
    ended_before: Timestamp,
    limit: usize,
) -> Result<Retired, StoreError> {
    let loan = store.writers()?.lend().await?;
    match clear_and_sweep(store, &loan.conn, ended_before, limit).await {
        Ok(retired) => {
            loan.give_back();
            Ok(retired)
        }
        Err(fault) => {
            loan.roll_back().await;
            Err(fault.into_store())
        }
    }
}

/// Two exchanges, each with a deadline of its own: entities that take long leave time for blobs.
async fn clear_and_sweep(
    store: &Inner,
    conn: &Conn,
    before: Timestamp,
    limit: usize,
) -> Result<Retired, Fault> {
    let cleared = clear(conn, before, limit);
    let mut retired = conn.in_time(cleared, Fault::unavailable).await?;
    let after = store.blobs_after();
    let swept = sweep(conn, before, limit, &after);
    let (orphans, next) = conn.in_time(swept, Fault::unavailable).await?;
    store.look_at_blobs_after(next);
    retired.blobs += orphans;
    Ok(retired)
}

/// How old a blob without a name must be, in microseconds.
fn blob_age() -> i64 {
    i64::try_from(limits::UNNAMED_BLOB_AGE_MAX.as_micros()).unwrap_or(i64::MAX)
}

/// Removes blobs that nothing names, out of the next ones in the order of their digests, in a transaction of its own: it
/// holds no head. Says how many, and up to which digest it looked; behind the last one it starts over.
async fn sweep(
    conn: &Conn,
    before: Timestamp,
    limit: usize,
    after: &[u8],
) -> Result<(u64, Vec<u8>), Fault> {
    let page = rows::limit(limit.saturating_mul(limits::BLOBS_PER_RETIRED).saturating_sub(1));
    let last = query(conn, LAST_BLOB, &[&after, &page]).await?;
    let last = last.first().map(|row| get::<Vec<u8>>(row, 0)).transpose()?;
    let until = last.clone().unwrap_or_else(|| vec![255; 32]);
    let statement = conn.prepare(DELETE_ORPHANS).await?;
    let (before, age) = (before.as_micros(), blob_age());
    let gone = conn.client.execute(&statement, &[&after, &until, &before, &age]).await?;
    Ok((gone, last.unwrap_or_default()))
}

/// Removes entities, what they name, and what lies below seals.
async fn clear(conn: &Conn, before: Timestamp, limit: usize) -> Result<Retired, Fault> {
    let (before, limit) = (before.as_micros(), rows::limit(limit));
    let mut retired = Retired::default();
    conn.client.batch_execute("BEGIN").await?;
    let over = query(conn, OVER, &[&before, &limit]).await?;
    let mut gone = ids(&over)?;
    let left = limit.saturating_sub(rows::limit(gone.len()));
    let vacant = ids(&query(conn, LOCK_VACANT, &[&before, &left]).await?)?;
    if !vacant.is_empty() {
        gone.extend(ids(&query(conn, STILL_VACANT, &[&vacant, &before]).await?)?);
    }
    retired.entities = gone.len() as u64;
    let mut last = None;
    if !gone.is_empty() {
        for row in &query(conn, DELETE_RECORDS, &[&gone]).await? {
            last = last.max(Some((get::<i64>(row, 0)?, get::<i32>(row, 1)?)));
        }
        let named = query(conn, DELETE_BLOB_REFS, &[&gone]).await?;
        if !named.is_empty() {
            let named = named.iter().map(|row| get::<Vec<u8>>(row, 0));
            let named = named.collect::<Result<Vec<_>, _>>()?;
            let statement = conn.prepare(DELETE_UNREFERENCED).await?;
            let values: [&(dyn ToSql + Sync); 3] = [&named, &before, &blob_age()];
            retired.blobs = conn.client.execute(&statement, &values).await?;
        }
        for sql in DELETE_REST {
            query(conn, sql, &[&gone]).await?;
        }
    }
    for row in &query(conn, DELETE_SEALED, &[&before]).await? {
        last = last.max(Some((get::<i64>(row, 0)?, get::<i32>(row, 1)?)));
        retired.records = rows::count(row, 2)?;
    }
    query(conn, DELETE_READ_MAIL, &[&before]).await?;
    if let Some((tx, ord)) = last {
        query(conn, RAISE_FLOOR, &[&tx, &ord]).await?;
    }
    query(conn, DELETE_STRAY, &[]).await?;
    conn.client.batch_execute("COMMIT").await.map_err(super::error::of_commit)?;
    Ok(retired)
}

fn ids(rows: &[tokio_postgres::Row]) -> Result<Vec<Uuid>, StoreError> {
    rows.iter().map(|row| get::<Uuid>(row, 0)).collect()
}

async fn query(
    conn: &Conn,
    sql: &'static str,
    values: &[&(dyn ToSql + Sync)],
) -> Result<Vec<tokio_postgres::Row>, Fault> {
    let statement = conn.prepare(sql).await?;
    Ok(conn.client.query(&statement, values).await?)
}
