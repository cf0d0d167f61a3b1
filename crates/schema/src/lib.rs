//! JSON schemas that tenants write, and the only place that compiles one.
//!
//! A schema is a program: it can ask for exponential work in a few hundred bytes (definitions that refer to each
//! other twice), and its patterns can backtrack. Validation runs in the caller's process and cannot be cancelled, so
//! its cost is bounded *before* it starts:
//!
//! - Patterns are compiled by the linear-time `regex` engine, with a bound on the compiled size. It has no look-around and no
//!   backreferences. [`Schema::new`] refuses a schema that has such a pattern and names the pattern.
//! - `cost` counts how often validation compares a part of the schema with a part of the value, each reference followed.
//!   A schema and a value that need more than [`COST_MAX`] are not validated.
//! - [`Schema::check`] collects the violations of cheap schemas only: an error of `anyOf` contains the errors of all
//!   branches.
//!
//! A schema that an older version has stored may have look-around patterns. [`Schema::stored`] accepts it: such patterns are
//! not checked, see [`Schema::unchecked`].

mod cost;
pub mod outline;
mod pattern;

pub use cost::{COST_MAX, DEPTH_MAX, references};

use jsonschema::{PatternOptions, Validator};
use serde_json::Value;
use std::{fmt, sync::Arc, time::Duration};
use tenure_kernel::{
    limits::clip,
    runtime::{Rt, compute},
};

/// References (`$ref`) of one schema.
pub const REFERENCES_MAX: usize = 200;
/// Parts of a schema that apply to one and the same value, each reference followed. More is refused at registration.
pub const EXPANSION_MAX: u64 = 10_000;
/// Bytes of one pattern.
const PATTERN_LENGTH_MAX: usize = 4 * 1024;
/// Memory of one compiled pattern.
const PATTERN_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Up to this cost a check runs on the calling thread: it takes less time than a change of threads.
const INLINE_COST_MAX: u64 = 2_000;
/// Up to this cost violations are listed one by one.
const LISTED_COST_MAX: u64 = 50_000;
/// Bytes of one violation. Its text repeats the value.
const VIOLATION_BYTES_MAX: usize = 300;
/// How long a caller waits for a check that runs on another thread.
pub const DEADLINE: Duration = Duration::from_secs(5);

/// Why a schema cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// It is no JSON schema, or refers to something outside of itself.
    #[error("this schema cannot be used: {0}")]
    Invalid(String),
    /// A pattern that the linear-time engine does not accept.
    #[error(
        "the pattern {pattern:?} at {at:?} cannot be used: {why} (patterns have neither look-around nor backreferences)"
    )]
    Pattern {
        /// The pattern.
        pattern: String,
        /// Where it is, as a JSON pointer.
        at: String,
        /// What the engine says.
        why: String,
    },
    /// More than [`REFERENCES_MAX`].
    #[error("this schema has {0} references; {REFERENCES_MAX} are the most")]
    References(usize),
    /// More than [`EXPANSION_MAX`].
    #[error(
        "this schema applies more than {EXPANSION_MAX} parts to one value when its references are followed"
    )]
    Expansion,
}

impl SchemaError {
    /// What the author of the schema can do.
    pub fn fix(&self) -> &'static str {
        match self {
            SchemaError::Invalid(_) => {
                "give a JSON schema whose references are pointers into itself"
            }
            SchemaError::Pattern { .. } => {
                "write the pattern without look-around and backreferences, or check the value in the flow or tool"
            }
            SchemaError::References(_) | SchemaError::Expansion => {
                "make the schema simpler: fewer references, fewer nested anyOf, oneOf and allOf"
            }
        }
    }
}

/// What a value violates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Where in the value, as a JSON pointer.
    pub at: String,
    /// What was expected.
    pub says: String,
    /// Where in the schema, as a JSON pointer.
    pub schema: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.at, self.says)
    }
}

/// Why a value was not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotChecked {
    /// Its cost is above [`COST_MAX`], or the schema refers to itself without end.
    #[error("checking this value against its schema takes more than {COST_MAX} comparisons")]
    TooCostly,
    /// It took longer than [`DEADLINE`].
    #[error("checking this value against its schema did not end within {} s", DEADLINE.as_secs())]
    Late,
}

/// A compiled schema.
#[derive(Clone, Debug)]
pub struct Schema(Arc<Compiled>);

#[derive(Debug)]
struct Compiled {
    source: Value,
    validator: Validator,
    unchecked: Vec<String>,
}

impl Schema {
    /// A schema at its registration.
    pub fn new(schema: &Value) -> Result<Schema, SchemaError> {
        bounded_references(schema)?;
        if let Some((pattern, at, why)) = pattern::of(schema).into_iter().find_map(refusal) {
            return Err(SchemaError::Pattern { pattern, at, why });
        }
        if cost::expansion(schema).is_none_or(|n| n > EXPANSION_MAX) {
            return Err(SchemaError::Expansion);
        }
        Self::compile(schema.clone(), Vec::new())
    }

    /// A schema that is on record. Patterns that [`Self::new`] refuses are left out; where leaving one out could refuse a
    /// value that the whole schema accepts (below `not`, for instance), nothing of the schema is checked.
    pub fn stored(schema: &Value) -> Result<Schema, SchemaError> {
        bounded_references(schema)?;
        let unchecked: Vec<String> = pattern::of(schema)
            .into_iter()
            .filter_map(refusal)
            .map(|(pattern, ..)| pattern)
            .collect();
        match unchecked.is_empty() {
            true => Self::compile(schema.clone(), unchecked),
            false => Self::compile(pattern::without(schema, &unchecked), unchecked),
        }
    }

    fn compile(source: Value, unchecked: Vec<String>) -> Result<Schema, SchemaError> {
        let validator = options().build(&source).map_err(|e| {
            SchemaError::Invalid(clip(&e.to_string(), VIOLATION_BYTES_MAX).to_owned())
        })?;
        Ok(Schema(Arc::new(Compiled { source, validator, unchecked })))
    }

    /// Patterns of a stored schema that are not checked.
    pub fn unchecked(&self) -> &[String] {
        &self.0.unchecked
    }

    /// At most `max` violations. The call returns after bounded work, but this may be some tenths of a second: see
    /// [`Self::check_beside`].
    pub fn check(&self, value: &Value, max: usize) -> Result<Vec<Violation>, NotChecked> {
        let cost = cost::cost(&self.0.source, value, COST_MAX).ok_or(NotChecked::TooCostly)?;
        Ok(self.violations(value, max, cost))
    }

    /// The same of one value among several that share a budget of comparisons.
    pub fn check_within(
        &self,
        value: &Value,
        max: usize,
        budget: &mut u64,
    ) -> Result<Vec<Violation>, NotChecked> {
        let most = (*budget).min(COST_MAX);
        let cost = cost::cost(&self.0.source, value, most).ok_or(NotChecked::TooCostly)?;
        *budget -= cost;
        Ok(self.violations(value, max, cost))
    }

    /// The same, on another thread where it may take long, among the work of this tenant, and with a deadline for the caller.
    pub async fn check_beside(
        &self,
        rt: &Rt,
        tenant: &str,
        value: &Value,
        max: usize,
    ) -> Result<Vec<Violation>, NotChecked> {
        if let Some(cost) = cost::cost(&self.0.source, value, INLINE_COST_MAX) {
            return Ok(self.violations(value, max, cost));
        }
        let (schema, value) = (self.clone(), value.clone());
        let found = compute(rt, tenant, DEADLINE, move || schema.check(&value, max)).await;
        found.unwrap_or(Err(NotChecked::Late))
    }

    fn violations(&self, value: &Value, max: usize, cost: u64) -> Vec<Violation> {
        let validator = &self.0.validator;
        if validator.is_valid(value) {
            return Vec::new();
        }
        if cost > LISTED_COST_MAX {
            let says = "the value does not fit; the schema is too large to say where".to_owned();
            return vec![Violation { at: String::new(), says, schema: String::new() }];
        }
        let violation = |e: jsonschema::ValidationError<'_>| Violation {
            at: e.instance_path().to_string(),
            says: clipped(&e),
            schema: e.schema_path().to_string(),
        };
        validator.iter_errors(value).take(max).map(violation).collect()
    }
}

fn bounded_references(schema: &Value) -> Result<(), SchemaError> {
    let found = references(schema);
    if found > REFERENCES_MAX {
        return Err(SchemaError::References(found));
    }
    cost::unsupported(schema).map_or(Ok(()), |why| Err(SchemaError::Invalid(why)))
}

fn options() -> jsonschema::ValidationOptions<'static> {
    let patterns =
        PatternOptions::regex().size_limit(PATTERN_BYTES_MAX).dfa_size_limit(PATTERN_BYTES_MAX);
    jsonschema::options().with_pattern_options(patterns)
}

/// Why the engine does not accept a pattern.
fn refusal((at, pattern): (String, &str)) -> Option<(String, String, String)> {
    let why = match pattern.len() > PATTERN_LENGTH_MAX {
        true => format!("it has more than {PATTERN_LENGTH_MAX} bytes"),
        false => {
            let alone = serde_json::json!({ "pattern": pattern });
            options().build(&alone).err()?.to_string()
        }
    };
    let named = clip(pattern, VIOLATION_BYTES_MAX).to_owned();
    Some((named, at, clip(&why, VIOLATION_BYTES_MAX).to_owned()))
}

/// The text of an error, written up to a bound.
fn clipped(error: &jsonschema::ValidationError<'_>) -> String {
    use fmt::Write as _;
    let mut text = Clipped(String::new());
    match write!(text, "{error}") {
        Ok(()) => text.0,
        Err(_) => text.0 + "…",
    }
}

struct Clipped(String);

impl fmt::Write for Clipped {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let fits = clip(more, VIOLATION_BYTES_MAX - self.0.len());
        self.0.push_str(fits);
        if fits.len() < more.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
