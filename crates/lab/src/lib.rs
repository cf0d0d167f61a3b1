//! The laboratory: what breaks, simulates and measures Tenure. It is a binary of its own, `tenure-lab`, and no part of a
//! deployment. `tenure drill`, `soak`, `sim` and `bench` start it where it is installed beside `tenure`.
//!
//! `tenure-lab` has every command of the product, too: a drill starts itself as server and worker, with kill points and
//! with protections switched off ([`lab_process`] reads them from the environment of such a process).
//!
//! **Invariant:** nothing that the product ships depends on this crate, on `sim`, `bench`, `kubedouble` or `proving`.

pub mod cli;
pub mod commands;
pub mod drill;
pub mod lab_process;

use tenure_kernel::{judge::Judge, machine::Machines, store::Store};

/// Every machine of the product, and the hostile ones of the proofs.
pub fn machines() -> Machines {
    tenure::commands::machines_with(tenure_proving::machines::machines())
}

/// Everything wrong with a store that may hold any of them.
pub async fn problems(store: &dyn Store) -> Vec<String> {
    tenure_engine::checkers::check_everything(store, &machines(), &judge().tables).await
}

/// The judge for them, and for the entities of the benchmarks.
pub fn judge() -> Judge {
    let mut tables = machines().tables();
    tables.insert(&tenure_bench::commit::STEPPER);
    tables.insert(&tenure_bench::claim::TICKET);
    Judge::new(tables)
}
