//! Agents that ask agents.

use crate::support::World;
use serde_json::{Value, json};
use tenure_agents::{drive::calls::child_of, turn::WaitFor, words::kinds};
use tenure_kernel::{ids::EntityId, table::Class};
use tenure_tools::scripted::{Gate, Reply, Script};

tenure_proving::on_every_store! {
    a_child_answers_its_parent,
    what_can_not_be_asked_is_answered_at_once,
    the_depth_limit,
    a_join_of_three_of_which_one_fails_fast,
    a_stop_reaches_children_and_jobs,
}

fn ask(agent: &str, what: &str) -> Reply {
    Reply::tool_call("d", "delegate", &json!({ "agent": agent, "instruction": what }))
}

async fn a_child_answers_its_parent(world: World) {
    let script = Script::new()
        .when("please", ask("b", "the child's task"))
        .when("the child's task", Reply::text("from the child"))
        .when("from the child", Reply::text("passed on"));
    let (_server, _crew) = world.scripted(script).await;
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

async fn what_can_not_be_asked_is_answered_at_once(world: World) {
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
    let (server, _crew) = world.scripted(script).await;
    world.agent("a", json!({ "delegates": ["a", "b"] })).await;
    let turn = world.send("a", "go").await;
    assert_eq!(world.delivered(turn).await, "I see");
    let told = server.requests()[1].body["messages"].to_string();
    for code in ["delegate_not_allowed", "unknown_agent", "asks_itself"] {
        assert!(told.contains(code), "{code}: {told}");
    }
    world.tasks(1).await;
}

async fn the_depth_limit(world: World) {
    let script = Script::new().then(ask("b", "deeper")).then(Reply::text("no deeper"));
    let (server, _crew) = world.scripted(script).await;
    world.agent("a", json!({ "delegates": ["*"] })).await;
    world.agent("b", Value::Null).await;
    let turn = world.send_at("a", "go", 20).await;
    assert_eq!(world.delivered(turn).await, "no deeper");
    assert!(server.requests()[1].body["messages"].to_string().contains("depth_limit"));
}

async fn a_join_of_three_of_which_one_fails_fast(world: World) {
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
    let (server, _crew) = world.scripted(script).await;
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

async fn a_stop_reaches_children_and_jobs(world: World) {
    let gate = Gate::new();
    let script = Script::new()
        .when("both", ask("b", "hang").and_tool_call("h", "hang", &json!({})))
        .when("hang", Reply::text("late").held(&gate));
    let (_server, _crew) = world.scripted(script).await;
    let hang = json!({ "name": "hang", "run": { "flow": "hang@1" }, "options": { "timeout_seconds": 600 } });
    world.agent("a", json!({ "delegates": ["b"], "tools": [hang] })).await;
    world.agent("b", Value::Null).await;
    let turn = world.send("a", "both").await;
    world.until(turn, "waiting for both", |_, s| s.waits.len() == 2).await;
    let asked: Vec<EntityId> = (world.state(turn).await.waits.iter())
        .map(|wait| match wait.waits_for {
            WaitFor::Job(id) | WaitFor::Turn(id) => id,
            _ => panic!("{wait:?}"),
        })
        .collect();
    for id in &asked {
        world.until_head(*id, "there", |_| true).await;
    }
    world.mail(turn, kinds::STOP, "stop", &json!({ "by": "ann" })).await;
    world.ended(turn).await;
    for id in asked {
        world.until_head(id, "over", |head| head.class() == Class::Final).await;
    }
    gate.open();
    world.tasks(2).await;
}
