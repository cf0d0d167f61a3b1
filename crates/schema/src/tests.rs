use super::*;
use serde_json::{Map, json};

/// The pattern that stopped a server: look-ahead over an ambiguous repetition.
const BACKTRACKS: &str = "^(?:(?:a|a)*(?=c)|a*)$";

/// Definitions that refer to the next one twice.
fn twice(depth: usize, word: &str) -> Value {
    let next = |i: usize| json!({"$ref": format!("#/$defs/a{}", i + 1)});
    let mut defs: Map<String, Value> =
        (0..depth).map(|i| (format!("a{i}"), json!({ word: [next(i), next(i)] }))).collect();
    defs.insert(format!("a{depth}"), json!({"type": "string"}));
    json!({"$ref": "#/$defs/a0", "$defs": defs})
}

#[test]
fn look_around_and_backreferences_are_refused_by_name() {
    for pattern in [BACKTRACKS, "^(?!x)", "(?<=a)b", r"^(a+)\1$"] {
        let schema = json!({"properties": {"a/b": {"items": {"pattern": pattern}}}});
        let error = Schema::new(&schema).unwrap_err();
        let SchemaError::Pattern { pattern: named, at, .. } = &error else { panic!("{error}") };
        assert_eq!((named.as_str(), at.as_str()), (pattern, "/properties/a~1b/items/pattern"));
        assert!(error.to_string().contains("look-around"), "{error}");
        let named = json!({"patternProperties": {pattern: {}}});
        assert!(matches!(Schema::new(&named), Err(SchemaError::Pattern { .. })), "{pattern}");
    }
    // Values that only look like patterns.
    let values = json!({"default": {"pattern": "(?=x)"}, "enum": [{"pattern": "(?=x)"}],
        "properties": {"pattern": {"type": "string"}}});
    assert!(Schema::new(&values).is_ok());
}

#[test]
fn ordinary_patterns_work() {
    let fits = |pattern: &str, text: &str| {
        let schema = Schema::new(&json!({ "pattern": pattern })).unwrap();
        schema.check(&json!(text), 1).unwrap().is_empty()
    };
    let uuid = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$";
    assert!(fits(uuid, "0190a1b2-0000-7000-8000-000000000001") && !fits(uuid, "0190"));
    assert!(fits(r"^\w+@\w+\.\w{2,10}$", "a@b.org") && fits(r"^[\w.-]{1,253}$", "a.b"));
    assert!(fits(r"^\p{L}{1,64}$", "Zürich") && !fits(r"^\p{L}{1,64}$", "4"));
}

#[test]
fn a_stored_schema_with_look_around_checks_the_rest() {
    let schema = json!({"type": "object", "properties": {
        "a": {"type": "string", "pattern": BACKTRACKS}, "n": {"type": "integer"}}});
    let stored = Schema::stored(&schema).unwrap();
    assert_eq!(stored.unchecked(), [BACKTRACKS]);
    let violations = |value: Value| stored.check(&value, 9).unwrap().len();
    assert_eq!(violations(json!({"a": "b".repeat(8_600), "n": 1})), 0);
    assert_eq!(violations(json!({"a": 1, "n": "x"})), 2);
    // Without its pattern a `not` would refuse everything.
    let turned = json!({"type": "object", "not": {"pattern": BACKTRACKS}});
    let turned = Schema::stored(&turned).unwrap();
    assert!(turned.check(&json!("x"), 9).unwrap().is_empty());
    assert_eq!(turned.unchecked(), [BACKTRACKS]);
}

#[test]
fn doubling_references_are_refused_at_registration_and_not_evaluated_when_stored() {
    for word in ["anyOf", "oneOf", "allOf"] {
        for depth in [20, 60] {
            assert_eq!(Schema::new(&twice(depth, word)).unwrap_err(), SchemaError::Expansion);
            let stored = Schema::stored(&twice(depth, word)).unwrap();
            assert_eq!(stored.check(&json!(5), 5), Err(NotChecked::TooCostly), "{word} {depth}");
        }
        let small = Schema::new(&twice(8, word)).unwrap();
        assert_eq!(small.check(&json!("x"), 5).unwrap().is_empty(), word != "oneOf");
        assert_eq!(small.check(&json!(5), 1).unwrap().len(), 1);
    }
    // The same, once at each level of the value.
    let level = json!({"properties": {"a": {"$ref": "#"}}});
    let levels = Schema::new(&json!({"allOf": [level, level]})).unwrap();
    let deep = |n: usize| (0..n).fold(json!(1), |inner, _| json!({"a": inner}));
    assert_eq!(levels.check(&deep(8), 5), Ok(Vec::new()));
    assert_eq!(levels.check(&deep(60), 5), Err(NotChecked::TooCostly));
}

#[test]
fn references_that_cannot_be_counted_are_refused() {
    let defs = json!({"a b": {"type": "string"}, "c": {"$anchor": "c"}});
    let with = |more: Value| {
        let mut schema = json!({"$id": "https://example.com/root", "$defs": defs});
        schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Schema::new(&schema)
    };
    assert!(
        with(json!({"$ref": "#/$defs/a%20b"})).unwrap().check(&json!(1), 1).unwrap().len() == 1
    );
    assert!(with(json!({"properties": {"$id": {"type": "string"}}})).is_ok());
    // A part with an id of its own is another root: the same pointer leads to its own definitions.
    let inner = json!({"$id": "inner", "$ref": "#/$defs/a0", "$defs": twice(24, "anyOf")["$defs"]});
    for more in [
        json!({"$ref": "#c"}),
        json!({"$ref": "https://example.com/root#/$defs/c"}),
        json!({"$ref": "#/$defs/nothing"}),
        json!({"$dynamicRef": "#c"}),
        json!({"items": inner}),
    ] {
        assert!(matches!(with(more.clone()), Err(SchemaError::Invalid(_))), "{more}");
    }
}

#[test]
fn names_of_members_are_matched_in_bounded_work() {
    let names = json!({"propertyNames": {"anyOf": [{"pattern": "^(.?x.?){40}y$"}]}});
    let names = Schema::new(&names).unwrap();
    let wide: Map<String, Value> =
        (0..100).map(|n| (format!("{}{n}", "x".repeat(8_000)), json!(1))).collect();
    assert_eq!(names.check(&Value::Object(wide), 1), Err(NotChecked::TooCostly));
}

#[test]
fn a_circle_is_answered() {
    let circle = Schema::new(&json!({"anyOf": [{"$ref": "#"}, {"type": "string"}]})).unwrap();
    assert_eq!(circle.check(&json!("x"), 1), Err(NotChecked::TooCostly));
}

#[test]
fn a_large_schema_that_does_not_fit_lists_no_branches() {
    let stored = Schema::stored(&twice(16, "anyOf")).unwrap();
    let found = stored.check(&json!(5), 5).unwrap();
    assert_eq!(found.len(), 1);
    assert!(found[0].says.contains("too large to say where"), "{found:?}");
}

#[test]
fn trees_and_large_values_are_affordable() {
    let tree = json!({"type": "object", "properties": {
        "left": {"$ref": "#"}, "right": {"$ref": "#"}}, "additionalProperties": false});
    let grown = (0..60).fold(json!({}), |inner, _| json!({"left": inner, "right": {}}));
    assert_eq!(Schema::new(&tree).unwrap().check(&grown, 5), Ok(Vec::new()));
    let list = Schema::new(&json!({"items": {"type": "integer", "minimum": 0}})).unwrap();
    assert_eq!(list.check(&json!(vec![1; 100_000]), 5), Ok(Vec::new()));
    let texts = Schema::new(&json!({"items": {"pattern": "^[a-z]{1,40}$"}})).unwrap();
    assert_eq!(texts.check(&json!(vec!["abcdefgh"; 10_000]), 5), Ok(Vec::new()));
}

#[test]
fn patterns_are_bounded_in_size_and_in_work() {
    let huge = json!({"pattern": "^(((a{100}){100}){100})$"});
    assert!(matches!(Schema::new(&huge), Err(SchemaError::Pattern { .. })));
    assert_eq!(pattern::states("a(b[cd]){10}e{3,5}"), 1 + 10 * 9 + 5);
    let states = Schema::new(&json!({"items": {"pattern": "(.*x){200}y"}}));
    if let Ok(slow) = states {
        let long = json!(vec!["x".repeat(8_000); 100]);
        assert_eq!(slow.check(&long, 1), Err(NotChecked::TooCostly));
    }
    // Unevaluated members ask every other part again.
    let nested = (0..40).fold(
        json!(true),
        |inner, _| json!({"anyOf": [inner, false], "unevaluatedProperties": false}),
    );
    let wide = json!((0..30).map(|n| (n.to_string(), json!(1))).collect::<Map<_, _>>());
    let nested = Schema::stored(&nested).unwrap();
    assert_eq!(nested.check(&wide, 1), Err(NotChecked::TooCostly));
}

#[test]
fn what_is_said_about_a_value_is_bounded() {
    let schema = Schema::new(&json!({"items": {"type": "integer"}})).unwrap();
    let found = schema.check(&json!(vec![json!("x".repeat(10_000)); 1_000]), 20).unwrap();
    assert_eq!(found.len(), 20);
    assert!(found.iter().all(|v| v.says.len() <= VIOLATION_BYTES_MAX + 3));
    assert_eq!((found[3].at.as_str(), found[3].schema.as_str()), ("/3", "/items/type"));
}

#[test]
fn names_that_can_be_missing_and_long_patterns_are_counted() {
    let names: Vec<String> = (0..1_000).map(|n| format!("n{n}")).collect();
    let schema = Schema::new(&json!({"items": {"required": names}})).unwrap();
    let few: Vec<Value> = vec![json!({}); 10];
    assert_eq!(schema.check(&json!(few), 3).unwrap().len(), 3);
    let many: Vec<Value> = vec![json!({}); 2_000];
    assert_eq!(schema.check(&json!(many), 3), Err(NotChecked::TooCostly));
    let long = format!("[{}]", "a".repeat(PATTERN_LENGTH_MAX));
    assert!(matches!(Schema::new(&json!({"pattern": long})), Err(SchemaError::Pattern { .. })));
    let schema = Schema::new(&json!({"items": {"pattern": format!("[{}]", "a".repeat(4_000))}}));
    let texts: Vec<Value> = vec![json!(""); 100_000];
    assert_eq!(schema.unwrap().check(&json!(texts), 1), Err(NotChecked::TooCostly));
}
