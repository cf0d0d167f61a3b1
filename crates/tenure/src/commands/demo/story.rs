//! What is done, act by act.

use super::{
    super::Failure,
    people::{Said, answer_or_elsewhere, resolve, signal},
    stage::{LEASE_SECONDS, PATIENCE, Stage},
    voice::Voice,
    watch::Watch,
};
use serde::Serialize;
use tenure_kernel::{head::Head, ids::EntityId, table::Class};
use tenure_steps::events::{Verdict, WaitOutcome};

/// What was seen.
#[derive(Default)]
pub(super) struct Seen {
    /// The orders, the first one is the hero.
    pub orders: Vec<Told>,
    /// Workers that were killed.
    pub kills: Vec<Kill>,
    /// From the approval to the next call, in milliseconds.
    pub resume_ms: f64,
    /// What was said about the parcel is what the carrier knows.
    pub truthful: bool,
    /// The turn of the agent.
    pub turn: Option<EntityId>,
}

/// An order and what should have become of it.
pub(super) struct Told {
    pub number: u32,
    pub job: EntityId,
    /// The status in which it is left.
    pub wanted: &'static [&'static str],
    /// Reservations, charges and parcels that there should be.
    pub counts: [u32; 3],
}

/// A kill.
#[derive(Serialize)]
pub(super) struct Kill {
    /// Which process.
    pub pid: u32,
    /// What it had just done.
    pub after: &'static str,
    /// From the kill until another one went on.
    pub takeover_seconds: f64,
}

const HERO: u32 = 1001;
const BLOCKED: &[&str] = &["waiting", "parked"];
const ATTENTION: &[&str] = &["attention"];

/// Everything.
pub(super) async fn tell(stage: &mut Stage, voice: &mut Voice) -> Result<Seen, Failure> {
    voice.plain(
        "An order is reserved, paid, approved by a person, and shipped. Twice the process that works on it is killed\n\
         with SIGKILL: right after the world outside did what it was asked, before anybody has written that down.\n",
    );
    let url = stage.url();
    voice.say(&format!("a server at {url}; it also plays shop, bank and carrier, and counts"));
    let mut seen = Seen { truthful: true, ..Seen::default() };
    let first = stage.start_worker().await?;
    voice.say(&format!("worker {first}, a process of its own"));
    stage.outside.hold_answers_to(&name("charge", HERO));
    let job = stage.submit(HERO, "a violin").await?;
    voice.say(&format!("order {HERO} is submitted; lines with a bar are its own history"));
    let mut watch = Watch::new(job);

    voice.plain(
        "\n1  The worker is killed after the bank was told to charge. The bank can be asked.",
    );
    done_outside(stage, voice, &mut watch, "charge").await?;
    voice.say("the bank has charged, and holds its answer back: no one here knows");
    let second = replace(stage, voice, &mut watch, &mut seen, first, "charge").await?;
    watch.until(stage, voice, "waiting", |h| is(h, BLOCKED)).await?;
    let charges = stage.outside.count(&name("charge", HERO));
    voice.say(&format!("charges at the bank for order {HERO}: {charges}"));

    voice.plain("\n2  A person approves.");
    approval(stage, voice, &mut watch, &mut seen).await?;

    voice
        .plain("\n3  The worker is killed after the carrier took the parcel. Nobody can be asked.");
    voice.say("the carrier has the parcel, and holds its answer back: no one here knows");
    replace(stage, voice, &mut watch, &mut seen, second, "ship").await?;
    attention(stage, voice, &mut watch, &mut seen).await?;
    watch.until(stage, voice, "completed", |h| h.class() == Class::Final).await?;
    let (wanted, parcels): (&[&str], u32) = match seen.truthful {
        true => (&["completed"], 1),
        // Tenure believes people: what they said decided what was done.
        false => (&["completed", "failed"], stage.outside.count(&name("ship", HERO))),
    };
    voice.say(&format!(
        "parcels at the carrier for order {HERO}: {}",
        stage.outside.count(&name("ship", HERO))
    ));
    seen.orders.push(Told { number: HERO, job, wanted, counts: [1, 1, parcels] });

    seen.turn = Some(super::agent::tell(stage, voice).await?);

    voice.plain("");
    others(stage, voice, &mut seen).await?;
    Ok(seen)
}

/// Waits for the order's approval and gives it; then the carrier takes the parcel.
async fn approval(
    stage: &Stage,
    voice: &mut Voice,
    watch: &mut Watch,
    seen: &mut Seen,
) -> Result<(), Failure> {
    stage.outside.hold_answers_to(&name("ship", HERO));
    let said = answer_or_elsewhere(stage, voice, watch, "Enter approves:", BLOCKED).await?;
    let asked_at = stage.now().await?;
    if !matches!(said, Said::Elsewhere) {
        signal(stage, watch.job, WaitOutcome::Approved, voice.listener()).await?;
    }
    done_outside(stage, voice, watch, "ship").await?;
    let resumed = watch.last("tool_invocation_started", "ship").map(|t| t.since(asked_at));
    seen.resume_ms = resumed.map_or(f64::NAN, |d| d.as_secs_f64() * 1e3);
    voice.say(&format!("{:.0} ms from the yes to the next call", seen.resume_ms));
    Ok(())
}

/// Waits until the outside has done something for the order, and tells what led there.
async fn done_outside(
    stage: &Stage,
    voice: &Voice,
    watch: &mut Watch,
    what: &str,
) -> Result<(), Failure> {
    let name = name(what, HERO);
    if tokio::time::timeout(PATIENCE, stage.outside.until(&name, 1)).await.is_err() {
        watch.look(stage, voice).await?;
        let seconds = PATIENCE.as_secs();
        return Err(stage.failed(&format!("{name} did not happen within {seconds} s")));
    }
    watch.look(stage, voice).await?;
    Ok(())
}

/// Kills the worker that waits for the answer, and starts another one, which takes over.
async fn replace(
    stage: &mut Stage,
    voice: &Voice,
    watch: &mut Watch,
    seen: &mut Seen,
    worker: u32,
    after: &'static str,
) -> Result<u32, Failure> {
    let epoch = watch.look(stage, voice).await?.epoch;
    stage.kill_worker(worker).await?;
    let killed = stage.now().await?;
    voice.say(&format!("kill -9 {worker}"));
    stage.outside.answer_all();
    let next = stage.start_worker().await?;
    voice.say(&format!(
        "worker {next} is here; the dead one's lease of {LEASE_SECONDS} s has to end"
    ));
    // The end of a tenure raises the epoch, and so does the claim after it.
    watch.until(stage, voice, "taken over", |h| h.epoch >= epoch + 2).await?;
    let taken = watch.last("tenure_claimed", "").map(|t| t.since(killed));
    let takeover_seconds = taken.map_or(f64::NAN, |d| d.as_secs_f64());
    seen.kills.push(Kill { pid: worker, after, takeover_seconds });
    Ok(next)
}

/// The job asks what became of the parcel; somebody answers.
async fn attention(
    stage: &Stage,
    voice: &mut Voice,
    watch: &mut Watch,
    seen: &mut Seen,
) -> Result<(), Failure> {
    let state = watch.until(stage, voice, "in attention", |h| is(h, ATTENTION)).await?;
    let parcels = stage.outside.count(&name("ship", HERO));
    voice.say(&format!("parcels in the carrier's book, where a person can look: {parcels}"));
    let question = "Did it happen? [y]es, [n]o, [a]bandon:";
    let verdict = match answer_or_elsewhere(stage, voice, watch, question, ATTENTION).await? {
        Said::Elsewhere => {
            // The console was faster; whatever was said there, it is not for the demo to judge.
            seen.truthful = false;
            return Ok(());
        }
        Said::Here(word) if word.starts_with('n') => Verdict::DidNotHappen,
        Said::Here(word) if word.starts_with('a') => Verdict::Abandoned,
        Said::Here(_) => Verdict::Happened,
        Said::Nobody if parcels > 0 => Verdict::Happened,
        Said::Nobody => Verdict::DidNotHappen,
    };
    seen.truthful =
        (verdict == Verdict::Happened) == (parcels > 0) && verdict != Verdict::Abandoned;
    resolve(stage, watch.job, &state, verdict, voice.listener()).await
}

struct Plan {
    number: u32,
    item: &'static str,
    answer: Option<WaitOutcome>,
    wanted: &'static [&'static str],
    parcels: u32,
}

/// Three more orders, left where something has to be done: for the console.
async fn others(stage: &Stage, voice: &Voice, seen: &mut Seen) -> Result<(), Failure> {
    let plan =
        |number, item, answer, wanted, parcels| Plan { number, item, answer, wanted, parcels };
    let plans = [
        plan(1002, "a cello", None, BLOCKED, 0),
        plan(1003, "a harp", Some(WaitOutcome::Approved), ATTENTION, 1),
        plan(1004, "a gong", Some(WaitOutcome::Rejected), &["failed"], 0),
    ];
    stage.outside.hang_up_after(&name("ship", 1003));
    let quiet = voice.silent();
    for Plan { number, item, answer, wanted, parcels } in plans {
        let job = stage.submit(number, item).await?;
        let mut watch = Watch::new(job);
        watch.until(stage, &quiet, "waiting", |h| is(h, BLOCKED)).await?;
        if let Some(answer) = answer {
            signal(stage, job, answer, voice.listener()).await?;
        }
        watch.until(stage, &quiet, wanted[0], |h| is(h, wanted)).await?;
        seen.orders.push(Told { number, job, wanted, counts: [1, 1, parcels] });
    }
    voice.say(
        "three more orders: 1002 waits for a yes, 1003 is unknown since the line to the carrier broke, 1004 was refused",
    );
    Ok(())
}

/// Whether it stands in one of these.
pub(super) fn is(head: &Head, statuses: &[&str]) -> bool {
    statuses.contains(&head.status.name())
}

/// What something of an order is called outside.
pub(super) fn name(what: &str, number: u32) -> String {
    format!("{what}-{number}")
}
