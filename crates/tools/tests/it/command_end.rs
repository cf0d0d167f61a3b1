//! Programs that are ended: on request, by time, by being dropped, with all they have started.

use crate::{
    command::{sh, tool},
    support::*,
};
use serde_json::{Value, json};
use std::{fs, path::Path, time::Duration};
use tenure_steps::tool::ToolError;

/// A process that is gone, or dead and only waiting to be reaped by whoever adopted it.
fn is_dead(pid: &str) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z'))
}

async fn dead(dir: &Path, file: &str) {
    let pid = fs::read_to_string(dir.join(file)).unwrap();
    until(&format!("the end of {file}"), || is_dead(pid.trim())).await;
}

/// Runs to `ready`, asks it to stop, and returns what came of it.
async fn stopped(dir: &Path, lines: &str) -> Result<Value, ToolError> {
    let (call, tool) = (Call::new(), tool());
    let stop = async {
        call.shows("ready").await;
        call.stop();
    };
    let mut input = sh(dir, lines);
    input["cwd"] = json!(dir);
    let (result, ()) = tokio::join!(call.of(&tool, input), stop);
    result
}

#[tokio::test]
async fn a_program_that_is_stopped_is_unknown_and_dead() {
    let dir = tempfile::tempdir().unwrap();
    let why = unknown(stopped(dir.path(), "echo $$ > pid; echo ready; exec sleep 1000").await);
    assert!(why.contains("stopped on request") && why.contains("killed by signal 15"), "{why}");
    dead(dir.path(), "pid").await;
}

#[tokio::test]
async fn a_program_that_ignores_sigterm_is_killed_after_a_grace() {
    let dir = tempfile::tempdir().unwrap();
    let lines = "trap '' TERM; echo $$ > pid; echo ready; while :; do sleep 1000; done";
    let why = unknown(stopped(dir.path(), lines).await);
    assert!(why.contains("killed by signal 9"), "{why}");
    dead(dir.path(), "pid").await;
}

#[tokio::test]
async fn a_program_that_ends_in_order_when_asked_to_has_a_result() {
    let dir = tempfile::tempdir().unwrap();
    let wait = "echo ready; while :; do sleep 0.01; done";
    let result = stopped(dir.path(), &format!("trap 'echo done; exit 0' TERM; {wait}")).await;
    assert_eq!(result.unwrap()["stdout"], "ready\ndone\n");
    // And one that says that it did nothing is cancelled.
    let result = stopped(dir.path(), &format!("trap 'exit 75' TERM; {wait}")).await;
    assert_eq!(result, Err(ToolError::Cancelled));
    unknown(stopped(dir.path(), &format!("trap 'exit 1' TERM; {wait}")).await);
}

#[tokio::test]
async fn grandchildren_end_with_it() {
    let dir = tempfile::tempdir().unwrap();
    // The child ignores SIGTERM and survives its parent, which does not.
    let lines =
        "(trap '' TERM; sh -c 'echo $$ > child; echo ready; while :; do sleep 1000; done') & wait";
    unknown(stopped(dir.path(), lines).await);
    dead(dir.path(), "child").await;
}

#[tokio::test]
async fn what_a_program_leaves_behind_ends_with_it_and_does_not_hold_the_call() {
    let dir = tempfile::tempdir().unwrap();
    let mut input = sh(dir.path(), "sleep 1000 & echo $! > child; echo said");
    input["cwd"] = json!(dir.path());
    let result = Call::new().of(&tool(), input).await.unwrap();
    assert_eq!(result["stdout"], "said\n");
    assert_eq!(result["stdout_truncated"], false);
    dead(dir.path(), "child").await;
}

#[tokio::test]
async fn who_has_left_the_group_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let lines = "setsid sh -c 'echo $$ > stray; exec sleep 1000' & \
                 until [ -s stray ]; do sleep 0.01; done; echo said";
    let mut input = sh(dir.path(), lines);
    input["cwd"] = json!(dir.path());
    let result = Call::new().of(&tool(), input).await.unwrap();
    assert_eq!(result["stdout"], "said\n");
    assert_eq!(result["stdout_truncated"], true, "somebody may still write to it");
    let stray = fs::read_to_string(dir.path().join("stray")).unwrap();
    assert!(!is_dead(stray.trim()));
    std::process::Command::new("kill").args(["-9", stray.trim()]).status().unwrap();
    dead(dir.path(), "stray").await;
}

#[tokio::test]
async fn a_program_that_takes_too_long_is_ended_in_time() {
    let call = Call::within(Duration::from_millis(400));
    let why = unknown(call.of(&tool(), json!({"program": "sleep", "args": ["1000"]})).await);
    assert!(why.contains("out of time after") && why.contains("signal 15"), "{why}");
}

#[tokio::test]
async fn a_dropped_call_leaves_no_program_behind() {
    let dir = tempfile::tempdir().unwrap();
    let (call, tool) = (Call::new(), tool());
    let mut input = sh(
        dir.path(),
        "trap '' TERM; sleep 1000 & echo $! > child; echo $$ > pid; echo ready; wait",
    );
    input["cwd"] = json!(dir.path());
    tokio::select! {
        result = call.of(&tool, input) => panic!("it does not end by itself: {result:?}"),
        () = call.shows("ready") => {}
    }
    dead(dir.path(), "pid").await;
    dead(dir.path(), "child").await;
}
