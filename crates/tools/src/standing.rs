//! What a failure of a repeated call may claim: see "a second call under one key" in the crate's
//! documentation.

use tenure_steps::tool::{ToolCtx, ToolError};

/// The error as it may be told. The first call under a key speaks for the key; a later one only for itself,
/// so that its "nothing was applied" leaves open what the earlier ones did.
pub(crate) fn standing(ctx: &ToolCtx, error: ToolError) -> ToolError {
    if ctx.call <= 1 {
        return error;
    }
    let said = match error {
        ToolError::Retryable(why) | ToolError::Permanent(why) => why,
        ToolError::Cancelled => "stopped on request".to_owned(),
        known @ (ToolError::Unknown(_) | ToolError::Compensatable(_)) => return known,
    };
    ToolError::Unknown(format!(
        "{said} (this was call {} under its key: it did nothing itself, but an earlier one may have)",
        ctx.call
    ))
}
