//! A small server on the listener, and what is said to it byte by byte.

use axum::{
    Router,
    body::{Body, Bytes},
    extract::Request,
    response::IntoResponse as _,
    routing::{get, post},
};
use futures_util::stream;
use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use tenure_edge::TokioRuntime;
use tenure_kernel::runtime::Runtime as _;
use tenure_listener::{BodyTooSlow, Connection, Connections, Limits, Listening, Tls, serve};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// A server that ends with this value.
pub struct Server {
    pub at: SocketAddr,
    pub connections: Connections,
    /// Requests for `/never` and `/upload` that have reached it.
    pub waiting: Arc<AtomicUsize>,
    stop: watch::Sender<bool>,
    ended: watch::Receiver<bool>,
}

impl Server {
    pub async fn start(limits: Limits, tls: Option<Arc<Tls>>) -> Self {
        let rt = Arc::new(TokioRuntime::current());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let connections = Connections::new(limits, rt.clone());
        let listening = Listening { connections: connections.clone(), tls };
        let waiting = Arc::new(AtomicUsize::new(0));
        let routes = routes(waiting.clone());
        let (stop, mut asked) = watch::channel(false);
        let (end, ended) = watch::channel(false);
        rt.spawn(Box::pin(async move {
            let stop = async { drop(asked.wait_for(|stop| *stop).await) };
            serve(listener, routes, listening, stop).await;
            end.send_replace(true);
        }));
        Server { at, connections, waiting, stop, ended }
    }

    /// Asks it to stop, and waits until it has.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        self.ended.wait_for(|ended| *ended).await.unwrap();
    }

    /// A connection that says this.
    pub async fn say(&self, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.at).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }

    /// The status of a path, on a connection of its own.
    pub async fn status(&self, path: &str) -> u16 {
        let text = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        let answer = rest(self.say(&text).await).await;
        answer.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0)
    }
}

/// Everything until the other side closes. A reset is an end, too.
pub async fn rest(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut piece = [0; 4_096];
    while let Ok(read) = stream.read(&mut piece).await
        && read > 0
    {
        bytes.extend_from_slice(&piece[..read]);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn routes(waiting: Arc<AtomicUsize>) -> Router {
    let (begun, held) = (waiting.clone(), waiting.clone());
    let upload = move |body: Body| {
        begun.fetch_add(1, SeqCst);
        upload(body)
    };
    let never = move || async move {
        waiting.fetch_add(1, SeqCst);
        std::future::pending::<&str>().await
    };
    let key = |request: Request| async move {
        let tenant = request.uri().query().map(str::to_owned);
        let connection = request.extensions().get::<Arc<Connection>>().unwrap();
        if connection.authenticated(tenant.as_deref()) { "known" } else { "full" }
    };
    // A caller of the tenant in the query, who is served for ever.
    let hold = move |request: Request| async move {
        let tenant = request.uri().query().map(str::to_owned);
        let connection = request.extensions().get::<Arc<Connection>>().unwrap();
        assert!(connection.authenticated(tenant.as_deref()));
        held.fetch_add(1, SeqCst);
        std::future::pending::<&str>().await
    };
    // Bytes of zeros for ever, one piece at a time: as much as the peer takes.
    let flood = || async {
        let zeros = stream::repeat_with(|| Ok::<_, io::Error>(Bytes::from_static(&[b'0'; 65_536])));
        Body::from_stream(zeros)
    };
    Router::new()
        .route("/health", get(|| async { "fine" }))
        .route("/key", get(key))
        .route("/never", get(never))
        .route("/hold", get(hold))
        .route("/flood", get(flood))
        .route("/upload", post(upload))
}

async fn upload(body: Body) -> axum::response::Response {
    match axum::body::to_bytes(body, usize::MAX).await {
        Ok(bytes) => format!("{} bytes", bytes.len()).into_response(),
        Err(e) => {
            let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&e);
            while let Some(inner) = cause {
                if let Some(slow) = inner.downcast_ref::<BodyTooSlow>() {
                    let status = axum::http::StatusCode::REQUEST_TIMEOUT;
                    return (status, format!("{} came", slow.received)).into_response();
                }
                cause = inner.source();
            }
            (axum::http::StatusCode::BAD_REQUEST, e.to_string()).into_response()
        }
    }
}

/// Timeouts that a test can wait for.
pub fn impatient() -> Limits {
    let short = Duration::from_millis(200);
    Limits { header: short, body: short, idle: short, ..Limits::default() }
}
