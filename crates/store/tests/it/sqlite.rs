//! The embedded store against the conformance suite.

use std::sync::Arc;
use tenure_edge::{SystemClock, TokioRuntime};
use tenure_kernel::store::Store;
use tenure_proving::conformance::{World, judge};
use tenure_store::sqlite::SqliteStore;

/// One process has the directory open for writing, so all handles are the same one.
async fn fresh() -> World {
    let rt = Arc::new(TokioRuntime::current());
    let dir = tempfile::tempdir().expect("a directory");
    let store = SqliteStore::open(dir.path(), judge(), Arc::new(SystemClock), 7).expect("opens");
    let store: Arc<dyn Store> = Arc::new(store);
    World::new(vec![store; 4], rt, dir).await
}

tenure_proving::conformance!(fresh);
