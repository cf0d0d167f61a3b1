//! Rows to values and back.

use super::error::Trouble;
use rusqlite::{Connection, OptionalExtension, Row, types::ToSql};
use std::sync::LazyLock;
use tenure_kernel::{
    codec::{Reader, Writer},
    error::StoreError,
    head::Head,
    ids::{CommitId, EntityId, MailId, MessageId},
    mail::Mail,
    outbox::{Message, Posted, Target},
    sessions::{Hold, Session},
    stream::{Body, Hash, Record},
    table::{Class, Tables},
    time::Timestamp,
    timers::Timers,
};

/// Columns of a head, in the order [`head`] reads them.
pub(super) const HEAD: &str = "row, tail, id, kind, tenant, queue, priority, status, version, epoch, holder, chain, \
    created_at, changed_at, mail_count, mail_read, due, must_end_by, check_at, faults, ready_at, attention, sealed, \
    timers, state";

/// A head and where its row and its newest record are.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    pub head: Head,
    pub row: i64,
    pub tail: i64,
}

pub(super) fn time(v: i64) -> Timestamp {
    Timestamp::from_micros(v)
}

pub(super) fn micros(v: Option<Timestamp>) -> Option<i64> {
    v.map(Timestamp::as_micros)
}

pub(super) fn count(v: u64) -> i64 {
    i64::try_from(v).unwrap_or(i64::MAX)
}

fn unsigned(v: i64) -> u64 {
    u64::try_from(v).unwrap_or(0)
}

pub(super) fn class_number(class: Class) -> i64 {
    match class {
        Class::Open => 0,
        Class::Resting => 1,
        Class::Final => 2,
    }
}

pub(super) fn entity(row: &Row<'_>, i: usize) -> rusqlite::Result<EntityId> {
    row.get::<_, [u8; 16]>(i).map(EntityId::from_bytes)
}

pub(super) fn hash(row: &Row<'_>, i: usize) -> rusqlite::Result<Hash> {
    row.get::<_, [u8; 32]>(i).map(Hash)
}

fn damaged(what: String) -> rusqlite::Error {
    let source = Box::new(StoreError::Corrupt(what));
    rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Blob, source)
}

/// Reads [`HEAD`] columns.
pub(super) fn head(row: &Row<'_>, tables: &Tables) -> rusqlite::Result<Placed> {
    let id = entity(row, 2)?;
    let (kind, status): (String, String) = (row.get(3)?, row.get(7)?);
    let table = tables
        .get(&kind)
        .ok_or_else(|| damaged(format!("{id} is of the unknown kind {kind:?}")))?;
    let status = table
        .status(&status)
        .ok_or_else(|| damaged(format!("{id}: a {kind} has no status {status:?}")))?;
    let timers: Vec<u8> = row.get(23)?;
    let timers =
        Timers::from_bytes(&timers).map_err(|e| damaged(format!("timers of {id}: {e}")))?;
    let opt = |i: usize| row.get::<_, Option<i64>>(i).map(|v| v.map(time));
    let head = Head {
        id,
        status,
        tenant: row.get(4)?,
        queue: row.get(5)?,
        priority: row.get(6)?,
        version: unsigned(row.get(8)?),
        epoch: unsigned(row.get(9)?),
        holder: row.get::<_, Option<[u8; 16]>>(10)?.map(EntityId::from_bytes),
        chain: hash(row, 11)?,
        created_at: time(row.get(12)?),
        changed_at: time(row.get(13)?),
        mail_count: unsigned(row.get(14)?),
        mail_read: unsigned(row.get(15)?),
        due: opt(16)?,
        must_end_by: opt(17)?,
        check_at: opt(18)?,
        faults: row.get(19)?,
        ready_at: opt(20)?,
        attention: row.get(21)?,
        sealed: unsigned(row.get(22)?),
        timers,
        state: row.get(24)?,
    };
    Ok(Placed { head, row: row.get(0)?, tail: row.get(1)? })
}

/// One head by id.
pub(super) fn load_head(
    conn: &Connection,
    tables: &Tables,
    id: EntityId,
) -> Result<Option<Placed>, Trouble> {
    static SQL: LazyLock<String> =
        LazyLock::new(|| format!("SELECT {HEAD} FROM heads WHERE id = ?1"));
    let mut q = conn.prepare_cached(&SQL)?;
    Ok(q.query_row([id.as_bytes()], |row| head(row, tables)).optional()?)
}

/// Columns of a record, in the order [`record`] reads them.
pub(super) const RECORD: &str = "prev, entity, first, count, commit_id, at, epoch, hash, bytes";

/// Reads [`RECORD`] columns starting at `i`, and the record's predecessor.
pub(super) fn record(row: &Row<'_>, i: usize) -> rusqlite::Result<(i64, Record)> {
    let record = Record {
        entity: entity(row, i + 1)?,
        first: unsigned(row.get(i + 2)?),
        count: row.get(i + 3)?,
        commit: CommitId(row.get(i + 4)?),
        at: time(row.get(i + 5)?),
        epoch: unsigned(row.get(i + 6)?),
        hash: hash(row, i + 7)?,
        bytes: row.get(i + 8)?,
    };
    Ok((row.get(i)?, record))
}

/// One record by its row.
pub(super) fn load_record(conn: &Connection, seq: i64) -> Result<Option<(i64, Record)>, Trouble> {
    static SQL: LazyLock<String> =
        LazyLock::new(|| format!("SELECT {RECORD} FROM records WHERE seq = ?1"));
    let mut q = conn.prepare_cached(&SQL)?;
    Ok(q.query_row([seq], |row| record(row, 0)).optional()?)
}

/// Walks a stream backwards from its tail until `until` says stop, newest first. The rows' numbers
/// come with the records.
pub(super) fn walk_back(
    conn: &Connection,
    tail: i64,
    mut until: impl FnMut(&Record) -> bool,
) -> Result<Vec<(i64, Record)>, Trouble> {
    let mut found = Vec::new();
    let mut at = tail;
    while at > 0 {
        let Some((prev, record)) = load_record(conn, at)? else { break };
        let stop = until(&record);
        found.push((at, record));
        if stop {
            break;
        }
        at = prev;
    }
    Ok(found)
}

/// Where a record lies and what it spans, without its bytes.
pub(super) struct Span {
    pub seq: i64,
    pub last: i64,
    pub at: Timestamp,
}

/// The spans of a stream from its tail back to where it begins or was cut, newest first.
pub(super) fn spans(conn: &Connection, tail: i64) -> Result<Vec<Span>, Trouble> {
    let mut q = conn.prepare_cached("SELECT prev, first, count, at FROM records WHERE seq = ?1")?;
    let mut found = Vec::new();
    let mut seq = tail;
    while seq > 0 {
        let read = |r: &Row<'_>| {
            let last = r.get::<_, i64>(1)? + r.get::<_, i64>(2)? - 1;
            Ok((r.get(0)?, Span { seq, last, at: time(r.get(3)?) }))
        };
        let Some((prev, span)) = q.query_row([seq], read).optional()? else { break };
        found.push(span);
        seq = prev;
    }
    Ok(found)
}

pub(super) fn body_bytes(body: &Body) -> Vec<u8> {
    let mut w = Writer(Vec::with_capacity(body.inline().map_or(40, |b| b.len() + 6)));
    body.write(&mut w);
    w.0
}

pub(super) fn body(bytes: &[u8]) -> rusqlite::Result<Body> {
    Body::read(&mut Reader::new(bytes)).map_err(|e| damaged(e.to_string()))
}

/// Reads `seq, id, kind, body, at`.
pub(super) fn mail(row: &Row<'_>) -> rusqlite::Result<Mail> {
    let bytes: Vec<u8> = row.get(3)?;
    Ok(Mail {
        seq: unsigned(row.get(0)?),
        id: MailId(row.get(1)?),
        kind: row.get(2)?,
        body: body(&bytes)?,
        at: time(row.get(4)?),
    })
}

/// Unread mail, or any stretch of it.
pub(super) fn load_mail(
    conn: &Connection,
    entity: EntityId,
    after: u64,
    limit: usize,
) -> Result<Vec<Mail>, Trouble> {
    let mut q = conn.prepare_cached(
        "SELECT seq, id, kind, body, at FROM mail WHERE entity = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3",
    )?;
    let rows = q.query_map((entity.as_bytes(), count(after), limit as i64), mail)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// The three columns that say where a message goes. A wake-up has a number of its own: it waits for no wire, and the
/// indexes tell the two sides apart by the number.
pub(super) fn target_columns(target: &Target) -> (i64, Option<[u8; 16]>, Option<&str>) {
    match target {
        Target::Mail(id) => (0, Some(*id.as_bytes()), None),
        Target::Create { id, kind } => (1, Some(*id.as_bytes()), Some(kind)),
        Target::Wire(subject) => (if target.leaves() { 2 } else { 3 }, None, Some(subject)),
    }
}

/// Reads `source, version, ordinal, tenant, target, entity, word, kind, body, at`.
pub(super) fn posted(row: &Row<'_>) -> rusqlite::Result<Posted> {
    let target = match (
        row.get::<_, i64>(4)?,
        row.get::<_, Option<[u8; 16]>>(5)?,
        row.get::<_, Option<String>>(6)?,
    ) {
        (0, Some(id), _) => Target::Mail(EntityId::from_bytes(id)),
        (1, Some(id), Some(kind)) => {
            Target::Create { id: EntityId::from_bytes(id), kind: kind.into() }
        }
        (2 | 3, _, Some(subject)) => Target::Wire(subject),
        other => return Err(damaged(format!("outbox target {other:?}"))),
    };
    let bytes: Vec<u8> = row.get(8)?;
    let kind: String = row.get(7)?;
    Ok(Posted {
        id: MessageId {
            source: entity(row, 0)?,
            version: unsigned(row.get(1)?),
            ordinal: row.get(2)?,
        },
        tenant: row.get(3)?,
        message: Message { to: target, kind: kind.into(), body: body(&bytes)? },
        at: time(row.get(9)?),
    })
}

pub(super) fn holds_bytes(holds: &[Hold]) -> Vec<u8> {
    let mut w = Writer(Vec::with_capacity(holds.len() * 24 + 4));
    w.uint(holds.len() as u64);
    for h in holds {
        w.id(h.entity);
        w.uint(h.epoch);
        w.uint(h.mark);
    }
    w.0
}

fn holds(bytes: &[u8]) -> rusqlite::Result<Vec<Hold>> {
    let mut r = Reader::new(bytes);
    let mut read = || -> Result<Vec<Hold>, tenure_kernel::codec::Damaged> {
        let n = r.uint()?;
        (0..n).map(|_| Ok(Hold { entity: r.id()?, epoch: r.uint()?, mark: r.uint()? })).collect()
    };
    read().map_err(|e| damaged(format!("holds of a session: {e}")))
}

/// Columns of a session, in the order [`session`] reads them.
pub(super) const SESSION: &str = "id, name, role, lease_us, renewed_at, expires_at, holds, ended";

/// Reads [`SESSION`] columns.
pub(super) fn session(row: &Row<'_>) -> rusqlite::Result<Session> {
    let bytes: Vec<u8> = row.get(6)?;
    Ok(Session {
        id: entity(row, 0)?,
        name: row.get(1)?,
        role: row.get(2)?,
        lease: std::time::Duration::from_micros(unsigned(row.get(3)?)),
        renewed_at: time(row.get(4)?),
        expires_at: time(row.get(5)?),
        holds: holds(&bytes)?,
        ended: row.get(7)?,
    })
}

/// Runs a cached statement.
pub(super) fn run(conn: &Connection, sql: &str, params: &[&dyn ToSql]) -> Result<usize, Trouble> {
    Ok(conn.prepare_cached(sql)?.execute(params)?)
}
