//! Jobs on a real runtime and the memory or SQLite store.

mod flows;
mod machine;
mod promises;
mod support;
mod views;
