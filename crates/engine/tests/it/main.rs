//! Tests of the shells where the simulation's scenarios do not reach: guards and
//! timers of held entities, wires, creations that clash, and a store that panics.

mod birth;
mod fairness;
mod lanes;
mod meter;
mod pipeline;
mod serve;
mod slots;
mod support;
