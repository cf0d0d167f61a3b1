//! A store that keeps in memory what it should have made durable, for drills: mail, or the messages of a
//! commit. They get where they belong a little later, unless the process dies first.

use super::breaks::Break;
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tenure_edge::TokioRuntime;
use tenure_kernel::{
    commit::CommitAnswer,
    error::StoreError,
    head::lane_of,
    ids::MessageId,
    mail::MailAnswer,
    outbox::{DeliveryAnswer, Message, Posted},
    runtime::{BoxFuture, Rt},
    store::{Answer, Op, Store},
};
use tenure_proving::layer::Layer;

/// How long something lies in memory only. Long enough for a drill to kill the process meanwhile.
const LATER: Duration = Duration::from_millis(1_500);

/// See the module.
pub struct Volatile {
    inner: Arc<dyn Store>,
    what: Break,
    rt: Rt,
    /// Messages with the moment from which they may be delivered.
    outbox: Mutex<Vec<(Duration, Posted)>>,
}

impl Volatile {
    /// Over this store.
    pub fn over(inner: Arc<dyn Store>, what: Break) -> Self {
        let rt: Rt = Arc::new(TokioRuntime::current());
        Volatile { inner, what, rt, outbox: Mutex::default() }
    }

    fn kept(&self) -> MutexGuard<'_, Vec<(Duration, Posted)>> {
        // Nothing panics under this lock.
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers mail as accepted and writes it later.
    async fn mail_later(&self, ops: &[Op]) -> Result<Vec<Answer>, StoreError> {
        let mut answers = Vec::new();
        for op in ops {
            if let Op::Mail(mail) = op
                && let Some(head) = self.inner.head(mail.to).await?
            {
                let (inner, rt, late) = (self.inner.clone(), self.rt.clone(), op.clone());
                self.rt.spawn(Box::pin(async move {
                    rt.sleep(LATER).await;
                    // Nobody was told that this may fail.
                    drop(inner.apply(vec![late]).await);
                }));
                let seq = head.mail_count + 1;
                answers.push(Answer::Mail(MailAnswer::Accepted { seq, holder: None }));
            } else {
                answers.extend(self.inner.apply(vec![op.clone()]).await?);
            }
        }
        Ok(answers)
    }

    /// Writes commits without their messages, which stay here.
    async fn messages_later(&self, ops: &[Op]) -> Result<Vec<Answer>, StoreError> {
        let mut written = ops.to_vec();
        let mut held: Vec<Vec<Message>> = Vec::new();
        for op in &mut written {
            let messages = match op {
                Op::Commit(commit) => std::mem::take(&mut commit.messages),
                _ => Vec::new(),
            };
            held.push(messages);
        }
        let answers = self.inner.apply(written).await?;
        for ((op, answer), messages) in ops.iter().zip(&answers).zip(held) {
            match (op, answer) {
                (Op::Commit(commit), Answer::Commit(CommitAnswer::Committed(done))) => {
                    let head = self.inner.head(commit.entity).await?;
                    let tenant = head.map(|h| h.tenant).unwrap_or_default();
                    let from = self.rt.mono() + LATER;
                    let posted = messages.into_iter().zip(0u32..).map(|(message, ordinal)| {
                        let id =
                            MessageId { source: commit.entity, version: done.version, ordinal };
                        (from, Posted { id, tenant: tenant.clone(), message, at: done.at })
                    });
                    self.kept().extend(posted);
                }
                (
                    Op::Deliver(delivery),
                    Answer::Deliver(DeliveryAnswer::Delivered { .. } | DeliveryAnswer::TargetFinal),
                ) => self.kept().retain(|(_, posted)| posted.id != delivery.id),
                _ => {}
            }
        }
        Ok(answers)
    }
}

impl Layer for Volatile {
    fn under(&self) -> &dyn Store {
        &*self.inner
    }

    fn apply_shared(&self, ops: Arc<Vec<Op>>) -> BoxFuture<'_, Result<Vec<Answer>, StoreError>> {
        Box::pin(async move {
            match self.what {
                Break::Mail => self.mail_later(&ops).await,
                _ => self.messages_later(&ops).await,
            }
        })
    }

    fn outbox(
        &self,
        lanes: Vec<u16>,
        wire: bool,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Posted>, StoreError>> {
        Box::pin(async move {
            let now = self.rt.mono();
            let ripe: Vec<Posted> = self
                .kept()
                .iter()
                .filter(|(from, p)| *from <= now && lanes.contains(&lane_of(p.id.source)))
                .filter(|(_, p)| p.message.to.leaves() == wire)
                .take(limit)
                .map(|(_, p)| p.clone())
                .collect();
            match ripe.is_empty() {
                true => self.inner.outbox(lanes, wire, limit).await,
                false => Ok(ripe),
            }
        })
    }
}
