//! What the retries of a tenant may cost together: shown, set by a person, and given back to the settings.

use super::{Desk, DeskError, state_of, words};
use crate::budget::{Budget, BudgetEvent, BudgetState, BudgetTerms, budget_id, model::BudgetSet};
use serde::{Deserialize, Serialize};
use tenure_engine::amend::amend;
use tenure_kernel::{
    error::StoreError,
    head::Head,
    ids::EntityId,
    machine::{Decision, Input, Machine as _},
    store::HeadFilter,
    stream::Body,
    time::Timestamp,
};

/// Budgets that are listed.
const LIST_MAX: usize = 1_000;

/// The budget of a tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BudgetView {
    /// Whose.
    pub tenant: String,
    /// Retries that may start in a minute.
    pub per_minute: u32,
    /// How many of them at once, after a quiet time.
    pub burst: u32,
    /// Retried attempts under way at once.
    pub in_flight_max: u32,
    /// Who said so; `None`: the server's settings.
    pub set_by: Option<String>,
    /// Retries that could start now.
    pub tokens: u32,
    /// Retried attempts under way.
    pub in_flight: u32,
    /// Places given so far.
    pub granted: u64,
    /// How often a task was told to ask again later.
    pub deferred: u64,
    /// The tasks that have a place.
    pub tasks: Vec<EntityId>,
}

impl BudgetView {
    /// As it stands now.
    pub fn of(state: &BudgetState, now: Timestamp) -> Self {
        BudgetView {
            tenant: state.tenant.clone(),
            per_minute: state.terms.per_minute,
            burst: state.terms.burst,
            in_flight_max: state.terms.in_flight,
            set_by: state.set_by.clone(),
            tokens: state.tokens(now),
            in_flight: u32::try_from(state.places.len()).unwrap_or(u32::MAX),
            granted: state.granted,
            deferred: state.deferred,
            tasks: state.places.iter().map(|p| p.0).collect(),
        }
    }
}

impl Desk {
    /// The budget of a tenant; one of which nobody has asked anything yet is what the settings say.
    pub async fn budget(&self, tenant: &str) -> Result<BudgetView, DeskError> {
        let store = self.pipeline.store();
        let now = store.now().await?;
        let head = store.head(budget_id(tenant)).await?;
        let head: Option<Head> = head.filter(|h| h.kind() == Budget::TABLE.kind);
        let state = match head {
            Some(head) => state_of::<Budget>(&head)?,
            None => BudgetState {
                tenant: tenant.to_owned(),
                terms: self.defaults.budget,
                ..BudgetState::default()
            },
        };
        Ok(BudgetView::of(&state, now))
    }

    /// The budgets that tasks have asked, by tenant.
    pub async fn budgets(&self, tenant: Option<&str>) -> Result<Vec<BudgetView>, StoreError> {
        let store = self.pipeline.store();
        let filter = HeadFilter {
            kind: Some(Budget::TABLE.kind.into()),
            tenant: tenant.map(str::to_owned),
            ..HeadFilter::default()
        };
        let now = store.now().await?;
        let heads = store.heads(filter, LIST_MAX).await?;
        let states = heads.iter().map(state_of::<Budget>).collect::<Result<Vec<_>, _>>()?;
        let mut all: Vec<_> = states.iter().map(|s| BudgetView::of(s, now)).collect();
        all.sort_by(|a, b| a.tenant.cmp(&b.tenant));
        Ok(all)
    }

    /// Says what a tenant may. It counts from the next retry on; places that were given stay.
    pub async fn set_budget(
        &self,
        tenant: &str,
        terms: BudgetTerms,
        by: String,
    ) -> Result<BudgetView, DeskError> {
        words(Some(&by), None)?;
        if let Some(problem) = terms.problem() {
            return Err(DeskError::bad("budget", problem, "give numbers within these bounds"));
        }
        let set = BudgetSet { tenant: tenant.to_owned(), terms, by };
        self.change(
            tenant,
            |state| match state {
                Some(s) if s.terms == terms && s.set_by.is_some() => None,
                Some(_) => Some(BudgetEvent::BudgetTermsSet { terms, by: Some(set.by.clone()) }),
                None => None,
            },
            Some(&set),
        )
        .await
    }

    /// From the next retry on it is what the server's settings say.
    pub async fn clear_budget(&self, tenant: &str) -> Result<BudgetView, DeskError> {
        let terms = self.defaults.budget;
        self.change(
            tenant,
            |state| {
                let set = state.is_some_and(|s| s.set_by.is_some());
                set.then_some(BudgetEvent::BudgetTermsSet { terms, by: None })
            },
            None,
        )
        .await
    }

    async fn change(
        &self,
        tenant: &str,
        event: impl Fn(Option<&BudgetState>) -> Option<BudgetEvent>,
        birth: Option<&BudgetSet>,
    ) -> Result<BudgetView, DeskError> {
        let id = budget_id(tenant);
        let body = birth.map(Body::json);
        amend::<Budget, DeskError>(&self.pipeline, id, tenant, |state, cx| match (state, &body) {
            (None, Some(body)) => Budget::decide(None, &Input::Create(body), cx)
                .map_err(|e| DeskError::Store(StoreError::Refused(e.to_string()))),
            _ => Ok(event(state).map_or_else(Decision::default, Decision::event)),
        })
        .await?;
        self.budget(tenant).await
    }
}
