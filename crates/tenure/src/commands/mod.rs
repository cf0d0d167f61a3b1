//! One module per command. Each takes the settings and its options, and returns what to say.

pub mod agent;
pub mod audit;
pub mod backup;
pub mod batch;
pub mod block;
pub mod call;
pub mod catalogue;
pub mod collector;
pub mod config;
pub mod demo;
pub mod doctor;
pub mod evidence;
pub mod executor;
pub mod explain;
pub mod files;
pub mod gate;
pub(crate) mod ids;
pub mod job;
pub mod key;
pub mod limit;
pub mod manual;
pub mod plan;
pub mod queue;
pub mod rules;
pub mod schedule;
pub mod serve;
pub(crate) mod table;
pub mod task;
pub mod verify;
pub mod workers;

use tenure_kernel::{error::StoreError, judge::Judge, machine::Machines};

/// Why a command did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The store.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// The settings.
    #[error("{0}")]
    Config(#[from] crate::config::BadConfig),
    /// Something was found to be wrong: it has been printed, the exit code says so too.
    #[error("{0}")]
    Found(String),
    /// What was waited for has ended, and not well.
    #[error("{0}")]
    EndedBadly(String),
    /// What was waited for is still open, and the time is up.
    #[error("{0}")]
    StillOpen(String),
    /// The operating system.
    #[error("{0}")]
    System(String),
}

/// The exit codes, for the help and the manual. Clap itself ends with 2.
pub const EXIT_CODES: &str = "\
Exit codes:
  0  it was done
  1  it was refused, could not be done, or something was found to be wrong
  2  the command line could not be read
  3  what was waited for (--wait) has ended, and not well: failed, cancelled
  4  what was waited for is still open, and the time of --wait is up";

impl Failure {
    /// The page about it, if there is one.
    pub fn code(&self) -> Option<tenure_kernel::error::Code> {
        match self {
            Failure::Store(e) => Some(e.code()),
            Failure::Config(_) => Some(tenure_kernel::error::Code::BadConfig),
            Failure::Found(_)
            | Failure::EndedBadly(_)
            | Failure::StillOpen(_)
            | Failure::System(_) => None,
        }
    }

    /// What the process ends with: see [`EXIT_CODES`].
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::EndedBadly(_) => 3,
            Failure::StillOpen(_) => 4,
            Failure::Store(_) | Failure::Config(_) | Failure::Found(_) | Failure::System(_) => 1,
        }
    }

    /// What somebody who waited is told about a thing that did not end well, or has not ended.
    pub fn of_wait(is_final: bool, what: String) -> Self {
        match is_final {
            true => Failure::EndedBadly(what),
            false => Failure::StillOpen(what),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(e: std::io::Error) -> Self {
        Failure::System(e.to_string())
    }
}

/// Every machine of the product.
pub fn machines() -> Machines {
    machines_with(Machines::kernel())
}

/// These machines, and those of the product.
pub fn machines_with(others: Machines) -> Machines {
    tenure_pods::machines(tenure_server::machines(others))
        .with::<tenure_jobs::Job>()
        .with::<tenure_jobs::call::Call>()
        .with::<tenure_jobs::gate::Gate>()
        .with::<tenure_jobs::gate::GatePage>()
        .with::<tenure_jobs::catalogue::Catalogue>()
        .with::<tenure_jobs::shared::batch::Batch>()
        .with::<tenure_jobs::shared::limit::Limit>()
        .with::<tenure_jobs::shared::limit::LimitBook>()
        .with::<tenure_jobs::shared::schedule::Schedule>()
        .with::<tenure_agents::agent::Agent>()
        .with::<tenure_agents::turn::Turn>()
        .with::<tenure_agents::join::Join>()
}

/// Everything wrong with a store, in words.
pub async fn problems(store: &dyn tenure_kernel::store::Store) -> Vec<String> {
    tenure_engine::checkers::check_everything(store, &machines(), &judge().tables).await
}

/// The judge for them.
pub fn judge() -> Judge {
    Judge::new(machines().tables())
}
