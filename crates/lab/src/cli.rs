//! The command line of the laboratory: its own commands, and every command of the product.

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use tenure::cli::Common;

/// Breaks, simulates and measures Tenure; also runs every command of `tenure`, so that a drill can start its own
/// servers and workers
#[derive(Debug, Parser)]
#[command(name = "tenure-lab", version, about, propagate_version = true)]
pub struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub common: Common,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Breaks things for real, and prints the failure matrix with what was seen in every cell: workers are killed
    /// and stopped, lines cut, stores taken away, on processes of its own or on your deployment
    #[command(
        after_help = "--store says where: sqlite (without it), postgres (a private one is started and killed), or a Postgres URL (a \
        scratch database is made there and dropped).\nWhat is set with --set, in the file or in the environment applies to the processes of \
        the drill; without it leases are short, so that takeovers take seconds.\nThe exit code is not 0 when a cell is broken or a case could not be run."
    )]
    Drill(Drill),
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
    /// A command of the product.
    #[command(flatten)]
    Product(tenure::cli::Command),
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
    /// Also writes the matrix as a Markdown table
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Drills this deployment with workers that the drill brings along. Needs --api-key: a key that is bound to a
    /// scratch tenant, with the scopes read, write and worker. Flows and tools of the drill are registered for that
    /// tenant alone. Cases that kill servers or stores, and those of pods, are left out
    #[arg(long, value_name = "URL")]
    pub against: Option<String>,
    /// The key for --against
    #[arg(long, env = "TENURE_API_KEY", value_name = "KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Switches off one protection, in the processes of this drill, to show that it then turns red
    #[arg(long = "break", value_name = "NAME")]
    pub broken: Option<crate::drill::breaks::Break>,
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
        /// Also parks this many jobs on a signal, and prints what they cost and how soon they go on
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
        /// Seconds for which a foreign snapshot is held open afterwards, under the same load (Postgres only)
        #[arg(long, default_value_t = 0.0)]
        snapshot_seconds: f64,
    },
    /// How fast retention removes finished jobs, and whether that depends on how many there are, or on how many values are in use
    Retention {
        /// Finished jobs in the store, one case each, growing; their rows are written by SQL
        #[arg(long, value_delimiter = ',', default_value = "10000,100000,1000000")]
        jobs: Vec<usize>,
        /// Values beside them that are old and in use
        #[arg(long, default_value_t = 400_000)]
        values: usize,
        /// Measured calls per case, of 256 jobs each
        #[arg(long, default_value_t = 20)]
        calls: usize,
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
