//! Claims: the order of the queue, and what never leaves it.

use super::world::{LONG, World};
use std::collections::BTreeSet;
use tenure_kernel::{
    claims::{ClaimAnswer, ClaimRequest, Planner, Probe, next_page},
    commit::{CommitAnswer, Refusal},
    ids::SessionId,
    limits,
    store::{Answer, Op},
    time::Timestamp,
};

fn request(
    world: &World,
    session: SessionId,
    queue: &str,
    probes: Vec<Probe>,
    limit: usize,
) -> ClaimRequest {
    ClaimRequest { id: world.commit_id(), session, lease: LONG, queue: queue.into(), probes, limit }
}

async fn claim(
    world: &World,
    session: SessionId,
    queue: &str,
    planner: &mut Planner,
    n: usize,
) -> ClaimAnswer {
    let probes = planner.plan(n);
    let answer =
        world.store().claim(request(world, session, queue, probes, n)).await.expect("claim");
    planner.settle(&answer.claimed);
    answer
}

/// Higher priority first, whatever waits longer; then the older.
pub async fn claims_go_by_priority_then_by_ready_time(world: &World) {
    let mut made = Vec::new();
    for priority in [0, 5, -3, 5, 0, i16::MAX, i16::MIN] {
        made.push((priority, world.specimen_in("made_queued", "t", "order", priority).await));
    }
    let session = world.session(LONG).await;
    let mut planner = Planner::default();
    planner.refresh(world.store().ready_groups("order", None).await.expect("groups"));
    let answer = claim(world, session, "order", &mut planner, 10).await;
    made.sort_by_key(|(priority, _)| std::cmp::Reverse(*priority));
    let expected: Vec<_> = made.iter().map(|(_, id)| *id).collect();
    let got: Vec<_> = answer.claimed.iter().map(|c| c.head.id).collect();
    assert_eq!(got, expected);
    for claimed in &answer.claimed {
        let head = world.head(claimed.head.id).await;
        assert_eq!(head, claimed.head, "the claim gives the head after it");
        assert_eq!((head.holder, head.epoch, head.ready_at), (Some(session), 1, None));
        assert!(
            claimed.ready_at > Timestamp::ZERO && head.check_at == Some(head.changed_at + LONG)
        );
        world.verify(head.id).await;
    }
    assert!(world.store().ready_groups("order", None).await.expect("groups").is_empty());
    let nothing = claim(world, session, "order", &mut planner, 10).await;
    assert!(nothing.claimed.is_empty());
}

/// Queues with ready work are found by name, each once, however much is in them; the others are not.
pub async fn queues_with_ready_work_are_found_one_after_the_other(world: &World) {
    for (event, queue, count) in [
        ("made_queued", "found/b", 30),
        ("made_queued", "found/a", 2),
        ("made_queued", "found/c", 1),
        ("made_queued", "found/Z", 1),
        ("made_blocked", "found/aa", 1),
        ("made_idle", "found/d", 1),
    ] {
        for tenant in ["t", "u"] {
            for n in 0..count {
                world.specimen_in(event, tenant, queue, n % 3).await;
            }
        }
    }
    let behind = async |after: &str, limit: usize| {
        let mut found = world.store().ready_queues(after, limit).await.expect("queues");
        found.retain(|queue| queue.starts_with("found/"));
        found
    };
    assert_eq!(behind("found/", 4).await, ["found/Z", "found/a", "found/b", "found/c"]);
    assert_eq!(behind("found/", 2).await, ["found/Z", "found/a"], "a page");
    assert_eq!(behind("found/a", 2).await, ["found/b", "found/c"], "and the next one");
    assert!(behind("found/c", 9).await.is_empty());
    assert!(behind("found/", 0).await.is_empty());
}

/// However many priorities somebody uses: a look gives whole priorities, the highest, and goes on below them.
pub async fn groups_come_in_pages_of_whole_priorities(world: &World) {
    let full = i16::try_from(limits::READY_GROUPS_MAX).expect("it fits");
    for priority in 0..full - 1 {
        world.specimen_in("made_queued", "many", "pages", priority).await;
    }
    let page = async |below| world.store().ready_groups("pages", below).await.expect("groups");
    let all = page(None).await;
    assert_eq!((all.len(), next_page(&all)), (limits::READY_GROUPS_MAX - 1, None));
    // The page is full in the middle of a priority, which it gives as a whole.
    for tenant in ["a", "many", "z"] {
        world.specimen_in("made_queued", tenant, "pages", -1).await;
    }
    world.specimen_in("made_queued", "z", "pages", i16::MIN).await;
    world.specimen_in("made_queued", "few", "pages", -2).await;
    let first = page(None).await;
    let highest: Vec<i16> = first.iter().map(|(priority, _)| *priority).collect();
    assert!(highest.is_sorted_by(|a, b| a >= b), "{highest:?}");
    assert_eq!((first.len(), next_page(&first)), (limits::READY_GROUPS_MAX + 2, Some(-1)));
    let mut last: Vec<_> = first[first.len() - 3..].iter().map(|(_, t)| t.as_str()).collect();
    last.sort_unstable();
    assert_eq!(last, ["a", "many", "z"]);
    let second = page(Some(-1)).await;
    assert_eq!(second, [(-2, "few".to_owned()), (i16::MIN, "z".to_owned())]);
    assert_eq!(next_page(&second), None);
    assert!(page(Some(i16::MIN)).await.is_empty());
}

/// A tenant with much work does not keep one with little waiting.
pub async fn tenants_share_a_queue_by_deficit(world: &World) {
    for _ in 0..12 {
        world.specimen_in("made_queued", "big", "fair", 0).await;
    }
    for _ in 0..3 {
        world.specimen_in("made_queued", "small", "fair", 0).await;
    }
    let mut groups = world.store().ready_groups("fair", None).await.expect("groups");
    groups.sort();
    assert_eq!(groups, [(0, "big".to_owned()), (0, "small".to_owned())]);
    let session = world.session(LONG).await;
    let mut planner = Planner::default();
    planner.refresh(groups);
    let mut order = Vec::new();
    for _ in 0..5 {
        let answer = claim(world, session, "fair", &mut planner, 2).await;
        order.extend(answer.claimed.iter().map(|c| c.head.tenant.clone()));
    }
    let small = order[..6].iter().filter(|t| *t == "small").count();
    assert_eq!(small, 3, "{order:?}");
    assert_eq!(order.len(), 10, "leftovers go to whoever has work");
}

/// The limit holds across probes, `found` says what each gave, and a floor is where a scan starts.
pub async fn a_claim_keeps_its_limit_and_says_what_each_probe_found(world: &World) {
    let mut ids = Vec::new();
    for tenant in ["a", "a", "a", "b", "b"] {
        ids.push(world.specimen_in("made_queued", tenant, "limits", 0).await);
    }
    let session = world.session(LONG).await;
    let probe =
        |tenant: &str, floor, want| Probe { priority: 0, tenant: tenant.into(), floor, want };
    let probes = vec![
        probe("nobody", Timestamp::ZERO, 5),
        probe("a", Timestamp::ZERO, 2),
        probe("b", Timestamp::ZERO, 5),
    ];
    let asked = request(world, session, "limits", probes, 3);
    let answer = world.store().claim(asked).await.expect("claim");
    let got: Vec<_> = answer.claimed.iter().map(|c| c.head.id).collect();
    assert_eq!(got, [ids[0], ids[1], ids[3]]);
    assert_eq!(answer.found, [0, 2, 1]);
    let future = world.now().await + LONG;
    let asked = request(world, session, "limits", vec![probe("a", future, 5)], 5);
    let answer = world.store().claim(asked).await.expect("claim");
    assert!(answer.claimed.is_empty(), "a floor above everything finds nothing");
    let other = request(world, session, "elsewhere", vec![probe("a", Timestamp::ZERO, 5)], 5);
    assert!(world.store().claim(other).await.expect("claim").claimed.is_empty());
    let ready = world.head(ids[2]).await.ready_at.expect("it waits");
    let asked = request(world, session, "limits", vec![probe("a", ready, 5)], 5);
    let answer = world.store().claim(asked).await.expect("claim");
    assert_eq!(answer.claimed.len(), 1, "a floor includes its own moment");
}

/// Blocked, resting, final and held entities are claimed by nobody, from no queue and not by name.
pub async fn blocked_resting_final_and_held_are_never_claimed(world: &World) {
    let session = world.session(LONG).await;
    let queue = |event| world.specimen_in(event, "t", "never", 0);
    let blocked = queue("made_blocked").await;
    let idle = queue("made_idle").await;
    let done = queue("made_done").await;
    let held = queue("made_queued").await;
    let other = world.session(LONG).await;
    let holder = world.claim(held, other, LONG).await;
    let named = queue("made_named").await;
    assert!(world.store().ready_groups("never", None).await.expect("groups").is_empty());
    let probe = Probe { priority: 0, tenant: "t".into(), floor: Timestamp::ZERO, want: 10 };
    let answer = world.store().claim(request(world, session, "never", vec![probe], 10)).await;
    assert!(answer.expect("claim").claimed.is_empty());
    for (id, why) in [
        (blocked, None),
        (idle, None),
        (done, Some(CommitAnswer::Final { status: "done" })),
        (held, Some(CommitAnswer::StaleEpoch { current: holder.epoch })),
        (world.id(), None),
    ] {
        let before = world.store().head(id).await.expect("head");
        let op = Op::Claim { id: world.commit_id(), entity: id, session, lease: LONG };
        match (world.one(op).await, why) {
            (Answer::Claim(Err(answer)), Some(expected)) => assert_eq!(answer, expected),
            (Answer::Claim(Err(CommitAnswer::Refused(refusal))), None) => {
                assert!(matches!(refusal, Refusal::Tenure(_) | Refusal::Unknown(_)));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(world.store().head(id).await.expect("head"), before);
    }
    // By name is the only way to what stands in no queue.
    let head = world.claim(named, session, LONG).await;
    assert_eq!((head.status.name(), head.holder), ("running", Some(session)));
    assert_eq!(world.head(named).await, head);
}

/// Many claimers of one queue: each entity goes to one of them, and none is left.
pub async fn claimers_of_one_queue_never_share_an_entity(world: &World) {
    const WORK: usize = 60;
    let mut all = BTreeSet::new();
    for i in 0..WORK {
        let tenant = if i % 3 == 0 { "a" } else { "b" };
        all.insert(world.specimen_in("made_queued", tenant, "shared", 0).await);
    }
    let session = world.session(LONG).await;
    let left = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(WORK));
    let got = world
        .together(8, |_, store, rt| {
            let left = left.clone();
            async move {
                use std::sync::atomic::Ordering::SeqCst;
                let mut mine = Vec::new();
                let start = rt.mono();
                while left.load(SeqCst) > 0 {
                    assert!(rt.mono().saturating_sub(start).as_secs() < 20, "work is left over");
                    let mut planner = Planner::default();
                    planner.refresh(store.ready_groups("shared", None).await.expect("groups"));
                    let asked = ClaimRequest {
                        id: tenure_kernel::ids::CommitId::new(rt.random(), rt.random()),
                        session,
                        lease: LONG,
                        queue: "shared".into(),
                        probes: planner.plan(4),
                        limit: 4,
                    };
                    let answer = store.claim(asked).await.expect("claim");
                    assert!(answer.claimed.len() <= 4);
                    left.fetch_sub(answer.claimed.len(), SeqCst);
                    mine.extend(answer.claimed.into_iter().map(|c| c.head.id));
                }
                mine
            }
        })
        .await;
    let flat: Vec<_> = got.into_iter().flatten().collect();
    assert_eq!(flat.len(), WORK);
    assert_eq!(flat.into_iter().collect::<BTreeSet<_>>(), all);
    for id in all {
        assert_eq!((world.head(id).await.epoch, world.head(id).await.version), (1, 2));
    }
}

/// A claim brings the unread mail with it, from the first unread on.
pub async fn a_claim_brings_unread_mail(world: &World) {
    let id = world.specimen_in("made_queued", "t", "mailed", 0).await;
    for m in ["one", "two", "three"] {
        world.send(world.mail(id, m)).await;
    }
    let mut note = world.note(id).await;
    note.mail = tenure_kernel::commit::MailStance::Read(1);
    let noted = world.commit_ok(note).await;
    assert_eq!(noted.mail_waiting, 2);
    let session = world.session(LONG).await;
    let mut planner = Planner::default();
    planner.refresh(world.store().ready_groups("mailed", None).await.expect("groups"));
    let answer = claim(world, session, "mailed", &mut planner, 1).await;
    let mail: Vec<_> = answer.claimed[0].mail.iter().map(|m| (m.seq, m.id.0.as_str())).collect();
    assert_eq!(mail, [(2, "two"), (3, "three")]);
}

/// The entities of one claim bring a bounded number of mails with them, each the beginning of what it has; the rest is read
/// by whoever holds it.
pub async fn the_mail_of_one_claim_has_a_limit(world: &World) {
    let half = limits::MAIL_PER_CLAIM_MAX / 2;
    for (queue, more) in [("mailed/full", 0), ("mailed/over", 1)] {
        let mut sent = 0;
        for count in [half, limits::MAIL_PER_CLAIM_MAX - half + more] {
            let id = world.specimen_in("made_queued", "t", queue, 0).await;
            let ops: Vec<_> = (0..count).map(|n| world.mail(id, &n.to_string())).collect();
            let ops = ops.into_iter().map(Op::Mail).collect();
            super::world::settle_all(world.store().as_ref(), &world.rt, ops).await;
            sent += count;
        }
        let session = world.session(LONG).await;
        let mut planner = Planner::default();
        planner.refresh(world.store().ready_groups(queue, None).await.expect("groups"));
        let answer = claim(world, session, queue, &mut planner, 2).await;
        assert_eq!(answer.claimed.len(), 2);
        let (mut brought, mut read) = (0, 0);
        for claimed in &answer.claimed {
            let seqs: Vec<_> = claimed.mail.iter().map(|m| m.seq).collect();
            let first: Vec<_> = (1..=seqs.len() as u64).collect();
            assert_eq!(seqs, first);
            let after = seqs.len() as u64;
            let rest = world.store().mail(claimed.head.id, after, limits::MAIL_PER_CLAIM_MAX).await;
            brought += seqs.len();
            read += rest.expect("mail").len();
        }
        assert_eq!((brought, brought + read), (limits::MAIL_PER_CLAIM_MAX, sent));
    }
}
