//! What it comes to: the order's timeline, the verification, and the counts of the outside world.

use super::{
    super::{Failure, judge, problems},
    stage::Stage,
    story::{Seen, Told, name},
    voice::Voice,
};
use serde_json::{Value, json};
use tenure_jobs::{Job, view};
use tenure_kernel::{ids::EntityId, machine::decode_state};

/// Columns of the timeline.
const WIDTH: usize = 100;

/// What was done outside, in the order of [`Told::counts`].
const DEEDS: [&str; 3] = ["reserve", "charge", "ship"];

/// Tells it. Whether every promise was kept.
pub(super) async fn give(stage: &Stage, voice: &Voice, seen: &Seen) -> Result<bool, Failure> {
    let mut orders = Vec::new();
    let mut wrong = Vec::new();
    let mut checks = 0;
    for told in &seen.orders {
        orders.push(look_at(stage, told, &mut wrong).await?);
        checks += verified(stage, told, &mut wrong).await?;
    }
    let turn = turn(stage, seen, &mut wrong).await?;
    wrong.extend(sound(stage).await);
    let kept = wrong.is_empty();
    if voice.is_json() {
        let object = json!({
            "kept": kept,
            "url": stage.url(),
            "directory": stage.dir(),
            "seconds": voice.elapsed().as_secs_f64(),
            "workers": stage.pids,
            "kills": seen.kills,
            "resume_ms": seen.resume_ms,
            "orders": orders,
            "turn": turn,
            "verification": { "ok": kept, "problems": wrong, "checks": checks },
        });
        voice.out(&object.to_string());
        return Ok(kept);
    }
    if let Some(hero) = seen.orders.first() {
        draw(stage, voice, hero.job).await?;
        sum_up(stage, voice, seen, hero);
    }
    match wrong.as_slice() {
        [] => {
            let rules = if checks > 0 { ", the rules of every job" } else { "" };
            voice.plain(&format!(
                "Verified: hash chains, heads against their history, deadlines{rules}."
            ));
        }
        problems => problems.iter().for_each(|p| voice.plain(&format!("WRONG: {p}"))),
    }
    Ok(kept)
}

/// An order as it stands, and what about it is not as it should be.
async fn look_at(stage: &Stage, told: &Told, wrong: &mut Vec<String>) -> Result<Value, Failure> {
    let Told { number, job, wanted, counts } = told;
    let head = stage.store().head(*job).await?;
    let head = head.ok_or_else(|| Failure::Found(format!("order {number} is gone")))?;
    let state = decode_state::<Job>(&head.state).map_err(|e| Failure::Found(e.to_string()))?;
    let status = head.status.name();
    if !wanted.contains(&status) {
        wrong.push(format!("order {number} is {status} and should be {}", wanted.join(" or ")));
    }
    let mut outside = serde_json::Map::new();
    for (deed, wanted) in DEEDS.into_iter().zip(counts) {
        let count = stage.outside.count(&name(deed, *number));
        if count != *wanted {
            wrong
                .push(format!("order {number}: {deed} happened {count} times instead of {wanted}"));
        }
        outside.insert(deed.to_owned(), count.into());
    }
    Ok(
        json!({ "number": number, "job": job, "status": status, "takeovers": state.takeovers, "outside": outside }),
    )
}

/// The agent's turn as it stands, and whether its tool was one job.
async fn turn(stage: &Stage, seen: &Seen, wrong: &mut Vec<String>) -> Result<Value, Failure> {
    let Some(id) = seen.turn else { return Ok(Value::Null) };
    let head = stage.store().head(id).await?;
    let head = head.ok_or_else(|| Failure::Found(format!("turn {id} is gone")))?;
    let whole = tenure_agents::view::detail(stage.store(), &head).await?;
    let status = head.status.name();
    let calls: Vec<_> = whole.steps.iter().flat_map(|s| &s.calls).collect();
    if status != "success" || calls.len() != 1 {
        wrong.push(format!("turn {id} is {status}, with {} tool calls", calls.len()));
    }
    let job = calls.first().and_then(|c| c.of);
    Ok(json!({ "id": id, "status": status, "steps": whole.steps.len(), "job": job }))
}

/// Checks a job's own history. How many rules were looked at.
async fn verified(stage: &Stage, told: &Told, wrong: &mut Vec<String>) -> Result<usize, Failure> {
    let found = view::verify(stage.store(), &judge().tables, told.job, None).await;
    let found = found.map_err(|e| Failure::Found(e.to_string()))?;
    let Some(found) = found else { return Ok(0) };
    wrong.extend(found.problems.into_iter().map(|p| format!("order {}: {p}", told.number)));
    Ok(found.checks.len())
}

/// What is wrong with the store. It is in use: what a second look does not find again was a commit between
/// two reads of the first.
async fn sound(stage: &Stage) -> Vec<String> {
    let first = problems(&**stage.store()).await;
    if first.is_empty() {
        return first;
    }
    let second = problems(&**stage.store()).await;
    second.into_iter().filter(|p| first.contains(p)).collect()
}

async fn draw(stage: &Stage, voice: &Voice, job: EntityId) -> Result<(), Failure> {
    let detail = view::detail(stage.store(), job).await;
    let Some(detail) = detail.map_err(|e| Failure::Found(e.to_string()))? else { return Ok(()) };
    let timeline = view::timeline(&detail, stage.now().await?);
    if timeline.lanes.is_empty() {
        return Ok(());
    }
    voice.plain(&format!("\n{}", view::render_text(&timeline, WIDTH).trim_end()));
    Ok(())
}

fn sum_up(stage: &Stage, voice: &Voice, seen: &Seen, hero: &Told) {
    let killed: Vec<String> =
        seen.kills.iter().map(|k| format!("{:.1}", k.takeover_seconds)).collect();
    let [reserved, charged, shipped] = DEEDS.map(|d| stage.outside.count(&name(d, hero.number)));
    voice.plain(&format!(
        "\n{} workers were killed in the middle of a call; the next one went on after {} s. Order {} outside:\n\
         reservations {reserved}, charges {charged}, parcels {shipped}.",
        killed.len(),
        killed.join(" and "),
        hero.number,
    ));
    if !seen.truthful {
        voice.plain("What was said about the parcel was not what the carrier knows. Tenure does not guess: it believes people.");
    }
}
