//! NATS and Postgres together.

use crate::{
    notify_for,
    support::{connected, hears, start_for, until},
    url,
};
use tenure_bell::{Bus, BusOptions, InProcess, Standby, conformance};
use tenure_kernel::bell::{Bell as _, Topic};
use tenure_proving::nats::NatsServer;
use tokio_postgres::NoTls;

async fn standby(nats: &str, channel: &str) -> Standby<Bus> {
    let local = InProcess::new();
    let bus = start_for(BusOptions::new(nats, channel), local.clone()).await;
    Standby::new(bus, notify_for(channel, local).await)
}

#[tokio::test]
async fn postgres_rings_while_the_bus_is_away_and_the_bus_when_it_is_back() {
    let mut server = NatsServer::not_yet();
    let (here, there) =
        (standby(&server.url(), "standby").await, standby(&server.url(), "standby").await);
    conformance::across(&here, &there).await;
    let heard = there.others().unwrap().heard;
    assert!(here.others().unwrap().connected && heard > 0);
    server.start_again();
    for standby in [&here, &there] {
        connected(standby.bus()).await;
    }
    conformance::across(&here, &there).await;
    let by_bus = || there.bus().others().unwrap().heard > 0;
    until("rings over the bus", by_bus).await;
    server.kill();
    until("the bus to be away", || !here.bus().others().unwrap().connected).await;
    conformance::across(&here, &there).await;
    conformance::within(&standby(&server.url(), "standby_alone").await).await;
}

/// Applications ring from SQL, whatever the servers use among themselves.
#[tokio::test]
async fn what_sql_rings_is_heard_beside_the_bus() {
    let server = NatsServer::start();
    let here = standby(&server.url(), "standby_sql").await;
    connected(here.bus()).await;
    let mut ear = here.listen(Topic::Intake);
    let (client, connection) = tokio_postgres::connect(&url(), NoTls).await.unwrap();
    #[expect(clippy::disallowed_methods, reason = "a test's own connection")]
    tokio::spawn(connection);
    client.batch_execute("SELECT pg_notify('standby_sql', 'intake')").await.unwrap();
    hears(&mut *ear, "a ring from SQL").await;
}
