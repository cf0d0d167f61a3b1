//! A run is a function of its seed.

use tenure_sim::{Options, Scenario, run};

#[test]
fn the_same_seed_gives_the_same_trace() {
    for scenario in Scenario::ALL {
        for seed in 0..25 {
            let hash = || run(seed, &Options::new(scenario)).map(|report| report.hash);
            let (a, b) = (hash(), hash());
            let (Ok(a), Ok(b)) = (a, b) else { panic!("{} {seed} failed", scenario.name()) };
            assert_eq!(a, b, "{} {seed}: two runs of one seed differ", scenario.name());
        }
    }
}

#[test]
fn another_seed_gives_another_trace() {
    let hash = |seed| run(seed, &Options::new(Scenario::Slice)).map(|report| report.hash).ok();
    assert_ne!(hash(1), hash(2));
}
