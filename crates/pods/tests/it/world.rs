//! A small world: tasks, their pods and a budget on the smallest store, time that jumps to whatever is due next, a
//! collector that says what a test tells it, and everything that was announced outside.

use model::Model;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tenure_kernel::{
    commit::{Birth, Commit, CommitAnswer, Expect, TenureChange},
    head::{Head, lane_of},
    ids::{CommitId, EntityId, MailId},
    judge::Judge,
    limits,
    machine::{Cx, Decision, Input, Machine, Machines, decode_event, decode_state, draft},
    mail::{Mail, MailAnswer, NewMail, kinds},
    outbox::{Delivery, DeliveryAnswer, Handover, Target},
    sessions::{Opening, events, lane_id},
    store::{Answer, Op},
    stream::{Body, NewEvent},
    table::Class,
    time::Timestamp,
    timers::TimerChange,
    verify,
};
use tenure_pods::{
    budget::{Budget, BudgetState, budget_id},
    pod::{Pod, PodEvent, PodState, Says, decide::tell, name_of_attempt},
    report::{POD_REPORT, PodName, Report},
    task::{NewTask, Task, TaskEvent, TaskState, model::Asker},
    verdict::{Cause, CauseClass, TaskStatus, Verdict},
};

// The kernel's own tests use the same model; a second copy would drift.
#[path = "../../../kernel/tests/it/model.rs"]
mod model;

/// Kinds that the due loop serves here.
const SERVED: [&str; 3] = ["task", "pod", "budget"];

pub struct World {
    pub store: Model,
    machines: Machines,
    lanes: BTreeMap<u16, u64>,
    random: u64,
    /// What was announced outside, in order.
    pub wire: Vec<(String, Value)>,
    /// What a job was told.
    pub answers: Vec<Value>,
    /// The job that asks for tasks.
    pub job: EntityId,
    executor: EntityId,
}

fn birth(kind: &'static str) -> Birth {
    Birth { kind, tenant: "t".into(), queue: String::new(), priority: 0 }
}

pub fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// A report about a pod.
pub struct Seen(pub Report);

/// A verdict of a test.
pub fn verdict(status: TaskStatus, cause: Option<Cause>, class: Option<CauseClass>) -> Verdict {
    Verdict {
        status: Some(status),
        cause,
        class,
        retryable: status == TaskStatus::Failed,
        container: Some("main".into()),
        started: true,
        rule: "test".into(),
        ..Verdict::default()
    }
}

impl Seen {
    pub fn new(task: EntityId, attempt: u32, uid: &str, verdict: Verdict) -> Self {
        let final_status = verdict.status.is_some_and(TaskStatus::is_final);
        Seen(Report {
            task_id: task.to_string(),
            workflow_id: "wf".into(),
            tenant_id: "t".into(),
            pod: PodName {
                namespace: "default".into(),
                name: name_of_attempt(task, attempt, "wf", "train"),
                uid: uid.into(),
                node: Some("node-1".into()),
            },
            attempt: Some(attempt),
            verdict,
            over: final_status,
            gone: false,
            terminated_reason: None,
            result: None,
            seen_at: Timestamp::ZERO,
            collector: "test".into(),
        })
    }

    pub fn running(task: EntityId, attempt: u32, uid: &str) -> Self {
        Self::new(task, attempt, uid, verdict(TaskStatus::Running, None, None))
    }

    pub fn succeeded(task: EntityId, attempt: u32, uid: &str) -> Self {
        let mut seen = Self::new(task, attempt, uid, verdict(TaskStatus::Succeeded, None, None));
        seen.0.verdict.exit_code = Some(0);
        seen
    }

    pub fn failed(
        task: EntityId,
        attempt: u32,
        uid: &str,
        cause: Cause,
        class: CauseClass,
    ) -> Self {
        Self::new(task, attempt, uid, verdict(TaskStatus::Failed, Some(cause), Some(class)))
    }

    pub fn app_error(task: EntityId, attempt: u32, uid: &str) -> Self {
        let mut seen = Self::failed(task, attempt, uid, Cause::AppError, CauseClass::App);
        seen.0.verdict.exit_code = Some(1);
        seen
    }

    /// The pod may still run.
    pub fn alive(mut self) -> Self {
        self.0.over = false;
        self
    }
}

impl World {
    pub fn new() -> Self {
        Self::seeded(7)
    }

    pub fn seeded(seed: u64) -> Self {
        let machines = tenure_pods::machines(Machines::kernel());
        let mut store = Model::new(Judge::new(machines.tables()));
        store.now = Timestamp::from_micros(1_000_000_000_000);
        let server = EntityId::fixed(200, 1);
        let mut world = World {
            store,
            machines,
            lanes: BTreeMap::new(),
            random: seed,
            wire: Vec::new(),
            answers: Vec::new(),
            job: EntityId::fixed(99, 1),
            executor: EntityId::fixed(200, 2),
        };
        for id in [server, world.executor] {
            world.open_session(id);
        }
        for lane in 0..limits::LANES {
            let event = NewEvent::new("lane_created", Body::Inline(vec![]));
            let id = world.commit_id();
            let made = Commit::new(id, lane_id(lane), Expect::Absent(birth("lane")), vec![event]);
            world.committed(made);
            let epoch = world.claim(lane_id(lane), server).expect("a free lane").epoch;
            world.lanes.insert(lane, epoch);
        }
        world
    }

    pub fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.random() % n.max(1)
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        let n = self.below(from.len() as u64);
        from.get(usize::try_from(n).expect("small")).cloned()
    }

    fn commit_id(&mut self) -> CommitId {
        CommitId::new(self.random(), self.random())
    }

    fn committed(&mut self, commit: Commit) {
        let answer = self.store.commit(&commit);
        assert!(matches!(answer, CommitAnswer::Committed(_)), "{answer:?} to {commit:?}");
    }

    fn open_session(&mut self, id: EntityId) {
        let (name, role) = ("w".into(), "worker".into());
        let opening = Opening { name, role, lease_ms: 15_000, executor: None };
        let event = NewEvent::new(events::OPENED, Body::json(&opening));
        let expect = Expect::Absent(birth("worker"));
        let mut open = Commit::new(self.commit_id(), id, expect, vec![event]);
        open.tenure = TenureChange::Open(opening);
        self.committed(open);
    }

    fn claim(&mut self, entity: EntityId, session: EntityId) -> Option<Head> {
        let op = Op::Claim { id: self.commit_id(), entity, session, lease: secs(15) };
        match self.store.apply(&[op]).remove(0) {
            Answer::Claim(Ok(head)) => Some(*head),
            Answer::Claim(Err(_)) => None,
            other => panic!("{other:?}"),
        }
    }

    // ---- tasks ----

    /// A task whose pods we make.
    pub fn new_task(&self) -> NewTask {
        let call = json!({ "step": "1", "key": "k", "call": 1, "what": "call", "nth": 0 });
        let call = call.as_object().cloned().expect("an object");
        NewTask {
            name: "train".into(),
            workflow_id: "wf".into(),
            tenant_id: "t".into(),
            template: json!({ "spec": { "containers": [{ "name": "main", "image": "i" }] } }),
            must_end_in_ms: 24 * 3_600_000,
            asker: Some(Asker { to: self.job, kind: "call_ended".into(), call }),
            ..NewTask::default()
        }
    }

    pub fn create(&mut self, new: NewTask) -> EntityId {
        let mut random = [0; 10];
        random[..8].copy_from_slice(&self.random().to_be_bytes());
        let id = EntityId::new(self.store.now, random);
        self.create_as(id, new);
        id
    }

    pub fn create_as(&mut self, id: EntityId, new: NewTask) {
        let body = Body::json(&new);
        let commit = self.creation(id, "task", &Input::Create(&body)).expect("it creates");
        self.committed(commit);
        self.settle();
    }

    pub fn task(&mut self) -> EntityId {
        self.create(self.new_task())
    }

    fn creation(&mut self, id: EntityId, kind: &str, input: &Input<'_>) -> Option<Commit> {
        let core = self.machines.get(kind).expect("a known kind").clone();
        let cx = Cx { id, now: self.store.now, version: 0, status: None, changed_at: None };
        let draft = core.decide(None, input, &cx).ok()??;
        let birth = self.machines.birth(kind, "t", &draft.placement).expect("a known kind");
        Some(draft.into_commit(self.commit_id(), id, Expect::Absent(birth)))
    }

    pub fn head(&self, id: EntityId) -> Head {
        self.store.heads[&id].clone()
    }

    pub fn status(&self, id: EntityId) -> &'static str {
        self.store.heads[&id].status.name()
    }

    pub fn state(&self, id: EntityId) -> TaskState {
        decode_state::<Task>(&self.store.heads[&id].state).expect("a task")
    }

    pub fn pod(&self, id: EntityId) -> PodState {
        decode_state::<Pod>(&self.store.heads[&id].state).expect("a pod")
    }

    pub fn budget(&self) -> BudgetState {
        decode_state::<Budget>(&self.store.heads[&budget_id("t")].state).expect("a budget")
    }

    pub fn is_final(&self, id: EntityId) -> bool {
        self.store.heads[&id].class() == Class::Final
    }

    pub fn events(&self, id: EntityId) -> Vec<TaskEvent> {
        let mut all = Vec::new();
        for record in &self.store.streams[&id] {
            for event in record.events().expect("readable") {
                all.extend(decode_event::<Task>(&event.name, &event.body).expect("a task's"));
            }
        }
        all
    }

    pub fn names(&self, id: EntityId) -> Vec<&'static str> {
        self.events(id).iter().map(Task::name).collect()
    }

    pub fn count(&self, id: EntityId, name: &str) -> usize {
        self.names(id).iter().filter(|n| **n == name).count()
    }

    /// The last thing that was noted, and nothing else.
    pub fn noted(&self, id: EntityId) -> String {
        match self.events(id).last() {
            Some(TaskEvent::TaskNoted { what }) => what.clone(),
            other => panic!("{other:?} is no note"),
        }
    }

    // ---- mail ----

    pub fn mail(
        &mut self,
        to: EntityId,
        id: &str,
        kind: &'static str,
        body: &impl serde::Serialize,
    ) -> MailAnswer {
        let mail = NewMail { to, id: MailId(id.into()), kind: kind.into(), body: Body::json(body) };
        match self.store.apply(&[Op::Mail(mail)]).remove(0) {
            Answer::Mail(answer) => answer,
            other => panic!("{other:?}"),
        }
    }

    /// A collector saw something.
    pub fn saw(&mut self, seen: Seen) -> MailAnswer {
        let Seen(report) = seen;
        let MailId(id) = report.mail_id();
        let answer = self.mail(report.task(), &id, POD_REPORT, &report);
        self.settle();
        answer
    }

    pub fn cancel(&mut self, task: EntityId) {
        let body = json!({ "by": "ada", "why": "enough" });
        let id = format!("cancel-{}", self.random());
        self.mail(task, &id, kinds::CANCEL, &body);
        self.settle();
    }

    // ---- an executor ----

    pub fn cx(&self, id: EntityId) -> Cx {
        let head = &self.store.heads[&id];
        Cx {
            id,
            now: self.store.now,
            version: head.version,
            status: Some(head.status),
            changed_at: Some(head.changed_at),
        }
    }

    /// The executor takes a pod.
    pub fn tend(&mut self, pod: EntityId) -> Head {
        let executor = self.executor;
        self.claim(pod, executor).expect("it can be claimed")
    }

    /// What an executor that holds a pod commits.
    pub fn act(&mut self, held: &Head, decision: Decision<PodEvent>) -> CommitAnswer {
        let head = self.head(held.id);
        let state = self.pod(held.id);
        let unread = self.unread(held.id);
        let drafted = draft::<Pod>(Some(&head), state, decision, &Input::Mail(&unread));
        let drafted = drafted.expect("allowed").expect("events");
        let expect = Expect::Holder { epoch: held.epoch, version: head.version };
        let mut commit = drafted.into_commit(self.commit_id(), held.id, expect);
        let is_over = commit.events.last().is_some_and(|e| {
            ["pod_cleared", "pod_left", "pod_not_made"].contains(&e.name.as_ref())
        });
        if is_over {
            commit.tenure = TenureChange::End;
        }
        self.store.commit(&commit)
    }

    /// The executor makes the pod and says so.
    pub fn make(&mut self, pod: EntityId, uid: &str) -> Head {
        use tenure_pods::pod::{Begun, pod_name};
        let held = self.tend(pod);
        let state = self.pod(pod);
        let name = pod_name(state.new.as_ref().expect("ordered"));
        let begun = Begun { namespace: "default".into(), name: name.clone() };
        self.act(&held, Decision::event(PodEvent::PodBegun(begun)));
        let made = PodEvent::PodMade { uid: uid.into(), adopted: false };
        let pod_ref = PodName { namespace: "default".into(), name, uid: uid.into(), node: None };
        let mut decision = Decision::event(made);
        decision.messages.extend(tell(&state, Says::Created { pod: pod_ref }));
        let answer = self.act(&held, decision);
        assert!(matches!(answer, CommitAnswer::Committed(_)), "{answer:?}");
        self.settle();
        held
    }

    /// The executor deletes the pod and says that it is gone.
    pub fn clear(&mut self, held: &Head) {
        let state = self.pod(held.id);
        let mut decision = Decision::event(PodEvent::PodCleared { how: "deleted".into() });
        decision.messages.extend(tell(&state, Says::Gone { how: "it was deleted".into() }));
        let answer = self.act(held, decision);
        assert!(matches!(answer, CommitAnswer::Committed(_)), "{answer:?}");
        self.settle();
    }

    pub fn unread(&self, id: EntityId) -> Vec<Mail> {
        let read = self.store.heads[&id].mail_read;
        let all = self.store.mail.get(&id);
        all.into_iter().flatten().filter(|m| m.seq > read).cloned().collect()
    }

    /// The executor is lost.
    pub fn lose(&mut self, pod: EntityId) {
        let head = self.head(pod);
        self.decide(&head, &Input::TenureEnded("holder_check"));
    }

    /// What the kernel does when a machine does not end by itself: no message goes with it.
    pub fn force_end(&mut self, task: EntityId) {
        let head = self.head(task);
        let event = NewEvent::new("force_ended", Body::json(&json!({ "why": "a test" })));
        let expect = Expect::Overrule { epoch: head.epoch, version: head.version };
        let mut commit = Commit::new(self.commit_id(), task, expect, vec![event]);
        commit.mail = tenure_kernel::commit::MailStance::Regardless;
        self.committed(commit);
    }

    // ---- the loops ----

    fn deliver_first(&mut self, source: EntityId) {
        let Some(posted) = self.store.outbox.values().find(|p| p.id.source == source).cloned()
        else {
            return;
        };
        let message = posted.message.clone();
        let lane_epoch = self.lanes[&lane_of(source)];
        let returned = |why: &str, to: EntityId| Handover::Mail {
            to: source,
            kind: kinds::RETURNED.into(),
            body: Body::json(&json!({"to": to, "kind": message.kind, "why": why})),
        };
        let said = || -> Value {
            serde_json::from_slice(message.body.inline().expect("small")).expect("json")
        };
        let with = match &message.to {
            Target::Mail(id) if *id == self.job => {
                self.answers.push(said());
                Handover::Nothing
            }
            Target::Create { id, kind } if !self.store.heads.contains_key(id) => {
                match self.creation(*id, kind, &Input::Create(&message.body)) {
                    Some(commit) => Handover::Create(Box::new(commit)),
                    None => returned("it can not be created", *id),
                }
            }
            Target::Mail(id) if !self.store.heads.contains_key(id) => {
                returned("no such entity", *id)
            }
            Target::Create { id, .. } | Target::Mail(id) => {
                Handover::Mail { to: *id, kind: message.kind.clone(), body: message.body.clone() }
            }
            Target::Wire(subject) => {
                self.wire.push((subject.clone(), said()));
                Handover::Nothing
            }
        };
        let op = Op::Deliver(Box::new(Delivery { id: posted.id, lane_epoch, with }));
        match self.store.apply(&[op]).remove(0) {
            Answer::Deliver(DeliveryAnswer::Delivered { .. } | DeliveryAnswer::TargetFinal) => {}
            Answer::Deliver(DeliveryAnswer::Unanswered) => {
                let (Target::Create { id, .. } | Target::Mail(id)) = &message.to else { return };
                let with = returned("it is over", *id);
                let op = Op::Deliver(Box::new(Delivery { id: posted.id, lane_epoch, with }));
                self.store.apply(&[op]);
            }
            other => panic!("{other:?} to {posted:?}"),
        }
    }

    fn sources(&self) -> BTreeSet<EntityId> {
        self.store.outbox.keys().map(|id| id.source).collect()
    }

    fn decide(&mut self, head: &Head, input: &Input<'_>) {
        let core = self.machines.get(head.kind()).expect("known").clone();
        let cx = self.cx(head.id);
        let mut draft = core
            .decide(Some(head), input, &cx)
            .unwrap_or_else(|e| panic!("{e} about {input:?} of {head:?}"))
            .expect("an answer");
        if let Input::Timer(name) = input {
            draft.timers.insert(0, TimerChange::clear((*name).to_owned()));
        }
        let (epoch, version) = (head.epoch, head.version);
        let expect = match head.holder {
            Some(_) => Expect::Overrule { epoch, version },
            None => Expect::Nobody { epoch, version },
        };
        let commit = draft.into_commit(self.commit_id(), head.id, expect);
        match self.store.commit(&commit) {
            CommitAnswer::Committed(_) | CommitAnswer::MoreMail { .. } => {}
            other => panic!("{other:?} to {commit:?}"),
        }
    }

    /// What the due loop does for one entity now. Whether it did something.
    fn serve(&mut self, id: EntityId) -> bool {
        let head = self.head(id);
        let now = self.store.now;
        if head.class() == Class::Final || !SERVED.contains(&head.kind()) {
            return false;
        }
        if head.must_end_by.is_some_and(|end| end <= now) {
            self.decide(&head, &Input::MustEnd);
            assert!(self.is_final(id), "must_end_by ends it");
            return true;
        }
        if head.holder.is_some() {
            return false;
        }
        if head.has_mail() {
            let unread = self.unread(id);
            self.decide(&head, &Input::Mail(&unread));
            return true;
        }
        let fired = head.timers.fired(now).first().map(|t| t.name.to_string());
        if let Some(name) = fired {
            self.decide(&head, &Input::Timer(&name));
            return true;
        }
        false
    }

    /// Delivers and decides until nothing is left to do now.
    pub fn settle(&mut self) {
        for _ in 0..100_000 {
            let mut moved = false;
            while let Some(source) = self.sources().first().copied() {
                self.deliver_first(source);
                moved = true;
            }
            for id in self.store.heads.keys().copied().collect::<Vec<_>>() {
                moved |= self.serve(id);
            }
            if !moved {
                return;
            }
        }
        panic!("it never settles");
    }

    /// Time goes on, from one due moment to the next.
    pub fn pass(&mut self, time: Duration) {
        let until = self.store.now + time;
        self.settle();
        while let Some(at) = self.next_due().filter(|at| *at <= until) {
            self.store.now = at.max(self.store.now);
            self.settle();
        }
        self.store.now = until;
        self.settle();
    }

    fn next_due(&self) -> Option<Timestamp> {
        let open = self.store.heads.values().filter(|h| h.class() != Class::Final);
        let ours = open.filter(|h| SERVED.contains(&h.kind()) && h.holder.is_none());
        ours.flat_map(|h| h.timers.iter().map(|t| t.at).chain(h.must_end_by)).min()
    }

    /// Until a task has its next pod wanted, or is over.
    pub fn until_attempt(&mut self, task: EntityId, attempt: u32) {
        for _ in 0..1_000 {
            if self.state(task).attempt >= attempt || self.is_final(task) {
                break;
            }
            let next = self.next_due().expect("something is due");
            self.store.now = next.max(self.store.now);
            self.settle();
        }
        assert_eq!(self.state(task).attempt, attempt, "{:?}", self.state(task));
    }

    /// Laws 2, 3 and 4 over everything there is, and one announcement per end.
    pub fn check(&self) {
        for (id, head) in &self.store.heads {
            let records = &self.store.streams[id];
            verify::verify(head, records, &self.store.judge.tables).expect("a sound stream");
            if !SERVED.contains(&head.kind()) {
                continue;
            }
            if let Some(core) = self.machines.get(head.kind()) {
                let replayed = core.replay(records, &Default::default()).expect("replayed");
                assert_eq!(replayed, head.state, "{} {id}", head.kind());
            }
            if head.kind() == "task" {
                let subject = format!("evt.task.{id}.status");
                let told = self.wire.iter().filter(|(s, _)| *s == subject).count();
                let ends = usize::from(head.class() == Class::Final);
                assert_eq!(told, ends, "announcements of the end of {id}");
            }
        }
    }
}
