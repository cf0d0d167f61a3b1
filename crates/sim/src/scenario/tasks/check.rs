//! What must hold of tasks when everything has come to rest.
//!
//! That no task ever runs twice at once is not here: the yard says so at the moment at which a container starts.

use super::yard::{STRAY, TASK};
use crate::world::World;
use std::collections::{BTreeMap, BTreeSet};
use tenure_kernel::{
    head::Head,
    ids::EntityId,
    machine::{decode_event, decode_state},
    outbox::Target,
    time::Timestamp,
};
use tenure_pods::{
    budget::{Budget, BudgetEvent, BudgetTerms},
    task::{Task, TaskEvent, TaskState},
};
use tenure_store::memory::Contents;

/// What looking at a clock, and a restart, may add to a time that is up.
const SLACK_MS: i64 = 90_000;

/// See the module.
pub(crate) fn check(world: &World, contents: &Contents, calm_at: Timestamp) -> Result<(), String> {
    let mut in_flight = Vec::new();
    for head in contents.rows.heads.values() {
        match head.kind() {
            "task" => {
                let life = Life::of(head, contents)?;
                life.ends_once()?;
                life.keeps_its_times(calm_at)?;
                life.makes_pods_one_after_another()?;
                life.is_true(world)?;
                told_once(world, &life)?;
                agrees_with_its_job(&life, contents)?;
                in_flight.extend(life.places());
            }
            "budget" => starts_are_spread(head.id, contents, world.yard.terms().budget)?,
            _ => {}
        }
    }
    never_more_than(in_flight, world.yard.terms().budget.in_flight)?;
    nothing_is_left(world, contents)
}

/// Everything that happened to a task, with the store's times.
struct Life {
    id: EntityId,
    status: &'static str,
    state: TaskState,
    events: Vec<(Timestamp, TaskEvent)>,
}

fn ms_between(from: Timestamp, to: Timestamp) -> i64 {
    (to.as_micros() - from.as_micros()) / 1_000
}

impl Life {
    fn of(head: &Head, contents: &Contents) -> Result<Self, String> {
        let mut events = Vec::new();
        for record in contents.streams.get(&head.id).into_iter().flatten() {
            for event in record.events().map_err(|e| e.to_string())? {
                let mut body = event.body.clone();
                if let tenure_kernel::stream::Body::Blob { digest, .. } = body {
                    let Some((bytes, _)) = contents.blobs.get(&digest) else { continue };
                    body = tenure_kernel::stream::Body::Inline(bytes.clone());
                }
                if let Ok(Some(event)) = decode_event::<Task>(&event.name, &body) {
                    events.push((record.at, event));
                }
            }
        }
        let state = decode_state::<Task>(&head.state).map_err(|e| e.0)?;
        Ok(Life { id: head.id, status: head.status.name(), state, events })
    }

    fn ends_once(&self) -> Result<(), String> {
        let is_end = |e: &TaskEvent| {
            matches!(
                e,
                TaskEvent::TaskSucceeded { .. }
                    | TaskEvent::TaskFailed { .. }
                    | TaskEvent::TaskCanceled { .. }
            )
        };
        let ends = self.events.iter().filter(|(_, e)| is_end(e)).count();
        let last = self.events.last().is_some_and(|(_, e)| is_end(e));
        match (ends, last) {
            (1, true) => Ok(()),
            (n, _) => Err(format!("task {} ended {n} times; it is {}", self.id, self.status)),
        }
    }

    /// No state lasts longer than its clock. A clock that ran out in the storm is looked at when it is over.
    fn keeps_its_times(&self, calm_at: Timestamp) -> Result<(), String> {
        let times = self.state.times;
        let born = self.events.first().map_or(Timestamp::ZERO, |(at, _)| *at);
        let mut clocks: BTreeMap<&'static str, (Timestamp, u64)> = BTreeMap::new();
        clocks.insert("must_end", (born, self.state.must_end_in_ms));
        for (at, event) in &self.events {
            for (what, (since, ms)) in &clocks {
                let ms = i64::try_from(*ms).unwrap_or(i64::MAX);
                let due = ms_between(*since, *at) - ms;
                if due > SLACK_MS && ms_between(calm_at, *at) > SLACK_MS {
                    let id = self.id;
                    return Err(format!("task {id}: its clock {what} had run out for {due} ms"));
                }
            }
            match event {
                TaskEvent::PodWanted { .. } | TaskEvent::PodSeen { .. } => {
                    clocks
                        .retain(|what, _| !["run", "fence", "next_pod", "witness"].contains(what));
                    clocks.insert("queued", (*at, times.queued_ms));
                }
                TaskEvent::EndInferred { .. } => {
                    clocks.entry("witness").or_insert((*at, times.witness_ms));
                }
                TaskEvent::TaskRunning { .. } => {
                    clocks.remove("queued");
                    if let Some(ms) = self.state.timeout_ms {
                        clocks.insert("run", (*at, ms));
                    }
                }
                TaskEvent::AttemptFailed { fenced, pause_ms, .. } => {
                    clocks.retain(|what, _| !["queued", "run", "witness"].contains(what));
                    if !fenced {
                        clocks.insert("fence", (*at, times.fence_ms));
                    }
                    if self.state.external {
                        clocks.insert("next_pod", (*at, pause_ms + times.next_pod_ms));
                    }
                }
                TaskEvent::AttemptFenced { .. } => clocks.retain(|what, _| *what != "fence"),
                TaskEvent::CancelAsked(_) => {
                    clocks.retain(|what, _| *what == "must_end");
                    clocks.insert("stop", (*at, times.stop_ms));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Another pod is asked for only when the last one is over, or may be run beside.
    fn makes_pods_one_after_another(&self) -> Result<(), String> {
        let (mut attempt, mut open) = (0, false);
        for (_, event) in &self.events {
            match event {
                TaskEvent::PodWanted { attempt: next, .. } => {
                    if *next != attempt + 1 || open {
                        let id = self.id;
                        return Err(format!(
                            "task {id}: attempt {next} after {attempt}, open {open}"
                        ));
                    }
                    (attempt, open) = (*next, true);
                }
                TaskEvent::AttemptFailed { fenced, .. } => open = !fenced,
                TaskEvent::AttemptFenced { .. } => open = false,
                _ => {}
            }
        }
        Ok(())
    }

    /// What it says of its pod is so.
    fn is_true(&self, world: &World) -> Result<(), String> {
        let uid = self.state.pod.as_ref().map(|p| p.uid.clone()).unwrap_or_default();
        if self.status == "SUCCEEDED" && !world.yard.ended_well(&uid) {
            return Err(format!("task {} has succeeded, and pod {uid:?} has not", self.id));
        }
        Ok(())
    }

    /// From when to when a retried attempt had a place of the budget.
    fn places(&self) -> Vec<(Timestamp, Timestamp)> {
        let mut places = Vec::new();
        let mut since = None;
        for (at, event) in &self.events {
            match event {
                TaskEvent::RetryGranted { .. } => since = Some(*at),
                TaskEvent::AttemptFailed { .. }
                | TaskEvent::TaskSucceeded { .. }
                | TaskEvent::TaskFailed { .. }
                | TaskEvent::TaskCanceled { .. } => {
                    places.extend(since.take().map(|since| (since, *at)));
                }
                _ => {}
            }
        }
        places
    }
}

fn told_once(world: &World, life: &Life) -> Result<(), String> {
    let Some(asker) = &life.state.asker else { return Ok(()) };
    let seen = world.oracle.seen();
    let told = seen.posted.values().filter(|p| {
        p.id.source == life.id
            && p.message.to == Target::Mail(asker.to)
            && p.message.kind == asker.kind
    });
    match told.count() {
        1 => Ok(()),
        n => Err(format!("the end of task {} was told {n} times to its job", life.id)),
    }
}

/// A job whose only step is the task knows no more, and nothing else, than the task.
fn agrees_with_its_job(life: &Life, contents: &Contents) -> Result<(), String> {
    let Some(asker) = &life.state.asker else { return Ok(()) };
    let job = contents.rows.heads.get(&asker.to).map_or("none", |h| h.status.name());
    if job == "completed" && life.status != "SUCCEEDED" {
        return Err(format!("job {} is completed, and its task is {}", asker.to, life.status));
    }
    Ok(())
}

fn never_more_than(places: Vec<(Timestamp, Timestamp)>, most: u32) -> Result<(), String> {
    let mut moments: Vec<(Timestamp, i32)> = Vec::new();
    for (from, to) in places {
        moments.extend([(from, 1), (to, -1)]);
    }
    // At one moment those who leave go first.
    moments.sort_by_key(|(at, step)| (*at, *step));
    let (mut now, mut top) = (0, 0);
    for (_, step) in moments {
        now += step;
        top = top.max(now);
    }
    match u32::try_from(top).unwrap_or(0) {
        top if top > most => Err(format!("{top} retries were under way at once; {most} may be")),
        _ => Ok(()),
    }
}

/// A bucket: so many at once, then one each time a token comes.
fn starts_are_spread(id: EntityId, contents: &Contents, terms: BudgetTerms) -> Result<(), String> {
    let mut all = Vec::new();
    for record in contents.streams.get(&id).into_iter().flatten() {
        for event in record.events().map_err(|e| e.to_string())? {
            if let Ok(Some(BudgetEvent::PlaceGranted { starts, .. })) =
                decode_event::<Budget>(&event.name, &event.body)
            {
                all.push(starts.as_micros());
            }
        }
    }
    let burst = terms.burst as usize;
    for (i, first) in all.iter().enumerate() {
        for (k, later) in all.iter().skip(i + burst).enumerate() {
            let least = terms.interval() * (i64::try_from(k).unwrap_or(0) + 1);
            if later - first + 2_000 < least {
                return Err(format!(
                    "budget {id}: {} starts within {} us",
                    burst + k + 1,
                    later - first
                ));
            }
        }
    }
    Ok(())
}

/// What a late request made and nobody took for its own is gone, also as an object.
fn no_stray_is_left(world: &World, contents: &Contents) -> Result<(), String> {
    let pods = contents.rows.heads.values().filter(|h| h.kind() == "pod");
    let taken: BTreeSet<String> =
        pods.filter_map(|h| decode_state::<tenure_pods::pod::Pod>(&h.state).ok()?.uid).collect();
    let stray = |pod: &&serde_json::Value| {
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
        pod["metadata"]["annotations"][STRAY] == "true" && !taken.contains(uid)
    };
    match world.yard.pods().iter().find(stray) {
        Some(pod) => Err(format!("a stray was left: {}", pod["metadata"]["name"])),
        None => Ok(()),
    }
}

/// Nothing runs for a task that is over, and nobody is about to start anything.
fn nothing_is_left(world: &World, contents: &Contents) -> Result<(), String> {
    let ours = |pod: &serde_json::Value| {
        pod["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "tenure"
    };
    for pod in world.yard.pods().iter().filter(|p| ours(p)) {
        let phase = pod["status"]["phase"].as_str().unwrap_or_default();
        if !["Succeeded", "Failed"].contains(&phase) {
            let (name, task) = (&pod["metadata"]["name"], &pod["metadata"]["labels"][TASK]);
            return Err(format!("pod {name} of task {task} was left behind, {phase}"));
        }
    }
    no_stray_is_left(world, contents)?;
    let tasks = contents.rows.heads.values().filter(|h| h.kind() == "task");
    let external: Vec<String> = tasks
        .filter(|h| decode_state::<Task>(&h.state).is_ok_and(|s: TaskState| s.external))
        .map(|h| h.id.to_string())
        .collect();
    let left = world.yard.alive().into_iter().find(|a| !external.contains(&a.task));
    match left {
        Some(alive) => Err(format!("{} of task {} runs on after its end", alive.pod, alive.task)),
        None => Ok(()),
    }
}
