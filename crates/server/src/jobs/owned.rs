//! What gates, limits and schedules have in common over HTTP: each is named within a tenant, which a caller whose key has
//! one need not say, and may not say differently.

use super::submit::tenant;
use crate::{Caller, Problem, paging, problem::ApiCode};
use axum::http::StatusCode;
use serde::Deserialize;
use tenure_kernel::ids::EntityId;
use utoipa::IntoParams;

/// Whose.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Whose {
    /// The tenant, for callers whose key has none. Of a limit, `*` is the one of all together, `*/each` the one of each.
    pub(super) tenant: Option<String>,
}

/// A page of what has a name.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Listing {
    /// The tenant, for callers whose key has none.
    pub(super) tenant: Option<String>,
    /// Goes on behind this one: `next` of the page before.
    after: Option<String>,
    /// How many, 1 to 200; 200 without it.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
}

impl Listing {
    /// Where the page begins, and how long it is.
    pub(super) fn page(&self) -> Result<(Option<EntityId>, usize), Problem> {
        let fix = "use next of the page before, exactly as it was given";
        let after = paging::id("after", self.after.as_deref(), fix)?;
        Ok((after, paging::limit(Some(self.limit.unwrap_or(paging::LIMIT_MAX)))?))
    }
}

/// What an operator has set is not a tenant's to change.
pub(super) fn operators(detail: String, field: &str) -> Problem {
    Problem::new(StatusCode::FORBIDDEN, ApiCode::Forbidden, detail)
        .field(field)
        .fix("ask whoever runs the server: it takes a key without a tenant")
}

/// Whose things are listed; `None` for everybody's, which only a caller without a tenant sees.
pub(crate) fn listed(caller: &Caller, wanted: Option<String>) -> Result<Option<String>, Problem> {
    match (&caller.tenant, wanted) {
        (None, None) => Ok(None),
        (_, wanted) => tenant(caller, wanted).map(Some),
    }
}
