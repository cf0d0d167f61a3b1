//! Objects in parts.
//!
//! An object is kept as its top-level fields (`metadata`, `spec`, `status`), each with its JSON. A change of
//! the status shares the spec, as value and as bytes, with the version before: the bytes of a new
//! version are copied together, not serialised again. That, and that all watchers share the line
//! of an event, is what lets one double push ten thousand events a second.

use crate::resource::Resource;
use bytes::Bytes;
use serde_json::{Map, Value, json};
use std::sync::{Arc, OnceLock};

/// Where an object is: namespace (empty if it has none) and name.
pub type Key = (String, String);

/// One version of an object.
#[derive(Debug)]
pub struct Object {
    resource: &'static Resource,
    version: u64,
    parts: Vec<(String, Arc<Part>)>,
}

#[derive(Debug)]
struct Part {
    value: Value,
    json: Vec<u8>,
}

impl Part {
    fn new(value: Value) -> Arc<Self> {
        // Maps with text keys can always be written.
        let json = serde_json::to_vec(&value).unwrap_or_default();
        Arc::new(Part { value, json })
    }
}

impl Object {
    /// A version of an object. What is as it was in `before` is shared with it.
    pub fn new(
        resource: &'static Resource,
        value: Value,
        version: u64,
        before: Option<&Object>,
    ) -> Arc<Self> {
        let Value::Object(fields) = value else {
            unreachable!("objects are maps: admission saw it")
        };
        let mut parts: Vec<(String, Arc<Part>)> = Vec::with_capacity(fields.len());
        for (name, mut value) in fields {
            if name == "kind" || name == "apiVersion" {
                continue;
            }
            if name == "metadata" {
                value["resourceVersion"] = json!(version.to_string());
            }
            let same = before.and_then(|b| b.part(&name)).filter(|p| p.value == value);
            parts.push((name, same.cloned().unwrap_or_else(|| Part::new(value))));
        }
        Arc::new(Object { resource, version, parts })
    }

    /// The next version, with another status and all else as it was.
    pub fn with_status(&self, status: Value, version: u64) -> Arc<Self> {
        self.with(version, Some(status))
    }

    /// The same, under another version: what a DELETED event carries.
    pub fn at_version(&self, version: u64) -> Arc<Self> {
        self.with(version, None)
    }

    fn with(&self, version: u64, status: Option<Value>) -> Arc<Self> {
        let mut parts = self.parts.clone();
        for (name, part) in &mut parts {
            if name == "metadata" {
                let mut metadata = part.value.clone();
                metadata["resourceVersion"] = json!(version.to_string());
                *part = Part::new(metadata);
            }
        }
        if let Some(status) = status {
            parts.retain(|(name, _)| name != "status");
            parts.push(("status".to_owned(), Part::new(status)));
        }
        Arc::new(Object { resource: self.resource, version, parts })
    }

    fn part(&self, name: &str) -> Option<&Arc<Part>> {
        self.parts.iter().find(|(n, _)| n == name).map(|(_, p)| p)
    }

    /// Its resource version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// What is at a JSON pointer.
    pub fn at(&self, pointer: &str) -> Option<&Value> {
        let rest = pointer.strip_prefix('/')?;
        let (first, rest) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        self.part(first)?.value.pointer(rest)
    }

    /// The text at a JSON pointer; empty if there is none.
    pub fn text(&self, pointer: &str) -> &str {
        self.at(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    /// Namespace and name.
    pub fn key(&self) -> Key {
        (self.text("/metadata/namespace").to_owned(), self.text("/metadata/name").to_owned())
    }

    /// All of it.
    pub fn value(&self) -> Value {
        let mut map = Map::new();
        map.insert("kind".to_owned(), json!(self.resource.kind));
        map.insert("apiVersion".to_owned(), json!(self.resource.api_version()));
        for (name, part) in &self.parts {
            map.insert(name.clone(), part.value.clone());
        }
        Value::Object(map)
    }

    /// Its JSON, as it stands by itself and in events.
    pub fn write(&self, out: &mut Vec<u8>) {
        let (kind, api) = (self.resource.kind, self.resource.api_version());
        out.extend_from_slice(format!(r#"{{"kind":"{kind}","apiVersion":"{api}","#).as_bytes());
        self.write_fields(out);
    }

    /// Its JSON, as it is in lists: there the list says the kind.
    pub fn write_item(&self, out: &mut Vec<u8>) {
        out.push(b'{');
        self.write_fields(out);
    }

    fn write_fields(&self, out: &mut Vec<u8>) {
        for (at, (name, part)) in self.parts.iter().enumerate() {
            out.extend_from_slice(if at == 0 { b"\"" } else { b",\"" });
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b"\":");
            out.extend_from_slice(&part.json);
        }
        out.push(b'}');
    }
}

/// One change of one object, as history has it.
#[derive(Debug)]
pub struct Change {
    /// The version that it made.
    pub version: u64,
    /// The kind of the object.
    pub resource: &'static Resource,
    /// Its namespace and name.
    pub key: Key,
    /// What it was; nothing if it is new.
    pub before: Option<Arc<Object>>,
    /// What it became; nothing if it is gone.
    pub after: Option<Arc<Object>>,
    added: OnceLock<Bytes>,
    modified: OnceLock<Bytes>,
    deleted: OnceLock<Bytes>,
}

impl Change {
    /// A change.
    pub fn new(
        version: u64,
        resource: &'static Resource,
        key: Key,
        before: Option<Arc<Object>>,
        after: Option<Arc<Object>>,
    ) -> Self {
        let (added, modified, deleted) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Change { version, resource, key, before, after, added, modified, deleted }
    }

    /// The line that a watch with this selector gets for this change. Leaving the selector and being
    /// deleted look the same: DELETED, with the object as it was *before*, under the version of the change.
    pub fn line(&self, selector: &crate::select::Selector) -> Option<Bytes> {
        let is = self.after.as_ref().is_some_and(|o| selector.matches(o));
        let was = self.before.as_ref().is_some_and(|o| selector.matches(o));
        match (was, is) {
            (false, true) => {
                let after = self.after.as_ref()?;
                Some(self.added.get_or_init(|| event_line("ADDED", after)).clone())
            }
            (true, true) => {
                let after = self.after.as_ref()?;
                Some(self.modified.get_or_init(|| event_line("MODIFIED", after)).clone())
            }
            (true, false) => {
                let before = self.before.as_ref()?;
                let make = || event_line("DELETED", &before.at_version(self.version));
                Some(self.deleted.get_or_init(make).clone())
            }
            (false, false) => None,
        }
    }
}

/// The line of an event.
pub fn event_line(kind: &str, object: &Object) -> Bytes {
    let size: usize = object.parts.iter().map(|(n, p)| n.len() + p.json.len() + 4).sum();
    let mut line = Vec::with_capacity(size + 100);
    line.extend_from_slice(format!(r#"{{"type":"{kind}","object":"#).as_bytes());
    object.write(&mut line);
    line.extend_from_slice(b"}\n");
    line.into()
}
