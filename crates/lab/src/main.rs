//! The `tenure-lab` binary.

use clap::Parser as _;
use std::process::ExitCode;
use tenure::memory;
use tenure_lab::{cli::Cli, commands};

#[global_allocator]
static ALLOCATOR: memory::Allocator = memory::ALLOCATOR;

fn main() -> ExitCode {
    commands::main(&Cli::parse())
}
