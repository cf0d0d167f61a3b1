//! Asking loops to stop, and waiting for them.

use std::sync::Arc;
use tenure_kernel::runtime::{First, first};
use tokio::sync::watch;

/// Asks. When the last one is dropped, that counts as asking too.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<watch::Sender<bool>>);

/// Is asked.
#[derive(Clone, Debug)]
pub struct Stop(watch::Receiver<bool>);

/// A connected pair.
pub fn stopper() -> (Stopper, Stop) {
    let (tx, rx) = watch::channel(false);
    (Stopper(Arc::new(tx)), Stop(rx))
}

impl Stopper {
    /// Somebody else to ask.
    pub fn watch(&self) -> Stop {
        Stop(self.0.subscribe())
    }

    /// Asks everybody to stop.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Stop {
    /// Whether somebody has asked.
    pub fn asked(&self) -> bool {
        *self.0.borrow() || self.0.has_changed().is_err()
    }

    /// Returns when somebody asks.
    pub async fn wait(&mut self) {
        // An error means that every Stopper is gone, which is the same.
        let _ = self.0.wait_for(|stop| *stop).await;
    }

    /// Runs a future unless and until somebody asks.
    pub async fn unless<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        match first(self.wait(), work).await {
            First::Left(()) => None,
            First::Right(value) => Some(value),
        }
    }
}
