//! One protection switched off, in the processes of a drill. A drill that can not fail proves nothing.
//!
//! The switch is a variable of the environment, and it works on a drill's own scratch store only: a server
//! with a protection off refuses every other one.

use super::{
    hasty::{AnyPod, Hasty, Unadopting},
    volatile::Volatile,
};
use clap::ValueEnum;
use serde_json::Value;
use std::{io, sync::Arc};
use tenure_jobs::drive::JobOptions;
use tenure_kernel::{judge::Judge, runtime::Rt, store::Store};
use tenure_pods::{collect::Sink, execute::cluster::Cluster};
use tenure_proving::layer::Layered;
use tenure_steps::{
    effects::{EffectName, Effects},
    history::Forget,
};

/// The variable.
pub const VARIABLE: &str = "TENURE_DRILL_BREAK";

/// What the name of a drill's directory, or of its database, begins with.
pub const SCRATCH: [&str; 2] = ["tenure-drill-", "tenure_drill_"];

/// A protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Break {
    /// A commit is accepted under any epoch and version
    Fencing,
    /// A call that was started and has no end is forgotten, as if nothing were written before a call
    Barrier,
    /// A worker that goes on from a history forgets its calls
    Ledger,
    /// What lies in a separate effect store is not read (only seen where effects have a directory)
    Effects,
    /// A job that waits can be claimed
    Blocked,
    /// What is sent to a job is answered before it is durable
    Mail,
    /// What a commit sends to others waits in the server's memory
    Outbox,
    /// What a collector tells counts as told before it is (pods)
    Marks,
    /// An executor that takes over a pod does not look for it, and makes another one (pods)
    Adoption,
    /// A report counts for the attempt that its task is at, whatever pod it is about (pods)
    Attempts,
}

impl Break {
    /// All of them.
    pub const ALL: [Break; 10] = [
        Break::Fencing,
        Break::Barrier,
        Break::Ledger,
        Break::Effects,
        Break::Blocked,
        Break::Mail,
        Break::Outbox,
        Break::Marks,
        Break::Adoption,
        Break::Attempts,
    ];

    /// What to type.
    pub fn name(self) -> &'static str {
        match self {
            Break::Fencing => "fencing",
            Break::Barrier => "barrier",
            Break::Ledger => "ledger",
            Break::Effects => "effects",
            Break::Blocked => "blocked",
            Break::Mail => "mail",
            Break::Outbox => "outbox",
            Break::Marks => "marks",
            Break::Adoption => "adoption",
            Break::Attempts => "attempts",
        }
    }

    /// What the environment asks for. Only a process of a drill may be asked: its workers run flows that nobody else
    /// has, and its servers insist on a scratch store.
    pub fn from_environment() -> Result<Option<Self>, String> {
        let Ok(wish) = std::env::var(VARIABLE) else { return Ok(None) };
        let of_a_drill = [crate::lab_process::CHILD, crate::lab_process::FLOW];
        if of_a_drill.iter().any(|name| std::env::var_os(name).is_none()) {
            return Err(format!(
                "{VARIABLE}={wish} switches off a protection, and this is no process of a drill: use `tenure drill --break {wish}`"
            ));
        }
        let found = Break::ALL.into_iter().find(|b| b.name() == wish);
        let names = Break::ALL.map(Break::name).join(", ");
        let found = found.ok_or(format!("{VARIABLE}: {wish:?} is none of {names}"))?;
        tracing::warn!(
            protection = wish,
            "a protection is SWITCHED OFF for a drill: nothing is safe here"
        );
        Ok(Some(found))
    }

    /// Refuses a store that is not a drill's own.
    pub fn insist_on_scratch(self, store_url: &str) -> Result<(), String> {
        // A directory of the drill, or the database: neither a user nor a host of that name will do.
        let is_scratch = |part: &str| SCRATCH.iter().any(|s| part.starts_with(s));
        let scratch = match store_url.strip_prefix("sqlite:") {
            Some(dir) => dir.split('/').any(is_scratch),
            None => reqwest::Url::parse(store_url)
                .is_ok_and(|url| is_scratch(url.path().trim_start_matches('/'))),
        };
        match scratch {
            true => Ok(()),
            false => Err(format!(
                "{VARIABLE}={} switches off a protection, and {store_url} is no scratch store of a drill",
                self.name()
            )),
        }
    }

    /// In a server.
    pub fn weaken_judge(self, judge: &mut Judge) {
        let p = &mut judge.protections;
        match self {
            Break::Fencing => (p.fencing, p.versions) = (false, false),
            Break::Blocked => p.blocked = false,
            Break::Mail => p.mail = false,
            Break::Outbox => p.outbox = false,
            Break::Barrier
            | Break::Ledger
            | Break::Effects
            | Break::Marks
            | Break::Adoption
            | Break::Attempts => {}
        }
    }

    /// In a server.
    pub fn weaken_store(self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        match self {
            Break::Mail | Break::Outbox => Arc::new(Layered(Volatile::over(store, self))),
            Break::Attempts => Arc::new(Layered(AnyPod(store))),
            _ => store,
        }
    }

    /// In a worker.
    pub fn weaken_jobs(self, options: &mut JobOptions) {
        match self {
            Break::Barrier => options.forget = Forget::OpenCalls,
            Break::Ledger => options.forget = Forget::Calls,
            _ => {}
        }
    }

    /// In a worker with an effect store of its own.
    pub fn weaken_effects(self, effects: Arc<dyn Effects>) -> Arc<dyn Effects> {
        match self {
            Break::Effects => Arc::new(NeverRead(effects)),
            _ => effects,
        }
    }
}

impl Break {
    /// In a collector.
    pub fn weaken_sink(self, sink: Arc<dyn Sink>, rt: Rt) -> Arc<dyn Sink> {
        match self {
            Break::Marks => Arc::new(Hasty::over(sink, rt)),
            _ => sink,
        }
    }

    /// In an executor.
    pub fn weaken_cluster(self, cluster: Arc<dyn Cluster>) -> Arc<dyn Cluster> {
        match self {
            Break::Adoption => Arc::new(Unadopting::over(cluster)),
            _ => cluster,
        }
    }
}

/// Effects that nobody reads again.
struct NeverRead(Arc<dyn Effects>);

impl Effects for NeverRead {
    fn put(&self, name: EffectName<'_>, result: &Value) -> io::Result<()> {
        self.0.put(name, result)
    }

    fn get(&self, _name: EffectName<'_>) -> io::Result<Option<Value>> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_scratch_store_may_be_weakened() {
        let wrong = Break::Fencing.insist_on_scratch("postgres://me@host/orders").unwrap_err();
        assert!(wrong.contains("no scratch store"), "{wrong}");
        assert!(Break::Fencing.insist_on_scratch("sqlite:.tenure").is_err());
        let of_that_name = "postgres://tenure_drill_bot@tenure_drill_host/orders";
        assert!(Break::Fencing.insist_on_scratch(of_that_name).is_err());
        assert!(Break::Fencing.insist_on_scratch("sqlite:/tmp/tenure-drill-1/store").is_ok());
        assert!(Break::Fencing.insist_on_scratch("postgres://me@host/tenure_drill_7").is_ok());
    }
}
