//! What is left out of a pod must not change what is said of it.

use crate::verdict::cases::{all, moment};
use tenure_pods::follow::LeanPod;

#[test]
fn a_lean_pod_and_one_that_was_remembered_are_judged_as_the_whole_one() {
    let mut judged = 0;
    for mut case in all() {
        let whole: Vec<_> = case.at.iter().map(|s| case.said(moment(&s.now))).collect();
        let text = serde_json::to_string(&case.pod).unwrap();
        let lean: LeanPod = serde_json::from_str(&text).unwrap();
        let remembered = LeanPod::recall(&lean.remember(&case.policy.cancel_annotation));
        for (how, pod) in [("lean", lean), ("remembered", remembered)] {
            case.pod = *pod.0;
            let said: Vec<_> = case.at.iter().map(|s| case.said(moment(&s.now))).collect();
            assert_eq!(said, whole, "{how}: {}", case.name);
            judged += said.len();
        }
    }
    assert!(judged > 100, "{judged}");
}
