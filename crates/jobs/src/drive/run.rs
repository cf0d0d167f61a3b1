//! One job in the hands of a worker: the loop of [`super`], and what each thing that comes leads to.

use super::{
    Reach, Shop,
    calls::{self, Finished, How, Start, Testimony},
    hand::Foreign,
    load::{LoadError, Loaded},
    points,
    settling::Learnt,
};
use crate::{
    decide::{self, AskMail, MailSays, timers},
    model::{Attention, Job, JobEvent, JobState, NewJob, OpenTimer, OwnEvent, limits},
};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};
use tenure_engine::{
    session::{Hint, Keeper},
    worker::{Held, HoldError},
};
use tenure_kernel::{
    commit::MailStance,
    head::Head,
    ids::EntityId,
    limits as kernel_limits,
    machine::{Decision, Input, Machine, draft},
    mail::Mail,
    outbox::{Message, Target},
    runtime::{First, first},
    table::Class,
    time::Timestamp,
    timers::TimerChange,
};
use tenure_steps::{
    desk::Asked,
    driver::{Driver, End, Turn, World},
    events::{CallOutcome, StepEvent, StepId, TimerWhy, Token, What},
    flow::FlowError,
    saga::Undo,
};
use tokio::sync::{mpsc, watch};

/// A flow, and what is known about its job. Outlives a tenure while it stays in memory.
pub(crate) struct Core {
    pub loaded: Loaded,
    pub driver: Driver,
    /// What the flow has asked for and not been given. Sorted, because what is looked at again is started in
    /// this order, and the simulation replays it.
    pub asks: BTreeMap<StepId, Asked>,
    /// How much of the history's order the flow has been given.
    pub delivered: usize,
    /// How the flow ended, if it has.
    pub end: Option<End>,
    /// Tool steps that wait for a free place, or for the end of a pause.
    pub queue: VecDeque<StepId>,
    /// What came out of the first poll of an unborn job.
    pub first: Option<Turn>,
}

/// A flow that nobody drives at the moment.
pub(crate) struct Still {
    pub core: Core,
    pub version: u64,
    /// Under which epoch it was driven last.
    pub epoch: u64,
    pub bytes: usize,
    /// Calls that are committed and not made yet.
    pub starts: Vec<Start>,
    /// What came out of the replay.
    pub turn: Turn,
}

/// A step that only a person, or time, can move.
pub(crate) struct Stuck {
    pub step: StepId,
    pub why: String,
    pub again_in: Option<Duration>,
}

/// A task that runs.
pub(crate) struct Running {
    pub step: StepId,
    pub stop: watch::Sender<bool>,
    timeout: Duration,
}

/// Events that wait for the next commit, and what goes with them.
#[derive(Default)]
pub(crate) struct Pending {
    pub events: Vec<JobEvent>,
    pub timers: Vec<TimerChange>,
    pub messages: Vec<Message>,
    /// What is handed to other workers, each with the place of its event: it goes into the same commit.
    pub handed: Vec<(usize, Message)>,
    /// Mail that the events answer.
    pub mail: Vec<Mail>,
}

/// A job in the hands of this worker: everything but the hold itself, which a job that is just being
/// born does not have yet.
pub(crate) struct Run {
    pub reach: Reach,
    pub keeper: Keeper,
    pub id: EntityId,
    pub tenant: String,
    pub epoch: u64,
    pub core: Core,
    pub starts: Vec<Start>,
    pub stuck: Vec<Stuck>,
    /// By idempotency key.
    pub running: BTreeMap<String, Running>,
    pub pending: Pending,
    pub must_end_by: Option<Timestamp>,
    pub priority: i16,
    /// Tools that this worker has not, by name.
    pub foreign: BTreeMap<String, Foreign>,
    /// When something was last committed, on this process's clock.
    pub moved_at: Duration,
    pub dropped: HashSet<StepId>,
    /// It is being created, and not there yet.
    pub unborn: bool,
    /// Steps that wait here for a limit, and until when.
    pub limited: BTreeMap<StepId, Timestamp>,
    /// Steps that wait behind them.
    pub aside: BTreeSet<StepId>,
    /// Tokens of steps that wait here.
    pub tokens: BTreeMap<StepId, Vec<Token>>,
    pub cancel: Option<AskMail>,
    /// Steps of a cancelled job of which it is being found out whether they happened.
    pub finding: BTreeSet<StepId>,
    /// Those of which nobody could say.
    pub unknowable: BTreeSet<StepId>,
    /// The flow is gone, and what undoes its steps runs in its place.
    pub undoing: bool,
    pub pause: Option<AskMail>,
    pub draining: bool,
    /// Mail up to here is in `pending`.
    pub seen: u64,
    pub look_for_mail: bool,
    done: mpsc::UnboundedReceiver<Finished>,
    tell: mpsc::UnboundedSender<Finished>,
    /// The store's time of the last commit, and when that was on this process's clock.
    time: (Timestamp, Duration),
}

/// Whether the drive goes on.
#[derive(PartialEq, Eq)]
pub(crate) enum Next {
    Again,
    /// Parked, ended, or given back.
    Over,
}

pub(crate) type Go = Result<(), HoldError>;

/// Drives a job until it ends, waits, or is lost.
pub(crate) async fn drive(shop: Arc<Shop>, mut held: Held) -> Held {
    let pipeline = held.keeper().pipeline().clone();
    let reach = Reach { shop: shop.clone(), pipeline };
    reach.shop.at(points::CLAIMED).await;
    let job = held.id();
    match prepare(&reach, &held).await {
        Ok(still) => {
            let mut run = Run::new(reach, held.keeper().clone(), &held.head, still.core);
            run.launch(still.starts, held.head.changed_at);
            let went = match run.begin(&mut held, still.turn).await {
                Ok(()) => run.go(&mut held).await,
                Err(e) => Err(e),
            };
            match went {
                Ok(()) => run.starts.clear(),
                Err(HoldError::Lost) => tracing::info!(%job, "lost to another worker"),
                Err(e) => tracing::warn!(%job, error = %e, "given back"),
            }
            run.stop_everything().await;
        }
        Err(LoadError::Store(e)) => {
            tracing::warn!(%job, error = %e, "the history can not be read now");
        }
        Err(LoadError::Unreadable(why)) => unreadable(&mut held, why).await,
    }
    if held.head.class() == Class::Final {
        shop.ends.tell(job, held.head.status.name());
    }
    held
}

/// A history that nobody can read stops the job in `attention`, with the reason.
async fn unreadable(held: &mut Held, why: String) {
    let attention = Attention { reason: "broken".into(), step: None, why, again_in_ms: None };
    let decision = Decision::event(OwnEvent::JobAttention(attention).into())
        .timer(TimerChange::clear(timers::PROGRESS));
    if let Err(e) = commit_park(held, decision, "broken", None).await {
        tracing::warn!(job = %held.id(), error = %e, "a job with an unreadable history");
    }
}

/// A commit that gives up tenure. `read` says up to where mail was read: more refuses it.
pub(crate) async fn commit_park(
    held: &mut Held,
    decision: Decision<JobEvent>,
    why: &str,
    read: Option<u64>,
) -> Result<u64, HoldError> {
    let refused = |e: tenure_kernel::machine::Undecided| HoldError::Refused(e.to_string());
    let state = held.state::<Job>()?;
    let drafted = draft::<Job>(Some(&held.head), state, decision, &Input::TenureEnded(why));
    let Some(drafted) = drafted.map_err(refused)? else { return Ok(held.head.version) };
    let id = held.keeper().pipeline().commit_id();
    let mut commit = drafted.into_commit(id, held.id(), held.expect());
    commit.mail = read.map_or(MailStance::Regardless, MailStance::ReadAll);
    held.commit(commit).await.map(|c| c.version)
}

async fn prepare(reach: &Reach, held: &Held) -> Result<Still, LoadError> {
    let store = reach.pipeline.store();
    let (job, head) = (held.id(), &held.head);
    if let Some(mut still) = reach.shop.memory.take(job) {
        if still.version == head.version {
            return Ok(still);
        }
        // Let go and claimed again, and nobody in between: what is new was decided without a holder. A flow that
        // somebody else has driven meanwhile is replayed.
        if head.epoch == still.epoch + 2 && !reach.shop.options.replay_always {
            still.core.loaded.read(store, job, still.version + 1).await?;
            still.core.loaded.fetch_children(store, job).await?;
            if still.core.loaded.version == head.version && still.core.end.is_none() {
                return Ok(still);
            }
        }
    }
    let state: JobState = held.state::<Job>().map_err(|e| LoadError::Unreadable(e.to_string()))?;
    // Created and claimed, or created and started by its birth, and nothing else: the head says it all. A flow
    // that was started afresh counts its events anew: there one event more may be a call.
    let untouched = state.run == 1
        && (state.events == 1 || (state.events, head.version, head.epoch) == (2, 2, 1));
    let mut loaded = match (&state.input, untouched) {
        (Some(input), true) => Loaded {
            input: input.clone(),
            state: state.clone(),
            version: head.version,
            ..Loaded::default()
        },
        _ => super::load(store, job).await?,
    };
    if let Some(session) = head.holder {
        loaded.holders.insert(head.epoch, session);
    }
    loaded.history.forget(reach.shop.options.forget);
    let entropy = reach.pipeline.rt().random();
    let (core, turn) =
        Core::start(&reach.shop, job, &head.tenant, loaded, head.changed_at, entropy)?;
    reach.shop.at(points::REPLAYED).await;
    let (version, epoch) = (head.version, head.epoch);
    Ok(Still { core, version, epoch, bytes: 0, starts: Vec::new(), turn })
}

impl Core {
    /// Replays a flow.
    pub fn start(
        shop: &Shop,
        job: EntityId,
        tenant: &str,
        loaded: Loaded,
        now: Timestamp,
        entropy: u64,
    ) -> Result<(Self, Turn), LoadError> {
        let (name, version) = (&loaded.state.flow, loaded.state.version);
        let flow = shop.flows.get(name, version).ok_or_else(|| {
            LoadError::Unreadable(format!("this worker does not know the flow {name}@{version}"))
        })?;
        let run = loaded.state.run;
        let world = World { job, tenant: tenant.to_owned(), run, now, entropy };
        // A cancelled job is undone without its flow, which knows nothing of those steps.
        let cut = loaded.state.cancel.is_some().then(|| loaded.history.without_undos());
        let seen = cut.as_ref().unwrap_or(&loaded.history);
        let (driver, turn) = Driver::start(flow, loaded.input.clone(), seen, world);
        let delivered = loaded.history.order.len();
        let (asks, queue) = (BTreeMap::new(), VecDeque::new());
        Ok((Core { loaded, driver, asks, delivered, end: None, queue, first: None }, turn))
    }
}

impl Run {
    pub fn new(reach: Reach, keeper: Keeper, head: &Head, core: Core) -> Self {
        let (tell, done) = mpsc::unbounded_channel();
        let time = (head.changed_at, reach.pipeline.rt().mono());
        Run {
            reach,
            keeper,
            id: head.id,
            tenant: head.tenant.clone(),
            epoch: head.epoch,
            core,
            starts: Vec::new(),
            stuck: Vec::new(),
            running: BTreeMap::new(),
            pending: Pending::default(),
            must_end_by: head.must_end_by,
            priority: head.priority,
            foreign: BTreeMap::new(),
            moved_at: time.1,
            dropped: HashSet::new(),
            unborn: false,
            limited: BTreeMap::new(),
            aside: BTreeSet::new(),
            tokens: BTreeMap::new(),
            cancel: None,
            finding: BTreeSet::new(),
            unknowable: BTreeSet::new(),
            undoing: false,
            pause: None,
            draining: false,
            seen: head.mail_read,
            look_for_mail: head.has_mail(),
            done,
            tell,
            time,
        }
    }

    /// A job that is not there yet. `None` if this worker does not know its flow.
    pub fn unborn(
        reach: Reach,
        keeper: Keeper,
        id: EntityId,
        tenant: &str,
        new: &NewJob,
        at: Timestamp,
    ) -> Option<Self> {
        let mut loaded = Loaded { input: new.input.clone(), ..Loaded::default() };
        Job::apply(&mut loaded.state, &OwnEvent::JobCreated(Box::new(new.clone())).into());
        Job::apply(&mut loaded.state, &OwnEvent::JobStarted {}.into());
        loaded.holders.insert(1, keeper.id());
        let entropy = reach.pipeline.rt().random();
        let (mut core, turn) = Core::start(&reach.shop, id, tenant, loaded, at, entropy).ok()?;
        core.first = Some(turn);
        let (tell, done) = mpsc::unbounded_channel();
        let time = (at, reach.pipeline.rt().mono());
        Some(Run {
            reach,
            keeper,
            id,
            tenant: tenant.to_owned(),
            // A birth that takes tenure begins with the first epoch.
            epoch: 1,
            core,
            starts: Vec::new(),
            stuck: Vec::new(),
            running: BTreeMap::new(),
            pending: Pending::default(),
            must_end_by: Some(at + Duration::from_millis(new.must_end_in_ms)),
            priority: new.priority,
            foreign: BTreeMap::new(),
            moved_at: time.1,
            dropped: HashSet::new(),
            unborn: true,
            limited: BTreeMap::new(),
            aside: BTreeSet::new(),
            tokens: BTreeMap::new(),
            cancel: None,
            finding: BTreeSet::new(),
            unknowable: BTreeSet::new(),
            undoing: false,
            pause: None,
            draining: false,
            seen: 0,
            look_for_mail: false,
            done,
            tell,
            time,
        })
    }

    /// Polls the flow of an unborn job to its first tool or wait. An error: it does not get there.
    pub async fn first_turn(&mut self) -> Go {
        let turn = self.core.first.take().unwrap_or_default();
        self.absorb(turn).await?;
        self.advance().await?;
        match &self.core.end {
            Some(End::Diverged(_) | End::Broken(_)) => Err(HoldError::Lost),
            Some(End::Returned(Err(FlowError::Continue(_)))) => Err(HoldError::Lost),
            // A flow that ended while a call of it is not even made: the worker sees to that.
            Some(End::Returned(_)) if !self.starts.is_empty() || self.state().is_out() => {
                Err(HoldError::Lost)
            }
            Some(End::Returned(_)) | None => Ok(()),
        }
    }

    /// How an unborn job ends, if its flow never waits for anything.
    pub fn ending_at_birth(&self) -> Option<OwnEvent> {
        matches!(self.core.end, Some(End::Returned(_))).then(|| self.ending())
    }

    /// The flow of a job that was just born.
    pub fn into_still(mut self, version: u64) -> Still {
        self.core.loaded.version = version;
        let starts = std::mem::take(&mut self.starts);
        let (epoch, turn) = (self.epoch, Turn::default());
        Still { core: self.core, version, epoch, bytes: 4_096, starts, turn }
    }

    /// The store's time, as far as this process knows.
    pub fn now(&self) -> Timestamp {
        self.time.0 + self.reach.pipeline.rt().mono().saturating_sub(self.time.1)
    }

    pub fn state(&self) -> &JobState {
        &self.core.loaded.state
    }

    /// An event that will be part of the next commit. The flow may learn of it before: if the commit is
    /// refused the flow is dropped, and nothing that depends on it has left the process.
    pub fn record(&mut self, event: impl Into<JobEvent>) {
        let event = event.into();
        self.core.loaded.bytes += weight(&event);
        let now = self.now();
        Job::apply(&mut self.core.loaded.state, &event);
        if let JobEvent::Step(step) = &event {
            self.core.loaded.history.apply(step, now, self.epoch);
        }
        self.pending.events.push(event);
    }

    /// What comes out of the replay, and timers that a pause took away.
    async fn begin(&mut self, held: &mut Held, turn: Turn) -> Go {
        // The cancel took the flow's timers away, and they stay away; see `begin_undoing` for those of undos.
        if self.state().cancel.is_none() {
            self.rearm(held);
        }
        self.core.driver.set_now(self.now());
        for (step, output) in std::mem::take(&mut self.core.loaded.fetched) {
            // The child may be gone by the next time somebody has to know.
            self.record(StepEvent::ChildOutputTaken { step, output });
        }
        if self.state().cancel.is_some() {
            let (by, why) = self.state().cancel.clone().unwrap_or_default();
            self.cancel = Some(AskMail { by, why });
            return self.absorb(turn).await;
        }
        if self.state().pausing || self.state().paused {
            self.pause = Some(AskMail::default());
        }
        // A flow that stayed in memory: what happened meanwhile may let its open steps go on.
        let open: Vec<Asked> = self.core.asks.values().cloned().collect();
        open.into_iter().for_each(|asked| self.look_again(asked));
        self.absorb(turn).await
    }

    fn rearm(&mut self, held: &Held) {
        let now = self.now();
        let steps = self.core.loaded.history.steps.iter();
        let mut open: Vec<_> = steps.filter(|(_, r)| r.outcome.is_none() && !r.dropped).collect();
        open.sort_by_key(|(step, _)| *step);
        for (step, record) in open {
            let timer = record.timer.map(|(_, at)| (timers::step(step), at));
            let wait = record.deadline.map(|at| (timers::wait(step), at));
            for (name, at) in timer.into_iter().chain(wait) {
                if held.head.timers.get(&name).is_none() {
                    self.pending.timers.push(TimerChange::set(name, at.since(now)));
                }
            }
        }
    }

    async fn go(&mut self, held: &mut Held) -> Go {
        loop {
            if !held.may_act() {
                return Err(HoldError::Lost);
            }
            while let Ok(finished) = self.done.try_recv() {
                self.finished(finished).await?;
            }
            self.read_mail(held).await?;
            self.draining |= held.stopping();
            self.wake_limited();
            self.wake_aside_if_room();
            self.advance().await?;
            if self.turn_over(held).await? == Next::Over {
                return Ok(());
            }
        }
    }

    /// One decision: end, commit, park, or wait for something to come.
    async fn turn_over(&mut self, held: &mut Held) -> Result<Next, HoldError> {
        if self.cancel.is_some() {
            return self.cancelling(held).await;
        }
        if let Some(reason) = self.too_long() {
            return self.end_with(held, OwnEvent::JobFailed(reason)).await;
        }
        let quiet = self.running.is_empty() && self.starts.is_empty();
        if quiet && self.state().calls.is_empty() {
            match &self.core.end {
                Some(End::Returned(Err(FlowError::Continue(_)))) => {
                    return self.continue_afresh(held).await;
                }
                Some(End::Returned(_)) => {
                    let end = self.ending();
                    return self.end_with(held, end).await;
                }
                Some(End::Diverged(_) | End::Broken(_)) | None => {}
            }
        }
        if !self.pending.events.is_empty() || !self.starts.is_empty() {
            self.commit(held).await?;
            return Ok(Next::Again);
        }
        let held_back = self.pause.is_some() || self.draining || self.core.end.is_some();
        // At the limit of open calls nothing more is asked for; what is out with others costs no worker meanwhile.
        let full = self.state().is_out() && self.state().calls.len() >= limits::CALLS_MAX;
        let idle = (self.core.queue.is_empty() || full) && self.limited.is_empty();
        if quiet && (idle || held_back) && self.patience_left().is_none() {
            if !held_back && self.wake_aside_if_room() {
                return Ok(Next::Again);
            }
            return self.park(held).await;
        }
        self.wait(held).await?;
        Ok(Next::Again)
    }

    async fn continue_afresh(&mut self, held: &mut Held) -> Result<Next, HoldError> {
        let Some(End::Returned(Err(FlowError::Continue(input)))) = self.core.end.take() else {
            return Ok(Next::Again);
        };
        self.pending.messages.extend(decide::cancel_others(self.state(), self.id));
        self.pending.timers.push(TimerChange::ClearAll);
        self.record(OwnEvent::JobContinued { input: input.clone() });
        self.core.loaded.input = input;
        self.core.loaded.history.restart();
        self.core.loaded.bytes = 0;
        self.commit(held).await?;
        // In test mode the commit has done so.
        if !self.reach.shop.options.replay_always {
            self.replay(held).await?;
        }
        Ok(Next::Again)
    }

    /// Starts the flow anew, from what is in memory or, in test mode, from the store.
    async fn replay(&mut self, held: &Held) -> Go {
        let loaded = match self.reach.shop.options.replay_always {
            true => super::load(self.reach.pipeline.store(), self.id).await.map_err(hold_error)?,
            false => self.core.loaded.clone(),
        };
        let entropy = self.reach.pipeline.rt().random();
        let (core, turn) =
            Core::start(&self.reach.shop, self.id, &held.head.tenant, loaded, self.now(), entropy)
                .map_err(hold_error)?;
        self.core = core;
        self.dropped.clear();
        self.absorb(turn).await
    }

    pub async fn commit(&mut self, held: &mut Held) -> Go {
        let pending = std::mem::take(&mut self.pending);
        if pending.events.is_empty() {
            // A question to a tool changes nothing, so there is nothing to write first.
            self.pending = pending;
            let starts = std::mem::take(&mut self.starts);
            self.launch(starts, self.now());
            return Ok(());
        }
        let results = uncommitted(&pending.events);
        let (mut events, mut messages, mut timers) =
            (pending.events, pending.messages, pending.timers);
        let (mut handed, mut before) = (pending.handed, 0);
        while events.len() > limits::EVENTS_PER_COMMIT {
            // Messages and timers go first: a child that was created and is not on record yet is asked for again
            // under the same id; one that is on record and was never created would be waited for in vain.
            let rest = events.split_off(limits::EVENTS_PER_COMMIT);
            before += events.len();
            // But nobody may take a call before it is on record as started: it goes with its event.
            let (now, later) = handed.into_iter().partition(|(at, _)| *at < before);
            handed = later;
            let (sent, kept) = creations_first(now, messages, &handed);
            messages = kept;
            let decision = Decision {
                events: std::mem::replace(&mut events, rest),
                timers: std::mem::take(&mut timers),
                messages: sent,
                ..Decision::default()
            };
            held.record::<Job>(decision, &[]).await?;
        }
        let (messages, _) = creations_first(handed, messages, &[]);
        let mut decision = Decision { events, timers, messages, ..Decision::default() };
        decision.timers.extend(self.guard());
        match held.record::<Job>(decision, &pending.mail).await {
            Ok(Some(committed)) => {
                self.time = (committed.at, self.reach.pipeline.rt().mono());
                self.moved_at = self.time.1;
                self.core.loaded.version = committed.version;
                self.core.driver.set_now(committed.at);
                self.look_for_mail |= committed.mail_waiting > 0;
            }
            Ok(None) => {}
            Err(HoldError::Refused(why)) => {
                self.pending.events = results;
                self.refused(held, why).await?;
                return Err(HoldError::Lost);
            }
            Err(e) => {
                self.pending.events = results;
                return Err(e);
            }
        }
        self.reach.shop.at(points::AFTER_COMMIT).await;
        let starts = std::mem::take(&mut self.starts);
        self.launch(starts, self.time.0);
        if self.reach.shop.options.replay_always && self.core.end.is_none() && self.cancel.is_none()
        {
            self.replay(held).await?;
        }
        Ok(())
    }

    /// The guard over this worker: if nothing is committed for longer than everything that runs may take,
    /// the loop takes the job away, however punctually the session is renewed.
    pub fn guard(&self) -> Option<TimerChange> {
        let running = self.running.values().map(|r| r.timeout);
        let longest = running.chain(self.starts.iter().map(|s| s.timeout)).max()?;
        let slack = self.keeper.config().lease * 2 + self.reach.shop.options.stop_grace;
        Some(TimerChange::guard(timers::PROGRESS, longest + slack))
    }

    /// Starts what is committed.
    fn launch(&mut self, starts: Vec<Start>, at: Timestamp) {
        for start in starts {
            if self.stops(&start.step) && start.what == What::Call {
                // Committed as started and never called: not applied, and nobody needs to wonder.
                self.call_over(&start.step, &start.key, start.call, CallOutcome::Cancelled, None);
                self.fail(&start.step, "cancelled", "the job was cancelled".into());
                continue;
            }
            let (stopper, stop) = watch::channel(false);
            let running =
                Running { step: start.step.clone(), stop: stopper.clone(), timeout: start.timeout };
            self.running.insert(start.key.clone(), running);
            let desk = calls::Desk {
                reach: self.reach.clone(),
                keeper: self.keeper.clone(),
                job: self.id,
                tenant: self.tenant.clone(),
                epoch: self.epoch,
                at,
                done: self.tell.clone(),
                stop,
                stopper,
                runs: Some(
                    self.reach.shop.calls.begin(self.id, &start.key, self.epoch, start.call),
                ),
            };
            self.reach.pipeline.rt().spawn(Box::pin(calls::run(desk, start)));
        }
    }

    /// Running tools are told to stop. What they return from here on is evidence, and so is what they have
    /// returned and no commit has taken.
    async fn stop_everything(&mut self) {
        self.running.values().for_each(|r| {
            r.stop.send_replace(true);
        });
        self.done.close();
        let mut late: Vec<(String, u32, StepId, Testimony)> = Vec::new();
        // A commit that was to start them was refused, or nobody knows: whether it is there or not, they were not made.
        for start in std::mem::take(&mut self.starts).into_iter().filter(|s| s.what == What::Call) {
            late.push((start.key, start.call, start.step, Testimony::NeverCalled));
        }
        for event in std::mem::take(&mut self.pending.events) {
            if let JobEvent::Step(StepEvent::ToolInvocationFinished {
                step,
                key,
                call,
                result,
                ..
            }) = event
            {
                late.push((key, call, step, result.map_or(Testimony::Over, Testimony::Result)));
            }
        }
        while let Ok(Finished { step, key, call, how }) = self.done.try_recv() {
            match how {
                How::Returned(result) => late.push((key, call, step, Testimony::of(&result))),
                How::Gone => late.push((key, call, step, Testimony::Over)),
                // The first is not the end of it; the others say it themselves, or nothing about the call.
                How::TimedOut | How::NotCalled | How::Probed(_) | How::Compensated(_) => {}
            }
        }
        for (key, call, step, says) in late {
            let said = calls::Late { job: self.id, epoch: self.epoch, key, call, step, says };
            calls::testify(&self.reach, &self.keeper, said).await;
        }
    }

    pub async fn wait(&mut self, held: &mut Held) -> Go {
        let rt = self.reach.pipeline.rt().clone();
        // Nobody tells a process that its lease has lapsed: it looks itself, well within the margin.
        let look = self.keeper.config().lease / 20;
        let next = [self.patience_left(), self.next_limited()].into_iter().flatten().min();
        let look = rt.sleep(next.map_or(look, |next| next.min(look)));
        let stopping = held.until_stopping();
        let draining = self.draining;
        let drain = async {
            if draining {
                std::future::pending::<()>().await;
            }
            stopping.await;
        };
        let came = first(self.done.recv(), first(held.wait_for_mail(), first(drain, look))).await;
        match came {
            First::Left(Some(finished)) => self.finished(finished).await,
            First::Left(None) => Err(HoldError::Lost),
            First::Right(First::Left(Hint::Lost)) => Err(HoldError::Lost),
            First::Right(First::Left(_)) => {
                self.look_for_mail = true;
                Ok(())
            }
            First::Right(First::Right(First::Left(()))) => {
                self.draining = true;
                Ok(())
            }
            First::Right(First::Right(First::Right(()))) => Ok(()),
        }
    }

    async fn read_mail(&mut self, held: &mut Held) -> Go {
        if !self.look_for_mail {
            return Ok(());
        }
        self.look_for_mail = false;
        let unread = match held.unread().await {
            Err(HoldError::Store(e)) if e.is_transient() => {
                // Mail is durable: it is read when the store is back. Nothing that depends on having read it
                // all gets past the store meanwhile.
                tracing::debug!(job = %self.id, error = %e, "mail can not be read now");
                self.look_for_mail = true;
                return Ok(());
            }
            other => other?,
        };
        let fresh: Vec<Mail> = unread.into_iter().filter(|m| m.seq > self.seen).collect();
        for mail in fresh {
            self.seen = mail.seq;
            let says = decide::read_mail(self.state(), &mail, self.id);
            self.pending.mail.push(mail);
            self.mail_says(says).await?;
        }
        Ok(())
    }

    async fn mail_says(&mut self, says: MailSays) -> Go {
        match says {
            MailSays::Cancel(ask) if self.cancel.is_none() => self.cancelled_by(ask),
            MailSays::Cancel(_) => self.note("cancel: it is being cancelled"),
            MailSays::Pause(_) if self.cancel.is_some() => {
                self.note("pause: it is being cancelled");
            }
            MailSays::Pause(ask) => {
                self.record(OwnEvent::PauseAsked { by: ask.by.clone() });
                self.pause = Some(ask);
            }
            // A job that runs is past its gate.
            MailSays::Nothing(why) | MailSays::GateClosed(why) => self.note(&why),
            MailSays::Evidence(key) => {
                self.note(&format!("evidence: for {key}"));
                let stuck: Vec<StepId> = self.stuck.iter().map(|s| s.step.clone()).collect();
                for step in stuck {
                    // It says something about its own call, and nothing about who is dead.
                    self.settle(&step, Learnt::default()).await?;
                }
            }
            MailSays::CallEnded(mail) => self.came_back(*mail).await?,
            MailSays::Timer(name) => {
                self.pending.timers.push(TimerChange::clear(name.clone()));
                match decide::timer_events(self.state(), &name) {
                    Some(event) => self.take_in(event).await?,
                    None => self.note(&format!("timer_due: nobody waits for {name}")),
                }
            }
            MailSays::Events(events) => {
                for event in events {
                    self.take_in(event).await?;
                }
            }
        }
        Ok(())
    }

    /// An event from outside, and what it sets in motion.
    async fn take_in(&mut self, event: JobEvent) -> Go {
        let moved = match &event {
            JobEvent::Step(StepEvent::WaitCompleted { step, .. }) => {
                self.pending.timers.push(TimerChange::clear(timers::wait(step)));
                None
            }
            JobEvent::Step(
                StepEvent::TimerFired { step } | StepEvent::EffectSettled { step, .. },
            ) => {
                let step = step.clone();
                self.stuck.retain(|s| s.step != step);
                let limit = |t: &OpenTimer| t.step == step && t.why == TimerWhy::Limit;
                if self.state().timers.iter().any(limit) {
                    self.wake_aside();
                }
                Some(step)
            }
            _ => None,
        };
        if matches!(event, JobEvent::Own(OwnEvent::JobResumed { .. })) {
            self.pause = None;
        }
        self.record(event);
        if let Some(step) = moved {
            self.core.queue.push_back(step);
        }
        Ok(())
    }

    fn note(&mut self, what: &str) {
        let what = kernel_limits::clip(what, 256).to_owned();
        self.record(OwnEvent::MailNoted { what });
    }

    fn cancelled_by(&mut self, ask: AskMail) {
        self.pending.messages.extend(decide::cancel_others(self.state(), self.id));
        self.record(OwnEvent::JobCancelling { by: ask.by.clone(), why: ask.why.clone() });
        self.pending.timers.push(TimerChange::ClearAll);
        // A pause that was asked for before does not hold it back.
        (self.cancel, self.pause) = (Some(ask), None);
        self.core.queue.clear();
        // What undoes goes on: that is what a cancel wants as well.
        self.running.values().filter(|r| !Undo::is_undo(&r.step)).for_each(|r| {
            r.stop.send_replace(true);
        });
    }
}

/// About how many bytes an event will have: what it carries, and some for the rest.
fn weight(event: &JobEvent) -> u64 {
    fn of(value: &Value) -> usize {
        match value {
            Value::String(s) => s.len() + 2,
            Value::Array(items) => items.iter().map(|v| of(v) + 1).sum::<usize>() + 2,
            Value::Object(map) => map.iter().map(|(k, v)| k.len() + of(v) + 4).sum::<usize>() + 2,
            Value::Null | Value::Bool(_) | Value::Number(_) => 8,
        }
    }
    let carried = match event {
        JobEvent::Step(StepEvent::ToolInvocationStarted { arguments, .. }) => arguments.as_ref(),
        JobEvent::Step(
            StepEvent::ToolInvocationFinished { result, .. }
            | StepEvent::EffectSettled { result, .. },
        ) => result.as_ref(),
        JobEvent::Step(StepEvent::ValueRecorded { value, .. }) => Some(value),
        JobEvent::Step(
            StepEvent::WaitCompleted { payload, .. } | StepEvent::SignalKept { payload, .. },
        ) => Some(payload),
        JobEvent::Step(StepEvent::ChildOutputTaken { output, .. }) => Some(output),
        JobEvent::Step(StepEvent::ChildEnded { output, .. }) => output.as_ref(),
        JobEvent::Step(StepEvent::CallAnswered { answer, .. }) => answer.result.as_ref(),
        JobEvent::Step(_) | JobEvent::Own(_) => None,
    };
    120 + carried.map_or(0, of) as u64
}

/// Results in events that are about to be committed: if they are not, they are evidence.
fn uncommitted(events: &[JobEvent]) -> Vec<JobEvent> {
    let is_result = |e: &&JobEvent| {
        matches!(
            e,
            JobEvent::Step(StepEvent::ToolInvocationFinished { outcome: CallOutcome::Success, .. })
        )
    };
    events.iter().filter(is_result).cloned().collect()
}

pub(crate) fn hold_error(e: LoadError) -> HoldError {
    match e {
        LoadError::Store(e) => HoldError::Store(e),
        LoadError::Unreadable(why) => HoldError::Refused(why),
    }
}

/// What is sent: new calls first, then the rest, because a cancel that comes before what it is for is lost. What is for a
/// call that is created later is kept until then.
pub(crate) fn creations_first(
    created: Vec<(usize, Message)>,
    messages: Vec<Message>,
    later: &[(usize, Message)],
) -> (Vec<Message>, Vec<Message>) {
    let to = |m: &Message| match m.to {
        Target::Mail(id) | Target::Create { id, .. } => Some(id),
        Target::Wire(_) => None,
    };
    let waits = |m: &Message| to(m).is_some_and(|id| later.iter().any(|(_, c)| to(c) == Some(id)));
    let (kept, now): (Vec<_>, Vec<_>) = messages.into_iter().partition(waits);
    let first = created.into_iter().map(|(_, m)| m);
    (first.chain(now).collect(), kept)
}
