//! Jobs: nothing is done twice, nothing is lost, and what is not known is said. `TENURE_SIM_SEEDS` sets how many
//! worlds.

use std::collections::BTreeMap;
use tenure_sim::{Fault, Options, Scenario, run};

#[test]
#[ignore = "a hunt, started by hand"]
fn hunt() {
    let get =
        |name: &str, or: u64| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(or);
    let (from, runs, show) = (get("FROM", 0), get("RUNS", 300), get("SHOW", 0));
    let mut found: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    let (mut faults, mut steps, mut virt): (BTreeMap<Fault, u64>, u64, f64) = Default::default();
    for seed in from..from + runs {
        match run(seed, &Options::new(Scenario::Jobs)) {
            Ok(r) => {
                r.faults.iter().for_each(|(f, n)| *faults.entry(*f).or_default() += n);
                steps += r.steps;
                virt += r.lasted.as_secs_f64();
            }
            Err(f) => {
                if show > 0 {
                    println!("{f}");
                }
                let words: Vec<_> = f.broken.split_whitespace().skip(1).take(6).collect();
                println!("{seed}: {}", f.broken.chars().take(300).collect::<String>());
                found.entry(words.join(" ")).or_default().push(seed);
            }
        }
    }
    println!("{steps} polls, {virt:.0} s, {faults:?}");
    for (what, seeds) in &found {
        println!("{:4} {what}: {:?}", seeds.len(), &seeds[..seeds.len().min(8)]);
    }
    assert!(found.is_empty());
}
