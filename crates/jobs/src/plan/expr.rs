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
use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
};

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
    /// What was worked out with it so far, in bytes read and made.
    pub spent: Cell<usize>,
    /// What may be, where that is less than every expression may by itself.
    pub most: Option<usize>,
}

impl Scope {
    pub(super) fn spend(&self, bytes: usize) {
        self.spent.set(self.spent.get().saturating_add(bytes));
    }

    /// What may still be worked out.
    pub(super) fn left(&self) -> usize {
        self.most.map_or(usize::MAX, |most| most.saturating_sub(self.spent.get()))
    }
}

/// Why nothing more is worked out for a plan.
pub(super) fn spent_all() -> String {
    let max = limits::PLAN_WORK_BYTES_MAX;
    format!("the expressions of the plan work on more than {max} bytes together: do it in a tool")
}

/// Why a template gave nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Empty {
    /// Something that it refers to is not there.
    #[error("{0}")]
    Undefined(String),
    /// It needs the output of this step, which has none.
    #[error("it needs the output of `{0}`, which gave none")]
    Without(String),
    /// Something else.
    #[error("{0}")]
    Failed(String),
}

/// Why an expression can not be read.
struct Unreadable {
    wrong: Wrong,
    what: String,
    fix: &'static str,
}

/// The tree of an expression. Whatever goes deeper with every sign is bounded before it is read: the parser's own guard
/// counts brackets, and four thousand signs in a row are more calls within calls than a stack has room for.
fn parse(source: &str) -> Result<Ast<'_>, Unreadable> {
    let limit = |what: String| {
        let fix = "work it out in steps of kind `value`";
        Err(Unreadable { wrong: Wrong::Limit, what, fix })
    };
    if source.len() > limits::EXPRESSION_BYTES_MAX {
        let max = limits::EXPRESSION_BYTES_MAX;
        return limit(format!("an expression of {} bytes; {max} are the most", source.len()));
    }
    if nesting(source) > limits::NESTING_MAX {
        let max = limits::NESTING_MAX;
        return limit(format!(
            "an expression that is nested deeper than {max} levels (brackets, `-`, `not`, `if`)"
        ));
    }
    parse_expr(source).map_err(|e| {
        let column = e.range().map_or(1, |r| source[..floor(source, r.start)].chars().count() + 1);
        let said = e.detail().unwrap_or("it is no expression").to_owned();
        let what = format!("`{source}` can not be read: column {column}: {said}");
        Unreadable { wrong: Wrong::Syntax, what, fix: "see docs/plans.md for what expressions are" }
    })
}

/// How deep an expression goes, at the most: brackets that are open, signs in front of a value until an operator
/// follows it, and every `not` and `if` until the next comma.
fn nesting(source: &str) -> usize {
    let bytes = source.as_bytes();
    // For every open bracket: signs and words.
    let (mut open, mut signs, mut words) = (Vec::new(), 0usize, 0usize);
    let (mut outside, mut deepest, mut at) = (0usize, 0usize, 0usize);
    // Whether a `-` here stands between two values.
    let mut between = false;
    while at < bytes.len() {
        let first = bytes[at];
        at += 1;
        match first {
            b'"' | b'\'' => {
                while at < bytes.len() && bytes[at] != first {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                (at, between) = (at + 1, true);
            }
            b'(' | b'[' | b'{' => {
                open.push((signs, words));
                outside += signs + words + 1;
                (signs, words, between) = (0, 0, false);
            }
            b')' | b']' | b'}' => {
                (signs, words) = open.pop().unwrap_or_default();
                outside = outside.saturating_sub(signs + words + 1);
                between = true;
            }
            b',' | b':' => (signs, words, between) = (0, 0, false),
            b'-' if !between => signs += 1,
            b'.' | b' ' | b'\t' | b'\r' | b'\n' => {}
            c if c.is_ascii_alphanumeric() || c == b'_' || !c.is_ascii() => {
                let more = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_' || !b.is_ascii();
                let start = at - 1;
                at += bytes[at..].iter().take_while(|b| more(b)).count();
                match &bytes[start..at] {
                    b"not" | b"if" => (words, between) = (words + 1, false),
                    b"and" | b"or" | b"in" | b"is" | b"else" => (signs, between) = (0, false),
                    _ => between = true,
                }
            }
            _ => (signs, between) = (0, false),
        }
        deepest = deepest.max(outside + signs + words);
    }
    deepest
}

impl Expr {
    /// Reads an expression; what is wrong with it goes to the list. One that can not be read is kept as it stands, so that
    /// the rest of its step is looked at as well; it has no value.
    pub fn read(source: &str, at: &str, problems: &mut Problems) -> Expr {
        let source = source.trim();
        let mut names = BTreeSet::new();
        match parse(source) {
            Ok(parsed) => walk(&parsed, at, &mut names, problems),
            Err(e) => problems.add(at, e.wrong, e.what, e.fix),
        }
        Expr { source: source.to_owned(), path: path_of(source), names }
    }

    /// Its value.
    pub fn value(&self, scope: &Scope) -> Result<Value, Empty> {
        let undefined = || Empty::Undefined(format!("`{}` is not there", self.source));
        if let Some(path) = &self.path {
            return follow(path, scope).cloned().map_err(|step| match step {
                Some(step) => Empty::Without(step.to_owned()),
                None => undefined(),
            });
        }
        let parsed = parse(&self.source).map_err(|e| Empty::Failed(e.what))?;
        match evaluate::evaluate(&parsed, scope) {
            Ok(value) => value.ok_or_else(undefined),
            Err(Fault::Undefined(Some(step))) => Err(Empty::Without(step)),
            Err(Fault::Undefined(None)) => {
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

/// Names that expressions may know.
const NAMES: [&str; 5] = ["input", "item", "index", "output", "steps"];

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
            let fix = || match nearest(other, NAMES) {
                Some(near) => format!("did you mean `{near}`?"),
                None => "expressions know input, steps.ID, and item and index in a for_each".into(),
            };
            problems.add_with(at, Wrong::UnknownName, format!("there is no name `{other}`"), fix);
            None
        }
    }
}

/// Finds names, filters and tests before anything runs, and how deep operations stand in each other, as `evaluate` counts
/// them. In a loop: chains may be long.
fn walk(expr: &Ast<'_>, at: &str, names: &mut BTreeSet<Name>, problems: &mut Problems) {
    let mut todo = vec![(expr, 0)];
    while let Some((expr, deep)) = todo.pop() {
        if deep >= limits::OPERATIONS_DEEP_MAX {
            let max = limits::OPERATIONS_DEEP_MAX;
            let what = format!("an expression with operations nested deeper than {max} levels");
            problems.add(at, Wrong::Limit, what, "work it out in steps of kind `value`");
            return;
        }
        let mut inner: Vec<&Ast<'_>> = Vec::new();
        let args: &[CallArg<'_>] = match expr {
            Ast::Var(_) | Ast::GetAttr(_) | Ast::GetItem(_) => {
                match names_in(expr, &mut inner) {
                    Ok(path) => names.extend(read_name(&path, at, problems)),
                    Err(base) => todo.push((base, deep)),
                }
                todo.extend(inner.into_iter().map(|expr| (expr, deep + 1)));
                continue;
            }
            Ast::Filter(filter) => {
                check_word("filter", &FILTERS, filter.name, at, problems);
                check_inner_word(filter.name, &filter.args, at, problems);
                &filter.args
            }
            Ast::Test(test) => {
                check_word("test", &TESTS, test.name, at, problems);
                &test.args
            }
            Ast::Call(call) => {
                let fix = "use a filter: `x | upper`, not `x.upper()`";
                inner.push(&call.expr);
                // Of a name that there is not, that is said already.
                if !matches!(&call.expr, Ast::Var(var) if !NAMES.contains(&var.id)) {
                    problems.add(at, Wrong::UnknownName, "expressions call no functions", fix);
                }
                &call.args
            }
            Ast::Const(_) => &[],
            Ast::UnaryOp(op) => {
                inner.push(&op.expr);
                &[]
            }
            Ast::BinOp(op) => {
                inner.push(&op.right);
                &[]
            }
            Ast::Compare(chain) => {
                inner.extend(chain.ops.iter().map(|op| &op.expr));
                &[]
            }
            Ast::IfExpr(choice) => {
                inner.extend([&choice.test_expr, &choice.true_expr]);
                inner.extend(&choice.false_expr);
                &[]
            }
            Ast::Slice(slice) => {
                inner.extend([&slice.start, &slice.stop, &slice.step].into_iter().flatten());
                &[]
            }
            Ast::List(list) => {
                inner.extend(&list.items);
                &[]
            }
            Ast::Tuple(tuple) => {
                inner.extend(&tuple.items);
                &[]
            }
            Ast::Map(map) => {
                inner.extend(map.keys.iter().chain(&map.values));
                &[]
            }
        };
        todo.extend(left_of(expr).map(|expr| (expr, deep)));
        for arg in args {
            match arg {
                CallArg::Pos(value) | CallArg::Kwarg(_, value) => inner.push(value),
                CallArg::PosSplat(_) | CallArg::KwargSplat(_) => {
                    let what = "`*` and `**` are not for arguments";
                    problems.add(at, Wrong::Syntax, what, "write the arguments out");
                }
            }
        }
        todo.extend(inner.into_iter().map(|expr| (expr, deep + 1)));
    }
}

/// A name and the members that follow it, as far as they are written down; what they follow, if that is no name. What
/// stands in brackets is left to do.
fn names_in<'e>(
    expr: &'e Ast<'e>,
    inner: &mut Vec<&'e Ast<'e>>,
) -> Result<Vec<&'e str>, &'e Ast<'e>> {
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
                        inner.push(other);
                        None
                    }
                };
                back.push(written);
                at = &get.expr;
            }
            Ast::Var(var) => {
                back.push(Some(var.id));
                return Ok(back.into_iter().rev().map_while(|part| part).collect());
            }
            other => return Err(other),
        }
    }
}

fn check_word(kind: &str, known: &[&str], word: &str, at: &str, problems: &mut Problems) {
    if known.contains(&word) {
        return;
    }
    let fix = || match nearest(word, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("there are {}", known.join(", ")),
    };
    problems.add_with(at, Wrong::UnknownName, format!("there is no {kind} `{word}`"), fix);
}

/// Filters that are given the name of another filter, or of a test.
fn check_inner_word(filter: &str, args: &[CallArg<'_>], at: &str, problems: &mut Problems) {
    let of_members = args.iter().any(|arg| matches!(arg, CallArg::Kwarg("attribute", _)));
    let (kind, known, nth): (_, &[&str], _) = match filter {
        "map" if !of_members => ("filter", &FILTERS, 0),
        "select" | "reject" => ("test", &TESTS, 0),
        "selectattr" | "rejectattr" => ("test", &TESTS, 1),
        _ => return,
    };
    let mut plain = args.iter().filter_map(|arg| match arg {
        CallArg::Pos(value) => Some(value),
        _ => None,
    });
    if let Some(Ast::Const(word)) = plain.nth(nth)
        && let Some(word) = word.value.as_str()
    {
        check_word(kind, known, word, at, problems);
    }
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

/// The value at a path; where there is none, the step that has no output if that is why.
fn follow<'a>(path: &'a [Part], scope: &'a Scope) -> Result<&'a Value, Option<&'a str>> {
    let (mut at, rest): (&Value, _) = match path {
        [Part::Member(steps), Part::Member(id), rest @ ..] if steps == "steps" => {
            let step = scope.steps.get(id).ok_or(None)?;
            if matches!(rest.first(), Some(Part::Member(field)) if field == "output")
                && step.get("output").is_none()
            {
                return Err(Some(id));
            }
            (step, rest)
        }
        [Part::Member(name), rest @ ..] => (scope.names.get(name.as_str()).ok_or(None)?, rest),
        _ => return Err(None),
    };
    for part in rest {
        at = match part {
            Part::Member(name) => at.as_object().and_then(|o| o.get(name)),
            Part::Item(n) => at.as_array().and_then(|a| a.get(*n)),
        }
        .ok_or(None)?;
    }
    Ok(at)
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
    #[test]
    fn nesting_counts_what_is_open_at_once_and_not_what_follows_each_other() {
        for (source, deep) in [
            ("a + b - c - d", 0),
            ("a - -b - -c", 1),
            ("[-1, -2, -3]", 2),
            ("--a[--b[c]]", 6),
            ("'-(-(' ~ \"not \\\" not\"", 0),
            ("not a and not b", 2),
            ("[not a, not b]", 2),
            ("1 if a else 2 if b else 3", 2),
            ("a is not none", 1),
            ("notes.iffy", 0),
            ("((a))", 2),
            (")))", 0),
        ] {
            assert_eq!(nesting(source), deep, "{source}");
        }
    }

    /// What goes deep is refused before anything goes there: none of these may take the program down.
    #[test]
    fn an_expression_that_is_nested_too_deeply_is_refused_on_a_small_stack() {
        let looked_at = || {
            let refused = |source: String| {
                let mut problems = Problems::default();
                let expr = Expr::read(&source, "/x", &mut problems);
                let found = problems.into_vec();
                assert_eq!(found.len(), 1, "{source}: {found:?}");
                assert_eq!(found[0].wrong, Wrong::Limit, "{source}");
                assert!(found[0].what.contains("nested deeper than 64"), "{found:?}");
                // Also where somebody works it out all the same.
                assert!(matches!(expr.value(&Scope::default()), Err(Empty::Failed(_))));
            };
            refused("-".repeat(4_000) + "1");
            refused("not ".repeat(1_000) + "1");
            refused("1 if 0 else ".repeat(300) + "1");
            refused("1".to_owned() + &" if 1".repeat(700));
            refused("1".to_owned() + &" is not none".repeat(300));
            refused("(".repeat(1_000) + "1" + &")".repeat(1_000));
            refused("[".repeat(1_000) + &"]".repeat(1_000));
            refused("{1:".repeat(500) + "1" + &"}".repeat(500));
            let level = "-".repeat(60) + "a[";
            refused(level.repeat(60) + "1" + &"]".repeat(60));
            // At the limit, and as long as a chain can be.
            let at_the_limit = [
                "-".repeat(limits::NESTING_MAX) + "1",
                "not ".repeat(limits::NESTING_MAX) + "1",
                "1 if 0 else ".repeat(limits::NESTING_MAX) + "1",
                "(".repeat(limits::NESTING_MAX) + "1" + &")".repeat(limits::NESTING_MAX),
                vec!["1"; 2_000].join("+"),
                "{'a': 1}|d".to_owned() + &"|d".repeat(2_000),
            ];
            for source in at_the_limit {
                let mut problems = Problems::default();
                let expr = Expr::read(&source, "/x", &mut problems);
                assert_eq!(problems.into_vec(), [], "{source}");
                assert!(expr.value(&Scope::default()).is_ok(), "{source}");
            }
            // Few brackets, and many operations within each other.
            let level = "0 or 1 and 1 < 1 ~ 1 + 1 * (";
            let operations = |n: usize| level.repeat(n) + "1" + &")".repeat(n);
            let read = |source: &str| {
                let mut problems = Problems::default();
                let expr = Expr::read(source, "/x", &mut problems);
                (expr.value(&Scope::default()), problems.into_vec())
            };
            let (said, found) = read(&operations(60));
            assert!(matches!(&said, Err(Empty::Failed(why)) if why.contains("deep")), "{said:?}");
            assert_eq!((found.len(), found[0].wrong), (1, Wrong::Limit), "{found:?}");
            // What the check lets pass is not too deep when it is worked out, and the other way round.
            for n in 1..60 {
                let (said, found) = read(&operations(n));
                let deep = matches!(&said, Err(Empty::Failed(why)) if why.contains("deep"));
                assert_eq!(deep, !found.is_empty(), "{n}: {said:?} {found:?}");
            }
        };
        let thread = std::thread::Builder::new().stack_size(1024 * 1024).spawn(looked_at);
        thread.unwrap().join().unwrap();
    }
}
