//! A worker session and its renewals: one row for everything a process holds.
//!
//! The process stops itself on its own clock, which counts suspend time, measured from *before* its
//! last successful renewal was sent: the store can not have given the lease any later than that. The
//! margin covers the time between looking at the clock and acting. A lapsed process does not act; if a
//! renewal then succeeds and names an entity as still held under the same epoch, the tenure was never
//! ended and work goes on (a store that was down for a while costs no takeovers).

use crate::{birth::random, config::EngineConfig, pipeline::Pipeline, stop::Stop};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tenure_kernel::{
    bell::Topic,
    commit::{Birth, Commit, CommitAnswer, Expect, MailStance, TenureChange},
    error::StoreError,
    ids::{EntityId, SessionId},
    runtime::{First, first},
    sessions::{self, Executor, Hold, Opening, Renewal, RenewalAnswer},
    store::{Answer, Op},
    stream::{Body, NewEvent},
};
use tokio::sync::watch;

/// What a session knows about one entity it holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hint {
    /// Nothing new.
    Quiet,
    /// Mail may wait.
    Mail,
    /// The tenure has ended. Stop.
    Lost,
}

struct Holding {
    epoch: u64,
    mark: u64,
    /// Until when this process may act for it, on its own clock: counted from before the claim, or the
    /// last renewal that named it, was sent. An answer that comes late is worth that much less.
    valid_until: Duration,
    hint: watch::Sender<Hint>,
}

struct State {
    id: SessionId,
    live_until: Duration,
    holdings: BTreeMap<EntityId, Holding>,
}

/// A session of this process. Cheap to clone.
#[derive(Clone)]
pub struct Keeper {
    pipeline: Pipeline,
    config: Arc<EngineConfig>,
    opening: Arc<Opening>,
    /// What its first event says besides.
    says: Arc<Option<(&'static str, Value)>>,
    state: Arc<Mutex<State>>,
}

impl Keeper {
    /// Opens a session. `executor` is the process behind it, for those who want to know whether it is dead;
    /// only the process edge can say it.
    pub async fn open(
        pipeline: Pipeline,
        config: Arc<EngineConfig>,
        name: &str,
        role: &str,
        executor: Option<Executor>,
    ) -> Result<Self, StoreError> {
        Self::open_saying(pipeline, config, name, role, executor, None).await
    }

    /// The same with one more member in the session's first event: what a worker serves, for those who look. It stays
    /// out of the row that is renewed.
    pub async fn open_saying(
        pipeline: Pipeline,
        config: Arc<EngineConfig>,
        name: &str,
        role: &str,
        executor: Option<Executor>,
        says: Option<(&'static str, Value)>,
    ) -> Result<Self, StoreError> {
        let lease_ms = u64::try_from(config.lease.as_millis()).unwrap_or(u64::MAX);
        let opening = Opening { name: name.to_owned(), role: role.to_owned(), lease_ms, executor };
        let state = State {
            id: EntityId::fixed(0, 0),
            live_until: Duration::ZERO,
            holdings: BTreeMap::new(),
        };
        let state = Arc::new(Mutex::new(state));
        let (opening, says) = (Arc::new(opening), Arc::new(says));
        let keeper = Keeper { pipeline, config, opening, says, state };
        keeper.begin().await?;
        Ok(keeper)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn begin(&self) -> Result<(), StoreError> {
        let rt = self.pipeline.rt();
        let at = self.pipeline.store().now().await?;
        let id = EntityId::new(at, random(&self.pipeline));
        let birth = Birth {
            kind: sessions::WORKER.kind,
            tenant: String::new(),
            queue: String::new(),
            priority: 0,
        };
        let mut body = Body::json(&*self.opening);
        if let (Some((member, said)), Ok(mut whole)) =
            (&*self.says, serde_json::to_value(&*self.opening))
        {
            whole[*member] = said.clone();
            body = Body::json(&whole);
        }
        let event = NewEvent::new(sessions::events::OPENED, body);
        let mut commit =
            Commit::new(self.pipeline.commit_id(), id, Expect::Absent(birth), vec![event]);
        commit.tenure = TenureChange::Open((*self.opening).clone());
        let sent = rt.mono();
        match self.pipeline.commit(commit).await? {
            CommitAnswer::Committed(_) => {}
            other => {
                return Err(StoreError::Refused(format!(
                    "a session could not be opened: {other:?}"
                )));
            }
        }
        let mut state = self.state();
        state.id = id;
        state.live_until = sent + self.lifetime();
        Ok(())
    }

    /// The lease less the margin in which a worker stops itself.
    fn lifetime(&self) -> Duration {
        self.config.lease - self.config.lease / 10
    }

    /// The session's id. Changes when a lapsed session had to be replaced.
    pub fn id(&self) -> SessionId {
        self.state().id
    }

    /// Whether this process may act for what it holds.
    pub fn live(&self) -> bool {
        self.pipeline.rt().mono() < self.state().live_until
    }

    /// The process behind it, as it said when it opened.
    pub fn executor(&self) -> Option<&Executor> {
        self.opening.executor.as_ref()
    }

    /// The pipeline it renews through.
    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// Its settings.
    pub fn config(&self) -> &Arc<EngineConfig> {
        &self.config
    }

    /// Whether this process may act for an entity that it holds under this epoch.
    pub fn may_act(&self, entity: EntityId, epoch: u64) -> bool {
        let now = self.pipeline.rt().mono();
        let state = self.state();
        let holding = state.holdings.get(&entity).filter(|h| h.epoch == epoch);
        now < state.live_until && holding.is_some_and(|h| now < h.valid_until)
    }

    /// Names an entity in every renewal from now on. `sent` is when the claim was sent.
    pub fn hold(&self, entity: EntityId, epoch: u64, sent: Duration) -> watch::Receiver<Hint> {
        let (hint, hints) = watch::channel(Hint::Quiet);
        let valid_until = sent + self.lifetime();
        self.state().holdings.insert(entity, Holding { epoch, mark: 0, valid_until, hint });
        hints
    }

    /// Stops naming it, if it is still held under this epoch.
    pub fn drop_hold(&self, entity: EntityId, epoch: u64) {
        let mut state = self.state();
        if state.holdings.get(&entity).is_some_and(|h| h.epoch == epoch) {
            state.holdings.remove(&entity);
        }
    }

    /// Shows progress: the mark of an entity rises.
    pub fn progress(&self, entity: EntityId) {
        if let Some(h) = self.state().holdings.get_mut(&entity) {
            h.mark += 1;
        }
    }

    /// How many entities it holds.
    pub fn held(&self) -> usize {
        self.state().holdings.len()
    }

    /// Renews until asked to stop, then ends the session. Never ends otherwise.
    pub async fn run(&self, mut stop: Stop) {
        let rt = self.pipeline.rt().clone();
        let mut ear = self.pipeline.bell().listen(Topic::Session(self.id()));
        let mut next = rt.mono() + self.config.renewal;
        loop {
            let wait = next.saturating_sub(rt.mono());
            // The renewal first: whoever rings without a break must not put it off.
            let rang = async {
                match wait.is_zero() {
                    true => std::future::pending().await,
                    false => ear.heard().await,
                }
            };
            let Some(woken) = stop.unless(first(rang, rt.sleep(wait))).await else { break };
            match woken {
                // Somebody rang: everything that this session holds has a look at its mail.
                First::Left(()) => self.hint_all(),
                First::Right(()) => {
                    let before = self.id();
                    let renewed = self.renew_once().await;
                    if self.id() != before {
                        ear = self.pipeline.bell().listen(Topic::Session(self.id()));
                    }
                    // One that did not get through is tried again soon: most of the lease is spent. Counted from the
                    // answer: counting from the sending made the simulation lose tenures in outages (slice, seed 7).
                    let pause = if renewed { 1 } else { 5 };
                    next = rt.mono() + self.config.renewal / pause;
                }
            }
        }
        self.end().await;
    }

    fn hint_all(&self) {
        for holding in self.state().holdings.values() {
            holding.hint.send_modify(hint_mail);
        }
    }

    /// One renewal. Returns whether the store answered.
    pub async fn renew_once(&self) -> bool {
        let (session, holds) = {
            let state = self.state();
            let hold =
                |(e, h): (&EntityId, &Holding)| Hold { entity: *e, epoch: h.epoch, mark: h.mark };
            let holds: Vec<Hold> = state.holdings.iter().map(hold).collect();
            (state.id, holds)
        };
        let sent = self.pipeline.rt().mono();
        let named = holds.clone();
        match self.pipeline.submit(Op::Renew(Renewal { session, holds })).await {
            Ok(Answer::Renew(RenewalAnswer::Renewed { lost, mail, .. })) => {
                let mut state = self.state();
                state.live_until = sent + self.lifetime();
                let valid_until = sent + self.lifetime();
                for hold in named.iter().filter(|h| !lost.contains(&h.entity)) {
                    if let Some(h) =
                        state.holdings.get_mut(&hold.entity).filter(|h| h.epoch == hold.epoch)
                    {
                        h.valid_until = valid_until;
                    }
                }
                for hold in named.iter().filter(|h| lost.contains(&h.entity)) {
                    // Given back and claimed again meanwhile: the new tenure is not the lost one.
                    let same = state.holdings.get(&hold.entity).map(|h| h.epoch);
                    if same == Some(hold.epoch)
                        && let Some(h) = state.holdings.remove(&hold.entity)
                    {
                        h.hint.send_replace(Hint::Lost);
                    }
                }
                for entity in mail {
                    if let Some(h) = state.holdings.get(&entity) {
                        h.hint.send_modify(hint_mail);
                    }
                }
                true
            }
            Ok(Answer::Renew(RenewalAnswer::Ended)) => {
                tracing::warn!(%session, "this session was ended by the store; opening a new one");
                self.lose_everything();
                if let Err(e) = self.begin().await {
                    tracing::warn!(error = %e, "no new session yet");
                }
                true
            }
            Ok(other) => {
                tracing::error!(?other, "a renewal was answered with something else");
                false
            }
            Err(e) => {
                tracing::warn!(error = %e, "a renewal did not get through");
                false
            }
        }
    }

    fn lose_everything(&self) {
        let mut state = self.state();
        state.live_until = Duration::ZERO;
        for holding in std::mem::take(&mut state.holdings).into_values() {
            holding.hint.send_replace(Hint::Lost);
        }
    }

    /// Says goodbye, so that what it still holds is free at once.
    pub async fn end(&self) {
        let id = self.id();
        self.lose_everything();
        let store = self.pipeline.store();
        let Ok(Some(head)) = store.head(id).await else { return };
        let expect = Expect::Holder { epoch: head.epoch, version: head.version };
        let event = NewEvent::new(
            sessions::events::ENDED,
            Body::json(&serde_json::json!({ "why": "stopped" })),
        );
        let mut commit = Commit::new(self.pipeline.commit_id(), id, expect, vec![event]);
        commit.mail = MailStance::Regardless;
        commit.tenure = TenureChange::End;
        if let Err(e) = self.pipeline.commit(commit).await {
            tracing::debug!(error = %e, "no goodbye; the lease will lapse");
            return;
        }
        crate::due::ring_checks_of(&self.pipeline, id).await;
    }
}

/// What is lost stays lost.
fn hint_mail(hint: &mut Hint) {
    if *hint != Hint::Lost {
        *hint = Hint::Mail;
    }
}
