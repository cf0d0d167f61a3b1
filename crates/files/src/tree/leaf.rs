//! Up to 128 entries of one directory, sorted by name, in one allocation:
//!
//! | part | bytes |
//! |---|---|
//! | header: count, length of the signature, directories, zone map (least and greatest size and mtime) | 40 |
//! | signature | 8 to 256, see [`super::signature`] |
//! | rows | 40 each |
//! | restarts: where every sixteenth name begins | 2 each |
//! | names, each without the prefix that it shares with the one before; every sixteenth is whole | |
//!
//! A new state of an entry is written in place; a new name rebuilds the leaf. A frozen copy shares leaves, and a leaf
//! that is shared is copied before it is written to.

use super::signature;
use crate::{facts::EntryType, wire::name::shared};
use std::{cmp::Ordering, sync::Arc};

/// Entries of one leaf.
pub const ENTRIES_MAX: usize = 128;
/// Bytes of the names of one leaf: offsets have two bytes.
pub const NAME_BYTES_MAX: usize = 32_768;
const RESTART_EVERY: usize = 16;
const HEADER: usize = 40;
const ROW: usize = 40;
/// The largest size that six bytes hold. A row that has it has its exact size in a side table.
pub const SIZE_MAX: u64 = (1 << 48) - 1;

/// What one entry has in memory beside its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Row {
    /// Bytes, at most [`SIZE_MAX`]; of a directory its id.
    pub size: u64,
    /// Nanoseconds since 1970.
    pub mtime: i64,
    /// Nanoseconds since 1970.
    pub ctime: i64,
    /// Inode number.
    pub inode: u64,
    /// Type and permission bits.
    pub type_and_mode: u16,
    /// Index into the table of owners.
    pub owner: u16,
    /// Ticks since the tree's base: the end of the last interval in which this state was observed.
    pub seen: u32,
    /// The number of the scout that observed it; 0 = any.
    pub scout: u8,
    /// See [`super::flag`].
    pub flags: u8,
}

impl Row {
    /// File, directory, …
    pub fn entry_type(&self) -> EntryType {
        EntryType::from_number((self.type_and_mode >> 12) as u8).unwrap_or_default()
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.entry_type() == EntryType::Directory
    }

    /// Whether this flag is set.
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag > 0
    }

    fn write(&self, out: &mut [u8]) {
        out[..6].copy_from_slice(&self.size.min(SIZE_MAX).to_le_bytes()[..6]);
        out[6..14].copy_from_slice(&self.mtime.to_le_bytes());
        out[14..22].copy_from_slice(&self.ctime.to_le_bytes());
        out[22..30].copy_from_slice(&self.inode.to_le_bytes());
        out[30..32].copy_from_slice(&self.type_and_mode.to_le_bytes());
        out[32..34].copy_from_slice(&self.owner.to_le_bytes());
        out[34..38].copy_from_slice(&self.seen.to_le_bytes());
        out[38] = self.scout;
        out[39] = self.flags;
    }

    fn read(from: &[u8]) -> Row {
        let size = u64::from(u32_at(from, 0)) | u64::from(u16_at(from, 4)) << 32;
        Row {
            size,
            mtime: u64_at(from, 6) as i64,
            ctime: u64_at(from, 14) as i64,
            inode: u64_at(from, 22),
            type_and_mode: u16_at(from, 30),
            owner: u16_at(from, 32),
            seen: u32_at(from, 34),
            scout: from[38],
            flags: from[39],
        }
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// Entries on their way into leaves: names in one buffer, in ascending order.
#[derive(Default)]
pub struct Draft {
    names: Vec<u8>,
    ends: Vec<u32>,
    rows: Vec<Row>,
}

impl Draft {
    /// Appends an entry; its name is greater than all before it.
    pub fn push(&mut self, name: &[u8], row: Row) {
        self.names.extend_from_slice(name);
        self.ends.push(self.names.len() as u32);
        self.rows.push(row);
    }

    /// How many entries there are.
    fn len(&self) -> usize {
        self.rows.len()
    }

    fn name(&self, i: usize) -> &[u8] {
        let from = if i == 0 { 0 } else { self.ends[i - 1] as usize };
        &self.names[from..self.ends[i] as usize]
    }

    /// The entries as leaves of about equal length.
    pub fn into_leaves(self) -> Vec<Leaf> {
        let pieces =
            self.len().div_ceil(ENTRIES_MAX).max(self.names.len().div_ceil(NAME_BYTES_MAX / 2));
        let each = self.len().div_ceil(pieces.max(1)).max(1);
        let mut leaves = Vec::with_capacity(pieces);
        let mut from = 0;
        while from < self.len() {
            let mut to = (from + each).min(self.len());
            let bytes = |to: usize| (from..to).map(|i| self.name(i).len()).sum::<usize>();
            while to - from > 1 && bytes(to) > NAME_BYTES_MAX {
                to = from + (to - from) / 2;
            }
            leaves.push(Leaf::build(&self, from, to));
            from = to;
        }
        leaves
    }
}

/// See the head of this module.
#[derive(Clone, Debug)]
pub struct Leaf(Arc<[u8]>);

impl Leaf {
    fn build(draft: &Draft, from: usize, to: usize) -> Leaf {
        let count = to - from;
        let signature = signature::build((from..to).map(|i| draft.name(i)));
        let restarts_at = HEADER + signature.len() + count * ROW;
        let names_at = restarts_at + count.div_ceil(RESTART_EVERY) * 2;
        let mut bytes = vec![0; names_at];
        bytes[..2].copy_from_slice(&(count as u16).to_le_bytes());
        bytes[2..4].copy_from_slice(&(signature.len() as u16).to_le_bytes());
        bytes[HEADER..HEADER + signature.len()].copy_from_slice(&signature);
        let directories = draft.rows[from..to].iter().filter(|row| row.is_directory()).count();
        bytes[4..6].copy_from_slice(&(directories as u16).to_le_bytes());
        let mut zone = Zone::EMPTY;
        for i in from..to {
            let at = HEADER + signature.len() + (i - from) * ROW;
            draft.rows[i].write(&mut bytes[at..at + ROW]);
            zone.cover(&draft.rows[i]);
            let name = draft.name(i);
            let mut same = 0;
            if (i - from).is_multiple_of(RESTART_EVERY) {
                let at = restarts_at + (i - from) / RESTART_EVERY * 2;
                let offset = (bytes.len() - names_at) as u16;
                bytes[at..at + 2].copy_from_slice(&offset.to_le_bytes());
            } else {
                same = shared(draft.name(i - 1), name);
            }
            push_length(&mut bytes, same);
            push_length(&mut bytes, name.len() - same);
            bytes.extend_from_slice(&name[same..]);
        }
        zone.write(&mut bytes);
        Leaf(bytes.into())
    }

    /// How many entries it has.
    pub fn len(&self) -> usize {
        usize::from(u16_at(&self.0, 0))
    }

    /// Whether it has none. A directory has no such leaf.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many of its entries are directories.
    pub fn directories(&self) -> u16 {
        u16_at(&self.0, 4)
    }

    fn signature_len(&self) -> usize {
        usize::from(u16_at(&self.0, 2))
    }

    /// The Bloom filter of the names' trigrams.
    pub fn signature(&self) -> &[u8] {
        &self.0[HEADER..HEADER + self.signature_len()]
    }

    /// Bounds of sizes and times. They may be wider than the rows, never narrower.
    pub fn zone(&self) -> Zone {
        Zone::read(&self.0)
    }

    fn row_at(&self, i: usize) -> usize {
        HEADER + self.signature_len() + i * ROW
    }

    /// The row of the `i`-th entry.
    pub fn row(&self, i: usize) -> Row {
        let at = self.row_at(i);
        Row::read(&self.0[at..at + ROW])
    }

    /// Writes the row of the `i`-th entry, in place unless a frozen copy shares the leaf.
    pub fn set_row(&mut self, i: usize, row: &Row) {
        let at = self.row_at(i);
        let mut zone = self.zone();
        zone.cover(row);
        let others = self.directories() - u16::from(self.row(i).is_directory());
        let directories = others + u16::from(row.is_directory());
        if Arc::get_mut(&mut self.0).is_none() {
            self.0 = Arc::from(&self.0[..]);
        }
        // Nobody else has it: it was just made if somebody had.
        let Some(bytes) = Arc::get_mut(&mut self.0) else { return };
        row.write(&mut bytes[at..at + ROW]);
        bytes[4..6].copy_from_slice(&directories.to_le_bytes());
        zone.write(bytes);
    }

    fn restarts_at(&self) -> usize {
        self.row_at(self.len())
    }

    fn names_at(&self) -> usize {
        self.restarts_at() + self.len().div_ceil(RESTART_EVERY) * 2
    }

    fn restart(&self, block: usize) -> usize {
        self.names_at() + usize::from(u16_at(&self.0, self.restarts_at() + block * 2))
    }

    /// The first name of a block of sixteen, which is whole.
    fn block_name(&self, block: usize) -> &[u8] {
        let mut at = self.restart(block);
        let _shares_nothing = take_length(&self.0, &mut at);
        let length = take_length(&self.0, &mut at);
        &self.0[at..at + length]
    }

    /// The least name.
    pub fn first_name(&self) -> &[u8] {
        self.block_name(0)
    }

    /// Where `name` is, or where it would be.
    pub fn find(&self, name: &[u8]) -> Result<usize, usize> {
        let blocks = self.len().div_ceil(RESTART_EVERY);
        // The last block whose first name is not greater.
        let (mut low, mut high) = (0, blocks);
        while low < high {
            let middle = (low + high) / 2;
            if self.block_name(middle) <= name { low = middle + 1 } else { high = middle }
        }
        let Some(block) = low.checked_sub(1) else { return Err(0) };
        let mut names = self.names_from(block);
        while let Some(i) = names.advance() {
            match names.name().cmp(name) {
                Ordering::Less => {}
                Ordering::Equal => return Ok(i),
                Ordering::Greater => return Err(i),
            }
            if i + 1 == (block + 1) * RESTART_EVERY {
                return Err(i + 1);
            }
        }
        Err(self.len())
    }

    /// All names in order.
    pub fn names(&self) -> Names<'_> {
        self.names_from(0)
    }

    fn names_from(&self, block: usize) -> Names<'_> {
        let at = if self.is_empty() { 0 } else { self.restart(block) };
        Names { leaf: self, at, next: block * RESTART_EVERY, name: Vec::new() }
    }

    /// All entries, appended to `draft`.
    pub fn copy_to(&self, draft: &mut Draft) {
        let mut names = self.names();
        while let Some(i) = names.advance() {
            draft.push(names.name(), self.row(i));
        }
    }

    /// Bytes of the allocation, without the counters of its `Arc`.
    pub fn bytes(&self) -> usize {
        self.0.len()
    }
}

/// Decodes names one after the other into one buffer.
pub struct Names<'a> {
    leaf: &'a Leaf,
    at: usize,
    next: usize,
    name: Vec<u8>,
}

impl Names<'_> {
    /// Goes to the next name; its place in the leaf.
    pub fn advance(&mut self) -> Option<usize> {
        if self.next == self.leaf.len() {
            return None;
        }
        let bytes = &self.leaf.0;
        let same = take_length(bytes, &mut self.at);
        let length = take_length(bytes, &mut self.at);
        self.name.truncate(same);
        self.name.extend_from_slice(&bytes[self.at..self.at + length]);
        self.at += length;
        self.next += 1;
        Some(self.next - 1)
    }

    /// The name to which [`Names::advance`] went.
    pub fn name(&self) -> &[u8] {
        &self.name
    }
}

/// Lengths are at most 1,024: one byte below 128, else two.
fn push_length(out: &mut Vec<u8>, length: usize) {
    if length < 128 {
        out.push(length as u8);
    } else {
        out.extend_from_slice(&[(length & 0x7f) as u8 | 0x80, (length >> 7) as u8]);
    }
}

fn take_length(bytes: &[u8], at: &mut usize) -> usize {
    let first = usize::from(bytes[*at]);
    *at += 1;
    if first < 128 {
        return first;
    }
    let second = usize::from(bytes[*at]);
    *at += 1;
    first & 0x7f | second << 7
}

/// Bounds of the sizes of files and of the mtimes of all entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Zone {
    /// Least and greatest size of files.
    pub size: (u64, u64),
    /// Least and greatest mtime.
    pub mtime: (i64, i64),
}

impl Zone {
    const EMPTY: Zone = Zone { size: (u64::MAX, 0), mtime: (i64::MAX, i64::MIN) };

    fn cover(&mut self, row: &Row) {
        if !row.is_directory() {
            self.size = (self.size.0.min(row.size), self.size.1.max(row.size));
        }
        self.mtime = (self.mtime.0.min(row.mtime), self.mtime.1.max(row.mtime));
    }

    fn write(&self, bytes: &mut [u8]) {
        bytes[8..16].copy_from_slice(&self.size.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.size.1.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.mtime.0.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.mtime.1.to_le_bytes());
    }

    fn read(bytes: &[u8]) -> Zone {
        Zone {
            size: (u64_at(bytes, 8), u64_at(bytes, 16)),
            mtime: (u64_at(bytes, 24) as i64, u64_at(bytes, 32) as i64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn row(n: u64) -> Row {
        Row {
            size: n.wrapping_mul(0x9e37_79b9) & SIZE_MAX,
            mtime: -(n as i64),
            ctime: i64::MAX - n as i64,
            inode: u64::MAX - n,
            type_and_mode: 0x1fff,
            owner: n as u16,
            seen: u32::MAX - n as u32,
            scout: 255,
            flags: 0xa5,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn leaves_keep_names_and_rows(
            names in prop::collection::btree_set(prop::collection::vec(1u8..=255, 1..40), 0..300),
            probes in prop::collection::vec(prop::collection::vec(1u8..=255, 1..4), 8),
        ) {
            let model: BTreeMap<Vec<u8>, Row> =
                names.into_iter().enumerate().map(|(i, name)| (name, row(i as u64))).collect();
            let mut draft = Draft::default();
            for (name, row) in &model {
                draft.push(name, *row);
            }
            let mut leaves = draft.into_leaves();
            let mut read = BTreeMap::new();
            for leaf in &mut leaves {
                prop_assert!(leaf.len() <= ENTRIES_MAX && !leaf.is_empty());
                let frozen = leaf.clone();
                leaf.set_row(0, &Row { scout: 1, ..leaf.row(0) });
                prop_assert_eq!((frozen.row(0).scout, leaf.row(0).scout), (255, 1));
                let mut cursor = frozen.names();
                while let Some(i) = cursor.advance() {
                    prop_assert_eq!(frozen.find(cursor.name()), Ok(i));
                    read.insert(cursor.name().to_vec(), frozen.row(i));
                }
                for probe in &probes {
                    let names: Vec<_> = model.keys().filter(|n| frozen.find(n).is_ok()).collect();
                    let place = names.binary_search(&probe);
                    prop_assert_eq!(frozen.find(probe), place);
                }
            }
            prop_assert_eq!(read, model);
        }
    }

    #[test]
    fn the_longest_names_fit() {
        let mut draft = Draft::default();
        for i in 0..ENTRIES_MAX as u8 {
            draft.push(&[i + 1; crate::wire::name::NAME_BYTES_MAX], row(u64::from(i)));
        }
        let leaves = draft.into_leaves();
        assert_eq!(leaves.iter().map(Leaf::len).sum::<usize>(), ENTRIES_MAX);
        for leaf in &leaves {
            assert_eq!(leaf.first_name().len(), crate::wire::name::NAME_BYTES_MAX);
            assert_eq!(leaf.find(leaf.first_name()), Ok(0));
        }
    }
}
