//! How a submission comes into a batch, and what is read of one.

use super::{
    decide::{ITEM, OVERTAKEN, idle},
    model::{Batch, Event, Item, Made, Mode, Overtaken, State, bytes, limits},
};
use crate::{
    shared::{amend, named},
    terms::BadTerm,
};
use serde::{Deserialize, Serialize};
use tenure_engine::{birth::random, pipeline::Pipeline};
use tenure_kernel::{
    error::StoreError,
    head::Head,
    ids::{EntityId, MailId},
    limits::clip,
    machine::{Decision, decode_state},
    mail::{MailAnswer, NewMail},
    stream::Body,
    time::Timestamp,
};

/// Why a submission was not taken in.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// It can not be collected like this.
    #[error("{field}: {why}")]
    Bad {
        /// The field.
        field: &'static str,
        /// In words.
        why: String,
        /// What to do.
        fix: &'static str,
    },
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The entity of a key.
pub fn id_of(tenant: &str, flow: &str, mode: Mode, key: &str) -> EntityId {
    named("batch", tenant, &format!("{}/{}/{flow}/{key}", mode.name(), flow.len()))
}

/// Whether an input is too large to be collected: then it becomes a job of its own at once.
pub fn is_too_large(item: &Item) -> bool {
    bytes(&item.input) > limits::ITEM_BYTES_MAX
}

/// Everything about it that can be known to be wrong before anything is written.
pub fn check(key: &str, mode: Mode) -> Result<(), BatchError> {
    let bad = |field, why: String, fix| Err(BatchError::Bad { field, why, fix });
    if !(1..=limits::KEY_BYTES_MAX).contains(&key.len()) {
        let why = format!("a key has 1 to {} bytes, this has {}", limits::KEY_BYTES_MAX, key.len());
        return bad("key", why, "say what belongs together, the customer say");
    }
    let within = mode.within();
    if within.is_zero() || within > limits::WITHIN_MAX {
        let why = format!("{} seconds is not within 1 second and 7 days", within.as_secs());
        return bad("within_seconds", why, "say how long the first may be held back");
    }
    match mode {
        Mode::Batch { max, .. } if !(1..=limits::ITEMS_MAX).contains(&max) => {
            let why = format!("{max} is not within 1 and {}", limits::ITEMS_MAX);
            bad("max", why, "say how many make one job")
        }
        Mode::Debounce { quiet_ms, within_ms } if quiet_ms == 0 || quiet_ms > within_ms => {
            let why = "the silence is at least a second, and not longer than within_seconds".into();
            bad("quiet_seconds", why, "say after how long a silence the last one counts")
        }
        _ => Ok(()),
    }
}

/// What became of a submission.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collected {
    /// The batch.
    pub batch: EntityId,
    /// The submission in it.
    pub item: String,
    /// It was there already, under the same key.
    pub existed: bool,
}

/// What people read of a batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchView {
    /// Its entity.
    pub id: EntityId,
    /// Whose it is.
    pub tenant: String,
    /// The flow of its jobs.
    pub flow: String,
    /// The key.
    pub key: String,
    /// Submissions that are collected and no job yet.
    pub open: u32,
    /// Submissions that lie in the box and are not taken in yet.
    pub unread: u64,
    /// By when they become one, if nothing more comes.
    pub closes_at: Option<Timestamp>,
    /// Jobs made so far.
    pub generation: u64,
    /// The last jobs, the newest first.
    pub made: Vec<Made>,
    /// Why a person should look.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention: Option<String>,
}

/// How often a batch that has just left is opened again.
const OPENED_MAX: usize = 3;

/// The batches of a store.
#[derive(Clone)]
pub struct Batches(pub Pipeline);

impl Batches {
    /// Takes a submission in. It is durable when this returns.
    pub async fn add(
        &self,
        tenant: &str,
        flow: &str,
        key: &str,
        mut item: Item,
        idempotency: Option<&str>,
    ) -> Result<Collected, BatchError> {
        check(key, item.mode)?;
        let bad = |e: BadTerm| BatchError::Bad {
            field: "terms",
            why: e.to_string(),
            fix: "see docs/api.md for the terms of a job",
        };
        item.job.terms = item.job.terms.of_tenant(tenant).map_err(bad)?;
        item.job.terms.fits(flow, item.job.version).map_err(bad)?;
        item.job.by = item.job.by.map(|by| clip(&by, limits::BY_BYTES_MAX).to_owned());
        // What is collected lies in the head: an item that does not fit would be refused for ever, and all behind it.
        let whole = serde_json::to_vec(&item).map_or(usize::MAX, |b| b.len());
        if is_too_large(&item) || whole > limits::WHOLE_BYTES_MAX {
            return Err(BatchError::Bad {
                field: "input",
                why: format!(
                    "with all that belongs to it it has {whole} bytes, and {} can be collected",
                    limits::WHOLE_BYTES_MAX
                ),
                fix: "submit it without batch or debounce",
            });
        }
        let id = match idempotency {
            Some(key) => format!("item/{key}"),
            None => {
                let hex = random(&self.0).iter().map(|b| format!("{b:02x}")).collect::<String>();
                format!("item//{hex}")
            }
        };
        let batch = id_of(tenant, flow, item.mode, key);
        let (kind, body) = (ITEM.into(), Body::json(&item));
        let mail = NewMail { to: batch, id: MailId(id.clone()), kind, body };
        let existed = self.send(tenant, flow, key, mail).await?;
        Ok(Collected { batch, item: id, existed })
    }

    /// A submission that was too large to be collected has become this job at once. Of a debounce only the last counts:
    /// what is collected must not run after it. The job comes first and this word second, or a crash between
    /// the two would lose both.
    pub async fn overtaken(
        &self,
        tenant: &str,
        flow: &str,
        key: &str,
        mode: Mode,
        job: EntityId,
    ) -> Result<EntityId, BatchError> {
        check(key, mode)?;
        let batch = id_of(tenant, flow, mode, key);
        let id = MailId(format!("overtaken/{job}"));
        let (kind, body) = (OVERTAKEN.into(), Body::json(&Overtaken { job }));
        self.send(tenant, flow, key, NewMail { to: batch, id, kind, body }).await?;
        Ok(batch)
    }

    /// Sends mail to a batch that is there, or was opened for it. Whether it was there already. One that leaves with
    /// retention between the two is opened again.
    async fn send(
        &self,
        tenant: &str,
        flow: &str,
        key: &str,
        mail: NewMail,
    ) -> Result<bool, BatchError> {
        for _ in 0..OPENED_MAX {
            self.open(tenant, flow, key, mail.to).await?;
            match self.0.mail(mail.clone()).await? {
                MailAnswer::Accepted { .. } => return Ok(false),
                MailAnswer::Duplicate => return Ok(true),
                MailAnswer::Unknown => {}
                other => {
                    return Err(StoreError::Refused(format!("the batch answers {other:?}")).into());
                }
            }
        }
        Err(StoreError::Unavailable("the batch could not be opened: try again".into()).into())
    }

    async fn open(
        &self,
        tenant: &str,
        flow: &str,
        key: &str,
        batch: EntityId,
    ) -> Result<(), BatchError> {
        amend::<Batch, BatchError>(&self.0, batch, tenant, |state, _| {
            let (flow, key) = (flow.to_owned(), key.to_owned());
            Ok(match state {
                Some(_) => Decision::default(),
                None => Decision::event(Event::BatchOpened { flow, key }).timer(idle()),
            })
        })
        .await?;
        Ok(())
    }

    /// One batch.
    pub async fn show(&self, id: EntityId) -> Result<Option<BatchView>, StoreError> {
        let head = self.0.store().head(id).await?;
        head.filter(|h| h.kind() == super::model::TABLE.kind).map(|h| view(&h)).transpose()
    }
}

/// What people read of a batch, from its head.
pub fn view(head: &Head) -> Result<BatchView, StoreError> {
    let state =
        decode_state::<Batch>(&head.state).map_err(|e| StoreError::Corrupt(e.to_string()))?;
    let State { flow, key, generation, closes_at, items, made, .. } = state;
    Ok(BatchView {
        id: head.id,
        tenant: head.tenant.clone(),
        flow,
        key,
        open: items,
        unread: head.mail_count.saturating_sub(head.mail_read),
        closes_at,
        generation,
        made: made.into_iter().rev().collect(),
        attention: head.attention.clone(),
    })
}
