//! What a cluster asks a process of ours that serves nothing else: whether it lives, whether it is ready, and its numbers.

use crate::{commands::Failure, config::Settings};
use axum::{
    Router,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use serde_json::Value;
use std::{net::SocketAddr, sync::Arc};
use tokio::net::TcpListener;

/// What a process says when it is asked.
pub(crate) struct Said {
    /// Whether it can do its work.
    pub ready: bool,
    /// How it is, for people: why it is not ready, above all.
    pub how: Value,
    /// Its numbers, in the words of Prometheus.
    pub numbers: String,
}

type Look = Arc<dyn Fn() -> Said + Send + Sync>;

/// Listens at the address of a setting.
pub(crate) async fn listen(
    settings: &Settings,
    key: &str,
) -> Result<(TcpListener, SocketAddr), Failure> {
    let address = settings.text(key);
    let listener = TcpListener::bind(address).await.map_err(|e| {
        Failure::System(format!(
            "{key} = {address:?} can not be listened at: {e}; name another address with --listen, with port 0 for any"
        ))
    })?;
    let address = listener.local_addr().map_err(Failure::from)?;
    Ok((listener, address))
}

/// Answers for as long as the process lives.
pub(crate) async fn serve(listener: TcpListener, look: impl Fn() -> Said + Send + Sync + 'static) {
    let look: Look = Arc::new(look);
    let (ready, metrics) = (look.clone(), look);
    let router = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(move || async move { readiness(ready()) }))
        .route("/metrics", get(move || async move { numbers(metrics().numbers) }));
    if let Err(e) = axum::serve(listener, router).await {
        tracing::error!(error = %e, "probes are not answered any more");
    }
}

fn readiness(said: Said) -> Response {
    let code = if said.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, axum::Json(said.how)).into_response()
}

fn numbers(text: String) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}
