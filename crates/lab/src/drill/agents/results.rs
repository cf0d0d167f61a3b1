//! Results that come twice, in another order, early, late, for nobody, or from somebody who lies.

use super::{
    arena::{ASK, ASK_TWO, Arena, asking},
    column, row,
    witness::Expected,
};
use crate::drill::{case::Case, ground::Ground, matrix::Witnessed};
use serde_json::{Value, json};
use tenure::commands::Failure;
use tenure_tools::scripted::Gate;

/// Results that are said at the same moment.
const AT_ONCE: usize = 8;

/// All of them.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new(row::RESULTS, format!("one result, {AT_ONCE} times at once"), twice),
        Case::new(row::RESULTS, format!("{AT_ONCE} results for one call at once"), others),
        Case::new(row::RESULTS, "two results in the other order", reordered),
        Case::new(row::RESULTS, "forged results", forged),
        Case::new(row::RESULTS, "a result before its call", early),
        Case::new(row::RESULTS, "a result after the end", late),
    ]
}

async fn suspended(
    ground: Ground,
    task: &str,
) -> Result<(Arena, crate::drill::processes::Hand, String), Failure> {
    let arena = Arena::open(ground, "verifiable", None).await?;
    let worker = arena.worker(None)?;
    let turn = arena.send(task).await?;
    arena.until_status(&turn, "suspended").await;
    Ok((arena, worker, turn))
}

/// Says them all at once. What became of each.
async fn all_at_once(arena: &Arena, turn: &str, bodies: &[Value]) -> Result<Vec<u16>, Failure> {
    let texts: Vec<String> = bodies.iter().map(Value::to_string).collect();
    let saying = texts.iter().map(|text| arena.say(turn, "results", text));
    let said: Result<Vec<_>, _> =
        futures_util::future::join_all(saying).await.into_iter().collect();
    Ok(said?.into_iter().map(|(status, _)| status).collect())
}

async fn twice(ground: Ground) -> Result<Witnessed, Failure> {
    let (arena, _worker, turn) = suspended(ground, ASK).await?;
    let same = vec![json!({ "wait": "1.1", "result": 7 }); AT_ONCE];
    let said = all_at_once(&arena, &turn, &same).await?;
    let expected = Expected { results: vec![("1.1", json!(7))], ..asking() };
    let mut seen = arena.judged(&turn, ASK, &expected).await?;
    // One is new; the others are known, or come after it was used, or after the end.
    let bad = said.iter().filter(|s| !matches!(s, 200 | 202 | 409)).count();
    let against = (bad > 0).then(|| format!("{bad} of them were answered in another way"));
    seen.judged(column::RESULT_ONCE, against.into_iter().collect());
    Ok(seen)
}

/// Different results for one call: the first that is read counts, whichever it is.
async fn others(ground: Ground) -> Result<Witnessed, Failure> {
    let (arena, _worker, turn) = suspended(ground, ASK).await?;
    let all: Vec<Value> = (0..AT_ONCE).map(|n| json!({ "wait": "1.1", "result": n })).collect();
    all_at_once(&arena, &turn, &all).await?;
    arena.judged(&turn, ASK, &asking()).await
}

async fn reordered(ground: Ground) -> Result<Witnessed, Failure> {
    let (arena, _worker, turn) = suspended(ground, ASK_TWO).await?;
    arena.answer(&turn, "1.2", &json!("second")).await?;
    // A sign of life of a call that is answered, and one of the other.
    for wait in ["1.2", "1.1"] {
        arena.say(&turn, "progress", &json!({ "wait": wait, "note": "at it" }).to_string()).await?;
    }
    arena.answer(&turn, "1.1", &json!("first")).await?;
    let results = vec![("1.1", json!("first")), ("1.2", json!("second"))];
    arena.judged(&turn, ASK_TWO, &Expected { results, ..asking() }).await
}

async fn forged(ground: Ground) -> Result<Witnessed, Failure> {
    let (arena, _worker, turn) = suspended(ground, ASK).await?;
    let epoch = arena.turn(&turn).await.and_then(|t| t["turn_epoch"].as_u64()).unwrap_or_default();
    let large = "x".repeat(512 * 1024);
    let lies = [
        json!({ "wait": "9.9", "result": "forged" }),
        json!({ "tool_call_id": "never", "result": "forged" }),
        json!({ "wait": "1.1", "turn_epoch": epoch + 7, "result": "forged" }),
        json!({ "wait": "1.1", "turn_epoch": epoch.saturating_sub(1), "result": "forged" }),
        json!({ "result": "forged" }),
        json!({ "wait": "1.1", "result": large }),
        json!({ "wait": "1.1", "status": "splendid", "result": "forged" }),
        json!({ "wait": "1.1", "result": "forged", "and": "more" }),
    ];
    let mut accepted = Vec::new();
    for lie in &lies {
        let (status, _) = arena.say(&turn, "results", &lie.to_string()).await?;
        if status < 400 {
            accepted.push(format!(
                "{} was answered {status}",
                lie.to_string().get(..80).unwrap_or("a large one")
            ));
        }
    }
    let (status, _) = arena.say(&turn, "results", "{\"wait\": \"1.1\", ").await?;
    if status != 400 {
        accepted.push(format!("what is no JSON was answered {status}"));
    }
    // Nobody's turn.
    let nobody = "01900000-0000-7000-8000-000000000000";
    let (status, _) = arena.say(nobody, "results", &json!({ "wait": "1.1" }).to_string()).await?;
    if status != 404 {
        accepted.push(format!("a turn that never was answered {status}"));
    }
    arena.answer(&turn, "1.1", &json!("true")).await?;
    let expected = Expected { results: vec![("1.1", json!("true"))], ..asking() };
    let mut seen = arena.judged(&turn, ASK, &expected).await?;
    seen.judged(column::RESULT_ONCE, accepted);
    Ok(seen)
}

/// Somebody knows the result before the model has said that it wants it.
async fn early(ground: Ground) -> Result<Witnessed, Failure> {
    let gate = Gate::new();
    let arena = Arena::open(ground, "verifiable", Some(&gate)).await?;
    let _worker = arena.worker(None)?;
    let turn = arena.send(ASK).await?;
    arena.model.seen(1).await;
    let (status, said) = arena
        .say(&turn, "results", &json!({ "tool_call_id": "c1", "result": 7 }).to_string())
        .await?;
    gate.open();
    let expected = Expected { results: vec![("1.1", json!(7))], ..asking() };
    let mut seen = arena.judged(&turn, ASK, &expected).await?;
    let kept = status == 202 && said["outcome"] == "kept";
    let against = (!kept).then(|| format!("it was answered {status} {said}"));
    seen.judged(column::RESULT_ONCE, against.into_iter().collect());
    Ok(seen)
}

/// After the end a result is evidence, and a dead letter that somebody can find.
async fn late(ground: Ground) -> Result<Witnessed, Failure> {
    let (arena, _worker, turn) = suspended(ground, ASK).await?;
    arena.answer(&turn, "1.1", &json!(7)).await?;
    arena.until_over(&turn).await;
    let (status, said) =
        arena.say(&turn, "results", &json!({ "wait": "1.1", "result": 8 }).to_string()).await?;
    let expected = Expected { results: vec![("1.1", json!(7))], ..asking() };
    let mut seen = arena.judged(&turn, ASK, &expected).await?;
    let mut against = Vec::new();
    if status != 409 || said["code"] != "turn_over" {
        against.push(format!("it was answered {status} {said}"));
    }
    let inbox = arena.ground.api().get(&["turns", &turn, "inbox"], &[]).await?;
    let items = inbox["items"].as_array().into_iter().flatten();
    if !items.into_iter().any(|i| i["code"] == "turn_over" && i["body"]["result"] == 8) {
        against.push("it is not kept as a dead letter".into());
    }
    seen.judged(column::RESULT_ONCE, against);
    Ok(seen)
}
