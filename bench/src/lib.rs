//! Our numbers. Every suite prints one line per figure with `--json`, a table without, and measures
//! the raw limit of the same engine in the same run: a number without its ceiling says little.

pub mod agents;
pub mod aims;
pub mod calls;
pub mod claim;
pub mod commit;
pub mod drain;
pub mod growth;
pub mod jobs;
pub mod place;
pub mod pods;
pub mod raw;
pub mod report;
pub mod retention;
pub mod serial;
pub mod slow_disk;
pub mod start;
