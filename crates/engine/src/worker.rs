//! A worker: claims entities from queues and hands each to a handler while it holds it.
//!
//! The handler speaks through [`Held`], which carries the epoch into every commit, refuses to act when
//! the lease has lapsed on this process's own clock, and says when mail waits or the tenure is lost.

use crate::{
    claimer::{Claimer, Fresh},
    session::{Hint, Keeper},
    stop::Stop,
};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use tenure_kernel::{
    bell::Topic,
    commit::{Commit, CommitAnswer, Committed, Expect, MailStance, TenureChange},
    error::StoreError,
    head::Head,
    ids::EntityId,
    limits,
    machine::{Decision, Input, Machine, Undecided, decode_state, draft},
    mail::Mail,
    runtime::{BoxFuture, First, first},
    stream::{Body, NewEvent},
    table::kernel_events,
};
use tokio::sync::{Notify, watch};

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
    ended: bool,
}

impl Held {
    /// Takes charge of something claimed.
    pub fn new(keeper: Keeper, fresh: Fresh) -> Self {
        let Fresh { claimed, sent } = fresh;
        let hints = keeper.hold(claimed.head.id, claimed.head.epoch, sent);
        Held { keeper, head: claimed.head, mail: claimed.mail, hints, ended: false }
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
        let drafted =
            draft::<M>(Some(&self.head), self.state::<M>()?, decision, &Input::Mail(mail));
        let Some(drafted) = drafted.map_err(refused)? else { return Ok(None) };
        let id = self.keeper.pipeline().commit_id();
        let commit = drafted.into_commit(id, self.head.id, self.expect());
        self.commit(commit).await.map(Some)
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
    slots: usize,
    handler: Arc<dyn Handler>,
}

impl Worker {
    /// A worker for these queues with so many entities at once.
    pub fn new(
        keeper: Keeper,
        queues: Vec<String>,
        slots: usize,
        handler: Arc<dyn Handler>,
    ) -> Self {
        // A renewal has to name everything that is held.
        Worker { keeper, queues, slots: slots.min(limits::HOLDS_MAX), handler }
    }

    /// Claims and works. When asked to stop it claims no more and waits for what is running.
    pub async fn run(&self, mut stop: Stop) {
        let rt = self.keeper.pipeline().rt().clone();
        let running = Arc::new(AtomicUsize::new(0));
        let freed = Arc::new(Notify::new());
        let mut claimer = Claimer::new(self.keeper.clone());
        let bell = self.keeper.pipeline().bell().clone();
        let mut ears: Vec<_> =
            self.queues.iter().map(|q| bell.listen(Topic::Queue(q.clone()))).collect();
        let mut rung = false;
        let mut turn = 0;
        while !stop.asked() {
            let mut got = 0;
            // From another one each time, or a backlog in the first starves the others.
            turn = (turn + 1) % self.queues.len().max(1);
            for queue in self.queues[turn..].iter().chain(&self.queues[..turn]) {
                let free = self.slots.saturating_sub(running.load(Ordering::SeqCst));
                if free == 0 || !self.keeper.live() {
                    break;
                }
                let claimed = claimer.claim(queue, free, rung).await;
                tracing::trace!(queue, free, got = ?claimed.as_ref().map(Vec::len), "asked for work");
                match claimed {
                    Ok(claimed) => {
                        got += claimed.len();
                        for c in claimed {
                            self.start(c, &running, &freed);
                        }
                    }
                    Err(e) => tracing::warn!(error = %e, queue, "no claim"),
                }
            }
            if got > 0 && running.load(Ordering::SeqCst) < self.slots {
                rung = false;
                continue;
            }
            let idle =
                first(any(&mut ears), first(freed.notified(), rt.sleep(self.keeper.config().tick)));
            rung = matches!(stop.unless(idle).await, Some(First::Left(())));
        }
        while running.load(Ordering::SeqCst) > 0 {
            // Woken by the last one, or by the tick if it was faster than we listened.
            first(freed.notified(), rt.sleep(self.keeper.config().tick)).await;
        }
    }

    fn start(&self, fresh: Fresh, running: &Arc<AtomicUsize>, freed: &Arc<Notify>) {
        running.fetch_add(1, Ordering::SeqCst);
        let slot = Slot { running: running.clone(), freed: freed.clone() };
        let held = Held::new(self.keeper.clone(), fresh);
        let (id, epoch, keeper) = (held.head.id, held.head.epoch, self.keeper.clone());
        let work = self.handler.run(held);
        self.keeper.pipeline().rt().spawn(Box::pin(async move {
            let _slot = slot;
            // Also where the handler panics: the hold is dropped and the check ends the tenure.
            let _named = Named { keeper, id, epoch };
            let mut held = work.await;
            if held.may_act()
                && let Err(e) = held.release("the handler returned").await
            {
                tracing::debug!(error = %e, entity = %held.id(), "not released; the lease will lapse");
            }
        }));
    }
}

struct Slot {
    running: Arc<AtomicUsize>,
    freed: Arc<Notify>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.running.fetch_sub(1, Ordering::SeqCst);
        self.freed.notify_one();
    }
}

struct Named {
    keeper: Keeper,
    id: EntityId,
    epoch: u64,
}

impl Drop for Named {
    fn drop(&mut self) {
        self.keeper.drop_hold(self.id, self.epoch);
    }
}

/// Returns when any of the ears has heard something.
async fn any(ears: &mut [Box<dyn tenure_kernel::bell::Ear>]) {
    match ears {
        [] => std::future::pending().await,
        [one] => one.heard().await,
        [one, rest @ ..] => match first(one.heard(), Box::pin(any(rest))).await {
            First::Left(()) | First::Right(()) => {}
        },
    }
}
