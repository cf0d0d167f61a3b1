//! Ends sessions whose process is known to be dead, so that what they held goes on without waiting for their leases.
//!
//! A lease says when a silent holder may be replaced. A process that was killed on this machine is not silent but gone, and the
//! operating system says so. Whether a process is dead is asked of a function, because this crate does not look at processes.
//! A session of another machine, or one that did not name its process, is left to its lease.

use crate::pipeline::Pipeline;
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};
use tenure_kernel::{
    commit::{Commit, CommitAnswer, Expect, MailStance, TenureChange},
    error::StoreError,
    ids::SessionId,
    sessions::{self, Executor, Opening, Session},
    store::{HeadFilter, HeldBy, Op, Touch},
    stream::{Body, NewEvent},
};

/// Whether that process is proven to be dead.
pub type IsDead = Arc<dyn Fn(&Executor) -> bool + Send + Sync>;

/// Heads that are read at once.
const PAGE: usize = 500;

/// Looks for sessions of dead processes.
pub struct DeadSessions {
    pipeline: Pipeline,
    is_dead: IsDead,
    /// The processes of the sessions that were live at the last look.
    processes: HashMap<SessionId, Option<Executor>>,
}

impl DeadSessions {
    /// Nothing is looked at yet.
    pub fn new(pipeline: Pipeline, is_dead: IsDead) -> Self {
        DeadSessions { pipeline, is_dead, processes: HashMap::new() }
    }

    /// Ends every live session whose process is dead, and says how many.
    pub async fn sweep(&mut self) -> Result<usize, StoreError> {
        let live = self.pipeline.store().live_sessions().await?;
        let known: HashSet<SessionId> = live.iter().map(|session| session.id).collect();
        self.processes.retain(|id, _| known.contains(id));
        let mut ended = 0;
        for session in live {
            if !self.processes.contains_key(&session.id) {
                let first = self.pipeline.store().stream(session.id, 1, 1).await?;
                let opening = first.first().and_then(Opening::of);
                self.processes.insert(session.id, opening.and_then(|o| o.executor));
            }
            let process = self.processes.get(&session.id).and_then(Option::as_ref);
            if process.is_some_and(|process| (self.is_dead)(process)) {
                ended += usize::from(self.end(&session).await?);
            }
        }
        Ok(ended)
    }

    /// Whether it was this call that ended it.
    async fn end(&self, session: &Session) -> Result<bool, StoreError> {
        let Some(head) = self.pipeline.store().head(session.id).await? else { return Ok(false) };
        let why = serde_json::json!({ "why": "its process is dead" });
        let event = NewEvent::new(sessions::events::ENDED, Body::json(&why));
        let expect = Expect::Holder { epoch: head.epoch, version: head.version };
        let mut commit = Commit::new(self.pipeline.commit_id(), head.id, expect, vec![event]);
        commit.mail = MailStance::Regardless;
        commit.tenure = TenureChange::End;
        if !matches!(self.pipeline.commit(commit).await?, CommitAnswer::Committed(_)) {
            return Ok(false);
        }
        tracing::info!(session = %session.id, name = session.name, "ended a session whose process is dead");
        self.ring_checks(session).await?;
        Ok(true)
    }

    /// Makes the checks of everything that it held due now, also of what it claimed after its last renewal: every claim is
    /// looked after within a lease.
    async fn ring_checks(&self, session: &Session) -> Result<(), StoreError> {
        let store = self.pipeline.store();
        let due_by = store.now().await? + session.lease;
        let mut after = None;
        loop {
            let held = Some(HeldBy { session: session.id, due_by });
            let page =
                store.heads(HeadFilter { held, after, ..HeadFilter::default() }, PAGE).await?;
            after = page.last().map(|h| h.id);
            for head in &page {
                let touch = Touch {
                    entity: head.id,
                    epoch: head.epoch,
                    version: 0,
                    due: None,
                    check_at: None,
                    faults: 0,
                    ring_only: true,
                };
                self.pipeline.submit(Op::Touch(touch)).await?;
            }
            if page.len() < PAGE {
                return Ok(());
            }
        }
    }
}
