//! How the store is: its own tables, each counted up to a limit, and what the database says about itself.

use super::{
    Inner,
    rows::{self, get},
};
use tenure_kernel::{
    error::StoreError,
    health::{
        COUNTED_MAX, HOLDERS_BACK_MAX, Health, HoldsBack, IntakeCount, OUTBOX_COUNTED_MAX,
        OpenCount, OutboxCount, ReadyCount,
    },
    time::Timestamp,
};

const PULSE: &str = "SELECT moment(), last_at, judge_after FROM pulse";
// Every open head is due (law 4), and the index over `due` knows no history.
const OPEN: &str = "SELECT kind, status, class, count(*), min(changed_at)
    FROM (SELECT kind, status, class, changed_at FROM heads WHERE due IS NOT NULL LIMIT $1) h
    GROUP BY kind, status, class ORDER BY kind, status";
const READY: &str = "SELECT queue, count(*), min(ready_at)
    FROM (SELECT queue, ready_at FROM ready LIMIT $1) r GROUP BY queue ORDER BY queue";
// The oldest of each lane is exact, however many there are.
const OUTBOX: &str = "SELECT l.lane, w.wire, o.count, o.oldest
    FROM unnest($1::smallint[]) AS l(lane), unnest(ARRAY[false, true]) AS w(wire), LATERAL (
        SELECT count(*) AS count, min(at) AS oldest FROM (
            SELECT at FROM outbox WHERE outbox.lane = l.lane AND outbox.wire = w.wire
            ORDER BY at LIMIT $2) oldest_first) o
    WHERE o.count > 0 ORDER BY w.wire, l.lane";
const INTAKE: &str = "SELECT count(*), min(at) FROM (SELECT at FROM intake ORDER BY id LIMIT $1) i";
const SESSIONS: &str = "SELECT role, count(*) FROM sessions, moment() AS now
    WHERE NOT ended AND now < expires_at GROUP BY role ORDER BY role";
// Committed, as it is seen, and not below the horizon of running transactions: what the feed withholds.
const FEED_HELD: &str = "SELECT at FROM records
    WHERE tx >= pg_snapshot_xmin(pg_current_snapshot())::text::bigint ORDER BY tx, ord LIMIT 1";
// A transaction gets its number with its first write; one that only reads holds nothing back. Anywhere in the
// cluster: numbers are given out for all databases together.
const HOLDING_BACK: &str = "SELECT * FROM (
        SELECT pid, NULL::text AS gid, datname::text AS db, usename::text AS usr,
            application_name AS app, state, (extract(epoch FROM xact_start) * 1000000)::bigint AS since,
            left(query, 200) AS query, age(backend_xid) AS age
        FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
        UNION ALL
        SELECT NULL, gid, database::text, owner::text, '', 'prepared',
            (extract(epoch FROM prepared) * 1000000)::bigint, '', age(transaction)
        FROM pg_prepared_xacts) t
    ORDER BY age DESC LIMIT $1";
const LISTENING: &str = "SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name LIKE 'tenure bell %'";
// `reset_val`: what a connection gets that sets nothing itself, as this one does.
const DATABASE: &str = "SELECT name, reset_val FROM pg_settings
    WHERE name IN ('server_version', 'fsync', 'full_page_writes', 'synchronous_commit',
        'synchronous_standby_names', 'zero_damaged_pages', 'ignore_checksum_failure', 'data_checksums')
    UNION ALL SELECT 'in_recovery', pg_is_in_recovery()::text
    UNION ALL SELECT 'standbys', count(*)::text FROM pg_stat_replication
    ORDER BY 1";

pub(super) async fn health(store: &Inner) -> Result<Health, StoreError> {
    let (most, most_messages) = (rows::limit(COUNTED_MAX), rows::limit(OUTBOX_COUNTED_MAX));
    let lanes: Vec<i16> = (0..tenure_kernel::limits::LANES).map(rows::lane).collect();
    let pulse = store.query(PULSE, &[]).await?;
    let pulse = pulse.first().ok_or_else(|| rows::corrupt("no pulse row"))?;
    let mut health = Health {
        now: rows::time(pulse, 0)?,
        pulse_at: get::<Option<i64>>(pulse, 1)?.map(Timestamp::from_micros),
        judge_after: rows::time(pulse, 2)?,
        ..Health::default()
    };
    let mut seen = 0;
    for row in &store.query(OPEN, &[&most]).await? {
        let count = rows::count(row, 3)?;
        seen += count;
        if get::<i16>(row, 2)? == rows::class(tenure_kernel::table::Class::Open) {
            let (kind, status, oldest_change) = (get(row, 0)?, get(row, 1)?, rows::time(row, 4)?);
            health.open.push(OpenCount { kind, status, count, oldest_change });
        }
    }
    health.open_is_all = seen < COUNTED_MAX as u64;
    for row in &store.query(READY, &[&most]).await? {
        let (queue, count, oldest) = (get(row, 0)?, rows::count(row, 1)?, rows::time(row, 2)?);
        health.ready.push(ReadyCount { queue, count, oldest });
    }
    for row in &store.query(OUTBOX, &[&lanes, &most_messages]).await? {
        let lane = u16::try_from(get::<i16>(row, 0)?).map_err(rows::corrupt)?;
        let (wire, count, oldest) = (get(row, 1)?, rows::count(row, 2)?, rows::time(row, 3)?);
        health.outbox.push(OutboxCount { lane, wire, count, oldest });
    }
    for row in &store.query(INTAKE, &[&most]).await? {
        let oldest = get::<Option<i64>>(row, 1)?.map(Timestamp::from_micros);
        health.intake = Some(IntakeCount { count: rows::count(row, 0)?, oldest });
    }
    for row in &store.query(SESSIONS, &[]).await? {
        health.sessions.push((get(row, 0)?, rows::count(row, 1)?));
    }
    let held = store.query(FEED_HELD, &[]).await?;
    health.feed_held_since = held.first().map(|row| rows::time(row, 0)).transpose()?;
    for row in &store.query(HOLDING_BACK, &[&rows::limit(HOLDERS_BACK_MAX)]).await? {
        let text =
            |at: usize| Ok::<_, StoreError>(get::<Option<String>>(row, at)?.unwrap_or_default());
        health.holding_back.push(HoldsBack {
            pid: get(row, 0)?,
            prepared: get(row, 1)?,
            database: text(2)?,
            user: text(3)?,
            application: text(4)?,
            state: text(5)?,
            since: get::<Option<i64>>(row, 6)?.map(Timestamp::from_micros),
            query: text(7)?,
        });
    }
    let listening = store.query(LISTENING, &[]).await?;
    health.bells_listening = listening.first().map(|row| rows::count(row, 0)).transpose()?;
    for row in &store.query(DATABASE, &[]).await? {
        health.database.push((get(row, 0)?, get::<Option<String>>(row, 1)?.unwrap_or_default()));
    }
    Ok(health)
}
