//! `tenure flow` and `tenure tool`: what workers have registered, over HTTP.

use super::{
    Failure,
    job::{args::Server, client::Api, text::read},
    table::table,
};
use clap::{Args, Subcommand};
use serde_json::Value;
use std::fmt::Write as _;
use tenure_jobs::catalogue::Entry;

/// Options of `flow` and `tool`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Where to ask.
    #[command(flatten)]
    pub server: Server,
    /// What to do
    #[command(subcommand)]
    pub action: Action,
}

/// What can be done with flows and tools.
#[derive(Clone, Debug, Subcommand)]
pub enum Action {
    /// Lists all that workers have ever registered
    List,
    /// Shows one: its versions, and what it takes and gives
    Show {
        /// Its name
        name: String,
    },
}

/// Does what was asked for. `path` is `flows` or `tools`.
pub async fn run(options: &Options, path: &str, json: bool) -> Result<String, Failure> {
    let api = Api::new(&options.server, json)?;
    let answer = match &options.action {
        Action::List => api.get(&[path], &[]).await?,
        Action::Show { name } => api.get(&[path, name], &[]).await?,
    };
    if json {
        return Ok(format!("{answer}\n"));
    }
    match &options.action {
        Action::List => listed(path, &read::<Vec<Entry>>(answer)?),
        Action::Show { .. } => Ok(shown(&read(answer.clone())?, &answer)),
    }
}

fn listed(path: &str, all: &[Entry]) -> Result<String, Failure> {
    if all.is_empty() {
        return Ok(format!("no worker has registered any {path}; `tenure worker` starts one\n"));
    }
    let row = |entry: &Entry| {
        let versions: Vec<String> = entry.versions.iter().map(|v| v.version.to_string()).collect();
        let last = entry.versions.iter().max_by_key(|v| v.version);
        let class = last.and_then(|v| v.class).map_or("-", |class| class.as_str()).to_owned();
        let doc = last.map_or(String::new(), |v| v.doc.clone());
        match path {
            "tools" => vec![entry.name.clone(), class, doc],
            _ => vec![entry.name.clone(), versions.join(","), doc],
        }
    };
    let head: [&str; 3] = match path {
        "tools" => ["TOOL", "CLASS", "WHAT"],
        _ => ["FLOW", "VERSIONS", "WHAT"],
    };
    Ok(table(&head, all.iter().map(row)))
}

fn shown(entry: &Entry, answer: &Value) -> String {
    let mut out = format!("{}\n", entry.name);
    for version in answer["versions"].as_array().into_iter().flatten() {
        for (member, value) in version.as_object().into_iter().flatten() {
            let text = match value {
                Value::Null => continue,
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            // Writing to a String cannot fail.
            let _ = writeln!(out, "  {member:<14} {text}");
        }
    }
    out
}
