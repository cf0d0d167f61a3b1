//! Flows from a seed. A plan is drawn and travels as the input of one flow, which walks it; so every seed
//! has flows of its own, and a checker can walk the same plan over what was recorded.

use super::{Off, sagas::Part};
use crate::rng::Rng;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::time::Duration;
use tenure_kernel::runtime::BoxFuture;
use tenure_steps::{
    Ctx, Either, FlowError, StepError,
    flow::{FlowSpec, Flows},
};

/// The flow that walks plans.
pub(super) const FLOW: &str = "walk";
/// Too large for the head, and for the mail to a parent.
const BIG_BYTES: usize = 9_000;

/// One part of a plan.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Node {
    /// A call; what it is given says how it fares.
    Tool {
        tool: String,
        luck: Luck,
        timeout_ms: u64,
        retries: u32,
    },
    /// A recorded value that is large.
    Big,
    /// A recorded random number.
    Random,
    Sleep(u64),
    Signal {
        key: String,
        within_ms: Option<u64>,
    },
    Approval {
        key: String,
        within_ms: u64,
    },
    Child(Box<Plan>),
    Seq(Vec<Node>),
    Par(Vec<Node>),
    Race(Box<Node>, Box<Node>),
    /// What fails in here is a result.
    Try(Box<Node>),
    /// What was done in here is undone if it fails.
    Saga(Vec<super::sagas::Part>),
}

/// How often in a thousand a call goes wrong, and takes long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Luck {
    pub n: u32,
    pub fails: u32,
    pub slow: u32,
}

/// What a job does, and what it goes on with afresh.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    pub body: Node,
    pub then: Option<Box<Plan>>,
    pub so_far: Vec<Value>,
}

/// What all workers know.
pub(super) fn flows(off: Option<Off>) -> Flows {
    Flows::default().with(FlowSpec::new(FLOW, move |ctx: Ctx, input: Value| async move {
        let plan: Plan = serde_json::from_value(input).map_err(FlowError::failed_to_read)?;
        let mut so_far = plan.so_far;
        so_far.push(walk(ctx.clone(), plan.body, off).await?);
        match plan.then {
            Some(then) => Err(ctx.continue_with(Plan { so_far, ..*then })),
            None => Ok(Value::from(so_far)),
        }
    }))
}

trait Unreadable {
    fn failed_to_read(e: serde_json::Error) -> Self;
}

impl Unreadable for FlowError {
    fn failed_to_read(e: serde_json::Error) -> Self {
        FlowError::failed(e.to_string())
    }
}

pub(super) fn walk(
    ctx: Ctx,
    node: Node,
    off: Option<Off>,
) -> BoxFuture<'static, Result<Value, StepError>> {
    let ms = Duration::from_millis;
    Box::pin(async move {
        match node {
            Node::Tool { tool, luck, timeout_ms, retries } => {
                ctx.tool(&tool, luck).timeout(ms(timeout_ms)).retries(retries, ms(500)).await
            }
            Node::Big => ctx.pure("big", || Value::from("x".repeat(BIG_BYTES))).await,
            Node::Random => Ok(Value::from(ctx.random())),
            Node::Sleep(n) => ctx.sleep(ms(n)).await.map(|()| Value::Null),
            Node::Signal { key, within_ms: Some(n) } => ctx.wait_signal(&key).within(ms(n)).await,
            Node::Signal { key, within_ms: None } => ctx.wait_signal(&key).await,
            Node::Approval { key, within_ms } => {
                let said = ctx.approval(&key).within(ms(within_ms)).await?;
                Ok(json!({ "approved": said.approved, "by": said.by, "payload": said.payload }))
            }
            Node::Child(plan) => ctx.child(FLOW, *plan).await,
            Node::Seq(nodes) => {
                let mut out = Vec::new();
                for node in nodes {
                    out.push(walk(ctx.clone(), node, off).await?);
                }
                Ok(Value::from(out))
            }
            Node::Par(nodes) => {
                let all = ctx.parallel(nodes, |ctx, node| walk(ctx, node, off)).await;
                all.into_iter().collect::<Result<Vec<Value>, StepError>>().map(Value::from)
            }
            Node::Race(a, b) => {
                let (a, b) = (walk(ctx.branch(), *a, off), walk(ctx.branch(), *b, off));
                match ctx.race(a, b).await {
                    Either::Left(x) | Either::Right(x) => x,
                }
            }
            Node::Try(node) => Ok(match walk(ctx, *node, off).await {
                Ok(value) => value,
                Err(e) => failed(&e.step.0, &e.why),
            }),
            Node::Saga(parts) => super::sagas::walk(ctx, parts, off).await,
        }
    })
}

/// What a failure is as a value.
pub(super) fn failed(step: &str, why: &str) -> Value {
    json!({ "failed": step, "why": why })
}

/// Draws plans.
pub(super) struct Draw<'a> {
    pub rng: &'a mut Rng,
    /// How often calls go wrong, in a thousand.
    pub fails: u32,
    pub slow: u32,
    names: u32,
}

impl<'a> Draw<'a> {
    pub(super) fn new(rng: &'a mut Rng) -> Self {
        let fails = [0, 150, 400][rng.index(3)];
        let slow = [0, 100, 300][rng.index(3)];
        Draw { rng, fails, slow, names: 0 }
    }

    /// A plan; `depth` bounds it.
    pub(super) fn plan(&mut self, depth: u32) -> Plan {
        let more = depth > 1 && self.rng.permille(150);
        let body = self.seq(depth);
        let then = more.then(|| Box::new(self.plan(1)));
        Plan { body, then, so_far: Vec::new() }
    }

    /// One of a few steps, without anything that waits for people: for a sweep over its await points.
    pub(super) fn short(&mut self) -> Plan {
        let (a, b) = (self.tool(), self.tool());
        let last = match self.rng.below(3) {
            0 => Node::Sleep(200),
            1 => Node::Par(vec![self.tool(), self.tool()]),
            _ => Node::Try(Box::new(self.tool())),
        };
        let body = Node::Seq(vec![a, b, last].into_iter().map(tried).collect());
        Plan { body, then: None, so_far: Vec::new() }
    }

    /// One call, and nothing that takes long: many of them stand in one line.
    pub(super) fn single(&mut self) -> Plan {
        self.slow = 0;
        let body = tried(self.tool());
        Plan { body, then: None, so_far: Vec::new() }
    }

    /// One call that nobody has to settle.
    pub(super) fn plain(&mut self) -> Plan {
        let (tool, luck) = (super::town::Craft::Send.name().to_owned(), Luck::default());
        let body = tried(Node::Tool { tool, luck, timeout_ms: 10_000, retries: 3 });
        Plan { body, then: None, so_far: Vec::new() }
    }

    /// Children with children: each does something before, while and after they do.
    pub(super) fn family(&mut self, depth: u32) -> Plan {
        let mut parts = vec![self.node(0)];
        if depth > 0 {
            let len = 1 + self.rng.below(3);
            let mut beside: Vec<Node> =
                (0..len).map(|_| tried(Node::Child(Box::new(self.family(depth - 1))))).collect();
            beside.push(self.node(0));
            // Who loses a race is told to stop, without its parent being cancelled.
            match self.rng.permille(200) {
                true => {
                    let (a, b) = (beside.swap_remove(0), self.node(0));
                    parts.push(Node::Race(Box::new(a), Box::new(b)));
                }
                false => parts.push(Node::Par(beside)),
            }
            parts.push(self.node(0));
        }
        Plan { body: Node::Seq(parts), then: None, so_far: Vec::new() }
    }

    fn seq(&mut self, depth: u32) -> Node {
        let len = 1 + self.rng.below(3);
        Node::Seq((0..len).map(|_| self.node(depth)).collect())
    }

    pub(super) fn node(&mut self, depth: u32) -> Node {
        let deeper = depth > 0;
        match self.rng.below(20) {
            0..=7 => tried_sometimes(self.rng, |rng| Self::tool_of(rng, self.fails, self.slow)),
            8 => Node::Sleep(self.rng.below(20_000)),
            9 => Node::Sleep(60_000 + self.rng.below(60_000)),
            10 => Node::Random,
            11 => Node::Signal { key: self.name("s"), within_ms: None },
            12 => {
                let (key, n) = (self.name("s"), 500 + self.rng.below(90_000));
                Node::Try(Box::new(Node::Signal { key, within_ms: Some(n) }))
            }
            13 => {
                let (key, within_ms) = (self.name("a"), 500 + self.rng.below(200_000));
                Node::Try(Box::new(Node::Approval { key, within_ms }))
            }
            14 if deeper => Node::Try(Box::new(Node::Child(Box::new(self.plan(depth - 1))))),
            15 | 16 if deeper => {
                let len = 2 + self.rng.below(3);
                Node::Par((0..len).map(|_| self.node(depth - 1)).collect())
            }
            17 | 18 if deeper => {
                let (a, b) = (self.node(depth - 1), self.node(depth - 1));
                Node::Race(Box::new(a), Box::new(b))
            }
            19 => Node::Big,
            _ => self.tool(),
        }
    }

    fn name(&mut self, kind: &str) -> String {
        self.names += 1;
        format!("{kind}{}", self.names)
    }

    pub(super) fn tool(&mut self) -> Node {
        Self::tool_of(self.rng, self.fails, self.slow)
    }

    fn tool_of(rng: &mut Rng, fails: u32, slow: u32) -> Node {
        let tool = super::town::Craft::ALL[rng.index(super::town::Craft::ALL.len())];
        let luck = Luck { n: rng.below(1_000) as u32, fails, slow };
        let timeout_ms = [2_000, 10_000, 40_000][rng.index(3)];
        let retries = rng.below(4) as u32;
        Node::Tool { tool: tool.name().to_owned(), luck, timeout_ms, retries }
    }
}

fn tried(node: Node) -> Node {
    Node::Try(Box::new(node))
}

fn tried_sometimes(rng: &mut Rng, make: impl FnOnce(&mut Rng) -> Node) -> Node {
    let node = make(rng);
    if rng.permille(600) { tried(node) } else { node }
}

/// The keys that a plan waits for, children's excepted.
pub(super) fn keys(node: &Node) -> Vec<String> {
    match node {
        Node::Signal { key, .. } | Node::Approval { key, .. } => vec![key.clone()],
        Node::Seq(nodes) | Node::Par(nodes) => nodes.iter().flat_map(keys).collect(),
        Node::Race(a, b) => [keys(a), keys(b)].concat(),
        Node::Try(node) => keys(node),
        Node::Saga(parts) => {
            let others = parts.iter().filter_map(|p| match p {
                Part::Other(node) => Some(node),
                Part::One(_) | Part::Beside(_) => None,
            });
            others.flat_map(keys).collect()
        }
        Node::Tool { .. } | Node::Big | Node::Random | Node::Sleep(_) | Node::Child(_) => {
            Vec::new()
        }
    }
}
