//! Jobs that an application asked for in a transaction of its own database: see docs/transactional-submission.md.
//!
//! Here a wish is read and checked by the rules of `POST /v1/jobs`, so that what is wrong with it is said in the words
//! that the API would have answered. What is then made of it, and why nothing is ever refused, is [`intake`]'s.

use super::submit::{KEY_BYTES_MAX, TENANT, check_submission, must_end_in};
use crate::{App, Problem, problem::ApiCode};
use serde::Deserialize;
use serde_json::Value;
use tenure_jobs::{
    bulk::FLOW,
    intake::{self, Taken, Wrong},
    model::Terms,
    submit::Submission,
    terms::{GateWish, START_IN_MS_MAX},
};
use tenure_kernel::{
    depth::{self, BadJson},
    error::StoreError,
    ids::EntityId,
    limits::{NAME_BYTES_MAX, clip},
    tenant::{FORM, is_name},
};

/// What an application asked for.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    /// The flow.
    pub flow: Option<String>,
    /// The input as JSON; `None` where it is too large.
    pub input: Option<String>,
    /// The options as JSON; `None` where they are too large.
    pub options: Option<String>,
    /// The only tenant it may ask for.
    pub bound: Option<String>,
    /// Who asked.
    pub by: String,
}

/// Options of a wish; the names of `POST /v1/jobs`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Options {
    version: Option<u32>,
    priority: i16,
    key: Option<String>,
    tenant: Option<String>,
    must_end_in_seconds: Option<u64>,
    start_in_seconds: Option<u64>,
    gate: Option<GateWish>,
    queue: Option<String>,
    needs: Vec<String>,
    by: Option<String>,
}

/// Options that are larger are not kept: `measure_wish` in the schema.
const OPTIONS_BYTES_MAX: usize = 64 * 1024;

/// The longest delay of a start.
const START_SECONDS_MAX: u64 = START_IN_MS_MAX / 1_000;

/// Makes the job that was asked for, under the id that was given, or the failed job that says why not.
pub async fn take_in(app: &App, id: EntityId, wish: &Wish) -> Result<Taken, StoreError> {
    let Some(desk) = app.jobs() else {
        return Err(StoreError::Refused("this server has no jobs".into()));
    };
    let wanted = match read(wish) {
        Err(wrong) => Err(wrong),
        Ok(wanted) => {
            let Submission { tenant, flow, version, input, .. } = &wanted;
            match check_submission(app, desk, tenant, flow, *version, input).await {
                Ok(version) => Ok(Submission { version: Some(version), ..wanted }),
                Err(problem) => Err(of_problem(problem)?),
            }
        }
    };
    intake::take_in(desk.submitter(), id, wanted, bare(wish)).await
}

/// What can be kept of a wish, whatever it says.
fn bare(wish: &Wish) -> Submission {
    let input = wish.input.as_deref().and_then(|text| depth::read_input(text.as_bytes()).ok());
    let options = wish.options.as_deref();
    let asked: Option<Value> = options.and_then(|text| depth::read_input(text.as_bytes()).ok());
    let asked = asked.and_then(|o| o["tenant"].as_str().map(str::to_owned));
    let tenant = wish.bound.clone().or(asked.filter(|t| is_name(t)));
    Submission {
        flow: clip(wish.flow.as_deref().unwrap_or(""), FLOW_BYTES_MAX).to_owned(),
        input: input.unwrap_or_default(),
        tenant: tenant.unwrap_or_else(|| TENANT.to_owned()),
        by: Some(wish.by.clone()),
        ..Submission::default()
    }
}

/// A flow and its version are the name of a queue.
const FLOW_BYTES_MAX: usize = NAME_BYTES_MAX - 16;

fn read(wish: &Wish) -> Result<Submission, Wrong> {
    let bad = |what: String| Wrong("bad_options", what);
    let flow = wish.flow.clone().filter(|f| !f.is_empty());
    let flow = flow.ok_or_else(|| Wrong("unknown_flow", "no flow was named".to_owned()))?;
    if flow.len() > FLOW_BYTES_MAX {
        let says = format!("the name of a flow has at most {FLOW_BYTES_MAX} bytes");
        return Err(Wrong("unknown_flow", says));
    }
    // A role that may submit and nothing else must not reach jobs that are there.
    if flow == FLOW {
        let says = "an action on many jobs is asked for over HTTP, by a key that may";
        return Err(Wrong("forbidden", says.to_owned()));
    }
    let options = wish
        .options
        .as_deref()
        .ok_or_else(|| bad(format!("options: they have more than {OPTIONS_BYTES_MAX} bytes")))?;
    // As a map and not at once: a list would be taken for the fields in their order.
    let unread = |e: BadJson| {
        bad(format!("options: {e}; give an object with the fields of the documentation"))
    };
    let options: serde_json::Map<String, Value> =
        depth::read_input(options.as_bytes()).map_err(unread)?;
    let options: Options =
        serde_json::from_value(Value::Object(options)).map_err(|e| unread(e.into()))?;
    let tenant = match (&wish.bound, options.tenant) {
        (Some(mine), Some(other)) if *mine != other => {
            return Err(bad(format!(
                "options.tenant = {other:?}: the role may submit for {mine:?} only"
            )));
        }
        (Some(mine), _) => mine.clone(),
        (None, Some(other)) if !is_name(&other) => {
            return Err(bad(format!(
                "options.tenant = {other:?} is no name of a tenant: give {FORM}"
            )));
        }
        (None, wanted) => wanted.unwrap_or_else(|| TENANT.to_owned()),
    };
    if options.key.as_ref().is_some_and(|k| !(1..=KEY_BYTES_MAX).contains(&k.len())) {
        return Err(bad(format!("options.key: a key has 1 to {KEY_BYTES_MAX} bytes")));
    }
    let must_end_in = must_end_in(options.must_end_in_seconds)
        .map_err(|p| bad(format!("options.must_end_in_seconds: {}", p.detail())))?;
    let start = options.start_in_seconds;
    if start.is_some_and(|s| s > START_SECONDS_MAX) {
        return Err(bad(format!("options.start_in_seconds: give at most {START_SECONDS_MAX}")));
    }
    let input = wish.input.as_deref().ok_or_else(|| {
        Wrong("payload_too_large", "the input is larger than server.payload_bytes_max".to_owned())
    })?;
    let input = depth::read_input(input.as_bytes())
        .map_err(|e| Wrong("bad_json", format!("the input cannot be read: {e}")))?;
    let terms = Terms {
        start_in_ms: start.map(|s| s * 1_000),
        gate: options.gate.map(|gate| Box::new(gate.into())),
        queue: options.queue,
        needs: options.needs,
        ..Terms::default()
    };
    let terms = terms.of_tenant(&tenant).map_err(|e| bad(format!("options.{e}")))?;
    let by =
        Some(options.by.map_or_else(|| wish.by.clone(), |name| format!("{name} ({})", wish.by)));
    let (version, priority, key) = (options.version, options.priority, options.key);
    Ok(Submission { flow, version, input, tenant, key, priority, must_end_in, terms, by })
}

/// A problem of the wish is a reason; one of the store is an error, and the wish waits.
fn of_problem(problem: Problem) -> Result<Wrong, StoreError> {
    match problem.code() {
        ApiCode::Kernel(code) => {
            Err(StoreError::Unavailable(format!("{code}: {}", problem.detail())))
        }
        code => Ok(Wrong(code.as_str(), problem.detail().to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn wish(options: &str) -> Wish {
        let (flow, input) = (Some("greet".into()), Some("{\"a\":1}".into()));
        Wish { flow, input, options: Some(options.into()), bound: None, by: "role app".into() }
    }

    #[test]
    fn every_option_is_read() {
        let read = read(&wish(
            r#"{"version":2,"priority":-3,"key":"k","tenant":"t","must_end_in_seconds":60,"start_in_seconds":5,
                "gate":{"name":"g","limit":2},"queue":"q","needs":["gpu","arm","gpu"],"by":"ada"}"#,
        ))
        .unwrap();
        assert_eq!((read.version, read.priority, read.tenant.as_str()), (Some(2), -3, "t"));
        assert_eq!(read.must_end_in, Some(Duration::from_secs(60)));
        assert_eq!(read.terms.start_in_ms, Some(5_000));
        let gate = read.terms.gate.unwrap();
        assert_eq!((gate.name.as_str(), gate.limit, gate.id.is_some()), ("g", Some(2), true));
        assert_eq!(read.terms.needs, ["arm", "gpu"]);
        assert_eq!(read.by.as_deref(), Some("ada (role app)"));
    }

    #[test]
    fn a_wish_without_options_has_the_terms_of_any_job() {
        let read = read(&wish("{}")).unwrap();
        assert_eq!((read.terms, read.tenant.as_str()), (Terms::default(), "default"));
    }

    #[test]
    fn what_is_wrong_is_named_and_never_an_error() {
        for (options, says) in [
            ("[]", "options"),
            ("7", "options"),
            ("{\"prio\":1}", "prio"),
            ("{\"priority\":\"high\"}", "options"),
            ("{\"priority\":99999}", "options"),
            ("{\"key\":\"\"}", "options.key"),
            ("{\"tenant\":\"a/b\"}", "options.tenant"),
            ("{\"must_end_in_seconds\":0}", "must_end_in_seconds"),
            ("{\"start_in_seconds\":99999999999}", "start_in_seconds"),
            ("{\"gate\":\"A gate\"}", "options.gate"),
            ("{\"gate\":{\"name\":\"g\",\"limit\":0}}", "options.gate"),
            ("{\"gate\":{\"name\":\"g\",\"limt\":5}}", "limt"),
            ("{\"queue\":\"\"}", "options.queue"),
            ("{\"needs\":[\"a\",\"b\",\"c\",\"d\",\"e\"]}", "options.needs"),
            ("{\"cut", "options"),
        ] {
            let Wrong(reason, error) = read(&wish(options)).unwrap_err();
            assert_eq!(reason, "bad_options", "{options}");
            assert!(error.contains(says), "{options}: {error}");
        }
        let large = Wish { input: None, ..wish("{}") };
        assert_eq!(read(&large).unwrap_err().0, "payload_too_large");
        let Wrong(reason, error) = read(&Wish { options: None, ..wish("{}") }).unwrap_err();
        assert!(reason == "bad_options" && error.contains("65536"), "{reason}: {error}");
        let bulk = Wish { flow: Some("bulk".into()), ..wish("{}") };
        assert_eq!(read(&bulk).unwrap_err().0, "forbidden");
        let none = Wish { flow: None, ..wish("{}") };
        assert_eq!(read(&none).unwrap_err().0, "unknown_flow");
    }

    #[test]
    fn a_bound_role_submits_for_its_tenant_and_nobody_else() {
        let bound = |options: &str| Wish { bound: Some("mine".into()), ..wish(options) };
        assert_eq!(read(&bound("{}")).unwrap().tenant, "mine");
        assert_eq!(read(&bound("{\"tenant\":\"mine\"}")).unwrap().tenant, "mine");
        let theirs = bound("{\"tenant\":\"theirs\"}");
        assert_eq!(read(&theirs).unwrap_err().0, "bad_options");
        assert_eq!(bare(&theirs).tenant, "mine");
    }
}
