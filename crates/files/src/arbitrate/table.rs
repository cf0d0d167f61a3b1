//! What follows from one observation for one name, as data. `docs/files/arbitration.md` is printed from it.

/// What is known about a name, and how the observation lies to it in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Known {
    /// Neither an entry nor a tombstone.
    Nothing = 0,
    /// An entry; the observation was made after the last one of it.
    EntryAfter = 1,
    /// An entry; the observation is older, or overlaps the last one of it.
    EntryNotAfter = 2,
    /// A tombstone; the observation was made after the deletion.
    TombstoneAfter = 3,
    /// A tombstone; the observation is older, or overlaps the deletion.
    TombstoneNotAfter = 4,
    /// An entry whose deletion the brake holds; the observation was made after it.
    HeldAfter = 5,
}

/// What the observation says about the name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told {
    /// A look found it.
    Exists = 0,
    /// A look found that it is not there.
    Missing = 1,
    /// A listing names it.
    Named = 2,
    /// A complete listing does not name it.
    NotNamedComplete = 3,
    /// A listing of a directory that changed meanwhile does not name it.
    NotNamedRacy = 4,
    /// A listing with an error does not name it.
    NotNamedPartial = 5,
    /// Its directory is as it was when it was listed.
    Silent = 6,
    /// A rename moved something to this name.
    Moved = 7,
}

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Nothing.
    Nothing,
    /// The entry is added, unless the certificate of its directory denies it.
    Add,
    /// The entry is added, whatever its mtime.
    Revive,
    /// The rules of order decide (see [`super::order`]).
    Order,
    /// The entry and everything below it is deleted, and leaves a tombstone.
    Delete,
    /// The same, within the limits of the brake.
    DeleteBraked,
    /// Nobody can tell: what is shown stays, and a forced look is asked for.
    Doubt,
    /// Dropped if the observation ended before the deletion, or is of the deleted inode; else a doubt.
    DropOrDoubt,
    /// The certificate of the directory is renewed if it is of the same state; else the directory is listed again.
    Certify,
    /// The absence is remembered for as long as a tombstone is.
    Note,
    /// The directory is listed again.
    Relist,
    /// The subtree moves, if the inode is the one that was known at the old name.
    Relink,
    /// The brake lets the entry go: it exists.
    Release,
    /// The deletion has its second witness, if that is late enough.
    Witness,
}

use Action::*;

/// Rows as [`Known`], columns as [`Told`].
pub static TABLE: [[Action; 8]; 6] = [
    [Add, Note, Add, Nothing, Nothing, Nothing, Relist, Add],
    [Order, Delete, Order, DeleteBraked, Doubt, Nothing, Certify, Relink],
    [Order, Doubt, Order, Doubt, Nothing, Nothing, Nothing, Doubt],
    [Revive, Note, Revive, Nothing, Nothing, Nothing, Nothing, Revive],
    [DropOrDoubt, Nothing, DropOrDoubt, Nothing, Nothing, Nothing, Nothing, Doubt],
    [Release, Witness, Release, Witness, Nothing, Nothing, Nothing, Relink],
];

/// The table's answer.
pub fn action(known: Known, told: Told) -> Action {
    TABLE[known as usize][told as usize]
}

/// The page of the documentation.
pub fn to_markdown() -> String {
    const KNOWN: [&str; 6] = [
        "nothing",
        "entry, observed after it",
        "entry, not after",
        "tombstone, observed after it",
        "tombstone, not after",
        "held by the brake, observed after it",
    ];
    let mut page = "# Arbitration\n\nGenerated from the table in `crates/files/src/arbitrate/table.rs`; \
        `TENURE_BLESS=1 cargo test -p tenure-files arbitration` writes it.\n\n\
        Rows: what is known about a name, and how the observation lies to it in time. Columns: what the observation says.\n\n\
        | known | look: exists | look: missing | named in a listing | not named, complete | not named, racy \
        | not named, partial | directory silent | moved to here |\n|---|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    for (known, actions) in KNOWN.iter().zip(&TABLE) {
        page.push_str(&format!("| {known} |"));
        for action in actions {
            page.push_str(&format!(" {} |", action.phrase()));
        }
        page.push('\n');
    }
    page
}

impl Action {
    fn phrase(self) -> &'static str {
        match self {
            Nothing => "–",
            Add => "add, unless a later complete listing of the directory denies it",
            Revive => "add, whatever its mtime",
            Order => "rules of order",
            Delete => "delete the subtree, leave a tombstone",
            DeleteBraked => "the same, within the brake",
            Doubt => "doubt",
            DropOrDoubt => "ended before, or the deleted inode: drop; else doubt",
            Certify => "renew the certificate, or list again",
            Note => "remember the absence",
            Relist => "list again",
            Relink => "move the subtree, leave a tombstone",
            Release => "release",
            Witness => "second witness",
        }
    }
}
