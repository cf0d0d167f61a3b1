//! What is wrong with a plan: where, what, and what to do. A check lists everything at once, because whoever
//! writes plans (a model, mostly) can then repair all of it in one go.

use super::limits;
use serde::{Deserialize, Serialize};
use std::fmt;
use tenure_kernel::limits::clip;

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
pub struct Problems {
    list: Vec<Problem>,
    /// Those for which there was no place any more.
    more: usize,
    /// Comparisons of values with schemas that are left for the whole plan.
    pub(super) comparisons: u64,
}

impl Default for Problems {
    fn default() -> Self {
        Problems { list: Vec::new(), more: 0, comparisons: tenure_schema::COST_MAX }
    }
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
        self.add_with(at, wrong, what, || fix.into());
    }

    /// The same, where it takes work to say what to do: names are compared only for what is listed.
    pub fn add_with(
        &mut self,
        at: impl Into<String>,
        wrong: Wrong,
        what: impl Into<String>,
        fix: impl FnOnce() -> String,
    ) {
        let (at, what) = (shortened(at.into()), shortened(what.into()));
        if self.list.iter().any(|p| p.at == at && p.wrong == wrong && p.what == what) {
            return;
        }
        if self.list.len() == limits::PROBLEMS_MAX {
            self.more += 1;
            return;
        }
        self.list.push(Problem { at, wrong, what, fix: shortened(fix()) });
    }

    /// Whether nothing is wrong so far.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// All of them, in the order of their places, and how many more there are.
    pub fn into_vec(mut self) -> Vec<Problem> {
        self.list.sort();
        if self.more > 0 {
            let what = format!("and {} more; only {} are listed", self.more, limits::PROBLEMS_MAX);
            let fix = "repair these and check again".to_owned();
            self.list.push(Problem { at: String::new(), wrong: Wrong::Limit, what, fix });
        }
        self.list
    }
}

/// Names and values of a plan may be as long as the plan: an answer repeats only their beginning.
fn shortened(mut text: String) -> String {
    let kept = clip(&text, limits::PROBLEM_BYTES_MAX).len();
    if kept < text.len() {
        text.truncate(kept);
        text.push('…');
    }
    text
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_listed_is_counted_and_what_is_long_is_cut() {
        let mut problems = Problems::default();
        for n in 0..limits::PROBLEMS_MAX + 7 {
            let fix = || match n < limits::PROBLEMS_MAX {
                true => "x".repeat(5_000),
                false => unreachable!("nobody works out what to do about what is not listed"),
            };
            problems.add_with(format!("/{n}"), Wrong::Shape, "é".repeat(5_000), fix);
            problems.add("/0", Wrong::Shape, "é".repeat(5_000), "the same is told once");
        }
        let list = problems.into_vec();
        assert_eq!(list.len(), limits::PROBLEMS_MAX + 1);
        assert!(list.last().is_some_and(|p| p.what.contains("and 7 more")), "{:?}", list.last());
        let most = limits::PROBLEM_BYTES_MAX + "…".len();
        assert!(list.iter().all(|p| p.what.len() <= most && p.fix.len() <= most));
    }
}
