//! Queries against plain answers: pages while the tree changes, searches against a look at every name.

use crate::support::{START, directory, entry, file};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use tenure_files::{
    ask::{
        self, NotFound,
        page::Cursor,
        search::{BadPattern, Pattern, SearchQuery, search},
        tree::TreeQuery,
    },
    facts::{EntryType, Facts},
    tree::{Tree, slab::DirectoryId},
    wire::name,
};

fn add(tree: &mut Tree, path: &[u8], facts: Facts) {
    let (parent, own) = name::split(path).unwrap();
    if tree.find_directory(parent).is_none() {
        add(tree, parent, directory(1, 1));
    }
    let parent = tree.find_directory(parent).unwrap();
    tree.put(parent, own, &entry(facts, START));
}

fn some_tree() -> impl Strategy<Value = BTreeMap<Vec<u8>, Facts>> {
    let own = prop::collection::vec(prop::sample::select(b"abAB.1\xff".to_vec()), 1..7);
    let path = prop::collection::vec(own, 1..4).prop_map(|names| names.join(&b'/'));
    prop::collection::btree_map(path, (0u64..50, 0i64..50), 0..120).prop_map(|paths| {
        let mut all: BTreeMap<Vec<u8>, Facts> = BTreeMap::new();
        for (path, (size, times)) in paths {
            if name::names(&path).any(|own| own == b"." || own == b"..") || all.contains_key(&path)
            {
                continue;
            }
            let parents = path
                .iter()
                .enumerate()
                .filter(|(_, b)| **b == b'/')
                .map(|(i, _)| path[..i].to_vec());
            if parents.clone().any(|p| all.get(&p).is_some_and(|f| f.entry_type == EntryType::File))
            {
                continue;
            }
            for parent in parents {
                all.insert(parent, directory(1, 1));
            }
            all.insert(path, file(1, size, times));
        }
        all
    })
}

fn build(all: &BTreeMap<Vec<u8>, Facts>) -> Tree {
    let mut tree = Tree::new(START);
    for (path, facts) in all {
        add(&mut tree, path, *facts);
    }
    tree.settle();
    tree
}

/// The order of paths: by names from the root down.
fn in_order(all: &BTreeMap<Vec<u8>, Facts>) -> Vec<Vec<u8>> {
    let mut paths: Vec<Vec<u8>> = all.keys().cloned().collect();
    paths.sort_by(|a, b| name::names(a).cmp(name::names(b)));
    paths
}

fn pages(tree: &Tree, query: &TreeQuery) -> Vec<Vec<u8>> {
    let mut query = query.clone();
    let mut all = Vec::new();
    loop {
        let page = ask::tree::tree(tree, &query).unwrap();
        assert!(page.items.len() <= query.limit);
        all.extend(page.items.into_iter().map(|answer| answer.path));
        match page.next {
            Some(cursor) => query.cursor = Some(cursor.to_string().parse().unwrap()),
            None => return all,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn pages_have_everything_once_and_in_order(all in some_tree(), limit in 1usize..20, depth in 1usize..5) {
        let tree = build(&all);
        let query = TreeQuery { path: Vec::new(), max_depth: depth, cursor: None, limit };
        let expected: Vec<_> =
            in_order(&all).into_iter().filter(|p| name::names(p).count() <= depth).collect();
        prop_assert_eq!(pages(&tree, &query), expected);
        if let Some(top) = all.iter().find(|(_, f)| f.entry_type == EntryType::Directory).map(|(p, _)| p) {
            let below: Vec<_> = in_order(&all).into_iter()
                .filter(|p| name::is_within(p, top) && p != top && name::names(p).count() <= depth + name::names(top).count())
                .collect();
            prop_assert_eq!(pages(&tree, &TreeQuery { path: top.clone(), ..query }), below);
        }
    }

    #[test]
    fn hole_8_what_is_there_throughout_is_told_exactly_once(
        all in some_tree(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 1..60),
        limit in 1usize..6,
    ) {
        let mut tree = build(&all);
        let mut stays: BTreeSet<Vec<u8>> = all.keys().cloned().collect();
        let mut changes = changes.into_iter();
        let mut query = TreeQuery { path: Vec::new(), max_depth: usize::MAX, cursor: None, limit };
        let mut told = Vec::new();
        loop {
            let page = ask::tree::tree(&tree, &query).unwrap();
            told.extend(page.items.into_iter().map(|answer| answer.path));
            let Some(cursor) = page.next else { break };
            query.cursor = Some(cursor);
            // Between two pages something goes and something comes.
            if let Some((at, remove)) = changes.next() {
                let paths: Vec<_> = all.keys().cloned().collect();
                let path = &paths[at.index(paths.len())];
                let (parent, own) = name::split(path).unwrap();
                let parent_id = tree.find_directory(parent);
                if remove {
                    parent_id.map(|id| tree.remove(id, own, START));
                    stays.retain(|p| !name::is_within(p, path));
                } else if let Some(id) = parent_id {
                    tree.put(id, &[own, b"-new"].concat(), &entry(file(3, 1, 1), START));
                }
                tree.settle();
            }
        }
        let distinct: BTreeSet<_> = told.iter().cloned().collect();
        prop_assert_eq!(distinct.len(), told.len(), "told twice");
        prop_assert!(stays.is_subset(&distinct), "left out");
    }

    #[test]
    fn a_search_finds_what_a_look_at_every_name_finds(
        all in some_tree(),
        needle in prop::collection::vec(prop::sample::select(b"abAB.1\xff".to_vec()), 0..5),
        kind in 0u8..5,
        size in prop::option::of((0u64..50, 0u64..50)),
        mtime in prop::option::of((0i64..50, 0i64..50)),
        limit in 1usize..9,
        work_max in prop_oneof![Just(u64::MAX), 1u64..40],
    ) {
        let tree = build(&all);
        let text: String = needle.iter().map(|b| if b.is_ascii() { *b as char } else { 'a' }).collect();
        let pattern = match kind {
            0 => Pattern::contains(&needle).unwrap(),
            1 => Pattern::glob(&[b"*", needle.as_slice(), b"*"].concat()).unwrap(),
            2 => Pattern::glob(&[b"**/", needle.as_slice(), b"?*"].concat()).unwrap(),
            3 => Pattern::regex(&format!("{}+[a-b]", text.replace('.', "\\.") + "a")).unwrap(),
            _ => Pattern::all(),
        };
        let mut query = SearchQuery { size, mtime, limit, work_max, ..SearchQuery::new(pattern.clone()) };
        let mut found = Vec::new();
        loop {
            let page = search(&tree, &query).unwrap();
            found.extend(page.items.into_iter().map(|answer| answer.path));
            match page.next {
                Some(cursor) => query.cursor = Some(cursor),
                None => break,
            }
        }
        let expected: Vec<_> = in_order(&all).into_iter().filter(|path| {
            let facts = &all[path];
            let own = name::split(path).unwrap().1;
            let matches = match kind {
                0 => own.to_ascii_lowercase().windows(needle.len().max(1))
                    .any(|w| w == needle.to_ascii_lowercase()) || needle.is_empty(),
                1 => own.windows(needle.len().max(1)).any(|w| w == needle) || needle.is_empty(),
                2 => own.len() > needle.len() && own.starts_with(&needle),
                _ => pattern.matches(path),
            };
            let is_file = facts.entry_type != EntryType::Directory;
            matches
                && size.is_none_or(|(a, b)| is_file && (a..=b).contains(&facts.size))
                && mtime.is_none_or(|(a, b)| (a..=b).contains(&facts.mtime))
        }).collect();
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn globs() {
    for (glob, path, answer) in [
        ("*.dat", "a/b/x.dat", true),
        ("*.dat", "a/b/x.dat2", false),
        ("a/*.dat", "a/x.dat", true),
        ("/a/*.dat", "a/x.dat", true),
        ("a/*.dat", "a/b/x.dat", false),
        ("a/**/x.dat", "a/x.dat", true),
        ("a/**/x.dat", "a/b/c/x.dat", true),
        ("**/x.dat", "x.dat", true),
        ("**/x.dat", "a/yx.dat", false),
        ("a/**", "a/b/c", true),
        ("a?c", "abc", true),
        ("[a-c]x", "bx", true),
        ("[!a-c]x", "bx", false),
        ("[]]x", "]x", true),
        ("{one,two}.txt", "two.txt", true),
        ("{one,two}.txt", "three.txt", false),
        ("{a/b,c}/x", "a/b/x", true),
        ("\\*x", "*x", true),
        ("a.c", "abc", false),
        ("line*", "line\nbreak", true),
    ] {
        assert_eq!(
            Pattern::glob(glob.as_bytes()).unwrap().matches(path.as_bytes()),
            answer,
            "{glob} {path}"
        );
    }
    assert!(Pattern::glob(b"\xff*").unwrap().matches(b"\xffx"));
    for glob in ["[a", "{a", "a\\", "[b-a]"] {
        assert!(matches!(Pattern::glob(glob.as_bytes()), Err(BadPattern::Glob(_))), "{glob}");
    }
}

#[test]
fn patterns_are_bounded() {
    assert!(Pattern::contains(&[b'a'; 4_096]).is_ok());
    assert_eq!(Pattern::contains(&[b'a'; 4_097]).unwrap_err(), BadPattern::Long);
    assert!(matches!(Pattern::regex("(a{1000}){1000}"), Err(BadPattern::Regex(_))));
    assert!(Pattern::regex("(").unwrap_err().to_string().contains("not a regular expression"));
}

#[test]
fn a_glob_with_a_literal_directory_searches_there_alone() {
    let mut tree = Tree::new(START);
    for i in 0..300 {
        add(&mut tree, format!("other/{i}/x.dat").as_bytes(), file(1, 1, 1));
    }
    add(&mut tree, b"here/sub/x.dat", file(1, 1, 1));
    tree.settle();
    let query =
        SearchQuery { work_max: 10, ..SearchQuery::new(Pattern::glob(b"here/*/x.dat").unwrap()) };
    let page = search(&tree, &query).unwrap();
    assert_eq!((page.items.len(), page.next), (1, None), "ten steps are enough");
    let elsewhere = SearchQuery { path: b"other".to_vec(), ..query };
    assert!(search(&tree, &elsewhere).unwrap().items.is_empty());
}

#[test]
fn a_search_without_matches_ends_with_a_cursor_when_its_work_is_used_up() {
    let mut tree = Tree::new(START);
    for i in 0..2_000 {
        add(&mut tree, format!("d{}/f{i}", i % 50).as_bytes(), file(1, 1, 1));
    }
    tree.settle();
    let mut query =
        SearchQuery { work_max: 40, ..SearchQuery::new(Pattern::regex("^[x-z]$").unwrap()) };
    let mut pages = 0;
    while let Some(cursor) = search(&tree, &query).unwrap().next {
        query.cursor = Some(cursor);
        pages += 1;
    }
    assert!(pages > 10, "{pages}");
}

#[test]
fn stats_need_no_walk_and_say_what_they_cover() {
    let mut tree = Tree::new(START);
    add(&mut tree, b"d/a", file(1, 10, 7));
    add(&mut tree, b"d/e/b", file(1, 20, 9));
    tree.settle();
    let stats = ask::stats::stats(&tree, b"d").unwrap();
    assert_eq!((stats.sums.files, stats.sums.directories, stats.sums.bytes), (2, 1, 30));
    assert_eq!((stats.sums.newest_mtime, stats.observed_at), (9, START));
    assert_eq!(stats.coverage.unwrap().word(), "unlisted");
    assert_eq!(ask::stats::stats(&tree, b"d/a").unwrap().sums.bytes, 10);
    assert_eq!(ask::stats::stats(&tree, b"x"), Err(NotFound::NotKnownYet));
}

#[test]
fn cursors_that_were_changed_are_refused() {
    for text in ["", "6", "6z", "6A", "2f", "2e2e", "C0FFEE", "é"] {
        assert!(text.parse::<Cursor>().is_err(), "{text}");
    }
    assert_eq!("612f62".parse(), Ok(Cursor(b"a/b".to_vec())));
    let root = Tree::new(START);
    assert!(root.directory(DirectoryId::ROOT).unwrap().is_empty());
}
