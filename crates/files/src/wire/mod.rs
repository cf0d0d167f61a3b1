//! How scouts tell what they saw: frames with records, as bytes. Both sides use this room, so a frame has one
//! definition. It is read strictly: every length is checked before it is believed, nothing may be left over, and
//! nothing is allocated for a number that the bytes do not back.

pub mod frame;
pub mod name;
pub mod record;

pub use frame::{Frame, Lane, Preamble, RootIdentity, Tier, read_body};
pub use record::{Cause, Finding, Listed, Listing, Look, Moved, Outcome, Record, Silent};

/// Why bytes are not a frame.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WireError {
    /// The bytes end too early, or a length points past their end.
    #[error("the frame ends at byte {at}, before its lengths say so; send it whole")]
    Truncated {
        /// Where reading stopped.
        at: usize,
    },
    /// No frame begins here.
    #[error("no frame begins at byte {at}: its first four bytes are not TNFR")]
    NotAFrame {
        /// Where a frame was expected.
        at: usize,
    },
    /// The frame is of another version.
    #[error(
        "frames of version {version} are not understood; this server reads version {}",
        frame::VERSION
    )]
    Version {
        /// The version that the frame names.
        version: u8,
    },
    /// A number is above its limit.
    #[error("{what} is {is}, more than {max}; send smaller frames")]
    TooMany {
        /// What was counted.
        what: &'static str,
        /// How many there are.
        is: u64,
        /// How many there may be.
        max: u64,
    },
    /// The checksum differs: the bytes are damaged.
    #[error("the checksum of the frame differs; its bytes were damaged on the way, send it again")]
    Checksum,
    /// A field does not have the form that it must have.
    #[error("{what} (byte {at} of the records)")]
    Malformed {
        /// What is wrong.
        what: String,
        /// Where, counted in the decompressed records.
        at: usize,
    },
}
