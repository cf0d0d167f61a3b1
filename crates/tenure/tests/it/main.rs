//! Tests on real processes: one binary, a module per promise.

mod agents;
mod bench_smoke;
mod bulk;
mod bus;
mod cli;
mod console;
mod console_browser;
mod console_cdp;
mod demo;
mod disk;
mod doctor;
mod drill;
mod evidence;
mod explain;
mod gates;
mod hostile;
mod intake;
mod kill;
mod lab;
mod limits;
mod plans;
mod server_kill;
mod support;
mod tidy;
mod turn_windows;
mod windows;
