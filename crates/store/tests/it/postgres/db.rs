//! A store in a schema of its own, and a small machine to fill it with.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};
use tenure_kernel::{
    commit::{Birth, Commit, CommitAnswer, Committed, Expect, MailStance, TenureChange},
    ids::{CommitId, EntityId, SessionId},
    judge::Judge,
    sessions::{LANE, WORKER},
    store::{Answer, Op, Store},
    stream::{Body, NewEvent},
    table::{BIRTH, Claimable, Class, Move, SAME, StatusRow, Table, Tables, kernel_events as ke},
    time::Timestamp,
};
use tenure_store::postgres::{PostgresOptions, PostgresStore};
use tokio_postgres::{Client, NoTls};

/// Queued, run, done.
pub static ERRAND: Table = Table {
    kind: "errand",
    doc: "Something to be done.",
    statuses: &[
        StatusRow {
            name: "queued",
            class: Class::Open,
            claimable: Claimable::Queued,
            doc: "Waits.",
        },
        StatusRow {
            name: "running",
            class: Class::Open,
            claimable: Claimable::No,
            doc: "Is held.",
        },
        StatusRow { name: "done", class: Class::Final, claimable: Claimable::No, doc: "Is over." },
    ],
    moves: &[
        Move { from: BIRTH, event: "queued", to: "queued" },
        Move { from: BIRTH, event: "started", to: "running" },
        Move { from: &["queued"], event: ke::CLAIMED, to: "running" },
        Move { from: &["running"], event: ke::TENURE_ENDED, to: "queued" },
        Move { from: &["queued", "running"], event: "noted", to: SAME },
        Move { from: &["queued", "running"], event: "done", to: "done" },
    ],
    forced: "done",
};

pub fn judge() -> Judge {
    let mut tables = Tables::default();
    for table in [&ERRAND, &WORKER, &LANE] {
        tables.insert(table);
    }
    Judge::new(tables)
}

pub fn url() -> String {
    std::env::var("TENURE_TEST_POSTGRES").expect(
        "TENURE_TEST_POSTGRES is not set: run the tests with ./check with -- cargo test -p tenure-store",
    )
}

static NUMBER: AtomicU64 = AtomicU64::new(1);

/// A number that nobody else in this process has.
pub fn number() -> u64 {
    NUMBER.fetch_add(1, Ordering::Relaxed)
}

/// A schema of the test's own, empty.
pub struct TestDb {
    pub url: String,
    pub schema: String,
    pub plain: Client,
}

impl TestDb {
    pub async fn new() -> Self {
        Self::at(url()).await
    }

    pub async fn at(url: String) -> Self {
        let plain = connect(&url).await;
        let schema = format!("t_{}_{}", std::process::id(), number());
        plain.batch_execute(&format!("DROP SCHEMA IF EXISTS {schema} CASCADE")).await.unwrap();
        plain.batch_execute(&format!("SET search_path = {schema}")).await.unwrap();
        TestDb { url, schema, plain }
    }

    pub fn options(&self) -> PostgresOptions {
        PostgresOptions::new(7).schema(&self.schema)
    }

    pub async fn store(&self) -> PostgresStore {
        PostgresStore::connect(&self.url, judge(), self.options()).await.unwrap()
    }

    /// One value of the first row.
    pub async fn ask(&self, sql: &str) -> i64 {
        self.plain.query_one(sql, &[]).await.unwrap().get(0)
    }
}

/// A connection beside the store's.
pub async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    #[expect(clippy::disallowed_methods, reason = "a test's own connection")]
    tokio::spawn(connection);
    client
}

/// An id as a program would draw it: of one moment, told apart by its end.
pub fn entity() -> EntityId {
    let mut random = [0; 10];
    random[2..].copy_from_slice(&number().to_be_bytes());
    EntityId::new(Timestamp::from_micros(1_700_000_000_000_000), random)
}

pub fn commit_id() -> CommitId {
    CommitId::new(u64::from(std::process::id()), number())
}

pub fn said(name: &'static str, text: &str) -> NewEvent {
    NewEvent::new(name, Body::Inline(text.as_bytes().to_vec()))
}

/// The birth of an errand: queued, or started by a session.
pub fn birth(entity: EntityId, held_by: Option<SessionId>) -> Commit {
    let birth = Birth { kind: "errand", tenant: "acme".into(), queue: "main".into(), priority: 0 };
    let event = if held_by.is_some() { "started" } else { "queued" };
    let mut commit =
        Commit::new(commit_id(), entity, Expect::Absent(birth), vec![said(event, "{}")]);
    commit.must_end_in = Some(Duration::from_secs(3600));
    if let Some(session) = held_by {
        commit.tenure = TenureChange::Take { session, lease: Duration::from_secs(15) };
    }
    commit
}

/// The holder's next note.
pub fn note(entity: EntityId, at: &Committed, text: &str) -> Commit {
    let expect = Expect::Holder { epoch: at.epoch, version: at.version };
    Commit::new(commit_id(), entity, expect, vec![said("noted", text)])
}

/// The holder's last word.
pub fn done(entity: EntityId, at: &Committed) -> Commit {
    let expect = Expect::Holder { epoch: at.epoch, version: at.version };
    let mut commit = Commit::new(commit_id(), entity, expect, vec![said("done", "{}")]);
    commit.mail = MailStance::Regardless;
    commit
}

pub fn op(commit: Commit) -> Op {
    Op::Commit(Box::new(commit))
}

/// The commits behind the answers; panics on anything else.
pub fn committed(answers: Vec<Answer>) -> Vec<Committed> {
    let one = |a| match a {
        Answer::Commit(CommitAnswer::Committed(c)) => c,
        other => panic!("not committed: {other:?}"),
    };
    answers.into_iter().map(one).collect()
}

/// Commits one thing that must succeed.
pub async fn must(store: &dyn Store, commit: Commit) -> Committed {
    committed(store.apply(vec![op(commit)]).await.unwrap()).remove(0)
}
