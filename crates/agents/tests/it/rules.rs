//! Every rule about silence: fires at its time, not early, not twice, and without a bell.

use crate::world::{World, committed, secs};
use serde_json::json;
use tenure_agents::words::{EndStatus, ToolResult, ToolStatus};

#[test]
fn a_turn_is_dispatched_run_and_ended_once() {
    let mut w = World::new();
    w.agent("a");
    let turn = w.send("a");
    assert_eq!(w.status(turn), "dispatched");
    assert_eq!(w.turn(turn).turn_epoch, 1);
    let worker = w.worker();
    let held = w.begin(turn, worker);
    committed(&w.finish(&held));
    w.settle();
    assert_eq!(w.status(turn), "success");
    let end = w.end_of(turn);
    assert_eq!((end.turn_epoch, end.forced), (1, None));
    assert_eq!(end.deliverable.expect("delivered").content, json!("done"));
    assert_eq!(w.agent_state("a").active, None);
    let task = w.announced("evt.agent.a.task");
    assert_eq!(task.len(), 1);
    assert_eq!(task[0].body["status"], "success");
    w.pass(secs(48 * 3_600));
    assert_eq!(w.announced("evt.agent.a.task").len(), 1);
    w.check();
}

#[test]
fn rule_2_1_a_worker_that_claims_and_does_nothing_loses_its_items() {
    let mut w = World::new();
    w.rules.inbox_processing_ms = 60_000;
    w.agent("a");
    let turn = w.send("a");
    w.pass(secs(20));
    let worker = w.worker();
    w.claim(turn, worker).expect("free");
    w.pass(secs(59));
    assert_eq!(w.status(turn), "running", "not early: it counts from the claim");
    w.pass(secs(2));
    assert_eq!(w.status(turn), "ready", "pending again");
    assert_eq!(w.count(turn, "items_requeued"), 1);
    let rings = w.announced("cmd.agent.pool.wakeup");
    assert!(rings.iter().any(|r| r.body["reason"] == "inbox_processing"), "with a ring");
    // Another worker takes it and delivers; the first one is fenced off.
    let second = w.worker();
    let held = w.begin(turn, second);
    committed(&w.finish(&held));
    w.settle();
    assert_eq!(w.status(turn), "success");
    w.check();
}

#[test]
fn rule_2_2_each_wait_has_its_own_deadline_and_its_report() {
    let mut w = World::new();
    w.agent("a");
    let turn = w.send("a");
    let worker = w.worker();
    let held = w.begin(turn, worker);
    let quick = w.job_call(turn, "c1", 0, None);
    let slow = w.job_call(turn, "c2", 1, Some(90_000));
    committed(&w.suspend(&held, vec![quick, slow]));
    w.settle();
    assert_eq!(w.status(turn), "suspended");
    assert_eq!(w.outside.jobs.len(), 2, "the commands left after the waits were committed");
    w.pass(secs(29));
    assert_eq!(w.count(turn, "wait_timed_out"), 0);
    w.pass(secs(2));
    assert_eq!(w.count(turn, "wait_timed_out"), 1);
    assert_eq!(w.outside.cancelled.len(), 1, "nobody waits for that job any more");
    assert_eq!(w.turn(turn).waits.len(), 1, "the other keeps its own time");
    assert_eq!(w.status(turn), "suspended");
    let left = w.turn(turn).resume_deadline().expect("the other's").since(w.now());
    assert!(left > secs(55), "{left:?}");
    let job = *w.outside.jobs.iter().find(|(_, (_, n))| *n == 1).expect("the slow one").0;
    w.job_ends(job, "completed");
    w.settle();
    assert_eq!(w.status(turn), "ready", "resumed with both, one a timeout");
    assert_eq!(w.turn(turn).turn_epoch, 2);
    w.check();
}

#[test]
fn rule_2_2_all_reports_resume_the_turn_without_anybody_outside() {
    let mut w = World::new();
    w.agent("a");
    let turn = w.send("a");
    let worker = w.worker();
    let held = w.begin(turn, worker);
    let calls = vec![w.outside_call("x", None), w.outside_call("y", Some(5_000))];
    committed(&w.suspend(&held, calls));
    w.pass(secs(31));
    assert_eq!(w.status(turn), "ready");
    assert_eq!(w.count(turn, "wait_timed_out"), 2);
    w.check();
}

#[test]
fn rule_2_3_a_resume_that_nobody_carries_out_is_bounded() {
    let mut w = World::new();
    w.agent("a");
    let turn = w.send("a");
    let worker = w.worker();
    let held = w.begin(turn, worker);
    let call = w.outside_call("x", None);
    committed(&w.suspend(&held, vec![call]));
    let answer = ToolResult { wait: Some("1.1".into()), ..ToolResult::default() };
    w.result(turn, "r1", answer);
    w.settle();
    assert_eq!(w.status(turn), "ready");
    for attempt in 1..=4u32 {
        let worker = w.worker();
        w.claim(turn, worker).expect("free");
        w.pass(secs(9));
        assert_eq!(w.status(turn), "running", "not early");
        w.pass(secs(2));
        match attempt {
            4 => assert_eq!(w.status(turn), "failed"),
            n => {
                assert_eq!(w.status(turn), "ready");
                assert_eq!(w.turn(turn).resume_attempts, n);
            }
        }
    }
    let end = w.end_of(turn);
    assert_eq!(end.error.expect("why").code, "resume_retry_exhausted");
    assert_eq!(end.forced, None, "the machine ends itself, without a record of force");
    w.check();
}

#[test]
fn rule_2_4_rings_again_and_never_puts_off_2_5() {
    let mut w = World::new();
    w.agent("a");
    let turn = w.send("a");
    let began = w.now();
    w.pass(secs(29));
    assert_eq!(w.status(turn), "dispatched");
    assert_eq!(w.count(turn, "dispatch_retried"), 2, "at 10 and 20 seconds");
    w.pass(secs(2));
    assert_eq!(w.status(turn), "timeout");
    let task = w.announced("evt.agent.a.task");
    assert_eq!(task[0].at.since(began), secs(30), "at its time");
    assert_eq!(w.count(turn, "turn_dispatched"), 1, "one item, never a second");
}

#[test]
fn rule_2_5_ends_a_turn_that_nobody_takes() {
    let mut w = World::new();
    w.agent("a");
    let first = w.send("a");
    let second = w.send("a");
    assert_eq!(w.status(second), "queued");
    w.pass(secs(31));
    let end = w.end_of(first);
    assert_eq!(end.status, EndStatus::Timeout);
    assert_eq!(end.turn_epoch, 2, "raised");
    assert_eq!(end.forced.as_ref().expect("recorded").reason, "dispatch_timeout");
    let card = end.deliverable.expect("a fallback");
    assert!(card.fallback);
    assert_eq!(card.content["kind"], "fallback");
    // On the wire: state with the error, then task with the card, then the next one is dispatched.
    let order: Vec<(String, String)> = w
        .wire
        .iter()
        .filter(|a| a.subject.starts_with("evt."))
        .map(|a| (a.subject.clone(), a.body["status"].as_str().unwrap_or("").to_owned()))
        .collect();
    let place = |s: &str, status: &str| order.iter().position(|(a, b)| a == s && b == status);
    let idle = place("evt.agent.a.state", "idle").expect("idle");
    let task = place("evt.agent.a.task", "timeout").expect("task");
    assert_eq!(task, idle + 1);
    let task = &w.announced("evt.agent.a.task")[0];
    assert_eq!(task.body["error"], "dispatch_timeout");
    assert_eq!(task.body["deliverable_card_id"], card.card_id);
    assert_eq!(w.agent_state("a").active.expect("the next").turn, second);
    assert_eq!(w.turn(second).turn_epoch, 3, "it goes on from the raised counter");
    w.check();
}

#[test]
fn rule_2_5_switched_off_leaves_must_end_by() {
    let mut w = World::new();
    w.rules.dispatched_timeout_ms = 0;
    w.agent("a");
    let turn = w.send("a");
    w.pass(secs(23 * 3_600));
    assert_eq!(w.status(turn), "dispatched");
    w.pass(secs(2 * 3_600));
    assert_eq!(w.status(turn), "timeout");
    assert_eq!(w.end_of(turn).error.expect("why").code, "must_end_by");
    assert_eq!(w.agent_state("a").active, None);
    w.check();
}

#[test]
fn rule_2_6_reaps_a_turn_without_progress_and_spares_one_with() {
    let mut w = World::new();
    w.agent("a");
    let turn = w.send("a");
    let worker = w.worker();
    let held = w.begin(turn, worker);
    // A model that streams: its worker says so now and then.
    for _ in 0..10 {
        w.pass(secs(200));
        assert_eq!(w.status(turn), "running");
        let decision = tenure_agents::turn::act::progress(&w.turn(turn), &w.cx(turn), "streaming");
        committed(&w.act_unread(&held, decision));
    }
    w.pass(secs(299));
    assert_eq!(w.status(turn), "running", "not early");
    w.pass(secs(2));
    let end = w.end_of(turn);
    assert_eq!(end.status, EndStatus::Failed);
    assert_eq!(end.error.expect("why").code, "timeout_reaped_by_watchdog");
    assert_eq!(end.forced.expect("recorded").status, "running");
    assert_eq!(end.turn_epoch, 2);
    assert!(
        end.deliverable.expect("a fallback").content["fields"]["reason"]
            == "timeout_reaped_by_watchdog"
    );
    // The worker wakes up and can do nothing.
    let late = w.store.heads[&turn].version;
    assert_eq!(late, w.head(turn).version);
    w.check();
}

#[test]
fn rule_2_6_a_call_to_a_model_has_its_own_time() {
    let mut w = World::new();
    w.rules.inbox_processing_ms = 0;
    w.agent("a");
    let turn = w.send("a");
    let worker = w.worker();
    let held = w.claim(turn, worker).expect("free");
    let decision = tenure_agents::turn::act::start_step(
        &w.turn(turn),
        &w.cx(turn),
        900_000,
        serde_json::Value::Null,
    );
    committed(&w.act_unread(&held, decision));
    w.pass(secs(899));
    assert_eq!(w.status(turn), "running", "inside its own timeout");
    w.pass(secs(2));
    assert_eq!(w.status(turn), "failed");
}

/// A worker that hangs after it has shown progress is not given the whole time of its call once more.
#[test]
fn rules_2_1_and_2_6_count_the_time_of_a_call_from_its_beginning() {
    for (reap_ms, ends) in [(300_000, true), (9_000_000, false)] {
        let mut w = World::new();
        w.rules.active_reap_ms = reap_ms;
        w.rules.inbox_processing_ms = if ends { 0 } else { 300_000 };
        w.agent("a");
        let turn = w.send("a");
        let worker = w.worker();
        let held = w.claim(turn, worker).expect("free");
        let decision = tenure_agents::turn::act::start_step(
            &w.turn(turn),
            &w.cx(turn),
            900_000,
            serde_json::Value::Null,
        );
        committed(&w.act_unread(&held, decision));
        w.pass(secs(590));
        let decision = tenure_agents::turn::act::progress(&w.turn(turn), &w.cx(turn), "streaming");
        committed(&w.act_unread(&held, decision));
        w.pass(secs(308));
        assert_eq!((w.status(turn), w.count(turn, "items_requeued")), ("running", 0), "not early");
        w.pass(secs(4));
        match ends {
            true => assert_eq!(w.status(turn), "failed"),
            false => assert_eq!(w.count(turn, "items_requeued"), 1),
        }
    }
}

#[test]
fn rule_2_6_goes_on_while_workers_are_lost() {
    let mut w = World::new();
    w.agent("a");
    let turn = w.send("a");
    let worker = w.worker();
    let began = w.now();
    w.begin(turn, worker);
    w.lose(turn);
    assert_eq!(w.status(turn), "ready", "running without a worker, never dispatched again");
    w.pass(secs(310));
    assert_eq!(w.end_of(turn).error.expect("why").code, "timeout_reaped_by_watchdog");
    let task = w.announced("evt.agent.a.task");
    assert_eq!(task[0].at.since(began), secs(300), "the loss did not put it off");
}

#[test]
fn rule_2_7_rings_with_backoff_and_skips_only_without_a_channel() {
    let mut w = World::new();
    w.rules.dispatched_timeout_ms = 0;
    w.rules.dispatched_retry_ms = 0;
    w.agent("a");
    let turn = w.send("a");
    w.pass(secs(3_600));
    let rings = w.announced("cmd.agent.pool.wakeup");
    assert_eq!(w.status(turn), "dispatched", "rung for ever, never skipped");
    assert!(rings.len() >= 55 && rings.len() < 70, "with backoff: {}", rings.len());

    let mut w = World::new();
    w.rules.dispatched_timeout_ms = 0;
    w.agent_with("b", None, Some("out"));
    let turn = w.send("b");
    w.pass(secs(299));
    assert_eq!(w.status(turn), "dispatched");
    assert!(w.announced("cmd.agent.pool.wakeup").is_empty(), "there is no channel to ring on");
    w.pass(secs(2));
    let end = w.end_of(turn);
    assert_eq!(end.watchdog_error.as_deref(), Some("missing_channel"));
    assert!(end.watchdog_at.is_some());
    assert!(w.turn(turn).outcome.expect("over").skipped);
    w.check();
}

#[test]
fn without_an_output_box_the_task_event_says_why_there_is_no_deliverable() {
    let mut w = World::new();
    w.agent_with("a", Some("public"), None);
    let turn = w.send("a");
    w.pass(secs(31));
    assert_eq!(w.end_of(turn).deliverable, None);
    let task = &w.announced("evt.agent.a.task")[0];
    assert_eq!(task.body["deliverable_card_id"], json!(null));
    assert!(task.body["no_deliverable"].as_str().expect("why").contains("output box"));
}

#[test]
fn lost_workers_are_counted_and_bounded() {
    let mut w = World::new();
    w.agent("a");
    let turn = w.send("a");
    for n in 1..=6u32 {
        let worker = w.worker();
        w.begin(turn, worker);
        w.lose(turn);
        match n {
            6 => assert_eq!(w.end_of(turn).error.expect("why").code, "takeovers_exhausted"),
            _ => assert_eq!(w.turn(turn).takeovers, n),
        }
    }
    w.settle();
    w.check();
}

#[test]
fn a_tool_that_terminates_ends_the_turn_with_its_result() {
    let mut w = World::new();
    w.agent("a");
    let turn = w.send("a");
    let worker = w.worker();
    let held = w.begin(turn, worker);
    let mut call = w.outside_call("x", None);
    call.after = tenure_agents::words::After::Terminate;
    committed(&w.suspend(&held, vec![call]));
    let answer = ToolResult {
        wait: Some("1.1".into()),
        status: ToolStatus::Success,
        result: json!({"answer": 42}),
        ..ToolResult::default()
    };
    w.result(turn, "r", answer);
    w.settle();
    assert_eq!(w.status(turn), "success");
    assert_eq!(w.end_of(turn).deliverable.expect("it").content, json!({"answer": 42}));
    assert_eq!(w.agent_state("a").turn_epoch, 1, "a natural end raises nothing");
    w.check();
}

#[test]
fn rule_2_6_counts_from_the_claim_where_nothing_else_has_happened() {
    let mut w = World::new();
    w.rules.dispatched_timeout_ms = 0;
    w.rules.inbox_processing_ms = 0;
    w.agent("a");
    let turn = w.send("a");
    w.pass(secs(1_000));
    let worker = w.worker();
    w.claim(turn, worker).expect("free");
    w.pass(secs(299));
    assert_eq!(w.status(turn), "running", "not early");
    w.pass(secs(2));
    assert_eq!(w.end_of(turn).error.expect("why").code, "timeout_reaped_by_watchdog");
    w.check();
}

#[test]
fn rule_2_6_neither_hurries_nor_waits_for_a_worker_that_is_gone() {
    // Lost before its first step, long after its dispatch.
    let mut w = World::new();
    w.rules.dispatched_timeout_ms = 0;
    w.agent("a");
    let turn = w.send("a");
    w.pass(secs(600));
    let worker = w.worker();
    w.claim(turn, worker).expect("free");
    w.lose(turn);
    w.pass(secs(200));
    assert_eq!(w.status(turn), "ready", "there is time for another worker");
    w.pass(secs(101));
    assert_eq!(w.status(turn), "failed");
    // Lost in the middle of a call that may take an hour: nobody waits for that any more.
    let mut w = World::new();
    w.rules.inbox_processing_ms = 0;
    w.agent("a");
    let turn = w.send("a");
    let worker = w.worker();
    let held = w.claim(turn, worker).expect("free");
    let decision = tenure_agents::turn::act::start_step(
        &w.turn(turn),
        &w.cx(turn),
        3_600_000,
        serde_json::Value::Null,
    );
    committed(&w.act_unread(&held, decision));
    w.lose(turn);
    w.pass(secs(301));
    assert_eq!(w.status(turn), "failed");
    // Resumed in a busy pool, and claimed in the last moment.
    let mut w = World::new();
    w.agent("a");
    let turn = w.send("a");
    let worker = w.worker();
    let held = w.begin(turn, worker);
    let call = w.outside_call("x", None);
    committed(&w.suspend(&held, vec![call]));
    w.result(turn, "r", ToolResult { wait: Some("1.1".into()), ..ToolResult::default() });
    w.pass(secs(299));
    assert_eq!(w.status(turn), "ready");
    w.claim(turn, worker).expect("free");
    w.pass(secs(5));
    assert_eq!(w.status(turn), "running", "it was only just taken");
}

#[test]
fn a_tool_that_would_end_the_turn_and_does_not_answer_does_not_end_it() {
    let mut w = World::new();
    w.agent("a");
    let turn = w.send("a");
    let worker = w.worker();
    let held = w.begin(turn, worker);
    let mut call = w.outside_call("x", None);
    call.after = tenure_agents::words::After::Terminate;
    committed(&w.suspend(&held, vec![call]));
    w.pass(secs(31));
    assert_eq!(w.status(turn), "ready", "the timeout reaches the model");
}

/// While nobody could say anything, nobody was silent: each rule that judges waits for one lease after an outage.
#[test]
fn after_an_outage_workers_and_tools_have_one_lease() {
    for (state, ends) in [
        ("dispatched", "dispatch_timeout"),
        ("running", "timeout_reaped_by_watchdog"),
        ("suspended", "tool_timeout"),
    ] {
        for comes_back in [true, false] {
            let mut w = World::new();
            w.agent("a");
            let turn = w.send("a");
            let worker = w.worker();
            let mut held = None;
            if state != "dispatched" {
                held = Some(w.begin(turn, worker));
            }
            if state == "suspended" {
                let call = w.outside_call("x", None);
                committed(&w.suspend(held.as_ref().expect("held"), vec![call]));
            }
            w.settle();
            w.outage(secs(400));
            w.pass(secs(14));
            assert_eq!(w.status(turn), state, "nobody was judged");
            if comes_back {
                match state {
                    "dispatched" => drop(w.begin(turn, worker)),
                    "running" => {
                        let held = held.as_ref().expect("held");
                        let decision =
                            tenure_agents::turn::act::progress(&w.turn(turn), &w.cx(turn), "");
                        committed(&w.act_unread(held, decision));
                    }
                    _ => {
                        let answer =
                            ToolResult { wait: Some("1.1".into()), ..ToolResult::default() };
                        w.result(turn, "r", answer);
                    }
                }
            }
            w.pass(secs(2));
            let judged = match state {
                "suspended" => w.count(turn, "wait_timed_out") == 1,
                _ => w.is_final(turn) && w.end_of(turn).error.expect("why").code == ends,
            };
            assert_eq!(judged, !comes_back, "{state}: {:?}", w.names(turn));
            w.check();
        }
    }
    // The turn's own end is no judgement.
    let mut w = World::new();
    w.agent("a");
    let turn = w.send("a");
    w.outage(secs(25 * 3_600));
    w.settle();
    assert_eq!(w.end_of(turn).error.expect("why").code, "must_end_by");
}

/// A worker that hangs and renews, claim after claim, with a step begun each time or without: `inbox_processing` takes the turn from it, and
/// does not put off the end for ever.
#[test]
fn rule_2_1_ends_a_turn_whose_workers_all_hang() {
    for begins in [false, true] {
        let mut w = World::new();
        w.rules.inbox_processing_ms = 30_000;
        w.agent("a");
        let turn = w.send("a");
        let began = w.now();
        while !w.is_final(turn) && w.now().since(began) < secs(3_600) {
            let worker = w.worker();
            if begins {
                let held = w.claim(turn, worker).expect("free");
                let step = tenure_agents::turn::act::start_step(
                    &w.turn(turn),
                    &w.cx(turn),
                    10_000,
                    json!(null),
                );
                committed(&w.act_unread(&held, step));
            } else {
                w.claim(turn, worker).expect("free");
            }
            while w.status(turn) == "running" {
                w.pass(secs(1));
            }
        }
        let took = w.now().since(began);
        assert!(took <= secs(5 * 30 + 300), "{took:?}");
        let end = w.end_of(turn);
        assert_eq!(end.error.expect("why").code, "takeovers_exhausted");
        assert_eq!(end.forced, None, "that rule forces nothing");
        w.check();
    }
}

#[test]
fn a_turn_that_is_given_back_again_and_again_ends() {
    let mut w = World::new();
    w.agent("a");
    let turn = w.send("a");
    let worker = w.worker();
    let give_back = |w: &mut World| {
        let held = w.begin(turn, worker);
        let state = w.turn(turn);
        let parted = tenure_agents::turn::act::give_back(&state, &w.cx(turn), "not mine");
        match parted.parks {
            true => {
                let head = w.head(turn);
                let id = tenure_kernel::ids::CommitId::new(w.random(), w.random());
                let commit =
                    tenure_agents::turn::act::parting(&head, state, parted.decision, id, None);
                committed(&w.store.commit(&commit));
            }
            false => committed(&w.act_unread(&held, parted.decision)),
        }
    };
    for _ in 0..20 {
        give_back(&mut w);
        assert_eq!(w.status(turn), "ready");
    }
    // A finished step is progress: they are counted anew.
    let held = w.begin(turn, worker);
    let call = w.outside_call("x", None);
    committed(&w.suspend(&held, vec![call]));
    w.result(turn, "r", ToolResult { wait: Some("1.1".into()), ..ToolResult::default() });
    w.settle();
    for n in 0..=20 {
        assert_eq!(w.status(turn), "ready", "{n}");
        give_back(&mut w);
    }
    assert_eq!(w.end_of(turn).error.expect("why").code, "given_back_too_often");
    assert!(w.events(turn).len() < 150);
    w.settle();
    w.check();
}
