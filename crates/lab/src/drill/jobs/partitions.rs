//! A worker can not be heard, or stands still, for longer than its lease; and comes back.

use super::{five_acts, five_lines, row};
use crate::drill::{
    case::Case,
    ground::Ground,
    matrix::Witnessed,
    proxy::{Proxy, Weather},
    witness::Expected,
};
use rustix::process::Signal;
use serde_json::{Value, json};
use tenure::commands::Failure;

/// All of them.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let weathers = [
        (Weather::Held, "delayed past the lease"),
        (Weather::Swallowed, "dropped"),
        (Weather::HalfClosed, "half-closed"),
        (Weather::Cut, "cut"),
    ];
    for (weather, name) in weathers {
        for class in ["verifiable", "irreversible"] {
            cases.push(Case::new(row::PARTITION, format!("{name}, {class}"), move |g| {
                cut_off(g, weather, class)
            }));
        }
    }
    let stops = [
        ("stopped between started and the call", "before_call:2:stop"),
        ("stopped after the call", "after_call:2:stop"),
    ];
    for (name, point) in stops {
        cases.push(Case::new(row::PARTITION, name, move |g| stopped(g, point)));
    }
    cases
}

/// The tool runs while the line to the server breaks; its result arrives, if at all, after another worker
/// has taken over.
async fn cut_off(ground: Ground, weather: Weather, class: &str) -> Result<Witnessed, Failure> {
    let mut seen = Witnessed::default();
    let settled = vec!["first".into()];
    let mut expected = Expected { acts: five_acts(class), settled, ..Expected::default() };
    let target = ground.base.url.split("://").last().unwrap_or_default().trim_end_matches('/');
    let proxy = Proxy::open(target.to_owned()).await?;
    // The second worker is in the middle of the next step when what was delayed arrives.
    ground.outside.hold_answers_to("it");
    let mut first = ground.worker_at(&format!("http://{}", proxy.address()), None)?;
    let job = ground.submit(five_lines(class)).await?;
    ground.outside.until("it", 1).await;
    let before = ground.attempt(&job).await;
    proxy.turn(weather);
    ground.outside.answer_all();
    ground.outside.hold_answers_to("mid");
    let _second = ground.worker(None)?;
    seen.recoveries.extend(ground.taken_over(&job, before).await);
    // Whoever has it now is done with the step, or can not be, before the line is whole again.
    ground
        .until(&job, |j| {
            ground.outside.count("mid") > 0
                || j["status"] == "attention"
                || j["status"] == "waiting"
        })
        .await;
    proxy.turn(Weather::Clear);
    first.until_lost().await?;
    ground.outside.answer_all();
    ground.signal(&job, "go", &json!(7)).await?;
    expected.signal = Some(("go".into(), json!(7)));
    ground.finish(&job, "it", &mut expected).await?;
    seen.and(ground.judged(&job, &expected).await);
    Ok(seen)
}

/// SIGSTOP at a point, SIGCONT when somebody else has the job: a worker that wakes up does not act late, and
/// what it did before is heard as evidence.
async fn stopped(ground: Ground, point: &str) -> Result<Witnessed, Failure> {
    let mut seen = Witnessed::default();
    let class = "irreversible";
    let settled = vec!["first".into()];
    let mut expected = Expected { acts: five_acts(class), settled, ..Expected::default() };
    let mut first = ground.worker(Some(point))?;
    let job = ground.submit(five_lines(class)).await?;
    first.until_said("drill: ").await?;
    let before = ground.attempt(&job).await;
    let _second = ground.worker(None)?;
    seen.recoveries.extend(ground.taken_over(&job, before).await);
    ground.until_status(&job, "attention").await;
    // Under the key of the first worker's call: the second one may try again by now, under another.
    let started = |e: &&Value| e["name"] == "tool_invocation_started" && e["body"]["step"] == "2";
    let key = ground.events(&job).await.iter().find(started).map(|e| e["body"]["key"].clone());
    let key = key.and_then(|k| k.as_str().map(str::to_owned)).unwrap_or_default();
    let acts = || ground.outside.done().get(&key).map_or(0, |d| d.acts);
    let before = acts();
    first.send(Signal::CONT);
    first.until_lost().await?;
    let late = acts() > before;
    ground.signal(&job, "go", &json!(7)).await?;
    expected.signal = Some(("go".into(), json!(7)));
    ground.finish(&job, "it", &mut expected).await?;
    seen.and(ground.judged(&job, &expected).await);
    let against = late.then(|| "a worker that had lost the job acted for it".to_owned());
    seen.judged(super::column::EFFECT_ONCE, against.into_iter().collect());
    Ok(seen)
}
