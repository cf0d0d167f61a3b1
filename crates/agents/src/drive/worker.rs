//! The loop over the steps of one turn that is held.
//!
//! Mail is read before every step, beside the model while it is asked, and before whatever ends the tenure: a stop cancels
//! the question and ends the turn, a result that comes early is kept for the suspend. What mail means is decided by
//! the machine ([`on_mail`]), as if nobody held the turn.

use super::{
    answer::{self, Follows},
    calls::{self, Ground, Jobs},
    conversation::{self, Conversation},
    load,
    model::{Model, NoReply, Question, Reply},
    profile::{self, Profile},
};
use crate::{
    rules::on,
    turn::{
        act,
        decide::on_mail,
        model::{Turn, TurnEvent, TurnState},
    },
    words::Fault,
};
use serde_json::Value;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tenure_engine::{
    session::Hint,
    worker::{Handler, Held, HoldError},
};
use tenure_kernel::{
    error::StoreError,
    machine::{Cx, Decision},
    runtime::{BoxFuture, First, first},
    store::Store,
    stream::Body,
    time::Timestamp,
};
use tenure_steps::tool::{CallParts, ToolCtx};
use tokio::sync::watch;

/// Points at which a drill or a test can interfere.
pub mod points {
    /// Claimed, nothing read yet.
    pub const CLAIMED: &str = "turn_claimed";
    /// The step is on record as begun, the model is not asked yet.
    pub const STEP_BEGUN: &str = "step_begun";
    /// The model has answered, nothing of it is recorded.
    pub const MODEL_ANSWERED: &str = "model_answered";
    /// The step is finished on record.
    pub const STEP_RECORDED: &str = "step_recorded";
    /// All of them.
    pub const ALL: [&str; 4] = [CLAIMED, STEP_BEGUN, MODEL_ANSWERED, STEP_RECORDED];
}

/// Called with the name of a point; returns when the worker may go on.
pub type Probe = Arc<dyn Fn(&'static str) -> BoxFuture<'static, ()> + Send + Sync>;

/// What all turns of a worker share.
pub struct TurnShop {
    /// Who is asked.
    pub model: Arc<dyn Model>,
    /// Makes jobs of calls.
    pub jobs: Arc<dyn Jobs>,
    /// How long a worker that is asked to stop waits for a model before it gives the turn back.
    pub grace: Duration,
    /// Before the second question of a step; doubles.
    pub backoff: Duration,
    /// See [`points`].
    pub probe: Option<Probe>,
}

/// The longest pause between two questions of a step, unless the model asks for a longer one. How often it is asked is not
/// counted: a model that is away is waited for as long as the step may take, or a minute's outage would end every turn.
const BACKOFF_MAX: Duration = Duration::from_secs(10);

impl TurnShop {
    /// One that asks this model.
    pub fn new(model: Arc<dyn Model>, jobs: Arc<dyn Jobs>) -> Self {
        let (grace, backoff) = (Duration::from_secs(2), Duration::from_millis(500));
        TurnShop { model, jobs, grace, backoff, probe: None }
    }

    /// See [`points`].
    pub fn with_probe(mut self, probe: Probe) -> Self {
        self.probe = Some(probe);
        self
    }

    async fn at(&self, point: &'static str) {
        if let Some(probe) = &self.probe {
            probe(point).await;
        }
    }
}

/// The handler of a worker that runs turns.
pub struct TurnWorker(pub Arc<TurnShop>);

impl Handler for TurnWorker {
    fn run(&self, held: Held) -> BoxFuture<'static, Held> {
        let shop = self.0.clone();
        Box::pin(drive(shop, held))
    }
}

async fn drive(shop: Arc<TurnShop>, held: Held) -> Held {
    let rt = held.keeper().pipeline().rt().clone();
    let store = held.keeper().pipeline().store().clone();
    let clock = (held.head.changed_at, rt.mono());
    let mut run = Run { shop, held, store, talk: Conversation::default(), clock };
    match run.go().await {
        Ok(()) | Err(Halt::Over | Halt::Hold(HoldError::Lost)) => {}
        Err(Halt::Fault(fault)) => run.fail(fault).await,
        Err(Halt::Hold(HoldError::Refused(why))) => {
            tracing::error!(turn = %run.held.id(), %why, "a commit of a turn was refused");
            run.fail(Fault { code: "internal_error".into(), message: why }).await;
        }
        Err(Halt::Hold(HoldError::Store(e))) if !e.is_transient() => {
            tracing::error!(turn = %run.held.id(), error = %e, "a turn can not be gone on with");
            run.fail(Fault { code: "internal_error".into(), message: e.to_string() }).await;
        }
        Err(Halt::Hold(e)) => {
            tracing::warn!(turn = %run.held.id(), error = %e, "a turn is left");
            // If even that can not be written, the lease lapses.
            let _ = run.give_back("the store did not answer").await;
        }
    }
    run.held
}

/// Why a worker does not go on with a turn.
enum Halt {
    /// The turn has ended, or is parked.
    Over,
    /// It fails.
    Fault(Fault),
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

fn fault(code: &str, message: impl Into<String>) -> Halt {
    Halt::Fault(Fault { code: code.to_owned(), message: message.into() })
}

struct Run {
    shop: Arc<TurnShop>,
    held: Held,
    store: Arc<dyn Store>,
    talk: Conversation,
    /// The store's time at a moment of this process's clock.
    clock: (Timestamp, Duration),
}

impl Run {
    fn mono(&self) -> Duration {
        self.held.keeper().pipeline().rt().mono()
    }

    fn now(&self) -> Timestamp {
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

    fn state(&self) -> Result<TurnState, Halt> {
        Ok(load::state_of(&self.held.head)?)
    }

    /// What is left until the turn must end.
    fn left(&self) -> Duration {
        let end = self.held.head.must_end_by;
        end.map_or(crate::rules::MUST_END_IN, |end| end.since(self.now()))
    }

    async fn go(&mut self) -> Result<(), Halt> {
        self.shop.at(points::CLAIMED).await;
        self.talk = load::conversation(&self.store, self.held.id(), &self.state()?).await?;
        loop {
            if self.held.head.has_mail() {
                self.read_mail().await?;
            }
            load::fetch(&self.store, &mut self.talk).await?;
            if self.talk.is_too_large() {
                return Err(fault(conversation::TOO_LARGE, self.talk.too_large()));
            }
            if let Some(ends) = self.talk.ends() {
                return self.deliver(ends.status, ends.content).await;
            }
            if self.held.stopping() {
                return self.give_back("its worker stops").await;
            }
            self.step().await?;
        }
    }

    /// One step, from its question to what follows from the answer.
    async fn step(&mut self) -> Result<(), Halt> {
        let (profile, copy) = self.profile().await?;
        let left = self.talk.steps_left(&profile);
        if left == 0 {
            let why = format!("{} steps, and the turn has not ended", profile.max_steps);
            return Err(fault("max_steps_exceeded", why));
        }
        let state = self.state()?;
        let timeout = profile.step_timeout.min(self.left());
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).max(1);
        let decision = act::start_step(&state, &self.cx(), timeout_ms, copy);
        self.record(decision).await?;
        self.shop.at(points::STEP_BEGUN).await;
        let reply = self.ask(&profile, left == 1, timeout).await?;
        self.shop.at(points::MODEL_ANSWERED).await;
        self.take(&profile, left == 1, reply).await
    }

    /// The profile under which the turn runs, and the copy that its first step takes.
    async fn profile(&mut self) -> Result<(Profile, Value), Halt> {
        let (value, copy) = match &self.talk.profile {
            Some(value) => (value.clone(), Value::Null),
            None => {
                let state = self.state()?;
                // By name and its own tenant: the id in a state could be anybody's.
                let tenant = &self.held.head.tenant;
                let agent = load::agent(&self.store, tenant, &state.agent_name).await?;
                let Some(agent) = agent else {
                    let why = format!("there is no agent {:?} any more", state.agent_name);
                    return Err(fault("unknown_agent", why));
                };
                let (jobs, given) = (&*self.shop.jobs, agent.spec.profile);
                let value = load::described(&self.store, tenant, jobs, given).await;
                (value.clone(), value)
            }
        };
        let profile =
            profile::recorded(&value).map_err(|why| fault("bad_profile", why.join("; ")))?;
        Ok((profile, copy))
    }

    /// Commits what the holder decided.
    async fn record(&mut self, decision: Decision<TurnEvent>) -> Result<(), Halt> {
        let events = decision.events.clone();
        let committed = self.held.record::<Turn>(decision, &[]).await?;
        self.heard(committed.map(|c| c.at), &events)
    }

    fn heard(&mut self, at: Option<Timestamp>, events: &[TurnEvent]) -> Result<(), Halt> {
        if let Some(at) = at {
            self.clock = (at, self.mono());
        }
        events.iter().for_each(|e| self.talk.take(e));
        if self.held.is_over() { Err(Halt::Over) } else { Ok(()) }
    }

    /// Reads the mail that is there, if any.
    async fn read_mail(&mut self) -> Result<(), Halt> {
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
        let events = decision.events.clone();
        let committed = self.held.record::<Turn>(decision, &mail).await?;
        self.heard(committed.map(|c| c.at), &events)
    }

    /// Asks the model, beside whatever else may happen.
    async fn ask(
        &mut self,
        profile: &Profile,
        last_step: bool,
        timeout: Duration,
    ) -> Result<Reply, Halt> {
        let question = Question {
            settings: profile.model.clone(),
            messages: self.talk.messages(profile),
            tools: profile.offered(last_step),
        };
        let until = self.mono() + timeout;
        let mut tries = 0;
        loop {
            tries += 1;
            let time = until.saturating_sub(self.mono()).min(profile.one_try());
            let asked = self.ask_once(question.clone(), time, tries).await?;
            let mut code = "model_unavailable";
            let (why, after) = match asked {
                Some(Ok(reply)) => return Ok(reply),
                Some(Err(NoReply::Refused(why))) => return Err(fault("model_refused", why)),
                Some(Err(NoReply::Transient(why, after))) => (why, after),
                None => {
                    code = "model_timeout";
                    (format!("no answer within {} ms", time.as_millis()), None)
                }
            };
            let backoff =
                self.shop.backoff.saturating_mul(2u32.saturating_pow(tries - 1)).min(BACKOFF_MAX);
            let pause = after.map_or(backoff, |after| backoff.max(after));
            if self.mono().saturating_add(pause) >= until {
                return Err(fault(code, format!("asked {tries} times: {why}")));
            }
            tracing::debug!(turn = %self.held.id(), %why, "the model is asked again");
            let state = self.state()?;
            self.record(act::progress(&state, &self.cx(), &format!("asking again: {why}"))).await?;
            let nap = self.held.keeper().pipeline().rt().sleep(pause);
            self.beside(nap, None).await?;
        }
    }

    /// One question; `None` where its time is up.
    async fn ask_once(
        &mut self,
        question: Question,
        time: Duration,
        tries: u32,
    ) -> Result<Option<Result<Reply, NoReply>>, Halt> {
        let state = self.state()?;
        let (_keep, stop) = watch::channel(false);
        let ctx = ToolCtx::new(CallParts {
            job: self.held.id(),
            step: state.step.to_string(),
            key: format!("{}/{}/{}", self.held.id(), state.step, state.attempt),
            epoch: self.held.head.epoch,
            call: tries,
            not_after: self.now() + time,
            timeout: time,
            tenant: self.held.head.tenant.clone(),
            stop,
        });
        let shown = ctx.shown();
        let asking = self.shop.model.ask(ctx, question);
        let nap = self.held.keeper().pipeline().rt().sleep(time);
        let asking = async move {
            match first(asking, nap).await {
                First::Left(reply) => Some(reply),
                First::Right(()) => None,
            }
        };
        self.beside(Box::pin(asking), Some(shown)).await
    }

    /// Waits for something, and sees to everything else meanwhile: mail, progress, a worker that has to stop.
    async fn beside<T>(
        &mut self,
        work: BoxFuture<'static, T>,
        shown: Option<Arc<tenure_steps::tool::Progress>>,
    ) -> Result<T, Halt> {
        let rt = self.held.keeper().pipeline().rt().clone();
        let every = progress_every(&self.state()?);
        let mut work = work;
        let mut stopping: BoxFuture<'static, ()> = Box::pin(self.held.until_stopping());
        let mut stopped = false;
        let mut nap = rt.sleep(every);
        loop {
            let others = first(self.held.wait_for_mail(), first(&mut stopping, &mut nap));
            match first(&mut work, others).await {
                First::Left(done) => return Ok(done),
                First::Right(First::Left(Hint::Lost)) => return Err(HoldError::Lost.into()),
                First::Right(First::Left(_)) => self.read_mail().await?,
                First::Right(First::Right(First::Left(()))) if stopped => {
                    return self.give_back("its worker stops").await.and(Err(Halt::Over));
                }
                First::Right(First::Right(First::Left(()))) => {
                    // It may be nearly done.
                    stopped = true;
                    stopping = rt.sleep(self.shop.grace);
                }
                First::Right(First::Right(First::Right(()))) => {
                    let note = shown.as_ref().map(|s| s.note()).unwrap_or_default();
                    let state = self.state()?;
                    self.record(act::progress(&state, &self.cx(), &note)).await?;
                    nap = rt.sleep(every);
                }
            }
        }
    }

    /// Records an answer of the model, and what follows from it.
    async fn take(&mut self, profile: &Profile, last_step: bool, reply: Reply) -> Result<(), Halt> {
        let mut read = reply.message.clone();
        let state = self.state()?;
        let asked = calls::read(&mut read, state.step);
        let agents = self.agents(calls::agents_named(&asked, profile)).await?;
        let rt = self.held.keeper().pipeline().rt().clone();
        let (jobs, tenant) = (self.shop.jobs.clone(), self.held.head.tenant.clone());
        let with = (&rt, &self.store);
        let misfits = calls::misfits(with, &tenant, &*jobs, profile, &asked).await;
        loop {
            let state = self.state()?;
            let ground = Ground {
                turn: self.held.id(),
                tenant: &self.held.head.tenant,
                state: &state,
                step: state.step,
                left: self.left(),
                profile,
                agents: &agents,
                jobs: &*self.shop.jobs,
                misfits: &misfits,
                last_step,
            };
            let follows = answer::follows(&ground, &self.cx(), &self.talk, reply.clone());
            match self.commit(follows).await {
                Err(Halt::Hold(HoldError::MoreMail)) => self.read_mail().await?,
                Ok(()) => {
                    self.shop.at(points::STEP_RECORDED).await;
                    return Ok(());
                }
                Err(Halt::Over) => {
                    self.shop.at(points::STEP_RECORDED).await;
                    return Err(Halt::Over);
                }
                Err(other) => return Err(other),
            }
        }
    }

    async fn commit(&mut self, follows: Follows) -> Result<(), Halt> {
        let events = follows.decision.events.clone();
        let id = self.held.keeper().pipeline().commit_id();
        let commit = answer::commit(&self.held.head, follows, &[], id)
            .map_err(|e| HoldError::Refused(e.to_string()))?;
        let Some(commit) = commit else { return Ok(()) };
        let at = self.held.commit(commit).await?.at;
        self.heard(Some(at), &events)
    }

    async fn agents(
        &self,
        names: impl IntoIterator<Item = String>,
    ) -> Result<BTreeMap<String, crate::agent::Spec>, Halt> {
        let mut known = BTreeMap::new();
        for name in names {
            if let Some(agent) = load::agent(&self.store, &self.held.head.tenant, &name).await? {
                known.insert(name, agent.spec);
            }
        }
        Ok(known)
    }

    /// Ends the turn with something that a tool delivered.
    async fn deliver(
        &mut self,
        status: crate::words::EndStatus,
        content: Value,
    ) -> Result<(), Halt> {
        loop {
            let decision = act::finish(&self.state()?, &self.cx(), None, status, content.clone());
            match self.record(decision).await {
                Err(Halt::Hold(HoldError::MoreMail)) => self.read_mail().await?,
                done => return done,
            }
        }
    }

    async fn give_back(&mut self, why: &str) -> Result<(), Halt> {
        let state = self.state()?;
        let id = self.held.keeper().pipeline().commit_id();
        let parted = act::give_back(&state, &self.cx(), why);
        if !parted.parks {
            return self.record(parted.decision).await;
        }
        let commit = act::parting(&self.held.head, state, parted.decision, id, None);
        self.held.commit(commit).await?;
        Err(Halt::Over)
    }

    /// The turn fails. If even that is refused, its tenure ends and the rules end the turn.
    async fn fail(&mut self, fault: Fault) {
        if !self.held.may_act() {
            return;
        }
        let Ok(state) = self.state() else { return };
        let decision = act::fail(&state, &self.cx(), None, fault);
        if let Err(Halt::Hold(e)) = self.record(decision).await {
            tracing::warn!(turn = %self.held.id(), error = %e, "a turn could not be failed");
        }
    }
}

/// How often a worker says that it is at it: three times before anybody would take it for hung.
pub(super) fn progress_every(state: &TurnState) -> Duration {
    let rules = &state.rules;
    let shortest =
        [on(rules.inbox_processing_ms), on(rules.active_reap_ms)].into_iter().flatten().min();
    (shortest.unwrap_or(Duration::from_secs(300)) / 3).max(Duration::from_millis(10))
}
