//! Turns in the hands of workers in any language: what they take, and what they say. The HTTP endpoints are a thin cover
//! over this.
//!
//! A far worker is asked only for what a model would be asked for: the next message of a step. Everything else is done
//! here, under the epoch of its claim, with the same commits as those of a worker in this process: mail is read, the step
//! is begun before it is handed out, its answer is recorded with everything that follows from it.
//!
//! A turn whose handing over got lost is simply begun again by whoever takes it next: asking has no effect.

use super::{
    answer::{self, Follows},
    calls::{self, Ground, Jobs},
    conversation::{self, Conversation},
    load,
    model::Reply,
    profile::{self, Profile},
};
use crate::{
    queue_of,
    turn::{
        act,
        decide::on_mail,
        model::{StepDone, TurnState},
    },
    words::{EndStatus, Fault},
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tenure_engine::{claimer::Asked, pipeline::Pipeline, rota::Rota};
use tenure_kernel::{
    commit::{Birth, Commit, CommitAnswer, Expect, TenureChange},
    error::StoreError,
    head::Head,
    ids::{EntityId, SessionId},
    limits as kernel_limits,
    machine::Cx,
    mail::Mail,
    sessions::{self, Opening},
    stream::{Body, NewEvent},
    table::Class,
    time::Timestamp,
};

/// Tries of a commit that somebody else was faster than.
const TRIES: usize = 8;
/// An answer to a poll gets no further turns once it is so large.
const POLL_BYTES: usize = 8 * 1024 * 1024;
/// Turns of the first claim of a poll; each further one asks for twice as many. What is claimed is handed out, so few are
/// claimed until it is known how large they are.
const SLICE_FIRST: usize = 4;

/// A turn that a far worker has, with its step begun: everything that it needs to know.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Handed {
    /// Which.
    pub turn: EntityId,
    /// Under which epoch the worker has it: goes into every answer.
    pub epoch: u64,
    /// The turn's own counter, for tools outside.
    pub turn_epoch: u64,
    /// The agent.
    pub agent: String,
    /// Whose it is.
    pub tenant: String,
    /// The step that is asked for.
    pub step: u32,
    /// How often it was begun.
    pub attempt: u32,
    /// Only the tool that ends the turn is offered.
    pub last_step: bool,
    /// How long the step may take, from now.
    pub timeout_ms: u64,
    /// The turn ends by then, whatever happens: microseconds since 1970 on the store's clock.
    pub must_end_by: Option<Timestamp>,
    /// The agent's profile.
    pub profile: Value,
    /// What was said to the agent.
    pub task: Vec<Value>,
    /// The conversation, as a model reads it.
    pub messages: Vec<Value>,
    /// What may be called, as a model reads it.
    pub tools: Vec<Value>,
    /// What the tools of the last step said.
    pub results: Vec<Value>,
    /// The sender's own name for the turn.
    pub correlation_id: Option<String>,
    /// W3C trace context.
    pub trace: Option<String>,
}

/// What a far worker says.
#[derive(Clone, Debug, PartialEq)]
pub enum Said {
    /// The message of a step.
    Step(u32, Reply),
    /// The turn delivers this, perhaps with a last message.
    Finish(EndStatus, Value, Option<Value>),
    /// It fails.
    Fail(Fault),
    /// It is given back.
    Release(String),
}

/// What became of it.
#[derive(Clone, Debug)]
pub enum Heard {
    /// It counts, also when it was said before. Where the turn stands now, and its next step, if the worker has it still.
    Accepted(&'static str, Option<Box<Handed>>),
    /// The worker has the turn no longer.
    Stale(&'static str, u64),
    /// It is about another step than the one that was handed out.
    WrongStep(u32),
    /// There is no such turn.
    Unknown,
    /// It can not be kept.
    Refused(String),
}

/// Opens a session of a far worker. Its targets stand in the first event, so that any server can answer it.
pub async fn open_session(
    pipeline: &Pipeline,
    tenant: &str,
    opening: Opening,
    targets: &[String],
) -> Result<SessionId, StoreError> {
    let at = pipeline.store().now().await?;
    let id = EntityId::new(at, tenure_engine::birth::random(pipeline));
    let (kind, queue, priority) = (sessions::WORKER.kind, String::new(), 0);
    let birth = Birth { kind, tenant: tenant.to_owned(), queue, priority };
    let mut body = serde_json::to_value(&opening).unwrap_or_default();
    body["targets"] = json!(targets);
    let event = NewEvent::new(sessions::events::OPENED, Body::json(&body));
    let mut commit = Commit::new(pipeline.commit_id(), id, Expect::Absent(birth), vec![event]);
    commit.tenure = TenureChange::Open(opening);
    match pipeline.commit(commit).await? {
        CommitAnswer::Committed(_) => Ok(id),
        other => Err(StoreError::Refused(format!("a session could not be opened: {other:?}"))),
    }
}

/// The targets that a session was opened with.
pub async fn targets_of(
    pipeline: &Pipeline,
    session: SessionId,
) -> Result<Vec<String>, StoreError> {
    let records = pipeline.store().stream(session, 1, 1).await?;
    let first = records.first().and_then(|r| r.events().ok()?.into_iter().next());
    let body: Value = first
        .and_then(|e| tenure_kernel::stored::from_slice(e.body.inline()?).ok())
        .unwrap_or_default();
    let names = body["targets"].as_array().cloned().unwrap_or_default();
    Ok(names.iter().filter_map(|n| n.as_str().map(str::to_owned)).collect())
}

/// Hands turns out and hears what is said. One for each server.
pub struct Far {
    pipeline: Pipeline,
    jobs: Arc<dyn Jobs>,
    /// Which target, and which tenant of it, comes next.
    rota: Rota,
}

impl Far {
    /// One that makes jobs of calls like this.
    pub fn new(pipeline: Pipeline, jobs: Arc<dyn Jobs>) -> Self {
        Far { pipeline, jobs, rota: Rota::default() }
    }

    /// Claims up to `n` turns of these targets, of those tenants that the asker sees, and begins their steps.
    pub async fn take(
        &self,
        (session, lease): (SessionId, Duration),
        targets: &[String],
        n: usize,
        sees: impl Fn(&str) -> bool + Send + Sync,
    ) -> Result<Vec<Handed>, StoreError> {
        let (mut handed, mut bytes) = (Vec::new(), 0);
        // Where a backlog of the first starves the others, their turns would end undispatched.
        for target in self.rota.order(session, targets, self.pipeline.rt().random()) {
            let queue = queue_of(target);
            let mut slice = SLICE_FIRST;
            while handed.len() < n && bytes < POLL_BYTES {
                let limit = slice.min(n - handed.len());
                let asked = Asked { session, lease, queue: queue.clone(), limit };
                let claimed = match self.rota.claim(&self.pipeline, &asked, &sees).await {
                    Ok(claimed) => claimed,
                    // What there is already is somebody's: it is handed out.
                    Err(_) if !handed.is_empty() => return Ok(handed),
                    Err(e) => return Err(e),
                };
                let is_last = claimed.len() < limit;
                if !claimed.is_empty() {
                    self.rota.gave(session, target);
                }
                for one in claimed {
                    if let Some(begun) = self.hand_out(session, one.head).await {
                        bytes += serde_json::to_vec(&begun).map_or(0, |b| b.len());
                        handed.push(begun);
                    }
                }
                if is_last {
                    break;
                }
                slice *= 2;
            }
        }
        Ok(handed)
    }

    /// Begins the step of a turn that was just claimed. One that can not be begun is given back.
    async fn hand_out(&self, session: SessionId, head: Head) -> Option<Handed> {
        let (turn, epoch) = (head.id, head.epoch);
        let begun = async { self.hand(head).await?.begin().await }.await;
        match begun {
            Ok(begun) => begun,
            Err(e) => {
                tracing::warn!(%turn, error = %e, "a turn can not be handed out");
                let why = Said::Release("it could not be handed out".into());
                if let Err(e) = self.say(turn, (session, epoch), &why).await {
                    tracing::warn!(%turn, error = %e, "not given back; it will lapse");
                }
                None
            }
        }
    }

    async fn hand(&self, head: Head) -> Result<Hand<'_>, StoreError> {
        let state = load::state_of(&head).map_err(|e| StoreError::Corrupt(e.to_string()))?;
        let talk = load::conversation(self.pipeline.store(), head.id, &state).await?;
        let now = self.pipeline.store().now().await?;
        Ok(Hand { far: self, head, talk, now })
    }

    async fn head(&self, turn: EntityId) -> Result<Option<Head>, StoreError> {
        let head = self.pipeline.store().head(turn).await?;
        Ok(head.filter(|h| h.kind() == "turn"))
    }

    /// A worker says something about a turn that it has.
    pub async fn say(
        &self,
        turn: EntityId,
        (session, epoch): (SessionId, u64),
        said: &Said,
    ) -> Result<Heard, StoreError> {
        for _ in 0..TRIES {
            let Some(head) = self.head(turn).await? else { return Ok(Heard::Unknown) };
            if !holds(&head, session, epoch) {
                return self.too_late(head, (session, epoch), said).await;
            }
            let mut hand = self.hand(head).await?;
            let state = hand.state()?;
            let follows = match said {
                Said::Step(step, reply) => {
                    if *step != state.step || state.attempt == 0 {
                        return self.too_late(hand.head, (session, epoch), said).await;
                    }
                    match hand.answered(reply.clone()).await? {
                        Ok(follows) => follows,
                        Err(why) => return Ok(Heard::Refused(why)),
                    }
                }
                Said::Finish(status, result, message) => {
                    let done = message.clone().map(|m| StepDone::new(state.step, m));
                    let decision = act::finish(&state, &hand.cx(), done, *status, result.clone());
                    Follows { decision, parks: false }
                }
                Said::Fail(fault) => {
                    let decision = act::fail(&state, &hand.cx(), None, fault.clone());
                    Follows { decision, parks: false }
                }
                Said::Release(why) => {
                    let id = self.pipeline.commit_id();
                    let parted = act::give_back(&state, &hand.cx(), why);
                    if !parted.parks {
                        let follows = Follows { decision: parted.decision, parks: false };
                        match hand.commit(follows, &[]).await? {
                            Done::Yes => {
                                return Ok(Heard::Accepted(hand.head.status.name(), None));
                            }
                            Done::Refused(why) => return Ok(Heard::Refused(why)),
                            Done::MoreMail | Done::Overtaken => continue,
                        }
                    }
                    let commit = act::parting(&hand.head, state, parted.decision, id, None);
                    match self.pipeline.commit(commit).await? {
                        CommitAnswer::Committed(_) => return Ok(Heard::Accepted("ready", None)),
                        CommitAnswer::Refused(why) => return Ok(Heard::Refused(why.to_string())),
                        _ => continue,
                    }
                }
            };
            match hand.commit(follows, &[]).await? {
                Done::Yes => {
                    let next = match holds(&hand.head, session, epoch) {
                        true => hand.begin().await?,
                        false => None,
                    };
                    // After the beginning, which may have ended the turn instead.
                    let status = hand.head.status.name();
                    return Ok(Heard::Accepted(status, next.map(Box::new)));
                }
                Done::MoreMail => {
                    hand.read_mail().await?;
                }
                Done::Refused(why) => return Ok(Heard::Refused(why)),
                Done::Overtaken => {}
            }
        }
        Err(StoreError::Unavailable(format!("turn {turn} is written by too many at once")))
    }

    /// The worker has the turn no longer, or the step is over. The same again is answered the same.
    async fn too_late(
        &self,
        head: Head,
        (session, epoch): (SessionId, u64),
        said: &Said,
    ) -> Result<Heard, StoreError> {
        let status = head.status.name();
        let mut hand = self.hand(head).await?;
        let state = hand.state()?;
        let again = match said {
            Said::Step(step, reply) => {
                let mut message = reply.message.clone();
                calls::read(&mut message, *step);
                hand.talk.steps.iter().any(|s| s.number == *step && s.message == message)
            }
            Said::Finish(ended, result, _) => {
                let delivered = match hand.head.class() {
                    Class::Final => load::delivered_by(self.pipeline.store(), hand.head.id).await?,
                    _ => Value::Null,
                };
                ended.name() == status && (delivered == *result || state.output_box.is_none())
            }
            Said::Fail(fault) => {
                let error = state.outcome.as_ref().and_then(|o| o.error.as_ref());
                error.is_some_and(|e| e.code == fault.code)
            }
            Said::Release(_) => {
                let error = state.outcome.as_ref().and_then(|o| o.error.as_ref());
                let ended = error.is_some_and(|e| e.code == "given_back_too_often");
                ended || (Some(hand.head.epoch) == epoch.checked_add(1) && status == "ready")
            }
        };
        if again {
            let has_it = holds(&hand.head, session, epoch);
            let next = match said {
                Said::Step(..) if has_it && state.attempt > 0 => hand.handed().await?,
                // Recorded, and then the server was lost.
                Said::Step(..) if has_it => hand.begin().await?,
                _ => None,
            };
            return Ok(Heard::Accepted(hand.head.status.name(), next.map(Box::new)));
        }
        match (said, hand.head.epoch == epoch) {
            (Said::Step(..), true) => Ok(Heard::WrongStep(state.step)),
            _ => Ok(Heard::Stale(status, hand.head.epoch)),
        }
    }

    /// A worker has shown that it is at it: its mail is read, and its progress is on record now and then. Whether it
    /// has the turn still.
    pub async fn alive(
        &self,
        turn: EntityId,
        (session, epoch): (SessionId, u64),
        note: Option<&str>,
        has_mail: bool,
    ) -> Result<bool, StoreError> {
        let Some(head) = self.head(turn).await? else { return Ok(false) };
        if !holds(&head, session, epoch) {
            return Ok(false);
        }
        let now = self.pipeline.store().now().await?;
        let mut hand = Hand { far: self, head, talk: Conversation::default(), now };
        if has_mail || hand.head.has_mail() {
            hand.read_mail().await?;
        }
        let state = hand.state()?;
        let due = now.since(hand.head.changed_at) >= super::worker::progress_every(&state);
        if let (Some(note), true) = (note, due && holds(&hand.head, session, epoch)) {
            let follows =
                Follows { decision: act::progress(&state, &hand.cx(), note), parks: false };
            hand.commit(follows, &[]).await?;
        }
        Ok(holds(&hand.head, session, epoch))
    }
}

fn holds(head: &Head, session: SessionId, epoch: u64) -> bool {
    head.class() == Class::Open && head.epoch == epoch && head.holder == Some(session)
}

/// What became of a commit.
enum Done {
    Yes,
    MoreMail,
    Overtaken,
    Refused(String),
}

/// A turn that is being written in the name of its far worker.
struct Hand<'a> {
    far: &'a Far,
    head: Head,
    talk: Conversation,
    /// The store's time when it was taken in hand.
    now: Timestamp,
}

impl Hand<'_> {
    fn state(&self) -> Result<TurnState, StoreError> {
        load::state_of(&self.head).map_err(|e| StoreError::Corrupt(e.to_string()))
    }

    fn cx(&self) -> Cx {
        Cx {
            id: self.head.id,
            now: self.now,
            version: self.head.version,
            status: Some(self.head.status),
            changed_at: Some(self.head.changed_at),
        }
    }

    async fn commit(&mut self, follows: Follows, mail: &[Mail]) -> Result<Done, StoreError> {
        let pipeline = &self.far.pipeline;
        let events = follows.decision.events.clone();
        let commit = answer::commit(&self.head, follows, mail, pipeline.commit_id());
        let Some(commit) = commit.map_err(|e| StoreError::Refused(e.to_string()))? else {
            return Ok(Done::Yes);
        };
        match pipeline.commit(commit).await? {
            CommitAnswer::Committed(_) => {
                events.iter().for_each(|e| self.talk.take(e));
                if let Some(head) = pipeline.store().head(self.head.id).await? {
                    self.head = head;
                }
                Ok(Done::Yes)
            }
            CommitAnswer::MoreMail { .. } => Ok(Done::MoreMail),
            CommitAnswer::Refused(why) => Ok(Done::Refused(why.to_string())),
            _ => Ok(Done::Overtaken),
        }
    }

    async fn read_mail(&mut self) -> Result<(), StoreError> {
        let store = self.far.pipeline.store();
        let limit = kernel_limits::MAIL_PER_DECISION_MAX;
        let mut mail = store.mail(self.head.id, self.head.mail_read, limit).await?;
        for one in &mut mail {
            if let Body::Blob { digest, .. } = one.body
                && let Some(bytes) = store.blob(digest).await?
            {
                one.body = Body::Inline(bytes);
            }
        }
        if mail.is_empty() {
            return Ok(());
        }
        let decision = on_mail(&self.state()?, &mail, &self.cx());
        self.commit(Follows { decision, parks: false }, &mail).await?;
        Ok(())
    }

    /// Begins the next step. `None` where the turn has ended instead, or is lost: the head says which.
    async fn begin(&mut self) -> Result<Option<Handed>, StoreError> {
        let held = (self.head.holder, self.head.epoch);
        for _ in 0..TRIES {
            if self.head.has_mail() {
                self.read_mail().await?;
            }
            if self.head.class() != Class::Open || (self.head.holder, self.head.epoch) != held {
                return Ok(None);
            }
            let begun = match self.begin_once().await? {
                Done::Yes => Some(()),
                Done::Refused(why) => return Err(StoreError::Refused(why)),
                Done::MoreMail => {
                    self.read_mail().await?;
                    None
                }
                Done::Overtaken => {
                    if let Some(head) = self.far.head(self.head.id).await? {
                        *self = self.far.hand(head).await?;
                    }
                    None
                }
            };
            if begun.is_some() {
                let is_open = self.head.class() == Class::Open;
                return if is_open { self.handed().await } else { Ok(None) };
            }
        }
        let turn = self.head.id;
        Err(StoreError::Unavailable(format!("turn {turn} is written by too many at once")))
    }

    /// The commit that begins the step, or ends the turn.
    async fn begin_once(&mut self) -> Result<Done, StoreError> {
        let store = self.far.pipeline.store().clone();
        load::fetch(&store, &mut self.talk).await?;
        let (state, cx) = (self.state()?, self.cx());
        let decision = if self.talk.is_too_large() {
            let (code, message) = (conversation::TOO_LARGE.to_owned(), self.talk.too_large());
            act::fail(&state, &cx, None, Fault { code, message })
        } else if let Some(ends) = self.talk.ends() {
            act::finish(&state, &cx, None, ends.status, ends.content)
        } else {
            match self.profile().await? {
                Err((code, message)) => {
                    act::fail(&state, &cx, None, Fault { code: code.to_owned(), message })
                }
                Ok((profile, _)) if self.talk.steps_left(&profile) == 0 => {
                    let message =
                        format!("{} steps, and the turn has not ended", profile.max_steps);
                    act::fail(
                        &state,
                        &cx,
                        None,
                        Fault { code: "max_steps_exceeded".into(), message },
                    )
                }
                Ok((profile, copy)) => {
                    let timeout = profile.step_timeout.min(self.left());
                    let ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).max(1);
                    act::start_step(&state, &cx, ms, copy)
                }
            }
        };
        self.commit(Follows { decision, parks: false }, &[]).await
    }

    fn left(&self) -> Duration {
        let end = self.head.must_end_by;
        end.map_or(crate::rules::MUST_END_IN, |end| end.since(self.now))
    }

    /// The profile and the copy that the first step takes, or why there is none.
    async fn profile(
        &self,
    ) -> Result<Result<(Profile, Value), (&'static str, String)>, StoreError> {
        let (value, copy) = match &self.talk.profile {
            Some(value) => (value.clone(), Value::Null),
            None => {
                let state = self.state()?;
                let (store, tenant) = (self.far.pipeline.store(), &self.head.tenant);
                let agent = load::agent(store, tenant, &state.agent_name).await?;
                let Some(agent) = agent else {
                    let why = format!("there is no agent {:?} any more", state.agent_name);
                    return Ok(Err(("unknown_agent", why)));
                };
                let jobs = &*self.far.jobs;
                let value = load::described(store, tenant, jobs, agent.spec.profile).await;
                (value.clone(), value)
            }
        };
        let profile = profile::recorded(&value).map_err(|why| ("bad_profile", why.join("; ")));
        Ok(profile.map(|p| (p, copy)))
    }

    /// What the worker gets of a step that is begun, with results that were too large for mail in their place.
    async fn handed(&mut self) -> Result<Option<Handed>, StoreError> {
        load::fetch(&self.far.pipeline.store().clone(), &mut self.talk).await?;
        let state = self.state()?;
        let value = self.talk.profile.clone().unwrap_or_default();
        let Ok(profile) = profile::recorded(&value) else { return Ok(None) };
        let last_step = self.talk.steps_left(&profile) == 1;
        let results = self.talk.steps.last().map_or(&[][..], |s| &s.results);
        Ok(Some(Handed {
            turn: self.head.id,
            epoch: self.head.epoch,
            turn_epoch: state.turn_epoch,
            agent: state.agent_name,
            tenant: self.head.tenant.clone(),
            step: state.step,
            attempt: state.attempt,
            last_step,
            timeout_ms: state.asking_ms,
            must_end_by: self.head.must_end_by,
            profile: value,
            task: self.talk.said.clone(),
            messages: self.talk.messages(&profile),
            tools: profile.offered(last_step),
            results: results.iter().map(|r| json!(r)).collect(),
            correlation_id: state.correlation_id,
            trace: state.trace,
        }))
    }

    /// What follows from the message of a step, or why it can not be used.
    async fn answered(&mut self, reply: Reply) -> Result<Result<Follows, String>, StoreError> {
        if !reply.message.is_object() {
            return Ok(Err("a message is an object: role, content, tool_calls".into()));
        }
        let (profile, _) = match self.profile().await? {
            Ok(found) => found,
            Err((_, why)) => return Ok(Err(why)),
        };
        let state = self.state()?;
        let mut read = reply.message.clone();
        let asked = calls::read(&mut read, state.step);
        let mut agents = BTreeMap::new();
        for name in calls::agents_named(&asked, &profile) {
            let found = load::agent(self.far.pipeline.store(), &self.head.tenant, &name).await?;
            agents.extend(found.map(|a| (name, a.spec)));
        }
        let with = (self.far.pipeline.rt(), self.far.pipeline.store());
        let (tenant, jobs) = (&self.head.tenant, &*self.far.jobs);
        let misfits = calls::misfits(with, tenant, jobs, &profile, &asked).await;
        let ground = Ground {
            turn: self.head.id,
            tenant: &self.head.tenant,
            state: &state,
            step: state.step,
            left: self.left(),
            profile: &profile,
            agents: &agents,
            jobs: &*self.far.jobs,
            misfits: &misfits,
            last_step: self.talk.steps_left(&profile) == 1,
        };
        Ok(Ok(answer::follows(&ground, &self.cx(), &self.talk, reply)))
    }
}
