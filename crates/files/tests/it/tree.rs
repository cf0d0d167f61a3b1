//! The tree against a plain map.

use crate::support::{START, directory, entry, file, some_name, some_path};
use proptest::prelude::*;
use std::collections::BTreeMap;
use tenure_files::{
    facts::{EntryType, Facts},
    time::Tick,
    tree::{Entry, Tree, flag, slab::DirectoryId},
    wire::name,
};

#[derive(Clone, Debug)]
enum Step {
    File(Vec<u8>, u64, u8),
    Directory(Vec<u8>),
    Many(Vec<u8>, u16),
    Remove(Vec<u8>),
    Move(Vec<u8>, Vec<u8>),
    Freeze,
}

fn some_step() -> impl Strategy<Value = Step> {
    let sizes = prop_oneof![0u64..100, Just((1 << 48) - 1), Just(1 << 48), Just(u64::MAX >> 8)];
    let flags =
        prop::sample::select(vec![0, flag::SUSPECT, flag::BLIND, flag::SUSPECT | flag::BLIND]);
    prop_oneof![
        4 => (some_path(3), sizes, flags).prop_map(|(p, s, f)| Step::File(p, s, f)),
        4 => some_path(3).prop_map(Step::Directory),
        1 => (some_path(2), 1u16..300).prop_map(|(p, n)| Step::Many(p, n)),
        2 => some_path(2).prop_map(Step::Remove),
        2 => (some_path(2), some_path(3)).prop_map(|(a, b)| Step::Move(a, b)),
        1 => Just(Step::Freeze),
    ]
}

/// The whole truth: every path with its state and its flags.
type Model = BTreeMap<Vec<u8>, (Facts, u8)>;

fn is_directory(model: &Model, path: &[u8]) -> bool {
    path.is_empty() || model.get(path).is_some_and(|(f, _)| f.entry_type == EntryType::Directory)
}

fn within(model: &Model, top: &[u8]) -> Vec<Vec<u8>> {
    model.keys().filter(|path| name::is_within(path, top)).cloned().collect()
}

fn put(tree: &mut Tree, model: &mut Model, path: &[u8], facts: Facts, flags: u8, at: Tick) {
    let (parent, own) = name::split(path).unwrap();
    if !is_directory(model, parent) {
        return;
    }
    let stays = facts.entry_type == EntryType::Directory && is_directory(model, path);
    if !stays {
        for gone in within(model, path) {
            model.remove(&gone);
        }
    }
    model.insert(path.to_vec(), (facts, flags));
    let parent = tree.find_directory(parent).unwrap();
    tree.put(parent, own, &Entry { flags, ..entry(facts, at) });
}

fn step(tree: &mut Tree, model: &mut Model, step: &Step, n: u64) {
    let at = START.plus(n);
    match step {
        Step::File(path, size, flags) => {
            put(tree, model, path, file(n, *size, n as i64), *flags, at);
        }
        Step::Directory(path) => put(tree, model, path, directory(n, n as i64), 0, at),
        Step::Many(path, count) => {
            put(tree, model, path, directory(n, n as i64), 0, at);
            if !is_directory(model, path) {
                return;
            }
            let id = tree.find_directory(path).unwrap();
            let names: Vec<Vec<u8>> =
                (0..*count).map(|i| format!("many-{i:05}").into_bytes()).collect();
            let facts = file(n, 1, n as i64);
            for own in &names {
                model.insert(name::join(path, own), (facts, 0));
            }
            let entries: Vec<_> =
                names.iter().map(|own| (own.as_slice(), entry(facts, at))).collect();
            tree.put_all(id, &entries);
        }
        Step::Remove(path) => {
            let gone = within(model, path);
            let (parent, own) = name::split(path).unwrap();
            let removed = tree.find_directory(parent).and_then(|id| tree.remove(id, own, at));
            assert_eq!(removed.map_or(0, |r| r.entries), gone.len() as u64);
            for path in gone {
                model.remove(&path);
            }
        }
        Step::Move(from, to) => {
            let Some((facts, flags)) = model.get(from).copied() else { return };
            let ((a, x), (b, y)) = (name::split(from).unwrap(), name::split(to).unwrap());
            let Some(to_id) = tree.find_directory(b) else { return };
            let from_id = tree.find_directory(a).unwrap();
            let moves = !model.contains_key(to) && !name::is_within(to, from);
            let moved =
                tree.relink((from_id, x), (to_id, y), &Entry { flags, ..entry(facts, at) }, at);
            assert_eq!(moved, moves, "{} to {}", name::display(from), name::display(to));
            if moves {
                for path in within(model, from) {
                    let state = model.remove(&path).unwrap();
                    model.insert([to.as_slice(), &path[from.len()..]].concat(), state);
                }
            }
        }
        Step::Freeze => {}
    }
}

fn content(tree: &Tree) -> Model {
    let mut all = Model::new();
    let mut waiting = vec![(Vec::new(), DirectoryId::ROOT)];
    while let Some((path, id)) = waiting.pop() {
        assert_eq!(tree.path_of(id), path);
        let mut last = Vec::new();
        tree.directory(id).unwrap().for_each(|own, row| {
            assert!(last.as_slice() < own, "names ascend");
            last = own.to_vec();
            let entry = tree.entry_of(id, own, &row);
            let path = name::join(&path, own);
            if let Some(id) = entry.directory {
                waiting.push((path.clone(), id));
            }
            all.insert(path, (entry.facts, entry.flags));
        });
    }
    all
}

fn check_sums(tree: &Tree, model: &Model) {
    for (id, _) in tree.directories() {
        let top = tree.path_of(id);
        let below: Vec<_> = within(model, &top).into_iter().filter(|path| *path != top).collect();
        let count = |test: &dyn Fn(&(Facts, u8)) -> bool| {
            below.iter().filter(|path| test(&model[*path])).count() as u32
        };
        let sums = tree.sums(id).unwrap();
        assert_eq!(sums.files, count(&|(f, _)| f.entry_type != EntryType::Directory));
        assert_eq!(sums.directories, count(&|(f, _)| f.entry_type == EntryType::Directory));
        assert_eq!(sums.suspects, count(&|(_, flags)| flags & flag::SUSPECT > 0));
        assert_eq!(sums.blind, count(&|(_, flags)| flags & flag::BLIND > 0));
        let files =
            below.iter().map(|path| &model[path].0).filter(|f| f.entry_type == EntryType::File);
        assert_eq!(sums.bytes, files.clone().map(|f| f.size).sum::<u64>());
        assert!(sums.newest_mtime >= files.map(|f| f.mtime).max().unwrap_or(0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_tree_is_a_map_of_paths(steps in prop::collection::vec(some_step(), 1..40)) {
        let (mut tree, mut model) = (Tree::new(START), Model::new());
        let mut frozen = Vec::new();
        for (n, each) in steps.iter().enumerate() {
            step(&mut tree, &mut model, each, n as u64 + 1);
            tree.settle();
            if matches!(each, Step::Freeze) {
                frozen.push((tree.clone(), model.clone()));
            }
        }
        prop_assert_eq!(&content(&tree), &model);
        prop_assert_eq!(tree.len(), model.len() as u64);
        check_sums(&tree, &model);
        tree.recount_newest();
        let files = model.values().filter(|(f, _)| f.entry_type != EntryType::Directory);
        let newest = tree.sums(DirectoryId::ROOT).unwrap().newest_mtime;
        prop_assert_eq!(newest, files.map(|(f, _)| f.mtime).max().unwrap_or(0));
        for (path, (facts, _)) in &model {
            prop_assert_eq!(tree.find(path).map(|e| e.facts), Some(*facts));
        }
        for (tree, model) in &frozen {
            prop_assert_eq!(&content(tree), model, "a frozen copy changed");
            check_sums(tree, model);
        }
    }

    /// Directories of many leaves: insertions and removals at any place.
    #[test]
    fn a_directory_of_many_leaves_is_a_map_of_names(
        batches in prop::collection::vec(prop::collection::btree_map(0u16..900, any::<bool>(), 1..200), 1..12),
        extra in some_name(),
    ) {
        let (mut tree, mut model) = (Tree::new(START), BTreeMap::new());
        for (n, batch) in batches.iter().enumerate() {
            let facts = file(n as u64, n as u64, n as i64);
            let names: Vec<_> = batch.iter().map(|(i, keep)| (format!("{i:04}").into_bytes(), *keep)).collect();
            let added: Vec<_> = names.iter().filter(|(_, keep)| *keep)
                .map(|(own, _)| (own.as_slice(), entry(facts, START))).collect();
            tree.put_all(DirectoryId::ROOT, &added);
            for (own, keep) in &names {
                if *keep {
                    model.insert(own.clone(), facts);
                } else {
                    tree.remove(DirectoryId::ROOT, own, START);
                    model.remove(own);
                }
            }
        }
        tree.settle();
        let mut read = BTreeMap::new();
        let root = tree.directory(DirectoryId::ROOT).unwrap();
        root.for_each(|own, row| {
            read.insert(own.to_vec(), tree.entry_of(DirectoryId::ROOT, own, &row).facts);
        });
        prop_assert_eq!(&read, &model);
        prop_assert_eq!(root.len(), model.len());
        prop_assert!(root.get(&extra).is_none() || model.contains_key(&extra));
        let fewest = model.len().div_ceil(128);
        prop_assert!(root.leaves().len() <= fewest * 4 + 2, "{} leaves for {}", root.leaves().len(), model.len());
    }
}

#[test]
fn times_get_a_new_base_before_four_bytes_are_used_up() {
    let mut tree = Tree::new(START);
    tree.put(DirectoryId::ROOT, b"old", &entry(file(1, 1, 1), START.plus(5)));
    let late = START.plus(3 << 30);
    tree.put(DirectoryId::ROOT, b"new", &entry(file(2, 1, 1), late));
    tree.settle();
    tree.renew_base(late);
    assert!(tree.base() > START);
    assert_eq!(tree.find(b"new").unwrap().seen, late);
    assert_eq!(tree.find(b"old").unwrap().seen, tree.base(), "as old as the base");
    assert_eq!(tree.oldest_seen(), Some(tree.base()));
    let far = late.plus(1 << 29);
    tree.put(DirectoryId::ROOT, b"newer", &entry(file(3, 1, 1), far));
    assert_eq!(tree.find(b"newer").unwrap().seen, far);
}

#[test]
fn the_sixty_five_thousandth_owner_is_unknown_and_the_others_stay() {
    let mut tree = Tree::new(START);
    for uid in 0..65_600u32 {
        let facts = Facts { uid, ..file(1, 1, 1) };
        tree.put(DirectoryId::ROOT, b"a", &entry(facts, START));
    }
    assert_eq!(tree.find(b"a").unwrap().facts.uid, u32::MAX);
    tree.put(DirectoryId::ROOT, b"b", &entry(Facts { uid: 65_534, ..file(1, 1, 1) }, START));
    assert_eq!(tree.find(b"b").unwrap().facts.uid, 65_534);
}
