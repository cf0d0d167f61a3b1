//! The kernel: who owns a piece of work, what is known to have happened to it, and what happens
//! when nobody answers. Everything here is a pure function of its arguments.
//!
//! **Invariant:** this crate never reads a clock, a random number, a file or a socket, and depends
//! on nothing that can. Time arrives as a [`time::Timestamp`], randomness as bytes.
//!
//! Read first: [`head::Head`] (what one row says about an entity), [`commit::Commit`] (the one way
//! to change it) and [`judge::Judge`] (the one place that decides whether it may change). Every
//! store asks it about the locked head; none has rules of its own.

pub mod address;
pub mod admission;
pub mod batch;
pub mod bell;
pub mod blocks;
pub mod claims;
pub mod codec;
pub mod commit;
pub mod depth;
pub mod error;
pub mod evidence;
pub mod feed;
pub mod head;
pub mod health;
pub mod housekeeping;
pub mod ids;
pub mod judge;
pub mod limits;
pub mod machine;
pub mod mail;
pub mod outbox;
pub mod quota;
pub mod rules;
pub mod runtime;
pub mod sessions;
pub mod store;
pub mod stored;
pub mod stream;
pub mod table;
pub mod tenant;
pub mod time;
pub mod timers;
pub mod verify;
pub mod wakeup;
