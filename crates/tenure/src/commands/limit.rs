//! `tenure limit`: rate limits of a server, over HTTP.

use super::{
    Failure,
    job::{args::Server, client::Api, fields, text::read},
    table::{plural, table},
};
use crate::times::moment;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::fmt::Write as _;
use tenure_jobs::shared::limit::{
    desk::{LimitView, rate_text},
    model::{EACH, EVERYBODY},
    waiting::{Waiting, WaitingStep},
};

/// Options of `limit`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Where to ask.
    #[command(flatten)]
    pub server: Server,
    /// Whose calls, where the key has no tenant; * for all together
    #[arg(long, global = true)]
    pub tenant: Option<String>,
    /// The limit that holds for each tenant by itself; needs a key without a tenant
    #[arg(long, global = true, conflicts_with = "tenant")]
    pub each_tenant: bool,
    /// What to do
    #[command(subcommand)]
    pub action: Action,
}

/// What can be done with limits.
#[derive(Clone, Debug, Subcommand)]
pub enum Action {
    /// Sets how often a tool may be called
    #[command(
        after_help = "Example:\n  tenure limit set --tool http --tenant acme --rate 10/s --burst 20\n  tenure limit set --tool http --each-tenant --rate 600/m"
    )]
    Set {
        /// The tool
        #[arg(long)]
        tool: String,
        /// 10/s, 600/m, 1000/h or 5000/d
        #[arg(long)]
        rate: String,
        /// So many at once after a silence
        #[arg(long)]
        burst: Option<u32>,
        /// The most tokens that a worker takes at once; what a second allows without it
        #[arg(long)]
        block: Option<u32>,
    },
    /// Lists all limits
    List,
    /// Shows one, and how long a call would wait
    Show {
        /// The tool
        #[arg(long)]
        tool: String,
    },
    /// Lists who waits for the limits of a tool
    Waiting {
        /// The tool
        #[arg(long)]
        tool: String,
    },
    /// Removes one
    #[command(alias = "delete")]
    Remove {
        /// The tool
        #[arg(long)]
        tool: String,
    },
}

/// Does what was asked for.
pub async fn run(options: &Options, json: bool) -> Result<String, Failure> {
    let api = Api::new(&options.server, json)?;
    let tenant = match options.each_tenant {
        true => Some(EACH.to_owned()),
        false => options.tenant.clone(),
    };
    let query: Vec<(&str, String)> = tenant.clone().map(|t| ("tenant", t)).into_iter().collect();
    let answer = match &options.action {
        Action::Set { tool, rate, burst, block } => {
            let body = fields([
                ("rate", Some(json!(rate))),
                ("burst", burst.map(Value::from)),
                ("block", block.map(Value::from)),
                ("tenant", tenant.map(Value::from)),
                ("by", options.server.by.clone().map(Value::from)),
            ]);
            api.put(&["limits", tool], &body).await?
        }
        Action::List => {
            // Those for each tenant are among all of them.
            let query = if options.each_tenant { Vec::new() } else { query };
            let answer = api.get(&["limits"], &query).await?;
            if json {
                return Ok(format!("{answer}\n"));
            }
            let mut all: Vec<LimitView> = read(answer["limits"].clone())?;
            all.retain(|limit| !options.each_tenant || limit.spec.tenant == EACH);
            let head = ["TOOL", "TENANT", "RATE", "BURST", "BLOCK", "TAKEN", "NEXT CALL"];
            return Ok(match all.is_empty() {
                true => "There are no limits.\n".to_owned(),
                false => table(&head, all.iter().map(row)),
            });
        }
        Action::Show { tool } => api.get(&["limits", tool], &query).await?,
        Action::Waiting { tool } => {
            let answer = api.get(&["limits", tool, "waiting"], &query).await?;
            return Ok(match json {
                true => format!("{answer}\n"),
                false => waiting_text(tool, &read(answer)?),
            });
        }
        Action::Remove { tool } => {
            api.delete(&["limits", tool], &query).await?;
            let gone = json!({ "removed": tool });
            return Ok(if json {
                format!("{gone}\n")
            } else {
                format!("The limit of {tool} is removed.\n")
            });
        }
    };
    if json {
        return Ok(format!("{answer}\n"));
    }
    Ok(line(&read(answer)?))
}

fn row(limit: &LimitView) -> Vec<String> {
    let spec = &limit.spec;
    let each = spec.tenant == EACH;
    let whose = if each { "each tenant" } else { &spec.tenant };
    let (taken, next) = match (each, limit.wait_ms) {
        (true, _) => ("-".to_owned(), "-".to_owned()),
        (false, 0) => (limit.taken.to_string(), "at once".to_owned()),
        (false, ms) => {
            let wait = format!("in about {:.1} s{}", ms as f64 / 1_000.0, line_of(limit));
            (limit.taken.to_string(), wait)
        }
    };
    let (burst, block) = (spec.burst.to_string(), spec.block.to_string());
    vec![spec.tool.clone(), whose.to_owned(), rate_text(spec), burst, block, taken, next]
}

fn line(limit: &LimitView) -> String {
    let spec = &limit.spec;
    let is_each = spec.tenant == EACH;
    let whose = if is_each { "each tenant" } else { &spec.tenant };
    let mut text = format!(
        "{:<20} {whose:<16} {}, burst {}, block {}",
        spec.tool,
        rate_text(spec),
        spec.burst,
        spec.block
    );
    if is_each {
        return text + "\n";
    }
    if spec.from_each.is_some() {
        text.push_str(", as each tenant has");
    }
    // Writing to a String can not fail.
    let _ = write!(text, "; {} taken", limit.taken);
    let _ = match limit.wait_ms {
        0 => writeln!(text, "; a call goes at once"),
        ms => writeln!(text, "; a call waits about {:.1} s{}", ms as f64 / 1_000.0, line_of(limit)),
    };
    text
}

fn line_of(limit: &LimitView) -> String {
    match limit.waiting {
        0 => String::new(),
        n => format!(", with about {n} in line"),
    }
}

fn waiting_text(tool: &str, waiting: &Waiting) -> String {
    let mut text = String::new();
    for WaitingStep { job, tenant, step, limit_of, about, asks_at } in &waiting.steps {
        let tenant = if tenant.is_empty() { "-" } else { tenant };
        let whose = match limit_of.as_deref() {
            Some(EVERYBODY) => "everybody's together",
            Some(whose) => whose,
            None => "-",
        };
        let about = about.map_or_else(|| "-".to_owned(), moment);
        let asks = asks_at.map_or_else(|| "once it is resumed".to_owned(), moment);
        // Writing to a String can not fail.
        let _ = writeln!(
            text,
            "{job} {tenant:<16} step {step:<8} limit {whose:<20} turn about {about}, asks {asks}"
        );
    }
    let _ = match (waiting.steps.len(), waiting.calls) {
        (0, 0) => writeln!(text, "Nobody is on record as waiting for a limit of {tool}."),
        (steps, 0) => writeln!(text, "{steps} waiting."),
        (steps, calls) => {
            let calls = plural(calls, "call");
            writeln!(
                text,
                "{steps} waiting, and {calls} in the queue of the workers that take them."
            )
        }
    };
    if !waiting.complete {
        text.push_str("There is more than could be looked at.\n");
    }
    text
}
