//! The memory store against the conformance suite.

use std::sync::Arc;
use tenure_edge::{SystemClock, TokioRuntime};
use tenure_kernel::store::Store;
use tenure_proving::conformance::{World, judge};
use tenure_store::memory::{Calm, MemoryStore};

async fn fresh() -> World {
    let rt = Arc::new(TokioRuntime::current());
    let store = MemoryStore::new(judge(), Arc::new(SystemClock), 7);
    let handles = (0..4).map(|_| Arc::new(store.handle(Arc::new(Calm))) as Arc<dyn Store>);
    World::new(handles.collect(), rt, ()).await
}

tenure_proving::conformance!(fresh);
