//! Templates. A text that is exactly `${{ expression }}` is the value of the expression, of whatever kind; within
//! other text it is written out. `$${{` is `${{` itself. Expressions are those of Jinja; what an expression may see
//! is given to it, so the same inputs always give the same value: there is no clock, no chance, no function. They are
//! worked out in `super::evaluate`.

use super::{
    expr::{Empty, Expr, Name, Scope},
    limits,
    problem::{Problems, Wrong, below},
};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

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
                // Of the parts and not `value` itself: `$${{` stands for something else in any depth.
                let plain: Option<Vec<Value>> = items.iter().map(|t| t.plain().cloned()).collect();
                Some(plain.map_or(Template::List(items), |all| Template::Plain(Value::Array(all))))
            }
            Value::Object(members) => {
                let members: Vec<_> = (members.iter())
                    .map(|(k, v)| {
                        Some((k.clone(), Self::read_within(v, &below(at, k), problems, depth + 1)?))
                    })
                    .collect();
                let members: BTreeMap<_, _> = members.into_iter().collect::<Option<_>>()?;
                let plain: Option<serde_json::Map<_, _>> =
                    members.iter().map(|(k, t)| Some((k.clone(), t.plain()?.clone()))).collect();
                Some(
                    plain.map_or(Template::Object(members), |all| {
                        Template::Plain(Value::Object(all))
                    }),
                )
            }
            plain => Some(Template::Plain(plain.clone())),
        }
    }

    /// Its value where there is nothing to fill in.
    fn plain(&self) -> Option<&Value> {
        match self {
            Template::Plain(value) => Some(value),
            _ => None,
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
        let nested = json!({"a": ["$${{ x }}"]});
        assert_eq!(fill(nested), Ok(json!({"a": ["${{ x }}"]})), "in any depth");
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
}
