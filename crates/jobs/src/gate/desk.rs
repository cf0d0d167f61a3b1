//! What people do with gates: set the limit, and look at who waits for whom.

use super::{
    decide::Said,
    limits, mail,
    model::{Gate, GateState, gate_id},
};
use crate::terms::{self, BadTerm};
use serde::{Deserialize, Serialize};
use tenure_engine::pipeline::Pipeline;
use tenure_kernel::{
    commit::{Birth, Commit, CommitAnswer, Expect},
    error::StoreError,
    head::Head,
    ids::{EntityId, MailId},
    machine::{Cx, Input, Machine, decode_state, draft},
    mail::{MailAnswer, NewMail},
    store::HeadFilter,
    stream::Body,
    time::Timestamp,
};

/// Waiters that are shown by name.
const SHOWN_MAX: usize = 20;

/// A gate as people see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GateView {
    /// Its name, within the tenant.
    pub name: String,
    /// Whose.
    pub tenant: String,
    /// Jobs at once.
    pub limit: u32,
    /// The person who said so; without one it is what the first job asked for.
    pub set_by: Option<String>,
    /// That person is of no tenant: only such a one changes it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_operator: bool,
    /// Jobs that have a permit.
    pub holders: Vec<Standing>,
    /// Everybody in the line.
    pub waiting: u64,
    /// The first of them, in the order in which they pass.
    pub next: Vec<Standing>,
    /// Permits given so far.
    pub granted: u64,
}

/// A job at a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// The job.
    pub job: EntityId,
    /// Since when it stands there.
    pub since: Timestamp,
    /// Its priority; none once it has a permit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i16>,
}

impl GateView {
    /// What a head says.
    pub fn of(head: &Head) -> Result<Self, StoreError> {
        let state: GateState = decode_state::<Gate>(&head.state)
            .map_err(|e| StoreError::Corrupt(format!("gate {}: {e}", head.id)))?;
        let mut line = state.window.clone();
        // Stable: of one priority the first that asked stays the first.
        line.sort_by_key(|w| std::cmp::Reverse(w.1));
        let waiting = state.waiting();
        let holder = |h: &super::Holder| Standing { job: h.0, since: h.1, priority: None };
        let waiter = |w: &super::Waiter| Standing { job: w.0, since: w.2, priority: Some(w.1) };
        Ok(GateView {
            name: state.name,
            tenant: head.tenant.clone(),
            limit: state.limit,
            set_by: state.set_by,
            by_operator: state.by_operator,
            holders: state.holders.iter().map(holder).collect(),
            waiting,
            next: line.iter().take(SHOWN_MAX).map(waiter).collect(),
            granted: state.granted,
        })
    }
}

/// Why a gate was not set or found.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    /// A name or limit that can not be used.
    #[error(transparent)]
    Bad(#[from] BadTerm),
    /// An operator set its limit, and a tenant wants to change it.
    #[error("the limit of gate {0} was set by an operator")]
    Operators(String),
    /// Nobody has named it yet.
    #[error("there is no gate {0}")]
    Absent(String),
    /// The store is away, or said no.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Gates of a store.
#[derive(Clone)]
pub struct Gates(pub Pipeline);

impl Gates {
    /// Says how many may pass, for the first time or anew. The gate itself decides; it may be read a moment later. What an
    /// operator (somebody of no tenant) has said, a tenant leaves alone.
    pub async fn set(
        &self,
        tenant: &str,
        name: &str,
        limit: u32,
        by: &str,
        by_operator: bool,
    ) -> Result<(), GateError> {
        terms::name("name", name)?;
        if !(1..=limits::LIMIT_MAX).contains(&limit) {
            let why = format!("{limit} is not between 1 and {}", limits::LIMIT_MAX);
            return Err(BadTerm { field: "limit", why }.into());
        }
        let by = tenure_kernel::limits::clip(by, 128).to_owned();
        let body = Body::json(&Said::Set { name: name.to_owned(), limit, by, by_operator });
        let id = gate_id(tenant, name);
        let head = self.0.store().head(id).await?.filter(|h| h.kind() == Gate::TABLE.kind);
        if !by_operator
            && head.as_ref().map(GateView::of).transpose()?.is_some_and(|g| g.by_operator)
        {
            return Err(GateError::Operators(name.to_owned()));
        }
        // One that is created between the two is there for the next try.
        for _ in 0..3 {
            let mail_id = MailId(format!("set/{:016x}", self.0.rt().random()));
            let mail = NewMail { to: id, id: mail_id, kind: mail::SET.into(), body: body.clone() };
            match self.0.mail(mail).await? {
                MailAnswer::Accepted { .. } | MailAnswer::Duplicate => return Ok(()),
                MailAnswer::Unknown => {}
                other => return Err(StoreError::Refused(format!("{other:?}")).into()),
            }
            match self.0.commit(self.birth(id, tenant, &body).await?).await? {
                CommitAnswer::Committed(_) => return Ok(()),
                CommitAnswer::Exists { .. } => {}
                other => return Err(StoreError::Refused(format!("{other:?}")).into()),
            }
        }
        Err(StoreError::Unavailable("the gate could not be set: try again".into()).into())
    }

    async fn birth(&self, id: EntityId, tenant: &str, body: &Body) -> Result<Commit, StoreError> {
        let cx =
            Cx { id, now: self.0.store().now().await?, version: 0, status: None, changed_at: None };
        let input = Input::Create(body);
        let refused = |e: tenure_kernel::machine::Undecided| StoreError::Refused(e.to_string());
        let decision = Gate::decide(None, &input, &cx).map_err(refused)?;
        let drafted = draft::<Gate>(None, GateState::default(), decision, &input);
        let drafted = drafted.map_err(refused)?.unwrap_or_default();
        let (kind, tenant) = (Gate::TABLE.kind, tenant.to_owned());
        let birth = Birth { kind, tenant, queue: String::new(), priority: 0 };
        Ok(drafted.into_commit(self.0.commit_id(), id, Expect::Absent(birth)))
    }

    /// One gate.
    pub async fn show(&self, tenant: &str, name: &str) -> Result<GateView, GateError> {
        let head = self.0.store().head(gate_id(tenant, name)).await?;
        let head = head.filter(|h| h.kind() == Gate::TABLE.kind);
        let head = head.ok_or_else(|| GateError::Absent(name.to_owned()))?;
        Ok(GateView::of(&head)?)
    }

    /// A page of the gates of a tenant, or of everybody, and where the next one begins.
    pub async fn page(
        &self,
        tenant: Option<&str>,
        after: Option<EntityId>,
        limit: usize,
    ) -> Result<(Vec<GateView>, Option<EntityId>), GateError> {
        let filter = HeadFilter {
            kind: Some(Gate::TABLE.kind.to_owned()),
            tenant: tenant.map(str::to_owned),
            after,
            ..HeadFilter::default()
        };
        let heads = self.0.store().heads(filter, limit).await?;
        let next = heads.last().map(|h| h.id).filter(|_| heads.len() == limit);
        let mut all = heads.iter().map(GateView::of).collect::<Result<Vec<_>, StoreError>>()?;
        all.sort_by(|a, b| (&a.tenant, &a.name).cmp(&(&b.tenant, &b.name)));
        Ok((all, next))
    }
}
