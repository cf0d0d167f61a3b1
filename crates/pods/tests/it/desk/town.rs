//! A server on a real store, an executor that takes pods and does nothing more, and the words of both sides.

use serde_json::json;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tenure_bell::InProcess;
use tenure_edge::TokioRuntime;
use tenure_engine::{
    claimer::Claimer,
    config::EngineConfig,
    lanes::Discard,
    node::{Node, Parts},
    session::Keeper,
    worker::Held,
};
use tenure_kernel::{
    head::Head,
    ids::{EntityId, MailId},
    machine::{Decision, Machines, decode_state},
    mail::NewMail,
    store::Store,
    stream::Body,
    time::Timestamp,
};
use tenure_pods::{
    desk::{Defaults, Desk, Order, ReportOutcome, Reporter},
    pod::{Begun, POD_WORD, Pod, PodEvent, PodWord, Says, name_of_attempt, queue_of},
    report::{PodName, Report},
    task::{Task, TaskState},
    verdict::{Cause, CauseClass, TaskStatus, Verdict},
};
use tenure_proving::stores::{Place, Scene};

pub const TENANT: &str = "acme";

pub struct Town {
    pub store: Arc<dyn Store>,
    pub node: Node,
    pub desk: Desk,
    place: Place,
    keeper: Keeper,
    /// Pods in the hands of an executor that does nothing more.
    held: Mutex<Vec<Held>>,
}

impl Scene for Town {
    fn machines() -> Machines {
        tenure_pods::machines(Machines::kernel())
    }

    async fn on(place: Place) -> Self {
        let store = place.store();
        let config = EngineConfig::with_lease(Duration::from_secs(30));
        let parts = Parts {
            store: store.clone(),
            bell: Arc::new(InProcess::new()),
            rt: Arc::new(TokioRuntime::current()),
            machines: Self::machines(),
            config: config.clone(),
            name: "test".into(),
            executor: None,
            wire: Arc::new(Discard),
            protect_outage: true,
        };
        let node = Node::start(parts).await.unwrap();
        let desk = Desk::new(node.pipeline.clone(), Defaults::default());
        let keeper =
            Keeper::open(node.pipeline.clone(), Arc::new(config), "executor", "worker", None);
        let keeper = keeper.await.unwrap();
        Town { store, node, desk, place, keeper, held: Mutex::default() }
    }
}

impl Town {
    /// An executor takes the pod of an attempt and makes it.
    async fn tend(&self, pod: &PodName) {
        let mut claimer = Claimer::new(self.keeper.clone());
        let found = self.place.find(async || {
            let claimed = claimer.claim(&queue_of(""), 1, true).await.unwrap();
            claimed.into_iter().next()
        });
        let fresh = found.await.expect("a pod can be claimed");
        let mut held = Held::new(self.keeper.clone(), fresh);
        let begun = Begun { namespace: pod.namespace.clone(), name: pod.name.clone() };
        held.record::<Pod>(Decision::event(PodEvent::PodBegun(begun)), &[]).await.unwrap();
        let made = PodEvent::PodMade { uid: pod.uid.clone(), adopted: false };
        held.record::<Pod>(Decision::event(made), &[]).await.unwrap();
        self.held.lock().unwrap().push(held);
    }

    pub async fn order(&self, change: impl FnOnce(&mut Order)) -> EntityId {
        let mut order = order();
        change(&mut order);
        self.desk.order(order).await.unwrap().task
    }

    pub async fn head(&self, id: EntityId) -> Head {
        self.store.head(id).await.unwrap().unwrap()
    }

    pub async fn state(&self, id: EntityId) -> TaskState {
        decode_state::<Task>(&self.head(id).await.state).unwrap()
    }

    pub async fn until(&self, what: &str, holds: impl AsyncFnMut() -> bool) {
        self.place.until(what, holds).await;
    }

    pub async fn until_status(&self, task: EntityId, status: &str) {
        self.until(status, async || self.head(task).await.status.name() == status).await;
    }

    /// The executor's word.
    pub async fn word(&self, task: EntityId, attempt: u32, says: Says) {
        let id = MailId(format!("word/{attempt}/{}", self.node.pipeline.rt().random()));
        let body = Body::json(&PodWord { attempt, says });
        let mail = NewMail { to: task, id, kind: POD_WORD.into(), body };
        self.node.pipeline.mail(mail).await.unwrap();
    }

    pub async fn report(&self, report: Report) -> ReportOutcome {
        let from = Reporter { tenant: None };
        let answers = self.desk.report(&[report], &from).await.unwrap();
        answers[0].outcome
    }

    /// A task whose first attempt runs in a pod.
    pub async fn running(&self, change: impl FnOnce(&mut Order)) -> (EntityId, PodName) {
        let task = self.order(change).await;
        self.until_status(task, "QUEUED").await;
        let pod = pod("u1");
        self.tend(&pod).await;
        self.word(task, 1, Says::Created { pod: pod.clone() }).await;
        self.report(report(task, &pod, 1, verdict(TaskStatus::Running))).await;
        self.until_status(task, "RUNNING").await;
        (task, pod)
    }
}

pub fn order() -> Order {
    let template = json!({ "spec": { "containers": [{ "name": "main", "image": "busybox" }] } });
    Order { tenant: TENANT.into(), name: "train".into(), template, ..Order::default() }
}

pub fn pod(uid: &str) -> PodName {
    PodName {
        namespace: "ml".into(),
        name: format!("ff-train-{uid}"),
        uid: uid.into(),
        node: Some("node-1".into()),
    }
}

pub fn verdict(status: TaskStatus) -> Verdict {
    Verdict {
        status: Some(status),
        since: Some(Timestamp::from_micros(1_700_000_000_000_000)),
        ..serde_json::from_value(json!({ "status": null, "rule": "row" })).unwrap()
    }
}

pub fn failed(cause: Cause, class: CauseClass, code: Option<i32>, retryable: bool) -> Verdict {
    Verdict {
        cause: Some(cause),
        class: Some(class),
        exit_code: code,
        retryable,
        ..verdict(TaskStatus::Failed)
    }
}

pub fn report(task: EntityId, pod: &PodName, attempt: u32, verdict: Verdict) -> Report {
    let over = verdict.status.is_some_and(TaskStatus::is_final);
    Report {
        task_id: task.to_string(),
        workflow_id: String::new(),
        tenant_id: TENANT.into(),
        pod: PodName { name: name_of_attempt(task, attempt, "", "train"), ..pod.clone() },
        attempt: Some(attempt),
        verdict,
        over,
        gone: false,
        inferred: false,
        terminated_reason: None,
        result: None,
        seen_at: Timestamp::from_micros(1_700_000_000_000_000),
        collector: "test".into(),
    }
}
