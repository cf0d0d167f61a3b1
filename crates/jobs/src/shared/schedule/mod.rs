//! Schedules: an entity that creates jobs at the times of a calendar. It rests, has one timer (`fire`), and
//! everything that happens when that fires is one commit: the event, the next timer, and the messages that create
//! the jobs, under ids that follow from the schedule and the nominal time. So a fire is neither lost nor doubled,
//! whoever serves it and however often it is decided.
//!
//! | room | what it holds |
//! |---|---|
//! | [`model`] | what is set, what is kept, what can happen |
//! | [`calendar`] | nominal times, with the rule for daylight saving |
//! | [`decide`](mod@decide) | which of them become jobs |
//! | [`desk`] | how outsiders change one |
//! | [`view`] | what people read of it |

pub mod calendar;
pub mod decide;
pub mod desk;
pub mod model;
pub mod table;
pub mod view;

pub use model::{Event, Missed, Overlap, Schedule, Spec, State};
