//! `tenure task`: tasks of a server, over HTTP. Nothing here but `explain` knows a pod: what the CLI can do, every
//! program can.

mod budget;
pub mod explain;
mod logs;
mod text;

use super::{
    Failure, files, ids,
    job::{args::Server, client::Api, fields, input, text::read},
};
use crate::{config::Settings, terminal, times};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::{path::Path, time::Duration};
use tenure_edge::SystemClock;
use tenure_kernel::runtime::Clock as _;
use tenure_pods::view::TaskDetail;

/// How long one request waits for a task; then it asks again.
const WAIT: Duration = Duration::from_secs(30);

/// Options of `task`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Where to ask.
    #[command(flatten)]
    pub server: Server,
    /// What to do
    #[command(subcommand)]
    pub action: Action,
}

/// What can be done with tasks.
#[derive(Clone, Debug, Subcommand)]
pub enum Action {
    /// Lists tasks, the newest first
    #[command(
        after_help = "Example:\n  tenure task list --status open\n  tenure task list --cause oom --workflow nightly\n  tenure task list --dead --cause rejected_capacity"
    )]
    List(List),
    /// Shows where a task stands, with every attempt: its pod, its verdict, the rule that gave it
    Show(One),
    /// Says in one sentence why a task is where it is, and what moves it
    Why(One),
    /// Shows everything that happened to a task, and who brought it about
    #[command(alias = "timeline")]
    Trace(One),
    /// Follows the events of a task as they come, until it ends
    Watch(One),
    /// Orders a task: a pod that is run until it ends well, or its retries are spent
    #[command(
        after_help = "Example:\n  tenure task run @pod.yaml --name train --workflow nightly --wait\n  kubectl create job x --image=busybox --dry-run=client -o json | jq .spec.template | tenure task run -"
    )]
    Run(Run),
    /// Does not wait any longer before the next attempt; orders one that failed or was cancelled once more
    #[command(
        after_help = "A task that is RETRYING goes on at once, if the tenant's budget has room. One that is over stays over: it is replayed, as a new task.\n\nExample:\n  tenure task retry 0190b5e0-1234\n  tenure task retry 0190b5e0-1234 --fenced"
    )]
    Retry(Retry),
    /// Ends a task: its pod is marked and stopped, then the task is CANCELED
    #[command(after_help = "Example:\n  tenure task cancel 0190b5e0-1234 --why 'wrong data'")]
    Cancel(Ask),
    /// Takes away the object of a pod that was told to go and does not, because its node does not answer. Its containers may run
    /// on: this proves nothing about them
    #[command(
        after_help = "Cancel the task first; a pod that was not told to go is refused. A task that waits for this pod goes on waiting: see that it does not run, then `tenure task retry ID --fenced`.\n\nExample:\n  tenure task force-delete 0190b5e0-1234 --why 'node-7 burnt down'"
    )]
    ForceDelete(Force),
    /// Prints what the container of an attempt wrote
    #[command(
        after_help = "Example:\n  tenure task logs 0190b5e0-1234 --follow\n  tenure task logs 0190b5e0-1234 --attempt 1"
    )]
    Logs(Logs),
    /// Lists failed tasks that nobody has replayed or put aside: `list --dead`
    #[command(hide = true)]
    DeadLetters(Dead),
    /// Orders a failed or cancelled task once more, as a new one
    Replay(Replay),
    /// Puts a failed task aside: it is no dead letter any more
    Discard(Ask),
    /// Says what a pod object means for its task, and which rule says so; asks no server and no cluster
    #[command(
        after_help = "Example:\n  kubectl get pod ff-1a2b-train-1 -o yaml | tenure task explain -f -\n  tenure task explain -f pod.yaml --now 2026-08-01T10:15:00Z --json"
    )]
    Explain(explain::Explain),
    /// Shows what the retries of tenants may cost, and sets it
    #[command(
        after_help = "Example:\n  tenure task budget\n  tenure task budget acme --per-minute 30 --in-flight 10\n  tenure task budget acme --clear"
    )]
    Budget(Budget),
}

/// One task.
#[derive(Args, Clone, Debug)]
pub struct One {
    /// The task: its id (the beginning or the end is enough where no other task has it), or its task_id
    #[arg(value_name = "ID")]
    pub id: String,
}

/// Options of `task list`.
#[derive(Args, Clone, Debug)]
pub struct List {
    /// Only in these statuses: PENDING, QUEUED, RUNNING, RETRYING, SUCCEEDED, FAILED, CANCELED, open
    #[arg(long, value_name = "STATUS,…")]
    pub status: Option<String>,
    /// Only of this workflow
    #[arg(long)]
    pub workflow: Option<String>,
    /// Only of this tenant, where the key has none
    #[arg(long)]
    pub tenant: Option<String>,
    /// Only those whose last ended attempt has this cause: oom, image_pull, …
    #[arg(long)]
    pub cause: Option<String>,
    /// Only those about which nobody can decide
    #[arg(long)]
    pub attention: bool,
    /// Failed tasks that nobody has replayed or put aside
    #[arg(long, conflicts_with_all = ["status", "attention"])]
    pub dead: bool,
    /// Where the page before ended
    #[arg(long, value_name = "ID")]
    pub before: Option<String>,
    /// How many
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=200))]
    pub limit: u16,
}

/// Options of `task dead-letters`.
#[derive(Args, Clone, Debug)]
pub struct Dead {
    /// Only of this workflow
    #[arg(long)]
    pub workflow: Option<String>,
    /// Only of this tenant, where the key has none
    #[arg(long)]
    pub tenant: Option<String>,
    /// Only with this cause: oom, rejected_capacity, …
    #[arg(long)]
    pub cause: Option<String>,
    /// Where the page before ended
    #[arg(long, value_name = "ID")]
    pub before: Option<String>,
    /// How many
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=200))]
    pub limit: u16,
}

/// Options of `task run`.
#[derive(Args, Clone, Debug)]
pub struct Run {
    /// The pod, as YAML or JSON (metadata and spec); @FILE reads a file, - standard input. Without one, pods are made
    /// elsewhere and only watched
    pub template: Option<String>,
    /// For people, and a part of the pod's name [default: metadata.name of the pod]
    #[arg(long)]
    pub name: Option<String>,
    /// What it belongs to
    #[arg(long, value_name = "ID")]
    pub workflow: Option<String>,
    /// The text by which others know it [default: its id]
    #[arg(long, value_name = "ID")]
    pub task_id: Option<String>,
    /// Where its pods are made
    #[arg(long)]
    pub namespace: Option<String>,
    /// Which executors take it: the name of their cluster
    #[arg(long)]
    pub cluster: Option<String>,
    /// Which container is the task's [default: main, or the only one that is no sidecar]
    #[arg(long)]
    pub container: Option<String>,
    /// What differs from the server's retry policy, as JSON: '{"app": 1, "backoff_ms": 1000}'
    #[arg(long, value_name = "JSON")]
    pub retry: Option<String>,
    /// Replaces a pod of which nobody knows whether it still runs: running twice does no harm
    #[arg(long)]
    pub may_run_twice: bool,
    /// How long an attempt may run
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<f64>,
    /// It ends within so many seconds, with all its attempts
    #[arg(long, value_name = "SECONDS")]
    pub must_end_in: Option<u64>,
    /// Higher is sooner
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    pub priority: i16,
    /// Ordered twice under one key it is one task
    #[arg(long)]
    pub key: Option<String>,
    /// Whose it is, where the key has no tenant
    #[arg(long)]
    pub tenant: Option<String>,
    /// Waits for its end, at most so many seconds (a day without a number), and prints what it wrote as its result
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "86400")]
    pub wait: Option<f64>,
}

/// Options of `task retry`.
#[derive(Args, Clone, Debug)]
pub struct Retry {
    /// The task
    #[arg(value_name = "ID")]
    pub id: String,
    /// You have seen that the lost pod does not run any more, and vouch for it
    #[arg(long)]
    pub fenced: bool,
}

/// Options of `task cancel` and `task discard`.
#[derive(Args, Clone, Debug)]
pub struct Ask {
    /// The task
    #[arg(value_name = "ID")]
    pub id: String,
    /// Why, for people
    #[arg(long)]
    pub why: Option<String>,
}

/// Options of `task force-delete`.
#[derive(Args, Clone, Debug)]
pub struct Force {
    /// The task
    #[arg(value_name = "ID")]
    pub id: String,
    /// How you know that it may go; it stays in the history
    #[arg(long)]
    pub why: String,
    /// The pod of which attempt [default: the last]
    #[arg(long, value_name = "N")]
    pub attempt: Option<u32>,
}

/// Options of `task logs`.
#[derive(Args, Clone, Debug)]
pub struct Logs {
    /// The task
    #[arg(value_name = "ID")]
    pub id: String,
    /// Of which attempt [default: the last]
    #[arg(long, value_name = "N")]
    pub attempt: Option<u32>,
    /// Goes on as more is written, until the pod is over
    #[arg(long, short)]
    pub follow: bool,
}

/// Options of `task replay`.
#[derive(Args, Clone, Debug)]
pub struct Replay {
    /// The task
    #[arg(value_name = "ID")]
    pub id: String,
    /// Replayed twice under one key it is one new task; without a key a task is replayed once
    #[arg(long)]
    pub key: Option<String>,
}

/// Options of `task budget`.
#[derive(Args, Clone, Debug)]
pub struct Budget {
    /// Whose; all that tasks have asked so far without it
    pub tenant: Option<String>,
    /// Retries that may start in a minute
    #[arg(long, requires = "tenant", conflicts_with = "clear")]
    pub per_minute: Option<u32>,
    /// How many of them at once, after a quiet time
    #[arg(long, requires = "tenant", conflicts_with = "clear")]
    pub burst: Option<u32>,
    /// Retried attempts under way at once
    #[arg(long, requires = "tenant", conflicts_with = "clear")]
    pub in_flight: Option<u32>,
    /// Back to what the server's settings say
    #[arg(long, requires = "tenant")]
    pub clear: bool,
}

/// Speaks to the server.
struct Cli {
    api: Api,
    by: Option<String>,
    json: bool,
}

/// Does what was asked for.
pub async fn run(settings: &Settings, options: &Options, json: bool) -> Result<String, Failure> {
    if let Action::Explain(explain) = &options.action {
        return explain::run(settings, explain, json);
    }
    let cli = Cli { api: Api::new(&options.server, json)?, by: options.server.by.clone(), json };
    match &options.action {
        Action::Explain(o) => explain::run(settings, o, json),
        Action::List(o) => {
            let mut query = vec![("limit", o.limit.to_string())];
            query.extend(o.status.clone().map(|s| ("status", s)));
            query.extend(o.workflow.clone().map(|w| ("workflow", w)));
            query.extend(o.tenant.clone().map(|t| ("tenant", t)));
            query.extend(o.cause.clone().map(|c| ("cause", c)));
            query.extend(o.before.clone().map(|b| ("before", b)));
            if o.attention {
                query.push(("attention", "true".to_owned()));
            }
            match o.dead {
                true => cli.page(&["tasks", "dead-letters"], &query, "no dead letters\n").await,
                false => cli.page(&["tasks"], &query, "no such tasks\n").await,
            }
        }
        Action::DeadLetters(o) => {
            let mut query = vec![("limit", o.limit.to_string())];
            query.extend(o.workflow.clone().map(|w| ("workflow", w)));
            query.extend(o.tenant.clone().map(|t| ("tenant", t)));
            query.extend(o.cause.clone().map(|c| ("cause", c)));
            query.extend(o.before.clone().map(|b| ("before", b)));
            cli.page(&["tasks", "dead-letters"], &query, "no dead letters\n").await
        }
        Action::Show(o) => cli.show(&o.id).await,
        Action::Why(o) => cli.why(&o.id).await,
        Action::Trace(o) => cli.timeline(&o.id).await,
        Action::Watch(o) => {
            let id = cli.task_id(&o.id).await?;
            let path = ["tasks", id.as_str(), "watch"];
            super::job::follow::follow_stream(&cli.api, &path, "task", 1, json).await
        }
        Action::Run(o) => cli.order(o).await,
        Action::Retry(o) => cli.retry(o).await,
        Action::Cancel(o) => cli.ask(&o.id, "cancel", o.why.as_deref()).await,
        Action::ForceDelete(o) => cli.force_delete(o).await,
        Action::Discard(o) => cli.ask(&o.id, "discard", o.why.as_deref()).await,
        Action::Logs(o) => cli.logs(o).await,
        Action::Replay(o) => {
            let id = cli.task_id(&o.id).await?;
            cli.replay(&id, o.key.as_deref()).await
        }
        Action::Budget(o) => cli.budget(o).await,
    }
}

/// A pod from an argument, a file or standard input; JSON is YAML too.
fn pod(text: &str) -> Result<Value, Failure> {
    let (whence, text) = match (text, text.strip_prefix('@')) {
        ("-", _) => ("standard input", files::read(Path::new("-"))?),
        (_, Some(file)) => (file, files::read(Path::new(file))?),
        (text, None) => ("the argument", text.to_owned()),
    };
    serde_yaml_ng::from_str(&text).map_err(|e| {
        Failure::System(format!(
            "{whence} is neither YAML nor JSON: {e}\n        give a pod (metadata and spec); @FILE reads a file, - standard input"
        ))
    })
}

impl Cli {
    /// The API's JSON, or the text.
    fn say(&self, answer: &Value, text: impl FnOnce() -> String) -> String {
        if self.json { format!("{answer}\n") } else { text() }
    }

    fn by(&self) -> (&'static str, Option<Value>) {
        ("by", self.by.as_ref().map(|b| json!(b)))
    }

    /// What the server calls a task: a whole id, or a part of one, or the text that its pods carry.
    async fn task_id(&self, given: &str) -> Result<String, Failure> {
        let digits = given.chars().filter(|c| *c != '-').count();
        let hex = given.chars().all(|c| c == '-' || c.is_ascii_hexdigit());
        if !hex || digits == 0 || digits >= 32 {
            return Ok(given.to_owned());
        }
        // It may be a task_id that looks like a part of an id.
        Ok(ids::found(&self.api, ids::TASKS, given).await?.unwrap_or_else(|| given.to_owned()))
    }

    async fn page(
        &self,
        path: &[&str],
        query: &[(&str, String)],
        none: &str,
    ) -> Result<String, Failure> {
        let page = self.api.get(path, query).await?;
        if self.json {
            return Ok(format!("{page}\n"));
        }
        text::tasks(&page, SystemClock.now(), none)
    }

    async fn show(&self, id: &str) -> Result<String, Failure> {
        let id = self.task_id(id).await?;
        let answer = self.api.get(&["tasks", &id], &[]).await?;
        let whole: TaskDetail = read(answer.clone())?;
        let why = times::local(answer["why"].as_str().unwrap_or(""));
        Ok(self.say(&answer, || text::task(&whole, &why, SystemClock.now())))
    }

    async fn why(&self, id: &str) -> Result<String, Failure> {
        let id = self.task_id(id).await?;
        let answer = self.api.get(&["tasks", &id, "why"], &[]).await?;
        Ok(self
            .say(&answer, || format!("{}\n", times::local(answer["why"].as_str().unwrap_or("")))))
    }

    async fn timeline(&self, id: &str) -> Result<String, Failure> {
        let id = self.task_id(id).await?;
        let answer = self.api.get(&["tasks", &id, "timeline"], &[]).await?;
        let entries = read(answer["timeline"].clone())?;
        Ok(self.say(&answer, || text::timeline(&answer, entries)))
    }

    async fn order(&self, o: &Run) -> Result<String, Failure> {
        let template = o.template.as_deref().map(pod).transpose()?;
        let retry = o.retry.as_deref().map(|r| input(Some(r))).transpose()?;
        let body = fields([
            ("template", template),
            ("name", o.name.clone().map(Value::from)),
            ("workflow_id", o.workflow.clone().map(Value::from)),
            ("task_id", o.task_id.clone().map(Value::from)),
            ("namespace", o.namespace.clone().map(Value::from)),
            ("cluster", o.cluster.clone().map(Value::from)),
            ("container", o.container.clone().map(Value::from)),
            ("retry", retry),
            ("on_lost", o.may_run_twice.then(|| json!("replace"))),
            ("timeout_seconds", o.timeout.map(Value::from)),
            ("must_end_in_seconds", o.must_end_in.map(Value::from)),
            ("priority", Some(json!(o.priority))),
            ("key", o.key.clone().map(Value::from)),
            ("tenant", o.tenant.clone().map(Value::from)),
        ]);
        let ordered = self.api.post(&["tasks"], &body).await?;
        let id = ordered["id"].as_str().unwrap_or_default().to_owned();
        match o.wait {
            Some(wait) => self.ended(&id, wait).await,
            None => Ok(self.say(&ordered, || match ordered["existed"] == true {
                true => format!("{id}\nIt was ordered before under this key.\n"),
                false => format!("{id}\nOrdered. `tenure task watch {id}` follows it.\n"),
            })),
        }
    }

    /// Waits for the end of a task; everything but success is an error for whoever waits.
    async fn ended(&self, id: &str, wait: f64) -> Result<String, Failure> {
        let mut left = Duration::try_from_secs_f64(wait).unwrap_or(Duration::MAX);
        loop {
            let turn = left.min(WAIT);
            let answer = self.api.wait(&["tasks", id], turn).await?;
            left = left.saturating_sub(turn);
            if answer["is_final"] != true && !left.is_zero() {
                continue;
            }
            let status = answer["status"].as_str().unwrap_or("").to_owned();
            let said = self.say(&answer, || {
                let result = answer["result"].as_str().unwrap_or("");
                format!(
                    "{id}\n{}",
                    if result.is_empty() { String::new() } else { format!("{result}\n") }
                )
            });
            if status == "SUCCEEDED" {
                return Ok(said);
            }
            if self.json {
                terminal::print(&said);
            }
            let why = times::local(answer["why"].as_str().unwrap_or(""));
            let said = format!("task {id} is {status}: {why}");
            return Err(Failure::of_wait(answer["is_final"] == true, said));
        }
    }

    async fn retry(&self, o: &Retry) -> Result<String, Failure> {
        let id = self.task_id(&o.id).await?;
        let task = self.api.get(&["tasks", &id], &[]).await?;
        let status = task["status"].as_str().unwrap_or("");
        if task["is_final"] == true && status != "SUCCEEDED" {
            return self.replay(&id, None).await;
        }
        let body = fields([("fenced", o.fenced.then_some(Value::Bool(true))), self.by()]);
        let answer = self.api.post(&["tasks", &id, "retry"], &body).await?;
        Ok(self.say(&answer, || text::outcome(&answer)))
    }

    async fn force_delete(&self, o: &Force) -> Result<String, Failure> {
        let id = self.task_id(&o.id).await?;
        let attempt = o.attempt.map(Value::from);
        let body = fields([("why", Some(json!(o.why))), ("attempt", attempt), self.by()]);
        let answer = self.api.post(&["tasks", &id, "force-delete"], &body).await?;
        Ok(self.say(&answer, || text::outcome(&answer)))
    }

    async fn replay(&self, id: &str, key: Option<&str>) -> Result<String, Failure> {
        let body = fields([("key", key.map(Value::from)), self.by()]);
        let answer = self.api.post(&["tasks", id, "replay"], &body).await?;
        Ok(self.say(&answer, || {
            let new = answer["id"].as_str().unwrap_or("");
            match answer["existed"] == true {
                true => format!("{new}\nIt was replayed before as this task.\n"),
                false => format!("{new}\nIt was over, and is ordered once more as this task.\n"),
            }
        }))
    }

    async fn ask(&self, id: &str, what: &str, why: Option<&str>) -> Result<String, Failure> {
        let id = self.task_id(id).await?;
        let body = fields([("why", why.map(Value::from)), self.by()]);
        let answer = self.api.post(&["tasks", &id, what], &body).await?;
        Ok(self.say(&answer, || text::outcome(&answer)))
    }
}
