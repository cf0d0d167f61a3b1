//! A job as one file: everything that is known about it, in a form that somebody who has neither our store
//! nor our word can check.
//!
//! The file is text: one canonical JSON object per line (sorted keys, no spaces), bytes in base64. The first
//! line names the format, the last one carries the digest of everything before it and, where the server has a
//! key, an Ed25519 signature over that digest.
//!
//! **Every byte is covered, by one rule:** a file is read into an [`Export`], written again, and the two must be
//! the same bytes. So there is no second way to write anything, nothing can be added that the reader skips, and
//! the readable parts (events beside the bytes of their record, effects) can not say anything but what the bytes
//! say. Road not taken: hashing each line by itself; lines could then be swapped, doubled or dropped.
//!
//! What protects against what: the digest against accidents, the hash chain against a change of history by
//! whoever does not recompute the rest of it, the signature against everybody without the key. An unsigned file
//! is no proof against a forger, and `tenure verify` says so.
//!
//! **A file is from anybody.** What it says is read in memory that its size bounds, and nothing of it is read at all
//! where a key was named and did not sign it. Whatever of it is shown is one line of plain letters.
//!
//! | room | what it holds |
//! |---|---|
//! | `gather` | from a store to an [`Export`] |
//! | `file` | its form: written, and read strictly |
//! | `keys` | keys and signatures |
//! | `check` | [`verify`]: offline, all problems with their places |
//! | `account` | what a person reads |

mod account;
mod check;
mod file;
mod gather;
mod keys;

pub use check::{NOTES_MAX, PROBLEMS_MAX, Problem, Report, Signature, Trust, verify};
pub use file::is_signed;
pub use gather::{Ask, GatherError, gather};
pub use keys::{BadKey, PublicKey, SigningKey};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use tenure_kernel::{
    evidence::Evidence,
    head::Head,
    ids::{EntityId, SessionId},
    stream::{Hash, Record},
    time::Timestamp,
};
use tenure_steps::events::StepId;

/// The name of the format, in the first line of a file.
pub const FORMAT: &str = "tenure-export";
/// Its version.
pub const VERSION: u32 = 1;
/// The most that one file may hold of records, evidence, kept results and blobs, each blob as often as it is named. It
/// is put together in memory, and so is what its events say.
pub const EXPORT_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// The largest file that is read or written: what [`EXPORT_BYTES_MAX`] can come to in base64, with the readable form beside it.
pub const FILE_BYTES_MAX: u64 = 4 * EXPORT_BYTES_MAX;

/// A job, and its children if they were asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Export {
    /// The first line.
    pub opening: Opening,
    /// The job itself, then its descendants.
    pub jobs: Vec<Dossier>,
    /// Bodies that lie beside their streams.
    pub blobs: BTreeMap<Hash, Vec<u8>>,
    /// What is not in the file, and why.
    pub left_out: Vec<LeftOut>,
}

/// What a file says about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opening {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// Which job.
    pub job: EntityId,
    /// Its status when it was exported.
    pub status: String,
    /// It was over then; otherwise this is the beginning of a history that goes on.
    #[serde(rename = "final")]
    pub is_final: bool,
    /// Its descendants are in the file too.
    pub with_children: bool,
    /// When, by the store's clock.
    pub exported_at: Timestamp,
    /// The same for people.
    pub exported_at_text: String,
    /// Who asked.
    pub exported_by: String,
    /// Which life of which store, in hexadecimal.
    pub incarnation: String,
    /// Which program wrote it.
    pub program: String,
    /// Id of the key that signs it.
    pub signed_by: Option<String>,
}

/// Everything of one job.
#[derive(Clone, Debug, PartialEq)]
pub struct Dossier {
    /// Where it stood.
    pub head: Head,
    /// Its stream up to the head.
    pub records: Vec<Record>,
    /// What lies in a separate effect store.
    pub kept: Vec<Kept>,
    /// What came to be known outside the stream.
    pub evidence: Vec<Evidence>,
    /// Names of the sessions that held it, as far as they were known.
    pub sessions: Vec<(SessionId, String)>,
    /// Its children.
    pub children: Vec<Child>,
}

/// A result in a separate effect store.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    /// The call's key.
    pub key: String,
    /// Under which epoch.
    pub epoch: u64,
    /// Which call.
    pub call: u32,
    /// What lies there.
    pub result: Value,
}

impl Kept {
    /// What it is called where it is left out; as the effect store names it.
    pub(crate) fn name(key: &str, epoch: u64, call: u32) -> String {
        format!("{key}.{epoch}.{call}")
    }
}

/// A child of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Child {
    /// The child.
    pub id: EntityId,
    /// Its number.
    pub ordinal: u32,
    /// The step that asked for it.
    pub step: StepId,
    /// Where it stood, if it is not in the file itself and was still there.
    pub root: Option<Root>,
}

/// Where a child stood.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Root {
    /// Its status.
    pub status: String,
    /// Version of its last event.
    pub version: u64,
    /// Chain value after it: an export of the child has to lead there.
    pub chain: String,
}

/// What can be left out.
pub(crate) const LEFT_OUT: [&str; 7] =
    ["blob", "call", "children", "job", "kept", "mail", "records"];

/// Something that is not in the file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LeftOut {
    /// One of `LEFT_OUT`.
    pub what: String,
    /// Its digest, id or name.
    pub name: String,
    /// Why.
    pub why: String,
}
