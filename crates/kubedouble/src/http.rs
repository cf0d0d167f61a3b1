//! Requests and answers: which verb it is, whether it may, what goes wrong, who does it.

use crate::{
    access::Access,
    cluster::{Cluster, Shared},
    faults::Fault,
    list, logs,
    object::{Key, Object},
    requests::Request,
    resource::{EVENTS, PODS, Place, Resource},
    security::PodSecurity,
    status::Refusal,
    store::{DeleteOptions, Deleted, Half},
    watch,
};
use bytes::Bytes;
use futures_util::Stream;
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{Method, Response, body::Frame, header, http};
use serde_json::{Value, json};
use std::{convert::Infallible, io, sync::Arc};

/// The body of an answer.
pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// A body that is there.
pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never: Infallible| match never {}).boxed_unsync()
}

/// A body that comes.
pub(crate) fn streamed(
    frames: impl Stream<Item = io::Result<Frame<Bytes>>> + Send + 'static,
) -> Body {
    StreamBody::new(frames).boxed_unsync()
}

/// The parameters of a request.
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    fn parse(text: &str) -> Self {
        Query(form_urlencoded::parse(text.as_bytes()).into_owned().collect())
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        matches!(self.get(name), Some("true" | "1" | ""))
    }
}

type Answer = Response<Body>;

/// Answers one request. An error closes the connection.
pub(crate) async fn answer(
    shared: Arc<Shared>,
    request: hyper::Request<hyper::body::Incoming>,
) -> io::Result<Answer> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let query = Query::parse(head.uri.query().unwrap_or_default());
    let place = Place::parse(head.uri.path());
    let noted = note(&head, &place, &query, &body);
    let (verb, resource) = (noted.verb.clone(), noted.resource.clone());
    let (number, faults) = {
        let mut store = shared.store();
        let faults = store.faults.meet(&verb, &resource, noted.name.as_deref());
        (store.requests.note(noted), faults)
    };
    shared.beat();
    let mut lost = false;
    let mut decided = None;
    for fault in faults {
        match fault {
            Fault::Slow(time) => tokio::time::sleep(time).await,
            Fault::Hang => std::future::pending().await,
            Fault::Cut => return Err(io::Error::other("cut by the test")),
            Fault::AnswerLost => lost = true,
            Fault::Refuse(refusal) => decided = Some(refused(&refusal)),
            Fault::Proxy { code, body } => decided = Some(page(code, "text/html", body)),
        }
    }
    thaw(&shared).await;
    let answer = match decided {
        Some(answer) => answer,
        None => match carry_out(&shared, &head, place, &verb, &query, &body) {
            Ok(answer) => answer,
            Err(refusal) => refused(&refusal),
        },
    };
    if lost {
        return Err(io::Error::other("the answer is lost"));
    }
    shared.store().requests.answered(number, answer.status().as_u16());
    shared.beat();
    Ok(answer)
}

/// While the server is frozen nothing is answered.
async fn thaw(shared: &Arc<Shared>) {
    let mut pulse = shared.pulse.subscribe();
    loop {
        pulse.mark_unchanged();
        if !shared.store().faults.frozen {
            return;
        }
        if pulse.changed().await.is_err() {
            return;
        }
    }
}

fn note(
    head: &http::request::Parts,
    place: &Option<Place>,
    query: &Query,
    body: &Bytes,
) -> Request {
    let method = head.method.as_str().to_lowercase();
    let mut request = Request {
        verb: method,
        group: String::new(),
        resource: String::new(),
        namespace: None,
        name: None,
        path: head.uri.path().to_owned(),
        query: query.0.clone(),
        body: serde_json::from_slice(body).ok(),
        code: None,
    };
    if let Some(place) = place {
        let many = place.name.is_none();
        request.verb = match head.method {
            Method::GET if many && query.flag("watch") => "watch",
            Method::GET if many => "list",
            Method::POST => "create",
            Method::PUT => "update",
            Method::DELETE if many => "deletecollection",
            _ => request.verb.as_str(),
        }
        .to_owned();
        request.group = place.resource.group.to_owned();
        request.resource = place.role_name();
        request.namespace = place.namespace.clone();
        request.name = place.name.clone();
    } else if head.uri.path() == REVIEWS {
        request.verb = "create".to_owned();
        request.group = "authorization.k8s.io".to_owned();
        request.resource = "selfsubjectaccessreviews".to_owned();
    }
    request
}

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

fn page(code: u16, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(full(body));
    *answer.status_mut() =
        http::StatusCode::from_u16(code).unwrap_or(http::StatusCode::IM_A_TEAPOT);
    answer.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
    answer
}

const JSON: &str = "application/json";

fn refused(refusal: &Refusal) -> Answer {
    let mut answer = page(refusal.code, JSON, refusal.body().to_string());
    if let Some(seconds) = refusal.retry_after {
        answer.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    answer
}

fn one(code: u16, object: &Object) -> Answer {
    let mut bytes = Vec::new();
    object.write(&mut bytes);
    page(code, JSON, bytes)
}

fn success(code: u16, resource: &Resource, object: Option<&Object>) -> Answer {
    let mut body =
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"});
    if let Some(object) = object {
        body["details"] = json!({
            "name": object.text("/metadata/name"), "kind": resource.plural,
            "uid": object.text("/metadata/uid"),
        });
    } else {
        body["code"] = json!(code);
    }
    page(code, JSON, body.to_string())
}

fn carry_out(
    shared: &Arc<Shared>,
    head: &http::request::Parts,
    place: Option<Place>,
    verb: &str,
    query: &Query,
    body: &Bytes,
) -> Result<Answer, Refusal> {
    let path = head.uri.path();
    if matches!(path, "/readyz" | "/livez" | "/healthz") {
        return Ok(page(200, "text/plain; charset=utf-8", "ok"));
    }
    {
        let access = shared.access();
        access.who(head.headers.get(header::AUTHORIZATION).and_then(|h| h.to_str().ok()))?;
        if path == "/version" {
            return Ok(page(200, JSON, version().to_string()));
        }
        if path == REVIEWS {
            return review(&access, body);
        }
        if let Some(place) = &place {
            access.may(verb, place)?;
        }
    }
    let Some(place) = place else {
        return Ok(page(404, "text/plain; charset=utf-8", "404 page not found\n"));
    };
    if query.get("dryRun").is_some() {
        return Err(Refusal::bad_request("dryRun is not known to this server"));
    }
    let namespace = place.namespace.clone().unwrap_or_default();
    let Some(name) = place.name.clone() else {
        return match verb {
            "list" => {
                let store = shared.store();
                list::list(&store, &place, query).map(|bytes| page(200, JSON, bytes))
            }
            "watch" => {
                let body = watch::open(shared, shared.store(), &place, query)?;
                let mut answer = page(200, JSON, "");
                *answer.body_mut() = body;
                Ok(answer)
            }
            "create" => create(shared, &place, &namespace, body),
            "deletecollection" => delete_all(shared, &place, query, body),
            _ => Err(not_allowed()),
        };
    };
    let key: Key = (namespace, name);
    let resource = place.resource;
    match (verb, place.sub.as_deref()) {
        ("get", None) => Ok(one(200, &*shared.store().find(resource, &key)?)),
        ("get", Some("status")) if resource.has_status => {
            Ok(one(200, &*shared.store().find(resource, &key)?))
        }
        ("get", Some("log")) if resource == &PODS => {
            let body = logs::read(shared, shared.store(), &key, query)?;
            let mut answer = page(200, "text/plain", "");
            *answer.body_mut() = body;
            Ok(answer)
        }
        ("update", sub) => {
            let half = half(resource, sub)?;
            let new = decode(resource, body)?;
            let object = shared.write(|store| {
                store.update(resource, &key, half, |value| {
                    *value = new;
                    Ok(())
                })
            })?;
            Ok(one(200, &object))
        }
        ("patch", sub) => {
            let half = half(resource, sub)?;
            patch(shared, head, resource, &key, half, body)
        }
        ("delete", None) => {
            let options = delete_options(query, body)?;
            let deleted = shared.write(|store| store.delete(resource, &key, &options))?;
            if resource == &PODS {
                shared.kubelet_hears_of_delete(&key);
            }
            Ok(match deleted {
                Deleted::Waits(object) => one(200, &object),
                Deleted::Gone(object) if resource == &PODS => one(200, &object),
                Deleted::Gone(object) => success(200, resource, Some(&object)),
            })
        }
        ("create", Some("eviction")) if resource == &PODS => {
            let eviction: Value = serde_json::from_slice(body).unwrap_or_default();
            // The client of these tests writes `delete_options`, which the server does not know.
            let options = eviction.get("deleteOptions").filter(|o| o.is_object());
            let options = options.map_or(Ok(DeleteOptions::default()), options_from)?;
            shared.write(|store| store.evict(&key, &options))?;
            shared.kubelet_hears_of_delete(&key);
            Ok(success(201, resource, None))
        }
        ("create", Some("binding")) if resource == &PODS => {
            let binding: Value = serde_json::from_slice(body).unwrap_or_default();
            let node = binding["target"]["name"].as_str().unwrap_or_default().to_owned();
            shared.write(|store| store.bind(&key, &node))?;
            Ok(success(201, resource, None))
        }
        _ => Err(not_allowed()),
    }
}

fn not_allowed() -> Refusal {
    let words = "the server does not allow this method on the requested resource";
    Refusal::new(405, "MethodNotAllowed", words)
}

fn half(resource: &Resource, sub: Option<&str>) -> Result<Half, Refusal> {
    match sub {
        None => Ok(Half::Main),
        Some("status") if resource.has_status => Ok(Half::Status),
        Some(_) => {
            Err(Refusal::new(404, "NotFound", "the server could not find the requested resource"))
        }
    }
}

fn version() -> Value {
    json!({
        "major": "1", "minor": "35", "gitVersion": "v1.35.8", "gitCommit": "0".repeat(40),
        "gitTreeState": "clean", "buildDate": "2026-08-01T00:00:00Z", "goVersion": "go1.25.0",
        "compiler": "gc", "platform": "linux/amd64",
        "emulationMajor": "1", "emulationMinor": "35", "minCompatibilityMajor": "1", "minCompatibilityMinor": "34",
    })
}

fn review(access: &Access, body: &Bytes) -> Result<Answer, Refusal> {
    let mut review: Value = serde_json::from_slice(body).map_err(|e| {
        Refusal::bad_request(format!("couldn't get version/kind; json parse error: {e}"))
    })?;
    let attributes = &review["spec"]["resourceAttributes"];
    let text = |field: &str| attributes[field].as_str().unwrap_or_default();
    let resource = match text("subresource") {
        "" => text("resource").to_owned(),
        sub => format!("{}/{sub}", text("resource")),
    };
    let allowed = access.allows(text("verb"), text("group"), &resource);
    review["status"] = json!({"allowed": allowed});
    review["kind"] = json!("SelfSubjectAccessReview");
    review["apiVersion"] = json!("authorization.k8s.io/v1");
    Ok(page(201, JSON, review.to_string()))
}

fn decode(resource: &Resource, body: &Bytes) -> Result<Value, Refusal> {
    let value: Value = serde_json::from_slice(body).map_err(|e| {
        Refusal::bad_request(format!("couldn't get version/kind; json parse error: {e}"))
    })?;
    typed(resource, value)
}

pub(crate) fn typed(resource: &Resource, value: Value) -> Result<Value, Refusal> {
    let (kind, api) = (resource.kind, resource.api_version());
    let says = |field: &str, is: &str| value[field].as_str().is_none_or(|s| s == is);
    if !value.is_object() || !says("kind", kind) || !says("apiVersion", &api) {
        return Err(Refusal::bad_request(format!(
            "the object provided is unrecognized (must be of type {kind}): couldn't get version/kind"
        )));
    }
    let mut value = value;
    value["kind"] = json!(kind);
    value["apiVersion"] = json!(api);
    resource.decode(value).map_err(|e| {
        Refusal::bad_request(format!(
            "{kind} in version {:?} cannot be handled as a {kind}: {e}",
            resource.version
        ))
    })
}

fn create(
    shared: &Arc<Shared>,
    place: &Place,
    namespace: &str,
    body: &Bytes,
) -> Result<Answer, Refusal> {
    if place.resource.namespaced && place.namespace.is_none() {
        return Err(not_allowed());
    }
    let value = decode(place.resource, body)?;
    let mut warning = None;
    let level = shared.store().manner.security.get(namespace).copied();
    if let Some(mode) = level.filter(|_| place.resource == &PODS) {
        let name = value["metadata"]["name"].as_str().unwrap_or_default();
        let problems = crate::security::restricted(&value).join(", ");
        let violates = format!("PodSecurity \"restricted:latest\": {problems}");
        match mode {
            _ if problems.is_empty() => {}
            PodSecurity::Enforce => {
                let words = format!("pods \"{name}\" is forbidden: violates {violates}");
                return Err(Refusal::new(403, "Forbidden", words));
            }
            PodSecurity::Warn => warning = Some(format!("would violate {violates}")),
        }
    }
    let object = shared.write(|store| store.create(place.resource, namespace, value))?;
    if place.resource == &PODS
        && let Some(hook) = shared.on_create()
    {
        let (namespace, name) = object.key();
        hook(&Cluster::guest(shared), &format!("{namespace}/{name}"));
    }
    let mut answer = one(201, &object);
    if let Some(text) = warning {
        let quoted = format!("299 - \"{}\"", text.replace('"', "\\\""));
        let value = quoted.parse().expect("a warning is a text without control characters");
        answer.headers_mut().insert(header::WARNING, value);
    }
    Ok(answer)
}

fn patch(
    shared: &Arc<Shared>,
    head: &http::request::Parts,
    resource: &'static Resource,
    key: &Key,
    half: Half,
    body: &Bytes,
) -> Result<Answer, Refusal> {
    let kind = head.headers.get(header::CONTENT_TYPE).and_then(|h| h.to_str().ok());
    let kind = kind.unwrap_or_default().split(';').next().unwrap_or_default().trim().to_owned();
    // Strategic merge differs in how lists are joined; nobody here patches lists in part.
    if !["application/merge-patch+json", "application/strategic-merge-patch+json"]
        .contains(&kind.as_str())
    {
        return Err(Refusal::new(
            415,
            "UnsupportedMediaType",
            format!(
                "the body of the request was in an unknown format - accepted media types include: application/merge-patch+json, application/strategic-merge-patch+json; this one is {kind:?}"
            ),
        ));
    }
    let patch: Value = serde_json::from_slice(body)
        .map_err(|e| Refusal::bad_request(format!("error decoding patch: {e}")))?;
    let object = shared.write(|store| {
        store.update(resource, key, half, |value| {
            merge(value, &patch);
            *value = typed(resource, std::mem::take(value))?;
            Ok(())
        })
    })?;
    Ok(one(200, &object))
}

/// A merge patch, RFC 7386.
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (name, value) in fields {
        if value.is_null() {
            if let Some(map) = target.as_object_mut() {
                map.remove(name);
            }
        } else {
            merge(&mut target[name], value);
        }
    }
}

fn delete_options(query: &Query, body: &Bytes) -> Result<DeleteOptions, Refusal> {
    let body: Value = if body.is_empty() {
        json!({})
    } else {
        serde_json::from_slice(body)
            .map_err(|e| Refusal::bad_request(format!("couldn't decode DeleteOptions: {e}")))?
    };
    let mut options = options_from(&body)?;
    if let Some(seconds) = query.get("gracePeriodSeconds").and_then(|s| s.parse().ok()) {
        options.grace_seconds = Some(seconds);
    }
    if let Some(policy) = query.get("propagationPolicy") {
        options.propagation = Some(policy.to_owned());
    }
    Ok(options)
}

fn options_from(body: &Value) -> Result<DeleteOptions, Refusal> {
    let text = |v: &Value| v.as_str().map(str::to_owned);
    let options = DeleteOptions {
        grace_seconds: body["gracePeriodSeconds"].as_i64(),
        propagation: text(&body["propagationPolicy"]),
        uid: text(&body["preconditions"]["uid"]),
        version: text(&body["preconditions"]["resourceVersion"]),
    };
    if let Some(policy) = &options.propagation
        && !["Foreground", "Background", "Orphan"].contains(&policy.as_str())
    {
        let words = format!(
            "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Unsupported value: {policy:?}: supported values: \"Foreground\", \"Background\", \"Orphan\""
        );
        return Err(Refusal::new(422, "Invalid", words));
    }
    Ok(options)
}

fn delete_all(
    shared: &Arc<Shared>,
    place: &Place,
    query: &Query,
    body: &Bytes,
) -> Result<Answer, Refusal> {
    let options = delete_options(query, body)?;
    let (keys, listed) = {
        let store = shared.store();
        (list::keys(&store, place, query)?, list::list(&store, place, query)?)
    };
    for key in keys {
        // Gone in the meantime is as good.
        if shared.write(|store| store.delete(place.resource, &key, &options)).is_ok()
            && place.resource == &PODS
        {
            shared.kubelet_hears_of_delete(&key);
        }
    }
    if place.resource == &EVENTS {
        return Ok(success(200, place.resource, None));
    }
    Ok(page(200, JSON, listed))
}
