//! The promises of bells, kept by each of them; and those of the bus.

mod bus;
mod bus_faults;
mod jetstream;
mod redis_bell;
mod redis_events;
mod redis_faults;
mod standby;
mod support;

use std::time::Duration;
use tenure_bell::{InProcess, PgNotify, conformance};
use tenure_kernel::bell::{Bell as _, Topic};
use tokio_postgres::NoTls;

fn url() -> String {
    std::env::var("TENURE_TEST_POSTGRES").expect(
        "TENURE_TEST_POSTGRES is not set: run the tests with ./check with -- cargo test -p tenure-bell",
    )
}

async fn notify(channel: &str) -> PgNotify {
    notify_for(channel, InProcess::new()).await
}

async fn notify_for(channel: &str, local: InProcess) -> PgNotify {
    let bell = PgNotify::start_for(&url(), channel, local).unwrap();
    bell.connected().await;
    bell
}

#[tokio::test]
async fn in_process_keeps_the_promises() {
    let bell = InProcess::new();
    conformance::within(&bell).await;
    conformance::across(&bell.clone(), &bell).await;
}

#[tokio::test]
async fn notify_keeps_the_promises() {
    let (here, there) = (notify("promises").await, notify("promises").await);
    conformance::across(&here, &there).await;
    conformance::across(&there, &here).await;
    // Alone: what the other one rang could still be on its way.
    conformance::within(&notify("promises_alone").await).await;
}

#[tokio::test]
async fn without_a_database_notify_still_rings_here() {
    let bell = PgNotify::start("postgres://nobody@127.0.0.1:1/none", "silent").unwrap();
    conformance::within(&bell).await;
}

#[tokio::test]
async fn a_channel_is_a_plain_name() {
    for bad in ["", "a-b", "A", "a; DROP", &"a".repeat(64)] {
        assert!(PgNotify::start(&url(), bad).is_err(), "{bad}");
    }
}

#[tokio::test]
async fn a_lost_connection_comes_back_and_rings_once() {
    let (here, there) = (notify("lost").await, notify("lost").await);
    let mut ear = there.listen(Topic::Outbox);
    let (client, connection) = tokio_postgres::connect(&url(), NoTls).await.unwrap();
    #[expect(clippy::disallowed_methods, reason = "a test's own connection")]
    tokio::spawn(connection);
    let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE application_name = 'tenure bell lost'";
    client.batch_execute(kill).await.unwrap();
    let back = tokio::time::timeout(Duration::from_secs(30), ear.heard()).await;
    assert!(back.is_ok(), "something may have been missed, so look");
    here.connected().await;
    there.connected().await;
    conformance::across(&here, &there).await;
}
