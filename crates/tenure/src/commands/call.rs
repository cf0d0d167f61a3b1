//! `tenure call`: calls of a server, over HTTP.

use super::{
    Failure,
    job::{args::Server, client::Api},
    table::table,
};
use clap::{Args, Subcommand};
use serde_json::Value;
use std::fmt::Write as _;

/// Options of `call`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Where to ask.
    #[command(flatten)]
    pub server: Server,
    /// What to do
    #[command(subcommand)]
    pub action: Action,
}

/// What can be done with calls.
#[derive(Clone, Debug, Subcommand)]
pub enum Action {
    /// Lists calls
    List(List),
    /// Shows one: where it stands, who has it, what it was given and what it returned
    Show {
        /// Its id
        id: String,
    },
}

/// Options of `list`.
#[derive(Args, Clone, Debug)]
pub struct List {
    /// Only those of this job
    #[arg(long)]
    pub job: Option<String>,
    /// Only those of this tool
    #[arg(long)]
    pub tool: Option<String>,
    /// Only these statuses, with commas between them: queued, running, unheld, completed, failed, lost, cancelled, expired
    #[arg(long)]
    pub status: Option<String>,
    /// How many, 1 to 200
    #[arg(long, default_value_t = 50)]
    pub limit: usize,
    /// Only calls after this one: `next` of the page before
    #[arg(long, value_name = "ID")]
    pub after: Option<String>,
}

/// Does what was asked for.
pub async fn run(options: &Options, json: bool) -> Result<String, Failure> {
    let api = Api::new(&options.server, json)?;
    let answer = match &options.action {
        Action::Show { id } => api.get(&["calls", id], &[]).await?,
        Action::List(o) => {
            let given = [
                ("job", o.job.clone()),
                ("tool", o.tool.clone()),
                ("status", o.status.clone()),
                ("after", o.after.clone()),
                ("limit", Some(o.limit.to_string())),
            ];
            let query: Vec<(&str, String)> =
                given.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
            api.get(&["calls"], &query).await?
        }
    };
    Ok(match (&options.action, json) {
        (_, true) => format!("{answer}\n"),
        (Action::Show { .. }, false) => shown(&answer),
        (Action::List(_), false) => listed(&answer),
    })
}

fn word<'a>(call: &'a Value, member: &str) -> &'a str {
    call[member].as_str().unwrap_or("")
}

fn listed(answer: &Value) -> String {
    let calls = answer["calls"].as_array().cloned().unwrap_or_default();
    if calls.is_empty() {
        return "no calls\n".into();
    }
    let members = ["id", "status", "what", "tool", "step", "job"];
    let row = |call: &Value| members.map(|member| word(call, member).to_owned()).to_vec();
    let mut out = table(&["CALL", "STATUS", "WHAT", "TOOL", "STEP", "JOB"], calls.iter().map(row));
    // Writing to a String cannot fail.
    if let Some(next) = answer["next"].as_str() {
        let _ = writeln!(out, "more: --after {next}");
    }
    out
}

fn shown(call: &Value) -> String {
    let mut out = String::new();
    for member in [
        "id",
        "status",
        "tool",
        "what",
        "job",
        "step",
        "key",
        "call_number",
        "class",
        "tenant",
        "epoch",
        "held_by",
        "had_by",
        "timeout_ms",
        "error",
        "input",
        "result",
    ] {
        let text = match &call[member] {
            Value::Null => continue,
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let _ = writeln!(out, "{member:<12} {text}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_list_says_what_is_asked_of_which_tool_and_where_the_next_page_begins() {
        let call = json!({ "id": "c", "status": "queued", "tool": "pay", "what": "call", "job": "j", "step": "1" });
        let text = listed(&json!({ "calls": [call], "next": "c" }));
        assert!(
            text.contains("queued  call  pay   1     j") && text.contains("--after c"),
            "{text}"
        );
        assert_eq!(listed(&json!({ "calls": [] })), "no calls\n");
        let text = shown(&json!({ "id": "c", "result": { "n": 1 }, "error": null }));
        assert!(text.contains("result       {\"n\":1}") && !text.contains("error"), "{text}");
    }
}
