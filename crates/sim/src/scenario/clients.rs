//! Clients: they ask until they are answered, as clients of a durable system may.

use crate::world::{Env, World};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tenure_engine::{config::EngineConfig, pipeline::Pipeline};
use tenure_kernel::{
    commit::{CommitAnswer, Expect},
    ids::{EntityId, MailId},
    machine::{Cx, Input, Machines},
    mail::{MailAnswer, NewMail},
    runtime::BoxFuture,
    stream::Body,
    time::Timestamp,
};

/// The clients of one run.
#[derive(Clone)]
pub struct Clients {
    /// Where they live: no fault kills them, all faults reach them.
    pub env: Env,
    /// What they speak through.
    pub pipeline: Pipeline,
    machines: Machines,
    left: Arc<AtomicUsize>,
}

impl Clients {
    pub(super) fn new(world: &Arc<World>, machines: Machines) -> Self {
        let env = world.outsider("client");
        let config = EngineConfig::default();
        let pipeline = Pipeline::new(env.store.clone(), env.bell.clone(), env.rt.clone(), &config);
        Clients { env, pipeline, machines, left: Arc::default() }
    }

    /// How many have not got what they want.
    pub fn left(&self) -> usize {
        self.left.load(Ordering::Relaxed)
    }

    /// Another client.
    pub fn spawn(&self, work: BoxFuture<'static, ()>) {
        let left = self.left.clone();
        left.fetch_add(1, Ordering::Relaxed);
        self.env.rt.spawn(Box::pin(async move {
            work.await;
            left.fetch_sub(1, Ordering::Relaxed);
        }));
    }

    /// Draws a duration up to `top`.
    pub fn some(&self, top: Duration) -> Duration {
        self.env.world.sim.draw(|rng| rng.between(Duration::ZERO..top))
    }

    /// Draws a number below `n`.
    pub fn below(&self, n: u64) -> u64 {
        self.env.world.sim.draw(|rng| rng.below(n))
    }

    /// Sleeps.
    pub async fn wait(&self, d: Duration) {
        self.env.rt.sleep(d).await;
    }

    /// A fresh id.
    pub fn id(&self) -> EntityId {
        let (a, b) = (self.env.rt.random().to_be_bytes(), self.env.rt.random().to_be_bytes());
        let mut random = [0; 10];
        random[..8].copy_from_slice(&a);
        random[8..].copy_from_slice(&b[..2]);
        EntityId::new(Timestamp::from_micros(1_893_456_000_000_000), random)
    }

    /// Creates an entity and asks until it is there.
    pub async fn create(&self, kind: &str, id: EntityId, body: &Body) {
        let world = &self.env.world;
        let cx = Cx { id, now: Timestamp::ZERO, version: 0, status: None, changed_at: None };
        let core = self.machines.get(kind);
        let draft = core.and_then(|c| c.decide(None, &Input::Create(body), &cx).ok().flatten());
        let Some(draft) = draft else { return world.fail(format!("no {kind} can be created")) };
        let Some(birth) = self.machines.birth(kind, "t", &draft.placement) else {
            return world.fail(format!("no {kind} can be born"));
        };
        let commit = draft.into_commit(self.pipeline.commit_id(), id, Expect::Absent(birth));
        loop {
            match self.pipeline.commit(commit.clone()).await {
                Ok(CommitAnswer::Committed(_)) => return,
                Ok(other) => {
                    // Nobody else has this id: whatever is there is its own earlier try.
                    return world.fail(format!("the creation of {id} was answered {other:?}"));
                }
                Err(e) if e.is_transient() => self.wait(Duration::from_secs(1)).await,
                Err(e) => return world.fail(format!("the creation of {id} failed: {e}")),
            }
        }
    }

    /// Sends mail and asks until it is answered. Whether it was accepted (now or earlier).
    pub async fn mail(&self, to: EntityId, id: String, kind: &'static str, body: Body) -> bool {
        let mail = NewMail { to, id: MailId(id), kind: kind.into(), body };
        loop {
            match self.pipeline.mail(mail.clone()).await {
                Ok(MailAnswer::Accepted { .. } | MailAnswer::Duplicate) => return true,
                Ok(MailAnswer::Final { .. }) => return false,
                Ok(answer @ (MailAnswer::Unknown | MailAnswer::Refused(_))) => {
                    self.env.world.fail(format!("{to} exists and answers its mail {answer:?}"));
                    return false;
                }
                Err(e) if e.is_transient() => self.wait(Duration::from_secs(1)).await,
                Err(e) => {
                    self.env.world.fail(format!("mail to {to} failed: {e}"));
                    return false;
                }
            }
        }
    }
}
