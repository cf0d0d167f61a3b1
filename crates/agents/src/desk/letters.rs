//! Dead letters: what came for a turn and could not be used. A person sends one again, perhaps for another wait, or puts
//! it aside. Those of a turn that is over can only be put aside.

use super::{
    Answer, Desk, DeskError, Outcome,
    asks::{fits, not_now, over},
    words,
};
use crate::{
    view::inbox::{Item, dead_items},
    words::{Again, SettleItem, kinds},
};
use serde_json::{Value, json};
use tenure_kernel::{ids::EntityId, limits::KEY_BYTES_MAX, stream::Hash, table::Class};

/// How a dead letter is sent again.
#[derive(Clone, Debug, Default)]
pub struct Requeue {
    /// For this wait, instead of the one that it names.
    pub wait: Option<String>,
    /// Who.
    pub by: Option<String>,
}

/// The key of the evidence that puts a dead letter of an ended turn aside.
pub fn settled_key(item: &str) -> String {
    format!("settled/{}", Hash::of(item.as_bytes()))
}

impl Desk {
    /// Sends a dead letter again: what it said is read once more, in the commit that settles it.
    pub async fn requeue(
        &self,
        tenant: Option<&str>,
        turn: EntityId,
        item: &str,
        how: Requeue,
    ) -> Result<Answer, DeskError> {
        words(how.by.as_deref(), None)?;
        let (head, _) = self.turn(tenant, turn).await?;
        let letter = self.letter(turn, item).await?;
        if head.class() == Class::Final {
            return Err(over(&head, false));
        }
        let Value::Object(mut body) = letter.body else {
            return Err(not_now(&head, "what the letter said can not be read; put it aside"));
        };
        if let Some(wait) = how.wait {
            // It now answers this wait, whatever the model called it and under which counter.
            for gone in ["tool_call_id", "turn_epoch"] {
                body.remove(gone);
            }
            body.insert("wait".to_owned(), json!(wait));
        }
        let again = Again { kind: letter.mail_kind, body: Value::Object(body) };
        self.settle(turn, SettleItem { item: item.to_owned(), again: Some(again), by: how.by })
            .await
    }

    /// Puts a dead letter aside.
    pub async fn skip(
        &self,
        tenant: Option<&str>,
        turn: EntityId,
        item: &str,
        by: Option<String>,
    ) -> Result<Answer, DeskError> {
        words(by.as_deref(), None)?;
        let (head, _) = self.turn(tenant, turn).await?;
        self.letter(turn, item).await?;
        if head.class() != Class::Final {
            return self.settle(turn, SettleItem { item: item.to_owned(), again: None, by }).await;
        }
        let said = json!({ "item": item, "how": "skipped" });
        let new = self.testify(&head, &settled_key(item), by, &said).await?;
        let outcome = if new { Outcome::Accepted } else { Outcome::Already };
        Ok(Answer { turn, outcome, item: item.to_owned() })
    }

    async fn settle(&self, turn: EntityId, said: SettleItem) -> Result<Answer, DeskError> {
        let body = json!(said);
        fits("the letter", "body", &body)?;
        // One letter is dealt with once, whoever is faster.
        let id = format!("settle/{}", said.item);
        let id = match id.len() <= KEY_BYTES_MAX {
            true => id,
            false => settled_key(&said.item),
        };
        self.say(turn, kinds::SETTLE, id, &body, Outcome::Accepted).await
    }

    async fn letter(&self, turn: EntityId, item: &str) -> Result<Item, DeskError> {
        let letters = dead_items(self.pipeline.store(), turn).await?;
        let missing = || DeskError::NoItem { turn, item: item.to_owned() };
        letters.into_iter().find(|l| l.id == item).ok_or_else(missing)
    }
}
