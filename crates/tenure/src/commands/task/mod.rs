//! `tenure task`: units of work that run as pods.

pub mod explain;

use super::Failure;
use crate::config::Settings;
use clap::{Args, Subcommand};

/// Options of `task`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// What to do
    #[command(subcommand)]
    pub action: Action,
}

/// What can be done with tasks.
#[derive(Clone, Debug, Subcommand)]
pub enum Action {
    /// Says what a pod object means for its task, and which rule says so; asks no server and no cluster
    #[command(
        after_help = "Example:\n  kubectl get pod ff-1a2b-train-1 -o yaml | tenure task explain -f -\n  tenure task explain -f pod.yaml --now 2026-08-01T10:15:00Z --json"
    )]
    Explain(explain::Explain),
}

/// Does what was asked for.
pub fn run(settings: &Settings, options: &Options, json: bool) -> Result<String, Failure> {
    match &options.action {
        Action::Explain(explain) => explain::run(settings, explain, json),
    }
}
