//! Tests of pods: what they say ([`verdict`]), and the machines in a small world whose time jumps to whatever is due next.

mod budget;
mod collect;
mod defects;
mod desk;
mod tasks;
mod verdict;
mod walks;
mod world;
