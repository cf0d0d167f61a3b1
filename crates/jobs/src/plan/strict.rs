//! JSON that remembers which keys stood in it twice. Readers of JSON take the last one and say nothing; in a plan
//! that would be a step that somebody wrote and nobody runs.

use super::problem::below;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;

/// A value, and where a key stood twice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Strict {
    /// As any reader would have it.
    pub value: Value,
    /// JSON pointers of the keys.
    pub doubled: Vec<String>,
}

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut doubled = Vec::new();
        let value = At { at: String::new(), doubled: &mut doubled }.deserialize(deserializer)?;
        Ok(Strict { value, doubled })
    }
}

impl From<Value> for Strict {
    fn from(value: Value) -> Self {
        Strict { value, doubled: Vec::new() }
    }
}

struct At<'a> {
    at: String,
    doubled: &'a mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for At<'_> {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for At<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }
    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(Number::from_f64(v).map_or(Value::Null, Value::Number))
    }
    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::String(v.to_owned()))
    }
    fn visit_string<E>(self, v: String) -> Result<Value, E> {
        Ok(Value::String(v))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            let at = below(&self.at, list.len());
            match seq.next_element_seed(At { at, doubled: self.doubled })? {
                Some(item) => list.push(item),
                None => return Ok(Value::Array(list)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let at = below(&self.at, &key);
            if object.contains_key(&key) {
                self.doubled.push(at.clone());
            }
            let value = map.next_value_seed(At { at, doubled: self.doubled })?;
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn keys_that_stand_twice_are_named_with_their_place() {
        let text = r#"{"a": 1, "b": [{"x/y": 1, "x/y": 2.5}], "a": null}"#;
        let read: Strict = serde_json::from_str(text).unwrap();
        assert_eq!(read.value, json!({"a": null, "b": [{"x/y": 2.5}]}));
        assert_eq!(read.doubled, ["/b/0/x~1y", "/a"]);
    }
}
