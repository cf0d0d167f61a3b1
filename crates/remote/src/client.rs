//! One HTTP client for store and bell, and what its failures mean.
//!
//! The difference that matters is whether a request may have been carried out. A connection that was
//! never made carried nothing: *unavailable*, nothing was written. Everything after that, a reset, a
//! timeout, half an answer, a gateway's own error page, is *indeterminate* for a write: the engine asks again
//! with the same commit ids. Reads change nothing, so they are merely unavailable.

use crate::{
    tls::{ClientTls, tls_advice},
    wire::{BEARER, FAULT_MEMBER, StoreFault, Words},
};
use reqwest::{
    Client, Method, RequestBuilder, Response, StatusCode, Url,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue},
    redirect::Policy,
};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tenure_kernel::{address::Address, error::StoreError, limits::clip};

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a request may take: longer than a server's own patience with its store.
pub(crate) const ANSWER: Duration = Duration::from_secs(30);
/// An idle connection is dropped after this long, before most gateways do it.
const IDLE: Duration = Duration::from_secs(50);
/// How much of a foreign error page is repeated.
const EXCERPT: usize = 200;
/// The largest answer that is read. The largest that a server gives are a page with a record of
/// [`EVENTS_PER_COMMIT_MAX`](tenure_kernel::limits::EVENTS_PER_COMMIT_MAX) full events and all evidence of an entity:
/// both have about 45 MB in base64.
pub(crate) const ANSWER_BYTES_MAX: usize = 128 * 1024 * 1024;
/// What is read of an answer that is no success.
const PROBLEM_BYTES_MAX: usize = 1024 * 1024;

/// The address of a server, or the key, can not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAddress {
    /// Not an address.
    #[error("{url:?} is not the address of a server ({why}); write it as http://127.0.0.1:7777")]
    Url {
        /// What was given.
        url: Address,
        /// What is wrong with it.
        why: String,
    },
    /// Not a key.
    #[error("the API key has characters that can not be sent; copy it again, it looks like tnr_…")]
    Key,
    /// A key in clear text across a network.
    #[error(
        "{0:?} would send the API key in clear text; use https, a loopback address, or a service of the same cluster (NAME.NAMESPACE.svc)"
    )]
    ClearText(Address),
    /// TLS could not be set up.
    #[error("no HTTP client: {0}")]
    Client(String),
}

/// The addresses in a text: one, or several with commas between them.
pub fn addresses(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|address| !address.is_empty())
}

/// Speaks to a server, or to several of one deployment: the one that answers is kept, and the next is asked when it does not. Clones share
/// their connections and the choice.
#[derive(Clone, Debug)]
pub struct Servers {
    all: Arc<[Server]>,
    /// Which of them is asked.
    current: Arc<AtomicUsize>,
}

pub(crate) use Servers as Http;

/// One address.
#[derive(Debug)]
struct Server {
    client: Client,
    base: Url,
    key: Option<HeaderValue>,
}

/// A request that can be sent more than once.
pub(crate) struct Ask<'a> {
    pub(crate) method: Method,
    /// A path below the base, with its query in it.
    pub(crate) path: &'a str,
    pub(crate) timeout: Duration,
    /// The content type and the bytes.
    pub(crate) body: Option<(&'static str, Vec<u8>)>,
}

/// Whether a request may change something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intent {
    /// Changes nothing, or may be repeated blindly.
    Read,
    /// Its fate matters.
    Write,
}

impl Servers {
    /// The servers at these addresses: see [`addresses`].
    pub fn new(bases: &str, key: Option<&str>, tls: &ClientTls) -> Result<Self, BadAddress> {
        let mut all = Vec::new();
        for base in addresses(bases) {
            all.push(Server::new(base, key, tls)?);
        }
        if all.is_empty() {
            return Err(BadAddress::Url { url: bases.into(), why: "it is empty".to_owned() });
        }
        Ok(Servers { all: all.into(), current: Arc::default() })
    }

    /// From now on the next server is asked, unless another request has seen to that.
    fn turn_from(&self, at: usize) {
        let next = (at + 1) % self.all.len();
        if next == at {
            return;
        }
        let turned = self.current.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
        if turned.is_ok() {
            let (from, to) = (self.all[at].shown(), self.all[next].shown());
            tracing::warn!(%from, %to, "a server does not answer; the next one is asked");
        }
    }

    /// Sends a request. A server that cannot be reached got nothing, so the others are tried at once; what may have been carried out is
    /// the caller's to ask again, and then another server is asked.
    pub(crate) async fn send(
        &self,
        mut ask: Ask<'_>,
        intent: Intent,
    ) -> Result<Response, StoreError> {
        let mut left = self.all.len();
        loop {
            left -= 1;
            let at = self.current.load(Ordering::Relaxed);
            // Only the last try needs the bytes themselves.
            let body = if left == 0 { ask.body.take() } else { ask.body.clone() };
            let mut request = self.all[at].request(ask.method.clone(), ask.path)?;
            if let Some((content_type, bytes)) = body {
                request = request.header(CONTENT_TYPE, content_type).body(bytes);
            }
            match request.timeout(ask.timeout).send().await {
                Ok(response) => {
                    // It stops, or has lost its store, or a gateway has lost it.
                    if matches!(response.status().as_u16(), 502..=504) {
                        self.turn_from(at);
                    }
                    return Ok(response);
                }
                Err(e) => {
                    self.turn_from(at);
                    if left == 0 || !e.is_connect() {
                        return Err(failed(&e, intent));
                    }
                }
            }
        }
    }

    /// A `GET`. `None` for what is not there.
    pub(crate) async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        words: &Words,
    ) -> Result<Option<T>, StoreError> {
        let ask = Ask { method: Method::GET, path, timeout: ANSWER, body: None };
        let response = self.send(ask, Intent::Read).await?;
        if response.status() == StatusCode::NOT_FOUND {
            return absent(response).await;
        }
        read(response, Intent::Read, words).await.map(Some)
    }

    /// A `POST` of something that was written as JSON already.
    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        intent: Intent,
        timeout: Duration,
        words: &Words,
    ) -> Result<T, StoreError> {
        let json = serde_json::to_vec(body)
            .map_err(|e| StoreError::Refused(format!("a request that cannot be written: {e}")))?;
        let body = Some(("application/json", json));
        let response = self.send(Ask { method: Method::POST, path, timeout, body }, intent).await?;
        read(response, intent, words).await
    }
}

impl Server {
    fn new(base: &str, key: Option<&str>, tls: &ClientTls) -> Result<Self, BadAddress> {
        let bad = |why: &str| BadAddress::Url { url: base.into(), why: why.to_owned() };
        let mut url = Url::parse(base).map_err(|e| bad(&e.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
            return Err(bad("http or https and a host are needed"));
        }
        let local = is_near(&url);
        if key.is_some() && url.scheme() == "http" && !local {
            return Err(BadAddress::ClearText(base.into()));
        }
        if !url.path().ends_with('/') {
            let path = format!("{}/", url.path());
            url.set_path(&path);
        }
        let header = |key: &str| {
            let mut value =
                HeaderValue::from_str(&format!("{BEARER}{key}")).map_err(|_| BadAddress::Key)?;
            value.set_sensitive(true);
            Ok(value)
        };
        let key = key.map(header).transpose()?;
        // A redirect turns a POST into a GET, and takes the key elsewhere.
        let mut builder = tls
            .apply(Client::builder())
            .connect_timeout(CONNECT)
            .pool_idle_timeout(IDLE)
            .redirect(Policy::none())
            .user_agent(concat!("tenure-remote/", env!("CARGO_PKG_VERSION")));
        if local {
            // A proxy for the outside has no business between two processes of one machine, or of one cluster.
            builder = builder.no_proxy();
        }
        let client = builder.build().map_err(|e| BadAddress::Client(chain(&e)))?;
        Ok(Server { client, base: url, key })
    }

    /// Where it is, for people.
    fn shown(&self) -> Address {
        Address::from(self.base.as_str().trim_end_matches('/'))
    }

    /// A request to a path below the base, with its query in it.
    fn request(&self, method: Method, path: &str) -> Result<RequestBuilder, StoreError> {
        let url = self.base.join(path).map_err(|e| StoreError::Refused(format!("{path}: {e}")))?;
        let mut request = self.client.request(method, url).header(ACCEPT, "application/json");
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, key.clone());
        }
        Ok(request)
    }
}

/// How names of services end that only the DNS of a cluster knows. A name with `.svc.` elsewhere may be anybody's.
const CLUSTER_SUFFIXES: [&str; 2] = [".svc", ".svc.cluster.local"];

/// Whether a server is so near that a key may travel to it in clear text: on this machine, or a service of the same cluster, which
/// is where its network policy lets us, and seldom has certificates of its own.
pub fn is_near(url: &Url) -> bool {
    let host = url.host_str().unwrap_or("").trim_matches(['[', ']']);
    let here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    let host = host.strip_suffix('.').unwrap_or(host);
    here || CLUSTER_SUFFIXES.iter().any(|suffix| host.ends_with(suffix))
}

/// The first `most` bytes of a body, and whether there are more. Reads no further than that.
pub async fn body_up_to(
    response: &mut Response,
    most: usize,
) -> Result<(Vec<u8>, bool), reqwest::Error> {
    let mut bytes = Vec::new();
    while let Some(piece) = response.chunk().await? {
        let room = most - bytes.len();
        if piece.len() > room {
            bytes.extend_from_slice(&piece[..room]);
            return Ok((bytes, true));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok((bytes, false))
}

/// The whole body of a success. Asking again would give the same, so an answer that is too large is refused.
pub(crate) async fn whole(
    mut response: Response,
    most: usize,
    intent: Intent,
) -> Result<Vec<u8>, StoreError> {
    match body_up_to(&mut response, most).await.map_err(|e| failed(&e, intent))? {
        (bytes, false) => Ok(bytes),
        (_, true) => Err(StoreError::Refused(format!(
            "the answer has more than {most} bytes, and no answer of a Tenure server has; is this the address of one? {}",
            response.url()
        ))),
    }
}

/// The beginning of an answer that is no success: what it says is in there.
async fn beginning(mut response: Response, intent: Intent) -> Result<Vec<u8>, StoreError> {
    let read = body_up_to(&mut response, PROBLEM_BYTES_MAX).await;
    read.map(|(bytes, _)| bytes).map_err(|e| failed(&e, intent))
}

/// What a request that got no answer means.
pub(crate) fn failed(e: &reqwest::Error, intent: Intent) -> StoreError {
    if e.is_builder() {
        return StoreError::Refused(chain(e));
    }
    match intent {
        Intent::Write if !e.is_connect() => StoreError::Indeterminate(chain(e)),
        _ => StoreError::Unavailable(chain(e)),
    }
}

/// reqwest says what it did and keeps why in the source.
fn chain(e: &reqwest::Error) -> String {
    let mut text = e.to_string();
    let mut source = std::error::Error::source(e);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    match tls_advice(e) {
        Some(advice) => format!("{text}; {advice}"),
        None => text,
    }
}

/// A 404 of ours names its code; one of a gateway, or of something else at this address, does not.
pub(crate) async fn absent<T>(response: Response) -> Result<Option<T>, StoreError> {
    let bytes = beginning(response, Intent::Read).await?;
    match problem(&bytes).as_ref().and_then(|p| p.get("code")).and_then(|c| c.as_str()) {
        Some("not_found") => Ok(None),
        _ => Err(StoreError::Refused(format!(
            "no Tenure server answers at this address: {}",
            excerpt(&bytes)
        ))),
    }
}

async fn read<T: DeserializeOwned>(
    response: Response,
    intent: Intent,
    words: &Words,
) -> Result<T, StoreError> {
    let response = succeeded(response, intent, words).await?;
    let bytes = whole(response, ANSWER_BYTES_MAX, intent).await?;
    // The whole answer came (its length is known), so it is not a matter of luck.
    tenure_kernel::stored::from_slice(&bytes).map_err(|e| {
        StoreError::Refused(format!(
            "the server's answer can not be read ({e}); is one side an older version? {}",
            excerpt(&bytes)
        ))
    })
}

/// Lets a success pass, and turns a problem into the error that the server had.
pub(crate) async fn succeeded(
    response: Response,
    intent: Intent,
    words: &Words,
) -> Result<Response, StoreError> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let bytes = beginning(response, intent).await?;
    let problem = problem(&bytes);
    let fault = problem.as_ref().and_then(|p| p.get(FAULT_MEMBER)).cloned();
    if let Some(fault) = fault.and_then(|f| serde_json::from_value::<StoreFault>(f).ok()) {
        return Err(fault.read(words));
    }
    let said = problem.as_ref().and_then(|p| p.get("detail")).and_then(|d| d.as_str());
    let said = format!("{status}: {}", said.map_or_else(|| excerpt(&bytes), str::to_owned));
    // A server of ours refuses before it does anything; of a gateway nobody can say.
    let transient = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
    Err(match (transient, intent) {
        (false, _) => StoreError::Refused(said),
        (true, Intent::Write) if problem.is_none() => StoreError::Indeterminate(said),
        (true, _) => StoreError::Unavailable(said),
    })
}

fn problem(bytes: &[u8]) -> Option<serde_json::Map<String, serde_json::Value>> {
    let map: serde_json::Map<_, _> = tenure_kernel::stored::from_slice(bytes).ok()?;
    map.contains_key("code").then_some(map)
}

fn excerpt(bytes: &[u8]) -> String {
    clip(&String::from_utf8_lossy(bytes), EXCERPT).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
        task::JoinHandle,
    };

    fn http(base: &str, key: Option<&str>) -> Result<Http, BadAddress> {
        Http::new(base, key, &ClientTls::default())
    }

    #[test]
    fn an_address_that_can_not_be_used_says_why() {
        for bad in ["", " , ", "127.0.0.1:7777", "ftp://host", "http://", "http://a,ftp://b"] {
            assert!(matches!(http(bad, None), Err(BadAddress::Url { .. })), "{bad}");
        }
        assert_eq!(http("http://127.0.0.1", Some("a\nb")).err(), Some(BadAddress::Key));
    }

    fn response(body: &'static [u8]) -> Response {
        Response::from(http::Response::new(body))
    }

    #[tokio::test]
    async fn an_answer_is_read_up_to_its_limit() {
        let at = whole(response(b"12345678"), 8, Intent::Read).await;
        assert_eq!(at, Ok(b"12345678".to_vec()));
        let past = whole(response(b"123456789"), 8, Intent::Write).await;
        assert!(
            matches!(&past, Err(StoreError::Refused(why)) if why.contains("more than 8 bytes")),
            "{past:?}"
        );
        let cut = body_up_to(&mut response(b"123456789"), 8).await.unwrap();
        assert_eq!(cut, (b"12345678".to_vec(), true));
        let none = body_up_to(&mut response(b""), 0).await.unwrap();
        assert_eq!(none, (Vec::new(), false));
    }

    #[test]
    fn a_key_does_not_cross_a_network_in_clear_text() {
        let away = http("http://tenure.example.com", Some("tnr_x"));
        assert!(matches!(away, Err(BadAddress::ClearText(_))));
        assert!(http("http://tenure-server.tenure.svc:7777", Some("tnr_a")).is_ok());
        assert!(http("http://tenure-server.tenure.svc.cluster.local.:7777", Some("tnr_a")).is_ok());
        for alike in [
            "svc.example",
            "a.svc.example.com",
            "tenure.svc.cluster.local.example.com",
            "a-svc",
            "svc",
        ] {
            let away = http(&format!("http://{alike}:7777"), Some("tnr_a"));
            assert!(matches!(away, Err(BadAddress::ClearText(_))), "{alike}");
        }
        let shown = http("ftp://u:hunter2@h", None).err().unwrap().to_string();
        assert!(!shown.contains("hunter2"), "{shown}");
        for fine in ["https://tenure.example.com", "http://localhost:1", "http://[::1]:1/below"] {
            assert!(http(fine, Some("tnr_x")).is_ok(), "{fine}");
        }
    }

    /// A server that answers each of so many requests with this status, and then is gone. Its address, and what it was asked.
    async fn answering(status: &'static str, times: usize) -> (String, JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let asked = tokio::task::spawn_local(async move {
            let mut asked = Vec::new();
            while asked.len() < times {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut bytes = vec![0; 4096];
                let n = stream.read(&mut bytes).await.unwrap();
                let text = String::from_utf8_lossy(&bytes[..n]).into_owned();
                asked.push(text.lines().next().unwrap_or_default().to_owned());
                let answer = format!(
                    "HTTP/1.1 {status}\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{{}}"
                );
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
            asked
        });
        (base, asked)
    }

    fn ask() -> Ask<'static> {
        let body = Some(("application/json", b"{}".to_vec()));
        Ask { method: Method::POST, path: "v1/x", timeout: ANSWER, body }
    }

    #[tokio::test]
    async fn of_several_servers_the_next_is_asked_when_one_does_not_answer() {
        let local = tokio::task::LocalSet::new();
        let all = local.run_until(async {
            let (stops, asked_first) = answering("503 Service Unavailable", 1).await;
            let (works, asked_second) = answering("200 OK", 3).await;
            let servers = http(&format!("http://127.0.0.1:1, {stops},{works}"), None).unwrap();
            let status = async |servers: &Servers| {
                let sent = servers.clone().send(ask(), Intent::Write).await;
                sent.map(|response| response.status().as_u16())
            };
            assert_eq!(status(&servers).await, Ok(503), "the first that can be reached");
            assert_eq!(status(&servers).await, Ok(200), "it is left for the next");
            assert_eq!(status(&servers).await, Ok(200), "which is kept");
            assert_eq!(status(&servers.clone()).await, Ok(200), "by clones, too");
            assert_eq!(asked_first.await.unwrap().len(), 1);
            assert_eq!(asked_second.await.unwrap(), vec!["POST /v1/x HTTP/1.1"; 3]);
            let nobody = http("http://127.0.0.1:1,http://127.0.0.1:2", None).unwrap();
            let none = status(&nobody).await;
            assert!(matches!(none, Err(StoreError::Unavailable(_))), "{none:?}");
        });
        all.await;
    }
}
