//! Label and field selectors.

use crate::{object::Object, resource::Resource, status::Refusal};
use serde_json::Value;
use std::collections::BTreeSet;

/// What a list or a watch asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<(String, bool, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Requirement {
    In(String, BTreeSet<String>),
    NotIn(String, BTreeSet<String>),
    Exists(String),
    Absent(String),
}

impl Selector {
    /// Reads the two parameters.
    pub fn parse(resource: &Resource, labels: &str, fields: &str) -> Result<Self, Refusal> {
        let unable = |why: String| {
            let gvr =
                format!("{}/{}, Resource={}", resource.group, resource.version, resource.plural);
            Refusal::bad_request(format!(
                "Unable to find {gvr:?} that match label selector {labels:?}, field selector {fields:?}: {why}"
            ))
        };
        let mut selector = Selector::default();
        for term in terms(labels) {
            let one = requirement(&term)
                .ok_or_else(|| unable(format!("unable to parse requirement: {term:?}")))?;
            selector.labels.push(one);
        }
        for term in fields.split(',').filter(|t| !t.is_empty()) {
            let (path, equal, value) = if let Some((path, value)) = term.split_once("!=") {
                (path, false, value)
            } else if let Some((path, value)) = term.split_once("==") {
                (path, true, value)
            } else if let Some((path, value)) = term.split_once('=') {
                (path, true, value)
            } else {
                return Err(unable(format!(
                    "invalid selector: {term:?}; can't understand {term:?}"
                )));
            };
            if !known_fields(resource).contains(&path) {
                return Err(unable(format!("field label not supported: {path}")));
            }
            selector.fields.push((path.to_owned(), equal, value.to_owned()));
        }
        Ok(selector)
    }

    /// Whether nothing is left out.
    pub fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Whether it selects this object, as it is in this version.
    pub fn matches(&self, object: &Object) -> bool {
        self.labels.iter().all(|r| r.holds(object))
            && self.fields.iter().all(|(path, equal, value)| {
                (field(object, path).as_deref().unwrap_or_default() == value) == *equal
            })
    }
}

impl Requirement {
    fn holds(&self, object: &Object) -> bool {
        let label = |key: &str| object.at("/metadata/labels")?.get(key)?.as_str();
        match self {
            Requirement::In(key, values) => label(key).is_some_and(|v| values.contains(v)),
            Requirement::NotIn(key, values) => label(key).is_none_or(|v| !values.contains(v)),
            Requirement::Exists(key) => label(key).is_some(),
            Requirement::Absent(key) => label(key).is_none(),
        }
    }
}

/// Splits at the commas that are not between parentheses.
fn terms(text: &str) -> Vec<String> {
    let mut terms = vec![String::new()];
    let mut depth = 0;
    for c in text.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if c == ',' && depth == 0 {
            terms.push(String::new());
        } else if let Some(last) = terms.last_mut() {
            last.push(c);
        }
    }
    terms.into_iter().map(|t| t.trim().to_owned()).filter(|t| !t.is_empty()).collect()
}

fn requirement(term: &str) -> Option<Requirement> {
    let key_ok = |key: &str| crate::names::qualified_name(key);
    let one = |value: &str| BTreeSet::from([value.trim().to_owned()]);
    let (key, make): (&str, Requirement) = if let Some((key, value)) = term.split_once("!=") {
        (key.trim(), Requirement::NotIn(key.trim().to_owned(), one(value)))
    } else if let Some((key, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
        (key.trim(), Requirement::In(key.trim().to_owned(), one(value)))
    } else if let Some((head, list)) = term.split_once('(') {
        let values: BTreeSet<String> =
            list.strip_suffix(')')?.split(',').map(|v| v.trim().to_owned()).collect();
        match head.split_whitespace().collect::<Vec<_>>().as_slice() {
            [key, "in"] => (*key, Requirement::In((*key).to_owned(), values)),
            [key, "notin"] => (*key, Requirement::NotIn((*key).to_owned(), values)),
            _ => return None,
        }
    } else if let Some(key) = term.strip_prefix('!') {
        (key.trim(), Requirement::Absent(key.trim().to_owned()))
    } else {
        (term, Requirement::Exists(term.to_owned()))
    };
    key_ok(key).then_some(make)
}

fn known_fields(resource: &Resource) -> &'static [&'static str] {
    match resource.kind {
        "Pod" => &[
            "metadata.name",
            "metadata.namespace",
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ],
        "Node" => &["metadata.name", "spec.unschedulable"],
        "Event" => &[
            "metadata.name",
            "metadata.namespace",
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        "Namespace" => &["metadata.name", "status.phase"],
        "Secret" => &["metadata.name", "metadata.namespace", "type"],
        _ => &["metadata.name", "metadata.namespace"],
    }
}

fn field(object: &Object, path: &str) -> Option<String> {
    let pointer = match path {
        // The old name of a field that moved.
        "source" => "/source/component".to_owned(),
        path => format!("/{}", path.replace('.', "/")),
    };
    match object.at(&pointer) {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Bool(flag)) => Some(flag.to_string()),
        None if matches!(path, "spec.hostNetwork" | "spec.unschedulable") => {
            Some("false".to_owned())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::PODS;
    use serde_json::json;

    fn picks(labels: &str, fields: &str) -> bool {
        let pod = json!({
            "metadata": {"name": "p", "namespace": "n", "labels": {"a/b": "1", "c": "x"}},
            "spec": {"nodeName": "node-1"}, "status": {"phase": "Running"},
        });
        let selector = Selector::parse(&PODS, labels, fields).unwrap();
        selector.matches(&Object::new(&PODS, pod, 1, None))
    }

    #[test]
    fn each_form_of_a_label_selector_selects() {
        for yes in
            ["", "a/b", "a/b=1", "a/b==1,c=x", "c!=y", "z!=y", "c in (x, y)", "z notin (x)", "!z"]
        {
            assert!(picks(yes, ""), "{yes}");
        }
        for no in ["z", "!c", "c=y", "c!=x", "c in (y)", "c notin (x,y)", "a/b=1,c=y"] {
            assert!(!picks(no, ""), "{no}");
        }
        assert!(Selector::parse(&PODS, "a b", "").is_err());
        assert!(Selector::parse(&PODS, "a in x", "").is_err());
    }

    #[test]
    fn each_form_of_a_field_selector_selects() {
        for yes in [
            "spec.nodeName=node-1",
            "spec.nodeName==node-1,metadata.name=p",
            "spec.nodeName!=",
            "status.phase!=Failed",
            "metadata.namespace=n",
            "spec.hostNetwork=false",
        ] {
            assert!(picks("", yes), "{yes}");
        }
        for no in ["spec.nodeName=", "status.phase=Failed", "metadata.name!=p"] {
            assert!(!picks("", no), "{no}");
        }
        let refusal = Selector::parse(&PODS, "", "spec.containers=1").unwrap_err();
        assert_eq!(refusal.code, 400);
        assert!(refusal.message.ends_with("field label not supported: spec.containers"));
    }
}
