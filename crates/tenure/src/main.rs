//! The `tenure` binary.

use std::process::ExitCode;
use tenure::{cli, entry, memory};

#[global_allocator]
static ALLOCATOR: memory::Allocator = memory::ALLOCATOR;

fn main() -> ExitCode {
    entry::main(&cli::parse())
}
