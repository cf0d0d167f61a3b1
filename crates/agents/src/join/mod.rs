//! A join: several turns of which one result is made, for the turn that asked.
//!
//! It is an entity of its own, so that a crash between the last child and the result loses neither. It is owed
//! (`must_end_by` is the time of the wait that asked for it, less a tick), nobody holds it, and children tell it by mail.

pub mod decide;
pub mod model;
pub mod table;

pub use model::{Join, JoinEvent, JoinState, NewJoin, Task};
