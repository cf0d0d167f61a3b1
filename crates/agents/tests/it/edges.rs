//! Turns at the edges of what may come: mail behind an end, words that are late or forged, stops, limits of a head.

use crate::world::{World, committed, secs, suspended, to, to_call};
use serde_json::json;
use tenure_agents::{
    agent::agent_id,
    turn::{
        WaitFor,
        act::{self, NewWait},
    },
    words::{Enqueue, ResumeNow, Stop, kinds},
};
use tenure_kernel::{ids::EntityId, mail::MailAnswer, time::Timestamp};

/// What was accepted and stands behind an end is on record before it.
#[test]
fn mail_behind_an_end_is_not_lost_without_a_trace() {
    let mut w = World::new();
    let turn = suspended(&mut w, &["x"]);
    w.mail(turn, "stop", "stop", &Stop::default());
    w.result(turn, "r", to("1.1"));
    w.mail(turn, "again", "stop", &Stop::default());
    w.settle();
    let names = w.names(turn);
    assert_eq!(names[names.len() - 3..], ["item_dead", "item_noted", "turn_failed"]);
    assert_eq!(w.turn(turn).dead, 1);
    w.check();
}

#[test]
fn results_that_are_late_doubled_stale_or_forged_change_nothing() {
    let mut w = World::new();
    let turn = suspended(&mut w, &["x", "y"]);
    let mut stale = to("1.1");
    stale.turn_epoch = Some(0);
    w.result(turn, "stale", stale);
    let mut future = to("1.1");
    future.turn_epoch = Some(99);
    w.result(turn, "future", future);
    w.result(turn, "wrong", to("7.7"));
    w.settle();
    assert_eq!(w.turn(turn).dead, 3);
    assert_eq!(w.turn(turn).waits.len(), 2);
    w.result(turn, "one", to("1.1"));
    w.settle();
    w.result(turn, "two", to("1.1"));
    w.settle();
    assert_eq!(w.count(turn, "result_applied"), 1);
    assert_eq!(w.result(turn, "one", to("1.1")), MailAnswer::Duplicate);
    w.pass(secs(31));
    assert_eq!(w.status(turn), "ready");
    let worker = w.worker();
    let held = w.begin(turn, worker);
    // Late, into the next step.
    w.result(turn, "late", to("1.2"));
    let decision =
        tenure_agents::turn::decide::on_mail(&w.turn(turn), &w.unread(turn), &w.cx(turn));
    committed(&w.act(&held, decision));
    assert_eq!(w.turn(turn).dead, 3, "late is noted, not dead");
    committed(&w.finish(&held));
    assert!(matches!(w.result(turn, "after", to("1.2")), MailAnswer::Final { .. }));
    w.settle();
    w.check();
}

/// A turn of the agent `a` that waits for a job.
fn waiting_for_a_job() -> (World, EntityId) {
    let mut w = World::new();
    w.agent("a");
    let turn = w.send("a");
    let worker = w.worker();
    let held = w.begin(turn, worker);
    let call = w.job_call(turn, "x", 0, None);
    committed(&w.suspend(&held, vec![call]));
    w.settle();
    (w, turn)
}

#[test]
fn a_wait_of_a_job_is_not_answered_from_outside() {
    let (mut w, turn) = waiting_for_a_job();
    w.result(turn, "forged", to("1.1"));
    w.settle();
    assert_eq!(w.status(turn), "suspended");
    assert_eq!(w.turn(turn).dead, 1);
    let job = *w.outside.jobs.keys().next().expect("a job");
    w.job_ends(job, "completed");
    w.settle();
    assert_eq!(w.status(turn), "ready");
}

#[test]
fn a_stop_ends_an_active_turn_and_takes_its_jobs_back() {
    let (mut w, turn) = waiting_for_a_job();
    w.mail(turn, "future", "stop", &Stop { turn_epoch: Some(50), ..Stop::default() });
    w.settle();
    assert_eq!(w.status(turn), "suspended", "a stop from the future is a dead letter");
    w.mail(turn, "s", "stop", &Stop { turn_epoch: Some(1), ..Stop::default() });
    w.settle();
    assert_eq!(w.status(turn), "failed");
    let end = w.end_of(turn);
    assert_eq!(end.turn_epoch, 2);
    assert!(end.deliverable.expect("a fallback").fallback);
    assert_eq!(w.outside.cancelled.len(), 1);
    w.check();
}

#[test]
fn a_removed_agent_refuses_and_one_that_is_busy_takes_no_actions() {
    let mut w = World::new();
    let id = w.agent("a");
    let (first, second) = (w.send("a"), w.send("a"));
    let mut action = w.new_turn("a");
    action.sort = tenure_agents::turn::model::Sort::UiAction;
    let action = w.send_new(action);
    w.settle();
    assert_eq!(w.end_of(action).error.expect("why").code, "agent_busy");
    w.mail(id, "rm", "agent_change", &json!({"do": "remove"}));
    w.settle();
    assert_eq!(w.end_of(second).error.expect("why").code, "agent_removed");
    let third = w.send("a");
    assert_eq!(w.end_of(third).error.expect("why").code, "agent_removed");
    // The active one may end.
    let worker = w.worker();
    let held = w.begin(first, worker);
    committed(&w.finish(&held));
    w.settle();
    assert_eq!(w.status(first), "success");
    w.check();
}

#[test]
fn a_turn_of_an_unknown_agent_fails_with_the_reason() {
    let mut w = World::new();
    let turn = w.send("nobody");
    assert_eq!(w.end_of(turn).error.expect("why").code, "unknown_agent");
    w.check();
}

#[test]
fn a_late_result_does_not_answer_the_next_call_of_the_same_id() {
    let mut w = World::new();
    let turn = suspended(&mut w, &["call_0"]);
    w.pass(secs(31));
    assert_eq!(w.status(turn), "ready", "the first call timed out");
    w.result(turn, "late", to_call("call_0"));
    w.settle();
    assert!(w.turn(turn).early.is_empty(), "late is not early");
    let worker = w.worker();
    let held = w.begin(turn, worker);
    let call = w.outside_call("call_0", None);
    committed(&w.suspend(&held, vec![call]));
    w.settle();
    assert_eq!(w.status(turn), "suspended", "the second call waits for its own answer");
    w.result(turn, "own", to_call("call_0"));
    w.settle();
    assert_eq!(w.status(turn), "ready");
    w.check();
}

#[test]
fn a_call_id_of_any_length_wedges_nothing() {
    let mut w = World::new();
    w.agent("a");
    let turn = w.send("a");
    w.result(turn, "long", to_call(&"x".repeat(20_000)));
    w.mail(turn, "s", "stop", &Stop::default());
    w.settle();
    assert_eq!(w.status(turn), "failed", "the stop behind it was read");
    w.check();
}

#[test]
fn a_head_holds_everything_at_its_limit() {
    use tenure_agents::limits;
    let mut w = World::new();
    let (name, label) = ("n".repeat(limits::TOKEN_BYTES_MAX), "\"".repeat(limits::LABEL_BYTES_MAX));
    w.agent_with(&name, Some(&label), Some(&label));
    let mut new = w.new_turn(&name);
    new.above = vec!["a".repeat(limits::TOKEN_BYTES_MAX); limits::DEPTH_MAX as usize];
    new.correlation_id = Some("\"".repeat(200));
    let turn = w.send_new(new);
    w.settle();
    let worker = w.worker();
    // A quote takes two bytes in a head.
    let call = |n: usize| format!("{n:02}{}", "\"".repeat((limits::CALL_BYTES_MAX - 2) / 2));
    for round in 0..3 {
        let held = w.begin(turn, worker);
        for n in 0..limits::EARLY_MAX {
            w.result(
                turn,
                &format!("early/{round}/{n}"),
                to_call(&format!("{round}{}", call(n).split_off(1))),
            );
        }
        let unread = w.unread(turn);
        let decision = tenure_agents::turn::decide::on_mail(&w.turn(turn), &unread, &w.cx(turn));
        committed(&w.act(&held, decision));
        let first = act::next_ordinal(&w.turn(turn));
        let calls = (0..limits::WAITS_MAX)
            .map(|n| {
                // Jobs that do not answer are given up, and remembered for that.
                let ordinal = first + u32::try_from(n).expect("small");
                let mut wait = match round {
                    0 => w.job_call(turn, &call(n + 30), ordinal, None),
                    _ => w.outside_call(&call(n + 30), None),
                };
                wait.tool = "t".repeat(limits::TOOL_BYTES_MAX);
                wait.after = tenure_agents::words::After::Suspend;
                wait
            })
            .collect();
        committed(&w.suspend(&held, calls));
        w.settle();
        if round == 0 {
            w.pass(secs(31));
            assert_eq!(w.turn(turn).given_up.len(), limits::WAITS_MAX);
            continue;
        }
        for n in 0..limits::WAITS_MAX {
            w.result(turn, &format!("r/{round}/{n}"), to(&format!("{}.{}", round + 1, n + 1)));
        }
        w.settle();
        assert_eq!(w.status(turn), "ready");
    }
    let head = w.head(turn).state.len();
    assert!(head < tenure_kernel::limits::HEAD_STATE_BYTES_MAX, "{head}");
    w.check();
}

#[test]
fn a_turn_that_never_began_says_nothing_about_its_agent() {
    let mut w = World::new();
    w.agent("a");
    let (_first, second) = (w.send("a"), w.send("a"));
    w.mail(second, "s", "stop", &Stop::default());
    w.settle();
    assert_eq!(w.status(second), "canceled");
    let idle = w.announced("evt.agent.a.state").into_iter().any(|a| a.body["status"] == "idle");
    assert!(!idle, "its agent has another turn");
    assert_eq!(w.announced("evt.agent.a.task").len(), 1);
    w.check();
}

#[test]
fn a_turn_that_was_ended_by_force_is_missed_and_the_counter_only_rises() {
    let mut w = World::new();
    w.agent("a");
    let (first, second) = (w.send("a"), w.send("a"));
    w.force_end(first);
    assert_eq!(w.status(first), "failed");
    w.pass(secs(14 * 60));
    assert_eq!(w.status(second), "queued", "nobody has told the agent");
    w.pass(secs(3 * 60));
    assert_ne!(w.status(second), "queued");
    assert!(w.agent_state("a").turn_epoch > 1_000);
}

/// A parent is over after its children, or says which of them it left.
#[test]
fn an_ended_turn_lists_whom_it_left() {
    let mut w = World::new();
    w.agent("a");
    let turn = w.send("a");
    let worker = w.worker();
    let held = w.begin(turn, worker);
    let calls = vec![
        w.job_call(turn, "slow", 0, Some(40_000)),
        w.job_call(turn, "slower", 1, Some(50_000)),
        w.job_call(turn, "slowest", 2, Some(600_000)),
        w.outside_call("human", Some(600_000)),
    ];
    let ids: Vec<WaitFor> = calls.iter().filter_map(asked).collect();
    committed(&w.suspend(&held, calls));
    w.settle();
    // The first two take too long; one of them says later that it is over.
    w.pass(secs(55));
    assert_eq!(w.count(turn, "wait_timed_out"), 2);
    let WaitFor::Job(first) = ids[0] else { panic!("a job") };
    w.job_ends(first, "cancelled");
    w.settle();
    w.mail(turn, "stop", "stop", &Stop::default());
    w.settle();
    let left: Vec<WaitFor> = w.end_of(turn).abandoned.iter().map(|a| a.waits_for).collect();
    assert_eq!(left, [ids[1], ids[2]], "the first one is over, and a person is no child");
    assert!(w.turn(turn).given_up.is_empty(), "the list is in the history");
    w.check();
}

fn asked(call: &NewWait) -> Option<WaitFor> {
    match &call.how {
        act::How::Ask(waits_for, _) => Some(*waits_for),
        _ => None,
    }
}

/// A turn whose children are over has left nobody; so has one that a person told not to wait, once they are.
#[test]
fn a_turn_that_waited_for_all_has_left_nobody() {
    let mut w = World::new();
    w.agent("a");
    let turn = w.send("a");
    let worker = w.worker();
    let held = w.begin(turn, worker);
    let calls = vec![w.job_call(turn, "x", 0, None), w.job_call(turn, "y", 1, None)];
    let ids: Vec<WaitFor> = calls.iter().filter_map(asked).collect();
    committed(&w.suspend(&held, calls));
    w.settle();
    let (WaitFor::Job(x), WaitFor::Job(y)) = (ids[0], ids[1]) else { panic!("jobs") };
    w.job_ends(x, "completed");
    w.settle();
    w.mail(turn, "go", "resume_now", &ResumeNow::default());
    w.settle();
    assert_eq!(w.turn(turn).given_up.len(), 1, "told to stop, and not over yet");
    w.job_ends(y, "cancelled");
    w.settle();
    let worker = w.worker();
    let held = w.begin(turn, worker);
    committed(&w.finish(&held));
    assert_eq!(w.end_of(turn).abandoned, []);
    w.check();
}

/// What was sent first may come last: its message went by its lane, and a later one with its commit.
#[test]
fn a_line_is_in_the_order_of_sending() {
    let mut w = World::new();
    w.agent("a");
    w.send("a");
    let sent_at = |seconds: i64| {
        EntityId::new(
            Timestamp::from_micros(seconds * 1_000_000),
            [u8::try_from(seconds).unwrap(); 10],
        )
    };
    let line = [10, 20, 30].map(sent_at);
    for (turn, by_age) in [(line[2], true), (line[0], true), (line[1], true), (sent_at(1), false)] {
        let asks = Enqueue { turn, only_if_idle: false, by_age };
        w.mail(agent_id("t", "a"), &turn.to_string(), kinds::ENQUEUE, &asks);
        w.settle();
    }
    let mut expected = line.to_vec();
    // The id of one that a turn asked for says nothing about when.
    expected.push(sent_at(1));
    assert_eq!(w.agent_state("a").queue, expected);
}
