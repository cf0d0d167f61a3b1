//! Several servers on one database.

use super::db::{TestDb, birth, commit_id, committed, connect, done, entity, must, note, op};
use futures_util::future::join_all;
use std::{collections::HashSet, time::Duration};
use tenure_kernel::{
    claims::{ClaimRequest, Probe},
    commit::{CommitAnswer, Refusal, UniqueKey},
    ids::EntityId,
    mail::{MailAnswer, NewMail},
    store::{Answer, Op, Store},
    stream::{Body, Hash},
    time::Timestamp,
};

fn claims(limit: usize, floor: Timestamp) -> ClaimRequest {
    let probe = Probe { priority: 0, tenant: "acme".into(), floor, want: limit };
    ClaimRequest {
        id: commit_id(),
        session: entity(),
        lease: Duration::from_secs(15),
        queue: "main".into(),
        probes: vec![probe],
        limit,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_of_two_servers_in_opposite_order_do_not_deadlock() {
    let db = TestDb::new().await;
    let stores = [db.store().await, db.store().await];
    let ids: Vec<EntityId> = (0..40).map(|_| entity()).collect();
    let births = ids.iter().map(|id| op(birth(*id, None))).collect();
    committed(stores[0].apply(births).await.unwrap());
    let rounds = stores.iter().enumerate().map(|(n, store)| {
        let ids = &ids;
        async move {
            for round in 0..20 {
                let mail = |id: &EntityId| {
                    let id_text = format!("{n}/{round}");
                    let mail_id = tenure_kernel::ids::MailId(id_text);
                    let body = Body::Inline(vec![1]);
                    Op::Mail(NewMail { to: *id, id: mail_id, kind: "hello".into(), body })
                };
                let mut left: Vec<Op> = ids.iter().map(mail).collect();
                if n == 1 {
                    left.reverse();
                }
                // What the other one has locked comes again, as in the pipeline.
                while !left.is_empty() {
                    let answers = store.apply(left.clone()).await.unwrap();
                    let pairs = left.into_iter().zip(answers);
                    left = pairs.filter(|(_, a)| *a == Answer::Busy).map(|(op, _)| op).collect();
                }
            }
        }
    });
    join_all(rounds).await;
    for id in &ids {
        assert_eq!(stores[0].head(*id).await.unwrap().unwrap().mail_count, 40);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_equal_submissions_creates_and_the_others_learn_who() {
    let db = TestDb::new().await;
    let stores = [db.store().await, db.store().await];
    for round in 0..10 {
        let submit = |n: usize| {
            let mut commit = birth(entity(), None);
            commit.keys =
                vec![UniqueKey { key: format!("job/{round}"), digest: Hash::of(b"same") }];
            stores[n % 2].apply(vec![op(commit)])
        };
        let answers: Vec<Answer> =
            join_all((0..6).map(submit)).await.into_iter().flat_map(Result::unwrap).collect();
        let created =
            answers.iter().filter(|a| matches!(a, Answer::Commit(CommitAnswer::Committed(_))));
        assert_eq!(created.count(), 1, "{answers:?}");
        let others: HashSet<EntityId> = answers
            .iter()
            .filter_map(|a| match a {
                Answer::Commit(CommitAnswer::Exists { entity, same: true }) => Some(*entity),
                _ => None,
            })
            .collect();
        assert_eq!(others.len(), 1, "{answers:?}");
    }
}

#[tokio::test]
async fn a_head_that_somebody_else_has_locked_is_busy_and_not_waited_for() {
    let db = TestDb::new().await;
    let store = db.store().await;
    let (held, free) = (entity(), entity());
    let session = entity();
    let at = must(&store, birth(held, Some(session))).await;
    let other = must(&store, birth(free, Some(session))).await;
    db.plain.batch_execute("BEGIN").await.unwrap();
    let lock = "SELECT 1 FROM heads WHERE id = $1 FOR UPDATE";
    db.plain.query(lock, &[&held.uuid()]).await.unwrap();
    let answers =
        store.apply(vec![op(note(held, &at, "x")), op(note(free, &other, "x"))]).await.unwrap();
    assert_eq!(answers[0], Answer::Commit(CommitAnswer::Busy));
    assert!(matches!(answers[1], Answer::Commit(CommitAnswer::Committed(_))));
    // A birth under a locked id is not an absence either.
    let answers = store.apply(vec![op(birth(held, None))]).await.unwrap();
    assert_eq!(answers[0], Answer::Commit(CommitAnswer::Busy));
    db.plain.batch_execute("ROLLBACK").await.unwrap();
    must(&store, note(held, &at, "x")).await;
}

#[tokio::test]
async fn a_row_that_the_database_refuses_leaves_its_neighbours_alone() {
    let db = TestDb::new().await;
    let store = db.store().await;
    let guard = "ALTER TABLE records ADD CONSTRAINT planted CHECK (position('bad' IN encode(bytes, 'escape')) = 0)";
    db.plain.batch_execute(guard).await.unwrap();
    let (good, bad, session) = (entity(), entity(), entity());
    let at = must(&store, birth(good, Some(session))).await;
    let bad_at = must(&store, birth(bad, Some(session))).await;
    let answers = store
        .apply(vec![
            op(note(good, &at, "fine")),
            op(note(bad, &bad_at, "bad")),
            op(birth(entity(), None)),
        ])
        .await
        .unwrap();
    assert!(matches!(answers[0], Answer::Commit(CommitAnswer::Committed(_))), "{answers:?}");
    let Answer::Commit(CommitAnswer::Refused(Refusal::Constraint(why))) = &answers[1] else {
        panic!("{answers:?}");
    };
    assert!(why.contains("planted"), "{why}");
    assert!(matches!(answers[2], Answer::Commit(CommitAnswer::Committed(_))), "{answers:?}");
    assert_eq!(store.head(bad).await.unwrap().unwrap().version, 1);
    // Text that Postgres cannot hold is refused before it reaches Postgres.
    let mut commit = birth(entity(), None);
    commit.keys = vec![UniqueKey { key: "a\0b".into(), digest: Hash::of(b"") }];
    let answers = store.apply(vec![op(commit), op(birth(entity(), None))]).await.unwrap();
    let refused =
        |a: &Answer| matches!(a, Answer::Commit(CommitAnswer::Refused(Refusal::NotAdmitted(_))));
    assert!(refused(&answers[0]) && !refused(&answers[1]), "{answers:?}");
}

#[tokio::test]
async fn the_database_itself_guards_final_heads_and_epochs() {
    let db = TestDb::new().await;
    let store = db.store().await;
    let id = entity();
    let at = must(&store, birth(id, Some(entity()))).await;
    must(&store, done(id, &at)).await;
    let code = |e: tokio_postgres::Error| e.code().unwrap().code().to_owned();
    let update = "UPDATE heads SET version = version + 1";
    assert_eq!(code(db.plain.execute(update, &[]).await.unwrap_err()), "TN001");
    must(&store, birth(entity(), None)).await;
    for back in ["version = version - 1", "epoch = epoch - 1"] {
        let update = format!("UPDATE heads SET {back} WHERE class <> 2");
        let refused = code(db.plain.execute(&update, &[]).await.unwrap_err());
        assert!(["TN002", "23514"].contains(&&*refused), "{refused}");
    }
    let update = "UPDATE heads SET due = NULL WHERE class = 0";
    assert_eq!(code(db.plain.execute(update, &[]).await.unwrap_err()), "23514");
}

#[tokio::test]
async fn mail_is_the_answer_of_the_first_time() {
    let db = TestDb::new().await;
    let store = db.store().await;
    let id = entity();
    must(&store, birth(id, None)).await;
    let mail = || {
        let body = Body::Inline(b"hi".to_vec());
        Op::Mail(NewMail {
            to: id,
            id: tenure_kernel::ids::MailId("m".into()),
            kind: "hello".into(),
            body,
        })
    };
    let first = store.apply(vec![mail(), mail()]).await.unwrap();
    assert_eq!(first[0], Answer::Mail(MailAnswer::Accepted { seq: 1, holder: None }));
    assert_eq!(first[1], Answer::Mail(MailAnswer::Duplicate));
    assert_eq!(store.apply(vec![mail()]).await.unwrap()[0], Answer::Mail(MailAnswer::Duplicate));
    let claimed = store.claim(claims(5, Timestamp::ZERO)).await.unwrap();
    assert_eq!(claimed.found, [1]);
    assert_eq!(claimed.claimed[0].mail.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_ready_entity_is_claimed_once_by_a_crowd() {
    let db = TestDb::new().await;
    let stores = [db.store().await, db.store().await];
    let births = (0..300).map(|_| op(birth(entity(), None))).collect();
    committed(stores[0].apply(births).await.unwrap());
    assert_eq!(stores[1].ready_groups("main", None).await.unwrap(), [(0, "acme".to_owned())]);
    let crowd = (0..6).map(|n| {
        let store = &stores[n % 2];
        async move {
            let mut mine = Vec::new();
            loop {
                let answer = store.claim(claims(7, Timestamp::ZERO)).await.unwrap();
                assert_eq!(answer.found.iter().sum::<usize>(), answer.claimed.len());
                if answer.claimed.is_empty() {
                    return mine;
                }
                mine.extend(answer.claimed.into_iter().map(|c| c.head.id));
            }
        }
    });
    let claimed: Vec<EntityId> = join_all(crowd).await.into_iter().flatten().collect();
    assert_eq!(claimed.len(), 300);
    assert_eq!(claimed.iter().collect::<HashSet<_>>().len(), 300);
    assert_eq!(db.ask("SELECT count(*) FROM ready").await, 0);
    assert_eq!(stores[0].ready_groups("main", None).await.unwrap(), []);
}

#[tokio::test]
async fn a_group_that_comes_up_twice_gives_what_the_others_left() {
    let db = TestDb::new().await;
    let store = db.store().await;
    committed(store.apply((0..5).map(|_| op(birth(entity(), None))).collect()).await.unwrap());
    let mut request = claims(4, Timestamp::ZERO);
    let probe = |tenant: &str, want| Probe {
        priority: 0,
        tenant: tenant.into(),
        floor: Timestamp::ZERO,
        want,
    };
    request.probes = vec![probe("acme", 2), probe("none", 2), probe("acme", 4), probe("none", 4)];
    let answer = store.claim(request).await.unwrap();
    assert_eq!(answer.found, [2, 0, 2]);
    assert_eq!(answer.claimed.len(), 4);
}

/// Buffers that a probe from this floor touches.
async fn probe_cost(db: &TestDb, floor: Timestamp) -> i64 {
    let explain = format!(
        "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON, TIMING OFF) SELECT entity FROM ready WHERE queue = 'main' \
         AND priority = 0 AND tenant = 'acme' AND ready_at >= {} ORDER BY ready_at, entity LIMIT 1",
        floor.as_micros()
    );
    let text = db.plain.simple_query(&explain).await.unwrap();
    let json = text
        .iter()
        .filter_map(|m| match m {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        })
        .collect::<String>();
    let plan: serde_json::Value = serde_json::from_str(&json).unwrap();
    let plan = &plan[0]["Plan"];
    plan["Shared Hit Blocks"].as_i64().unwrap() + plan["Shared Read Blocks"].as_i64().unwrap()
}

#[tokio::test]
async fn the_floor_keeps_claims_cheap_under_an_old_snapshot() {
    let db = TestDb::new().await;
    let store = db.store().await;
    let backup = connect(&db.url).await;
    let snapshot = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT txid_current_snapshot()";
    backup.batch_execute(snapshot).await.unwrap();
    let mut floor = Timestamp::ZERO;
    for _ in 0..10 {
        committed(
            store.apply((0..200).map(|_| op(birth(entity(), None))).collect()).await.unwrap(),
        );
        let claimed = store.claim(claims(200, floor)).await.unwrap().claimed;
        assert_eq!(claimed.len(), 200);
        floor = claimed.iter().map(|c| c.ready_at).max().unwrap();
    }
    let (from_zero, from_floor) =
        (probe_cost(&db, Timestamp::ZERO).await, probe_cost(&db, floor).await);
    assert!(from_floor * 4 < from_zero, "from the floor {from_floor}, from zero {from_zero}");
    backup.batch_execute("ROLLBACK").await.unwrap();
}

#[tokio::test]
async fn no_index_of_heads_has_a_column_that_changes_with_every_step() {
    let db = TestDb::new().await;
    drop(db.store().await);
    // Columns of keys, expressions and predicates alike: a change in any of them is not HOT.
    let columns = "SELECT DISTINCT a.attname::text FROM pg_index i
        JOIN pg_depend d ON d.objid = i.indexrelid AND d.refobjid = i.indrelid
        JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = d.refobjsubid
        WHERE i.indrelid = 'heads'::regclass ORDER BY 1";
    let rows = db.plain.query(columns, &[]).await.unwrap();
    let found: Vec<String> = rows.iter().map(|r| r.get(0)).collect();
    // `id` is a primary key, whose dependency is the constraint's.
    let fixed = ["id", "kind", "lane", "tenant"];
    let late = ["attention", "due", "ended_as", "ended_at", "sealed", "vacant_since"];
    let mut expected = [&fixed[..], &late].concat();
    expected.sort_unstable();
    assert_eq!(found, expected);
}
