//! What people read of agents and turns. Nothing here writes.
//!
//! | room | what it answers |
//! |---|---|
//! | [`agent`] | where an agent stands, who is in line, who was last |
//! | [`turn`] | where a turn stands: waits, the next rules, how it ended |
//! | [`detail`](mod@detail) | the same with its steps, tool calls and deliverable, from the stream |
//! | [`inbox`] | the items of the inbox, derived from turns, their mail and their streams |
//! | [`why`](mod@why) | one sentence: what a turn waits for, who has to act, which rule is next |
//! | [`watchdog`] | the dry run: what the rules would do now and next |
//! | [`stream`] | events, read and decoded |

pub mod agent;
pub mod detail;
pub mod inbox;
pub mod stream;
pub mod turn;
pub mod watchdog;
pub mod why;

pub use agent::{AgentView, agent_view};
pub use detail::{CallView, StepView, TimelineEntry, TurnDetail, detail};
pub use inbox::{Item, ItemStatus};
pub use stream::{EventView, events};
pub use turn::{HolderView, NextRule, TurnView, WaitView, turn_view};
pub use watchdog::{Forecast, forecast};
pub use why::why;
