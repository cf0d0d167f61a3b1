//! Tests of the shells where the simulation's scenarios do not reach: guards and
//! timers of held entities, wires, creations that clash, and a store that panics.

mod birth;
mod bus;
mod carry;
mod fairness;
mod lanes;
mod meter;
mod outside;
mod pipeline;
mod quota;
mod serve;
mod slots;
mod support;
