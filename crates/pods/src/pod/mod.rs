//! One pod of one attempt, as an executor's work: made, followed, stopped, cleaned up.
//!
//! The task itself is held by nobody and never waits for an executor. What is to be done in a cluster is an entity of
//! its own, claimed from the queue of that cluster under lease and epoch like any other work. So a pod is made once
//! although executors die: the intent is on record before the API server is asked, the name follows from the attempt, and
//! whoever takes over finds the pod by it. It may outlive its task: a pod that is over is deleted when the task says so, and
//! one that is not is stopped, after the reason was written on it.

pub mod decide;
pub mod model;
pub mod table;

pub use model::{
    Begun, ForceAsk, NewPod, POD_FORCE, POD_STOP, POD_WORD, Pod, PodEvent, PodState, PodStop,
    PodWord, Says, StopWhy, name_of_attempt, pod_name, queue_of,
};
