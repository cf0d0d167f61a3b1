//! One job in the hands of a worker: what is known of it, and the loop of [`super`]. How it begins is in `begin`, what
//! comes from outside in `listen`, what goes out in `write`, how it comes to rest in `rest`.

use super::{
    Reach,
    calls::{Finished, Start},
    hand::Foreign,
    load::{LoadError, Loaded},
};
use crate::{
    decide::{self, AskMail, timers},
    model::{Failure, Job, JobEvent, JobState, NewJob, OwnEvent, limits},
};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};
use tenure_engine::{
    session::Keeper,
    worker::{Held, HoldError},
};
use tenure_kernel::{
    head::Head, ids::EntityId, machine::Machine, mail::Mail, outbox::Message, time::Timestamp,
    timers::TimerChange,
};
use tenure_steps::{
    desk::Asked,
    driver::{Driver, End, Turn},
    events::{InLine, StepEvent, StepId, Token},
    flow::FlowError,
};
use tokio::sync::{mpsc, watch};

/// A flow, and what is known about its job. Outlives a tenure while it stays in memory.
pub(crate) struct Core {
    pub loaded: Loaded,
    pub driver: Driver,
    /// What the flow has asked for and not been given. Sorted, because what is looked at again is started in
    /// this order, and the simulation replays it.
    pub asks: BTreeMap<StepId, Arc<Asked>>,
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
    pub(super) timeout: Duration,
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
    /// Where steps that wait here stand in lines.
    pub lines: BTreeMap<StepId, Vec<InLine>>,
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
    pub(super) done: mpsc::UnboundedReceiver<Finished>,
    pub(super) tell: mpsc::UnboundedSender<Finished>,
    /// The store's time of the last commit, and when that was on this process's clock.
    pub(super) time: (Timestamp, Duration),
}

/// Whether the drive goes on.
#[derive(PartialEq, Eq)]
pub(crate) enum Next {
    Again,
    /// Parked, ended, or given back.
    Over,
}

pub(crate) type Go = Result<(), HoldError>;

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
            lines: BTreeMap::new(),
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
            lines: BTreeMap::new(),
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

    /// Somebody has cancelled it, or it can not go on.
    pub(super) fn is_stopping(&self) -> bool {
        self.state().cancel.is_some()
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
    pub(super) async fn begin(&mut self, held: &mut Held, turn: Turn) -> Go {
        // The cancel took the flow's timers away, and they stay away; see `begin_undoing` for those of undos.
        if !self.is_stopping() {
            self.rearm(held);
        }
        self.core.driver.set_now(self.now());
        for (step, output) in std::mem::take(&mut self.core.loaded.fetched) {
            // The child may be gone by the next time somebody has to know.
            self.record(StepEvent::ChildOutputTaken { step, output });
        }
        if self.is_stopping() {
            return self.absorb(turn).await;
        }
        if self.state().pausing || self.state().paused {
            self.pause = Some(AskMail::default());
        }
        // A flow that stayed in memory: what happened meanwhile may let its open steps go on.
        let open: Vec<Arc<Asked>> = self.core.asks.values().cloned().collect();
        open.iter().for_each(|asked| self.look_again(asked));
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

    pub(super) async fn go(&mut self, held: &mut Held) -> Go {
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
            self.wake_aside();
            self.advance().await?;
            if self.turn_over(held).await? == Next::Over {
                return Ok(());
            }
        }
    }

    /// Why nobody else gets a call of this job, where too many workers were lost with calls of it.
    pub(super) fn lost_too_many(&self) -> Option<Failure> {
        decide::lost_too_many(self.state(), &self.core.loaded.history.losses)
    }

    /// One decision: end, commit, park, or wait for something to come.
    async fn turn_over(&mut self, held: &mut Held) -> Result<Next, HoldError> {
        if self.is_stopping() {
            return self.cancelling(held).await;
        }
        if let Some(failure) = self.lost_too_many().or_else(|| self.too_long()) {
            return self.fail_for_good(held, failure).await;
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
            if !held_back && self.wake_aside() {
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
    pub(super) async fn replay(&mut self, held: &Held) -> Go {
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
            | StepEvent::EffectSettled { result, .. }
            | StepEvent::EffectCorrected { result, .. },
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

pub(crate) fn hold_error(e: LoadError) -> HoldError {
    match e {
        LoadError::Store(e) => HoldError::Store(e),
        LoadError::Unreadable(why) => HoldError::Refused(why),
    }
}
