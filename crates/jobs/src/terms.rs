//! The terms of a job: when and where it may run. A job without any costs nothing more than before.

use serde::{Deserialize, Serialize};
use tenure_kernel::ids::EntityId;

/// When and where a job may run, and who hears of its end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Terms {
    /// It begins no sooner than so long after its creation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_in_ms: Option<u64>,
    /// Of the jobs that name the same gate only so many are open at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gate: Option<GateTerm>,
    /// The named queue it stands in; the flow's own without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// What a worker has to have. Sorted, each once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<String>,
    /// Who is told how it ended, by mail: a schedule, say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tell: Option<EntityId>,
}

/// A gate that a job has to pass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateTerm {
    /// Its name, within the tenant.
    pub name: String,
    /// How many at once, if nobody has said so before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}
