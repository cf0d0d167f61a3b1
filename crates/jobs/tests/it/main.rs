//! Jobs on a real runtime and the memory or SQLite store.

mod batches;
mod blocks;
mod bulk;
mod calls;
mod cancelled_sagas;
mod corrections;
mod exports;
mod flows;
mod forks;
mod gate;
mod lent;
mod limits;
mod limits_of_each;
mod machine;
mod plans;
mod promises;
mod sagas;
mod schedules;
mod support;
mod views;
