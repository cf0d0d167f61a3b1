//! One long poll for every ear of a worker.
//!
//! A server can not call a worker, so the worker leaves a question with it: *tell me when one of these
//! rings*. One question at a time carries all topics that somebody here listens to; when they change it is
//! dropped and asked anew. The server remembers for a while what rang (`seen` says up to where we know), so a
//! ring between two questions is not lost.
//!
//! While the server is away we ask with growing pauses. Whatever rang meanwhile is unknown, so the first
//! answer wakes every ear once. None of this must work for anything to be correct (law 5).

use crate::{
    client::{BadAddress, Http, Intent, Servers},
    tls::ClientTls,
    wire::{BELL_TOPICS_MAX, BellAnswer, BellRequest, Words},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};
use tenure_bell::InProcess;
use tenure_kernel::{
    bell::{Bell, Ear, Topic},
    error::StoreError,
    runtime::{BoxFuture, First, Rt, first},
    table::Tables,
};
use tokio::sync::Notify;

/// How long a question stays with the server: less than the idle limit of most gateways.
const WAIT: Duration = Duration::from_secs(25);
/// What may be added on the way.
const SLACK: Duration = Duration::from_secs(10);
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// A server that answers at once, again and again, is not asked more often than this.
const PAUSE: Duration = Duration::from_millis(5);

/// Hears what rings at a server. Rings of this process go nowhere: the server rings when it commits.
/// Clones are the same bell; the question is withdrawn with the last of them and their ears.
#[derive(Clone)]
pub struct RemoteBell(Arc<Shared>);

struct Shared {
    local: InProcess,
    /// How many ears each topic has.
    topics: Mutex<BTreeMap<Topic, usize>>,
    changed: Arc<Notify>,
}

impl RemoteBell {
    /// Listens at the server at `base_url`.
    pub fn new(base_url: &str, api_key: Option<&str>, rt: Rt) -> Result<Self, BadAddress> {
        RemoteBell::with_tls(base_url, api_key, &ClientTls::default(), rt)
    }

    /// The same with certificates of one's own.
    pub fn with_tls(
        base_url: &str,
        api_key: Option<&str>,
        tls: &ClientTls,
        rt: Rt,
    ) -> Result<Self, BadAddress> {
        Ok(RemoteBell::at(&Http::new(base_url, api_key, tls)?, rt))
    }

    /// Listens at these servers.
    pub fn at(servers: &Servers, rt: Rt) -> Self {
        let http = servers.clone();
        let changed = Arc::new(Notify::new());
        let shared = Arc::new(Shared {
            local: InProcess::new(),
            topics: Mutex::default(),
            changed: changed.clone(),
        });
        let listener = Listener { http, changed, rt: rt.clone(), shared: Arc::downgrade(&shared) };
        rt.spawn(Box::pin(listener.run()));
        RemoteBell(shared)
    }
}

impl Shared {
    fn topics(&self) -> MutexGuard<'_, BTreeMap<Topic, usize>> {
        // Nothing panics under this lock.
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.changed.notify_one();
    }
}

impl Bell for RemoteBell {
    fn ring(&self, _topic: Topic) {}

    fn listen(&self, topic: Topic) -> Box<dyn Ear> {
        let ear = self.0.local.listen(topic.clone());
        let first_of_it = {
            let mut topics = self.0.topics();
            let ears = topics.entry(topic.clone()).or_default();
            *ears += 1;
            *ears == 1
        };
        if first_of_it {
            self.0.changed.notify_one();
        }
        Box::new(RemoteEar { ear, topic, shared: self.0.clone() })
    }
}

struct RemoteEar {
    ear: Box<dyn Ear>,
    topic: Topic,
    shared: Arc<Shared>,
}

impl Ear for RemoteEar {
    fn heard(&mut self) -> BoxFuture<'_, ()> {
        self.ear.heard()
    }
}

impl Drop for RemoteEar {
    fn drop(&mut self) {
        let mut topics = self.shared.topics();
        if let Some(ears) = topics.get_mut(&self.topic) {
            *ears -= 1;
            if *ears == 0 {
                // The question that is out names one topic too many, which costs nothing.
                topics.remove(&self.topic);
            }
        }
    }
}

struct Listener {
    http: Http,
    changed: Arc<Notify>,
    rt: Rt,
    /// Weak, so that the task ends with the bell.
    shared: Weak<Shared>,
}

impl Listener {
    async fn run(self) {
        let words = Words::new(Tables::default());
        // Who has just come may have missed what rang before their first question arrived.
        let (mut seen, mut away, mut backoff) = (None, true, BACKOFF_FIRST);
        loop {
            let Some(topics) = self.topics() else { return };
            if topics.is_empty() {
                self.changed.notified().await;
                continue;
            }
            // After an absence the first question comes back at once, to say that it is over.
            let wait = if away { Duration::ZERO } else { WAIT };
            let asked = self.ask(&topics, seen.clone(), wait, &words);
            match first(self.changed.notified(), asked).await {
                First::Left(()) => {}
                First::Right(Ok(answer)) => {
                    let Some(shared) = self.shared.upgrade() else { return };
                    if std::mem::take(&mut away) {
                        tracing::debug!("the server's bell is heard");
                        shared.local.ring_all();
                    }
                    let rung = answer.rung.iter().filter_map(|t| Topic::parse(t));
                    rung.for_each(|topic| shared.local.ring(topic));
                    drop(shared);
                    (seen, backoff) = (Some(answer.seen), BACKOFF_FIRST);
                    self.rt.sleep(PAUSE).await;
                }
                First::Right(Err(e)) => {
                    if !std::mem::replace(&mut away, true) {
                        tracing::warn!(error = %e, "the server's bell can not be heard; working by the clock");
                    }
                    self.rt.sleep(backoff).await;
                    backoff = (backoff * 2).min(BACKOFF_MAX);
                }
            }
        }
    }

    /// What a worker may hear of; `None` when the bell is gone.
    fn topics(&self) -> Option<Vec<String>> {
        let shared = self.shared.upgrade()?;
        let topics = shared.topics();
        let heard = topics.keys().filter(|t| matches!(t, Topic::Queue(_) | Topic::Session(_)));
        // More than these are served by the clock alone.
        Some(heard.take(BELL_TOPICS_MAX).map(Topic::to_string).collect())
    }

    async fn ask(
        &self,
        topics: &[String],
        seen: Option<String>,
        wait: Duration,
        words: &Words,
    ) -> Result<BellAnswer, StoreError> {
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(0);
        let request = BellRequest { topics: topics.to_vec(), wait_ms, seen };
        self.http.post("v1/worker/bell", &request, Intent::Read, wait + SLACK, words).await
    }
}
