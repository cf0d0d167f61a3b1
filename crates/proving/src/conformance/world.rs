//! What a case may use: handles to one database, the judge that its stores were given, and the
//! runtime. Time passes in a world only through short leases and [`World::until`], never by sleeping
//! and hoping.

use super::specimen::{GUEST, SPECIMEN};
use std::{any::Any, future::Future, sync::Arc, time::Duration};
use tenure_kernel::{
    commit::{Birth, Commit, CommitAnswer, Committed, Expect, MailStance, TenureChange},
    head::Head,
    ids::{CommitId, EntityId, MailId, SessionId},
    judge::Judge,
    limits,
    mail::{MailAnswer, NewMail},
    outbox::{Delivery, DeliveryAnswer},
    runtime::{BoxFuture, Rt},
    sessions::{Opening, lane_id},
    store::{Answer, Op, Store},
    stream::{Body, NewEvent, Record},
    table::kernel_events as ke,
    time::Timestamp,
    verify,
};

/// A lease that outlives every case.
pub const LONG: Duration = Duration::from_secs(600);
/// A lease that lapses while a case waits.
pub const SHORT: Duration = Duration::from_millis(50);
/// How long a case waits for a condition before it fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// The judge that every store of a world is opened with: all hostile machines, the specimen and the guest.
pub fn judge() -> Judge {
    let mut tables = crate::machines::machines().tables();
    tables.insert(&SPECIMEN);
    tables.insert(&GUEST);
    Judge::new(tables)
}

/// One database, seen through one or several handles.
pub struct World {
    /// Handles to the same database, at least one. A store that allows one process only gives several
    /// clones of one handle.
    pub stores: Vec<Arc<dyn Store>>,
    /// The judge behind every handle.
    pub judge: Judge,
    /// Spawn, sleep, random.
    pub rt: Rt,
    /// Whatever has to live as long as the world: a directory, a server.
    pub keep: Box<dyn Any + Send + Sync>,
}

impl World {
    /// A world over these handles, with every lane in place.
    pub async fn new(stores: Vec<Arc<dyn Store>>, rt: Rt, keep: impl Any + Send + Sync) -> World {
        assert!(!stores.is_empty(), "a world needs a store");
        let world = World { stores, judge: judge(), rt, keep: Box::new(keep) };
        for lane in 0..limits::LANES {
            let id = lane_id(lane);
            if world.store().head(id).await.expect("read a lane").is_none() {
                let birth = Birth {
                    kind: "lane",
                    tenant: String::new(),
                    queue: String::new(),
                    priority: 0,
                };
                let event = NewEvent::new("lane_created", Body::Inline(Vec::new()));
                let commit = Commit::new(world.commit_id(), id, Expect::Absent(birth), vec![event]);
                world.commit_ok(commit).await;
            }
        }
        world
    }

    /// The first handle.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.stores[0]
    }

    /// Some handle; different numbers spread over all.
    pub fn handle(&self, n: usize) -> Arc<dyn Store> {
        self.stores[n % self.stores.len()].clone()
    }

    /// A fresh entity id.
    pub fn id(&self) -> EntityId {
        fresh_id(&self.rt)
    }

    /// A fresh commit id.
    pub fn commit_id(&self) -> CommitId {
        CommitId::new(self.rt.random(), self.rt.random())
    }

    /// The store's time.
    pub async fn now(&self) -> Timestamp {
        self.store().now().await.expect("the store's time")
    }

    /// Runs a batch once, `Busy` answers included.
    pub async fn apply(&self, ops: Vec<Op>) -> Vec<Answer> {
        let n = ops.len();
        let answers = self.store().apply(ops).await.expect("apply");
        assert_eq!(answers.len(), n, "one answer per operation");
        answers
    }

    /// Runs one operation and repeats it while it is busy.
    pub async fn one(&self, op: Op) -> Answer {
        settle(self.store().as_ref(), &self.rt, op).await
    }

    /// Commits and returns the answer.
    pub async fn commit(&self, commit: Commit) -> CommitAnswer {
        commit_on(self.store().as_ref(), &self.rt, commit).await
    }

    /// Commits and insists.
    pub async fn commit_ok(&self, commit: Commit) -> Committed {
        let what = commit.clone();
        match self.commit(commit).await {
            CommitAnswer::Committed(c) => c,
            other => panic!("{other:?} to {what:?}"),
        }
    }

    /// The head of an entity that exists.
    pub async fn head(&self, id: EntityId) -> Head {
        self.store().head(id).await.expect("read a head").expect("the entity exists")
    }

    /// The whole stream.
    pub async fn records(&self, id: EntityId) -> Vec<Record> {
        self.store().stream(id, 1, usize::MAX >> 33).await.expect("read a stream")
    }

    /// A specimen in the status that the birth event names, of tenant `t`, in queue `q`.
    pub async fn specimen(&self, birth_event: &'static str) -> EntityId {
        self.specimen_in(birth_event, "t", "q", 0).await
    }

    /// A specimen placed somewhere.
    pub async fn specimen_in(
        &self,
        event: &'static str,
        tenant: &str,
        queue: &str,
        priority: i16,
    ) -> EntityId {
        let commit = self.birth_in(event, tenant, queue, priority);
        let id = commit.entity;
        self.commit_ok(commit).await;
        id
    }

    /// The commit that makes a specimen.
    pub fn birth(&self, event: &'static str) -> Commit {
        self.birth_in(event, "t", "q", 0)
    }

    /// The commit that makes a specimen somewhere.
    pub fn birth_in(
        &self,
        event: &'static str,
        tenant: &str,
        queue: &str,
        priority: i16,
    ) -> Commit {
        let birth =
            Birth { kind: SPECIMEN.kind, tenant: tenant.into(), queue: queue.into(), priority };
        let mut commit = Commit::new(
            self.commit_id(),
            self.id(),
            Expect::Absent(birth),
            vec![NewEvent::new(event, Body::Inline(b"{}".to_vec()))],
        );
        let open = !matches!(event, "made_idle" | "made_done");
        commit.must_end_in = open.then_some(LONG);
        commit
    }

    /// A commit of one event by whoever `expect` says.
    pub fn says(&self, entity: EntityId, expect: Expect, event: &'static str) -> Commit {
        Commit::new(
            self.commit_id(),
            entity,
            expect,
            vec![NewEvent::new(event, Body::Inline(b"{}".to_vec()))],
        )
    }

    /// A note on an entity as its head stands now, by its holder or by nobody.
    pub async fn note(&self, entity: EntityId) -> Commit {
        let head = self.head(entity).await;
        self.says(entity, expect_now(&head), "noted")
    }

    /// Ends an entity as its head stands now.
    pub async fn end(&self, entity: EntityId) -> Committed {
        let head = self.head(entity).await;
        let mut commit = self.says(entity, expect_now(&head), "ended");
        commit.mail = MailStance::Regardless;
        self.commit_ok(commit).await
    }

    /// Opens a worker session.
    pub async fn session(&self, lease: Duration) -> SessionId {
        let opening = Opening {
            name: "a worker".into(),
            role: "worker".into(),
            lease_ms: u64::try_from(lease.as_millis()).expect("a lease"),
            executor: None,
        };
        let birth =
            Birth { kind: "worker", tenant: String::new(), queue: String::new(), priority: 0 };
        let event = NewEvent::new(tenure_kernel::sessions::events::OPENED, Body::json(&opening));
        let mut commit =
            Commit::new(self.commit_id(), self.id(), Expect::Absent(birth), vec![event]);
        commit.tenure = TenureChange::Open(opening);
        let id = commit.entity;
        self.commit_ok(commit).await;
        id
    }

    /// The commit that ends a session.
    pub async fn goodbye(&self, session: SessionId) -> Commit {
        let head = self.head(session).await;
        let mut commit =
            self.says(session, expect_now(&head), tenure_kernel::sessions::events::ENDED);
        commit.mail = MailStance::Regardless;
        commit.tenure = TenureChange::End;
        commit
    }

    /// Claims by name and insists.
    pub async fn claim(&self, entity: EntityId, session: SessionId, lease: Duration) -> Head {
        let op = Op::Claim { id: self.commit_id(), entity, session, lease };
        match self.one(op).await {
            Answer::Claim(Ok(head)) => *head,
            other => panic!("a claim that must succeed got {other:?}"),
        }
    }

    /// Ends whatever tenure there is, as the due loop does.
    pub async fn reclaim(&self, entity: EntityId) -> Committed {
        let head = self.head(entity).await;
        let expect = Expect::Overrule { epoch: head.epoch, version: head.version };
        let mut commit = self.says(entity, expect, ke::TENURE_ENDED);
        commit.tenure = TenureChange::End;
        commit.mail = MailStance::Regardless;
        self.commit_ok(commit).await
    }

    /// Mail to an entity.
    pub fn mail(&self, to: EntityId, id: &str) -> NewMail {
        NewMail {
            to,
            id: MailId(id.to_owned()),
            kind: "signal".into(),
            body: Body::Inline(id.as_bytes().to_vec()),
        }
    }

    /// Sends mail and returns the answer.
    pub async fn send(&self, mail: NewMail) -> MailAnswer {
        match self.one(Op::Mail(mail)).await {
            Answer::Mail(answer) => answer,
            other => panic!("mail was answered {other:?}"),
        }
    }

    /// Delivers and returns the answer.
    pub async fn deliver(&self, delivery: Delivery) -> DeliveryAnswer {
        deliver_on(self.store().as_ref(), &self.rt, delivery).await
    }

    /// Waits until a condition holds; fails the case if it does not within a bound.
    pub async fn until<F, Fut>(&self, what: &str, mut holds: F)
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = bool>,
    {
        let start = self.rt.mono();
        while !holds().await {
            let waited = self.rt.mono().saturating_sub(start);
            assert!(waited < PATIENCE, "waited {waited:?} until {what}");
            self.rt.sleep(Duration::from_millis(2)).await;
        }
    }

    /// Waits until the store's time has passed a moment.
    pub async fn until_after(&self, moment: Timestamp) {
        self.until("the store's time has passed a moment", || async { self.now().await > moment })
            .await;
    }

    /// Runs `n` tasks beside each other, spread over the handles, and returns what each gave.
    pub async fn together<T, F, Fut>(&self, n: usize, task: F) -> Vec<T>
    where
        T: Send + 'static,
        F: Fn(usize, Arc<dyn Store>, Rt) -> Fut,
        Fut: Future<Output = T> + Send + 'static,
    {
        let mut waits = Vec::with_capacity(n);
        for i in 0..n {
            let (done, wait) = tokio::sync::oneshot::channel();
            let work = task(i, self.handle(i), self.rt.clone());
            let run: BoxFuture<'static, ()> = Box::pin(async move {
                // Nobody listens only if the case has failed already.
                let _ = done.send(work.await);
            });
            self.rt.spawn(run);
            waits.push(wait);
        }
        let mut results = Vec::with_capacity(n);
        for wait in waits {
            results.push(wait.await.expect("a task of this case failed; its panic is above"));
        }
        results
    }

    /// Compares a head with its records.
    pub async fn verify(&self, id: EntityId) {
        let head = self.head(id).await;
        verify::verify(&head, &self.records(id).await, &self.judge.tables)
            .unwrap_or_else(|fault| panic!("{id}: {fault}"));
    }
}

/// Whoever may write to it now: its holder, or anybody if there is none.
pub fn expect_now(head: &Head) -> Expect {
    let (epoch, version) = (head.epoch, head.version);
    match head.holder {
        Some(_) => Expect::Holder { epoch, version },
        None => Expect::Nobody { epoch, version },
    }
}

/// A fresh entity id.
pub fn fresh_id(rt: &Rt) -> EntityId {
    let mut random = [0; 10];
    random[..8].copy_from_slice(&rt.random().to_be_bytes());
    random[8..].copy_from_slice(&rt.random().to_be_bytes()[..2]);
    EntityId::new(Timestamp::from_micros(1_790_000_000_000_000), random)
}

fn is_busy(answer: &Answer) -> bool {
    matches!(
        answer,
        Answer::Busy
            | Answer::Commit(CommitAnswer::Busy)
            | Answer::Claim(Err(CommitAnswer::Busy))
            | Answer::Deliver(DeliveryAnswer::Busy)
    )
}

/// Runs one operation on a handle and repeats it while it is busy, as a pipeline does.
pub async fn settle(store: &dyn Store, rt: &Rt, op: Op) -> Answer {
    settle_all(store, rt, vec![op]).await.remove(0)
}

/// Runs a batch on a handle and repeats what was busy, as a pipeline does.
pub async fn settle_all(store: &dyn Store, rt: &Rt, ops: Vec<Op>) -> Vec<Answer> {
    let mut answers: Vec<Option<Answer>> = vec![None; ops.len()];
    let mut open: Vec<usize> = (0..ops.len()).collect();
    let start = rt.mono();
    while !open.is_empty() {
        let batch = open.iter().map(|i| ops[*i].clone()).collect();
        let got = store.apply(batch).await.expect("apply");
        assert_eq!(got.len(), open.len(), "one answer per operation");
        let mut still = Vec::new();
        for (i, answer) in open.into_iter().zip(got) {
            if is_busy(&answer) {
                still.push(i);
            } else {
                answers[i] = Some(answer);
            }
        }
        open = still;
        if !open.is_empty() {
            assert!(rt.mono().saturating_sub(start) < PATIENCE, "busy for ever");
            rt.sleep(Duration::from_millis(1)).await;
        }
    }
    answers.into_iter().flatten().collect()
}

/// Commits through a handle.
pub async fn commit_on(store: &dyn Store, rt: &Rt, commit: Commit) -> CommitAnswer {
    match settle(store, rt, Op::Commit(Box::new(commit))).await {
        Answer::Commit(answer) => answer,
        other => panic!("a commit was answered {other:?}"),
    }
}

/// Delivers through a handle.
pub async fn deliver_on(store: &dyn Store, rt: &Rt, delivery: Delivery) -> DeliveryAnswer {
    match settle(store, rt, Op::Deliver(Box::new(delivery))).await {
        Answer::Deliver(answer) => answer,
        other => panic!("a delivery was answered {other:?}"),
    }
}
