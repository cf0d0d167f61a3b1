//! Whether an input fits its flow, before a job exists that can only fail. The schema is what the flow's worker
//! registered; where that is unknown or can not be used, the worker still checks its own types.

use crate::{Problem, problem::ApiCode};
use axum::http::StatusCode;
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};
use tenure_kernel::runtime::{Rt, compute};
use tenure_schema::{DEADLINE, NotChecked, Schema};

/// Schemas that are kept ready; then the memory starts over.
const READY_MAX: usize = 256;
/// Violations that are named.
const VIOLATIONS_MAX: usize = 20;

/// Schemas that were compiled before: compiling costs more than checking.
#[derive(Default)]
pub(super) struct Schemas(Arc<Mutex<HashMap<(String, u32), Ready>>>);

struct Ready {
    /// A worker may register another schema under the same version.
    source: Value,
    schema: Option<Schema>,
}

impl Schemas {
    /// Refuses an input that does not fit.
    pub(super) async fn check(
        &self,
        rt: &Rt,
        tenant: &str,
        flow: &str,
        version: u32,
        schema: &Value,
        input: &Value,
    ) -> Result<(), Problem> {
        let Some(schema) = self.schema(rt, tenant, flow, version, schema).await? else {
            return Ok(());
        };
        let found = schema.check_beside(rt, tenant, input, VIOLATIONS_MAX).await;
        let found = found.map_err(|e| not_checked(flow, version, e))?;
        let found: Vec<Value> = found
            .into_iter()
            .map(|v| json!({ "at": v.at, "says": v.says, "schema": v.schema }))
            .collect();
        match found.first() {
            None => Ok(()),
            Some(first) => Err(violation(flow, version, first, &found)),
        }
    }

    async fn schema(
        &self,
        rt: &Rt,
        tenant: &str,
        flow: &str,
        version: u32,
        source: &Value,
    ) -> Result<Option<Schema>, Problem> {
        if !source.is_object() {
            return Ok(None);
        }
        let name = (flow.to_owned(), version);
        let lock = |all: &Arc<Mutex<HashMap<_, Ready>>>| {
            // Nothing panics under this lock that would leave the map half written.
            let all = all.lock().unwrap_or_else(PoisonError::into_inner);
            all.get(&name).filter(|r| r.source == *source).map(|r| r.schema.clone())
        };
        if let Some(known) = lock(&self.0) {
            return Ok(known);
        }
        let (source, again) = (source.clone(), source.clone());
        let compiled = compute(rt, tenant, DEADLINE, move || Schema::stored(&source)).await;
        let schema = match compiled {
            None => return Err(not_checked(flow, version, NotChecked::Late)),
            Some(Ok(schema)) => Some(schema),
            Some(Err(e)) => {
                tracing::warn!(flow, version, "its schema can not be used: {e}");
                None
            }
        };
        if let Some(unchecked) = schema.as_ref().map(Schema::unchecked).filter(|u| !u.is_empty()) {
            tracing::warn!(flow, version, ?unchecked, "patterns with look-around are not checked");
        }
        let mut ready = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if ready.len() >= READY_MAX {
            ready.clear();
        }
        ready.insert(name, Ready { source: again, schema: schema.clone() });
        Ok(schema)
    }
}

fn not_checked(flow: &str, version: u32, why: NotChecked) -> Problem {
    let detail = format!("the input of {flow}@{version} was not checked: {why}");
    let (status, fix) = match why {
        NotChecked::TooCostly => {
            (StatusCode::UNPROCESSABLE_ENTITY, "send a smaller input, or make the schema simpler")
        }
        NotChecked::Late => (StatusCode::SERVICE_UNAVAILABLE, "try again"),
    };
    let problem = Problem::new(status, ApiCode::SchemaViolation, detail).field("input").fix(fix);
    match why {
        NotChecked::TooCostly => problem,
        NotChecked::Late => problem.retry_after_s(1),
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
    use std::{
        future::Future,
        task::{Context, Poll, Waker},
        time::Duration,
    };
    use tenure_kernel::runtime::BoxFuture;

    struct Threadless;

    impl tenure_kernel::runtime::Runtime for Threadless {
        fn mono(&self) -> Duration {
            Duration::ZERO
        }
        fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
            Box::pin(std::future::pending())
        }
        fn spawn(&self, _: BoxFuture<'static, ()>) {}
        fn random(&self) -> u64 {
            0
        }
    }

    fn check_with(schemas: &Schemas, schema: &Value, input: &Value) -> Result<(), Problem> {
        let rt: Rt = Arc::new(Threadless);
        let check = std::pin::pin!(schemas.check(&rt, "t", "f", 1, schema, input));
        // Without threads it is over with the first poll.
        match check.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => answer,
            Poll::Pending => panic!("it waits for something"),
        }
    }

    fn check(schema: &Value, input: &Value) -> Result<(), Problem> {
        check_with(&Schemas::default(), schema, input)
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
        assert!(check_with(&schemas, &json!({"type": "string"}), &json!(1)).is_err());
        assert!(check_with(&schemas, &json!({"type": "integer"}), &json!(1)).is_ok());
    }
}
