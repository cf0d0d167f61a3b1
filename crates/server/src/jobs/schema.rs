//! Whether an input fits its flow, before a job exists that can only fail. The schema is what the flow's worker
//! registered; where that is unknown or can not be used, the worker still checks its own types.

use crate::{Problem, problem::ApiCode};
use axum::http::StatusCode;
use jsonschema::Validator;
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};
use tenure_kernel::limits::clip;

/// Schemas that are kept ready; then the memory starts over.
const READY_MAX: usize = 256;
/// Violations that are named.
const VIOLATIONS_MAX: usize = 20;
/// How much is said about one: it repeats what was sent.
const SAYS_BYTES_MAX: usize = 300;

/// Schemas that were compiled before: compiling costs more than checking.
#[derive(Default)]
pub(super) struct Schemas(Mutex<HashMap<(String, u32), Ready>>);

struct Ready {
    /// A worker may register another schema under the same version.
    schema: Value,
    validator: Option<Arc<Validator>>,
}

impl Schemas {
    /// Refuses an input that does not fit.
    pub(super) fn check(
        &self,
        flow: &str,
        version: u32,
        schema: &Value,
        input: &Value,
    ) -> Result<(), Problem> {
        let Some(validator) = self.validator(flow, version, schema) else { return Ok(()) };
        let found = validator.iter_errors(input).take(VIOLATIONS_MAX);
        let found: Vec<Value> = found
            .map(|e| {
                let (at, says) = (e.instance_path().to_string(), e.to_string());
                let schema_at = e.schema_path().to_string();
                json!({ "at": at, "says": clip(&says, SAYS_BYTES_MAX), "schema": schema_at })
            })
            .collect();
        match found.first() {
            None => Ok(()),
            Some(first) => Err(violation(flow, version, first, &found)),
        }
    }

    fn validator(&self, flow: &str, version: u32, schema: &Value) -> Option<Arc<Validator>> {
        if !schema.is_object() {
            return None;
        }
        // Nothing panics under this lock that would leave the map half written.
        let mut ready = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let name = (flow.to_owned(), version);
        if let Some(known) = ready.get(&name).filter(|r| r.schema == *schema) {
            return known.validator.clone();
        }
        let validator = match jsonschema::validator_for(schema) {
            Ok(validator) => Some(Arc::new(validator)),
            Err(e) => {
                tracing::warn!(flow, version, "its schema can not be used: {e}");
                None
            }
        };
        if ready.len() >= READY_MAX {
            ready.clear();
        }
        ready.insert(name, Ready { schema: schema.clone(), validator: validator.clone() });
        validator
    }
}

fn violation(flow: &str, version: u32, first: &Value, found: &[Value]) -> Problem {
    let at = first["at"].as_str().unwrap_or("");
    let says = first["says"].as_str().unwrap_or("");
    let place = if at.is_empty() { "the input".to_owned() } else { format!("input{at}") };
    let more = match found.len() {
        1 => String::new(),
        n => format!(", and {} more", n - 1),
    };
    let detail = format!("the input does not fit {flow}@{version}: at {place}: {says}{more}");
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, ApiCode::SchemaViolation, detail)
        .field(format!("input{at}"))
        .with("violations", found)
        .fix(format!("GET /v1/flows/{flow} shows the schema"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(schema: &Value, input: &Value) -> Result<(), Problem> {
        Schemas::default().check("f", 1, schema, input)
    }

    #[test]
    fn each_violation_names_its_place_and_what_was_expected() {
        let schema = json!({
            "type": "object",
            "properties": {"n": {"type": "integer"}, "of": {"items": {"type": "string"}}},
            "required": ["n"]
        });
        assert!(check(&schema, &json!({"n": 1})).is_ok());
        let problem = check(&schema, &json!({"n": "x", "of": ["a", 2]})).unwrap_err();
        assert_eq!(problem.code(), ApiCode::SchemaViolation);
        assert!(problem.detail().contains("f@1") && problem.detail().contains("and 1 more"));
        let missing = check(&schema, &json!({})).unwrap_err();
        assert!(missing.detail().contains("\"n\" is a required property"), "{missing}");
    }

    #[test]
    fn a_schema_that_can_not_be_used_refuses_nothing() {
        assert!(check(&Value::Null, &json!(1)).is_ok());
        assert!(check(&json!({"type": "banana"}), &json!(1)).is_ok());
        // Nothing is fetched from elsewhere.
        assert!(check(&json!({"$ref": "https://example.com/s.json"}), &json!(1)).is_ok());
    }

    #[test]
    fn another_schema_of_the_same_version_is_used() {
        let schemas = Schemas::default();
        assert!(schemas.check("f", 1, &json!({"type": "string"}), &json!(1)).is_err());
        assert!(schemas.check("f", 1, &json!({"type": "integer"}), &json!(1)).is_ok());
    }
}
