//! Speaks to a server's `/v1`, and says what went wrong in the server's own words.

use super::args::Server;
use crate::{client_tls, commands::Failure, local_key, terminal};
use reqwest::{Client, Method, RequestBuilder, Response, Url, redirect::Policy};
use serde_json::Value;
use std::{fmt::Write as _, net::TcpStream, time::Duration};
use tenure_kernel::address::Address;
use tenure_remote::{addresses, body_up_to, tls_advice};

const CONNECT: Duration = Duration::from_secs(5);
/// How long an answer may take beyond what was asked to wait for.
const ANSWER: Duration = Duration::from_secs(30);
/// The largest answer that is read: a page of the events of a job has about its history.
const ANSWER_BYTES_MAX: usize = 256 * 1024 * 1024;
/// What is read of an answer that is no success.
const PROBLEM_BYTES_MAX: usize = 1024 * 1024;
/// Pages of a listing that is read as a whole.
const PAGES_MAX: usize = 1_000;

/// A server.
pub struct Api {
    client: Client,
    base: Url,
    key: Option<String>,
    json: bool,
}

impl Api {
    /// The server of the options. `json`: a problem is printed as the server sent it.
    pub fn new(server: &Server, json: bool) -> Result<Self, Failure> {
        let mut all = Vec::new();
        for address in addresses(&server.server) {
            all.push(Self::at(address, server, json)?);
        }
        // A command is short: the first server that can be reached answers it. Where none can, the first one says so.
        let several = all.len() > 1;
        let at = all.iter().position(|api| several && api.is_reachable()).unwrap_or(0);
        match all.is_empty() {
            true => Self::at(&server.server, server, json),
            false => Ok(all.swap_remove(at)),
        }
    }

    /// Whether somebody listens there.
    fn is_reachable(&self) -> bool {
        let tried = self.base.socket_addrs(|| None).unwrap_or_default();
        tried.iter().any(|address| TcpStream::connect_timeout(address, CONNECT).is_ok())
    }

    fn at(address: &str, server: &Server, json: bool) -> Result<Self, Failure> {
        let bad = |why: &str| {
            let url = Address::from(address);
            Failure::System(format!(
                "--server {url:?} is not the address of a server ({why}); write it as http://127.0.0.1:7777"
            ))
        };
        let mut base = Url::parse(address).map_err(|e| bad(&e.to_string()))?;
        if !matches!(base.scheme(), "http" | "https") {
            return Err(bad("http or https is needed"));
        }
        let near = tenure_remote::is_near(&base);
        if server.api_key.is_some() && base.scheme() == "http" && !near {
            return Err(bad(
                "the key would travel in clear text; use https, or an address on this machine or in this cluster (NAME.NAMESPACE.svc)",
            ));
        }
        if !base.path().ends_with('/') {
            base.set_path(&format!("{}/", base.path()));
        }
        let client = Client::builder().connect_timeout(CONNECT).redirect(Policy::none());
        let mut client = client_tls::kept().apply(client);
        if near {
            client = client.no_proxy();
        }
        let client = client.build().map_err(|e| Failure::System(e.to_string()))?;
        let key = server.api_key.clone().or_else(|| local_key::key_for(&base));
        Ok(Api { client, base, key, json })
    }

    /// Where the server is, for people.
    fn shown(&self) -> Address {
        Address::from(self.base.as_str().trim_end_matches('/'))
    }

    /// A request to a path, from its parts: each is escaped.
    pub fn request(&self, method: Method, path: &[&str]) -> RequestBuilder {
        let mut url = self.base.clone();
        // A base that passed `new` has a path.
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push("v1").extend(path);
        }
        let request = self.client.request(method, url);
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    /// Sends it; an answer that is no success is a failure.
    pub async fn send(&self, request: RequestBuilder) -> Result<Response, Failure> {
        let mut response = request.send().await.map_err(|e| self.unreachable(&e))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let read = body_up_to(&mut response, PROBLEM_BYTES_MAX).await;
        let (bytes, _) = read.map_err(|e| self.unreachable(&e))?;
        Err(self.problem(status.as_u16(), &bytes))
    }

    /// The whole body of a success, up to this many bytes.
    pub async fn whole(&self, mut response: Response, most: usize) -> Result<Vec<u8>, Failure> {
        match body_up_to(&mut response, most).await.map_err(|e| self.unreachable(&e))? {
            (bytes, false) => Ok(bytes),
            (_, true) => Err(Failure::System(format!(
                "{} answered with more than {most} bytes, and no Tenure server does; is this the address of one?",
                self.shown()
            ))),
        }
    }

    /// A `GET`.
    pub async fn get(&self, path: &[&str], query: &[(&str, String)]) -> Result<Value, Failure> {
        let request = self.request(Method::GET, path).query(query).timeout(ANSWER);
        self.read(self.send(request).await?).await
    }

    /// A `GET` that may take as long as it was asked to.
    pub async fn wait(&self, path: &[&str], wait: Duration) -> Result<Value, Failure> {
        let query = [("wait", wait.as_secs_f64().to_string())];
        let request = self.request(Method::GET, path).query(&query).timeout(ANSWER + wait);
        self.read(self.send(request).await?).await
    }

    /// A `POST`.
    pub async fn post(&self, path: &[&str], body: &Value) -> Result<Value, Failure> {
        self.post_text(path, &[], &body.to_string()).await
    }

    /// A `POST` under an id of its own: the same name again, such as that of a signal, is then another one.
    pub async fn post_once(&self, path: &[&str], body: &Value) -> Result<Value, Failure> {
        let id = format!("{:016x}", crate::service::random());
        let request = self.request(Method::POST, path).timeout(ANSWER);
        let request =
            request.header("idempotency-key", id).header("content-type", "application/json");
        self.read(self.send(request.body(body.to_string())).await?).await
    }

    /// A `POST` of JSON as it is.
    pub async fn post_text(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
        body: &str,
    ) -> Result<Value, Failure> {
        let request = self.request(Method::POST, path).query(query).timeout(ANSWER);
        let request = request.header("content-type", "application/json").body(body.to_owned());
        self.read(self.send(request).await?).await
    }

    /// Everything of a listing that goes forwards, page after page.
    pub async fn all(&self, what: &str, query: &[(&str, String)]) -> Result<Value, Failure> {
        let (mut found, mut after) = (Vec::new(), None);
        for _ in 0..PAGES_MAX {
            let page: Vec<_> = query.iter().cloned().chain(after.map(|id| ("after", id))).collect();
            let mut answer = self.get(&[what], &page).await?;
            if let Value::Array(items) = answer[what].take() {
                found.extend(items);
            }
            after = answer["next"].as_str().map(str::to_owned);
            if after.is_none() {
                return Ok(serde_json::json!({ what: found }));
            }
        }
        Err(Failure::System(format!(
            "there are more than {} {what} (PAGES_MAX = {PAGES_MAX} pages): read them page by page with GET /v1/{what}?after=…",
            found.len()
        )))
    }

    /// A `PUT`.
    pub async fn put(&self, path: &[&str], body: &Value) -> Result<Value, Failure> {
        let request = self.request(Method::PUT, path).timeout(ANSWER);
        let request = request.header("content-type", "application/json").body(body.to_string());
        self.read(self.send(request).await?).await
    }

    /// A `DELETE`.
    pub async fn delete(&self, path: &[&str], query: &[(&str, String)]) -> Result<(), Failure> {
        let request = self.request(Method::DELETE, path).query(query).timeout(ANSWER);
        self.send(request).await.map(|_| ())
    }

    async fn read(&self, response: Response) -> Result<Value, Failure> {
        let bytes = self.whole(response, ANSWER_BYTES_MAX).await?;
        tenure_kernel::stored::from_slice(&bytes).map_err(|e| {
            Failure::System(format!("{} answered something that is not JSON: {e}", self.shown()))
        })
    }

    /// What a request without an answer means.
    pub fn unreachable(&self, e: &reqwest::Error) -> Failure {
        let base = self.shown();
        if let Some(advice) = tls_advice(e) {
            return Failure::System(format!(
                "there is no secure connection to {base}\n        {advice}"
            ));
        }
        if e.is_connect() {
            return Failure::System(format!(
                "there is no server at {base}\n        start one with `tenure up`, or name another with --server URL (or TENURE_SERVER)"
            ));
        }
        if e.is_timeout() {
            return Failure::System(format!(
                "{base} does not answer in time; what was asked may have been done: ask again, it is safe"
            ));
        }
        Failure::System(format!("{base} was lost in the middle ({e}); ask again, it is safe"))
    }

    /// What was wrong, which field, and what to do.
    fn problem(&self, status: u16, bytes: &[u8]) -> Failure {
        let problem: Option<Value> = tenure_kernel::stored::from_slice(bytes).ok();
        let Some(problem) = problem.filter(|p| p["code"].is_string()) else {
            let page = String::from_utf8_lossy(bytes);
            let page: String = page.chars().take(200).collect();
            return Failure::System(format!(
                "{} is no Tenure server: {status} {page}",
                self.shown()
            ));
        };
        let member = |name: &str| problem[name].as_str();
        let detail = member("detail").unwrap_or("the server refused");
        if self.json {
            terminal::line(&problem);
            return Failure::Found(detail.to_owned());
        }
        let mut text = detail.to_owned();
        // The first one is in the detail already.
        for violation in problem["violations"].as_array().into_iter().flatten().skip(1) {
            let (at, says) = (&violation["at"], violation["says"].as_str().unwrap_or(""));
            // Writing to a String can not fail.
            let _ = write!(text, "\n        input{}: {says}", at.as_str().unwrap_or(""));
        }
        for wrong in problem["problems"].as_array().into_iter().flatten() {
            let said = |name: &str| wrong[name].as_str().unwrap_or("");
            let _ = write!(text, "\n        {}: {}; {}", said("at"), said("what"), said("fix"));
        }
        for (label, name) in [("which", "field"), ("do", "fix")] {
            if let Some(said) = member(name) {
                let _ = write!(text, "\n        {label:<6} {said}");
            }
        }
        let code = member("code").unwrap_or_default();
        let _ = write!(text, "\n        code   {code} (`tenure explain {code}` says more)");
        Failure::System(text)
    }
}
