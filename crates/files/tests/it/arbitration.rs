//! Defects of earlier systems, holes of their design, and the rows of the table, each by name.

use crate::support::{START, TREE, Trust, World, directory, file};
use tenure_files::{
    arbitrate::{
        Protections, Rules,
        apply::{Admission, Attention, Input, WalkOutcome},
        brake::{BrakeMode, BrakeRules},
        table,
    },
    ask::{self, NotFound},
    facts::{EntryType, Facts},
    feed::ChangeKind,
    time::{Interval, Tick, seconds},
    tree::{flag, sides::BlindCause},
    wire::{Cause, Finding, Frame, Lane, Look, Moved, Record, RootIdentity, Silent, Tier},
};
use tenure_kernel::ids::EntityId;

fn exists(facts: Facts) -> Finding {
    Finding::Exists(facts)
}

/// `TENURE_BLESS=1` writes the page instead of comparing it.
#[test]
fn the_page_of_the_arbitration_is_what_the_table_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/files/arbitration.md");
    if std::env::var_os("TENURE_BLESS").is_some() {
        std::fs::write(path, table::to_markdown()).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), table::to_markdown());
}

#[test]
fn defect_1_hole_3_a_half_read_directory_deletes_nothing() {
    for end in [Trust::Partial, Trust::Racy] {
        let mut world = World::new();
        world.list(
            Tier::Snapshot,
            "",
            &[("a", file(10, 1, 5)), ("b", file(11, 1, 5))],
            Trust::Complete,
        );
        world.list(Tier::Audit, "", &[("a", file(10, 1, 5))], end);
        assert!(world.shown("b").is_some(), "{end:?}");
        assert_eq!(world.is_doubted("b"), end == Trust::Racy);
        world.list(Tier::Audit, "", &[("a", file(10, 1, 5))], Trust::Complete);
        assert!(world.shown("b").is_none());
    }
}

#[test]
fn defect_1_an_unmounted_root_does_not_empty_the_view() {
    let names: Vec<String> = (0..30).map(|i| format!("f{i}")).collect();
    let entries: Vec<(&str, Facts)> = names.iter().map(|n| (n.as_str(), file(10, 1, 5))).collect();
    // Another file system shows through: another identity.
    let mut world = World::new();
    world.list(Tier::Snapshot, "", &entries, Trust::Complete);
    let mounted = world.preamble.root;
    world.preamble.root = RootIdentity { magic: 0x0102_1994, ..mounted };
    let told = world.list(Tier::Audit, "", &[], Trust::Complete);
    assert_eq!(told.attention, [Attention::RootChanged { scout: 1 }]);
    assert_eq!(world.content().len(), 30);
    let again = world.look(1, "f1", Finding::Missing, Cause::Event);
    assert!(again.attention.is_empty(), "said once");
    assert!(world.shown("f1").is_some());
    // The same identity and an empty directory: a person decides, even for 30 entries.
    world.preamble.root = mounted;
    let told = world.list(Tier::Audit, "", &[], Trust::Complete);
    assert!(
        matches!(&told.attention[..], [Attention::BrakePulled { entries: 30, .. }]),
        "{told:?}"
    );
    assert_eq!(world.content().len(), 30);
    assert!(world.shown("f3").unwrap().has(flag::HELD));
    world.pass(3_600);
    world.list(Tier::Audit, "", &[], Trust::Complete);
    assert_eq!(world.content().len(), 30, "a second witness is not a person");
    world.input(Input::BrakeSettled { delete: true });
    assert!(world.content().is_empty());
}

#[test]
fn a_new_root_that_somebody_accepts_may_delete() {
    let mut world = World::new();
    world.list(
        Tier::Snapshot,
        "",
        &[("a", file(10, 1, 5)), ("b", file(11, 1, 5))],
        Trust::Complete,
    );
    world.preamble.root.inode = 77;
    world.list(Tier::Audit, "", &[("a", file(10, 1, 5))], Trust::Complete);
    assert!(world.shown("b").is_some());
    world.input(Input::RootAccepted { scout: 1 });
    world.list(Tier::Audit, "", &[("a", file(10, 1, 5))], Trust::Complete);
    assert!(world.shown("b").is_none());
}

#[test]
fn defect_4_hole_2_a_file_that_comes_back_with_an_old_mtime_is_shown() {
    let mut world = World::new();
    world.look(1, "a", exists(file(10, 1, 5_000)), Cause::Closed);
    world.look(1, "a", Finding::Missing, Cause::Event);
    assert!(world.shown("a").is_none());
    // cp -p: an old mtime, a new ctime, another inode. mv b a: the same inode with all its times.
    world.look(1, "a", exists(Facts { mtime: 1, ..file(11, 1, 6_000) }), Cause::Closed);
    assert_eq!(world.shown("a").unwrap().facts.inode, 11);
    world.look(1, "a", Finding::Missing, Cause::Event);
    world.look(2, "a", exists(file(10, 1, 5_000)), Cause::Event);
    assert_eq!(world.shown("a").unwrap().facts.inode, 10);
    // Also a walk brings it back.
    world.look(1, "a", Finding::Missing, Cause::Event);
    world.list(Tier::Audit, "", &[("a", file(10, 1, 5_000))], Trust::Complete);
    assert!(world.shown("a").is_some());
}

#[test]
fn defect_5_late_rows_below_a_deleted_directory_do_not_bring_it_back() {
    let mut world = World::new();
    world.list(Tier::Snapshot, "", &[("d", directory(20, 5))], Trust::Complete);
    world.look(1, "d/x", exists(file(21, 1, 5)), Cause::Closed);
    let before = Interval { begin: world.at, end: world.at };
    world.pass(5);
    world.look(2, "d", Finding::Missing, Cause::Event);
    assert!(world.content().is_empty());
    for path in ["d/x", "d/y", "d/deep/z"] {
        world.look_at(1, path, exists(file(22, 1, 5)), Cause::Closed, before);
        assert!(world.content().is_empty() && !world.is_doubted(path), "{path}");
    }
    // Also when the directory exists again.
    world.look(2, "d", exists(directory(30, 9)), Cause::Event);
    world.look_at(1, "d/x", exists(file(21, 1, 5)), Cause::Closed, before);
    assert_eq!(world.content().len(), 1);
    world.look(1, "d/x", exists(file(40, 1, 10)), Cause::Closed);
    assert_eq!(world.content().len(), 2);
}

#[test]
fn defect_6_a_late_delete_of_one_host_does_not_remove_the_newer_file_of_another() {
    let mut world = World::new();
    world.look(1, "a", exists(file(10, 1, 5)), Cause::Closed);
    let gone = Interval { begin: world.at.plus(10), end: world.at.plus(11) };
    world.pass(2);
    world.look(2, "a", exists(file(11, 7, 9)), Cause::Closed);
    let told = world.look_at(3, "a", Finding::Missing, Cause::Event, gone);
    assert_eq!(world.shown("a").unwrap().facts.size, 7);
    assert!(told.look.contains_key(&b"a"[..]), "a forced look settles it");
    assert!(world.shown("a").unwrap().has(flag::DOUBT));
    let not_before = told.look[&b"a"[..]];
    world.pass(1);
    assert!(world.at.minus(2) >= not_before);
    world.look(2, "a", exists(file(11, 7, 9)), Cause::Asked);
    assert!(!world.is_doubted("a") && !world.shown("a").unwrap().has(flag::DOUBT));
}

#[test]
fn defect_8_a_change_of_attributes_makes_no_suspect() {
    let mut world = World::new();
    world.look(1, "a", exists(file(10, 1, 5)), Cause::Closed);
    world.look(1, "a", exists(Facts { ctime: 6, mode: 0o600, ..file(10, 1, 5) }), Cause::Event);
    let shown = world.shown("a").unwrap();
    assert!(!shown.has(flag::SUSPECT) && !shown.has(flag::BLIND));
    assert_eq!(shown.facts.mode, 0o600);
}

#[test]
fn defect_9_what_the_sentinel_finds_missing_is_deleted() {
    let mut world = World::new();
    world.look(1, "a", exists(file(10, 1, 5)), Cause::Written);
    assert!(world.shown("a").unwrap().has(flag::SUSPECT));
    world.look(1, "a", Finding::Missing, Cause::Asked);
    assert!(world.shown("a").is_none());
    assert!(world.state.tree.sides.suspects.is_empty());
    assert_eq!(ask::lists::blind_deletions(&world.state.tree, 9).len(), 1, "nobody saw it");
}

#[test]
fn the_sentinel_clears_a_suspect_by_two_equal_looks_a_threshold_apart() {
    let mut world = World::new();
    world.look(1, "a", exists(file(10, 1, 5)), Cause::Written);
    let is_suspect = |world: &World| world.shown("a").unwrap().has(flag::SUSPECT);
    world.look(1, "a", exists(file(10, 1, 5)), Cause::Asked);
    world.pass(10);
    world.look(1, "a", exists(file(10, 1, 5)), Cause::Asked);
    assert!(is_suspect(&world), "too early");
    world.pass(10);
    world.look(1, "a", exists(file(10, 2, 6)), Cause::Asked);
    world.pass(25);
    world.look(1, "a", exists(file(10, 2, 6)), Cause::Asked);
    assert!(is_suspect(&world), "it changed meanwhile: counted anew");
    world.pass(31);
    world.look(1, "a", exists(file(10, 2, 6)), Cause::Asked);
    assert!(!is_suspect(&world));
    assert_eq!(
        world.state.tree.sums(tenure_files::tree::slab::DirectoryId::ROOT).unwrap().suspects,
        0
    );
    world.look(1, "a", exists(file(10, 3, 7)), Cause::Written);
    assert!(is_suspect(&world));
    world.look(1, "a", exists(file(10, 3, 7)), Cause::Closed);
    assert!(!is_suspect(&world));
}

#[test]
fn defect_10_a_scan_reports_deletions() {
    let mut world = World::new();
    world.list(
        Tier::Snapshot,
        "",
        &[("a", file(10, 1, 5)), ("b", file(11, 1, 5))],
        Trust::Complete,
    );
    world.pass(1);
    let during = Interval { begin: world.at.minus(2), end: world.at };
    world.list_at(2, Tier::Scan, Some(4), "", &[("b", file(11, 1, 5))], Trust::Complete, during);
    let ended = Input::WalkEnded {
        walk: EntityId::from_bytes([4; 16]),
        tier: Tier::Scan,
        began: during.begin,
        outcome: WalkOutcome::Complete,
    };
    world.input(ended);
    assert!(world.shown("a").is_none() && world.shown("b").is_some());
    assert!(matches!(world.state.feed.kept().last().unwrap().kind, ChangeKind::Removed));
}

#[test]
fn defect_12_a_new_size_with_the_old_mtime_is_taken_from_a_walk() {
    let mut world = World::new();
    world.list(Tier::Snapshot, "", &[("a", file(10, 1, 5))], Trust::Complete);
    world.list(Tier::Audit, "", &[("a", Facts { size: 2, ..file(10, 1, 5) })], Trust::Complete);
    assert_eq!(world.shown("a").unwrap().facts.size, 2);
}

#[test]
fn defect_13_names_that_differ_in_an_invalid_byte_are_two_files() {
    let mut world = World::new();
    for (i, path) in [&b"a\xff"[..], b"a\xfe", b"a\n"].into_iter().enumerate() {
        world.pass(1);
        let during = Interval { begin: world.at.minus(1), end: world.at };
        let finding = exists(file(i as u64, 1, 5));
        let look =
            Look { path: path.to_vec(), finding, forced: true, cause: Cause::Closed, during };
        world.tell(1, Tier::Realtime, None, Record::Look(look));
    }
    assert_eq!(world.content().len(), 3);
}

#[test]
fn defect_18_a_session_that_begins_or_ends_wipes_no_blind_spot() {
    let mut world = World::new();
    world.list(
        Tier::Snapshot,
        "",
        &[("a", file(10, 1, 5)), ("b", file(11, 1, 5))],
        Trust::Complete,
    );
    world.list(Tier::Audit, "", &[("b", file(11, 1, 5)), ("c", file(12, 1, 5))], Trust::Complete);
    let lists = |world: &World| {
        let blind = ask::lists::blind_spots(&world.state.tree, None, 10).items;
        (blind.len(), ask::lists::blind_deletions(&world.state.tree, 10).len())
    };
    assert_eq!(lists(&world), (1, 1));
    for input in [Input::ScoutStarted { scout: 2 }, Input::ScoutEnded { scout: 1 }] {
        world.input(input);
    }
    assert_eq!(lists(&world), (1, 1));
    world.pass(8 * 86_400);
    world.input(Input::Expired);
    assert_eq!(lists(&world), (1, 0), "a deletion is told for seven days");
}

#[test]
fn defect_19_a_parent_that_is_implied_is_no_blind_spot_and_is_listed() {
    let mut world = World::new();
    let told = world.look(1, "new/deep/file", exists(file(10, 1, 5)), Cause::Closed);
    assert_eq!(told.relist.into_iter().collect::<Vec<_>>(), [b"".to_vec()]);
    let parent = world.shown("new").unwrap();
    assert!(parent.has(flag::IMPLIED) && !parent.has(flag::BLIND));
    let answer = ask::find(&world.state.tree, b"new").unwrap();
    assert_eq!(answer.coverage.unwrap().word(), "implied");
    world.list(Tier::Region, "", &[("new", directory(20, 7))], Trust::Complete);
    assert_eq!(world.shown("new").unwrap().facts.inode, 20);
    assert!(world.shown("new/deep/file").is_some());
}

#[test]
fn defect_20_what_was_seen_during_a_listing_is_not_deleted_by_it() {
    let mut world = World::new();
    world.list(Tier::Snapshot, "", &[("a", file(10, 1, 5))], Trust::Complete);
    world.pass(10);
    let during = Interval { begin: world.at.minus(800), end: world.at };
    world.look_at(
        2,
        "b",
        exists(file(11, 1, 6)),
        Cause::Closed,
        Interval { begin: world.at.minus(400), end: world.at.minus(399) },
    );
    world.list_at(1, Tier::Audit, None, "", &[("a", file(10, 1, 5))], Trust::Complete, during);
    assert!(world.shown("b").is_some() && world.is_doubted("b"));
}

#[test]
fn hole_1_equal_evidence_moves_the_moment_at_which_a_file_was_verified() {
    let mut world = World::new();
    world.list(Tier::Snapshot, "", &[("a", file(10, 1, 5))], Trust::Complete);
    let first = world.shown("a").unwrap().seen;
    world.pass(3_600);
    world.list(Tier::Audit, "", &[("a", file(10, 1, 5))], Trust::Complete);
    let second = world.shown("a").unwrap();
    assert!(second.seen.since(first) > seconds(3_590) && !second.has(flag::BLIND));
    let oldest = world.state.tree.oldest_seen().unwrap();
    assert!(oldest <= second.seen && oldest > first);
}

#[test]
fn hole_4_a_frame_of_another_tree_or_out_of_order_is_not_applied() {
    let mut world = World::new();
    world.look(1, "a", exists(file(10, 1, 5)), Cause::Closed);
    let Some((_, Input::Frame { frame, .. })) = world.inputs.last().cloned() else {
        unreachable!()
    };
    let admit = |frame: &Frame| world.state.admit(1, frame);
    assert_eq!(admit(&frame), Admission::Repeated);
    assert_eq!(admit(&Frame { sequence: 2, ..(*frame).clone() }), Admission::Next);
    assert_eq!(admit(&Frame { sequence: 4, ..(*frame).clone() }), Admission::Gap { expected: 2 });
    let other = EntityId::from_bytes([8; 16]);
    assert_eq!(
        admit(&Frame { tree: other, sequence: 2, ..(*frame).clone() }),
        Admission::OtherTree
    );
    let before = world.state.feed.revision();
    for sequence in [1, 4] {
        let records = vec![Record::Look(Look {
            path: b"b".to_vec(),
            finding: exists(file(11, 1, 5)),
            forced: true,
            cause: Cause::Closed,
            during: Interval { begin: world.at, end: world.at },
        })];
        let frame = Frame { sequence, records, ..(*frame).clone() };
        world.input(Input::Frame { scout: 1, frame: Box::new(frame) });
    }
    assert_eq!(world.state.feed.revision(), before);
}

#[test]
fn defect_7_frames_that_a_scout_lost_are_skipped_by_number_and_dirty_by_region() {
    let mut world = World::new();
    world.list(Tier::Snapshot, "", &[("d", directory(20, 5))], Trust::Complete);
    world.list(Tier::Snapshot, "d", &[], Trust::Complete);
    assert_eq!(ask::find(&world.state.tree, b"d/x"), Err(NotFound::Absent));
    world.pass(1);
    let during = Interval { begin: world.at, end: world.at };
    world.tell(
        1,
        Tier::Realtime,
        None,
        Record::Dirty { path: b"d".to_vec(), subtree: false, during },
    );
    assert_eq!(ask::find(&world.state.tree, b"d/x"), Err(NotFound::NotKnownYet));
    assert_eq!(ask::find(&world.state.tree, b"d").unwrap().coverage.unwrap().word(), "dirty");
    world.list(Tier::Region, "d", &[("y", file(30, 1, 8))], Trust::Complete);
    assert_eq!(ask::find(&world.state.tree, b"d/x"), Err(NotFound::Absent));
    world.tell(1, Tier::Realtime, None, Record::Skipped { first: 2, last: 7 });
    assert_eq!(world.state.sequences[&(1, Lane::Live)], 7);
}

#[test]
fn hole_9_absent_is_said_only_where_somebody_looked() {
    let mut world = World::new();
    assert_eq!(ask::find(&world.state.tree, b"a"), Err(NotFound::NotKnownYet));
    world.look(1, "d/a", exists(file(10, 1, 5)), Cause::Closed);
    assert_eq!(ask::find(&world.state.tree, b"d/b"), Err(NotFound::NotKnownYet));
    world.look(1, "d/a", Finding::Missing, Cause::Event);
    assert_eq!(ask::find(&world.state.tree, b"d/a"), Err(NotFound::Absent));
    world.list(Tier::Snapshot, "", &[("e", file(11, 1, 5))], Trust::Partial);
    assert_eq!(ask::find(&world.state.tree, b"b"), Err(NotFound::NotKnownYet));
    assert_eq!(ask::find(&world.state.tree, b"e/below/a/file"), Err(NotFound::Absent));
}

#[test]
fn hole_7_silence_renews_a_certificate_of_the_same_state_and_no_other() {
    let mut world = World::new();
    world.list(Tier::Snapshot, "", &[("d", directory(20, 5))], Trust::Complete);
    let silent = |world: &mut World, facts| {
        world.pass(60);
        let during = Interval { begin: world.at.minus(2), end: world.at.minus(1) };
        let silent = Silent { path: b"d".to_vec(), during, directory: facts };
        world.tell(1, Tier::Audit, None, Record::Silent(silent))
    };
    let listed_at =
        |world: &World| ask::find(&world.state.tree, b"d").unwrap().coverage.unwrap().listed_at;
    assert_eq!(silent(&mut world, directory(20, 5)).relist.len(), 1, "it was never listed");
    world.list(Tier::Audit, "d", &[("x", file(21, 1, 5))], Trust::Complete);
    let first = listed_at(&world).unwrap();
    assert!(silent(&mut world, directory(20, 5)).relist.is_empty());
    assert!(listed_at(&world).unwrap() > first);
    let second = listed_at(&world);
    assert_eq!(silent(&mut world, directory(20, 6)).relist.len(), 1, "another state");
    assert_eq!(listed_at(&world), second);
}

#[test]
fn a_late_look_at_a_name_that_a_listing_does_not_have_adds_nothing() {
    let mut world = World::new();
    world.pass(10);
    let before = Interval { begin: world.at.minus(1_000), end: world.at.minus(900) };
    let during = Interval { begin: world.at.minus(500), end: world.at.minus(400) };
    world.list_at(1, Tier::Snapshot, None, "", &[("a", file(10, 1, 5))], Trust::Complete, during);
    world.look_at(2, "late", exists(file(11, 1, 5)), Cause::Closed, before);
    assert!(world.shown("late").is_none() && !world.is_doubted("late"));
    world.look_at(
        3,
        "overlaps",
        exists(file(12, 1, 5)),
        Cause::Closed,
        Interval { begin: during.begin, end: during.end },
    );
    assert!(world.shown("overlaps").is_none() && world.is_doubted("overlaps"));
    world.look(2, "overlaps", exists(file(12, 1, 5)), Cause::Asked);
    assert!(world.shown("overlaps").is_some() && !world.is_doubted("overlaps"));
}

#[test]
fn a_reused_inode_number_after_a_deletion_is_a_doubt_and_not_dropped() {
    let mut world = World::new();
    world.look(1, "a", exists(file(10, 1, 5)), Cause::Closed);
    world.pass(5);
    let gone = Interval { begin: world.at.minus(400), end: world.at.minus(100) };
    world.look_at(1, "a", Finding::Missing, Cause::Event, gone);
    assert!(world.shown("a").is_none());
    let overlap = Interval { begin: world.at.minus(200), end: world.at.minus(150) };
    world.look_at(2, "a", exists(file(10, 1, 5)), Cause::Closed, overlap);
    assert!(!world.is_doubted("a"), "the deleted state itself");
    world.look_at(2, "a", exists(Facts { ctime: 6, ..file(10, 1, 5) }), Cause::Closed, overlap);
    assert!(world.is_doubted("a") && world.shown("a").is_none());
}

#[test]
fn a_storage_clock_that_is_set_back_is_believed_to_a_forced_look_and_makes_a_suspect() {
    let mut world = World::new();
    world.look(1, "a", exists(file(10, 1, 5_000)), Cause::Closed);
    world.pass(2);
    world.look(2, "a", exists(file(10, 2, 100)), Cause::Event);
    let shown = world.shown("a").unwrap();
    assert_eq!(shown.facts.size, 2);
    assert!(shown.has(flag::SUSPECT) && shown.has(flag::SET_BACK));
    // From then on the ctime of this inode orders nothing: an old look with the higher ctime does not win.
    let old = Interval { begin: START.plus(1), end: START.plus(2) };
    world.look_at(3, "a", exists(file(10, 1, 5_000)), Cause::Event, old);
    assert_eq!(world.shown("a").unwrap().facts.size, 2);
}

#[test]
fn evidence_that_tombstones_may_have_outlived_is_refused() {
    let mut world = World::new();
    world.look(1, "d/a", exists(file(10, 1, 5)), Cause::Closed);
    world.pass(4_000);
    for (age, refused) in [(1_800, 0), (1_801, 1)] {
        let begin = world.at.minus(seconds(age));
        let told = world.look_at(
            1,
            "d/b",
            exists(file(11, 1, 5)),
            Cause::Closed,
            Interval { begin, end: begin },
        );
        assert_eq!(
            (told.too_old, told.relist.contains(&b"d"[..])),
            (refused, refused > 0),
            "{age}"
        );
        world.look(1, "d/b", Finding::Missing, Cause::Event);
    }
    let rules = Rules::default();
    assert!(rules.evidence_age_max < rules.tombstone_ttl);
}

#[test]
fn tombstones_expire_by_age() {
    let mut world = World::new();
    world.look(1, "a", exists(file(10, 1, 5)), Cause::Closed);
    world.look(1, "a", Finding::Missing, Cause::Event);
    assert_eq!(world.state.tree.sides.tombstones.len(), 1);
    world.pass(3_599);
    world.input(Input::Expired);
    assert_eq!(world.state.tree.sides.tombstones.len(), 1);
    world.pass(3);
    world.input(Input::Expired);
    assert!(world.state.tree.sides.tombstones.is_empty());
}

#[test]
fn a_vague_clock_deletes_nothing() {
    let mut world = World::new();
    world.look(1, "a", exists(file(10, 1, 5)), Cause::Closed);
    world.preamble.slack = seconds(2) + 1;
    world.pass(60);
    world.look(2, "a", Finding::Missing, Cause::Event);
    assert!(world.shown("a").is_some() && world.is_doubted("a"));
    world.preamble.slack = seconds(2);
    world.pass(60);
    world.look(2, "a", Finding::Missing, Cause::Event);
    assert!(world.shown("a").is_none() && !world.is_doubted("a"));
}

#[test]
fn a_renamed_directory_is_one_change_and_leaves_a_tombstone() {
    let mut world = World::new();
    world.list(
        Tier::Snapshot,
        "",
        &[("a", directory(20, 5)), ("c", directory(30, 5))],
        Trust::Complete,
    );
    for i in 0..50u64 {
        world.look(1, &format!("a/{i}"), exists(file(100 + i, 1, 5)), Cause::Closed);
    }
    let late = Interval { begin: world.at, end: world.at };
    let revision = world.state.feed.revision().0;
    world.pass(1);
    let during = Interval { begin: world.at.minus(2), end: world.at };
    let moved = Moved {
        from: b"a".to_vec(),
        to: b"c/b".to_vec(),
        at_from: Finding::Missing,
        at_to: exists(directory(20, 9)),
        during,
    };
    world.tell(1, Tier::Realtime, None, Record::Moved(moved));
    assert_eq!(world.state.feed.revision().0, revision + 1);
    assert!(world.shown("a").is_none() && world.shown("c/b/49").is_some());
    world.look_at(2, "a/7", exists(file(107, 1, 5)), Cause::Closed, late);
    assert!(world.shown("a").is_none());
    assert_eq!(ask::find(&world.state.tree, b"c/b").unwrap().coverage.unwrap().word(), "unlisted");
    assert_eq!(world.content().len(), 52);
}

#[test]
fn a_rename_of_another_inode_is_two_looks() {
    let mut world = World::new();
    world.look(1, "a", exists(file(10, 1, 5)), Cause::Closed);
    world.look(1, "b", exists(file(11, 1, 5)), Cause::Closed);
    world.pass(1);
    let during = Interval { begin: world.at.minus(2), end: world.at };
    let moved = Moved {
        from: b"a".to_vec(),
        to: b"b".to_vec(),
        at_from: exists(file(11, 1, 5)),
        at_to: exists(file(12, 3, 6)),
        during,
    };
    world.tell(1, Tier::Realtime, None, Record::Moved(moved));
    assert_eq!(world.shown("a").unwrap().facts.inode, 11);
    assert_eq!(world.shown("b").unwrap().facts.inode, 12);
}

#[test]
fn a_rename_over_a_file_and_an_exchange_of_two() {
    let mut world = World::new();
    world.look(1, "a", exists(file(10, 1, 5)), Cause::Closed);
    world.look(1, "b", exists(file(11, 1, 5)), Cause::Closed);
    for (from, to, at_from, at_to) in [
        // The exchange, as two pairs: each look finds the other file.
        ("a", "b", exists(file(11, 1, 6)), exists(file(10, 1, 6))),
        ("b", "a", exists(file(10, 1, 6)), exists(file(11, 1, 6))),
        // Then a over b.
        ("a", "b", Finding::Missing, exists(file(11, 1, 7))),
    ] {
        world.pass(1);
        let during = Interval { begin: world.at.minus(2), end: world.at };
        let (from, to) = (from.as_bytes().to_vec(), to.as_bytes().to_vec());
        world.tell(
            1,
            Tier::Realtime,
            None,
            Record::Moved(Moved { from, to, at_from, at_to, during }),
        );
    }
    assert_eq!(
        world.content().into_iter().map(|(p, f)| (p, f.inode)).collect::<Vec<_>>(),
        [(b"b".to_vec(), 11)]
    );
}

#[test]
fn a_file_that_becomes_a_directory_takes_its_content_with_it() {
    let mut world = World::new();
    world.list(Tier::Snapshot, "", &[("a", directory(20, 5))], Trust::Complete);
    world.look(1, "a/x", exists(file(21, 1, 5)), Cause::Closed);
    world.list(Tier::Audit, "", &[("a", file(22, 3, 9))], Trust::Complete);
    assert_eq!(world.content().len(), 1);
    assert_eq!(world.shown("a").unwrap().facts.entry_type, EntryType::File);
    assert!(matches!(world.state.feed.kept().last().unwrap().kind, ChangeKind::Replaced(_)));
    world.look(1, "a/new", exists(file(30, 1, 12)), Cause::Closed);
    assert_eq!(world.shown("a").unwrap().facts.entry_type, EntryType::Directory);
    assert_eq!(world.content().len(), 2);
}

#[test]
fn what_was_below_an_earlier_directory_does_not_come_back_below_the_next_one() {
    let mut world = World::new();
    let long_ago = Interval { begin: world.at, end: world.at };
    world.pass(5);
    world.look(1, "a", exists(file(10, 1, 5)), Cause::Closed);
    world.look(1, "a", exists(directory(11, 9)), Cause::Event);
    world.look_at(2, "a/x", exists(file(12, 1, 1)), Cause::Closed, long_ago);
    assert_eq!(world.content().len(), 1);
}

/// A file becomes a directory, and what was in that for a moment is gone before anybody tells of it.
#[test]
fn an_absence_also_stops_an_older_look_below_what_is_shown_as_a_file() {
    let at = |ticks: u64| Interval { begin: START.plus(ticks), end: START.plus(ticks + 1) };
    let missing_at = |during: Interval| {
        let mut world = World::new();
        world.pass(60);
        world.look_at(1, "c", exists(file(10, 1, 5)), Cause::Closed, at(100));
        world.look_at(2, "c/a", Finding::Missing, Cause::Event, during);
        let told = world.look_at(1, "c/a", exists(file(11, 1, 9)), Cause::Closed, at(200));
        let is_directory = world.shown("c").unwrap().facts.entry_type == EntryType::Directory;
        assert_eq!(world.is_doubted("c"), !is_directory, "it was a directory after it was a file");
        (world, told)
    };
    let (later, told) = missing_at(at(300));
    assert!(later.shown("c/a").is_none() && !later.is_doubted("c/a"));
    assert!(told.look.contains_key(&b"c"[..]));
    let (overlaps, _) = missing_at(at(201));
    assert!(overlaps.shown("c/a").is_none() && overlaps.is_doubted("c/a"));
    let (earlier, told) = missing_at(at(150));
    assert!(earlier.shown("c/a").is_some() && !earlier.is_doubted("c/a"));
    assert!(told.relist.contains(&b""[..]), "of the directory only the type is known");
}

/// What is below a directory shows when it was there, also after that is gone.
#[test]
fn a_directory_that_is_implied_does_not_go_with_what_is_older() {
    let at = |ticks: u64| Interval { begin: START.plus(ticks), end: START.plus(ticks + 1) };
    for older in [Finding::Missing, exists(file(12, 1, 3))] {
        let mut world = World::new();
        world.pass(60);
        world.look_at(1, "c/a", exists(file(11, 1, 5)), Cause::Closed, at(500));
        world.look_at(1, "c/a", Finding::Missing, Cause::Event, at(600));
        world.look_at(2, "c", older, Cause::Event, at(100));
        assert_eq!(world.shown("c").unwrap().facts.entry_type, EntryType::Directory);
        assert!(world.is_doubted("c"));
    }
}

/// The tombstone of a directory may be older than that of a name in it.
#[test]
fn a_name_that_was_found_gone_stays_gone_when_its_directory_goes() {
    let at = |ticks: u64| Interval { begin: START.plus(ticks), end: START.plus(ticks + 1) };
    let go: [&dyn Fn(&mut World); 3] = [
        &|world| {
            world.look_at(2, "c", Finding::Missing, Cause::Event, at(200));
        },
        &|world| {
            world.look_at(2, "c", exists(file(20, 1, 6)), Cause::Event, at(200));
        },
        &|world| {
            let moved = Moved {
                from: b"c".to_vec(),
                to: b"d".to_vec(),
                at_from: Finding::Missing,
                at_to: exists(directory(10, 5)),
                during: at(200),
            };
            world.tell(2, Tier::Realtime, None, Record::Moved(moved));
        },
    ];
    for (i, go) in go.iter().enumerate() {
        let mut world = World::new();
        world.pass(60);
        world.look_at(1, "c", exists(directory(10, 5)), Cause::Event, at(100));
        world.look_at(1, "c/x", exists(file(11, 1, 5)), Cause::Closed, at(110));
        world.look_at(1, "c/x", Finding::Missing, Cause::Event, at(500));
        go(&mut world);
        let is_directory =
            |e: tenure_files::tree::Entry| e.facts.entry_type == EntryType::Directory;
        assert!(!world.shown("c").is_some_and(is_directory), "{i}");
        world.look_at(3, "c/x", exists(file(12, 1, 5)), Cause::Closed, at(300));
        assert!(world.shown("c/x").is_none(), "{i}");
        // Where the directory is now, nobody looked for it.
        if world.shown("d").is_some() {
            world.look_at(3, "d/x", exists(file(12, 1, 5)), Cause::Closed, at(310));
            assert!(world.shown("d/x").is_some());
        }
    }
}

/// Two directories are exchanged: what was below the first one before does not come back below the second one.
#[test]
fn what_was_below_a_directory_that_moved_does_not_come_back_below_the_next_one() {
    let at = |ticks: u64| Interval { begin: START.plus(ticks), end: START.plus(ticks + 1) };
    let mut world = World::new();
    world.pass(60);
    world.look_at(1, "c", exists(directory(10, 5)), Cause::Event, at(100));
    let moved = Moved {
        from: b"c".to_vec(),
        to: b"d".to_vec(),
        at_from: exists(directory(20, 5)),
        at_to: exists(directory(10, 5)),
        during: at(300),
    };
    world.tell(1, Tier::Realtime, None, Record::Moved(moved));
    world.look_at(2, "c/x", exists(file(11, 1, 5)), Cause::Closed, at(200));
    let shown: Vec<_> = world.content().into_keys().collect();
    assert_eq!(shown, [b"c".to_vec(), b"d".to_vec()]);
    world.look_at(2, "c/x", exists(file(12, 1, 9)), Cause::Closed, at(400));
    assert!(world.shown("c/x").is_some());
}

/// The live lane overtakes the walk: a file is listed, deleted, and its deletion comes before the listing.
#[test]
fn a_listing_that_comes_after_a_later_deletion_of_what_it_names_adds_nothing() {
    let mut world = World::new();
    world.pass(60);
    let at = |ticks: u64| Interval { begin: START.plus(ticks), end: START.plus(ticks + 1) };
    for path in ["a", "d/x"] {
        world.look_at(1, path, Finding::Missing, Cause::Event, at(500));
    }
    world.list_at(
        1,
        Tier::Snapshot,
        None,
        "",
        &[("a", file(10, 1, 5)), ("d", directory(20, 5))],
        Trust::Complete,
        at(100),
    );
    world.list_at(
        1,
        Tier::Snapshot,
        None,
        "d",
        &[("x", file(11, 1, 5)), ("y", file(12, 1, 5))],
        Trust::Complete,
        at(110),
    );
    let shown: Vec<_> = world.content().into_keys().collect();
    assert_eq!(shown, [b"d".to_vec(), b"d/y".to_vec()]);
    world.look(1, "a", exists(file(13, 1, 9)), Cause::Closed);
    assert!(world.shown("a").is_some(), "it exists again");
}

fn braked(mode: BrakeMode) -> (World, Vec<String>) {
    let brake = BrakeRules { mode, percent: 10, least: 5 };
    let mut world = World::with(Rules { brake, ..Rules::default() });
    let names: Vec<String> = (0..40).map(|i| format!("f{i:02}")).collect();
    let entries: Vec<(&str, Facts)> = names.iter().map(|n| (n.as_str(), file(10, 1, 5))).collect();
    world.list(Tier::Snapshot, "", &entries, Trust::Complete);
    (world, names)
}

fn audit(world: &mut World, names: &[String], walk: u8) -> tenure_files::arbitrate::apply::Outcome {
    world.pass(1);
    let during = Interval { begin: world.at.minus(2), end: world.at.minus(1) };
    let entries: Vec<(&str, Facts)> = names.iter().map(|n| (n.as_str(), file(10, 1, 5))).collect();
    world.list_at(1, Tier::Audit, Some(walk), "", &entries, Trust::Complete, during)
}

fn end(world: &mut World, walk: u8) {
    let began = world.at.minus(500);
    let walk = EntityId::from_bytes([walk; 16]);
    world.input(Input::WalkEnded {
        walk,
        tier: Tier::Audit,
        began,
        outcome: WalkOutcome::Complete,
    });
}

#[test]
fn deletions_of_a_walk_wait_for_its_end_and_are_carried_out_within_the_limit() {
    let (mut world, names) = braked(BrakeMode::Twice);
    audit(&mut world, &names[5..], 1);
    assert_eq!(world.content().len(), 40);
    world.look(2, "f00", exists(file(10, 1, 5)), Cause::Event);
    end(&mut world, 1);
    assert_eq!(world.content().len(), 36, "what was seen meanwhile stays");
}

#[test]
fn deletions_above_the_limit_are_held_until_a_second_witness() {
    let (mut world, names) = braked(BrakeMode::Twice);
    let told = audit(&mut world, &names[6..], 1);
    assert!(matches!(told.attention[..], [Attention::BrakePulled { entries: 6, of: 40, .. }]));
    assert_eq!(told.look.len(), 6, "one forced look for each top");
    assert_eq!((world.content().len(), world.state.tree.sides.held.len()), (40, 6));
    world.look(2, "f00", Finding::Missing, Cause::Asked);
    assert_eq!(world.content().len(), 40, "too early");
    world.look(2, "f01", exists(file(10, 1, 5)), Cause::Asked);
    assert!(!world.shown("f01").unwrap().has(flag::HELD), "released");
    world.pass(60);
    world.look(2, "f00", Finding::Missing, Cause::Asked);
    assert!(world.shown("f00").is_none());
    audit(&mut world, &names[6..], 2);
    assert_eq!(world.state.tree.sides.held.len(), 0);
    end(&mut world, 2);
    assert_eq!(world.content().len(), 34);
}

#[test]
fn deletions_that_a_person_must_settle_are_forgotten_or_carried_out() {
    for delete in [false, true] {
        let (mut world, names) = braked(BrakeMode::Ask);
        audit(&mut world, &names[20..], 1);
        world.pass(600);
        audit(&mut world, &names[20..], 2);
        end(&mut world, 2);
        assert_eq!(world.content().len(), 40);
        world.input(Input::BrakeSettled { delete });
        assert_eq!(world.content().len(), if delete { 20 } else { 40 });
        assert!(world.state.tree.sides.held.is_empty());
    }
    let (mut world, names) = braked(BrakeMode::Off);
    audit(&mut world, &names[20..], 1);
    end(&mut world, 1);
    assert_eq!(world.content().len(), 20);
}

#[test]
fn deletions_that_were_seen_live_do_not_count() {
    let (mut world, names) = braked(BrakeMode::Ask);
    for name in &names {
        world.look(1, name, Finding::Missing, Cause::Event);
    }
    assert!(world.content().is_empty());
}

#[test]
fn excluded_names_are_never_judged_and_other_excludes_make_a_listing_partial() {
    let mut world = World::new();
    world.list(Tier::Snapshot, "", &[("a", file(10, 1, 5))], Trust::Complete);
    world.look(1, ".nfs0001", exists(file(11, 1, 5)), Cause::Closed);
    assert!(world.shown(".nfs0001").is_none());
    world.preamble.excludes ^= 1;
    world.list(Tier::Audit, "", &[], Trust::Complete);
    world.list(Tier::Audit, "", &[("b", file(12, 1, 5))], Trust::Complete);
    assert!(world.shown("a").is_some() && world.shown("b").is_some());
}

#[test]
fn a_full_tree_refuses_new_names_and_deletes_nothing() {
    let mut world = World::with(Rules { entries_max: 2, ..Rules::default() });
    let told = world.list(
        Tier::Snapshot,
        "",
        &[("a", file(10, 1, 5)), ("b", file(11, 1, 5)), ("c", file(12, 1, 5))],
        Trust::Complete,
    );
    assert_eq!(told.attention, [Attention::TreeFull]);
    assert_eq!(world.content().len(), 2);
    assert_eq!(ask::find(&world.state.tree, b"c"), Err(NotFound::NotKnownYet));
    world.list(Tier::Audit, "", &[("c", file(12, 1, 5))], Trust::Complete);
    assert!(world.shown("a").is_some());
    world.look(1, "a", Finding::Missing, Cause::Event);
    world.list(Tier::Audit, "", &[("b", file(11, 1, 5)), ("c", file(12, 1, 5))], Trust::Complete);
    assert!(world.shown("c").is_some());
}

#[test]
fn on_storage_that_folds_case_a_live_look_lists_the_directory() {
    let mut world = World::with(Rules { case_folding: true, ..Rules::default() });
    let told = world.look(1, "README", exists(file(10, 1, 5)), Cause::Closed);
    assert!(world.shown("README").is_none() && told.relist.contains(&b""[..]));
    world.list(Tier::Region, "", &[("readme", file(10, 1, 5))], Trust::Complete);
    assert!(world.shown("readme").is_some());
}

#[test]
fn blind_spots_say_why() {
    let mut world = World::new();
    let ended = Input::WalkEnded {
        walk: EntityId::from_bytes([1; 16]),
        tier: Tier::Snapshot,
        began: world.at,
        outcome: WalkOutcome::Complete,
    };
    let base = [("d", directory(20, 5)), ("e", directory(21, 5)), ("f", directory(22, 5))];
    world.list(Tier::Snapshot, "", &base, Trust::Complete);
    assert!(!world.shown("d").unwrap().has(flag::BLIND), "not in the first snapshot");
    world.input(ended);
    let during = Interval { begin: world.at, end: world.at };
    for path in ["e", "f"] {
        let path = path.as_bytes().to_vec();
        world.tell(1, Tier::Realtime, None, Record::Cover { path, watched: true, during });
    }
    world.tell(
        1,
        Tier::Realtime,
        None,
        Record::Dirty { path: b"f".to_vec(), subtree: false, during },
    );
    for path in ["d", "e", "f"] {
        world.list(Tier::Audit, path, &[("x", file(30, 1, 6))], Trust::Complete);
    }
    let causes: Vec<_> = ask::lists::blind_spots(&world.state.tree, None, 10).items;
    let causes: Vec<_> = causes.into_iter().map(|(_, spot)| spot.cause).collect();
    assert_eq!(causes, [BlindCause::NotWatched, BlindCause::NobodySaw, BlindCause::Overflow]);
    world.look(1, "d/x", exists(file(30, 2, 7)), Cause::Closed);
    assert!(!world.shown("d/x").unwrap().has(flag::BLIND), "seen live");
}

#[test]
fn the_higher_tier_is_shown_while_a_doubt_is_open() {
    let mut world = World::new();
    world.pass(10);
    let during = Interval { begin: world.at.minus(100), end: world.at.minus(50) };
    world.list_at(1, Tier::Snapshot, None, "", &[("a", file(10, 1, 5))], Trust::Racy, during);
    world.look_at(2, "a", exists(file(11, 2, 4)), Cause::Closed, during);
    assert_eq!(world.shown("a").unwrap().facts.inode, 11);
    assert!(world.is_doubted("a"));
    world.list_at(3, Tier::Audit, None, "", &[("a", file(10, 1, 5))], Trust::Racy, during);
    assert_eq!(world.shown("a").unwrap().facts.inode, 11);
}

#[test]
fn what_is_shown_in_doubt_is_not_deleted_by_what_is_older_than_the_other_state() {
    let mut world = World::new();
    world.pass(10);
    let at = |ticks: u64| Interval { begin: START.plus(ticks), end: START.plus(ticks + 1) };
    world.list_at(1, Tier::Audit, None, "", &[("a", file(10, 1, 5))], Trust::Racy, at(900));
    world.look_at(2, "a", exists(file(11, 2, 4)), Cause::Closed, at(300));
    assert_eq!(world.shown("a").unwrap().facts.inode, 11, "the live one, in doubt");
    world.look_at(2, "a", Finding::Missing, Cause::Event, at(500));
    world.look_at(3, "a", Finding::Missing, Cause::Event, at(600));
    assert!(world.shown("a").is_some() && world.is_doubted("a"), "it was listed at 900");
}

#[test]
fn a_next_state_of_what_is_shown_in_doubt_is_taken_and_leaves_the_doubt() {
    let mut world = World::new();
    world.pass(10);
    let at = |ticks: u64| Interval { begin: START.plus(ticks), end: START.plus(ticks + 1) };
    world.list_at(1, Tier::Audit, None, "", &[("a", file(10, 1, 5))], Trust::Racy, at(900));
    world.look_at(2, "a", exists(file(11, 2, 4)), Cause::Closed, at(300));
    world.look_at(2, "a", exists(file(11, 3, 6)), Cause::Closed, at(400));
    assert_eq!(world.shown("a").unwrap().facts.size, 3);
    world.look_at(2, "a", Finding::Missing, Cause::Event, at(500));
    assert!(world.shown("a").is_some() && world.is_doubted("a"), "it was listed at 900");
}

#[test]
fn a_scout_from_the_future_does_not_block_what_comes_after() {
    let mut world = World::new();
    let ahead = world.at.plus(seconds(7_200));
    world.look_at(
        1,
        "a",
        exists(file(10, 1, 5)),
        Cause::Closed,
        Interval { begin: ahead, end: ahead },
    );
    assert!(world.shown("a").unwrap().seen <= world.at);
    world.pass(2);
    world.look(2, "a", Finding::Missing, Cause::Event);
    assert!(world.shown("a").is_none());
}

#[test]
fn an_attribute_cache_makes_a_look_older() {
    let mut world = World::new();
    world.look(1, "a", exists(file(10, 1, 5)), Cause::Closed);
    world.preamble.cache = seconds(60);
    let unforced = |world: &mut World| {
        world.pass(30);
        let during = Interval { begin: world.at.minus(2), end: world.at.minus(1) };
        let path = b"a".to_vec();
        let look =
            Look { path, finding: Finding::Missing, forced: false, cause: Cause::Event, during };
        world.tell(2, Tier::Realtime, None, Record::Look(look));
    };
    unforced(&mut world);
    assert!(world.shown("a").is_some() && world.is_doubted("a"));
    unforced(&mut world);
    unforced(&mut world);
    assert!(world.shown("a").is_none());
}

/// That a name is missing may be as old as the cache too.
#[test]
fn a_deletion_out_of_a_cache_does_not_drop_what_was_seen_before_it() {
    let at = |ticks: u64| Interval { begin: START.plus(ticks), end: START.plus(ticks + 1) };
    for was_known in [false, true] {
        let mut world = World::new();
        world.pass(60);
        if was_known {
            world.look_at(1, "a", exists(file(10, 1, 5)), Cause::Closed, at(100));
        }
        world.preamble.cache = 500;
        let missing = |world: &mut World, forced: bool, during: Interval| {
            let (path, finding, cause) = (b"a".to_vec(), Finding::Missing, Cause::Event);
            let look = Look { path, finding, forced, cause, during };
            world.tell(2, Tier::Realtime, None, Record::Look(look));
        };
        missing(&mut world, false, at(1_000));
        assert!(world.shown("a").is_none());
        world.look_at(1, "a", exists(file(11, 1, 9)), Cause::Closed, at(400));
        assert!(!world.is_doubted("a"), "before the oldest answer of the cache");
        world.look_at(1, "a", exists(file(11, 1, 9)), Cause::Closed, at(700));
        assert!(world.shown("a").is_none() && world.is_doubted("a"), "{was_known}");
        missing(&mut world, false, at(1_100));
        assert!(world.is_doubted("a"), "the cache may be older than the doubt");
        missing(&mut world, true, at(1_110));
        assert!(!world.is_doubted("a"));
    }
}

/// A listing of a directory with more entries than one frame has.
#[test]
fn a_listing_in_parts_deletes_who_was_in_none_of_them() {
    let mut world = World::new();
    let names = ["a", "b", "c", "d"];
    let entries: Vec<(&str, Facts)> = names.iter().map(|n| (*n, file(10, 1, 5))).collect();
    world.list(Tier::Snapshot, "", &entries, Trust::Complete);
    world.pass(10);
    let begin = world.at;
    for (names, end) in [(&["a"][..], None), (&["c"][..], Some(Trust::Complete))] {
        world.pass(1);
        let entries = names.iter().map(|name| tenure_files::wire::Listed {
            name: name.as_bytes().to_vec(),
            facts: Some(file(10, 1, 5)),
        });
        let listing = tenure_files::wire::Listing {
            path: Vec::new(),
            during: Interval { begin, end: world.at },
            directory: directory(2, 5),
            entries: entries.collect(),
            end,
            is_whole: false,
        };
        world.tell(1, Tier::Audit, None, Record::Listing(listing));
        if end.is_none() {
            let between = Interval { begin: world.at, end: world.at };
            world.look_at(2, "d", exists(file(10, 1, 5)), Cause::Event, between);
        }
    }
    assert!(world.shown("a").is_some() && world.shown("c").is_some());
    assert!(world.shown("b").is_none());
    assert!(world.shown("d").is_some() && world.is_doubted("d"));
}

/// A protection that is switched off lets the damage through that it prevents.
#[test]
fn each_protection_is_noticed_when_it_is_off() {
    let off = |change: fn(&mut Protections)| {
        let mut rules = Rules::default();
        change(&mut rules.protections);
        World::with(rules)
    };
    let mut world = off(|p| p.certificates = false);
    world.list(
        Tier::Snapshot,
        "",
        &[("a", file(10, 1, 5)), ("b", file(11, 1, 5))],
        Trust::Complete,
    );
    world.list(Tier::Audit, "", &[("a", file(10, 1, 5))], Trust::Partial);
    assert!(world.shown("b").is_none());

    let mut world = off(|p| p.tombstones = false);
    world.look(1, "a", exists(file(10, 1, 5)), Cause::Closed);
    let before = Interval { begin: world.at, end: world.at };
    world.pass(1);
    world.look(1, "a", Finding::Missing, Cause::Event);
    world.look_at(2, "a", exists(file(10, 1, 5)), Cause::Closed, before);
    assert!(world.shown("a").is_some());

    let mut world = off(|p| p.root = false);
    world.look(1, "a", exists(file(10, 1, 5)), Cause::Closed);
    world.preamble.root.inode = 99;
    world.look(1, "a", Finding::Missing, Cause::Event);
    assert!(world.shown("a").is_none());

    let mut world = off(|p| p.intervals = false);
    world.look(1, "a", exists(file(10, 1, 5)), Cause::Closed);
    let before = Interval { begin: START, end: START };
    world.look_at(2, "a", Finding::Missing, Cause::Event, before);
    assert!(world.shown("a").is_none());

    let mut world = off(|p| p.too_old = false);
    world.pass(4_000);
    let before = Interval { begin: START, end: START };
    let told = world.look_at(2, "a", exists(file(10, 1, 5)), Cause::Event, before);
    assert_eq!((told.too_old, world.shown("a").is_some()), (0, true));

    let mut world = off(|p| p.brake = false);
    world.list(Tier::Snapshot, "", &[("a", file(10, 1, 5))], Trust::Complete);
    world.list(Tier::Audit, "", &[], Trust::Complete);
    assert!(world.shown("a").is_none());
    assert_eq!(EntityId::from_bytes(TREE), world.state.feed.tree());
    assert!(Tick::ZERO < world.at);
}
