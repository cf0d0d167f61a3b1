//! Tasks, their pods and a budget in the small world of machines, with an executor and a collector that do and say what
//! a test tells them.

use serde_json::{Value, json};
use std::{
    ops::{Deref, DerefMut},
    time::Duration,
};
use tenure_kernel::{
    commit::{CommitAnswer, TenureChange},
    head::Head,
    ids::{EntityId, MailId},
    machine::{Decision, Machines},
    mail::{MailAnswer, kinds},
    outbox::{Message, Target},
    stream::Body,
    table::Class,
    time::Timestamp,
};
use tenure_pods::{
    budget::{Budget, BudgetState, budget_id},
    pod::{Pod, PodEvent, PodState, Says, decide::tell, name_of_attempt},
    report::{POD_REPORT, PodName, Report, task_of_label},
    task::{NewTask, Task, TaskEvent, model::Asker},
    verdict::{Cause, CauseClass, TaskStatus, Verdict},
};
use tenure_proving::small::{Outside, Small, said};

/// The job that asks for tasks.
pub struct Job {
    pub id: EntityId,
    /// What it was told.
    pub answers: Vec<Value>,
}

impl Outside for Job {
    type Main = Task;
    const SERVED: &'static [&'static str] = &["task", "pod", "budget"];

    fn takes(&mut self, _: EntityId, message: &Message) -> bool {
        let mine = matches!(message.to, Target::Mail(id) if id == self.id);
        if mine {
            self.answers.push(said(message));
        }
        mine
    }
}

pub struct World {
    small: Small<Job>,
    executor: EntityId,
}

impl Deref for World {
    type Target = Small<Job>;
    fn deref(&self) -> &Small<Job> {
        &self.small
    }
}

impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut Small<Job> {
        &mut self.small
    }
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
            inferred: false,
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
        let job = Job { id: EntityId::fixed(99, 1), answers: Vec::new() };
        let mut small = Small::new(tenure_pods::machines(Machines::kernel()), seed, job);
        let executor = small.worker();
        World { small, executor }
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
            asker: Some(Asker { to: self.outside.id, kind: "call_ended".into(), call }),
            ..NewTask::default()
        }
    }

    pub fn order(&mut self, new: NewTask) -> EntityId {
        let id = self.fresh_id();
        self.order_as(id, new);
        id
    }

    pub fn order_as(&mut self, id: EntityId, new: NewTask) {
        self.create(id, "task", &Body::json(&new));
        self.settle();
    }

    pub fn task(&mut self) -> EntityId {
        self.order(self.new_task())
    }

    pub fn pod(&self, id: EntityId) -> PodState {
        self.state_of::<Pod>(id)
    }

    pub fn budget(&self) -> BudgetState {
        self.state_of::<Budget>(budget_id("t"))
    }

    /// The last thing that was noted, and nothing else.
    pub fn noted(&self, id: EntityId) -> String {
        match self.events(id).last() {
            Some(TaskEvent::TaskNoted { what }) => what.clone(),
            other => panic!("{other:?} is no note"),
        }
    }

    // ---- mail ----

    /// A collector saw something.
    pub fn saw(&mut self, seen: Seen) -> MailAnswer {
        let Seen(report) = seen;
        let MailId(id) = report.mail_id();
        let answer = self.mail(task_of_label(&report.task_id), &id, POD_REPORT, &report);
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

    /// The executor takes a pod.
    pub fn tend(&mut self, pod: EntityId) -> Head {
        let executor = self.executor;
        self.claim(pod, executor).expect("it can be claimed")
    }

    /// What an executor that holds a pod commits.
    pub fn act(&mut self, held: &Head, decision: Decision<PodEvent>) -> CommitAnswer {
        let unread = self.unread(held.id);
        let mut commit = self.drafted::<Pod>(held, decision, &unread);
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
        decision
            .messages
            .extend(tell(&state, Says::Gone { how: "it was deleted".into(), unproven: false }));
        let answer = self.act(held, decision);
        assert!(matches!(answer, CommitAnswer::Committed(_)), "{answer:?}");
        self.settle();
    }

    /// Until a task has its next pod wanted, or is over.
    pub fn until_attempt(&mut self, task: EntityId, attempt: u32) {
        for _ in 0..1_000 {
            if self.state(task).attempt >= attempt || self.is_final(task) {
                break;
            }
            self.store.now = self.next_due().expect("something is due");
            self.settle();
        }
        assert_eq!(self.state(task).attempt, attempt, "{:?}", self.state(task));
    }

    /// Laws 2, 3 and 4 over everything there is, and one announcement per end.
    pub fn check(&self) {
        self.check_laws();
        for (id, head) in self.store.heads.iter().filter(|(_, head)| head.kind() == "task") {
            let told = self.announced(&format!("evt.task.{id}.status")).len();
            let ends = usize::from(head.class() == Class::Final);
            assert_eq!(told, ends, "announcements of the end of {id}");
        }
    }
}
