//! A signal is lost, repeated, or early; and a job that waits is left alone for many leases.

use super::{act, acts, column, row, signal, thief::Thief};
use crate::drill::{
    case::Case,
    ground::{Ground, api},
    matrix::{Seen, Witnessed},
    proxy::{Proxy, Weather},
    witness::Expected,
};
use serde_json::{Value, json};
use tenure::commands::Failure;

/// How long a blocked job is left alone, in leases.
const LEASES: u32 = 6;

/// Signals sent at once.
const COPIES: u32 = 50;

/// Columns about steps: nothing may run while a job waits.
const ABOUT_STEPS: [&str; 4] =
    [column::STEP_RUNS, column::EFFECT_ONCE, column::NOT_REPLAYED, column::TOOL_ONCE];

/// All of them.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new(row::SIGNAL, "the request is lost", |g| lost(g, Weather::Cut)),
        Case::new(row::SIGNAL, "the answer is lost", |g| lost(g, Weather::HalfClosed)),
        Case::new(row::SIGNAL, format!("sent {COPIES} times at once"), many),
        Case::new(row::SIGNAL, "sent before the job waits", early),
        Case::new(row::SIGNAL, "sent under a wrong key", wrong_key),
        Case::new(row::SIGNAL, "the server is killed after its answer", server_killed).alone(),
        Case::new(row::SIGNAL, "the server is killed after it kept one", server_killed_early)
            .alone(),
        Case::new(row::BLOCKED, format!("left alone for {LEASES} leases"), left_alone),
        Case::new(row::BLOCKED, "cancelled while it waits", cancelled),
        Case::new(row::BLOCKED, "the server is killed while it waits", server_killed_meanwhile)
            .alone(),
    ]
}

fn lines() -> Value {
    json!([act("irreversible", "before"), signal("go"), act("irreversible", "after")])
}

fn expected(payload: Value) -> Expected {
    Expected {
        acts: acts(&[("before", "irreversible"), ("after", "irreversible")]),
        settled: vec!["before".into()],
        signal: Some(("go".into(), payload)),
        asked: None,
    }
}

/// A job that waits for its signal.
async fn waiting(ground: &Ground) -> Result<String, Failure> {
    let job = ground.submit(lines()).await?;
    let blocked = |j: &Value| j["status"] == "waiting" || j["status"] == "parked";
    match ground.until(&job, blocked).await {
        Some(_) => Ok(job),
        None => Err(Failure::System(format!("job {job} never came to wait"))),
    }
}

/// Nothing about a job that waits has moved.
async fn stands_still(ground: &Ground, job: &str, events: usize, seen: &mut Witnessed) {
    let happened = ground.outside.count("after");
    for column in ABOUT_STEPS {
        let against = (happened > 0).then(|| "a step behind the wait was run".to_owned());
        seen.judged(column, against.into_iter().collect());
    }
    let now = ground.events(job).await;
    let names: Vec<&str> = now.iter().skip(events).filter_map(|e| e["name"].as_str()).collect();
    let against = (!names.is_empty()).then(|| format!("a job that waits got {}", names.join(", ")));
    seen.judged(column::JOB_KEPT, against.into_iter().collect());
}

/// Judges the end; where the fault is no matter of steps, those columns say only what is wrong.
async fn judged(ground: &Ground, job: &str, expected: &Expected, seen: &mut Witnessed) {
    let mut end = ground.judged(job, expected).await;
    end.sightings.retain(|s| !ABOUT_STEPS.contains(&s.column) || matches!(s.seen, Seen::Broken(_)));
    seen.and(end);
}

async fn lost(ground: Ground, weather: Weather) -> Result<Witnessed, Failure> {
    let mut seen = Witnessed::default();
    let _worker = ground.worker(None)?;
    let job = waiting(&ground).await?;
    let events = ground.events(&job).await.len();
    let target = ground.base.url.split("://").last().unwrap_or_default().trim_end_matches('/');
    let proxy = Proxy::open(target.to_owned()).await?;
    let through = api(&format!("http://{}", proxy.address()), ground.base.key.clone())?;
    proxy.turn(weather);
    let body = json!({ "key": "go", "payload": 7 });
    let path = ["jobs", job.as_str(), "signal"];
    let first = through.post(&path, &body).await;
    if first.is_ok() {
        return Err(Failure::System("an answer came through a line that was cut".into()));
    }
    match weather {
        Weather::Cut => stands_still(&ground, &job, events, &mut seen).await,
        // It did arrive: what is lost is the answer.
        _ => ground.until_event(&job, "wait_completed", 1).await?,
    }
    proxy.turn(Weather::Clear);
    let again = through.post(&path, &body).await;
    let expected = expected(json!(7));
    ground.until_over(&job).await;
    judged(&ground, &job, &expected, &mut seen).await;
    let retried = Seen::AfterRetry("the caller got no answer and asked again".into());
    seen.saw(
        column::SIGNAL_KEPT,
        match again {
            Ok(_) => retried,
            Err(e) => Seen::Broken(format!("asking again was refused: {e}")),
        },
    );
    Ok(seen)
}

async fn many(ground: Ground) -> Result<Witnessed, Failure> {
    let mut seen = Witnessed::default();
    let _worker = ground.worker(None)?;
    let job = waiting(&ground).await?;
    let payload = json!(7);
    let copies = (0..COPIES).map(|_| ground.signal(&job, "go", &payload));
    let answers = futures_util::future::join_all(copies).await;
    let refused: Vec<String> =
        answers.into_iter().filter_map(Result::err).map(|e| e.to_string()).collect();
    ground.until_over(&job).await;
    judged(&ground, &job, &expected(json!(7)), &mut seen).await;
    seen.judged(column::SIGNAL_KEPT, refused);
    Ok(seen)
}

async fn early(ground: Ground) -> Result<Witnessed, Failure> {
    let mut seen = Witnessed::default();
    ground.outside.hold_answers_to("before");
    let _worker = ground.worker(None)?;
    let job = ground.submit(lines()).await?;
    ground.outside.until("before", 1).await;
    ground.signal(&job, "go", &json!(7)).await?;
    ground.outside.answer_all();
    ground.until_over(&job).await;
    judged(&ground, &job, &expected(json!(7)), &mut seen).await;
    Ok(seen)
}

async fn wrong_key(ground: Ground) -> Result<Witnessed, Failure> {
    let mut seen = Witnessed::default();
    let _worker = ground.worker(None)?;
    let job = waiting(&ground).await?;
    let events = ground.events(&job).await.len();
    let body = json!({ "key": "come", "payload": 1 });
    let answer = ground.api().post(&["jobs", &job, "signal"], &body).await;
    let against = answer.is_ok().then(|| "a key that nobody waits for was accepted".to_owned());
    seen.judged(column::STREAM_CLEAN, against.into_iter().collect());
    stands_still(&ground, &job, events, &mut seen).await;
    ground.signal(&job, "go", &json!(7)).await?;
    ground.until_over(&job).await;
    judged(&ground, &job, &expected(json!(7)), &mut seen).await;
    Ok(seen)
}

/// A signal that was answered is durable, whatever happens to whoever answered it.
async fn server_killed(mut ground: Ground) -> Result<Witnessed, Failure> {
    let mut seen = Witnessed::default();
    let _worker = ground.worker(None)?;
    let job = waiting(&ground).await?;
    let sent = ground.signal(&job, "go", &json!(7)).await;
    restart(&mut ground).await?;
    sent?;
    ground.until_over(&job).await;
    judged(&ground, &job, &expected(json!(7)), &mut seen).await;
    Ok(seen)
}

/// The same of a signal that comes before the job waits: it is answered before the job has read it.
async fn server_killed_early(mut ground: Ground) -> Result<Witnessed, Failure> {
    let mut seen = Witnessed::default();
    ground.outside.hold_answers_to("before");
    let _worker = ground.worker(None)?;
    let job = ground.submit(lines()).await?;
    ground.outside.until("before", 1).await;
    let sent = ground.signal(&job, "go", &json!(7)).await;
    restart(&mut ground).await?;
    sent?;
    ground.outside.answer_all();
    ground.until_over(&job).await;
    judged(&ground, &job, &expected(json!(7)), &mut seen).await;
    Ok(seen)
}

/// SIGKILL to the server, and another one in its place.
pub(super) async fn restart(ground: &mut Ground) -> Result<(), Failure> {
    match ground.cluster.as_mut() {
        Some(cluster) => {
            cluster.kill_server().await?;
            cluster.start_server().await
        }
        None => Err(Failure::System("this case has no server of its own".into())),
    }
}

/// Workers are there and idle, one of them claims what it should not, and nothing moves.
async fn left_alone(ground: Ground) -> Result<Witnessed, Failure> {
    let mut seen = Witnessed::default();
    let _workers = [ground.worker(None)?, ground.worker(None)?, ground.worker(None)?];
    let job = waiting(&ground).await?;
    let (events, attempt) = (ground.events(&job).await.len(), ground.attempt(&job).await);
    let thief = Thief::open(&ground).await?;
    let mut stolen = Vec::new();
    for _ in 0..LEASES {
        tokio::time::sleep(ground.base.lease).await;
        if stolen.is_empty() && thief.takes(&job).await?.is_ok() {
            stolen.push("a job that waits was claimed".to_owned());
        }
    }
    let moved = ground.attempt(&job).await != attempt;
    stolen.extend(moved.then(|| "a job that waits was given to another worker".to_owned()));
    seen.judged(column::JOB_KEPT, stolen);
    stands_still(&ground, &job, events, &mut seen).await;
    thief.leave().await;
    let before = ground.attempt(&job).await;
    ground.signal(&job, "go", &json!(7)).await?;
    seen.recoveries.extend(ground.taken_over(&job, before).await);
    ground.until_over(&job).await;
    judged(&ground, &job, &expected(json!(7)), &mut seen).await;
    Ok(seen)
}

async fn cancelled(ground: Ground) -> Result<Witnessed, Failure> {
    let mut seen = Witnessed::default();
    let _worker = ground.worker(None)?;
    let job = waiting(&ground).await?;
    ground.api().post(&["jobs", &job, "cancel"], &json!({ "why": "drill" })).await?;
    let ended = ground.until_status(&job, "cancelled").await;
    let against = ended.is_none().then(|| "a job that waits can not be cancelled".to_owned());
    seen.judged(column::JOB_KEPT, against.into_iter().collect());
    let end = ground.judged(&job, &Expected::default()).await;
    seen.sightings.extend(end.sightings.into_iter().filter(|s| s.column == column::STREAM_CLEAN));
    let happened = ground.outside.count("after");
    let against = (happened > 0).then(|| "a cancelled job went on".to_owned());
    seen.judged(column::EFFECT_ONCE, against.into_iter().collect());
    Ok(seen)
}

async fn server_killed_meanwhile(mut ground: Ground) -> Result<Witnessed, Failure> {
    let mut seen = Witnessed::default();
    let _worker = ground.worker(None)?;
    let job = waiting(&ground).await?;
    let events = ground.events(&job).await.len();
    restart(&mut ground).await?;
    tokio::time::sleep(ground.base.lease * 2).await;
    stands_still(&ground, &job, events, &mut seen).await;
    let before = ground.attempt(&job).await;
    ground.signal(&job, "go", &json!(7)).await?;
    seen.recoveries.extend(ground.taken_over(&job, before).await);
    ground.until_over(&job).await;
    judged(&ground, &job, &expected(json!(7)), &mut seen).await;
    Ok(seen)
}
