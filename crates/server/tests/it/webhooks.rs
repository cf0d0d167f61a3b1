//! Webhooks that are signed.

use super::jobs_support::{Answered, Jobs, Setup, start_with};
use hmac::{Hmac, KeyInit as _, Mac as _};
use reqwest::Method;
use serde_json::{Value, json};
use sha2::Sha256;
use std::time::Duration;
use tenure_server::{keys::Scope, webhooks::WebhookSecrets};

const SECRET: &str = "a secret that acme shares";

fn sign(secret: &str, seconds: i64, job: &str, key: &str, body: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(format!("{seconds}\n{job}\n{key}\n{body}").as_bytes());
    let code: String = mac.finalize().into_bytes().iter().map(|b| format!("{b:02x}")).collect();
    format!("t={seconds},v1={code}")
}

async fn job_of(server: &Jobs, tenant: &str) -> String {
    let body = json!({"flow": "listen", "input": "go", "tenant": tenant});
    let id = server.post("/v1/jobs", body).await.text("id").to_owned();
    server.blocked(&id).await;
    id
}

/// Without an API key, through a proxy: with the signature alone.
async fn hook(
    server: &Jobs,
    job: &str,
    key: &str,
    signature: Option<&str>,
    body: &str,
) -> Answered {
    let mut headers = vec![
        ("content-type", "application/json"),
        ("x-forwarded-for", "203.0.113.7"),
        ("authorization", "Basic bm9ib2R5"),
    ];
    headers.extend(signature.map(|signature| ("tenure-signature", signature)));
    let path = format!("/v1/webhooks/{job}/{key}");
    server.send(Method::POST, &path, &headers, Some(body.to_owned())).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signed_webhook_needs_no_key_and_a_key_does_not_replace_the_signature() {
    let dir = tempfile::tempdir().unwrap();
    let secret = |_: &str| Some(SECRET.to_owned());
    let secrets = WebhookSecrets::read("acme=A", Duration::from_secs(300), secret).unwrap();
    let server = start_with(dir.path(), Setup { webhooks: secrets, ..Setup::default() }).await;
    let (job, other) = (job_of(&server, "acme").await, job_of(&server, "globex").await);
    let now = server.store().now().await.unwrap().as_micros() / 1_000_000;
    let body = "{\"paid\":true}";
    let good = sign(SECRET, now, &job, "go", body);
    let refusals = [
        ("no signature", hook(&server, &job, "go", None, body).await, "unauthenticated"),
        ("other body", hook(&server, &job, "go", Some(&good), "{}").await, "bad_signature"),
        ("other key", hook(&server, &job, "stop", Some(&good), body).await, "bad_signature"),
        ("other job", hook(&server, &other, "go", Some(&good), body).await, "bad_signature"),
        (
            "other secret",
            hook(
                &server,
                &job,
                "go",
                Some(&sign("some other secret", now, &job, "go", body)),
                body,
            )
            .await,
            "bad_signature",
        ),
        (
            "too old",
            hook(&server, &job, "go", Some(&sign(SECRET, now - 400, &job, "go", body)), body).await,
            "bad_signature",
        ),
        (
            "a tenant without a secret",
            hook(&server, &other, "go", Some(&sign(SECRET, now, &other, "go", body)), body).await,
            "bad_signature",
        ),
    ];
    for (what, answer, code) in &refusals {
        assert_eq!((answer.status, answer.text("code")), (401, *code), "{what}: {answer:?}");
    }
    let key = server.key(Some("acme"), &[Scope::Write]).await;
    let path = format!("/v1/webhooks/{job}/go");
    let unsigned = server.with_key(Method::POST, &path, &key, json!({})).await;
    assert_eq!((unsigned.status, unsigned.text("code")), (401, "bad_signature"));
    let taken = hook(&server, &job, "go", Some(&good), body).await;
    assert_eq!(taken.status, 200, "{taken:?}");
    let ended = server.until(&job, "completed").await;
    assert_eq!(ended["output"], json!({"paid": true}));
    // Sent again within the window it changes nothing.
    let again = hook(&server, &job, "go", Some(&good), body).await;
    assert_eq!((again.status, again.text("outcome")), (200, "duplicate"));
    // Of a tenant without a secret a key is enough, as ever.
    let key = server.key(Some("globex"), &[Scope::Write]).await;
    let path = format!("/v1/webhooks/{other}/go");
    assert_eq!(server.with_key(Method::POST, &path, &key, json!(1)).await.status, 200);
    server.until(&other, "completed").await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signed_webhook_counts_once_also_where_the_flow_waits_for_its_key_again() {
    let dir = tempfile::tempdir().unwrap();
    let secret = |_: &str| Some(SECRET.to_owned());
    let secrets = WebhookSecrets::read("acme=A", Duration::from_secs(300), secret).unwrap();
    let server = start_with(dir.path(), Setup { webhooks: secrets, ..Setup::default() }).await;
    let body = json!({"flow": "listen_twice", "input": ["go", []], "tenant": "acme"});
    let job = server.post("/v1/jobs", body).await.text("id").to_owned();
    server.blocked(&job).await;
    let now = server.store().now().await.unwrap().as_micros() / 1_000_000;
    let good = sign(SECRET, now, &job, "go", "1");
    assert_eq!(hook(&server, &job, "go", Some(&good), "1").await.text("outcome"), "completed");
    let again =
        |job: &Value| job["run"] == 2 && job["holder"].is_null() && job["waits"][0]["key"] == "go";
    server.until_it(&job, "waiting again", again).await;
    // Also under a second code, which makes another header of the same delivery.
    for replayed in [good.clone(), format!("{good},v1={}", "00".repeat(32))] {
        let answer = hook(&server, &job, "go", Some(&replayed), "1").await;
        assert_eq!((answer.status, answer.text("outcome")), (200, "duplicate"), "{answer:?}");
    }
    assert!(again(&server.get(&format!("/v1/jobs/{job}")).await.body), "it still waits");
    let other = sign(SECRET, now, &job, "go", "2");
    assert_eq!(hook(&server, &job, "go", Some(&other), "2").await.text("outcome"), "completed");
    assert_eq!(server.until(&job, "completed").await["output"], json!([1, 2]));
    server.stop().await;
}
