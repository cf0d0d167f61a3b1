//! Every number in the OpenAPI document has a smallest and a largest value. Where a field has narrower bounds than its type, they
//! stand beside it in the code; elsewhere they are those of the type, which reading the request enforces. Types of fewer bits than
//! their format says state their bounds beside the field.

use serde_json::{Map, Value, json};

/// Fills in the bounds of all numbers that have none.
pub(crate) fn describe(document: &mut Value) {
    match document {
        Value::Object(members) => {
            if let Some((min, max)) = bounds(members) {
                members.entry("minimum").or_insert(min);
                members.entry("maximum").or_insert(max);
            }
            members.values_mut().for_each(describe);
        }
        Value::Array(items) => items.iter_mut().for_each(describe),
        _ => {}
    }
}

/// The bounds of a type by its format; a minimum of zero says that it has no sign.
fn bounds(schema: &Map<String, Value>) -> Option<(Value, Value)> {
    let is = |kind: &str| match schema.get("type")? {
        Value::String(one) => Some(one == kind),
        Value::Array(several) => Some(several.iter().any(|k| k == kind)),
        _ => None,
    };
    let format = schema.get("format").and_then(Value::as_str);
    if is("number")? {
        return Some((json!(f64::MIN), json!(f64::MAX)));
    }
    let unsigned = schema.get("minimum").and_then(Value::as_i64).is_some_and(|min| min >= 0);
    is("integer")?.then(|| match (format, unsigned) {
        (Some("int32"), true) => (json!(0), json!(u32::MAX)),
        (Some("int32"), false) => (json!(i32::MIN), json!(i32::MAX)),
        (_, true) => (json!(0), json!(u64::MAX)),
        (_, false) => (json!(i64::MIN), json!(i64::MAX)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_get_the_bounds_of_their_type_and_keep_their_own() {
        let mut document = json!({"a": [{"type": ["integer", "null"], "format": "int32", "minimum": 0}],
            "b": {"type": "integer", "format": "int32", "minimum": 1, "maximum": 9},
            "c": {"type": "integer", "minimum": 0}, "d": {"type": "string"},
            "properties": {"type": {"type": "integer", "format": "int64"}}});
        describe(&mut document);
        assert_eq!(document["a"][0]["maximum"], u32::MAX);
        assert_eq!((&document["b"]["minimum"], &document["b"]["maximum"]), (&json!(1), &json!(9)));
        assert_eq!(document["c"]["maximum"], u64::MAX);
        assert!(document["d"].get("maximum").is_none());
        assert_eq!(document["properties"]["type"]["minimum"], i64::MIN);
        assert!(document["properties"].get("minimum").is_none(), "a member that is called type");
    }
}
