//! Agents, turns and joins in the small world of machines, with workers that do what a test tells them.

use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{Deref, DerefMut},
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
    commit::CommitAnswer,
    head::Head,
    ids::EntityId,
    machine::{Decision, Machines, decode_state},
    mail::{MailAnswer, kinds},
    outbox::{Message, Target},
    stream::Body,
    table::Class,
};
use tenure_proving::small::{Outside, Small, said};

/// The jobs that turns ask for. They end when a test says so.
#[derive(Default)]
pub struct Jobs {
    /// Asked for, by id: `(turn, ordinal)`.
    pub jobs: BTreeMap<EntityId, (EntityId, u32)>,
    /// Taken back.
    pub cancelled: BTreeSet<EntityId>,
}

impl Outside for Jobs {
    type Main = Turn;
    const SERVED: &'static [&'static str] = &["agent", "turn", "join"];

    fn takes(&mut self, source: EntityId, message: &Message) -> bool {
        match &message.to {
            Target::Create { id, kind } if kind == "job" => {
                let ordinal = said(message)["parent"]["ordinal"].as_u64().expect("a number");
                self.jobs.insert(*id, (source, u32::try_from(ordinal).expect("small")));
                true
            }
            Target::Mail(id) if self.jobs.contains_key(id) => {
                if message.kind == kinds::CANCEL {
                    self.cancelled.insert(*id);
                }
                true
            }
            _ => false,
        }
    }
}

pub struct World {
    small: Small<Jobs>,
    pub rules: Rules,
}

impl Deref for World {
    type Target = Small<Jobs>;
    fn deref(&self) -> &Small<Jobs> {
        &self.small
    }
}

impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut Small<Jobs> {
        &mut self.small
    }
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
        World { small: Small::new(machines, seed, Jobs::default()), rules: Rules::default() }
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

    pub fn turn(&self, id: EntityId) -> TurnState {
        self.state(id)
    }

    pub fn agent_state(&self, name: &str) -> AgentState {
        self.state_of::<Agent>(agent_id("t", name))
    }

    pub fn end_of(&self, id: EntityId) -> TurnEnd {
        self.events(id).iter().find_map(TurnEvent::as_end).expect("it is over").clone()
    }

    // -- a worker -----------------------------------------------------------------------------------------------

    /// A worker takes a turn and begins a step.
    pub fn begin(&mut self, turn: EntityId, worker: EntityId) -> Head {
        let held = self.claim(turn, worker).expect("it can be claimed");
        let decision = act::start_step(&self.turn(turn), &self.cx(turn), 60_000, Value::Null);
        let answer = self.act_unread(&held, decision);
        assert!(matches!(answer, CommitAnswer::Committed(_)), "{answer:?}");
        held
    }

    /// Commits what a worker decides, under the epoch of its claim, with all mail read.
    pub fn act(&mut self, held: &Head, decision: Decision<TurnEvent>) -> CommitAnswer {
        let unread = self.unread(held.id);
        let commit = self.drafted::<Turn>(held, decision, &unread);
        self.store.commit(&commit)
    }

    /// The same without reading mail.
    pub fn act_unread(&mut self, held: &Head, decision: Decision<TurnEvent>) -> CommitAnswer {
        let commit = self.drafted::<Turn>(held, decision, &[]);
        self.store.commit(&commit)
    }

    pub fn step_done(&self, turn: EntityId) -> StepDone {
        let message = json!({"role": "assistant", "content": "thinking"});
        StepDone::new(self.turn(turn).step, message)
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
        let message = Message { to, kind: "create".into(), body };
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
        let message = Message { to, kind: "create".into(), body: Body::json(&new) };
        NewWait {
            call: "fork".into(),
            tool: "fork_join".into(),
            how: act::How::Ask(tenure_agents::turn::WaitFor::Join(id), message),
            timeout_ms: Some(ms),
            after: Default::default(),
        }
    }

    // -- mail ---------------------------------------------------------------------------------------------------

    /// A job says how it ended.
    pub fn job_ends(&mut self, job: EntityId, status: &str) -> MailAnswer {
        let (turn, ordinal) = self.outside.jobs[&job];
        let body =
            json!({"ordinal": ordinal, "status": status, "output": {"n": ordinal}, "error": null});
        self.mail(turn, &format!("{job}/1/0"), kinds::CHILD_ENDED, &body)
    }

    pub fn result(&mut self, turn: EntityId, id: &str, result: ToolResult) -> MailAnswer {
        self.mail(turn, id, "tool_result", &result)
    }

    /// Laws 2, 3 and 4 over everything there is, and one announcement per end.
    pub fn check(&self) {
        self.check_laws();
        for (id, head) in &self.store.heads {
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

/// The commit was taken.
pub fn committed(answer: &CommitAnswer) {
    assert!(matches!(answer, CommitAnswer::Committed(_)), "{answer:?}");
}

/// A turn of the agent `a` that waits for these calls.
pub fn suspended(w: &mut World, calls: &[&str]) -> EntityId {
    w.agent("a");
    let turn = w.send("a");
    let worker = w.worker();
    let held = w.begin(turn, worker);
    let calls = calls.iter().map(|c| w.outside_call(c, None)).collect();
    committed(&w.suspend(&held, calls));
    w.settle();
    turn
}

/// A result for a wait.
pub fn to(wait: &str) -> ToolResult {
    ToolResult { wait: Some(wait.into()), result: json!({"for": wait}), ..ToolResult::default() }
}

/// A result that names a call of the model.
pub fn to_call(call: &str) -> ToolResult {
    ToolResult { tool_call_id: Some(call.into()), ..ToolResult::default() }
}
