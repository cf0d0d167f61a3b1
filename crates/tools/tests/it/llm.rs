//! Questions to the scripted model.

use crate::support::*;
use serde_json::{Value, json};
use std::time::Duration;
use tenure_steps::tool::{Class, ToolError, ToolSpec};
use tenure_tools::{
    BuiltinOptions, LlmOptions, Secrets, builtin, llm,
    scripted::{Gate, Reply, Script, Server},
};

fn tool(base_url: String) -> ToolSpec {
    let secrets = Secrets::fixed([("MODEL_KEY".to_owned(), "sk-s3cr3t".to_owned())]);
    let api_key_env = Some("MODEL_KEY".to_owned());
    let model = Some("m1".into());
    let options =
        LlmOptions { base_url, api_key_env, model, system_proxy: false, ..LlmOptions::default() };
    llm(options, secrets)
}

async fn model(script: Script) -> (Server, ToolSpec) {
    let server = Server::start(script).await.unwrap();
    let tool = tool(server.base_url());
    (server, tool)
}

fn ask(text: &str) -> Value {
    json!({"messages": [{"role": "user", "content": text}]})
}

fn streaming(text: &str) -> Value {
    json!({"messages": [{"role": "user", "content": text}], "stream": true})
}

#[tokio::test]
async fn an_answer_comes_with_everything_that_was_said() {
    let (server, tool) = model(Script::new().then(Reply::text("Hello you"))).await;
    let mut input = ask("hi");
    input["temperature"] = json!(0.5);
    input["seed"] = json!(7);
    let output = Call::new().of(&tool, input).await.unwrap();
    assert_eq!(output["content"], "Hello you");
    assert_eq!(output["tool_calls"], json!([]));
    assert_eq!((&output["model"], &output["finish_reason"]), (&json!("m1"), &json!("stop")));
    assert_eq!(output["usage"]["completion_tokens"], 2);
    assert_eq!(output["response"]["choices"][0]["message"]["content"], "Hello you");
    assert!(output["latency_ms"].is_u64());
    let seen = &server.requests()[0];
    assert_eq!(seen.path, "/v1/chat/completions");
    assert_eq!(seen.headers["authorization"], "Bearer sk-s3cr3t");
    assert_eq!(seen.headers["idempotency-key"], "key-of-this-call");
    let sent = json!({"messages": [{"role": "user", "content": "hi"}], "model": "m1", "temperature": 0.5, "seed": 7});
    assert_eq!(seen.body, sent);
    assert_eq!(output["request"], sent);
    assert!(!output.to_string().contains("s3cr3t"));
}

#[tokio::test]
async fn a_stream_gives_the_same_as_one_piece() {
    let reply = Reply::text("Let me see").and_tool_call("c1", "weather", &json!({"city": "Oslo"}));
    let (_server, tool) = model(Script::new().otherwise(reply)).await;
    let whole = Call::new().of(&tool, ask("weather?")).await.unwrap();
    let call = Call::new();
    let streamed = call.of(&tool, streaming("weather?")).await.unwrap();
    assert_eq!(streamed["request"]["stream"], true);
    for field in ["content", "tool_calls", "model", "finish_reason", "usage"] {
        assert_eq!(streamed[field], whole[field], "{field}");
    }
    assert_eq!(streamed["tool_calls"][0]["function"]["name"], "weather");
    assert_eq!(call.progress.note(), "Let me see");
}

#[tokio::test]
async fn an_answer_is_read_in_every_form_that_servers_give_it() {
    let calls = json!([{ "function": { "name": "look up!", "arguments": { "a": 1 } } }]);
    let message = json!({ "role": "assistant", "content": [{ "type": "text", "text": "Let me " }, { "type": "text", "text": "see" }],
        "reasoning_content": "hm", "tool_calls": calls });
    let declined =
        json!({ "role": "assistant", "content": null, "refusal": "I cannot help with that." });
    let script = Script::new()
        .when("parts", Reply::message(message).finished_by("tool_calls"))
        .when("declined", Reply::message(declined))
        .when("cut", Reply::text("once upon a").finished_by("length"));
    let (_server, tool) = model(script).await;
    for asked in [ask, streaming] {
        let output = Call::new().of(&tool, asked("parts")).await.unwrap();
        assert_eq!(output["content"], "Let me see");
        let call = json!({ "id": "call_1", "type": "function", "function": { "name": "look_up_", "arguments": "{\"a\":1}" } });
        assert_eq!(output["tool_calls"], json!([call]), "ready to be sent back");
        let raw = &output["response"]["choices"][0]["message"];
        assert_eq!(raw["tool_calls"][0]["function"]["name"], "look up!", "what was said is kept");
        let output = Call::new().of(&tool, asked("declined")).await.unwrap();
        assert_eq!(output["refusal"], "I cannot help with that.");
        assert_eq!(output["content"], Value::Null);
        let output = Call::new().of(&tool, asked("cut")).await.unwrap();
        assert_eq!(output["finish_reason"], "length");
    }
}

#[tokio::test]
async fn the_scripted_server_is_strict() {
    let (server, tool) = model(Script::new().otherwise(Reply::text("fine"))).await;
    let input =
        json!({ "messages": [{ "role": "assistant", "content": "x", "reasoning_content": "hm" }] });
    let why = permanent(Call::new().of(&tool, input).await);
    assert!(why.contains("400") && why.contains("reasoning_content"), "{why}");
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn tokens_show_while_they_come() {
    let gate = Gate::new();
    let (_server, tool) =
        model(Script::new().then(Reply::text("one two three").held(&gate).midway_after(3))).await;
    let call = Call::new();
    let watch = async {
        call.shows("one two").await;
        assert!(!call.progress.note().contains("three"));
        gate.open();
    };
    let (result, ()) = tokio::join!(call.of(&tool, streaming("count")), watch);
    assert_eq!(result.unwrap()["content"], "one two three");
}

#[tokio::test]
async fn an_answer_that_breaks_is_unknown_and_no_half_answer() {
    for reply in [Reply::text("a b c d e f").broken_midway(), Reply::text("a").broken()] {
        let (_server, tool) = model(Script::new().otherwise(reply)).await;
        unknown(Call::new().of(&tool, streaming("x")).await);
        unknown(Call::new().of(&tool, ask("x")).await);
    }
    // A stream that ends politely, but too early.
    let half = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"finish_reason\":null}]}\n\n";
    let reply = Reply::raw(half).header("content-type", "text/event-stream");
    let (_server, tool) = model(Script::new().then(reply)).await;
    let why = unknown(Call::new().of(&tool, streaming("x")).await);
    assert!(why.contains("ended before the answer did"), "{why}");
}

#[tokio::test]
async fn refusals_say_whether_to_ask_again() {
    for (reply, again, part) in [
        (Reply::status(429, "slow down").header("retry-after", "12"), true, "retry-after: 12"),
        (Reply::status(500, "oops"), true, "oops"),
        (Reply::status(503, "overloaded"), true, "overloaded"),
        (Reply::status(400, "no such field"), false, "no such field"),
        (Reply::status(401, "who are you, sk-s3cr3t"), false, "who are you, [secret MODEL_KEY]"),
        (Reply::status(404, "no such model"), false, "no such model"),
        (Reply::raw("{\"error\":{\"code\":429,\"message\":\"upstream\"}}"), true, "upstream"),
        (Reply::raw("{\"error\":{\"code\":400,\"message\":\"bad\"}}"), false, "bad"),
        // An answer that is none is asked for again, as a piece of a stream is.
        (Reply::raw("<html>welcome</html>"), true, "welcome"),
        (Reply::raw("{\"choices\": [{\"mess"), true, "cannot be read as JSON"),
        (Reply::raw("{}"), true, "no chat completion"),
        (Reply::raw("{\"choices\":[{\"message\":\"hi\"}]}"), true, "no chat completion"),
    ] {
        let (_server, tool) = model(Script::new().otherwise(reply)).await;
        for input in [ask("x"), streaming("x")] {
            let result = Call::new().of(&tool, input).await;
            let why = if again { retryable(result) } else { permanent(result) };
            assert!(why.contains(part), "{part:?} is not in {why}");
        }
    }
    // After the first piece it is too late for a status.
    let late = "data: {\"error\":{\"code\":429,\"message\":\"upstream\"}}\n\n";
    let reply = Reply::raw(late).header("content-type", "text/event-stream");
    let (_server, model) = model(Script::new().then(reply)).await;
    assert!(retryable(Call::new().of(&model, streaming("x")).await).contains("upstream"));
    let quota = "{\"error\":{\"code\":\"insufficient_quota\",\"message\":\"pay\"}}";
    let (peer, call) = (Peer::new().await, Call::new());
    let (tool, said) = (tool(peer.url("/v1")), answer("429 Too Many Requests", &[], quota));
    let (result, _) = tokio::join!(call.of(&tool, ask("x")), peer.once(&said));
    assert!(permanent(result).contains("pay"), "no waiting helps an empty account");
}

#[tokio::test]
async fn a_rate_limit_passes() {
    let script = Script::new().then(Reply::status(429, "slow down")).then(Reply::text("fine"));
    let (server, tool) = model(script).await;
    retryable(Call::new().of(&tool, ask("x")).await);
    assert_eq!(Call::new().of(&tool, ask("x")).await.unwrap()["content"], "fine");
    assert_eq!(server.requests().len(), 2);
    let why = retryable(Call::new().of(&tool, ask("x")).await);
    assert!(why.contains("the script has no reply"), "{why}");
}

#[tokio::test]
async fn an_answer_may_be_as_large_as_the_limit_and_no_larger() {
    let limit = tenure_tools::llm::RESPONSE_BYTES_MAX;
    let body = json!({"choices": [{"message": {"content": "a"}}]}).to_string();
    let padded = |bytes: usize| Reply::raw(&(body.clone() + &" ".repeat(bytes - body.len())));
    let script = Script::new().then(padded(limit)).then(padded(limit + 1));
    let (_server, tool) = model(script).await;
    assert_eq!(Call::new().of(&tool, ask("x")).await.unwrap()["content"], "a");
    let why = permanent(Call::new().of(&tool, ask("x")).await);
    assert!(why.contains(&limit.to_string()), "{why}");
}

#[tokio::test]
async fn without_a_server_nothing_was_asked() {
    let free = Peer::new().await.url("/v1");
    let why = retryable(Call::new().of(&tool(free), ask("x")).await);
    assert!(why.contains("nothing was sent"), "{why}");
}

#[tokio::test]
async fn stopped_before_it_asked_it_is_cancelled_and_unknown_after() {
    let gate = Gate::new();
    let script = Script::new()
        .when("early", Reply::text("a").held(&gate))
        .when("midway", Reply::text("one two three").held(&gate).midway_after(2));
    let (server, tool) = model(script).await;
    let call = Call::new();
    call.stop();
    assert_eq!(call.of(&tool, ask("early")).await, Err(ToolError::Cancelled));
    assert_eq!(server.requests(), []);
    let call = Call::new();
    let stop = async {
        server.seen(1).await;
        call.stop();
    };
    let (result, ()) = tokio::join!(call.of(&tool, ask("early")), stop);
    assert!(unknown(result).contains("stopped on request"));
    let call = Call::new();
    let stop = async {
        call.shows("one").await;
        call.stop();
    };
    let (result, ()) = tokio::join!(call.of(&tool, streaming("midway")), stop);
    assert!(unknown(result).contains("stopped on request while reading"));
    let call = Call::within(Duration::from_millis(300));
    assert!(unknown(call.of(&tool, streaming("midway")).await).contains("out of time"));
}

#[tokio::test]
async fn what_can_not_be_asked_is_permanent() {
    let url = "http://127.0.0.1:1/v1".to_owned();
    permanent(Call::new().of(&tool(url.clone()), json!({"messages": []})).await);
    let options = LlmOptions { base_url: url, system_proxy: false, ..LlmOptions::default() };
    let unnamed = llm(options.clone(), Secrets::fixed([]));
    assert!(permanent(Call::new().of(&unnamed, ask("x")).await).contains("no model"));
    let keyless = llm(LlmOptions { model: Some("m".into()), ..options }, Secrets::fixed([]));
    assert!(permanent(Call::new().of(&keyless, ask("x")).await).contains("OPENAI_API_KEY"));
}

#[tokio::test]
async fn all_three_are_built_in_unless_left_out() {
    let tools = builtin(&BuiltinOptions::default());
    assert_eq!(tools.names(), "command, http, llm");
    for spec in tools.iter() {
        assert!(!spec.doc.is_empty() && spec.options.timeout.is_some(), "{spec:?}");
        assert!(spec.input_schema.is_some() && spec.output_schema.is_some(), "{spec:?}");
    }
    assert_eq!(tools.get("llm").unwrap().options.class, Some(Class::Idempotent));
    let fewer = builtin(&BuiltinOptions { command: None, ..BuiltinOptions::default() });
    assert_eq!(fewer.names(), "http, llm");
}
