//! Tests of the product on real processes: one binary, a module per promise. What needs kill points, drill flows or a
//! protection switched off is in the tests of the laboratory (`crates/lab`).

mod backup;
mod bulk;
mod cli;
mod command_line;
mod demo;
mod dependencies;
mod deploy;
mod documents;
mod evidence;
mod explain;
mod floor;
mod intake;
mod keys;
mod listener;
mod plans;
mod programs;
mod proxy;
mod secrets;
mod several_servers;
mod support;
mod tidy;

/// The binary under test.
const BINARY: &str = env!("CARGO_BIN_EXE_tenure");
