//! What the server knows: the objects, the versions, the past, and what the test has switched.
//!
//! The past is a ring. A watch is a place in it; a list at an older version is today's objects
//! with the younger changes taken back. Where the ring ends, versions have expired.

use crate::{
    admit,
    clock::Clock,
    faults::Faults,
    kubelet::Manner,
    logs::Logs,
    object::{Change, Key, Object},
    requests::Requests,
    resource::{NAMESPACES, NODES, PODS, Resource},
    status::Refusal,
    watch::Watches,
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

type Objects = BTreeMap<Key, Arc<Object>>;

/// All that there is.
pub(crate) struct Store {
    version: u64,
    /// Every version before this one has expired.
    pub(crate) expired: u64,
    objects: BTreeMap<&'static str, Objects>,
    history: VecDeque<Arc<Change>>,
    pub(crate) history_limit: usize,
    made: u64,
    pub(crate) clock: Clock,
    pub(crate) faults: Faults,
    pub(crate) logs: Logs,
    pub(crate) requests: Requests,
    pub(crate) watches: Watches,
    pub(crate) manner: Manner,
}

/// The default of `history_limit`.
const HISTORY_LIMIT: usize = 50_000;

/// What a delete asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeleteOptions {
    pub grace_seconds: Option<i64>,
    pub propagation: Option<String>,
    pub uid: Option<String>,
    pub version: Option<String>,
}

/// Which half of an object is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    Main,
    Status,
}

impl Store {
    pub(crate) fn new() -> Self {
        Store {
            // As if the cluster had a past of which nobody knows.
            version: 100,
            expired: 100,
            objects: BTreeMap::new(),
            history: VecDeque::new(),
            history_limit: HISTORY_LIMIT,
            made: 0,
            clock: Clock::default(),
            faults: Faults::default(),
            logs: Logs::default(),
            requests: Requests::default(),
            watches: Watches::default(),
            manner: Manner::default(),
        }
    }

    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Time goes on in the database without a change of an object.
    pub(crate) fn skip_versions(&mut self, by: u64) {
        self.version += by;
    }

    /// Forgets everything that was before this version.
    pub(crate) fn expire_before(&mut self, version: u64) {
        self.expired = self.expired.max(version.min(self.version));
        while self.history.front().is_some_and(|c| c.version <= self.expired) {
            self.history.pop_front();
        }
    }

    pub(crate) fn get(&self, resource: &Resource, key: &Key) -> Option<&Arc<Object>> {
        self.objects.get(resource.kind)?.get(key)
    }

    pub(crate) fn find(&self, resource: &Resource, key: &Key) -> Result<Arc<Object>, Refusal> {
        self.get(resource, key).cloned().ok_or_else(|| Refusal::not_found(resource, &key.1))
    }

    pub(crate) fn all(&self, resource: &Resource) -> impl Iterator<Item = &Arc<Object>> {
        self.objects.get(resource.kind).into_iter().flat_map(BTreeMap::values)
    }

    /// The changes after a version, oldest first; `None` if some of them are forgotten.
    pub(crate) fn since(&self, version: u64) -> Option<impl Iterator<Item = &Arc<Change>>> {
        if version < self.expired {
            return None;
        }
        let from = self.history.partition_point(|c| c.version <= version);
        Some(self.history.range(from..))
    }

    /// The objects of a kind as they were at a version; `None` if it is forgotten.
    pub(crate) fn as_of(&self, resource: &Resource, version: u64) -> Option<Objects> {
        let mut objects = self.objects.get(resource.kind).cloned().unwrap_or_default();
        let later: Vec<_> = self.since(version)?.filter(|c| c.resource == resource).collect();
        for change in later.into_iter().rev() {
            match &change.before {
                Some(before) => objects.insert(change.key.clone(), before.clone()),
                None => objects.remove(&change.key),
            };
        }
        Some(objects)
    }

    fn commit(&mut self, resource: &'static Resource, key: Key, after: Option<Arc<Object>>) {
        let objects = self.objects.entry(resource.kind).or_default();
        let before = match &after {
            Some(object) => objects.insert(key.clone(), object.clone()),
            None => objects.remove(&key),
        };
        self.history.push_back(Arc::new(Change::new(self.version, resource, key, before, after)));
        while self.history.len() > self.history_limit {
            if let Some(gone) = self.history.pop_front() {
                self.expired = gone.version;
            }
        }
    }

    fn put(
        &mut self,
        resource: &'static Resource,
        value: Value,
        before: Option<&Object>,
    ) -> Arc<Object> {
        self.version += 1;
        let object = Object::new(resource, value, self.version, before);
        self.commit(resource, object.key(), Some(object.clone()));
        object
    }

    fn remove(&mut self, resource: &'static Resource, key: &Key) -> Option<Arc<Object>> {
        let last = self.get(resource, key)?.clone();
        self.version += 1;
        self.commit(resource, key.clone(), None);
        if resource == &PODS {
            self.logs.gone(key);
        }
        Some(last.at_version(self.version))
    }

    /// A name that nobody else has, for `generateName` and UIDs.
    fn unique(&mut self) -> u64 {
        self.made += 1;
        // Spread, so that neighbours do not look alike; odd, so that it is one to one.
        self.made.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    pub(crate) fn create(
        &mut self,
        resource: &'static Resource,
        namespace: &str,
        mut value: Value,
    ) -> Result<Arc<Object>, Refusal> {
        if !value["metadata"].is_object() {
            value["metadata"] = json!({});
        }
        let text =
            |v: &Value, field: &str| v["metadata"][field].as_str().unwrap_or_default().to_owned();
        let theirs = text(&value, "namespace");
        if resource.namespaced && !theirs.is_empty() && theirs != namespace {
            return Err(Refusal::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        if !text(&value, "resourceVersion").is_empty() {
            let words = "resourceVersion should not be set on objects to be created";
            return Err(Refusal::bad_request(words));
        }
        let unique = self.unique();
        let mut name = text(&value, "name");
        if name.is_empty() {
            let prefix = text(&value, "generateName");
            if prefix.is_empty() {
                let words = "name or generateName is required";
                let cause = crate::status::Cause::required("metadata.name", words);
                return Err(Refusal::invalid(resource, "", &[cause]));
            }
            name = format!("{prefix}{}", suffix(unique));
        }
        let now = self.clock.now_text();
        let metadata = &mut value["metadata"];
        metadata["name"] = json!(name);
        metadata["uid"] = json!(uid(unique, self.made));
        metadata["creationTimestamp"] = json!(now);
        for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink"] {
            if let Some(map) = metadata.as_object_mut() {
                map.remove(field);
            }
        }
        if resource.namespaced {
            metadata["namespace"] = json!(namespace);
        }
        admit::new_object(resource, &mut value, &now)?;
        let place = if resource.namespaced { namespace } else { "" };
        if self.get(resource, &(place.to_owned(), name.clone())).is_some() {
            return Err(Refusal::already_exists(resource, &name));
        }
        Ok(self.put(resource, value, None))
    }

    /// Changes one half of an object. Nothing happens, and no version is spent, where nothing changes.
    pub(crate) fn update(
        &mut self,
        resource: &'static Resource,
        key: &Key,
        half: Half,
        change: impl FnOnce(&mut Value) -> Result<(), Refusal>,
    ) -> Result<Arc<Object>, Refusal> {
        let object = self.find(resource, key)?;
        let old = object.value();
        let mut new = old.clone();
        change(&mut new)?;
        let wanted = new["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        if !wanted.is_empty() && wanted != object.version().to_string() {
            let why = "the object has been modified; please apply your changes to the latest version and try again";
            return Err(Refusal::conflict(resource, &key.1, why));
        }
        let wanted = &new["metadata"]["uid"];
        if !wanted.is_null() && wanted != &old["metadata"]["uid"] {
            let words = format!(
                "Precondition failed: UID in precondition: {}, UID in object meta: {}",
                wanted.as_str().unwrap_or_default(),
                old["metadata"]["uid"].as_str().unwrap_or_default(),
            );
            return Err(Refusal::conflict(resource, &key.1, &words));
        }
        if new["metadata"]["name"] != old["metadata"]["name"] {
            return Err(Refusal::bad_request(
                "the name of the object does not match the name on the URL",
            ));
        }
        keep_what_is_the_servers(&old, &mut new, half, resource);
        admit::next_version(resource, &old, &new, half == Half::Status)?;
        if new == old {
            return Ok(object);
        }
        if half == Half::Main && new["spec"] != old["spec"] && resource == &PODS {
            let generation = old["metadata"]["generation"].as_i64().unwrap_or(0);
            new["metadata"]["generation"] = json!(generation + 1);
        }
        let metadata = &new["metadata"];
        let held = metadata["finalizers"].as_array().is_some_and(|f| !f.is_empty());
        let waits = metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) > 0;
        if !metadata["deletionTimestamp"].is_null() && !held && !waits {
            // The write that takes off the last finalizer is never stored: the object goes as it was.
            self.remove(resource, key);
            return Ok(Object::new(resource, new, self.version, None));
        }
        Ok(self.put(resource, new, Some(&object)))
    }

    /// A status from the kubelet: nothing is asked, and only the status is made anew.
    pub(crate) fn set_status(
        &mut self,
        resource: &'static Resource,
        key: &Key,
        change: impl FnOnce(&Object, &mut Value),
    ) -> Result<Arc<Object>, Refusal> {
        let object = self.find(resource, key)?;
        let old = object.at("/status").cloned().unwrap_or_else(|| json!({}));
        let mut status = old.clone();
        change(&object, &mut status);
        if status == old {
            return Ok(object);
        }
        self.version += 1;
        let object = object.with_status(status, self.version);
        self.commit(resource, key.clone(), Some(object.clone()));
        Ok(object)
    }

    /// A change that no rule stands in the way of: the scheduler's binding, the taints of a node.
    pub(crate) fn overwrite(
        &mut self,
        resource: &'static Resource,
        key: &Key,
        change: impl FnOnce(&mut Value),
    ) -> Result<Arc<Object>, Refusal> {
        let object = self.find(resource, key)?;
        let old = object.value();
        let mut new = old.clone();
        change(&mut new);
        if new == old {
            return Ok(object);
        }
        Ok(self.put(resource, new, Some(&object)))
    }

    /// Begins a deletion, or ends one. The object that is returned is the answer to the request.
    pub(crate) fn delete(
        &mut self,
        resource: &'static Resource,
        key: &Key,
        options: &DeleteOptions,
    ) -> Result<Deleted, Refusal> {
        let object = self.find(resource, key)?;
        let mut value = object.value();
        let has = |field: &str| object.text(&format!("/metadata/{field}")).to_owned();
        for (what, wanted, is) in [
            ("UID", &options.uid, has("uid")),
            ("ResourceVersion", &options.version, has("resourceVersion")),
        ] {
            if let Some(wanted) = wanted
                && *wanted != is
            {
                let words = format!(
                    "Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {is}"
                );
                return Err(Refusal::conflict(resource, &key.1, &words));
            }
        }
        let had = value["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
        let mut finalizers = had.clone();
        finalizers.retain(|f| {
            f != "foregroundDeletion" && f != "orphan" || options.propagation.is_none()
        });
        match options.propagation.as_deref() {
            Some("Foreground") => finalizers.push(json!("foregroundDeletion")),
            Some("Orphan") => finalizers.push(json!("orphan")),
            _ => {}
        }
        let graceful = resource.graceful && self.begin_graceful(&mut value, options)?;
        if resource.graceful && !graceful && is_waiting(&value) {
            return Ok(Deleted::Waits(object));
        }
        if !resource.graceful
            && !finalizers.is_empty()
            && value["metadata"]["deletionTimestamp"].is_null()
        {
            value["metadata"]["deletionTimestamp"] = json!(self.clock.now_text());
            value["metadata"]["deletionGracePeriodSeconds"] = json!(0);
        }
        let mut answer = object.clone();
        if graceful || !finalizers.is_empty() || finalizers != had {
            if finalizers.is_empty() {
                if let Some(map) = value["metadata"].as_object_mut() {
                    map.remove("finalizers");
                }
            } else {
                value["metadata"]["finalizers"] = json!(finalizers);
            }
            if value != object.value() {
                answer = self.put(resource, value.clone(), Some(&object));
            }
            // The garbage collector finds no dependents here, and lets go at once.
            if finalizers.iter().any(|f| f == "foregroundDeletion" || f == "orphan") {
                self.update(resource, key, Half::Main, |v| {
                    if let Some(list) = v["metadata"]["finalizers"].as_array_mut() {
                        list.retain(|f| f != "foregroundDeletion" && f != "orphan");
                    }
                    Ok(())
                })?;
                return Ok(match self.get(resource, key) {
                    Some(_) => Deleted::Waits(answer),
                    None => Deleted::Gone(answer),
                });
            }
            if !finalizers.is_empty() || is_waiting(&value) {
                return Ok(Deleted::Waits(answer));
            }
        }
        if let Some(last) = self.remove(resource, key) {
            answer = last;
        }
        if resource == &NAMESPACES || resource == &NODES {
            answer = object;
        }
        Ok(Deleted::Gone(answer))
    }

    /// Sets the marks of a graceful deletion; says whether they are new.
    fn begin_graceful(&self, value: &mut Value, options: &DeleteOptions) -> Result<bool, Refusal> {
        let phase = value["status"]["phase"].as_str().unwrap_or_default().to_owned();
        let scheduled = !value["spec"]["nodeName"].as_str().unwrap_or_default().is_empty();
        let own = value["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(0);
        let metadata = &mut value["metadata"];
        if let Some(begun) = metadata["deletionTimestamp"].as_str() {
            // A deletion that has begun may only be shortened.
            let had = metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
            match options.grace_seconds {
                Some(wanted) if had > 0 && wanted < had => {
                    metadata["deletionTimestamp"] =
                        json!(self.clock.shift_text(begun, wanted.max(0) - had));
                    metadata["deletionGracePeriodSeconds"] = json!(wanted.max(0));
                    return Ok(true);
                }
                _ => return Ok(false),
            }
        }
        let mut grace = options.grace_seconds.unwrap_or(own);
        if !scheduled || phase == "Failed" || phase == "Succeeded" {
            grace = 0;
        }
        if grace < 0 {
            grace = 1;
        }
        metadata["deletionTimestamp"] = json!(self.clock.later_text(grace));
        metadata["deletionGracePeriodSeconds"] = json!(grace);
        if let Some(generation) = metadata["generation"].as_i64() {
            metadata["generation"] = json!(generation + 1);
        }
        Ok(true)
    }
}

/// How far a deletion came.
#[derive(Clone, Debug)]
pub(crate) enum Deleted {
    /// It waits for the kubelet or for a finalizer.
    Waits(Arc<Object>),
    /// The object is gone.
    Gone(Arc<Object>),
}

fn is_waiting(value: &Value) -> bool {
    value["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) > 0
}

/// What a client can not change: who the object is, how its deletion stands, and the other half.
fn keep_what_is_the_servers(old: &Value, new: &mut Value, half: Half, resource: &Resource) {
    for field in [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "generateName",
        "resourceVersion",
    ] {
        restore(&old["metadata"], &mut new["metadata"], field);
    }
    match half {
        Half::Main if resource.has_status => restore(old, new, "status"),
        Half::Main => {}
        Half::Status => {
            restore(old, new, "spec");
            restore(&old["metadata"], &mut new["metadata"], "ownerReferences");
        }
    }
    restore(old, new, "kind");
    restore(old, new, "apiVersion");
}

fn restore(old: &Value, new: &mut Value, field: &str) {
    match (old.get(field), new.as_object_mut()) {
        (Some(value), Some(map)) => {
            map.insert(field.to_owned(), value.clone());
        }
        (None, Some(map)) => {
            map.remove(field);
        }
        _ => {}
    }
}

/// Five letters as the server makes them: no vowels, nothing that reads like another.
fn suffix(unique: u64) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut rest = unique >> 16;
    let mut text = String::new();
    for _ in 0..5 {
        text.push(char::from(LETTERS[(rest % LETTERS.len() as u64) as usize]));
        rest /= LETTERS.len() as u64;
    }
    text
}

fn uid(unique: u64, made: u64) -> String {
    let low = unique.rotate_left(32) ^ made;
    format!(
        "{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}",
        unique >> 32,
        (unique >> 16) & 0xffff,
        unique & 0xfff,
        (low >> 48) & 0xfff,
        low & 0xffff_ffff_ffff,
    )
}
