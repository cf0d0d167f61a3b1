//! A protection that nothing misses is not one.

use tenure_sim::{protections, run};

/// Within so many seeds its absence shows.
const SEEDS: u64 = 600;
/// So many runs pass with it on: what shows is the absence.
const CONTROLS: u64 = 15;

fn is_missed(name: &str) {
    let missed = protections::all().into_iter().find(|m| m.name == name);
    let missed = missed.unwrap_or_else(|| panic!("no protection {name}"));
    for seed in 0..CONTROLS {
        if let Err(failure) = run(seed, &missed.on) {
            panic!("with {name}: {failure}");
        }
    }
    let broken = (0..SEEDS).find_map(|seed| run(seed, &missed.off).err());
    let failure = broken.unwrap_or_else(|| panic!("nobody misses {name} in {SEEDS} seeds"));
    println!("without {name}: seed {}: {}", failure.seed, failure.broken);
}

macro_rules! missed {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            is_missed(stringify!($name));
        })*

        #[test]
        fn all_are_listed() {
            let names: Vec<_> = protections::all().iter().map(|m| m.name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
}

missed! { fencing versions mail blocked finality outbox repetition pulse vacancy pulse_of_rules }
