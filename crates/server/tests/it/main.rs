//! A real server on a real socket, and workers that know it only by its address.

mod agents;
mod auth;
mod bad_input;
mod bad_wire;
mod calls;
mod isolation;
mod jobs;
mod jobs_bad_input;
mod jobs_stream;
mod jobs_support;
mod metrics;
mod openapi;
mod plans;
mod shared;
mod support;
mod tasks;
mod tenants;
mod terms;
mod tray;
mod turns;
mod worker;
