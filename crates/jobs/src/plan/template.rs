//! Templates. A text that is exactly `${{ expression }}` is the value of the expression, of whatever kind; within
//! other text it is written out. `$${{` is `${{` itself. Expressions are those of Jinja; what an expression may see
//! is given to it, so the same inputs always give the same value: there is no clock, no chance, no function. They are
//! worked out in `super::evaluate`.

use super::{
    expr::{Empty, Expr, Name, Scope, spent_all},
    limits,
    problem::{Problems, Wrong, below},
};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use tenure_kernel::depth;

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
    /// Reads a template; what is wrong with it goes to the list. What can not be read has no value.
    pub fn read(value: &Value, at: &str, problems: &mut Problems) -> Template {
        Self::read_within(value, at, problems, 0)
    }

    /// Stands for something that can not be read: its place is taken, nothing is known about its value.
    pub fn unreadable() -> Template {
        Template::Whole(Expr { source: String::new(), path: None, names: BTreeSet::new() })
    }

    /// Whether it could be read.
    pub fn is_known(&self) -> bool {
        !matches!(self, Template::Whole(expr) if expr.source.is_empty())
    }

    fn read_within(value: &Value, at: &str, problems: &mut Problems, depth: usize) -> Template {
        if depth > limits::DEPTH_MAX {
            let what = format!("nested deeper than {} levels", limits::DEPTH_MAX);
            problems.add(at, Wrong::Limit, what, "make it flatter");
            return Self::unreadable();
        }
        match value {
            Value::String(text) if text.contains("${{") => read_text(text, at, problems),
            Value::Array(items) => {
                let items: Vec<Template> = (items.iter().enumerate())
                    .map(|(i, v)| Self::read_within(v, &below(at, i), problems, depth + 1))
                    .collect();
                // Of the parts and not `value` itself: `$${{` stands for something else in any depth.
                let plain: Option<Vec<Value>> = items.iter().map(|t| t.plain().cloned()).collect();
                plain.map_or(Template::List(items), |all| Template::Plain(Value::Array(all)))
            }
            Value::Object(members) => {
                let mut read = BTreeMap::new();
                for (name, member) in members {
                    let here = below(at, name);
                    if name.replace("$${{", "").contains("${{") {
                        let what = "an expression in the name of a member is not worked out";
                        let fix = "give the whole object by an expression: ${{ {input.name: 1} }}";
                        problems.add(&here, Wrong::Syntax, what, fix);
                    }
                    let member = Self::read_within(member, &here, problems, depth + 1);
                    read.insert(name.clone(), member);
                }
                let plain: Option<serde_json::Map<_, _>> =
                    read.iter().map(|(k, t)| Some((k.clone(), t.plain()?.clone()))).collect();
                plain.map_or(Template::Object(read), |all| Template::Plain(Value::Object(all)))
            }
            plain => Template::Plain(plain.clone()),
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
        self.each("", &mut |expr, _| names.extend(expr.names.iter().cloned()));
        names
    }

    /// Every expression, with its place.
    pub(super) fn each(&self, at: &str, take: &mut impl FnMut(&Expr, &str)) {
        match self {
            Template::Plain(_) => {}
            Template::Whole(expr) => take(expr, at),
            Template::Text(pieces) => pieces.iter().for_each(|p| match p {
                Piece::Plain(_) => {}
                Piece::Expr(expr) => take(expr, at),
            }),
            Template::List(items) => {
                items.iter().enumerate().for_each(|(i, t)| t.each(&below(at, i), take));
            }
            Template::Object(members) => {
                members.iter().for_each(|(name, t)| t.each(&below(at, name), take));
            }
        }
    }

    /// Its value.
    pub fn value(&self, scope: &Scope) -> Result<Value, Empty> {
        self.measured(scope, false)
    }

    /// The same; an expression that needs the output of a step without one gives `null`.
    pub fn value_or_null(&self, scope: &Scope) -> Result<Value, Empty> {
        self.measured(scope, true)
    }

    fn measured(&self, scope: &Scope, or_null: bool) -> Result<Value, Empty> {
        if scope.left() == 0 {
            return Err(Empty::Failed(spent_all()));
        }
        let mut bytes = 0;
        let filled = self.fill(scope, or_null, &mut bytes);
        scope.spend(bytes);
        let value = filled?;
        room_for(bytes.max(serde_json::to_vec(&value).map_or(0, |b| b.len())))?;
        depth::check_composed(&value).map_err(|e| Empty::Failed(e.to_string()))?;
        Ok(value)
    }

    /// `bytes` are those of all expressions so far: thousands of them that each give a little less than the most
    /// would be too much long before the whole is measured.
    fn fill(&self, scope: &Scope, or_null: bool, bytes: &mut usize) -> Result<Value, Empty> {
        let mut value = |expr: &Expr| match expr.value(scope) {
            Err(Empty::Without(_)) if or_null => Ok(Value::Null),
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
                let filled = items.iter().map(|t| t.fill(scope, or_null, bytes));
                Value::Array(filled.collect::<Result<_, _>>()?)
            }
            Template::Object(members) => {
                let filled =
                    members.iter().map(|(k, t)| Ok((k.clone(), t.fill(scope, or_null, bytes)?)));
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
pub(super) fn at_least(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(|v| at_least(v) + 1).sum::<usize>() + 1,
        Value::Object(members) => {
            members.iter().map(|(k, v)| k.len() + at_least(v) + 4).sum::<usize>() + 1
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => 1,
    }
}

fn read_text(text: &str, at: &str, problems: &mut Problems) -> Template {
    let (mut pieces, mut plain, mut rest) = (Vec::new(), String::new(), text);
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
            return Template::unreadable();
        };
        if !plain.is_empty() {
            pieces.push(Piece::Plain(std::mem::take(&mut plain)));
        }
        pieces.push(Piece::Expr(Expr::read(&inside[..end], at, problems)));
        rest = &inside[end + 2..];
    }
    plain.push_str(rest);
    if !plain.is_empty() {
        pieces.push(Piece::Plain(plain));
    }
    match pieces.as_slice() {
        [Piece::Expr(expr)] => Template::Whole(expr.clone()),
        [Piece::Plain(plain)] => Template::Plain(Value::String(plain.clone())),
        _ => Template::Text(pieces),
    }
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
            ..Scope::default()
        }
    }

    fn read(value: Value) -> Result<Template, Vec<super::super::Problem>> {
        let mut problems = Problems::default();
        let template = Template::read(&value, "/x", &mut problems);
        match problems.is_empty() {
            true => Ok(template),
            false => Err(problems.into_vec()),
        }
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
            ..Scope::default()
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
            "1e308 * 10",
            "[*input.list]",
            &chained,
            &joined,
            &added,
            &mapped,
        ];
        let many = json!(vec!["${{ input.big }}"; 5_000]);
        let mut problems = Problems::default();
        let many = Template::read(&many, "/x", &mut problems);
        assert!(matches!(many.value(&scope), Err(Empty::Failed(_))));
        for source in tried {
            let mut problems = Problems::default();
            let read = Template::read(&json!(format!("${{{{ {source} }}}}")), "/x", &mut problems);
            let said = problems.is_empty().then(|| read.value(&scope));
            let refused = matches!(said, None | Some(Err(Empty::Failed(_))));
            assert!(refused, "{source}: {said:?}");
        }
    }

    #[test]
    fn a_value_that_is_nested_too_deeply_fails() {
        let nested = |levels: usize| (0..levels).fold(json!(1), |inner, _| json!([inner]));
        let scope = |levels| Scope {
            names: BTreeMap::from([("input", Arc::new(nested(levels)))]),
            ..Scope::default()
        };
        let template = read(json!({"a": {"b": "${{ input }}"}})).unwrap();
        assert!(template.value(&scope(198)).is_ok());
        let deeper = template.value(&scope(199));
        assert!(
            matches!(&deeper, Err(Empty::Failed(why)) if why.contains("200 levels")),
            "{deeper:?}"
        );
    }

    #[test]
    fn what_is_worked_out_is_counted_and_stops_where_a_plan_has_spent_all() {
        let text = json!({"text": "x".repeat(1_000)});
        let scope = |most: usize| Scope {
            names: BTreeMap::from([("input", Arc::new(text.clone()))]),
            most: Some(most),
            ..Scope::default()
        };
        for source in ["${{ input.text }}", "${{ input.text ~ input.text }}"] {
            let template = read(json!(source)).unwrap();
            let enough = scope(limits::PLAN_WORK_BYTES_MAX);
            assert!(template.value(&enough).is_ok());
            let spent = enough.spent.get();
            assert!((1_000..10_000).contains(&spent), "{source}: {spent}");
            let scope = scope(spent);
            assert!(template.value(&scope).is_ok(), "{source}");
            let again = template.value(&scope);
            assert!(matches!(&again, Err(Empty::Failed(why)) if why.contains("of the plan")));
        }
        let operation = read(json!("${{ input.text ~ input.text }}")).unwrap();
        let said = operation.value(&scope(1_500));
        assert!(
            matches!(&said, Err(Empty::Failed(why)) if why.contains("of the plan")),
            "{said:?}"
        );
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
        assert!(wrong("${{ input(3) }}").1.contains("call no functions"));
        assert!(wrong("${{ [1] | map('uper') }}").1.contains("`upper`"));
        assert!(wrong("${{ [1] | select('odt') }}").1.contains("`odd`"));
        assert!(wrong("${{ [{'k': 1}] | rejectattr('k', 'odt') }}").1.contains("`odd`"));
        assert!(read(json!("${{ [{'uper': 1}] | map(attribute='uper') }}")).is_ok());
        let (kind, said) = wrong("${{ input. }}");
        assert_eq!(kind, Wrong::Syntax);
        assert!(said.contains("column"), "{said}");
        assert!(wrong("a ${{ input.x").1.contains("column 3"));
    }
}
