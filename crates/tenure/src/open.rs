//! A store and its bell from a URL.

use crate::config::Settings;
use std::{path::PathBuf, sync::Arc};
use tenure_bell::{InProcess, PgNotify};
use tenure_edge::{SystemClock, TokioRuntime};
use tenure_kernel::{
    bell::Bell, error::StoreError, judge::Judge, runtime::Runtime as _, store::Store,
};
use tenure_store::{
    postgres::{Intake, PostgresOptions, PostgresStore},
    sqlite::SqliteStore,
};

/// A store that is open, and what goes with it.
pub struct Opened {
    /// The store.
    pub store: Arc<dyn Store>,
    /// Its bell.
    pub bell: Arc<dyn Bell>,
    /// Batches that make sense at once: one for a store with one writer.
    pub flights: usize,
    /// What applications leave in the same database.
    pub intake: Option<Intake>,
}

/// The directory of a `sqlite:` URL.
pub fn sqlite_directory(url: &str) -> Option<PathBuf> {
    url.strip_prefix("sqlite:").map(PathBuf::from)
}

/// Batches on their way to Postgres at once: enough to fill the time in which one waits for its sync.
pub const POSTGRES_FLIGHTS: usize = 4;

/// The bell's channel in the database.
const CHANNEL: &str = "tenure";

/// Opens for writing, creating and migrating as needed.
pub async fn open(settings: &Settings, judge: Judge) -> Result<Opened, StoreError> {
    let url = settings.text("store.url");
    let incarnation = TokioRuntime::current().random();
    if let Some(dir) = sqlite_directory(url) {
        let store = SqliteStore::open(&dir, judge, Arc::new(SystemClock), incarnation)?;
        let (store, bell) = (Arc::new(store), Arc::new(InProcess::new()));
        return Ok(Opened { store, bell, flights: 1, intake: None });
    }
    let options = PostgresOptions::new(incarnation);
    let intake = Some(Intake::new(url, &options)?);
    let store = PostgresStore::connect(url, judge, options).await?;
    let bell = PgNotify::start(url, CHANNEL).map_err(|e| StoreError::Refused(e.to_string()))?;
    let (store, bell) = (Arc::new(store), Arc::new(bell));
    Ok(Opened { store, bell, flights: POSTGRES_FLIGHTS, intake })
}

/// Opens for reading, beside whoever writes.
pub async fn open_read_only(
    settings: &Settings,
    judge: Judge,
) -> Result<Arc<dyn Store>, StoreError> {
    let url = settings.text("store.url");
    let incarnation = TokioRuntime::current().random();
    if let Some(dir) = sqlite_directory(url) {
        return Ok(Arc::new(SqliteStore::open_read_only(
            &dir,
            judge.tables,
            Arc::new(SystemClock),
        )?));
    }
    Ok(Arc::new(
        PostgresStore::connect_read_only(url, judge, PostgresOptions::new(incarnation)).await?,
    ))
}
