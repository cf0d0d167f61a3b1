//! A task: one unit of work that runs as a pod, in as many attempts as its policy allows.
//!
//! Nobody holds a task. Collectors and the executor tell it by mail what they saw ([`crate::report`]), and it alone decides
//! what follows: whether there is another attempt, when, and how it ends. So a task moves on when executor and SDK are
//! gone, and no two loops answer one failure.
//!
//! | room | what is in it |
//! |---|---|
//! | `model` | what is kept, and what can happen |
//! | `policy` | how often and when it is tried again |
//! | `table` | where an event leads |
//! | `decide` | what follows from a report, a cancel, a timer |

pub mod decide;
pub mod model;
pub mod policy;
pub mod table;

pub use model::{Asker, Cleanup, NewTask, Task, TaskEvent, TaskState};
pub use policy::RetryPolicy;
