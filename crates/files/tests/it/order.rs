//! The rules of order follow the time at which states were, whatever comes first.

use crate::support::{START, World, entry, file};
use proptest::prelude::*;
use tenure_files::{
    arbitrate::order::{Observation, Verdict, order},
    facts::Facts,
    time::{Interval, Tick},
    tree::{Entry, flag},
    wire::{Cause, Finding, Tier},
};

/// States of one name, one after the other: a new ctime each, and sometimes another inode, also one that was there
/// before. The storage's clock may be wrong by any constant.
fn some_past() -> impl Strategy<Value = Vec<(u64, Facts)>> {
    let step = (1u64..100, 0u64..3, 0u64..3);
    (prop::collection::vec(step, 2..7), -1_000_000i64..1_000_000).prop_map(|(steps, skew)| {
        let mut at = 0;
        let state = |(after, inode, size): (u64, u64, u64)| {
            at += after;
            (at, file(inode, size, at as i64 * 10 + skew))
        };
        steps.into_iter().map(state).collect()
    })
}

fn observe(
    past: &[(u64, Facts)],
    which: usize,
    width: (u64, u64),
    scout: u8,
    tier: u8,
) -> (Facts, Observation) {
    // The interval has a moment at which the state was there.
    let at = START.plus(past[which].0);
    let tiers = [Tier::Realtime, Tier::Snapshot, Tier::Audit, Tier::Scan, Tier::Region];
    let observation = Observation {
        during: Interval { begin: at.minus(width.0), end: at.plus(width.1) },
        scout,
        slack: 0,
        cache: 0,
        forced: tier.is_multiple_of(2),
        tier: tiers[usize::from(tier % 5)],
        live: tier.is_multiple_of(5),
    };
    (past[which].1, observation)
}

fn known(facts: Facts, observation: &Observation) -> Entry {
    let flags = match observation.tier {
        Tier::Realtime => flag::LIVE,
        Tier::Snapshot => flag::SNAPSHOT,
        _ => 0,
    };
    Entry { scout: observation.scout, flags, ..entry(facts, observation.during.end) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// A state that is shown without a doubt is not older than the one before it, so there is no cycle.
    #[test]
    fn what_is_taken_is_never_older(
        past in some_past(),
        one in any::<prop::sample::Index>(),
        other in any::<prop::sample::Index>(),
        widths in ((0u64..60, 0u64..60), (0u64..60, 0u64..60)),
        scouts in (1u8..4, 1u8..4),
        tiers in (any::<u8>(), any::<u8>()),
    ) {
        let (one, other) = (one.index(past.len()), other.index(past.len()));
        // Looks of one scout on the live lane come in order.
        prop_assume!(scouts.0 != scouts.1 || tiers.0 % 5 != 0 || tiers.1 % 5 != 0 || one <= other);
        let (first, seen) = observe(&past, one, widths.0, scouts.0, tiers.0);
        let (second, observation) = observe(&past, other, widths.1, scouts.1, tiers.1);
        match order(&known(first, &seen), 0, &second, &observation) {
            Verdict::Take => prop_assert!(one < other, "an older state was taken"),
            Verdict::TakeSetBack => prop_assert!(false, "the clock was never set back"),
            Verdict::Drop => prop_assert!(other < one, "a newer state was dropped"),
            Verdict::Confirm => prop_assert_eq!(one, other),
            Verdict::KeepInDoubt | Verdict::TakeInDoubt => {}
        }
    }

    /// Two observations that do not overlap give the same, whichever comes first; or it is known to be in doubt.
    #[test]
    fn observations_that_do_not_overlap_commute(
        past in some_past(),
        gone in (any::<bool>(), any::<bool>()),
        scouts in (1u8..3, 3u8..5),
    ) {
        let finding = |which: usize, gone: bool| match gone {
            true => Finding::Missing,
            false => Finding::Exists(past[which].1),
        };
        let told = [(scouts.0, 0, finding(0, gone.0)), (scouts.1, 1, finding(1, gone.1))];
        let run = |order: [usize; 2]| {
            let mut world = World::new();
            world.pass(20);
            for i in order {
                let (scout, which, finding) = &told[i];
                let at: Tick = START.plus(past[*which].0);
                world.look_at(*scout, "a", *finding, Cause::Event, Interval { begin: at, end: at });
            }
            (world.shown("a").map(|entry| entry.facts), world.is_doubted("a"))
        };
        let (in_time, late) = (run([0, 1]), run([1, 0]));
        prop_assert!(!in_time.1);
        prop_assert!(late.1 || late.0 == in_time.0, "{in_time:?} {late:?}");
    }
}
