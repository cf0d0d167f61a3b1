//! The regular expressions of a schema.

use serde_json::Value;

/// Keywords that turn what a part accepts around, or count what it accepts. Below one of them a part that accepts more can
/// make the whole accept less.
const TURNED: [&str; 10] = [
    "not",
    "if",
    "oneOf",
    "contains",
    "dependentSchemas",
    "dependencies",
    "patternProperties",
    "unevaluatedProperties",
    "unevaluatedItems",
    "$dynamicRef",
];

/// All patterns, each with its place. Members of values in `const`, `enum`, `default` and `examples` may look like patterns: they
/// are not.
pub(crate) fn of(schema: &Value) -> Vec<(String, &str)> {
    let mut found = Vec::new();
    collect(schema, "", &mut found);
    found
}

fn collect<'a>(schema: &'a Value, at: &str, found: &mut Vec<(String, &'a str)>) {
    let Value::Object(words) = schema else { return };
    for (word, inner) in words {
        let here = format!("{at}/{}", escaped(word));
        match (word.as_str(), inner) {
            ("pattern", Value::String(pattern)) => found.push((here, pattern)),
            ("const" | "enum" | "default" | "examples", _) => {}
            // Their members have names that somebody chose.
            (
                "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas"
                | "dependencies",
                Value::Object(named),
            ) => {
                for (name, part) in named {
                    let here = format!("{here}/{}", escaped(name));
                    if word == "patternProperties" {
                        found.push((here.clone(), name));
                    }
                    collect(part, &here, found);
                }
            }
            (_, Value::Array(parts)) => {
                for (n, part) in parts.iter().enumerate() {
                    collect(part, &format!("{here}/{n}"), found);
                }
            }
            (_, part) => collect(part, &here, found),
        }
    }
}

fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// A schema that accepts everything that the given one accepts, without these patterns.
pub(crate) fn without(schema: &Value, patterns: &[String]) -> Value {
    if has_any_word(schema, &TURNED) {
        return Value::Bool(true);
    }
    let mut schema = schema.clone();
    remove(&mut schema, patterns);
    schema
}

fn has_any_word(schema: &Value, words: &[&str]) -> bool {
    match schema {
        Value::Object(members) => members
            .iter()
            .any(|(word, inner)| words.contains(&word.as_str()) || has_any_word(inner, words)),
        Value::Array(items) => items.iter().any(|item| has_any_word(item, words)),
        _ => false,
    }
}

fn remove(schema: &mut Value, patterns: &[String]) {
    match schema {
        Value::Object(members) => {
            let is_one = |v: &Value| v.as_str().is_some_and(|p| is_named(patterns, p));
            if members.get("pattern").is_some_and(is_one) {
                members.remove("pattern");
            }
            members.values_mut().for_each(|inner| remove(inner, patterns));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| remove(item, patterns)),
        _ => {}
    }
}

/// Long patterns are named by their beginning.
fn is_named(patterns: &[String], pattern: &str) -> bool {
    patterns.iter().any(|named| pattern.starts_with(named.as_str()))
}

/// About how many states the automaton of a pattern has. Counted repetitions multiply what they repeat, so that a short
/// pattern can have very many.
pub(crate) fn states(pattern: &str) -> u64 {
    /// A class of Unicode characters is a small automaton over bytes.
    const CLASS: u64 = 8;
    /// The same of a class with hundreds of ranges.
    const WIDE_CLASS: u64 = 256;
    let mut letters = pattern.chars().peekable();
    // The sum of each open group, and its last part, which a repetition multiplies.
    let mut groups: Vec<(u64, u64)> = vec![(0, 0)];
    while let Some(letter) = letters.next() {
        let part = match letter {
            '(' => {
                groups.push((0, 0));
                continue;
            }
            ')' => {
                let (sum, last) = groups.pop().unwrap_or_default();
                if groups.is_empty() {
                    groups.push((0, 0));
                }
                sum.saturating_add(last)
            }
            '[' => {
                while let Some(inner) = letters.next() {
                    match inner {
                        '\\' => drop(letters.next()),
                        ']' => break,
                        _ => {}
                    }
                }
                CLASS
            }
            '\\' => match letters.next() {
                Some('p' | 'P' | 'W' | 'S' | 'D') => WIDE_CLASS,
                _ => CLASS,
            },
            '{' => {
                let bounds: String =
                    std::iter::from_fn(|| letters.next_if(|c| *c != '}')).collect();
                letters.next();
                let most = bounds.split(',').filter_map(|n| n.trim().parse::<u64>().ok()).max();
                if let Some((_, last)) = groups.last_mut() {
                    *last = last.saturating_mul(most.unwrap_or(1).max(1));
                }
                continue;
            }
            '.' => CLASS,
            _ => 1,
        };
        if let Some((sum, last)) = groups.last_mut() {
            *sum = sum.saturating_add(*last);
            *last = part;
        }
    }
    let all = groups
        .into_iter()
        .fold(0u64, |all, (sum, last)| all.saturating_add(sum).saturating_add(last));
    all.max(1)
}
