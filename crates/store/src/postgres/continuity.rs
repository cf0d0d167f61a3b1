//! Whether the database behind a new connection still has what this process was told is durable.
//!
//! A failover leads every connection to another server. A standby that had received everything continues the same
//! history. One that lagged behind does not: commits that were acknowledged are gone, their transaction numbers are given
//! out again, and a feed cursor points into a history that is written anew. The database cannot tell the two cases
//! apart, so each process compares what it remembers, on every new connection for writing and before anything is written on it:
//!
//! - the *timeline*, which every promotion and every recovery to a point in time raises. It is read from the name of the
//!   current file of the write-ahead log: the control file says it only after the first checkpoint;
//! - the last batches that were acknowledged to this process, and the newest record of any process at its last pulse.
//!
//! If all of them are there, the new timeline is noted and the incarnation stays. If one is missing, the store gets a new
//! incarnation in the same transaction that notes the timeline. Servers that remember only what survived go on meanwhile;
//! they adopt the new incarnation with their next connection, and their feeds answer `lost` from the moment it is written.
//!
//! A server that starts before a running one has looked finds another timeline and nothing to compare: it draws a new
//! incarnation and counts no loss. A running server that then misses something counts it, unless another one has.
//!
//! A database of another system is not taken over here: its rows need new numbers, which takes longer than a connection may.
//!
//! Not noticed: a loss that concerns only batches of a process that died with the primary, after the last pulse of all others.

use super::{
    error::Fault,
    pool::Conn,
    rows::{self, get},
    schema,
    write::Stamp,
};
use std::{
    collections::VecDeque,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tenure_kernel::{
    batch::Writes, error::StoreError, rules::HISTORY_LOST, stream::Hash, table::Class,
    time::Timestamp,
};
use tokio_postgres::{error::SqlState, types::ToSql};
use uuid::Uuid;

/// Acknowledged batches that are remembered. More than there are connections for writing: answers may arrive in another
/// order than the commits were written, and the last one written is the one that a loss hits first.
const REMEMBERED: usize = 32;

/// The cluster (see [`schema::CLUSTER`]; `NULL` on a standby), and what the store says about itself.
const LOOK: &str = concat!(schema::cluster!(), ", cluster, incarnation FROM meta");

/// Which of these heads, as they were acknowledged, are not part of the history. A head that retention may have removed
/// counts as part of it.
const MISSING: &str =
    "SELECT t.n FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bytea[], $5::bigint[])
        WITH ORDINALITY AS t(entity, version, mail, chain, tx, n)
    LEFT JOIN heads h ON h.id = t.entity
    WHERE (SELECT floor_tx FROM meta) < t.tx
        AND (h.id IS NULL OR h.version < t.version OR h.mail_count < t.mail
            OR t.chain IS NOT NULL AND t.chain IS DISTINCT FROM CASE WHEN h.version = t.version THEN h.chain ELSE (
                SELECT r.hash FROM records r WHERE r.entity = t.entity AND r.first <= t.version
                ORDER BY r.first DESC LIMIT 1) END)
    ORDER BY t.n";

/// When the last of the newest records was written that is older than this. Others may have written since.
const KEPT: &str = "SELECT max(r.at) FROM (
        SELECT at FROM records ORDER BY tx DESC, ord DESC LIMIT 10000) r
    WHERE r.at < $1";

/// The newest record of the store.
const NEWEST: &str = "SELECT entity, first + count - 1, hash, tx, at FROM records
    ORDER BY tx DESC, ord DESC LIMIT 1";

const LOCK_META: &str = "SELECT incarnation FROM meta FOR UPDATE";
const NOTE_CLUSTER: &str = "UPDATE meta SET cluster = $1 WHERE cluster = $2 AND incarnation = $3";
// Of the last loss: up to which moment acknowledged batches are missing, and how much time that is.
const COUNT_LOSS: &str = "INSERT INTO tallies AS t (rule, fired, failed, lag_max_us, last_at)
    VALUES ($1, 1, 0, $2, $3)
    ON CONFLICT (rule) DO UPDATE SET fired = t.fired + 1,
        lag_max_us = excluded.lag_max_us, last_at = excluded.last_at";
// Behind the above. A loss that was counted covers this one if it ends after what this one has kept.
const UNLESS_COUNTED: &str =
    "WHERE coalesce(t.last_at, 0) < excluded.last_at - excluded.lag_max_us";

/// A head as it was when a batch was acknowledged.
#[derive(Clone, Debug, PartialEq)]
struct Trace {
    entity: Uuid,
    version: i64,
    mail: i64,
    /// What a commit made of it; mail leaves it as it is.
    chain: Option<Hash>,
    tx: i64,
    at: Timestamp,
}

/// What a process remembers of its store.
#[derive(Debug, Default)]
struct State {
    cluster: String,
    incarnation: i64,
    /// Incarnations that were replaced. To find one of them again is a loss as well.
    past: Vec<i64>,
    acknowledged: VecDeque<Trace>,
    /// The newest record of any process, at the last pulse.
    seen: Option<Trace>,
    /// Incarnations that this process has drawn.
    drawn: u64,
}

/// What a new connection found.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Finding {
    /// The same history on the same timeline.
    Same,
    /// The same history on another timeline.
    Promoted,
    /// Another process has drawn a new incarnation: it has found a loss, or had nothing to compare.
    Replaced,
    /// Acknowledged history is missing, or there is nothing to compare.
    Lost,
    /// The store was brought to a database of another system, and no server has taken it over there.
    Elsewhere,
}

impl State {
    fn traces(&self) -> Vec<Trace> {
        self.acknowledged.iter().chain(&self.seen).cloned().collect()
    }

    /// `cluster` is where we are, `stored` where the store was when somebody last looked.
    fn judge(&self, cluster: &str, stored: &str, incarnation: i64, missing: usize) -> Finding {
        let nothing_known = self.acknowledged.is_empty() && self.seen.is_none();
        if schema::system(stored) != schema::system(cluster) {
            Finding::Elsewhere
        } else if incarnation != self.incarnation && !self.past.contains(&incarnation) {
            Finding::Replaced
        } else if incarnation != self.incarnation
            || missing > 0
            || (stored != cluster && nothing_known)
        {
            Finding::Lost
        } else if stored != cluster || self.cluster != cluster {
            Finding::Promoted
        } else {
            Finding::Same
        }
    }

    fn begin(&mut self, cluster: &str, incarnation: i64) {
        if self.incarnation != incarnation {
            self.past.push(self.incarnation);
            self.past.retain(|i| *i != incarnation);
            self.acknowledged.clear();
            self.seen = None;
        }
        self.cluster = cluster.to_owned();
        self.incarnation = incarnation;
    }
}

/// Watches over the history behind the connections of a pool.
pub(super) struct Continuity {
    /// Rises whenever what was remembered of rows of the database may no longer be true.
    life: AtomicU64,
    /// What new incarnations are derived from.
    seed: u64,
    state: Mutex<State>,
    /// One connection at a time is compared.
    comparing: tokio::sync::Mutex<()>,
}

impl Continuity {
    pub(super) fn new(seed: u64, cluster: String, incarnation: i64) -> Self {
        let state = Mutex::new(State { cluster, incarnation, ..State::default() });
        let comparing = tokio::sync::Mutex::default();
        Continuity { life: AtomicU64::new(1), seed, state, comparing }
    }

    /// Which life of the store is the current one, as far as this process knows.
    pub(super) fn life(&self) -> u64 {
        self.life.load(Ordering::Acquire)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A batch was acknowledged on a connection of this life.
    pub(super) fn acknowledged(&self, life: u64, writes: &Writes, stamp: Stamp) {
        // One head stands for the transaction; one that retention does not take soon, if there is a choice.
        let mut heads = writes.heads.values();
        let open = heads.clone().find(|w| w.after.class() != Class::Final);
        let Some(write) = open.or_else(|| heads.next()) else { return };
        let (head, before) = (&write.after, write.before.as_ref());
        let trace = Trace {
            entity: head.id.uuid(),
            version: rows::big(head.version),
            mail: rows::big(head.mail_count),
            chain: before.is_none_or(|b| b.version < head.version).then_some(head.chain),
            tx: stamp.tx,
            at: stamp.at,
        };
        let mut state = self.state();
        if life != self.life() {
            return;
        }
        if state.acknowledged.len() >= REMEMBERED {
            state.acknowledged.pop_front();
        }
        state.acknowledged.push_back(trace);
    }

    /// Remembers the newest record of the store, also one that another server wrote.
    pub(super) async fn look_at_newest(&self, conn: &Conn) -> Result<(), Fault> {
        let newest = newest(conn).await?;
        let mut state = self.state();
        if newest.is_some() && conn.life == self.life() {
            state.seen = newest;
        }
        Ok(())
    }

    /// Compares what is behind a new connection with what this process remembers, and says in which life of the store
    /// the connection begins.
    pub(super) async fn compare(&self, conn: &Conn) -> Result<u64, Fault> {
        let _one_at_a_time = self.comparing.lock().await;
        loop {
            let row = conn.client.query_one(LOOK, &[]).await.map_err(no_store)?;
            let Some(cluster) = get::<Option<String>>(&row, 0)? else {
                // A standby keeps its connections when it is promoted, so this one must not be used later either.
                let why = "the database is a standby, which takes no writes".to_owned();
                return Err(Fault::Disconnected(why));
            };
            let (stored, incarnation): (String, i64) = (get(&row, 1)?, get(&row, 2)?);
            let traces = self.state().traces();
            let missing = missing(conn, &traces).await?;
            let finding = self.state().judge(&cluster, &stored, incarnation, missing.len());
            match finding {
                Finding::Same => return Ok(self.life()),
                Finding::Promoted => {
                    if stored != cluster {
                        tracing::warn!(
                            before = stored,
                            now = cluster,
                            "the database was promoted; nothing that was acknowledged is missing"
                        );
                        let values: [&(dyn ToSql + Sync); 3] = [&cluster, &stored, &incarnation];
                        conn.client.execute(NOTE_CLUSTER, &values).await?;
                    }
                    return Ok(self.begin(&cluster, incarnation));
                }
                Finding::Replaced => {
                    count_unless_counted(conn, &traces, &missing).await?;
                    self.begin(&cluster, incarnation);
                }
                Finding::Elsewhere => {
                    let why = "the store is on another cluster: restart the servers, they take it over at their start";
                    return Err(StoreError::Unavailable(why.to_owned()).into());
                }
                Finding::Lost => {
                    let loss = Loss { cluster: &cluster, stored: &stored, incarnation };
                    if let Some(drawn) = self.draw(conn, loss, &traces, &missing).await? {
                        return Ok(self.begin(&cluster, drawn));
                    }
                }
            }
        }
    }

    fn begin(&self, cluster: &str, incarnation: i64) -> u64 {
        let mut state = self.state();
        state.begin(cluster, incarnation);
        // Under the lock: what was acknowledged in an earlier life is not remembered in this one.
        self.life.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Gives the store a new incarnation and counts the loss; `None` if somebody else was faster.
    async fn draw(
        &self,
        conn: &Conn,
        loss: Loss<'_>,
        traces: &[Trace],
        missing: &[usize],
    ) -> Result<Option<i64>, Fault> {
        let number = {
            let mut state = self.state();
            state.drawn += 1;
            state.drawn
        };
        // Told apart by the process that draws it, by the loss, and by where it was found.
        let text = format!("{}/{number}/{}/{}", self.seed, loss.cluster, loss.incarnation);
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&Hash::of(text.as_bytes()).0[..8]);
        conn.client.batch_execute("BEGIN").await?;
        let row = conn.client.query_one(LOCK_META, &[]).await?;
        if get::<i64>(&row, 0)? != loss.incarnation {
            conn.client.batch_execute("ROLLBACK").await?;
            return Ok(None);
        }
        let (until, span) = extent(traces, missing, kept(conn, traces, missing).await?);
        let drawn =
            schema::resettle(conn, loss.stored, loss.cluster, u64::from_be_bytes(bytes)).await?;
        let until = match until {
            Some(at) => at,
            None => rows::time(&conn.client.query_one("SELECT moment()", &[]).await?, 0)?,
        };
        count(conn, COUNT_LOSS, until, span).await?;
        conn.client.batch_execute("COMMIT").await?;
        let entities = entities(traces, missing);
        tracing::error!(
            before = loss.stored, now = loss.cluster, %until, ?span, ?entities,
            "acknowledged history is missing from the database: the store has a new incarnation"
        );
        Ok(Some(drawn))
    }
}

/// Where a loss was found.
struct Loss<'a> {
    cluster: &'a str,
    stored: &'a str,
    incarnation: i64,
}

/// What another process may not have counted when it drew a new incarnation.
async fn count_unless_counted(
    conn: &Conn,
    traces: &[Trace],
    missing: &[usize],
) -> Result<(), Fault> {
    let (until, span) = extent(traces, missing, kept(conn, traces, missing).await?);
    let Some(until) = until else {
        tracing::warn!(
            "another server has given the store a new incarnation; nothing that was acknowledged to this one is missing"
        );
        return Ok(());
    };
    let counted = count(conn, &format!("{COUNT_LOSS} {UNLESS_COUNTED}"), until, span).await?;
    let entities = entities(traces, missing);
    if counted {
        tracing::error!(
            %until, ?span, ?entities,
            "acknowledged history is missing from the database: another server has given the store a new incarnation and counted \
             no loss, this one has counted it"
        );
    } else {
        tracing::warn!(
            %until, ?span, ?entities,
            "acknowledged history is missing from the database: another server has counted it and given the store a new incarnation"
        );
    }
    Ok(())
}

/// Counts a loss; says whether it did.
async fn count(conn: &Conn, sql: &str, until: Timestamp, span: Duration) -> Result<bool, Fault> {
    let micros = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
    let values: [&(dyn ToSql + Sync); 3] = [&HISTORY_LOST, &micros, &until.as_micros()];
    Ok(conn.client.execute(sql, &values).await? > 0)
}

fn entities(traces: &[Trace], missing: &[usize]) -> Vec<Uuid> {
    missing.iter().map(|i| traces[*i].entity).collect()
}

/// When the last record was written that is there and older than what is missing.
async fn kept(
    conn: &Conn,
    traces: &[Trace],
    missing: &[usize],
) -> Result<Option<Timestamp>, Fault> {
    let Some(until) = missing.iter().map(|i| traces[*i].at).max() else { return Ok(None) };
    let row = conn.client.query_one(KEPT, &[&until.as_micros()]).await?;
    Ok(get::<Option<i64>>(&row, 0)?.map(Timestamp::from_micros))
}

/// Up to when acknowledged batches are missing, and how long before that the last one was written that is there.
fn extent(
    traces: &[Trace],
    missing: &[usize],
    newest: Option<Timestamp>,
) -> (Option<Timestamp>, Duration) {
    let Some(until) = missing.iter().map(|i| traces[*i].at).max() else {
        return (None, Duration::ZERO);
    };
    let there = traces.iter().enumerate().filter(|(i, _)| !missing.contains(i)).map(|(_, t)| t.at);
    // Others may have written on the new timeline already: that says nothing about what survived.
    let kept = there.chain(newest).filter(|at| *at < until).max();
    (Some(until), kept.map_or(Duration::ZERO, |at| until.since(at)))
}

/// The places of those that are not part of the history.
async fn missing(conn: &Conn, traces: &[Trace]) -> Result<Vec<usize>, Fault> {
    if traces.is_empty() {
        return Ok(Vec::new());
    }
    let column = |of: fn(&Trace) -> i64| traces.iter().map(of).collect::<Vec<i64>>();
    let entities: Vec<Uuid> = traces.iter().map(|t| t.entity).collect();
    let chains: Vec<Option<&[u8]>> =
        traces.iter().map(|t| t.chain.as_ref().map(|c| &c.0[..])).collect();
    let (versions, mail, txs) = (column(|t| t.version), column(|t| t.mail), column(|t| t.tx));
    let found = conn.client.query(MISSING, &[&entities, &versions, &mail, &chains, &txs]).await?;
    let place = |row| Ok(usize::try_from(rows::count(row, 0)?.saturating_sub(1)).unwrap_or(0));
    found.iter().map(place).collect()
}

async fn newest(conn: &Conn) -> Result<Option<Trace>, Fault> {
    let statement = conn.prepare(NEWEST).await?;
    let found = conn.client.query(&statement, &[]).await?;
    let Some(row) = found.first() else { return Ok(None) };
    let chain = Some(Hash(get::<&[u8]>(row, 2)?.try_into().map_err(rows::corrupt)?));
    let (entity, version, tx) = (get(row, 0)?, get(row, 1)?, get(row, 3)?);
    Ok(Some(Trace { entity, version, mail: 0, chain, tx, at: rows::time(row, 4)? }))
}

fn no_store(e: tokio_postgres::Error) -> Fault {
    match e.code() {
        Some(&SqlState::UNDEFINED_TABLE) => {
            let why =
                "there is no store in this database any more; restore it, or correct store.url";
            StoreError::Unavailable(why.to_owned()).into()
        }
        _ => e.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(n: u128, at: i64) -> Trace {
        let entity = Uuid::from_u128(n);
        Trace { entity, version: 1, mail: 0, chain: None, tx: 1, at: Timestamp::from_micros(at) }
    }

    fn remembers(past: &[i64], traces: usize) -> State {
        State {
            cluster: "sys/1".into(),
            incarnation: 7,
            past: past.to_vec(),
            acknowledged: (0..traces).map(|n| trace(n as u128, 0)).collect(),
            ..State::default()
        }
    }

    #[test]
    fn what_a_new_connection_finds_decides_about_the_incarnation() {
        let some = remembers(&[5], 3);
        for (cluster, stored, incarnation, missing, finding) in [
            ("sys/1", "sys/1", 7, 0, Finding::Same),
            ("sys/2", "sys/1", 7, 0, Finding::Promoted),
            // Another process has noted it.
            ("sys/2", "sys/2", 7, 0, Finding::Promoted),
            ("sys/2", "sys/1", 7, 1, Finding::Lost),
            // Another process remembers nothing that is missing, and has noted the timeline.
            ("sys/2", "sys/2", 7, 1, Finding::Lost),
            // A copy of the files from before, on the same timeline.
            ("sys/1", "sys/1", 7, 1, Finding::Lost),
            ("sys/2", "sys/2", 8, 3, Finding::Replaced),
            // The loss undid an earlier new incarnation.
            ("sys/3", "sys/1", 5, 0, Finding::Lost),
            // To be taken over by a server that starts, whatever else is to be seen.
            ("other/1", "sys/1", 7, 0, Finding::Elsewhere),
            ("other/1", "sys/1", 7, 3, Finding::Elsewhere),
            ("other/1", "sys/1", 8, 0, Finding::Elsewhere),
            // One has done so.
            ("other/1", "other/1", 8, 0, Finding::Replaced),
        ] {
            let found = some.judge(cluster, stored, incarnation, missing);
            assert_eq!(found, finding, "{cluster} {stored} {incarnation} {missing}");
        }
        let nothing = remembers(&[], 0);
        assert_eq!(nothing.judge("sys/1", "sys/1", 7, 0), Finding::Same);
        assert_eq!(nothing.judge("sys/2", "sys/1", 7, 0), Finding::Lost, "nothing to compare");
    }

    #[test]
    fn a_new_incarnation_forgets_and_a_promotion_does_not() {
        let mut state = remembers(&[], 2);
        state.begin("sys/2", 7);
        assert_eq!((state.traces().len(), &state.past[..]), (2, &[][..]));
        state.begin("sys/2", 9);
        assert_eq!((state.traces().len(), &state.past[..]), (0, &[7][..]));
        state.begin("sys/3", 7);
        assert_eq!(state.past, [9]);
    }

    #[test]
    fn the_extent_of_a_loss_ends_with_the_last_batch_that_is_missing() {
        let traces = [trace(1, 1_000), trace(2, 5_000), trace(3, 9_000)];
        let at = Timestamp::from_micros;
        let span = Duration::from_micros;
        assert_eq!(extent(&traces, &[1, 2], None), (Some(at(9_000)), span(8_000)));
        assert_eq!(extent(&traces, &[1, 2], Some(at(3_000))), (Some(at(9_000)), span(6_000)));
        assert_eq!(extent(&traces, &[1, 2], Some(at(99_000))), (Some(at(9_000)), span(8_000)));
        assert_eq!(extent(&traces, &[], Some(at(1))), (None, Duration::ZERO));
    }
}
