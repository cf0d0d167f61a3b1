//! How many files this process may open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit of open files to `wanted`, as far as the hard limit permits, and never lowers it. Gives the limit
/// before and after. Children inherit it.
pub fn raise_file_limit(wanted: u64) -> (u64, u64) {
    let now = || getrlimit(Resource::Nofile);
    let limit = now();
    let before = limit.current.unwrap_or(u64::MAX);
    let reachable = limit.maximum.map_or(wanted, |most| wanted.min(most));
    if reachable > before {
        // If it fails, the limit is what it was.
        let _ = setrlimit(
            Resource::Nofile,
            Rlimit { current: Some(reachable), maximum: limit.maximum },
        );
    }
    (before, now().current.unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_and_never_lowered() {
        let (before, same) = raise_file_limit(0);
        assert_eq!(before, same);
        let hard = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        let (was, now) = raise_file_limit(before.saturating_add(1));
        assert_eq!((was, now), (before, before.saturating_add(1).min(hard)));
    }
}
