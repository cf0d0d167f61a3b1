//! What is known of every pod, and what is new about it. Pure: what was seen goes in, what is to be said comes out.
//!
//! Per pod it keeps whose it is, the lean facts that a verdict needs (as JSON made short, two hundred bytes), the last verdict (which latches),
//! and the key of what was said. With the facts it can judge again when time has passed, when a node has died, and when the pod is not there
//! any more; the object itself is never kept.

mod marks;

use super::{
    area::{Area, Mode},
    later::Later,
    saying::Saying,
    short::{lengthen, shorten},
    who::{self, Unlabelled, Who},
};
use crate::{
    follow::LeanPod,
    report::{Report, TerminatedReason},
    verdict::{
        Departure, Gone, NodeView, Policy, TaskStatus, Verdict, is_over, main_container,
        verdict_of_deleted, verdict_on,
    },
};
use k8s_openapi::api::core::v1::Pod;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap, HashSet, VecDeque},
    time::Duration,
};
use tenure_kernel::time::Timestamp;

/// A timer that is due and changes nothing is not asked again before this.
const AGAIN: Duration = Duration::from_secs(1);
/// Kubelets keep 4 KiB of what a container leaves; what others write is cut.
const RESULT_BYTES_MAX: usize = 16 * 1024;
/// While another one speaks, so much of what we would have said is kept.
const UNSAID_MAX: usize = 20_000;
/// Pods whose end was heard on the channel and that are remembered: beyond that some ends are told twice, under one id.
const HEARD_MAX: usize = 100_000;

/// Something to do.
#[derive(Clone, PartialEq, Debug)]
pub enum Act {
    /// Say it.
    Say(Box<Saying>),
    /// Ask the API server for this pod by name: nobody can tell whether it is gone.
    Ask(PodRef),
}

/// A pod that has to be asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PodRef {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The one that is meant.
    pub uid: String,
}

/// What was counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Objects that said nothing new.
    pub repeats: u64,
    /// Timers that were served.
    pub timers: u64,
    /// Objects without a task's labels.
    pub unlabelled: u64,
    /// Pods that no longer fit the selector.
    pub left: u64,
    /// Pods that were missing in a list.
    pub absent: u64,
}

struct Said {
    /// The key, without the uid that it begins with.
    key: Box<str>,
    status: Option<TaskStatus>,
    over: bool,
}

impl Said {
    fn is_end(&self) -> bool {
        self.status.is_some_and(TaskStatus::is_final)
    }
}

/// A key without the uid that it begins with.
fn behind<'a>(uid: &str, key: &'a str) -> &'a str {
    key.strip_prefix(uid).unwrap_or(key)
}

struct Record {
    who: Who,
    node: Option<Box<str>>,
    /// What is remembered of the object, made short.
    facts: Box<[u8]>,
    last: Option<Box<Verdict>>,
    said: Option<Said>,
    check: Option<Timestamp>,
    list: u32,
    /// It was said to be over, and its facts are gone.
    done: bool,
}

impl Record {
    /// The pod as far as it is remembered.
    fn pod(&self, uid: &str) -> LeanPod {
        let mut pod = LeanPod::recall(&lengthen(&self.facts));
        pod.0.metadata.uid = Some(uid.to_owned());
        pod
    }
}

/// See the module.
pub struct Core {
    policy: Policy,
    area: Area,
    name: String,
    /// By uid, in an order that stays while pods come and go: they are written down in pieces, and a simulation has to repeat itself.
    /// Boxed, because there is room for more in it than there are.
    pods: BTreeMap<Box<str>, Box<Record>>,
    timers: BinaryHeap<Reverse<(Timestamp, Box<str>)>>,
    later: Later,
    nodes: HashMap<Box<str>, (NodeView, u32)>,
    nodes_known: bool,
    list: u32,
    node_list: u32,
    /// What is judged was there before we came, or before we spoke: until the first list is complete, and when we begin to speak.
    catches_up: bool,
    active: bool,
    unsaid: VecDeque<(Timestamp, Box<Saying>)>,
    unsaid_for: Duration,
    /// Pods whose end was heard on the channel, and when, the oldest first.
    heard: HashSet<Box<str>>,
    heard_at: VecDeque<(Timestamp, Box<str>)>,
    tally: Tally,
}

impl Core {
    /// Knows nothing yet. `name` is who saw it, in reports.
    pub fn new(policy: Policy, area: Area, name: &str) -> Self {
        Core {
            policy,
            area,
            name: name.to_owned(),
            pods: BTreeMap::new(),
            timers: BinaryHeap::new(),
            later: Later::default(),
            nodes: HashMap::new(),
            nodes_known: false,
            list: 0,
            node_list: 0,
            catches_up: true,
            active: true,
            unsaid: VecDeque::new(),
            unsaid_for: Duration::from_secs(60),
            heard: HashSet::new(),
            heard_at: VecDeque::new(),
            tally: Tally::default(),
        }
    }

    /// A list begins.
    pub fn list_began(&mut self) {
        self.list += 1;
    }

    /// A pod is there, or is like this now.
    pub fn seen(&mut self, pod: &LeanPod, now: Timestamp) -> Vec<Act> {
        let Some(uid) = who::uid(&pod.0) else { return Vec::new() };
        let who = match (Who::of(&pod.0), self.pods.get(uid)) {
            (Ok(who), _) => who,
            // It had its labels before; an end that is seen is not lost for want of a label.
            (Err(_), Some(known)) => known.who.clone(),
            (Err(Unlabelled(label)), None) => {
                self.tally.unlabelled += 1;
                let (namespace, name) = (&pod.0.metadata.namespace, &pod.0.metadata.name);
                tracing::debug!(label, ?namespace, ?name, "a pod without a label is passed over");
                return Vec::new();
            }
        };
        let list = self.list;
        let record = self.pods.entry(uid.into()).or_insert_with(|| {
            Box::new(Record {
                who: who.clone(),
                node: None,
                facts: Box::default(),
                last: None,
                said: None,
                check: None,
                list,
                done: false,
            })
        });
        record.who = who;
        record.list = list;
        record.node = who::node(&pod.0).map(Box::from);
        let uid = uid.to_owned();
        self.judge(&uid, pod, true, now)
    }

    /// Judges a pod as it is, says what is new, and sets its timer.
    fn judge(&mut self, uid: &str, pod: &LeanPod, fresh: bool, now: Timestamp) -> Vec<Act> {
        let Some(record) = self.pods.get(uid) else { return Vec::new() };
        let view = self.view(record.node.as_deref());
        let verdict = verdict_on(&pod.0, record.last.as_deref(), now, &self.policy, view.as_ref());
        // That stays, too: a phase that goes back brings no container back.
        let over =
            record.said.as_ref().is_some_and(|s| s.over) || ended(&pod.0, &verdict, &self.policy);
        // Deleted before it had a node: the object may be held by somebody's finalizer, and is as good as gone.
        let unplaced = pod.0.metadata.deletion_timestamp.is_some() && record.node.is_none();
        let gone = over && unplaced && !who::is_terminal(&pod.0);
        let mut report = self.report(record, &pod.0, verdict.clone(), over, now);
        report.gone = gone && report.terminated_reason.is_some();
        let gone = report.gone;
        let key = report.key();
        let news = is_news(record.said.as_ref(), &report, behind(uid, &key));
        let check = verdict
            .next_check_at
            .map(|at| at.max(now + if fresh { Duration::ZERO } else { AGAIN }));
        let told_for = self.told_for();
        let Some(record) = self.pods.get_mut(uid) else { return Vec::new() };
        if fresh && !record.done {
            record.facts = shorten(&pod.remember(&self.policy.cancel_annotation));
        }
        if check != record.check
            && let Some(at) = check
        {
            self.timers.push(Reverse((at, uid.into())));
        }
        record.check = check;
        let status = verdict.status;
        let ended_long_ago =
            verdict.is_final() && verdict.since.is_some_and(|at| at + told_for < now);
        record.last = Some(Box::new(verdict));
        if !news {
            self.tally.repeats += u64::from(fresh);
            return Vec::new();
        }
        let ended_before = record.said.as_ref().is_some_and(Said::is_end);
        record.said = Some(Said { key: behind(uid, &key).into(), status, over });
        if over && self.active {
            // Nothing can follow, not even that it is gone: whose it is, is enough.
            record.facts = shorten(&pod.identity());
            record.done = true;
        }
        let wait = self.area.wait(report.pod.node.as_deref(), view.as_ref());
        // As of every pod that is gone, nothing is published of it but that it was cancelled. And a pod ends once: that it is over by now,
        // after a clock had ended it, is for the server alone.
        let mut channel = !ended_before && (!gone || status == Some(TaskStatus::Canceled));
        // Nor does a sweeper repeat, whenever one starts or takes over, how every pod has ended that is still there.
        channel &= !(self.catches_up && ended_long_ago && self.area.mode == Mode::Sweeper);
        self.say(Saying { report, channel, server: true }, wait, now)
    }

    fn say(&mut self, mut saying: Saying, wait: Duration, now: Timestamp) -> Vec<Act> {
        if !self.active {
            if self.unsaid.len() >= UNSAID_MAX {
                self.unsaid.pop_front();
            }
            self.unsaid.push_back((now, Box::new(saying)));
            return Vec::new();
        }
        if wait.is_zero() {
            let held = self.later.forget(&saying.report.pod.uid);
            // What was held back for the channel is not lost by that: it is the end of this pod, in other words.
            saying.channel |= held.is_some_and(|held| held.channel && saying.is_final());
            return self.aloud(Box::new(saying)).into_iter().collect();
        }
        // Whoever is closer tells the channel, unless nobody is there: an end is told after all if it is not heard meanwhile.
        saying.channel &= saying.is_final();
        self.later.put(saying, now, wait);
        Vec::new()
    }

    /// Says it; on the channel only if the end of this pod was not heard there.
    fn aloud(&self, mut saying: Box<Saying>) -> Option<Act> {
        let heard = || self.heard.contains(saying.report.pod.uid.as_str());
        saying.channel = saying.channel && !(saying.is_final() && heard());
        (saying.channel || saying.server).then_some(Act::Say(saying))
    }

    /// For how long after its end a pod may still be told of on the channel, by whomever.
    fn told_for(&self) -> Duration {
        self.area.later.max(self.unsaid_for) * 2
    }

    /// The end of this pod was told on the channel, by whomever.
    pub fn heard(&mut self, uid: &str, now: Timestamp) {
        if self.heard.insert(uid.into()) {
            self.heard_at.push_back((now, uid.into()));
        }
        let kept = self.told_for();
        while self.heard_at.len() > HEARD_MAX
            || self.heard_at.front().is_some_and(|(at, _)| *at + kept < now)
        {
            let Some((_, old)) = self.heard_at.pop_front() else { break };
            self.heard.remove(&old);
        }
    }

    /// A pod was deleted, or no longer fits the selector.
    pub fn deleted(&mut self, pod: &LeanPod, now: Timestamp) -> Vec<Act> {
        // An end that was never seen before is the pod's own, and is told as such: a finalizer can hold an object until
        // long after its end.
        let mut acts = Vec::new();
        if who::is_terminal(&pod.0) {
            acts = self.seen(pod, now);
        }
        if let Some(uid) = who::uid(&pod.0) {
            let uid = uid.to_owned();
            if !self.pods.contains_key(uid.as_str()) && Who::of(&pod.0).is_ok() {
                // Never seen, and gone already.
                let list = self.list;
                if let Ok(who) = Who::of(&pod.0) {
                    let node = who::node(&pod.0).map(Box::from);
                    let (facts, last, said, check) = (Box::default(), None, None, None);
                    let record = Record { who, node, facts, last, said, check, list, done: false };
                    self.pods.insert(uid.as_str().into(), Box::new(record));
                }
            }
            acts.extend(self.departed(&uid, pod, Gone::Event, now));
        }
        acts
    }

    fn departed(&mut self, uid: &str, pod: &LeanPod, gone: Gone, now: Timestamp) -> Vec<Act> {
        let Some(record) = self.pods.get(uid) else { return Vec::new() };
        if record.said.as_ref().is_some_and(|s| s.over) {
            self.pods.remove(uid);
            let held = self.later.hasten(uid).filter(|_| self.active);
            return held.map(|saying| Act::Say(Box::new(saying))).into_iter().collect();
        }
        let view = self.view(record.node.as_deref());
        let last = record.last.as_deref();
        match verdict_of_deleted(&pod.0, gone, last, now, &self.policy, view.as_ref()) {
            Departure::LeftSelector => {
                self.tally.left += 1;
                tracing::info!(uid, "a pod left the selector; nothing more is said about it");
                self.pods.remove(uid);
                Vec::new()
            }
            Departure::Ask => vec![Act::Ask(PodRef {
                namespace: pod.0.metadata.namespace.clone().unwrap_or_default(),
                name: pod.0.metadata.name.clone().unwrap_or_default(),
                uid: uid.to_owned(),
            })],
            Departure::Ended(verdict) => {
                let mut report = self.report(record, &pod.0, verdict, true, now);
                report.gone = true;
                let ended_before = last.is_some_and(Verdict::is_final);
                report.inferred =
                    gone != Gone::Event && !ended_before && !is_over(&pod.0, &self.policy);
                report.terminated_reason =
                    report.terminated_reason.or(Some(TerminatedReason::ExternalDelete));
                self.pods.remove(uid);
                // At once, also by who speaks later about others: the object is nowhere any more, and whoever is closer may not
                // have seen it end.
                self.say(Saying { report, channel: false, server: true }, Duration::ZERO, now)
            }
        }
    }

    /// The list is complete: what was known and is not in it, is gone or was never ours.
    pub fn list_complete(&mut self, now: Timestamp) -> Vec<Act> {
        self.catches_up = false;
        let missing: Vec<Box<str>> =
            self.pods.iter().filter(|(_, r)| r.list != self.list).map(|(u, _)| u.clone()).collect();
        let mut acts = Vec::new();
        for uid in missing {
            self.tally.absent += 1;
            let Some(record) = self.pods.get(&uid) else { continue };
            let pod = record.pod(&uid);
            acts.extend(self.departed(&uid, &pod, Gone::Absent, now));
        }
        acts
    }

    /// The answer to [`Act::Ask`]: the pod of that name, if there is one.
    pub fn answered(
        &mut self,
        asked: &PodRef,
        found: Option<&LeanPod>,
        now: Timestamp,
    ) -> Vec<Act> {
        let same = found.filter(|pod| who::uid(&pod.0) == Some(asked.uid.as_str()));
        match same {
            Some(pod) if self.area.covers(&pod.0) => self.seen(pod, now),
            Some(_) => {
                if self.pods.remove(asked.uid.as_str()).is_some() {
                    self.tally.left += 1;
                }
                Vec::new()
            }
            None => {
                let Some(record) = self.pods.get(asked.uid.as_str()) else { return Vec::new() };
                let pod = record.pod(&asked.uid);
                self.departed(&asked.uid, &pod, Gone::Missing, now)
            }
        }
    }

    /// When [`Core::tick`] has something to do.
    pub fn next_due(&self) -> Option<Timestamp> {
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        match (timer, self.later.next_due()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Timestamp) -> Vec<Act> {
        let mut acts = Vec::new();
        while let Some(Reverse((at, _))) = self.timers.peek()
            && *at <= now
        {
            let Some(Reverse((at, uid))) = self.timers.pop() else { break };
            let Some(record) = self.pods.get_mut(&uid).filter(|r| r.check == Some(at)) else {
                continue;
            };
            record.check = None;
            self.tally.timers += 1;
            let pod = record.pod(&uid);
            acts.extend(self.judge(&uid, &pod, false, now));
        }
        while let Some(saying) = self.later.take(now) {
            acts.extend(self.aloud(saying));
        }
        while self.unsaid.front().is_some_and(|(at, _)| *at + self.unsaid_for < now) {
            self.unsaid.pop_front();
        }
        if self.unsaid.is_empty() {
            self.unsaid.shrink_to_fit();
        }
        acts
    }

    fn view(&self, node: Option<&str>) -> Option<NodeView> {
        let node = node.filter(|_| self.nodes_known)?;
        Some(self.nodes.get(node).map_or(NodeView::MISSING, |(view, _)| *view))
    }

    /// A list of nodes begins.
    pub fn nodes_began(&mut self) {
        self.node_list += 1;
    }

    /// A node is like this now.
    pub fn node(&mut self, name: &str, view: NodeView, now: Timestamp) -> Vec<Act> {
        let before = self.nodes.insert(name.into(), (view, self.node_list));
        if !self.nodes_known || before.is_some_and(|(b, _)| b == view) {
            return Vec::new();
        }
        self.judge_where(|node| node == Some(name), now)
    }

    /// A node was deleted.
    pub fn node_deleted(&mut self, name: &str, now: Timestamp) -> Vec<Act> {
        if self.nodes.remove(name).is_none() || !self.nodes_known {
            return Vec::new();
        }
        self.judge_where(|node| node == Some(name), now)
    }

    /// The list of nodes is complete.
    pub fn nodes_complete(&mut self, now: Timestamp) -> Vec<Act> {
        let list = self.node_list;
        let before = self.nodes.len();
        self.nodes.retain(|_, (_, seen)| *seen == list);
        if self.nodes_known && self.nodes.len() == before {
            return Vec::new();
        }
        self.nodes_known = true;
        self.judge_where(|node| node.is_some(), now)
    }

    fn judge_where(&mut self, fits: impl Fn(Option<&str>) -> bool, now: Timestamp) -> Vec<Act> {
        let uids: Vec<Box<str>> = self
            .pods
            .iter()
            .filter(|(_, r)| fits(r.node.as_deref()) && r.said.as_ref().is_none_or(|s| !s.over))
            .map(|(uid, _)| uid.clone())
            .collect();
        let mut acts = Vec::new();
        for uid in uids {
            let Some(record) = self.pods.get(&uid) else { continue };
            let pod = record.pod(&uid);
            acts.extend(self.judge(&uid, &pod, false, now));
        }
        acts
    }

    /// Whether we are the one who speaks. Who begins to speak says everything that the last one may not have said any more.
    pub fn set_active(&mut self, active: bool, now: Timestamp) -> Vec<Act> {
        if self.active == active {
            return Vec::new();
        }
        self.active = active;
        if !active {
            self.unsaid.extend(self.later.take_all().map(|saying| (now, saying)));
            return Vec::new();
        }
        // Of pods that are there it is judged anew what is to be said.
        let unsaid = std::mem::take(&mut self.unsaid);
        let recent = unsaid.into_iter().filter(|(at, saying)| {
            *at + self.unsaid_for >= now && !self.pods.contains_key(saying.report.pod.uid.as_str())
        });
        let mut acts: Vec<Act> = recent.filter_map(|(_, saying)| self.aloud(saying)).collect();
        // Nothing of it was said by us. What we said before we fell silent keeps its mark if it was over.
        for record in self.pods.values_mut() {
            if !record.done {
                record.said = None;
            }
        }
        let before = std::mem::replace(&mut self.catches_up, true);
        acts.extend(self.judge_where(|_| true, now));
        self.catches_up = before;
        acts
    }

    /// These were dropped and never told: they are news again when they are next seen.
    pub fn forget(&mut self, dropped: &[Saying]) {
        for saying in dropped {
            let (uid, key) = (saying.report.pod.uid.as_str(), saying.report.key());
            if let Some(record) = self.pods.get_mut(uid)
                && record.said.as_ref().is_some_and(|s| *s.key == *behind(uid, &key))
            {
                record.said = None;
            }
        }
    }

    fn report(
        &self,
        record: &Record,
        pod: &Pod,
        verdict: Verdict,
        over: bool,
        now: Timestamp,
    ) -> Report {
        let terminated_reason = verdict.terminated_reason();
        let result = result_of(pod, &verdict, &self.policy);
        Report {
            task_id: record.who.task.to_string(),
            workflow_id: record.who.workflow.to_string(),
            tenant_id: record.who.tenant.to_string(),
            pod: who::name_of(pod),
            attempt: record.who.attempt,
            verdict,
            over,
            gone: false,
            inferred: false,
            terminated_reason,
            result,
            seen_at: now,
            collector: self.name.clone(),
        }
    }

    /// Pods that are known.
    pub fn pods(&self) -> usize {
        self.pods.len()
    }

    /// What was counted.
    pub fn tally(&self) -> Tally {
        self.tally
    }
}

/// Whether this has to be said, after what was said.
fn is_news(said: Option<&Said>, report: &Report, key: &str) -> bool {
    let Some(status) = report.verdict.status else { return false };
    match said {
        None => true,
        // Restarts within a pod and its ways to its end move `since`; it runs all the same.
        Some(said) if status == TaskStatus::Running => said.status.is_none(),
        Some(said) => *said.key != *key,
    }
}

/// No container of the task runs in it any more, and none will.
fn ended(pod: &Pod, verdict: &Verdict, policy: &Policy) -> bool {
    verdict.is_final() && is_over(pod, policy)
}

fn main_end<'a>(
    pod: &'a Pod,
    policy: &Policy,
) -> Option<&'a k8s_openapi::api::core::v1::ContainerStateTerminated> {
    let main = main_container(pod, policy)?;
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    statuses.iter().find(|s| s.name == main)?.state.as_ref()?.terminated.as_ref()
}

/// What the main container left, if it ended well.
fn result_of(pod: &Pod, verdict: &Verdict, policy: &Policy) -> Option<String> {
    if verdict.status != Some(TaskStatus::Succeeded) {
        return None;
    }
    let message = main_end(pod, policy)?.message.as_deref().filter(|m| !m.is_empty())?;
    let mut end = message.len().min(RESULT_BYTES_MAX);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    message.get(..end).map(str::to_owned)
}

#[cfg(test)]
mod tests;
