//! The server: hyper, one task that accepts, one per connection; all of them end when it is dropped.

use super::{
    Script,
    reply::{Breaks, Reply},
    strict,
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    Request, Response,
    body::{Frame, Incoming},
    header::{CONTENT_TYPE, HeaderName, HeaderValue},
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::{net::TcpListener, sync::watch, task::JoinSet};

/// A request as it came.
#[derive(Clone, PartialEq, Debug)]
pub struct Seen {
    /// Where to.
    pub path: String,
    /// Its headers.
    pub headers: BTreeMap<String, String>,
    /// Its body; null if it was no JSON.
    pub body: Value,
}

/// A running server.
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// Aborts what runs when it is dropped.
    _tasks: JoinSet<()>,
}

struct Shared {
    script: Mutex<Script>,
    seen: Mutex<Vec<Seen>>,
    count: watch::Sender<usize>,
}

type Body = UnsyncBoxBody<Bytes, io::Error>;

impl Server {
    /// Listens on a free port of the loopback. Has to be called inside of a Tokio runtime.
    pub async fn start(script: Script) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            script: Mutex::new(script),
            seen: Mutex::default(),
            count: watch::Sender::new(0),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, shared.clone()));
        Ok(Server { address, shared, _tasks: tasks })
    }

    /// For [`LlmOptions::base_url`](crate::LlmOptions).
    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Everything that was asked, in order.
    pub fn requests(&self) -> Vec<Seen> {
        lock(&self.shared.seen).clone()
    }

    /// Returns when so many requests have come.
    pub async fn seen(&self, count: usize) {
        // The sender is ours: waiting can not fail while we wait.
        let _ = self.shared.count.subscribe().wait_for(|n| *n >= count).await;
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    // An error of accepting is one of a single connection, or of the system; tests see that nobody answers.
    while let Ok((socket, _)) = listener.accept().await {
        let shared = shared.clone();
        connections.spawn(async move {
            let answer = service_fn(|request| answer(&shared, request));
            // An error is a client that left, or a reply that is meant to break.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(socket), answer)
                .await;
        });
        while connections.try_join_next().is_some() {}
    }
}

/// An error closes the connection without an answer.
async fn answer(shared: &Shared, request: Request<Incoming>) -> io::Result<Response<Body>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let wrong = strict::violations(&body);
    let reply = match wrong.is_empty() {
        true => lock(&shared.script).next(&body),
        false => Reply::status(400, &format!("invalid request: {}", wrong.join("; "))),
    };
    let nth = {
        let mut seen = lock(&shared.seen);
        let text = |v: &HeaderValue| String::from_utf8_lossy(v.as_bytes()).into_owned();
        let headers = head.headers.iter().map(|(n, v)| (n.to_string(), text(v))).collect();
        seen.push(Seen { path: head.uri.path().to_owned(), headers, body: body.clone() });
        seen.len()
    };
    shared.count.send_replace(nth);
    if reply.held_after == 0 {
        wait(&reply).await;
    }
    if reply.breaks == Some(Breaks::BeforeAnswer) {
        return Err(io::Error::other("the script says so"));
    }
    let streams = body["stream"] == true && reply.is_completion();
    let kind = if streams { "text/event-stream" } else { "application/json" };
    let pieces = if streams {
        reply.pieces(&body, nth).into_iter().map(Bytes::from).collect()
    } else {
        // In two, so that there is a middle.
        let mut whole = Bytes::from(reply.whole(&body, nth));
        let half = whole.split_to(whole.len() / 2);
        vec![half, whole]
    };
    let mut response = Response::new(paced(reply.clone(), pieces));
    *response.status_mut() = reply.status.try_into().map_err(io::Error::other)?;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    for (name, value) in &reply.headers {
        let name: HeaderName = name.parse().map_err(io::Error::other)?;
        response.headers_mut().insert(name, value.parse().map_err(io::Error::other)?);
    }
    Ok(response)
}

/// The body, at the script's pace and to the script's end.
fn paced(reply: Reply, pieces: Vec<Bytes>) -> Body {
    let middle = pieces.len() / 2;
    let frames = stream::iter(pieces.into_iter().enumerate()).then(move |(nth, piece)| {
        let reply = reply.clone();
        async move {
            if reply.held_after > 0 && nth == reply.held_after {
                wait(&reply).await;
            }
            if reply.breaks == Some(Breaks::Midway) && nth == middle.max(1) {
                return Err(io::Error::other("the script says so"));
            }
            Ok(Frame::data(piece))
        }
    });
    BodyExt::boxed_unsync(StreamBody::new(frames))
}

async fn wait(reply: &Reply) {
    if !reply.delay.is_zero() {
        tokio::time::sleep(reply.delay).await;
    }
    if let Some(gate) = &reply.gate {
        gate.passed().await;
    }
}

/// Nothing in here panics while it holds a lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
