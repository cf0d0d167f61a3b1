//! What holds for every object and every order of objects.

use super::cases::{all, moment};
use k8s_openapi::api::core::v1::Pod;
use proptest::{prelude::*, sample::Index};
use serde_json::Value;
use std::{sync::LazyLock, time::Duration};
use tenure_kernel::time::Timestamp;
use tenure_pods::verdict::{
    Departure, Gone, Policy, TaskStatus, Verdict, say, verdict, verdict_of_deleted, verdict_on,
};

/// Pods of the fixtures, as JSON, with a time at which they make sense.
static PODS: LazyLock<Vec<(Value, Timestamp)>> = LazyLock::new(|| {
    let pods = all().into_iter();
    pods.map(|c| (serde_json::to_value(&c.pod).unwrap(), moment(&c.at[0].now))).collect()
});

fn pod(of: &Value) -> Pod {
    serde_json::from_value(of.clone()).unwrap()
}

/// Every place in an object that can be taken away.
fn places(of: &Value, at: String, out: &mut Vec<String>) {
    match of {
        Value::Object(fields) => {
            for (key, value) in fields {
                let place = format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"));
                out.push(place.clone());
                places(value, place, out);
            }
        }
        Value::Array(items) => {
            for (i, value) in items.iter().enumerate() {
                out.push(format!("{at}/{i}"));
                places(value, format!("{at}/{i}"), out);
            }
        }
        _ => {}
    }
}

fn take_away(from: &mut Value, place: &str) {
    let Some((parent, key)) = place.rsplit_once('/') else { return };
    match from.pointer_mut(parent) {
        Some(Value::Object(fields)) => {
            fields.remove(&key.replace("~1", "/").replace("~0", "~"));
        }
        Some(Value::Array(items)) => {
            if let Ok(i) = key.parse::<usize>()
                && i < items.len()
            {
                items.remove(i);
            }
        }
        _ => {}
    }
}

/// A fixture's pod with some of its fields gone, or with parts of another's.
fn maimed(which: &Index, other: &Index, cuts: &[Index], mix: u8) -> (Pod, Timestamp) {
    let (mut object, now) = which.get(&PODS).clone();
    let (second, _) = other.get(&PODS);
    for (bit, part) in ["/status", "/metadata", "/spec"].iter().enumerate() {
        if mix & (1 << bit) != 0
            && let (Some(here), Some(there)) = (object.pointer_mut(part), second.pointer(part))
        {
            *here = there.clone();
        }
    }
    for cut in cuts {
        let mut all = Vec::new();
        places(&object, String::new(), &mut all);
        if !all.is_empty() {
            let place: &String = cut.get(&all);
            take_away(&mut object, place);
        }
    }
    // Whatever is left has to be a pod still: the API server would not give us less.
    (serde_json::from_value(object).unwrap_or_default(), now)
}

fn runs_well(pod: &Pod, said: &Verdict) -> bool {
    said.status == Some(TaskStatus::Running)
        && pod.metadata.deletion_timestamp.is_none()
        && ["main/running", "phase/Running"].contains(&said.rule.as_str())
}

/// What the collector does with one object: hears it, then waits as long as it is told to.
fn settles(pod: &Pod, mut said: Verdict, policy: &Policy) -> Result<(), TestCaseError> {
    for _ in 0..20 {
        if said.is_final() {
            prop_assert!(said.next_check_at.is_none(), "final, and still waiting: {said:?}");
            return Ok(());
        }
        let Some(at) = said.next_check_at else {
            let gated = said.rule == "scheduling/SchedulingGated";
            prop_assert!(gated || runs_well(pod, &said), "hangs: {said:?}");
            return Ok(());
        };
        let next = verdict(pod, Some(&said), at, policy);
        prop_assert!(
            next.is_final() || next.next_check_at.is_none_or(|then| then > at),
            "stands still at {at}: {said:?} then {next:?}"
        );
        said = next;
    }
    Err(TestCaseError::fail(format!("never settles: {said:?}")))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn every_object_has_an_answer_and_no_silence_lasts_for_ever(
        which in any::<Index>(), other in any::<Index>(),
        cuts in prop::collection::vec(any::<Index>(), 0..12), mix in 0u8..8,
        shift in -100_000i64..100_000,
    ) {
        let (pod, now) = maimed(&which, &other, &cuts, mix);
        let now = Timestamp::from_micros(now.as_micros() + shift * 1_000_000);
        let policy = Policy::default();
        let said = verdict(&pod, None, now, &policy);
        prop_assert!(!say(&said).is_empty());
        prop_assert_eq!(said.cause.is_some(), matches!(said.status, Some(TaskStatus::Failed | TaskStatus::Canceled)));
        prop_assert_eq!(said.class.is_some(), said.cause.is_some());
        if let Some(at) = said.next_check_at {
            prop_assert!(at > now, "{at} is not after {now}: {said:?}");
        }
        settles(&pod, said, &policy)?;
        for gone in [Gone::Event, Gone::Absent, Gone::Missing] {
            match verdict_of_deleted(&pod, gone, None, now, &policy, None) {
                Departure::Ended(v) => prop_assert!(v.is_final(), "gone, and not final: {:?}", v),
                _ => prop_assert!(gone != Gone::Missing && pod.metadata.deletion_timestamp.is_none()),
            }
        }
    }

    #[test]
    fn a_final_verdict_is_never_unsaid(
        objects in prop::collection::vec((any::<Index>(), any::<Index>(), prop::collection::vec(any::<Index>(), 0..4), 0u8..8, 0u64..4_000, 0u8..8), 1..12),
    ) {
        let policy = Policy::default();
        let mut last: Option<Verdict> = None;
        let mut now = moment("2026-08-01T10:00:00Z");
        for (which, other, cuts, mix, wait, how) in objects {
            let (pod, _) = maimed(&which, &other, &cuts, mix);
            now = now + Duration::from_secs(wait);
            let node = tenure_pods::verdict::NodeView::MISSING;
            let said = match how {
                0 => match verdict_of_deleted(&pod, Gone::Missing, last.as_ref(), now, &policy, None) {
                    Departure::Ended(v) => v,
                    other => return Err(TestCaseError::fail(format!("{other:?}"))),
                },
                1 => verdict_on(&pod, last.as_ref(), now, &policy, Some(&node)),
                _ => verdict(&pod, last.as_ref(), now, &policy),
            };
            // The same object again says the same.
            if how > 1 {
                let again = verdict(&pod, Some(&said), now, &policy);
                prop_assert_eq!((again.status, again.cause), (said.status, said.cause), "{:?} then {:?}", said, again);
            }
            if let Some(last) = last.as_ref().filter(|l| l.is_final()) {
                prop_assert_eq!(said.status, last.status);
                prop_assert_eq!(said.cause, last.cause);
                prop_assert_eq!(&said.rule, &last.rule);
                prop_assert_eq!(said.since, last.since);
                if last.exit_code.is_some() {
                    prop_assert_eq!((said.exit_code, &said.container), (last.exit_code, &last.container));
                }
            }
            // A task that was seen running is not unsaid to have started.
            if let Some(last) = &last {
                prop_assert!(!last.started || said.started || last.is_final());
            }
            last = Some(said);
        }
    }

    /// Old and new objects of one pod in any order, at moments of any distance.
    #[test]
    fn a_verdict_survives_the_store(which in any::<Index>()) {
        let (object, now) = which.get(&PODS);
        let said = verdict(&pod(object), None, *now, &Policy::default());
        let text = serde_json::to_string(&said).unwrap();
        prop_assert_eq!(said, serde_json::from_str::<Verdict>(&text).unwrap());
    }
}

/// Whatever a container writes, a verdict stays small.
#[test]
fn a_message_is_cut_at_its_bound_and_not_within_a_letter() {
    use tenure_pods::verdict::MESSAGE_MAX;
    let case = all().into_iter().find(|c| c.name == "an exit code of its own").unwrap();
    for (len, kept) in [(MESSAGE_MAX, MESSAGE_MAX), (MESSAGE_MAX + 1, MESSAGE_MAX)] {
        let mut pod = case.pod.clone();
        let statuses = pod.status.as_mut().unwrap().container_statuses.as_mut().unwrap();
        let end = statuses[0].state.as_mut().unwrap().terminated.as_mut().unwrap();
        end.message = Some("x".repeat(len));
        let said = verdict(&pod, None, moment(&case.at[0].now), &case.policy);
        assert_eq!(said.message.len(), kept);
    }
    let mut pod = case.pod.clone();
    let statuses = pod.status.as_mut().unwrap().container_statuses.as_mut().unwrap();
    let end = statuses[0].state.as_mut().unwrap().terminated.as_mut().unwrap();
    end.message = Some("\u{f6}".repeat(4_096));
    let said = verdict(&pod, None, moment(&case.at[0].now), &case.policy);
    assert!(said.message.len() <= MESSAGE_MAX && said.message.ends_with('…'));
}
