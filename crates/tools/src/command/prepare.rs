//! What a program is started with, and why it was not.

use super::CommandInput;
use crate::secrets::{Redactor, Secrets};
use std::{io, process::Stdio};
use tenure_steps::tool::{ToolCtx, ToolError};

/// What a program gets from the worker's environment.
const INHERITED: [&str; 3] = ["PATH", "HOME", "LANG"];

/// The program with its surroundings. Every error is one of the arguments.
pub(super) fn prepare(
    secrets: &Secrets,
    ctx: &ToolCtx,
    input: &CommandInput,
    redactor: &mut Redactor,
) -> Result<tokio::process::Command, ToolError> {
    let mut command = tokio::process::Command::new(&input.program);
    command.args(&input.args).env_clear();
    for name in INHERITED {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    for (name, value) in &input.env {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(ToolError::Permanent(format!("{name:?} can not be a variable's name")));
        }
        command.env(name, value.resolve(secrets, &ctx.tenant, redactor)?);
    }
    // Last, so that arguments can not replace them.
    command
        .env("TENURE_KEY", &ctx.key)
        .env("TENURE_JOB", ctx.job.to_string())
        .env("TENURE_STEP", &ctx.step)
        .env("TENURE_EPOCH", ctx.epoch.to_string())
        .env("TENURE_NOT_AFTER", ctx.not_after.to_string());
    if let Some(cwd) = &input.cwd {
        // The system reports a missing directory as a missing program.
        if !cwd.is_dir() {
            return Err(ToolError::Permanent(format!(
                "{} was not started: there is no directory {}",
                input.program,
                cwd.display()
            )));
        }
        command.current_dir(cwd);
    }
    command
        .stdin(if input.stdin.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    Ok(command)
}

/// Nothing ran. Trying again helps if the system was short of something.
pub(super) fn not_started(
    input: &CommandInput,
    command: &tokio::process::Command,
    e: &io::Error,
) -> ToolError {
    use io::ErrorKind::{
        ExecutableFileBusy, InvalidInput, NotFound, OutOfMemory, PermissionDenied, WouldBlock,
    };
    let program = &input.program;
    let path = command
        .as_std()
        .get_envs()
        .find(|(name, _)| *name == "PATH")
        .and_then(|(_, value)| value)
        .map_or("not set".into(), |value| value.to_string_lossy());
    let too_many_files = [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE]
        .iter()
        .any(|errno| e.raw_os_error() == Some(errno.raw_os_error()));
    match e.kind() {
        NotFound => ToolError::Permanent(format!(
            "there is no program {program:?} (or its interpreter is missing); PATH is {path}"
        )),
        PermissionDenied => ToolError::Permanent(format!(
            "the program {program:?} may not be executed by this worker; PATH is {path}"
        )),
        InvalidInput => ToolError::Permanent(format!("{program:?} can not be started: {e}")),
        WouldBlock | OutOfMemory | ExecutableFileBusy => {
            ToolError::Retryable(format!("{program:?} was not started: {e}"))
        }
        _ if too_many_files => ToolError::Retryable(format!("{program:?} was not started: {e}")),
        _ => ToolError::Permanent(format!("{program:?} was not started: {e}; PATH is {path}")),
    }
}
