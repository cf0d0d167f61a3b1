//! Accepts connections and speaks HTTP/1.1 on them, for every port of Tenure: the API and the console, and the health pages
//! of collectors and executors.
//!
//! A peer that has not shown a key yet can open connections for nothing, so each of them costs little and for a bounded time:
//!
//! - [`Limits`] bounds the number of connections: of the process, of one address, and of those on which nobody has shown a
//!   key. At a limit the listener closes a connection that waits for its peer in favour of the new one, so that a health
//!   check gets in while an attacker fills the rest; it refuses the new one only if every other connection is at work.
//! - A connection that waits for its peer has a deadline: for a whole head, for the next request, for the rest of a body,
//!   and for taking an answer. A request that waits for the server (a long poll, a live stream) has none.
//! - An error of `accept` is logged and survived; without file descriptors the listener makes room and pauses.
//!
//! **Invariant:** what is decided is decided in [`limits`], without a clock or a socket.
//!
//! Read first: [`serve`], then [`limits`].

mod body;
mod connections;
pub mod limits;
mod serve;
mod stream;
pub mod tls;

pub use body::BodyTooSlow;
pub use connections::{Connection, Connections};
pub use limits::Limits;
pub use serve::{Listening, serve};
pub use tls::{BadTls, ClientCertificates, Tls, TlsFiles};
