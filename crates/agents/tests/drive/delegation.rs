//! Agents that ask agents.

use crate::support::scripted;
use serde_json::{Value, json};
use tenure_agents::{drive::calls::child_of, turn::WaitFor, words::kinds};
use tenure_kernel::table::Class;
use tenure_tools::scripted::{Gate, Reply, Script};

fn ask(agent: &str, what: &str) -> Reply {
    Reply::tool_call("d", "delegate", &json!({ "agent": agent, "instruction": what }))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_answers_its_parent() {
    let script = Script::new()
        .when("please", ask("b", "the child's task"))
        .when("the child's task", Reply::text("from the child"))
        .when("from the child", Reply::text("passed on"));
    let (world, _server, _crew) = scripted(script).await;
    world.agent("a", json!({ "delegates": ["b"] })).await;
    world.agent("b", Value::Null).await;
    let turn = world.send("a", "please").await;
    assert_eq!(world.delivered(turn).await, "passed on");
    let child = child_of(turn, 0);
    let state = world.state(child).await;
    assert_eq!((state.depth, state.agent_name.as_str()), (1, "b"));
    let (parent, child) = (world.head(turn).await, world.head(child).await);
    assert!(child.changed_at < parent.changed_at);
    world.tasks(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_not_be_asked_is_answered_at_once() {
    let script = Script::new()
        .then(
            ask("c", "not allowed")
                .and_tool_call(
                    "e",
                    "delegate",
                    &json!({ "agent": "b", "instruction": "not there" }),
                )
                .and_tool_call("f", "delegate", &json!({ "agent": "a", "instruction": "myself" })),
        )
        .then(Reply::text("I see"));
    let (world, server, _crew) = scripted(script).await;
    world.agent("a", json!({ "delegates": ["a", "b"] })).await;
    let turn = world.send("a", "go").await;
    assert_eq!(world.delivered(turn).await, "I see");
    let told = server.requests()[1].body["messages"].to_string();
    for code in ["delegate_not_allowed", "unknown_agent", "asks_itself"] {
        assert!(told.contains(code), "{code}: {told}");
    }
    world.tasks(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_depth_limit() {
    let script = Script::new().then(ask("b", "deeper")).then(Reply::text("no deeper"));
    let (world, server, _crew) = scripted(script).await;
    world.agent("a", json!({ "delegates": ["*"] })).await;
    world.agent("b", Value::Null).await;
    let turn = world.send_at("a", "go", 20).await;
    assert_eq!(world.delivered(turn).await, "no deeper");
    assert!(server.requests()[1].body["messages"].to_string().contains("depth_limit"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_join_of_three_of_which_one_fails_fast() {
    let gate = Gate::new();
    let tasks = json!([
        { "agent": "b", "instruction": "task good" },
        { "agent": "c", "instruction": "task bad" },
        { "agent": "d", "instruction": "task slow" },
    ]);
    let script = Script::new()
        .when(
            "fork",
            Reply::tool_call("j", "fork_join", &json!({ "tasks": tasks, "fail_fast": true })),
        )
        .when("task good", Reply::text("good"))
        .when("task bad", Reply::status(400, "no"))
        .when("task slow", Reply::text("slow").held(&gate))
        .when("task_index", Reply::text("joined"));
    let (world, server, _crew) = scripted(script).await;
    world.agent("a", json!({ "delegates": ["*"] })).await;
    for name in ["b", "c", "d"] {
        world.agent(name, Value::Null).await;
    }
    let turn = world.send("a", "fork").await;
    assert_eq!(world.delivered(turn).await, "joined");
    let told = server.requests().last().unwrap().body["messages"].to_string();
    assert!(told.contains("join_ended_early") && told.contains("unfinished"), "{told}");
    // The slow one was stopped.
    let slow = child_of(child_of(turn, 0), 2);
    assert_eq!(world.ended(slow).await.error.unwrap().code, "stopped");
    gate.open();
    world.tasks(4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_reaches_children_and_jobs() {
    let gate = Gate::new();
    let script = Script::new()
        .when("both", ask("b", "hang").and_tool_call("h", "hang", &json!({})))
        .when("hang", Reply::text("late").held(&gate));
    let (world, _server, _crew) = scripted(script).await;
    let hang = json!({ "name": "hang", "run": { "flow": "hang@1" }, "options": { "timeout_seconds": 600 } });
    world.agent("a", json!({ "delegates": ["b"], "tools": [hang] })).await;
    world.agent("b", Value::Null).await;
    let turn = world.send("a", "both").await;
    world.until(turn, "waiting for both", |_, s| s.waits.len() == 2).await;
    let waits = world.state(turn).await.waits;
    for wait in &waits {
        if let WaitFor::Job(id) | WaitFor::Turn(id) = wait.waits_for {
            for _ in 0..2_000 {
                if world.store.head(id).await.unwrap().is_some() {
                    break;
                }
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        }
    }
    world.mail(turn, kinds::STOP, "stop", &json!({ "by": "ann" })).await;
    world.ended(turn).await;
    for wait in waits {
        let (WaitFor::Job(id) | WaitFor::Turn(id)) = wait.waits_for else { panic!("{wait:?}") };
        for _ in 0..2_000 {
            if world.head(id).await.class() == Class::Final {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        assert_eq!(world.head(id).await.class(), Class::Final, "{wait:?}");
    }
    gate.open();
    world.tasks(2).await;
}
