//! The store, or the server on it, goes away in the middle of everything and comes back.

use super::{case::Case, cluster::Engine, ground::Ground, proxy::Weather};
use tenure::commands::Failure;

/// What goes away.
#[derive(Clone, Copy, Debug)]
pub enum Outage {
    /// The server, and with it the embedded store.
    Server,
    /// Every process of PostgreSQL.
    Postgres,
    /// The way from the server to PostgreSQL.
    Line,
}

impl Outage {
    /// What of this store can be taken away while its server lives.
    pub fn of_store(engine: Option<&Engine>) -> &'static [Outage] {
        match engine {
            Some(Engine::PrivatePostgres) => &[Outage::Postgres, Outage::Line],
            // Somebody's own PostgreSQL is not the drill's to kill.
            Some(Engine::Postgres(_)) => &[Outage::Line],
            // The embedded store is the server; a deployment's is not ours to break.
            Some(Engine::Sqlite) | None => &[],
        }
    }

    /// A case in whose world this can happen.
    pub fn can_happen_in(self, case: Case) -> Case {
        match self {
            Outage::Server | Outage::Postgres => case.alone(),
            Outage::Line => case.proxied(),
        }
    }

    /// What is said of it in the name of a case.
    pub fn name(self) -> &'static str {
        match self {
            Outage::Server => "the server is killed",
            Outage::Postgres => "PostgreSQL is killed",
            Outage::Line => "the line to PostgreSQL is cut",
        }
    }

    /// It goes away.
    pub async fn begin(self, ground: &mut Ground) -> Result<(), Failure> {
        let Some(cluster) = ground.cluster.as_mut() else { return Ok(()) };
        match self {
            Outage::Server => cluster.kill_server().await?,
            Outage::Postgres => {
                if let Some(postgres) = cluster.postgres() {
                    postgres.kill().await?;
                }
            }
            Outage::Line => {
                if let Some(line) = cluster.between() {
                    line.turn(Weather::Cut);
                }
            }
        }
        Ok(())
    }

    /// It comes back.
    pub async fn end(self, ground: &mut Ground) -> Result<(), Failure> {
        let Some(cluster) = ground.cluster.as_mut() else { return Ok(()) };
        match self {
            Outage::Server => cluster.start_server().await?,
            Outage::Postgres => {
                if let Some(postgres) = cluster.postgres() {
                    postgres.start_again().await?;
                }
            }
            Outage::Line => {
                if let Some(line) = cluster.between() {
                    line.turn(Weather::Clear);
                }
            }
        }
        Ok(())
    }
}
