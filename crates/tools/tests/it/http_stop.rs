//! Time and stop requests, in every phase of a request.

use crate::{
    http::{post, tool},
    support::*,
};
use std::time::Duration;
use tenure_steps::tool::ToolError;

/// Long enough to get to the phase on a busy machine; what is tested is what comes after it.
const SHORT: Duration = Duration::from_millis(400);

#[tokio::test]
async fn stopped_before_anything_left_it_is_cancelled() {
    let (tool, call) = (tool(), Call::new());
    call.stop();
    let peer = Peer::new().await;
    assert_eq!(call.of(&tool, post(peer.url("/"))).await, Err(ToolError::Cancelled));
    // In the middle of a TLS handshake.
    let (peer, call) = (Peer::new().await, Call::new());
    let serve = async {
        let mut conn = peer.accept().await;
        call.stop();
        conn.closed().await;
    };
    let url = peer.url("/").replace("http:", "https:");
    let (result, ()) = tokio::join!(call.of(&tool, post(url)), serve);
    assert_eq!(result, Err(ToolError::Cancelled));
}

#[tokio::test]
async fn stopped_after_the_request_left_it_is_unknown() {
    let (tool, peer, call) = (tool(), Peer::new().await, Call::new());
    let serve = async {
        let mut conn = peer.accept().await;
        conn.request().await;
        call.stop();
        conn.closed().await;
    };
    let (result, ()) = tokio::join!(call.of(&tool, post(peer.url("/"))), serve);
    assert!(unknown(result).contains("waiting for an answer"));
    // And while the answer is read.
    let (peer, call) = (Peer::new().await, Call::new());
    let serve = async {
        let mut conn = peer.accept().await;
        conn.request().await;
        conn.say("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf").await;
        call.shows("4 bytes received").await;
        call.stop();
        conn.closed().await;
    };
    let (result, ()) = tokio::join!(call.of(&tool, post(peer.url("/"))), serve);
    assert!(unknown(result).contains("reading the answer"));
}

#[tokio::test]
async fn out_of_time_before_anything_left_it_is_retryable() {
    let (tool, peer, call) = (tool(), Peer::new().await, Call::within(SHORT));
    let serve = async {
        let mut conn = peer.accept().await;
        conn.closed().await;
    };
    let url = peer.url("/").replace("http:", "https:");
    let (result, ()) = tokio::join!(call.of(&tool, post(url)), serve);
    let why = retryable(result);
    assert!(why.contains("nothing was sent"), "{why}");
}

#[tokio::test]
async fn out_of_time_after_the_request_left_it_is_unknown() {
    for said in ["", "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf"] {
        let (tool, peer, call) = (tool(), Peer::new().await, Call::within(SHORT));
        let serve = async {
            let mut conn = peer.accept().await;
            conn.request().await;
            conn.say(said).await;
            conn.closed().await;
        };
        let (result, ()) = tokio::join!(call.of(&tool, post(peer.url("/"))), serve);
        let why = unknown(result);
        assert!(why.contains("out of time"), "{why}");
    }
}

#[tokio::test]
async fn an_error_status_counts_even_if_its_body_never_ends() {
    let (tool, peer, call) = (tool(), Peer::new().await, Call::within(SHORT));
    let serve = async {
        let mut conn = peer.accept().await;
        conn.request().await;
        conn.say("HTTP/1.1 403 Forbidden\r\ncontent-length: 100\r\n\r\nhalf").await;
        conn.closed().await;
    };
    let (result, ()) = tokio::join!(call.of(&tool, post(peer.url("/"))), serve);
    assert!(permanent(result).contains("403"));
}

#[tokio::test]
async fn a_dropped_call_closes_its_connection() {
    let (tool, peer, call) = (tool(), Peer::new().await, Call::new());
    let mut conn = {
        let running = call.of(&tool, post(peer.url("/")));
        let serve = async {
            let mut conn = peer.accept().await;
            conn.request().await;
            conn
        };
        tokio::select! {
            result = running => panic!("nobody has answered: {result:?}"),
            conn = serve => conn,
        }
    };
    conn.closed().await;
}
