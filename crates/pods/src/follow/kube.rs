//! Lists and watches over HTTP, through kube's client (which brings TLS, tokens that are renewed, and proxies).

use super::{
    Trouble,
    source::{Object, Page, Source, Told, Watch},
};
use crate::answer::{self, AnswerError, chain};
use kube::{
    Client,
    api::{ListParams, WatchParams},
    client::Body,
    core::Request,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use std::{marker::PhantomData, time::Duration};
use tenure_kernel::runtime::BoxFuture;

/// The longest line of a watch. An object has at most a megabyte and a half in etcd.
const LINE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The longest page.
const PAGE_BYTES_MAX: usize = 256 * 1024 * 1024;
/// So much of an error page is read.
const WORDS_MAX: usize = 1_024;

/// Which objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// `/api/v1`, `/apis/coordination.k8s.io/v1`.
    pub group: String,
    /// `pods`.
    pub resource: String,
    /// Only of this namespace; empty: of all.
    pub namespace: String,
    /// The label selector; may be empty.
    pub labels: String,
    /// The field selector; may be empty.
    pub fields: String,
}

impl Scope {
    /// Core objects of a kind.
    pub fn core(resource: &str, namespace: &str) -> Self {
        Scope {
            group: "/api/v1".to_owned(),
            resource: resource.to_owned(),
            namespace: namespace.to_owned(),
            labels: String::new(),
            fields: String::new(),
        }
    }

    fn path(&self, namespace: &str) -> String {
        match namespace {
            "" => format!("{}/{}", self.group, self.resource),
            ns => format!("{}/namespaces/{ns}/{}", self.group, self.resource),
        }
    }
}

/// How an object is read from JSON.
pub trait Decode: Object + DeserializeOwned {}
impl<K: Object + DeserializeOwned> Decode for K {}

/// Objects of a cluster.
pub struct KubeSource<K> {
    client: Client,
    scope: Scope,
    kind: PhantomData<fn() -> K>,
}

impl<K: Decode> KubeSource<K> {
    /// Those of a scope.
    pub fn new(client: Client, scope: Scope) -> Self {
        KubeSource { client, scope, kind: PhantomData }
    }

    async fn page(&self, limit: u32, token: Option<&str>) -> Result<Page<K>, Trouble> {
        let text = |s: &str| Some(s.to_owned()).filter(|s| !s.is_empty());
        let params = ListParams {
            label_selector: text(&self.scope.labels),
            field_selector: text(&self.scope.fields),
            limit: Some(limit).filter(|l| *l > 0),
            continue_token: token.map(str::to_owned),
            // No version: what is true now. An older list could lack what is known already, and that would read as gone.
            ..ListParams::default()
        };
        let path = self.scope.path(&self.scope.namespace);
        let request = Request::new(path).list(&params).map_err(unbuilt)?;
        let body = send(&self.client, request, "list", &self.scope.resource).await?;
        let bytes = answer::whole(body, PAGE_BYTES_MAX).await?;
        read_page(&bytes)
    }

    async fn open(&self, from: &str, seconds: u32) -> Result<Box<dyn Watch<K>>, Trouble> {
        let text = |s: &str| Some(s.to_owned()).filter(|s| !s.is_empty());
        let params = WatchParams {
            label_selector: text(&self.scope.labels),
            field_selector: text(&self.scope.fields),
            timeout: Some(seconds),
            bookmarks: true,
            send_initial_events: false,
        };
        let path = self.scope.path(&self.scope.namespace);
        let request = Request::new(path).watch(&params, from).map_err(unbuilt)?;
        let body = send(&self.client, request, "watch", &self.scope.resource).await?;
        Ok(Box::new(Lines {
            lines: answer::Lines::new(body, LINE_BYTES_MAX),
            resource: self.scope.resource.clone(),
            kind: PhantomData,
        }))
    }
}

impl<K: Decode> Source<K> for KubeSource<K> {
    fn list(&self, limit: u32, token: Option<&str>) -> BoxFuture<'_, Result<Page<K>, Trouble>> {
        let token = token.map(str::to_owned);
        Box::pin(async move { self.page(limit, token.as_deref()).await })
    }

    fn watch(&self, from: &str, seconds: u32) -> BoxFuture<'_, Result<Box<dyn Watch<K>>, Trouble>> {
        let from = from.to_owned();
        Box::pin(async move { self.open(&from, seconds).await })
    }
}

/// Asks for one object by name; `None` if there is none. By a list with one name in it: whoever may follow may do that, and needs no
/// further verb.
pub async fn ask<K: Decode>(
    client: &Client,
    scope: &Scope,
    name: &str,
) -> Result<Option<K>, Trouble> {
    let fields = format!("metadata.name={name}");
    let one = KubeSource::<K>::new(client.clone(), Scope { fields, ..scope.clone() });
    let page = one.page(0, None).await?;
    match (page.unreadable, page.items.into_iter().next()) {
        (0, found) => Ok(found),
        _ => Err(Trouble::Strange(format!("{name} can not be read"))),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn unbuilt(e: kube::core::request::Error) -> Trouble {
    Trouble::Strange(e.to_string())
}

async fn send(
    client: &Client,
    request: http::Request<Vec<u8>>,
    verb: &'static str,
    resource: &str,
) -> Result<Body, Trouble> {
    let answer = client.send(request.map(Body::from)).await.map_err(|e| match e {
        kube::Error::Auth(e) => Trouble::Away(format!("no credentials: {}", chain(&e))),
        e => Trouble::of_silence(chain(&e)),
    })?;
    let code = answer.status().as_u16();
    if answer.status().is_success() {
        return Ok(answer.into_body());
    }
    let header = answer.headers().get("retry-after").and_then(|v| v.to_str().ok());
    let header = header.and_then(|v| v.trim().parse().ok()).map(Duration::from_secs);
    let bytes = answer::whole(answer.into_body(), LINE_BYTES_MAX).await.unwrap_or_default();
    let status: Option<Status> = serde_json::from_slice(&bytes).ok();
    let said = status.as_ref().and_then(Status::after);
    let why = match status.filter(|s| !s.message.is_empty()) {
        Some(status) => status.message,
        // Whoever stands before the API server has words of its own.
        None => String::from_utf8_lossy(&bytes).trim().chars().take(WORDS_MAX).collect(),
    };
    Err(Trouble::of_answer(code, header.or(said), why, verb, resource))
}

impl From<AnswerError> for Trouble {
    fn from(e: AnswerError) -> Self {
        match e {
            AnswerError::Broke(why) => Trouble::Away(why),
            e @ (AnswerError::TooLarge(_) | AnswerError::LineTooLong(_)) => {
                Trouble::Strange(e.to_string())
            }
        }
    }
}

/// As much of a `Status` as we use.
#[derive(Deserialize, Default, Debug)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    code: u16,
    reason: String,
    message: String,
    details: Option<Details>,
}

#[derive(Deserialize, Default, Debug)]
#[serde(default, rename_all = "camelCase")]
struct Details {
    retry_after_seconds: u64,
}

impl Status {
    fn after(&self) -> Option<Duration> {
        let seconds = self.details.as_ref()?.retry_after_seconds;
        (seconds > 0).then(|| Duration::from_secs(seconds))
    }
}

#[derive(Deserialize)]
struct List<K> {
    metadata: ListMeta,
    // A list of nothing may be written as null.
    #[serde(default = "Option::default")]
    items: Option<Vec<K>>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct ListMeta {
    resource_version: String,
    r#continue: String,
}

fn read_page<K: DeserializeOwned>(bytes: &[u8]) -> Result<Page<K>, Trouble> {
    let page = |meta: ListMeta, items, unreadable| Page {
        items,
        version: meta.resource_version,
        more: Some(meta.r#continue).filter(|t| !t.is_empty()),
        unreadable,
    };
    match serde_json::from_slice::<List<K>>(bytes) {
        Ok(list) => Ok(page(list.metadata, list.items.unwrap_or_default(), 0)),
        Err(why) => {
            // One object that can not be read must not hide all others.
            let Ok(list) = serde_json::from_slice::<List<Value>>(bytes) else {
                return Err(Trouble::Strange(format!("a list that is none: {why}")));
            };
            let items = list.items.unwrap_or_default();
            let all = items.len();
            let read: Vec<K> =
                items.into_iter().filter_map(|v| serde_json::from_value(v).ok()).collect();
            tracing::warn!(%why, unreadable = all - read.len(), "objects in a list can not be read");
            let unreadable = all - read.len();
            Ok(page(list.metadata, read, unreadable))
        }
    }
}

#[derive(Deserialize)]
#[serde(tag = "type", content = "object", rename_all = "UPPERCASE")]
enum Line<K> {
    Added(K),
    Modified(K),
    Deleted(K),
    Bookmark(Mark),
    Error(Status),
}

#[derive(Deserialize)]
struct Mark {
    metadata: MarkMeta,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct MarkMeta {
    resource_version: String,
}

struct Lines<K> {
    lines: answer::Lines,
    resource: String,
    kind: PhantomData<fn() -> K>,
}

impl<K: Decode> Lines<K> {
    async fn told(&mut self) -> Option<Result<Told<K>, Trouble>> {
        Some(match self.lines.next().await? {
            Ok(line) => read_line(&line, &self.resource),
            // Half a line is no event, and comes again with the next watch.
            Err(AnswerError::Broke(why)) => {
                Err(Trouble::Away(format!("the watch was cut off: {why}")))
            }
            Err(e) => Err(e.into()),
        })
    }
}

impl<K: Decode> Watch<K> for Lines<K> {
    fn next(&mut self) -> BoxFuture<'_, Option<Result<Told<K>, Trouble>>> {
        Box::pin(self.told())
    }
}

/// What a line of a watch says.
pub fn read_line<K: DeserializeOwned>(line: &[u8], resource: &str) -> Result<Told<K>, Trouble> {
    match serde_json::from_slice::<Line<K>>(line) {
        Ok(Line::Added(object) | Line::Modified(object)) => Ok(Told::Changed(object)),
        Ok(Line::Deleted(object)) => Ok(Told::Deleted(object)),
        Ok(Line::Bookmark(mark)) => Ok(Told::Bookmark(mark.metadata.resource_version)),
        Ok(Line::Error(status)) => Err(of_status(&status, resource)),
        Err(why) => match serde_json::from_slice::<Value>(line) {
            Ok(value) if value["kind"] == "Status" => {
                let status = serde_json::from_value(value).unwrap_or_default();
                Err(of_status(&status, resource))
            }
            Ok(value) => {
                let version = value["object"]["metadata"]["resourceVersion"].as_str();
                let version = version.map(str::to_owned);
                Ok(Told::Unreadable { version, why: why.to_string() })
            }
            Err(_) => Err(Trouble::Strange(format!("a line of a watch that is no JSON: {why}"))),
        },
    }
}

fn of_status(status: &Status, resource: &str) -> Trouble {
    let code = match (status.code, status.reason.as_str()) {
        (_, "Expired" | "Gone") => 410,
        (0, _) => 500,
        (code, _) => code,
    };
    Trouble::of_answer(code, status.after(), status.message.clone(), "watch", resource)
}

#[cfg(test)]
mod tests {
    use super::{super::LeanPod, *};

    fn line(text: &str) -> Result<Told<LeanPod>, Trouble> {
        read_line(text.as_bytes(), "pods")
    }

    #[test]
    fn lines_of_a_watch_are_told_apart() {
        let pod = r#"{"kind":"Pod","metadata":{"name":"a","uid":"u","resourceVersion":"7"}}"#;
        let read = |kind: &str| line(&format!(r#"{{"type":"{kind}","object":{pod}}}"#)).unwrap();
        assert!(matches!(read("ADDED"), Told::Changed(p) if p.version() == Some("7")));
        assert!(matches!(read("MODIFIED"), Told::Changed(_)));
        assert!(matches!(read("DELETED"), Told::Deleted(_)));
        assert!(matches!(read("BOOKMARK"), Told::Bookmark(v) if v == "7"));
        assert!(matches!(read("INVENTED"), Told::Unreadable { version: Some(v), .. } if v == "7"));
    }

    #[test]
    fn errors_in_a_stream_say_what_to_do() {
        let error = |code: u16, reason: &str| {
            line(&format!(
                r#"{{"type":"ERROR","object":{{"kind":"Status","metadata":{{}},"status":"Failure","message":"m","reason":"{reason}","code":{code}}}}}"#
            ))
            .unwrap_err()
        };
        assert_eq!(error(410, "Expired"), Trouble::Expired("m".into()));
        assert_eq!(error(0, "Gone"), Trouble::Expired("m".into()));
        assert_eq!(error(500, "InternalError").name(), "away");
        let bare =
            r#"{"kind":"Status","status":"Failure","message":"m","reason":"Expired","code":410}"#;
        assert_eq!(line(bare).unwrap_err(), Trouble::Expired("m".into()));
    }

    #[test]
    fn an_object_that_can_not_be_read_is_passed_over_and_half_a_line_is_not() {
        let bad = r#"{"type":"ADDED","object":{"metadata":{"name":7,"resourceVersion":"9"}}}"#;
        assert!(matches!(line(bad), Ok(Told::Unreadable { version: Some(v), .. }) if v == "9"));
        assert_eq!(line(r#"{"type":"ADDED","obj"#).unwrap_err().name(), "strange");
    }

    #[test]
    fn one_bad_object_does_not_hide_a_page() {
        let page = r#"{"kind":"PodList","metadata":{"resourceVersion":"5","continue":"t"},"items":[
            {"metadata":{"name":"a"}},{"metadata":{"name":7}},{"metadata":{"name":"c"}}]}"#;
        let page: Page<LeanPod> = read_page(page.as_bytes()).unwrap();
        assert_eq!((page.items.len(), page.unreadable), (2, 1));
        assert_eq!((page.version.as_str(), page.more.as_deref()), ("5", Some("t")));
        let empty = r#"{"metadata":{"resourceVersion":"5"},"items":null}"#;
        assert!(read_page::<LeanPod>(empty.as_bytes()).is_ok_and(|p| p.items.is_empty()));
        assert!(read_page::<LeanPod>(b"<html>").is_err());
    }
}
