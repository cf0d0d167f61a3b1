//! Rings over NATS. What we rang comes back, because our own numbers have to ([`super`]), and is known by its sender.

use super::{Bus, PATIENCE, Shared, away};
use crate::rings::{About, PAUSE};
use async_nats::Subscriber;
use futures_util::StreamExt as _;
use std::collections::BTreeMap;
use tenure_kernel::{
    bell::{Bell, Ear, Others, Topic},
    error::StoreError,
};
use tokio::time::{sleep, timeout};

impl Bus {
    /// Messages that carried rings so far: fewer than rings, because those of a millisecond travel together.
    pub fn ring_messages_sent(&self) -> u64 {
        self.shared.rings.sent()
    }
}

impl Bell for Bus {
    fn ring(&self, topic: Topic) {
        self.shared.rings.ring(topic, About::default());
    }

    fn ring_about(&self, topic: Topic, about: &[u8]) {
        self.shared.rings.ring(topic, About::of(about));
    }

    fn listen(&self, topic: Topic) -> Box<dyn Ear> {
        self.shared.rings.local.listen(topic)
    }

    fn others(&self) -> Option<Others> {
        let connected = *self.shared.ready.borrow();
        Some(Others { connected, heard: self.shared.rings.heard() })
    }
}

impl Shared {
    /// Sends what was rung, whenever the bus is there.
    pub(super) async fn send_rings(&self) {
        let mut ready = self.ready.subscribe();
        loop {
            let topics = self.rings.next().await;
            if ready.wait_for(|r| *r).await.is_err() {
                return;
            }
            let sent = timeout(2 * PATIENCE, self.send(&topics)).await;
            if let Err(e) = sent.unwrap_or_else(|_| Err(away("the way to the server is full"))) {
                tracing::debug!(error = %e, "rings wait for the bus");
                self.rings.keep(topics);
            }
            sleep(PAUSE).await;
        }
    }

    async fn send(&self, topics: &BTreeMap<Topic, About>) -> Result<(), StoreError> {
        let connection = self.connection();
        let at = self.clock.now().to_string();
        let messages = self.rings.messages(topics, &self.subjects, &self.inbox, &at);
        for (subject, bytes) in messages.map_err(away)? {
            self.client.publish(subject, bytes.into()).await.map_err(away)?;
        }
        self.confirm(connection).await
    }

    pub(super) async fn hear_rings(&self, mut messages: Subscriber) {
        while let Some(message) = messages.next().await {
            self.rings.hear(&self.subjects, &self.inbox, &message.subject, &message.payload);
        }
    }
}
