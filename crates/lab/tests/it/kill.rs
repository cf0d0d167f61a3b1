//! SIGKILL in a loop during load: no acknowledged commit is lost, none is half there, chains are intact.

use crate::support::{Guarded, complained, own_database, run, said, tenure, wait_until};
use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tenure::{config::Settings, kernel::ids::EntityId, open::open_read_only};
use tenure_lab::judge;

/// Acknowledged commits: entity, last version, commit id.
type Acknowledged = Vec<(EntityId, u64, u128)>;

/// Loads the store from a process of its own and kills it once enough was acknowledged.
fn load_and_kill(store: &str, dir: &std::path::Path, enough: usize) -> Acknowledged {
    let mut command = tenure();
    command.args(["--store", store, "--set", "log.filter=error", "torture"]).current_dir(dir);
    let mut child = Guarded(command.stdout(Stdio::piped()).spawn().expect("the binary starts"));
    let out = child.0.stdout.take().unwrap();
    let seen = Arc::new(AtomicUsize::new(0));
    let counting = seen.clone();
    let reader = std::thread::spawn(move || {
        let mut lines = Vec::new();
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            counting.fetch_add(1, Ordering::SeqCst);
            lines.push(line);
        }
        lines
    });
    wait_until("acknowledged commits", Duration::from_secs(60), || {
        seen.load(Ordering::SeqCst) >= enough
    });
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    let lines = reader.join().unwrap();
    // The last line may have been cut by the kill; every other is an acknowledgement.
    let parse = |line: &String| {
        let mut parts = line.split(' ');
        let entity = parts.next()?.parse().ok()?;
        Some((entity, parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    };
    lines[..lines.len() - 1].iter().map(|l| parse(l).unwrap_or_else(|| panic!("{l:?}"))).collect()
}

/// Every acknowledged commit stands in the stream under its own id.
fn all_there(store: &str, dir: &std::path::Path, acknowledged: &Acknowledged) {
    let url = match store.strip_prefix("sqlite:") {
        Some(d) => format!("sqlite:{}", dir.join(d).display()),
        None => store.to_owned(),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let settings = Settings::load(None, [], &[format!("store.url={url}")]).unwrap();
        let store = open_read_only(&settings, judge()).await.unwrap();
        let mut by_entity: BTreeMap<EntityId, Vec<(u64, u128)>> = BTreeMap::new();
        for (entity, version, id) in acknowledged {
            by_entity.entry(*entity).or_default().push((*version, *id));
        }
        assert!(by_entity.len() > 1);
        for (entity, commits) in by_entity {
            let records = store.stream(entity, 1, usize::MAX >> 1).await.unwrap();
            let there: BTreeMap<u64, u128> =
                records.iter().map(|r| (r.last(), u128::from_be_bytes(r.commit.0))).collect();
            for (version, id) in commits {
                assert_eq!(
                    there.get(&version),
                    Some(&id),
                    "{entity} version {version} was acknowledged"
                );
            }
        }
    });
}

fn kill_in_a_loop(store: &str, dir: &std::path::Path) {
    let mut acknowledged = Acknowledged::new();
    // Uneven, so that the kill does not always meet the same phase of a batch.
    for enough in [50, 777, 1_501, 63, 2_222] {
        acknowledged.extend(load_and_kill(store, dir, enough));
        all_there(store, dir, &acknowledged);
    }
    let verified = run(&["--store", store, "verify"], dir);
    assert_eq!(said(&verified), "every stream is intact\n", "{}", complained(&verified));
}

#[test]
fn sqlite_keeps_every_acknowledged_commit_through_repeated_kills() {
    let dir = tempfile::tempdir().unwrap();
    kill_in_a_loop("sqlite:data", dir.path());
}

#[test]
fn postgres_keeps_every_acknowledged_commit_through_repeated_kills() {
    let dir = tempfile::tempdir().unwrap();
    // A database of its own: `verify` looks at all of it.
    let database = own_database("kill");
    kill_in_a_loop(&database.url, dir.path());
}
