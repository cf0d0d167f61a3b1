use std::{sync::Arc, time::Duration};
use tenure_bench::{commit, raw::Raw};
#[tokio::main(flavor = "multi_thread", worker_threads = 3)]
async fn main() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let mut tables = tenure_kernel::machine::Machines::kernel().tables();
    tables.insert(&commit::STEPPER);
    let judge = tenure_kernel::judge::Judge::new(tables);
    let store = tenure_store::sqlite::SqliteStore::open(
        dir.path(),
        judge,
        Arc::new(tenure_edge::SystemClock),
        42,
    )
    .unwrap();
    let mut raw = Raw::sqlite(dir.path()).unwrap();
    let callers = std::env::args().skip(1).map(|a| a.parse().unwrap()).collect::<Vec<usize>>();
    let o = commit::Options {
        callers: if callers.is_empty() { vec![1, 50, 200, 500] } else { callers },
        time: Duration::from_secs(3),
    };
    let r = commit::run(Arc::new(store), 1, &mut raw, &o).await.unwrap();
    println!("{}", r.to_table());
}
