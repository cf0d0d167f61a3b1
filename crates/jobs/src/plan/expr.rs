//! Expressions in templates: those of Jinja, checked when the plan is read. Every name, filter and test is known before
//! anything runs, or is a problem of the plan.
//!
//! An expression that is only a path (`steps.a.output.items[0]`) is followed in the JSON itself: nothing is copied
//! through another kind of value, and a check can compare it with schemas.

use super::{
    evaluate::{self, Fault, left_of},
    limits,
    problem::{Problems, Wrong},
};
use crate::nearest::nearest;
use minijinja::machinery::{
    ast::{CallArg, Expr as Ast},
    parse_expr,
};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Filters that expressions may use.
pub const FILTERS: [&str; 39] = [
    "abs",
    "attr",
    "bool",
    "capitalize",
    "chain",
    "d",
    "default",
    "dictsort",
    "first",
    "float",
    "groupby",
    "int",
    "items",
    "join",
    "last",
    "length",
    "lines",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "select",
    "selectattr",
    "sort",
    "split",
    "string",
    "sum",
    "title",
    "tojson",
    "trim",
    "unique",
    "upper",
    "zip",
];

/// Tests that expressions may use, behind `is`.
pub const TESTS: [&str; 26] = [
    "boolean",
    "defined",
    "divisibleby",
    "endingwith",
    "eq",
    "even",
    "false",
    "float",
    "ge",
    "gt",
    "in",
    "integer",
    "iterable",
    "le",
    "lower",
    "lt",
    "mapping",
    "ne",
    "none",
    "number",
    "odd",
    "sequence",
    "startingwith",
    "string",
    "true",
    "undefined",
];

/// What an expression refers to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Name {
    /// The input of the job.
    Input,
    /// A step.
    Step(String),
    /// The item of a `for_each`.
    Item,
    /// Its number, from 0.
    Index,
    /// What the step itself has given: in its `undo`.
    Output,
}

/// One part of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A member of an object.
    Member(String),
    /// An item of a list.
    Item(usize),
}

/// An expression.
#[derive(Clone, Debug, PartialEq)]
pub struct Expr {
    /// As it stands in the plan.
    pub source: String,
    /// Where it is only a path: its parts, the first being a name.
    pub path: Option<Vec<Part>>,
    /// What it refers to.
    pub names: BTreeSet<Name>,
}

/// What names stand for. Values are shared, so a scope is cheap to make.
#[derive(Clone, Default)]
pub struct Scope {
    /// `input`, `item`, `index`, `output`.
    pub names: BTreeMap<&'static str, std::sync::Arc<Value>>,
    /// `steps.ID`: an object with `status`, and `output` and `error` where there are some.
    pub steps: BTreeMap<String, std::sync::Arc<Value>>,
}

/// Why a template gave nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Empty {
    /// Something that it refers to is not there.
    #[error("{0}")]
    Undefined(String),
    /// Something else.
    #[error("{0}")]
    Failed(String),
}

impl Expr {
    /// Reads an expression; what is wrong with it goes to the list.
    pub fn read(source: &str, at: &str, problems: &mut Problems) -> Option<Expr> {
        let source = source.trim();
        if source.len() > limits::EXPRESSION_BYTES_MAX {
            let max = limits::EXPRESSION_BYTES_MAX;
            let what = format!("an expression of {} bytes; {max} are the most", source.len());
            problems.add(at, Wrong::Limit, what, "work it out in steps of kind `value`");
            return None;
        }
        let parsed = match parse_expr(source) {
            Ok(parsed) => parsed,
            Err(e) => {
                let column =
                    e.range().map_or(1, |r| source[..floor(source, r.start)].chars().count() + 1);
                let said = e.detail().unwrap_or("it is no expression").to_owned();
                let what = format!("`{source}` can not be read: column {column}: {said}");
                problems.add(at, Wrong::Syntax, what, "see docs/plans.md for what expressions are");
                return None;
            }
        };
        let before = problems.count();
        let mut names = BTreeSet::new();
        walk(&parsed, at, &mut names, problems);
        (problems.count() == before).then(|| Expr {
            source: source.to_owned(),
            path: path_of(source),
            names,
        })
    }

    /// Its value; `None` where it is undefined.
    pub fn value(&self, scope: &Scope) -> Result<Value, Empty> {
        let undefined = || Empty::Undefined(format!("`{}` is not there", self.source));
        if let Some(path) = &self.path {
            return follow(path, scope).cloned().ok_or_else(undefined);
        }
        let read = parse_expr(&self.source);
        let parsed =
            read.map_err(|e| Empty::Failed(format!("`{}` can not be read: {e}", self.source)))?;
        match evaluate::evaluate(&parsed, scope) {
            Ok(value) => value.ok_or_else(undefined),
            Err(Fault::Undefined) => {
                Err(Empty::Undefined(format!("`{}`: something in it is not there", self.source)))
            }
            Err(Fault::Failed(why)) => Err(Empty::Failed(format!("`{}`: {why}", self.source))),
        }
    }

    /// Whether it holds, as Jinja sees it: empty, zero, null and false do not.
    pub fn holds(&self, scope: &Scope) -> Result<bool, Empty> {
        Ok(evaluate::holds(&self.value(scope)?))
    }
}

/// A name that an expression uses, with the members that follow it: `steps.a.output.x`.
fn read_name(path: &[&str], at: &str, problems: &mut Problems) -> Option<Name> {
    let mut parts = path.iter().copied();
    match parts.next().unwrap_or_default() {
        "input" => Some(Name::Input),
        "item" => Some(Name::Item),
        "index" => Some(Name::Index),
        "output" => Some(Name::Output),
        "steps" => {
            let Some(id) = parts.next() else {
                let what = "`steps` alone says not which step";
                problems.add(at, Wrong::UnknownName, what, "write steps.ID.output");
                return None;
            };
            match parts.next() {
                None | Some("output" | "status" | "error") => {}
                Some(other) => {
                    let what = format!("a step has no `{other}`");
                    let fix = format!(
                        "a step has output, status and error: did you mean steps.{id}.output.{other}?"
                    );
                    problems.add(at, Wrong::UnknownName, what, fix);
                }
            }
            Some(Name::Step(id.to_owned()))
        }
        other => {
            let known = ["input", "item", "index", "output", "steps"];
            let fix = match nearest(other, known) {
                Some(near) => format!("did you mean `{near}`?"),
                None => "expressions know input, steps.ID, and item and index in a for_each".into(),
            };
            problems.add(at, Wrong::UnknownName, format!("there is no name `{other}`"), fix);
            None
        }
    }
}

/// Finds names, filters and tests before anything runs. In a loop: chains may be long.
fn walk(expr: &Ast<'_>, at: &str, names: &mut BTreeSet<Name>, problems: &mut Problems) {
    let mut todo = vec![expr];
    while let Some(expr) = todo.pop() {
        let args: &[CallArg<'_>] = match expr {
            Ast::Var(_) | Ast::GetAttr(_) | Ast::GetItem(_) => {
                if let Some(path) = names_in(expr, &mut todo) {
                    names.extend(read_name(&path, at, problems));
                }
                continue;
            }
            Ast::Filter(filter) => {
                check_word("filter", &FILTERS, filter.name, at, problems);
                &filter.args
            }
            Ast::Test(test) => {
                check_word("test", &TESTS, test.name, at, problems);
                &test.args
            }
            Ast::Call(call) => {
                let fix = "use a filter: `x | upper`, not `x.upper()`";
                todo.push(&call.expr);
                if !matches!(call.expr, Ast::Var(_)) {
                    problems.add(at, Wrong::UnknownName, "expressions call no functions", fix);
                }
                &call.args
            }
            Ast::Const(_) => &[],
            Ast::UnaryOp(op) => {
                todo.push(&op.expr);
                &[]
            }
            Ast::BinOp(op) => {
                todo.push(&op.right);
                &[]
            }
            Ast::Compare(chain) => {
                todo.extend(chain.ops.iter().map(|op| &op.expr));
                &[]
            }
            Ast::IfExpr(choice) => {
                todo.extend([&choice.test_expr, &choice.true_expr]);
                todo.extend(&choice.false_expr);
                &[]
            }
            Ast::Slice(slice) => {
                todo.extend([&slice.start, &slice.stop, &slice.step].into_iter().flatten());
                &[]
            }
            Ast::List(list) => {
                todo.extend(&list.items);
                &[]
            }
            Ast::Tuple(tuple) => {
                todo.extend(&tuple.items);
                &[]
            }
            Ast::Map(map) => {
                todo.extend(map.keys.iter().chain(&map.values));
                &[]
            }
        };
        todo.extend(left_of(expr));
        for arg in args {
            match arg {
                CallArg::Pos(value) | CallArg::Kwarg(_, value) => todo.push(value),
                CallArg::PosSplat(_) | CallArg::KwargSplat(_) => {
                    let what = "`*` and `**` are not for arguments";
                    problems.add(at, Wrong::Syntax, what, "write the arguments out");
                }
            }
        }
    }
}

/// A name and the members that follow it, as far as they are written down. What else is in there is left to do.
fn names_in<'e>(expr: &'e Ast<'e>, todo: &mut Vec<&'e Ast<'e>>) -> Option<Vec<&'e str>> {
    let (mut at, mut back) = (expr, Vec::new());
    loop {
        match at {
            Ast::GetAttr(get) => {
                back.push(Some(get.name));
                at = &get.expr;
            }
            Ast::GetItem(get) => {
                let written = match &get.subscript_expr {
                    Ast::Const(value) => value.value.as_str(),
                    other => {
                        todo.push(other);
                        None
                    }
                };
                back.push(written);
                at = &get.expr;
            }
            Ast::Var(var) => {
                back.push(Some(var.id));
                return Some(back.into_iter().rev().map_while(|part| part).collect());
            }
            other => {
                todo.push(other);
                return None;
            }
        }
    }
}

fn check_word(kind: &str, known: &[&str], word: &str, at: &str, problems: &mut Problems) {
    if known.contains(&word) {
        return;
    }
    let fix = match nearest(word, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("there are {}", known.join(", ")),
    };
    problems.add(at, Wrong::UnknownName, format!("there is no {kind} `{word}`"), fix);
}

fn floor(text: &str, mut at: usize) -> usize {
    at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// The parts of `a.b[0]["c"]`; nothing where it is more than that.
fn path_of(source: &str) -> Option<Vec<Part>> {
    let ident = |text: &str| {
        let end =
            text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(text.len());
        let word = &text[..end];
        word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            .then(|| (word.to_owned(), end))
    };
    let (first, end) = ident(source)?;
    if ["true", "false", "none", "True", "False", "None", "not"].contains(&first.as_str()) {
        return None;
    }
    let (mut parts, mut rest) = (vec![Part::Member(first)], &source[end..]);
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('.') {
            let (word, end) = ident(after)?;
            parts.push(Part::Member(word));
            rest = &after[end..];
        } else {
            let (inside, after) = rest.strip_prefix('[')?.split_once(']')?;
            let quoted = |q: char| inside.strip_prefix(q)?.strip_suffix(q);
            match (inside.parse(), quoted('"').or_else(|| quoted('\''))) {
                (Ok(n), _) => parts.push(Part::Item(n)),
                (_, Some(key)) if !key.contains(['\\', '"', '\'']) => {
                    parts.push(Part::Member(key.to_owned()));
                }
                _ => return None,
            }
            rest = after;
        }
    }
    Some(parts)
}

fn follow<'a>(path: &[Part], scope: &'a Scope) -> Option<&'a Value> {
    let (mut at, rest): (&Value, _) = match path {
        [Part::Member(steps), Part::Member(id), rest @ ..] if steps == "steps" => {
            (scope.steps.get(id)?, rest)
        }
        [Part::Member(name), rest @ ..] => (scope.names.get(name.as_str())?, rest),
        _ => return None,
    };
    for part in rest {
        at = match part {
            Part::Member(name) => at.as_object()?.get(name)?,
            Part::Item(n) => at.as_array()?.get(*n)?,
        };
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use minijinja::ErrorKind;

    #[test]
    fn every_listed_filter_and_test_is_there() {
        let mut state = evaluate::JINJA.empty_state();
        for filter in FILTERS {
            let unknown = state.apply_filter(filter, &[minijinja::Value::from("x")]);
            assert!(unknown.err().is_none_or(|e| e.kind() != ErrorKind::UnknownFilter), "{filter}");
        }
        for test in TESTS {
            let unknown = state.perform_test(test, &[minijinja::Value::from("x")]);
            assert!(unknown.err().is_none_or(|e| e.kind() != ErrorKind::UnknownTest), "{test}");
        }
    }
}
