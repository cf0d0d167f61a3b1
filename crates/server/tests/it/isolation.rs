//! A caller with a tenant reaches its own entities, of kinds for workers, and nothing else.

use super::support::{Outside, config, options, start, start_at, work_over};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tenure_engine::session::Keeper;
use tenure_kernel::{
    claims::{ClaimRequest, Probe, next_page},
    commit::{Birth, Commit, CommitAnswer, Expect, MailStance, Refusal, TenureChange, UniqueKey},
    error::StoreError,
    evidence::{EvidenceAnswer, NewEvidence},
    ids::{CommitId, EntityId, MailId},
    limits,
    mail::{MailAnswer, NewMail},
    outbox::{Message, Target},
    sessions::{Opening, Renewal, RenewalAnswer, lane_id},
    store::{Answer, HeadFilter, Op, Store},
    stream::{Body, Hash, NewEvent},
    time::Timestamp,
};
use tenure_server::{
    audit::{self, Act},
    keys::{self, Scope},
};

fn nothing() -> Body {
    Body::Inline(b"{}".to_vec())
}

fn birth(kind: &'static str, id: EntityId) -> Commit {
    let (tenant, queue) = ("theirs".to_owned(), "errands".to_owned());
    let birth = Birth { kind, tenant, queue, priority: 0 };
    let event = NewEvent::new("errand_made", nothing());
    let mut commit = Commit::new(CommitId::new(1, 1), id, Expect::Absent(birth), vec![event]);
    commit.must_end_in = Some(Duration::from_secs(60));
    commit
}

async fn one(store: &dyn Store, op: Op) -> Answer {
    store.apply(vec![op]).await.unwrap().remove(0)
}

async fn commit(store: &dyn Store, commit: Commit) -> CommitAnswer {
    match one(store, Op::Commit(Box::new(commit))).await {
        Answer::Commit(answer) => answer,
        other => panic!("{other:?}"),
    }
}

/// Pages of groups that are not the caller's do not hide those behind them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_many_priorities_of_another_tenant_hide_no_work() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let key = server.key(Some("mine"), &[Scope::Worker]).await;
    let full = i16::try_from(limits::READY_GROUPS_MAX).unwrap();
    for priority in 1..=full + 1 {
        server.urgent_errand("theirs", priority).await;
    }
    server.errand("mine").await;
    let mine = server.remote(Some(&key)).ready_groups("errands", None).await.unwrap();
    assert_eq!(mine, [(0, "mine".to_owned())]);
    // Who sees all gets them page by page.
    let all = server.remote(None);
    let first = all.ready_groups("errands", None).await.unwrap();
    assert_eq!((first.len(), next_page(&first)), (limits::READY_GROUPS_MAX, Some(2)));
    let second = all.ready_groups("errands", Some(2)).await.unwrap();
    assert_eq!(second, [(1, "theirs".to_owned()), (0, "mine".to_owned())]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_belongs_to_another_tenant_is_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let key = server.key(Some("mine"), &[Scope::Worker]).await;
    let all = server.key(None, &[Scope::Worker]).await;
    let (mine, theirs) = (server.errand("mine").await, server.errand("theirs").await);
    let foreign =
        Keeper::open(server.remote_pipeline(None), Arc::new(config()), "foreign", "worker", None);
    let foreign = foreign.await.unwrap();
    let store = server.remote(Some(&key));
    assert!(store.head(mine).await.unwrap().is_some());
    assert!(server.remote(Some(&all)).head(theirs).await.unwrap().is_some());
    assert!(store.head(theirs).await.unwrap().is_none());
    assert!(store.stream(theirs, 1, 9).await.unwrap().is_empty());
    assert!(store.mail(theirs, 0, 9).await.unwrap().is_empty());
    assert!(store.evidence(theirs).await.unwrap().is_empty());
    assert!(store.session(foreign.id()).await.unwrap().is_none());
    assert_eq!(store.ready_groups("errands", None).await.unwrap(), [(0, "mine".to_owned())]);

    let mail =
        NewMail { to: theirs, id: MailId("m".into()), kind: "cancel".into(), body: nothing() };
    assert_eq!(one(&store, Op::Mail(mail)).await, Answer::Mail(MailAnswer::Unknown));
    let (k, who, body) = ("k".into(), "w".into(), nothing());
    let evidence = NewEvidence { entity: theirs, key: k, epoch: 0, call: 0, who, body };
    assert_eq!(
        one(&store, Op::Evidence(evidence)).await,
        Answer::Evidence(EvidenceAnswer::Unknown)
    );
    let renewal = Renewal { session: foreign.id(), holds: vec![] };
    assert_eq!(one(&store, Op::Renew(renewal)).await, Answer::Renew(RenewalAnswer::Ended));
    let claim = |entity, session| Op::Claim {
        id: CommitId::new(7, 7),
        entity,
        session,
        lease: Duration::from_secs(5),
    };
    let unknown = |id| Answer::Claim(Err(CommitAnswer::Refused(Refusal::Unknown(id))));
    assert_eq!(one(&store, claim(theirs, foreign.id())).await, unknown(theirs));
    assert_eq!(one(&store, claim(mine, foreign.id())).await, unknown(foreign.id()));
    let event = NewEvent::new("errand_cancelled", nothing());
    let expect = Expect::Nobody { epoch: 0, version: 1 };
    let end = Commit::new(CommitId::new(3, 3), theirs, expect, vec![event]);
    assert_eq!(commit(&store, end).await, CommitAnswer::Refused(Refusal::Unknown(theirs)));
    let request = ClaimRequest {
        id: CommitId::new(5, 5),
        session: foreign.id(),
        lease: Duration::from_secs(5),
        queue: "errands".into(),
        probes: vec![Probe {
            priority: 0,
            tenant: "theirs".into(),
            floor: Timestamp::ZERO,
            want: 1,
        }],
        limit: 1,
    };
    let refused = store.claim(request).await.unwrap_err();
    assert!(matches!(refused, StoreError::Refused(_)), "{refused}");
    let head = server.store().head(theirs).await.unwrap().unwrap();
    assert_eq!((head.version, head.mail_count), (1, 0), "nothing of it reached the entity");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_of_a_tenant_does_the_work_of_that_tenant_only() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let key = server.key(Some("mine"), &[Scope::Worker]).await;
    let (mine, theirs) = (server.errand("mine").await, server.errand("theirs").await);
    let worker = work_over(server.remote_pipeline(Some(&key)), 4, &Outside::default()).await;
    server.until(mine, "done", |h| h.status.name() == "done").await;
    let session = server.store().head(worker.keeper.id()).await.unwrap().unwrap();
    assert_eq!(session.tenant, "mine", "its session is the tenant's too");
    // A second one of its own comes after the foreign one, and is done before it.
    let second = server.errand("mine").await;
    server.until(second, "done", |h| h.status.name() == "done").await;
    let head = server.store().head(theirs).await.unwrap().unwrap();
    assert_eq!((head.status.name(), head.epoch), ("queued", 0));
    worker.stop().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn births_get_the_callers_tenant_and_its_keys() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let key = server.key(Some("mine"), &[Scope::Worker]).await;
    let store = server.remote(Some(&key));
    let id = EntityId::fixed(9, 1);
    // Without the length of the name, a tenant that is called `6` could take keys of `theirs`.
    for key in ["errand/theirs/1", "errand/6/theirs/1", "errand/mine/1"] {
        let mut taken = birth("errand", id);
        taken.keys = vec![UniqueKey { key: key.into(), digest: Hash::ZERO }];
        let answer = commit(&store, taken).await;
        assert!(matches!(answer, CommitAnswer::Refused(Refusal::Tenure(_))), "{key}: {answer:?}");
    }
    let mut born = birth("errand", id);
    born.keys = vec![UniqueKey { key: "errand/4/mine/1".into(), digest: Hash::ZERO }];
    assert!(matches!(commit(&store, born).await, CommitAnswer::Committed(_)));
    assert_eq!(server.store().head(id).await.unwrap().unwrap().tenant, "mine");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_do_not_cross_tenants_and_make_no_keys() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let key = server.key(Some("mine"), &[Scope::Worker]).await;
    let (key_id, _) = keys::split(&key).unwrap();
    let store = server.remote(Some(&key));
    let theirs = server.errand("theirs").await;
    let create =
        |kind: &'static str| Target::Create { id: EntityId::fixed(9, 7), kind: kind.into() };
    server.app.audit().note(Act::new("test.act", "ada")).await.unwrap();
    let filter = HeadFilter { kind: Some(audit::KIND.into()), ..HeadFilter::default() };
    let trail = server.store().heads(filter, 1).await.unwrap()[0].id;
    let mails = [theirs, key_id, trail].map(Target::Mail);
    let creates = ["key", "worker", "audit", "console_session"].map(create);
    for to in mails.into_iter().chain(creates) {
        let mut sends = birth("errand", EntityId::fixed(9, 2));
        sends.messages = vec![Message { to: to.clone(), kind: "cancel".into(), body: nothing() }];
        let answer = commit(&store, sends).await;
        assert!(matches!(answer, CommitAnswer::Refused(_)), "{to:?}: {answer:?}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_kinds_for_workers_and_only_a_workers_part() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let key = server.key(None, &[Scope::Worker]).await;
    let (key_id, _) = keys::split(&key).unwrap();
    let store = server.remote(None);
    for hidden in [key_id, lane_id(0)] {
        assert!(store.head(hidden).await.unwrap().is_none(), "also for one who sees all tenants");
    }
    let fresh = EntityId::fixed(9, 3);
    assert!(matches!(commit(&store, birth("mailbox", fresh)).await, CommitAnswer::Refused(_)));
    let id = server.errand("t").await;
    let guards = [Expect::Overrule { epoch: 0, version: 1 }, Expect::EndTenure { epoch: 0 }];
    for expect in guards {
        let event = NewEvent::new("tenure_ended", nothing());
        let mut guard = Commit::new(CommitId::new(4, 4), id, expect, vec![event]);
        (guard.tenure, guard.mail) = (TenureChange::End, MailStance::Regardless);
        let refused = commit(&store, guard).await;
        assert!(matches!(refused, CommitAnswer::Refused(Refusal::Tenure(_))), "{refused:?}");
    }
    for (role, lease_ms) in [("server", 5_000), ("worker", 3_600_001)] {
        let opening = Opening { name: "x".into(), role: role.into(), lease_ms, executor: None };
        let mut open = birth("worker", fresh);
        open.events = vec![NewEvent::new("session_opened", Body::json(&opening))];
        (open.tenure, open.must_end_in) = (TenureChange::Open(opening), None);
        let refused = commit(&store, open).await;
        assert!(matches!(refused, CommitAnswer::Refused(Refusal::Tenure(_))), "{refused:?}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_queue_holds_for_others_goes_back() {
    let dir = tempfile::tempdir().unwrap();
    let none = tenure_server::ServerOptions { worker_kinds: vec!["worker".into()], ..options() };
    let server = start_at(dir.path(), SocketAddr::from(([127, 0, 0, 1], 0)), none).await;
    let id = server.errand("t").await;
    let worker = work_over(server.remote_pipeline(None), 1, &Outside::default()).await;
    let head = server.until(id, "given back", |h| h.epoch >= 2 && h.holder.is_none()).await;
    assert_eq!(head.status.name(), "queued");
    worker.stop().await;
    server.stop().await;
}
