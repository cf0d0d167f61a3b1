//! A server on a real store, and a worker whose every move a test makes by hand.

use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tenure_agents::{
    agent::{Agent, Spec},
    desk::{Defaults, Desk, Sending},
    join::Join,
    queue_of,
    turn::{
        Turn, TurnState,
        act::{self, How, NewWait},
        model::StepDone,
    },
    words::{After, EndStatus},
};
use tenure_bell::InProcess;
use tenure_edge::TokioRuntime;
use tenure_engine::{
    claimer::Claimer,
    config::EngineConfig,
    lanes::Discard,
    node::{Node, Parts},
    session::Keeper,
    worker::Held,
};
use tenure_kernel::{
    head::Head,
    ids::EntityId,
    machine::{Cx, Machines, decode_state},
    store::Store,
};
use tenure_proving::stores::{Place, Scene};

pub const TENANT: &str = "acme";

pub fn machines() -> Machines {
    Machines::kernel().with::<Agent>().with::<Turn>().with::<Join>()
}

/// A server, a desk, and a worker.
pub struct Hands {
    place: Place,
    pub store: Arc<dyn Store>,
    pub node: Node,
    pub desk: Desk,
    keeper: Keeper,
}

impl Scene for Hands {
    fn machines() -> Machines {
        machines()
    }

    async fn on(place: Place) -> Self {
        Self::with(place, Defaults::default(), Duration::from_secs(30)).await
    }
}

impl Hands {
    /// With rules and a lease of the test's own.
    pub async fn with(place: Place, defaults: Defaults, lease: Duration) -> Self {
        let store = place.store();
        let config = EngineConfig::with_lease(lease);
        let parts = Parts {
            store: store.clone(),
            bell: Arc::new(InProcess::new()),
            rt: Arc::new(TokioRuntime::current()),
            machines: machines(),
            config: config.clone(),
            name: "test".into(),
            executor: None,
            wire: Arc::new(Discard),
            protect_outage: true,
        };
        let node = Node::start(parts).await.unwrap();
        let pipeline = node.pipeline.clone();
        let keeper =
            Keeper::open(pipeline.clone(), Arc::new(config), "hands", "worker", None).await;
        let desk = Desk::new(pipeline, defaults);
        Hands { place, store, node, desk, keeper: keeper.unwrap() }
    }

    /// An agent with an output box.
    pub async fn agent(&self, name: &str) {
        self.desk.set_agent(TENANT, spec(name), None).await.unwrap();
    }

    pub async fn send(&self, agent: &str, text: &str) -> EntityId {
        self.desk.send(sending(agent, text)).await.unwrap().turn
    }

    pub async fn head(&self, id: EntityId) -> Head {
        self.store.head(id).await.unwrap().unwrap()
    }

    pub async fn state(&self, id: EntityId) -> TurnState {
        decode_state::<Turn>(&self.head(id).await.state).unwrap()
    }

    /// Waits until a condition holds.
    pub async fn until(&self, what: &str, holds: impl AsyncFnMut() -> bool) {
        self.place.until(what, holds).await;
    }

    pub async fn until_status(&self, turn: EntityId, status: &str) {
        self.until(status, async || self.head(turn).await.status.name() == status).await;
    }

    /// Claims a turn of the target.
    pub async fn claim(&self, target: &str) -> Held {
        let mut claimer = Claimer::new(self.keeper.clone());
        let claimed = self.place.find(async || {
            let found = claimer.claim(&queue_of(target), 1, true).await.unwrap();
            found.into_iter().next()
        });
        let fresh = claimed.await.unwrap_or_else(|| panic!("nothing of {target} can be claimed"));
        Held::new(self.keeper.clone(), fresh)
    }

    pub async fn cx(&self, held: &Held) -> Cx {
        let head = self.head(held.id()).await;
        Cx {
            id: head.id,
            now: self.store.now().await.unwrap(),
            version: head.version,
            status: Some(head.status),
            changed_at: Some(head.changed_at),
        }
    }

    /// Begins a step.
    pub async fn ask_model(&self, held: &mut Held) {
        let (state, cx) = (held.state::<Turn>().unwrap(), self.cx(held).await);
        let decision = act::start_step(&state, &cx, 60_000, Value::Null);
        held.record::<Turn>(decision, &[]).await.unwrap();
    }

    /// The model wants these tools called, which somebody outside answers.
    pub async fn suspend(&self, held: &mut Held, calls: &[(&str, &str)]) {
        let (state, cx) = (held.state::<Turn>().unwrap(), self.cx(held).await);
        let message = json!({ "role": "assistant", "content": "let me look" });
        let done = StepDone::new(state.step, message);
        let calls = calls.iter().map(|(call, tool)| NewWait {
            call: (*call).to_owned(),
            tool: (*tool).to_owned(),
            how: How::Outside(None),
            timeout_ms: None,
            after: After::Suspend,
        });
        let left = Duration::from_secs(3_600);
        let parted =
            act::suspend(&state, &cx, done, calls.collect(), &BTreeMap::new(), left).decision;
        let mail = held.unread().await.unwrap();
        let read = mail.last().map_or(held.head.mail_read, |m| m.seq);
        let id = self.keeper.pipeline().commit_id();
        let commit = act::parting(&held.head, state, parted, id, Some(read));
        held.commit(commit).await.unwrap();
    }

    /// The turn delivers.
    pub async fn finish(&self, held: &mut Held, content: Value) {
        let (state, cx) = (held.state::<Turn>().unwrap(), self.cx(held).await);
        let message = json!({ "role": "assistant", "content": "done" });
        let done = StepDone::new(state.step, message);
        let decision = act::finish(&state, &cx, Some(done), EndStatus::Success, content);
        let mail = held.unread().await.unwrap();
        held.record::<Turn>(decision, &mail).await.unwrap();
    }

    /// A turn that waits for these tools.
    pub async fn suspended(&self, agent: &str, calls: &[(&str, &str)]) -> EntityId {
        self.agent(agent).await;
        let turn = self.send(agent, "find out").await;
        let mut held = self.claim(agent).await;
        assert_eq!(held.id(), turn);
        self.ask_model(&mut held).await;
        self.suspend(&mut held, calls).await;
        turn
    }
}

/// An agent whose workers have its own name.
pub fn spec(name: &str) -> Spec {
    Spec {
        name: name.to_owned(),
        target: name.to_owned(),
        output_box: Some("out".to_owned()),
        ..Spec::default()
    }
}

pub fn sending(agent: &str, text: &str) -> Sending {
    Sending {
        tenant: TENANT.to_owned(),
        agent: agent.to_owned(),
        messages: vec![json!({ "role": "user", "content": text })],
        ..Sending::default()
    }
}
