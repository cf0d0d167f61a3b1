//! One module per command. Each takes the settings and its options, and returns what to say.

pub mod agent;
pub mod bench;
pub mod call;
pub mod collector;
pub mod config;
pub mod demo;
pub mod doctor;
pub mod drill;
pub mod evidence;
pub mod executor;
pub mod gate;
pub mod job;
pub mod key;
pub mod limit;
pub mod plan;
pub mod queue;
pub mod rules;
pub mod schedule;
pub mod serve;
pub mod sim;
pub mod soak;
pub mod task;
pub mod torture;
pub mod verify;

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
    /// The operating system.
    #[error("{0}")]
    System(String),
}

impl Failure {
    /// The page about it, if there is one.
    pub fn code(&self) -> Option<tenure_kernel::error::Code> {
        match self {
            Failure::Store(e) => Some(e.code()),
            Failure::Config(_) => Some(tenure_kernel::error::Code::BadConfig),
            Failure::Found(_) | Failure::System(_) => None,
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(e: std::io::Error) -> Self {
        Failure::System(e.to_string())
    }
}

/// Every machine that this binary knows.
pub fn machines() -> Machines {
    tenure_pods::machines(tenure_proving::machines::machines())
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
        .with::<tenure_server::keys::Key>()
}

/// Everything wrong with a store, in words.
pub async fn problems(store: &dyn tenure_kernel::store::Store) -> Vec<String> {
    tenure_proving::checkers::check_everything(store, &machines(), &judge().tables).await
}

/// The judge for them.
pub fn judge() -> Judge {
    let mut tables = machines().tables();
    tables.insert(&tenure_bench::commit::STEPPER);
    tables.insert(&tenure_bench::claim::TICKET);
    Judge::new(tables)
}
