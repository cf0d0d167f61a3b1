//! Turns that a real worker runs: a server, workers for jobs and turns, a scripted model, on memory and SQLite.

mod crashes;
mod delegation;
mod steps;
mod support;
