//! How deep JSON is nested, and how deep it may be.
//!
//! A parser of JSON recurses, so every reader has a limit. What Tenure accepts is wrapped before it is stored: a payload becomes a member of an
//! event, an event of a record, a result part of the state of a head and of an answer of the API. There are three bounds, each with room for the next:
//!
//! | bound | applies to |
//! |---|---|
//! | [`INPUT_DEPTH_MAX`] | what comes from outside: bodies of requests, rows of the SQL intake, results of tools, answers of models |
//! | [`COMPOSED_DEPTH_MAX`] | what flows and plans make of it |
//! | [`STORED_DEPTH_MAX`](crate::limits::STORED_DEPTH_MAX) | what is read back from a store ([`crate::stored`]) |

use crate::limits::{COMPOSED_DEPTH_MAX, INPUT_DEPTH_MAX};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// JSON that is nested too deeply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is nested deeper than {max} levels")]
pub struct TooDeep {
    /// The bound that it exceeds.
    pub max: usize,
}

/// What is wrong with JSON from outside.
#[derive(Debug, thiserror::Error)]
pub enum BadJson {
    /// It is not JSON, or not of the right form.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// It is nested too deeply.
    #[error("{0}")]
    Deep(#[from] TooDeep),
}

/// Reads JSON from outside, nested at most [`INPUT_DEPTH_MAX`] levels deep.
pub fn read_input<T: DeserializeOwned>(text: &[u8]) -> Result<T, BadJson> {
    check_input_text(text)?;
    Ok(serde_json::from_slice(text)?)
}

/// Refuses the text of JSON from outside that is nested deeper than [`INPUT_DEPTH_MAX`] levels.
pub fn check_input_text(text: &[u8]) -> Result<(), TooDeep> {
    within(of_text(text, INPUT_DEPTH_MAX), INPUT_DEPTH_MAX)
}

/// Refuses a value from outside that is nested deeper than [`INPUT_DEPTH_MAX`] levels.
pub fn check_input(value: &Value) -> Result<(), TooDeep> {
    within_value(value, INPUT_DEPTH_MAX)
}

/// Refuses a value that a flow or a plan made and that is nested deeper than [`COMPOSED_DEPTH_MAX`] levels.
pub fn check_composed(value: &Value) -> Result<(), TooDeep> {
    within_value(value, COMPOSED_DEPTH_MAX)
}

fn within(depth: usize, max: usize) -> Result<(), TooDeep> {
    if depth <= max { Ok(()) } else { Err(TooDeep { max }) }
}

fn within_value(value: &Value, max: usize) -> Result<(), TooDeep> {
    fn fits(value: &Value, left: usize) -> bool {
        match value {
            Value::Array(items) => left > 0 && items.iter().all(|v| fits(v, left - 1)),
            Value::Object(members) => left > 0 && members.values().all(|v| fits(v, left - 1)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
        }
    }
    if fits(value, max) { Ok(()) } else { Err(TooDeep { max }) }
}

/// How many arrays and objects are open at once at most, up to one more than `max`. Of JSON with errors it is an upper
/// bound of what a parser enters.
pub fn of_text(text: &[u8], max: usize) -> usize {
    let (mut open, mut deepest) = (0_usize, 0);
    let mut in_string = false;
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        match (in_string, byte) {
            (true, b'\\') => {
                bytes.next();
            }
            (_, b'"') => in_string = !in_string,
            (false, b'[' | b'{') => {
                open += 1;
                deepest = deepest.max(open);
                if deepest > max {
                    break;
                }
            }
            (false, b']' | b'}') => open = open.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn nested(levels: usize) -> Value {
        (0..levels).fold(json!(1), |inner, level| match level % 2 {
            0 => json!([inner]),
            _ => json!({ "a": inner }),
        })
    }

    #[test]
    fn each_bound_holds_at_the_limit_and_one_past_it() {
        for (check, max) in [
            (check_input as fn(&Value) -> _, INPUT_DEPTH_MAX),
            (check_composed, COMPOSED_DEPTH_MAX),
        ] {
            assert_eq!(check(&nested(max)), Ok(()));
            assert_eq!(check(&nested(max + 1)), Err(TooDeep { max }));
        }
        let text = |levels| nested(levels).to_string().into_bytes();
        assert_eq!(check_input_text(&text(INPUT_DEPTH_MAX)), Ok(()));
        assert!(read_input::<Value>(&text(INPUT_DEPTH_MAX)).is_ok());
        let refused = read_input::<Value>(&text(INPUT_DEPTH_MAX + 1)).unwrap_err();
        assert_eq!(refused.to_string(), "it is nested deeper than 100 levels");
    }

    #[test]
    fn a_value_and_its_text_have_the_same_depth() {
        for levels in 0..40 {
            let value = nested(levels);
            assert_eq!(of_text(value.to_string().as_bytes(), 100), levels);
            assert_eq!(within_value(&value, levels), Ok(()));
            assert!(levels == 0 || within_value(&value, levels - 1).is_err());
        }
    }

    #[test]
    fn brackets_within_strings_do_not_count() {
        let quoted = json!({ "a\"[[": ["\\", "[{\"[", "]]"], "b": {} });
        assert_eq!(of_text(quoted.to_string().as_bytes(), 256), 2);
        assert_eq!(of_text(br#""[\"[""#, 256), 0);
    }

    #[test]
    fn a_very_deep_text_is_measured_up_to_the_bound() {
        assert_eq!(of_text("[".repeat(1_000_000).as_bytes(), 256), 257);
    }
}
