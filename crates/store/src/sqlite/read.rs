//! Everything that only looks, and the two small writes that belong to no entity (pulse, tallies).

use super::{
    error::Trouble,
    rows::{self, HEAD, RECORD, count, micros, run, time},
    schema,
    writer::{SESSION_BY_ID, Writer},
};
use crate::listing::{self, NEAR, Part, Place};
use rusqlite::{Connection, OptionalExtension, params, params_from_iter, types::Value};
use std::time::Duration;
use tenure_kernel::{
    error::StoreError,
    evidence::{Evidence, NewEvidence},
    feed::{Cursor, FeedPage, Lost},
    head::Head,
    housekeeping::{Pulse, PulseRequest},
    ids::{EntityId, SessionId},
    limits,
    outbox::Posted,
    rules::{Tallies, Tally},
    sessions::Session,
    store::{HeadFilter, HeldBy, KeyRange},
    stream::{Hash, Record},
    table::Tables,
    time::Timestamp,
};

/// A page of the groups of a queue, by stepping from one to the next in the index.
pub(super) fn ready_groups(
    conn: &Connection,
    queue: &str,
    below: Option<i16>,
) -> Result<Vec<(i16, String)>, Trouble> {
    let mut next = conn.prepare_cached("SELECT priority, tenant FROM ready WHERE queue = ?1 AND priority = ?2 AND tenant > ?3 ORDER BY tenant LIMIT 1")?;
    let mut lower = conn.prepare_cached("SELECT priority, tenant FROM ready WHERE queue = ?1 AND priority < ?2 ORDER BY priority DESC, tenant LIMIT 1")?;
    let pair = |r: &rusqlite::Row<'_>| Ok((r.get::<_, i16>(0)?, r.get::<_, String>(1)?));
    let mut groups = Vec::new();
    // No priority is as high as what comes behind the highest.
    let top = below.map_or(i32::from(i16::MAX) + 1, i32::from);
    let mut group = lower.query_row(params![queue, top], pair).optional()?;
    while let Some((priority, tenant)) = group {
        group = next.query_row(params![queue, priority, tenant], pair).optional()?;
        groups.push((priority, tenant));
        if group.is_none() && groups.len() < limits::READY_GROUPS_MAX {
            group = lower.query_row(params![queue, priority], pair).optional()?;
        }
    }
    Ok(groups)
}

/// The queues, by stepping from one to the next in the same index.
pub(super) fn ready_queues(
    conn: &Connection,
    mut after: String,
    limit: usize,
) -> Result<Vec<String>, Trouble> {
    let mut next =
        conn.prepare_cached("SELECT queue FROM ready WHERE queue > ?1 ORDER BY queue LIMIT 1")?;
    let mut queues = Vec::new();
    while queues.len() < limit {
        let Some(queue) = next.query_row([&after], |r| r.get::<_, String>(0)).optional()? else {
            break;
        };
        queues.push(queue.clone());
        after = queue;
    }
    Ok(queues)
}

/// A listing: what comes first in its order, then part by part (see [`crate::listing`]).
pub(super) fn heads(
    conn: &Connection,
    tables: &Tables,
    f: &HeadFilter,
    limit: usize,
) -> Result<Vec<Head>, Trouble> {
    let parts = listing::parts(f, tables);
    if let Some(near) = listing::near(f, &parts) {
        let horizon = horizon(conn, f)?;
        let found = part_of(conn, tables, f, &near, horizon, limit)?;
        if found.len() == limit || horizon.is_none() {
            return Ok(found);
        }
    }
    let mut found = Vec::new();
    for part in &parts {
        found.extend(part_of(conn, tables, f, part, None, limit)?);
    }
    Ok(listing::merge(found, f.newest_first, limit))
}

/// The id behind the heads that are looked through first; `None` if there are no more than these.
fn horizon(conn: &Connection, f: &HeadFilter) -> Result<Option<[u8; 16]>, Trouble> {
    let mut wanted = Wanted::new(f);
    wanted.is("kind", f.kind.as_ref());
    wanted.is("tenant", f.tenant.as_ref());
    let (rest, order) = (wanted.sql, order(f));
    let sql =
        format!("SELECT id FROM heads WHERE {rest} ORDER BY id {order} LIMIT 1 OFFSET {NEAR}");
    let mut q = conn.prepare_cached(&sql)?;
    Ok(q.query_row(params_from_iter(wanted.values), |r| r.get(0)).optional()?)
}

/// How a part is asked for: the statement, its values, and whether it gives rows' numbers in place of heads.
pub(super) fn part_sql(
    tables: &Tables,
    f: &HeadFilter,
    part: &Part,
    horizon: Option<[u8; 16]>,
) -> (String, Vec<Value>, bool) {
    let mut wanted = Wanted::new(f);
    wanted.is("kind", part.kind.as_ref());
    wanted.is("tenant", f.tenant.as_ref());
    match part.statuses.as_slice() {
        [] => {}
        // As an equation: only then does the index over the final ones give the order.
        [one] => wanted.is("status", Some(one)),
        many => {
            let marks = vec!["?"; many.len()].join(",");
            wanted.and(&format!("status IN ({marks})"), many.iter().cloned().map(Value::Text));
        }
    }
    if let Some(HeldBy { session, due_by }) = f.held {
        let by = [Value::Integer(due_by.as_micros()), Value::Blob(session.as_bytes().to_vec())];
        wanted.and("due <= ? AND holder = ?", by);
    }
    if f.attention {
        wanted.and("attention IS NOT NULL", []);
    }
    if let Some(id) = horizon {
        let side = if f.newest_first { "id > ?" } else { "id < ?" };
        wanted.and(side, [Value::Blob(id.to_vec())]);
    }
    let from = match part.place {
        Place::Births => "heads",
        Place::Open | Place::Held => "heads INDEXED BY heads_due",
        Place::Ended => "heads INDEXED BY heads_ended_as",
        Place::Attention => "heads INDEXED BY heads_attention",
    };
    wanted.and(
        match part.place {
            Place::Births | Place::Attention => "true",
            Place::Open | Place::Held => "due IS NOT NULL",
            Place::Ended => "class = 2",
        },
        [],
    );
    let sorted = matches!(part.place, Place::Open | Place::Held);
    // Of those that have to be sorted only the rows' numbers are: a head is up to 16 KiB.
    let what = if sorted { "row" } else { HEAD };
    // The plus keeps the list of kinds out of the choice of an index: its order would have to be sorted.
    let (rest, order, known) = (wanted.sql, order(f), known_kinds(tables));
    let sql = format!(
        "SELECT {what} FROM {from} WHERE {rest} AND +kind IN ({known}) ORDER BY id {order}"
    );
    (sql, wanted.values, sorted)
}

fn part_of(
    conn: &Connection,
    tables: &Tables,
    f: &HeadFilter,
    part: &Part,
    horizon: Option<[u8; 16]>,
    limit: usize,
) -> Result<Vec<Head>, Trouble> {
    let (sql, values, sorted) = part_sql(tables, f, part, horizon);
    let mut rows = conn.prepare_cached(&sql)?;
    let mut rows = rows.query(params_from_iter(values))?;
    if !sorted {
        return readable(rows, tables, limit);
    }
    let mut one = conn.prepare_cached(&format!("SELECT {HEAD} FROM heads WHERE row = ?1"))?;
    let mut heads = Vec::new();
    while heads.len() < limit
        && let Some(row) = rows.next()?
    {
        heads.extend(readable(one.query([row.get::<_, i64>(0)?])?, tables, 1)?);
    }
    Ok(heads)
}

fn order(f: &HeadFilter) -> &'static str {
    if f.newest_first { "DESC" } else { "ASC" }
}

/// The conditions of a listing, spelled out: one that is switched off by a parameter would hide the
/// index from the planner.
struct Wanted {
    sql: String,
    values: Vec<Value>,
}

impl Wanted {
    fn new(f: &HeadFilter) -> Self {
        let mut wanted = Wanted { sql: "true".to_owned(), values: Vec::new() };
        for (side, id) in [("id > ?", f.after), ("id < ?", f.before)] {
            if let Some(id) = id {
                wanted.and(side, [Value::Blob(id.as_bytes().to_vec())]);
            }
        }
        wanted
    }

    fn and(&mut self, condition: &str, values: impl IntoIterator<Item = Value>) {
        self.sql = format!("{} AND {condition}", self.sql);
        self.values.extend(values);
    }

    fn is(&mut self, column: &str, value: Option<&String>) {
        if let Some(value) = value {
            self.and(&format!("{column} = ?"), [Value::Text(value.clone())]);
        }
    }
}

/// The first heads that this program can read. One that it can not read must not keep it from the
/// others: it is reported, and neither given nor counted.
fn readable(
    mut found: rusqlite::Rows<'_>,
    tables: &Tables,
    limit: usize,
) -> Result<Vec<Head>, Trouble> {
    let mut heads = Vec::new();
    while heads.len() < limit {
        let Some(row) = found.next()? else { break };
        match rows::head(row, tables) {
            Ok(placed) => heads.push(placed.head),
            Err(e) => tracing::error!(error = %e, "a head that can not be read is passed over"),
        }
    }
    Ok(heads)
}

/// Kinds that this program does not know are not its business, and are not reported either.
fn known_kinds(tables: &Tables) -> String {
    let all: Vec<_> = tables.iter().map(|t| format!("'{}'", t.kind.replace('\'', "''"))).collect();
    all.join(",")
}

fn lane_list(lanes: &[u16]) -> String {
    let all: Vec<_> = lanes.iter().map(u16::to_string).collect();
    all.join(",")
}

pub(super) fn due(
    conn: &Connection,
    tables: &Tables,
    lanes: &[u16],
    by: Timestamp,
    limit: usize,
) -> Result<Vec<Head>, Trouble> {
    in_order_of_due(conn, tables, lanes, by, limit, "ASC")
}

pub(super) fn keys(
    conn: &Connection,
    range: &KeyRange,
    limit: usize,
) -> Result<Vec<(String, EntityId)>, Trouble> {
    let mut q = conn.prepare_cached(match range.highest_first {
        true => {
            "SELECT key, entity FROM keys WHERE key >= ?1 AND key < ?2 ORDER BY key DESC LIMIT ?3"
        }
        false => "SELECT key, entity FROM keys WHERE key >= ?1 AND key < ?2 ORDER BY key LIMIT ?3",
    })?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let row = |r: &rusqlite::Row<'_>| {
        Ok((r.get::<_, String>(0)?, EntityId::from_bytes(r.get::<_, [u8; 16]>(1)?)))
    };
    let found = q.query_map(rusqlite::params![range.from, range.to, limit], row)?;
    Ok(found.collect::<Result<Vec<_>, _>>()?)
}

pub(super) fn latest_due(
    conn: &Connection,
    tables: &Tables,
    lanes: &[u16],
    by: Timestamp,
    limit: usize,
) -> Result<Vec<Head>, Trouble> {
    in_order_of_due(conn, tables, lanes, by, limit, "DESC")
}

pub(super) fn next_due(
    conn: &Connection,
    tables: &Tables,
    lanes: &[u16],
) -> Result<Option<Timestamp>, Trouble> {
    // The whole head: one that `due` passes over must not keep the loop awake.
    let first = due(conn, tables, lanes, Timestamp::MAX, 1)?;
    Ok(first.into_iter().next().and_then(|h| h.due))
}

fn in_order_of_due(
    conn: &Connection,
    tables: &Tables,
    lanes: &[u16],
    by: Timestamp,
    limit: usize,
    order: &str,
) -> Result<Vec<Head>, Trouble> {
    // A list without members is no condition that the named index could serve.
    if lanes.is_empty() || tables.iter().next().is_none() {
        return Ok(Vec::new());
    }
    let mut q = conn.prepare_cached(&due_sql(lanes, tables, order))?;
    readable(q.query([by.as_micros()])?, tables, limit)
}

/// The index is named, and the plus keeps the kinds out of the choice: the planner would else walk the index over
/// kinds, which has all of history in it, and sort what it finds.
pub(super) fn due_sql(lanes: &[u16], tables: &Tables, order: &str) -> String {
    let lanes = if lanes.len() == usize::from(limits::LANES) {
        String::new()
    } else {
        format!("AND lane IN ({})", lane_list(lanes))
    };
    let kinds = known_kinds(tables);
    format!(
        "SELECT {HEAD} FROM heads INDEXED BY heads_due WHERE due <= ?1 {lanes} AND +kind IN ({kinds}) ORDER BY due {order}"
    )
}

/// A stretch of a stream, oldest first. The list is linked backwards, so the walk goes from the tail
/// to `from`; the caller that reads a long stream in pieces pays for the walk each time.
pub(super) fn stream(
    conn: &Connection,
    tables: &Tables,
    entity: EntityId,
    from: u64,
    limit: usize,
) -> Result<Vec<Record>, Trouble> {
    // One snapshot for head and records: a record may be removed by retention between two reads.
    let tx = conn.unchecked_transaction()?;
    let Some(placed) = rows::load_head(&tx, tables, entity)? else { return Ok(Vec::new()) };
    let mut found = rows::walk_back(&tx, placed.tail, |r| r.first <= from)?;
    found.reverse();
    Ok(found.into_iter().map(|(_, r)| r).filter(|r| r.last() >= from).take(limit).collect())
}

pub(super) fn outbox(
    conn: &Connection,
    lanes: &[u16],
    wire: bool,
    limit: usize,
) -> Result<Vec<Posted>, Trouble> {
    let mut q = conn.prepare_cached(&outbox_sql(lanes, wire))?;
    let found = q.query_map([limit as i64], rows::posted)?;
    Ok(found.collect::<Result<_, _>>()?)
}

/// Each half has an index of its own, named here because the planner takes the table's own order for
/// as good: then a wire that is down would be read through by every look for the others.
pub(super) fn outbox_sql(lanes: &[u16], wire: bool) -> String {
    let (index, which) =
        if wire { ("outbox_wire", "target = 2") } else { ("outbox_inside", "target <> 2") };
    format!(
        "SELECT source, version, ordinal, tenant, target, entity, word, kind, body, at
         FROM outbox INDEXED BY {index} WHERE {which} AND lane IN ({}) ORDER BY position LIMIT ?1",
        lane_list(lanes)
    )
}

pub(super) fn feed(conn: &Connection, after: Cursor, limit: usize) -> Result<FeedPage, Trouble> {
    static SQL: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| {
        format!("SELECT seq, {RECORD} FROM records WHERE seq > ?1 ORDER BY seq LIMIT ?2")
    });
    let tx = conn.unchecked_transaction()?;
    let number = |v: i64| u64::try_from(v).unwrap_or(0);
    let incarnation = number(schema::meta(&tx, "incarnation")?);
    let floor = schema::meta(&tx, "feed_floor")?;
    let newest: Option<i64> =
        tx.prepare_cached("SELECT max(seq) FROM records")?.query_row([], |r| r.get(0))?;
    let newest = newest.unwrap_or(0);
    let restart = Cursor { incarnation, transaction: 0, row: number(floor) };
    let from = match after.incarnation {
        0 => floor,
        i if i != incarnation => return Err(lost(Lost::OtherIncarnation { restart })),
        _ if count(after.row) < floor => return Err(lost(Lost::BelowFloor { restart })),
        // An older copy of the file was put back: what comes next has numbers that were seen before.
        _ if count(after.row) > newest.max(floor) => {
            return Err(lost(Lost::OtherIncarnation { restart }));
        }
        _ => count(after.row),
    };
    let mut q = tx.prepare_cached(&SQL)?;
    let at = |row: i64| Cursor { incarnation, transaction: 0, row: number(row) };
    let found =
        q.query_map((from, limit as i64), |r| Ok((at(r.get(0)?), rows::record(r, 1)?.1)))?;
    let items: Vec<(Cursor, Record)> = found.collect::<Result<_, _>>()?;
    let next = items.last().map_or(at(from), |(c, _)| *c);
    Ok(FeedPage { items, next })
}

fn lost(lost: Lost) -> Trouble {
    Trouble::Clean(StoreError::FeedLost(lost))
}

pub(super) fn session(conn: &Connection, id: SessionId) -> Result<Option<Session>, Trouble> {
    let mut q = conn.prepare_cached(SESSION_BY_ID)?;
    Ok(q.query_row([id.as_bytes()], rows::session).optional()?)
}

pub(super) fn live_sessions(conn: &Connection, now: Timestamp) -> Result<Vec<Session>, Trouble> {
    let sql = format!(
        "SELECT {} FROM sessions WHERE ended = 0 AND expires_at > ?1 ORDER BY id",
        rows::SESSION
    );
    let mut q = conn.prepare_cached(&sql)?;
    let found = q.query_map([now.as_micros()], rows::session)?;
    Ok(found.collect::<Result<_, _>>()?)
}

pub(super) fn evidence(conn: &Connection, entity: EntityId) -> Result<Vec<Evidence>, Trouble> {
    let mut q = conn.prepare_cached(
        "SELECT key, epoch, call, who, body, at FROM evidence WHERE entity = ?1 ORDER BY at, key, epoch, call",
    )?;
    let found = q.query_map([entity.as_bytes()], |r| {
        let bytes: Vec<u8> = r.get(4)?;
        let epoch: i64 = r.get(1)?;
        let said = NewEvidence {
            entity,
            key: r.get(0)?,
            epoch: u64::try_from(epoch).unwrap_or(0),
            call: r.get(2)?,
            who: r.get(3)?,
            body: rows::body(&bytes)?,
        };
        Ok(Evidence { said, at: time(r.get(5)?) })
    })?;
    Ok(found.collect::<Result<_, _>>()?)
}

pub(super) fn blob(conn: &Connection, digest: Hash) -> Result<Option<Vec<u8>>, Trouble> {
    let mut q = conn.prepare_cached("SELECT bytes FROM blobs WHERE digest = ?1")?;
    Ok(q.query_row([digest.0], |r| r.get(0)).optional()?)
}

pub(super) fn pulse(w: &mut Writer, request: &PulseRequest) -> Result<Pulse, Trouble> {
    let now = w.now();
    let last: Option<(i64, i64)> = w
        .conn
        .prepare_cached("SELECT last_at, judge_after FROM pulse")?
        .query_row([], |r| Ok((r.get(0)?, r.get(1)?)))
        .optional()?;
    let judge_after = time(last.map_or(0, |l| l.1));
    let pulse = Pulse::next(last.map(|l| time(l.0)), judge_after, now, request);
    let sql = "INSERT INTO pulse (one, last_at, judge_after, judges_until) VALUES (1, ?1, ?2, ?3)
        ON CONFLICT (one) DO UPDATE SET last_at = excluded.last_at, judge_after = excluded.judge_after,
        judges_until = excluded.judges_until";
    let until = (now + request.gap).as_micros();
    run(&w.conn, sql, &[&now.as_micros(), &pulse.judge_after.as_micros(), &until])?;
    for (rule, t) in &request.tallies {
        let sql = "INSERT INTO tallies (rule, fired, failed, lag_us, last_at) VALUES (?1, ?2, ?3, ?4, ?5)
            ON CONFLICT (rule) DO UPDATE SET fired = fired + excluded.fired, failed = failed + excluded.failed,
            lag_us = max(lag_us, excluded.lag_us), last_at = max(coalesce(last_at, 0), coalesce(excluded.last_at, 0))";
        let lag = count(u64::try_from(t.lag_max.as_micros()).unwrap_or(u64::MAX));
        run(&w.conn, sql, &[rule, &count(t.fired), &count(t.failed), &lag, &micros(t.last_at)])?;
    }
    Ok(pulse)
}

pub(super) fn tallies(conn: &Connection) -> Result<Tallies, Trouble> {
    let mut q = conn.prepare_cached("SELECT rule, fired, failed, lag_us, last_at FROM tallies")?;
    let number = |v: i64| u64::try_from(v).unwrap_or(0);
    let found = q.query_map([], |r| {
        let last_at: Option<i64> = r.get(4)?;
        let tally = Tally {
            fired: number(r.get(1)?),
            failed: number(r.get(2)?),
            lag_max: Duration::from_micros(number(r.get(3)?)),
            last_at: last_at.filter(|t| *t > 0).map(time),
        };
        Ok((r.get(0)?, tally))
    })?;
    Ok(found.collect::<Result<_, _>>()?)
}
