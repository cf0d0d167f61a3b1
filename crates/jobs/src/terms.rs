//! The terms of a job: when and where it may run. A job without any costs nothing more than before: the same bytes,
//! the same commits, no more reads.
//!
//! A child has default terms. It does not take its parent's gate, or a parent that waits for its child would hold the
//! permit that the child needs, for ever. It does not take queue and needs either: they say what the parent's own steps
//! need, and a flow whose children need the same names a plan or submits them with terms of their own.

use crate::{
    gate::{self, gate_id},
    model::HeldBack,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tenure_kernel::{ids::EntityId, limits};

/// Labels that one job may need, and one worker may have: a worker looks into a queue for every subset of its own.
pub const LABELS_MAX: usize = 4;
/// Bytes of the name of a gate, a queue or a label.
pub const NAME_BYTES_MAX: usize = 40;
/// Labels that one job may have, by which people find it.
pub const JOB_LABELS_MAX: usize = 8;
/// Bytes of the value of such a label.
pub const LABEL_VALUE_BYTES_MAX: usize = 80;
/// Bytes of all labels of a job as JSON: they stand in its head, beside its input and its output.
pub const JOB_LABELS_BYTES_MAX: usize = 1_024;
/// Bytes as JSON up to which the key of a submission is kept in the head of its job.
const KEY_IN_HEAD_BYTES_MAX: usize = 300;
/// A start can not be further away than this: a year.
pub const START_IN_MS_MAX: u64 = 366 * 24 * 3_600 * 1_000;

/// When and where a job may run, and who hears of its end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Terms {
    /// It begins no sooner than so long after its creation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_in_ms: Option<u64>,
    /// Of the jobs that name the same gate only so many are open at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gate: Option<Box<GateTerm>>,
    /// The named queue it stands in; the flow's own without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// What a worker has to have. Sorted, each once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<String>,
    /// Who is told how it ended, by mail: a schedule, say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tell: Option<EntityId>,
    /// The key under which it was submitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// What people have said about it: names with values, by which it is found.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// A gate that a job has to pass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateTerm {
    /// Its name, within the tenant.
    pub name: String,
    /// How many at once, if nobody has said so before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// The gate itself; set by [`Terms::of_tenant`]. A job knows its tenant only from outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<EntityId>,
}

/// A gate as people ask for it: its name, or `{"name": …, "limit": …}`. Not [`GateTerm`] itself: what is stored has to be
/// readable by an older program, what is asked for must not have a slip in it that nobody sees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "serde_json::Value")]
pub struct GateWish(GateTerm);

impl From<GateWish> for GateTerm {
    fn from(wish: GateWish) -> Self {
        wish.0
    }
}

impl TryFrom<serde_json::Value> for GateWish {
    type Error = String;

    fn try_from(asked: serde_json::Value) -> Result<Self, String> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Whole {
            name: String,
            limit: Option<u32>,
        }
        let bad = |e: &dyn std::fmt::Display| {
            format!(r#"a gate is a name, or {{"name": …, "limit": …}}: {e}"#)
        };
        match asked {
            serde_json::Value::String(name) => {
                Ok(GateWish(GateTerm { name, ..GateTerm::default() }))
            }
            // As a map and not at once: a list would be taken for the fields in their order.
            asked @ serde_json::Value::Object(_) => {
                let Whole { name, limit } = serde_json::from_value(asked).map_err(|e| bad(&e))?;
                Ok(GateWish(GateTerm { name, limit, id: None }))
            }
            other => Err(bad(&format!("{other} is neither"))),
        }
    }
}

/// Terms that can not be kept: which field, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct BadTerm {
    /// The field.
    pub field: &'static str,
    /// What is wrong, and what would be right.
    pub why: String,
}

impl Terms {
    /// The same terms, checked and made ready for a tenant. Whoever writes terms down (a submission, a schedule, a
    /// batch) calls this first: a job that is created from others is refused.
    pub fn of_tenant(mut self, tenant: &str) -> Result<Self, BadTerm> {
        if self.start_in_ms == Some(0) {
            self.start_in_ms = None;
        }
        if self.start_in_ms.is_some_and(|ms| ms > START_IN_MS_MAX) {
            let why = "a start is at most 366 days away".to_owned();
            return Err(BadTerm { field: "start", why });
        }
        if let Some(gate) = &mut self.gate {
            name("gate", &gate.name)?;
            if gate.limit.is_some_and(|n| !(1..=gate::limits::LIMIT_MAX).contains(&n)) {
                let why =
                    format!("the limit of a gate is between 1 and {}", gate::limits::LIMIT_MAX);
                return Err(BadTerm { field: "gate", why });
            }
            gate.id = Some(gate_id(tenant, &gate.name));
        }
        if let Some(queue) = &self.queue {
            name("queue", queue)?;
        }
        self.needs = labels("needs", self.needs)?;
        if self.labels.len() > JOB_LABELS_MAX {
            let why =
                format!("{} labels, and at most {JOB_LABELS_MAX} are possible", self.labels.len());
            return Err(BadTerm { field: "labels", why });
        }
        self.labels.iter().try_for_each(|(name, value)| label(name, value))?;
        let bytes = serde_json::json!(self.labels).to_string().len();
        if bytes > JOB_LABELS_BYTES_MAX {
            let why = format!(
                "all labels together are {bytes} bytes as JSON, and at most {JOB_LABELS_BYTES_MAX} are possible"
            );
            return Err(BadTerm { field: "labels", why });
        }
        Ok(self)
    }

    /// The same terms with the key of a submission. One that is very long as JSON finds its job and is not shown.
    pub fn with_key(mut self, key: Option<&str>) -> Self {
        let fits = |key: &&str| serde_json::json!(key).to_string().len() <= KEY_IN_HEAD_BYTES_MAX;
        self.key = key.filter(fits).map(str::to_owned);
        self
    }

    /// Whether a job of this flow can stand in a queue: flow, queue and needs make its name. Found here, and not at the
    /// birth of a job that a schedule or a batch has promised.
    pub fn fits(&self, flow: &str, version: u32) -> Result<(), BadTerm> {
        let (bytes, max) = (self.queue_of(flow, version).len(), limits::NAME_BYTES_MAX);
        if bytes <= max {
            return Ok(());
        }
        let field = match (&self.queue, self.needs.is_empty()) {
            (_, false) => "needs",
            (Some(_), true) => "queue",
            (None, true) => "flow",
        };
        let why = format!(
            "flow, queue and needs together are {bytes} bytes long, and at most {max} are possible: use shorter names"
        );
        Err(BadTerm { field, why })
    }

    /// The terms in the words in which they are asked for.
    pub fn said(&self) -> serde_json::Value {
        let mut said = serde_json::Map::new();
        if let Some(ms) = self.start_in_ms {
            said.insert("start_in_seconds".into(), (ms / 1_000).into());
        }
        if let Some(gate) = &self.gate {
            let whole = GateTerm { id: None, ..GateTerm::clone(gate) };
            said.insert("gate".into(), serde_json::to_value(whole).unwrap_or_default());
        }
        if let Some(queue) = &self.queue {
            said.insert("queue".into(), queue.clone().into());
        }
        if !self.labels.is_empty() {
            said.insert("labels".into(), serde_json::json!(self.labels));
        }
        if !self.needs.is_empty() {
            said.insert("needs".into(), self.needs.clone().into());
        }
        said.into()
    }

    /// What holds a job with these terms back at its birth.
    pub fn hold_back(&self) -> HeldBack {
        match (self.start_in_ms, &self.gate) {
            (Some(_), _) => HeldBack::Start,
            (None, Some(_)) => HeldBack::Gate,
            (None, None) => HeldBack::No,
        }
    }

    /// Whether it may start in the commit that creates it.
    pub fn at_once(&self) -> bool {
        self.hold_back() == HeldBack::No
    }

    /// The ready queue of a job with these terms: only workers that serve it look there.
    pub fn queue_of(&self, flow: &str, version: u32) -> String {
        ready_queue(flow, version, self.queue.as_deref(), &self.needs)
    }
}

/// `flow@version`, then `/queue` if one is named, then `+label` for everything that is needed.
pub fn ready_queue(flow: &str, version: u32, queue: Option<&str>, needs: &[String]) -> String {
    let mut name = tenure_steps::flow::queue_of(flow, version);
    if let Some(queue) = queue {
        name.push('/');
        name.push_str(queue);
    }
    for label in needs {
        name.push('+');
        name.push_str(label);
    }
    name
}

/// Checks the name of a gate, a queue or a label.
pub fn name(field: &'static str, name: &str) -> Result<(), BadTerm> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
    let good = !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.chars().all(plain);
    if good {
        return Ok(());
    }
    let shown = tenure_kernel::limits::clip(name, 60);
    let why = format!(
        "{shown:?} is not a name: use 1 to {NAME_BYTES_MAX} of a-z, 0-9, point, dash and underscore"
    );
    Err(BadTerm { field, why })
}

/// Checks a label of a job: its name has the form of all names, its value is a short text in one line.
pub fn label(of: &str, value: &str) -> Result<(), BadTerm> {
    name("labels", of)?;
    let fits = (1..=LABEL_VALUE_BYTES_MAX).contains(&value.len());
    match fits && !value.contains(|c: char| c.is_control() || c == ',') {
        true => Ok(()),
        false => {
            let shown = tenure_kernel::limits::clip(value, 60);
            let why = format!(
                "{of} = {shown:?}: a value has 1 to {LABEL_VALUE_BYTES_MAX} bytes, without commas and control characters"
            );
            Err(BadTerm { field: "labels", why })
        }
    }
}

/// Checks labels, and puts them in order, each once.
pub fn labels(field: &'static str, mut labels: Vec<String>) -> Result<Vec<String>, BadTerm> {
    labels.iter().try_for_each(|label| name(field, label))?;
    labels.sort();
    labels.dedup();
    if labels.len() > LABELS_MAX {
        let why = format!("{} labels, and at most {LABELS_MAX} are possible", labels.len());
        return Err(BadTerm { field, why });
    }
    Ok(labels)
}

/// What a worker serves: named queues beside the unnamed one, and what it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serves {
    /// Queues; `None` is the unnamed one.
    queues: Vec<Option<String>>,
    /// Capabilities, sorted.
    can: Vec<String>,
}

impl Default for Serves {
    /// The unnamed queue, and nothing special.
    fn default() -> Self {
        Serves { queues: vec![None], can: Vec::new() }
    }
}

impl Serves {
    /// A worker for these queues with these capabilities. `default` is the unnamed queue; without any queue it is
    /// that one alone.
    pub fn new(queues: Vec<String>, can: Vec<String>) -> Result<Self, BadTerm> {
        queues.iter().try_for_each(|queue| name("queues", queue))?;
        let mut queues: Vec<Option<String>> =
            queues.into_iter().map(|q| Some(q).filter(|q| q != UNNAMED)).collect();
        queues.sort();
        queues.dedup();
        if queues.is_empty() {
            queues.push(None);
        }
        Ok(Serves { queues, can: labels("capabilities", can)? })
    }

    /// Its queues and what it can, in words; `default` is the unnamed queue.
    pub fn words(&self) -> (Vec<String>, Vec<String>) {
        let word = |q: &Option<String>| q.clone().unwrap_or_else(|| UNNAMED.to_owned());
        (self.queues.iter().map(word).collect(), self.can.clone())
    }

    /// The ready queues of a flow that it looks into: of every queue, and every subset of what it can.
    pub fn of_flow(&self, flow: &str, version: u32) -> Vec<String> {
        let mut found = Vec::new();
        for queue in &self.queues {
            for subset in 0u32..1 << self.can.len() {
                let has =
                    |(i, label): (usize, &String)| (subset & (1 << i) != 0).then(|| label.clone());
                let needs: Vec<String> = self.can.iter().enumerate().filter_map(has).collect();
                found.push(ready_queue(flow, version, queue.as_deref(), &needs));
            }
        }
        found
    }
}

/// The name under which the unnamed queue is asked for.
pub const UNNAMED: &str = "default";

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(queue: &str, needs: &[&str]) -> Terms {
        let needs = needs.iter().map(|n| (*n).to_owned()).collect();
        Terms { queue: Some(queue.into()), needs, ..Terms::default() }
    }

    #[test]
    fn a_worker_finds_a_job_exactly_if_it_serves_the_queue_and_has_all_that_is_needed() {
        let serves = |queues: &[&str], can: &[&str]| {
            let own = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
            Serves::new(own(queues), own(can)).unwrap().of_flow("f", 1)
        };
        let job = terms("night", &["gpu", "big"]).of_tenant("t").unwrap().queue_of("f", 1);
        assert_eq!(job, "f@1/night+big+gpu");
        assert!(serves(&["night"], &["gpu", "big"]).contains(&job));
        assert!(serves(&["night", "default"], &["disk", "gpu", "big"]).contains(&job));
        assert!(!serves(&["night"], &["gpu"]).contains(&job), "it has not all that is needed");
        assert!(!serves(&[], &["gpu", "big"]).contains(&job), "it does not serve the queue");
        assert_eq!(serves(&[], &[]), ["f@1"]);
        assert_eq!(serves(&["default"], &[]), ["f@1"]);
        assert_eq!(Serves::default().of_flow("f", 1), ["f@1"]);
        assert_eq!(Terms::default().queue_of("f", 1), "f@1");
    }

    #[test]
    fn bad_terms_say_which_field_and_what_would_be_right() {
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        for bad in ["", "Night", "a b", "a+b", "a/b", &long] {
            let error = terms(bad, &[]).of_tenant("t").unwrap_err();
            assert_eq!(error.field, "queue", "{bad:?}");
        }
        assert!(terms(&long[1..], &[]).of_tenant("t").is_ok());
        assert!(terms("q", &["a", "b", "c", "d", "a"]).of_tenant("t").is_ok());
        assert_eq!(
            terms("q", &["a", "b", "c", "d", "e"]).of_tenant("t").unwrap_err().field,
            "needs"
        );
        let labelled = |labels: &[(&str, &str)]| {
            let own = labels.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
            Terms { labels: own, ..Terms::default() }.of_tenant("t")
        };
        assert!(labelled(&[("customer", "42"), ("region", "eu/west é")]).is_ok());
        let many: Vec<String> = (0..=JOB_LABELS_MAX).map(|n| format!("n{n}")).collect();
        let many: Vec<(&str, &str)> = many.iter().map(|n| (n.as_str(), "v")).collect();
        assert!(labelled(&many[1..]).is_ok());
        let quotes = "\"".repeat(LABEL_VALUE_BYTES_MAX);
        let large: Vec<(&str, &str)> = many[1..].iter().map(|(n, _)| (*n, &*quotes)).collect();
        for bad in
            [&many[..], &large, &[("A", "v")], &[("a", "")], &[("a", "x,y")], &[("a", "x\ny")]]
        {
            assert_eq!(labelled(bad).unwrap_err().field, "labels", "{bad:?}");
        }
        let key = |key: &str| Terms::default().with_key(Some(key)).key;
        assert_eq!(key("order/7").as_deref(), Some("order/7"));
        assert_eq!(key(&"\u{1}".repeat(255)), None, "six bytes each");
        let gate = |limit| Terms {
            gate: Some(Box::new(GateTerm { name: "g".into(), limit: Some(limit), id: None })),
            ..Terms::default()
        };
        assert!(gate(0).of_tenant("t").is_err());
        assert!(gate(gate::limits::LIMIT_MAX).of_tenant("t").is_ok());
        assert!(gate(gate::limits::LIMIT_MAX + 1).of_tenant("t").is_err());
        assert_ne!(gate(1).of_tenant("t").unwrap(), gate(1).of_tenant("u").unwrap());
        let late = |ms| Terms { start_in_ms: Some(ms), ..Terms::default() }.of_tenant("t");
        assert!(late(START_IN_MS_MAX).is_ok() && late(START_IN_MS_MAX + 1).is_err());
    }

    #[test]
    fn a_queue_whose_name_is_too_long_is_refused_before_anything_is_promised() {
        let long = "x".repeat(NAME_BYTES_MAX);
        let needs: Vec<String> = (0..4).map(|n| format!("{n}{}", &long[1..])).collect();
        let full = Terms { queue: Some(long.clone()), needs, ..Terms::default() };
        let full = full.of_tenant("t").unwrap();
        assert_eq!(full.fits("f", 1).unwrap_err().field, "needs");
        assert!(terms(&long, &["gpu"]).fits("f", 1).is_ok());
        assert_eq!(terms(&long, &[]).fits(&"f".repeat(100), 1).unwrap_err().field, "queue");
        assert_eq!(Terms::default().fits(&"f".repeat(128), 1).unwrap_err().field, "flow");
    }

    #[test]
    fn a_gate_is_asked_for_by_name_or_whole_and_a_slip_is_named() {
        let read = |text: &str| serde_json::from_str::<GateWish>(text).map(GateTerm::from);
        assert_eq!(read("\"db\"").unwrap().name, "db");
        let whole = read(r#"{"name": "db", "limit": 5}"#).unwrap();
        assert_eq!((whole.name.as_str(), whole.limit), ("db", Some(5)));
        for (slip, named) in [
            (r#"{"name": "db", "limt": 5}"#, "limt"),
            (r#"{"limit": 5}"#, "name"),
            (r#"{"name": "db", "id": "0190b5e0-1234-7abc-8def-001122334455"}"#, "id"),
            (r#"["db", 5]"#, "gate"),
            ("7", "gate"),
        ] {
            let said = read(slip).unwrap_err().to_string();
            assert!(said.contains(named), "{slip}: {said}");
        }
    }

    #[test]
    fn default_terms_write_nothing() {
        assert_eq!(serde_json::to_string(&Terms::default()).unwrap(), "{}");
    }
}
