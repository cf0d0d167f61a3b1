//! What changed, in order. A removed or moved subtree is one change, however many entries it has. A reader that stayed
//! away too long gets a typed [`Lost`] and starts over; it never misses a change without being told.

use crate::facts::Facts;
use std::{collections::VecDeque, fmt, str::FromStr};
use tenure_kernel::ids::EntityId;

/// A number that each change of a tree raises by one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Revision(pub u64);

/// Arbitration of another version may give the same frames other revisions; a token of it is not understood.
pub const RULES_VERSION: u32 = 1;

/// What happened to a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ChangeKind {
    /// It is there now.
    Added(Facts),
    /// Its state changed.
    Changed(Facts),
    /// Another file or directory is there; what was below the old one is gone.
    Replaced(Facts),
    /// It is gone, with everything below it.
    Removed,
    /// It is at another path now, with everything below it. What was there before is gone.
    Moved {
        /// The new path.
        to: Vec<u8>,
        /// Its state there.
        facts: Facts,
    },
}

/// One change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// Its number.
    pub revision: Revision,
    /// What changed; of a move the old path.
    pub path: Vec<u8>,
    /// How.
    pub kind: ChangeKind,
}

impl Change {
    fn bytes(&self) -> usize {
        let moved = if let ChangeKind::Moved { to, .. } = &self.kind { to.len() } else { 0 };
        size_of::<Change>() + self.path.len() + moved
    }
}

/// A position in the changes of one tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Token {
    /// The tree.
    pub tree: EntityId,
    /// The version of the rules that numbered the changes.
    pub rules: u32,
    /// The last change that was read.
    pub revision: Revision,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.tree.as_bytes() {
            write!(f, "{byte:02x}")?;
        }
        write!(f, "-{:x}-{:x}", self.rules, self.revision.0)
    }
}

/// The text is not a token.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{0:?} is not a token of changes; pass one back exactly as it was given, or none to start over"
)]
pub struct BadToken(pub String);

impl FromStr for Token {
    type Err = BadToken;

    fn from_str(text: &str) -> Result<Token, BadToken> {
        let read = || {
            let (tree, rest) = text.split_once('-')?;
            let (rules, revision) = rest.split_once('-')?;
            let mut id = [0; 16];
            if tree.len() != 32 || !tree.is_ascii() {
                return None;
            }
            for (byte, digits) in id.iter_mut().zip(tree.as_bytes().chunks(2)) {
                *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
            }
            let token = Token {
                tree: EntityId::from_bytes(id),
                rules: u32::from_str_radix(rules, 16).ok()?,
                revision: Revision(u64::from_str_radix(revision, 16).ok()?),
            };
            // Only one text is a token: no signs, no capitals, no zeros before.
            (token.to_string() == text).then_some(token)
        };
        read().ok_or_else(|| BadToken(text.to_owned()))
    }
}

/// Why changes since a token cannot be told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LostCause {
    /// The token is of another tree: the view was reset, or is served from another place.
    TreeReplaced,
    /// The changes after it are not kept any more.
    BeforeFloor,
    /// The rules that numbered changes are others.
    RulesChanged,
}

impl LostCause {
    /// The word that answers use.
    pub fn word(self) -> &'static str {
        match self {
            LostCause::TreeReplaced => "tree_replaced",
            LostCause::BeforeFloor => "before_floor",
            LostCause::RulesChanged => "rules_changed",
        }
    }
}

/// Changes were lost: read the tree, then go on from `restart`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lost {
    /// Why.
    pub cause: LostCause,
    /// Where to go on after the tree was read. Changes that come while it is read come again.
    pub restart: Token,
}

/// The last changes of a tree.
#[derive(Clone, Debug)]
pub struct Feed {
    tree: EntityId,
    revision: Revision,
    changes: VecDeque<Change>,
    bytes: usize,
    bytes_max: usize,
}

impl Feed {
    /// No change so far; at most about `bytes_max` bytes of changes are kept.
    pub fn new(tree: EntityId, bytes_max: usize) -> Feed {
        Feed { tree, revision: Revision(0), changes: VecDeque::new(), bytes: 0, bytes_max }
    }

    /// A feed that goes on where another ended: its last changes, of which the last has this number.
    pub fn resume(
        tree: EntityId,
        bytes_max: usize,
        revision: Revision,
        changes: Vec<Change>,
    ) -> Feed {
        let bytes = changes.iter().map(Change::bytes).sum();
        let mut feed = Feed { tree, revision, changes: changes.into(), bytes, bytes_max };
        feed.shrink();
        feed
    }

    /// The tree that it is about.
    pub fn tree(&self) -> EntityId {
        self.tree
    }

    /// The number of the last change.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Adds a change.
    pub fn push(&mut self, path: Vec<u8>, kind: ChangeKind) {
        self.revision.0 += 1;
        let change = Change { revision: self.revision, path, kind };
        self.bytes += change.bytes();
        self.changes.push_back(change);
        self.shrink();
    }

    fn shrink(&mut self) {
        while self.bytes > self.bytes_max
            && let Some(oldest) = self.changes.pop_front()
        {
            self.bytes -= oldest.bytes();
        }
    }

    /// The changes that are kept, oldest first.
    pub fn kept(&self) -> impl DoubleEndedIterator<Item = &Change> {
        self.changes.iter()
    }

    /// The token of a revision, which must be durable.
    pub fn token(&self, revision: Revision) -> Token {
        Token { tree: self.tree, rules: RULES_VERSION, revision }
    }

    /// At most `limit` changes after `token`, none after `durable`: a change that a crash could take back is not told.
    pub fn since(
        &self,
        token: &Token,
        durable: Revision,
        limit: usize,
    ) -> Result<(Vec<&Change>, Token), Lost> {
        let durable = durable.min(self.revision);
        let lost = |cause| Err(Lost { cause, restart: self.token(durable) });
        if token.tree != self.tree {
            return lost(LostCause::TreeReplaced);
        }
        if token.rules != RULES_VERSION {
            return lost(LostCause::RulesChanged);
        }
        // A token from the future is of a tree whose last changes a crash took back: none was given out before it was
        // durable, so it was changed on its way. Nothing after it is known.
        if token.revision > self.revision {
            return lost(LostCause::BeforeFloor);
        }
        let first_kept = self.changes.front().map_or(self.revision.0 + 1, |c| c.revision.0);
        if token.revision.0 + 1 < first_kept {
            return lost(LostCause::BeforeFloor);
        }
        let skip = (token.revision.0 + 1 - first_kept) as usize;
        let after = self.changes.iter().skip(skip).take_while(|c| c.revision <= durable);
        let changes: Vec<&Change> = after.take(limit).collect();
        let last = changes.last().map_or(token.revision, |change| change.revision);
        Ok((changes, self.token(last)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn feed(changes: u64, bytes_max: usize) -> Feed {
        let mut feed = Feed::new(EntityId::from_bytes([1; 16]), bytes_max);
        for i in 0..changes {
            feed.push(format!("{i}").into_bytes(), ChangeKind::Removed);
        }
        feed
    }

    #[test]
    fn what_is_lost_is_typed_and_says_where_to_go_on() {
        let feed = feed(100, 2_000);
        let durable = Revision(90);
        let cause = |token: &Token| {
            feed.since(token, durable, 10).map_err(|lost| {
                assert_eq!(lost.restart, feed.token(durable));
                lost.cause.word()
            })
        };
        let at = |revision| feed.token(Revision(revision));
        assert_eq!(
            cause(&Token { tree: EntityId::from_bytes([2; 16]), ..at(95) }),
            Err("tree_replaced")
        );
        assert_eq!(cause(&Token { rules: 0, ..at(95) }), Err("rules_changed"));
        assert_eq!(cause(&at(0)), Err("before_floor"));
        assert_eq!(cause(&at(101)), Err("before_floor"));
        let first = feed.kept().next().unwrap().revision.0;
        assert!(
            cause(&at(first - 2)).is_err() && cause(&at(first - 1)).is_ok(),
            "at the floor and before it"
        );
    }

    #[test]
    fn changes_that_are_not_durable_are_not_told() {
        let feed = feed(10, usize::MAX);
        let (changes, token) = feed.since(&feed.token(Revision(3)), Revision(5), 100).unwrap();
        assert_eq!(changes.iter().map(|c| c.revision.0).collect::<Vec<_>>(), [4, 5]);
        assert_eq!(token.revision, Revision(5));
        let (none, same) = feed.since(&token, Revision(5), 100).unwrap();
        assert!(none.is_empty() && same == token);
    }

    proptest! {
        #[test]
        fn pages_of_changes_have_each_once(count in 0u64..60, limit in 1usize..9, kept in 0usize..4_000) {
            let feed = feed(count, kept);
            let floor = feed.kept().next().map_or(count, |c| c.revision.0 - 1);
            let mut token = feed.token(Revision(floor));
            let mut read = Vec::new();
            loop {
                let (changes, next) = feed.since(&token, Revision(count), limit).unwrap();
                if changes.is_empty() {
                    break;
                }
                read.extend(changes.iter().map(|c| c.revision.0));
                token = next;
            }
            prop_assert_eq!(read, (floor + 1..=count).collect::<Vec<_>>());
        }

        #[test]
        fn tokens_are_read_as_they_were_written(tree: [u8; 16], rules: u32, revision: u64, noise in ".{0,60}") {
            let token = Token { tree: EntityId::from_bytes(tree), rules, revision: Revision(revision) };
            prop_assert_eq!(token.to_string().parse(), Ok(token));
            let text = token.to_string();
            prop_assert!(text.to_uppercase().parse::<Token>().is_err() || text == text.to_uppercase());
            if let Ok(read) = noise.parse::<Token>() {
                prop_assert_eq!(read.to_string(), noise);
            }
        }
    }
}
