//! A machine with timers and guards, and one server on the memory store.

use serde::{Deserialize, Serialize};
use std::{sync::Arc, time::Duration};
use tenure_bell::InProcess;
use tenure_edge::{SystemClock, TokioRuntime};
use tenure_engine::{
    birth::{Wish, birth, create, random},
    config::EngineConfig,
    lanes::{Discard, Wire},
    node::{Node, Parts},
    session::Keeper,
    stop::{Stopper, stopper},
};
use tenure_kernel::{
    bell::Bell,
    commit::{Commit, UniqueKey},
    head::Head,
    ids::EntityId,
    judge::Judge,
    machine::{Cx, Decision, Input, Machine, Machines, Placement, Undecided},
    mail::kinds,
    outbox::{Message, Target},
    store::Store,
    stream::{Body, Hash, NewEvent},
    table::{BIRTH, Claimable, Class, Move, SAME, StatusRow, Table, kernel_events as ke},
    timers::TimerChange,
};
use tenure_proving::patience;
use tenure_store::memory::MemoryStore;

/// What a clock is told at its birth.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Order {
    /// Timers that fire at once: name and whether it is a guard.
    pub timers: Vec<(String, bool)>,
    /// What a fired guard does: `end`, `requeue`, `huge` (a body that no store takes) or `fail`.
    pub guard: String,
    /// Says this to that subject outside.
    pub announce: Option<String>,
    /// Creates another clock under this key.
    pub child_key: Option<String>,
    /// Ends by itself only when time is up, with a body that no store takes.
    pub huge_end: bool,
    /// Its queue; `clocks` if nobody says.
    pub queue: Option<String>,
}

/// What a clock keeps.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct State {
    /// Its order.
    pub order: Order,
    /// What it heard.
    pub heard: Vec<String>,
    /// Timers that the loop served.
    pub fired: Vec<String>,
}

/// What happens to a clock.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    Wound { order: Order },
    Struck { timer: String, ballast: String },
    Heard { kind: String, body: String },
    Stopped { ballast: String },
}

/// The machine.
pub struct Clock;

/// Its table. `struck` leads from running to stopped, but from queued nowhere else: the order in which
/// a guard's events are stepped matters.
static TABLE: Table = Table {
    kind: "clock",
    doc: "Has timers and guards.",
    statuses: &[
        StatusRow {
            name: "queued",
            class: Class::Open,
            claimable: Claimable::Queued,
            doc: "Waits.",
        },
        StatusRow {
            name: "running",
            class: Class::Open,
            claimable: Claimable::No,
            doc: "Is held.",
        },
        StatusRow {
            name: "stopped",
            class: Class::Final,
            claimable: Claimable::No,
            doc: "Is over.",
        },
        StatusRow {
            name: "failed",
            class: Class::Final,
            claimable: Claimable::No,
            doc: "Was forced.",
        },
    ],
    moves: &[
        Move { from: BIRTH, event: "wound", to: "queued" },
        Move { from: &["queued"], event: "begun", to: "running" },
        Move { from: &["queued"], event: ke::CLAIMED, to: "running" },
        Move { from: &["running"], event: ke::TENURE_ENDED, to: "queued" },
        Move { from: &["queued"], event: "struck", to: SAME },
        Move { from: &["queued", "running"], event: "heard", to: SAME },
        Move { from: &["queued", "running"], event: "stopped", to: "stopped" },
    ],
    forced: "failed",
};

/// More than a blob may have.
fn ballast() -> String {
    "x".repeat(tenure_kernel::limits::BLOB_BYTES_MAX + 1)
}

impl Machine for Clock {
    type State = State;
    type Event = Event;
    const TABLE: &'static Table = &TABLE;

    fn name(event: &Event) -> &'static str {
        match event {
            Event::Wound { .. } => "wound",
            Event::Struck { .. } => "struck",
            Event::Heard { .. } => "heard",
            Event::Stopped { .. } => "stopped",
        }
    }

    fn apply(state: &mut State, event: &Event) {
        match event {
            Event::Wound { order } => state.order = order.clone(),
            Event::Struck { timer, .. } => state.fired.push(timer.clone()),
            Event::Heard { kind, body } => state.heard.push(format!("{kind} {body}")),
            Event::Stopped { .. } => {}
        }
    }

    fn decide(
        state: Option<&State>,
        input: &Input<'_>,
        cx: &Cx,
    ) -> Result<Decision<Event>, Undecided> {
        let text = |body: &Body| String::from_utf8_lossy(body.inline().unwrap_or(b"")).into_owned();
        match input {
            Input::Create(body) => {
                let order: Order =
                    serde_json::from_str(&text(body)).map_err(|e| Undecided(e.to_string()))?;
                let end = if order.huge_end {
                    Duration::from_millis(50)
                } else {
                    Duration::from_secs(3_600)
                };
                let mut made =
                    Decision::event(Event::Wound { order: order.clone() }).must_end_in(end);
                let queue = order.queue.clone().unwrap_or_else(|| "clocks".into());
                made.placement = Some(Placement { queue, priority: 0 });
                for (name, guard) in &order.timers {
                    let after = Duration::from_millis(1);
                    made = made.timer(TimerChange::Set {
                        name: name.clone().into(),
                        after,
                        guard: *guard,
                    });
                }
                if let Some(subject) = &order.announce {
                    let to = Target::Wire(subject.clone());
                    made =
                        made.send(Message { to, kind: "wound".into(), body: Body::json(&cx.id) });
                }
                if let Some(key) = &order.child_key {
                    let id = EntityId::derived(cx.id, "child", cx.now);
                    let body =
                        Body::json(&Order { guard: format!("key:{key}"), ..Order::default() });
                    let to = Target::Create { id, kind: "clock".into() };
                    made = made.send(Message { to, kind: "create".into(), body });
                }
                if let Some(key) = order.guard.strip_prefix("key:") {
                    made.keys = vec![UniqueKey { key: key.into(), digest: Hash::of(b"") }];
                }
                Ok(made)
            }
            Input::Timer(name) => match state.map(|s| s.order.guard.as_str()) {
                Some("end") => Ok(Decision::event(Event::Stopped { ballast: String::new() })),
                Some("huge") => {
                    Ok(Decision::event(Event::Struck { timer: (*name).into(), ballast: ballast() }))
                }
                Some("fail") => Err(Undecided("this guard does not know".into())),
                _ => Ok(Decision::event(Event::Struck {
                    timer: (*name).into(),
                    ballast: String::new(),
                })),
            },
            Input::Mail(mail) => {
                let heard = |m: &tenure_kernel::mail::Mail| Event::Heard {
                    kind: m.kind.clone(),
                    body: text(&m.body),
                };
                let mut all =
                    Decision { events: mail.iter().map(heard).collect(), ..Decision::default() };
                if mail.iter().any(|m| m.kind == kinds::CANCEL) {
                    all = all.and(Event::Stopped { ballast: String::new() }).regardless();
                }
                Ok(all)
            }
            Input::MustEnd => {
                let huge = state.is_some_and(|s| s.order.huge_end);
                Ok(Decision::event(Event::Stopped {
                    ballast: if huge { ballast() } else { String::new() },
                }))
            }
            Input::TenureEnded(_) | Input::CancelUnborn => Ok(Decision::default()),
        }
    }
}

/// Machines of these tests.
pub fn machines() -> Machines {
    Machines::kernel().with::<Clock>()
}

/// A memory store.
pub fn store() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new(Judge::new(machines().tables()), Arc::new(SystemClock), 1))
}

/// A server with short ticks.
pub async fn node(store: Arc<dyn Store>, wire: Arc<dyn Wire>) -> Node {
    node_with(store, Arc::new(InProcess::new()), wire).await
}

/// The same with a bell of its own.
pub async fn node_with(store: Arc<dyn Store>, bell: Arc<dyn Bell>, wire: Arc<dyn Wire>) -> Node {
    node_like(config(), store, bell, wire).await
}

/// Short ticks.
pub fn config() -> EngineConfig {
    EngineConfig {
        tick: Duration::from_millis(50),
        pulse_gap: Duration::from_secs(1),
        faults_before_attention: 2,
        ..EngineConfig::with_lease(Duration::from_secs(3))
    }
}

/// The same with a configuration of its own.
pub async fn node_like(
    config: EngineConfig,
    store: Arc<dyn Store>,
    bell: Arc<dyn Bell>,
    wire: Arc<dyn Wire>,
) -> Node {
    let rt = Arc::new(TokioRuntime::current());
    let name = "test".to_owned();
    let parts = Parts {
        store,
        bell,
        rt,
        machines: machines(),
        config,
        name,
        executor: None,
        wire,
        protect_outage: true,
    };
    Node::start(parts).await.unwrap()
}

/// A server without anybody outside.
pub async fn quiet_node(store: Arc<dyn Store>) -> Node {
    node(store, Arc::new(Discard)).await
}

/// Creates a clock.
pub async fn clock(node: &Node, order: &Order) -> EntityId {
    create(&node.pipeline, &machines(), "clock", "t", &Body::json(order)).await.unwrap()
}

/// The commit that creates a clock which is held from its birth on.
pub async fn running_clock(node: &Node) -> Commit {
    let at = node.pipeline.store().now().await.unwrap();
    let id = EntityId::new(at, random(&node.pipeline));
    let order = Body::json(&Order { timers: vec![("t".into(), false)], ..Order::default() });
    let wish = Wish { id, kind: "clock", tenant: "t", at };
    let commit = node.pipeline.commit_id();
    let mut commit = birth(&machines(), wish, &Input::Create(&order), commit).unwrap();
    commit.events.push(NewEvent::new("begun", Body::json(&())));
    commit
}

/// A worker's session that is renewed for as long as the stopper lives.
pub async fn session(node: &Node) -> (Keeper, Stopper) {
    let config = node.keeper.config().clone();
    let keeper = Keeper::open(node.pipeline.clone(), config, "w", "worker", None).await.unwrap();
    let (stopper, stop) = stopper();
    let renewed = keeper.clone();
    node.pipeline.rt().spawn(Box::pin(async move { renewed.run(stop).await }));
    (keeper, stopper)
}

/// Waits until a head is as it should be.
pub async fn until(
    store: &dyn Store,
    id: EntityId,
    what: &str,
    done: impl Fn(&Head) -> bool,
) -> Head {
    patience::found(what, async || {
        let head = store.head(id).await.unwrap();
        head.clone().filter(|h| done(h)).ok_or(head)
    })
    .await
}

/// The state of a clock.
pub fn state(head: &Head) -> State {
    tenure_kernel::machine::decode_state::<Clock>(&head.state).unwrap()
}
