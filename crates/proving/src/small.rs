//! The smallest world in which machines of a product can be tested: entities on the smallest store, time that jumps to
//! whatever is due next, and loops that deliver and decide as those of the engine do, one thing at a time and only when a
//! test says so. Whoever the machines write to and who is not one of them is played by the test ([`Outside`]).

use crate::dice::Dice;
pub use crate::model::Model;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tenure_kernel::{
    commit::{Birth, Commit, CommitAnswer, Expect, MailStance, TenureChange},
    head::{Head, lane_of},
    ids::{CommitId, EntityId, MailId},
    judge::Judge,
    limits,
    machine::{Cx, Decision, Input, Machine, Machines, decode_event, decode_state, draft},
    mail::{Mail, MailAnswer, NewMail, kinds},
    outbox::{Carrier, Delivery, DeliveryAnswer, Handover, Message, Target},
    sessions::{Opening, events, lane_id},
    store::{Answer, Op},
    stream::{Body, NewEvent},
    table::Class,
    time::Timestamp,
    timers::TimerChange,
    verify,
};

/// The tenant of everything here.
const TENANT: &str = "t";
/// How long every session vouches for what it holds.
const LEASE: Duration = Duration::from_secs(15);
/// A guard that says "not yet" stays in the past: it is asked again this much later.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// More rounds than anything needs to come to rest.
const ROUNDS_MAX: usize = 100_000;

/// Those who are not in the world.
pub trait Outside {
    /// The machine that a test is about.
    type Main: Machine;
    /// The kinds that the loop serves.
    const SERVED: &'static [&'static str];
    /// Whether a message goes to them; then they have it.
    fn takes(&mut self, source: EntityId, message: &Message) -> bool;
}

/// Something that was announced outside.
#[derive(Clone, Debug, PartialEq)]
pub struct Announced {
    /// When.
    pub at: Timestamp,
    /// Where.
    pub subject: String,
    /// What.
    pub body: Value,
}

/// See the module.
pub struct Small<O> {
    /// The store. Its time stands still unless it is moved.
    pub store: Model,
    /// What was announced, in order.
    pub wire: Vec<Announced>,
    /// Whoever is not here.
    pub outside: O,
    /// Nobody serves these: whoever would is dead.
    pub asleep: BTreeSet<EntityId>,
    /// Silence is judged from here on, as after an outage.
    judge_after: Timestamp,
    machines: Machines,
    lanes: BTreeMap<u16, u64>,
    dice: Dice,
}

fn birth(kind: &'static str) -> Birth {
    Birth { kind, tenant: TENANT.into(), queue: String::new(), priority: 0 }
}

/// What a message says.
pub fn said(message: &Message) -> Value {
    serde_json::from_slice(message.body.inline().expect("small")).expect("json")
}

impl<O: Outside> Small<O> {
    /// An empty world, with a server that has all lanes. Whatever is drawn follows from the seed.
    pub fn new(machines: Machines, seed: u64, outside: O) -> Self {
        let mut store = Model::new(Judge::new(machines.tables()));
        store.now = Timestamp::from_micros(1_000_000_000_000);
        let (wire, lanes) = (Vec::new(), BTreeMap::new());
        let (asleep, judge_after) = (BTreeSet::new(), Timestamp::ZERO);
        let dice = Dice(seed);
        let mut world = Small { store, wire, outside, asleep, judge_after, machines, lanes, dice };
        let server = world.worker();
        for lane in 0..limits::LANES {
            let event = NewEvent::new("lane_created", Body::Inline(vec![]));
            let id = world.commit_id();
            let made = Commit::new(id, lane_id(lane), Expect::Absent(birth("lane")), vec![event]);
            world.committed(made);
            let epoch = world.claim(lane_id(lane), server).expect("a free lane").epoch;
            world.lanes.insert(lane, epoch);
        }
        world
    }

    // -- what is drawn ------------------------------------------------------------------------------------------

    /// The next number.
    pub fn random(&mut self) -> u64 {
        self.dice.draw()
    }

    /// The next number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.dice.below(n)
    }

    /// One of them.
    pub fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        self.dice.pick(from)
    }

    /// An id that nothing has.
    pub fn fresh_id(&mut self) -> EntityId {
        self.dice.entity(self.store.now)
    }

    /// A name for a commit.
    pub fn commit_id(&mut self) -> CommitId {
        self.dice.commit_id()
    }

    // -- what is there ------------------------------------------------------------------------------------------

    /// Now.
    pub fn now(&self) -> Timestamp {
        self.store.now
    }

    /// A head.
    pub fn head(&self, id: EntityId) -> Head {
        self.store.heads[&id].clone()
    }

    /// Its status.
    pub fn status(&self, id: EntityId) -> &'static str {
        self.store.heads[&id].status.name()
    }

    /// Whether it is over.
    pub fn is_final(&self, id: EntityId) -> bool {
        self.store.heads[&id].class() == Class::Final
    }

    /// The state of something of the main kind.
    pub fn state(&self, id: EntityId) -> <O::Main as Machine>::State {
        self.state_of::<O::Main>(id)
    }

    /// The state of something of another kind.
    pub fn state_of<M: Machine>(&self, id: EntityId) -> M::State {
        decode_state::<M>(&self.store.heads[&id].state).expect("of this kind")
    }

    /// The events of something of the main kind.
    pub fn events(&self, id: EntityId) -> Vec<<O::Main as Machine>::Event> {
        let mut all = Vec::new();
        for record in &self.store.streams[&id] {
            for event in record.events().expect("readable") {
                all.extend(decode_event::<O::Main>(&event.name, &event.body).expect("its own"));
            }
        }
        all
    }

    /// Their names.
    pub fn names(&self, id: EntityId) -> Vec<&'static str> {
        self.events(id).iter().map(O::Main::name).collect()
    }

    /// How many have this name.
    pub fn count(&self, id: EntityId, name: &str) -> usize {
        self.names(id).iter().filter(|n| **n == name).count()
    }

    /// Mail that it has not read.
    pub fn unread(&self, id: EntityId) -> Vec<Mail> {
        let read = self.store.heads[&id].mail_read;
        let all = self.store.mail.get(&id);
        all.into_iter().flatten().filter(|m| m.seq > read).cloned().collect()
    }

    /// What was announced on a subject.
    pub fn announced(&self, subject: &str) -> Vec<Announced> {
        self.wire.iter().filter(|a| a.subject == subject).cloned().collect()
    }

    /// What its machine is told about it.
    pub fn cx(&self, id: EntityId) -> Cx {
        let head = &self.store.heads[&id];
        Cx {
            id,
            now: self.store.now,
            version: head.version,
            status: Some(head.status),
            changed_at: Some(head.changed_at),
        }
    }

    // -- what others do -----------------------------------------------------------------------------------------

    /// Commits what has to be allowed.
    pub fn committed(&mut self, commit: Commit) {
        let answer = self.store.commit(&commit);
        assert!(matches!(answer, CommitAnswer::Committed(_)), "{answer:?} to {commit:?}");
    }

    /// A session.
    pub fn worker(&mut self) -> EntityId {
        let id = self.fresh_id();
        let lease_ms = u64::try_from(LEASE.as_millis()).expect("small");
        let opening = Opening { name: "w".into(), role: "worker".into(), lease_ms, executor: None };
        let event = NewEvent::new(events::OPENED, Body::json(&opening));
        let expect = Expect::Absent(birth("worker"));
        let mut open = Commit::new(self.commit_id(), id, expect, vec![event]);
        open.tenure = TenureChange::Open(opening);
        self.committed(open);
        id
    }

    /// A session takes an entity; `None` if it can not be had.
    pub fn claim(&mut self, entity: EntityId, session: EntityId) -> Option<Head> {
        let op = Op::Claim { id: self.commit_id(), entity, session, lease: LEASE };
        match self.store.apply(&[op]).remove(0) {
            Answer::Claim(Ok(head)) => Some(*head),
            Answer::Claim(Err(_)) => None,
            other => panic!("{other:?}"),
        }
    }

    /// What the holder of something would commit, having read this mail.
    pub fn drafted<M: Machine>(
        &mut self,
        held: &Head,
        decision: Decision<M::Event>,
        read: &[Mail],
    ) -> Commit {
        let head = self.head(held.id);
        let state = self.state_of::<M>(held.id);
        let drafted = draft::<M>(Some(&head), state, decision, &Input::Mail(read));
        let drafted = drafted.expect("allowed").expect("events");
        let expect = Expect::Holder { epoch: held.epoch, version: head.version };
        drafted.into_commit(self.commit_id(), held.id, expect)
    }

    /// Creates an entity.
    pub fn create(&mut self, id: EntityId, kind: &str, body: &Body) {
        let commit = self.creation(id, kind, &Input::Create(body)).expect("it creates");
        self.committed(commit);
    }

    fn creation(&mut self, id: EntityId, kind: &str, input: &Input<'_>) -> Option<Commit> {
        let core = self.machines.get(kind).expect("a known kind").clone();
        let cx = Cx { id, now: self.store.now, version: 0, status: None, changed_at: None };
        let draft = core.decide(None, input, &cx).ok()??;
        let birth = self.machines.birth(kind, TENANT, &draft.placement).expect("a known kind");
        Some(draft.into_commit(self.commit_id(), id, Expect::Absent(birth)))
    }

    /// Sends mail.
    pub fn mail(
        &mut self,
        to: EntityId,
        id: &str,
        kind: &'static str,
        body: &impl serde::Serialize,
    ) -> MailAnswer {
        let mail = NewMail { to, id: MailId(id.into()), kind: kind.into(), body: Body::json(body) };
        match self.store.apply(&[Op::Mail(mail)]).remove(0) {
            Answer::Mail(answer) => answer,
            other => panic!("{other:?}"),
        }
    }

    /// The holder is lost: its tenure is ended over its head.
    pub fn lose(&mut self, id: EntityId) {
        let head = self.head(id);
        assert!(head.holder.is_some(), "somebody holds it");
        self.decide(&head, &Input::TenureEnded("holder_check"));
    }

    /// What the kernel does when a machine does not end by itself: no message goes with it.
    pub fn force_end(&mut self, id: EntityId) {
        let head = self.head(id);
        let event = NewEvent::new("force_ended", Body::json(&json!({ "why": "a test" })));
        let expect = Expect::Overrule { epoch: head.epoch, version: head.version };
        let mut commit = Commit::new(self.commit_id(), id, expect, vec![event]);
        commit.mail = MailStance::Regardless;
        self.committed(commit);
    }

    // -- the loops ----------------------------------------------------------------------------------------------

    /// Those who have something in the outbox.
    pub fn sources(&self) -> Vec<EntityId> {
        let all: BTreeSet<_> = self.store.outbox.keys().map(|id| id.source).collect();
        all.into_iter().collect()
    }

    /// Delivers the oldest message of a source.
    pub fn deliver_first(&mut self, source: EntityId) {
        let Some(posted) = self.store.outbox.values().find(|p| p.id.source == source).cloned()
        else {
            return;
        };
        let message = posted.message.clone();
        let lane_epoch = self.lanes[&lane_of(source)];
        let returned = |why: &str, to: EntityId| Handover::Mail {
            to: source,
            kind: kinds::RETURNED.into(),
            body: Body::json(&json!({ "to": to, "kind": message.kind, "why": why })),
        };
        let there = |id: &EntityId, world: &Self| world.store.heads.contains_key(id);
        let with = match &message.to {
            _ if self.outside.takes(source, &message) => Handover::Nothing,
            Target::Create { id, kind } if !there(id, self) => {
                match self.creation(*id, kind, &Input::Create(&message.body)) {
                    Some(commit) => Handover::Create(Box::new(commit)),
                    None => returned("it can not be created", *id),
                }
            }
            Target::Mail(id) if !there(id, self) => returned("no such entity", *id),
            Target::Create { id, .. } | Target::Mail(id) => {
                Handover::Mail { to: *id, kind: message.kind.clone(), body: message.body.clone() }
            }
            Target::Wire(subject) => {
                let (at, subject) = (self.store.now, subject.clone());
                self.wire.push(Announced { at, subject, body: said(&message) });
                Handover::Nothing
            }
        };
        let op =
            Op::Deliver(Box::new(Delivery { id: posted.id, by: Carrier::Lane(lane_epoch), with }));
        match self.store.apply(&[op]).remove(0) {
            Answer::Deliver(DeliveryAnswer::Delivered { .. } | DeliveryAnswer::TargetFinal) => {}
            Answer::Deliver(DeliveryAnswer::Unanswered) => {
                let (Target::Create { id, .. } | Target::Mail(id)) = &message.to else { return };
                let with = returned("it is over", *id);
                let op = Op::Deliver(Box::new(Delivery {
                    id: posted.id,
                    by: Carrier::Lane(lane_epoch),
                    with,
                }));
                self.store.apply(&[op]);
            }
            other => panic!("{other:?} to {posted:?}"),
        }
    }

    /// Asks the machine and commits. Whether something was decided; not, if the moment has not come.
    fn decide(&mut self, head: &Head, input: &Input<'_>) -> bool {
        let core = self.machines.get(head.kind()).expect("known").clone();
        let cx = self.cx(head.id);
        let mut draft = core
            .decide(Some(head), input, &cx)
            .unwrap_or_else(|e| panic!("{e} about {input:?} of {head:?}"))
            .expect("an answer");
        if draft.not_before.is_some() {
            return false;
        }
        if let Input::Timer(name) = input {
            draft.timers.insert(0, TimerChange::clear((*name).to_owned()));
        }
        let (epoch, version) = (head.epoch, head.version);
        let expect = match head.holder {
            Some(_) => Expect::Overrule { epoch, version },
            None => Expect::Nobody { epoch, version },
        };
        let commit = draft.into_commit(self.commit_id(), head.id, expect);
        match self.store.commit(&commit) {
            CommitAnswer::Committed(_) | CommitAnswer::MoreMail { .. } => true,
            other => panic!("{other:?} to {commit:?}"),
        }
    }

    /// What the due loop does for one entity now. Whether it did something.
    pub fn serve(&mut self, id: EntityId) -> bool {
        let head = self.head(id);
        let now = self.store.now;
        if head.class() == Class::Final || !O::SERVED.contains(&head.kind()) {
            return false;
        }
        if self.asleep.contains(&id) {
            return false;
        }
        if head.must_end_by.is_some_and(|end| end <= now) {
            self.decide(&head, &Input::MustEnd);
            assert!(self.is_final(id), "must_end_by ends it");
            return true;
        }
        let core = self.machines.get(head.kind()).expect("known");
        let judged = |name: &str| now >= self.judge_after || !core.judges(name);
        let fired = head.timers.fired(now);
        let fired = fired.iter().map(|t| (t.name.to_string(), t.guard));
        let fired: Vec<(String, bool)> = fired.filter(|(name, _)| judged(name)).collect();
        let of = |world: &mut Self, guards: bool| {
            let mut ripe = fired.iter().filter(|(_, guard)| *guard == guards);
            ripe.any(|(name, _)| world.decide(&head, &Input::Timer(name)))
        };
        // A guard works over the holder's head; everything else waits until nobody holds it.
        if of(self, true) {
            return true;
        }
        if head.holder.is_some() {
            return false;
        }
        if head.has_mail() {
            let unread = self.unread(id);
            self.decide(&head, &Input::Mail(&unread));
            return true;
        }
        of(self, false)
    }

    /// Nobody reached the store for so long; it is there again, and nobody is judged for one lease.
    pub fn outage(&mut self, time: Duration) {
        self.store.now = self.store.now + time;
        self.judge_after = self.store.now + LEASE;
    }

    /// Delivers and decides until nothing is left to do now.
    pub fn settle(&mut self) {
        for _ in 0..ROUNDS_MAX {
            let mut moved = false;
            while let Some(source) = self.sources().first().copied() {
                self.deliver_first(source);
                moved = true;
            }
            for id in self.store.heads.keys().copied().collect::<Vec<_>>() {
                moved |= self.serve(id);
            }
            if !moved {
                return;
            }
        }
        panic!("it never settles");
    }

    /// When something is due next.
    pub fn next_due(&self) -> Option<Timestamp> {
        let now = self.store.now;
        let open = self.store.heads.values().filter(|h| h.class() != Class::Final);
        let served = open.filter(|h| O::SERVED.contains(&h.kind()));
        let moments = served.flat_map(|h| {
            let ours = h.timers.iter().filter(|t| t.guard || h.holder.is_none());
            ours.map(|t| t.at).chain(h.must_end_by)
        });
        moments.map(|at| if at <= now { now + ASK_AGAIN } else { at }).min()
    }

    /// Time goes on, from one due moment to the next.
    pub fn pass(&mut self, time: Duration) {
        let until = self.store.now + time;
        self.settle();
        while let Some(at) = self.next_due().filter(|at| *at <= until) {
            self.store.now = at;
            self.settle();
        }
        self.store.now = until;
        self.settle();
    }

    /// Laws 2, 3 and 4 over everything there is.
    pub fn check_laws(&self) {
        for (id, head) in &self.store.heads {
            let records = &self.store.streams[id];
            verify::verify(head, records, &self.store.judge.tables).expect("a sound stream");
            if O::SERVED.contains(&head.kind()) {
                let core = self.machines.get(head.kind()).expect("known");
                let replayed = core.replay(records, &Default::default()).expect("replayed");
                assert_eq!(replayed, head.state, "{} {id}", head.kind());
            }
        }
    }
}
