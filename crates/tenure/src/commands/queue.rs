//! `tenure queue`: what waits for a worker, and who serves it, over HTTP.

use super::{
    Failure,
    job::{args::Server, client::Api, text::read},
    table::{plural, table},
};
use crate::times::moment;
use clap::{Args, Subcommand};
use std::fmt::Write as _;
use tenure_jobs::view::QueueView;

/// Options of `queue`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Where to ask.
    #[command(flatten)]
    pub server: Server,
    /// Whose jobs, where the key has no tenant
    #[arg(long, global = true)]
    pub tenant: Option<String>,
    /// What to do
    #[command(subcommand)]
    pub action: Action,
}

/// What can be done with queues.
#[derive(Clone, Debug, Subcommand)]
pub enum Action {
    /// Lists queues with jobs that wait, or with a worker that serves them
    List,
    /// Shows one: who waits in it, and which workers serve it
    #[command(after_help = "Example:\n  tenure queue show report@1/night+gpu")]
    Show {
        /// Its whole name: flow@version, then /queue and +label; or the name that jobs give, or the flow
        name: String,
    },
}

/// Does what was asked for.
pub async fn run(options: &Options, json: bool) -> Result<String, Failure> {
    let api = Api::new(&options.server, json)?;
    let mut query: Vec<(&str, String)> =
        options.tenant.clone().map(|t| ("tenant", t)).into_iter().collect();
    if let Action::Show { name } = &options.action {
        query.push(("queue", name.clone()));
    }
    let answer = api.get(&["queues"], &query).await?;
    if json {
        return Ok(format!("{answer}\n"));
    }
    let all: Vec<QueueView> = read(answer["queues"].clone())?;
    Ok(match &options.action {
        Action::List if all.is_empty() => {
            "Nothing waits for a worker, and no worker is alive.\n".to_owned()
        }
        Action::List => {
            let more = "There are more queues than were looked at: some that nobody serves may be missing here.\n";
            let more = if answer["complete"] == false { more } else { "" };
            let head = ["QUEUE", "WAITING", "THE FIRST SINCE", "WORKERS"];
            table(&head, all.iter().map(row)) + more
        }
        Action::Show { name } if all.is_empty() => {
            format!("Nothing waits in {name}, and no live worker serves it.\n")
        }
        Action::Show { .. } => all.iter().map(whole).collect(),
    })
}

fn workers(q: &QueueView) -> String {
    match q.workers {
        Some(0) => "NO LIVE WORKER SERVES IT".to_owned(),
        Some(n) => plural(n, "worker"),
        None => "who serves it is not known: there are too many workers to look at".to_owned(),
    }
}

fn row(q: &QueueView) -> Vec<String> {
    let at_least = if q.counted_all { "" } else { "at least " };
    let oldest = q.oldest.map_or_else(|| "-".to_owned(), moment);
    vec![q.queue.clone(), format!("{at_least}{}", q.depth), oldest, workers(q)]
}

fn line(q: &QueueView) -> String {
    let at_least = if q.counted_all { "" } else { "at least " };
    let oldest = q.oldest.map_or(String::new(), |at| format!(", the first since {}", moment(at)));
    format!("{:<40} {at_least}{} waiting{oldest}; {}\n", q.queue, q.depth, workers(q))
}

fn whole(q: &QueueView) -> String {
    let mut text = line(q);
    // Writing to a String can not fail.
    for g in &q.groups {
        let (tenant, priority) = (&g.tenant, g.priority);
        let least = if q.counted_all { "" } else { "at least " };
        let first =
            g.oldest.map_or(String::new(), |at| format!(", the first since {}", moment(at)));
        let _ =
            writeln!(text, "  waits    {least}{} of {tenant}, priority {priority}{first}", g.depth);
    }
    for w in &q.served_by {
        let _ = writeln!(text, "  served   by {} ({})", w.name, w.session);
    }
    text
}
