//! The integration tests of the stores: one binary, a module per store.

mod memory;
mod postgres;
mod protections;
mod sqlite;
mod sqlite_files;
