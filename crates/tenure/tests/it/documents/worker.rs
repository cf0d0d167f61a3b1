//! The README's program, as it stands there: its flow charges, and asks a person. Included, so that this module sees what is private in it.

#![allow(dead_code, reason = "its main is for a process of its own")]

include!("../../../../../docs/examples/worker.rs");

#[test]
fn the_program_of_the_readme_works() {
    use serde_json::{Value, json};
    let runtime = tenure::entry::runtime().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let store = format!("store.url=sqlite:{}", dir.path().join("store").display());
    let flags = [store, "server.listen=127.0.0.1:0".to_owned()];
    let settings = Settings::load(None, [], &flags).unwrap();
    let program = Program::new()
        .flow(FlowSpec::new("order", order))
        .tool(ToolSpec::new("charge", charge).idempotent());
    runtime.block_on(async {
        let service = program.serve(&settings, true).await.unwrap();
        let url = service.url();
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let send = async |request: reqwest::RequestBuilder, body: Value| -> Value {
            let request = request.header("content-type", "application/json");
            let response = request.body(body.to_string()).send().await.unwrap();
            serde_json::from_slice(&response.bytes().await.unwrap()).unwrap()
        };
        let submission = json!({"flow": "order", "input": {"number": 1001, "cents": 1250}});
        let job = send(client.post(format!("{url}/v1/jobs")), submission).await;
        let id = job["id"].as_str().unwrap_or_else(|| panic!("{job}")).to_owned();
        // An approval that comes before its question is kept for it.
        let yes = json!({"key": "shipping", "payload": {"approved": true}, "early": true});
        send(client.post(format!("{url}/v1/jobs/{id}/signal")), yes).await;
        let done = send(client.get(format!("{url}/v1/jobs/{id}?wait=60")), Value::Null).await;
        assert_eq!(done["status"], "completed", "{done}");
        assert!(done["output"]["key"].is_string(), "{done}");
        service.stop().await.unwrap();
    });
}
