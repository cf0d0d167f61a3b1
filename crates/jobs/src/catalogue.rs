//! The catalogue: which flows and tools workers have ever registered, with version and schema. Durable, so
//! that an unknown flow is refused at submission, also while no worker runs.
//!
//! One resting entity per name, under an id that follows from the name. Nobody holds it: whoever registers
//! commits on the version it has seen.
//!
//! What a worker of one tenant says about the tools it takes calls of is that tenant's own, under an id of its own:
//! class and timeout decide what is done about a lost call, and nobody decides that for others. A tenant's entry comes
//! before the common one of the same name, which only workers of no tenant write.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;
use tenure_engine::pipeline::Pipeline;
use tenure_kernel::{
    commit::{Birth, Commit, CommitAnswer, Expect},
    error::StoreError,
    ids::EntityId,
    machine::{Cx, Decision, Input, Machine, Undecided, decode_state, encode_state},
    store::{HeadFilter, Store},
    stream::{Body, NewEvent},
    table::{BIRTH, Claimable, Class, Move, SAME, StatusRow, Table},
    time::Timestamp,
};
use tenure_steps::{flow::FlowSpec, tool::ToolSpec};

/// The event of a registration.
pub const REGISTERED: &str = "entry_registered";
/// Versions of one name that are remembered.
pub const VERSIONS_MAX: usize = 8;
/// The version under which a tool stands that workers in other languages have: theirs have no number, and workers that
/// run flows begin with 1, so neither takes the other's place.
pub const CALLS_VERSION: u32 = 0;
/// A larger schema is left out; the worker still checks its own types.
pub const SCHEMA_BYTES_MAX: usize = 1_800;

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
        let numbered = state.versions.iter().filter(|v| v.version != CALLS_VERSION).count();
        if numbered > VERSIONS_MAX
            && let Some(oldest) = state.versions.iter().position(|v| v.version != CALLS_VERSION)
        {
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

/// The entity of a name.
pub fn id_of(sort: Sort, name: &str) -> EntityId {
    let sort = match sort {
        Sort::Flow => "flow",
        Sort::Tool => "tool",
    };
    EntityId::derived(EntityId::fixed(4, 0), &format!("{sort}/{name}"), Timestamp::ZERO)
}

/// The entity of a tool that workers of one tenant take calls of; of the common one without a tenant.
pub fn id_of_tool(tenant: &str, name: &str) -> EntityId {
    if tenant.is_empty() {
        return id_of(Sort::Tool, name);
    }
    // With its length in front, no tenant and name make what another tenant and name do.
    let name = format!("{}/{tenant}/{name}", tenant.len());
    EntityId::derived(EntityId::fixed(4, 1), &name, Timestamp::ZERO)
}

fn schema(schema: &Value) -> Value {
    let fits = serde_json::to_vec(schema).is_ok_and(|b| b.len() <= SCHEMA_BYTES_MAX);
    if fits { schema.clone() } else { Value::Null }
}

/// Registers what a worker has. Nothing is written for what is known already.
pub async fn register<'a>(
    pipeline: &Pipeline,
    flows: impl Iterator<Item = &'a FlowSpec>,
    tools: impl Iterator<Item = &'a ToolSpec>,
) -> Result<(), StoreError> {
    for flow in flows {
        let version = Version {
            version: flow.version,
            doc: flow.doc.clone(),
            class: None,
            input_schema: schema(&flow.input_schema),
            output_schema: schema(&flow.output_schema),
            calls: None,
        };
        enter(pipeline, Sort::Flow, "", &flow.name, version).await?;
    }
    for tool in tools {
        let version = Version {
            version: tool.version,
            doc: tool.doc.clone(),
            class: tool.options.class,
            input_schema: schema(tool.input_schema.as_ref().unwrap_or(&Value::Null)),
            output_schema: schema(tool.output_schema.as_ref().unwrap_or(&Value::Null)),
            calls: None,
        };
        enter(pipeline, Sort::Tool, "", &tool.name, version).await?;
    }
    Ok(())
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
        let version = Version {
            version: CALLS_VERSION,
            doc: tool.doc.clone(),
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
    let id = match sort {
        Sort::Flow => id_of(sort, name),
        Sort::Tool => id_of_tool(tenant, name),
    };
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

/// What is known under a name.
pub async fn entry(
    store: &Arc<dyn Store>,
    sort: Sort,
    name: &str,
) -> Result<Option<Entry>, StoreError> {
    let Some(head) = store.head(id_of(sort, name)).await? else { return Ok(None) };
    decode_state::<Catalogue>(&head.state).map(Some).map_err(|e| StoreError::Corrupt(e.to_string()))
}

/// The tool of this name that a job of this tenant calls: the tenant's own, or else the common one.
pub async fn tool_of(
    store: &Arc<dyn Store>,
    tenant: &str,
    name: &str,
) -> Result<Option<Entry>, StoreError> {
    if !tenant.is_empty()
        && let Some(head) = store.head(id_of_tool(tenant, name)).await?
    {
        let own = decode_state::<Catalogue>(&head.state);
        return own.map(Some).map_err(|e| StoreError::Corrupt(e.to_string()));
    }
    entry(store, Sort::Tool, name).await
}

/// The newest version of a flow.
pub async fn newest(store: &Arc<dyn Store>, flow: &str) -> Result<Option<Version>, StoreError> {
    Ok(entry(store, Sort::Flow, flow).await?.and_then(|e| e.newest().cloned()))
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
    if tenant.is_some() {
        entries.dedup_by(|later, first| later.sort == first.sort && later.name == first.name);
    }
    Ok(entries)
}
