//! Shows which protections are missed: `cargo run -p tenure-sim --example unprotected -- COUNT`.

use tenure_sim::{protections, run};

fn main() {
    let count = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(50u64);
    for missed in protections::all() {
        let fails = |options| {
            let broken = |seed| run(seed, options).err().map(|f| (seed, f.broken));
            (0..count).filter_map(broken).collect::<Vec<_>>()
        };
        let (on, off) = (fails(&missed.on), fails(&missed.off));
        println!("{:>10}: {}/{count} fail without, {} with", missed.name, off.len(), on.len());
        off.first().into_iter().chain(on.first()).for_each(|f| println!("            {f:?}"));
    }
}
