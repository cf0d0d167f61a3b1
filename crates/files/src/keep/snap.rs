//! Snapshots: everything that arbitration remembers, in blocks of about 256 KiB, each compressed and with a checksum.
//! Entries are written like rows on the wire, as differences to the entry before.

use super::{
    KeepError,
    encode::{self, Reading},
};
use crate::{
    arbitrate::apply::SourceState,
    tree::{Tree, dir::Certificate, slab::DirectoryId},
};
use tenure_kernel::codec::Writer;

const MAGIC: &[u8; 8] = b"TNSNAP01";
const BLOCK: usize = 256 << 10;
/// A block that claims to be longer is damaged. One record of a block is at most one directory entry or one side table row.
const BLOCK_MAX: usize = 64 << 20;

/// Bytes in blocks. A record is never torn between two blocks.
struct Blocks {
    out: Vec<u8>,
    block: Writer,
}

impl Blocks {
    fn end_of_record(&mut self) {
        if self.block.0.len() >= BLOCK {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let block = std::mem::take(&mut self.block.0);
        let packed = lz4_flex::block::compress(&block);
        let mut hasher = crc32fast::Hasher::new();
        let lengths = [(block.len() as u32).to_le_bytes(), (packed.len() as u32).to_le_bytes()];
        self.out.extend_from_slice(lengths.as_flattened());
        hasher.update(lengths.as_flattened());
        hasher.update(&packed);
        self.out.extend_from_slice(&hasher.finalize().to_le_bytes());
        self.out.extend_from_slice(&packed);
    }
}

/// The snapshot of a state.
pub fn write(state: &SourceState) -> Vec<u8> {
    let mut blocks = Blocks { out: MAGIC.to_vec(), block: Writer::default() };
    encode::head(&mut blocks.block, state);
    blocks.flush();
    let tree = &state.tree;
    let count = tree.directories().count();
    blocks.block.uint(count as u64);
    for (id, directory) in tree.directories() {
        encode::directory(&mut blocks.block, tree, id, directory);
        let mut before = encode::RowBefore::default();
        directory.for_each(|own, row| {
            before.write(&mut blocks.block, own, &row);
            blocks.end_of_record();
        });
        blocks.end_of_record();
    }
    for change in state.feed.kept().rev().take(CHANGES_MAX).collect::<Vec<_>>().into_iter().rev() {
        blocks.block.u8(1);
        encode::change(&mut blocks.block, change);
        blocks.end_of_record();
    }
    blocks.block.u8(0);
    blocks.flush();
    // The end: a block without bytes.
    blocks.flush();
    blocks.out
}

/// Changes that a snapshot has.
pub const CHANGES_MAX: usize = 65_536;

/// Reads a snapshot.
pub fn read(bytes: &[u8], file: &str, feed_bytes_max: usize) -> Result<SourceState, KeepError> {
    let damaged =
        |at: usize, what| KeepError::Damaged { file: file.to_owned(), at: at as u64, what };
    let payload = unpack(bytes).map_err(|(at, what)| damaged(at, what))?;
    let unreadable = |_| damaged(0, "a field cannot be read");
    let mut reading = Reading::new(&payload);
    let mut head = reading.head().map_err(unreadable)?;
    let mut tree = Tree::restored(head.base, std::mem::take(&mut head.sides));
    tree.set_root(head.root);
    let count = reading.uint().map_err(unreadable)?;
    for _ in 0..count {
        let one = reading.directory().map_err(unreadable)?;
        let mut draft = crate::tree::leaf::Draft::default();
        let mut before = encode::RowBefore::default();
        for _ in 0..one.entries {
            let row = before.read(&mut reading).map_err(unreadable)?;
            draft.push(before.name(), row);
        }
        let certificate: Option<Certificate> = one.certificate;
        let id = DirectoryId(one.id);
        tree.restore_directory(id, DirectoryId(one.parent), &one.name, certificate, draft);
        tree.restore_sums(id, one.last_activity, one.newest_mtime);
    }
    if !tree.finish_restore() {
        return Err(damaged(0, "a directory that an entry names is not there"));
    }
    let mut changes = Vec::new();
    while reading.flag().map_err(unreadable)? {
        changes.push(reading.change().map_err(unreadable)?);
    }
    if !reading.is_done() {
        return Err(damaged(0, "there is more than it should have"));
    }
    Ok(head.into_state(tree, changes, feed_bytes_max))
}

fn unpack(bytes: &[u8]) -> Result<Vec<u8>, (usize, &'static str)> {
    let mut rest = bytes.strip_prefix(MAGIC).ok_or((0, "it is not a snapshot of this version"))?;
    let mut payload = Vec::new();
    loop {
        let at = bytes.len() - rest.len();
        let (header, after) = rest.split_first_chunk::<12>().ok_or((at, "it ends too early"))?;
        let number = |from: usize| {
            header[from..from + 4].iter().rev().fold(0usize, |n, byte| n << 8 | usize::from(*byte))
        };
        let (raw, packed) = (number(0), number(4));
        if raw > BLOCK_MAX {
            return Err((at, "a block is too long"));
        }
        let block = after.get(..packed).ok_or((at, "it ends too early"))?;
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&header[..8]);
        hasher.update(block);
        if hasher.finalize() as usize != number(8) {
            return Err((at, "the checksum of a block differs"));
        }
        let block_bytes = lz4_flex::block::decompress(block, raw);
        let block_bytes = block_bytes.map_err(|_| (at, "a block cannot be decompressed"))?;
        if block_bytes.len() != raw {
            return Err((at, "a block has another length than it names"));
        }
        rest = &after[packed..];
        if raw == 0 {
            return if rest.is_empty() {
                Ok(payload)
            } else {
                Err((at, "something follows its end"))
            };
        }
        payload.extend_from_slice(&block_bytes);
    }
}
