//! Templates. A text that is exactly `${{ expression }}` is the value of the expression, of whatever kind; within
//! other text it is written out. `$${{` is `${{` itself. Expressions are those of Jinja; what an expression may see
//! is given to it, so the same inputs always give the same value: there is no clock, no chance, no function. They are
//! worked out in `super::evaluate`.
//!
//! An expression that is only a path (`steps.a.output.items[0]`) is followed in the JSON itself: nothing is copied
//! through another kind of value, and a check can compare it with schemas.

use super::{
    evaluate::{self, Fault, left_of},
    limits,
    problem::{Problems, Wrong, below},
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

/// A template.
#[derive(Clone, Debug, PartialEq)]
pub enum Template {
    /// Nothing to fill in.
    Plain(Value),
    /// The value of an expression.
    Whole(Expr),
    /// Text with expressions in it.
    Text(Vec<Piece>),
    /// A list.
    List(Vec<Template>),
    /// An object.
    Object(BTreeMap<String, Template>),
}

/// A piece of text.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// As it is.
    Plain(String),
    /// Filled in.
    Expr(Expr),
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

impl Template {
    /// Reads a template; what is wrong with it goes to the list.
    pub fn read(value: &Value, at: &str, problems: &mut Problems) -> Option<Template> {
        Self::read_within(value, at, problems, 0)
    }

    fn read_within(
        value: &Value,
        at: &str,
        problems: &mut Problems,
        depth: usize,
    ) -> Option<Template> {
        if depth > limits::DEPTH_MAX {
            let what = format!("nested deeper than {} levels", limits::DEPTH_MAX);
            problems.add(at, Wrong::Limit, what, "make it flatter");
            return None;
        }
        match value {
            Value::String(text) if text.contains("${{") => read_text(text, at, problems),
            Value::Array(items) => {
                let items: Vec<_> = (items.iter().enumerate())
                    .map(|(i, v)| Self::read_within(v, &below(at, i), problems, depth + 1))
                    .collect();
                let items: Vec<Template> = items.into_iter().collect::<Option<_>>()?;
                Some(match items.iter().all(|t| matches!(t, Template::Plain(_))) {
                    true => Template::Plain(value.clone()),
                    false => Template::List(items),
                })
            }
            Value::Object(members) => {
                let members: Vec<_> = (members.iter())
                    .map(|(k, v)| {
                        Some((k.clone(), Self::read_within(v, &below(at, k), problems, depth + 1)?))
                    })
                    .collect();
                let members: BTreeMap<_, _> = members.into_iter().collect::<Option<_>>()?;
                Some(match members.values().all(|t| matches!(t, Template::Plain(_))) {
                    true => Template::Plain(value.clone()),
                    false => Template::Object(members),
                })
            }
            plain => Some(Template::Plain(plain.clone())),
        }
    }

    /// Everything that its expressions refer to.
    pub fn names(&self) -> BTreeSet<Name> {
        let mut names = BTreeSet::new();
        self.each(&mut |expr| names.extend(expr.names.iter().cloned()));
        names
    }

    pub(super) fn each(&self, take: &mut impl FnMut(&Expr)) {
        match self {
            Template::Plain(_) => {}
            Template::Whole(expr) => take(expr),
            Template::Text(pieces) => pieces.iter().for_each(|p| match p {
                Piece::Plain(_) => {}
                Piece::Expr(expr) => take(expr),
            }),
            Template::List(items) => items.iter().for_each(|t| t.each(take)),
            Template::Object(members) => members.values().for_each(|t| t.each(take)),
        }
    }

    /// Its value.
    pub fn value(&self, scope: &Scope) -> Result<Value, Empty> {
        self.value_or_null(scope, &|_| false)
    }

    /// The same; an expression that is excused gives `null` where it would fail.
    pub fn value_or_null(
        &self,
        scope: &Scope,
        excused: &dyn Fn(&Expr) -> bool,
    ) -> Result<Value, Empty> {
        let mut bytes = 0;
        let value = self.fill(scope, excused, &mut bytes)?;
        room_for(bytes.max(serde_json::to_vec(&value).map_or(0, |b| b.len())))?;
        Ok(value)
    }

    /// `bytes` are those of all expressions so far: thousands of them that each give a little less than the most
    /// would be too much long before the whole is measured.
    fn fill(
        &self,
        scope: &Scope,
        excused: &dyn Fn(&Expr) -> bool,
        bytes: &mut usize,
    ) -> Result<Value, Empty> {
        let mut value = |expr: &Expr| match expr.value(scope) {
            Err(_) if excused(expr) => Ok(Value::Null),
            Err(e) => Err(e),
            Ok(value) => {
                *bytes += at_least(&value);
                room_for(*bytes).map(|()| value)
            }
        };
        Ok(match self {
            Template::Plain(value) => value.clone(),
            Template::Whole(expr) => value(expr)?,
            Template::Text(pieces) => {
                let mut text = String::new();
                for piece in pieces {
                    match piece {
                        Piece::Plain(plain) => text.push_str(plain),
                        Piece::Expr(expr) => match value(expr)? {
                            Value::String(s) => text.push_str(&s),
                            other => text.push_str(&other.to_string()),
                        },
                    }
                }
                Value::String(text)
            }
            Template::List(items) => {
                let filled = items.iter().map(|t| t.fill(scope, excused, bytes));
                Value::Array(filled.collect::<Result<_, _>>()?)
            }
            Template::Object(members) => {
                let filled =
                    members.iter().map(|(k, t)| Ok((k.clone(), t.fill(scope, excused, bytes)?)));
                Value::Object(filled.collect::<Result<_, Empty>>()?)
            }
        })
    }
}

fn room_for(bytes: usize) -> Result<(), Empty> {
    let max = limits::RESULT_BYTES_MAX;
    match bytes > max {
        true => Err(Empty::Failed(format!("it comes to {bytes} bytes; {max} are the most"))),
        false => Ok(()),
    }
}

/// How many bytes a value has as JSON, at the least.
fn at_least(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(|v| at_least(v) + 1).sum::<usize>() + 1,
        Value::Object(members) => {
            members.iter().map(|(k, v)| k.len() + at_least(v) + 4).sum::<usize>() + 1
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => 1,
    }
}

fn read_text(text: &str, at: &str, problems: &mut Problems) -> Option<Template> {
    let (mut pieces, mut plain, mut rest, mut fine) = (Vec::new(), String::new(), text, true);
    while let Some(start) = rest.find("${{") {
        if rest[..start].ends_with('$') {
            plain.push_str(&rest[..start - 1]);
            plain.push_str("${{");
            rest = &rest[start + 3..];
            continue;
        }
        plain.push_str(&rest[..start]);
        let inside = &rest[start + 3..];
        let Some(end) = end_of(inside) else {
            let column = text.len() - rest.len() + start + 1;
            let what = format!("column {column}: `${{{{` has no `}}}}`");
            problems.add(
                at,
                Wrong::Syntax,
                what,
                "close it; for the signs themselves write `$${{`",
            );
            return None;
        };
        if !plain.is_empty() {
            pieces.push(Piece::Plain(std::mem::take(&mut plain)));
        }
        match Expr::read(&inside[..end], at, problems) {
            Some(expr) => pieces.push(Piece::Expr(expr)),
            None => fine = false,
        }
        rest = &inside[end + 2..];
    }
    plain.push_str(rest);
    if !plain.is_empty() {
        pieces.push(Piece::Plain(plain));
    }
    if !fine {
        return None;
    }
    Some(match pieces.as_slice() {
        [Piece::Expr(expr)] => Template::Whole(expr.clone()),
        [Piece::Plain(plain)] => Template::Plain(Value::String(plain.clone())),
        _ => Template::Text(pieces),
    })
}

/// Where the `}}` of an expression stands: not in a text, not that of an object in it.
fn end_of(inside: &str) -> Option<usize> {
    let bytes = inside.as_bytes();
    let (mut i, mut open, mut quote) = (0, 0usize, None);
    while i < bytes.len() {
        match (quote, bytes[i]) {
            (Some(_), b'\\') => i += 1,
            (Some(q), b) if b == q => quote = None,
            (Some(_), _) => {}
            (None, b @ (b'"' | b'\'')) => quote = Some(b),
            (None, b'{') => open += 1,
            (None, b'}') if open > 0 => open -= 1,
            (None, b'}') if bytes.get(i + 1) == Some(&b'}') => return Some(i),
            _ => {}
        }
        i += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use minijinja::ErrorKind;
    use serde_json::json;
    use std::sync::Arc;

    fn scope() -> Scope {
        let input = json!({"n": 3, "name": "bob", "list": [1, 2.5, null], "big": u64::MAX});
        let a = json!({"status": "done", "output": {"ok": true, "rows": [{"x-y": 1}]}});
        Scope {
            names: BTreeMap::from([("input", Arc::new(input))]),
            steps: BTreeMap::from([("a".to_owned(), Arc::new(a))]),
        }
    }

    fn read(value: Value) -> Result<Template, Vec<super::super::Problem>> {
        let mut problems = Problems::default();
        let template = Template::read(&value, "/x", &mut problems);
        template.ok_or_else(|| problems.into_vec())
    }

    fn fill(value: Value) -> Result<Value, Empty> {
        read(value).unwrap().value(&scope())
    }

    #[test]
    fn a_whole_expression_is_its_value_and_within_text_it_is_text() {
        assert_eq!(fill(json!("${{ input.n }}")), Ok(json!(3)));
        assert_eq!(fill(json!("${{ input.list }}")), Ok(json!([1, 2.5, null])));
        assert_eq!(fill(json!("n=${{ input.n }}, ${{input.name}}!")), Ok(json!("n=3, bob!")));
        assert_eq!(fill(json!({"a": ["${{ input.n + 1 }}", 7]})), Ok(json!({"a": [4, 7]})));
        assert_eq!(fill(json!("${{ {'k': {'n': input.n}} }}")), Ok(json!({"k": {"n": 3}})));
        assert_eq!(fill(json!("${{ '}}' }}")), Ok(json!("}}")));
        assert_eq!(fill(json!("cost: $${{ x")), Ok(json!("cost: ${{ x")));
        assert_eq!(fill(json!("${{ steps.a.output.rows[0]['x-y'] }}")), Ok(json!(1)));
        assert_eq!(fill(json!("${{ input.big }}")), Ok(json!(u64::MAX)));
        assert_eq!(fill(json!("${{ input.list | length }}")), Ok(json!(3)));
        assert_eq!(fill(json!("${{ steps.a.output.ok and input.n > 2 }}")), Ok(json!(true)));
    }

    #[test]
    fn what_is_not_there_is_an_error_and_never_an_empty_text() {
        for text in [
            "${{ input.nix }}",
            "x ${{ input.nix }}",
            "${{ input.nix + 1 }}",
            "${{ steps.a.output.rows[7] }}",
            "${{ [input.nix] }}",
            "${{ {'k': input.nix} }}",
            "${{ input.nix ~ 'x' }}",
        ] {
            assert!(fill(json!(text)).is_err(), "{text}");
        }
        assert_eq!(fill(json!("${{ input.nix | default('y') }}")), Ok(json!("y")));
        assert_eq!(fill(json!("${{ input.nix is defined }}")), Ok(json!(false)));
    }

    #[test]
    fn an_expression_that_takes_too_long_or_gives_too_much_is_stopped() {
        let long = format!("${{{{ {} }}}}", vec!["1"; 1_500].join("+"));
        assert!(fill(json!(long)).is_ok());
        let too_long = json!(format!("${{{{ '{}' }}}}", "x".repeat(limits::EXPRESSION_BYTES_MAX)));
        assert_eq!(read(too_long).unwrap_err()[0].wrong, Wrong::Limit);
    }

    /// Each of these is few signs and, worked out as it stands, all the memory or all the time there is.
    #[test]
    fn an_expression_that_grows_without_bound_is_refused_before_it_grows() {
        let big = "x".repeat(1024 * 1024);
        let scope = Scope {
            names: BTreeMap::from([(
                "input",
                Arc::new(json!({"big": big, "list": vec![7; 20_000], "s": "aaaaaaaaaa"})),
            )]),
            steps: BTreeMap::new(),
        };
        let chained = format!("input.s{}", " | replace('a', 'aaaaaaaaaa')".repeat(40));
        let joined = format!("input.big{}", " ~ input.big".repeat(300));
        let added = format!("input.list{}", " + input.list".repeat(300));
        let mapped = format!("input.list | map('replace', '7', '{}')", "a".repeat(3_000));
        let tried = [
            "'a' | indent(100000000000)",
            "'a' * 100000000",
            "100000000 * 'a'",
            "('a' * 100000) * 100000",
            "[1] * 100000000",
            "[1, 2] | slice(1000000000)",
            "[1, 2] | batch(1000000000, 0)",
            "range(1000000000)",
            "[1] | map('indent', 100000000000)",
            "'%1000000000d' | format(1)",
            "'%1000000000d' % 1",
            "[1] | tojson(indent=1000000000)",
            "[1] | tojson(1000000000)",
            "input.big | replace('x', input.big)",
            "input.big | replace('', input.big)",
            "input.list | join(input.big)",
            "input.list | map('string') | join(input.big)",
            "input.list | select('in', input.list)",
            "input.list | map('default', input.big) | list",
            "input.list | map('string') | sum(start='')",
            "input.big | trim(input.big)",
            "input.big | list | map('replace', 'x', input.big)",
            "[[[input, input], [input, input]], [[input, input], [input, input]]]",
            "2 ** 100000000000",
            "input.s.upper()",
            "[*input.list]",
            &chained,
            &joined,
            &added,
            &mapped,
        ];
        let many = json!(vec!["${{ input.big }}"; 5_000]);
        let mut problems = Problems::default();
        let many = Template::read(&many, "/x", &mut problems).unwrap();
        assert!(matches!(many.value(&scope), Err(Empty::Failed(_))));
        for source in tried {
            let mut problems = Problems::default();
            let read = Template::read(&json!(format!("${{{{ {source} }}}}")), "/x", &mut problems);
            let said = read.map(|template| template.value(&scope));
            let refused = matches!(said, None | Some(Err(Empty::Failed(_))));
            assert!(refused, "{source}: {said:?}");
        }
    }

    #[test]
    fn what_plans_need_of_expressions_is_there() {
        for (source, value) in [
            ("1 + 2 * 3 - 4 / 2", json!(5.0)),
            ("7 // 2", json!(3)),
            ("7 % 4", json!(3)),
            ("2 ** 10", json!(1024)),
            ("-input.n", json!(-3)),
            ("1 < input.n <= 3", json!(true)),
            ("input.n in [1, 3]", json!(true)),
            ("'x' not in input.name", json!(true)),
            ("not input.n or 'y'", json!("y")),
            ("'big' if input.n > 5 else 'small'", json!("small")),
            ("'a' + 'b' ~ 1 ~ [2]", json!("ab1[2]")),
            ("[1] + [2]", json!([1, 2])),
            ("[1, 2, 3, 4][1:3]", json!([2, 3])),
            ("input.name[::-1]", json!("bob")),
            ("[1, 2, 3][-1]", json!(3)),
            ("input['name'] | upper", json!("BOB")),
            ("[3, 1, 2] | sort(reverse=true)", json!([3, 2, 1])),
            ("['a', 'b'] | join('-')", json!("a-b")),
            ("'a-b' | split('-') | list", json!(["a", "b"])),
            ("'a-b' | replace('-', '+')", json!("a+b")),
            ("[{'a': {'b': 1}}, {'a': {'b': 2}}] | map(attribute='a.b') | sum", json!(3)),
            ("['a', 'b'] | map('upper') | list", json!(["A", "B"])),
            ("[1, 2, 3] | select('gt', 1) | list", json!([2, 3])),
            ("[1, 2, 3] | reject('odd') | first", json!(2)),
            ("[{'k': 1}, {'k': 0}] | selectattr('k') | length", json!(1)),
            ("[{'k': 1}, {'k': 2}] | rejectattr('k', 'eq', 1) | map(attribute='k')", json!([2])),
            ("{'b': 1, 'a': 2} | items | sort", json!([["a", 2], ["b", 1]])),
            ("[1, 1, 2] | unique", json!([1, 2])),
            ("[1, 2] | zip(['a', 'b'])", json!([[1, "a"], [2, "b"]])),
            ("{'a': [1]} | tojson", json!("{\"a\":[1]}")),
            ("2.34567 | round(2)", json!(2.35)),
            ("'7' | int + 1", json!(8)),
            ("steps['a'].status", json!("done")),
            ("input.n is odd and input.name is string", json!(true)),
            ("steps.a.output.rows | map(attribute='nix', default=0) | list", json!([0])),
        ] {
            assert_eq!(fill(json!(format!("${{{{ {source} }}}}"))), Ok(value), "{source}");
        }
    }

    #[test]
    fn unknown_names_filters_and_tests_are_found_before_anything_runs() {
        let wrong = |text: &str| {
            let problems = read(json!(text)).unwrap_err();
            (problems[0].wrong, problems[0].what.clone() + " / " + &problems[0].fix)
        };
        let (kind, said) = wrong("${{ inptu.x }}");
        assert_eq!(kind, Wrong::UnknownName);
        assert!(said.contains("`inptu`") && said.contains("`input`"), "{said}");
        assert!(wrong("${{ input.x | lenght }}").1.contains("`length`"));
        assert!(wrong("${{ input.x is not definde }}").1.contains("`defined`"));
        assert!(wrong("${{ steps.a.result }}").1.contains("steps.a.output.result"));
        assert!(wrong("${{ now() }}").1.contains("no name `now`"));
        assert!(wrong("${{ range(3) }}").1.contains("no name `range`"));
        let (kind, said) = wrong("${{ input. }}");
        assert_eq!(kind, Wrong::Syntax);
        assert!(said.contains("column"), "{said}");
        assert!(wrong("a ${{ input.x").1.contains("column 3"));
    }

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
