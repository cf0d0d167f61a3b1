//! Reads: each is one statement on one snapshot, on a connection that can not write.

use super::{
    Inner,
    rows::{self, get, head_columns, record_columns, session_columns},
};
use crate::listing::{self, Part, Place};
use std::time::Duration;
use tenure_kernel::{
    error::StoreError,
    evidence::Evidence,
    feed::{Cursor, FeedPage, Lost},
    head::Head,
    ids::{EntityId, MessageId, SessionId},
    limits,
    mail::Mail,
    outbox::Posted,
    rules::{Tallies, Tally},
    sessions::Session,
    store::{HeadFilter, KeyRange},
    stream::{Hash, Record},
    time::Timestamp,
};
use tokio::time::Instant;
use tokio_postgres::{Row, types::ToSql};
use uuid::Uuid;

const NOW: &str = "SELECT moment()";
const HEAD: &str = concat!("SELECT ", head_columns!(), " FROM heads h WHERE h.id = $1");
/// A listing in one direction; see [`crate::listing`]. A statement for each index, so that the planner has no
/// choice to get wrong. Parameters: kind, statuses, tenant, after, before, known kinds, limit; and of what is held, by
/// whom, due by when, only what is marked, all lanes.
macro_rules! listing {
    ($order:literal) => {
        Listing {
            births: found_in!($order, "h.status = ANY($2)", "true"),
            attention: found_in!($order, "h.status = ANY($2)", "h.attention IS NOT NULL"),
            // An equation, not a set: only then does the index give the order.
            ended: found_in!($order, "h.ended_as = ($2)[1]", "h.ended_as IS NOT NULL"),
            // Lane by lane, because that is how what is due is kept; the offset keeps the planner from another way.
            held: concat!(
                "WITH o AS MATERIALIZED (SELECT h.id FROM unnest($11::smallint[]) AS l(lane), LATERAL (
                    SELECT * FROM heads WHERE heads.lane = l.lane AND heads.due IS NOT NULL
                        AND heads.due <= $9::bigint ORDER BY heads.due OFFSET 0) h
                WHERE h.holder = $8::uuid AND (h.attention IS NOT NULL OR NOT $10::boolean) AND ",
                wanted!("h.status = ANY($2)"),
                ")
                SELECT ",
                head_columns!(),
                " FROM heads h WHERE h.id IN (SELECT o.id FROM o ORDER BY o.id ",
                $order,
                " LIMIT $7) ORDER BY h.id ",
                $order
            ),
            open: concat!(
                "WITH o AS MATERIALIZED (SELECT h.id FROM heads h WHERE ",
                wanted!("h.status = ANY($2)"),
                " AND h.due IS NOT NULL)
                SELECT ",
                head_columns!(),
                " FROM heads h WHERE h.id IN (SELECT o.id FROM o ORDER BY o.id ",
                $order,
                " LIMIT $7) ORDER BY h.id ",
                $order
            ),
            horizon: concat!(
                "SELECT h.id FROM heads h WHERE ($1::text IS NULL OR h.kind = $1)
                    AND ($2::text IS NULL OR h.tenant = $2)
                    AND ($3::uuid IS NULL OR h.id > $3) AND ($4::uuid IS NULL OR h.id < $4)
                ORDER BY h.id ",
                $order,
                " LIMIT 1 OFFSET $5"
            ),
        }
    };
}
macro_rules! found_in {
    ($order:literal, $status:literal, $place:literal) => {
        concat!(
            "SELECT ",
            head_columns!(),
            " FROM heads h WHERE ",
            wanted!($status),
            " AND ",
            $place,
            " ORDER BY h.id ",
            $order,
            " LIMIT $7"
        )
    };
}
macro_rules! wanted {
    ($status:literal) => {
        concat!(
            "($1::text IS NULL OR h.kind = $1) AND ($2::text[] IS NULL OR ",
            $status,
            ") AND ($3::text IS NULL OR h.tenant = $3) AND ($4::uuid IS NULL OR h.id > $4)
            AND ($5::uuid IS NULL OR h.id < $5) AND h.kind = ANY($6::text[])"
        )
    };
}
struct Listing {
    births: &'static str,
    attention: &'static str,
    ended: &'static str,
    held: &'static str,
    open: &'static str,
    horizon: &'static str,
}
static OLDEST_FIRST: Listing = listing!("ASC");
static NEWEST_FIRST: Listing = listing!("DESC");
// Kinds that this program does not know would fill the limit and never be served by it.
const DUE: &str = concat!(
    "WITH t AS MATERIALIZED (SELECT moment() AS now)
    SELECT t.now, h.* FROM t LEFT JOIN LATERAL (
        SELECT ",
    head_columns!(),
    " FROM unnest($1::smallint[]) AS l(lane), LATERAL (
            SELECT * FROM heads
            WHERE heads.lane = l.lane AND heads.due IS NOT NULL AND heads.due <= t.now - $2
                AND heads.due >= $6
                AND heads.kind = ANY($4::text[]) AND heads.id <> ALL($5::uuid[])
            ORDER BY heads.due, heads.id LIMIT $3) h
        ORDER BY h.due, h.id LIMIT $3) h ON true
    ORDER BY h.due, h.id"
);
const LATEST_DUE: &str = concat!(
    "SELECT ",
    head_columns!(),
    " FROM unnest($1::smallint[]) AS l(lane), LATERAL (
            SELECT * FROM heads
            WHERE heads.lane = l.lane AND heads.due IS NOT NULL AND heads.due <= $2
                AND heads.kind = ANY($4::text[])
            ORDER BY heads.due DESC LIMIT $3) h
        ORDER BY h.due DESC, h.id DESC LIMIT $3"
);
const MAIL: &str = "SELECT seq, id, kind, body, at FROM mail
    WHERE entity = $1 AND seq > $2 ORDER BY seq LIMIT $3";
// A commit is found by any of its versions: the row that holds `from` may start before it.
const STREAM: &str = concat!(
    "SELECT ",
    record_columns!(),
    " FROM records r WHERE r.entity = $1 AND r.first >= coalesce(
        (SELECT max(f.first) FROM records f WHERE f.entity = $1 AND f.first <= $2), $2)
        AND r.first + r.count > $2
    ORDER BY r.first LIMIT $3"
);
const OUTBOX: &str = "SELECT o.source, o.version, o.ordinal, o.tenant, o.target, o.target_id,
        o.target_name, o.kind, o.body, o.at
    FROM unnest($1::smallint[]) AS l(lane), LATERAL (
        SELECT * FROM outbox WHERE outbox.lane = l.lane AND outbox.wire = $3
        ORDER BY at, source, version, ordinal LIMIT $2) o
    ORDER BY o.at, o.source, o.version, o.ordinal LIMIT $2";
const OUTBOX_HAS: &str =
    "SELECT EXISTS (SELECT FROM outbox WHERE source = $1 AND version = $2 AND ordinal = $3)";
// Below the horizon only: of a transaction that is still running, a later look could show more.
const FEED: &str = concat!(
    "SELECT m.incarnation, m.floor_tx, m.floor_ord, r.tx, r.ord, ",
    record_columns!(),
    " FROM meta m LEFT JOIN LATERAL (
        SELECT * FROM records
        WHERE (records.tx, records.ord) > (CASE WHEN $1 THEN m.floor_tx ELSE $2 END,
                CASE WHEN $1 THEN m.floor_ord ELSE $3 END)
            AND records.tx < pg_snapshot_xmin(pg_current_snapshot())::text::bigint
        ORDER BY records.tx, records.ord LIMIT $4) r ON true
    ORDER BY r.tx, r.ord"
);
const SESSION: &str = concat!("SELECT ", session_columns!(), " FROM sessions s WHERE s.id = $1");
const LIVE_SESSIONS: &str = concat!(
    "SELECT ",
    session_columns!(),
    " FROM sessions s, moment() AS now WHERE NOT s.ended AND now < s.expires_at ORDER BY s.id"
);
const EVIDENCE: &str = "SELECT entity, key, epoch, call, who, body, at FROM evidence
    WHERE entity = $1 ORDER BY n";
const BLOB: &str = "SELECT bytes FROM blobs WHERE digest = $1";
const TALLIES: &str = "SELECT rule, fired, failed, lag_max_us, last_at FROM tallies";

pub(super) async fn now(store: &Inner) -> Result<Timestamp, StoreError> {
    rows::time(only(&store.query(NOW, &[]).await?)?, 0)
}

pub(super) async fn head(store: &Inner, entity: EntityId) -> Result<Option<Head>, StoreError> {
    let found = store.query(HEAD, &[&entity.uuid()]).await?;
    let Some(row) = found.first() else { return Ok(None) };
    match rows::head(&store.judge, row, 0)? {
        Some(head) => Ok(Some(head)),
        None => {
            let (kind, status): (&str, &str) = (get(row, 1)?, get(row, 3)?);
            let why =
                format!("{entity} is a {kind} that is {status}, which this program does not know");
            Err(StoreError::Refused(why))
        }
    }
}

/// A listing: what comes first in its order, then part by part (see [`crate::listing`]).
pub(super) async fn heads(
    store: &Inner,
    filter: HeadFilter,
    limit: usize,
) -> Result<Vec<Head>, StoreError> {
    let parts = listing::parts(&filter, &store.judge.tables);
    if let Some(near) = listing::near(&filter, &parts) {
        let horizon = horizon(store, &filter).await?;
        let mut bounded = filter.clone();
        match filter.newest_first {
            true => bounded.after = horizon.or(filter.after),
            false => bounded.before = horizon.or(filter.before),
        }
        let found = part_of(store, &bounded, &near, limit).await?;
        if found.len() == limit || horizon.is_none() {
            return Ok(found);
        }
    }
    let mut found = Vec::new();
    for part in &parts {
        found.extend(part_of(store, &filter, part, limit).await?);
    }
    Ok(listing::merge(found, filter.newest_first, limit))
}

fn in_order_of(filter: &HeadFilter) -> &'static Listing {
    if filter.newest_first { &NEWEST_FIRST } else { &OLDEST_FIRST }
}

/// The id behind the heads that are looked through first; `None` if there are no more than these.
async fn horizon(store: &Inner, f: &HeadFilter) -> Result<Option<EntityId>, StoreError> {
    let (after, before) = (f.after.map(EntityId::uuid), f.before.map(EntityId::uuid));
    let near = rows::limit(listing::NEAR);
    let found =
        store.query(in_order_of(f).horizon, &[&f.kind, &f.tenant, &after, &before, &near]).await?;
    found.first().map(|row| Ok(EntityId::from_uuid(get(row, 0)?))).transpose()
}

async fn part_of(
    store: &Inner,
    f: &HeadFilter,
    part: &Part,
    limit: usize,
) -> Result<Vec<Head>, StoreError> {
    let listing = in_order_of(f);
    let sql = match part.place {
        Place::Births => listing.births,
        Place::Open => listing.open,
        Place::Held => listing.held,
        Place::Ended => listing.ended,
        Place::Attention => listing.attention,
    };
    let statuses = (!part.statuses.is_empty()).then_some(&part.statuses);
    let (mut after, mut before) = (f.after.map(EntityId::uuid), f.before.map(EntityId::uuid));
    let kinds = store.kinds();
    let held = f.held.map(|by| (by.session.uuid(), by.due_by.as_micros()));
    let all_lanes: Vec<i16> = (0..limits::LANES).map(rows::lane).collect();
    let mut heads = Vec::new();
    loop {
        let want = limit - heads.len();
        let asked = rows::limit(want);
        let mut values: Vec<&(dyn ToSql + Sync)> =
            vec![&part.kind, &statuses, &f.tenant, &after, &before, &kinds, &asked];
        if let Some((session, due_by)) = &held {
            let more: [&(dyn ToSql + Sync); 4] = [session, due_by, &f.attention, &all_lanes];
            values.extend(more);
        }
        let found = store.query(sql, &values).await?;
        heads.extend(found.iter().filter_map(|row| readable(store, row, 0)));
        // A full page with gaps in it: the rest of what was asked for comes behind it.
        let Some(last) = found.last().filter(|_| found.len() == want && heads.len() < limit) else {
            return Ok(heads);
        };
        let last = Some(get(last, 0)?);
        if f.newest_first {
            before = last;
        } else {
            after = last;
        }
    }
}

/// A head, if this program can read it. One that it can not read must not keep it from the others.
fn readable(store: &Inner, row: &Row, at: usize) -> Option<Head> {
    rows::head(&store.judge, row, at).unwrap_or_else(|e| {
        let id = rows::id(row, at);
        tracing::error!(?id, error = %e, "a head that can not be read is passed over");
        None
    })
}

pub(super) async fn due(
    store: &Inner,
    lanes: Vec<u16>,
    overdue: Duration,
    limit: usize,
) -> Result<(Timestamp, Vec<Head>), StoreError> {
    let overdue = i64::try_from(overdue.as_micros()).unwrap_or(i64::MAX);
    earliest_due(store, lanes, overdue, limit).await
}

/// What can not be read is left out, and not made up for: the next look is at others.
const KEYS_UP: &str =
    "SELECT key, entity FROM keys WHERE key >= $1 AND key < $2 ORDER BY key LIMIT $3";
const KEYS_DOWN: &str =
    "SELECT key, entity FROM keys WHERE key >= $1 AND key < $2 ORDER BY key DESC LIMIT $3";

pub(super) async fn keys(
    store: &Inner,
    range: KeyRange,
    limit: usize,
) -> Result<Vec<(String, EntityId)>, StoreError> {
    let sql = if range.highest_first { KEYS_DOWN } else { KEYS_UP };
    let found = store.query(sql, &[&range.from, &range.to, &rows::limit(limit)]).await?;
    let read = |row| Ok((rows::get(row, 0)?, EntityId::from_uuid(rows::get(row, 1)?)));
    found.iter().map(read).collect()
}

pub(super) async fn latest_due(
    store: &Inner,
    lanes: Vec<u16>,
    by: Timestamp,
    limit: usize,
) -> Result<Vec<Head>, StoreError> {
    let lanes: Vec<i16> = lanes.into_iter().map(rows::lane).collect();
    let values = (by.as_micros(), rows::limit(limit), store.kinds());
    let found = store.query(LATEST_DUE, &[&lanes, &values.0, &values.1, &values.2]).await?;
    Ok(found.iter().filter_map(|row| readable(store, row, 0)).collect())
}

pub(super) async fn next_due(
    store: &Inner,
    lanes: Vec<u16>,
) -> Result<(Timestamp, Option<Timestamp>), StoreError> {
    // Whole heads: one that `due` passes over must not keep the loop awake.
    let (now, first) = earliest_due(store, lanes, -FAR_AHEAD, 1).await?;
    Ok((now, first.into_iter().next().and_then(|h| h.due)))
}

/// Later than any `due`, and far enough from the end of the numbers to be added to the time.
const FAR_AHEAD: i64 = i64::MAX / 2;
/// Rows asked for at a time once some could not be read.
const LOOK_FURTHER: usize = 64;

async fn earliest_due(
    store: &Inner,
    lanes: Vec<u16>,
    overdue: i64,
    limit: usize,
) -> Result<(Timestamp, Vec<Head>), StoreError> {
    let began = Instant::now();
    let look = (lanes, overdue);
    let floor = store.floors.of(&look, began);
    let from = floor.unwrap_or(i64::MIN);
    let lanes: Vec<i16> = look.0.iter().copied().map(rows::lane).collect();
    let kinds = store.kinds();
    let mut unreadable: Vec<Uuid> = Vec::new();
    let mut asked = limit;
    loop {
        let most = rows::limit(asked);
        let values: [&(dyn ToSql + Sync); 6] =
            [&lanes, &overdue, &most, &kinds, &unreadable, &from];
        let mut found = store.query(DUE, &values).await?;
        let now = rows::time(only(&found)?, 0)?;
        found.retain(|row| matches!(row.try_get::<_, Option<&str>>(2), Ok(Some(_))));
        let before = unreadable.len();
        let mut heads = Vec::with_capacity(found.len());
        for row in &found {
            match readable(store, row, 1) {
                Some(head) => heads.push(head),
                None => unreadable.push(get(row, 1)?),
            }
        }
        if unreadable.len() == before || found.len() < asked || heads.len() >= limit {
            heads.truncate(limit);
            let ended = (Instant::now(), began.elapsed());
            store.floors.saw(look, floor, ended, now, heads.first().and_then(|h| h.due));
            return Ok((now, heads));
        }
        asked = limit.max(LOOK_FURTHER);
    }
}

pub(super) async fn mail(
    store: &Inner,
    entity: EntityId,
    after: u64,
    limit: usize,
) -> Result<Vec<Mail>, StoreError> {
    let values = (entity.uuid(), rows::big(after), rows::limit(limit));
    let found = store.query(MAIL, &[&values.0, &values.1, &values.2]).await?;
    found.iter().map(|row| rows::mail(row, 0)).collect()
}

pub(super) async fn stream(
    store: &Inner,
    entity: EntityId,
    from: u64,
    limit: usize,
) -> Result<Vec<Record>, StoreError> {
    let values = (entity.uuid(), rows::big(from), rows::limit(limit));
    let found = store.query(STREAM, &[&values.0, &values.1, &values.2]).await?;
    found.iter().map(|row| rows::record(row, 0)).collect()
}

pub(super) async fn outbox(
    store: &Inner,
    lanes: Vec<u16>,
    wire: bool,
    limit: usize,
) -> Result<Vec<Posted>, StoreError> {
    let lanes: Vec<i16> = lanes.into_iter().map(rows::lane).collect();
    let found = store.query(OUTBOX, &[&lanes, &rows::limit(limit), &wire]).await?;
    found.iter().map(rows::posted).collect()
}

pub(super) async fn outbox_has(store: &Inner, m: MessageId) -> Result<bool, StoreError> {
    let values = (m.source.uuid(), rows::big(m.version), rows::ordinal(m.ordinal));
    get(only(&store.query(OUTBOX_HAS, &[&values.0, &values.1, &values.2]).await?)?, 0)
}

pub(super) async fn feed(
    store: &Inner,
    after: Cursor,
    limit: usize,
) -> Result<FeedPage, StoreError> {
    let start = after.incarnation == Cursor::START.incarnation;
    let row_in_tx = i32::try_from(after.row).unwrap_or(i32::MAX);
    let values = (rows::big(after.transaction), rows::limit(limit));
    let found = store.query(FEED, &[&start, &values.0, &row_in_tx, &values.1]).await?;
    let first = only(&found)?;
    let incarnation = get::<i64>(first, 0)?.cast_unsigned();
    let cursor = |row: &Row, at: usize| -> Result<Cursor, StoreError> {
        let place = u64::try_from(get::<i32>(row, at + 1)?).map_err(rows::corrupt)?;
        Ok(Cursor { incarnation, transaction: rows::count(row, at)?, row: place })
    };
    let restart = cursor(first, 1)?;
    if !start && after.incarnation != incarnation {
        return Err(Lost::OtherIncarnation { restart }.into());
    }
    if !start && after < restart {
        return Err(Lost::BelowFloor { restart }.into());
    }
    let mut items = Vec::with_capacity(found.len());
    for row in &found {
        if get::<Option<i64>>(row, 3)?.is_some() {
            items.push((cursor(row, 3)?, rows::record(row, 5)?));
        }
    }
    let next = items.last().map_or(after, |(c, _)| *c);
    Ok(FeedPage { items, next })
}

pub(super) async fn session(store: &Inner, s: SessionId) -> Result<Option<Session>, StoreError> {
    store.query(SESSION, &[&s.uuid()]).await?.first().map(rows::session).transpose()
}

pub(super) async fn live_sessions(store: &Inner) -> Result<Vec<Session>, StoreError> {
    store.query(LIVE_SESSIONS, &[]).await?.iter().map(rows::session).collect()
}

pub(super) async fn evidence(store: &Inner, e: EntityId) -> Result<Vec<Evidence>, StoreError> {
    store.query(EVIDENCE, &[&e.uuid()]).await?.iter().map(rows::evidence).collect()
}

pub(super) async fn blob(store: &Inner, digest: Hash) -> Result<Option<Vec<u8>>, StoreError> {
    store.query(BLOB, &[&&digest.0[..]]).await?.first().map(|row| get(row, 0)).transpose()
}

pub(super) async fn tallies(store: &Inner) -> Result<Tallies, StoreError> {
    let mut tallies = Tallies::new();
    for row in &store.query(TALLIES, &[]).await? {
        let tally = Tally {
            fired: rows::count(row, 1)?,
            failed: rows::count(row, 2)?,
            lag_max: Duration::from_micros(rows::count(row, 3)?),
            last_at: get::<Option<i64>>(row, 4)?.map(Timestamp::from_micros),
        };
        tallies.insert(get(row, 0)?, tally);
    }
    Ok(tallies)
}

/// The first row of an answer that always has one.
fn only(found: &[Row]) -> Result<&Row, StoreError> {
    found.first().ok_or_else(|| rows::corrupt("an answer without a row"))
}
