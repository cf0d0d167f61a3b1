//! What pods say: fixtures for every row, and what holds for all objects.

pub mod cases;
mod fixtures;
mod properties;
mod reasons;
mod settings;
