//! The same engine, with the store and the bell at the other end of a wire.

use super::support::{
    Outside, QUEUE, Running, config, machines, options, rt, sound, start, start_at, start_judging,
    start_telling, work_over,
};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tenure_engine::{
    claimer::Claimer,
    session::Keeper,
    worker::{Held, HoldError},
};
use tenure_kernel::{
    bell::{Bell as _, Topic},
    claims::{ClaimRequest, Probe},
    commit::{Commit, CommitAnswer, Expect, MailStance, TenureChange},
    error::StoreError,
    evidence::{EvidenceAnswer, NewEvidence},
    feed::Cursor,
    ids::{CommitId, EntityId, MailId},
    limits,
    machine::Decision,
    mail::{MailAnswer, NewMail},
    store::{Answer, HeadFilter, Op, Store as _, Touch},
    stream::{Body, Hash, NewEvent},
    table::kernel_events,
    time::Timestamp,
};
use tenure_proving::{machines::errand, patience::PATIENCE};
use tenure_remote::{RemoteBell, RemoteStore};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_elsewhere_does_what_one_inside_does() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let mut made = BTreeSet::new();
    for _ in 0..20 {
        made.insert(server.errand("t").await);
    }
    let outside = Outside::default();
    let worker = work_over(server.remote_pipeline(None), 4, &outside).await;
    server.until_all_done().await;
    worker.stop().await;
    let expected: Vec<_> =
        made.iter().flat_map(|id| (0..errand::STEPS).map(|s| (errand::key(*id, s), 1))).collect();
    assert_eq!(
        outside.calls().into_iter().collect::<BTreeSet<_>>(),
        expected.into_iter().collect()
    );
    sound(&server).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ring_at_the_server_wakes_a_worker_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let (server, listened) = start_telling(dir.path()).await;
    let worker = work_over(server.remote_pipeline(None), 1, &Outside::default()).await;
    // Its tick is ten seconds: it finds nothing, and listens.
    listened.until(|all| all.contains(&Topic::Queue(QUEUE.into()))).await;
    // The first ones may be found by a look that is under way.
    for _ in 0..10 {
        let before = rt().mono();
        let id = server.errand("t").await;
        server.until(id, "done", |h| h.status.name() == "done").await;
        assert!(rt().mono() - before < config().tick / 2, "not by the clock");
    }
    worker.stop().await;
    server.stop().await;
}

/// What rang before the first question has arrived is not known to have rung: so everybody looks once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_begins_to_listen_is_rung_once_though_nobody_rang() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let bell = RemoteBell::new(&server.base, Some(&server.operator), rt()).unwrap();
    let mut ear = bell.listen(Topic::Queue("quiet".into()));
    tokio::time::timeout(PATIENCE, ear.heard()).await.expect("a ring");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ring_between_two_questions_is_not_lost() {
    let dir = tempfile::tempdir().unwrap();
    let (server, listened) = start_telling(dir.path()).await;
    let bell = RemoteBell::new(&server.base, Some(&server.operator), rt()).unwrap();
    let topics = || (0..3).map(|n| Topic::Queue(n.to_string()));
    let mut ears: Vec<_> = topics().map(|topic| bell.listen(topic)).collect();
    listened.until(|all| topics().all(|topic| all.contains(&topic))).await;
    for round in 0..20 {
        for topic in topics() {
            server.app.pipeline().bell().ring(topic);
        }
        for ear in &mut ears {
            let heard = tokio::time::timeout(Duration::from_secs(10), ear.heard()).await;
            assert!(heard.is_ok(), "round {round}");
        }
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_restarts_in_the_middle_costs_no_takeover() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = start(dir.path()).await;
    let mut made = Vec::new();
    for _ in 0..24 {
        made.push(server.errand("t").await);
    }
    let outside = Outside::slow(Duration::from_millis(40));
    let worker = work_over(server.remote_pipeline(None), 3, &outside).await;
    for done in [3, 10] {
        server.until(made[done], "done", |h| h.status.name() == "done").await;
        let at = server.at;
        server.stop().await;
        // It is away for as long as this.
        rt().sleep(Duration::from_millis(200)).await;
        server = start_at(dir.path(), at, options()).await;
    }
    server.until_all_done().await;
    worker.stop().await;
    assert!(outside.calls().values().all(|n| *n == 1), "{:?}", outside.calls());
    for id in made {
        let head = server.store().head(id).await.unwrap().unwrap();
        assert_eq!(head.epoch, 2, "claimed once, ended once");
    }
    sound(&server).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_says_goodbye_frees_what_it_holds_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let server = start_judging(dir.path()).await;
    let id = server.errand("t").await;
    let (keeper, _held) = claimed(&server).await;
    assert!(keeper.renew_once().await, "the renewal names what is held");
    let before = rt().mono();
    keeper.end().await;
    let head = server.until(id, "queued", |h| h.holder.is_none()).await;
    assert_eq!(head.status.name(), "queued");
    assert!(rt().mono() - before < config().tick / 2, "not by the clock");
    server.stop().await;
}

/// A session elsewhere that holds the one errand there is.
async fn claimed(server: &Running) -> (Keeper, Held) {
    let pipeline = server.remote_pipeline(None);
    let keeper = Keeper::open(pipeline, Arc::new(config()), "idle", "worker", None).await.unwrap();
    let mut fresh = Claimer::new(keeper.clone()).claim("errands", 1, true).await.unwrap();
    let held = Held::new(keeper.clone(), fresh.pop().unwrap());
    (keeper, held)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_holder_is_refused_and_its_evidence_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let id = server.errand("t").await;
    let (keeper, mut held) = claimed(&server).await;
    let epoch = held.head.epoch;
    // The server ends the tenure behind the worker's back.
    let pipeline = server.app.pipeline();
    let event = NewEvent::new(kernel_events::TENURE_ENDED, Body::Inline(b"{}".to_vec()));
    let mut end = Commit::new(pipeline.commit_id(), id, Expect::EndTenure { epoch }, vec![event]);
    (end.tenure, end.mail) = (TenureChange::End, MailStance::Regardless);
    let ended = pipeline.commit(end).await.unwrap();
    assert!(matches!(ended, CommitAnswer::Committed(_)), "{ended:?}");

    let raw = held.draft(vec![NewEvent::new("step_done", Body::Inline(b"{}".to_vec()))]);
    let answer = keeper.pipeline().commit(raw).await.unwrap();
    assert_eq!(answer, CommitAnswer::StaleEpoch { current: epoch + 1 });
    let done = errand::Event::StepDone { step: 0, call: 1 };
    let refused = held.record::<errand::Errand>(Decision::event(done), &[]).await;
    assert_eq!(refused.err(), Some(HoldError::Lost));
    assert!(!held.may_act());

    let (key, who, body) = ("k".into(), "w".into(), Body::Inline(b"{\"late\": 1}".to_vec()));
    let late = NewEvidence { entity: id, key, epoch, call: 1, who, body };
    let kept = keeper.pipeline().evidence(late.clone()).await.unwrap();
    assert_eq!(kept, EvidenceAnswer::Recorded { mailed: true });
    assert_eq!(keeper.pipeline().store().evidence(id).await.unwrap()[0].said, late);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_read_over_the_wire_is_what_the_store_has() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let (here, there) = (server.store(), server.remote(None));
    let id = server.errand("t").await;
    for n in 0..limits::MAIL_PER_DECISION_MAX + 60 {
        let body = Body::Inline(format!("{{ \"n\":{n}.0 }}").into_bytes());
        let mail = NewMail { to: id, id: MailId(n.to_string()), kind: "hello".into(), body };
        let answers = there.apply(vec![Op::Mail(mail)]).await.unwrap();
        assert!(matches!(answers[..], [Answer::Mail(MailAnswer::Accepted { .. })]), "{answers:?}");
    }
    let head = server.until(id, "mail read", |h| !h.has_mail()).await;
    assert_eq!(there.head(id).await.unwrap(), Some(head.clone()));
    assert_eq!(there.mail(id, 0, 1_000).await.unwrap(), here.mail(id, 0, 1_000).await.unwrap());
    assert_eq!(there.mail(id, 7, 300).await.unwrap(), here.mail(id, 7, 300).await.unwrap());
    assert_eq!(there.stream(id, 1, 1_000).await.unwrap(), here.stream(id, 1, 1_000).await.unwrap());
    assert_eq!(there.ready_groups("errands", None).await.unwrap(), [(0, "t".to_owned())]);
    assert!(there.now().await.unwrap() >= head.changed_at);
    let large = vec![7; limits::BLOB_BYTES_MAX];
    let digest = there.put_blob(large.clone()).await.unwrap();
    assert_eq!(there.blob(digest).await.unwrap(), Some(large));
    assert_eq!(there.blob(Hash::of(b"nobody put this")).await.unwrap(), None);
    let unborn = EntityId::fixed(9, 9);
    assert_eq!(there.head(unborn).await.unwrap(), None);
    assert_eq!(there.session(unborn).await.unwrap(), None);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_is_too_large_for_one_request_is_cut() {
    let dir = tempfile::tempdir().unwrap();
    let small = tenure_server::ServerOptions { worker_bytes_max: 5 * 1024 * 1024, ..options() };
    let server = start_at(dir.path(), ([127, 0, 0, 1], 0).into(), small).await;
    let errand = server.errand("t").await;
    // Not JSON, so it is a third longer on the wire.
    let body = Body::Inline(vec![0xff; limits::BODY_INLINE_BYTES_MAX]);
    let mail = |n: usize| {
        let (id, body) = (MailId((n / 2).to_string()), body.clone());
        Op::Mail(NewMail { to: errand, id, kind: "hello".into(), body })
    };
    let answers = server.remote(None).apply((0..400).map(mail).collect()).await.unwrap();
    assert_eq!(answers.len(), 400);
    for (n, answer) in answers.iter().enumerate() {
        let first = matches!(answer, Answer::Mail(MailAnswer::Accepted { .. }));
        assert_eq!(first, n % 2 == 0, "answers come in the order of the operations: {answer:?}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_the_servers_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let store = server.remote(None);
    let refused = |e: StoreError| {
        assert!(
            matches!(&e, StoreError::Refused(why) if why.starts_with("a worker does not")),
            "{e}"
        )
    };
    refused(store.heads(HeadFilter::default(), 1).await.unwrap_err());
    refused(store.next_due(vec![0]).await.unwrap_err());
    refused(store.outbox(vec![0], false, 1).await.unwrap_err());
    refused(store.feed(Cursor::START, 1).await.unwrap_err());
    refused(store.retire(Timestamp::ZERO, 1).await.unwrap_err());
    refused(store.tallies().await.unwrap_err());
    let id = server.errand("t").await;
    let touch = Touch {
        entity: id,
        epoch: 0,
        version: 1,
        due: None,
        check_at: None,
        faults: 9,
        ring_only: false,
    };
    let (to, mail) = (id, MailId("m".into()));
    let mail = NewMail { to, id: mail, kind: "hello".into(), body: Body::Inline(vec![]) };
    let answers = store.apply(vec![Op::Touch(touch), Op::Mail(mail)]).await.unwrap();
    assert!(
        matches!(answers[..], [Answer::Touch(false), Answer::Mail(MailAnswer::Accepted { .. })]),
        "{answers:?}"
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_not_there_is_unavailable_and_one_that_hangs_up_is_indeterminate() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = silent.local_addr().unwrap();
    let store = RemoteStore::new(&format!("http://{at}"), None, machines().tables()).unwrap();
    let renewal =
        tenure_kernel::sessions::Renewal { session: EntityId::fixed(9, 9), holds: vec![] };
    let hang_up = async {
        drop(silent.accept().await.unwrap());
        drop(silent.accept().await.unwrap());
        silent
    };
    let ask = async {
        let fate = store.apply(vec![Op::Renew(renewal.clone())]).await;
        assert!(matches!(fate, Err(StoreError::Indeterminate(_))), "{fate:?}");
        let probes =
            vec![Probe { priority: 0, tenant: "t".into(), floor: Timestamp::ZERO, want: 1 }];
        let (id, lease) = (CommitId::new(1, 2), Duration::from_secs(1));
        let request = ClaimRequest {
            id,
            session: EntityId::fixed(9, 9),
            lease,
            queue: "q".into(),
            probes,
            limit: 1,
        };
        let fate = store.claim(request).await;
        assert!(matches!(fate, Err(StoreError::Indeterminate(_))), "{fate:?}");
    };
    let (silent, ()) = tokio::join!(hang_up, ask);
    drop(silent);
    let fate = store.apply(vec![Op::Renew(renewal)]).await;
    assert!(matches!(fate, Err(StoreError::Unavailable(_))), "{fate:?}");
    assert!(matches!(store.now().await, Err(StoreError::Unavailable(_))));
}
