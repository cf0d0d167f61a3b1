//! Rows and the kernel's types. Columns are read by place: [`HEAD`] and [`RECORD`] fix the order.

use std::{borrow::Cow, time::Duration};
use tenure_kernel::{
    codec::{Reader, Writer},
    error::StoreError,
    evidence::{Evidence, NewEvidence},
    head::Head,
    ids::{CommitId, EntityId, MailId, MessageId},
    judge::Judge,
    mail::Mail,
    outbox::{Message, Posted, Target},
    sessions::{Hold, Session},
    stream::{Body, Hash, Record},
    table::Class,
    time::Timestamp,
    timers::Timers,
};
use tokio_postgres::{Row, types::FromSql};
use uuid::Uuid;

/// The columns of a head, of the table or subquery `h`, in the order that [`head`] reads them.
macro_rules! head_columns {
    () => {
        "h.id, h.kind, h.tenant, h.status, h.queue, h.priority, h.version, h.epoch, h.holder, h.chain, \
         h.created_at, h.changed_at, h.mail_count, h.mail_read, h.due, h.must_end_by, h.check_at, \
         h.faults, h.ready_at, h.attention, h.sealed, h.timers, h.state"
    };
}
/// The columns of a record, of the table or subquery `r`, in the order that [`record`] reads them.
macro_rules! record_columns {
    () => {
        "r.entity, r.first, r.count, r.commit_id, r.at, r.epoch, r.hash, r.bytes"
    };
}
pub(super) use {head_columns, record_columns};

/// A stored value that can not be right.
pub(super) fn corrupt(why: impl std::fmt::Display) -> StoreError {
    StoreError::Corrupt(why.to_string())
}

/// A column by its place.
pub(super) fn get<'a, T: FromSql<'a>>(row: &'a Row, place: usize) -> Result<T, StoreError> {
    row.try_get(place).map_err(corrupt)
}

/// A count or version. None is ever negative; one that is has not been written by us.
pub(super) fn count(row: &Row, place: usize) -> Result<u64, StoreError> {
    u64::try_from(get::<i64>(row, place)?).map_err(corrupt)
}

pub(super) fn time(row: &Row, place: usize) -> Result<Timestamp, StoreError> {
    get(row, place).map(Timestamp::from_micros)
}

fn time_opt(row: &Row, place: usize) -> Result<Option<Timestamp>, StoreError> {
    Ok(get::<Option<i64>>(row, place)?.map(Timestamp::from_micros))
}

pub(super) fn id(row: &Row, place: usize) -> Result<EntityId, StoreError> {
    get::<Uuid>(row, place).map(EntityId::from_uuid)
}

pub(super) fn hash(row: &Row, place: usize) -> Result<Hash, StoreError> {
    get::<&[u8]>(row, place)?.try_into().map(Hash).map_err(corrupt)
}

pub(super) fn body(row: &Row, place: usize) -> Result<Body, StoreError> {
    Body::read(&mut Reader::new(get(row, place)?)).map_err(corrupt)
}

/// The stored form of a body.
pub(super) fn body_bytes(body: &Body) -> Vec<u8> {
    let mut w = Writer::default();
    body.write(&mut w);
    w.0
}

/// As `bigint`. Versions and epochs count events; none comes near the sign.
pub(super) fn big(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// A length as `bigint`, for LIMIT.
pub(super) fn limit(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// A lane as `smallint`: there are sixteen.
pub(super) fn lane(n: u16) -> i16 {
    i16::try_from(n).unwrap_or(i16::MAX)
}

/// A class as stored.
pub(super) fn class(class: Class) -> i16 {
    match class {
        Class::Open => 0,
        Class::Resting => 1,
        Class::Final => 2,
    }
}

/// Reads a head that starts at column `at`. `None` if this process has no machine of its kind or no
/// such status in it: an older program beside a newer one must leave such entities alone.
pub(super) fn head(judge: &Judge, row: &Row, at: usize) -> Result<Option<Head>, StoreError> {
    let (kind, status): (&str, &str) = (get(row, at + 1)?, get(row, at + 3)?);
    let Some(status) = judge.tables.get(kind).and_then(|t| t.status(status)) else {
        let id = id(row, at)?;
        tracing::error!(%id, kind, status, "a head of a kind or status that this program does not know");
        return Ok(None);
    };
    Ok(Some(Head {
        id: id(row, at)?,
        status,
        tenant: get(row, at + 2)?,
        queue: get(row, at + 4)?,
        priority: get(row, at + 5)?,
        version: count(row, at + 6)?,
        epoch: count(row, at + 7)?,
        holder: get::<Option<Uuid>>(row, at + 8)?.map(EntityId::from_uuid),
        chain: hash(row, at + 9)?,
        created_at: time(row, at + 10)?,
        changed_at: time(row, at + 11)?,
        mail_count: count(row, at + 12)?,
        mail_read: count(row, at + 13)?,
        due: time_opt(row, at + 14)?,
        must_end_by: time_opt(row, at + 15)?,
        check_at: time_opt(row, at + 16)?,
        faults: u16::try_from(get::<i32>(row, at + 17)?).map_err(corrupt)?,
        ready_at: time_opt(row, at + 18)?,
        attention: get(row, at + 19)?,
        sealed: count(row, at + 20)?,
        timers: Timers::from_bytes(get(row, at + 21)?).map_err(corrupt)?,
        state: get(row, at + 22)?,
    }))
}

/// Reads a record that starts at column `at`.
pub(super) fn record(row: &Row, at: usize) -> Result<Record, StoreError> {
    Ok(Record {
        entity: id(row, at)?,
        first: count(row, at + 1)?,
        count: u32::try_from(get::<i32>(row, at + 2)?).map_err(corrupt)?,
        commit: CommitId(get::<Uuid>(row, at + 3)?.into_bytes()),
        at: time(row, at + 4)?,
        epoch: count(row, at + 5)?,
        hash: hash(row, at + 6)?,
        bytes: get(row, at + 7)?,
    })
}

/// Reads `seq, id, kind, body, at` from column `at` on.
pub(super) fn mail(row: &Row, at: usize) -> Result<Mail, StoreError> {
    Ok(Mail {
        seq: count(row, at)?,
        id: MailId(get(row, at + 1)?),
        kind: get(row, at + 2)?,
        body: body(row, at + 3)?,
        at: time(row, at + 4)?,
    })
}

/// Reads `source, version, ordinal, tenant, target, target_id, target_name, kind, body, at`.
pub(super) fn posted(row: &Row) -> Result<Posted, StoreError> {
    let name: Option<String> = get(row, 6)?;
    let target_id = get::<Option<Uuid>>(row, 5)?.map(EntityId::from_uuid);
    let to = match (get::<i16>(row, 4)?, target_id, name) {
        (0, Some(id), _) => Target::Mail(id),
        (1, Some(id), Some(kind)) => Target::Create { id, kind: Cow::Owned(kind) },
        (2, _, Some(subject)) => Target::Wire(subject),
        (other, ..) => return Err(corrupt(format!("an outbox row with target {other}"))),
    };
    Ok(Posted {
        id: message_id(row)?,
        tenant: get(row, 3)?,
        message: Message { to, kind: Cow::Owned(get(row, 7)?), body: body(row, 8)? },
        at: time(row, 9)?,
    })
}

/// A target as `target, target_id, target_name`.
pub(super) fn target(to: &Target) -> (i16, Option<Uuid>, Option<&str>) {
    match to {
        Target::Mail(id) => (0, Some(id.uuid()), None),
        Target::Create { id, kind } => (1, Some(id.uuid()), Some(kind)),
        Target::Wire(subject) => (2, None, Some(subject)),
    }
}

/// Reads `source, version, ordinal`.
pub(super) fn message_id(row: &Row) -> Result<MessageId, StoreError> {
    let ordinal = u32::try_from(get::<i32>(row, 2)?).map_err(corrupt)?;
    Ok(MessageId { source: id(row, 0)?, version: count(row, 1)?, ordinal })
}

/// An ordinal as `integer`: a commit has at most a few thousand messages.
pub(super) fn ordinal(n: u32) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

/// Reads `entity, key, epoch, call, who, body, at`.
pub(super) fn evidence(row: &Row) -> Result<Evidence, StoreError> {
    let said = NewEvidence {
        entity: id(row, 0)?,
        key: get(row, 1)?,
        epoch: count(row, 2)?,
        call: u32::try_from(get::<i64>(row, 3)?).map_err(corrupt)?,
        who: get(row, 4)?,
        body: body(row, 5)?,
    };
    Ok(Evidence { said, at: time(row, 6)? })
}

/// The columns that [`session`] reads.
macro_rules! session_columns {
    () => {
        "s.id, s.name, s.role, s.lease_us, s.renewed_at, s.expires_at, s.holds, s.ended"
    };
}
pub(super) use session_columns;

pub(super) fn session(row: &Row) -> Result<Session, StoreError> {
    Ok(Session {
        id: id(row, 0)?,
        name: get(row, 1)?,
        role: get(row, 2)?,
        lease: Duration::from_micros(count(row, 3)?),
        renewed_at: time(row, 4)?,
        expires_at: time(row, 5)?,
        holds: read_holds(get(row, 6)?).map_err(corrupt)?,
        ended: get(row, 7)?,
    })
}

/// The stored form of what a session holds.
pub(super) fn write_holds(holds: &[Hold]) -> Vec<u8> {
    let mut w = Writer::default();
    w.uint(holds.len() as u64);
    for h in holds {
        w.id(h.entity);
        w.uint(h.epoch);
        w.uint(h.mark);
    }
    w.0
}

fn read_holds(bytes: &[u8]) -> Result<Vec<Hold>, tenure_kernel::codec::Damaged> {
    let mut r = Reader::new(bytes);
    let n = r.uint()?;
    (0..n).map(|_| Ok(Hold { entity: r.id()?, epoch: r.uint()?, mark: r.uint()? })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_round_trip() {
        let holds =
            [1, 2].map(|n| Hold { entity: EntityId::fixed(9, n), epoch: u64::from(n), mark: 300 });
        assert_eq!(read_holds(&write_holds(&holds)).as_deref(), Ok(&holds[..]));
    }
}
