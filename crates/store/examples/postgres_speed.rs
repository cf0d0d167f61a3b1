//! How fast the Postgres store is, beside plain inserts of the same bytes.
//!
//! `./check with -- cargo run --release -p tenure-store --example postgres_speed [CALLERS [IN_FLIGHT]]`
//!
//! Plain: rows (id, number, bytes) with a primary key, one statement per batch, committed durably. Ours:
//! a three-event commit of a held entity per row. Both sides carry `CALLERS` rows in `IN_FLIGHT` batches.

use futures_util::future::join_all;
use std::time::Duration;
use tenure_edge::TokioRuntime;
use tenure_kernel::{
    commit::{Birth, Commit, CommitAnswer, Committed, Expect, TenureChange},
    ids::{CommitId, EntityId},
    judge::Judge,
    runtime::{Clock as _, Runtime as _},
    store::{Answer, Op, Store},
    stream::{Body, NewEvent},
    table::{BIRTH, Claimable, Class, Move, SAME, StatusRow, Table, Tables},
};
use tenure_store::postgres::{PostgresOptions, PostgresStore};
use tokio_postgres::{Client, NoTls};

static JOB: Table = Table {
    kind: "job",
    doc: "",
    statuses: &[
        StatusRow { name: "running", class: Class::Open, claimable: Claimable::No, doc: "" },
        StatusRow { name: "done", class: Class::Final, claimable: Claimable::No, doc: "" },
    ],
    moves: &[
        Move { from: BIRTH, event: "started", to: "running" },
        Move { from: &["running"], event: "step", to: SAME },
    ],
    forced: "done",
};

const SECONDS: u64 = 5;
const EVENTS: usize = 3;

fn body() -> Vec<u8> {
    b"{\"step\":\"fetch\",\"tool\":\"http\",\"args\":{\"url\":\"https://example.org/a/b/c\"},\"ok\":true,\"n\":12}".to_vec()
}

fn id(rt: &TokioRuntime) -> EntityId {
    let mut random = [0; 10];
    random[..8].copy_from_slice(&rt.random().to_be_bytes());
    EntityId::new(tenure_edge::SystemClock.now(), random)
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("Postgres");
    #[expect(clippy::disallowed_methods, reason = "an example's own connection")]
    tokio::spawn(connection);
    client
}

/// Rows per second and the mean time of a batch.
fn show(what: &str, rows: usize, batches: usize, in_flight: usize, took: Duration) -> f64 {
    let rate = rows as f64 / took.as_secs_f64();
    let each = took.as_secs_f64() * 1e3 * in_flight as f64 / batches as f64;
    println!("{what:<28} {rate:>9.0} rows/s  {each:>7.3} ms a batch");
    rate
}

async fn plain(url: &str, rt: &TokioRuntime, callers: usize, in_flight: usize, size: usize) -> f64 {
    let setup = connect(url).await;
    let create = "DROP TABLE IF EXISTS plain; CREATE TABLE plain (id uuid, n bigint, bytes bytea, PRIMARY KEY (id, n))";
    setup.batch_execute(create).await.expect("a table");
    let start = rt.mono();
    let one = |_| async {
        let client = connect(url).await;
        let insert =
            "INSERT INTO plain SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::bytea[])";
        let statement = client.prepare(insert).await.expect("prepared");
        let each = callers / in_flight;
        let ids: Vec<_> = (0..each).map(|_| id(rt).uuid()).collect();
        let bytes = vec![vec![7u8; size]; each];
        let mut n = 0_i64;
        while rt.mono() - start < Duration::from_secs(SECONDS) {
            n += 1;
            let numbers = vec![n; each];
            client.execute(&statement, &[&ids, &numbers, &bytes]).await.expect("inserted");
        }
        usize::try_from(n).unwrap_or(0)
    };
    let batches: usize = join_all((0..in_flight).map(one)).await.into_iter().sum();
    let rows = batches * (callers / in_flight);
    show("plain inserts", rows, batches, in_flight, rt.mono() - start)
}

fn step(rt: &TokioRuntime, entity: EntityId, at: &Committed) -> Op {
    let events = (0..EVENTS).map(|_| NewEvent::new("step", Body::Inline(body()))).collect();
    let expect = Expect::Holder { epoch: at.epoch, version: at.version };
    let mut commit = Commit::new(CommitId::new(rt.random(), rt.random()), entity, expect, events);
    commit.state = Some(format!("{{\"at\":{},\"open\":[],\"waits\":[1,2,3]}}", at.version).into());
    Op::Commit(Box::new(commit))
}

fn committed(answers: Vec<Answer>) -> Vec<Committed> {
    let one = |a| match a {
        Answer::Commit(CommitAnswer::Committed(c)) => c,
        other => panic!("{other:?}"),
    };
    answers.into_iter().map(one).collect()
}

async fn ours(store: &PostgresStore, rt: &TokioRuntime, callers: usize, in_flight: usize) -> f64 {
    let births = |n: usize| {
        let session = id(rt);
        let one = |_| {
            let birth = Birth { kind: "job", tenant: "t".into(), queue: "q".into(), priority: 0 };
            let events = vec![NewEvent::new("started", Body::Inline(body()))];
            let name = CommitId::new(rt.random(), rt.random());
            let mut c = Commit::new(name, id(rt), Expect::Absent(birth), events);
            c.must_end_in = Some(Duration::from_secs(3600));
            c.tenure = TenureChange::Take { session, lease: Duration::from_secs(15) };
            c
        };
        (0..n).map(one).collect::<Vec<Commit>>()
    };
    let start = std::sync::OnceLock::new();
    let one = |_| async {
        let births = births(callers / in_flight);
        let ids: Vec<EntityId> = births.iter().map(|c| c.entity).collect();
        let ops = births.into_iter().map(|c| Op::Commit(Box::new(c))).collect();
        let mut at = committed(store.apply(ops).await.expect("born"));
        let start = *start.get_or_init(|| rt.mono());
        let mut n = 0;
        while rt.mono() - start < Duration::from_secs(SECONDS) {
            let ops = ids.iter().zip(&at).map(|(id, at)| step(rt, *id, at)).collect();
            at = committed(store.apply(ops).await.expect("committed"));
            n += 1;
        }
        n
    };
    let batches: usize = join_all((0..in_flight).map(one)).await.into_iter().sum();
    let took = rt.mono() - start.get().copied().unwrap_or_default();
    show("commits of three events", batches * (callers / in_flight), batches, in_flight, took)
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let url = std::env::var("TENURE_TEST_POSTGRES")
        .expect("TENURE_TEST_POSTGRES is not set: run this with ./check with --");
    let mut args = std::env::args().skip(1).map(|a| a.parse::<usize>().expect("a number"));
    let (callers, in_flight) = (args.next().unwrap_or(500), args.next().unwrap_or(2));
    let rt = TokioRuntime::current();
    let mut tables = Tables::default();
    tables.insert(&JOB);
    let options = PostgresOptions::new(1).schema("speed");
    let store = PostgresStore::connect(&url, Judge::new(tables), options).await.expect("a store");
    let size = EVENTS * (body().len() + 12) + 4;
    let raw = plain(&url, &rt, callers, in_flight, size).await;
    let own = ours(&store, &rt, callers, in_flight).await;
    println!("{callers} callers, {in_flight} in flight, {size} bytes: {:.2} of plain", own / raw);
}
