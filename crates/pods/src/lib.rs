//! Pods: what Kubernetes knows about a task, told once, truthfully, in time.
//!
//! A *task* is one unit of work that runs as a pod, in as many *attempts* as its policy allows, one pod each. Nobody
//! holds a task. It is moved by mail: from collectors, which say what they saw of a pod ([`verdict`]), and from the executor.

pub mod access;
pub mod admission;
mod answer;
pub mod budget;
pub mod collect;
pub mod desk;
pub mod envelope;
pub mod execute;
pub mod follow;
pub mod namespaces;
mod numbers;
pub mod pod;
pub mod report;
pub mod rules;
pub mod step;
pub mod task;
pub mod verdict;
pub mod view;

/// The types of Kubernetes' objects, in the version that this crate is built with.
pub use k8s_openapi;

use tenure_kernel::machine::Machines;

/// Adds the machines of this crate.
pub fn machines(machines: Machines) -> Machines {
    machines.with::<task::Task>().with::<pod::Pod>().with::<budget::Budget>()
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
