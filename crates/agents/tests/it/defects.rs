//! The traps of the systems before, F1 to F18 of the reference, each as a test that would have caught it.

use crate::{
    hands::Hands,
    world::{World, committed, secs, suspended, to, to_call},
};
use serde_json::json;
use std::collections::BTreeMap;
use tenure_agents::{
    turn::{TurnEvent, WaitFor, act},
    words::{Progress, Stop, ToolResult},
};
use tenure_kernel::{
    commit::{Commit, CommitAnswer, Expect},
    ids::EntityId,
    stream::{Body, NewEvent},
    table::Class,
};
use tenure_proving::stores::{Engine, Place};

#[test]
fn f1_a_retry_does_not_put_off_the_timeout() {
    let mut w = World::new();
    w.rules.dispatched_retry_ms = 1_000;
    w.agent("a");
    let turn = w.send("a");
    w.pass(secs(30));
    assert_eq!(w.status(turn), "timeout");
}

#[test]
fn f2_a_retry_never_sets_a_running_turn_back() {
    let mut w = World::new();
    w.agent("a");
    let turn = w.send("a");
    w.pass(secs(9));
    let worker = w.worker();
    let held = w.begin(turn, worker);
    w.pass(secs(60));
    assert_eq!(w.status(turn), "running");
    assert_eq!(w.count(turn, "dispatch_retried"), 0);
    committed(&w.finish(&held));
}

#[test]
fn f3_a_turn_runs_once_however_often_it_is_rung() {
    let mut w = World::new();
    w.agent("a");
    let turn = w.send("a");
    w.pass(secs(25));
    let worker = w.worker();
    let held = w.begin(turn, worker);
    committed(&w.finish(&held));
    w.pass(secs(3_600));
    assert_eq!(w.agent_state("a").turns, 1);
    assert_eq!(w.announced("evt.agent.a.task").len(), 1);
    assert!(w.agent_state("a").queue.is_empty());
}

#[test]
fn f4_a_suspended_turn_always_goes_on() {
    // (a) Nothing but the wait is needed for its report.
    let mut w = World::new();
    let turn = suspended(&mut w, &["x"]);
    w.pass(secs(31));
    assert_eq!(w.status(turn), "ready");
    // (b) The last result and the resume are one commit.
    let mut w = World::new();
    let turn = suspended(&mut w, &["x"]);
    w.result(turn, "r", to("1.1"));
    assert!(w.serve(turn), "one decision");
    assert_eq!(w.status(turn), "ready");
    // (c) A wait without a time of its own ends with the turn.
    let mut w = World::new();
    w.rules.suspend_ms = 0;
    let turn = suspended(&mut w, &["x"]);
    w.pass(secs(23 * 3_600));
    assert_eq!(w.status(turn), "suspended");
    w.pass(secs(3_601));
    assert_eq!(w.status(turn), "timeout");
    w.check();
}

#[test]
fn f5_a_queued_turn_of_an_idle_agent_does_not_exist() {
    let mut w = World::new();
    w.agent("a");
    let (first, second) = (w.send("a"), w.send("a"));
    let worker = w.worker();
    let held = w.begin(first, worker);
    committed(&w.finish(&held));
    // Whatever is lost now, the mail is in the outbox of the turn's own last commit.
    w.settle();
    assert_eq!(w.status(second), "dispatched");
}

#[test]
fn f6_a_stop_reaches_queued_turns_and_children() {
    let mut w = World::new();
    w.agent("boss");
    w.agent("b");
    let busy = w.send("b");
    let boss = w.send("boss");
    let worker = w.worker();
    let held = w.begin(boss, worker);
    let call = w.join_call(boss, &["b", "b"], false, 600_000);
    committed(&w.suspend(&held, vec![call]));
    w.settle();
    let queue = w.agent_state("b").queue;
    assert_eq!(queue.len(), 2);
    w.mail(boss, "stop", "stop", &Stop::default());
    w.settle();
    assert_eq!(w.status(boss), "failed");
    assert_eq!(w.end_of(boss).error.expect("why").code, "stopped");
    for child in queue {
        assert_eq!(w.status(child), "canceled", "taken back before it began");
    }
    assert!(w.agent_state("b").queue.is_empty());
    assert_eq!(w.agent_state("b").active.expect("the other").turn, busy);
    w.check();
}

#[test]
fn f7_progress_is_no_result() {
    let mut w = World::new();
    let turn = suspended(&mut w, &["x"]);
    for n in 0..5 {
        w.pass(secs(25));
        let said =
            Progress { tool_call_id: Some("x".into()), note: "20%".into(), ..Progress::default() };
        w.mail(turn, &format!("p{n}"), "progress", &said);
        w.settle();
    }
    assert_eq!(w.count(turn, "wait_progress"), 5);
    assert_eq!(w.status(turn), "suspended", "kept open beyond its first deadline");
    w.result(turn, "r", to_call("x"));
    w.settle();
    assert_eq!(w.status(turn), "ready");
    assert_eq!(w.count(turn, "result_applied"), 1);
}

#[test]
fn f8_a_crashed_turn_is_resumed_from_its_steps() {
    let mut w = World::new();
    w.agent("a");
    let turn = w.send("a");
    let (one, two) = (w.worker(), w.worker());
    w.begin(turn, one);
    w.lose(turn);
    let held = w.begin(turn, two);
    assert_eq!(w.turn(turn).step, 1, "the same step, again");
    assert_eq!(w.turn(turn).attempt, 2);
    committed(&w.finish(&held));
    w.settle();
    assert_eq!(w.status(turn), "success");
}

/// Turns about which nobody can decide any more: their state can not be read.
async fn broken(hands: &Hands, count: usize) -> Vec<EntityId> {
    let mut turns = Vec::with_capacity(count);
    for n in 0..count {
        let name = format!("broken-{n}");
        hands.agent(&name).await;
        let turn = hands.send(&name, "go").await;
        let mut held = hands.claim(&name).await;
        let event = TurnEvent::ProgressMade { note: String::new() };
        let events = vec![NewEvent::new("progress_made", Body::json(&event))];
        let (epoch, version) = (held.head.epoch, held.head.version);
        let expect = Expect::Holder { epoch, version };
        let mut commit = Commit::new(hands.node.pipeline.commit_id(), turn, expect, events);
        commit.state = Some(b"no state".to_vec());
        held.commit(commit).await.expect("committed");
        turns.push(turn);
    }
    turns
}

/// The rules of what is broken fail, again and again; those of others fire at their time.
async fn neighbours_end_in_time(count: usize) {
    let mut defaults = tenure_agents::desk::Defaults::default();
    defaults.rules.dispatched_timeout_ms = 500;
    defaults.rules.active_reap_ms = 500;
    let lease = secs(3);
    let place = Place::new(Engine::Memory, &crate::hands::machines()).await;
    let hands = Hands::with(place, defaults, lease).await;
    let broken = broken(&hands, count).await;
    let failing = async || {
        let mut failing = 0;
        for turn in &broken {
            failing += usize::from(hands.head(*turn).await.faults > 0);
        }
        failing == count
    };
    hands.until("all of them fail", failing).await;
    hands.agent("a").await;
    let turn = hands.send("a", "go").await;
    hands.until_status(turn, "timeout").await;
    for turn in broken {
        assert_eq!(hands.head(turn).await.class(), Class::Open, "nobody can decide about it");
    }
}

#[tokio::test]
async fn f9_a_broken_neighbour_changes_nothing() {
    neighbours_end_in_time(1).await;
}

/// More of them than one round of the due loop looks at.
#[tokio::test]
async fn f17_hundreds_that_can_not_be_decided_on_keep_nothing_waiting() {
    neighbours_end_in_time(300).await;
}

#[test]
fn f9_each_end_is_one_commit() {
    let mut w = World::new();
    w.agent("a");
    w.agent("b");
    let (a, b) = (w.send("a"), w.send("b"));
    w.pass(secs(31));
    assert_eq!((w.status(a), w.status(b)), ("timeout", "timeout"));
    for turn in [a, b] {
        let last = w.store.streams[&turn].last().expect("a record").clone();
        let names: Vec<String> =
            last.events().expect("readable").iter().map(|e| e.name.to_string()).collect();
        assert_eq!(names, ["turn_timed_out"], "event, record of force and deliverable in one");
    }
    assert_eq!(w.announced("evt.agent.a.task").len(), 1);
    assert_eq!(w.announced("evt.agent.b.task").len(), 1);
}

#[test]
fn f10_the_next_turn_comes_after_everything_of_the_last() {
    let mut w = World::new();
    w.agent("a");
    let (first, second) = (w.send("a"), w.send("a"));
    let worker = w.worker();
    w.begin(first, worker);
    w.pass(secs(301));
    let at = |turn, subject: &str, status: &str| {
        w.wire.iter().position(|a| {
            a.subject == subject
                && a.body["status"] == status
                && a.body["agent_turn_id"] == json!(turn)
        })
    };
    let task = at(first, "evt.agent.a.task", "failed").expect("announced");
    let next = at(second, "evt.agent.a.state", "dispatched").expect("dispatched");
    assert!(task < next, "{task} {next}");
    // And a turn that has just been suspended is not reaped.
    let held = {
        let s = w.worker();
        w.begin(second, s)
    };
    w.pass(secs(299));
    let call = w.outside_call("x", Some(600_000));
    committed(&w.suspend(&held, vec![call]));
    w.pass(secs(590));
    assert_eq!(w.status(second), "suspended");
}

#[test]
fn f11_a_claim_has_an_owner() {
    let mut w = World::new();
    w.rules.inbox_processing_ms = 30_000;
    w.agent("a");
    let turn = w.send("a");
    let (one, two) = (w.worker(), w.worker());
    let old = w.claim(turn, one).expect("free");
    w.pass(secs(31));
    let new = w.begin(turn, two);
    assert!(new.epoch > old.epoch);
    let late = w.finish(&old);
    assert!(matches!(late, CommitAnswer::StaleEpoch { .. }), "{late:?}");
    committed(&w.finish(&new));
}

#[test]
fn f12_deadlines_nest() {
    let mut w = World::new();
    w.agent("boss");
    w.agent("b");
    let boss = w.send("boss");
    let worker = w.worker();
    let held = w.begin(boss, worker);
    let quick = w.outside_call("quick", None);
    let mut fork = w.join_call(boss, &["b"], false, 900_000);
    fork.call = "fork".into();
    // The join is the second wait that somebody answers under a number.
    let call = vec![fork, quick];
    committed(&w.suspend(&held, call));
    w.settle();
    let waits = w.turn(boss).waits;
    w.result(boss, "r", to_call("quick"));
    w.settle();
    let kept = w.turn(boss).waits[0].deadline;
    assert_eq!(kept, waits[0].deadline, "a sibling's result changes nothing");
    let join = *w.store.heads.iter().find(|(_, h)| h.kind() == "join").expect("a join").0;
    let (inner, outer) = (w.head(join).must_end_by.expect("open"), kept.expect("a time"));
    assert!(inner < outer, "the join ends before its wait does");
    // A child whose worker never ends it: the join answers in time, and the result counts.
    let child = w.agent_state("b").active.expect("active").turn;
    let (s, mut n) = (w.worker(), 0);
    let held = w.begin(child, s);
    while w.status(boss) == "suspended" && n < 20 {
        w.pass(secs(100));
        n += 1;
        if !w.is_final(child) {
            let decision = act::progress(&w.turn(child), &w.cx(child), "");
            let _ = w.act_unread(&held, decision);
        }
    }
    assert_eq!(w.status(boss), "ready");
    assert_eq!(w.count(boss, "wait_timed_out"), 0, "the join's own answer came first");
    w.check();
}

#[test]
fn f13_one_timeout_report_per_wait() {
    let mut w = World::new();
    let turn = suspended(&mut w, &["x", "y"]);
    w.result(turn, "r", to_call("y"));
    w.pass(secs(600));
    assert_eq!(w.count(turn, "wait_timed_out"), 1);
}

#[test]
fn f14_ids_of_models_repeat() {
    let mut w = World::new();
    w.agent("a");
    w.agent("b");
    let (a, b) = (w.send("a"), w.send("b"));
    let worker = w.worker();
    for turn in [a, b] {
        let held = w.begin(turn, worker);
        let calls = vec![w.outside_call("call_0", None), w.outside_call("call_0", None)];
        committed(&w.suspend(&held, calls));
        w.settle();
        // In one step the id alone says too little; the wait's name does not.
        w.result(turn, "r0", to_call("call_0"));
        w.settle();
        assert_eq!(w.turn(turn).dead, 1);
        w.result(turn, "r1", to("1.1"));
        w.result(turn, "r2", to("1.2"));
        w.settle();
        assert_eq!(w.count(turn, "result_applied"), 2);
        // The same id in the next step is another call.
        let held = w.begin(turn, worker);
        let call = w.outside_call("call_0", None);
        committed(&w.suspend(&held, vec![call]));
        w.settle();
        w.result(turn, "r3", to_call("call_0"));
        w.settle();
        assert_eq!(w.status(turn), "ready");
    }
    w.check();
}

/// Whoever serves the join dies before it has heard of anything; its children end meanwhile. Nothing of it is lost.
#[test]
fn f15_f16_children_that_end_before_their_join_is_served_are_heard_of() {
    let mut w = World::new();
    for name in ["boss", "b", "c"] {
        w.agent(name);
    }
    let boss = w.send("boss");
    let worker = w.worker();
    let held = w.begin(boss, worker);
    let call = w.join_call(boss, &["b", "c"], false, 900_000);
    let WaitFor::Join(join) = (match &call.how {
        act::How::Ask(waits_for, _) => *waits_for,
        _ => unreachable!("a join is asked"),
    }) else {
        unreachable!("it is a join")
    };
    w.asleep.insert(join);
    committed(&w.suspend(&held, vec![call]));
    w.settle();
    for name in ["c", "b"] {
        let child = w.agent_state(name).active.expect("active").turn;
        let held = w.begin(child, worker);
        committed(&w.finish(&held));
        w.settle();
        assert_eq!(w.status(child), "success");
    }
    assert_eq!(w.unread(join).len(), 2, "both have said it, and nobody has read it");
    w.pass(secs(60));
    assert_eq!(w.status(boss), "suspended");
    w.asleep.clear();
    w.settle();
    assert_eq!(w.status(boss), "ready");
    let applied = w.events(boss).into_iter().find_map(|e| match e {
        TurnEvent::ResultApplied(a) => Some(a),
        _ => None,
    });
    let rows = applied.expect("one result").result;
    let rows = rows.as_array().expect("rows");
    assert!(rows.len() == 2 && rows.iter().all(|r| r["status"] == "success"), "{rows:?}");
    w.check();
}

#[test]
fn f15_f16_a_join_waits_for_all_and_answers_in_order() {
    let mut w = World::new();
    w.agent("boss");
    w.agent("b");
    w.agent("c");
    let boss = w.send("boss");
    let worker = w.worker();
    let held = w.begin(boss, worker);
    let call = w.join_call(boss, &["b", "c", "nobody"], false, 900_000);
    committed(&w.suspend(&held, vec![call]));
    w.settle();
    for name in ["b", "c"] {
        let child = w.agent_state(name).active.expect("active").turn;
        let held = w.begin(child, worker);
        committed(&w.finish(&held));
    }
    w.settle();
    assert_eq!(w.status(boss), "ready");
    let applied = w.events(boss).into_iter().find_map(|e| match e {
        tenure_agents::turn::TurnEvent::ResultApplied(a) => Some(a),
        _ => None,
    });
    let rows = applied.expect("one result").result;
    let status: Vec<&str> =
        rows.as_array().expect("rows").iter().map(|r| r["status"].as_str().expect("s")).collect();
    assert_eq!(status, ["success", "success", "failed"], "in order; an unknown agent is a failure");
    w.check();
}

#[test]
fn f17_dead_letters_of_a_turn_keep_nothing_of_it_waiting() {
    let mut w = World::new();
    let turn = suspended(&mut w, &["x"]);
    for n in 0..300 {
        w.result(turn, &format!("bad{n}"), to(&format!("9.{n}")));
    }
    w.mail(turn, "junk", "tool_result", &json!({"no": "such field"}));
    w.mail(turn, "strange", "strange_type", &json!({}));
    w.result(turn, "good", to("1.1"));
    w.settle();
    assert_eq!(w.status(turn), "ready");
    assert_eq!(w.count(turn, "item_dead"), 302);
    w.check();
}

#[test]
fn f18_a_result_that_comes_before_the_suspend_is_kept_for_it() {
    let mut w = World::new();
    w.agent("a");
    let turn = w.send("a");
    let worker = w.worker();
    let held = w.begin(turn, worker);
    w.result(turn, "early", to_call("x"));
    w.pass(secs(200));
    let decision =
        tenure_agents::turn::decide::on_mail(&w.turn(turn), &w.unread(turn), &w.cx(turn));
    committed(&w.act(&held, decision));
    assert_eq!(w.turn(turn).early, ["x"]);
    let early = BTreeMap::from([("x".to_owned(), to_call("x"))]);
    let call = w.outside_call("x", None);
    committed(&w.suspend_with(&held, vec![call], &early));
    assert_eq!(w.status(turn), "ready", "suspended, answered and resumed in one commit");
    assert_eq!(w.turn(turn).turn_epoch, 2);
    assert!(w.turn(turn).early.is_empty());
    w.check();
}

/// An id of a model repeats: a result that was kept for a call under one counter does not answer one under the next.
#[test]
fn f18_a_result_that_was_kept_is_not_for_a_later_counter() {
    let mut w = World::new();
    w.agent("a");
    let turn = w.send("a");
    let worker = w.worker();
    let held = w.begin(turn, worker);
    let early = ToolResult { turn_epoch: Some(1), ..to_call("x") };
    w.result(turn, "early", early.clone());
    let read = tenure_agents::turn::decide::on_mail(&w.turn(turn), &w.unread(turn), &w.cx(turn));
    committed(&w.act(&held, read));
    let call = w.outside_call("y", None);
    committed(&w.suspend(&held, vec![call]));
    w.result(turn, "r", to("1.1"));
    w.settle();
    assert_eq!((w.status(turn), w.turn(turn).turn_epoch), ("ready", 2));
    assert_eq!(w.turn(turn).early, ["x"]);
    let held = w.begin(turn, worker);
    let kept = BTreeMap::from([("x".to_owned(), early)]);
    let call = w.outside_call("x", None);
    committed(&w.suspend_with(&held, vec![call], &kept));
    assert_eq!(w.status(turn), "suspended", "it is waited for");
    assert_eq!(w.turn(turn).waits.len(), 1);
    // And what is left of the old one is a dead letter, as the worker writes it beside the suspend.
    let mut talk = tenure_agents::drive::conversation::Conversation::default();
    w.events(turn).iter().for_each(|e| talk.take(e));
    let mut state = w.turn(turn);
    assert!(talk.outlived(1).is_empty());
    for event in talk.outlived(2) {
        <tenure_agents::turn::Turn as tenure_kernel::machine::Machine>::apply(&mut state, &event);
        talk.take(&event);
    }
    assert!(state.early.is_empty() && state.dead == 1 && talk.early.is_empty());
    w.check();
}
