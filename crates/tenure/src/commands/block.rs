//! `tenure block`: what an operator keeps from running, over HTTP.

use super::{
    Failure,
    job::{args::Server, client::Api, fields, text::read},
    table::table,
};
use crate::times::moment;
use clap::{Args, Subcommand, ValueEnum};
use serde::Deserialize;
use serde_json::{Value, json};
use tenure_kernel::{blocks::BlockKind, time::Timestamp};

/// Options of `block`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Where to ask.
    #[command(flatten)]
    pub server: Server,
    /// What to do
    #[command(subcommand)]
    pub action: Action,
}

/// What can be blocked.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Kind {
    /// All versions of a flow
    Flow,
    /// A tool, whoever calls it
    Tool,
    /// All work of a tenant
    Tenant,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Kind::Flow => BlockKind::Flow.as_str(),
            Kind::Tool => BlockKind::Tool.as_str(),
            Kind::Tenant => BlockKind::Tenant.as_str(),
        }
    }
}

/// What can be done with blocks.
#[derive(Clone, Debug, Subcommand)]
pub enum Action {
    /// Blocks a flow, a tool or a tenant; needs a key with the scope admin and without a tenant
    #[command(
        after_help = "Example:\n  tenure block set flow resize --why 'kills its workers'\n  tenure block set tenant acme --why 'asked by support, ticket 41'"
    )]
    Set {
        /// What kind of thing
        kind: Kind,
        /// Its name
        name: String,
        /// The reason, for everybody who meets the block
        #[arg(long)]
        why: String,
    },
    /// Lists all blocks
    List,
    /// Removes a block: what waited goes on
    Remove {
        /// What kind of thing
        kind: Kind,
        /// Its name
        name: String,
    },
}

/// A block, as the API gives it.
#[derive(Deserialize)]
struct Shown {
    kind: String,
    name: String,
    why: String,
    by: String,
    since: Timestamp,
}

/// Does what was asked for.
pub async fn run(options: &Options, json: bool) -> Result<String, Failure> {
    let api = Api::new(&options.server, json)?;
    let answer = match &options.action {
        Action::Set { kind, name, why } => {
            let body = fields([
                ("why", Some(json!(why))),
                ("by", options.server.by.clone().map(Value::from)),
            ]);
            api.put(&["blocks", kind.word(), name], &body).await?
        }
        Action::List => {
            let answer = api.get(&["blocks"], &[]).await?;
            if json {
                return Ok(format!("{answer}\n"));
            }
            let all: Vec<Shown> = read(answer["blocks"].clone())?;
            return Ok(match all.is_empty() {
                true => "Nothing is blocked.\n".to_owned(),
                false => table(&["KIND", "NAME", "SINCE", "BY", "WHY"], all.iter().map(row)),
            });
        }
        Action::Remove { kind, name } => {
            api.delete(&["blocks", kind.word(), name], &[]).await?;
            let gone = json!({ "removed": { "kind": kind.word(), "name": name } });
            return Ok(match json {
                true => format!("{gone}\n"),
                false => format!("The {} {name} is no longer blocked.\n", kind.word()),
            });
        }
    };
    Ok(if json { format!("{answer}\n") } else { line(&read(answer)?) })
}

fn row(block: &Shown) -> Vec<String> {
    let Shown { kind, name, why, by, since } = block;
    [kind, name, &moment(*since), by, why].map(ToString::to_string).to_vec()
}

fn line(block: &Shown) -> String {
    let Shown { kind, name, why, by, since } = block;
    format!("{kind} {name}: blocked since {}, by {by}: {why}\n", moment(*since))
}
