//! Sending a request so that it is known whether it left.
//!
//! A failed request is one of two things. Before there is a connection (name, TCP, TLS), the target has
//! seen nothing of it: not applied. From the moment there is one, any byte may have arrived: unknown. The line
//! between the two is drawn where the connector hands the connection over, which is a little early (the
//! first byte has not left yet) and therefore on the safe side.
//!
//! - **The mark.** A layer around reqwest's connector sets a flag when it has a connection. The client is shared
//!   by all calls; the flag belongs to one call and reaches the layer as a task-local, because the connector is
//!   polled in the task that sends. An error counts as "nothing left" only if the flag is down *and* reqwest calls it a
//!   connect error, so that a reqwest which one day connects in another task makes us too careful, not wrong.
//! - **No pool.** On a kept-alive connection the server may be closing while we write, and the error does not tell
//!   whether it read us. A connection of its own for each call costs a handshake, and makes the mark true.
//! - **No retries inside.** The engine counts calls; a client that sends twice by itself would hide one.
//! - **No redirects inside.** See `http::redirect`.
//! - **Addresses that a tenant chooses are checked** where the connection is made. See `egress`.

use crate::egress::{Egress, GUARD, Guard, GuardedResolver};
use bytes::Bytes;
use reqwest::{Client, ClientBuilder, Proxy, Request, Response, Url};
use std::{
    error::Error,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};
use tenure_steps::tool::{ToolCtx, ToolError};
use tokio::time::Instant;
use tower_layer::Layer;
use tower_service::Service;

/// How long a call of this timeout is waited for: a little less, so that what the tool knows is said before
/// its caller has to assume the worst.
pub(crate) fn patience(timeout: Duration) -> Duration {
    timeout.saturating_sub((timeout / 10).min(Duration::from_millis(500)))
}

/// A client for addresses of the operator's settings. Its requests are marked when they may have left.
pub(crate) fn operator_client(system_proxy: bool) -> Result<Client, ToolError> {
    let builder = builder();
    built(if system_proxy { builder } else { builder.no_proxy() })
}

/// A client for addresses that a tenant chooses: [`Flight::guarded`] requests alone can be sent with it.
pub(crate) fn tenant_client(egress: &Egress) -> Result<Client, ToolError> {
    let mut builder = builder().no_proxy().dns_resolver(Arc::new(GuardedResolver));
    if let Some(proxy) = egress.proxy() {
        let proxy = Proxy::all(proxy.clone()).map_err(|e| cannot_be_set_up(&e))?;
        builder = builder.proxy(proxy);
    }
    built(builder)
}

fn builder() -> ClientBuilder {
    Client::builder()
        .user_agent(concat!("tenure/", env!("CARGO_PKG_VERSION")))
        .pool_max_idle_per_host(0)
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .connector_layer(MarkLayer)
}

fn built(builder: ClientBuilder) -> Result<Client, ToolError> {
    builder.build().map_err(|e| cannot_be_set_up(&e))
}

fn cannot_be_set_up(e: &reqwest::Error) -> ToolError {
    ToolError::Permanent(format!("the HTTP client cannot be set up: {}", chain(e)))
}

/// One call on its way: its deadline, its stop, and whether anything has left.
pub(crate) struct Flight<'a> {
    ctx: &'a ToolCtx,
    until: Instant,
    left: Arc<AtomicBool>,
    /// Names the request in errors; holds nothing secret.
    what: String,
    /// Checks the addresses, where a tenant chose them.
    guard: Option<Guard>,
}

impl<'a> Flight<'a> {
    /// Starts now.
    pub(crate) fn new(ctx: &'a ToolCtx, what: String) -> Self {
        let until = Instant::now() + patience(ctx.timeout);
        Flight { ctx, until, left: Arc::new(AtomicBool::new(false)), what, guard: None }
    }

    /// Checks every address that is connected to.
    pub(crate) fn guarded(self, egress: &Egress) -> Self {
        Flight { guard: Some(egress.guard(&self.ctx.tenant)), ..self }
    }

    /// Sends, and returns when status and headers are there.
    pub(crate) async fn send(&self, client: &Client, r: Request) -> Result<Response, ToolError> {
        let not_allowed = |why| ToolError::Permanent(format!("{}: {why}", self.what));
        let port = r.url().port_or_known_default().unwrap_or_default();
        if let Some(guard) = &self.guard {
            guard.check_url(r.url()).map_err(not_allowed)?;
        }
        let sent = LEFT.scope(self.left.clone(), client.execute(r));
        let answered = match &self.guard {
            None => self.in_time("waiting for an answer", sent).await?,
            Some(guard) => {
                let sent = GUARD.scope((guard.clone(), port), sent);
                let answered = self.in_time("waiting for an answer", sent).await?;
                if answered.is_err()
                    && let Some(why) = guard.take_refusal()
                {
                    return Err(not_allowed(why));
                }
                answered
            }
        };
        match answered {
            Ok(response) => {
                // Whatever the mark says: who has answered has seen it.
                self.left.store(true, Ordering::Relaxed);
                Ok(response)
            }
            Err(e) if e.is_builder() => Err(ToolError::Permanent(format!(
                "{} can not be sent: {}",
                self.what,
                chain(&e.without_url())
            ))),
            Err(e) if e.is_connect() && !self.left() => Err(ToolError::Retryable(format!(
                "{}: no connection, nothing was sent: {}",
                self.what,
                chain(&e.without_url())
            ))),
            Err(e) => Err(self.broke("before an answer came", &e.without_url())),
        }
    }

    /// The next piece of the answer.
    pub(crate) async fn chunk(&self, from: &mut Response) -> Result<Option<Bytes>, ToolError> {
        self.in_time("reading the answer", from.chunk())
            .await?
            .map_err(|e| self.broke("while the answer was read", &e.without_url()))
    }

    /// The answer's body up to a limit, and whether there was more.
    pub(crate) async fn body(
        &self,
        from: &mut Response,
        bytes_max: usize,
    ) -> Result<(Vec<u8>, bool), ToolError> {
        let mut body = Vec::new();
        while let Some(piece) = self.chunk(from).await? {
            let room = bytes_max - body.len();
            if piece.len() > room {
                body.extend_from_slice(&piece[..room]);
                return Ok((body, true));
            }
            body.extend_from_slice(&piece);
            self.ctx.progress(format!("{} bytes received", body.len()));
        }
        Ok((body, false))
    }

    fn left(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }

    fn broke(&self, when: &str, e: &reqwest::Error) -> ToolError {
        ToolError::Unknown(format!("{}: the connection broke {when}: {}", self.what, chain(e)))
    }

    /// The future's output, unless the call is stopped or out of time first.
    async fn in_time<T>(
        &self,
        doing: &str,
        future: impl Future<Output = T>,
    ) -> Result<T, ToolError> {
        tokio::select! {
            biased;
            () = self.ctx.cancelled() => Err(if self.left() {
                ToolError::Unknown(format!("{}: stopped on request while {doing}", self.what))
            } else {
                ToolError::Cancelled
            }),
            output = future => Ok(output),
            () = tokio::time::sleep_until(self.until) => {
                let after = patience(self.ctx.timeout);
                Err(if self.left() {
                    ToolError::Unknown(format!("{}: out of time after {after:?}, {doing}", self.what))
                } else {
                    ToolError::Retryable(format!(
                        "{}: no connection within {after:?}, nothing was sent",
                        self.what
                    ))
                })
            }
        }
    }
}

/// An address as errors may show it: neither its user and password nor its query, which often holds a token.
pub(crate) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    // Both fail only for addresses that can not have them.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    url.to_string()
}

/// An error with its causes, which is where reqwest says what happened.
fn chain(e: &dyn Error) -> String {
    let mut text = e.to_string();
    let mut cause = e.source();
    while let Some(e) = cause {
        let inner = e.to_string();
        // Some repeat their cause in their own words.
        if !text.contains(&inner) {
            text = format!("{text}: {inner}");
        }
        cause = e.source();
    }
    text
}

tokio::task_local! {
    /// Goes up when the call of this task has a connection.
    static LEFT: Arc<AtomicBool>;
}

#[derive(Clone)]
struct MarkLayer;

impl<S> Layer<S> for MarkLayer {
    type Service = Mark<S>;

    fn layer(&self, inner: S) -> Mark<S> {
        Mark { inner }
    }
}

#[derive(Clone)]
struct Mark<S> {
    inner: S,
}

impl<S, R> Service<R> for Mark<S>
where
    S: Service<R>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, to: R) -> Self::Future {
        let left = LEFT.try_with(Arc::clone).ok();
        let connecting = self.inner.call(to);
        Box::pin(async move {
            let connection = connecting.await?;
            if let Some(left) = left {
                left.store(true, Ordering::Relaxed);
            }
            Ok(connection)
        })
    }
}
