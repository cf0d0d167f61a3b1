//! Watches: one line of JSON for each change, in a response that does not end.
//!
//! A watch is a place in the history and pulls from there; nobody pushes to it. So a watch that was silent goes on
//! where it was, a slow one costs nothing until the history has passed it by (then it ends, as on the
//! real server), and all watches of a selector share the bytes.

use crate::{
    cluster::Shared,
    faults::Distortion,
    http::{Body, Query, streamed},
    object::{Object, event_line},
    resource::{Place, Resource},
    select::Selector,
    status::Refusal,
    store::Store,
};
use bytes::Bytes;
use hyper::body::Frame;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, VecDeque},
    io,
    sync::{Arc, MutexGuard},
    time::Duration,
};
use tokio::time::Instant;

/// What the test knows about a watch that is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenWatch {
    /// The resource: `pods`.
    pub resource: String,
    /// The namespace; nothing if it watches all.
    pub namespace: Option<String>,
    /// The label selector, as it came.
    pub labels: String,
    /// The field selector, as it came.
    pub fields: String,
    /// The version that it started from, as it came.
    pub from: String,
    /// How many lines it was given so far.
    pub lines: u64,
}

/// What one watch is told to do next.
#[derive(Clone, Debug)]
pub(crate) enum Order {
    /// Say this, whatever it is.
    Raw(Bytes),
    /// Say that there is an error, and end.
    Error(Refusal),
    /// A bookmark, if the client asked for them.
    Bookmark,
    /// End as if the time were over.
    End,
    /// Break off.
    Cut,
    /// Break off in the middle of the next line.
    CutInLine,
}

pub(crate) struct Watches {
    open: BTreeMap<u64, (OpenWatch, VecDeque<Order>)>,
    made: u64,
    pub(crate) bookmark_period: Duration,
    pub(crate) streaming_lists: bool,
}

/// As the real server does it.
const BOOKMARK_PERIOD: Duration = Duration::from_secs(60);
/// When the client says nothing. The real server draws one between this and twice this.
const TIMEOUT: Duration = Duration::from_secs(1800);
/// The last bookmark comes this long before the end.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);
/// How many changes are looked at under one lock.
const BATCH: usize = 256;

impl Default for Watches {
    fn default() -> Self {
        Watches {
            open: BTreeMap::new(),
            made: 0,
            bookmark_period: BOOKMARK_PERIOD,
            streaming_lists: false,
        }
    }
}

impl Watches {
    pub(crate) fn order_all(&mut self, order: &Order) {
        for (_, orders) in self.open.values_mut() {
            orders.push_back(order.clone());
        }
    }

    pub(crate) fn open(&self) -> Vec<OpenWatch> {
        self.open.values().map(|(w, _)| w.clone()).collect()
    }
}

struct Watch {
    shared: Arc<Shared>,
    id: u64,
    resource: &'static Resource,
    namespace: Option<String>,
    selector: Selector,
    /// Every change up to here was looked at.
    at: u64,
    lines: VecDeque<Bytes>,
    held: Vec<Bytes>,
    cut_in_line: bool,
    last: Option<Last>,
    bookmarks: bool,
    next_bookmark: Instant,
    deadline: Instant,
    silent: bool,
    pulse: tokio::sync::watch::Receiver<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    End,
    Cut,
}

/// Answers a request for a watch.
pub(crate) fn open(
    shared: &Arc<Shared>,
    mut store: MutexGuard<'_, Store>,
    place: &Place,
    query: &Query,
) -> Result<Body, Refusal> {
    let get = |name: &str| query.get(name).unwrap_or_default().to_owned();
    let selector = Selector::parse(place.resource, &get("labelSelector"), &get("fieldSelector"))?;
    let from = get("resourceVersion");
    let version: u64 = match from.as_str() {
        "" => 0,
        text => text.parse().map_err(|_| invalid_version(text))?,
    };
    let initial = query.flag("sendInitialEvents");
    if initial && query.get("resourceVersionMatch") != Some("NotOlderThan") {
        return Err(Refusal::new(
            422,
            "Invalid",
            "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        ));
    }
    let timeout = query
        .get("timeoutSeconds")
        .and_then(|v| v.parse().ok())
        .map(Duration::from_secs)
        .filter(|t| !t.is_zero())
        .unwrap_or(TIMEOUT);
    store.watches.made += 1;
    let now = Instant::now();
    let mut watch = Watch {
        shared: shared.clone(),
        id: store.watches.made,
        resource: place.resource,
        namespace: place.namespace.clone(),
        selector,
        at: version,
        lines: VecDeque::new(),
        held: Vec::new(),
        cut_in_line: false,
        last: None,
        bookmarks: query.flag("allowWatchBookmarks"),
        next_bookmark: now,
        deadline: now + timeout,
        silent: false,
        pulse: shared.pulse.subscribe(),
    };
    watch.next_bookmark = watch.bookmark_after(now, store.watches.bookmark_period);
    watch.begin(&store, version, initial);
    let open = OpenWatch {
        resource: place.resource.plural.to_owned(),
        namespace: place.namespace.clone(),
        labels: get("labelSelector"),
        fields: get("fieldSelector"),
        from,
        lines: 0,
    };
    let id = watch.id;
    store.watches.open.insert(id, (open, VecDeque::new()));
    drop(store);
    shared.beat();
    Ok(streamed(futures_util::stream::unfold(watch, |mut watch| async move {
        let next = watch.next().await?;
        Some((next.map(Frame::data), watch))
    })))
}

pub(crate) fn invalid_version(text: &str) -> Refusal {
    Refusal::new(
        400,
        "BadRequest",
        format!(
            "resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax"
        ),
    )
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.store().watches.open.remove(&self.id);
        self.shared.beat();
    }
}

impl Watch {
    /// What comes before the changes: nothing, or all that there is, or the end.
    fn begin(&mut self, store: &Store, version: u64, initial: bool) {
        if initial && !store.watches.streaming_lists {
            // An etcd that can not report progress: the real server notices only inside of the stream.
            let words = "a watch stream was requested by the client but the required storage feature RequestWatchProgress is disabled";
            self.error(&Refusal::new(500, "InternalError", words));
            return;
        }
        if version == 0 || initial {
            self.at = store.version();
            let all = store.all(self.resource);
            let seen = all.filter(|o| self.sees(o) && self.selector.matches(o));
            let lines: Vec<Bytes> = seen.map(|o| event_line("ADDED", o)).collect();
            self.lines.extend(lines);
            if initial && self.bookmarks {
                let line = bookmark(self.resource, self.at, true);
                self.lines.push_back(line);
            }
        } else if version < store.expired {
            self.error(&Refusal::too_old(version, store.expired));
        }
    }

    fn sees(&self, object: &Object) -> bool {
        self.namespace.as_deref().is_none_or(|n| object.text("/metadata/namespace") == n)
    }

    fn bookmark_after(&self, now: Instant, period: Duration) -> Instant {
        let next = now + period;
        match self.deadline.checked_sub(LAST_BOOKMARK) {
            Some(last) if last > now && last < next => last,
            _ => next,
        }
    }

    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                if self.cut_in_line {
                    self.lines.clear();
                    self.last = Some(Last::Cut);
                    return Some(Ok(line.slice(..line.len() / 2)));
                }
                return Some(Ok(line));
            }
            match self.last {
                Some(Last::End) => return None,
                Some(Last::Cut) => {
                    self.last = Some(Last::End);
                    // What was said before leaves before: a body that fails at once takes it along.
                    tokio::task::yield_now().await;
                    return Some(Err(io::Error::other("cut by the test")));
                }
                None => {}
            }
            self.pulse.mark_unchanged();
            let more = self.pull();
            if !more && self.lines.is_empty() && self.last.is_none() {
                self.wait().await;
            }
        }
    }

    async fn wait(&mut self) {
        let until =
            if self.bookmarks { self.next_bookmark.min(self.deadline) } else { self.deadline };
        let changed = self.pulse.changed();
        if self.silent {
            if changed.await.is_err() {
                self.last = Some(Last::Cut);
            }
            return;
        }
        tokio::select! {
            changed = changed => if changed.is_err() { self.last = Some(Last::Cut) },
            () = tokio::time::sleep_until(until) => {
                let now = Instant::now();
                if now >= self.deadline {
                    self.last = Some(Last::End);
                } else {
                    let period = {
                        let shared = self.shared.clone();
                        let store = shared.store();
                        self.push_bookmark(&store);
                        store.watches.bookmark_period
                    };
                    self.next_bookmark = self.bookmark_after(now, period);
                }
            }
        }
    }

    /// Takes what there is for this watch now. Says whether there may be more.
    fn pull(&mut self) -> bool {
        let shared = self.shared.clone();
        let mut store = shared.store();
        if let Some(storm) = &store.faults.storm {
            let storm = storm.clone();
            self.error(&storm);
            return false;
        }
        self.silent = store.faults.silent;
        let Some((_, orders)) = store.watches.open.get_mut(&self.id) else { return false };
        // A silent watch hears nothing but that its connection breaks.
        let next = match self.silent {
            true => {
                orders.iter().position(|o| matches!(o, Order::Cut)).and_then(|at| orders.remove(at))
            }
            false => orders.pop_front(),
        };
        // What happened before the order was given is said before it.
        let mut more = next.is_some();
        if !self.silent && !matches!(next, Some(Order::Cut)) {
            more |= self.pull_changes(&store);
        }
        match next {
            Some(Order::Raw(line)) => self.lines.push_back(line),
            Some(Order::Error(refusal)) => self.error(&refusal),
            Some(Order::Bookmark) => self.push_bookmark(&store),
            Some(Order::End) => self.last = Some(Last::End),
            Some(Order::Cut) => self.last = Some(Last::Cut),
            Some(Order::CutInLine) => self.cut_in_line = true,
            None => {}
        }
        let said = self.lines.len() as u64;
        if let Some((open, _)) = store.watches.open.get_mut(&self.id) {
            open.lines += said;
        }
        more
    }

    fn pull_changes(&mut self, store: &Store) -> bool {
        let Some(changes) = store.since(self.at) else {
            self.last = Some(Last::End);
            return false;
        };
        let mut seen = 0;
        let Distortion { duplicates, reverse } = store.faults.distortion;
        for change in changes.take(BATCH) {
            seen += 1;
            self.at = change.version;
            let there = self.namespace.as_ref().is_none_or(|n| *n == change.key.0);
            if change.resource != self.resource || !there {
                continue;
            }
            if let Some(line) = change.line(&self.selector) {
                for _ in 0..=duplicates {
                    self.held.push(line.clone());
                }
            }
            if self.held.len() >= reverse {
                self.held.reverse_if(reverse > 1);
                self.lines.extend(self.held.drain(..));
            }
        }
        if reverse <= 1 {
            self.lines.extend(self.held.drain(..));
        }
        if seen < BATCH {
            self.at = self.at.max(store.version());
        }
        seen == BATCH
    }

    fn push_bookmark(&mut self, store: &Store) {
        while self.pull_changes(store) {}
        // From the future: nothing to say, not even that.
        let may = self.at <= store.version() && self.held.is_empty() && self.last.is_none();
        if self.bookmarks && may {
            self.lines.push_back(bookmark(self.resource, self.at, false));
        }
    }

    fn error(&mut self, refusal: &Refusal) {
        let line = json!({"type": "ERROR", "object": refusal.body()});
        self.lines.push_back(Bytes::from(format!("{line}\n")));
        self.last = Some(Last::End);
    }
}

trait ReverseIf {
    fn reverse_if(&mut self, really: bool);
}

impl<T> ReverseIf for Vec<T> {
    fn reverse_if(&mut self, really: bool) {
        if really {
            self.reverse();
        }
    }
}

fn bookmark(resource: &Resource, version: u64, end_of_list: bool) -> Bytes {
    let mut object: Value = json!({
        "kind": resource.kind, "apiVersion": resource.api_version(),
        "metadata": {"resourceVersion": version.to_string(), "creationTimestamp": null},
    });
    if end_of_list {
        object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    }
    match resource.kind {
        "Pod" => {
            object["spec"] = json!({"containers": null});
            object["status"] = json!({});
        }
        "Node" | "Lease" => object["spec"] = json!({}),
        _ => {}
    }
    let line = json!({"type": "BOOKMARK", "object": object});
    Bytes::from(format!("{line}\n"))
}
