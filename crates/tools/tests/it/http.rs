//! Requests that are answered, refused, or never get an answer.

use crate::support::*;
use serde_json::{Value, json};
use std::time::Duration;
use tenure_steps::tool::{Class, ToolSpec};
use tenure_tools::{HttpOptions, Secrets, http};

pub fn tool() -> ToolSpec {
    let secrets = Secrets::fixed([("TENURE_SECRET_T".to_owned(), "s3cr3t-token".to_owned())]);
    http(HttpOptions { egress: loopback(), ..HttpOptions::default() }, secrets)
}

pub fn post(url: String) -> Value {
    json!({"method": "POST", "url": url, "body": {"a": 1}})
}

#[tokio::test]
async fn a_request_carries_key_attempt_and_not_after() {
    let (peer, call, tool) = (Peer::new().await, Call::new(), tool());
    let input = json!({"method": "POST", "url": peer.url("/x?a=b"), "query": {"n": 1, "t": "c d"},
        "headers": {"X-Mine": "yes"}, "body": {"b": [1, 2]}});
    let said = answer(
        "201 Created",
        &["content-type: application/json; charset=utf-8", "x-a: 1", "x-a: 2"],
        "{\"id\":7}",
    );
    let (result, request) = tokio::join!(call.of(&tool, input), peer.once(&said));
    assert!(request.starts_with("POST /x?a=b&n=1&t=c+d HTTP/1.1\r\n"), "{request}");
    assert_eq!(header(&request, "idempotency-key"), Some("key-of-this-call"));
    assert_eq!(header(&request, "tenure-attempt"), Some("5"));
    assert_eq!(header(&request, "tenure-not-after"), Some("2023-11-14T22:13:20.000000Z"));
    assert_eq!(header(&request, "x-mine"), Some("yes"));
    assert_eq!(header(&request, "content-type"), Some("application/json"));
    assert!(request.ends_with("\r\n\r\n{\"b\":[1,2]}"), "{request}");
    let output = result.unwrap();
    assert_eq!(output["status"], 201);
    assert_eq!(output["body"], json!({"id": 7}));
    assert_eq!(output["body_encoding"], "json");
    assert_eq!(output["headers"]["x-a"], "1, 2");
    assert_eq!(output["truncated"], false);
}

#[tokio::test]
async fn a_body_is_json_only_if_it_says_so_and_is() {
    let deep = ["[".repeat(101), "]".repeat(101)].concat();
    for (kind, body, encoding, expected) in [
        ("text/plain", "{}", "text", json!("{}")),
        // JSON that is nested too deeply to be recorded stays text.
        ("application/json", &*deep, "text", json!(deep)),
        ("application/json", "{broken", "text", json!("{broken")),
        ("application/problem+json", "[1]", "json", json!([1])),
    ] {
        let (peer, call, tool) = (Peer::new().await, Call::new(), tool());
        let said = answer("200 OK", &[&format!("content-type: {kind}")], body);
        let (result, request) =
            tokio::join!(call.of(&tool, json!({"url": peer.url("/")})), peer.once(&said));
        let output = result.unwrap();
        assert!(request.starts_with("GET / "), "{request}");
        assert_eq!((&output["body"], &output["body_encoding"]), (&expected, &json!(encoding)));
    }
}

#[tokio::test]
async fn bytes_that_are_no_text_come_as_base64() {
    let (peer, call, tool) = (Peer::new().await, Call::new(), tool());
    let serve = async {
        let mut conn = peer.accept().await;
        conn.request().await;
        conn.say("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n").await;
        tokio::io::AsyncWriteExt::write_all(&mut conn.0, &[0xff, 0, 1]).await.unwrap();
    };
    let (result, ()) = tokio::join!(call.of(&tool, json!({"url": peer.url("/")})), serve);
    let output = result.unwrap();
    assert_eq!((&output["body"], &output["body_encoding"]), (&json!("/wAB"), &json!("base64")));
}

#[tokio::test]
async fn an_answer_is_kept_up_to_the_limit_and_cut_past_it() {
    let options = HttpOptions { response_bytes_max: 10, egress: loopback() };
    let tool = http(options, Secrets::default());
    for (body, kept, truncated) in [
        ("0123456789", "0123456789", false),
        ("0123456789x", "0123456789", true),
        ("[\"345678é\"]", "[\"345678é", true),
    ] {
        let (peer, call) = (Peer::new().await, Call::new());
        let said = answer("200 OK", &["content-type: application/json"], body);
        let (result, _) =
            tokio::join!(call.of(&tool, json!({"url": peer.url("/")})), peer.once(&said));
        let output = result.unwrap();
        if truncated {
            assert_eq!(output["body"], json!(kept), "{body}");
        }
        assert_eq!(output["truncated"], truncated, "{body}");
    }
}

#[tokio::test]
async fn where_no_connection_comes_about_nothing_was_applied() {
    let tool = tool();
    // A port that was free a moment ago and that nobody listens on.
    let free = Peer::new().await.url("/");
    let why = retryable(Call::new().of(&tool, post(free)).await);
    assert!(why.contains("nothing was sent") && why.contains("refused"), "{why}");
    let why = retryable(Call::new().of(&tool, post("http://no-such-host.invalid/".into())).await);
    assert!(why.contains("nothing was sent"), "{why}");
    // Somebody who answers TLS with something else.
    let peer = Peer::new().await;
    let serve = async {
        let mut conn = peer.accept().await;
        conn.say("I do not speak TLS\r\n\r\n").await;
        conn.closed().await;
    };
    let url = peer.url("/").replace("http:", "https:");
    let call = Call::new();
    let (result, ()) = tokio::join!(call.of(&tool, post(url)), serve);
    let why = retryable(result);
    assert!(why.contains("nothing was sent"), "{why}");
}

#[tokio::test]
async fn a_connection_that_breaks_after_the_request_left_is_unknown() {
    let tool = tool();
    for input in [|url: String| post(url), |url: String| json!({"url": url})] {
        // Reads, and closes.
        let (peer, call) = (Peer::new().await, Call::new());
        let serve = async {
            peer.accept().await.request().await;
        };
        let (result, ()) = tokio::join!(call.of(&tool, input(peer.url("/"))), serve);
        let why = unknown(result);
        assert!(why.contains("broke before an answer"), "{why}");
        // Accepts, and closes without reading: whether the request had left, nobody knows.
        let (peer, call) = (Peer::new().await, Call::new());
        let serve = async { drop(peer.accept().await) };
        let (result, ()) = tokio::join!(call.of(&tool, input(peer.url("/"))), serve);
        unknown(result);
        // Answers, and breaks off in the middle.
        let (peer, call) = (Peer::new().await, Call::new());
        let said = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf";
        let (result, _) = tokio::join!(call.of(&tool, input(peer.url("/"))), peer.once(said));
        let why = unknown(result);
        assert!(why.contains("while the answer was read"), "{why}");
    }
}

#[tokio::test]
async fn statuses_say_whether_anything_was_applied() {
    let tool = tool();
    for (status, get, change) in [
        ("400 Bad Request", "permanent", "permanent"),
        ("408 Request Timeout", "retryable", "unknown"),
        ("429 Too Many Requests", "retryable", "retryable"),
        ("500 Internal Server Error", "retryable", "unknown"),
        ("503 Service Unavailable", "retryable", "unknown"),
        ("504 Gateway Timeout", "retryable", "unknown"),
    ] {
        for (method, expected) in [("GET", get), ("POST", change), ("DELETE", change)] {
            let (peer, call) = (Peer::new().await, Call::new());
            let said = answer(status, &["retry-after: 7"], "why it\nfailed");
            let input = json!({"method": method, "url": peer.url("/p?token=abc")});
            let (result, _) = tokio::join!(call.of(&tool, input), peer.once(&said));
            let why = match expected {
                "permanent" => permanent(result),
                "retryable" => retryable(result),
                _ => unknown(result),
            };
            assert!(why.contains(status) && why.contains("why it failed"), "{why}");
            assert!(why.contains("retry-after: 7") && why.contains("/p"), "{why}");
            assert!(!why.contains("token"), "queries often hold secrets: {why}");
        }
    }
}

#[tokio::test]
async fn an_expected_status_is_a_result_and_an_unexpected_one_is_not() {
    let tool = tool();
    for (expect, status, ok) in [
        (json!(404), "404 Not Found", true),
        (json!([204, 409]), "409 Conflict", true),
        (json!(201), "200 OK", false),
    ] {
        let (peer, call) = (Peer::new().await, Call::new());
        let input = json!({"method": "DELETE", "url": peer.url("/"), "expect_status": expect});
        let said = answer(status, &[], "");
        let (result, _) = tokio::join!(call.of(&tool, input), peer.once(&said));
        match ok {
            true => assert_eq!(result.unwrap()["status"].to_string(), status[..3]),
            false => drop(unknown(result)),
        }
    }
}

#[tokio::test]
async fn a_repeated_change_never_says_that_nothing_was_applied() {
    let tool = tool();
    for status in ["429 Too Many Requests", "404 Not Found"] {
        let (peer, call) = (Peer::new().await, Call::nth(2, LONG));
        let said = answer(status, &[], "");
        let (result, _) = tokio::join!(call.of(&tool, post(peer.url("/"))), peer.once(&said));
        let why = unknown(result);
        assert!(why.contains(status) && why.contains("earlier one may have"), "{why}");
    }
    let free = Peer::new().await.url("/");
    unknown(Call::nth(2, LONG).of(&tool, post(free.clone())).await);
    // A GET changes nothing, however often.
    retryable(Call::nth(2, LONG).of(&tool, json!({"url": free})).await);
}

#[tokio::test]
async fn secrets_are_sent_but_neither_shown_nor_recorded() {
    let tool = tool();
    let input = |url: String| {
        json!({"method": "POST", "url": url, "headers": {
            "Authorization": {"secret": "TENURE_SECRET_T", "prefix": "Bearer "},
            "Cookie": "session=c00kie-value", "x-api-key": "plain-api-key"}})
    };
    for status in ["200 OK", "400 Bad Request"] {
        let (peer, call) = (Peer::new().await, Call::new());
        let serve = async {
            let mut conn = peer.accept().await;
            let request = conn.request().await;
            assert_eq!(header(&request, "authorization"), Some("Bearer s3cr3t-token"));
            // A server that echoes everything.
            let echo = format!("x-echo: {}", header(&request, "authorization").unwrap());
            conn.say(&answer(status, &[&echo], &request)).await;
        };
        let (result, ()) = tokio::join!(call.of(&tool, input(peer.url("/"))), serve);
        let shown = format!("{result:?}{}", call.progress.note());
        for secret in ["s3cr3t", "c00kie", "plain-api-key"] {
            assert!(!shown.contains(secret), "{secret} in {shown}");
        }
        assert!(shown.contains("[secret "), "{shown}");
    }
    // Nor where there is no connection.
    let free = Peer::new().await.url("/").replace("http://", "http://user:pa55word@");
    let why = retryable(Call::new().of(&tool, input(free)).await);
    assert!(!why.contains("pa55word") && !why.contains("s3cr3t"), "{why}");
}

#[tokio::test]
async fn what_can_not_be_sent_is_permanent_and_says_why() {
    let tool = tool();
    for (input, part) in [
        (json!({"url": "ftp://a/"}), "ftp"),
        (json!({"url": "nonsense"}), "address"),
        (json!({"url": "http://a/", "method": "STEAL"}), "STEAL"),
        (json!({"url": "http://a/", "headers": {"Idempotency-Key": "mine"}}), "set by Tenure"),
        (json!({"url": "http://a/", "headers": {"a b": "c"}}), "a b"),
        (json!({"url": "http://a/", "headers": {"a": "b\r\nc: d"}}), "characters"),
        (json!({"url": "http://a/", "headers": {"a": {"secret": "PATH"}}}), "may not be used"),
        (json!({"url": "http://a/", "headers": {"a": {"secret": "TENURE_SECRET_NO"}}}), "not set"),
        (json!({"url": "http://a/", "hedaers": {}}), "hedaers"),
    ] {
        let why = permanent(Call::new().of(&tool, input).await);
        assert!(why.contains(part), "{part:?} is not in {why}");
    }
}

#[tokio::test]
async fn reading_may_be_repeated_and_changing_may_not() {
    let tool = tool();
    let class = |method: &str| tool.tool.class_of(&json!({"method": method}));
    for method in ["GET", "HEAD", "OPTIONS"] {
        assert_eq!(class(method), Some(Class::Idempotent), "{method}");
    }
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        assert_eq!(class(method), Some(Class::Irreversible), "{method}");
    }
    assert_eq!(class("get"), Some(Class::Idempotent));
    assert_eq!(class("STEAL"), None);
    assert_eq!(tool.tool.class_of(&json!({})), Some(Class::Idempotent));
    assert_eq!(tool.options.class, Some(Class::Irreversible));
    assert!(tool.options.timeout > Some(Duration::ZERO));
    let schema = tool.input_schema.unwrap();
    assert_eq!(schema["required"], json!(["url"]));
}
