//! A small world: agents, turns and joins on the smallest store, time that jumps to whatever is due next, workers
//! that do what a test tells them, and everything that was announced outside.

use model::Model;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tenure_agents::{
    agent::{Agent, AgentState, Spec, agent_id},
    join::{Join, NewJoin},
    rules::Rules,
    turn::{
        NewTurn, Turn, TurnEvent, TurnState,
        act::{self, NewWait},
        model::{Asker, Sort, StepDone, TurnEnd},
    },
    words::{Change, EndStatus, ToolResult},
};
use tenure_kernel::{
    commit::{Birth, Commit, CommitAnswer, Expect, TenureChange},
    head::{Head, lane_of},
    ids::{CommitId, EntityId, MailId},
    judge::Judge,
    limits,
    machine::{Cx, Decision, Draft, Input, Machine, Machines, decode_event, decode_state, draft},
    mail::{Mail, MailAnswer, NewMail, kinds},
    outbox::{Delivery, DeliveryAnswer, Handover, Target},
    sessions::{Opening, events, lane_id},
    store::{Answer, Op},
    stream::{Body, NewEvent},
    table::Class,
    time::Timestamp,
    verify,
};

// The kernel's own tests use the same model; a second copy would drift.
#[path = "../../../kernel/tests/it/model.rs"]
mod model;

/// Something that was announced outside, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Announced {
    pub at: Timestamp,
    pub subject: String,
    pub body: Value,
}

pub struct World {
    pub store: Model,
    machines: Machines,
    lanes: BTreeMap<u16, u64>,
    random: u64,
    pub wire: Vec<Announced>,
    /// Jobs that were asked for, by id: `(turn, ordinal)`.
    pub jobs: BTreeMap<EntityId, (EntityId, u32)>,
    /// Jobs that were taken back.
    pub cancelled: BTreeSet<EntityId>,
    pub rules: Rules,
}

fn birth(kind: &'static str) -> Birth {
    Birth { kind, tenant: "t".into(), queue: String::new(), priority: 0 }
}

pub fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

impl World {
    pub fn new() -> Self {
        Self::seeded(7)
    }

    pub fn seeded(seed: u64) -> Self {
        let machines = Machines::kernel().with::<Agent>().with::<Turn>().with::<Join>();
        let mut store = Model::new(Judge::new(machines.tables()));
        store.now = Timestamp::from_micros(1_000_000_000_000);
        let server = EntityId::fixed(200, 1);
        let mut world = World {
            store,
            machines,
            lanes: BTreeMap::new(),
            random: seed,
            wire: Vec::new(),
            jobs: BTreeMap::new(),
            cancelled: BTreeSet::new(),
            rules: Rules::default(),
        };
        world.open_session(server);
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

    pub fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        let n = self.random();
        from.get(usize::try_from(n % from.len().max(1) as u64).expect("small")).cloned()
    }

    fn commit_id(&mut self) -> CommitId {
        CommitId::new(self.random(), self.random())
    }

    fn committed(&mut self, commit: Commit) {
        let answer = self.store.commit(&commit);
        assert!(matches!(answer, CommitAnswer::Committed(_)), "{answer:?} to {commit:?}");
    }

    pub fn open_session(&mut self, id: EntityId) {
        let (name, role) = ("w".into(), "worker".into());
        let opening = Opening { name, role, lease_ms: 15_000, executor: None };
        let event = NewEvent::new(events::OPENED, Body::json(&opening));
        let mut open =
            Commit::new(self.commit_id(), id, Expect::Absent(birth("worker")), vec![event]);
        open.tenure = TenureChange::Open(opening);
        self.committed(open);
    }

    pub fn worker(&mut self) -> EntityId {
        let mut random = [0; 10];
        random[..8].copy_from_slice(&self.random().to_be_bytes());
        let id = EntityId::new(self.store.now, random);
        self.open_session(id);
        id
    }

    pub fn claim(&mut self, entity: EntityId, session: EntityId) -> Option<Head> {
        let op = Op::Claim { id: self.commit_id(), entity, session, lease: secs(15) };
        match self.store.apply(&[op]).remove(0) {
            Answer::Claim(Ok(head)) => Some(*head),
            Answer::Claim(Err(_)) => None,
            other => panic!("{other:?}"),
        }
    }

    pub fn now(&self) -> Timestamp {
        self.store.now
    }

    // -- agents and turns ---------------------------------------------------------------------------------------

    pub fn agent(&mut self, name: &str) -> EntityId {
        self.agent_with(name, Some("public"), Some("out"))
    }

    pub fn agent_with(
        &mut self,
        name: &str,
        channel: Option<&str>,
        output: Option<&str>,
    ) -> EntityId {
        let id = agent_id("t", name);
        let spec = Box::new(Spec {
            name: name.into(),
            target: "pool".into(),
            channel: channel.map(str::to_owned),
            output_box: output.map(str::to_owned),
            profile: Value::Null,
        });
        let body = Body::json(&Change::Set { spec, by: None });
        self.create(id, "agent", &body);
        id
    }

    fn create(&mut self, id: EntityId, kind: &str, body: &Body) {
        let commit = self.creation(id, kind, &Input::Create(body)).expect("it creates");
        self.committed(commit);
    }

    fn creation(&mut self, id: EntityId, kind: &str, input: &Input<'_>) -> Option<Commit> {
        let core = self.machines.get(kind).expect("a known kind").clone();
        let cx = Cx { id, now: self.store.now, version: 0, status: None, changed_at: None };
        let draft = core.decide(None, input, &cx).ok()??;
        let birth = self.machines.birth(kind, "t", &draft.placement).expect("a known kind");
        Some(draft.into_commit(self.commit_id(), id, Expect::Absent(birth)))
    }

    pub fn new_turn(&self, agent: &str) -> NewTurn {
        let state: Option<AgentState> = self
            .store
            .heads
            .get(&agent_id("t", agent))
            .map(|h| decode_state::<Agent>(&h.state).expect("an agent"));
        let spec = state.map(|s| s.spec).unwrap_or_default();
        NewTurn {
            agent: agent_id("t", agent),
            agent_name: agent.into(),
            target: "pool".into(),
            sort: Sort::Turn,
            channel: spec.channel,
            output_box: spec.output_box,
            messages: vec![json!({"role": "user", "content": "do it"})],
            correlation_id: None,
            asker: None,
            depth: 0,
            above: Vec::new(),
            trace: None,
            must_end_in_ms: 24 * 3_600_000,
            rules: self.rules,
            priority: 0,
            by: None,
        }
    }

    pub fn fresh_id(&mut self) -> EntityId {
        let mut random = [0; 10];
        random[..8].copy_from_slice(&self.random().to_be_bytes());
        EntityId::new(self.store.now, random)
    }

    /// Creates a turn and lets the agent hear of it.
    pub fn send(&mut self, agent: &str) -> EntityId {
        let new = self.new_turn(agent);
        let turn = self.send_new(new);
        self.settle();
        turn
    }

    pub fn send_new(&mut self, new: NewTurn) -> EntityId {
        let id = self.fresh_id();
        self.create(id, "turn", &Body::json(&new));
        id
    }

    pub fn head(&self, id: EntityId) -> Head {
        self.store.heads[&id].clone()
    }

    pub fn status(&self, id: EntityId) -> &'static str {
        self.store.heads[&id].status.name()
    }

    pub fn turn(&self, id: EntityId) -> TurnState {
        decode_state::<Turn>(&self.store.heads[&id].state).expect("a turn")
    }

    pub fn agent_state(&self, name: &str) -> AgentState {
        let id = agent_id("t", name);
        decode_state::<Agent>(&self.store.heads[&id].state).expect("an agent")
    }

    pub fn is_final(&self, id: EntityId) -> bool {
        self.store.heads[&id].class() == Class::Final
    }

    pub fn events(&self, id: EntityId) -> Vec<TurnEvent> {
        let mut all = Vec::new();
        for record in &self.store.streams[&id] {
            for event in record.events().expect("readable") {
                all.extend(decode_event::<Turn>(&event.name, &event.body).expect("a turn's"));
            }
        }
        all
    }

    pub fn names(&self, id: EntityId) -> Vec<&'static str> {
        self.events(id).iter().map(Turn::name).collect()
    }

    pub fn end_of(&self, id: EntityId) -> TurnEnd {
        self.events(id).iter().find_map(TurnEvent::as_end).expect("it is over").clone()
    }

    pub fn count(&self, id: EntityId, name: &str) -> usize {
        self.names(id).iter().filter(|n| **n == name).count()
    }

    pub fn announced(&self, subject: &str) -> Vec<Announced> {
        self.wire.iter().filter(|a| a.subject == subject).cloned().collect()
    }

    // -- a worker -----------------------------------------------------------------------------------------------

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

    /// Commits what a worker decides, under the epoch of its claim.
    pub fn act(&mut self, held: &Head, decision: Decision<TurnEvent>) -> CommitAnswer {
        let head = self.head(held.id);
        let state = self.turn(held.id);
        let unread = self.unread(held.id);
        let drafted = draft::<Turn>(Some(&head), state, decision, &Input::Mail(&unread));
        let drafted = drafted.expect("allowed").expect("events");
        let expect = Expect::Holder { epoch: held.epoch, version: head.version };
        let commit = drafted.into_commit(self.commit_id(), held.id, expect);
        self.store.commit(&commit)
    }

    pub fn unread(&self, id: EntityId) -> Vec<Mail> {
        let read = self.store.heads[&id].mail_read;
        let all = self.store.mail.get(&id);
        all.into_iter().flatten().filter(|m| m.seq > read).cloned().collect()
    }

    /// A worker takes a turn and begins a step.
    pub fn begin(&mut self, turn: EntityId, worker: EntityId) -> Head {
        let held = self.claim(turn, worker).expect("it can be claimed");
        let decision = act::start_step(&self.turn(turn), &self.cx(turn), 60_000, Value::Null);
        let answer = self.act_unread(&held, decision);
        assert!(matches!(answer, CommitAnswer::Committed(_)), "{answer:?}");
        held
    }

    /// The same without reading mail.
    pub fn act_unread(&mut self, held: &Head, decision: Decision<TurnEvent>) -> CommitAnswer {
        let head = self.head(held.id);
        let drafted = draft::<Turn>(Some(&head), self.turn(held.id), decision, &Input::Mail(&[]));
        let drafted = drafted.expect("allowed").expect("events");
        let expect = Expect::Holder { epoch: held.epoch, version: head.version };
        let commit = drafted.into_commit(self.commit_id(), held.id, expect);
        self.store.commit(&commit)
    }

    pub fn step_done(&self, turn: EntityId) -> StepDone {
        let message = json!({"role": "assistant", "content": "thinking"});
        StepDone { step: self.turn(turn).step, message, usage: Value::Null }
    }

    pub fn suspend(&mut self, held: &Head, calls: Vec<NewWait>) -> CommitAnswer {
        self.suspend_with(held, calls, &BTreeMap::new())
    }

    pub fn suspend_with(
        &mut self,
        held: &Head,
        calls: Vec<NewWait>,
        early: &BTreeMap<String, ToolResult>,
    ) -> CommitAnswer {
        let head = self.head(held.id);
        let state = self.turn(held.id);
        let left = head.must_end_by.expect("open").since(self.store.now);
        let done = self.step_done(held.id);
        let suspended = act::suspend(&state, &self.cx(held.id), done, calls, early, left);
        let mut seen = head.clone();
        seen.epoch = held.epoch;
        let id = self.commit_id();
        if !suspended.parks {
            return self.act_unread(held, suspended.decision);
        }
        let commit = act::parting(&seen, state, suspended.decision, id, Some(head.mail_read));
        self.store.commit(&commit)
    }

    pub fn finish(&mut self, held: &Head) -> CommitAnswer {
        let state = self.turn(held.id);
        let done = Some(self.step_done(held.id));
        let decision =
            act::finish(&state, &self.cx(held.id), done, EndStatus::Success, json!("done"));
        self.act_unread(held, decision)
    }

    /// A message with a job in it.
    pub fn job_call(
        &mut self,
        turn: EntityId,
        call: &str,
        ordinal: u32,
        tool_ms: Option<u64>,
    ) -> NewWait {
        let id = self.fresh_id();
        let body = Body::json(&json!({"parent": {"job": turn, "ordinal": ordinal}}));
        let to = Target::Create { id, kind: "job".into() };
        let message = tenure_kernel::outbox::Message { to, kind: "create".into(), body };
        NewWait {
            call: call.into(),
            tool: "search".into(),
            how: act::How::Ask(tenure_agents::turn::WaitFor::Job(id), message),
            timeout_ms: tool_ms,
            after: Default::default(),
        }
    }

    pub fn outside_call(&self, call: &str, tool_ms: Option<u64>) -> NewWait {
        NewWait {
            call: call.into(),
            tool: "human".into(),
            how: act::How::Outside(None),
            timeout_ms: tool_ms,
            after: Default::default(),
        }
    }

    pub fn join_call(
        &mut self,
        turn: EntityId,
        agents: &[&str],
        fail_fast: bool,
        ms: u64,
    ) -> NewWait {
        let state = self.turn(turn);
        let ordinal = act::next_ordinal(&state);
        let tasks = agents
            .iter()
            .map(|name| {
                let mut new = self.new_turn(name);
                new.depth = state.depth + 1;
                tenure_agents::join::Task { turn: self.fresh_id(), new }
            })
            .collect();
        let id = self.fresh_id();
        let asker = Asker { id: turn, ordinal };
        let new = NewJoin { asker, tasks, fail_fast, must_end_in_ms: act::answer_ms(&state, ms) };
        let to = Target::Create { id, kind: "join".into() };
        let message =
            tenure_kernel::outbox::Message { to, kind: "create".into(), body: Body::json(&new) };
        NewWait {
            call: "fork".into(),
            tool: "fork_join".into(),
            how: act::How::Ask(tenure_agents::turn::WaitFor::Join(id), message),
            timeout_ms: Some(ms),
            after: Default::default(),
        }
    }

    // -- mail ---------------------------------------------------------------------------------------------------

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

    /// A job says how it ended.
    pub fn job_ends(&mut self, job: EntityId, status: &str) -> MailAnswer {
        let (turn, ordinal) = self.jobs[&job];
        let body =
            json!({"ordinal": ordinal, "status": status, "output": {"n": ordinal}, "error": null});
        self.mail(turn, &format!("{job}/1/0"), kinds::CHILD_ENDED, &body)
    }

    pub fn result(&mut self, turn: EntityId, id: &str, result: ToolResult) -> MailAnswer {
        self.mail(turn, id, "tool_result", &result)
    }

    // -- the loops ----------------------------------------------------------------------------------------------

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
            body: Body::json(&json!({"to": to, "kind": message.kind, "why": why})),
        };
        let is_job = |id: &EntityId, world: &Self| world.jobs.contains_key(id);
        let with = match &message.to {
            Target::Create { id, kind } if kind == "job" => {
                let said: Value =
                    serde_json::from_slice(message.body.inline().expect("small")).expect("json");
                let ordinal =
                    u32::try_from(said["parent"]["ordinal"].as_u64().expect("n")).expect("n");
                self.jobs.insert(*id, (source, ordinal));
                Handover::Nothing
            }
            Target::Mail(id) if is_job(id, self) => {
                if message.kind == kinds::CANCEL {
                    self.cancelled.insert(*id);
                }
                Handover::Nothing
            }
            Target::Create { id, kind } if !self.store.heads.contains_key(id) => {
                match self.creation(*id, kind, &Input::Create(&message.body)) {
                    Some(commit) => Handover::Create(Box::new(commit)),
                    None => returned("it can not be created", *id),
                }
            }
            Target::Mail(id) if !self.store.heads.contains_key(id) => {
                returned("no such entity", *id)
            }
            Target::Create { id, .. } | Target::Mail(id) => {
                Handover::Mail { to: *id, kind: message.kind.clone(), body: message.body.clone() }
            }
            Target::Wire(subject) => {
                let body =
                    serde_json::from_slice(message.body.inline().expect("small")).expect("json");
                let subject = subject.clone();
                self.wire.push(Announced { at: self.store.now, subject, body });
                Handover::Nothing
            }
        };
        let op = Op::Deliver(Box::new(Delivery { id: posted.id, lane_epoch, with }));
        match self.store.apply(&[op]).remove(0) {
            Answer::Deliver(DeliveryAnswer::Delivered { .. } | DeliveryAnswer::TargetFinal) => {}
            Answer::Deliver(DeliveryAnswer::Unanswered) => {
                let (Target::Create { id, .. } | Target::Mail(id)) = &message.to else { return };
                let with = returned("it is over", *id);
                let op = Op::Deliver(Box::new(Delivery { id: posted.id, lane_epoch, with }));
                self.store.apply(&[op]);
            }
            other => panic!("{other:?} to {posted:?}"),
        }
    }

    pub fn sources(&self) -> Vec<EntityId> {
        let all: BTreeSet<_> = self.store.outbox.keys().map(|id| id.source).collect();
        all.into_iter().collect()
    }

    /// Asks the machine and commits. Whether something was written; `None` if the moment has not come.
    fn decide(&mut self, head: &Head, input: &Input<'_>) -> Option<bool> {
        let core = self.machines.get(head.kind()).expect("known").clone();
        let cx = self.cx(head.id);
        let draft: Draft =
            core.decide(Some(head), input, &cx).expect("decided").expect("an answer");
        if draft.not_before.is_some() {
            return None;
        }
        let mut draft = draft;
        if let Input::Timer(name) = input {
            let clear = tenure_kernel::timers::TimerChange::clear((*name).to_owned());
            draft.timers.insert(0, clear);
        }
        let (epoch, version) = (head.epoch, head.version);
        let expect = match head.holder {
            Some(_) => Expect::Overrule { epoch, version },
            None => Expect::Nobody { epoch, version },
        };
        let commit = draft.into_commit(self.commit_id(), head.id, expect);
        match self.store.commit(&commit) {
            CommitAnswer::Committed(_) => Some(true),
            CommitAnswer::MoreMail { .. } => Some(false),
            other => panic!("{other:?} to {commit:?}"),
        }
    }

    /// What the due loop does for one entity now. Whether it did something.
    pub fn serve(&mut self, id: EntityId) -> bool {
        let head = self.head(id);
        let now = self.store.now;
        if head.class() == Class::Final || !["agent", "turn", "join"].contains(&head.kind()) {
            return false;
        }
        if head.must_end_by.is_some_and(|end| end <= now) {
            self.decide(&head, &Input::MustEnd);
            assert!(self.is_final(id), "must_end_by ends it");
            return true;
        }
        let held = head.holder.is_some();
        let fired: Vec<(String, bool)> =
            head.timers.fired(now).iter().map(|t| (t.name.to_string(), t.guard)).collect();
        for (name, guard) in &fired {
            if *guard && self.decide(&head, &Input::Timer(name)).is_some() {
                return true;
            }
        }
        if held {
            return false;
        }
        if head.has_mail() {
            let unread = self.unread(id);
            self.decide(&head, &Input::Mail(&unread));
            return true;
        }
        for (name, guard) in &fired {
            if !*guard && self.decide(&head, &Input::Timer(name)).is_some() {
                return true;
            }
        }
        false
    }

    /// The worker is lost: its tenure is ended over its head.
    pub fn lose(&mut self, turn: EntityId) {
        let head = self.head(turn);
        assert!(head.holder.is_some());
        self.decide(&head, &Input::TenureEnded("holder_check"));
    }

    /// What the kernel does when a machine does not end by itself: no message goes with it.
    pub fn force_end(&mut self, turn: EntityId) {
        let head = self.head(turn);
        let event = NewEvent::new("force_ended", Body::json(&json!({ "why": "a test" })));
        let expect = Expect::Overrule { epoch: head.epoch, version: head.version };
        let mut commit = Commit::new(self.commit_id(), turn, expect, vec![event]);
        commit.mail = tenure_kernel::commit::MailStance::Regardless;
        self.committed(commit);
    }

    /// Delivers and decides until nothing is left to do now.
    pub fn settle(&mut self) {
        for _ in 0..10_000 {
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

    /// Time goes on, tick by tick of whatever is due.
    pub fn pass(&mut self, time: Duration) {
        let until = self.store.now + time;
        self.settle();
        loop {
            let now = self.store.now;
            let open = self.store.heads.values().filter(|h| h.class() != Class::Final);
            let ours = open.filter(|h| ["agent", "turn", "join"].contains(&h.kind()));
            // Guards that say "not yet" stay in the past; they are asked every tenth of a second.
            let next = ours
                .flat_map(|h| h.timers.iter().map(|t| t.at).chain(h.must_end_by))
                .map(|at| if at <= now { now + Duration::from_millis(100) } else { at })
                .min();
            match next {
                Some(at) if at <= until => self.store.now = at,
                _ => break,
            }
            self.settle();
        }
        self.store.now = until;
        self.settle();
    }

    /// Laws 2, 3 and 4 over everything there is, and one announcement per end.
    pub fn check(&self) {
        for (id, head) in &self.store.heads {
            let records = &self.store.streams[id];
            verify::verify(head, records, &self.store.judge.tables).expect("a sound stream");
            if let Some(core) = self.machines.get(head.kind()).filter(|_| head.kind() != "worker") {
                let replayed = core.replay(records, &Default::default()).expect("replayed");
                assert_eq!(replayed, head.state, "{} {id}", head.kind());
            }
            if head.kind() != "turn" {
                continue;
            }
            let told = self
                .wire
                .iter()
                .filter(|a| a.subject.ends_with(".task") && a.body["agent_turn_id"] == json!(id));
            let waiting = self.store.outbox.keys().any(|m| m.source == *id);
            let ends = usize::from(head.class() == Class::Final);
            let told = told.count();
            assert!(
                told == ends || (waiting && told <= ends),
                "{told} announcements of {ends} ends"
            );
        }
    }
}
