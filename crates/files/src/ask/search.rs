//! Search by name, size, time and type. Literals of the pattern are compared with the signatures of leaves, bounds with
//! their zone maps; only leaves that may match are decoded.

use super::{
    Answer, NotFound, answer, find,
    page::{Cursor, PAGE_MAX, Page},
    walk::Walk,
};
use crate::{
    facts::{EntryType, Facts},
    tree::{Tree, leaf::Leaf, signature},
    wire::name,
};
use regex::bytes::{Regex, RegexBuilder};
use regex_syntax::hir::{Hir, HirKind};

/// Bytes of a pattern.
pub const PATTERN_BYTES_MAX: usize = 4_096;
/// Memory that a compiled pattern may have.
const COMPILED_BYTES_MAX: usize = 1 << 20;

/// What names are compared with.
#[derive(Clone, Debug)]
pub struct Pattern {
    matcher: Matcher,
    /// Bytes that every matching name has, in any case.
    literal: Vec<u8>,
    /// A path below which every match is.
    top: Vec<u8>,
}

#[derive(Clone, Debug)]
enum Matcher {
    All,
    /// Lower-cased bytes that the name contains, in any case.
    Contains(Vec<u8>),
    Name(Regex),
    Path(Regex),
}

/// The pattern cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadPattern {
    /// Longer than [`PATTERN_BYTES_MAX`].
    #[error("the pattern has more than {PATTERN_BYTES_MAX} bytes")]
    Long,
    /// A bracket or a brace is not closed, or a backslash ends the pattern.
    #[error(
        "the pattern is not a glob: {0}; use \\ before a special character that is meant literally"
    )]
    Glob(&'static str),
    /// Not a regular expression, or one that takes too much memory.
    #[error("the pattern is not a regular expression: {0}")]
    Regex(String),
}

impl Pattern {
    /// Every name.
    pub fn all() -> Pattern {
        Pattern { matcher: Matcher::All, literal: Vec::new(), top: Vec::new() }
    }

    /// Names that contain these bytes; ASCII letters in any case.
    pub fn contains(bytes: &[u8]) -> Result<Pattern, BadPattern> {
        check_length(bytes)?;
        let lower = bytes.to_ascii_lowercase();
        Ok(Pattern { matcher: Matcher::Contains(lower.clone()), literal: lower, top: Vec::new() })
    }

    /// A glob: `*` and `?` within a name, `**` across names, `[a-z]`, `[!a]`, `{a,b}`. Without a slash it is compared with
    /// names, else with whole paths.
    pub fn glob(glob: &[u8]) -> Result<Pattern, BadPattern> {
        check_length(glob)?;
        let glob = glob.strip_prefix(b"/").unwrap_or(glob);
        let compiled = build(&glob_to_regex(glob)?)?;
        if !glob.contains(&b'/') {
            return Ok(Pattern {
                matcher: Matcher::Name(compiled),
                literal: longest(glob),
                top: Vec::new(),
            });
        }
        let is_plain = |name: &&[u8]| !name.is_empty() && !name.iter().any(|b| SPECIAL.contains(b));
        let parts: Vec<&[u8]> = glob.split(|b| *b == b'/').collect();
        let (last, before) = parts.split_last().map_or((&[][..], &[][..]), |(l, b)| (*l, b));
        let fixed: Vec<&[u8]> = before.iter().copied().take_while(is_plain).collect();
        // A brace may stand around a slash; then its parts are not names, and nothing is known about the last one.
        let has_braces = glob.contains(&b'{');
        let (literal, top) =
            if has_braces { Default::default() } else { (longest(last), fixed.join(&b'/')) };
        Ok(Pattern { matcher: Matcher::Path(compiled), literal, top })
    }

    /// A regular expression that is found anywhere in the name.
    pub fn regex(pattern: &str) -> Result<Pattern, BadPattern> {
        check_length(pattern.as_bytes())?;
        let compiled = build(pattern)?;
        let parsed = regex_syntax::ParserBuilder::new().utf8(false).build().parse(pattern);
        let literal = parsed.map(|hir| required(&hir)).unwrap_or_default();
        Ok(Pattern { matcher: Matcher::Name(compiled), literal, top: Vec::new() })
    }

    /// Whether a path matches.
    pub fn matches(&self, path: &[u8]) -> bool {
        let own = name::split(path).map_or(&[][..], |(_, own)| own);
        match &self.matcher {
            Matcher::All => true,
            Matcher::Contains(lower) => contains_in_any_case(own, lower),
            Matcher::Name(regex) => regex.is_match(own),
            Matcher::Path(regex) => regex.is_match(path),
        }
    }

    fn may_match_in(&self, leaf: &Leaf) -> bool {
        signature::may_contain(leaf.signature(), &self.literal)
    }
}

fn check_length(pattern: &[u8]) -> Result<(), BadPattern> {
    if pattern.len() > PATTERN_BYTES_MAX { Err(BadPattern::Long) } else { Ok(()) }
}

fn build(pattern: &str) -> Result<Regex, BadPattern> {
    let compiled = RegexBuilder::new(pattern)
        .size_limit(COMPILED_BYTES_MAX)
        .dfa_size_limit(COMPILED_BYTES_MAX)
        .build();
    compiled.map_err(|e| BadPattern::Regex(e.to_string()))
}

const SPECIAL: &[u8] = b"*?[]{}\\";

/// The longest run of a glob that stands for itself.
fn longest(glob: &[u8]) -> Vec<u8> {
    // What is in braces is a choice, and what is in brackets one byte: nothing of them is required.
    let mut depth = 0u32;
    let mut runs = vec![Vec::new()];
    let mut bytes = glob.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'\\' => {
                bytes.next();
            }
            b'*' | b'?' => {}
            _ if depth == 0 => {
                if let Some(run) = runs.last_mut() {
                    run.push(*byte);
                }
                continue;
            }
            _ => {}
        }
        runs.push(Vec::new());
    }
    runs.into_iter().max_by_key(Vec::len).unwrap_or_default()
}

fn glob_to_regex(glob: &[u8]) -> Result<String, BadPattern> {
    // Bytes, not characters; a newline is a byte like others.
    let mut regex = String::from("(?s-u)^");
    let mut braces = 0;
    let mut at = 0;
    while at < glob.len() {
        let rest = &glob[at..];
        at += 1;
        match rest {
            [b'*', b'*', b'/', ..] if at == 1 || glob[at - 2] == b'/' => {
                regex.push_str("(?:.*/)?");
                at += 2;
            }
            [b'*', b'*', ..] => {
                regex.push_str(".*");
                at += 1;
            }
            [b'*', ..] => regex.push_str("[^/]*"),
            [b'?', ..] => regex.push_str("[^/]"),
            [b'[', class @ ..] => {
                // A closing bracket that comes first stands for itself.
                let skip = usize::from(class.first() == Some(&b'!')) + 1;
                let length = class.iter().skip(skip).position(|b| *b == b']');
                let length = length.ok_or(BadPattern::Glob("a [ is not closed"))? + skip;
                push_class(&mut regex, &class[..length])?;
                at += length + 1;
            }
            [b'{', ..] => {
                braces += 1;
                regex.push_str("(?:");
            }
            [b'}', ..] if braces > 0 => {
                braces -= 1;
                regex.push(')');
            }
            [b',', ..] if braces > 0 => regex.push('|'),
            [b'\\', literal, ..] => {
                push_byte(&mut regex, *literal);
                at += 1;
            }
            [b'\\'] => return Err(BadPattern::Glob("a \\ ends it")),
            [literal, ..] => push_byte(&mut regex, *literal),
            [] => {}
        }
    }
    if braces > 0 {
        return Err(BadPattern::Glob("a { is not closed"));
    }
    regex.push('$');
    Ok(regex)
}

fn push_byte(regex: &mut String, byte: u8) {
    regex.push_str(&format!("\\x{byte:02x}"));
}

fn push_class(regex: &mut String, class: &[u8]) -> Result<(), BadPattern> {
    let (negated, class) = match class {
        [b'!', rest @ ..] => (true, rest),
        all => (false, all),
    };
    regex.push_str(if negated { "[^/" } else { "[" });
    let mut at = 0;
    while at < class.len() {
        match class[at..] {
            [from, b'-', to, ..] => {
                if from > to {
                    return Err(BadPattern::Glob("a range in [] goes backwards"));
                }
                push_byte(regex, from);
                regex.push('-');
                push_byte(regex, to);
                at += 3;
            }
            _ => {
                push_byte(regex, class[at]);
                at += 1;
            }
        }
    }
    regex.push(']');
    Ok(())
}

/// The longest literal that every match of an expression contains.
fn required(hir: &Hir) -> Vec<u8> {
    match hir.kind() {
        HirKind::Literal(literal) => literal.0.to_vec(),
        HirKind::Capture(capture) => required(&capture.sub),
        HirKind::Repetition(repetition) if repetition.min > 0 => required(&repetition.sub),
        HirKind::Concat(parts) => {
            parts.iter().map(required).max_by_key(Vec::len).unwrap_or_default()
        }
        _ => Vec::new(),
    }
}

fn contains_in_any_case(name: &[u8], lower: &[u8]) -> bool {
    let Some(first) = lower.first() else { return true };
    name.len() >= lower.len()
        && (0..=name.len() - lower.len()).any(|at| {
            name[at].to_ascii_lowercase() == *first
                && name[at..at + lower.len()].eq_ignore_ascii_case(lower)
        })
}

/// A search.
#[derive(Clone, Debug)]
pub struct SearchQuery {
    /// The directory to search in.
    pub path: Vec<u8>,
    /// What names are compared with.
    pub pattern: Pattern,
    /// Types that are told; empty for all.
    pub types: Vec<EntryType>,
    /// Least and greatest size; directories have none and do not match.
    pub size: Option<(u64, u64)>,
    /// Earliest and latest mtime, in nanoseconds.
    pub mtime: Option<(i64, i64)>,
    /// Where to go on.
    pub cursor: Option<Cursor>,
    /// Entries of the page, at most [`PAGE_MAX`].
    pub limit: usize,
    /// Leaves and entries that a page may touch: a search without matches ends too, with a cursor.
    pub work_max: u64,
}

impl SearchQuery {
    /// Everything below the root that matches.
    pub fn new(pattern: Pattern) -> SearchQuery {
        SearchQuery {
            path: Vec::new(),
            pattern,
            types: Vec::new(),
            size: None,
            mtime: None,
            cursor: None,
            limit: 1_000,
            work_max: u64::MAX,
        }
    }

    fn wants(&self, leaf: &Leaf) -> bool {
        let zone = leaf.zone();
        let sizes =
            self.size.is_none_or(|(least, most)| zone.size.1 >= least && zone.size.0 <= most);
        let times =
            self.mtime.is_none_or(|(first, last)| zone.mtime.1 >= first && zone.mtime.0 <= last);
        sizes && times && self.pattern.may_match_in(leaf)
    }

    fn matches(&self, path: &[u8], facts: &Facts) -> bool {
        let is_directory = facts.entry_type == EntryType::Directory;
        (self.types.is_empty() || self.types.contains(&facts.entry_type))
            && self.size.is_none_or(|(a, b)| !is_directory && (a..=b).contains(&facts.size))
            && self.mtime.is_none_or(|(a, b)| (a..=b).contains(&facts.mtime))
            && self.pattern.matches(path)
    }
}

/// The entries that match, in the order of paths. A page may be empty and have a cursor: the work was used up.
pub fn search(tree: &Tree, query: &SearchQuery) -> Result<Page<Answer>, NotFound> {
    let empty = || Ok(Page { items: Vec::new(), next: None });
    // Literal directories at the begin of a glob are gone to, not searched.
    let top = &query.pattern.top;
    let path = match () {
        () if name::is_within(top, &query.path) => top,
        () if name::is_within(&query.path, top) => &query.path,
        () => return empty(),
    };
    let found = match find(tree, path) {
        Err(NotFound::Absent) if path != &query.path => return empty(),
        other => other?,
    };
    let Some(id) = found.entry.directory else { return empty() };
    let after = query.cursor.as_ref().map(|cursor| cursor.0.as_slice());
    let mut walk = Walk::new(tree, path, id, after, usize::MAX, |leaf| query.wants(leaf));
    let limit = query.limit.clamp(1, PAGE_MAX);
    let mut items: Vec<Answer> = Vec::new();
    while let Some(step) = walk.next() {
        let path = step.path.clone();
        if step.is_wanted {
            let own = name::split(&step.path).map_or(&[][..], |(_, own)| own);
            let entry = tree.entry_of(step.directory, own, &step.row);
            if query.matches(&step.path, &entry.facts) {
                items.push(answer(tree, step.path, entry));
            }
        }
        if items.len() == limit || walk.work >= query.work_max {
            return Ok(Page { items, next: Some(Cursor(path)) });
        }
    }
    Ok(Page { items, next: None })
}
