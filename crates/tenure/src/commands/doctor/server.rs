//! What only a running server knows: what it heard, by which settings it runs, and its clock. It is asked for its
//! `/metrics`, as any scraper would.

use super::Failure;
use crate::{client_tls, local_key};
use reqwest::{Client, Url, redirect::Policy};
use std::{collections::BTreeMap, time::Duration};
use tenure_kernel::address::Address;

const CONNECT: Duration = Duration::from_secs(3);
const ANSWER: Duration = Duration::from_secs(10);
/// The largest page of metrics that is read: a thousand times what a server has.
const METRICS_BYTES_MAX: usize = 64 * 1024 * 1024;

/// What a server said: samples by name with labels, as they were written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerSays {
    /// Where it is.
    pub url: Address,
    samples: BTreeMap<String, f64>,
}

impl ServerSays {
    /// Reads the text format of Prometheus; what is no sample is passed over.
    pub fn read(url: &str, text: &str) -> Self {
        let sample = |line: &str| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        let lines = text.lines().filter(|l| !l.starts_with('#'));
        ServerSays { url: url.into(), samples: lines.filter_map(sample).collect() }
    }

    /// One sample.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.samples.get(name).copied()
    }

    /// A setting of the server that is a number.
    pub fn setting(&self, key: &str) -> Option<f64> {
        self.get(&format!("tenure_setting{{key=\"{key}\"}}"))
    }

    /// All samples of a name, by the text of their labels.
    pub fn all(&self, name: &str) -> impl Iterator<Item = (&str, f64)> {
        let prefix = format!("{name}{{");
        self.samples.iter().filter_map(move |(sample, value)| {
            let labels = sample.strip_prefix(&prefix)?.strip_suffix('}')?;
            Some((labels, *value))
        })
    }
}

/// Asks a server. A bad address is a failure of the command; a server that does not answer is a finding.
pub async fn ask(url: &str, key: Option<&str>) -> Result<Result<ServerSays, String>, Failure> {
    let bad = |why: &str| {
        let url = Address::from(url);
        Failure::System(format!(
            "--server {url:?} is not the address of a server ({why}); write it as http://127.0.0.1:7777"
        ))
    };
    let base = Url::parse(url).map_err(|e| bad(&e.to_string()))?;
    if !matches!(base.scheme(), "http" | "https") {
        return Err(bad("http or https is needed"));
    }
    let near = tenure_remote::is_near(&base);
    if key.is_some() && base.scheme() == "http" && !near {
        return Err(bad(
            "the key would travel in clear text; use https, or an address on this machine or in this cluster (NAME.NAMESPACE.svc)",
        ));
    }
    let client =
        Client::builder().connect_timeout(CONNECT).timeout(ANSWER).redirect(Policy::none());
    let mut client = client_tls::kept().apply(client);
    if near {
        client = client.no_proxy();
    }
    let client = client.build().map_err(|e| Failure::System(e.to_string()))?;
    let mut request = client.get(format!("{}/metrics", url.trim_end_matches('/')));
    if let Some(key) = key.map(str::to_owned).or_else(|| local_key::key_for(&base)) {
        request = request.bearer_auth(key);
    }
    let answer = async {
        let mut response = request.send().await.map_err(|e| reason(&e))?;
        let status = response.status();
        let read = tenure_remote::body_up_to(&mut response, METRICS_BYTES_MAX).await;
        let (text, more) = read.map_err(|e| reason(&e))?;
        if more {
            return Err(format!(
                "its /metrics has more than {METRICS_BYTES_MAX} bytes, and no Tenure server's has; is this the address of one?"
            ));
        }
        let text = String::from_utf8_lossy(&text);
        match status.as_u16() {
            200 => Ok(ServerSays::read(url, &text)),
            401 | 403 => Err(format!(
                "it answered {status}: give --api-key a key with the scope read and without a tenant"
            )),
            _ => Err(format!("it answered {status}")),
        }
    };
    Ok(answer.await)
}

/// The innermost cause says the most.
fn reason(e: &reqwest::Error) -> String {
    if let Some(advice) = tenure_remote::tls_advice(e) {
        return advice;
    }
    let mut cause: &dyn std::error::Error = e;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_read_with_their_labels() {
        let text = "# TYPE a counter\na 3\nb{x=\"1\",y=\"z w\"} 0.5\ntenure_setting{key=\"worker.lease_seconds\"} 15\n\nodd\n";
        let says = ServerSays::read("http://s", text);
        assert_eq!(says.get("a"), Some(3.0));
        assert_eq!(says.all("b").collect::<Vec<_>>(), [("x=\"1\",y=\"z w\"", 0.5)]);
        assert_eq!(says.setting("worker.lease_seconds"), Some(15.0));
        assert_eq!((says.get("odd"), says.setting("no")), (None, None));
    }
}
