use super::*;
use crate::{
    report::{PodName, Report, TerminatedReason},
    verdict::{TaskStatus, Verdict},
};
use proptest::prelude::*;
use std::path::Path;

const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);
const BOTH: &[SinkId] = &[SinkId::Channel, SinkId::Server];

fn saying(n: u64, status: TaskStatus) -> Saying {
    let verdict = Verdict {
        status: Some(status),
        rule: "r".into(),
        since: Some(NOW + Duration::from_secs(n)),
        message: "m".repeat(200),
        ..Verdict::default()
    };
    Saying {
        report: Report {
            task_id: format!("t-{n}"),
            workflow_id: "w".into(),
            tenant_id: String::new(),
            pod: PodName {
                namespace: "n".into(),
                name: format!("p-{n}"),
                uid: format!("u-{n}"),
                node: None,
            },
            attempt: Some(1),
            over: status.is_final(),
            verdict,
            gone: false,
            inferred: false,
            terminated_reason: None,
            result: None,
            seen_at: NOW,
            collector: "c".into(),
        },
        channel: true,
        server: true,
    }
}

fn runs(n: u64) -> Saying {
    saying(n, TaskStatus::Running)
}

fn fails(n: u64) -> Saying {
    saying(n, TaskStatus::Failed)
}

fn options(directory: Option<&Path>, bytes_max: u64) -> SpoolOptions {
    SpoolOptions {
        directory: directory.map(Path::to_owned),
        bytes_max,
        sync: SyncWhen::Never,
        ..SpoolOptions::default()
    }
}

fn open(directory: &Path) -> (Spool, Vec<Mark>) {
    Spool::open(options(Some(directory), 1024 * 1024), BOTH).unwrap()
}

fn tasks(spool: &mut Spool, sink: SinkId) -> Vec<String> {
    spool.batch(sink, 1_000).into_iter().map(|o| o.saying.report.task_id).collect()
}

#[test]
fn each_sink_takes_everything_in_order_at_its_own_pace() {
    let (mut spool, _) = Spool::open(options(None, 1024 * 1024), BOTH).unwrap();
    spool.push(&[runs(1), fails(2)], NOW).unwrap();
    let mut gone = fails(3);
    gone.channel = false;
    spool.push(&[gone, runs(4)], NOW).unwrap();
    assert_eq!(tasks(&mut spool, SinkId::Channel), ["t-1", "t-2", "t-4"]);
    assert_eq!(tasks(&mut spool, SinkId::Server), ["t-1", "t-2", "t-3", "t-4"]);
    let two = spool.batch(SinkId::Server, 2)[1].seq;
    spool.settle(SinkId::Server, two);
    assert_eq!(tasks(&mut spool, SinkId::Server), ["t-3", "t-4"]);
    assert_eq!((spool.state().depth, spool.is_settled(SinkId::Server)), (4, false));
    let last = spool.batch(SinkId::Channel, 9)[2].seq;
    spool.settle(SinkId::Channel, last);
    assert_eq!(spool.state().depth, 2);
    let last = spool.batch(SinkId::Server, 9)[1].seq;
    spool.settle(SinkId::Server, last);
    let state = spool.state();
    assert_eq!((state.depth, state.bytes, state.oldest), (0, 0, None));
}

#[test]
fn what_nobody_wants_is_not_kept() {
    let (mut spool, _) = Spool::open(options(None, 1024 * 1024), &[SinkId::Channel]).unwrap();
    let mut gone = fails(3);
    gone.channel = false;
    spool.push(&[gone], NOW).unwrap();
    assert_eq!(spool.state().depth, 0);
}

#[test]
fn a_restart_goes_on_where_each_sink_was() {
    let directory = tempfile::tempdir().unwrap();
    let (mut spool, marks) = open(directory.path());
    assert!(marks.is_empty());
    spool.push(&[runs(1), runs(2), fails(1)], NOW).unwrap();
    let first = spool.batch(SinkId::Server, 9)[0].seq;
    spool.settle(SinkId::Server, first);
    drop(spool);
    let (mut spool, marks) = open(directory.path());
    assert_eq!(tasks(&mut spool, SinkId::Channel), ["t-1", "t-2", "t-1"]);
    assert_eq!(tasks(&mut spool, SinkId::Server), ["t-2", "t-1"]);
    let known: Vec<(&str, bool)> = marks.iter().map(|m| (m.uid.as_str(), m.over)).collect();
    assert_eq!(known, [("u-1", true), ("u-2", false)]);
    assert_eq!(marks[0].said, fails(1).report.key());
    spool.push(&[runs(3)], NOW).unwrap();
    assert_eq!(tasks(&mut spool, SinkId::Server), ["t-2", "t-1", "t-3"]);
}

#[test]
fn a_torn_end_is_cut_off_and_written_over() {
    let directory = tempfile::tempdir().unwrap();
    let (mut spool, _) = open(directory.path());
    spool.push(&[runs(1)], NOW).unwrap();
    spool.push(&[runs(2)], NOW).unwrap();
    drop(spool);
    let file = std::fs::read_dir(directory.path())
        .unwrap()
        .map(|e| e.unwrap().path())
        .find(|p| p.extension().is_some_and(|e| e == "spool"))
        .unwrap();
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() - 3]).unwrap();
    let (mut spool, _) = open(directory.path());
    assert!(spool.state().lost_bytes > 0);
    assert_eq!(tasks(&mut spool, SinkId::Server), ["t-1"]);
    spool.push(&[runs(3)], NOW).unwrap();
    drop(spool);
    let (mut spool, _) = open(directory.path());
    assert_eq!(spool.state().lost_bytes, 0);
    assert_eq!(tasks(&mut spool, SinkId::Server), ["t-1", "t-3"]);
}

#[test]
fn a_file_that_is_not_ours_is_put_aside() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("00000000000000000007.spool"), b"something else").unwrap();
    std::fs::write(directory.path().join("marks"), b"nonsense").unwrap();
    let (mut spool, marks) = open(directory.path());
    assert!(marks.is_empty() && spool.state().lost_bytes > 0);
    spool.push(&[runs(1)], NOW).unwrap();
    drop(spool);
    assert_eq!(tasks(&mut open(directory.path()).0, SinkId::Server), ["t-1"]);
    assert!(directory.path().join("00000000000000000007.damaged").exists());
}

#[test]
fn a_gone_pod_is_not_known_any_more() {
    let directory = tempfile::tempdir().unwrap();
    let (mut spool, _) = open(directory.path());
    let mut gone = fails(1);
    gone.report.gone = true;
    gone.report.terminated_reason = Some(TerminatedReason::ExternalDelete);
    spool.push(&[runs(1), runs(2), gone], NOW).unwrap();
    drop(spool);
    let uids: Vec<String> = open(directory.path()).1.into_iter().map(|m| m.uid).collect();
    assert_eq!(uids, ["u-2"]);
}

#[test]
fn marks_are_newer_than_what_was_said_before_them() {
    let directory = tempfile::tempdir().unwrap();
    let (mut spool, _) = open(directory.path());
    spool.push(&[runs(1)], NOW).unwrap();
    let mark = Mark {
        uid: "u-1".into(),
        task: "t-1".into(),
        workflow: "w".into(),
        tenant: String::new(),
        attempt: None,
        said: "later".into(),
        over: true,
        facts: "{}".into(),
        last: None,
    };
    spool.keep(&mut [mark.clone()].into_iter());
    drop(spool);
    let (mut spool, marks) = open(directory.path());
    assert_eq!(marks, [mark]);
    spool.push(&[runs(1)], NOW).unwrap();
    drop(spool);
    assert_eq!(open(directory.path()).1[0].said, runs(1).report.key());
}

#[test]
fn what_was_said_while_marks_were_written_makes_none_of_them_older() {
    let directory = tempfile::tempdir().unwrap();
    let (mut spool, _) = open(directory.path());
    assert!(spool.begin_marks());
    assert!(spool.add_marks(&mut [mark_of(&runs(1)), mark_of(&runs(2))].into_iter()));
    spool.push(&[fails(1), runs(3)], NOW).unwrap();
    // Held back, and in no file but this: its pod has gone on since it was said to run.
    let held_back = Mark { said: String::new(), ..mark_of(&fails(3)) };
    assert!(spool.add_marks(&mut [held_back.clone()].into_iter()));
    assert!(spool.end_marks());
    drop(spool);
    let (_, marks) = open(directory.path());
    assert_eq!(marks.iter().map(|m| m.over).collect::<Vec<_>>(), [true, false, true]);
    assert_eq!(marks[2], held_back);
}

#[test]
fn files_that_nobody_needs_are_removed_once_the_marks_know_what_was_in_them() {
    let directory = tempfile::tempdir().unwrap();
    let small = || options(Some(directory.path()), 256 * 1024);
    let (mut spool, _) = Spool::open(small(), BOTH).unwrap();
    let mut rotations = 0;
    for n in 0..2_000 {
        spool.push(&[runs(n)], NOW).unwrap();
        for sink in BOTH {
            let seq = spool.batch(*sink, 1)[0].seq;
            spool.settle(*sink, seq);
        }
        if spool.wants_marks() {
            rotations += 1;
            spool.keep(&mut std::iter::empty());
        }
    }
    let state = spool.state();
    assert!(rotations > 10 && state.disk_bytes < 64 * 1024, "{rotations} {state:?}");
    let files = std::fs::read_dir(directory.path()).unwrap().count();
    assert!(files <= 4, "{files}");
}

#[test]
fn when_it_is_full_hints_go_first_then_states_and_never_an_end() {
    for directory in [None, Some(tempfile::tempdir().unwrap())] {
        let path = directory.as_ref().map(tempfile::TempDir::path);
        let (mut spool, _) = Spool::open(options(path, 64 * 1024), BOTH).unwrap();
        let mut n = 0;
        while spool.push(&[runs(n), fails(n + 1)], NOW).is_ok() {
            n += 2;
        }
        assert!(spool.state().full);
        // The server has taken some: their hints go, and nothing is lost by it.
        let some = spool.batch(SinkId::Server, 40)[39].seq;
        spool.settle(SinkId::Server, some);
        assert!(spool.relieve(&mut std::iter::empty()).is_empty());
        let state = spool.state();
        assert!(state.dropped_hints > 0 && state.dropped == 0, "{state:?}");
        // When those are gone: states that nobody has taken.
        let mut dropped = Vec::new();
        for _ in 0..20 {
            while spool.push(&[fails(n)], NOW).is_ok() {
                n += 1;
            }
            dropped = spool.relieve(&mut std::iter::empty());
            if !dropped.is_empty() {
                break;
            }
        }
        assert!(!dropped.is_empty(), "{:?}", spool.state());
        assert!(dropped.iter().all(|s| !s.is_final()));
        loop {
            match spool.push(&[fails(n)], NOW) {
                Ok(()) => n += 1,
                Err(Full) => {
                    spool.relieve(&mut std::iter::empty());
                    if spool.push(&[fails(n)], NOW).is_err() {
                        break;
                    }
                    n += 1;
                }
            }
        }
        // Nothing but ends is left, and every end that the server has not taken is there.
        let owed = spool.batch(SinkId::Server, 10_000);
        assert!(owed.iter().all(|o| o.saying.is_final()));
        // What waits takes the room, on disk too: not what was let go.
        let state = spool.state();
        assert!(state.full && state.bytes > 64 * 1024 / 8 * 7 - 1_024, "{state:?}");
        assert!(state.disk_bytes <= 64 * 1024, "{state:?}");
        let last = owed.last().unwrap().seq;
        spool.settle(SinkId::Server, last);
        spool.settle(SinkId::Channel, last);
        spool.relieve(&mut std::iter::empty());
        spool.push(&[fails(n)], NOW).unwrap();
        assert!(!spool.state().full);
    }
}

/// A spool that is full of ends with a state between every two of them, which nobody has taken.
fn full_of_both(directory: &Path) -> (Spool, Vec<Saying>) {
    let (mut spool, _) = Spool::open(options(Some(directory), 64 * 1024), BOTH).unwrap();
    let mut pushed = Vec::new();
    let mut n = 0;
    loop {
        let two = [runs(n), fails(n + 1)];
        if spool.push(&two, NOW).is_err() {
            return (spool, pushed);
        }
        pushed.extend(two);
        if spool.wants_marks() {
            spool.keep(&mut pushed.iter().map(mark_of));
        }
        n += 2;
    }
}

fn mark_of(saying: &Saying) -> Mark {
    let mut marks = BTreeMap::new();
    saying.mark_in(&mut marks);
    marks.into_values().next().unwrap()
}

#[test]
fn files_are_written_anew_when_what_was_let_go_takes_the_room() {
    let directory = tempfile::tempdir().unwrap();
    let (mut spool, pushed) = full_of_both(directory.path());
    let before = spool.state();
    let dropped = spool.relieve(&mut pushed.iter().map(mark_of));
    let after = spool.state();
    assert!(!dropped.is_empty() && dropped.len() * 2 < pushed.len(), "{after:?}");
    // No file is half empty, and still the room of what was dropped is there.
    let given_back = before.disk_bytes - after.disk_bytes;
    assert!(given_back >= before.bytes - after.bytes - 1_024, "{before:?} {after:?}");
    spool.push(&[fails(10_000)], NOW).unwrap();
    let expected: Vec<String> = pushed
        .iter()
        .filter(|s| !dropped.contains(s))
        .map(|s| s.report.task_id.clone())
        .chain(["t-10000".to_owned()])
        .collect();
    assert_eq!(tasks(&mut spool, SinkId::Server), expected);
    drop(spool);
    let (mut spool, marks) = Spool::open(options(Some(directory.path()), 64 * 1024), BOTH).unwrap();
    assert_eq!(tasks(&mut spool, SinkId::Channel), expected);
    assert_eq!(marks.len(), pushed.len() + 1);
}

/// Killed before any change of the directory that making room is made of: every end is owed once and in order, no state twice,
/// and every pod is known.
#[test]
fn a_kill_at_any_point_of_making_room_loses_and_doubles_nothing() {
    const TAKEN: usize = 5;
    for lives in 0.. {
        let directory = tempfile::tempdir().unwrap();
        let (mut spool, pushed) = full_of_both(directory.path());
        // Some of it is taken, so that the cursors have to survive too.
        let seq = spool.batch(SinkId::Server, TAKEN)[TAKEN - 1].seq;
        spool.settle(SinkId::Server, seq);
        // So much is wanted that several files have to be written anew.
        let wanted: Vec<Saying> = (0..35).map(|n| fails(20_000 + n)).collect();
        spool.push(&wanted, NOW).unwrap_err();
        if let Some(disk) = &mut spool.disk {
            disk.lives = Some(lives);
        }
        let dropped = spool.relieve(&mut pushed.iter().map(mark_of));
        let survived = spool.disk.as_ref().is_some_and(|d| d.lives > Some(0));
        drop(spool);
        for file in std::fs::read_dir(directory.path()).unwrap() {
            let path = file.unwrap().path();
            if path.extension().is_some_and(|e| e == "new") {
                // A machine that dies leaves any part of what was not synced.
                let bytes = std::fs::read(&path).unwrap();
                std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
            }
        }
        let again = || Spool::open(options(Some(directory.path()), 64 * 1024), BOTH).unwrap();
        let (mut spool, marks) = again();
        assert_eq!(spool.state().lost_bytes, 0);
        assert_eq!(marks.len(), pushed.len(), "with {lives} lives");
        for sink in BOTH {
            let skip = if *sink == SinkId::Server { TAKEN } else { 0 };
            let owed = spool.batch(*sink, 10_000);
            let mut left = pushed.iter().skip(skip);
            for owed in &owed {
                // Each is found behind the one before it: in order, and none twice.
                assert!(left.any(|s| *s == owed.saying), "with {lives} lives: {owed:?}");
            }
            let ends = |s: &&Saying| s.is_final();
            let expected = pushed.iter().skip(TAKEN).filter(ends).count();
            assert!(owed.iter().filter(|o| o.saying.is_final()).count() >= expected);
            let gone = pushed.iter().skip(TAKEN).filter(|s| !owed.iter().any(|o| o.saying == **s));
            assert!(gone.into_iter().all(|s| dropped.contains(s)), "with {lives} lives");
        }
        drop(spool);
        let left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().flatten().collect();
        assert!(left.iter().all(|f| f.path().extension().is_none_or(|e| e != "new")));
        if survived {
            assert!(lives > 15, "{lives}: files were written anew");
            return;
        }
    }
}

/// Marks are written in pieces, and between two of them more is pushed about pods that are in them already and about others, and taken. Killed
/// before any change of the directory: what was said last is known of every pod, and what is owed is owed.
#[test]
fn a_kill_at_any_point_of_marks_in_pieces_forgets_nothing() {
    const PODS: u64 = 60;
    const TAKEN: usize = 50;
    for lives in 0.. {
        let directory = tempfile::tempdir().unwrap();
        let small = || options(Some(directory.path()), 512 * 1024);
        let (mut spool, _) = Spool::open(small(), BOTH).unwrap();
        let (mut known, mut pushed) = (BTreeMap::new(), Vec::new());
        for n in 0..PODS {
            spool.push(&[runs(n)], NOW).unwrap();
            runs(n).mark_in(&mut known);
            pushed.push(runs(n));
        }
        assert!(spool.wants_marks(), "files would be removed");
        for sink in BOTH {
            let seq = spool.batch(*sink, TAKEN)[TAKEN - 1].seq;
            spool.settle(*sink, seq);
        }
        if let Some(disk) = &mut spool.disk {
            disk.lives = Some(lives);
        }
        let alive = |spool: &Spool| spool.disk.as_ref().is_some_and(|d| d.lives > Some(0));
        spool.begin_marks();
        let (mut behind, mut n) = (String::new(), 0);
        while alive(&spool) {
            let next = known.range::<str, _>((
                std::ops::Bound::Excluded(behind.as_str()),
                std::ops::Bound::Unbounded,
            ));
            let piece: Vec<Mark> = next.take(7).map(|(_, mark)| mark.clone()).collect();
            let Some(last) = piece.last() else { break };
            behind.clone_from(&last.uid);
            spool.add_marks(&mut piece.into_iter());
            let mut more = [fails(n), fails(PODS - 1 - n)];
            more[1].report.gone = true;
            if alive(&spool) {
                spool.push(&more, NOW).unwrap();
                more.iter().for_each(|saying| saying.mark_in(&mut known));
                pushed.extend(more);
            }
            n += 1;
        }
        let survived = alive(&spool) && spool.end_marks() && alive(&spool);
        drop(spool);
        let (mut spool, marks) = Spool::open(small(), BOTH).unwrap();
        let said = |m: &Mark| (m.uid.clone(), m.said.clone(), m.over);
        let expected: Vec<_> = known.values().map(said).collect();
        assert_eq!(marks.iter().map(said).collect::<Vec<_>>(), expected, "with {lives} lives");
        for sink in BOTH {
            let owed: Vec<Saying> =
                spool.batch(*sink, 1_000).into_iter().map(|o| o.saying).collect();
            assert_eq!(owed, pushed[TAKEN..], "with {lives} lives");
        }
        if survived {
            assert!(lives > 15 && n > 5, "{lives}: it was killed in between");
            let files = std::fs::read_dir(directory.path()).unwrap().flatten();
            let files = files.filter(|f| f.path().extension().is_some_and(|e| e == "spool"));
            assert_eq!(files.count(), 2, "one is full of what is owed, and one is written to");
            return;
        }
    }
}

#[test]
fn room_that_has_to_be_made_gives_up_marks_in_pieces_and_leaves_whole_ones() {
    let directory = tempfile::tempdir().unwrap();
    let (mut spool, pushed) = full_of_both(directory.path());
    assert!(spool.begin_marks());
    assert!(spool.add_marks(&mut pushed.iter().take(1).map(mark_of)));
    spool.relieve(&mut pushed.iter().map(mark_of));
    assert!(!spool.add_marks(&mut std::iter::empty()), "it has to be begun again");
    drop(spool);
    let again = Spool::open(options(Some(directory.path()), 64 * 1024), BOTH).unwrap();
    assert_eq!(again.1.len(), pushed.len());
}

#[test]
fn what_is_too_old_is_not_worth_telling_unless_it_is_an_end() {
    let (mut spool, _) = Spool::open(options(None, 1024 * 1024), BOTH).unwrap();
    spool.push(&[runs(1), fails(2)], NOW).unwrap();
    let later = NOW + SpoolOptions::default().age_max + Duration::from_secs(1);
    spool.push(&[runs(3)], later).unwrap();
    let dropped = spool.expire(later);
    assert_eq!(dropped.len(), 1);
    assert_eq!(tasks(&mut spool, SinkId::Server), ["t-2", "t-3"]);
    let end = spool.batch(SinkId::Server, 1)[0].seq;
    spool.settle(SinkId::Server, end);
    assert!(spool.expire(later).is_empty());
    assert_eq!(tasks(&mut spool, SinkId::Channel), ["t-3"], "a hint that the server has taken");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Pushed, settled and reopened in any order: every sink is given everything it has not settled, once, in order.
    #[test]
    fn nothing_is_lost_and_nothing_overtakes(steps in proptest::collection::vec((0u8..4, 1usize..6), 1..40)) {
        let directory = tempfile::tempdir().unwrap();
        let small = || options(Some(directory.path()), 4 * 1024 * 1024);
        let (mut spool, _) = Spool::open(small(), BOTH).unwrap();
        let (mut pushed, mut settled) = (0u64, [0u64; 2]);
        for (what, count) in steps {
            match what {
                0 => {
                    let batch: Vec<Saying> = (0..count as u64).map(|i| runs(pushed + i)).collect();
                    spool.push(&batch, NOW).unwrap();
                    pushed += count as u64;
                }
                1 | 2 => {
                    let sink = BOTH[usize::from(what) - 1];
                    let batch = spool.batch(sink, count);
                    if let Some(last) = batch.last() {
                        spool.settle(sink, last.seq);
                        settled[sink as usize] += batch.len() as u64;
                    }
                }
                _ => {
                    spool.keep(&mut std::iter::empty());
                    drop(spool);
                    spool = Spool::open(small(), BOTH).unwrap().0;
                }
            }
            for sink in BOTH {
                let expected: Vec<String> = (settled[*sink as usize]..pushed).map(|n| format!("t-{n}")).collect();
                prop_assert_eq!(tasks(&mut spool, *sink), expected);
            }
        }
    }
}
