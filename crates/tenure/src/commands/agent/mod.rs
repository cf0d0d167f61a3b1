//! `tenure agent`, `tenure turn`, `tenure inbox`, `tenure watchdog`: agents of a server, over HTTP. Nothing here knows a
//! store: what the CLI can do, every program can.

mod inbox;
mod text;
pub mod turn;
mod watch;

pub use inbox::{Inbox, Watchdog, inbox, watchdog};

use super::{
    Failure,
    job::{args::Server, client::Api, fields, input, text::read},
};
use crate::terminal;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tenure_agents::view::{AgentView, Item};
use tenure_edge::SystemClock;
use tenure_kernel::runtime::Clock as _;

/// Options of `agent`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Where to ask.
    #[command(flatten)]
    pub server: Server,
    /// Whose agents, where the key has no tenant
    #[arg(long, global = true)]
    pub tenant: Option<String>,
    /// What to do
    #[command(subcommand)]
    pub action: Action,
}

/// What can be done with agents.
#[derive(Clone, Debug, Subcommand)]
pub enum Action {
    /// Sets an agent, for the first time or anew; what is not named stays as it was
    #[command(
        after_help = "Example:\n  tenure agent set ada --box results '{\"model\": \"gpt-4.1\", \"instructions\": \"Be brief.\"}'\n  tenure agent set ada --target pool @profile.json"
    )]
    Set(Set),
    /// Shows one: where it stands, its active turn, its line, its last turns
    #[command(alias = "get")]
    Show(One),
    /// Lists all agents that were not removed
    List,
    /// Sends an agent work: a turn. With --wait, prints what it delivered
    #[command(
        after_help = "Example:\n  tenure agent send ada 'Find a train to Rome' --id trip-7 --wait\n  tenure agent send ada --messages @talk.json"
    )]
    Send(Send),
    /// Dispatches nothing until it is resumed; turns wait in line
    Pause(One),
    /// Goes on with whoever is next
    Resume(One),
    /// Takes no more turns; those that wait end as failed, the active one may end
    Remove(One),
    /// Shows what came for an agent and where it stands
    #[command(after_help = "Example:\n  tenure agent inbox ada --status pending,error")]
    Inbox(Items),
}

/// One agent.
#[derive(Args, Clone, Debug)]
pub struct One {
    /// Its name
    pub name: String,
}

/// Options of `agent inbox`.
#[derive(Args, Clone, Debug)]
pub struct Items {
    /// Its name
    pub name: String,
    /// Only in these statuses: queued, pending, processing, consumed, error, requeued, skipped
    #[arg(long, value_name = "STATUS,…")]
    pub status: Option<String>,
}

/// Options of `agent set`.
#[derive(Args, Clone, Debug)]
pub struct Set {
    /// Its name: letters, digits, _ and -
    pub name: String,
    /// What its worker needs to know, as JSON: model, instructions, tools; @FILE reads a file, - standard input
    pub profile: Option<String>,
    /// Which workers run its turns (their setting worker.targets); `default` without it
    #[arg(long)]
    pub target: Option<String>,
    /// The channel of turns that bring none [default: the setting agents.default_channel]
    #[arg(long)]
    pub channel: Option<String>,
    /// Where its deliverables go [default: a box of its own name; '' for none]
    #[arg(long = "box", value_name = "NAME")]
    pub output_box: Option<String>,
}

/// Options of `agent send`.
#[derive(Args, Clone, Debug)]
pub struct Send {
    /// The agent
    pub name: String,
    /// What is said to it
    #[arg(required_unless_present = "messages", conflicts_with = "messages")]
    pub message: Option<String>,
    /// Messages as a model reads them, as JSON; @FILE reads a file, - standard input
    #[arg(long, value_name = "JSON")]
    pub messages: Option<String>,
    /// Your own name for it: sent twice under one it is one turn
    #[arg(long = "id", value_name = "ID")]
    pub correlation_id: Option<String>,
    /// Now or never: refused unless the agent is idle
    #[arg(long)]
    pub action: bool,
    /// Its channel; the agent's without it
    #[arg(long)]
    pub channel: Option<String>,
    /// Where its deliverable goes; the agent's without it
    #[arg(long = "box", value_name = "NAME")]
    pub output_box: Option<String>,
    /// It ends within so many seconds
    #[arg(long, value_name = "SECONDS")]
    pub must_end_in: Option<u64>,
    /// Higher is sooner, among turns for the same workers
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    pub priority: i16,
    /// Waits for its end, at most so many seconds (a day without a number), and prints what it delivered
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "86400")]
    pub wait: Option<f64>,
}

/// Speaks to the server.
pub(super) struct Cli {
    pub(super) api: Api,
    pub(super) by: Option<String>,
    pub(super) json: bool,
}

impl Cli {
    pub(super) fn new(server: &Server, json: bool) -> Result<Self, Failure> {
        Ok(Cli { api: Api::new(server, json)?, by: server.by.clone(), json })
    }

    /// The API's JSON, or the text.
    pub(super) fn say(&self, answer: &Value, text: impl FnOnce() -> String) -> String {
        if self.json { format!("{answer}\n") } else { text() }
    }

    pub(super) fn by(&self) -> (&'static str, Option<Value>) {
        ("by", self.by.as_ref().map(|b| json!(b)))
    }
}

/// Does what was asked for of an agent.
pub async fn run(options: &Options, json: bool) -> Result<String, Failure> {
    let cli = Cli::new(&options.server, json)?;
    let tenant = options.tenant.clone();
    let query: Vec<(&str, String)> = tenant.clone().map(|t| ("tenant", t)).into_iter().collect();
    let tenant = ("tenant", tenant.map(Value::from));
    let now = SystemClock.now();
    let answer = match &options.action {
        Action::Set(o) => {
            let profile = input(o.profile.as_deref())?;
            let body = fields([
                ("target", o.target.clone().map(Value::from)),
                ("channel", o.channel.clone().map(Value::from)),
                ("output_box", o.output_box.clone().map(Value::from)),
                ("profile", Some(profile).filter(|p| !p.is_null())),
                ("keep", Some(json!(true))),
                tenant,
                cli.by(),
            ]);
            let answer = cli.api.put(&["agents", &o.name], &body).await?;
            for warning in answer["warnings"].as_array().into_iter().flatten() {
                let words = warning.as_str().unwrap_or_default();
                terminal::error_line(&format_args!("warning: {words}"));
            }
            answer
        }
        Action::Show(o) => cli.api.get(&["agents", &o.name], &query).await?,
        Action::List => {
            let mut rows = Vec::new();
            let mut page = query.clone();
            page.push(("limit", "200".to_owned()));
            loop {
                let mut answer = cli.api.get(&["agents"], &page).await?;
                rows.append(answer["agents"].as_array_mut().unwrap_or(&mut Vec::new()));
                let Some(next) = answer["next"].as_str() else { break };
                page.retain(|(name, _)| *name != "after");
                page.push(("after", next.to_owned()));
            }
            rows.sort_by_key(|a| (a["tenant"].to_string(), a["name"].to_string()));
            let answer = json!({ "agents": rows });
            let agents: Vec<AgentView> = read(answer["agents"].clone())?;
            return Ok(cli.say(&answer, || text::agents(&agents)));
        }
        Action::Send(o) => return cli.send(o, tenant).await,
        Action::Pause(o) => {
            let body = fields([tenant, cli.by()]);
            cli.api.post(&["agents", &o.name, "pause"], &body).await?
        }
        Action::Resume(o) => {
            let body = fields([tenant, cli.by()]);
            cli.api.post(&["agents", &o.name, "resume"], &body).await?
        }
        Action::Remove(o) => {
            cli.api.delete(&["agents", &o.name], &query).await?;
            let answer = json!({ "removed": o.name });
            return Ok(cli.say(&answer, || format!("{} is removed.\n", o.name)));
        }
        Action::Inbox(o) => {
            let mut query = query;
            query.extend(o.status.clone().map(|s| ("status", s)));
            let answer = cli.api.get(&["agents", &o.name, "inbox"], &query).await?;
            let items: Vec<Item> = read(answer["items"].clone())?;
            return Ok(cli.say(&answer, || text::items(&items)));
        }
    };
    let shown: AgentView = read(answer.clone())?;
    Ok(cli.say(&answer, || text::agent(&shown, now)))
}

impl Cli {
    async fn send(&self, o: &Send, tenant: (&str, Option<Value>)) -> Result<String, Failure> {
        let messages = o.messages.as_deref().map(|m| input(Some(m))).transpose()?;
        let body = fields([
            ("message", o.message.clone().map(Value::from)),
            ("messages", messages),
            ("type", o.action.then(|| json!("ui_action"))),
            ("channel", o.channel.clone().map(Value::from)),
            ("output_box", o.output_box.clone().map(Value::from)),
            ("correlation_id", o.correlation_id.clone().map(Value::from)),
            ("must_end_in_seconds", o.must_end_in.map(Value::from)),
            ("priority", Some(json!(o.priority))),
            tenant,
            self.by(),
        ]);
        let sent = self.api.post(&["agents", &o.name, "turns"], &body).await?;
        let id = sent["id"].as_str().unwrap_or_default().to_owned();
        let Some(wait) = o.wait else {
            return Ok(self.say(&sent, || match sent["existed"] == true {
                true => format!("{id}\nIt was sent before under this id.\n"),
                false => format!("{id}\nSent. `tenure turn watch {id}` follows it.\n"),
            }));
        };
        self.ended(&id, wait).await
    }
}
