//! `tenure inbox` and `tenure watchdog`.

use super::{Cli, text};
use crate::commands::{
    Failure,
    job::{args::Server, fields, text::read},
};
use clap::{Args, Subcommand};
use serde_json::Value;
use tenure_agents::view::{Forecast, Item};

/// Options of `inbox`.
#[derive(Args, Clone, Debug)]
pub struct Inbox {
    /// Where to ask.
    #[command(flatten)]
    pub server: Server,
    /// What to do
    #[command(subcommand)]
    pub action: Action,
}

/// What can be done with inboxes.
#[derive(Clone, Debug, Subcommand)]
pub enum Action {
    /// Lists what came for agents: the dead letters, unless --status names others or --turn asks for all of one turn
    #[command(
        after_help = "Example:\n  tenure inbox list\n  tenure inbox list --status pending,processing\n  tenure inbox list --turn 0190b5e0-1234"
    )]
    List(List),
    /// Sends a dead letter again, perhaps for another wait
    #[command(
        after_help = "Example:\n  tenure inbox requeue 0190b5e0-1234 result/key/7 --wait-for 1.2"
    )]
    Requeue(Requeue),
    /// Puts a dead letter aside
    #[command(alias = "skip")]
    Discard(Letter),
}

/// Options of `inbox list`.
#[derive(Args, Clone, Debug)]
pub struct List {
    /// Statuses: queued, pending, processing, consumed, error, requeued, skipped; error without it
    #[arg(long, value_name = "STATUS,…")]
    pub status: Option<String>,
    /// Only of this turn, in all statuses unless some are named
    #[arg(long, value_name = "ID")]
    pub turn: Option<String>,
    /// Where the page before ended
    #[arg(long, value_name = "ID", conflicts_with = "turn")]
    pub before: Option<String>,
}

/// One dead letter.
#[derive(Args, Clone, Debug)]
pub struct Letter {
    /// The turn
    #[arg(value_name = "TURN")]
    pub turn: String,
    /// The item, as the list shows it
    pub item: String,
}

/// Options of `inbox requeue`.
#[derive(Args, Clone, Debug)]
pub struct Requeue {
    /// Which.
    #[command(flatten)]
    pub letter: Letter,
    /// The wait that it is to answer now
    #[arg(long, value_name = "WAIT")]
    pub wait_for: Option<String>,
}

/// Options of `watchdog`.
#[derive(Args, Clone, Debug)]
pub struct Watchdog {
    /// Where to ask.
    #[command(flatten)]
    pub server: Server,
    /// Only this agent and its active turn
    #[arg(long)]
    pub agent: Option<String>,
    /// Only this turn
    #[arg(long, value_name = "ID")]
    pub turn: Option<String>,
    /// Only what would happen now
    #[arg(long)]
    pub now: bool,
}

/// Does what was asked for of inboxes.
pub async fn inbox(options: &Inbox, json: bool) -> Result<String, Failure> {
    let cli = Cli::new(&options.server, json)?;
    match &options.action {
        Action::List(o) => {
            let mut query: Vec<(&str, String)> = Vec::new();
            query.extend(o.status.clone().map(|s| ("status", s)));
            let answer = match &o.turn {
                Some(turn) => {
                    let id = cli.turn_id(turn).await?;
                    cli.api.get(&["turns", &id, "inbox"], &query).await?
                }
                None => {
                    if o.status.is_none() {
                        query.push(("status", "error".to_owned()));
                    }
                    query.extend(o.before.clone().map(|b| ("before", b)));
                    cli.api.get(&["inbox"], &query).await?
                }
            };
            let items: Vec<Item> = read(answer["items"].clone())?;
            let more = answer["next"].as_str().map(|next| format!("more: --before {next}\n"));
            Ok(cli.say(&answer, || text::items(&items) + &more.unwrap_or_default()))
        }
        Action::Requeue(o) => {
            let wait = ("wait", o.wait_for.clone().map(Value::from));
            cli.deal(&o.letter, "requeue", &fields([wait, cli.by()])).await
        }
        Action::Discard(o) => cli.deal(o, "skip", &fields([cli.by()])).await,
    }
}

impl Cli {
    async fn deal(&self, of: &Letter, how: &str, body: &Value) -> Result<String, Failure> {
        let id = self.turn_id(&of.turn).await?;
        let answer = self.api.post(&["turns", &id, "inbox", &of.item, how], body).await?;
        Ok(self.say(&answer, || text::outcome(&answer)))
    }
}

/// What the rules would do if nobody acts.
pub async fn watchdog(options: &Watchdog, json: bool) -> Result<String, Failure> {
    let cli = Cli::new(&options.server, json)?;
    let mut query: Vec<(&str, String)> = Vec::new();
    query.extend(options.agent.clone().map(|a| ("agent", a)));
    if let Some(turn) = &options.turn {
        query.push(("turn", cli.turn_id(turn).await?));
    }
    if options.now {
        query.push(("now", "true".to_owned()));
    }
    let answer = cli.api.get(&["watchdog"], &query).await?;
    let would: Vec<Forecast> = read(answer["would"].clone())?;
    let now = read(answer["now"].clone())?;
    Ok(cli.say(&answer, || text::forecasts(&would, now)))
}
