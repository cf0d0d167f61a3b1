//! A standby is promoted under load. If it had everything, nobody notices; if it lagged behind, everybody is told.

use super::{
    db::{TestDb, birth, committed, connect, done, entity, judge, must, note, op},
    faults::{OwnPostgres, own_database, persist},
};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use tenure_kernel::{
    commit::{CommitAnswer, Committed},
    error::StoreError,
    feed::{Cursor, Lost},
    housekeeping::PulseRequest,
    ids::{EntityId, MailId},
    mail::NewMail,
    rules::{HISTORY_LOST, Tallies},
    store::{Answer, Op, Store},
    stream::Body,
};
use tenure_proving::patience;
use tenure_store::postgres::{PostgresOptions, PostgresStore};

/// A primary with a store, its standby, and servers that know both addresses.
struct Pair {
    primary: OwnPostgres,
    standby: OwnPostgres,
    db: TestDb,
}

impl Pair {
    async fn new() -> Self {
        let primary = OwnPostgres::start();
        let standby = primary.standby();
        let db = TestDb::at(primary.url()).await;
        let pair = Pair { primary, standby, db };
        pair.primary_says("SELECT count(*) = 1 FROM pg_stat_replication WHERE state = 'streaming'")
            .await;
        pair
    }

    async fn primary_says(&self, sql: &str) {
        let holds = async || self.db.plain.query_one(sql, &[]).await.unwrap().get::<_, bool>(0);
        patience::until(sql, holds).await;
    }

    async fn server(&self, incarnation: u64) -> PostgresStore {
        let (first, second) = (self.primary.port, self.standby.port);
        let url = format!(
            "postgres://tenure@127.0.0.1:{first},127.0.0.1:{second}/tenure?target_session_attrs=read-write"
        );
        let options = PostgresOptions::new(incarnation).schema(&self.db.schema);
        PostgresStore::connect(&url, judge(), options).await.unwrap()
    }

    /// The primary dies as by a power cut, and the standby takes its place.
    fn fail_over(&self) {
        self.primary.run("kill", &[]);
        assert!(self.standby.run("promote", &[]));
    }
}

async fn incarnation(store: &PostgresStore) -> u64 {
    let other = Cursor { incarnation: u64::MAX, ..Cursor::START };
    let asked = async || match store.feed(other, 1).await {
        Err(StoreError::FeedLost(Lost::OtherIncarnation { restart })) => Ok(restart.incarnation),
        Err(e) if e.is_transient() => Err(e),
        other => panic!("{other:?}"),
    };
    patience::found("which incarnation it is", asked).await
}

async fn losses(store: &PostgresStore) -> u64 {
    let tallies = patience::found("the tallies", async || store.tallies().await).await;
    tallies.get(HISTORY_LOST).map_or(0, |t| t.fired)
}

async fn pulse(store: &PostgresStore) {
    let hour = std::time::Duration::from_secs(3600);
    let request = PulseRequest { gap: hour, lease: hour, tallies: Tallies::new() };
    patience::until("a pulse is left", async || store.pulse(request.clone()).await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_standby_that_had_everything_continues_the_incarnation() {
    let pair = Pair::new().await;
    let sync = "ALTER SYSTEM SET synchronous_standby_names = '*'";
    pair.db.plain.batch_execute(sync).await.unwrap();
    pair.db.plain.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    pair.primary_says("SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'")
        .await;
    let store = Arc::new(pair.server(7).await);
    let idle = pair.server(8).await;
    pulse(&idle).await;
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..4)
        .map(|_| {
            let (store, stop) = (store.clone(), stop.clone());
            let work = async move {
                let (id, session) = (entity(), entity());
                let answer = persist(&*store, birth(id, Some(session))).await;
                let mut at = committed(vec![answer]).remove(0);
                while !stop.load(Ordering::Relaxed) {
                    let answer = persist(&*store, note(id, &at, "x")).await;
                    at = committed(vec![answer]).remove(0);
                }
                (id, at)
            };
            #[expect(clippy::disallowed_methods, reason = "a test's own task")]
            tokio::spawn(work)
        })
        .collect();
    let written = async || store.feed(Cursor::START, 100).await.unwrap();
    patience::until("the writers write", async || written().await.items.len() > 50).await;
    let before = written().await;
    pair.fail_over();
    patience::until("the store is back", async || store.now().await.is_ok()).await;
    let on = store.clone();
    let more = async || match on.feed(before.next, 200).await {
        Ok(page) => page.items.len() > 100,
        Err(e) if e.is_transient() => false,
        Err(e) => panic!("{e:?}"),
    };
    patience::until("the feed goes on where it was", more).await;
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        let (id, at): (EntityId, Committed) = writer.await.unwrap();
        let head = store.head(id).await.unwrap().unwrap();
        assert_eq!((head.version, head.chain), (at.version, at.chain));
        assert_eq!(store.stream(id, 1, 100_000).await.unwrap().len() as u64, at.version);
    }
    pulse(&idle).await;
    // A server that starts now finds the timeline noted.
    let fresh = pair.server(9).await;
    must(&fresh, birth(entity(), None)).await;
    for server in [&*store, &idle, &fresh] {
        assert_eq!((incarnation(server).await, losses(server).await), (7, 0));
    }
}

/// What the holder of a head hears that it has from a lost history.
async fn refused(store: &PostgresStore, id: EntityId, at: &Committed) -> bool {
    match persist(store, note(id, at, "after")).await {
        Answer::Commit(CommitAnswer::Committed(_)) => false,
        Answer::Commit(_) => true,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_standby_that_lagged_begins_a_new_incarnation_at_once() {
    let pair = Pair::new().await;
    let (first, second) = (pair.server(7).await, pair.server(8).await);
    // Connections to a standby outlive its promotion, so none for writing is made to one.
    let options = PostgresOptions::new(7).schema(&pair.db.schema);
    let opened = PostgresStore::connect(&pair.standby.url(), judge(), options.clone()).await;
    let why = opened.err().unwrap();
    assert!(matches!(&why, StoreError::Unavailable(why) if why.contains("standby")), "{why:?}");
    let read = async || {
        let options = options.clone();
        PostgresStore::connect_read_only(&pair.standby.url(), judge(), options).await.is_ok()
    };
    patience::until("the standby has the store, to be read", read).await;
    let (id, session) = (entity(), entity());
    let at = must(&first, birth(id, Some(session))).await;
    let at = must(&first, note(id, &at, "kept")).await;
    let kept = must(&second, birth(entity(), None)).await;
    pair.primary_says(
        "SELECT replay_lsn >= pg_current_wal_lsn() FROM pg_stat_replication WHERE replay_lsn IS NOT NULL",
    )
    .await;
    // From here on the standby receives nothing.
    let standby = connect(&pair.standby.url()).await;
    standby.batch_execute("ALTER SYSTEM SET primary_conninfo = ''").await.unwrap();
    standby.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    pair.primary_says("SELECT count(*) = 0 FROM pg_stat_replication").await;
    let (lost, started) = (entity(), entity());
    let ahead = must(&first, note(id, &at, "lost")).await;
    must(&first, birth(lost, None)).await;
    let held = must(&second, birth(started, Some(session))).await;
    patience::until("the feed shows it", async || {
        first.feed(Cursor::START, 10).await.unwrap().items.len() == 6
    })
    .await;
    let before = first.feed(Cursor::START, 10).await.unwrap();
    assert_eq!(before.next.incarnation, 7);
    pair.fail_over();
    // Neither is taken for what it was: not by its number of a transaction, and not by its version.
    assert!(refused(&first, id, &ahead).await);
    assert!(refused(&second, started, &held).await);
    let drawn = incarnation(&first).await;
    assert_ne!(drawn, 7);
    let page = first.feed(before.next, 10).await;
    assert!(matches!(page, Err(StoreError::FeedLost(Lost::OtherIncarnation { .. }))), "{page:?}");
    assert_eq!(first.feed(Cursor::START, 10).await.unwrap().items.len(), 3, "what was kept");
    assert!(first.head(lost).await.unwrap().is_none());
    assert_eq!(kept.version, 1);
    // One loss is one new incarnation, whoever else finds it, and whoever starts after it.
    let tally = first.tallies().await.unwrap()[HISTORY_LOST];
    assert_eq!(tally.fired, 1);
    assert!(tally.lag_max > std::time::Duration::ZERO, "{tally:?}");
    let fresh = pair.server(9).await;
    let at = must(&first, note(id, &at, "again")).await;
    must(&second, note(id, &at, "and on")).await;
    must(&fresh, birth(entity(), None)).await;
    for server in [&first, &second, &fresh] {
        assert_eq!((incarnation(server).await, losses(server).await), (drawn, 1));
    }
    let gone = first.apply(vec![op(note(lost, &held, "x"))]).await.unwrap().remove(0);
    assert!(!matches!(gone, Answer::Commit(CommitAnswer::Committed(_))), "{gone:?}");
}

/// Ends the connections of all stores in a database of the test's own.
async fn cut(db: &TestDb) {
    let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'tenure'";
    db.plain.query_one(kill, &[]).await.unwrap();
}

/// A server that starts after a failover, before others have looked, finds nothing to compare and counts nothing.
#[tokio::test]
async fn a_loss_is_counted_once_also_where_a_server_that_started_drew_the_incarnation() {
    let db = own_database().await;
    let servers = [db.store().await, db.store().await];
    let ids = [entity(), entity()];
    for (server, id) in servers.iter().zip(ids) {
        must(server, birth(id, None)).await;
    }
    for (drawn, lost) in [(8, 1), (9, 2)] {
        for (server, to) in servers.iter().zip(ids) {
            let (id, body) = (MailId(format!("m{drawn}")), Body::Inline(b"hi".to_vec()));
            let mail = NewMail { to, id, kind: "hello".into(), body };
            server.apply(vec![Op::Mail(mail)]).await.unwrap();
        }
        let gone = format!(
            "DELETE FROM mail; UPDATE heads SET mail_count = 0; UPDATE meta SET incarnation = {drawn}"
        );
        db.plain.batch_execute(&gone).await.unwrap();
        cut(&db).await;
        for server in &servers {
            committed(vec![persist(server, birth(entity(), None)).await]);
            assert_eq!((incarnation(server).await, losses(server).await), (drawn, lost));
        }
    }
    // Nothing is missing.
    db.plain.batch_execute("UPDATE meta SET incarnation = 10").await.unwrap();
    cut(&db).await;
    for server in &servers {
        committed(vec![persist(server, birth(entity(), None)).await]);
        assert_eq!((incarnation(server).await, losses(server).await), (10, 2));
    }
}

#[tokio::test]
async fn a_store_on_another_cluster_is_taken_over_by_a_server_that_starts_and_by_no_other() {
    let db = own_database().await;
    let store = db.store().await;
    must(&store, birth(entity(), None)).await;
    db.plain.batch_execute("UPDATE meta SET cluster = 'elsewhere/1'").await.unwrap();
    cut(&db).await;
    let told = async || {
        let answer = store.apply(vec![op(birth(entity(), None))]).await;
        matches!(answer, Err(StoreError::Unavailable(why)) if why.contains("restart the servers"))
    };
    patience::until("it says what to do", told).await;
    let untouched = "SELECT incarnation FROM meta WHERE cluster = 'elsewhere/1'";
    assert_eq!(db.ask(untouched).await, 7);
    let options = PostgresOptions::new(8).schema(&db.schema);
    let started = PostgresStore::connect(&db.url, judge(), options).await.unwrap();
    for server in [&started, &store] {
        committed(vec![persist(server, birth(entity(), None)).await]);
        assert_eq!((incarnation(server).await, losses(server).await), (8, 0));
    }
}

/// What is missing without a failover: a copy from before on the same timeline. And what is not missing: what retention took.
#[tokio::test]
async fn mail_that_is_missing_is_noticed_and_what_retention_took_is_not_missing() {
    let db = own_database().await;
    let store = db.store().await;
    let again = async || {
        cut(&db).await;
        committed(vec![persist(&store, birth(entity(), None)).await]);
        (incarnation(&store).await, losses(&store).await)
    };
    let (over, open) = (entity(), entity());
    let at = must(&store, birth(over, Some(entity()))).await;
    must(&store, birth(open, None)).await;
    must(&store, done(over, &at)).await;
    assert_eq!(again().await, (7, 0));
    patience::until("what is over is retired", async || {
        let now = store.now().await.unwrap();
        store.retire(now, 10).await.unwrap();
        store.head(over).await.unwrap().is_none()
    })
    .await;
    assert_eq!(again().await, (7, 0));
    let body = Body::Inline(b"hi".to_vec());
    let mail = NewMail { to: open, id: MailId("m".into()), kind: "hello".into(), body };
    store.apply(vec![Op::Mail(mail)]).await.unwrap();
    assert_eq!(again().await, (7, 0));
    db.plain.batch_execute("DELETE FROM mail; UPDATE heads SET mail_count = 0").await.unwrap();
    let (drawn, lost) = again().await;
    assert!(drawn != 7 && lost == 1, "{drawn} {lost}");
    assert_eq!(again().await, (drawn, 1), "and only once");
    // An earlier incarnation that is there again is a loss of its own.
    db.plain.batch_execute("UPDATE meta SET incarnation = 7").await.unwrap();
    let (next, lost) = again().await;
    assert!(next != 7 && next != drawn && lost == 2, "{next} {lost}");
}
