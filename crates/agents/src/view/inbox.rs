//! The inbox as people read it. No row of its own stands behind an item: where the turn stands, what lies in its
//! mailbox and what its stream says *is* the inbox, so the two can not disagree.
//!
//! | what there is | type | status |
//! |---|---|---|
//! | the turn itself | `turn`, `ui_action` | `queued`, `pending` (dispatched, or begun and nobody has it), `processing` (first step), `consumed`; `error` if it failed before its first step, `skipped` if it was set aside or taken back in line |
//! | mail that nobody has read | as its kind | `pending`, `processing` while a worker holds the turn |
//! | `result_applied`, `wait_timed_out`, `item_noted` | `tool_result`, `timeout`, as its kind | `consumed` |
//! | `result_kept` | `tool_result` | `pending` until the suspend that it is for; `skipped`, with a code, where none asked for it |
//! | `item_dead` | as its kind | `error`, until a person has `requeued` or `skipped` it |
//! | evidence after the end, results behind an end in one commit | `tool_result` | `error`, code `turn_over` |
//! | mail that nobody had read when a rule ended the turn | as its kind | `skipped`, code `turn_over` |

use super::{stream::lines, turn::TurnView};
use crate::{
    desk::{letters::settled_key, state_of},
    turn::{Turn, TurnEvent, decide::ALREADY_KEPT, model::Sort},
    words::{ToolResult, kinds},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{collections::BTreeSet, sync::Arc};
use tenure_kernel::{
    error::StoreError,
    head::Head,
    ids::EntityId,
    limits as kernel_limits,
    mail::{Mail, kinds as kernel},
    store::Store,
    stream::Body,
    table::{Class, kernel_events as ke},
    time::Timestamp,
};

/// Where an item stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ItemStatus {
    /// In its agent's line.
    Queued,
    /// It waits for a worker, or to be read.
    Pending,
    /// A worker has it.
    Processing,
    /// It was used.
    Consumed,
    /// A dead letter.
    Error,
    /// A dead letter that was sent again.
    Requeued,
    /// It was put aside.
    Skipped,
}

impl ItemStatus {
    /// The word.
    pub const fn name(self) -> &'static str {
        match self {
            ItemStatus::Queued => "queued",
            ItemStatus::Pending => "pending",
            ItemStatus::Processing => "processing",
            ItemStatus::Consumed => "consumed",
            ItemStatus::Error => "error",
            ItemStatus::Requeued => "requeued",
            ItemStatus::Skipped => "skipped",
        }
    }

    /// All of them.
    pub const ALL: [ItemStatus; 7] = [
        ItemStatus::Queued,
        ItemStatus::Pending,
        ItemStatus::Processing,
        ItemStatus::Consumed,
        ItemStatus::Error,
        ItemStatus::Requeued,
        ItemStatus::Skipped,
    ];
}

/// One item.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Item {
    /// Its id within the turn.
    pub id: String,
    /// The turn it is for.
    pub turn: EntityId,
    /// The agent.
    pub agent: String,
    /// `turn`, `ui_action`, `tool_result`, `timeout`, `stop`, `progress`, or another kind of mail.
    #[serde(rename = "type")]
    pub kind: String,
    /// The kind of mail that it came as.
    pub mail_kind: String,
    /// Where it stands.
    pub status: ItemStatus,
    /// When it came, or was last dealt with.
    pub at: Timestamp,
    /// When a worker took it, or it was read; none again once nobody has it (rule `inbox_processing`).
    #[serde(default)]
    pub processed_at: Option<Timestamp>,
    /// When nothing was left to be done with it.
    #[serde(default)]
    pub archived_at: Option<Timestamp>,
    /// The sender's own name for it.
    pub correlation_id: Option<String>,
    /// The wait that it answers.
    pub wait: Option<String>,
    /// The id that the model gave the call.
    pub tool_call_id: Option<String>,
    /// A word for programs: why it is dead.
    pub code: Option<String>,
    /// A sentence for people.
    pub why: Option<String>,
    /// What it says, where it is dead.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub body: Value,
}

/// The item that a turn itself is.
pub fn turn_item(turn: &TurnView) -> Item {
    let begun = turn.step > 0;
    let status = match turn.status.as_str() {
        "queued" => ItemStatus::Queued,
        "dispatched" => ItemStatus::Pending,
        _ if turn.skipped || turn.status == "canceled" => ItemStatus::Skipped,
        _ if turn.is_final && !begun && turn.error.is_some() => ItemStatus::Error,
        // Dispatched and ended by a rule or a person before anybody took it up.
        _ if turn.is_final => ItemStatus::Consumed,
        // A step that was begun and is not finished is begun again by the next worker of the turn.
        "running" if !begun || turn.attempt > 0 => match &turn.holder {
            None => ItemStatus::Pending,
            Some(_) if turn.step <= 1 || turn.attempt > 1 => ItemStatus::Processing,
            Some(_) => ItemStatus::Consumed,
        },
        _ => ItemStatus::Consumed,
    };
    let kind = match turn.sort {
        Sort::Turn => "turn",
        Sort::UiAction => "ui_action",
    };
    Item {
        id: turn.id.to_string(),
        turn: turn.id,
        agent: turn.agent.clone(),
        kind: kind.to_owned(),
        mail_kind: kind.to_owned(),
        status,
        at: turn.created_at,
        processed_at: None,
        archived_at: None,
        correlation_id: turn.correlation_id.clone(),
        wait: None,
        tool_call_id: None,
        code: turn.error.as_ref().map(|e| e.code.clone()),
        why: turn.error.as_ref().map(|e| e.message.clone()).filter(|m| !m.is_empty()),
        body: Value::Null,
    }
}

/// The inbox's word for a kind of mail.
fn seed_type(kind: &str) -> &str {
    match kind {
        kernel::CHILD_ENDED | kinds::TURN_RESULT => "tool_result",
        kernel::CANCEL => "stop",
        other => other,
    }
}

/// An inbox in the making.
struct Tray {
    turn: EntityId,
    agent: String,
    items: Vec<Item>,
}

impl Tray {
    fn put(&mut self, id: String, kind: &str, status: ItemStatus, at: Timestamp) -> &mut Item {
        let at_end = self.items.len();
        self.items.push(Item {
            id,
            turn: self.turn,
            agent: self.agent.clone(),
            kind: seed_type(kind).to_owned(),
            mail_kind: kind.to_owned(),
            status,
            at,
            processed_at: None,
            archived_at: None,
            correlation_id: None,
            wait: None,
            tool_call_id: None,
            code: None,
            why: None,
            body: Value::Null,
        });
        &mut self.items[at_end]
    }

    fn said(item: &mut Item, body: &Value) {
        let text = |name: &str| body.get(name).and_then(Value::as_str).map(str::to_owned);
        item.wait = text("wait");
        item.tool_call_id = text("tool_call_id");
    }

    fn take(&mut self, at: Timestamp, event: TurnEvent) {
        match event {
            TurnEvent::ResultApplied(done) | TurnEvent::WaitTimedOut(done)
                if self.items.iter().any(|i| i.is_kept(&done.call)) =>
            {
                // It was kept for this.
                let mut kept = self.items.iter_mut().filter(|i| i.is_kept(&done.call));
                if let Some(first) = kept.next() {
                    (first.status, first.wait, first.at) =
                        (ItemStatus::Consumed, Some(done.wait), at);
                }
                for other in kept {
                    (other.status, other.at) = (ItemStatus::Skipped, at);
                    other.code = Some(ALREADY_KEPT.to_owned());
                    other.why = Some("the first result of this call counts".to_owned());
                }
            }
            TurnEvent::ResultApplied(done) => {
                let id = format!("result/{}", done.wait);
                let item = self.put(id, kinds::TOOL_RESULT, ItemStatus::Consumed, at);
                (item.wait, item.tool_call_id) = (Some(done.wait), Some(done.call));
                item.code = done.error.map(|e| e.code);
            }
            TurnEvent::WaitTimedOut(done) => {
                let id = format!("timeout/{}", done.wait);
                let item = self.put(id, "timeout", ItemStatus::Consumed, at);
                (item.wait, item.tool_call_id) = (Some(done.wait), Some(done.call));
                item.code = done.error.as_ref().map(|e| e.code.clone());
                item.why = done.error.map(|e| e.message);
            }
            TurnEvent::WaitProgress { wait, note, .. } => {
                let id = format!("progress/{wait}/{}", at.as_micros());
                let item = self.put(id, kinds::PROGRESS, ItemStatus::Consumed, at);
                (item.wait, item.why) = (Some(wait), Some(note).filter(|n| !n.is_empty()));
            }
            TurnEvent::ResultKept { item: id, result } => {
                let item = self.put(id, kinds::TOOL_RESULT, ItemStatus::Pending, at);
                item.tool_call_id = result.tool_call_id;
                item.why = Some("it came before the turn was suspended, and is kept".to_owned());
            }
            TurnEvent::ItemNoted { item: id, kind, why, .. } if kind != "timer" => {
                let item = self.put(id, &kind, ItemStatus::Consumed, at);
                item.why = Some(why);
            }
            TurnEvent::ItemDead(dead)
                if self.items.iter().any(|i| dead.kept && i.id == dead.item) =>
            {
                if let Some(item) = self.items.iter_mut().find(|i| i.id == dead.item) {
                    (item.status, item.at) = (ItemStatus::Error, at);
                    (item.code, item.why, item.body) = (Some(dead.code), Some(dead.why), dead.body);
                }
            }
            TurnEvent::ItemDead(dead) => {
                let item = self.put(dead.item, &dead.kind, ItemStatus::Error, at);
                Tray::said(item, &dead.body);
                (item.code, item.why, item.body) = (Some(dead.code), Some(dead.why), dead.body);
            }
            TurnEvent::ItemSettled { item, how, by } => {
                let status =
                    if how == "requeued" { ItemStatus::Requeued } else { ItemStatus::Skipped };
                self.settle(|i| i.id == item, status, by, at);
            }
            _ => {}
        }
    }

    fn settle(
        &mut self,
        which: impl Fn(&Item) -> bool,
        status: ItemStatus,
        by: Option<String>,
        at: Timestamp,
    ) {
        let dead = |i: &&mut Item| i.status == ItemStatus::Error && which(i);
        if let Some(item) = self.items.iter_mut().find(dead) {
            (item.status, item.at) = (status, at);
            let by = by.filter(|b| !b.is_empty()).map(|b| format!(" by {b}")).unwrap_or_default();
            let why = item.why.take().unwrap_or_default();
            item.why = Some(format!("{why}; {}{by}", status.name()));
        }
    }

    fn unread(&mut self, mail: &Mail, status: ItemStatus) -> &mut Item {
        let item = self.put(mail.id.0.clone(), &mail.kind, status, mail.at);
        if let Some(body) =
            mail.body.inline().and_then(|b| tenure_kernel::stored::from_slice(b).ok())
        {
            Tray::said(item, &body);
        }
        item
    }
}

impl Item {
    fn is_kept(&self, call: &str) -> bool {
        self.status == ItemStatus::Pending
            && self.kind == kinds::TOOL_RESULT
            && self.tool_call_id.as_deref() == Some(call)
    }
}

/// When a turn was taken up, and when what was said to it was read.
#[derive(Default)]
struct Taken {
    /// When its present worker claimed it.
    claimed: Option<Timestamp>,
    /// The claim under which the first step was finished, and when that was; or the end.
    read: Option<(Option<Timestamp>, Timestamp)>,
}

impl Taken {
    fn hear(&mut self, at: Timestamp, name: &str, event: Option<&TurnEvent>) {
        match event {
            Some(TurnEvent::StepFinished(_)) => _ = self.read.get_or_insert((self.claimed, at)),
            Some(e) if e.as_end().is_some() => _ = self.read.get_or_insert((self.claimed, at)),
            Some(TurnEvent::ItemsRequeued {} | TurnEvent::TurnLeftByWorker { .. }) => {
                self.claimed = None;
            }
            None if name == ke::CLAIMED => self.claimed = Some(at),
            None if name == ke::TENURE_ENDED => self.claimed = None,
            _ => {}
        }
    }
}

/// The inbox of a turn: the turn itself, and what came for it in the order in which it came.
pub async fn whole(store: &Arc<dyn Store>, head: &Head) -> Result<Vec<Item>, StoreError> {
    let mut turn = turn_item(&super::turn::turn_view(store, head).await?);
    let (items, taken) = read(store, head).await?;
    (turn.processed_at, turn.archived_at) = match turn.status {
        ItemStatus::Queued | ItemStatus::Pending => (None, None),
        ItemStatus::Processing => (taken.claimed, None),
        _ => taken.read.map_or((None, None), |(claimed, at)| (claimed, Some(at))),
    };
    Ok(std::iter::once(turn).chain(items).collect())
}

/// What came for a turn, in the order in which it came; the turn itself is not among it.
pub async fn items(store: &Arc<dyn Store>, head: &Head) -> Result<Vec<Item>, StoreError> {
    Ok(read(store, head).await?.0)
}

async fn read(store: &Arc<dyn Store>, head: &Head) -> Result<(Vec<Item>, Taken), StoreError> {
    let mut taken = Taken::default();
    let mut found = gather(store, head, &mut taken).await?;
    for item in &mut found {
        item.archived_at = match item.status {
            ItemStatus::Queued | ItemStatus::Pending | ItemStatus::Processing => None,
            _ => Some(item.at),
        };
        item.processed_at = match item.status {
            ItemStatus::Processing => taken.claimed.map(|claimed| claimed.max(item.at)),
            ItemStatus::Consumed => item.archived_at,
            _ => None,
        };
    }
    Ok((found, taken))
}

async fn gather(
    store: &Arc<dyn Store>,
    head: &Head,
    taken: &mut Taken,
) -> Result<Vec<Item>, StoreError> {
    let state = state_of::<Turn>(head)?;
    let mut tray = Tray { turn: head.id, agent: state.agent_name, items: Vec::new() };
    for (event, read) in lines(store, head.id).await? {
        taken.hear(event.at, &event.name, read.as_ref());
        if let Some(read) = read {
            tray.take(event.at, read);
        }
    }
    let most = kernel_limits::MAIL_PER_DECISION_MAX;
    let unread = match head.has_mail() {
        true => store.mail(head.id, head.mail_read, most).await?,
        false => Vec::new(),
    };
    if head.class() == Class::Final {
        // A rule ends a turn whatever lies in its mailbox; what does is not gone without a word.
        for mail in &unread {
            let item = tray.unread(mail, ItemStatus::Skipped);
            item.code = Some("turn_over".to_owned());
            item.why = Some("the turn ended before anybody read it".to_owned());
        }
        after_the_end(store, head.id, &mut tray).await?;
        // What was kept and never asked for.
        for item in tray.items.iter_mut().filter(|i| i.status == ItemStatus::Pending) {
            (item.status, item.at) = (ItemStatus::Skipped, head.changed_at);
            item.code = Some("turn_over".to_owned());
            item.why = Some("the turn ended without a call that it answers".to_owned());
        }
        return Ok(tray.items);
    }
    let status = if head.holder.is_some() { ItemStatus::Processing } else { ItemStatus::Pending };
    for mail in &unread {
        tray.unread(mail, status);
    }
    Ok(tray.items)
}

/// Results that came after the end are evidence; so is a person's word about a dead letter.
async fn after_the_end(
    store: &Arc<dyn Store>,
    turn: EntityId,
    tray: &mut Tray,
) -> Result<(), StoreError> {
    let mut settled = BTreeSet::new();
    for evidence in store.evidence(turn).await? {
        let said = &evidence.said;
        if said.key.starts_with("settled/") {
            settled.insert(said.key.clone());
            continue;
        }
        let bytes = match &said.body {
            Body::Inline(bytes) => Some(bytes.clone()),
            Body::Blob { digest, .. } => store.blob(*digest).await?,
        };
        let body: Value =
            bytes.and_then(|b| tenure_kernel::stored::from_slice(&b).ok()).unwrap_or(Value::Null);
        if serde_json::from_value::<ToolResult>(body.clone()).is_err() {
            continue;
        }
        let item = tray.put(said.key.clone(), kinds::TOOL_RESULT, ItemStatus::Error, evidence.at);
        Tray::said(item, &body);
        item.code = Some("turn_over".to_owned());
        item.why = Some("it came after the end of the turn".to_owned());
        item.body = body;
    }
    let put_aside =
        |i: &&mut Item| i.status == ItemStatus::Error && settled.contains(&settled_key(&i.id));
    tray.items.iter_mut().filter(put_aside).for_each(|i| i.status = ItemStatus::Skipped);
    Ok(())
}

/// Dead letters of a turn that nobody has dealt with.
pub async fn dead_items(store: &Arc<dyn Store>, turn: EntityId) -> Result<Vec<Item>, StoreError> {
    let Some(head) = store.head(turn).await? else { return Ok(Vec::new()) };
    let mut items = items(store, &head).await?;
    items.retain(|i| i.status == ItemStatus::Error);
    Ok(items)
}
