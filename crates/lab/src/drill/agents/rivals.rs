//! Two workers at one inbox.

use super::{
    arena::{ACT, Arena, DONE, acting, asking, calls_act},
    column, row,
    witness::Expected,
};
use crate::drill::{
    case::Case,
    ground::Ground,
    matrix::Witnessed,
    processes::Hand,
    proxy::{Proxy, Weather},
};
use rustix::process::Signal;
use tenure::commands::Failure;
use tenure_tools::scripted::{Gate, Reply, Script};

/// Workers that are started at once.
const WORKERS: usize = 4;
/// Turns that wait in one line.
const TURNS: usize = 6;
/// What is asked of an agent that has no tool for it.
const TASK: &str = "please answer";

/// All of them.
pub fn cases() -> Vec<Case> {
    let woken = |name: &str, point: &'static str| {
        Case::new(row::RIVALS, format!("one sleeps {name}"), move |g| both(g, point))
    };
    vec![
        woken("after its claim", "turn_claimed:1:stop"),
        woken("before its question", "step_begun:1:stop"),
        woken("after the answer", "model_answered:1:stop"),
        Case::new(row::RIVALS, "its commit is delayed past the lease", delayed),
        Case::new(row::RIVALS, "its end is delayed past the lease", outdated),
        Case::new(row::RIVALS, format!("{WORKERS} workers, {TURNS} turns in one line"), race),
    ]
}

/// The first worker is stopped at a point, the second one takes over, the first one wakes up.
async fn both(ground: Ground, point: &str) -> Result<Witnessed, Failure> {
    let arena = Arena::open(ground, "verifiable", None).await?;
    let mut first = arena.worker(Some(point))?;
    let turn = arena.send(ACT).await?;
    first.until_said("drill: ").await?;
    let before = arena.epoch(&turn).await;
    let _second = arena.worker(None)?;
    let mut seen = Witnessed::default();
    seen.recoveries.extend(arena.taken_over(&turn, before).await);
    // It wakes up and does whatever it still would, then ends in order.
    first.send(Signal::CONT);
    first.send(Signal::TERM);
    first.ended().await?;
    // One that slept before or after its question asks once in vain: it can not know yet that it has lost the turn.
    let expected = Expected { asked: 2..=3, ..acting("verifiable") };
    seen.and(arena.judged(&turn, ACT, &expected).await?);
    Ok(seen)
}

/// What the first worker has to say arrives when another has said it: it is refused, whoever is right.
async fn delayed(ground: Ground) -> Result<Witnessed, Failure> {
    let (gate, other) = (Gate::new(), Gate::new());
    let act = || calls_act(&ground, "verifiable");
    let script = Script::new().then(act().held(&gate)).then(act());
    let script = script.then(Reply::text(DONE).held(&other)).otherwise(Reply::text(DONE));
    let mut late = Late::open(ground, script, ACT, &gate).await?;
    // The second one is in the middle of the next step when the commit of the first arrives.
    late.arrives(3).await?;
    other.open();
    late.judged(ACT, &Expected { asked: 3..=3, ..acting("verifiable") }).await
}

/// What the first worker would deliver arrives while another asks again: it is not what is delivered. No mail came in
/// between, so nothing but the epoch says that it is too late.
async fn outdated(ground: Ground) -> Result<Witnessed, Failure> {
    let (gate, other) = (Gate::new(), Gate::new());
    let script = Script::new().then(Reply::text("it is outdated").held(&gate));
    let script = script.then(Reply::text(DONE).held(&other)).otherwise(Reply::text(DONE));
    let mut late = Late::open(ground, script, TASK, &gate).await?;
    late.arrives(2).await?;
    other.open();
    late.judged(TASK, &asking()).await
}

/// Two workers, of which the first has an answer of the model and a line that holds back what it says about it. The second
/// one has its turn.
struct Late {
    arena: Arena,
    line: Proxy,
    first: Hand,
    _second: Hand,
    turn: String,
    seen: Witnessed,
}

impl Late {
    /// `gate` holds the first answer.
    async fn open(
        ground: Ground,
        script: Script,
        task: &str,
        gate: &Gate,
    ) -> Result<Self, Failure> {
        let arena = Arena::with(ground, script).await?;
        let (line, first) = behind_a_line(&arena).await?;
        let turn = arena.send(task).await?;
        arena.model.seen(1).await;
        let before = arena.epoch(&turn).await;
        line.turn(Weather::Held);
        gate.open();
        let _second = arena.worker(None)?;
        let mut seen = Witnessed::default();
        seen.recoveries.extend(arena.taken_over(&turn, before).await);
        Ok(Late { arena, line, first, _second, turn, seen })
    }

    /// The line is free when the model has been asked so often; the first worker ends in order.
    async fn arrives(&mut self, asked: usize) -> Result<(), Failure> {
        self.arena.model.seen(asked).await;
        self.line.turn(Weather::Clear);
        self.first.send(Signal::TERM);
        self.first.ended().await?;
        Ok(())
    }

    async fn judged(mut self, task: &str, expected: &Expected) -> Result<Witnessed, Failure> {
        self.seen.and(self.arena.judged(&self.turn, task, expected).await?);
        Ok(self.seen)
    }
}

/// A worker that is ready, on a line of its own.
async fn behind_a_line(arena: &Arena) -> Result<(Proxy, Hand), Failure> {
    let url = &arena.ground.base.url;
    let target = url.split("://").last().unwrap_or_default().trim_end_matches('/');
    let line = Proxy::open(target.to_owned()).await?;
    let mut worker = arena.ground.worker_at(&format!("http://{}", line.address()), None)?;
    worker.until_said("a worker for").await?;
    Ok((line, worker))
}

/// One turn at a time, first come, first served, whoever runs them.
async fn race(ground: Ground) -> Result<Witnessed, Failure> {
    let arena = Arena::open(ground, "verifiable", None).await?;
    let mut turns = Vec::new();
    for n in 0..TURNS {
        let task = format!("turn number {n}");
        turns.push((arena.send(&task).await?, task));
    }
    let workers: Result<Vec<_>, _> = (0..WORKERS).map(|_| arena.worker(None)).collect();
    let _workers = workers?;
    let mut seen = Witnessed::default();
    for (turn, task) in &turns {
        let expected = Expected { asked: 1..=1, ..asking() };
        seen.and(arena.judged(turn, task, &expected).await?);
    }
    let asked: Vec<String> = arena
        .model
        .requests()
        .iter()
        .filter_map(|r| {
            r.body["messages"].as_array()?.last()?["content"].as_str().map(str::to_owned)
        })
        .filter(|text| text.starts_with("turn number"))
        .collect();
    let in_line: Vec<&String> = turns.iter().map(|(_, task)| task).collect();
    let against = (asked.iter().collect::<Vec<_>>() != in_line)
        .then(|| format!("they were run in the order {asked:?}"));
    seen.judged(column::LINE_MOVES, against.into_iter().collect());
    Ok(seen)
}
