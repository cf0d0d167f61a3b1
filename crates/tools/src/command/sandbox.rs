//! What a program is kept from, without any rights that the worker does not have.
//!
//! | measure | keeps the program from |
//! |---|---|
//! | the worker is not dumpable (`hide_this_process`) | reading the worker's environment and memory in `/proc` |
//! | no new privileges | gaining rights by a set-user-ID program |
//! | some capabilities are dropped, where the worker is root | going around the two lines above |
//! | a session of its own | the worker's terminal |
//! | resource limits | core dumps, endless files and open files; memory and processes, by settings |
//! | Landlock, where the kernel has it | environments, memory and signals of all other processes; hidden files; writing outside of the writable directories |
//!
//! Landlock only allows: it knows no exception below a directory that is allowed. So the entries beside a hidden path are
//! allowed one by one, and a directory that contains a hidden path cannot be listed, and nothing can be created in it.
//! Entries that appear there while the program runs are not accessible to it.

use landlock::{
    ABI, Access as _, AccessFs, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _,
    RulesetCreated, RulesetCreatedAttr as _, RulesetError, Scope, path_beneath_rules,
};
use rustix::{
    process::{
        DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit, setsid,
    },
    thread::{
        CapabilitySet, clear_ambient_capability_set, remove_capability_from_bounding_set,
        set_no_new_privs,
    },
};
use std::{
    fs, io,
    path::{Path, PathBuf},
};
use tokio::process::Command;

/// The newest rights over files that are handled; an older kernel handles fewer.
const FILES: ABI = ABI::V3;
/// Entries beside hidden paths that are allowed one by one. Further ones are not accessible.
const ENTRIES_MAX: usize = 4_096;
/// Devices are written to as if they were files (`/dev/null`).
const DEVICES: &str = "/dev";

/// Capabilities with which a program could read another process or change the kernel. The worker has them only as root.
const DROPPED: [CapabilitySet; 9] = [
    CapabilitySet::SYS_PTRACE,
    CapabilitySet::SYS_ADMIN,
    CapabilitySet::SYS_MODULE,
    CapabilitySet::SYS_RAWIO,
    CapabilitySet::SYS_BOOT,
    CapabilitySet::PERFMON,
    CapabilitySet::BPF,
    CapabilitySet::CHECKPOINT_RESTORE,
    CapabilitySet::MAC_ADMIN,
];

/// How programs are confined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxOptions {
    /// Where a program may write.
    pub writable: Writable,
    /// Files and directories that a program can neither read nor write.
    pub hidden: Vec<PathBuf>,
    /// Open files; `None`: as many as the worker.
    pub open_files_max: Option<u64>,
    /// The size of a file that it writes.
    pub file_bytes_max: Option<u64>,
    /// The size of its address space.
    pub memory_bytes_max: Option<u64>,
    /// Processes and threads of the worker's user, those of the worker included.
    pub processes_max: Option<u64>,
    /// Whether Landlock is used where the kernel has it. Off only in tests of the other measures.
    pub landlock: bool,
}

/// Where a program may write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Writable {
    /// Wherever the worker's user may.
    Everywhere,
    /// Below these directories.
    Below(Vec<PathBuf>),
}

impl Writable {
    /// Directories with commas between them, or `*`.
    pub fn read(text: &str) -> Self {
        match text.trim() {
            "*" => Writable::Everywhere,
            list => Writable::Below(paths(list)),
        }
    }
}

/// Paths with commas between them.
pub fn paths(list: &str) -> Vec<PathBuf> {
    list.split(',').map(str::trim).filter(|p| !p.is_empty()).map(PathBuf::from).collect()
}

impl Default for SandboxOptions {
    fn default() -> Self {
        SandboxOptions {
            writable: Writable::Below(vec![PathBuf::from("."), PathBuf::from("/tmp")]),
            hidden: Vec::new(),
            open_files_max: Some(1_024),
            file_bytes_max: Some(10 << 30),
            memory_bytes_max: None,
            processes_max: None,
            landlock: true,
        }
    }
}

/// Keeps other processes of the same user, the programs that this one starts among them, from reading the environment and the
/// memory of this process. Its environment holds secrets, and removing a variable does not remove it from `/proc/PID/environ`.
pub(super) fn hide_this_process() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Whether this kernel has Landlock. Without it a program can reach every file that the worker's user can.
pub fn confines_files() -> bool {
    let rules = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    let rules = rules.handle_access(AccessFs::from_all(ABI::V1));
    rules.and_then(|rules| rules.create()).is_ok()
}

/// Confines the program that this command will start.
pub(super) fn confine(command: &mut Command, options: &SandboxOptions) -> io::Result<()> {
    let mut rules = match options.landlock {
        true => Some(ruleset(options).map_err(io::Error::other)?),
        false => None,
    };
    let limits = limits(options);
    let confined = move || {
        setsid()?;
        set_no_new_privs(true)?;
        for (resource, max) in limits {
            lower(resource, max)?;
        }
        for capability in DROPPED {
            // Refused to a worker that is not root, which does not have them either.
            let _ = remove_capability_from_bounding_set(capability);
        }
        // As above; a kernel without ambient capabilities has none to clear.
        let _ = clear_ambient_capability_set();
        match rules.take().map(RulesetCreated::restrict_self) {
            Some(Err(_)) => Err(io::ErrorKind::PermissionDenied.into()),
            Some(Ok(_)) | None => Ok(()),
        }
    };
    #[expect(unsafe_code, reason = "nothing else runs between fork and exec")]
    // SAFETY: between fork and exec only what is async-signal-safe may run. The closure makes system calls and writes to its own
    // stack: it takes no lock, allocates and frees nothing (the ruleset owns one file descriptor and is closed), and its errors
    // are made of numbers. The rules were built before the fork.
    unsafe {
        command.pre_exec(confined);
    }
    Ok(())
}

/// The limits, as (resource, most). A resource without a limit keeps the worker's.
fn limits(options: &SandboxOptions) -> [(Resource, Option<u64>); 5] {
    [
        (Resource::Core, Some(0)),
        (Resource::Nofile, options.open_files_max),
        (Resource::Fsize, options.file_bytes_max),
        (Resource::As, options.memory_bytes_max),
        (Resource::Nproc, options.processes_max),
    ]
}

/// Lowers a limit, for good. One that is lower already stays.
fn lower(resource: Resource, max: Option<u64>) -> io::Result<()> {
    let Some(max) = max else { return Ok(()) };
    let now = getrlimit(resource);
    let lowest = |limit: Option<u64>| Some(limit.map_or(max, |limit| limit.min(max)));
    let limit = Rlimit { current: lowest(now.current), maximum: lowest(now.maximum) };
    Ok(setrlimit(resource, limit)?)
}

fn ruleset(options: &SandboxOptions) -> Result<RulesetCreated, RulesetError> {
    let hidden: Vec<PathBuf> = options.hidden.iter().map(|path| real(path)).collect();
    let (all, read) = (AccessFs::from_all(FILES), AccessFs::from_read(FILES));
    let written = match &options.writable {
        Writable::Everywhere => vec![PathBuf::from("/")],
        Writable::Below(directories) => directories.iter().map(|path| real(path)).collect(),
    };
    let rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?
        .scope(Scope::Signal | Scope::AbstractUnixSocket)?
        .create()?
        .add_rules(path_beneath_rules(visible(Path::new("/"), &hidden), read))?
        .add_rules(path_beneath_rules([DEVICES], read | AccessFs::WriteFile))?;
    written.iter().try_fold(rules, |rules, directory| {
        let paths = visible(directory, &hidden);
        rules.add_rules(path_beneath_rules(paths, all))
    })
}

/// The path without links, also where nothing is there yet.
fn real(path: &Path) -> PathBuf {
    let absolute = || std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    path.canonicalize().unwrap_or_else(|_| absolute())
}

/// What to allow so that everything below this path is allowed, except for what is hidden.
fn visible(path: &Path, hidden: &[PathBuf]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    collect(path, hidden, &mut found);
    found
}

fn collect(path: &Path, hidden: &[PathBuf], found: &mut Vec<PathBuf>) {
    if found.len() >= ENTRIES_MAX || hidden.iter().any(|h| path.starts_with(h)) {
        return;
    }
    if !hidden.iter().any(|h| h.starts_with(path)) {
        found.push(path.to_owned());
        return;
    }
    // A directory that cannot be read is not accessible to the program either.
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        // A link is followed by whoever opens it, and its target is looked at where it is.
        if entry.file_type().is_ok_and(|kind| !kind.is_symlink()) {
            collect(&entry.path(), hidden, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_visible_beside_what_is_hidden_and_not_through_links() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        for name in ["a", "b/c", "b/data/store", "b/data2"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        std::os::unix::fs::symlink(root.join("b/data"), root.join("b/link")).unwrap();
        assert_eq!(visible(&root, &[]), std::slice::from_ref(&root), "nothing is hidden");
        let mut seen = visible(&root, &[root.join("b/data")]);
        seen.sort();
        assert_eq!(seen, ["a", "b/c", "b/data2"].map(|name| root.join(name)));
        assert!(visible(&root.join("b/data/store"), &[root.join("b/data")]).is_empty());
        let later = visible(&root, &[root.join("a/not-there-yet")]);
        assert!(!later.contains(&root.join("a")), "it must not appear in an allowed directory");
    }
}
