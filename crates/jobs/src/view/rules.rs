//! The rules of the ledger, over events: pure, so that each can be shown to fail on a broken stream.
//!
//! They repeat in other words what the drive and the judge do, on purpose: a check that shares its code with
//! what it checks agrees with it always.

use super::Check;
use crate::model::{JobEvent, OwnEvent};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap, HashSet};
use tenure_kernel::{ids::SessionId, table::kernel_events as ke};
use tenure_steps::{
    events::{CallOutcome, ResultType, StepEvent, StepId, ValueKind, Verdict},
    saga::Undo,
    tool::Class,
};

/// One event of a stream, as the rules see it.
#[derive(Clone, Debug, PartialEq)]
pub struct Fact {
    /// Its version.
    pub version: u64,
    /// Under which epoch it was written.
    pub epoch: u64,
    /// Who took the job with its commit.
    pub took: Option<SessionId>,
    /// Its name.
    pub name: String,
    /// What it says; `None` for the kernel's own.
    pub event: Option<JobEvent>,
}

/// Versions are dense.
pub const DENSE: &str = "versions_are_dense";
/// Epochs only rise.
pub const FENCED: &str = "no_event_of_an_old_epoch_after_a_new_claim";
/// What ended had begun.
pub const STARTED_FIRST: &str = "every_end_of_a_call_has_its_start";
/// A second call needs the settlement of the first.
pub const ONE_AT_A_TIME: &str = "no_call_while_another_of_its_step_is_open";
/// One success per key.
pub const ONE_SUCCESS: &str = "at_most_one_effective_success_per_key";
/// One call per key, unless the tool may be called again.
pub const ONE_CALL: &str = "one_call_per_key_unless_idempotent";
/// A success counts once.
pub const COMMITTED_ONCE: &str = "a_success_is_committed_exactly_once";
/// What undoes a step was put on record before.
pub const UNDO_REGISTERED: &str = "what_is_undone_was_registered_and_not_kept";
/// Nothing comes after the end.
pub const FINAL: &str = "nothing_after_the_end";

const ALL: [(&str, &str); 9] = [
    (DENSE, "versions go up by one, from 1"),
    (FENCED, "epochs never fall, and a call ends under the epoch that started it or a later one"),
    (STARTED_FIRST, "finished, unknown, settled and committed name a call that was started"),
    (
        ONE_AT_A_TIME,
        "a call starts only when the one before it is known not to have been applied, or is called again",
    ),
    (ONE_SUCCESS, "a key has one success, whoever saw it"),
    (ONE_CALL, "a key is called twice only if its class is idempotent"),
    (COMMITTED_ONCE, "a step that succeeded has one command_committed, and no other has any"),
    (
        UNDO_REGISTERED,
        "a call that undoes a step comes after the record of it, and not after its saga is complete",
    ),
    (FINAL, "the final event is the last one"),
];

/// Looks at every rule. The second part says what is wrong, in words.
pub fn rules(facts: &[Fact]) -> (Vec<Check>, Vec<String>) {
    let mut book = Book::default();
    for fact in facts {
        book.order(fact);
        match &fact.event {
            Some(JobEvent::Step(event)) => book.step(fact.version, fact.epoch, event),
            Some(JobEvent::Own(OwnEvent::HistoryCopied { events, .. })) => {
                for event in events {
                    match serde_json::from_value(event.clone()) {
                        Ok(event) => book.step(fact.version, fact.epoch, &event),
                        Err(e) => {
                            book.wrong(STARTED_FIRST, fact.version, &format!("a copied event: {e}"))
                        }
                    }
                }
            }
            _ => {}
        }
    }
    book.balance();
    let check = |(rule, says): &(&str, &str)| Check {
        rule: (*rule).to_owned(),
        ok: !book.wrong.iter().any(|(r, _)| r == rule),
        says: (*says).to_owned(),
    };
    let problems = book.wrong.iter().map(|(rule, what)| format!("{rule}: {what}")).collect();
    (ALL.iter().map(check).collect(), problems)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stands {
    Open,
    NotApplied,
    CalledAgain,
    Success,
    GivenUp,
}

impl Stands {
    fn settled(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Happened => Stands::Success,
            Verdict::DidNotHappen | Verdict::Compensated => Stands::NotApplied,
            Verdict::Abandoned => Stands::GivenUp,
            Verdict::CalledAgain => Stands::CalledAgain,
        }
    }
}

struct Entry {
    step: StepId,
    key: String,
    call: u32,
    epoch: u64,
    class: Class,
    stands: Stands,
}

/// Everything seen so far.
#[derive(Default)]
struct Book {
    calls: Vec<Entry>,
    /// The last call under a name. These and the next: a history may have very many calls.
    by_name: HashMap<(StepId, String, u32), usize>,
    keys: HashSet<String>,
    started: HashSet<(String, u32)>,
    won: HashSet<String>,
    by_step: HashMap<StepId, Vec<usize>>,
    committed: BTreeMap<(StepId, String), u32>,
    succeeded: BTreeMap<StepId, u64>,
    /// What undoes a step, by the step that does.
    undos: HashSet<StepId>,
    version: u64,
    epoch: u64,
    ended: Option<u64>,
    wrong: Vec<(&'static str, String)>,
}

impl Book {
    fn wrong(&mut self, rule: &'static str, version: u64, what: &str) {
        self.wrong.push((rule, format!("version {version}: {what}")));
    }

    fn order(&mut self, fact: &Fact) {
        let Fact { version, epoch, name, event, .. } = fact;
        if *version != self.version + 1 {
            let what = format!("comes after version {}", self.version);
            self.wrong(DENSE, *version, &what);
        }
        self.version = *version;
        if *epoch < self.epoch {
            let what =
                format!("{name} was written under epoch {epoch}, after epoch {}", self.epoch);
            self.wrong(FENCED, *version, &what);
        }
        self.epoch = self.epoch.max(*epoch);
        if let Some(end) = self.ended {
            // The record that ends a held job may close its tenure behind the end.
            if name != ke::TENURE_ENDED {
                self.wrong(
                    FINAL,
                    *version,
                    &format!("{name} comes after the end at version {end}"),
                );
            }
        }
        let ends = matches!(
            event,
            Some(JobEvent::Own(
                OwnEvent::JobCompleted { .. }
                    | OwnEvent::JobFailed(_)
                    | OwnEvent::JobCancelled { .. }
            ))
        );
        if ends || name == ke::FORCE_ENDED {
            self.ended = self.ended.or(Some(*version));
        }
    }

    fn find(
        &mut self,
        version: u64,
        what: &str,
        step: &StepId,
        key: &str,
        call: u32,
    ) -> Option<usize> {
        let found = self.by_name.get(&(step.clone(), key.to_owned(), call)).copied();
        if found.is_none() {
            let what = format!(
                "{what} of step {step} names call {call} of {key}, which was never started"
            );
            self.wrong(STARTED_FIRST, version, &what);
        }
        found
    }

    fn step(&mut self, version: u64, epoch: u64, event: &StepEvent) {
        let name = event.name();
        match event {
            StepEvent::ToolInvocationStarted { step, key, call, class, .. } => {
                if Undo::is_undo(step) && !self.undos.contains(step) {
                    let what = format!("step {step} undoes something, and nothing says what");
                    self.wrong(UNDO_REGISTERED, version, &what);
                }
                self.started(version, step, key, *call, *class);
                self.by_step.entry(step.clone()).or_default().push(self.calls.len());
                self.by_name.insert((step.clone(), key.clone(), *call), self.calls.len());
                self.keys.insert(key.clone());
                self.started.insert((key.clone(), *call));
                let (step, key, stands) = (step.clone(), key.clone(), Stands::Open);
                self.calls.push(Entry { step, key, call: *call, epoch, class: *class, stands });
            }
            StepEvent::ToolInvocationFinished { step, key, call, outcome, .. } => {
                let stands = match outcome {
                    CallOutcome::Success => Stands::Success,
                    CallOutcome::Failure | CallOutcome::Cancelled => Stands::NotApplied,
                };
                self.ended(version, epoch, name, (step, key, *call), stands);
            }
            StepEvent::EffectSettled { step, key, call, verdict, .. } => {
                let stands = Stands::settled(*verdict);
                self.ended(version, epoch, name, (step, key, *call), stands);
            }
            StepEvent::EffectCorrected { step, key, call, was, verdict, .. } => {
                self.corrected(version, name, (step, key, *call), *was, *verdict);
            }
            StepEvent::EffectUnknown { step, key, call, .. }
            | StepEvent::CompensationStarted { step, key, call } => {
                self.find(version, name, step, key, *call);
            }
            StepEvent::CommandCommitted { step, key, call } => {
                self.find(version, name, step, key, *call);
                *self.committed.entry((step.clone(), key.clone())).or_default() += 1;
            }
            StepEvent::NodeFinished {
                step, result_type: ResultType::SideEffectCommitted, ..
            } => {
                self.succeeded.insert(step.clone(), version);
            }
            StepEvent::ValueRecorded { step, kind: ValueKind::Undo, value, .. } => {
                self.undos.extend(Undo::read(step, value).map(|u| u.step()));
            }
            StepEvent::ValueRecorded { kind: ValueKind::Kept, value, .. } => {
                for kept in value.as_array().into_iter().flatten().filter_map(Value::as_str) {
                    let (at, of) = (StepId(kept.to_owned()), StepId(String::new()));
                    let undo = Undo { at, of, tool: String::new(), input: Value::Null };
                    self.undos.remove(&undo.step());
                }
            }
            _ => {}
        }
    }

    fn started(&mut self, version: u64, step: &StepId, key: &str, call: u32, class: Class) {
        let before = self.by_step.get(step).and_then(|calls| calls.last()).map(|i| &self.calls[*i]);
        let last = before.map(|e| (e.stands, e.class, e.key.clone(), e.call));
        let allowed = match &last {
            None | Some((Stands::NotApplied, ..)) => true,
            Some((Stands::CalledAgain, class, ..)) => *class == Class::Idempotent,
            Some(_) => false,
        };
        if let (false, Some((stands, _, key, call))) = (allowed, &last) {
            let what = format!(
                "step {step} is called again while call {call} of {key} stands as {stands:?}"
            );
            self.wrong(ONE_AT_A_TIME, version, &what);
        }
        if self.keys.contains(key) && class != Class::Idempotent {
            let what = format!(
                "{key} of step {step} is called a second time, and its class is {}",
                class.as_str()
            );
            self.wrong(ONE_CALL, version, &what);
        }
        if self.started.contains(&(key.to_owned(), call)) {
            let what = format!("call {call} of {key} was started before");
            self.wrong(ONE_CALL, version, &what);
        }
    }

    fn ended(
        &mut self,
        version: u64,
        epoch: u64,
        name: &str,
        (step, key, call): (&StepId, &str, u32),
        stands: Stands,
    ) {
        let Some(i) = self.find(version, name, step, key, call) else { return };
        if self.calls[i].epoch > epoch {
            let what = format!(
                "{name} of step {step} under epoch {epoch}, started under {}",
                self.calls[i].epoch
            );
            self.wrong(FENCED, version, &what);
        }
        if stands == Stands::Success && !self.won.insert(key.to_owned()) {
            self.wrong(
                ONE_SUCCESS,
                version,
                &format!("{key} of step {step} succeeds a second time"),
            );
        } else if self.calls[i].stands != Stands::Open {
            let what = format!("{name} of step {step}: call {call} of {key} was over already");
            self.wrong(STARTED_FIRST, version, &what);
        }
        self.calls[i].stands = stands;
    }

    /// A correction takes back what was said, and what followed from it on record.
    fn corrected(
        &mut self,
        version: u64,
        name: &str,
        (step, key, call): (&StepId, &str, u32),
        was: Verdict,
        verdict: Verdict,
    ) {
        let Some(i) = self.find(version, name, step, key, call) else { return };
        if self.calls[i].stands != Stands::settled(was) {
            let stands = self.calls[i].stands;
            let what = format!(
                "{name} of step {step} corrects {was:?}, and call {call} of {key} stands as {stands:?}"
            );
            self.wrong(STARTED_FIRST, version, &what);
        }
        if was == Verdict::Happened && verdict != Verdict::Happened {
            self.won.remove(key);
            self.committed.remove(&(step.clone(), key.to_owned()));
            self.succeeded.remove(step);
        }
        if was != Verdict::Happened && verdict == Verdict::Happened {
            self.won.insert(key.to_owned());
        }
        self.calls[i].stands = Stands::settled(verdict);
    }

    /// What can only be said at the end.
    fn balance(&mut self) {
        let mut wrong = Vec::new();
        for entry in self.calls.iter().filter(|c| c.stands == Stands::Success) {
            match self.committed.get(&(entry.step.clone(), entry.key.clone())) {
                Some(1) => {}
                n => wrong.push(format!(
                    "step {} succeeded under {} and has {} command_committed",
                    entry.step,
                    entry.key,
                    n.copied().unwrap_or(0)
                )),
            }
            if !self.succeeded.contains_key(&entry.step) {
                wrong.push(format!(
                    "step {} succeeded and has no node_finished that says so",
                    entry.step
                ));
            }
        }
        let won = self.calls.iter().filter(|c| c.stands == Stands::Success);
        let won: HashSet<_> = won.map(|c| (&c.step, c.key.as_str())).collect();
        for (step, key) in self.committed.keys() {
            if !won.contains(&(step, key.as_str())) {
                wrong.push(format!(
                    "step {step} has command_committed for {key}, which did not succeed"
                ));
            }
        }
        self.wrong.extend(wrong.into_iter().map(|w| (COMMITTED_ONCE, w)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn started(key: &str, call: u32, class: &str) -> serde_json::Value {
        json!({ "event": "tool_invocation_started", "step": "1", "tool": "t", "key": key, "ordinal": 0,
            "call": call, "class": class, "arguments_hash": "h", "timeout_ms": 1 })
    }

    fn finished(key: &str, call: u32, outcome: &str) -> serde_json::Value {
        json!({ "event": "tool_invocation_finished", "step": "1", "key": key, "call": call, "outcome": outcome })
    }

    fn settled(key: &str, call: u32, verdict: &str) -> serde_json::Value {
        json!({ "event": "effect_settled", "step": "1", "key": key, "call": call, "verdict": verdict, "by": "class" })
    }

    fn committed(key: &str) -> serde_json::Value {
        json!({ "event": "command_committed", "step": "1", "key": key, "call": 1 })
    }

    fn done() -> serde_json::Value {
        json!({ "event": "node_finished", "step": "1", "result_type": "side_effect_committed", "attempt": 1 })
    }

    fn ended() -> serde_json::Value {
        json!({ "event": "job_completed", "output": null })
    }

    /// Events with their epochs.
    fn facts(events: &[(u64, serde_json::Value)]) -> Vec<Fact> {
        let fact = |(i, (epoch, body)): (usize, &(u64, serde_json::Value))| Fact {
            version: i as u64 + 1,
            epoch: *epoch,
            took: None,
            name: body["event"].as_str().unwrap().to_owned(),
            event: Some(serde_json::from_value(body.clone()).unwrap()),
        };
        events.iter().enumerate().map(fact).collect()
    }

    /// The rules that these events break.
    fn broken(events: &[(u64, serde_json::Value)]) -> Vec<String> {
        let (checks, problems) = rules(&facts(events));
        assert_eq!(checks.iter().all(|c| c.ok), problems.is_empty());
        checks.into_iter().filter(|c| !c.ok).map(|c| c.rule).collect()
    }

    #[test]
    fn sound_streams_break_nothing() {
        let success = [finished("a", 1, "success"), committed("a"), done()];
        let plain =
            [vec![started("a", 1, "irreversible")], success.to_vec(), vec![ended()]].concat();
        assert_eq!(broken(&plain.into_iter().map(|e| (1, e)).collect::<Vec<_>>()), [""; 0]);
        // A takeover of an idempotent call, and a retry under another key after a failure.
        let taken_over = [
            (1, started("a", 1, "idempotent")),
            (3, settled("a", 1, "called_again")),
            (3, started("a", 2, "idempotent")),
            (3, finished("a", 2, "failure")),
            (3, started("b", 1, "idempotent")),
            (3, finished("b", 1, "success")),
            (3, committed("b")),
            (3, done()),
        ];
        assert_eq!(broken(&taken_over), [""; 0]);
    }

    #[test]
    fn an_undo_that_nobody_registered_or_after_its_saga_is_complete() {
        let mut undo = started("a", 1, "idempotent");
        undo["step"] = json!("2u");
        let value = |step: &str, kind: &str, value: serde_json::Value| json!({"event": "value_recorded", "step": step, "kind": kind, "place": "p", "value": value});
        let registered = value("2", "undo", json!({"of": "1", "tool": "t", "input": 1}));
        let kept = value("3", "kept", json!(["2"]));
        assert_eq!(broken(&[(1, undo.clone())]), [UNDO_REGISTERED]);
        assert_eq!(broken(&[(1, registered.clone()), (1, undo.clone())]), [""; 0]);
        assert_eq!(broken(&[(1, registered), (1, kept), (1, undo)]), [UNDO_REGISTERED]);
    }

    #[test]
    fn a_gap_in_the_versions() {
        let mut facts = facts(&[(1, ended())]);
        facts[0].version = 2;
        assert!(!rules(&facts).0.iter().find(|c| c.rule == DENSE).unwrap().ok);
    }

    #[test]
    fn an_old_epoch_after_a_new_one() {
        let events = [
            (1, started("a", 1, "irreversible")),
            (3, settled("a", 1, "did_not_happen")),
            (1, started("b", 1, "irreversible")),
        ];
        assert_eq!(broken(&events), [FENCED]);
    }

    #[test]
    fn an_end_without_a_start() {
        assert_eq!(broken(&[(1, finished("a", 1, "failure"))]), [STARTED_FIRST]);
        assert_eq!(broken(&[(1, settled("a", 1, "abandoned"))]), [STARTED_FIRST]);
        let unknown =
            json!({ "event": "effect_unknown", "step": "1", "key": "a", "call": 1, "why": "w" });
        assert_eq!(broken(&[(1, unknown)]), [STARTED_FIRST]);
    }

    #[test]
    fn a_call_while_another_is_open() {
        let events = [(1, started("a", 1, "irreversible")), (2, started("b", 1, "irreversible"))];
        assert_eq!(broken(&events), [ONE_AT_A_TIME]);
        // Called again is for idempotent tools only.
        let events = [
            (1, started("a", 1, "irreversible")),
            (2, settled("a", 1, "called_again")),
            (2, started("b", 1, "irreversible")),
        ];
        assert_eq!(broken(&events), [ONE_AT_A_TIME]);
    }

    #[test]
    fn a_second_success_of_a_key() {
        let events = [
            (1, started("a", 1, "idempotent")),
            (1, settled("a", 1, "called_again")),
            (1, started("a", 2, "idempotent")),
            (1, finished("a", 1, "success")),
            (1, finished("a", 2, "success")),
            (1, committed("a")),
            (1, done()),
        ];
        assert!(broken(&events).contains(&ONE_SUCCESS.to_owned()));
    }

    #[test]
    fn a_second_call_of_a_key() {
        let events = [
            (1, started("a", 1, "verifiable")),
            (1, settled("a", 1, "did_not_happen")),
            (1, started("a", 2, "verifiable")),
        ];
        assert_eq!(broken(&events), [ONE_CALL]);
        let twice = [
            (1, started("a", 1, "idempotent")),
            (1, settled("a", 1, "called_again")),
            (1, started("a", 1, "idempotent")),
        ];
        assert_eq!(broken(&twice), [ONE_CALL]);
    }

    #[test]
    fn a_success_that_is_committed_never_twice_or_without_being_one() {
        let begin = [(1, started("a", 1, "irreversible")), (1, finished("a", 1, "success"))];
        let never = [&begin[..], &[(1, done())]].concat();
        assert_eq!(broken(&never), [COMMITTED_ONCE]);
        let twice = [&begin[..], &[(1, committed("a")), (1, committed("a")), (1, done())]].concat();
        assert_eq!(broken(&twice), [COMMITTED_ONCE]);
        let unfinished = [&begin[..], &[(1, committed("a"))]].concat();
        assert_eq!(broken(&unfinished), [COMMITTED_ONCE]);
        let failed = [
            (1, started("a", 1, "irreversible")),
            (1, finished("a", 1, "failure")),
            (1, committed("a")),
        ];
        assert_eq!(broken(&failed), [COMMITTED_ONCE]);
    }

    #[test]
    fn something_after_the_end() {
        assert_eq!(broken(&[(1, ended()), (1, ended())]), [FINAL]);
    }
}
