//! Where the tools `http` and `llm` may connect to for a tenant.

use crate::support::*;
use serde_json::json;
use tenure_tools::{
    Egress, HttpOptions, LlmOptions, OwnListeners, Secrets, http,
    llm::{Endpoint, Llm, LlmInput},
};

fn tool(egress: Egress) -> tenure_steps::tool::ToolSpec {
    http(HttpOptions { egress, ..HttpOptions::default() }, Secrets::default())
}

/// Nobody connected: the next connection is that of this function.
async fn untouched(peer: &Peer) {
    let said = answer("200 OK", &[], "");
    let probe = async {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        client.get(peer.url("/probe")).send().await.unwrap();
    };
    let ((), request) = tokio::join!(probe, peer.once(&said));
    assert!(request.starts_with("GET /probe "), "{request}");
}

#[tokio::test]
async fn an_inner_address_is_refused_before_anything_is_sent() {
    let (peer, tool) = (Peer::new().await, tool(Egress::default()));
    let port = reqwest::Url::parse(&peer.url("/")).unwrap().port().unwrap();
    let hosts = ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0.0.0.0", "2130706433"];
    for (method, host) in ["GET", "POST"].into_iter().flat_map(|m| hosts.map(|h| (m, h))) {
        let input = json!({"method": method, "url": format!("http://{host}:{port}/v1/jobs")});
        let why = permanent(Call::new().of(&tool, input).await);
        assert!(why.contains("may not connect to") && why.contains("egress.allow"), "{why}");
    }
    let metadata = json!({"url": "http://169.254.169.254/latest/meta-data/"});
    let why = permanent(Call::new().of(&tool, metadata).await);
    assert!(why.contains("a link-local address"), "{why}");
    untouched(&peer).await;
}

#[tokio::test]
async fn a_redirect_is_checked_as_the_first_address_was() {
    for host in ["127.0.0.1", "localhost"] {
        let (outer, inner) = (Peer::new().await, Peer::new().await);
        let outer_port = reqwest::Url::parse(&outer.url("/")).unwrap().port().unwrap();
        let inner_port = reqwest::Url::parse(&inner.url("/")).unwrap().port().unwrap();
        let tool = tool(Egress::read(&format!("*=127.0.0.1:{outer_port}")).unwrap());
        let location = format!("location: http://{host}:{inner_port}/v1/jobs");
        let said = answer("302 Found", &[&location], "");
        let call = Call::new();
        let (result, _) =
            tokio::join!(call.of(&tool, json!({"url": outer.url("/")})), outer.once(&said));
        let why = permanent(result);
        assert!(why.contains("may not connect to"), "{why}");
        untouched(&inner).await;
    }
}

#[tokio::test]
async fn our_own_server_is_refused_though_its_address_is_allowed() {
    let (peer, own) = (Peer::new().await, OwnListeners::default());
    let port = reqwest::Url::parse(&peer.url("/")).unwrap().port().unwrap();
    own.add(std::net::SocketAddr::from(([127, 0, 0, 1], port)));
    let tool = tool(loopback().except(own));
    for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0.0.0.0"] {
        let input = json!({"url": format!("http://{host}:{port}/v1/jobs")});
        let result = Call::new().of(&tool, input).await;
        // `localhost` may resolve to ::1 as well, where nobody listens.
        let said = format!("{:?}", result.unwrap_err());
        assert!(said.contains("Tenure itself listens") || host == "localhost", "{host}: {said}");
    }
    untouched(&peer).await;
}

#[tokio::test]
async fn a_model_server_that_an_agent_names_is_checked_and_the_operators_is_not() {
    let peer = Peer::new().await;
    let base_url = peer.url("/v1");
    let options = LlmOptions {
        base_url: base_url.clone(),
        api_key_env: None,
        model: Some("m".into()),
        system_proxy: false,
        ..LlmOptions::default()
    };
    let llm = Llm::new(options.clone(), Secrets::default());
    let input: LlmInput =
        serde_json::from_value(json!({"messages": [{"role": "user", "content": "x"}]})).unwrap();
    let elsewhere = Endpoint { base_url, secret: None };
    let call = Call::new();
    let refused = llm.ask(&call.ctx, &input, Some(&elsewhere)).await.unwrap_err();
    assert!(refused.to_string().contains("may not connect to"), "{refused}");
    untouched(&peer).await;
    let said = answer("401 Unauthorized", &[], "");
    let (result, request) = tokio::join!(llm.ask(&call.ctx, &input, None), peer.once(&said));
    assert!(request.starts_with("POST /v1/chat/completions"), "{request}");
    result.unwrap_err();
    let nobody = tenure_tools::Tenants::read("none").unwrap();
    let llm = Llm::new(LlmOptions { tenants: nobody, ..options }, Secrets::default());
    let refused = llm.ask(&call.ctx, &input, None).await.unwrap_err();
    assert!(refused.to_string().contains("llm.tenants"), "{refused}");
}
