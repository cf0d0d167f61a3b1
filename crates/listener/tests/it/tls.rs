//! Handshakes with certificates that are good, and with those that are not.

use crate::{
    certificates::{Authority, Pair},
    support::{Server, rest},
};
use reqwest::{Certificate, Client, Identity};
use std::{path::Path, sync::Arc, time::Duration};
use tenure_listener::{BadTls, ClientCertificates, Limits, Tls, TlsFiles};
use tenure_proving::patience;

const SOON: Duration = Duration::from_millis(10);

fn files(dir: &Path, pair: &Pair) -> TlsFiles {
    let (certificate, key) = pair.write(dir);
    TlsFiles { certificate, key, client_ca: None }
}

async fn start(files: TlsFiles) -> Server {
    Server::start(Limits::default(), Some(Arc::new(Tls::open(files, SOON).unwrap()))).await
}

fn client(root: &Authority, shows: Option<&Pair>) -> Client {
    let root = Certificate::from_pem(root.pem.as_bytes()).unwrap();
    let mut builder =
        Client::builder().no_proxy().tls_built_in_root_certs(false).add_root_certificate(root);
    if let Some(pair) = shows {
        let both = format!("{}{}", pair.key, pair.certificate);
        builder = builder.identity(Identity::from_pem(both.as_bytes()).unwrap());
    }
    builder.build().unwrap()
}

async fn ask(server: &Server, client: &Client) -> Result<String, String> {
    let url = format!("https://localhost:{}/health", server.at.port());
    let answer = client.get(url).send().await.map_err(|e| format!("{e:?}"))?;
    assert_eq!(answer.headers()["strict-transport-security"], "max-age=31536000");
    answer.text().await.map_err(|e| format!("{e:?}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn good_names_and_roots_are_let_through_and_others_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let client_of_ours = client(&ours, None);
    for (pair, expected) in [
        (ours.server(&["localhost"]), None),
        (ours.server(&["elsewhere.example"]), Some("NotValidForName")),
        (ours.expired(&["localhost"]), Some("Expired")),
        (theirs.server(&["localhost"]), Some("UnknownIssuer")),
        (ours.client("localhost"), Some("InvalidPurpose")),
    ] {
        let server = start(files(dir.path(), &pair)).await;
        let said = ask(&server, &client_of_ours).await;
        match expected {
            None => assert_eq!(said.as_deref(), Ok("fine")),
            Some(why) => assert!(said.as_ref().is_err_and(|e| e.contains(why)), "{why}: {said:?}"),
        }
        server.stop().await;
    }
}

/// Nobody is answered, and the reason is told. A client that writes its request before it reads the reason may find the connection
/// closed instead, so it asks again.
async fn is_refused(server: &Server, client: &Client, why: &str) {
    patience::until(why, async || {
        let refused = ask(server, client).await.expect_err("it is refused");
        refused.to_lowercase().contains(why)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_of_clients_are_verified() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let ca = dir.path().join("clients.crt");
    std::fs::write(&ca, &ours.pem).unwrap();
    let (good, bad) = (ours.client("worker"), theirs.client("worker"));
    for (wanted, without) in
        [(ClientCertificates::Required, false), (ClientCertificates::Optional, true)]
    {
        let mut files = files(dir.path(), &ours.server(&["localhost"]));
        files.client_ca = Some((ca.clone(), wanted));
        let server = start(files).await;
        assert_eq!(ask(&server, &client(&ours, Some(&good))).await.as_deref(), Ok("fine"));
        is_refused(&server, &client(&ours, Some(&bad)), "unknownca").await;
        match without {
            true => {
                let nobody = ask(&server, &client(&ours, None)).await;
                assert_eq!(nobody.as_deref(), Ok("fine"));
            }
            false => is_refused(&server, &client(&ours, None), "certificaterequired").await,
        }
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_files_are_used_without_a_restart_and_bad_ones_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let pair = old.server(&["localhost"]);
    let tls = Arc::new(Tls::open(files(dir.path(), &pair), SOON).unwrap());
    let server = Server::start(Limits::default(), Some(tls.clone())).await;
    let (of_old, of_new) = (client(&old, None), client(&new, None));
    assert_eq!(ask(&server, &of_old).await.as_deref(), Ok("fine"));
    assert!(ask(&server, &of_new).await.is_err());
    // Half a renewal: the new certificate with the old key. A file that is no certificate.
    let renewed = new.server(&["localhost"]);
    for bad in [&renewed.certificate, "nonsense"] {
        std::fs::write(dir.path().join("tls.crt"), bad).unwrap();
        tls.refresh();
        assert_eq!(
            ask(&server, &client(&old, None)).await.as_deref(),
            Ok("fine"),
            "the old one is served"
        );
    }
    renewed.write(dir.path());
    // The server looks by itself. New connections: those that are open keep their keys.
    patience::until("the new one is served", async || {
        ask(&server, &client(&new, None)).await.is_ok()
    })
    .await;
    assert!(ask(&server, &client(&old, None)).await.is_err());
    server.stop().await;
}

#[test]
fn bad_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let ours = Authority::new("ours");
    let (pair, other) = (ours.server(&["localhost"]), ours.server(&["localhost"]));
    let good = files(dir.path(), &pair);
    let said = |files: &TlsFiles| Tls::open(files.clone(), SOON).unwrap_err();
    let absent = TlsFiles { key: dir.path().join("absent"), ..good.clone() };
    assert!(matches!(said(&absent), BadTls::File { .. }));
    let swapped = TlsFiles { key: good.certificate.clone(), ..good.clone() };
    assert!(said(&swapped).to_string().contains("holds no private key"), "{}", said(&swapped));
    let swapped = TlsFiles { certificate: good.key.clone(), ..good.clone() };
    assert!(said(&swapped).to_string().contains("holds no certificate"), "{}", said(&swapped));
    std::fs::write(&good.key, &other.key).unwrap();
    assert!(matches!(said(&good), BadTls::OtherKey { .. }), "{}", said(&good));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_http_and_silence_at_a_tls_port() {
    let dir = tempfile::tempdir().unwrap();
    let ours = Authority::new("ours");
    let tls = Tls::open(files(dir.path(), &ours.server(&["localhost"])), SOON).unwrap();
    let limits = Limits { header: Duration::from_millis(200), ..Limits::default() };
    let server = Server::start(limits, Some(Arc::new(tls))).await;
    let plain = rest(server.say("GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await).await;
    assert!(plain.starts_with("HTTP/1.1 400") && plain.contains("https://"), "{plain}");
    // No handshake, and half of one.
    for half in ["", "\u{16}\u{3}\u{1}"] {
        assert_eq!(rest(server.say(half).await).await, "");
    }
    assert_eq!(server.connections.count(), 0);
    server.stop().await;
}
