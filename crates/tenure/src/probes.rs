//! What a cluster asks a process of ours that serves nothing else: whether it lives, whether it is ready, and its numbers.

use crate::{commands::Failure, config::Settings, listening};
use axum::{
    Router,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use serde_json::Value;
use std::sync::Arc;
use tenure_kernel::runtime::Rt;
use tenure_listener::{Connections, Listening};
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

/// A port that is bound and not served yet.
pub(crate) struct Probes {
    listener: TcpListener,
    listening: Listening,
    /// Its address for those who ask.
    pub url: String,
}

/// Listens at the address of a setting.
pub(crate) async fn listen(settings: &Settings, key: &str, rt: Rt) -> Result<Probes, Failure> {
    let tls = listening::tls(settings)?;
    let address = settings.text(key);
    if let Ok(address) = address.parse() {
        listening::check_plain_http(settings, key, address)?;
    }
    let listener = TcpListener::bind(address).await.map_err(|e| {
        Failure::System(format!(
            "{key} = {address:?} can not be listened at: {e}; name another address with --listen, with port 0 for any"
        ))
    })?;
    let address = listener.local_addr().map_err(Failure::from)?;
    crate::service::OWN_LISTENERS.add(address);
    let url = listening::url(address, tls.is_some());
    let connections = Connections::new(listening::limits(settings), rt);
    Ok(Probes { listener, listening: Listening { connections, tls }, url })
}

/// Answers for as long as the process lives.
pub(crate) async fn serve(probes: Probes, look: impl Fn() -> Said + Send + Sync + 'static) {
    let look: Look = Arc::new(look);
    let (ready, metrics) = (look.clone(), look);
    let router = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(move || async move { readiness(ready()) }))
        .route("/metrics", get(move || async move { numbers(metrics().numbers) }));
    tenure_listener::serve(probes.listener, router, probes.listening, std::future::pending()).await;
}

fn readiness(said: Said) -> Response {
    let code = if said.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, axum::Json(said.how)).into_response()
}

fn numbers(text: String) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}
