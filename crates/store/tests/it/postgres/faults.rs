//! Lost connections, killed servers, lost answers.

use super::db::{TestDb, birth, committed, entity, judge, must, note, number, op, url};
use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
};
use tenure_kernel::{
    commit::{Commit, CommitAnswer},
    error::StoreError,
    ids::EntityId,
    store::{Answer, Store},
};
use tenure_proving::patience;
use tenure_store::postgres::PostgresStore;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// Asks until the store answers, as the pipeline does, with the same commit id.
pub async fn persist(store: &dyn Store, commit: Commit) -> Answer {
    let mut answer = None;
    for _ in 0..200 {
        match store.apply(vec![op(commit.clone())]).await {
            Ok(mut answers) => {
                answer = answers.pop();
                break;
            }
            Err(e) => assert!(e.is_transient(), "{e:?}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    answer.expect("the store does not come back")
}

/// A database of the test's own, whose connections can be terminated while those of other tests stay.
pub async fn own_database() -> TestDb {
    let database = format!("t_{}_{}", std::process::id(), number());
    let create = format!("CREATE DATABASE {database}");
    TestDb::new().await.plain.batch_execute(&create).await.unwrap();
    let (server, _) = url().rsplit_once('/').map(|(s, d)| (s.to_owned(), d.to_owned())).unwrap();
    TestDb::at(format!("{server}/{database}")).await
}

#[tokio::test]
async fn a_terminated_connection_is_replaced() {
    let db = own_database().await;
    let store = db.store().await;
    let (id, session) = (entity(), entity());
    let mut at = must(&store, birth(id, Some(session))).await;
    store.now().await.unwrap();
    for _ in 0..3 {
        let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
            WHERE datname = current_database() AND application_name = 'tenure'";
        db.plain.query_one(kill, &[]).await.unwrap();
        let answer = persist(&store, note(id, &at, "still here")).await;
        at = committed(vec![answer]).remove(0);
        assert!(store.now().await.is_ok());
    }
    assert_eq!(store.head(id).await.unwrap().unwrap().version, 4);
}

/// A PostgreSQL of the test's own, to be killed.
pub struct OwnPostgres {
    ctl: String,
    dir: PathBuf,
    pub port: u16,
}

impl OwnPostgres {
    pub fn start() -> Self {
        OwnPostgres::start_with(None)
    }

    /// With TLS, by the files of a directory.
    pub fn start_with(tls: Option<&Path>) -> Self {
        OwnPostgres::make("start", tls)
    }

    /// A standby of this one.
    pub fn standby(&self) -> Self {
        OwnPostgres::make("standby", Some(&self.dir))
    }

    fn make(command: &str, with: Option<&Path>) -> Self {
        let ctl = std::env::var("TENURE_TEST_PG_CTL")
            .expect("TENURE_TEST_PG_CTL is not set: run the tests with ./check with -- cargo test");
        for _ in 0..20 {
            let dir = std::env::temp_dir().join(format!("pg-{}-{}", std::process::id(), number()));
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let own = OwnPostgres { ctl: ctl.clone(), dir, port };
            let with = with.map(|dir| dir.display().to_string());
            if own.run(command, &[port.to_string()].into_iter().chain(with).collect::<Vec<_>>()) {
                return own;
            }
        }
        panic!("no free port for a PostgreSQL");
    }

    pub fn run(&self, command: &str, more: &[String]) -> bool {
        let mut run = Command::new(&self.ctl);
        run.arg(command).arg(&self.dir).args(more);
        let out = run.output().unwrap();
        let taken = out.status.code() == Some(75);
        assert!(out.status.success() || taken, "{}", String::from_utf8_lossy(&out.stderr));
        out.status.success()
    }

    pub fn url(&self) -> String {
        format!("postgres://tenure@127.0.0.1:{}/tenure", self.port)
    }
}

impl Drop for OwnPostgres {
    fn drop(&mut self) {
        self.run("kill", &[]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_postgres_loses_nothing_that_was_answered() {
    let postgres = OwnPostgres::start();
    let db = TestDb::at(postgres.url()).await;
    let store = Arc::new(db.store().await);
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..4)
        .map(|_| {
            let (store, stop) = (store.clone(), stop.clone());
            let work = async move {
                let (id, session) = (entity(), entity());
                let answer = persist(&*store, birth(id, Some(session))).await;
                let mut at = committed(vec![answer]).remove(0);
                while !stop.load(Ordering::Relaxed) {
                    // Lost answers repeat; each note counts once.
                    let answer = persist(&*store, note(id, &at, "x")).await;
                    at = committed(vec![answer]).remove(0);
                }
                (id, at)
            };
            #[expect(clippy::disallowed_methods, reason = "a test's own task")]
            tokio::spawn(work)
        })
        .collect();
    let records = || async { db.plain.query_one("SELECT count(*) FROM records", &[]).await };
    patience::until("the writers write", async || records().await.unwrap().get::<_, i64>(0) > 50)
        .await;
    postgres.run("kill", &[]);
    assert!(postgres.run("start", &[postgres.port.to_string()]));
    patience::until("the store is back", async || store.now().await.is_ok()).await;
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        let (id, at): (EntityId, _) = writer.await.unwrap();
        let head = store.head(id).await.unwrap().unwrap();
        assert_eq!((head.version, head.chain), (at.version, at.chain));
        let stream = store.stream(id, 1, 100_000).await.unwrap();
        assert_eq!(stream.len() as u64, at.version);
    }
}

/// What a proxy does with the next message that has its mark, once.
const PASS: u8 = 0;
/// It goes through and its answer does not.
const CUT_BEHIND: u8 = 1;
/// It never arrives, as from a server that was stopped in the middle; the connection stays up.
const STOP_BEFORE: u8 = 2;

/// It goes through; neither its answer nor any later one does, and the connection stays up.
const MUTE: u8 = 3;

/// The mark of the end of a transaction of several statements.
const COMMIT: &[u8] = b"COMMIT\0";

/// Forwards to Postgres.
async fn proxy(next: Arc<AtomicU8>, mark: &'static [u8]) -> String {
    let target = url();
    let address = target.split(['@', '/']).find(|p| p.contains(':') && p.contains('.')).unwrap();
    let address = address.to_owned();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let url = target.replace(&address, &format!("127.0.0.1:{port}"));
    let serve = async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(&address).await.unwrap();
            let (next, pass) = (next.clone(), Arc::new(AtomicBool::new(true)));
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = server.into_split();
            let passes = pass.clone();
            let mute = Arc::new(AtomicBool::new(false));
            let muted = mute.clone();
            let up = async move {
                let mut buffer = vec![0; 1 << 16];
                while let Ok(n @ 1..) = from_client.read(&mut buffer).await {
                    let commits = buffer[..n].windows(mark.len()).any(|w| w == mark);
                    match if commits { next.swap(PASS, Ordering::SeqCst) } else { PASS } {
                        CUT_BEHIND => passes.store(false, Ordering::SeqCst),
                        MUTE => muted.store(true, Ordering::SeqCst),
                        STOP_BEFORE => std::future::pending().await,
                        _ => {}
                    }
                    to_server.write_all(&buffer[..n]).await.unwrap();
                }
            };
            let down = async move {
                let mut buffer = vec![0; 1 << 16];
                while let Ok(n @ 1..) = from_server.read(&mut buffer).await {
                    // Dropping both halves closes the client's connection; Postgres has answered.
                    if !pass.load(Ordering::SeqCst) {
                        return;
                    }
                    if mute.load(Ordering::SeqCst) {
                        continue;
                    }
                    if to_client.write_all(&buffer[..n]).await.is_err() {
                        return;
                    }
                }
            };
            #[expect(clippy::disallowed_methods, reason = "a test's own task")]
            tokio::spawn(async move {
                tenure_kernel::runtime::first(up, down).await;
            });
        }
    };
    #[expect(clippy::disallowed_methods, reason = "a test's own task")]
    tokio::spawn(serve);
    url
}

/// Loses the answer to a commit, and asks again.
async fn answer_is_lost(store: &PostgresStore, next: &AtomicU8, commit: Commit) {
    let id = commit.entity;
    next.store(CUT_BEHIND, Ordering::SeqCst);
    let lost = store.apply(vec![op(commit.clone())]).await;
    assert!(matches!(lost, Err(StoreError::Indeterminate(_))), "{lost:?}");
    // The first try may still hold its lock on a connection that only Postgres knows of.
    let again = loop {
        match store.apply(vec![op(commit.clone())]).await.unwrap().remove(0) {
            Answer::Commit(CommitAnswer::Busy) => {}
            Answer::Commit(CommitAnswer::Committed(again)) => break again,
            other => panic!("{other:?}"),
        }
    };
    assert!(again.repeated);
    assert_eq!(again.version, 3);
    assert_eq!(store.stream(id, 1, 10).await.unwrap().len(), 3);
    must(store, note(id, &again, "three")).await;
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_indeterminate_and_can_be_asked_again() {
    let db = TestDb::new().await;
    let next = Arc::new(AtomicU8::new(PASS));
    let url = proxy(next.clone(), COMMIT).await;
    let (other, session) = (db.store().await, entity());
    let store = PostgresStore::connect(&url, judge(), db.options()).await.unwrap();
    let (first, second) = (entity(), entity());
    // What another process wrote is not known here, so it is locked and read. One before, so that every statement is
    // prepared and COMMIT travels with them.
    let at = must(&other, birth(first, Some(session))).await;
    must(&store, note(first, &at, "one")).await;
    let at = must(&other, birth(second, Some(session))).await;
    let at = must(&other, note(second, &at, "one")).await;
    answer_is_lost(&store, &next, note(second, &at, "two")).await;
}

#[tokio::test]
async fn so_it_is_where_one_statement_is_the_whole_transaction() {
    let db = TestDb::new().await;
    let next = Arc::new(AtomicU8::new(PASS));
    let url = proxy(next.clone(), b"this one").await;
    let store = PostgresStore::connect(&url, judge(), db.options()).await.unwrap();
    let id = entity();
    let at = must(&store, birth(id, Some(entity()))).await;
    let at = must(&store, note(id, &at, "one")).await;
    answer_is_lost(&store, &next, note(id, &at, "this one")).await;
}

#[tokio::test]
async fn a_server_that_is_stopped_in_a_transaction_loses_its_locks() {
    let db = TestDb::new().await;
    let next = Arc::new(AtomicU8::new(PASS));
    let url = proxy(next.clone(), COMMIT).await;
    let mut options = db.options();
    options.idle_timeout = std::time::Duration::from_millis(300);
    let stopped = PostgresStore::connect(&url, judge(), options).await.unwrap();
    let other = db.store().await;
    let (id, before, session) = (entity(), entity(), entity());
    // Its statements are prepared by the first, and the second is not known to it: it is locked, then written.
    let at = must(&other, birth(before, Some(session))).await;
    must(&stopped, note(before, &at, "one")).await;
    let at = must(&other, birth(id, Some(session))).await;
    let at = must(&other, note(id, &at, "one")).await;
    next.store(STOP_BEFORE, Ordering::SeqCst);
    let late = stopped.apply(vec![op(note(id, &at, "late"))]);
    let overtake = async {
        // As soon as the stopped one has its lock.
        patience::until("the COMMIT is stopped", async || next.load(Ordering::SeqCst) == PASS)
            .await;
        loop {
            let mut answers = other.apply(vec![op(note(id, &at, "two"))]).await.unwrap();
            match answers.pop() {
                Some(Answer::Commit(CommitAnswer::Busy)) => {}
                other => return other,
            }
        }
    };
    let (late, overtaken) = futures_util::future::join(late, overtake).await;
    let won = |a: &Answer| matches!(a, Answer::Commit(CommitAnswer::Committed(_)));
    // Woken up, the late one asks again on a new connection: whoever came first, there is one.
    let answers = [late.unwrap().remove(0), overtaken.unwrap()];
    assert_eq!(answers.iter().filter(|a| won(a)).count(), 1, "{answers:?}");
    assert_eq!(other.head(id).await.unwrap().unwrap().version, 3);
}

/// A holder's step is one statement, so there is no COMMIT that could be stopped or lost.
#[tokio::test]
async fn a_holders_step_is_one_round_trip() {
    let db = TestDb::new().await;
    let next = Arc::new(AtomicU8::new(PASS));
    let url = proxy(next.clone(), COMMIT).await;
    let store = PostgresStore::connect(&url, judge(), db.options()).await.unwrap();
    let id = entity();
    let at = must(&store, birth(id, Some(entity()))).await;
    let at = must(&store, note(id, &at, "one")).await;
    next.store(STOP_BEFORE, Ordering::SeqCst);
    let at = must(&store, note(id, &at, "two")).await;
    must(&store, note(id, &at, "three")).await;
    assert_eq!(next.load(Ordering::SeqCst), STOP_BEFORE, "no COMMIT came by");
}

/// A line that takes requests and brings no answers: every call has an answer of its own, and the next line is used.
#[tokio::test]
async fn nobody_waits_longer_than_the_deadline_for_a_database_that_does_not_answer() {
    let db = TestDb::new().await;
    let next = Arc::new(AtomicU8::new(PASS));
    let url = proxy(next.clone(), b"mute").await;
    let mut options = db.options();
    // Every other statement of this test has to be done within it too.
    options.answer_timeout = std::time::Duration::from_secs(3);
    let store = PostgresStore::connect(&url, judge(), options).await.unwrap();
    let id = entity();
    let at = must(&store, birth(id, Some(entity()))).await;
    // The write itself, which may have been committed.
    let commit = note(id, &at, "mute");
    next.store(MUTE, Ordering::SeqCst);
    let answer = tokio::time::timeout(patience::PATIENCE, store.apply(vec![op(commit.clone())]));
    let silent = answer.await.expect("it answers");
    assert!(matches!(silent, Err(StoreError::Indeterminate(_))), "{silent:?}");
    let at = committed(vec![persist(&store, commit).await]).remove(0);
    // A read of something with the mark in its name, on a line that was lent before.
    next.store(MUTE, Ordering::SeqCst);
    let read = tokio::time::timeout(patience::PATIENCE, store.ready_groups("mute", None));
    let silent = read.await.expect("it answers");
    assert!(
        matches!(&silent, Err(StoreError::Unavailable(why)) if why.contains("did not answer")),
        "{silent:?}"
    );
    assert_eq!(store.head(id).await.unwrap().unwrap().version, at.version);
}
