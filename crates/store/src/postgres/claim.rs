//! Claims: index probes in the order the planner gave, each locking what it finds.
//!
//! A probe walks the ready table in claim order and takes the *head's* lock for each row, skipping
//! locked ones; the ready row itself needs none, as it is only written under its head's lock. While a
//! probe runs, another server may claim what its snapshot still shows as ready. Postgres then looks at
//! the newest head again, finds `ready_at` no longer the same and goes on, so a probe gives what it
//! should also in a crowd. (For the same reason a ready row without its head is never given out, only
//! stepped over; `retire` removes such.)
//!
//! Probes of different groups travel in one statement. Where a group comes up again (what others left)
//! a new statement starts, which leaves out what was taken before.

use super::{
    Inner,
    error::Fault,
    pool::Conn,
    rows::{self, head_columns},
    write::{self, Ground},
};
use std::collections::{BTreeSet, HashMap};
use tenure_kernel::{
    batch::{HeadWrite, Writes},
    claims::{ClaimAnswer, ClaimRequest, Claimed, Probe},
    error::StoreError,
    head::Head,
    ids::EntityId,
    limits,
    mail::Mail,
    time::Timestamp,
};
use tokio_postgres::Row;
use uuid::Uuid;

const TRIES: u32 = 4;

const PROBE: &str = concat!(
    "SELECT (SELECT moment()), p.n, h.* FROM
    unnest($2::smallint[], $3::text[], $4::bigint[], $5::bigint[])
        WITH ORDINALITY AS p(priority, tenant, floor, want, n),
    LATERAL (SELECT ",
    head_columns!(),
    " FROM ready r JOIN heads h ON h.id = r.entity AND h.ready_at = r.ready_at
        WHERE r.queue = $1 AND r.priority = p.priority AND r.tenant = p.tenant
            AND r.ready_at >= p.floor AND r.entity <> ALL ($6::uuid[])
        ORDER BY r.ready_at, r.entity LIMIT p.want
        FOR NO KEY UPDATE OF h SKIP LOCKED) h
    LIMIT $7"
);

const UNREAD: &str = "SELECT n.entity, m.seq, m.id, m.kind, m.body, m.at
    FROM unnest($1::uuid[], $2::bigint[]) AS n(entity, mail_read), LATERAL (
        SELECT * FROM mail WHERE mail.entity = n.entity AND mail.seq > n.mail_read
        ORDER BY mail.seq LIMIT $3) m
    ORDER BY n.entity, m.seq LIMIT $3";

const READY_GROUPS: &str = "WITH RECURSIVE g AS (
    (SELECT priority, tenant, 1 AS nth FROM ready WHERE queue = $1 AND priority < $2::integer
        ORDER BY priority DESC, tenant DESC LIMIT 1)
    UNION ALL
    SELECT n.priority, n.tenant, g.nth + 1 FROM g, LATERAL (
        SELECT priority, tenant FROM ready
        WHERE queue = $1 AND (priority, tenant) < (g.priority, g.tenant)
        ORDER BY priority DESC, tenant DESC LIMIT 1) n
    WHERE n.priority = g.priority OR g.nth < $3::integer)
    SELECT priority, tenant FROM g";

const READY_QUEUES: &str = "WITH RECURSIVE q AS (
    (SELECT queue FROM ready WHERE queue > $1 ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT n.queue FROM q, LATERAL (
        SELECT queue FROM ready WHERE queue > q.queue ORDER BY queue LIMIT 1) n)
    SELECT queue FROM q LIMIT $2";

/// Claims from a queue.
pub(super) async fn claim(store: &Inner, request: ClaimRequest) -> Result<ClaimAnswer, StoreError> {
    if request.probes.is_empty() || request.limit == 0 {
        return Ok(ClaimAnswer::default());
    }
    let mut tries = 0;
    loop {
        tries += 1;
        let loan = store.writers()?.lend().await?;
        match Box::pin(once(store, &loan.conn, &request)).await {
            Ok(answer) => {
                loan.give_back();
                return Ok(answer);
            }
            Err(Fault::Raced(_)) if tries < TRIES => loan.roll_back().await,
            Err(Fault::Disconnected(_)) if tries == 1 => {}
            Err(fault) => {
                loan.roll_back().await;
                return Err(fault.into_store());
            }
        }
    }
}

/// A page of the (priority, tenant) groups with ready work, by stepping from group to group in the index: backwards,
/// because it has the lowest priority first.
pub(super) async fn ready_groups(
    store: &Inner,
    queue: &str,
    below: Option<i16>,
) -> Result<Vec<(i16, String)>, StoreError> {
    // No priority is as high as what comes behind the highest.
    let below = below.map_or(i32::from(i16::MAX) + 1, i32::from);
    let full = i32::try_from(limits::READY_GROUPS_MAX).unwrap_or(i32::MAX);
    let found = store.query(READY_GROUPS, &[&queue, &below, &full]).await?;
    found.iter().map(|row| Ok((rows::get(row, 0)?, rows::get(row, 1)?))).collect()
}

/// The queues with ready work, by stepping from one to the next in the same index. The limit ends the steps, too: a
/// recursion goes only as far as somebody takes its rows.
pub(super) async fn ready_queues(
    store: &Inner,
    after: &str,
    limit: usize,
) -> Result<Vec<String>, StoreError> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let found = store.query(READY_QUEUES, &[&after, &limit]).await?;
    found.iter().map(|row| rows::get(row, 0)).collect()
}

/// What the probes gave: how many each, and the heads as they were locked.
struct Taken {
    now: Timestamp,
    found: Vec<usize>,
    heads: Vec<Head>,
    /// What this program can not read. It stays where it is and keeps nobody from the others.
    passed_over: Vec<Uuid>,
}

/// Rows asked for beyond what is wanted once some could not be read.
const LOOK_FURTHER: usize = 64;

async fn once(store: &Inner, conn: &Conn, request: &ClaimRequest) -> Result<ClaimAnswer, Fault> {
    let taken = conn.in_time(probe_all(store, conn, request), Fault::unavailable).await?;
    if taken.heads.is_empty() {
        let end = async { Ok(conn.client.batch_execute("ROLLBACK").await?) };
        conn.in_time(end, Fault::unavailable).await?;
        return Ok(ClaimAnswer { claimed: Vec::new(), found: taken.found });
    }
    let mut unread = conn.in_time(unread(conn, &taken.heads), Fault::unavailable).await?;
    let mut writes = Writes::default();
    let mut claimed = Vec::with_capacity(taken.heads.len());
    for (i, before) in taken.heads.into_iter().enumerate() {
        let id = request.id.nth(i as u64);
        let (session, lease) = (request.session, request.lease);
        // Locked, and ready a moment ago under the same lock: the judge has no reason to refuse it.
        let judged = store.judge.claim(&before, session, lease, false, id, taken.now);
        let Ok(written) = judged else { continue };
        claimed.push(Claimed {
            head: written.head.clone(),
            mail: unread.remove(&before.id).unwrap_or_default(),
            ready_at: before.ready_at.unwrap_or(taken.now),
        });
        writes.records.push(written.record);
        writes.posted.extend(written.posted);
        let after = written.head;
        writes.heads.insert(before.id, HeadWrite { before: Some(before), after });
    }
    let write = write::write_and_commit(conn, &writes, taken.now, Ground::Locked);
    let stamp = conn.in_time(Box::pin(write), Fault::indeterminate).await?;
    store.acknowledged(conn, &writes, stamp);
    Ok(ClaimAnswer { claimed, found: taken.found })
}

/// Runs the probes in order until there is enough. Opens the transaction.
async fn probe_all(store: &Inner, conn: &Conn, request: &ClaimRequest) -> Result<Taken, Fault> {
    let statement = conn.prepare(PROBE).await?;
    let limit = request.limit.min(limits::CLAIM_MAX);
    let (found, heads, passed_over) = (Vec::new(), Vec::new(), Vec::new());
    let mut taken = Taken { now: Timestamp::ZERO, found, heads, passed_over };
    let mut rest = &request.probes[..];
    let mut begun = false;
    while !rest.is_empty() && taken.heads.len() < limit {
        let (probes, after) = rest.split_at(distinct(rest));
        rest = after;
        let mut counts = vec![0; probes.len()];
        let mut further = 0;
        loop {
            let priorities: Vec<i16> = probes.iter().map(|p| p.priority).collect();
            let tenants: Vec<&str> = probes.iter().map(|p| p.tenant.as_str()).collect();
            let floors: Vec<i64> = probes.iter().map(|p| p.floor.as_micros()).collect();
            let left = |(p, got): (&Probe, &usize)| match p.want.saturating_sub(*got) {
                0 => 0,
                want => rows::limit(want.min(limit) + further),
            };
            let wants: Vec<i64> = probes.iter().zip(&counts).map(left).collect();
            let mut before: Vec<Uuid> = taken.heads.iter().map(|h| h.id.uuid()).collect();
            before.extend(&taken.passed_over);
            let room = rows::limit(limit - taken.heads.len() + further);
            let values: [&(dyn tokio_postgres::types::ToSql + Sync); 7] =
                [&request.queue, &priorities, &tenants, &floors, &wants, &before, &room];
            let query = conn.client.query(&statement, &values);
            let found = if begun {
                query.await?
            } else {
                begun = true;
                let begin = conn.client.batch_execute("BEGIN");
                let (begun, found) = futures_util::future::join(begin, query).await;
                begun?;
                found?
            };
            let known = taken.passed_over.len();
            collect(store, &found, probes, limit, &mut counts, &mut taken)?;
            if taken.passed_over.len() == known || taken.heads.len() == limit {
                break;
            }
            further = LOOK_FURTHER;
        }
        // Where the limit was reached, later probes were not asked.
        if taken.heads.len() == limit {
            counts.truncate(counts.iter().rposition(|n| *n > 0).map_or(0, |last| last + 1));
        }
        taken.found.extend(counts);
    }
    Ok(taken)
}

fn collect(
    store: &Inner,
    found: &[Row],
    probes: &[Probe],
    limit: usize,
    counts: &mut [usize],
    taken: &mut Taken,
) -> Result<(), Fault> {
    for row in found {
        taken.now = rows::time(row, 0)?;
        // Counted by WITH ORDINALITY, from one.
        let n = usize::try_from(rows::count(row, 1)?).map_err(rows::corrupt)?.saturating_sub(1);
        if taken.heads.len() == limit || counts[n] >= probes[n].want {
            continue;
        }
        match rows::head(&store.judge, row, 2) {
            Ok(Some(head)) => {
                counts[n] += 1;
                taken.heads.push(head);
            }
            // The first kind has been reported where it was read.
            Ok(None) => taken.passed_over.push(rows::get(row, 2)?),
            Err(e) => {
                let id: Uuid = rows::get(row, 2)?;
                tracing::error!(%id, error = %e, "ready, but can not be read: not claimed");
                taken.passed_over.push(id);
            }
        }
    }
    Ok(())
}

/// How many probes at the front are of different groups.
fn distinct(probes: &[Probe]) -> usize {
    let mut seen = BTreeSet::new();
    probes.iter().take_while(|p| seen.insert((p.priority, p.tenant.as_str()))).count()
}

async fn unread(conn: &Conn, heads: &[Head]) -> Result<HashMap<EntityId, Vec<Mail>>, Fault> {
    let with_mail: Vec<&Head> = heads.iter().filter(|h| h.has_mail()).collect();
    let mut boxes = HashMap::<EntityId, Vec<Mail>>::new();
    if with_mail.is_empty() {
        return Ok(boxes);
    }
    let ids: Vec<Uuid> = with_mail.iter().map(|h| h.id.uuid()).collect();
    let read: Vec<i64> = with_mail.iter().map(|h| rows::big(h.mail_read)).collect();
    let most = rows::limit(limits::MAIL_PER_CLAIM_MAX);
    let statement = conn.prepare(UNREAD).await?;
    for row in &conn.client.query(&statement, &[&ids, &read, &most]).await? {
        boxes.entry(rows::id(row, 0)?).or_default().push(rows::mail(row, 1)?);
    }
    Ok(boxes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_comes_up_again_starts_a_new_statement() {
        let probe = |tenant: &str| Probe {
            priority: 0,
            tenant: tenant.into(),
            floor: Timestamp::ZERO,
            want: 1,
        };
        assert_eq!(distinct(&[probe("a"), probe("b"), probe("a")]), 2);
        assert_eq!(distinct(&[probe("a"), probe("a")]), 1);
        assert_eq!(distinct(&[]), 0);
    }
}
