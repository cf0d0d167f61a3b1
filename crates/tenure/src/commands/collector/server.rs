//! Tells a server, durably: `POST /v1/tasks/reports`.

use crate::commands::Failure;
use reqwest::{Client, StatusCode, Url, header::RETRY_AFTER, redirect::Policy};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;
use tenure_kernel::runtime::BoxFuture;
use tenure_pods::collect::{Owed, Sent, Sink, SinkId};

/// A server takes bodies of a megabyte unless it is told otherwise.
const BODY_BYTES_MAX: usize = 512 * 1024;
const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(20);

/// See the module.
pub struct ServerSink {
    client: Client,
    url: Url,
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
    /// The server at this address.
    pub fn new(url: &str, api_key: Option<&str>) -> Result<Self, Failure> {
        let bad = |why: &str| {
            Failure::System(format!(
                "collector.server = {url:?} is not the address of a server ({why}); write it as http://127.0.0.1:7777"
            ))
        };
        let mut base = Url::parse(url).map_err(|e| bad(&e.to_string()))?;
        if !matches!(base.scheme(), "http" | "https") {
            return Err(bad("http or https is needed"));
        }
        let near = tenure_remote::is_near(&base);
        if api_key.is_some() && base.scheme() == "http" && !near {
            return Err(bad("the key would travel in clear text; use https"));
        }
        match base.path_segments_mut() {
            Ok(mut path) => path.pop_if_empty().extend(["v1", "tasks", "reports"]),
            Err(()) => return Err(bad("it has no path")),
        };
        let mut client = Client::builder().connect_timeout(CONNECT).redirect(Policy::none());
        if near {
            client = client.no_proxy();
        }
        let client = client.build().map_err(|e| Failure::System(e.to_string()))?;
        Ok(ServerSink { client, url: base, key: api_key.map(str::to_owned) })
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
        let mut request = self.client.post(self.url.clone());
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        let answer = request
            .timeout(ANSWER)
            .header("content-type", "application/json")
            .body(json!({ "reports": reports }).to_string())
            .send()
            .await;
        let answer = match answer {
            Ok(answer) => answer,
            Err(e) => return Answer::Later(format!("the server can not be reached: {e}"), None),
        };
        let status = answer.status();
        let after = answer.headers().get(RETRY_AFTER).and_then(|v| v.to_str().ok());
        let after = after.and_then(|v| v.trim().parse().ok()).map(Duration::from_secs);
        let body = answer.bytes().await.unwrap_or_default();
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
            _ => Answer::Later(why, after),
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
