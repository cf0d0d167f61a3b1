//! Peers that do not speak, do not end, do not listen, or are too many.

use crate::support::{Server, impatient, rest};
use futures_util::future::join;
use std::{sync::atomic::Ordering::SeqCst, time::Duration};
use tenure_listener::Limits;
use tenure_proving::patience;
use tokio::{io::AsyncWriteExt as _, net::TcpStream};

const HOUR: Duration = Duration::from_secs(3_600);

/// Every timeout but those that a test is about.
fn patient() -> Limits {
    Limits { header: HOUR, body: HOUR, idle: HOUR, ..Limits::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_head_and_silence_are_closed() {
    let server = Server::start(Limits { idle: HOUR, ..impatient() }, None).await;
    let silent = server.say("").await;
    let half = server.say("GET /health HTTP/1.1\r\nhost: x\r\nx-a: ").await;
    assert_eq!((rest(silent).await, rest(half).await), (String::new(), String::new()));
    // The head of a second request has the same deadline, from its first byte on.
    let mut second = server.say("GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await;
    second.readable().await.unwrap();
    second.write_all(b"GET /hea").await.unwrap();
    assert!(rest(second).await.starts_with("HTTP/1.1 200"));
    assert_eq!(server.connections.count(), 0);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_that_drips_is_closed() {
    let server = Server::start(Limits { idle: HOUR, ..impatient() }, None).await;
    let mut drips = server.say("GET /health HTTP/1.1\r\nhost: x\r\n").await;
    patience::until("the server closes it", async || drips.write_all(b"x").await.is_err()).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_connection_is_closed_and_one_that_is_served_is_not() {
    let server = Server::start(Limits { header: HOUR, ..impatient() }, None).await;
    let waits = server.say("GET /never HTTP/1.1\r\nhost: x\r\n\r\n").await;
    let idle = server.say("GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(rest(idle).await.ends_with("fine"), "an answer, and then its end");
    // The first is older than the second, which is closed already.
    assert_eq!(server.connections.count(), 1);
    drop(waits);
    patience::until("its peer has left", async || server.connections.count() == 0).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_body_is_answered_408_and_a_slow_one_is_taken() {
    let server =
        Server::start(Limits { body: Duration::from_millis(200), ..patient() }, None).await;
    let head = "POST /upload HTTP/1.1\r\nhost: x\r\ncontent-length: 2000000\r\n\r\n";
    let answer = rest(server.say(&format!("{head}123")).await).await;
    assert!(answer.starts_with("HTTP/1.1 408") && answer.ends_with("3 came"), "{answer}");
    // It takes longer than the timeout, and brings much more than 512 bytes a second.
    let mut slow = server.say(&format!("{head}{}", "x".repeat(100_000))).await;
    for _ in 0..19 {
        slow.write_all(&[b'x'; 100_000]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut answer = vec![0; 12];
    tokio::io::AsyncReadExt::read_exact(&mut slow, &mut answer).await.unwrap();
    assert_eq!(answer, b"HTTP/1.1 200");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_does_not_read_is_closed() {
    let server = Server::start(Limits { header: HOUR, ..impatient() }, None).await;
    let _deaf = server.say("GET /flood HTTP/1.1\r\nhost: x\r\n\r\n").await;
    patience::until("it is served", async || server.connections.count() == 1).await;
    patience::until("it is closed", async || server.connections.count() == 0).await;
    assert!(server.connections.numbers().contains("{reason=\"not_read\"} 1"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_give_way_to_new_connections_and_callers_do_not() {
    let limits = Limits { unauthenticated_max: 4, ..patient() };
    let server = Server::start(limits, None).await;
    let mut callers = Vec::new();
    for _ in 0..8 {
        let caller = server.say("GET /key HTTP/1.1\r\nhost: x\r\n\r\n").await;
        caller.readable().await.unwrap();
        callers.push(caller);
    }
    let mut attack: Vec<TcpStream> = Vec::new();
    for i in 0..100 {
        let head =
            ["", "GET /hea", "POST /upload HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n"];
        attack.push(server.say(head[i % 3]).await);
        assert_eq!(server.status("/health").await, 200, "after {i}");
    }
    assert!(server.connections.count() <= 8 + 4 + 1);
    for mut caller in callers {
        caller
            .write_all(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            .await
            .unwrap();
        let said = rest(caller).await;
        assert!(said.contains("known") && said.ends_with("fine"), "{said}");
    }
    drop(attack);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_who_is_served_gives_way() {
    let limits = Limits { per_address_max: 3, ..patient() };
    let server = Server::start(limits, None).await;
    let mut served = Vec::new();
    for n in 1..=3 {
        served.push(server.say("GET /never HTTP/1.1\r\nhost: x\r\n\r\n").await);
        // What is not served yet would give way.
        patience::until("it is served", async || server.waiting.load(SeqCst) == n).await;
    }
    patience::until("no room", async || server.status("/health").await == 503).await;
    drop(served.pop());
    patience::until("room", async || server.status("/health").await == 200).await;
    assert_eq!(server.connections.count(), 2);
    drop(served);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stops_lets_requests_end_and_closes_the_rest() {
    let server = Server::start(patient(), None).await;
    let idle = server.say("GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await;
    let mut upload =
        server.say("POST /upload HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n12").await;
    idle.readable().await.unwrap();
    // What has not begun to be served is closed.
    patience::until("it is served", async || server.waiting.load(SeqCst) == 1).await;
    let at = server.at;
    let leave = async {
        assert!(rest(idle).await.ends_with("fine"));
        upload.write_all(b"34").await.unwrap();
        assert!(rest(upload).await.ends_with("4 bytes"));
    };
    join(server.stop(), leave).await;
    assert!(TcpStream::connect(at).await.is_err(), "nobody listens");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_tenant_has_a_share_of_the_connections() {
    let server = Server::start(Limits { per_tenant_max: 2, ..patient() }, None).await;
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
    let last = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    let idle = server.say(&get("/key?acme")).await;
    idle.readable().await.unwrap();
    let served = server.say(&get("/hold?acme")).await;
    patience::until("it is served", async || server.waiting.load(SeqCst) == 1).await;
    // The third takes the place of the one that waits for a request.
    let third = server.say(&get("/hold?acme")).await;
    patience::until("it is served too", async || server.waiting.load(SeqCst) == 2).await;
    assert!(rest(idle).await.ends_with("known"), "and then its end");
    // Nobody who is served gives way: the fourth is told so. Other tenants, and callers without one, are not concerned.
    assert!(rest(server.say(&last("/key?acme")).await).await.ends_with("full"));
    for path in ["/key?globex", "/key?globex", "/key?globex", "/key"] {
        assert!(rest(server.say(&last(path)).await).await.ends_with("known"), "{path}");
    }
    drop((served, third));
    patience::until("they have left", async || server.connections.count() == 0).await;
    assert!(rest(server.say(&last("/key?acme")).await).await.ends_with("known"));
    server.stop().await;
}
