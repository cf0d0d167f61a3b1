//! How the store is. Every count stops at a limit.

use super::{error::Trouble, rows};
use rusqlite::{Connection, OptionalExtension};
use tenure_kernel::{
    health::{COUNTED_MAX, Health, OUTBOX_COUNTED_MAX, OpenCount, OutboxCount, ReadyCount},
    table::Class,
    time::Timestamp,
};

/// Every open head is due (law 4); what rests and is due is counted past.
pub(super) const OPEN: &str =
    "SELECT kind, status, class, changed_at FROM heads WHERE due IS NOT NULL LIMIT ?1";
const READY: &str = "SELECT queue, count(*), min(ready_at)
    FROM (SELECT queue, ready_at FROM ready LIMIT ?1) GROUP BY queue";
const SESSIONS: &str = "SELECT role, count(*) FROM sessions WHERE ended = 0 AND expires_at > ?1
    GROUP BY role ORDER BY role";

/// The oldest of each side, in the order they stand in.
pub(super) fn outbox_sql(wire: bool) -> String {
    let (index, which) =
        if wire { ("outbox_wire", "target = 2") } else { ("outbox_inside", "target <> 2") };
    format!(
        "SELECT lane, at FROM outbox INDEXED BY {index} WHERE {which} ORDER BY position LIMIT ?1"
    )
}

pub(super) fn health(conn: &Connection, now: Timestamp) -> Result<Health, Trouble> {
    // One moment for all of it.
    let tx = conn.unchecked_transaction()?;
    let pulse: Option<(i64, i64)> = tx
        .prepare_cached("SELECT last_at, judge_after FROM pulse")?
        .query_row([], |r| Ok((r.get(0)?, r.get(1)?)))
        .optional()?;
    let (open, open_is_all) = open(&tx)?;
    let mut outbox = outbox(&tx, false)?;
    outbox.extend(self::outbox(&tx, true)?);
    let number = |n: i64| u64::try_from(n).unwrap_or(0);
    let mut q = tx.prepare_cached(READY)?;
    let ready = q.query_map([COUNTED_MAX as i64], |r| {
        Ok(ReadyCount {
            queue: r.get(0)?,
            count: number(r.get(1)?),
            oldest: Timestamp::from_micros(r.get(2)?),
        })
    })?;
    let ready = ready.collect::<Result<_, _>>()?;
    let mut q = tx.prepare_cached(SESSIONS)?;
    let sessions = q.query_map([now.as_micros()], |r| Ok((r.get(0)?, number(r.get(1)?))))?;
    let sessions = sessions.collect::<Result<_, _>>()?;
    let journal: String = tx.pragma_query_value(None, "journal_mode", |r| r.get(0))?;
    Ok(Health {
        now,
        pulse_at: pulse.map(|p| Timestamp::from_micros(p.0)),
        judge_after: Timestamp::from_micros(pulse.map_or(0, |p| p.1)),
        open,
        open_is_all,
        ready,
        outbox,
        sessions,
        database: vec![
            ("version".into(), rusqlite::version().to_owned()),
            ("journal_mode".into(), journal),
        ],
        ..Health::default()
    })
}

fn open(conn: &Connection) -> Result<(Vec<OpenCount>, bool), Trouble> {
    let mut q = conn.prepare_cached(OPEN)?;
    let mut found = q.query([COUNTED_MAX as i64])?;
    let mut counts = crate::health::Open::default();
    while let Some(row) = found.next()? {
        let (kind, status): (String, String) = (row.get(0)?, row.get(1)?);
        let is_open = row.get::<_, i64>(2)? == rows::class_number(Class::Open);
        counts.add(&kind, &status, is_open, Timestamp::from_micros(row.get(3)?));
    }
    Ok(counts.done())
}

fn outbox(conn: &Connection, wire: bool) -> Result<Vec<OutboxCount>, Trouble> {
    let mut q = conn.prepare_cached(&outbox_sql(wire))?;
    let mut found = q.query([OUTBOX_COUNTED_MAX as i64])?;
    let mut counts = crate::health::Outbox::default();
    while let Some(row) = found.next()? {
        counts.add(row.get(0)?, wire, Timestamp::from_micros(row.get(1)?));
    }
    Ok(counts.done())
}
