//! What is known after an observation. Pure: `(known, observation, rules) -> effects`.
//!
//! Three things are never done, because earlier systems lost or invented files by them:
//! - An event of the kernel is not believed. What counts is a look, a listing or a rename that looks confirm, each with
//!   the interval in which it was made. A late delete event then deletes nothing that exists.
//! - Times of different clocks are not compared. View time orders observations; storage time orders states of one inode.
//! - Nobody guesses. Two observations that cannot be ordered are a doubt, which a forced look settles.
//!
//! [`table`] has what follows as data, [`order`] the rules for two states of one entry. [`apply`] takes inputs and
//! carries both out: `place` finds what is known, `exists`, `missing` and `doubt` do what the table says.

pub mod apply;
pub mod brake;
mod doubt;
pub mod drift;
mod entry;
mod exists;
pub mod flags;
pub mod listing;
mod missing;
pub mod moved;
pub mod order;
mod place;
pub mod table;

use crate::time::seconds;
use brake::BrakeRules;

/// What protects the tree. A drill switches one off and must notice it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Protections {
    /// Only a complete listing says that a name is not there.
    pub certificates: bool,
    /// A deletion stops older observations.
    pub tombstones: bool,
    /// A scout whose root became another one deletes nothing.
    pub root: bool,
    /// Observations that are not later are doubts.
    pub intervals: bool,
    /// Observations that tombstones may have outlived are refused.
    pub too_old: bool,
    /// Many deletions by one walk are held.
    pub brake: bool,
}

impl Default for Protections {
    fn default() -> Self {
        Protections {
            certificates: true,
            tombstones: true,
            root: true,
            intervals: true,
            too_old: true,
            brake: true,
        }
    }
}

/// The rules of one source. A change of them is an input, so that a replay has the same.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rules {
    /// Everything on, except in drills.
    pub protections: Protections,
    /// Ticks after which an observation is refused. Less than `tombstone_ttl`, so a tombstone outlives all it must stop.
    pub evidence_age_max: u64,
    /// Ticks for which a tombstone is kept.
    pub tombstone_ttl: u64,
    /// A file that changed within this number of ticks may still be written to.
    pub hot_threshold: u64,
    /// Ticks of slack above which nothing is deleted, only doubted.
    pub slack_max: u64,
    /// Limits of deletions by one walk.
    pub brake: BrakeRules,
    /// Ticks between the two witnesses of a held deletion.
    pub witness_after: u64,
    /// Entries of the tree; zero for no limit.
    pub entries_max: u64,
    /// Names that differ in case alone are one file.
    pub case_folding: bool,
    /// Names that scouts leave out: they are never judged missing.
    pub excludes: Excludes,
}

impl Default for Rules {
    fn default() -> Self {
        Rules {
            protections: Protections::default(),
            evidence_age_max: seconds(1_800),
            tombstone_ttl: seconds(3_600),
            hot_threshold: seconds(30),
            slack_max: seconds(2),
            brake: BrakeRules::default(),
            witness_after: seconds(60),
            entries_max: 0,
            case_folding: false,
            excludes: Excludes::default(),
        }
    }
}

/// Names that are left out of a source, with `*` for any bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Excludes {
    /// Patterns of single names.
    pub names: Vec<Vec<u8>>,
}

impl Default for Excludes {
    /// `.nfs*`: what an NFS client leaves of a file that is deleted while it is open.
    fn default() -> Self {
        Excludes { names: vec![b".nfs*".to_vec()] }
    }
}

impl Excludes {
    /// Scouts send it with every frame. Another one makes their listings partial: a name may be missing because they
    /// left it out.
    pub fn digest(&self) -> u64 {
        let mut digest = 0xcbf2_9ce4_8422_2325u64;
        for pattern in &self.names {
            for byte in pattern.iter().chain(&[0]) {
                digest = (digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
        digest
    }

    /// Whether a name is left out.
    pub fn is_excluded(&self, name: &[u8]) -> bool {
        self.names.iter().any(|pattern| matches_stars(pattern, name))
    }
}

/// `*` stands for any bytes, none included.
fn matches_stars(pattern: &[u8], name: &[u8]) -> bool {
    let mut parts = pattern.split(|b| *b == b'*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let mut parts: Vec<&[u8]> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        match rest.windows(part.len().max(1)).position(|window| part.is_empty() || window == part) {
            Some(at) => rest = &rest[at + part.len()..],
            None if part.is_empty() => {}
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_any_bytes() {
        for (pattern, name, answer) in [
            (&b".nfs*"[..], &b".nfs0001"[..], true),
            (b".nfs*", b"a.nfs0001", false),
            (b"*.tmp", b"x.tmp", true),
            (b"*.tmp", b"x.tmp2", false),
            (b"a*b*c", b"a--b--c", true),
            (b"a*b*c", b"a--c--b", false),
            (b"**", b"", true),
            (b"a", b"a", true),
            (b"a", b"ab", false),
            (b"a*a", b"a", false),
        ] {
            assert_eq!(matches_stars(pattern, name), answer, "{pattern:?} {name:?}");
        }
        let other = Excludes { names: vec![b"x".to_vec(), b"y".to_vec()] };
        assert_ne!(other.digest(), Excludes { names: vec![b"xy".to_vec()] }.digest());
    }
}
