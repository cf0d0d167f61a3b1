//! Where one case is played: a flow of its own on a server, an outside world of its own, workers of its own.

use super::{
    breaks::Break,
    bus::Bus,
    cluster::Cluster,
    matrix::Witnessed,
    outside::Outside,
    processes::{Hand, LOOK, Orders, this_program},
    witness::{Account, Expected, judge},
};
use serde_json::{Value, json};
use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};
use tenure::commands::{
    Failure,
    job::{args::Server, client::Api},
};
use tenure_tools::scripted;

/// Where effects lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// In the store, in one commit with their events.
    Same,
    /// In a directory of their own, durable before their events.
    Separate,
}

impl Layout {
    /// What it is called in a report.
    pub fn name(self) -> &'static str {
        match self {
            Layout::Same => "effects in the store",
            Layout::Separate => "effects in a directory",
        }
    }
}

/// What all cases of a drill share.
#[derive(Clone, Debug)]
pub struct Base {
    /// The server.
    pub url: String,
    /// An API key for it.
    pub key: Option<String>,
    /// The tenant of the jobs, where the key does not say.
    pub tenant: Option<String>,
    /// Settings of workers, as `KEY=VALUE`.
    pub sets: Vec<String>,
    /// How long a silent worker is believed to live.
    pub lease: Duration,
    /// A protection that is switched off.
    pub broken: Option<Break>,
    /// How long a job is waited for.
    pub patience: Duration,
    /// Every job that was made.
    pub submitted: Arc<Mutex<Vec<String>>>,
    /// Every agent that was made.
    pub agents: Arc<Mutex<Vec<String>>>,
}

impl Base {
    /// Every job that was made.
    pub fn submitted(&self) -> Vec<String> {
        self.lock().clone()
    }

    /// Every agent that was made.
    pub fn agents(&self) -> MutexGuard<'_, Vec<String>> {
        // Nothing panics under this lock.
        self.agents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        // Nothing panics under this lock.
        self.submitted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The world of one case.
pub struct Ground {
    /// What it shares with others.
    pub base: Base,
    /// What the case does to.
    pub outside: Outside,
    /// What the tool `llm` talks to.
    pub model: scripted::Server,
    /// A cluster of its own, where the case breaks servers or stores.
    pub cluster: Option<Cluster>,
    /// Reproducible choices.
    pub seed: u64,
    /// The bus of a cluster of its own, where the case needs one.
    pub bus: Option<Bus>,
    /// Its workers run turns of agents, too.
    pub turns: bool,
    layout: Layout,
    flow: (String, u32),
    dir: PathBuf,
    api: Api,
    hands: AtomicU32,
}

/// The flow of a case: few names, ever new versions, so that a drill leaves little in a catalogue.
pub fn flow_of(place: usize) -> (String, u32) {
    static LAST: AtomicU32 = AtomicU32::new(0);
    let now = tenure_kernel::runtime::Clock::now(&tenure_edge::SystemClock).as_micros() / 1_000_000;
    let now = u32::try_from(now).unwrap_or(u32::MAX);
    let next = |last: u32| Some(now.max(last + 1));
    // `next` never refuses.
    let last = LAST.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next).unwrap_or_default();
    (format!("drill.ground.{place}"), now.max(last + 1))
}

impl Ground {
    /// A world on this server. `dir` is the case's own.
    pub async fn make(
        base: Base,
        dir: &Path,
        layout: Layout,
        flow: (String, u32),
        seed: u64,
    ) -> Result<Self, Failure> {
        std::fs::create_dir_all(dir)?;
        let script = scripted::Script::new().otherwise(scripted::Reply::text("yes"));
        Ok(Ground {
            outside: Outside::open().await?,
            model: scripted::Server::start(script).await?,
            api: api(&base.url, base.key.clone())?,
            base,
            cluster: None,
            seed,
            bus: None,
            turns: false,
            layout,
            flow,
            dir: dir.to_owned(),
            hands: AtomicU32::new(0),
        })
    }

    /// The API of the server.
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// Room for files of the case.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where effects lie.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// A worker process; `point` is what it does to itself.
    pub fn worker(&self, point: Option<&str>) -> Result<Hand, Failure> {
        self.worker_at(&self.base.url, point)
    }

    /// A worker that reaches the server at another address.
    pub fn worker_at(&self, url: &str, point: Option<&str>) -> Result<Hand, Failure> {
        self.start_worker(url, point, 0)
    }

    /// A worker whose clock is wrong by so many seconds.
    pub fn worker_with_clock(&self, wrong_by: i64) -> Result<Hand, Failure> {
        self.start_worker(&self.base.url, None, wrong_by)
    }

    /// The target that its workers serve, and nobody else.
    pub fn target(&self) -> String {
        format!("{}-{}", self.flow.0.replace('.', "-"), self.flow.1)
    }

    /// The flow that its workers run, as `NAME@VERSION`.
    pub fn flow(&self) -> String {
        format!("{}@{}", self.flow.0, self.flow.1)
    }

    fn start_worker(&self, url: &str, point: Option<&str>, clock: i64) -> Result<Hand, Failure> {
        let mut sets = self.base.sets.clone();
        sets.push(format!("llm.base_url={}", self.model.base_url()));
        sets.extend(["llm.model=drill", "llm.api_key_env="].map(str::to_owned));
        if self.layout == Layout::Separate {
            sets.push(format!("effects.directory={}", self.dir.join("effects").display()));
        }
        sets.push(format!("worker.targets={}", self.target()));
        let mut command = this_program(&["worker", "--server", url], &sets)?;
        let orders = Orders {
            flow: self.flow(),
            point: point.map(str::to_owned),
            broken: self.base.broken,
            key: self.base.key.clone(),
            turns: self.turns,
            clock,
        };
        orders.give(&mut command);
        let number = self.hands.fetch_add(1, Ordering::SeqCst);
        Hand::start(command, &self.dir, &format!("worker-{number}"))
    }

    /// A worker that is ready: its flow is registered.
    pub async fn ready_worker(&self, point: Option<&str>) -> Result<Hand, Failure> {
        let mut hand = self.worker(point)?;
        hand.until_said("a worker for").await?;
        Ok(hand)
    }

    /// A new job with these lines.
    pub async fn submit(&self, lines: Value) -> Result<String, Failure> {
        let (flow, version) = &self.flow;
        let input = json!({ "children": flow, "outside": self.outside.address(), "lines": lines });
        let key = format!("drill-{:x}", tenure::service::random());
        let mut body = json!({ "flow": flow, "version": version, "input": input, "key": key });
        if let Some(tenant) = &self.base.tenant {
            body["tenant"] = json!(tenant);
        }
        // A worker registers its flow when it starts; the submission may be faster.
        let submitted =
            until(self.base.patience, || async { self.api.post(&["jobs"], &body).await.ok() })
                .await;
        let job = match submitted {
            Some(job) => job,
            // Once more, for the words.
            None => self.api.post(&["jobs"], &body).await?,
        };
        let id = job["id"].as_str().unwrap_or_default().to_owned();
        self.base.lock().push(id.clone());
        Ok(id)
    }

    /// A job as the API shows it; `None` while the server does not answer.
    pub async fn job(&self, id: &str) -> Option<Value> {
        self.api.get(&["jobs", id], &[]).await.ok()
    }

    /// Waits until a job is as wanted. Gives up early if it is over and is not.
    pub async fn until(&self, id: &str, wanted: impl Fn(&Value) -> bool) -> Option<Value> {
        let mut over = false;
        let found = until(self.base.patience, || async {
            let job = self.job(id).await?;
            (wanted(&job) || job["is_final"] == true).then_some(job)
        })
        .await;
        if let Some(job) = &found {
            over = wanted(job);
        }
        found.filter(|_| over)
    }

    /// Waits for a status.
    pub async fn until_status(&self, id: &str, status: &str) -> Option<Value> {
        self.until(id, |job| job["status"] == status).await
    }

    /// Waits for the end of a job, whichever.
    pub async fn until_over(&self, id: &str) -> Option<Value> {
        self.until(id, |job| job["is_final"] == true).await
    }

    /// Waits until the history has so many events of a name.
    pub async fn until_event(&self, id: &str, name: &str, count: usize) -> Result<(), Failure> {
        let found = until(self.base.patience, || async {
            let events = self.events(id).await;
            (events.iter().filter(|e| e["name"] == name).count() >= count).then_some(())
        });
        found.await.ok_or_else(|| {
            Failure::System(format!("job {id} never recorded {name}, {count} times"))
        })
    }

    /// The events of a job.
    pub async fn events(&self, id: &str) -> Vec<Value> {
        let (mut all, mut from) = (Vec::new(), 1u64);
        loop {
            let query = [("from", from.to_string()), ("limit", "1000".to_owned())];
            let Ok(page) = self.api.get(&["jobs", id, "events"], &query).await else { return all };
            all.extend(page["events"].as_array().cloned().unwrap_or_default());
            match page["next"].as_u64() {
                Some(next) => from = next,
                None => return all,
            }
        }
    }

    /// Sends a signal; asking again is safe, and is what a caller without an answer does.
    pub async fn signal(&self, id: &str, key: &str, payload: &Value) -> Result<Value, Failure> {
        let body = json!({ "key": key, "payload": payload, "early": true });
        self.api.post(&["jobs", id, "signal"], &body).await
    }

    /// Says what became of the one unknown call of a job in `attention`.
    pub async fn resolve(&self, id: &str, name: &str) -> Result<&'static str, Failure> {
        let job = self.api.get(&["jobs", id], &[]).await?;
        let step = job["attention"]["step"].clone();
        let started =
            |e: &&Value| e["name"] == "tool_invocation_started" && e["body"]["step"] == step;
        let key = self.events(id).await.iter().rfind(started).map(|e| e["body"]["key"].clone());
        let happened = self.outside.count(name) > 0;
        let verdict = if happened { "happened" } else { "did_not_happen" };
        let mut body =
            json!({ "step": step, "verdict": verdict, "by": "drill", "note": "looked outside" });
        if happened {
            body["result"] = json!({ "name": name, "key": key });
        }
        self.api.post(&["jobs", id, "resolve"], &body).await?;
        Ok(verdict)
    }

    /// Waits for the end of a job; if it asks a person about `name`, says what the outside world knows. Notes
    /// that in `expected`.
    pub async fn finish(
        &self,
        id: &str,
        name: &str,
        expected: &mut Expected,
    ) -> Result<(), Failure> {
        let rests = |job: &Value| {
            job["is_final"] == true
                || (job["status"] == "attention" && job["attention"]["again_in_ms"].is_null())
        };
        // What was unknown may settle itself while somebody looks outside: a late result has come.
        for _ in 0..5 {
            match self.until(id, rests).await {
                Some(job) if job["is_final"] != true => {}
                _ => return Ok(()),
            }
            match self.resolve(id, name).await {
                Ok(verdict) => {
                    expected.asked = Some(format!(
                        "nobody could know whether {name} happened: a person was asked and said {verdict}"
                    ));
                    self.until_over(id).await;
                    return Ok(());
                }
                Err(e) => match self.job(id).await {
                    // It settled itself, and went on to its end, while the person was still writing.
                    Some(job) if job["is_final"] == true => return Ok(()),
                    Some(job) if rests(&job) => return Err(e),
                    _ => {}
                },
            }
        }
        Ok(())
    }

    /// Waits until somebody else has taken the job, and says how long that took.
    pub async fn taken_over(&self, id: &str, before: u64) -> Option<Duration> {
        let rt = tenure_edge::TokioRuntime::current();
        let mono = || tenure_kernel::runtime::Runtime::mono(&rt);
        let from = mono();
        let taken = |job: &Value| job["attempt"].as_u64().is_some_and(|now| now > before);
        until(self.base.patience, || async { self.job(id).await.filter(|j| taken(j)) }).await?;
        Some(mono().saturating_sub(from))
    }

    /// The attempt under which a job runs now.
    pub async fn attempt(&self, id: &str) -> u64 {
        self.job(id).await.and_then(|j| j["attempt"].as_u64()).unwrap_or_default()
    }

    /// Everything that can be read about a job now.
    pub async fn account(&self, id: &str) -> Account {
        let job = self.job(id).await;
        let verification = self.api.get(&["jobs", id, "verify"], &[]).await.unwrap_or_else(
            |e| json!({ "problems": [format!("the history can not be verified: {e}")] }),
        );
        Account { job, events: self.events(id).await, verification, done: self.outside.done() }
    }

    /// Judges a job by what can be read about it now.
    pub async fn judged(&self, id: &str, expected: &Expected) -> Witnessed {
        judge(expected, &self.account(id).await)
    }
}

/// A client of a server.
pub fn api(url: &str, key: Option<String>) -> Result<Api, Failure> {
    Api::new(&Server { server: url.to_owned(), api_key: key, by: None }, false)
}

/// Looks again and again, no longer than a bound.
pub async fn until<T, F: Future<Output = Option<T>>>(
    bound: Duration,
    mut look: impl FnMut() -> F,
) -> Option<T> {
    let looking = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::time::timeout(bound, looking).await.ok()
}
