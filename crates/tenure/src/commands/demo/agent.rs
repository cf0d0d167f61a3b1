//! An agent beside the orders: its model is a script in this process, its tool a job like any other, its worker the
//! one that is left. What is told is read from the turn's own history.

use super::{
    super::Failure,
    stage::{PATIENCE, Stage},
    voice::Voice,
};
use serde_json::json;
use tenure_agents::{
    agent::Spec,
    desk::{Defaults, Desk, DeskError, Sending},
    view::{self, detail::end_of},
};
use tenure_edge::TokioRuntime;
use tenure_kernel::{head::Head, ids::EntityId, runtime::Runtime as _, table::Class};
use tenure_server::auth::DEFAULT_TENANT;
use tenure_tools::scripted::{Reply, Script, Server};

/// Between two looks at the turn.
const LOOK: std::time::Duration = std::time::Duration::from_millis(25);

fn refused(e: DeskError) -> Failure {
    Failure::Found(format!("the agent: {e}"))
}

/// Sends an agent a question, and tells how its turn goes.
pub(super) async fn tell(stage: &Stage, voice: &Voice) -> Result<EntityId, Failure> {
    voice.plain("\n4  An agent answers a question. Its tool is a job, too.");
    let script = Script::new()
        .when("packed", Reply::tool_call("call-1", "count_parcels", &json!({ "shelf": "A" })))
        .otherwise(Reply::text("Two parcels are packed."));
    let model = Server::start(script).await?;
    let desk = Desk::new(stage.pipeline().clone(), Defaults::default());
    let spec = Spec {
        name: "clerk".into(),
        target: "default".into(),
        output_box: Some("answers".into()),
        profile: json!({
            "model": { "name": "scripted", "base_url": model.base_url() },
            "instructions": "You know the warehouse.",
            "tools": [{ "name": "count_parcels", "run": { "flow": "demo.count@1" } }],
        }),
        ..Spec::default()
    };
    desk.set_agent(DEFAULT_TENANT, spec, Some("tenure demo".into())).await.map_err(refused)?;
    let sending = Sending {
        tenant: DEFAULT_TENANT.into(),
        agent: "clerk".into(),
        messages: vec![json!({ "role": "user", "content": "How many parcels are packed?" })],
        correlation_id: Some("question-1".into()),
        by: Some("tenure demo".into()),
        ..Sending::default()
    };
    let turn = desk.send(sending).await.map_err(refused)?.turn;
    voice.say("agent clerk is asked: how many parcels are packed? Its model is a script");
    let head = ended(stage, turn).await?;
    let whole = view::detail(stage.store(), &head).await?;
    let told = ["turn_dispatched", "step_finished", "turn_suspended", "result_applied"];
    for entry in whole.timeline.iter().filter(|e| told.contains(&e.event.as_str())) {
        voice.quote(entry.at, &entry.text);
    }
    let delivered = end_of(stage.store(), turn).await?.and_then(|end| end.deliverable);
    let delivered = delivered.map(|d| d.content.to_string()).unwrap_or_default();
    voice.say(&format!("the turn is {}, and delivered {delivered}", head.status.name()));
    Ok(turn)
}

async fn ended(stage: &Stage, turn: EntityId) -> Result<Head, Failure> {
    let rt = TokioRuntime::current();
    let until = rt.mono() + PATIENCE;
    loop {
        let head = stage.store().head(turn).await?;
        match head {
            Some(head) if head.class() == Class::Final => return Ok(head),
            _ if rt.mono() > until => {
                return Err(stage.failed(&format!("turn {turn} did not end")));
            }
            _ => rt.sleep(LOOK).await,
        }
    }
}
