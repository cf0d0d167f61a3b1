//! Steps, tools, stops and limits.

use crate::support::{DENIED, World, chat, machines};
use serde_json::{Value, json};
use std::time::Duration;
use tenure_agents::{
    limits,
    rules::Rules,
    turn::TurnEvent,
    words::{EndStatus, ToolStatus, kinds},
};
use tenure_edge::TokioRuntime;
use tenure_kernel::{runtime::Runtime as _, table::Class};
use tenure_proving::stores::{Engine, Place};
use tenure_tools::scripted::{Gate, Reply, Script, Server};

tenure_proving::on_every_store! {
    one_step,
    a_tool_is_a_job_and_its_result_resumes_the_turn,
    one_call_of_a_tool_is_a_job_too,
    parallel_tools_of_which_one_does_not_answer,
    a_result_from_outside_early_and_late,
    a_stop_ends_a_turn_whose_model_hangs,
    a_slow_model_shows_progress,
    errors_of_the_model,
    a_model_that_takes_too_long,
    whatever_a_model_says_what_it_is_sent_is_valid,
    an_answer_that_is_none_is_asked_for_again,
    a_request_that_hangs_is_made_again,
    an_answer_in_parts_ends_the_turn,
    an_answer_that_was_cut_filtered_or_declined_ends_the_turn,
    a_tool_that_ends_the_turn,
    must_end_with,
    the_step_limit,
    the_conversation_limit,
    submitting_has_to_wait_for_results_that_were_not_seen,
    an_agent_with_a_bad_profile_fails_its_turn,
    turns_of_one_agent_come_one_after_another,
    a_worker_that_stops_gives_its_turn_back,
    a_call_that_the_bus_does_not_take_comes_back_to_the_turn,
    a_model_that_is_away_is_waited_for,
    a_text_has_to_wait_for_results_that_were_not_seen,
    the_last_tool_has_to_wait_for_results_that_were_not_seen,
}

fn tool(name: &str, run: Value) -> Value {
    json!({ "name": name, "run": run })
}

fn submit(result: &Value) -> Reply {
    Reply::tool_call("s", "submit_result", &json!({ "result": result }))
}

async fn one_step(world: World) {
    let (server, _crew) = world.scripted(Script::new().then(Reply::text("Hello, Ann."))).await;
    world.agent("a", json!({ "instructions": "Greet." })).await;
    let turn = world.send("a", "I am Ann").await;
    assert_eq!(world.delivered(turn).await, "Hello, Ann.");
    let asked = &server.requests()[0].body;
    assert_eq!(asked["messages"][0]["content"], "Greet.");
    assert_eq!(asked["messages"][1]["content"], "I am Ann");
    let task = &world.tasks(1).await[0];
    assert_eq!(task["status"], "success");
    // Created, dispatched, claimed, begun, finished.
    assert_eq!(world.store.stream(turn, 1, 100).await.unwrap().len(), 5);
}

async fn a_tool_is_a_job_and_its_result_resumes_the_turn(world: World) {
    let script = Script::new()
        .then(Reply::tool_call("c1", "add", &json!({ "a": 2, "b": 3 })))
        .then(submit(&json!({ "sum": 5 })));
    let (server, _crew) = world.scripted(script).await;
    world.agent("a", json!({ "tools": [tool("add", json!({ "flow": "add@1" }))] })).await;
    let turn = world.send("a", "2 and 3?").await;
    assert_eq!(world.delivered(turn).await, json!({ "sum": 5 }));
    let second = &server.requests()[1].body["messages"];
    let told = second.as_array().unwrap().last().unwrap();
    assert_eq!((&told["tool_call_id"], &told["content"]), (&json!("c1"), &json!("5")));
    assert_eq!(world.state(turn).await.turn_epoch, 2, "dispatch and resume");
    world.tasks(1).await;
}

async fn one_call_of_a_tool_is_a_job_too(world: World) {
    let script = Script::new()
        .then(Reply::tool_call("c1", "say", &json!({ "word": "hi" })))
        .then(Reply::text("done"));
    let (server, _crew) = world.scripted(script).await;
    world.agent("a", json!({ "tools": [tool("say", json!({ "tool": "echo" }))] })).await;
    let turn = world.send("a", "say hi").await;
    world.delivered(turn).await;
    let told = server.requests()[1].body["messages"][2]["content"].clone();
    assert_eq!(told, json!({ "echo": { "word": "hi" } }).to_string());
}

async fn parallel_tools_of_which_one_does_not_answer(mut world: World) {
    let script = Script::new()
        .then(
            Reply::tool_call("c1", "add", &json!({ "a": 1, "b": 1 }))
                .and_tool_call("c2", "hang", &json!({}))
                .and_tool_call("c3", "nothing", &json!({}))
                .and_tool_call("c4", "add", &json!("no object")),
        )
        .then(Reply::text("done"));
    let (server, _crew) = world.scripted(script).await;
    world.rules = Rules { suspend_ms: 600, ..world.rules };
    let tools =
        json!([tool("add", json!({ "flow": "add@1" })), tool("hang", json!({ "flow": "hang@1" }))]);
    world.agent("a", json!({ "tools": tools })).await;
    let turn = world.send("a", "go").await;
    assert_eq!(world.delivered(turn).await, "done");
    let told = server.requests()[1].body["messages"].as_array().unwrap()[2..].to_vec();
    let said: Vec<String> =
        told.iter().map(|m| m["content"].as_str().unwrap().to_owned()).collect();
    assert_eq!(said[0], "2");
    // The job ends before the wait does, or the wait ends first: both are readable.
    assert!(said[1].contains("job_failed") || said[1].contains("tool_timeout"), "{}", said[1]);
    assert!(said[2].contains("unknown_tool") && said[3].contains("bad_request"), "{said:?}");
}

async fn a_result_from_outside_early_and_late(world: World) {
    let gate = Gate::new();
    let script = Script::new()
        .then(Reply::tool_call("c1", "look", &json!({})).held(&gate))
        .then(Reply::tool_call("c2", "look", &json!({})))
        .then(Reply::text("done"));
    let (server, _crew) = world.scripted(script).await;
    let look = tool("look", json!({ "external": { "subject": "tools.look" } }));
    world.agent("a", json!({ "tools": [look] })).await;
    let turn = world.send("a", "look").await;
    server.seen(1).await;
    let early = json!({ "tool_call_id": "c1", "result": "early" });
    world.mail(turn, kinds::TOOL_RESULT, "m1", &early).await;
    world.until(turn, "holding an early result", |_, s| s.early == ["c1"]).await;
    gate.open();
    world.until_status(turn, "suspended").await;
    let state = world.state(turn).await;
    assert_eq!(state.waits[0].call, "c2", "the first was answered in the commit that suspended");
    let late = json!({ "wait": "2.1", "turn_epoch": state.turn_epoch, "result": "late" });
    world.mail(turn, kinds::TOOL_RESULT, "m2", &late).await;
    assert_eq!(world.delivered(turn).await, "done");
    let told = server.requests()[2].body["messages"].clone();
    assert_eq!((&told[2]["content"], &told[4]["content"]), (&json!("early"), &json!("late")));
    assert_eq!(world.ears.heard("tools.look").len(), 1, "nobody is told to do what is done");
}

/// A call that nobody was told of is not waited for until its time is up.
async fn a_call_that_the_bus_does_not_take_comes_back_to_the_turn(world: World) {
    let script = Script::new()
        .then(Reply::tool_call("c1", "look", &json!({})))
        .then(Reply::text("done without"));
    let (server, _crew) = world.scripted(script).await;
    let mut look = tool("look", json!({ "external": { "subject": DENIED } }));
    look["options"] = json!({ "timeout_seconds": 3_000 });
    world.agent("a", json!({ "tools": [look] })).await;
    let turn = world.send("a", "look").await;
    assert_eq!(world.delivered(turn).await, "done without");
    let told = server.requests()[1].body["messages"].to_string();
    assert!(told.contains("upstream_unavailable") && told.contains("not permitted"), "{told}");
}

/// A model is away for as long as a step may take, not for five questions; and is not asked sooner than it says.
async fn a_model_that_is_away_is_waited_for(world: World) {
    let mut script = Script::new();
    for _ in 0..8 {
        script = script.then(Reply::status(503, "restarting"));
    }
    let script = script
        .then(Reply::text("back"))
        .then(Reply::status(429, "slow down").header("retry-after", "1"))
        .then(Reply::text("thanks"));
    let (server, _crew) = world.scripted(script).await;
    world.agent("a", json!({ "step_timeout_seconds": 120 })).await;
    let turn = world.send("a", "go").await;
    assert_eq!(world.delivered(turn).await, "back");
    assert_eq!(server.requests().len(), 9);
    let rt = TokioRuntime::current();
    let began = rt.mono();
    let turn = world.send("a", "go").await;
    assert_eq!(world.delivered(turn).await, "thanks");
    assert!(rt.mono() - began >= Duration::from_secs(1), "asked before its time");
    // One that asks for more than the step has is not waited for.
    let tomorrow = Reply::status(429, "tomorrow").header("retry-after", "86400");
    let server = Server::start(Script::new().otherwise(tomorrow)).await.unwrap();
    let model = json!({ "name": "m", "base_url": server.base_url() });
    world.agent("b", json!({ "step_timeout_seconds": 120, "model": model })).await;
    let turn = world.send("b", "go").await;
    assert_eq!(world.ended(turn).await.error.unwrap().code, "model_unavailable");
}

/// So has a plain text, and the tool that a turn has to end with.
async fn a_text_has_to_wait_for_results_that_were_not_seen(world: World) {
    let said = (Reply::text("too soon"), Reply::text("now"));
    held_back(&world, said, Value::Null, json!("now")).await;
}

async fn the_last_tool_has_to_wait_for_results_that_were_not_seen(world: World) {
    let ends = json!({ "name": "add", "run": { "flow": "add@1" }, "after_execution": "terminate" });
    let add = || Reply::tool_call("c", "add", &json!({ "a": 4, "b": 4 }));
    let profile = json!({ "tools": [ends], "must_end_with": "add" });
    held_back(&world, (add(), add()), profile, json!(8)).await;
}

async fn held_back(world: &World, said: (Reply, Reply), profile: Value, delivered: Value) {
    let gate = Gate::new();
    let script = Script::new().then(said.0.held(&gate)).then(said.1);
    let (server, _crew) = world.scripted(script).await;
    world.agent("a", profile).await;
    let turn = world.send("a", "go").await;
    server.seen(1).await;
    let early = json!({ "tool_call_id": "other", "result": "look at me" });
    world.mail(turn, kinds::TOOL_RESULT, "m1", &early).await;
    world.until(turn, "holding an early result", |_, s| !s.early.is_empty()).await;
    gate.open();
    assert_eq!(world.delivered(turn).await, delivered);
    let second = server.requests()[1].body["messages"].to_string();
    assert!(second.contains("inbox_not_empty") && second.contains("look at me"), "{second}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_bus_a_tool_that_would_be_told_there_fails_at_once() {
    let place = Place::new(Engine::Memory, &machines()).await;
    let world = World::mute(place).await;
    let script = Script::new()
        .then(Reply::tool_call("c1", "look", &json!({})))
        .then(Reply::text("done without"));
    let server = Server::start(script).await.unwrap();
    let _crew = world.crew(chat(&server)).await;
    let mut look = tool("look", json!({ "external": { "subject": "tools.look" } }));
    look["options"] = json!({ "timeout_seconds": 3_000 });
    world.agent("a", json!({ "tools": [look] })).await;
    let turn = world.send("a", "look").await;
    assert_eq!(world.delivered(turn).await, "done without");
    let told = server.requests()[1].body["messages"].to_string();
    assert!(told.contains("upstream_unavailable") && told.contains("no bus"), "{told}");
}

async fn a_stop_ends_a_turn_whose_model_hangs(world: World) {
    let gate = Gate::new();
    let (server, _crew) = world.scripted(Script::new().then(Reply::text("late").held(&gate))).await;
    world.agent("a", Value::Null).await;
    let turn = world.send("a", "go").await;
    server.seen(1).await;
    world.mail(turn, kinds::STOP, "stop", &json!({ "why": "enough", "by": "ann" })).await;
    let end = world.ended(turn).await;
    assert_eq!(end.status, EndStatus::Failed);
    assert_eq!(end.error.unwrap().code, "stopped");
    gate.open();
    world.tasks(1).await;
}

async fn a_slow_model_shows_progress(mut world: World) {
    let gate = Gate::new();
    let (server, _crew) = world.scripted(Script::new().then(Reply::text("slow").held(&gate))).await;
    // It is shown three times in this time; without it the turn would be over.
    world.rules = Rules { inbox_processing_ms: 3_000, active_reap_ms: 3_000, ..world.rules };
    world.agent("a", json!({ "step_timeout_seconds": 30, "try_timeout_seconds": 30 })).await;
    let turn = world.send("a", "go").await;
    server.seen(1).await;
    let shown = |e: &TurnEvent| matches!(e, TurnEvent::ProgressMade { .. });
    world.place.until("shown thrice", async || world.count(turn, shown).await >= 3).await;
    gate.open();
    assert_eq!(world.delivered(turn).await, "slow");
}

async fn errors_of_the_model(world: World) {
    let script = Script::new()
        .then(Reply::status(503, "busy"))
        .then(Reply::text("x").broken())
        .then(Reply::text("third"))
        .then(Reply::status(400, "no such model"))
        .otherwise(Reply::status(500, "down"));
    let (_server, _crew) = world.scripted(script).await;
    world.agent("a", Value::Null).await;
    let first = world.send("a", "go").await;
    assert_eq!(world.delivered(first).await, "third");
    assert_eq!(world.state(first).await.step, 1, "asked three times within one step");
    let second = world.send("a", "go").await;
    assert_eq!(world.ended(second).await.error.unwrap().code, "model_refused");
    world.agent("b", json!({ "step_timeout_seconds": 1 })).await;
    let third = world.send("b", "go").await;
    let end = world.ended(third).await;
    assert_eq!(end.error.unwrap().code, "model_unavailable");
    assert!(end.deliverable.unwrap().fallback);
    world.tasks(3).await;
}

async fn a_model_that_takes_too_long(world: World) {
    let gate = Gate::new();
    let (_server, _crew) =
        world.scripted(Script::new().then(Reply::text("late").held(&gate))).await;
    world.agent("a", json!({ "step_timeout_seconds": 1 })).await;
    let turn = world.send("a", "go").await;
    let code = world.ended(turn).await.error.unwrap().code;
    assert!(["model_timeout", "model_unavailable"].contains(&code.as_str()), "{code}");
}

/// The scripted server checks each request against the public schema, and refuses what does not follow it.
async fn whatever_a_model_says_what_it_is_sent_is_valid(world: World) {
    let long = "n".repeat(200);
    let call = |name: &str, arguments: Value| json!({ "function": { "name": name, "arguments": arguments } });
    let odd = json!({
        "role": "model", "content": [{ "type": "thinking", "thinking": "hm" }], "reasoning_content": "hm", "annotations": [],
        "audio": null, "function_call": null, "refusal": null,
        "tool_calls": [
            call("look up!", json!({ "a": 1 })), call("", Value::Null), call(&long, json!("{not json")),
            call("add", json!("[1]")), json!("nonsense"), json!({ "id": 7, "type": "custom", "index": 3 }), Value::Null,
        ],
    });
    let empty =
        json!({ "role": "assistant", "content": null, "tool_calls": [], "reasoning": "hm" });
    for stream in [false, true] {
        let script = Script::new()
            .then(Reply::message(odd.clone()).finished_by("tool_calls"))
            .then(Reply::message(empty.clone()))
            .then(Reply::message(json!({ "content": null, "tool_calls": null, "refusal": "" })))
            .then(submit(&json!("done")));
        let server = Server::start(script).await.unwrap();
        let _crew = world.crew(chat(&server)).await;
        let name = format!("a{stream}");
        let model = json!({ "name": "m", "stream": stream });
        let add = tool("add", json!({ "flow": "add@1" }));
        world.agent(&name, json!({ "model": model, "tools": [add] })).await;
        let turn = world.send(&name, "go").await;
        assert_eq!(world.delivered(turn).await, "done", "{}", world.story(turn).await);
        assert_eq!(server.requests().len(), 4);
        // What was said is on record as it was said.
        assert!(world.story(turn).await.contains("look up!"));
    }
}

async fn an_answer_that_is_none_is_asked_for_again(world: World) {
    let script = Script::new()
        .then(Reply::raw("<html>starting</html>"))
        .then(Reply::raw("{\"choices\": [{\"mess"))
        .then(Reply::raw("{\"choices\": []}"))
        .then(Reply::text("half").finished_by("error"))
        .then(Reply::text("whole"));
    let (server, _crew) = world.scripted(script).await;
    world.agent("a", Value::Null).await;
    let turn = world.send("a", "go").await;
    assert_eq!(world.delivered(turn).await, "whole");
    assert_eq!(world.state(turn).await.step, 1, "all of it within one step");
    assert_eq!(server.requests().len(), 5);
}

async fn a_request_that_hangs_is_made_again(world: World) {
    let gate = Gate::new();
    let script =
        Script::new().then(Reply::text("never").held(&gate)).otherwise(Reply::text("here"));
    let (server, _crew) = world.scripted(script).await;
    world.agent("a", json!({ "try_timeout_seconds": 1 })).await;
    let turn = world.send("a", "go").await;
    assert_eq!(world.delivered(turn).await, "here");
    assert!(server.requests().len() >= 2);
    assert_eq!(world.state(turn).await.step, 1);
}

async fn an_answer_in_parts_ends_the_turn(world: World) {
    let parts = json!([{ "type": "text", "text": "Hello, " }, { "type": "text", "text": "Ann." }]);
    let message = json!({ "role": "assistant", "content": parts });
    let (_server, _crew) = world.scripted(Script::new().then(Reply::message(message))).await;
    world.agent("a", Value::Null).await;
    let turn = world.send("a", "go").await;
    assert_eq!(world.delivered(turn).await, "Hello, Ann.");
}

async fn an_answer_that_was_cut_filtered_or_declined_ends_the_turn(world: World) {
    let calls = Reply::tool_call("c", "submit_result", &json!({ "result": "a part" }));
    let declined = json!({ "role": "assistant", "content": null, "refusal": "No." });
    let in_parts =
        json!({ "role": "assistant", "content": [{ "type": "refusal", "refusal": "No." }] });
    let cases = [
        (Reply::text("Once upon a").finished_by("length"), "model_answer_cut"),
        (calls.finished_by("length"), "model_answer_cut"),
        (Reply::text("").finished_by("content_filter"), "model_answer_filtered"),
        (Reply::message(declined), "model_answer_refused"),
        (Reply::message(in_parts), "model_answer_refused"),
    ];
    let codes = cases.each_ref().map(|(_, code)| *code);
    let script = cases.into_iter().fold(Script::new(), |script, (reply, _)| script.then(reply));
    let (server, _crew) = world.scripted(script).await;
    world.agent("a", Value::Null).await;
    for (n, code) in codes.into_iter().enumerate() {
        let turn = world.send("a", "go").await;
        let end = world.ended(turn).await;
        assert_eq!((end.status, end.error.unwrap().code.as_str()), (EndStatus::Failed, code));
        assert_eq!(server.requests().len(), n + 1, "asked once");
        let events = world.events(turn).await;
        let done = events.iter().find_map(|e| match e {
            TurnEvent::StepFinished(done) => Some(done.clone()),
            _ => None,
        });
        assert!(
            done.unwrap().finish_reason.is_some(),
            "what was said, and why it ended, is on record"
        );
    }
}

async fn a_tool_that_ends_the_turn(world: World) {
    let script = Script::new()
        .then(Reply::tool_call("c1", "add", &json!({ "a": 1, "b": 2 })))
        .then(Reply::tool_call("c1", "large", &json!({ "bytes": 50_000 })));
    let (server, _crew) = world.scripted(script).await;
    let ends = |name: &str| json!({ "name": name, "run": { "flow": format!("{name}@1") }, "after_execution": "terminate" });
    world.agent("a", json!({ "tools": [ends("add")] })).await;
    world.agent("b", json!({ "tools": [ends("large")] })).await;
    let turn = world.send("a", "1 and 2").await;
    assert_eq!(world.delivered(turn).await, json!(3));
    // Too large for a head: a worker reads it and ends the turn.
    let turn = world.send("b", "much").await;
    assert_eq!(world.delivered(turn).await.as_str().unwrap().len(), 50_000);
    assert_eq!(server.requests().len(), 2, "the model is not asked once more");
    world.tasks(2).await;
}

async fn must_end_with(world: World) {
    let script = Script::new()
        .then(Reply::text("I am done."))
        .then(submit(&json!("no")))
        .then(Reply::tool_call("c", "add", &json!({ "a": 4, "b": 4 })));
    let (server, _crew) = world.scripted(script).await;
    let add = json!({ "name": "add", "run": { "flow": "add@1" }, "after_execution": "terminate" });
    world.agent("a", json!({ "tools": [add], "must_end_with": "add" })).await;
    let turn = world.send("a", "go").await;
    assert_eq!(world.delivered(turn).await, json!(8));
    let second = server.requests()[1].body["messages"].to_string();
    assert!(second.contains("End it by calling add"), "{second}");
    let third = server.requests()[2].body["messages"].to_string();
    assert!(third.contains("this turn ends with add"), "{third}");
}

/// A model may say as much as an answer has room for, at every step: all of it is read at the next one.
async fn the_conversation_limit(world: World) {
    let much = "x".repeat(3_900_000);
    let fit = limits::CONVERSATION_BYTES_MAX / much.len();
    let script = Script::new().otherwise(Reply::text(&much));
    let (server, _crew) = world.scripted(script).await;
    world.agent("a", json!({ "must_end_with": "submit_result", "max_steps": 2 * fit })).await;
    let turn = world.send("a", "go").await;
    let error = world.ended(turn).await.error.unwrap();
    assert_eq!(error.code, "conversation_too_large");
    assert!(error.message.contains("CONVERSATION_BYTES_MAX"), "{}", error.message);
    assert_eq!(
        server.requests().len(),
        fit + 1,
        "the step after the last that fits is not asked for"
    );
}

async fn the_step_limit(world: World) {
    let add = || Reply::tool_call("c", "add", &json!({ "a": 1, "b": 1 }));
    let script = Script::new().then(add()).then(add()).then(add()).otherwise(Reply::text("never"));
    let (server, _crew) = world.scripted(script).await;
    let tools = json!([tool("add", json!({ "flow": "add@1" }))]);
    world.agent("a", json!({ "tools": tools, "max_steps": 3 })).await;
    let turn = world.send("a", "go").await;
    assert_eq!(world.ended(turn).await.error.unwrap().code, "max_steps_exceeded");
    let asked: Vec<Value> = server.requests().into_iter().map(|r| r.body).collect();
    assert_eq!(asked.len(), 3);
    let offered = |n: usize| asked[n]["tools"].as_array().unwrap().len();
    assert_eq!((offered(0), offered(1), offered(2)), (2, 2, 1));
    assert!(asked[1]["messages"].to_string().contains("2 steps left"));
    assert!(asked[2]["messages"].to_string().contains("last step"));
}

async fn submitting_has_to_wait_for_results_that_were_not_seen(world: World) {
    let gate = Gate::new();
    let script = Script::new()
        .then(submit(&json!("too soon")).held(&gate))
        .then(submit(&json!("not alone")).and_tool_call("c", "nothing", &json!({})))
        .then(submit(&json!("now")));
    let (server, _crew) = world.scripted(script).await;
    world.agent("a", Value::Null).await;
    let turn = world.send("a", "go").await;
    server.seen(1).await;
    let early = json!({ "tool_call_id": "other", "result": "look at me" });
    world.mail(turn, kinds::TOOL_RESULT, "m1", &early).await;
    world.until(turn, "holding an early result", |_, s| !s.early.is_empty()).await;
    gate.open();
    assert_eq!(world.delivered(turn).await, "now");
    let second = server.requests()[1].body["messages"].to_string();
    assert!(second.contains("inbox_not_empty") && second.contains("look at me"), "{second}");
    let third = server.requests()[2].body["messages"].to_string();
    assert!(third.contains("not_alone"), "{third}");
    let refused =
        |e: &TurnEvent| matches!(e, TurnEvent::ResultApplied(a) if a.status == ToolStatus::Failed);
    assert_eq!(world.count(turn, refused).await, 3);
}

async fn an_agent_with_a_bad_profile_fails_its_turn(world: World) {
    let (_server, _crew) = world.scripted(Script::new()).await;
    world.agent("a", json!({ "max_steps": "many" })).await;
    let turn = world.send("a", "go").await;
    assert_eq!(world.ended(turn).await.error.unwrap().code, "bad_profile");
}

async fn turns_of_one_agent_come_one_after_another(world: World) {
    let (server, _crew) = world.scripted(Script::new().otherwise(Reply::text("ok"))).await;
    world.agent("a", Value::Null).await;
    let mut turns = Vec::new();
    for n in 0..10 {
        turns.push(world.send("a", &format!("task {n}")).await);
    }
    for turn in &turns {
        world.ended(*turn).await;
    }
    let order: Vec<String> = server
        .requests()
        .iter()
        .map(|r| r.body["messages"][0]["content"].as_str().unwrap().to_owned())
        .collect();
    let expected: Vec<String> = (0..10).map(|n| format!("task {n}")).collect();
    assert_eq!(order, expected);
    world.tasks(10).await;
}

async fn a_worker_that_stops_gives_its_turn_back(world: World) {
    let gate = Gate::new();
    let server = Server::start(
        Script::new().then(Reply::text("late").held(&gate)).then(Reply::text("second")),
    )
    .await
    .unwrap();
    let mut crew = world.crew(chat(&server)).await;
    world.agent("a", Value::Null).await;
    let turn = world.send("a", "go").await;
    server.seen(1).await;
    crew.stop().await;
    assert_eq!(world.head(turn).await.status.name(), "ready");
    assert_eq!(world.state(turn).await.takeovers, 0, "given back, not lost");
    let _other = world.crew(chat(&server)).await;
    assert_eq!(world.delivered(turn).await, "second");
    assert_eq!(world.state(turn).await.step, 1);
    assert_eq!(world.head(turn).await.class(), Class::Final);
}
