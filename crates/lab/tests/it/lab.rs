//! A server in this process on a store of its own, an outside world that counts, and workers as processes that
//! can be killed and stopped.

use crate::{
    console::administrators_key,
    support::{Guarded, tenure},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::{
    path::{Path, PathBuf},
    process::{Child, Stdio},
    sync::Arc,
    time::Duration,
};
use tenure::{
    config::Settings,
    jobs::{
        Job, JobState,
        decide::{AskMail, ResolveMail, SignalMail, mail},
        drive::read_events,
        submit::Submission,
    },
    kernel::{
        head::Head,
        ids::{EntityId, MailId},
        machine::decode_state,
        mail::{MailAnswer, NewMail},
        store::Store,
        stream::{Body, Event},
        table::Class,
    },
    service::Service,
};
use tenure_lab::{drill::outside::Outside, lab_process::lab_program, problems};
use tenure_steps::events::{StepId, Verdict, WaitOutcome};

/// The lease, in seconds, of a worker that is to be lost. The others wait for its end, and it must be long enough that a busy
/// machine does not take the job from the worker before the point at which the worker is struck.
pub const LEASE_OF_THE_LOST: f64 = 4.0;

/// The lease, in seconds, of a worker that is to finish. It outlasts every standstill of a busy machine, so a call of this worker is
/// never in doubt.
const LEASE_OF_THE_LASTING: f64 = 25.0;

pub struct Lab {
    pub service: Service,
    pub outside: Outside,
    pub store: Arc<dyn Store>,
    sets: Vec<String>,
    /// Of the server, for every tenant.
    key: String,
    dir: PathBuf,
    _scratch: tempfile::TempDir,
}

/// A worker process.
pub struct Hand {
    child: Guarded,
    pub log: PathBuf,
}

impl Hand {
    fn pid(&self) -> Pid {
        Pid::from_child(&self.child.0)
    }

    pub fn send(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// SIGKILL, and the kernel has taken it away.
    pub fn kill(&mut self) {
        self.child.0.kill().unwrap();
        self.child.0.wait().unwrap();
    }

    /// What it said.
    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Returns when its log has this.
    pub async fn until_said(&self, what: &str) {
        bounded(&format!("{what:?} in the log of a worker"), || async {
            self.said().contains(what).then_some(())
        })
        .await;
    }

    /// Returns its exit when it has ended.
    pub async fn ended(&mut self) -> std::process::ExitStatus {
        bounded("the end of a worker", || {
            let done = self.child.0.try_wait().unwrap();
            async move { done }
        })
        .await
    }
}

/// Waits for something to be there, for at most half a minute.
pub async fn bounded<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut look: impl FnMut() -> F,
) -> T {
    for _ in 0..3_000 {
        if let Some(found) = look().await {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("waited too long for {what}");
}

impl Lab {
    /// On SQLite in a directory of its own, or on this database.
    pub async fn open(database: Option<&str>, more: &[&str]) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path().to_owned();
        let url = match database {
            Some(url) => url.to_owned(),
            None => format!("sqlite:{}", dir.join("data").display()),
        };
        let mut sets = vec![
            "egress.allow=*=127.0.0.1".to_owned(),
            format!("store.url={url}"),
            "server.listen=127.0.0.1:0".to_owned(),
            format!("worker.lease_seconds={LEASE_OF_THE_LOST}"),
            "worker.renewal_seconds=0.25".to_owned(),
            "server.tick_seconds=0.25".to_owned(),
            "server.pulse_gap_seconds=0.6".to_owned(),
            "executor.backoff=0.05".to_owned(),
            "executor.stop_grace=0.5".to_owned(),
            "pods.executor_listen=127.0.0.1:0".to_owned(),
            "log.filter=warn,tenure=info,tenure_jobs=info".to_owned(),
        ];
        sets.extend(more.iter().map(|s| (*s).replace("SCRATCH", &dir.display().to_string())));
        let settings = Settings::load(None, [], &sets).unwrap();
        let service = lab_program().serve(&settings, false).await.unwrap();
        let outside = Outside::open().await.unwrap();
        let store = service.store.clone();
        let key = administrators_key(&service).await;
        Lab { service, outside, store, sets, key, dir, _scratch: scratch }
    }

    /// A worker process that lasts until the end of the test, or ends as it is asked to.
    pub fn worker(&self) -> Hand {
        let lease = format!("worker.lease_seconds={LEASE_OF_THE_LASTING}");
        self.process("worker", &["--set", &lease], None)
    }

    /// A worker process that the test kills.
    pub fn mortal_worker(&self) -> Hand {
        self.process("worker", &[], None)
    }

    /// A worker process that strikes itself at this point, see `TENURE_DRILL_POINT`.
    pub fn doomed_worker(&self, point: &str) -> Hand {
        self.process("worker", &[], Some(point))
    }

    /// An executor process, for the cluster of this kubeconfig.
    pub fn executor(&self, kubeconfig: &Path, point: Option<&str>) -> Hand {
        let kubeconfig = kubeconfig.display().to_string();
        self.process("executor", &["--kubeconfig", &kubeconfig], point)
    }

    fn process(&self, command_name: &str, more: &[&str], point: Option<&str>) -> Hand {
        let mut command = tenure();
        command.arg(command_name).args(["--server", &self.service.url()]);
        command.current_dir(&self.dir).env("TENURE_API_KEY", &self.key);
        for set in self.sets.iter().filter(|s| !s.starts_with("store.url")) {
            command.args(["--set", set]);
        }
        // What is set later counts.
        command.args(more);
        if let Some(point) = point {
            command.env("TENURE_DRILL_POINT", point);
        }
        let log = self.dir.join(format!("{command_name}-{}.log", random()));
        let out = std::fs::File::create(&log).unwrap();
        command.stderr(out.try_clone().unwrap()).stdout(Stdio::from(out));
        let child: Child = command.spawn().expect("the binary starts");
        Hand { child: Guarded(child), log }
    }

    /// A job of `drill.script`.
    pub async fn script(&self, lines: Value) -> EntityId {
        let input = json!({ "outside": self.outside.address(), "lines": lines });
        self.submit("drill.script", input).await
    }

    pub async fn submit(&self, flow: &str, input: Value) -> EntityId {
        let tenant = "default".into();
        let submission = Submission { flow: flow.into(), input, tenant, ..Submission::default() };
        // A worker registers its flows when it starts; the first submission may be faster.
        bounded("the flow in the catalogue", || async {
            self.service.submitter.submit(submission.clone()).await.ok()
        })
        .await
        .id
    }

    pub async fn head(&self, job: EntityId) -> Head {
        self.store.head(job).await.unwrap().unwrap()
    }

    pub async fn state(&self, job: EntityId) -> JobState {
        decode_state::<Job>(&self.head(job).await.state).unwrap()
    }

    pub async fn until(&self, job: EntityId, status: &str) -> JobState {
        let what = format!("{status} of a job");
        let looking = bounded(&what, || async {
            let head = self.head(job).await;
            if head.status.name() == status {
                return Some(decode_state::<Job>(&head.state).unwrap());
            }
            assert!(
                head.class() != Class::Final,
                "{} instead of {status}:\n{}",
                head.status.name(),
                self.story(job).await
            );
            None
        });
        // Shorter than the bound itself, which would not tell the story.
        match tokio::time::timeout(Duration::from_secs(25), looking).await {
            Ok(state) => state,
            Err(_) => panic!("not {status}:\n{}", self.story(job).await),
        }
    }

    pub async fn events(&self, job: EntityId) -> Vec<Event> {
        let mut events = Vec::new();
        for record in self.store.stream(job, 1, 10_000).await.unwrap() {
            events.extend(read_events(&self.store, &record).await.unwrap().1);
        }
        events
    }

    pub async fn story(&self, job: EntityId) -> String {
        let line = |e: &Event| {
            format!(
                "{} e{} {} {}",
                e.version,
                e.epoch,
                e.name,
                String::from_utf8_lossy(e.body.inline().unwrap_or(b""))
            )
        };
        self.events(job).await.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    pub async fn count(&self, job: EntityId, event: &str) -> usize {
        self.events(job).await.iter().filter(|e| e.name == event).count()
    }

    async fn mail(&self, job: EntityId, kind: &'static str, id: &str, body: Body) -> MailAnswer {
        let mail = NewMail { to: job, id: MailId(id.into()), kind: kind.into(), body };
        self.service.node.pipeline.mail(mail).await.unwrap()
    }

    pub async fn resolve(&self, job: EntityId, step: &str, verdict: Verdict, result: Value) {
        let step = StepId(step.into());
        let body =
            ResolveMail { step, of: None, verdict, result, by: Some("ann".into()), note: None };
        self.mail(job, mail::RESOLVE, "resolve", Body::json(&body)).await;
    }

    pub async fn signal(&self, job: EntityId, key: &str, payload: Value) -> MailAnswer {
        let outcome = WaitOutcome::Signalled;
        let body = SignalMail { key: key.into(), outcome, payload, by: None };
        self.mail(job, mail::SIGNAL, &format!("signal/{key}"), Body::json(&body)).await
    }

    pub async fn resume(&self, job: EntityId) {
        self.mail(job, mail::RESUME, "resume", Body::json(&AskMail::default())).await;
    }

    pub async fn cancel(&self, job: EntityId) {
        let body = AskMail::default();
        self.mail(job, tenure::kernel::mail::kinds::CANCEL, "cancel", Body::json(&body)).await;
    }

    /// Nothing in the store is wrong, and the server says goodbye.
    pub async fn close(self) {
        self.service.stop().await.unwrap();
        let found = problems(&*self.store).await;
        assert!(found.is_empty(), "{}", found.join("\n"));
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

fn random() -> u64 {
    tenure::service::random()
}
