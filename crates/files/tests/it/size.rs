//! Bytes of memory for each entry, measured by an allocator that counts, on the two shapes of the design.
//!
//! `cargo nextest run -p tenure-files -E 'test(/^size/)' --no-capture` prints them; with
//! `TENURE_FILES_ENTRIES=1000000` for a million entries.

use crate::support::{START, directory, entry, file};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering},
};
use tenure_files::{
    arbitrate::{Rules, apply::SourceState},
    facts::Facts,
    keep::snap,
    tree::{Entry, Tree, slab::DirectoryId},
};

use tenure_kernel::ids::EntityId;

/// Counts what is allocated, as an allocator with classes of 16 bytes rounds it.
struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);

fn rounded(layout: Layout) -> usize {
    layout.size().next_multiple_of(16)
}

#[expect(unsafe_code, reason = "an allocator is unsafe by its trait")]
// SAFETY: every call is passed on to the system's allocator unchanged; counting touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(rounded(layout), Ordering::Relaxed);
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.fetch_sub(rounded(layout), Ordering::Relaxed);
        // SAFETY: the caller's promise about `pointer` and `layout` is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Tests run as threads of one process where cargo-nextest is not used: then other tests allocate meanwhile.
fn is_alone() -> bool {
    std::env::var_os("NEXTEST").is_some()
}

fn entries_wanted() -> u64 {
    std::env::var("TENURE_FILES_ENTRIES").ok().and_then(|n| n.parse().ok()).unwrap_or(60_000)
}

/// Times of a file that was written within seconds of its neighbours, in nanoseconds that repeat nowhere.
fn facts(n: u64) -> Facts {
    let noise = (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let written = 1_780_000_000_000_000_000 + (n * 13_000_000) as i64 + (noise >> 34) as i64;
    let mut facts = file(1_000 + n, 4_096 + (noise >> 44), written);
    facts.ctime += (noise >> 50) as i64;
    facts
}

/// Directories of 250 files with names of 13 bytes.
fn upload(entries: u64) -> Tree {
    let mut tree = Tree::new(START);
    for batch in 0..entries / 250 {
        let name = format!("{batch:032x}");
        tree.put(DirectoryId::ROOT, name.as_bytes(), &entry(directory(batch, 5), START));
        let id = tree.find_directory(name.as_bytes()).unwrap();
        let names: Vec<String> = (0..250).map(|i| format!("data_{i:04}.dat")).collect();
        fill(&mut tree, id, &names, batch * 250);
    }
    tree.settle();
    tree
}

/// Small directories with names of words, as below /usr.
fn installed(entries: u64) -> Tree {
    const WORDS: [&str; 16] = [
        "config", "libssl", "locale", "README", "python3", "module", "x86_64", "share", "icons",
        "template", "unit", "graphics", "kernel", "header", "test", "manual",
    ];
    const ENDINGS: [&str; 8] = [".so.3", ".py", ".h", ".mo", ".json", ".conf", ".png", ".1.gz"];
    let mut tree = Tree::new(START);
    let mut parents = vec![DirectoryId::ROOT];
    let mut n = 0u64;
    while n < entries {
        let parent = parents[(n as usize * 7 / 11) % parents.len()];
        let own =
            format!("{}-{}{}", WORDS[(n % 16) as usize], WORDS[(n / 16 % 16) as usize], n / 8);
        tree.put(parent, own.as_bytes(), &entry(directory(n, 5), START));
        let id = tree.entry(parent, own.as_bytes()).unwrap().directory.unwrap();
        parents.push(id);
        let mut names: Vec<String> = (0..7)
            .map(|i| {
                let k = n * 7 + i;
                format!(
                    "{}_{}{}{}",
                    WORDS[(k * 5 % 16) as usize],
                    WORDS[(k / 3 % 16) as usize],
                    k % 997,
                    ENDINGS[(k % 8) as usize]
                )
            })
            .collect();
        names.sort();
        names.dedup();
        fill(&mut tree, id, &names, n * 8);
        n += 1 + names.len() as u64;
    }
    tree.settle();
    tree
}

fn fill(tree: &mut Tree, id: DirectoryId, names: &[String], first: u64) {
    let entries: Vec<(&[u8], Entry)> = names
        .iter()
        .enumerate()
        .map(|(i, name)| (name.as_bytes(), entry(facts(first + i as u64), START)))
        .collect();
    tree.put_all(id, &entries);
}

fn measure(shape: &str, build: impl Fn(u64) -> Tree) -> f64 {
    let before = BYTES.load(Ordering::Relaxed);
    let tree = build(entries_wanted());
    let bytes = BYTES.load(Ordering::Relaxed) - before;
    let entries = tree.len();
    let each = bytes as f64 / entries as f64;
    let counted = tree.counted_bytes() as f64 / entries as f64;
    println!(
        "{shape}: {entries} entries, {each:.1} bytes each in memory, names included ({counted:.1} without rounding)"
    );
    each
}

#[test]
fn hole_10_bytes_of_an_entry_in_memory() {
    if !is_alone() {
        return;
    }
    let upload = measure("upload-like, 250 in a directory", upload);
    let installed = measure("installed system, 8 in a directory", installed);
    assert!(upload <= 64.0, "{upload}");
    assert!(installed <= 96.0, "{installed}");
}

/// A snapshot, without the names as they are: what a million files cost on disk beyond their names.
#[test]
fn bytes_of_an_entry_on_disk() {
    for (shape, tree) in [
        ("upload-like", upload(entries_wanted())),
        ("installed system", installed(entries_wanted())),
    ] {
        let mut state =
            SourceState::new(EntityId::from_bytes([1; 16]), Rules::default(), 1 << 20, START);
        state.tree = tree;
        let bytes = snap::write(&state);
        let names: usize = {
            let mut names = 0;
            for (_, directory) in state.tree.directories() {
                directory.for_each(|own, _| names += own.len());
            }
            names
        };
        let entries = state.tree.len() as f64;
        let (all, own) = (bytes.len() as f64 / entries, names as f64 / entries);
        println!("{shape}: {all:.1} bytes each on disk; names have {own:.1}");
        assert!(all <= 24.0, "{shape}: {all}, names included");
        let read = snap::read(&bytes, "test", 1 << 20).unwrap();
        assert_eq!(read.tree.len(), state.tree.len());
    }
}

/// A frozen copy shares everything; writes to one directory copy one chunk and one leaf.
#[test]
fn a_frozen_copy_costs_little() {
    if !is_alone() {
        return;
    }
    let mut tree = upload(entries_wanted());
    let before = BYTES.load(Ordering::Relaxed);
    let frozen = tree.clone();
    let copied = BYTES.load(Ordering::Relaxed) - before;
    assert!(copied < 64 * 1_024, "{copied}");
    let path = format!("{:032x}", 3);
    let id = tree.find_directory(path.as_bytes()).unwrap();
    tree.put(id, b"data_0001.dat", &entry(facts(1), START.plus(9)));
    let written = BYTES.load(Ordering::Relaxed) - before;
    assert!(written < 256 * 1_024, "{written}");
    assert_ne!(
        frozen.entry(id, b"data_0001.dat").unwrap().seen,
        tree.entry(id, b"data_0001.dat").unwrap().seen
    );
}
