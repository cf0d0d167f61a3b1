//! What holds for the whole OpenAPI document, whatever it describes.
//!
//! Most answers are made by crates that know nothing of HTTP, so their form is said twice: there, and in the
//! `documents` of this crate. [`Document::check`] holds the two together. The client of the tests asks it about every
//! answer that any test gets, so a field that is sent and not described, or promised and not sent, fails where it
//! is first seen.

use super::jobs_support::start;
use reqwest::Method;
use serde_json::{Value, json};
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

/// The numbers of a schema that is sent, with the way to each.
fn numbers(document: &Document, schema: &Value, at: &str, found: &mut Vec<(String, Value)>) {
    for part in document.parts(schema) {
        let kinds = part["type"].as_array().cloned().unwrap_or_else(|| vec![part["type"].clone()]);
        if kinds.iter().any(|kind| kind == "integer" || kind == "number") {
            found.push((at.to_owned(), part.clone()));
        }
        for (name, member) in part["properties"].as_object().into_iter().flatten() {
            numbers(document, member, &format!("{at}/{name}"), found);
        }
        let choices = ["oneOf", "anyOf"].iter().filter_map(|choice| part[*choice].as_array());
        for one in choices.flatten() {
            numbers(document, one, at, found);
        }
        if part["items"].is_object() {
            numbers(document, &part["items"], &format!("{at}[]"), found);
        }
    }
}

/// One less than the smallest and one more than the largest value, where a JSON number can say so.
fn outside(schema: &Value) -> Vec<Value> {
    let less = |n: &Value| Some(json!(n.as_i64()?.checked_sub(1)?));
    let more = |n: &Value| match n.as_i64() {
        Some(n) => Some(json!(n.checked_add(1)?)),
        None => Some(json!(n.as_u64()?.checked_add(1)?)),
    };
    [less(&schema["minimum"]), more(&schema["maximum"])].into_iter().flatten().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_number_that_is_sent_has_bounds_and_one_beyond_them_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let document = Document(server.get("/v1/openapi.json").await.body);
    let (mut unbounded, mut accepted, mut tried) = (Vec::new(), Vec::new(), 0);
    let id = tenure_kernel::ids::EntityId::fixed(1, 7).to_string();
    for (template, routes) in document.0["paths"].as_object().unwrap() {
        let fill = |part| match part {
            "{id}" | "{call}" | "{session}" => id.clone(),
            part if str::starts_with(part, "{") => "some-name".to_owned(),
            part => part.to_owned(),
        };
        let path = template.split('/').map(fill).collect::<Vec<_>>().join("/");
        for (method, operation) in routes.as_object().unwrap() {
            let method: Method = method.to_uppercase().parse().unwrap();
            let mut cases = Vec::new();
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let mut found = Vec::new();
                numbers(&document, &parameter["schema"], "", &mut found);
                let name = parameter["name"].as_str().unwrap();
                cases.extend(found.into_iter().map(|(_, schema)| (format!("?{name}"), schema)));
            }
            let body = &operation["requestBody"]["content"]["application/json"]["schema"];
            numbers(&document, body, "", &mut cases);
            for (at, schema) in cases {
                let name = format!("{method} {template} {at}");
                if !schema["minimum"].is_number() || !schema["maximum"].is_number() {
                    unbounded.push(name.clone());
                }
                // A member of the body itself, or of the query: deeper ones are read by the same types.
                let (query, member) = (at.strip_prefix('?'), at.strip_prefix('/'));
                if member.is_some_and(|member| member.contains(['/', '['])) || at.is_empty() {
                    continue;
                }
                for value in outside(&schema) {
                    tried += 1;
                    let path = match query {
                        Some(name) => format!("{path}?{name}={value}"),
                        None => path.clone(),
                    };
                    let body = member.map(|name| json!({ name: value }).to_string());
                    let json = [("content-type", "application/json")];
                    let answer = server.send(method.clone(), &path, &json, body).await;
                    if !(400..500).contains(&answer.status) {
                        accepted.push(format!("{name} = {value}: {}", answer.status));
                    }
                }
            }
        }
    }
    assert!(unbounded.is_empty(), "these have no bounds: {unbounded:#?}");
    assert!(accepted.is_empty(), "these were accepted: {accepted:#?}");
    assert!(tried > 50, "only {tried} were tried");
    let terms = json!({"burst": 2_147_483_648_u64});
    let path = "/v1/tasks/budgets/acme";
    let key = server.operator.clone();
    let answer = server.with_key(Method::PUT, path, &key, terms).await;
    assert_eq!((answer.status, answer.text("code")), (422, "bad_field"), "{answer:?}");
    assert!(answer.text("detail").contains("burst"), "{answer:?}");
    server.stop().await;
}
