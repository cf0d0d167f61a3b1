//! Tests on real processes that need the laboratory: kill points, drill flows, protections switched off. `tenure-lab`
//! stands for the product in most of them, since it runs the same libraries.

mod agents;
mod agents_bus;
mod bench_smoke;
mod bus;
mod collector;
mod console;
mod console_browser;
mod console_cdp;
mod disk;
mod doctor;
mod drill;
mod executor;
mod gates;
mod hostile;
mod job_commands;
mod kill;
mod lab;
mod lab_commands;
mod limits;
mod product;
mod server_kill;
#[path = "../../../tenure/tests/it/support.rs"]
mod support;
mod tasks;
mod turn_windows;
mod windows;

/// The binary under test.
const BINARY: &str = env!("CARGO_BIN_EXE_tenure-lab");
