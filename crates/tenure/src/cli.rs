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
    /// Shows calls: tools that workers in other languages run
    Call(crate::commands::call::Options),
    /// Sets, shows and moves schedules of a server: jobs at the times of a calendar
    Schedule(crate::commands::schedule::Options),
    /// Checks and shows plans: work as a graph of steps in JSON
    Plan(crate::commands::plan::Options),
    /// Creates, lists and revokes API keys, in the store itself (--store); with SQLite while no server runs
    Key {
        /// What to do
        #[command(subcommand)]
        action: KeyAction,
    },
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
    /// Breaks things for real, and prints the failure matrix with what was seen in every cell: workers are killed
    /// and stopped, lines cut, stores taken away, on processes of its own or on your deployment
    #[command(
        after_help = "--store says where: sqlite (without it), postgres (a private one is started and killed), or a Postgres URL (a \
        scratch database is made there and dropped).\nWhat is set with --set, in the file or in the environment applies to the processes of \
        the drill; without it leases are short, so that takeovers take seconds.\nThe exit code is not 0 when a cell is broken or a case could not be run."
    )]
    Drill(Drill),
    /// Looks at a live deployment, read-only, and says in words what is wrong and what to do
    ///
    /// Safe while servers and workers run: it opens the store for reading, leaves nothing in it, and reads a bounded
    /// amount. Ends with 1 if something is wrong, or if the store can not be reached; warnings alone end with 0, unless
    /// --strict.
    Doctor(Doctor),
    /// Keeps load on a small cluster while things are killed, and ends with the accounting: nothing lost, nothing
    /// done twice, nothing hanging, memory flat
    #[command(
        after_help = "--store says where: sqlite (without it), postgres (a private one is started and killed), or a Postgres URL."
    )]
    Soak(Soak),
    /// Replays one simulated run of a whole cluster under faults, exactly, from its seed
    Sim(Sim),
    /// Measures, beside the raw limit of the same engine
    Bench(Bench),
    /// Commits as fast as it can and says what was acknowledged; the tests kill it
    #[command(hide = true)]
    Torture(Torture),
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
    /// Serves this named queue, `default` for the unnamed one; may be repeated [setting: worker.queues]
    #[arg(long = "queue", value_name = "NAME")]
    pub queues: Vec<String>,
    /// Runs turns of agents with this target; may be repeated [setting: worker.targets]
    #[arg(long = "target", value_name = "NAME")]
    pub targets: Vec<String>,
    /// Has this capability, for jobs that need it; may be repeated, at most 4 [setting: worker.capabilities]
    #[arg(long = "can", value_name = "LABEL")]
    pub can: Vec<String>,
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

/// Options of `drill`.
#[derive(Args, Clone, Debug)]
pub struct Drill {
    /// Which matrix: jobs, agents or pods; without it the one that has the first --fault, or that of jobs
    #[arg(long, value_name = "KIND")]
    pub kind: Option<String>,
    /// Only this row of the matrix; may be repeated: crash-before-tool, crash-after-tool, crash-after-commit,
    /// step-timeout, signal-lost, two-workers, partition, ledger-conflict, store-down, reclaim, blocked; of agents
    /// killed-dispatched, killed-asking, killed-tool-out, killed-resuming, killed-ending, bus-down, bad-results,
    /// clocks, rivals, stopped, silence, server-down; of pods executor-killed-making, executor-killed-tending,
    /// executor-killed-stopping, create-unanswered, collector-killed, collector-down, api-down, watch-silent,
    /// watch-expired, throttled, redis-down, tenure-down, node-gone, evicted, stale-reports
    #[arg(long, value_name = "FAULT")]
    pub fault: Vec<String>,
    /// Only cases whose name has this
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// How often each case is played
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub rounds: u32,
    /// The order of the cases, and what they send; a random one without it
    #[arg(long)]
    pub seed: Option<u64>,
    /// Also writes a page that can be sent to an auditor
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Drills this deployment, in a scratch tenant; needs an API key without a tenant (scopes read, write, worker)
    /// where the server wants one. Cases that kill servers or stores are left out, and pods are not drilled so
    #[arg(long, value_name = "URL")]
    pub against: Option<String>,
    /// The key for --against
    #[arg(long, env = "TENURE_API_KEY", value_name = "KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Switches off one protection, in the processes of this drill, to show that it then turns red
    #[arg(long = "break", value_name = "NAME")]
    pub broken: Option<crate::drill::breaks::Break>,
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

/// Options of `soak`. `--store` as for `drill`.
#[derive(Args, Clone, Debug)]
pub struct Soak {
    /// How long there is load
    #[arg(long, default_value_t = 10.0)]
    pub minutes: f64,
    /// Seconds between two kills: a worker mostly, one that is stopped and woken up at times, sometimes the server or
    /// the database
    #[arg(long, default_value_t = 5.0)]
    pub kill_every: f64,
    /// Clients that each wait for their job before they submit the next
    #[arg(long, default_value_t = 16)]
    pub clients: usize,
    /// Worker processes
    #[arg(long, default_value_t = 3)]
    pub workers: usize,
    /// What is killed when, and what the jobs do; a random one without it
    #[arg(long)]
    pub seed: Option<u64>,
}

/// Options of `sim`.
#[derive(Args, Clone, Debug)]
pub struct Sim {
    /// The seed of the run
    #[arg(long)]
    pub seed: u64,
    /// Which scenario (a wrong one lists all of them); without it, the one that the seed picks
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
    /// Turns of agents, with a model in this process that answers at once: how many per second, how long from sending to the
    /// first step, and from a tool's result to the next
    Agents {
        /// Clients that each wait for their turn before they send the next
        #[arg(long, default_value_t = 200)]
        clients: usize,
        /// Seconds per case
        #[arg(long, default_value_t = 5.0)]
        seconds: f64,
        /// Bells and events go over this NATS, and a turn has ended when the bus has acknowledged its final event
        #[arg(long, value_name = "URL")]
        bus: Option<String>,
    },
    /// Empties a full queue: submits jobs while nobody works, then starts a worker and takes the time until all of them
    /// are completed
    Drain {
        /// Jobs in the queue
        #[arg(long, default_value_t = 10_000)]
        jobs: usize,
        /// Tool steps per job
        #[arg(long, default_value_t = 1)]
        steps: usize,
        /// Jobs that the worker runs at once
        #[arg(long, default_value_t = 512)]
        slots: usize,
        /// The worker in another process, over HTTP
        #[arg(long)]
        http: bool,
    },
    /// One job at a time: how long a step takes, beside one durable write of the engine alone, measured in turns
    Serial {
        /// Jobs, one after the other
        #[arg(long, default_value_t = 300)]
        jobs: usize,
        /// Tool steps per job
        #[arg(long, default_value_t = 10)]
        steps: usize,
    },
    /// One job of one call at a time, through a worker in another process that speaks the HTTP protocol for calls, beside
    /// one durable write of the engine alone
    Calls {
        /// Jobs, one after the other
        #[arg(long, default_value_t = 500)]
        jobs: usize,
        /// Also tells of the last three jobs what the store was asked for, and when (microseconds)
        #[arg(long)]
        journal: bool,
    },
    /// Changes of pods through a collector into the record of their tasks: memory per pod, a flood, and a steady rate
    Pods {
        /// Pods
        #[arg(long, default_value_t = 5_000)]
        pods: usize,
        /// Changes of each pod in the flood
        #[arg(long, default_value_t = 20)]
        changes: usize,
        /// Pods that end per second in the steady part
        #[arg(long, default_value_t = 1_000.0)]
        rate: f64,
        /// How long the steady part takes
        #[arg(long, default_value_t = 10.0)]
        seconds: f64,
        /// Publish to this Redis too
        #[arg(long, value_name = "ADDRESS")]
        redis: Option<String>,
        /// Also tells when the steady part was slow, and in which stage
        #[arg(long)]
        journal: bool,
    },
    /// The worker of `bench calls`
    #[command(hide = true)]
    CallsPeer {
        /// The server's address
        #[arg(long, value_name = "URL")]
        server: String,
    },
    /// Many clients on a slow disk: every sync of the database is delayed by a preloaded library, which needs a C compiler.
    /// `--store postgres://` starts a server of its own for that
    SlowDisk {
        /// What every fsync and fdatasync takes longer, in milliseconds
        #[arg(long, default_value_t = 5)]
        fsync_ms: u64,
        /// Clients that each wait for their job before they submit the next
        #[arg(long, default_value_t = 200)]
        concurrency: usize,
        /// Seconds per measurement
        #[arg(long, default_value_t = 5.0)]
        seconds: f64,
        /// How often both speeds are measured, in turns
        #[arg(long, default_value_t = 3)]
        rounds: usize,
        /// The script that starts a Postgres of its own
        #[arg(long, value_name = "FILE", default_value = "scripts/private-postgres")]
        private_postgres: PathBuf,
    },
    /// Whether a job costs the same with a thousand finished ones in the store and with a million, beside many that wait,
    /// and (Postgres) while somebody holds an old snapshot open
    Growth {
        /// Finished jobs in the store, one case each, growing; they are really run
        #[arg(long, value_delimiter = ',', default_value = "1000,10000,100000,1000000")]
        finished: Vec<usize>,
        /// Jobs that wait for a signal beside them
        #[arg(long, default_value_t = 0)]
        waiting: usize,
        /// Clients of the measured load
        #[arg(long, default_value_t = 50)]
        clients: usize,
        /// Seconds per case
        #[arg(long, default_value_t = 5.0)]
        seconds: f64,
        /// Hold a foreign snapshot open for so long afterwards, under the same load (Postgres only)
        #[arg(long, default_value_t = 0.0)]
        snapshot_seconds: f64,
    },
    /// From the start of a process (`tenure up` on an empty directory) to its first completed job, and how much memory it
    /// keeps idle and after load
    Start {
        /// Processes, one after the other
        #[arg(long, default_value_t = 11)]
        runs: usize,
        /// Seconds of nothing before the memory is read
        #[arg(long, default_value_t = 5.0)]
        quiet_seconds: f64,
        /// Seconds of load by 50 clients over HTTP
        #[arg(long, default_value_t = 5.0)]
        load_seconds: f64,
    },
    /// All of our own aims, one after the other: what is wanted, what was measured, met or missed, in Markdown. SQLite
    /// always, Postgres too with `--store postgres://…`; a full run with Postgres takes about half an hour
    Aims {
        /// Small numbers: three minutes instead
        #[arg(long)]
        quick: bool,
        /// The script that starts a Postgres of its own, for the slow disk
        #[arg(long, value_name = "FILE", default_value = "scripts/private-postgres")]
        private_postgres: PathBuf,
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
