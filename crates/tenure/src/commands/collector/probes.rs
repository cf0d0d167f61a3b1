//! What a cluster asks a collector: whether it lives, whether it is ready, and its numbers.

use axum::{
    Router,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use serde_json::json;
use std::sync::Arc;
use tenure_pods::collect::CollectorState;
use tokio::net::TcpListener;

type Look = Arc<dyn Fn() -> (CollectorState, String) + Send + Sync>;

/// Answers for as long as the process lives.
pub async fn serve(
    listener: TcpListener,
    look: impl Fn() -> (CollectorState, String) + Send + Sync + 'static,
) {
    let look: Look = Arc::new(look);
    let (ready, metrics) = (look.clone(), look);
    let router = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(move || async move { readiness(&ready().0) }))
        .route("/metrics", get(move || async move { numbers(metrics().1) }));
    if let Err(e) = axum::serve(listener, router).await {
        tracing::error!(error = %e, "probes are not answered any more");
    }
}

fn readiness(state: &CollectorState) -> Response {
    let sinks: Vec<_> = state
        .sinks
        .iter()
        .map(|s| json!({ "sink": s.id.name(), "up": s.trouble.is_none(), "trouble": s.trouble }))
        .collect();
    let body = json!({
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
    let code = if state.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, axum::Json(body)).into_response()
}

fn numbers(text: String) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}
