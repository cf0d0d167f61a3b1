//! A run is a function of its seed.

use tenure_sim::{Options, Scenario, run};

/// Seeds of each scenario, each of them run twice.
const SEEDS: u64 = 25;

fn the_same_seed_gives_the_same_trace(scenario: Scenario) {
    for seed in 0..SEEDS {
        let hash = || run(seed, &Options::new(scenario)).map(|report| report.hash);
        let (a, b) = (hash(), hash());
        let (Ok(a), Ok(b)) = (a, b) else { panic!("{} {seed} failed", scenario.name()) };
        assert_eq!(a, b, "{} {seed}: two runs of one seed differ", scenario.name());
    }
}

/// A test for each scenario, so that they run side by side; and one that none is left out.
macro_rules! same_seed_same_trace {
    ($($name:ident: $scenario:ident,)*) => {
        $(
            #[test]
            fn $name() {
                the_same_seed_gives_the_same_trace(Scenario::$scenario);
            }
        )*

        #[test]
        fn every_scenario_has_a_test_of_its_seeds() {
            assert_eq!(Scenario::ALL, [$(Scenario::$scenario),*]);
        }
    };
}

same_seed_same_trace! {
    same_seed_same_trace_of_slice: Slice,
    same_seed_same_trace_of_fan: Fan,
    same_seed_same_trace_of_cancel: Cancel,
    same_seed_same_trace_of_bowl: Bowl,
    same_seed_same_trace_of_jobs: Jobs,
    same_seed_same_trace_of_calls: Calls,
    same_seed_same_trace_of_limits: Limits,
    same_seed_same_trace_of_schedules: Schedules,
    same_seed_same_trace_of_gates: Gates,
    same_seed_same_trace_of_cascades: Cascades,
    same_seed_same_trace_of_sagas: Sagas,
    same_seed_same_trace_of_batches: Batches,
    same_seed_same_trace_of_intake: Intake,
    same_seed_same_trace_of_bulk: Bulk,
    same_seed_same_trace_of_agents: Agents,
    same_seed_same_trace_of_tasks: Tasks,
}

#[test]
fn another_seed_gives_another_trace() {
    let hash = |seed| run(seed, &Options::new(Scenario::Slice)).map(|report| report.hash).ok();
    assert_ne!(hash(1), hash(2));
}
