use super::{super::spool::Mark, *};
use crate::verdict::{Cause, NodeReady};
use proptest::prelude::*;
use serde_json::{Value, json};

const MINUTE: Duration = Duration::from_secs(60);

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_micros(1_700_000_000_000_000) + Duration::from_secs(seconds)
}

const WELL: NodeView = NodeView { exists: true, ready: NodeReady::Yes, out_of_service: false };

fn labels(task: &str) -> Value {
    json!({ "flowforge.io/workload": "true", "flowforge.io/task-id": task, "flowforge.io/workflow-id": "w",
        "flowforge.io/tenant-id": "acme", "flowforge.io/attempt": "2" })
}

fn pod(task: &str, node: &str, status: Value) -> LeanPod {
    let pod = json!({
        "metadata": { "name": task, "namespace": "n", "uid": format!("u-{task}"), "labels": labels(task),
            "creationTimestamp": "2023-11-14T22:13:20Z" },
        "spec": { "nodeName": node, "restartPolicy": "Never", "containers": [{ "name": "main" }] },
        "status": status,
    });
    serde_json::from_value(pod).unwrap()
}

fn pending(task: &str, node: &str) -> LeanPod {
    pod(task, node, json!({ "phase": "Pending" }))
}

fn running(task: &str) -> LeanPod {
    let state = json!({ "running": { "startedAt": "2023-11-14T22:13:21Z" } });
    pod(
        task,
        "n1",
        json!({ "phase": "Running", "containerStatuses": [{ "name": "main", "state": state }] }),
    )
}

fn ended(task: &str, code: i32) -> LeanPod {
    let phase = if code == 0 { "Succeeded" } else { "Failed" };
    let reason = if code == 0 { "Completed" } else { "Error" };
    let state = json!({ "terminated": { "exitCode": code, "reason": reason,
        "startedAt": "2023-11-14T22:13:21Z", "finishedAt": "2023-11-14T22:13:30Z" } });
    pod(
        task,
        "n1",
        json!({ "phase": phase, "containerStatuses": [{ "name": "main", "state": state }] }),
    )
}

fn deleting(mut pod: LeanPod) -> LeanPod {
    let time = serde_json::from_value(json!("2023-11-14T22:13:40Z")).unwrap();
    pod.0.metadata.deletion_timestamp = Some(time);
    pod
}

fn core() -> Core {
    Core::new(Policy::default(), Area::cluster(), "here")
}

fn said(acts: &[Act]) -> Vec<String> {
    let one = |act: &Act| match act {
        Act::Ask(pod) => format!("ask {}", pod.name),
        Act::Say(saying) => {
            let r = &saying.report;
            let how = if r.gone {
                " gone"
            } else if r.over {
                " over"
            } else {
                ""
            };
            let to = match (saying.channel, saying.server) {
                (true, true) => "",
                (true, false) => " on the channel",
                (false, _) => " quietly",
            };
            format!("{} {}{how}{to}", r.task_id, r.verdict.status.unwrap().name())
        }
    };
    acts.iter().map(one).collect()
}

#[test]
fn what_is_new_is_said_once() {
    let mut core = core();
    assert!(core.seen(&pending("a", "n1"), at(1)).is_empty());
    assert_eq!(said(&core.seen(&running("a"), at(2))), ["a RUNNING"]);
    assert!(core.seen(&running("a"), at(3)).is_empty());
    let acts = core.seen(&ended("a", 3), at(4));
    assert_eq!(said(&acts), ["a FAILED over"]);
    let Act::Say(saying) = &acts[0] else { panic!() };
    let report = &saying.report;
    assert_eq!(
        (report.attempt, report.collector.as_str(), report.seen_at),
        (Some(2), "here", at(4))
    );
    assert!(core.seen(&running("a"), at(5)).is_empty(), "the end stays");
    assert!(core.deleted(&deleting(ended("a", 3)), at(6)).is_empty());
    assert_eq!((core.pods(), core.tally().repeats), (0, 4));
}

/// As our own executor labels the pod of a task that was ordered without a workflow.
#[test]
fn the_pod_of_a_task_without_a_workflow_is_told_of() {
    let mut core = core();
    let mut alone = running("a");
    let labels = alone.0.metadata.labels.as_mut().unwrap();
    labels.insert("flowforge.io/workflow-id".into(), String::new());
    let acts = core.seen(&alone, at(1));
    assert_eq!(said(&acts), ["a RUNNING"]);
    let Act::Say(saying) = &acts[0] else { panic!() };
    assert_eq!(saying.report.workflow_id, "");
}

#[test]
fn an_absent_pod_is_asked_for_unless_it_was_going() {
    let mut core = core();
    core.list_began();
    for task in ["a", "b", "c"] {
        core.seen(&running(task), at(1));
    }
    core.seen(&deleting(running("d")), at(1));
    assert!(core.list_complete(at(1)).is_empty());
    core.list_began();
    core.seen(&running("c"), at(2));
    let mut acts = said(&core.list_complete(at(2)));
    acts.sort();
    assert_eq!(acts, ["ask a", "ask b", "d FAILED gone quietly"]);
    let asked =
        |task: &str| PodRef { namespace: "n".into(), name: task.into(), uid: format!("u-{task}") };
    assert!(
        core.answered(&asked("a"), Some(&running("a")), at(3)).is_empty(),
        "it is there after all"
    );
    let mut other = running("b");
    other.0.metadata.uid = Some("u-other".into());
    assert_eq!(said(&core.answered(&asked("b"), Some(&other), at(3))), ["b FAILED gone quietly"]);
    assert_eq!(core.pods(), 2);
    // Without its label it is none of ours, and may run on.
    let mut bare = running("a");
    bare.0.metadata.labels = None;
    assert!(core.answered(&asked("a"), Some(&bare), at(4)).is_empty());
    assert_eq!(core.pods(), 1);
}

#[test]
fn a_list_that_began_anew_misses_nobody() {
    let mut core = core();
    core.list_began();
    core.seen(&running("a"), at(1));
    core.list_complete(at(1));
    core.list_began();
    core.list_began();
    core.seen(&running("a"), at(2));
    assert!(core.list_complete(at(2)).is_empty());
}

#[test]
fn silence_is_judged_when_it_is_due() {
    let mut core = core();
    core.seen(&pending("a", "n1"), at(1));
    let due = core.next_due().unwrap();
    assert!(core.tick(due - Duration::from_secs(1)).is_empty());
    assert_eq!(said(&core.tick(due)), ["a FAILED"]);
    assert!(core.tick(due + 100 * MINUTE).is_empty());
    assert_eq!(core.tally().timers, 1);
}

#[test]
fn a_dead_node_is_noticed_without_a_word_from_its_pods() {
    let mut core = core();
    core.nodes_began();
    core.node("n1", WELL, at(0));
    core.seen(&running("a"), at(1));
    core.nodes_complete(at(1));
    let silent = NodeView { ready: NodeReady::Silent(Some(at(10))), ..WELL };
    assert!(core.node("n1", silent, at(20)).is_empty());
    let due = core.next_due().unwrap();
    let acts = core.tick(due);
    assert_eq!(said(&acts), ["a FAILED"]);
    let Act::Say(saying) = &acts[0] else { panic!() };
    assert_eq!(saying.report.verdict.cause, Some(Cause::NodeLost));
    // One that comes back in time changes nothing.
    core.seen(&running("b"), at(30));
    let due = core.next_due().unwrap();
    assert!(core.node("n1", WELL, at(31)).is_empty());
    assert!(core.tick(due + MINUTE).is_empty());
}

#[test]
fn a_sweeper_leaves_to_others_what_they_can_see() {
    let mut core = Core::new(Policy::default(), Area::sweeper(MINUTE), "sweeper");
    core.nodes_began();
    core.node("n1", WELL, at(0));
    core.nodes_complete(at(0));
    assert!(core.seen(&running("a"), at(1)).is_empty());
    // Of one that is gone nobody sees any more how it ended.
    assert_eq!(said(&core.deleted(&deleting(running("b")), at(2))), ["b FAILED gone quietly"]);
    assert_eq!(said(&core.deleted(&deleting(pending("c", "")), at(3))), ["c FAILED gone quietly"]);
    assert!(core.tick(at(60)).is_empty());
    assert_eq!(said(&core.tick(at(70))), ["a RUNNING quietly"]);
    // A node that is not well: at once, and on the channel too.
    core.node("n1", NodeView { ready: NodeReady::No, ..WELL }, at(80));
    assert_eq!(said(&core.seen(&ended("a", 1), at(81))), ["a FAILED over"]);
}

#[test]
fn one_that_begins_to_speak_says_what_the_last_one_may_not_have_said() {
    let mut core = core();
    core.set_active(false, at(0));
    assert!(core.seen(&running("a"), at(1)).is_empty());
    assert!(core.seen(&ended("b", 0), at(1)).is_empty());
    assert!(core.deleted(&deleting(running("old")), at(1)).is_empty());
    assert!(core.deleted(&deleting(running("c")), at(90)).is_empty());
    let mut acts = said(&core.set_active(true, at(100)));
    assert_eq!(acts.remove(0), "c FAILED gone quietly");
    acts.sort();
    assert_eq!(acts, ["a RUNNING", "b SUCCEEDED over"]);
    assert!(core.set_active(true, at(101)).is_empty());
}

fn sweeper() -> Core {
    Core::new(Policy::default(), Area::sweeper(MINUTE), "sweeper")
}

#[test]
fn a_sweeper_that_is_restarted_still_says_what_it_held_back() {
    let mut core = sweeper();
    core.list_began();
    assert!(core.seen(&running("a"), at(1)).is_empty());
    assert!(core.seen(&ended("b", 1), at(1)).is_empty());
    let mut left = ended("c", 0);
    let statuses = left.0.status.as_mut().unwrap().container_statuses.as_mut().unwrap();
    let end = statuses[0].state.as_mut().unwrap().terminated.as_mut().unwrap();
    end.message = Some("seven".into());
    // Over, held back, and gone before it was said.
    assert!(core.seen(&left, at(1)).is_empty());
    assert_eq!(said(&core.deleted(&deleting(left), at(2))), ["c SUCCEEDED over quietly"]);
    let marks: Vec<Mark> = core.marks().collect();
    let mut again = sweeper();
    again.load(marks, true);
    again.list_began();
    assert!(again.seen(&running("a"), at(3)).is_empty());
    assert!(again.seen(&ended("b", 1), at(3)).is_empty());
    let mut acts = again.list_complete(at(3));
    assert_eq!(said(&acts), ["c SUCCEEDED gone quietly"]);
    acts.extend(again.tick(at(70)));
    let mut told = said(&acts);
    told.sort();
    // Nobody was heard who told the channel of the end.
    assert_eq!(told, ["a RUNNING quietly", "b FAILED over", "c SUCCEEDED gone quietly"]);
    let result = acts.iter().find_map(|act| match act {
        Act::Say(saying) if saying.report.task_id == "c" => saying.report.result.clone(),
        _ => None,
    });
    assert_eq!(result.as_deref(), Some("seven"));
    assert!(again.marks().all(|mark| !mark.said.is_empty()), "now it was said");
}

/// Writes down what is known in pieces of one pod, as [`Spool`](super::super::spool::Spool) would keep it: later marks of a pod take the place
/// of earlier ones, and what is said after a mark is read after it.
#[derive(Default)]
struct Pass {
    marks: BTreeMap<String, (usize, Mark)>,
    said: Vec<Saying>,
    behind: String,
    done: bool,
}

impl Pass {
    fn piece(&mut self, core: &Core) {
        match core.marks_after(&self.behind, 1).pop() {
            Some(mark) => {
                self.behind.clone_from(&mark.uid);
                self.marks.insert(mark.uid.clone(), (self.said.len(), mark));
            }
            None => {
                let said = self.said.len();
                let gone = core.marks_of_gone().into_iter();
                self.marks.extend(gone.map(|m| (m.uid.clone(), (said, m))));
                self.done = true;
            }
        }
    }

    fn heard(&mut self, acts: &[Act]) {
        let said = acts.iter().filter_map(|act| match act {
            Act::Say(saying) => Some((**saying).clone()),
            Act::Ask(_) => None,
        });
        self.said.extend(said);
    }

    fn read(&self) -> Vec<Mark> {
        let marks = self.marks.values().map(|(_, mark)| (mark.uid.clone(), mark.clone()));
        let mut marks: BTreeMap<String, Mark> = marks.collect();
        for (i, saying) in self.said.iter().enumerate() {
            if self.marks.get(&saying.report.pod.uid).is_none_or(|(said, _)| i >= *said) {
                saying.mark_in(&mut marks);
            }
        }
        marks.into_values().collect()
    }
}

#[test]
fn what_a_sweeper_holds_back_while_marks_are_written_is_in_them() {
    let mut core = sweeper();
    core.list_began();
    for task in ["a", "b", "c", "d"] {
        core.seen(&running(task), at(1));
    }
    let mut pass = Pass::default();
    pass.heard(&core.tick(at(70)));
    pass.piece(&core);
    // Held back: of one that is written already, of one that comes, of one that is gone before it comes, and of one that nobody has seen before.
    core.seen(&ended("a", 1), at(71));
    core.seen(&ended("b", 1), at(71));
    pass.heard(&core.deleted(&deleting(running("c")), at(71)));
    pass.heard(&core.deleted(&deleting(running("0")), at(71)));
    while !pass.done {
        pass.piece(&core);
    }
    let mut again = sweeper();
    again.load(pass.read(), true);
    again.list_began();
    for pod in [ended("a", 1), ended("b", 1), running("d")] {
        assert!(again.seen(&pod, at(72)).is_empty());
    }
    again.list_complete(at(72));
    let mut told = said(&again.tick(at(200)));
    told.sort();
    assert_eq!(told, ["a FAILED over", "b FAILED over"]);
}

#[test]
fn what_a_sweeper_holds_back_is_one_thing_of_each_pod_and_not_put_off() {
    let mut core = sweeper();
    core.seen(&running("a"), at(1));
    core.seen(&deleting(running("a")), at(30));
    core.seen(&ended("a", 3), at(40));
    assert_eq!(core.later.all().count(), 1);
    assert_eq!(said(&core.tick(at(61))), ["a FAILED over"]);
    // What is said at once takes the place of what was held back.
    core.seen(&running("c"), at(62));
    core.nodes_began();
    core.node("n1", NodeView { ready: NodeReady::No, ..WELL }, at(63));
    core.nodes_complete(at(63));
    assert_eq!(said(&core.seen(&ended("c", 1), at(64))), ["c FAILED over"]);
    assert!(core.tick(at(200)).is_empty());
}

#[test]
fn how_a_pod_ended_that_is_gone_is_said_to_the_server_at_once() {
    let mut core = sweeper();
    core.seen(&running("a"), at(1));
    assert!(core.seen(&ended("a", 0), at(2)).is_empty());
    let told = said(&core.deleted(&deleting(ended("a", 0)), at(3)));
    assert_eq!(told, ["a SUCCEEDED over quietly"]);
    // The channel is left to the collector of the node, and told when nobody else did that.
    assert!(core.tick(at(60)).is_empty());
    assert_eq!(said(&core.tick(at(61))), ["a SUCCEEDED over on the channel"]);
    assert!(core.tick(at(200)).is_empty());
}

#[test]
fn an_end_that_was_heard_on_the_channel_is_not_told_there_again() {
    let mut core = sweeper();
    for task in ["a", "b"] {
        core.seen(&running(task), at(1));
        core.seen(&ended(task, 3), at(2));
        core.heard(&format!("u-{task}"), at(3));
    }
    let told = said(&core.deleted(&deleting(ended("a", 3)), at(4)));
    assert_eq!(told, ["a FAILED over quietly"]);
    assert_eq!(said(&core.tick(at(61))), ["b FAILED over quietly"]);
    // Also by one that takes over from whoever told it.
    let mut standby = self::core();
    standby.set_active(false, at(0));
    standby.seen(&ended("c", 3), at(1));
    standby.heard("u-c", at(2));
    assert_eq!(said(&standby.set_active(true, at(3))), ["c FAILED over quietly"]);
    // What was heard long ago is forgotten.
    core.heard("u-z", at(1_000));
    assert_eq!((core.heard.len(), core.heard_at.len()), (1, 1));
}

#[test]
fn ends_of_long_ago_are_not_told_on_the_channel_by_every_sweeper_that_starts_or_takes_over() {
    // They ended at 10 seconds.
    let told = |listed: u64| {
        let mut core = sweeper();
        core.list_began();
        core.seen(&ended("a", 1), at(listed));
        core.list_complete(at(listed));
        said(&core.tick(at(listed + 60)))
    };
    assert_eq!(told(100), ["a FAILED over"]);
    assert_eq!(told(131), ["a FAILED over quietly"]);
    let mut standby = sweeper();
    standby.set_active(false, at(0));
    standby.list_began();
    standby.seen(&ended("b", 1), at(20));
    standby.list_complete(at(20));
    standby.set_active(true, at(3_600));
    assert_eq!(said(&standby.tick(at(3_660))), ["b FAILED over quietly"]);
    // What ends while it looks is told, whatever its node says about the time.
    standby.seen(&running("c"), at(3_661));
    standby.seen(&ended("c", 1), at(3_662));
    assert_eq!(said(&standby.tick(at(3_721))), ["c FAILED over"]);
}

fn reports(acts: &[Act]) -> Vec<&Report> {
    let said = acts.iter().filter_map(|act| match act {
        Act::Say(saying) => Some(&saying.report),
        Act::Ask(_) => None,
    });
    said.collect()
}

#[test]
fn a_pod_ends_once_on_the_channel() {
    // A clock ends it, and later the pod itself.
    let mut core = core();
    core.seen(&pending("a", "n1"), at(1));
    let clock = core.tick(core.next_due().unwrap());
    assert_eq!(said(&clock), ["a FAILED"]);
    let own = core.seen(&ended("a", 1), at(4_000));
    assert_eq!(said(&own), ["a FAILED over quietly"]);
    assert_eq!(reports(&clock)[0].event_id(), reports(&own)[0].event_id());
    // A marker ends it, then its deletion.
    let mut marked = running("b");
    let mark = ("flowforge.io/cancel".to_owned(), "asked".to_owned());
    marked.0.metadata.annotations = Some([mark].into());
    let asked = core.seen(&marked, at(4_001));
    assert_eq!(said(&asked), ["b CANCELED"]);
    let went = core.deleted(&deleting(marked.clone()), at(4_002));
    assert_eq!(said(&went), ["b CANCELED gone quietly"]);
    // Held back by a sweeper, the first end is not lost by the second.
    let mut core = sweeper();
    core.seen(&marked, at(1));
    assert!(core.seen(&deleting(marked), at(2)).is_empty());
    assert_eq!(said(&core.tick(at(61))), ["b CANCELED"]);
}

#[test]
fn whoever_tells_an_end_tells_it_under_the_same_id_and_moment() {
    let lost = |seconds: u64, view: Option<NodeView>| {
        let mut core = core();
        core.seen(&running("a"), at(1));
        core.nodes_began();
        core.node("n1", view.unwrap_or(WELL), at(seconds));
        let mut acts = core.nodes_complete(at(seconds));
        if view.is_none() {
            acts.extend(core.node_deleted("n1", at(seconds)));
        }
        acts.extend(core.next_due().map(|due| core.tick(due)).unwrap_or_default());
        let report = reports(&acts).pop().expect("lost").clone();
        (report.event_id(), report.verdict.since, report.verdict.cause)
    };
    let out = Some(NodeView { out_of_service: true, ..WELL });
    for view in [None, out] {
        assert_eq!(lost(100, view), lost(900, view), "after a hand-over");
        assert_eq!(lost(100, view).2, Some(Cause::NodeLost));
    }
    let cancelled = |seconds| {
        let mut marked = running("b");
        let mark = ("flowforge.io/cancel".to_owned(), "asked".to_owned());
        marked.0.metadata.annotations = Some([mark].into());
        let acts = core().seen(&marked, at(seconds));
        let report = reports(&acts)[0].clone();
        (report.event_id(), report.verdict.since)
    };
    assert_eq!(cancelled(100), cancelled(900));
}

#[test]
fn an_end_that_nobody_saw_is_said_to_be_inferred() {
    let asked = PodRef { namespace: "n".into(), name: "a".into(), uid: "u-a".into() };
    let missed = |last: &LeanPod| {
        let mut core = core();
        core.seen(last, at(1));
        let acts = core.answered(&asked, None, at(2));
        reports(&acts).first().map(|r| (r.inferred, r.verdict.since.is_some()))
    };
    assert_eq!(missed(&running("a")), Some((true, false)), "and nobody knows when");
    assert_eq!(missed(&deleting(running("a"))), Some((true, true)));
    assert_eq!(missed(&ended("a", 1)), None, "its end was said before");
    let mut core = core();
    core.seen(&running("a"), at(1));
    let went = core.deleted(&deleting(running("a")), at(2));
    assert!(!reports(&went)[0].inferred, "the watch showed it as it was when it went");
}

#[test]
fn one_that_only_listens_marks_nothing_as_said_and_then_says_it_once() {
    let mut core = core();
    core.list_began();
    assert_eq!(said(&core.seen(&ended("told", 0), at(0))), ["told SUCCEEDED over"]);
    core.set_active(false, at(0));
    core.seen(&running("a"), at(1));
    core.seen(&ended("b", 0), at(1));
    core.deleted(&deleting(running("c")), at(1));
    let marks: Vec<Mark> = core.marks().collect();
    let said_of: Vec<&str> = marks.iter().filter(|m| m.over).map(|m| m.uid.as_str()).collect();
    assert_eq!(said_of, ["u-told"]);
    assert!(marks.iter().all(|m| m.over || m.said.is_empty()), "{marks:?}");
    let mut acts = said(&core.set_active(true, at(2)));
    acts.sort();
    assert_eq!(acts, ["a RUNNING", "b SUCCEEDED over", "c FAILED gone quietly"]);
    // The same after a restart.
    let mut again = self::core();
    again.load(marks, true);
    again.list_began();
    let mut acts = said(&again.seen(&running("a"), at(3)));
    acts.extend(said(&again.seen(&ended("b", 0), at(3))));
    acts.extend(said(&again.seen(&ended("told", 0), at(3))));
    acts.extend(said(&again.list_complete(at(3))));
    assert_eq!(acts, ["a RUNNING", "b SUCCEEDED over", "c FAILED gone quietly"]);
}

#[test]
fn what_was_dropped_is_news_again() {
    let mut core = core();
    let acts = core.seen(&running("a"), at(1));
    let Act::Say(saying) = &acts[0] else { panic!() };
    core.forget(&[(**saying).clone()]);
    assert_eq!(said(&core.seen(&running("a"), at(2))), ["a RUNNING"]);
}

#[test]
fn what_was_known_is_known_after_a_restart() {
    let mut core = core();
    core.list_began();
    core.seen(&running("a"), at(1));
    core.seen(&ended("b", 0), at(1));
    core.seen(&running("c"), at(1));
    let marks: Vec<Mark> = core.marks().collect();
    let mut again = self::core();
    again.load(marks.clone(), true);
    again.list_began();
    assert!(again.seen(&running("a"), at(2)).is_empty());
    assert!(again.seen(&ended("b", 0), at(2)).is_empty());
    assert_eq!(said(&again.list_complete(at(2))), ["ask c"]);
    // Whoever listens to a channel may have missed it.
    let mut loud = self::core();
    loud.load(marks, false);
    assert_eq!(said(&loud.seen(&running("a"), at(2))), ["a RUNNING"]);
    assert_eq!(said(&loud.seen(&ended("b", 0), at(2))), ["b SUCCEEDED over"]);
}

#[test]
fn a_pod_that_lost_its_labels_is_still_known() {
    let mut core = core();
    core.seen(&running("a"), at(1));
    let mut bare = ended("a", 1);
    bare.0.metadata.labels.as_mut().unwrap().remove("flowforge.io/task-id");
    assert_eq!(said(&core.seen(&bare, at(2))), ["a FAILED over"]);
    let mut stray = running("x");
    stray.0.metadata.labels.as_mut().unwrap().remove("flowforge.io/workflow-id");
    assert!(core.seen(&stray, at(3)).is_empty());
    assert_eq!((core.pods(), core.tally().unlabelled), (1, 1));
}

/// What one pod costs: its record, its facts, its verdict, and what was said.
#[test]
fn a_live_pod_costs_less_than_four_kilobytes() {
    let mut core = core();
    core.seen(&running("0190b5e0-1234-7abc-8def-0123456789ab"), at(1));
    let record = core.pods.values().next().unwrap();
    let verdict = record.last.as_ref().unwrap();
    let texts = verdict.message.capacity() + verdict.reason.capacity() + verdict.rule.capacity();
    let who = &record.who;
    let bytes = size_of::<Record>()
        + size_of::<Verdict>()
        + texts
        + record.facts.len()
        + record.said.as_ref().map_or(0, |s| s.key.len())
        + who.task.len()
        + who.workflow.len()
        + who.tenant.len()
        + 2 * 36;
    assert!(bytes < 2_048, "{bytes}");
}

proptest! {
    /// Whatever is seen in whatever order: the first end of a pod stays, nobody runs after an end, and that a pod is over is said
    /// once (or twice, if it was gone before its end was seen).
    #[test]
    fn an_end_is_said_once_and_stays(steps in proptest::collection::vec((0u8..14, 0usize..3, 1u64..4_000), 1..80)) {
        let mut core = core();
        let (mut kept, mut pass) = (Pass::default(), Pass::default());
        let tasks = ["a", "b", "c"];
        let mut told: HashMap<String, Vec<Report>> = HashMap::new();
        let mut now = 0;
        let mut there: [Option<LeanPod>; 3] = [None, None, None];
        let mut gone = [false; 3];
        core.list_began();
        for (what, which, later) in steps {
            now += later;
            let task = tasks[which];
            // A pod that is gone does not come back under its uid.
            if gone[which] && what < 8 {
                continue;
            }
            let object = match what {
                0 => Some(pending(task, "")),
                1 => Some(pending(task, "n1")),
                2 => Some(running(task)),
                3 => Some(ended(task, 0)),
                4 => Some(ended(task, 9)),
                5 => Some(deleting(running(task))),
                6 => Some(deleting(ended(task, 143))),
                _ => None,
            };
            let acts = match (what, object) {
                (_, Some(object)) => {
                    let acts = core.seen(&object, at(now));
                    there[which] = Some(object);
                    acts
                }
                (7, _) => {
                    gone[which] = true;
                    core.deleted(&deleting(there[which].take().unwrap_or_else(|| running(task))), at(now))
                }
                (8, _) => core.tick(at(now)),
                (9, _) => {
                    core.list_began();
                    let mut acts: Vec<Act> =
                        there.iter().flatten().flat_map(|p| core.seen(p, at(now))).collect();
                    acts.extend(core.list_complete(at(now)));
                    acts
                }
                (10, _) => {
                    gone[which] = true;
                    there[which] = None;
                    let asked = PodRef { namespace: "n".into(), name: task.into(), uid: format!("u-{task}") };
                    core.answered(&asked, None, at(now))
                }
                (11 | 12, _) => {
                    pass.piece(&core);
                    if pass.done {
                        kept = std::mem::take(&mut pass);
                    }
                    Vec::new()
                }
                _ => {
                    // Killed, wherever the marks were.
                    let marks = kept.read();
                    pass = Pass::default();
                    core = self::core();
                    core.load(marks, true);
                    core.list_began();
                    Vec::new()
                }
            };
            kept.heard(&acts);
            pass.heard(&acts);
            for act in acts {
                if let Act::Say(saying) = act {
                    told.entry(saying.report.task_id.clone()).or_default().push(saying.report);
                }
            }
        }
        for (task, reports) in &told {
            let first = reports.iter().position(|r| r.verdict.is_final()).unwrap_or(reports.len());
            for end in &reports[first..] {
                let same = (end.verdict.status, end.verdict.cause);
                prop_assert_eq!(same, (reports[first].verdict.status, reports[first].verdict.cause), "{}: {:?}", task, reports);
            }
            let keys: std::collections::BTreeSet<String> = reports.iter().map(Report::key).collect();
            prop_assert_eq!(keys.len(), reports.len(), "{}: {:?}", task, reports);
            prop_assert!(reports.iter().filter(|r| r.over).count() <= 2, "{}: {:?}", task, reports);
        }
    }
}
