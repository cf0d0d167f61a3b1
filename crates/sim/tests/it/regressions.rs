//! Every seed that ever failed.

use tenure_sim::{Options, Scenario, run};

#[test]
fn seeds_that_failed_once_pass() {
    for line in include_str!("../../regressions.txt").lines() {
        let line = line.split('#').next().unwrap_or("").trim();
        if line.is_empty() {
            continue;
        }
        let (scenario, seed) = line.split_once(' ').unwrap_or((line, ""));
        let scenario = Scenario::parse(scenario).unwrap_or_else(|| panic!("what is {line:?}?"));
        let seed = seed.parse().unwrap_or_else(|_| panic!("what is {line:?}?"));
        run(seed, &Options::new(scenario)).unwrap_or_else(|failure| panic!("{failure}"));
    }
}
