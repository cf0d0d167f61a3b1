//! `/log`: what the test fed, line by line, as a kubelet would read it from its files.

use crate::{
    cluster::Shared,
    http::{Body, Query, streamed},
    object::{Key, Object},
    resource::PODS,
    status::Refusal,
    store::Store,
};
use bytes::Bytes;
use hyper::body::Frame;
use jiff::Timestamp;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, MutexGuard},
};

type LogKey = (Key, String);

#[derive(Default)]
pub(crate) struct Logs {
    current: BTreeMap<LogKey, Vec<Line>>,
    previous: BTreeMap<LogKey, Vec<Line>>,
    /// Changes when open streams are to be cut.
    pub(crate) cuts: u64,
}

#[derive(Clone)]
struct Line {
    at: Timestamp,
    bytes: Bytes,
}

impl Logs {
    pub(crate) fn feed(&mut self, key: &Key, container: &str, at: Timestamp, bytes: Bytes) {
        let log = self.current.entry((key.clone(), container.to_owned())).or_default();
        log.push(Line { at, bytes });
    }

    /// The container starts again: its log becomes the previous one.
    pub(crate) fn rotate(&mut self, key: &Key, container: &str) {
        let key = (key.clone(), container.to_owned());
        let lines = self.current.remove(&key).unwrap_or_default();
        self.previous.insert(key, lines);
    }

    pub(crate) fn gone(&mut self, key: &Key) {
        self.current.retain(|(k, _), _| k != key);
        self.previous.retain(|(k, _), _| k != key);
    }
}

struct Reading {
    key: LogKey,
    uid: String,
    previous: bool,
    since: Option<Timestamp>,
    timestamps: bool,
    left: Option<usize>,
    next: usize,
}

/// Answers a request for a log.
pub(crate) fn read(
    shared: &Arc<Shared>,
    mut store: MutexGuard<'_, Store>,
    key: &Key,
    query: &Query,
) -> Result<Body, Refusal> {
    let pod = store.find(&PODS, key)?;
    let container = which_container(&pod, key, query.get("container"))?;
    let previous = query.flag("previous");
    ready_to_read(&store, &pod, key, &container, previous)?;
    let number = |name: &str| query.get(name).and_then(|v| v.parse::<i64>().ok());
    let since = match (query.get("sinceTime"), number("sinceSeconds")) {
        (Some(text), _) => Some(
            text.parse::<Timestamp>()
                .map_err(|e| Refusal::bad_request(format!("sinceTime: {e}")))?,
        ),
        (None, Some(seconds)) => {
            let back = jiff::SignedDuration::from_secs(seconds);
            store.clock.now().checked_sub(back).ok()
        }
        (None, None) => None,
    };
    let mut reading = Reading {
        key: (key.clone(), container),
        uid: pod.text("/metadata/uid").to_owned(),
        previous,
        since,
        timestamps: query.flag("timestamps"),
        left: number("limitBytes").and_then(|n| usize::try_from(n).ok()),
        next: 0,
    };
    if let Some(tail) = number("tailLines") {
        let lines = reading.lines(&store);
        let tail = usize::try_from(tail.max(0)).unwrap_or(0);
        reading.next = lines.len().saturating_sub(tail);
    }
    if !query.flag("follow") {
        let mut all = Vec::new();
        for bytes in reading.take(&mut store) {
            all.extend_from_slice(&bytes);
        }
        return Ok(crate::http::full(all));
    }
    let cuts = store.logs.cuts;
    drop(store);
    let pulse = shared.pulse.subscribe();
    let state = (shared.clone(), reading, pulse, cuts, false);
    Ok(streamed(futures_util::stream::unfold(state, |mut state| async move {
        loop {
            let (shared, reading, pulse, cuts, done) = &mut state;
            if *done {
                return None;
            }
            pulse.mark_unchanged();
            let (lines, over, cut) = {
                let mut store = shared.store();
                let over = reading.is_over(&store);
                (reading.take(&mut store), over, store.logs.cuts != *cuts)
            };
            if cut {
                *done = true;
                tokio::task::yield_now().await;
                return Some((Err(io::Error::other("cut by the test")), state));
            }
            *done = over || reading.left == Some(0);
            if !lines.is_empty() {
                let all: Vec<u8> = lines.concat();
                return Some((Ok(Frame::data(Bytes::from(all))), state));
            }
            if *done || pulse.changed().await.is_err() {
                return None;
            }
        }
    })))
}

impl Reading {
    fn lines<'a>(&self, store: &'a Store) -> &'a [Line] {
        let logs = if self.previous { &store.logs.previous } else { &store.logs.current };
        logs.get(&self.key).map_or(&[], Vec::as_slice)
    }

    fn take(&mut self, store: &mut Store) -> Vec<Bytes> {
        let lines: Vec<Line> = self.lines(store).get(self.next..).unwrap_or_default().to_vec();
        self.next += lines.len();
        let mut taken = Vec::new();
        for line in lines {
            if self.since.is_some_and(|since| line.at < since) {
                continue;
            }
            let mut bytes = line.bytes.clone();
            if self.timestamps {
                let at = line.at.strftime("%Y-%m-%dT%H:%M:%S.%9fZ");
                bytes = [format!("{at} ").as_bytes(), &bytes].concat().into();
            }
            if let Some(left) = &mut self.left {
                bytes.truncate(*left);
                *left -= bytes.len();
            }
            if !bytes.is_empty() {
                taken.push(bytes);
            }
        }
        taken
    }

    /// Whether no more can come.
    fn is_over(&self, store: &Store) -> bool {
        let Some(pod) = store.get(&PODS, &self.key.0) else { return true };
        self.previous
            || pod.text("/metadata/uid") != self.uid
            || state_of(pod, &self.key.1).is_some_and(|s| !s["terminated"].is_null())
    }
}

fn names(pod: &Object, pointer: &str) -> Vec<String> {
    let list = pod.at(pointer).and_then(Value::as_array).into_iter().flatten();
    list.filter_map(|c| Some(c["name"].as_str()?.to_owned())).collect()
}

fn which_container(pod: &Object, key: &Key, wanted: Option<&str>) -> Result<String, Refusal> {
    let containers = names(pod, "/spec/containers");
    let init = names(pod, "/spec/initContainers");
    match wanted.filter(|w| !w.is_empty()) {
        Some(name) if containers.iter().chain(&init).any(|c| c == name) => Ok(name.to_owned()),
        Some(name) => {
            Err(Refusal::bad_request(format!("container {name} is not valid for pod {}", key.1)))
        }
        None => match containers.as_slice() {
            [one] => Ok(one.clone()),
            many => {
                let mut words = format!(
                    "a container name must be specified for pod {}, choose one of: [{}]",
                    key.1,
                    many.join(" ")
                );
                if !init.is_empty() {
                    words
                        .push_str(&format!(" or one of the init containers: [{}]", init.join(" ")));
                }
                Err(Refusal::bad_request(words))
            }
        },
    }
}

fn status_of<'a>(pod: &'a Object, container: &str) -> Option<&'a Value> {
    ["/status/containerStatuses", "/status/initContainerStatuses"]
        .into_iter()
        .filter_map(|p| pod.at(p)?.as_array())
        .flatten()
        .find(|s| s["name"] == container)
}

fn state_of<'a>(pod: &'a Object, container: &str) -> Option<&'a Value> {
    status_of(pod, container).map(|s| &s["state"])
}

fn ready_to_read(
    store: &Store,
    pod: &Object,
    key: &Key,
    container: &str,
    previous: bool,
) -> Result<(), Refusal> {
    let name = &key.1;
    let node = pod.text("/spec/nodeName");
    if node.is_empty() {
        return Err(Refusal::bad_request(format!("pod {name} does not have a host assigned")));
    }
    if store.manner.dead_nodes.contains(node) {
        let words = format!(
            "Get \"https://{node}:10250/containerLogs/{}/{name}/{container}\": dial tcp: connect: no route to host",
            key.0
        );
        return Err(Refusal::new(500, "InternalError", words));
    }
    if previous {
        let had =
            status_of(pod, container).is_some_and(|s| !s["lastState"]["terminated"].is_null());
        if !had {
            return Err(Refusal::bad_request(format!(
                "previous terminated container {container:?} in pod {name:?} not found"
            )));
        }
        return Ok(());
    }
    let waiting = match state_of(pod, container) {
        Some(state) if state["waiting"].is_object() => {
            state["waiting"]["reason"].as_str().unwrap_or_default()
        }
        Some(_) => return Ok(()),
        None => "ContainerCreating",
    };
    // A container that ran before it waits still has its log.
    if status_of(pod, container).is_some_and(|s| s["lastState"]["terminated"].is_object()) {
        return Ok(());
    }
    Err(Refusal::bad_request(format!(
        "container {container:?} in pod {name:?} is waiting to start: {waiting}"
    )))
}
