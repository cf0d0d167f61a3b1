//! What is wrong with a plan: where, what, and what to do. A check lists everything at once, because whoever
//! writes plans (a model, mostly) can then repair all of it in one go.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What kind of problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wrong {
    /// A value of another kind is needed here, or something is missing.
    Shape,
    /// No such field.
    UnknownField,
    /// The same key twice in one object.
    DoubledKey,
    /// A limit is passed.
    Limit,
    /// An expression can not be read.
    Syntax,
    /// An expression uses a name, a filter or a test that there is not.
    UnknownName,
    /// There is no step of this name.
    UnknownStep,
    /// A step refers to itself.
    SelfReference,
    /// Steps wait for each other in a circle.
    Cycle,
    /// No worker has registered this tool.
    UnknownTool,
    /// No worker has registered this flow.
    UnknownFlow,
    /// A value does not fit the schema of what it is given to.
    Schema,
    /// Two waits have the same name.
    DoubledWait,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Problem {
    /// Where: a JSON pointer into the plan; empty for the whole.
    pub at: String,
    /// What kind.
    pub wrong: Wrong,
    /// In words.
    pub what: String,
    /// What to do.
    pub fix: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = if self.at.is_empty() { "/" } else { &self.at };
        write!(f, "{at}: {}; {}", self.what, self.fix)
    }
}

/// A list under construction.
#[derive(Default)]
pub struct Problems {
    list: Vec<Problem>,
    seen: usize,
}

impl Problems {
    /// One more.
    pub fn add(
        &mut self,
        at: impl Into<String>,
        wrong: Wrong,
        what: impl Into<String>,
        fix: impl Into<String>,
    ) {
        let problem = Problem { at: at.into(), wrong, what: what.into(), fix: fix.into() };
        self.seen += 1;
        if self.list.len() < super::limits::PROBLEMS_MAX && !self.list.contains(&problem) {
            self.list.push(problem);
        }
    }

    /// How many were found so far, also those that are not listed.
    pub fn count(&self) -> usize {
        self.seen
    }

    /// Whether nothing is wrong so far.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// All of them, in the order of their places.
    pub fn into_vec(mut self) -> Vec<Problem> {
        self.list.sort();
        self.list
    }
}

/// One more part of a JSON pointer.
pub fn below(at: &str, part: impl fmt::Display) -> String {
    let part = part.to_string().replace('~', "~0").replace('/', "~1");
    format!("{at}/{part}")
}

/// Which kind of JSON a value is, for people.
pub fn kind_of(value: &serde_json::Value) -> &'static str {
    use serde_json::Value;
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
