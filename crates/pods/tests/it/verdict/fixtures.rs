//! A fixture for every row of the table.

use super::cases::{all, moment, shown};
use serde_json::Value;
use std::collections::BTreeSet;
use tenure_pods::verdict::TABLE;

#[test]
fn every_fixture_says_what_it_should() {
    let mut wrong = Vec::new();
    for case in all() {
        for step in &case.at {
            let rule = step.rule.as_ref().unwrap_or(&case.rule);
            let said = match case.said(moment(&step.now)) {
                Ok(verdict) => verdict,
                Err(departure) => {
                    if departure != rule {
                        wrong.push(format!("{}: {departure}, not {rule}", case.name));
                    }
                    continue;
                }
            };
            let said = shown(&said);
            let mut differ: Vec<String> = step
                .expect
                .iter()
                .filter(|(key, value)| said.get(*key).unwrap_or(&Value::Null) != *value)
                .map(|(key, value)| {
                    format!("{key} is {}, not {value}", said.get(key).unwrap_or(&Value::Null))
                })
                .collect();
            if said["rule"] != **rule {
                differ.push(format!("rule is {}, not {rule}", said["rule"]));
            }
            if !differ.is_empty() {
                wrong.push(format!("{} at {}: {}", case.name, step.now, differ.join("; ")));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_row_has_a_fixture() {
    let cases = all();
    let shown: BTreeSet<&str> = cases
        .iter()
        .flat_map(|c| c.at.iter().map(|s| s.rule.as_deref().unwrap_or(&c.rule)).collect::<Vec<_>>())
        .collect();
    let without: Vec<&str> =
        TABLE.iter().map(|r| r.id.as_str()).filter(|id| !shown.contains(id)).collect();
    assert!(without.is_empty(), "rows without a fixture: {without:?}");
}

#[test]
fn fixtures_have_names_of_their_own() {
    let cases = all();
    let names: BTreeSet<&str> = cases.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names.len(), cases.len());
}
