//! What a directory says about everything below it, so that statistics need no walk. Changes of a slice go up once for
//! each directory.

/// Totals of a subtree, without its top.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sums {
    /// Entries that are no directories.
    pub files: u32,
    /// Directories.
    pub directories: u32,
    /// Sizes of regular files.
    pub bytes: u64,
    /// Entries that may still be written to.
    pub suspects: u32,
    /// Entries that changed and no scout saw it happen.
    pub blind: u32,
    /// Ticks since the tree's base of the last change, a deletion included. It only grows.
    pub last_activity: u32,
    /// The newest mtime of a file: exact after a complete audit, an upper bound until the next one.
    pub newest_mtime: i64,
}

/// A change of [`Sums`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Delta {
    pub files: i64,
    pub directories: i64,
    pub bytes: i128,
    pub suspects: i64,
    pub blind: i64,
    pub activity: u32,
    pub newest_mtime: i64,
}

impl Default for Delta {
    fn default() -> Self {
        Delta {
            files: 0,
            directories: 0,
            bytes: 0,
            suspects: 0,
            blind: 0,
            activity: 0,
            newest_mtime: i64::MIN,
        }
    }
}

impl Delta {
    pub(crate) fn add(&mut self, other: &Delta) {
        self.files += other.files;
        self.directories += other.directories;
        self.bytes += other.bytes;
        self.suspects += other.suspects;
        self.blind += other.blind;
        self.activity = self.activity.max(other.activity);
        self.newest_mtime = self.newest_mtime.max(other.newest_mtime);
    }

    /// All of a subtree comes (`sign` 1) or goes (-1).
    pub(crate) fn of(sums: &Sums, sign: i64) -> Delta {
        Delta {
            files: sign * i64::from(sums.files),
            directories: sign * i64::from(sums.directories),
            bytes: i128::from(sign) * i128::from(sums.bytes),
            suspects: sign * i64::from(sums.suspects),
            blind: sign * i64::from(sums.blind),
            activity: sums.last_activity,
            newest_mtime: if sign > 0 { sums.newest_mtime } else { i64::MIN },
        }
    }
}

impl Sums {
    pub(crate) fn apply(&mut self, delta: &Delta) {
        let add = |to: &mut u32, by: i64| {
            *to = u32::try_from(i64::from(*to).saturating_add(by).max(0)).unwrap_or(u32::MAX);
        };
        add(&mut self.files, delta.files);
        add(&mut self.directories, delta.directories);
        add(&mut self.suspects, delta.suspects);
        add(&mut self.blind, delta.blind);
        self.bytes =
            u64::try_from((i128::from(self.bytes) + delta.bytes).max(0)).unwrap_or(u64::MAX);
        self.last_activity = self.last_activity.max(delta.activity);
        self.newest_mtime = self.newest_mtime.max(delta.newest_mtime);
    }
}

/// How many entries were last observed when, in buckets of about 17 minutes: the oldest bucket that is not empty bounds
/// the age of what is known, without a walk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenHistogram {
    counts: Vec<u64>,
}

const BUCKET_BITS: u32 = 17;

impl SeenHistogram {
    pub(crate) fn add(&mut self, seen: u32) {
        let bucket = (seen >> BUCKET_BITS) as usize;
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
    }

    pub(crate) fn remove(&mut self, seen: u32) {
        if let Some(count) = self.counts.get_mut((seen >> BUCKET_BITS) as usize) {
            *count = count.saturating_sub(1);
        }
    }

    /// A tick not after the oldest `seen`, or `None` without entries.
    pub fn oldest(&self) -> Option<u32> {
        self.counts.iter().position(|count| *count > 0).map(|bucket| (bucket as u32) << BUCKET_BITS)
    }
}
