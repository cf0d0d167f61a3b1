//! Where a suite runs: a scratch file, or a scratch schema of a Postgres database. Removed afterwards.

use crate::raw::Raw;
use std::{path::Path, sync::Arc};
use tempfile::TempDir;
use tenure_edge::{SystemClock, TokioRuntime};
use tenure_kernel::{error::StoreError, judge::Judge, runtime::Runtime as _, store::Store};
use tenure_store::{
    postgres::{PostgresOptions, PostgresStore},
    sqlite::SqliteStore,
};

/// An engine with our store on it and room beside it.
pub struct Place {
    /// Our store.
    pub store: Arc<dyn Store>,
    kind: Kind,
}

enum Kind {
    Sqlite(TempDir),
    Postgres { url: String, schema: String },
}

fn refused(e: impl std::fmt::Display) -> StoreError {
    StoreError::Refused(e.to_string())
}

impl Place {
    /// `sqlite` (under the current directory), `sqlite:DIRECTORY` (under that one), or a Postgres URL.
    pub async fn open(url: &str, judge: Judge) -> Result<Self, StoreError> {
        let random = TokioRuntime::current().random();
        if let Some(rest) = url.strip_prefix("sqlite") {
            let parent = rest.strip_prefix(':').filter(|d| !d.is_empty()).unwrap_or(".");
            let unusable = |e: std::io::Error| StoreError::Unavailable(format!("{parent}: {e}"));
            let dir = tempfile::Builder::new()
                .prefix("tenure-bench-")
                .tempdir_in(parent)
                .map_err(unusable)?;
            let store = SqliteStore::open(dir.path(), judge, Arc::new(SystemClock), random)?;
            return Ok(Place { store: Arc::new(store), kind: Kind::Sqlite(dir) });
        }
        let schema = format!("tenure_bench_{random:x}");
        let options = PostgresOptions::new(random).schema(schema.clone());
        let store = PostgresStore::connect(url, judge, options).await?;
        Ok(Place { store: Arc::new(store), kind: Kind::Postgres { url: url.to_owned(), schema } })
    }

    /// The engine's name.
    pub fn engine(&self) -> &'static str {
        match self.kind {
            Kind::Sqlite(_) => "sqlite",
            Kind::Postgres { .. } => "postgres",
        }
    }

    /// Batches that make sense at once.
    pub fn flights(&self, postgres: usize) -> usize {
        match self.kind {
            Kind::Sqlite(_) => 1,
            Kind::Postgres { .. } => postgres,
        }
    }

    /// The directory, where there is one.
    pub fn directory(&self) -> Option<&Path> {
        match &self.kind {
            Kind::Sqlite(dir) => Some(dir.path()),
            Kind::Postgres { .. } => None,
        }
    }

    /// A connection of its own, where there are connections.
    pub async fn client(&self) -> Result<Option<tokio_postgres::Client>, StoreError> {
        let Kind::Postgres { url, schema } = &self.kind else { return Ok(None) };
        let (client, connection) =
            tokio_postgres::connect(url, tokio_postgres::NoTls).await.map_err(refused)?;
        // The connection ends with its client; an error shows at the client's next call.
        TokioRuntime::current().spawn(Box::pin(async move { drop(connection.await) }));
        client.batch_execute(&format!("SET search_path TO {schema}")).await.map_err(refused)?;
        Ok(Some(client))
    }

    /// The same engine without us.
    pub async fn raw(&self) -> Result<Raw, StoreError> {
        match (&self.kind, self.client().await?) {
            (Kind::Sqlite(dir), _) => Raw::sqlite(dir.path()),
            (Kind::Postgres { .. }, Some(client)) => Raw::postgres(client).await,
            (Kind::Postgres { .. }, None) => Err(refused("no connection")),
        }
    }

    /// Removes what the suite left.
    pub async fn remove(self) -> Result<(), StoreError> {
        if let (Kind::Postgres { schema, .. }, Some(client)) = (&self.kind, self.client().await?) {
            client
                .batch_execute(&format!("DROP SCHEMA {schema} CASCADE"))
                .await
                .map_err(refused)?;
        }
        Ok(())
    }
}
