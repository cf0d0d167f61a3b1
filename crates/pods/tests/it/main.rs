//! Tests of pods: the machines in a small world whose time jumps to whatever is due next.

mod budget;
mod defects;
mod tasks;
mod walks;
mod world;
