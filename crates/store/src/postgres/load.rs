//! The first round trip of a batch: lock the heads, read what the planner needs. Everything travels
//! together: the driver sends all statements before it waits for the first answer, and Postgres runs
//! them in order, each on a snapshot of its own, so the look-ups see what was committed before the lock.
//!
//! Locks never wait (SKIP LOCKED, in id order), so batches of several servers can not deadlock on heads.
//! A head that did not come back is absent or locked by somebody else. For an entity that is only
//! *born* in this batch, absent is assumed: if it is wrong, the insert finds the row, the batch is run
//! again and `careful` then asks. For all others one more look tells; it is rare.

use super::{
    error::Fault,
    pool::Conn,
    rows::{self, get, head_columns, id, session_columns},
};
use futures_util::future::{join, join3, join4};
use std::collections::BTreeSet;
use tenure_kernel::{
    batch::{Facts, Needs, Peek},
    commit::{Commit, Expect},
    ids::{EntityId, MailId},
    judge::Judge,
    outbox::Handover,
    store::Op,
};
use tokio_postgres::{Error, Row, types::ToSql};
use uuid::Uuid;

// At least one row, for the time; without a head in it if none could be locked.
const LOCK: &str = concat!(
    "SELECT (SELECT moment()), h.* FROM (SELECT) AS one LEFT JOIN (SELECT ",
    head_columns!(),
    " FROM heads h WHERE h.id = ANY($1::uuid[]) ORDER BY h.id FOR NO KEY UPDATE SKIP LOCKED) h ON true"
);
const EXISTING: &str = "SELECT id FROM heads WHERE id = ANY($1::uuid[])";
const PEEKS: &str = "SELECT id, epoch, holder, mail_read < mail_count FROM heads
    WHERE id = ANY($1::uuid[])";
const MAIL: &str = "SELECT m.entity, m.id
    FROM unnest($1::uuid[], $2::text[]) AS n(entity, id)
    JOIN mail m ON m.entity = n.entity AND m.id = n.id";
const EVIDENCE: &str = "SELECT e.entity, e.key, e.epoch, e.call, e.digest
    FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::bigint[], $5::bytea[])
        AS n(entity, key, epoch, call, digest)
    JOIN evidence e ON e.entity = n.entity AND e.key = n.key AND e.epoch = n.epoch
        AND e.call = n.call AND e.digest = n.digest";
const EVIDENCE_COUNTS: &str =
    "SELECT entity, count(*) FROM evidence WHERE entity = ANY($1::uuid[]) GROUP BY entity";
const KEYS: &str = "SELECT key, entity, digest FROM keys WHERE key = ANY($1::text[])";
const OUTBOX: &str = "SELECT o.source, o.version, o.ordinal
    FROM unnest($1::uuid[], $2::bigint[], $3::integer[]) AS n(source, version, ordinal)
    JOIN outbox o ON o.source = n.source AND o.version = n.version AND o.ordinal = n.ordinal";
const WAITING: &str =
    "SELECT DISTINCT source FROM outbox WHERE source = ANY($1::uuid[]) AND NOT wire";
const SESSIONS: &str = concat!(
    "SELECT ",
    session_columns!(),
    ", p.judge_after, p.judges_until FROM sessions s, pulse p WHERE s.id = ANY($1::uuid[])"
);

/// Opens a transaction, locks, and loads.
pub(super) async fn facts(
    conn: &Conn,
    judge: &Judge,
    ops: &[Op],
    needs: &Needs,
    careful: bool,
) -> Result<Facts, Fault> {
    let locks: Vec<Uuid> = needs.heads.iter().map(|e| e.uuid()).collect();
    let lock = conn.prepare(LOCK).await?;
    let locking = [&locks as &(dyn ToSql + Sync)];
    let opening = join(conn.client.batch_execute("BEGIN"), conn.client.query(&lock, &locking));
    let lookups = join4(
        join(peeks(conn, needs), mail(conn, needs)),
        join3(evidence(conn, needs), evidence_counts(conn, needs), keys(conn, needs)),
        join(outbox(conn, needs), waiting(conn, needs)),
        sessions(conn, needs),
    );
    let ((begun, heads), (pm, ek, outbox, sessions)) = join(opening, lookups).await;
    // In the order they were sent: the first error is the cause of those behind it.
    begun?;
    let heads = heads?;
    let mut facts = Facts::default();
    let mut strange = BTreeSet::new();
    for row in &heads {
        facts.now = rows::time(row, 0)?;
        if get::<Option<Uuid>>(row, 1)?.is_none() {
            break;
        }
        match rows::head(judge, row, 1)? {
            Some(head) => drop(facts.heads.insert(head.id, head)),
            None => drop(strange.insert(id(row, 1)?)),
        }
    }
    fill(&mut facts, pm.0?, pm.1?, ek.0?, ek.2?, outbox.0?, sessions?)?;
    for row in &ek.1? {
        let count = usize::try_from(rows::count(row, 1)?).unwrap_or(usize::MAX);
        facts.evidence_counts.insert(id(row, 0)?, count);
    }
    for row in &outbox.1? {
        facts.waiting.insert(id(row, 0)?);
    }
    let missing = missing(ops, needs, &facts, careful);
    if !missing.is_empty() {
        let existing = conn.prepare(EXISTING).await?;
        for row in &conn.client.query(&existing, &[&missing]).await? {
            facts.busy.insert(id(row, 0)?);
        }
    }
    // Not ours to touch; somebody with a newer program will.
    facts.busy.extend(strange);
    Ok(facts)
}

fn fill(
    facts: &mut Facts,
    peeks: Vec<Row>,
    mail: Vec<Row>,
    evidence: Vec<Row>,
    keys: Vec<Row>,
    outbox: Vec<Row>,
    sessions: Vec<Row>,
) -> Result<(), Fault> {
    for row in &peeks {
        let holder = get::<Option<Uuid>>(row, 2)?.map(EntityId::from_uuid);
        let peek = Peek { epoch: rows::count(row, 1)?, holder, has_mail: get(row, 3)? };
        facts.peeks.insert(id(row, 0)?, peek);
    }
    for row in &mail {
        facts.mail.insert((id(row, 0)?, MailId(get(row, 1)?)));
    }
    for row in &evidence {
        let call = u32::try_from(get::<i64>(row, 3)?).map_err(rows::corrupt)?;
        let key = (id(row, 0)?, get(row, 1)?, rows::count(row, 2)?, call, rows::hash(row, 4)?);
        facts.evidence.insert(key);
    }
    for row in &keys {
        facts.keys.insert(get(row, 0)?, (id(row, 1)?, rows::hash(row, 2)?));
    }
    for row in &outbox {
        facts.outbox.insert(rows::message_id(row)?);
    }
    for row in &sessions {
        let session = rows::session(row)?;
        facts.sessions.insert(session.id, session);
        let moment =
            |name| Ok::<_, Error>(tenure_kernel::time::Timestamp::from_micros(row.try_get(name)?));
        facts.judging = Some((moment("judge_after")?, moment("judges_until")?));
    }
    Ok(())
}

/// Ids that did not come back and of which absence may not be assumed.
fn missing(ops: &[Op], needs: &Needs, facts: &Facts, careful: bool) -> Vec<Uuid> {
    if facts.heads.len() == needs.heads.len() {
        return Vec::new();
    }
    let absent = needs.heads.iter().filter(|e| !facts.heads.contains_key(e));
    let births: BTreeSet<EntityId> = if careful {
        BTreeSet::new()
    } else {
        let named_otherwise: BTreeSet<EntityId> = ops.iter().filter_map(not_born).collect();
        let born = ops.iter().filter_map(born).filter(|e| !named_otherwise.contains(e));
        born.collect()
    };
    absent.filter(|e| !births.contains(e)).map(|e| e.uuid()).collect()
}

fn is_birth(commit: &Commit) -> bool {
    matches!(commit.expect, Expect::Absent(_))
}

/// The entity that an operation creates.
fn born(op: &Op) -> Option<EntityId> {
    match op {
        Op::Commit(c) if is_birth(c) => Some(c.entity),
        Op::Deliver(d) => match &d.with {
            Handover::Create(c) if is_birth(c) => Some(c.entity),
            _ => None,
        },
        _ => None,
    }
}

/// The entities that an operation takes for existing. (A lane counts too, but is never born beside.)
fn not_born(op: &Op) -> Option<EntityId> {
    match op {
        Op::Commit(c) => (!is_birth(c)).then_some(c.entity),
        Op::Claim { entity, .. } => Some(*entity),
        Op::Mail(m) => Some(m.to),
        Op::Evidence(e) => Some(e.entity),
        Op::Touch(t) => Some(t.entity),
        Op::Renew(r) => Some(r.session),
        Op::Deliver(d) => match &d.with {
            Handover::Mail { to, .. } => Some(*to),
            Handover::Create(c) => (!is_birth(c)).then_some(c.entity),
            Handover::Nothing => None,
        },
    }
}

async fn peeks(conn: &Conn, needs: &Needs) -> Result<Vec<Row>, Error> {
    if needs.peeks.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<Uuid> = needs.peeks.iter().map(|e| e.uuid()).collect();
    let statement = conn.prepare(PEEKS).await?;
    conn.client.query(&statement, &[&ids]).await
}

/// Whether the database can hold a text at all. One with a NUL is in no row; the judge refuses it by its name.
fn can_be_stored(text: &str) -> bool {
    !text.contains('\0')
}

async fn mail(conn: &Conn, needs: &Needs) -> Result<Vec<Row>, Error> {
    if needs.mail.is_empty() {
        return Ok(Vec::new());
    }
    let (to, ids): (Vec<Uuid>, Vec<&str>) = needs
        .mail
        .iter()
        .map(|(e, id)| (e.uuid(), id.0.as_str()))
        .filter(|m| can_be_stored(m.1))
        .unzip();
    let statement = conn.prepare(MAIL).await?;
    conn.client.query(&statement, &[&to, &ids]).await
}

async fn evidence(conn: &Conn, needs: &Needs) -> Result<Vec<Row>, Error> {
    if needs.evidence.is_empty() {
        return Ok(Vec::new());
    }
    let e: Vec<_> = needs.evidence.iter().filter(|k| can_be_stored(&k.1)).collect();
    let entities: Vec<Uuid> = e.iter().map(|k| k.0.uuid()).collect();
    let keys: Vec<&str> = e.iter().map(|k| k.1.as_str()).collect();
    let epochs: Vec<i64> = e.iter().map(|k| rows::big(k.2)).collect();
    let calls: Vec<i64> = e.iter().map(|k| i64::from(k.3)).collect();
    let digests: Vec<&[u8]> = e.iter().map(|k| &k.4.0[..]).collect();
    let statement = conn.prepare(EVIDENCE).await?;
    conn.client.query(&statement, &[&entities, &keys, &epochs, &calls, &digests]).await
}

async fn evidence_counts(conn: &Conn, needs: &Needs) -> Result<Vec<Row>, Error> {
    if needs.evidence.is_empty() {
        return Ok(Vec::new());
    }
    let entities: Vec<Uuid> = needs.evidence.iter().map(|k| k.0.uuid()).collect();
    let statement = conn.prepare(EVIDENCE_COUNTS).await?;
    conn.client.query(&statement, &[&entities]).await
}

async fn keys(conn: &Conn, needs: &Needs) -> Result<Vec<Row>, Error> {
    if needs.keys.is_empty() {
        return Ok(Vec::new());
    }
    let keys: Vec<&str> =
        needs.keys.iter().map(String::as_str).filter(|k| can_be_stored(k)).collect();
    let statement = conn.prepare(KEYS).await?;
    conn.client.query(&statement, &[&keys]).await
}

async fn outbox(conn: &Conn, needs: &Needs) -> Result<Vec<Row>, Error> {
    if needs.outbox.is_empty() {
        return Ok(Vec::new());
    }
    let sources: Vec<Uuid> = needs.outbox.iter().map(|m| m.source.uuid()).collect();
    let versions: Vec<i64> = needs.outbox.iter().map(|m| rows::big(m.version)).collect();
    let ordinals: Vec<i32> = needs.outbox.iter().map(|m| rows::ordinal(m.ordinal)).collect();
    let statement = conn.prepare(OUTBOX).await?;
    conn.client.query(&statement, &[&sources, &versions, &ordinals]).await
}

async fn waiting(conn: &Conn, needs: &Needs) -> Result<Vec<Row>, Error> {
    if needs.sources.is_empty() {
        return Ok(Vec::new());
    }
    let sources: Vec<Uuid> = needs.sources.iter().map(|e| e.uuid()).collect();
    let statement = conn.prepare(WAITING).await?;
    conn.client.query(&statement, &[&sources]).await
}

async fn sessions(conn: &Conn, needs: &Needs) -> Result<Vec<Row>, Error> {
    if needs.sessions.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<Uuid> = needs.sessions.iter().map(|e| e.uuid()).collect();
    let statement = conn.prepare(SESSIONS).await?;
    conn.client.query(&statement, &[&ids]).await
}
