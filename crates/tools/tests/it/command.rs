//! Programs that end by themselves.

use crate::support::*;
use serde_json::{Value, json};
use std::{fs, os::unix::fs::PermissionsExt, path::Path, time::Duration};
use tenure_steps::tool::{Class, ToolError, ToolSpec};
use tenure_tools::{CommandOptions, Secrets, Tenants, command};

pub fn tool() -> ToolSpec {
    let secrets = Secrets::fixed([("TENURE_SECRET_T".to_owned(), "s3cr3t-token".to_owned())]);
    let grace = Duration::from_millis(300);
    command(CommandOptions { grace, ..CommandOptions::default() }, secrets)
}

/// A program of these lines; `sh` stands in for any program that people have.
pub fn script(dir: &Path, lines: &str) -> String {
    let path = dir.join("program");
    fs::write(&path, format!("#!/bin/sh\n{lines}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Runs these lines. Not as a program itself: while a test in another thread forks, its child holds our file open
/// for writing, and such a file can not be executed. It can be read.
pub fn sh(dir: &Path, lines: &str) -> Value {
    json!({"program": "/bin/sh", "args": [script(dir, lines)]})
}

#[tokio::test]
async fn what_goes_in_comes_out_without_a_shell() {
    let text = "a $HOME `b` 'c'\n".repeat(20_000);
    let result = Call::new().of(&tool(), json!({"program": "cat", "stdin": text})).await.unwrap();
    assert_eq!(result["exit_code"], 0);
    assert_eq!(result["stdout_truncated"], true);
    let kept = result["stdout"].as_str().unwrap();
    assert_eq!(kept.len(), tenure_tools::command::OUTPUT_BYTES_MAX);
    assert!(text.starts_with(kept));
    let args = json!({"program": "/bin/echo", "args": ["$HOME", "a b", "*"]});
    assert_eq!(Call::new().of(&tool(), args).await.unwrap()["stdout"], "$HOME a b *\n");
}

#[tokio::test]
async fn programs_run_for_tenants_that_may_only() {
    let for_these = |text: &str| {
        let tenants = Tenants::read(text).unwrap();
        command(CommandOptions { tenants, ..CommandOptions::default() }, Secrets::default())
    };
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace");
    let input = json!({"program": "touch", "args": [trace.to_str().unwrap()]});
    let refused = Call::new().of(&for_these("default, ops"), input.clone()).await.unwrap_err();
    // The job goes to attention: a person may switch it on and have it run after all.
    let ToolError::Unknown(says) = refused else { panic!("{refused:?}") };
    assert!(says.contains("tenant \"t\"") && says.contains("tools.command_tenants"), "{says}");
    assert!(!trace.exists(), "nothing ran");
    Call::new().of(&for_these("t"), input).await.unwrap();
    assert!(trace.exists());
}

#[tokio::test]
async fn a_program_that_does_not_read_is_not_waited_for() {
    let text = "x".repeat(1_000_000);
    let result = Call::new().of(&tool(), json!({"program": "true", "stdin": text})).await.unwrap();
    assert_eq!((&result["stdout"], &result["exit_code"]), (&json!(""), &json!(0)));
}

#[tokio::test]
async fn bytes_that_are_no_text_come_as_base64() {
    let input = json!({"program": "printf", "args": ["\\377\\000"]});
    let result = Call::new().of(&tool(), input).await.unwrap();
    assert_eq!((&result["stdout"], &result["stdout_encoding"]), (&json!("/wA="), &json!("base64")));
}

#[tokio::test]
async fn a_program_sees_who_calls_and_nothing_else_of_the_worker() {
    let input = json!({"program": "env", "env": {"MINE": "1", "TENURE_KEY": "forged",
        "TOKEN": {"secret": "TENURE_SECRET_T"}}});
    let result = Call::new().of(&tool(), input).await.unwrap();
    let mut names: Vec<_> = result["stdout"].as_str().unwrap().lines().collect();
    names.retain(|line| !["PATH=", "HOME=", "LANG="].iter().any(|known| line.starts_with(known)));
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "MINE=1",
            "TENURE_EPOCH=5",
            &format!("TENURE_JOB={}", tenure_kernel::ids::EntityId::fixed(1, 7)),
            "TENURE_KEY=key-of-this-call",
            "TENURE_NOT_AFTER=2023-11-14T22:13:20.000000Z",
            "TENURE_STEP=3",
            "TOKEN=[secret TENURE_SECRET_T]",
        ]
    );
}

#[tokio::test]
async fn it_runs_where_it_is_told_to() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    let result = Call::new().of(&tool(), json!({"program": "pwd", "cwd": dir})).await.unwrap();
    assert_eq!(result["stdout"], format!("{}\n", dir.display()));
    let input = json!({"program": "pwd", "cwd": dir.join("gone")});
    let why = permanent(Call::new().of(&tool(), input).await);
    assert!(why.contains("no directory") && why.contains("gone"), "{why}");
}

#[tokio::test]
async fn a_program_that_can_not_be_started_did_nothing() {
    let why = permanent(Call::new().of(&tool(), json!({"program": "no-such-program"})).await);
    assert!(why.contains("no-such-program") && why.contains("PATH is "), "{why}");
    let input = json!({"program": "cat", "env": {"PATH": "/nowhere"}});
    let why = permanent(Call::new().of(&tool(), input).await);
    assert!(why.contains("PATH is /nowhere"), "{why}");
    let dir = tempfile::tempdir().unwrap();
    let path = script(dir.path(), "");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let why = permanent(Call::new().of(&tool(), json!({"program": path})).await);
    assert!(why.contains(&path) && why.contains("may not be executed"), "{why}");
    let why = permanent(Call::new().of(&tool(), json!({"program": "cat", "arg": []})).await);
    assert!(why.contains("arg"), "{why}");
}

#[tokio::test]
async fn exit_codes_mean_what_was_agreed() {
    let dir = tempfile::tempdir().unwrap();
    let exit = |code: i32, more: Value| {
        let mut input = sh(dir.path(), "echo about to fail >&2; exit $1");
        input["args"].as_array_mut().unwrap().push(json!(code.to_string()));
        for (name, value) in more.as_object().unwrap() {
            input[name] = value.clone();
        }
        input
    };
    let tool = tool();
    let call = Call::new();
    let why = unknown(call.of(&tool, exit(1, json!({}))).await);
    assert!(why.contains("exited with 1") && why.contains("about to fail"), "{why}");
    retryable(call.of(&tool, exit(75, json!({}))).await);
    permanent(call.of(&tool, exit(3, json!({"not_applied_exit_codes": [3]}))).await);
    permanent(call.of(&tool, exit(9, json!({"exit_means_not_applied": true}))).await);
    let result = call.of(&tool, exit(1, json!({"ok_exit_codes": [0, 1]}))).await.unwrap();
    assert_eq!((&result["exit_code"], &result["stderr"]), (&json!(1), &json!("about to fail\n")));
    // The second call under a key does not speak for the first.
    let why = unknown(Call::nth(2, LONG).of(&tool, exit(75, json!({}))).await);
    assert!(why.contains("earlier one may have"), "{why}");
}

#[tokio::test]
async fn a_program_that_somebody_else_kills_is_unknown() {
    let dir = tempfile::tempdir().unwrap();
    let mut input = sh(dir.path(), "kill -9 $$");
    input["exit_means_not_applied"] = json!(true);
    let why = unknown(Call::new().of(&tool(), input).await);
    assert!(why.contains("signal 9, not by us"), "{why}");
}

#[tokio::test]
async fn an_error_shows_the_end_of_stderr_without_secrets() {
    let dir = tempfile::tempdir().unwrap();
    let mut input = sh(dir.path(), "seq 100000 >&2; echo \"token is $TOKEN\" >&2; exit 1");
    input["env"] = json!({"TOKEN": {"secret": "TENURE_SECRET_T"}});
    let why = unknown(Call::new().of(&tool(), input).await);
    assert!(why.ends_with("99999 100000 token is [secret TENURE_SECRET_T]"), "{why}");
    assert!(why.len() < 2000, "{}", why.len());
}

#[tokio::test]
async fn it_is_irreversible_and_stops_before_it_starts() {
    let tool = tool();
    assert_eq!(tool.options.class, Some(Class::Irreversible));
    assert_eq!(tool.input_schema.as_ref().unwrap()["required"], json!(["program"]));
    let dir = tempfile::tempdir().unwrap();
    let call = Call::new();
    call.stop();
    let input = json!({"program": "touch", "args": [dir.path().join("f")]});
    assert_eq!(call.of(&tool, input).await, Err(ToolError::Cancelled));
    assert!(!dir.path().join("f").exists());
}
