//! The command line: what can be typed, and its help.

use crate::commands::EXIT_CODES;
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use std::{fmt::Write as _, path::PathBuf};

/// Runs work that must not be lost, done twice, or left hanging.
#[derive(Debug, Parser)]
#[command(name = "tenure", version, about, propagate_version = true)]
pub struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub common: Common,
    /// The command.
    #[command(subcommand)]
    pub command: TopCommand,
}

/// The commands of the help, in groups. A command that no group names stands in the last one.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Run it", &["demo", "up", "server", "worker", "executor", "collector"]),
    ("Jobs", &["job", "plan", "schedule", "batch", "flow", "tool", "call"]),
    ("Agents", &["agent", "turn", "inbox", "watchdog"]),
    ("Tasks that run as pods", &["task"]),
    ("Who may run how much", &["queue", "gate", "limit", "block", "key"]),
    ("Look after it", &["doctor", "rules", "config", "audit", "verify", "export", "evidence"]),
];
const LAST_GROUP: &str = "More";

/// The command line, with its commands in groups.
pub fn command() -> clap::Command {
    let command = Cli::command();
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{}Options:\n{{options}}\n\n{EXIT_CODES}\n\n\
         `tenure COMMAND --help` says more about a command, `tenure explain CODE` about an error.\n",
        in_groups(&command)
    );
    command.help_template(template)
}

/// What was typed. Help, and what cannot be read, end the process.
pub fn parse() -> Cli {
    let matches = command().get_matches();
    Cli::from_arg_matches(&matches).unwrap_or_else(|e| e.exit())
}

fn in_groups(command: &clap::Command) -> String {
    let mut left: Vec<&clap::Command> =
        command.get_subcommands().filter(|c| !c.is_hide_set()).collect();
    let wide = left.iter().map(|c| c.get_name().len()).max().unwrap_or(0);
    let mut text = String::new();
    let mut write = |title: &str, commands: &[&clap::Command]| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{title}:");
        for command in commands {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(text, "  {:wide$}  {about}", command.get_name());
        }
        text.push('\n');
    };
    for (title, names) in GROUPS {
        let place = |c: &&clap::Command| names.iter().position(|name| *name == c.get_name());
        let mut group: Vec<_> = left.extract_if(.., |c| place(c).is_some()).collect();
        group.sort_by_key(place);
        write(title, &group);
    }
    write(LAST_GROUP, &left);
    text
}

/// Every command that can be typed after `tenure`.
#[expect(clippy::large_enum_variant, reason = "there is one value in a process")]
#[derive(Debug, Subcommand)]
pub enum TopCommand {
    /// A command of this binary.
    #[command(flatten)]
    Product(Command),
    /// A command of `tenure-lab`.
    #[command(flatten)]
    Lab(LabCommand),
}

/// Commands that the second binary, `tenure-lab`, runs. It reads their arguments itself, `--help` included.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Breaks things for real and prints the failure matrix with what was seen in every cell (runs tenure-lab)
    #[command(disable_help_flag = true)]
    Drill(Forwarded),
    /// Keeps load on a small cluster while things are killed, and ends with the accounting (runs tenure-lab)
    #[command(disable_help_flag = true)]
    Soak(Forwarded),
    /// Replays one simulated run of a whole cluster under faults, exactly, from its seed (runs tenure-lab)
    #[command(disable_help_flag = true)]
    Sim(Forwarded),
    /// Measures, beside the raw limit of the same engine (runs tenure-lab)
    #[command(disable_help_flag = true)]
    Bench(Forwarded),
}

/// Arguments that are passed on unread.
#[derive(Args, Clone, Debug)]
pub struct Forwarded {
    /// Options of this command: `--help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTIONS")]
    pub arguments: Vec<std::ffi::OsString>,
}

/// Options of every command.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// The configuration file [default: tenure.toml, if there is one]
    #[arg(long, global = true, env = "TENURE_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where everything is kept: sqlite:DIRECTORY or postgres://USER@HOST/DATABASE [setting: store.url; default:
    /// sqlite:.tenure]. Commands that ask a server (--server) do not use it
    #[arg(long, global = true, value_name = "URL")]
    pub store: Option<String>,
    /// Overrides one setting; may be repeated
    #[arg(long, global = true, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Prints JSON instead of text
    #[arg(long, global = true)]
    pub json: bool,
    /// Prints times in UTC instead of the zone of this machine; JSON always has UTC
    #[arg(long, global = true)]
    pub utc: bool,
}

/// The commands of the product.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Shows the main promises on real processes: workers are killed in the middle of their work, and the
    /// work is still done, each effect once
    Demo(Demo),
    /// The worker processes of `tenure demo`: the built-in flows and tools, and those of the demo
    #[command(hide = true)]
    DemoWorker(Worker),
    /// Runs a server and a worker in one process, on the embedded store or Postgres: all that one machine needs
    Up,
    /// Runs a server: HTTP API, console, and the loops that let nothing hang
    Server,
    /// Runs a worker for a server in another process: the built-in flows and tools. `worker list` lists those that are alive
    #[command(args_conflicts_with_subcommands = true)]
    Worker(Worker),
    /// Sees the pods of tasks and tells what became of them: Redis, and a server
    #[command(
        after_help = "Example:\n  tenure collector --kubeconfig ~/.kube/config --server http://127.0.0.1:7777 --redis none\n  NODE_NAME=node-1 tenure collector --in-cluster\n\n\
        Everything is also a setting (collector.*, kubernetes.*, redis.addresses, pods.*): see tenure config, and docs/pods/collector.md."
    )]
    Collector(crate::commands::collector::Options),
    /// Makes and tends the pods of tasks in a Kubernetes cluster, for a server in another process
    #[command(
        after_help = "Example:\n  tenure executor --server http://tenure-server.tenure.svc:7777 --in-cluster\n  tenure executor --kubeconfig ~/.kube/config --namespace work"
    )]
    Executor(crate::commands::executor::Options),
    /// Submits, shows and moves jobs of a server, over HTTP
    Job(crate::commands::job::args::Job),
    /// Sets and shows agents, and sends them work
    Agent(crate::commands::agent::Options),
    /// Shows turns of agents, follows them, answers their tools, and ends them
    Turn(crate::commands::agent::turn::Options),
    /// Shows what came for agents; dead letters are sent again or put aside
    Inbox(crate::commands::agent::Inbox),
    /// Says what the rules would do to open turns, now and next, and does nothing
    #[command(
        after_help = "Example:\n  tenure watchdog\n  tenure watchdog --agent ada\n  tenure watchdog --now"
    )]
    Watchdog(crate::commands::agent::Watchdog),
    /// Orders, shows and moves tasks, which run as pods; says what a pod object means
    Task(crate::commands::task::Options),
    /// Sets and shows gates: how many of the jobs that name one may be open at once
    Gate(crate::commands::gate::Options),
    /// Shows what waits for a worker, and which workers serve it
    Queue(crate::commands::queue::Options),
    /// Sets and shows how often tools may be called
    Limit(crate::commands::limit::Options),
    /// Keeps a flow, a tool or a tenant from running, and lets it run again
    Block(crate::commands::block::Options),
    /// Shows calls: tools that workers in other languages run
    Call(crate::commands::call::Options),
    /// Shows what is collected with others before it becomes a job
    Batch(crate::commands::batch::Options),
    /// Shows the flows that workers have registered
    Flow(crate::commands::catalogue::Options),
    /// Shows the tools that workers have registered
    Tool(crate::commands::catalogue::Options),
    /// Sets, shows and moves schedules of a server: jobs at the times of a calendar
    Schedule(crate::commands::schedule::Options),
    /// Checks and shows plans: work as a graph of steps in JSON
    Plan(crate::commands::plan::Options),
    /// Creates, lists, rotates and revokes API keys: at a server (--server), or in the store; where a server on this machine has
    /// the store open, at that server
    #[command(
        after_help = "Example:\n  tenure key create ci --tenant acme --scope read,write --expires-in 7776000\n  tenure key rotate ID --overlap 3600\n  tenure key revoke ID"
    )]
    Key(KeyOptions),
    /// Prints administrative acts as JSON lines, the newest first: who did what, when, and whether it was carried out
    #[command(
        after_help = "Example:\n  tenure audit --act keys. --since 2026-03-01T00:00:00Z\n  tenure audit --server https://tenure.example --tenant acme"
    )]
    Audit(crate::commands::audit::Options),
    /// Lists every rule by which silence has consequences, its setting, and how often it has fired
    Rules,
    /// Prints every setting, its value, and who set it
    Config,
    /// Checks every stream of the store: hash chains, heads against their history, deadlines. With a file, checks an
    /// export of a job, without a store and without a network
    #[command(
        after_help = "Example:\n  tenure verify\n  tenure verify job.tenure --key evidence.pem.pub.pem"
    )]
    Verify(Verify),
    /// Copies the store into one new file, as it is at one moment, also while a server writes to it
    #[command(after_help = "Example:\n  tenure backup /backups/tenure-2026-07-01.db")]
    Backup(Backup),
    /// Puts a backup in the place of the store and says what it lacks; no server may run on it
    #[command(after_help = "Example:\n  tenure restore /backups/tenure-2026-07-01.db --replace")]
    Restore(Restore),
    /// Writes everything of a job into one file that can be checked without this server: see docs/evidence.md
    #[command(
        after_help = "Example:\n  tenure export 0190b5e0-1234 -o job.tenure\n  tenure verify job.tenure --key evidence.pem.pub.pem"
    )]
    Export(Export),
    /// Makes the key with which a server signs exports
    Evidence {
        /// What to do
        #[command(subcommand)]
        action: EvidenceAction,
    },
    /// Looks at a live deployment, read-only, and says in words what is wrong and what to do
    ///
    /// Safe while servers and workers run: it opens the store for reading, leaves nothing in it, and reads a bounded
    /// amount. Ends with 1 if something is wrong, or if the store can not be reached; warnings alone end with 0, unless
    /// --strict.
    Doctor(Doctor),
    /// Says what an error code means and what to do
    #[command(after_help = "Example:\n  tenure explain disk_full\n  tenure explain")]
    Explain(crate::commands::explain::Options),
    /// Prints a script with which a shell completes commands and options
    #[command(
        after_help = "Example:\n  tenure completions bash > ~/.local/share/bash-completion/completions/tenure\n  tenure completions zsh > \"${fpath[1]}/_tenure\"\n  tenure completions fish > ~/.config/fish/completions/tenure.fish"
    )]
    Completions(crate::commands::manual::Completions),
    /// Writes the manual: a page of man for every command
    #[command(
        after_help = "Example:\n  tenure manual --out ~/.local/share/man/man1\n  man tenure-job-submit"
    )]
    Manual(crate::commands::manual::Manual),
}

/// Options of `verify`.
#[derive(Args, Clone, Debug, Default)]
pub struct Verify {
    /// An export of a job; without one the store is checked
    pub file: Option<PathBuf>,
    /// The public key it has to be signed with: a PEM file, or 64 hexadecimal digits
    #[arg(long, value_name = "KEY", requires = "file")]
    pub key: Option<String>,
    /// Accept a file without a signature: its chain and digests are checked, and anybody may have written it
    #[arg(long, requires = "file")]
    pub allow_unsigned: bool,
}

/// Options of `backup`.
#[derive(Args, Clone, Debug)]
pub struct Backup {
    /// The file to write; it must not be there yet
    pub file: PathBuf,
}

/// Options of `restore`.
#[derive(Args, Clone, Debug)]
pub struct Restore {
    /// What `tenure backup` wrote, or the database file of a server that was stopped
    pub file: PathBuf,
    /// Move a store that is there into a directory beside it
    #[arg(long)]
    pub replace: bool,
}

/// Options of `export`.
#[derive(Args, Clone, Debug)]
pub struct Export {
    /// Where to ask.
    #[command(flatten)]
    pub server: crate::commands::job::args::Server,
    /// Which job.
    #[command(flatten)]
    pub job: crate::commands::job::args::One,
    /// Where to write it; standard output without it. An existing file is not overwritten
    #[arg(long, short, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// With all child jobs; else their ids and chain values
    #[arg(long)]
    pub with_children: bool,
}

/// What can be done with the key of exports.
#[derive(Clone, Debug, Subcommand)]
pub enum EvidenceAction {
    /// Makes a key: the private half into a new file that only you can read, the public half printed
    Key {
        /// The new file; the public half goes beside it, with .pub.pem at its end
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
}

/// Options of `worker`.
#[derive(Args, Clone, Debug)]
pub struct Worker {
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
    /// An API key with the scope `worker`, where the server needs one; with the scope `read` for `list`
    #[arg(long, global = true, env = "TENURE_API_KEY", value_name = "KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Serves this named queue, `default` for the unnamed one; may be repeated [setting: worker.queues]
    #[arg(long = "queue", value_name = "NAME")]
    pub queues: Vec<String>,
    /// Runs turns of agents with this target; may be repeated [setting: worker.targets]
    #[arg(long = "target", value_name = "NAME")]
    pub targets: Vec<String>,
    /// Has this capability, for jobs that need it; may be repeated, at most 4 [setting: worker.capabilities]
    #[arg(long = "can", value_name = "LABEL")]
    pub can: Vec<String>,
    /// What to do instead of running one
    #[command(subcommand)]
    pub action: Option<WorkerAction>,
}

/// What can be done with workers, besides running one.
#[derive(Clone, Debug, Subcommand)]
pub enum WorkerAction {
    /// Lists workers and servers that are alive, and what each runs now
    List,
}

/// Where keys and the audit trail are: at a server, or in a store.
#[derive(Args, Clone, Debug)]
pub struct ServerOrStore {
    /// The server's address; without it the store is opened
    #[arg(long, global = true, env = "TENURE_SERVER", value_name = "URL")]
    pub server: Option<String>,
    /// An API key with the scope admin, for the server
    #[arg(long, global = true, env = "TENURE_API_KEY", value_name = "KEY", hide_env_values = true)]
    pub api_key: Option<String>,
}

/// Options of `key`.
#[derive(Args, Clone, Debug)]
pub struct KeyOptions {
    /// Where the keys are.
    #[command(flatten)]
    pub at: ServerOrStore,
    /// Who you are, for the history [default: $USER]
    #[arg(long, global = true, env = "USER", value_name = "NAME", hide_env = true)]
    pub by: Option<String>,
    /// What to do
    #[command(subcommand)]
    pub action: KeyAction,
}

/// What can be done with keys.
#[derive(Clone, Debug, Subcommand)]
pub enum KeyAction {
    /// Makes a key and shows its secret once
    Create {
        /// What it is for
        name: String,
        /// The tenant it is bound to; without one it sees all tenants
        #[arg(long)]
        tenant: Option<String>,
        /// What it may do: read, write, worker, collector (reports about pods, and nothing else), admin
        #[arg(long = "scope", value_delimiter = ',', default_value = "read,write")]
        scopes: Vec<String>,
        /// Seconds after which it ends; without this, never
        #[arg(long, value_name = "SECONDS")]
        expires_in: Option<u64>,
    },
    /// Lists all keys, without their secrets
    List,
    /// Replaces the secret of a key and shows the new one once
    Rotate {
        /// Its id
        id: String,
        /// Seconds for which the old secret stays valid
        #[arg(long, value_name = "SECONDS", default_value_t = 0)]
        overlap: u64,
    },
    /// Revokes a key
    Revoke {
        /// Its id
        id: String,
    },
}

/// Options of `demo`.
#[derive(Args, Clone, Debug)]
pub struct Demo {
    /// Ask nothing and end when everything is told; the exit code says whether every promise was kept
    #[arg(long)]
    pub exit: bool,
    /// Keep the data in this new directory, to look at with `tenure verify` and `tenure rules`
    #[arg(long, value_name = "DIRECTORY")]
    pub keep: Option<PathBuf>,
}

/// Options of `doctor`.
#[derive(Args, Clone, Debug)]
pub struct Doctor {
    /// Also ask this server what only it knows: what it heard, its clock, its settings
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// An API key with the scope `read` and without a tenant, where the server needs one
    #[arg(long, env = "TENURE_API_KEY", value_name = "KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// How many streams are checked: the newest, the longest due, and some at random
    #[arg(long, default_value_t = 300, value_name = "N")]
    pub sample: usize,
    /// Check every stream, however long that takes
    #[arg(long, conflicts_with = "sample")]
    pub all: bool,
    /// What has waited for so many seconds (a message, the feed, somebody's transaction) is stuck, not under way
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS", value_parser = seconds)]
    pub stuck_after: f64,
    /// Let warnings end with 1 too
    #[arg(long)]
    pub strict: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    let fits = |s: &f64| (0.0..=86_400.0).contains(s);
    text.parse().ok().filter(fits).ok_or_else(|| "give 0 to 86400 seconds".to_owned())
}

impl Command {
    /// Whether it runs until it is asked to end, so that somebody collects what it says.
    pub fn serves(&self) -> bool {
        match self {
            Command::Up | Command::Server | Command::Collector(_) | Command::Executor(_) => true,
            Command::Worker(worker) => worker.action.is_none(),
            _ => false,
        }
    }

    /// Settings that options of this command stand for, as `KEY=VALUE`.
    pub fn flags(&self) -> Vec<String> {
        match self {
            Command::Worker(worker) | Command::DemoWorker(worker) => worker.flags(),
            Command::Collector(collector) => collector.flags(),
            Command::Executor(executor) => executor.flags(),
            _ => Vec::new(),
        }
    }
}

impl Worker {
    fn flags(&self) -> Vec<String> {
        let lists = [
            ("worker.queues", &self.queues),
            ("worker.capabilities", &self.can),
            ("worker.targets", &self.targets),
        ];
        let given = lists.iter().filter(|(_, names)| !names.is_empty());
        given.map(|(key, names)| format!("{key}={}", names.join(","))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What can be done, in one word each, over all kinds of things. A new verb for something that has one here is a mistake.
    const VERBS: [&str; 45] = [
        "approve",
        "budget",
        "bulk",
        "cancel",
        "create",
        "deliverable",
        "discard",
        "events",
        "explain",
        "fire",
        "force-delete",
        "force-finish",
        "fork",
        "inbox",
        "key",
        "list",
        "logs",
        "pause",
        "preview",
        "reject",
        "remove",
        "replay",
        "requeue",
        "resolve",
        "result",
        "resume",
        "retry",
        "revoke",
        "rotate",
        "run",
        "send",
        "set",
        "show",
        "check",
        "signal",
        "submit",
        "trace",
        "verify",
        "waiting",
        "watch",
        "why",
        "drill",
        "soak",
        "sim",
        "bench",
    ];

    fn visible(command: &clap::Command) -> impl Iterator<Item = &clap::Command> {
        command.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help")
    }

    #[test]
    fn the_help_has_every_command_once_and_groups_name_commands_that_exist() {
        let command = command();
        let help = command.clone().render_help().to_string();
        for one in visible(&command) {
            let lines =
                help.lines().filter(|l| l.trim_start().split(' ').next() == Some(one.get_name()));
            assert_eq!(lines.count(), 1, "{} in {help}", one.get_name());
        }
        for name in GROUPS.iter().flat_map(|(_, names)| *names) {
            assert!(command.find_subcommand(name).is_some(), "{name}");
        }
        for words in ["Exit codes:", "Agents:", "--utc", "tenure explain CODE"] {
            assert!(help.contains(words), "{words:?} in {help}");
        }
    }

    #[test]
    fn every_kind_of_thing_is_asked_with_the_same_verbs() {
        for kind in visible(&command()) {
            for verb in visible(kind) {
                assert!(
                    VERBS.contains(&verb.get_name()),
                    "{} {}",
                    kind.get_name(),
                    verb.get_name()
                );
            }
        }
        for kind in [
            "job", "agent", "turn", "task", "gate", "queue", "limit", "call", "schedule", "batch",
            "flow", "tool",
        ] {
            let command = command();
            let kind = command.find_subcommand(kind).expect("it is a command");
            for verb in ["list", "show"] {
                assert!(kind.find_subcommand(verb).is_some(), "{} {verb}", kind.get_name());
            }
        }
    }

    #[test]
    fn verbs_of_earlier_versions_still_work_and_are_not_shown() {
        for old in [
            ["agent", "get", "ada", ""],
            ["turn", "get", "ID", ""],
            ["turn", "timeline", "ID", ""],
            ["turn", "stop", "ID", ""],
            ["task", "timeline", "ID", ""],
            ["task", "dead-letters", "", ""],
            ["inbox", "skip", "TURN", "ITEM"],
            ["limit", "delete", "--tool", "http"],
            ["schedule", "delete", "nightly", ""],
        ] {
            let words = old.iter().filter(|word| !word.is_empty());
            let parsed = Cli::try_parse_from(["tenure"].iter().chain(words));
            assert!(
                parsed.is_ok(),
                "{old:?}: {}",
                parsed.err().map(|e| e.to_string()).unwrap_or_default()
            );
            let command = command();
            let kind = command.find_subcommand(old[0]).expect("it is a command");
            assert!(visible(kind).all(|verb| verb.get_name() != old[1]), "{old:?}");
        }
    }

    #[test]
    fn a_worker_is_run_or_listed() {
        let parsed = Cli::try_parse_from(["tenure", "worker", "list", "--server", "http://h"]);
        let Ok(Cli { command: TopCommand::Product(Command::Worker(worker)), .. }) = parsed else {
            panic!("{parsed:?}")
        };
        assert!(worker.action.is_some() && worker.server == "http://h");
        let run = Cli::try_parse_from(["tenure", "worker", "--queue", "bulk"]);
        assert!(matches!(
            run,
            Ok(Cli {
                command: TopCommand::Product(Command::Worker(Worker { action: None, .. })),
                ..
            })
        ));
    }
}
