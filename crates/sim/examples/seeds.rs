//! Runs seeds: `cargo run -p tenure-sim --example seeds -- SCENARIO FROM COUNT`.

use tenure_sim::{Options, Scenario, run};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |i: usize, or: u64| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(or);
    let (from, count) = (number(2, 0), number(3, 1));
    let scenarios: Vec<Scenario> = match args.get(1).and_then(|n| Scenario::parse(n)) {
        Some(one) => vec![one],
        None => Scenario::ALL.to_vec(),
    };
    let mut failed = 0;
    for scenario in scenarios {
        let (mut steps, mut lasted, mut fenced) = (0, 0, 0);
        for seed in from..from + count {
            match run(seed, &Options::new(scenario)) {
                Ok(report) => {
                    steps += report.steps;
                    lasted += report.lasted.as_secs();
                    fenced += report.fenced;
                    if count == 1 {
                        println!("{}\n{report:#?}", report.trace.join("\n"));
                    }
                }
                Err(failure) => {
                    failed += 1;
                    if count == 1 || failed <= 3 {
                        println!("{failure}");
                    } else {
                        println!("{} {seed}: {}", scenario.name(), failure.broken);
                    }
                }
            }
        }
        let name = scenario.name();
        println!(
            "{name}: {count} seeds, {failed} failed so far, {steps} polls, {lasted} virtual seconds, {fenced} fenced"
        );
    }
}
