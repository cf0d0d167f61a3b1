//! Pages. A cursor is the last path that was told, so an entry that is there throughout is told exactly once, whatever
//! comes and goes meanwhile. (An offset would repeat and skip entries.)

use crate::wire::name;
use std::{fmt, str::FromStr};

/// Entries of one page.
pub const PAGE_MAX: usize = 10_000;

/// Where a page ended.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Cursor(pub Vec<u8>);

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The text is not a cursor.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is not a cursor; pass one back exactly as it was given, or none to start over")]
pub struct BadCursor(pub String);

impl FromStr for Cursor {
    type Err = BadCursor;

    fn from_str(text: &str) -> Result<Cursor, BadCursor> {
        let bad = || BadCursor(text.chars().take(80).collect());
        if text.is_empty() || !text.len().is_multiple_of(2) {
            return Err(bad());
        }
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let pairs = text.as_bytes().chunks(2);
        let path: Option<Vec<u8>> =
            pairs.map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect();
        let path = path.ok_or_else(bad)?;
        name::check_path(&path).map_err(|_| bad())?;
        Ok(Cursor(path))
    }
}

/// One page of an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page<T> {
    /// What is on it.
    pub items: Vec<T>,
    /// Where the next page begins; `None` if this is the last one.
    pub next: Option<Cursor>,
}
