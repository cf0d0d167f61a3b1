//! What a worker out there may ask. The judge decides whether a commit is allowed as such; here it is only
//! about *whose* entities and *which kinds*, which the judge does not know.
//!
//! * Only the kinds that the server was told ([`ServerOptions::worker_kinds`](crate::ServerOptions)).
//! * Only what the kind that is created lets workers create, directly or by a message
//!   ([`Machine::CREATED_BY`](tenure_kernel::machine::Machine::CREATED_BY)). Whether the new entity may be as it is, its kind's
//!   rule decides, for workers as for everybody ([`tenure_kernel::admission`]).
//! * What is created tells its creator alone how it ended, and nobody makes it tell another entity later: in its first event, in
//!   the message that creates it, and in every state that a worker writes.
//! * Only the caller's tenant. What is foreign is answered as if it were not there, message targets
//!   and the session of a claim included.
//! * Beside it the limits of all tenants together: whoever calls a tool takes tokens there. A worker takes tokens as the
//!   limit says, makes a tenant's limit exactly as the one for each tenant says, and does nothing else to a limit.
//! * And what the catalogue says to all tenants, to be read. What a worker of a tenant registers is that tenant's own, under
//!   that tenant's id: or the first to use a name would decide about it for everybody.
//! * Outside, a worker of a tenant speaks for the turn that it commits: that agent's events, and the subjects of its tools as
//!   the agent's profile names them now. What the worker itself wrote into the history is no proof.
//! * No tenure but the worker's own: `overrule` and `end_tenure` belong to the due loop.
//! * No session that says it is a server (it would be given lanes), and no lease beyond a bound.
//!
//! Kind and tenant of an entity never change, so they are remembered: a commit costs no read after the
//! first.

use super::{is_session, reports};
use crate::{App, Caller, audit, console_sessions, keys};
use futures_util::future::join_all;
use serde::de::DeserializeOwned;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tenure_agents::{drive::load, turn::Turn};
use tenure_jobs::{catalogue, shared::limit};
use tenure_kernel::{
    blocks,
    commit::{Commit, CommitAnswer, Expect, Refusal, TenureChange},
    error::StoreError,
    evidence::EvidenceAnswer,
    head::Head,
    ids::{EntityId, SessionId},
    machine::{Machine as _, Machines, decode_state, encode_state},
    mail::MailAnswer,
    outbox::{Message, Target},
    runtime::compute,
    sessions::{LANE, RenewalAnswer, WORKER},
    store::{Answer, Op},
    stream::{Body, NewEvent},
    wakeup,
};

/// Entities that are remembered; then the memory starts over.
const REMEMBERED_MAX: usize = 65_536;

/// What never changes about an entity.
#[derive(Clone, Debug)]
struct Identity {
    kind: &'static str,
    tenant: Arc<str>,
    /// The entity that is told how this one ended.
    reports_to: Option<EntityId>,
}

impl Identity {
    fn of(machines: &Machines, head: &Head) -> Self {
        let pointer = machines.get(head.kind()).and_then(|core| core.reports_to_in_state());
        // A state that no machine wrote says nothing that a machine would read.
        let reports_to =
            pointer.and_then(|pointer| reports::named(pointer, &head.state).unwrap_or_default());
        Identity { kind: head.kind(), tenant: head.tenant.as_str().into(), reports_to }
    }
}

/// Kinds and tenants of entities.
#[derive(Debug, Default)]
pub(crate) struct Identities(Mutex<HashMap<EntityId, Identity>>);

impl Identities {
    fn known(&self) -> MutexGuard<'_, HashMap<EntityId, Identity>> {
        // Nothing panics under this lock; it is only a shortcut.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers an entity that was read anyway.
    pub(crate) fn remember(&self, app: &App, head: &Head) {
        let identity = Identity::of(app.machines(), head);
        let mut known = self.known();
        if known.len() >= REMEMBERED_MAX {
            known.clear();
        }
        known.insert(head.id, identity);
    }

    async fn of(&self, app: &App, id: EntityId) -> Result<Option<Identity>, StoreError> {
        let known = self.known().get(&id).cloned();
        if known.is_some() {
            return Ok(known);
        }
        let Some(head) = app.pipeline().store().head(id).await? else { return Ok(None) };
        self.remember(app, &head);
        Ok(Some(Identity::of(app.machines(), &head)))
    }

    /// Whether workers may touch this kind.
    pub(crate) fn admits(&self, app: &App, kind: &str) -> bool {
        app.options().worker_kinds.iter().any(|k| k == kind)
    }

    /// Whether the entity is there, of a kind for workers, and the caller's.
    pub(crate) async fn is_open_to(
        &self,
        app: &App,
        caller: &Caller,
        id: EntityId,
    ) -> Result<bool, StoreError> {
        let identity = self.of(app, id).await?;
        let open = |i: &Identity| caller.sees(&i.tenant) || is_everybodys(i.kind, &i.tenant);
        Ok(identity.is_some_and(|i| self.admits(app, i.kind) && open(&i)))
    }

    /// The same, and a worker may write it: who sets limits is no business of workers, who only read the book.
    pub(crate) async fn is_moved_by(
        &self,
        app: &App,
        caller: &Caller,
        id: EntityId,
    ) -> Result<bool, StoreError> {
        use tenure_jobs::shared::limit::book;
        let identity = self.of(app, id).await?;
        let read_only = identity.is_some_and(|i| {
            // Agents are set by people and change by the mail of their turns.
            [book::TABLE.kind, blocks::TABLE.kind, "agent"].contains(&i.kind)
                || (i.kind == catalogue::TABLE.kind && !caller.sees(&i.tenant))
        });
        Ok(!read_only && self.is_open_to(app, caller, id).await?)
    }

    /// Whether the entity is there, of this kind, and the caller's.
    pub(crate) async fn is_of(
        &self,
        app: &App,
        caller: &Caller,
        id: EntityId,
        kind: &str,
    ) -> Result<bool, StoreError> {
        let identity = self.of(app, id).await?;
        Ok(identity.is_some_and(|i| i.kind == kind && caller.sees(&i.tenant)))
    }

    /// Whether this is a worker session of the caller.
    pub(crate) async fn is_session_of(
        &self,
        app: &App,
        caller: &Caller,
        id: SessionId,
    ) -> Result<bool, StoreError> {
        let identity = self.of(app, id).await?;
        Ok(identity.is_some_and(|i| is_session(i.kind) && caller.sees(&i.tenant)))
    }
}

/// The operation as it may be carried out, or its answer.
pub(super) async fn admit(
    app: &App,
    caller: &Caller,
    op: Op,
) -> Result<Result<Op, Answer>, StoreError> {
    let ids = app.identities();
    Ok(match op {
        Op::Commit(mut commit) => match admit_commit(app, caller, &mut commit).await? {
            Ok(()) => Ok(Op::Commit(commit)),
            Err(why) => Err(Answer::Commit(CommitAnswer::Refused(why))),
        },
        Op::Claim { id, entity, session, lease } => {
            let unknown = |id| Answer::Claim(Err(CommitAnswer::Refused(Refusal::Unknown(id))));
            if !ids.is_open_to(app, caller, entity).await? {
                Err(unknown(entity))
            } else if !ids.is_session_of(app, caller, session).await? {
                Err(unknown(session))
            } else {
                let lease = lease.min(app.options().lease_max);
                Ok(Op::Claim { id, entity, session, lease })
            }
        }
        Op::Mail(mail) => match ids.is_moved_by(app, caller, mail.to).await? {
            true => Ok(Op::Mail(mail)),
            false => Err(Answer::Mail(MailAnswer::Unknown)),
        },
        Op::Evidence(evidence) => match ids.is_open_to(app, caller, evidence.entity).await? {
            true => Ok(Op::Evidence(evidence)),
            false => Err(Answer::Evidence(EvidenceAnswer::Unknown)),
        },
        Op::Renew(renewal) => match ids.is_session_of(app, caller, renewal.session).await? {
            true => Ok(Op::Renew(renewal)),
            false => Err(Answer::Renew(RenewalAnswer::Ended)),
        },
        // They have no word on the wire.
        Op::Touch(_) => Err(Answer::Touch(false)),
        Op::Deliver(_) => Err(Answer::Busy),
    })
}

async fn admit_commit(
    app: &App,
    caller: &Caller,
    commit: &mut Commit,
) -> Result<Result<(), Refusal>, StoreError> {
    let ids = app.identities();
    match &mut commit.expect {
        Expect::Absent(birth) => {
            let is_limit = birth.kind == limit::model::TABLE.kind;
            if is_well_known(commit.entity, &birth.tenant) {
                return Ok(Err(Refusal::Tenure(WELL_KNOWN)));
            }
            if !ids.admits(app, birth.kind) || !app.machines().may_create(WORKER.kind, birth.kind) {
                return Ok(Err(Refusal::Tenure("a worker does not create entities of this kind")));
            }
            if let Some(tenant) = &caller.tenant {
                birth.tenant.clone_from(tenant);
                // Or one tenant could take another's keys, and learn whose they are.
                let mine = format!("{}/{}/{tenant}/", birth.kind, tenant.len());
                if commit.keys.iter().any(|k| !k.key.starts_with(&mine)) {
                    return Ok(Err(Refusal::Tenure(
                        "unique keys begin with kind/length of the tenant's name/tenant/",
                    )));
                }
                if birth.kind == catalogue::TABLE.kind
                    && !is_own_entry(commit.entity, &commit.events, tenant)
                {
                    return Ok(Err(Refusal::Tenure("a tenant's entry has the tenant's own id")));
                }
            }
            let tenant = birth.tenant.clone();
            let kind = birth.kind;
            let state = commit.state.as_deref().unwrap_or_default();
            if !says_it_reports_to(app, kind, state, None) {
                return Ok(Err(Refusal::Tenure(FOREIGN_REPORT)));
            }
            if let Some(event) = commit.events.first()
                && !reports_to(app, kind, &event.body, None).await?
            {
                return Ok(Err(Refusal::Tenure(FOREIGN_REPORT)));
            }
            if kind == catalogue::TABLE.kind && !has_fit_schemas(app, commit, &tenant).await? {
                return Ok(Err(Refusal::Tenure(UNFIT_SCHEMA)));
            }
            if is_limit && !is_from_each(app, commit, &tenant, None).await? {
                let why = "a worker makes a limit only as the one for each tenant says";
                return Ok(Err(Refusal::Tenure(why)));
            }
        }
        Expect::Holder { .. } | Expect::Nobody { .. } => {
            if !ids.is_moved_by(app, caller, commit.entity).await? {
                return Ok(Err(Refusal::Unknown(commit.entity)));
            }
            if !is_a_take(app, caller, commit).await? {
                return Ok(Err(Refusal::Tenure("of a limit a worker takes tokens, as it says")));
            }
            let identity = ids.of(app, commit.entity).await?;
            if let Some(entry) = identity.as_ref().filter(|i| i.kind == catalogue::TABLE.kind)
                && !has_fit_schemas(app, commit, &entry.tenant).await?
            {
                return Ok(Err(Refusal::Tenure(UNFIT_SCHEMA)));
            }
            if let (Some(state), Some(identity)) = (&commit.state, identity)
                && !says_it_reports_to(app, identity.kind, state, identity.reports_to)
            {
                return Ok(Err(Refusal::Tenure(FOREIGN_REPORT)));
            }
        }
        Expect::Overrule { .. } | Expect::EndTenure { .. } => {
            return Ok(Err(Refusal::Tenure("a worker ends no tenure but its own")));
        }
    }
    match &mut commit.tenure {
        TenureChange::Open(opening) if opening.role != "worker" => {
            return Ok(Err(Refusal::Tenure("a session over HTTP has the role worker")));
        }
        TenureChange::Open(opening)
            if Duration::from_millis(opening.lease_ms) > app.options().lease_max =>
        {
            return Ok(Err(Refusal::Tenure("the lease is longer than this server allows")));
        }
        TenureChange::Take { session, lease } => {
            if !ids.is_session_of(app, caller, *session).await? {
                return Ok(Err(Refusal::Unknown(*session)));
            }
            *lease = (*lease).min(app.options().lease_max);
        }
        TenureChange::Open(_) | TenureChange::Keep | TenureChange::End => {}
    }
    admit_messages(app, caller, commit).await
}

/// Whether an entry of the catalogue is born under the id that its tenant and its name make.
fn is_own_entry(entity: EntityId, events: &[NewEvent], tenant: &str) -> bool {
    let own = |event: &catalogue::Event| catalogue::is_registered_under(entity, tenant, event);
    events.iter().all(|event| read(event).is_some_and(|event| own(&event)))
}

const UNFIT_SCHEMA: &str = "a schema of the entry cannot be used: values could not be checked in bounded time, or the entry cannot be read";

/// Whether all that a commit adds to an entry of the catalogue has schemas that [`tenure_schema`] follows: in its events, and in the
/// state, which is what is read. Versions that are there already stay.
async fn has_fit_schemas(app: &App, commit: &Commit, tenant: &str) -> Result<bool, StoreError> {
    let registered = |event: &NewEvent| read::<catalogue::Event>(event);
    let events: Option<Vec<_>> = commit.events.iter().map(registered).collect();
    let state = decode_state::<catalogue::Catalogue>(commit.state.as_deref().unwrap_or_default());
    let (Some(events), Ok(state)) = (events, state) else { return Ok(false) };
    let head = app.pipeline().store().head(commit.entity).await?;
    let known = head.map(|head| decode_state::<catalogue::Catalogue>(&head.state)).transpose();
    let known = known.map_err(|e| StoreError::Corrupt(e.to_string()))?.unwrap_or_default();
    let said = events.into_iter().map(|catalogue::Event::EntryRegistered { version, .. }| version);
    let added: Vec<_> =
        state.versions.into_iter().chain(said).filter(|v| !known.versions.contains(v)).collect();
    let check = move || added.iter().all(catalogue::has_fit_schemas);
    let fit = compute(app.pipeline().rt(), tenant, tenure_schema::DEADLINE, check).await;
    fit.ok_or_else(|| StoreError::Unavailable("the schemas were not checked in time".into()))
}

fn read<E: DeserializeOwned>(event: &NewEvent) -> Option<E> {
    tenure_kernel::stored::from_slice(event.body.inline()?).ok()
}

/// The one event of a limit that a commit has, under its own name: that is what the judge goes by.
fn of_a_limit(commit: &Commit) -> Option<limit::Event> {
    let [event] = commit.events.as_slice() else { return None };
    read(event).filter(|read| limit::Limit::name(read) == event.name)
}

/// Whether a limit of this tenant is made, or changed, exactly as the limit for each tenant says now.
async fn is_from_each(
    app: &App,
    commit: &Commit,
    tenant: &str,
    state: Option<&limit::State>,
) -> Result<bool, StoreError> {
    let Some(event) = of_a_limit(commit) else { return Ok(false) };
    let limit::Event::LimitSet { spec, .. } = &event else { return Ok(false) };
    let store = app.pipeline().store();
    let book = store.head(limit::book::id_of(limit::model::EVERYBODY)).await?;
    let book = book.filter(|head| head.kind() == limit::book::TABLE.kind);
    let book = book.map(|head| decode_state::<limit::LimitBook>(&head.state)).transpose();
    let book = book.map_err(|e| StoreError::Corrupt(e.to_string()))?.unwrap_or_default();
    let Some(each) = book.each.get(&spec.tool) else { return Ok(false) };
    let each = limit::each::for_tenant(each, tenant);
    let follows = limit::each::is_a_follow(state, &event, &each, store.now().await?);
    let mut after = state.cloned().unwrap_or_default();
    limit::Limit::apply(&mut after, &event);
    let state = Some(encode_state::<limit::Limit>(&after));
    Ok(follows && commit.entity == each.id() && commit.state == state)
}

/// Whether what is done to a limit is the taking of tokens, or what the limit for each tenant says; of other kinds, true.
/// The judge knows of states only that they follow from events, not how.
async fn is_a_take(app: &App, caller: &Caller, commit: &Commit) -> Result<bool, StoreError> {
    let Some(identity) = app.identities().of(app, commit.entity).await? else { return Ok(true) };
    if identity.kind != limit::model::TABLE.kind {
        return Ok(true);
    }
    let store = app.pipeline().store();
    let (Some(head), now) = (store.head(commit.entity).await?, store.now().await?) else {
        return Ok(true);
    };
    // Of another version the store refuses it, as what came too late.
    if !matches!(commit.expect, Expect::Nobody { version, .. } if version == head.version) {
        return Ok(matches!(commit.expect, Expect::Nobody { .. }));
    }
    let mut state = decode_state::<limit::model::Limit>(&head.state)
        .map_err(|e| StoreError::Corrupt(e.to_string()))?;
    if is_from_each(app, commit, &identity.tenant, Some(&state)).await? {
        return Ok(true);
    }
    let Some(event) = of_a_limit(commit) else { return Ok(false) };
    let fits = limit::decide::is_a_take(&state, &event, now) && is_for_own(caller, &event);
    limit::model::Limit::apply(&mut state, &event);
    Ok(fits && commit.state == Some(encode_state::<limit::model::Limit>(&state)))
}

/// Whether tokens are taken in the name of the worker's own tenant: what is promised to one leaves it less of the rest.
fn is_for_own(caller: &Caller, event: &limit::Event) -> bool {
    match (&caller.tenant, event) {
        (Some(tenant), limit::Event::TokensTaken { taker, .. }) => {
            taker.as_ref().is_some_and(|taker| taker.tenant == *tenant)
        }
        (Some(mine), limit::Event::PlaceTaken { tenant, .. }) => tenant == mine,
        _ => true,
    }
}

/// A message is delivered in the name of its source's tenant, so its target has to be of the same. One that does
/// not exist yet is fine: the lanes return it, or it will belong to that tenant.
async fn admit_messages(
    app: &App,
    caller: &Caller,
    commit: &Commit,
) -> Result<Result<(), Refusal>, StoreError> {
    if let Some(why) = refused_subjects(app, caller, commit).await? {
        return Ok(Err(why));
    }
    let by = match &commit.expect {
        Expect::Absent(birth) => Some(birth.kind),
        _ => app.identities().of(app, commit.entity).await?.map(|i| i.kind),
    };
    let Some(by) = by else { return Ok(Err(Refusal::Unknown(commit.entity))) };
    let refused = commit.messages.iter().map(|m| refused_target(app, caller, by, &m.to));
    // All at once: a fan-out names a thousand entities that nobody has read yet.
    for refused in join_all(refused).await {
        if let Some(why) = refused? {
            return Ok(Err(why));
        }
    }
    for message in &commit.messages {
        if let Target::Create { kind, .. } = &message.to
            && !reports_to(app, kind, &message.body, Some(commit.entity)).await?
        {
            return Ok(Err(Refusal::Tenure(FOREIGN_REPORT)));
        }
    }
    Ok(Ok(()))
}

/// Whether something is said outside that is not the turn's to say. A wake-up is a ring, and anybody may ring.
async fn refused_subjects(
    app: &App,
    caller: &Caller,
    commit: &Commit,
) -> Result<Option<Refusal>, StoreError> {
    let subject = |m: &Message| match &m.to {
        Target::Wire(subject) if wakeup::target_of(subject).is_none() => Some(subject.clone()),
        _ => None,
    };
    let mut said: Vec<String> = commit.messages.iter().filter_map(subject).collect();
    if caller.tenant.is_none() || said.is_empty() {
        return Ok(None);
    }
    let refused = Some(Refusal::Tenure(
        "a worker of a tenant speaks outside for the turn that it holds only",
    ));
    let store = app.pipeline().store();
    let Some(head) = store.head(commit.entity).await? else { return Ok(refused) };
    if head.kind() != "turn" {
        return Ok(refused);
    }
    let turn = decode_state::<Turn>(&head.state).map_err(|e| StoreError::Corrupt(e.to_string()))?;
    said.retain(|subject| !tenure_agents::is_event_of(&turn.agent_name, subject));
    if said.is_empty() {
        return Ok(None);
    }
    let told = load::tells(store, turn.agent, head.created_at, &said).await?;
    Ok(refused.filter(|_| !told))
}

const FOREIGN_REPORT: &str = "what a worker's commit creates reports to the entity of that commit";

const WELL_KNOWN: &str = "this id belongs to an entity that the server keeps";

/// Ids that everybody can work out, of entities that every server reads and only the server creates. A worker that were first to
/// create something else there would stop the others.
fn is_well_known(id: EntityId, tenant: &str) -> bool {
    use tenure_jobs::shared::limit::{book, model};
    id == blocks::book_id() || id == book::id_of(model::EVERYBODY) || id == book::id_of(tenant)
}

/// Whether what is created tells its creator alone how it ended. Its messages are the server's, and reach every tenant.
async fn reports_to(
    app: &App,
    kind: &str,
    body: &Body,
    creator: Option<EntityId>,
) -> Result<bool, StoreError> {
    let pointer = app.machines().get(kind).and_then(|core| core.reports_to());
    let Some(pointer) = pointer else { return Ok(true) };
    let loaded;
    let bytes = match body {
        Body::Inline(bytes) => bytes,
        Body::Blob { digest, .. } => {
            loaded = app.pipeline().store().blob(*digest).await?.unwrap_or_default();
            &loaded
        }
    };
    let named = reports::named(pointer, bytes);
    Ok(named.is_ok_and(|named| named.is_none() || named == creator))
}

/// Whether a state names this entity as the one that is told. The due loop ends entities by their state, in the server's name.
fn says_it_reports_to(app: &App, kind: &str, state: &[u8], expected: Option<EntityId>) -> bool {
    let pointer = app.machines().get(kind).and_then(|core| core.reports_to_in_state());
    pointer.is_none_or(|pointer| reports::named(pointer, state) == Ok(expected))
}

async fn refused_target(
    app: &App,
    caller: &Caller,
    by: &str,
    to: &Target,
) -> Result<Option<Refusal>, StoreError> {
    let id = match to {
        Target::Wire(_) => return Ok(None),
        Target::Mail(id) => *id,
        Target::Create { kind, .. } if !app.machines().may_create(by, kind) => {
            let why = "a worker's commit does not create entities of this kind by a message";
            return Ok(Some(Refusal::Tenure(why)));
        }
        Target::Create { id, .. } if is_well_known(*id, caller.tenant.as_deref().unwrap_or("")) => {
            return Ok(Some(Refusal::Tenure(WELL_KNOWN)));
        }
        Target::Create { id, .. } => *id,
    };
    let identity = app.identities().of(app, id).await?;
    let foreign = identity.is_some_and(|i| is_ours(i.kind) || !caller.sees(&i.tenant));
    Ok(foreign.then_some(Refusal::Unknown(id)))
}

/// Limits for all tenants together, and the book that lists them: a worker of any tenant takes tokens there. And what the
/// catalogue says to all.
pub(super) fn is_everybodys(kind: &str, tenant: &str) -> bool {
    use tenure_jobs::shared::limit::{book, model};
    let limits = [model::TABLE.kind, book::TABLE.kind].contains(&kind);
    (limits || kind == blocks::TABLE.kind) && tenant == model::EVERYBODY
        || kind == catalogue::TABLE.kind && tenant.is_empty()
}

/// Kinds that are the server's own business.
fn is_ours(kind: &str) -> bool {
    [WORKER.kind, LANE.kind, keys::KIND, audit::KIND, console_sessions::KIND].contains(&kind)
}
