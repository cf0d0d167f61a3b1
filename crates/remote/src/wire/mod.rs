//! The words of the worker protocol, as JSON.
//!
//! These types repeat the kernel's and depend on its meaning, but not on its memory layout: the kernel
//! may rename a field, the wire may not. Each has `of` (from the kernel) and `read` (back), and a
//! property test holds them to equality.
//!
//! Two things are not obvious:
//!
//! * **Bodies travel as the bytes they are.** An event's body is hashed into the chain as its author
//!   wrote it, so a JSON body is embedded verbatim ([`serde_json::value::RawValue`]) and never parsed
//!   and printed again: spaces, the order of fields and `1.0` against `1` all count. What is not JSON
//!   travels as base64. For the same reason all enums here are externally tagged: serde reads the
//!   internally tagged ones through a buffer that forgets the text.
//! * **Names that the kernel keeps as `&'static str`** come from transition tables. A reader finds them in
//!   the tables it knows; the few that are sentences of the judge are kept by [`Words`], which has a bound.
//!
//! Times are microseconds since 1970 of the store's clock, durations microseconds, hashes hexadecimal.

mod answers;
mod bodies;
mod commit;
mod errors;
mod ops;
mod reads;
mod requests;
mod words;

pub use answers::{
    Answer, ClaimVerdict, CommitAnswer, Committed, EvidenceAnswer, MailAnswer, Refusal,
    RenewalAnswer,
};
pub use bodies::{Blob, Body, Bytes, CommitName, Digest};
pub use commit::{
    Attention, Birth, Commit, Event, Expect, MailStance, Message, Opening, Target, Tenure,
    TimerChange, UniqueKey,
};
pub use errors::StoreFault;
pub use ops::{Hold, NewEvidence, NewMail, Op};
pub use reads::{Evidence, Head, Mail, Page, Record, Session, Timer};
pub use requests::{
    ApplyAnswer, ApplyRequest, BellAnswer, BellRequest, BlobAnswer, ClaimAnswer, ClaimRequest,
    Claimed, Group, NowAnswer, Probe, ReadyAnswer,
};
pub use words::{Unreadable, Words};

use std::time::Duration;

/// The scheme of the `Authorization` header.
pub const BEARER: &str = "Bearer ";
/// The longest a bell may be asked to wait.
pub const BELL_WAIT_MAX: Duration = Duration::from_secs(30);
/// Topics in one wait for the bell.
pub const BELL_TOPICS_MAX: usize = 256;
/// Records, mail or evidence in one page.
pub const PAGE_MAX: usize = 256;
/// Bytes of one page, after which it is closed.
pub const PAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The member of a problem that carries a [`StoreFault`].
pub const FAULT_MEMBER: &str = "store_error";

/// Whole microseconds: what the kernel itself adds to a moment.
pub(crate) fn micros(d: Duration) -> u64 {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX)
}
