//! Dead letters: tasks that failed and that nobody has dealt with. A person replays one, which is a new task, or puts it
//! aside. Both are evidence beside its history: final is final.

use super::{
    Answer, Desk, DeskError, Outcome,
    order::{Birthed, Ordered, scoped},
    words,
};
use crate::{
    task::{NewTask, Task, TaskState, table},
    view::stream::first_event,
};
use serde_json::json;
use std::sync::Arc;
use tenure_engine::birth::random;
use tenure_kernel::{
    commit::UniqueKey,
    error::StoreError,
    head::Head,
    ids::EntityId,
    machine::Machine as _,
    store::{HeadFilter, Store},
    stream::Hash,
    table::Class,
};

/// The key of the evidence that puts a failed task aside.
pub const DISCARDED: &str = "discarded";
/// The key of the evidence that names the task that repeats it.
pub const REPLAYED: &str = "replayed";

/// Heads that one listing looks at.
const LOOKED_AT_MAX: usize = 1_000;

/// A page of dead letters.
#[derive(Clone, Debug, Default)]
pub struct Letters {
    /// Failed tasks that nobody has dealt with, the newest first.
    pub tasks: Vec<(Head, TaskState)>,
    /// Where the next page begins. A page may be short and not be the last.
    pub next: Option<EntityId>,
}

impl Desk {
    /// Orders once more what has failed or was cancelled: a new task with `retry_of`. Without a key a task is replayed once,
    /// and asked again the answer is the same new task.
    pub async fn replay(
        &self,
        tenant: Option<&str>,
        task: EntityId,
        key: Option<&str>,
        by: Option<&str>,
    ) -> Result<Ordered, DeskError> {
        words(by, None)?;
        let (head, state) = self.task(tenant, task).await?;
        let not_now = |why: &str, fix| DeskError::NotNow {
            task,
            status: head.status.name().to_owned(),
            why: why.to_owned(),
            fix,
        };
        if head.class() != Class::Final {
            let fix = "wait for its end, or cancel it first";
            return Err(not_now("only what is over can be replayed", fix));
        }
        if head.status.name() == table::SUCCEEDED {
            return Err(not_now("it ended well", "order a new task"));
        }
        if state.external {
            let fix = "make its pod anew, under another task id";
            return Err(not_now("its pods are made elsewhere", fix));
        }
        let new = self.ordered_as(task).await?.ok_or_else(|| {
            not_now("it was cancelled before it was ordered", "order it as a new task")
        })?;
        let new = NewTask {
            label: None,
            asker: None,
            retry_of: Some(task),
            budget: self.defaults.budget,
            ..new
        };
        let unique = UniqueKey {
            key: scoped(&head.tenant, &format!("replay/{task}/{}", key.unwrap_or("once"))),
            digest: Hash::of(task.as_bytes()),
        };
        let at = self.pipeline.store().now().await?;
        let id = EntityId::new(at, random(&self.pipeline));
        let born = self.give_birth(id, &head.tenant, at, &new, Some(unique)).await?;
        let ordered = match born {
            Birthed::Born => Ordered { task: id, existed: false },
            Birthed::Same(known) => Ordered { task: known, existed: true },
            Birthed::Other(known) => return Err(DeskError::OtherInput(known)),
        };
        let said = json!({ "as": ordered.task, "by": by });
        self.testify(&head, REPLAYED, by, &said).await?;
        Ok(ordered)
    }

    /// Puts a failed task aside: it is no dead letter any more.
    pub async fn discard(
        &self,
        tenant: Option<&str>,
        task: EntityId,
        why: Option<&str>,
        by: Option<&str>,
    ) -> Result<Answer, DeskError> {
        words(by, why)?;
        let (head, _) = self.task(tenant, task).await?;
        if head.status.name() != table::FAILED {
            return Err(DeskError::NotNow {
                task,
                status: head.status.name().to_owned(),
                why: "only a failed task is a dead letter".to_owned(),
                fix: "cancel an open one; what ended otherwise is listed nowhere as failed",
            });
        }
        let new = self.testify(&head, DISCARDED, by, &json!({ "by": by, "why": why })).await?;
        let outcome = if new { Outcome::Accepted } else { Outcome::Already };
        Ok(Answer { task, outcome })
    }

    /// What a task was ordered as.
    async fn ordered_as(&self, task: EntityId) -> Result<Option<NewTask>, StoreError> {
        first_event(self.pipeline.store(), task).await
    }
}

/// Whether somebody has dealt with a failed task.
pub async fn is_settled(store: &Arc<dyn Store>, task: EntityId) -> Result<bool, StoreError> {
    let settled = [DISCARDED, REPLAYED];
    Ok(store.evidence(task).await?.iter().any(|e| settled.contains(&e.said.key.as_str())))
}

/// Failed tasks that nobody has dealt with.
pub async fn dead_letters(
    store: &Arc<dyn Store>,
    tenant: Option<&str>,
    before: Option<EntityId>,
    limit: usize,
    admits: impl Fn(&TaskState) -> bool,
) -> Result<Letters, StoreError> {
    let (mut page, mut looked) = (Letters { tasks: Vec::new(), next: before }, 0);
    loop {
        let filter = HeadFilter {
            kind: Some(Task::TABLE.kind.into()),
            status: Some(table::FAILED.into()),
            tenant: tenant.map(str::to_owned),
            before: page.next,
            newest_first: true,
            ..HeadFilter::default()
        };
        let heads = store.heads(filter, limit.clamp(1, 200)).await?;
        if heads.is_empty() {
            page.next = None;
            return Ok(page);
        }
        for head in heads {
            if page.tasks.len() >= limit || looked >= LOOKED_AT_MAX {
                return Ok(page);
            }
            looked += 1;
            page.next = Some(head.id);
            let state = super::state_of::<Task>(&head)?;
            if admits(&state) && !is_settled(store, head.id).await? {
                page.tasks.push((head, state));
            }
        }
    }
}
