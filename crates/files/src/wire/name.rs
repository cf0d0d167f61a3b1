//! Names and paths as bytes. A file system allows every byte but `/` and zero in a name, so a name is never a `String`:
//! two names that differ in an invalid byte are two files.

/// Bytes of one name. Linux has 255; some remote file systems have more.
pub const NAME_BYTES_MAX: usize = 1_024;
/// Bytes of a path below the root. Longer than the kernel's limit for one call, because a walk goes by descriptors.
pub const PATH_BYTES_MAX: usize = 16_384;
/// Components of a path.
pub const DEPTH_MAX: usize = 1_024;

/// Why bytes are not a name or a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadName {
    /// A component without bytes: `a//b`, or a slash at an end.
    #[error("a name is empty (paths have no slash at their ends and no two in a row)")]
    Empty,
    /// `.` or `..`: it leads elsewhere than its parent says.
    #[error("a name is `.` or `..`")]
    Dots,
    /// A zero byte or a slash.
    #[error("a name has a zero byte or a slash")]
    Byte,
    /// More than [`NAME_BYTES_MAX`], [`PATH_BYTES_MAX`] or [`DEPTH_MAX`].
    #[error(
        "a name is longer than {NAME_BYTES_MAX} bytes, or a path longer than {PATH_BYTES_MAX} bytes or {DEPTH_MAX} names"
    )]
    Long,
}

/// Whether `name` can be the name of a directory entry.
pub fn check_name(name: &[u8]) -> Result<(), BadName> {
    match name {
        [] => Err(BadName::Empty),
        b"." | b".." => Err(BadName::Dots),
        _ if name.len() > NAME_BYTES_MAX => Err(BadName::Long),
        _ if name.iter().any(|b| *b == 0 || *b == b'/') => Err(BadName::Byte),
        _ => Ok(()),
    }
}

/// Whether `path` is a path below the root: names separated by single slashes; the empty path is the root.
pub fn check_path(path: &[u8]) -> Result<(), BadName> {
    if path.is_empty() {
        return Ok(());
    }
    if path.len() > PATH_BYTES_MAX {
        return Err(BadName::Long);
    }
    let mut depth = 0;
    for name in path.split(|b| *b == b'/') {
        check_name(name)?;
        depth += 1;
    }
    if depth > DEPTH_MAX { Err(BadName::Long) } else { Ok(()) }
}

/// The names of a path, from the root down.
pub fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|b| *b == b'/').filter(|name| !name.is_empty())
}

/// A path as (directory, name); `None` for the root.
pub fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    if path.is_empty() {
        return None;
    }
    Some(match path.iter().rposition(|b| *b == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&[], path),
    })
}

/// `directory` and `name` as one path.
pub fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(directory.len() + name.len() + 1);
    path.extend_from_slice(directory);
    if !directory.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// Whether `path` is `top` or below it.
pub fn is_within(path: &[u8], top: &[u8]) -> bool {
    top.is_empty() || path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

/// A form for people: invalid UTF-8, control characters and backslashes are escaped, so that different names are shown
/// differently and a name cannot move the cursor of a terminal.
pub fn display(name: &[u8]) -> String {
    let mut shown = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c == '\\' || c.is_control() {
                shown.extend(c.escape_default());
            } else {
                shown.push(c);
            }
        }
        for byte in chunk.invalid() {
            shown.push_str(&format!("\\x{byte:02x}"));
        }
    }
    shown
}

/// Length of the longest common prefix.
pub(crate) fn shared(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_outside_of_the_root_are_refused() {
        for (path, why) in [
            (&b"/etc"[..], BadName::Empty),
            (b"a//b", BadName::Empty),
            (b"a/", BadName::Empty),
            (b"../etc", BadName::Dots),
            (b"a/../../b", BadName::Dots),
            (b"a/./b", BadName::Dots),
            (b"a\0b", BadName::Byte),
        ] {
            assert_eq!(check_path(path), Err(why), "{}", display(path));
        }
        assert_eq!(check_path(b""), Ok(()));
        assert_eq!(check_path(b"a/..b/c..\n\xff"), Ok(()));
    }

    #[test]
    fn lengths_are_refused_one_past_the_limit() {
        assert_eq!(check_name(&[b'a'; NAME_BYTES_MAX]), Ok(()));
        assert_eq!(check_name(&[b'a'; NAME_BYTES_MAX + 1]), Err(BadName::Long));
        let deep = |n: usize| vec!["a"; n].join("/").into_bytes();
        assert_eq!(check_path(&deep(DEPTH_MAX)), Ok(()));
        assert_eq!(check_path(&deep(DEPTH_MAX + 1)), Err(BadName::Long));
        let mut long = vec![vec![b'a'; 1_023]; 16].join(&b'/');
        assert_eq!((long.len(), check_path(&long)), (PATH_BYTES_MAX - 1, Ok(())));
        long.extend_from_slice(b"/a");
        assert_eq!(check_path(&long), Err(BadName::Long));
    }

    #[test]
    fn defect_13_names_that_differ_in_an_invalid_byte_are_shown_differently() {
        assert_ne!(display(b"a\xff"), display(b"a\xfe"));
        assert_ne!(display(b"a\\xff"), display(b"a\xff"));
        assert_eq!(display(b"line\nbreak \x1b[31m"), "line\\nbreak \\u{1b}[31m");
        assert_eq!(display("größe".as_bytes()), "größe");
    }

    #[test]
    fn a_path_is_its_directory_and_its_name() {
        for path in [&b"a"[..], b"a/b", b"a/b/c"] {
            let (directory, name) = split(path).unwrap();
            assert_eq!(join(directory, name), path);
        }
        assert!(is_within(b"a/b", b"a") && is_within(b"a", b"a") && is_within(b"a", b""));
        assert!(!is_within(b"ab", b"a"));
    }
}
