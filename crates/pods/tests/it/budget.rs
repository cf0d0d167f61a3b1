//! What a tenant's retries may cost together: the storm.

use crate::world::{Seen, World, secs};
use tenure_pods::{
    budget::{BudgetTerms, SET, budget_id, model::BudgetSet},
    verdict::{Cause, CauseClass},
};

/// Two hundred tasks fail at once, and are all retried, no faster than the budget allows and never more at once.
#[test]
fn a_storm_of_failures_becomes_an_orderly_line() {
    let mut w = World::new();
    let terms = BudgetTerms { per_minute: 60, burst: 5, in_flight: 10 };
    let tasks: Vec<_> = (0..200)
        .map(|_| {
            let mut new = w.new_task();
            new.budget = terms;
            new.must_end_in_ms = 48 * 3_600_000;
            w.order(new)
        })
        .collect();
    for (n, task) in tasks.iter().enumerate() {
        let uid = format!("a{n}");
        w.saw(Seen::failed(*task, 1, &uid, Cause::EvictedNodePressure, CauseClass::Infra));
    }
    let began = w.store.now;
    let (mut starts, mut running, mut most) = (Vec::new(), Vec::new(), 0);
    for second in 0..3_600u64 {
        w.pass(secs(1));
        for (n, task) in tasks.iter().enumerate() {
            if w.state(*task).attempt == 2 && !w.is_final(*task) && !running.contains(&n) {
                running.push(n);
                starts.push(w.store.now.since(began).as_secs());
            }
        }
        most = most.max(running.len());
        // A retried attempt takes five seconds or so.
        if second % 5 == 0 {
            for n in std::mem::take(&mut running) {
                w.saw(Seen::succeeded(tasks[n], 2, &format!("b{n}")));
            }
        }
        if tasks.iter().all(|t| w.is_final(*t)) {
            break;
        }
    }
    assert!(tasks.iter().all(|t| w.status(*t) == "SUCCEEDED"), "nobody is lost");
    assert!(most <= 10, "{most} at once");
    for (i, start) in starts.iter().enumerate() {
        let in_window = starts[i..].iter().take_while(|s| **s < start + 60).count();
        assert!(in_window <= 60 + 5, "{in_window} starts in a minute");
    }
    assert!(w.budget().deferred > 0 && w.budget().granted == 200);
    assert!(w.budget().places.is_empty());
    let deferred = tasks.iter().filter(|t| w.count(**t, "retry_deferred") > 0).count();
    assert!(deferred > 50, "those who wait say so: {deferred}");
    w.check();
}

#[test]
fn a_person_says_what_a_tenant_may() {
    let mut w = World::new();
    let task = w.task();
    w.saw(Seen::app_error(task, 1, "u1"));
    w.until_attempt(task, 2);
    let terms = BudgetTerms { per_minute: 6, burst: 1, in_flight: 1 };
    let set = BudgetSet { tenant: "t".into(), terms, by: "ada".into() };
    w.mail(budget_id("t"), "s", SET, &set);
    w.settle();
    assert_eq!((w.budget().terms, w.budget().set_by.as_deref()), (terms, Some("ada")));
    let other = w.task();
    w.saw(Seen::app_error(other, 1, "v1"));
    w.pass(secs(60));
    assert_eq!(w.status(other), "RETRYING");
    assert!(w.state(other).deferred > 0);
    // What the settings say does not overrule it, and the place comes free with the first attempt's end.
    assert_eq!(w.budget().terms, terms);
    w.saw(Seen::succeeded(task, 2, "u2"));
    w.until_attempt(other, 2);
    w.check();
}

#[test]
fn a_place_of_a_task_that_was_ended_by_force_comes_back() {
    let mut w = World::new();
    let task = w.task();
    w.saw(Seen::app_error(task, 1, "u1"));
    w.until_attempt(task, 2);
    w.force_end(task);
    assert!(w.budget().holds(task));
    w.pass(secs(600));
    assert!(!w.budget().holds(task), "it was asked, and the question came back");
}

#[test]
fn terms_that_can_not_be_are_refused_in_words() {
    let bad = BudgetTerms { burst: 0, ..BudgetTerms::default() };
    assert!(bad.problem().is_some_and(|p| p.contains("1 to 600000")));
    let bad = BudgetTerms { burst: 2_147_483_648, ..BudgetTerms::default() };
    assert!(bad.problem().is_some_and(|p| p.contains("1 to 600000")));
    let bad = BudgetTerms { in_flight: 1_000, ..BudgetTerms::default() };
    assert!(bad.problem().is_some_and(|p| p.contains("1 to 200")));
    assert_eq!(BudgetTerms::default().problem(), None);
}

/// Whoever asks again is told the same moment, and whoever wants it at once does not lose it.
#[test]
fn a_place_keeps_its_moment_however_often_it_is_asked_for() {
    use tenure_pods::{
        budget::{ASK, Answer, BudgetAsk, GRANTED},
        task::decide::{RETRY_NOW, RetryNow},
    };
    let mut w = World::new();
    let terms = BudgetTerms { per_minute: 1, burst: 1, in_flight: 10 };
    let tasks: Vec<_> = (0..3)
        .map(|_| {
            let mut new = w.new_task();
            new.budget = terms;
            new.retry.backoff_ms = 1;
            w.order(new)
        })
        .collect();
    for (n, task) in tasks.iter().enumerate() {
        w.saw(Seen::failed(*task, 1, &format!("a{n}"), Cause::Preempted, CauseClass::Infra));
        w.pass(secs(1));
    }
    let last = tasks[2];
    assert!(w.state(last).in_budget && w.state(last).attempt == 1, "its moment is in two minutes");
    let ask = BudgetAsk { task: last, tenant: "t".into(), terms };
    w.mail(budget_id("t"), "again", ASK, &ask);
    w.settle();
    let mut mail = w.store.mail.get(&last).into_iter().flatten();
    let granted = mail.rfind(|m| m.kind == GRANTED).expect("an answer");
    let answer: Answer =
        serde_json::from_slice(granted.body.inline().expect("small")).expect("json");
    assert!((100_000..=120_000).contains(&answer.after_ms), "{answer:?}");
    w.pass(secs(100));
    w.mail(last, "now", RETRY_NOW, &RetryNow::default());
    w.settle();
    w.pass(secs(25));
    assert_eq!(w.state(last).attempt, 2, "not a minute later");
    w.check();
}
