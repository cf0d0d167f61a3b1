//! What schemas say before anything runs: of a value that is there, everything; of a reference, whether the kinds
//! can meet. Where a schema is silent or says more than is understood here (`anyOf` with several forms, say), a
//! reference passes: the tool still checks its own input when it is called.

use super::{
    expr::{Expr, Part},
    limits,
    problem::{Problems, Wrong, below},
    template::Template,
};
use crate::nearest::nearest;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// A schema and where its references lead.
#[derive(Clone, Copy)]
pub(super) struct Schema<'a> {
    root: &'a Value,
    here: &'a Value,
}

/// What a schema says about a place inside of a value.
pub(super) enum Found<'a> {
    /// This.
    Schema(Schema<'a>),
    /// Nothing.
    Anything,
    /// That it is not there: the member, and what there is.
    Missing(String, Vec<String>),
    /// That there is nothing inside: the part, and the kinds that it can be.
    Closed(Part, BTreeSet<String>),
}

impl<'a> Schema<'a> {
    pub(super) fn new(root: &'a Value) -> Self {
        Schema { root, here: root }.resolved()
    }

    /// As a schema that stands for itself. Where that can not be had, because a reference leads to something that it would not
    /// take along, it says nothing.
    pub(super) fn alone(&self) -> Value {
        if std::ptr::eq(self.root, self.here) {
            return self.here.clone();
        }
        let defs = ["$defs", "definitions"].into_iter().filter_map(|word| self.root.get(word));
        if std::iter::once(self.here).chain(defs).any(refers_elsewhere) {
            return Value::Bool(true);
        }
        let mut schema = self.here.clone();
        if let (Some(object), Some(root)) = (schema.as_object_mut(), self.root.as_object()) {
            for word in ["$defs", "definitions"] {
                if let Some(defs) = root.get(word) {
                    object.entry(word).or_insert_with(|| defs.clone());
                }
            }
        }
        schema
    }

    fn at(self, here: &'a Value) -> Self {
        Schema { here, ..self }.resolved()
    }

    /// Follows references within the schema.
    fn resolved(mut self) -> Self {
        for _ in 0..16 {
            let Some(to) = self.here.get("$ref").and_then(Value::as_str) else { break };
            let Some(found) = to.strip_prefix('#').and_then(|p| self.root.pointer(p)) else {
                break;
            };
            self.here = found;
        }
        self
    }

    fn member(&self, word: &str) -> Option<&'a Value> {
        self.here.get(word)
    }

    fn properties(&self) -> Option<&'a Map<String, Value>> {
        self.member("properties")?.as_object()
    }

    fn is_closed(&self) -> bool {
        self.member("additionalProperties") == Some(&Value::Bool(false))
    }

    /// It may have several forms: nothing is said about references then.
    fn is_manifold(&self) -> bool {
        let words = ["anyOf", "oneOf", "allOf", "if", "not", "patternProperties"];
        words.iter().any(|w| self.member(w).is_some())
    }

    /// The kinds that it allows; nothing where it allows all, or nobody can say.
    pub(super) fn kinds(&self) -> Option<BTreeSet<String>> {
        let mut left = limits::SCHEMA_PARTS_MAX;
        self.kinds_within(&mut left)
    }

    /// `left` are the parts that may still be looked at: forms can refer to each other in a circle, or each to the next one
    /// twice.
    fn kinds_within(&self, left: &mut usize) -> Option<BTreeSet<String>> {
        *left = left.checked_sub(1)?;
        for word in ["anyOf", "oneOf"] {
            if let Some(forms) = self.member(word).and_then(Value::as_array) {
                let mut kinds = BTreeSet::new();
                for form in forms {
                    kinds.extend(self.at(form).kinds_within(left)?);
                }
                return Some(kinds);
            }
        }
        match self.member("type")? {
            Value::String(kind) => Some(BTreeSet::from([kind.clone()])),
            Value::Array(kinds) => kinds.iter().map(|k| k.as_str().map(str::to_owned)).collect(),
            _ => None,
        }
    }

    /// What it says about a part of a value.
    fn part(self, part: &Part) -> Found<'a> {
        let holder = match part {
            Part::Item(_) => "array",
            Part::Member(_) => "object",
        };
        if let Some(kinds) = self.kinds().filter(|kinds| !kinds.contains(holder)) {
            return Found::Closed(part.clone(), kinds);
        }
        if self.is_manifold() {
            return Found::Anything;
        }
        match part {
            Part::Item(_) => match self.member("items") {
                Some(items @ Value::Object(_)) => Found::Schema(self.at(items)),
                _ => Found::Anything,
            },
            Part::Member(name) => {
                let known = self.properties();
                match known.and_then(|p| p.get(name)) {
                    Some(schema) => Found::Schema(self.at(schema)),
                    // An object that lists members and says nothing of others may have them.
                    None if self.is_closed() => {
                        let names = known.map(|k| k.keys().cloned().collect()).unwrap_or_default();
                        Found::Missing(name.clone(), names)
                    }
                    None => Found::Anything,
                }
            }
        }
    }

    /// What it says about a place further inside.
    pub(super) fn follow(self, path: &[Part]) -> Found<'a> {
        let mut at = self;
        for part in path {
            match at.part(part) {
                Found::Schema(schema) => at = schema,
                other => return other,
            }
        }
        Found::Schema(at)
    }
}

/// Says which kinds an expression's value can be of, where that is known.
pub(super) trait Sources {
    fn kinds(&self, expr: &Expr) -> Option<BTreeSet<String>>;
}

/// Compares what a template gives with what is asked for.
pub(super) fn fit(
    template: &Template,
    wanted: Schema<'_>,
    sources: &dyn Sources,
    at: &str,
    of: &str,
    problems: &mut Problems,
) {
    match template {
        Template::Plain(value) => fit_value(value, wanted, at, of, problems),
        Template::Whole(expr) => {
            let (given, wanted) = (sources.kinds(expr), wanted.kinds());
            let (Some(given), Some(wanted)) = (given, wanted) else { return };
            if !given.iter().any(|g| accepts(&wanted, g)) {
                let what = format!(
                    "{of} wants {} here, `{}` gives {}",
                    list(&wanted),
                    expr.source,
                    list(&given)
                );
                problems.add(at, Wrong::Schema, what, "refer to something else, or convert it");
            }
        }
        Template::Text(_) => fit_kind("string", wanted, at, of, problems),
        Template::List(items) => {
            fit_kind("array", wanted, at, of, problems);
            if let Some(schema @ Value::Object(_)) = wanted.member("items")
                && !wanted.is_manifold()
            {
                for (i, item) in items.iter().enumerate() {
                    fit(item, wanted.at(schema), sources, &below(at, i), of, problems);
                }
            }
        }
        Template::Object(members) => {
            fit_kind("object", wanted, at, of, problems);
            if wanted.is_manifold() {
                return;
            }
            let required = wanted.member("required").and_then(Value::as_array);
            for name in required.into_iter().flatten().filter_map(Value::as_str) {
                if !members.contains_key(name) {
                    let what = format!("{of} needs `{name}`, which is missing");
                    problems.add(at, Wrong::Schema, what, format!("give `{name}`"));
                }
            }
            let empty = Map::new();
            let known = wanted.properties().unwrap_or(&empty);
            for (name, member) in members {
                let here = below(at, name);
                match known.get(name) {
                    Some(schema) => fit(member, wanted.at(schema), sources, &here, of, problems),
                    None if wanted.is_closed() => {
                        let what = format!("{of} does not take `{name}`");
                        let names: Vec<&str> = known.keys().map(String::as_str).collect();
                        let fix = || match nearest(name, names.iter().copied()) {
                            Some(near) => format!("did you mean `{near}`?"),
                            None => format!("it takes {}", names.join(", ")),
                        };
                        problems.add_with(here, Wrong::Schema, what, fix);
                    }
                    None => {}
                }
            }
        }
    }
}

fn fit_kind(kind: &str, wanted: Schema<'_>, at: &str, of: &str, problems: &mut Problems) {
    if let Some(wanted) = wanted.kinds()
        && !accepts(&wanted, kind)
    {
        let what = format!("{of} wants {} here, this is {kind}", list(&wanted));
        problems.add(at, Wrong::Schema, what, "a whole ${{ }} keeps the kind of its value");
    }
}

fn accepts(wanted: &BTreeSet<String>, given: &str) -> bool {
    wanted.contains(given)
        // A number may be whole, and a whole number is a number.
        || (given == "integer" && wanted.contains("number"))
        || (given == "number" && wanted.contains("integer"))
}

pub(super) fn list(kinds: &BTreeSet<String>) -> String {
    kinds.iter().map(String::as_str).collect::<Vec<_>>().join(" or ")
}

/// A value that is there, against the whole schema.
pub(super) fn fit_value(
    value: &Value,
    wanted: Schema<'_>,
    at: &str,
    of: &str,
    problems: &mut Problems,
) {
    // A schema that can not be used refuses nothing: the tool checks for itself.
    let Ok(schema) = tenure_schema::Schema::stored(&wanted.alone()) else { return };
    match schema.check_within(value, limits::VIOLATIONS_MAX, &mut problems.comparisons) {
        Ok(found) => {
            for v in found {
                let what = format!("{of}: {}", v.says);
                problems.add(format!("{at}{}", v.at), Wrong::Schema, what, "see its schema");
            }
        }
        Err(e) => {
            let what = format!("{of}: {e}");
            problems.add(at, Wrong::Limit, what, "make the schema simpler, without circles");
        }
    }
}

/// Whether a reference in it leads to anything but definitions.
fn refers_elsewhere(schema: &Value) -> bool {
    match schema {
        Value::Object(members) => {
            members.iter().any(|(word, inner)| match (word.as_str(), inner) {
                ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(to)) => {
                    !(to.starts_with("#/$defs/") || to.starts_with("#/definitions/"))
                }
                (_, inner) => refers_elsewhere(inner),
            })
        }
        Value::Array(items) => items.iter().any(refers_elsewhere),
        _ => false,
    }
}

/// The schema of a list of such values.
pub(super) fn list_of(schema: &Value) -> Value {
    let mut wrapped = json!({"type": "array"});
    if let Some(object) = schema.as_object() {
        for word in ["$defs", "definitions"] {
            if let Some(defs) = object.get(word) {
                wrapped[word] = defs.clone();
            }
        }
        wrapped["items"] = schema.clone();
    }
    wrapped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_without_end_or_number_say_nothing_about_kinds() {
        let circle = json!({"anyOf": [{"$ref": "#"}, {"type": "string"}]});
        assert_eq!(Schema::new(&circle).kinds(), None);
        let twice = |n: usize| {
            let next = |i: usize| json!({"$ref": format!("#/$defs/a{}", i + 1)});
            let mut defs: Map<String, Value> =
                (0..n).map(|i| (format!("a{i}"), json!({"oneOf": [next(i), next(i)]}))).collect();
            defs.insert(format!("a{n}"), json!({"type": "string"}));
            json!({"$ref": "#/$defs/a0", "$defs": defs})
        };
        assert_eq!(Schema::new(&twice(3)).kinds(), Some(BTreeSet::from(["string".to_owned()])));
        assert_eq!(Schema::new(&twice(60)).kinds(), None, "two to the sixtieth");
        // As many forms as are looked at, and one more.
        let forms = |n: usize| json!({"anyOf": vec![json!({"type": "null"}); n]});
        assert!(Schema::new(&forms(limits::SCHEMA_PARTS_MAX - 1)).kinds().is_some());
        assert!(Schema::new(&forms(limits::SCHEMA_PARTS_MAX)).kinds().is_none());
    }

    #[test]
    fn what_a_schema_says_against_a_value_is_bounded() {
        let schema = json!({"items": {"type": "integer"}});
        let large = json!(vec![json!("x".repeat(10_000)); 1_000]);
        let mut problems = Problems::default();
        fit_value(&large, Schema::new(&schema), "", "it", &mut problems);
        let said = problems.into_vec();
        assert_eq!(said.len(), limits::VIOLATIONS_MAX);
        let bytes: usize = said.iter().map(|p| p.what.len()).sum();
        assert!(bytes <= limits::VIOLATIONS_MAX * 310, "{bytes}");
    }

    #[test]
    fn a_schema_that_takes_too_much_work_is_not_held_against_a_value() {
        let wrong = |schema: &Value, value: &Value| {
            let mut problems = Problems::default();
            fit_value(value, Schema::new(schema), "", "it", &mut problems);
            problems.into_vec().iter().map(|p| p.wrong).collect::<Vec<_>>()
        };
        let twice = |n: usize| {
            let next = |i: usize| json!({"$ref": format!("#/$defs/a{}", i + 1)});
            let mut defs: Map<String, Value> =
                (0..n).map(|i| (format!("a{i}"), json!({"anyOf": [next(i), next(i)]}))).collect();
            defs.insert(format!("a{n}"), json!({"type": "string"}));
            json!({"$ref": "#/$defs/a0", "$defs": defs})
        };
        assert_eq!(wrong(&twice(8), &json!("x")), []);
        assert_eq!(wrong(&twice(8), &json!(5)), [Wrong::Schema]);
        assert_eq!(wrong(&twice(60), &json!(5)), [Wrong::Limit]);
        let circle = json!({"anyOf": [{"$ref": "#"}, {"type": "string"}]});
        assert_eq!(wrong(&circle, &json!("x")), [Wrong::Limit]);
        // Twice at every level of the value.
        let level = json!({"properties": {"a": {"$ref": "#"}}});
        let levels = json!({"allOf": [level, level]});
        let deep = |n: usize| (0..n).fold(json!(1), |inner, _| json!({"a": inner}));
        assert_eq!(wrong(&levels, &deep(8)), []);
        assert_eq!(wrong(&levels, &deep(60)), [Wrong::Limit]);
        // A tree is no circle, and a large value is not too much.
        let tree = json!({"type": "object", "properties": {
            "left": {"$ref": "#"}, "right": {"$ref": "#"}}, "additionalProperties": false});
        let grown = (0..60).fold(json!({}), |inner, _| json!({"left": inner, "right": {}}));
        assert_eq!(wrong(&tree, &grown), []);
        let list = json!({"items": {"type": "integer", "minimum": 0}});
        assert_eq!(wrong(&list, &json!((0..100_000).collect::<Vec<u32>>())), []);
    }

    #[test]
    fn a_part_of_a_schema_that_refers_to_the_whole_says_nothing_alone() {
        let tree = json!({"type": "object", "properties": {
            "left": {"type": "object", "properties": {"up": {"$ref": "#"}}},
            "n": {"type": "integer"}}});
        let found = |name: &str| match Schema::new(&tree).follow(&[Part::Member(name.into())]) {
            Found::Schema(found) => found.alone(),
            _ => panic!("{name} is there"),
        };
        assert_eq!(found("left"), Value::Bool(true));
        assert_eq!(found("n"), json!({"type": "integer"}));
        assert_eq!(Schema::new(&tree).alone(), tree);
    }
}
