//! Workers of turns as processes that kill themselves at every point of a step: another one goes on, a finished step is not asked
//! again, its tool runs as one job, and the turn ends once.

use crate::lab::{Lab, bounded};
use serde_json::{Value, json};
use std::sync::Arc;
use tenure::kernel::{ids::EntityId, machine::decode_state, store::Store, table::Class};
use tenure_agents::{
    agent::Spec,
    desk::{Defaults, Desk, send::Sending},
    drive::worker::points,
    turn::{Turn, TurnEvent},
};
use tenure_tools::scripted::{Reply, Script, Server};

async fn events(store: &Arc<dyn Store>, turn: EntityId) -> Vec<TurnEvent> {
    let lines = tenure_engine::events::lines::<Turn>(store, turn).await.unwrap();
    lines.into_iter().filter_map(|(_, read)| read).collect()
}

async fn strike(point: &'static str) {
    let lab = Lab::open(None, &[]).await;
    let lines = json!([{ "act": { "class": "idempotent", "name": "forty-two" } }]);
    let tool = json!({ "outside": lab.outside.address(), "lines": lines });
    let script = Script::new()
        .when("go on", Reply::tool_call("c", "act", &tool))
        .when("forty-two", Reply::text("it is 42"));
    let server = Server::start(script).await.unwrap();
    let desk = Desk::new(lab.service.node.pipeline.clone(), Defaults::default());
    let spec = Spec {
        name: "a".into(),
        target: "default".into(),
        channel: Some("c".into()),
        output_box: Some("box".into()),
        profile: json!({
            "model": { "name": "scripted", "base_url": server.base_url() },
            "tools": [{ "name": "act", "run": { "flow": "drill.script@1" } }],
        }),
    };
    desk.set_agent("", spec, None).await.unwrap();
    let mut first = lab.doomed_worker(point);
    let sending = Sending {
        agent: "a".into(),
        messages: vec![json!({ "role": "user", "content": "go on" })],
        ..Sending::default()
    };
    let turn = desk.send(sending).await.unwrap().turn;
    first.ended().await;
    let _second = lab.worker();
    bounded(&format!("the end of a turn after {point}"), || async {
        (lab.head(turn).await.class() == Class::Final).then_some(())
    })
    .await;
    let all = events(&lab.store, turn).await;
    let state = decode_state::<Turn>(&lab.head(turn).await.state).unwrap();
    let end = all.iter().find_map(|e| e.as_end()).unwrap();
    let delivered = end.deliverable.as_ref().map(|d| d.content.clone());
    assert_eq!(delivered, Some(Value::String("it is 42".into())), "{point}: {all:#?}");
    for step in [1, 2] {
        let finished = |e: &&TurnEvent| matches!(e, TurnEvent::StepFinished(d) if d.step == step);
        assert_eq!(all.iter().filter(finished).count(), 1, "{point}: step {step}");
    }
    let lost = usize::from(point == points::MODEL_ANSWERED);
    assert_eq!(server.requests().len(), 2 + lost, "{point}: a finished step is not asked again");
    assert_eq!(state.waited, 1, "{point}: one job");
    lab.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_of_turns_is_killed_at_every_point_of_a_step() {
    for point in points::ALL {
        strike(point).await;
    }
}
