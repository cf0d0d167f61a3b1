//! Who in this process waits for the end of a job. A hint, like every bell: whatever this process commits is
//! told here, what another server or the due loop ends is not, so whoever waits also looks at the store once
//! per tick. A waiter costs an entry, not a task and no reads.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tenure_kernel::ids::EntityId;
use tokio::sync::watch;

type Waiters = HashMap<EntityId, watch::Sender<Option<&'static str>>>;

/// Tells ends to those who listen. Cheap to clone.
#[derive(Clone, Default)]
pub struct Ends(Arc<Mutex<Waiters>>);

/// Somebody who waits for the end of one job.
pub struct Ending {
    ends: Ends,
    job: EntityId,
    ear: watch::Receiver<Option<&'static str>>,
}

impl Ends {
    fn waiters(&self) -> MutexGuard<'_, Waiters> {
        // Nothing panics while it holds this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens to the end of this job from here on. One that has ended before is not heard of: listen first,
    /// then look.
    pub fn listen(&self, job: EntityId) -> Ending {
        let mut waiters = self.waiters();
        let ear = waiters.entry(job).or_insert_with(|| watch::Sender::new(None)).subscribe();
        Ending { ends: self.clone(), job, ear }
    }

    /// A job has ended, with this status, and that is durable.
    pub fn tell(&self, job: EntityId, status: &'static str) {
        let waiting = self.waiters().remove(&job);
        if let Some(waiting) = waiting {
            waiting.send_replace(Some(status));
        }
    }

    /// How many jobs are listened to.
    pub fn len(&self) -> usize {
        self.waiters().len()
    }

    /// Whether nobody listens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Ending {
    /// Which job.
    pub fn job(&self) -> EntityId {
        self.job
    }

    /// Returns its final status when the end is told; waits for ever if it never is.
    pub async fn heard(&mut self) -> &'static str {
        if let Ok(status) = self.ear.wait_for(Option::is_some).await
            && let Some(status) = *status
        {
            return status;
        }
        // A sender goes only after it has told.
        std::future::pending().await
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let mut waiters = self.ends.waiters();
        // The last one takes the entry along, if it is still the one it listens to.
        let last =
            |w: &watch::Sender<_>| w.receiver_count() <= 1 && w.subscribe().same_channel(&self.ear);
        if waiters.get(&self.job).is_some_and(last) {
            waiters.remove(&self.job);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;

    #[test]
    fn an_end_is_told_to_everybody_who_listens_and_leaves_nothing_behind() {
        let (ends, job) = (Ends::default(), EntityId::fixed(1, 1));
        let (mut one, mut two) = (ends.listen(job), ends.listen(job));
        assert_eq!(one.heard().now_or_never(), None);
        ends.tell(job, "completed");
        assert!(ends.is_empty());
        assert_eq!(one.heard().now_or_never(), Some("completed"));
        assert_eq!(two.heard().now_or_never(), Some("completed"));
    }

    #[test]
    fn whoever_goes_away_is_forgotten_with_the_last() {
        let (ends, job) = (Ends::default(), EntityId::fixed(1, 1));
        let (one, two) = (ends.listen(job), ends.listen(job));
        drop(one);
        assert_eq!(ends.len(), 1);
        drop(two);
        assert!(ends.is_empty());
        ends.tell(job, "failed");
    }

    #[test]
    fn a_listener_of_a_second_life_does_not_lose_its_entry_to_one_of_the_first() {
        let (ends, job) = (Ends::default(), EntityId::fixed(1, 1));
        let told = ends.listen(job);
        ends.tell(job, "completed");
        let again = ends.listen(job);
        drop(told);
        assert_eq!(ends.len(), 1, "the entry of {} stays", again.job());
    }
}
