//! The seams at which a laboratory alters a process of Tenure: kill points, protections that are switched off, layers
//! over stores.
//!
//! A [`Program`](crate::Program) is built with one value of [`Alterations`]. The product's `main` builds every program
//! with [`Unaltered`], and no code of the product reads a switch from the environment, a file or a request. Only the
//! laboratory's own binary (`tenure-lab`) passes another value.

use std::sync::Arc;
use tenure_jobs::drive::{JobOptions, Probe};
use tenure_kernel::{judge::Judge, machine::Machines, runtime::Rt, store::Store};
use tenure_pods::{collect::Sink, execute::cluster::Cluster};
use tenure_steps::effects::Effects;

/// What a process exchanges before it starts. Every default leaves the part as it is.
pub trait Alterations: Send + Sync {
    /// Called at named points of workers, executors and collectors.
    fn probe(&self) -> Option<Probe> {
        None
    }

    /// May refuse a store before a server opens it.
    fn check_store(&self, _url: &str) -> Result<(), String> {
        Ok(())
    }

    /// The machines whose entities a store may hold.
    fn machines(&self, machines: Machines) -> Machines {
        machines
    }

    /// The judge of a server's store, and of a store that is verified.
    fn judge(&self, judge: Judge) -> Judge {
        judge
    }

    /// The store of a server.
    fn store(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        store
    }

    /// The options of a worker.
    fn jobs(&self, options: JobOptions) -> JobOptions {
        options
    }

    /// The effect store of a worker that has one of its own.
    fn effects(&self, effects: Arc<dyn Effects>) -> Arc<dyn Effects> {
        effects
    }

    /// A receiver of a collector's reports.
    fn sink(&self, sink: Arc<dyn Sink>, _rt: &Rt) -> Arc<dyn Sink> {
        sink
    }

    /// The cluster of an executor.
    fn cluster(&self, cluster: Arc<dyn Cluster>) -> Arc<dyn Cluster> {
        cluster
    }
}

/// Every protection on, no kill points: the product.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unaltered;

impl Alterations for Unaltered {}
