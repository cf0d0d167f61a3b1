//! One pod while an executor holds it: what is common to making, following and stopping it.

use super::{
    cluster::Trouble,
    shop::{PodShop, points},
};
use crate::{
    pod::{
        Begun, Pod as PodMachine, PodEvent, PodState, Says,
        decide::{gone, on_mail, tell},
        model::limits,
    },
    task::{NewTask, Task, TaskEvent},
    verdict::Policy,
};
use std::{sync::Arc, time::Duration};
use tenure_engine::{
    session::Hint,
    worker::{Handler, Held, HoldError},
};
use tenure_kernel::{
    error::StoreError,
    ids::EntityId,
    limits::clip,
    machine::{Cx, Decision, decode_event},
    runtime::{BoxFuture, First, first},
    store::Store,
    stream::Body,
    time::Timestamp,
};

/// The handler of a worker that tends pods.
pub struct PodWorker(pub Arc<PodShop>);

impl Handler for PodWorker {
    fn run(&self, held: Held) -> BoxFuture<'static, Held> {
        Box::pin(drive(self.0.clone(), held))
    }
}

/// A pod that can not be gone on with is not taken up again at once, by this executor or the next.
const LEFT_FOR: Duration = Duration::from_secs(5);

async fn drive(shop: Arc<PodShop>, held: Held) -> Held {
    let rt = held.keeper().pipeline().rt().clone();
    let store = held.keeper().pipeline().store().clone();
    let clock = (held.head.changed_at, rt.mono());
    let policy = shop.policy.clone();
    let task = NewTask::default();
    let (task_ends_by, noted, late_until) = (None, None, None);
    let mut run = Run { shop, held, store, task, task_ends_by, policy, clock, noted, late_until };
    let why = match Box::pin(run.go()).await {
        Ok(()) | Err(Halt::Over | Halt::Hold(HoldError::Lost)) => return run.held,
        Err(Halt::Hold(e)) => e,
    };
    match &why {
        HoldError::Store(e) if e.is_transient() => {
            tracing::warn!(pod = %run.held.id(), error = %e, "a pod is left: the store is away");
        }
        other => tracing::error!(pod = %run.held.id(), error = %other, "a pod is left"),
    }
    first(run.held.until_stopping(), rt.sleep(LEFT_FOR)).await;
    run.held
}

/// Why an executor does not go on with a pod.
pub(super) enum Halt {
    /// It has ended, or was given back.
    Over,
    /// It is lost, or the store is away.
    Hold(HoldError),
}

impl From<HoldError> for Halt {
    fn from(e: HoldError) -> Self {
        Halt::Hold(e)
    }
}

impl From<StoreError> for Halt {
    fn from(e: StoreError) -> Self {
        Halt::Hold(e.into())
    }
}

/// What a step of an executor answers.
pub(super) type Go<T = ()> = Result<T, Halt>;

pub(super) struct Run {
    pub shop: Arc<PodShop>,
    pub held: Held,
    pub store: Arc<dyn Store>,
    pub task: NewTask,
    /// By when the task ends, whatever happens.
    pub task_ends_by: Option<Timestamp>,
    /// How this pod is read.
    pub policy: Policy,
    /// The store's time at a moment of this process's clock.
    clock: (Timestamp, Duration),
    /// What it waits for, as it was last put on record.
    noted: Option<&'static str>,
    /// Until then a request to make this pod may still arrive, from an executor that is gone.
    pub late_until: Option<Duration>,
}

impl Run {
    pub fn mono(&self) -> Duration {
        self.held.keeper().pipeline().rt().mono()
    }

    pub fn now(&self) -> Timestamp {
        self.clock.0 + self.mono().saturating_sub(self.clock.1)
    }

    fn cx(&self) -> Cx {
        let head = &self.held.head;
        Cx {
            id: head.id,
            now: self.now(),
            version: head.version,
            status: Some(head.status),
            changed_at: Some(head.changed_at),
        }
    }

    pub fn state(&self) -> Go<PodState> {
        Ok(self.held.state::<PodMachine>()?)
    }

    async fn go(&mut self) -> Go {
        self.shop.at(points::CLAIMED).await;
        self.read_mail().await?;
        let state = self.state()?;
        let Some(new) = state.new.clone() else {
            let why = "the pod of nothing".to_owned();
            return Err(HoldError::Refused(why).into());
        };
        if state.uid.is_none() && state.begun.is_none() && state.stop.is_some() {
            return self.not_made("nobody wanted it any more").await;
        }
        let head = self.store.head(new.task).await?;
        // Its template would run in the name of another tenant.
        let foreign = head.as_ref().is_some_and(|task| task.tenant != self.held.head.tenant);
        if foreign {
            return self.refuse("the task of this pod belongs to another tenant").await;
        }
        match task_of(&self.store, new.task).await? {
            Ok(task) => self.task = task,
            // What it was made from is gone; the pod itself may still be there, and is stopped or left as it was asked.
            Err(why) if state.begun.is_none() => return self.refuse(&why).await,
            Err(why) => tracing::warn!(pod = %self.held.id(), %why, "a pod without its task"),
        }
        if let Some(main) = &self.task.container {
            self.policy.main.clone_from(main);
        }
        self.task_ends_by = head.and_then(|head| head.must_end_by);
        Box::pin(self.make(&new)).await?;
        self.tend(&new).await
    }

    /// Commits what the executor decided.
    pub async fn record(&mut self, decision: Decision<PodEvent>) -> Go {
        let committed = self.held.record::<PodMachine>(decision, &[]).await?;
        self.heard(committed.map(|c| c.at))
    }

    fn heard(&mut self, at: Option<Timestamp>) -> Go {
        if let Some(at) = at {
            self.clock = (at, self.mono());
        }
        if self.held.is_over() { Err(Halt::Over) } else { Ok(()) }
    }

    /// Ends the entity, whatever mail comes meanwhile: it is read first.
    pub async fn finish(&mut self, events: Vec<PodEvent>, says: Option<Says>) -> Go {
        loop {
            let state = self.state()?;
            let mut decision = Decision { events: events.clone(), ..Decision::default() };
            decision.messages.extend(says.clone().and_then(|says| tell(&state, says)));
            match self.record(decision).await {
                Err(Halt::Hold(HoldError::MoreMail)) => self.take_mail().await?,
                done => return done,
            }
        }
    }

    /// It never was, and will not be.
    pub async fn not_made(&mut self, why: &str) -> Go {
        let says = gone("it was never made");
        self.finish(vec![PodEvent::PodNotMade { why: why.into() }], Some(says)).await
    }

    /// Reads mail, if the last commit said that there is some.
    pub async fn read_mail(&mut self) -> Go {
        if self.held.head.has_mail() { self.take_mail().await } else { Ok(()) }
    }

    /// Reads the mail that is there, if any.
    pub async fn take_mail(&mut self) -> Go {
        let mut mail = self.held.unread().await?;
        if mail.is_empty() {
            return Ok(());
        }
        for one in &mut mail {
            if let Body::Blob { digest, .. } = one.body
                && let Some(bytes) = self.store.blob(digest).await?
            {
                one.body = Body::Inline(bytes);
            }
        }
        let decision = on_mail(&self.state()?, &mail, &self.cx());
        let committed = self.held.record::<PodMachine>(decision, &mail).await?;
        self.heard(committed.map(|c| c.at))
    }

    /// Waits; not longer than until mail comes or the executor is asked to stop.
    pub async fn nap(&mut self, pause: Duration) -> Go {
        let rt = self.held.keeper().pipeline().rt().clone();
        let stopping = self.held.until_stopping();
        let others = first(stopping, rt.sleep(pause));
        match first(self.held.wait_for_mail(), others).await {
            First::Left(Hint::Lost) => Err(HoldError::Lost.into()),
            First::Left(_) => self.take_mail().await,
            First::Right(_) => Ok(()),
        }
    }

    /// Asks the cluster, for a bounded time.
    pub async fn ask<T>(
        &self,
        work: impl Future<Output = Result<T, Trouble>>,
    ) -> Result<T, Trouble> {
        let rt = self.held.keeper().pipeline().rt();
        let answer = match first(work, rt.sleep(self.shop.patience.request)).await {
            First::Left(answer) => answer,
            First::Right(()) => Err(Trouble::again("timeout", "the API server did not answer")),
        };
        answer.inspect_err(|trouble| self.shop.counts.troubled(trouble))
    }

    /// Says once on record what it waits for.
    pub async fn note_wait(&mut self, trouble: &Trouble) -> Go {
        let what = match trouble {
            Trouble::Again { what, .. } => *what,
            _ => "conflict",
        };
        self.shop.counts.waited(what);
        if self.noted != Some(what) {
            self.noted = Some(what);
            let why = clip(&trouble.to_string(), limits::WORDS_BYTES_MAX).to_owned();
            tracing::info!(pod = %self.held.id(), what, %why, "it waits");
            self.record(Decision::event(PodEvent::PodWaits { what: what.to_owned(), why })).await?;
        }
        self.held.keeper().progress(self.held.id());
        Ok(())
    }

    /// The cluster does not want to now: says so once on record, and waits.
    pub async fn put_off(&mut self, trouble: &Trouble, tries: &mut u32) -> Go {
        self.note_wait(trouble).await?;
        let after = match trouble {
            Trouble::Again { after, .. } => *after,
            _ => None,
        };
        let patience = self.shop.patience;
        let whole = patience.pause.saturating_mul(2u32.saturating_pow((*tries).min(16)));
        *tries += 1;
        let share = f64::from(u32::try_from(self.random() >> 32).unwrap_or(0));
        let jittered =
            whole.min(patience.pause_max).mul_f64(0.5 + share / f64::from(u32::MAX) / 2.0);
        self.nap(after.unwrap_or_default().max(jittered)).await
    }

    fn random(&self) -> u64 {
        self.held.keeper().pipeline().rt().random()
    }

    /// Gives the pod back: it runs on, and the next executor adopts it.
    pub async fn give_back(&mut self) -> Go {
        self.held.release("its executor stops").await?;
        Err(Halt::Over)
    }

    /// What the cluster has under the name of this pod, however long it takes to hear.
    pub async fn find(&mut self, at: &Begun) -> Go<Option<k8s_openapi::api::core::v1::Pod>> {
        let mut tries = 0;
        loop {
            let cluster = self.shop.cluster.clone();
            match self.ask(cluster.get(at)).await {
                Ok(found) => return Ok(found),
                Err(Trouble::Missing) => return Ok(None),
                Err(trouble) => self.put_off(&trouble, &mut tries).await?,
            }
            if self.held.stopping() {
                self.give_back().await?;
            }
        }
    }
}

/// What a task was asked to be: its first event.
async fn task_of(store: &Arc<dyn Store>, task: EntityId) -> Go<Result<NewTask, String>> {
    let records = store.stream(task, 1, 1).await?;
    let Some(record) = records.first() else { return Ok(Err(format!("there is no task {task}"))) };
    let events = record.events().map_err(|e| HoldError::Refused(e.to_string()))?;
    let Some(mut event) = events.into_iter().next() else {
        return Ok(Err(format!("task {task} has no beginning")));
    };
    if let Body::Blob { digest, .. } = event.body {
        match store.blob(digest).await? {
            Some(bytes) => event.body = Body::Inline(bytes),
            None => return Ok(Err(format!("the template of task {task} is gone"))),
        }
    }
    Ok(match decode_event::<Task>(&event.name, &event.body) {
        Ok(Some(TaskEvent::TaskCreated(new))) => Ok(*new),
        Ok(_) => Err(format!("task {task} was not created from a template")),
        Err(e) => Err(e.to_string()),
    })
}
