//! One batch, one transaction, two round trips: lock and load, decide, write and commit.
//!
//! What can go wrong, and what is done:
//! - another batch was faster (a row count is not what it should be), or Postgres broke a deadlock:
//!   nothing was written, the batch runs again, a few times;
//! - the connection broke before COMMIT was sent: the same, on another connection;
//! - it broke after that: nobody knows, the whole call is indeterminate;
//! - the database refused a row, which the kernel should have done: nothing was written, and every
//!   operation runs alone, so that only the guilty one is refused and its neighbours are committed.

use super::{
    Inner, error::Fault, known, load, pool::Conn, rows, rows::record_columns, write, write::Ground,
};
use std::{collections::HashMap, sync::Arc};
use tenure_kernel::{
    batch::{needs, plan, settle_repeat, suspected_repeats},
    error::StoreError,
    head::Head,
    ids::EntityId,
    store::{Answer, Op},
    stream::Record,
};
use uuid::Uuid;

/// How often a batch is run before the caller is told that it did not work.
const TRIES: u32 = 8;

const RECORDS_AT: &str = concat!(
    "SELECT ",
    record_columns!(),
    " FROM unnest($1::uuid[], $2::bigint[]) AS n(entity, first)
    JOIN records r ON r.entity = n.entity AND r.first = n.first"
);

/// Runs a batch.
pub(super) async fn apply(store: &Inner, ops: Arc<Vec<Op>>) -> Result<Vec<Answer>, StoreError> {
    if ops.is_empty() {
        return Ok(Vec::new());
    }
    if let Some(answers) = known::apply(store, &ops).await? {
        return Ok(answers);
    }
    match run(store, &ops).await {
        Ok(answers) => Ok(answers),
        Err(Fault::Constraint(why)) => {
            tracing::error!(why, ops = ops.len(), "the database refused what the kernel allowed");
            isolate(store, &ops, why).await
        }
        Err(fault) => Err(fault.into_store()),
    }
}

/// Runs every operation alone.
async fn isolate(store: &Inner, ops: &[Op], why: String) -> Result<Vec<Answer>, StoreError> {
    if let [op] = ops {
        return match tenure_kernel::batch::refused_by_the_database(op, &why) {
            Some(answer) => Ok(vec![answer]),
            None => Err(StoreError::refused_by_database(why)),
        };
    }
    let mut answers = Vec::with_capacity(ops.len());
    for (i, op) in ops.iter().enumerate() {
        let alone = match run(store, std::slice::from_ref(op)).await {
            Ok(mut one) => one.pop(),
            // An operation whose answers have no word for this stays where it is: sent again alone, it
            // fails as an error.
            Err(Fault::Constraint(why)) => Some(
                tenure_kernel::batch::refused_by_the_database(op, &why).unwrap_or(Answer::Busy),
            ),
            // Some of the others are committed by now, so the call as a whole is neither.
            Err(fault) if i > 0 => {
                return Err(StoreError::Indeterminate(fault.into_store().to_string()));
            }
            Err(fault) => return Err(fault.into_store()),
        };
        answers.extend(alone);
    }
    Ok(answers)
}

/// Runs a batch until it is decided.
async fn run(store: &Inner, ops: &[Op]) -> Result<Vec<Answer>, Fault> {
    let mut tries = 0;
    loop {
        tries += 1;
        let loan = store.writers()?.lend().await?;
        match Box::pin(once(store, &loan.conn, ops, tries > 1)).await {
            Ok(answers) => {
                loan.give_back();
                return Ok(answers);
            }
            Err(Fault::Raced(_)) if tries < TRIES => loan.roll_back().await,
            // Dropped with its connection. A second loss in a row is an outage.
            Err(Fault::Disconnected(_)) if tries == 1 => {}
            Err(fault) => {
                loan.roll_back().await;
                return Err(fault);
            }
        }
    }
}

async fn once(store: &Inner, conn: &Conn, ops: &[Op], careful: bool) -> Result<Vec<Answer>, Fault> {
    let needs = needs(ops);
    let load = load::facts(conn, &store.judge, ops, &needs, careful);
    let mut facts = conn.in_time(Box::pin(load), Fault::unavailable).await?;
    store.known.heard(facts.now);
    let (mut answers, writes) = plan(&store.judge, &mut facts, ops);
    let suspects = suspected_repeats(ops, &answers);
    if !suspects.is_empty() {
        let found = conn.in_time(records_at(conn, &suspects), Fault::unavailable).await?;
        settle(store, ops, &mut answers, &suspects, &found, &facts.heads);
    }
    if writes.is_empty() {
        // Row locks leave a trace that COMMIT would wait for on disk; nothing is lost without it.
        let end = async { Ok(conn.client.batch_execute("ROLLBACK").await?) };
        conn.in_time(end, Fault::unavailable).await?;
    } else {
        let write = write::write_and_commit(conn, &writes, facts.now, Ground::Locked);
        let stamp = conn.in_time(Box::pin(write), Fault::indeterminate).await?;
        store.acknowledged(conn, &writes, stamp);
    }
    Ok(answers)
}

type Found = HashMap<(EntityId, u64), Record>;

async fn records_at(conn: &Conn, suspects: &[(usize, EntityId, u64)]) -> Result<Found, Fault> {
    let entities: Vec<Uuid> = suspects.iter().map(|s| s.1.uuid()).collect();
    let firsts: Vec<i64> = suspects.iter().map(|s| rows::big(s.2)).collect();
    let statement = conn.prepare(RECORDS_AT).await?;
    let found = conn.client.query(&statement, &[&entities, &firsts]).await?;
    let mut records = Found::new();
    for row in &found {
        let record = rows::record(row, 0)?;
        records.insert((record.entity, record.first), record);
    }
    Ok(records)
}

fn settle(
    store: &Inner,
    ops: &[Op],
    answers: &mut [Answer],
    suspects: &[(usize, EntityId, u64)],
    found: &Found,
    heads: &HashMap<EntityId, Head>,
) {
    for (i, entity, first) in suspects {
        if let Some(record) = found.get(&(*entity, *first)) {
            settle_repeat(&store.judge, &ops[*i], &mut answers[*i], record, heads.get(entity));
        }
    }
}
