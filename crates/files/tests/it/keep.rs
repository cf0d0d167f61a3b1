//! The log and the snapshots on a disk that tears and drops writes: what was acknowledged survives a crash at every call.

use crate::support::{START, TREE, Trust, World, content, directory, file};
use std::{cell::RefCell, collections::BTreeMap, io, os::unix::fs::PermissionsExt, rc::Rc};
use tenure_files::{
    arbitrate::{
        Rules,
        apply::{Input, SourceState, WalkOutcome},
        brake::{BrakeMode, BrakeRules},
    },
    keep::{
        KeepError, Keeper, Open,
        disk::{DirectoryDisk, Disk},
        snap,
    },
    time::{Interval, Tick},
    wire::{Cause, Finding, Moved, Record, Tier, name},
};
use tenure_kernel::ids::EntityId;

#[derive(Default, Clone, Debug)]
struct Inode {
    now: Vec<u8>,
    durable: Vec<u8>,
}

#[derive(Clone, Debug)]
enum NameChange {
    Created(String, usize),
    Renamed(String, String),
    Removed(String),
}

/// A disk in memory. What is not synced may be lost, in part or as noise; names that are not synced in their order.
#[derive(Default, Debug)]
struct Memory {
    inodes: Vec<Inode>,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    name_changes: Vec<NameChange>,
    calls: u64,
    crash_at: Option<u64>,
    fail_sync_at: Option<u64>,
    space: Option<usize>,
}

impl Memory {
    /// Counts a call; an error if the machine is down.
    fn call(&mut self) -> io::Result<()> {
        self.calls += 1;
        match self.crash_at {
            Some(at) if self.calls >= at => Err(io::Error::other("crashed")),
            _ => Ok(()),
        }
    }

    fn inode(&mut self, name: &str) -> io::Result<&mut Inode> {
        let at = *self.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(&mut self.inodes[at])
    }

    fn apply(names: &mut BTreeMap<String, usize>, change: &NameChange) {
        match change {
            NameChange::Created(name, inode) => drop(names.insert(name.clone(), *inode)),
            NameChange::Removed(name) => drop(names.remove(name)),
            NameChange::Renamed(from, to) => {
                if let Some(inode) = names.remove(from) {
                    names.insert(to.clone(), inode);
                }
            }
        }
    }

    /// The machine comes back. `luck` decides what of the unsynced is there.
    fn restart(&mut self, luck: u64) {
        let survive = luck as usize % (self.name_changes.len() + 1);
        for change in self.name_changes.drain(..).take(survive) {
            Self::apply(&mut self.durable_names, &change);
        }
        self.names = self.durable_names.clone();
        for (i, inode) in self.inodes.iter_mut().enumerate() {
            let luck = (luck ^ i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
            let (durable, now) = (inode.durable.len(), inode.now.len());
            if now > durable {
                let kept = durable + luck as usize % (now - durable + 1);
                inode.now.truncate(kept);
                if kept > durable && luck & 1 > 0 {
                    let noise = durable + (luck >> 8) as usize % (kept - durable);
                    inode.now[noise] ^= 0x55;
                }
            } else if luck & 1 > 0 {
                inode.now = inode.durable.clone();
            }
            inode.durable = inode.now.clone();
        }
        (self.crash_at, self.fail_sync_at) = (None, None);
    }
}

#[derive(Clone, Default, Debug)]
struct FaultyDisk(Rc<RefCell<Memory>>);

impl Disk for FaultyDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        let mut memory = self.0.borrow_mut();
        memory.call()?;
        Ok(memory.names.keys().cloned().collect())
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let mut memory = self.0.borrow_mut();
        memory.call()?;
        Ok(memory.inode(name)?.now.clone())
    }

    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut memory = self.0.borrow_mut();
        let up = memory.call();
        if !memory.names.contains_key(name) {
            memory.inodes.push(Inode::default());
            let inode = memory.inodes.len() - 1;
            memory.names.insert(name.to_owned(), inode);
            memory.name_changes.push(NameChange::Created(name.to_owned(), inode));
        }
        let full = memory.space.is_some_and(|space| bytes.len() > space);
        // A write that fails may have written a part.
        let written = if up.is_err() || full { bytes.len() / 2 } else { bytes.len() };
        memory.inode(name)?.now.extend_from_slice(&bytes[..written]);
        if full { Err(io::ErrorKind::StorageFull.into()) } else { up }
    }

    fn sync(&mut self, name: &str) -> io::Result<()> {
        let mut memory = self.0.borrow_mut();
        memory.call()?;
        if memory.fail_sync_at == Some(memory.calls) {
            return Err(io::Error::other("sync failed"));
        }
        let inode = memory.inode(name)?;
        inode.durable = inode.now.clone();
        Ok(())
    }

    fn truncate(&mut self, name: &str, length: u64) -> io::Result<()> {
        let mut memory = self.0.borrow_mut();
        memory.call()?;
        memory.inode(name)?.now.truncate(length as usize);
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let mut memory = self.0.borrow_mut();
        memory.call()?;
        let change = NameChange::Renamed(from.to_owned(), to.to_owned());
        Memory::apply(&mut memory.names, &change);
        memory.name_changes.push(change);
        Ok(())
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        let mut memory = self.0.borrow_mut();
        memory.call()?;
        let change = NameChange::Removed(name.to_owned());
        Memory::apply(&mut memory.names, &change);
        memory.name_changes.push(change);
        Ok(())
    }

    fn sync_directory(&mut self) -> io::Result<()> {
        let mut memory = self.0.borrow_mut();
        memory.call()?;
        memory.name_changes.clear();
        memory.durable_names = memory.names.clone();
        Ok(())
    }
}

fn open(epoch: u64) -> Open {
    Open {
        tree: EntityId::from_bytes(TREE),
        epoch,
        rules: Rules::default(),
        feed_bytes_max: usize::MAX,
        now: START,
    }
}

/// Inputs of every kind, with every side table in use.
fn inputs() -> Vec<(Tick, Input)> {
    let mut world = World::new();
    world.input(Input::ScoutStarted { scout: 1 });
    let brake = BrakeRules { mode: BrakeMode::Twice, percent: 10, least: 2 };
    world.input(Input::RulesSet(Box::new(Rules { brake, ..Rules::default() })));
    let base = [
        ("d", directory(20, 5)),
        ("e", directory(21, 5)),
        ("f", file(22, 1 << 60, 5)),
        ("g", file(23, 3, 5)),
        ("h", file(24, 3, 5)),
        ("i", file(25, 3, 5)),
    ];
    world.list(Tier::Snapshot, "", &base, Trust::Complete);
    world.list(
        Tier::Snapshot,
        "d",
        &[("x", file(30, 1, 5)), ("y", file(31, 2, 6))],
        Trust::Complete,
    );
    let ended = |walk: u8, tier, began| Input::WalkEnded {
        walk: EntityId::from_bytes([walk; 16]),
        tier,
        began,
        outcome: WalkOutcome::Complete,
    };
    world.input(ended(1, Tier::Snapshot, START));
    world.look(1, "d/x", Finding::Exists(file(30, 9, 8)), Cause::Written);
    world.look(2, "d/new/deep", Finding::Exists(file(40, 9, 8)), Cause::Closed);
    world.look(2, "d/y", Finding::Missing, Cause::Event);
    world.look(2, "e/never", Finding::Missing, Cause::Event);
    let during = Interval { begin: world.at, end: world.at };
    world.tell(
        1,
        Tier::Realtime,
        None,
        Record::Cover { path: b"e".to_vec(), watched: true, during },
    );
    world.tell(
        1,
        Tier::Realtime,
        None,
        Record::Dirty { path: b"e".to_vec(), subtree: true, during },
    );
    world.pass(1);
    world.list(Tier::Audit, "e", &[("z", file(50, 1, 5))], Trust::Complete);
    world.look_at(3, "e/z", Finding::Missing, Cause::Event, during);
    world.pass(1);
    let now = Interval { begin: world.at, end: world.at };
    let moved = Moved {
        from: b"d".to_vec(),
        to: b"e/d".to_vec(),
        at_from: Finding::Missing,
        at_to: Finding::Exists(directory(20, 99)),
        during: now,
    };
    world.tell(1, Tier::Realtime, None, Record::Moved(moved));
    world.pass(2);
    let few = [("e", directory(21, 5)), ("i", file(25, 3, 5))];
    let during = Interval { begin: world.at.minus(2), end: world.at.minus(1) };
    world.list_at(1, Tier::Audit, Some(2), "", &few, Trust::Complete, during);
    world.preamble.root.inode = 77;
    world.look(1, "i", Finding::Exists(file(25, 4, 9)), Cause::Closed);
    world.input(Input::RootAccepted { scout: 1 });
    world.look(1, "i", Finding::Missing, Cause::Event);
    world.input(ended(2, Tier::Audit, during.begin));
    world.pass(61);
    world.look(2, "g", Finding::Missing, Cause::Asked);
    world.input(Input::BrakeSettled { delete: true });
    world.input(Input::ScoutEnded { scout: 1 });
    world.pass(10);
    world.input(Input::Expired);
    world.inputs
}

/// All that is known, with paths in the place of numbers of directories.
fn summary(state: &SourceState) -> Vec<String> {
    let tree = &state.tree;
    let sides = &tree.sides;
    let mut all = vec![
        format!(
            "{:?} {:?} {:?} {:?}",
            state.feed.revision(),
            state.rules,
            state.drift,
            state.had_snapshot
        ),
        format!("{:?} {:?} {:?}", state.sequences, state.pending, tree.root()),
        format!("{:?} {:?} {:?}", sides.doubts, sides.blind_deletions, sides.dirty),
        format!("{:?}", sides.absences),
        format!("{:?} {:?}", sides.scouts, state.feed.kept().collect::<Vec<_>>()),
        format!("{:?} {:?}", content(tree), tree.oldest_seen()),
    ];
    let mut rows = Vec::new();
    macro_rules! table {
        ($table:ident) => {
            for (id, own, value) in sides.$table.iter() {
                let path = name::join(&tree.path_of(id), own);
                rows.push(format!("{} {path:?} {value:?}", stringify!($table)));
            }
        };
    }
    table!(tombstones);
    table!(suspects);
    table!(blind);
    table!(held);
    table!(sizes);
    for (id, one) in tree.directories() {
        let path = tree.path_of(id);
        rows.push(format!("{path:?} {:?} {:?} {}", one.sums, one.certificate(), one.watched));
        one.for_each(|own, row| {
            let entry = tree.entry_of(id, own, &row);
            rows.push(format!("{path:?} {own:?} {:?} {} {}", entry.seen, entry.scout, entry.flags));
        });
    }
    rows.sort();
    all.extend(rows);
    all
}

/// The state after each number of inputs.
fn states(inputs: &[(Tick, Input)]) -> Vec<Vec<String>> {
    let mut state =
        SourceState::new(EntityId::from_bytes(TREE), Rules::default(), usize::MAX, START);
    let mut all = vec![summary(&state)];
    for (at, input) in inputs {
        state.apply(*at, input);
        all.push(summary(&state));
    }
    all
}

/// Takes inputs from `first` on; how many are acknowledged. A snapshot is written now and then.
fn work(
    keeper: &mut Keeper<FaultyDisk>,
    state: &mut SourceState,
    inputs: &[(Tick, Input)],
    first: usize,
    acked: &mut usize,
) -> Result<(), KeepError> {
    for (i, (at, input)) in inputs.iter().enumerate().skip(first) {
        keeper.append(*at, input)?;
        state.apply(*at, input);
        if i % 3 == 2 || i + 1 == inputs.len() {
            keeper.sync()?;
            *acked = i + 1;
        }
        if i % 8 == 7 {
            let number = keeper.begin_segment(*at, EntityId::from_bytes(TREE))?;
            *acked = i + 1;
            keeper.snapshot(number, state)?;
        }
    }
    Ok(())
}

#[test]
fn what_is_acknowledged_survives_a_crash_at_every_call() {
    let inputs = inputs();
    let states = states(&inputs);
    let total = {
        let disk = FaultyDisk::default();
        let (mut keeper, mut state) = Keeper::open(disk.clone(), &open(1)).unwrap();
        work(&mut keeper, &mut state, &inputs, 0, &mut 0).unwrap();
        assert_eq!(summary(&state), *states.last().unwrap());
        disk.0.borrow().calls
    };
    assert!(total > 40, "{total}");
    for crash_at in 1..=total {
        for luck in 0..6u64 {
            let disk = FaultyDisk::default();
            disk.0.borrow_mut().crash_at = Some(crash_at);
            let mut acked = 0;
            if let Ok((mut keeper, mut state)) = Keeper::open(disk.clone(), &open(1)) {
                work(&mut keeper, &mut state, &inputs, 0, &mut acked).ok();
            }
            disk.0.borrow_mut().restart(luck.wrapping_mul(0x0123_4567_89ab_cdef) + crash_at);
            let at = format!("call {crash_at}, luck {luck}, acknowledged {acked}");
            let (mut keeper, mut state) = Keeper::open(disk.clone(), &open(2)).expect(&at);
            let read = summary(&state);
            let found = (acked..states.len()).find(|n| states[*n] == read);
            let found = found.unwrap_or_else(|| panic!("{at}: not a state of the past"));
            // It goes on, and the next holder reads all of it.
            work(&mut keeper, &mut state, &inputs, found, &mut acked).expect(&at);
            let (_, state) = Keeper::open(disk, &open(3)).expect(&at);
            assert_eq!(summary(&state), *states.last().unwrap(), "{at}");
        }
    }
}

#[test]
fn what_an_earlier_holder_writes_after_the_next_one_claimed_is_never_read() {
    let inputs = inputs();
    let states = states(&inputs);
    let disk = FaultyDisk::default();
    let (mut old, mut state) = Keeper::open(disk.clone(), &open(1)).unwrap();
    work(&mut old, &mut state, &inputs[..6], 0, &mut 0).unwrap();
    let (mut new, mut next) = Keeper::open(disk.clone(), &open(2)).unwrap();
    for (at, input) in &inputs[6..9] {
        old.append(*at, input).unwrap();
        old.sync().unwrap();
    }
    old.begin_segment(START, EntityId::from_bytes(TREE)).unwrap();
    work(&mut new, &mut next, &inputs[..7], 6, &mut 0).unwrap();
    let (_, read) = Keeper::open(disk.clone(), &open(3)).unwrap();
    assert_eq!(summary(&read), states[7]);
    let refused = Keeper::open(disk, &open(3)).unwrap_err();
    assert!(matches!(refused, KeepError::Refused(_)), "an epoch has one holder");
}

#[test]
fn every_damaged_byte_of_what_was_durable_is_noticed() {
    let inputs = inputs();
    let states = states(&inputs);
    let disk = FaultyDisk::default();
    let (mut keeper, mut state) = Keeper::open(disk.clone(), &open(1)).unwrap();
    work(&mut keeper, &mut state, &inputs[..12], 0, &mut 0).unwrap();
    drop(keeper);
    let files: Vec<(String, usize)> = {
        let memory = disk.0.borrow();
        memory.names.iter().map(|(n, i)| (n.clone(), memory.inodes[*i].now.len())).collect()
    };
    assert_eq!(files.len(), 2, "a snapshot and a segment: {files:?}");
    for (file, length) in files {
        // The last records may have been torn by a crash: what they had is lost, and nothing else.
        let last_synced = if file.ends_with(".log") { last_record(&disk, &file) } else { length };
        for at in 0..length {
            let damaged = FaultyDisk::default();
            {
                let from = disk.0.borrow();
                let mut to = damaged.0.borrow_mut();
                to.inodes = from.inodes.clone();
                to.names = from.names.clone();
                let inode = from.names[&file];
                to.inodes[inode].now[at] ^= 0x10;
            }
            match Keeper::open(damaged, &open(2)) {
                Err(KeepError::Damaged { file: named, .. }) => assert_eq!(named, file),
                Ok((_, state)) => {
                    assert!(at >= last_synced, "{file} byte {at} of {length}");
                    let read = summary(&state);
                    assert!(states.contains(&read), "{file} byte {at}");
                }
                Err(other) => panic!("{file} byte {at}: {other}"),
            }
        }
    }
}

/// Where the records begin that no later record declares durable.
fn last_record(disk: &FaultyDisk, file: &str) -> usize {
    let memory = disk.0.borrow();
    let bytes = &memory.inodes[memory.names[file]].now;
    let starts = (0..bytes.len() - 4).filter(|at| &bytes[*at..*at + 4] == b"TNLR");
    let last = starts.max().unwrap();
    u64::from_le_bytes(bytes[last + 12..last + 20].try_into().unwrap()) as usize
}

#[test]
fn a_full_disk_refuses_and_what_was_there_stays() {
    let inputs = inputs();
    let states = states(&inputs);
    let disk = FaultyDisk::default();
    let (mut keeper, mut state) = Keeper::open(disk.clone(), &open(1)).unwrap();
    work(&mut keeper, &mut state, &inputs[..6], 0, &mut 0).unwrap();
    disk.0.borrow_mut().space = Some(10);
    let refused = keeper.append(inputs[6].0, &inputs[6].1).unwrap_err();
    assert!(matches!(&refused, KeepError::Disk(e) if e.kind() == io::ErrorKind::StorageFull));
    disk.0.borrow_mut().space = None;
    work(&mut keeper, &mut state, &inputs[..7], 6, &mut 0).unwrap();
    let (_, read) = Keeper::open(disk, &open(2)).unwrap();
    assert_eq!(summary(&read), states[7]);
}

#[test]
fn after_a_failed_sync_nothing_is_acknowledged_until_a_snapshot_mends_it() {
    let inputs = inputs();
    let states = states(&inputs);
    for crash_after in 0..12 {
        let disk = FaultyDisk::default();
        let (mut keeper, mut state) = Keeper::open(disk.clone(), &open(1)).unwrap();
        work(&mut keeper, &mut state, &inputs[..5], 0, &mut 0).unwrap();
        keeper.append(inputs[5].0, &inputs[5].1).unwrap();
        state.apply(inputs[5].0, &inputs[5].1);
        let calls = disk.0.borrow().calls;
        disk.0.borrow_mut().fail_sync_at = Some(calls + 1);
        assert!(keeper.sync().is_err());
        assert!(matches!(keeper.sync(), Err(KeepError::Unsynced)), "a second sync proves nothing");
        assert!(matches!(keeper.append(inputs[6].0, &inputs[6].1), Err(KeepError::Unsynced)));
        disk.0.borrow_mut().crash_at = (crash_after > 0).then_some(calls + 1 + crash_after);
        let mended = keeper.mend(inputs[5].0, &state).is_ok();
        assert!(mended || crash_after > 0);
        disk.0.borrow_mut().restart(crash_after * 7);
        let (_, read) = Keeper::open(disk, &open(2)).unwrap();
        let least = if mended { 6 } else { 5 };
        let read = summary(&read);
        assert!(states[least..=6].contains(&read), "crash after {crash_after}");
    }
}

#[test]
fn a_snapshot_has_everything_that_arbitration_remembers() {
    let inputs = inputs();
    let mut state =
        SourceState::new(EntityId::from_bytes(TREE), Rules::default(), usize::MAX, START);
    for (at, input) in &inputs {
        state.apply(*at, input);
        let mut read = snap::read(&snap::write(&state), "test", usize::MAX).unwrap();
        assert_eq!(summary(&read), summary(&state));
        // What follows gives the same too.
        let mut frozen = state.clone();
        for (at, input) in &inputs {
            frozen.apply(at.plus(50_000), input);
            read.apply(at.plus(50_000), input);
        }
        assert_eq!(summary(&read), summary(&frozen));
    }
}

#[test]
fn the_files_are_for_the_servers_user_alone() {
    let inputs = inputs();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("source/tree");
    let mut acked = 0;
    for epoch in 1..4 {
        let disk = DirectoryDisk::open(path.clone()).unwrap();
        let (mut keeper, mut state) = Keeper::open(disk, &open(epoch)).unwrap();
        for (at, input) in &inputs[acked..acked + 6] {
            keeper.append(*at, input).unwrap();
            state.apply(*at, input);
        }
        keeper.sync().unwrap();
        acked += 6;
        assert_eq!(summary(&state), states(&inputs)[acked]);
        if epoch == 2 {
            let number = keeper.begin_segment(state.now, EntityId::from_bytes(TREE)).unwrap();
            keeper.snapshot(number, &state).unwrap();
        }
    }
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o700);
    let files: Vec<_> = std::fs::read_dir(&path).unwrap().map(|f| f.unwrap().path()).collect();
    assert_eq!(files.len(), 3, "{files:?}");
    assert!(files.iter().all(|file| mode(file) == 0o600));
}
