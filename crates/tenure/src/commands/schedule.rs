//! `tenure schedule`: schedules of a server, over HTTP.

use super::{
    Failure, files,
    job::{args::Server, client::Api, fields, input, text::read},
    table::table,
};
use crate::times;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::{fmt::Write as _, path::PathBuf};
use tenure_jobs::shared::schedule::{calendar::Nominal, view::ScheduleView};
use tenure_kernel::time::Timestamp;

/// Options of `schedule`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Where to ask.
    #[command(flatten)]
    pub server: Server,
    /// Whose schedules, where the key has no tenant
    #[arg(long, global = true)]
    pub tenant: Option<String>,
    /// What to do
    #[command(subcommand)]
    pub action: Action,
}

/// What can be done with schedules.
#[derive(Clone, Debug, Subcommand)]
pub enum Action {
    /// Sets a schedule, for the first time or anew
    #[command(
        after_help = "Example:\n  tenure schedule set nightly --cron '0 2 * * *' --zone Europe/Berlin --flow report '{\"days\": 1}'\n  tenure schedule set poll --every 300 --flow sync --missed skip --overlap skip"
    )]
    Set(Box<Set>),
    /// Lists all schedules
    List,
    /// Shows one: its calendar, its next times and its last jobs
    Show {
        /// Its name
        name: String,
    },
    /// Shows the next times of a schedule; or of a calendar that no schedule has, and which of them the clock moves
    #[command(
        after_help = "Example:\n  tenure schedule preview nightly\n  tenure schedule preview --cron '30 2 * * *' --zone Europe/Berlin --after 2026-03-28T00:00:00Z --count 3"
    )]
    Preview(Box<Preview>),
    /// Creates nothing by itself until it is resumed
    Pause {
        /// Its name
        name: String,
    },
    /// Goes on from now; times that passed in the pause are not made up for
    Resume {
        /// Its name
        name: String,
    },
    /// Creates one job now, whatever the calendar says
    Fire {
        /// Its name
        name: String,
        /// Makes it safe to ask again
        #[arg(long)]
        key: Option<String>,
    },
    /// Removes a schedule; jobs that it has created go on
    #[command(alias = "delete")]
    Remove {
        /// Its name
        name: String,
    },
}

/// Options of `preview`.
#[derive(Args, Clone, Debug)]
pub struct Preview {
    /// The name of a schedule
    #[arg(required_unless_present_any = ["cron", "every"])]
    pub name: Option<String>,
    /// The cron expression of no schedule yet
    #[arg(long, conflicts_with_all = ["name", "every"])]
    pub cron: Option<String>,
    /// An interval in seconds
    #[arg(long, value_name = "SECONDS", conflicts_with = "name")]
    pub every: Option<u64>,
    /// The time zone of the cron expression; UTC without it
    #[arg(long, conflicts_with = "name")]
    pub zone: Option<String>,
    /// No time before it, as 2026-03-29T02:30:00+01:00
    #[arg(long, value_name = "MOMENT", conflicts_with = "name")]
    pub start: Option<String>,
    /// No time after it
    #[arg(long, value_name = "MOMENT", conflicts_with = "name")]
    pub end: Option<String>,
    /// The times after this moment; from now on without it
    #[arg(long, value_name = "MOMENT", conflicts_with = "name")]
    pub after: Option<String>,
    /// How many
    #[arg(long, visible_alias = "next", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub count: u16,
}

/// Options of `set`.
#[derive(Args, Clone, Debug)]
pub struct Set {
    /// Its name
    pub name: String,
    /// The input of every job as JSON; @FILE reads a file, - standard input; null without it
    pub input: Option<String>,
    /// Minute, hour, day, month and weekday (with seconds in front, if there are six); or @daily and the like
    #[arg(long, conflicts_with = "every")]
    pub cron: Option<String>,
    /// An interval in seconds
    #[arg(long, value_name = "SECONDS")]
    pub every: Option<u64>,
    /// The time zone of the cron expression
    #[arg(long, default_value = "UTC")]
    pub zone: String,
    /// The flow
    #[arg(long, required_unless_present = "plan", conflicts_with = "plan")]
    pub flow: Option<String>,
    /// A plan in this file instead of a flow; the input is then the plan's
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,
    /// The gate that every job has to pass
    #[arg(long)]
    pub gate: Option<String>,
    /// The named queue that the jobs stand in
    #[arg(long)]
    pub queue: Option<String>,
    /// What their worker has to have; may be given several times
    #[arg(long, value_name = "LABEL")]
    pub needs: Vec<String>,
    /// Its version; the newest at this moment without it, and so until the schedule is set again
    #[arg(long = "flow-version", value_name = "NUMBER")]
    pub flow_version: Option<u32>,
    /// Higher is sooner
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    pub priority: i16,
    /// Every job ends within so many seconds
    #[arg(long, value_name = "SECONDS")]
    pub must_end_in: Option<u64>,
    /// What happens to times at which nobody served it: skip, once, all
    #[arg(long, default_value = "once")]
    pub missed: String,
    /// What happens to a time at which an earlier job is still open: allow, skip
    #[arg(long, default_value = "allow")]
    pub overlap: String,
    /// Every job begins up to so many seconds later
    #[arg(long, default_value_t = 0, value_name = "SECONDS")]
    pub jitter: u64,
    /// No time before it, as 2026-03-29T02:30:00+01:00
    #[arg(long, value_name = "MOMENT")]
    pub start: Option<String>,
    /// No time after it
    #[arg(long, value_name = "MOMENT")]
    pub end: Option<String>,
}

/// Does what was asked for.
pub async fn run(options: &Options, json: bool) -> Result<String, Failure> {
    let api = Api::new(&options.server, json)?;
    let tenant = options.tenant.clone();
    let mut query: Vec<(&str, String)> =
        tenant.clone().map(|t| ("tenant", t)).into_iter().collect();
    let who =
        [("tenant", tenant.map(Value::from)), ("by", options.server.by.clone().map(Value::from))];
    let answer = match &options.action {
        Action::Set(o) => api.put(&["schedules", &o.name], &body(o, who)?).await?,
        Action::List => {
            let answer = api.all("schedules", &query).await?;
            return if json { Ok(format!("{answer}\n")) } else { listed(&answer) };
        }
        Action::Show { name } => {
            query.push(("next", "5".into()));
            api.get(&["schedules", name], &query).await?
        }
        Action::Preview(o) => return preview(&api, o, query, json).await,
        Action::Pause { name } => api.post(&["schedules", name, "pause"], &fields(who)).await?,
        Action::Resume { name } => api.post(&["schedules", name, "resume"], &fields(who)).await?,
        Action::Fire { name, key } => {
            let [tenant, by] = who;
            let body = fields([tenant, by, ("key", key.clone().map(Value::from))]);
            let answer = api.post(&["schedules", name, "fire"], &body).await?;
            let job = answer["job"].as_str().unwrap_or_default();
            return Ok(if json { format!("{answer}\n") } else { format!("{job}\n") });
        }
        Action::Remove { name } => {
            api.delete(&["schedules", name], &query).await?;
            let answer = json!({ "removed": name });
            return Ok(if json { format!("{answer}\n") } else { format!("{name} is removed.\n") });
        }
    };
    if json {
        return Ok(format!("{answer}\n"));
    }
    Ok(shown(&read(answer)?))
}

/// The times of a schedule by their moments alone; of a calendar with what the clock on the wall shows and does.
async fn preview(
    api: &Api,
    o: &Preview,
    mut query: Vec<(&str, String)>,
    json: bool,
) -> Result<String, Failure> {
    if let Some(name) = &o.name {
        query.push(("next", o.count.to_string()));
        let answer = api.get(&["schedules", name], &query).await?;
        if json {
            return Ok(format!("{}\n", answer["next"]));
        }
        let shown: ScheduleView = read(answer)?;
        return Ok(shown.next.iter().map(|t| format!("{}\n", second(*t))).collect());
    }
    let body = fields([
        ("cron", o.cron.clone().map(Value::from)),
        ("every_seconds", o.every.map(Value::from)),
        ("zone", o.zone.clone().map(Value::from)),
        ("start", o.start.clone().map(Value::from)),
        ("end", o.end.clone().map(Value::from)),
        ("after", o.after.clone().map(Value::from)),
        ("count", Some(json!(o.count))),
    ]);
    let answer = api.post(&["calendars", "preview"], &body).await?;
    if json {
        return Ok(format!("{}\n", answer["times"]));
    }
    let times: Vec<Nominal> = read(answer["times"].clone())?;
    Ok(match times.is_empty() {
        true => "It has no time any more.\n".to_owned(),
        false => times.iter().map(explained).collect(),
    })
}

fn explained(time: &Nominal) -> String {
    let mut text = format!("{}  {}", second(time.at), time.wall);
    // Writing to a String can not fail.
    if let Some(meant) = &time.moved_from {
        let _ = write!(text, "  moved: the clock jumps over {meant}");
    }
    if let Some(again) = time.not_again_at {
        let _ =
            write!(text, "  once: not again at {}, when the clock shows it anew", second(again));
    }
    text + "\n"
}

fn body(o: &Set, who: [(&str, Option<Value>); 2]) -> Result<Value, Failure> {
    let [tenant, by] = who;
    let given = input(o.input.as_deref())?;
    let (flow, given) = match &o.plan {
        None => (o.flow.clone(), given),
        Some(file) => {
            let plan: Value = serde_json::from_str(&files::read(file)?)
                .map_err(|e| Failure::System(format!("{} is not JSON: {e}", file.display())))?;
            (Some("plan".to_owned()), json!({ "plan": plan, "input": given }))
        }
    };
    let terms = fields([
        ("gate", o.gate.clone().map(Value::from)),
        ("queue", o.queue.clone().map(Value::from)),
        ("needs", (!o.needs.is_empty()).then(|| json!(o.needs))),
    ]);
    Ok(fields([
        ("terms", Some(terms)),
        ("cron", o.cron.clone().map(Value::from)),
        ("every_seconds", o.every.map(Value::from)),
        ("zone", Some(json!(o.zone))),
        ("flow", flow.map(Value::from)),
        ("version", o.flow_version.map(Value::from)),
        ("input", Some(given)),
        ("priority", Some(json!(o.priority))),
        ("must_end_in_seconds", o.must_end_in.map(Value::from)),
        ("missed", Some(json!(o.missed))),
        ("overlap", Some(json!(o.overlap))),
        ("jitter_seconds", Some(json!(o.jitter))),
        ("start", o.start.clone().map(Value::from)),
        ("end", o.end.clone().map(Value::from)),
        tenant,
        by,
    ]))
}

/// A moment without its microseconds, which no calendar has.
fn second(at: Timestamp) -> String {
    let text = at.to_string();
    text.split('.').next().map_or(text.clone(), |whole| format!("{whole}Z"))
}

fn calendar(s: &ScheduleView) -> String {
    match (&s.spec.cron, s.spec.every_ms) {
        (Some(cron), _) => format!("{cron} ({})", s.spec.zone),
        (None, ms) => format!("every {} s", ms.unwrap_or(0) / 1_000),
    }
}

fn next(s: &ScheduleView) -> String {
    match s.next_at {
        Some(at) => times::second(at),
        None if s.status == "paused" => "when it is resumed".to_owned(),
        None => "never again".to_owned(),
    }
}

fn listed(answer: &Value) -> Result<String, Failure> {
    let all: Vec<ScheduleView> = read(answer["schedules"].clone())?;
    if all.is_empty() {
        return Ok(
            "There are no schedules. `tenure schedule set --help` says how to make one.\n".into()
        );
    }
    let head = ["SCHEDULE", "STATUS", "CALENDAR", "FLOW", "FIRED", "SKIPPED", "NEXT"];
    let row = |s: &ScheduleView| {
        let flow = format!("{}@{}", s.spec.flow, s.spec.version);
        let (fired, skipped) = (s.fired.to_string(), s.skipped.to_string());
        vec![s.name.clone(), s.status.clone(), calendar(s), flow, fired, skipped, next(s)]
    };
    Ok(table(&head, all.iter().map(row)))
}

fn shown(s: &ScheduleView) -> String {
    let mut text = format!(
        "{} is {}\n  calendar  {}\n  flow      {}@{}\n  next      {}\n  fired     {}, skipped {}\n",
        s.name,
        s.status,
        calendar(s),
        s.spec.flow,
        s.spec.version,
        next(s),
        s.fired,
        s.skipped
    );
    // Writing to a String can not fail.
    if let Some(why) = &s.attention {
        let _ = writeln!(text, "  attention {why}");
    }
    for job in &s.open {
        let _ = writeln!(text, "  open      {job}: until it has ended, times are skipped");
    }
    for at in &s.next {
        let _ = writeln!(text, "  then      {}", times::second(*at));
    }
    for fire in s.fires.iter().take(5) {
        let hand = if fire.by_hand { ", by hand" } else { "" };
        let _ =
            writeln!(text, "  job       {}  for {}{hand}", fire.job, times::second(fire.nominal));
    }
    text
}
