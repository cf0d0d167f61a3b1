//! A real server on a real socket, and workers that know it only by its address.

mod auth;
mod bad_input;
mod bad_wire;
mod isolation;
mod support;
mod worker;
