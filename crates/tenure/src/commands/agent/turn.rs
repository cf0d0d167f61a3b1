//! `tenure turn`.

use super::{Cli, text, watch};
use crate::{
    commands::{
        Failure, ids,
        job::{args::Server, fields, input, text::read},
    },
    terminal, times,
};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::time::Duration;
use tenure_agents::view::{TurnDetail, TurnView};
use tenure_edge::SystemClock;
use tenure_kernel::runtime::Clock as _;

/// How long one request waits for a turn; then it asks again.
const WAIT: Duration = Duration::from_secs(30);

/// Options of `turn`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Where to ask.
    #[command(flatten)]
    pub server: Server,
    /// What to do
    #[command(subcommand)]
    pub action: Action,
}

/// What can be done with turns.
#[derive(Clone, Debug, Subcommand)]
pub enum Action {
    /// Lists turns, the newest first
    #[command(after_help = "Example:\n  tenure turn list --agent ada --status open")]
    List(List),
    /// Shows where a turn stands, what it waits for, and which rules are next
    #[command(alias = "get")]
    Show(One),
    /// Follows the events of a turn as they come, until it ends
    Watch(One),
    /// Says in one sentence why a turn is where it is, and what moves it
    Why(One),
    /// Shows its steps, tool calls, and everything that happened
    #[command(alias = "timeline")]
    Trace(One),
    /// Prints what the turn delivered
    Deliverable(One),
    /// Hands in the result of a tool that somebody outside runs
    #[command(
        after_help = "Example:\n  tenure turn result 0190b5e0-1234 1.1 '{\"found\": 3}'\n  tenure turn result 0190b5e0-1234 1.1 --failed 'no such page'"
    )]
    Result(ResultOf),
    /// Ends a turn; one that waits in line is taken back
    #[command(
        alias = "stop",
        after_help = "Example:\n  tenure turn cancel 0190b5e0-1234 --why 'asked twice'"
    )]
    Cancel(Ask),
    /// Waits no longer for tools that have not answered: the turn goes on without them
    #[command(after_help = "Example:\n  tenure turn resume 0190b5e0-1234 --wait-for 1.2")]
    Resume(Resume),
    /// Ends a turn with a deliverable of yours; it is on record as forced
    #[command(
        after_help = "Example:\n  tenure turn force-finish 0190b5e0-1234 --status partial '{\"answer\": \"by hand\"}'"
    )]
    ForceFinish(Finish),
}

/// One turn.
#[derive(Args, Clone, Debug)]
pub struct One {
    /// The turn; the beginning or the end of its id is enough where no other turn has it
    #[arg(value_name = "ID")]
    pub id: String,
}

/// Options of `turn list`.
#[derive(Args, Clone, Debug)]
pub struct List {
    /// Only of this agent
    #[arg(long)]
    pub agent: Option<String>,
    /// Only in these statuses: queued, dispatched, running, suspended, success, partial, failed, timeout, canceled, open
    #[arg(long, value_name = "STATUS,…")]
    pub status: Option<String>,
    /// Only those with dead letters
    #[arg(long)]
    pub dead: bool,
    /// Where the page before ended
    #[arg(long, value_name = "ID")]
    pub before: Option<String>,
    /// How many
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=200))]
    pub limit: u16,
}

/// Options of `turn result`.
#[derive(Args, Clone, Debug)]
pub struct ResultOf {
    /// The turn
    #[arg(value_name = "ID")]
    pub id: String,
    /// The wait it answers, as the turn names it: 1.1
    pub wait: String,
    /// What the tool returned, as JSON; @FILE reads a file, - standard input
    pub result: Option<String>,
    /// The tool failed, and this is why
    #[arg(long, value_name = "WHY", conflicts_with = "result")]
    pub failed: Option<String>,
    /// Ends the turn with this result
    #[arg(long)]
    pub terminate: bool,
}

/// Options of `turn cancel`.
#[derive(Args, Clone, Debug)]
pub struct Ask {
    /// The turn
    #[arg(value_name = "ID")]
    pub id: String,
    /// Why, for people
    #[arg(long)]
    pub why: Option<String>,
}

/// Options of `turn resume`.
#[derive(Args, Clone, Debug)]
pub struct Resume {
    /// The turn
    #[arg(value_name = "ID")]
    pub id: String,
    /// Only this wait is given up; all open ones without it
    #[arg(long, value_name = "WAIT")]
    pub wait_for: Option<String>,
    /// Why, for people
    #[arg(long)]
    pub why: Option<String>,
}

/// Options of `turn force-finish`.
#[derive(Args, Clone, Debug)]
pub struct Finish {
    /// The turn
    #[arg(value_name = "ID")]
    pub id: String,
    /// What is delivered, as JSON; a fallback without it
    pub deliverable: Option<String>,
    /// success, partial or failed
    #[arg(long, default_value = "failed")]
    pub status: String,
    /// Why, for people
    #[arg(long)]
    pub why: Option<String>,
}

/// Does what was asked for of a turn.
pub async fn run(options: &Options, json: bool) -> Result<String, Failure> {
    let cli = Cli::new(&options.server, json)?;
    match &options.action {
        Action::List(o) => cli.turns(o).await,
        Action::Show(o) => cli.show(&o.id).await,
        Action::Watch(o) => {
            let id = cli.turn_id(&o.id).await?;
            watch::follow(&cli.api, &id, json).await
        }
        Action::Why(o) => cli.why(&o.id).await,
        Action::Trace(o) => cli.timeline(&o.id).await,
        Action::Deliverable(o) => cli.deliverable(&o.id).await,
        Action::Result(o) => cli.result(o).await,
        Action::Cancel(o) => {
            let body = fields([("why", o.why.clone().map(Value::from)), cli.by()]);
            cli.ask(&o.id, "stop", &body).await
        }
        Action::Resume(o) => {
            let wait = ("wait", o.wait_for.clone().map(Value::from));
            let body = fields([wait, ("why", o.why.clone().map(Value::from)), cli.by()]);
            cli.ask(&o.id, "resume", &body).await
        }
        Action::ForceFinish(o) => {
            let deliverable = o.deliverable.as_deref().map(|d| input(Some(d))).transpose()?;
            let body = fields([
                ("status", Some(json!(o.status))),
                ("deliverable", deliverable),
                ("why", o.why.clone().map(Value::from)),
                cli.by(),
            ]);
            cli.ask(&o.id, "force-finish", &body).await
        }
    }
}

impl Cli {
    /// The whole id of a turn, from a part of it.
    pub(super) async fn turn_id(&self, given: &str) -> Result<String, Failure> {
        ids::whole(&self.api, ids::TURNS, given).await
    }

    async fn turns(&self, o: &List) -> Result<String, Failure> {
        let mut query = vec![("limit", o.limit.to_string())];
        query.extend(o.agent.clone().map(|a| ("agent", a)));
        query.extend(o.status.clone().map(|s| ("status", s)));
        query.extend(o.before.clone().map(|b| ("before", b)));
        if o.dead {
            query.push(("dead", "true".to_owned()));
        }
        let page = self.api.get(&["turns"], &query).await?;
        if self.json {
            return Ok(format!("{page}\n"));
        }
        text::turns(&page, SystemClock.now())
    }

    async fn show(&self, id: &str) -> Result<String, Failure> {
        let id = self.turn_id(id).await?;
        let answer = self.api.get(&["turns", &id], &[]).await?;
        let turn: TurnView = read(answer.clone())?;
        let why = times::local(answer["why"].as_str().unwrap_or(""));
        Ok(self.say(&answer, || text::turn(&turn, &why, &answer["end"], SystemClock.now())))
    }

    async fn why(&self, id: &str) -> Result<String, Failure> {
        let id = self.turn_id(id).await?;
        let answer = self.api.get(&["turns", &id, "why"], &[]).await?;
        Ok(self
            .say(&answer, || format!("{}\n", times::local(answer["why"].as_str().unwrap_or("")))))
    }

    async fn timeline(&self, id: &str) -> Result<String, Failure> {
        let id = self.turn_id(id).await?;
        let answer = self.api.get(&["turns", &id, "timeline"], &[]).await?;
        let whole: TurnDetail = read(answer.clone())?;
        Ok(self.say(&answer, || text::timeline(&whole)))
    }

    async fn deliverable(&self, id: &str) -> Result<String, Failure> {
        let id = self.turn_id(id).await?;
        let answer = self.api.get(&["turns", &id, "deliverable"], &[]).await?;
        Ok(self.say(&answer, || text::pretty(&answer["content"])))
    }

    async fn result(&self, o: &ResultOf) -> Result<String, Failure> {
        let error = o.failed.as_ref().map(|why| json!({ "code": "tool_failed", "message": why }));
        let body = fields([
            ("wait", Some(json!(o.wait))),
            ("status", error.is_some().then(|| json!("failed"))),
            ("result", Some(input(o.result.as_deref())?)),
            ("error", error),
            ("after_execution", o.terminate.then(|| json!("terminate"))),
            self.by(),
        ]);
        self.ask(&o.id, "results", &body).await
    }

    async fn ask(&self, id: &str, what: &str, body: &Value) -> Result<String, Failure> {
        let id = self.turn_id(id).await?;
        let answer = self.api.post(&["turns", &id, what], body).await?;
        Ok(self.say(&answer, || text::outcome(&answer)))
    }

    /// Waits for the end of a turn; everything but a delivery is an error for whoever waits.
    pub(super) async fn ended(&self, id: &str, wait: f64) -> Result<String, Failure> {
        let mut left = Duration::try_from_secs_f64(wait).unwrap_or(Duration::MAX);
        loop {
            let turn = left.min(WAIT);
            let answer = self.api.wait(&["turns", id], turn).await?;
            left = left.saturating_sub(turn);
            if answer["is_final"] != true && !left.is_zero() {
                continue;
            }
            let status = answer["status"].as_str().unwrap_or("").to_owned();
            let said = self.say(&answer, || {
                format!("{id}\n{}", text::pretty(&answer["end"]["deliverable"]["content"]))
            });
            if ["success", "partial"].contains(&status.as_str()) {
                return Ok(said);
            }
            if self.json {
                terminal::print(&said);
            }
            let why = times::local(answer["why"].as_str().unwrap_or(""));
            let said = format!("turn {id} is {status}: {why}");
            return Err(Failure::of_wait(answer["is_final"] == true, said));
        }
    }
}
