//! What people read of tasks. Nothing here writes.
//!
//! | room | what it answers |
//! |---|---|
//! | [`task`](mod@task) | where a task stands, from its head |
//! | [`detail`](mod@detail) | the same with every attempt, its pod, its verdict, and everything that happened |
//! | [`why`](mod@why) | one sentence: what it waits for, and what moves it |
//! | [`logs`](mod@logs) | what the container of an attempt wrote |
//! | [`stream`] | events, read and decoded |

pub mod detail;
pub mod logs;
pub mod stream;
pub mod task;
pub mod why;

pub use detail::{AttemptView, TaskDetail, TimelineEntry, detail};
pub use logs::{LogPage, logs};
pub use stream::{EventView, events};
pub use task::{NextRule, PodLook, Proof, TaskView, task_view};
pub use why::why;
