//! Every limit of the kernel, by name. Each has a test at the limit and one past it.

use std::time::Duration;

/// The longest beginning of a text that fits: for words that come from outside, such as the reason of a
/// failure, where a refusal would hide it.
pub fn clip(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Machine state plus timers kept in a head. More than this goes to side rows of the machine.
pub const HEAD_STATE_BYTES_MAX: usize = 16 * 1024;
/// A body above this size is a content-addressed blob, durable before the commit that names it.
pub const BODY_INLINE_BYTES_MAX: usize = 32 * 1024;
/// How deep JSON from outside may be nested (see [`crate::depth`]).
pub const INPUT_DEPTH_MAX: usize = 100;
/// How deep JSON may be nested that flows and plans make of it.
pub const COMPOSED_DEPTH_MAX: usize = 200;
/// How deep JSON may be nested that is read from a store (see [`crate::stored`]).
pub const STORED_DEPTH_MAX: usize = 256;
/// The largest blob.
pub const BLOB_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How long a blob is kept that nothing names. It is durable before the commit that names it, and that commit comes within a
/// lease, or not at all: whoever waits longer has lost the tenure it would commit under.
pub const UNNAMED_BLOB_AGE_MAX: Duration = Duration::from_secs(24 * 3600);
/// Blobs that the search for orphans looks at for each entity that retention may remove in one call.
pub const BLOBS_PER_RETIRED: usize = 2;
/// Events in one commit.
pub const EVENTS_PER_COMMIT_MAX: usize = 1_024;
/// Messages in one commit: a thousand-way fan-out and its announcements fit into one.
pub const MESSAGES_PER_COMMIT_MAX: usize = 2_048;
/// Named timers of one entity.
pub const TIMERS_MAX: usize = 64;
/// Length of the names of events, timers, queues, tenants and mail kinds.
pub const NAME_BYTES_MAX: usize = 128;
/// Length of the name of a worker target: one token of a subject.
pub const TARGET_BYTES_MAX: usize = 64;
/// Length of a mail id, a unique key, a wire subject, or the reason for attention.
pub const KEY_BYTES_MAX: usize = 512;
/// Length of the key of evidence: the id of the mail that tells of it holds it, and some more.
pub const EVIDENCE_KEY_BYTES_MAX: usize = 256;
/// Pieces of evidence about one entity. They are read together.
pub const EVIDENCE_MAX: usize = 1_024;
/// Operations in one database transaction.
pub const BATCH_OPS_MAX: usize = 512;
/// Bytes of bodies in one database transaction, after which a batch is closed.
pub const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Heads served by the due loop in one round.
pub const DUE_BATCH_MAX: usize = 256;
/// Heads that came due last, served beside those in a round that is full.
pub const DUE_LATEST_MAX: usize = 64;
/// Mail handed to one decision.
pub const MAIL_PER_DECISION_MAX: usize = 256;
/// Unread mail that one claim returns beside its entities, together. The holder of an entity reads the rest. With
/// [`BODY_INLINE_BYTES_MAX`] this bounds the bytes of one answer.
pub const MAIL_PER_CLAIM_MAX: usize = 256;
/// Outbox rows delivered in one round.
pub const OUTBOX_BATCH_MAX: usize = 256;
/// Entities claimed by one call.
pub const CLAIM_MAX: usize = 256;
/// Groups of ready work after which no further priority is looked at. One priority is never cut, or a tenant late in the
/// alphabet would starve: so there are at most as many more as there are tenants.
pub const READY_GROUPS_MAX: usize = 256;
/// Entities one worker session may name in a renewal.
pub const HOLDS_MAX: usize = 16_384;
/// Outbox lanes of a store. Fixed for its life: a source never changes its lane.
pub const LANES: u16 = 16;
/// Events after which a long-lived entity is asked to seal its segment.
pub const SEGMENT_EVENTS: u64 = 10_000;

/// How long a worker session is believed alive after a renewal.
pub const LEASE: Duration = Duration::from_secs(15);
/// How often a worker session is renewed.
pub const RENEWAL: Duration = Duration::from_secs(5);
/// The longest the due loop sleeps with every bell silent.
pub const TICK: Duration = Duration::from_secs(5);
/// First delay after a decision failed; doubles up to [`FAULT_BACKOFF_MAX`].
pub const FAULT_BACKOFF: Duration = Duration::from_secs(1);
/// The longest delay between two tries of a failing decision.
pub const FAULT_BACKOFF_MAX: Duration = Duration::from_secs(60);
/// Failed decisions in a row after which an entity is marked `attention`.
pub const FAULTS_BEFORE_ATTENTION: u16 = 5;
/// A silence of the pulse longer than this is an outage: reclaim then waits one lease. More than a tick,
/// or every slow round is one; less than a lease less a renewal, or a shorter outage costs leases unseen.
pub const PULSE_GAP: Duration = Duration::from_secs(8);
