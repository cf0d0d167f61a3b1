//! Where a directory lies: on what kind of file system, with how much room, and whether it outlives a restart.

use std::{
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// A directory that a setting names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The setting.
    pub key: &'static str,
    /// The directory.
    pub path: PathBuf,
    /// It is there.
    pub exists: bool,
    /// The kind of its file system, such as `ext4`, where that is known.
    pub file_system: Option<String>,
    /// It lies where programs keep what may be removed any time.
    pub temporary: bool,
    /// Who may read, write and list it, where that is known.
    pub mode: Option<u32>,
    /// Bytes that are free, and bytes in all.
    pub room: Option<(u64, u64)>,
}

/// Looks at a directory.
pub fn look(key: &'static str, path: &Path) -> Place {
    let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let room = rustix::fs::statvfs(&whole)
        .ok()
        .map(|s| (s.f_bavail * s.f_frsize, s.f_blocks * s.f_frsize));
    let mode = std::fs::metadata(&whole).ok().map(|about| about.mode() & 0o777);
    Place {
        key,
        mode,
        exists: whole.is_dir(),
        file_system: file_system(&mounts, &whole),
        temporary: is_temporary(&whole, &std::env::temp_dir()),
        room,
        path: whole,
    }
}

/// Accounts that people sign in to, of a file such as `/etc/passwd`: those with a number that is given to people, and a shell.
pub fn accounts(passwd: &str) -> usize {
    let person = |line: &&str| {
        let fields: Vec<&str> = line.split(':').collect();
        let number = fields.get(2).and_then(|n| n.parse::<u32>().ok());
        let shell = fields.get(6).copied().unwrap_or_default();
        number.is_some_and(|n| (1_000..60_000).contains(&n))
            && !(shell.is_empty() || shell.ends_with("nologin") || shell.ends_with("false"))
    };
    passwd.lines().filter(person).count()
}

/// The file system that a path lies on: the one with the longest mount point above it.
fn file_system(mounts: &str, path: &Path) -> Option<String> {
    let mounts = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (point, kind) = (words.next()?.replace("\\040", " "), words.next()?);
        path.starts_with(&point).then(|| (point.len(), kind.to_owned()))
    });
    // Of two at one place the later one is on top.
    mounts.max_by_key(|(length, _)| *length).map(|(_, kind)| kind)
}

fn is_temporary(path: &Path, temporary: &Path) -> bool {
    [Path::new("/tmp"), Path::new("/var/tmp"), Path::new("/dev/shm"), temporary]
        .iter()
        .any(|t| path.starts_with(t))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_system_is_the_one_mounted_nearest() {
        let mounts =
            "/dev/a / ext4 rw 0 0\ntmpfs /run tmpfs rw 0 0\nx:/e /srv/my\\040data nfs4 rw 0 0\n";
        let of = |p: &str| file_system(mounts, Path::new(p)).unwrap();
        assert_eq!((of("/var/lib").as_str(), of("/run/x").as_str()), ("ext4", "tmpfs"));
        assert_eq!((of("/srv/my data/s").as_str(), of("/runner").as_str()), ("nfs4", "ext4"));
        assert_eq!(file_system("", Path::new("/x")), None);
    }

    #[test]
    fn people_are_told_from_services() {
        let passwd = "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/bash\nbob:x:1001:1001::/home/bob:/bin/sh\n\
            web:x:1002:1002::/srv:/usr/sbin/nologin\nnobody:x:65534:65534::/:/usr/sbin/nologin\nodd\n";
        assert_eq!((accounts(passwd), accounts("")), (2, 0));
    }

    #[test]
    fn temporary_directories_are_known_by_name_and_by_the_environment() {
        assert!(is_temporary(Path::new("/tmp/x"), Path::new("/nowhere")));
        assert!(is_temporary(Path::new("/scratch/x"), Path::new("/scratch")));
        assert!(!is_temporary(Path::new("/tmpfiles"), Path::new("/nowhere")));
    }
}
