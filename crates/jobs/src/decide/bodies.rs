//! The kinds of mail that a job understands, beside the kernel's, and what each brings.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_kernel::ids::EntityId;
use tenure_steps::events::{StepId, Verdict, WaitOutcome};

/// Kinds of mail that a job understands, beside the kernel's.
pub mod mail {
    /// Completes a wait, or is kept; body [`super::SignalMail`].
    pub const SIGNAL: &str = "signal";
    /// Stops it until it is resumed; body [`super::AskMail`].
    pub const PAUSE: &str = "pause";
    /// Lets it go on; body [`super::AskMail`].
    pub const RESUME: &str = "resume";
    /// Says what became of an unknown effect; body [`super::ResolveMail`].
    pub const RESOLVE: &str = "resolve";
    /// From a job to whom its terms name: how it ended; body [`super::EndedMail`].
    pub const ENDED: &str = "job_ended";
}

/// The body of a signal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SignalMail {
    /// The correlation key.
    pub key: String,
    /// Signalled, approved or rejected.
    pub outcome: WaitOutcome,
    /// What comes with it.
    #[serde(default)]
    pub payload: Value,
    /// From whom.
    #[serde(default)]
    pub by: Option<String>,
}

/// The body of a cancel, a pause or a resume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskMail {
    /// From whom.
    #[serde(default)]
    pub by: Option<String>,
    /// Why.
    #[serde(default)]
    pub why: Option<String>,
}

/// The body of a settlement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResolveMail {
    /// Which step.
    pub step: StepId,
    /// Which call of it, by key and number: what is said of one call must not settle a later one.
    #[serde(default)]
    pub of: Option<(String, u32)>,
    /// Happened, did not happen, or abandoned.
    pub verdict: Verdict,
    /// The result, where it happened.
    #[serde(default)]
    pub result: Value,
    /// From whom.
    #[serde(default)]
    pub by: Option<String>,
    /// In words.
    #[serde(default)]
    pub note: Option<String>,
}

/// The body of `child_ended`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChildMail {
    /// Its number among the parent's children.
    pub ordinal: u32,
    /// Its final status.
    pub status: String,
    /// Its output, where it is small.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "tenure_steps::canonical::present"
    )]
    pub output: Option<Value>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The body of `job_ended`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedMail {
    /// Which job.
    pub job: EntityId,
    /// Its final status.
    pub status: String,
}
