//! Pods: what Kubernetes knows about a task, told once, truthfully, in time.
//!
//! A *task* is one unit of work that runs as a pod, in as many *attempts* as its policy allows, one pod each. Nobody
//! holds a task. It is moved by mail: from collectors, which say what they saw of a pod ([`verdict`]), and from the executor.

pub mod report;
pub mod verdict;
