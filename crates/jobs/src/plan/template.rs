//! Templates. A text that is exactly `${{ expression }}` is the value of the expression, of whatever kind; within
//! other text it is written out. `$${{` is `${{` itself. Expressions are those of Jinja; what an expression may see
//! is given to it, so the same inputs always give the same value: there is no clock, no chance, no function.
//!
//! An expression that is only a path (`steps.a.output.items[0]`) is followed in the JSON itself: nothing is copied
//! through another kind of value, and a check can compare it with schemas.

use super::{
    limits,
    problem::{Problems, Wrong, below},
};
use crate::nearest::nearest;
use minijinja::{Environment, ErrorKind, UndefinedBehavior};
use serde_json::{Map, Value};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

/// Filters that expressions may use.
pub const FILTERS: [&str; 42] = [
    "abs",
    "attr",
    "batch",
    "bool",
    "capitalize",
    "chain",
    "d",
    "default",
    "dictsort",
    "first",
    "float",
    "groupby",
    "indent",
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
    "slice",
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

static JINJA: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut env = Environment::new();
    env.set_undefined_behavior(UndefinedBehavior::Strict);
    env.set_fuel(Some(limits::FUEL));
    env.set_debug(true);
    for function in ["range", "dict", "debug", "namespace"] {
        env.remove_global(function);
    }
    env
});

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
        let compiled = match JINJA.compile_expression(source) {
            Ok(compiled) => compiled,
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
        let mut found: Vec<String> = compiled.undeclared_variables(true).into_iter().collect();
        found.sort();
        for name in found {
            names.extend(read_name(&name, at, problems));
        }
        check_words(source, at, problems);
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
        let value = |v: &Value| minijinja::Value::from(minijinja::value::Serde(v));
        let mut names: BTreeMap<&str, minijinja::Value> = BTreeMap::new();
        let mut steps: BTreeMap<&str, minijinja::Value> = BTreeMap::new();
        for name in &self.names {
            if let Name::Step(id) = name {
                if let Some(step) = scope.steps.get(id) {
                    steps.insert(id, value(step));
                }
            } else if let Some(given) = scope.names.get(name.word()) {
                names.insert(name.word(), value(given));
            }
        }
        names.insert("steps", minijinja::Value::from_pairs(steps));
        let failed = |e: minijinja::Error| {
            let said = e.detail().map_or_else(|| e.kind().to_string(), str::to_owned);
            match e.kind() {
                ErrorKind::UndefinedError => {
                    Empty::Undefined(format!("`{}`: something in it is not there", self.source))
                }
                ErrorKind::OutOfFuel => Empty::Failed(format!("`{}` takes too long", self.source)),
                _ => Empty::Failed(format!("`{}`: {said}", self.source)),
            }
        };
        let compiled = JINJA.compile_expression(&self.source).map_err(failed)?;
        let got = compiled.eval(minijinja::Value::from_pairs(names)).map_err(failed)?;
        native(&got, 0).map_err(|e| match e {
            Some(why) => Empty::Failed(format!("`{}`: {why}", self.source)),
            None => undefined(),
        })
    }

    /// Whether it holds, as Jinja sees it: empty, zero, null and false do not.
    pub fn holds(&self, scope: &Scope) -> Result<bool, Empty> {
        Ok(match self.value(scope)? {
            Value::Null => false,
            Value::Bool(b) => b,
            Value::Number(n) => n.as_f64() != Some(0.0),
            Value::String(s) => !s.is_empty(),
            Value::Array(a) => !a.is_empty(),
            Value::Object(o) => !o.is_empty(),
        })
    }
}

impl Name {
    fn word(&self) -> &'static str {
        match self {
            Name::Input => "input",
            Name::Item => "item",
            Name::Index => "index",
            Name::Output => "output",
            Name::Step(_) => "steps",
        }
    }
}

/// A name that an expression uses, as Jinja lists it: `steps.a.output.x`.
fn read_name(name: &str, at: &str, problems: &mut Problems) -> Option<Name> {
    let mut parts = name.split('.');
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

/// Filters and tests are looked up when they run; here they are looked for beforehand.
fn check_words(source: &str, at: &str, problems: &mut Problems) {
    let words = words(source);
    for pair in words.windows(2) {
        let (kind, known): (_, &[&str]) = match pair[0] {
            "|" => ("filter", &FILTERS),
            "is" if pair[1] != "not" => ("test", &TESTS),
            _ => continue,
        };
        check_word(kind, known, pair[1], at, problems);
    }
    for three in words.windows(3).filter(|w| w[0] == "is" && w[1] == "not") {
        check_word("test", &TESTS, three[2], at, problems);
    }
}

fn check_word(kind: &str, known: &[&str], word: &str, at: &str, problems: &mut Problems) {
    if known.contains(&word) || !word.starts_with(|c: char| c.is_alphabetic() || c == '_') {
        return;
    }
    let fix = match nearest(word, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("there are {}", known.join(", ")),
    };
    problems.add(at, Wrong::UnknownName, format!("there is no {kind} `{word}`"), fix);
}

/// Words and signs of an expression, without its texts.
fn words(source: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = source.char_indices().peekable();
    while let Some((start, c)) = rest.next() {
        if c == '"' || c == '\'' {
            while let Some((_, d)) = rest.next() {
                if d == '\\' {
                    rest.next();
                } else if d == c {
                    break;
                }
            }
            found.push("\"\"");
        } else if c.is_alphanumeric() || c == '_' {
            let mut end = start + c.len_utf8();
            while let Some((i, d)) = rest.next_if(|(_, d)| d.is_alphanumeric() || *d == '_') {
                end = i + d.len_utf8();
            }
            found.push(&source[start..end]);
        } else if !c.is_whitespace() {
            found.push(&source[start..start + c.len_utf8()]);
        }
    }
    found
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

/// As JSON. No value at all, also deep inside, is an error without words.
fn native(value: &minijinja::Value, depth: usize) -> Result<Value, Option<String>> {
    use minijinja::value::ValueKind as K;
    if depth > limits::DEPTH_MAX {
        return Err(Some("its value is nested too deeply".into()));
    }
    Ok(match value.kind() {
        K::Undefined => return Err(None),
        K::Seq | K::Iterable => {
            let items = value.try_iter().map_err(|e| Some(e.to_string()))?;
            Value::Array(items.map(|v| native(&v, depth + 1)).collect::<Result<_, _>>()?)
        }
        K::Map => {
            let mut object = Map::new();
            for key in value.try_iter().map_err(|e| Some(e.to_string()))? {
                let item = value.get_item(&key).map_err(|e| Some(e.to_string()))?;
                object.insert(key.to_string(), native(&item, depth + 1)?);
            }
            Value::Object(object)
        }
        K::None | K::Bool | K::Number | K::String => {
            serde_json::to_value(value).map_err(|e| Some(e.to_string()))?
        }
        other => return Err(Some(format!("{other} is not JSON"))),
    })
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
        let value = self.fill(scope, excused)?;
        let bytes = serde_json::to_vec(&value).map_or(0, |b| b.len());
        match bytes > limits::RESULT_BYTES_MAX {
            true => Err(Empty::Failed(format!(
                "it comes to {bytes} bytes; {} are the most",
                limits::RESULT_BYTES_MAX
            ))),
            false => Ok(value),
        }
    }

    fn fill(&self, scope: &Scope, excused: &dyn Fn(&Expr) -> bool) -> Result<Value, Empty> {
        let value = |expr: &Expr| match expr.value(scope) {
            Err(_) if excused(expr) => Ok(Value::Null),
            other => other,
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
            Template::List(items) => Value::Array(
                items.iter().map(|t| t.fill(scope, excused)).collect::<Result<_, _>>()?,
            ),
            Template::Object(members) => {
                let filled = members.iter().map(|(k, t)| Ok((k.clone(), t.fill(scope, excused)?)));
                Value::Object(filled.collect::<Result<_, Empty>>()?)
            }
        })
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
        let big = json!("${{ 'x' * 2000000 }}");
        assert!(matches!(fill(big), Err(Empty::Failed(_))));
        let too_long = json!(format!("${{{{ '{}' }}}}", "x".repeat(limits::EXPRESSION_BYTES_MAX)));
        assert_eq!(read(too_long).unwrap_err()[0].wrong, Wrong::Limit);
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
        let mut state = JINJA.empty_state();
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
