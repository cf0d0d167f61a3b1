//! Quotas on a store that two servers share.

use crate::support::{Order, config, machines, node_like, store};
use std::sync::Arc;
use tenure_bell::InProcess;
use tenure_engine::{birth::create, config::EngineConfig, lanes::Discard, node::Node};
use tenure_kernel::{
    error::{Code, StoreError},
    limits,
    quota::Quotas,
    store::{HeadFilter, Store},
    stream::Body,
};
use tenure_proving::patience;

async fn server(store: &Arc<dyn Store>, quotas: &str) -> Node {
    let quotas = Quotas::read(quotas).unwrap();
    let config = EngineConfig { quotas, quota_kinds: &["clock"], ..config() };
    node_like(config, store.clone(), Arc::new(InProcess::new()), Arc::new(Discard)).await
}

async fn wind(node: &Node, tenant: &str, order: &Order) -> Result<(), StoreError> {
    create(&node.pipeline, &machines(), "clock", tenant, &Body::json(order)).await.map(drop)
}

async fn clocks(store: &dyn Store) -> usize {
    let filter = HeadFilter { kind: Some("clock".into()), ..HeadFilter::default() };
    store.heads(filter, 1_000).await.unwrap().len()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_keep_a_quota_together() {
    let store = store();
    let servers = [server(&store, "acme=open:20").await, server(&store, "acme=open:20").await];
    let (mut admitted, mut refused) = (0, 0);
    for n in 0..60 {
        match wind(&servers[n % 2], "acme", &Order::default()).await {
            Ok(()) => admitted += 1,
            Err(e) => {
                assert_eq!(e.code(), Code::QuotaOpen, "{e}");
                refused += 1;
            }
        }
    }
    // One server more than one, and so at most one more than the quota.
    assert!((20..=21).contains(&admitted), "{admitted}");
    assert_eq!((admitted + refused, clocks(&*store).await), (60, admitted));
    wind(&servers[0], "globex", &Order::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_message_would_create_beyond_the_quota_goes_back_to_its_sender() {
    let store = store();
    let node = server(&store, "acme=open:1").await;
    let parent = Order { child_key: Some("child".into()), ..Order::default() };
    wind(&node, "acme", &parent).await.unwrap();
    let returned = async || {
        let filter = HeadFilter { kind: Some("clock".into()), ..HeadFilter::default() };
        let heads = store.heads(filter, 10).await.unwrap();
        heads.len() == 1 && String::from_utf8_lossy(&heads[0].state).contains("its quota is 1")
    };
    patience::until("the parent to learn that there is no room for its child", returned).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_leaves_no_value_behind() {
    let store = store();
    let node = server(&store, "acme=bytes:50KiB").await;
    let big = "x".repeat(2 * limits::BODY_INLINE_BYTES_MAX);
    let order = Order { guard: big.clone(), ..Order::default() };
    let refused = wind(&node, "acme", &order).await.unwrap_err();
    assert_eq!(refused.code(), Code::QuotaBytes, "{refused}");
    assert_eq!(clocks(&*store).await, 0);
    let retired = store.retire(store.now().await.unwrap(), 100).await.unwrap();
    assert_eq!(retired.blobs, 0, "nothing was stored for it");
}
