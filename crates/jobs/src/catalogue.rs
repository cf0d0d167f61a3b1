//! The catalogue: which flows and tools workers have ever registered, with version and schema. Durable, so
//! that an unknown flow is refused at submission, also while no worker runs.
//!
//! One resting entity per name, under an id that follows from the name. Nobody holds it: whoever registers
//! commits on the version it has seen.
//!
//! What a worker of one tenant says about its flows and tools is that tenant's own, under an id of its own: a schema
//! decides what is refused, class and timeout what is done about a lost call, and nobody decides that for others. A
//! tenant's version comes before the common one of the same name and number, which only workers of no tenant write. What
//! the common entry says already is not written again.
//!
//! An entry is one head, which has a bound. Of many versions the newest are kept whole, older ones without their schemas,
//! and the oldest not at all: whoever deploys the fiftieth version of a flow can.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;
use tenure_engine::pipeline::Pipeline;
use tenure_kernel::{
    commit::{Birth, Commit, CommitAnswer, Expect},
    error::StoreError,
    ids::EntityId,
    limits::clip,
    machine::{Cx, Decision, Input, Machine, Undecided, decode_state, encode_state},
    store::{HeadFilter, Store},
    stream::{Body, NewEvent},
    table::{BIRTH, Claimable, Class, Move, SAME, StatusRow, Table},
    time::Timestamp,
};
use tenure_schema::SchemaError;
use tenure_steps::{flow::FlowSpec, tool::ToolSpec};

/// The event of a registration.
pub const REGISTERED: &str = "entry_registered";
/// Versions of one name that are remembered.
pub const VERSIONS_MAX: usize = 8;
/// The version under which a tool stands that workers in other languages have: theirs have no number, and workers that
/// run flows begin with 1, so neither takes the other's place.
pub const CALLS_VERSION: u32 = 0;
/// A larger schema is kept without its words for people; one that is larger even so is left out, and the worker still
/// checks its own types.
pub const SCHEMA_BYTES_MAX: usize = 1_800;
/// Longer documentation is cut.
pub const DOC_BYTES_MAX: usize = 400;
/// What the versions of one entry take together. The rest of the head is the name, the tenant and some words.
const VERSIONS_BYTES_MAX: usize = 12 * 1_024;

/// A flow or a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sort {
    /// A flow.
    #[default]
    Flow,
    /// A tool.
    Tool,
}

/// One registered version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Version {
    /// Its number.
    pub version: u32,
    /// One line for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub doc: String,
    /// The class of a tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<tenure_steps::tool::Class>,
    /// JSON schema of the input; `null` where it is unknown or too large.
    #[serde(default)]
    pub input_schema: Value,
    /// JSON schema of the output.
    #[serde(default)]
    pub output_schema: Value,
    /// How it is called, where workers take calls of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls: Option<CallTerms>,
}

impl Version {
    /// What is kept of a tool.
    pub fn of_tool(tool: &ToolSpec) -> Version {
        Version {
            version: tool.version,
            doc: clip(&tool.doc, DOC_BYTES_MAX).to_owned(),
            class: tool.options.class,
            input_schema: schema(tool.input_schema.as_ref().unwrap_or(&Value::Null)),
            output_schema: schema(tool.output_schema.as_ref().unwrap_or(&Value::Null)),
            calls: None,
        }
    }
}

/// What a worker that takes calls says about a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CallTerms {
    /// How long one call may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Tries after the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_max: Option<u32>,
    /// Before the first of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff_ms: Option<u64>,
    /// It can be asked whether a call happened.
    pub probe: bool,
    /// It can undo a call.
    pub compensate: bool,
}

/// Everything known under one name.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Entry {
    /// Flow or tool.
    pub sort: Sort,
    /// Its name.
    pub name: String,
    /// Whose it is; empty for what is common to all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    /// Oldest first.
    pub versions: Vec<Version>,
}

impl Entry {
    /// The newest version.
    pub fn newest(&self) -> Option<&Version> {
        self.versions.iter().max_by_key(|v| v.version)
    }

    /// With the versions of another entry that this one has not.
    fn before(mut self, other: Entry) -> Entry {
        for version in other.versions {
            if self.version(version.version).is_none() {
                self.versions.push(version);
            }
        }
        self.versions.sort_by_key(|v| v.version);
        self
    }

    /// What workers that take calls have said about it.
    pub fn for_calls(&self) -> Option<(&Version, &CallTerms)> {
        let version = self.version(CALLS_VERSION)?;
        Some((version, version.calls.as_ref()?))
    }

    /// A certain one.
    pub fn version(&self, number: u32) -> Option<&Version> {
        self.versions.iter().find(|v| v.version == number)
    }
}

/// What is recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A worker has it.
    EntryRegistered {
        /// Flow or tool.
        sort: Sort,
        /// Its name.
        name: String,
        /// Whose it is; empty for what is common to all.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        tenant: String,
        /// What it has.
        version: Version,
    },
}

/// The machine of an entry.
#[derive(Debug)]
pub struct Catalogue;

/// Its table.
pub static TABLE: Table = Table {
    kind: "catalogue",
    doc: "A flow or a tool that workers have registered, with its versions.",
    statuses: &[StatusRow {
        name: "listed",
        class: Class::Resting,
        claimable: Claimable::No,
        doc: "Known.",
    }],
    moves: &[
        Move { from: BIRTH, event: REGISTERED, to: "listed" },
        Move { from: &["listed"], event: REGISTERED, to: SAME },
    ],
    forced: "",
};

impl Machine for Catalogue {
    type State = Entry;
    type Event = Event;
    const TABLE: &'static Table = &TABLE;
    const CREATED_BY: &'static [&'static str] = &["worker"];

    fn name(_event: &Event) -> &'static str {
        REGISTERED
    }

    fn apply(state: &mut Entry, event: &Event) {
        let Event::EntryRegistered { sort, name, tenant, version } = event;
        state.sort = *sort;
        state.tenant.clone_from(tenant);
        state.name.clone_from(name);
        state.versions.retain(|v| v.version != version.version);
        state.versions.push(version.clone());
        state.versions.sort_by_key(|v| v.version);
        // What is taken as calls is no old version of anything.
        let oldest = |vs: &[Version]| vs.iter().position(|v| v.version != CALLS_VERSION);
        let numbered = state.versions.iter().filter(|v| v.version != CALLS_VERSION).count();
        if numbered > VERSIONS_MAX
            && let Some(oldest) = oldest(&state.versions)
        {
            state.versions.remove(oldest);
        }
        while bytes(&state.versions) > VERSIONS_BYTES_MAX {
            let newest = state.versions.iter().map(|v| v.version).max();
            let whole = state.versions.iter_mut().find(|v| {
                let older = v.version != CALLS_VERSION && Some(v.version) != newest;
                older && !(v.input_schema.is_null() && v.output_schema.is_null())
            });
            if let Some(old) = whole {
                (old.input_schema, old.output_schema) = (Value::Null, Value::Null);
                continue;
            }
            let Some(oldest) = oldest(&state.versions) else { break };
            if Some(state.versions[oldest].version) == newest {
                break;
            }
            state.versions.remove(oldest);
        }
    }

    fn decide(
        _state: Option<&Entry>,
        _input: &Input<'_>,
        _cx: &Cx,
    ) -> Result<Decision<Event>, Undecided> {
        Err(Undecided("an entry of the catalogue understands no mail".into()))
    }
}

fn bytes(versions: &[Version]) -> usize {
    // Names, numbers and JSON: always JSON.
    serde_json::to_vec(versions).map_or(0, |bytes| bytes.len())
}

/// The entity of a name: of one tenant, or the common one without a tenant.
pub fn id_of(sort: Sort, tenant: &str, name: &str) -> EntityId {
    // With its length in front, no tenant and name make what another tenant and name do.
    let (space, name) = match (sort, tenant.is_empty()) {
        (Sort::Flow, true) => (0, format!("flow/{name}")),
        (Sort::Tool, true) => (0, format!("tool/{name}")),
        (Sort::Tool, false) => (1, format!("{}/{tenant}/{name}", tenant.len())),
        (Sort::Flow, false) => (2, format!("{}/{tenant}/{name}", tenant.len())),
    };
    EntityId::derived(EntityId::fixed(4, space), &name, Timestamp::ZERO)
}

/// Whether this is the entity that a tenant's worker registers this under.
pub fn is_registered_under(id: EntityId, tenant: &str, event: &Event) -> bool {
    let Event::EntryRegistered { sort, name, tenant: whose, .. } = event;
    whose == tenant && id_of(*sort, tenant, name) == id
}

fn schema(schema: &Value) -> Value {
    let fits = |s: &Value| serde_json::to_vec(s).is_ok_and(|b| b.len() <= SCHEMA_BYTES_MAX);
    if fits(schema) {
        return schema.clone();
    }
    let lean = without_words(schema);
    if fits(&lean) { lean } else { Value::Null }
}

/// A schema that allows the same, without what it says to people. Members of a value may be called like words of a schema, so only
/// schemas are looked into.
fn without_words(schema: &Value) -> Value {
    const WORDS: [&str; 9] = [
        "$comment",
        "$schema",
        "default",
        "deprecated",
        "description",
        "examples",
        "readOnly",
        "title",
        "writeOnly",
    ];
    let Value::Object(members) = schema else { return schema.clone() };
    let lean = |(word, value): (&String, &Value)| {
        let value = match (word.as_str(), value) {
            (
                "$defs" | "definitions" | "dependentSchemas" | "patternProperties" | "properties",
                Value::Object(named),
            ) => Value::Object(named.iter().map(|(k, v)| (k.clone(), without_words(v))).collect()),
            ("allOf" | "anyOf" | "items" | "oneOf" | "prefixItems", Value::Array(several)) => {
                Value::Array(several.iter().map(without_words).collect())
            }
            (
                "additionalItems"
                | "additionalProperties"
                | "contains"
                | "else"
                | "if"
                | "items"
                | "not"
                | "propertyNames"
                | "then"
                | "unevaluatedItems"
                | "unevaluatedProperties",
                inner,
            ) => without_words(inner),
            (_, other) => other.clone(),
        };
        (word.clone(), value)
    };
    Value::Object(
        members.iter().filter(|(word, _)| !WORDS.contains(&word.as_str())).map(lean).collect(),
    )
}

/// Registers what a worker has, for its tenant, or for all if it is of none. Nothing is written for what is known
/// already.
pub async fn register<'a>(
    pipeline: &Pipeline,
    tenant: &str,
    flows: impl Iterator<Item = &'a FlowSpec>,
    tools: impl Iterator<Item = &'a ToolSpec>,
) -> Result<(), StoreError> {
    for flow in flows {
        acceptable("flow", &flow.name, "input", &flow.input_schema)?;
        acceptable("flow", &flow.name, "output", &flow.output_schema)?;
        let version = Version {
            version: flow.version,
            doc: clip(&flow.doc, DOC_BYTES_MAX).to_owned(),
            class: None,
            input_schema: schema(&flow.input_schema),
            output_schema: schema(&flow.output_schema),
            calls: None,
        };
        enter(pipeline, Sort::Flow, tenant, &flow.name, version).await?;
    }
    for tool in tools {
        let schemas = [("input", &tool.input_schema), ("output", &tool.output_schema)];
        for (which, schema) in schemas {
            acceptable("tool", &tool.name, which, schema.as_ref().unwrap_or(&Value::Null))?;
        }
        enter(pipeline, Sort::Tool, tenant, &tool.name, Version::of_tool(tool)).await?;
    }
    Ok(())
}

/// Whether values can be checked against the schemas of a version in bounded time.
pub fn has_fit_schemas(version: &Version) -> bool {
    [&version.input_schema, &version.output_schema]
        .into_iter()
        .all(|schema| acceptable("entry", "", "", schema).is_ok())
}

/// Refuses a schema that nobody could check a value against in bounded time. A schema that is no JSON schema at all refuses
/// nothing, as ever: it is ignored where values are checked.
fn acceptable(sort: &str, name: &str, which: &str, schema: &Value) -> Result<(), StoreError> {
    let error = match tenure_schema::Schema::new(schema) {
        Ok(_) | Err(SchemaError::Invalid(_)) => return Ok(()),
        Err(error) => error,
    };
    let text = format!("the {which} schema of the {sort} {name}: {error}; {}", error.fix());
    Err(StoreError::BadSchema(text))
}

/// A tool of a worker that takes calls, as it comes with its session.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallTool {
    /// Its name.
    pub name: String,
    /// One line for people.
    pub doc: String,
    /// What settles a call of unknown outcome.
    pub class: Option<tenure_steps::tool::Class>,
    /// How it is called.
    pub terms: CallTerms,
    /// JSON schema of the input.
    pub input_schema: Value,
    /// JSON schema of the output.
    pub output_schema: Value,
}

/// Registers what a worker in another language has, for its tenant, or for all if it is of none.
pub async fn register_calls(
    pipeline: &Pipeline,
    tenant: &str,
    tools: &[CallTool],
) -> Result<(), StoreError> {
    for tool in tools {
        acceptable("tool", &tool.name, "input", &tool.input_schema)?;
        acceptable("tool", &tool.name, "output", &tool.output_schema)?;
        let version = Version {
            version: CALLS_VERSION,
            doc: clip(&tool.doc, DOC_BYTES_MAX).to_owned(),
            class: tool.class,
            input_schema: schema(&tool.input_schema),
            output_schema: schema(&tool.output_schema),
            calls: Some(tool.terms.clone()),
        };
        enter(pipeline, Sort::Tool, tenant, &tool.name, version).await?;
    }
    Ok(())
}

async fn enter(
    pipeline: &Pipeline,
    sort: Sort,
    tenant: &str,
    name: &str,
    version: Version,
) -> Result<(), StoreError> {
    let id = id_of(sort, tenant, name);
    if !tenant.is_empty()
        && let Some(common) = read(pipeline.store(), id_of(sort, "", name)).await?
        && common.version(version.version) == Some(&version)
    {
        return Ok(());
    }
    let event = Event::EntryRegistered {
        sort,
        name: name.to_owned(),
        tenant: tenant.to_owned(),
        version: version.clone(),
    };
    // Another worker may register at the same moment: then look again.
    for _ in 0..16 {
        let head = pipeline.store().head(id).await?;
        let mut entry = match &head {
            Some(head) => decode_state::<Catalogue>(&head.state)
                .map_err(|e| StoreError::Corrupt(e.to_string()))?,
            None => Entry::default(),
        };
        let known = entry.version(version.version) == Some(&version);
        let mut numbered = entry.versions.iter().filter(|v| v.version != CALLS_VERSION);
        let older = version.version != CALLS_VERSION
            && numbered.clone().count() == VERSIONS_MAX
            && numbered.next().is_some_and(|v| v.version > version.version);
        if known || older {
            return Ok(());
        }
        Catalogue::apply(&mut entry, &event);
        let expect = match &head {
            Some(h) => Expect::Nobody { epoch: h.epoch, version: h.version },
            None => {
                let (kind, priority) = (TABLE.kind, 0);
                Expect::Absent(Birth {
                    kind,
                    tenant: tenant.to_owned(),
                    queue: String::new(),
                    priority,
                })
            }
        };
        let body = Body::json(&event);
        let mut commit =
            Commit::new(pipeline.commit_id(), id, expect, vec![NewEvent::new(REGISTERED, body)]);
        commit.state = Some(encode_state::<Catalogue>(&entry));
        match pipeline.commit(commit).await? {
            CommitAnswer::Committed(_) => return Ok(()),
            CommitAnswer::Refused(why) => return Err(StoreError::Refused(why.to_string())),
            _ => {}
        }
    }
    Err(StoreError::Unavailable(format!(
        "the catalogue entry of {name} is written by too many at once"
    )))
}

async fn read(store: &Arc<dyn Store>, id: EntityId) -> Result<Option<Entry>, StoreError> {
    let Some(head) = store.head(id).await? else { return Ok(None) };
    decode_state::<Catalogue>(&head.state).map(Some).map_err(|e| StoreError::Corrupt(e.to_string()))
}

/// What is known under a name to a tenant: its own versions, and the common ones that it has no other of.
pub async fn entry(
    store: &Arc<dyn Store>,
    sort: Sort,
    tenant: &str,
    name: &str,
) -> Result<Option<Entry>, StoreError> {
    let own = match tenant {
        "" => None,
        _ => read(store, id_of(sort, tenant, name)).await?,
    };
    let common = read(store, id_of(sort, "", name)).await?;
    Ok(match (own, common) {
        (Some(own), Some(common)) => Some(own.before(common)),
        (own, common) => own.or(common),
    })
}

/// The output schema of a tool as a tenant knows it: of workers in other languages where they have the call (`handed`) or
/// nobody else has the tool; else of the newest version. `null` where nobody has said.
pub async fn output_schema(
    store: &Arc<dyn Store>,
    tenant: &str,
    tool: &str,
    handed: bool,
) -> Result<Value, StoreError> {
    let Some(entry) = entry(store, Sort::Tool, tenant, tool).await? else { return Ok(Value::Null) };
    let lent = entry.version(CALLS_VERSION).filter(|_| handed);
    Ok(lent.or_else(|| entry.newest()).map_or(Value::Null, |v| v.output_schema.clone()))
}

/// The newest version of a flow.
pub async fn newest(
    store: &Arc<dyn Store>,
    tenant: &str,
    flow: &str,
) -> Result<Option<Version>, StoreError> {
    Ok(entry(store, Sort::Flow, tenant, flow).await?.and_then(|e| e.newest().cloned()))
}

/// Everything in the catalogue that this tenant can use, each name once; with no tenant, all there is.
pub async fn list(store: &Arc<dyn Store>, tenant: Option<&str>) -> Result<Vec<Entry>, StoreError> {
    let mut entries = Vec::new();
    let mut after = None;
    loop {
        let filter = HeadFilter { kind: Some(TABLE.kind.into()), after, ..HeadFilter::default() };
        let heads = store.heads(filter, 200).await?;
        let Some(last) = heads.last() else { break };
        after = Some(last.id);
        for head in &heads {
            let entry = decode_state::<Catalogue>(&head.state);
            entries.push(entry.map_err(|e| StoreError::Corrupt(e.to_string()))?);
        }
    }
    entries.retain(|e| e.tenant.is_empty() || tenant.is_none_or(|t| t == e.tenant));
    // The common one last.
    let place = |e: &Entry| (e.sort as u8, e.name.clone(), e.tenant.is_empty(), e.tenant.clone());
    entries.sort_by_cached_key(place);
    if tenant.is_none() {
        return Ok(entries);
    }
    let mut usable: Vec<Entry> = Vec::with_capacity(entries.len());
    for entry in entries {
        match usable.pop_if(|own| own.sort == entry.sort && own.name == entry.name) {
            Some(own) => usable.push(own.before(entry)),
            None => usable.push(entry),
        }
    }
    Ok(usable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tenure_kernel::limits::HEAD_STATE_BYTES_MAX;

    fn large(version: u32) -> Event {
        let room = SCHEMA_BYTES_MAX - r#"{"d":""}"#.len();
        let wide = schema(&json!({ "d": "x".repeat(room) }));
        assert!(wide.is_object(), "as large as a schema may be");
        let (input_schema, output_schema) = (wide.clone(), wide);
        let calls = (version == CALLS_VERSION).then(CallTerms::default);
        let doc = "d".repeat(DOC_BYTES_MAX);
        let version = Version { version, doc, class: None, input_schema, output_schema, calls };
        let (name, tenant) = ("n".repeat(200), "t".repeat(200));
        Event::EntryRegistered { sort: Sort::Tool, name, tenant, version }
    }

    #[test]
    fn versions_without_end_fit_a_head_and_the_newest_is_whole() {
        let mut entry = Entry::default();
        Catalogue::apply(&mut entry, &large(CALLS_VERSION));
        for number in 1..=40 {
            Catalogue::apply(&mut entry, &large(number));
            let bytes = encode_state::<Catalogue>(&entry).len();
            assert!(bytes <= HEAD_STATE_BYTES_MAX, "{bytes} bytes at version {number}");
            let newest = entry.newest().unwrap();
            assert_eq!(newest.version, number);
            assert!(newest.input_schema.is_object() && newest.output_schema.is_object());
            assert!(entry.for_calls().is_some_and(|(v, _)| v.input_schema.is_object()));
        }
        assert_eq!(entry.versions.len(), VERSIONS_MAX + 1);
    }

    #[test]
    fn a_schema_that_is_too_large_loses_its_words_and_nothing_else() {
        let about = "x".repeat(SCHEMA_BYTES_MAX);
        let worded = json!({
            "$schema": "s", "title": "T", "description": about, "type": "object",
            "properties": {
                "title": {"type": "string", "description": "of a book", "default": "none"},
                "kind": {"enum": [{"title": "as it is"}]},
                "list": {"items": {"$ref": "#/$defs/description", "title": "one"}}
            },
            "anyOf": [{"required": ["title"], "title": "first"}],
            "additionalProperties": false,
            "$defs": {"description": {"type": "integer", "examples": [1]}}
        });
        let lean = json!({
            "type": "object",
            "properties": {
                "title": {"type": "string"},
                "kind": {"enum": [{"title": "as it is"}]},
                "list": {"items": {"$ref": "#/$defs/description"}}
            },
            "anyOf": [{"required": ["title"]}],
            "additionalProperties": false,
            "$defs": {"description": {"type": "integer"}}
        });
        assert_eq!(schema(&worded), lean);
        let mut short = worded;
        short["description"] = json!("a few words");
        assert_eq!(schema(&short), short, "where there is room for them they stay");
        assert_eq!(schema(&json!({"required": [about]})), Value::Null);
    }

    #[test]
    fn a_tenants_version_comes_before_the_common_one() {
        let of = |doc: &str, numbers: &[u32]| {
            let version = |n: &u32| Version {
                version: *n,
                doc: doc.to_owned(),
                class: None,
                input_schema: Value::Null,
                output_schema: Value::Null,
                calls: None,
            };
            Entry { versions: numbers.iter().map(version).collect(), ..Entry::default() }
        };
        let both = of("own", &[2, 3]).before(of("common", &[0, 1, 2]));
        let seen: Vec<_> = both.versions.iter().map(|v| (v.version, v.doc.as_str())).collect();
        assert_eq!(seen, [(0, "common"), (1, "common"), (2, "own"), (3, "own")]);
    }
}
