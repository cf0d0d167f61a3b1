//! The bell of one process: the whole story for an embedded store, and the last yard of every other bell.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tenure_kernel::{
    bell::{Bell, Ear, Topic},
    runtime::BoxFuture,
};
use tokio::sync::watch;

/// Topics nobody listens to any more are swept when there are this many more than after the last sweep.
const SWEEP: usize = 256;

/// Rings within this process. Clones are the same bell.
#[derive(Clone, Debug, Default)]
pub struct InProcess(Arc<Mutex<Ears>>);

#[derive(Debug, Default)]
struct Ears {
    /// A watch channel is exactly an ear: it remembers one unheard ring and merges further ones.
    by_topic: HashMap<Topic, watch::Sender<()>>,
    after_sweep: usize,
}

impl InProcess {
    /// A bell that nobody listens to yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Rings every topic that somebody listens to: for a bell that may have missed something.
    pub fn ring_all(&self) {
        for ear in self.ears().by_topic.values() {
            ear.send_replace(());
        }
    }

    pub(crate) fn ring_topic(&self, topic: &Topic) {
        if let Some(ear) = self.ears().by_topic.get(topic) {
            ear.send_replace(());
        }
    }

    /// A panic under this lock leaves at worst a ring undone, and rings may be lost.
    fn ears(&self) -> MutexGuard<'_, Ears> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Bell for InProcess {
    fn ring(&self, topic: Topic) {
        self.ring_topic(&topic);
    }

    fn listen(&self, topic: Topic) -> Box<dyn Ear> {
        let mut ears = self.ears();
        if ears.by_topic.len() >= ears.after_sweep + SWEEP {
            ears.by_topic.retain(|_, ear| ear.receiver_count() > 0);
            ears.after_sweep = ears.by_topic.len();
        }
        let ear = ears.by_topic.entry(topic).or_insert_with(|| watch::Sender::new(()));
        Box::new(Listening(ear.subscribe()))
    }
}

struct Listening(watch::Receiver<()>);

impl Ear for Listening {
    fn heard(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if self.0.changed().await.is_err() {
                // The bell is gone: silence.
                std::future::pending::<()>().await;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_that_nobody_listens_to_are_forgotten() {
        let bell = InProcess::new();
        let kept = bell.listen(Topic::Due);
        for n in 0..10 * SWEEP {
            drop(bell.listen(Topic::Queue(n.to_string())));
        }
        assert!(bell.ears().by_topic.len() <= SWEEP + 1);
        assert!(bell.ears().by_topic.contains_key(&Topic::Due));
        drop(kept);
    }
}
