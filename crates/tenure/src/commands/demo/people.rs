//! What people say: at this terminal, elsewhere (in the console, say), or the demo in their place.

use super::{super::Failure, stage::Stage, story::is, voice::Voice, watch::Watch};
use serde_json::json;
use std::time::Duration;
use tenure_jobs::{
    JobState,
    ask::{self, ResolveAsk, SignalAsk},
};
use tenure_kernel::ids::EntityId;
use tenure_steps::events::{Verdict, WaitOutcome};

/// What a question came to.
pub(super) enum Said {
    /// At this terminal.
    Here(String),
    /// There is nobody: the demo answers by itself.
    Nobody,
    /// Somewhere else, the console say: the job has moved.
    Elsewhere,
}

/// Asks whoever sits here, unless somebody answers elsewhere first.
pub(super) async fn answer_or_elsewhere(
    stage: &Stage,
    voice: &mut Voice,
    watch: &mut Watch,
    question: &str,
    stands: &[&str],
) -> Result<Said, Failure> {
    if !voice.asks() {
        return Ok(Said::Nobody);
    }
    let moved = async {
        loop {
            match stage.store().head(watch.job).await {
                Ok(Some(head)) if is(&head, stands) => {}
                _ => return,
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let said = tokio::select! {
        said = voice.ask(question) => said.map_or(Said::Nobody, Said::Here),
        () = moved => Said::Elsewhere,
    };
    if matches!(said, Said::Elsewhere) {
        voice.plain("(answered elsewhere)");
    }
    Ok(said)
}

/// Says yes or no.
pub(super) async fn signal(
    stage: &Stage,
    job: EntityId,
    outcome: WaitOutcome,
    by: &str,
) -> Result<(), Failure> {
    let ask = SignalAsk {
        key: "shipping".to_owned(),
        outcome,
        payload: json!(null),
        by: Some(by.to_owned()),
        early: false,
    };
    let answer = ask::signal(stage.pipeline(), job, None, ask).await;
    answer.map(|_| ()).map_err(|e| Failure::Found(e.to_string()))
}

/// Says what became of the unknown call.
pub(super) async fn resolve(
    stage: &Stage,
    job: EntityId,
    state: &JobState,
    verdict: Verdict,
    by: &str,
) -> Result<(), Failure> {
    let unknown = state.calls.iter().find(|c| c.unknown.is_some());
    let Some(call) = unknown else {
        return Err(Failure::Found("the job is in attention, and no effect is unknown".into()));
    };
    let ask = ResolveAsk {
        step: call.step.clone(),
        verdict,
        result: json!({ "reference": call.key }),
        by: Some(by.to_owned()),
        note: Some("looked at the carrier's book".to_owned()),
        correct: false,
    };
    let answer = ask::resolve(stage.pipeline(), job, None, ask).await;
    answer.map(|_| ()).map_err(|e| Failure::Found(e.to_string()))
}
