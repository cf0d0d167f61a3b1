//! Whether anybody touched a job's history, and whether it keeps the rules. Repairs nothing.

use super::{
    Fact, rules,
    stream::{self, Line},
};
use crate::{
    drive::LoadError,
    export::Kept,
    model::{Job, JobEvent, JobState, OwnEvent},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};
use tenure_kernel::{
    evidence::Evidence,
    head::Head,
    ids::EntityId,
    machine::{Machine as _, encode_state},
    store::Store,
    stream::{Body, Hash, Record, rehash},
    table::Tables,
    time::Timestamp,
    verify as kernel_verify,
};
use tenure_steps::{
    canonical,
    effects::{EffectName, Effects},
    events::{CallOutcome, StepEvent},
    history::{History, Outcome},
};

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verification {
    /// Which job.
    pub id: EntityId,
    /// Nothing is wrong.
    pub ok: bool,
    /// Everything that is wrong, in words.
    pub problems: Vec<String>,
    /// What was looked at.
    pub checks: Vec<Check>,
    /// Events in the stream.
    pub events: u64,
    /// The chain value after the last event, as computed from the stored bytes.
    pub chain_root: String,
    /// Digest of what the run did: input, steps with their outcomes in order, and the end. The same for two
    /// jobs that did the same, whoever ran them and when.
    pub execution_hash: String,
    /// What came to be known outside the stream.
    pub evidence: Vec<EvidenceView>,
}

/// One rule and whether it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Its name.
    pub rule: String,
    /// Kept.
    pub ok: bool,
    /// What it says, in words.
    pub says: String,
}

/// Evidence about a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvidenceView {
    /// The call's key, or a word.
    pub key: String,
    /// Under which epoch it was gathered.
    pub epoch: u64,
    /// The call.
    pub call: u32,
    /// Who says so.
    pub who: String,
    /// When it was recorded.
    pub at: Timestamp,
    /// What they say.
    pub body: Value,
}

/// The chain, the head and the transitions.
pub const CHAIN: &str = "chain_head_and_transitions";
/// The state in the head.
pub const STATE: &str = "state_is_the_fold_of_its_events";
/// Effects in a separate store.
pub const EFFECTS: &str = "effects_are_what_was_recorded";

/// Checks one job; `None` if there is no such job. With a separate effect store, effects are compared too.
pub async fn verify(
    store: &Arc<dyn Store>,
    tables: &Tables,
    id: EntityId,
    effects: Option<&dyn Effects>,
) -> Result<Option<Verification>, LoadError> {
    let head = store.head(id).await?.filter(|h| h.kind() == Job::TABLE.kind);
    let Some(head) = head else { return Ok(None) };
    let mut records = stream::records(store, id).await?;
    // A job that runs goes on while it is read: what came after the head is left for the next time.
    records.retain(|r| r.last() <= head.version);
    let lines = match stream::lines(store, &records).await {
        Err(e @ LoadError::Store(_)) => return Err(e),
        Err(LoadError::Unreadable(why)) => Err(why),
        Ok(lines) => Ok(lines),
    };
    let lines = lines.as_deref().map_err(Clone::clone);
    let lost = BTreeSet::new();
    let beside = effects.map(|effects| Beside { effects, lost: &lost });
    let found = examine(&head, &records, lines, tables, beside.as_ref());
    let evidence = evidence(store, id).await?;
    let chain_root = root(&records).to_string();
    let Examined { checks, problems, events, execution_hash, .. } = found;
    let ok = problems.is_empty();
    Ok(Some(Verification {
        id,
        ok,
        problems,
        checks,
        events,
        chain_root,
        execution_hash,
        evidence,
    }))
}

/// What a look at a job found, wherever its history was read from.
pub(crate) struct Examined {
    pub checks: Vec<Check>,
    pub problems: Vec<String>,
    pub events: u64,
    pub execution_hash: String,
    /// The chain alone: whoever has a place for it says it there.
    pub chain: Result<(), kernel_verify::Fault>,
}

/// A separate effect store, and the results that it is known to have lost (by [`Kept::name`]).
pub(crate) struct Beside<'a> {
    pub effects: &'a dyn Effects,
    pub lost: &'a BTreeSet<&'a str>,
}

/// Checks a head and its history. Pure: the same for a store and for a file.
pub(crate) fn examine(
    head: &Head,
    records: &[Record],
    lines: Result<&[Line], String>,
    tables: &Tables,
    beside: Option<&Beside<'_>>,
) -> Examined {
    let mut found = Found::default();
    let says = "hashes recomputed from the stored bytes give the head's, transitions are legal, the head folds";
    let chain = kernel_verify::verify(head, records, tables);
    found.check(CHAIN, says, chain.as_ref().err().map(ToString::to_string));
    let (mut events, mut execution_hash) = (head.version, String::new());
    match lines {
        Ok(lines) => {
            events = lines.len() as u64;
            let complete = records.first().is_some_and(|r| r.first == 1);
            let says = "the events, applied one after the other, give the state in the head";
            let state = state_of(lines);
            let differs = complete && encode_state::<Job>(&state) != head.state;
            found.check(STATE, says, differs.then(|| first_difference(&state, &head.state)));
            let facts: Vec<Fact> = lines.iter().map(fact).collect();
            let (checks, problems) = rules(&facts);
            found.checks.extend(checks);
            found.problems.extend(problems);
            if let Some(beside) = beside {
                let says = "each result in the effect store is the recorded one, byte by byte";
                found.check(EFFECTS, says, compare_effects(lines, beside));
            }
            execution_hash = execution(lines);
        }
        // An erased body is no tampering, and nothing that stands on it can be checked.
        Err(why) => found.check(STATE, "events can be read", Some(why)),
    }
    let Found { checks, problems } = found;
    Examined { checks, problems, events, execution_hash, chain }
}

#[derive(Default)]
struct Found {
    checks: Vec<Check>,
    problems: Vec<String>,
}

impl Found {
    fn check(&mut self, rule: &str, says: &str, wrong: Option<String>) {
        let (rule, ok, says) = (rule.to_owned(), wrong.is_none(), says.to_owned());
        self.problems.extend(wrong.map(|w| format!("{rule}: {w}")));
        self.checks.push(Check { rule, ok, says });
    }
}

/// The chain value that the stored bytes give, whatever the head and the records say.
pub(crate) fn root(records: &[Record]) -> Hash {
    let sealed = |r: &Record| {
        r.events().ok().and_then(|e| e.first().and_then(|e| kernel_verify::sealed_chain(&e.body)))
    };
    let first = records.first().filter(|r| r.first > 1).and_then(sealed).unwrap_or(Hash::ZERO);
    records.iter().fold(first, |hash, record| rehash(hash, record).unwrap_or(Hash::ZERO))
}

fn state_of(lines: &[Line]) -> JobState {
    let mut state = JobState::default();
    lines.iter().filter_map(|l| l.read.as_ref()).for_each(|e| Job::apply(&mut state, e));
    state
}

fn first_difference(folded: &JobState, stored: &[u8]) -> String {
    let folded = serde_json::to_value(folded).unwrap_or_default();
    let stored: Value = tenure_kernel::stored::from_slice(stored).unwrap_or_default();
    let fields = |v: &Value| v.as_object().map(|o| o.keys().cloned().collect()).unwrap_or_default();
    let (a, b): (Vec<String>, Vec<String>) = (fields(&folded), fields(&stored));
    match a.into_iter().chain(b).find(|f| folded.get(f) != stored.get(f)) {
        Some(f) => format!("the head says {f} is {}, its events say {}", stored[&f], folded[&f]),
        None => "the bytes in the head are not those that its events give".to_owned(),
    }
}

pub(super) fn fact(line: &Line) -> Fact {
    Fact {
        version: line.event.version,
        epoch: line.event.epoch,
        took: line.took,
        name: line.event.name.clone(),
        event: line.read.clone(),
    }
}

/// Results that the job itself recorded, against what lies in the effect store. A step that a probe, evidence
/// or a person settled has no effect there, nor has a call that a worker elsewhere made, and a late put under an old
/// name is evidence at most.
fn compare_effects(lines: &[Line], beside: &Beside<'_>) -> Option<String> {
    let mut started: HashMap<(String, u32), u64> = HashMap::new();
    let mut handed: HashSet<(&str, u32)> = HashSet::new();
    for line in lines {
        match &line.read {
            Some(JobEvent::Step(StepEvent::CallHanded { key, call, .. })) => {
                handed.insert((key.as_str(), *call));
            }
            Some(JobEvent::Step(StepEvent::ToolInvocationStarted { key, call, .. })) => {
                started.insert((key.clone(), *call), line.event.epoch);
            }
            Some(JobEvent::Step(StepEvent::ToolInvocationFinished {
                step,
                key,
                call,
                outcome: CallOutcome::Success,
                result,
                ..
            })) => {
                let epoch = started.get(&(key.clone(), *call)).copied().unwrap_or(line.event.epoch);
                let recorded = result.clone().unwrap_or_default();
                let what = match beside.effects.get(EffectName { key, epoch, call: *call }) {
                    Ok(Some(kept)) if canonical::bytes(&kept) == canonical::bytes(&recorded) => {
                        continue;
                    }
                    Ok(Some(_)) => "has another result in the effect store".to_owned(),
                    Ok(None) if handed.contains(&(key.as_str(), *call)) => continue,
                    Ok(None) if beside.lost.contains(Kept::name(key, epoch, *call).as_str()) => {
                        continue;
                    }
                    Ok(None) => "has no result in the effect store".to_owned(),
                    Err(e) => format!("can not be compared: {e}"),
                };
                return Some(format!("step {step}, call {call} of {key} (epoch {epoch}) {what}"));
            }
            _ => {}
        }
    }
    None
}

/// What the last run did, without who, when and under which ids.
fn execution(lines: &[Line]) -> String {
    let mut run = json!({});
    let (mut did, mut history) = (Vec::new(), History::default());
    let mut note = |history: &mut History, event: &StepEvent| {
        let over =
            event.step().is_some_and(|s| history.steps.get(s).is_some_and(|r| r.outcome.is_some()));
        history.apply(event, Timestamp::ZERO, 0);
        let Some(step) = event.step() else { return };
        let Some(record) = history.steps.get(step).filter(|r| !over && r.outcome.is_some()) else {
            return;
        };
        let outcome = match &record.outcome {
            Some(Outcome::Ok(value)) => json!({ "ok": canonical::digest(value) }),
            Some(Outcome::Err(_, why)) => json!({ "failed": why }),
            Some(Outcome::InChild(n)) => json!({ "child": n }),
            None => Value::Null,
        };
        did.push(json!([step, record.shape.to_string(), outcome]));
    };
    for line in lines {
        match &line.read {
            Some(JobEvent::Step(event)) => note(&mut history, event),
            Some(JobEvent::Own(OwnEvent::HistoryCopied { events, .. })) => {
                let events = events.iter().filter_map(|e| serde_json::from_value(e.clone()).ok());
                events.for_each(|event: StepEvent| note(&mut history, &event));
            }
            Some(JobEvent::Own(OwnEvent::JobCreated(new))) => {
                run["flow"] = json!([new.flow, new.version]);
                run["input"] = new.input.clone();
            }
            Some(JobEvent::Own(OwnEvent::JobContinued { input })) => {
                history.restart();
                run["input"] = input.clone();
            }
            Some(JobEvent::Own(OwnEvent::JobCompleted { output, .. })) => {
                run["completed"] = output.clone();
            }
            Some(JobEvent::Own(OwnEvent::JobFailed(f))) => run["failed"] = json!(f.reason),
            Some(JobEvent::Own(OwnEvent::JobCancelled { .. })) => run["cancelled"] = json!(true),
            _ => {}
        }
    }
    run["steps"] = Value::Array(did);
    canonical::digest(&run).to_string()
}

async fn evidence(store: &Arc<dyn Store>, id: EntityId) -> Result<Vec<EvidenceView>, LoadError> {
    let mut views = Vec::new();
    for Evidence { said, at } in store.evidence(id).await? {
        let bytes = match &said.body {
            Body::Inline(bytes) => Some(bytes.clone()),
            Body::Blob { digest, .. } => store.blob(*digest).await?,
        };
        let body =
            bytes.and_then(|b| tenure_kernel::stored::from_slice(&b).ok()).unwrap_or_default();
        let (key, epoch, call, who) = (said.key, said.epoch, said.call, said.who);
        views.push(EvidenceView { key, epoch, call, who, at, body });
    }
    Ok(views)
}
