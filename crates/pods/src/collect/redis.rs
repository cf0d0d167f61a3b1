//! FlowForge's channel.

use super::{Owed, Sent, Sink, SinkId};
use crate::envelope::{CHANNEL, Envelope, TaskEvent};
use bytes::Bytes;
use std::sync::Arc;
use tenure_bell::redis::{EventChannel, Unpublished};
use tenure_kernel::runtime::{BoxFuture, Clock};

/// Publishes to Redis.
pub struct RedisSink {
    events: EventChannel,
    clock: Arc<dyn Clock>,
    reported: bool,
}

impl RedisSink {
    /// Over this connection. `reported`: a server is told the same, durably.
    pub fn new(events: EventChannel, clock: Arc<dyn Clock>, reported: bool) -> Self {
        RedisSink { events, clock, reported }
    }

    async fn publish(&self, batch: &[Owed]) -> Sent {
        let seconds = self.clock.now().as_micros().div_euclid(1_000_000);
        let mut messages = Vec::with_capacity(batch.len());
        for owed in batch {
            // Never one without a status; were there one, it is settled as an empty message would be: by nobody.
            let Some(mut event) = TaskEvent::of_report(&owed.saying.report) else {
                messages.push(Bytes::new());
                continue;
            };
            event.reported = self.reported.then_some(true);
            messages.push(Bytes::from(Envelope::of(event, seconds).to_bytes()));
        }
        let mut sent = Sent::default();
        for (i, became) in self.events.publish_all(CHANNEL, &messages).await.into_iter().enumerate()
        {
            match became {
                Ok(_) => {}
                Err(Unpublished::Refused(why)) => sent.refused.push((i, why)),
                Err(Unpublished::Away(why)) => {
                    sent.trouble = Some(why);
                    break;
                }
            }
            sent.settled = i + 1;
        }
        sent
    }
}

impl Sink for RedisSink {
    fn id(&self) -> SinkId {
        SinkId::Channel
    }

    fn send<'a>(&'a self, batch: &'a [Owed]) -> BoxFuture<'a, Sent> {
        Box::pin(self.publish(batch))
    }
}
