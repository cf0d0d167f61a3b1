//! Tests of the executor: the real client against the API double, in a small world with a real engine.

mod cleaning;
mod crashes;
mod forcing;
mod health;
mod logs;
mod making;
mod steps;
mod stopping;
mod strays;
mod support;
