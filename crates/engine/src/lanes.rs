//! Outbox lanes: each server holds its share of them and delivers their messages in order.
//!
//! A delivery removes the outbox row and inserts the mail in one transaction under the lane's epoch, so a
//! message is delivered exactly once however many servers believe they hold the lane. What leaves the store goes another
//! way, in a loop of its own ([`crate::outside`]): a wire that is silent must not hold back mail.
//!
//! A wake-up is a message whose delivery is a ring. It takes no wire, because a bell has its own.

use crate::{
    birth::{Wish, birth},
    carry::arrived,
    pipeline::Pipeline,
    session::{Hint, Keeper},
    stop::Stop,
};
use std::{
    collections::{BTreeMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tenure_kernel::{
    bell::Topic,
    commit::{Birth, Commit, CommitAnswer, Expect, MailStance, TenureChange},
    error::StoreError,
    head::lane_of,
    ids::{EntityId, MessageId},
    limits,
    machine::{Input, Machines},
    mail::{expects_answer, kinds},
    outbox::{Carrier, Delivery, DeliveryAnswer, Handover, Message, Posted, Target},
    runtime::first,
    sessions::{LANE, lane_id},
    store::{Answer, Op},
    stream::{Body, NewEvent},
    table::{Class, kernel_events},
    wakeup,
};
use tokio::sync::watch;

pub use tenure_kernel::outbox::{Discard, Wire};

#[derive(Debug)]
struct HeldLane {
    epoch: u64,
    hints: watch::Receiver<Hint>,
}

/// The lanes that this server holds. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Lanes(Arc<Mutex<BTreeMap<u16, HeldLane>>>);

impl Lanes {
    fn map(&self) -> MutexGuard<'_, BTreeMap<u16, HeldLane>> {
        // Nothing panics while it holds this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which lanes.
    pub fn held(&self) -> Vec<u16> {
        self.map().keys().copied().collect()
    }

    pub(crate) fn epoch(&self, lane: u16) -> Option<u64> {
        self.map().get(&lane).map(|l| l.epoch)
    }

    /// Somebody else holds it.
    pub(crate) fn forget(&self, lane: u16) {
        self.map().remove(&lane);
    }

    fn drop_lost(&self) {
        self.map().retain(|_, lane| *lane.hints.borrow() != Hint::Lost);
    }
}

/// Holds a fair share of the lanes and delivers what is in them.
pub struct LaneServer {
    keeper: Keeper,
    machines: Machines,
    lanes: Lanes,
    /// Holds less than its share: looks again whenever it is rung.
    short: AtomicBool,
    /// Targets that were there when somebody wanted to create them: shared entities (a gate, a limit), each asked by
    /// very many. What expects an answer goes to them as mail at once, so that a batch carries any number of asks;
    /// as creations it would carry one. Only a hint: one that is gone is created after all, one that is over
    /// sends the mail back.
    known: Mutex<HashSet<EntityId>>,
}

/// Targets that are remembered; then the memory starts over.
const KNOWN_MAX: usize = 4_096;
/// The pause after a batch of which everything was locked by somebody else, the first time and at most.
const LOCKED_FIRST: Duration = Duration::from_millis(2);
const LOCKED_MAX: Duration = Duration::from_millis(100);

/// What became of a batch.
enum Round {
    /// Something went on its way: there may be more.
    Moved,
    /// There was nothing, or nothing that can be delivered now.
    Idle,
    /// What there was is for those whom somebody else is writing just now.
    Locked,
}

fn is_locked(answer: &Answer) -> bool {
    matches!(answer, Answer::Busy | Answer::Deliver(DeliveryAnswer::Busy))
}

impl LaneServer {
    /// For this server's session.
    pub fn new(keeper: Keeper, machines: Machines, lanes: Lanes) -> Self {
        let (short, known) = (AtomicBool::new(true), Mutex::default());
        LaneServer { keeper, machines, lanes, short, known }
    }

    fn pipeline(&self) -> &Pipeline {
        self.keeper.pipeline()
    }

    fn known(&self) -> MutexGuard<'_, HashSet<EntityId>> {
        // Nothing panics while it holds this lock.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// See [`LaneServer::known`].
    fn is_known(&self, id: EntityId, posted: &Posted) -> bool {
        expects_answer(&posted.message.kind) && self.known().contains(&id)
    }

    /// Creates the lanes that do not exist yet.
    pub async fn found(pipeline: &Pipeline) -> Result<(), StoreError> {
        for lane in 0..limits::LANES {
            if pipeline.store().head(lane_id(lane)).await?.is_some() {
                continue;
            }
            let birth =
                Birth { kind: LANE.kind, tenant: String::new(), queue: String::new(), priority: 0 };
            let event =
                NewEvent::new("lane_created", Body::json(&serde_json::json!({ "lane": lane })));
            let commit = Commit::new(
                pipeline.commit_id(),
                lane_id(lane),
                Expect::Absent(birth),
                vec![event],
            );
            match pipeline.commit(commit).await? {
                CommitAnswer::Committed(_) | CommitAnswer::Exists { .. } => {}
                other => {
                    return Err(StoreError::Refused(format!(
                        "lane {lane} could not be created: {other:?}"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Takes and gives back lanes until this server has its fair share.
    pub async fn balance(&self) -> Result<(), StoreError> {
        self.lanes.drop_lost();
        let sessions = self.pipeline().store().live_sessions().await?;
        let servers = sessions.iter().filter(|s| s.role == "server").count().max(1);
        let share = usize::from(limits::LANES).div_ceil(servers);
        let mut held = self.lanes.held();
        while held.len() > share {
            if let Some(lane) = held.pop() {
                self.give_back(lane).await?;
            }
        }
        self.short.store(false, Ordering::Relaxed);
        if held.len() == share || !self.keeper.live() {
            return Ok(());
        }
        // Start at a place of our own, so that servers that start together do not all want lane 0.
        let start =
            u16::try_from(self.pipeline().rt().random() % u64::from(limits::LANES)).unwrap_or(0);
        for i in 0..limits::LANES {
            let lane = (start + i) % limits::LANES;
            if self.lanes.held().len() >= share {
                break;
            }
            if self.lanes.epoch(lane).is_none() {
                self.take(lane).await?;
            }
        }
        // With servers that do not divide the lanes evenly the last one has fewer, which is fine.
        let least = usize::from(limits::LANES) / servers;
        self.short.store(self.lanes.held().len() < least, Ordering::Relaxed);
        Ok(())
    }

    async fn take(&self, lane: u16) -> Result<(), StoreError> {
        let sent = self.pipeline().rt().mono();
        let (id, session) = (self.pipeline().commit_id(), self.keeper.id());
        let free = self.pipeline().store().head(lane_id(lane)).await?;
        if free.is_none_or(|h| !h.can_be_claimed(true) && h.holder != Some(session)) {
            return Ok(());
        }
        let op =
            Op::Claim { id, entity: lane_id(lane), session, lease: self.keeper.config().lease };
        if let Answer::Claim(Ok(head)) = self.pipeline().submit(op).await? {
            let hints = self.keeper.hold(head.id, head.epoch, sent);
            self.lanes.map().insert(lane, HeldLane { epoch: head.epoch, hints });
        }
        Ok(())
    }

    async fn give_back(&self, lane: u16) -> Result<(), StoreError> {
        let Some(held) = self.lanes.map().remove(&lane) else { return Ok(()) };
        self.keeper.drop_hold(lane_id(lane), held.epoch);
        let body = Body::json(&serde_json::json!({ "why": "another server has too few" }));
        let event = NewEvent::new(kernel_events::TENURE_ENDED, body);
        let expect = Expect::EndTenure { epoch: held.epoch };
        let mut commit =
            Commit::new(self.pipeline().commit_id(), lane_id(lane), expect, vec![event]);
        commit.tenure = TenureChange::End;
        commit.mail = MailStance::Regardless;
        self.pipeline().commit(commit).await.map(|_| ())
    }

    /// Delivers until asked to stop.
    pub async fn run(&self, mut stop: Stop) {
        let rt = self.pipeline().rt().clone();
        let mut ear = self.pipeline().bell().listen(Topic::Outbox);
        let mut next_balance = Duration::ZERO;
        let mut pause = LOCKED_FIRST;
        while !stop.asked() {
            if rt.mono() >= next_balance || self.short.load(Ordering::Relaxed) {
                next_balance = rt.mono() + self.keeper.config().tick;
                if let Err(e) = self.balance().await {
                    tracing::warn!(error = %e, "lanes are not balanced");
                }
            }
            let round = match self.round().await {
                Ok(round) => round,
                Err(e) => {
                    tracing::warn!(error = %e, "the outbox waits");
                    Round::Idle
                }
            };
            let nap = next_balance.saturating_sub(rt.mono());
            match round {
                Round::Moved => pause = LOCKED_FIRST,
                Round::Idle => {
                    pause = LOCKED_FIRST;
                    stop.unless(first(ear.heard(), rt.sleep(nap))).await;
                }
                // Nobody rings when a head is let go.
                Round::Locked => {
                    stop.unless(first(ear.heard(), rt.sleep(nap.min(pause)))).await;
                    pause = (pause * 2).min(LOCKED_MAX);
                }
            }
        }
    }

    /// Delivers one batch.
    async fn round(&self) -> Result<Round, StoreError> {
        if !self.keeper.live() {
            return Ok(Round::Idle);
        }
        let held = self.lanes.held();
        if held.is_empty() {
            return Ok(Round::Idle);
        }
        let store = self.pipeline().store();
        let inside = store.outbox(held, false, limits::OUTBOX_BATCH_MAX).await?;
        self.deliver(inside).await
    }

    fn delivery(&self, id: MessageId, with: Handover) -> Option<Op> {
        let by = Carrier::Lane(self.lanes.epoch(lane_of(id.source))?);
        Some(Op::Deliver(Box::new(Delivery { id, by, with })))
    }

    async fn deliver(&self, rows: Vec<Posted>) -> Result<Round, StoreError> {
        let mut ops = Vec::with_capacity(rows.len());
        let mut sent = Vec::with_capacity(rows.len());
        // What is born in this batch hears everything else in the next: a creation may need a second
        // try, and must not be overtaken by mail of the same source.
        let mut born = HashSet::new();
        for posted in rows {
            let with = match &posted.message.to {
                Target::Mail(id) | Target::Create { id, .. } if born.contains(id) => continue,
                Target::Mail(to) => mail_to(*to, &posted),
                // A cancel for something that may not exist yet: first as mail.
                Target::Create { id, .. } if posted.message.kind == kinds::CANCEL => {
                    mail_to(*id, &posted)
                }
                Target::Create { id, .. } if self.is_known(*id, &posted) => mail_to(*id, &posted),
                Target::Create { id, .. } => {
                    born.insert(*id);
                    match self.creation(&posted, &Input::Create(&posted.message.body)).await? {
                        Some(with) => with,
                        None => continue,
                    }
                }
                Target::Wire(subject) => {
                    // Stores keep what leaves apart, so this is a wake-up. Rung before its row is gone: twice is as
                    // good as once.
                    let Some(topic) = wakeup::topic_of(subject) else { continue };
                    let about = posted.message.body.inline().unwrap_or_default();
                    self.pipeline().bell().ring_about(topic, about);
                    Handover::Nothing
                }
            };
            if let Some(op) = self.delivery(posted.id, with) {
                ops.push(op);
                sent.push(posted);
            }
        }
        let (mut moved, answers) = self.apply(ops).await?;
        let locked = answers.iter().any(is_locked);
        let mut second_try = Vec::new();
        for (posted, answer) in sent.iter().zip(&answers) {
            let with = match answer {
                Answer::Deliver(DeliveryAnswer::StaleLane) => {
                    self.lanes.forget(lane_of(posted.id.source));
                    None
                }
                Answer::Deliver(DeliveryAnswer::UnknownTarget) => self.for_unknown(posted).await?,
                Answer::Deliver(DeliveryAnswer::TargetExists) => {
                    Some(self.for_existing(posted).await?)
                }
                Answer::Deliver(DeliveryAnswer::Unanswered) => Some(returned(posted, OVER)),
                Answer::Deliver(DeliveryAnswer::Refused(why)) => {
                    tracing::warn!(message = %posted.id, %why, "a delivery was refused");
                    Some(returned(posted, why))
                }
                _ => None,
            };
            if let Some(op) = with.and_then(|with| self.delivery(posted.id, with)) {
                second_try.push((op, posted));
            }
        }
        moved |= self.try_again(second_try).await?;
        Ok(match (moved, locked) {
            (true, _) => Round::Moved,
            (false, true) => Round::Locked,
            (false, false) => Round::Idle,
        })
    }

    /// The second try. What is refused here too goes back to its sender, who must not wait for it.
    async fn try_again(&self, tries: Vec<(Op, &Posted)>) -> Result<bool, StoreError> {
        let (ops, rows): (Vec<Op>, Vec<&Posted>) = tries.into_iter().unzip();
        let (moved, answers) = self.apply(ops).await?;
        let mut back = Vec::new();
        for (posted, answer) in rows.iter().zip(&answers) {
            let why = match answer {
                Answer::Deliver(DeliveryAnswer::Refused(why)) => why,
                Answer::Deliver(DeliveryAnswer::Unanswered) => OVER,
                _ => continue,
            };
            back.extend(self.delivery(posted.id, returned(posted, why)));
        }
        Ok(self.apply(back).await?.0 | moved)
    }

    /// Delivers, and rings for what arrived. Whether any row is gone, and each answer.
    async fn apply(&self, ops: Vec<Op>) -> Result<(bool, Vec<Answer>), StoreError> {
        if ops.is_empty() {
            return Ok((false, Vec::new()));
        }
        let ops = Arc::new(ops);
        let answers = self.pipeline().store().apply_shared(ops.clone()).await?;
        let mut moved = false;
        for (op, answer) in ops.iter().zip(&answers) {
            if let (Op::Deliver(d), Answer::Deliver(answer)) = (op, answer) {
                moved |= arrived(&**self.pipeline().bell(), &d.with, answer);
            }
        }
        Ok((moved, answers))
    }

    /// The birth of an entity, decided by its machine. `None`: a server of another version knows the
    /// kind, and will deliver it.
    async fn creation(
        &self,
        posted: &Posted,
        input: &Input<'_>,
    ) -> Result<Option<Handover>, StoreError> {
        let Target::Create { id, kind } = &posted.message.to else { return Ok(None) };
        if self.machines.get(kind).is_none() {
            tracing::warn!(message = %posted.id, %kind, "no machine of this kind is known here; left for another server");
            return Ok(None);
        }
        let wish = Wish { id: *id, kind, tenant: &posted.tenant, at: posted.at };
        // A machine decides from bytes: a body that became a blob on its way is put back in place.
        let loaded;
        let input = match input {
            Input::Create(Body::Blob { digest, .. }) => {
                let bytes = self.pipeline().store().blob(*digest).await?;
                let Some(bytes) = bytes else {
                    return Ok(Some(returned(posted, "its body is gone")));
                };
                loaded = Body::Inline(bytes);
                &Input::Create(&loaded)
            }
            other => other,
        };
        if let (Some(quotas), Input::Create(body)) = (self.pipeline().quotas(), input)
            && quotas.counts(kind)
        {
            let bytes = body.inline().map_or(0, <[u8]>::len);
            match quotas.admit_child(&posted.tenant, bytes).await {
                Ok(()) => {}
                Err(StoreError::Quota(exceeded)) => {
                    return Ok(Some(returned(posted, &exceeded.to_string())));
                }
                Err(e) => return Err(e),
            }
        }
        match birth(&self.machines, wish, input, self.pipeline().commit_id()) {
            Ok(mut commit) => {
                self.pipeline().offload_all(&mut commit).await?;
                Ok(Some(Handover::Create(Box::new(commit))))
            }
            Err(e) => Ok(Some(returned(posted, &e.to_string()))),
        }
    }

    /// What becomes of a creation that finds its entity there: it is mail. But one that is over was
    /// cancelled before its birth, and will never report: then its creator is told, or it would wait.
    async fn for_existing(&self, posted: &Posted) -> Result<Handover, StoreError> {
        let Target::Create { id, .. } = &posted.message.to else { return Ok(Handover::Nothing) };
        let head = self.pipeline().store().head(*id).await?;
        let over = head.is_some_and(|h| h.class() == Class::Final);
        if !over && expects_answer(&posted.message.kind) {
            let mut known = self.known();
            if known.len() >= KNOWN_MAX {
                known.clear();
            }
            known.insert(*id);
        }
        Ok(if over && posted.message.kind != kinds::CANCEL {
            returned(posted, OVER)
        } else {
            mail_to(*id, posted)
        })
    }

    /// What becomes of mail to nobody.
    async fn for_unknown(&self, posted: &Posted) -> Result<Option<Handover>, StoreError> {
        match &posted.message.to {
            Target::Create { .. } if posted.message.kind == kinds::CANCEL => {
                self.creation(posted, &Input::CancelUnborn).await
            }
            // It was there, and is gone since.
            Target::Create { id, .. } => {
                self.known().remove(id);
                self.creation(posted, &Input::Create(&posted.message.body)).await
            }
            // An answer that finds nobody ends here, or two unknowns would write to each other for ever.
            _ if posted.message.kind == kinds::RETURNED => Ok(Some(Handover::Nothing)),
            _ => Ok(Some(returned(posted, "no such entity"))),
        }
    }
}

/// Why mail comes back from somebody who has ended.
const OVER: &str = "it is over";

fn mail_to(to: EntityId, posted: &Posted) -> Handover {
    Handover::Mail { to, kind: posted.message.kind.clone(), body: posted.message.body.clone() }
}

/// Back to its sender, with the reason, and with the name of the wait that it was about, where it names one: what goes
/// to nobody of this store has no id by which its sender could know it.
pub(crate) fn returned(posted: &Posted, why: &str) -> Handover {
    let to = match &posted.message.to {
        Target::Mail(to) | Target::Create { id: to, .. } => Some(*to),
        Target::Wire(_) => None,
    };
    let (message, kind) = (posted.id.to_string(), &posted.message.kind);
    let mut body = serde_json::json!({ "message": message, "kind": kind, "to": to, "why": why });
    if let Some(wait) = awaited(posted) {
        body["wait"] = wait;
    }
    Handover::Mail { to: posted.id.source, kind: kinds::RETURNED.into(), body: Body::json(&body) }
}

/// What somebody waits for who said this outside.
pub(crate) fn awaited(posted: &Posted) -> Option<serde_json::Value> {
    awaits(&posted.message)
}

/// The same of a message that is not on its way yet.
pub(crate) fn awaits(message: &Message) -> Option<serde_json::Value> {
    let Target::Wire(subject) = &message.to else { return None };
    // Events are for everybody, and nobody's answer.
    if subject.starts_with("evt.") {
        return None;
    }
    let body: serde_json::Value = tenure_kernel::stored::from_slice(message.body.inline()?).ok()?;
    body.get("wait").cloned()
}
