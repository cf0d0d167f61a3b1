//! Tests on real processes: one binary, a module per promise.

mod cli;
mod demo;
mod disk;
mod kill;
mod support;
