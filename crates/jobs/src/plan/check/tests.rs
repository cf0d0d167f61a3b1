//! One test per problem: a plan that has it, where it is, and what is said.

use super::super::limits;
use super::*;
use proptest::prelude::*;
use serde_json::json;

fn library() -> Library {
    let text = json!({"type": "string"});
    let ref_and_price = json!({
        "type": "object",
        "properties": {"ref": text, "price": {"type": "number"}, "tags": {"type": "array", "items": text}},
        "required": ["ref"], "additionalProperties": false
    });
    let book = json!({
        "type": "object",
        "properties": {"to": text, "seats": {"type": "integer", "minimum": 1}, "how": {"$ref": "#/$defs/How"}},
        "required": ["to"], "additionalProperties": false,
        "$defs": {"How": {"type": "object", "properties": {"fast": {"type": "boolean"}}, "required": ["fast"]}}
    });
    let tool = |input: Value, output: Value| Schemas { input, output };
    Library {
        tools: BTreeMap::from([
            ("book".into(), tool(book, ref_and_price)),
            ("any".into(), tool(Value::Null, Value::Null)),
            (
                "mail".into(),
                tool(json!({"type": "object", "properties": {"text": text}}), Value::Null),
            ),
        ]),
        flows: BTreeMap::from([
            (
                "trip".into(),
                BTreeMap::from([(2, tool(json!({"type": "string"}), json!({"type": "integer"})))]),
            ),
            (
                super::super::FLOW.into(),
                BTreeMap::from([(1, tool(super::super::flow().input_schema, Value::Null))]),
            ),
        ]),
    }
}

fn steps(steps: Value) -> Value {
    json!({"version": 1, "steps": steps})
}

fn all(plan: Value) -> Vec<Problem> {
    check(&plan.into(), Some(&library())).err().unwrap_or_default()
}

/// The one problem of this plan.
fn one(plan: Value) -> (Wrong, String, String) {
    let found = all(plan);
    assert_eq!(found.len(), 1, "{found:#?}");
    let Problem { at, wrong, what, fix } = found.into_iter().next().unwrap();
    (wrong, at, format!("{what} / {fix}"))
}

#[test]
fn a_good_plan_passes() {
    let plan =
        serde_json::from_str::<Value>(include_str!("../../../tests/plans/trip.json")).unwrap();
    assert_eq!(check(&plan.into(), None).err(), None);
    let plan = steps(json!({
        "a": {"tool": "book", "input": {"to": "${{ input.city }}", "seats": 2, "how": {"fast": true}}},
        "b": {"tool": "mail", "input": {"text": "${{ steps.a.output.ref }}"}},
        "c": {"job": {"flow": "trip", "input": "${{ steps.a.output.tags[0] }}"}},
        "d": {"tool": "book", "for_each": "steps.a.output.tags", "input": {"to": "${{ item }}", "seats": "${{ index }}"}},
        "e": {"tool": "mail", "input": {"text": "${{ steps.d.output[0].ref }}"}}
    }));
    assert_eq!(all(plan), []);
}

#[test]
fn every_problem_is_told_at_once() {
    let found = all(json!({"version": 2, "stpes": {}, "steps": {
        "a": {"tool": "bok", "input": {"x": "${{ steps.b.otput }}", "y": "${{ input."}},
        "b": {"tool": "any", "after": ["c"], "retrys": 1, "input": "${{ 1 + }}"},
        "c": {"tool": "any", "after": ["b"]},
        "d": {"tool": "book", "for_each": "steps.a.output +", "undo": {"tool": "unbook"},
            "input": {"to": "${{ item }}", "saets": 1, "how": {"slow": "${{ steps.e.output }}"}}}}}));
    assert!(found.iter().all(|p| !p.what.is_empty() && !p.fix.is_empty()));
    let found: Vec<_> = found.iter().map(|p| (p.at.as_str(), p.wrong)).collect();
    assert_eq!(
        found,
        [
            ("/steps/a/input/x", Wrong::UnknownName),
            ("/steps/a/input/y", Wrong::Syntax),
            ("/steps/a/tool", Wrong::UnknownTool),
            ("/steps/b", Wrong::Cycle),
            ("/steps/b/input", Wrong::Syntax),
            ("/steps/b/retrys", Wrong::UnknownField),
            ("/steps/d/for_each", Wrong::Syntax),
            ("/steps/d/input/how", Wrong::Schema),
            ("/steps/d/input/how/slow", Wrong::UnknownStep),
            ("/steps/d/input/saets", Wrong::Schema),
            ("/steps/d/undo/tool", Wrong::UnknownTool),
            ("/stpes", Wrong::UnknownField),
            ("/version", Wrong::Shape),
        ]
    );
}

#[test]
fn a_plan_that_is_too_large_is_not_looked_at() {
    let long = |n: usize| "x".repeat(n);
    let found =
        all(steps(json!({long(140_000): {"value": 1, "after": [long(139_999)]}, "b": {"tol": 1}})));
    let found: Vec<_> = found.iter().map(|p| (p.at.as_str(), p.wrong)).collect();
    assert_eq!(found, [("", Wrong::Limit)]);
}

#[test]
fn names_that_nobody_can_use_are_told_shortened_and_not_compared() {
    let long = |n: usize| "x".repeat(n);
    let found = all(steps(
        json!({long(100_000): {"value": 1}, "b": {"value": 1, "after": [long(99_999)]}}),
    ));
    let kinds: Vec<Wrong> = found.iter().map(|p| p.wrong).collect();
    assert_eq!(kinds, [Wrong::UnknownStep, Wrong::Shape]);
    assert_eq!(found[0].fix, "name a step of this plan");
    let bytes: usize = found.iter().map(|p| p.at.len() + p.what.len() + p.fix.len()).sum();
    assert!(bytes < 8 * limits::PROBLEM_BYTES_MAX, "{bytes}");
    // However many there are, only those are compared with others that are listed.
    let many: Vec<String> = (0..20_000).map(|i| format!("u{i}")).collect();
    let found = all(steps(json!({"a": {"value": 1, "after": many}})));
    assert_eq!(found.len(), limits::PROBLEMS_MAX + 1);
    assert!(found.last().is_some_and(|p| p.what.starts_with("and 19800 more")));
}

#[test]
fn a_schema_without_end_is_answered() {
    let mut plan = steps(json!({"a": {"job": {"flow": "plan", "input": "${{ input }}"}}}));
    plan["input_schema"] = json!({"anyOf": [{"$ref": "#"}, {"type": "string"}]});
    assert_eq!(all(plan.clone()), []);
    let read = check(&plan.clone().into(), None).unwrap();
    let found = check_input(&read, &json!("x"));
    assert_eq!(found.iter().map(|p| p.wrong).collect::<Vec<_>>(), [Wrong::Limit]);
    let chain = |n: usize| {
        let next = |i: usize| json!({"$ref": format!("#/$defs/a{}", i + 1)});
        let mut defs: serde_json::Map<String, Value> =
            (1..n).map(|i| (format!("a{i}"), next(i))).collect();
        defs.insert(format!("a{n}"), json!({"type": "object", "required": ["plan"]}));
        json!({"$ref": "#/$defs/a1", "$defs": defs})
    };
    plan["input_schema"] = chain(tenure_schema::REFERENCES_MAX);
    assert_eq!(all(plan.clone()), []);
    let read = check(&plan.clone().into(), None).unwrap();
    assert_eq!(check_input(&read, &json!({"plan": 1})), []);
    assert_eq!(check_input(&read, &json!({})).len(), 1);
    plan["input_schema"] = chain(tenure_schema::REFERENCES_MAX + 1);
    let (wrong, at, _) = one(plan);
    assert_eq!((wrong, at.as_str()), (Wrong::Limit, "/input_schema"));
}

#[test]
fn what_schemas_know_about_the_kinds_of_references_is_told() {
    let typed = |step: Value| {
        let mut plan = steps(json!({"x": {"tool": "book", "input": {"to": "Rome"}}, "a": step}));
        plan["input_schema"] = json!({"type": "object", "properties": {
            "n": {"type": "integer"}, "s": {"type": ["string", "null"]}, "list": {"type": "array"}}});
        plan
    };
    for (step, at, says) in [
        (json!({"value": 1, "for_each": "input.n"}), "/steps/a/for_each", "gives integer"),
        (
            json!({"value": 1, "for_each": {"items": "steps.x.output"}}),
            "/steps/a/for_each/items",
            "wants array",
        ),
        (json!({"sleep": {"seconds": "${{ input.s }}"}}), "/steps/a/sleep/seconds", "wants number"),
        (json!({"value": "${{ steps.x.status.code }}"}), "/steps/a/value", "member `code`"),
        (
            json!({"value": ["${{ input.n.m }}"]}),
            "/steps/a/value/0",
            "member `m` in what is integer",
        ),
        (json!({"value": {"k": "${{ input.s[0] }}"}}), "/steps/a/value/k", "item 0"),
        (
            json!({"value": "${{ index.x }}", "for_each": "input.list"}),
            "/steps/a/value",
            "member `x`",
        ),
    ] {
        let (wrong, found, said) = one(typed(step));
        assert_eq!((wrong, found.as_str()), (Wrong::Schema, at), "{said}");
        assert!(said.contains(says), "{said}");
    }
    for step in [
        json!({"value": 1, "for_each": "input.list"}),
        json!({"value": 1, "for_each": "input.other"}),
        json!({"sleep": {"seconds": "${{ input.n }}"}}),
        json!({"value": "${{ item.x }}", "for_each": "item"}),
    ] {
        let told = all(typed(step));
        assert!(told.iter().all(|p| p.wrong != Wrong::Schema), "{told:?}");
    }
}

#[test]
fn tools_and_flows_whose_schema_is_not_known_are_listed() {
    let plan = steps(json!({
        "a": {"tool": "book", "input": {"to": "Rome"}, "undo": {"tool": "any", "input": 1}},
        "b": {"tool": "any"},
        "c": {"job": {"flow": "trip", "input": "x"}}
    }));
    let mut library = library();
    let plan = check(&plan.into(), Some(&library)).unwrap();
    assert_eq!(unchecked(&plan, &library), ["the tool any"]);
    library.flows.get_mut("trip").unwrap().insert(3, Schemas::default());
    assert_eq!(unchecked(&plan, &library), ["the flow trip", "the tool any"]);
}

#[test]
fn steps_that_wait_for_each_other_are_named_in_order() {
    let (wrong, at, said) = one(steps(json!({
        "a": {"value": "${{ steps.c.output }}"},
        "b": {"value": "${{ steps.a.output }}"},
        "c": {"value": 1, "after": ["b"]},
        "d": {"value": "${{ steps.a.output }}"}
    })));
    assert_eq!((wrong, at.as_str()), (Wrong::Cycle, "/steps/a"));
    assert!(said.contains("a → b → c → a"), "{said}");
}

#[test]
fn an_unknown_step_is_told_with_the_nearest_name() {
    let (wrong, at, said) =
        one(steps(json!({"fetch": {"value": 1}, "b": {"value": "${{ steps.fech.output }}"}})));
    assert_eq!((wrong, at.as_str()), (Wrong::UnknownStep, "/steps/b/value"));
    assert!(said.contains("`fetch`"), "{said}");
    let (wrong, at, _) = one(steps(json!({"a": {"value": 1, "after": ["zzzzzzz"]}})));
    assert_eq!((wrong, at.as_str()), (Wrong::UnknownStep, "/steps/a/after/0"));
    let mut plan = steps(json!({"a": {"value": 1}}));
    plan["output"] = json!("${{ steps.q.output }}");
    let (wrong, at, _) = one(plan);
    assert_eq!((wrong, at.as_str()), (Wrong::UnknownStep, "/output"));
}

#[test]
fn a_path_of_the_output_into_a_closed_schema_is_found_before_anything_runs() {
    let mut plan = steps(json!({"flight": {"tool": "book", "input": {"to": "Oslo"}}}));
    plan["output"] = json!({"is": ["${{ steps.flight.output.reff }}"]});
    let (wrong, at, said) = one(plan.clone());
    assert_eq!((wrong, at.as_str()), (Wrong::Schema, "/output/is/0"));
    assert!(said.contains("`ref`"), "{said}");
    plan["output"] =
        json!({"is": ["${{ steps.flight.output.ref }}", "${{ steps.flight.status }}"]});
    assert_eq!(all(plan.clone()), []);
    plan["input_schema"] =
        json!({"type": "object", "properties": {"n": {}}, "additionalProperties": false});
    plan["output"] = json!("${{ input.m }}");
    let (wrong, at, _) = one(plan);
    assert_eq!((wrong, at.as_str()), (Wrong::Schema, "/output"));
}

#[test]
fn a_plan_that_is_written_out_inside_of_a_plan_is_checked_as_well() {
    let within = |job: Value| steps(json!({"a": {"job": {"flow": "plan", "input": job}}}));
    let inner = steps(json!({
        "x": {"tool": "bok", "input": {"to": "Oslo"}},
        "y": {"value": "$${{ steps.z.output }}"}
    }));
    let expected = [
        ("/steps/a/job/input/plan/steps/x/tool", Wrong::UnknownTool),
        ("/steps/a/job/input/plan/steps/y/value", Wrong::UnknownStep),
    ];
    // Also where its input is not known yet, and two plans deep.
    for job in [json!({"plan": inner}), json!({"plan": inner, "input": "${{ input.n }}"})] {
        let found = all(within(job));
        let found: Vec<_> = found.iter().map(|p| (p.at.as_str(), p.wrong)).collect();
        assert_eq!(found, expected);
    }
    let deep =
        all(within(json!({"plan": within(json!({"plan": steps(json!({"x": {"tool": "bok"}}))}))})));
    let at = "/steps/a/job/input/plan/steps/a/job/input/plan/steps/x/tool";
    assert_eq!(deep.iter().map(|p| p.at.as_str()).collect::<Vec<_>>(), [at]);
    // What an expression gives is checked by the inner job.
    assert_eq!(all(within(json!({"plan": "${{ input.plan }}"}))), []);
    let mut typed = steps(json!({"x": {"value": "$${{ input.n }}"}}));
    assert_eq!(all(within(json!({"plan": typed, "input": {"n": 1}}))), []);
    typed["input_schema"] = json!({"type": "object", "required": ["n"]});
    let (wrong, at, _) = one(within(json!({"plan": typed})));
    assert_eq!((wrong, at.as_str()), (Wrong::Schema, "/steps/a/job/input/input"));
    assert_eq!(all(within(json!({"plan": typed, "input": "${{ input }}"}))), []);
}

#[test]
fn the_flow_that_acts_on_many_jobs_is_no_part_of_a_plan() {
    let (wrong, at, said) = one(steps(json!({"a": {"job": {"flow": "bulk", "input": {}}}})));
    assert_eq!((wrong, at.as_str()), (Wrong::UnknownFlow, "/steps/a/job/flow"));
    assert!(said.contains("/v1/jobs/bulk"), "{said}");
}

#[test]
fn a_step_can_not_refer_to_itself() {
    let (wrong, at, said) = one(steps(json!({"a": {"value": "${{ steps.a.output }}"}})));
    assert_eq!((wrong, at.as_str()), (Wrong::SelfReference, "/steps/a/value"));
    assert!(said.contains("`output`"), "{said}");
}

#[test]
fn unknown_tools_and_flows_are_told_against_the_catalogue_and_not_without_one() {
    let plan = steps(json!({"a": {"tool": "boook"}}));
    assert!(check(&plan.clone().into(), None).is_ok());
    let (wrong, at, said) = one(plan);
    assert_eq!((wrong, at.as_str()), (Wrong::UnknownTool, "/steps/a/tool"));
    assert!(said.contains("\"book\""), "{said}");
    let (wrong, at, _) = one(steps(json!({"a": {"llm": {"prompt": "x"}}})));
    assert_eq!((wrong, at.as_str()), (Wrong::UnknownTool, "/steps/a/llm"));
    let (wrong, at, _) =
        one(steps(json!({"a": {"tool": "any", "undo": {"tool": "unbook", "input": 1}}})));
    assert_eq!((wrong, at.as_str()), (Wrong::UnknownTool, "/steps/a/undo/tool"));
    let (wrong, at, _) = one(steps(json!({"a": {"job": {"flow": "tripp", "input": "x"}}})));
    assert_eq!((wrong, at.as_str()), (Wrong::UnknownFlow, "/steps/a/job/flow"));
    let (wrong, at, said) = one(steps(json!({"a": {"job": {"flow": "trip", "version": 1}}})));
    assert_eq!((wrong, at.as_str()), (Wrong::UnknownFlow, "/steps/a/job/version"));
    assert!(said.contains("[2]"), "{said}");
}

#[test]
fn names_are_only_where_they_mean_something() {
    let (wrong, at, _) = one(steps(json!({"a": {"value": "${{ item }}"}})));
    assert_eq!((wrong, at.as_str()), (Wrong::UnknownName, "/steps/a/value"));
    let (wrong, at, _) =
        one(steps(json!({"a": {"value": "${{ item }}", "for_each": [1], "when": "index > 0"}})));
    assert_eq!((wrong, at.as_str()), (Wrong::UnknownName, "/steps/a/when"));
    let (wrong, at, _) = one(steps(json!({"a": {"value": "${{ output }}"}})));
    assert_eq!((wrong, at.as_str()), (Wrong::UnknownName, "/steps/a/value"));
    let mut plan = steps(json!({"a": {"value": 1}}));
    plan["output"] = json!("${{ item }}");
    assert_eq!(one(plan).0, Wrong::UnknownName);
}

#[test]
fn literals_are_checked_in_full() {
    let (wrong, at, said) =
        one(steps(json!({"a": {"tool": "book", "input": {"to": "Rome", "seats": 0}}})));
    assert_eq!((wrong, at.as_str()), (Wrong::Schema, "/steps/a/input/seats"));
    assert!(said.contains("minimum"), "{said}");
    // Also those beside references, and behind a `$ref`.
    let input =
        json!({"to": "${{ input.x }}", "seats": "two", "how": {"fast": 1, "x": "${{ input.y }}"}});
    let found = all(steps(json!({"a": {"tool": "book", "input": input}})));
    let at: Vec<&str> = found.iter().map(|p| p.at.as_str()).collect();
    assert_eq!(at, ["/steps/a/input/how/fast", "/steps/a/input/seats"]);
}

#[test]
fn references_are_compared_with_the_schema_of_what_they_are_given_to() {
    let given = |reference: &str| {
        one(steps(json!({
            "a": {"tool": "book", "input": {"to": "x"}},
            "b": {"tool": "book", "input": {"to": "x", "seats": reference}}})))
    };
    let (wrong, at, said) = given("${{ steps.a.output.ref }}");
    assert_eq!((wrong, at.as_str()), (Wrong::Schema, "/steps/b/input/seats"));
    assert!(said.contains("wants integer") && said.contains("gives string"), "{said}");
    let (_, _, said) = given("${{ steps.a.output.prise }}");
    assert!(said.contains("no `prise`") && said.contains("`price`"), "{said}");
    let (_, _, said) = given("n=${{ input.n }}");
    assert!(said.contains("this is string"), "{said}");
    let (_, _, said) = given("${{ steps.a.status }}");
    assert!(said.contains("gives string"), "{said}");
    let mut plan = steps(json!({"b": {"tool": "book", "input": {"to": "${{ input.n }}"}}}));
    plan["input_schema"] = json!({"properties": {"n": {"type": "integer"}}});
    assert!(one(plan).2.contains("gives integer"));
}

#[test]
fn missing_and_unknown_members_are_told() {
    let (wrong, at, said) =
        one(steps(json!({"a": {"tool": "book", "input": {"seats": "${{ input.n }}"}}})));
    assert_eq!((wrong, at.as_str()), (Wrong::Schema, "/steps/a/input"));
    assert!(said.contains("`to`"), "{said}");
    let (_, at, said) =
        one(steps(json!({"a": {"tool": "book", "input": {"to": "${{ input.n }}", "saets": 1}}})));
    assert_eq!(at, "/steps/a/input/saets");
    assert!(said.contains("`seats`"), "{said}");
}

#[test]
fn a_step_is_exactly_one_thing() {
    assert_eq!(one(steps(json!({"a": {}}))).0, Wrong::Shape);
    let (wrong, at, said) = one(steps(json!({"a": {"value": 1, "sleep": {"seconds": 1}}})));
    assert_eq!((wrong, at.as_str()), (Wrong::Shape, "/steps/a"));
    assert!(said.contains("sleep, value"), "{said}");
}

#[test]
fn values_of_the_wrong_form_are_told_with_what_is_allowed() {
    for (step, at) in [
        (json!({"sleep": {"seconds": -1}}), "/steps/a/sleep/seconds"),
        (json!({"sleep": {}}), "/steps/a/sleep"),
        (json!({"sleep": {"seconds": "60"}}), "/steps/a/sleep/seconds"),
        (json!({"sleep": {"seconds": "${{ input.n }}0"}}), "/steps/a/sleep/seconds"),
        (json!({"wait": {"for": "aproval"}}), "/steps/a/wait/for"),
        (json!({"wait": {}}), "/steps/a/wait"),
        (json!({"wait": {"for": "signal", "within_seconds": "x"}}), "/steps/a/wait/within_seconds"),
        (json!({"tool": 7}), "/steps/a/tool"),
        (json!({"tool": "any", "class": "safe"}), "/steps/a/class"),
        (json!({"tool": "any", "on_error": "ignore"}), "/steps/a/on_error"),
        (json!({"tool": "any", "retry": {"max": 1.5}}), "/steps/a/retry/max"),
        (json!({"tool": "any", "timeout_seconds": "5"}), "/steps/a/timeout_seconds"),
        (json!({"tool": "any", "after": "b"}), "/steps/a/after"),
        (json!({"tool": "any", "when": true}), "/steps/a/when"),
        (json!({"tool": "any", "for_each": 3}), "/steps/a/for_each"),
        (
            json!({"tool": "any", "for_each": {"items": [], "parallel": 0}}),
            "/steps/a/for_each/parallel",
        ),
        (json!({"tool": "any", "undo": {}}), "/steps/a/undo"),
        (json!({"job": {"input": 1}}), "/steps/a/job"),
        (json!([]), "/steps/a"),
    ] {
        let (wrong, found, said) = one(steps(json!({"a": step})));
        assert_eq!((wrong, found.as_str()), (Wrong::Shape, at), "{said}");
    }
    assert_eq!(one(json!([])).0, Wrong::Shape);
    assert_eq!(one(json!({"version": 1})).0, Wrong::Shape);
    assert_eq!(one(steps(json!({}))).0, Wrong::Shape);
    assert_eq!(one(steps(json!({"a-b": {"value": 1}}))).1, "/steps/a-b");
    let mut plan = steps(json!({"a": {"value": 1}}));
    plan["input_schema"] = json!({"type": "banana"});
    assert_eq!(one(plan).1, "/input_schema");
}

#[test]
fn fields_that_mean_nothing_here_are_told() {
    let (wrong, at, said) = one(steps(json!({"a": {"tool": "any", "inptu": 1}})));
    assert_eq!((wrong, at.as_str()), (Wrong::UnknownField, "/steps/a/inptu"));
    assert!(said.contains("`input`"), "{said}");
    for (step, at) in [
        (json!({"value": 1, "retry": {"max": 1}}), "/steps/a/retry"),
        (json!({"sleep": {"seconds": 1}, "undo": {"tool": "any"}}), "/steps/a/undo"),
        (json!({"job": {"flow": "trip", "input": "x"}, "input": 1}), "/steps/a/input"),
        (json!({"wait": {"for": "signal", "whitin_seconds": 1}}), "/steps/a/wait/whitin_seconds"),
    ] {
        let (wrong, found, _) = one(steps(json!({"a": step})));
        assert_eq!((wrong, found.as_str()), (Wrong::UnknownField, at));
    }
    let timed = |step: Value| {
        let mut step = step;
        step["timeout_seconds"] = json!(5);
        one(steps(json!({"a": step}))).2
    };
    assert!(timed(json!({"wait": {"for": "signal"}})).contains("`within_seconds`"));
    assert!(
        timed(json!({"job": {"flow": "trip", "input": "x"}})).contains("the time that is left")
    );
    let (wrong, at, _) = one(steps(json!({"a": {"value": [{"${{ input.k }}": 1}]}})));
    assert_eq!((wrong, at.as_str()), (Wrong::Syntax, "/steps/a/value/0/${{ input.k }}"));
    assert_eq!(all(steps(json!({"a": {"value": {"$${{ k }}": 1}}}))), []);
}

#[test]
fn keys_that_stand_twice_are_told() {
    let text = r#"{"version": 1, "steps": {"a": {"value": 1}, "a": {"value": 2}}}"#;
    let found = Plan::parse(text).unwrap_err();
    assert_eq!((found[0].wrong, found[0].at.as_str()), (Wrong::DoubledKey, "/steps/a"));
    assert_eq!(Plan::parse("{").unwrap_err()[0].wrong, Wrong::Syntax);
}

#[test]
fn two_waits_of_one_name_are_told() {
    let (wrong, at, _) = one(steps(json!({
        "a": {"wait": {"for": "approval", "name": "b"}}, "b": {"wait": {"for": "signal"}}})));
    assert_eq!((wrong, at.as_str()), (Wrong::DoubledWait, "/steps/b/wait"));
}

#[test]
fn items_that_wait_under_one_name_are_told() {
    let each = |wait: Value, items: Value| json!({"wait": wait, "for_each": items});
    for (name, items) in [
        (json!("ask"), json!([1, 2])),
        (json!("ask"), json!("input.list")),
        (json!("ask ${{ input.who }}"), json!("input.list")),
    ] {
        let wait = json!({"for": "approval", "name": name});
        let (wrong, at, said) = one(steps(json!({"a": each(wait, items)})));
        assert_eq!((wrong, at.as_str()), (Wrong::DoubledWait, "/steps/a/wait"));
        assert!(said.contains("all items"), "{said}");
    }
    let (ask, list) = (json!({"for": "approval"}), json!("input.list"));
    let of_item = json!({"for": "approval", "name": "ask ${{ item }}"});
    let fixed = json!({"for": "approval", "name": "ask"});
    for step in
        [each(ask.clone(), list.clone()), each(of_item, list.clone()), each(fixed, json!([1]))]
    {
        assert_eq!(all(steps(json!({"a": step}))), []);
    }
    // Without a name items wait as `a[0]`, `a[1]`, …, and `a` is free.
    let beside = |name: &str| {
        let other = json!({"wait": {"for": "signal", "name": name}});
        all(steps(json!({"a": each(ask.clone(), list.clone()), "b": other})))
    };
    assert_eq!(beside("a"), []);
    assert_eq!(beside("a[3]").len(), 1);
    assert_eq!(beside("a[3]")[0].wrong, Wrong::DoubledWait);
}

#[test]
fn the_limits_hold_at_the_limit_and_not_past_it() {
    let many = |n: usize| {
        let step = |i: usize| (format!("s{i}"), json!({"value": i}));
        steps(Value::Object((0..n).map(step).collect()))
    };
    assert_eq!(all(many(limits::STEPS_MAX)), []);
    assert_eq!(one(many(limits::STEPS_MAX + 1)).0, Wrong::Limit);
    let large = |bytes: usize| {
        let plan = steps(json!({"a": {"value": ""}}));
        let empty = serde_json::to_vec(&plan).unwrap().len();
        steps(json!({"a": {"value": "x".repeat(bytes - empty)}}))
    };
    assert_eq!(all(large(limits::PLAN_BYTES_MAX)), []);
    assert_eq!(one(large(limits::PLAN_BYTES_MAX + 1)).0, Wrong::Limit);
    let id = |n: usize| steps(json!({"x".repeat(n): {"value": 1}}));
    assert_eq!(all(id(limits::ID_BYTES_MAX)), []);
    assert_eq!(one(id(limits::ID_BYTES_MAX + 1)).0, Wrong::Shape);
    let each =
        |n: usize| steps(json!({"a": {"value": 1, "for_each": {"items": [], "at_most": n}}}));
    assert_eq!(all(each(limits::ITEMS_MAX)), []);
    assert_eq!(one(each(limits::ITEMS_MAX + 1)).0, Wrong::Shape);
    let listed = |n: usize, each: fn(Vec<usize>) -> Value| {
        steps(json!({"a": {"value": 1, "for_each": each((0..n).collect())}}))
    };
    assert_eq!(all(listed(limits::ITEMS_MAX, |list| json!(list))), []);
    assert_eq!(one(listed(limits::ITEMS_MAX + 1, |list| json!(list))).0, Wrong::Limit);
    let two = |list: Vec<usize>| json!({"items": list, "at_most": 2});
    assert_eq!(all(listed(2, two)), []);
    let (wrong, at, _) = one(listed(3, two));
    assert_eq!((wrong, at.as_str()), (Wrong::Limit, "/steps/a/for_each/items"));
    let deep = |n: usize| {
        let mut value = json!("${{ input }}");
        (0..n).for_each(|_| value = json!([value]));
        steps(json!({"a": {"value": value}}))
    };
    assert_eq!(all(deep(limits::DEPTH_MAX)), []);
    assert_eq!(one(deep(limits::DEPTH_MAX + 1)).0, Wrong::Limit);
}

#[test]
fn the_input_of_a_job_is_checked_against_its_plan() {
    let text = include_str!("../../../tests/plans/trip.json");
    let plan = Plan::parse(text).unwrap();
    assert_eq!(check_input(&plan, &json!({"from": "a", "to": "b", "guests": []})), []);
    let found = check_input(&plan, &json!({"from": "a", "guests": [7]}));
    assert_eq!(found.len(), 2, "{found:?}");
}

/// Any JSON, with words of plans in it.
fn anything() -> impl Strategy<Value = Value> {
    let word = prop::sample::select(vec![
        "version",
        "steps",
        "a",
        "b",
        "tool",
        "value",
        "after",
        "when",
        "for_each",
        "items",
        "undo",
        "input",
        "${{ steps.a.output }}",
        "${{ item",
        "${{ input.x | lenght }}",
        "wait",
        "for",
        "approval",
        "sleep",
        "seconds",
        "job",
        "flow",
        "output",
        "retry",
        "max",
        "any",
        "book",
        "on_error",
        "llm",
        "name",
    ]);
    let word = word.prop_map(str::to_owned);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0..3i64).prop_map(Value::from),
        word.clone().prop_map(Value::from)
    ];
    leaf.prop_recursive(5, 48, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(word.clone(), inner, 0..5)
                .prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn whatever_is_given_is_answered_and_a_plan_that_passes_has_no_circle(
        steps in prop::collection::btree_map("[ab]", anything(), 0..3)
    ) {
        let steps = Value::Object(steps.into_iter().collect());
        match check(&json!({"version": 1, "steps": steps}).into(), Some(&library())) {
            Ok(plan) => {
                let graph = super::super::show::graph(&plan);
                prop_assert_eq!(graph.layers.iter().map(Vec::len).sum::<usize>(), plan.steps.len());
            }
            Err(problems) => prop_assert!(!problems.is_empty()),
        }
    }
}
