//! Jobs on their way into the hands of a worker out there.
//!
//! A job that is queued and claimed costs a commit more than one that is born into somebody's hands. So where a
//! worker listens here and its queue was seen empty, a submission gives the job to that worker's session in the
//! commit that creates it, lays it on the *tray*, and rings the queue. The worker hears it as it hears any ring and
//! claims as it always does; its claim is answered from the tray first. It need not know that there is one.
//!
//! The price is a job that belongs to somebody who does not come for it. It is given back after [`LIES`], and it was
//! taken with a lease that is longer by as much, so the worker's own count, which begins with its claim, is never the
//! longer one. A server that dies takes its tray along: the check of the lease finds what lay on it, as it finds what
//! a lost answer to a claim has left behind.
//!
//! Roads not taken: a claim and the first `started` in one commit needs a look at ready jobs that claims nothing, and
//! several workers would see and want the same ones; an answer that streams jobs needs credits and a second protocol.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tenure_engine::pipeline::Pipeline;
use tenure_jobs::submit::{Outposts, Reserved};
use tenure_kernel::{
    bell::Topic,
    claims::Claimed,
    head::Head,
    ids::{EntityId, SessionId},
};

/// A job lies for so long before it is given back.
const LIES: Duration = Duration::from_secs(1);
/// A worker that has not asked for anything for so long, and leaves no question here, is not counted on.
const HEARD_WITHIN: Duration = Duration::from_secs(1);
/// Workers that are remembered at once.
const WORKERS_MAX: usize = 4_096;
/// Jobs that are remembered at once.
const OUT_MAX: usize = 65_536;
/// Queues that are remembered as empty at once. A worker may ask about any name, so names alone must not fill the memory.
const EMPTY_MAX: usize = 16_384;

/// See the module. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Tray(Arc<Inner>);

struct Inner {
    pipeline: Pipeline,
    lease: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    workers: HashMap<SessionId, Worker>,
    /// Queues that gave less than was asked for, and got nothing since as far as this server knows.
    empty: HashSet<String>,
    /// Jobs that were taken from here and have not ended: with each, its worker has room for another.
    out: HashMap<EntityId, SessionId>,
}

impl State {
    fn saw(&mut self, queue: &str, empty: bool) {
        if !empty {
            self.empty.remove(queue);
        } else if !self.empty.contains(queue) {
            if self.empty.len() >= EMPTY_MAX {
                // The next claims from the queues that are in use say again that they are empty.
                self.empty.clear();
            }
            self.empty.insert(queue.to_owned());
        }
    }
}

struct Worker {
    tenant: Option<String>,
    queues: HashSet<String>,
    /// Queues that it has claimed from: those it is counted on for.
    claims: HashSet<String>,
    /// What it could still take when it last claimed, less what was laid out for it since.
    room: usize,
    lease: Duration,
    /// Questions that it has left here.
    asking: usize,
    heard: Duration,
    lying: Vec<(String, Head)>,
}

impl Tray {
    pub(crate) fn new(pipeline: Pipeline, lease: Duration) -> Self {
        Tray(Arc::new(Inner { pipeline, lease, state: Mutex::default() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics under this lock.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mono(&self) -> Duration {
        self.0.pipeline.rt().mono()
    }

    /// A worker leaves a question here and listens to these topics. Until what is returned is dropped, it hears.
    pub(super) fn listens(&self, tenant: Option<&String>, topics: &[Topic]) -> Listens {
        let session = |t: &Topic| match t {
            Topic::Session(id) => Some(*id),
            _ => None,
        };
        let queue = |t: &Topic| match t {
            Topic::Queue(name) => Some(name.clone()),
            _ => None,
        };
        let queues: HashSet<String> = topics.iter().filter_map(queue).collect();
        let now = self.mono();
        let mut state = self.state();
        if state.workers.len() >= WORKERS_MAX {
            state.workers.retain(|_, w| w.asking > 0 || !w.lying.is_empty());
        }
        // A process has a session for jobs and another one for calls, and asks for both at once: which of them claims from a
        // queue shows with its first claim. Until then nothing is laid out for either.
        let sessions: Vec<SessionId> = topics.iter().filter_map(session).collect();
        for session in &sessions {
            let worker = state.workers.entry(*session).or_insert_with(|| Worker {
                tenant: tenant.cloned(),
                queues: HashSet::new(),
                claims: HashSet::new(),
                room: 0,
                lease: self.0.lease,
                asking: 0,
                heard: now,
                lying: Vec::new(),
            });
            worker.queues.clone_from(&queues);
            // A worker that changes its queues is remembered for the ones it listens to.
            worker.claims.retain(|queue| queues.contains(queue));
            worker.asking += 1;
            worker.heard = now;
        }
        drop(state);
        Listens { tray: self.clone(), sessions }
    }

    /// The groups of what lies in a queue.
    pub(super) fn groups(&self, queue: &str) -> Vec<(i16, String)> {
        let state = self.state();
        let lying = state.workers.values().flat_map(|w| &w.lying).filter(|(q, _)| q == queue);
        lying.map(|(_, head)| (head.priority, head.tenant.clone())).collect()
    }

    /// The store has, or has not, ready work in this queue.
    pub(super) fn saw(&self, queue: &str, empty: bool) {
        self.state().saw(queue, empty);
    }

    /// What lies for a session that claims; at most so many.
    pub(super) fn take(&self, session: SessionId, queue: &str, limit: usize) -> Vec<Claimed> {
        let now = self.mono();
        let mut state = self.state();
        let State { workers, out, .. } = &mut *state;
        let Some(worker) = workers.get_mut(&session) else { return Vec::new() };
        worker.heard = now;
        if worker.queues.contains(queue) && !worker.claims.contains(queue) {
            worker.claims.insert(queue.to_owned());
        }
        if out.len() > OUT_MAX {
            // Its workers will say how much room they have.
            out.clear();
        }
        let mut taken = Vec::new();
        worker.lying.retain(|(q, head)| {
            let takes = q == queue && taken.len() < limit;
            if takes {
                let (head, ready_at) = (head.clone(), head.changed_at);
                out.insert(head.id, session);
                taken.push(Claimed { head, mail: Vec::new(), ready_at });
            }
            !takes
        });
        taken
    }

    /// What a session can take beyond what it got, and under which lease it claims.
    pub(super) fn room(&self, session: SessionId, room: usize, lease: Duration) {
        if let Some(worker) = self.state().workers.get_mut(&session) {
            worker.lease = lease;
            worker.room = room.saturating_sub(worker.lying.len());
        }
    }

    /// A job is in nobody's hands any more: there is room for another.
    pub(super) fn over(&self, job: EntityId) {
        let mut state = self.state();
        if let Some(session) = state.out.remove(&job)
            && let Some(worker) = state.workers.get_mut(&session)
        {
            worker.room += 1;
        }
    }

    fn remove(&self, session: SessionId, job: EntityId) -> Option<Head> {
        let mut state = self.state();
        let lying = &mut state.workers.get_mut(&session)?.lying;
        let at = lying.iter().position(|(_, head)| head.id == job)?;
        Some(lying.swap_remove(at).1)
    }
}

impl Outposts for Tray {
    fn reserve(&self, queue: &str, tenant: &str) -> Option<Reserved> {
        let now = self.mono();
        let mut state = self.state();
        if !state.empty.contains(queue) {
            return None;
        }
        let ready = |w: &Worker| {
            w.room > 0
                && w.queues.contains(queue)
                && w.claims.contains(queue)
                && w.tenant.as_deref().is_none_or(|mine| mine == tenant)
                && (w.asking > 0 || now.saturating_sub(w.heard) < HEARD_WITHIN)
        };
        let most = state.workers.iter_mut().filter(|(_, w)| ready(w));
        let (session, worker) = most.max_by_key(|(id, w)| (w.room, **id))?;
        worker.room -= 1;
        Some(Reserved { session: *session, lease: worker.lease + LIES })
    }

    fn forget(&self, reserved: Reserved) {
        if let Some(worker) = self.state().workers.get_mut(&reserved.session) {
            worker.room += 1;
        }
    }

    fn queued(&self, queue: &str) {
        self.saw(queue, false);
    }

    fn deliver(&self, reserved: Reserved, head: Head) {
        let (job, queue, session) = (head.id, head.queue.clone(), reserved.session);
        if let Some(worker) = self.state().workers.get_mut(&session) {
            worker.lying.push((queue.clone(), head));
        }
        self.0.pipeline.bell().ring(Topic::Queue(queue));
        let tray = self.clone();
        self.0.pipeline.rt().spawn(Box::pin(async move {
            tray.0.pipeline.rt().sleep(LIES).await;
            let Some(head) = tray.remove(session, job) else { return };
            tracing::debug!(%job, %session, "nobody came for it; it goes to its queue");
            let claimed = Claimed { ready_at: head.changed_at, head, mail: Vec::new() };
            if let Err(e) = super::give_back(&tray.0.pipeline, &claimed, "nobody came for it").await
            {
                tracing::warn!(%job, error = %e, "not given back; the lease will lapse");
            }
        }));
    }
}

/// A worker hears while this is there.
pub(super) struct Listens {
    tray: Tray,
    sessions: Vec<SessionId>,
}

impl Drop for Listens {
    fn drop(&mut self) {
        let now = self.tray.mono();
        let mut state = self.tray.state();
        for session in &self.sessions {
            if let Some(worker) = state.workers.get_mut(session) {
                worker.asking -= 1;
                worker.heard = now;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_that_are_remembered_as_empty_are_bounded() {
        let mut state = State::default();
        for n in 0..EMPTY_MAX {
            state.saw(&format!("q{n}"), true);
        }
        state.saw("q0", true);
        assert_eq!(state.empty.len(), EMPTY_MAX, "a queue that is known takes no further room");
        state.saw("one more", true);
        assert_eq!(state.empty.iter().collect::<Vec<_>>(), ["one more"]);
        state.saw("one more", false);
        assert!(state.empty.is_empty());
    }
}
