//! A worker in another process. It runs the same engine as one inside the server
//! (pipeline, sessions, claims, holds): only its store and its bell are at the other
//! end of a wire. So everything that the engine promises about leases, epochs and repetition holds here
//! without a second implementation, and the simulation covers it.
//!
//! **Invariant:** nothing is decided here. The server's store judges; this crate carries.
//!
//! Read first: [`RemoteStore`] (what is asked and how failures are told apart), [`RemoteBell`] (one long
//! poll for every ear), [`wire`] (the words). `docs/worker-protocol.md` is the same for people who write
//! workers in other languages.

mod bell;
mod client;
mod store;
mod tls;
pub mod wire;

pub use bell::RemoteBell;
pub use client::{BadAddress, Servers, addresses, body_up_to, is_near};
pub use store::RemoteStore;
pub use tls::{BadClientTls, ClientTls, ClientTlsFiles, tls_advice};
