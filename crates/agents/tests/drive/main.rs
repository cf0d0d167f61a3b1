//! Turns that a real worker runs: a server, workers for jobs and turns, a scripted model, on every store.

mod crashes;
mod delegation;
mod steps;
mod support;
