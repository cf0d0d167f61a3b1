//! Redirects: who follows, and what does not go along.

use crate::{http::tool, support::*};
use serde_json::json;

fn to(location: &str, status: &str) -> String {
    answer(status, &[&format!("location: {location}")], "")
}

#[tokio::test]
async fn a_get_follows_within_its_origin_with_everything() {
    let (tool, peer, call) = (tool(), Peer::new().await, Call::new());
    let input = json!({"url": peer.url("/a"), "headers": {"Authorization": "Basic abcdef", "Accept": "x/y"}});
    let serve = async {
        peer.once(&to("/b?c=d", "302 Found")).await;
        peer.once(&answer("200 OK", &[], "there")).await
    };
    let (result, request) = tokio::join!(call.of(&tool, input), serve);
    assert_eq!(result.unwrap()["body"], "there");
    assert!(request.starts_with("GET /b?c=d "), "{request}");
    assert_eq!(header(&request, "authorization"), Some("Basic abcdef"));
    assert_eq!(header(&request, "idempotency-key"), Some("key-of-this-call"));
}

#[tokio::test]
async fn key_and_secrets_do_not_go_to_another_origin_nor_come_back() {
    let (tool, call) = (tool(), Call::new());
    let (home, away) = (Peer::new().await, Peer::new().await);
    let input = json!({"url": home.url("/a"), "headers": {"Authorization": "Basic abcdef", "X-Api-Key": "k1234",
        "Cookie": "c=1234", "X-Other": {"secret": "TENURE_SECRET_T"}, "Accept": "x/y"}});
    let serve = async {
        let first = home.once(&to(&away.url("/b"), "307 Temporary Redirect")).await;
        let second = away.once(&to(&home.url("/c"), "301 Moved Permanently")).await;
        let third = home.once(&answer("200 OK", &[], "")).await;
        (first, second, third)
    };
    let (result, (first, second, third)) = tokio::join!(call.of(&tool, input), serve);
    assert_eq!(result.unwrap()["status"], 200);
    for name in [
        "authorization",
        "x-api-key",
        "cookie",
        "x-other",
        "idempotency-key",
        "tenure-attempt",
        "tenure-not-after",
    ] {
        assert!(header(&first, name).is_some(), "{name}");
        assert_eq!(header(&second, name), None, "{name}");
        assert_eq!(header(&third, name), None, "{name}");
    }
    assert_eq!(header(&second, "accept"), Some("x/y"));
    assert!(third.starts_with("GET /c "), "{third}");
}

#[tokio::test]
async fn a_change_is_not_repeated_elsewhere() {
    let tool = tool();
    for (status, expected) in [
        ("307 Temporary Redirect", "permanent"),
        ("308 Permanent Redirect", "permanent"),
        ("302 Found", "unknown"),
        ("303 See Other", "result"),
    ] {
        let (peer, call) = (Peer::new().await, Call::new());
        let input = json!({"method": "POST", "url": peer.url("/a"), "body": "x"});
        let said = to("/elsewhere", status);
        let (result, _) = tokio::join!(call.of(&tool, input), peer.once(&said));
        match expected {
            "permanent" => assert!(permanent(result).contains("/elsewhere")),
            "unknown" => assert!(unknown(result).contains("/elsewhere")),
            _ => assert_eq!(result.unwrap()["headers"]["location"], "/elsewhere"),
        }
    }
}

#[tokio::test]
async fn circles_end_and_other_schemes_are_not_followed() {
    let (tool, peer, call) = (tool(), Peer::new().await, Call::new());
    let serve = async {
        for _ in 0..=tenure_tools::http::REDIRECTS_MAX {
            peer.once(&to("/", "302 Found")).await;
        }
    };
    let (result, ()) = tokio::join!(call.of(&tool, json!({"url": peer.url("/")})), serve);
    assert!(permanent(result).contains("302"));
    let (peer, call) = (Peer::new().await, Call::new());
    let said = to("file:///etc/passwd", "302 Found");
    let (result, _) = tokio::join!(call.of(&tool, json!({"url": peer.url("/")})), peer.once(&said));
    assert!(permanent(result).contains("302"));
}
