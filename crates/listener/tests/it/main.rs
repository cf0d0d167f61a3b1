//! Real sockets and real handshakes.

mod certificates;
mod limits;
mod support;
mod tls;
