//! What only the Postgres store can get wrong: migrations, locks, horizons and lost connections. What
//! every store must do is in the conformance suite.

mod conformance;
mod contention;
mod db;
mod failover;
mod faults;
mod feed;
mod intake;
mod known;
mod schema;
mod tls;
