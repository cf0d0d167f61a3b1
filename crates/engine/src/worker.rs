//! A worker: claims entities from queues and hands each to a handler while it holds it.
//!
//! The handler speaks through [`Held`], which carries the epoch into every commit, refuses to act when
//! the lease has lapsed on this process's own clock, and says when mail waits or the tenure is lost.

use crate::{
    claimer::{Claimer, Fresh},
    session::{Hint, Keeper},
    slots::{Slot, Slots},
    stop::Stop,
};
use std::{any::Any, collections::BTreeMap, sync::Arc, time::Duration};
use tenure_kernel::{
    bell::{Ear, Topic},
    commit::{Commit, CommitAnswer, Committed, Expect, MailStance, TenureChange},
    error::StoreError,
    head::Head,
    ids::EntityId,
    limits,
    machine::{Decision, Input, Machine, Undecided, decode_state, draft_on},
    mail::Mail,
    runtime::{BoxFuture, First, first},
    stream::{Body, NewEvent},
    table::kernel_events,
};
use tokio::sync::watch;

/// Does the work of one entity while it is held.
pub trait Handler: Send + Sync + 'static {
    /// Works until the entity has ended, is parked, or was lost. Whatever is still held on return is
    /// released.
    fn run(&self, held: Held) -> BoxFuture<'static, Held>;
}

/// Why a holder can not go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HoldError {
    /// The tenure has ended, or the lease has lapsed on this process's clock. Stop; write nothing
    /// more but evidence.
    #[error("this worker holds the entity no longer")]
    Lost,
    /// Mail has come that the commit has not read. Read it and decide again.
    #[error("mail has come that was not read")]
    MoreMail,
    /// The commit can never be accepted.
    #[error("{0}")]
    Refused(String),
    /// The store is away.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// An entity that this process holds.
pub struct Held {
    keeper: Keeper,
    /// The head as of the last commit of this holder (soft fields may be older).
    pub head: Head,
    mail: Vec<Mail>,
    hints: watch::Receiver<Hint>,
    stop: Option<Stop>,
    ended: bool,
    /// The machine's state, so that it need not be read from the head's bytes for every commit.
    known: Option<Known>,
}

/// A state, and the version of the head that has it.
struct Known {
    version: u64,
    state: Box<dyn Any + Send + Sync>,
}

impl Held {
    /// Takes charge of something claimed.
    pub fn new(keeper: Keeper, fresh: Fresh) -> Self {
        let Fresh { claimed, sent } = fresh;
        let mut held = Held::born(keeper, claimed.head, sent);
        held.mail = claimed.mail;
        held
    }

    /// Takes charge of something that was born into this session's hands, at this head. `sent` is when the birth
    /// was sent, on this process's clock: its lease counts from there.
    pub fn born(keeper: Keeper, head: Head, sent: Duration) -> Self {
        let hints = keeper.hold(head.id, head.epoch, sent);
        Held { keeper, head, mail: Vec::new(), hints, stop: None, ended: false, known: None }
    }

    /// Whether the worker that runs this was asked to stop. A handler that can park or release early does so:
    /// what still runs when the worker's patience is over is lost, and taken over by another.
    pub fn stopping(&self) -> bool {
        self.stop.as_ref().is_some_and(Stop::asked)
    }

    /// Returns when the worker that runs this is asked to stop; never without one. The future keeps nothing of
    /// this borrowed, so it can run beside the work.
    pub fn until_stopping(&self) -> impl Future<Output = ()> + Send + use<> {
        let stop = self.stop.clone();
        async move {
            match stop {
                Some(mut stop) => stop.wait().await,
                None => std::future::pending().await,
            }
        }
    }

    pub(crate) fn stops_with(&mut self, stop: Stop) {
        self.stop = Some(stop);
    }

    /// Which entity.
    pub fn id(&self) -> EntityId {
        self.head.id
    }

    /// The session behind it.
    pub fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// Whether this process may still act. Asked right before anything outside is touched.
    pub fn may_act(&self) -> bool {
        !self.is_over() && self.keeper.may_act(self.head.id, self.head.epoch)
    }

    /// Whether the tenure is over.
    pub fn is_over(&self) -> bool {
        self.ended || *self.hints.borrow() == Hint::Lost
    }

    /// What this holder believes: the start of every commit.
    pub fn expect(&self) -> Expect {
        Expect::Holder { epoch: self.head.epoch, version: self.head.version }
    }

    /// A commit of these events.
    pub fn draft(&self, events: Vec<NewEvent>) -> Commit {
        Commit::new(self.keeper.pipeline().commit_id(), self.head.id, self.expect(), events)
    }

    /// The machine's state as of the last commit.
    pub fn state<M: Machine>(&self) -> Result<M::State, HoldError> {
        decode_state::<M>(&self.head.state).map_err(|e| HoldError::Refused(e.to_string()))
    }

    /// Commits a decision of the holder, which covers this mail. A decision that ends the entity ends
    /// the tenure with it, and is refused with `MoreMail` while there is mail that it does not cover.
    pub async fn record<M: Machine>(
        &mut self,
        decision: Decision<M::Event>,
        mail: &[Mail],
    ) -> Result<Option<Committed>, HoldError> {
        let refused = |e: Undecided| HoldError::Refused(e.to_string());
        let mut state = match self.take_known::<M>() {
            Some(state) => state,
            None => Box::new(self.state::<M>()?),
        };
        let drafted = draft_on::<M>(Some(&self.head), &mut state, decision, &Input::Mail(mail));
        let Some(drafted) = drafted.map_err(refused)? else { return Ok(None) };
        let id = self.keeper.pipeline().commit_id();
        let commit = drafted.into_commit(id, self.head.id, self.expect());
        let committed = self.commit(commit).await?;
        self.known = Some(Known { version: committed.version, state });
        Ok(Some(committed))
    }

    /// What is known of the state, for who changes it. What they do with it is not known here until it is committed.
    fn take_known<M: Machine>(&mut self) -> Option<Box<M::State>> {
        let known = self.known.take().filter(|known| known.version == self.head.version)?;
        known.state.downcast().ok()
    }

    /// Commits, and follows the head.
    pub async fn commit(&mut self, commit: Commit) -> Result<Committed, HoldError> {
        if !self.may_act() {
            return Err(HoldError::Lost);
        }
        self.keeper.progress(self.head.id);
        let ends = commit.tenure == TenureChange::End;
        let read = match commit.mail {
            MailStance::Read(n) | MailStance::ReadAll(n) => n,
            _ => self.head.mail_read,
        };
        let (state, events) = (
            commit.state.clone(),
            commit.events.iter().map(|e| e.name.clone()).collect::<Vec<_>>(),
        );
        match self.keeper.pipeline().commit(commit).await? {
            CommitAnswer::Committed(c) => {
                self.head.version = c.version;
                self.head.chain = c.chain;
                self.head.mail_read = read;
                self.head.mail_count = read + c.mail_waiting;
                if let Some(state) = state {
                    self.head.state = state;
                }
                for event in events {
                    // The store accepted it, so the table has the step.
                    if let Ok(status) = self.head.status.table.step(Some(self.head.status), &event)
                    {
                        self.head.status = status;
                    }
                }
                if ends || c.epoch != self.head.epoch {
                    self.let_go();
                }
                Ok(c)
            }
            CommitAnswer::MoreMail { .. } => Err(HoldError::MoreMail),
            CommitAnswer::Refused(why) => Err(HoldError::Refused(why.to_string())),
            CommitAnswer::StaleEpoch { .. }
            | CommitAnswer::VersionConflict { .. }
            | CommitAnswer::Final { .. }
            | CommitAnswer::Exists { .. }
            | CommitAnswer::Busy => {
                self.let_go();
                Err(HoldError::Lost)
            }
        }
    }

    /// It was ended by a commit that was not made by this: nothing is left to be released.
    pub fn ended_by_others(&mut self) {
        self.let_go();
    }

    fn let_go(&mut self) {
        self.ended = true;
        self.keeper.drop_hold(self.head.id, self.head.epoch);
    }

    /// Mail that no commit has covered, in order.
    pub async fn unread(&mut self) -> Result<Vec<Mail>, HoldError> {
        self.mail.retain(|m| m.seq > self.head.mail_read);
        let after = self.mail.last().map_or(self.head.mail_read, |m| m.seq);
        let store = self.keeper.pipeline().store();
        self.mail.extend(store.mail(self.head.id, after, limits::MAIL_PER_DECISION_MAX).await?);
        Ok(self.mail.clone())
    }

    /// Waits until mail may have come since the last wait, or the tenure is lost.
    pub async fn wait_for_mail(&mut self) -> Hint {
        // A sender that is gone means that the session has let go of this entity.
        if self.is_over() || self.hints.changed().await.is_err() {
            return Hint::Lost;
        }
        *self.hints.borrow_and_update()
    }

    /// Gives the entity back without a result: it goes to its queue, for anybody.
    pub async fn release(&mut self, why: &str) -> Result<(), HoldError> {
        let body = Body::json(&serde_json::json!({ "why": why }));
        let mut commit = self.draft(vec![NewEvent::new(kernel_events::TENURE_ENDED, body)]);
        commit.tenure = TenureChange::End;
        commit.mail = MailStance::Regardless;
        self.commit(commit).await.map(|_| ())
    }
}

/// Claims and works until asked to stop.
pub struct Worker {
    keeper: Keeper,
    queues: Vec<String>,
    slots: Slots,
    drain_max: Option<Duration>,
}

impl Worker {
    /// A worker for these queues with so many entities at once.
    pub fn new(
        keeper: Keeper,
        queues: Vec<String>,
        slots: usize,
        handler: Arc<dyn Handler>,
    ) -> Self {
        let slots = Slots::new(keeper.clone(), slots, handler);
        Worker { keeper, queues, slots, drain_max: None }
    }

    /// Waits no longer than this for what is running when asked to stop. What is left then loses its tenure
    /// with the session, and another worker takes it over. Without it, the worker waits for as long as it takes.
    pub fn drains_within(mut self, limit: Duration) -> Self {
        self.drain_max = Some(limit);
        self
    }

    /// Its slots, for others in this process who bring work that is held already.
    pub fn slots(&self) -> Slots {
        self.slots.clone()
    }

    /// See [`Slots::queue_is_known_empty`].
    pub fn queue_is_known_empty(&self, queue: &str) -> bool {
        self.slots.queue_is_known_empty(queue)
    }

    /// Claims and works. When asked to stop it claims no more, tells its handlers, and waits for what is running.
    pub async fn run(&self, mut stop: Stop) {
        let rt = self.keeper.pipeline().rt().clone();
        let mut claimer = Claimer::new(self.keeper.clone());
        let bell = self.keeper.pipeline().bell().clone();
        let mut ears: Vec<_> =
            self.queues.iter().map(|q| bell.listen(Topic::Queue(q.clone()))).collect();
        let open = self.slots.open();
        // Queues that are worth a look: those that were rung, or gave all that was asked for; once per tick, all.
        let mut look: BTreeMap<usize, bool> = (0..self.queues.len()).map(|i| (i, false)).collect();
        let mut next_look = rt.mono() + self.keeper.config().tick;
        // Whose turn it is: the queue behind the one that gave something last, and the ear behind the one that was heard last.
        // Counted in rounds instead, a queue would have its turn as often as there are names, with and without work.
        let (mut turn, mut hear) = (0, 0);
        while !stop.asked() {
            // Here, and not where the nap ends: whoever rings without a break would put it off.
            if rt.mono() >= next_look {
                for i in 0..self.queues.len() {
                    look.entry(i).or_insert(false);
                }
                next_look = rt.mono() + self.keeper.config().tick;
            }
            let (first_ones, rest): (Vec<usize>, Vec<usize>) =
                look.keys().partition(|i| **i >= turn);
            for i in first_ones.into_iter().chain(rest) {
                if self.slots.free() == 0 || !self.keeper.live() {
                    // Something may wait there and no slot can be kept for it: what is born now stands behind it.
                    look.iter()
                        .filter(|(_, rung)| **rung)
                        .for_each(|(i, _)| self.slots.heard(&self.queues[*i]));
                    break;
                }
                let rung = look.remove(&i).unwrap_or(false);
                let found = self.claim_from(&mut claimer, &self.queues[i], rung).await;
                if found.some {
                    turn = i + 1;
                }
                if !found.all {
                    look.insert(i, false);
                }
            }
            if !look.is_empty() && self.slots.free() > 0 && self.keeper.live() {
                // A backlog does not make it deaf: a tenant whose first work comes now is found by its ring, and would
                // else wait for the next look at all groups while the backlog of another is worked off.
                let rang = first(any(&mut ears, hear), std::future::ready(())).await;
                if let First::Left(i) = rang {
                    look.insert(i, true);
                    hear = i + 1;
                }
                continue;
            }
            let nap = rt.sleep(next_look.saturating_sub(rt.mono()));
            match stop.unless(first(any(&mut ears, hear), first(self.slots.freed(), nap))).await {
                Some(First::Left(i)) => {
                    look.insert(i, true);
                    hear = i + 1;
                }
                Some(First::Right(_)) | None => {}
            }
        }
        // Tells the handlers.
        drop(open);
        let drained = async {
            while self.slots.running() > 0 {
                // Woken by the last one, or by the tick if it was faster than we listened.
                first(self.slots.freed(), rt.sleep(self.keeper.config().tick)).await;
            }
        };
        match self.drain_max {
            None => drained.await,
            Some(limit) => {
                if let First::Right(()) = first(drained, rt.sleep(limit)).await {
                    let left = self.slots.running();
                    tracing::warn!(left, "did not end in time; what they hold will be taken over");
                }
            }
        }
    }
}

/// What one look into a queue found.
struct Found {
    /// Something.
    some: bool,
    /// All that there was.
    all: bool,
}

impl Worker {
    /// Claims from one queue into free slots.
    async fn claim_from(&self, claimer: &mut Claimer, queue: &str, rung: bool) -> Found {
        // Taken before they are filled, so that nobody else starts something in them meanwhile. Not all of them:
        // a submission should find one, also while this worker looks around.
        let mut free = self.slots.take_half();
        if free.is_empty() {
            self.slots.heard(queue);
            return Found { some: false, all: false };
        }
        let asked = free.len();
        let claimed = claimer.claim(queue, asked, rung).await;
        tracing::trace!(queue, asked, got = ?claimed.as_ref().map(Vec::len), "asked for work");
        match claimed {
            Ok(claimed) => {
                let (some, all) = (!claimed.is_empty(), claimed.len() < asked);
                self.slots.saw(queue, all);
                // A claim never gives more than was asked for.
                let left = free.split_off(claimed.len().min(asked));
                for (fresh, slot) in claimed.into_iter().zip(free) {
                    self.slots.start(slot, Held::new(self.keeper.clone(), fresh));
                }
                give_back(left);
                Found { some, all }
            }
            Err(e) => {
                tracing::warn!(error = %e, queue, "no claim");
                self.slots.saw(queue, false);
                give_back(free);
                // Not again before the tick: a store that is away is not asked in a circle.
                Found { some: false, all: true }
            }
        }
    }
}

fn give_back(slots: Vec<Slot>) {
    slots.into_iter().for_each(Slot::give_back);
}

/// Returns when any of the ears has heard something: which one. Where several have, the next one from `from` on.
async fn any(ears: &mut [Box<dyn Ear>], from: usize) -> usize {
    let (before, after) = ears.split_at_mut(from.min(ears.len()));
    match first(first_of(after), first_of(before)).await {
        First::Left(i) => from + i,
        First::Right(i) => i,
    }
}

async fn first_of(ears: &mut [Box<dyn Ear>]) -> usize {
    match ears {
        [] => std::future::pending().await,
        [one] => {
            one.heard().await;
            0
        }
        [one, rest @ ..] => match first(one.heard(), Box::pin(first_of(rest))).await {
            First::Left(()) => 0,
            First::Right(i) => i + 1,
        },
    }
}
