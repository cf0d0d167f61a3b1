//! The console in a real Chromium, over its debugging protocol: the page of a job whose worker was killed by
//! SIGKILL and that now waits for a person, drawn live; and a press of a real button.
//!
//! `TENURE_CONSOLE_PICTURE=docs/console.png` also saves the picture of the README.

use crate::{
    console::{World, administrators_key, settings},
    console_cdp::Tab,
    support::{Guarded, fast, service},
};
use serde_json::{Value, json};
use std::{
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};
use tenure::{
    Approval, Ctx, FlowError, FlowSpec, Program, ToolCtx, ToolError, ToolSpec, config::Settings,
};
use tenure_lab::{
    drill::{outside, points},
    lab_process::LabProcess,
};
use tenure_proving::patience;

/// Set in the environment of a worker process: the server it works for.
const WORKS_FOR: &str = "TENURE_TEST_CONSOLE_WORKS_FOR";

/// An order: what a shop would run.
async fn order(ctx: Ctx, order: Value) -> Result<Value, FlowError> {
    let item = |what: &str| json!({ "outside": order["outside"], "name": what });
    let _: Value = ctx.tool("stock.reserve", item("reserve")).await?;
    let _: Value = ctx.tool("payments.charge", item("charge")).await?;
    let score: u32 =
        ctx.tool("fraud.score", item("score")).retries(3, Duration::from_millis(700)).await?;
    let note = format!(
        "Order {} over {} EUR, fraud score {score}. Release it?",
        order["id"], order["total"]
    );
    let answer: Approval = ctx.approval("release").note(note).await?;
    if !answer.approved {
        return Err(FlowError::failed("the order was not released"));
    }
    let booked: Value =
        ctx.tool("carrier.book", item("book")).timeout(Duration::from_millis(900)).await?;
    Ok(booked)
}

async fn ask(ctx: &ToolCtx, input: &Value, verb: &str) -> Result<String, ToolError> {
    let at = input["outside"].as_str().unwrap_or_default();
    let name = input["name"].as_str().unwrap_or_default();
    let words = outside::ask(at, &format!("{verb} {} {name}", ctx.key)).await;
    words.map(|w| w.join(" ")).map_err(|_| ToolError::unknown("the outside does not answer"))
}

/// The program of the worker processes.
fn program() -> Program {
    let act = |ctx: ToolCtx, input: Value| async move {
        let said = ask(&ctx, &input, "ACT").await?;
        tokio::time::sleep(Duration::from_millis(240)).await;
        Ok::<_, ToolError>(json!({ "receipt": said, "key": ctx.key }))
    };
    let probe = |ctx: ToolCtx, input: Value| async move {
        let said = ask(&ctx, &input, "PROBE").await?;
        Ok(match said.starts_with("YES") {
            true => tenure::Probe::Happened(json!({ "receipt": said, "key": ctx.key })),
            false => tenure::Probe::NotHappened,
        })
    };
    let score = |_: ToolCtx, _: Value| async move {
        static CALLS: AtomicU32 = AtomicU32::new(0);
        tokio::time::sleep(Duration::from_millis(180)).await;
        match CALLS.fetch_add(1, Ordering::SeqCst) {
            0 => Err(ToolError::retryable("503 from scores.example: warming up")),
            _ => Ok(12_u32),
        }
    };
    Program::new()
        .flow(FlowSpec::new("order", order).doc("Reserves, charges, asks, ships."))
        .tool(ToolSpec::new("stock.reserve", act).idempotent())
        .tool(ToolSpec::new("payments.charge", act).verifiable(probe))
        .tool(ToolSpec::new("fraud.score", score).idempotent())
        .tool(ToolSpec::new("carrier.book", act).irreversible())
}

/// Not a test but a process: this binary, started again by the test below, as a worker that can be killed.
#[tokio::test(flavor = "multi_thread")]
async fn works_when_it_was_started_as_a_worker() {
    let Ok(server) = std::env::var(WORKS_FOR) else { return };
    let sets = [
        "worker.lease_seconds=1.5".to_owned(),
        "worker.renewal_seconds=0.3".to_owned(),
        "server.tick_seconds=0.25".to_owned(),
        "server.pulse_gap_seconds=0.6".to_owned(),
    ];
    let settings = Settings::load(None, [], &sets).expect("valid settings");
    let process = LabProcess::from_environment().expect("orders that can be read");
    let program = program().altered(Arc::new(process));
    let key = std::env::var("TENURE_API_KEY").expect("a key");
    let _working = program.work(&settings, &server, Some(&key)).await.expect("it works");
    std::future::pending::<()>().await;
}

fn worker(server: &str, key: &str, point: Option<&str>) -> Guarded {
    let this = std::env::current_exe().expect("this binary");
    let mut command = Command::new(this);
    command
        .args(["console_browser::works_when_it_was_started_as_a_worker", "--exact"])
        .env(WORKS_FOR, server)
        .env("TENURE_API_KEY", key)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    if let Some(point) = point {
        command.env(points::VARIABLE, point);
    }
    Guarded(command.spawn().expect("it starts"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_lost_its_worker_is_drawn_and_moved_in_a_real_browser() {
    if fast() {
        println!("skipped: needs Chromium, and this is a fast check");
        return;
    }
    let chromium = service("TENURE_TEST_CHROMIUM");
    let dir = tempfile::tempdir().expect("a directory");
    let more = ["worker.lease_seconds=1.5", "server.tick_seconds=0.25"];
    let served = program().serve(&settings(&dir, &more), false).await.expect("it starts");
    let profile = dir.path().join("profile");
    let w = World::around(served, dir).await;
    w.outside.hold_answers_to("book");

    // The second call is the charge: it happens, and its worker is killed before it can say so.
    let key = administrators_key(&w.service).await;
    let mut first = worker(&w.service.url(), &key, Some("after_call:2:kill"));
    let input = json!({ "id": 4711, "total": 129, "outside": w.outside.address() });
    let job = w.submit_when_known("order", input).await;
    patience::until("the kill", async || matches!(first.0.try_wait(), Ok(Some(_)))).await;
    let _second = worker(&w.service.url(), &key, None);
    w.until(job, "parked").await;

    let mut tab = Tab::open(&chromium, &profile).await;
    tab.go(&w.service.url()).await;
    tab.until("document.querySelector('#rows .pill.parked')").await;
    tab.until("document.getElementById('live').dataset.state === 'live'").await;
    tab.picture("list").await;
    tab.go(&format!("{}/jobs/{job}", w.service.url())).await;
    tab.until("document.getElementById('live').dataset.state === 'live'").await;
    for (what, there) in [
        ("two holders", "document.querySelectorAll('#timeline rect.hold').length >= 2"),
        ("a lost one", "document.querySelector('#timeline rect.hold.lost, #timeline line.kill')"),
        ("an unknown effect", "document.querySelector('#timeline .bar.unknown')"),
        ("steps", "document.querySelectorAll('#steps tbody tr').length >= 4"),
    ] {
        assert_eq!(tab.eval(&format!("!!({there})")).await, json!(true), "{what}");
    }

    // What is being typed survives what changes around it: a page that comes back into sight gets every part anew.
    tab.eval("document.querySelector('input[name=comment]').value = 'looks fine'").await;
    tab.eval("document.querySelector('input[name=comment]').focus()").await;
    tab.eval("document.querySelector('input[name=comment]').isOld = true").await;
    tab.eval("dispatchEvent(new Event('pagehide'))").await;
    tab.eval("document.dispatchEvent(new Event('visibilitychange'))").await;
    tab.until("!document.querySelector('input[name=comment]').isOld").await;
    assert_eq!(tab.eval("document.activeElement.value").await, json!("looks fine"));
    tab.picture("approval").await;
    tab.click("button[value=approved]").await;
    tab.until("document.querySelector('.pill.big.attention')").await;
    tab.until("document.querySelector('button[value=happened]')").await;
    tab.picture("attention").await;
    if let Ok(path) = std::env::var("TENURE_CONSOLE_PICTURE") {
        tab.eval("document.getElementById('notice').remove()").await;
        tab.save(Path::new(&path), 1_280, 1_010).await;
    }
    tab.eval("document.querySelector('textarea[name=result]').value = '{\"booked\": true}'").await;
    tab.click("button[value=happened]").await;
    tab.until("document.querySelector('.pill.big.completed')").await;
    tab.picture("completed").await;
    tab.eval("document.querySelector('button[name=verify]').click()").await;
    tab.until("document.querySelector('#notice .pill')").await;
    tab.picture("verified").await;
    assert_eq!(w.outside.count("charge"), 1, "killed and taken over, and charged once");
    assert_eq!(tab.complaints, Vec::<String>::new());
}
