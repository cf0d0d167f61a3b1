//! How much work a validation is, counted before it begins.
//!
//! The unit is one comparison of a part of the schema with a part of the value. A comparison that the validator repeats is
//! counted as often, but worked out once: the count of a pair is remembered.

use crate::pattern;
use serde_json::Value;
use std::collections::HashMap;

/// The most comparisons of one validation.
pub const COST_MAX: u64 = 1_000_000;
/// How deep references and nested parts lead.
pub const DEPTH_MAX: usize = 400;
/// Bytes times states of a pattern that count as one comparison.
const MATCH_UNIT: u64 = 256;

/// The references in a schema: each is a level that a reader of the schema descends.
pub fn references(schema: &Value) -> usize {
    match schema {
        Value::Object(members) => members
            .iter()
            .map(|(word, inner)| usize::from(word == "$ref") + references(inner))
            .sum(),
        Value::Array(items) => items.iter().map(references).sum(),
        _ => 0,
    }
}

/// Why the references of a schema cannot be followed here. All that this file counts rests on references that are pointers
/// from the root: anchors, dynamic references and parts with an `$id` of their own lead elsewhere.
pub(crate) fn unsupported(schema: &Value) -> Option<String> {
    let is_draft_4 = schema["$schema"].as_str().is_some_and(|s| s.contains("draft-04"));
    let mut parts = vec![schema];
    while let Some(part) = parts.pop() {
        match part {
            Value::Object(words) => {
                for (word, inner) in words {
                    let text = inner.as_str();
                    let wrong = match (word.as_str(), text) {
                        ("$ref", Some(to)) => resolve(schema, to).is_none(),
                        ("$dynamicRef" | "$recursiveRef", Some(_)) => true,
                        ("$id", Some(_)) => !std::ptr::eq(part, schema),
                        ("id", Some(_)) => is_draft_4 && !std::ptr::eq(part, schema),
                        _ => false,
                    };
                    if wrong {
                        let to = text.unwrap_or_default();
                        return Some(format!(
                            "{word} {to:?}: a reference is a pointer into the same schema, such as #/$defs/name"
                        ));
                    }
                    parts.push(inner);
                }
            }
            Value::Array(items) => parts.extend(items),
            _ => {}
        }
    }
    None
}

/// Where a reference leads: `#`, or `#` and a JSON pointer, percent-encoded as in a URI.
fn resolve<'a>(root: &'a Value, to: &str) -> Option<&'a Value> {
    let pointer = to.strip_prefix('#')?;
    if !pointer.contains('%') {
        return root.pointer(pointer);
    }
    let mut bytes = pointer.bytes();
    let mut decoded = Vec::with_capacity(pointer.len());
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let digit = |b: u8| (b as char).to_digit(16);
                let (high, low) = (digit(bytes.next()?)?, digit(bytes.next()?)?);
                u8::try_from(high * 16 + low).ok()?
            }
            other => other,
        });
    }
    root.pointer(std::str::from_utf8(&decoded).ok()?)
}

/// The comparisons of a value with a schema; `None` if there are more than `max`, or the schema refers to itself without
/// end.
pub(crate) fn cost(schema: &Value, value: &Value, max: u64) -> Option<u64> {
    let patterns = pattern::of(schema);
    let states = patterns.iter().fold(0u64, |sum, (_, p)| sum.saturating_add(pattern::states(p)));
    let mut count = Count { root: schema, known: HashMap::new(), depth: 0, max, states };
    count.at(schema, value).filter(|n| *n <= max)
}

/// The parts of a schema that apply to one value of unknown content: combinators and references, not the parts for
/// members and items. The largest number of any part; `None` if it has no end.
///
/// A reference to itself without a level of the value between is no error here: [`cost`] answers it.
pub(crate) fn expansion(schema: &Value) -> Option<u64> {
    let mut known = HashMap::new();
    let mut most = 0;
    let mut parts = vec![schema];
    while let Some(part) = parts.pop() {
        if let Value::Object(words) = part {
            most = most.max(in_place(schema, part, &mut known, 0)?);
            parts.extend(words.values());
        } else if let Value::Array(items) = part {
            parts.extend(items);
        }
    }
    Some(most)
}

fn in_place<'a>(
    root: &'a Value,
    schema: &'a Value,
    known: &mut HashMap<*const Value, u64>,
    depth: usize,
) -> Option<u64> {
    let Value::Object(words) = schema else { return Some(1) };
    if let Some(known) = known.get(&std::ptr::from_ref(schema)) {
        return Some(*known);
    }
    if depth == DEPTH_MAX {
        return None;
    }
    // A circle counts as one: what it costs depends on the value.
    known.insert(std::ptr::from_ref(schema), 1);
    let mut sum = 1u64;
    for (word, inner) in words {
        let mut add = |part| {
            sum = sum.saturating_add(in_place(root, part, known, depth + 1)?);
            Some(())
        };
        match word.as_str() {
            "$ref" => {
                if let Some(to) = inner.as_str().and_then(|to| resolve(root, to)) {
                    add(to)?;
                }
            }
            "allOf" | "anyOf" | "oneOf" => {
                for part in inner.as_array().into_iter().flatten() {
                    add(part)?;
                }
            }
            "not" | "if" | "then" | "else" => add(inner)?,
            "dependentSchemas" | "dependencies" => {
                for part in inner.as_object().into_iter().flatten().map(|(_, part)| part) {
                    add(part)?;
                }
            }
            _ => {}
        }
    }
    known.insert(std::ptr::from_ref(schema), sum);
    Some(sum)
}

struct Count<'a> {
    root: &'a Value,
    /// By the addresses of schema and value; `None` while a pair is being counted, and for what has no end.
    known: HashMap<(*const Value, *const Value), Option<u64>>,
    depth: usize,
    max: u64,
    /// Of all patterns of the schema.
    states: u64,
}

impl<'a> Count<'a> {
    fn at(&mut self, schema: &'a Value, value: &'a Value) -> Option<u64> {
        let Value::Object(words) = schema else { return Some(1) };
        let pair = (std::ptr::from_ref(schema), std::ptr::from_ref(value));
        if let Some(known) = self.known.get(&pair) {
            return *known;
        }
        if self.depth == DEPTH_MAX || self.known.len() as u64 > self.max {
            return None;
        }
        // A part without parts of its own needs no memory: most values are compared with such.
        let remembers = words.keys().any(|word| is_applicator(word));
        if remembers {
            self.known.insert(pair, None);
        }
        self.depth += 1;
        let sum = words.iter().try_fold(1u64, |sum, (word, inner)| {
            let sum = sum.saturating_add(self.word(word, inner, value)?);
            (sum <= self.max).then_some(sum)
        });
        self.depth -= 1;
        // `unevaluated…` asks the other parts once more, for each member or item.
        let again = match value {
            Value::Object(members) if words.contains_key("unevaluatedProperties") => members.len(),
            Value::Array(items) if words.contains_key("unevaluatedItems") => items.len(),
            _ => 0,
        };
        let sum = sum.map(|sum| sum.saturating_mul(1 + again as u64));
        if remembers {
            self.known.insert(pair, sum);
        }
        sum
    }

    /// What one keyword leads to.
    fn word(&mut self, word: &str, inner: &'a Value, value: &'a Value) -> Option<u64> {
        static NAME: Value = Value::Null;
        let mut pairs: Vec<(&'a Value, &'a Value)> = Vec::new();
        let mut own = 0u64;
        let schemas = || inner.as_array().into_iter().flatten();
        let named = || inner.as_object().into_iter().flatten();
        let items = || value.as_array().into_iter().flatten();
        let members = || value.as_object().into_iter().flatten();
        match word {
            "$ref" => {
                own = inner.as_str()?.len() as u64 / WALK_UNIT;
                pairs.push((resolve(self.root, inner.as_str()?)?, value));
            }
            "$dynamicRef" | "$recursiveRef" => return None,
            "allOf" | "anyOf" | "oneOf" => pairs.extend(schemas().map(|s| (s, value))),
            "not" | "if" | "then" | "else" => pairs.push((inner, value)),
            "dependentSchemas" | "dependencies" => pairs.extend(named().map(|(_, s)| (s, value))),
            "properties" => {
                own = named().count() as u64 / WALK_UNIT;
                pairs.extend(named().filter_map(|(k, s)| Some((s, value.get(k)?))));
            }
            "patternProperties" => {
                for (pattern, schema) in named() {
                    let states = pattern::states(pattern);
                    for (name, member) in members() {
                        own = own.saturating_add(matching(states, name));
                        pairs.push((schema, member));
                    }
                }
            }
            "additionalProperties" | "unevaluatedProperties" => {
                pairs.extend(members().map(|(_, v)| (inner, v)));
            }
            "propertyNames" => {
                // Which patterns a name meets is not followed: all of them, at most.
                for (name, _) in members() {
                    own = own.saturating_add(matching(self.states, name));
                    pairs.push((inner, &NAME));
                }
            }
            "items" | "prefixItems" if inner.is_array() => pairs.extend(schemas().zip(items())),
            "items" | "contains" | "additionalItems" | "unevaluatedItems" => {
                pairs.extend(items().map(|v| (inner, v)));
            }
            "pattern" => {
                if let (Some(pattern), Some(text)) = (inner.as_str(), value.as_str()) {
                    own = matching(pattern::states(pattern), text)
                        .saturating_add(pattern.len() as u64 / WALK_UNIT);
                }
            }
            "enum" => own = schemas().count() as u64,
            // Every name that is missing is an error of its own.
            "required" => own = schemas().count() as u64,
            "dependentRequired" => {
                let lists = named().map(|(_, names)| names.as_array().map_or(0, Vec::len) as u64);
                own = lists.sum();
            }
            "uniqueItems" => own = items().count() as u64,
            _ => {}
        }
        pairs.into_iter().try_fold(own, |sum, (schema, value)| {
            let sum = sum.saturating_add(self.at(schema, value)?);
            (sum <= self.max).then_some(sum)
        })
    }
}

/// Bytes or names that are walked over at the cost of one comparison.
const WALK_UNIT: u64 = 64;

fn matching(states: u64, text: &str) -> u64 {
    states.saturating_mul(text.len() as u64) / MATCH_UNIT
}

fn is_applicator(word: &str) -> bool {
    matches!(
        word,
        "$ref"
            | "$dynamicRef"
            | "$recursiveRef"
            | "allOf"
            | "anyOf"
            | "oneOf"
            | "not"
            | "if"
            | "then"
            | "else"
            | "dependentSchemas"
            | "dependencies"
            | "properties"
            | "patternProperties"
            | "additionalProperties"
            | "unevaluatedProperties"
            | "propertyNames"
            | "items"
            | "prefixItems"
            | "contains"
            | "additionalItems"
            | "unevaluatedItems"
    )
}
