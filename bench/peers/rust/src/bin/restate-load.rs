//! Load on a Restate ingress: one keep-alive HTTP/1.1 connection per client, one request-response call at a time. The
//! answer comes when the invocation is completed.
//!
//! A program of its own and not a general tool, so that the answer can be looked at (its value is the number of steps)
//! and so that the client costs next to nothing: it shares two cores with what is measured.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, client::conn::http1::SendRequest};
use hyper_util::rt::TokioIo;
use std::sync::Arc;
use tenure_bench_peers::{Load, give_up};
use tokio::{net::TcpStream, sync::Mutex};

async fn connect(address: &str) -> Result<SendRequest<Full<Bytes>>, String> {
    let stream = TcpStream::connect(address).await.map_err(|e| format!("{address}: {e}"))?;
    stream.set_nodelay(true).map_err(|e| e.to_string())?;
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|e| e.to_string())?;
    tokio::spawn(connection);
    Ok(sender)
}

#[tokio::main]
async fn main() {
    let load = Load::from_args();
    let address: Arc<str> = load.text("--ingress").unwrap_or_else(|| give_up("--ingress HOST:PORT is missing")).into();
    let mut connections = Vec::new();
    for _ in 0..load.concurrency {
        // Each is used by its client alone: the lock is never waited for.
        connections.push(Mutex::new(connect(&address).await.unwrap_or_else(|e| give_up(&e))));
    }
    let connections = Arc::new(connections);
    let steps = load.steps.to_string();
    let figures = load
        .run(move |client, _| {
            let (connections, address, steps) = (connections.clone(), address.clone(), steps.clone());
            async move {
                let request = Request::post("/Bench/work")
                    .header("host", &*address)
                    .header("content-type", "application/json")
                    .body(Full::new(Bytes::from(steps.clone())))
                    .map_err(|e| e.to_string())?;
                let mut connection = connections[client].lock().await;
                connection.ready().await.map_err(|e| e.to_string())?;
                let answer = connection.send_request(request).await.map_err(|e| e.to_string())?;
                let status = answer.status();
                let body = answer.into_body().collect().await.map_err(|e| e.to_string())?.to_bytes();
                match status.is_success() && body == steps.as_bytes() {
                    true => Ok(()),
                    false => Err(format!("the ingress answered {status}: {}", String::from_utf8_lossy(&body))),
                }
            }
        })
        .await;
    // The runner asks the server itself, through its SQL interface, how many it has completed.
    load.print(&figures, None);
}
