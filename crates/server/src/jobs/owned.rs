//! What gates, limits and schedules have in common over HTTP: each is named within a tenant, which a caller whose key has
//! one need not say, and may not say differently.

use super::submit::tenant;
use crate::{Caller, Problem};
use serde::Deserialize;
use utoipa::IntoParams;

/// Whose.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Whose {
    /// The tenant, for callers whose key has none. Of a limit, `*` is the one of all together.
    pub(super) tenant: Option<String>,
}

/// Whose things are listed; `None` for everybody's, which only a caller without a tenant sees.
pub(crate) fn listed(caller: &Caller, wanted: Option<String>) -> Result<Option<String>, Problem> {
    match (&caller.tenant, wanted) {
        (None, None) => Ok(None),
        (_, wanted) => tenant(caller, wanted).map(Some),
    }
}
