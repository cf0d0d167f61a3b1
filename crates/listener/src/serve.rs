//! The loop that accepts, and the task of each connection.

use crate::{
    body::{AnswerBody, RequestBody},
    connections::{Connection, Connections, Losses},
    limits::Stage,
    stream::{Transport, Watched},
    tls::Tls,
};
use axum::{
    Router,
    extract::ConnectInfo,
    http::{HeaderValue, Request, Response, header},
};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use std::{
    convert::Infallible,
    io::{self, ErrorKind, Read as _, Write as _},
    net::SocketAddr,
    pin::pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};
use tenure_kernel::runtime::{First, Rt, first};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tower_service::Service as _;

/// The largest head of a request, and the buffer of a connection.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// The pause after an error of `accept` that is not about one connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often refused connections and errors of `accept` are logged at most.
const LOG_EVERY: Duration = Duration::from_secs(10);
/// For how long a browser uses nothing but TLS after it has seen this server: a year.
const STRICT_TRANSPORT: HeaderValue = HeaderValue::from_static("max-age=31536000");
/// The first byte of a TLS handshake.
const HANDSHAKE: u8 = 0x16;

/// How to listen.
#[derive(Clone, Debug)]
pub struct Listening {
    /// The connections of the process, and what is permitted.
    pub connections: Connections,
    /// Encrypts; without it HTTP is plain.
    pub tls: Option<Arc<Tls>>,
}

/// Answers with `routes` until `stop` is ready. Then it accepts nothing more, and returns when every request has ended. The
/// peer's address is in each request as `ConnectInfo<SocketAddr>`, the connection as `Arc<Connection>`.
pub async fn serve(
    listener: TcpListener,
    routes: Router,
    listening: Listening,
    stop: impl Future<Output = ()>,
) {
    run(listener, routes, listening, stop).await;
}

/// What connections come from: a socket, or a test.
trait Accept: Send {
    fn accept(&mut self) -> impl Future<Output = io::Result<(TcpStream, SocketAddr)>> + Send;
}

impl Accept for TcpListener {
    async fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        TcpListener::accept(self).await
    }
}

async fn run(
    mut listener: impl Accept,
    routes: Router,
    listening: Listening,
    stop: impl Future<Output = ()>,
) {
    let rt = listening.connections.rt().clone();
    // Connections hold receivers: they hear that the server stops, and the sender hears when the last of them has ended.
    let (closing, open) = watch::channel(false);
    rt.spawn(Box::pin(look_after(listening.clone(), open.clone())));
    let mut errors = AcceptErrors::default();
    let mut stop = pin!(stop);
    let accepting = async {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => take(stream, peer, &routes, &listening, &open),
                Err(e) if is_of_one_connection(&e) => {
                    tracing::debug!(error = %e, "a connection was gone before it was accepted");
                }
                Err(e) => {
                    listening.connections.counters().accept_errors.fetch_add(1, Relaxed);
                    let room = listening.connections.make_room();
                    errors.log(&e, room, &rt);
                    rt.sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    // The loop has no end of its own.
    let _: First<Infallible, ()> = first(accepting, stop.as_mut()).await;
    closing.send_replace(true);
    drop(open);
    closing.closed().await;
}

/// Returns when the server stops.
async fn asked(open: &mut watch::Receiver<bool>) {
    // An error means that the server has ended, which is the same.
    let _ = open.wait_for(|closing| *closing).await;
}

/// Whether an error of `accept` says nothing about the next connection.
fn is_of_one_connection(e: &io::Error) -> bool {
    let kinds = [
        ErrorKind::ConnectionRefused,
        ErrorKind::ConnectionAborted,
        ErrorKind::ConnectionReset,
        ErrorKind::Interrupted,
    ];
    kinds.contains(&e.kind())
}

#[derive(Default)]
struct AcceptErrors {
    logged: Option<Duration>,
    since: u64,
}

impl AcceptErrors {
    fn log(&mut self, e: &io::Error, room: bool, rt: &Rt) {
        self.since += 1;
        let now = rt.mono();
        if self.logged.is_some_and(|at| now.saturating_sub(at) < LOG_EVERY) {
            return;
        }
        let (errors, closed_one) = (self.since, room);
        tracing::error!(error = %e, errors, closed_one, "connections cannot be accepted; if the files are used up, raise the file limit (ulimit -n) or lower server.connections_max");
        (self.logged, self.since) = (Some(now), 0);
    }
}

fn take(
    stream: TcpStream,
    peer: SocketAddr,
    routes: &Router,
    listening: &Listening,
    open: &watch::Receiver<bool>,
) {
    let all = &listening.connections;
    let Some(connection) = all.admit(peer, listening.tls.is_some()) else {
        if listening.tls.is_none() {
            let _ = say_plainly(
                stream,
                "503 Service Unavailable\r\nRetry-After: 5",
                "too many connections",
            );
        }
        return;
    };
    let leaves = Leaves(connection.clone(), all.clone());
    let (routes, listening, open) = (routes.clone(), listening.clone(), open.clone());
    all.rt().spawn(Box::pin(async move {
        let serving = serve_one(stream, &connection, routes, &listening, open);
        first(serving, connection.end.notified()).await;
        drop(leaves);
    }));
}

/// Takes a connection out of the list when its task ends, however it ends.
struct Leaves(Arc<Connection>, Connections);

impl Drop for Leaves {
    fn drop(&mut self) {
        self.1.remove(&self.0);
    }
}

/// Answers a peer without waiting for it. What it sent is read first: it would not read an answer to unread bytes.
fn say_plainly(stream: TcpStream, status: &str, text: &str) -> io::Result<()> {
    let mut stream = stream.into_std()?;
    let _ = stream.read(&mut [0; 16 * 1024]);
    let length = text.len() + 1;
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}\n"
    );
    stream.write(answer.as_bytes()).map(|_| ())
}

async fn serve_one(
    stream: TcpStream,
    connection: &Arc<Connection>,
    routes: Router,
    listening: &Listening,
    mut open: watch::Receiver<bool>,
) {
    // Small answers: waiting for more to send with them costs 40 ms each.
    let _ = stream.set_nodelay(true);
    let transport = match &listening.tls {
        None => Transport::Plain(stream),
        Some(tls) => match first(handshake(stream, tls), asked(&mut open)).await {
            First::Left(Ok(transport)) => transport,
            First::Left(Err(e)) => {
                listening.connections.counters().handshake_errors.fetch_add(1, Relaxed);
                tracing::debug!(peer = %connection.peer(), error = %e, "no TLS connection");
                return;
            }
            First::Right(()) => return,
        },
    };
    let io = TokioIo::new(Watched { transport, connection: connection.clone() });
    let all = &listening.connections;
    let service = service_fn(move |request: Request<Incoming>| {
        answer(request, routes.clone(), connection.clone(), all.clone())
    });
    let mut http = http1::Builder::new();
    http.max_buf_size(HEAD_BYTES_MAX);
    let mut serving = pin!(http.serve_connection(io, service));
    let ended = match first(serving.as_mut(), asked(&mut open)).await {
        First::Left(ended) => ended,
        // Nothing was asked on it: it would be waited for until the head's deadline.
        First::Right(()) if connection.stage() == Stage::Fresh => return,
        First::Right(()) => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(e) = ended {
        tracing::debug!(peer = %connection.peer(), error = %e, "a connection ended early");
    }
}

async fn handshake(stream: TcpStream, tls: &Tls) -> io::Result<Transport> {
    let mut beginning = [0; 1];
    if stream.peek(&mut beginning).await? == 1 && beginning[0] != HANDSHAKE {
        let text = "this port speaks TLS: begin the address with https://";
        say_plainly(stream, "400 Bad Request", text)?;
        return Err(io::Error::other("the peer speaks plain HTTP to a port that speaks HTTPS"));
    }
    Ok(Transport::Tls(Box::new(tls.acceptor().accept(stream).await?)))
}

async fn answer(
    request: Request<Incoming>,
    mut routes: Router,
    connection: Arc<Connection>,
    all: Connections,
) -> Result<Response<AnswerBody>, Infallible> {
    connection.enter(Stage::Serving);
    let tls = connection.is_tls();
    let mut request =
        request.map(|body| axum::body::Body::new(RequestBody::new(body, connection.clone(), all)));
    request.extensions_mut().insert(ConnectInfo(connection.peer()));
    request.extensions_mut().insert(connection.clone());
    let mut response = routes.call(request).await?;
    if tls {
        response.headers_mut().insert(header::STRICT_TRANSPORT_SECURITY, STRICT_TRANSPORT);
    }
    // A body that the handler left unread is not waited for by the server any more.
    connection.enter(Stage::Serving);
    Ok(response.map(|inner| AnswerBody { inner, connection }))
}

/// Closes connections that are overdue, reads certificates again, and logs what was refused, until the server has stopped.
async fn look_after(listening: Listening, open: watch::Receiver<bool>) {
    let all = &listening.connections;
    let (mut read_at, mut logged_at) = (all.rt().mono(), None);
    let mut logged = Losses::default();
    // Given up as soon as the server stops: it waits until nobody has one.
    let mut open = Some(open);
    loop {
        let pause = all.rt().sleep(all.limits().sweep_every());
        match &mut open {
            Some(receiver) => {
                if let First::Left(()) = first(asked(receiver), pause).await {
                    open = None;
                }
            }
            None => {
                // Requests that still run may be left by their peers.
                pause.await;
                if all.count() == 0 {
                    return;
                }
            }
        }
        all.sweep();
        let now = all.rt().mono();
        if let Some(tls) = &listening.tls
            && now.saturating_sub(read_at) >= tls.reload_every()
        {
            tls.refresh();
            read_at = now;
        }
        let losses = all.losses();
        let quiet = logged_at.is_none_or(|at| now.saturating_sub(at) >= LOG_EVERY);
        if losses != logged && quiet {
            let (connections, limits) = (all.count(), all.limits());
            tracing::warn!(
                refused = losses.refused - logged.refused,
                replaced = losses.replaced - logged.replaced,
                timed_out = losses.timed_out - logged.timed_out,
                connections,
                most = limits.connections_max,
                most_per_address = limits.per_address_max,
                most_unauthenticated = limits.unauthenticated_max,
                "connections were closed by a limit or a timeout"
            );
            (logged, logged_at) = (losses, Some(now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Limits;
    use axum::routing::get;
    use tenure_edge::TokioRuntime;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[test]
    fn only_errors_of_one_connection_are_passed_over_without_a_pause() {
        let (emfile, enfile, enomem) = (24, 23, 12);
        for code in [emfile, enfile, enomem] {
            assert!(!is_of_one_connection(&io::Error::from_raw_os_error(code)), "{code}");
        }
        assert!(is_of_one_connection(&ErrorKind::ConnectionAborted.into()));
    }

    struct Faulty {
        listener: TcpListener,
        calls: u32,
    }

    impl Accept for Faulty {
        async fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
            self.calls += 1;
            match self.calls {
                // With one connection open.
                2 | 3 => Err(io::Error::from_raw_os_error(24)),
                _ => self.listener.accept().await,
            }
        }
    }

    /// Without file descriptors the listener closes a connection that waits, pauses, and goes on.
    #[tokio::test]
    async fn errors_of_accept_are_survived_and_make_room() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let all = Connections::new(Limits::default(), Arc::new(TokioRuntime::current()));
        let listening = Listening { connections: all.clone(), tls: None };
        let routes = Router::new().route("/", get(|| async { "fine" }));
        let asking = async {
            let mut silent = TcpStream::connect(at).await.unwrap();
            assert_eq!(silent.read(&mut [0; 1]).await.unwrap(), 0, "it makes room");
            let mut asks = TcpStream::connect(at).await.unwrap();
            asks.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
                .await
                .unwrap();
            let mut text = String::new();
            asks.read_to_string(&mut text).await.unwrap();
            assert!(text.ends_with("fine"), "{text}");
        };
        run(Faulty { listener, calls: 0 }, routes, listening, asking).await;
        assert_eq!(all.counters().accept_errors.load(Relaxed), 2);
        assert!(all.numbers().contains("tenure_accept_errors_total 2"), "{}", all.numbers());
    }
}
