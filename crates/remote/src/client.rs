//! One HTTP client for store and bell, and what its failures mean.
//!
//! The difference that matters is whether a request may have been carried out. A connection that was
//! never made carried nothing: *unavailable*, nothing was written. Everything after that, a reset, a
//! timeout, half an answer, a gateway's own error page, is *indeterminate* for a write: the engine asks again
//! with the same commit ids. Reads change nothing, so they are merely unavailable.

use crate::wire::{BEARER, FAULT_MEMBER, StoreFault, Words};
use reqwest::{
    Client, Method, RequestBuilder, Response, StatusCode, Url,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue},
    redirect::Policy,
};
use serde::{Serialize, de::DeserializeOwned};
use std::{net::IpAddr, time::Duration};
use tenure_kernel::{error::StoreError, limits::clip};

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a request may take: longer than a server's own patience with its store.
pub(crate) const ANSWER: Duration = Duration::from_secs(30);
/// An idle connection is dropped after this long, before most gateways do it.
const IDLE: Duration = Duration::from_secs(50);
/// How much of a foreign error page is repeated.
const EXCERPT: usize = 200;

/// The address of a server, or the key, can not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAddress {
    /// Not an address.
    #[error("{url:?} is not the address of a server ({why}); write it as http://127.0.0.1:7777")]
    Url {
        /// What was given.
        url: String,
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
    ClearText(String),
    /// TLS could not be set up.
    #[error("no HTTP client: {0}")]
    Client(String),
}

/// Speaks to one server.
#[derive(Clone, Debug)]
pub(crate) struct Http {
    client: Client,
    base: Url,
    key: Option<HeaderValue>,
}

/// Whether a request may change something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intent {
    /// Changes nothing, or may be repeated blindly.
    Read,
    /// Its fate matters.
    Write,
}

impl Http {
    pub(crate) fn new(base: &str, key: Option<&str>) -> Result<Self, BadAddress> {
        let bad = |why: &str| BadAddress::Url { url: base.to_owned(), why: why.to_owned() };
        let mut url = Url::parse(base).map_err(|e| bad(&e.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
            return Err(bad("http or https and a host are needed"));
        }
        let local = is_near(&url);
        if key.is_some() && url.scheme() == "http" && !local {
            return Err(BadAddress::ClearText(base.to_owned()));
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
        let mut builder = Client::builder()
            .connect_timeout(CONNECT)
            .pool_idle_timeout(IDLE)
            .redirect(Policy::none())
            .user_agent(concat!("tenure-remote/", env!("CARGO_PKG_VERSION")));
        if local {
            // A proxy for the outside has no business between two processes of one machine, or of one cluster.
            builder = builder.no_proxy();
        }
        let client = builder.build().map_err(|e| BadAddress::Client(chain(&e)))?;
        Ok(Http { client, base: url, key })
    }

    /// A request to a path below the base, with its query in it.
    pub(crate) fn request(&self, method: Method, path: &str) -> Result<RequestBuilder, StoreError> {
        let url = self.base.join(path).map_err(|e| StoreError::Refused(format!("{path}: {e}")))?;
        let mut request = self.client.request(method, url).header(ACCEPT, "application/json");
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, key.clone());
        }
        Ok(request)
    }

    /// A `GET`. `None` for what is not there.
    pub(crate) async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        words: &Words,
    ) -> Result<Option<T>, StoreError> {
        let request = self.request(Method::GET, path)?.timeout(ANSWER);
        let response = request.send().await.map_err(|e| failed(&e, Intent::Read))?;
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
            .map_err(|e| StoreError::Refused(format!("a request that can not be written: {e}")))?;
        let request = self
            .request(Method::POST, path)?
            .timeout(timeout)
            .header(CONTENT_TYPE, "application/json")
            .body(json);
        let response = request.send().await.map_err(|e| failed(&e, intent))?;
        read(response, intent, words).await
    }
}

/// Whether a server is so near that a key may travel to it in clear text: on this machine, or a service of the same cluster, which
/// is where its network policy lets us, and seldom has certificates of its own.
pub fn is_near(url: &Url) -> bool {
    let host = url.host_str().unwrap_or("").trim_matches(['[', ']']);
    let here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    here || host.ends_with(".svc") || host.contains(".svc.")
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
    text
}

/// A 404 of ours names its code; one of a gateway, or of something else at this address, does not.
pub(crate) async fn absent<T>(response: Response) -> Result<Option<T>, StoreError> {
    let bytes = response.bytes().await.map_err(|e| failed(&e, Intent::Read))?;
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
    let bytes = response.bytes().await.map_err(|e| failed(&e, intent))?;
    // The whole answer came (its length is known), so it is not a matter of luck.
    serde_json::from_slice(&bytes).map_err(|e| {
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
    let bytes = response.bytes().await.map_err(|e| failed(&e, intent))?;
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
    let map: serde_json::Map<_, _> = serde_json::from_slice(bytes).ok()?;
    map.contains_key("code").then_some(map)
}

fn excerpt(bytes: &[u8]) -> String {
    clip(&String::from_utf8_lossy(bytes), EXCERPT).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_can_not_be_used_says_why() {
        for bad in ["", "127.0.0.1:7777", "ftp://host", "http://"] {
            assert!(matches!(Http::new(bad, None), Err(BadAddress::Url { .. })), "{bad}");
        }
        assert_eq!(Http::new("http://127.0.0.1", Some("a\nb")).err(), Some(BadAddress::Key));
    }

    #[test]
    fn a_key_does_not_cross_a_network_in_clear_text() {
        let away = Http::new("http://tenure.example.com", Some("tnr_x"));
        assert!(matches!(away, Err(BadAddress::ClearText(_))));
        assert!(Http::new("http://tenure-server.tenure.svc:7777", Some("tnr_a")).is_ok());
        let alike = Http::new("http://svc.example:7777", Some("tnr_a"));
        assert!(matches!(alike, Err(BadAddress::ClearText(_))));
        for fine in ["https://tenure.example.com", "http://localhost:1", "http://[::1]:1/below"] {
            assert!(Http::new(fine, Some("tnr_x")).is_ok(), "{fine}");
        }
    }
}
