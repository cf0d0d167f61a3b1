//! Listens on the channel `ff:events:task`, as a hint, so that a collector that is not ours works. What our own collectors
//! see comes over the API and waits there until it is taken; nothing of that is lost while nobody listens here.

use futures_util::{FutureExt as _, future::join_all};
use std::collections::BTreeMap;
use tenure_bell::redis::{EventChannel, Heard, Subscription};
use tenure_engine::stop::Stop;
use tenure_kernel::runtime::{First, first};
use tenure_pods::{
    desk::{Desk, Hinted},
    envelope::{CHANNEL, Envelope, TaskEvent},
};

/// Messages that are taken together: one batch of the store for all of them.
const TOGETHER: usize = 256;

/// Hears until asked to stop.
pub async fn run(channel: EventChannel, desk: Desk, mut stop: Stop) {
    let mut heard = channel.subscribe(CHANNEL);
    loop {
        match first(heard.heard(), stop.wait()).await {
            First::Right(()) => return,
            First::Left(next) => take(&desk, gather(&mut heard, next)).await,
        }
    }
}

/// What was heard, and what lies there besides.
fn gather(heard: &mut Subscription, next: Heard) -> Vec<TaskEvent> {
    let (mut events, mut next) = (Vec::new(), Some(next));
    while let Some(one) = next {
        match one {
            Heard::Message { payload, .. } => match Envelope::read(&payload) {
                Ok(envelope) => events.push(envelope.data),
                Err(why) => tracing::debug!(%why, "a message that is no task_status"),
            },
            Heard::Connected { connection } => {
                tracing::info!(
                    connection,
                    channel = CHANNEL,
                    "listening for tasks of other collectors"
                );
            }
            Heard::Lost { why } => tracing::warn!(%why, channel = CHANNEL, "not listening"),
            Heard::Missed(n) => {
                tracing::warn!(n, channel = CHANNEL, "messages came faster than they were taken");
            }
        }
        next = match events.len() < TOGETHER {
            true => heard.heard().now_or_never(),
            false => None,
        };
    }
    events
}

/// Says hints to their tasks: those about one task in their order, all others together.
async fn take(desk: &Desk, events: Vec<TaskEvent>) {
    let mut tasks: BTreeMap<String, Vec<TaskEvent>> = BTreeMap::new();
    for event in events {
        tasks.entry(event.task_id.clone()).or_default().push(event);
    }
    let each = tasks.into_values().map(|events| async move {
        for event in events {
            let (task, status) = (&event.task_id, &event.status);
            match desk.hint(&event).await {
                Ok(Hinted::Told(answer)) => {
                    tracing::debug!(task, status, outcome = ?answer.outcome, "a hint");
                }
                Ok(Hinted::Ignored(why)) => tracing::debug!(task, status, why, "a hint is ignored"),
                // Nobody keeps it for another try: that is what hints are.
                Err(e) => tracing::warn!(task, status, %e, "a hint was lost"),
            }
        }
    });
    join_all(each).await;
}
