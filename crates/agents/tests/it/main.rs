//! Agents: the machines, and the rules.
