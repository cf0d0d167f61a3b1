//! How a collector is, for whoever asks.

use crate::probes::Said;
use serde_json::json;
use tenure_pods::collect::CollectorState;

/// What it answers at /readyz and /metrics.
pub fn said((state, numbers): (CollectorState, String)) -> Said {
    let sinks: Vec<_> = state
        .sinks
        .iter()
        .map(|s| json!({ "sink": s.id.name(), "up": s.trouble.is_none(), "trouble": s.trouble }))
        .collect();
    let how = json!({
        "ready": state.ready,
        "why_not": state.not_ready,
        "degraded": state.degraded,
        "synced": state.synced,
        "active": state.active,
        "pods": state.pods,
        "watch_age_seconds": state.watch_age.map(|a| a.as_secs_f64()),
        "api_server": { "trouble": state.trouble },
        "spool": { "depth": state.spool.depth, "bytes": state.spool.bytes, "full": state.spool.full,
            "age_seconds": state.spool_age.as_secs_f64() },
        "sinks": sinks,
    });
    Said { ready: state.ready, how, numbers }
}
