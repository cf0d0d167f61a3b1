//! What an operator may say, and what is refused.

use super::cases::all;
use serde_json::json;
use tenure_kernel::time::Timestamp;
use tenure_pods::verdict::{Cause, CauseClass, Policy, verdict};

fn refused(policy: serde_json::Value) -> String {
    serde_json::from_value::<Policy>(policy).expect_err("it is refused").to_string()
}

#[test]
fn what_is_unknown_or_makes_no_sense_is_refused_with_its_name() {
    assert!(refused(json!({"start_timeout": 5})).contains("start_timeout"));
    let row = |row| refused(json!({ "reasons": [row] }));
    assert!(row(json!({"where": "waiting", "reason": "X", "cause": "oops"})).contains("oops"));
    let unknown = row(json!({"where": "waiting", "reason": "X", "cause": "config", "grcae": 1}));
    assert!(unknown.contains("grcae"), "{unknown}");
    assert!(row(json!({"where": "rule", "reason": "X", "cause": "config"})).contains("rule"));
    assert!(row(json!({"where": "waiting", "reason": "", "cause": "config"})).contains("reason"));
    assert!(row(json!({"where": "waiting", "reason": "A*B", "cause": "config"})).contains("A*B"));
    let code = json!({"where": "status", "reason": "X", "cause": "config", "exit_codes": [1]});
    assert!(row(code).contains("exit_codes"));
    let grace = json!({"where": "status", "reason": "X", "cause": "config", "grace_seconds": 1});
    assert!(row(grace).contains("grace_seconds"));
    let cancel = json!({"where": "status", "reason": "X", "cause": "user_cancel"});
    assert!(row(cancel).contains("cancellation"));
    let empty = json!({"where": "status", "reason": "X", "cause": "config", "message": ["*"]});
    assert!(row(empty).contains("message"));
}

#[test]
fn a_policy_is_read_back_as_it_was_written() {
    let text = json!({"main": "work", "reasons": [
        {"id": "acme-gpu", "where": "status", "reason": "OutOfnvidia*", "cause": "rejected_device", "class": "config", "retryable": false},
    ]});
    let policy: Policy = serde_json::from_value(text).unwrap();
    let again: Policy = serde_json::from_value(serde_json::to_value(&policy).unwrap()).unwrap();
    assert_eq!(policy, again);
}

#[test]
fn a_row_of_the_operator_goes_before_the_table() {
    let policy: Policy = serde_json::from_value(json!({"reasons": [
        {"id": "acme-gpu", "where": "status", "reason": "OutOfnvidia*", "cause": "rejected_device", "class": "config", "retryable": false, "detail": "gpu"},
    ]})).unwrap();
    let gpu = all().into_iter().find(|c| c.name.contains("nvidia")).unwrap();
    let said = verdict(&gpu.pod, None, Timestamp::ZERO, &policy);
    assert_eq!(said.rule, "acme-gpu");
    assert_eq!(said.cause, Some(Cause::RejectedDevice));
    assert_eq!(said.class, Some(CauseClass::Config));
    assert!(!said.retryable);
    assert_eq!(said.detail.as_deref(), Some("gpu"));
    let cpu = all().into_iter().find(|c| c.name.contains("OutOfcpu")).unwrap();
    let said = verdict(&cpu.pod, None, Timestamp::ZERO, &policy);
    assert_eq!(said.cause, Some(Cause::RejectedCapacity));
}
