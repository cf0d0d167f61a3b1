//! Tells a server, durably: `POST /v1/tasks/reports`.

use crate::commands::Failure;
use reqwest::{Client, StatusCode, Url, header::RETRY_AFTER, redirect::Policy};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};
use tenure_kernel::{address::Address, runtime::BoxFuture};
use tenure_pods::collect::{Owed, Sent, Sink, SinkId};
use tenure_remote::{ClientTls, addresses, body_up_to, tls_advice};

/// A server takes bodies of a megabyte unless it is told otherwise.
const BODY_BYTES_MAX: usize = 512 * 1024;
/// The largest answer that is read: it has a line for each report of a request.
const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The longest that a server's `Retry-After` is believed.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);
const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(20);

/// See the module.
pub struct ServerSink {
    /// Servers of one deployment; the one that answers is kept.
    servers: Vec<(Client, Url)>,
    current: AtomicUsize,
    key: Option<String>,
}

/// What became of one request.
enum Answer {
    Taken(Vec<Outcome>),
    /// Something in it is not what the server takes.
    Bad(String),
    Later(String, Option<Duration>),
}

#[derive(Deserialize)]
struct Answers {
    answers: Vec<Outcome>,
}

#[derive(Deserialize)]
struct Outcome {
    outcome: String,
    #[serde(default)]
    why: Option<String>,
}

impl ServerSink {
    /// The server at this address; several with commas between them.
    pub fn new(url: &Address, api_key: Option<&str>, tls: &ClientTls) -> Result<Self, Failure> {
        let mut servers = Vec::new();
        for one in addresses(url.expose()) {
            servers.push(Self::at(&Address::from(one), api_key, tls)?);
        }
        if servers.is_empty() {
            servers.push(Self::at(url, api_key, tls)?);
        }
        let (current, key) = (AtomicUsize::new(0), api_key.map(str::to_owned));
        Ok(ServerSink { servers, current, key })
    }

    fn at(url: &Address, key: Option<&str>, tls: &ClientTls) -> Result<(Client, Url), Failure> {
        let bad = |why: &str| {
            Failure::System(format!(
                "collector.server = {url:?} is not the address of a server ({why}); write it as http://127.0.0.1:7777"
            ))
        };
        let mut base = Url::parse(url.expose()).map_err(|e| bad(&e.to_string()))?;
        if !matches!(base.scheme(), "http" | "https") {
            return Err(bad("http or https is needed"));
        }
        let near = tenure_remote::is_near(&base);
        if key.is_some() && base.scheme() == "http" && !near {
            return Err(bad("the key would travel in clear text; use https"));
        }
        match base.path_segments_mut() {
            Ok(mut path) => path.pop_if_empty().extend(["v1", "tasks", "reports"]),
            Err(()) => return Err(bad("it has no path")),
        };
        let client = Client::builder().connect_timeout(CONNECT).redirect(Policy::none());
        let mut client = tls.apply(client);
        if near {
            client = client.no_proxy();
        }
        let client = client.build().map_err(|e| Failure::System(e.to_string()))?;
        Ok((client, base))
    }

    async fn tell(&self, batch: &[Owed]) -> Sent {
        let mut count = fitting(batch);
        loop {
            match self.post(&batch[..count]).await {
                Answer::Taken(outcomes) => {
                    let refused = outcomes.into_iter().enumerate();
                    let refused = refused.filter(|(_, o)| o.outcome == "refused");
                    let refused = refused.map(|(i, o)| (i, o.why.unwrap_or_default())).collect();
                    return Sent { settled: count, refused, ..Sent::default() };
                }
                // One bad report must not stand in the way of all behind it: which one is it?
                Answer::Bad(_) if count > 1 => count = count.div_ceil(2),
                Answer::Bad(why) => {
                    return Sent { settled: 1, refused: vec![(0, why)], ..Sent::default() };
                }
                Answer::Later(why, after) => {
                    return Sent { trouble: Some(why), after, ..Sent::default() };
                }
            }
        }
    }

    async fn post(&self, batch: &[Owed]) -> Answer {
        let reports: Vec<_> = batch.iter().map(|o| &o.saying.report).collect();
        let at = self.current.load(Ordering::Relaxed) % self.servers.len();
        let (client, url) = &self.servers[at];
        // Reports may be told twice, so another server is told what this one may have heard.
        let turn = || self.current.store(at + 1, Ordering::Relaxed);
        let mut request = client.post(url.clone());
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        let answer = request
            .timeout(ANSWER)
            .header("content-type", "application/json")
            .body(json!({ "reports": reports }).to_string())
            .send()
            .await;
        let mut answer = match answer {
            Ok(answer) => answer,
            Err(e) => {
                turn();
                let why = tls_advice(&e).unwrap_or_else(|| e.to_string());
                return Answer::Later(format!("the server can not be reached: {why}"), None);
            }
        };
        let status = answer.status();
        let after = answer.headers().get(RETRY_AFTER).and_then(|v| v.to_str().ok());
        let after = after.and_then(|v| v.trim().parse().ok()).map(Duration::from_secs);
        let after = after.map(|after| after.min(RETRY_AFTER_MAX));
        let read = body_up_to(&mut answer, ANSWER_BYTES_MAX).await;
        let body = match read {
            Ok((body, false)) => body,
            // It says nothing that is of use: as an answer that does not fit.
            Ok((_, true)) | Err(_) => Vec::new(),
        };
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        if status.is_success() {
            return match serde_json::from_value::<Answers>(body) {
                Ok(Answers { answers }) if answers.len() == batch.len() => Answer::Taken(answers),
                _ => {
                    Answer::Later("the server's answer does not fit what it was told".into(), None)
                }
            };
        }
        let detail = body["detail"].as_str().or_else(|| body["title"].as_str()).unwrap_or("");
        let why = format!("HTTP {status}: {detail}");
        match status {
            StatusCode::BAD_REQUEST
            | StatusCode::PAYLOAD_TOO_LARGE
            | StatusCode::UNPROCESSABLE_ENTITY => Answer::Bad(why),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Answer::Later(
                format!("{why} (a key with the scope collector is needed: tenure key create)"),
                after,
            ),
            StatusCode::NOT_FOUND => {
                Answer::Later(format!("{why} (is it a server that knows tasks?)"), after)
            }
            _ => {
                if status.is_server_error() {
                    turn();
                }
                Answer::Later(why, after)
            }
        }
    }
}

/// How many from the beginning fit into one request; at least one.
fn fitting(batch: &[Owed]) -> usize {
    let mut bytes = 0;
    let fits = batch.iter().take_while(|owed| {
        bytes += serde_json::to_vec(&owed.saying.report).map_or(0, |b| b.len() + 1);
        bytes <= BODY_BYTES_MAX
    });
    fits.count().max(1)
}

impl Sink for ServerSink {
    fn id(&self) -> SinkId {
        SinkId::Server
    }

    fn send<'a>(&'a self, batch: &'a [Owed]) -> BoxFuture<'a, Sent> {
        Box::pin(self.tell(batch))
    }
}
