//! What schemas say before anything runs: of a value that is there, everything; of a reference, whether the kinds
//! can meet. Where a schema is silent or says more than is understood here (`anyOf` with several forms, say), a
//! reference passes: the tool still checks its own input when it is called.

use super::{
    expr::{Expr, Part},
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
}

impl<'a> Schema<'a> {
    pub(super) fn new(root: &'a Value) -> Self {
        Schema { root, here: root }.resolved()
    }

    /// As a schema that stands for itself.
    pub(super) fn alone(&self) -> Value {
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
        for word in ["anyOf", "oneOf"] {
            if let Some(forms) = self.member(word).and_then(Value::as_array) {
                let kinds: Option<Vec<_>> = forms.iter().map(|f| self.at(f).kinds()).collect();
                return kinds.map(|k| k.into_iter().flatten().collect());
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

/// Says which schema an expression's value has, where that is known.
pub(super) trait Sources {
    fn of(&self, expr: &Expr) -> Option<Value>;
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
            let Some(given) = sources.of(expr) else { return };
            let (given, wanted) = (Schema::new(&given).kinds(), wanted.kinds());
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
                        let fix = match nearest(name, names.iter().copied()) {
                            Some(near) => format!("did you mean `{near}`?"),
                            None => format!("it takes {}", names.join(", ")),
                        };
                        problems.add(here, Wrong::Schema, what, fix);
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

fn list(kinds: &BTreeSet<String>) -> String {
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
    let schema = wanted.alone();
    // A schema that can not be used refuses nothing: the tool checks for itself.
    let Ok(validator) = jsonschema::validator_for(&schema) else { return };
    for error in validator.iter_errors(value) {
        let here = format!("{at}{}", error.instance_path());
        problems.add(here, Wrong::Schema, format!("{of}: {error}"), "see its schema");
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
