//! JSON as a store keeps it: bodies of events and mail, states of heads, results of effects, and the
//! answers of a server that show them.
//!
//! `serde_json` refuses to read more than 127 nested arrays and objects, and writes any number of them.
//! Version 0.1 checked the depth of a request alone; an event wraps the value of a request, and a state wraps the
//! event, so its stores hold JSON that its own reader refuses. [`from_slice`] reads up to
//! [`STORED_DEPTH_MAX`] levels. What arrives from outside has a lower bound ([`crate::depth`]).

use crate::{depth::of_text, limits::STORED_DEPTH_MAX};
use serde::de::DeserializeOwned;

/// The deepest nesting that `serde_json` reads by default.
const USUAL_DEPTH_MAX: usize = 127;

/// Reads JSON that is nested at most [`STORED_DEPTH_MAX`] levels deep.
///
/// JSON within the usual limit costs what `serde_json::from_slice` costs: the depth is measured only after that
/// has failed.
pub fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> serde_json::Result<T> {
    let refused = match serde_json::from_slice(bytes) {
        Ok(read) => return Ok(read),
        Err(e) => e,
    };
    if !(USUAL_DEPTH_MAX + 1..=STORED_DEPTH_MAX).contains(&of_text(bytes, STORED_DEPTH_MAX)) {
        return Err(refused);
    }
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    deserializer.disable_recursion_limit();
    let read = T::deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::{Deserialize, Serialize};
    use serde_json::Value;

    fn nested(levels: usize) -> Vec<u8> {
        ["[".repeat(levels), "]".repeat(levels)].concat().into_bytes()
    }

    #[test]
    fn what_the_usual_reader_refuses_is_read_up_to_the_limit() {
        for levels in [USUAL_DEPTH_MAX + 1, STORED_DEPTH_MAX] {
            assert!(serde_json::from_slice::<Value>(&nested(levels)).is_err(), "{levels}");
            let read: Value = from_slice(&nested(levels)).unwrap();
            assert_eq!(serde_json::to_vec(&read).unwrap(), nested(levels));
        }
        assert!(serde_json::from_slice::<Value>(&nested(USUAL_DEPTH_MAX)).is_ok());
        let deeper = from_slice::<Value>(&nested(STORED_DEPTH_MAX + 1)).unwrap_err();
        assert!(deeper.to_string().contains("recursion limit"), "{deeper}");
    }

    #[test]
    fn a_very_deep_text_is_refused_without_a_deep_stack() {
        assert!(from_slice::<Value>(&nested(10_000_000)).is_err());
        assert!(from_slice::<Value>("[{\"a\":".repeat(1_000_000).as_bytes()).is_err());
    }

    #[test]
    fn tagged_and_flattened_types_are_read_as_deep() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "type", rename_all = "snake_case")]
        enum Event {
            Signalled { payload: Value },
        }
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Wrapped {
            at: u64,
            #[serde(flatten)]
            event: Event,
        }
        let payload: Value = from_slice(&nested(STORED_DEPTH_MAX - 1)).unwrap();
        let wrapped = Wrapped { at: 7, event: Event::Signalled { payload } };
        let bytes = serde_json::to_vec(&wrapped).unwrap();
        assert_eq!(from_slice::<Wrapped>(&bytes).unwrap(), wrapped);
    }

    #[test]
    fn errors_of_deep_texts_are_found_as_in_others() {
        let deep = nested(200);
        for wrong in [&deep[..399], &[&deep[..], b"]"].concat(), &[&deep[..], b" 1"].concat()] {
            assert!(from_slice::<Value>(wrong).is_err());
        }
        let other: serde_json::Result<u64> = from_slice(&deep);
        assert!(other.is_err());
    }
}
