//! Agents: the machines against their rules, the traps of the systems before, and random walks.

mod defects;
mod desk;
mod edges;
mod hands;
mod rules;
mod walks;
mod world;
