//! Claims are fair: nobody with ready work waits for more than its share.

use proptest::prelude::*;
use std::collections::BTreeMap;
use tenure_kernel::{
    claims::{Claimed, Planner},
    head::Head,
    ids::EntityId,
    stream::Hash,
    time::Timestamp,
    timers::Timers,
};

fn head(tenant: &str, priority: i16, ready_at: Timestamp) -> Claimed {
    let status = super::subject::SUBJECT.status("running").unwrap();
    let head = Head {
        id: EntityId::fixed(1, 1),
        status,
        tenant: tenant.to_owned(),
        queue: "q".into(),
        priority,
        version: 1,
        epoch: 1,
        holder: None,
        chain: Hash::ZERO,
        created_at: ready_at,
        changed_at: ready_at,
        mail_count: 0,
        mail_read: 0,
        due: None,
        must_end_by: None,
        check_at: None,
        faults: 0,
        ready_at: None,
        attention: None,
        sealed: 0,
        timers: Timers::default(),
        state: Vec::new(),
    };
    Claimed { head, mail: Vec::new(), ready_at }
}

/// A queue as a store keeps it: per priority and tenant, how many wait.
type Queue = BTreeMap<(i16, String), u32>;

/// What a store does with the probes.
fn run(planner: &mut Planner, queue: &mut Queue, n: usize, now: i64) -> Vec<(i16, String)> {
    let mut claimed = Vec::new();
    for probe in planner.plan(n) {
        let key = (probe.priority, probe.tenant.clone());
        let Some(waiting) = queue.get_mut(&key) else { continue };
        let take = (probe.want.min(n - claimed.len()) as u32).min(*waiting);
        *waiting -= take;
        claimed.extend((0..take).map(|_| key.clone()));
    }
    queue.retain(|_, waiting| *waiting > 0);
    let heads: Vec<_> =
        claimed.iter().map(|(p, t)| head(t, *p, Timestamp::from_micros(now))).collect();
    planner.settle(&heads);
    claimed
}

proptest! {
    /// While two tenants of one priority both have work, they are given the same, up to what goes out
    /// between two scans of the queue; and nothing that is known waits while somebody asks.
    #[test]
    fn no_tenant_with_ready_work_waits_for_more_than_its_share(
        arrivals in prop::collection::vec((0usize..6, 1u32..60), 1..40),
        n in 1usize..9,
        refresh_every in 1usize..5,
    ) {
        let (mut planner, mut queue) = (Planner::default(), Queue::new());
        // Of two tenants that both had work since `since`, how much each was given.
        let mut served: BTreeMap<String, u32> = BTreeMap::new();
        let mut since: BTreeMap<String, usize> = BTreeMap::new();
        let mut planned = std::collections::BTreeSet::new();
        // Between two scans of the queue the planner can not know who has run out of work.
        let slack = (n * (refresh_every + 2) + 1) as u32;
        let mut log: Vec<BTreeMap<String, u32>> = Vec::new();
        for (round, (tenant, count)) in arrivals.into_iter().enumerate() {
            *queue.entry((0, format!("t{tenant}"))).or_default() += count;
            if round % refresh_every == 0 {
                planner.refresh(queue.keys().cloned().collect());
                planned = queue.keys().map(|(_, t)| t.clone()).collect();
            }
            for (_, t) in queue.keys().filter(|(_, t)| planned.contains(t)) {
                since.entry(t.clone()).or_insert(round);
            }
            let known: u32 = queue.iter().filter(|((_, t), _)| since.contains_key(t)).map(|(_, w)| *w).sum();
            let got = run(&mut planner, &mut queue, n, round as i64);
            prop_assert_eq!(got.len(), n.min(known as usize), "nothing known is left while somebody asks");
            for (_, t) in &got {
                *served.entry(t.clone()).or_default() += 1;
            }
            log.push(served.clone());
            // Whoever has no work any more starts anew when it comes back.
            since.retain(|t, _| queue.contains_key(&(0, t.clone())));
            for (a, from_a) in &since {
                for (b, from_b) in &since {
                    let from = *from_a.max(from_b);
                    let got = |t: &String| {
                        let before = if from == 0 { 0 } else { log[from - 1].get(t).copied().unwrap_or(0) };
                        served.get(t).copied().unwrap_or(0) - before
                    };
                    let (a_got, b_got) = (got(a), got(b));
                    prop_assert!(
                        a_got.abs_diff(b_got) <= slack,
                        "{} got {}, {} got {} since round {}", a, a_got, b, b_got, from
                    );
                }
            }
        }
    }

    /// However much work lower priorities have, a higher one is served first.
    #[test]
    fn priority_comes_before_fairness(work in prop::collection::vec((-2i16..3, 0usize..4, 1u32..9), 1..20), n in 1usize..12) {
        let (mut planner, mut queue) = (Planner::default(), Queue::new());
        for (priority, tenant, count) in work {
            *queue.entry((priority, format!("t{tenant}"))).or_default() += count;
        }
        planner.refresh(queue.keys().cloned().collect());
        while !queue.is_empty() {
            let before = queue.clone();
            let got = run(&mut planner, &mut queue, n, 0);
            let lowest = got.iter().map(|(p, _)| *p).min().expect("work was there");
            let skipped = queue.iter().any(|((p, _), waiting)| *p > lowest && *waiting > 0);
            prop_assert!(!skipped, "{before:?} gave {got:?}");
        }
    }
}

#[test]
fn a_newcomer_does_not_have_the_queue_to_itself() {
    let (mut planner, mut queue) = (Planner::default(), Queue::new());
    queue.insert((0, "old".into()), 1_000);
    planner.refresh(queue.keys().cloned().collect());
    for _ in 0..50 {
        run(&mut planner, &mut queue, 4, 0);
    }
    queue.insert((0, "new".into()), 1_000);
    planner.refresh(queue.keys().cloned().collect());
    let got = run(&mut planner, &mut queue, 4, 0);
    let new = got.iter().filter(|(_, t)| t == "new").count();
    assert_eq!(new, 2, "half each, at once: {got:?}");
}
