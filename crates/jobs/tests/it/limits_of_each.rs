//! A limit for each tenant by itself: made with the first call, as exact as any other, and nobody lifts it.

use crate::{
    limits::{
        at, flows, given_out, limited, never_ahead, seven_more, spec, sqlite, start, started_for,
    },
    support::{Outside, World},
};
use serde_json::json;
use std::time::Duration;
use tenure_jobs::{
    drive::JobOptions,
    shared::limit::{
        Limit, Spec, State,
        book::EACH_MAX,
        desk::{LimitError, Limits, id_of},
        each::{self, follow, for_tenant, is_a_follow},
        model::{EACH, EVERYBODY, Event},
    },
    submit::Submission,
};
use tenure_kernel::{ids::EntityId, machine::Machine as _};
use tenure_steps::tool::Tools;

fn of_each(count: u32, burst: u32, block: u32) -> Spec {
    let spec = spec(count, 1_000, burst, block);
    Spec { tenant: EACH.into(), by_operator: true, ..spec }
}

async fn submit(world: &World, tenant: &str, calls: u32) -> EntityId {
    let (tenant, flow, input) = (tenant.to_owned(), "calls".into(), json!(calls));
    let submission = Submission { tenant, flow, input, ..Submission::default() };
    world.jobs.submit(submission).await.unwrap().id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_workers_keep_the_limit_of_each_tenant_exactly_on_sqlite() {
    let dir = tempfile::tempdir().unwrap();
    let store = sqlite(dir.path());
    let outside = Outside::default();
    let tools = || Tools::default().with(outside.tool("raise"));
    let world = World::on(store.clone(), flows(), tools(), JobOptions::default()).await;
    let spec = of_each(40, 5, 20);
    limited(&world, spec.clone()).await;
    let _crews = seven_more(&store, tools).await;
    let tenants = ["acme", "globex", "initech"];
    let mut jobs = Vec::new();
    for _ in 0..20 {
        for tenant in tenants {
            jobs.push(submit(&world, tenant, 4).await);
        }
    }
    for job in jobs {
        world.until(job, "completed").await;
    }
    assert_eq!(outside.total(), 240);
    for tenant in tenants {
        let moments = started_for(&store, Some(tenant)).await;
        assert_eq!(moments.len(), 80);
        never_ahead(&spec, &moments);
        let taken = given_out(&store, each::id_of(tenant, "raise")).await;
        assert!(taken >= 80, "{tenant}: {taken}");
    }
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operators_own_limit_of_a_tenant_holds_instead_and_a_tenants_own_beside_it() {
    let outside = Outside::default();
    let world = start(&outside, JobOptions::default()).await;
    let limits = Limits(world.node.pipeline.clone());
    limited(&world, of_each(1_000, 1_000, 1_000)).await;
    let quick = |tenant: &str, by_operator| Spec {
        tenant: tenant.into(),
        by_operator,
        ..spec(2_000, 1_000, 2_000, 1_000)
    };
    limited(&world, quick("vip", true)).await;
    limited(&world, quick("sly", false)).await;
    for tenant in ["vip", "sly", "plain"] {
        let job = submit(&world, tenant, 3).await;
        world.until(job, "completed").await;
    }
    let made = async |tenant: &str| {
        world.store.head(each::id_of(tenant, "raise")).await.unwrap().is_some()
    };
    assert!(!made("vip").await, "the operator's own holds instead");
    assert!(made("sly").await, "nobody lifts it by a limit of its own");
    assert!(made("plain").await);
    assert!(given_out(&world.store, id_of("sly", "raise")).await >= 3, "and that one holds, too");
    assert!(given_out(&world.store, id_of("vip", "raise")).await >= 3);
    // What holds a tenant back is listed for it; what everybody has, for those who run the server.
    let whose = async |tenant: Option<&str>| {
        let listed = limits.list(tenant).await.unwrap();
        let of = |v: &tenure_jobs::shared::limit::desk::LimitView| {
            (v.spec.tenant.clone(), v.spec.from_each.is_some())
        };
        listed.iter().map(of).collect::<Vec<_>>()
    };
    let entry = |tenant: &str, each: bool| (tenant.to_owned(), each);
    assert_eq!(whose(Some("vip")).await, [entry("vip", false)]);
    assert_eq!(whose(Some("sly")).await, [entry("sly", true), entry("sly", false)]);
    assert_eq!(whose(Some("nobody yet")).await, [entry("nobody yet", true)]);
    assert_eq!(whose(None).await, [entry(EACH, true), entry("sly", false), entry("vip", false)]);
    assert!(limits.show("plain", "raise").await.unwrap().taken >= 3);
    assert_eq!(limits.show("nobody yet", "raise").await.unwrap().taken, 0);
    // Without the exception the rule holds again.
    limits.remove("vip", "raise", None, true).await.unwrap();
    world.crew.local().shop.limits.refresh(&world.node.pipeline).await.unwrap();
    let job = submit(&world, "vip", 1).await;
    world.until(job, "completed").await;
    assert!(made("vip").await);
    // And without the rule nothing does.
    limits.remove(EACH, "raise", None, true).await.unwrap();
    assert!(matches!(limits.show("plain", "raise").await, Err(LimitError::Absent { .. })));
    let again = limits.remove(EACH, "raise", None, true).await.unwrap_err();
    assert!(matches!(again, LimitError::Absent { .. }), "{again}");
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_counts_for_a_tenant_from_its_next_call_on() {
    let outside = Outside::default();
    let world = start(&outside, JobOptions::default()).await;
    let limits = Limits(world.node.pipeline.clone());
    let has = async || limits.show("acme", "raise").await.unwrap();
    // One a day: what is promised ahead must not hold anybody back once the slip is mended.
    let daily = Spec { per_ms: 86_400_000, ..of_each(1, 1, 1) };
    limited(&world, daily.clone()).await;
    let first = submit(&world, "acme", 1).await;
    world.until(first, "completed").await;
    assert_eq!(has().await.spec.per_ms, 86_400_000);
    assert!(limits.set(of_each(1_000, 10, 1_000), None).await.unwrap());
    assert!(!limits.set(of_each(1_000, 10, 1_000), None).await.unwrap(), "it is so already");
    world.crew.local().shop.limits.refresh(&world.node.pipeline).await.unwrap();
    let second = submit(&world, "acme", 5).await;
    world.until(second, "completed").await;
    let now = has().await;
    assert!(now.spec.count == 1_000 && now.taken >= 6, "{now:?}");
    // Removed and set again it is newer than what was made from the first.
    limits.remove(EACH, "raise", None, true).await.unwrap();
    limited(&world, of_each(500, 10, 500)).await;
    let third = submit(&world, "acme", 1).await;
    world.until(third, "completed").await;
    assert_eq!(has().await.spec.count, 500);
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn there_is_room_for_so_many_of_them_and_the_others_keep_theirs() {
    let outside = Outside::default();
    let world = start(&outside, JobOptions::default()).await;
    let limits = Limits(world.node.pipeline.clone());
    let name = |n: usize| format!("a-tool-{n}");
    for n in 0..EACH_MAX {
        limits.set(Spec { tool: name(n), ..of_each(10, 1, 10) }, None).await.unwrap();
    }
    let full = Spec { tool: name(EACH_MAX), ..of_each(10, 1, 10) };
    let full = limits.set(full, None).await.unwrap_err();
    assert!(matches!(full, LimitError::Bad { field: "tool", .. }), "{full}");
    // One that is there can still be changed, and there is room for others in the same book.
    limits.set(Spec { tool: name(0), ..of_each(20, 1, 10) }, None).await.unwrap();
    limits.set(Spec { tenant: EVERYBODY.into(), ..of_each(10, 1, 10) }, None).await.unwrap();
    assert_eq!(limits.list(None).await.unwrap().len(), EACH_MAX + 1);
}

#[test]
fn a_worker_that_knows_an_older_rule_changes_nothing_and_nobody_says_another() {
    let rule = |n: u64, count: u32| Spec { from_each: Some(n), ..of_each(count, 5, 10) };
    let old = for_tenant(&rule(1, 10), "acme");
    let new = for_tenant(&rule(2, 100), "acme");
    assert_eq!(old.id(), new.id());
    let born = follow(None, &old, at(0)).unwrap();
    assert!(is_a_follow(None, &born, &old, at(0)));
    assert!(!is_a_follow(None, &born, &new, at(0)), "it is not what is said now");
    assert!(!is_a_follow(None, &born, &for_tenant(&rule(1, 10), "eve"), at(0)));
    let mut state = State::default();
    Limit::apply(&mut state, &born);
    assert_eq!(follow(Some(&state), &old, at(0)), None);
    let moved = follow(Some(&state), &new, at(0)).unwrap();
    assert!(is_a_follow(Some(&state), &moved, &new, at(0)));
    Limit::apply(&mut state, &moved);
    assert_eq!(follow(Some(&state), &old, at(0)), None, "the older rule does not come back");
    assert!(!is_a_follow(Some(&state), &moved, &new, at(0)), "once is enough");
    // Far ahead under a slow rule: the new one forgets all but a burst, and nobody forgets more.
    let hour = i64::try_from(Duration::from_secs(3_600).as_nanos()).unwrap();
    let soon = at(0).as_micros() * 1_000 + hour;
    let ahead = State { next_ns: soon, spec: Some(old), taken: 9, ..State::default() };
    let Some(Event::LimitSet { spec, next_ns: Some(next), .. }) = follow(Some(&ahead), &new, at(0))
    else {
        panic!("it is behind")
    };
    let said = |next| Event::LimitSet { spec: spec.clone(), by: None, next_ns: Some(next) };
    assert!(is_a_follow(Some(&ahead), &said(next), &new, at(0)));
    let minute = hour / 60;
    assert!(!is_a_follow(Some(&ahead), &said(next - minute - 1), &new, at(0)), "a burst for free");
    assert!(!is_a_follow(Some(&ahead), &said(soon + 1), &new, at(0)), "others wait longer");
}
