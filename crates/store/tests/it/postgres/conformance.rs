//! The Postgres store against the conformance suite: four servers on one schema, with few connections
//! each, so that all cases can run beside each other.

use super::db::TestDb;
use std::sync::Arc;
use tenure_edge::TokioRuntime;
use tenure_kernel::store::Store;
use tenure_proving::conformance::{World, judge};
use tenure_store::postgres::PostgresStore;

async fn fresh() -> World {
    let db = TestDb::new().await;
    let mut stores: Vec<Arc<dyn Store>> = Vec::new();
    for _ in 0..4 {
        let mut options = db.options();
        (options.writers, options.readers) = (2, 1);
        let store = PostgresStore::connect(&db.url, judge(), options).await.expect("connects");
        stores.push(Arc::new(store));
    }
    World::new(stores, Arc::new(TokioRuntime::current()), db).await
}

tenure_proving::conformance!(fresh);
