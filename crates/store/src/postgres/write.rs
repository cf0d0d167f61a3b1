//! The second round trip of a batch: one statement per table, every row of the batch in arrays, and
//! COMMIT right behind, before any answer is known. That is safe because a statement that does not
//! change exactly the rows it should raises an error itself (`raced`), and behind an error COMMIT
//! commits nothing.
//!
//! The order of tables is the same in every batch (heads, keys, then what a head's lock covers) and rows
//! are sorted within them: inserts into unique indexes wait for each other, and in one order they can
//! not deadlock.

use super::{
    compose::Rows,
    error::{Fault, of_commit, of_pipelined},
    pool::Conn,
    rows::{self, big},
};
use futures_util::future::{MaybeDone, join, join_all, maybe_done};
use std::{
    collections::{BTreeMap, HashMap},
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
};
use tenure_kernel::{
    batch::{HeadWrite, Writes},
    error::StoreError,
    head::Head,
    ids::EntityId,
    runtime::BoxFuture,
    stream::Record,
    table::Class,
    time::Timestamp,
};
use tokio_postgres::types::ToSql;
use uuid::Uuid;

/// What the heads of a batch become. A macro, because both statements that change heads say it.
macro_rules! change_heads {
    () => {
        "UPDATE heads h SET status = u.status, class = u.class, version = u.version, epoch = u.epoch,
        holder = u.holder, chain = u.chain, changed_at = u.changed_at, mail_count = u.mail_count,
        mail_read = u.mail_read, due = u.due, must_end_by = u.must_end_by, check_at = u.check_at,
        faults = u.faults, ready_at = u.ready_at, ended_at = u.ended_at, attention = u.attention,
        sealed = u.sealed, timers = coalesce(u.timers, h.timers), state = coalesce(u.state, h.state) "
    };
}

/// The records behind the heads, in the same statement.
macro_rules! append_records {
    () => {
        "r AS (INSERT INTO records (entity, first, count, commit_id, at, epoch, hash, bytes, ord, tx)
        SELECT n.*, (SELECT pg_current_xact_id()::text::bigint) FROM unnest($3::new_record[]) n) "
    };
}

/// Fails unless every head was as it should be, and says which transaction this is and when. A time that is given
/// was guessed, and must be about right.
macro_rules! stamp {
    ($what:literal, $now:literal) => {
        concat!(
            "SELECT CASE WHEN count(*) <> $2::bigint THEN raced('",
            $what,
            "') WHEN abs((SELECT moment()) - ",
            $now,
            "::bigint) > 50000 THEN raced('the time') ELSE 0 END,
            (SELECT pg_current_xact_id()::text::bigint), (SELECT moment()) FROM w"
        )
    };
}

/// The statement of a batch that has locked its heads: heads by compare-and-set, and the records behind them.
const UPDATE_HEADS: &str = concat!(
    "WITH w AS (",
    change_heads!(),
    "FROM unnest($1::head_change[]) u
    WHERE h.id = u.id AND h.version = u.was_version AND h.epoch = u.was_epoch RETURNING 1), ",
    append_records!(),
    stamp!("a head", "NULL")
);
/// The same for heads that are not locked yet: it locks them as [`super::load`] does, never waiting, and takes only
/// those that the transaction given for each has written.
const UPDATE_KNOWN: &str = concat!(
    "WITH w AS (",
    change_heads!(),
    "FROM ROWS FROM (unnest($1::head_change[]), unnest($4::integer[])) u, LATERAL (
        SELECT k.id FROM heads k WHERE k.id = u.id AND k.xmin = u.unnest
            AND k.version = u.was_version AND k.epoch = u.was_epoch
        FOR NO KEY UPDATE SKIP LOCKED) l
    WHERE h.id = l.id RETURNING 1), ",
    append_records!(),
    stamp!("a head", "$5")
);
const INSERT_HEADS: &str = concat!(
    "WITH w AS (
    INSERT INTO heads (id, status, class, version, epoch, holder, chain, changed_at, mail_count,
        mail_read, due, must_end_by, check_at, faults, ready_at, ended_at, attention, sealed, timers,
        state, kind, tenant, queue, priority, lane, created_at)
    SELECT * FROM unnest($1::head_birth[])
    ON CONFLICT DO NOTHING RETURNING 1), ",
    append_records!(),
    stamp!("a new head", "$4")
);
const INSERT_KEYS: &str = "WITH w AS (
    INSERT INTO keys (key, entity, digest) SELECT * FROM unnest($1::text[], $2::uuid[], $3::bytea[])
    ON CONFLICT DO NOTHING RETURNING 1)
    SELECT CASE WHEN count(*) = cardinality($1) THEN 0 ELSE raced('a unique key') END FROM w";
const INSERT_MAIL: &str = "INSERT INTO mail (entity, seq, id, kind, body, at)
    SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::bytea[], $6::bigint[])";
const INSERT_EVIDENCE: &str =
    "INSERT INTO evidence (entity, key, epoch, call, digest, who, body, at)
    SELECT *, $8::bigint FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::bigint[], $5::bytea[],
        $6::text[], $7::bytea[])";
const INSERT_OUTBOX: &str = "INSERT INTO outbox (source, version, ordinal, lane, tenant, target,
        target_id, target_name, kind, body, at, wire)
    SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::integer[], $4::smallint[], $5::text[],
        $6::smallint[], $7::uuid[], $8::text[], $9::text[], $10::bytea[], $11::bigint[], $12::boolean[])";
const DELETE_OUTBOX: &str = "DELETE FROM outbox o
    USING unnest($1::uuid[], $2::bigint[], $3::integer[]) AS u(source, version, ordinal)
    WHERE o.source = u.source AND o.version = u.version AND o.ordinal = u.ordinal";
const INSERT_READY: &str = "INSERT INTO ready (queue, priority, tenant, ready_at, entity)
    SELECT * FROM unnest($1::text[], $2::smallint[], $3::text[], $4::bigint[], $5::uuid[])
    ON CONFLICT DO NOTHING";
const DELETE_READY: &str = "DELETE FROM ready r
    USING unnest($1::text[], $2::smallint[], $3::text[], $4::bigint[], $5::uuid[])
        AS u(queue, priority, tenant, ready_at, entity)
    WHERE r.queue = u.queue AND r.priority = u.priority AND r.tenant = u.tenant
        AND r.ready_at = u.ready_at AND r.entity = u.entity";
const INSERT_SESSIONS: &str =
    "INSERT INTO sessions (id, name, role, lease_us, renewed_at, expires_at, holds, ended)
    SELECT *, false FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[], $5::bigint[],
        $6::bigint[], $7::bytea[])";
const END_SESSIONS: &str = "UPDATE sessions SET ended = true WHERE id = ANY($1::uuid[])";
const RENEW_SESSIONS: &str = "UPDATE sessions s
    SET renewed_at = $4, expires_at = u.expires_at, holds = u.holds
    FROM unnest($1::uuid[], $2::bigint[], $3::bytea[]) AS u(id, expires_at, holds)
    WHERE s.id = u.id";
const INSERT_BLOB_REFS: &str = "INSERT INTO blob_refs (entity, digest)
    SELECT * FROM unnest($1::uuid[], $2::bytea[]) ON CONFLICT DO NOTHING";

/// Which transaction a batch was, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stamp {
    /// Its number.
    pub(super) tx: i64,
    /// As `xmin` of the rows that it wrote: the lower half of its number.
    pub(super) xmin: i32,
    pub(super) at: Timestamp,
}

/// What a batch stands on.
#[derive(Clone, Copy)]
pub(super) enum Ground<'a> {
    /// A transaction is open and has locked the heads.
    Locked,
    /// Nothing is open. The heads are believed to be as these transactions have written them, and the time to be this.
    Known { xmins: &'a HashMap<EntityId, i32>, now: Timestamp },
}

type Sent<'a> = BoxFuture<'a, Result<Option<Stamp>, Error>>;

/// Why a write was not done.
enum Error {
    /// A statement that [`prepare`] does not know. A bug; nothing was sent.
    Unprepared(&'static str),
    Driver(tokio_postgres::Error),
}

impl From<tokio_postgres::Error> for Error {
    fn from(e: tokio_postgres::Error) -> Self {
        Error::Driver(e)
    }
}

impl Error {
    fn fault(self, driver: fn(tokio_postgres::Error) -> Fault) -> Fault {
        match self {
            Error::Unprepared(sql) => {
                StoreError::refused_by_database(format!("not prepared: {sql}")).into()
            }
            Error::Driver(e) => driver(e),
        }
    }
}

/// Sends one statement. It leaves with the first poll, or never.
async fn send(
    conn: &Conn,
    sql: &'static str,
    values: &[&(dyn ToSql + Sync)],
) -> Result<Option<Stamp>, Error> {
    let statement = conn.prepared(sql).ok_or(Error::Unprepared(sql))?;
    conn.client.execute(&statement, values).await?;
    Ok(None)
}

/// The same for a statement that says which transaction it was part of.
async fn send_stamped(
    conn: &Conn,
    sql: &'static str,
    values: &[&(dyn ToSql + Sync)],
) -> Result<Option<Stamp>, Error> {
    let statement = conn.prepared(sql).ok_or(Error::Unprepared(sql))?;
    let row = conn.client.query_one(&statement, values).await?;
    let (tx, at): (i64, i64) = (row.try_get(1)?, row.try_get(2)?);
    // The lower half of the number is what rows carry.
    #[expect(clippy::cast_possible_truncation, reason = "meant: xmin is the lower half")]
    let xmin = tx as i32;
    Ok(Some(Stamp { tx, xmin, at: Timestamp::from_micros(at) }))
}

async fn begin(conn: &Conn) -> Result<Option<Stamp>, Error> {
    conn.client.batch_execute("BEGIN").await?;
    Ok(None)
}

/// Sends every write and COMMIT, then waits for the answers. On known ground BEGIN leaves before them, except where one
/// statement is all there is: Postgres commits that by itself.
///
/// COMMIT must not leave before, or without, any of them. So each is polled once by itself: what has
/// failed by then was not sent, and COMMIT is not either.
pub(super) async fn write_and_commit(
    conn: &Conn,
    writes: &Writes,
    now: Timestamp,
    ground: Ground<'_>,
) -> Result<Option<Stamp>, Fault> {
    prepare(conn, writes, ground).await?;
    let mut sent: Vec<Sent<'_>> = Vec::with_capacity(7);
    heads(conn, writes, ground, &mut sent);
    side_rows(conn, writes, now, &mut sent);
    if let Ground::Known { .. } = ground {
        if let [_] = &sent[..] {
            let alone = sent.remove(0).await;
            return alone.map_err(|e| e.fault(of_commit));
        }
        sent.insert(0, Box::pin(begin(conn)));
    }
    let mut sent: Vec<MaybeDone<Sent<'_>>> = sent.into_iter().map(maybe_done).collect();
    poll_fn(|cx| {
        for write in &mut sent {
            let _ = Pin::new(&mut *write).poll(cx);
            // Nothing behind it may leave: without BEGIN it would be committed by itself.
            if matches!(write, MaybeDone::Done(Err(_))) {
                break;
            }
        }
        Poll::Ready(())
    })
    .await;
    if let Some(i) = sent.iter().position(|s| matches!(s, MaybeDone::Done(Err(_)))) {
        let failed = Pin::new(&mut sent[i]).take_output();
        return failed.unwrap_or(Ok(None)).map_err(|e| e.fault(Fault::from));
    }
    let (_, commit) = join(join_all(&mut sent), conn.client.batch_execute("COMMIT")).await;
    let mut stamp = None;
    // The first error is the cause; what follows it only says that the transaction has failed.
    for write in &mut sent {
        let answer = Pin::new(write).take_output().unwrap_or(Ok(None));
        stamp = stamp.or(answer.map_err(|e| e.fault(of_pipelined))?);
    }
    commit.map_err(of_commit)?;
    Ok(stamp)
}

/// Prepares what a batch needs and this connection does not have yet: a statement that was prepared on
/// the way would let COMMIT overtake it.
async fn prepare(conn: &Conn, w: &Writes, ground: Ground<'_>) -> Result<(), tokio_postgres::Error> {
    let known = matches!(ground, Ground::Known { .. });
    let all = [
        (UPDATE_HEADS, !known && !w.heads.is_empty()),
        (UPDATE_KNOWN, known && !w.heads.is_empty()),
        (INSERT_HEADS, !w.heads.is_empty()),
        (INSERT_READY, !w.heads.is_empty()),
        (DELETE_READY, !w.heads.is_empty()),
        (INSERT_KEYS, !w.keys.is_empty()),
        (INSERT_MAIL, !w.mail.is_empty()),
        (INSERT_EVIDENCE, !w.evidence.is_empty()),
        (INSERT_OUTBOX, !w.posted.is_empty()),
        (DELETE_OUTBOX, !w.delivered.is_empty()),
        (INSERT_SESSIONS, !w.opened.is_empty()),
        (END_SESSIONS, !w.ended.is_empty()),
        (RENEW_SESSIONS, !w.renewed.is_empty()),
        (INSERT_BLOB_REFS, !w.blobs.is_empty()),
    ];
    for (sql, _) in all.iter().filter(|(_, needed)| *needed) {
        conn.prepare(sql).await?;
    }
    Ok(())
}

fn heads<'a>(conn: &'a Conn, w: &'a Writes, ground: Ground<'a>, sent: &mut Vec<Sent<'a>>) {
    let mut all: Vec<&HeadWrite> = w.heads.values().collect();
    all.sort_unstable_by_key(|h| h.after.id);
    let (new, old): (Vec<&HeadWrite>, Vec<&HeadWrite>) =
        all.iter().partition(|h| h.before.is_none());
    let (mut births, mut steps) = (Rows::new(RECORD_FIELDS), Rows::new(RECORD_FIELDS));
    for (ord, record) in w.records.iter().enumerate() {
        let is_birth = record.first == 1;
        put_record(if is_birth { &mut births } else { &mut steps }, record, ord);
    }
    if !old.is_empty() {
        sent.push(Box::pin(update_heads(conn, old, steps.finish(), ground)));
    }
    if !new.is_empty() {
        sent.push(Box::pin(insert_heads(conn, new, births.finish(), ground)));
    }
    ready(conn, &all, sent);
}

const RECORD_FIELDS: i32 = 9;
const CHANGE_FIELDS: i32 = 22;
const BIRTH_FIELDS: i32 = 26;

/// `ord` is the record's place in the transaction, whichever statement inserts it.
fn put_record(rows: &mut Rows, r: &Record, ord: usize) {
    let row = rows.row();
    row.id(r.entity).count(r.first).int4(rows::ordinal(r.count)).uuid(r.commit.0);
    row.time(r.at).count(r.epoch).bytes(&r.hash.0).bytes(&r.bytes);
    row.int4(i32::try_from(ord).unwrap_or(i32::MAX));
}

/// The fields that change during a life, from `status` to `sealed`.
fn put_changing(row: &mut Rows, h: &Head) {
    row.text(h.status.name()).int2(rows::class(h.class())).count(h.version).count(h.epoch);
    row.id_opt(h.holder).bytes(&h.chain.0).time(h.changed_at);
    row.count(h.mail_count).count(h.mail_read);
    row.time_opt(h.due).time_opt(h.must_end_by).time_opt(h.check_at);
    row.int4(i32::from(h.faults)).time_opt(h.ready_at);
    row.time_opt((h.class() == Class::Final).then_some(h.changed_at));
    row.text_opt(h.attention.as_deref()).count(h.sealed);
}

async fn update_heads(
    conn: &Conn,
    heads: Vec<&HeadWrite>,
    records: Rows,
    ground: Ground<'_>,
) -> Result<Option<Stamp>, Error> {
    let mut rows = Rows::new(CHANGE_FIELDS);
    let mut written_by = Vec::new();
    for w in heads {
        // Partitioned by it: there is a head before.
        let Some(before) = &w.before else { continue };
        let row = rows.row();
        row.id(before.id).count(before.version).count(before.epoch);
        put_changing(row, &w.after);
        // A large state that did not change is neither sent nor rewritten.
        let timers = (before.timers != w.after.timers).then(|| w.after.timers.to_bytes());
        row.bytes_opt(timers.as_deref());
        row.bytes_opt((before.state != w.after.state).then_some(&w.after.state));
        if let Ground::Known { xmins, .. } = ground {
            // One that nobody knows is taken by no statement: zero is no transaction.
            written_by.push(xmins.get(&before.id).copied().unwrap_or(0));
        }
    }
    let rows = rows.finish();
    match ground {
        Ground::Locked => send_stamped(conn, UPDATE_HEADS, &[&rows, &rows.len(), &records]).await,
        Ground::Known { now, .. } => {
            let values: [&(dyn ToSql + Sync); 5] =
                [&rows, &rows.len(), &records, &written_by, &now.as_micros()];
            send_stamped(conn, UPDATE_KNOWN, &values).await
        }
    }
}

async fn insert_heads(
    conn: &Conn,
    heads: Vec<&HeadWrite>,
    records: Rows,
    ground: Ground<'_>,
) -> Result<Option<Stamp>, Error> {
    let mut rows = Rows::new(BIRTH_FIELDS);
    for HeadWrite { after: h, .. } in heads {
        let row = rows.row();
        row.id(h.id);
        put_changing(row, h);
        row.bytes(&h.timers.to_bytes()).bytes(&h.state);
        row.text(h.kind()).text(&h.tenant).text(&h.queue).int2(h.priority);
        row.int2(rows::lane(h.lane())).time(h.created_at);
    }
    let rows = rows.finish();
    let guessed = match ground {
        Ground::Locked => None,
        Ground::Known { now, .. } => Some(now.as_micros()),
    };
    send_stamped(conn, INSERT_HEADS, &[&rows, &rows.len(), &records, &guessed]).await
}

/// A head's row in the ready table, by everything that is its key.
fn place(head: &Head) -> Option<(&str, i16, &str, i64, Uuid)> {
    let at = head.ready_at?.as_micros();
    Some((&head.queue, head.priority, &head.tenant, at, head.id.uuid()))
}

/// Rows that leave the ready table and rows that enter it.
fn ready<'a>(conn: &'a Conn, heads: &[&'a HeadWrite], sent: &mut Vec<Sent<'a>>) {
    let (mut leave, mut enter) = (Vec::new(), Vec::new());
    for w in heads {
        let (before, after) = (w.before.as_ref().and_then(place), place(&w.after));
        if before != after {
            leave.extend(before);
            enter.extend(after);
        }
    }
    for (sql, places) in [(DELETE_READY, leave), (INSERT_READY, enter)] {
        if !places.is_empty() {
            sent.push(Box::pin(move_ready(conn, sql, places)));
        }
    }
}

async fn move_ready(
    conn: &Conn,
    sql: &'static str,
    places: Vec<(&str, i16, &str, i64, Uuid)>,
) -> Result<Option<Stamp>, Error> {
    let queues: Vec<&str> = places.iter().map(|p| p.0).collect();
    let priorities: Vec<i16> = places.iter().map(|p| p.1).collect();
    let tenants: Vec<&str> = places.iter().map(|p| p.2).collect();
    let times: Vec<i64> = places.iter().map(|p| p.3).collect();
    let ids: Vec<Uuid> = places.iter().map(|p| p.4).collect();
    send(conn, sql, &[&queues, &priorities, &tenants, &times, &ids]).await
}

fn side_rows<'a>(conn: &'a Conn, w: &'a Writes, now: Timestamp, sent: &mut Vec<Sent<'a>>) {
    let mut push = |needed: bool, future: Sent<'a>| {
        if needed {
            sent.push(future);
        }
    };
    push(!w.keys.is_empty(), Box::pin(keys(conn, w)));
    push(!w.mail.is_empty(), Box::pin(mail(conn, w)));
    push(!w.evidence.is_empty(), Box::pin(evidence(conn, w, now)));
    push(!w.posted.is_empty(), Box::pin(posted(conn, w)));
    push(!w.delivered.is_empty(), Box::pin(delivered(conn, w)));
    push(!w.opened.is_empty(), Box::pin(opened(conn, w)));
    push(!w.ended.is_empty(), Box::pin(ended(conn, w)));
    push(!w.renewed.is_empty(), Box::pin(renewed(conn, w, now)));
    push(!w.blobs.is_empty(), Box::pin(blob_refs(conn, w)));
}

async fn keys(conn: &Conn, w: &Writes) -> Result<Option<Stamp>, Error> {
    let mut all: Vec<_> = w.keys.iter().collect();
    all.sort_unstable_by(|a, b| a.0.key.cmp(&b.0.key));
    let keys: Vec<&str> = all.iter().map(|k| k.0.key.as_str()).collect();
    let entities: Vec<Uuid> = all.iter().map(|k| k.1.uuid()).collect();
    let digests: Vec<&[u8]> = all.iter().map(|k| &k.0.digest.0[..]).collect();
    send(conn, INSERT_KEYS, &[&keys, &entities, &digests]).await
}

async fn mail(conn: &Conn, w: &Writes) -> Result<Option<Stamp>, Error> {
    let entities: Vec<Uuid> = w.mail.iter().map(|(e, _)| e.uuid()).collect();
    let seqs: Vec<i64> = w.mail.iter().map(|(_, m)| big(m.seq)).collect();
    let ids: Vec<&str> = w.mail.iter().map(|(_, m)| m.id.0.as_str()).collect();
    let kinds: Vec<&str> = w.mail.iter().map(|(_, m)| m.kind.as_str()).collect();
    let bodies: Vec<Vec<u8>> = w.mail.iter().map(|(_, m)| rows::body_bytes(&m.body)).collect();
    let times: Vec<i64> = w.mail.iter().map(|(_, m)| m.at.as_micros()).collect();
    send(conn, INSERT_MAIL, &[&entities, &seqs, &ids, &kinds, &bodies, &times]).await
}

async fn evidence(conn: &Conn, w: &Writes, now: Timestamp) -> Result<Option<Stamp>, Error> {
    let e = &w.evidence;
    let entities: Vec<Uuid> = e.iter().map(|e| e.entity.uuid()).collect();
    let keys: Vec<&str> = e.iter().map(|e| e.key.as_str()).collect();
    let epochs: Vec<i64> = e.iter().map(|e| big(e.epoch)).collect();
    let calls: Vec<i64> = e.iter().map(|e| i64::from(e.call)).collect();
    let digests: Vec<Vec<u8>> = e.iter().map(|e| e.digest().0.to_vec()).collect();
    let who: Vec<&str> = e.iter().map(|e| e.who.as_str()).collect();
    let bodies: Vec<Vec<u8>> = e.iter().map(|e| rows::body_bytes(&e.body)).collect();
    let at = now.as_micros();
    let values: [&(dyn ToSql + Sync); 8] =
        [&entities, &keys, &epochs, &calls, &digests, &who, &bodies, &at];
    send(conn, INSERT_EVIDENCE, &values).await
}

async fn posted(conn: &Conn, w: &Writes) -> Result<Option<Stamp>, Error> {
    let p = &w.posted;
    let sources: Vec<Uuid> = p.iter().map(|p| p.id.source.uuid()).collect();
    let versions: Vec<i64> = p.iter().map(|p| big(p.id.version)).collect();
    let ordinals: Vec<i32> = p.iter().map(|p| rows::ordinal(p.id.ordinal)).collect();
    let lane = tenure_kernel::head::lane_of;
    let lanes: Vec<i16> = p.iter().map(|p| rows::lane(lane(p.id.source))).collect();
    let tenants: Vec<&str> = p.iter().map(|p| p.tenant.as_str()).collect();
    let targets: Vec<_> = p.iter().map(|p| rows::target(&p.message.to)).collect();
    let target: Vec<i16> = targets.iter().map(|t| t.0).collect();
    let target_ids: Vec<Option<Uuid>> = targets.iter().map(|t| t.1).collect();
    let target_names: Vec<Option<&str>> = targets.iter().map(|t| t.2).collect();
    let kinds: Vec<&str> = p.iter().map(|p| &*p.message.kind).collect();
    let bodies: Vec<Vec<u8>> = p.iter().map(|p| rows::body_bytes(&p.message.body)).collect();
    let times: Vec<i64> = p.iter().map(|p| p.at.as_micros()).collect();
    // Not the number of the target: a wake-up has that of a wire and waits for none.
    let wire: Vec<bool> = p.iter().map(|p| p.message.to.leaves()).collect();
    let values: [&(dyn ToSql + Sync); 12] = [
        &sources,
        &versions,
        &ordinals,
        &lanes,
        &tenants,
        &target,
        &target_ids,
        &target_names,
        &kinds,
        &bodies,
        &times,
        &wire,
    ];
    send(conn, INSERT_OUTBOX, &values).await
}

async fn delivered(conn: &Conn, w: &Writes) -> Result<Option<Stamp>, Error> {
    let sources: Vec<Uuid> = w.delivered.iter().map(|m| m.source.uuid()).collect();
    let versions: Vec<i64> = w.delivered.iter().map(|m| big(m.version)).collect();
    let ordinals: Vec<i32> = w.delivered.iter().map(|m| rows::ordinal(m.ordinal)).collect();
    send(conn, DELETE_OUTBOX, &[&sources, &versions, &ordinals]).await
}

async fn opened(conn: &Conn, w: &Writes) -> Result<Option<Stamp>, Error> {
    let o = &w.opened;
    let ids: Vec<Uuid> = o.iter().map(|s| s.id.uuid()).collect();
    let names: Vec<&str> = o.iter().map(|s| s.name.as_str()).collect();
    let roles: Vec<&str> = o.iter().map(|s| s.role.as_str()).collect();
    let lease = |s: &tenure_kernel::sessions::Session| {
        i64::try_from(s.lease.as_micros()).unwrap_or(i64::MAX)
    };
    let leases: Vec<i64> = o.iter().map(lease).collect();
    let renewed: Vec<i64> = o.iter().map(|s| s.renewed_at.as_micros()).collect();
    let expires: Vec<i64> = o.iter().map(|s| s.expires_at.as_micros()).collect();
    let holds: Vec<Vec<u8>> = o.iter().map(|s| rows::write_holds(&s.holds)).collect();
    let values: [&(dyn ToSql + Sync); 7] =
        [&ids, &names, &roles, &leases, &renewed, &expires, &holds];
    send(conn, INSERT_SESSIONS, &values).await
}

async fn ended(conn: &Conn, w: &Writes) -> Result<Option<Stamp>, Error> {
    let ids: Vec<Uuid> = w.ended.iter().map(|s| s.uuid()).collect();
    send(conn, END_SESSIONS, &[&ids]).await
}

async fn renewed(conn: &Conn, w: &Writes, now: Timestamp) -> Result<Option<Stamp>, Error> {
    // Of two renewals in one batch the later one counts.
    let last: BTreeMap<_, _> = w.renewed.iter().map(|(s, at, holds)| (s, (at, holds))).collect();
    let ids: Vec<Uuid> = last.keys().map(|s| s.uuid()).collect();
    let expires: Vec<i64> = last.values().map(|r| r.0.as_micros()).collect();
    let holds: Vec<Vec<u8>> = last.values().map(|r| rows::write_holds(r.1)).collect();
    send(conn, RENEW_SESSIONS, &[&ids, &expires, &holds, &now.as_micros()]).await
}

async fn blob_refs(conn: &Conn, w: &Writes) -> Result<Option<Stamp>, Error> {
    let entities: Vec<Uuid> = w.blobs.iter().map(|b| b.0.uuid()).collect();
    let digests: Vec<&[u8]> = w.blobs.iter().map(|b| &b.1.0[..]).collect();
    send(conn, INSERT_BLOB_REFS, &[&entities, &digests]).await
}
