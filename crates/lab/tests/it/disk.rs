//! Disks that lie or fail, under the real binary. A small library, preloaded, stands between SQLite and
//! the kernel: on a sign it fails the next sync, or writes half of a page and kills the process.

use crate::support::{Guarded, complained, run, said, tenure, wait_until};
use std::{
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// Builds the library with the C compiler that built SQLite.
fn shim(dir: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/faulty_disk.c");
    let library = dir.join("faulty_disk.so");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&library)
        .arg(&source)
        .arg("-ldl")
        .status();
    assert!(built.expect("a C compiler is there: it built SQLite").success());
    library
}

struct Loaded {
    child: Guarded,
    seen: Arc<AtomicUsize>,
}

fn load(dir: &Path, library: &Path) -> Loaded {
    let mut command = tenure();
    command
        .args(["--store", "sqlite:data", "--set", "log.filter=error", "torture"])
        .current_dir(dir);
    command.env("LD_PRELOAD", library).env("FAULTY_DISK_SIGNS", dir);
    let mut child = Guarded(command.stdout(Stdio::piped()).spawn().expect("the binary starts"));
    let out = child.0.stdout.take().unwrap();
    let seen = Arc::new(AtomicUsize::new(0));
    let counting = seen.clone();
    std::thread::spawn(move || {
        for _ in BufReader::new(out).lines().map_while(Result::ok) {
            counting.fetch_add(1, Ordering::SeqCst);
        }
    });
    Loaded { child, seen }
}

impl Loaded {
    fn wait_for(&self, more: usize) {
        let target = self.seen.load(Ordering::SeqCst) + more;
        wait_until("acknowledged commits", Duration::from_secs(60), || {
            self.seen.load(Ordering::SeqCst) >= target
        });
    }
}

fn intact(dir: &Path) {
    let verified = run(&["--store", "sqlite:data", "verify"], dir);
    assert_eq!(said(&verified), "every stream is intact\n", "{}", complained(&verified));
}

/// After a failed sync nobody knows what is on the disk: the file is closed and opened again, the fate
/// of the batch is looked up by commit id, and the same process goes on.
#[test]
fn a_failing_sync_is_survived_by_closing_and_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let library = shim(dir.path());
    let loaded = load(dir.path(), &library);
    loaded.wait_for(200);
    for _ in 0..3 {
        let sign = dir.path().join("fail-sync");
        std::fs::write(&sign, "").unwrap();
        wait_until("the sync to fail", Duration::from_secs(20), || !sign.exists());
        loaded.wait_for(200);
    }
    drop(loaded);
    intact(dir.path());
}

/// The process dies while a page is half written. What was acknowledged before is there.
#[test]
fn a_torn_write_costs_nothing_that_was_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let library = shim(dir.path());
    for round in 0..3 {
        let mut loaded = load(dir.path(), &library);
        loaded.wait_for(100 + 50 * round);
        std::fs::write(dir.path().join("tear-write"), "").unwrap();
        let died = loaded.child.0.wait().unwrap();
        assert!(!died.success());
        assert!(!dir.path().join("tear-write").exists(), "the library has torn a write");
        intact(dir.path());
    }
}
