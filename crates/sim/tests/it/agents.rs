//! Agents under every fault: every turn ends, and its end is announced under one name. `TENURE_SIM_SEEDS` sets how many
//! worlds, `TENURE_SIM_FIRST` from which on.

use std::collections::BTreeMap;
use tenure_kernel::judge::Protections;
use tenure_sim::{Options, Scenario, run};

fn number(name: &str, or: u64) -> u64 {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(or)
}

#[test]
fn every_turn_ends_and_is_announced_under_one_name() {
    let first = number("TENURE_SIM_FIRST", 0);
    let mut kinds: BTreeMap<&'static str, usize> = BTreeMap::new();
    let (mut fenced, mut reclaimed) = (0, 0);
    for seed in first..first + number("TENURE_SIM_SEEDS", 100) {
        let report = run(seed, &Options::new(Scenario::Agents)).unwrap_or_else(|f| panic!("{f}"));
        report.kinds.iter().for_each(|(kind, n)| *kinds.entry(*kind).or_default() += n);
        fenced += report.fenced;
        reclaimed += report.reclaimed;
    }
    println!("{kinds:?}, {fenced} refused commits, {reclaimed} lost workers");
    assert!(
        kinds["turn"] > 0 && kinds["join"] > 0 && kinds["job"] > 0 && fenced > 0 && reclaimed > 0
    );
}

#[test]
fn what_is_lost_between_agents_and_turns_is_noticed() {
    let off = Protections { outbox: false, ..Protections::default() };
    let options = Options::new(Scenario::Agents).protected(off);
    let broken = (0..150).find_map(|seed| run(seed, &options).err());
    let failure = broken.expect("nobody notices it in 150 worlds");
    println!("seed {}: {}", failure.seed, failure.broken);
}
