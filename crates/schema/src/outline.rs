//! What a value of a schema looks like, for somebody who has to write one.

use serde_json::{Map, Value};

/// How deep objects are shown inside of each other.
const DEPTH_MAX: usize = 4;
/// Members of one object that are shown.
const MEMBERS_MAX: usize = 40;

/// A value with the members that a schema asks for, to be filled in. Whatever somebody has to decide is `null`, which most
/// schemas refuse: an outline that was left as it is does not pass for a value.
pub fn outline(schema: &Value) -> Value {
    shape(schema, schema, 0)
}

fn shape(root: &Value, schema: &Value, depth: usize) -> Value {
    let schema = followed(root, schema);
    if let Some(only) = schema.get("const") {
        return only.clone();
    }
    let Some(Value::Object(members)) = schema.get("properties").filter(|_| depth < DEPTH_MAX)
    else {
        return Value::Null;
    };
    let members = members.iter().take(MEMBERS_MAX);
    let members = members.map(|(name, inner)| (name.clone(), shape(root, inner, depth + 1)));
    Value::Object(members.collect::<Map<_, _>>())
}

/// One line for each member: its name, its type, and whether it has to be there.
pub fn members(schema: &Value) -> Vec<String> {
    let top = followed(schema, schema);
    let Some(Value::Object(members)) = top.get("properties") else {
        return kind(top).map(|kind| vec![kind]).unwrap_or_default();
    };
    let required = |name: &String| {
        top["required"].as_array().is_some_and(|all| all.iter().any(|r| r.as_str() == Some(name)))
    };
    let line = |(name, inner): (&String, &Value)| {
        let kind = kind(followed(schema, inner)).unwrap_or_else(|| "any".to_owned());
        format!("{name}: {kind}{}", if required(name) { "" } else { ", optional" })
    };
    members.iter().take(MEMBERS_MAX).map(line).collect()
}

fn kind(schema: &Value) -> Option<String> {
    match &schema["type"] {
        Value::String(one) => Some(one.clone()),
        Value::Array(several) => {
            let words: Vec<&str> = several.iter().filter_map(Value::as_str).collect();
            Some(words.join(" or "))
        }
        _ => schema["enum"]
            .as_array()
            .map(|words| words.iter().map(Value::to_string).collect::<Vec<_>>().join(" or ")),
    }
}

/// What a schema refers to, up to a few references.
fn followed<'a>(root: &'a Value, mut schema: &'a Value) -> &'a Value {
    for _ in 0..DEPTH_MAX {
        let to = schema.get("$ref").and_then(Value::as_str).and_then(|to| to.strip_prefix('#'));
        match to.and_then(|pointer| root.pointer(pointer)) {
            Some(inner) => schema = inner,
            None => break,
        }
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_outline_has_the_members_and_is_no_value_itself() {
        let schema = json!({
            "type": "object", "required": ["receipt", "of"],
            "properties": {
                "receipt": {"type": "string"}, "cents": {"type": ["integer", "null"]},
                "of": {"$ref": "#/$defs/who"}, "sort": {"const": "payment"},
            },
            "$defs": {"who": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}},
        });
        let outline = outline(&schema);
        let of = json!({"name": null});
        assert_eq!(outline, json!({"receipt": null, "cents": null, "of": of, "sort": "payment"}));
        assert!(!crate::Schema::new(&schema).unwrap().check(&outline, 1).unwrap().is_empty());
        let lines = members(&schema);
        assert!(lines.contains(&"receipt: string".to_owned()), "{lines:?}");
        assert!(lines.contains(&"cents: integer or null, optional".to_owned()), "{lines:?}");
    }

    #[test]
    fn a_schema_that_says_nothing_has_an_outline_that_says_nothing() {
        for schema in [Value::Null, json!(true), json!({"$ref": "#"}), json!({"type": "string"})] {
            assert_eq!(outline(&schema), Value::Null, "{schema}");
        }
        assert_eq!(members(&json!({"type": "string"})), ["string"]);
        assert!(members(&Value::Null).is_empty());
    }
}
