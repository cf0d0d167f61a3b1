//! What holds for the whole OpenAPI document, whatever it describes.
//!
//! Most answers are made by crates that know nothing of HTTP, so their form is said twice: there, and in the
//! `documents` of this crate. [`Document::check`] holds the two together. The client of the tests asks it about every
//! answer that any test gets, so a field that is sent and not described, or promised and not sent, fails where it
//! is first seen.

use super::jobs_support::start;
use reqwest::Method;
use serde_json::Value;
use std::{collections::BTreeMap, fs, path::Path};

/// What a server says about itself.
pub struct Document(pub Value);

impl Document {
    /// Whether an answer is what the document says of it.
    pub fn check(&self, method: &Method, path: &str, status: u16, body: &Value) {
        let path = path.split('?').next().unwrap_or(path);
        let Some((template, routes)) = self.route(path) else { return };
        let answers = &routes[method.as_str().to_lowercase()]["responses"];
        let answer = &answers[status.to_string()];
        assert!(answer.is_object(), "{method} {template} does not say that it may answer {status}");
        let schema = &answer["content"]["application/json"]["schema"];
        if schema.is_object()
            && let Err(wrong) = self.fits(schema, body, "")
        {
            panic!(
                "{method} {template} ({status}) is not what the document says: {wrong} in {body}"
            );
        }
    }

    /// The path of the document that is meant: the one with the fewest names in it.
    fn route(&self, path: &str) -> Option<(&String, &Value)> {
        let is_name = |part: &str| part.starts_with('{');
        let fits = |template: &&String| {
            let (mut theirs, mut ours) = (template.split('/'), path.split('/'));
            loop {
                match (theirs.next(), ours.next()) {
                    (None, None) => return true,
                    (Some(a), Some(b)) if a == b || is_name(a) => {}
                    _ => return false,
                }
            }
        };
        let paths = self.0["paths"].as_object().unwrap();
        let names = |template: &String| template.split('/').filter(|part| is_name(part)).count();
        let found = paths.iter().filter(|(template, _)| fits(template));
        found.min_by_key(|(template, _)| names(template))
    }

    fn resolve<'a>(&'a self, schema: &'a Value) -> &'a Value {
        match schema["$ref"].as_str() {
            Some(to) => self.0.pointer(&to[1..]).unwrap_or_else(|| panic!("{to} is nowhere")),
            None => schema,
        }
    }

    /// A schema and all that it consists of.
    fn parts<'a>(&'a self, schema: &'a Value) -> Vec<&'a Value> {
        let schema = self.resolve(schema);
        let all = schema["allOf"].as_array().into_iter().flatten();
        std::iter::once(schema).chain(all.flat_map(|part| self.parts(part))).collect()
    }

    fn fits(&self, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
        let parts = self.parts(schema);
        for part in &parts {
            let choice = part["oneOf"].as_array().or(part["anyOf"].as_array());
            let Some(choice) = choice else { continue };
            let tried: Vec<_> = choice.iter().map(|one| self.fits(one, value, at)).collect();
            if !tried.iter().any(Result::is_ok) {
                return Err(format!("{at} is none of these: {tried:?}"));
            }
            return Ok(());
        }
        let kinds: Vec<&str> = match &parts.iter().find(|p| !p["type"].is_null()) {
            None => return Ok(()),
            Some(part) => match &part["type"] {
                Value::String(one) => vec![one],
                several => several.as_array().unwrap().iter().filter_map(Value::as_str).collect(),
            },
        };
        let kind = match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(n) if n.is_f64() => "number",
            Value::Number(_) => "integer",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        let fits = kinds.contains(&kind) || (kind == "integer" && kinds.contains(&"number"));
        if !fits {
            return Err(format!("{at} is {kind}, not {kinds:?}"));
        }
        match value {
            Value::Array(items) => match parts.iter().find(|p| p["items"].is_object()) {
                Some(list) => items.iter().enumerate().try_for_each(|(n, item)| {
                    self.fits(&list["items"], item, &format!("{at}[{n}]"))
                }),
                None => Ok(()),
            },
            Value::Object(members) => self.members_fit(&parts, members, at),
            _ => Ok(()),
        }
    }

    fn members_fit(
        &self,
        parts: &[&Value],
        members: &serde_json::Map<String, Value>,
        at: &str,
    ) -> Result<(), String> {
        for part in parts {
            for name in part["required"].as_array().into_iter().flatten().filter_map(Value::as_str)
            {
                if !members.contains_key(name) {
                    return Err(format!("{at}.{name} is promised and not sent"));
                }
            }
        }
        // An object of which nothing is said may have anything.
        if !parts
            .iter()
            .any(|p| p["properties"].is_object() || p["additionalProperties"].is_object())
        {
            return Ok(());
        }
        for (name, value) in members {
            let described = parts.iter().find_map(|p| p["properties"].get(name));
            let described = described.or_else(|| {
                parts.iter().map(|p| &p["additionalProperties"]).find(|p| p.is_object())
            });
            match described {
                Some(schema) => self.fits(schema, value, &format!("{at}.{name}"))?,
                None => return Err(format!("{at}.{name} is sent and not described")),
            }
        }
        Ok(())
    }

    /// Whether nothing is said about what a schema allows.
    fn is_bare(&self, schema: &Value) -> bool {
        let parts = self.parts(schema);
        let says = |p: &&Value| {
            ["properties", "oneOf", "anyOf", "additionalProperties"]
                .iter()
                .any(|m| !p[*m].is_null())
        };
        match parts.iter().find(|p| p["items"].is_object()) {
            Some(list) => self.is_bare(&list["items"]),
            None => {
                let simple =
                    |p: &&Value| ["string", "integer", "boolean"].iter().any(|t| p["type"] == *t);
                !parts.iter().any(|p| says(p) || simple(p))
            }
        }
    }
}

async fn document() -> Document {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let document = server.get("/v1/openapi.json").await.body;
    server.stop().await;
    Document(document)
}

fn sources(dir: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => sources(&path, found),
            false => found.push(fs::read_to_string(&path).unwrap()),
        }
    }
}

fn word(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// The name under which a type stands in the document: `as = …` of its attributes, or its own.
fn name_of(attributes_and_type: &str) -> String {
    let lines = attributes_and_type.lines().map(str::trim);
    for line in lines.filter(|l| !l.starts_with("//")) {
        if let Some((_, name)) = line.split_once("schema(as = ") {
            return word(name);
        }
        let declared = line.split_once("struct ").or_else(|| line.split_once("enum "));
        if let Some((_, name)) = declared.filter(|_| !line.starts_with('#')) {
            return word(name);
        }
    }
    panic!("no type behind this derive: {attributes_and_type:.80}");
}

/// Two types of one name become one schema, and the one that was merged last describes both: nothing in the document
/// shows it. So the names are counted where they are given.
#[tokio::test]
async fn no_two_types_share_a_name_in_the_document() {
    let mut texts = Vec::new();
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The worker protocol brings its own types.
    for dir in ["src", "../remote/src"] {
        sources(&here.join(dir), &mut texts);
    }
    let mut given: BTreeMap<String, u32> = BTreeMap::new();
    for text in &texts {
        for behind in text.split("#[derive(").skip(1) {
            let derived = behind.split(")]").next().unwrap_or_default();
            if derived.split(',').any(|d| d.trim() == "ToSchema") {
                *given.entry(name_of(behind)).or_default() += 1;
            }
        }
        for behind in text.split("impl ToSchema for ").skip(1) {
            *given.entry(word(behind)).or_default() += 1;
        }
    }
    let twice: Vec<_> = given.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "several types have these names: {twice:?}");
    let document = document().await.0;
    for name in document["components"]["schemas"].as_object().unwrap().keys() {
        // A type with a parameter stands there as `Page_Evidence`.
        let counted = name.split('_').next().is_some_and(|name| given.contains_key(name));
        assert!(counted, "where does {name} come from? it was not counted");
    }
}

#[tokio::test]
async fn no_answer_is_described_as_an_object_of_which_nothing_is_said() {
    let document = document().await;
    let mut bare = Vec::new();
    for (path, routes) in document.0["paths"].as_object().unwrap() {
        for (method, operation) in routes.as_object().unwrap() {
            for (status, answer) in operation["responses"].as_object().into_iter().flatten() {
                let schema = &answer["content"]["application/json"]["schema"];
                if schema.is_object() && document.is_bare(schema) {
                    bare.push(format!("{method} {path} {status}"));
                }
            }
        }
    }
    assert!(bare.is_empty(), "what do these answer? {bare:#?}");
}
