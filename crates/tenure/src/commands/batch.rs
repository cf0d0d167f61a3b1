//! `tenure batch`: what is collected with others, over HTTP.

use super::{
    Failure,
    job::{args::Server, client::Api, text::read},
    table::table,
};
use crate::times::moment;
use clap::{Args, Subcommand};
use std::fmt::Write as _;
use tenure_jobs::shared::batch::desk::BatchView;

/// Options of `batch`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Where to ask.
    #[command(flatten)]
    pub server: Server,
    /// What to do
    #[command(subcommand)]
    pub action: Action,
}

/// What can be done with batches.
#[derive(Clone, Debug, Subcommand)]
pub enum Action {
    /// Lists batches, the newest first
    #[command(after_help = "Example:\n  tenure batch list --flow index")]
    List(List),
    /// Shows one: what is collected, and the last jobs that it became
    Show {
        /// Its id, as a submission with --batch or --debounce prints it
        id: String,
    },
}

/// Options of `batch list`.
#[derive(Args, Clone, Debug)]
pub struct List {
    /// Only of this flow
    #[arg(long)]
    pub flow: Option<String>,
    /// Only of this tenant, where the key has none
    #[arg(long)]
    pub tenant: Option<String>,
    /// Where the page before ended
    #[arg(long, value_name = "ID")]
    pub before: Option<String>,
    /// How many
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=200))]
    pub limit: u16,
}

/// Does what was asked for.
pub async fn run(options: &Options, json: bool) -> Result<String, Failure> {
    let api = Api::new(&options.server, json)?;
    let answer = match &options.action {
        Action::Show { id } => api.get(&["batches", id], &[]).await?,
        Action::List(o) => {
            let given = [
                ("flow", o.flow.clone()),
                ("tenant", o.tenant.clone()),
                ("before", o.before.clone()),
                ("limit", Some(o.limit.to_string())),
            ];
            let query: Vec<(&str, String)> =
                given.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
            api.get(&["batches"], &query).await?
        }
    };
    if json {
        return Ok(format!("{answer}\n"));
    }
    if let Action::Show { .. } = &options.action {
        return Ok(shown(&read(answer)?));
    }
    let next = answer["next"].as_str().map(|next| format!("more: --before {next}\n"));
    let all: Vec<BatchView> = read(answer["batches"].clone())?;
    Ok(match (all.is_empty(), next) {
        (true, None) => "no such batches\n".to_owned(),
        (_, next) => {
            let head = ["BATCH", "FLOW", "KEY", "COLLECTED", "BECOMES A JOB", "JOBS"];
            table(&head, all.iter().map(row)) + &next.unwrap_or_default()
        }
    })
}

fn row(batch: &BatchView) -> Vec<String> {
    let closes = batch.closes_at.map_or_else(|| "-".to_owned(), moment);
    let collected = (u64::from(batch.open) + batch.unread).to_string();
    let (id, jobs) = (batch.id.to_string(), batch.generation.to_string());
    vec![id, batch.flow.clone(), batch.key.clone(), collected, closes, jobs]
}

fn shown(batch: &BatchView) -> String {
    let mut out = format!("{}  {} of {}\n", batch.id, batch.key, batch.flow);
    // Writing to a String cannot fail.
    let _ = writeln!(out, "  collected   {}, and {} not taken in yet", batch.open, batch.unread);
    if let Some(at) = batch.closes_at {
        let _ = writeln!(out, "  becomes a job by {}", moment(at));
    }
    let _ = writeln!(out, "  jobs so far {}", batch.generation);
    for made in &batch.made {
        let _ = writeln!(out, "  job         {}", made.job);
    }
    if let Some(why) = &batch.attention {
        let _ = writeln!(out, "  attention   {why}");
    }
    out
}
