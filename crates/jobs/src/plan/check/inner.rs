//! Plans inside of plans: a step that runs the flow `plan` with a plan that is written out. Left alone, its slips would
//! be found when the steps before it have happened. What only an expression gives is not known yet, and is checked by
//! the inner job itself.

use super::{Library, check_input};
use crate::plan::{problem::Problems, template::Template};
use serde_json::Value;

/// `input` is that of the step, at `at`. How deep plans stand in each other is bounded by how deep JSON is read.
pub(super) fn check(
    input: &Template,
    library: Option<&Library>,
    at: &str,
    problems: &mut Problems,
) {
    let Some(Some(plan @ Value::Object(_))) = member(input, "plan") else { return };
    match super::check(&plan.clone().into(), library) {
        Err(found) => {
            for p in found {
                problems.add(format!("{at}/plan{}", p.at), p.wrong, p.what, p.fix);
            }
        }
        Ok(plan) => {
            let Some(given) = member(input, "input") else { return };
            for p in check_input(&plan, given.unwrap_or(&Value::Null)) {
                problems.add(format!("{at}/input{}", p.at), p.wrong, p.what, p.fix);
            }
        }
    }
}

/// A member that is written out; `Some(None)` if it is known not to be there.
fn member<'a>(input: &'a Template, name: &str) -> Option<Option<&'a Value>> {
    match input {
        Template::Plain(value) => Some(value.get(name)),
        Template::Object(members) => match members.get(name) {
            Some(Template::Plain(value)) => Some(Some(value)),
            Some(_) => None,
            None => Some(None),
        },
        Template::Whole(_) | Template::Text(_) | Template::List(_) => None,
    }
}
