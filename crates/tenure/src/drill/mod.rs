//! What drills, the demo, the benchmark and the tests run: an outside world that counts, tools of every
//! class that act on it, a flow that does as its input says, and points at which a worker process ends
//! itself.

pub mod flows;
pub mod order;
pub mod outside;
pub mod points;
