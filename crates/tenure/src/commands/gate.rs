//! `tenure gate`: gates of a server, over HTTP.

use super::{
    Failure,
    job::{args::Server, client::Api, fields, text::read},
    table::table,
};
use crate::times::moment;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::fmt::Write as _;
use tenure_jobs::gate::desk::GateView;

/// Options of `gate`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Where to ask.
    #[command(flatten)]
    pub server: Server,
    /// Whose gates, where the key has no tenant
    #[arg(long, global = true)]
    pub tenant: Option<String>,
    /// What to do
    #[command(subcommand)]
    pub action: Action,
}

/// What can be done with gates.
#[derive(Clone, Debug, Subcommand)]
pub enum Action {
    /// Lists all gates
    List,
    /// Shows one: its limit, who has a permit, who waits
    Show {
        /// Its name
        name: String,
    },
    /// Says how many jobs may be past it at once
    #[command(after_help = "Example:\n  tenure gate set deploys --limit 2")]
    Set {
        /// Its name
        name: String,
        /// Jobs at once
        #[arg(long)]
        limit: u32,
    },
}

/// Does what was asked for.
pub async fn run(options: &Options, json: bool) -> Result<String, Failure> {
    let api = Api::new(&options.server, json)?;
    let tenant = options.tenant.clone();
    let query: Vec<(&str, String)> = tenant.clone().map(|t| ("tenant", t)).into_iter().collect();
    match &options.action {
        Action::Set { name, limit } => {
            let body = fields([
                ("limit", Some(json!(limit))),
                ("tenant", tenant.map(Value::from)),
                ("by", options.server.by.clone().map(Value::from)),
            ]);
            let answer = api.put(&["gates", name], &body).await?;
            Ok(match json {
                true => format!("{answer}\n"),
                false => format!("{name}: {limit} at once.\n"),
            })
        }
        Action::List => {
            let answer = api.all("gates", &query).await?;
            if json {
                return Ok(format!("{answer}\n"));
            }
            let all: Vec<GateView> = read(answer["gates"].clone())?;
            Ok(match all.is_empty() {
                true => "There are no gates.\n".to_owned(),
                false => table(
                    &["GATE", "TENANT", "PAST IT", "LIMIT", "WAITING", "LET THROUGH", "SET BY"],
                    all.iter().map(row),
                ),
            })
        }
        Action::Show { name } => {
            let answer = api.get(&["gates", name], &query).await?;
            if json {
                return Ok(format!("{answer}\n"));
            }
            let gate: GateView = read(answer)?;
            let mut text = line(&gate);
            // Writing to a String can not fail.
            for h in &gate.holders {
                let _ = writeln!(text, "  past it  {} since {}", h.job, moment(h.since));
            }
            for w in &gate.next {
                let _ = writeln!(text, "  waits    {} since {}", w.job, moment(w.since));
            }
            let more = gate.waiting.saturating_sub(gate.next.len() as u64);
            if more > 0 {
                let _ = writeln!(text, "  and {more} more");
            }
            Ok(text)
        }
    }
}

fn row(gate: &GateView) -> Vec<String> {
    let by = gate.set_by.clone().unwrap_or_else(|| "-".to_owned());
    let numbers = [gate.holders.len() as u64, u64::from(gate.limit), gate.waiting, gate.granted];
    let names = [gate.name.clone(), gate.tenant.clone()];
    names.into_iter().chain(numbers.map(|n| n.to_string())).chain([by]).collect()
}

fn line(gate: &GateView) -> String {
    let by = gate.set_by.as_ref().map(|b| format!(" (set by {b})")).unwrap_or_default();
    format!(
        "{:<24} {:<16} {} of {}{by} past it, {} waiting; {} let through\n",
        gate.name,
        gate.tenant,
        gate.holders.len(),
        gate.limit,
        gate.waiting,
        gate.granted
    )
}
