//! How a job comes into being: from a submission, as a fork of another job, or as its retry.
//!
//! Where this process has a free slot and nothing waits in the flow's queue, the job starts in the commit
//! that creates it: the flow is polled to its first tool or wait, and what it asks for is part of the birth.

use crate::{
    catalogue::{self, Entry, Sort},
    decide::{self, finish},
    drive::{Ending, LoadError, Loaded, Reach, Run, Shop, Still, creations_first, load},
    found,
    model::{Failure, Fork, Job, JobEvent, JobState, NewJob, OwnEvent, Terms, limits},
    terms::BadTerm,
    view::{self, Cut, Repeat},
};
use serde_json::Value;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tenure_engine::{
    birth::{NotBorn, give_birth, random, take_at_birth},
    pipeline::Pipeline,
    session::Keeper,
    slots::{Slot, Slots},
};
use tenure_kernel::{
    commit::{Birth, Commit, CommitAnswer, Expect, TenureChange, UniqueKey},
    error::StoreError,
    head::Head,
    ids::{EntityId, SessionId},
    judge::Judge,
    machine::{Decision, Machine, encode_state},
    stream::{Body, Hash, NewEvent},
    table::Class,
    time::Timestamp,
};
use tenure_steps::{
    canonical,
    events::{StepEvent, StepId},
};

/// Events that a flow may record before its first tool or wait and still start with its job.
pub const EVENTS_AT_BIRTH_MAX: usize = 32;

/// The step of a fork that takes over everything that is recorded.
pub const AFTER_ALL: &str = "end";

/// What somebody wants to run.
#[derive(Clone, Debug, Default)]
pub struct Submission {
    /// The flow.
    pub flow: String,
    /// Its version; the newest without one.
    pub version: Option<u32>,
    /// Its input.
    pub input: Value,
    /// Whose job it is.
    pub tenant: String,
    /// The same key with the same input is the same job.
    pub key: Option<String>,
    /// Higher is sooner.
    pub priority: i16,
    /// It ends by then.
    pub must_end_in: Option<Duration>,
    /// When and where it may run.
    pub terms: Terms,
    /// Who asks.
    pub by: Option<String>,
}

/// What became of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// The job.
    pub id: EntityId,
    /// It was there already, under the same key and with the same input.
    pub existed: bool,
    /// A worker of this process, or one that works through it, has it: its end will be told here.
    pub near: bool,
}

/// A fork, or without a step a retry.
#[derive(Clone, Debug, Default)]
pub struct ForkAsk {
    /// The first step that is not taken over. Without it, everything that succeeded is.
    pub before: Option<StepId>,
    /// The version of the flow; that of the origin without one.
    pub version: Option<u32>,
    /// Who asks.
    pub by: Option<String>,
    /// The idempotency key.
    pub key: Option<String>,
    /// Whether what has happened and is irreversible may be done again.
    pub repeat: Repeat,
}

/// Why nothing was created.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// Nobody ever registered it.
    #[error("no worker has ever registered the flow {flow}{}", .version.map(|v| format!("@{v}")).unwrap_or_default())]
    UnknownFlow {
        /// What was asked for.
        flow: String,
        /// In which version.
        version: Option<u32>,
    },
    /// The terms can not be kept.
    #[error(transparent)]
    BadTerms(BadTerm),
    /// The key belongs to another job.
    #[error("the key belongs to job {0}, which has other input")]
    OtherInput(EntityId),
    /// The origin of a fork or retry can not be used.
    #[error("{0}")]
    BadOrigin(String),
    /// The fork or retry would do something again that has happened, or may have.
    #[error("{0}")]
    WouldRepeat(String),
    /// The job was tried again already, in another way.
    #[error("job {origin} was tried again as job {retry}, with another version: retry that one")]
    TriedAgain {
        /// What was to be tried again.
        origin: EntityId,
        /// Its retry.
        retry: EntityId,
    },
    /// The store said no.
    #[error("{0}")]
    Refused(String),
    /// The store is away.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<LoadError> for SubmitError {
    fn from(e: LoadError) -> Self {
        match e {
            LoadError::Store(e) => SubmitError::Store(e),
            LoadError::Unreadable(why) => SubmitError::BadOrigin(why),
        }
    }
}

/// A worker in this process, in whose free slots jobs may start.
#[derive(Clone)]
pub struct Local {
    /// Its flows and tools.
    pub shop: Arc<Shop>,
    /// Its slots.
    pub slots: Slots,
    /// Its session.
    pub keeper: Keeper,
}

/// Workers in other processes into whose hands a job may be born.
pub trait Outposts: Send + Sync {
    /// Room for a job of this queue and tenant, if nothing is known to wait in the queue. It is kept until it is
    /// used or forgotten.
    fn reserve(&self, queue: &str, tenant: &str) -> Option<Reserved>;
    /// It is not needed after all.
    fn forget(&self, reserved: Reserved);
    /// The job is there and held by the session; whoever waits for it gets it.
    fn deliver(&self, reserved: Reserved, head: Head);
    /// A job went into this queue instead.
    fn queued(&self, queue: &str);
}

/// Room for one job at a worker.
#[derive(Clone, Copy, Debug)]
pub struct Reserved {
    /// Whose.
    pub session: SessionId,
    /// For how long its birth vouches for the session.
    pub lease: Duration,
}

/// Creates jobs.
#[derive(Clone)]
pub struct Submitter {
    pipeline: Pipeline,
    judge: Arc<Judge>,
    must_end_in: Duration,
    takeovers_max: u32,
    local: Option<Local>,
    outposts: Option<Arc<dyn Outposts>>,
    /// The store's time and when that was on this process's clock: ids are time-ordered, and need not be exact.
    time: Arc<Mutex<Option<(Timestamp, Duration)>>>,
    flows: Arc<Mutex<Remembered>>,
}

/// What the catalogue said to a tenant about a flow, and when.
type Remembered = HashMap<(String, String), (Duration, Arc<Entry>)>;

/// How long what the catalogue says about a flow is believed. A version that another server's worker registers
/// is the newest here so much later.
const CATALOGUE_GOOD_FOR: Duration = Duration::from_secs(1);
/// Flows that are remembered; then the memory starts over.
const FLOWS_MAX: usize = 1_024;

impl Submitter {
    /// Creates jobs in this store.
    pub fn new(
        pipeline: Pipeline,
        judge: Judge,
        must_end_in: Duration,
        takeovers_max: u32,
    ) -> Self {
        let judge = Arc::new(judge);
        let (local, outposts, time, flows) = (None, None, Arc::default(), Arc::default());
        Submitter { pipeline, judge, must_end_in, takeovers_max, local, outposts, time, flows }
    }

    /// Where no worker of this process takes a job, one out there may.
    pub fn with_outposts(mut self, outposts: Arc<dyn Outposts>) -> Self {
        self.outposts = Some(outposts);
        self
    }

    /// Starts jobs in this worker where it can.
    pub fn with_local(mut self, local: Local) -> Self {
        self.local = Some(local);
        self
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        const GOOD_FOR: Duration = Duration::from_secs(10);
        let mono = self.pipeline.rt().mono();
        let known = *self.time.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, when)) = known
            && mono.saturating_sub(when) < GOOD_FOR
        {
            return Ok(at + mono.saturating_sub(when));
        }
        let at = self.pipeline.store().now().await?;
        *self.time.lock().unwrap_or_else(PoisonError::into_inner) = Some((at, mono));
        Ok(at)
    }

    /// Creates a job, or finds the one that was created under the same key.
    pub async fn submit(&self, submission: Submission) -> Result<Submitted, SubmitError> {
        let at = self.now().await?;
        self.submit_as(EntityId::new(at, random(&self.pipeline)), at, submission).await
    }

    /// The same, and an ear for its end in this process's worker, which listens from before the job is there.
    /// Of a job that existed it may have ended before: look. No worker here, no ear.
    pub async fn submit_and_listen(
        &self,
        submission: Submission,
    ) -> Result<(Submitted, Option<Ending>), SubmitError> {
        let at = self.now().await?;
        let id = EntityId::new(at, random(&self.pipeline));
        let listen = |id| self.local.as_ref().map(|l| l.shop.ends.listen(id));
        let ending = listen(id);
        let submitted = self.submit_as(id, at, submission).await?;
        let ending = if submitted.id == id { ending } else { listen(submitted.id) };
        Ok((submitted, ending))
    }

    /// Creates a job under an id that somebody gave it before. Done again, it is the same job.
    pub async fn submit_under(
        &self,
        id: EntityId,
        submission: Submission,
    ) -> Result<Submitted, SubmitError> {
        let at = self.now().await?;
        match self.submit_as(id, at, submission).await {
            Err(SubmitError::OtherInput(found)) if found == id => {
                Ok(Submitted { id, existed: true, near: false })
            }
            other => other,
        }
    }

    /// Creates a job that has failed: somebody was given its id before anybody could see that it can not run. Done
    /// again, it is the same job.
    pub async fn submit_failed(
        &self,
        id: EntityId,
        submission: Submission,
        failure: Failure,
    ) -> Result<Submitted, SubmitError> {
        let tenant = submission.tenant.clone();
        // Version 0 is no version of any flow: nobody knows which it would have been.
        let version = submission.version.unwrap_or(0);
        let mut new = self.wish(submission, version);
        // It waits for nothing, and its terms may be what is wrong with it.
        new.terms = Terms { tell: new.terms.tell, ..Terms::default() };
        let mut state = JobState::default();
        let decision = decide::create(new, id);
        decision.events.iter().for_each(|e| Job::apply(&mut state, e));
        let mut decision = finish(&state, decision, OwnEvent::JobFailed(failure), id);
        decision.must_end_in = None;
        decision.timers.clear();
        match self.pipeline.commit(self.birth(id, &tenant, decision)).await? {
            CommitAnswer::Committed(_) => Ok(Submitted { id, existed: false, near: false }),
            CommitAnswer::Exists { entity, .. } if entity == id => {
                Ok(Submitted { id, existed: true, near: false })
            }
            other => answered(other),
        }
    }

    async fn submit_as(
        &self,
        id: EntityId,
        at: Timestamp,
        submission: Submission,
    ) -> Result<Submitted, SubmitError> {
        let mut submission = submission;
        let tenant = submission.tenant.clone();
        submission.terms = submission.terms.of_tenant(&tenant).map_err(SubmitError::BadTerms)?;
        let version = self.version_of(&tenant, &submission.flow, submission.version).await?;
        submission.terms.fits(&submission.flow, version).map_err(SubmitError::BadTerms)?;
        let key = submission.key.as_deref();
        let key = key.map(|key| unique(&tenant, key, &submission.flow, &submission.input));
        submission.terms = submission.terms.with_key(submission.key.as_deref());
        let mut keys: Vec<UniqueKey> = key.into_iter().collect();
        keys.extend(found::rows_of(&tenant, id, &submission.terms.labels));
        let new = self.wish(submission, version);
        self.create((id, at), &tenant, new, Vec::new(), keys).await
    }

    fn wish(&self, submission: Submission, version: u32) -> NewJob {
        let Submission { flow, input, priority, must_end_in, terms, by, .. } = submission;
        NewJob {
            flow,
            version,
            input,
            priority,
            must_end_in_ms: ms(must_end_in.unwrap_or(self.must_end_in)),
            takeovers_max: self.takeovers_max,
            terms,
            scheduled: None,
            parent: None,
            retry_of: None,
            forked_from: None,
            by,
        }
    }

    async fn version_of(
        &self,
        tenant: &str,
        flow: &str,
        version: Option<u32>,
    ) -> Result<u32, SubmitError> {
        let local = self.local.as_ref().and_then(|l| match version {
            Some(v) => l.shop.flows.get(flow, v),
            None => l.shop.flows.newest(flow),
        });
        if let Some(local) = local {
            return Ok(local.version);
        }
        let known = self.registered(tenant, flow, version).await?;
        known
            .map(|k| k.version)
            .ok_or_else(|| SubmitError::UnknownFlow { flow: flow.to_owned(), version })
    }

    /// How long a job may take, and how many workers it may lose, where nobody says otherwise.
    pub fn defaults(&self) -> (Duration, u32) {
        (self.must_end_in, self.takeovers_max)
    }

    /// What the catalogue says about a version of a flow, the newest without one.
    pub async fn registered(
        &self,
        tenant: &str,
        flow: &str,
        version: Option<u32>,
    ) -> Result<Option<catalogue::Version>, StoreError> {
        let pick = |entry: &Entry| match version {
            Some(v) => entry.version(v).cloned(),
            None => entry.newest().cloned(),
        };
        let now = self.pipeline.rt().mono();
        let name = (tenant.to_owned(), flow.to_owned());
        let known = self.remembered().get(&name).cloned();
        if let Some((at, entry)) = known
            && now.saturating_sub(at) < CATALOGUE_GOOD_FOR
            && let Some(found) = pick(&entry)
        {
            return Ok(Some(found));
        }
        let entry = catalogue::entry(self.pipeline.store(), Sort::Flow, tenant, flow).await?;
        let Some(entry) = entry else { return Ok(None) };
        let found = pick(&entry);
        let mut flows = self.remembered();
        if flows.len() >= FLOWS_MAX {
            flows.clear();
        }
        flows.insert(name, (now, Arc::new(entry)));
        Ok(found)
    }

    /// Somebody has registered something: it counts at once.
    pub fn forget_flows(&self) {
        self.remembered().clear();
    }

    fn remembered(&self) -> MutexGuard<'_, Remembered> {
        // Nothing panics under this lock.
        self.flows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn create(
        &self,
        (id, at): (EntityId, Timestamp),
        tenant: &str,
        new: NewJob,
        copied: Vec<JobEvent>,
        keys: Vec<UniqueKey>,
    ) -> Result<Submitted, SubmitError> {
        let blocks = self.pipeline.blocks().current(&self.pipeline).await?;
        let may_start = copied.is_empty() && blocks.of_job(&new.flow, tenant).is_none();
        if may_start
            && let Some(slot) = self.free_slot(&new)
            && let Some(done) = self.start_here(slot, id, at, tenant, &new, &keys).await?
        {
            return Ok(done);
        }
        let queue = new.terms.queue_of(&new.flow, new.version);
        if let Some(outposts) = self.outposts.as_ref().filter(|_| new.terms.at_once()) {
            if may_start && let Some(room) = outposts.reserve(&queue, tenant) {
                return self.start_there(&**outposts, room, id, tenant, new, keys).await;
            }
            outposts.queued(&queue);
        }
        let mut decision = decide::create(new, id);
        // Behind the birth: what it waits for is the last that is said.
        decision.events.splice(1..1, copied);
        decision.keys = keys;
        let commit = self.birth(id, tenant, decision);
        match self.pipeline.commit(commit).await? {
            CommitAnswer::Committed(_) => Ok(Submitted { id, existed: false, near: false }),
            other => answered(other),
        }
    }

    fn free_slot(&self, new: &NewJob) -> Option<(&Local, Slot)> {
        let local = self.local.as_ref()?;
        let queue = new.terms.queue_of(&new.flow, new.version);
        let known = local.shop.flows.get(&new.flow, new.version).is_some();
        if !known || !new.terms.at_once() || !local.slots.queue_is_known_empty(&queue) {
            return None;
        }
        Some((local, local.slots.try_take()?))
    }

    fn birth(&self, id: EntityId, tenant: &str, decision: Decision<JobEvent>) -> Commit {
        let placement = decision.placement.unwrap_or_default();
        let birth = Birth {
            kind: Job::TABLE.kind,
            tenant: tenant.to_owned(),
            queue: placement.queue,
            priority: placement.priority,
        };
        let mut state = JobState::default();
        decision.events.iter().for_each(|e| Job::apply(&mut state, e));
        let events = decision.events.iter().map(|e| NewEvent::new(Job::name(e), Body::json(e)));
        let mut commit =
            Commit::new(self.pipeline.commit_id(), id, Expect::Absent(birth), events.collect());
        commit.state = Some(encode_state::<Job>(&state));
        commit.timers = decision.timers;
        commit.messages = decision.messages;
        commit.must_end_in = decision.must_end_in;
        commit.keys = decision.keys;
        commit
    }

    /// Starts a job in the commit that creates it. `None`: it does not start here after all.
    async fn start_here(
        &self,
        (local, slot): (&Local, Slot),
        id: EntityId,
        at: Timestamp,
        tenant: &str,
        new: &NewJob,
        keys: &[UniqueKey],
    ) -> Result<Option<Submitted>, SubmitError> {
        let reach = Reach { shop: local.shop.clone(), pipeline: self.pipeline.clone() };
        let Some(mut run) = Run::unborn(reach, local.keeper.clone(), id, tenant, new, at) else {
            return Ok(None);
        };
        if run.first_turn().await.is_err() || run.pending.events.len() > EVENTS_AT_BIRTH_MAX {
            return Ok(None);
        }
        let mut decision = decide::create(new.clone(), id).and(OwnEvent::JobStarted {}.into());
        decision.keys = keys.to_vec();
        let pending = std::mem::take(&mut run.pending);
        decision.events.extend(pending.events);
        decision.timers.extend(pending.timers);
        decision.timers.extend(run.guard());
        decision.messages.extend(creations_first(pending.handed, pending.messages, &[]).0);
        let mut ended = None;
        if let Some(end) = run.ending_at_birth() {
            let completed = matches!(end, OwnEvent::JobCompleted { .. });
            ended = Some(if completed { "completed" } else { "failed" });
            let state = run.core.loaded.state.clone();
            decision = finish(&state, decision, end, id);
            decision.must_end_in = None;
            decision.timers.clear();
        }
        let commit = self.birth(id, tenant, decision);
        match take_at_birth(&local.keeper, &self.judge, commit).await {
            Ok(born) => {
                if let Some(held) = born.held {
                    let still: Still = run.into_still(born.committed.version);
                    local.shop.memory.keep(id, still);
                    local.slots.start(slot, held);
                }
                if let Some(status) = ended {
                    local.shop.ends.tell(id, status);
                }
                Ok(Some(Submitted { id, existed: false, near: true }))
            }
            Err(NotBorn::Lapsed) => Ok(None),
            Err(NotBorn::Answered(other)) => answered(other).map(Some),
            Err(NotBorn::Store(e)) => Err(e.into()),
        }
    }

    /// Creates a job in the hands of a worker in another process.
    async fn start_there(
        &self,
        outposts: &dyn Outposts,
        room: Reserved,
        id: EntityId,
        tenant: &str,
        new: NewJob,
        keys: Vec<UniqueKey>,
    ) -> Result<Submitted, SubmitError> {
        let mut decision = decide::create(new, id).and(OwnEvent::JobStarted {}.into());
        decision.keys = keys;
        let mut commit = self.birth(id, tenant, decision);
        commit.tenure = TenureChange::Take { session: room.session, lease: room.lease };
        let head = match give_birth(&self.pipeline, &self.judge, commit).await {
            Ok((_, head)) => head,
            Err(why) => {
                outposts.forget(room);
                return match why {
                    NotBorn::Answered(other) => answered(other),
                    NotBorn::Store(e) => Err(e.into()),
                    NotBorn::Lapsed => Err(SubmitError::Refused(why.to_string())),
                };
            }
        };
        // It is durable, and that is what the caller is told, whatever comes: if nobody brings it to the worker, the
        // lease sees to it.
        match head {
            Ok(head) => outposts.deliver(room, head),
            Err(e) => {
                tracing::warn!(job = %id, error = %e, "a job is not brought to the worker that has it");
                outposts.forget(room);
            }
        }
        Ok(Submitted { id, existed: false, near: true })
    }

    /// A new job that goes on from another one's history: everything before this step is taken over.
    /// Without a step, everything that succeeded. A job that is over is tried again only once: whoever asks
    /// again gets the same new job.
    pub async fn fork(
        &self,
        origin: EntityId,
        before: Option<StepId>,
        version: Option<u32>,
        by: Option<String>,
    ) -> Result<Submitted, SubmitError> {
        let ask = ForkAsk { before, version, by, ..ForkAsk::default() };
        self.fork_once(origin, ask).await
    }

    /// The same as it is asked for. Under a key, the same key, origin, step and version is the same job.
    pub async fn fork_once(
        &self,
        origin: EntityId,
        ask: ForkAsk,
    ) -> Result<Submitted, SubmitError> {
        let ForkAsk { before, version, by, key, repeat } = ask;
        let key = key.as_deref();
        let store = self.pipeline.store();
        let head = store.head(origin).await?.filter(|h| h.kind() == Job::TABLE.kind);
        let head =
            head.ok_or_else(|| SubmitError::BadOrigin(format!("there is no job {origin}")))?;
        let retries = head.class() == Class::Final;
        let loaded = load(store, origin).await?;
        let cut = match &before {
            Some(step) if loaded.history.steps.contains_key(step) => Cut::Before(step.clone()),
            Some(step) => {
                let mut known: Vec<_> = loaded.history.steps.keys().map(|s| s.0.clone()).collect();
                known.sort();
                return Err(SubmitError::BadOrigin(format!(
                    "job {origin} has no step {step}; its steps are {}",
                    known.join(", ")
                )));
            }
            None => where_it_failed(&loaded),
        };
        let taken = view::taken_over(store, origin, &cut, repeat).await?;
        // What is to be undone goes from a job that ended without undoing it to its one retry, and to nobody else.
        let hands_on = retries && before.is_none() && head.status.name() != "completed";
        if let Some(step) = taken.undoes.as_ref().filter(|_| !hands_on) {
            return Err(undone_by_another(&head, step));
        }
        // A flow that failed by itself, or was cancelled between two steps: its code runs again over everything that is
        // recorded.
        let by_itself =
            loaded.state.failure.is_some() || taken.settled || head.status.name() == "cancelled";
        if taken.step.0 == AFTER_ALL && !by_itself {
            return Err(SubmitError::BadOrigin(format!(
                "job {origin} has no step that failed: say from which step to fork"
            )));
        }
        let (flow, version) = (loaded.state.flow.clone(), version.unwrap_or(loaded.state.version));
        let version = self.version_of(&head.tenant, &flow, Some(version)).await?;
        let mut keys = Vec::new();
        keys.extend(key.map(|k| fork_key(&head.tenant, k, origin, before.as_ref(), version)));
        if retries && before.is_none() && (key.is_none() || taken.undoes.is_some()) {
            keys.push(retry_key(origin, version));
        }
        let new = NewJob {
            flow,
            version,
            input: loaded.input,
            priority: head.priority,
            // As long as the first try was given, from now.
            must_end_in_ms: loaded.must_end_in_ms,
            takeovers_max: self.takeovers_max,
            // The same gate, queue, needs and labels; the time and the key were for the first try.
            terms: Terms { start_in_ms: None, key: None, ..loaded.state.terms.clone() },
            scheduled: None,
            parent: None,
            retry_of: retries.then_some(origin),
            forked_from: Some(Fork { job: origin, step: taken.step }),
            by,
        };
        let copied = match taken.events.is_empty() {
            true => Vec::new(),
            false => vec![OwnEvent::HistoryCopied { from: origin, events: taken.events }.into()],
        };
        let at = self.now().await?;
        let id = EntityId::new(at, random(&self.pipeline));
        keys.extend(found::rows_of(&head.tenant, id, &new.terms.labels));
        match self.create((id, at), &head.tenant, new, copied, keys).await {
            Err(SubmitError::OtherInput(retry)) if key.is_none() => {
                Err(SubmitError::TriedAgain { origin, retry })
            }
            other => other,
        }
    }
}

/// Why a fork may not go on from a step that somebody else would undo.
fn undone_by_another(origin: &Head, step: &StepId) -> SubmitError {
    let job = origin.id;
    let why = match (origin.class(), origin.status.name()) {
        (Class::Final, "completed") => {
            "that job is complete, and nobody takes back what it did".to_owned()
        }
        (Class::Final, _) => {
            format!("only the retry of that job takes this over (`tenure job retry {job}`)")
        }
        _ => "that job undoes it itself if it fails or is cancelled".to_owned(),
    };
    SubmitError::BadOrigin(format!(
        "the new job would have to undo step {step} of job {job} if it failed, and {why}: fork it before step \
         {step}, to do that step anew"
    ))
}

/// Where a retry begins: with the step that failed, or at which the flow diverged.
fn where_it_failed(loaded: &Loaded) -> Cut {
    const DIVERGED: &str = "diverged";
    let state = &loaded.state;
    // A flow may diverge at a step that was never begun: then there is nothing of it to leave out.
    let begun =
        |step: &Option<StepId>| step.clone().filter(|s| loaded.history.steps.contains_key(s));
    let (reason, step) = match (&state.failure, &state.attention) {
        (Some(failure), _) => (failure.reason.as_str(), begun(&failure.step)),
        (None, Some(stuck)) => (stuck.reason.as_str(), begun(&stuck.step)),
        (None, None) => ("", None),
    };
    match step {
        Some(step) if reason == DIVERGED => Cut::Divergence(step),
        step => Cut::Failures(step),
    }
}

fn answered(answer: CommitAnswer) -> Result<Submitted, SubmitError> {
    match answer {
        CommitAnswer::Exists { entity, same: true } => {
            Ok(Submitted { id: entity, existed: true, near: false })
        }
        CommitAnswer::Exists { entity, same: false } => Err(SubmitError::OtherInput(entity)),
        CommitAnswer::Refused(why) => Err(SubmitError::Refused(why.to_string())),
        other => Err(SubmitError::Refused(format!("the store answered {other:?}"))),
    }
}

fn unique(tenant: &str, key: &str, flow: &str, input: &Value) -> UniqueKey {
    let mut bytes = flow.as_bytes().to_vec();
    bytes.push(0);
    bytes.extend(canonical::bytes(input));
    UniqueKey { key: found::key_row(tenant, key), digest: Hash::of(&bytes) }
}

fn fork_key(
    tenant: &str,
    key: &str,
    origin: EntityId,
    before: Option<&StepId>,
    version: u32,
) -> UniqueKey {
    let step = before.map_or("", |s| s.0.as_str());
    let digest = Hash::of(format!("{origin}\0{step}\0{version}").as_bytes());
    UniqueKey { key: format!("fork/{}/{tenant}/{key}", tenant.len()), digest }
}

/// The step is not part of it: it follows from the origin, and from what was said about it after its end. Were
/// it, one more word about the origin would make room for one more job that does what is left.
fn retry_key(origin: EntityId, version: u32) -> UniqueKey {
    let digest = Hash::of(format!("{origin}\0{version}").as_bytes());
    UniqueKey { key: format!("retry/{origin}"), digest }
}

fn ms(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

/// Whether an input is small enough for the head. Only then does a fresh job start without its history.
pub fn fits_head(input: &Value) -> bool {
    crate::model::small(input, limits::INPUT_IN_HEAD_BYTES_MAX).is_some()
}

/// A step event as it is copied into a fork.
pub(crate) fn copy(event: &StepEvent) -> Value {
    serde_json::to_value(event).unwrap_or(Value::Null)
}
