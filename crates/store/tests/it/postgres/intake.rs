//! Rows of the intake: who may be taken, and what one of them does to the others.

use super::db::TestDb;
use tenure_kernel::ids::EntityId;
use tenure_store::postgres::{Intake, Taken};

fn flows(taken: &Taken<'_>) -> Vec<String> {
    let mut flows: Vec<_> = taken.rows.iter().filter_map(|r| r.flow.clone()).collect();
    flows.sort();
    flows
}

fn ids(taken: &Taken<'_>) -> Vec<EntityId> {
    taken.rows.iter().map(|r| r.id).collect()
}

#[tokio::test]
async fn a_row_that_can_not_be_read_is_left_for_later_and_the_others_are_taken() {
    let db = TestDb::new().await;
    drop(db.store().await);
    // Sizes are measured at the door, so it takes a trick: options that refuse to be read.
    let spoilt = "CREATE TYPE picky AS (bad boolean);
        CREATE FUNCTION told(picky) RETURNS text LANGUAGE plpgsql AS $$
        BEGIN
            IF ($1).bad THEN
                RAISE EXCEPTION 'not this one';
            END IF;
            RETURN '{}';
        END $$;
        CREATE CAST (picky AS text) WITH FUNCTION told(picky);
        DROP TRIGGER wish_is_measured ON intake;
        ALTER TABLE intake DROP COLUMN options, ADD COLUMN options picky;
        INSERT INTO intake (id, at, tenant, asked_by, flow, input, input_bytes, options)
            SELECT new_id(), moment(), 'default', 'me', 'f' || n, '1', 1, ROW(n = 2)::picky
            FROM generate_series(1, 3) n";
    db.plain.batch_execute(spoilt).await.unwrap();
    let intake = Intake::new(&db.url, &db.options()).unwrap();
    let taken = intake.take(10, 100).await.unwrap();
    assert_eq!((flows(&taken), taken.more), (vec!["f1".into(), "f3".into()], false));
    let done = ids(&taken);
    taken.settle(&done, &[]).await.unwrap();
    let later = "SELECT count(*) FROM intake WHERE flow = 'f2' AND tries = 1 AND not_before > at";
    assert_eq!((db.ask("SELECT count(*) FROM intake").await, db.ask(later).await), (1, 1));
    let taken = intake.take(10, 100).await.unwrap();
    assert!(taken.rows.is_empty(), "its turn has not come again");
}

#[tokio::test]
async fn a_page_is_full_by_number_or_by_size_and_says_that_there_is_more() {
    let db = TestDb::new().await;
    drop(db.store().await);
    let submit = |bytes: u64, times: u32| {
        format!(
            "SELECT count(submit('f', to_jsonb(repeat('x', {bytes} - 2)))) FROM generate_series(1, {times})"
        )
    };
    let intake = Intake::new(&db.url, &db.options()).unwrap();
    db.ask(&submit(10, 3)).await;
    for (limit, count, more) in [(4, 3, false), (3, 3, true), (2, 2, true)] {
        let taken = intake.take(limit, 100).await.unwrap();
        assert_eq!((taken.rows.len(), taken.more), (count, more), "{limit}");
    }
    db.plain.execute("DELETE FROM intake", &[]).await.unwrap();
    // Five of eight megabytes: four are as much as is read at once.
    db.ask(&submit(8 * 1024 * 1024, 5)).await;
    let taken = intake.take(200, 16 * 1024 * 1024).await.unwrap();
    assert_eq!((taken.rows.len(), taken.more), (4, true));
    let done = ids(&taken);
    taken.settle(&done, &[]).await.unwrap();
    let taken = intake.take(200, 16 * 1024 * 1024).await.unwrap();
    assert_eq!((taken.rows.len(), taken.more), (1, false));
    drop(taken);
    // What is larger than was asked for weighs nothing.
    let taken = intake.take(200, 1024).await.unwrap();
    assert_eq!((taken.rows.len(), taken.rows[0].input.clone()), (1, None));
}

#[tokio::test]
async fn what_waited_before_wishes_were_measured_is_measured_by_the_migration() {
    let db = TestDb::new().await;
    drop(db.store().await);
    // As it was before: nothing measured, nothing dropped.
    let before = "DROP TRIGGER wish_is_measured ON intake;
        ALTER TABLE intake DROP COLUMN input_bytes;
        DROP FUNCTION measure_wish(); DROP FUNCTION text_bytes(jsonb); DROP FUNCTION same_number(numeric, numeric);
        DROP FUNCTION same_json(jsonb, jsonb, integer);
        UPDATE meta SET schema_version = 5;
        INSERT INTO intake (id, at, tenant, asked_by, flow, input, options) VALUES
            (new_id(), moment(), 'default', 'me', 'small', '1', '{}'),
            (new_id(), moment(), 'default', 'me', 'large', (SELECT jsonb_agg(1e131000) FROM generate_series(1, 200)), '{}')";
    db.plain.batch_execute(before).await.unwrap();
    drop(db.store().await);
    let intake = Intake::new(&db.url, &db.options()).unwrap();
    let taken = intake.take(10, 16 * 1024 * 1024).await.unwrap();
    let mut inputs: Vec<_> =
        taken.rows.iter().map(|r| (r.flow.as_deref().unwrap(), r.input.as_deref())).collect();
    inputs.sort_unstable();
    assert_eq!(inputs, [("large", None), ("small", Some("1"))]);
}
