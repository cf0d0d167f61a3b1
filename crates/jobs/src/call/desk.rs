//! What a worker may do with calls: open a session, take some, say how they ended, give them back. The HTTP endpoints
//! are a thin cover over this, and so is a worker in a test.
//!
//! Every answer is a commit under the epoch of the claim. One that comes too late is kept as evidence on the *job*, in
//! the words of a worker that has lost one (`drive/calls.rs`): whoever holds the job settles by it.

use super::{
    again::take_back,
    decide::{clock, finish},
    model::{Answered, Call, CallEvent, CallState, FailKind, limits},
    queue_of,
    table::LOST,
};
use crate::drive::{Leave, Limits, LoadError, Testimony, read_events_of};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tenure_engine::{claimer::Asked, due::ring_checks_of, pipeline::Pipeline, rota::Rota};
use tenure_kernel::{
    claims::{Claimed, Probe},
    commit::{Birth, Commit, CommitAnswer, Expect, MailStance, Refusal, TenureChange},
    error::StoreError,
    evidence::{EvidenceAnswer, NewEvidence},
    head::Head,
    ids::{EntityId, SessionId},
    limits as kernel_limits,
    machine::{Decision, Input, Machine as _, decode_event, decode_state, draft},
    sessions::{self, Opening},
    store::Store,
    stream::{Body, NewEvent},
    table::{Class, kernel_events as ke},
    time::Timestamp,
};
use tenure_steps::{
    canonical,
    events::{Token, What},
};

/// Tries of a commit that somebody else was faster than.
const TRIES: usize = 8;

/// Opens a session for a worker that takes calls. The tools stand in its first event, so that any server can answer it.
pub async fn open_session(
    pipeline: &Pipeline,
    tenant: &str,
    opening: Opening,
    tools: &[String],
) -> Result<SessionId, StoreError> {
    let at = pipeline.store().now().await?;
    let id = EntityId::new(at, tenure_engine::birth::random(pipeline));
    let (kind, queue, priority) = (sessions::WORKER.kind, String::new(), 0);
    let birth = Birth { kind, tenant: tenant.to_owned(), queue, priority };
    let mut body = serde_json::to_value(&opening).unwrap_or_default();
    body["tools"] = json!(tools);
    let event = NewEvent::new(sessions::events::OPENED, Body::json(&body));
    let mut commit = Commit::new(pipeline.commit_id(), id, Expect::Absent(birth), vec![event]);
    commit.tenure = TenureChange::Open(opening);
    match pipeline.commit(commit).await? {
        CommitAnswer::Committed(_) => Ok(id),
        other => Err(StoreError::Refused(format!("a session could not be opened: {other:?}"))),
    }
}

/// The tools that a session was opened with; `None` for one that is not there.
pub async fn tools_in(
    store: &Arc<dyn Store>,
    session: SessionId,
) -> Result<Option<Vec<String>>, StoreError> {
    let records = store.stream(session, 1, 1).await?;
    let Some(event) = records.first().and_then(|r| r.events().ok()?.into_iter().next()) else {
        return Ok(None);
    };
    let body: Value = event
        .body
        .inline()
        .and_then(|b| tenure_kernel::stored::from_slice(b).ok())
        .unwrap_or_default();
    let names = body["tools"].as_array().cloned().unwrap_or_default();
    Ok(Some(names.iter().filter_map(|n| n.as_str().map(str::to_owned)).collect()))
}

/// Ends a session. What it still holds is looked at at once.
pub async fn end_session(pipeline: &Pipeline, session: SessionId) -> Result<(), StoreError> {
    let Some(head) = pipeline.store().head(session).await? else { return Ok(()) };
    if head.class() == Class::Final {
        return Ok(());
    }
    let expect = Expect::Holder { epoch: head.epoch, version: head.version };
    let body = Body::json(&json!({ "why": "stopped" }));
    let event = NewEvent::new(sessions::events::ENDED, body);
    let mut commit = Commit::new(pipeline.commit_id(), session, expect, vec![event]);
    commit.mail = MailStance::Regardless;
    commit.tenure = TenureChange::End;
    pipeline.commit(commit).await?;
    ring_checks_of(pipeline, session).await;
    Ok(())
}

/// A call in the hands of a worker.
#[derive(Clone, Debug)]
pub struct Taken {
    /// The head after the claim.
    pub head: Head,
    /// What is asked.
    pub state: CallState,
    /// What the tool gets.
    pub input: Value,
}

impl Taken {
    /// A tool that honours it does nothing that takes effect after this time.
    pub fn not_after(&self) -> Timestamp {
        self.head.changed_at + Duration::from_millis(self.state.timeout_ms)
    }
}

/// Hands calls out, in the order of all claims: priority, tenant by deficit, time. One for each server.
#[derive(Default)]
pub struct Counter {
    /// Which tool, and which tenant of it, comes next.
    rota: Rota,
    /// What sessions were opened with. It stands in their first event, so it never changes.
    tools: Mutex<HashMap<SessionId, Arc<[String]>>>,
    /// A call begins when a worker gets it, so it passes its limits here.
    limits: Limits,
    /// When the limits of a tool let another call begin, on this process's clock, where some wait for that.
    waits: Mutex<HashMap<String, Duration>>,
}

/// Between two looks for leave lies at least this.
const LEAVE_LOOK_MIN: Duration = Duration::from_millis(5);
/// Sessions whose tools are remembered; then the memory starts over.
const SESSIONS_MAX: usize = 4_096;

impl Counter {
    /// The tools that a session was opened with; none for one that is not there.
    pub async fn tools_of(
        &self,
        pipeline: &Pipeline,
        session: SessionId,
    ) -> Result<Arc<[String]>, StoreError> {
        if let Some(known) = self.tools().get(&session) {
            return Ok(known.clone());
        }
        let Some(tools) = tools_in(pipeline.store(), session).await? else {
            return Ok(Arc::default());
        };
        let (tools, mut known) = (Arc::<[String]>::from(tools), self.tools());
        if known.len() >= SESSIONS_MAX {
            known.clear();
        }
        known.insert(session, tools.clone());
        Ok(tools)
    }

    fn tools(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<[String]>>> {
        // Nothing panics under this lock.
        self.tools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims up to `n` calls of these tools, of those tenants that the asker sees. What was claimed and is not handed
    /// out, because reading it failed or there is enough for one answer, goes back to the queue.
    pub async fn take(
        &self,
        pipeline: &Pipeline,
        (session, lease): (SessionId, Duration),
        tools: &[String],
        n: usize,
        sees: impl Fn(&str) -> bool + Send + Sync,
    ) -> Result<Vec<Taken>, StoreError> {
        let mut basket = Basket { taken: Vec::new(), bytes: 0, room: n };
        for tool in self.rota.order(session, tools, pipeline.rt().random()) {
            if basket.is_full() {
                break;
            }
            let before = basket.taken.len();
            let asked = Asked { session, lease, queue: queue_of(tool), limit: n - before };
            let found = self.take_of(pipeline, tool, asked, &mut basket, &sees).await;
            if basket.taken.len() > before {
                self.rota.gave(session, tool);
            }
            match found {
                Ok(()) => {}
                // What there is already is somebody's: it is handed out.
                Err(_) if !basket.taken.is_empty() => break,
                Err(e) => return Err(e),
            }
        }
        Ok(basket.taken)
    }

    /// Claims calls of one tool, page by page. Of a limited tool as many as turn out to be there, found out by doubling: leave
    /// for more would be lost.
    async fn take_of(
        &self,
        pipeline: &Pipeline,
        tool: &str,
        mut asked: Asked,
        basket: &mut Basket,
        sees: impl Fn(&str) -> bool + Send + Sync,
    ) -> Result<(), StoreError> {
        let (mut size, mut below, mut later) = (1, None, None);
        while !basket.is_full() {
            asked.limit = basket.room - basket.taken.len();
            let page = self.rota.page(pipeline, &asked, below, &sees).await?;
            let granted = self.grant(pipeline, tool, page.probes, (size, asked.limit)).await?;
            later = sooner(later, granted.later);
            let Granted { probes, limit, mut leaves, .. } = granted;
            let claimed = match self.rota.claim_by(pipeline, &asked, probes, limit).await {
                Ok(claimed) => claimed,
                Err(e) => {
                    self.put_back(leaves).await;
                    return Err(e);
                }
            };
            let (found, is_limited) = (claimed.len(), !leaves.is_empty());
            for one in claimed {
                basket.lay(pipeline, &asked, one, &mut leaves).await;
            }
            self.put_back(leaves).await;
            if found > 0 && found >= limit {
                // There may be more. Without a limit that was all there is room for.
                if !is_limited {
                    break;
                }
                size *= 2;
            } else if page.below.is_some() {
                (size, below) = (1, page.below);
            } else {
                break;
            }
        }
        // Where nothing waits, this says so: or whoever asks would look again and again for what is not there any more.
        self.note(tool, later.map(|wait| pipeline.rt().mono() + wait));
        Ok(())
    }

    /// What may be claimed of a tool, by its limits: a call that a worker gets begins. Of a tool without any, all of it.
    async fn grant(
        &self,
        pipeline: &Pipeline,
        tool: &str,
        mut probes: Vec<Probe>,
        (size, left): (usize, usize),
    ) -> Result<Granted, StoreError> {
        let mut leaves: BTreeMap<String, Vec<Vec<Token>>> = BTreeMap::new();
        let (mut free, mut limit, mut later) = (BTreeSet::new(), 0, None);
        for Probe { tenant, .. } in &probes {
            if free.contains(tenant) || leaves.contains_key(tenant) {
                continue;
            }
            match self.limits.of(pipeline, tenant, tool).await {
                Ok(wanted) if wanted.limits.is_empty() => {
                    free.insert(tenant.clone());
                    continue;
                }
                Ok(_) => {}
                Err(e) => {
                    self.put_back(leaves).await;
                    return Err(e);
                }
            }
            let mut own = Vec::new();
            while limit < size.min(left) {
                match self.limits.leave(pipeline, tenant, tool).await {
                    // It was removed meanwhile: the next look says so.
                    Ok(Leave::Unlimited) => break,
                    Ok(Leave::Now(tokens)) => {
                        own.push(tokens);
                        limit += 1;
                    }
                    Ok(Leave::In(wait)) => {
                        later = sooner(later, Some(wait));
                        break;
                    }
                    Err(e) => {
                        leaves.insert(tenant.clone(), own);
                        self.put_back(leaves).await;
                        return Err(e);
                    }
                }
            }
            leaves.insert(tenant.clone(), own);
        }
        if leaves.is_empty() {
            return Ok(Granted { probes, limit: left, leaves, later });
        }
        // Those who have no limit take what is left; of the others nobody gets more than it has leave for.
        let mut rest: BTreeMap<&str, usize> = BTreeMap::new();
        rest.extend(leaves.iter().map(|(tenant, own)| (tenant.as_str(), own.len())));
        probes.retain_mut(|probe| {
            if let Some(rest) = rest.get_mut(probe.tenant.as_str()) {
                probe.want = probe.want.min(*rest);
                *rest -= probe.want;
            }
            probe.want > 0
        });
        let limit = if free.is_empty() { limit } else { left };
        Ok(Granted { probes, limit, leaves, later })
    }

    async fn put_back(&self, leaves: BTreeMap<String, Vec<Vec<Token>>>) {
        for tokens in leaves.into_values().flatten().rev() {
            self.limits.put_back(tokens).await;
        }
    }

    fn note(&self, tool: &str, at: Option<Duration>) {
        // Nothing panics under this lock.
        let mut waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        match at {
            Some(at) => waits.insert(tool.to_owned(), at),
            None => waits.remove(tool),
        };
    }

    /// How long until a limit lets another call of these tools begin, where one of them held some back at the last look.
    pub fn next_leave(&self, pipeline: &Pipeline, tools: &[String]) -> Option<Duration> {
        let waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        let next = tools.iter().filter_map(|tool| waits.get(tool)).min();
        next.map(|at| at.saturating_sub(pipeline.rt().mono()).max(LEAVE_LOOK_MIN))
    }
}

/// What may be claimed.
struct Granted {
    probes: Vec<Probe>,
    limit: usize,
    /// By tenant, for each call the tokens that it costs. A tenant without a limit is not in it.
    leaves: BTreeMap<String, Vec<Vec<Token>>>,
    /// In how long a limit lets more begin, where one holds some back.
    later: Option<Duration>,
}

/// The sooner of two moments that there may be.
fn sooner(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    a.into_iter().chain(b).min()
}

/// What one poll brings.
struct Basket {
    taken: Vec<Taken>,
    /// Of their inputs.
    bytes: usize,
    /// For so many.
    room: usize,
}

impl Basket {
    fn is_full(&self) -> bool {
        self.taken.len() >= self.room || self.bytes >= limits::POLL_BYTES
    }

    /// A call that was claimed: into the basket, or back to its queue. The leave that it costs is spent either way.
    async fn lay(
        &mut self,
        pipeline: &Pipeline,
        asked: &Asked,
        claimed: Claimed,
        leaves: &mut BTreeMap<String, Vec<Vec<Token>>>,
    ) {
        // Only calls stand in these queues; what else did would be somebody's mistake, and lapses.
        if claimed.head.kind() != Call::TABLE.kind {
            return;
        }
        let state = state_of(&claimed.head);
        if state.as_ref().is_ok_and(|s| s.what == What::Call)
            && let Some(leaves) = leaves.get_mut(&claimed.head.tenant)
        {
            leaves.pop();
        }
        let (call, epoch) = (claimed.head.id, claimed.head.epoch);
        let held = (asked.session, epoch, state.map_or(0, |s| s.handed));
        let given = match self.bytes < limits::POLL_BYTES {
            true => hand_out(pipeline, claimed.head, asked.session).await,
            false => Ok(Handed::Back("there was enough for one answer")),
        };
        match given {
            Ok(Handed::Out(call, size)) => {
                self.bytes += size;
                self.taken.push(*call);
            }
            Ok(Handed::Ended) => {}
            Ok(Handed::Back(why)) => give_back(pipeline, call, held, why).await,
            Err(e) => {
                tracing::warn!(%call, error = %e, "a claimed call can not be handed out");
                give_back(pipeline, call, held, "it could not be read").await;
            }
        }
    }
}

/// What becomes of a call that was just claimed.
pub(crate) enum Handed {
    /// It goes to its worker, with the size of its input.
    Out(Box<Taken>, usize),
    /// Its job does not want it any more.
    Ended,
    /// To the queue.
    Back(&'static str),
}

pub(crate) async fn hand_out(
    pipeline: &Pipeline,
    head: Head,
    session: SessionId,
) -> Result<Handed, StoreError> {
    let state = state_of(&head)?;
    // The only mail that a call gets asks for its end. Nobody has begun it.
    if head.has_mail() {
        let had = Some((session, head.epoch));
        let why = Some("its job did not want it any more".to_owned());
        let unbegun = CallEvent::CallReleased { why: why.clone(), had };
        let mut decision = finish(&state, CallEvent::CallCancelled { why }, None);
        decision.events.insert(0, unbegun);
        let ended =
            commit(pipeline, &head, state, decision, &Input::TenureEnded("released")).await?;
        return Ok(match ended {
            CommitAnswer::Committed(_) => Handed::Ended,
            _ => Handed::Back("it was changed meanwhile"),
        });
    }
    let input = input(pipeline, &head, &state).await?;
    let size = match &state.input {
        Some(_) => limits::INPUT_IN_HEAD_BYTES_MAX,
        None => serde_json::to_vec(&input).map_or(0, |b| b.len()),
    };
    let waited = head.changed_at.since(head.created_at);
    if waited > Duration::from_millis(state.grace_ms) {
        let started = Decision::event(CallEvent::ClockStarted {})
            .timer(clock(state.timeout_ms, state.grace_ms));
        let set = commit(pipeline, &head, state.clone(), started, &Input::Mail(&[])).await?;
        if !matches!(set, CommitAnswer::Committed(_)) {
            return Ok(Handed::Back("it was changed meanwhile"));
        }
    }
    Ok(Handed::Out(Box::new(Taken { head, state, input }), size))
}

/// What the tool gets.
pub(super) async fn input(
    pipeline: &Pipeline,
    head: &Head,
    state: &CallState,
) -> Result<Value, StoreError> {
    match &state.input {
        Some(input) => Ok(input.clone()),
        None => input_of(pipeline, head.id).await,
    }
}

async fn give_back(
    pipeline: &Pipeline,
    call: EntityId,
    (session, epoch, handed): (SessionId, u64, u32),
    why: &str,
) {
    if let Err(e) = take_back(pipeline, call, (session, epoch), handed, why).await {
        tracing::warn!(%call, error = %e, "not given back; it will lapse");
    }
}

/// What the head of a call keeps.
pub fn state_of(head: &Head) -> Result<CallState, StoreError> {
    decode_state::<Call>(&head.state).map_err(|e| StoreError::Corrupt(e.to_string()))
}

fn unreadable(e: LoadError) -> StoreError {
    match e {
        LoadError::Store(e) => e,
        LoadError::Unreadable(why) => StoreError::Corrupt(why),
    }
}

/// The input of a call, from its first event.
pub async fn input_of(pipeline: &Pipeline, call: EntityId) -> Result<Value, StoreError> {
    let gone = || StoreError::Corrupt(format!("the input of call {call} is gone"));
    let records = pipeline.store().stream(call, 1, 1).await?;
    let record = records.first().ok_or_else(gone)?;
    let (_, events) = read_events_of::<Call>(pipeline.store(), record).await.map_err(unreadable)?;
    for event in &events {
        if let Ok(Some(CallEvent::CallCreated(new))) =
            decode_event::<Call>(&event.name, &event.body)
        {
            return Ok(new.input);
        }
    }
    Err(gone())
}

/// How a worker says that a call ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Said {
    /// The tool returned this.
    Completed(Value),
    /// It did not, and no code of it runs any more.
    Failed(FailKind, String),
    /// The worker waits for it no longer, and code of it may still run: a thread or a process that nobody can end.
    Left(String),
}

impl Said {
    fn digest(&self) -> String {
        canonical::short_digest(&match self {
            Said::Completed(result) => json!({ "result": result }),
            Said::Failed(kind, error) => json!({ "kind": kind, "error": error }),
            Said::Left(why) => json!({ "left": why }),
        })
    }

    fn event(&self, epoch: u64) -> CallEvent {
        let answered = Answered { epoch, digest: self.digest() };
        match self {
            Said::Completed(result) => {
                CallEvent::CallCompleted { result: result.clone(), answered }
            }
            Said::Failed(kind, error) => {
                let error = kernel_limits::clip(error, limits::ERROR_BYTES_MAX).to_owned();
                CallEvent::CallFailed { kind: *kind, error, answered }
            }
            Said::Left(why) => {
                let why = kernel_limits::clip(why, limits::ERROR_BYTES_MAX).to_owned();
                CallEvent::CallLost { why, answered: Some(answered) }
            }
        }
    }

    fn testimony(&self) -> Option<Testimony> {
        match self {
            Said::Completed(result) => Some(Testimony::Result(result.clone())),
            Said::Failed(FailKind::NotCalled, _) => Some(Testimony::NeverCalled),
            Said::Failed(..) => Some(Testimony::Over),
            Said::Left(_) => None,
        }
    }
}

/// What became of a worker's word.
#[derive(Clone, Debug, PartialEq)]
pub enum Heard {
    /// It counts; also when it was said before.
    Accepted,
    /// The worker has the call no longer.
    Stale {
        /// Where the call stands.
        status: &'static str,
        /// Its epoch now.
        epoch: u64,
        /// What was said is kept as evidence about the job.
        kept: bool,
    },
    /// There is no such call.
    Unknown,
    /// It can not be kept: a limit was passed.
    Refused(String),
}

/// A worker says how its call ended. The same again is answered the same.
pub async fn say(
    pipeline: &Pipeline,
    call: EntityId,
    (session, epoch): (SessionId, u64),
    said: &Said,
) -> Result<Heard, StoreError> {
    for _ in 0..TRIES {
        let Some(head) = call_head(pipeline, call).await? else { return Ok(Heard::Unknown) };
        let state = state_of(&head)?;
        let answered = Answered { epoch, digest: said.digest() };
        if state.answered.as_ref() == Some(&answered) {
            return Ok(Heard::Accepted);
        }
        if !holds(&head, session, epoch) {
            return too_late(pipeline, &head, &state, (session, epoch), said).await;
        }
        let decision = finish(&state, said.event(epoch), Some(session)).regardless();
        match commit(pipeline, &head, state, decision, &Input::Mail(&[])).await? {
            CommitAnswer::Committed(_) => return Ok(Heard::Accepted),
            CommitAnswer::Refused(why) => return refused(&why),
            // Somebody was faster: look again what is true now.
            _ => {}
        }
    }
    Err(StoreError::Unavailable(format!("call {call} is written by too many at once")))
}

/// A worker gives its call back and has not begun it: it goes to the queue, for anybody.
pub async fn release(
    pipeline: &Pipeline,
    call: EntityId,
    held: (SessionId, u64),
    why: Option<String>,
) -> Result<Heard, StoreError> {
    release_of(pipeline, call, held, None, why).await
}

/// The same, of one handing: not by the word of the worker, but because the answer with the call went nowhere.
pub(super) async fn release_of(
    pipeline: &Pipeline,
    call: EntityId,
    (session, epoch): (SessionId, u64),
    handed: Option<u32>,
    why: Option<String>,
) -> Result<Heard, StoreError> {
    for _ in 0..TRIES {
        let Some(head) = call_head(pipeline, call).await? else { return Ok(Heard::Unknown) };
        let state = state_of(&head)?;
        if state.released == Some((session, epoch)) {
            return Ok(Heard::Accepted);
        }
        let another = handed.is_some_and(|h| h != state.handed);
        if another || !holds(&head, session, epoch) {
            // Not evidence: somebody else may have it by now, and what this one did not do says nothing about them.
            let (status, epoch) = (head.status.name(), head.epoch);
            return Ok(Heard::Stale { status, epoch, kept: false });
        }
        let why = why.as_deref().map(|w| kernel_limits::clip(w, 512).to_owned());
        let decision =
            Decision::event(CallEvent::CallReleased { why, had: Some((session, epoch)) });
        match commit(pipeline, &head, state, decision, &Input::TenureEnded("released")).await? {
            CommitAnswer::Committed(_) => return Ok(Heard::Accepted),
            CommitAnswer::Refused(why) => return refused(&why),
            _ => {}
        }
    }
    Err(StoreError::Unavailable(format!("call {call} is written by too many at once")))
}

/// Only what is too large is the worker's to make smaller.
fn refused(why: &Refusal) -> Result<Heard, StoreError> {
    match why {
        Refusal::Limit { .. } => Ok(Heard::Refused(why.to_string())),
        other => Err(StoreError::Refused(other.to_string())),
    }
}

async fn call_head(pipeline: &Pipeline, call: EntityId) -> Result<Option<Head>, StoreError> {
    let head = pipeline.store().head(call).await?;
    Ok(head.filter(|h| h.kind() == Call::TABLE.kind))
}

pub(super) fn holds(head: &Head, session: SessionId, epoch: u64) -> bool {
    head.class() == Class::Open && head.epoch == epoch && head.holder == Some(session)
}

pub(super) async fn commit(
    pipeline: &Pipeline,
    head: &Head,
    state: CallState,
    decision: Decision<CallEvent>,
    input: &Input<'_>,
) -> Result<CommitAnswer, StoreError> {
    let drafted = draft::<Call>(Some(head), state, decision, input)
        .map_err(|e| StoreError::Refused(e.to_string()))?
        .ok_or_else(|| StoreError::Refused("nothing to commit".into()))?;
    let expect = Expect::Holder { epoch: head.epoch, version: head.version };
    let mut commit = drafted.into_commit(pipeline.commit_id(), head.id, expect);
    // A cancel that waits there asks for what happens now, or is answered from the queue.
    commit.mail = MailStance::Regardless;
    debug_assert!(commit.events.iter().any(|e| e.name != ke::TENURE_ENDED));
    pipeline.commit(commit).await
}

/// Evidence about the job, in the words of any worker that has lost a call. What a probe or a compensation says is asked
/// for again instead: it was true when it was said.
///
/// A result is kept from whoever had the call once. That nothing was called, or that nothing runs any more, is only true
/// of one's own claim: it is kept from whoever had the last one, and only while nobody knows better.
async fn too_late(
    pipeline: &Pipeline,
    head: &Head,
    state: &CallState,
    (session, under): (SessionId, u64),
    said: &Said,
) -> Result<Heard, StoreError> {
    let (status, epoch) = (head.status.name(), head.epoch);
    let nothing = Heard::Stale { status, epoch, kept: false };
    let Some(testimony) = said.testimony().filter(|_| state.what == What::Call) else {
        return Ok(nothing);
    };
    let last = status == LOST && epoch == under + 1;
    if !last && !matches!(testimony, Testimony::Result(_)) {
        return Ok(nothing);
    }
    // Nobody has evidence of what they never had.
    if holder_under(pipeline, head.id, under).await? != Some(session) {
        return Ok(nothing);
    }
    let evidence = NewEvidence {
        entity: state.job,
        key: state.key.clone(),
        epoch: state.job_epoch,
        call: state.call,
        who: format!("session {session}"),
        body: Body::json(&testimony.to_json(&state.step)),
    };
    let kept = match pipeline.evidence(evidence).await? {
        EvidenceAnswer::Recorded { .. } | EvidenceAnswer::Duplicate => true,
        EvidenceAnswer::Unknown => false,
        EvidenceAnswer::Refused(why) => return refused(&why),
    };
    Ok(Heard::Stale { status, epoch, kept })
}

/// Who had a call under this epoch.
async fn holder_under(
    pipeline: &Pipeline,
    call: EntityId,
    epoch: u64,
) -> Result<Option<SessionId>, StoreError> {
    let mut from = 1;
    loop {
        let page = pipeline.store().stream(call, from, 256).await?;
        let Some(last) = page.last() else { return Ok(None) };
        from = last.last() + 1;
        for record in page.iter().filter(|r| r.epoch == epoch) {
            let (meta, _) =
                read_events_of::<Call>(pipeline.store(), record).await.map_err(unreadable)?;
            if meta.take.is_some() {
                return Ok(meta.take);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_too_large_is_said_to_be() {
        let large = Refusal::Limit { what: "events of a commit in bytes", actual: 9, limit: 8 };
        assert!(matches!(refused(&large), Ok(Heard::Refused(why)) if why.contains("limit")));
        let other = Refusal::Deadline("a deadline that is not there");
        assert!(matches!(refused(&other), Err(StoreError::Refused(_))));
    }
}
