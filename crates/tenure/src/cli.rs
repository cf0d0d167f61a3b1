//! The command line: what can be typed, and its help.

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// Runs work that must not be lost, done twice, or left hanging.
#[derive(Debug, Parser)]
#[command(name = "tenure", version, about, propagate_version = true)]
pub struct Cli {
    /// What every command takes.
    #[command(flatten)]
    pub common: Common,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What every command takes.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// The configuration file [default: tenure.toml, if there is one]
    #[arg(long, global = true, env = "TENURE_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where everything is kept: sqlite:DIRECTORY or postgres://USER@HOST/DATABASE
    #[arg(long, global = true, value_name = "URL")]
    pub store: Option<String>,
    /// Overrides one setting; may be repeated
    #[arg(long, global = true, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Prints JSON instead of text
    #[arg(long, global = true)]
    pub json: bool,
}

/// What can be done.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Shows the main promises on real processes: workers are killed in the middle of their work, and the
    /// work is still done, each effect once
    Demo(Demo),
    /// Runs a server and a worker in one process, on the embedded store or Postgres: all that one machine needs
    Up,
    /// Runs a server: HTTP API, console, and the loops that let nothing hang
    Server,
    /// Runs a worker for a server in another process: the built-in flows and tools
    Worker(Worker),
    /// Submits, shows and moves jobs of a server, over HTTP
    Job(crate::commands::job::args::Job),
    /// Creates, lists and revokes API keys
    Key {
        /// What to do
        #[command(subcommand)]
        action: KeyAction,
    },
    /// Lists every rule by which silence has consequences, its setting, and how often it has fired
    Rules,
    /// Prints every setting, its value, and who set it
    Config,
    /// Checks every stream of the store: hash chains, heads against their history, deadlines
    Verify,
    /// Replays one simulated run of a whole cluster under faults, exactly, from its seed
    Sim(Sim),
    /// Measures, beside the raw limit of the same engine
    Bench(Bench),
    /// Commits as fast as it can and says what was acknowledged; the tests kill it
    #[command(hide = true)]
    Torture(Torture),
}

/// Options of `worker`.
#[derive(Args, Clone, Debug)]
pub struct Worker {
    /// The server's address
    #[arg(
        long,
        env = "TENURE_SERVER",
        value_name = "URL",
        default_value = "http://127.0.0.1:7777"
    )]
    pub server: String,
    /// An API key with the scope `worker`, where the server needs one
    #[arg(long, env = "TENURE_API_KEY", value_name = "KEY", hide_env_values = true)]
    pub api_key: Option<String>,
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
        /// What it may do: read, write, worker, admin
        #[arg(long = "scope", value_delimiter = ',', default_value = "read,write")]
        scopes: Vec<String>,
    },
    /// Lists all keys, without their secrets
    List,
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

/// Options of `sim`.
#[derive(Args, Clone, Debug)]
pub struct Sim {
    /// The seed of the run
    #[arg(long)]
    pub seed: u64,
    /// Which scenario; without it, the one that the seed picks
    #[arg(long)]
    pub scenario: Option<String>,
    /// How many seeds to run, counting up
    #[arg(long, default_value_t = 1)]
    pub runs: u64,
    /// Print what happened, step by step
    #[arg(long)]
    pub trace: bool,
}

/// Options of `bench`.
#[derive(Args, Clone, Debug)]
pub struct Bench {
    /// What to measure
    #[command(subcommand)]
    pub suite: Suite,
}

/// What can be measured.
#[derive(Clone, Debug, Subcommand)]
pub enum Suite {
    /// Commits per second and their latency. `--store sqlite` (a scratch file), `sqlite:DIRECTORY` (a scratch file there)
    /// or a Postgres URL (a scratch schema, removed afterwards)
    Commit {
        /// Concurrent callers, one case each
        #[arg(long, value_delimiter = ',', default_value = "1,50,200,500")]
        callers: Vec<usize>,
        /// Seconds per case
        #[arg(long, default_value_t = 5.0)]
        seconds: f64,
    },
    /// Whole jobs: how many per second, how long from submission to completion, and what they cost the store
    Jobs {
        /// Tool steps per job, one case each
        #[arg(long, value_delimiter = ',', default_value = "1,3,10")]
        steps: Vec<usize>,
        /// Clients that each wait for their job before they submit the next, one case each
        #[arg(long, value_delimiter = ',', default_value = "1,50,200,500")]
        concurrency: Vec<usize>,
        /// Seconds per case
        #[arg(long, default_value_t = 5.0)]
        seconds: f64,
        /// Submit over HTTP, with the worker in another process
        #[arg(long)]
        http: bool,
        /// Also park so many jobs on a signal, and say what they cost and how soon they go on
        #[arg(long, default_value_t = 0)]
        waiting: usize,
    },
    /// Claims per second while the history grows, and while somebody holds an old snapshot open
    Claim {
        /// Finished entities in the store, one case each
        #[arg(long, value_delimiter = ',', default_value = "10000,100000,1000000")]
        finished: Vec<usize>,
    },
}

/// Options of `torture`.
#[derive(Args, Clone, Debug)]
pub struct Torture {
    /// Concurrent callers
    #[arg(long, default_value_t = 16)]
    pub callers: usize,
}
