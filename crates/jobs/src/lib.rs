//! Durable jobs.
