//! Shows which protections are missed: `cargo run -p tenure-sim --example unprotected -- COUNT`.

use tenure_kernel::judge::Protections;
use tenure_sim::{Options, Scenario, run};

fn main() {
    let count = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(50u64);
    let on = Protections::default();
    let off = [
        ("fencing", Protections { fencing: false, ..on }),
        ("versions", Protections { versions: false, ..on }),
        ("mail", Protections { mail: false, ..on }),
        ("blocked", Protections { blocked: false, ..on }),
        ("finality", Protections { finality: false, ..on }),
        ("outbox", Protections { outbox: false, ..on }),
        ("repetition", Protections { repetition: false, ..on }),
        ("pulse", Protections { pulse: false, ..on }),
    ];
    for (name, protections) in off {
        for scenario in Scenario::ALL {
            let mut first = None;
            let mut failed = 0;
            for seed in 0..count {
                if let Err(failure) = run(seed, &Options::new(scenario).protected(protections)) {
                    failed += 1;
                    first.get_or_insert((seed, failure.broken));
                }
            }
            println!("{name:>10} {:>7}: {failed}/{count} {first:?}", scenario.name());
        }
    }
}
