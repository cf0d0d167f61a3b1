//! The form of a fixture: a pod as a kubelet wrote it, moments, and what is to be said then.

use k8s_openapi::{api::core::v1::Pod, jiff};
use serde::Deserialize;
use serde_json::Value;
use std::{fs, path::Path};
use tenure_kernel::time::Timestamp;
use tenure_pods::verdict::{
    Departure, Gone, NodeReady, NodeView, Policy, Verdict, verdict_of_deleted, verdict_on,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    pub name: String,
    /// The row that gives the answer; `left_selector` and `ask` for departures that are none.
    pub rule: String,
    pub at: Vec<Step>,
    #[serde(default)]
    last: Option<Value>,
    #[serde(default)]
    node: Option<Node>,
    #[serde(default)]
    gone: Option<String>,
    #[serde(default)]
    pub policy: Policy,
    pub pod: Pod,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    pub now: String,
    /// If another row gives the answer at this moment.
    #[serde(default)]
    pub rule: Option<String>,
    pub expect: serde_json::Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Node {
    #[serde(default = "yes")]
    exists: bool,
    #[serde(default)]
    silent_since: Option<String>,
    #[serde(default)]
    unwell: bool,
    #[serde(default)]
    out_of_service: bool,
}

fn yes() -> bool {
    true
}

pub fn moment(text: &str) -> Timestamp {
    let at: jiff::Timestamp = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
    Timestamp::from_micros(at.as_microsecond())
}

impl Case {
    /// What was said before, from the few fields that a fixture gives.
    pub fn last(&self) -> Option<Verdict> {
        let mut given = self.last.clone()?;
        let fields = given.as_object_mut().unwrap();
        fields.entry("status").or_insert(Value::Null);
        for key in ["since", "clock_since"] {
            if let Some(since) = fields.get(key).and_then(Value::as_str).map(moment) {
                fields.insert(key.to_owned(), since.as_micros().into());
            }
        }
        Some(serde_json::from_value(given).unwrap_or_else(|e| panic!("{}: {e}", self.name)))
    }

    pub fn node(&self) -> Option<NodeView> {
        let node = self.node.as_ref()?;
        let since = node.silent_since.as_deref().map(moment);
        Some(NodeView {
            exists: node.exists,
            ready: match since {
                Some(_) => NodeReady::Silent(since),
                None if node.unwell => NodeReady::No,
                None => NodeReady::Yes,
            },
            out_of_service: node.out_of_service,
        })
    }

    /// What is said at a moment; the name of the departure where it is no verdict.
    pub fn said(&self, now: Timestamp) -> Result<Verdict, &'static str> {
        let (last, node) = (self.last(), self.node());
        let gone = match self.gone.as_deref() {
            None => {
                return Ok(verdict_on(&self.pod, last.as_ref(), now, &self.policy, node.as_ref()));
            }
            Some("event") => Gone::Event,
            Some("absent") => Gone::Absent,
            Some("missing") => Gone::Missing,
            Some(other) => panic!("{}: gone: {other}", self.name),
        };
        let (last, node) = (last.as_ref(), node.as_ref());
        match verdict_of_deleted(&self.pod, gone, last, now, &self.policy, node) {
            Departure::Ended(verdict) => Ok(verdict),
            Departure::LeftSelector => Err("left_selector"),
            Departure::Ask => Err("ask"),
        }
    }
}

/// All fixtures.
pub fn all() -> Vec<Case> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/verdict");
    let mut files: Vec<_> = fs::read_dir(dir).unwrap().map(|f| f.unwrap().path()).collect();
    files.sort();
    let mut cases = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        for document in serde_yaml_ng::Deserializer::from_str(&text) {
            let read = serde_yaml_ng::Value::deserialize(document).unwrap();
            // Kubernetes' types are read as from JSON, as they come over the wire.
            let json = serde_json::to_value(&read).unwrap();
            let name = json["name"].to_string();
            cases.push(
                serde_json::from_value(json)
                    .unwrap_or_else(|e| panic!("{}: {name}: {e}", file.display())),
            );
        }
    }
    cases
}

/// A verdict as fixtures write it: times as text, everything there.
pub fn shown(verdict: &Verdict) -> Value {
    let mut json = serde_json::to_value(verdict).unwrap();
    let fields = json.as_object_mut().unwrap();
    for key in ["since", "clock_since", "next_check_at"] {
        if let Some(micros) = fields.get(key).and_then(Value::as_i64) {
            let at = jiff::Timestamp::from_microsecond(micros).unwrap();
            fields.insert(key.to_owned(), at.to_string().into());
        }
    }
    let gone = serde_json::to_value(verdict.terminated_reason()).unwrap();
    fields.insert("terminated_reason".to_owned(), gone);
    json
}
