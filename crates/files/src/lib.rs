//! Files: one live view of storage that many hosts share. Scouts on the hosts say what they see; this crate decides what
//! is known, and says how far it can be trusted.
//!
//! **Invariant:** this crate opens no watched path and reads no clock. Everything outside of [`keep::disk`] is a pure
//! function of its arguments, so a replay of the same frames gives the same tree and the same revisions.
//!
//! Read first: [`wire::Record`] (what a scout says), [`tree::Tree`] (what is known) and [`arbitrate::table`] (what
//! follows from one for the other).

pub mod arbitrate;
pub mod ask;
pub mod facts;
pub mod feed;
pub mod keep;
pub mod time;
pub mod tree;
pub mod wire;
