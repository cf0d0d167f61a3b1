//! What an operator has blocked: a flow, a tool or a tenant. One resting entity, the block book, so that a process learns of
//! all blocks with one read; its stream says who set and removed each, when and why.
//!
//! A block keeps work from being claimed. It ends nothing: what is queued stays queued, and goes on when the block is removed.

use crate::{
    ids::EntityId,
    machine::{Cx, Decision, Input, Machine, Undecided},
    table::{BIRTH, Claimable, Class, Move, SAME, StatusRow, Table},
    time::Timestamp,
    wakeup,
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt, str::FromStr};

/// Blocks at once. They lie in one head.
pub const BLOCKS_MAX: usize = 100;
/// Bytes of the reason that is given for one.
pub const WHY_BYTES_MAX: usize = 200;
/// Bytes of who gave it.
pub const BY_BYTES_MAX: usize = 100;
/// The tenant of the book, which no tenant can have: it is everybody's.
pub const EVERYBODY: &str = "*";
/// Calls of a tool that workers in other languages take stand in the queue of this name and the tool's.
pub const TOOL_QUEUE: &str = "tool:";

/// What kind of thing is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockKind {
    /// All versions of a flow.
    Flow,
    /// A tool, whoever calls it.
    Tool,
    /// All work of a tenant.
    Tenant,
}

impl BlockKind {
    /// As in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            BlockKind::Flow => "flow",
            BlockKind::Tool => "tool",
            BlockKind::Tenant => "tenant",
        }
    }
}

impl fmt::Display for BlockKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for BlockKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [BlockKind::Flow, BlockKind::Tool, BlockKind::Tenant];
        let found = all.into_iter().find(|kind| kind.as_str() == text);
        found.ok_or_else(|| format!("{text:?} is not one of flow, tool and tenant"))
    }
}

/// One block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// What kind of thing.
    pub kind: BlockKind,
    /// Its name.
    pub name: String,
    /// Why, for people.
    pub why: String,
    /// Who set it.
    pub by: String,
    /// Since when.
    pub since: Timestamp,
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Block { kind, name, why, since, .. } = self;
        write!(f, "an operator has blocked the {kind} {name} since {since} ({why})")
    }
}

/// All blocks, by kind and name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BlockList {
    /// In the order of kinds and names.
    blocks: Vec<Block>,
}

impl BlockList {
    /// All of them.
    pub fn all(&self) -> &[Block] {
        &self.blocks
    }

    /// One of them.
    pub fn get(&self, kind: BlockKind, name: &str) -> Option<&Block> {
        self.blocks.iter().find(|b| b.kind == kind && b.name == name)
    }

    /// What keeps a job of this flow and tenant from running.
    pub fn of_job(&self, flow: &str, tenant: &str) -> Option<&Block> {
        self.get(BlockKind::Tenant, tenant).or_else(|| self.get(BlockKind::Flow, flow))
    }

    /// What keeps an entity of this queue and tenant from being claimed. The name of a queue says what stands in it:
    /// `flow@version` and more, `tool:name`, or `agent:target`.
    pub fn of_queue(&self, queue: &str, tenant: &str) -> Option<&Block> {
        if self.blocks.is_empty() {
            return None;
        }
        if let Some(block) = self.get(BlockKind::Tenant, tenant) {
            return Some(block);
        }
        match queue.strip_prefix(TOOL_QUEUE) {
            Some(tool) => self.get(BlockKind::Tool, tool),
            None if queue.starts_with(wakeup::QUEUE) => None,
            None => self.get(BlockKind::Flow, flow_of(queue)?),
        }
    }
}

/// The flow of a queue, without its version: behind the last `@` there is a number, and perhaps a slash or a plus.
fn flow_of(queue: &str) -> Option<&str> {
    let (flow, rest) = queue.rsplit_once('@')?;
    rest.starts_with(|c: char| c.is_ascii_digit()).then_some(flow)
}

/// What can happen to the book.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum BlockEvent {
    /// Something was blocked, or the reason is another one now.
    BlockSet {
        /// What, by whom and why.
        block: Block,
    },
    /// It is free again.
    BlockRemoved {
        /// What kind of thing.
        kind: BlockKind,
        /// Its name.
        name: String,
        /// Who removed it.
        by: String,
    },
    /// Mail came that changes nothing.
    BlockMailNoted {
        /// How much.
        count: u64,
    },
}

/// The machine of the block book.
#[derive(Debug)]
pub struct BlockBook;

/// Its table.
pub static TABLE: Table = Table {
    kind: "block_book",
    doc: "What an operator has blocked: flows, tools and tenants.",
    statuses: &[StatusRow {
        name: "kept",
        class: Class::Resting,
        claimable: Claimable::No,
        doc: "Lists blocks.",
    }],
    moves: &[
        Move { from: BIRTH, event: "block_set", to: "kept" },
        Move { from: &["kept"], event: "block_set", to: SAME },
        Move { from: &["kept"], event: "block_removed", to: SAME },
        Move { from: &["kept"], event: "block_mail_noted", to: SAME },
    ],
    forced: "",
};

impl Machine for BlockBook {
    type State = BlockList;
    type Event = BlockEvent;
    const TABLE: &'static Table = &TABLE;

    fn name(event: &BlockEvent) -> &'static str {
        match event {
            BlockEvent::BlockSet { .. } => "block_set",
            BlockEvent::BlockRemoved { .. } => "block_removed",
            BlockEvent::BlockMailNoted { .. } => "block_mail_noted",
        }
    }

    fn apply(state: &mut BlockList, event: &BlockEvent) {
        match event {
            BlockEvent::BlockSet { block } => {
                let key = |b: &Block| (b.kind, b.name.clone());
                let mut all: BTreeMap<_, Block> =
                    state.blocks.drain(..).map(|b| (key(&b), b)).collect();
                all.insert(key(block), block.clone());
                state.blocks = all.into_values().collect();
            }
            BlockEvent::BlockRemoved { kind, name, .. } => {
                state.blocks.retain(|b| b.kind != *kind || b.name != *name);
            }
            BlockEvent::BlockMailNoted { .. } => {}
        }
    }

    fn decide(
        _state: Option<&BlockList>,
        input: &Input<'_>,
        _cx: &Cx,
    ) -> Result<Decision<BlockEvent>, Undecided> {
        match input {
            Input::Mail(mail) => {
                Ok(Decision::event(BlockEvent::BlockMailNoted { count: mail.len() as u64 }))
            }
            other => Err(Undecided(format!("the block book does not know {}", other.rule()))),
        }
    }
}

/// The entity of the book.
pub fn book_id() -> EntityId {
    EntityId::derived(EntityId::fixed(6, 0), TABLE.kind, Timestamp::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(kind: BlockKind, name: &str) -> Block {
        let (name, why, by) = (name.into(), "it kills workers".into(), "ada".into());
        Block { kind, name, why, by, since: Timestamp::ZERO }
    }

    fn with(blocks: &[(BlockKind, &str)]) -> BlockList {
        let mut list = BlockList::default();
        for (kind, name) in blocks {
            BlockBook::apply(&mut list, &BlockEvent::BlockSet { block: block(*kind, name) });
        }
        list
    }

    #[test]
    fn a_block_holds_exactly_what_it_names() {
        let list = with(&[
            (BlockKind::Flow, "order"),
            (BlockKind::Tool, "pay"),
            (BlockKind::Tenant, "acme"),
        ]);
        let held = |queue: &str, tenant: &str| list.of_queue(queue, tenant).is_some();
        for queue in ["order@1", "order@12", "order@2/night+gpu", "tool:pay"] {
            assert!(held(queue, "globex"), "{queue}");
        }
        for queue in ["orders@1", "my-order@1", "tool:order", "tool:pay2", "agent:pay", "order"] {
            assert!(!held(queue, "globex"), "{queue}");
            assert!(held(queue, "acme"), "{queue}");
        }
        assert!(list.of_job("order", "globex").is_some() && list.of_job("x", "acme").is_some());
        assert!(list.of_job("pay", "globex").is_none());
    }

    #[test]
    fn a_second_block_replaces_the_first_and_a_removal_frees() {
        let mut list =
            with(&[(BlockKind::Flow, "b"), (BlockKind::Flow, "a"), (BlockKind::Flow, "b")]);
        let names: Vec<&str> = list.all().iter().map(|b| b.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        let (kind, name, by) = (BlockKind::Flow, "a".to_owned(), "ada".to_owned());
        BlockBook::apply(&mut list, &BlockEvent::BlockRemoved { kind, name, by });
        assert!(
            list.get(BlockKind::Flow, "a").is_none() && list.get(BlockKind::Flow, "b").is_some()
        );
    }

    #[test]
    fn a_full_book_fits_into_a_head() {
        let names: Vec<String> = (0..BLOCKS_MAX).map(|n| format!("{n:03}")).collect();
        let mut list = BlockList::default();
        for name in &names {
            let block =
                Block { why: "x".repeat(40), by: "y".repeat(20), ..block(BlockKind::Tenant, name) };
            BlockBook::apply(&mut list, &BlockEvent::BlockSet { block });
        }
        let bytes = serde_json::to_vec(&list).unwrap().len();
        assert!(bytes < crate::limits::HEAD_STATE_BYTES_MAX, "{bytes}");
    }
}
