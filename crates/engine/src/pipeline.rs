//! Group commit. Callers bring operations one by one; the pipeline takes whatever has gathered while
//! the last batch was on its way and sends it as the next. At one caller that is a batch of one without
//! any waiting; at five hundred a few batches carry them all with one sync each.
//!
//! There is no standing task: the caller that finds no batch on its way flies the next one itself, and
//! hands the *flight* to a task of its own as soon as it has its answer or is dropped. So a lone caller
//! wakes nobody, and a caller that goes away takes nothing with it.
//!
//! While the store is away the pipeline tries again by itself, with the same operations, which is
//! always safe: commits have ids, mail has ids, the rest is idempotent. Each caller gets the typed error when its
//! patience is over, counted from when it came and not from when its batch left, and decides.

use crate::{
    blocks::Blocks,
    carry,
    config::EngineConfig,
    meter::Meter,
    quota::{QuotaKeeper, has_large_bodies},
};
use std::{
    collections::{HashMap, HashSet, VecDeque},
    future::poll_fn,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};
use tenure_kernel::{
    bell::{Bell, Topic},
    claims::{ClaimAnswer, ClaimRequest},
    commit::{Commit, CommitAnswer},
    error::StoreError,
    evidence::{EvidenceAnswer, NewEvidence},
    ids::{CommitId, EntityId},
    limits,
    machine::Machines,
    mail::{MailAnswer, NewMail},
    outbox::{Carrier, Delivery},
    runtime::{BoxFuture, Rt},
    store::{Answer, Op, Store, Touch},
    stream::Body,
};
use tokio::sync::oneshot;

/// Carries operations to a store. Cheap to clone.
#[derive(Clone)]
pub struct Pipeline {
    inner: Arc<Inner>,
    gathers: bool,
}

struct Inner {
    store: Arc<dyn Store>,
    bell: Arc<dyn Bell>,
    rt: Rt,
    patience: Duration,
    flights_max: usize,
    queue: Mutex<Queue>,
    /// See [`EngineConfig::mute`].
    mute: bool,
    /// What creates the targets of messages, if commits take along what they say.
    machines: Option<Machines>,
    meter: Meter,
    /// What tenants may have, where that is limited.
    quotas: Option<Arc<QuotaKeeper>>,
    blocks: Blocks,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    flights: usize,
    /// Entities with a commit or something carried on its way: a second commit waits, or two batches would fight for the
    /// row.
    aloft: HashSet<EntityId>,
}

struct Waiting {
    op: Op,
    /// What a commit carries.
    along: Vec<Delivery>,
    seat: Seat,
}

/// A batch: operations that somebody waits for, and behind them what their commits carry.
struct Load {
    ops: Vec<Op>,
    seats: Vec<Seat>,
}

/// Who waits for an answer.
struct Seat {
    reply: oneshot::Sender<Result<Answer, StoreError>>,
    /// When its operation came.
    since: Duration,
    /// Since when its row has been locked.
    busy: Option<Duration>,
}

/// A row that stays locked for this long is given back as unavailable. Longer than the time after which a
/// stopped server loses its locks.
const BUSY_MAX: Duration = Duration::from_secs(30);

impl Pipeline {
    /// A pipeline to this store.
    pub fn new(store: Arc<dyn Store>, bell: Arc<dyn Bell>, rt: Rt, config: &EngineConfig) -> Self {
        Self::build(store, bell, rt, config, None)
    }

    /// A pipeline whose commits take along what they say to others, where that can be handed over at once. For whoever
    /// is next to the store and knows the machines: a server.
    pub fn carrying(
        store: Arc<dyn Store>,
        bell: Arc<dyn Bell>,
        rt: Rt,
        config: &EngineConfig,
        machines: Machines,
    ) -> Self {
        Self::build(store, bell, rt, config, config.carry.then_some(machines))
    }

    fn build(
        store: Arc<dyn Store>,
        bell: Arc<dyn Bell>,
        rt: Rt,
        config: &EngineConfig,
        machines: Option<Machines>,
    ) -> Self {
        let quotas = QuotaKeeper::new(&config.quotas, config.quota_kinds, &store, &rt);
        let inner = Arc::new(Inner {
            quotas,
            store,
            bell,
            rt,
            patience: config.patience,
            flights_max: config.flights.max(1),
            queue: Mutex::default(),
            mute: config.mute,
            machines,
            meter: Meter::counting(config.counted_events, config.labelled_events),
            blocks: Blocks::default(),
        });
        Pipeline { inner, gathers: false }
    }

    /// The same pipeline for a task that submits many operations at once and awaits them together, as
    /// the due loop does. Its first one waits for the others; otherwise a store that writes on the
    /// calling thread would sync once for each. A task that submits one at a time does not wait.
    pub fn gathering(&self) -> Self {
        Pipeline { inner: self.inner.clone(), gathers: true }
    }

    /// What an operator has blocked.
    pub fn blocks(&self) -> &Blocks {
        &self.inner.blocks
    }

    /// Claims what no block holds back.
    pub async fn claim(&self, mut request: ClaimRequest) -> Result<ClaimAnswer, StoreError> {
        let blocks = self.blocks().current(self).await?;
        request.probes.retain(|p| blocks.of_queue(&request.queue, &p.tenant).is_none());
        if request.probes.is_empty() {
            return Ok(ClaimAnswer::default());
        }
        self.store().claim(request).await
    }

    /// The store behind it, for reads.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.inner.store
    }

    /// The bell that it rings.
    pub fn bell(&self) -> &Arc<dyn Bell> {
        &self.inner.bell
    }

    /// What it has done so far.
    pub fn meter(&self) -> &Meter {
        &self.inner.meter
    }

    /// What tenants may have; `None` where nothing is limited.
    pub fn quotas(&self) -> Option<&Arc<QuotaKeeper>> {
        self.inner.quotas.as_ref()
    }

    /// The runtime it runs on.
    pub fn rt(&self) -> &Rt {
        &self.inner.rt
    }

    /// A fresh commit id.
    pub fn commit_id(&self) -> CommitId {
        CommitId::new(self.inner.rt.random(), self.inner.rt.random())
    }

    /// Sends an operation with the next batch and waits for its answer.
    ///
    /// This and the other public operations return a boxed future: an `async fn` would be compiled again in each of the
    /// crates that await it, with everything below it.
    pub fn submit(&self, op: Op) -> BoxFuture<'_, Result<Answer, StoreError>> {
        Box::pin(self.send(op))
    }

    async fn send(&self, mut op: Op) -> Result<Answer, StoreError> {
        if let (true, Op::Commit(commit)) = (self.inner.mute, &mut op) {
            // But whoever waits for an answer hears that nobody was told (see `outside::NoBus`).
            commit.messages.retain(|m| !m.to.leaves() || crate::lanes::awaits(m).is_some());
        }
        let quotas = self.inner.quotas.as_deref();
        if let (Some(quotas), Op::Commit(commit)) = (quotas, &op) {
            quotas.admit_commit(commit).await?;
        }
        let along = match (&op, &self.inner.machines) {
            (Op::Commit(commit), Some(machines)) if !commit.messages.is_empty() => {
                let fresh = || self.commit_id();
                carry::along(&*self.inner.store, machines, commit, quotas, fresh).await
            }
            _ => Vec::new(),
        };
        let (reply, answer) = oneshot::channel();
        let seat = Seat { reply, since: self.inner.rt.mono(), busy: None };
        let start = {
            let mut queue = self.inner.queue();
            queue.waiting.push_back(Waiting { op, along, seat });
            let start = queue.flights < self.inner.flights_max;
            queue.flights += usize::from(start);
            start
        };
        let lost = || StoreError::Indeterminate("the process is stopping".into());
        if !start {
            return answer.await.unwrap_or_else(|_| Err(lost()));
        }
        let mut flight = Flight {
            rt: self.inner.rt.clone(),
            left: Some(Box::pin(fly(Runway::taken(&self.inner), self.gathers))),
        };
        let mut answer = answer;
        poll_fn(|cx| {
            flight.advance(cx);
            // The flight took this operation along: when it has landed, the answer is there.
            Pin::new(&mut answer).poll(cx)
        })
        .await
        .unwrap_or_else(|_| Err(lost()))
    }

    /// Commits. Bodies above the inline limit become blobs first, durable before the commit names them.
    pub fn commit(&self, mut commit: Commit) -> BoxFuture<'_, Result<CommitAnswer, StoreError>> {
        Box::pin(async move {
            self.store_bodies(&mut commit).await?;
            match self.send(Op::Commit(Box::new(commit))).await? {
                Answer::Commit(answer) => Ok(answer),
                other => Err(mismatch(&other)),
            }
        })
    }

    /// Turns the large bodies of a commit into blobs. What would be refused for want of room leaves none behind.
    pub(crate) async fn store_bodies(&self, commit: &mut Commit) -> Result<(), StoreError> {
        if let Some(quotas) = &self.inner.quotas
            && has_large_bodies(commit)
        {
            quotas.has_room_for(commit).await?;
        }
        self.offload_all(commit).await
    }

    /// The same for what has been admitted.
    pub(crate) async fn offload_all(&self, commit: &mut Commit) -> Result<(), StoreError> {
        for event in &mut commit.events {
            self.offload(&mut event.body).await?;
        }
        for message in &mut commit.messages {
            self.offload(&mut message.body).await?;
        }
        Ok(())
    }

    async fn offload(&self, body: &mut Body) -> Result<(), StoreError> {
        if let Body::Inline(bytes) = body
            && bytes.len() > limits::BODY_INLINE_BYTES_MAX
        {
            let bytes = std::mem::take(bytes);
            let len = bytes.len() as u64;
            let digest = self.inner.store.put_blob(bytes).await?;
            *body = Body::Blob { digest, len };
        }
        Ok(())
    }

    /// Sends mail.
    pub fn mail(&self, mut mail: NewMail) -> BoxFuture<'_, Result<MailAnswer, StoreError>> {
        Box::pin(async move {
            self.offload(&mut mail.body).await?;
            match self.send(Op::Mail(mail)).await? {
                Answer::Mail(answer) => Ok(answer),
                other => Err(mismatch(&other)),
            }
        })
    }

    /// Records evidence.
    pub fn evidence(
        &self,
        mut evidence: NewEvidence,
    ) -> BoxFuture<'_, Result<EvidenceAnswer, StoreError>> {
        Box::pin(async move {
            self.offload(&mut evidence.body).await?;
            match self.send(Op::Evidence(evidence)).await? {
                Answer::Evidence(answer) => Ok(answer),
                other => Err(mismatch(&other)),
            }
        })
    }

    /// Moves soft state.
    pub fn touch(&self, touch: Touch) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async move {
            match self.send(Op::Touch(touch)).await? {
                Answer::Touch(done) => Ok(done),
                other => Err(mismatch(&other)),
            }
        })
    }
}

fn mismatch(answer: &Answer) -> StoreError {
    StoreError::Refused(format!("the store answered {answer:?} to something else"))
}

impl Inner {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Nothing panics while it holds this lock; if it did, the queue is still a queue.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next batch: in order, at most one commit per entity.
    fn take(&self) -> Load {
        let mut queue = self.queue();
        let queue = &mut *queue;
        let room = queue.waiting.len().min(limits::BATCH_OPS_MAX);
        let (mut ops, mut seats) = (Vec::with_capacity(room), Vec::with_capacity(room));
        let mut left = VecDeque::new();
        let mut bytes = 0;
        let mut along: Vec<Delivery> = Vec::new();
        while let Some(w) = queue.waiting.pop_front() {
            let entity = commits_to(&w.op);
            let many = ops.len() + along.len() >= limits::BATCH_OPS_MAX;
            let full = many || bytes >= limits::BATCH_BYTES_MAX;
            if full || entity.is_some_and(|e| !queue.aloft.insert(e)) {
                left.push_back(w);
                if full {
                    break;
                }
                continue;
            }
            if let Op::Commit(c) = &w.op {
                bytes += c.weight();
            }
            ops.push(w.op);
            seats.push(w.seat);
            along.extend(w.along);
        }
        left.append(&mut queue.waiting);
        queue.waiting = left;
        if ops.is_empty() {
            // Under the lock under which nothing was found: who comes now flies themselves.
            queue.flights -= 1;
        }
        queue.load(&mut ops, along);
        Load { ops, seats }
    }

    fn landed(&self, ops: &[Op]) {
        let mut queue = self.queue();
        for entity in ops.iter().filter_map(changes) {
            queue.aloft.remove(&entity);
        }
    }

    /// Tries until the store answers, or the patience of the first who waits is over.
    async fn apply(
        &self,
        ops: &Arc<Vec<Op>>,
        first: Option<Duration>,
    ) -> Result<Vec<Answer>, StoreError> {
        let since = self.rt.mono();
        let until = first.unwrap_or(since) + self.patience;
        let mut pause = Duration::from_millis(10);
        loop {
            match self.store.apply_shared(ops.clone()).await {
                Ok(answers) => {
                    self.meter.batch(ops.len(), self.rt.mono() - since);
                    return Ok(answers);
                }
                Err(e) if e.is_transient() && self.rt.mono() < until => {
                    self.meter.store_errors.one();
                    tracing::debug!(error = %e, ?pause, "the store did not take a batch; trying again");
                    self.rt.sleep(pause.min(until.saturating_sub(self.rt.mono()))).await;
                    pause = (pause * 2).min(Duration::from_secs(1));
                }
                Err(e) => {
                    self.meter.store_errors.one();
                    self.meter.store_gave_up.one();
                    return Err(e);
                }
            }
        }
    }

    /// Answers those whose patience is over; the others go to the front of the queue, for the next batch. What cannot
    /// succeed later is answered to all.
    fn give_up(&self, ops: &[Op], seats: Vec<Seat>, e: &StoreError) {
        let now = self.rt.mono();
        let seated = seats.len();
        let mut again = Vec::new();
        for (op, seat) in ops.iter().zip(seats) {
            if e.is_transient() && now.saturating_sub(seat.since) < self.patience {
                again.push(Waiting { op: op.clone(), along: carried_by(op, &ops[seated..]), seat });
            } else {
                // A caller that has gone does not need the answer.
                let _ = seat.reply.send(Err(e.clone()));
            }
        }
        self.put_in_front(again);
    }

    fn put_in_front(&self, again: Vec<Waiting>) {
        let mut queue = self.queue();
        for w in again.into_iter().rev() {
            queue.waiting.push_front(w);
        }
    }

    /// `carried`: how many of its messages are no longer on their way.
    fn ring(&self, op: &Op, answer: &Answer, carried: usize) {
        let ring = |topic| {
            self.meter.rings.one();
            self.bell.ring(topic);
        };
        match answer {
            Answer::Commit(CommitAnswer::Committed(c)) => {
                if let Some(queue) = &c.ready_in {
                    ring(Topic::Queue(queue.clone()));
                }
                if c.due_soon {
                    ring(Topic::Due);
                }
                if matches!(op, Op::Commit(commit) if commit.messages.len() > carried) {
                    ring(Topic::Outbox);
                }
            }
            Answer::Mail(MailAnswer::Accepted { holder, .. }) => {
                ring(holder.map_or(Topic::Due, Topic::Session));
            }
            Answer::Evidence(EvidenceAnswer::Recorded { mailed: true }) => ring(Topic::Due),
            Answer::Touch(true) if matches!(op, Op::Touch(t) if t.ring_only) => ring(Topic::Due),
            _ => {}
        }
    }
}

impl Queue {
    /// Puts what commits carry behind the operations of their batch. Not to somebody who is in another batch: those two
    /// would fight for the row, and a commit that loses has to be made again, where a message that waits has not.
    fn load(&mut self, ops: &mut Vec<Op>, along: Vec<Delivery>) {
        let mine: HashSet<EntityId> = match along.is_empty() {
            true => return,
            false => ops.iter().filter_map(commits_to).collect(),
        };
        let mut late = HashSet::new();
        let mut reached = HashSet::new();
        for delivery in along {
            let target = carry::target(&delivery);
            let free =
                |t: &EntityId| mine.contains(t) || reached.contains(t) || !self.aloft.contains(t);
            if late.contains(&delivery.id.source) || !target.as_ref().is_none_or(free) {
                late.insert(delivery.id.source);
                continue;
            }
            reached.extend(target);
            ops.push(Op::Deliver(Box::new(delivery)));
        }
        self.aloft.extend(reached);
    }
}

/// Whose head an operation writes, if another batch had better not.
fn changes(op: &Op) -> Option<EntityId> {
    match op {
        Op::Deliver(delivery) => carry::target(delivery),
        other => commits_to(other),
    }
}

fn commits_to(op: &Op) -> Option<EntityId> {
    match op {
        Op::Commit(c) => Some(c.entity),
        Op::Claim { entity, .. } => Some(*entity),
        _ => None,
    }
}

/// A flight that its caller advances. What is left of it when the caller goes is spawned.
struct Flight {
    rt: Rt,
    left: Option<BoxFuture<'static, ()>>,
}

impl Flight {
    fn advance(&mut self, cx: &mut Context<'_>) {
        if let Some(flight) = &mut self.left
            && flight.as_mut().poll(cx).is_ready()
        {
            self.left = None;
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        // One that is unwinding has nothing left to fly.
        if let Some(flight) = self.left.take()
            && !std::thread::panicking()
        {
            self.rt.spawn(flight);
        }
    }
}

/// Lets others run once: those who were just answered bring the next batch.
async fn yield_once() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}

/// Batches above this size are answered by a task of their own, while the next one is on its way.
const ANSWERED_IN_FLIGHT_MAX: usize = 16;

/// One of the flights that there may be at once. Whatever becomes of it, others may fly after it: one that panics, or is
/// dropped by a caller that does, must not leave the pipeline closed.
struct Runway {
    inner: Arc<Inner>,
    taken: bool,
}

impl Runway {
    /// It has been counted.
    fn taken(inner: &Arc<Inner>) -> Self {
        Runway { inner: inner.clone(), taken: true }
    }
}

impl Drop for Runway {
    fn drop(&mut self) {
        if self.taken {
            self.inner.queue().flights -= 1;
        }
    }
}

/// Sends batches until nothing is left.
async fn fly(mut runway: Runway, gathers: bool) {
    let inner = runway.inner.clone();
    if gathers {
        yield_once().await;
    }
    loop {
        let Load { ops, seats } = inner.take();
        if ops.is_empty() {
            // It was given back with the look that found nothing.
            runway.taken = false;
            return;
        }
        let ops = Arc::new(ops);
        let aloft = Aloft { inner: &inner, ops: &ops };
        let first = seats.iter().map(|s| s.since).min();
        let result = inner.apply(&ops, first).await;
        drop(aloft);
        match result {
            Ok(answers) => {
                let (seats, answers, all_busy) = put_back(&inner, &ops, seats, answers);
                if all_busy {
                    inner.rt.sleep(Duration::from_millis(1)).await;
                } else if seats.len() > ANSWERED_IN_FLIGHT_MAX {
                    let answering = inner.clone();
                    inner
                        .rt
                        .spawn(Box::pin(async move { answer(&answering, &ops, seats, answers) }));
                } else {
                    answer(&inner, &ops, seats, answers);
                }
                if !inner.queue().waiting.is_empty() {
                    yield_once().await;
                }
            }
            Err(e) => inner.give_up(&ops, seats, &e),
        }
    }
}

/// A batch on its way. A store that panics must not leave its entities aloft: the callers then hear that nobody knows, and
/// ask again.
struct Aloft<'a> {
    inner: &'a Inner,
    ops: &'a [Op],
}

impl Drop for Aloft<'_> {
    fn drop(&mut self) {
        self.inner.landed(self.ops);
    }
}

type Answered = (Vec<(usize, Seat)>, Vec<Answer>, bool);

/// What was locked goes back to the front of the queue; the rest can be answered. Says whether
/// everything was locked.
fn put_back(inner: &Inner, ops: &[Op], seats: Vec<Seat>, answers: Vec<Answer>) -> Answered {
    let is_busy = |a: &Answer| matches!(a, Answer::Busy | Answer::Commit(CommitAnswer::Busy));
    let seated = seats.len();
    let mut again = Vec::new();
    let mut rest = Vec::with_capacity(seats.len());
    for (i, mut seat) in seats.into_iter().enumerate() {
        if !answers.get(i).is_some_and(is_busy) {
            rest.push((i, seat));
            continue;
        }
        let now = inner.rt.mono();
        if now - *seat.busy.get_or_insert(now) < BUSY_MAX {
            inner.meter.busy.one();
            again.push(Waiting {
                op: ops[i].clone(),
                along: carried_by(&ops[i], &ops[seated..]),
                seat,
            });
        } else {
            let e =
                StoreError::Unavailable("the entity stays locked by another transaction".into());
            let _ = seat.reply.send(Err(e));
        }
    }
    let all_busy = !again.is_empty() && rest.is_empty();
    inner.put_in_front(again);
    (rest, answers, all_busy)
}

/// Rings and answers.
fn answer(inner: &Inner, ops: &[Op], seats: Vec<(usize, Seat)>, answers: Vec<Answer>) {
    let mut carried: HashMap<EntityId, usize> = HashMap::new();
    for (op, answer) in ops.iter().zip(&answers) {
        if let (Op::Deliver(d), Answer::Deliver(arrival)) = (op, answer)
            && d.by == Carrier::Commit
        {
            inner.meter.answered(op, answer);
            if carry::arrived(&*inner.bell, &d.with, arrival) {
                *carried.entry(d.id.source).or_default() += 1;
            }
        }
    }
    let mut answers: Vec<Option<Answer>> = answers.into_iter().map(Some).collect();
    for (i, seat) in seats {
        if let Some(answer) = answers[i].take() {
            inner.meter.answered(&ops[i], &answer);
            let gone = commits_to(&ops[i]).and_then(|entity| carried.get(&entity));
            inner.ring(&ops[i], &answer, gone.copied().unwrap_or(0));
            let _ = seat.reply.send(Ok(answer));
        }
    }
}

/// What a commit that goes again takes along again.
fn carried_by(op: &Op, along: &[Op]) -> Vec<Delivery> {
    let mine = |op: &Op, d: &Delivery| commits_to(op) == Some(d.id.source);
    let deliveries = along.iter().filter_map(|o| match o {
        Op::Deliver(d) if mine(op, d) => Some(Delivery::clone(d)),
        _ => None,
    });
    deliveries.collect()
}
