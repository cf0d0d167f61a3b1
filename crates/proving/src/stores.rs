//! One test on every store, and waiting for what it is about.
//!
//! A test is a plain `async fn` over a [`Scene`] (a server, its workers, whatever a crate's tests need). It is listed
//! once, in [`on_every_store!`](crate::on_every_store), and runs three times, each time on an empty store of its own.
//!
//! **Waiting.** All that tests wait for is a change that somebody writes to the store. So a [`Place`] tells of every
//! write, through whichever handle it went, and [`Place::find`] looks once before and once after each. Road not taken: a
//! pause between two looks, which is too long where nothing else runs and too short where everything does. Road not
//! taken: the feed, which in Postgres stands still while a transaction of another test is open.

use crate::{
    layer::{Layer, Layered},
    patience::PATIENCE,
};
use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use tempfile::TempDir;
use tenure_edge::SystemClock;
use tenure_kernel::{
    claims::{ClaimAnswer, ClaimRequest},
    error::StoreError,
    housekeeping::{Pulse, PulseRequest},
    judge::Judge,
    machine::Machines,
    runtime::BoxFuture,
    store::{Answer, Op, Store},
};
use tenure_store::{
    memory::MemoryStore,
    postgres::{PostgresOptions, PostgresStore},
    sqlite::SqliteStore,
};
use tokio::sync::watch;

/// Which store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// In memory.
    Memory,
    /// In a directory.
    Sqlite,
    /// In a schema of the private Postgres.
    Postgres,
}

/// What tests of a crate happen in.
pub trait Scene: Sized {
    /// The machines that its store knows.
    fn machines() -> Machines;
    /// Everything in place, on an empty store.
    fn on(place: Place) -> impl Future<Output = Self>;
}

/// An empty store of a test's own.
pub struct Place {
    store: Arc<dyn Store>,
    at: At,
    written: watch::Sender<()>,
}

enum At {
    Here(Arc<dyn Store>),
    Sqlite(Arc<dyn Store>, #[expect(dead_code, reason = "it is removed with this value")] TempDir),
    Postgres { url: String, options: PostgresOptions, judge: Judge },
}

impl At {
    fn new(engine: Engine, judge: Judge) -> Self {
        match engine {
            Engine::Memory => At::Here(Arc::new(MemoryStore::new(judge, Arc::new(SystemClock), 1))),
            Engine::Sqlite => {
                let dir = tempfile::tempdir().expect("a directory");
                let store = SqliteStore::open(dir.path(), judge, Arc::new(SystemClock), 1);
                At::Sqlite(Arc::new(store.expect("it opens")), dir)
            }
            Engine::Postgres => {
                static NUMBER: AtomicU64 = AtomicU64::new(1);
                let url = std::env::var("TENURE_TEST_POSTGRES").expect(
                    "TENURE_TEST_POSTGRES is set: run the tests with ./check with -- cargo test --workspace",
                );
                let number = NUMBER.fetch_add(1, Ordering::Relaxed);
                let schema = format!("place_{}_{number}", std::process::id());
                At::Postgres { url, options: PostgresOptions::new(7).schema(schema), judge }
            }
        }
    }

    async fn open(&self) -> Arc<dyn Store> {
        match self {
            At::Here(store) | At::Sqlite(store, _) => store.clone(),
            At::Postgres { url, options, judge } => {
                let store = PostgresStore::connect(url, judge.clone(), options.clone()).await;
                Arc::new(store.expect("it connects"))
            }
        }
    }
}

impl Place {
    /// An empty one.
    pub async fn new(engine: Engine, machines: &Machines) -> Self {
        let at = At::new(engine, Judge::new(machines.tables()));
        let written = watch::Sender::new(());
        Place { store: watched(at.open().await, &written), at, written }
    }

    /// A store that the test has, as it is. What is written to it otherwise than through this place is not told of.
    pub fn over(store: Arc<dyn Store>) -> Self {
        let written = watch::Sender::new(());
        Place { store: watched(store.clone(), &written), at: At::Here(store), written }
    }

    /// The store, as the test sees it.
    pub fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    /// The store as another process has it: where several can, with connections of its own.
    pub async fn another(&self) -> Arc<dyn Store> {
        watched(self.at.open().await, &self.written)
    }

    /// Looks now and after every write until there is something to be seen; `None` if there is nothing within [`PATIENCE`].
    pub async fn find<T>(&self, mut look: impl AsyncFnMut() -> Option<T>) -> Option<T> {
        let mut written = self.written.subscribe();
        let found = async {
            loop {
                if let Some(found) = look().await {
                    return Some(found);
                }
                // What was written during the look counts as well.
                written.changed().await.ok()?;
            }
        };
        tokio::time::timeout(PATIENCE, found).await.ok().flatten()
    }

    /// Waits until a condition holds.
    ///
    /// # Panics
    /// If it does not within [`PATIENCE`].
    pub async fn until(&self, what: &str, mut holds: impl AsyncFnMut() -> bool) {
        let found = self.find(async || holds().await.then_some(())).await;
        assert!(found.is_some(), "it never came to this: {what}");
    }
}

fn watched(under: Arc<dyn Store>, written: &watch::Sender<()>) -> Arc<dyn Store> {
    Arc::new(Layered(Watched { under, written: written.clone() }))
}

/// Tells of every write.
struct Watched {
    under: Arc<dyn Store>,
    written: watch::Sender<()>,
}

/// Tells when it goes: also when a write is abandoned, since nobody knows then whether it was done.
struct Tells<'a>(&'a watch::Sender<()>);

impl Drop for Tells<'_> {
    fn drop(&mut self) {
        self.0.send_replace(());
    }
}

impl Layer for Watched {
    fn under(&self) -> &dyn Store {
        &*self.under
    }

    fn apply_shared(&self, ops: Arc<Vec<Op>>) -> BoxFuture<'_, Result<Vec<Answer>, StoreError>> {
        Box::pin(async move {
            let _tells = Tells(&self.written);
            self.under.apply_shared(ops).await
        })
    }

    fn claim(&self, request: ClaimRequest) -> BoxFuture<'_, Result<ClaimAnswer, StoreError>> {
        Box::pin(async move {
            let answer = self.under.claim(request).await;
            // Somebody may be waiting by claiming: one that finds nothing has to be silent.
            if !answer.as_ref().is_ok_and(|a| a.claimed.is_empty()) {
                self.written.send_replace(());
            }
            answer
        })
    }

    /// Every server leaves one with each round of its loop, so that what comes with time alone is looked for, too.
    fn pulse(&self, request: PulseRequest) -> BoxFuture<'_, Result<Pulse, StoreError>> {
        Box::pin(async move {
            let _tells = Tells(&self.written);
            self.under.pulse(request).await
        })
    }
}

/// Runs a case on an empty store, in a runtime of its own.
pub fn run<S: Scene, F: Future<Output = ()>>(engine: Engine, case: impl FnOnce(S) -> F) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let place = Place::new(engine, &S::machines()).await;
        case(S::on(place).await).await;
    });
}

/// Expands to three tests of each case, in the modules `memory`, `sqlite` and `postgres`. A case is an `async fn` over a
/// [`Scene`](crate::stores::Scene); one that is not listed is dead code, which the lints refuse.
#[macro_export]
macro_rules! on_every_store {
    ($($case:ident),+ $(,)?) => {
        $crate::on_every_store!(@ memory Memory $($case)+);
        $crate::on_every_store!(@ sqlite Sqlite $($case)+);
        $crate::on_every_store!(@ postgres Postgres $($case)+);
    };
    (@ $module:ident $engine:ident $($case:ident)+) => {
        mod $module {
            $(
                #[test]
                fn $case() {
                    $crate::stores::run($crate::stores::Engine::$engine, super::$case);
                }
            )+
        }
    };
}
