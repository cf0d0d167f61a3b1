//! What the end of a program means.
//!
//! | it ended with | answer | because |
//! |---|---|---|
//! | 0, or one of `ok_exit_codes` | result | also after SIGTERM: it has finished what it was at |
//! | one of `not_applied_exit_codes` | permanent | the caller knows this program |
//! | 75 (`EX_TEMPFAIL`) | retryable | sysexits.h: "temporary failure, invited to retry", the one code of common meaning |
//! | anything else, with `exit_means_not_applied` | permanent | likewise: it only reads, or does all or nothing |
//! | anything else | unknown | `rm a b` exits 1 when b is missing, and a is gone |
//! | a signal | unknown | it was stopped in the middle |
//!
//! `exit_means_not_applied` says nothing about signals: a program that does all or nothing may be killed just
//! after "all".
//!
//! Where the call was stopped on request, "not applied" is `Cancelled`: that is what was wanted.

use super::CommandInput;
use crate::text;
use std::{os::unix::process::ExitStatusExt, process::ExitStatus, time::Duration};
use tenure_steps::tool::ToolError;

/// `EX_TEMPFAIL` of sysexits.h.
pub const TEMPORARY_FAILURE: i32 = 75;
/// How much of standard error an error shows.
const STDERR_CHARS_MAX: usize = 1000;

/// Why a program was stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stopped {
    /// The call was asked to stop.
    OnRequest,
    /// It was not done after this time.
    OutOfTime(Duration),
}

/// How a program ended.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    /// Why we asked it to, if we did.
    stopped: Option<Stopped>,
}

impl Ended {
    pub(crate) fn new(status: ExitStatus, stopped: Option<Stopped>) -> Self {
        Ended { code: status.code(), signal: status.signal(), stopped }
    }

    fn in_words(&self) -> String {
        let how = match (self.code, self.signal, self.stopped) {
            (Some(code), _, _) => format!("exited with {code}"),
            (None, Some(signal), Some(_)) => format!("was killed by signal {signal}"),
            (None, Some(signal), None) => format!("was killed by signal {signal}, not by us"),
            (None, None, _) => "ended in a way that has no name".to_owned(),
        };
        match self.stopped {
            Some(Stopped::OnRequest) => format!("was stopped on request and {how}"),
            Some(Stopped::OutOfTime(after)) => format!("was out of time after {after:?} and {how}"),
            None => how,
        }
    }
}

/// Whether it ended with a result.
pub(crate) fn judge(input: &CommandInput, ended: &Ended, stderr: &str) -> Result<(), ToolError> {
    let ok: &[i32] = if input.ok_exit_codes.is_empty() { &[0] } else { &input.ok_exit_codes };
    let mut why = format!("{} {}", input.program, ended.in_words());
    let said = text::tail(stderr, STDERR_CHARS_MAX);
    if !said.is_empty() {
        why = format!("{why}: {said}");
    }
    let error = match ended.code {
        Some(code) if ok.contains(&code) => return Ok(()),
        Some(code) if input.not_applied_exit_codes.contains(&code) => ToolError::Permanent(why),
        Some(TEMPORARY_FAILURE) => ToolError::Retryable(why),
        Some(_) if input.exit_means_not_applied => ToolError::Permanent(why),
        _ => ToolError::Unknown(why),
    };
    Err(match error {
        ToolError::Permanent(_) | ToolError::Retryable(_)
            if ended.stopped == Some(Stopped::OnRequest) =>
        {
            ToolError::Cancelled
        }
        other => other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(code: Option<i32>, stopped: bool, input: &CommandInput) -> &'static str {
        let signal = if code.is_none() { Some(9) } else { None };
        let ended = Ended { code, signal, stopped: stopped.then_some(Stopped::OnRequest) };
        match judge(input, &ended, "") {
            Ok(()) => "result",
            Err(ToolError::Retryable(_)) => "retryable",
            Err(ToolError::Permanent(_)) => "permanent",
            Err(ToolError::Cancelled) => "cancelled",
            Err(_) => "unknown",
        }
    }

    #[test]
    fn the_table() {
        let plain = CommandInput::default();
        let listed = CommandInput { not_applied_exit_codes: vec![3, 75], ..plain.clone() };
        let all_or_nothing = CommandInput { exit_means_not_applied: true, ..plain.clone() };
        let ok = CommandInput { ok_exit_codes: vec![0, 1], ..plain.clone() };
        for (code, stopped, input, expected) in [
            (Some(0), false, &plain, "result"),
            (Some(1), false, &plain, "unknown"),
            (Some(75), false, &plain, "retryable"),
            (None, false, &plain, "unknown"),
            (Some(3), false, &listed, "permanent"),
            (Some(75), false, &listed, "permanent"),
            (Some(4), false, &listed, "unknown"),
            (Some(1), false, &all_or_nothing, "permanent"),
            (Some(75), false, &all_or_nothing, "retryable"),
            (None, false, &all_or_nothing, "unknown"),
            (Some(1), false, &ok, "result"),
            (Some(0), true, &plain, "result"),
            (Some(75), true, &plain, "cancelled"),
            (Some(1), true, &plain, "unknown"),
            (Some(1), true, &all_or_nothing, "cancelled"),
            (None, true, &all_or_nothing, "unknown"),
        ] {
            assert_eq!(
                after(code, stopped, input),
                expected,
                "{code:?} stopped={stopped} {input:?}"
            );
        }
    }
}
