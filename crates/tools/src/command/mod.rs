//! `command`: one program, without a shell.
//!
//! A program that has exited is finished; whether it did what it was asked to before it failed, nobody
//! can tell from outside. A nonzero exit is therefore `Unknown`, unless there is an agreement that it means "I did nothing"
//! (`exit`). A program that we stop is stopped for good: it runs in a process group of its own, and nothing of
//! that group is left when the call returns (`group`).
//!
//! Where this ends: if the *worker* is killed with SIGKILL, nobody is left to end the group, and the program runs on. It
//! knows `TENURE_NOT_AFTER` and may heed it. Asking the kernel to kill it with its parent (`PR_SET_PDEATHSIG`) is tied to the
//! parent's *thread*, which in Tokio may end long before the process. A program that leaves its group (`setsid`) leaves our
//! reach as well. What else a program is kept from is in `sandbox`.

mod capture;
mod exit;
mod group;
mod prepare;
mod sandbox;

use crate::{
    secrets::{Redactor, Secrets, Text},
    standing::standing,
    tenants::Tenants,
    text::{self, Encoding},
    wire,
};
use capture::Captured;
pub use exit::TEMPORARY_FAILURE;
use exit::{Ended, Stopped};
use group::Group;
use prepare::{not_started, prepare};
pub use sandbox::{SandboxOptions, Writable, confines_files, paths};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, io, path::PathBuf, pin::pin, time::Duration};
use tenure_steps::tool::{ToolCtx, ToolError, ToolSpec};
use tokio::time::Instant;

/// Of each of standard output and standard error, so much is kept: the beginning of the first, the end of
/// the second.
pub const OUTPUT_BYTES_MAX: usize = 256 * 1024;
/// How long a program may take to end after SIGTERM, unless the options say otherwise; at most a quarter of
/// the timeout.
pub const GRACE: Duration = Duration::from_secs(5);
/// How long a call may take, unless step or configuration say otherwise. The grace is part of it.
pub const TIMEOUT: Duration = Duration::from_secs(300);
/// How long is waited for the end of the output when the program is gone. It comes at once unless a process that
/// left the group holds the pipe.
const DRAIN: Duration = Duration::from_secs(1);

/// What the operator decides.
#[derive(Clone, Debug)]
pub struct CommandOptions {
    /// See [`GRACE`].
    pub grace: Duration,
    /// See [`OUTPUT_BYTES_MAX`].
    pub output_bytes_max: usize,
    /// Whose jobs may run programs: they run as the worker's own user.
    pub tenants: Tenants,
    /// What they are kept from.
    pub sandbox: SandboxOptions,
}

impl Default for CommandOptions {
    fn default() -> Self {
        CommandOptions {
            grace: GRACE,
            output_bytes_max: OUTPUT_BYTES_MAX,
            tenants: Tenants::default(),
            sandbox: SandboxOptions::default(),
        }
    }
}

/// A program to run.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CommandInput {
    /// A path, or a name that is looked for in `PATH`.
    pub program: String,
    /// Its arguments, as they are: no shell reads them.
    #[serde(default)]
    pub args: Vec<String>,
    /// What it reads; nothing unless given.
    #[serde(default)]
    pub stdin: Option<String>,
    /// Besides `PATH`, `HOME` and `LANG`. A value is a text, or `{"secret": "NAME"}`.
    #[serde(default)]
    pub env: BTreeMap<String, Text>,
    /// Where it runs; the worker's directory unless given.
    #[serde(default)]
    pub cwd: Option<PathBuf>,
    /// Exit codes that count as a result; 0 unless given.
    #[serde(default)]
    pub ok_exit_codes: Vec<i32>,
    /// Exit codes with which it says: I did nothing, and trying again would not help.
    #[serde(default)]
    pub not_applied_exit_codes: Vec<i32>,
    /// Every exit code but the above means that: for programs that only read, or that do all or nothing.
    #[serde(default)]
    pub exit_means_not_applied: bool,
}

/// What came of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CommandOutput {
    /// Its exit code; one of `ok_exit_codes`.
    pub exit_code: Option<i32>,
    /// The signal that ended it. A result never has one; an error names it.
    pub signal: Option<i32>,
    /// Its standard output: text, or bytes as base64.
    pub stdout: String,
    /// Which of them.
    pub stdout_encoding: Encoding,
    /// There was more; this is the beginning.
    pub stdout_truncated: bool,
    /// Its standard error, as text.
    pub stderr: String,
    /// There was more; this is the end.
    pub stderr_truncated: bool,
}

/// The tool `command`.
pub fn command(options: CommandOptions, secrets: Secrets) -> ToolSpec {
    ToolSpec::new("command", move |ctx: ToolCtx, input: CommandInput| {
        let (options, secrets) = (options.clone(), secrets.clone());
        async move {
            run(&options, &secrets, &ctx, &input).await.map_err(|error| standing(&ctx, error))
        }
    })
    .doc("Runs a program, without a shell, in a process group that ends with the call.")
    .irreversible()
    .timeout(TIMEOUT)
}

async fn run(
    options: &CommandOptions,
    secrets: &Secrets,
    ctx: &ToolCtx,
    input: &CommandInput,
) -> Result<CommandOutput, ToolError> {
    if !options.tenants.contain(&ctx.tenant) {
        // Nothing ran, but the job is not lost: a person decides when the setting is changed, or that it stays as it is.
        return Err(ToolError::Unknown(format!(
            "not run: jobs of tenant {:?} may not run programs here; name the tenant in tools.command_tenants, restart the worker, and resolve this call as did_not_happen to run it, or abandon it",
            ctx.tenant
        )));
    }
    let mut redactor = Redactor::default();
    let mut command = prepare(secrets, ctx, input, &mut redactor)?;
    if ctx.is_cancelled() {
        return Err(ToolError::Cancelled);
    }
    let unconfined = |e: io::Error| {
        ToolError::Retryable(format!(
            "{} was not started: it could not be confined: {e}",
            input.program
        ))
    };
    sandbox::hide_this_process().map_err(unconfined)?;
    sandbox::confine(&mut command, &options.sandbox).map_err(unconfined)?;
    let begun = Instant::now();
    let mut group = Group::spawn(&mut command).map_err(|e| not_started(input, &command, &e))?;
    ctx.progress(format!("{} runs as process {}", input.program, group.id()));
    let captured = Captured::new(options.output_bytes_max);
    let ended = attend(options, ctx, input, begun, &mut group, &captured, &redactor).await;
    let ended = ended.map_err(|e| {
        // Dropping the group ends it.
        ToolError::Unknown(format!("{} could not be watched and was killed: {e}", input.program))
    })?;
    let stderr = redactor.clean(&captured.stderr().text_lossy());
    exit::judge(input, &ended, &stderr)?;
    let stdout = captured.stdout();
    let (text, stdout_encoding) = text::text_or_base64(stdout.bytes(), stdout.truncated());
    Ok(CommandOutput {
        exit_code: ended.code,
        signal: ended.signal,
        stdout: redactor.clean(&text),
        stdout_encoding,
        stdout_truncated: stdout.truncated(),
        stderr,
        stderr_truncated: captured.stderr().truncated(),
    })
}

/// Stays with a program to its end, which it brings about when time or patience are over.
async fn attend(
    options: &CommandOptions,
    ctx: &ToolCtx,
    input: &CommandInput,
    begun: Instant,
    group: &mut Group,
    captured: &Captured,
    redactor: &Redactor,
) -> io::Result<Ended> {
    let grace = options.grace.min(ctx.timeout / 4);
    let until = begun + wire::patience(ctx.timeout).saturating_sub(grace);
    let mut stopped = None;
    let mut kill_at = None;
    let pipes = group.pipes();
    let show = |line: &str| ctx.progress(text::tail(&redactor.clean(line), 200));
    let mut pumping = pin!(captured.pump(pipes, input.stdin.as_deref(), &show));
    let mut pumped = false;
    let mut exited = pin!(group::exited(group.id()));
    loop {
        tokio::select! {
            biased;
            seen = &mut exited => break seen?,
            () = ctx.cancelled(), if stopped.is_none() => stopped = Some(Stopped::OnRequest),
            () = tokio::time::sleep_until(until), if stopped.is_none() => {
                stopped = Some(Stopped::OutOfTime(until - begun));
            }
            () = group::at(kill_at), if kill_at.is_some() => {
                group.kill();
                kill_at = None;
                continue;
            }
            () = &mut pumping, if !pumped => {
                pumped = true;
                continue;
            }
        }
        if kill_at.is_none() {
            group.terminate();
            kill_at = Some(Instant::now() + grace);
        }
    }
    // What it left behind in its group ends with it, before its number can be given to somebody else.
    group.kill();
    let mut cut_off = false;
    if !pumped {
        cut_off = tokio::time::timeout(DRAIN, pumping).await.is_err();
    }
    if cut_off {
        captured.cut_off();
    }
    let status = group.reap().await?;
    Ok(Ended::new(status, stopped))
}
