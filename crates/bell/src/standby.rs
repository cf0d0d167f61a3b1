//! A bus where there is a database that can ring, too: servers on Postgres that were given a NATS or a Redis.
//!
//! Rings travel over the bus. Postgres is listened to all the same, because applications ring from SQL (the intake) and
//! somebody may have been started without the bus; and it rings while the bus is away. Both ring the same ears, and two
//! rings at once are one.

use crate::PgNotify;
use tenure_kernel::bell::{Bell, Ear, Others, Topic};

/// A bus, and the database that stands in for it. Both were started for the same ears.
#[derive(Clone)]
pub struct Standby<B> {
    bus: B,
    notify: PgNotify,
}

impl<B: Bell> Standby<B> {
    /// Of two bells that were started for the same [`crate::InProcess`].
    pub fn new(bus: B, notify: PgNotify) -> Self {
        Standby { bus, notify }
    }

    /// The bus of the two.
    pub fn bus(&self) -> &B {
        &self.bus
    }
}

impl<B: Bell> Bell for Standby<B> {
    fn ring(&self, topic: Topic) {
        if self.bus.others().is_none_or(|o| !o.connected) {
            self.notify.ring(topic.clone());
        }
        self.bus.ring(topic);
    }

    fn ring_about(&self, topic: Topic, about: &[u8]) {
        if self.bus.others().is_none_or(|o| !o.connected) {
            self.notify.ring(topic.clone());
        }
        self.bus.ring_about(topic, about);
    }

    fn listen(&self, topic: Topic) -> Box<dyn Ear> {
        self.bus.listen(topic)
    }

    fn others(&self) -> Option<Others> {
        let (bus, notify) = (self.bus.others()?, self.notify.others()?);
        let connected = bus.connected || notify.connected;
        Some(Others { connected, heard: bus.heard + notify.heard })
    }
}
