//! What can be typed behind `tenure job`, and its help.

use clap::{Args, Subcommand};

/// Options of `job`.
#[derive(Args, Clone, Debug)]
pub struct Job {
    /// Where to ask.
    #[command(flatten)]
    pub server: Server,
    /// What to do
    #[command(subcommand)]
    pub action: Action,
}

/// Where to ask, and as whom.
#[derive(Args, Clone, Debug)]
pub struct Server {
    /// The server's address; several of one deployment with commas: the next is asked when one does not answer
    #[arg(
        long,
        global = true,
        env = "TENURE_SERVER",
        hide_env_values = true,
        value_name = "URL",
        default_value = "http://127.0.0.1:7777"
    )]
    pub server: String,
    /// An API key, where the server needs one
    #[arg(long, global = true, env = "TENURE_API_KEY", value_name = "KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Who you are, for the history [default: $USER]
    #[arg(long, global = true, env = "USER", value_name = "NAME", hide_env = true)]
    pub by: Option<String>,
}

/// One job. Of an id its beginning or its end is enough where no other job has it.
#[derive(Args, Clone, Debug)]
pub struct One {
    /// The job; the beginning or the end of its id is enough where no other job has it
    #[arg(value_name = "ID")]
    pub id: String,
}

/// What can be done with jobs.
#[derive(Clone, Debug, Subcommand)]
pub enum Action {
    /// Runs a flow as a new job
    #[command(
        after_help = "Example:\n  tenure job submit ask '{\"question\": \"Ship it?\"}' --key release-7\n  tenure job submit http @request.json --wait\n  tenure job submit --plan trip.json '{\"to\": \"Rome\"}'"
    )]
    Submit(Box<Submit>),
    /// Lists jobs, the newest first
    #[command(
        after_help = "Example:\n  tenure job list --status failed,attention\n  tenure job list --label customer=42 --since 2026-03-01T00:00:00Z\n  tenure job list --key order-7\n  tenure job list --dead --tenant acme"
    )]
    List(List),
    /// Shows where a job stands, why, and its steps
    #[command(after_help = "Example:\n  tenure job show 0190b5e0-1234")]
    Show(One),
    /// Draws what happened when: workers, steps, waits
    #[command(after_help = "Example:\n  tenure job trace 0190b5e0-1234")]
    Trace(One),
    /// Prints the events of a job, or follows them as they come
    #[command(after_help = "Example:\n  tenure job events 0190b5e0-1234 --follow")]
    Events(Events),
    /// Follows the events of a job as they come, until it ends
    #[command(after_help = "Example:\n  tenure job watch 0190b5e0-1234")]
    Watch(One),
    /// Completes a wait of a job; the same key twice counts once
    #[command(
        after_help = "Example:\n  tenure job signal 0190b5e0-1234 paid '{\"amount\": 12}'\n  tenure job signal 0190b5e0-1234 paid --early"
    )]
    Signal(Signal),
    /// Says yes to what a job asks
    #[command(after_help = "Example:\n  tenure job approve 0190b5e0-1234 --comment 'looks good'")]
    Approve(Decision),
    /// Says no to what a job asks
    #[command(
        after_help = "Example:\n  tenure job reject 0190b5e0-1234 answer --comment 'not on Friday'"
    )]
    Reject(Decision),
    /// Ends a job, whatever it does
    #[command(after_help = "Example:\n  tenure job cancel 0190b5e0-1234 --why 'ordered twice'")]
    Cancel(Ask),
    /// Stops a job until it is resumed; what runs is let finish
    #[command(after_help = "Example:\n  tenure job pause 0190b5e0-1234 --why 'maintenance'")]
    Pause(Ask),
    /// Lets a paused job go on, or one in attention look again
    #[command(after_help = "Example:\n  tenure job resume 0190b5e0-1234")]
    Resume(Ask),
    /// Tries a job again that is over: a new job that goes on before the step that failed
    #[command(after_help = "Example:\n  tenure job retry 0190b5e0-1234 --wait")]
    Retry(Retry),
    /// Makes a new job that goes on from another one's history
    #[command(after_help = "Example:\n  tenure job fork 0190b5e0-1234 --step 3")]
    Fork(Fork),
    /// Says what became of an effect that nobody knows about
    #[command(
        after_help = "Example:\n  tenure job resolve 0190b5e0-1234 --step 2 --happened '{\"id\": 7}' --note 'seen in the ledger'\n  tenure job resolve 0190b5e0-1234 --step 2 --did-not-happen"
    )]
    Resolve(Resolve),
    /// Puts a failed job aside: it is no dead letter any more
    #[command(after_help = "Example:\n  tenure job discard 0190b5e0-1234")]
    Discard(One),
    /// Checks that nobody touched a job's history, and that it keeps the rules
    #[command(after_help = "Example:\n  tenure job verify 0190b5e0-1234")]
    Verify(One),
    /// Leads the flow's code through a job's history, calls nothing, and says whether they agree
    #[command(after_help = "Example:\n  tenure job replay 0190b5e0-1234")]
    Replay(One),
    /// Says in one sentence why a job is where it is, and what moves it
    #[command(after_help = "Example:\n  tenure job why 0190b5e0-1234")]
    Why(One),
    /// Asks many jobs at once: shows what would be done, asks, and has it done by a job of its own
    #[command(
        after_help = "Example:\n  tenure job bulk cancel --flow import --status queued,parked\n  tenure job bulk retry --status failed --reason step_failed --older-than 600 --yes --wait\n  tenure job bulk signal --key go --payload '{\"n\": 1}' --flow listen --preview"
    )]
    Bulk(Box<Bulk>),
}

/// Options of `bulk`. Only jobs that are there now are touched, of one tenant.
#[derive(Args, Clone, Debug)]
pub struct Bulk {
    /// What to do
    #[arg(value_parser = ["cancel", "pause", "resume", "retry", "signal", "approve", "reject", "resolve", "discard"])]
    pub action: String,
    /// Only this flow
    #[arg(long)]
    pub flow: Option<String>,
    /// Only these statuses, with commas between them: queued, running, waiting, parked, retrying, attention,
    /// cancelling, undoing, completed, failed, cancelled
    #[arg(long)]
    pub status: Option<String>,
    /// Only those that a person has to look at
    #[arg(long)]
    pub attention: bool,
    /// Only those that failed, or are in attention, for this reason
    #[arg(long)]
    pub reason: Option<String>,
    /// Only those created more than so many seconds ago
    #[arg(long, value_name = "SECONDS")]
    pub older_than: Option<u64>,
    /// Only those created less than so many seconds ago
    #[arg(long, value_name = "SECONDS")]
    pub newer_than: Option<u64>,
    /// Whose jobs, where the key has no tenant
    #[arg(long)]
    pub tenant: Option<String>,
    /// Of cancel, pause and resume: why, for the history
    #[arg(long)]
    pub why: Option<String>,
    /// Of signal, approve and reject: the correlation key
    #[arg(long)]
    pub key: Option<String>,
    /// Of signal, approve and reject: what the flows get, as JSON
    #[arg(long, value_name = "JSON")]
    pub payload: Option<String>,
    /// Of signal: keep it where nobody waits yet
    #[arg(long)]
    pub early: bool,
    /// Of resolve: which step
    #[arg(long)]
    pub step: Option<String>,
    /// Of resolve: happened, did_not_happen or abandoned
    #[arg(long)]
    pub verdict: Option<String>,
    /// Of resolve: the result of what happened, as JSON
    #[arg(long, value_name = "JSON")]
    pub result: Option<String>,
    /// Of resolve: how you know
    #[arg(long)]
    pub note: Option<String>,
    /// Of retry: the flow's version; each job's own without it
    #[arg(long = "flow-version", value_name = "NUMBER")]
    pub flow_version: Option<u32>,
    /// Only show what would be done
    #[arg(long, conflicts_with = "yes")]
    pub preview: bool,
    /// Do it without asking
    #[arg(long)]
    pub yes: bool,
    /// Waits for the end, or for so many seconds, and shows the account
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "inf")]
    pub wait: Option<f64>,
}

/// Options of `submit`.
#[derive(Args, Clone, Debug)]
pub struct Submit {
    /// The flow; with --plan, what stands here is the input
    #[arg(required_unless_present = "plan")]
    pub flow: Option<String>,
    /// Its input as JSON; @FILE reads a file, - standard input; null without it
    #[arg(conflicts_with = "plan")]
    pub input: Option<String>,
    /// Runs the plan in this file instead of a flow; what stands after it is the plan's input
    #[arg(long, value_name = "FILE", conflicts_with = "flow_version")]
    pub plan: Option<std::path::PathBuf>,
    /// Makes it safe to ask again: the same key with the same input is the same job
    #[arg(long)]
    pub key: Option<String>,
    /// The flow's version; the newest without it
    #[arg(long = "flow-version", value_name = "NUMBER")]
    pub flow_version: Option<u32>,
    /// Higher is sooner
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    pub priority: i16,
    /// It ends within so many seconds, whatever happens
    #[arg(long, value_name = "SECONDS")]
    pub must_end_in: Option<u64>,
    /// It starts no sooner than in so many seconds
    #[arg(long, value_name = "SECONDS", conflicts_with = "start_at")]
    pub start_in: Option<u64>,
    /// It starts no sooner than at this time, as 2026-03-01T12:00:00Z
    #[arg(long, value_name = "TIME")]
    pub start_at: Option<String>,
    /// Of the jobs with the same gate only so many are open at once (`tenure gate`)
    #[arg(long, value_name = "NAME")]
    pub gate: Option<String>,
    /// The limit of the gate, if nobody has said one before; 1 without it
    #[arg(long, value_name = "NUMBER", requires = "gate")]
    pub gate_limit: Option<u32>,
    /// The named queue it stands in: only workers that serve it take it
    #[arg(long, value_name = "NAME")]
    pub queue: Option<String>,
    /// What its worker has to have; may be repeated, at most 4
    #[arg(long, value_name = "LABEL")]
    pub needs: Vec<String>,
    /// A label by which the job is found later, as customer=42; may be repeated, at most 8
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    pub labels: Vec<(String, String)>,
    /// Whose job it is, where the key has no tenant
    #[arg(long)]
    pub tenant: Option<String>,
    /// Collects it with others of this key into one job, whose input is {"items": […]}; needs --max and --within
    #[arg(long, value_name = "KEY", requires_all = ["max", "within"], conflicts_with_all = ["debounce", "wait"])]
    pub batch: Option<String>,
    /// Of a batch: becomes a job when so many are there
    #[arg(long, value_name = "NUMBER")]
    pub max: Option<u32>,
    /// Collects it with others of this key, of which the last becomes a job; needs --quiet and --within
    #[arg(long, value_name = "KEY", requires_all = ["quiet", "within"], conflicts_with = "wait")]
    pub debounce: Option<String>,
    /// Of a debounce: becomes a job after so long a silence
    #[arg(long, value_name = "SECONDS")]
    pub quiet: Option<u64>,
    /// Of both: becomes a job so long after the first
    #[arg(long, value_name = "SECONDS")]
    pub within: Option<u64>,
    /// Waits for the end, or for so many seconds; a job that does not complete is an error then
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "inf")]
    pub wait: Option<f64>,
}

/// Options of `list`.
#[derive(Args, Clone, Debug)]
pub struct List {
    /// Only these statuses, with commas between them: queued, running, waiting, parked, retrying, attention,
    /// cancelling, undoing, completed, failed, cancelled
    #[arg(long)]
    pub status: Option<String>,
    /// Only this flow
    #[arg(long)]
    pub flow: Option<String>,
    /// Only those that a person has to look at
    #[arg(long)]
    pub attention: bool,
    /// Only the job that was submitted under this key
    #[arg(long)]
    pub key: Option<String>,
    /// Only those with this label, as customer=42; may be repeated
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    pub labels: Vec<(String, String)>,
    /// Only those whose flow or plan has this text in its name
    #[arg(long, value_name = "TEXT")]
    pub name: Option<String>,
    /// Only those that were created at this moment or later, as 2026-03-01T12:00:00Z
    #[arg(long, value_name = "MOMENT")]
    pub since: Option<String>,
    /// Only those that were created before this moment
    #[arg(long, value_name = "MOMENT")]
    pub until: Option<String>,
    /// Failed jobs that nobody has put aside
    #[arg(long, conflicts_with_all = ["status", "flow", "attention", "key", "labels", "name", "since", "until"])]
    pub dead: bool,
    /// Only of this tenant, where the key has none
    #[arg(long)]
    pub tenant: Option<String>,
    /// Only jobs before this one: where the page before ended
    #[arg(long, value_name = "ID")]
    pub before: Option<String>,
    /// How many
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=200))]
    pub limit: u16,
}

/// A label: a name and a value.
fn label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it as NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Options of `events`.
#[derive(Args, Clone, Debug)]
pub struct Events {
    /// Which job
    #[command(flatten)]
    pub job: One,
    /// Stay, and print what comes until the job ends
    #[arg(long, short)]
    pub follow: bool,
    /// From this version on
    #[arg(long, default_value_t = 1)]
    pub from: u64,
}

/// Options of `signal`.
#[derive(Args, Clone, Debug)]
pub struct Signal {
    /// Which job
    #[command(flatten)]
    pub job: One,
    /// The correlation key
    pub key: String,
    /// What the flow gets, as JSON; @FILE reads a file, - standard input; null without it
    pub payload: Option<String>,
    /// Keep it even if nobody waits for the key yet
    #[arg(long)]
    pub early: bool,
}

/// Options of `approve` and `reject`.
#[derive(Args, Clone, Debug)]
pub struct Decision {
    /// Which job
    #[command(flatten)]
    pub job: One,
    /// The key of the question; not needed where the job asks only one
    pub key: Option<String>,
    /// In words; the flow gets it
    #[arg(long)]
    pub comment: Option<String>,
}

/// Options of `cancel`, `pause` and `resume`.
#[derive(Args, Clone, Debug)]
pub struct Ask {
    /// Which job
    #[command(flatten)]
    pub job: One,
    /// Why, for the history
    #[arg(long)]
    pub why: Option<String>,
}

/// Options of `retry`.
#[derive(Args, Clone, Debug)]
pub struct Retry {
    /// Which job
    #[command(flatten)]
    pub job: One,
    /// The flow's version; the job's own without it
    #[arg(long = "flow-version", value_name = "NUMBER")]
    pub flow_version: Option<u32>,
    /// Do again what has happened and is irreversible; refused without it
    #[arg(long)]
    pub repeat: bool,
    /// Waits for the end of the new job, or for so many seconds
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "inf")]
    pub wait: Option<f64>,
}

/// Options of `fork`.
#[derive(Args, Clone, Debug)]
pub struct Fork {
    /// Which job
    #[command(flatten)]
    pub job: One,
    /// The first step that is not taken over
    #[arg(long)]
    pub step: String,
    /// The flow's version; the job's own without it
    #[arg(long = "flow-version", value_name = "NUMBER")]
    pub flow_version: Option<u32>,
    /// Do again what has happened and is irreversible; refused without it
    #[arg(long)]
    pub repeat: bool,
}

/// Options of `resolve`.
#[derive(Args, Clone, Debug)]
#[command(group = clap::ArgGroup::new("verdict").required(true).multiple(false))]
pub struct Resolve {
    /// Which job
    #[command(flatten)]
    pub job: One,
    /// Which step
    #[arg(long)]
    pub step: String,
    /// It happened, with this result as JSON
    #[arg(long, value_name = "JSON", group = "verdict")]
    pub happened: Option<String>,
    /// It did not happen, and will not: its worker is dead, or can not act any more
    #[arg(long, group = "verdict")]
    pub did_not_happen: bool,
    /// Give the step up, whatever happened
    #[arg(long, group = "verdict")]
    pub abandon: bool,
    /// How you know
    #[arg(long)]
    pub note: Option<String>,
    /// Take back what a person has said about the step before. Of an open job only in attention, and while no step has used
    /// it; of one that is over, for its retry and its forks
    #[arg(long)]
    pub correct: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    /// Names that clash are found when a command is parsed, which is too late.
    #[test]
    fn every_command_can_be_parsed_and_every_job_command_has_an_example() {
        let mut cli = crate::cli::Cli::command();
        cli.build();
        cli.clone().debug_assert();
        let job = cli.find_subcommand("job").expect("there is one");
        for command in job.get_subcommands().filter(|c| c.get_name() != "help") {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains(&format!("tenure job {}", command.get_name())), "{help}");
        }
    }
}
